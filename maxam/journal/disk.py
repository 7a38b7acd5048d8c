"""The few file operations that the journal needs, so that a test can stand in for the disk."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol, final


class Disk(Protocol):
    """Synchronous operations on files. They raise OSError; handles are small integers; nothing is durable before a sync."""

    def make_folder(self, path: str) -> bool:
        """Make a folder whose parent exists; return False when it is there."""

    def lock(self, path: str) -> int:
        """Open a file, made if need be, that no other process has locked; BlockingIOError if one has.

        The file may tell the id of the process that has it.
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
        """Cut a file."""

    def allocate(self, handle: int, size: int) -> None:
        """Reserve room on the disk for a file of this size, and give it that size."""

    def fsync(self, handle: int) -> None:
        """Make a file durable, but not its name."""

    def fdatasync(self, handle: int) -> None:
        """Make the contents of a file durable."""

    def close(self, handle: int) -> None:
        """Close a handle; a lock goes with it."""

    def rename(self, old: str, new: str) -> None:
        """Give a file, or a folder, another name in the same folder, at once; a file is replaced."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, in any folder of the same file system."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""

    def fsync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""


@final
class OsDisk:
    """The real disk."""

    def make_folder(self, path: str) -> bool:  # noqa: D102 - the protocol says it; so for all below
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
        with Path(path).open("rb", buffering=0) as file:
            parts = []
            while length > 0:
                part = os.pread(file.fileno(), length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
        os.close(handle)

    def rename(self, old: str, new: str) -> None:  # noqa: D102
        Path(old).replace(new)

    def link(self, old: str, new: str) -> None:  # noqa: D102
        Path(new).hardlink_to(old)

    def unlink(self, path: str) -> None:  # noqa: D102
        Path(path).unlink()

    def remove_folder(self, path: str) -> None:  # noqa: D102
        Path(path).rmdir()

    def fsync_folder(self, path: str) -> None:  # noqa: D102
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_full(error: OSError) -> bool:
    """Say whether an operation failed for lack of room, be it among the files that may be open: it can succeed later."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
