"""Processes that make the load, and their messages to and from the process that started them.

Times are `time.monotonic_ns`, which all processes of one machine share.
"""

import contextlib
import ctypes
import gc
import multiprocessing as mp
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, final

from maxam.bench.errors import LoadError

PROGRESS_INTERVAL_NS: Final = 250_000_000
_SET_PARENT_DEATH_SIGNAL: Final = 1  # prctl
_SET_TIMER_SLACK: Final = 29


@dataclass(frozen=True, slots=True)
class Times:
    """When a run does what, in ns of the monotonic clock."""

    origin_ns: int  # stamps count from here: publishers begin
    measure_ns: int
    end_ns: int  # publishers stop
    finals_ns: int  # no last value is sent before

    def second(self, now_ns: int) -> int:
        """Return the second of the measurement that this is in, from 0; -1 when it is in none."""
        if self.measure_ns <= now_ns < self.end_ns:
            return (now_ns - self.measure_ns) // 1_000_000_000
        return -1


@dataclass(frozen=True, slots=True)
class Use:
    """CPU time that one process took of its core while the run was measured."""

    busy: float  # share of the time that it ran
    wanted: float  # share that it ran or waited for the core


@final
class Meter:
    """Notes the processor time of this process at the beginning and the end of the measurement."""

    def __init__(self, times: Times) -> None:
        self._due_ns: list[int] = [times.end_ns, times.measure_ns]
        self._seen: Final[list[tuple[int, int, int]]] = []

    def tick(self, now_ns: int) -> None:
        """Read the clock."""
        if self._due_ns and now_ns >= self._due_ns[-1]:
            self._due_ns.pop()
            self._seen.append((now_ns, time.process_time_ns(), _waited_ns()))

    def use(self) -> Use:
        """Return what was used; all that is known when the run ended early."""
        self._seen.append((time.monotonic_ns(), time.process_time_ns(), _waited_ns()))
        first, last = self._seen[0], self._seen[1] if len(self._seen) > 1 else self._seen[0]
        span_ns = max(1, last[0] - first[0])
        busy_ns = last[1] - first[1]
        return Use(busy_ns / span_ns, (busy_ns + last[2] - first[2]) / span_ns)


@final
class Channel:
    """A load process's end of the line to the process that started it."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._next_ns = 0

    def ready(self) -> Times:
        """Report that everything is connected. Return when to begin."""
        self._connection.send(("ready", None))
        times = self._connection.recv()
        if not isinstance(times, Times):
            raise SystemExit(0)  # stopped before it began
        return times

    def due(self, now_ns: int) -> bool:
        """Return True if it is time to report progress and to check for messages."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + PROGRESS_INTERVAL_NS
        return True

    def progress(self, sent: int, messages: int) -> None:
        """Report the progress."""
        self._connection.send(("progress", (sent, messages)))

    def settled(self) -> None:
        """Report that every last value is here."""
        self._connection.send(("settled", None))

    def stopped(self) -> bool:
        """Return whether the run is over."""
        return self._connection.poll()

    def hear(self) -> object:
        """Wait for word."""
        word: object = self._connection.recv()
        return word


@final
class Worker:
    """A load process, seen from the one that started it."""

    def __init__(self, name: str, work: Callable[..., Any], *arguments: Any, cores: frozenset[int] | None) -> None:  # noqa: ANN401  # any work
        """Start `work(channel, *arguments)`, a function of a module, in a process of its own."""
        context = mp.get_context("spawn")
        self.name: Final = name
        self.connection, theirs = context.Pipe()
        self._process: Final = context.Process(target=_main, args=(theirs, cores, work, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, what: object) -> None:
        """Send word; one that is gone does not hear it."""
        with contextlib.suppress(OSError):
            self.connection.send(what)

    def hear(self) -> tuple[str, Any]:
        """Return its next message.

        Raises:
            LoadError: It failed.
        """
        try:
            what, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise LoadError(f"the process of the {self.name} died; the system's log may know why") from error
        if what == "failed":
            raise value if isinstance(value, LoadError) else LoadError(str(value))
        return what, value

    def end(self) -> None:
        """End it, however far it is."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _main(
    connection: Connection, cores: frozenset[int] | None, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started us ends us
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    libc.prctl(_SET_TIMER_SLACK, 1000)  # ns: sleeps end when they should
    if cores:
        os.sched_setaffinity(0, cores)
    gc.freeze()
    gc.disable()  # nothing here makes cycles, and a collection would be taken for the broker's delay
    try:
        answer = ("done", work(Channel(connection), *arguments))
    except LoadError as error:
        answer = ("failed", error)
    except Exception:  # noqa: BLE001  # a bug: its traceback goes to where a person sees it
        answer = ("failed", f"a load process failed:\n{traceback.format_exc()}")
    connection.send(answer)


def _waited_ns() -> int:
    """Return how long this process has waited for a core, as far as the system reports it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
