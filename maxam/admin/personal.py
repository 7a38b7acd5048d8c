"""Fields that schemas mark as personal: whether a caller wants them, and the line of the audit log that they were given.

Who asks nothing gets them, within the receive rights, as any subscriber does; the console asks for values without them.
"""

from typing import Final

from starlette.requests import Request

from maxam.admin.answers import flag_of
from maxam.admin.description import Parameter
from maxam.admin.view import View
from maxam.gateway.audit import ADMIN
from maxam.gateway.listener import address_text
from maxam.records import Identity

PII: Final = Parameter(
    "pii",
    {"type": "string", "enum": ["true", "false"], "default": "true"},
    "`false`: without the fields that schemas mark as personal; that they were given goes into the audit log",
)


def wants_personal(request: Request) -> bool:
    """Read the parameter; raises ApiError."""
    return flag_of(request, PII.name, default=True)


def tell_given(view: View, request: Request, caller: Identity, what: str) -> None:
    """Write into the audit log that a caller was given personal fields.

    Args:
        view: What the gateway shows.
        request: What was asked.
        caller: Who asked.
        what: Of which topics: a destination or a glob.
    """
    address = "" if request.client is None else address_text(*request.client)
    path = request.scope["path"]
    view.audit.tell(ADMIN, "done", caller, address, f"with personal fields of {what}", method=request.method, path=path)
