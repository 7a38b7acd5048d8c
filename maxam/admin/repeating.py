"""`--watch`: a listing shown again and again, in place on a terminal, one after the other elsewhere."""

import io
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import wraps
from typing import Final, final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from maxam.admin.escaping import shown
from maxam.admin.output import console
from maxam.errors import MaxamError

INTERVAL_S: Final = 2.0
INTERVAL_MIN_S: Final = 0.2  # what a person can read, and what costs the gateway nothing to speak of
INTERVAL_MAX_S: Final = 3600.0


def watch_option(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb `--watch` and `--interval`."""

    @click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
    @click.option(
        "--interval",
        type=click.FloatRange(INTERVAL_MIN_S, INTERVAL_MAX_S),
        metavar="SECONDS",
        help=f"How often with --watch. [default: {INTERVAL_S:.0f}]",
    )
    @wraps(verb)
    def run(*args: object, watch: bool, interval: float | None, **kwargs: object) -> None:
        if watch:
            repeat(lambda: verb(*args, **kwargs), interval or INTERVAL_S, parsed=bool(kwargs.get("as_json")))
        elif interval is not None:
            raise click.UsageError("--interval goes with --watch")
        else:
            verb(*args, **kwargs)

    return run


def repeat(verb: Callable[[], None], interval_s: float, *, parsed: bool) -> None:
    """Run a verb until Ctrl-C, with `interval_s` seconds between; on a terminal each time shows in the place of the last.

    Elsewhere a line before each says when it was, unless a program reads it (`parsed`): then standard output is what the verb prints.
    What fails is shown like any other outcome, as the next time may be better: a gateway that is being restarted is waited for.
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
                    click.echo(f"Error: {error}", err=True)
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
    """Run it once; return what went wrong."""
    try:
        verb()
    except MaxamError as error:
        return shown(str(error))
    except SystemExit:
        pass  # what it has to tell stands in its output
    return ""


def _screen(head: str, error: str, page: str) -> RenderableType:
    parts = [Text(head, style="dim", no_wrap=True, overflow="ellipsis")]
    if error:
        parts.append(Text(f"Error: {error}", style="bold"))
    text = Text.from_ansi(page)
    text.no_wrap = True
    text.overflow = "crop"
    return Group(*parts, Text(""), text)


@final
class _Page(io.StringIO):
    """Takes what a verb prints as a terminal would, so that it is laid out for one."""

    def isatty(self) -> bool:
        return True
