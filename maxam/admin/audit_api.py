"""The route that tells the last line of the audit log: an anchor that is not in the folder of the log."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, RouteSpec
from maxam.admin.description import COUNT, TEXT, described, record
from maxam.admin.view import View
from maxam.records import Identity


@described(
    "The last line of the audit log: an anchor that is not in its folder",
    record("AuditHead", sequence=COUNT, sha256=TEXT, written=COUNT, lost=COUNT, failure=TEXT),
)
async def _head(view: View, _request: Request, _caller: Identity) -> Response:
    audit = view.audit
    head = audit.head
    return Answer(
        {
            "sequence": head.sequence,
            "sha256": head.sha256,
            "written": audit.written,
            "lost": audit.lost,
            "failure": audit.failure,
        }
    )


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/audit", "read", _head),)
