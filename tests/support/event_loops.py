"""Both event loops of the client, each with a clock that jumps when all tasks wait."""

import asyncio
import inspect
import selectors
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, Literal

import anyio
import pytest
import trio.testing

EventLoop = Literal["asyncio", "trio"]
EVENT_LOOPS: Final[tuple[EventLoop, ...]] = ("asyncio", "trio")
DEADLINE_S: Final = 1000  # of a test, by that clock
TICK_S: Final = (
    1e-6  # asyncio calls what is due up to a nanosecond early: a timer for the rest would not move the clock
)


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, it moves the clock."""

    now_s = 0.0
    alone = True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready. If nothing is, move the clock by `timeout`. Without a timer nothing would ever happen."""
        if timeout is None and not self.alone:
            return super().select(None)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        assert ready or timeout is not None, "all tasks wait for each other"
        if not ready and timeout:
            self.now_s += timeout + TICK_S
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio on virtual time, as trio has one with MockClock. If not `alone`, other threads give it work."""

    def __init__(self, *, alone: bool = True) -> None:
        self._jumping = JumpingSelector()
        self._jumping.alone = alone
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._jumping.now_s


def options_of(event_loop: EventLoop) -> dict[str, Any]:
    """Return the options of `anyio.run` for virtual time."""
    if event_loop == "asyncio":
        return {"loop_factory": JumpingLoop}
    return {"clock": trio.testing.MockClock(autojump_threshold=0)}


def simulated(main: Callable[[], Awaitable[Any]], event_loop: EventLoop) -> None:
    """Run `main` on virtual time."""
    anyio.run(main, backend=event_loop, backend_options=options_of(event_loop))


def run_on_both_loops(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` on each event loop, on virtual time."""
    for event_loop in EVENT_LOOPS:
        simulated(main, event_loop)


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on each event loop, on virtual time."""

    @wraps(test)
    def run(event_loop: EventLoop, **fixtures: Any) -> None:
        async def bounded() -> None:
            with anyio.fail_after(DEADLINE_S):
                await test(**fixtures)

        simulated(bounded, event_loop)

    own = inspect.Parameter("event_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature(
        [own, *inspect.signature(test).parameters.values()]
    )  # pytest reads the fixtures from it
    setattr(run, "__signature__", signature)  # noqa: B010 - a function has no such attribute for mypy
    parametrized: Callable[..., None] = pytest.mark.parametrize("event_loop", EVENT_LOOPS)(run)
    return parametrized
