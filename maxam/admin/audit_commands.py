"""`maxam-admin audit`: read and prove the audit log of a gateway, from its files."""

import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from maxam.admin.options import FOLDER, done, json_option, with_credentials
from maxam.admin.output import print_json, print_line, print_table
from maxam.admin.reject_commands import moment
from maxam.admin.remote import Credentials, Remote
from maxam.counting import counted
from maxam.errors import ConfigurationError

if TYPE_CHECKING:
    from maxam.gateway.chain import Anchor, Checker, Line

ROWS_MAX: Final = 1000  # that `show` prints unless it is told otherwise: the last ones
_ANCHOR: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_COLUMNS: Final = ("at", "event", "outcome", "principal", "address", "count", "reason")
_SHOWN_APART: Final = frozenset({*_COLUMNS, "sequence", "previous"})


@click.group()
def audit() -> None:
    """Read and prove the audit log: who did what, with which outcome and why."""


@audit.command("show")
@click.argument("folder", type=FOLDER)
@click.option("--event", help="Only this event, such as send-rejected.")
@click.option("--principal", help="Only of this principal.")
@click.option("--fingerprint", help="Only of this certificate.")
@click.option("--outcome", help="Only with this outcome, such as refused.")
@click.option(
    "--since", metavar="WHEN", help="Only since: 90s, 15m, 2h, 7d ago, or a time such as 2026-11-21T09:30:00Z."
)
@click.option("--limit", type=click.IntRange(min=1), help="The last so many lines.")
@json_option
def audit_show(folder: Path, since: str | None, limit: int | None, as_json: bool, **wanted: str | None) -> None:
    """Show lines of the audit log in FOLDER, the newest last.

    A line with a count stands for so many events, from first to last. What is shown is checked on the way: standard error tells if the
    chain does not hold.

    \b
    maxam-admin audit show var/journal-audit --event send-rejected --since 2h
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.gateway.chain import Checker  # noqa: PLC0415 the gateway's modules take 100 ms to import

    checker = Checker()
    start = None if since is None else datetime.fromisoformat(moment(since, datetime.now(UTC)))
    lines = (
        line.facts
        for line in _lines(folder, checker)
        if all(value is None or line.facts.get(name) == value for name, value in wanted.items())
        and (start is None or _at(line.facts) >= start)
    )
    limit = limit or (None if as_json else ROWS_MAX)
    rows = list(deque(lines, limit))
    if as_json:
        for row in rows:
            print_json(row)
    else:
        table = [
            [
                row.get("sequence"),
                *(row.get(name) for name in _COLUMNS),
                " ".join(f"{name}={value}" for name, value in row.items() if name not in _SHOWN_APART),
            ]
            for row in rows
        ]
        titles = ["#SEQUENCE", "AT", "EVENT", "OUTCOME", "PRINCIPAL", "ADDRESS", "#COUNT", "REASON", "MORE"]
        print_table(titles, table, ["MORE", "COUNT", "ADDRESS", "SEQUENCE"])
    for found in checker.proof.breaks[:1]:
        click.echo(f"the chain does not hold: {found.file}:{found.line}: {found.problem}; see audit verify", err=True)


@audit.command("verify")
@click.argument("folder", type=FOLDER)
@click.option(
    "--anchor",
    "anchors",
    multiple=True,
    metavar="SEQUENCE:SHA256",
    help="A line as you have kept it elsewhere, such as of the event audit-head in the gateway's log; may be repeated.",
)
@click.option("--live", is_flag=True, help="Ask the gateway for its last line, and take that as an anchor.")
@json_option
@with_credentials
def audit_verify(credentials: Credentials, folder: Path, anchors: tuple[str, ...], live: bool, as_json: bool) -> None:
    """Prove that no line of the audit log in FOLDER was changed, removed, added or exchanged, over all its files.

    Exits with 1 and names file and line where the chain does not hold. Without an anchor it cannot be told whether the end is missing, or
    everything from some line on was written anew: keep the head that this prints somewhere else, and give it the next time. A gateway may
    write meanwhile.

    \b
    maxam-admin audit verify var/journal-audit --anchor 1207:9f2c...
    """  # noqa: D301 a mark of click's: the lines stay as they are
    from maxam.gateway.chain import Checker  # noqa: PLC0415 the gateway's modules take 100 ms to import

    known = [_anchor(text) for text in anchors]
    if live:
        known.append(_head(credentials))
    checker = Checker(known)
    for _ in _lines(folder, checker):
        pass
    proof = checker.proof
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "good": not proof.breaks,
                "files": proof.files,
                "lines": proof.lines,
                "first": proof.first,
                "head": asdict(proof.head),
                "anchors": sorted(proof.anchors_found),
                "unfinished_bytes": proof.unfinished_bytes,
                "breaks": [asdict(found) for found in proof.breaks],
            }
        )
    else:
        for found in proof.breaks:
            print_line(f"{found.file}:{found.line}: {found.problem}" if found.file else f"{folder}: {found.problem}")
        rotated = (
            "" if proof.first <= 1 else f"; those before line {proof.first} are not there (rotated away, or removed)"
        )
        print_line(f"{counted(proof.lines, 'line')} in {counted(proof.files, 'file')}{rotated}")
        if proof.unfinished_bytes:
            print_line(
                f"behind them {counted(proof.unfinished_bytes, 'byte')} of an unfinished line: a crash, or a gateway is writing"
            )
        print_line(f"head {proof.head}")
        if not known:
            print_line(
                "without --anchor or --live nothing tells whether lines behind the head are missing; keep the head"
            )
    if proof.breaks:
        if not as_json:
            click.echo(f"Error: {folder}: the chain does not hold", err=True)
        sys.exit(1)


@audit.command("head")
@json_option
@with_credentials
def audit_head(credentials: Credentials, as_json: bool) -> None:
    """Print the last line that the gateway has written, as an anchor to be kept elsewhere. Right: read."""
    head = _head(credentials)
    done(as_json, str(head), asdict(head))


def _lines(folder: Path, checker: "Checker") -> "Iterator[Line]":
    from maxam.gateway.chain import read_folder  # noqa: PLC0415 the gateway's modules take 100 ms to import

    try:
        yield from read_folder(folder, checker)
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}; give the folder of an audit log") from error
    if not checker.proof.files:
        raise ConfigurationError(f"{folder}: holds no audit log; its files are called audit-....jsonl")


def _head(credentials: Credentials) -> "Anchor":
    from maxam.gateway.chain import Anchor  # noqa: PLC0415 the gateway's modules take 100 ms to import

    with Remote(credentials) as remote:
        answer: dict[str, Any] = remote.get("/v1/audit")
    return Anchor(answer["sequence"], answer["sha256"])


def _anchor(text: str) -> "Anchor":
    from maxam.gateway.chain import Anchor  # noqa: PLC0415 the gateway's modules take 100 ms to import

    found = _ANCHOR.fullmatch(text)
    if found is None:
        raise click.BadParameter("expected SEQUENCE:SHA256, as audit verify prints its head", param_hint="--anchor")
    return Anchor(int(found[1]), found[2])


def _at(facts: dict[str, Any]) -> datetime:
    try:
        return datetime.fromisoformat(str(facts.get("at"))).astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC)  # whatever that line is, it is shown
