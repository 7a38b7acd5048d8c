"""The rows that a job selects: by times, by revisions, and by globs over destinations."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, final

import click

from maxam.config import Limits
from maxam.errors import GlobError
from maxam.globs import Glob, compile_glob
from maxam.terminal.moments import SINCE_HELP, Moment


def moment_text(at: datetime) -> str:
    """Return an aware time as all output has it: in UTC, with `Z`."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


@final
class GlobType(click.ParamType[Glob]):
    """A glob over destinations."""

    name = "GLOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Glob:  # noqa: ANN401  # as click has it
        """Compile a glob."""
        if isinstance(value, Glob):
            return value
        try:
            return compile_glob(value, Limits())
        except GlobError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows a job is about; every part that is None or empty leaves none out.

    Attributes:
        since: First `accepted_at`.
        until: `accepted_at` before which rows are.
        from_revision: First revision.
        to_revision: Last revision.
        globs: A row's destination matches one of them.
    """

    since: datetime | None = None
    until: datetime | None = None
    from_revision: int | None = None
    to_revision: int | None = None
    globs: tuple[Glob, ...] = ()

    def prune(self) -> dict[str, Any]:
        """Return what `examining.examine` and `reading.read_journal` take."""
        found: dict[str, Any] = {
            "since": self.since,
            "until": self.until,
            "from_revision": self.from_revision,
            "to_revision": self.to_revision,
            "destinations": self.globs or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def selection_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --since, --until, --from-revision, --to-revision and --glob, and a `Selection` of them."""

    @functools.wraps(verb)
    def run(
        *args: Any,  # noqa: ANN401  # the command's own
        since: datetime | None,
        until: datetime | None,
        from_revision: int | None,
        to_revision: int | None,
        globs: tuple[Glob, ...],
        **options: Any,  # noqa: ANN401  # likewise
    ) -> None:
        if since is not None and until is not None and until <= since:
            raise click.UsageError("--until is not after --since")
        if from_revision is not None and to_revision is not None and to_revision < from_revision:
            raise click.UsageError("--to-revision is below --from-revision")
        verb(*args, selection=Selection(since, until, from_revision, to_revision, globs), **options)

    options = [
        click.option("--since", type=Moment(), help=f"Only what was accepted since: {SINCE_HELP}"),
        click.option("--until", type=Moment(), help="Only what was accepted before that time."),
        click.option("--from-revision", type=click.IntRange(1), help="Only from this revision on."),
        click.option(
            "--to-revision", "--until-revision", "to_revision", type=click.IntRange(1), help="Only up to this revision."
        ),
        glob_option,
    ]
    for option in reversed(options):
        run = option(run)
    return run


glob_option: Final = click.option(
    "--glob",
    "globs",
    type=GlobType(),
    multiple=True,
    help="Only destinations that match; * is any run of characters but /, ** of any characters. Repeatable, any may match.",
)
