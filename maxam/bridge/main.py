"""The command `maxam-bridge`: its options. The bridge is imported when it runs, so that `--help` and `--version` are quick."""

from pathlib import Path

import click

from maxam.compiled import version
from maxam.terminal.options import RenamedOption


@click.command("maxam-bridge")
@click.option(
    "--config", "path", type=click.Path(path_type=Path), required=True, help="Configuration file, bridge.toml."
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Check routes, certificates, rights and schemas on both sides, and exit.",
)
@click.option(
    "-o",
    "--format",
    "output",
    cls=RenamedOption,
    former=["--output"],
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the findings of --check. json is one object per line, yaml one document each.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
def bridge(path: Path, only_check: bool, output: str, as_json: bool) -> None:
    """Forward topics between the gateways of a venue and a centre until SIGTERM or SIGINT."""
    from maxam.bridge.running import run  # noqa: PLC0415  # see above

    run(path, only_check, "json" if as_json else output)
