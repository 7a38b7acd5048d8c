"""How far the log of a cluster may be trimmed.

The leader forgets an entry when two conditions hold. It is older than `log_keep_s`, and it is synced in the journals of `copies_min`
members. Entries that a member has only received or applied do not count: they are lost with the power.

The last entry that is forgotten is a block. So a journal that ends where the log begins has all that was forgotten. Schemas that follow
a block have the same position, so a journal without them ends there as well.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, final

MARK_S: Final = 1.0  # between two marks of time: the age of an entry is exact to a second


@final
class Trimming:
    """The blocks that a member has seen in the log, and when.

    Attributes:
        trimmed: Index up to which the log was trimmed.
    """

    __slots__ = ("_copies_min", "_keep_s", "_marks", "trimmed")

    def __init__(self, copies_min: int, keep_s: float) -> None:
        """Record nothing yet.

        Args:
            copies_min: Number of journals that hold an entry before it is forgotten.
            keep_s: Age of an entry before it is forgotten.
        """
        self.trimmed = 0
        self._copies_min: Final = copies_min
        self._keep_s: Final = keep_s
        self._marks: Final[deque[tuple[int, float]]] = deque()  # an index, and when it was seen

    def seen(self, now_s: float, index: int) -> None:
        """Record the index of the last block of the log."""
        marks = self._marks
        if not marks or (index > marks[-1][0] and now_s - marks[-1][1] >= MARK_S):
            marks.append((index, now_s))

    def due(self, now_s: float, synced: Mapping[str, int], members: int | None = None) -> int:
        """Return the index up to which the log may be trimmed now; 0 if there is nothing new to trim.

        Args:
            now_s: The time.
            synced: For each member that is known to be alive, the index of the last entry that is synced in its journal.
            members: Number of members, silent ones included. Fewer than `copies_min` cannot hold as many copies. None if
                `copies_min` holds in any case.
        """
        copied = sorted(synced.values(), reverse=True)
        needed = self._copies_min if members is None else min(self._copies_min, max(members, 1))
        if len(copied) < needed:
            return 0
        held = copied[needed - 1]
        marks, last = self._marks, 0
        while marks and marks[0][0] <= held and now_s - marks[0][1] >= self._keep_s:
            last, _ = marks.popleft()
        if last <= self.trimmed:
            return 0
        self.trimmed = last
        return last
