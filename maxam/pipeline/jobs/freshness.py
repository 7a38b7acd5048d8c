"""`maxam-pipeline freshness`: which topics went without an update for longer than they may."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam import config
from maxam.avro.folder import read_registry
from maxam.avro.registry import Registry
from maxam.globs import Glob
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.jobs.spark_newest import MICROSECOND
from maxam.pipeline.spark.glob_filter import matches
from maxam.pipeline.spark.selection import Selection, glob_option, moment_text
from maxam.terminal.moments import Moment

Limits = Sequence[
    tuple[Glob, float | None]
]  # which destinations, and how old their values may be, in seconds; the first match counts

_COLUMNS: Final = ("revision", "accepted_at", "kind", "destination", "publisher")  # all that is asked here


def limits_of(registry: Registry) -> Limits:
    """Return what the rules of a schema folder demand."""
    return [(rule.glob, limit) for rule, limit in zip(registry.rules, registry.fresh_within_s, strict=True)]


def freshness(changes: DataFrame, limits: Limits, end: datetime) -> DataFrame:
    """Find out for how long the values of topics were older than they may be.

    A value is observed from when it was accepted to the next change of its topic, or to the end of observation. When that is longer than
    the topic's limit, it is a breach, for the time above the limit. A deleted topic has no value that could grow old.

    Args:
        changes: Rows of `rows.CHANGE_COLUMNS`.
        limits: How old values may be; topics without a limit are left out.
        end: End of observation, aware; later changes do not count.

    Returns:
        A row for each topic with a limit, the longest time in breach first. Columns are `destination`, `publisher` (of the last
        value), `fresh_within_s`, `values`, `longest_gap_s`, `longest_gap_from` and `breaches`. `breach_s` is the total time in
        breach. `open` is True if the topic was in breach at the end of observation. `last_at` is the time of the last value.
    """
    limit: Column | None = None
    for glob, limit_s in limits:
        value = F.lit(limit_s).cast("double")
        limit = F.when(matches([glob]), value) if limit is None else limit.when(matches([glob]), value)
    rows = changes.select(*_COLUMNS)
    rows = rows.where(F.col("accepted_at") <= F.lit(end))
    # of topics, not of changes: an expression for each rule is slow
    limited = (
        rows.select("destination").distinct().withColumn("fresh_within_s", F.lit(None) if limit is None else limit)
    )
    rows = rows.join(limited.where(F.col("fresh_within_s").isNotNull()), "destination")

    following = F.lead("accepted_at").over(Window.partitionBy("destination").orderBy("revision"))
    gap_s = (F.unix_micros(F.coalesce("next_at", F.lit(end))) - F.unix_micros("accepted_at")) / F.lit(1_000_000)
    excess_s = F.greatest(F.col("gap_s") - F.col("fresh_within_s"), F.lit(0.0))
    values = (
        rows.withColumn("next_at", following)
        .where(F.col("kind") == "value")
        .withColumn("gap_s", gap_s)
        .withColumn("excess_s", excess_s)
    )
    return (
        values.groupBy("destination", "fresh_within_s")
        .agg(
            F.max_by("publisher", "revision").alias("publisher"),
            F.count("*").alias("values"),
            F.max("gap_s").alias("longest_gap_s"),
            F.max_by("accepted_at", "gap_s").alias("longest_gap_from"),
            F.count_if(F.col("excess_s") > 0).alias("breaches"),
            F.sum("excess_s").alias("breach_s"),
            F.bool_or((F.col("excess_s") > 0) & F.col("next_at").isNull()).alias("open"),
            F.max("accepted_at").alias("last_at"),
        )
        .select(
            "destination",
            "publisher",
            "fresh_within_s",
            "values",
            "longest_gap_s",
            "longest_gap_from",
            "breaches",
            "breach_s",
            "open",
            "last_at",
        )
        .orderBy(F.desc("breach_s"), "destination")
    )


@click.command("freshness")
@job_options
@click.option(
    "--at", type=Moment(), help="End of observation, ISO 8601 with an offset or Z. [default: the last record]"
)
@click.option("--since", type=Moment(), help="Begin of observation; what values were before does not count.")
@glob_option
@click.option("--breaches", "only_breaches", is_flag=True, help="Only topics with a breach.")
@click.option("--open", "only_open", is_flag=True, help="Only topics that are in breach at the end of observation.")
def freshness_command(
    job: Job, at: datetime | None, since: datetime | None, globs: tuple[Glob, ...], only_breaches: bool, only_open: bool
) -> None:
    """Show which topics went without an update for longer than fresh_within_s of their rule in registry.toml.

    Needs --schemas. For each topic whose rule has the key, it shows the longest time between two values, and the number of breaches.
    It also shows the total time in breach, and whether the topic is in breach at the end of observation.

    \b
    maxam-pipeline freshness --journal var/journal --schemas schemas --breaches
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    if job.schemas is None:
        raise click.UsageError("freshness needs --schemas: fresh_within_s is a key of the rules in its registry.toml")
    limits = limits_of(read_registry(job.schemas, config.Limits()))
    if all(limit is None for _, limit in limits):
        raise PipelineError(f"{job.schemas}/registry.toml: no rule has fresh_within_s, so no topic can be too old")
    selection = Selection(since=since, until=None if at is None else at + MICROSECOND, globs=globs)
    archive = job.examine(**selection.prune())
    checked = [*archive.sealed, *archive.damaged, *([archive.open] if archive.open is not None else [])]
    last_us = max((segment.last_at_us for segment in checked), default=0)
    end = at or datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=last_us)
    found = freshness(job.changes(archive=archive, columns=_COLUMNS, **selection.prune()), limits, end)
    if only_breaches:
        found = found.where(F.col("breaches") > 0)
    if only_open:
        found = found.where(F.col("open"))
    job.remark(f"observed to {moment_text(end)}")
    job.emit(found, expendable=("longest_gap_from", "publisher", "values"))
