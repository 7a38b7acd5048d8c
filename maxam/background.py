"""Processes of the gateway that must not keep it from its work."""

import os
from typing import Final

_REAL_TIME: Final = frozenset((os.SCHED_FIFO, os.SCHED_RR))


def enter_background(niceness: int) -> None:
    """Give this process a lower priority than that of the gateway, which started it.

    A gateway at a real-time priority hands it on, and a niceness then has no effect. So this process leaves it first.
    """
    if os.sched_getscheduler(0) in _REAL_TIME:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(niceness)
