"""Wake one waiting task from synchronous code, at the cost of one reschedule."""

import math
from typing import Final, final

import trio


@final
class AutoResetEvent:
    """A flag that one task waits for. Waiting resets it.

    `trio.Event` can be set only once, and `trio.Condition` needs a lock. The loops of the gateway need a reusable event several thousand
    times a second.
    """

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: trio.lowlevel.Task | None = None

    def set(self) -> None:
        """Let the waiter go on, now or when it next waits. Call it on the thread of the event loop."""
        self._set = True
        if self._waiter is not None:
            waiter: Final = self._waiter
            self._waiter = None
            trio.lowlevel.reschedule(waiter)

    async def wait(self, deadline_s: float = math.inf) -> None:
        """Wait for the flag or for `deadline_s` of the clock of `trio.current_time`. Always a checkpoint."""
        if self._set:
            self._set = False
            await trio.lowlevel.checkpoint()
            return
        if deadline_s == math.inf:
            await self._park()
        else:
            with trio.CancelScope(deadline=deadline_s):
                await self._park()
        self._set = False

    async def _park(self) -> None:
        self._waiter = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED
