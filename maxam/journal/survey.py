"""Find the whole blocks of damaged segments for a repair: runs of blocks that follow each other, and the faults between them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.decoding import Decoder, decode_rejected
from maxam.journal.disk import Disk
from maxam.journal.encoding import Position
from maxam.journal.layout import first_record
from maxam.journal.listing import fault_text
from maxam.journal.names import Segment, parse_segment_name
from maxam.journal.repair_plan import Drop, Run
from maxam.journal.scan import HEADER_BYTES, OTHER_VERSION, Scanner, headless, scan_from, written_bytes
from maxam.journal.whole import open_scanner
from maxam.records import Record


@dataclass(frozen=True, slots=True)
class Survey:
    """One segment, read through.

    Attributes:
        segment: The file.
        runs: Its whole blocks.
        faults: Offset, length and text of each damaged part, and the revisions that must have been there, as far as the file
            shows them.
        torn: The last fault can be the remains of a crash.
        mentioned: Highest revision in a dropped record of a session.
        start_at_us: Time in the header of the record before it.
    """

    segment: Segment
    runs: tuple[Run, ...]
    faults: tuple[Drop, ...]
    torn: bool
    mentioned: int
    start_at_us: int


@final
class _Surveyor:
    """Reads one segment, going on behind damage."""

    def __init__(self, segment: Segment, disk: Disk, rejected: bool) -> None:
        self._segment: Final = segment
        self._path: Final = segment.path
        self._disk: Final = disk
        size = disk.size(segment.path)
        self._size: Final = size if segment.last else written_bytes(size, self._read)
        self._rejected: Final = rejected
        self._runs: Final[list[Run]] = []
        self._faults: Final[list[Drop]] = []
        self._decoder = Decoder(segment.first - 1, 0)
        self._begun: Run | None = None
        self._mentioned = 0

    def survey(self) -> Survey:
        """Read the segment."""
        scanner, start_at_us = self._begin()
        torn = False
        if scanner is not None:
            torn = self._walk(scanner)
        elif not self._segment.last:
            torn = self._size <= HEADER_BYTES
        return Survey(self._segment, tuple(self._runs), tuple(self._faults), torn, self._mentioned, start_at_us)

    def _read(self, offset: int, length: int) -> bytes:
        return self._disk.read(self._path, offset, length)

    def _begin(self) -> tuple[Scanner | None, int]:
        try:
            scanner = Scanner(self._path, self._size, self._read)
        except JournalDamagedError as error:
            fault = fault_text(error)
            if fault == OTHER_VERSION:
                raise JournalError(f"{self._path}: {OTHER_VERSION}: repair it with that version") from error
            found = headless(self._path, self._size, self._read, self._segment.first - 1)
            self._drop(0, found[0].offset if found else self._size, fault)
            return (found[0] if found else None), 0
        if scanner.snapshot:
            self._drop(0, self._size, "a snapshot under the name of a segment")
            return None, 0
        self._decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
        return scanner, scanner.start.accepted_at_us

    def _walk(self, scanner: Scanner) -> bool:
        """Gather runs and faults; return whether what is wrong at the end can be a torn write."""
        while True:
            offset, seed = scanner.offset, scanner.chain
            try:
                block = scanner.next_block()
            except JournalDamagedError as error:
                scanner.ended = False
                self._close()
                more = scanner.skip_damage()
                self._drop(offset, (scanner.offset if more else self._size) - offset, fault_text(error))
                if more:
                    continue
                if not self._runs and not self._segment.last:
                    self._runs.append(self._empty(scanner, whole=False))
                return True
            if block is None:
                break
            if scanner.ended:
                continue
            problem = self._take(scanner, offset, seed, *block)
            if problem:
                self._close()
                self._drop(offset, scanner.offset - offset, problem)
        if self._segment.last and not scanner.ended:
            self._drop(self._size, 0, "the mark of a finished file is missing at its end")
        self._close()
        if not self._runs and not self._faults:  # an open segment that holds nothing yet
            whole = scanner.start.revision == self._segment.first - 1 and not self._segment.last
            self._runs.append(self._empty(scanner, whole))
        elif len(self._runs) == 1 and not self._faults:
            run = self._runs[0]
            named = (run.before.revision + 1, run.after.revision if self._segment.last else 0)
            right = named == (self._segment.first, self._segment.last) and scanner.start.revision == run.before.revision
            self._runs[0] = replace(run, whole=right)
        return False

    def _empty(self, scanner: Scanner, whole: bool) -> Run:
        start, offset = scanner.start, scanner.first_offset
        return Run(self._path, offset, offset, scanner.sync_marker, start, start, 0, whole, sealed=False)

    def _take(self, scanner: Scanner, offset: int, seed: int, data: bytes, count: int) -> str:
        """Add a whole block to the run that it belongs to; return what is wrong with its records."""
        begun = self._begun
        if begun is None:
            first, _, _ = first_record(data)
            self._decoder = (
                Decoder(first - 1, 0) if self._faults or first != self._decoder.revision + 1 else self._decoder
            )
        before_us = (
            self._decoder.accepted_at_us if begun is not None or not self._runs else self._runs[-1].after.accepted_at_us
        )
        decoder = self._decoder
        before = Position(decoder.revision, before_us, seed)
        records = 0
        try:
            if self._rejected:
                sends = decode_rejected(data, count, decoder.revision)
                decoder.revision += len(sends)
                decoder.accepted_at_us = max(decoder.accepted_at_us, sends[-1].rejected_at_us)
                records = len(sends)
            else:
                records = len(decoder.decode(data, count))
        except (ValueError, IndexError) as error:
            return f"the block is whole, but its records are wrong: {error}"
        if decoder.mentioned > decoder.revision:
            self._mentioned = max(self._mentioned, decoder.mentioned)
            return f"a session knows revision {decoder.mentioned}, which is above the last change {decoder.revision}"
        after = Position(decoder.revision, decoder.accepted_at_us, scanner.chain)
        if begun is None:
            sealed = self._segment.last > 0
            begun = Run(self._path, offset, 0, scanner.sync_marker, before, after, 0, whole=False, sealed=sealed)
        self._begun = replace(begun, end=scanner.offset, after=after, records=begun.records + records)
        return ""

    def _close(self) -> None:
        if self._begun is not None:
            self._runs.append(self._begun)
            self._begun = None

    def _drop(self, offset: int, length: int, fault: str) -> None:
        self._faults.append(Drop(self._path, offset, length, fault, 0, 0, exact=True, needed=False))


def survey_segment(segment: Segment, disk: Disk, rejected: bool) -> Survey:
    """Read a segment of the journal, or of rejected SENDs, going on behind damage."""
    return _Surveyor(segment, disk, rejected).survey()


def segment_of(path: str) -> Segment:
    """Return the segment of a path that was listed."""
    folder, _, name = path.rpartition("/")
    segment = parse_segment_name(folder, name)
    assert segment is not None  # noqa: S101 - it was listed
    return segment


def gaps_between(runs: list[Run], base: int, head: int) -> list[tuple[int, int]]:
    """Return the ranges of revisions that no run holds, up to the highest that was given; what was before all runs, above a snapshot only."""
    gaps: list[tuple[int, int]] = []
    reached = 0
    for run in runs:
        first = reached + 1 if reached else base + 1
        if first <= run.before.revision:
            gaps.append((first, run.before.revision))
        reached = max(reached, run.after.revision)
    first = reached + 1 if reached else base + 1
    if first <= head:
        gaps.append((first, head))
    return gaps


def trails(run: Run) -> bool:
    """Return True if a run holds only session records after the last change of its file: no segment can begin with them."""
    first = segment_of(run.path).first
    return run.records > 0 and first <= run.before.revision == run.after.revision


def snapshot_records(path: str, disk: Disk) -> Iterator[Record]:
    """Yield the records of a whole snapshot; none for an empty path."""
    if path:
        scanner = open_scanner(path, disk)
        decoder = Decoder(0, 0)
        decoder.gapless = False
        while (records := scanner.records(decoder)) is not None:
            yield from records


def _scanner_of(run: Run, disk: Disk) -> Scanner:
    """Return a scanner of the blocks of a run and of nothing after them."""
    read = lambda at, length: disk.read(run.path, at, min(length, max(0, run.end - at)))  # noqa: E731 - as everywhere
    return scan_from(run.path, run.end, read, run.before, run.sync_marker, run.offset)


def read_run(run: Run, disk: Disk) -> Iterator[Record]:
    """Yield the records of a run."""
    if run.offset == run.end:
        return
    scanner = _scanner_of(run, disk)
    decoder = Decoder(run.before.revision, 0)
    while (records := scanner.records(decoder)) is not None:
        yield from records


def trim(run: Run, reached: Position, disk: Disk) -> Run | None:
    """Return what of a run follows a place, as its chain proves; None when nothing does."""
    if run.after.revision <= reached.revision:
        return None
    scanner = _scanner_of(run, disk)
    decoder = Decoder(run.before.revision, 0)
    skipped = 0
    while decoder.revision < reached.revision:
        records = scanner.records(decoder)
        if records is None:
            return None
        skipped += len(records)
    if decoder.revision != reached.revision:
        return None
    while scanner.chain != reached.chain:  # records of sessions may follow the last change
        records = scanner.records(decoder)
        if records is None or decoder.revision != reached.revision:
            return None
        skipped += len(records)
    before = Position(reached.revision, max(reached.accepted_at_us, decoder.accepted_at_us), scanner.chain)
    return replace(run, offset=scanner.offset, before=before, records=run.records - skipped, whole=False)
