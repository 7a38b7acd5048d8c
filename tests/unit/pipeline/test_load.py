"""Tables to load: their files, the SENDs of their rows, and the rows that are reported as invalid."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from maxam.avro.registry import load_registry
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.jobs.load import ROW_BITS, _encode_file, find_table
from maxam.pipeline.main import main
from maxam.pipeline.publish.bodies import BodyEncoder
from tests.support.errors import code_in

TEXTS = {
    "registry.toml": b"""
        [[rule]]
        destination = "X/n.*"
        schema = "t.N_v1"
        encoding = "datum"
        [[rule]]
        destination = "X/raw.*"
        encoding = "none"
        """,
    "t/N_v1/1.0.avsc": b'{"type":"record","name":"N_v1","namespace":"t","fields":[{"name":"a","type":"int"}]}',
}


def rows_of(path: Path, order: str | None = None, encoder: BodyEncoder | None = None) -> list[dict[str, Any]]:
    """Return the rows of a file as they are to be published."""
    found = [row for batch in _encode_file(1, str(path), order, encoder) for row in batch.to_pylist()]
    return [{name: row[name] for name in ("row", "destination", "body", "result")} for row in found]


@pytest.fixture
def encoder() -> BodyEncoder:
    """Know one type, and destinations without schema."""
    return BodyEncoder(load_registry(TEXTS))


def row(number: int, destination: str | None, body: bytes | None, result: str | None = None) -> dict[str, Any]:
    """Make what `rows_of` gives."""
    return {"row": number, "destination": destination, "body": body, "result": result}


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, encoder: BodyEncoder) -> None:
    """Parquet with structs and bytes, CSV with JSON and base64, and JSON lines have the same values in their own ways."""
    pq.write_table(
        pa.Table.from_pylist(
            [
                {"destination": "X/n.1", "value": {"a": 1}, "body": None, "other": 1},
                {"destination": "X/raw.1", "value": None, "body": b"\0", "other": 1},
            ]
        ),
        tmp_path / "t.parquet",
    )
    (tmp_path / "t.csv").write_text('destination,value,body\nX/n.1,"{""a"": 1}",\nX/raw.1,,AA==\n')
    (tmp_path / "t.jsonl").write_text(
        '{"destination": "X/n.1", "value": {"a": 1}, "revision": 9}\n{"destination": "X/raw.1", "body": "AA=="}\n'
    )
    expected = [row(1, "X/n.1", b"\x02"), row(2, "X/raw.1", b"\0")]
    for name in ("t.parquet", "t.csv", "t.jsonl"):
        assert rows_of(tmp_path / name, encoder=encoder) == expected, name


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("nonsense", "unreadable"),
        ("[]", "unreadable"),
        ("", "unreadable"),
        ('{"value": 1}', "no-destination"),
        ('{"destination": "X/n.1"}', "no-value"),
        ('{"destination": "X/n.1", "value": {"a": 1}, "body": "AA=="}', "value-and-body"),
        ('{"destination": "X/n.1", "value": "{"}', "bad-json"),
        ('{"destination": "X/n.1", "value": {"a": "1"}}', "schema-mismatch"),
        ('{"destination": "X/n.1", "body": "AAAA"}', "schema-mismatch"),
        ('{"destination": "X/n.1", "body": "?"}', "bad-base64"),
        ('{"destination": "X/n.1", "body": 1}', "bad-body"),
        ('{"destination": "X/other", "body": "AA=="}', "no-rule"),
        ('{"destination": "X/raw.1", "value": 1}', "not-encodable"),
    ],
)
def test_a_bad_row_is_told_and_the_next_is_read(tmp_path: Path, encoder: BodyEncoder, line: str, result: str) -> None:
    """Each fault of a row has its own code, and does not concern the row after it."""
    path = tmp_path / "t.jsonl"
    path.write_text(line + '\n{"destination": "X/raw.1", "body": "AA=="}\n')
    bad, good = rows_of(path, encoder=encoder)
    assert (bad["row"], bad["body"], bad["result"]) == (1, None, result)
    assert good == row(2, "X/raw.1", b"\0")


def test_files_that_break_off_are_told(tmp_path: Path) -> None:
    """A CSV row of too few fields, text that is not UTF-8, and a Parquet file that is none are invalid rows. The load goes on."""
    (tmp_path / "t.csv").write_bytes(b"destination,body\nX/a\nX/b,AA==\nX/c,\xff\n")
    found = rows_of(tmp_path / "t.csv")
    assert [one["result"] for one in found] in (["unreadable", None, "unreadable"], ["unreadable"])
    (tmp_path / "t.parquet").write_bytes(b"no parquet")
    assert [one["result"] for one in rows_of(tmp_path / "t.parquet")] == ["unreadable"]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        ("5", 5),
        ("2026-11-21T00:00:00Z", 1_795_219_200_000_000),
        ("2026-11-21T00:00:00", None),
        (-1, None),
        (None, None),
        (True, None),
    ],
)
def test_an_order_column_gives_the_numbers(tmp_path: Path, value: object, number: int | None) -> None:
    """Whole numbers are taken as they are, moments as microseconds; anything else is a bad row."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"destination": "X/a", "body": "AA==", "at": value}))
    [batch] = _encode_file(0, str(path), "at", None)
    [one] = batch.to_pylist()
    assert (one["source_revision"], one["result"]) == (number, None if number is not None else "bad-order")


def test_rows_are_numbered_by_file_and_place(tmp_path: Path) -> None:
    """Without an order column a row's number is that of its file and its place in it: it never depends on how it is read."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"destination": "X/a", "body": "AA=="}\n' * 3)
    [batch] = _encode_file(2, str(path), None, None)
    assert batch.column("source_revision").to_pylist() == [(2 << ROW_BITS) + place for place in (1, 2, 3)]


def test_a_table_is_its_files_in_order_of_names(tmp_path: Path) -> None:
    """A folder's table files count, hidden ones and marks do not; the source's name follows from contents, not from place or time."""
    contents: Mapping[str, str] = {"b.csv": "b", "a/z.jsonl": "z", "_SUCCESS": "", ".x.csv": "x", "readme.txt": "t"}
    sources = set()
    for place in ("one", "two"):
        folder = tmp_path / place
        for name, text in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        table = find_table(folder)
        assert [Path(file).name for file in table.files] == ["z.jsonl", "b.csv"]
        sources.add(table.source)
    assert len(sources) == 1
    (tmp_path / "two" / "b.csv").write_text("c")
    assert find_table(tmp_path / "two").source not in sources


def test_what_is_no_table_is_told(tmp_path: Path) -> None:
    """A missing folder, an empty one and an unknown suffix are distinguished."""
    (tmp_path / "t.xls").write_text("")
    with pytest.raises(PipelineError, match=r"\.parquet"):
        find_table(tmp_path / "t.xls")
    with pytest.raises(PipelineError):
        find_table(tmp_path)
    with pytest.raises(PipelineError, match="no such file"):
        find_table(tmp_path / "gone")


def test_what_the_command_needs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without schemas there is nothing to check by, and without certificates no principal to load as: both are reported at once."""
    for name in ("MAXAM_CERTIFICATE", "MAXAM_KEY", "MAXAM_CA", "MAXAM_STOMP"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "t.jsonl"
    path.write_text("{}\n")
    run = CliRunner().invoke(main, ["load", str(path), "--check"])
    assert run.exit_code == 2
    assert "--schemas" in run.output.replace("\n", "") or "schema folder" in run.output
    run = CliRunner().invoke(main, ["load", str(path)])
    assert (run.exit_code, code_in(run.stderr)) == (2, "usage")
    run = CliRunner().invoke(main, ["load", str(path), "--gateway", "here"])
    assert (run.exit_code, "--server must be HOST:PORT" in run.output) == (2, True)
