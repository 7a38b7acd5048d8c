"""How far the log of a cluster may be trimmed.

The leader forgets an entry when two conditions hold. It is older than `log_keep_s`, and it is synced in the journals of `copies_min`
members. Entries that a member has only received or applied do not count: they are lost with the power. An announcement counts for
`SILENT_S` from when it may have been made: a member that is silent may have lost its disk.

The last entry that is forgotten is a block. So a journal that ends where the log begins has all that was forgotten. Schemas that follow
a block have the same position, so a journal without them ends there as well.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Final, final

from maxam.cluster.member import SILENT_S

MARK_S: Final = 1.0  # between two marks of time: the age of an entry is exact to a second


@final
class Trimming:
    """The blocks that a member has seen in the log and when, and what the journals of the members hold.

    Attributes:
        trimmed: Index up to which the log was trimmed.
    """

    __slots__ = ("_asked_s", "_copies_min", "_journals", "_keep_s", "_marks", "trimmed")

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
        self._journals: dict[str, tuple[int, int, float]] = {}  # number, index and earliest time of each announcement
        self._asked_s = -math.inf

    def seen(self, now_s: float, index: int) -> None:
        """Record the index of the last block of the log."""
        marks = self._marks
        if not marks or (index > marks[-1][0] and now_s - marks[-1][1] >= MARK_S):
            marks.append((index, now_s))

    def announced(self, asked_s: float, found: Mapping[str, tuple[int, int]]) -> None:
        """Record what the members announce.

        A new announcement may have been made at any time since the announcements were read before: a leader without a log
        reads it late. Those of the first time may be of any age.

        Args:
            asked_s: When the call that read the announcements began.
            found: For each member, the number of its announcement and the index of the last entry that is synced in its journal.
        """
        before = self._journals
        self._journals = {
            name: before[name] if name in before and before[name][0] == number else (number, index, self._asked_s)
            for name, (number, index) in found.items()
        }
        self._asked_s = asked_s

    def due(self, now_s: float, own: tuple[str, int], members: int | None = None) -> int:
        """Return the index up to which the log may be trimmed now; 0 if there is nothing new to trim.

        Args:
            now_s: The time.
            own: Name of this member, and the index of the last entry that is synced in its journal.
            members: Number of members, silent ones included. Fewer than `copies_min` cannot hold as many copies. None if
                `copies_min` holds in any case.
        """
        journals = {name: index for name, (_, index, since_s) in self._journals.items() if now_s - since_s < SILENT_S}
        copied = sorted((journals | dict([own])).values(), reverse=True)
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
