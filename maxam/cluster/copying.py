"""Copy a journal over a link: the newest whole snapshot, the sealed segments after it, and the texts of schemas.

The copy is written to `<folder>.copying`. A copy that was cut off is continued there: whole files stay, a part of a file is
completed. At the end all of it is read and proven as `maxam-admin journal verify` does, and renamed to `<folder>.copied`. The next
start puts it into the journal's place (`place_copy`).
"""

import re
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from maxam.cluster import wire
from maxam.cluster.feed import SCHEMA_NAME
from maxam.cluster.link import Link
from maxam.errors import JournalError
from maxam.journal.disk import Disk, write_at, write_file
from maxam.journal.listing import SegmentFile
from maxam.journal.losses import report_paths
from maxam.journal.names import RESTORING, list_segments, list_snapshots
from maxam.journal.verify import verify
from maxam.journal.whole import whole_snapshot

COPYING: Final = ".copying"
COPIED: Final = ".copied"
REPLACED: Final = ".replaced"  # ends the names of journals in whose place a copy was put
_FOLDERS: Final = ("segments", "snapshots", "schemas")
_PATH: Final = re.compile(r"(segments|snapshots|schemas|damaged/\w[\w.-]*)/\w[\w.-]*", re.ASCII)
_HOLD_S: Final = 0.5


def files_to_copy(folder: str, disk: Disk) -> list[tuple[str, int]]:
    """Return path and size of each file of a journal that another gateway needs to follow it.

    Raises:
        OSError: The folder cannot be read, or a file has gone since it was listed.
    """
    sealed = list_segments(f"{folder}/segments", disk)[0]
    base = 0
    paths: list[str] = []
    for revision, path in reversed(list_snapshots(f"{folder}/snapshots", disk)):
        if whole_snapshot(path, revision, disk) is None:
            base = revision
            paths.append(path)
            break
    needed = [one for one in sealed if one.last > base]
    before = [one for one in sealed if one.last <= base]
    # the last one before shows the check of the block at which the copy ends
    paths += [one.path for one in (*before[-1:], *needed)]
    if "schemas" in disk.names(folder):
        paths += [
            f"{folder}/schemas/{name}"
            for name in sorted(disk.names(f"{folder}/schemas"))
            if SCHEMA_NAME.fullmatch(name)
        ]
    paths += report_paths(folder, disk)
    return [(path.removeprefix(f"{folder}/"), disk.size(path)) for path in paths]


def give_copy(link: Link, folder: str, disk: Disk, bytes_per_s_max: int) -> None:
    """Answer the requests of a gateway that copies this journal, until it has all.

    Args:
        link: After WELCOME.
        folder: Of the journal.
        disk: Where it is.
        bytes_per_s_max: Rate of the copy.

    Raises:
        LinkLostError: The link has ended.
        WireError: The peer asked for something that is no file of the copy.
        OSError: A file cannot be read.
    """
    listed: set[str] = set()
    while True:
        frame = link.expect()
        if frame.type == wire.LIST:
            files = files_to_copy(folder, disk)
            listed = {path for path, _ in files}
            link.send(wire.encode_files(files))
        elif frame.type == wire.DATA:
            piece = wire.read_piece(frame.body)
            if piece.path not in listed:
                raise wire.WireError(f"{piece.path!r} was asked for, which is no file of the copy")
            _give_file(link, folder, piece, bytes_per_s_max)
        elif frame.type == wire.DONE:
            return
        else:
            raise wire.WireError(f"a frame of type {frame.type} on a copy")


def _give_file(link: Link, folder: str, piece: wire.Piece, bytes_per_s_max: int) -> None:
    """Send a file from an offset on, no faster than a rate."""
    try:
        file = SegmentFile(f"{folder}/{piece.path}")
    except FileNotFoundError:
        link.send(wire.encode_refused(wire.Refused(wire.CHANGED, f"{piece.path} is gone: list the files again")))
        return
    try:
        if piece.offset > file.size:
            raise wire.WireError(f"{piece.path!r} was asked for from byte {piece.offset} on, but ends at {file.size}")
        digest = sha256()
        begun_s, sent, offset = time.monotonic(), 0, piece.offset
        while data := file.read(offset, min(wire.PIECE_BYTES, bytes_per_s_max)):
            digest.update(data)
            link.send(wire.encode_piece(wire.Piece(piece.path, offset, data)))
            offset += len(data)
            sent += len(data)
            while (ahead_s := begun_s + sent / bytes_per_s_max - time.monotonic()) > 0:
                link.pause(min(ahead_s, _HOLD_S))
    finally:
        file.close()
    link.send(wire.encode_done(piece.path, digest.digest()))


def take_copy(link: Link, folder: str, disk: Disk, incarnation: str, report: Callable[[int, int], None]) -> int:
    """Copy the journal of the peer beside the own one; return the last revision of the copy.

    An earlier try is continued if it has the same incarnation. Files of other histories can have the same names and sizes.

    Args:
        link: After WELCOME.
        folder: Of the own journal, without a slash at its end.
        disk: Where it is.
        incarnation: Of the journal of the peer.
        report: Called with the bytes copied and the bytes in all.

    Raises:
        LinkLostError: The link has ended.
        WireError: The peer sent something else than what was asked for.
        JournalError: A file changed at the source, or the copy is damaged. Damaged files are removed: try again.
        OSError: The disk fails.
    """
    target = folder + COPYING
    for path in (target, *(f"{target}/{name}" for name in _FOLDERS)):
        disk.make_folder(path)
    mark = f"copied from another gateway, incarnation {incarnation}\n".encode()
    if RESTORING not in disk.names(target) or disk.read(f"{target}/{RESTORING}", 0, len(mark) + 1) != mark:
        _clear(target, set(), disk)
        for name in _FOLDERS:
            disk.fsync_folder(f"{target}/{name}")
        write_file(disk, f"{target}/{RESTORING}", [mark])
        disk.fsync_folder(target)
    link.send(wire.frame(wire.LIST, b""))
    frame = link.expect()
    if frame.type != wire.FILES:
        raise wire.WireError(f"a frame of type {frame.type} instead of the files of the copy")
    files = wire.read_files(frame.body)
    for path, _ in files:
        if not _PATH.fullmatch(path):
            raise wire.WireError(f"{path!r} is no path of a journal")
    _clear(target, {path for path, _ in files}, disk)
    size = sum(length for _, length in files)
    copied = 0
    folders = {target, *(f"{target}/{name}" for name in _FOLDERS)}
    for path, length in files:
        parent = f"{target}/{path}".rpartition("/")[0]
        if parent not in folders:  # of the report of a repair
            disk.make_folder(parent.rpartition("/")[0])
            disk.make_folder(parent)
            folders |= {parent, parent.rpartition("/")[0]}
        _take_file(link, f"{target}/{path}", path, length, disk, lambda more, had=copied: report(had + more, size))  # type: ignore[misc]
        copied += length
        report(copied, size)
    link.send(wire.encode_done("", bytes(wire.DIGEST_BYTES)))
    link.flush()
    for one in folders:
        disk.fsync_folder(one)
    revision = _require_whole(target, disk)
    disk.unlink(f"{target}/{RESTORING}")
    disk.fsync_folder(target)
    disk.rename(target, folder + COPIED)
    disk.fsync_folder(folder.rpartition("/")[0] or "/")
    return revision


def _take_file(link: Link, target: str, path: str, length: int, disk: Disk, report: Callable[[int], None]) -> None:
    """Copy one file, or the rest of it."""
    try:
        offset = disk.size(target)
        handle = disk.open(target)
    except FileNotFoundError:
        offset = 0
        handle = disk.create(target)
    try:
        if offset > length:
            disk.truncate(handle, 0)
            offset = 0
        if offset == length:
            disk.fsync(handle)
            return
        link.send(wire.encode_piece(wire.Piece(path, offset, b"")))
        digest = sha256()
        while True:
            frame = link.expect()
            if frame.type == wire.REFUSED:
                raise JournalError(f"the copy is to be listed again: {wire.read_refused(frame.body).text}")
            if frame.type == wire.DONE:
                break
            if frame.type != wire.DATA:
                raise wire.WireError(f"a frame of type {frame.type} within a file")
            piece = wire.read_piece(frame.body)
            if (piece.path, piece.offset) != (path, offset) or offset + len(piece.data) > length:
                raise wire.WireError(
                    f"bytes of {piece.path!r} from {piece.offset} on, where {path} from {offset} on was due"
                )
            write_at(disk, handle, piece.data, offset)
            digest.update(piece.data)
            offset += len(piece.data)
            report(offset)
        if offset != length or wire.read_done(frame.body) != (path, digest.digest()):
            disk.truncate(handle, 0)
            raise JournalError(f"{path} has {offset} bytes instead of {length}, or another SHA-256. It is copied again")
        disk.fsync(handle)
    finally:
        disk.close(handle)


def _clear(target: str, wanted: set[str], disk: Disk) -> None:
    """Remove the files of an earlier try that are not wanted any longer."""
    for folder in _FOLDERS:
        for name in disk.names(f"{target}/{folder}"):
            if f"{folder}/{name}" not in wanted:
                disk.unlink(f"{target}/{folder}/{name}")


def _require_whole(target: str, disk: Disk) -> int:
    """Return the last revision of a copy after reading all of it. A damaged file is removed and raises JournalError."""
    revision = 0
    for found in verify(target, disk):
        if found.problem is not None:
            disk.unlink(found.path)
            raise JournalError(
                f"{found.path}: byte {found.offset}: {found.problem}. It was removed, and is copied again"
            )
        revision = max(revision, found.last)
    return max([revision, *(one for one, _ in list_snapshots(f"{target}/snapshots", disk))])


def place_copy(folder: str, disk: Disk) -> bool:
    """Put a copy into the place of a journal, if there is one; return True if there was. Call it before the journal is opened.

    A journal in that place that holds anything is kept beside it as `<folder>.replaced-<n>`.

    Raises:
        JournalError: Another process has the journal in that place.
        OSError: The folder cannot be renamed, for example because it is a mount point.
    """
    parent, _, name = folder.rpartition("/")
    names = disk.names(parent or "/")
    if name + COPIED not in names:
        return False
    if name in names:
        numbers = [
            int(one.rpartition("-")[2]) for one in names if re.fullmatch(re.escape(name + REPLACED) + r"-[0-9]+", one)
        ]
        try:
            lock = disk.lock(f"{folder}/lock")
        except BlockingIOError as error:
            raise JournalError(f"the journal folder {folder} is in use by another process. Stop its gateway") from error
        try:
            disk.rename(folder, f"{folder}{REPLACED}-{max(numbers, default=0) + 1}")
        finally:
            disk.close(lock)
    disk.rename(folder + COPIED, folder)
    disk.fsync_folder(parent or "/")
    return True
