"""The route of the last line of the audit log: an anchor outside the folder of the log."""

from typing import Final

from starlette.responses import Response

from maxam.api.answers import Answer
from maxam.api.description import COUNT, TEXT, record, row_of
from maxam.api.routing import Call, Description, RouteSpec

_HEAD: Final = record("AuditHead", sequence=COUNT, sha256=TEXT, written=COUNT, lost=COUNT, failure=TEXT)


@Description("The last line of the audit log: an anchor outside its folder", _HEAD)
async def _head(call: Call) -> Response:
    audit = call.gateway.audit
    return Answer(row_of(_HEAD, audit, sequence=audit.head.sequence, sha256=audit.head.sha256))


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/audit", "read", _head),)
