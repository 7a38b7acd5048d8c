"""The route of connections: all connections to one of the listeners, before and after their authentication."""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from typing import Final, TypeVar

import trio
from starlette.responses import Response

from maxam.api.answers import Rows
from maxam.api.description import (
    COUNT,
    HEX,
    NUMBER,
    SECONDS,
    TEXT,
    TIME,
    WHOLE,
    described,
    names_of,
    nullable,
    one_of,
    page,
    record,
)
from maxam.api.parameters import AFTER_NUMBER, LIMIT
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.gateway.access import AdminConnection
from maxam.gateway.transport import Transport

ROWS_PER_SLICE: Final = 50  # made before the event loop runs other tasks: less than 1 ms
STOMP: Final = "stomp"
ADMIN: Final = "admin"
STATES: Final = ("handshake", "connecting", "connected", "closing")
_Connection = TypeVar("_Connection", Transport, AdminConnection)

RATE: Final = described(NUMBER, "average of the last two seconds; null before it is known")

CONNECTION: Final = record(
    "Connection",
    id=described(WHOLE, "number of its opening, since the process began"),
    kind=one_of(STOMP, ADMIN),
    state=one_of(*STATES),
    address=TEXT,
    principal=nullable(described(TEXT, "null before it is connected, or where the policy has none")),
    client_id=nullable(TEXT),
    fingerprint=nullable(HEX),
    tls=nullable(TEXT),
    stomp=nullable(one_of("1.1", "1.2")),
    opened_at=TIME,
    open_s=SECONDS,
    heard_s=nullable(described(NUMBER, "seconds since its last input, while the gateway listened")),
    bytes_in=nullable(COUNT),
    bytes_out=nullable(COUNT),
    frames=nullable(COUNT),
    sends=nullable(COUNT),
    messages=nullable(COUNT),
    sends_per_s=nullable(RATE),
    messages_per_s=nullable(RATE),
    receipts_waiting=nullable(COUNT),
    window=nullable(COUNT),
    in_flight=nullable(described(WHOLE, "messages that it has not acknowledged")),
)


@Description(
    "Connections in order of their opening: of clients, and of operators",
    page("connections", CONNECTION),
    (AFTER_NUMBER, LIMIT),
    text="Figures of frames, receipts and window are null before a client is connected, and those of the traffic for operators.",
)
async def _connections(call: Call) -> Response:
    # One copy of the references. Connections that end meanwhile are left out, new ones have a higher number.
    clients, operators = call.gateway.connections, call.gateway.access.admin_connections
    listed_clients, listed_operators = list(clients), list(operators)

    async def read(cursor: int | None, most: int) -> tuple[list[dict[str, object]], int | None]:
        found: list[dict[str, object]] = []
        later: Iterator[Transport | AdminConnection] = merge(
            _later(listed_clients, cursor or 0), _later(listed_operators, cursor or 0), key=_NUMBER
        )
        for looked_at, connection in enumerate(later):
            if len(found) == most or looked_at == ROWS_PER_SLICE:
                return found, cursor
            cursor = connection.number
            if isinstance(connection, AdminConnection):
                if connection in operators:
                    found.append(_admin_row(call, connection))
            elif connection in clients:
                rates = call.gateway.rates.of(connection.number)
                found.append(_client_row(connection, trio.current_time()) | dict(zip(_RATES, rates, strict=True)))
        return found, None

    rows = Rows("connections")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[AFTER_NUMBER], read)
    return rows.answer(following)


_NUMBER: Final = attrgetter("number")
_RATES: Final = ("sends_per_s", "messages_per_s")


def _later(connections: list[_Connection], number: int) -> list[_Connection]:
    return connections[bisect_right(connections, number, key=_NUMBER) :]


def state_of(client: Transport) -> str:
    """Return the state of a client's connection: one of STATES."""
    peer = client.peer
    if client.reason or (peer is not None and (peer.end or peer.finished)):
        return "closing"
    if peer is None:
        return "handshake"
    if peer.connection is None:
        return "connecting"
    return "connected" if peer.connection.failure is None else "closing"


def _client_row(client: Transport, now_s: float) -> dict[str, object]:
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


def _admin_row(call: Call, connection: AdminConnection) -> dict[str, object]:
    return _NOTHING | {
        "id": connection.number,
        "kind": ADMIN,
        "state": "connected",
        "address": connection.address,
        "principal": call.view.principal_of(connection.fingerprint),
        "fingerprint": connection.fingerprint,
        "tls": connection.tls_version,
        "opened_at": iso_time(connection.opened_at_us),
        "open_s": round(trio.current_time() - connection.opened_at_s, 3),
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/connections", "read", _connections),)
