"""The place of a member's journal in the log of a cluster.

Theory of operation. A journal ends at a position. Each entry carries the positions before and after it. So the next entry for a journal
is the first one whose position before is that of the journal. Revisions of entries never decrease, so a binary search finds the entries
with the revision of the journal. Several entries may have it: blocks without a change, and entries without a block. Only the chain
decides among them. A journal whose position is not in the log, although the log reaches that far, is *forked*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from maxam.cluster.entry import Entry, same_position
from maxam.cluster.log import Head, LogError, LogTrimmedError
from maxam.journal.encoding import Position

FOLLOW: Final = "follow"
BEHIND: Final = "behind"
FORKED: Final = "forked"
FOUNDED: Final = 3  # entries that the founder of a log appends; a hint among them may be of a log that was replaced


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a journal belongs.

    Attributes:
        outcome: FOLLOW: it goes on with the entry `first`. BEHIND: the log has forgotten what follows it. FORKED: it is not a part of
            the log's history.
        first: Index of the next entry for the journal; 0 unless it goes on.
    """

    outcome: str
    first: int = 0


def find_place(position: Position, hint: int, head: Head, entry_at: Callable[[int], Entry]) -> Place:
    """Return the place of a journal.

    Args:
        position: Where the journal ends.
        hint: Index of an entry that was synced in it, perhaps an old one; 0 for none.
        head: The head of the log.
        entry_at: Returns the entry of an index, which may be any up to that of the head. Raises LogTrimmedError with the oldest index.

    Raises:
        LogTrimmedError: The log was trimmed meanwhile. Begin again.
        LogError: An entry cannot be read.
    """
    if FOUNDED < hint <= head.index:
        try:
            if same_position(entry_at(hint).after, position):
                return Place(FOLLOW, hint + 1)
        except LogTrimmedError:
            pass  # it is an old one
    if position.revision > head.position.revision:
        return Place(FORKED)
    first = _oldest(head, entry_at)
    low, high = first, head.index + 1  # the first entry that begins at the revision or after it is in between
    while low < high:
        middle = (low + high) // 2
        if entry_at(middle).before.revision < position.revision:
            low = middle + 1
        else:
            high = middle
    for index in range(low, head.index + 1):
        before = entry_at(index).before
        if before.revision > position.revision:
            break
        if same_position(before, position):
            return Place(FOLLOW, index)
    if same_position(head.position, position):
        return Place(FOLLOW, head.index + 1)
    # The log knows nothing of what is before its beginning. That may have the same revision and time, unless nothing was trimmed.
    begins = entry_at(first).before if first <= head.index else head.position
    ours, oldest = (position.revision, position.accepted_at_us), (begins.revision, begins.accepted_at_us)
    return Place(BEHIND if ours < oldest or (ours == oldest and first > 1) else FORKED)


def _oldest(head: Head, entry_at: Callable[[int], Entry]) -> int:
    """Return the index of the oldest entry that the log holds; that after the head if it holds none."""
    try:
        entry_at(1)
    except LogTrimmedError as error:
        return min(error.first, head.index + 1)
    return 1


@final
class ForkedError(LogError):
    """An entry of the log does not follow the own journal."""

    code = "forked"
