"""A front on another machine goes on with the next leader of its cluster: its clients stay connected.

Theory of operation. The leader asks the front for its identifier, its position and its sessions. It takes the front if nothing can be
lost or done twice:

1. Its term is higher than that of the leader before. A front never goes back to a lower term, and none goes on with the same leader.
2. The log has not recorded that the front was ended, and no gateway has its sessions.
3. The leader has all entries after the position of the front. Among them is each one that settles a change of the front.

It answers with WELCOME, SOURCES and these entries, and with a REPORT after the last of them. The front applies the entries, and then
hands over again what none of them settles.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from maxam.broker.origins import FRONT_BYTES
from maxam.cluster import wire
from maxam.cluster.recent import RecentEntries
from maxam.errors import ProtocolError
from maxam.gateway.claims import Key
from maxam.gateway.front_link import FrontLinkError
from maxam.gateway.front_orders import FrontOrders, OrderedFront
from maxam.journal.encoding import Position

STATE: Final = wire.frame(wire.REPORT, b'{"state": true}')  # the leader's question
RESUMED: Final = wire.frame(wire.REPORT, b'{"resumed": true}')  # follows the entries


@final
@dataclass(frozen=True, slots=True)
class Resumption:
    """The state of a front that has lost its leader.

    Attributes:
        front: Its identifier.
        term: Of that leader.
        position: Of the journal of which all before is applied.
        held: Sessions that have a connection there.
    """

    front: bytes
    term: int
    position: Position
    held: list[Key]

    def encoded(self) -> bytes:
        """Return the frame of it."""
        at = self.position
        position = [at.revision, at.accepted_at_us, at.chain]
        told = [self.front.hex(), self.term, position, self.held]
        return wire.frame(wire.REPORT, json.dumps({"resume": told}).encode())


def read_resumption(told: dict[str, Any]) -> Resumption:
    """Return what a front has sent. Raises WireError."""
    try:
        identifier, term, position, held = told["resume"]
        keys = [(str(principal), str(client_id)) for principal, client_id in held]
        state = Resumption(bytes.fromhex(identifier), int(term), Position(*map(int, position)), keys)
    except (KeyError, TypeError, ValueError):
        state = None
    if state is None or len(state.front) != FRONT_BYTES:
        raise wire.WireError("a front that goes on has sent something else than its state")
    return state


def resume(
    orders: FrontOrders, recent: RecentEntries | None, term: int, state: Resumption, send: Callable[[bytes], None]
) -> tuple[OrderedFront, list[bytes]]:
    """Take a front of the former leader, and return it with the frames that it must get first.

    Args:
        orders: Of this leader.
        recent: The newest entries of the log. None without a log.
        term: Of this leader.
        state: Of the front.
        send: Hands a frame to its link.

    Raises:
        FrontLinkError: The front must begin again.
    """
    if recent is None or state.term >= term:
        raise FrontLinkError(f"a leader of term {term} cannot go on after term {state.term}")
    if recent.ended(state.front) or orders.knows(state.front):
        raise FrontLinkError("a gateway has ended this front")
    entries = recent.between(state.position, orders.position)
    if entries is None:
        raise FrontLinkError("the entries after the position of the front are no longer in memory")
    ordered = orders.begin(state.front, send, lasting=True)
    try:
        lost = [key for key in state.held if not orders.claims.resume(key, state.front)]
    except ProtocolError as error:
        orders.end(ordered)
        raise FrontLinkError(str(error)) from error
    if lost:
        orders.end(ordered)
        raise FrontLinkError("another connection has a session of the front")
    return ordered, [*(wire.frame(wire.ENTRY, entry.encode()) for entry in entries), RESUMED]
