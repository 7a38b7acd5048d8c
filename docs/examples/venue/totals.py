"""Tables of what machines counted, by hour or gaming day, as Spark DataFrames.

The rules are in `venue.meters` and `venue.periods`. Bodies are decoded where they are read. The
readings of a machine are brought together in the order of their revisions, and the differences are added up.
"""

from collections.abc import Iterator
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documents call it
from pyspark.sql.pandas.types import from_arrow_schema

from maxam.pipeline import Catalogue
from venue.meters import (
    DELTA_COLUMNS,
    MARKS,
    METER_READING,
    METERS,
    READING_COLUMNS,
    count,
    no_readings,
    read_changes,
)
from venue.periods import Periods
from venue.running import VenueTotals

Per = Literal["machine", "venue"]
CHANGE_COLUMNS: Final = (
    "revision",
    "accepted_at",
    "kind",
    "destination",
    "schema",
    "schema_version",
    "schema_fingerprint",
    "value_offset",
    "value_length",
    "body",
)
"""Columns of `read_journal` that the decoding of a reading needs."""


def meter_readings(changes: DataFrame, catalogue: Catalogue) -> DataFrame:
    """Decode the meter readings among changes.

    Args:
        changes: As `read_journal` gives them.
        catalogue: The schemas that judged them.

    Returns:
        Rows of `meters.READING_COLUMNS`. One that cannot be used has a `problem`.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield read_changes(batch, catalogue.writer)

    wanted = (F.col("schema") == METER_READING) & (F.col("kind") == "value")
    return changes.where(wanted).select(*CHANGE_COLUMNS).mapInArrow(read, from_arrow_schema(READING_COLUMNS))


def meter_deltas(readings: DataFrame, periods: Periods) -> DataFrame:
    """Return what was counted with each reading.

    Args:
        readings: Rows of `meters.READING_COLUMNS`, of each machine all there are: without an earlier one, a reading is a baseline.
        periods: How time is cut.

    Returns:
        Rows of `meters.DELTA_COLUMNS`, one for each reading.
    """

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        baselines = no_readings()
        for batch in batches:
            if batch.num_rows:
                readings = batch.cast(READING_COLUMNS)
                deltas, baselines = count(readings, baselines, periods)
                # machine after machine: only the last one may go on in the next batch
                baselines = baselines.filter(pc.equal(baselines["machine"], readings["machine"][-1]))
                yield deltas

    ordered = readings.repartition("machine").sortWithinPartitions("machine", "revision")
    return ordered.mapInArrow(compare, from_arrow_schema(DELTA_COLUMNS))


def period_sums(deltas: DataFrame) -> DataFrame:
    """Sum up what each machine counted in each venue and period.

    Args:
        deltas: Rows of `meters.DELTA_COLUMNS`.

    Returns:
        Rows of the same columns: `revision` is that of the newest reading, `time_us` the time of the newest that counts or 0.
    """
    counts = F.col("readings") + F.col("baselines") > 0
    return (
        deltas.groupBy("venue", "machine", "period_start_us", "period_end_us")
        .agg(
            F.max("revision").alias("revision"),
            F.max(F.when(counts, F.col("time_us")).otherwise(0)).alias("time_us"),
            *(F.sum(name).alias(name) for name in (*METERS, *MARKS)),
        )
        .select(*DELTA_COLUMNS.names)
    )


def meter_totals(deltas: DataFrame, periods: Periods, per: Per = "machine") -> DataFrame:
    """Sum up what was counted in each period.

    Args:
        deltas: Rows of `meters.DELTA_COLUMNS`, or sums of them.
        periods: How time was cut for them.
        per: `machine` gives a row for each machine, venue and period. `venue` gives one for each venue and period, with the number
            of machines of which something could be counted.

    Returns:
        Rows by period, venue and machine. The columns are `date` (the local date on which the period begins), `period_start`,
        `period_end`, `venue`, `machine` or `machines`, and the sums of METERS and MARKS. Bodies that cannot be read have no venue
        and no machine.
    """
    at = ("period_start_us", "period_end_us", "venue")
    sums = [F.sum(name).alias(name) for name in (*METERS, *MARKS)]
    if per == "machine":
        who = "machine"
        totals = deltas.groupBy(*at, "machine").agg(*sums)
    else:
        who = "machines"
        machines = F.countDistinct(F.when(F.col("readings") > 0, F.col("machine"))).alias(who)
        totals = deltas.groupBy(*at).agg(machines, *sums)
    start = F.timestamp_micros("period_start_us")
    return totals.orderBy("period_start_us", "venue", who).select(
        F.to_date(F.from_utc_timestamp(start, periods.zone.key)).alias("date"),
        start.alias("period_start"),
        F.timestamp_micros("period_end_us").alias("period_end"),
        "venue",
        who,
        *METERS,
        *MARKS,
    )


def newest_totals(sums: DataFrame, periods: Periods, as_of: int) -> VenueTotals:
    """Collect the newest period of each venue and the one before it.

    Args:
        sums: As `period_sums` gives them, of the whole archive.
        periods: How time was cut for them.
        as_of: The last revision of the archive.

    Returns:
        Totals to publish; readings cannot be added to them.
    """
    of_venues = sums.where("venue IS NOT NULL")
    newest = of_venues.where("time_us > 0").groupBy("venue").agg(F.max("period_start_us").alias("newest_us"))
    shown = of_venues.join(newest, "venue").where("period_start_us >= newest_us OR period_end_us = newest_us")
    totals = VenueTotals(periods)
    totals.add(shown.select(*DELTA_COLUMNS.names).toArrow().cast(DELTA_COLUMNS))
    totals.as_of = as_of
    return totals
