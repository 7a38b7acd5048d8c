"""A reload at the fronts of a gateway.

They read the new files, put them into force with the gateway, and report when the old ones are no longer in force.

A front that does not is ended. One on another machine may serve its clients after that, by the old files, until its lease ends. The
reload waits for that time.
"""

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, final

import trio

from maxam.cluster import wire
from maxam.gateway.front_children import Front
from maxam.gateway.front_orders import FrontOrders
from maxam.gateway.front_sources import FRONT_RIGHT, REMOTE_ITEMS, encode_sources
from maxam.gateway.loaded_config import ITEMS, LoadedConfig

_SOURCES_S: Final = 5.0  # a front that has not taken new files by then is ended
_FENCE_MARGIN_S: Final = 1.0  # beyond the time for which a front that was cut off serves clients


@final
class FrontReload:
    """Has fronts put files into force."""

    def __init__(
        self,
        running: Sequence[Front],
        orders: FrontOrders,
        loaded: Callable[[], LoadedConfig],
        grace_s: float,
        wait_change: Callable[[], Awaitable[None]],
        hold_s: float,
    ) -> None:
        """Make it.

        Args:
            running: The fronts that run, at each time.
            orders: Has the number of the files in force.
            loaded: Returns the configuration in force.
            grace_s: Time that a front has to end clients which may not stay.
            wait_change: Waits until a front has reported something, or has ended.
            hold_s: For which a front keeps its clients when it has lost its leader. 0.0 if it ends them.
        """
        self._running: Final = running
        self._orders: Final = orders
        self._loaded: Final = loaded
        self._grace_s: Final = grace_s
        self._wait_change: Final = wait_change
        self._read = orders.epoch  # number of the files that fronts have read last, or were asked to
        self._fence_s: Final = max(wire.FRONT_SILENCE_S, hold_s) + _FENCE_MARGIN_S
        self._fenced_s = -math.inf  # when the last front that was cut off serves no client
        policy = loaded().policy
        if hold_s and any(FRONT_RIGHT in policy.rights(name).admin for name in policy.principals):
            self._fenced_s = (
                trio.current_time() + self._fence_s
            )  # one of the former leader may serve by other files now

    async def prepare(self, after: LoadedConfig) -> None:
        """Have all fronts read items that are about to come into force. One that does not answer in time is killed."""
        before = self._loaded()
        self._read += 1
        epoch = self._read
        contents = {item: after.contents[item] for item in ITEMS if after.digests[item] != before.digests[item]}
        here = encode_sources({"epoch": epoch}, contents)
        there = encode_sources({"epoch": epoch}, {item: one for item, one in contents.items() if item in REMOTE_ITEMS})
        fronts = self._begun
        for front in fronts:
            front.link.send(here if front.local else there)
        await self._all(fronts, lambda front: front.epoch >= epoch, "has not read new files")

    def swap(self, schemas: bool) -> None:
        """Have all fronts put into force what they have read, as the gateway does now; without the schemas if those are refused."""
        self._orders.epoch = self._read
        now = wire.frame(wire.REPORT, json.dumps({"now": self._orders.epoch, "schemas": schemas}).encode())
        for front in list(self._running):
            if front.epoch < self._orders.epoch:  # it began in between, with the old ones
                front.link.end("it began during a reload")
            else:
                front.link.send(now)

    async def settle(self) -> None:
        """Wait until the old items are out of force at all fronts."""
        epoch = self._orders.epoch
        await self._all(self._begun, lambda front: front.settled >= epoch, "has not put new files into force")
        await trio.sleep_until(self._fenced_s)

    @property
    def _begun(self) -> list[Front]:
        """The fronts that were sent files."""
        return [front for front in self._running if front.ordered is not None]

    async def _all(self, fronts: list[Front], done: Callable[[Front], bool], problem: str) -> None:
        with trio.move_on_after(_SOURCES_S + self._grace_s):
            while any(front in self._running and not done(front) for front in fronts):
                await self._wait_change()
        for front in fronts:
            if front in self._running and not done(front):
                front.link.end(f"it {problem} in time")
                front.kill()
                self.fence(front)

    def fence(self, front: Front) -> None:
        """Note until when a front on another machine may serve clients, by the old files, after its link has ended."""
        if front.ready and not front.local:
            self._fenced_s = trio.current_time() + self._fence_s
