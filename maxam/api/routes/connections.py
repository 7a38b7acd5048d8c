"""Routes of connections: all connections to one of the listeners, and clients that cannot connect or do not stay connected."""

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from starlette.responses import Response

from maxam.api.answers import Rows
from maxam.api.description import (
    COUNT,
    FLAG,
    HEX,
    INCOMPLETE,
    NUMBER,
    SECONDS,
    TEXT,
    TIME,
    WHOLE,
    described,
    listed,
    names_of,
    nullable,
    one_of,
    page,
    record,
    row_of,
)
from maxam.api.parameters import AFTER_NUMBER, LIMIT, text
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.gateway.access import AdminConnection
from maxam.gateway.connect_problems import KINDS, OFTEN, OFTEN_S, ConnectProblem, advice_for
from maxam.gateway.listings import STATES, STOMP, connection_row, is_found
from maxam.gateway.transport import Transport

if TYPE_CHECKING:
    from maxam.gateway.fronts import Fronts

ROWS_PER_SLICE: Final = 50  # made before the event loop runs other tasks: less than 1 ms
ADMIN: Final = "admin"
_Connection = TypeVar("_Connection", Transport, AdminConnection)

RATE: Final = described(NUMBER, "average of the last two seconds; null before it is known")

CONNECTION: Final = record(
    "Connection",
    ("front",),
    front=described(COUNT, "number of the front that serves it. Absent without fronts"),
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
_FIND: Final = text("find", "only those with this text in principal, client-id or address, in either case")


@Description(
    "Connections in order of their opening: of clients, and of operators",
    page("connections", CONNECTION, ("incomplete",), incomplete=INCOMPLETE),
    (_FIND, AFTER_NUMBER, LIMIT),
    text="Figures of frames, receipts and window are null before a client is connected, and those of the traffic for operators.",
)
async def _connections(call: Call) -> Response:
    # One copy of the references. Connections that end meanwhile are left out, new ones have a higher number.
    clients, operators = call.gateway.connections, call.gateway.access.admin_connections
    listed_clients, listed_operators = list(clients), list(operators)
    fronts = call.gateway.fronts
    if fronts is not None:
        return await _connections_of_fronts(call, fronts, listed_operators)

    async def read(cursor: int | None, most: int) -> tuple[list[dict[str, object]], int | None]:
        found: list[dict[str, object]] = []
        find = (call[_FIND] or "").lower()
        later: Iterator[Transport | AdminConnection] = merge(
            _later(listed_clients, cursor or 0), _later(listed_operators, cursor or 0), key=_NUMBER
        )
        for looked_at, connection in enumerate(later):
            if len(found) == most or looked_at == ROWS_PER_SLICE:
                return found, cursor
            cursor = connection.number
            if isinstance(connection, AdminConnection):
                row = _admin_row(call, connection) if connection in operators else None
            elif connection in clients:
                row = connection_row(connection, call.gateway.rates.of(connection.number), trio.current_time())
            else:
                row = None
            if row is not None and is_found(row, find):
                found.append(row)
        return found, None

    rows = Rows("connections")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[AFTER_NUMBER], read)
    return rows.answer(following)


async def _connections_of_fronts(call: Call, fronts: "Fronts", operators: list[AdminConnection]) -> Response:
    """Return a page of the connections of all fronts and of operators. Each front gives the first rows after the cursor."""
    after, most, find = call[AFTER_NUMBER] or 0, call[LIMIT], (call[_FIND] or "").lower()
    told, incomplete = await fronts.asks.all("connections", after=after, most=most, find=find)
    found = [row for rows in told for row in rows]
    found += [row for one in _later(operators, after) if is_found(row := _admin_row(call, one), find)]
    found.sort(key=itemgetter("id"))
    rows = Rows("connections")
    await rows.add_all(found[:most], ROWS_PER_SLICE, dict)
    following = found[most - 1]["id"] if len(found) >= most else None
    return rows.answer(following, **(_INCOMPLETE if incomplete else {}))


_NUMBER: Final = attrgetter("number")
_INCOMPLETE: Final[dict[str, object]] = {"incomplete": True}


def _later(connections: list[_Connection], number: int) -> list[_Connection]:
    return connections[bisect_right(connections, number, key=_NUMBER) :]


_NOTHING: Final[dict[str, object]] = {name: None for name in names_of(CONNECTION) if name != "front"}


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


PROBLEM: Final = record(
    "ConnectProblem",
    kind=one_of(*KINDS),
    reason=described(TEXT, "of the refusal, or of the last end"),
    advice=described(TEXT, "what to do; empty if the reason is not known"),
    principal=nullable(TEXT),
    client_id=nullable(TEXT),
    fingerprint=nullable(HEX),
    listener=described(TEXT, "`stomp`, `admin`, `enrolment` or `link`"),
    address=described(TEXT, "the last one"),
    count=described(COUNT, "events since the row was made"),
    first_at=TIME,
    last_at=TIME,
    last_s=described(SECONDS, "seconds since the last event"),
    often=described(FLAG, f"{OFTEN} events or more within {OFTEN_S / 60:g} minutes"),
)


@Description(
    "Clients that cannot connect or do not stay connected, and why",
    record(
        "",
        problems=listed(PROBLEM),
        count=described(COUNT, "rows of all"),
        forgotten=described(COUNT, "rows that made room for newer ones since the start"),
    ),
    (LIMIT,),
    text="""First those that recur, then those with the latest event. A row goes an hour after its last event. `refused` connections did not
reach CONNECTED, `taken-over` sessions have several clients, and `reconnecting` clients come back soon after each end.""",
)
async def _problems(call: Call) -> Response:
    problems = call.gateway.connect_problems
    found, now_s = problems.rows(), trio.current_time()
    rows = Rows("problems")
    await rows.add_all(found[: call[LIMIT]], ROWS_PER_SLICE, lambda row: _problem_row(row, now_s))
    return rows.within(count=len(found), forgotten=problems.forgotten)


def _problem_row(row: ConnectProblem, now_s: float) -> dict[str, object]:
    return row_of(
        PROBLEM,
        row,
        advice=advice_for(row.kind, row.reason),
        principal=row.principal or None,
        client_id=row.client_id or None,
        fingerprint=row.fingerprint or None,
        first_at=iso_time(row.first_at_us),
        last_at=iso_time(row.last_at_us),
        last_s=round(now_s - row.times_s[-1], 3),
        often=row.often(now_s),
    )


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/connections", "read", _connections),
    ("GET", "/v1/connect-problems", "read", _problems),
)
