"""The command `maxam-gateway`: arguments, signals, exit codes."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from maxam import __version__
from maxam.compiled import core, version
from maxam.config import Settings
from maxam.errors import ConfigurationError, JournalError
from maxam.gateway.log import escape, log_event, start_logging
from maxam.gateway.notify import notify
from maxam.gateway.server import Gateway, Service, open_gateway
from maxam.gateway.sources import Sources, read_settings, read_sources

EXIT_REFUSED: Final = 1


def command(services: Sequence[Service], checks: Sequence[Callable[[Settings, Sources], None]] = ()) -> click.Command:
    """Make the command.

    Args:
        services: Run beside the clients' listener; their listeners are called `admin` and `enrolment` in the ready line.
        checks: Raise ConfigurationError for what the services could not use.
    """

    @click.command("maxam-gateway")
    @click.option(
        "--config", "path", type=click.Path(path_type=Path), required=True, help="The configuration file, maxam.toml."
    )
    @click.option("--check", is_flag=True, help="Check configuration, policy, schemas and certificates; do not serve.")
    @click.version_option(version(), prog_name="maxam", message="%(prog)s %(version)s")
    def gateway(path: Path, check: bool) -> None:
        """Run the MaXaM broker until SIGTERM or SIGINT; SIGHUP reloads policy, schemas and certificates."""
        start_logging()
        try:
            settings = read_settings(path)
            sources = read_sources(settings)
            if check:
                for further in checks:
                    further(settings, sources)
                click.echo(f"{path}: good")
                return
            trio.run(partial(_serve, settings, sources, services))
        except* (ConfigurationError, JournalError) as errors:
            for error in _leaves(errors):
                click.echo(f"maxam-gateway: {escape(str(error))}", err=True)
            sys.exit(EXIT_REFUSED)

    return gateway


async def _serve(settings: Settings, sources: Sources, services: Sequence[Service]) -> None:
    if settings.journal.durability == "none":
        log_event(logging.WARNING, "NOT-DURABLE", action='accepted values are lost in a crash: durability = "none"')
    async with trio.open_nursery() as nursery:
        try:
            gateway = open_gateway(settings, sources)
        except OSError as error:
            raise JournalError(f"the journal in {settings.journal.folder} cannot be used: {error}") from error
        await nursery.start(_obey_signals, gateway)
        await gateway.run(services, _say_ready)
        nursery.cancel_scope.cancel()
    log_event(logging.INFO, "stopped")


def _say_ready(addresses: list[str]) -> None:
    line = " ".join(
        f"{name}={address}" for name, address in zip(("tls", "admin", "enrolment"), addresses, strict=False)
    )
    click.echo(f"ready {line}")
    log_event(logging.INFO, "ready", version=__version__, core=core(), pid=os.getpid(), addresses=" ".join(addresses))
    notify("READY=1")


async def _obey_signals(gateway: Gateway, *, task_status: trio.TaskStatus[None]) -> None:
    stopping = False
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                gateway.reloader.ask("SIGHUP")
            elif stopping:
                log_event(logging.WARNING, "stopped-at-once", signal=signal.Signals(number).name)
                os._exit(128 + number)
            else:
                stopping = True
                notify("STOPPING=1")
                gateway.stop()


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
