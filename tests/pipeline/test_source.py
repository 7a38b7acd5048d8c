"""The data source `maxam` as Spark sees it: filters, options, and errors of queries."""

import errno
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.index import build
from maxam.journal.listing import list_segments
from maxam.journal.names import sealed_segments
from maxam.journal.scan import Scanner
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.rows import BATCH_BYTES_MAX, send_batches
from maxam.pipeline.spark.source import JournalReader, JournalStreamReader, MaxamDataSource, Task
from maxam.records import AcknowledgementRecord, Record
from tests.support.journal_records import NOW_US, SYNC, change

LAST = 100
AT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOW_US)


def moment(revision: int) -> datetime:
    """Return when a revision was accepted."""
    return AT + timedelta(milliseconds=revision)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write segments of about ten changes, a topic for each, indexed; the last one is open."""
    folder = tmp_path_factory.mktemp("source") / "journal"
    settings = JournalSettings(segment_bytes_max=4000, durable=False, reserve_bytes=0)
    journal = Journal.open(folder, OsDisk(), settings, SYNC)
    assert list(journal.recover()) == []
    for n in range(1, LAST + 1):
        journal.write(journal.encode([change(n, b"X/EGM.V%d.S" % (n // 10), b"b" * 30)]))
    for segment in sealed_segments(folder, OsDisk()):
        build(str(folder), segment, OsDisk())
    return folder


def revisions_read(folder: Path, *filters: Filter, **options: str) -> tuple[set[int], int]:
    """Return the revisions of the rows that a reader with these filters hands over, and the number of segments it reads."""
    reader = JournalReader({"path": str(folder), "prune": "filters", **options})
    assert list(reader.pushFilters([*filters])) == [*filters]  # Spark applies them all the same
    reader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - as Spark does
    tasks = reader.partitions()
    batches = [batch for task in tasks for batch in reader.read(pickle.loads(pickle.dumps(task)))]  # noqa: S301
    segments = sum(len(task.parts) for task in tasks if isinstance(task, Task))
    return {revision for batch in batches for revision in batch.column("revision").to_pylist()}, segments


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (EqualTo(("revision",), 42), lambda n: n == 42),
        (In(("revision",), (41, 43)), lambda n: n in {41, 43}),
        (GreaterThan(("revision",), 90), lambda n: n > 90),
        (GreaterThanOrEqual(("revision",), 90), lambda n: n >= 90),
        (LessThan(("revision",), 7), lambda n: n < 7),
        (LessThanOrEqual(("revision",), 7), lambda n: n <= 7),
        (EqualTo(("accepted_at",), moment(42)), lambda n: n == 42),
        (In(("accepted_at",), (moment(41), moment(43))), lambda n: n in {41, 43}),
        (GreaterThan(("accepted_at",), moment(89)), lambda n: n > 89),
        (GreaterThanOrEqual(("accepted_at",), moment(90)), lambda n: n >= 90),
        (LessThan(("accepted_at",), moment(7)), lambda n: n < 7),
        (LessThanOrEqual(("accepted_at",), moment(7).replace(tzinfo=None)), lambda n: n <= 7),
        (EqualTo(("destination",), "X/EGM.V3.S"), lambda n: n // 10 == 3),
        (In(("destination",), ("X/EGM.V3.S", "X/EGM.V4.S")), lambda n: n // 10 in {3, 4}),
        (StringStartsWith(("destination",), "X/EGM.V5."), lambda n: n // 10 == 5),
    ],
    ids=lambda value: str(value) if isinstance(value, Filter) else "",
)
def test_a_filter_leaves_out_segments_and_no_row_that_it_wants(
    journal: Path, one: Filter, wanted: Callable[[int], bool]
) -> None:
    """All rows that pass the filter are read, of a few segments only."""
    revisions, segments = revisions_read(journal, one)
    assert {n for n in range(1, LAST + 1) if wanted(n)} <= revisions
    assert segments < len(list_segments(journal, "changes")) - 3


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(("revision",)),
        Not(EqualTo(("revision",), 42)),
        EqualTo(("kind",), "value"),
        EqualTo(("body",), b""),
        In(("revision",), ()),
    ],
    ids=str,
)
def test_other_filters_leave_out_nothing(journal: Path, one: Filter) -> None:
    """Filters that do not help to choose segments are left to Spark."""
    assert revisions_read(journal, one) == (set(range(1, LAST + 1)), len(list_segments(journal, "changes")))


def test_small_segments_share_a_task_and_large_ones_do_not(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are of whole segments, in order, and within the limit of bytes. Together they have all segments."""
    segments = list_segments(journal, "changes")
    reader = JournalReader({"path": str(journal)})
    assert len(reader.partitions()) == 1
    monkeypatch.setattr("maxam.pipeline.spark.source.TASK_BYTES", 9000)
    tasks = [task for task in reader.partitions() if isinstance(task, Task)]
    assert [part.segment for task in tasks for part in task.parts] == segments
    assert {len(task.parts) for task in tasks[:-1]} == {2}
    monkeypatch.setattr("maxam.pipeline.spark.source.TASK_BYTES", 1)
    assert len(reader.partitions()) == len(segments)


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Write three segments of two changes each, in blocks of their own; sessions do something before, between and behind."""
    settings = JournalSettings(durable=False, reserve_bytes=0)
    for first in (1, 3, 5):
        journal = Journal.open(tmp_path, OsDisk(), settings, SYNC)
        list(journal.recover())
        for n in (first, first + 1):
            journal.write(journal.encode([ack(n)]))
            journal.write(journal.encode([change(n)]))
        journal.write(journal.encode([ack(first + 1)]))
        journal.close()
    return tmp_path


def ack(n: int) -> Record:
    """Make what a session did about when a change came."""
    return AcknowledgementRecord(NOW_US + 1000 * n, "alice", "pump", b"s%d" % n, ())


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (LessThanOrEqual(("revision",), 2), [0, 1, 2, 2]),
        (EqualTo(("revision",), 2), [2, 2]),
        (LessThan(("revision",), 1), [0]),
        (GreaterThanOrEqual(("revision",), 6), [6]),
    ],
    ids=str,
)
def test_a_filter_finds_what_sessions_did_behind_the_last_change_of_a_segment(
    sessions: Path, one: Filter, wanted: list[int]
) -> None:
    """Records of sessions after the last change of one segment can be in the next."""
    assert len(list_segments(sessions, "changes")) == 3
    assert rows_of_sessions(sessions, one) == wanted


def rows_of_sessions(folder: Path, *filters: Filter, **options: str) -> list[int]:
    """Return the revisions of the rows of sessions that a reader hands over."""
    reader = JournalReader({"path": str(folder), "records": "sessions", "prune": "filters", **options})
    reader.pushFilters([*filters])
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [revision for batch in batches for revision in batch.column("revision").to_pylist()]


def test_the_options_choose_what_sessions_did_exactly(sessions: Path) -> None:
    """Before the first change their revision is 0."""
    assert rows_of_sessions(sessions, toRevision="0") == [0]
    assert rows_of_sessions(sessions, fromRevision="1", toRevision="2") == [1, 2, 2]
    assert rows_of_sessions(sessions) == [0, 1, 2, 2, 3, 4, 4, 5, 6]


def test_behind_damage_sessions_have_the_revisions_that_they_had(sessions: Path) -> None:
    """The revision of a session's record is that of the change before it, though that one be lost."""
    path = Path(list_segments(sessions, "changes")[0].path)
    data = bytearray(path.read_bytes())
    scanner = Scanner("", len(data), lambda offset, length: bytes(data[offset : offset + length]))
    for _ in range(3):
        scanner.next_block()
    data[scanner.offset + 9] ^= 1  # of change 2
    path.write_bytes(data)
    assert rows_of_sessions(sessions, problems="skip") == [0, 1, 2, 2, 3, 4, 4, 5, 6]


def test_a_disk_that_fails_within_a_file_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk after a header specifies the segment and what is lost, or costs what is after it."""
    settings = JournalSettings(segment_bytes_max=2 << 20, durable=False, reserve_bytes=0)
    journal = Journal.open(tmp_path, OsDisk(), settings, SYNC)
    list(journal.recover())
    for n in range(1, 1201):
        journal.write(journal.encode([change(n, body=b"b" * 4000)]))
    journal.close()
    broken = list_segments(tmp_path, "changes")[1]
    pread = os.pread

    def fail(handle: int, length: int, offset: int) -> bytes:
        if str(Path(f"/proc/self/fd/{handle}").readlink()) == broken.path and offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(handle, length, offset)

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(PipelineError, match=f"{broken.path} cannot be read.*from {broken.first} to {broken.last} are"):
        revisions_read(tmp_path)
    revisions, _ = revisions_read(tmp_path, problems="skip")
    assert revisions >= {n for n in range(1, 1201) if not broken.first <= n <= broken.last}
    assert len(revisions) < 1200
    stream = JournalStreamReader({"path": str(tmp_path)})
    tasks = stream.partitions(stream.initialOffset(), stream.latestOffset(stream.initialOffset(), ReadAllAvailable()))
    with pytest.raises(PipelineError, match=f"{broken.path} cannot be read"):
        [list(stream.read(task)) for task in tasks]


def test_a_batch_is_bounded_in_rows_and_bytes() -> None:
    """Headers count as bodies do: a SEND may have 64 KiB of them."""
    large = (b"note", b"x" * 3000)
    blocks = [[change(n, headers=(large,)) for n in range(at, at + 10)] for at in range(1, 10_000, 10)]
    batches = list(send_batches(blocks, 1, 10_000))
    assert [n for batch in batches for n in batch.column("revision").to_pylist()] == list(range(1, 10_001))
    assert all(batch.nbytes <= BATCH_BYTES_MAX * 1.5 for batch in batches)


def test_filters_that_exclude_each_other_read_nothing(journal: Path) -> None:
    """A range without anything in it costs no segment, or one that gives no row."""
    revisions, segments = revisions_read(journal, GreaterThan(("revision",), 50), LessThan(("revision",), 40))
    assert (revisions, segments <= 1) == (set(), True)


def test_the_options_choose_revisions_exactly(journal: Path) -> None:
    """Options fromRevision and toRevision, both inclusive, give exactly these."""
    assert revisions_read(journal, fromRevision="37", toRevision="62")[0] == set(range(37, 63))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": ""}, "the folder of a journal is missing"),
        ({"path": "var/no-journal"}, "there is no folder 'var/no-journal' in .*: name an absolute path"),
        ({"fromRevision": "-1"}, "fromRevision must be a revision"),
        ({"toRevision": "last"}, "toRevision must be a revision"),
        ({"problems": "ignore"}, "problems must be one of fail, skip"),
        ({"records": "all"}, "records must be one of changes, sessions, rejected, problems"),
        ({"fromrevison": "1"}, "unknown option fromrevison"),
    ],
)
def test_wrong_options_are_named(journal: Path, options: dict[str, str], says: str) -> None:
    """An option that is unknown, missing or malformed is an error that shows it."""
    with pytest.raises(PipelineError, match=says):
        JournalReader({"path": str(journal), **options})


def test_a_relative_folder_is_the_drivers(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is made where the path is right goes on with it elsewhere."""
    monkeypatch.chdir(journal.parent)
    reader = JournalReader({"path": journal.name})
    whole = reader.partitions()
    monkeypatch.chdir("/")
    assert reader.partitions() == whole


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"problems": "ignore"}, "problems must be one of fail, skip"),
        ({"startingRevision": "first"}, "startingRevision must be a revision"),
        ({"path": "var/no-journal"}, "name an absolute path"),
    ],
)
def test_what_a_stream_would_refuse_is_refused_when_it_is_described(
    journal: Path, options: dict[str, str], says: str
) -> None:
    """Before a query starts, where Spark buries it."""
    with pytest.raises(PipelineError, match=says):
        MaxamDataSource({"path": str(journal), **options}).schema()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger must be a size"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a size"),
        ({"startingRevision": "first"}, "startingRevision must be a revision"),
        ({"records": "sessions"}, "records must be one of changes, rejected"),
        ({"toRevision": "9"}, "unknown option torevision"),
    ],
)
def test_wrong_options_of_a_stream_are_named(journal: Path, options: dict[str, str], says: str) -> None:
    """So for streams, which know other options."""
    with pytest.raises(PipelineError, match=says):
        JournalStreamReader({"path": str(journal), **options})


def test_the_limit_of_a_stream(journal: Path) -> None:
    """Option maxBytesPerTrigger is a size with or without a unit; without the option all that is available is read."""
    sizes = {"1048576": 1 << 20, "64k": 64 << 10, "2m": 2 << 20, "1GB": 1 << 30}
    for text, size in sizes.items():
        reader = JournalStreamReader({"path": str(journal), "maxBytesPerTrigger": text})
        assert reader.getDefaultReadLimit() == ReadMaxBytes(size)
    assert JournalStreamReader({"path": str(journal)}).getDefaultReadLimit() == ReadAllAvailable()


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"revision": 1},
        {"revision": -1, "segment": 0, "byte": 0, "chain": 0},
        {"revision": 1, "segment": 0, "byte": 0, "chain": True},
        {"revision": 1, "segment": 0, "byte": 0, "chain": 0, "more": 1},
    ],
    ids=str,
)
def test_an_offset_of_another_source_is_refused(journal: Path, offset: dict[str, int]) -> None:
    """A checkpoint that is not of a journal is named, not guessed at."""
    with pytest.raises(PipelineError, match="journal"):
        JournalStreamReader({"path": str(journal)}).latestOffset(offset, ReadAllAvailable())


def test_the_columns_are_those_of_the_records(journal: Path) -> None:
    """Each kind of records has its columns; an unknown kind is an error."""
    names = {
        records: MaxamDataSource({"path": str(journal), "records": records}).schema().names
        for records in ("changes", "sessions", "rejected", "problems")
    }
    assert names["changes"][:4] == ["revision", "accepted_at", "kind", "destination"]
    assert names["rejected"] == [*names["changes"], "disposition", "result", "reason"]
    assert names["sessions"][-1] == "positions"
    assert names["problems"] == ["kind", "path", "offset", "first", "last", "text", "lost"]


def test_spark_pushes_filters_down(spark: SparkSession, journal: Path) -> None:
    """Conditions on revision, time and destination give their rows, whatever of them the source has used."""
    frame = spark.read.format("maxam").option("prune", "filters").load(str(journal))
    until_us = NOW_US + 35_000
    found = frame.where("revision > 31 AND destination LIKE 'X/EGM.V3.%'")
    found = found.where(f"accepted_at <= timestamp_micros({until_us})")
    assert sorted(row.revision for row in found.select("revision").collect()) == [32, 33, 34, 35]


def test_a_view_reads_a_journal_and_a_table_is_refused(spark: SparkSession, journal: Path) -> None:
    """CREATE TEMPORARY VIEW works in SQL. CREATE TABLE shows what to use instead, as Spark gives its queries no path."""
    spark.sql(f"CREATE TEMPORARY VIEW seen USING maxam OPTIONS (path '{journal}')")
    try:
        assert spark.sql("SELECT max(revision) FROM seen").collect()[0][0] == LAST
    finally:
        spark.sql("DROP VIEW seen")
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING maxam OPTIONS (path '{journal}')")


def test_a_query_that_fails_says_what_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Damage found while a task reads fails the query with file, byte and revisions in its text."""
    folder = tmp_path / "journal"
    journal = Journal.open(folder, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), SYNC)
    assert list(journal.recover()) == []
    for n in range(1, 4):
        journal.write(journal.encode([change(n, body=b"body %d" % n)]))
    journal.close()
    (segment,) = list_segments(folder, "changes")
    path = Path(segment.path)
    path.write_bytes(path.read_bytes().replace(b"body 2", b"body 7"))
    with pytest.raises((PySparkException, Py4JJavaError), match=r"avro: byte \d+: damaged: .*revision 2"):
        spark.read.format("maxam").load(str(folder)).collect()
    rest = spark.read.format("maxam").option("problems", "skip").load(str(folder)).collect()
    assert [row.revision for row in rest] == [1, 3]
