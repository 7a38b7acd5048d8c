"""Pieces of work that Spark's workers do, where what comes of them is small.

A DataFrame costs some seconds of processor time until its first row is there: Java loads and compiles Spark's SQL for it. Tasks of a
plain RDD cost a quarter of that; Spark Connect has none, so a DataFrame it is there.
"""

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_Found = TypeVar("_Found")


def on_workers(spark: "SparkSession", work: Callable[[int], _Found], count: int) -> list[_Found]:
    """Have pieces of work done, each in a task of its own.

    Args:
        spark: The session.
        work: Called with the number of a piece, from 0. It and what it returns are pickled.
        count: Of the pieces.

    Returns:
        What came of each, in order: all of it is in the driver's memory.

    Raises:
        PySparkException: A piece failed.
        Py4JError: Likewise.
    """
    if not count:
        return []
    context: Any = getattr(spark, "sparkContext", None)  # which a session of Spark Connect does not have
    if context is not None:
        found: list[_Found] = context.parallelize(range(count), count).map(work).collect()
        return found

    def done(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa  # noqa: PLC0415  # in the worker

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(work(number))
                yield pa.record_batch([pa.array([number]), pa.array([result])], names=["number", "result"])

    rows = spark.range(0, count, 1, count).mapInArrow(done, "number long, result binary").collect()
    return [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]  # noqa: S301  # of our own workers
