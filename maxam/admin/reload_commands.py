"""`maxam-admin reload`: have changed files put into force, and see what became of them."""

import sys

import click

from maxam.admin.options import json_option, limit_option, print_rows, with_credentials
from maxam.admin.output import print_json, print_line, print_table
from maxam.admin.remote import Credentials, Remote


@click.command()
@click.option(
    "--allow-orphans", is_flag=True, help="New schemas may take the rule from topics with a value, this once."
)
@click.option(
    "--status", is_flag=True, help="Do nothing; show what is in force since when, and what could not be used."
)
@click.option("--orphans", is_flag=True, help="Do nothing; list the topics with a value that no rule covers.")
@limit_option
@json_option
@with_credentials
def reload(
    credentials: Credentials, allow_orphans: bool, status: bool, orphans: bool, limit: int | None, as_json: bool
) -> None:
    """Have the gateway read policy, schemas, certificates and revocation lists anew.

    Each is put into force by itself. Exits with 1 if one of them was refused: what was in force before stays then.
    """
    if allow_orphans + status + orphans > 1:
        raise click.UsageError("--allow-orphans, --status and --orphans exclude each other")
    if limit is not None and not orphans:
        raise click.UsageError("--limit goes with --orphans")
    with Remote(credentials) as remote:
        if orphans:
            _print_orphans(remote, limit, as_json)
            return
        if status:
            answer = remote.get("/v1/reload")
        else:
            answer = remote.post("/v1/reload", allow_orphans=str(allow_orphans).lower())
    rows = answer["items"]
    if as_json:
        for row in rows:
            print_json(row)
    elif status:
        print_table(
            ["ITEM", "IN FORCE SINCE", "#RELOADED", "#REFUSED", "ON DISK"],
            [
                (row["item"], row["loaded_at"], row["reloaded"], row["refused"], "unusable" if row["failure"] else "")
                for row in rows
            ],
            ["REFUSED", "RELOADED"],
        )
        for row in rows:
            if row["failure"]:
                _print_outcome(row["item"], "what is on disk cannot be used", row["failure"])
    else:
        for row in rows:
            _print_outcome(f"{row['item']:<11}", row["outcome"], row["detail"])
    if not status and any(row["outcome"] == "refused" for row in rows):
        sys.exit(1)


def _print_outcome(item: str, outcome: str, detail: str) -> None:
    """Print what became of an item; each further problem of a folder is a line of its own."""
    first, *more = detail.split("\n")
    print_line(f"{item}  {outcome}" + (f": {first}" if first else ""))
    for line in more:
        print_line(f"  {line}")


def _print_orphans(remote: Remote, limit: int | None, as_json: bool) -> None:
    print_rows(
        remote.pages("/v1/orphans", "orphans", limit=200),
        limit,
        as_json,
        ["DESTINATION", "#REVISION", "ACCEPTED AT", "PUBLISHER", "SCHEMA"],
        lambda row: [
            row["destination"],
            row["revision"],
            row["accepted_at"],
            row["publisher"],
            f"{row['schema']} {row['schema_version']}".strip(),
        ],
        ["SCHEMA", "PUBLISHER", "ACCEPTED AT"],
    )
