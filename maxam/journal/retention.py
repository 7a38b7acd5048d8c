"""What of the archive goes, and when: sealed segments that no start can ever need again, oldest first, by age and by size.

Invariants:

* Two snapshots that were just read to their end and found whole stand for every segment that is removed: should one of the two be damaged later,
  the other and the segments since are still there.
* What is left is always the end of what there was: each removal is durable before the next, so a crash leaves no hole.
* A reader that has a segment open reads it to its end; one that comes later is told `expired`, with the revisions.

Texts of schemas stay: their number is that of all minors ever released, whatever the load.
"""

from dataclasses import dataclass
from typing import Final

from maxam.errors import JournalDamagedError
from maxam.journal.disk import Disk
from maxam.journal.files import (
    SNAPSHOTS_KEPT,
    SealedSegment,
    list_segments,
    list_snapshots,
    open_scanner,
    whole_snapshot,
)
from maxam.journal.index import drop_strays
from maxam.journal.verify import is_torn_tail

_DAY_US: Final = 86_400_000_000
REMOVED_MAX: Final = (
    256  # segments at one go: a folder's worth of unlinks and syncs must not take the disk from the gateway
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How long the archive is kept. It is what snapshots stand for; what a start may need is never counted nor removed.

    Attributes:
        days_max: Segments whose last record is older go; 0 keeps them whatever their age.
        bytes_max: The oldest go while the archive's segments have more bytes; 0 keeps them whatever their size.
    """

    days_max: float
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Expired:
    """What was removed: segments, their bytes, and the revisions that they held."""

    segments: int
    bytes: int
    first: int
    last: int


def due(root: str, disk: Disk, rules: Rules, now_us: int) -> list[SealedSegment]:
    """Return the segments that the rules want removed, oldest first, if the snapshots are what their names say; reads no more than headers.

    Args:
        root: The journal's folder.
        disk: Where it is.
        rules: How long the archive is kept.
        now_us: Microseconds since the epoch.
    """
    snapshots = [revision for revision, _ in list_snapshots(f"{root}/snapshots", disk)]
    if len(snapshots) < SNAPSHOTS_KEPT:
        return []
    sealed, opened = list_segments(f"{root}/segments", disk)
    archive = [segment for segment in sealed if segment.last <= snapshots[-SNAPSHOTS_KEPT]]
    following = [*sealed, *opened][1 : len(archive) + 1]
    found = 0
    if rules.bytes_max:
        excess = sum(disk.size(segment.path) for segment in archive) - rules.bytes_max
        while excess > 0:
            excess -= disk.size(archive[found].path)
            found += 1
    if rules.days_max:
        oldest_us = now_us - int(rules.days_max * _DAY_US)
        # the segment behind one tells when its last record was accepted
        while (
            found < len(following) and found < len(archive) and _ended_at_us(following[found], disk, now_us) < oldest_us
        ):
            found += 1
    return archive[:found]


def expire(root: str, disk: Disk, rules: Rules, now_us: int) -> Expired | None:
    """Remove what `due` says, once two snapshots have been read and found whole; return what went, None when nothing did.

    Raises:
        JournalDamagedError: A snapshot is damaged; nothing was removed.
        OSError: The disk fails; what is left is the end of what there was.
    """
    segments = due(root, disk, rules, now_us)[:REMOVED_MAX]
    if not segments:
        return None
    for revision, path in list_snapshots(f"{root}/snapshots", disk)[-SNAPSHOTS_KEPT:]:
        error = whole_snapshot(path, revision, disk)
        if error is not None:
            raise JournalDamagedError(path, error.offset, "damaged: nothing is removed that it stands for")
    size = 0
    for segment in segments:
        size += disk.size(segment.path)
        _remove(segment.path, f"{root}/segments", disk)
    last = segments[-1].last
    for name in sorted(disk.names(f"{root}/segments")):
        first = name.partition(".")[0]
        if is_torn_tail(name) and first.isdecimal() and int(first) <= last:
            _remove(f"{root}/segments/{name}", f"{root}/segments", disk)
    drop_strays(root, disk)
    return Expired(len(segments), size, segments[0].first, last)


def _remove(path: str, folder: str, disk: Disk) -> None:
    disk.unlink(path)
    disk.fsync_folder(folder)


def _ended_at_us(following: SealedSegment, disk: Disk, now_us: int) -> int:
    """Return the time of the last record before a segment; now when its header cannot be believed."""
    try:
        return open_scanner(following.path, disk).start.accepted_at_us or now_us
    except JournalDamagedError:
        return now_us
