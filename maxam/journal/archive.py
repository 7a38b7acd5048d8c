"""Read a journal's folder beside the gateway that writes it, and say exactly what of it cannot be read.

The gateway may write, roll and seal meanwhile, and retention may remove segments; what is there is read up to the last whole block. Which segments there
are is `listing`; `reading` decodes them, `proving` checks them without; here is what of them a reader wants, and what of that is lost.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from maxam.journal.decoding import first_record
from maxam.journal.encoding import CHECK_BYTES, KIND_END, SYNC_BYTES
from maxam.journal.listing import (
    REVISION_MAX,
    Problem,
    ProblemKind,
    Records,
    Segment,
    SegmentFile,
    find_segment,
    list_segments,
    lost_from_text,
    lost_text,
    segments_folder,
    size_of,
    snapshot_revision,
    start_of,
    time_text,
    whole_lost,
)
from maxam.journal.proving import TAIL, CheckedSegment, check_segment, walk
from maxam.journal.reading import Block, Place, SegmentReader
from maxam.records import RejectedSend

__all__ = [  # what readers need of all four
    "REVISION_MAX",
    "Archive",
    "Block",
    "CheckedSegment",
    "Place",
    "Problem",
    "ProblemKind",
    "Records",
    "Segment",
    "SegmentReader",
    "check_segment",
    "ended_at",
    "examine",
    "find_segment",
    "list_segments",
    "plan",
    "segments_folder",
    "size_of",
    "snapshot_revision",
    "start_of",
    "time_text",
    "walk",
]

_END_BLOCK_BYTES_MAX: Final = 128
_THREADS_MAX: Final = 8


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
        return whole_lost(segment, "expired", "it was removed while the archive was read")


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
    """Yield what is missing behind the last segment up to a revision that the journal is known to have reached."""
    if listed and listed[-1].open:
        return
    first, last = max(low, listed[-1].last + 1 if listed else 1), min(high, reached)
    if first > last:
        return
    lost = bool(listed) or low_was_asked_for or high <= reached
    if lost:
        text = "the segments behind the last one are missing: a snapshot tells of what they held" + lost_text(
            first, last
        )
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
    ended_at_us = ended_at(segment)  # None: reading it will tell
    return ended_at_us is None or ended_at_us >= since_us


def ended_at(segment: Segment) -> int | None:
    """Return the time of the last record of a sealed segment, microseconds since the epoch; None when its end does not tell."""
    try:
        file = SegmentFile(segment.path)
    except OSError:
        return None
    try:
        return _ended_at_us(file)
    except OSError:
        return None
    finally:
        file.close()


def _ended_at_us(file: SegmentFile) -> int | None:
    """Return the time of the last record of a sealed segment, from its end mark; None without a whole one."""
    tail = file.read(max(0, file.size - _END_BLOCK_BYTES_MAX), _END_BLOCK_BYTES_MAX)
    end = len(tail) - SYNC_BYTES
    start = tail.find(b"\x02", 0, end)  # a block of one record
    while start >= 0:
        place = start + 2  # its size is below 64: one byte
        if tail[start + 1] & 1 == 0 and place + (tail[start + 1] >> 1) == end:
            check, seed, _ = TAIL.unpack_from(tail, end - CHECK_BYTES)
            if zlib.crc32(tail[start : end - CHECK_BYTES], seed) == check:
                _, at_us, kind = first_record(tail[place:end])
                return at_us if kind == KIND_END else None
        start = tail.find(b"\x02", start + 1, end)
    return None
