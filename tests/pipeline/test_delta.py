"""A history table with Delta logs, read back by other programs, with other writers, and at older versions."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import SparkSession

from maxam.pipeline.errors import OtherFilesError, PipelineError
from maxam.pipeline.history import delta, table
from maxam.pipeline.history.command import update_history
from tests.pipeline.test_history import A0, A1, B0, all_rows, some_changes
from tests.pipeline.typed_journal import write_journal

A, B = "t.A_v1", "t.B_v1"


def rows(out: Path, name: str, version: int | None = None) -> list[dict[str, object]]:
    """Return the rows of a type as Delta has them, in order of revision."""
    table = DeltaTable(out / name, version=version).to_pyarrow_table().sort_by("revision").drop_columns(["date"])
    found: list[dict[str, object]] = table.to_pylist()
    return found


def undated(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Leave out the date, which a reader takes from the folder."""
    return [{name: value for name, value in row.items() if name != "date"} for row in rows]


def revisions(out: Path, name: str, version: int | None = None) -> list[object]:
    """Return the revisions of a type's rows, in order."""
    return [row["revision"] for row in rows(out, name, version)]


def test_delta_has_the_rows_of_the_journal_for_each_reader(spark: SparkSession, tmp_path: Path) -> None:
    """polars, DuckDB, pyarrow and Spark see the rows of a table without logs; the transaction number is the last revision."""
    journal, out, plain = tmp_path / "journal", tmp_path / "out", tmp_path / "plain"
    write_journal(journal, some_changes(1, 40), [A0, B0])
    update_history(None, journal, out, form="delta")
    write_journal(journal, some_changes(41, 70), [A0, B0])
    update_history(None, journal, out)  # the format is that of the table
    update_history(None, journal, plain)
    for name in (A, B):
        expected = all_rows(plain)[name]
        assert DeltaTable(out / name).transaction_version(delta.ROWS) == 70
        assert rows(out, name) == undated(expected)
        assert pl.read_delta(str(out / name)).sort("revision")["revision"].to_list() == revisions(out, name)
        files = DeltaTable(out / name).file_uris()
        with duckdb.connect() as database:
            counted = database.execute("SELECT count(DISTINCT revision) FROM read_parquet(?)", [files])
            assert counted.fetchall() == [(len(expected),)]
        frame = spark.read.option("basePath", str(out / name)).parquet(*files)
        assert frame.count() == len(expected)


def test_each_round_is_a_version(tmp_path: Path) -> None:
    """An older version has the rows of its time, also after the columns were changed."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out, form="delta")
    first = rows(out, A)
    write_journal(journal, some_changes(21, 40, A1), [A0, A1, B0])
    report = update_history(None, journal, out)
    assert report.rewritten == 1
    assert rows(out, A, 0) == first
    assert revisions(out, A, 1) == revisions(out, A, 0)  # with other columns
    assert [row["value"] for row in rows(out, A)] == [row["value"] for row in all_rows(table_of(journal, tmp_path))[A]]
    assert DeltaTable(out / A).version() == 2


def table_of(journal: Path, folder: Path) -> Path:
    """Build a table without logs."""
    update_history(None, journal, folder / "once")
    return folder / "once"


def test_a_table_of_parquet_gets_logs(tmp_path: Path) -> None:
    """With --format delta all its files are in the logs, whatever is new; the logs are not given up again."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out)
    before = all_rows(out)
    update_history(None, journal, out, form="delta")
    assert {name: rows(out, name) for name in before} == {name: undated(each) for name, each in before.items()}
    with pytest.raises(PipelineError, match="Delta"):
        update_history(None, journal, out, form="parquet")


@pytest.mark.parametrize("step", ["create_table_with_add_actions", "state"])
def test_a_commit_that_was_stopped_is_finished_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Stopped before a log is written, or before the state is: the next run adds each file once."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])

    def stop(*_: object, **__: object) -> None:
        raise CommitFailedError("stopped") if step != "state" else OSError("stopped")

    if step == "state":
        write = table.Table._write
        monkeypatch.setattr(
            table.Table,
            "_write",
            lambda self, path, value: stop() if path.name == "state.json" else write(self, path, value),
        )
    else:
        monkeypatch.setattr(f"maxam.pipeline.history.delta.{step}", stop)
    with pytest.raises((PipelineError, OSError), match="stopped"):
        update_history(None, journal, out, form="delta")
    monkeypatch.undo()
    write_journal(journal, some_changes(21, 30), [A0, B0])
    update_history(None, journal, out, form="delta")
    expected = all_rows(table_of(journal, tmp_path))
    assert {name: rows(out, name) for name in expected} == {name: undated(each) for name, each in expected.items()}


def test_other_writers_of_the_log_are_respected(tmp_path: Path) -> None:
    """Rows that another program adds stay, and files that it compacts are replaced by theirs; a transaction number is used once."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out, form="delta")
    copied = DeltaTable(out / A).to_pyarrow_table().slice(0, 1)
    foreign = copied.set_column(0, "revision", pa.array([1_000_000], pa.int64()))
    write_deltalake(out / A, foreign, mode="append")
    DeltaTable(out / A).optimize.compact()
    before = revisions(out, A)
    write_journal(journal, some_changes(21, 40), [A0, B0])
    update_history(None, journal, out)
    assert set(before) < set(revisions(out, A))
    assert len(set(revisions(out, A))) == len(revisions(out, A))
    write_journal(journal, some_changes(41, 60, A1), [A0, A1, B0])
    update_history(None, journal, out)  # its columns are others now
    assert 1_000_000 in revisions(out, A)
    assert len(set(revisions(out, A))) == len(revisions(out, A))
    version = DeltaTable(out / A).version()
    delta.DeltaLog(out / A).add(table.current_files(out / A), 60)
    assert DeltaTable(out / A).version() == version


def append_row(out: Path, revision: int) -> None:
    """Append a row as another program does, of the columns that the table has."""
    one = DeltaTable(out / A).to_pyarrow_table().slice(0, 1)
    write_deltalake(out / A, one.set_column(0, "revision", pa.array([revision], pa.int64())), mode="append")


def test_a_row_that_comes_while_columns_change_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program appends after the older files were read: the run ends with an error, and the next one keeps the row."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out, form="delta")
    write_journal(journal, some_changes(21, 40, A1), [A0, A1, B0])
    commit = table.Table.commit

    def late(self: table.Table, *arguments: Any, **options: Any) -> None:
        append_row(out, 1_000_000)
        commit(self, *arguments, **options)

    monkeypatch.setattr(table.Table, "commit", late)
    with pytest.raises(OtherFilesError):
        update_history(None, journal, out)
    monkeypatch.undo()
    assert 1_000_000 in revisions(out, A)
    update_history(None, journal, out)
    expected = [row["revision"] for row in all_rows(table_of(journal, tmp_path))[A]]
    assert revisions(out, A) == [*expected, 1_000_000]


def test_two_writers_at_the_same_time_lose_and_double_nothing(tmp_path: Path) -> None:
    """While history goes on round by round, another thread appends and compacts. An error is one to try again, and each row is there once."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out, form="delta")
    done = threading.Event()
    appended: list[int] = []

    def other() -> None:
        while not done.is_set() or len(appended) < 3:
            revision = 1_000_000 + len(appended)
            try:
                append_row(out, revision)
                appended.append(revision)
                DeltaTable(out / A).optimize.compact()
            except DeltaError:
                continue  # it lost a race, and nothing was written

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(other)
        try:
            for last in range(40, 200, 20):
                minor = A0 if last < 120 else A1
                write_journal(journal, some_changes(last - 19, last, minor), [A0, A1, B0])
                while True:
                    try:
                        update_history(None, journal, out)
                    except PipelineError:
                        continue
                    break
        finally:
            done.set()
        writer.result()
    expected = all_rows(table_of(journal, tmp_path))
    assert revisions(out, A) == [row["revision"] for row in expected[A]] + appended
    assert rows(out, B) == undated(expected[B])


def test_two_histories_of_one_table_exclude_each_other(tmp_path: Path) -> None:
    """A second process that writes the table is refused, and the first one is not harmed."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    with table.Table(out), pytest.raises(PipelineError):
        update_history(None, journal, out, form="delta")
    update_history(None, journal, out, form="delta")
    assert revisions(out, A) == [row["revision"] for row in all_rows(table_of(journal, tmp_path))[A]]


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """The folder and the cause are named."""
    journal, out = tmp_path / "journal", tmp_path / "out"
    write_journal(journal, some_changes(1, 20), [A0, B0])
    update_history(None, journal, out, form="delta")
    for path in (out / A / "_delta_log").iterdir():
        path.write_text("{")
    write_journal(journal, some_changes(21, 40), [A0, B0])
    with pytest.raises(PipelineError, match="Delta log"):
        update_history(None, journal, out)
