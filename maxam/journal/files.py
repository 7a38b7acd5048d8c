"""The one writer of a journal's folder. `names` lists the files in it, `replay` reads them back, `snapshots` writes snapshots.

Invariants:

* A block for which `write` returned is found by the next `recover`, whatever happens between, as long as the disk keeps what
  it synced.
* A block that `write` refused with DiskFullError is never found.
* After any other failed write or sync the outcome is unknown. The journal refuses all further use and the process has to end.
  The next `recover` reads what is there.
* Only one block is ever unsynced, at the end of the open segment: whatever else is damaged was damaged at rest.

The *incarnation* identifies a journal. It is in the header of every segment and snapshot that is made after its first start. A journal of an older
release gets one at its next start. A start that gives a new one begins a segment with it before anything is served, so that no two histories share one.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import DiskFullError, JournalDamagedError, JournalError
from maxam.journal.disk import Disk, write_at, write_file
from maxam.journal.encoding import START, Block, Encoder, end_block, header
from maxam.journal.names import RENEW, RESTORING, segment_path
from maxam.journal.replay import OpenEnd, Replay
from maxam.journal.scan import Scanner
from maxam.journal.syncing import Reserve, Syncs
from maxam.records import Record

_NOT_BEGUN: Final = -1  # time of the first record of a segment that has none


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Settings of the journal's files.

    Attributes:
        segment_bytes_max: A segment rolls before it grows over this.
        segment_age_s_max: Age of its first record, in seconds, at which the next write or `seal_aged` rolls a segment.
        durable: Sync before a write returns. False is for benchmarks and throw-away use only.
        reserve_bytes: Room kept for acknowledgements on a full disk, 0 for none.
    """

    segment_bytes_max: int = 67_108_864
    segment_age_s_max: float = 3600.0
    durable: bool = True
    reserve_bytes: int = 262_144


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


@final
class _Segment:
    """The open segment. `size` is what of it is committed, 0 while even its header is not; its age counts from `started_at_us`, its first record."""

    __slots__ = ("first", "handle", "outdated", "path", "size", "started_at_us")

    def __init__(
        self, path: str, handle: int, first: int, size: int, started_at_us: int, outdated: bool = False
    ) -> None:
        self.path: Final = path
        self.handle: Final = handle
        self.first: Final = first
        self.size = size
        self.started_at_us = started_at_us
        self.outdated: Final = outdated  # with the schema of an older release, which may lack kinds of records


@final
class Journal:
    """The one writer of a journal's folder: `open`, exhaust `recover`, then `encode` and `write` in turn, then `close`.

    `encode` belongs to the thread that applies records, `write` to the one that waits for the disk. `keep_schemas` may run in a
    third. A block may be encoded while the one before it is written. If that one is refused, the later is void.

    Attributes:
        incarnation: Identifies the journal once `recover` is exhausted. Empty in a journal of an older release that was opened
            without a new one.
        floor: Revision above which `recover` yields all deletes, once it is exhausted.
        torn_tails: Ends that `recover` cut off, to be logged.
        damaged_snapshots: Snapshots that `recover` skipped in favour of older ones, to be logged.
    """

    def __init__(
        self, folder: str, disk: Disk, settings: JournalSettings, sync_marker: bytes, lock: int, incarnation: str = ""
    ) -> None:
        """Hold a locked folder; use `open`."""
        self._folder: Final = folder
        self._segments: Final = f"{folder}/segments"
        self._disk: Final = disk
        self._settings: Final = settings
        self._lock: Final = lock
        self._encoder = Encoder(START, sync_marker)
        self._committed = START
        self._segment: _Segment | None = None
        self._syncs: Final = Syncs(disk, settings.durable)
        self._reserve: Final = Reserve(folder, disk, self._syncs, settings.reserve_bytes)
        self._held = -1  # handle of the segments' folder
        self._spare = -1  # handle of a sealed segment, kept so that the next segment finds a file to open
        self._recovered = False
        self._failed = False
        self._lacking = ""  # what there was no room of, in the system's words
        self._unsynced_schemas: Final[set[str]] = set()  # file names that `keep_schemas` has not synced yet
        self._uncut = False  # the open segment has more than what is committed
        self._new_incarnation: Final = incarnation
        self.incarnation = ""
        self.floor = 0
        self.torn_tails: Final[list[TornTail]] = []
        self.damaged_snapshots: list[JournalDamagedError] = []

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        disk: Disk,
        settings: JournalSettings,
        sync_marker: bytes,
        incarnation: str = "",
    ) -> "Journal":
        """Make the folder if need be, and lock it.

        Args:
            folder: The journal's.
            disk: The disk that holds it.
            settings: How to store.
            sync_marker: 16 random bytes, for the segments made from now on.
            incarnation: 16 random hex digits, for a journal that has none or has to get a new one. Empty keeps the present one.

        Raises:
            JournalError: Another process has it.
            OSError: It cannot be made or read.
        """
        root = os.path.abspath(folder)  # noqa: PTH100 - a string is wanted
        parts = root.split("/")
        for depth in range(2, len(parts) + 1):
            path = "/".join(parts[:depth])
            made = disk.make_folder(path)
            try:  # one that is there may have been made by a process that was killed before it could sync
                disk.fsync_folder("/".join(parts[: depth - 1]) or "/")
            except PermissionError:
                if made:
                    raise
        try:
            lock = disk.lock(f"{root}/lock")
        except BlockingIOError as error:
            holder = disk.read(f"{root}/lock", 0, 20).decode("ascii", "replace").strip()
            raise JournalError(
                f"the journal folder {root} is in use by another process{f' (pid {holder})' if holder.isdigit() else ''}; "
                "stop that one, or give this one a folder of its own"
            ) from error
        if RESTORING in disk.names(root):
            disk.close(lock)
            raise JournalError(
                f"{root} holds a journal that was not restored to its end (file {RESTORING}); "
                "remove the folder and restore the backup again"
            )
        for name in ("segments", "snapshots", "schemas"):
            disk.make_folder(f"{root}/{name}")
        disk.fsync_folder(root)
        return cls(root, disk, settings, sync_marker, lock, incarnation)

    @property
    def head(self) -> int:
        """The last committed revision."""
        return self._committed.revision

    @property
    def accepted_at_us(self) -> int:
        """The time of the last committed record: no later one may be before it."""
        return self._committed.accepted_at_us

    def recover(self) -> Iterator[Record]:
        """Yield what is stored: the newest whole snapshot, then the segments after it. To be exhausted before anything is written.

        A torn tail of the open segment is moved aside and put down in `torn_tails`.

        Raises:
            JournalDamagedError: Something else is not what was written.
            OSError: The disk fails.
        """
        replay = Replay(self._folder, self._disk)
        self.damaged_snapshots = replay.damaged_snapshots
        yield from replay.records()
        self.incarnation = replay.incarnation
        self.floor = replay.floor
        self._committed = replay.position
        if replay.open_end is not None:
            self._continue(replay.open_end)
        self._held = self._disk.hold_folder(self._segments)  # a sync that finds no file to open would end the process
        self._syncs.folder(self._segments)  # a killed process may have made names that it did not sync
        self._encoder = Encoder(self._committed, self._encoder.sync_marker)
        self._reserve.open()
        self._settle_incarnation()
        self._recovered = True

    def encode(self, records: list[Record]) -> Block:
        """Return one block of records that follow those encoded before.

        Raises:
            ValueError: A revision is not the next one, time runs backwards, or there are none.
        """
        return self._encoder.encode(records)

    def write(self, block: Block) -> None:
        """Store a block; when this returns it is durable.

        On a full disk, a block that is `settling` may use up the reserve. Others are refused until the reserve is whole again.

        Raises:
            DiskFullError: Nothing of it is left, and the next `encode` continues after the last block that was written.
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
            ValueError: The block does not follow the last one that was written.
        """
        self._require_usable()
        if block.before is not self._committed:
            raise ValueError("the block does not follow the last one that was written")
        try:
            stored = self._try_append(block)
            if not stored and block.settling and self._reserve.release():
                stored = self._try_append(block)
        except OSError:
            self._failed = True
            raise
        if not stored:
            self._encoder.position = self._committed
            raise DiskFullError(f"{self._folder}: no room for {len(block.data)} bytes: {self._lacking}")

    def has_room(self, size: int) -> bool:
        """Return True if a block of `size` bytes would fit now beside the reserve. A used reserve is restored first.

        Belongs to the thread that writes.

        Raises:
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        self._require_usable()
        try:
            self._reserve.require_room(size, descriptor=self._segment is None and self._spare < 0)
        except OSError as error:
            if not self._syncs.is_shortage(error):
                self._failed = True
                raise
            return False
        return True

    def seal_aged(self, now_us: int) -> None:
        """Seal the open segment if it holds a change and is old enough, though nothing is to be written.

        Belongs to the thread that writes. On a full disk the segment stays as it is, for the next call.

        Args:
            now_us: Microseconds since the epoch.

        Raises:
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        self._require_usable()
        segment = self._segment
        if segment is None or self._committed.revision < segment.first or not self._aged(segment, now_us):
            return
        try:
            self._seal(segment)
        except OSError as error:
            if not self._syncs.is_shortage(error):
                self._failed = True
                raise
            try:
                self._cut_back()
            except OSError:
                self._failed = True
                raise

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store schemas, durably, unless they are there.

        Touches nothing that `write` uses: it may run in another thread meanwhile, and its failure leaves the journal as it was.

        Args:
            texts: Lower-case hex SHA-256 and self-contained text of each.

        Raises:
            DiskFullError: Some may be missing.
            OSError: Some may be missing; the next call stores again what may not be durable.
        """
        self._require_usable()
        folder = f"{self._folder}/schemas"
        there = set(self._disk.names(folder)) - self._unsynced_schemas
        for digest, text in texts:
            name = f"{digest}.avsc"
            path = f"{folder}/{name}"
            if name not in there or self._disk.read(path, 0, len(text) + 1) != text:
                self._unsynced_schemas.add(name)
                write_file(self._disk, path, [text])
        self._disk.fsync_folder(folder)
        self._unsynced_schemas.clear()

    def close(self) -> None:
        """Seal the open segment if it holds a change and there is room, and let go of the folder."""
        try:
            if self._segment is not None and not self._failed and self._committed.revision >= self._segment.first:
                try:
                    self._seal(self._segment)
                except OSError as error:
                    self._failed = True
                    if not self._syncs.is_shortage(error):
                        raise
                    self._cut_back()
        finally:
            self._failed = True
            if self._segment is not None:
                self._disk.close(self._segment.handle)
                self._segment = None
            self._close_spare()
            self._reserve.close()
            if self._held >= 0:
                self._disk.close(self._held)
            self._disk.close(self._lock)

    def _continue(self, found: OpenEnd) -> None:
        """Cut off the torn end of the open segment, and go on writing after it."""
        segment, scanner = found.segment, found.scanner
        if found.end < found.size:
            self._keep_torn(segment.path, found.end, found.size - found.end)
        if scanner is None:
            self._disk.unlink(segment.path)
            self._syncs.folder(self._segments)
            return
        handle = self._disk.open(segment.path)
        begun_us = scanner.start.accepted_at_us if found.end > scanner.first_offset else _NOT_BEGUN
        self._encoder = Encoder(START, scanner.sync_marker)
        self._segment = _Segment(segment.path, handle, segment.first, found.end, begun_us, scanner.outdated)
        if found.end < found.size:
            self._disk.truncate(handle, found.end)
        # a killed process may have written what it did not sync; from now on it counts as committed
        self._syncs.file(handle)
        self._syncs.folder(self._segments)
        if scanner.ended:  # killed between the end mark and the new name
            self._name_sealed(self._segment)

    def _keep_torn(self, path: str, offset: int, length: int) -> None:
        """Copy the torn end of a segment beside it, durably, and list it in `torn_tails`."""
        kept = f"{path}.torn-{offset}"
        try:
            write_file(self._disk, kept, [self._disk.read(path, offset, length)])
            self._syncs.folder(self._segments)
        except DiskFullError:
            kept = ""  # nothing of it was promised: starting matters more
        self.torn_tails.append(TornTail(path, kept, offset, length, self._committed.revision))

    def _settle_incarnation(self) -> None:
        """Set a new incarnation, durably, if the journal has none or has to get another one.

        Raises:
            DiskFullError: There is no room, and the journal must not go on under its old incarnation.
        """
        renew = RENEW in self._disk.names(self._folder)
        segment = self._segment
        if not self._new_incarnation or (self.incarnation and not renew):
            return
        before, self.incarnation = self.incarnation, self._new_incarnation
        try:
            if segment is None:
                self._create(_NOT_BEGUN)
            elif (
                self._committed.revision >= segment.first
            ):  # readers know places in it: its bytes must stay where they are
                self._seal(segment)
                self._create(_NOT_BEGUN)
            else:
                self._rewrite_header(segment)
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise
            self._cut_back()
            self.incarnation = before
            if renew:
                raise DiskFullError(f"{self._folder}: no room for a new segment: {error.strerror}") from error
            return
        except DiskFullError:
            self.incarnation = before
            if renew:
                raise
            return
        if renew:
            self._disk.unlink(f"{self._folder}/{RENEW}")
            self._syncs.folder(self._folder)

    def _rewrite_header(self, segment: _Segment) -> _Segment:
        """Write the header of the open segment again, with incarnation and schema. The segment holds no change yet."""
        data = self._disk.read(segment.path, 0, segment.size)
        scanner = Scanner(segment.path, segment.size, lambda offset, length: data[offset : offset + length])
        start = header(scanner.start, scanner.sync_marker, snapshot=False, incarnation=self.incarnation)
        rest = data[scanner.first_offset :]
        write_file(self._disk, segment.path, [start, rest])
        self._syncs.folder(self._segments)
        self._disk.close(segment.handle)
        handle = self._disk.open(segment.path)
        renewed = _Segment(segment.path, handle, segment.first, len(start) + len(rest), segment.started_at_us)
        self._segment = renewed
        return renewed

    # writing

    def _require_usable(self) -> None:
        if not self._recovered:
            raise JournalError("the journal has not been recovered yet")
        if self._failed:
            raise JournalError("the journal failed or was closed: what is on the disk is known after the next start")

    def _try_append(self, block: Block) -> bool:
        """Store a block, or leave nothing of it and return False when the disk is full."""
        try:
            if not block.settling:
                self._reserve.restore()
            self._append(block)
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise
            self._lacking = error.strerror or ""
            self._cut_back()
            return False
        return True

    def _append(self, block: Block) -> None:
        segment = self._segment
        if segment is not None and self._uncut:
            self._cut(segment)
        if segment is not None and self._committed.revision >= segment.first:
            grown = segment.size + len(block.data) > self._settings.segment_bytes_max
            if grown or segment.outdated or self._aged(segment, block.after.accepted_at_us):
                self._seal(segment)
                segment = None
        elif segment is not None and segment.outdated:
            try:
                segment = self._rewrite_header(segment)
            except DiskFullError as error:
                raise OSError(errno.ENOSPC, str(error)) from error
        if segment is None:
            segment = self._create(block.after.accepted_at_us)
        write_at(self._disk, segment.handle, block.data, segment.size)
        self._syncs.file(segment.handle, data_only=True)
        segment.size += len(block.data)
        if segment.started_at_us == _NOT_BEGUN:
            segment.started_at_us = block.after.accepted_at_us
        self._committed = block.after

    def _aged(self, segment: _Segment, now_us: int) -> bool:
        return now_us - segment.started_at_us >= self._settings.segment_age_s_max * 1_000_000

    def _create(self, now_us: int) -> _Segment:
        """Begin a segment, durable with its header before any block is in it."""
        first = self._committed.revision + 1
        path = segment_path(self._segments, first)
        segment = _Segment(path, self._open_new(path), first, 0, now_us)
        self._segment = segment
        start = header(self._committed, self._encoder.sync_marker, snapshot=False, incarnation=self.incarnation)
        write_at(self._disk, segment.handle, start, 0)
        self._syncs.file(segment.handle)
        self._syncs.folder(self._segments)
        segment.size = len(start)
        return segment

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

    def _seal(self, segment: _Segment) -> None:
        """Finish the open segment; until it has its final name it can be cut back."""
        if self._uncut:
            self._cut(segment)
        end = end_block(self._committed, self._encoder.sync_marker)
        write_at(self._disk, segment.handle, end, segment.size)
        self._syncs.file(segment.handle)
        self._name_sealed(segment)

    def _name_sealed(self, segment: _Segment) -> None:
        self._disk.rename(segment.path, segment_path(self._segments, segment.first, self._committed.revision))
        self._segment = None
        self._syncs.folder(self._segments)  # before anything can fail that does not end the process
        self._close_spare()
        self._spare = segment.handle

    def _cut_back(self) -> None:
        """Leave in the open segment only what is committed."""
        segment = self._segment
        if segment is None:
            return
        # File systems that never write in place need room even to free some: what cannot be taken down now is when there is room.
        try:
            if segment.size:
                self._uncut = True
                self._cut(segment)
            else:
                self._segment = None
                self._disk.close(segment.handle)
                self._disk.unlink(segment.path)  # or else `_create` empties it, as it comes by the same name
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise

    def _cut(self, segment: _Segment) -> None:
        self._disk.truncate(segment.handle, segment.size)
        self._syncs.file(segment.handle)
        self._uncut = False
