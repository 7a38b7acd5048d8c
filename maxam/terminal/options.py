"""Options of commands: former spellings that still work, and what all programs have in common."""

from collections.abc import Sequence
from typing import Any, Final, final

import click

QUIET: Final = "maxam.quiet"  # keys in a context's `meta`
WIDE: Final = "maxam.wide"
YAML: Final = "maxam.yaml"


class RenamedOption(click.Option):
    """An option with former names and variables, which work for one release and which no help shows.

    Attributes:
        former: The former names, such as `--gateway`.
    """

    def __init__(self, names: Sequence[str], *args: Any, former: Sequence[str] = (), **kwargs: Any) -> None:  # noqa: ANN401  # as click has them
        super().__init__([*names, *former], *args, **kwargs)
        self.former = tuple(former)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the present names, and the help with the present variable."""
        names, variables = self.opts, self.envvar
        self.opts = [name for name in names if name not in self.former]
        self.envvar = variables[0] if isinstance(variables, list) else variables
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts, self.envvar = names, variables


@final
class Pair(click.ParamType[tuple[str, str]]):
    """A key and a value with a separator between them.

    Attributes:
        name: Name in help texts, such as `KEY=VALUE`.
    """

    def __init__(self, name: str, separator: str) -> None:
        self.name = name
        self._separator: Final = separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401  # as click has it
        """Cut the text at its first separator."""
        if isinstance(value, tuple):
            return value
        key, separator, text = value.partition(self._separator)
        if not key or not separator:
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        return key, text


def in_force(flag: str) -> bool:
    """Return True if the running command has set a flag: QUIET, WIDE or YAML."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(flag))


def remark(text: str) -> None:
    """Print a remark on standard error, unless the command is to be quiet."""
    if not in_force(QUIET):
        click.echo(text, err=True)
