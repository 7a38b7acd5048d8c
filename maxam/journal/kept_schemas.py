"""Store the schema texts that a journal keeps. `schema_texts` reads them."""

from collections.abc import Iterable
from typing import Final, final

from maxam.journal.disk import Disk, write_file


@final
class KeptSchemas:
    """The one writer of the folder `schemas` of a journal."""

    def __init__(self, folder: str, disk: Disk) -> None:
        """Prepare to write into the folder of a journal."""
        self._folder: Final = f"{folder}/schemas"
        self._disk: Final = disk
        self._unsynced: Final[set[str]] = set()  # file names of texts that `keep` has not synced yet

    def names(self) -> list[str]:
        """Return the file names of the texts that are stored."""
        return [name for name in self._disk.names(self._folder) if name.endswith(".avsc")]

    def keep(self, texts: Iterable[tuple[str, bytes]]) -> None:
        """Store texts, durably, unless they are there.

        Args:
            texts: Lower-case hex SHA-256 and self-contained text of each.

        Raises:
            DiskFullError: Some may be missing.
            OSError: Some may be missing; the next call stores again what may not be durable.
        """
        there = set(self._disk.names(self._folder)) - self._unsynced
        for digest, text in texts:
            name = f"{digest}.avsc"
            path = f"{self._folder}/{name}"
            if name not in there or self._disk.read(path, 0, len(text) + 1) != text:
                self._unsynced.add(name)
                write_file(self._disk, path, [text])
        self._disk.fsync_folder(self._folder)
        self._unsynced.clear()
