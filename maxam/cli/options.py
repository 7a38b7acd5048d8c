"""Options and forms of output that the commands of `maxam-admin` share."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from maxam.cli.arranging import FIELDS, NAMES_ONLY, SORT, chosen, columns_of, in_wanted_order, setting
from maxam.cli.repeating import watch_option
from maxam.client_config import Given
from maxam.https_client import Credentials, Remote
from maxam.terminal.escaping import shown
from maxam.terminal.groups import JSON_ERRORS
from maxam.terminal.options import QUIET, WIDE, YAML, in_force, remark
from maxam.terminal.tables import print_json, print_line, print_table

TABLE_ROWS_MAX: Final = 1000  # of a table for people without --limit

Column = str | tuple[str, str | Callable[[dict[str, Any]], object]]
"""A title, and the field of a row that the cells show, or a function of the row. A title alone shows the field of its name."""

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
    """Give a command `-o`, `--json` and `-q`, and an argument `as_json`, which YAML sets too: `print_json` prints it."""
    return _output_option(
        verb,
        ["table", "json", "yaml", "wide"],
        "Form of the output. json has one object per line of a listing, yaml one document each, wide all columns.",
    )


def listing_option(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a command that calls `print_rows` the options of `json_option`, `-o name`, `--sort` and `--columns`."""
    text = (
        "Form of the output. json has one object per line, yaml one document each, wide all columns, name only names."
    )
    for option in (
        click.option("--columns", metavar="FIELD,...", help="Show only these fields of the JSON, in this order."),
        click.option("--sort", metavar="FIELD", help="Sort by a field of the JSON. `-FIELD` begins with the largest."),
    ):
        verb = option(verb)
    return _output_option(verb, ["table", "json", "yaml", "wide", "name"], text)


def listing(
    default: int | None = None, most: int | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that asks the gateway for a listing all that such commands have: a limit, forms, `--watch` and credentials."""

    def with_options(verb: Callable[..., None]) -> Callable[..., None]:
        asked = watch_option(with_credentials(verb))
        return limit_option(default=default, most=most)(listing_option(asked))

    return with_options


def _output_option(verb: Callable[..., None], forms: Sequence[str], text: str) -> Callable[..., None]:
    @click.option("-o", "--format", "output", type=click.Choice(forms), default="table", show_default=True, help=text)
    @click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    @click.option("-q", "--quiet", is_flag=True, help="Print neither remarks nor confirmations. Errors are printed.")
    @wraps(verb)
    def run(
        *args: object,
        output: str,
        as_json: bool,
        quiet: bool,
        sort: str | None = None,
        columns: str | None = None,
        **kwargs: object,
    ) -> None:
        meta = click.get_current_context().meta
        meta[QUIET], meta[WIDE], meta[NAMES_ONLY], meta[YAML] = (
            quiet,
            *(output == form for form in ("wide", "name", "yaml")),
        )
        meta[JSON_ERRORS] = as_json or output in ("json", "yaml")  # JSON is YAML too
        meta[SORT] = sort
        meta[FIELDS] = [] if columns is None else [field.strip() for field in columns.split(",")]
        verb(*args, as_json=meta[JSON_ERRORS], **kwargs)

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
    columns: Sequence[Column],
    expendable: Sequence[str] = (),
    whole: str = "--json shows it whole",
    shortened: Sequence[str] = (),
    optional: Sequence[str] = (),
    names: Sequence[str] = ("destination",),
) -> None:
    """Print a listing in the form, in the order and with the fields that the options of `listing_option` ask for.

    Args:
        rows: All rows.
        limit: Most that are printed.
        as_json: Print one object a line.
        columns: Columns of the table.
        expendable: Titles of columns that a narrow terminal does without.
        whole: Advice how to see cells whole.
        shortened: Titles of columns whose cells stay on one line.
        optional: Titles of columns that are left out if all their cells are empty.
        names: Fields that are together the name of a row.
    """
    fields: list[str] = setting(FIELDS) or []
    if setting(NAMES_ONLY):
        for row in islice(in_wanted_order(rows, limit), limit):
            click.echo("\t".join([shown(str(row[field])) for field in names]))
        return
    if as_json:
        for row in islice(in_wanted_order(rows, limit), limit):
            print_json(chosen(row, fields) if fields else row)
        return
    rows = in_wanted_order(rows, (limit or TABLE_ROWS_MAX) + 1)
    if fields:
        found = [chosen(row, fields) for row in _first_rows(rows, limit)]
        print_table(columns_of(fields, found), [list(row.values()) for row in found])
        return
    titles = [column if isinstance(column, str) else column[0] for column in columns]
    shows = [_field_of(column) if isinstance(column, str) else column[1] for column in columns]
    table = [
        [row.get(show) if isinstance(show, str) else show(row) for show in shows] for row in _first_rows(rows, limit)
    ]
    places = [
        place
        for place, name in enumerate(titles)
        if name not in optional or any(row[place] not in ("", None) for row in table)
    ]
    print_table(
        [titles[place] for place in places],
        [[row[place] for place in places] for row in table],
        expendable,
        shortened=shortened,
        whole=whole,
    )


def _field_of(title: str) -> str:
    return title.lstrip("#@").lower().replace(" ", "_").replace("-", "_")
