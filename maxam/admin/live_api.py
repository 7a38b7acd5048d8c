"""The route of live views: server-sent events, for as long as the reader stays and may read."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from maxam.admin.answers import PAGE_MAX, ApiError, RouteSpec, flag_of, glob_of
from maxam.admin.description import AFTER, GLOB, Parameter, described
from maxam.admin.listener import CARRIER, CHAIN
from maxam.admin.live import EVERY_TOPIC, STREAMS_MAX, Stream
from maxam.admin.personal import tell_given
from maxam.admin.view import View
from maxam.records import Identity

PATH: Final = "/v1/live"
ROWS_DEFAULT: Final = 50
EVERY_MS_MIN: Final = 250  # nobody reads faster
EVERY_MS_MAX: Final = 60_000
EVERY_MS_DEFAULT: Final = 1000
MEDIA_TYPE: Final = "text/event-stream"


@final
class _EventStream(Response):
    """A response that lasts: it ends when its stream does, the reader has gone, or the listener stops."""

    def __init__(self, view: View, principal: str, stream: Stream) -> None:
        super().__init__(headers={"content-type": MEDIA_TYPE, "cache-control": "no-store"})
        del self.headers["content-length"]
        self._view: Final = view
        self._principal: Final = principal
        self._stream: Final = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        carrier = scope.get("state", {}).get(CARRIER)

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        with self._view.live.place(self._view, self._principal):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                if carrier is not None:
                    nursery.start_soon(_until_stop, carrier.stopping, nursery.cancel_scope)
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._stream.run(write, trio.lowlevel.checkpoint if carrier is None else carrier.taken)
                nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Callable[[], Awaitable[Any]], scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _until_stop(stopping: trio.Event, scope: trio.CancelScope) -> None:
    await stopping.wait()
    scope.cancel()


@described(
    "Live view of a window of topics, as server-sent events",
    {"type": "string"},
    (
        GLOB,
        AFTER,
        Parameter(
            "rows",
            {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": ROWS_DEFAULT},
            "topics in the window, at most",
        ),
        Parameter(
            "every_ms",
            {"type": "integer", "minimum": EVERY_MS_MIN, "maximum": EVERY_MS_MAX, "default": EVERY_MS_DEFAULT},
            "at most so often a changed value is sent, in milliseconds",
        ),
        Parameter(
            "pii",
            {"type": "boolean", "default": False},
            "with the fields that schemas mark as personal; that is written into the audit log",
        ),
    ),
    errors={400: "`invalid-glob`.", 429: "`too-many-streams`: of this principal.", 503: "`too-many-streams`: of all."},
    media_type=MEDIA_TYPE,
)
async def _live(view: View, request: Request, caller: Identity) -> Response:
    glob = glob_of(view, request.query_params.get("glob", EVERY_TOPIC))
    after = request.query_params.get("after")
    rows_max = _number(request, "rows", ROWS_DEFAULT, 1, PAGE_MAX)
    every_s = _number(request, "every_ms", EVERY_MS_DEFAULT, EVERY_MS_MIN, EVERY_MS_MAX) / 1000
    with_pii = flag_of(request, "pii")
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    objection = view.live.objection(caller.principal)
    if objection is not None:
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too-many-streams", objection)
    if view.live.full:
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE, "too-many-streams", f"{STREAMS_MAX} live views are open, which is the most"
        )
    if with_pii:
        tell_given(view, request, caller, glob.text)
    stream = Stream(
        view,
        caller,
        request.scope["state"][CHAIN],
        glob,
        None if after is None else after.encode(),
        rows_max,
        every_s,
        with_pii,
    )
    return _EventStream(view, caller.principal, stream)


def _number(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and low <= int(text) <= high):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"{name} must be a number from {low} to {high}")
    return int(text)


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", PATH, "read", _live),)
