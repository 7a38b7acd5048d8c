"""Remove sealed segments that no start can ever need again, oldest first, by age and by size.

Invariants:

* Two snapshots that were just read to their end and found whole stand for every segment that is removed. Should one of the two
  be damaged later, the other and the segments since are still there.
* The remaining segments are always the last ones: each removal is durable before the next, so a crash leaves no hole.
* A reader that has a segment open reads it to its end. One that comes later gets the error `expired`, with the revisions.

Texts of schemas stay: their number is that of all minors ever released, whatever the load.
"""

from dataclasses import dataclass
from typing import Final

from maxam.errors import JournalDamagedError
from maxam.journal.disk import Disk
from maxam.journal.index import drop_strays
from maxam.journal.names import Segment, is_torn_tail, list_segments, list_snapshots
from maxam.journal.snapshots import SNAPSHOTS_KEPT
from maxam.journal.whole import open_scanner, whole_snapshot

_DAY_US: Final = 86_400_000_000
REMOVED_MAX: Final = (
    256  # segments at one go: a folder's worth of unlinks and syncs must not take the disk from the gateway
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of the archive, which is the part of the journal that snapshots stand for. A start needs none of it.

    Attributes:
        days_max: Segments whose last record is older go; 0 keeps them whatever their age.
        bytes_max: The oldest go while the archive's segments have more bytes; 0 keeps them whatever their size.
    """

    days_max: float
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Removed segments, their bytes, and the revisions that they held."""

    segments: int
    bytes: int
    first: int
    last: int


def due(root: str, disk: Disk, rules: Rules, now_us: int) -> list[Segment]:
    """Return the segments that the rules remove, oldest first, if the headers of the snapshots match their names. Reads only headers.

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
        # the segment after one has the time of its last record
        while (
            found < len(following) and found < len(archive) and _ended_at_us(following[found], disk, now_us) < oldest_us
        ):
            found += 1
    return archive[:found]


def expire(root: str, disk: Disk, rules: Rules, now_us: int) -> Expired | None:
    """Remove the segments of `due`, once two snapshots have been read and found whole. Return the removed ones, or None.

    Raises:
        JournalDamagedError: A snapshot is damaged. Nothing was removed.
        OSError: The disk fails. The remaining segments are the last ones.
    """
    segments = due(root, disk, rules, now_us)[:REMOVED_MAX]
    if not segments:
        return None
    for revision, path in list_snapshots(f"{root}/snapshots", disk)[-SNAPSHOTS_KEPT:]:
        error = whole_snapshot(path, revision, disk)
        if error is not None:
            raise JournalDamagedError(path, error.offset, "damaged: nothing is removed that it stands for")
    disk.fsync_folder(
        f"{root}/snapshots"
    )  # the process that built them may have been killed before it could sync their names
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


def _ended_at_us(following: Segment, disk: Disk, now_us: int) -> int:
    """Return the time of the last record before a segment; now when its header cannot be believed."""
    try:
        return open_scanner(following.path, disk).start.accepted_at_us or now_us
    except JournalDamagedError:
        return now_us
