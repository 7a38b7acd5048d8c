"""`python -m maxam.demo`: plays a venue against a running gateway."""

import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from maxam.client import CertificateFileError, UnreachableError
from maxam.config import load_settings
from maxam.demo.bodies import read_registry
from maxam.demo.options import machines_option, schemas_option, seconds_option
from maxam.demo.processes import run_alone
from maxam.demo.venue import Plan, play
from maxam.errors import ConfigurationError, MaxamError
from maxam.terminal.groups import Failure, error_line
from maxam.terminal.options import RenamedOption

CONFIGURATION: Final = "maxam-dev.toml"
GATEWAY: Final = "127.0.0.1:61614"


@click.command()
@click.option(
    "-s",
    "--server",
    "gateway",
    cls=RenamedOption,
    former=["--gateway"],
    metavar="HOST:PORT",
    show_default=f"that of {CONFIGURATION} in this folder, else {GATEWAY}",
    help="STOMP listener of the gateway.",
)
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    default=Path("certs-dev"),
    show_default=True,
    help="Folder with ca.pem, publisher.pem, publisher.key, subscriber.pem and subscriber.key.",
)
@schemas_option
@machines_option(300, 10_000, "How many machines.")
@click.option(
    "--rate",
    type=click.FloatRange(0.01, 100),
    default=2.0,
    show_default=True,
    help="Readings per second and machine, on average.",
)
@click.option(
    "--slow-ms",
    type=click.IntRange(0, 60_000),
    default=50,
    show_default=True,
    help="How long the slow subscriber takes over a message.",
)
@seconds_option
def main(
    gateway: str | None,
    certificates: Path,
    schemas: Path,
    machines: int,
    rate: float,
    slow_ms: int,
    seconds: float | None,
) -> None:
    """Play a venue: machines that publish, a subscriber with a live table, and a slow one that skips values.

    Exits with 0 when every subscriber ended on the last value of every topic.
    """
    try:
        gateway = gateway or _configured(Path(CONFIGURATION))
    except ConfigurationError as error:
        raise Failure(str(error), error) from error
    address, _, port = gateway.rpartition(":")
    if not address or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"--server {gateway}: expected HOST:PORT, such as 127.0.0.1:61614")
    plan = Plan(address.strip("[]"), int(port), certificates, machines, rate, slow_ms / 1000, seconds)
    good = False
    try:
        good = run_alone(play, plan, read_registry(schemas), Console())
    except MaxamError as problem:
        click.echo(error_line(problem), err=True)
        if isinstance(problem, UnreachableError):
            click.echo("Start the gateway first, in another terminal: make run", err=True)
        elif isinstance(problem, CertificateFileError):
            click.echo(f"`make run` makes development certificates, in certs-dev (none in {certificates}).", err=True)
    sys.exit(0 if good else 1)


def _configured(file: Path) -> str:
    """Return the address of the gateway that a configuration file starts on this machine."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return GATEWAY
    listener = load_settings(text, str(file), file.parent).listener
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)  # noqa: S104  # no listener of ours
    return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"


if __name__ == "__main__":
    main()
