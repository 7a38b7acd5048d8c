"""Rows of connections, sessions and subscriptions, as operators see them. Fronts make them too, of their own."""

from typing import Final

from sortedcontainers import SortedDict

from maxam.avro.json.decoding import iso_time
from maxam.broker.session import Session
from maxam.gateway.staleness import Staleness, SubscriptionRow
from maxam.gateway.transport import Transport

STOMP: Final = "stomp"
STATES: Final = ("handshake", "connecting", "connected", "closing")
SLICE_SUBSCRIPTIONS: Final = 1000  # sessions and subscriptions that are read before the event loop runs other tasks

Rates = tuple[float | None, float | None]
Cursor = tuple[str, ...]


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


def connection_row(client: Transport, rates: Rates, now_s: float) -> dict[str, object]:
    """Return the row of a client's connection; `rates` are its SENDs and MESSAGEs a second."""
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
        "sends_per_s": rates[0],
        "messages_per_s": rates[1],
    }


def is_found(row: dict[str, object], find: str) -> bool:
    """Return True if principal, client-id or address of a connection's row has a text, which is in lower case."""
    return not find or find in "\n".join(str(row[name] or "") for name in ("principal", "client_id", "address")).lower()


def session_row(session: Session, client: Transport | None) -> dict[str, object]:
    """Return the row of a session without its staleness; `client` is its connection."""
    connection = session.connection
    subscriptions = session.subscriptions.values()
    return {
        "principal": session.principal,
        "client_id": session.client_id,
        "connected": session.attached,
        "durable": session.durable,
        "peer": None if client is None else client.address,
        "fingerprint": None if connection is None else connection.identity.fingerprint,
        "connected_at": None if client is None else iso_time(client.opened_at_us),
        "window": None if connection is None else connection.window.size,
        "unacked": sum([len(subscription.sent) for subscription in subscriptions]),
        "owed": sum([len(subscription.owed) for subscription in subscriptions]),
        "conflated": sum([subscription.conflated for subscription in subscriptions]),
        "subscriptions": len(subscriptions),
    }


def subscriptions_after(
    staleness: Staleness,
    sessions: SortedDict[tuple[str, str], Session],
    cursor: Cursor | None,
    most: int,
    principal: str | None,
    client_id: str | None,
) -> tuple[list[SubscriptionRow], Cursor | None]:
    """Return the next subscriptions in order of (principal, client-id, id), which are filtered.

    Args:
        staleness: Reads them; decides which sessions are here.
        sessions: All sessions.
        cursor: Place where the batch before ended: after an id, or before the first one of a session. None begins.
        most: Rows of the batch.
        principal: Only those of this principal. None for all.
        client_id: Only those of sessions with this name. None for all.

    Returns:
        The rows, and where to go on. None at the end.
    """
    rows: list[SubscriptionRow] = []
    looked_at = 0
    start = ("", "") if cursor is None else (cursor[0], cursor[1])
    if principal is not None:
        start = max(start, (principal, client_id or ""))
    for key in sessions.irange(start):
        if principal is not None and key[0] != principal:
            break
        if looked_at >= SLICE_SUBSCRIPTIONS:
            return rows, key
        session = sessions[key]
        looked_at += 1 + len(session.subscriptions)
        if (client_id is not None and key[1] != client_id) or not staleness.is_here(session):
            continue
        behind = cursor[2].encode() if cursor is not None and len(cursor) == 3 and key == cursor[:2] else None
        for id_ in sorted([id_ for id_ in session.subscriptions if behind is None or id_ > behind]):
            if len(rows) == most:
                return rows, cursor
            cursor = (*key, id_.decode())
            rows.append(staleness.row(session, session.subscriptions[id_]))
    return rows, None
