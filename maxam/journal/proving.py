"""Prove every block of a segment without decoding it, at some GB/s: what is whole can be handed to any Avro reader."""

import os
import struct
import zlib
from dataclasses import dataclass
from typing import Final, final

from maxam.content import read_unsigned
from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder, decode_rejected
from maxam.journal.encoding import CHECK_BYTES, KIND_END, SYNC_BYTES, Position
from maxam.journal.layout import first_record
from maxam.journal.listing import Problem, Records, SegmentFile, open_segment, whole_lost
from maxam.journal.names import Segment
from maxam.journal.reading import Clock, Place, SegmentReader
from maxam.journal.scan import HEADER_BYTES, Scanner

_WINDOW_BYTES: Final = 4 << 20  # read at once while checking
_HEAD_BYTES: Final = 32  # more than count and size of a block, or than revision, time and kind of a record
TAIL: Final = struct.Struct(f">II{SYNC_BYTES}s")


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """The result of reading all of a segment.

    Attributes:
        segment: The file. The path is where it was found last.
        last: Revision of the last change read.
        first_at_us: Earliest accepted_at of its records; microseconds since the epoch, UTC.
        last_at_us: Latest accepted_at of its records.
        bytes: Of the file up to the end of its whole part.
        records: Records in it, without the end mark. 0 when it is not healthy.
        start_chain: Check of the block before the file, 0 when unknown.
        chain: Check of its last block.
        problems: Faults in it.
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
        """Path where the file was found last."""
        return self.segment.path

    @property
    def healthy(self) -> bool:
        """True if it is sealed and every byte is as it was written, so that any Avro reader accepts all of it."""
        return not self.segment.open and all(problem.kind == "clock" for problem in self.problems)


@final
class _Check:
    """Proves blocks without decoding them.

    Attributes:
        offset: Place after the last whole block, the end mark apart.
        chain: Its check.
        end: Place after the last whole block.
        last_offset: Place of its first byte, the end mark apart. 0 while there is none.
        before: Check of the block before that.
        records: So far, the end mark not counted.
        ended: The mark of a finished file was read.
        clock: Faults of the times.
    """

    def __init__(self, file: SegmentFile, path: str, sync_marker: bytes, place: Place) -> None:
        self._file: Final = file
        self._sync_marker: Final = sync_marker
        self.offset = place.offset
        self.chain = place.chain
        self.end = place.offset
        self.last_offset = 0
        self.before = place.chain
        self.records = 0
        self.ended = False
        self.clock: Final = Clock(path)

    def run(self, bytes_max: int) -> bool:  # noqa: C901, PLR0915 - one loop without calls but C's: a quiet gateway writes a block a change
        """Check all blocks, or those that begin in the next `bytes_max` bytes. Return False at anything but a whole next block.

        The last block may end after these bytes.
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
        crc32, tail, stamp_of = zlib.crc32, TAIL.unpack_from, struct.Struct("<Q").unpack_from
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
        found, file = open_segment(folder, records, segment)
        try:
            checked = _prove(records, found, file)
        finally:
            file.close()
        return checked if checked is not None else _read_through(folder, records, found)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = whole_lost(segment, "unreadable", f"it cannot be read ({error.strerror})")
        return CheckedSegment(segment, segment.last, 0, 0, 0, 0, 0, 0, (problem,))


def walk(
    folder: str | os.PathLike[str],
    records: Records,
    segment: Segment,
    place: Place | None,
    bytes_max: int,
    end: int | None = None,
) -> tuple[Place | None, bool]:
    """Skip whole blocks of a segment without decoding them. Only the last one is decoded.

    Args:
        folder: The journal's.
        records: Which of its segments.
        segment: One that was listed. It may have been sealed since.
        place: Where to begin, None for the first block.
        bytes_max: Stop after the block with which this many bytes are read.
        end: Where the segment is taken to end, None for its real end.

    Returns:
        The place after the last block, None if the header cannot be read. And True if the bytes there are no whole block that
        follows.

    Raises:
        FileNotFoundError: The segment is gone.
        OSError: It cannot be read.
        JournalDamagedError: The place is not where a block ended that the chain knows: it is of another journal, or of one that
            was cut back since.
    """
    found, file = open_segment(folder, records, segment)
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


def _prove(records: Records, segment: Segment, file: SegmentFile) -> CheckedSegment | None:
    """Return the contents of a sound segment. None if it has to be read to know them."""
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
    """Return the position after the last block that was checked, which is decoded for it. None if it is garbled."""
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
