"""Routes of the audit log: its lines, and the last one as an anchor outside the folder of the log."""

from datetime import UTC, datetime
from typing import Any, Final

import trio
from starlette.responses import Response

from maxam.api.answers import Answer
from maxam.api.description import COUNT, TEXT, Schema, described, listed, nullable, record, row_of
from maxam.api.parameters import AFTER_NUMBER, LIMIT, moment, text, whole
from maxam.api.routing import Call, Description, RouteSpec, at_a_time
from maxam.audit_chain import has_text
from maxam.gateway.audit import audit_folder
from maxam.gateway.audit_reading import read_lines, sequence_before

_READERS_MAX: Final = 2  # threads that read files at a time
_HEAD: Final = record("AuditHead", sequence=COUNT, sha256=TEXT, written=COUNT, lost=COUNT, failure=TEXT)
_LINE: Final[Schema] = {
    "title": "AuditLine",
    "type": "object",
    "properties": {"sequence": COUNT, "at": TEXT, "event": TEXT, "outcome": TEXT, "previous": TEXT},
    "required": ["sequence", "at", "event", "outcome", "previous"],
}
_TAIL: Final = whole("tail", "begin this many lines before the end", 1, 100_000, None)
_SINCE: Final = moment("since", "only lines since this time")
_WANTED: Final = (
    text("event", "only this event"),
    text("outcome", "only lines with this outcome"),
    text("principal", "only lines of this principal"),
    text("fingerprint", "only lines of this certificate"),
)
_FIND: Final = text("find", "only lines with this text in one of their values, in either case")


@Description("The last line of the audit log: an anchor outside its folder", _HEAD)
async def _head(call: Call) -> Response:
    audit = call.gateway.audit
    return Answer(row_of(_HEAD, audit, sequence=audit.head.sequence, sha256=audit.head.sha256))


@Description(
    "Lines of the audit log, the oldest first",
    record(
        lines=listed(_LINE),
        next=nullable(described(COUNT, "`after` of the next page; null at the end")),
        last=described(COUNT, "sequence of the last line that was searched: `after` to follow the log"),
    ),
    (AFTER_NUMBER, _TAIL, _SINCE, LIMIT, *_WANTED, _FIND),
    text="A line is as it is in the file, with the facts of its event. A page searches 2,000 lines at most.",
)
async def _lines(call: Call) -> Response:
    folder, head = audit_folder(call.gateway.settings), call.gateway.audit.head.sequence
    wanted = {one.name: call[one] for one in _WANTED if call[one] is not None}
    find = (call[_FIND] or "").lower()
    since_us = call[_SINCE]
    since = "" if since_us is None else datetime.fromtimestamp(since_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def is_wanted(line: dict[str, Any]) -> bool:
        return (
            str(line.get("at")) >= since
            and all(line.get(name) == value for name, value in wanted.items())
            and (not find or has_text(line, find))
        )

    def read() -> tuple[list[dict[str, Any]], int, bool]:
        after, tail = call[AFTER_NUMBER], call[_TAIL]
        if after is None:
            after = max(0, head - tail) if tail is not None else sequence_before(folder, since) if since else 0
        return read_lines(folder, after, call[LIMIT], is_wanted)

    lines, last, more = await trio.to_thread.run_sync(read, limiter=at_a_time("audit", _READERS_MAX))
    return Answer({"lines": lines, "next": last if more else None, "last": last})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/audit", "read", _head),
    ("GET", "/v1/audit/lines", "read", _lines),
)
