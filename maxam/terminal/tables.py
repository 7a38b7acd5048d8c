"""Output of `maxam-admin`: tables for people, JSON for programs. Everything that came from a client is escaped."""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from maxam.terminal.escaping import TRUNCATION_MARK, json_line, shown
from maxam.terminal.moments import age
from maxam.terminal.options import WIDE, YAML, in_force, remark
from maxam.terminal.yaml_text import yaml_document

PIPE_WIDTH = 200  # columns of a table that goes into a file or a pipe
VALUE = "VALUE"  # title of the column that may be folded into what the others leave
VALUE_WIDTH_MIN = 24
GAP = 3  # between two columns
CELL_CHARACTERS_MAX = 400  # longer than any destination that people use


def console() -> Console:
    """Return the terminal, or its replacement. It is made on each call, as tests and pipes replace standard output."""
    out = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)


def print_json(value: object) -> None:
    """Print one JSON value on one line, or as a document of YAML if the command was asked for that."""
    click.echo(yaml_document(value) if in_force(YAML) else json_line(value))


def print_line(text: str) -> None:
    """Print one line of text that may hold a client's."""
    click.echo(shown(text))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table of cells as `cell` has them; columns whose title begins with `#` hold numbers, with `@` times."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        numeric = column.startswith("#")
        table.add_column(column.lstrip("#@"), justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        table.add_row(*[cell(value) for value in row])
    return table


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    expendable: Sequence[str] = (),
    remedy: str = "--json shows all",
    shortened: Sequence[str] = (),
    whole: str = "--json shows it whole",
) -> None:
    """Print a table; nothing but its head when there are no rows.

    Args:
        columns: Their titles, as of `make_table`.
        rows: Of cells.
        expendable: Titles of columns that a narrow terminal does without, empty ones and then the first ones first. Standard error
            lists those that were not empty. A cell that is too long even then is folded, not cut, so that rows stay distinct.
        remedy: Advice on standard error how to see all.
        shortened: Titles of columns whose cells stay on one line, and end in an ellipsis where a terminal has no room for more.
        whole: Advice on standard error how to see cells whole that end in an ellipsis.
    """
    out = console()
    table_rows = list(rows)
    if out.is_terminal and not in_force(WIDE):
        table_rows = with_ages(columns, table_rows)
    columns = [title.removeprefix("@") for title in columns]
    table = make_table(columns, table_rows)
    cut = {title.removeprefix("#") for at, title in enumerate(columns) if any(is_cut(row[at]) for row in table_rows)}
    if not out.is_terminal or in_force(WIDE):
        _print_whole(out, table)
        report_cut(cut, whole)
        return
    widths = {str(column.header): _width(column, shortened) for column in table.columns}
    empty = {str(column.header) for column in table.columns if not any(str(text) for text in column.cells)}
    left_out: list[str] = []
    for title in sorted(
        [title for title in expendable if title in widths], key=lambda title: title not in empty
    ):  # an empty column is no loss
        if _total(widths) <= out.width:
            break
        if title not in empty:
            left_out.append(title)
        del widths[title]
    kept = [at for at, column in enumerate(columns) if column.removeprefix("#") in widths]
    table = make_table([columns[at] for at in kept], [[row[at] for at in kept] for row in table_rows])
    spare = max(0, out.width - _total(widths))
    for column in table.columns:
        title = str(column.header)
        if title in shortened:
            natural = _natural_width(column)
            column.max_width = min(natural, widths[title] + spare)
            spare -= column.max_width - widths[title]
            if column.max_width < natural:
                cut.add(title)
            column.overflow = "ellipsis"
            column.no_wrap = True
        else:
            column.overflow = "fold"
            column.no_wrap = column.no_wrap or (title != VALUE and _total(widths) <= out.width)
    out.print(table)
    if left_out:
        remark(f"no room for {', '.join(left_out)}; {remedy}")
    report_cut(cut - set(left_out), whole)


def with_ages(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[Sequence[object]]:
    """Return rows whose times are ages: on a terminal they take less room, and need no arithmetic."""
    times = [at for at, title in enumerate(columns) if title.startswith("@")]
    now = datetime.now(UTC)
    found: list[Sequence[object]] = []
    for row in rows:
        aged = list(row)
        for at in times:
            aged[at] = age(row[at], now)
        found.append(aged)
    return found


def report_cut(titles: Collection[str], whole: str) -> None:
    """Report on standard error in which columns texts end in an ellipsis, and how to see them whole. Nothing if there is none."""
    if titles:
        remark(f"{', '.join(sorted(titles))}: cut where it ends in {TRUNCATION_MARK}; {whole}")


def _print_whole(out: Console, table: Table) -> None:
    """Print a table into a file or a pipe: each row is one line, as long as it is, without blanks at its end."""
    for column in table.columns:
        column.no_wrap = True
    out.width = max(out.width, _total({str(column.header): _natural_width(column) for column in table.columns}))
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        click.echo(line.rstrip())


def _width(column: Column, shortened: Sequence[str]) -> int:
    """Return how much a column needs."""
    if column.header in shortened:
        return min(_natural_width(column), VALUE_WIDTH_MIN)
    return VALUE_WIDTH_MIN if column.header == VALUE else _natural_width(column)


def _natural_width(column: Column) -> int:
    """Return how much a column would take if there were room."""
    return max(cell_len(str(text)) for text in (column.header, *column.cells))


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line, aligned; each value is whole."""
    pairs = [(name, cell(value, None).plain) for name, value in fields]
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {value}".rstrip())


def print_value(value: object) -> None:
    """Print a decoded value as indented JSON that people can read."""
    for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n"):
        click.echo(shown(line))


def cell(value: object, characters_max: int | None = CELL_CHARACTERS_MAX) -> Text:
    """Return the text of a value in a table: without markup, yes and no, nothing for None. A cell stays as it is."""
    return value if isinstance(value, Text) else Text(shown(_text(value), characters_max))


def is_cut(value: object) -> bool:
    """Return True if `cell` leaves out something of a value."""
    if isinstance(value, Text):
        return False
    text = _text(value)
    return len(text) > CELL_CHARACTERS_MAX or (not text.isprintable() and len(shown(text)) > CELL_CHARACTERS_MAX)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case int() | float():
            return str(value)
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
