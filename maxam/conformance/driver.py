"""The program that drives a library: commands to its standard input, reports from its standard output, one JSON object a line."""

import base64
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import trio

from maxam.conformance.server import Entry

Report = dict[str, Any]
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024


class BrokenPromiseError(Exception):
    """A library did not do what a case expects. The text is the reason."""


@final
class Driver:
    """One process of the driver.

    Attributes:
        claims: Its levels, and codes of promises with a `-` that it does not claim.
        values: The topics of each subscription that the application holds by its reports, with their bodies.
        stored: The same as they were at the newest position, by subscription.
        positions: The newest position of each subscription.
    """

    def __init__(self, command: Sequence[str], ca: Path, transcript: list[Entry], errors: int | None) -> None:
        """Make it; `run` starts the process.

        Args:
            command: Starts the process.
            ca: PEM file of the authority, in its environment as MAXAM_CONFORMANCE_CA.
            transcript: Gets its commands and reports.
            errors: Gets its standard error. None passes it on.
        """
        self.claims: frozenset[str] = frozenset()
        self.values: Final[dict[str, dict[str, bytes]]] = {}
        self.stored: Final[dict[str, dict[str, bytes]]] = {}
        self.positions: Final[dict[str, str]] = {}
        self.wants_ticket: Any = None
        self._command: Final = command
        self._environment: Final = {**os.environ, "MAXAM_CONFORMANCE_CA": str(ca)}
        self._transcript: Final = transcript
        self._errors: Final = errors
        self._reports: Final[list[Report]] = []
        self._process: trio.Process | None = None
        self._problem = ""

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Read its reports until it ends or this is cancelled. Then it is killed, with all that it started."""
        pipe = subprocess.PIPE
        try:
            self._process = process = await trio.lowlevel.open_process(
                self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=self._errors,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise BrokenPromiseError(f"the driver cannot be started: {error}") from error
        task_status.started()
        try:
            await self._read(process)
            self._problem = self._problem or "the driver has ended"
        finally:
            with trio.CancelScope(shield=True):
                await self.kill()

    async def kill(self) -> None:
        """Kill the process, as a crash would."""
        process = self._process
        if process is not None and process.returncode is None:
            self._problem = "the driver was killed"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def command(self, do: str, **rest: object) -> None:
        """Give it a command."""
        line = json.dumps({"do": do} | {name: value for name, value in rest.items() if value is not None})
        self._note(f"driver <- {line}")
        assert self._process is not None  # noqa: S101 - `run` came before
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        try:
            await self._process.stdin.send_all(line.encode() + b"\n")
        except trio.BrokenResourceError as error:
            raise BrokenPromiseError("the driver does not read its standard input") from error

    def check(self) -> None:
        """Raise BrokenPromiseError if the process has ended, or printed what is no report."""
        if self._problem:
            raise BrokenPromiseError(self._problem)

    def seen(self, saw: str, **where: object) -> Report | None:
        """Return the oldest report of a kind that was not returned yet and has these fields, or None."""
        self.check()
        for at, report in enumerate(self._reports):
            if report["saw"] == saw and where.items() <= report.items():
                return self._reports.pop(at)
        return None

    def ever(self, saw: str, **where: object) -> bool:
        """Return True if there is a report of a kind that `seen` has not returned and that has these fields."""
        return any(one["saw"] == saw and where.items() <= one.items() for one in self._reports)

    async def _read(self, process: trio.Process) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe
        unread = b""
        async for data in process.stdout:
            *lines, unread = (unread + bytes(data)).split(b"\n")
            if len(unread) > _LINE_BYTES_MAX:
                self._problem = "a line of the driver is too long"
                return
            for line in lines:
                if line.strip():
                    await self._take(line)

    async def _take(self, line: bytes) -> None:
        self._note(f"driver -> {line.decode(errors='replace')[:2000]}")
        try:
            report = json.loads(line)
            saw = report["saw"]
            subscription = str(report.get("subscription", ""))
            held = self.values.setdefault(subscription, {})
            if saw == "value":
                held[report["destination"]] = base64.b64decode(report["body"])
            elif saw == "deleted":
                held.pop(report["destination"], None)
            elif saw == "reset":
                held.clear()
            elif saw == "position":
                self.positions[subscription] = report["position"]
                self.stored[subscription] = dict(held)
            elif saw == "ticket-wanted":
                await self.command("ticket", ticket=self.wants_ticket())
            report["at_s"] = trio.current_time()
            self._reports.append(report)
        except (ValueError, KeyError, TypeError) as error:
            self._problem = f"the driver printed {line.decode(errors='replace')[:200]!r}, which is no report: {error!r}"

    def _note(self, text: str) -> None:
        self._transcript.append(Entry(trio.current_time(), 0, "kit", remark=text))
