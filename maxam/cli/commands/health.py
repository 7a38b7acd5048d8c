"""`maxam-admin health`: whether the broker serves, and what should be seen to."""

import sys
from typing import Any

import click

from maxam.cli.options import json_option, with_credentials
from maxam.cli.repeating import watch_option
from maxam.counting import counted
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote
from maxam.terminal.tables import print_fields, print_json, print_line
from maxam.terminal.units import duration, milliseconds, size

_READY = "ready"
_NOT_READY = "not ready"


@click.command()
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings, although the broker serves.")
@json_option
@watch_option
@with_credentials
def health(credentials: Credentials, strict: bool, as_json: bool) -> None:
    """Show whether the broker is in service, and its warnings.

    The exit code is 0 if it is ready. It is 1 if it is not, with the reasons in the output.
    """
    with Remote(credentials) as remote:
        answer = remote.get("/v1/health")
    if as_json:
        print_json(answer)
    else:
        _print_health(answer)
    if answer["status"] == _NOT_READY or (strict and answer["status"] != _READY):
        sys.exit(ExitCode.CHECK_FAILED)


def _print_health(answer: dict[str, Any]) -> None:
    print_line(answer["status"])
    for reason in answer["reasons"]:
        print_line(f"  not ready  {reason}")
    for reason in answer["degraded"]:
        print_line(f"  degraded   {reason}")
    figures, disk, memory, commit = answer["figures"], answer["disk"], answer["memory"], answer["commit"]
    connected = answer["connections"]
    fields = [
        ("server", f"{answer['server']} ({answer['core']})"),
        ("up since", f"{answer['started_at']}, {duration(answer['uptime_s'])}"),
        ("topics", f"{figures['topics']}, {answer['overdue']} overdue; revision {figures['revision']}"),
        ("sessions", f"{figures['sessions']}; {counted(answer['behind'], 'subscription')} behind"),
        (
            "connections",
            f"{connected['connected']} of {connected['max']}, {connected['connecting']} connecting;"
            f" {connected['operators']} of operators",
        ),
        (
            "cannot connect",
            f"{counted(connected['problems'], 'client')} (connections problems)"
            if connected["problems"]
            else "no client",
        ),
        (
            "commits",
            f"p50 {milliseconds(commit['p50_s'])}, p99 {milliseconds(commit['p99_s'])}; {commit['waiting']} waiting",
        ),
        (
            "disk",
            f"{size(disk['free_bytes'])} free; journal {size(disk['journal_bytes'])} in {counted(disk['segments'], 'segment')}",
        ),
        ("backup", _backup(answer.get("backup"))),
        ("memory", f"{size(memory['used_bytes'])} of {size(memory['limit_bytes'])}"),
        (
            "audit log",
            answer["audit"]["failure"]
            or f"{counted(answer['audit']['written'], 'line')}, {answer['audit']['lost']} lost",
        ),
        ("reload", ", ".join(row["item"] for row in answer["reload"] if row["failure"]) or "all files are in force"),
    ]
    for row in answer["expiries"]:
        name = f"{row['what']} {row['name']}".strip()
        when = duration(abs(row["expires_s"]))
        fields.append((name, f"{row['expires_at']}, " + (f"in {when}" if row["expires_s"] > 0 else f"{when} ago")))
    print_fields(fields)


def _backup(backup: dict[str, Any] | None) -> str:
    if backup is None:
        return "not made by this gateway ([admin] backups is not set)"
    if backup["at"] is None:
        text = "none"
    else:
        verified = "verified" if backup["verified"] else "not verified"
        verified += "" if backup.get("copied") is None else ", copied" if backup["copied"] else ", not copied"
        text = f"{backup['at']}, {duration(backup['age_s'])} old, {size(backup['bytes'])}, {verified}"
    return f"{text}; the last attempt failed" if backup["failure"] else text
