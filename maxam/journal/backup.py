"""Copy a journal while a gateway writes it, and make a journal of such a copy again.

A backup is a folder `<when>` that is laid out like a journal's, with `manifest.json`: size and SHA-256 of every file. The manifest
is written last: a folder without one is no backup. Until then, and while it is removed, it is called `<when>.unfinished`. The next
backup removes the remains of a crash under such a name, and a backup that fails removes its own. One backup is made in a folder
at a time. A backup holds:

* the segments, the open one up to its last whole block, the newest snapshots, rejected SENDs, and the reports of repairs;
* the texts of all schemas. They are listed after the segments, because each was written before the first record that it judged;
* neither configuration nor keys nor certificates, which are no part of a journal.

A sealed segment, a snapshot and a schema never change. So a file that the previous backup in the same parent folder has is linked
to it and not read again. Any other file is copied and hashed. Files are compared by their ends, because names and sizes prove nothing. A restored
journal, or another one, gives the same names to other files, of the same size. They have other sync markers and chains. Backups in one folder
share their common files, and each can be removed on its own.

While the gateway rolls, seals and removes, files go between listing and reading: then the folder is listed again.

A backup is verified before it gets its name: every file is read again, linked ones too, by the code of `maxam-admin journal verify`.
A linked file that has decayed is copied from the journal instead.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Protocol, final

from maxam.errors import JournalDamagedError, JournalError
from maxam.journal.decoding import Decoder
from maxam.journal.disk import Disk, write_file
from maxam.journal.losses import FOLDER as DAMAGED
from maxam.journal.losses import report_paths
from maxam.journal.names import RENEW, RESTORING, list_segments, list_snapshots
from maxam.journal.replay import read_sealed
from maxam.journal.scan import HEADER_BYTES, Scanner
from maxam.journal.verify import FileReport, verify
from maxam.journal.whole import read_rejected

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = ".unfinished"  # ends the name of a backup that is being made or removed
LOCK: Final = "lock"  # held by the process that makes a backup in a folder
_FORMAT: Final = 1
_LISTINGS_MAX: Final = 20
_COPY_BYTES: Final = 1 << 22
_ENDS_BYTES: Final = 4096  # of each end of a file: they hold its sync marker and its chain
_PATH: Final = re.compile(
    r"(segments|snapshots|schemas|rejected|damaged/\w[\w.-]*)/\w[\w.-]*", re.ASCII
)  # of a file in a backup
_TEMPORARY: Final = ".tmp"  # of write_file
_FOLDERS: Final = ("segments", "snapshots", "schemas", "rejected")


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file of a backup: path within it, bytes, and SHA-256 in lower-case hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        when: Name of the backup.
        journal: Folder of the journal that it copies.
        head: The last revision in it.
        files: All of them.
        verified: It was read again and found whole before it got its name. False for a backup of a release that did not do that.
    """

    when: str
    journal: str
    head: int
    files: tuple[BackupFile, ...]
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a backup or a restore.

    Attributes:
        folder: Its folder.
        head: Its last revision.
        files: Number of its files.
        bytes: Size of all of them.
        copied: Bytes that were copied. The others are linked to the backup before.
        removed: Names of older backups that made room.
    """

    folder: str
    head: int
    files: int
    bytes: int
    copied: int
    removed: tuple[str, ...] = ()


def back_up(root: str, folder: str, when: str, disk: Disk, kept: int = 0) -> Done:
    """Copy a journal that may be in use into a new folder `<folder>/<when>`, and prove the copy.

    Args:
        root: The journal's folder.
        folder: Folder of the backups. It is made when missing, its parent must exist.
        when: Name of the backup. Names of later ones sort after it.
        disk: The disk of both.
        kept: Number of whole backups of this journal to keep: this one, whatever its name, and the newest others. 0 keeps all.

    Raises:
        JournalError: It is no journal, there is a backup of that name, another one is being made there, or the journal is damaged. Nothing
            of it is left then, as far as the disk lets us.
        DiskFullError: There is no room.
        OSError: A disk fails.
    """
    if "segments" not in disk.names(root) or "snapshots" not in disk.names(root):
        raise JournalError(f"{root} is not the folder of a journal: it has no folders segments and snapshots")
    if disk.make_folder(folder):
        disk.fsync_folder(folder.rpartition("/")[0] or "/")
    try:
        lock = disk.lock(f"{folder}/{LOCK}")
    except BlockingIOError:
        raise JournalError(f"another backup is being made in {folder}: wait for it, or name another folder") from None
    try:
        names = disk.names(folder)
        if when in names:
            raise JournalError(f"{folder}/{when} is there already: remove it, or name another folder")
        clear(folder, disk)
        target = f"{folder}/{when}{UNFINISHED}"
        disk.make_folder(target)
        try:
            done = _copy(root, target, when, _newest(folder, disk), disk)
            disk.rename(target, f"{folder}/{when}")
            target = f"{folder}/{when}"
            disk.fsync_folder(folder)
        except BaseException:
            with suppress(OSError):
                _remove(target, disk)
            raise
        removed = tuple(_prune(root, folder, when, kept, disk)) if kept else ()
        return replace(done, folder=f"{folder}/{when}", removed=removed)
    finally:
        disk.close(lock)


def clear(folder: str, disk: Disk) -> None:
    """Remove the remains of unfinished backups, as far as they can be removed. No other process may be making a backup there."""
    for name in disk.names(folder):
        if name.endswith(UNFINISHED):
            with suppress(OSError):
                _remove(f"{folder}/{name}", disk)


def _copy(root: str, target: str, when: str, before: str, disk: Disk) -> Done:
    """Fill a new folder with a backup, its manifest last."""
    copier = _Copier(root, target, before, disk)
    for _ in range(_LISTINGS_MAX):
        try:
            head = copier.copy_all()
            break
        except FileNotFoundError:  # sealed, or removed for its age, since it was listed
            continue
    else:
        raise JournalError(f"{root}: its files change all the time")
    files = tuple(sorted(copier.files.values(), key=lambda file: file.path))
    manifest = {
        "format": _FORMAT,
        "when": when,
        "journal": root,
        "head": head,
        "verified": True,  # before the folder gets the name of a backup
        "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in files],
    }
    write_file(disk, f"{target}/{MANIFEST}", [json.dumps(manifest, indent=1).encode()])
    disk.fsync_folder(target)
    try:
        _require_whole(target, disk, root)
    except JournalDamagedError as error:
        if error.path.removeprefix(f"{target}/") not in copier.linked:
            raise
        _remove(target, disk)
        disk.make_folder(target)
        return _copy(root, target, when, "", disk)
    return Done(target, head, len(files), sum(file.bytes for file in files), copier.copied)


def _prune(root: str, folder: str, made: str, kept: int, disk: Disk) -> Iterator[str]:
    """Remove all but the newest whole backups of a journal, and yield their names; what is not whole, or another's, is for people.

    The one just `made` is the newest, though a clock that was set back may have named it behind others.
    """
    whole = 1
    for name in sorted(set(disk.names(folder)) - {made}, reverse=True):
        try:
            manifest = read_manifest(f"{folder}/{name}", disk)
            if (manifest.when, manifest.journal) != (name, root) or not _has_all(f"{folder}/{name}", manifest, disk):
                continue
            whole += 1
            if whole > kept:
                disk.rename(f"{folder}/{name}", f"{folder}/{name}{UNFINISHED}")
                disk.fsync_folder(folder)
                _remove(f"{folder}/{name}{UNFINISHED}", disk)
                yield name
        except (JournalError, OSError):  # no backup, or one that cannot be removed now: the next one tries again
            continue


def _has_all(backup: str, manifest: Manifest, disk: Disk) -> bool:
    """Return True if all files of a backup are there, with the sizes that they should have."""
    try:
        return all(disk.size(f"{backup}/{file.path}") == file.bytes for file in manifest.files)
    except OSError:
        return False


def _remove(backup: str, disk: Disk) -> None:
    """Remove the folder of a backup, and nothing that no backup holds: what else somebody has put there stays, with its folder.

    Raises:
        OSError: It is not gone.
    """
    names = set(disk.names(backup))
    for name in {MANIFEST, MANIFEST + _TEMPORARY} & names:
        disk.unlink(f"{backup}/{name}")
    folders = [f"{backup}/{name}" for name in _FOLDERS if name in names]
    if DAMAGED in names:
        folders += [f"{backup}/{DAMAGED}/{name}" for name in disk.names(f"{backup}/{DAMAGED}")] + [
            f"{backup}/{DAMAGED}"
        ]
    for folder in folders:
        for name in disk.names(folder):
            disk.unlink(f"{folder}/{name}")
        disk.remove_folder(folder)
    disk.remove_folder(backup)
    disk.fsync_folder(backup.rpartition("/")[0])


def restore(backup: str, root: str, disk: Disk) -> Done:
    """Make a journal's folder of a backup, after which a gateway can start from it.

    A start is refused until all of it is there. The files are copied: the backup stays as it is.

    Args:
        backup: The backup's folder.
        root: A folder that is empty or missing; its parent must exist.
        disk: Where both are.

    Raises:
        JournalError: It is no backup, a file of it differs from the manifest, or the folder is not empty.
        DiskFullError: There is no room.
        OSError: A disk fails.
    """
    manifest = read_manifest(backup, disk)
    made = disk.make_folder(root)
    if not made and (left := disk.names(root)):
        raise JournalError(
            f"{root} is not empty ({len(left)} entries, such as {min(left)}): restore into a new folder, "
            "or move what is there away first"
        )
    if made:
        disk.fsync_folder(root.rpartition("/")[0] or "/")
    write_file(disk, f"{root}/{RESTORING}", [f"{backup}\n".encode()])
    write_file(disk, f"{root}/{RENEW}", [b""])  # what comes after it will be another history than the one that was lost
    disk.fsync_folder(root)
    folders = {f"{root}/{name}": None for name in ("segments", "snapshots", "schemas")}
    for file in manifest.files:
        parts = file.path.split("/")[:-1]
        folders |= {"/".join((root, *parts[:depth])): None for depth in range(1, len(parts) + 1)}
    for path in folders:
        disk.make_folder(path)
    for file in manifest.files:
        source = f"{backup}/{file.path}"
        try:
            size = disk.size(source)
        except FileNotFoundError:
            raise JournalError(f"{source} is missing, although the manifest lists it. Take another backup") from None
        digest = sha256()
        write_file(disk, f"{root}/{file.path}", _hashed(_read(source, size, disk), digest))
        if (size, digest.hexdigest()) != (file.bytes, file.sha256):
            raise JournalError(
                f"{source} differs from the manifest ({size} of {file.bytes} bytes, or another SHA-256). "
                f"Take another backup, and remove {root}"
            )
    for path in (*folders, root):  # all names, before the one that goes
        disk.fsync_folder(path)
    _require_whole(root, disk, backup)
    disk.unlink(f"{root}/{RESTORING}")
    disk.fsync_folder(root)
    size = sum(file.bytes for file in manifest.files)
    return Done(root, manifest.head, len(manifest.files), size, size)


def read_manifest(backup: str, disk: Disk) -> Manifest:
    """Return the contents of a backup by its manifest.

    Raises:
        JournalError: There is no manifest that can be believed.
    """
    path = f"{backup}/{MANIFEST}"
    try:
        content: dict[str, Any] = json.loads(disk.read(path, 0, disk.size(path)))
        if content["format"] != _FORMAT:
            raise JournalError(
                f"{path} is of another version of maxam (format {content['format']}): restore it with that"
            )
        files = tuple(BackupFile(str(one["path"]), int(one["bytes"]), str(one["sha256"])) for one in content["files"])
        verified = content.get("verified") is True
        manifest = Manifest(str(content["when"]), str(content["journal"]), int(content["head"]), files, verified)
    except FileNotFoundError:
        raise JournalError(
            f"{backup} is no backup: it has no {MANIFEST}, which is written last. Specify the folder of one backup"
        ) from None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise JournalError(f"{path} cannot be believed ({error}): take another backup") from error
    for file in files:
        if not _PATH.fullmatch(file.path):
            raise JournalError(f"{path} names {file.path!r}, which is outside of the backup: take another one")
    return manifest


def verify_backup(folder: str, disk: Disk) -> Iterator[FileReport]:
    """Report on each file of a journal, and on each file of a backup that differs from its manifest.

    Args:
        folder: A journal or a backup.
        disk: The disk that holds the folder.

    Raises:
        JournalError: There is a manifest that cannot be believed.
    """
    yield from verify(folder, disk)
    if MANIFEST in disk.names(folder):
        yield from verify_manifest(folder, disk)


def verify_manifest(backup: str, disk: Disk) -> Iterator[FileReport]:
    """Report on each file that differs from the manifest of a backup.

    Raises:
        JournalError: There is no manifest that can be believed.
    """
    for file in read_manifest(backup, disk).files:
        path = f"{backup}/{file.path}"
        try:
            size = disk.size(path)
        except FileNotFoundError:
            yield FileReport(path, 0, problem="it is missing, although the manifest lists it")
            continue
        digest = sha256()
        for part in _read(path, size, disk):
            digest.update(part)
        if (size, digest.hexdigest()) != (file.bytes, file.sha256):
            yield FileReport(
                path, size, problem=f"it differs from the manifest ({file.bytes} bytes, or another SHA-256)"
            )


@final
class _Copier:
    """Copies files until those of a backup's folder are those of the journal.

    Attributes:
        files: Files that are there, by path within the folder.
        linked: Paths of those that are the same files as in the backup before.
        copied: Bytes.
    """

    def __init__(self, root: str, target: str, before: str, disk: Disk) -> None:
        self._root: Final = root
        self._target: Final = target
        self._before: Final = before
        self._known: Final[dict[str, BackupFile]] = {}
        if before:
            with suppress(JournalError):  # it cannot be believed, or is another version's: nothing is linked to it
                self._known.update((file.path, file) for file in read_manifest(before, disk).files)
        self._disk: Final = disk
        self.files: Final[dict[str, BackupFile]] = {}
        self.linked: Final[list[str]] = []
        self.copied = 0
        self._folders: Final[dict[str, None]] = {}

    def copy_all(self) -> int:
        """Copy missing files and drop those that the journal no longer has. Return the last revision.

        Raises:
            FileNotFoundError: A file that was listed is gone; call again.
        """
        disk, root = self._disk, self._root
        wanted: set[str] = set()
        snapshots = list_snapshots(f"{root}/snapshots", disk)  # first, so that the segments after them are listed then
        head = 0
        for folder in ("segments", "rejected"):
            if folder == "rejected" and folder not in disk.names(root):
                continue
            sealed, opened = list_segments(f"{root}/{folder}", disk)
            for segment in sealed:
                wanted.add(self._keep(segment.path))
            last = max([0, *(segment.last for segment in sealed)])
            for segment in opened:
                path, reached = self._keep_open(segment.path, segment.first - 1, folder == "rejected")
                wanted |= {path} if path else set()
                last = max(last, reached)
            head = last if folder == "segments" else head
        wanted |= {self._keep(path) for _, path in snapshots}
        wanted |= {self._keep(path) for path in report_paths(root, disk)}
        if "schemas" in disk.names(root):
            names = sorted(name for name in disk.names(f"{root}/schemas") if name.endswith(".avsc"))
            wanted |= {self._keep(f"{root}/schemas/{name}") for name in names}
        for path in self.files.keys() - wanted:  # of an earlier listing
            del self.files[path]
            disk.unlink(f"{self._target}/{path}")
        for name in ("segments", "snapshots", "schemas"):
            self._make_folders(name + "/")
        for folder in self._folders:
            for name in disk.names(folder):
                if name.endswith(_TEMPORARY):  # its source went away while it was read
                    disk.unlink(f"{folder}/{name}")
            disk.fsync_folder(folder)
        return max(head, *(revision for revision, _ in snapshots), 0)

    def _keep(self, source: str) -> str:
        """Bring a file that never changes into the backup; return its path in it."""
        path = source.removeprefix(f"{self._root}/")
        if path in self.files:
            self._disk.size(source)  # it must still be there
            return path
        self._make_folders(path)
        size = self._disk.size(source)
        known = self._known.get(path)
        if known is not None and known.bytes == size and self._link(source, known):
            return path
        digest = sha256()
        write_file(self._disk, f"{self._target}/{path}", _hashed(_read(source, size, self._disk), digest))
        self.files[path] = BackupFile(path, size, digest.hexdigest())
        self.copied += size
        return path

    def _link(self, source: str, known: BackupFile) -> bool:
        try:
            there = f"{self._before}/{known.path}"
            if self._disk.size(there) != known.bytes or self._ends(there, known.bytes) != self._ends(
                source, known.bytes
            ):
                return False
            self._disk.link(there, f"{self._target}/{known.path}")
        except OSError:  # a file system without links, or the file is gone
            return False
        self.files[known.path] = known
        self.linked.append(known.path)
        return True

    def _ends(self, path: str, size: int) -> tuple[bytes, bytes]:
        """Return the first and last bytes of a file."""
        read = self._disk.read
        return read(path, 0, min(size, _ENDS_BYTES)), read(path, max(0, size - _ENDS_BYTES), min(size, _ENDS_BYTES))

    def _keep_open(self, source: str, before: int, rejected: bool) -> tuple[str, int]:
        """Copy an open segment up to its last whole block; return its path, "" for none, and the last revision in it."""
        path = source.removeprefix(f"{self._root}/")
        size = self._disk.size(source)
        data = self._disk.read(source, 0, size)
        self._disk.size(source)  # sealed meanwhile: then it has another name, and a block more
        end, last = _whole(source, data, before, rejected)
        if not end:
            return "", before
        data = data[:end]
        self._make_folders(path)
        write_file(self._disk, f"{self._target}/{path}", [data])
        self.files[path] = BackupFile(path, end, sha256(data).hexdigest())
        self.copied += end
        return path, last

    def _make_folders(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join((self._target, *parts[:depth]))
            self._disk.make_folder(folder)
            self._folders[folder] = None


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _newest(folder: str, disk: Disk) -> str:
    """Return the newest finished backup of a folder, "" when there is none."""
    for name in sorted(disk.names(folder), reverse=True):
        try:
            if not name.endswith(UNFINISHED) and MANIFEST in disk.names(f"{folder}/{name}"):
                return f"{folder}/{name}"
        except OSError:  # no folder
            continue
    return ""


def newest_backup(folder: str, disk: Disk) -> str:
    """Return the path of the newest finished backup in a folder, or the folder itself if it is a backup.

    Raises:
        JournalError: There is none.
    """
    if MANIFEST in disk.names(folder):
        return folder
    found = _newest(folder, disk)
    if not found:
        raise JournalError(f"{folder} holds no finished backup. Make one with `maxam-admin backup create`")
    return found


def _whole(path: str, data: bytes, before: int, rejected: bool) -> tuple[int, int]:
    """Return where the last whole block of an open segment ends, and its last revision; 0 without a whole header.

    Raises:
        JournalDamagedError: Whole blocks follow what is not one: that is no write under way.
    """
    try:
        scanner = Scanner(path, len(data), lambda offset, length: data[offset : offset + length])
    except JournalDamagedError:
        if len(data) > HEADER_BYTES:
            raise
        return 0, before
    scanner.leave_out_zeros()
    revision = before
    decoder = Decoder(before, 0)
    end = scanner.offset
    try:
        # its end mark is written just before it gets another name: without it, it is an open segment still
        if rejected:
            for sends in read_rejected(scanner, before):
                revision += len(sends)
                end = scanner.offset
        else:
            while scanner.records(decoder) is not None and not scanner.ended:
                revision = decoder.revision
                end = scanner.offset
    except JournalDamagedError:
        if not scanner.torn():
            raise
    return end, revision


def _read(path: str, size: int, disk: Disk) -> Iterator[bytes]:
    for offset in range(0, size, _COPY_BYTES):
        yield disk.read(path, offset, min(_COPY_BYTES, size - offset))


def _hashed(parts: Iterator[bytes], digest: "_Digest") -> Iterator[bytes]:
    for part in parts:
        digest.update(part)
        yield part


def _require_whole(root: str, disk: Disk, source: str) -> None:
    """Raise JournalDamagedError when a copy of a journal is not a whole journal."""
    for report in verify_backup(root, disk):
        if report.problem is not None:
            problem = f"{report.problem}. The copy is not finished: see `maxam-admin journal verify {source}`, and repair that first"
            raise JournalDamagedError(report.path, report.offset, problem)
    for _ in read_sealed(root, disk):  # as a start does: whole files need not belong together
        pass
