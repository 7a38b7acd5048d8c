"""The programs of a demo, each with a log of its own."""

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack, final

import trio

from maxam.errors import MaxamError, first_error

START_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.05
_GATEWAY: Final = "from maxam.programs import gateway; gateway()"

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


@final
class Process:
    """A program that can be ended and started again.

    Attributes:
        name: For people.
        log: File with its output since it was started last.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name: Final = name
        self.log: Final = log
        self._command: Final = command
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._running is not None and self._running.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status of the last run; None while it runs, and before the first start."""
        return None if self._running is None else self._running.poll()

    @property
    def pid(self) -> int:
        """Of the last run; 0 before the first start."""
        return 0 if self._running is None else self._running.pid

    def start(self) -> None:
        """Start it. It may not be ready yet."""
        with self.log.open("w") as output:
            self._running = subprocess.Popen(  # noqa: S603 - the program is ours
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which ends them in order
            )

    async def ready(self) -> None:
        """Wait until a gateway has reported that it is ready.

        Raises:
            MaxamError: It ended, or was not ready in time.
        """
        with trio.move_on_after(START_TIMEOUT_S):
            while self.alive:
                text = self.log.read_text(encoding="utf-8", errors="replace")
                if text.startswith("ready ") or "\nready " in text:
                    return
                await trio.sleep(_LOOK_S)
        raise MaxamError(f"{self.name} did not start; {self.log} shows why")

    async def kill(self) -> None:
        """End it with SIGKILL, and wait until it has ended."""
        if self._running is not None:
            with suppress(ProcessLookupError):
                self._running.kill()
            await trio.to_thread.run_sync(self._running.wait)

    async def terminate(self) -> None:
        """End it with SIGTERM, and with SIGKILL if that takes too long."""
        if self._running is not None:
            self._running.terminate()
            with trio.move_on_after(END_TIMEOUT_S):
                await trio.to_thread.run_sync(self._running.wait, abandon_on_cancel=True)
            await self.kill()


def gateway_process(folder: Path) -> Process:
    """Return the gateway whose configuration is in a folder."""
    command = [sys.executable, "-c", _GATEWAY, "--config", str(folder / "maxam.toml")]
    return Process(f"the gateway of {folder.name}", command, folder / "gateway.log")


async def end_all(processes: Iterable[Process]) -> None:
    """End programs with SIGTERM, all at the same time."""
    async with trio.open_nursery() as nursery:
        for process in processes:
            nursery.start_soon(process.terminate)


def run_alone(entry: Callable[[Unpack[_Arguments]], Awaitable[_Result]], *arguments: *_Arguments) -> _Result:
    """Run an async function on trio. Raise the first MaxamError of its tasks without the groups around it."""
    try:
        return trio.run(entry, *arguments)
    except BaseExceptionGroup as group:
        expected, others = group.split(MaxamError)
        if expected is None or others is not None:
            raise
        raise first_error(expected) from group
