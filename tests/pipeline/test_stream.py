"""A journal as a stream: what was accepted arrives once and in order, whatever is rolled, sealed, cut or taken away meanwhile."""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.identity import OtherJournalError
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.source import JournalStreamReader
from maxam.records import AcknowledgementRecord
from tests.support.journal_records import NOW_US, SYNC, change

SMALL = JournalSettings(segment_bytes_max=4000, durable=False, reserve_bytes=0)


class Writer:
    """A journal being written, some changes at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.closed = False
        self.journal = Journal.open(folder, OsDisk(), SMALL, SYNC)
        assert list(self.journal.recover()) == []

    def write(self, changes: int, size: int = 100) -> None:
        """Write one block."""
        first = self.journal.head + 1
        block = [change(n, body=b"%d" % n + b"x" * size) for n in range(first, first + changes)]
        self.journal.write(self.journal.encode([*block]))

    def acknowledge(self) -> None:
        """Write a block without a change."""
        at_us = self.journal.accepted_at_us
        self.journal.write(self.journal.encode([AcknowledgementRecord(at_us, "alice", "pump", b"s1", ())]))

    def close(self) -> None:
        """Seal what is open."""
        if not self.closed:
            self.closed = True
            self.journal.close()

    def segments(self) -> list[Path]:
        """Return the files there are, in order."""
        return sorted((self.folder / "segments").glob("*.avro"))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Open a journal."""
    writer = Writer(tmp_path / "journal")
    yield writer
    writer.close()


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start streams whose rows go to Parquet files, and stop them."""
    queries: list[StreamingQuery] = []

    def begin(frame: DataFrame, available_now: bool = False) -> StreamingQuery:
        stream = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream = stream.trigger(availableNow=True) if available_now else stream.trigger(processingTime="0 seconds")
        queries.append(stream.start())
        return queries[-1]

    yield begin
    for query in queries:
        query.stop()


def read_stream(spark: SparkSession, writer: Writer, **options: str) -> DataFrame:
    """Return the stream of a journal."""
    return spark.readStream.format("maxam").options(**options).load(str(writer.folder))


def arrived(spark: SparkSession, tmp_path: Path) -> list[int]:
    """Return the revisions that arrived, in order."""
    return sorted(row.revision for row in spark.read.parquet(str(tmp_path / "out")).select("revision").collect())


def test_a_stream_follows_the_open_segment_and_what_comes_behind_it(
    spark: SparkSession, start: Start, writer: Writer, tmp_path: Path
) -> None:
    """While a journal is written, rolled and sealed, each change arrives once; blocks without a change start no micro-batch."""
    writer.write(3)
    query = start(read_stream(spark, writer))
    query.processAllAvailable()
    assert arrived(spark, tmp_path) == [1, 2, 3]
    writer.write(2)  # more of the same open segment
    writer.acknowledge()
    query.processAllAvailable()
    assert arrived(spark, tmp_path) == [1, 2, 3, 4, 5]
    commits = tmp_path / "checkpoint" / "commits"
    before = sorted(commits.glob("[0-9]*"))
    writer.acknowledge()
    query.processAllAvailable()
    assert sorted(commits.glob("[0-9]*")) == before
    for _ in range(12):
        writer.write(5)
    assert len(writer.segments()) > 2
    query.processAllAvailable()
    writer.write(1)
    writer.close()
    query.processAllAvailable()
    assert arrived(spark, tmp_path) == list(range(1, 67))


def test_a_stream_that_was_stopped_goes_on_where_it_was(
    spark: SparkSession, start: Start, writer: Writer, tmp_path: Path
) -> None:
    """A query started again with its checkpoint reads what came since, though the segment it stood in was sealed and others follow."""
    writer.write(4)
    query = start(read_stream(spark, writer))
    query.processAllAvailable()
    query.stop()
    for _ in range(10):
        writer.write(7)
    assert len(writer.segments()) > 2
    start(read_stream(spark, writer), available_now=True).awaitTermination()
    assert arrived(spark, tmp_path) == list(range(1, 75))


def test_available_now_ends_and_takes_bounded_batches(
    spark: SparkSession, start: Start, writer: Writer, tmp_path: Path
) -> None:
    """With maxBytesPerTrigger a query over all that is there takes several micro-batches of about that size, and ends."""
    for _ in range(20):
        writer.write(6)
    query = start(read_stream(spark, writer, maxBytesPerTrigger="3000"), available_now=True)
    query.awaitTermination()
    assert arrived(spark, tmp_path) == list(range(1, 121))
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) > 3
    assert max(batches) <= 24


def test_a_stream_that_fell_behind_retention_fails(
    spark: SparkSession, start: Start, writer: Writer, tmp_path: Path
) -> None:
    """When segments after the checkpoint have been removed, the query fails and lists the lost revisions."""
    writer.write(4)
    query = start(read_stream(spark, writer))
    query.processAllAvailable()
    query.stop()
    for _ in range(12):
        writer.write(10)
    removed = writer.segments()[:2]
    for path in removed:
        path.unlink()
    kept = int(writer.segments()[0].name[:20])
    with pytest.raises(StreamingQueryException, match=f"revisions 5 to {kept - 1} are lost"):
        start(read_stream(spark, writer), available_now=True).awaitTermination()
    assert arrived(spark, tmp_path) == [1, 2, 3, 4]


class Follower:
    """Takes micro-batches as Spark does: from one offset to the next, in tasks that are pickled. Each `take` starts it again."""

    def __init__(self, writer: Writer, **options: str) -> None:
        self._options = {"path": str(writer.folder), **options}
        self._offset = json.dumps(JournalStreamReader(self._options).initialOffset())

    def take(self) -> list[int]:
        """Return the revisions of all that has come since the last call."""
        reader = JournalStreamReader(self._options)
        found: list[int] = []
        while True:
            start = json.loads(self._offset)
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                return found
            for task in pickle.loads(pickle.dumps(reader.partitions(start, end))):  # noqa: S301  # as Spark does
                for batch in reader.read(task):
                    found += batch.column("revision").to_pylist()
            self._offset = json.dumps(end)


def test_a_stream_begins_where_it_is_told(writer: Writer) -> None:
    """The starting revision is the first that arrives, even in the middle of a block; `latest` gives only later changes."""
    for _ in range(10):
        writer.write(6)
    latest = Follower(writer, startingRevision="latest")
    assert Follower(writer, startingRevision="41").take() == list(range(41, 61))
    assert latest.take() == []
    writer.write(2)
    assert latest.take() == [61, 62]


def test_a_torn_tail_is_waited_for(writer: Writer) -> None:
    """A stream reads up to the last whole block of the open segment, and the rest once it is whole."""
    writer.write(3)
    (path,) = writer.segments()
    whole = path.read_bytes()
    writer.write(3)
    longer = path.read_bytes()
    path.write_bytes(longer[: len(whole) + 50])
    follower = Follower(writer)
    assert follower.take() == [1, 2, 3]
    path.write_bytes(longer)
    assert follower.take() == [4, 5, 6]


def test_another_journal_is_refused(writer: Writer, tmp_path: Path) -> None:
    """A checkpoint belongs to one journal: if a block that was read is no longer there, the query fails."""
    writer.write(4)
    follower = Follower(writer)
    assert follower.take() == [1, 2, 3, 4]
    (path,) = writer.segments()
    other = Journal.open(tmp_path / "other", OsDisk(), SMALL, SYNC)
    assert list(other.recover()) == []
    other.write(other.encode([change(n, at_us=NOW_US, body=b"another") for n in range(1, 30)]))
    path.write_bytes(next((tmp_path / "other" / "segments").iterdir()).read_bytes())
    other.close()
    with pytest.raises(PipelineError) as raised:
        follower.take()
    assert isinstance(raised.value.__cause__, OtherJournalError)


def test_damage_stops_a_stream_unless_it_is_to_be_skipped(writer: Writer) -> None:
    """A flipped bit fails the query with file, byte and lost revisions; with problems=skip all other changes arrive."""
    for _ in range(3):
        writer.write(3, size=10)
    (path,) = writer.segments()
    data = bytearray(path.read_bytes())
    data[data.index(b"4xxx")] ^= 1
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=r"byte \d+: damaged: .*lost: revisions 4 to 6"):
        Follower(writer).take()
    assert Follower(writer, problems="skip").take() == [1, 2, 3, 7, 8, 9]
