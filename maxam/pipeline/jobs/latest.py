"""`maxam-pipeline latest`: the value of every topic as of any moment."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses
from pyspark.sql.pandas.types import to_arrow_schema

from maxam.globs import Glob
from maxam.journal.listing import REVISION_MAX
from maxam.journal.newest import decode_records
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.jobs.decoding import json_values, with_values
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.jobs.output import Result, with_optional
from maxam.pipeline.jobs.walking import FOUND_COLUMNS, PIECES_MAX, Walk, decoded
from maxam.pipeline.spark.reading import Archive, Problem, read_journal
from maxam.pipeline.spark.rows import CHANGE_COLUMNS, send_batches
from maxam.pipeline.spark.selection import Selection, glob_option, moment_text
from maxam.pipeline.spark.workers import Counted, on_workers
from maxam.records import Change
from maxam.terminal.moments import Moment

_CHANGES: Final = to_arrow_schema(CHANGE_COLUMNS, timezone="UTC")
_BLOCK_CHANGES_MAX: Final = 100_000  # a problem of the clock ends before the last write that it concerns
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def read_newest(
    spark: SparkSession, archive: Archive, selection: Selection, period: timedelta | None = None
) -> DataFrame:
    """Return the newest change of each topic among the selected ones of a journal, values and deletes, in no order.

    Python workers scan the segments, and Spark compares what they find.

    Args:
        spark: The session; its workers see the journal's folder under the same name.
        archive: Result of `examine` for a selection that this one is within.
        selection: Which changes count.
        period: The newest in each period of that length, counted from the epoch, instead of the newest of all.

    Returns:
        Rows of `rows.CHANGE_COLUMNS`.
    """
    walk = Walk(archive, selection, 0 if period is None else period // MICROSECOND)
    count = walk.pieces()
    pieces = spark.range(0, count, 1, max(1, count)).mapInArrow(walk, FOUND_COLUMNS)
    found = pieces.groupBy("destination", "period").agg(F.max_by("record", "revision").alias("record"))
    return found.select("record").mapInArrow(decoded, CHANGE_COLUMNS)


def few_newest(
    spark: SparkSession | None, archive: Archive, selection: Selection, counted: Counted | None = None
) -> list[Change] | None:
    """Find the newest change of each topic among the selected ones of a journal, values and deletes, where they are few.

    Workers scan the segments, and the driver puts together what they find. Spark's SQL, which takes seconds to start, has no part in
    it.

    Args:
        spark: As of `read_newest`; None for processes of this machine.
        archive: As of `read_newest`.
        selection: As of `read_newest`.
        counted: See `on_workers`.

    Returns:
        The changes in no order; None when they may be too many for the driver's memory.
    """
    walk = Walk(archive, selection, 0)
    if walk.pieces() > PIECES_MAX:
        return None
    newest_of: dict[bytes, tuple[int, bytes]] = {}
    for found in on_workers(spark, walk.piece, walk.pieces(), walk.size, counted):
        if found is None:
            return None
        for destination, revision, record in found:
            known = newest_of.get(destination)
            if known is None or known[0] < revision:
                newest_of[destination] = revision, record
    return decode_records([record for _, record in newest_of.values()])


def few_values(changes: list[Change], catalogue: Catalogue | None = None, deleted: bool = False) -> Result:
    """Return newest changes as the values of their topics, as `values_of` does.

    Args:
        changes: Of `few_newest`.
        catalogue: See `values_of`.
        deleted: See `values_of`.
    """
    rows = sorted([one for one in changes if deleted or not one.deleted], key=lambda one: one.destination)
    names = ["destination", "revision", "accepted_at", "publisher", "schema", *(["kind"] if deleted else [])]
    marks = [(name, False, False) for name in names]
    if catalogue is not None:
        marks.append(("value", True, True))
    marks.append(("body", False, True))
    fields = [_CHANGES.field(name) if name != "value" else pa.field(name, pa.string()) for name, _, _ in marks]
    batches = []
    for batch in send_batches([rows], 0, REVISION_MAX):
        columns = [batch.column(name) for name in names]
        absent = [kind != "value" for kind in batch.column("kind").to_pylist()]
        if catalogue is not None:
            values = json_values(batch, catalogue)
            columns.append(pa.array(values, pa.string()))
            absent = [gone or value is not None for gone, value in zip(absent, values, strict=True)]
        columns.append(pc.if_else(pa.array(absent, pa.bool_()), None, batch.column("body")))
        batches.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    return Result(pa.Table.from_batches(batches, pa.schema(fields)), tuple(marks))


def values_of(found: DataFrame, catalogue: Catalogue | None = None, deleted: bool = False) -> DataFrame:
    """Return newest changes as the values of their topics.

    Args:
        found: Of `read_newest`.
        catalogue: Decodes the values; without one they stay bodies.
        deleted: Topics whose newest change is a delete are rows too.

    Returns:
        Rows in order of `destination`. Columns are `destination`, `revision`, `accepted_at`, `publisher`, `schema` and `body`. With
        `deleted` there is `kind`. With a catalogue there is `value` as JSON text, and `body` is only of rows without it.
    """
    if not deleted:
        found = found.where(F.col("kind") == "value")
    # Spark computes sorted rows twice, once to find out how to divide them: not from the archive, and without the values.
    found = found.localCheckpoint().orderBy("destination")
    columns = ["destination", "revision", "accepted_at", "publisher", "schema", *(["kind"] if deleted else [])]
    body = F.when(F.col("kind") == "value", F.col("body"))
    if catalogue is not None:
        found = with_values(found, catalogue)
        columns.append("value")
        body = F.when((F.col("kind") == "value") & F.col("value").isNull(), F.col("body"))
    return with_optional(found.withColumn("body", body).select(*columns, "body"), "body")


def clock_intervals(
    between: Callable[[int, int], DataFrame], problems: Iterable[Problem]
) -> list[tuple[Problem, datetime, datetime | None]]:
    """Return, for each problem of the clock, from which time to which changes do not carry the time at which they were accepted.

    Args:
        between: Gives the changes from one revision to another.
        problems: Of the archive; those of other kinds are left out.

    Returns:
        The problem, and an interval with both ends; None stands for an end that has not come yet.
    """
    found: list[tuple[Problem, datetime, datetime | None]] = []
    for problem in problems:
        if problem.kind != "clock":
            continue
        rows = between(problem.first - 1, problem.last + _BLOCK_CHANGES_MAX)
        rows = rows.select("revision", F.unix_micros("accepted_at").alias("at_us"))
        ends = {row.revision: row.at_us for row in rows.where(F.col("revision") <= problem.first).collect()}
        if problem.first not in ends:
            continue
        begin_us, before_us = ends[problem.first], ends.get(problem.first - 1, 0)
        if before_us > begin_us:  # it stepped back to the time before
            end_us = before_us
        else:  # it stood still
            later = rows.where((F.col("revision") > problem.last) & (F.col("at_us") > begin_us))
            end_us = later.agg(F.min("at_us")).collect()[0][0]
        found.append((problem, _time(begin_us), None if end_us is None else _time(end_us)))
    return found


def _near(archive: Archive, at: datetime) -> list[Problem]:
    """Return the problems of segments that a moment may be in, or just behind."""
    at_us = (at - _EPOCH) // MICROSECOND
    checked = [*archive.sealed, *archive.damaged, *([archive.open] if archive.open is not None else [])]
    checked.sort(key=lambda segment: segment.first)
    paths = set()
    for number, segment in enumerate(checked):
        last_at_us = checked[number + 1].last_at_us if number + 1 < len(checked) else at_us
        if segment.first_at_us <= at_us <= max(last_at_us, segment.last_at_us):
            paths.add(segment.path)
    return [problem for problem in archive.problems if problem.path in paths]


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


@click.command("latest")
@job_options
@click.option(
    "--at",
    type=Moment(),
    help="Show the values at this moment, changes of that moment included. ISO 8601 with an offset or Z. [default: now]",
)
@glob_option
@click.option("--deleted", is_flag=True, help="Show deleted topics too, as kind `delete`.")
def latest_command(job: Job, at: datetime | None, globs: tuple[Glob, ...], deleted: bool) -> None:
    """Show the value of every topic as of any moment.

    JSON rows have destination, revision, accepted_at, publisher, schema and value, which is decoded, or body, in base64, where no
    schema describes it. Deleted topics are left out without --deleted.

    If the gateway's clock ran backwards, times near that moment do not show the order of changes. Revisions always do. An --at in
    such an interval is reported on standard error.

    \b
    maxam-pipeline latest --journal var/journal --at 2026-11-21T18:30:00+10:00 --glob 'X/EGM.*.EGMStatus'
    maxam-pipeline latest --journal var/journal --out now.parquet
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    selection = Selection(until=None if at is None else at + MICROSECOND, globs=globs)
    catalogue = Catalogue.load(job.journal, job.schemas)
    archive = job.examine(**selection.prune())
    if at is not None:

        def between(first: int, last: int) -> DataFrame:
            return read_journal(job.spark, job.journal, from_revision=first, to_revision=last, problems="skip")

        for problem, first, last in clock_intervals(between, _near(archive, at)):
            if first <= at and (last is None or at <= last):
                job.warn(
                    f"{moment_text(at)} is in the interval from {moment_text(first)} to"
                    f" {'the end' if last is None else moment_text(last)} where the gateway's clock stood still or ran backwards"
                    f" (revisions {problem.first} to {problem.last}). Changes of that time may have a wrong `accepted_at`"
                )

    with job.progress("finding the newest changes"):
        few = None if job.writes_folder else few_newest(job.workers, archive, selection, job.counted)
        found: DataFrame | Result
        if few is None:
            found = values_of(read_newest(job.spark, archive, selection), catalogue, deleted)
        else:
            found = few_values(few, catalogue, deleted)
    job.emit(found, expendable=("schema", "publisher", "accepted_at"))
