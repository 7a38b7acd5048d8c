"""The journal of rejected SENDs: the same files as the journal's own, with a counter of their own, and much less promised.

```
rejected/<first>-<last>.avro           sealed: final, ends with an end mark
rejected/<first>.open.avro             being written
rejected/<...>.open.avro.torn-<offset> remains of a crash after the last whole block, cut off by the next `open`
rejected/<...>.open.avro.damaged       an open segment whose header cannot be believed, or a second open one
```

The gateway promises no one to keep a rejected SEND, so nothing here waits for the disk. Blocks are written as they come. They are
synced when a segment is sealed, at each `tidy` and at `close`. A killed process loses nothing that was appended. A power cut loses
the blocks after the last sync. When all records have been removed for their age, an empty open segment keeps the counter. After an
OSError the object is of no further use: `abandon` it, and `open` again later. That finds the whole blocks and goes on after them.
The counter is gapless and unique within the folder. Lost records give their numbers back.

The owner holds the lock of the journal's folder; `rejected` needs none of its own.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import DiskFullError, JournalDamagedError
from maxam.journal.disk import Disk, write_at, write_file
from maxam.journal.encoding import (
    START,
    Position,
    encode_rejected,
    end_block,
    header,
)
from maxam.journal.names import Segment, list_segments
from maxam.journal.scan import END_TAIL_BYTES, HEADER_BYTES, Scanner, end_position
from maxam.journal.whole import open_scanner, read_rejected
from maxam.records import RejectedSend

_DAY_US: Final = 86_400_000_000
_NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class RejectedSettings:
    """Settings of the journal of rejected SENDs.

    Attributes:
        segment_bytes_max: A segment rolls before it grows over this.
        segment_age_s_max: Age of its first record, in seconds, at which a segment rolls.
        bytes_max: Of the folder; the oldest files are removed first. One segment is always kept.
        days_max: Sealed segments whose last record is older are removed.
        durable: Sync at all.
    """

    segment_bytes_max: int = 67_108_864
    segment_age_s_max: float = 3600.0
    bytes_max: int = 1_073_741_824
    days_max: float = 90.0
    durable: bool = True


@final
class RejectedJournal:
    """The one writer of the folder `rejected` of a journal. Every method may raise OSError: see the module.

    Attributes:
        cut: Bytes that `open` cut off from the end, for the log: path, offset and length.
    """

    def __init__(self, folder: str, disk: Disk, settings: RejectedSettings, sync_marker: bytes) -> None:
        """Prepare; use `open`."""
        self._folder: Final = f"{folder}/rejected"
        self._disk: Final = disk
        self._settings: Final = settings
        self._sync_marker = sync_marker
        self._position = START
        self._path = ""  # of the open segment
        self._handle = -1
        self._first = 0
        self._size = 0
        self._started_at_us = 0
        self._unsynced = False
        self.cut: Final[list[tuple[str, int, int]]] = []

    @classmethod
    def open(cls, folder: str, disk: Disk, settings: RejectedSettings, sync_marker: bytes) -> "RejectedJournal":
        """Find the end of what is stored, cut off what is torn, and go on there.

        Args:
            folder: The journal's; it must exist, and be locked by the caller.
            disk: Where it is.
            settings: How to store.
            sync_marker: 16 random bytes, for the segments made from now on.

        Raises:
            OSError: The disk fails.
        """
        journal = cls(folder, disk, settings, sync_marker)
        if disk.make_folder(journal._folder) and settings.durable:
            disk.fsync_folder(folder)
        sealed, opened = list_segments(journal._folder, disk)
        if sealed:
            journal._position = _end_position(sealed[-1], disk)
        for stray in opened[:-1]:
            journal._set_aside(stray.path)
        if opened:
            try:
                journal._continue(opened[-1])
            except OSError:
                journal.abandon()
                raise
        return journal

    @property
    def head(self) -> int:
        """The last number given."""
        return self._position.revision

    @property
    def accepted_at_us(self) -> int:
        """Time of the last record; no later one may be before it."""
        return self._position.accepted_at_us

    def append(self, sends: list[RejectedSend]) -> None:
        """Store records that follow the last; another process can read them when this returns, and a crash of this one leaves them.

        Raises:
            ValueError: They do not follow it, or there are none.
            OSError: Some of it may be there.
        """
        block = encode_rejected(sends, self._position, self._sync_marker)
        now_us = sends[0].rejected_at_us
        grown = self._size + len(block.data) > self._settings.segment_bytes_max
        if self._handle >= 0 and self.head >= self._first and (grown or self._aged(now_us)):
            self._seal()
            self._retire(now_us)
        if self._handle < 0:
            self._create(now_us)
        if self.head < self._first:
            self._started_at_us = now_us
        write_at(self._disk, self._handle, block.data, self._size)
        self._size += len(block.data)
        self._position = block.after
        self._unsynced = True

    def tidy(self, now_us: int) -> None:
        """Make durable what was appended, seal an open segment that is old enough, and remove what is too old or too much."""
        if self._handle >= 0 and self.head >= self._first and self._aged(now_us):
            self._seal()
        elif self._unsynced and self._settings.durable:
            self._disk.fdatasync(self._handle)
        self._unsynced = False
        self._retire(now_us)

    def close(self) -> None:
        """Seal the open segment if it holds anything."""
        if self._handle >= 0 and self.head >= self._first:
            self._seal()
        self.abandon()

    def abandon(self) -> None:
        """Close the open segment as it is."""
        if self._handle >= 0:
            with suppress(OSError):
                self._disk.close(self._handle)
            self._handle = -1

    # the open segment

    def _aged(self, now_us: int) -> bool:
        return now_us - self._started_at_us >= self._settings.segment_age_s_max * 1_000_000

    def _create(self, now_us: int) -> None:
        self._first = self.head + 1
        self._path = f"{self._folder}/{self._first:020}.open.avro"
        self._handle = self._disk.create(self._path)
        start = header(self._position, self._sync_marker, snapshot=False)
        write_at(self._disk, self._handle, start, 0)
        if self._settings.durable:
            self._disk.fsync(self._handle)
            self._disk.fsync_folder(self._folder)
        self._size = len(start)
        self._started_at_us = now_us

    def _seal(self) -> None:
        end = end_block(self._position, self._sync_marker)
        write_at(self._disk, self._handle, end, self._size)
        self._name_sealed()

    def _name_sealed(self) -> None:
        if self._settings.durable:
            self._disk.fsync(self._handle)
        self._disk.rename(self._path, f"{self._folder}/{self._first:020}-{self.head:020}.avro")
        self.abandon()
        self._unsynced = False
        if self._settings.durable:
            self._disk.fsync_folder(self._folder)

    def _continue(self, segment: Segment) -> None:
        """Continue an open segment after its last whole block."""
        size = self._disk.size(segment.path)
        scanner = self._begin(segment, size)
        if scanner is None:
            return
        at_us = max(self._position.accepted_at_us, scanner.start.accepted_at_us)
        revision, chain, offset = scanner.start.revision, scanner.chain, scanner.offset
        try:
            for sends in read_rejected(scanner, revision):
                revision += len(sends)
                at_us = max(at_us, sends[-1].rejected_at_us)
                chain, offset = scanner.chain, scanner.offset
            if scanner.ended:
                offset = scanner.offset
        except JournalDamagedError:
            self._keep_torn(segment.path, offset, size - offset)
        self._position = Position(revision, at_us, chain)
        self._sync_marker = scanner.sync_marker
        self._path = segment.path
        self._first = segment.first
        self._handle = self._disk.open(segment.path)
        self._size = offset
        self._started_at_us = scanner.start.accepted_at_us or at_us
        if offset < size:
            self._disk.truncate(self._handle, offset)
        self._unsynced = True
        if scanner.ended:
            self._name_sealed()

    def _begin(self, segment: Segment, size: int) -> Scanner | None:
        """Return a scanner of an open segment, or None when it cannot be gone on with: then it is out of the way."""
        torn = False
        try:
            scanner = open_scanner(segment.path, self._disk)
            if not scanner.snapshot and scanner.start.revision == segment.first - 1 >= self.head:
                return scanner
        except JournalDamagedError:
            torn = size <= HEADER_BYTES
        if torn:
            self.cut.append((segment.path, 0, size))
            self._disk.unlink(segment.path)
        else:
            self._set_aside(segment.path)
        return None

    def _keep_torn(self, path: str, offset: int, length: int) -> None:
        self.cut.append((path, offset, length))
        with suppress(DiskFullError):  # nothing of it was promised
            write_file(self._disk, f"{path}.torn-{offset}", [self._disk.read(path, offset, length)])

    def _set_aside(self, path: str) -> None:
        self.cut.append((path, 0, self._disk.size(path)))
        self._disk.rename(path, f"{path}.damaged")

    # what is kept

    def _retire(self, now_us: int) -> None:
        """Remove the oldest files while there are too many bytes or the last record of the oldest segment is too old."""
        sealed, _ = list_segments(self._folder, self._disk)
        newest = sealed[-1].path if sealed else ""
        while sealed and self._last_at_us(sealed) < now_us - self._settings.days_max * _DAY_US:
            self._keep_counter(sealed[0].path == newest, now_us)
            self._disk.unlink(sealed.pop(0).path)
        paths = [f"{self._folder}/{name}" for name in sorted(self._disk.names(self._folder))]
        sizes = {path: self._disk.size(path) for path in paths if _is_ours(path)}
        current = self._path if self._handle >= 0 else ""
        excess = sum(sizes.values()) - self._settings.bytes_max
        # room for the open segment to grow
        excess += self._settings.segment_bytes_max - (self._size if current else 0)
        for path, size in sizes.items():
            if excess <= 0:
                break
            if path != current:
                self._keep_counter(path == newest, now_us)
                self._disk.unlink(path)
                excess -= size

    def _keep_counter(self, last: bool, now_us: int) -> None:
        """Before the last file that holds the counter goes, begin another that holds it."""
        if last and self._handle < 0:
            self._create(now_us)

    def _last_at_us(self, sealed: list[Segment]) -> float:
        """Return the time of the last record of the oldest segment, from the one after it. Infinity if that cannot be read."""
        following = sealed[1].path if len(sealed) > 1 else self._path if self._handle >= 0 else ""
        if not following:
            return self.accepted_at_us
        try:
            return open_scanner(following, self._disk).start.accepted_at_us
        except JournalDamagedError:
            return float("inf")


def _is_ours(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name[:_NAME_DIGITS].isdecimal() and ".avro" in name


def _end_position(segment: Segment, disk: Disk) -> Position:
    """Return where a sealed segment ends, from its end mark alone; time and chain are 0 if that cannot be read."""
    size = disk.size(segment.path)
    end = end_position(disk.read(segment.path, max(0, size - END_TAIL_BYTES), END_TAIL_BYTES))
    return end if end is not None and end.revision == segment.last else Position(segment.last, 0, 0)
