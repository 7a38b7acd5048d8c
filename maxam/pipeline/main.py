"""The `maxam-pipeline` command.

Exit codes: 0 done, 1 refused or failed, 2 usage, 3 done, but part of the archive could not be read.
"""

from importlib import import_module
from typing import Final, final

import click

from maxam.admin.escaping import shown
from maxam.compiled import version
from maxam.errors import MaxamError
from maxam.pipeline.errors import not_installed

# Each verb: the module and the name of its click command, imported when it is called, and the first sentence of its help.
_VERBS: Final[dict[str, tuple[str, str]]] = {
    "history": (
        "maxam.pipeline.history:history_command",
        "Keep each message type as a Parquet table with real columns.",
    ),
    "latest": ("maxam.pipeline.latest:latest_command", "Show the value of every topic as of any moment."),
    "changes": ("maxam.pipeline.changes:changes_command", "Show how often topics change."),
    "rejects": ("maxam.pipeline.rejects:rejects_command", "Show what the broker rejected."),
    "freshness": (
        "maxam.pipeline.freshness:freshness_command",
        "Show which topics went without an update for too long.",
    ),
    "check-schema": (
        "maxam.pipeline.check_schema:check_schema_command",
        "Check whether every stored body would be readable with a schema.",
    ),
    "export": ("maxam.pipeline.export:export_command", "Export changes to a file."),
    "compact": (
        "maxam.pipeline.compact:compact_command",
        "Write the last change of each topic and day to a new folder.",
    ),
    "verify": ("maxam.pipeline.verify:verify_command", "Verify that a live gateway delivers what its journal holds."),
    "load": ("maxam.pipeline.load:load_command", "Load initial state into a gateway from a table."),
    "report": ("maxam.pipeline.report:report_command", "Draw what happened as one HTML page."),
    "totals": ("maxam.pipeline.totals:totals_command", "Sum up what machines counted, by hour or gaming day."),
}


@final
class _Group(click.Group):
    """A group that imports a verb when it is called, and whose errors on purpose become one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the chosen verb."""
        try:
            return super().invoke(ctx)
        except MaxamError as error:
            raise click.ClickException(shown(str(error))) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs, in the order of the table, then those added with `add_command`."""
        return [*_VERBS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in _VERBS:
            return super().get_command(ctx, cmd_name)
        module, _, name = _VERBS[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise not_installed(error) from error
        assert isinstance(command, click.Command)  # noqa: S101  # the table is wrong otherwise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs from the table, so that --help imports none of them."""
        rows = [(name, summary) for name, (_, summary) in _VERBS.items()]
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            rows.append((name, command.get_short_help_str(90) if command is not None else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
def main() -> None:
    """Work on a journal with Spark: everything that the broker accepted and rejected, as tables.

    Every verb takes --journal FOLDER and reads it only; a gateway may be writing it. docs/pipeline.md is the guide.
    """


if __name__ == "__main__":
    main()
