"""What machines counted by hour or gaming day, as a table, and as live totals of venues published back to the gateway.

The rules are in `maxam.pipeline.meters` and `maxam.pipeline.periods`. Here they meet Spark: bodies are decoded where they
are read, the readings of a machine are brought together in the order of their revisions, and the differences are summed up.
"""

import signal
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, final

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documents call it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from maxam.avro.registry import load_registry
from maxam.config import Limits
from maxam.counting import counted
from maxam.pipeline.bodies import BodyEncoder, read_texts
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.gateway import gateway_options
from maxam.pipeline.job import Job, job_options
from maxam.pipeline.meters import (
    DELTA_COLUMNS,
    MARKS,
    METER_READING,
    METERS,
    READING_COLUMNS,
    count,
    no_readings,
    read_changes,
)
from maxam.pipeline.periods import GAMING_DAY, Kind, Periods
from maxam.pipeline.publisher import Counts, PublishError, Rejected, Target, publish_rows
from maxam.pipeline.reading import examine
from maxam.pipeline.venue import VENUES_MAX, VenueTotals, hold_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Per = Literal["machine", "venue"]
SOURCE: Final = "maxam-pipeline/totals"
"""Name of the order of published totals: their number in it is the revision up to which they count."""

SAVE_INTERVAL_S: Final = 5.0  # between writes of the state: what was read since is read again after a crash
BATCH_BYTES_MAX: Final = 32 << 20  # of the journal, at a time: the readings in it are in the driver's memory
RETRY_S: Final = 5.0  # for the gateway to answer, before we look whether we are to stop
LATENCIES_KEPT: Final = 10_000

# In a table on a narrow terminal, the first ones first.
_EXPENDABLE: Final = (
    "period_start",
    "period_end",
    "unusable",
    "undated",
    "moves",
    "late",
    "roll_overs",
    "gaps",
    "baselines",
)
_CHANGE_COLUMNS: Final = (
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
_HEAD: Final = (
    "head of the batch"  # as a reading's problem: up to its revision the journal was read, accepted at its time
)
_TOO_MANY_VENUES: Final = f"they name more than {VENUES_MAX} venues in all, and those that came first go on alone; does a machine make them up?"
_UNKNOWN_WRITER: Final = "nobody has kept the schema that judged it"


def meter_readings(changes: "DataFrame", catalogue: Catalogue) -> "DataFrame":
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
    return changes.where(wanted).select(*_CHANGE_COLUMNS).mapInArrow(read, from_arrow_schema(READING_COLUMNS))


def meter_deltas(readings: "DataFrame", periods: Periods) -> "DataFrame":
    """Tell what was counted with each reading.

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


def period_sums(deltas: "DataFrame") -> "DataFrame":
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


def meter_totals(deltas: "DataFrame", periods: Periods, per: Per = "machine") -> "DataFrame":
    """Sum up what was counted in each period.

    Args:
        deltas: Rows of `meters.DELTA_COLUMNS`, or sums of them.
        periods: How time was cut for them.
        per: `machine`: a row for each machine, venue and period; `venue`: for each venue and period, with the number of machines
            of which something could be counted.

    Returns:
        By period, venue and machine: `date`, the local date on which the period begins; `period_start` and `period_end`;
        `venue` and `machine`, or `machines`; the sums of METERS and MARKS. Bodies that cannot be read have no venue and no machine.
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


def newest_totals(sums: "DataFrame", periods: Periods, as_of: int) -> VenueTotals:
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


@final
class _Publisher:
    """Publishes totals and tells what became of them."""

    def __init__(self, job: Job, target: Target, encoder: BodyEncoder, patient: bool) -> None:
        """Prepare for a gateway; `patient`: wait for it however long it is away, until `stopping` is set."""
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
                self._tell_refused()
                return counts
        return Counts()

    def _tell_refused(self) -> None:
        """Warn of each venue that the gateway does not take, once; if it takes none, that is no use to anybody."""
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

    def __init__(self, job: Job, totals: VenueTotals, state: Path, publisher: _Publisher) -> None:
        self._job: Final = job
        self._totals: Final = totals
        self._state: Final = state
        self._publisher: Final = publisher
        self._catalogue = Catalogue.load(job.journal, job.schemas)
        self._saved_s = -SAVE_INTERVAL_S  # what the first batch brings is saved at once
        self._started_us: Final = time() * 1e6  # what was accepted before is backlog: how long ago says nothing of us
        self._unusable = 0
        self._left_out = 0
        self.latencies_s: Final[deque[float]] = deque(maxlen=LATENCIES_KEPT)

    def take(self, changes: "DataFrame", _batch: int) -> None:
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
            self._tell(readings, venues, latency_s)

    def save(self) -> None:
        """Write the state."""
        self._totals.save(self._state)
        self._saved_s = monotonic()

    def _read(self, changes: "DataFrame") -> pa.Table:
        """Return the readings among changes, and for each part of them a row that says how far it went."""
        table = _collect(changes, self._catalogue)
        if pc.any(
            pc.equal(table["problem"], _UNKNOWN_WRITER)
        ).as_py():  # the gateway has been given a new schema meanwhile
            self._catalogue = Catalogue.load(self._job.journal, self._job.schemas)
            table = _collect(changes, self._catalogue)
        return table

    def _tell(self, readings: pa.Table, venues: list[str], latency_s: float | None) -> None:
        unusable = pc.drop_null(readings["problem"])
        self._unusable += len(unusable)
        if len(unusable):
            self._job.warn(f"{len(unusable)} readings could not be used, such as: {unusable[0].as_py()}")
        if self._totals.left_out > self._left_out:
            self._left_out = self._totals.left_out
            self._job.warn(f"{self._left_out} readings so far were left out: {_TOO_MANY_VENUES}")
        self._job.tell(
            f"as of revision {self._totals.as_of}: {counted(readings.num_rows, 'reading', ',')},"
            f" {counted(len(venues), 'venue', ',')} published"
            + ("" if latency_s is None else f", {latency_s * 1000:.0f} ms after the newest was accepted")
        )


def _collect(changes: "DataFrame", catalogue: Catalogue) -> pa.Table:
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

    # Not filtered: as of which revision the totals are, changes of other types say as well. Their bodies are left behind.
    wanted = (F.col("schema") == METER_READING) & (F.col("kind") == "value")
    lean = changes.select(*_CHANGE_COLUMNS[:-1], F.when(wanted, F.col("body")).alias("body"))
    table: pa.Table = lean.mapInArrow(read, from_arrow_schema(READING_COLUMNS)).toArrow().cast(READING_COLUMNS)
    return table


def follow_readings(job: Job, periods: Periods, state: Path, publisher: _Publisher) -> None:
    """Publish the totals of venues whenever readings change them, until SIGINT or SIGTERM.

    Args:
        job: Its journal is followed.
        periods: How time is cut.
        state: A folder for what has been counted, so that a later run goes on from there.
        publisher: Publishes to a gateway.

    Raises:
        PipelineError: The journal cannot be followed from there, or the totals cannot be published.
    """
    _ = job.spark  # which of the two it is, it says
    if is_remote():  # what handles micro-batches would be sent to the server, and the totals with it
        raise PipelineError("--follow needs a session of its own: use --master instead of --remote")
    with hold_state(state):
        _follow(job, VenueTotals.load(state, periods), state, publisher)


def _follow(job: Job, totals: VenueTotals, state: Path, publisher: _Publisher) -> None:
    spark = job.spark
    last = examine(None, job.journal, from_revision=totals.as_of).last if totals.as_of else 0
    if last < totals.as_of:
        raise PipelineError(
            f"{state} counts up to revision {totals.as_of}, but the journal ends with {last}: it is of another journal"
        )
    follower = _Follower(job, totals, state, publisher)
    with _stopped_by_signals(publisher.stopping), tempfile.TemporaryDirectory(prefix="maxam-totals-") as scratch:
        # Where Spark keeps its own place is of no use to a later run: the state says from where on it reads.
        reader = spark.readStream.format("maxam").option("maxBytesPerTrigger", str(BATCH_BYTES_MAX))
        if totals.as_of:
            reader = reader.option("startingRevision", str(totals.as_of + 1))
        if totals.as_of:
            publisher.publish(totals)  # we may have died before
        stream = reader.load(str(job.journal.absolute()))
        query = stream.writeStream.foreachBatch(follower.take).option("checkpointLocation", scratch).start()
        job.tell(f"following {job.journal} from revision {totals.as_of + 1}; SIGINT or SIGTERM ends it")
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
        job.tell(
            f"{len(ordered)} publications; from acceptance of the newest reading to its totals: median"
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


@click.command("totals")
@click.option(
    "--by",
    type=click.Choice([GAMING_DAY, "hour"]),
    default=GAMING_DAY,
    show_default=True,
    help="What the venue's time is cut into.",
)
@click.option("--timezone", default="UTC", show_default=True, metavar="NAME", help="Whose local time: an IANA name.")
@click.option(
    "--day-start", default="00:00", show_default=True, metavar="HH:MM", help="When a gaming day begins, local time."
)
@click.option(
    "--per",
    type=click.Choice(["machine", "venue"]),
    default="machine",
    show_default=True,
    help="A row for each machine in a venue, or for each venue.",
)
@click.option("--publish", is_flag=True, help="Also publish each venue's newest period and the one before it.")
@click.option(
    "--follow",
    is_flag=True,
    help="With --publish: publish again whenever readings change them, until SIGINT or SIGTERM, and give out no table.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --follow: a folder for what has been counted, of one process at a time; the next run goes on from there.",
)
@gateway_options
@job_options
def totals_command(
    job: Job,
    by: Kind,
    timezone: str,
    day_start: str,
    per: Per,
    publish: bool,
    follow: bool,
    state: Path | None,
    target: Callable[[], Target],
) -> None:
    """Sum up what machines counted, by hour or gaming day.

    A row says what the accounting meters of a machine rose by: money in and out, turnover, wins, games. What was counted
    between two readings belongs to the period of the later one. The other columns count readings of each kind: compared with
    one before; after a reset; with a meter that had rolled over; with nothing to compare with; to a reading from before the
    preceding period; in another venue than before; late; without a time of their own; unusable.

    With --publish the totals of each venue go to X/Venue.<venueId>.VenueMeterTotals (by hour: X/Venue.<venueId>.Hour.VenueMeterTotals),
    as --schemas says they are encoded. It takes a certificate that may send there; an older total never comes after a newer one.
    """
    try:
        periods = Periods.read(by, timezone, day_start)
    except PipelineError as error:
        raise click.UsageError(str(error)) from error
    if follow and (not publish or state is None):
        raise click.UsageError("--follow needs --publish and --state FOLDER")
    if state is not None and not follow:
        raise click.UsageError("--state is for --follow")
    publisher: _Publisher | None = None
    if publish:
        if job.schemas is None:
            raise click.UsageError("--publish needs --schemas FOLDER")
        encoder = BodyEncoder(load_registry(read_texts(job.schemas), Limits()))
        publisher = _Publisher(job, target(), encoder, follow)
    if follow and publisher is not None and state is not None:
        follow_readings(job, periods, state, publisher)
        return
    archive = job.examine()
    catalogue = Catalogue.load(job.journal, job.schemas)
    deltas = meter_deltas(meter_readings(job.changes(archive=archive), catalogue), periods)
    sums = period_sums(deltas).persist()
    job.emit(meter_totals(sums, periods, per), _EXPENDABLE)
    if publisher is not None:
        if job.incomplete:
            raise PipelineError("not published: part of the archive could not be read, so readings may be missing")
        with job.progress("publishing"):
            totals = newest_totals(sums, periods, archive.last)
            counts = publisher.publish(totals)
        if totals.left_out:
            job.warn(f"not all was published: {_TOO_MANY_VENUES}")
        job.tell(f"totals of {counted(counts.accepted, 'venue', ',')} published as of revision {archive.last}")
        if counts.superseded:
            job.warn(
                f"not published: {counted(counts.superseded, 'venue', ',')}, as the gateway has had those of this revision or of a newer one"
            )
    sums.unpersist()
