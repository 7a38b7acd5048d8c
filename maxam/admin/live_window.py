"""Which topics a live view shows and how many match, kept true while topics come and go, without looking at all of them again.

Theory of operation. A scan goes over the destinations in slices, and may take as long as it likes: whatever gets a value or loses it
meanwhile is told as a turn. What lies behind the scan's position is corrected by turns, what lies before it the scan will see as it
is. So each is right whenever it has taken in all turns, however far its scan has come, and after the end of the scan only turns cost
anything.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, final

from maxam.globs import Glob

Turn = tuple[bytes, bool]  # a destination, and whether it has got a value (or has lost it)


def literal_of(glob: Glob) -> bytes:
    """Return the longest text that every match of a glob holds."""
    longest = run = ""
    for element in glob.elements:
        run = run + element if len(element) == 1 and element not in "*?" else ""
        longest = max(longest, run, key=len)
    return longest.encode()


@final
class Window:
    """The first topics behind a cursor that match a glob.

    Attributes:
        names: Their destinations in order, as far as they are known: one more than are wanted, to know whether there are more.
        cursor: Where the scan goes on; None at the beginning.
        position: Of the last turn that was taken in.
        literal: What each match holds.
        looked_at: Slices that the scan has looked at.
    """

    def __init__(self, glob: Glob, after: bytes | None, rows_max: int, position: int) -> None:
        self.glob: Final = glob
        self.rows_max: Final = rows_max
        self.literal: Final = literal_of(glob)
        self._after: Final = after
        self.restart(position)

    def restart(self, position: int) -> None:
        """Begin again, as turns were lost."""
        self.names: list[bytes] = []
        self.cursor: bytes | None = self._after
        self.position = position
        self.looked_at = 0
        self._ended = False

    @property
    def missing(self) -> int:
        """How many matches the scan is still to find; 0 when there is nothing more to look for."""
        return 0 if self._ended else self.rows_max + 1 - len(self.names)

    def found(self, names: list[bytes], cursor: bytes | None) -> None:
        """Take in what the scan found behind `cursor`; a cursor of None is the end."""
        self.looked_at += 1
        self.names += names
        if cursor is None:
            self._ended = True
        else:
            self.cursor = cursor

    def turned(self, turns: Iterable[Turn]) -> None:
        """Take in what came and went."""
        for destination, alive in turns:
            if self._after is not None and destination <= self._after:
                continue
            if not self._ended and (self.cursor is None or destination > self.cursor):
                continue  # before the scan
            if not self.glob.matches(destination.decode()):
                continue
            at = bisect_left(self.names, destination)
            present = at < len(self.names) and self.names[at] == destination
            if alive and not present:
                self.names.insert(at, destination)
                if len(self.names) > self.rows_max + 1:
                    self.names.pop()
                    self.cursor = self.names[-1]
                    self._ended = False
            elif present and not alive:
                del self.names[at]


@final
class Count:
    """How many topics match a glob.

    Attributes:
        count: How many of those that the scan has seen.
        cursor: Where the scan goes on; None at the beginning.
        complete: Whether the scan is through, so that `count` is right.
        position: Of the last turn that was taken in.
        literal: What each match holds.
        users: How many streams show it.
    """

    def __init__(self, glob: Glob, position: int) -> None:
        self.glob: Final = glob
        self.literal: Final = literal_of(glob)
        self.users = 0
        self.restart(position)

    def restart(self, position: int) -> None:
        """Begin again, as turns were lost."""
        self.count = 0
        self.cursor: bytes | None = None
        self.complete = False
        self.position = position

    def found(self, names: list[bytes], cursor: bytes | None) -> None:
        """Take in what the scan found behind `cursor`; a cursor of None is the end. All turns must have been taken in."""
        self.count += len(names)
        self.cursor = cursor
        self.complete = cursor is None

    def turned(self, turns: Iterable[Turn]) -> None:
        """Take in what came and went."""
        for destination, alive in turns:
            behind = self.complete or (self.cursor is not None and destination <= self.cursor)
            if behind and self.glob.matches(destination.decode()):
                self.count += 1 if alive else -1
