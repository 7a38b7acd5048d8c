"""`--watch`: a listing shown again and again, in place on a terminal, one after the other elsewhere."""

import io
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Final, final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from maxam.errors import MaxamError
from maxam.terminal.groups import error_line
from maxam.terminal.moments import Duration
from maxam.terminal.tables import console

INTERVAL_S: Final = 2.0
INTERVAL_MIN_S: Final = 0.2  # what a person can read, and what costs the gateway nothing to speak of
INTERVAL_MAX_S: Final = 3600.0


def watch_option(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--watch` and `--interval`."""

    @click.option("-w", "--watch", is_flag=True, help="Repeat the listing until Ctrl-C.")
    @click.option(
        "--interval",
        type=Duration(timedelta(seconds=INTERVAL_MIN_S), timedelta(seconds=INTERVAL_MAX_S), bare="s"),
        help=f"Time between two listings with --watch. [default: {INTERVAL_S:.0f}s]",
    )
    @wraps(verb)
    def run(*args: object, watch: bool, interval: timedelta | None, **kwargs: object) -> None:
        if watch:
            repeat(
                lambda: verb(*args, **kwargs),
                INTERVAL_S if interval is None else interval.total_seconds(),
                parsed=bool(kwargs.get("as_json")),
            )
        elif interval is not None:
            raise click.UsageError("--interval goes with --watch")
        else:
            verb(*args, **kwargs)

    return run


def repeat(verb: Callable[[], None], interval_s: float, *, parsed: bool) -> None:
    """Run a command until Ctrl-C, every `interval_s` seconds. On a terminal each output takes the place of the last.

    Elsewhere a line with the time precedes each output, unless a program reads it (`parsed`).
    An error is shown like any other outcome, and the command goes on: a gateway may be restarting.
    """
    command = click.get_current_context().command_path
    terminal = console()
    try:
        if not terminal.is_terminal:
            while True:
                if not parsed:
                    click.echo(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {command}")
                error = _run(verb)
                if error:
                    click.echo(error, err=True)
                time.sleep(interval_s)
        with Live(
            console=terminal, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while True:
                page = _Page()
                with redirect_stdout(page), redirect_stderr(page):
                    error = _run(verb)
                head = f"{command}, every {interval_s:g} s; {datetime.now(UTC):%H:%M:%S} UTC; Ctrl-C ends"
                live.update(_screen(head, error, page.getvalue()), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:
        pass


def _run(verb: Callable[[], None]) -> str:
    """Run it once; return the line of its error, or an empty text."""
    try:
        verb()
    except MaxamError as error:
        return error_line(error)
    except SystemExit:
        pass  # its output has the outcome
    return ""


def _screen(head: str, error: str, page: str) -> RenderableType:
    parts = [Text(head, style="dim", no_wrap=True, overflow="ellipsis")]
    if error:
        parts.append(Text(error, style="bold"))
    text = Text.from_ansi(page)
    text.no_wrap = True
    text.overflow = "crop"
    return Group(*parts, Text(""), text)


@final
class _Page(io.StringIO):
    """Collects the output of a command, laid out for a terminal."""

    def isatty(self) -> bool:
        return True
