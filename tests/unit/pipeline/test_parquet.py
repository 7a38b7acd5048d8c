"""Spliced rows in files: each once, whatever files are closed for others meanwhile."""

import errno
import json
import os
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from maxam.content import long, text
from maxam.journal.splice import Rows
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history import parquet
from maxam.pipeline.history.arrays import UnfitError
from maxam.pipeline.history.columns import ColumnType
from maxam.pipeline.history.parquet import DAY_US, Files

SCHEMA = json.dumps({"type": "record", "name": "t.A_v1", "fields": [{"name": "a", "type": ["null", "long"]}]})


def put(rows: Rows, revision: int, day: int, datum: bytes | None) -> None:
    """Add a row, a deletion without a datum."""
    kind = b"\4" if datum is None else b"\2"
    head = long(revision) + long(day * DAY_US + revision) + kind + text(b"X/a") + text(b"p")
    rows.parts().extend((head, text(b"1.0") + (b"\0" if datum is None else b"\2"), datum or b""))


@pytest.mark.parametrize(("open_max", "file_bytes"), [(64, 1 << 27), (1, 1 << 27), (64, 1)])
def test_each_row_is_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_max: int, file_bytes: int
) -> None:
    """Of two types and days that take turns, deletions among them, with few files open, and with files of few rows."""
    monkeypatch.setattr(parquet, "_OPEN_MAX", open_max)
    monkeypatch.setattr(parquet, "_FILE_BYTES", file_bytes)
    column = ColumnType([("1.0", SCHEMA)])
    files = Files(tmp_path / "files")
    types = ["t.A_v1", "t.B_v1"]
    rows = [files.add(name, name, Rows(True), column, column.minors[0].root) for name in types]
    for revision in range(1, 101):
        put(rows[revision % 2], revision, 20_000 + revision % 3, None if revision % 5 == 0 else b"\2" + long(revision))
        if revision % 10 == 0:
            files.write(everything=True)
    written = files.finish()
    assert (len(written) == 6) == (open_max > 1 and file_bytes > 1)
    seen = {}
    for file in written:
        found = pq.read_table(file.path).to_pylist()
        revisions = [row["revision"] for row in found]
        assert (file.rows, file.first, file.last) == (len(found), min(revisions), max(revisions))
        for row in found:
            assert row["revision"] not in seen
            seen[row["revision"]] = file.name, file.date, row["kind"], row["value"]
    dates = ["2024-10-04", "2024-10-05", "2024-10-06"]
    for revision in range(1, 101):
        gone = revision % 5 == 0
        expected = (
            types[revision % 2],
            dates[revision % 3],
            *(("delete", None) if gone else ("value", {"a": revision})),
        )
        assert seen[revision] == expected


def test_rows_that_are_not_of_their_schema_are_refused(tmp_path: Path) -> None:
    """With a byte more, and with one less."""
    column = ColumnType([("1.0", SCHEMA)])
    for datum in (b"\2\2\2", b"\2", b"\4"):
        files = Files(tmp_path / "files")
        rows = files.add("a", "t.A_v1", Rows(True), column, column.minors[0].root)
        put(rows, 1, 20_000, b"\0")
        put(rows, 2, 20_000, datum)
        with pytest.raises(UnfitError):
            files.finish()
        files.close()


@pytest.mark.parametrize("fails", ["write_batch", "close"])
def test_a_disk_without_room_is_reported_with_folder_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The error shows the folder, whatever pyarrow puts around the cause; closing the file afterwards does not hide it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28]")

    column = ColumnType([("1.0", SCHEMA)])
    files = Files(tmp_path / "files")
    rows = files.add("a", "t.A_v1", Rows(True), column, column.minors[0].root)
    put(rows, 1, 20_000, b"\2\2")
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, fails, full)
        with pytest.raises(PipelineError) as error, closing(files):
            files.finish()
    assert str(error.value).startswith(f"{tmp_path / 'files'}: {os.strerror(errno.ENOSPC)}. Free space")
