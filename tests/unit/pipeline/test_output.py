"""Rows as JSON lines and CSV, and files that appear when they are whole."""

import errno
import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.job import explained
from maxam.pipeline.jobs.output import _short, _write_all, csv_lines, json_lines, replacing

MOMENT = datetime(2026, 11, 21, 18, 30, 0, 5, UTC)
COLUMNS = {
    "number": pa.array([1, None], pa.int64()),
    "text": pa.array(['a "b", ü\n', None], pa.string()),
    "at": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
    "day": pa.array([date(2026, 11, 21), None]),
    "body": pa.array([b"\x00\xff", None], pa.binary()),
    "real": pa.array([float("nan"), 0.5], pa.float64()),
    "amount": pa.array([Decimal("1.20"), None], pa.decimal128(6, 2)),
    "flag": pa.array([True, None], pa.bool_()),
    "list": pa.array(
        [[{"name": "a", "at": MOMENT}], None],
        pa.list_(pa.struct([("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])),
    ),
    "value": pa.array(['{"a": [1, null]}', None], pa.string()),
    "gone": pa.array([None, None], pa.string()),
}
BATCH = pa.RecordBatch.from_pydict(COLUMNS)
MARKED = tuple((name, name == "value", name in ("value", "gone")) for name in COLUMNS)


def test_json_lines_are_json() -> None:
    """Each row is one line of ASCII. Times are UTC with Z, bytes base64, decimals text, JSON text a value. Optional nulls are left out."""
    lines = json_lines(BATCH, MARKED)
    assert lines.isascii()
    first, second = [json.loads(line) for line in lines.decode().splitlines()]
    assert first == {
        "number": 1,
        "text": 'a "b", ü\n',
        "at": "2026-11-21T18:30:00.000005Z",
        "day": "2026-11-21",
        "body": "AP8=",
        "real": "NaN",
        "amount": "1.20",
        "flag": True,
        "list": [{"name": "a", "at": "2026-11-21T18:30:00.000005Z"}],
        "value": {"a": [1, None]},
    }
    nulls = dict.fromkeys(["number", "text", "at", "day", "body", "amount", "flag", "list"])
    assert second == {**nulls, "real": 0.5}


def test_csv_has_json_for_what_is_nested() -> None:
    """A row of CSV has lists and records as JSON, and nothing for null."""
    import csv

    first, second = list(csv.reader(csv_lines(BATCH, MARKED).decode().splitlines(keepends=True)))
    assert first == [
        *["1", 'a "b", ü\n', "2026-11-21T18:30:00.000005Z", "2026-11-21", "AP8=", "NaN", "1.20", "true"],
        *['[{"name": "a", "at": "2026-11-21T18:30:00.000005Z"}]', '{"a": [1, null]}', ""],
    ]
    assert second == ["", "", "", "", "", "0.5", "", "", "", "", ""]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """A failure leaves the file that was there, and nothing beside it."""
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"new", "text"])  # type: ignore[list-item]  # fails halfway
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("out.json", b"old")]
    with replacing(path) as file:
        file.write(b"new")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("out.json", b"new")]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Neither a folder nor a path through a missing one can be written, and the error reports it."""
    with pytest.raises(PipelineError, match="is a folder"), replacing(tmp_path):
        pass
    with (
        pytest.raises(PipelineError, match="nowhere/x .*" + os.strerror(errno.ENOENT)),
        replacing(tmp_path / "nowhere" / "x"),
    ):
        pass


def test_everything_is_written_to_an_unbuffered_file() -> None:
    """A file that takes only a part of what it is given is given the rest."""
    import io

    class Slow(io.RawIOBase):
        taken = b""

        def write(self, data: Any) -> int:
            self.taken += bytes(data[:3])
            return min(3, len(data))

    file = Slow()
    _write_all(cast("BinaryIO", file), b"0123456789")
    assert file.taken == b"0123456789"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Exception"),
        ("[PATH_NOT_FOUND] Path does not exist.\nmore", "[PATH_NOT_FOUND] Path does not exist."),
        (
            "An error occurred while calling o1.count.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(C)\n"
            "Caused by: java.io.IOException: No space left on device\n\tat d.e(F)",
            "No space left on device",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File x\n"
            "maxam.pipeline.errors.PipelineError: segment 5 is gone\n\n\tat org.apache",
            "segment 5 is gone",
        ),
        ("x\nTraceback (most recent call last):\n  File x\nValueError: boom", "ValueError: boom"),
    ],
)
def test_an_error_of_sparks_is_told_in_one_line(text: str, says: str) -> None:
    """Of Spark's error texts the line with the cause is shown."""
    assert explained(Exception(text)) == says


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (0.002417123, "0.00242"),
        (973.611727, "973.612"),
        (3600.0, "3600"),
        (0.0, "0"),
        (-1.5, "-1.5"),
        (86_399.9999999, "86400"),
        (1e-9, "1e-09"),
        (0.5, "0.5"),
    ],
)
def test_figures_of_a_table_have_the_digits_that_people_read(figure: float, text: str) -> None:
    """Three digits after the point, or three significant ones below one. Whole numbers have no point. The rest is unchanged."""
    assert _short(figure) == text
    assert [_short(1200), _short("2.50"), _short(None)] == [1200, "2.50", None]
