"""Routes of topics that hold a value: list them, show one."""

from typing import Final

import trio
from starlette.responses import Response

from maxam.api.answers import Answer, Rows
from maxam.api.description import page
from maxam.api.parameters import AFTER, GLOB, LIMIT, choice
from maxam.api.routing import PII, Call, Description, RouteSpec, not_found, record_personal
from maxam.api.topic_schemas import VALUED_TOPIC
from maxam.avro.json.rows import WITHHELD, may_be_personal, topic_row, value_fields
from maxam.records import Change

PAGE_SLICES_MAX: Final = 40  # batches of topics that one page reads, so that a glob matching little cannot last
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
    (GLOB, AFTER, LIMIT, _VALUES, PII),
)
async def _topics(call: Call) -> Response:
    limit, glob, cursor = call[LIMIT], call[GLOB], call[AFTER]
    values, as_sent = call[_VALUES] != "false", call[_VALUES] == "raw"
    bytes_max = (RAW_PAGE_VALUE_BYTES_MAX if as_sent else PAGE_VALUE_BYTES_MAX) if values else None
    batch = VALUES_PER_SLICE if values and not as_sent else ROWS_PER_SLICE
    rows, value_bytes, given = Rows("topics"), 0, False
    for _ in range(PAGE_SLICES_MAX):
        changes, cursor = call.view.topics_slice(glob, cursor, min(limit - len(rows), batch), bytes_max)
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
    if given:
        record_personal(call, glob.text)
    return rows.answer(cursor)


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
    return topic_row(change) | {"updates": call.view.updates(change.destination)}


def _value(call: Call, change: Change, as_sent: bool = False) -> tuple[dict[str, object], bool]:
    """Return the value of a topic as far as the caller may receive it, and whether that may hold personal fields."""
    if not call.may_receive(change.destination):
        return WITHHELD, False
    text = call.view.schema_text(change.judgement)
    why = "it was asked for as it was sent" if as_sent else ""
    fields = value_fields(change, text, DECODED_BYTES_MAX, "is no longer in force", why, with_pii=call[PII])
    return fields, call[PII] and may_be_personal(change, text)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/topics", "read", _topics),
    ("GET", "/v1/topics/{destination:path}", "read", _topic),
)
