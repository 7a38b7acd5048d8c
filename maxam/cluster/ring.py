"""The newest committed blocks of a journal in memory, for feeds that have caught up.

The thread that commits adds. Threads of feeds take. Its size in bytes is bounded: the oldest goes first, and a feed that still
needs it reads the journal's files.
"""

import threading
import time
from typing import Final, final

from maxam.cluster.entry import SEAL, Entry, block_entry
from maxam.journal.encoding import Block, Position

RING_BYTES: Final = 67_108_864
_STEP_BYTES: Final = 200  # of memory, beside the block


@final
class _Step:
    """A block that was committed, or a seal."""

    __slots__ = ("after", "at_s", "before", "begins", "data", "offset")

    def __init__(self, data: bytes, before: Position, after: Position, begins: bool) -> None:
        self.data: Final = data  # with the sync marker; of a seal the marker alone
        self.before: Final = before
        self.after: Final = after
        self.begins: Final = begins
        self.offset = 0  # bytes of all steps before it
        self.at_s = time.monotonic()


@final
class Ring:
    """The newest steps of a journal. Its methods may be called on any thread.

    Attributes:
        end: Position after the newest committed block.
        incarnation: Of the journal, for all steps that are kept.
    """

    def __init__(self, end: Position, incarnation: str, bytes_max: int = RING_BYTES) -> None:
        """Begin with nothing, at the position where the journal ends."""
        self.end = end
        self.incarnation = incarnation
        self._bytes_max: Final = bytes_max
        self._bytes = 0
        self._offset = 0  # bytes of all steps
        self._steps: Final[dict[int, _Step]] = {}  # by number
        self._first = 0  # number of the oldest step that is kept
        self._next = 0  # number of the next step
        self._numbers: Final[dict[tuple[int, int], int]] = {}  # first step at a position, by revision and chain
        self._lock: Final = threading.Lock()

    def wrote(self, block: Block, begins: bool) -> None:
        """Record that a block is durable. With `begins` it is the first of its segment."""
        self._add(_Step(block.data, block.before, block.after, begins), len(block.data))

    def sealed(self, sync_marker: bytes) -> None:
        """Record that the open segment was sealed at the end, although no block followed."""
        self._add(_Step(sync_marker, self.end, self.end, begins=False), len(sync_marker))

    def renew(self, incarnation: str) -> None:
        """Record that the next block begins a segment with another incarnation. Feeds find what came before in the files."""
        with self._lock:
            self.incarnation = incarnation
            self._steps.clear()
            self._numbers.clear()
            self._bytes = 0
            self._first = self._next

    def find(self, position: Position, proven: bool = False) -> int | None:
        """Return the number of the first step after a position; None if the ring buffer does not hold it.

        At the end of the ring buffer it is the number of the next step that will be added.

        Args:
            position: Where a reader stands.
            proven: The journal's files hold that position. A start from a snapshot alone does not know the check of the last block,
                so the revision is enough there.
        """
        with self._lock:
            number = self._numbers.get((position.revision, position.chain))
            if number is not None:
                return number
            end = self.end
            if position.revision == end.revision and (position.chain == end.chain or (proven and not end.chain)):
                return self._next
            return None

    def take(self, number: int, bytes_max: int) -> tuple[list[Entry], int, str] | None:
        """Return entries from a number on, up to a size, the number of the next one, and their incarnation.

        None if the first is no longer there.
        """
        with self._lock:
            if number < self._first:
                return None
            steps: list[_Step] = []
            size = 0
            while number < self._next and size < bytes_max:
                step = self._steps[number]
                steps.append(step)
                size += len(step.data)
                number += 1
            incarnation = self.incarnation
        return [_entry(step) for step in steps], number, incarnation

    def lag(self, position: Position) -> tuple[float, int] | None:
        """Return for how many seconds a reader at a position lacks something, and how many bytes; None if it is not known here."""
        with self._lock:
            number = self._numbers.get((position.revision, position.chain))
            if number is None:
                end = self.end
                return (0.0, 0) if (position.revision, position.chain) == (end.revision, end.chain) else None
            while number < self._next and self._steps[number].before is self._steps[number].after:  # a seal
                number += 1
            if number == self._next:
                return 0.0, 0
            step = self._steps[number]
            return time.monotonic() - step.at_s, self._offset - step.offset

    def _add(self, step: _Step, size: int) -> None:
        with self._lock:
            steps = self._steps
            number = self._next
            steps[number] = step
            step.offset = self._offset
            self._offset += size
            self._numbers.setdefault((step.before.revision, step.before.chain), number)
            self._next = number + 1
            self.end = step.after
            self._bytes += size + _STEP_BYTES
            while self._bytes > self._bytes_max and self._first < number:
                oldest = steps.pop(self._first)
                place = oldest.before.revision, oldest.before.chain
                if self._numbers.get(place) == self._first:
                    del self._numbers[place]
                self._bytes -= len(oldest.data) + _STEP_BYTES
                self._first += 1


def _entry(step: _Step) -> Entry:
    if step.before is step.after:
        return Entry(SEAL, False, step.before, step.after, step.data, b"")
    return block_entry(step.data, step.before, step.after, step.begins)
