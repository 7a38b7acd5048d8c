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
from maxam.journal.newest import NewestRows
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.examining import examine
from maxam.pipeline.jobs import newest as newest_module
from maxam.pipeline.jobs import walking
from maxam.pipeline.jobs.compact import DAY, dated
from maxam.pipeline.jobs.newest import newest_changes, newest_values
from maxam.pipeline.jobs.output import Format, first_rows, write_frame
from maxam.pipeline.jobs.spark_newest import read_newest, values_of
from maxam.pipeline.spark.reading import read_journal
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
        with newest_changes(walking.Walk(archive, selection, 0)) as here:
            assert here.topics == len(expected)
            ranges = [NewestRows(here.records(number), deleted=True) for number in range(here.ranges)]
        destinations = [one for part in ranges for one in part.destinations]
        assert sorted(one for part in ranges for one in part.revisions) == [row[0] for row in expected], selection
        assert destinations == sorted(destinations)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_processes_write_what_spark_writes(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool, form: Format
) -> None:
    """Processes of this machine make the same result as Spark, in many ranges, also as a table for people and as a folder."""
    monkeypatch.setattr(newest_module, "RANGE_TOPICS", 7)
    archive = examine(spark, journal)
    catalogue = Catalogue.load(journal, None)
    frame = values_of(read_newest(spark, archive, Selection()), catalogue, deleted).localCheckpoint()
    write_frame(frame, form, str(tmp_path / "spark"))
    with newest_changes(walking.Walk(archive, Selection(), 0)) as here:
        assert here.ranges > 1
        result = newest_values(here, catalogue, deleted)
        write_frame(result, form, str(tmp_path / "here"))
        assert first_rows(result) == first_rows(frame)
        if form == "parquet":
            write_frame(result, form, f"{tmp_path}/folder/")
            with pytest.raises(PipelineError):  # it exists
                write_frame(result, form, f"{tmp_path}/folder/")
    if form == "parquet":
        expected = pq.read_table(tmp_path / "spark")
        assert pq.read_table(tmp_path / "here").equals(expected)
        assert pq.read_table(tmp_path / "folder").equals(expected)
    else:
        assert (tmp_path / "here").read_bytes() == (tmp_path / "spark").read_bytes()
        assert (tmp_path / "here").read_bytes()


def test_no_change_is_an_empty_result(journal: Path, tmp_path: Path) -> None:
    """A selection without changes gives no rows in each format."""
    selection = Selection(until=START.astimezone(UTC) - timedelta(days=1))
    with newest_changes(walking.Walk(examine(None, journal, **selection.prune()), selection, 0)) as here:
        result = newest_values(here, None)
        write_frame(result, "json", str(tmp_path / "none.json"))
        write_frame(result, "parquet", str(tmp_path / "none.parquet"))
        assert first_rows(result)[1] == []
    assert (tmp_path / "none.json").read_bytes() == b""
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_one_for_each_day(spark: SparkSession, journal: Path) -> None:
    """The newest of each topic in each period of a length."""
    archive = examine(spark, journal)
    found = rows(read_newest(spark, archive, Selection(), DAY))
    changes = dated(read_journal(spark, journal, archive=archive, problems="skip"))
    expected = rows(newest(changes, "destination", "date").drop("date"))
    assert found == expected
    assert len(found) > 100
