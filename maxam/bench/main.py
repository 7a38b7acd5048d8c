"""`maxam-bench`: its commands, each of which is imported when it is called."""

from typing import Final, final

import click

from maxam.terminal.groups import LazyGroup

# Name of each command -> (`module:object`, first sentence of its help).
_COMMANDS: Final = {
    "archive": (
        "maxam.bench.archive:archive_command",
        "Write a journal of schema-true changes to FOLDER, as a gateway would have left it after some days.",
    ),
    "run": (
        "maxam.bench.run_command:run_command",
        "Drive a broker that runs: MaXaM, or any other that speaks STOMP 1.2.",
    ),
}
_IN_THE_SOURCE_TREE: Final = {  # targets of make, by command
    "suite": "bench",
    "compare": "compare",
    "grow": "grow",
    "pipeline": "pipeline-bench",
}


@final
class _Bench(LazyGroup):
    """Refers commands of earlier releases to the source tree, where they are now."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        target = _IN_THE_SOURCE_TREE.get(args[0])
        if target is not None:
            ctx.fail(
                f"{args[0]}: this command measures maxam itself and is no longer installed."
                f" Run `make {target}` in the source tree."
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Bench,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
def main() -> None:
    """Put load on a STOMP broker and report rates, latency and freshness. docs/develop/bench.md explains each figure."""
