"""An event loop whose tasks go on one step at a time, when the simulation decides; what `trio` and `time` are to the gateway there."""

import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from maxam.gateway import access, commit_loop, orphans, reload

EPOCH_S = 1_767_225_600  # of simulated walls: 2026-01-01


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


class Loop:
    """Stands for `trio` (tasks wait in it) and for `time` (its caller gets the simulated one).

    A coroutine under it is stepped with `step`: every place where it would wait is one step, work in threads is done between two.

    Attributes:
        now_s: Monotonic seconds.
        jumped_s: Error of the machine's clock in seconds.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.jumped_s = 0.0
        self.lowlevel = self.to_thread = self

    def current_time(self) -> float:
        """Monotonic seconds, as `trio` gives them."""
        return self.now_s

    perf_counter = current_time

    def time(self) -> float:
        """Seconds since the epoch, by the machine's clock."""
        return EPOCH_S + self.now_s + self.jumped_s

    def time_ns(self) -> int:
        """The same in nanoseconds."""
        return int(self.time() * 1e6) * 1000

    @property
    def wall_us(self) -> int:
        """The same in microseconds."""
        return self.time_ns() // 1000

    async def checkpoint(self) -> None:
        """Let other tasks run."""
        await _pause()

    async def sleep(self, seconds: float) -> None:
        """Wait for simulated time to pass."""
        until_s = self.now_s + seconds
        await _pause()
        while self.now_s < until_s:
            await _pause()

    async def run_sync(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Do work at some moment between two steps, as a thread does."""
        await _pause()
        result = call(*arguments)
        await _pause()
        return result

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have the modules of the gateway that reload and commit run on it."""
        with ExitStack() as stack:
            for module in (commit_loop, access, orphans, reload):
                for name in {"trio", "time"} & set(vars(module)):
                    stack.enter_context(patch.object(module, name, self))
            yield


class Task:
    """A coroutine that is under way; `result` is what it returned, once `done`."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._call = call
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self.done = False
        self.result: Any = None

    def step(self) -> None:
        """Go on to the next place where it waits; raises what it raises."""
        if self._coroutine is None:
            self._coroutine = self._call()
        try:
            self._coroutine.send(None)
        except StopIteration as end:
            self.done = True
            self.result = end.value

    def close(self) -> None:
        """Give it up, as the end of its process does."""
        if self._coroutine is not None:
            self._coroutine.close()
