"""`maxam-admin backup`: backups that the gateway makes in the folder of its configuration."""

import sys
import time
from typing import Any, Final
from urllib.parse import quote

import click

from maxam.cli.options import json_option, listing, print_rows, with_credentials
from maxam.counting import counted
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote
from maxam.terminal.groups import JSON_ERRORS, CommandGroup
from maxam.terminal.options import remark
from maxam.terminal.tables import print_json, print_line

PATH: Final = "/v1/backups"
_LOOK_S: Final = 0.25  # how often it is asked whether it is done


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--wait/--no-wait", default=True, hidden=True)
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.pass_context
def backup(context: click.Context, wait: bool, as_json: bool) -> None:
    """Create and list backups of the gateway's journal."""
    if context.invoked_subcommand is None:  # the former spelling of `backup create`
        context.invoke(backup_create, wait=wait, output="table", as_json=as_json, quiet=False)


@backup.command("create")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the backup is done or has failed.")
@json_option
@with_credentials
def backup_create(credentials: Credentials, wait: bool, as_json: bool) -> None:
    """Have the gateway back up its journal into the folder `[admin] backups` of its configuration.

    The gateway goes on serving. A backup holds no configuration, policy, certificate or key. The exit code is 1
    when it has failed, or `[admin] backup_hook` could not copy it to the other place.
    """
    with Remote(credentials) as remote:
        row = remote.post(PATH)
        while wait and row["state"] == "running":
            time.sleep(_LOOK_S)
            row = remote.get(f"{PATH}/{quote(row['name'], safe='')}")
    if as_json:
        print_json(row)
    else:
        print_line(f"{row['name']}  {_outcome(row)}")
    if row["state"] == "failed" or row.get("copied") is False:
        sys.exit(ExitCode.CHECK_FAILED)


@backup.command("list")
@listing()
@click.pass_context
def backup_list(context: click.Context, credentials: Credentials, limit: int | None, as_json: bool) -> None:
    """List the backups, newest first, and the last ones that failed."""
    as_json = as_json or (context.parent is not None and context.parent.params["as_json"])  # `backup --json list`
    context.meta[JSON_ERRORS] = as_json
    with Remote(credentials) as remote:
        print_rows(
            remote.pages(PATH, "backups", limit=200),
            limit,
            as_json,
            [
                "NAME",
                "STATE",
                "#REVISION",
                "#BYTES",
                "#FILES",
                ("VERIFIED", lambda row: _yes_or_no(row["verified"])),
                ("COPIED", lambda row: _yes_or_no(row.get("copied"))),
                ("WHY", "reason"),
            ],
            ["FILES"],
            shortened=["WHY"],
            names=["name"],
        )
        next_at = None if as_json else remote.get(PATH, limit=1)["next_at"]
    if next_at is not None:
        remark(f"the next one is due at {next_at}")


def _yes_or_no(flag: bool | None) -> str | None:
    return None if flag is None else "yes" if flag else "no"


def _outcome(row: dict[str, Any]) -> str:
    match row["state"]:
        case "done":
            text = f"done: revision {row['revision']}, {counted(row['files'], 'file')}, {counted(row['bytes'], 'byte')}, verified"
            copied = row.get("copied")
            return text if copied is None else f"{text}, copied" if copied else f"{text}, not copied ({row['reason']})"
        case "failed":
            return f"failed: {row['reason']}"
        case state:
            return str(state)
