"""The arrangement of listings: sorted by a field, with chosen fields, or names alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Any, Final

import click

# Keys in a context's `meta`.
SORT: Final = "maxam.sort"
FIELDS: Final = "maxam.fields"
NAMES_ONLY: Final = "maxam.names"
_Row = dict[str, Any]


def setting(name: str) -> Any:  # noqa: ANN401  # as the option has it
    """Return what the running command was given for one of the keys. None if nothing."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(name)


def in_wanted_order(rows: Iterator[_Row], most: int | None) -> Iterator[_Row]:
    """Return rows in the order of `--sort`, at most the first ones. Rows without a value for the field are last.

    Without the option the rows pass as they come.

    Raises:
        click.UsageError: No row has the field.
    """
    given: str | None = setting(SORT)
    if not given:
        return rows
    field, falls = given.removeprefix("-"), given.startswith("-")
    known: set[str] = set()
    without: list[_Row] = []

    def with_value() -> Iterator[_Row]:
        for row in rows:
            known.update(row)
            if row.get(field) is None:
                if most is None or len(without) < most:
                    without.append(row)
            else:
                yield row

    def rank(row: _Row) -> tuple[int, Any]:
        value = row[field]
        if isinstance(value, int | float):
            return 0, value
        return (1, value) if isinstance(value, str) else (2, json.dumps(value, sort_keys=True))

    if most is None:
        found = sorted(with_value(), key=rank, reverse=falls)
    else:
        found = (nlargest if falls else nsmallest)(most, with_value(), key=rank)
    if known and field not in known:
        raise _unknown("--sort", field, known)
    return iter([*found, *without][:most])


def chosen(row: Mapping[str, Any], fields: Sequence[str]) -> _Row:
    """Return the fields of `--columns` of a row; raises click.UsageError if it has not all of them."""
    for field in fields:
        if field not in row:
            raise _unknown("--columns", field, row)
    return {field: row[field] for field in fields}


def columns_of(fields: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the titles of chosen fields, with the marks of times and numbers."""
    titles = []
    for field in fields:
        values = [row[field] for row in rows if row[field] is not None]
        numeric = values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        mark = "#" if numeric else "@" if field.endswith(("_at", "_until", "_since")) else ""
        titles.append(mark + field.replace("_", " ").upper())
    return titles


def _unknown(option: str, field: str, known: Mapping[str, Any] | set[str]) -> click.UsageError:
    return click.UsageError(f"{option} {field}: no row has this field. The fields are {', '.join(sorted(known))}.")
