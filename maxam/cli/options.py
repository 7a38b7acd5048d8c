"""Options and forms of output that the commands of `maxam-admin` share."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from maxam.client_config import Given
from maxam.https_client import Credentials, Remote
from maxam.terminal.options import QUIET, WIDE, in_force, remark
from maxam.terminal.tables import print_json, print_line, print_table

TABLE_ROWS_MAX: Final = 1000  # of a table for people without --limit
_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., object])


def limit_option(
    text: str = "Print at most this many rows.", default: int | None = None, most: int | None = None
) -> Callable[[_F], _F]:
    """Return the option `-n`, `--limit` of a listing: with another help text, a default, or the most that the gateway allows."""
    return click.option(
        "-n",
        "--limit",
        type=click.IntRange(min=1, max=most),
        default=default,
        show_default=default is not None,
        help=text,
    )


full_option: Final = click.option("--full", is_flag=True, help="Show values too, each in full length.")
WHOLE: Final = "--full shows all of it"
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)


def json_option(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a command `-o`, `--json` and `-q`, and an argument `as_json`."""

    @click.option(
        "-o",
        "--format",
        "output",
        type=click.Choice(["table", "json", "wide"]),
        default="table",
        show_default=True,
        help="Form of the output. json is one object per line of a listing, wide a table with all columns.",
    )
    @click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    @click.option("-q", "--quiet", is_flag=True, help="Print neither remarks nor confirmations. Errors are printed.")
    @wraps(verb)
    def run(*args: object, output: str, as_json: bool, quiet: bool, **kwargs: object) -> None:
        meta = click.get_current_context().meta
        meta[QUIET], meta[WIDE] = quiet, output == "wide"
        verb(*args, as_json=as_json or output == "json", **kwargs)

    return run


def with_credentials(verb: Callable[Concatenate[Credentials, _P], _R]) -> Callable[_P, _R]:
    """Give a command the credentials as first argument. The client configuration is read only when the command runs."""

    @wraps(verb)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given: Given = click.get_current_context().obj
        return verb(given.credentials(), *args, **kwargs)

    return run


def done(as_json: bool, text: str, answer: dict[str, object]) -> None:
    """Print a confirmation as a line, or as JSON; --quiet leaves the line out."""
    if as_json:
        print_json(answer)
    elif not in_force(QUIET):
        print_line(text)


def _first_rows(rows: Iterator[dict[str, Any]], limit: int | None) -> Iterator[dict[str, Any]]:
    """Iterate over the rows that a table shows. A remark reports that there are more."""
    yield from islice(rows, limit or TABLE_ROWS_MAX)
    if limit is None and next(rows, None) is not None:
        remark(f"only the first {TABLE_ROWS_MAX} are shown: --limit N shows more, --json all")


def note_incomplete(remote: Remote) -> None:
    """Warn on standard error that an answer lacks what a front has."""
    if remote.incomplete:
        click.echo("The answer is incomplete: a front did not answer within a second. Run the command again.", err=True)


def print_rows(
    rows: Iterator[dict[str, Any]],
    limit: int | None,
    as_json: bool,
    columns: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[object]],
    expendable: Sequence[str] = (),
    whole: str = "--json shows it whole",
    shortened: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a listing as one object a line, or as a table with the `cells` of each row.

    Columns of `optional` are left out if all their cells are empty. `print_table` has the other arguments.
    """
    if as_json:
        for row in islice(rows, limit):
            print_json(row)
        return
    table = [cells(row) for row in _first_rows(rows, limit)]
    places = [
        place
        for place, name in enumerate(columns)
        if name not in optional or any(row[place] not in ("", None) for row in table)
    ]
    shown = [columns[place] for place in places]
    print_table(
        shown, [[row[place] for place in places] for row in table], expendable, shortened=shortened, whole=whole
    )
