"""`maxam-pipeline latest`: the value of every topic as of any moment."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from maxam.globs import Glob
from maxam.journal.archive import Archive
from maxam.journal.dump import read_records
from maxam.journal.listing import Problem
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.jobs.newest import newest_changes, newest_values
from maxam.pipeline.jobs.walking import Walk
from maxam.pipeline.spark.selection import Selection, glob_option, moment_text
from maxam.records import Change
from maxam.terminal.moments import Moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from maxam.pipeline.jobs.output import Result

_BLOCK_CHANGES_MAX: Final = 100_000  # a problem of the clock ends before the last write that it concerns
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def clock_intervals(journal: Path, problems: Iterable[Problem]) -> list[tuple[Problem, datetime, datetime | None]]:
    """Return, for each problem of the clock, from which time to which changes do not carry the time at which they were accepted.

    Args:
        journal: The journal's folder.
        problems: Of the archive; those of other kinds are left out.

    Returns:
        The problem, and an interval with both ends; None stands for an end that has not come yet.
    """
    found: list[tuple[Problem, datetime, datetime | None]] = []
    for problem in problems:
        if problem.kind != "clock":
            continue
        begin_us = before_us = 0
        end_us: int | None = None
        for revision, at_us in _times(journal, problem.first - 1, problem.last + _BLOCK_CHANGES_MAX):
            if revision < problem.first:
                before_us = at_us
            elif revision == problem.first:
                begin_us = at_us
                if before_us > at_us:  # it stepped back to the time before
                    end_us = before_us
                    break
            elif revision > problem.last and at_us > begin_us:  # it stood still
                end_us = at_us
                break
        if begin_us:
            found.append((problem, _time(begin_us), None if end_us is None else _time(end_us)))
    return found


def _times(journal: Path, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield revision and time of the changes from one revision to another."""
    for found in read_records(journal, first=first, last=last):
        if not isinstance(found, Problem) and isinstance(found[1], Change):
            yield found[0], found[1].accepted_at_us


def _near(archive: Archive, at: datetime) -> list[Problem]:
    """Return the problems of segments that a moment may be in, or just behind."""
    at_us = (at - _EPOCH) // _MICROSECOND
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
@click.option(
    "--at-revision", type=click.IntRange(1), metavar="N", help="Show the values after the change of this revision."
)
@glob_option
@click.option("--deleted", is_flag=True, help="Show deleted topics too, as kind `delete`.")
@click.option("--values/--no-values", default=True, show_default=True, help="Decode the values, or show their bodies.")
def latest_command(
    job: Job, at: datetime | None, at_revision: int | None, globs: tuple[Glob, ...], deleted: bool, values: bool
) -> None:
    """Show the value of every topic as of any moment.

    JSON rows have destination, revision, accepted_at, publisher, schema and value, which is decoded, or body, in base64, where no
    schema describes it. Deleted topics are left out without --deleted.

    If the gateway's clock ran backwards, times near that moment do not show the order of changes. Revisions always do. An --at in
    such an interval is reported on standard error. Use --at-revision there.

    \b
    maxam-pipeline latest --journal var/journal --at 2026-11-21T18:30:00+10:00 --glob 'X/EGM.*.EGMStatus'
    maxam-pipeline latest --journal var/journal --at-revision 35400
    maxam-pipeline latest --journal var/journal --out now.parquet
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    if at is not None and at_revision is not None:
        raise click.UsageError("--at and --at-revision exclude each other")
    selection = Selection(until=None if at is None else at + _MICROSECOND, to_revision=at_revision, globs=globs)
    catalogue = Catalogue.load(job.journal, job.schemas) if values else None
    archive = job.examine(**selection.prune())
    if at_revision is not None and archive.last < at_revision:
        raise PipelineError(
            f"{job.journal}: revision {at_revision} was not found; the last one is {archive.last}. Give an earlier one"
        )
    if at is not None:
        for problem, first, last in clock_intervals(job.journal, _near(archive, at)):
            if first <= at and (last is None or at <= last):
                job.warn(
                    f"{moment_text(at)} is in the interval from {moment_text(first)} to"
                    f" {'the end' if last is None else moment_text(last)} where the gateway's clock stood still or ran backwards"
                    f" (revisions {problem.first} to {problem.last}). Changes of that time may have a wrong `accepted_at`"
                )

    expendable = ("schema", "publisher", "accepted_at")
    with ExitStack() as kept:
        with job.progress("finding the newest changes"):
            found: DataFrame | Result
            if job.workers is not None:
                from maxam.pipeline.jobs.spark_newest import read_newest, values_of  # noqa: PLC0415  # needs pyspark

                found = values_of(read_newest(job.workers, archive, selection), catalogue, deleted)
            else:
                newest = kept.enter_context(newest_changes(Walk(archive, selection, 0), job.counted))
                found = newest_values(newest, catalogue, deleted, job.counted)
        job.emit(found, expendable)
