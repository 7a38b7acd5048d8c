"""A journal as a table: the native reader and the data source together give what either gives alone, whatever happens to the files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from maxam.journal.archive import Archive
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.index import build
from maxam.journal.listing import Records
from maxam.journal.names import sealed_segments
from maxam.journal.rejects import RejectedJournal, RejectedSettings
from maxam.pipeline import examine, read_journal
from maxam.pipeline.errors import PipelineError
from maxam.records import UNJUDGED, AcknowledgementRecord, Change, Record, RejectedSend, Rejection
from tests.support.journal_records import ALICE, BOB, DATUM, NOW_US, SYNC, change, one_of_each

SMALL = JournalSettings(segment_bytes_max=5000, durable=False, reserve_bytes=0)
LAST = 120
AT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOW_US)


def destination(revision: int) -> bytes:
    """Return the topic of a revision: three to each segment or so, and one that all have."""
    return b"X/EGM.Q.all.S" if revision % 2 else b"X/EGM.Q.%d.S" % (revision // 8)


def write(folder: Path) -> Journal:
    """Write several segments of all kinds of records, and an open one that holds something."""
    journal = Journal.open(folder, OsDisk(), SMALL, SYNC)
    assert list(journal.recover()) == []
    first = one_of_each()
    journal.write(journal.encode(first))
    at_us = NOW_US + 3_000_000
    while journal.head < LAST:
        block: list[Record] = [
            change(n, destination(n), b"b" * n, at_us=at_us + n, deleted=n % 17 == 0, publisher=BOB if n % 5 else ALICE)
            for n in range(journal.head + 1, min(LAST, journal.head + 4) + 1)
        ]
        at_us += 1000
        block.append(AcknowledgementRecord(at_us, "alice", "pump", b"s1", ((destination(journal.head), journal.head),)))
        journal.write(journal.encode(block))
    return journal


def write_rejected(folder: Path) -> RejectedJournal:
    """Write rejected SENDs beside it."""
    settings = RejectedSettings(segment_bytes_max=4000, durable=False)
    rejected = RejectedJournal.open(str(folder), OsDisk(), settings, SYNC)
    for n in range(1, 30):
        why = Rejection("schema-mismatch" if n % 2 else "no-rule", f"reason {n}")
        validation = DATUM if n % 2 else UNJUDGED
        headers = ((b"a", b"1"),) if n % 3 else ()
        send = RejectedSend(
            n, NOW_US + n, b"X/R.%d" % n, n % 4 == 0, ALICE, validation, headers, b"r" * n, "rejected-invalid", why
        )
        rejected.append([send])
    return rejected


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Write a journal into a folder whose name no reader may take for a pattern or an address."""
    folder = tmp_path / "a b[1]{x,y}%41#?c"
    written = write(folder)
    assert len(sealed_segments(folder, OsDisk())) > 5
    del written  # a writer that is gone: the last segment stays open
    return folder


def by_source(spark: SparkSession, folder: Path, records: Records, problems: str = "fail") -> DataFrame:
    """Read with the data source alone."""
    return spark.read.format("maxam").options(records=records, problems=problems).load(str(folder))


def same(one: DataFrame, other: DataFrame) -> bool:
    """Return True if two tables have the same columns, types and rows."""
    return one.schema == other.schema and not one.exceptAll(other).unionAll(other.exceptAll(one)).limit(1).collect()


def revisions(frame: DataFrame) -> list[int]:
    """Return the revisions of a table, in order."""
    return sorted(row.revision for row in frame.select("revision").collect())


def damage(archive: Archive, at: int) -> Path:
    """Flip a bit in the body of a change in the middle of a sealed segment."""
    path = Path(archive.sealed[at].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("records", ["changes", "sessions", "rejected"])
def test_either_way_of_reading_gives_the_same(
    spark: SparkSession, journal: Path, records: Literal["changes", "sessions", "rejected"]
) -> None:
    """The native reader for sealed segments, with the data source for the open one, gives the rows of the data source for all."""
    write_rejected(journal)
    frame = read_journal(spark, journal, records=records)
    assert same(frame, by_source(spark, journal, records))
    archive = examine(None, journal, records=records)
    assert archive.problems == ()
    assert archive.sealed
    assert archive.open is not None
    for columns in (frame.columns[-2:], frame.columns[::-3], ["kind"]):
        assert same(read_journal(spark, journal, records=records, columns=columns), frame.select(columns))
    count = {"changes": LAST, "rejected": 29}.get(records)
    assert count is None or revisions(frame) == list(range(1, count + 1))


def test_rows_hold_what_was_written(spark: SparkSession, journal: Path) -> None:
    """Each column of a change and of a session's record is the field that was written."""
    changes = by_source(spark, journal, "changes").selectExpr("*", "unix_micros(accepted_at) AS at_us")
    rows = {row.revision: row for row in changes.collect()}
    for record in one_of_each():
        if isinstance(record, Change):
            row = rows[record.revision]
            judged = record.validation
            length = judged.value_length
            assert row.at_us == record.accepted_at_us
            assert row.kind == ("delete" if record.deleted else "value")
            assert row.destination == record.destination.decode()
            assert (row.publisher, row.fingerprint) == (record.publisher.principal, record.publisher.fingerprint)
            assert (row.encoding, row.schema, row.schema_version) == (
                judged.encoding,
                judged.schema,
                judged.schema_version,
            )
            assert bytes(row.schema_fingerprint) == judged.schema_fingerprint
            assert row.value_offset == judged.value_offset
            assert row.value_length == (max(0, len(record.body) - judged.value_offset) if length < 0 else length)
            assert [(one.name.encode(), one.value.encode()) for one in row.headers] == list(record.headers)
            assert bytes(row.body) == record.body
    sessions = by_source(spark, journal, "sessions").orderBy("accepted_at", "kind").collect()
    assert {
        *("subscription", "unsubscription", "acknowledgement", "owed", "session_end", "will", "will_end"),
    } == {row.kind for row in sessions}
    (first,) = [row for row in sessions if row.revision == 0]
    assert (first.kind, first.glob, first.principal, first.client_id, first.subscription, first.eager) == (
        *("subscription", "X/EGM.*", "alice", "pump", "s1"),
        True,
    )
    (row,) = [row for row in sessions if row.kind == "subscription" and row.low_water is not None]
    assert row.low_water == 5
    assert sum(len(row.positions) for row in sessions) > LAST // 4


def test_parts_of_a_table_are_the_whole_of_it(spark: SparkSession, journal: Path) -> None:
    """The filter of one branch of a query is not applied to another branch, nor that of one query to the next."""
    opened = examine(None, journal).open
    assert opened is not None
    for frame, cut in (
        (read_journal(spark, journal), opened.first + 1),
        (by_source(spark, journal, "changes"), 12),
    ):
        low, high = frame.where(f"revision <= {cut}"), frame.where(f"revision > {cut}")
        assert revisions(low.unionAll(high)) == list(range(1, LAST + 1))
        assert low.count() == cut
        assert frame.count() == LAST


def test_choosing_gives_the_rows_that_a_filter_gives(spark: SparkSession, journal: Path) -> None:
    """Choosing by revision, time and glob leaves out segments and gives exactly the rows that a condition on all rows gives."""
    for segment in sealed_segments(journal, OsDisk()):
        build(str(journal), segment, OsDisk())
    every = read_journal(spark, journal)
    since, until = AT + timedelta(microseconds=3_010_040), AT + timedelta(microseconds=3_018_080)
    some = read_journal(spark, journal, since=since, until=until)
    assert revisions(some) == revisions(every.where((every.accepted_at >= since) & (every.accepted_at < until)))
    assert 0 < some.count() < LAST
    assert len(examine(None, journal, since=since, until=until).sealed) < len(examine(None, journal).sealed)
    assert revisions(read_journal(spark, journal, from_revision=30, to_revision=41)) == list(range(30, 42))
    globs = ["X/EGM.Q.7.S", "X/EGM.Q.1[23].*"]
    found = read_journal(spark, journal, destinations=globs)
    wanted = [n for n in range(10, LAST + 1) if destination(n).split(b".")[2] in {b"7", b"12", b"13"}]
    assert revisions(found) == wanted
    assert len(examine(None, journal, destinations=["X/EGM.Q.7.S"]).sealed) <= 2
    assert revisions(read_journal(spark, journal, destinations=[])) == []


def test_damage_fails_or_costs_one_block(spark: SparkSession, journal: Path) -> None:
    """A damaged segment and a missing one are named with file, position and revisions; with problems=skip all else is read, either way."""
    healthy = examine(None, journal)
    path = damage(healthy, 2)
    gone = healthy.sealed[4]
    Path(gone.path).unlink()
    with pytest.raises(PipelineError) as caught:
        read_journal(spark, journal)
    assert f"{path}: byte " in str(caught.value)
    assert f"missing before revision {gone.last + 1}; lost: revisions {gone.first} to {gone.last}" in str(caught.value)
    archive = examine(None, journal)
    assert [one.first for one in archive.damaged] == [healthy.sealed[2].first]
    lost = {n for one in archive.problems for n in range(one.first, one.last + 1)}
    assert 0 < len(lost) < 20
    frame = read_journal(spark, journal, problems="skip")
    assert revisions(frame) == [n for n in range(1, LAST + 1) if n not in lost]
    assert same(frame, by_source(spark, journal, "changes", "skip"))
    with pytest.raises((PySparkException, Py4JJavaError), match="lost: revisions"):
        by_source(spark, journal, "changes").count()
    assert revisions(read_journal(spark, journal, from_revision=gone.last + 1)) == list(range(gone.last + 1, LAST + 1))
    rows = spark.read.format("maxam").option("records", "problems").load(str(journal)).collect()
    assert [(row.kind, row.path, row.offset, row.first, row.last, row.text, row.lost) for row in rows] == [
        (one.kind, one.path, one.offset, one.first, one.last, one.text, one.lost) for one in archive.problems
    ]


def test_a_file_that_cannot_be_read_costs_what_is_in_it(spark: SparkSession, journal: Path) -> None:
    """With problems=skip all else is read, though the system does not hand out a file at all."""
    one = examine(None, journal).sealed[2]
    Path(one.path).unlink()
    Path(one.path).mkdir()
    with pytest.raises(PipelineError, match=f"unreadable.*lost: revisions {one.first} to {one.last}"):
        read_journal(spark, journal)
    frame = read_journal(spark, journal, problems="skip")
    assert revisions(frame) == [n for n in range(1, LAST + 1) if not one.first <= n <= one.last]
    assert same(frame, by_source(spark, journal, "changes", "skip"))


@pytest.mark.parametrize("records", ["changes", "sessions"])
def test_a_table_is_what_was_there_when_it_was_made(
    spark: SparkSession, tmp_path: Path, records: Literal["changes", "sessions"]
) -> None:
    """Rolling, sealing and writing more between examining and computing neither add nor lose a row."""
    written = write(tmp_path / "j")
    frame = read_journal(spark, tmp_path / "j", records=records)
    before = revisions(frame)
    at_us = written.accepted_at_us
    written.write(written.encode([AcknowledgementRecord(at_us, "alice", "pump", b"s1", ())]))
    for n in range(LAST + 1, LAST + 30):
        written.write(written.encode([change(n, at_us=at_us + n, body=b"x" * 300)]))
    written.close()
    assert revisions(frame) == before
    assert len(before) == (LAST if records == "changes" else len(before))
    assert revisions(read_journal(spark, tmp_path / "j"))[-1] == LAST + 29


def test_a_table_whose_files_are_gone_fails(spark: SparkSession, tmp_path: Path) -> None:
    """When retention takes a segment after the archive was examined, computing fails instead of giving fewer rows."""
    written = write(tmp_path / "j")
    frame = read_journal(spark, tmp_path / "j")
    archive = examine(None, tmp_path / "j")
    assert archive.open is not None
    Path(archive.sealed[0].path).unlink()
    with pytest.raises((PySparkException, Py4JJavaError)):
        frame.count()
    rest = read_journal(spark, tmp_path / "j")
    assert revisions(rest)[0] == archive.sealed[1].first
    with pytest.raises(PipelineError, match=f"revisions 1 to {archive.sealed[0].last}"):
        read_journal(spark, tmp_path / "j", from_revision=1)
    Path(archive.open.path).unlink()
    with pytest.raises((PySparkException, Py4JJavaError), match="removed"):
        rest.count()
    del written


def test_wrong_arguments_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """A folder that is no journal, a time without a zone, destinations of sessions: each has an error of its own."""
    with pytest.raises(PipelineError, match="journal"):
        read_journal(spark, tmp_path)
    write(tmp_path / "j")
    with pytest.raises(PipelineError, match="has no zone"):
        read_journal(spark, tmp_path / "j", since=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the fault
    with pytest.raises(PipelineError, match="no destinations"):
        read_journal(spark, tmp_path / "j", records="sessions", destinations=["X/*"])
    archive = examine(None, tmp_path / "j", records="rejected")
    with pytest.raises(PipelineError, match="examined for rejected"):
        read_journal(spark, tmp_path / "j", archive=archive)
    assert read_journal(spark, tmp_path / "j", records="rejected").count() == 0
