"""The typed history: each message type of a journal as a Parquet table with real columns, brought up to date as often as one likes.

It works in rounds of bounded bytes. In a round workers take the next segments and splice them into rows of one schema each.
They write those as Parquet aside (`splicing`). The workers are processes of this machine, or Spark's on a cluster. The driver commits the files together with the state of the table (`table`). So every
change is in the table exactly once, wherever a run was killed. Nothing but counts comes to the driver.

All files of a type have the same columns. When a new minor changes them, the older files are rewritten first (`widening`), each
replaced by one of the same rows and the same name.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import click
import pyarrow.parquet as pq

from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.errors import JournalDamagedError
from maxam.journal.dump import read_records
from maxam.journal.identity import NewIncarnationError, OtherJournalError, end_chain, find_block, require_same
from maxam.journal.listing import REVISION_MAX, Problem, list_segments, open_segment, size_of
from maxam.journal.names import Segment
from maxam.journal.reading import Place
from maxam.journal.scan import Scanner
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.columns import ColumnType
from maxam.pipeline.history.parquet import Written
from maxam.pipeline.history.splicing import Spliced, Splicing, Stretch, torn_tail
from maxam.pipeline.history.table import UNTYPED, Minors, Table
from maxam.pipeline.history.widening import Widening
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.spark.workers import Counted, on_workers
from maxam.records import Change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_BYTES: Final = 1 << 30
"""Of segments in one round, after which what was read is in the table. Memory does not depend on it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAUSE_S_MIN: Final = 0.1  # of --follow, between two readings of the journal


@dataclass(slots=True)
class HistoryReport:
    """The result of a run.

    Attributes:
        first: First revision that it added, 0 for none.
        last: The last one that the table holds now, 0 for none.
        rows: Added, by type. `untyped` for those whose value no schema is known for.
        files: Added.
        rewritten: Files that were given other columns.
        problems: Parts of the journal that could not be read, or not as they should.
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
    spark: "SparkSession | None",
    journal: Path,
    out: Path,
    *,
    schemas: Path | None = None,
    types: Iterable[str] | None = None,
    until_revision: int | None = None,
    round_bytes: int = ROUND_BYTES,
    told: Callable[[HistoryReport], None] | None = None,
    counted: Counted | None = None,
    restored: bool = False,
) -> HistoryReport:
    """Add to a history table all that the journal holds beyond it, the open segment included up to its last whole block.

    Damage is reported, and the records after it are processed. Killed at any point, or after any error, the next run goes on where
    this one was.

    Args:
        spark: The session whose workers do it; all of them must see both folders under the same names. None for processes of this
            machine.
        journal: The journal's folder. A gateway may be writing it.
        out: The table's folder; made if need be.
        schemas: A schema folder, for the minors of texts and for texts that the journal lacks.
        types: Full names of the types to keep, None for all; always the same for one table.
        until_revision: The last one to add.
        round_bytes: See ROUND_BYTES; a round has at least one segment.
        told: Called after each round, and at the end, with the report so far.
        counted: See `on_workers`.
        restored: Go on with a journal of another incarnation if it holds all that is in the table.

    Raises:
        PipelineError: The journal does not hold the revisions that come next, or the table is of other types or of another journal.
            Also if the table is being written, or a type name is unknown. The table is as after the last round.
        JournalError: There is no journal.
        OSError: A folder cannot be read or written.
    """
    journal, out = journal.absolute(), out.absolute()  # Java may stand elsewhere than we
    catalogue = Catalogue.load(journal, schemas)
    wanted = _chosen(types, catalogue)
    report = HistoryReport()
    for path, text in catalogue.unreadable:
        report.problems.append(Problem("unreadable", path, 0, 0, 0, f"not a schema: {text}", lost=False))
    with Table(out) as table:
        _require_types(table, wanted)
        _require_same(journal, table, restored=restored)
        report.last = max(0, table.state.revision)
        report.lost = _joined(table.state.lost)
        for stretches in _rounds(_stretches(journal, table, report), round_bytes):
            if until_revision is not None and table.state.revision >= until_revision:
                break
            _Round(spark, journal, table, catalogue, report, until_revision or REVISION_MAX, counted).run(stretches)
            report.lost = _joined(table.state.lost)
            if told is not None:
                told(report)
    if told is not None:
        told(report)
    return report


def column_types(catalogue: Catalogue, merged: Mapping[str, Minors] | None = None) -> dict[str, ColumnType]:
    """Return the column type of each type in a catalogue. Types too large for columns are left out: their values stay untyped.

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
            continue  # its values are reported when they are met
        columns[name] = column
    return columns


def _require_same(journal: Path, table: Table, *, restored: bool) -> None:
    """Refuse a journal that is not the one that the table is of; keep its incarnation.

    Raises:
        PipelineError: It is another one, or was restored or repaired since.
    """
    state = table.state
    partly = state.segment >= 0 and state.chain
    chain = state.chain if partly else state.end_chain
    revision = state.place_revision if partly else state.revision
    try:
        found = require_same(journal, "changes", state.incarnation, revision, chain, restored=restored)
    except NewIncarnationError as error:
        raise PipelineError(
            f"{error}. If it was restored from a backup, go on with --continue-after-restore"
        ) from error
    except OtherJournalError as error:
        raise PipelineError(
            f"{table.folder}: {error}. Name the table's journal, or build a new table in another folder"
        ) from error
    if not chain and revision > 0 and not _has_same_row(journal, table):
        raise PipelineError(
            f"{table.folder}: the change of revision {revision} in {journal} is not the one in the table: it is another journal. "
            "Name the table's journal, or build a new table in another folder"
        )
    if found != state.incarnation and state.revision >= 0:
        table.commit((), replace(state, incarnation=found), {})
    else:
        table.state = replace(state, incarnation=found)


def _has_same_row(journal: Path, table: Table) -> bool:
    """Return True if the last change of a table of an older release is the journal's, or if either does not hold it."""
    revision = table.state.revision
    record = next(
        (one[1] for one in read_records(journal, first=revision, last=revision) if not isinstance(one, Problem)), None
    )
    if not isinstance(record, Change):
        return True
    for path in table.folder.glob("*/date=*/*.parquet"):
        first, _, last = path.stem.partition("-")
        if first.isdecimal() and last.isdecimal() and int(first) <= revision <= int(last):
            for row in pq.read_table(
                path, columns=["accepted_at", "destination"], filters=[("revision", "=", revision)], partitioning=None
            ).to_pylist():
                at_us = round((row["accepted_at"] - _EPOCH).total_seconds() * 1e6)
                return (at_us, row["destination"]) == (record.accepted_at_us, record.destination.decode())
    return True


def _chosen(types: Iterable[str] | None, catalogue: Catalogue) -> tuple[str, ...] | None:
    """Return the types of a table as its state has them.

    Raises:
        PipelineError: The journal knows no type of such a name.
    """
    wanted = None if types is None else tuple(sorted(set(types)))
    known = catalogue.types()
    for name in wanted or ():
        if name not in known:
            raise PipelineError(f"no type {name!r}: the journal knows {', '.join(_messages(known)) or 'none'}")
    return wanted


def _require_types(table: Table, wanted: tuple[str, ...] | None) -> None:
    """Set the types of a new table.

    Raises:
        PipelineError: The table is of other types.
    """
    if table.state.revision < 0:
        table.state = replace(table.state, types=wanted)
    elif table.state.types != wanted:
        there = "all types" if table.state.types is None else ", ".join(table.state.types)
        raise PipelineError(f"{table.folder} is the history of {there}: name the same types, or another folder")


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
    """List the stretches that the table lacks, and report the missing ones between.

    Raises:
        PipelineError: The revision that comes next is not in the journal.
    """
    segments = list_segments(journal, "changes")
    state = table.state
    if state.revision < 0:
        first = segments[0].first if segments else 1
        state = table.state = replace(state, revision=first - 1)
        if first > 1:
            text = f"the archive begins with revision {first}: the table does not hold what retention removed before"
            folder = os.path.dirname(segments[0].path)  # noqa: PTH120 - a string is at hand
            report.problems.append(Problem("expired", folder, 0, 1, first - 1, text, lost=False))
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
                    " retention was faster. Build a new table in another folder, and run history more often than retention"
                )
            text = f"a segment is missing: {lost} are lost"
            report.problems.append(Problem("missing", folder, 0, expected, segment.first - 1, text))
        place = None
        if segment.first == state.segment:
            offset = find_block(journal, "changes", segment, state.chain, state.offset) if state.chain else None
            place = Place(state.offset if offset is None else offset, state.chain, state.place_revision)
        size = size_of(segment)
        if not size:  # just sealed
            found = next((one for one in list_segments(journal, "changes") if one.first == segment.first), None)
            if found is None:
                raise PipelineError(f"{segment.path}: removed while the journal was listed: run it again") from None
            size = size_of(found)
            segment = found  # noqa: PLW2901 - the same one under its new name
        if segment.open and not _has_block(journal, segment, size, place, report):
            continue
        todo.append(Stretch(segment, size, place))
        expected = max(expected, segment.last + 1)
    last = max((segment.last or segment.first - 1 for segment in segments), default=0)
    if state.revision > last and not (segments and segments[-1].open):
        raise PipelineError(
            f"the table is at revision {state.revision}, but {journal} ends with {last}: it is not the journal that the table is of"
        )
    return todo


def _has_block(journal: Path, segment: Segment, size: int, place: Place | None, report: HistoryReport) -> bool:
    """Return True unless nothing whole follows a place in an open segment; a torn tail is a problem of the report then."""
    if place is not None and size <= place.offset:
        return False
    try:
        segment, file = open_segment(journal, "changes", segment)
    except FileNotFoundError:  # removed since it was listed: the task reports it
        return True
    with closing(file):
        if not segment.open:
            return True
        try:
            scanner = Scanner(segment.path, size, file.read)
        except JournalDamagedError:  # of its header: the task reports it
            return True
        if place is not None:
            scanner.offset, scanner.chain = place.offset, place.chain
        offset = scanner.offset
        try:
            return scanner.next_block() is not None
        except JournalDamagedError as error:
            if not scanner.torn():
                return True
            report.problems.append(torn_tail(segment.path, offset, error))
            return False


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
        spark: "SparkSession | None",
        journal: Path,
        table: Table,
        catalogue: Catalogue,
        report: HistoryReport,
        until: int,
        counted: Counted | None,
    ) -> None:
        self._spark: Final = spark
        self._journal: Final = journal
        self._table: Final = table
        self._catalogue: Final = catalogue
        self._report: Final = report
        self._until: Final = until
        self._counted: Final = counted
        wanted = table.state.types
        columns = column_types(catalogue, table.minors)
        self._columns: Final = {name: c for name, c in columns.items() if wanted is None or name in wanted}

    def run(self, stretches: list[Stretch]) -> None:
        """Splice, write, commit."""
        table = self._table
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
            end_chain=end_chain(self._journal, "changes", last) if place is None else 0,
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
        return self._columns[name].texts()

    def _widen(self) -> None:
        """Give the files that there are the columns of minors that are new."""
        table = self._table
        for name, column in self._columns.items():
            older = ColumnType(table.minors.get(name, ()))
            before = table.files(name)
            if not before or older.sql_type() == column.sql_type():
                continue
            work = table.work_folder().absolute()
            files = [(work / f"{number:06}.parquet", path) for number, path in enumerate(before)]
            minors = self._minors(name)
            size = sum(path.stat().st_size for path in before)
            widening = Widening([(str(path), str(target)) for target, path in files], older.texts(), minors)
            on_workers(self._spark, widening.rewrite, len(files), size, self._counted)
            moves = [(target, path.relative_to(table.folder).as_posix()) for target, path in files]
            table.commit(moves, table.state, {name: minors})
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
        size = sum(stretch.size for stretch in stretches)
        done = on_workers(self._spark, splicing.splice, len(splicing.tasks), size, self._counted)  # not the data
        return [spliced for task in done for spliced in task.stretches], [file for task in done for file in task.files]


@final
class _Teller:
    """Reports the results of runs, each problem once."""

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
@click.option(
    "--types", metavar="NAME,...", help="Keep only these types. A table always has the same ones. [default: all]"
)
@click.option(
    "--to-revision",
    "--until-revision",
    "until_revision",
    type=click.IntRange(min=1),
    metavar="N",
    help="The last revision to add.",
)
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
@click.option(
    "--continue-after-restore",
    "restored",
    is_flag=True,
    help="Go on with a journal that was restored, if it holds all that is in the table.",
)
def history_command(
    job: Job,
    out: Path,
    types: str | None,
    until_revision: int | None,
    follow: bool,
    every_s: float,
    restored: bool,
) -> None:
    """Keep each message type as a Parquet table with real columns.

    Adds the changes that FOLDER lacks to FOLDER/<type>/date=YYYY-MM-DD/. Each change is there once, however often the command runs
    and wherever it was killed. docs/analyse/pipeline-types.md specifies the column of each Avro type.
    """
    if follow and until_revision is not None:
        raise click.UsageError("--follow and --until-revision exclude each other")
    names = None if types is None else [name.strip() for name in types.split(",") if name.strip()]
    teller = _Teller(job, follow)
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        while True:
            with job.progress("building the history"):
                report = update_history(
                    job.workers,
                    job.journal,
                    out,
                    schemas=job.schemas,
                    types=names,
                    until_revision=until_revision,
                    told=teller.tell,
                    counted=job.counted,
                    restored=restored,
                )
            if not follow:
                break
            time.sleep(max(every_s, _PAUSE_S_MIN))
    if not follow and not report.rows:
        job.tell(f"nothing new: {out} is at revision {report.last}")
