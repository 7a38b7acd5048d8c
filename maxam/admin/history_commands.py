"""The verb `maxam-admin topics history`."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from maxam.admin.completion import destinations
from maxam.admin.escaping import shown
from maxam.admin.options import FOLDER, WHOLE, full_option, json_option, with_credentials
from maxam.admin.output import VALUE, cell, print_json, print_table
from maxam.admin.remote import Credentials, Remote, history_path
from maxam.errors import ConfigurationError, JournalError

_CHANGES: Final = 20  # unless --limit says otherwise
_PAGE_MAX: Final = 200


@click.command("history", short_help="Show the last changes of a topic, out of the journal.")
@click.argument("destination", shell_complete=destinations)
@click.option(
    "--limit", type=click.IntRange(min=1), default=_CHANGES, show_default=True, help="So many changes at most."
)
@click.option("--before", type=click.IntRange(min=1), metavar="REVISION", help="Only changes of lower revisions.")
@click.option("--values", is_flag=True, help="Show values too, as far as the certificate may receive them.")
@full_option
@click.option("--journal", type=FOLDER, help="Read this journal, or backup, here; no gateway is asked.")
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

    What of it cannot be read, or was removed, is told on standard error; exit code 1 when something is lost.
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
        raise JournalError("not everything could be read: see the problems above")


def _pages(
    page: Callable[[int | None, int], dict[str, Any]], before: int | None, limit: int, told: dict[str, bool]
) -> Iterator[dict[str, Any]]:
    """Iterate over changes, page after page; what pages tell of goes to `told`, with whether something is lost."""
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
    from maxam.admin.history_process import HistoryRequest, page  # noqa: PLC0415 fastavro and trio take long to import

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
