"""`maxam-admin gateway`: the state of a running gateway, and reloads of its files."""

import sys
from typing import Any

import click

from maxam.cli.arranging import NAMES_ONLY, setting
from maxam.cli.options import json_option, listing, print_rows, with_credentials
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote
from maxam.terminal.groups import LazyGroup
from maxam.terminal.tables import print_json, print_line

RELOAD = "/v1/reload"


@click.group(
    cls=LazyGroup,
    lazy={
        "journal": (
            "maxam.cli.commands.journal_status:journal_status",
            "Show the files, positions, commits and disk of the gateway's journal.",
        )
    },
)
def gateway() -> None:
    """Ask a running gateway for its state, and reload its files."""


@gateway.command("reload")
@click.option(
    "--allow-orphans", is_flag=True, help="Accept schemas that leave topics with a value without a rule, this once."
)
@json_option
@with_credentials
def gateway_reload(credentials: Credentials, allow_orphans: bool, as_json: bool) -> None:
    """Reload policy, schemas, certificates and revocation lists.

    Each item comes into force by itself. The exit code is 1 if an item was refused; the item in force before stays then.
    """
    with Remote(credentials) as remote:
        rows = remote.post(RELOAD, allow_orphans=str(allow_orphans).lower())["items"]
    if as_json:
        for row in rows:
            print_json(row)
    else:
        for row in rows:
            unchanged = row["outcome"] == "unchanged" and "loaded_at" in row
            detail = f"in force since {row['loaded_at']}" if unchanged else row["detail"]
            _print_outcome(f"{row['item']:<11}", row["outcome"], detail)
    if any(row["outcome"] == "refused" for row in rows):
        sys.exit(ExitCode.CHECK_FAILED)


@gateway.command("reload-status")
@listing()
def gateway_reload_status(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """Show since when each item is in force, and which files cannot be used."""
    with Remote(credentials) as remote:
        rows: list[dict[str, Any]] = remote.get(RELOAD)["items"]
    print_rows(
        iter(rows),
        limit,
        as_json,
        [
            "ITEM",
            ("@IN FORCE SINCE", "loaded_at"),
            "#RELOADED",
            "#REFUSED",
            ("ON DISK", lambda row: "unusable" if row["failure"] else ""),
        ],
        ["REFUSED", "RELOADED"],
        names=["item"],
    )
    for row in rows:
        if row["failure"] and not as_json and not setting(NAMES_ONLY):
            _print_outcome(row["item"], "what is on disk cannot be used", row["failure"])


@gateway.command("orphans")
@listing()
def gateway_orphans(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List the topics with a value that no rule covers."""
    with Remote(credentials) as remote:
        print_rows(
            remote.pages("/v1/orphans", "orphans", limit=200),
            limit,
            as_json,
            [
                "DESTINATION",
                "#REVISION",
                "@ACCEPTED AT",
                "PUBLISHER",
                ("SCHEMA", lambda row: f"{row['schema']} {row['schema_version']}".strip()),
            ],
            ["SCHEMA", "PUBLISHER", "ACCEPTED AT"],
        )


@click.command()
@click.option("--allow-orphans", is_flag=True)
@click.option("--status", is_flag=True)
@click.option("--orphans", is_flag=True)
@click.option("--limit", type=click.IntRange(min=1))
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def reload(
    context: click.Context, allow_orphans: bool, status: bool, orphans: bool, limit: int | None, as_json: bool
) -> None:
    """Run `gateway reload`, `gateway reload-status` or `gateway orphans`: the former spelling."""
    if allow_orphans + status + orphans > 1:
        raise click.UsageError("--allow-orphans, --status and --orphans exclude each other")
    if limit is not None and not orphans:
        raise click.UsageError("--limit goes with --orphans")
    form: dict[str, Any] = {"output": "table", "as_json": as_json, "quiet": False}
    if orphans:
        context.invoke(gateway_orphans, limit=limit, **form)
    elif status:
        context.invoke(gateway_reload_status, **form)
    else:
        context.invoke(gateway_reload, allow_orphans=allow_orphans, **form)


def _print_outcome(item: str, outcome: str, detail: str) -> None:
    """Print the outcome of an item; each further problem of a folder is a line of its own."""
    first, *more = detail.split("\n")
    print_line(f"{item}  {outcome}" + (f": {first}" if first else ""))
    for line in more:
        print_line(f"  {line}")
