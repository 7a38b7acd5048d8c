"""A process of a simulated cluster: its clock, its threads, and what happens to all of them when it is stopped."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Protocol

from tests.simulation import fibers
from tests.simulation.fibers import Fiber, Register
from tests.simulation.simulated_log import Engine


class Host(Protocol):
    """As much of a machine as its processes need.

    Attributes:
        rate: Of its clock.
    """

    rate: float


class World(Protocol):
    """Where processes run."""

    rng: random.Random
    now_s: float
    engine: Engine

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Have something happen later."""


class Runtime:
    """A process.

    Attributes:
        running: The one that does something now.
        rng: Decides about delays.
        frozen: It stands still, as after SIGSTOP.
        ended: It is over.
        stalls_s: How late its event loop is at most, each time.
    """

    running: ClassVar["Runtime | None"] = None

    def __init__(self, world: World, host: Host) -> None:
        self.rng = world.rng
        self.frozen = self.ended = False
        self.stalls_s = 0.0
        self._world = world
        self._host = host
        self._held: list[Callable[[], None]] = []
        self._fibers: list[Fiber] = []

    @property
    def local_s(self) -> float:
        """The monotonic clock of the machine."""
        return self._world.now_s * self._host.rate

    def now(self) -> float:
        """The time for calls of the log."""
        return self._world.now_s

    def sleep(self, seconds: float) -> None:
        """Wait in a thread."""
        fiber = self._fiber
        self.after(seconds, lambda: self._go(fiber))
        fibers.wait()

    def changed(self, seconds: float) -> None:
        """Wait in a thread for a change of the log."""
        watchers = self._world.engine.watchers
        found: list[Callable[[], None]] = []

        def register(wake: Callable[[], None]) -> None:
            watchers.append(wake)
            found.append(wake)

        try:
            self.park(register, seconds)
        finally:
            with suppress(ValueError):
                watchers.remove(found[0])

    def park(self, register: Register, seconds: float | None) -> None:
        """Wait in a thread until what is registered is called, at most for some seconds."""
        fiber, woken = self._fiber, [False]

        def wake() -> None:
            if not woken[0]:
                woken[0] = True
                self._go(fiber)

        register(lambda: self.after(0.0, wake))
        if seconds is not None:
            self.after(seconds, wake)
        fibers.wait()

    def _go(self, fiber: Fiber) -> None:
        self._fiber = fiber
        fiber.go()

    def spawn(self, body: Callable[[], None]) -> Fiber:
        """Start a thread."""
        fiber = Fiber(body, self.sleep, self.park)
        self._fibers.append(fiber)
        self.after(0.0, lambda: self._go(fiber))
        return fiber

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Have this process do something later, unless it has ended by then."""
        self._world.after(seconds, partial(self.run, call))

    def run(self, call: Callable[[], None]) -> None:
        """Do something in this process, once it is not frozen."""
        if self.frozen:
            self._held.append(call)
        elif not self.ended:
            before, Runtime.running = Runtime.running, self
            try:
                call()
            finally:
                Runtime.running = before

    def freeze(self) -> None:
        """Stop the process."""
        self.frozen = True

    def end_fibers(self) -> None:
        """End all threads where they wait."""
        self.ended = True
        for fiber in self._fibers:
            fiber.end()
