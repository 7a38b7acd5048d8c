"""Workers that scan segments find the values that Spark finds in the rows of the journal."""

from datetime import UTC, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation uses

from maxam.bench.archive import START, write_archive
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.jobs import latest, walking
from maxam.pipeline.jobs.compact import DAY, dated
from maxam.pipeline.jobs.latest import few_newest, few_values, read_newest, values_of
from maxam.pipeline.jobs.output import Format, first_rows, write_frame
from maxam.pipeline.spark.reading import examine, read_journal
from maxam.pipeline.spark.selection import Selection

RECORDS = 6000


@pytest.fixture(scope="module", name="journal")
def _journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a journal of several segments, of which the second is damaged and the last one is open."""
    folder = tmp_path_factory.mktemp("newest")
    write_archive(folder, RECORDS, topics=50, days=3.0, segment_bytes_max=250_000)
    segments = sorted((folder / "segments").iterdir())
    assert len(segments) > 5
    data = bytearray(segments[1].read_bytes())
    data[len(data) // 2] ^= 1
    segments[1].write_bytes(data)
    last = segments[-1]
    last.rename(last.with_name(f"{last.name.partition('-')[0]}.open.avro"))
    return folder


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows in order of revision, comparable."""
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: str(row[0]).zfill(20))


def newest(changes: DataFrame, *each: str) -> DataFrame:
    """Return the newest of the changes that are alike in some columns, by the definition."""
    heads = changes.groupBy(*each).agg(F.max("revision").alias("revision")).select("revision")
    return changes.join(heads, "revision", "left_semi")


@pytest.mark.parametrize("kept_bytes_max", [0, 1 << 26])
def test_walking_finds_what_the_rows_say(
    spark: SparkSession, journal: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes_max: int
) -> None:
    """For any selection, in healthy, damaged and open segments, in one run or many, whatever a worker may keep."""
    monkeypatch.setattr(walking, "_KEPT_BYTES_MAX", kept_bytes_max)
    monkeypatch.setattr(walking, "_RUN_BYTES", 600_000 if kept_bytes_max else 1)
    middle = START.astimezone(UTC) + timedelta(days=1.5)
    glob = compile_glob("*/EGM.*.EGMStatus", Limits())
    for selection in (
        Selection(),
        Selection(until=middle),
        Selection(since=middle, globs=(glob,)),
        Selection(from_revision=700, to_revision=5900),
        Selection(until=START.astimezone(UTC)),
    ):
        archive = examine(spark, journal, **selection.prune())
        changes = read_journal(spark, journal, archive=archive, problems="skip", **selection.prune())
        found = read_newest(spark, archive, selection)
        assert found.schema == changes.schema
        expected = rows(newest(changes, "destination"))
        assert rows(found) == expected, selection
        few = few_newest(spark, archive, selection)
        assert few is not None
        assert sorted(one.revision for one in few) == [row[0] for row in expected], selection


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_few_are_written_as_many_are(
    spark: SparkSession, journal: Path, tmp_path: Path, deleted: bool, form: Format
) -> None:
    """The driver by itself makes the same result as Spark, also as a table for people."""
    archive = examine(spark, journal)
    catalogue = Catalogue.load(journal, None)
    few = few_newest(spark, archive, Selection())
    assert few is not None
    result = few_values(few, catalogue, deleted)
    frame = values_of(read_newest(spark, archive, Selection()), catalogue, deleted).localCheckpoint()
    write_frame(result, form, str(tmp_path / "few"))
    write_frame(frame, form, str(tmp_path / "many"))
    if form == "parquet":
        assert pq.read_table(tmp_path / "few").equals(pq.read_table(tmp_path / "many"))
    else:
        assert (tmp_path / "few").read_bytes() == (tmp_path / "many").read_bytes()
        assert (tmp_path / "few").read_bytes()
    assert first_rows(result) == first_rows(frame)


def test_many_are_left_to_spark(spark: SparkSession, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a driver takes, in bytes and in pieces."""
    archive = examine(spark, journal)
    monkeypatch.setattr(latest, "PIECES_MAX", 2)
    assert few_newest(spark, archive, Selection()) is None
    monkeypatch.undo()
    walk = walking.Walk(archive, Selection(), 0)
    monkeypatch.setattr(walking, "_FOUND_BYTES_MAX", 1000)
    assert walk.piece(0) is None


def test_one_for_each_day(spark: SparkSession, journal: Path) -> None:
    """The newest of each topic in each period of a length."""
    archive = examine(spark, journal)
    found = rows(read_newest(spark, archive, Selection(), DAY))
    changes = dated(read_journal(spark, journal, archive=archive, problems="skip"))
    expected = rows(newest(changes, "destination", "date").drop("date"))
    assert found == expected
    assert len(found) > 100
