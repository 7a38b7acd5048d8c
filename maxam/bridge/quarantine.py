"""Values that their target rejects: the newest of each topic, so that a bad type never blocks the others."""

from collections.abc import Iterator
from typing import Final, final

from maxam.bridge.flow import Item
from maxam.links import LinkRejection

RETRY_S: Final = 300.0  # between two attempts to send them
RETRY_S_MAX: Final = 21_600.0  # between two inventories for those that had no room
TOPICS_MAX: Final = 10_000
LISTED_MAX: Final = 20  # in Link
BYTES_MAX: Final = 33_554_432  # of bodies and headers
REASON_CHARACTERS_MAX: Final = 300


@final
class Quarantine:
    """Rejected values by target lane and topic.

    Attributes:
        whole: True if it has every value that was rejected since the last inventory. If not, another inventory finds the rest.
        pause_s: Time until the next attempt. It doubles with each inventory that had to find the rest.
    """

    def __init__(self) -> None:
        self.whole = False
        self.pause_s = RETRY_S
        self._items: Final[dict[tuple[int, str], tuple[Item, str]]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[int, Item, str]]:
        """Iterate over all values: lane, value, reason."""
        for (lane, _), (item, reason) in self._items.items():
            yield lane, item, reason

    def put(self, lane: int, item: Item, reason: str) -> None:
        """Keep a value instead of an earlier one of its topic, if there is room."""
        self.pop(lane, item.topic)
        size = _size(item)
        if self._items and (len(self._items) >= TOPICS_MAX or self._bytes + size > BYTES_MAX):
            self.whole = False
            return
        self._items[lane, item.topic] = item, reason[:REASON_CHARACTERS_MAX]
        self._bytes += size

    def pop(self, lane: int, topic: str) -> bool:
        """Drop the value of a topic. Return True if there was one."""
        found = self._items.pop((lane, topic), None)
        if found is None:
            return False
        self._bytes -= _size(found[0])
        return True

    def remove(self, lane: int, item: Item) -> bool:
        """Drop this very value. Return True if it was there."""
        found = self._items.get((lane, item.topic))
        return found is not None and found[0] is item and self.pop(lane, item.topic)

    def due(self) -> None:
        """Record that an attempt is made."""
        self.pause_s = RETRY_S if self.whole else min(2 * self.pause_s, RETRY_S_MAX)

    def clear(self) -> None:
        """Drop all values, as an inventory begins that finds them again."""
        self._items.clear()
        self._bytes = 0
        self.whole = True

    def rejections(self) -> tuple[LinkRejection, ...]:
        """Return topic and reason of some values, for Link."""
        return tuple([LinkRejection(item.topic, reason) for item, reason in list(self._items.values())[:LISTED_MAX]])


def _size(item: Item) -> int:
    """Return the approximate size of a value in memory."""
    return len(item.body) + len(item.topic) + sum([len(name) + len(value) for name, value in item.headers.items()])
