"""A session as every job has it."""

from pyspark.sql import SparkSession

from maxam.pipeline.spark.native_avro import native_avro
from maxam.pipeline.spark.session import open_session, running_session


def test_native_avro_is_there(spark: SparkSession) -> None:
    """The pinned Spark has the Avro reader that fast scans need."""
    assert native_avro(spark)


def test_a_running_session_is_used(spark: SparkSession) -> None:
    """Opening a session where one runs gives that one."""
    assert running_session() is spark
    assert open_session() is spark


def test_times_are_utc(spark: SparkSession) -> None:
    """A session shows and reads times in UTC, whatever the machine's zone."""
    (row,) = spark.sql("SELECT current_timezone() AS zone, CAST(timestamp_micros(0) AS STRING) AS epoch").collect()
    assert (row.zone, row.epoch) == ("UTC", "1970-01-01 00:00:00")
