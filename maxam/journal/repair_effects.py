"""The topics and sessions that a repair affects, as far as damaged bytes and the rest of the journal show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from maxam.journal.disk import Disk
from maxam.journal.glimpse import LostChange, glimpse
from maxam.journal.repair_plan import Drop, Run, SessionLoss, TopicLoss
from maxam.journal.survey import read_run, snapshot_records
from maxam.records import AcknowledgementRecord, Change, OwedRecord

_GLIMPSE_BYTES_MAX: Final = 1 << 24  # of one stretch of damage: it is searched byte by byte

Ranges = Sequence[tuple[int, int]]  # first and last revision of each


@dataclass(frozen=True, slots=True)
class Effects:
    """The losses of a repair.

    Attributes:
        topics: Topics that will show an older value, in order of their names.
        sessions: Lost operations of durable sessions.
        unknown: Number of lost revisions whose topic is unknown, at most.
        candidates: Number of topics that those can be of.
    """

    topics: tuple[TopicLoss, ...]
    sessions: tuple[SessionLoss, ...]
    unknown: int
    candidates: int


def find_effects(disk: Disk, snapshot: str, drops: Sequence[Drop], lost: Ranges, runs: Sequence[Run]) -> Effects:
    """Return what a repair loses.

    Args:
        disk: Where the journal is.
        snapshot: Path of the newest whole snapshot, empty for none.
        drops: Bytes that are left out.
        lost: Revisions above that snapshot that no file holds.
        runs: Whole blocks that a start reads after it.
    """
    changes, sessions = _glimpse_all(disk, drops, runs)
    if not lost:
        return Effects((), sessions, 0, 0)
    newest: dict[bytes, tuple[int, int, bool]] = {}  # revision, accepted_at and whether it is a delete
    known: dict[bytes, tuple[int, bool | None]] = {}  # newest lost revision, and whether it was a delete
    for record in chain(snapshot_records(snapshot, disk), *(read_run(run, disk) for run in runs)):
        if isinstance(record, Change):
            newest[record.destination] = (record.revision, record.accepted_at_us, record.deleted)
        elif isinstance(record, AcknowledgementRecord | OwedRecord):
            for destination, revision in record.positions:
                if _is_in(revision, lost):
                    known[destination] = (max(known.get(destination, (0, None))[0], revision), None)
    revisions = {revision for revision in changes if _is_in(revision, lost)}
    revisions |= {revision for revision, _ in known.values()}
    unknown = sum(last - first + 1 for first, last in lost) - len(revisions)
    for change in changes.values():
        if change.revision >= known.get(change.destination, (0, None))[0]:
            known[change.destination] = (change.revision, change.deleted)
    topics = []
    for destination, (revision, deleted) in sorted(known.items()):
        shown, shown_at_us, shown_deleted = newest.get(destination, (0, 0, False))
        if shown < revision:
            name = destination.decode(errors="replace")
            topics.append(TopicLoss(name, revision, deleted, shown, shown_at_us, shown_deleted, deleted is None))
    highest = max(last for _, last in lost)
    candidates = sum(revision < highest for revision, _, _ in newest.values()) if unknown or changes else 0
    return Effects(tuple(topics), sessions, unknown, candidates)


def _glimpse_all(
    disk: Disk, drops: Sequence[Drop], runs: Sequence[Run]
) -> tuple[dict[int, LostChange], tuple[SessionLoss, ...]]:
    """Return the changes by revision, and the operations of sessions, that dropped bytes show."""
    changes: dict[int, LostChange] = {}
    sessions: dict[SessionLoss, None] = {}
    for drop in drops:
        if not drop.needed or not drop.length:
            continue
        since_us = max([0, *(run.after.accepted_at_us for run in runs if run.after.revision < max(drop.first, 1))])
        data = disk.read(drop.path, drop.offset, min(drop.length, _GLIMPSE_BYTES_MAX))
        before = max([0, *(run.after.revision for run in runs if run.path == drop.path and run.end <= drop.offset)])
        first = drop.first or before + 1
        for one in glimpse(data, first, max(drop.last, first - 1), since_us, 0):
            if isinstance(one, LostChange):
                changes[one.revision] = one
            else:
                sessions[one] = None
    return changes, tuple(sessions)


def _is_in(revision: int, ranges: Ranges) -> bool:
    return any(first <= revision <= last for first, last in ranges)
