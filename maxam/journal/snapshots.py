"""Write the snapshots of a journal, into room that is reserved for them."""

import os
from collections.abc import Iterable, Iterator
from typing import Final

from maxam.errors import JournalError
from maxam.journal.disk import TEMPORARY, Disk, is_shortage, write_file
from maxam.journal.encoding import START, Encoder, Position, end_block, header
from maxam.journal.names import RESERVE, SEALED, list_snapshots, sealed_segments
from maxam.journal.whole import incarnation_of, whole_snapshot
from maxam.records import Change, Record

SNAPSHOTS_KEPT: Final = 2  # the older one is used when the newer one is damaged
_BLOCK_RECORDS: Final = 1000
_BLOCK_BYTES: Final = 1 << 20


def write_snapshot(
    folder: str | os.PathLike[str],
    disk: Disk,
    revision: int,
    records: Iterable[Record],
    sync_marker: bytes,
    accepted_at_us: int = 0,
    floor: int = -1,
) -> str:
    """Store all that is needed to start without the segments up to a revision, and drop all but the two newest snapshots.

    The older of the two must be whole for that.

    Args:
        folder: The journal's.
        disk: Where it is.
        revision: The last one of a sealed segment.
        records: Changes with rising revisions, then session records.
        sync_marker: 16 random bytes.
        accepted_at_us: Of the last record of all that it stands for, which need not be among `records`.
        floor: Revision above which `records` have all deletes; negative if that is not known.

    Returns:
        The path of the snapshot.

    Raises:
        DiskFullError: Nothing of it is left.
        JournalError: No sealed segment ends at this revision.
        ValueError: Revisions do not rise, or not up to `revision` at most.
    """
    root = os.fspath(folder)
    snapshots = f"{root}/snapshots"
    sealed = sealed_segments(root, disk)
    if sealed and all(segment.last != revision for segment in sealed):
        raise JournalError(
            f"no sealed segment of {root} ends at revision {revision}: a snapshot there could not be used"
        )
    for name in disk.names(snapshots):
        if name.endswith(TEMPORARY):
            disk.unlink(f"{snapshots}/{name}")
    # The gateway gives a segment its name, then syncs that: a snapshot that outlives the name would have no segment end where it does.
    disk.fsync_folder(f"{root}/segments")
    reserves = [f"{snapshots}/{name}" for name in disk.names(snapshots) if name.startswith(RESERVE)]
    # The larger one, as there may have been no room for the other. Of equal ones the last: the first is for the next snapshot.
    reserve = max(((disk.size(path), path) for path in reserves), default=(0, ""))[1]
    incarnation = next((incarnation_of(one.path, disk) for one in sealed if one.last == revision), "")
    end = Position(revision, accepted_at_us, 0)
    path = put_snapshot(root, disk, end, records, sync_marker, incarnation, reserve, floor)
    found = list_snapshots(snapshots, disk)
    olds, (kept, kept_path) = found[:-SNAPSHOTS_KEPT], found[-SNAPSHOTS_KEPT:][0]
    # One that is damaged by now makes up for nothing: what this one was made of stays, in case that this one is damaged later.
    if olds and whole_snapshot(kept_path, kept, disk) is None:
        for _, old in olds:
            disk.unlink(old)
    return path


def put_snapshot(
    root: str,
    disk: Disk,
    end: Position,
    records: Iterable[Record],
    sync_marker: bytes,
    incarnation: str,
    reserve: str = "",
    floor: int = -1,
) -> str:
    """Store a snapshot as `write_snapshot` does, wherever segments end, and drop none; return its path.

    `reserve` is a file beside it that becomes the snapshot, and whose room it takes. A negative `floor` is not known.
    """
    path = f"{root}/snapshots/{end.revision:020}{SEALED}"
    encoder = Encoder(START, sync_marker, gapless=False)
    write_file(disk, path, _snapshot_parts(end, records, encoder, incarnation, floor), reserve)
    disk.fsync_folder(f"{root}/snapshots")
    return path


def _snapshot_parts(
    end: Position, records: Iterable[Record], encoder: Encoder, incarnation: str, floor: int
) -> Iterator[bytes]:
    """Yield the bytes of a snapshot, a block at a time."""
    yield header(end, encoder.sync_marker, snapshot=True, incarnation=incarnation, floor=floor)
    batch: list[Record] = []
    length = 0
    for record in records:
        batch.append(record)
        if isinstance(record, Change):
            length += len(record.content)
        if len(batch) == _BLOCK_RECORDS or length >= _BLOCK_BYTES:
            yield encoder.encode(batch).data
            batch = []
            length = 0
    if batch:
        yield encoder.encode(batch).data
    if encoder.position.revision > end.revision:
        raise ValueError(f"revision {encoder.position.revision} in a snapshot of {end.revision}")
    yield end_block(encoder.position, encoder.sync_marker)


def reserve_snapshots(root: str, disk: Disk, size: int) -> bool:
    """Reserve room for one snapshot of a size, or for two while there is none yet; return False where there is no room.

    No other process may write a snapshot meanwhile. Two whole snapshots must stand for removed segments, hence the second one.
    """
    folder = f"{root}/snapshots"
    wanted = max(1, SNAPSHOTS_KEPT - len(list_snapshots(folder, disk)))
    names = {f"{RESERVE}{number}" for number in range(wanted)}
    there = {name for name in disk.names(folder) if name.startswith(RESERVE)}
    for name in sorted(there - names):
        disk.unlink(f"{folder}/{name}")
    for name in sorted(names):
        path = f"{folder}/{name}"
        if name in there and size * 3 // 4 <= disk.size(path) <= size * 2:
            continue  # a size that is about right stays: to make it again costs the disk much
        try:
            handle = disk.create(path)
            try:
                disk.allocate(handle, size)
            except OSError:
                disk.truncate(handle, 0)
                raise
            finally:
                disk.close(handle)
        except OSError as error:
            if not is_shortage(error):
                raise
            return False
    return True
