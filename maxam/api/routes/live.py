"""The route of live views: server-sent events, for as long as the reader stays and may read."""

from http import HTTPStatus
from typing import Final, final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from maxam.api.answers import ApiError
from maxam.api.description import TEXT
from maxam.api.event_stream import MEDIA_TYPE, EventStream
from maxam.api.listener import CHAIN
from maxam.api.live.shared import STREAMS_MAX, Live
from maxam.api.live.views import Stream
from maxam.api.parameters import AFTER, GLOB, PAGE_MAX, flag, whole
from maxam.api.routing import Call, Description, RouteSpec, record_personal

_ROWS: Final = whole("rows", "topics in the window, at most", 1, PAGE_MAX, 50)
_EVERY_MS: Final = whole(  # people read no faster than at the least
    "every_ms", "shortest time between two events with values, in milliseconds", 250, 60_000, 1000
)
_PII: Final = flag("pii", "with the fields that schemas mark as personal. The audit log has a line about that")


@final
class _View(Response):
    """The response of a live view."""

    def __init__(self, live: Live, principal: str, stream: Stream) -> None:
        super().__init__()
        self._live: Final = live
        self._principal: Final = principal
        self._stream: Final = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        with self._live.place(self._principal):
            await EventStream(self._stream.run)(scope, receive, send)


@Description(
    "Live view of a window of topics, as server-sent events",
    TEXT,
    (GLOB, AFTER, _ROWS, _EVERY_MS, _PII),
    errors={429: "`too-many-streams`: of this principal.", 503: "`too-many-streams`: of all."},
    media_type=MEDIA_TYPE,
)
async def _live(call: Call) -> Response:
    live, principal = call.view.live, call.caller.principal
    if call.request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    denial = live.views.denial(principal)
    if denial is not None:
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too-many-streams", denial)
    if live.views.full:
        problem = f"{STREAMS_MAX} live views are open, which is the most"
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-streams", problem)
    if call[_PII]:
        record_personal(call, call[GLOB].text)
    chain = call.request.scope["state"][CHAIN]
    stream = Stream(
        call.view, call.caller, chain, call[GLOB], call[AFTER], call[_ROWS], call[_EVERY_MS] / 1000, call[_PII]
    )
    return _View(live, principal, stream)


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/live", "read", _live),)
