"""The broker of a gateway that follows: it applies the changes of another gateway, and serves no client."""

import time
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.late_routes import GLOBS_AT_ONCE
from maxam.cluster.entry import Entry
from maxam.cluster.steps import Step
from maxam.journal.files import Journal

_SLICE_S: Final = 0.002  # of records, before the event loop runs other tasks
_SLICE_RECORDS: Final = 64  # between two readings of the clock
_TICK_S: Final = 0.05  # between two parts of a scan or a sweep
_HOUSEKEEPING_S: Final = 1.0


@final
class Replica:
    """Applies steps to a broker, and does in time what a broker without clients needs."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        scan_topics: int,
        each_second: Callable[[], None],
        on_entry: Callable[[Entry], None] | None = None,
    ) -> None:
        """Take a broker that has applied what the journal holds.

        Args:
            broker: Of the gateway.
            journal: Its incarnation is that of the journal that is followed.
            scan_topics: Limit on the topics in one part of a scan.
            each_second: Called once a second by `keep_house`.
            on_entry: Called with each applied entry of a log that is no block.
        """
        self._broker: Final = broker
        self._journal: Final = journal
        self._scan_topics: Final = scan_topics
        self._each_second: Final = each_second
        self._on_entry: Final = on_entry

    async def apply(self, steps: list[Step]) -> None:
        """Apply the records of steps, in batches of bounded time."""
        follow = self._broker.follow
        self._broker.incarnation = self._journal.incarnation
        slice_ends_s = time.perf_counter() + _SLICE_S
        for step in steps:
            for count, record in enumerate(step.records):
                follow(record)
                if count % _SLICE_RECORDS == 0 and time.perf_counter() >= slice_ends_s:
                    await trio.lowlevel.checkpoint()
                    slice_ends_s = time.perf_counter() + _SLICE_S
            if step.entry is not None and self._on_entry is not None:
                self._on_entry(step.entry)

    async def keep_house(self) -> None:
        """Do in time what a broker without clients needs, until cancelled."""
        broker = self._broker
        due_s = 0.0
        while True:
            now_s = trio.current_time()
            if broker.store.sweeping or now_s >= due_s:
                broker.upkeep.housekeep(now_s)
            if now_s >= due_s:
                due_s = now_s + _HOUSEKEEPING_S
                broker.tidy()
                broker.incarnation = self._journal.incarnation
                self._each_second()
            broker.scan(self._scan_topics)
            broker.find_late(GLOBS_AT_ONCE)
            await trio.sleep(_TICK_S)
