"""Spliced rows as Parquet files: one for each type and UTC day, written aside by one task."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from maxam.journal.splice import Rows
from maxam.pipeline.errors import PipelineError, unusable
from maxam.pipeline.history.arrays import Reader, Slots, UnfitError, arrow_type
from maxam.pipeline.history.columns import ColumnType, Node, Place, unique_names

DAY_US: Final = 86_400_000_000
BATCH_ROWS: Final = 16_384  # read at once: more do not make it faster, and a tenth of it costs half as much again
_FILE_BYTES: Final = 128 << 20  # of rows in one file
_OPEN_MAX: Final = 64  # files of one task; of more days and types, that of the longest ago is finished
_PARTS: Final = 3  # of a row

_HEAD: Final = (
    ("revision", pa.int64()),
    ("accepted_at", pa.timestamp("us", "UTC")),
    ("kind", pa.dictionary(pa.int8(), pa.string())),
    ("destination", pa.string()),
    ("publisher", pa.string()),
)
_KINDS: Final = pa.array(["unknown", "value", "delete"])
_TYPED: Final = (("schema_version", pa.string()),)
_UNTYPED: Final = (
    ("encoding", pa.string()),
    ("schema", pa.string()),
    ("schema_version", pa.string()),
    ("schema_fingerprint", pa.binary()),
)
DEFAULTS: Final = "maxam.defaults"
"""Key of the metadata of a file: the defaults of its fields, as JSON. Rows of versions without a field are null there."""
WRITING: Final = {
    "compression": "zstd",  # a quarter smaller than snappy at the same cost
    "compression_level": 1,
    "store_decimal_as_integer": True,  # as Spark does
    "store_schema": False,  # a reader gives strings where we had a dictionary, as the files have that were rewritten
}


def about(column: ColumnType) -> dict[str, str]:
    """Return the metadata of a file: the defaults of its fields, as JSON."""
    return {DEFAULTS: json.dumps(dict(_defaults(column.place(), "value")))}


def _defaults(place: Place, path: str) -> Iterator[tuple[str, object]]:
    """Yield the path of each field that has a default, such as `value.meters.reason`, and the default."""
    names = place.member_names() if len(place.alternatives) > 1 else [""]
    for name, of in zip(names, place.alternatives, strict=False):
        inner = f"{path}.{name}" if name else path
        if of.item is not None:
            yield from _defaults(of.item, f"{inner}.{'element' if of.kind == 'array' else 'value'}")
        for member, each in zip(unique_names([each.name for each in of.fields]), of.fields, strict=True):
            if each.default:
                yield f"{inner}.{member}", json.loads(each.default)
            yield from _defaults(each.place, f"{inner}.{member}")


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    Attributes:
        path: Where.
        name: Of the type.
        date: Of its rows, ISO 8601.
        first: Lowest revision in it.
        last: Highest one.
        rows: Count.
    """

    path: str
    name: str
    date: str
    first: int
    last: int
    rows: int


@final
class _Kind:
    """Rows of one schema.

    Attributes:
        about: Metadata of their files.
        name: Of their type.
        rows: Those that were not read yet.
    """

    def __init__(self, name: str, rows: Rows, column: ColumnType | None, root: Node | None) -> None:
        self.name: Final = name
        self.rows: Final = rows
        self._column: Final = column
        self._root: Final = root
        self._types: Final[dict[int, Any]] = {}
        self._between: Final = _UNTYPED if column is None else _TYPED
        value = pa.binary() if column is None else arrow_type(column.place())
        self.schema: Final = pa.schema([*_HEAD, *self._between, ("value", value)])
        self.about: Final = {} if column is None else about(column)

    def read(self, parts: list[bytes]) -> tuple[Any, npt.NDArray[np.int64]]:
        """Return rows as a batch, and the bytes of each.

        Raises:
            UnfitError: No column holds one of them.
        """
        lengths = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, _PARTS).sum(axis=1)
        count = len(lengths)
        reader = Reader(parts, self._types)
        ends = reader.inside(np.cumsum(lengths))
        slots = Slots(count)
        try:
            revision, at = reader.longs(ends - lengths)
            accepted_at, at = reader.longs(at)
            kind, at = reader.longs(at)
            columns = [
                pa.array(revision),
                pa.array(accepted_at).cast(pa.timestamp("us", "UTC")),
                pa.DictionaryArray.from_arrays(pa.array(kind.astype(np.int8)), _KINDS),
            ]
            for _, of in (*_HEAD[3:], *self._between):
                column, at = reader.texts(at, slots, of)
                columns.append(column)
            there, behind = reader.longs(at)
            rows = np.flatnonzero(there)
            values = slots.among(rows)
            if self._root is None or self._column is None:
                column, behind[rows] = reader.texts(behind[rows], values, pa.binary())
            else:
                column, behind[rows] = reader.column(self._root, self._column.place(), behind[rows], values)
        except (IndexError, ValueError, ArithmeticError) as error:
            raise UnfitError(str(error)) from error
        if reader.unfit or not np.array_equal(behind, ends):
            raise UnfitError("a value that no column holds")
        return pa.RecordBatch.from_arrays([*columns, column], schema=self.schema), lengths


@final
class _File:
    """One file being written."""

    def __init__(self, path: Path, kind: _Kind, day: int) -> None:
        self.path: Final = path
        self.name: Final = kind.name
        self.day: Final = day
        self.bytes = 0
        self._first = 1 << 62
        self._last = 0
        self._rows = 0
        self.writer: Final = pq.ParquetWriter(str(path), kind.schema, **WRITING)
        self.writer.add_key_value_metadata(kind.about)

    def write(self, batch: Any, length: int) -> None:  # noqa: ANN401  # as above
        revisions = batch.column(0).to_numpy()
        self._first = min(self._first, int(revisions.min()))
        self._last = max(self._last, int(revisions.max()))
        self._rows += batch.num_rows
        self.bytes += length
        self.writer.write_batch(batch)

    def finish(self) -> Written:
        self.writer.close()
        rows = pq.read_metadata(self.path).num_rows
        if rows != self._rows:
            raise PipelineError(f"{self.path}: {self._rows} rows were written and {rows} are there")
        date = str(np.datetime64(self.day, "D"))
        return Written(str(self.path), self.name, date, self._first, self._last, rows)


@final
class Files:
    """The output of one attempt of a task, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Begin with none.

        Args:
            folder: Made when there is something to write.
        """
        self._folder: Final = folder
        self._kinds: Final[dict[str, _Kind]] = {}
        self._open: Final[dict[tuple[str, int], _File]] = {}  # that of the longest ago first
        self._done: Final[list[Written]] = []
        self._count = 0

    def rows(self, key: str) -> Rows | None:
        """Give what `add` was given for a key."""
        kind = self._kinds.get(key)
        return None if kind is None else kind.rows

    def add(self, key: str, name: str, rows: Rows, column: ColumnType | None = None, root: Node | None = None) -> Rows:
        """Have rows written.

        Args:
            key: Of their schema.
            name: Of the type whose files they go to.
            rows: Where they are put.
            column: Column of the type's values. None for values that are bytes.
            root: The schema of the values, one of the column's minors.

        Returns:
            The rows.
        """
        self._kinds[key] = _Kind(name, rows, column, root)
        return rows

    def write(self, *, everything: bool) -> None:
        """Write the rows that there are.

        Args:
            everything: Also a few of one schema, which cost more each.

        Raises:
            UnfitError: No column holds one of them.
            PipelineError: They cannot be written.
        """
        for kind in self._kinds.values():
            if kind.rows.count() >= (1 if everything else BATCH_ROWS):
                batch, lengths = kind.read(kind.rows.take())
                with self._writing():
                    self._write(kind, batch, lengths)

    def finish(self) -> list[Written]:
        """Write all rows and finish the files; return all that were written.

        Raises:
            UnfitError: As of `write`.
            PipelineError: As of `write`.
        """
        self.write(everything=True)
        with self._writing():
            self._finish(self._open.copy())
        return self._done

    def close(self) -> None:
        """Leave no file open, finished or not."""
        for file in self._open.values():
            with suppress(OSError):  # a full disk: the error that led here is the one to report
                file.writer.close()
        self._open.clear()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unusable(self._folder, error) from error

    def _write(self, kind: _Kind, batch: Any, lengths: npt.NDArray[np.int64]) -> None:  # noqa: ANN401  # as above
        days = batch.column(1).cast(pa.int64()).to_numpy() // DAY_US
        for day in np.unique(days).tolist():
            chosen = np.flatnonzero(days == day)
            part = batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
            file = self._open.pop((kind.name, day), None)
            if file is None:
                if len(self._open) >= _OPEN_MAX:
                    self._finish([next(iter(self._open))])
                self._folder.mkdir(parents=True, exist_ok=True)
                self._count += 1
                file = _File(self._folder / f"{self._count:06}.parquet", kind, day)
            self._open[kind.name, day] = file
            file.write(part, int(lengths[chosen].sum()))
            if file.bytes >= _FILE_BYTES:
                self._finish([(kind.name, day)])

    def _finish(self, which: Iterable[tuple[str, int]]) -> None:
        for key in list(which):
            self._done.append(self._open.pop(key).finish())
