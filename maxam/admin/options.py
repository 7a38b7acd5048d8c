"""What all families of `maxam-admin`'s verbs share: options, errors as one line, and how a verb says what it did."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, final

import click

from maxam.admin.client_config import Given
from maxam.admin.escaping import shown
from maxam.admin.output import print_json, print_line, print_table
from maxam.admin.remote import Credentials
from maxam.errors import MaxamError

TABLE_ROWS_MAX: Final = 1000  # of a table for people unless --limit says otherwise
_P = ParamSpec("_P")
_R = TypeVar("_R")
_SENTENCE_CHARACTERS_MAX: Final = 300  # of what a verb says of itself in the list of its group


@final
class Group(click.Group):
    """A group whose errors on purpose become one line on standard error and exit code 1, and whose list of verbs is whole."""

    group_class = type  # so are the groups in it

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, each with its first sentence over as many lines as it takes: click cuts it off after one."""
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, verb.get_short_help_str(_SENTENCE_CHARACTERS_MAX))
            for name, verb in verbs
            if verb is not None and not verb.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run the chosen verb."""
        try:
            return super().invoke(ctx)
        except MaxamError as error:
            raise click.ClickException(shown(str(error))) from error
        except UnicodeEncodeError as error:
            if "surrogates" not in error.reason:
                raise
            raise click.ClickException(shown(f"an argument is not UTF-8: {error.object!a}")) from error
        except BrokenPipeError:
            raise  # whoever read has read enough: click ends without a word
        except (
            OSError
        ) as error:  # of a file each verb says more than this; here it is standard output, as on a full disk
            raise click.ClickException(shown(f"{error.filename or 'standard output'}: {error.strerror}")) from error


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
limit_option: Final = click.option("--limit", type=click.IntRange(min=1), help="Print at most so many rows.")
full_option: Final = click.option("--full", is_flag=True, help="Show values too, each whole, however long it is.")
WHOLE: Final = "--full shows all of it"
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)


def with_credentials(verb: Callable[Concatenate[Credentials, _P], _R]) -> Callable[_P, _R]:
    """Give a verb, before all else, what it needs to connect; the client configuration is read only now."""

    @wraps(verb)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given: Given = click.get_current_context().obj
        return verb(given.credentials(), *args, **kwargs)

    return run


def done(as_json: bool, text: str, answer: dict[str, object]) -> None:
    """Say what was done, as a line for people or as JSON."""
    if as_json:
        print_json(answer)
    else:
        print_line(text)


def _first_rows(rows: Iterator[dict[str, Any]], limit: int | None) -> Iterator[dict[str, Any]]:
    """Iterate over what a table shows; what it leaves out is told on standard error."""
    yield from islice(rows, limit or TABLE_ROWS_MAX)
    if limit is None and next(rows, None) is not None:
        click.echo(f"only the first {TABLE_ROWS_MAX} are shown: --limit N shows more, --json all", err=True)


def print_rows(
    rows: Iterator[dict[str, Any]],
    limit: int | None,
    as_json: bool,
    columns: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[object]],
    expendable: Sequence[str] = (),
    whole: str = "--json shows it whole",
    shortened: Sequence[str] = (),
) -> None:
    """Print a listing: one object a line, or a table of what `cells` makes of each row; the rest is as of `print_table`."""
    if as_json:
        for row in islice(rows, limit):
            print_json(row)
    else:
        print_table(
            columns, [cells(row) for row in _first_rows(rows, limit)], expendable, shortened=shortened, whole=whole
        )
