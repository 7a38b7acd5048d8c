"""Sync files and folders of a journal, and keep room on its disk for acknowledgements when it is full."""

from typing import Final, final

from maxam.journal.disk import Disk, is_shortage


@final
class Syncs:
    """The syncs of one writer.

    Attributes:
        failed: A sync failed: the state of the disk is unknown until the next start.
    """

    def __init__(self, disk: Disk, durable: bool) -> None:
        """Sync on a disk, or do nothing if `durable` is False."""
        self._disk: Final = disk
        self._durable: Final = durable
        self.failed = False

    def file(self, handle: int, data_only: bool = False) -> None:
        """Make a file durable; with `data_only` its contents alone."""
        if self._durable:
            self.failed = True
            if data_only:
                self._disk.fdatasync(handle)
            else:
                self._disk.fsync(handle)
            self.failed = False

    def folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        if self._durable:
            self.failed = True
            self._disk.fsync_folder(path)
            self.failed = False

    def is_shortage(self, error: OSError) -> bool:
        """Return True if an operation failed for lack of room or of open files, and no sync failed."""
        return not self.failed and is_shortage(error)


@final
class Reserve:
    """A file whose room a full disk gives to acknowledgements."""

    def __init__(self, folder: str, disk: Disk, syncs: Syncs, size: int) -> None:
        """Keep `size` bytes in a folder once it is opened; 0 for none."""
        self._folder: Final = folder
        self._path: Final = f"{folder}/reserve"
        self._disk: Final = disk
        self._syncs: Final = syncs
        self._size: Final = size
        self._handle = -1
        self._whole = size == 0

    def open(self) -> None:
        """Find the file that is there, and restore it if there is room."""
        try:
            if "reserve" in self._disk.names(self._folder):
                self._handle = self._disk.open(self._path)
                self._whole = self._disk.size(self._path) >= self._size
            self.restore()
        except OSError as error:
            if not self._syncs.is_shortage(error):
                raise

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            self._disk.close(self._handle)

    def restore(self) -> None:
        """Allocate the room again if it was released.

        Raises:
            OSError: There is no room, or the disk fails.
        """
        if self._whole:
            return
        if self._handle < 0:
            self._handle = self._disk.create(self._path)
        try:
            self._disk.allocate(self._handle, self._size)
        except OSError:
            self._disk.truncate(self._handle, 0)
            raise
        self._syncs.file(self._handle)
        self._whole = True

    def release(self) -> bool:
        """Free the room for another file. Return False if it was free already."""
        if not self._whole:
            return False
        try:
            self._disk.truncate(self._handle, 0)
        except OSError as error:
            if not is_shortage(error):
                raise
            return False
        self._whole = False
        self._syncs.file(self._handle)
        return True

    def require_room(self, size: int, descriptor: bool) -> None:
        """Restore the reserve, and try whether more bytes would fit beside it; with `descriptor` also another open file.

        Raises:
            OSError: They would not, or the disk fails.
        """
        self.restore()
        if self._handle < 0:
            self._handle = self._disk.create(self._path)
        if descriptor:
            self._disk.close(self._disk.open(self._path))
        try:
            self._disk.allocate(self._handle, self._size + size)
        finally:
            self._disk.truncate(self._handle, self._size)
