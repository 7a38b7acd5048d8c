"""Threads of a simulation: each runs code that blocks, and only one runs at a time, when the simulation decides."""

from collections.abc import Callable
from contextlib import suppress

import greenlet


class EndedFiber(BaseException):
    """The process of this thread was killed. No code under test catches it."""


class Fiber:
    """One thread of a simulated process."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._greenlet = greenlet.greenlet(self._run)
        self._body = body

    def _run(self) -> None:
        with suppress(EndedFiber):
            self._body()

    def go(self) -> None:
        """Run it to the next place where it waits. Raises what it raises. Does nothing after its end."""
        if not self._greenlet.dead:
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.switch()

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
