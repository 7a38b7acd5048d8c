"""Read a journal's folder beside the gateway that writes it, and say exactly what of it cannot be read.

The gateway may write, roll and seal meanwhile, and retention may remove segments: a segment is known by its first revision, which
stays when its name changes; an open file is read on whatever it is called, and what is there is read up to the last whole block.
Nothing is believed that the checks do not prove. Behind damage reading goes on with the next block that is whole.

`check_segment` proves every block of a file without decoding it (some GB/s); `SegmentReader` decodes.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, Literal, final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.decoding import Decoder, decode_rejected, first_record, read_unsigned
from maxam.journal.encoding import CHECK_BYTES, KIND_END, SYNC_BYTES, Position
from maxam.journal.files import parse_segment_name, parse_snapshot_name
from maxam.journal.scan import HEADER_BYTES, OTHER_VERSION, Scanner, headless
from maxam.records import Change, Record, RejectedSend

Records = Literal["changes", "sessions", "rejected"]
Block = Sequence[Record | RejectedSend]
ProblemKind = Literal["torn", "damaged", "missing", "expired", "clock", "unknown-schema", "unreadable"]

REVISION_MAX: Final = (1 << 63) - 1

_LISTINGS_MAX: Final = 20  # a folder whose names never stand still for two listings is no journal
_WINDOW_BYTES: Final = 4 << 20  # read at once while checking
_HEAD_BYTES: Final = 32  # more than count and size of a block, or than revision, time and kind of a record
_END_BLOCK_BYTES_MAX: Final = 128
# Changes that arrive together share their time, and one group commit takes all of them: a time that is still the same after
# two more was not read off a clock that runs.
_STILL_BLOCKS: Final = 3
_THREADS_MAX: Final = 8
_TAIL: Final = struct.Struct(f">II{SYNC_BYTES}s")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Problem:
    """What of an archive cannot be read, or is odd.

    Attributes:
        kind: `torn`: an unfinished write at the end of the open segment, which was never acknowledged. `damaged`: bytes are not what
            was written. `missing`: a segment between others is not there. `expired`: so is one before all others, as retention
            does. `clock`: the clock that `accepted_at` comes from ran backwards. `unknown-schema`: no text is there to read a
            value by. `unreadable`: the system does not hand out the file, or another version wrote it.
        path: File, or the folder it should be in.
        offset: Byte at which it begins.
        first: First revision concerned, 0 for none.
        last: The last one.
        text: One line that says what it is and which revisions are lost, without path and offset.
        lost: Something that was in the journal could not be read.
    """

    kind: ProblemKind
    path: str
    offset: int
    first: int
    last: int
    text: str
    lost: bool = True

    def __str__(self) -> str:
        if self.kind in {"missing", "expired"}:  # nothing is wrong with any file that is there
            return f"{self.path}: {self.kind}: {self.text}"
        return f"{self.path}: byte {self.offset}: {self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the archive.

    Attributes:
        first: Revision of its first change.
        last: Of its last; 0 while the gateway writes it.
        path: Where it was; an open one moves when it is sealed.
    """

    first: int
    last: int
    path: str

    @property
    def open(self) -> bool:
        """Whether the gateway may still write it."""
        return self.last == 0


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two blocks of a segment.

    Attributes:
        offset: In bytes.
        chain: Check of the block before it.
        revision: Of the change before it.
    """

    offset: int
    chain: int
    revision: int


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """What reading all of a segment found.

    Attributes:
        segment: The file; the path is where it was found last.
        last: Revision of the last change read.
        first_at_us: No record of it was accepted earlier; microseconds since the epoch, UTC.
        last_at_us: Nor later.
        bytes: Of the file up to the end of what is whole.
        records: In it, of all kinds but the end mark; 0 when it is not healthy.
        start_chain: Check of the block before the file, 0 when unknown.
        chain: Check of its last block.
        problems: What is wrong with it.
    """

    segment: Segment
    last: int
    first_at_us: int
    last_at_us: int
    bytes: int
    records: int
    start_chain: int
    chain: int
    problems: tuple[Problem, ...] = ()

    @property
    def first(self) -> int:
        """Revision of its first change."""
        return self.segment.first

    @property
    def path(self) -> str:
        """Where it was found last."""
        return self.segment.path

    @property
    def healthy(self) -> bool:
        """Whether it is sealed and every byte of it is as it was written: any Avro reader takes it whole."""
        return not self.segment.open and all(problem.kind == "clock" for problem in self.problems)


@dataclass(frozen=True, slots=True)
class Archive:
    """What of a journal's folder can be read, at one moment.

    Attributes:
        folder: The journal's.
        records: Of what the segments were examined: accepted changes and sessions are in the same ones.
        low: First revision that was asked for, 0 for any.
        first: First revision there is in the range that was asked for, 0 when there is none.
        last: Last one: what is written later is not part of it.
        sealed: Healthy segments, in order.
        damaged: Sealed segments that are not, in order.
        open: The open segment, when it holds something.
        problems: All that was found.
    """

    folder: str
    records: Records
    low: int
    first: int
    last: int
    sealed: tuple[CheckedSegment, ...] = ()
    damaged: tuple[CheckedSegment, ...] = ()
    open: CheckedSegment | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def lost(self) -> tuple[Problem, ...]:
        """The problems for which something is missing."""
        return tuple(problem for problem in self.problems if problem.lost)


def segments_folder(folder: str | os.PathLike[str], records: Records) -> str:
    """Return where a journal keeps the segments of these records."""
    return f"{os.fspath(folder)}/{'rejected' if records == 'rejected' else 'segments'}"


def snapshot_revision(folder: str | os.PathLike[str]) -> int:
    """Return the last revision that a journal's newest snapshot stands for, 0 when there is none: segments reached so far at least."""
    try:
        names = os.listdir(f"{os.fspath(folder)}/snapshots")  # noqa: PTH208 - names are wanted
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return max((revision for name in names if (revision := parse_snapshot_name(name)) is not None), default=0)


def list_segments(folder: str | os.PathLike[str], records: Records) -> list[Segment]:
    """Return a journal's segments in order of revision.

    A segment that was renamed while the folder was read is in it once, under one of its names.

    Raises:
        JournalError: There is no such folder, or its names do not stand still.
        OSError: It cannot be read.
    """
    path = segments_folder(folder, records)
    names: list[str] | None = None
    for _ in range(_LISTINGS_MAX):
        before = names
        try:
            names = sorted(os.listdir(path))  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            if records == "rejected":
                return []  # nothing was ever rejected
            raise JournalError(
                f"{os.fspath(folder)} is not the folder of a journal: it holds no folder segments"
            ) from None
        if names == before:  # the first may have been read while a file was renamed, and miss it
            return _segments(path, names)
    raise JournalError(f"{path}: its names change all the time")


def _segments(folder: str, names: list[str]) -> list[Segment]:
    named = [one for name in names if (one := parse_segment_name(folder, name)) is not None]
    # of two names of one segment the sealed one, which is the newer
    segments = {one.first: Segment(one.first, one.last, one.path) for one in sorted(named, key=lambda one: one.last)}
    lasting = [segments[first] for first in sorted(segments)]
    for at, (segment, after) in enumerate(pairwise(lasting)):
        if segment.open:  # the gateway seals a segment before it begins the next: nobody writes this one any more
            lasting[at] = replace(segment, last=after.first - 1)
    return lasting


def find_segment(folder: str | os.PathLike[str], records: Records, segment: Segment) -> Segment | None:
    """Return a segment as it is called now, or None when it is gone."""
    return next((one for one in list_segments(folder, records) if one.first == segment.first), None)


def size_of(segment: Segment) -> int:
    """Return the bytes of a segment; 0 when it was sealed or removed since it was listed, which whoever opens it finds out."""
    try:
        return os.stat(segment.path).st_size  # noqa: PTH116 - a string is what there is
    except FileNotFoundError:
        return 0


@final
class _File:
    """A file that is open for reading: stays readable when it is renamed or removed."""

    def __init__(self, path: str) -> None:
        self._handle: Final = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._handle).st_size

    def close(self) -> None:
        os.close(self._handle)

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._handle, length, offset)
        if len(data) == length:
            return data
        parts = [data]
        while parts[-1]:
            offset += len(parts[-1])
            length -= len(parts[-1])
            parts.append(os.pread(self._handle, length, offset) if length else b"")
        return b"".join(parts)


def _open(folder: str | os.PathLike[str], records: Records, segment: Segment) -> tuple[Segment, _File]:
    """Open a segment, under its new name if it has been sealed.

    Raises:
        FileNotFoundError: It is gone.
        OSError: It cannot be read.
    """
    try:
        return segment, _File(segment.path)
    except FileNotFoundError:
        found = find_segment(folder, records, segment)
        if found is None:
            raise
        return found, _File(found.path)


@final
class SegmentReader:
    """Decodes one segment block by block, going on behind damage. To be closed.

    Attributes:
        segment: What is read, under the name it had when it was opened.
        offset: Of the block that was returned last.
        problems: What was wrong so far; complete when there are no more blocks.
        revision: Of the last change read or known to be lost.
        before: The same before the block that was returned last.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        records: Records,
        segment: Segment,
        place: Place | None = None,
        end: int | None = None,
    ) -> None:
        """Open a segment and read its header.

        Args:
            folder: The journal's.
            records: Which of its segments.
            segment: One that was listed; it may have been sealed since.
            place: Where to begin, if not with the first block.
            end: Where whole blocks were found to end; what is behind is not read.

        Raises:
            FileNotFoundError: The segment is gone.
            OSError: It cannot be read.
        """
        self.segment, self._file = _open(folder, records, segment)
        self._end: Final = end
        if end is not None:
            self.segment = Segment(segment.first, 0, self.segment.path)
            self._file.size = min(self._file.size, end)
        self.problems: Final[list[Problem]] = []
        self.revision = self.before = self.segment.first - 1
        self.offset = 0
        self._scanner: Scanner | None = None
        self._decoder = Decoder(self.revision, 0)
        self._records: Final = records
        self._clock = _Clock(self.segment.path)
        try:
            self._scanner = self._begin()
            if self._scanner is not None and place is not None:
                self._scanner.offset = place.offset
                self._scanner.chain = place.chain
                self.revision = place.revision
                self._decoder = Decoder(place.revision, 0)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "SegmentReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened; what is written behind them later is not read."""
        return self._file.size

    @property
    def place(self) -> Place | None:
        """Where the next block begins, None when the file has no blocks that could be read."""
        scanner = self._scanner
        return None if scanner is None else Place(scanner.offset, scanner.chain, self.revision)

    @property
    def start(self) -> Position | None:
        """What the header says of where the file begins, None when there is no header to be believed."""
        return None if self._scanner is None else self._scanner.start

    @property
    def accepted_at_us(self) -> int:
        """Time of the last record read."""
        return self._decoder.accepted_at_us

    def __iter__(self) -> Iterator[Block]:
        """Yield the records of each block that is whole."""
        while (records := self._next()) is not None:
            yield records
        self.problems.extend(self._clock.end())

    def _next(self) -> Block | None:
        scanner = self._scanner
        while scanner is not None:
            self.offset = offset = scanner.offset
            try:
                block = scanner.next_block()
            except JournalDamagedError as error:
                if not self._skip(scanner, _fault(error)):
                    return None
                continue
            if block is None:
                self._finish(scanner)
                return None
            if self._records != "rejected":  # those are written as they come, many with one time
                self._clock.block(offset, block[0])
            if scanner.ended:
                continue
            records = self._decode(*block)
            if records is not None:
                return records
            if not self._skip(scanner, "the block is whole, but its records are wrong", whole=True):
                return None
        return None

    def _begin(self) -> Scanner | None:
        """Read the header; when it is damaged, read on with the one that must have been there."""
        segment, file = self.segment, self._file
        try:
            scanner = Scanner(segment.path, file.size, file.read)
        except JournalDamagedError as error:
            fault = _fault(error)
            if segment.open and file.size <= HEADER_BYTES:  # it was synced before any block
                self._tell("torn", 0, 0, 0, "the header is not written yet", lost=False)
                return None
            if fault == OTHER_VERSION:
                self.problems.append(_whole_lost(segment, "unreadable", fault))
                return None
            found = self._without_header(fault)
            if found is None:
                self.problems.append(_whole_lost(segment, "damaged", fault))
            return found
        if scanner.snapshot or scanner.start.revision != segment.first - 1:
            self.problems.append(_whole_lost(segment, "damaged", "its header and its name tell different things"))
            return None
        self._decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
        return scanner

    def _without_header(self, fault: str) -> Scanner | None:
        """Return a scanner of the blocks behind a damaged header, or None when there are none."""
        segment, file = self.segment, self._file
        for scanner in headless(segment.path, file.size, file.read, segment.first - 1):
            self._scanner = scanner
            if self._resume(scanner, fault):
                return scanner
        return None

    def _decode(self, data: bytes, count: int) -> Block | None:
        """Return the records of a checked block, or None when they do not follow those before."""
        self.before = self.revision
        if self._records == "rejected":
            try:
                sends = decode_rejected(data, count, self.revision)
            except (ValueError, IndexError):
                return None
            self.revision += len(sends)
            self._decoder.accepted_at_us = sends[-1].rejected_at_us
            return sends
        try:
            records = self._decoder.decode(data, count)
        except (ValueError, IndexError):
            # in time they need not follow: another clock may have written them
            decoder = Decoder(self.revision, 0)
            decoder.gapless = False
            try:
                records = decoder.decode(data, count)
            except (ValueError, IndexError):
                return None
            changes = sum(isinstance(record, Change) for record in records)
            if decoder.revision != self.revision + changes:
                return None
            decoder.gapless = True
            self._decoder = decoder
        self.revision = self._decoder.revision
        return records

    def _skip(self, scanner: Scanner, fault: str, whole: bool = False) -> bool:
        """Move behind damage, to the next whole block, and tell what is lost; False when there is none."""
        surplus, scanner.ended = scanner.ended, False
        while scanner.skip_damage():
            if self._resume(scanner, fault):
                return True
        first, last = self.revision + 1, self.segment.last
        if not self.segment.open:
            self._tell("damaged", self.offset, first, last, fault + _lost(first, last), not surplus or first <= last)
        elif whole or self._end is not None:
            self._tell("damaged", self.offset, first, first, fault + _lost_from(first))
        else:
            self._tell("torn", self.offset, 0, 0, f"{fault}: a write that was not finished", lost=False)
        self.revision = max(self.revision, self.segment.last)
        return False

    def _resume(self, scanner: Scanner, fault: str) -> bool:
        """Go on with the whole block that the scanner stands before, if it can be one that follows; else move behind it."""
        offset, chain = scanner.offset, scanner.chain
        block = scanner.next_block()
        if block is None:
            return False
        revision, _, _ = first_record(block[0])  # of the first change in it or behind it
        if not self.revision < revision <= (self.segment.last or REVISION_MAX) + 1:
            return False
        scanner.offset, scanner.chain = offset, chain
        scanner.ended = False
        first, last = self.revision + 1, revision - 1
        only_header = offset == HEADER_BYTES
        self._tell("damaged", self.offset, first, last, fault + _lost(first, last), not only_header or first <= last)
        self.revision = last
        self._decoder = Decoder(last, 0)
        return True

    def _finish(self, scanner: Scanner) -> None:
        segment = self.segment
        if segment.open:
            if self._end is not None and scanner.size < self._end:
                first = self.revision + 1
                self._tell(
                    "damaged", scanner.size, first, first, f"it was cut since; lost: revision {first} and maybe more"
                )
            return
        first, last = self.revision + 1, segment.last
        if not scanner.ended:
            fault = "the mark of a finished file is missing at its end"
            self._tell("damaged", scanner.size, first, last, fault + _lost(first, last))
        elif self.revision != last:
            fault = f"it ends with revision {self.revision}, not with that of its name"
            self._tell("damaged", scanner.size, first, last, fault + _lost(first, last))
        self.revision = last

    def _tell(self, kind: ProblemKind, offset: int, first: int, last: int, text: str, lost: bool = True) -> None:
        if first > last:
            first = last = 0
            lost = lost and self._records == "sessions"  # what they did has no revisions of its own
        self.problems.append(Problem(kind, self.segment.path, offset, first, last, text, lost))


def _fault(error: JournalDamagedError) -> str:
    return str(error).removeprefix(f"{error.path}: byte {error.offset}: ")


def _lost(first: int, last: int) -> str:
    if first > last:
        return "; no change is lost"
    return f"; lost: revision {first}" if first == last else f"; lost: revisions {first} to {last}"


def _lost_from(first: int) -> str:
    return f"; lost: what there was from revision {first} on"


def _whole_lost(segment: Segment, kind: ProblemKind, text: str) -> Problem:
    """Return the problem that nothing of a segment can be read."""
    first, last = segment.first, segment.last or segment.first
    lost = _lost_from(first) if segment.open else _lost(first, last)
    return Problem(kind, segment.path, 0, first, last, text + lost)


def time_text(at_us: int) -> str:
    """Return a time as people and Spark read it; a garbled one as the number it is."""
    try:
        return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{at_us} us"


@final
class _Clock:
    """Sees from where the blocks of a file begin that the clock behind `accepted_at` ran backwards: the time stands still, or steps back.

    Acknowledgements carry the time of the change before them: blocks without a change prove nothing.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._problems: Final[list[Problem]] = []
        self._at_us = 0
        self._offset = 0  # where the first block of this time begins
        self._first = 0  # its first change
        self._next = 0  # first change of the block seen last
        self._blocks = 0  # with changes, all of this time

    def block(self, offset: int, data: bytes) -> None:
        """Look at the beginning of the next block; one whose time is later than that of the block before may be left out."""
        revision, at_us, kind = first_record(data)
        if not kind:
            return
        if at_us == self._at_us:
            self._blocks += revision > self._next
        else:
            self._close()
            if at_us < self._at_us:
                was, now = time_text(self._at_us), time_text(at_us)
                text = f"accepted_at steps back from {was} to {now} at revision {revision}"
                self._problems.append(Problem("clock", self._path, offset, revision, revision, text, lost=False))
            self._at_us, self._offset, self._first = at_us, offset, revision
        self._next = revision

    def _close(self) -> None:
        if self._blocks >= _STILL_BLOCKS:
            first, last = self._first, self._next - 1
            text = (
                f"the clock stood still or ran backwards: all of revisions {first} to {last}, in {self._blocks} writes, have "
                f"{time_text(self._at_us)} as accepted_at; when they were accepted is not known"
            )
            self._problems.append(Problem("clock", self._path, self._offset, first, last, text, lost=False))
        self._blocks = 0

    def end(self) -> list[Problem]:
        """Return what was seen."""
        self._close()
        return self._problems


@final
class _Check:
    """Proves blocks without decoding them.

    Attributes:
        offset: Behind the last whole block, the end mark apart.
        chain: Its check.
        end: Behind the last whole block.
        last_offset: Where it begins, the end mark apart; 0 while there is none.
        before: Check of the block before that.
        records: So far, the end mark not counted.
        ended: The mark of a finished file was read.
        clock: What the times told.
    """

    def __init__(self, file: _File, path: str, sync_marker: bytes, place: Place) -> None:
        self._file: Final = file
        self._sync_marker: Final = sync_marker
        self.offset = place.offset
        self.chain = place.chain
        self.end = place.offset
        self.last_offset = 0
        self.before = place.chain
        self.records = 0
        self.ended = False
        self.clock: Final = _Clock(path)

    def run(self, bytes_max: int) -> bool:  # noqa: C901, PLR0915 - one loop without calls but C's: a quiet gateway writes a block a change
        """Check all blocks, or those that begin in so many bytes; return False at what is not a whole block that follows.

        The last block of so many bytes may end behind them.
        """
        size, sync_marker, clock = self._file.size, self._sync_marker, self.clock
        base = self.offset  # of the window in the file
        stop = min(size, base + bytes_max)
        window = self._file.read(base, _WINDOW_BYTES)
        view = memoryview(window)
        at = 0  # in the window
        chain = self.chain
        last_stamp = 0
        last_head = (0, b"")
        crc32, tail, stamp_of = zlib.crc32, _TAIL.unpack_from, struct.Struct("<Q").unpack_from
        while base + at < stop and not self.ended:
            while True:
                try:
                    place = at + 1
                    count = window[at]
                    if count > 127:
                        count, place = read_unsigned(window, at)
                    length = window[place]
                    place += 1
                    if length > 127:
                        length, place = read_unsigned(window, place - 1)
                    end = place + (length >> 1)
                    needed = end - at + SYNC_BYTES
                except IndexError:
                    count = length = place = end = 0
                    needed = len(window) - at + 1
                except ValueError:
                    return False
                if base + at + needed > size:  # what is read may be more: it may have been written since
                    return False
                if at + needed <= len(window):
                    break
                base += at
                at = 0
                window = self._file.read(base, max(_WINDOW_BYTES, needed))
                view = memoryview(window)
                if len(window) < needed:
                    return False  # cut meanwhile
            if (count | length) & 1 or not count or length >> 1 <= CHECK_BYTES:
                return False
            check = crc32(view[at : end - CHECK_BYTES], chain)
            if tail(window, end - CHECK_BYTES) != (check, chain, sync_marker):
                return False
            record = place
            while window[place] > 127:
                place += 1
            place += 1
            (stamp,) = stamp_of(window, place)  # of times of this century: 8 bytes, the later the larger
            head = window[record : record + _HEAD_BYTES]
            if stamp <= last_stamp:
                clock.block(*last_head)
                clock.block(base + at, head)
            last_stamp = stamp
            last_head = (base + at, head)
            if count == 2 and KIND_END in head and first_record(head)[2] == KIND_END:
                self.ended = True
            else:
                self.records += count >> 1
                self.last_offset = base + at
                self.before, chain = chain, check
                self.chain = check
                self.offset = base + end + SYNC_BYTES
            at = end + SYNC_BYTES
            self.end = base + at
        return True


def check_segment(folder: str | os.PathLike[str], records: Records, segment: Segment) -> CheckedSegment:
    """Read all of a segment and prove it; decode it only where something is wrong.

    Args:
        folder: The journal's.
        records: Which of its segments.
        segment: One that was listed; it may have been sealed since.

    Raises:
        FileNotFoundError: It is gone.
    """
    try:
        found, file = _open(folder, records, segment)
        try:
            checked = _prove(records, found, file)
        finally:
            file.close()
        return checked if checked is not None else _read_through(folder, records, found)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = _whole_lost(segment, "unreadable", f"it cannot be read ({error.strerror})")
        return CheckedSegment(segment, segment.last, 0, 0, 0, 0, 0, 0, (problem,))


def walk(
    folder: str | os.PathLike[str],
    records: Records,
    segment: Segment,
    place: Place | None,
    bytes_max: int,
    end: int | None = None,
) -> tuple[Place | None, bool]:
    """Move over whole blocks of a segment without decoding them, but for the last.

    Args:
        folder: The journal's.
        records: Which of its segments.
        segment: One that was listed; it may have been sealed since.
        place: Where to begin, None for the first block.
        bytes_max: Stop behind the block that reaches so many bytes.
        end: Where the segment is taken to end, None for where it does.

    Returns:
        The place behind the last block, None when the header cannot be read; and whether what stands there is no whole block that
        follows.

    Raises:
        FileNotFoundError: The segment is gone.
        OSError: It cannot be read.
        JournalDamagedError: The place is not where a block ended that the chain knows: it is of another journal, or of one that
            was cut back since.
    """
    found, file = _open(folder, records, segment)
    try:
        file.size = file.size if end is None else min(file.size, end)
        if place is not None:
            tail = file.read(max(0, place.offset - CHECK_BYTES - SYNC_BYTES), 4)
            if place.offset > file.size or (place.offset > HEADER_BYTES and tail != place.chain.to_bytes(4, "big")):
                raise JournalDamagedError(found.path, place.offset, "no block that was read before ends here")
        try:
            scanner = Scanner(found.path, file.size, file.read)
        except JournalDamagedError:
            return None, True
        start = scanner.start
        check = _Check(
            file, found.path, scanner.sync_marker, place or Place(scanner.offset, start.chain, segment.first - 1)
        )
        whole = check.run(bytes_max)
        if not check.last_offset:
            return place or Place(check.offset, check.chain, segment.first - 1), not whole
        position = _last_position(records, check, scanner, start)
        if position is None:
            return None, True
        return Place(check.offset, check.chain, position.revision), not whole
    finally:
        file.close()


def _prove(records: Records, segment: Segment, file: _File) -> CheckedSegment | None:
    """Return what a sound segment holds, or None when it has to be read to tell."""
    try:
        scanner = Scanner(segment.path, file.size, file.read)
    except JournalDamagedError:
        return None
    start = scanner.start
    if scanner.snapshot or start.revision != segment.first - 1:
        return None
    place = Place(scanner.offset, start.chain, start.revision)
    check = _Check(file, segment.path, scanner.sync_marker, place)
    if not check.run(file.size) or check.end < file.size:
        return None
    position = _last_position(records, check, scanner, start)
    if position is None or (not segment.open and (not check.ended or position.revision != segment.last)):
        return None
    times = start.accepted_at_us, position.accepted_at_us
    found = () if records == "rejected" else tuple(check.clock.end())
    return CheckedSegment(
        segment, position.revision, *times, check.offset, check.records, start.chain, check.chain, found
    )


def _last_position(records: Records, check: _Check, scanner: Scanner, start: Position) -> Position | None:
    """Return the position behind the last block that was checked, which is decoded for it; None when it is garbled."""
    if not check.last_offset:
        return start
    scanner.offset, scanner.chain = check.last_offset, check.before
    block = scanner.next_block()
    if block is None:
        return None
    before = first_record(block[0])[0] - 1
    decoder = Decoder(before, 0)
    try:
        if records == "rejected":
            sends = decode_rejected(*block, before)
            return Position(before + len(sends), sends[-1].rejected_at_us, scanner.chain)
        decoder.decode(*block)
    except (ValueError, IndexError):
        return None
    return Position(decoder.revision, decoder.accepted_at_us, scanner.chain)


def _read_through(folder: str | os.PathLike[str], records: Records, segment: Segment) -> CheckedSegment:
    with SegmentReader(folder, records, segment) as reader:
        last, last_at_us, end = segment.first - 1, 0, 0
        count = 0
        for block in reader:
            count += len(block)
            last = reader.revision
            last_at_us = max(last_at_us, reader.accepted_at_us)
        start, place = reader.start, reader.place
        end = 0 if place is None else place.offset
        first_at_us = 0 if start is None else start.accepted_at_us
        start_chain = 0 if start is None else start.chain
        chain = 0 if place is None else place.chain
        problems = tuple(reader.problems)
    return CheckedSegment(reader.segment, last, first_at_us, last_at_us, end, count, start_chain, chain, problems)


def plan(
    folder: str | os.PathLike[str],
    records: Records,
    from_revision: int | None = None,
    to_revision: int | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    may_hold: Callable[[Segment], bool] | None = None,
) -> tuple[list[Segment], list[Problem]]:
    """Return the segments that can hold what is wanted, in order, and what their names tell is wrong; nothing is read but ends of files.

    Arguments and errors are those of `examine`.
    """
    low = max(1, from_revision or 1)
    high = REVISION_MAX if to_revision is None else to_revision
    reached = 0 if records == "rejected" else snapshot_revision(folder)  # before the list: what it tells of is in that
    listed, problems = _lined_up(
        segments_folder(folder, records), list_segments(folder, records), low, high, from_revision is not None
    )
    problems += _end_missing(folder, listed, reached, low, high, from_revision is not None)
    if records == "sessions":
        high += 1  # what sessions did behind the last change of a segment can be in the next one
    wanted = [one for one in listed if one.first <= high and (one.open or one.last >= low)]
    wanted = [one for one in wanted if one.open or may_hold is None or may_hold(one)]
    return [one for one in wanted if _in_time(one, since_us, until_us)], problems


def examine(
    folder: str | os.PathLike[str],
    records: Records = "changes",
    from_revision: int | None = None,
    to_revision: int | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    may_hold: Callable[[Segment], bool] | None = None,
) -> Archive:
    """Say what of a journal can be read, having proven every block of what is in the range.

    Args:
        folder: The journal's.
        records: What is to be read.
        from_revision: First one wanted, for accepted changes and sessions of the journal's, else of the rejected ones' counter;
            None for whatever is there.
        to_revision: Last one wanted.
        since_us: Nothing accepted earlier is wanted; microseconds since the epoch, UTC.
        until_us: Nothing accepted then or later is wanted.
        may_hold: Tells of a sealed segment whether it can hold what is wanted; one that cannot is not read.

    Returns:
        What there is now. Segments outside the range are in none of its parts.

    Raises:
        JournalError: It is not the folder of a journal.
        OSError: The folder cannot be read.
    """
    low = max(1, from_revision or 1)
    high = REVISION_MAX if to_revision is None else to_revision
    wanted, problems = plan(folder, records, from_revision, to_revision, since_us, until_us, may_hold)
    with ThreadPoolExecutor(min(_THREADS_MAX, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda one: _check_or_miss(folder, records, one), wanted))
    sealed: list[CheckedSegment] = []
    damaged: list[CheckedSegment] = []
    opened: CheckedSegment | None = None
    before: CheckedSegment | None = None
    for checked in results:
        if isinstance(checked, Problem):
            problems.append(checked)
            continue
        problems += checked.problems
        if before is not None:
            problems += _seam(before, checked)
        before = checked
        if checked.healthy:
            sealed.append(checked)
        elif not checked.segment.open:
            damaged.append(checked)
        elif checked.records:
            opened = checked
    parts = [*sealed, *damaged, *([opened] if opened is not None else [])]
    if since_us is not None or until_us is not None:
        problems = [_in_span(folder, records, one, since_us, until_us) for one in problems]
    first = max(low, min((one.first for one in parts), default=0))
    last = min(high, max((one.last for one in parts), default=0))
    if first > last:
        first = 0
    asked = from_revision or 0
    return Archive(
        os.fspath(folder), records, asked, first, last, tuple(sealed), tuple(damaged), opened, tuple(problems)
    )


def _in_span(
    folder: str | os.PathLike[str],
    records: Records,
    problem: Problem,
    since_us: int | None,
    until_us: int | None,
) -> Problem:
    """Return an expired beginning as lost when the time that is asked for reaches into it.

    Of a span with a beginning that is when the last record that was removed is in it or behind it; of one without, when all that there
    is came later.

    Args:
        folder: The journal's.
        records: What is read.
        problem: Of any kind.
        since_us: As of `examine`.
        until_us: Likewise.
    """
    if problem.kind != "expired" or problem.lost:
        return problem
    listed = list_segments(folder, records)
    start = start_of(listed[0]) if listed else None
    if start is None:
        return problem
    if since_us is not None:
        reaches = since_us <= start.accepted_at_us
    else:
        assert until_us is not None  # noqa: S101  # as called
        reaches = until_us <= start.accepted_at_us or until_us <= _begun_at_us(folder, records, listed[0])
    if not reaches:
        return problem
    text = f"{problem.text}; lost: what of revisions {problem.first} to {problem.last} was asked for"
    return replace(problem, text=text, lost=True)


def _begun_at_us(folder: str | os.PathLike[str], records: Records, segment: Segment) -> int:
    """Return the time of the first record of a segment, 0 when it cannot be read."""
    try:
        with SegmentReader(folder, records, segment) as reader:
            for block in reader:
                first = block[0]
                return first.rejected_at_us if isinstance(first, RejectedSend) else first.accepted_at_us
    except OSError:
        pass  # which is told by whoever reads it
    return 0


def _check_or_miss(folder: str | os.PathLike[str], records: Records, segment: Segment) -> CheckedSegment | Problem:
    try:
        return check_segment(folder, records, segment)
    except FileNotFoundError:
        return _whole_lost(segment, "expired", "it was removed while the archive was read")


def _lined_up(
    folder: str, listed: list[Segment], low: int, high: int, low_was_asked_for: bool
) -> tuple[list[Segment], list[Problem]]:
    """Return the segments that can be read beside each other, and what the names of all tell is wrong in a range of revisions."""
    problems: list[Problem] = []
    kept: list[Segment] = []
    reached = 0  # last revision so far, of whatever was listed
    for segment in listed:
        first, last = max(low, reached + 1), min(high, segment.first - 1)
        if not kept and first <= last:
            text = f"the archive begins with revision {segment.first}: what was before has been removed"
            asked_for = low_was_asked_for or high < segment.first  # all that is wanted is among it
            if asked_for:
                text += _lost(first, last)
            problems.append(Problem("expired", folder, 0, first, last, text, asked_for))
        elif kept and not kept[-1].open and first <= last:
            text = f"a segment is missing before revision {segment.first}" + _lost(first, last)
            problems.append(Problem("missing", folder, 0, first, last, text))
        if segment.first <= reached:
            last = first if segment.open else min(high, segment.last)
            lost = first <= last
            text = "it begins within the segment before it and is left out"
            text += _lost_from(first) if segment.open else _lost(first, last)
            problems.append(Problem("damaged", segment.path, 0, first * lost, last * lost, text, lost))
        else:
            kept.append(segment)
        reached = max(reached, segment.first - 1, segment.last)
    return kept, problems


def _end_missing(
    folder: str | os.PathLike[str], listed: list[Segment], reached: int, low: int, high: int, low_was_asked_for: bool
) -> Iterator[Problem]:
    """Yield what is missing behind the last segment up to a revision that the journal is known to have reached."""
    if listed and listed[-1].open:
        return
    first, last = max(low, listed[-1].last + 1 if listed else 1), min(high, reached)
    if first > last:
        return
    lost = bool(listed) or low_was_asked_for or high <= reached
    if lost:
        text = "the segments behind the last one are missing: a snapshot tells of what they held" + _lost(first, last)
    else:
        text = f"there are no segments: what was up to revision {last} has been removed"
    kind: ProblemKind = "missing" if listed else "expired"
    yield Problem(kind, segments_folder(folder, "changes"), 0, first, last, text, lost)


def _seam(before: CheckedSegment, after: CheckedSegment) -> Iterator[Problem]:
    """Yield what is wrong between two segments that were read one after the other."""
    path = after.path
    if before.last + 1 == after.first and before.healthy and after.start_chain not in {0, before.chain}:
        text = "it does not follow the segment before it: one of the two is not what was written"
        yield Problem("damaged", path, 0, 0, 0, text)
    if after.first_at_us and after.first_at_us < before.last_at_us:
        was, now = time_text(before.last_at_us), time_text(after.first_at_us)
        text = f"accepted_at steps back from {was} to {now} at revision {after.first}"
        yield Problem("clock", path, 0, after.first, after.first, text, lost=False)


def _in_time(segment: Segment, since_us: int | None, until_us: int | None) -> bool:
    """Tell whether a segment can hold records of a time: from what its first and last bytes say."""
    if until_us is not None:
        start = start_of(segment)
        if start is not None and start.accepted_at_us >= until_us:
            return False
    if since_us is None or segment.open:
        return True
    try:
        file = _File(segment.path)
    except OSError:
        return True  # reading it will tell
    try:
        ended_at_us = _ended_at_us(file)
    finally:
        file.close()
    return ended_at_us is None or ended_at_us >= since_us


def start_of(segment: Segment) -> Position | None:
    """Return what the header of a segment says of where it begins; None when there is none that can be believed."""
    try:
        file = _File(segment.path)
    except OSError:
        return None
    try:
        return Scanner(segment.path, file.size, lambda at, length: file.read(at, min(length, HEADER_BYTES))).start
    except (JournalDamagedError, OSError):
        return None
    finally:
        file.close()


def _ended_at_us(file: _File) -> int | None:
    """Return the time of the last record of a sealed segment, from its end mark; None without a whole one."""
    tail = file.read(max(0, file.size - _END_BLOCK_BYTES_MAX), _END_BLOCK_BYTES_MAX)
    end = len(tail) - SYNC_BYTES
    start = tail.find(b"\x02", 0, end)  # a block of one record
    while start >= 0:
        place = start + 2  # its size is below 64: one byte
        if tail[start + 1] & 1 == 0 and place + (tail[start + 1] >> 1) == end:
            check, seed, _ = _TAIL.unpack_from(tail, end - CHECK_BYTES)
            if zlib.crc32(tail[start : end - CHECK_BYTES], seed) == check:
                _, at_us, kind = first_record(tail[place:end])
                return at_us if kind == KIND_END else None
        start = tail.find(b"\x02", start + 1, end)
    return None
