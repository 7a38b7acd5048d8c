"""Pieces of a job, done by processes of this machine or by Spark's workers.

Processes of this machine take no Java, whose start alone costs ten seconds of processor time. On a cluster the pieces are tasks of a
plain RDD, which costs a quarter of a DataFrame. Spark Connect has no RDDs, so a DataFrame it is there.
"""

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process, set_forkserver_preload
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxam.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PROCESS_BYTES: Final = 16 << 20  # to read, for which a further process is worth it
_OBJECTS: Final = 100_000  # between two searches for cycles, which the rows of a job do not form
_Found = TypeVar("_Found")
Counted = Callable[[int, int], None]
"""Called with the number of pieces that are done, and of all pieces."""


def on_workers(
    spark: "SparkSession | None",
    work: Callable[[int], _Found],
    count: int,
    size: int,
    counted: Counted | None = None,
) -> list[_Found]:
    """Have pieces of work done, each by itself.

    Args:
        spark: The session whose workers do them. None for processes of this machine, up to one for each core.
        work: Called with the number of a piece, from 0. It and its result are pickled.
        count: Of the pieces.
        size: Bytes that all pieces read. Without a session a small job is done in this process.
        counted: Called after each piece that a process of this machine has done.

    Returns:
        The result of each piece, in order. All of it is in the driver's memory.

    Raises:
        PySparkException: A piece failed on Spark.
        Py4JError: Likewise.
        PipelineError: A process of this machine was killed.
        Exception: An error of `work` in a process of this machine.
    """
    if not count:
        return []
    if spark is None:
        return list(on_processes(work, count, size, counted))
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


def on_processes(
    work: Callable[[int], _Found], count: int, size: int, counted: Counted | None = None
) -> Iterator[_Found]:
    """Yield the result of each piece in order, from processes of this machine. Arguments and errors are those of `on_workers`."""
    processes = min(count, len(os.sched_getaffinity(0)), 1 + size // _PROCESS_BYTES)
    if processes <= 1:
        yield from map(work, range(count))
        return
    set_forkserver_preload([type(work).__module__])  # imports take half a second: once for all processes
    pool = ProcessPoolExecutor(processes, get_context("forkserver"), _prepare)
    try:
        for done, found in enumerate(pool.map(work, range(count)), 1):
            yield found
            if counted is not None:
                counted(done, count)
    except BrokenProcessPool as error:
        raise PipelineError("a worker process was killed: the machine may lack memory. Run the job again") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """End a worker together with its job: Ctrl-C is for the job alone, and a job that is killed takes its workers along."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_OBJECTS)
    job = parent_process()
    assert job is not None  # noqa: S101  # this runs in a child

    def follow() -> None:
        job.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
