"""The SENDs to one side: which one is next, how many may be under way, and what becomes of refused ones."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from maxam.bridge.wishes import PRIORITIES, PlannedRoute

RETRY_S_MIN: Final = 0.5  # before the first retry of SENDs that the other side cannot store now; doubles with each
RETRY_S_MAX: Final = 30.0


@final
@dataclass(slots=True, eq=False)
class Taken:
    """A durable subscription of this run.

    Attributes:
        handle: Of its Subscribe.
        lane: Of its Subscribe.
        planned: The route that it serves.
        unacked: Messages without an ACK, in order of arrival: revision, and True once it is settled.
        position: All changes up to this revision have been sent to us, and acknowledged by us.
    """

    handle: int
    lane: int
    planned: PlannedRoute
    unacked: deque[list[int]]
    position: int = 0


@final
@dataclass(slots=True, eq=False)
class Item:
    """A SEND to make.

    Attributes:
        topic: Destination.
        body: The value. An empty one deletes the topic.
        headers: User headers.
        source: Name and revision, None for a topic that an inventory removes.
        if_revision: Revision that the topic must have at the target.
        taken: Subscription of its message.
        entry: Its place in `unacked`. None if the message was acknowledged already.
        since_s: When the message came.
        found: Revision that an inventory found at the target, 0 for none.
        inventory: An inventory waits for its RECEIPT.
    """

    topic: str
    body: bytes
    headers: dict[str, str]
    source: tuple[str, int] | None
    if_revision: int | None
    taken: Taken | None
    entry: list[int] | None
    priority: int
    since_s: float
    found: int | None = None
    inventory: bool = False


@final
class Flow:
    """The SENDs to one side.

    Attributes:
        flying: Those without RECEIPT, by ticket.
    """

    def __init__(self, window: int) -> None:
        self.flying: Final[dict[int, Item]] = {}
        self._window: Final = window
        self._pending: Final[list[deque[Item]]] = [deque() for _ in PRIORITIES]
        self._refused: Final[list[Item]] = []
        self._retry_at_s = 0.0
        self._pause_s = RETRY_S_MIN

    def put(self, item: Item) -> None:
        """Add a SEND after all others of its priority."""
        self._pending[item.priority].append(item)

    def next(self) -> Item | None:
        """Remove and return the next SEND, or None if there is none or too many are under way."""
        if len(self.flying) < self._window:
            for queue in self._pending:
                if queue:
                    return queue.popleft()
        return None

    def refuse(self, item: Item, now_s: float) -> None:
        """Keep a SEND that the other side cannot store now, for a retry after a growing pause."""
        if not self._refused:
            self._retry_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)
        self._refused.append(item)

    def accepted(self) -> None:
        """Record that the other side can store again."""
        self._pause_s = RETRY_S_MIN

    def retry(self, now_s: float) -> None:
        """Put refused SENDs back if their pause is over."""
        if self._refused and now_s >= self._retry_at_s:
            for item in reversed(self._refused):
                self._pending[item.priority].appendleft(item)
            self._refused.clear()

    def clear(self) -> None:
        """Forget all SENDs."""
        self.flying.clear()
        for queue in self._pending:
            queue.clear()
        self._refused.clear()
        self._pause_s = RETRY_S_MIN

    def __iter__(self) -> Iterator[Item]:
        """Iterate over all SENDs that have no final answer."""
        yield from self.flying.values()
        yield from self._refused
        for queue in self._pending:
            yield from queue
