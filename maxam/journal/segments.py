"""The segment files of one writer: each is begun, grown by whole blocks, and sealed.

The header and the end mark of a segment follow from the position, the sync marker and the incarnation. So two journals that store
the same blocks and begin their segments before the same blocks have equal files.
"""

import errno
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import DiskFullError
from maxam.journal.disk import Disk, write_at, write_file
from maxam.journal.encoding import Position, end_block, header
from maxam.journal.names import segment_path
from maxam.journal.replay import OpenEnd
from maxam.journal.scan import ALIGNED_BYTES, Scanner
from maxam.journal.syncing import Syncs

NOT_BEGUN: Final = -1  # time of the first record of a segment that has none


def follows(before: Position, end: Position, begins: bool) -> bool:
    """Return True if a block that belongs at a position follows what ends at another one. With `begins`, a segment begins there.

    The check of the last block is 0 where only a snapshot is known. Only a segment can begin there.
    """
    if begins and not (_is_whole(before) and _is_whole(end)):
        return before.revision == end.revision
    return (before.revision, before.accepted_at_us, before.chain) == (end.revision, end.accepted_at_us, end.chain)


def _is_whole(position: Position) -> bool:
    """Return True if the check of the block before is known, or there is none before."""
    return position.chain != 0 or position.revision == position.accepted_at_us == 0


@dataclass(frozen=True, slots=True)
class TornTail:
    """The remains of an uncommitted write after a crash, cut off when the journal was recovered.

    Attributes:
        path: The segment.
        kept: File to which the bytes were moved, empty if the disk had no room for them.
        offset: Place of their first byte.
        length: Number of the bytes.
        revision: The last that was kept. The bytes were of later revisions, for which no RECEIPT was written.
    """

    path: str
    kept: str
    offset: int
    length: int
    revision: int


class SegmentExtent:
    """How far a segment goes: enough to decide whether the next block begins another one.

    Attributes:
        first: Revision of its first change, which may not be in it yet.
        size: Bytes that are stored whole; 0 while even the header is not.
        started_at_us: When its first record was accepted, NOT_BEGUN if it has none. Its age counts from then.
        sync_marker: Between its blocks.
        outdated: Its schema is that of an older release, which may lack kinds of records.
    """

    __slots__ = ("first", "outdated", "size", "started_at_us", "sync_marker")

    def __init__(self, first: int, size: int, started_at_us: int, sync_marker: bytes, outdated: bool = False) -> None:
        self.first: Final = first
        self.size = size
        self.started_at_us = started_at_us
        self.sync_marker: Final = sync_marker
        self.outdated: Final = outdated

    def aged(self, now_us: int, age_s_max: float) -> bool:
        """Return True if its first record is old enough at a time, for a limit in seconds."""
        return now_us - self.started_at_us >= age_s_max * 1_000_000

    def rolls(self, position: Position, size: int, at_us: int, bytes_max: int, age_s_max: float) -> bool:
        """Return True if a new segment begins with the next block.

        Args:
            position: Position before the block.
            size: Bytes of the block with its sync marker.
            at_us: When its last record was accepted.
            bytes_max: Limit on the size of a segment.
            age_s_max: Limit on the age of a segment, seconds.
        """
        if position.revision < self.first:
            return False  # it holds no change, so another one would have its name
        return self.outdated or self.size + size > bytes_max or self.aged(at_us, age_s_max)

    def grow(self, size: int, at_us: int) -> None:
        """Record that a block of a size, accepted at a time, was added."""
        self.size += size
        if self.started_at_us == NOT_BEGUN:
            self.started_at_us = at_us


@final
class OpenSegment(SegmentExtent):
    """The open segment.

    Attributes:
        path: The file.
        handle: Its descriptor.
        allocated: Size up to which there is room on the disk, 0 if that is not known.
    """

    __slots__ = ("allocated", "handle", "path")

    def __init__(
        self,
        path: str,
        handle: int,
        first: int,
        size: int,
        started_at_us: int,
        sync_marker: bytes,
        outdated: bool = False,
    ) -> None:
        super().__init__(first, size, started_at_us, sync_marker, outdated)
        self.path: Final = path
        self.handle: Final = handle
        self.allocated = 0

    def extent(self) -> SegmentExtent:
        """Return how far it goes, as a copy."""
        return SegmentExtent(self.first, self.size, self.started_at_us, self.sync_marker, self.outdated)


@final
class SegmentFiles:
    """The segments of one journal that is being written.

    Attributes:
        opened: The open segment, or None.
        uncut: The open segment may have bytes after those that are stored whole.
    """

    __slots__ = ("_ahead_bytes", "_disk", "_folder", "_held", "_spare", "_syncs", "opened", "uncut")

    def __init__(self, folder: str, disk: Disk, syncs: Syncs, ahead_bytes: int = 0) -> None:
        """Prepare to write segments in a folder. Room for up to `ahead_bytes` is allocated before blocks come, 0 for none."""
        self._ahead_bytes: Final = ahead_bytes
        self._folder: Final = folder
        self._disk: Final = disk
        self._syncs: Final = syncs
        self._held = -1  # handle of the folder
        self._spare = -1  # handle of a sealed segment, kept so that the next segment finds a file to open
        self.opened: OpenSegment | None = None
        self.uncut = False

    @property
    def lacks_descriptor(self) -> bool:
        """Whether the next block may need a file descriptor that is not held yet."""
        return self.opened is None and self._spare < 0

    def hold(self) -> None:
        """Hold the folder open: a sync that finds no file descriptor would end the process."""
        self._held = self._disk.hold_folder(self._folder)
        self._syncs.folder(self._folder)  # a killed process may have made names that it did not sync

    def proceed(self, found: OpenEnd, revision: int) -> TornTail | None:
        """Go on after the whole blocks of an open segment that was read; `revision` is the last one.

        The rest is moved aside, durably, and returned.
        """
        segment, scanner = found.segment, found.scanner
        torn = self._set_aside(found, revision) if found.end < found.size else None
        if scanner is None:
            self._disk.unlink(segment.path)
            self._syncs.folder(self._folder)
            return torn
        handle = self._disk.open(segment.path)
        begun_us = scanner.start.accepted_at_us if found.end > scanner.first_offset else NOT_BEGUN
        self.opened = OpenSegment(
            segment.path, handle, segment.first, found.end, begun_us, scanner.sync_marker, scanner.outdated
        )
        if found.end < self._disk.size(segment.path):  # also zeros
            self._disk.truncate(handle, found.end)
        # a killed process may have written what it did not sync; from now on it counts as committed
        self._syncs.file(handle)
        self._syncs.folder(self._folder)
        if scanner.ended:  # killed between the end mark and the new name
            self._name_sealed(self.opened, revision)
        return torn

    def begin(self, position: Position, sync_marker: bytes, incarnation: str, now_us: int) -> OpenSegment:
        """Begin a segment at a position, durable with its header before any block is in it."""
        first = position.revision + 1
        path = segment_path(self._folder, first)
        segment = OpenSegment(path, self._open_new(path), first, 0, now_us, sync_marker)
        self.opened = segment
        start = header(position, sync_marker, snapshot=False, incarnation=incarnation)
        write_at(self._disk, segment.handle, start, 0)
        self._syncs.file(segment.handle)
        self._syncs.folder(self._folder)
        segment.size = len(start)
        return segment

    def grow(self, segment: OpenSegment, data: bytes, at_us: int, sync: bool) -> None:
        """Write a block, accepted at a time, and make it durable with `sync`."""
        if self._ahead_bytes and sync and segment.size + len(data) > segment.allocated:
            self._allocate(segment, segment.size + len(data))
        write_at(self._disk, segment.handle, data, segment.size)
        if sync:
            self._syncs.file(segment.handle, data_only=True)
        segment.grow(len(data), at_us)

    def sync(self) -> None:
        """Make durable what `grow` wrote."""
        if self.opened is not None:
            self._syncs.file(self.opened.handle, data_only=True)

    def rewrite_header(
        self, segment: OpenSegment, incarnation: str, position: Position | None = None, sync_marker: bytes = b""
    ) -> OpenSegment:
        """Write the header of the open segment again, with incarnation and schema. The segment holds no change yet.

        With a position and a sync marker of its first block, it must hold no block either.
        """
        data = self._disk.read(segment.path, 0, segment.size)
        scanner = Scanner(segment.path, segment.size, lambda offset, length: data[offset : offset + length])
        marker = sync_marker or scanner.sync_marker
        start = header(position or scanner.start, marker, snapshot=False, incarnation=incarnation)
        rest = data[scanner.first_offset :]
        write_file(self._disk, segment.path, [start, rest])
        self._syncs.folder(self._folder)
        self._disk.close(segment.handle)
        handle = self._disk.open(segment.path)
        size = len(start) + len(rest)
        renewed = OpenSegment(segment.path, handle, segment.first, size, segment.started_at_us, marker)
        self.opened = renewed
        return renewed

    def set_incarnation(self, position: Position, sync_marker: bytes, incarnation: str) -> None:
        """Write an incarnation into the header of the open segment, or of a new one if the open one holds a change.

        Raises:
            DiskFullError: There is no room, and the incarnation is the one before.
            OSError: The disk fails.
        """
        segment = self.opened
        try:
            if segment is not None and position.revision < segment.first:
                self.rewrite_header(segment, incarnation)
                return
            if segment is not None:  # readers know places in it: its bytes must stay where they are
                self.seal(segment, position)
            self.begin(position, sync_marker, incarnation, NOT_BEGUN)
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise
            self.cut_back()
            raise DiskFullError(f"{self._folder}: no room for a new segment: {error.strerror}") from error

    def seal(self, segment: OpenSegment, position: Position) -> None:
        """Finish the open segment, which ends at a position; until it has its final name it can be cut back."""
        if self.uncut:
            self.cut(segment)
        elif segment.allocated:
            self._disk.truncate(segment.handle, segment.size)  # durable with the end mark
            segment.allocated = 0
        end = end_block(position, segment.sync_marker)
        write_at(self._disk, segment.handle, end, segment.size)
        self._syncs.file(segment.handle)
        self._name_sealed(segment, position.revision)

    def cut_back(self) -> None:
        """Leave in the open segment only what is stored whole."""
        segment = self.opened
        if segment is None:
            return
        # File systems that never write in place need room even to free some: what cannot be taken down now is when there is room.
        try:
            if segment.size:
                self.uncut = True
                self.cut(segment)
            else:
                self.opened = None
                self._disk.close(segment.handle)
                self._disk.unlink(segment.path)  # or else `begin` empties it, as it comes by the same name
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise

    def cut(self, segment: OpenSegment) -> None:
        """Remove the bytes after those that are stored whole, durably."""
        self._disk.truncate(segment.handle, segment.size)
        segment.allocated = 0
        self._syncs.file(segment.handle)
        self.uncut = False

    def close(self) -> None:
        """Let go of all files."""
        if self.opened is not None:
            self._disk.close(self.opened.handle)
            self.opened = None
        self._close_spare()
        if self._held >= 0:
            self._disk.close(self._held)

    def _allocate(self, segment: OpenSegment, size: int) -> None:
        """Allocate room for a segment of a size and more, so that a sync does not have to store another size. A full disk has none."""
        segment.allocated = -(-(size + self._ahead_bytes) // ALIGNED_BYTES) * ALIGNED_BYTES
        if segment.sync_marker.endswith(b"\0"):
            return  # readers cannot distinguish the end of the last block from zeros
        try:
            self._disk.allocate(segment.handle, segment.allocated)
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise
            self._disk.truncate(segment.handle, segment.size)

    def _set_aside(self, found: OpenEnd, revision: int) -> TornTail:
        """Copy the torn end of a segment beside it, durably."""
        path, length = found.segment.path, found.size - found.end
        kept = f"{path}.torn-{found.end}"
        try:
            write_file(self._disk, kept, [self._disk.read(path, found.end, length)])
            self._syncs.folder(self._folder)
        except DiskFullError:
            kept = ""  # no RECEIPT was written for any of it, so the start matters more
        return TornTail(path, kept, found.end, length, revision)

    def _name_sealed(self, segment: OpenSegment, last: int) -> None:
        self._disk.rename(segment.path, segment_path(self._folder, segment.first, last))
        self.opened = None
        self._syncs.folder(self._folder)  # before anything can fail that does not end the process
        self._close_spare()
        self._spare = segment.handle

    def _open_new(self, path: str) -> int:
        """Create a file, with the spare handle's place where no other is left."""
        try:
            handle = self._disk.create(path)
        except OSError as error:
            if self._spare < 0 or error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            self._close_spare()
            return self._disk.create(path)
        self._close_spare()
        return handle

    def _close_spare(self) -> None:
        if self._spare >= 0:
            spare, self._spare = self._spare, -1
            self._disk.close(spare)
