"""The `maxam-pipeline` command."""

from typing import Final, final

import click

from maxam.compiled import version
from maxam.pipeline.errors import not_installed
from maxam.terminal.groups import LazyGroup

# Each command: the module and the name of its click command, imported when it is called, and the first sentence of its help.
_VERBS: Final[dict[str, tuple[str, str]]] = {
    "history": (
        "maxam.pipeline.history.command:history_command",
        "Keep each message type as a Parquet table with real columns.",
    ),
    "latest": ("maxam.pipeline.jobs.latest:latest_command", "Show the value of every topic as of any moment."),
    "changes": (
        "maxam.pipeline.jobs.changes:changes_command",
        "Show how often topics change: the busiest first, or per window of time, or those that have fallen silent.",
    ),
    "rejects": (
        "maxam.pipeline.jobs.rejects:rejects_command",
        "Show what the broker rejected: by principal, schema and result, with how often, since when, and a sample.",
    ),
    "freshness": (
        "maxam.pipeline.jobs.freshness:freshness_command",
        "Show which topics went without an update for longer than fresh_within_s of their rule in registry.toml.",
    ),
    "check-schema": (
        "maxam.pipeline.jobs.check_schema:check_schema_command",
        "Check whether every stored body would be readable with the schema in FILE, an .avsc.",
    ),
    "export": (
        "maxam.pipeline.jobs.export:export_command",
        "Export changes, values and deletes, with all that the journal holds about them.",
    ),
    "compact": (
        "maxam.pipeline.jobs.compact:compact_command",
        "Write the last change of each topic on each day in UTC, deletes included, to a new folder: a file for each day.",
    ),
    "verify": (
        "maxam.pipeline.jobs.verify:verify_command",
        "Verify that a live gateway delivers what its journal holds, byte for byte; publishers may go on meanwhile.",
    ),
    "load": (
        "maxam.pipeline.jobs.load:load_command",
        "Load initial state into a gateway from TABLE, a file or folder of Parquet, CSV or JSON lines.",
    ),
    "report": (
        "maxam.pipeline.jobs.report:report_command",
        "Draw what happened as one HTML page: rates, topics, staleness, rejects, growth.",
    ),
}
_EXAMPLES: Final = {
    "totals": "docs/examples/venue"
}  # commands of earlier releases: where they are now, in the source tree


@final
class _Group(LazyGroup):
    """A group that reports an extra that is not installed, and where a command of earlier releases is now."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name."""
        example = _EXAMPLES.get(args[0])
        if example is not None:
            ctx.fail(
                f"{args[0]}: this command is an example now and is no longer installed."
                f" Run `python {example}` with the same options, in the source tree."
            )
        return super().resolve_command(ctx, args)

    def load(self, module: str) -> object:
        """Import the module of a command."""
        try:
            return super().load(module)
        except ModuleNotFoundError as error:
            raise not_installed(error) from error


@click.group(
    cls=_Group, lazy=_VERBS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
def main() -> None:
    """Work on a journal with Spark: everything that the broker accepted and rejected, as tables.

    Every command takes --journal FOLDER and only reads it. A gateway may be writing it. docs/analyse/pipeline.md is the guide.
    """


if __name__ == "__main__":
    main()
