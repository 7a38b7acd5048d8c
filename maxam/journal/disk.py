"""The few file operations that the journal needs, so that a test can stand in for the disk."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, final

from maxam.errors import DiskFullError

TEMPORARY: Final = ".tmp"  # ends the name of a file that `write_file` has not finished


class Disk(Protocol):
    """Synchronous operations on files. They raise OSError. Handles are small integers. Nothing is durable before a sync."""

    def make_folder(self, path: str) -> bool:
        """Make a folder whose parent exists; return False when it is there."""

    def lock(self, path: str) -> int:
        """Open a file, made if need be, that no other process has locked; BlockingIOError if one has.

        The file may hold the id of the process that has it.
        """

    def names(self, folder: str) -> list[str]:
        """Return what a folder holds, in any order."""

    def size(self, path: str) -> int:
        """Return the bytes of a file."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of a file, fewer than `length` only at its end."""

    def create(self, path: str) -> int:
        """Open a file for writing, new or emptied."""

    def open(self, path: str) -> int:
        """Open an existing file for writing."""

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        """Write, and return how many bytes were written, which can be fewer."""

    def truncate(self, handle: int, size: int) -> None:
        """Truncate a file to a size, or extend it."""

    def allocate(self, handle: int, size: int) -> None:
        """Reserve room on the disk for a file of this size, and give it that size."""

    def fsync(self, handle: int) -> None:
        """Make a file durable, but not its name."""

    def fdatasync(self, handle: int) -> None:
        """Make the contents of a file durable."""

    def close(self, handle: int) -> None:
        """Close a handle; a lock goes with it."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder within its folder, atomically; an existing file is replaced."""

    def link(self, old: str, new: str) -> None:
        """Make a hard link to a file, in any folder of the same file system."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""

    def hold_folder(self, path: str) -> int:
        """Keep a folder open until the handle is closed, so that syncing it needs no file to be opened."""

    def fsync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""


@final
class OsDisk:
    """The real disk."""

    def __init__(self) -> None:
        """Make one that holds no folder."""
        self._folders: Final[dict[str, int]] = {}  # handles that `hold_folder` has given

    def make_folder(self, path: str) -> bool:  # noqa: D102 - the protocol has the docstrings, also of all methods below
        try:
            Path(path).mkdir(mode=0o750)
        except FileExistsError:
            return False
        return True

    def lock(self, path: str) -> int:  # noqa: D102
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        with suppress(OSError):  # only for people: on a full disk they do without
            os.truncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        return handle

    def names(self, folder: str) -> list[str]:  # noqa: D102
        return os.listdir(folder)  # noqa: PTH208 - names are wanted

    def size(self, path: str) -> int:  # noqa: D102
        return Path(path).stat().st_size

    def read(self, path: str, offset: int, length: int) -> bytes:  # noqa: D102
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a named pipe must not block
                raise OSError(errno.EINVAL, "not a regular file", path)
            return read_at(file.fileno(), offset, max(0, length))

    def create(self, path: str) -> int:  # noqa: D102
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)

    def open(self, path: str) -> int:  # noqa: D102
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:  # noqa: D102
        return os.pwrite(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:  # noqa: D102
        os.ftruncate(handle, size)

    def allocate(self, handle: int, size: int) -> None:  # noqa: D102
        os.posix_fallocate(handle, 0, size)

    def fsync(self, handle: int) -> None:  # noqa: D102
        os.fsync(handle)

    def fdatasync(self, handle: int) -> None:  # noqa: D102
        os.fdatasync(handle)

    def close(self, handle: int) -> None:  # noqa: D102
        for path in [path for path, held in self._folders.items() if held == handle]:
            del self._folders[path]
        os.close(handle)

    def rename(self, old: str, new: str) -> None:  # noqa: D102
        Path(old).replace(new)

    def link(self, old: str, new: str) -> None:  # noqa: D102
        Path(new).hardlink_to(old)

    def unlink(self, path: str) -> None:  # noqa: D102
        Path(path).unlink()

    def remove_folder(self, path: str) -> None:  # noqa: D102
        Path(path).rmdir()

    def hold_folder(self, path: str) -> int:  # noqa: D102
        handle = self._folders[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return handle

    def fsync_folder(self, path: str) -> None:  # noqa: D102
        held = self._folders.get(path)
        if held is not None:
            os.fsync(held)
            return
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_at(handle: int, offset: int, length: int) -> bytes:
    """Return bytes of an open file, fewer than `length` only at its end."""
    data = os.pread(handle, length, offset)
    if len(data) == length:
        return data
    parts = [data]
    while parts[-1] and length > len(parts[-1]):
        offset += len(parts[-1])
        length -= len(parts[-1])
        parts.append(os.pread(handle, length, offset))
    return b"".join(parts)


def is_shortage(error: OSError) -> bool:
    """Return True if an operation failed for lack of room or of open files, so that it can succeed later."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}


def write_file(disk: Disk, path: str, parts: Iterable[bytes], reserve: str = "") -> None:
    """Write a file that appears whole and synced under its name, or not at all. The name is for the caller to sync.

    Args:
        disk: Where it is.
        path: Its name.
        parts: Its bytes.
        reserve: A file in the same folder that becomes it, and whose room it takes. Without one it gets room as it grows.

    Raises:
        DiskFullError: Nothing of it is left.
    """
    temporary = reserve or path + TEMPORARY
    try:
        handle = disk.open(temporary) if reserve else disk.create(temporary)
        try:
            offset = 0
            for part in parts:
                write_at(disk, handle, part, offset)
                offset += len(part)
            if reserve:
                disk.truncate(handle, offset)
            disk.fsync(handle)
        finally:
            disk.close(handle)
        disk.rename(temporary, path)
    except OSError as error:
        if not is_shortage(error):
            raise
        if not reserve and temporary.rpartition("/")[2] in disk.names(path.rpartition("/")[0]):
            disk.unlink(temporary)
        raise DiskFullError(f"{path}: no room") from error


def write_at(disk: Disk, handle: int, data: bytes, offset: int) -> None:
    """Write all of the bytes, in as many calls as the disk wants.

    Raises:
        OSError: Some of them may be written.
    """
    written = disk.pwrite(handle, data, offset)
    while written < len(data):
        more = disk.pwrite(handle, data[written:], offset + written)
        if not more:
            raise OSError(errno.EIO, "a write made no progress")
        written += more
