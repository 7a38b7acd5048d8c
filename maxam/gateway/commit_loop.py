"""The loop of commits: one thread that only writes blocks, and one task that ticks and scans.

The thread is our own, because handing each batch to a pool costs some 70 us more. It touches only the file of the journal.
No task stands between an append and its RECEIPT. The code that appended hands the block over. The event loop acts on the outcome where
it is called with it. Each pass of the loop that this saves is some 20 us of every answer.
"""

import gc
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.late_routes import GLOBS_AT_ONCE
from maxam.config import Limits
from maxam.errors import DiskFullError
from maxam.gateway.auto_reset_event import AutoResetEvent
from maxam.gateway.calls import Calls
from maxam.gateway.commit import GroupCommit, Stored
from maxam.gateway.commit_times import CommitTimes
from maxam.gateway.delivery_scheduler import DeliveryScheduler
from maxam.gateway.log import LogLimit, log_bug, log_event
from maxam.journal.encoding import Block, Position

# How often the pump checks whether the broker has something due: below half of the shortest delay that it keeps.
_TICK_S: Final = 0.05
# How often the age of an idle journal's open segment is checked: readers of sealed segments wait no longer than that for it.
SEAL_LOOK_S: Final = 10.0
# How often a full disk is checked for room: a client that waits for readiness before it sends would wait for ever otherwise.
ROOM_LOOK_S: Final = 1.0
ROOM_BYTES_MIN: Final = 1_048_576  # what counts as room, if the block that did not fit was not larger
_SCAN_LOOK_S: Final = 0.005  # the same while a scan rests until its subscriber has read, or new topics are late
# Python's collector counts objects made less objects dropped. That stays near 0 while each value replaces another. So the collector came
# after a million values and visited them all, two seconds without a pass of the loop. It saw a tuple for each value then. Compiled, it
# sees nothing of a value now. Interpreted, it sees the value. After this many changes it has little to visit.
COLLECT_CHANGES: Final = 500
EXIT_DISK: Final = 74  # EX_IOERR of sysexits.h


class Written(Stored, Protocol):
    """A journal as the loop of commits writes it; `Journal` is one. These methods belong to the thread of commits."""

    @property
    def position(self) -> Position:
        """The position after the last block that was written."""

    def write(self, block: Block) -> None:
        """Store a block; when this returns it is durable. Raises DiskFullError if nothing of it is left."""

    def has_room(self, size: int) -> bool:
        """Return True if a block of `size` bytes would fit now."""

    def seal_aged(self, now_us: int) -> None:
        """Seal the open segment if it holds a change and is old enough at a time, microseconds since the epoch."""


@final
class _RoomAsked:
    """Asks the thread whether there is room for `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size: Final = size


def exit_at_once(error: BaseException) -> None:
    """End the process: what is on disk is unknown, so no client may be answered and nothing may be tried again."""
    log_bug("journal-failed", error, action="the process ends; find the cause, then start it again")
    logging.shutdown()
    os._exit(EXIT_DISK)


def _wall_us() -> int:
    return time.time_ns() // 1000


async def _run_calls(calls: Calls) -> None:
    """Make the calls that the committer's thread asks for."""
    while True:
        await calls.next()


@final
class CommitLoop:
    """Drives a GroupCommit with a thread and the broker with time.

    `schedule_commit` must be called after any call that may have appended to the broker, and never by the broker itself.
    """

    def __init__(
        self,
        broker: Broker,
        journal: Written,
        limits: Limits,
        die: Callable[[BaseException], None] = exit_at_once,
        wall_us: Callable[[], int] = _wall_us,
    ) -> None:
        self.group: Final = GroupCommit(broker, journal)
        self._broker: Final = broker
        self._journal: Final[Written] = journal
        self._limits: Final = limits
        self._die: Final = die
        self._wall_us: Final = wall_us  # microseconds since the epoch, on the clock of `accepted_at`
        self._wakeup: Final = AutoResetEvent()
        self.deliveries: Final = DeliveryScheduler(self._wakeup.set)
        self._blocks: Final[queue.SimpleQueue[Block | _RoomAsked | Callable[[], None] | int | None]] = (
            queue.SimpleQueue()
        )
        self._seal_look_s = 0.0
        self._late_look_s = 0.0
        self._room_look_s = 0.0
        self._writing_bytes = 0  # of the newest block; written by the thread
        self._outcome: DiskFullError | bool = False  # of the block under way: not known, full, or written (True)
        self._idle: Final = AutoResetEvent()
        self._draining = False
        self._ending = False
        self.wills_held = False  # set when the gateway stops: the next start fires them after their delay
        self._log_limit: Final = LogLimit(limits.log_lines_per_minute_max)
        self.writing_since_s: float | None = None  # the block under way
        self.times: Final = CommitTimes(time.perf_counter())
        self._collected = broker.committed_revision  # up to which the collector has visited the youngest objects
        self._thread: threading.Thread | None = None

    @property
    def disk_full(self) -> bool:
        """Whether the newest block with a change did not fit, and no room has been found since."""
        return self.group.disk_full

    @property
    def alive(self) -> bool:
        """Whether there is a thread that writes blocks. A disk that does not answer leaves it alive."""
        return self._thread is not None and self._thread.is_alive()

    def schedule_commit(self) -> None:
        """Hand what was appended to the disk: at once, or when the disk is done with what it is writing."""
        self._advance(trio.current_time())

    def call(self, work: Callable[[], None]) -> None:
        """Make a call on the thread that writes blocks, after the blocks that wait there. DiskFullError is ignored."""
        self._blocks.put(work)

    async def drained(self) -> None:
        """Wait until everything appended so far and until then is committed or refused; acknowledgements included."""
        self._draining = True
        self._wakeup.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Pump until cancelled; a block under way is finished, and answered, before this returns."""
        with Calls() as calls:
            thread = threading.Thread(target=self._write_blocks, args=(calls,), name="committer", daemon=True)
            thread.start()
            self._thread = thread
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_run_calls, calls)
                    while True:
                        await self._wakeup.wait(self._pump(trio.current_time()))
            finally:
                self._ending = True
                try:
                    with trio.CancelScope(shield=True):
                        while self.group.writing:
                            await calls.next()
                        self.deliveries.send_all()
                finally:
                    self._blocks.put(None)
                    thread.join()

    def _pump(self, now_s: float) -> float:
        """Do what is to do now without waiting; return when to call this again."""
        broker = self._broker
        broker.tick(now_s)
        self._fire_wills(now_s)
        if broker.store.sweeping:
            self._wakeup.set()
        if self._draining and not broker.pending:
            broker.record_acknowledgements()
        self._advance(now_s)
        if now_s >= self._seal_look_s and not self.group.writing:
            self._seal_look_s = now_s + SEAL_LOOK_S
            self._blocks.put(self._wall_us())
        if self.group.disk_full and now_s >= self._room_look_s and not self.group.writing:
            self._room_look_s = now_s + ROOM_LOOK_S
            self._blocks.put(_RoomAsked(max(self._writing_bytes, ROOM_BYTES_MIN)))
        if self._draining and self.group.idle:
            self._draining = False
            self._idle.set()
        # after the commit of what leaves nothing in the journal, which may have begun a scan; an fsync goes on meanwhile
        if broker.scan(self._limits.scan_topics_per_pass_max):
            self._wakeup.set()
        if broker.late and now_s >= self._late_look_s:
            self._late_look_s = now_s + _SCAN_LOOK_S
            broker.find_late(GLOBS_AT_ONCE)
        if self.deliveries.run():
            self._wakeup.set()
        look_s = now_s + (_SCAN_LOOK_S if broker.resting or broker.late else _TICK_S)
        for other_s in (broker.next_due_s, self.group.due_s):
            if other_s is not None and other_s < look_s:
                look_s = other_s
        rest_s = self.deliveries.feeds.rest_s
        return look_s if rest_s is None else min(look_s, now_s + rest_s)

    def _fire_wills(self, now_s: float) -> None:
        """Send the last wills that are due, unless the disk is full or the gateway stops."""
        last_wills = self._broker.last_wills
        due_s = last_wills.wills.due_s
        if due_s is None or now_s < due_s or self.group.disk_full or self.wills_held:
            return
        for record, rejection in last_wills.fire(now_s, self._wall_us()):
            if self._log_limit.admit("will-rejected", record.principal, now_s):
                log_event(
                    logging.WARNING,
                    "will-rejected",
                    principal=record.principal,
                    session=record.client_id,
                    destination=record.destination,
                    result=rejection.result,
                    reason=rejection.reason,
                )
        due_s = last_wills.wills.due_s
        if due_s is not None and now_s >= due_s:
            self._wakeup.set()

    def _advance(self, now_s: float) -> None:
        """Hand the next block to the thread if it is idle."""
        try:
            block = self.group.next_block(now_s)
        except BaseException as error:  # the batch is taken and not known here: the caller must not go on
            self._die(error)
            raise
        if block is not None:
            self.writing_since_s = now_s
            self._blocks.put(block)
        if self._broker.scanning:
            self._wakeup.set()

    def _written(self) -> None:
        """Act on the outcome of the block under way, and hand over the next."""
        now_s = trio.current_time()
        self.deliveries.begin_commit()
        try:
            self._apply_outcome(now_s)
            if not self._ending:
                self._advance(now_s)  # the disk has work while we send
        finally:
            self.deliveries.end_commit()
        if self._draining:
            self._wakeup.set()

    def _apply_outcome(self, now_s: float) -> None:
        outcome, self._outcome = self._outcome, False
        self.writing_since_s = None
        if outcome is True:
            was_full = self.group.disk_full
            self.group.written()
            if self._broker.committed_revision - self._collected >= COLLECT_CHANGES:
                self._collected = self._broker.committed_revision
                gc.collect(0)
            if was_full and not self.group.disk_full:
                log_event(logging.WARNING, "disk-has-room")
        elif outcome is not False:
            if not self.group.disk_full:
                log_event(logging.ERROR, "disk-full", error=outcome, action="SENDs are refused until there is room")
            self.group.refused(now_s)

    def _room_found(self) -> None:
        if self.group.found_room():
            log_event(logging.WARNING, "disk-has-room")

    def _write_blocks(self, calls: Calls) -> None:
        """Do what the committer thread is handed: write a block, seal an old segment, check for room, or make a call."""
        while (work := self._blocks.get()) is not None:
            try:
                if not isinstance(work, Block):
                    self._check(work, calls)
                    continue
                outcome = self._write(work)
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is not known what the disk holds
                self._die(error)
                return
            work = None  # the next may be long in coming, and this can be large
            self._outcome = outcome
            calls.run_sync_soon(self._written)

    def _write(self, block: Block) -> DiskFullError | bool:
        """Write a block; return True, or why there is no room. No other work may return what looks like the outcome of a block."""
        self._writing_bytes = len(block.data)
        begun_s = time.perf_counter()
        try:
            self._journal.write(block)
        except DiskFullError as error:
            return error
        self.times.add(begun_s, time.perf_counter())
        return True

    def _check(self, work: "_RoomAsked | Callable[[], None] | int", calls: Calls) -> None:
        """Seal the open segment if it is old at this time, check for room, or make a call."""
        with suppress(DiskFullError):  # of no block: the next check asks again
            if isinstance(work, int):
                self._journal.seal_aged(work)
            elif not isinstance(work, _RoomAsked):
                work()
            elif self._journal.has_room(work.size):
                calls.run_sync_soon(self._room_found)
