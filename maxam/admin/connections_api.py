"""The route of connections: whoever is connected to one of the listeners, before and after it has said who it is."""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from http import HTTPStatus
from operator import attrgetter
from typing import Final, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import ApiError, RouteSpec, Rows, limit_of
from maxam.admin.description import (
    AFTER_NUMBER,
    COUNT,
    HEX,
    LIMIT,
    SECONDS,
    TEXT,
    TIME,
    described,
    names_of,
    nullable,
    one_of,
    page,
    record,
)
from maxam.admin.values import iso_time
from maxam.admin.view import View
from maxam.gateway.connection import ClientConnection
from maxam.gateway.entitlement import Visitor
from maxam.records import Identity

CONNECTIONS_PATH: Final = "/v1/connections"
ROWS_PER_SLICE: Final = 50  # made before the event loop has its turn: less than 1 ms
STOMP: Final = "stomp"
ADMIN: Final = "admin"
STATES: Final = ("handshake", "connecting", "connected", "closing")
_DIGITS_MAX: Final = 18
_Connection = TypeVar("_Connection", ClientConnection, Visitor)

RATE: Final = {"type": "number", "description": "of the last two seconds; null before it is known"}

CONNECTION: Final = record(
    "Connection",
    id={"type": "integer", "description": "number of its opening, since the process began"},
    kind=one_of(STOMP, ADMIN),
    state=one_of(*STATES),
    address=TEXT,
    principal=nullable(
        {"type": "string", "description": "null before it is connected, or where the policy names none"}
    ),
    client_id=nullable(TEXT),
    fingerprint=nullable(HEX),
    tls=nullable(TEXT),
    stomp=nullable(one_of("1.1", "1.2")),
    opened_at=TIME,
    open_s=SECONDS,
    heard_s=nullable({"type": "number", "description": "seconds since it was last heard of, while we listened"}),
    bytes_in=nullable(COUNT),
    bytes_out=nullable(COUNT),
    frames=nullable(COUNT),
    sends=nullable(COUNT),
    messages=nullable(COUNT),
    sends_per_s=nullable(RATE),
    messages_per_s=nullable(RATE),
    receipts_waiting=nullable(COUNT),
    window=nullable(COUNT),
    in_flight=nullable({"type": "integer", "description": "messages that it has not acknowledged"}),
)


@described(
    "Connections in order of their opening: of clients, and of operators",
    page("connections", CONNECTION),
    (AFTER_NUMBER, LIMIT),
    text="Figures of frames, receipts and window are null before a client is connected, and those of the traffic for operators.",
)
async def _connections(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    after = _cursor(request)
    # One look at who is there, which copies references. Who goes meanwhile is left out, who comes has a higher number.
    clients, visitors = list(view.clients), list(view.visitors)
    both: Iterator[ClientConnection | Visitor] = merge(_behind(clients, after), _behind(visitors, after), key=_NUMBER)
    rows = Rows("connections")
    waiting: list[dict[str, object]] = []  # to be written with the others of a slice
    following: int | None = None
    for looked_at, connection in enumerate(both, 1):
        if len(rows) + len(waiting) == limit:
            following = after
            break
        after = connection.number
        if isinstance(connection, Visitor):
            if connection in view.visitors:
                waiting.append(_visitor_row(view, connection))
        elif connection in view.clients:
            rates = view.rates.of(connection.number)
            waiting.append(_client_row(connection, trio.current_time()) | dict(zip(_RATES, rates, strict=True)))
        if looked_at % ROWS_PER_SLICE == 0:
            rows.add(waiting)
            waiting = []
            await trio.lowlevel.checkpoint()
    rows.add(waiting)
    return rows.answer(None if following is None else str(following))


_NUMBER: Final = attrgetter("number")
_RATES: Final = ("sends_per_s", "messages_per_s")


def _behind(connections: list[_Connection], after: int) -> list[_Connection]:
    return connections[bisect_right(connections, after, key=_NUMBER) :]


def _cursor(request: Request) -> int:
    text = request.query_params.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", "after must be the `next` of the page before")
    return int(text)


def state_of(client: ClientConnection) -> str:
    """Say how far a client's connection is: one of STATES."""
    peer = client.peer
    if client.reason or (peer is not None and (peer.end or peer.finished)):
        return "closing"
    if peer is None:
        return "handshake"
    if peer.connection is None:
        return "connecting"
    return "connected" if peer.connection.failure is None else "closing"


def _client_row(client: ClientConnection, now_s: float) -> dict[str, object]:
    peer = client.peer
    connection = None if peer is None else peer.connection
    heard_at_s = None if peer is None else peer.heard_at_s
    return {
        "id": client.number,
        "kind": STOMP,
        "state": state_of(client),
        "address": client.address,
        "principal": None if connection is None else connection.identity.principal,
        "client_id": None if peer is None else peer.client_id or None,
        "fingerprint": client.fingerprint or None,
        "tls": client.tls_version or None,
        "stomp": None if peer is None else peer.version or None,
        "opened_at": iso_time(client.opened_at_us),
        "open_s": round(now_s - client.opened_at_s, 3),
        "heard_s": None if heard_at_s is None else round(max(0.0, now_s - heard_at_s), 3),
        "bytes_in": client.bytes_in,
        "bytes_out": client.bytes_out,
        "frames": None if peer is None else peer.frames,
        "sends": None if peer is None else peer.sends,
        "messages": None if peer is None else peer.messages,
        "receipts_waiting": None if connection is None else len(connection.receipts),
        "window": None if connection is None else connection.window.size,
        "in_flight": None if connection is None else connection.in_flight,
    }


_NOTHING: Final[dict[str, object]] = dict.fromkeys(names_of(CONNECTION))


def _visitor_row(view: View, visitor: Visitor) -> dict[str, object]:
    return _NOTHING | {
        "id": visitor.number,
        "kind": ADMIN,
        "state": "connected",
        "address": visitor.address,
        "principal": view.principal_of(visitor.fingerprint),
        "fingerprint": visitor.fingerprint,
        "tls": visitor.tls_version,
        "opened_at": iso_time(visitor.opened_at_us),
        "open_s": round(trio.current_time() - visitor.opened_at_s, 3),
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", CONNECTIONS_PATH, "read", _connections),)
