"""The changes of one topic out of a journal, newest first and a page at a time, beside the gateway that writes it.

Theory of operation. A page walks over the segments from the newest to the oldest. One whose index says that the topic is not in it is passed over. Of
the others every block is proven, which costs a checksum, and only those whose bytes hold the destination are decoded. Where something is
wrong the whole segment is read again by the reader that resumes behind damage, and what it misses is told: it may have been about
this topic. What a page may read is bounded; one that comes to its bounds says where to go on.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import JournalDamagedError
from maxam.journal import index
from maxam.journal.archive import Problem, Segment, SegmentReader, plan
from maxam.journal.decoding import Decoder, first_record
from maxam.journal.disk import OsDisk
from maxam.journal.files import SealedSegment
from maxam.journal.listing import REVISION_MAX, open_segment
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
    """What one page may take.

    Attributes:
        changes: How many it has at most.
        value_bytes: Of their headers and bodies in all, but for the first one.
        read_bytes: Of segments that are read; the first one is read whatever its size.
        ended: Tells whether its time is over; asked between segments.
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
        before: To go on with: what comes next has lower revisions. None: there is nothing more in the journal.
        problems: What of the range between could not be read, or has been removed.
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
    """Takes the changes of a topic, of one segment after the other, the newest segment first, and of each the oldest first.

    Attributes:
        changes: What stays, newest first.
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
        """Take the next change; the oldest ones make room."""
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
        """Say that the segment was read to its end; return False when the page is full."""
        self.changes.extend(reversed(self._segment))
        self._bytes += self._segment_bytes
        full = len(self.changes) >= self._bounds.changes or self._bytes >= self._bounds.value_bytes
        return not (self._left_out or (full and bool(self.changes)))


def _passed_over(folder: str | os.PathLike[str], segment: Segment, destination: bytes) -> bool:
    if segment.open:
        return False
    told = index.load(os.fspath(folder), SealedSegment(segment.first, segment.last, segment.path), OsDisk())
    return told is not None and not told.may_hold(destination)


def _size(segment: Segment) -> int:
    try:
        return os.stat(segment.path).st_size  # noqa: PTH116 - a string is what there is
    except OSError:  # whoever opens it finds out
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
            raise JournalDamagedError(named.path, 0, "its header and its name tell different things")
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
