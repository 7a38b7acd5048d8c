"""The Delta log of each type of a history table, beside the Parquet files that maxam writes.

A log lists the files of each version of a table. So readers see all files of a round at once, can read older versions, and other
programs may write to the table. Each entry of maxam carries a transaction number: the last revision that is in the table. An entry that
is made again, after a kill, is found by that number and left out.

To import this without the library raises PipelineError, with what to install.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from maxam.durable_files import sync
from maxam.pipeline.errors import OtherFilesError, PipelineError, not_installed

try:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, create_table_with_add_actions
except ModuleNotFoundError as missing:
    raise not_installed(missing, "delta") from missing

ROWS: Final = "maxam-history"
"""Name of the transactions that add rows. Its number is the last revision that is in the table."""
COLUMNS: Final = "maxam-columns"
"""Name of the transactions that replace files by files of other columns. Its number is that of the schema versions."""
LOG: Final = "_delta_log"


@final
class DeltaLog:
    """The log in the folder of one type."""

    def __init__(self, folder: Path) -> None:
        """Describe the log of a folder, which may have none yet."""
        self._folder: Final = folder

    def files(self) -> list[Path]:
        """Return the files of the newest version of the table.

        Raises:
            PipelineError: The log cannot be read.
        """
        try:
            return sorted(_files(DeltaTable(str(self._folder))))
        except DeltaError as error:
            raise PipelineError(
                f"{self._folder}: the Delta log cannot be read: {error}. Restore it, or build a new table in another folder"
            ) from error

    def add(self, files: Iterable[Path], revision: int) -> None:
        """Add files of rows; make the log if there is none.

        Args:
            files: In the folder.
            revision: The last one that the table holds with them. Nothing is added if the log has this one already.

        Raises:
            PipelineError: Another program changed the table meanwhile, or the log cannot be written.
        """
        self._commit(list(files), "append", ROWS, revision)

    def replace(self, files: Iterable[Path], number: int, read: Iterable[Path]) -> None:
        """Replace all files of the table. The older version keeps its files.

        Args:
            files: In the folder.
            number: Of the schema versions that the columns hold. Nothing is replaced if the log has this one already.
            read: The files whose rows they have.

        Raises:
            OtherFilesError: The table has other files now.
            PipelineError: As of `add`.
        """
        self._commit(list(files), "overwrite", COLUMNS, number, read)

    def _commit(
        self,
        files: list[Path],
        mode: Literal["append", "overwrite"],
        name: str,
        number: int,
        read: Iterable[Path] = (),
    ) -> None:
        if not files:
            return
        folder = str(self._folder)
        # A commit that replaces all files is not tried again beside one that another program made meanwhile.
        retries = 0 if mode == "overwrite" else None
        properties = CommitProperties(max_commit_retries=retries, app_transactions=[Transaction(name, number)])
        try:
            schema = Schema.from_arrow(pq.read_schema(files[-1]).append(pa.field("date", pa.date32())))
            actions = [self._added(path) for path in files]
            if not (self._folder / LOG).is_dir():
                create_table_with_add_actions(
                    folder, schema, actions, partition_by=["date"], commit_properties=properties
                )
                version = 0
            else:
                table = DeltaTable(folder)
                done = table.transaction_version(name)
                if done is not None and done >= number:
                    return
                if mode == "overwrite" and _names(_files(table)) != _names(read):
                    raise OtherFilesError(
                        f"{folder}: another program changed the table while its columns were changed. Run history again"
                    )
                table.create_write_transaction([*actions], mode, schema, ["date"], commit_properties=properties)
                table.update_incremental()
                version = table.version()
        except DeltaError as error:
            raise PipelineError(f"{folder}: the Delta log was not written: {error}. Run history again") from error
        for path in (self._folder / LOG / f"{version:020}.json", self._folder / LOG):
            with suppress(FileNotFoundError):  # another writer has made a checkpoint and removed it
                sync(path)

    def _added(self, path: Path) -> AddAction:
        """Return the entry of a file: its date, its size, its rows, and the bounds of their revisions."""
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(number).column(0).statistics for number in range(file.num_row_groups)]
            rows = file.metadata.num_rows
        bounds = {"numRecords": rows, "minValues": {}, "maxValues": {}, "nullCount": {"revision": 0}}
        if groups and all(each is not None and each.has_min_max for each in groups):
            bounds["minValues"] = {"revision": min(each.min for each in groups)}
            bounds["maxValues"] = {"revision": max(each.max for each in groups)}
        found = path.stat()
        place = path.relative_to(self._folder).as_posix()
        date = path.parent.name.removeprefix("date=")
        return AddAction(place, found.st_size, {"date": date}, int(found.st_mtime * 1000), True, json.dumps(bounds))


def _files(table: DeltaTable) -> list[Path]:
    return [Path(unquote(urlsplit(uri).path)) for uri in table.file_uris()]


def _names(files: Iterable[Path]) -> set[tuple[str, ...]]:
    """Return the names of files with the folders of their dates, by which deltalake and maxam name one file alike."""
    return {path.parts[-2:] for path in files}
