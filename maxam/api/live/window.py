"""The topics that a live view shows, and the number of matches, kept up to date while topics come and go without a further scan.

Theory of operation. A scan reads the destinations in batches, and may take any time. A topic that appears or vanishes meanwhile is
reported as an event of the store. Events correct the part that the scan has passed. The scan itself reads the current state of the
rest. So the result is exact whenever all events are applied, wherever the scan is. After the end of the scan, only events cost time.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, final

from maxam.broker.topic_events import APPEARED, GONE, UPDATED, TopicEvent
from maxam.globs import Glob


def literal_of(glob: Glob) -> bytes:
    """Return the longest text that every match of a glob holds."""
    longest = run = ""
    for element in glob.elements:
        run = run + element if len(element) == 1 and element not in "*?" else ""
        longest = max(longest, run, key=len)
    return longest.encode()


@final
class Window:
    """The first topics after a cursor that match a glob.

    Attributes:
        names: Their known destinations in order. There is one more than wanted if the listing goes on.
        cursor: Place where the scan continues. None at the beginning.
        position: Position of the newest event that was applied.
        literal: Part of the glob that each match contains.
        looked_at: Number of batches that the scan has read.
    """

    def __init__(self, glob: Glob, after: bytes | None, rows_max: int, position: int) -> None:
        self.glob: Final = glob
        self.rows_max: Final = rows_max
        self.literal: Final = literal_of(glob)
        self._after: Final = after
        self.restart(position)

    def restart(self, position: int) -> None:
        """Begin again, because events were lost."""
        self.names: list[bytes] = []
        self.cursor: bytes | None = self._after
        self.position = position
        self.looked_at = 0
        self._ended = False

    @property
    def missing(self) -> int:
        """Number of matches that the scan must still find. 0 when it is complete."""
        return 0 if self._ended else self.rows_max + 1 - len(self.names)

    def found(self, names: list[bytes], cursor: bytes | None) -> None:
        """Add the names that the scan found after `cursor`. A cursor of None is the end of the scan."""
        self.looked_at += 1
        self.names += names
        if cursor is None:
            self._ended = True
        else:
            self.cursor = cursor

    def apply(self, events: Iterable[TopicEvent]) -> None:
        """Apply topics that appeared or vanished."""
        for topic, kind, _ in events:
            destination = topic.destination
            if kind == UPDATED:
                continue
            if self._after is not None and destination <= self._after:
                continue
            if not self._ended and (self.cursor is None or destination > self.cursor):
                continue  # before the scan
            if not self.glob.matches(destination.decode()):
                continue
            at = bisect_left(self.names, destination)
            present = at < len(self.names) and self.names[at] == destination
            if kind == APPEARED and not present:
                self.names.insert(at, destination)
                if len(self.names) > self.rows_max + 1:
                    self.names.pop()
                    self.cursor = self.names[-1]
                    self._ended = False
            elif kind == GONE and present:
                del self.names[at]


@final
class Count:
    """The number of topics that match a glob.

    Attributes:
        count: Matches that the scan has seen.
        cursor: Place where the scan continues. None at the beginning.
        complete: Whether the scan has ended, so that `count` is exact.
        position: Position of the newest event that was applied.
        literal: Part of the glob that each match contains.
        users: Number of streams that show it.
    """

    def __init__(self, glob: Glob, position: int) -> None:
        self.glob: Final = glob
        self.literal: Final = literal_of(glob)
        self.users = 0
        self.restart(position)

    def restart(self, position: int) -> None:
        """Begin again, because events were lost."""
        self.count = 0
        self.cursor: bytes | None = None
        self.complete = False
        self.position = position

    def found(self, names: list[bytes], cursor: bytes | None) -> None:
        """Count the names that the scan found after `cursor`, None at its end. All events must have been applied before."""
        self.count += len(names)
        self.cursor = cursor
        self.complete = cursor is None

    def apply(self, events: Iterable[TopicEvent]) -> None:
        """Apply topics that appeared or vanished."""
        for topic, kind, _ in events:
            destination = topic.destination
            behind = self.complete or (self.cursor is not None and destination <= self.cursor)
            if kind != UPDATED and behind and self.glob.matches(destination.decode()):
                self.count += 1 if kind == APPEARED else -1
