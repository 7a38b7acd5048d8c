"""The Avro reader and writer that comes with Spark 4."""

import tempfile
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

NATIVE_AVRO: Final = "org.apache.spark.sql.avro.AvroFileFormat"  # part of Spark, under a name that is not promised


def native_avro(spark: SparkSession) -> bool:
    """Return True if this Spark has the Avro reader and writer that comes with Spark 4 under an internal name."""
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.read.format(NATIVE_AVRO).schema("probe int")
        try:
            return frame.load(folder).columns == ["probe"]
        except PySparkException:
            return False
