"""`maxam-admin bridges`: the bridges between this gateway and others."""

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from maxam.cli.options import (
    FILE,
    done,
    json_option,
    listing,
    print_rows,
    with_credentials,
)
from maxam.compiled import child_environment
from maxam.exit_codes import ExitCode
from maxam.https_client import Credentials, Remote, RemoteError
from maxam.terminal.groups import CommandGroup
from maxam.terminal.moments import Duration
from maxam.terminal.options import RenamedOption, remark
from maxam.terminal.tables import print_fields, print_json, print_line, print_table

_POLL_S: Final = 0.5
_MARGIN_S: Final = 120.0  # beside the cut, for the comparison of both sides

_VENUE = click.argument("venue")
_BECAUSE = click.option(
    "--because", metavar="TEXT", required=True, help="Reason, for the audit log and other operators."
)


@click.group(cls=CommandGroup)
def bridges() -> None:
    """List, show, pause, resume and drill the bridges between this gateway and others; check a bridge's configuration."""


@bridges.command("list")
@click.option("--down", is_flag=True, help="List only bridges whose link is down.")
@listing()
def bridges_list(credentials: Credentials, down: bool, limit: int | None, as_json: bool) -> None:
    """List the bridges that publish their link here, one line for each venue."""
    with Remote(credentials) as remote:
        rows = remote.pages("/v1/bridges", "bridges", limit=200, down=str(down).lower())
        print_rows(
            rows,
            limit,
            as_json,
            [
                "VENUE",
                ("LINK", _link),
                ("@UNKNOWN SINCE", lambda row: row["unknown_since"] or ""),
                ("#BEHIND S", lambda row: f"{row['behind_s']:.1f}"),
                "STATE",
                "#QUARANTINED",
                "@HEARD AT",
                "HOST",
                "BECAUSE",
            ],
            ["HOST", "HEARD AT", "BECAUSE", "STATE"],
            names=["venue"],
        )


@bridges.command("show")
@_VENUE
@json_option
@with_credentials
def bridges_show(credentials: Credentials, venue: str, as_json: bool) -> None:
    """Show all facts of the bridge of VENUE: its routes, the topics in its quarantine, its last drill."""
    with Remote(credentials) as remote:
        row = remote.get(_path(venue))
    if as_json:
        print_json(row)
        return
    routes, rejections, drill, wanted = (row.pop(name) for name in ("routes", "rejections", "drill", "wanted"))
    row["link"] = _link(row)
    row["requested here"] = f"paused: {wanted['because']}" if wanted["paused"] else "running"
    if drill is not None:
        row["last drill"] = _drill_text(drill)
    print_fields([(name, value) for name, value in row.items() if name not in {"up", "down"}])
    print_table(["DIRECTION", "GLOB", "TOPICS"], [(one["direction"], one["glob"], one["mapped"]) for one in routes])
    if rejections:
        print_table(["REJECTED TOPIC", "REASON"], [(one["topic"], one["reason"]) for one in rejections], ["REASON"])


@bridges.command("pause")
@_VENUE
@_BECAUSE
@json_option
@with_credentials
def bridges_pause(credentials: Credentials, venue: str, because: str, as_json: bool) -> None:
    """Pause the bridge of VENUE until it is resumed here. The venue collects the newest values meanwhile.

    At the other side the topics of the bridge are unknown, and subscribers that asked for notices learn of it.
    """
    with Remote(credentials) as remote:
        answer = remote.post(_path(venue, "/pause"), {"because": because})
    done(as_json, f"requested: the bridge of {venue} pauses", answer)


@bridges.command("resume")
@_VENUE
@json_option
@with_credentials
def bridges_resume(credentials: Credentials, venue: str, as_json: bool) -> None:
    """Resume the bridge of VENUE. If the other side has paused it too, it must be resumed there as well."""
    with Remote(credentials) as remote:
        answer = remote.post(_path(venue, "/resume"))
    done(as_json, f"requested: the bridge of {venue} goes on, unless the other side has paused it", answer)


@bridges.command("drill")
@_VENUE
@click.option(
    "--duration",
    cls=RenamedOption,
    former=["--seconds"],
    type=Duration(timedelta(seconds=1), timedelta(hours=1), bare="s"),
    default="60s",
    show_default=True,
    help="Length of the cut, in whole seconds.",
)
@_BECAUSE
@click.option("--no-wait", is_flag=True, help="Return once the request is stored.")
@json_option
@with_credentials
def bridges_drill(
    credentials: Credentials, venue: str, duration: timedelta, because: str, no_wait: bool, as_json: bool
) -> None:
    """Have the bridge of VENUE cut its connection to the centre for a while, and compare both sides afterwards.

    Waits for the result, and exits with 1 if topics differ then, or if there is no result two minutes after the cut.
    """
    seconds = int(duration.total_seconds())
    with Remote(credentials) as remote:
        asked = remote.post(_path(venue, "/drill"), {"because": because, "seconds": seconds})
        if no_wait:
            done(as_json, f"requested: drill {asked['drill']} of {venue}", asked)
            return
        if not as_json:
            remark(f"drill {asked['drill']}: the link is cut for {seconds} s")
        found = _wait(remote, venue, asked["drill"], seconds + _MARGIN_S)
    if as_json:
        print_json(found)
    else:
        print_line(_drill_text(found))
    if found["differences"]:
        sys.exit(ExitCode.CHECK_FAILED)


@bridges.command("check")
@click.argument("file", type=FILE)
@json_option
def bridges_check(file: Path, as_json: bool) -> None:
    """Check the configuration FILE of a bridge: routes, certificates, rights and schemas on both sides.

    Runs `maxam-bridge --check` on this machine. A bridge that runs is not disturbed. Exits with 1 if there are errors.
    """
    command = [sys.executable, "-m", "maxam.bridge", "--config", str(file), "--check"]
    command += ["-o", "json"] if as_json else []
    sys.exit(subprocess.run(command, env=child_environment(), check=False).returncode)  # noqa: S603  # our own program


def _wait(remote: Remote, venue: str, drill: str, timeout_s: float) -> dict[str, Any]:
    """Return the figures of a drill once they are final; raises RemoteError."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        found: dict[str, Any] | None = remote.get(_path(venue))["drill"]
        if found is not None and found["id"] == drill and found["done"]:
            return found
        time.sleep(_POLL_S)
    raise RemoteError(
        f"drill {drill} of {venue} has no result after {timeout_s:.0f} s: see `maxam-admin bridges show {venue}`",
        "drill-unanswered",
        ExitCode.CHECK_FAILED,
    )


def _drill_text(drill: dict[str, Any]) -> str:
    if not drill["done"]:
        return f"{drill['id']}: goes on, the cut lasts {drill['seconds']} s"
    return (
        f"{drill['id']}: after a cut of {drill['seconds']} s {drill['moved']} changes were sent, both sides were equal"
        f" {drill['converged_ms'] / 1000:.1f} s after it, {drill['differences']} topics differ"
    )


def _link(row: dict[str, Any]) -> str:
    return "up" if row["up"] else f"down ({row['down']})"


def _path(venue: str, action: str = "") -> str:
    return f"/v1/bridges/{quote(venue, safe='')}{action}"
