"""`maxam-admin topics watch`: show values as they arrive."""

import sys
from datetime import timedelta

import click

from maxam.cli.options import json_option, with_credentials
from maxam.cli.screens.watch import Style, Wanted, watch
from maxam.client_config import server_option
from maxam.https_client import Credentials
from maxam.stomp.events import INTERVAL_MS_MAX, INTERVAL_MS_MIN
from maxam.terminal.moments import Duration

_INTERVALS = Duration(timedelta(milliseconds=INTERVAL_MS_MIN), timedelta(milliseconds=INTERVAL_MS_MAX))


@click.command("watch")
@click.argument("glob", default="**")
@server_option("--stomp", default="the one that the gateway reports", several=True)
@click.option("--virtual-host", metavar="NAME", help="Header host of CONNECT. [default: one that the gateway accepts]")
@click.option("--where", "selector", metavar="SELECTOR", help="Show only topics whose value satisfies this condition.")
@click.option("--min-interval", type=_INTERVALS, help="Show at most one value of a topic in this time, the newest.")
@click.option("--count", type=click.IntRange(min=1), help="End after N updates.")
@click.option("--full", is_flag=True, help="Print one update per line with its full value, on a terminal too.")
@json_option
@with_credentials
def topics_watch(
    credentials: Credentials,
    glob: str,
    server: str | None,
    virtual_host: str | None,
    selector: str | None,
    min_interval: timedelta | None,
    count: int | None,
    full: bool,
    as_json: bool,
) -> None:
    r"""Show the values of all topics that match GLOB, and each update of them, until Ctrl-C.

    Without GLOB it shows all topics. With --server it needs no admin right, only the right to receive. After a lost connection
    it connects again, and shows what has changed meanwhile.

    \b
    Example: maxam-admin topics watch 'X/EGM.**' --where "status = 'OFFLINE'" --min-interval 1s
    """
    style: Style = "json" if as_json else "whole" if full else "table" if sys.stdout.isatty() else "lines"
    wanted = Wanted(glob, selector, None if min_interval is None else min_interval.total_seconds())
    watch(credentials, wanted, server, virtual_host, style, count)
