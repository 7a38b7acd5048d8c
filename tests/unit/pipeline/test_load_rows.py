"""Rows of files to load: an unusable row is reported by itself, and a file of large bodies does not fill the memory."""

import json
from base64 import b64encode
from pathlib import Path

import pytest

from maxam.pipeline.jobs import load


def rows(path: Path, order: str | None = None) -> list[tuple[str | None, str | None]]:
    """Return destination and result of the rows of a file."""
    batches = list(load._encode_file(0, str(path), order, None))
    return [(row["destination"], row["result"]) for batch in batches for row in batch.to_pylist()]


def test_no_row_stops_the_others(tmp_path: Path) -> None:
    """JSON that is nested too deep for this process, and half a character in a destination, are reported for their own rows."""
    path = tmp_path / "rows.jsonl"
    deep = "[" * 100_000 + "]" * 100_000
    lines = [f'{{"destination": "X/1", "value": {deep}}}', '{"destination": "X/\\ud800", "body": "YQ=="}']
    path.write_text("\n".join([*lines, '{"destination": "X/2", "body": "YQ=="}']))
    assert rows(path) == [(None, "unreadable"), (None, "bad-destination"), ("X/2", None)]


def test_an_order_that_is_none_is_shown_in_few_words(tmp_path: Path) -> None:
    """However long what stands in the column of the order is, the reason is a line."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"destination": "X/1", "body": "YQ==", "at": "\ud800" * 10_000}))
    [batch] = load._encode_file(0, str(path), "at", None)
    [row] = batch.to_pylist()
    assert row["result"] == "bad-order"
    assert len(row["reason"]) < 300


@pytest.mark.slow
def test_large_bodies_go_in_small_batches(tmp_path: Path) -> None:
    """A batch holds at most its limit of bytes of bodies and one row."""
    path = tmp_path / "rows.jsonl"
    body = b64encode(bytes(load.BATCH_BYTES_MAX // 3)).decode()
    path.write_text("".join(json.dumps({"destination": f"X/{n}", "body": body}) + "\n" for n in range(10)))
    batches = list(load._encode_file(0, str(path), None, None))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
