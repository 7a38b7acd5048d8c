"""`maxam-admin topics watch`: show values as they arrive."""

import sys

import click

from maxam.cli.options import json_option, with_credentials
from maxam.cli.screens.watch import Style, watch
from maxam.client_config import server_option
from maxam.https_client import Credentials


@click.command("watch")
@click.argument("glob", default="**")
@server_option("--stomp", default="the one that the gateway reports")
@click.option("--virtual-host", metavar="NAME", help="Header host of CONNECT. [default: one that the gateway accepts]")
@click.option("--count", type=click.IntRange(min=1), help="End after N updates.")
@click.option("--full", is_flag=True, help="Print one update per line with its full value, on a terminal too.")
@json_option
@with_credentials
def topics_watch(
    credentials: Credentials,
    glob: str,
    server: str | None,
    virtual_host: str | None,
    count: int | None,
    full: bool,
    as_json: bool,
) -> None:
    """Show the values of all topics that match GLOB, and each update of them, until Ctrl-C.

    Without GLOB it shows all topics. With --server it needs no admin right, only the right to receive.
    """
    style: Style = "json" if as_json else "whole" if full else "table" if sys.stdout.isatty() else "lines"
    watch(credentials, glob, server, virtual_host, style, count)
