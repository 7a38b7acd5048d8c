"""The route of last wills: which sessions have one, and when each is sent."""

from typing import Final

import trio
from starlette.responses import Response

from maxam.api.answers import Rows
from maxam.api.description import COUNT, FLAG, HEX, NUMBER, TEXT, TIME, described, nullable, page, record
from maxam.api.parameters import LIMIT, after, text
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.broker.wills import SessionWill

WILLS_PATH: Final = "/v1/wills"
WILLS_PER_SLICE: Final = 100  # visited before the event loop runs other tasks: less than 1 ms
_PRINCIPAL: Final = text("principal", "only those of this principal")
_AFTER: Final = after()

WILL: Final = record(
    "LastWill",
    principal=TEXT,
    client_id=TEXT,
    destination=TEXT,
    body_bytes=described(COUNT, "size of the body; 0 for a delete"),
    delay_s=described(COUNT, "from the end of the connection to the SEND"),
    armed=described(FLAG, "whether the connection has ended without DISCONNECT, so that the delay goes on"),
    due_s=nullable(described(NUMBER, "seconds until it is sent; null unless it is armed")),
    fingerprint=described(HEX, "of the certificate that set it"),
    set_at=TIME,
)


@Description(
    "Last wills in order of principal and client-id",
    page("wills", WILL),
    (_PRINCIPAL, _AFTER, LIMIT),
    text="Wills that the policy binds to a principal are among them. Only its sessions that have connected have one.",
)
async def _wills(call: Call) -> Response:
    wills = call.gateway.broker.last_wills.wills
    principal = call[_PRINCIPAL]

    async def read(cursor: tuple[str, ...] | None, most: int) -> tuple[list[dict[str, object]], tuple[str, ...] | None]:
        found: list[dict[str, object]] = []
        start = (principal or "", "") if cursor is None else (cursor[0], cursor[1])
        for visited, will in enumerate(wills.from_key(start)):
            if will.key == cursor:
                continue
            if principal is not None and will.key[0] != principal:
                return found, None
            if len(found) == most or visited > WILLS_PER_SLICE:
                return found, cursor
            cursor = will.key
            if will.current is not None:
                found.append(_row(will))
        return found, None

    rows = Rows("wills")
    following = await rows.fill(call[LIMIT], WILLS_PER_SLICE, call[_AFTER], read)
    return rows.answer(following)


def _row(will: SessionWill) -> dict[str, object]:
    current = will.current
    assert current is not None  # noqa: S101 - of the caller
    armed = will.due_s >= 0
    return {
        "principal": will.key[0],
        "client_id": will.key[1],
        "destination": current.destination.decode(),
        "body_bytes": len(current.content) - current.body_at,
        "delay_s": current.delay_s,
        "armed": armed,
        "due_s": max(0.0, round(will.due_s - trio.current_time(), 3)) if armed else None,
        "fingerprint": current.publisher.fingerprint,
        "set_at": iso_time(current.accepted_at_us),
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", WILLS_PATH, "read", _wills),)
