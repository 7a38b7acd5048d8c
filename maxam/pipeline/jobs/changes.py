"""`maxam-pipeline changes`: how often topics change, which do most, which have fallen silent."""

from datetime import datetime, timedelta
from typing import Final

import click
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.pipeline.jobs.job import Job, job_options
from maxam.pipeline.spark.selection import Selection, selection_options
from maxam.terminal.moments import Duration

PUBLISHER: Final = "publisher"
_COLUMNS: Final = ("revision", "accepted_at", "kind", "destination", PUBLISHER)  # all that is asked here


def rates(changes: DataFrame, window: timedelta, by_publisher: bool = False) -> DataFrame:
    """Count changes per topic and window of time; windows without a change of a topic are no rows.

    Args:
        changes: Rows of `rows.CHANGE_COLUMNS`.
        window: Length of the windows, which begin at multiples of it since 1970-01-01T00:00:00Z.
        by_publisher: Count for each publisher of a topic by itself.

    Returns:
        In order of time, then topic: `window_start`, `destination`, with `by_publisher` `publisher`, `changes` (deletes among
        them), `deletes`, `changes_per_s`.
    """
    length_us = window // timedelta(microseconds=1)
    start = F.timestamp_micros(F.floor(F.unix_micros("accepted_at") / F.lit(length_us)).cast("long") * F.lit(length_us))
    keys = ["window_start", *_topic(by_publisher)]
    counted = changes.withColumn("window_start", start).groupBy(*keys).agg(*_counts())
    return counted.withColumn("changes_per_s", F.col("changes") / F.lit(window.total_seconds())).orderBy(*keys)


def activity(
    changes: DataFrame,
    since: datetime | None = None,
    until: datetime | None = None,
    by_publisher: bool = False,
    gaps: bool = False,
) -> DataFrame:
    """Sum up each topic.

    Args:
        changes: Rows of `rows.CHANGE_COLUMNS`.
        since: Begin of observation. None for the first of these changes.
        until: End of observation. None for the last of these changes.
        by_publisher: Sum up each publisher of a topic by itself.
        gaps: Find the longest time between two changes too, which sorts the changes of each topic.

    Returns:
        Rows, the busiest first. Columns are `destination`, `changes` (with deletes), `deletes`, `changes_per_s` over the whole
        observation, `first_at`, `last_at`, and `silent_s`, from the last change to the end of observation. With `by_publisher`
        there is `publisher`. With `gaps` there are `longest_gap_s` and `longest_gap_from`, null with a single change.
    """
    topic = _topic(by_publisher)
    aggregates = [*_counts(), F.min("accepted_at").alias("first_at"), F.max("accepted_at").alias("last_at")]
    rows = changes.select("accepted_at", "kind", "revision", *topic)
    if gaps:
        before = F.lag("accepted_at").over(Window.partitionBy(*topic).orderBy("revision"))
        gap = F.struct(_seconds(before, F.col("accepted_at")).alias("gap_s"), before.alias("from"))
        rows = rows.withColumn("gap", F.when(before.isNotNull(), gap))
        aggregates.append(F.max("gap").alias("gap"))
    ends = changes.agg(F.min("accepted_at").alias("since"), F.max("accepted_at").alias("until"))
    begin = F.col("since") if since is None else F.lit(since)
    end = F.col("until") if until is None else F.lit(until)
    found = rows.groupBy(*topic).agg(*aggregates).crossJoin(F.broadcast(ends))
    span_s = _seconds(begin, end)
    columns: list[Column | str] = [
        *topic,
        "changes",
        "deletes",
        F.when(span_s > 0, F.col("changes") / span_s).alias("changes_per_s"),
        "first_at",
        "last_at",
        _seconds(F.col("last_at"), end).alias("silent_s"),
    ]
    if gaps:
        columns += [F.col("gap.gap_s").alias("longest_gap_s"), F.col("gap.from").alias("longest_gap_from")]
    return found.select(*columns).orderBy(F.desc("changes"), *topic)


def silent(found: DataFrame, length: timedelta) -> DataFrame:
    """Return the rows of `activity` of topics without a change for this long at the end of observation, the longest first."""
    topic = _topic(PUBLISHER in found.columns)
    return found.where(F.col("silent_s") >= length.total_seconds()).orderBy(F.desc("silent_s"), *topic)


def _topic(by_publisher: bool) -> list[str]:
    return ["destination", PUBLISHER] if by_publisher else ["destination"]


def _counts() -> list[Column]:
    return [F.count("*").alias("changes"), F.count_if(F.col("kind") == "delete").alias("deletes")]


def _seconds(begin: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(begin)) / F.lit(1_000_000)


@click.command("changes")
@job_options
@selection_options
@click.option("--window", type=Duration(), help="Count per topic and window of that length, such as 1m or 1h, in UTC.")
@click.option("--top", type=click.IntRange(1), help="Only this number of topics, those that change most.")
@click.option(
    "--silent", "silence", type=Duration(), help="Only topics without a change in this duration before the end."
)
@click.option("--gaps", is_flag=True, help="Show the longest time between two changes of a topic too; takes a sort.")
@click.option("--by-publisher", is_flag=True, help="Count for each publisher of a topic by itself.")
def changes_command(
    job: Job,
    selection: Selection,
    window: timedelta | None,
    top: int | None,
    silence: timedelta | None,
    gaps: bool,
    by_publisher: bool,
) -> None:
    """Show how often topics change: the busiest first, or per window of time, or those that have fallen silent.

    changes counts deletes too. Observation lasts from the first to the last change in the journal that the options select, or
    from --since to --until where they are given.

    \b
    maxam-pipeline changes --journal var/journal --top 20
    maxam-pipeline changes --journal var/journal --window 1h --glob 'X/EGM.*.EGMMeterReading' --out rates.csv
    maxam-pipeline changes --journal var/journal --silent 15m
    """  # noqa: D301  # a mark of click's: the lines stay as they are
    if window is not None and (silence is not None or gaps):
        raise click.UsageError("--window excludes --silent and --gaps: they need the whole time")
    changes = job.changes(columns=_COLUMNS, **selection.prune())
    if window is None:
        found = activity(changes, selection.since, selection.until, by_publisher, gaps)
        if silence is not None:
            found = silent(found, silence)
        job.emit(found if top is None else found.limit(top), expendable=("first_at", "changes_per_s", "deletes"))
        return
    if top is not None:
        busiest = changes.groupBy("destination").count().orderBy(F.desc("count"), "destination").limit(top)
        changes = changes.join(F.broadcast(busiest.select("destination")), "destination", "left_semi")
    job.emit(rates(changes, window, by_publisher), expendable=("changes_per_s", "deletes"))
