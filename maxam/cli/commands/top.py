"""`maxam-admin top`: a live view of one gateway, over the whole terminal."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import click
from rich.live import Live

from maxam.cli.options import json_option, with_credentials
from maxam.cli.screens.top import Report, screen
from maxam.https_client import Credentials, Remote
from maxam.terminal.moments import Duration
from maxam.terminal.tables import console, print_json

INTERVAL_S: Final = 2.0
INTERVAL_MIN_S: Final = 0.5  # the gateway measures once a second
INTERVAL_MAX_S: Final = 60.0
_LINES_IN_A_PIPE: Final = 40


@click.command()
@click.option(
    "--interval",
    type=Duration(timedelta(seconds=INTERVAL_MIN_S), timedelta(seconds=INTERVAL_MAX_S), bare="s"),
    default=f"{INTERVAL_S:g}s",
    show_default=True,
    help="Time between two updates.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after N updates.")
@json_option
@with_credentials
def top(credentials: Credentials, interval: timedelta, count: int | None, as_json: bool) -> None:
    """Show rates, subscriptions that are behind, and busy topics and sessions, live.

    Keys: q or Ctrl-C ends, space holds the picture, + and - change how often it is renewed. Without a terminal, or with --json, it prints
    one picture after the other.
    """
    report = Report()
    with Remote(credentials) as remote:
        report.renew(remote)
        if not report.health and report.error is not None:
            raise report.error  # there is nothing yet to go on with
        looks = count or sys.maxsize
        with suppress(KeyboardInterrupt):
            if as_json or not console().is_terminal:
                _print(remote, report, interval.total_seconds(), looks, as_json)
            else:
                _show(remote, report, interval.total_seconds(), looks, credentials.gateway)


def _print(remote: Remote, report: Report, interval_s: float, looks: int, as_json: bool) -> None:
    while True:
        if as_json:
            print_json(report.as_json())
        else:
            out = console()
            out.print(screen(report, "", "", out.width, _LINES_IN_A_PIPE))
        looks -= 1
        if not looks:
            return
        time.sleep(interval_s)
        report.renew(remote)


def _show(remote: Remote, report: Report, interval_s: float, looks: int, where: str) -> None:
    terminal = console()
    held = False
    with _keys() as typed, Live(console=terminal, screen=True, auto_refresh=False) as live:
        while looks:
            looks -= 1
            keys = f"q ends   space {'goes on: HELD' if held else 'holds'}   + - every {interval_s:g} s"
            live.update(screen(report, where, keys, terminal.width, terminal.height), refresh=True)
            match typed(interval_s if looks else 0):
                case "q":
                    return
                case " ":
                    held = not held
                case "+":
                    interval_s = min(interval_s * 2, INTERVAL_MAX_S)
                case "-":
                    interval_s = max(interval_s / 2, INTERVAL_MIN_S)
                case _:
                    pass
            if not held:
                report.renew(remote)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys from the terminal; yields a function that waits N seconds for the next one, and returns "" if none came."""
    if not sys.stdin.isatty():
        yield _no_key
        return

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield lambda timeout_s: os.read(keyboard, 1).decode(errors="replace") if _typed(keyboard, timeout_s) else ""
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _typed(keyboard: int, timeout_s: float) -> bool:
    return bool(select.select([keyboard], [], [], timeout_s)[0])


def _no_key(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
