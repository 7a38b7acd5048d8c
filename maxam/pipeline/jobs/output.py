"""Output of jobs: a table for people, JSON lines, CSV, or Parquet, as one file or on standard output.

Executors make the text of their rows, a batch at a time, and the driver strings it together. A result of any size passes
through a bounded memory, also through Spark Connect.

* JSON: one object a line, in ASCII. CSV: with a head, in UTF-8, lists and records as JSON.
* Timestamps: ISO 8601 in UTC with `Z` and microseconds. Dates: `YYYY-MM-DD`. Bytes: base64. Decimals: text. Floats that JSON
  lacks: `"NaN"`, `"Infinity"`, `"-Infinity"`.
* Parquet: the columns as they are.
"""

import csv
import io
import json
import math
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from maxam import durable_files
from maxam.pipeline.errors import PipelineError, unusable
from maxam.pipeline.spark.workers import on_processes
from maxam.terminal.escaping import json_line
from maxam.terminal.tables import print_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from maxam.pipeline.spark.workers import Counted

Format = Literal["table", "json", "csv", "parquet"]
TABLE_ROWS_MAX: Final = 1000  # of a table for people
_SHORTENED: Final = ("VALUE", "BODY", "HEADERS")  # columns of a table, of which a line shows what there is room for
_JSON: Final = "maxam.json"
_OPTIONAL: Final = "maxam.optional"
_PARQUET: Final = {"compression": "zstd", "use_dictionary": ["publisher", "schema", "kind"]}  # no other texts repeat
_CSV_TEXT: Final = {True: "true", False: "false", None: ""}

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def with_json(frame: "DataFrame", column: str) -> "DataFrame":
    """Mark a string column as JSON text, which stands in JSON output as the value that it is."""
    return frame.withMetadata(column, {**frame.schema[column].metadata, _JSON: True})


def with_optional(frame: "DataFrame", *columns: str) -> "DataFrame":
    """Mark columns that JSON output leaves out of objects where they are null."""
    for column in columns:
        frame = frame.withMetadata(column, {**frame.schema[column].metadata, _OPTIONAL: True})
    return frame


Columns = tuple[tuple[str, bool, bool], ...]  # name, holds JSON text, is left out when null


@dataclass(frozen=True, slots=True)
class Result:
    """A result whose rows processes of this machine make, a piece at a time.

    Attributes:
        schema: Of the rows.
        columns: As of `marked_columns`.
        make: Returns the rows of a piece; pickled.
        pieces: Count of them, in the order of the rows.
        size: Bytes from which all rows are made.
        counted: See `on_workers`.
    """

    schema: pa.Schema
    columns: Columns
    make: Callable[[int], pa.RecordBatch]
    pieces: int
    size: int
    counted: "Counted | None" = None

    def first(self, most: int) -> pa.Table:
        """Return the first rows, made in this process."""
        batches: list[pa.RecordBatch] = []
        number = 0
        while number < self.pieces and sum(batch.num_rows for batch in batches) < most:
            batches.append(self.make(number))
            number += 1
        return pa.Table.from_batches(batches, self.schema).slice(0, most)


@final
class _Chunk:
    """Makes one piece of output: pickled, for workers."""

    def __init__(self, result: Result, form: Format, folder: Path | None = None) -> None:
        """Make bytes of each piece, or a Parquet file in a folder."""
        self._make: Final = result.make
        self._columns: Final = result.columns
        self._form: Final = form
        self._folder: Final = folder

    def __call__(self, number: int) -> bytes:
        """Make a piece."""
        batch = self._make(number)
        if self._folder is None:
            return _CHUNKS[self._form](batch, self._columns)
        path = self._folder / f"part-{number:05}.parquet"
        try:
            pq.write_table(pa.Table.from_batches([batch]), path, **_PARQUET)
        except OSError as error:
            raise unusable(path, error) from error
        return b""


Rows = tuple[list[str], list[tuple["Json", ...]], bool]


def first_rows(frame: "DataFrame | Result") -> Rows:
    """Return titles and cells of a table for people, and whether there are more than its TABLE_ROWS_MAX rows.

    A column that JSON output would leave out of every one of them is left out.
    """
    columns = marked_columns(frame)
    most = TABLE_ROWS_MAX + 1
    table = frame.first(most) if isinstance(frame, Result) else frame.limit(most).toArrow()
    rows = [row for batch in table.to_batches() for row in zip(*cells(batch, columns), strict=True)]
    more, rows = len(rows) > TABLE_ROWS_MAX, rows[:TABLE_ROWS_MAX]
    kept = [
        at for at, (_, _, optional) in enumerate(columns) if not optional or any(row[at] is not None for row in rows)
    ]
    return [_title(table.schema[at]) for at in kept], [tuple(_short(row[at]) for at in kept) for row in rows], more


def print_rows(rows: Rows, expendable: Sequence[str] = ()) -> None:
    """Print a table.

    Args:
        rows: Of `first_rows`.
        expendable: Columns that a narrow terminal does without, the first ones first.
    """
    titles, found, _ = rows
    left_out = [name.upper().replace("_", " ") for name in expendable]
    print_table(titles, found, left_out, "--format json shows all", _SHORTENED)


def write_frame(frame: "DataFrame | Result", form: Format, out: str | None) -> None:
    """Write all rows.

    Args:
        frame: Rows to write, in their order.
        form: `json`, `csv` or `parquet`.
        out: A file, which is written aside and renamed when it is complete. For Parquet, a path that ends in `/` is a new folder
            that workers fill with many files at once. None is standard output.

    Raises:
        PipelineError: It cannot be written there.
    """
    if out is None:
        if form == "parquet":
            raise PipelineError("Parquet goes into a file: name one with --out")
        _write_chunks(frame, form, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    elif out.endswith("/"):
        _write_folder(frame, form, Path(out).absolute())  # Java may stand elsewhere than we
    else:
        with replacing(Path(out)) as file:
            _write_chunks(frame, form, file)


def _write_folder(frame: "DataFrame | Result", form: Format, folder: Path) -> None:
    if form != "parquet":
        raise PipelineError(f"{folder}/: only Parquet is written as a folder of files. Give a file for {form}")
    if folder.exists():
        raise PipelineError(f"{folder}/ exists: name a folder that does not, or remove it first")
    if not isinstance(frame, Result):
        frame.write.parquet(str(folder))
        return
    aside = folder.with_name(f".{folder.name}.part")
    try:
        aside.mkdir(parents=True)
        for _ in on_processes(_Chunk(frame, form, aside), frame.pieces, frame.size, frame.counted):
            pass
        aside.rename(folder)
    except OSError as error:
        raise unusable(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` that takes its place when the block ends; an exception leaves `path` as it was.

    Raises:
        PipelineError: It cannot be written there.
    """
    if path.is_dir():
        raise PipelineError(f"{path} is a folder: name a file")
    try:
        with durable_files.replacing(path) as file:
            yield file
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror or error}") from error


def marked_columns(frame: "DataFrame | Result") -> Columns:
    """Return the names of the columns of a frame or result and how they are marked."""
    if isinstance(frame, Result):
        return frame.columns
    return tuple((f.name, bool(f.metadata.get(_JSON)), bool(f.metadata.get(_OPTIONAL))) for f in frame.schema)


def json_lines(batch: pa.RecordBatch, columns: Columns) -> bytes:
    """Return a batch as JSON, an object a line."""
    texts: list[list[str | None]] = []
    for (name, is_json, optional), column in zip(columns, batch.columns, strict=True):
        key = json_line(name) + ": "
        encode: Callable[[object], str] = str if is_json else json_line
        absent = None if optional else key + "null"
        texts.append([absent if cell is None else key + encode(cell) for cell in _raw(column, is_json)])
    lines = ["{" + ", ".join([text for text in row if text is not None]) + "}\n" for row in zip(*texts, strict=True)]
    return "".join(lines).encode()


def csv_lines(batch: pa.RecordBatch, columns: Columns) -> bytes:
    """Return a batch as lines of CSV, without the head."""
    found = [
        [_csv(cell) for cell in _raw(column, is_json)]
        for (_, is_json, _), column in zip(columns, batch.columns, strict=True)
    ]
    return _csv_text(zip(*found, strict=True))


def cells(batch: pa.RecordBatch, columns: Columns) -> list[list[Json]]:
    """Return the values of each column as JSON has them; of columns that hold JSON text, parsed."""
    return [
        [None if text is None else json.loads(text) for text in column.to_pylist()] if is_json else _cells(column)
        for (_, is_json, _), column in zip(columns, batch.columns, strict=True)
    ]


def _raw(column: pa.Array, is_json: bool) -> Iterable[object]:
    """Return the values of a column as JSON has them; those that are JSON text as they are."""
    return column.to_pylist() if is_json else _cells(column)


def _cells(column: pa.Array) -> list[Json]:
    if pa.types.is_timestamp(column.type):  # as text by Arrow: ten times as fast as by datetime
        text = column.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
        return [None if moment is None else moment.replace(" ", "T", 1) + "Z" for moment in text]
    if pa.types.is_string(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return cast("list[Json]", column.to_pylist())
    return [_plain(value) for value in column.to_pylist(maps_as_pydicts="strict")]


def _plain(value: object) -> Json:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        case bytes():
            return b64encode(value).decode()
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return str(value)


def _csv(cell: object) -> object:
    if isinstance(cell, (list, dict)):
        return json.dumps(cell, ensure_ascii=False)
    if cell is None or isinstance(cell, bool):
        return _CSV_TEXT[cell]
    return cell


def _csv_text(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _arrow_stream(batch: pa.RecordBatch, columns: Columns) -> bytes:  # noqa: ARG001  # called like the others
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


_CHUNKS: Final = {"json": json_lines, "csv": csv_lines, "parquet": _arrow_stream}


def _write_chunks(frame: "DataFrame | Result", form: Format, file: BinaryIO) -> None:
    if isinstance(frame, Result):
        _write_pieces(frame, form, file)
        return
    columns = marked_columns(frame)
    make = _CHUNKS[form]

    def chunks_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([pa.array([make(batch, columns)], pa.binary())], ["chunk"])

    chunks = frame.mapInArrow(chunks_of, "chunk binary").toLocalIterator(prefetchPartitions=True)
    if form == "csv":
        _write_all(file, _csv_text([[name for name, _, _ in columns]]))
    if form != "parquet":
        for row in chunks:
            _write_all(file, row.chunk)
        return
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # imports pandas

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for row in chunks:
            writer.write_table(pa.ipc.open_stream(row.chunk).read_all().cast(schema))


def _write_pieces(result: Result, form: Format, file: BinaryIO) -> None:
    chunks = on_processes(_Chunk(result, form), result.pieces, result.size, result.counted)
    if form == "parquet":
        with pq.ParquetWriter(file, result.schema, **_PARQUET) as writer:
            for chunk in chunks:
                writer.write_table(pa.ipc.open_stream(chunk).read_all())
        return
    if form == "csv":
        _write_all(file, _csv_text([[name for name, _, _ in result.columns]]))
    for chunk in chunks:
        _write_all(file, chunk)


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write data whole: standard output of an unbuffered Python (PYTHONUNBUFFERED) may take a part only."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _short(value: Json) -> Json:
    """Return a figure with as many digits as people read; 2.0 is 2."""
    if not isinstance(value, float):
        return value
    text = f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _title(field: pa.Field) -> str:
    numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    title = str(field.name).upper().replace("_", " ")
    return f"#{title}" if numeric else title
