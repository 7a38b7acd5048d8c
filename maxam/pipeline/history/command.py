"""The typed history: each message type of a journal as a Parquet table with real columns, brought up to date as often as one likes.

It works in rounds of bounded bytes. In a round workers take the next segments and splice them into rows of one schema each.
They write those as Parquet aside (`splicing`). The workers are processes of this machine, or Spark's on a cluster. The driver commits the files together with the state of the table (`table`). So every
change is in the table exactly once, wherever a run was killed. Nothing but counts comes to the driver.

All files of a type have the same columns. When a new minor changes them, the older files are rewritten first (`widening`), each
replaced by one of the same rows and the same name.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, final, get_args

import click

from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.journal.dump import read_records
from maxam.journal.identity import NewIncarnationError, OtherJournalError, require_same
from maxam.journal.listing import REVISION_MAX, Problem
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.stretches import HistoryReport, joined, missing_stretches, rounds
from maxam.pipeline.history.table import Minors, Table, delta_log
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.spark.workers import Counted
from maxam.records import Change
from maxam.terminal.moments import Duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_BYTES: Final = 1 << 30
"""Of segments in one round, after which what was read is in the table. Memory does not depend on it."""

Form = Literal["parquet", "delta"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAUSE_S_MIN: Final = 0.1  # of --follow, between two readings of the journal


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
    form: Form | None = None,
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
        form: `delta` keeps a Delta log for each type; a table of Parquet gets one. None for the format that the table has.

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
        _set_format(table, form)
        report.last = max(0, table.state.revision)
        report.lost = joined(table.state.lost)
        for stretches in rounds(missing_stretches(journal, table, report), round_bytes):
            if until_revision is not None and table.state.revision >= until_revision:
                break
            from maxam.pipeline.history.rounds import Round  # noqa: PLC0415 - 0.4 s for pyarrow, which "nothing new" does not need

            Round(spark, journal, table, catalogue, report, until_revision or REVISION_MAX, counted).run(stretches)
            report.lost = joined(table.state.lost)
            if told is not None:
                told(report)
    if told is not None:
        told(report)
    return report


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
    import pyarrow.parquet as pq  # noqa: PLC0415 - as in `update_history`

    for path in table.folder.glob("*/date=*/*.parquet"):
        first, _, last = path.name.partition(".")[0].partition("-")
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


def _set_format(table: Table, form: Form | None) -> None:
    """Set the format of a new table; give a table of Parquet its Delta logs.

    Raises:
        PipelineError: The table has Delta logs, which are not given up; or the library for them is missing.
    """
    if form == "parquet" and table.state.delta:
        raise PipelineError(
            f"{table.folder} is a Delta table: leave out --format, or build a new table in another folder"
        )
    if form == "delta" or table.state.delta:
        delta_log(table.folder)  # or an error with what to install
    if form == "delta" and not table.state.delta:
        state = replace(table.state, delta=True)
        if state.revision >= 0:
            table.commit((), state, {})
        else:
            table.state = state


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


@final
class _Reporter:
    """Reports the results of runs, each problem once."""

    def __init__(self, job: Job, follow: bool) -> None:
        self._job: Final = job
        self._follow: Final = follow
        self._told: Final[set[Problem]] = set()
        self._lost: list[tuple[int, int]] = []
        self._last = -1

    def report(self, report: HistoryReport) -> None:
        # while a gateway writes, its last block is often not finished, and is read with the next batch
        fresh = [p for p in report.problems if p not in self._told and not (self._follow and p.kind == "torn")]
        self._told.update(fresh)
        self._job.report_problems(fresh)
        if report.lost != self._lost:
            self._lost = list(report.lost)
            self._job.report_missing(self._lost)
        if report.last != self._last and report.rows:
            rows = ", ".join(f"{name} {count}" for name, count in sorted(report.rows.items()))
            self._job.remark(f"revisions {report.first} to {report.last}: {rows}")
        self._last = report.last


@click.command("history")
@job_options(output=False)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="The table's folder.")
@click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(get_args(Form)),
    help="Format of the table. `delta` adds a Delta log to the Parquet files of each type. An existing table gets one too."
    " [default: that of the table, else parquet]",
)
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
    type=Duration(zero=True, bare="s"),
    default="10s",
    show_default=True,
    help="Time between two updates with --follow.",
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
    form: Form | None,
    types: str | None,
    until_revision: int | None,
    follow: bool,
    every: timedelta,
    restored: bool,
) -> None:
    """Keep each message type as a Parquet table with real columns.

    Adds the changes that FOLDER lacks to FOLDER/<type>/date=YYYY-MM-DD/. Each change is there once, however often the command runs
    and wherever it was killed. docs/analyse/pipeline-types.md specifies the column of each Avro type.
    """
    if follow and until_revision is not None:
        raise click.UsageError("--follow and --to-revision exclude each other")
    names = None if types is None else [name.strip() for name in types.split(",") if name.strip()]
    reporter = _Reporter(job, follow)
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
                    told=reporter.report,
                    counted=job.counted,
                    restored=restored,
                    form=form,
                )
            if not follow:
                break
            time.sleep(max(every.total_seconds(), _PAUSE_S_MIN))
    if not follow and not report.rows:
        job.remark(f"nothing new: {out} is at revision {report.last}")
