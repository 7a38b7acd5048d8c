"""Routes of values, for every principal within its rights to receive: one value, a page of values, a stream."""

from http import HTTPStatus
from typing import Final, final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from maxam.api.answers import Answer, ApiError, Rows, cacheable
from maxam.api.description import TEXT, page
from maxam.api.event_stream import MEDIA_TYPE, EventStream
from maxam.api.live.shared import STREAMS_MAX
from maxam.api.parameters import AFTER, GLOB, LIMIT, WHERE, text, whole
from maxam.api.routing import ANY_PRINCIPAL, Call, Description, RouteSpec, not_found
from maxam.api.values.reader import Reader
from maxam.api.values.rows import VALUE, tag_of, value_text
from maxam.api.values.stream import ValueStream
from maxam.avro.json.selection import Fields
from maxam.globs import Glob, compile_glob
from maxam.records import Change
from maxam.selectors.selected_fields import checked_fields
from maxam.stomp.events import INTERVAL_MS_MAX, INTERVAL_MS_MIN, SubscribeOptions

PAGE_SLICES_MAX: Final = 40  # batches of topics that one page reads, so that a glob matching little cannot last
VALUES_PER_SLICE: Final = 5  # converted before the event loop runs other tasks
PAGE_VALUE_BYTES_MAX: Final = 131_072  # of headers and bodies of one page, except the last one
LAST_EVENT_ID: Final = "last-event-id"
_POSITION_CHARACTERS_MAX: Final = 64
_FIELDS: Final = text("fields", "paths of the fields to show, such as `gamePlay.state,faults.code`. Without it, all")
_SINCE: Final = text("since", "`id` of the last event, from which to go on. The header `Last-Event-ID` has precedence")
_INTERVAL: Final = whole(
    "min_interval_ms",
    "shortest time between two values of a topic, in milliseconds",
    INTERVAL_MS_MIN,
    INTERVAL_MS_MAX,
    None,
)


@Description(
    "The value of one topic",
    VALUE,
    (_FIELDS,),
    errors={403: "`withheld`: no right to receive the topic.", 404: "`not-found`: the topic has no value."},
    also={304: ("It matches `If-None-Match`.", None)},
    text="The `ETag` begins with the revision of the value.",
)
async def _value(call: Call) -> Response:
    reader = _admitted(call)
    destination = call.destination
    if not reader.rights().may_receive(destination.encode()):
        raise ApiError(HTTPStatus.FORBIDDEN, "withheld", f"no right to receive {destination}")
    change = call.view.topic(destination.encode())
    if change is None:
        raise not_found(f"the topic {destination} has no value")
    fields = _fields(call, reader, compile_glob(destination, call.gateway.broker.limits))
    content = _text(call, reader, change, fields)
    return cacheable(call.request, content, tag_of(change, content))


@Description(
    "Values of topics, in byte order of their destinations",
    page("values", VALUE),
    (GLOB, _FIELDS, AFTER, LIMIT),
    text="""Topics that the caller may not receive are left out. A page reads a limited number of topics, so it may be empty and have a
`next`.""",
)
async def _values(call: Call) -> Response:
    reader = _admitted(call)
    limit, glob, cursor = call[LIMIT], call[GLOB], call[AFTER]
    fields = _fields(call, reader, glob)
    rows, value_bytes = Rows("values"), 0

    def wanted(change: Change) -> tuple[bool, int]:
        return reader.rights().may_receive(change.destination), 0

    for _ in range(PAGE_SLICES_MAX):
        most = min(limit - len(rows), VALUES_PER_SLICE)
        changes, cursor = call.view.topics_slice(glob, cursor, most, PAGE_VALUE_BYTES_MAX, wanted)
        rows.add_texts([_text(call, reader, change, fields) for change in changes])
        value_bytes += sum([len(change.content) for change in changes])
        if cursor is None or len(rows) == limit or value_bytes >= PAGE_VALUE_BYTES_MAX:
            break
        await trio.lowlevel.checkpoint()
    return rows.answer(cursor)


@Description(
    "Values of topics and their changes, as server-sent events",
    TEXT,
    (GLOB, _FIELDS, WHERE, _INTERVAL, _SINCE),
    errors={429: "`too-many-streams`: of this principal.", 503: "`too-many-streams`: of all."},
    media_type=MEDIA_TYPE,
    text="""The stream is a subscription. A slow reader gets the newest value of each topic. After `Last-Event-ID` only later changes
follow, deletes included.""",
)
async def _live(call: Call) -> Response:
    reader = _admitted(call)
    live, principal = call.view.live, reader.identity.principal
    if call.request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    if not call.gateway.role.serves:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "following", "this gateway follows another one; read there")
    denial = live.values.denial(principal)
    if denial is not None:
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too-many-streams", denial)
    if live.values.full:
        problem = f"{STREAMS_MAX} streams of values are open, which is the most"
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-streams", problem)
    glob = call[GLOB]
    fields = _fields(call, reader, glob)
    since = call.request.headers.get(LAST_EVENT_ID) or call[_SINCE]
    options = SubscribeOptions(
        None if not since else since[:_POSITION_CHARACTERS_MAX].encode(),
        True,
        False,
        call[_INTERVAL] or 0,
        call[WHERE],
        False,
        True,
        None if not fields else ",".join([".".join(path) for path in fields]),
    )
    return _Values(ValueStream(call.view, reader, glob.text, fields, options), call, principal)


@final
class _Values(Response):
    """A stream of values, which subscribes when it is served."""

    def __init__(self, stream: ValueStream, call: Call, principal: str) -> None:
        super().__init__()
        self._stream: Final = stream
        self._streams: Final = call.view.live.values
        self._principal: Final = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        with self._streams.place(self._principal):
            try:
                try:
                    self._stream.open()
                except ApiError as error:
                    await Answer(error.body, error.status)(scope, receive, send)
                    return
                response = EventStream(self._stream.run)
                response.headers.update({k: v for k, v in self.headers.items() if k != "content-length"})
                await response(scope, receive, send)
            finally:
                self._stream.close()


def _admitted(call: Call) -> Reader:
    denial = call.reader.denial()
    if denial is not None:
        raise ApiError(HTTPStatus.FORBIDDEN, denial[0], denial[1])
    return call.reader


def _fields(call: Call, reader: Reader, glob: Glob) -> Fields:
    given = call[_FIELDS]
    if given is None:
        return ()
    broker = call.gateway.broker
    try:
        return checked_fields(given, broker.registry, glob, reader.rights().received, broker.limits)
    except ValueError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"fields: {error}") from error


def _text(call: Call, reader: Reader, change: Change, fields: Fields) -> bytes:
    return value_text(call.gateway.broker.json_values, change, reader.rights().pii, fields)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/values", ANY_PRINCIPAL, _values),
    ("GET", "/v1/values/live", ANY_PRINCIPAL, _live),
    ("GET", "/v1/values/{destination:path}", ANY_PRINCIPAL, _value),
)
