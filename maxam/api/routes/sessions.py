"""Routes of sessions: list them, show one, close its connection, end it.

Principal and client-id are one segment of the path each, percent-encoded, and may hold any character, `/` too.
"""

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from maxam.api.answers import Answer, ApiError, Rows
from maxam.api.description import (
    COUNT,
    FLAG,
    HEX,
    INCOMPLETE,
    NUMBER,
    TEXT,
    TIME,
    described,
    extended,
    listed,
    nullable,
    page,
    record,
)
from maxam.api.errands import end_session, kick
from maxam.api.parameters import LIMIT, after, text
from maxam.api.routes.subscriptions import SUBSCRIPTION, answered_by_front, subscription_row
from maxam.api.routing import Call, Description, RouteSpec, not_found
from maxam.broker.session import Session
from maxam.gateway.listings import SLICE_SUBSCRIPTIONS, session_row
from maxam.gateway.server import Gateway
from maxam.gateway.staleness import Pace, SubscriptionRow, read_row
from maxam.gateway.transport import Transport

if TYPE_CHECKING:
    from maxam.gateway.fronts import Fronts

SESSIONS_PATH: Final = "/v1/sessions"
SESSIONS_PER_SLICE: Final = 50
ROWS_PER_SLICE: Final = 100
_PATH: Final = SESSIONS_PATH + "/{principal}/{client_id}"
_NO_SESSION: Final = {404: "`not-found`: there is no such session."}
_PRINCIPAL: Final = text("principal", "only those of this principal")
_CLIENT_ID: Final = text("client_id", "only those with this client-id")
_FIND: Final = text("find", "only those with this text in principal, client-id or address, in either case")
_AFTER: Final = after()

SESSION: Final = record(
    "SessionRow",
    principal=TEXT,
    client_id=TEXT,
    connected=FLAG,
    durable=FLAG,
    peer=nullable(described(TEXT, "address of the live connection")),
    fingerprint=nullable(HEX),
    connected_at=nullable(TIME),
    window=nullable(COUNT),
    unacked=COUNT,
    owed=COUNT,
    conflated=COUNT,
    staleness_s=described(NUMBER, "the largest of its subscriptions, 0.0 if they have everything"),
    behind=described(FLAG, "whether one of its subscriptions is"),
    subscriptions=COUNT,
)


@Description(
    "Sessions in order of principal and client-id",
    page("sessions", SESSION, ("incomplete",), incomplete=INCOMPLETE),
    (_PRINCIPAL, _CLIENT_ID, _FIND, _AFTER, LIMIT),
)
async def _sessions(call: Call) -> Response:
    staleness, fronts, pace = call.gateway.staleness, call.gateway.fronts, Pace()
    incomplete: dict[str, object] = {}

    async def read(cursor: tuple[str, ...] | None, most: int) -> tuple[list[dict[str, object]], tuple[str, ...] | None]:
        found, following = _sessions_after(call, cursor, most)
        rows = [_row(call.gateway, session) for session in found]
        for session, row in zip(found, rows, strict=True):
            row.update(_staleness(call.gateway, await staleness.of_session(*session.key, pace)))
        held = [session.key for session in found if session.holder]
        if fronts is not None and held and not await fronts.fill_sessions(rows, held):
            incomplete["incomplete"] = True
        return rows, following

    rows = Rows("sessions")
    following = await rows.fill(call[LIMIT], SESSIONS_PER_SLICE, call[_AFTER], read)
    return rows.answer(following, **incomplete)


def _sessions_after(
    call: Call, cursor: tuple[str, ...] | None, most: int
) -> tuple[list[Session], tuple[str, ...] | None]:
    """Return the next sessions in order of (principal, client-id), filtered, and where to go on. None at the end."""
    principal, client_id, find = call[_PRINCIPAL], call[_CLIENT_ID], (call[_FIND] or "").lower()
    sessions = call.gateway.broker.sessions
    found: list[Session] = []
    looked_at = 0
    start = ("", "") if cursor is None else (cursor[0], cursor[1])
    if principal is not None:
        start = max(start, (principal, client_id or ""))
    for key in sessions.irange(start):
        if key == cursor:
            continue
        if principal is not None and key[0] != principal:
            break
        if len(found) == most or looked_at >= SLICE_SUBSCRIPTIONS:
            return found, cursor
        cursor = key
        looked_at += 1
        session = sessions[key]
        if client_id in (None, key[1]) and (not find or find in _searched(call.gateway, session)):
            looked_at += len(session.subscriptions)
            found.append(session)
    return found, None


def _searched(gateway: Gateway, session: Session) -> str:
    """Return the text that `find` searches."""
    client = _client(gateway, session)
    address = "" if client is None else client.address
    if gateway.fronts is not None and session.holder:
        address = gateway.fronts.address(session)
    return f"{session.principal}\n{session.client_id}\n{address}".lower()


@Description(
    "One session with its subscriptions",
    extended(SESSION, "Session", subscriptions=listed(SUBSCRIPTION)),
    path=_PATH,
    errors=_NO_SESSION,
)
async def _session(call: Call) -> Response:
    session = _found(call, "")
    if session.holder and call.gateway.fronts is not None:
        return await _session_of_front(call.gateway.fronts, session)
    staleness, pace = call.gateway.staleness, Pace()
    subscriptions: list[SubscriptionRow] = []
    for subscription in list(session.subscriptions.values()):
        await pace.step()
        if not subscription.removed:
            subscriptions.append(staleness.row(session, subscription))
    fields = _row(call.gateway, session)
    del fields["subscriptions"]  # their number
    rows = Rows("subscriptions")
    await rows.add_all(subscriptions, ROWS_PER_SLICE, subscription_row)
    largest_s = max([one.staleness_s for one in subscriptions], default=0.0)
    return rows.within(**fields | _staleness(call.gateway, largest_s))


async def _session_of_front(fronts: "Fronts", session: Session) -> Response:
    """Return a session that has its connection on a front."""
    with answered_by_front():
        told = await fronts.asks.holder(session, "session")
    if told is None:
        raise not_found("the session has just lost its connection; ask again")
    fields, subscriptions = told
    rows = Rows("subscriptions")
    await rows.add_all([read_row(one) for one in subscriptions], ROWS_PER_SLICE, subscription_row)
    del fields["subscriptions"]
    return rows.within(**fields)


@Description(
    "Close the live connection with an ERROR; the session stays",
    record(kicked={"const": True}),
    path=_PATH + "/kick",
    errors=_NO_SESSION | {409: "`not-connected`."},
)
async def _kick(call: Call) -> Response:
    if not call.request.scope["raw_path"].endswith(b"/kick"):
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)  # no other action exists
    with answered_by_front():
        kicked = await kick(call.gateway, _found(call, "/kick"))
    if not kicked:
        raise ApiError(HTTPStatus.CONFLICT, "not-connected", "the session has no live connection")
    return Answer({"kicked": True})


@Description(
    "End a session with its durable subscriptions, answered after the commit",
    record(dropped={"const": True}),
    path=_PATH,
    errors=_NO_SESSION,
)
async def _drop(call: Call) -> Response:
    await end_session(call.gateway, call.caller, _found(call, ""))
    return Answer({"dropped": True})


def _found(call: Call, action: str) -> Session:
    """Return the session of a path; raises ApiError."""
    principal, client_id = call.segments(SESSIONS_PATH, ("principal", "client-id"), action)
    session = call.gateway.broker.sessions.get((principal, client_id))
    if session is None:
        raise not_found("there is no such session")
    return session


def _client(gateway: Gateway, session: Session) -> Transport | None:
    return None if session.connection is None else gateway.clients.connected.get(session.connection)


def _row(gateway: Gateway, session: Session) -> dict[str, object]:
    return session_row(session, _client(gateway, session))


def _staleness(gateway: Gateway, largest_s: float) -> dict[str, object]:
    return {"staleness_s": largest_s, "behind": largest_s > gateway.staleness.behind_after_s}


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", SESSIONS_PATH, "read", _sessions),
    ("GET", SESSIONS_PATH + "/{key:path}", "read", _session),
    ("POST", SESSIONS_PATH + "/{key:path}", "write", _kick),
    ("DELETE", SESSIONS_PATH + "/{key:path}", "write", _drop),
)
