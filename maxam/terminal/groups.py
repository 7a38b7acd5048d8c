"""Groups of commands: an expected error becomes one line, and the module of a command is imported when the command is called."""

from collections.abc import Mapping
from copy import copy
from importlib import import_module
from typing import IO, Any, Final, final

import click
from click.shell_completion import CompletionItem

from maxam.error_codes import code_of
from maxam.errors import MaxamError, first_error
from maxam.exit_codes import ExitCode, exit_code_of
from maxam.terminal.escaping import json_line, shown

JSON_ERRORS: Final = "maxam.json_errors"  # key in a context's `meta`: errors are JSON too
_SUMMARY_CHARACTERS_MAX = 300  # of a command's first sentence in the list of its group


class PartialError(MaxamError):
    """Report that a command is done, but part of its input could not be read."""

    code = "input-incomplete"
    exit_code = ExitCode.PARTIAL


class CommandGroup(click.Group):
    """A group that reports each expected error as one line on standard error, and lists summaries in full."""

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return name and first sentence of each command that is not hidden."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [
            (name, command.get_short_help_str(_SUMMARY_CHARACTERS_MAX))
            for name, command in commands
            if command is not None and not command.hidden
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; click itself cuts each summary off at the end of its line."""
        rows = self.summaries(ctx)
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name. The error for an unknown name lists the commands of the group."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = ", ".join(name for name, _ in self.summaries(ctx))
            text = f"{error.format_message()} The commands are {names}."
            raise click.UsageError(text, ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except BaseExceptionGroup as group:  # of a command with tasks
            if group.split((MaxamError, OSError))[1] is not None:
                raise  # one of them is a defect
            raise _reported(first_error(group), ctx) from None
        except (MaxamError, OSError) as error:
            raise _reported(error, ctx) from error
        except UnicodeEncodeError as error:
            if "surrogates" not in error.reason:
                raise
            raise click.UsageError(shown(f"an argument is not UTF-8: {error.object!a}")) from error


def _reported(error: BaseException, ctx: click.Context) -> BaseException:
    """Return what click reports for an expected error. It ends the program without a message if the reader of a pipe has gone."""
    as_json = bool(ctx.meta.get(JSON_ERRORS))
    match error:
        case MaxamError():
            return Failure(str(error), error, as_json)
        case BrokenPipeError():
            return error
        case OSError():  # commands explain errors of their files; this is standard output, as on a full disk
            return Failure(f"{error.filename or 'standard output'}: {error.strerror}", error, as_json)
        case _:
            return error


CommandGroup.group_class = CommandGroup  # the class of groups made with the decorator of a group


class LazyGroup(CommandGroup):
    """A group that imports a command when it is called; neither `--help` nor shell completion imports any.

    Attributes:
        lazy: Name of each command -> (`module:object`, first sentence of its help). An empty sentence hides the command.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:  # noqa: ANN401  # as click has them
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted([*self.lazy, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        target, summary = self.lazy[cmd_name]
        module, _, name = target.partition(":")
        command = getattr(self.load(module), name)
        assert isinstance(command, click.Command)  # noqa: S101  # the table is wrong otherwise
        return command if summary else _hidden(command)

    def load(self, module: str) -> object:
        """Import the module of a command."""
        return import_module(module)

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return name and first sentence of each command that is not hidden, without importing those of the table."""
        rows = [(name, summary) for name, (_, summary) in self.lazy.items() if summary]
        rows += [
            (name, self.commands[name].get_short_help_str(_SUMMARY_CHARACTERS_MAX))
            for name in super().list_commands(ctx)
            if not self.commands[name].hidden
        ]
        return sorted(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, and then the options, that begin as what was typed."""
        rows = [CompletionItem(name, help=text) for name, text in self.summaries(ctx) if name.startswith(incomplete)]
        return rows + click.Command.shell_complete(self, ctx, incomplete)


def _hidden(command: click.Command) -> click.Command:
    """Return a copy of a command that no list shows: the former name of one that has moved."""
    alias = copy(command)
    alias.hidden = True
    return alias


@final
class Failure(click.ClickException):
    """Makes click print an error on standard error, and exit with its exit code.

    The line is `Error [CODE]: TEXT`, or `{"error": {"code": CODE, "message": TEXT}}` for a command whose output is JSON.
    """

    def __init__(self, text: str, error: Exception, as_json: bool = False) -> None:
        line = json_line({"error": {"code": code_of(error), "message": text}}) if as_json else error_line(error, text)
        super().__init__(line)
        self.exit_code = exit_code_of(error)  # type: ignore[misc]  # click declares it for the class, and reads it of the instance

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(self.message, file=file, err=file is None)


def error_line(error: Exception, text: str = "") -> str:
    """Return what a command prints for an error: its code and a text, by default its own."""
    return f"Error [{code_of(error)}]: {shown(text or str(error))}"
