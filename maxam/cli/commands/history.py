"""`maxam-admin topics history`: the last changes of one topic."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from maxam.cli.completion import destinations
from maxam.cli.options import FOLDER, WHOLE, full_option, json_option, limit_option, with_credentials
from maxam.errors import ConfigurationError
from maxam.https_client import Credentials, Remote, history_path
from maxam.terminal.escaping import shown
from maxam.terminal.groups import PartialError
from maxam.terminal.tables import VALUE, cell, print_json, print_table
from maxam.topic_history import HistoryRequest, page

_CHANGES: Final = 20  # without --limit
_PAGE_MAX: Final = 200


@click.command("history", short_help="Show the last changes of a topic, out of the journal.")
@click.argument("destination", shell_complete=destinations)
@limit_option("Show at most this many changes.", _CHANGES)
@click.option("--before", type=click.IntRange(min=1), metavar="REVISION", help="Show only changes of lower revisions.")
@click.option("--values", is_flag=True, help="Show values too, as far as the certificate may receive them.")
@full_option
@click.option("-j", "--journal", type=FOLDER, help="Read this journal or backup instead of asking the gateway.")
@json_option
@with_credentials
def topics_history(
    credentials: Credentials,
    destination: str,
    limit: int,
    before: int | None,
    values: bool,
    full: bool,
    journal: Path | None,
    as_json: bool,
) -> None:
    """Show the last changes of a topic, newest first, as far as the journal's archive reaches.

    Standard error reports the parts that were removed or cannot be read. Exit code 5 if changes are lost.
    """
    values = values or full
    told: dict[str, bool] = {}
    if journal is not None:
        rows = list(islice(_pages(_folder(journal, destination, values), before, limit, told), limit))
    else:
        with Remote(credentials) as remote:
            asked = {"values": str(values).lower()}

            def page(below: int | None, size: int) -> dict[str, Any]:
                further = {} if below is None else {"before": below}
                answer: dict[str, Any] = remote.get(history_path(destination), limit=size, **asked, **further)
                return answer

            rows = list(islice(_pages(page, before, limit, told), limit))
    if as_json:
        for row in rows:
            print_json(row)
    else:
        _print_changes(rows, values, full)
    for problem in told:
        click.echo(shown(f"problem: {problem}"), err=True)
    if any(told.values()):
        raise PartialError("not everything could be read: see the problems above")


def _pages(
    page: Callable[[int | None, int], dict[str, Any]], before: int | None, limit: int, told: dict[str, bool]
) -> Iterator[dict[str, Any]]:
    """Iterate over changes, page after page. Remarks of pages go to `told`, with True if changes are lost."""
    left = limit
    while True:
        found = page(before, min(left, _PAGE_MAX))
        for problem in found["problems"]:
            told[f"{problem['file']}: {problem['kind']}: {problem['text']}"] = problem["lost"]
        yield from found["changes"]
        left -= len(found["changes"])
        before = found["next"]
        if before is None or left <= 0:
            return


def _folder(journal: Path, destination: str, values: bool) -> Callable[[int | None, int], dict[str, Any]]:
    def read(before: int | None, size: int) -> dict[str, Any]:
        try:
            return page(HistoryRequest(str(journal), destination, before, size, values, withheld=False))
        except OSError as error:
            raise ConfigurationError(f"{error.filename or 'the disk'}: {error.strerror}") from error

    return read


def _print_changes(rows: list[dict[str, Any]], values: bool, full: bool) -> None:
    columns = ["#REVISION", "ACCEPTED AT", "KIND", "PUBLISHER", "SCHEMA", "#BYTES"]
    table = [
        [
            row["revision"],
            row["accepted_at"],
            "delete" if row["deleted"] else "value",
            row["publisher"],
            f"{row['schema']} {row['schema_version']}".strip() or f"({row['encoding']})",
            row["body_bytes"],
            *([cell(_value(row), None) if full else _value(row)] if values else []),
        ]
        for row in rows
    ]
    print_table([*columns, VALUE] if values else columns, table, ["SCHEMA", "PUBLISHER", "BYTES"], whole=WHOLE)


def _value(row: dict[str, Any]) -> object:
    match row["value_state"]:
        case "decoded":
            return row["value"]
        case "raw":
            return f"({row['problem']})"
        case "deleted":
            return ""
        case state:
            return f"({state})"
