"""Read a journal's folder beside the gateway that writes it, and report exactly which parts cannot be read.

The gateway may write, roll and seal meanwhile, and retention may remove segments. A read covers everything that is there, up to
the last whole block. `listing` finds the segments, `reading` decodes them, and `proving` checks them without decoding. This module
selects the part that a reader wants, and reports the losses in it.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from maxam.journal.listing import (
    REVISION_MAX,
    Problem,
    ProblemKind,
    Records,
    SegmentFile,
    list_segments,
    lost_from_text,
    lost_text,
    segments_folder,
    snapshot_revision,
    start_of,
    time_text,
    whole_lost,
)
from maxam.journal.names import Segment
from maxam.journal.proving import CheckedSegment, check_segment
from maxam.journal.reading import SegmentReader
from maxam.journal.scan import END_TAIL_BYTES, end_position
from maxam.records import RejectedSend

_THREADS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Archive:
    """The readable part of a journal's folder, at one moment.

    Attributes:
        folder: The journal's.
        records: Kind for which the segments were examined. Accepted changes and sessions share segments.
        low: First revision that was asked for, 0 for any.
        first: First revision in the range that was asked for, 0 if there is none.
        last: Last revision in that range. Later writes are not part of it.
        sealed: Healthy segments, in order.
        damaged: Damaged sealed segments, in order.
        open: The open segment, if it holds any record.
        problems: All problems that were found.
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


def plan(
    folder: str | os.PathLike[str],
    records: Records,
    from_revision: int | None = None,
    to_revision: int | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    may_hold: Callable[[Segment], bool] | None = None,
) -> tuple[list[Segment], list[Problem]]:
    """Return the segments that can hold wanted records, in order, and the faults that their names show. Only ends of files are read.

    Arguments and errors are those of `examine`.
    """
    low = max(1, from_revision or 1)
    high = REVISION_MAX if to_revision is None else to_revision
    reached = (
        0 if records == "rejected" else snapshot_revision(folder)
    )  # before the list, which then has everything that it covers
    listed, problems = _lined_up(
        segments_folder(folder, records), list_segments(folder, records), low, high, from_revision is not None
    )
    problems += _end_missing(folder, listed, reached, low, high, from_revision is not None)
    if records == "sessions":
        high += 1  # records of sessions after the last change of a segment can be in the next one
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
    """Return the readable part of a journal, after proving every block in the range.

    Args:
        folder: The journal's.
        records: Kind of the records to read.
        from_revision: First one wanted, for accepted changes and sessions of the journal's, else of the rejected ones' counter.
            None for the first one that is there.
        to_revision: Last one wanted.
        since_us: Nothing accepted earlier is wanted; microseconds since the epoch, UTC.
        until_us: Nothing accepted then or later is wanted.
        may_hold: Returns False for a sealed segment that cannot hold any wanted record, so that it is not read.

    Returns:
        The state of now. Segments outside the range are in none of its parts.

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

    A span with a beginning is affected if the last record that was removed is in it or after it. A span without one is affected
    if everything that is there came later.

    Args:
        folder: The journal's.
        records: Kind of the records that are read.
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
    text = f"{problem.text}; the wanted ones of revisions {problem.first} to {problem.last} are lost"
    return replace(problem, text=text, lost=True)


def _begun_at_us(folder: str | os.PathLike[str], records: Records, segment: Segment) -> int:
    """Return the time of the first record of a segment, 0 when it cannot be read."""
    try:
        with SegmentReader(folder, records, segment) as reader:
            for block in reader:
                first = block[0]
                return first.rejected_at_us if isinstance(first, RejectedSend) else first.accepted_at_us
    except OSError:
        pass  # which is reported when the segment is read
    return 0


def _check_or_miss(folder: str | os.PathLike[str], records: Records, segment: Segment) -> CheckedSegment | Problem:
    try:
        return check_segment(folder, records, segment)
    except FileNotFoundError:
        return whole_lost(segment, "expired", "it was removed while the archive was read")


def _lined_up(
    folder: str, listed: list[Segment], low: int, high: int, low_was_asked_for: bool
) -> tuple[list[Segment], list[Problem]]:
    """Return the segments that can be read beside each other, and the faults that all names show in a range of revisions."""
    problems: list[Problem] = []
    kept: list[Segment] = []
    reached = 0  # last revision so far, of whatever was listed
    for segment in listed:
        first, last = max(low, reached + 1), min(high, segment.first - 1)
        if not kept and first <= last:
            text = f"the archive begins with revision {segment.first}: what was before has been removed"
            asked_for = low_was_asked_for or high < segment.first  # all that is wanted is among it
            if asked_for:
                text += lost_text(first, last)
            problems.append(Problem("expired", folder, 0, first, last, text, asked_for))
        elif kept and not kept[-1].open and first <= last:
            text = f"a segment is missing before revision {segment.first}" + lost_text(first, last)
            problems.append(Problem("missing", folder, 0, first, last, text))
        if segment.first <= reached:
            last = first if segment.open else min(high, segment.last)
            lost = first <= last
            text = "it begins within the segment before it and is left out"
            text += lost_from_text(first) if segment.open else lost_text(first, last)
            problems.append(Problem("damaged", segment.path, 0, first * lost, last * lost, text, lost))
        else:
            kept.append(segment)
        reached = max(reached, segment.first - 1, segment.last)
    return kept, problems


def _end_missing(
    folder: str | os.PathLike[str], listed: list[Segment], reached: int, low: int, high: int, low_was_asked_for: bool
) -> Iterator[Problem]:
    """Yield the segments missing after the last one, up to a revision that the journal is known to have reached."""
    if listed and listed[-1].open:
        return
    first, last = max(low, listed[-1].last + 1 if listed else 1), min(high, reached)
    if first > last:
        return
    lost = bool(listed) or low_was_asked_for or high <= reached
    if lost:
        text = "the segments after the last one are missing: a snapshot covers their changes" + lost_text(first, last)
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
    """Return True if a segment can hold records of a time, judged by its first and last bytes."""
    if until_us is not None:
        start = start_of(segment)
        if start is not None and start.accepted_at_us >= until_us:
            return False
    if since_us is None or segment.open:
        return True
    ended_at_us = ended_at(segment)  # None: only reading it can show that
    return ended_at_us is None or ended_at_us >= since_us


def ended_at(segment: Segment) -> int | None:
    """Return the time of the last record of a sealed segment, microseconds since the epoch. None if its end does not have it."""
    try:
        file = SegmentFile(segment.path)
    except OSError:
        return None
    try:
        end = end_position(file.read(max(0, file.size - END_TAIL_BYTES), END_TAIL_BYTES))
    except OSError:
        return None
    finally:
        file.close()
    return None if end is None else end.accepted_at_us
