"""Routes of topics that hold a value: list them, show one."""

from contextlib import nullcontext
from http import HTTPStatus
from typing import Final, final

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows
from maxam.api.conditions import Condition
from maxam.api.description import page
from maxam.api.parameters import AFTER, GLOB, LIMIT, WHERE, choice
from maxam.api.routing import PII, Call, Description, RouteSpec, at_a_time, not_found, record_personal
from maxam.api.topic_schemas import VALUED_TOPIC
from maxam.avro.json.decoding import iso_time
from maxam.avro.json.rows import WITHHELD, may_be_personal, topic_row, value_fields
from maxam.records import Change

PAGE_SLICES_MAX: Final = 40  # batches of topics that one page reads, so that a glob matching little cannot last
WHERE_SLICES_MAX: Final = 200  # the same with a condition, whose batches are smaller: 0.2 s at most
COMPILED_AT_ONCE: Final = 2  # conditions, some 10 ms each
VALUES_PER_SLICE: Final = 5  # decoded before the event loop runs other tasks
ROWS_PER_SLICE: Final = 100
PAGE_VALUE_BYTES_MAX: Final = 32_768  # of headers and bodies of the values of one page, except the last one
RAW_PAGE_VALUE_BYTES_MAX: Final = 131_072  # the same of a page of bodies as they are, which are not decoded
# Larger values are decoded by the client, with the schema's text: a value of 1-byte numbers takes 0.2 us a byte here.
DECODED_BYTES_MAX: Final = 8192
_VALUES: Final = choice(
    "values",
    "with the values that the caller may receive. `raw` gives the bodies as they were sent",
    ("true", "false", "raw"),
    "false",
)


@Description(
    "Topics that hold a value, in byte order of their destinations",
    page("topics", VALUED_TOPIC),
    (GLOB, WHERE, AFTER, LIMIT, _VALUES, PII),
    errors={403: "`personal-withheld`: the condition reads a personal field, and `pii` is `false`."},
    text="""With `where` only topics are listed that the caller may receive. A page reads a limited number of topics, so it may be empty and
have a `next`.""",
)
async def _topics(call: Call) -> Response:
    limit, glob, cursor = call[LIMIT], call[GLOB], call[AFTER]
    condition = await _condition(call)
    values, as_sent = call[_VALUES] != "false", call[_VALUES] == "raw"
    bytes_max = (RAW_PAGE_VALUE_BYTES_MAX if as_sent else PAGE_VALUE_BYTES_MAX) if values else None
    batch = VALUES_PER_SLICE if values and not as_sent else ROWS_PER_SLICE
    rows, value_bytes, given = Rows("topics"), 0, False
    wanted = None if condition is None else condition.wanted
    for _ in range(PAGE_SLICES_MAX if condition is None else WHERE_SLICES_MAX):
        async with at_a_time("where", 1) if wanted is not None else nullcontext():
            changes, cursor = call.view.topics_slice(glob, cursor, min(limit - len(rows), batch), bytes_max, wanted)
        found = [_topic_row(call, change) for change in changes]
        if values:
            for row, change in zip(found, changes, strict=True):
                value, personal = _value(call, change, as_sent)
                row.update(value)
                given = given or personal
            value_bytes += sum([len(change.content) for change in changes])
        rows.add(found)
        if cursor is None or len(rows) == limit or (bytes_max is not None and value_bytes >= bytes_max):
            break
        await trio.lowlevel.checkpoint()
    if given or (condition is not None and condition.read_personal):
        record_personal(call, glob.text)
    return rows.answer(cursor)


@final
class _Filter:
    """The condition of one request.

    Attributes:
        read_personal: A personal field of some value was read.
    """

    def __init__(self, call: Call, condition: Condition) -> None:
        self._call: Final = call
        self._condition: Final = condition
        self.read_personal = False

    def wanted(self, change: Change) -> tuple[bool, int]:
        """Return whether a topic is listed, and the cost of the answer; raises ApiError for a personal field that is withheld."""
        condition = self._condition
        if not self._call.may_receive(change.destination):
            return False, 0
        if condition.is_personal(change):
            if not self._call[PII]:
                problem = f"the condition reads a field that the schema {change.validation.schema} marks as personal; request personal data"
                raise ApiError(HTTPStatus.FORBIDDEN, "personal-withheld", problem)
            self.read_personal = True
        return condition.matches(change), condition.cost(change)


async def _condition(call: Call) -> _Filter | None:
    """Return the condition of a request, None without one."""
    text = call[WHERE]
    if text is None:
        return None
    limiter = at_a_time("conditions", COMPILED_AT_ONCE)
    return _Filter(call, await call.view.conditions.compiled(text, call[GLOB], call.view.registry, limiter))


@Description("One topic with its value", VALUED_TOPIC, (PII,), errors={404: "`not-found`."})
async def _topic(call: Call) -> Response:
    destination = call.destination
    change = call.view.topic(destination.encode())
    if change is None:
        raise not_found(f"there is no topic {destination}")
    value, given = _value(call, change)
    if given:
        record_personal(call, destination)
    return Answer(_topic_row(call, change) | value)


def _topic_row(call: Call, change: Change) -> dict[str, object]:
    unknown_us = call.gateway.bridge_links.unknown_since_us(change.destination)
    unknown = {"unknown_since": iso_time(unknown_us)} if unknown_us else {}
    return topic_row(change) | {"updates": call.view.updates(change.destination)} | unknown


def _value(call: Call, change: Change, as_sent: bool = False) -> tuple[dict[str, object], bool]:
    """Return the value of a topic as far as the caller may receive it, and whether that may hold personal fields."""
    if not call.may_receive(change.destination):
        return WITHHELD, False
    text = call.view.schema_text(change.validation)
    why = "it was asked for as it was sent" if as_sent else ""
    fields = value_fields(change, text, DECODED_BYTES_MAX, "is no longer in force", why, with_pii=call[PII])
    return fields, call[PII] and may_be_personal(change, text)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/topics", "read", _topics),
    ("GET", "/v1/topics/{destination:path}", "read", _topic),
)
