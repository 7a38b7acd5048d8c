"""Make and lock the folder of a journal."""

import os

from maxam.errors import JournalError
from maxam.journal.disk import Disk
from maxam.journal.names import RESTORING


def lock_folder(folder: str | os.PathLike[str], disk: Disk) -> tuple[str, int]:
    """Make the folder of a journal if it does not exist, with the folders in it, and lock it.

    Returns:
        Its absolute path, and the handle of the lock.

    Raises:
        JournalError: Another process has it, or a backup was not restored to its end.
        OSError: It cannot be made or read.
    """
    root = os.path.abspath(folder)  # noqa: PTH100 - a string is wanted
    parts = root.split("/")
    for depth in range(2, len(parts) + 1):
        path = "/".join(parts[:depth])
        made = disk.make_folder(path)
        try:  # one that is there may have been made by a process that was killed before it could sync
            disk.fsync_folder("/".join(parts[: depth - 1]) or "/")
        except PermissionError:
            if made:
                raise
    try:
        lock = disk.lock(f"{root}/lock")
    except BlockingIOError as error:
        holder = disk.read(f"{root}/lock", 0, 20).decode("ascii", "replace").strip()
        raise JournalError(
            f"the journal folder {root} is in use by another process{f' (pid {holder})' if holder.isdigit() else ''}; "
            "stop that one, or give this one a folder of its own"
        ) from error
    if RESTORING in disk.names(root):
        disk.close(lock)
        raise JournalError(
            f"{root} holds a journal that was not restored to its end (file {RESTORING}); "
            "remove the folder and restore the backup again"
        )
    for name in ("segments", "snapshots", "schemas"):
        disk.make_folder(f"{root}/{name}")
    disk.fsync_folder(root)
    return root, lock
