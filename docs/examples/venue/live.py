"""Live totals: readings are taken from the journal as they come, and the totals of their venues are published."""

import signal
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from types import FrameType
from typing import Final, final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documents call it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from maxam.pipeline import (
    BodyEncoder,
    Catalogue,
    Counts,
    Job,
    PipelineError,
    PublishError,
    Rejected,
    Target,
    examine,
    publish_rows,
)
from venue.meters import METER_READING, READING_COLUMNS, UNKNOWN_WRITER, read_changes
from venue.periods import Periods
from venue.running import VENUES_MAX, VenueTotals, hold_state
from venue.totals import CHANGE_COLUMNS

SOURCE: Final = "maxam-pipeline/totals"
"""Name of the order of published totals. Their number in it is the revision up to which they count."""

SAVE_INTERVAL_S: Final = 5.0  # between writes of the state; later readings are read again after a crash
BATCH_BYTES_MAX: Final = 32 << 20  # of the journal in one batch, whose readings are in the driver's memory
RETRY_S: Final = 5.0  # for the gateway to answer, before the signal to stop is checked
LATENCIES_KEPT: Final = 10_000
TOO_MANY_VENUES: Final = f"they name more than {VENUES_MAX} venues in all, and only the first ones are kept. Check which machine makes up venues"
_HEAD: Final = "head of the batch"  # a reading's problem: its revision and time are the newest that were read


@final
class Publisher:
    """Publishes totals, and warns of those that the gateway rejects."""

    def __init__(self, job: Job, target: Target, encoder: BodyEncoder, patient: bool) -> None:
        """Prepare for a gateway. A patient publisher waits for it until `stopping` is set."""
        self._job: Final = job
        self._target: Final = replace(target, retry_s=RETRY_S) if patient else target
        self._patient: Final = patient
        self._encoder: Final = encoder
        self.stopping: Final = threading.Event()
        self._refused: list[Rejected] = []
        self._told: set[tuple[str, str, str]] = set()  # refusals: destination, disposition and result
        self._taken = False  # the gateway has taken something of ours

    def publish(self, totals: VenueTotals, venues: list[str] | None = None) -> Counts:
        """Publish the totals of these venues, or of all, and wait until the gateway has them; return what became of them.

        Raises:
            PublishError: The gateway is away, or refuses us.
            PipelineError: It may not be published, or the registry has no rule for it.
        """
        rows = totals.rows(self._encoder, venues)
        told = False
        while rows and not self.stopping.is_set():
            try:
                counts = publish_rows(self._target, SOURCE, iter([rows]), self._refused.append)
            except PublishError as error:
                if not self._patient or error.__cause__ is not None:  # a cause is one that stays
                    raise
                if not told:
                    self._job.warn(f"{error}; trying again")
                told = True
            else:
                self._taken = self._taken or counts.accepted + counts.superseded > 0
                self._report_refused()
                return counts
        return Counts()

    def _report_refused(self) -> None:
        """Warn once of each venue whose totals the gateway rejects. It is an error if it rejects all."""
        refused, self._refused = self._refused, []
        for one in refused:
            text = f"{one.destination}: {one.disposition} {one.result}: {one.reason}"
            if not self._taken:
                raise PipelineError(f"the gateway does not take the totals: {text}")
            told = (one.destination, one.disposition, one.result)
            if told not in self._told:
                self._told.add(told)
                self._job.warn(text)


@final
class _Follower:
    """Takes micro-batches of changes, one after the other, and publishes what they change."""

    def __init__(self, job: Job, totals: VenueTotals, state: Path, publisher: Publisher) -> None:
        self._job: Final = job
        self._totals: Final = totals
        self._state: Final = state
        self._publisher: Final = publisher
        self._catalogue = Catalogue.load(job.journal, job.schemas)
        self._saved_s = -SAVE_INTERVAL_S  # what the first batch brings is saved at once
        self._started_us: Final = time() * 1e6  # changes accepted before are backlog, and their age is not our delay
        self._unusable = 0
        self._left_out = 0
        self.latencies_s: Final[deque[float]] = deque(maxlen=LATENCIES_KEPT)

    def take(self, changes: DataFrame, _batch: int) -> None:
        """Count the readings of a micro-batch and publish."""
        table = self._read(changes)
        heads = pc.equal(table["problem"], _HEAD).fill_null(False)
        head = table.filter(heads)
        if not head.num_rows:
            return
        as_of = pc.max(head["revision"]).as_py()
        if as_of <= self._totals.as_of:  # Spark gave it to us before
            return
        readings = table.filter(pc.invert(heads)).combine_chunks()
        venues: list[str] = []
        latency_s: float | None = None
        if readings.num_rows:
            venues = self._totals.take(readings.to_batches()[0], as_of)
            self._publisher.publish(self._totals, venues)
            newest_us = pc.max(head["time_us"]).as_py()
            if newest_us >= self._started_us:
                latency_s = time() - newest_us / 1e6
                self.latencies_s.append(latency_s)
        else:
            self._totals.as_of = as_of
        if monotonic() - self._saved_s > SAVE_INTERVAL_S:
            self.save()
        if readings.num_rows:
            self._report(readings, venues, latency_s)

    def save(self) -> None:
        """Write the state."""
        self._totals.save(self._state)
        self._saved_s = monotonic()

    def _read(self, changes: DataFrame) -> pa.Table:
        """Return the readings among changes, and a row for each part of them with the newest revision."""
        table = _collect(changes, self._catalogue)
        if pc.any(
            pc.equal(table["problem"], UNKNOWN_WRITER)
        ).as_py():  # the gateway has been given a new schema meanwhile
            self._catalogue = Catalogue.load(self._job.journal, self._job.schemas)
            table = _collect(changes, self._catalogue)
        return table

    def _report(self, readings: pa.Table, venues: list[str], latency_s: float | None) -> None:
        unusable = pc.drop_null(readings["problem"])
        self._unusable += len(unusable)
        if len(unusable):
            self._job.warn(f"{len(unusable)} readings could not be used, such as: {unusable[0].as_py()}")
        if self._totals.left_out > self._left_out:
            self._left_out = self._totals.left_out
            self._job.warn(f"{self._left_out} readings so far were left out: {TOO_MANY_VENUES}")
        self._job.remark(
            f"as of revision {self._totals.as_of}: {counted(readings.num_rows, 'reading')},"
            f" {counted(len(venues), 'venue')} published"
            + ("" if latency_s is None else f", {latency_s * 1000:.0f} ms after the newest was accepted")
        )


def _collect(changes: DataFrame, catalogue: Catalogue) -> pa.Table:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        revision = at_us = 0
        for batch in batches:
            if batch.num_rows:
                revision = max(revision, pc.max(batch["revision"]).as_py())
                readings = read_changes(batch, catalogue.writer)
                if readings.num_rows:
                    of_readings = batch.filter(pc.equal(batch["schema"], METER_READING))
                    at_us = max(at_us, pc.max(of_readings["accepted_at"].cast(pa.int64())).as_py())
                yield readings
        head = {"revision": revision, "time_us": at_us, "undated": False, "problem": _HEAD}
        if revision:
            yield pa.RecordBatch.from_pylist([head], schema=READING_COLUMNS)

    # Changes of other types stay, without their bodies: the newest revision among them counts too.
    wanted = (F.col("schema") == METER_READING) & (F.col("kind") == "value")
    lean = changes.select(*CHANGE_COLUMNS[:-1], F.when(wanted, F.col("body")).alias("body"))
    table: pa.Table = lean.mapInArrow(read, from_arrow_schema(READING_COLUMNS)).toArrow().cast(READING_COLUMNS)
    return table


def follow_readings(job: Job, periods: Periods, state: Path, publisher: Publisher) -> None:
    """Publish the totals of venues whenever readings change them, until SIGINT or SIGTERM.

    Args:
        job: Its journal is followed.
        periods: How time is cut.
        state: A folder for what has been counted, so that a later run goes on from there.
        publisher: Publishes to a gateway.

    Raises:
        PipelineError: The journal cannot be followed from there, or the totals cannot be published.
    """
    _ = job.spark  # is_remote() needs a session
    if is_remote():  # the server would run the handler of micro-batches, with a copy of the totals
        raise PipelineError("--follow needs a session of its own: use --master instead of --remote")
    with hold_state(state):
        _follow(job, VenueTotals.load(state, periods), state, publisher)


def _follow(job: Job, totals: VenueTotals, state: Path, publisher: Publisher) -> None:
    spark = job.spark
    last = examine(None, job.journal, from_revision=totals.as_of).last if totals.as_of else 0
    if last < totals.as_of:
        raise PipelineError(
            f"{state} counts up to revision {totals.as_of}, but the journal ends with {last}: it is of another journal"
        )
    follower = _Follower(job, totals, state, publisher)
    with _stopped_by_signals(publisher.stopping), tempfile.TemporaryDirectory(prefix="maxam-totals-") as scratch:
        # A later run does not need Spark's checkpoint: it starts at the revision of the state.
        reader = spark.readStream.format("maxam").option("maxBytesPerTrigger", str(BATCH_BYTES_MAX))
        if totals.as_of:
            reader = reader.option("startingRevision", str(totals.as_of + 1))
        if totals.as_of:
            publisher.publish(totals)  # we may have died before
        stream = reader.load(str(job.journal.absolute()))
        query = stream.writeStream.foreachBatch(follower.take).option("checkpointLocation", scratch).start()
        job.remark(f"following {job.journal} from revision {totals.as_of + 1}; SIGINT or SIGTERM ends it")
        try:
            while query.isActive and not publisher.stopping.wait(0.2):
                pass
        finally:
            publisher.stopping.set()
            query.stop()
        error = query.exception()
        follower.save()
        if error is not None:
            raise error
    if follower.latencies_s:
        ordered = sorted(follower.latencies_s)
        job.remark(
            f"{len(ordered)} publications. From acceptance of the newest reading to its totals: median"
            f" {statistics.median(ordered) * 1000:.0f} ms, 99 of 100 within {ordered[len(ordered) * 99 // 100] * 1000:.0f} ms"
        )


@contextmanager
def _stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set an event, where we are the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def counted(number: int, what: str) -> str:
    """Return a number with a noun, such as `1 venue` or `1,200 readings`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
