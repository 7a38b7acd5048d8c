"""The typed history: each message type of a journal as a Parquet table with real columns, brought up to date as often as one likes.

It works in rounds of bounded bytes. In a round Spark's workers take the next segments, splice them into rows of one schema each and
write those as Parquet aside (`splicing`), and the driver commits the files together with the state of the table (`table`). So every
change is in the table exactly once, wherever a run was killed; nothing but counts comes to the driver.

All files of a type have the same columns. When a new minor changes them, the older files are rewritten first, each replaced by one
of the same rows and the same name.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import click
import pyarrow.parquet as pq

from maxam.avro.schema import parse_schema, read_source
from maxam.journal.archive import REVISION_MAX, Place, Problem, list_segments
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.columns import ColumnType
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.job import Job, job_options
from maxam.pipeline.parquet import Written
from maxam.pipeline.splicing import Spliced, Splicing, Stretch
from maxam.pipeline.table import UNTYPED, Minors, Table
from maxam.pipeline.workers import on_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUND_BYTES: Final = 1 << 30
"""Of segments in one round, after which what was read is in the table. Memory does not depend on it."""

_FOOTERS_AT_ONCE: Final = 8
_ROW: Final = ("revision", "accepted_at", "kind", "destination", "publisher")
_COMPRESSION: Final = "zstd"  # a quarter smaller than Spark's default at the same cost
_REWRITING: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default is one that most readers call outdated
    # each file a partition of its own, however large or small, so that each is replaced by one
    "spark.sql.files.maxPartitionBytes": str(1 << 50),
    "spark.sql.files.openCostInBytes": str(1 << 50),
}


@dataclass(slots=True)
class HistoryReport:
    """What a run did.

    Attributes:
        first: First revision that it added, 0 for none.
        last: The last one that the table holds now, 0 for none.
        rows: Added, by type; `untyped` for those whose value no schema is known for.
        files: Added.
        rewritten: Files that were given other columns.
        problems: What of the journal could not be read, or not as it should.
        lost: First and last revision of each stretch that the table lacks, since its first run, in order and apart.
    """

    first: int = 0
    last: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    files: int = 0
    rewritten: int = 0
    problems: list[Problem] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)


def update_history(
    spark: "SparkSession",
    journal: Path,
    out: Path,
    *,
    schemas: Path | None = None,
    types: Iterable[str] | None = None,
    until_revision: int | None = None,
    round_bytes: int = ROUND_BYTES,
    told: Callable[[HistoryReport], None] | None = None,
) -> HistoryReport:
    """Add to a history table all that the journal holds beyond it, the open segment included up to its last whole block.

    Damage is reported and what is behind it processed. Killed at any point, or after any error, the next run goes on where this one
    was.

    Args:
        spark: A session, local or not; all its workers must see both folders under the same names.
        journal: The journal's folder. A gateway may be writing it.
        out: The table's folder; made if need be.
        schemas: A schema folder, for the minors of texts and for texts that the journal lacks.
        types: Full names of the types to keep, None for all; always the same for one table.
        until_revision: The last one to add.
        round_bytes: See ROUND_BYTES; a round has at least one segment.
        told: Called after each round, and at the end, with the report so far.

    Raises:
        PipelineError: The journal does not hold the revisions that come next, the table is of other types or of another journal or
            being written, or a type name is unknown. The table is as after the last round.
        JournalError: There is no journal.
        OSError: A folder cannot be read or written.
    """
    journal, out = journal.absolute(), out.absolute()  # Java may stand elsewhere than we
    catalogue = Catalogue.load(journal, schemas)
    wanted = None if types is None else tuple(sorted(set(types)))
    _check_types(wanted, catalogue)
    report = HistoryReport()
    for path, text in catalogue.unreadable:
        report.problems.append(Problem("unreadable", path, 0, 0, 0, f"not a schema: {text}", lost=False))
    with Table(out) as table:
        if table.state.revision < 0:
            table.state = replace(table.state, types=wanted)
        elif table.state.types != wanted:
            there = "all types" if table.state.types is None else ", ".join(table.state.types)
            raise PipelineError(f"{out} is the history of {there}: name the same types, or another folder")
        report.last = max(0, table.state.revision)
        report.lost = _joined(table.state.lost)
        for stretches in _rounds(_stretches(journal, table, report), round_bytes):
            if until_revision is not None and table.state.revision >= until_revision:
                break
            _Round(spark, journal, table, catalogue, report, until_revision or REVISION_MAX).run(stretches)
            report.lost = _joined(table.state.lost)
            if told is not None:
                told(report)
    if told is not None:
        told(report)
    return report


def read_history(spark: "SparkSession", out: Path, name: str) -> "DataFrame":
    """Read the table of one type, or of what has none with the name `untyped`.

    Raises:
        PipelineError: There is no such table; names those that there are.
    """
    out = out.absolute()  # Java may stand elsewhere than we
    if not any((out / name).glob("date=*/*.parquet")):
        there = sorted(path.name for path in out.glob("*") if path.name != "_maxam") if out.is_dir() else []
        raise PipelineError(f"{out} holds no history of {name}; there is {', '.join(there) or 'nothing'}")
    return spark.read.parquet(str(out / name))


def column_types(catalogue: Catalogue, merged: Mapping[str, Minors] | None = None) -> dict[str, ColumnType]:
    """Give the column type of each type in a catalogue; types too large for columns are left out: their values stay untyped.

    Args:
        catalogue: A journal's.
        merged: Minors that a table holds already, by type: the others follow them.
    """
    columns: dict[str, ColumnType] = {}
    for name, minors in catalogue.types().items():
        column = ColumnType((merged or {}).get(name, ()))
        try:
            for version, text in minors:
                column.add(version, text)
        except PipelineError:
            continue  # its values are told of when they are met
        columns[name] = column
    return columns


def stream_history(
    spark: "SparkSession",
    journal: Path,
    out: Path,
    checkpoint: Path,
    *,
    schemas: Path | None = None,
    types: Iterable[str] | None = None,
    round_bytes: int = ROUND_BYTES,
    available_now: bool = False,
    trigger_s: float = 10.0,
    told: Callable[[HistoryReport], None] | None = None,
) -> None:
    """Keep a history table up to date while a gateway writes the journal, until the query is stopped.

    Spark's stream tells that there is something new; how far the table is, the table itself knows. So a batch that Spark hands out
    again, after a kill or with a lost checkpoint, adds nothing twice, and none is left out.

    Args:
        spark: See `update_history`.
        journal: See `update_history`.
        out: See `update_history`.
        checkpoint: Folder of Spark's for this query.
        schemas: See `update_history`; read again for each batch.
        types: See `update_history`.
        round_bytes: See `update_history`.
        available_now: Return when all that was there at the start is in the table.
        trigger_s: Seconds from one batch to the next, at least.
        told: Called after each round, and at the end of each batch, with the report of the batch so far.

    Raises:
        PipelineError: As of `update_history`.
        StreamingQueryException: Likewise, where Spark passes it on.
    """
    wanted = None if types is None else tuple(types)
    journal, out, checkpoint = journal.absolute(), out.absolute(), checkpoint.absolute()  # Java may stand elsewhere

    def take(_: "DataFrame", __: int) -> None:
        update_history(spark, journal, out, schemas=schemas, types=wanted, round_bytes=round_bytes, told=told)

    # the rows of a batch are never asked for, so that nothing reads them
    source = spark.readStream.format("maxam").load(str(journal))
    writer = source.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).queryName("history")
    query = (
        writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=f"{trigger_s} seconds")
    ).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _check_types(wanted: tuple[str, ...] | None, catalogue: Catalogue) -> None:
    known = catalogue.types()
    for name in wanted or ():
        if name not in known:
            raise PipelineError(f"no type {name!r}: the journal knows {', '.join(_messages(known)) or 'none'}")


def _messages(known: Mapping[str, Minors]) -> list[str]:
    """Return the types that are no part of another one: a journal keeps the text of every type of its schema folder."""
    parts: set[str] = set()
    for name, minors in known.items():
        for version, text in minors:
            todo = [parse_schema(read_source(name, text.encode(), version)).type]
            seen: set[str] = set()  # a type may hold itself
            while todo:
                of = todo.pop()
                if of.name and of.name in seen:
                    continue
                seen.add(of.name)
                todo += [*(each.type for each in of.fields), *of.branches]
            parts |= seen - {name}
    return [name for name in known if name not in parts]


def _stretches(journal: Path, table: Table, report: HistoryReport) -> list[Stretch]:
    """List what the table lacks; tell what is missing between.

    Raises:
        PipelineError: The revision that comes next is not in the journal.
    """
    segments = list_segments(journal, "changes")
    state = table.state
    if state.revision < 0:
        first = segments[0].first if segments else 1
        state = table.state = replace(state, revision=first - 1)
    todo: list[Stretch] = []
    expected = state.revision + 1
    for segment in segments:
        if not segment.open and segment.last < expected:
            continue
        if segment.first > expected:
            lost = f"revisions {expected} to {segment.first - 1}"
            folder = os.path.dirname(segment.path)  # noqa: PTH120 - a string is at hand
            if segment is segments[0]:
                raise PipelineError(
                    f"{lost} are lost for this table: it is at {state.revision}, and {folder} begins with {segment.first}, as"
                    " retention was faster. Build the table anew in another folder, and run history more often than retention"
                )
            text = f"a segment is missing: {lost} are lost"
            report.problems.append(Problem("missing", folder, 0, expected, segment.first - 1, text))
        place = None
        if segment.first == state.segment:
            place = Place(state.offset, state.chain, state.place_revision)
        try:
            size = os.stat(segment.path).st_size  # noqa: PTH116 - a string is at hand
        except FileNotFoundError:  # just sealed
            found = next((one for one in list_segments(journal, "changes") if one.first == segment.first), None)
            if found is None:
                raise PipelineError(f"{segment.path}: removed while the journal was listed: run it again") from None
            size = os.stat(found.path).st_size  # noqa: PTH116 - as above
            segment = found  # noqa: PLW2901 - the same one under its new name
        if segment.open and place is not None and size <= place.offset:
            continue
        todo.append(Stretch(segment, size, place))
        expected = max(expected, segment.last + 1)
    last = max((segment.last or segment.first - 1 for segment in segments), default=0)
    if state.revision > last and not (segments and segments[-1].open):
        raise PipelineError(
            f"the table is at revision {state.revision}, but {journal} ends with {last}: it is not the journal that the table is of"
        )
    return todo


def _joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches of revisions in order; those that overlap or touch become one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _rounds(stretches: list[Stretch], round_bytes: int) -> Iterator[list[Stretch]]:
    batch: list[Stretch] = []
    size = 0
    for stretch in stretches:
        more = stretch.size - (stretch.place.offset if stretch.place is not None else 0)
        if batch and size + more > round_bytes:
            yield batch
            batch, size = [], 0
        batch.append(stretch)
        size += more
    if batch:
        yield batch


@final
class _Round:
    """One round: a bounded stretch of the journal becomes rows of the table."""

    def __init__(
        self,
        spark: "SparkSession",
        journal: Path,
        table: Table,
        catalogue: Catalogue,
        report: HistoryReport,
        until: int,
    ) -> None:
        self._spark: Final = spark
        self._journal: Final = journal
        self._table: Final = table
        self._catalogue: Final = catalogue
        self._report: Final = report
        self._until: Final = until
        wanted = table.state.types
        columns = column_types(catalogue, table.minors)
        self._columns: Final = {name: c for name, c in columns.items() if wanted is None or name in wanted}

    def run(self, stretches: list[Stretch]) -> None:
        """Splice, write, commit."""
        table = self._table
        with _settings(self._spark, _REWRITING):
            self._widen()
        spliced, written = self._splice(stretches, table.work_folder())
        files = [
            (Path(file.path), f"{file.name}/date={file.date}/{file.first:020}-{file.last:020}.parquet")
            for file in written
        ]
        for file in written:
            self._report.rows[file.name] += file.rows
        last = max(*(each.last for each in spliced), table.state.revision)
        place = spliced[-1].place
        lost = tuple((p.first, p.last) for each in spliced for p in each.problems if p.lost and p.first)
        missing = tuple((p.first, p.last) for p in self._report.problems if p.kind == "missing" and p.first <= last)
        state = replace(
            table.state,
            revision=last,
            segment=-1 if place is None else stretches[-1].segment.first,
            offset=0 if place is None else place.offset,
            chain=0 if place is None else place.chain,
            place_revision=0 if place is None else place.revision,
            lost=tuple(sorted({*table.state.lost, *lost, *missing})),
        )
        minors = {name: self._minors(name) for name in {file.name for file in written} if name != UNTYPED}
        changed = {name: each for name, each in minors.items() if table.minors.get(name) != each}
        if self._report.first == 0 and last > table.state.revision:
            self._report.first = table.state.revision + 1
        if state != table.state:
            table.commit(files, state, changed)
        self._report.last = state.revision
        self._report.files += len(files)
        self._report.problems += [problem for each in spliced for problem in each.problems]

    # columns

    def _minors(self, name: str) -> Minors:
        return [(minor.version, minor.text) for minor in self._columns[name].minors]

    def _widen(self) -> None:
        """Give the files that there are the columns of minors that are new."""
        table = self._table
        for name, column in self._columns.items():
            older = ColumnType(table.minors.get(name, ()))
            before = table.files(name)
            if not before or older.sql_type() == column.sql_type():
                continue
            work = table.work_folder()
            frame = self._spark.read.parquet(str(table.folder / name))
            value = column.carry(older, "value")
            frame = frame.selectExpr(*_ROW, "schema_version", f"{value} AS value", "date")
            frame.write.option("compression", _COMPRESSION).partitionBy("date").parquet(str(work / name))
            files, _ = _finished(work, name)
            if {place for _, place in files} != {path.relative_to(table.folder).as_posix() for path in before}:
                raise PipelineError(f"{table.folder / name}: rewritten files do not have the rows of the older ones")
            table.commit(files, table.state, {name: self._minors(name)})
            self._report.rewritten += len(files)

    # splicing

    def _splice(self, stretches: list[Stretch], work: Path) -> tuple[list[Spliced], list[Written]]:
        splicing = Splicing(
            os.path.abspath(self._journal),  # noqa: PTH100 - a string is wanted
            str(work.absolute()),
            stretches,
            self._table.state.revision,
            self._until,
            self._catalogue,
            {name: self._minors(name) for name in self._columns},
            None if self._table.state.types is None else frozenset(self._table.state.types),
        )
        done = on_workers(self._spark, splicing.splice, len(splicing.tasks))  # of what was done, not the data
        return [spliced for task in done for spliced in task.stretches], [file for task in done for file in task.files]


def _finished(work: Path, name: str) -> tuple[list[tuple[Path, str]], int]:
    """List the Parquet files that Spark wrote for a type, each with its place in the table, and count their rows."""
    paths = sorted((work / name).glob("date=*/*.parquet"))
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        bounds = list(pool.map(_bounds, paths))
    files = [
        (path, f"{name}/{path.parent.name}/{first:020}-{last:020}.parquet")
        for path, (first, last, rows) in zip(paths, bounds, strict=True)
        if rows
    ]
    return files, sum(rows for _, _, rows in bounds)


def _bounds(path: Path) -> tuple[int, int, int]:
    """Return the first and the last revision in a file, and the count of its rows, from its footer."""
    footer = pq.read_metadata(path)
    column = footer.schema.names.index("revision")
    groups = [footer.row_group(index).column(column).statistics for index in range(footer.num_row_groups)]
    if not groups:
        return 0, 0, 0
    return min(each.min for each in groups), max(each.max for each in groups), footer.num_rows


@contextmanager
def _settings(spark: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings in a session while the block runs."""
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            spark.conf.set(name, former)


@final
class _Teller:
    """Tells what runs report, each problem once."""

    def __init__(self, job: Job, follow: bool) -> None:
        self._job: Final = job
        self._follow: Final = follow
        self._told: Final[set[Problem]] = set()
        self._lost: list[tuple[int, int]] = []
        self._last = -1

    def tell(self, report: HistoryReport) -> None:
        # while a gateway writes, its last block is often not finished, and is read with the next batch
        fresh = [p for p in report.problems if p not in self._told and not (self._follow and p.kind == "torn")]
        self._told.update(fresh)
        self._job.tell_problems(fresh)
        if report.lost != self._lost:
            self._lost = list(report.lost)
            self._job.tell_missing(self._lost)
        if report.last != self._last and report.rows:
            rows = ", ".join(f"{name} {count}" for name, count in sorted(report.rows.items()))
            self._job.tell(f"revisions {report.first} to {report.last}: {rows}")
        self._last = report.last


@click.command("history")
@job_options(output=False)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="The table's folder.")
@click.option("--types", metavar="NAME,...", help="Only these types; always the same for one table. [default: all]")
@click.option("--until-revision", type=click.IntRange(min=1), metavar="N", help="The last revision to add.")
@click.option("--follow", is_flag=True, help="Go on as the journal grows, until interrupted.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow.",
)
def history_command(
    job: Job, out: Path, types: str | None, until_revision: int | None, follow: bool, every_s: float
) -> None:
    """Keep each message type as a Parquet table with real columns.

    Adds to FOLDER/<type>/date=YYYY-MM-DD/ all that the journal holds beyond what is there: each change once, however often it is
    run and wherever it was killed. docs/pipeline-types.md says which Avro type gets which column.
    """
    if follow and until_revision is not None:
        raise click.UsageError("--follow and --until-revision exclude each other")
    names = None if types is None else [name.strip() for name in types.split(",") if name.strip()]
    teller = _Teller(job, follow)
    journal, spark = job.journal, job.spark
    if follow:
        checkpoint = out / "_maxam" / "stream"
        with suppress(KeyboardInterrupt):
            stream_history(
                spark,
                journal,
                out,
                checkpoint,
                schemas=job.schemas,
                types=names,
                trigger_s=every_s,
                told=teller.tell,
            )
        return
    with job.progress("building the history"):
        report = update_history(
            spark, journal, out, schemas=job.schemas, types=names, until_revision=until_revision, told=teller.tell
        )
    if not report.rows:
        job.tell(f"nothing new: {out} is at revision {report.last}")
