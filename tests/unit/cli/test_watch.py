"""The live table stays within its terminal, and values are decoded after the gateway's registry has changed too."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from rich.console import Console

from maxam.cli.screens import watch
from maxam.cli.screens.watch import Update, _Display, _Watcher
from maxam.client import ClientError, Message, ResumingClient
from maxam.https_client import Remote


def update(destination: str, revision: int, value: str) -> Update:
    """Return an update."""
    return Update(
        destination, revision, "2026-01-02T03:04:05.678Z", "value", "", False, "t.T_v1 1.0", {"text": value}, ""
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_its_terminal(width: int) -> None:
    """Each topic takes one line of the width given, the newest first, and long or hostile text is cut or escaped."""
    display = _Display("table")
    for number in range(10):
        display.put(update(f"X/{'long' * 50}.{number}", 10**number, "v" * 500))
    display.put(update("X/A", 7, "\x1b[2J[bold]"))
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(display.table(5, width))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 + 5 + 1
    assert all(len(line) <= width and line.isprintable() for line in lines)
    assert lines[2].split()[:3] == ["X/A", "7", "03:04:05.678"]
    assert r'{"text":"\u001b[2J' in lines[2] or width < 200
    assert lines[-1].strip().startswith("updates: 11, topics: 11; --full ")


def test_a_table_with_room_for_all_says_nothing_of_more() -> None:
    """Only columns that are cut are reported."""
    display = _Display("table")
    display.put(update("X/A", 7, "v" * 30))
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(display.table(5, 100))
    assert out.getvalue().splitlines()[-1].strip() == "updates: 1, topics: 1; Ctrl-C ends"


def test_what_became_of_a_topic_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A delete, a topic that left and one that is overdue have no value. Their reasons stand in its place."""
    display = _Display("lines")
    for kind, reason in (
        ("delete", ""),
        ("delete", "expired"),
        ("left", "rights"),
        ("stale", "overdue"),
        ("fresh", ""),
    ):
        display.put(replace(update("X/A", 1, "v"), kind=kind, reason=reason))  # type: ignore[arg-type]
    shown = [line.split(" ", 2)[2] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["(deleted)", "(expired)", "(left: rights)", "(overdue)", '{"text":"v"}']


def test_a_lost_connection_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Attempts that fail for the same reason are one line on standard error. In the table the reason is below it meanwhile."""
    lines, table = _Display("lines"), _Display("table")
    client = SimpleNamespace(connections=1)
    for display in (lines, table):
        display.client = cast("ResumingClient", client)
        display.put(update("X/A", 1, "v"))
    for reason in ("refused", "refused", "closed"):
        lines.lost(ClientError(reason), 0.5)
        table.lost(ClientError(reason), 0.5)
    assert "closed" in shown_below(table)
    client.connections = 2
    assert shown_below(table) == "updates: 1, topics: 1; Ctrl-C ends"
    lines.lost(ClientError("closed"), 0.5)
    reported = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert reported == [f"{reason}; trying again" for reason in ("refused", "closed", "closed")]


def shown_below(display: _Display) -> str:
    """Return the caption of the table."""
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(display.table(5, 100))
    return out.getvalue().splitlines()[-1].strip()


def test_a_caption_stays_on_its_line() -> None:
    """However narrow the terminal and large the figures are."""
    display = _Display("table")
    display.put(update("X/A", 7, "v" * 500))
    display._count = 10**12
    out = io.StringIO()
    Console(file=out, width=45, color_system=None).print(display.table(5, 45))
    assert len(out.getvalue().splitlines()) == 2 + 1 + 1


def test_lines_are_cut_and_say_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A longer value ends in an ellipsis; standard error shows once how to see it whole, which is then printed to its end."""
    cut, whole = _Display("lines"), _Display("whole")
    for number in range(2):
        cut.put(update("X/A", number, "v" * 500))
    captured = capsys.readouterr()
    assert [len(line) for line in captured.out.splitlines()] == [len("0 X/A ") + 400] * 2
    assert (captured.err.count("\n"), "VALUE" in captured.err, "--full" in captured.err) == (1, True, True)
    whole.put(update("X/A", 1, "v" * 500))
    captured = capsys.readouterr()
    assert captured.out == f'1 X/A {{"text":"{"v" * 500}"}}\n'
    assert captured.err == ""


def test_a_title_wider_than_its_column_is_whole() -> None:
    """Where a long value takes all the room, a revision of one digit still has its title."""
    display = _Display("table")
    display.put(update("X/A", 7, "v" * 500))
    out = io.StringIO()
    Console(file=out, width=60, color_system=None).print(display.table(5, 60))
    assert out.getvalue().split()[:4] == ["DESTINATION", "REV", "RECEIVED", "VALUE"]


def test_the_table_remembers_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic that changed longest ago is forgotten first."""
    monkeypatch.setattr(watch, "TOPICS_MAX", 2)
    display = _Display("table")
    for name in ("X/A", "X/B", "X/A", "X/C"):
        display.put(update(name, 1, "v"))
    assert list(display._newest) == ["X/C", "X/A"]


class Registry:
    """Stands in for the admin API's schemas."""

    def __init__(self) -> None:
        self.field = "int"
        self.asked = 0

    def get(self, path: str) -> Any:
        """Return the listing."""
        assert path == "/v1/schemas"
        self.asked += 1
        keys = {"body": 1, "fingerprint": 2, "topic": 3, "tombstone": 4}
        rule: dict[str, Any] = {"destination": "X/**", "schema": "T_v1", "encoding": "datum", "require_version": False}
        rule["versions"] = ["1.0"]
        other = rule | {"destination": "Y/**", "schema": "Other_v1"}  # cannot match: its schema is not fetched
        types = {"T_v1": ["1.0"], "Other_v1": ["1.0"]}
        listing = {"envelope_keys": keys, "rules": [other, rule], "types": types, "compatibility": {}}
        return {"fingerprint": "SHA-256", **listing}

    def text(self, path: str) -> bytes:
        """Return the schema as it is now."""
        assert path == "/v1/schemas/T_v1/1.0"
        return json.dumps({"type": "record", "name": "T_v1", "fields": [{"name": "f", "type": self.field}]}).encode()


def message(body: bytes) -> Message:
    """Return what a message shows of itself."""
    kind = "value" if body else "delete"
    stand_in = SimpleNamespace(
        destination="X/A", message_id="7", body=body, kind=kind, reason="", deleted=not body, headers={}
    )
    return cast("Message", stand_in)


def test_a_value_that_does_not_fit_makes_it_ask_again() -> None:
    """After the gateway's registry has changed the new one is fetched, at most once in a while."""
    registry = Registry()

    async def test() -> None:
        watcher = _Watcher(cast("Remote", registry), "X/*")
        assert (await watcher.update(message(b"\x02"))).value == {"f": 1}
        registry.field = "string"
        shown = await watcher.update(message(b"\x06abc"))
        assert (shown.value, shown.problem, registry.asked) == ({"f": "abc"}, "", 2)
        for _ in range(3):
            shown = await watcher.update(message(b"\x06ab"))
            assert shown.value is None
            assert "T_v1 1.0" in shown.problem
        assert registry.asked == 2
        assert (await watcher.update(message(b""))).deleted

    clock = trio.testing.MockClock()
    clock.jump(1000)
    trio.run(test, clock=clock)
