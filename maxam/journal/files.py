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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, final

from maxam.errors import DiskFullError, JournalDamagedError, JournalError
from maxam.journal.disk import Disk
from maxam.journal.encoding import START, Block, Encoder, Position
from maxam.journal.folder import lock_folder
from maxam.journal.kept_schemas import KeptSchemas
from maxam.journal.names import RENEW
from maxam.journal.replay import Replay
from maxam.journal.segments import NOT_BEGUN, OpenSegment, SegmentExtent, SegmentFiles, TornTail, follows
from maxam.journal.syncing import Reserve, Syncs
from maxam.records import Named, Record


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Settings of the journal's files.

    Attributes:
        segment_bytes_max: A segment rolls before it grows over this.
        segment_age_s_max: Age of its first record, in seconds, at which the next write or `seal_aged` rolls a segment.
        durable: Sync before a write returns. False is for benchmarks and throw-away use only.
        reserve_bytes: Room kept for acknowledgements on a full disk, 0 for none.
        block_bytes_max: Size from which on a block takes no further operation; 0 for no limit.
        ahead_bytes: Room allocated for the blocks to come, so that a sync is quicker; 0 for none. The open segment then ends in zeros.
    """

    segment_bytes_max: int = 67_108_864
    segment_age_s_max: float = 3600.0
    durable: bool = True
    reserve_bytes: int = 262_144
    block_bytes_max: int = 0
    ahead_bytes: int = 0


class Watcher(Protocol):
    """Learns of each change of the segments."""

    def wrote(self, block: Block, begins: bool) -> None:
        """Take a block that is durable. With `begins` it is the first of its segment."""

    def sealed(self, sync_marker: bytes) -> None:
        """Record that the segment with a sync marker was sealed, although no block follows yet."""


@final
class Journal:
    """The one writer of a journal's folder: `open`, exhaust `recover`, then `encode` and `write` in turn, then `close`.

    A journal that *follows* another one gets the blocks of that one: `adopt`, then `put`, `put_seal` and `sync` instead of `encode`
    and `write`. Its sealed segments equal those of the other one.

    `encode` belongs to the thread that applies records, `write` to the one that waits for the disk. `keep_schemas` may run in a
    third. A block may be encoded while the one before it is written. If that one is refused, the later is void.

    Attributes:
        incarnation: Identifies the journal once `recover` is exhausted. Empty in a journal of an older release that was opened
            without a new one.
        floor: Revision above which `recover` yields all deletes, once it is exhausted.
        torn_tails: Ends that `recover` cut off, to be logged.
        damaged_snapshots: Snapshots that `recover` skipped in favour of older ones, to be logged.
        watcher: Gets what `write` and `seal_aged` did, once it is durable, on their thread. None for none.
    """

    def __init__(
        self, folder: str, disk: Disk, settings: JournalSettings, sync_marker: bytes, lock: int, incarnation: str = ""
    ) -> None:
        """Hold a locked folder; use `open`."""
        self._folder: Final = folder
        self._disk: Final = disk
        self._settings: Final = settings
        self._lock: Final = lock
        self._encoder = Encoder(START, sync_marker)
        self._committed = START
        self._syncs: Final = Syncs(disk, settings.durable)
        self._files: Final = SegmentFiles(
            f"{folder}/segments", disk, self._syncs, settings.ahead_bytes if settings.durable else 0
        )
        self._reserve: Final = Reserve(folder, disk, self._syncs, settings.reserve_bytes)
        self._recovered = False
        self._failed = False
        self._lacking = ""  # what there was no room of, in the system's words
        self._schemas: Final = KeptSchemas(folder, disk)
        self._unsynced = False  # `put` has stored something since the last sync
        self._new_incarnation: Final = incarnation
        self.incarnation = ""
        self.floor = 0
        self.torn_tails: Final[list[TornTail]] = []
        self.damaged_snapshots: list[JournalDamagedError] = []
        self.watcher: Watcher | None = None

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
            JournalError: Another process has it, or a backup was not restored to its end.
            OSError: It cannot be made or read.
        """
        root, lock = lock_folder(folder, disk)
        return cls(root, disk, settings, sync_marker, lock, incarnation)

    @property
    def block_bytes_max(self) -> int:
        """Size from which on a block takes no further operation; 0 for no limit."""
        return self._settings.block_bytes_max

    @property
    def proves(self) -> bool:
        """Whether operations without a record need a block too. Nothing else writes this journal, so they do not."""
        return False

    @property
    def position(self) -> Position:
        """The position after the last block that was written."""
        return self._committed

    @property
    def extent(self) -> SegmentExtent | None:
        """How far the open segment goes, as a copy; None without one."""
        segment = self._files.opened
        return None if segment is None else segment.extent()

    @property
    def settings(self) -> JournalSettings:
        """How it stores."""
        return self._settings

    @property
    def head(self) -> int:
        """The last committed revision."""
        return self._committed.revision

    @property
    def accepted_at_us(self) -> int:
        """The time of the last committed record: no later one may be before it."""
        return self._committed.accepted_at_us

    def recover(self, following: bool = False) -> Iterator[Record]:
        """Yield what is stored, as `recover_blocks` does."""
        for block in self.recover_blocks(following):
            yield from block

    def recover_blocks(
        self, following: bool = False, known: Mapping[bytes, Named] | None = None
    ) -> Iterator[list[Record]]:
        """Yield the blocks of the newest whole snapshot, then those of the segments after it.

        To be exhausted before anything is written. A torn tail of the open segment is moved aside and put down in `torn_tails`.

        Args:
            following: The journal follows another one. Several of its blocks can be torn, and it gets them again. So any damage of
                the open segment counts as a torn tail.
            known: As of `Decoder`.

        Raises:
            JournalDamagedError: Something else is not what was written.
            OSError: The disk fails.
        """
        replay = Replay(self._folder, self._disk, known)
        self.damaged_snapshots = replay.damaged_snapshots
        yield from replay.blocks(following=following)
        self.incarnation = replay.incarnation
        self.floor = replay.floor
        self._committed = replay.position
        found = replay.open_end
        if found is not None:
            torn = self._files.proceed(found, self._committed.revision)
            if torn is not None:
                self.torn_tails.append(torn)
        self._files.hold()
        marker = self._encoder.sync_marker if found is None or found.scanner is None else found.scanner.sync_marker
        self._encoder = Encoder(self._committed, marker)
        self._reserve.open()
        self._renew_incarnation()
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

    # Blocks of another journal, which this one follows. They belong to the thread that writes.

    def adopt(self, incarnation: str) -> None:
        """Take over the incarnation of the journal that this one follows, for the segments that `put` begins.

        It is durable at once, unless the open segment holds a change: a segment without one keeps it.

        Raises:
            DiskFullError: There is no room for a header with it. The same call can be tried again.
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        self._require_usable()
        if incarnation == self.incarnation:
            return
        segment = self._files.opened
        if segment is None or self._committed.revision < segment.first:
            try:
                self._files.set_incarnation(self._committed, self._encoder.sync_marker, incarnation)
            except DiskFullError:
                raise
            except OSError:
                self._failed = True
                raise
        self.incarnation = incarnation

    def put(self, block: Block, sync_marker: bytes, begins: bool) -> None:
        """Store a block of the journal that this one follows, byte for byte. It is durable after the next `sync`.

        Args:
            block: It follows the last one.
            sync_marker: Of the segment that holds it.
            begins: That segment begins with it.

        Raises:
            DiskFullError: Nothing of it is left. The same call can be tried again.
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
            ValueError: The block does not follow the last one, or belongs to another segment.
        """
        self._require_usable()
        if not follows(block.before, self._committed, begins):
            raise ValueError("the block does not follow the last one that was written")
        try:
            self._reserve.restore()
            self._put(block, sync_marker, begins)
        except OSError as error:
            self._undo(error)
            raise DiskFullError(f"{self._folder}: no room for {len(block.data)} bytes: {error.strerror}") from error

    def put_seal(self) -> None:
        """Seal the open segment if it holds a change, as the journal that this one follows did. On a full disk, try again later.

        Raises:
            DiskFullError: There is no room; the segment is as it was.
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        if self._seal_if_room() is not None:
            if self._files.opened is not None:
                raise DiskFullError(f"{self._folder}: no room to seal a segment")
            self._unsynced = False

    def sync(self) -> None:
        """Make durable what `put` stored.

        Raises:
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        self._require_usable()
        if self._unsynced:
            try:
                self._files.sync()
            except OSError:
                self._failed = True
                raise
            self._unsynced = False

    def has_room(self, size: int) -> bool:
        """Return True if a block of `size` bytes would fit now beside the reserve. A used reserve is restored first.

        Belongs to the thread that writes.

        Raises:
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        self._require_usable()
        try:
            self._reserve.require_room(size, descriptor=self._files.lacks_descriptor)
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
        segment = self._files.opened
        if segment is None or segment.aged(now_us, self._settings.segment_age_s_max):
            self.seal()

    def seal(self) -> None:
        """Seal the open segment if it holds a change. On a full disk it stays as it is. Belongs to the thread that writes.

        Raises:
            OSError: The outcome is unknown; the process must end.
            JournalError: An earlier call failed so.
        """
        segment = self._seal_if_room()
        if segment is not None and self.watcher is not None and self._files.opened is None:
            self.watcher.sealed(segment.sync_marker)

    def schema_names(self) -> list[str]:
        """Return the file names of the schemas that are stored."""
        return self._schemas.names()

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
        self._schemas.keep(texts)

    def close(self, seal: bool = True) -> None:
        """Let go of the folder; with `seal`, seal the open segment before if it holds a change and there is room."""
        try:
            if self._recovered and not self._failed:
                self.sync()
                if seal:
                    self.seal()
        finally:
            self._failed = True
            self._files.close()
            self._reserve.close()
            self._disk.close(self._lock)

    def _renew_incarnation(self) -> None:
        """Set a new incarnation, durably, if the journal has none or has to get another one.

        Raises:
            DiskFullError: There is no room, and the journal must not go on under its old incarnation.
        """
        renew = RENEW in self._disk.names(self._folder)
        if not self._new_incarnation or (self.incarnation and not renew):
            return
        try:
            self._files.set_incarnation(self._committed, self._encoder.sync_marker, self._new_incarnation)
        except DiskFullError:
            if renew:
                raise
            return
        self.incarnation = self._new_incarnation
        if renew:
            self._disk.unlink(f"{self._folder}/{RENEW}")
            self._syncs.folder(self._folder)

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
            self._files.cut_back()
            return False
        return True

    def _append(self, block: Block) -> None:
        files = self._files
        segment = files.opened
        if segment is not None and files.uncut:
            files.cut(segment)
        settings = self._settings
        at_us = block.after.accepted_at_us
        if segment is not None:
            if segment.rolls(
                self._committed, len(block.data), at_us, settings.segment_bytes_max, settings.segment_age_s_max
            ):
                files.seal(segment, self._committed)
                segment = None
            elif segment.outdated:
                try:
                    segment = files.rewrite_header(segment, self.incarnation)
                except DiskFullError as error:
                    raise OSError(errno.ENOSPC, str(error)) from error
        if segment is None:
            segment = files.begin(self._committed, self._encoder.sync_marker, self.incarnation, NOT_BEGUN)
        begins = segment.started_at_us == NOT_BEGUN
        files.grow(segment, block.data, at_us, sync=True)
        self._committed = block.after
        if self.watcher is not None:
            self.watcher.wrote(block, begins)

    def _put(self, block: Block, sync_marker: bytes, begins: bool) -> None:
        files = self._files
        segment = files.opened
        if segment is not None and files.uncut:
            files.cut(segment)
        if segment is not None and begins:
            if self._committed.revision >= segment.first:
                files.seal(segment, self._committed)
                segment = None
            elif segment.started_at_us == NOT_BEGUN:
                # its first block never came, and the one that comes may have another marker
                segment = files.rewrite_header(segment, self.incarnation, block.before, sync_marker)
                self._encoder = Encoder(block.before, sync_marker)
            else:
                raise ValueError("a segment begins, but the open one holds no change")
        if segment is None:
            if not begins:
                raise ValueError("the block belongs to a segment whose beginning is missing")
            self._encoder = Encoder(block.before, sync_marker)
            segment = files.begin(block.before, sync_marker, self.incarnation, NOT_BEGUN)
        elif sync_marker != segment.sync_marker:
            raise ValueError("the block belongs to another segment")
        files.grow(segment, block.data, block.after.accepted_at_us, sync=False)
        self._unsynced = True
        self._committed = self._encoder.position = block.after

    def _seal_if_room(self) -> OpenSegment | None:
        """Return the open segment if it holds a change, and seal it. On a full disk it stays as it is."""
        self._require_usable()
        segment = self._files.opened
        if segment is None or self._committed.revision < segment.first:
            return None
        try:
            self._files.seal(segment, self._committed)
        except OSError as error:
            self._undo(error)
        return segment

    def _undo(self, error: OSError) -> None:
        """Remove what a call left that failed because the disk is full. After any other error the journal is used no longer."""
        try:
            if not self._syncs.is_shortage(error):
                raise error
            self._files.cut_back()
        except OSError:
            self._failed = True
            raise
