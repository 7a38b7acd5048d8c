"""The place that a member has reached in the log of its cluster, and what follows from the entries up to there.

Each member computes the same from the same entries: where the next block belongs, when the open segment rolls, and how much the log
holds. So each one can go on where the leader stopped.
"""

import threading
from collections import deque
from typing import Final, final

from maxam.cluster.entry import BLOCK, FORMAT, HANDOVER, INCARNATION, RECORD_FORMAT, SEAL, TERM, Entry, EntryError
from maxam.cluster.placing import ForkedError
from maxam.journal.encoding import SYNC_BYTES, Block, Position, header
from maxam.journal.files import JournalSettings
from maxam.journal.segments import NOT_BEGUN, SegmentExtent, follows


@final
class LogPlace:
    """The end of the entries that one member has taken. It belongs to one thread at a time, except what the log holds.

    Attributes:
        index: Of the last entry.
        block: Index of the last block; 0 before one was taken.
        term: Its term.
        position: Position of the journal after it.
        segment: How far the open segment goes, as the entries have it; None if the next block begins one.
        format: Format of the records in force.
        incarnation: Of the journal.
        held_bytes: Size of the entries that the log holds, as far as this member has taken them.
        handovers: Number of handovers among the entries taken.
        supersessions: Number of leaders among the entries taken that had not handed over when the next one led.
    """

    def __init__(self, position: Position, segment: SegmentExtent | None, incarnation: str) -> None:
        """Begin where a recovered journal ends; `start` sets the index.

        Args:
            position: Where the journal ends.
            segment: How far its open segment goes; None without one.
            incarnation: Of the journal.
        """
        self.index = 0
        self.block = 0
        self.term = 0
        self.position = position
        self.segment = segment
        self.format = FORMAT
        self.incarnation = incarnation
        self.held_bytes = 0
        self.handovers = self.supersessions = 0
        self._handed_over = False
        self._held: Final[deque[tuple[int, int]]] = deque()  # index and bytes of each entry
        self._lock: Final = threading.Lock()  # of the two above

    def start(self, first: int) -> None:
        """Go on with the entry of an index."""
        self.index = first - 1

    def check(self, entry: Entry) -> None:
        """Raise an error unless an entry is the next one.

        Raises:
            EntryError: Its index is not the next.
            ForkedError: It does not follow by its term or position: the log was set back.
        """
        if entry.index != self.index + 1:
            raise EntryError(f"entry {entry.index} where {self.index + 1} was due")
        if entry.term < self.term:
            raise ForkedError(f"entry {entry.index} has term {entry.term}, and the one before it {self.term}")
        if not follows(entry.before, self.position, entry.begins):
            raise ForkedError(
                f"entry {entry.index} begins after revision {entry.before.revision}, and the one before it ends with"
                f" {self.position.revision}"
            )

    def take(self, entry: Entry, size: int) -> None:
        """Go on by an entry of `size` bytes that the log holds."""
        self.index, self.term, self.position = entry.index, entry.term, entry.after
        with self._lock:
            self._held.append((entry.index, size))
            self.held_bytes += size
        if entry.kind == BLOCK:
            self.block = entry.index
            if entry.begins or self.segment is None:
                start = header(entry.before, entry.marker, snapshot=False, incarnation=self.incarnation)
                first = entry.before.revision + 1
                self.segment = SegmentExtent(first, len(start), NOT_BEGUN, entry.marker)
            self.segment.grow(len(entry.payload) + SYNC_BYTES, entry.after.accepted_at_us)
        elif entry.kind == SEAL:
            if self.sealable:
                self.segment = None
        elif entry.kind == INCARNATION:
            self.incarnation = entry.payload.decode()
        elif entry.kind == RECORD_FORMAT:
            self.format = entry.number()
        elif entry.kind == HANDOVER:
            self.handovers += 1
        elif entry.kind == TERM and entry.term > 1 and not self._handed_over:
            self.supersessions += 1
        self._handed_over = entry.kind == HANDOVER

    @property
    def marker(self) -> bytes:
        """Sync marker of the open segment; zeros without one."""
        return bytes(SYNC_BYTES) if self.segment is None else self.segment.sync_marker

    @property
    def sealable(self) -> bool:
        """Whether the open segment holds a change."""
        return self.segment is not None and self.position.revision >= self.segment.first

    def rolls(self, block: Block, settings: JournalSettings) -> bool:
        """Return True if a new segment begins with a block that follows."""
        segment = self.segment
        return (
            segment is None
            or segment.started_at_us == NOT_BEGUN
            or segment.rolls(
                self.position,
                len(block.data),
                block.after.accepted_at_us,
                settings.segment_bytes_max,
                settings.segment_age_s_max,
            )
        )

    def seals(self, now_us: int, settings: JournalSettings) -> bool:
        """Return True if the open segment is to be sealed at a time, though no block follows."""
        return self.sealable and self.segment is not None and self.segment.aged(now_us, settings.segment_age_s_max)

    def forgot(self, last: int) -> None:
        """Record that the log has forgotten the entries up to an index."""
        held = self._held
        with self._lock:
            while held and held[0][0] <= last:
                self.held_bytes -= held.popleft()[1]
