"""The journal's folder: segments, snapshots, schemas, the lock and the reserve.

Invariants:

* What `write` returned for is found by the next `recover`, whatever happens between, as long as the disk keeps what it synced.
* What `write` refused with DiskFullError is never found.
* After any other failed write or sync the outcome is unknown: the journal refuses all further use, the process has to end,
  and the next `recover` reads what is there.
* Only one block is ever unsynced, at the end of the open segment: whatever else is damaged was damaged at rest.

```
lock                                   held by the process that writes
reserve                                room for acknowledgements on a full disk
segments/<first>-<last>.avro           sealed: final, ends with an end mark
segments/<first>.open.avro             being written; made by the first write after a roll or a start
segments/<...>.open.avro.torn-<offset> a torn tail, cut by `recover`
snapshots/<revision>.avro              stands for all segments up to that revision, which one of them ends with
schemas/<sha256>.avsc                  self-contained texts
rejected/...                           rejected SENDs, with a counter of their own (see `rejects`)
index/<first>-<last>.index             what a sealed segment holds, for readers in a hurry (see `index`); never needed
damaged/<when>/...                     what a repair took away, and its report (see `repair`)
restoring                              a backup is being copied here: no journal yet (see `backup`)
```
"""

import errno
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import DiskFullError, JournalDamagedError, JournalError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import Disk, is_full
from maxam.journal.encoding import START, Block, Encoder, Position, end_block, header
from maxam.journal.scan import HEADER_BYTES, Scanner
from maxam.records import Change, Record

_OPEN: Final = ".open.avro"
_SEGMENT: Final = re.compile(r"([0-9]{20})(?:-([0-9]{20})|\.open)\.avro")
_SEALED: Final = ".avro"
_TEMPORARY: Final = ".tmp"
RESTORING: Final = "restoring"  # a file that is there while a backup is copied into a folder
OTHER_NAME: Final = "its header and its name tell different things"
SNAPSHOTS_KEPT: Final = 2  # the older one is used when the newer one is damaged
_SNAPSHOT_BLOCK_RECORDS: Final = 1000
_SNAPSHOT_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How the journal stores.

    Attributes:
        segment_bytes_max: A segment rolls before it grows over this.
        segment_age_s_max: And so long after its first record, by the first write or `seal_aged`.
        durable: Sync before a write returns. False is for benchmarks and throw-away use only.
        reserve_bytes: Room kept for acknowledgements on a full disk, 0 for none.
    """

    segment_bytes_max: int = 67_108_864
    segment_age_s_max: float = 3600.0
    durable: bool = True
    reserve_bytes: int = 262_144


@dataclass(frozen=True, slots=True)
class TornTail:
    """What a crash left of an uncommitted write, cut off when the journal was recovered.

    Attributes:
        path: The segment.
        kept: Where the bytes were moved; empty when the disk had no room for them.
        offset: Where they began.
        length: How many there were.
        revision: The last that was kept; the bytes were of revisions above it, for which no RECEIPT was written.
    """

    path: str
    kept: str
    offset: int
    length: int
    revision: int


@dataclass(frozen=True, slots=True, order=True)
class SealedSegment:
    """A finished segment: it never changes, and any Avro reader takes it whole."""

    first: int
    last: int
    path: str


def sealed_segments(folder: str | os.PathLike[str], disk: Disk) -> list[SealedSegment]:
    """Return the sealed segments in order of revision."""
    return list_segments(f"{os.fspath(folder)}/segments", disk)[0]


def write_snapshot(
    folder: str | os.PathLike[str],
    disk: Disk,
    revision: int,
    records: Iterable[Record],
    sync_marker: bytes,
    accepted_at_us: int = 0,
) -> str:
    """Store all that is needed to start without the segments up to a revision, and drop all but the two newest snapshots.

    The older of the two must be whole for that.

    Args:
        folder: The journal's.
        disk: Where it is.
        revision: The last one of a sealed segment.
        records: Changes with rising revisions, then session records.
        sync_marker: 16 random bytes.
        accepted_at_us: Of the last record of all that it stands for, which need not be among `records`.

    Returns:
        The path of the snapshot.

    Raises:
        DiskFullError: Nothing of it is left.
        JournalError: No sealed segment ends at this revision.
        ValueError: Revisions do not rise, or not up to `revision` at most.
    """
    root = os.fspath(folder)
    snapshots = f"{root}/snapshots"
    sealed = sealed_segments(root, disk)
    if sealed and all(segment.last != revision for segment in sealed):
        raise JournalError(
            f"no sealed segment of {root} ends at revision {revision}: a snapshot there could not be used"
        )
    for name in disk.names(snapshots):
        if name.endswith(_TEMPORARY):
            disk.unlink(f"{snapshots}/{name}")
    # The gateway gives a segment its name, then syncs that: a snapshot that outlives the name would have no segment end where it does.
    disk.fsync_folder(f"{root}/segments")
    path = put_snapshot(root, disk, Position(revision, accepted_at_us, 0), records, sync_marker)
    found = list_snapshots(snapshots, disk)
    olds, (kept, kept_path) = found[:-SNAPSHOTS_KEPT], found[-SNAPSHOTS_KEPT:][0]
    # One that is damaged by now makes up for nothing: what this one was made of stays, in case that this one is damaged later.
    if olds and whole_snapshot(kept_path, kept, disk) is None:
        for _, old in olds:
            disk.unlink(old)
    return path


def put_snapshot(root: str, disk: Disk, end: Position, records: Iterable[Record], sync_marker: bytes) -> str:
    """Store a snapshot as `write_snapshot` does, wherever segments end, and drop none; return its path."""
    path = f"{root}/snapshots/{end.revision:020}{_SEALED}"
    encoder = Encoder(START, sync_marker, gapless=False)
    write_file(disk, path, _snapshot_parts(end, records, encoder))
    disk.fsync_folder(f"{root}/snapshots")
    return path


def whole_snapshot(path: str, revision: int, disk: Disk) -> JournalDamagedError | None:
    """Read a snapshot block by block; return what is wrong with it."""
    try:
        scanner = open_scanner(path, disk)
        require_snapshot(scanner, revision)
        while scanner.next_block() is not None:
            pass
        require_end(scanner)
    except JournalDamagedError as error:
        return error
    return None


@final
class _Segment:
    """The open segment. `size` is what of it is committed, 0 while even its header is not."""

    __slots__ = ("first", "handle", "path", "size", "started_at_us")

    def __init__(self, path: str, handle: int, first: int, size: int, started_at_us: int) -> None:
        self.path: Final = path
        self.handle: Final = handle
        self.first: Final = first
        self.size = size
        self.started_at_us: Final = started_at_us


@final
class Journal:
    """The one writer of a journal's folder: `open`, exhaust `recover`, then `encode` and `write` in turn, then `close`.

    `encode` belongs to the thread that applies records, `write` and `keep_schemas` to the one that waits for the disk. A block may be
    encoded while the one before it is written; when that one is refused, the later is void.

    Attributes:
        torn_tails: What `recover` cut off, to be logged.
        damaged_snapshots: What `recover` passed over in favour of older ones, to be logged.
    """

    def __init__(self, folder: str, disk: Disk, settings: JournalSettings, sync_marker: bytes, lock: int) -> None:
        """Hold a locked folder; use `open`."""
        self._folder: Final = folder
        self._segments: Final = f"{folder}/segments"
        self._disk: Final = disk
        self._settings: Final = settings
        self._lock: Final = lock
        self._encoder = Encoder(START, sync_marker)
        self._committed = START
        self._segment: _Segment | None = None
        self._reserve = -1  # handle
        self._reserved = settings.reserve_bytes == 0
        self._needed = 0  # revision of a damaged snapshot: the head must not be below it
        self._recovered = False
        self._failed = False
        self._syncing = False  # stays True when a sync fails
        self._lacking = ""  # what there was no room of, in the system's words
        self._uncut = False  # the open segment has more than what is committed
        self.torn_tails: Final[list[TornTail]] = []
        self.damaged_snapshots: Final[list[JournalDamagedError]] = []

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], disk: Disk, settings: JournalSettings, sync_marker: bytes
    ) -> "Journal":
        """Make the folder if need be, and lock it.

        Args:
            folder: Where everything is.
            disk: What to reach it by.
            settings: How to store.
            sync_marker: 16 random bytes, for the segments made from now on.

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
        return cls(root, disk, settings, sync_marker, lock)

    @classmethod
    def read_sealed(
        cls, folder: str | os.PathLike[str], disk: Disk, began: Callable[[SealedSegment], None] | None = None
    ) -> Iterator[Record]:
        """Yield the newest whole snapshot, then the sealed segments after it: what the next snapshot is made of.

        Takes no lock and changes nothing; another process may write meanwhile.

        Args:
            folder: The journal's.
            disk: Where it is.
            began: Told of each segment before its first record, when the one before has been read to its end and found whole.

        Raises:
            JournalDamagedError: Something is not what was written.
        """
        root = os.path.abspath(folder)  # noqa: PTH100 - a string is wanted
        reader = cls(root, disk, JournalSettings(), b"", -1)
        yield from reader._replay(Decoder(0, 0), sealed_only=True, began=began)

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
        decoder = Decoder(0, 0)
        chain = yield from self._replay(decoder, sealed_only=False)
        self._sync_folder(self._segments)  # a killed process may have given names that it did not sync
        self._committed = Position(decoder.revision, decoder.accepted_at_us, chain)
        self._encoder = Encoder(self._committed, self._encoder.sync_marker)
        self._open_reserve()
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
            DiskFullError: Nothing of it is left, and the next `encode` continues behind the last block that was written.
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
            ValueError: The block does not follow the last one that was written.
        """
        self._require_usable()
        if block.before is not self._committed:
            raise ValueError("the block does not follow the last one that was written")
        try:
            stored = self._try_append(block)
            if not stored and block.settling and self._release_reserve():
                stored = self._try_append(block)
        except OSError:
            self._failed = True
            raise
        if not stored:
            self._encoder.position = self._committed
            raise DiskFullError(f"{self._folder}: no room for {len(block.data)} bytes: {self._lacking}")

    def has_room(self, size: int) -> bool:
        """Say whether a block of so many bytes would fit now, with the reserve beside it, which is restored if it was used up.

        Belongs to the thread that writes.

        Raises:
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        self._require_usable()
        reserve_bytes = self._settings.reserve_bytes
        try:
            self._restore_reserve()
            if self._reserve < 0:
                self._reserve = self._disk.create(f"{self._folder}/reserve")
            try:
                self._disk.allocate(self._reserve, reserve_bytes + size)
            finally:
                self._disk.truncate(self._reserve, reserve_bytes)
        except OSError as error:
            if self._syncing or not is_full(error):
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
            if self._syncing or not is_full(error):
                self._failed = True
                raise
            try:
                self._cut_back()
            except OSError:
                self._failed = True
                raise

    def keep_schemas(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store schemas, durably, unless they are there.

        Args:
            texts: Lower-case hex SHA-256 and self-contained text of each.

        Raises:
            DiskFullError: Some may be missing.
            OSError: The process must end.
        """
        self._require_usable()
        folder = f"{self._folder}/schemas"
        there = set(self._disk.names(folder))
        try:
            for digest, text in texts:
                path = f"{folder}/{digest}.avsc"
                if f"{digest}.avsc" not in there or self._disk.read(path, 0, len(text) + 1) != text:
                    write_file(self._disk, path, [text])
            self._disk.fsync_folder(folder)
        except OSError:
            self._failed = True
            raise

    def close(self) -> None:
        """Seal the open segment if it holds a change and there is room, and let go of the folder."""
        try:
            if self._segment is not None and not self._failed and self._committed.revision >= self._segment.first:
                try:
                    self._seal(self._segment)
                except OSError as error:
                    self._failed = True
                    if self._syncing or not is_full(error):
                        raise
                    self._cut_back()
        finally:
            self._failed = True
            if self._segment is not None:
                self._disk.close(self._segment.handle)
                self._segment = None
            if self._reserve >= 0:
                self._disk.close(self._reserve)
            self._disk.close(self._lock)

    # recovery

    def _replay(
        self, decoder: Decoder, sealed_only: bool, began: Callable[[SealedSegment], None] | None = None
    ) -> Generator[Record, None, int]:
        """Yield what is stored; return the chain at its end."""
        base, path = self._choose_snapshot()
        if path:
            yield from self._recover_snapshot(path, base, decoder)
        sealed, opened = list_segments(self._segments, self._disk)
        if sealed_only:
            opened = []
        if len(opened) > 1:
            raise self._damaged(JournalDamagedError(opened[0].path, 0, "two open segments"), self._stake(decoder))
        chain = 0
        for segment in [*sealed, *opened]:
            if segment.last <= base and segment not in opened:
                continue  # archive
            if segment.first != decoder.revision + 1:
                if self.damaged_snapshots:
                    raise self.damaged_snapshots[0]
                problem = f"it should begin with revision {decoder.revision + 1}: a segment or snapshot is missing"
                raise self._damaged(JournalDamagedError(segment.path, 0, problem), self._stake(decoder))
            if segment in opened:
                chain = yield from self._recover_open(segment, decoder, chain)
                continue
            scanner = self._begin(segment, decoder, chain)
            if began is not None:
                began(segment)
            yield from self._walk(scanner, decoder, self._stake(decoder))
            if decoder.revision != segment.last:
                problem = f"it ends with revision {decoder.revision}"
                raise self._damaged(JournalDamagedError(segment.path, scanner.size, problem), self._stake(decoder))
            chain = scanner.chain
        if decoder.revision < self._needed:
            raise self.damaged_snapshots[0]
        if sealed and sealed[-1].last < base == decoder.revision and not opened:
            problem = f"it is above the last segment's end {sealed[-1].last}"
            raise self._damaged(JournalDamagedError(path, 0, problem), self._stake(decoder))
        return chain

    def _choose_snapshot(self) -> tuple[int, str]:
        """Return the newest whole snapshot, or 0 and "" when there is none."""
        for revision, path in reversed(list_snapshots(f"{self._folder}/snapshots", self._disk)):
            error = whole_snapshot(path, revision, self._disk)
            if error is None:
                return revision, path
            self.damaged_snapshots.append(self._damaged(error, f"all values up to revision {revision}"))
            self._needed = max(self._needed, revision)
        return 0, ""

    def _recover_snapshot(self, path: str, revision: int, decoder: Decoder) -> Iterator[Record]:
        scanner = self._scanner(path)
        decoder.gapless = False
        yield from self._walk(scanner, decoder, "the values of all topics")
        if max(decoder.revision, decoder.mentioned) > revision:
            problem = f"it holds revision {max(decoder.revision, decoder.mentioned)}, which is above its own"
            raise self._damaged(JournalDamagedError(path, scanner.size, problem), "the values of all topics")
        decoder.gapless = True
        decoder.revision = revision
        decoder.accepted_at_us = max(decoder.accepted_at_us, scanner.start.accepted_at_us)

    def _recover_open(self, segment: SealedSegment, decoder: Decoder, chain: int) -> Generator[Record, None, int]:
        """Yield what is whole of the open segment, cut off what is torn, and go on in it; return its chain."""
        stake = self._stake(decoder)
        size = self._disk.size(segment.path)
        try:
            scanner = self._begin(segment, decoder, chain)
        except JournalDamagedError:
            if size > HEADER_BYTES:  # the header was synced before any block
                raise
            self._cut_torn(segment.path, 0, size, decoder.revision)
            self._disk.unlink(segment.path)
            self._sync_folder(self._segments)
            return chain
        try:
            yield from self._walk(scanner, decoder, stake, sealed=False)
        except JournalDamagedError:
            if not scanner.torn():
                raise
            size = scanner.offset
            self._cut_torn(segment.path, size, scanner.size - size, decoder.revision)
        handle = self._disk.open(segment.path)
        self._encoder = Encoder(START, scanner.sync_marker)
        self._segment = _Segment(segment.path, handle, segment.first, size, scanner.start.accepted_at_us)
        self._committed = Position(decoder.revision, decoder.accepted_at_us, scanner.chain)
        if size < scanner.size:
            self._disk.truncate(handle, size)
        # a killed process may have written what it did not sync; from now on it counts as committed
        self._sync(handle)
        self._sync_folder(self._segments)
        if scanner.ended:  # killed between the end mark and the new name
            self._name_sealed(self._segment)
        return scanner.chain

    def _cut_torn(self, path: str, offset: int, length: int, revision: int) -> None:
        """Copy the torn tail of a segment beside it, durably, and take it down."""
        kept = f"{path}.torn-{offset}"
        try:
            write_file(self._disk, kept, [self._disk.read(path, offset, length)])
            self._sync_folder(self._segments)
        except DiskFullError:
            kept = ""  # nothing of it was promised: starting matters more
        self.torn_tails.append(TornTail(path, kept, offset, length, revision))

    def _begin(self, segment: SealedSegment, decoder: Decoder, chain: int) -> Scanner:
        """Open the next segment and see that it continues the one before."""
        scanner = self._scanner(segment.path)
        if scanner.snapshot or scanner.start.revision != segment.first - 1:
            raise self._damaged(JournalDamagedError(segment.path, 0, OTHER_NAME), self._stake(decoder))
        if chain and scanner.start.chain not in {0, chain}:  # 0: begun when only a snapshot was there to follow
            problem = "it does not follow the segment before it"
            raise self._damaged(JournalDamagedError(segment.path, 0, problem), self._stake(decoder))
        decoder.accepted_at_us = max(decoder.accepted_at_us, scanner.start.accepted_at_us)
        return scanner

    def _walk(self, scanner: Scanner, decoder: Decoder, stake: str, sealed: bool = True) -> Iterator[Record]:
        try:
            for records in read_blocks(scanner, decoder):
                yield from records
            if sealed:
                require_end(scanner)
        except JournalDamagedError as error:
            raise self._damaged(error, stake) from error

    def _scanner(self, path: str) -> Scanner:
        try:
            return open_scanner(path, self._disk)
        except JournalDamagedError as error:
            raise self._damaged(error, "every record in it") from error

    def _stake(self, decoder: Decoder) -> str:
        return f"all changes from revision {decoder.revision + 1} on"

    def _damaged(self, error: JournalDamagedError, stake: str) -> JournalDamagedError:
        """Add to a finding what an operator needs to decide."""
        problem = str(error).removeprefix(f"{error.path}: byte {error.offset}: ")
        remedy = (
            f"at stake: {stake}; `maxam-admin journal repair {self._folder}` shows what would be lost, topic by topic, and changes "
            "nothing without --apply; or start from a backup (`maxam-admin journal restore`)"
        )
        return JournalDamagedError(error.path, error.offset, f"{problem}; {remedy}")

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
                self._restore_reserve()
            self._append(block)
        except OSError as error:
            if self._syncing or not is_full(error):
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
            if grown or self._aged(segment, block.after.accepted_at_us):
                self._seal(segment)
                segment = None
        if segment is None:
            segment = self._create(block.after.accepted_at_us)
        write_at(self._disk, segment.handle, block.data, segment.size)
        self._sync(segment.handle, data_only=True)
        segment.size += len(block.data)
        self._committed = block.after

    def _aged(self, segment: _Segment, now_us: int) -> bool:
        return now_us - segment.started_at_us >= self._settings.segment_age_s_max * 1_000_000

    def _create(self, now_us: int) -> _Segment:
        """Begin a segment, durable with its header before any block is in it."""
        first = self._committed.revision + 1
        path = f"{self._segments}/{first:020}{_OPEN}"
        segment = _Segment(path, self._disk.create(path), first, 0, now_us)
        self._segment = segment
        start = header(self._committed, self._encoder.sync_marker, snapshot=False)
        write_at(self._disk, segment.handle, start, 0)
        self._sync(segment.handle)
        self._sync_folder(self._segments)
        segment.size = len(start)
        return segment

    def _seal(self, segment: _Segment) -> None:
        """Finish the open segment; until it has its final name it can be cut back."""
        if self._uncut:
            self._cut(segment)
        end = end_block(self._committed, self._encoder.sync_marker)
        write_at(self._disk, segment.handle, end, segment.size)
        self._sync(segment.handle)
        self._name_sealed(segment)

    def _name_sealed(self, segment: _Segment) -> None:
        self._disk.rename(segment.path, f"{self._segments}/{segment.first:020}-{self._committed.revision:020}{_SEALED}")
        self._segment = None
        self._sync_folder(self._segments)  # before anything can fail that does not end the process
        self._disk.close(segment.handle)

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
            if self._syncing or not is_full(error):
                raise

    def _cut(self, segment: _Segment) -> None:
        self._disk.truncate(segment.handle, segment.size)
        self._sync(segment.handle)
        self._uncut = False

    def _sync(self, handle: int, data_only: bool = False) -> None:
        if self._settings.durable:
            self._syncing = True
            if data_only:
                self._disk.fdatasync(handle)
            else:
                self._disk.fsync(handle)
            self._syncing = False

    def _sync_folder(self, path: str) -> None:
        if self._settings.durable:
            self._syncing = True
            self._disk.fsync_folder(path)
            self._syncing = False

    # the reserve

    def _open_reserve(self) -> None:
        path = f"{self._folder}/reserve"
        try:
            if "reserve" in self._disk.names(self._folder):
                self._reserve = self._disk.open(path)
                self._reserved = self._disk.size(path) >= self._settings.reserve_bytes
            self._restore_reserve()
        except OSError as error:
            if self._syncing or not is_full(error):
                raise

    def _restore_reserve(self) -> None:
        if self._reserved:
            return
        if self._reserve < 0:
            self._reserve = self._disk.create(f"{self._folder}/reserve")
        try:
            self._disk.allocate(self._reserve, self._settings.reserve_bytes)
        except OSError:
            self._disk.truncate(self._reserve, 0)
            raise
        self._sync(self._reserve)
        self._reserved = True

    def _release_reserve(self) -> bool:
        """Give the reserve's room to the open segment; return False when it was given before."""
        if not self._reserved:
            return False
        try:
            self._disk.truncate(self._reserve, 0)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        self._reserved = False
        self._sync(self._reserve)
        return True


def open_scanner(path: str, disk: Disk) -> Scanner:
    """Return a scanner of a file of the journal.

    Raises:
        JournalDamagedError: Its header is not whole.
    """
    return Scanner(path, disk.size(path), lambda offset, length: disk.read(path, offset, length))


def read_blocks(scanner: Scanner, decoder: Decoder) -> Iterator[list[Record]]:
    """Yield the records of each block, none of which may speak of a revision that is not there.

    Raises:
        JournalDamagedError: A block is not what was written, or does not follow.
    """
    while True:
        offset = scanner.offset
        records = scanner.records(decoder)
        if records is None:
            return
        if decoder.gapless and decoder.mentioned > decoder.revision:
            problem = f"a session knows revision {decoder.mentioned}, which is above the last change {decoder.revision}"
            scanner.offset = offset
            raise JournalDamagedError(scanner.path, offset, problem)
        yield records


def require_end(scanner: Scanner) -> None:
    """Raise JournalDamagedError unless the mark of a finished file was read."""
    if not scanner.ended:
        raise JournalDamagedError(scanner.path, scanner.size, "it is cut short: the mark of a finished file is missing")


def require_snapshot(scanner: Scanner, revision: int) -> None:
    """Raise JournalDamagedError unless the file is a snapshot of this revision."""
    if not scanner.snapshot or scanner.start.revision != revision:
        raise JournalDamagedError(scanner.path, 0, OTHER_NAME)


def list_segments(folder: str, disk: Disk) -> tuple[list[SealedSegment], list[SealedSegment]]:
    """Return the sealed segments of a folder and the open ones (of which there should be one at most, with 0 as last), each in order."""
    sealed: list[SealedSegment] = []
    opened: list[SealedSegment] = []
    for name in disk.names(folder):
        segment = parse_segment_name(folder, name)
        if segment is not None:
            (sealed if segment.last else opened).append(segment)
    return sorted(sealed), sorted(opened)


def parse_segment_name(folder: str, name: str) -> SealedSegment | None:
    """Return the segment of a name that the gateway gives, 0 as last for an open one; None for any other file."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else SealedSegment(int(found[1]), int(found[2] or 0), f"{folder}/{name}")


def parse_snapshot_name(name: str) -> int | None:
    """Return the last revision that a snapshot of this name stands for; None for any other file."""
    stem = name.removesuffix(_SEALED)
    return int(stem) if stem != name and stem.isascii() and stem.isdecimal() else None


def list_snapshots(folder: str, disk: Disk) -> list[tuple[int, str]]:
    """Return revision and path of the snapshots, oldest first."""
    found = [(parse_snapshot_name(name), f"{folder}/{name}") for name in disk.names(folder)]
    return sorted((revision, path) for revision, path in found if revision is not None)


def _snapshot_parts(end: Position, records: Iterable[Record], encoder: Encoder) -> Iterator[bytes]:
    """Yield the bytes of a snapshot, a block at a time."""
    yield header(end, encoder.sync_marker, snapshot=True)
    batch: list[Record] = []
    length = 0
    for record in records:
        batch.append(record)
        if isinstance(record, Change):
            length += len(record.content)
        if len(batch) == _SNAPSHOT_BLOCK_RECORDS or length >= _SNAPSHOT_BLOCK_BYTES:
            yield encoder.encode(batch).data
            batch = []
            length = 0
    if batch:
        yield encoder.encode(batch).data
    if encoder.position.revision > end.revision:
        raise ValueError(f"revision {encoder.position.revision} in a snapshot of {end.revision}")
    yield end_block(encoder.position, encoder.sync_marker)


def write_file(disk: Disk, path: str, parts: Iterable[bytes]) -> None:
    """Write a file that appears whole and synced under its name, or not at all. The name is for the caller to sync.

    Raises:
        DiskFullError: Nothing of it is left.
    """
    temporary = path + _TEMPORARY
    try:
        handle = disk.create(temporary)
        try:
            offset = 0
            for part in parts:
                write_at(disk, handle, part, offset)
                offset += len(part)
            disk.fsync(handle)
        finally:
            disk.close(handle)
        disk.rename(temporary, path)
    except OSError as error:
        if not is_full(error):
            raise
        if temporary.rpartition("/")[2] in disk.names(path.rpartition("/")[0]):
            disk.unlink(temporary)
        raise DiskFullError(f"{path}: no room") from error


def write_at(disk: Disk, handle: int, data: bytes, offset: int) -> None:
    """Write all of the bytes, in as many calls as the disk wants.

    Raises:
        OSError: Some of them may be written.
    """
    written = disk.pwrite(handle, data, offset)
    while written < len(data):
        more = disk.pwrite(handle, data[written:], offset + written)
        if not more:
            raise OSError(errno.EIO, "a write made no progress")
        written += more
