"""The pace of work that is done in batches beside the clients."""

import time
from collections.abc import Callable
from typing import Final

import trio

_REST: Final = 2.0  # times the duration of a batch, until the next: under load such work takes a third of the time


async def run_batches(step: Callable[[float], bool], idle_s: float) -> None:
    """Process batches until cancelled.

    Args:
        step: Processes one batch at this monotonic time in seconds. Returns True if more work is due.
        idle_s: Seconds until the next call when none is due.
    """
    while True:
        began_s = time.perf_counter()
        more = step(trio.current_time())
        await trio.sleep((time.perf_counter() - began_s) * _REST if more else idle_s)
