"""Log lines: one event is one line, whatever a peer put into it."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from maxam.gateway.log import LogLimit, clean, log_bug, log_event, set_log_format, start_logging


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        (7, "7"),
        ("", '""'),
        ("two words", '"two words"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a=b", '"a=b"'),
        ("line\nbreak", '"line\\u000abreak"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("\u202eabc", '"\\u202eabc"'),
        ("a\u2028b", '"a\\u2028b"'),
        (b"\xff", "\ufffd"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)
def test_values_cannot_forge_a_line(value: object, shown: str) -> None:
    """Control, separator and bidirectional characters are escaped, quotes too, and long values are cut."""
    assert clean(value) == shown


def test_an_event_is_its_name_and_its_values(caplog: pytest.LogCaptureFixture) -> None:
    """Values follow the event in order; those that are None are left out."""
    caplog.set_level(logging.INFO)
    log_event(logging.INFO, "event", one=1, none=None, two="a b")
    assert caplog.messages == ['event one=1 two="a b"']


def test_lines_are_limited_per_address_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    """After N lines within a minute the rest of one address is only counted; others are not touched."""
    limit = LogLimit(2)
    assert [limit.admit("e", "a", 100.0) for _ in range(4)] == [True, True, False, False]
    assert limit.admit("e", "b", 100.0)
    assert limit.admit("e", "a", 161.0)
    assert caplog.messages == ["log-lines-held-back count=2"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Start logging into a file in place of standard error; logging is as it was afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    path = tmp_path / "stderr"
    path.touch()
    with path.open("w") as file:

        def started() -> Path:
            monkeypatch.setattr(sys, "stderr", file)  # in the test: pytest has its own before
            start_logging()
            return path

        yield started
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("maxam").setLevel(logging.NOTSET)


def test_the_journal_of_systemd_gets_priorities(
    start: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line, those of a traceback too, begins with the priority of its level."""
    status = (tmp_path / "stderr").stat()
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    path = start()
    log_event(logging.INFO, "started")
    log_event(logging.WARNING, "disk-low")
    log_bug("internal-error", ValueError("a bug"))
    first, second, *rest = path.read_text().splitlines()
    assert first.startswith("<6>")
    assert second.startswith("<4>")
    assert len(rest) > 1
    assert all(line.startswith("<3>") for line in rest)


@pytest.mark.parametrize("stream", ["", "1:2"])
def test_another_standard_error_gets_no_priorities(
    start: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """With another file as systemd's journal, if this file is not it."""
    monkeypatch.setenv("JOURNAL_STREAM", stream)
    path = start()
    log_event(logging.ERROR, "disk-full")
    [line] = path.read_text().splitlines()
    assert not line.startswith("<")


def test_a_library_that_repeats_itself_is_held_back(start: Callable[[], Path]) -> None:
    """An error of the system has no traceback, and after some lines a minute a library is silent; our own lines are not counted."""
    path = start()
    library = logging.getLogger("trio.serve_listeners")
    for _ in range(100):
        library.error("accept returned EMFILE", exc_info=OSError(24, os.strerror(24)))
    log_event(logging.INFO, "still-here")
    found = path.read_text().splitlines()
    assert len(found) < 20
    assert not [line for line in found if "Errno" in line]
    assert found[-1].endswith("still-here")


def test_a_json_line_is_one_object(start: Callable[[], Path]) -> None:
    """Event, level and values are fields, numbers stay numbers, and nothing in a value or traceback begins a line."""
    path = start()
    set_log_format("json")
    log_event(logging.WARNING, "event", one=1, half=0.5, none=None, two="a\nb\x7f\u202e", raw=b"\xff", long="x" * 300)
    log_event(logging.ERROR, "failed", error=OSError("no room"))
    log_bug("internal-error", ValueError("a\nb"))
    logging.getLogger("other").warning("its\ntext")
    set_log_format("text")
    log_event(logging.INFO, "plain", one=1)
    *lines, last = path.read_text(encoding="utf-8").splitlines()
    first, second, bug, library = map(json.loads, lines)
    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "warning",
        "event": "event",
        "one": 1,
        "half": 0.5,
        "two": "a\nb\x7f\u202e",
        "raw": "\ufffd",
        "long": "x" * 200 + "…",
    }
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert second["error"] == "no room"
    assert second["error_code"]
    assert "ValueError" in bug["traceback"]
    assert (library["event"], library["name"], library["text"]) == ("library", "other", "its\ntext")
    assert last.endswith("info plain one=1")
