"""`--watch`: what is shown again, in place on a terminal and one after the other in a pipe, and how it ends."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from maxam.cli.options import json_option
from maxam.cli.repeating import watch_option
from maxam.errors import ConfigurationError
from maxam.terminal.groups import CommandGroup as Group
from maxam.terminal.tables import print_json, print_table
from tests.support.patience import PATIENCE_S

# A command that shows the text of a file in a table of one cell. Without a file it is an error. The text "bad" gives code 1.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.unit.cli.test_repeating import main
main()
"""


@click.group(cls=Group)
def main() -> None:
    """Stand in for a family of commands."""


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
@watch_option
def look(path: Path, as_json: bool) -> None:
    """Show what a file holds."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(f"{path.name} cannot be read") from error
    if as_json:
        print_json({"held": text})
    else:
        print_table(["HELD"], [[text]])
    if text == "bad":
        sys.exit(1)


@contextmanager
def started(path: Path, out: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with --watch, and end it as Ctrl-C does."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "look", str(path), "--watch", "--interval", "0.2", *options],
        stdout=out,
        stderr=out,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "60", "LINES": "20"},
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def read_until(file: int, *texts: str) -> str:
    """Read until all of these have come."""
    read = b""
    while not all(text.encode() in read for text in texts):
        more = os.read(file, 65_536)
        assert more, read
        read += more
    return read.decode(errors="replace")


@pytest.mark.slow
def test_a_terminal_shows_it_in_place(tmp_path: Path) -> None:
    """Each time replaces the last. A failure is shown, and it goes on. Ctrl-C ends it with 0 and gives the screen back."""
    path = tmp_path / "held"
    path.write_text("first")
    ours, theirs = pty.openpty()
    with started(path, theirs):
        shown = read_until(ours, "first")
        assert "\x1b[?1049h" in shown  # the other screen
        assert "every 0.2 s" in shown
        assert "HELD" in shown
        path.unlink()
        read_until(ours, "held cannot be read")
        path.write_text("bad")
        assert "HELD" in read_until(ours, "bad")
        path.write_text("last")
        read_until(ours, "last")
    os.close(theirs)
    read_until(ours, "\x1b[?1049l")
    os.close(ours)


@pytest.mark.slow
def test_a_pipe_gets_one_after_the_other(tmp_path: Path) -> None:
    """No escape sequence, each time as without --watch, after a line with the time; failures are reported there too."""
    path = tmp_path / "held"
    path.write_text("first")
    ours, theirs = os.pipe()
    with started(path, theirs):
        os.close(theirs)
        shown = read_until(ours, "HELD", "first\n--- ")
        head = r"--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \S+ look"
        assert re.match(rf"{head}\nHELD\n─+\nfirst\n--- ", shown)
        path.write_text("second")
        shown = read_until(ours, "second")
        assert "\x1b" not in shown
        assert "every" not in shown
        path.unlink()
        read_until(ours, "Error [configuration-invalid]: held cannot be read\n---")
    os.close(ours)


def test_json_in_a_pipe_is_nothing_else(tmp_path: Path) -> None:
    """The output for programs stays an object a line, however often."""
    path = tmp_path / "held"
    path.write_text("first")
    ours, theirs = os.pipe()
    with started(path, theirs, "--json"):
        os.close(theirs)
        shown = read_until(ours, '"first"}\n{"held"')
        assert json.loads(shown.splitlines()[0]) == {"held": "first"}
    os.close(ours)


@pytest.mark.parametrize("interval", ["0.1", "3601", "x"])
def test_an_interval_out_of_range_is_refused(interval: str) -> None:
    """Usage errors have exit code 2."""
    assert CliRunner().invoke(main, ["look", "x", "--watch", "--interval", interval]).exit_code == 2


def test_an_interval_alone_is_refused() -> None:
    """It would change nothing."""
    result = CliRunner().invoke(main, ["look", "x", "--interval", "3"])
    assert result.exit_code == 2
    assert "--interval goes with --watch" in result.stderr
