"""The gateway's own time: the machine's clock, as long as it agrees with the time that has passed.

`accepted_at_us` never decreases and is journalled. A value accepted under a clock that is a month ahead would be a month ahead for ever.
Therefore the clock is compared with the monotonic clock. When it jumps ahead by more than a limit, the gateway goes on with its own
time. It does so until the clock comes back or the gateway is restarted. When the clock is behind, the gateway's time runs nine tenths
as fast until the clock has caught up. So values age, and topics are found overdue, though the newest change is in the future.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.gateway.log import log_event

CATCHING_UP: Final = 0.9  # how fast the gateway's time goes while the clock is behind
AGREES_S: Final = 5.0  # a difference that is not reported: time servers correct as much
_INTERVAL_S: Final = 1.0


def _suspended_s() -> float:
    """Return how long the machine has been suspended since it was booted: the monotonic clock does not count that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


@final
class WallClock:
    """Returns the gateway's time, in microseconds since the epoch.

    Attributes:
        latest_us: The time about a second ago at most, while `run` runs; other threads than the event loop's may read it.
    """

    __slots__ = ("_at_s", "_at_us", "_jump_us", "_reported", "_suspended", "_suspended_s", "_wall_ns", "latest_us")

    def __init__(
        self,
        newest_us: int,
        jump_s_max: float,
        now_s: float,
        wall_ns: Callable[[], int] = time.time_ns,
        suspended: Callable[[], float] = _suspended_s,
    ) -> None:
        """Begin with the machine's clock, or with the newest change if that is later.

        Args:
            newest_us: When the newest change was accepted.
            jump_s_max: By how much the clock may jump ahead.
            now_s: Monotonic seconds, on the clock of the event loop.
            wall_ns: The machine's clock, nanoseconds since the epoch.
            suspended: Returns for how many seconds the monotonic clock has stood still.
        """
        self._jump_us: Final = int(jump_s_max * 1e6)
        self._wall_ns: Final = wall_ns
        self._suspended: Final = suspended
        self._at_us = max(newest_us, wall_ns() // 1000)
        self.latest_us = self._at_us
        self._at_s = now_s
        self._suspended_s = suspended()
        self._reported = ""

    def now_us(self) -> int:
        """Return the time; to be called in the event loop."""
        return self.at(trio.current_time())

    def at(self, now_s: float) -> int:
        """Return the time at a moment of the event loop's clock, which is the present one."""
        wall_us = self._wall_ns() // 1000
        elapsed_us = (now_s - self._at_s) * 1e6
        least_us = self._at_us + int(CATCHING_UP * elapsed_us)
        if wall_us < least_us:
            return least_us
        own_us = self._at_us + int(elapsed_us)
        if wall_us > own_us + self._jump_us:
            asleep_s = self._suspended()
            own_us += int((asleep_s - self._suspended_s) * 1e6)
            if wall_us > own_us + self._jump_us:
                return own_us
            self._suspended_s = asleep_s
        self._at_us = wall_us
        self._at_s = now_s
        return wall_us

    def ahead_s(self) -> float:
        """Return by how many seconds the machine's clock is ahead of the gateway's time; below 0 if it is behind."""
        return (self._wall_ns() // 1000 - self.now_us()) / 1e6

    def degraded(self) -> list[str]:
        """Return a line if the machine's clock and the gateway's time differ."""
        ahead_s = self.ahead_s()
        if ahead_s > AGREES_S:
            return [
                f"clock: it has jumped {ahead_s:.0f} s ahead (clock_jump_s_max). The gateway goes on with its own time until the"
                " clock comes back. Restart the gateway if the clock is right"
            ]
        if ahead_s < -AGREES_S:
            return [
                f"clock: it is {-ahead_s:.0f} s late, so it was set back or was ahead once. The gateway's time goes"
                f" {CATCHING_UP:g} times as fast until the clock has caught up. Check the time service"
            ]
        return []

    async def run(self) -> None:
        """Compare the clocks again and again, and log what changes; until cancelled."""
        while True:
            self.latest_us = self.now_us()
            found = self.degraded()
            state = "" if not found else "ahead" if self.ahead_s() > 0 else "behind"
            if state != self._reported:
                self._reported = state
                if found:
                    log_event(logging.ERROR, "clock-wrong", state=state, error=found[0].removeprefix("clock: "))
                else:
                    log_event(logging.WARNING, "clock-wrong-ended")
            await trio.sleep(_INTERVAL_S)
