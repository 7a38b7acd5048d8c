"""Keep the gateway's advisory tasks running: an error in one of them must not end the broker.

Three things may end the process: the event loop, the committer and the clients' listener. Every other lasting task is *advisory*. When an
advisory task fails, its error is logged, the failure is counted, and the task starts again after a delay. The delay doubles with each
failure, so a lasting cause costs little. Health shows a failed task until it has run for a while without another failure.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast, final

import trio

from maxam.errors import first_error
from maxam.gateway.log import log_bug, log_event

RESTART_S_MIN: Final = 1.0  # before the first restart; each further failure doubles the delay
RESTART_S_MAX: Final = 60.0  # the longest delay: a cause that has ended is noticed within it
STEADY_S: Final = 300.0  # a task that has run for this long has recovered: the delay begins again at its minimum


class _Starting(Protocol):
    """A task that reports when it is ready, as `trio.Nursery.start` wants it."""

    async def __call__(self, *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Run until cancelled."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The newest failure of one task."""

    error: str
    delay_s: float
    at_s: float


@final
class _FirstStart:
    """Hands on the first report that a task is ready, and ignores those of its restarts."""

    def __init__(self, task_status: trio.TaskStatus[list[str]]) -> None:
        self._task_status: Final = task_status
        self.done = False

    def started(self, value: list[str]) -> None:
        """Report that the task is ready."""
        if not self.done:
            self.done = True
            self._task_status.started(value)


@final
class Supervisor:
    """Runs advisory tasks and restarts those that fail.

    Attributes:
        restarts: Failures since the start, by the name of the task.
    """

    def __init__(self) -> None:
        """Make one that runs nothing yet."""
        self.restarts: Final[dict[str, int]] = {}
        self._failures: Final[dict[str, _Failure]] = {}

    async def run(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it returns or this is cancelled; restart it whenever it fails."""
        self.restarts.setdefault(name, 0)
        while True:
            begun_s = trio.current_time()
            try:
                await task()
            except Exception as error:  # noqa: BLE001  # a bug in an advisory task must not end the broker
                await trio.sleep(self._failed(name, error, begun_s))
            else:
                return

    async def serve(self, name: str, task: _Starting, *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Run a task as `run` does, but hand on its first report that it is ready, and raise any error before that."""
        first = _FirstStart(task_status)
        problem: Exception | None = None

        async def started_or_raise() -> None:
            nonlocal problem
            try:
                await task(task_status=cast("trio.TaskStatus[list[str]]", first))
            except Exception as error:
                if first.done:
                    raise
                problem = error

        await self.run(name, started_or_raise)
        if problem is not None:
            raise problem

    def degraded(self) -> list[str]:
        """Return a line for each task that has failed and has not run for `STEADY_S` since."""
        now_s = trio.current_time()
        return [
            f"task-failed: the task {name} was restarted {self.restarts[name]} times since the start, last after {failure.error}"
            for name, failure in self._failures.items()
            if now_s - failure.at_s < failure.delay_s + STEADY_S
        ]

    def _failed(self, name: str, error: Exception, begun_s: float) -> float:
        """Log and count a failure; return how long to wait before the restart."""
        now_s = trio.current_time()
        last = self._failures.get(name)
        text = _cause(error)
        again = last is not None and now_s - begun_s < STEADY_S
        delay_s = min(2 * last.delay_s, RESTART_S_MAX) if again and last is not None else RESTART_S_MIN
        self.restarts[name] += 1
        self._failures[name] = _Failure(text, delay_s, now_s)
        if again and last is not None and last.error == text:  # one traceback has all
            log_event(logging.ERROR, "task-failed", task=name, error=text, restart_s=delay_s)
        else:
            log_bug("task-failed", error, task=name, error=text, restart_s=delay_s)
        return delay_s


def _cause(error: BaseException) -> str:
    """Return type and text of an error; of a group, of the first error in it."""
    error = first_error(error)
    return f"{type(error).__name__}: {error}"
