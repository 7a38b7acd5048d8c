"""Limits how long expensive frames hold the event loop, over all connections and fairly by principal."""

from collections.abc import Callable
from typing import Final, final

import trio

# Slow feeds of one principal in one pass of the loop, in seconds, before its connections wait: one takes 0.3 ms and more.
FEEDS_FREE_S: Final = 0.0005
# Slow feeds take at most a third of the loop: after them others have it for twice as long, up to the maximum.
_REST_SHARE: Final = 2.0
REST_S_MAX: Final = 0.05
_HEAVY_S: Final = 1.0  # a principal whose last slow feed is longer ago need not wait for that
_OTHERS_S: Final = 1.0  # without a feed of another principal for this long, the loop does not rest
# Connections that may feed in one pass: one while feeds take long, up to the maximum while they do not.
FEEDS_PER_PASS_MAX: Final = 16


@final
class FeedLimiter:
    """Limits how long feeds of expensive frames hold the event loop in one pass, over all connections, and fairly by principal.

    Once the slow feeds of a principal took FEEDS_FREE_S in a pass, all its connections wait for the next one. Those whose last feed was
    slow are then released, one principal after the other, and few in each pass. After slow feeds the loop rests from them: principals that
    have sent such frames lately wait. So others find the loop idle most of the time. It does not rest while there are no others. A principal
    without slow feeds never waits.

    Attributes:
        busy: Whether `over` must be asked before a feed; `release` must be called once a pass meanwhile.
    """

    __slots__ = (
        "_clock",
        "_heavy_until_s",
        "_notify",
        "_others_until_s",
        "_released",
        "_rest_until_s",
        "_spent_s",
        "_waiting",
        "busy",
    )

    def __init__(self, notify: Callable[[], None], clock: Callable[[], float]) -> None:
        """Begin with no principal; `notify` is called when `release` must be called in the next pass. `clock` returns seconds."""
        self._notify: Final = notify
        self._clock: Final = clock
        self._spent_s: Final[dict[str, float]] = {}  # seconds of slow feeds in this pass, by principal
        self._heavy_until_s: Final[dict[str, float]] = {}  # principals with slow feeds lately
        self._rest_until_s = 0.0
        self._others_until_s = 0.0
        # By principal, which alternate: connections whose last feed was quick, which come first, and those whose last feed was slow.
        self._waiting: Final[dict[str, tuple[dict[trio.lowlevel.Task, None], dict[trio.lowlevel.Task, None]]]] = {}
        self._released = 0  # connections in the last pass
        self.busy = False

    def spend(self, principal: str, took_s: float) -> None:
        """Count a slow feed."""
        self._spent_s[principal] = self._spent_s.get(principal, 0.0) + took_s
        self._heavy_until_s[principal] = self._clock() + _HEAVY_S
        self.busy = True
        self._notify()

    def over(self, principal: str, slow: bool) -> bool:
        """Return True if a connection of the principal must wait before it feeds; `slow` is whether its last feed was."""
        if principal not in self._heavy_until_s:
            self._others_until_s = self._clock() + _OTHERS_S
            return False
        if self._spent_s.get(principal, 0.0) > FEEDS_FREE_S or (slow and principal in self._waiting):
            return True
        return self._clock() < self._rest_until_s

    @property
    def rest_s(self) -> float | None:
        """Seconds until `release` lets the next connection feed; None if none waits for that."""
        return max(0.0, self._rest_until_s - self._clock()) if self._waiting else None

    async def wait(self, principal: str, slow: bool) -> None:
        """Wait until the connection may feed."""
        self.busy = True
        self._notify()
        task = trio.lowlevel.current_task()
        self._waiting.setdefault(principal, ({}, {}))[slow][task] = None

        def leave(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._leave(principal, task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def release(self) -> bool:
        """Begin another pass and let the next connections feed. Return True if it must be called in the pass after this one.

        It returns False while nothing is to do, or not before `rest_s`.
        """
        if not self.busy:
            return False
        now_s = self._clock()
        spent_s = sum(self._spent_s.values())
        if spent_s:
            if now_s < self._others_until_s:
                self._rest_until_s = now_s + min(_REST_SHARE * spent_s, REST_S_MAX)
            self._spent_s.clear()
            if spent_s > FEEDS_FREE_S:
                self._released = 0
        if now_s < self._rest_until_s:
            return False
        self._released = min(max(1, 2 * self._released), FEEDS_PER_PASS_MAX)
        for name in [name for name, until_s in self._heavy_until_s.items() if until_s <= now_s]:
            if name not in self._waiting:
                del self._heavy_until_s[name]
        for _ in range(self._released):
            if not self._waiting:
                break
            principal, (quick, others) = next(iter(self._waiting.items()))
            task = next(iter(quick or others))
            self._leave(principal, task)
            if principal in self._waiting:
                self._waiting[principal] = self._waiting.pop(principal)  # after the others
            trio.lowlevel.reschedule(task)
        self.busy = len(self._waiting) > 0 or len(self._heavy_until_s) > 0
        return len(self._waiting) > 0

    def _leave(self, principal: str, task: trio.lowlevel.Task) -> None:
        waiting = self._waiting[principal]
        for tasks in waiting:
            tasks.pop(task, None)
        if not any(waiting):
            del self._waiting[principal]
