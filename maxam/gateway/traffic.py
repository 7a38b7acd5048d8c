"""Totals of connections and subscriptions, ended ones included: counted where the traffic is, summed up when asked."""

import math
from collections.abc import Callable, Iterable
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.session import Session
from maxam.gateway.transport import Transport

_SLICE: Final = 250  # connections that are read before the event loop runs other tasks: about 0.2 ms
_SLICE_SUBSCRIPTIONS: Final = 2500  # likewise
ACCEPT: Final = "accept"  # there were too many connections
HANDSHAKE: Final = "handshake"  # TLS did not come about
CONNECT: Final = "connect"  # no CONNECT came, or it was answered ERROR
STAGES: Final = (ACCEPT, HANDSHAKE, CONNECT)


@final
class Traffic:
    """Totals since the start, which never decrease.

    Attributes:
        accepted: Connections whose CONNECT was answered CONNECTED.
        refused: Connections that ended before, by the stage that they had reached.
        connected: Of the living ones, those; at the last `gather`, as all that follow.
        connecting: The others.
        first_expiry_s: Earliest end of validity of the connected clients' certificates, seconds since the epoch. 0.0 if no client
            is connected.
        bytes_received: Plaintext from clients.
        bytes_sent: Plaintext to clients.
        frames: Received from clients.
        conflated: Changes that were replaced before a subscription read them.
        fronts: Returns the numbers of connections of fronts, and the earliest end of validity there. None without fronts.
    """

    def __init__(self, broker: Broker, connections: Iterable[Transport]) -> None:
        """Begin at nothing. `connections` are the living ones, at each time of reading."""
        self._broker: Final = broker
        self._connections: Final = connections
        self._ended = (0, 0, 0)
        self._ended_conflated = 0
        self.fronts: Callable[[], tuple[int, int, float]] | None = None
        self.accepted = 0
        self.refused: Final = dict.fromkeys(STAGES, 0)
        self.connected = 0
        self.connecting = 0
        self.first_expiry_s = 0.0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.frames = 0
        self.conflated = 0

    def ended(self, connection: Transport) -> None:
        """Take over the counts of a connection, which must no longer be among the living ones."""
        received, sent, frames = self._ended
        self._ended = (
            received + connection.bytes_in,
            sent + connection.bytes_out,
            frames + _frames(connection),
        )
        if connection.peer is None:
            self.refused[HANDSHAKE] += 1
        elif connection.peer.connection is None:
            self.refused[CONNECT] += 1

    def add(self, kind: str, stage: str, count: int) -> None:
        """Add what a front has counted. `stage` is empty except with `refused`."""
        received, sent, frames = self._ended
        if kind == "refused":
            self.refused[stage] += count
        elif kind == "accepted":
            self.accepted += count
        elif kind == "conflated":
            self._ended_conflated += count
        else:
            more = [count if kind == name else 0 for name in ("bytes_received", "bytes_sent", "frames")]
            self._ended = (received + more[0], sent + more[1], frames + more[2])

    async def gather(self) -> None:
        """Sum up again. Connections that end meanwhile may be missing until the next time, but no sum is ever less than before."""
        received, sent, frames = self._ended
        connections = list(self._connections)
        connected = 0
        first_expiry_s = math.inf
        for at, connection in enumerate(connections, 1):
            if connection.peer is not None and connection.peer.connection is not None:
                connected += 1
                if connection.chain:
                    first_expiry_s = min(first_expiry_s, connection.chain[0].valid_until_s)
            received += connection.bytes_in
            sent += connection.bytes_out
            frames += _frames(connection)
            if at % _SLICE == 0:
                await trio.lowlevel.checkpoint()
        connecting = len(connections) - connected
        if self.fronts is not None:
            connected_there, connecting_there, expiry_there_s = self.fronts()
            connected += connected_there
            connecting += connecting_there
            first_expiry_s = min(first_expiry_s, expiry_there_s)
        self.connected = connected
        self.connecting = connecting
        self.first_expiry_s = first_expiry_s if first_expiry_s < math.inf else 0.0
        self.bytes_received = max(self.bytes_received, received)
        self.bytes_sent = max(self.bytes_sent, sent)
        self.frames = max(self.frames, frames)
        conflated = self._broker.counters.conflated + self._ended_conflated
        looked_at = 0
        for session in list(self._broker.sessions.values()):
            conflated += 0 if session.holder else _conflated(session)  # a front counts its own
            looked_at += 1 + len(session.subscriptions)
            if looked_at >= _SLICE_SUBSCRIPTIONS:
                looked_at = 0
                await trio.lowlevel.checkpoint()
        self.conflated = max(self.conflated, conflated)


def _frames(connection: Transport) -> int:
    return 0 if connection.peer is None else connection.peer.frames


def _conflated(session: Session) -> int:
    return sum([subscription.conflated for subscription in session.subscriptions.values()])
