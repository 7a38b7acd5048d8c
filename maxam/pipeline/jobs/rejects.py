"""`maxam-pipeline rejects`: what the broker refused, from whom, and why."""

from collections.abc import Sequence
from typing import Final

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.spark.selection import Selection, selection_options

KEYS: Final = ("principal", "schema", "disposition", "result", "reason", "destination")
_EXPENDABLE: Final = ("first_at", "sample_reason", "destinations", "sample_revision", "sample_destination", "last_at")
DEFAULT_KEYS: Final = ("principal", "schema", "disposition", "result")


def rejects(rejected: DataFrame, by: Sequence[str] = DEFAULT_KEYS) -> DataFrame:
    """Sum up rejected SENDs.

    Args:
        rejected: Rows of `rows.REJECTED_COLUMNS`.
        by: Columns of KEYS to count by.

    Returns:
        The most frequent first: the keys, then `rejected`, `destinations` (a count), `first_at` and `last_at`. The last one gives
        `sample_revision`, which is the rejected journal's own, `sample_destination` and `sample_reason`.
    """
    rows = rejected.withColumnRenamed("publisher", "principal")
    sample = F.max_by(F.struct("revision", "destination", "reason"), "revision")
    found = rows.groupBy(*by).agg(
        F.count("*").alias("rejected"),
        F.countDistinct("destination").alias("destinations"),
        F.min("accepted_at").alias("first_at"),
        F.max("accepted_at").alias("last_at"),
        sample.alias("sample"),
    )
    samples = [F.col(f"sample.{name}").alias(f"sample_{name}") for name in ("revision", "destination", "reason")]
    return found.select(*by, "rejected", "destinations", "first_at", "last_at", *samples).orderBy(
        F.desc("rejected"), *by
    )


@click.command("rejects")
@job_options
@selection_options
@click.option(
    "--by",
    type=click.Choice(KEYS),
    multiple=True,
    default=DEFAULT_KEYS,
    show_default=True,
    help="Column to count by. Repeatable.",
)
def rejects_command(job: Job, selection: Selection, by: tuple[str, ...]) -> None:
    """Show what the broker rejected: by principal, schema and result, with how often, since when, and a sample.

    The rejected journal counts by itself: --from-revision and --to-revision are its own.

    \b
    maxam-pipeline rejects --journal var/journal
    maxam-pipeline rejects --journal var/journal --by principal --by destination --since 2026-11-21T00:00:00Z
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    rejected = job.changes(records="rejected", **selection.prune())
    job.emit(rejects(rejected, tuple(dict.fromkeys(by))), expendable=_EXPENDABLE)
