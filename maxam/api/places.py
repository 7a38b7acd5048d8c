"""Places of an HTTPS listener: which connections it keeps when all places are taken."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import trio

from maxam.api.listener_limits import ListenerLimits
from maxam.gateway.access import AdminConnection
from maxam.gateway.listener import address_text
from maxam.gateway.revocation import Chain


@final
@dataclass(frozen=True, slots=True)
class Standing:
    """The rank of a connection's owner, which decides who keeps a place when all are taken.

    Attributes:
        principal: Owner of the connection. Empty if its certificate is refused or unknown.
        rank: Higher keeps its place before lower.
    """

    principal: str = ""
    rank: int = 0


@final
class Place:
    """The place of one connection.

    Attributes:
        peer: The peer's address and port.
        host: Its address.
        address: Both as `host:port`.
        scope: Ends the connection.
        admin_connection: Owner of the connection. None in the handshake, and without a certificate.
    """

    __slots__ = ("address", "admin_connection", "host", "peer", "scope")

    def __init__(self, transport: trio.SocketStream) -> None:
        try:
            host, port = transport.socket.getpeername()[:2]
        except OSError:
            host, port = "gone", 0
        self.peer: Final = (str(host), int(port))
        self.host: Final = self.peer[0]
        self.address: Final = address_text(*self.peer)
        self.scope: Final = trio.CancelScope()
        self.admin_connection: AdminConnection | None = None


@final
class Places:
    """The places of one listener.

    There are places for connections in their handshake, where the oldest makes room, and as many for those that have completed it.
    When the latter are all taken, a connection of a lower rank makes room for one of a higher rank. A principal that holds more than
    its share makes room for another of its rank. So neither certificates without an admin right nor one principal can shut operators
    out.
    """

    def __init__(self, limits: ListenerLimits, standing: Callable[[str, Chain], Standing] | None) -> None:
        """Begin without connections. `standing` returns the standing of a certificate; without it all are equal."""
        self._limits: Final = limits
        self._standing: Final = standing
        self._handshaking: Final[dict[Place, None]] = {}  # oldest first
        self._open: Final[dict[Place, None]] = {}  # after the handshake, oldest first
        self._by_host: Final[Counter[str]] = Counter()

    def enter(self, place: Place) -> str:
        """Give a new connection a place for its handshake. Return why there is none, empty if there is."""
        held, held_max = self._by_host[place.host], self._limits.connections_per_address_max
        if held_max is not None and held >= held_max:
            return f"{held} are open already from there"
        if len(self._handshaking) >= self._limits.connections_max:
            self._clear(next(iter(self._handshaking)))
        self._handshaking[place] = None
        self._by_host[place.host] += 1
        return ""

    def admit(self, place: Place) -> bool:
        """Give a connection whose handshake is complete a place among the open ones. Return False if there is none for it."""
        if len(self._open) >= self._limits.connections_max:
            leaving = self._leaving(self._standing_of(place))
            if leaving is None:
                return False
            self._clear(leaving)
        self._handshaking.pop(place, None)
        self._open[place] = None
        return True

    def leave(self, place: Place) -> None:
        """Free the place of a connection that has ended."""
        self._open.pop(place, None)
        self._handshaking.pop(place, None)
        self._by_host[place.host] -= 1
        if not self._by_host[place.host]:
            del self._by_host[place.host]

    def _clear(self, place: Place) -> None:
        """End a connection for another one."""
        self._handshaking.pop(place, None)
        self._open.pop(place, None)
        place.scope.cancel()

    def _leaving(self, newcomer: Standing) -> Place | None:
        """Return which of all open connections makes room for a newcomer, or None."""
        standings = {one: self._standing_of(one) for one in self._open}
        lowest = min(standings, key=lambda place: standings[place].rank)  # the oldest of them
        if self._limits.oldest_makes_room or (newcomer.principal and not standings[lowest].principal):
            return lowest
        held = Counter([one.principal for one in standings.values() if one.principal])
        share = self._limits.connections_per_principal_max
        if held[newcomer.principal] >= share:
            return None
        if standings[lowest].rank < newcomer.rank:
            return lowest
        for place, one in standings.items():
            if one.rank == newcomer.rank and held[one.principal] > share:
                return place
        return None

    def _standing_of(self, place: Place) -> Standing:
        if place.admin_connection is None or self._standing is None:
            return Standing()
        return self._standing(place.admin_connection.fingerprint, place.admin_connection.chain)
