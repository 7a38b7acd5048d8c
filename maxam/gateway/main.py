"""The process of a gateway: signals and exit codes."""

import ipaddress
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click
import trio

from maxam import __version__
from maxam.compiled import core
from maxam.config import Settings
from maxam.errors import ConfigurationError, JournalError
from maxam.exit_codes import exit_code_of
from maxam.gateway.commit_loop import EXIT_DISK
from maxam.gateway.loaded_config import LoadedConfig, read_config, read_settings
from maxam.gateway.log import escape, log_event, set_log_format, start_logging
from maxam.gateway.notify import notify
from maxam.gateway.opening import open_gateway
from maxam.gateway.server import Gateway, Service

STOP_MARGIN_S: Final = 4.0  # beyond `stop_timeout_s`, for what is appended, the logs and the last segment


def run(
    path: Path,
    check: bool,
    online: bool,
    services: Sequence[Service],
    checks: Sequence[Callable[[Settings, LoadedConfig], None]] = (),
    front: Callable[[Settings, bool], None] | None = None,
) -> None:
    """Run the gateway until SIGTERM or SIGINT. Exits with the code of an error of its files.

    Args:
        path: Configuration file.
        check: Check the files, and return without serving.
        online: With `check`, ask etcd too.
        services: Run beside the clients' listener; their listeners are called `admin` and `enrolment` in the ready line.
        checks: Raise ConfigurationError for what the services could not use.
        front: Serves the clients of a gateway on another machine, or only checks the files. Raises ConfigurationError.
    """
    start_logging()
    try:
        settings = read_settings(path)
        set_log_format(settings.log.format)
        if settings.front is not None and front is not None:
            front(settings, check)
            if check:
                click.echo(f"{path}: valid")
            return
        loaded = read_config(settings)
        if check:
            for further in checks:
                further(settings, loaded)
            for line in _check_online(settings) if online else ():
                click.echo(line)
            click.echo(f"{path}: valid")
            return
        trio.run(partial(_serve, settings, loaded, services))
    except (ConfigurationError, JournalError) as error:
        _refuse([error])
    except BaseExceptionGroup as group:
        if group.split((ConfigurationError, JournalError))[1] is not None:
            raise  # a bug among them
        _refuse(_leaves(group))


def _check_online(settings: Settings) -> list[str]:
    """Return lines about etcd. Raises ConfigurationError."""
    if settings.cluster is None:
        raise ConfigurationError("--online asks etcd, and there is no section [cluster]. Add it, or leave --online out")
    from maxam.cluster.checking import check_online  # noqa: PLC0415  # only what is wanted is loaded

    return check_online(settings, settings.cluster)


def _refuse(errors: Sequence[BaseException]) -> NoReturn:
    for error in errors:
        click.echo(f"maxam-gateway: {escape(str(error))}", err=True)
    sys.exit(exit_code_of(errors[0]))


async def _serve(settings: Settings, loaded: LoadedConfig, services: Sequence[Service]) -> None:
    if settings.journal.durability == "none":
        log_event(logging.WARNING, "NOT-DURABLE", action='accepted values are lost in a crash: durability = "none"')
    while await _serve_once(settings, loaded, services):
        loaded = read_config(settings)
    log_event(logging.INFO, "stopped")


async def _serve_once(settings: Settings, loaded: LoadedConfig, services: Sequence[Service]) -> bool:
    """Serve until a stop. Return True if the gateway has to be opened again, because it has copied another journal."""
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        try:
            gateway = open_gateway(settings, loaded)
        except OSError as error:
            raise JournalError(f"the journal in {settings.journal.folder} cannot be used: {error}") from error
        await nursery.start(_obey_signals, gateway, stopping)
        await gateway.run(services, _report_ready)
        nursery.cancel_scope.cancel()
    return gateway.role.copied and not stopping.is_set()


def _report_ready(addresses: list[str]) -> None:
    line = " ".join(
        f"{name}={address}"
        for name, address in zip(("tls", "admin", "enrolment", "web"), addresses, strict=False)
        if address  # a gateway that follows has no listener for clients
    )
    shown_addresses = " ".join(filter(None, addresses))
    log_event(logging.INFO, "ready", version=__version__, core=core(), pid=os.getpid(), addresses=shown_addresses)
    for address in addresses[1:2]:  # of the admin listener
        host, _, port = address.rpartition(":")
        local = ipaddress.ip_address(host.strip("[]"))
        shown = "localhost" if local.is_loopback or local.is_unspecified else host
        log_event(logging.INFO, "console", address=f"https://{shown}:{port}/console/")
    click.echo(f"ready {line}")  # last: a program that waits for it finds the log complete
    notify("READY=1")
    notify("STATUS=serving" if addresses[0] else "STATUS=following")


async def _obey_signals(gateway: Gateway, asked: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    """Reload or stop the gateway as signals ask for it; set `asked` at a stop."""
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
                asked.set()
                _end_if_overdue(gateway.settings.limits.stop_timeout_s + STOP_MARGIN_S)
                notify("STOPPING=1")
                gateway.stop()


def _end_if_overdue(timeout_s: float) -> None:
    """End the process after a time, whatever it waits for: a disk that hangs would hold a graceful stop for ever."""

    def end() -> None:
        action = "the process ends; see the journal's disk, then start it again"
        log_event(logging.ERROR, "stop-overdue", seconds=f"{timeout_s:g}", action=action)
        os._exit(EXIT_DISK)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
