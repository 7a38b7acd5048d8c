"""The process of a bridge: signals and exit codes."""

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click
import trio

from maxam.bridge.check import Finding, check
from maxam.bridge.config import Configuration, read_configuration
from maxam.bridge.process import Bridge, DoubledError, TakenOverError
from maxam.errors import ConfigurationError, first_error
from maxam.exit_codes import ExitCode, exit_code_of
from maxam.gateway.log import escape, set_log_format, start_logging
from maxam.gateway.notify import notify
from maxam.terminal.yaml_text import yaml_document


def run(path: Path, only_check: bool, output: str) -> None:
    """Run the bridge until SIGTERM or SIGINT, or check it. Exits with the code of an error.

    Args:
        path: Configuration file.
        only_check: Check, print the findings, and return.
        output: `table`, `json` or `yaml`, of the findings.
    """
    start_logging()
    try:
        configuration = read_configuration(path)
    except ConfigurationError as error:
        _end(str(error), exit_code_of(error))
    set_log_format(configuration.log.format)
    if only_check:
        _report(trio.run(partial(check, configuration)), output)
        return
    try:
        trio.run(partial(_serve, configuration))
    except BaseExceptionGroup as group:
        expected, rest = group.split((TakenOverError, DoubledError))
        if expected is None or rest is not None:
            raise
        _end(_replaced(first_error(expected), configuration.venue.name), ExitCode.REPLACED)


def _replaced(error: BaseException, venue: str) -> str:
    if isinstance(error, DoubledError):
        return (
            f"another venue is connected to the centre as {venue}: its journal has the incarnation {error}."
            " Give each venue a name of its own in [from] name, and end the bridge of the wrong one"
        )
    return (
        f"another bridge has connected to {error} as {venue}, and has taken the place of this one."
        " Run one bridge for each venue. This one does not connect again by itself"
    )


_FORMS: Final[dict[str, Callable[[Finding], str]]] = {
    "json": lambda finding: json.dumps(finding._asdict()),
    "yaml": lambda finding: yaml_document(finding._asdict()),
}


async def _serve(configuration: Configuration) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_obey_signals, nursery.cancel_scope)
        bridge_ = Bridge(configuration, _report_ready)
        notify("READY=1")
        await bridge_.run()


def _report_ready() -> None:
    click.echo("ready")
    notify("STATUS=forwarding")


async def _obey_signals(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            notify("STOPPING=1")
            scope.cancel()
            return


def _report(findings: list[Finding], output: str) -> None:
    for finding in findings:
        click.echo(_FORMS.get(output, str)(finding))
    if any(finding.level == "error" for finding in findings):
        sys.exit(ExitCode.CHECK_FAILED)


def _end(text: str, code: ExitCode) -> NoReturn:
    click.echo(f"maxam-bridge: {escape(text)}", err=True)
    sys.exit(code)
