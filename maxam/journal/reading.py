"""Decode the segments of a journal beside its writer, going on behind damage with the next block that is whole.

Nothing is believed that the checks do not prove.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder, decode_rejected
from maxam.journal.encoding import Position
from maxam.journal.layout import first_record
from maxam.journal.listing import (
    REVISION_MAX,
    Problem,
    ProblemKind,
    Records,
    fault_text,
    lost_from_text,
    lost_text,
    open_segment,
    time_text,
    whole_lost,
)
from maxam.journal.names import Segment
from maxam.journal.scan import HEADER_BYTES, OTHER_VERSION, Scanner, headless
from maxam.records import Change, Record, RejectedSend

Block = Sequence[Record | RejectedSend]

# Changes that arrive together share their time, and one group commit takes all of them. If a time is still the same after two
# more blocks, the clock does not run.
_STILL_BLOCKS: Final = 3


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


@final
class SegmentReader:
    """Decodes one segment block by block, and goes on after damage. To be closed.

    Attributes:
        segment: The segment, under the name it had when it was opened.
        offset: Of the block that was returned last.
        problems: Faults found so far. Complete when no blocks are left.
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
        self.segment, self._file = open_segment(folder, records, segment)
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
        self._clock = Clock(self.segment.path)
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
    def place(self) -> Place | None:
        """Place of the next block, None when the file has no blocks that could be read."""
        scanner = self._scanner
        return None if scanner is None else Place(scanner.offset, scanner.chain, self.revision)

    @property
    def start(self) -> Position | None:
        """The position in the file's header, None if there is no header that can be believed."""
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
                if not self._skip(scanner, fault_text(error)):
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
            fault = fault_text(error)
            if segment.open and file.size <= HEADER_BYTES:  # it was synced before any block
                self._report("torn", 0, 0, 0, "the header is not written yet", lost=False)
                return None
            if fault == OTHER_VERSION:
                self.problems.append(whole_lost(segment, "unreadable", fault))
                return None
            found = self._without_header(fault)
            if found is None:
                self.problems.append(whole_lost(segment, "damaged", fault))
            return found
        if scanner.snapshot or scanner.start.revision != segment.first - 1:
            self.problems.append(whole_lost(segment, "damaged", "its header and its name differ"))
            return None
        self._decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
        return scanner

    def _without_header(self, fault: str) -> Scanner | None:
        """Return a scanner of the blocks after a damaged header, or None when there are none."""
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
        """Skip damage up to the next whole block, and report the loss. Return False if there is none."""
        surplus, scanner.ended = scanner.ended, False
        while scanner.skip_damage():
            if self._resume(scanner, fault):
                return True
        first, last = self.revision + 1, self.segment.last
        if not self.segment.open:
            self._report(
                "damaged", self.offset, first, last, fault + lost_text(first, last), not surplus or first <= last
            )
        elif whole or self._end is not None:
            self._report("damaged", self.offset, first, first, fault + lost_from_text(first))
        else:
            self._report("torn", self.offset, 0, 0, f"{fault}: a write that was not finished", lost=False)
        self.revision = max(self.revision, self.segment.last)
        return False

    def _resume(self, scanner: Scanner, fault: str) -> bool:
        """Continue with the whole block that the scanner has reached, if it can follow here. Else skip it."""
        offset, chain = scanner.offset, scanner.chain
        block = scanner.next_block()
        if block is None:
            return False
        revision, _, _ = first_record(block[0])  # of the first change in it or after it
        if not self.revision < revision <= (self.segment.last or REVISION_MAX) + 1:
            return False
        scanner.offset, scanner.chain = offset, chain
        scanner.ended = False
        first, last = self.revision + 1, revision - 1
        only_header = offset <= HEADER_BYTES
        self._report(
            "damaged", self.offset, first, last, fault + lost_text(first, last), not only_header or first <= last
        )
        self.revision = last
        self._decoder = Decoder(last, 0)
        return True

    def _finish(self, scanner: Scanner) -> None:
        segment = self.segment
        if segment.open:
            if self._end is not None and scanner.size < self._end:
                first = self.revision + 1
                self._report(
                    "damaged", scanner.size, first, first, f"it was cut since; revision {first} and maybe more are lost"
                )
            return
        first, last = self.revision + 1, segment.last
        if not scanner.ended:
            fault = "the mark of a finished file is missing at its end"
            self._report("damaged", scanner.size, first, last, fault + lost_text(first, last))
        elif self.revision != last:
            fault = f"it ends with revision {self.revision}, not with that of its name"
            self._report("damaged", scanner.size, first, last, fault + lost_text(first, last))
        self.revision = last

    def _report(self, kind: ProblemKind, offset: int, first: int, last: int, text: str, lost: bool = True) -> None:
        if first > last:
            first = last = 0
            lost = lost and self._records == "sessions"  # what they did has no revisions of its own
        self.problems.append(Problem(kind, self.segment.path, offset, first, last, text, lost))


@final
class Clock:
    """Detects that the clock of `accepted_at` ran backwards: times in a file stand still, or step back.

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
        """Check the beginning of the next block. One whose time is later than that of the block before may be left out."""
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
                f"{time_text(self._at_us)} as accepted_at. When they were accepted is not known"
            )
            self._problems.append(Problem("clock", self._path, self._offset, first, last, text, lost=False))
        self._blocks = 0

    def end(self) -> list[Problem]:
        """Return what was seen."""
        self._close()
        return self._problems
