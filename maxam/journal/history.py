"""The changes of one topic out of a journal, newest first and a page at a time, beside the gateway that writes it.

Theory of operation. A page reads the segments from the newest to the oldest, and skips those whose index excludes the topic. In
the others every block is proven, which costs a checksum. Only blocks whose bytes hold the destination are decoded. If anything
is wrong, the whole segment is read again by the reader that resumes after damage. The revisions that it misses are reported:
they may have been about this topic. The work for a page is bounded. One that reaches its bounds has the place to go on from.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import JournalDamagedError
from maxam.journal import index
from maxam.journal.archive import plan
from maxam.journal.decoding import Decoder
from maxam.journal.disk import OsDisk
from maxam.journal.layout import first_record
from maxam.journal.listing import REVISION_MAX, Problem, open_segment
from maxam.journal.names import Segment
from maxam.journal.reading import SegmentReader
from maxam.journal.scan import Scanner
from maxam.records import Change

_TOLD: Final = {
    "damaged",
    "missing",
    "expired",
    "unreadable",
}  # kinds of problems; of a write under way or an odd clock nothing is missing


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one page.

    Attributes:
        changes: Maximum number of its changes.
        value_bytes: Maximum bytes of their headers and bodies in all, except those of the first one.
        read_bytes: Maximum bytes of segments that are read. The first one is read whatever its size.
        ended: Returns True when its time is over. Called between segments.
    """

    changes: int
    value_bytes: int
    read_bytes: int
    ended: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a topic's changes.

    Attributes:
        changes: Newest first.
        before: Revision to go on with: the next page has lower ones. None if there is nothing more in the journal.
        problems: Parts of the range between that could not be read, or have been removed.
    """

    changes: list[Change]
    before: int | None
    problems: list[Problem]


def read_page(folder: str | os.PathLike[str], destination: bytes, before: int | None, bounds: Bounds) -> Page:
    """Return the newest changes of a topic below a revision.

    Args:
        folder: The journal's.
        destination: The topic.
        before: Only lower revisions are wanted; None for the newest there are.
        bounds: Of what it may take.

    Raises:
        JournalError: It is not the folder of a journal.
        OSError: It cannot be read.
    """
    high = REVISION_MAX if before is None else before - 1
    segments, problems = plan(folder, "changes", None, high) if high else ([], [])
    found = _Found(bounds, high)
    read_bytes = 0
    low = 0  # above it all is in the page
    for segment in reversed(segments):
        if _passed_over(folder, segment, destination):
            continue
        size = _size(segment)
        if read_bytes and (read_bytes + size > bounds.read_bytes or bounds.ended()):
            low = segment.last
            break
        read_bytes += size
        found.begin()
        problems += _read(folder, segment, destination, found)
        if not found.end():
            low = found.changes[-1].revision - 1
            break
    problems = [
        one for one in problems if one.kind in _TOLD and (not one.last or (one.last > low and one.first <= high))
    ]
    return Page(found.changes, low + 1 if low else None, problems)


@final
class _Found:
    """Collects the changes of a topic. Segments come newest first, the changes of a segment oldest first.

    Attributes:
        changes: Changes that stay, newest first.
    """

    def __init__(self, bounds: Bounds, high: int) -> None:
        self._bounds: Final = bounds
        self._high: Final = high
        self.changes: Final[list[Change]] = []
        self._bytes = 0
        self._segment: Final[deque[Change]] = deque()
        self._segment_bytes = 0
        self._left_out = False

    def begin(self) -> None:
        """Begin with a segment, or with the same one again."""
        self._segment.clear()
        self._segment_bytes = 0
        self._left_out = False

    def add(self, change: Change) -> None:
        """Add the next change. The oldest ones are dropped to make room."""
        if change.revision > self._high:
            return
        self._segment.append(change)
        self._segment_bytes += len(change.content)
        kept = len(self.changes)
        while len(self._segment) + kept > self._bounds.changes or (
            self._bytes + self._segment_bytes > self._bounds.value_bytes and len(self._segment) + kept > 1
        ):
            self._segment_bytes -= len(self._segment.popleft().content)
            self._left_out = True
            if not self._segment:
                break

    def end(self) -> bool:
        """Record that the segment was read to its end. Return False when the page is full."""
        self.changes.extend(reversed(self._segment))
        self._bytes += self._segment_bytes
        full = len(self.changes) >= self._bounds.changes or self._bytes >= self._bounds.value_bytes
        return not (self._left_out or (full and bool(self.changes)))


def _passed_over(folder: str | os.PathLike[str], segment: Segment, destination: bytes) -> bool:
    if segment.open:
        return False
    found = index.load(os.fspath(folder), segment, OsDisk())
    return found is not None and not found.may_hold(destination)


def _size(segment: Segment) -> int:
    try:
        return os.stat(segment.path).st_size  # noqa: PTH116 - a string is what there is
    except OSError:  # opening it will report that
        return 0


def _read(folder: str | os.PathLike[str], segment: Segment, destination: bytes, found: _Found) -> list[Problem]:
    """Hand over the changes of a topic in a segment, and return what of it cannot be read."""
    try:
        for change in _proven(folder, segment, destination):
            found.add(change)
    except FileNotFoundError:
        lost = f"; lost: revisions {segment.first} to {segment.last}"
        return [Problem("expired", segment.path, 0, segment.first, segment.last, f"it was removed meanwhile{lost}")]
    except (JournalDamagedError, ValueError, IndexError):
        found.begin()
    else:
        return []
    with SegmentReader(folder, "changes", segment) as reader:
        for block in reader:
            for record in block:
                if isinstance(record, Change) and record.destination == destination:
                    found.add(record)
        return list(reader.problems)


def _proven(folder: str | os.PathLike[str], segment: Segment, destination: bytes) -> Iterator[Change]:
    """Yield the changes of a topic in a segment that is whole.

    Raises:
        JournalDamagedError: It is not.
        ValueError: The same.
        IndexError: The same.
        FileNotFoundError: It is gone.
        OSError: It cannot be read.
    """
    named, file = open_segment(folder, "changes", segment)
    try:
        scanner = Scanner(named.path, file.size, file.read)
        if scanner.snapshot or scanner.start.revision != segment.first - 1:
            raise JournalDamagedError(named.path, 0, "its header and its name differ")
        while True:
            try:
                block = scanner.next_block()
            except JournalDamagedError:
                if segment.open and scanner.torn():  # a write under way
                    return
                raise
            if block is None:
                break
            if destination in block[0] and not scanner.ended:
                decoder = Decoder(first_record(block[0])[0] - 1, 0)
                for record in decoder.decode(*block):
                    if isinstance(record, Change) and record.destination == destination:
                        yield record
        if not segment.open and not scanner.ended:
            raise JournalDamagedError(named.path, scanner.size, "the mark of a finished file is missing at its end")
    finally:
        file.close()
