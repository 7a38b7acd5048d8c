"""The Spark session that all tests of the pipeline share."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.session import open_session

# For every Spark that a test starts, here or as a process: such a Java lives for seconds, and its optimising compiler never pays.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start Spark once, small and quick; without a Java, skip loudly, but fail where CI runs."""
    try:
        session = open_session(
            "local[2]",
            conf={
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
            },
            app="maxam-tests",
        )
    except PipelineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Spark: {error}")
    yield session
    session.stop()
