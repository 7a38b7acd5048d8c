"""`maxam-admin gateway journal`: the state of a gateway's journal and disk."""

import click

from maxam.cli.options import json_option, with_credentials
from maxam.cli.repeating import watch_option
from maxam.counting import counted
from maxam.https_client import Credentials, Remote
from maxam.terminal.tables import print_fields, print_json
from maxam.terminal.units import milliseconds, size


@click.command("journal")
@json_option
@watch_option
@with_credentials
def journal_status(credentials: Credentials, as_json: bool) -> None:
    """Show the files, positions, commits and disk of the gateway's journal."""
    with Remote(credentials) as remote:
        told = remote.get("/v1/journal")
    if as_json:
        print_json(told)
        return
    segments, opened, snapshots, rejected = told["segments"], told["open"], told["snapshots"], told["rejected"]
    disk, commits = told["disk"], told["commits"]
    states = [state for state in ("full", "slow", "low") if disk[state]]
    print_fields(
        [
            ("folder", told["folder"]),
            ("incarnation", told["incarnation"] or "none yet"),
            ("durability", told["durability"]),
            (
                "head, committed",
                f"{told['head']}, {told['committed']}; {counted(told['waiting'], 'operation')} waiting",
            ),
            (
                "sealed segments",
                f"{segments['count']}, {size(segments['bytes'])}"
                + (f", revisions {segments['first']} to {segments['last']}" if segments["count"] else ""),
            ),
            ("  records from, to", f"{segments['oldest_at'] or '-'}, {segments['newest_at'] or '-'}"),
            (
                "open segment",
                f"{size(opened['bytes'])}, revisions {opened['first']} to {opened['last']}" if opened else "none",
            ),
            (
                "newest snapshot",
                f"revision {snapshots['revision']}, {snapshots['age_s']:.0f} s old, {size(snapshots['bytes'])}"
                if snapshots["count"]
                else "none",
            ),
            (
                "archive keeps",
                f"{counted(told['archive']['days_max'], 'day', 'g')}, {size(told['archive']['bytes_max'])} (0: all)",
            ),
            (
                "rejected SENDs",
                f"{counted(rejected['count'], 'segment')}, {size(rejected['bytes'])} of {size(rejected['bytes_max'])}",
            ),
            (
                "disk",
                f"{size(disk['free_bytes'])} free, warns below "
                f"{size(disk['free_bytes_min'])}: {', '.join(states) or 'well'}",
            ),
            (
                "commits",
                f"{commits['count']} in {commits['over_s']:.0f} s; p50 {milliseconds(commits['p50_s'])}, p99 {milliseconds(commits['p99_s'])}, last "
                f"{milliseconds(commits['last_s'])}",
            ),
            *([("problem", told["problem"])] if told["problem"] else []),
        ]
    )
