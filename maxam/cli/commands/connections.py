"""`maxam-admin connections`: the connections to the gateway's listeners, unauthenticated ones included."""

from typing import Any, final

import click

from maxam.cli.options import (
    done,
    json_option,
    listing,
    note_incomplete,
    print_rows,
    with_credentials,
)
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, NotFoundError, Remote, RemoteError, session_path
from maxam.terminal.groups import CommandGroup
from maxam.terminal.options import remark
from maxam.terminal.tables import print_fields, print_json
from maxam.terminal.units import duration

_ID = click.argument("number", metavar="ID", type=click.IntRange(1))


@final
class _Group(CommandGroup):
    """Runs `list` if no command is given: the former spelling of `connections list` was `connections`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list`."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Group)
def connections() -> None:
    """List, show and close connections; find clients that cannot connect."""


@connections.command("list")
@click.option("--find", metavar="TEXT", help="List only connections with this text in principal, client-id or address.")
@listing()
def connections_list(credentials: Credentials, find: str | None, limit: int | None, as_json: bool) -> None:
    """List connections of clients and of operators, in order of their opening."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/connections", "connections", limit=200, find=find)
        expendable = ["TLS", "WINDOW", "RECEIPTS", "BYTES IN", "BYTES OUT", "KIND", "SINCE", "HEARD S AGO", "UN-ACKED"]
        print_rows(
            rows,
            limit,
            as_json,
            [
                "#ID",
                "KIND",
                "STATE",
                "#FRONT",
                "ADDRESS",
                "PRINCIPAL",
                "CLIENT-ID",
                ("SINCE", "opened_at"),
                ("#HEARD S AGO", "heard_s"),
                "#SENDS",
                "#MESSAGES",
                "#BYTES IN",
                "#BYTES OUT",
                ("#RECEIPTS", "receipts_waiting"),
                ("#UN-ACKED", "in_flight"),
                "#WINDOW",
                "TLS",
            ],
            [*expendable, "MESSAGES", "SENDS", "FRONT"],
            optional=["#FRONT"],
            names=["id"],
        )
        note_incomplete(remote)


@connections.command("problems")
@listing(default=200, most=200)
def connections_problems(credentials: Credentials, limit: int, as_json: bool) -> None:
    """List clients of the last hour that cannot connect or do not stay connected, why, and what to do.

    Clients with many events within five minutes come first. A `reconnecting` client comes back soon after each end of its connection.
    """
    with Remote(credentials) as remote:
        answer = remote.get("/v1/connect-problems", limit=limit)
    rows: list[dict[str, Any]] = answer["problems"]
    print_rows(
        iter(rows),
        limit,
        as_json,
        [
            "KIND",
            "PRINCIPAL",
            "CLIENT-ID",
            "ADDRESS",
            "#COUNT",
            ("#LAST", lambda row: f"{duration(row['last_s'])} ago"),
            "REASON",
            ("WHAT TO DO", "advice"),
            "FINGERPRINT",
        ],
        ["FINGERPRINT", "CLIENT-ID", "WHAT TO DO", "KIND"],
        optional=["CLIENT-ID"],
        names=["kind", "address"],
    )
    more = answer["count"] - len(rows)
    if more or answer["forgotten"]:
        remark(f"{more} more rows are not shown; {answer['forgotten']} made room for newer ones since the start")


@connections.command("show")
@_ID
@json_option
@with_credentials
def connections_show(credentials: Credentials, number: int, as_json: bool) -> None:
    """Show all facts of a connection."""
    with Remote(credentials) as remote:
        row = _connection(remote, number)
    if as_json:
        print_json(row)
    else:
        print_fields(row.items())


@connections.command("close")
@_ID
@json_option
@with_credentials
def connections_close(credentials: Credentials, number: int, as_json: bool) -> None:
    """Close a client's connection with an ERROR, as `sessions kick` does. Its durable subscriptions stay."""
    with Remote(credentials) as remote:
        row = _connection(remote, number)
        if not row["client_id"]:
            raise RemoteError(f"connection {number} has no session", "not-connected", ExitCode.CHECK_FAILED)
        remote.post(session_path(row["principal"], row["client_id"]) + "/kick")
    done(as_json, f"closed {number}", {"id": number, "closed": True})


def _connection(remote: Remote, number: int) -> dict[str, Any]:
    """Return the row of a connection; raises NotFoundError."""
    rows: list[dict[str, Any]] = remote.get("/v1/connections", after=number - 1, limit=1)["connections"]
    if not rows or rows[0]["id"] != number:
        raise NotFoundError(f"there is no connection {number}: `maxam-admin connections list` lists them")
    return rows[0]
