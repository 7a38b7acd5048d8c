"""The verbs `maxam-admin backup ...`: backups that the gateway makes in the folder of its configuration."""

import sys
import time
from typing import Any, Final
from urllib.parse import quote

import click

from maxam.admin.options import Group, json_option, limit_option, print_rows, with_credentials
from maxam.admin.output import print_json, print_line
from maxam.admin.remote import Credentials, Remote
from maxam.admin.repeating import watch_option
from maxam.counting import counted

PATH: Final = "/v1/backups"
_LOOK_S: Final = 0.25  # how often it is asked whether it is done


@click.group(cls=Group, invoke_without_command=True)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is done, or has failed.")
@json_option
@with_credentials
@click.pass_context
def backup(context: click.Context, credentials: Credentials, wait: bool, as_json: bool) -> None:
    """Have the gateway make a backup of its journal, in the folder `[admin] backups` of its configuration.

    It goes on serving meanwhile. A backup holds no configuration, policy, certificate or key. Exit code 1 when it has failed.
    """
    if context.invoked_subcommand is not None:
        return
    with Remote(credentials) as remote:
        row = remote.post(PATH)
        while wait and row["state"] == "running":
            time.sleep(_LOOK_S)
            row = remote.get(f"{PATH}/{quote(row['name'], safe='')}")
    if as_json:
        print_json(row)
    else:
        print_line(f"{row['name']}  {_outcome(row)}")
    if row["state"] == "failed":
        sys.exit(1)


@backup.command("list")
@limit_option
@json_option
@watch_option
@with_credentials
def backup_list(credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List the backups, newest first, and the last ones that failed."""
    with Remote(credentials) as remote:
        print_rows(
            remote.pages(PATH, "backups", limit=200),
            limit,
            as_json,
            ["NAME", "STATE", "#REVISION", "#BYTES", "#FILES", "WHY"],
            lambda row: [row["name"], row["state"], row["revision"], row["bytes"], row["files"], row["reason"]],
            ["FILES"],
            shortened=["WHY"],
        )


def _outcome(row: dict[str, Any]) -> str:
    match row["state"]:
        case "done":
            return f"done: revision {row['revision']}, {counted(row['files'], 'file')}, {counted(row['bytes'], 'byte')}"
        case "failed":
            return f"failed: {row['reason']}"
        case state:
            return str(state)
