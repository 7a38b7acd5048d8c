"""`maxam-admin health`: whether the broker serves, and what should be seen to."""

import sys
from typing import Any

import click

from maxam.admin.options import json_option, with_credentials
from maxam.admin.output import print_fields, print_json, print_line
from maxam.admin.remote import Credentials, Remote
from maxam.admin.repeating import watch_option
from maxam.counting import counted

_READY = "ready"
_NOT_READY = "not ready"
_MIB = 1_048_576


@click.command()
@click.option(
    "--strict", is_flag=True, help="Exit with 1 also if something should be seen to, though the broker serves."
)
@json_option
@watch_option
@with_credentials
def health(credentials: Credentials, strict: bool, as_json: bool) -> None:
    """Say whether the broker is in service, and what should be seen to.

    Exits with 0 if it is ready, with 1 if it is not: why is told.
    """
    with Remote(credentials) as remote:
        answer = remote.get("/v1/health")
    if as_json:
        print_json(answer)
    else:
        _print_health(answer)
    if answer["status"] == _NOT_READY or (strict and answer["status"] != _READY):
        sys.exit(1)


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
        ("up since", f"{answer['started_at']}, {_span(answer['uptime_s'])}"),
        ("topics", f"{figures['topics']}, {answer['overdue']} overdue; revision {figures['revision']}"),
        ("sessions", f"{figures['sessions']}; {counted(answer['behind'], 'subscription')} behind"),
        (
            "connections",
            f"{connected['connected']}, {connected['connecting']} connecting; {connected['operators']} of operators",
        ),
        ("commits", f"p50 {_ms(commit['p50_s'])}, p99 {_ms(commit['p99_s'])}; {commit['waiting']} waiting"),
        (
            "disk",
            f"{_room(disk['free_bytes'])} free; journal {_room(disk['journal_bytes'])} in {counted(disk['segments'], 'segment')}",
        ),
        ("memory", f"{_room(memory['used_bytes'])} of {_room(memory['limit_bytes'])}"),
        (
            "audit log",
            answer["audit"]["failure"]
            or f"{counted(answer['audit']['written'], 'line')}, {answer['audit']['lost']} lost",
        ),
        ("reload", ", ".join(row["item"] for row in answer["reload"] if row["failure"]) or "all files are in force"),
    ]
    for row in answer["expiries"]:
        name = f"{row['what']} {row['name']}".strip()
        when = _span(abs(row["expires_s"]))
        fields.append((name, f"{row['expires_at']}, " + (f"in {when}" if row["expires_s"] > 0 else f"{when} ago")))
    print_fields(fields)


def _span(seconds: float) -> str:
    for unit, unit_s in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.2g} ms"


def _room(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / _MIB:,.0f} MiB"
