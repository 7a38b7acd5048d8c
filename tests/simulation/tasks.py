"""As much of `trio`, `time`, `threading` and `queue` as the modules of a simulated process use.

Each name stands for the process that runs (`Runtime.running`). A coroutine goes on when what it waits for has come, a moment later, in
any order among others. All waits are in simulated time.
"""

import math
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, ClassVar, Final, Self

from tests.simulation.fibers import EndedFiber, Event, Fiber, Lock, Register, SimpleQueue, _sleep
from tests.simulation.loop import EPOCH_S
from tests.simulation.runtime import Runtime

MOMENT_S: Final = 0.002  # longest, until a task goes on


class ExitProcess(BaseException):
    """Stands for `os._exit`. No code under test catches it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _CancelledTask(BaseException):
    def __init__(self, scope: "CancelScope") -> None:
        super().__init__()
        self.scope = scope


@types.coroutine
def _wait(register: Register) -> Generator[Register, None, None]:
    yield register


class Threaded(Runtime):
    """A process with an event loop."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: deque[Callable[[], object]] = deque()
        self._tasks: list[Task] = []

    def post(self, call: Callable[[], object]) -> None:
        """Have the event loop call something, after all that was asked for before."""
        self._asked.append(call)
        self.after(self.moment(), self._call_all)

    def moment(self) -> float:
        """Return how late the event loop is."""
        return self.rng.random() * (MOMENT_S + self.stalls_s)

    def _call_all(self) -> None:
        while self._asked and not self.ended:
            self._asked.popleft()()

    def run_sync_soon(self, call: Callable[..., object], *arguments: Any, **_: object) -> None:
        """As a token of trio's."""
        self.post(partial(call, *arguments))

    def start(self, call: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> "Task":
        """Start a task."""
        task = Task(self, call(*arguments))
        self._tasks = [one for one in self._tasks if not one.done]
        self._tasks.append(task)
        return task

    def exit(self, status: int) -> None:
        """End by itself."""
        raise NotImplementedError

    def crashed(self, error: BaseException) -> None:
        """End because a task has failed."""
        raise error

    def end_all(self) -> None:
        """End all threads and tasks where they wait."""
        before, Runtime.running = Runtime.running, self
        try:
            self.end_fibers()
            for task in self._tasks:
                task.close()
        finally:
            Runtime.running = before


class Task:
    """A coroutine that is under way."""

    current: ClassVar["Task"]

    def __init__(self, process: Threaded, coroutine: Coroutine[Any, Any, object]) -> None:
        self.process = process
        self.done = False
        self.scopes: list[CancelScope] = []
        self._coroutine = coroutine
        self._waits = 0  # number of the wait that it is in
        self._woken = True
        process.after(process.moment(), partial(self._step, 0))

    def _step(self, number: int) -> None:
        if self.done or number != self._waits:
            return
        scope = next((scope for scope in self.scopes if scope.cancelled), None)
        Task.current = self
        self._waits += 1
        self._woken = False
        try:
            register = self._coroutine.send(None) if scope is None else self._coroutine.throw(_CancelledTask(scope))
        except StopIteration:
            self.done = True
        except ExitProcess as end:
            self.done = True
            self.process.exit(end.status)
        except BaseException as error:  # noqa: BLE001  # the process judges it
            self.done = True
            if not self.process.ended:
                self.process.crashed(error)
        else:
            register(partial(self._wake, self._waits))

    def _wake(self, number: int) -> None:
        if number == self._waits and not self._woken:
            self._woken = True
            self.process.after(self.process.moment(), partial(self._step, number))

    def wake(self) -> None:
        """End its present wait."""
        self._wake(self._waits)

    def close(self) -> None:
        """Give it up, as the end of its process does."""
        if not self.done:
            self.done = True
            Task.current = self
            with suppress(
                RuntimeError, ValueError
            ):  # it would wait in `finally`, or it is the one that ends the process
                self._coroutine.close()


class CancelScope:
    """As of trio, for one task."""

    def __init__(self, *, deadline: float = math.inf, **_: object) -> None:
        self.cancelled = False
        self._deadline_s = deadline
        self._task: Task | None = None

    def __enter__(self) -> Self:
        task = self._task = Task.current
        task.scopes.append(self)
        if self._deadline_s < math.inf:
            task.process.after(max(0.0, self._deadline_s - task.process.now()), self.cancel)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if self._task is not None:
            self._task.scopes.remove(self)
            self._task = None
        return isinstance(error, _CancelledTask) and error.scope is self

    def cancel(self) -> None:
        """End what is in it."""
        self.cancelled = True
        if self._task is not None:
            self._task.wake()


class TaskEvent:
    """As `trio.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._wakes: list[Callable[[], None]] = []

    def set(self) -> None:
        """Set it."""
        self._set = True
        for wake in self._wakes:
            wake()
        self._wakes.clear()

    def is_set(self) -> bool:
        """Return True if it is set."""
        return self._set

    async def wait(self) -> None:
        """Wait until it is set."""
        await (_wait(_at_once) if self._set else _wait(self._wakes.append))


class AutoResetEvent:
    """Stands for `maxam.gateway.auto_reset_event.AutoResetEvent`."""

    def __init__(self) -> None:
        self._set = False
        self._wake: Callable[[], None] = lambda: None

    def set(self) -> None:
        """Let the waiter go on."""
        self._set = True
        self._wake()

    async def wait(self, deadline_s: float = math.inf) -> None:
        """Wait for the flag or for a time."""

        def register(wake: Callable[[], None]) -> None:
            self._wake = wake
            if self._set:
                wake()
            elif deadline_s < math.inf:
                process = _running()
                process.after(max(0.0, deadline_s - process.now()), wake)

        await _wait(register)
        self._set = False


class Calls:
    """Stands for `maxam.gateway.calls.Calls`."""

    def __enter__(self) -> Self:
        self._process = _running()
        self._asked: deque[Callable[[], object]] = deque()
        self._event = AutoResetEvent()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_sync_soon(self, call: Callable[[], object]) -> None:
        """Have something called in the event loop."""
        self._asked.append(call)
        self._event.set()

    async def next(self) -> None:
        """Wait for the next call and make it."""
        while not self._asked:
            await self._event.wait()
        self._asked.popleft()()


class Nursery:
    """As of trio, but that its tasks are never cancelled: their process ends."""

    def __init__(self) -> None:
        self._process = _running()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await TaskEvent().wait()

    def start_soon(self, call: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> None:
        """Start a task."""
        self._process.start(call, *arguments)


class Thread:
    """Stands for `threading.Thread`."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...] = (), **_: object) -> None:
        self._body = partial(target, *args)
        self._fiber: Fiber | None = None

    def start(self) -> None:
        """Start it."""
        self._fiber = _running().spawn(self._body)

    def is_alive(self) -> bool:
        """Return True if it runs."""
        return self._fiber is not None and not self._fiber.dead

    def join(self) -> None:
        """Wait for its end."""
        while self.is_alive():
            _sleep(0.01)


class Trio:
    """Stands for `trio`, `trio.lowlevel` and `trio.to_thread`."""

    def __init__(self) -> None:
        self.lowlevel = self.to_thread = self
        self.Event = TaskEvent
        self.CancelScope = CancelScope
        self.open_nursery = Nursery

    def CapacityLimiter(self, _: int) -> None:  # noqa: N802  # as of trio
        """Return no limit."""

    def current_time(self) -> float:
        """Monotonic seconds."""
        return _running().now()

    def current_trio_token(self) -> Threaded:
        """Return what takes calls of threads."""
        return _running()

    def spawn_system_task(self, call: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> None:
        """Start a task."""
        _running().start(call, *arguments)

    def move_on_after(self, seconds: float) -> CancelScope:
        """Return a scope that ends."""
        return CancelScope(deadline=self.current_time() + seconds)

    async def checkpoint(self) -> None:
        """Let others run."""
        await _wait(_at_once)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await _wait(lambda wake: _running().after(seconds, wake))

    async def run_sync(self, work: Callable[..., Any], *arguments: Any, **_: object) -> Any:
        """Do work in a thread."""
        done, found, failed = TaskEvent(), [], []
        process = _running()

        def body() -> None:
            try:
                found.append(work(*arguments))
            except EndedFiber:
                raise
            except BaseException as error:  # noqa: BLE001  # the task gets it
                failed.append(error)
            process.post(done.set)

        process.spawn(body)
        await done.wait()
        if failed:
            raise failed[0]
        return found[0]


class Time:
    """Stands for `time`."""

    def monotonic(self) -> float:
        """The clock of the machine."""
        return _running().local_s

    def perf_counter(self) -> float:
        """The true time."""
        return _running().now()

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return int((EPOCH_S + _running().now()) * 1e6) * 1000

    def sleep(self, seconds: float) -> None:
        """Wait in a thread."""
        _sleep(seconds)


TRIO: Final = Trio()
TIME: Final = Time()
THREADING: Final = types.SimpleNamespace(Thread=Thread, Lock=Lock, Event=Event)
QUEUE: Final = types.SimpleNamespace(SimpleQueue=SimpleQueue, Empty=Empty)


def _at_once(wake: Callable[[], None]) -> None:
    wake()


def _running() -> Threaded:
    process = Runtime.running
    assert isinstance(process, Threaded), "no process runs"
    return process
