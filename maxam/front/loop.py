"""The loop of a front: operations leave together, time passes for its broker, and its connections send."""

import gc
from typing import Final, final

import trio

from maxam.cluster.wire import Frame
from maxam.config import Limits
from maxam.front.replica import Replica
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.commit_loop import COLLECT_CHANGES
from maxam.gateway.delivery_scheduler import DeliveryScheduler

_TICK_S: Final = 0.05
_SCAN_LOOK_S: Final = 0.005  # the same while a scan rests until its subscriber has read


@final
class FrontLoop:
    """Hands operations over, and drives the replica with time. `schedule_commit` is called after anything that may have appended.

    Attributes:
        deliveries: The order in which connections send.
        wills_held: The gateway stops. A front fires no wills in any case.
    """

    def __init__(self, replica: Replica, limits: Limits) -> None:
        self.wills_held = False
        self._wakeup: Final = AutoResetEvent()
        self.deliveries: Final = DeliveryScheduler(self._wakeup.set)
        self._replica: Final = replica
        self._broker: Final = replica.broker
        # A RECEIPT has come a longer way than without fronts. It does not wait until all subscribers have been sent the change.
        replica.watch_receipts(self.deliveries.begin_receipts)
        self._limits: Final = limits
        self._collected = replica.broker.committed_revision

    def schedule_commit(self) -> None:
        """Hand over what was appended: at once, or with all that comes in this pass if operations are under way."""
        broker = self._broker
        if not broker.pending:
            if broker.scanning:
                self._wakeup.set()
            return
        if broker.applied_seq + len(broker.pending) == broker.appended_seq:
            self._replica.flush()
        else:
            self._wakeup.set()

    def receive(self, frames: list[Frame]) -> None:
        """Act on frames of the gateway, and send what follows from them.

        Raises:
            MaxamError: The front must start again.
        """
        self.deliveries.begin_commit()
        try:
            for frame in frames:
                self._replica.receive(frame)
                self.deliveries.begin_changes()
        finally:
            self.deliveries.end_commit()
        self._replica.flush()
        broker = self._broker
        if broker.committed_revision - self._collected >= COLLECT_CHANGES:
            self._collected = broker.committed_revision
            gc.collect(0)
        if broker.scanning:
            self._wakeup.set()

    async def run(self) -> None:
        """Pump until cancelled."""
        while True:
            await self._wakeup.wait(self._pump(trio.current_time()))

    def _pump(self, now_s: float) -> float:
        """Do what is to do now without waiting; return when to call this again."""
        broker = self._broker
        broker.upkeep.tick_front(now_s)
        if broker.store.sweeping:
            self._wakeup.set()
        self._replica.flush()
        if broker.scan(self._limits.scan_topics_per_pass_max):
            self._wakeup.set()
        if self.deliveries.run():
            self._wakeup.set()
        look_s = now_s + (_SCAN_LOOK_S if broker.resting else _TICK_S)
        rest_s = self.deliveries.feeds.rest_s
        return look_s if rest_s is None else min(look_s, now_s + rest_s)
