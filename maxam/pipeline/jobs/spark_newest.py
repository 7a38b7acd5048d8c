"""The newest change of each topic, found by Spark."""

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.journal.archive import Archive
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.jobs.decoding import with_values
from maxam.pipeline.jobs.output import with_optional
from maxam.pipeline.jobs.walking import FOUND_COLUMNS, Walk, decoded
from maxam.pipeline.spark.rows import CHANGE_COLUMNS
from maxam.pipeline.spark.selection import Selection

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
