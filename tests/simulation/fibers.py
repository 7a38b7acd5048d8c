"""Threads of a simulation: each runs code that blocks, and only one runs at a time, when the simulation decides."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import ClassVar, Generic, Self, TypeVar

import greenlet

T = TypeVar("T")
Register = Callable[[Callable[[], None]], None]  # takes what is to be called when a wait is over
Park = Callable[[Register, float | None], None]


class EndedFiber(BaseException):
    """The process of this thread was killed. No code under test catches it."""


class Fiber:
    """One thread of a simulated process.

    Attributes:
        current: The one that runs.
        sleep: Waits for some seconds, in this fiber.
        park: Waits until something is called, at most for some seconds, in this fiber.
    """

    current: ClassVar["Fiber | None"] = None

    def __init__(self, body: Callable[[], None], sleep: Callable[[float], None], park: Park) -> None:
        self.park = park
        self._greenlet = greenlet.greenlet(self._run)
        self._body = body
        self.sleep = sleep

    def _run(self) -> None:
        with suppress(EndedFiber):
            self._body()

    @property
    def dead(self) -> bool:
        """Whether it has ended."""
        return bool(self._greenlet.dead)

    def go(self) -> None:
        """Run it to the next place where it waits. Raises what it raises. Does nothing after its end."""
        if not self._greenlet.dead:
            self._greenlet.parent = greenlet.getcurrent()
            before, Fiber.current = Fiber.current, self
            self._greenlet.switch()
            Fiber.current = before

    def end(self) -> None:
        """End it where it waits."""
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.throw(EndedFiber())


def wait() -> None:
    """Wait in a fiber, until somebody calls `go`."""
    parent = greenlet.getcurrent().parent
    assert parent is not None
    parent.switch()


class Lock:
    """Stands for `threading.Lock` in code that fibers run."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> Self:
        while self._held:
            _sleep(0.001)
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._held = False


class Event:
    """Stands for `threading.Event` in code that fibers run."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Set it."""
        self._set = True

    def is_set(self) -> bool:
        """Return True if it is set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; return True if it is set."""
        while timeout is None and not self._set:
            _sleep(1.0)
        _sleep(timeout or 0.0)
        return self._set


class SimpleQueue(Generic[T]):
    """Stands for `queue.SimpleQueue` in code that fibers run. One of them takes."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake: Callable[[], None] = _nothing

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        wake, self._wake = self._wake, _nothing
        wake()

    def get_nowait(self) -> T:
        """Take an item. Raises Empty."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def get(self, timeout: float | None = None) -> T:
        """Wait for an item and take it. Raises Empty when the time is over."""
        while not self._items:
            fiber = Fiber.current
            assert fiber is not None, "the event loop would wait"
            fiber.park(self._register, timeout)
            if timeout is not None:
                break
        return self.get_nowait()

    def _register(self, wake: Callable[[], None]) -> None:
        self._wake = wake


def _nothing() -> None:
    pass


def _sleep(seconds: float) -> None:
    fiber = Fiber.current
    if fiber is None:
        raise RuntimeError("the event loop would wait")
    fiber.sleep(seconds)
