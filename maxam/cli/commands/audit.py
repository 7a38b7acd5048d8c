"""`maxam-admin audit`: read and prove the audit log of a gateway, from its files."""

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from maxam.audit_chain import Anchor, Checker, Line, has_text, read_folder
from maxam.cli.options import FOLDER, json_option, limit_option, with_credentials
from maxam.counting import counted
from maxam.errors import ConfigurationError, MaxamError
from maxam.https_client import Credentials, Remote
from maxam.terminal.groups import CommandGroup
from maxam.terminal.moments import SINCE_HELP, Moment
from maxam.terminal.tables import print_json, print_line, print_table

FOLLOW_S: Final = 1.0  # between two requests for further lines
_LINES: Final = "/v1/audit/lines"
ROWS_MAX: Final = 1000  # the last ones, that `show` prints without --limit
_ANCHOR: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_COLUMNS: Final = ("at", "event", "outcome", "principal", "address", "count", "reason")
_SHOWN_APART: Final = frozenset({*_COLUMNS, "sequence", "previous"})


class BrokenChainError(MaxamError):
    """Lines of an audit log were changed, removed, added or exchanged."""

    code = "audit-broken"


@click.group(cls=CommandGroup)
def audit() -> None:
    """Read and prove the audit log: who did what, with which outcome and why."""


@audit.command("show")
@click.argument("folder", type=FOLDER, required=False)
@click.option("--event", help="Show only this event, such as send-rejected.")
@click.option("--principal", help="Show only lines of this principal.")
@click.option("--fingerprint", help="Show only lines of the certificate with this SHA-256.")
@click.option("--outcome", help="Show only lines with this outcome, such as refused.")
@click.option("--find", metavar="TEXT", help="Show only lines with this text in one of their values, in either case.")
@click.option("--since", type=Moment(), help=f"Show lines since: {SINCE_HELP}")
@click.option("--follow", is_flag=True, help="Show each further line until Ctrl-C. Not with FOLDER.")
@limit_option("Show at most this many lines, the last ones.")
@json_option
@with_credentials
def audit_show(
    credentials: Credentials,
    /,
    folder: Path | None,
    find: str | None,
    since: datetime | None,
    follow: bool,
    limit: int | None,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """Show lines of the audit log in FOLDER, or of the running gateway without FOLDER, the newest last.

    Of a gateway, without --since, only the last 1000 lines or --limit are searched. That needs the right read.

    A line with a count stands for that number of events, from first to last. Standard error reports a broken chain.

    \b
    maxam-admin audit show var/journal-audit --event send-rejected --since 2h
    maxam-admin audit show --follow --principal controller-7
    """  # noqa: D301 a mark of click's: the lines stay as they are
    if folder is None:
        _show_of_gateway(credentials, since, follow, limit, as_json, {**wanted, "find": find})
        return
    if follow:
        raise click.UsageError("--follow goes without FOLDER")
    checker = Checker()
    lines = (
        line.facts
        for line in _lines(folder, checker)
        if all(value is None or line.facts.get(name) == value for name, value in wanted.items())
        and (find is None or has_text(line.facts, find.lower()))
        and (since is None or _at(line.facts) >= since)
    )
    limit = limit or (None if as_json else ROWS_MAX)
    rows = list(deque(lines, limit))
    _print_lines(rows, as_json)
    for found in checker.proof.breaks[:1]:
        click.echo(
            f"broken chain at {found.file}:{found.line}: {found.problem}. Run `maxam-admin audit verify`", err=True
        )


def _print_lines(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
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


def _show_of_gateway(
    credentials: Credentials,
    since: datetime | None,
    follow: bool,
    limit: int | None,
    as_json: bool,
    wanted: dict[str, str | None],
) -> None:
    """Show the last lines of the running gateway, and then each further one if they are to be followed."""
    most = limit or ROWS_MAX
    begin: dict[str, str | int] = {"tail": most} if since is None else {"since": since.isoformat()}
    with Remote(credentials) as remote:
        found: deque[dict[str, Any]] = deque(maxlen=most)
        answer = remote.get(_LINES, **wanted, **begin)
        found.extend(answer["lines"])
        while answer["next"] is not None:
            answer = remote.get(_LINES, **wanted, after=answer["next"])
            found.extend(answer["lines"])
        _print_lines(found, as_json)
        if follow:
            with suppress(KeyboardInterrupt):
                _follow(remote, wanted, answer, as_json)


def _follow(remote: Remote, wanted: dict[str, str | None], answer: dict[str, Any], as_json: bool) -> NoReturn:
    """Print each line that is written after those of an answer."""
    while True:
        if answer["next"] is None:
            time.sleep(FOLLOW_S)
        answer = remote.get(_LINES, **wanted, after=answer["last"])
        for row in answer["lines"]:
            if as_json:
                print_json(row)
            else:
                more = [f"{name}={value}" for name, value in row.items() if name not in _SHOWN_APART]
                print_line(" ".join([str(row[name]) for name in _COLUMNS if name in row] + more))


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

    Exits with 1 and shows file and line where the chain is broken. Without an anchor, two changes stay unknown: a removed end, and an
    end that was written again. So keep the head that this prints in another place, and give it the next time. A gateway may be writing.

    \b
    maxam-admin audit verify var/journal-audit --anchor 1207:9f2c...
    """  # noqa: D301 a mark of click's: the lines stay as they are
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
                f"then {counted(proof.unfinished_bytes, 'byte')} of an unfinished line: a crash, or a gateway is writing"
            )
        print_line(f"head {proof.head}")
        if not known:
            print_line("without --anchor or --live, missing lines after the head stay unknown; keep the head")
    if proof.breaks:
        raise BrokenChainError(f"{folder}: the chain is broken")


@audit.command("head")
@json_option
@with_credentials
def audit_head(credentials: Credentials, as_json: bool) -> None:
    """Print the last line that the gateway has written, as an anchor to be kept elsewhere. Right: read."""
    head = _head(credentials)
    if as_json:
        print_json(asdict(head))
    else:
        print_line(str(head))


def _lines(folder: Path, checker: Checker) -> Iterator[Line]:
    try:
        yield from read_folder(folder, checker)
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}; give the folder of an audit log") from error
    if not checker.proof.files:
        raise ConfigurationError(f"{folder}: holds no audit log; its files are called audit-....jsonl")


def _head(credentials: Credentials) -> Anchor:
    with Remote(credentials) as remote:
        answer: dict[str, Any] = remote.get("/v1/audit")
    return Anchor(answer["sequence"], answer["sha256"])


def _anchor(text: str) -> Anchor:
    found = _ANCHOR.fullmatch(text)
    if found is None:
        raise click.BadParameter("expected SEQUENCE:SHA256, as audit verify prints its head", param_hint="--anchor")
    return Anchor(int(found[1]), found[2])


def _at(facts: dict[str, Any]) -> datetime:
    try:
        return datetime.fromisoformat(str(facts.get("at"))).astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC)  # whatever that line is, it is shown
