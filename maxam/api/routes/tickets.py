"""The route that makes tickets: one-time secrets by which a client without a certificate connects to the web listener."""

import time
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from maxam.api.answers import Answer, ApiError
from maxam.api.bodies import read_body
from maxam.api.description import TEXT, TIME, described, listed, nullable, record
from maxam.api.listener import CHAIN
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.gateway.grants import GLOBS_MAX, TICKET_RIGHT, Maker
from maxam.gateway.tickets import VALIDITY_S, VALIDITY_S_MAX, TicketError

TICKETS_PATH: Final = "/v1/tickets"
_STATUS: Final = {
    "beyond-maker": HTTPStatus.FORBIDDEN,
    "principal-exists": HTTPStatus.CONFLICT,
    "too-many": HTTPStatus.CONFLICT,
}
_GLOBS: Final = {**listed(TEXT), "maxItems": GLOBS_MAX}
_WISH: Final = record(
    "TicketWish",
    ("send", "client_id", "origin", "validity_s"),
    principal={"type": "string", "minLength": 1, "maxLength": 128},
    receive=_GLOBS,
    send=_GLOBS,
    client_id=nullable({"type": "string", "minLength": 1, "maxLength": 128}),
    origin=nullable({"type": "string", "minLength": 1}),
    validity_s={"type": "integer", "minimum": 1, "maximum": VALIDITY_S_MAX, "default": VALIDITY_S},
)


@Description(
    "Make a ticket, with which one client without a certificate can connect once",
    record(
        "Ticket",
        id=described(TEXT, "as the audit log has it; it grants nothing"),
        ticket=described(TEXT, "the secret, which is shown once"),
        principal=TEXT,
        expires_at=TIME,
    ),
    body=_WISH,
    status=HTTPStatus.CREATED,
    errors={
        400: "`invalid-request`, `invalid-glob`: the body, or a part of the wish, is not valid.",
        403: "`beyond-maker`: a right that the caller does not hold.",
        409: "`web-off`: there is no web listener. `principal-exists`: the policy has the principal. `too-many`.",
    },
    text="The client has the rights of the ticket, and no others. They end when the caller loses its certificate or a right.",
)
async def _make_ticket(call: Call) -> Response:
    gateway = call.gateway
    if gateway.web is None:
        raise ApiError(
            HTTPStatus.CONFLICT, "web-off", "this gateway serves no client without a certificate; add a section [web]"
        )
    wanted = await read_body(call.request, _WISH)
    client_id = wanted.get("client_id")
    if client_id is not None and not (client_id.isascii() and client_id.isprintable()):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-request", "`client_id` must be printable ASCII")
    now_s = time.time()
    try:
        secret, ticket = gateway.tickets.make(
            Maker(call.caller, call.request.scope["state"][CHAIN]),
            wanted["principal"],
            wanted["receive"],
            wanted.get("send") or [],
            client_id,
            wanted.get("origin"),
            wanted.get("validity_s") or VALIDITY_S,
            now_s,
        )
    except TicketError as error:
        raise ApiError(_STATUS.get(error.code, HTTPStatus.BAD_REQUEST), error.code, str(error)) from error
    grant = ticket.grant
    call.audit("done", f"ticket {grant.label} for {grant.identity.principal}")
    expires_at = iso_time(int(ticket.expires_s * 1_000_000))
    row = {"id": grant.label, "ticket": secret, "principal": grant.identity.principal, "expires_at": expires_at}
    return Answer(row, HTTPStatus.CREATED)


ROUTES: Final[tuple[RouteSpec, ...]] = (("POST", TICKETS_PATH, TICKET_RIGHT, _make_ticket),)
