"""`maxam-admin sessions`: who is there, what each is owed, and how to be rid of one."""

import click

from maxam.cli.commands.subscriptions import behind_by, why
from maxam.cli.completion import client_ids, principals
from maxam.cli.confirming import END_SESSION, KICK_SESSIONS, ask, ask_many, dry_run_option, yes_option
from maxam.cli.options import (
    done,
    json_option,
    listing,
    note_incomplete,
    print_rows,
    with_credentials,
)
from maxam.cli.repeating import watch_option
from maxam.https_client import Credentials, Remote, RemoteError, session_path
from maxam.terminal.groups import CommandGroup
from maxam.terminal.options import remark
from maxam.terminal.tables import print_fields, print_json, print_table


@click.group(cls=CommandGroup)
def sessions() -> None:
    """Show, disconnect and end sessions."""


@sessions.command("list")
@click.option("--principal", metavar="P", shell_complete=principals, help="List only sessions of this principal.")
@click.option("--client-id", metavar="C", shell_complete=client_ids, help="List only sessions with this client-id.")
@click.option("--find", metavar="TEXT", help="List only sessions with this text in principal, client-id or address.")
@listing()
def sessions_list(
    credentials: Credentials,
    principal: str | None,
    client_id: str | None,
    find: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List all sessions, in order of principal and client-id."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/sessions", "sessions", limit=200, principal=principal, client_id=client_id, find=find)
        expendable = ["WINDOW", "SINCE", "SUBSCRIPTIONS", "PEER", "DURABLE", "UN-ACKED", "OWED"]
        print_rows(
            rows,
            limit,
            as_json,
            [
                "PRINCIPAL",
                "CLIENT-ID",
                "CONNECTED",
                "DURABLE",
                "PEER",
                ("@SINCE", "connected_at"),
                "#SUBSCRIPTIONS",
                ("#BEHIND BY", behind_by),
                "#OWED",
                ("#UN-ACKED", "unacked"),
                "#WINDOW",
            ],
            expendable,
            names=["principal", "client_id"],
        )
        note_incomplete(remote)


@sessions.command("show")
@click.argument("principal", shell_complete=principals)
@click.argument("client_id", shell_complete=client_ids)
@json_option
@watch_option
@with_credentials
def sessions_show(credentials: Credentials, principal: str, client_id: str, as_json: bool) -> None:
    """Show one session and its subscriptions."""
    with Remote(credentials) as remote:
        session = remote.get(session_path(principal, client_id))
    if as_json:
        print_json(session)
        return
    subscriptions = session.pop("subscriptions")
    print_fields(session.items())
    print_table(
        [
            "SUBSCRIPTION",
            "GLOB",
            "ACK",
            "DURABLE",
            "DELIVERING",
            "#BEHIND BY",
            "#OWED",
            "#UN-ACKED",
            "#CONFLATED",
            "WHY",
        ],
        [
            (
                s["id"],
                s["glob"],
                s["ack"],
                s["durable"],
                s["delivering"],
                behind_by(s),
                s["owed"],
                s["unacked"],
                s["conflated"],
                why(s),
            )
            for s in subscriptions
        ],
    )


@sessions.command("wills")
@click.option("--principal", metavar="P", shell_complete=principals, help="List only last wills of this principal.")
@listing()
def sessions_wills(credentials: Credentials, principal: str | None, limit: int | None, as_json: bool) -> None:
    """List the last wills of sessions, and when each is sent."""
    with Remote(credentials) as remote:
        print_rows(
            remote.pages("/v1/wills", "wills", limit=200, principal=principal),
            limit,
            as_json,
            [
                "PRINCIPAL",
                "CLIENT-ID",
                "DESTINATION",
                "#BODY BYTES",
                "#DELAY S",
                "ARMED",
                ("#DUE IN S", "due_s"),
                "@SET AT",
            ],
            ["SET AT", "BODY BYTES", "ARMED"],
            names=["principal", "client_id"],
        )


@sessions.command("kick")
@click.argument("principal", required=False, shell_complete=principals)
@click.argument("client_id", required=False, shell_complete=client_ids)
@click.option(
    "--principal", "whose", metavar="P", shell_complete=principals, help="Kick all sessions of this principal."
)
@dry_run_option
@yes_option
@json_option
@with_credentials
def sessions_kick(
    credentials: Credentials,
    principal: str | None,
    client_id: str | None,
    whose: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Close the live connection of a session with an ERROR; what it owes stays.

    With --principal all connections of the principal are closed.
    """
    if (client_id is None) == (whose is None) or (whose is not None and principal is not None):
        raise click.UsageError("give either PRINCIPAL and CLIENT_ID, or --principal P")
    with Remote(credentials) as remote:
        if whose is not None:
            rows = remote.pages("/v1/sessions", "sessions", limit=200, principal=whose)
            found = [(row["principal"], row["client_id"]) for row in rows if row["connected"]]
        else:
            assert principal is not None is not client_id  # noqa: S101 as checked above
            found = [(principal, client_id)]
        if whose is not None and not dry_run:
            ask_many(KICK_SESSIONS, len(found), "session", yes)
        for key in found:
            if not dry_run and not _kick(remote, key, gone_is_well=whose is not None):
                continue
            row: dict[str, object] = {"principal": key[0], "client_id": key[1], "kicked": not dry_run}
            done(as_json, f"{'would kick' if dry_run else 'kicked'} {key[0]} {key[1]}", row)
    if whose is not None and not found:
        remark(f"no session of {whose} has a connection")


def _kick(remote: Remote, key: tuple[str, str], gone_is_well: bool) -> bool:
    """Kick a session. Return False if it had no connection any longer, and that is well."""
    try:
        remote.post(session_path(*key) + "/kick")
    except RemoteError as error:
        if gone_is_well and error.code in {"not-connected", "not-found"}:
            return False
        raise
    return True


@sessions.command("drop")
@click.argument("principal", shell_complete=principals)
@click.argument("client_id", shell_complete=client_ids)
@yes_option
@json_option
@with_credentials
def sessions_drop(credentials: Credentials, principal: str, client_id: str, yes: bool, as_json: bool) -> None:
    """End a session for good: its connection, its durable subscriptions and all that they owe."""
    ask(END_SESSION, f"{principal} {client_id}", yes)
    with Remote(credentials) as remote:
        remote.delete(session_path(principal, client_id))
    done(as_json, f"dropped {principal} {client_id}", {"principal": principal, "client_id": client_id, "dropped": True})
