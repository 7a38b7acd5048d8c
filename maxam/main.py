"""The command `maxam-gateway`: its options.

The gateway is imported when it runs. So `--help`, `--version` and a wrong option take a tenth of a second instead of half of one.
"""

from pathlib import Path

import click

from maxam.compiled import version


@click.command("maxam-gateway")
@click.option(
    "--config", "path", type=click.Path(path_type=Path), required=True, help="Configuration file, maxam.toml."
)
@click.option(
    "--check", is_flag=True, help="Check configuration, policy, schemas and certificates, and exit without serving."
)
@click.option(
    "--online",
    is_flag=True,
    help="With --check, ask etcd too: releases, largest request, members and their clocks.",
)
@click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
def gateway(path: Path, check: bool, online: bool) -> None:
    """Run the MaXaM broker until SIGTERM or SIGINT; SIGHUP reloads policy, schemas and certificates."""
    if online and not check:
        raise click.UsageError("--online needs --check")
    from maxam.assembly import run  # noqa: PLC0415  # see above

    run(path, check, online)
