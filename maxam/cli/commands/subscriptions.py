"""`maxam-admin subscriptions`: all subscriptions, those that are behind, and why one does not have a value."""

from datetime import timedelta
from typing import Any, Final

import click

from maxam.cli.arranging import NAMES_ONLY, setting
from maxam.cli.completion import client_ids, principals, subscription_ids
from maxam.cli.confirming import END_SUBSCRIPTION, ask, yes_option
from maxam.cli.options import (
    done,
    json_option,
    listing,
    note_incomplete,
    print_rows,
    with_credentials,
)
from maxam.cli.screens.top import WHY
from maxam.counting import counted
from maxam.https_client import Credentials, Remote, subscription_path
from maxam.terminal.groups import LazyGroup
from maxam.terminal.moments import Duration
from maxam.terminal.tables import print_line
from maxam.terminal.units import duration

SHOWN: Final = 20  # slow ones without --limit
_EXPENDABLE: Final = ["WINDOW", "CONFLATED", "UN-ACKED", "OWED"]


@click.group(
    cls=LazyGroup,
    lazy={
        "explain": (
            "maxam.cli.commands.subscriptions_explain:subscriptions_explain",
            "Explain why a subscription does not have the newest value of a topic.",
        ),
    },
)
def subscriptions() -> None:
    """List and end subscriptions, find those that are behind, and explain why one lacks a value."""


@subscriptions.command("list")
@click.option("--principal", metavar="P", shell_complete=principals, help="List only subscriptions of this principal.")
@click.option(
    "--client-id",
    metavar="C",
    shell_complete=client_ids,
    help="List only subscriptions of sessions with this client-id.",
)
@listing()
def subscriptions_list(
    credentials: Credentials, principal: str | None, client_id: str | None, limit: int | None, as_json: bool
) -> None:
    """List all subscriptions, in order of principal, client-id and id."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/subscriptions", "subscriptions", limit=200, principal=principal, client_id=client_id)
        print_rows(
            rows,
            limit,
            as_json,
            [
                "PRINCIPAL",
                "CLIENT-ID",
                "ID",
                "GLOB",
                "ACK",
                "DURABLE",
                ("#BEHIND BY", behind_by),
                "#OWED",
                ("#UN-ACKED", "unacked"),
                "#WINDOW",
                "#CONFLATED",
                ("WHY", why),
            ],
            ["WHY", "DURABLE", "ACK", *_EXPENDABLE],
            names=["principal", "client_id", "id"],
        )
        note_incomplete(remote)


@subscriptions.command("slow")
@click.option(
    "--min",
    "minimum",
    type=Duration(zero=True, bare="s"),
    help="List subscriptions that have lacked something for this time, behind or not. 0s lists all that lack anything. [default: those that are behind]",
)
@listing(default=SHOWN, most=200)
def subscriptions_slow(credentials: Credentials, minimum: timedelta | None, limit: int, as_json: bool) -> None:
    """List the subscriptions that are behind, the longest lag first.

    BEHIND BY is the age of the oldest change that a subscription has not received yet. A subscription is behind if that exceeds the
    limit lag_threshold_s of the gateway, by default 5 seconds. See docs/operate/admin.md, Staleness.
    """
    min_s = None if minimum is None else minimum.total_seconds()
    wanted = {} if min_s is None else {"min_s": f"{min_s:f}"}
    with Remote(credentials) as remote:
        found = remote.get("/v1/subscriptions/slow", limit=limit, **wanted)
        note_incomplete(remote)
    rows: list[dict[str, Any]] = found["subscriptions"]
    looked_at = counted(found["looked_at"], "subscription")
    if not rows and not as_json:
        if min_s is None:
            limit_s = f"{found['behind_after_s']:g} s"
            print_line(f"no subscription has lacked anything for more than {limit_s}, of {looked_at}")
        else:
            print_line(
                f"no subscription lacks anything {f'for {min_s:g} s or more' if min_s else 'now'}, of {looked_at}"
            )
        return
    print_rows(
        iter(rows),
        limit,
        as_json,
        [
            "PRINCIPAL",
            "CLIENT-ID",
            "ID",
            ("#BEHIND BY", lambda row: duration(row["staleness_s"])),
            ("WHY", lambda row: WHY[row["cause"]] if min_s else why(row)),
            "#OWED",
            ("#UN-ACKED", "unacked"),
            "#WINDOW",
            "#CONFLATED",
            "GLOB",
        ],
        [*_EXPENDABLE, "GLOB"],
        names=["principal", "client_id", "id"],
    )
    if not as_json and not setting(NAMES_ONLY):
        print_line(f"{found['behind']} of {looked_at} behind by more than {found['behind_after_s']:g} s")


@subscriptions.command("drop")
@click.argument("principal", shell_complete=principals)
@click.argument("client_id", shell_complete=client_ids)
@click.argument("subscription", metavar="ID", shell_complete=subscription_ids)
@yes_option
@json_option
@with_credentials
def subscriptions_drop(
    credentials: Credentials, principal: str, client_id: str, subscription: str, yes: bool, as_json: bool
) -> None:
    """End a durable subscription that no connection uses, and all that it owes.

    The other subscriptions of the session stay.
    """
    ask(END_SUBSCRIPTION, f"{principal} {client_id} {subscription}", yes)
    with Remote(credentials) as remote:
        remote.delete(subscription_path(principal, client_id, subscription))
    done(
        as_json,
        f"dropped {principal} {client_id} {subscription}",
        {"principal": principal, "client_id": client_id, "id": subscription, "dropped": True},
    )


def behind_by(row: dict[str, Any]) -> str:
    """Return how far a subscription or session is behind, for people; empty if it is not."""
    return duration(row["staleness_s"]) if row["behind"] else ""


def why(row: dict[str, Any]) -> str:
    """Return why a subscription is behind, or what holds its values; empty otherwise, as what is on its way needs no cause."""
    return WHY[row["cause"]] if row["behind"] or row["cause"] == "held" else ""
