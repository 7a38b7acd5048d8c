"""`maxam-pipeline rejects`: what the broker refused, from whom, and why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.pipeline.job import Job, job_options
from maxam.pipeline.selection import Selection, matches, selection_options

if TYPE_CHECKING:
    from maxam.avro.registry import Registry

KEYS: Final = ("principal", "schema", "disposition", "result", "reason", "destination")
DEFAULT_KEYS: Final = ("principal", "schema", "disposition", "result")


def with_rule_schema(rejected: DataFrame, registry: "Registry") -> DataFrame:
    """Fill in `schema`, where nothing was judged, with that of the rule for the destination; empty where there is none.

    Args:
        rejected: Rows of `rows.REJECTED_COLUMNS`.
        registry: Of the schema folder.
    """
    ruled: Column | None = None
    for rule in registry.rules:  # the first one that matches
        condition = matches([rule.glob])
        ruled = F.when(condition, rule.schema) if ruled is None else ruled.when(condition, rule.schema)
    if ruled is None:
        return rejected
    return rejected.withColumn(
        "schema", F.when(F.col("schema") != "", F.col("schema")).otherwise(F.coalesce(ruled, F.lit("")))
    )


def rejects(rejected: DataFrame, by: Sequence[str] = DEFAULT_KEYS) -> DataFrame:
    """Sum up rejected SENDs.

    Args:
        rejected: Rows of `rows.REJECTED_COLUMNS`.
        by: What is counted apart; of KEYS.

    Returns:
        The most frequent first: the keys, then `rejected`, `destinations` (how many different ones), `first_at`, `last_at`, and of
        the last one `sample_revision`, which is the rejected journal's own, `sample_destination` and `sample_reason`.
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
    help="What is counted apart; repeatable.",
)
def rejects_command(job: Job, selection: Selection, by: tuple[str, ...]) -> None:
    """Show what the broker rejected: by principal, schema and result, with how often, since when, and a sample.

    The rejected journal counts by itself: --from-revision and --to-revision are its own. With --schemas a SEND that was refused before
    anything was judged counts for the schema of its destination's rule.

    \b
    maxam-pipeline rejects --journal var/journal
    maxam-pipeline rejects --journal var/journal --by principal --by destination --since 2026-11-21T00:00:00Z
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    rejected = job.changes(records="rejected", **selection.prune())
    if job.schemas is not None:
        from maxam.config import Limits  # noqa: PLC0415  # with the next line
        from maxam.gateway.sources import read_registry  # noqa: PLC0415  # the gateway takes 100 ms to import

        rejected = with_rule_schema(rejected, read_registry(job.schemas, Limits()))
    job.emit(rejects(rejected, tuple(dict.fromkeys(by))), expendable=("first_at", "destinations", "sample_revision"))
