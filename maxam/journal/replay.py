"""Read back what a journal stores: the newest whole snapshot, then the segments after it, each block proven."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import Disk
from maxam.journal.encoding import Position
from maxam.journal.names import Segment, list_segments, list_snapshots
from maxam.journal.scan import END_TAIL_BYTES, HEADER_BYTES, OTHER_VERSION, Scanner, end_position
from maxam.journal.whole import OTHER_NAME, open_scanner, read_blocks, require_end, whole_snapshot
from maxam.records import Named, Record


@dataclass(frozen=True, slots=True)
class OpenEnd:
    """The open segment as it was read: its bytes from `end` to `size` are the remains of one write.

    Attributes:
        segment: The file.
        scanner: At its end; None if not even the header is whole.
        end: Place after the last whole block.
        size: Bytes of the file.
    """

    segment: Segment
    scanner: Scanner | None
    end: int
    size: int


@final
class Replay:
    """Reads a journal's folder once. It changes nothing.

    Attributes:
        incarnation: As the newest file that was read has it. Empty for none.
        floor: Revision above which all deletes are among the records, unless the topic has a newer change.
        damaged_snapshots: Snapshots that were skipped in favour of older ones.
        open_end: The open segment, once it was read. None if there is none.
    """

    def __init__(self, folder: str, disk: Disk, known: Mapping[bytes, Named] | None = None) -> None:
        """Prepare to read the journal of a folder. `known` is as of `Decoder`."""
        self._folder: Final = folder
        self._disk: Final = disk
        self._decoder: Final = Decoder(0, 0, known)
        self._chain = 0
        self._needed = 0  # revision of a damaged snapshot: the head must not be below it
        self.incarnation = ""
        self.floor = 0
        self.damaged_snapshots: Final[list[JournalDamagedError]] = []
        self.open_end: OpenEnd | None = None

    @property
    def position(self) -> Position:
        """The position after all that was read."""
        return Position(self._decoder.revision, self._decoder.accepted_at_us, self._chain)

    def records(
        self,
        sealed_only: bool = False,
        up_to: int | None = None,
        following: bool = False,
    ) -> Iterator[Record]:
        """Yield what is stored, as `blocks` does."""
        for block in self.blocks(sealed_only, up_to, following):
            yield from block

    def blocks(
        self, sealed_only: bool = False, up_to: int | None = None, following: bool = False
    ) -> Iterator[list[Record]]:
        """Yield the records of each block that is stored.

        Args:
            sealed_only: Leave out the open segment.
            up_to: Revision at which a sealed segment ends. Nothing above it is read. None reads all.
            following: Several blocks of the open segment may be the remains of writes: any damage ends it.

        Raises:
            JournalDamagedError: Something is not what was written, and not the remains of the last write.
        """
        decoder = self._decoder
        base, path = self._choose_snapshot(up_to)
        if path:
            yield from self._snapshot(path, base)
        sealed, opened = list_segments(f"{self._folder}/segments", self._disk)
        if sealed_only:
            opened = []
        if up_to is not None:
            sealed = [segment for segment in sealed if segment.last <= up_to]
        if len(opened) > 1:
            raise self._damaged(JournalDamagedError(opened[0].path, 0, "two open segments"), self._stake())
        for segment in [*sealed, *opened]:
            if segment.last <= base and not segment.open:
                continue  # archive
            if segment.first != decoder.revision + 1:
                if self.damaged_snapshots:
                    raise self.damaged_snapshots[0]
                problem = f"it should begin with revision {decoder.revision + 1}: a segment or snapshot is missing"
                raise self._damaged(JournalDamagedError(segment.path, 0, problem), self._stake())
            if segment.open:
                yield from self._open_segment(segment, following)
            else:
                yield from self._sealed_segment(segment)
        if decoder.revision < self._needed:
            raise self.damaged_snapshots[0]
        if sealed and sealed[-1].last < base == decoder.revision and not opened:
            problem = f"it is above the last segment's end {sealed[-1].last}"
            raise self._damaged(JournalDamagedError(path, 0, problem), self._stake())
        if (
            sealed and sealed[-1].last == base == decoder.revision and not opened
        ):  # the snapshot does not have the check
            self._chain = self._end_chain(sealed[-1])

    def _choose_snapshot(self, up_to: int | None) -> tuple[int, str]:
        """Return the newest whole snapshot that is not above a revision, or 0 and "" when there is none."""
        for revision, path in reversed(list_snapshots(f"{self._folder}/snapshots", self._disk)):
            if up_to is not None and revision > up_to:
                continue
            error = whole_snapshot(path, revision, self._disk)
            if error is None:
                return revision, path
            self.damaged_snapshots.append(self._damaged(error, f"all values up to revision {revision}"))
            self._needed = max(self._needed, revision)
        return 0, ""

    def _snapshot(self, path: str, revision: int) -> Iterator[list[Record]]:
        stake = "the values of all topics"
        decoder = self._decoder
        scanner = self._scanner(path)
        self.incarnation = scanner.incarnation
        self.floor = scanner.floor
        decoder.gapless = False
        yield from self._blocks(scanner, stake)
        if max(decoder.revision, decoder.mentioned) > revision:
            problem = f"it holds revision {max(decoder.revision, decoder.mentioned)}, which is above its own"
            raise self._damaged(JournalDamagedError(path, scanner.size, problem), stake)
        decoder.gapless = True
        decoder.revision = revision
        decoder.accepted_at_us = max(decoder.accepted_at_us, scanner.start.accepted_at_us)

    def _sealed_segment(self, segment: Segment) -> Iterator[list[Record]]:
        scanner = self._begin(segment)
        yield from self._blocks(scanner, self._stake())
        if self._decoder.revision != segment.last:
            problem = f"it ends with revision {self._decoder.revision}"
            raise self._damaged(JournalDamagedError(segment.path, scanner.size, problem), self._stake())
        self._chain = scanner.chain

    def _open_segment(self, segment: Segment, following: bool) -> Iterator[list[Record]]:
        stake = self._stake()
        size = self._disk.size(segment.path)
        try:
            scanner = self._begin(segment)
        except JournalDamagedError:
            if size > HEADER_BYTES:  # the header was synced before any block
                raise
            self.open_end = OpenEnd(segment, None, 0, size)
            return
        try:
            yield from self._blocks(scanner, stake, sealed=False)
        except JournalDamagedError:
            if not following and not scanner.torn():
                raise
        self._chain = scanner.chain
        self.open_end = OpenEnd(segment, scanner, scanner.offset, scanner.size)

    def _begin(self, segment: Segment) -> Scanner:
        """Open the next segment and see that it continues the one before."""
        scanner = self._scanner(segment.path)
        if segment.open:
            scanner.leave_out_zeros()
        if scanner.snapshot or scanner.start.revision != segment.first - 1:
            raise self._damaged(JournalDamagedError(segment.path, 0, OTHER_NAME), self._stake())
        # 0: begun when only a snapshot was there to follow
        if self._chain and scanner.start.chain not in {0, self._chain}:
            problem = "it does not follow the segment before it"
            raise self._damaged(JournalDamagedError(segment.path, 0, problem), self._stake())
        self._decoder.accepted_at_us = max(self._decoder.accepted_at_us, scanner.start.accepted_at_us)
        self.incarnation = scanner.incarnation or self.incarnation
        return scanner

    def _end_chain(self, segment: Segment) -> int:
        """Return the check of the last block of a segment that was not read; 0 if its end is not whole."""
        size = self._disk.size(segment.path)
        end = end_position(self._disk.read(segment.path, max(0, size - END_TAIL_BYTES), END_TAIL_BYTES))
        return 0 if end is None or end.revision != segment.last else end.chain

    def _blocks(self, scanner: Scanner, stake: str, sealed: bool = True) -> Iterator[list[Record]]:
        try:
            yield from read_blocks(scanner, self._decoder)
            if sealed:
                require_end(scanner)
        except JournalDamagedError as error:
            raise self._damaged(error, stake) from error

    def _scanner(self, path: str) -> Scanner:
        try:
            return open_scanner(path, self._disk)
        except JournalDamagedError as error:
            raise self._damaged(error, "every record in it") from error

    def _stake(self) -> str:
        return f"all changes from revision {self._decoder.revision + 1} on"

    def _damaged(self, error: JournalDamagedError, stake: str) -> JournalDamagedError:
        """Add to a finding what an operator needs to decide."""
        problem = str(error).removeprefix(f"{error.path}: byte {error.offset}: ")
        if problem == OTHER_VERSION:
            return JournalDamagedError(error.path, error.offset, f"{problem}; start that version, or restore a backup")
        remedy = (
            f"at stake: {stake}. `maxam-admin journal repair {self._folder}` shows what would be lost, topic by topic, and changes "
            "nothing without --apply. Or start from a backup (`maxam-admin journal restore`)"
        )
        return JournalDamagedError(error.path, error.offset, f"{problem}; {remedy}")


def sealed_replay(folder: str | os.PathLike[str], disk: Disk) -> Replay:
    """Return a replay of a journal that another process may write meanwhile, as long as it reads sealed segments only."""
    return Replay(os.path.abspath(folder), disk)  # noqa: PTH100 - a string is wanted


def read_sealed(
    folder: str | os.PathLike[str],
    disk: Disk,
) -> Iterator[Record]:
    """Yield the newest whole snapshot, then the sealed segments after it: the records of the next snapshot.

    Takes no lock and changes nothing; another process may write meanwhile.

    Args:
        folder: The journal's.
        disk: Where it is.

    Raises:
        JournalDamagedError: Something is not what was written.
    """
    return sealed_replay(folder, disk).records(sealed_only=True)
