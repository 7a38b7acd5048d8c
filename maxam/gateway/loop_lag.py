"""The delay of the event loop: the least that every frame waits for."""

from typing import Final, final

import trio

from maxam.metrics import Histogram

_INTERVAL_S: Final = 0.1  # ten inexpensive measurements a second show each task that blocks the loop for long
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@final
class LoopLag:
    """A task that is due at intervals and records how late it was.

    Attributes:
        histogram: Seconds.
    """

    def __init__(self) -> None:
        self.histogram: Final = Histogram(BOUNDS_S)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due_s = trio.current_time() + _INTERVAL_S
            await trio.sleep_until(due_s)
            self.histogram.observe(trio.current_time() - due_s)
