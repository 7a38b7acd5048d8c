"""`python -m maxam.demo`: plays a venue against a running gateway."""

import sys
from pathlib import Path

import click
import trio
from rich.console import Console

from maxam.client import CertificateFileError, UnreachableError
from maxam.demo.bodies import read_registry
from maxam.demo.venue import Plan, play
from maxam.errors import MaxamError


@click.command()
@click.option("--gateway", default="127.0.0.1:61614", show_default=True, help="HOST:PORT of its STOMP listener.")
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    default=Path("certs-dev"),
    show_default=True,
    help="Folder with ca.pem, publisher.pem, publisher.key, subscriber.pem and subscriber.key.",
)
@click.option(
    "--schemas",
    type=click.Path(path_type=Path),
    default=Path("schemas"),
    show_default=True,
    help="Folder of the shipped schemas.",
)
@click.option("--machines", type=click.IntRange(1, 10_000), default=300, show_default=True, help="How many machines.")
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
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=None, help="How long to play; without it, until Ctrl-C."
)
def main(
    gateway: str, certificates: Path, schemas: Path, machines: int, rate: float, slow_ms: int, seconds: float | None
) -> None:
    """Play a venue: machines that publish, a subscriber with a live table, and a slow one that skips values.

    Exits with 0 when every subscriber ended on the last value of every topic.
    """
    address, _, port = gateway.rpartition(":")
    if not address or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"--gateway {gateway}: expected HOST:PORT, such as 127.0.0.1:61614")
    plan = Plan(address.strip("[]"), int(port), certificates, machines, rate, slow_ms / 1000, seconds)
    problem: MaxamError | None = None
    good = False
    try:
        good = trio.run(play, plan, read_registry(schemas), Console())
    except* MaxamError as group:
        problem = _first(group)
    if problem is not None:
        click.echo(f"maxam demo: {problem}", err=True)
        if isinstance(problem, UnreachableError):
            click.echo("Start the gateway first, in another terminal: make run", err=True)
        elif isinstance(problem, CertificateFileError):
            click.echo(f"`make run` makes development certificates, in certs-dev (looked in {certificates}).", err=True)
    sys.exit(0 if good else 1)


def _first(group: BaseExceptionGroup[MaxamError]) -> MaxamError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    main()
