"""`maxam-admin subscriptions`: what everybody is subscribed to, and who is behind."""

from typing import Any, Final

import click

from maxam.admin.completion import client_ids, principals
from maxam.admin.options import json_option, limit_option, print_rows, with_credentials
from maxam.admin.output import print_json, print_line, print_table
from maxam.admin.remote import Credentials, Remote
from maxam.admin.repeating import watch_option
from maxam.admin.top import WHY, duration
from maxam.counting import counted

SHOWN: Final = 20  # of the slow ones, unless --limit says otherwise
_EXPENDABLE: Final = ["DURABLE", "WINDOW", "ACK", "CONFLATED", "UN-ACKED", "OWED", "GLOB"]


@click.group()
def subscriptions() -> None:
    """Show who is subscribed to what, and who is behind."""


@subscriptions.command("list")
@click.option("--principal", metavar="P", shell_complete=principals, help="Only those of this principal.")
@click.option("--client-id", metavar="C", shell_complete=client_ids, help="Only those of sessions with this client-id.")
@limit_option
@json_option
@watch_option
@with_credentials
def subscriptions_list(
    credentials: Credentials, principal: str | None, client_id: str | None, limit: int | None, as_json: bool
) -> None:
    """List all subscriptions, in order of principal, client-id and id."""
    with Remote(credentials) as remote:
        wanted = {"principal": principal, "client_id": client_id}
        parameters: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        rows = remote.pages("/v1/subscriptions", "subscriptions", limit=200, **parameters)
        columns = ["PRINCIPAL", "CLIENT-ID", "ID", "GLOB", "ACK", "DURABLE", "#BEHIND BY"]
        columns += ["#OWED", "#UN-ACKED", "#WINDOW", "#CONFLATED", "WHY"]
        print_rows(
            rows,
            limit,
            as_json,
            columns,
            lambda row: [
                row["principal"],
                row["client_id"],
                row["id"],
                row["glob"],
                row["ack"],
                row["durable"],
                behind_by(row),
                row["owed"],
                row["unacked"],
                row["window"],
                row["conflated"],
                why(row),
            ],
            ["WHY", *_EXPENDABLE[:-1]],
        )


@subscriptions.command("slow")
@click.option(
    "--min",
    "min_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Who lacks something for so long, behind or not; 0: whoever lacks anything now. [default: who is behind]",
)
@click.option("--limit", type=click.IntRange(min=1, max=200), default=SHOWN, show_default=True, help="So many rows.")
@json_option
@watch_option
@with_credentials
def subscriptions_slow(credentials: Credentials, min_s: float | None, limit: int, as_json: bool) -> None:
    """Show who is behind: whoever has lacked something for longest comes first.

    BEHIND BY is how old the oldest thing is that a subscription does not have yet. Whoever lacks something for as long as the limit
    staleness_behind_s of the gateway, 5 seconds unless it is configured, or for less, is not behind: that is on its way. See
    docs/admin.md, Staleness.
    """
    wanted = {} if min_s is None else {"min_s": f"{min_s:f}"}
    with Remote(credentials) as remote:
        found = remote.get("/v1/subscriptions/slow", limit=limit, **wanted)
    rows = found["subscriptions"]
    if as_json:
        for row in rows:
            print_json(row)
        return
    looked_at = counted(found["looked_at"], "subscription")
    if not rows:
        if min_s is None:
            limit_s = f"{found['behind_after_s']:g} s"
            print_line(f"nobody has lacked anything for more than {limit_s}; looked at {looked_at}")
        else:
            print_line(f"nobody lacks anything {f'for {min_s:g} s or more' if min_s else 'now'}; looked at {looked_at}")
        return
    print_table(
        ["PRINCIPAL", "CLIENT-ID", "ID", "#BEHIND BY", "WHY", "#OWED", "#UN-ACKED", "#WINDOW", "#CONFLATED", "GLOB"],
        [
            [
                row["principal"],
                row["client_id"],
                row["id"],
                duration(row["staleness_s"]),
                WHY[row["cause"]] if min_s else why(row),
                row["owed"],
                row["unacked"],
                row["window"],
                row["conflated"],
                row["glob"],
            ]
            for row in rows
        ],
        _EXPENDABLE,
    )
    print_line(f"{found['behind']} of {looked_at} behind by more than {found['behind_after_s']:g} s")


def behind_by(row: dict[str, Any]) -> str:
    """Return how far a subscription or session is behind, as people say it; nothing if it is not."""
    return duration(row["staleness_s"]) if row["behind"] else ""


def why(row: dict[str, Any]) -> str:
    """Return why a subscription is behind; nothing if it is not, as what is on its way needs no cause."""
    return WHY[row["cause"]] if row["behind"] else ""
