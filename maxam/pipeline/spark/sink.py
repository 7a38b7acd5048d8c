"""Publish the rows of a DataFrame to a gateway: `df.write.format("maxam")`, `writeStream`, and `publish`.

Columns:

* `destination` (string);
* `body` (binary). Null or empty deletes the topic's value;
* optionally `headers` (`array<struct<name: string, value: string>>`);
* optionally `delete` (boolean). True deletes, and an empty body alone does not;
* optionally `source_revision` (long, from 0).

Each SEND has the place of its row in an order, by the headers `source` and `source-revision`. A topic that has seen this number or a
higher one of this source keeps its value. So no older row comes after a newer one, whatever the order in which Spark runs, repeats
and duplicates tasks.

With the column `source_revision` the order is the caller's: it must rise with the age of a topic's values. Together with a name of its
own (option `source`) it makes publishing resumable: repeated rows of an earlier run are superseded. Without the column, rows are
numbered here, and the name is that of this very write. So no earlier write can stand in its way. A batch is numbered in the order of
the DataFrame, as by `monotonically_increasing_id`. A stream is numbered by micro-batch and the place within the task's part of it. Rows of one
topic in different tasks of a micro-batch have no order then: `repartition("destination")` first.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.publish.publisher import (
    RESERVED_HEADERS,
    Counts,
    PublishError,
    Rejected,
    Row,
    Target,
    publish_rows,
    shown,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOST: Final = "MAXVAPI"
REJECTED_MAX: Final = 100  # with `rejects=fail` a task stops taking rows when this many of its own were rejected
REJECTED_KEPT_MAX: Final = 100_000  # rejected rows of one task that `publish` returns; further ones are counted only
SOURCE_BYTES_MAX: Final = 128  # this and the next are what the gateway takes
SOURCE_REVISION_MAX: Final = (1 << 63) - 1
ROW_BITS: Final = 33  # of the numbers that we give: rows of one task, of one micro-batch
BATCHES_MAX: Final = 1 << 30  # of a stream whose rows we number

_NAME_VALUE: Final = StructType([StructField("name", StringType()), StructField("value", StringType())])
_COLUMNS: Final[dict[str, tuple[str, tuple[type[DataType], ...]]]] = {
    "destination": ("string", (StringType,)),
    "body": ("binary", (BinaryType,)),
    "headers": ("array<struct<name: string, value: string>>", (ArrayType,)),
    "delete": ("boolean", (BooleanType,)),
    "source_revision": ("long", (LongType, IntegerType, ShortType, ByteType)),
}
_OPTIONS: Final = (
    "gateway",
    "certificate",
    "key",
    "ca",
    "host",
    "checkName",
    "source",
    "window",
    "retrySeconds",
    "rejects",
    "report",
)
_SPARKS_OPTIONS: Final = {"path", "checkpointlocation", "queryname"}  # which Spark hands on to any data source
_BATCH_ID: Final = "streaming.sql.batchId"  # of the task's local properties: Spark's number of the micro-batch
_QUERY_ID: Final = "sql.streaming.queryId"


@final
@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the data source for writing.

    Attributes:
        target: The gateway, and our certificate. The files are absolute, and must be readable where tasks run.
        source: Name of the order of the column `source_revision`. None for an order of this write's own.
        rejects: `fail` the write, or `report` rejected rows and go on.
        report: A folder, writable where tasks run, for the rejected rows as JSON lines. Sums are under `_published`.
    """

    target: Target
    source: str | None = None
    rejects: Literal["fail", "report"] = "fail"
    report: str | None = None


def read_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a write; names are not case-sensitive.

    Raises:
        PipelineError: One is missing, unknown or malformed.
    """
    given = {name.lower(): value for name, value in options.items()}
    unknown = set(given) - {name.lower() for name in _OPTIONS} - _SPARKS_OPTIONS
    if unknown:
        raise PipelineError(f"unknown option {min(unknown)}; writing knows {', '.join(_OPTIONS)}")
    for name in ("gateway", "certificate", "key", "ca"):
        if not given.get(name):
            raise PipelineError(
                f"the option {name} is missing; needed are gateway (HOST:PORT), certificate, key and ca"
            )
    host, colon, port = given["gateway"].rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise PipelineError(f"the option gateway must be HOST:PORT of the STOMP listener, found {given['gateway']!r}")
    rejects = given.get("rejects", "fail")
    if rejects not in ("fail", "report"):
        raise PipelineError(f"the option rejects must be fail or report, found {rejects!r}")
    report = str(Path(given["report"]).absolute()) if given.get("report") else None
    source = given.get("source") or None
    if source is not None and len(source.encode()) > SOURCE_BYTES_MAX:
        raise PipelineError(f"the option source must have 1 to {SOURCE_BYTES_MAX} bytes")
    if rejects == "report" and report is None:
        raise PipelineError("rejects=report needs the option report: a folder for the rejected rows")
    target = Target(
        host.removeprefix("[").removesuffix("]"),
        int(port),
        _file(given, "certificate"),
        _file(given, "key"),
        _file(given, "ca"),
        given.get("host", HOST),
        given.get("checkname"),
        int(_number(given, "window", 1000, 1, 1_000_000)),
        _number(given, "retrySeconds", 60, 0.1, 86_400),
    )
    return SinkOptions(target, source, cast("Literal['fail', 'report']", rejects), report)


def _file(given: Mapping[str, str], name: str) -> str:
    """Return the absolute path of a file; a relative one is the driver's, which reads the options, and must be there."""
    path = Path(given[name])
    if not path.is_absolute():
        path = path.absolute()
        if not path.is_file():
            raise PipelineError(
                f"the option {name}: there is no file {given[name]!r} in {Path.cwd()}, where Spark's driver was started."
                " Give an absolute path"
            )
    return str(path)


def _number(given: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise PipelineError(f"the option {name} must be a number from {least:g} to {most:g}, found {text!r}")
    return number


def check_columns(schema: StructType, source: str | None) -> None:
    """Check that rows of this schema can be published.

    Args:
        schema: Of the DataFrame.
        source: The option `source`.

    Raises:
        PipelineError: A column is unusable. The text has its name.
    """
    for column in schema.fields:
        if column.name not in _COLUMNS:
            raise PipelineError(
                f"column {column.name}: not known. Select only the columns to publish: {', '.join(_COLUMNS)}"
            )
        wanted, types = _COLUMNS[column.name]
        found = column.dataType
        fits = isinstance(found, types)
        if isinstance(found, ArrayType):
            item = found.elementType
            fits = isinstance(item, StructType) and [(each.name, each.dataType) for each in item.fields] == [
                (each.name, each.dataType) for each in _NAME_VALUE.fields
            ]
        if not fits:
            raise PipelineError(f"column {column.name}: must be {wanted}, found {found.simpleString()}")
    names = schema.fieldNames()
    for name in ("destination", "body"):
        if name not in names:
            raise PipelineError(f"column {name} ({_COLUMNS[name][0]}) is missing")
    if source is not None and "source_revision" not in names:
        raise PipelineError(
            "the option source needs a column source_revision, which is missing. Without it, the rows of a later run"
            " would have the numbers of an earlier one and be taken for its rows"
        )


@dataclass(frozen=True, slots=True)
class _Numbering:
    """The numbers of rows.

    Attributes:
        source: Name of their order.
        base: Number of the first row. None if the column `source_revision` has them.
    """

    source: str
    base: int | None


Refuse = Callable[[Rejected], None]


def _rows(batches: Iterator[pa.RecordBatch], numbering: _Numbering, refuse: Refuse) -> Iterator[list[Row]]:
    """Turn batches into rows to publish, and refuse those that are none."""
    number = numbering.base or 0
    for batch in batches:
        size = batch.num_rows
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        absent: list[Any] = [None] * size
        numbers = columns["source_revision"] if numbering.base is None else range(number, number + size)
        number += size
        deletable = "delete" not in columns
        rows: list[Row] = []
        for place, destination, body, own, deleted in zip(
            numbers,
            columns["destination"],
            columns["body"],
            columns.get("headers", absent),
            columns.get("delete", absent),
            strict=True,
        ):
            problem = None
            if place is None or place < 0:
                problem = (
                    "bad-source-revision",
                    f"source_revision must be from 0 to {SOURCE_REVISION_MAX}, found {place}",
                )
            elif not destination:
                problem = ("no-destination", "the row has no destination")
            elif deleted and body:
                problem = ("delete-with-body", "delete is true, but there is a body")
            elif not (body or deleted or deletable):
                problem = ("empty-body", "delete is not true, but there is no body")
            if problem is not None:
                refuse(Rejected(-1 if place is None else place, destination or "", "refused", *problem))
                continue
            headers = None
            if own:
                headers = {
                    each["name"]: each["value"] or ""
                    for each in reversed(own)  # the first of repeats wins
                    if each is not None and each["name"] and each["name"] not in RESERVED_HEADERS
                }
                headers = dict(reversed(headers.items()))
            rows.append(Row(place, destination, body or b"", headers))
        yield rows


def _publish_batches(
    options: SinkOptions, numbering: _Numbering, batches: Iterator[pa.RecordBatch], keep: Refuse | None
) -> Counts:
    """Publish the rows of one task. `keep` is called with each rejected row."""
    refused = Counts()

    def refuse(row: Rejected) -> None:
        refused.reject(row)
        if keep is not None:
            keep(row)

    limit = REJECTED_MAX if options.rejects == "fail" else None
    counts = publish_rows(options.target, numbering.source, _rows(batches, numbering, refuse), keep, limit)
    counts.add(refused)
    return counts


@dataclass
class PublishedMessage(WriterCommitMessage):
    """The result of one task, and its write: that name is part of the names of files."""

    counts: Counts
    write: str


@dataclass(slots=True)
class _ReportFile:
    """Rejected rows of one task as JSON lines; there is a file only if there are any, and only once the task is done.

    Two attempts of a task may run at the same time: each writes aside under a name of its own.
    """

    path: Path
    _attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    _lines: list[str] = field(default_factory=list)
    _begun: bool = False

    def add(self, row: Rejected) -> None:
        self._lines.append(json.dumps(row._asdict(), ensure_ascii=False) + "\n")
        if len(self._lines) >= 1000:
            self._flush()

    def _flush(self) -> None:
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        with self._partial.open("a" if self._begun else "w", encoding="utf-8") as file:
            file.writelines(self._lines)
        self._begun = True
        self._lines.clear()

    def finish(self) -> None:
        """Put the file in place; that of an earlier attempt of the same task goes."""
        if self._lines:
            self._flush()
        if self._begun:
            self._partial.replace(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def discard(self) -> None:
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)

    @property
    def _partial(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{self._attempt}.partial")


def _write(
    options: SinkOptions, numbering: _Numbering, write: str, partition: int, batches: Iterator[pa.RecordBatch]
) -> PublishedMessage:
    """Publish what one task has, and report what was rejected in a file named by write and partition."""
    if options.report is None:
        return PublishedMessage(_publish_batches(options, numbering, batches, None), write)
    report = _ReportFile(Path(options.report) / f"{write}-{partition}.jsonl")
    try:
        counts = _publish_batches(options, numbering, batches, report.add)
        report.finish()
    except BaseException:
        report.discard()
        raise
    return PublishedMessage(counts, write)


def _finish(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Sum up on the driver.

    Raises:
        PublishError: Rows were rejected, and that is to fail.
    """
    total = Counts()
    write = None
    for message in messages:
        if isinstance(message, PublishedMessage):
            total.add(message.counts)
            write = message.write
    if options.report is not None and write is not None:
        sums = {
            "accepted": total.accepted,
            "superseded": total.superseded,
            "rejected": [
                {"disposition": disposition, "result": result, "rows": rows}
                for (disposition, result), rows in sorted(total.rejected.items())
            ],
        }
        folder = Path(options.report) / "_published"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{write}.json").write_text(json.dumps(sums) + "\n", encoding="utf-8")
    if total.rejected and options.rejects == "fail":
        raise PublishError(f"{describe(total)}. The option rejects=report goes on without them")


def describe(counts: Counts) -> str:
    """Return a summary of the rows, with a few of the rejected ones."""
    examples = [
        f"row {row.number} ({shown(row.destination)}): {row.disposition} {row.result}: {row.reason}"
        for row in counts.examples
    ]
    return "; ".join([f"rows were rejected: {counts}" if counts.rejected else str(counts), *examples])


@final
class MaxamWriter(DataSourceArrowWriter):
    """`df.write.format("maxam").mode("append").options(...).save()`."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Check columns and options.

        Raises:
            PipelineError: They cannot be used.
        """
        if overwrite:
            raise PipelineError('publishing changes topics and takes none away: use mode("append")')
        self._options: Final = read_options(options)
        check_columns(schema, self._options.source)
        self._numbered: Final = "source_revision" in schema.fieldNames()
        self._run: Final = uuid.uuid4().hex  # pickled: the same for all tasks of this write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish what one task has; runs on an executor."""
        partition = _task().partitionId()
        source = self._options.source or f"spark-{self._run}"
        numbering = _Numbering(source, None if self._numbered else partition << ROW_BITS)
        return _write(self._options, numbering, self._run, partition, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sum up; fail if rows were rejected and that is to fail. There is no way back: what was accepted stays."""
        _finish(self._options, messages)


@final
class MaxamStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("maxam").options(...).start()`."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Check columns and options.

        Raises:
            PipelineError: They cannot be used.
        """
        if overwrite:
            raise PipelineError('publishing changes topics and takes none away: use outputMode("append") or "update"')
        self._options: Final = read_options(options)
        check_columns(schema, self._options.source)
        self._numbered: Final = "source_revision" in schema.fieldNames()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish what one task of a micro-batch has; runs on an executor."""
        task = _task()
        batch, query = task.getLocalProperty(_BATCH_ID), task.getLocalProperty(_QUERY_ID)
        if batch is None or query is None:
            raise PipelineError("this Spark does not give a task its micro-batch. The pipeline needs pyspark 4.3")
        source = self._options.source or f"spark-{query}"  # stays with the checkpoint
        base = None
        if not self._numbered:
            if int(batch) >= BATCHES_MAX:
                raise PipelineError(
                    f"more than {BATCHES_MAX} micro-batches cannot be numbered: add a column source_revision"
                )
            base = int(batch) << ROW_BITS
        return _write(
            self._options, _Numbering(source, base), f"{query}-{int(batch):010}", task.partitionId(), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Sum up; fail if rows were rejected and that is to fail. There is no way back: what was accepted stays."""
        _finish(self._options, messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise PipelineError("rows are published by tasks of Spark only")
    return task


@final
@dataclass(frozen=True, slots=True)
class Published:
    """The result of `publish`.

    Attributes:
        counts: Sums over all tasks.
        rejected: The rejected rows, at most REJECTED_KEPT_MAX of each task, in no particular order.
    """

    counts: Counts
    rejected: list[Rejected]


_OUTCOMES: Final = (
    "number long, destination string, disposition string, result string, reason string, rows long, connections long"
)


def publish(frame: "DataFrame", options: Mapping[str, str]) -> Published:
    """Publish a DataFrame like `frame.write.format("maxam")`, and return the outcome.

    With a column `source_revision` the rows of each topic are brought into one task and sorted by it first. So all of them take effect
    in their order, not only the last. Needs no folder that driver and executors share.

    Args:
        frame: Columns as in this module's docstring.
        options: As of the data source, but `rejects` and `report`: rejected rows are returned.

    Raises:
        PipelineError: Columns or options cannot be used.
        PublishError: The gateway cannot be reached or used. Published rows stay so, and doing it again is safe.
    """
    given = {name: value for name, value in options.items() if name.lower() not in ("rejects", "report")}
    read = read_options(given)
    sink = SinkOptions(read.target, read.source, "report")
    check_columns(frame.schema, sink.source)
    numbered = "source_revision" in frame.columns
    run = uuid.uuid4().hex
    if numbered:
        frame = frame.repartition("destination").sortWithinPartitions("source_revision")

    def publish_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[Rejected] = []

        def keep(row: Rejected) -> None:
            if len(kept) < REJECTED_KEPT_MAX:
                kept.append(row)

        base = None if numbered else _task().partitionId() << ROW_BITS
        counts = _publish_batches(sink, _Numbering(sink.source or f"spark-{run}", base), batches, keep)
        rows: list[tuple[int | None, str | None, str, str, str | None, int, int]] = [
            (row.number, row.destination, row.disposition, row.result, row.reason, 0, 0) for row in kept
        ]
        rows.append((None, None, "accepted", "", None, counts.accepted, counts.connections))
        rows.append((None, None, "accepted", "superseded", None, counts.superseded, 0))
        rows += [
            (None, None, disposition, result, None, number, 0)
            for (disposition, result), number in counts.rejected.items()
        ]
        names = ["number", "destination", "disposition", "result", "reason", "rows", "connections"]
        types = [pa.int64(), *[pa.string()] * 4, pa.int64(), pa.int64()]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names)

    try:
        outcomes = frame.mapInArrow(publish_part, _OUTCOMES).toArrow().to_pylist()
    except PySparkException as error:
        text = str(error)
        marker = f"{PublishError.__module__}.{PublishError.__name__}: "
        if marker in text:  # the task's own text, without the stacks of three languages
            raise PublishError(text.partition(marker)[2].partition("\n")[0]) from error
        raise
    counts = Counts()
    rejected: list[Rejected] = []
    for row in outcomes:
        disposition, result = row["disposition"], row["result"]
        counts.connections += row["connections"]
        if row["rows"] == 0 and row["number"] is not None:
            rejected.append(Rejected(row["number"], row["destination"], disposition, result, row["reason"]))
        elif disposition != "accepted":
            counts.rejected[disposition, result] += row["rows"]
        elif result == "superseded":
            counts.superseded += row["rows"]
        else:
            counts.accepted += row["rows"]
    counts.examples = rejected[:5]
    return Published(counts, rejected)
