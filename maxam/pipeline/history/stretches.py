"""The stretches of a journal that a history table lacks, and the report of a run. It imports no library, so a run that finds nothing new is short."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from maxam.errors import JournalDamagedError
from maxam.journal.identity import find_block
from maxam.journal.listing import Problem, list_segments, open_segment, size_of
from maxam.journal.names import Segment
from maxam.journal.reading import Place
from maxam.journal.scan import Scanner
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.table import Table


@dataclass(slots=True)
class HistoryReport:
    """The result of a run.

    Attributes:
        first: First revision that it added, 0 for none.
        last: The last one that the table holds now, 0 for none.
        rows: Added, by type. `untyped` for those whose value no schema is known for.
        files: Added.
        rewritten: Files that were given other columns.
        problems: Parts of the journal that could not be read, or not as they should.
        lost: First and last revision of each stretch that the table lacks, since its first run, in order and apart.
    """

    first: int = 0
    last: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    files: int = 0
    rewritten: int = 0
    problems: list[Problem] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment, or the part of it that was not read before.

    Attributes:
        segment: As it was listed.
        size: Bytes of it to read. Bytes that a gateway writes after them meanwhile are for later.
        place: Where to begin, None for its beginning.
    """

    segment: Segment
    size: int
    place: Place | None = None


def torn_tail(path: str, offset: int, error: JournalDamagedError) -> Problem:
    """Return the problem of an open segment whose last write was not finished.

    Args:
        path: Of the segment.
        offset: Where that write begins.
        error: Of the scanner.
    """
    text = str(error).partition(f"byte {error.offset}: ")[2]
    return Problem("torn", path, offset, 0, 0, f"{text}: a write that was not finished", lost=False)


def missing_stretches(journal: Path, table: Table, report: HistoryReport) -> list[Stretch]:
    """List the stretches that the table lacks, and report the missing ones between.

    Raises:
        PipelineError: The revision that comes next is not in the journal.
    """
    segments = list_segments(journal, "changes")
    state = table.state
    if state.revision < 0:
        first = segments[0].first if segments else 1
        state = table.state = replace(state, revision=first - 1)
        if first > 1:
            text = f"the archive begins with revision {first}: the table does not hold what retention removed before"
            folder = os.path.dirname(segments[0].path)  # noqa: PTH120 - a string is at hand
            report.problems.append(Problem("expired", folder, 0, 1, first - 1, text, lost=False))
    todo: list[Stretch] = []
    expected = state.revision + 1
    for segment in segments:
        if not segment.open and segment.last < expected:
            continue
        if segment.first > expected:
            lost = f"revisions {expected} to {segment.first - 1}"
            folder = os.path.dirname(segment.path)  # noqa: PTH120 - a string is at hand
            if segment is segments[0]:
                raise PipelineError(
                    f"{lost} are lost for this table: it is at {state.revision}, and {folder} begins with {segment.first}, as"
                    " retention was faster. Build a new table in another folder, and run history more often than retention"
                )
            text = f"a segment is missing: {lost} are lost"
            report.problems.append(Problem("missing", folder, 0, expected, segment.first - 1, text))
        place = None
        if segment.first == state.segment:
            offset = find_block(journal, "changes", segment, state.chain, state.offset) if state.chain else None
            place = Place(state.offset if offset is None else offset, state.chain, state.place_revision)
        size = size_of(segment)
        if not size:  # just sealed
            found = next((one for one in list_segments(journal, "changes") if one.first == segment.first), None)
            if found is None:
                raise PipelineError(f"{segment.path}: removed while the journal was listed: run it again") from None
            size = size_of(found)
            segment = found  # noqa: PLW2901 - the same one under its new name
        if segment.open and not _has_block(journal, segment, size, place, report):
            continue
        todo.append(Stretch(segment, size, place))
        expected = max(expected, segment.last + 1)
    last = max((segment.last or segment.first - 1 for segment in segments), default=0)
    if state.revision > last and not (segments and segments[-1].open):
        raise PipelineError(
            f"the table is at revision {state.revision}, but {journal} ends with {last}: it is not the journal that the table is of"
        )
    return todo


def _has_block(journal: Path, segment: Segment, size: int, place: Place | None, report: HistoryReport) -> bool:
    """Return True unless nothing whole follows a place in an open segment; a torn tail is a problem of the report then."""
    if place is not None and size <= place.offset:
        return False
    try:
        segment, file = open_segment(journal, "changes", segment)
    except FileNotFoundError:  # removed since it was listed: the task reports it
        return True
    with closing(file):
        if not segment.open:
            return True
        try:
            scanner = Scanner(segment.path, size, file.read)
        except JournalDamagedError:  # of its header: the task reports it
            return True
        if place is not None:
            scanner.offset, scanner.chain = place.offset, place.chain
        offset = scanner.offset
        try:
            return scanner.next_block() is not None
        except JournalDamagedError as error:
            if not scanner.torn():
                return True
            report.problems.append(torn_tail(segment.path, offset, error))
            return False


def joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches of revisions in order; those that overlap or touch become one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def rounds(stretches: list[Stretch], round_bytes: int) -> Iterator[list[Stretch]]:
    """Divide stretches into rounds of bounded bytes; each has at least one stretch."""
    batch: list[Stretch] = []
    size = 0
    for stretch in stretches:
        more = stretch.size - (stretch.place.offset if stretch.place is not None else 0)
        if batch and size + more > round_bytes:
            yield batch
            batch, size = [], 0
        batch.append(stretch)
        size += more
    if batch:
        yield batch
