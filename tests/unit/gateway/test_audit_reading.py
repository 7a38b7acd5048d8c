"""Lines of the audit log are read from any place, over all its files."""

from pathlib import Path

import pytest

from maxam.audit_chain import file_name, write_line
from maxam.gateway import audit_reading
from maxam.gateway.audit_reading import read_lines, sequence_before

FIRST, LAST = 5, 24  # the lines before were rotated away


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An audit log of four files, with half a line at its end and a file of another program."""
    for begin in range(FIRST, LAST + 1, 5):
        lines = [
            write_line(at, "0" * 64, {"at": f"2026-01-{at:02}", "event": str(at % 3)}) for at in range(begin, begin + 5)
        ]
        (tmp_path / file_name(begin)).write_bytes(b"".join(line + b"\n" for line in lines))
    with (tmp_path / file_name(20)).open("ab") as file:
        file.write(b'{"sequence":25,')
    (tmp_path / "lock").touch()
    return tmp_path


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("searched", [1, 4, 100])
def test_pages_have_each_line_once(folder: Path, monkeypatch: pytest.MonkeyPatch, most: int, searched: int) -> None:
    """From each place on, page by page, in order, each wanted line is there once, however small the pages are."""
    monkeypatch.setattr(audit_reading, "SEARCHED_MAX", searched)
    for begin in range(LAST + 2):
        after, more, found = begin, True, []
        while more:
            lines, after, more = read_lines(folder, after, most, lambda line: line["event"] == "1")
            found += [line["sequence"] for line in lines]
        assert found == [at for at in range(max(FIRST, begin + 1), LAST + 1) if at % 3 == 1]
        assert after == max(begin, LAST)


def test_a_time_finds_its_file(folder: Path) -> None:
    """No line since a time is at or before the place that is found, and at most one file of earlier ones follows it."""
    for at in range(LAST + 2):
        before = sequence_before(folder, f"2026-01-{at:02}")
        assert before < max(at, FIRST)
        assert at - before <= 5 + 5 or before == 0


def test_without_a_log_there_is_nothing(tmp_path: Path) -> None:
    """Neither a folder that is missing nor an empty one is an error."""
    for folder in (tmp_path, tmp_path / "none"):
        assert read_lines(folder, 7, 10, lambda _line: True) == ([], 7, False)
        assert sequence_before(folder, "2026") == 0
