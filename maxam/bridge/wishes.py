"""The configuration of a relay, and the wishes by which it drives the process."""

from dataclasses import dataclass
from typing import Final, final

from maxam.links import UP, LinkRoute

GUEST: Final = -1  # lane to the centre without the venue's client-id, open at the start only
CENTRE: Final = 0
PRIORITIES: Final = ("high", "normal", "low")


def lane_of(priority: int) -> int:
    """Return the lane to the venue for routes of a priority."""
    return CENTRE + 1 + priority


@final
@dataclass(frozen=True, slots=True)
class PlannedRoute:
    """A route as configured.

    Attributes:
        route: Topics and direction.
        priority: Index in PRIORITIES.
        min_interval_ms: Minimum time between two values of one topic. 0 for none.
    """

    route: LinkRoute
    priority: int = 1
    min_interval_ms: int = 0


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The configuration of a relay.

    Attributes:
        venue: Name of the venue.
        centre: Name of the centre.
        routes: All routes. No topic of a mapped glob matches a glob of the other direction.
        window: SENDs to one side without RECEIPT.
        link_timeout_s: The venue counts as unknown if its Link is older.
        host: Name of our machine.
    """

    venue: str
    centre: str
    routes: tuple[PlannedRoute, ...]
    window: int = 256
    link_timeout_s: int = 30
    host: str = ""

    def lanes(self) -> tuple[int, ...]:
        """Return the lanes to the venue, highest priority first. The first is its home lane."""
        used = sorted({planned.priority for planned in self.routes if planned.route.direction == UP})
        return tuple([lane_of(priority) for priority in used or [1]])


@final
@dataclass(frozen=True, slots=True)
class Open:
    """Connect a lane, and connect it again after each loss, until it is closed for good."""

    lane: int


@final
@dataclass(frozen=True, slots=True)
class Close:
    """End the connection of a lane. Connect it again after `wait_s`, or never if that is None."""

    lane: int
    wait_s: float | None


@final
@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE with markers. `handle` identifies it in facts.

    A durable one has ack `client` and metadata. A transient one has ack `auto`.
    """

    handle: int
    lane: int
    id: str
    glob: str
    durable: bool
    eager: bool
    min_interval_ms: int = 0


@final
@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE, also of an id that has no subscription on this connection. `handle` identifies the answer."""

    handle: int
    lane: int
    id: str
    for_good: bool = False


@final
@dataclass(frozen=True, slots=True)
class Send:
    """SEND with a receipt. `ticket` identifies its RECEIPT."""

    ticket: int
    lane: int
    topic: str
    body: bytes
    headers: dict[str, str]
    source: tuple[str, int] | None = None
    if_revision: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Ack:
    """ACK of a message, and of all before it on its subscription."""

    handle: int
    revision: int


@final
@dataclass(frozen=True, slots=True)
class Log:
    """Log an event."""

    event: str
    fields: dict[str, str | int]


@final
@dataclass(frozen=True, slots=True)
class End:
    """End the process: another bridge has our place."""

    reason: str


Wish = Open | Close | Subscribe | Unsubscribe | Send | Ack | Log | End
