"""Load initial state into a gateway from a table: each row's value or body becomes the value of its topic.

A table is a file or a folder of Parquet, CSV or JSON lines. It has a column `destination`, and a column `body` (bytes or base64)
or `value` (JSON or a struct). Other columns are ignored, so the output of `maxam-pipeline latest` can be loaded.

The number of a row is a column of the table, or follows from its file and its place there. It is the same each time. So a load that was interrupted can be repeated, and its earlier rows are superseded.
"""

import csv
import hashlib
import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documents call it

from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.registry import load_registry
from maxam.config import Limits
from maxam.errors import MaxamError
from maxam.exit_codes import ExitCode
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.publish.bodies import BodyEncoder, read_texts
from maxam.pipeline.publish.gateway import gateway_options
from maxam.pipeline.publish.publisher import PublishError, Rejected, Target
from maxam.pipeline.spark.sink import Published, publish
from maxam.records import Rejection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUFFIXES: Final = (".parquet", ".csv", ".jsonl", ".ndjson", ".json")
ROW_BITS: Final = 40  # of a number that we give: rows of one file
FILES_MAX: Final = 1 << 22
BATCH_ROWS: Final = 2000
BATCH_BYTES_MAX: Final = 16 << 20  # of bodies, and the last row's: what a task holds at a time
ROWS_SHOWN_MAX: Final = 5  # of those that cannot be loaded for one reason, in a table for people
SHOWN_MAX: Final = 100  # characters of a value, in remarks about a row
FIELD_BYTES_MAX: Final = 64 << 20  # of one field of a CSV file

_HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
_ENCODED: Final = pa.schema(
    [
        ("source_revision", pa.int64()),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("destination", pa.string()),
        ("body", pa.binary()),
        ("headers", _HEADERS),
        ("result", pa.string()),
        ("reason", pa.string()),
    ]
)
_ENCODED_SQL: Final = (
    "source_revision long, file string, row long, destination string, body binary,"
    " headers array<struct<name:string,value:string>>, result string, reason string"
)
_Encoded = tuple[str | None, bytes | None, dict[str, str], str | None, str | None]


@dataclass(frozen=True, slots=True)
class Table:
    """Files to load.

    Attributes:
        files: In the order of their names.
        source: Name of their order when none is given: a hash of the contents.
    """

    files: tuple[str, ...]
    source: str


def find_table(path: Path) -> Table:
    """Find the files of a table.

    Raises:
        PipelineError: There are none, or they cannot be read.
    """
    if path.is_file():
        files = [path]
        if path.suffix not in SUFFIXES:
            raise PipelineError(f"{path}: not known how to read this: the name must end in {', '.join(SUFFIXES)}")
    elif path.is_dir():
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.suffix in SUFFIXES
            and file.is_file()
            and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        ]
        if not files:
            raise PipelineError(f"{path}: no file in this folder ends in {', '.join(SUFFIXES)}")
    else:
        raise PipelineError(f"{path}: no such file or folder")
    if len(files) > FILES_MAX:
        raise PipelineError(f"{path}: more than {FILES_MAX} files")
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as data:
                digest.update(hashlib.file_digest(data, "sha256").digest())
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error
    return Table(tuple(str(file.absolute()) for file in files), f"load-{digest.hexdigest()[:32]}")


def read_table(spark: "SparkSession", table: Table, schemas: Path | None, order: str | None = None) -> "DataFrame":
    """Return a table's rows as they are to be published.

    Args:
        spark: The session; its executors read the files, one task each.
        table: Which files.
        schemas: The schema folder, by which values are encoded and bodies validated. None to take bodies as they are.
        order: Name of the column of whole numbers or moments that decides which of a topic's rows is newer. None for their
            own order.

    Returns:
        Columns `source_revision`, `file`, `row` (from 1), `destination`, `body`, `headers`, and of rows that cannot be
        published `result` and `reason`, which are null else.

    Raises:
        SchemaError: The schema folder cannot be used.
    """
    texts = _checked_texts(schemas)
    files = spark.createDataFrame([(place, file) for place, file in enumerate(table.files)], "place long, file string")

    def encode_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = None if texts is None else BodyEncoder(load_registry(texts, Limits()))
        for batch in batches:
            for one in batch.to_pylist():
                yield from _encode_file(one["place"], one["file"], order, encoder)

    return files.repartition(len(table.files)).mapInArrow(encode_files, _ENCODED_SQL)


def encode(frame: "DataFrame", schemas: Path | str) -> "DataFrame":
    """Encode the column `value` (JSON text or struct) of a DataFrame by the rules of its destinations.

    Args:
        frame: Columns `destination`, `value` or `body`, and `source_revision` if there is one; others are left out.
        schemas: The schema folder.

    Returns:
        Columns `destination`, `body`, `headers`, `source_revision` if there was one, and of rows that cannot be published
        `result` and `reason`, which are null else.

    Raises:
        SchemaError: The schema folder cannot be used.
    """
    texts = _checked_texts(Path(schemas))
    assert texts is not None  # noqa: S101  # a folder was given
    kept = [name for name in ("source_revision",) if name in frame.columns]
    frame = frame.select([name for name in ("destination", "body", "value", *kept) if name in frame.columns])

    def encode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = BodyEncoder(load_registry(texts, Limits()))
        for batch in batches:
            rows = [(row.get("source_revision"), "", None, _encode(row, encoder)) for row in batch.to_pylist()]
            yield _encoded_batch(rows)

    encoded = frame.mapInArrow(encode_batches, _ENCODED_SQL)
    return encoded.select("destination", "body", "headers", *kept, "result", "reason")


def _checked_texts(schemas: Path | None) -> dict[str, bytes] | None:
    """Read a schema folder, and refuse it here rather than in every task."""
    if schemas is None:
        return None
    texts = read_texts(schemas)
    load_registry(texts, Limits())
    return texts


# --- on executors


def _encode_file(place: int, file: str, order: str | None, encoder: BodyEncoder | None) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[int | None, str, int | None, _Encoded]] = []
    size = 0
    for number, row in enumerate(_read_file(file), start=1):
        if isinstance(row, str):
            encoded: _Encoded = (None, None, {}, "unreadable", row)
        else:
            encoded = _encode(row, encoder)
        revision: int | None = (place << ROW_BITS) + number
        if order is not None and encoded[3] is None and not isinstance(row, str):
            revision = _order(row.get(order))
            if revision is None:
                reason = f"column {order}: expected a whole number from 0 or a moment, found {_shown(row.get(order))}"
                encoded = (encoded[0], None, {}, "bad-order", reason)
        rows.append((revision, file, number, encoded))
        size += len(encoded[1] or b"")
        if len(rows) == BATCH_ROWS or size >= BATCH_BYTES_MAX:
            yield _encoded_batch(rows)
            rows, size = [], 0
    if rows:
        yield _encoded_batch(rows)


def _encoded_batch(rows: Sequence[tuple[int | None, str, int | None, _Encoded]]) -> pa.RecordBatch:
    columns: list[Sequence[object]] = [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3][0] for row in rows],
        [row[3][1] for row in rows],
        [[{"name": name, "value": text} for name, text in row[3][2].items()] for row in rows],
        [row[3][3] for row in rows],
        [row[3][4] for row in rows],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _ENCODED.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ENCODED)


def _encode(row: Mapping[str, Any], encoder: BodyEncoder | None) -> _Encoded:
    """Return destination, body, headers, result and reason of a row; the last two are None if it can be published."""
    destination, body, value = row.get("destination"), row.get("body"), row.get("value")
    if not isinstance(destination, str) or not destination:
        return None, None, {}, "no-destination", "the row has no destination"
    try:
        destination.encode()
    except UnicodeEncodeError:
        return None, None, {}, "bad-destination", f"the destination {_shown(destination)} is no Unicode text"
    headers: dict[str, str] = {}
    if value is None and body in (None, "", b""):
        return destination, None, {}, "no-value", "the row has neither a value nor a body"
    if value is not None:
        if body not in (None, "", b""):
            return destination, None, {}, "value-and-body", "the row has both a value and a body"
        if encoder is None:
            return destination, None, {}, "no-schemas", "a value needs its schema to be encoded: name the folder"
        encoded = _encode_value(destination, value, encoder)
        if isinstance(encoded, Rejection):
            return destination, None, {}, encoded.result, encoded.reason
        body, headers = encoded
    elif isinstance(body, str):
        try:
            body = b64decode(body, validate=True)
        except ValueError as error:
            return destination, None, {}, "bad-base64", f"the body is no base64: {error}"
    if not isinstance(body, bytes):
        return destination, None, {}, "bad-body", f"the body must be bytes or base64, found {type(body).__name__}"
    if encoder is not None:
        rejection = encoder.problem(destination, body, headers)
        if rejection is not None:
            return destination, None, {}, rejection.result, rejection.reason
    return destination, body, headers, None, None


def _encode_value(destination: str, value: object, encoder: BodyEncoder) -> "tuple[bytes, dict[str, str]] | Rejection":
    """Return body and headers of a value, or why there are none."""
    try:
        return encoder.encode(destination, _parsed(value))
    except ValueEncodeError as error:
        rule = encoder.rule(destination)
        reason = f"{'' if rule is None else rule.schema}: {error}"
        return Rejection("schema-mismatch", _text(reason))
    except MaxamError as error:
        return Rejection("not-encodable", _text(str(error)))
    except RecursionError:
        return Rejection("too-deep", "the value is nested too deep")
    except ValueError as error:
        return Rejection("bad-json", f"the value is no JSON: {error}")


def _text(text: str) -> str:
    """Return a text that may quote a row's as one that can be written: JSON can hold halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(value: object) -> str:
    """Return what a row holds as reasons show it."""
    text = ascii(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def _parsed(value: object) -> object:
    """Read JSON text; a text that JSON lines held as such, and is none, stays what it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        if value.lstrip()[:1] in ("{", "["):
            raise
        return value


def _order(value: object) -> int | None:
    """Return a value of the order column as a number: moments as microseconds since 1970."""
    if isinstance(value, str):
        try:
            value = int(value) if value.isascii() and value.isdigit() else datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        value = round(value.timestamp() * 1_000_000)
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _read_file(file: str) -> Iterator[Mapping[str, Any] | str]:
    """Yield the rows of a file, or, where one cannot be read, why. Rows after damage that hides where they begin are not read."""
    path = Path(file)
    try:
        yield from _READERS[path.suffix](path)
    except (OSError, pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        yield f"{path} cannot be read any further: {error}"


def _read_parquet(path: Path) -> Iterator[Mapping[str, Any] | str]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            yield from batch.to_pylist()


def _read_csv(path: Path) -> Iterator[Mapping[str, Any] | str]:
    csv.field_size_limit(FIELD_BYTES_MAX)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row or None in row.values():
                yield f"expected {len([name for name in row if name is not None])} fields as in the head of the file"
            else:
                yield {name: text or None for name, text in row.items()}


def _read_json(path: Path) -> Iterator[Mapping[str, Any] | str]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError as error:
                yield f"no JSON: {error}" if line.strip() else "an empty line"
                continue
            except RecursionError:
                yield "nested too deep"
                continue
            yield row if isinstance(row, dict) else "not a JSON object"


_READERS: Final[dict[str, Callable[[Path], Iterator[Mapping[str, Any] | str]]]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
}


# --- the command


def load(rows: "DataFrame", target: Target, source: str) -> Published:
    """Publish those rows of `read_table` that can be.

    Raises:
        PublishError: The gateway cannot be reached or used; doing it again with the same source is safe.
    """
    good = rows.where("result is null").select("destination", "body", "headers", "source_revision")
    options = {
        "gateway": f"{target.address}:{target.port}",
        "source": source,
        **{name: str(text) for name, text in asdict(target).items() if name in ("certificate", "key", "ca", "host")},
    }
    if target.check_name is not None:
        options["checkName"] = target.check_name
    return publish(good, options)


def rejected_rows(rows: "DataFrame", rejected: list[Rejected]) -> "DataFrame":
    """Return what was not loaded: file, row, destination, disposition, result and reason, in the order of the table.

    Args:
        rows: Of `read_table`.
        rejected: Rows that the gateway rejected.
    """
    columns = ("file", "row", "destination", "disposition", "result", "reason")
    bad = rows.where("result is not null").withColumn("disposition", F.lit("refused")).select(*columns)
    if rejected:
        told = rows.sparkSession.createDataFrame(
            [tuple(row) for row in rejected],
            "source_revision long, destination string, disposition string, result string, reason string",
        )
        places = rows.where("result is null").select("file", "row", "source_revision", "destination")
        bad = bad.unionByName(places.join(F.broadcast(told), ["source_revision", "destination"]).select(*columns))
    return bad.orderBy("file", "row")


def first_of_each(job: Job, bad: "DataFrame", table: Path) -> "DataFrame":
    """Report how many rows have each result, and return the first few of each as people read them.

    Args:
        job: For the report.
        bad: Of `rejected_rows`.
        table: The loaded table. Files in it are shown by their names there, unless it is one file.
    """
    bad = bad.localCheckpoint()
    counted = bad.groupBy("disposition", "result").count().orderBy(F.desc("count"), "disposition", "result").collect()
    for row in counted:
        job.remark(f"{row['count']:,} {row.disposition} {row.result}")
    if any(row["count"] > ROWS_SHOWN_MAX for row in counted):
        job.remark(f"the first {ROWS_SHOWN_MAX} of each are shown: --format json, csv or parquet give all")
    place = F.row_number().over(Window.partitionBy("disposition", "result").orderBy("file", "row"))
    few = bad.withColumn("place", place).where(F.col("place") <= ROWS_SHOWN_MAX).drop("place").orderBy("file", "row")
    if table.is_file():
        return few.drop("file")
    return few.withColumn("file", F.substring("file", len(f"{table.absolute()}/") + 1, 1 << 20))


@click.command("load")
@click.argument("table", type=click.Path(path_type=Path))
@job_options(journal=False)
@gateway_options
@click.option(
    "--check", is_flag=True, help="Encode and judge every row, and send nothing; needs --schemas, no gateway."
)
@click.option(
    "--order",
    metavar="COLUMN",
    help="Column of numbers or moments by which a row of a topic is newer. [default: the order of the rows]",
)
@click.option(
    "--source",
    metavar="NAME",
    help="Name of that order. Rows that a topic has seen under this name, or older ones, do nothing."
    " [default: made from the contents of the table]",
)
def load_command(
    job: Job, table: Path, target: Callable[[], Target], check: bool, order: str | None, source: str | None
) -> None:
    """Load initial state into a gateway from TABLE, a file or folder of Parquet, CSV or JSON lines.

    Each row has a `destination`, and a `value` or a `body`. A value is JSON, or a struct of Parquet, and is encoded by the rules of the
    schema folder. A body is bytes or base64. Other columns are ignored, so the output of `latest` can be loaded.

    If a load is interrupted, run it again: rows that arrived are superseded. Rows that cannot be loaded are listed with file, row and
    reason. The exit code is 1 then.

    \b
    maxam-pipeline load state.jsonl --schemas schemas --check
    maxam-pipeline load state.jsonl --schemas schemas --cert me.pem --key me.key --ca ca.pem
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    if check and job.schemas is None:
        raise click.UsageError("--check judges by the schema folder: name it with --schemas")
    found = find_table(table)
    gateway = None if check else target()
    rows = read_table(job.spark, found, job.schemas, order)
    with job.progress("checking the table"):
        counts = {row["result"]: row["count"] for row in rows.groupBy("result").count().collect()}
    good = counts.pop(None, 0)
    bad = sum(counts.values())
    rejected: list[Rejected] = []
    failed = bad > 0
    if gateway is None:
        job.remark(f"{good} {'row is' if good == 1 else 'rows are'} good, {bad} {'is' if bad == 1 else 'are'} not")
    else:
        try:
            with job.progress("publishing"):
                published = load(rows, gateway, source or found.source)
        except PublishError as error:
            raise PipelineError(f"{error}. Do it again: what has arrived stays") from error
        rejected = published.rejected
        failed = failed or bool(published.counts.rejected)
        refused = f", {bad} not sent" if bad else ""
        job.remark(f"{published.counts}{refused}")
        if good and published.counts.superseded == good:
            job.remark("nothing changed: all of it was loaded before. Give a new --source to load it again")
    if failed:
        bad_rows = rejected_rows(rows, rejected)
        if job.shows_table:
            bad_rows = first_of_each(job, bad_rows, table)
        job.emit(bad_rows, expendable=("disposition", "row"))
        click.get_current_context().exit(ExitCode.CHECK_FAILED)
