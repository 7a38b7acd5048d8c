"""Recognise the journal that a reader has read before: by its incarnation, and by the check of the block that the reader read last."""

import os
from typing import Final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import CHECK_BYTES, SYNC_BYTES, Position
from maxam.journal.listing import Records, list_segments, open_segment, snapshot_revision, start_of
from maxam.journal.names import Segment
from maxam.journal.scan import END_TAIL_BYTES, Scanner, end_position
from maxam.journal.whole import newest_incarnation

_TAIL_BYTES: Final = (
    CHECK_BYTES + SYNC_BYTES
)  # of a block: its check, the check of the block before it, the sync marker


class OtherJournalError(JournalError):
    """Refuse a journal that is not the one that was read, or that was restored or repaired since."""

    code = "journal-other"


class NewIncarnationError(OtherJournalError):
    """Refuse a journal that holds all that was read, but got another incarnation since."""

    code = "journal-incarnation"


def incarnation(folder: str | os.PathLike[str]) -> str:
    """Return the incarnation of a journal; empty for none."""
    return newest_incarnation(os.fspath(folder), OsDisk())


def require_same(
    folder: str | os.PathLike[str], records: Records, known: str, revision: int, chain: int, *, restored: bool = False
) -> str:
    """Return the incarnation of a journal that a reader may go on with.

    Args:
        folder: The journal's.
        records: Kind of the records that were read.
        known: The incarnation that the journal had; empty if it had none, or if that is not known.
        revision: The last one that was read; 0 for none.
        chain: Check of the block that was read last; 0 if that is not known.
        restored: Another incarnation will do, if the journal holds that block.

    Raises:
        NewIncarnationError: The journal holds that block, but has another incarnation.
        OtherJournalError: The journal ends before that revision, does not hold that block, or cannot be proven to be the same.
        OSError: It cannot be read.
    """
    found = incarnation(folder)
    if revision <= 0:
        return found
    segments = list_segments(folder, records)
    if not segments or not segments[-1].open:
        reached = 0 if records == "rejected" else snapshot_revision(folder)
        end = max([reached, *(one.last for one in segments)])
        if end < revision:
            raise OtherJournalError(
                f"{os.fspath(folder)} ends with revision {end}, but {revision} has been read: it is another journal, or an older "
                "state of the same one"
            )
    holds = _holds(folder, records, segments, revision, chain) if chain else None
    if holds is False:
        raise OtherJournalError(
            f"{os.fspath(folder)} does not hold the block of revision {revision} that was read before. It is another journal, or one "
            "whose history is another since it was restored or repaired"
        )
    if known and found != known:
        text = f"{os.fspath(folder)} has the incarnation {found or 'none'}, but {known} was read"
        if not holds:
            raise OtherJournalError(f"{text}: it is another journal, or was restored or repaired since")
        if not restored:
            raise NewIncarnationError(
                f"{text}: it was restored or repaired since, and holds all up to revision {revision}"
            )
    return found


def incarnation_start(folder: str | os.PathLike[str], known: str) -> Position | None:
    """Return where the history of the newest incarnation of a journal begins, as far as its segments reach back.

    Args:
        folder: The journal's.
        known: That incarnation.

    Raises:
        OSError: A segment cannot be read.
    """
    found = None
    for segment in reversed(list_segments(folder, "changes")):
        try:
            _, file = open_segment(folder, "changes", segment)
        except FileNotFoundError:  # removed since it was listed
            continue
        try:
            scanner = Scanner(segment.path, file.size, file.read)
        except JournalDamagedError:  # the open one, before its header is whole
            continue
        finally:
            file.close()
        if scanner.incarnation != known:
            break
        found = scanner.start
    return found


def end_chain(folder: str | os.PathLike[str], records: Records, revision: int) -> int:
    """Return the check of the last block of the sealed segment that ends with a revision; 0 if there is none."""
    for segment in list_segments(folder, records):
        if not segment.open and segment.last == revision:
            return _end_of(folder, records, segment)
    return 0


def with_chain(folder: str | os.PathLike[str], position: Position) -> Position:
    """Return the position of a recovered journal's end, with its chain: one that is recovered from a snapshot alone has none yet."""
    if position.chain or not position.revision:
        return position
    chain = end_chain(folder, "changes", position.revision)
    return Position(position.revision, position.accepted_at_us, chain)


def find_block(
    folder: str | os.PathLike[str], records: Records, segment: Segment, chain: int, hint: int = 0
) -> int | None:
    """Return the offset after the block of a check.

    Args:
        folder: The journal's.
        records: Which of its segments.
        segment: The segment to search.
        chain: The check.
        hint: Where it may be. If it is not there, all blocks are checked.

    Raises:
        OSError: The segment cannot be read.
    """
    try:
        _, file = open_segment(folder, records, segment)
    except FileNotFoundError:  # removed since it was listed
        return None
    try:
        if hint >= _TAIL_BYTES and file.read(hint - _TAIL_BYTES, 4) == chain.to_bytes(4, "big"):
            return hint
        scanner = Scanner(segment.path, file.size, file.read)
        while scanner.chain != chain or scanner.offset == scanner.first_offset:
            if scanner.next_block() is None or scanner.ended:
                return None
    except JournalDamagedError:
        return None
    else:
        return scanner.offset
    finally:
        file.close()


def holds_block(folder: str | os.PathLike[str], records: Records, revision: int, chain: int) -> bool | None:
    """Return True if a journal holds the block of a check that ends with a revision. None if that part of the journal is gone.

    Raises:
        JournalError: There is no journal.
        OSError: It cannot be read.
    """
    return _holds(folder, records, list_segments(folder, records), revision, chain)


def _holds(
    folder: str | os.PathLike[str], records: Records, segments: list[Segment], revision: int, chain: int
) -> bool | None:
    """Return True if the block of a check is where a revision is. None if that part of the journal is gone."""
    there = [one for one in segments if one.first - 1 <= revision and (one.open or revision <= one.last)]
    compared = False
    for segment in there:
        if segment.first > revision:  # it begins after it
            start = start_of(segment)
            if start is not None and start.chain:
                if start.chain == chain:
                    return True
                compared = True
        else:
            compared = True
            if not segment.open and segment.last == revision and _end_of(folder, records, segment) == chain:
                return True
    if any(find_block(folder, records, one, chain) is not None for one in there):
        return True
    return False if compared else None


def _end_of(folder: str | os.PathLike[str], records: Records, segment: Segment) -> int:
    """Return the check of the last block of a sealed segment, as its end mark has it."""
    try:
        _, file = open_segment(folder, records, segment)
    except FileNotFoundError:
        return 0
    try:
        end = end_position(file.read(max(0, file.size - END_TAIL_BYTES), END_TAIL_BYTES))
    finally:
        file.close()
    return 0 if end is None else end.chain
