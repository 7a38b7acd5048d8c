"""Follow a journal as it grows: where a reader stands, and how far it can go, across rolls, seals and restarts.

A cursor stands after a revision that was read. If possible it also has segment, byte and chain. So nothing is read twice to find
it, and a journal that is not the one that was read is noticed. Segment and byte survive the renaming at sealing.
"""

import os
from dataclasses import dataclass
from typing import Final

from maxam.errors import JournalError
from maxam.journal.listing import Records, list_segments, size_of, snapshot_revision
from maxam.journal.names import Segment
from maxam.journal.proving import walk
from maxam.journal.reading import Place, SegmentReader

_UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of a reader.

    Attributes:
        revision: Of the last change that was read, or that is not wanted.
        segment: First revision of the segment that holds the place, 0 for the beginning of whichever comes next.
        offset: Byte in it, after a block.
        chain: Check of that block.
    """

    revision: int
    segment: int = 0
    offset: int = 0
    chain: int = 0


class RevisionsLostError(JournalError):
    """Revisions that a reader was to get are gone, or cannot be read."""

    code = "revisions-lost"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of one segment, between two cursors.

    Attributes:
        segment: The file.
        place: Where to begin, None for the first block.
        end: Byte to end at, None for the end of the file.
    """

    segment: Segment
    place: Place | None
    end: int | None


def oldest(folder: str | os.PathLike[str], records: Records) -> Cursor:
    """Return the cursor before everything that is there."""
    reached, segments = _listed(folder, records)
    return Cursor(segments[0].first - 1 if segments else reached)


def newest(folder: str | os.PathLike[str], records: Records) -> Cursor:
    """Return the cursor behind everything that is there."""
    reached, segments = _listed(folder, records)
    if not segments or not segments[-1].open:
        return Cursor(max(reached, segments[-1].last if segments else 0))
    return _behind(folder, records, segments[-1], None, None, skip=True)


def advance(
    folder: str | os.PathLike[str],
    records: Records,
    cursor: Cursor,
    bytes_max: int | None = None,
    target: Cursor | None = None,
    skip: bool = False,
) -> Cursor:
    """Return how far a reader can go: after the last whole block, or after the block with which it has read `bytes_max` bytes.

    Args:
        folder: The journal's.
        records: Which of its segments.
        cursor: Where the reader stands.
        bytes_max: As above. At least one block is taken. None for no limit.
        target: Upper bound of the result, a cursor that was found here.
        skip: Skip revisions that cannot be read or are gone.

    Returns:
        The cursor itself when there is no further change. It may have another place, after records of sessions.

    Raises:
        RevisionsLostError: The next revisions are gone, or not whole.
        JournalError: The cursor is not of this journal, or ahead of it.
        OSError: A file cannot be read.
    """
    left = _UNLIMITED if bytes_max is None else bytes_max
    segments = _from_cursor(folder, records, cursor, skip)
    if target is not None:
        segments = [one for one in segments if one.first <= max(target.revision, target.segment)]
    reached = cursor
    for segment in segments:
        if left <= 0:
            break
        place = None
        if segment.first == cursor.segment:
            place = Place(cursor.offset, cursor.chain, cursor.revision)
        end = target.offset if target is not None and segment.first == target.segment else None
        size = size_of(segment)
        begun = 0 if place is None else place.offset
        # of one that begins before the cursor some has been read, but how much is not known
        limit = None if segment.first <= cursor.revision and place is None else left
        if not segment.open and end is None and (limit is None or size - begun <= limit):
            if place is not None:  # see that it is the journal that was read
                walk(folder, records, segment, place, 0)
            found = Cursor(segment.last)
        else:
            found = _behind(folder, records, segment, place, end, skip, limit)
        left -= (found.offset or size) - begun
        if found.revision < reached.revision:
            raise JournalError(
                f"{segment.path} ends with revision {found.revision}, but {reached.revision} has been read: it is not the "
                "journal that was read, or it was cut back"
            )
        reached = found
        if found.segment:  # there is more in this segment, or will be
            break
    return reached


def stretches(
    folder: str | os.PathLike[str], records: Records, start: Cursor, end: Cursor, skip: bool = False
) -> list[Stretch]:
    """Return what to read to get from one cursor to a later one.

    Raises:
        RevisionsLostError: Some of it is gone.
        JournalError: The cursor is not of this journal.
    """
    if start.revision >= end.revision:
        return []
    segments = _from_cursor(folder, records, start, skip)
    parts = [
        Stretch(
            one,
            Place(start.offset, start.chain, start.revision) if one.first == start.segment else None,
            end.offset if one.first == end.segment else None,
        )
        for one in segments
        if one.first <= end.revision and (one.open or one.last > start.revision)
    ]
    if not parts and not skip:
        raise RevisionsLostError(f"{os.fspath(folder)}: revisions {start.revision + 1} to {end.revision} are gone")
    return parts


def _listed(folder: str | os.PathLike[str], records: Records) -> tuple[int, list[Segment]]:
    """Return the revision that segments are known to have reached, and those that are there."""
    reached = (
        0 if records == "rejected" else snapshot_revision(folder)
    )  # first: the list then has everything that it covers
    return reached, list_segments(folder, records)


def _from_cursor(folder: str | os.PathLike[str], records: Records, cursor: Cursor, skip: bool) -> list[Segment]:
    """Return the segments that hold the records after a cursor. The first may end at it."""
    reached, segments = _listed(folder, records)
    wanted = cursor.revision + 1
    rest: list[Segment] = []
    last = 0  # of all so far
    expected = wanted
    for segment in segments:
        if segment.first <= last:
            if not skip and (segment.open or segment.last >= wanted):
                raise RevisionsLostError(
                    f"{segment.path}: it begins within the segment before it; one of the two is wrong"
                )
            continue
        last = segment.last
        if not (segment.open or segment.last >= wanted or segment.first == cursor.segment):
            continue
        if segment.first > expected and not skip:
            lost = f"revisions {expected} to {segment.first - 1}"
            if segment is segments[0]:
                raise RevisionsLostError(
                    f"{os.fspath(folder)}: the reader fell behind retention: {lost} are lost, the archive begins with revision "
                    f"{segment.first}"
                )
            raise RevisionsLostError(f"{segment.path}: a segment is missing before it: {lost} are lost")
        expected = segment.last + 1
        rest.append(segment)
    if segments and segments[-1].open:
        return rest
    end = max(last, reached)
    if end < cursor.revision:
        raise JournalError(
            f"{os.fspath(folder)} ends with revision {end}, but {cursor.revision} has been read: it is another journal"
        )
    first = max(wanted, last + 1)
    if first <= reached and not skip:
        why = "segments are missing" if segments else "the reader fell behind retention"
        raise RevisionsLostError(f"{os.fspath(folder)}: {why}: revisions {first} to {reached} are lost")
    return rest


def _behind(
    folder: str | os.PathLike[str],
    records: Records,
    segment: Segment,
    place: Place | None,
    end: int | None,
    skip: bool,
    bytes_max: int | None = None,
) -> Cursor:
    """Return the cursor after the last whole block of a segment, or after the block that reaches `bytes_max`."""
    limit = _UNLIMITED if bytes_max is None else bytes_max
    found, stuck = walk(folder, records, segment, place, limit, end)
    if not stuck and found is not None:
        if found.revision == segment.last:
            return Cursor(segment.last)
        return Cursor(found.revision, segment.first, found.offset, found.chain)
    if not segment.open and end is None:
        return Cursor(segment.last)  # damaged: reading it will report the loss
    with SegmentReader(folder, records, segment, place, end) as reader:
        for _ in reader:
            pass
        lost = [problem for problem in reader.problems if problem.lost]
        if lost and not skip:
            raise RevisionsLostError(str(lost[0]))
        there = reader.place
    if there is None:
        return Cursor(segment.first - 1)
    return Cursor(there.revision, segment.first, there.offset, there.chain)
