"""Kills and stops single fronts under the kill harness: `python -m tests.faults.kill_harness --kills 200 --fronts 2`.

In each round one front is killed, or is stopped by SIGSTOP for up to WAIT_S. Meanwhile two durable sessions are taken over by new
connections, which may wait for the stopped front. The gateway is ended at any moment of that, as without fronts. All rules of the
harness hold for these sessions too: nothing acknowledged comes again, and nothing old after something newer.
"""

import os
import random
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from tests.support.gateway_folder import GatewayProcess

KILLED: Final = 0.5  # share of the rounds in which a front is killed; in the others one is stopped
WAIT_S: Final = 1.5
TAKEN_OVER: Final = 2


def front_pids(gateway: GatewayProcess, count: int) -> list[int]:
    """Return the processes of the fronts that run, by their number."""
    newest = newest_fronts(gateway.log())
    return [newest[number] for number in range(count)]


def newest_fronts(log: str) -> list[int]:
    """Return the processes of the fronts that a gateway has started last, by their number, from its log."""
    newest = dict(re.findall(r"front-started front=(\d+) pid=(\d+)", log))
    return [int(newest[number]) for number in sorted(newest, key=int)]


async def disturb(
    gateway: GatewayProcess,
    count: int,
    choice: random.Random,
    take_over: Callable[[int], Awaitable[None]],
    ended: Callable[[], bool],
) -> bool:
    """Kill a front, or stop one and take sessions over meanwhile; return whether it was killed.

    Args:
        gateway: It has fronts.
        count: How many.
        choice: Chance.
        take_over: Connects as the reader of a number.
        ended: Returns whether the gateway was ended on purpose. Failures of a connection then mean nothing.
    """
    await trio.sleep(choice.uniform(0.0, 0.3))
    pid = choice.choice(front_pids(gateway, count))
    killed = choice.random() < KILLED
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if killed else signal.SIGSTOP)

    async def one(number: int) -> None:
        try:
            await take_over(number)
        except Exception:
            if not ended():
                raise

    try:
        async with trio.open_nursery() as nursery:
            for number in choice.sample(range(4), TAKEN_OVER):
                nursery.start_soon(one, number)
            if not killed:
                await trio.sleep(choice.uniform(0.0, WAIT_S))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
    finally:
        if not killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return killed
