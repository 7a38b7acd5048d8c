"""`maxam-admin tickets`: one-time secrets by which a client without a certificate connects."""

from datetime import timedelta

import click

from maxam.cli.options import json_option, with_credentials
from maxam.https_client import Credentials, Remote
from maxam.terminal.groups import CommandGroup
from maxam.terminal.moments import Duration
from maxam.terminal.tables import print_fields, print_json


@click.group(cls=CommandGroup)
def tickets() -> None:
    """Make tickets for pages and other clients without a certificate. Needs the admin right ticket."""


@tickets.command("create")
@click.argument("principal")
@click.option("--receive", multiple=True, metavar="GLOB", help="Glob that the client may receive. Repeatable.")
@click.option("--send", multiple=True, metavar="GLOB", help="Glob that the client may send to. Repeatable.")
@click.option("--client-id", metavar="ID", help="The only client-id of CONNECT. [default: any]")
@click.option(
    "--origin", metavar="ORIGIN", help="Origin of the only pages, such as https://floor.example. [default: any]"
)
@click.option(
    "--valid-for",
    type=Duration(timedelta(seconds=1), bare="s"),
    default="60s",
    show_default=True,
    help="Time within which the client must connect, in whole seconds. At most an hour.",
)
@json_option
@with_credentials
def ticket_create(
    credentials: Credentials,
    principal: str,
    receive: tuple[str, ...],
    send: tuple[str, ...],
    client_id: str | None,
    origin: str | None,
    valid_for: timedelta,
    as_json: bool,
) -> None:
    """Make a ticket, with which one client becomes PRINCIPAL. It can be given no right that you do not hold yourself.

    The ticket is shown once, and one CONNECT uses it up: login:ticket and passcode:<ticket>.
    """
    wanted = {
        "principal": principal,
        "receive": receive,
        "send": send,
        "client_id": client_id,
        "origin": origin,
        "validity_s": int(valid_for / timedelta(seconds=1)),
    }
    with Remote(credentials) as remote:
        made = remote.post("/v1/tickets", wanted)
    if as_json:
        print_json(made)
        return
    print_fields([(name, made[name]) for name in ("id", "principal", "expires_at", "ticket")])
