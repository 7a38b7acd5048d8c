"""What commits: one thread that only writes blocks, and one task that ticks and scans.

A thread of our own, because handing each batch to a pool costs some 70 us more; it touches nothing but the journal's file.
Between an append and its RECEIPT stands no task: whoever appended hands the block over, and the thread's word that it is written is
acted on where the event loop hears it. Each pass of the loop that this saves is some 20 us of every answer.
"""

import gc
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.config import Limits
from maxam.errors import DiskFullError
from maxam.gateway.bell import Bell
from maxam.gateway.calls import Calls
from maxam.gateway.commit import GroupCommit
from maxam.gateway.commit_times import CommitTimes
from maxam.gateway.deliveries import Deliveries
from maxam.gateway.log import log_bug, log_event
from maxam.journal.encoding import Block
from maxam.journal.files import Journal

# How often the pump looks whether the broker has something due: below half of the shortest delay that it keeps.
_TICK_S: Final = 0.05
# How often an idle journal's open segment is looked at for its age: readers of sealed ones wait no longer than that for it.
SEAL_LOOK_S: Final = 10.0
# How often a full disk is asked whether it has room again: who waits for readiness before he sends would wait for ever otherwise.
ROOM_LOOK_S: Final = 1.0
ROOM_BYTES_MIN: Final = 1_048_576  # what counts as room, if the block that did not fit was not larger
_SCAN_LOOK_S: Final = 0.005  # the same while a scan rests until its subscriber has read
# Python's collector counts objects made less objects dropped. Where each value takes the place of another that stays near nothing, so
# that it comes after a million values and walks whatever it sees of them: two seconds without a pass of the loop (measured when that
# was a tuple each). Compiled, it sees nothing of a value now; interpreted, the value itself. After so many changes it has little to walk.
COLLECT_CHANGES: Final = 500
EXIT_DISK: Final = 74  # EX_IOERR of sysexits.h


@final
class _RoomAsked:
    """Asks the thread whether there is room for so many bytes."""

    def __init__(self, size: int) -> None:
        self.size: Final = size


def _exit_at_once(error: BaseException) -> None:
    """End the process: what is on disk is unknown, so nobody may be answered and nothing may be tried again."""
    log_bug("journal-failed", error, action="the process ends; find the cause, then start it again")
    logging.shutdown()
    os._exit(EXIT_DISK)


async def _heed(calls: Calls) -> None:
    """Make the calls that the committer's thread asks for."""
    while True:
        await calls.next()


@final
class Committer:
    """Drives a GroupCommit with a thread and the broker with time.

    `touch` must be called after any call that may have appended to the broker, and never by the broker itself.
    """

    def __init__(
        self, broker: Broker, journal: Journal, limits: Limits, die: Callable[[BaseException], None] = _exit_at_once
    ) -> None:
        self.group: Final = GroupCommit(broker, journal)
        self._broker: Final = broker
        self._journal: Final = journal
        self._limits: Final = limits
        self._die: Final = die
        self._bell: Final = Bell()
        self.deliveries: Final = Deliveries(self._bell.ring)
        self._blocks: Final[queue.SimpleQueue[Block | _RoomAsked | int | None]] = queue.SimpleQueue()
        self._seal_look_s = 0.0
        self._room_look_s = 0.0
        self._writing_bytes = 0  # of the newest block; written by the thread
        self._outcome: DiskFullError | bool = False  # of the block under way: not known, full, or written (True)
        self._idle: Final = Bell()
        self._draining = False
        self._ending = False
        self.writing_since_s: float | None = None  # the block under way
        self.times: Final = CommitTimes(time.perf_counter())
        self._collected = broker.revision  # up to which the youngest objects have been looked at
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a thread that writes blocks. A disk that does not answer leaves it alive."""
        return self._thread is not None and self._thread.is_alive()

    def touch(self) -> None:
        """Hand what was appended to the disk: at once, or when the disk is done with what it is writing."""
        self._advance(trio.current_time())

    async def drained(self) -> None:
        """Wait until everything appended so far and until then is committed or refused; acknowledgements included."""
        self._draining = True
        self._bell.ring()
        await self._idle.wait()

    async def run(self) -> None:
        """Pump until cancelled; a block under way is finished, and answered, before this returns."""
        with Calls() as calls:
            thread = threading.Thread(target=self._write_blocks, args=(calls,), name="committer", daemon=True)
            thread.start()
            self._thread = thread
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_heed, calls)
                    while True:
                        await self._bell.wait(self._pump(trio.current_time()))
            finally:
                self._ending = True
                try:
                    with trio.CancelScope(shield=True):
                        while self.group.writing:
                            await calls.next()
                finally:
                    self._blocks.put(None)
                    thread.join()

    def _pump(self, now_s: float) -> float:
        """Do what is to do now without waiting; return when to look again."""
        broker = self._broker
        broker.tick(now_s)
        if broker.store.sweeping:
            self._bell.ring()
        if self._draining and not broker.pending:
            broker.record_acknowledgements()
        self._advance(now_s)
        if now_s >= self._seal_look_s and not self.group.writing:
            self._seal_look_s = now_s + SEAL_LOOK_S
            self._blocks.put(time.time_ns() // 1000)
        if self.group.disk_full and now_s >= self._room_look_s and not self.group.writing:
            self._room_look_s = now_s + ROOM_LOOK_S
            self._blocks.put(_RoomAsked(max(self._writing_bytes, ROOM_BYTES_MIN)))
        if self._draining and self.group.idle:
            self._draining = False
            self._idle.ring()
        # after the commit of what leaves nothing in the journal, which may have begun a scan; an fsync goes on meanwhile
        if broker.scan(self._limits.scan_topics_per_pass_max):
            self._bell.ring()
        if self.deliveries.release():
            self._bell.ring()
        look_s = now_s + (_SCAN_LOOK_S if broker.resting else _TICK_S)
        for other_s in (broker.next_due_s, self.group.due_s):
            if other_s is not None and other_s < look_s:
                look_s = other_s
        return look_s

    def _advance(self, now_s: float) -> None:
        """Hand the next block to the thread if it is idle."""
        try:
            block = self.group.next_block(now_s)
        except BaseException as error:  # the batch is taken and nobody knows it: whoever called must not go on
            self._die(error)
            raise
        if block is not None:
            self.writing_since_s = now_s
            self._blocks.put(block)
        if self._broker.scanning:
            self._bell.ring()

    def _written(self) -> None:
        """Act on the outcome of the block under way, and hand over the next."""
        now_s = trio.current_time()
        self.deliveries.gather()
        try:
            self._settle_outcome(now_s)
            if not self._ending:
                self._advance(now_s)  # the disk has work while we send
        finally:
            self.deliveries.hand_out()
        if self._draining:
            self._bell.ring()

    def _settle_outcome(self, now_s: float) -> None:
        outcome, self._outcome = self._outcome, False
        self.writing_since_s = None
        if outcome is True:
            was_full = self.group.disk_full
            self.group.written()
            if self._broker.revision - self._collected >= COLLECT_CHANGES:
                self._collected = self._broker.revision
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
        """Do what the committer thread is handed: blocks are written; a number is a time, to see whether the open segment is old."""
        while (block := self._blocks.get()) is not None:
            outcome: DiskFullError | bool = True
            try:
                if isinstance(block, int):
                    self._journal.seal_aged(block)
                    continue
                if isinstance(block, _RoomAsked):
                    if self._journal.has_room(block.size):
                        calls.run_sync_soon(self._room_found)
                    continue
                self._writing_bytes = len(block.data)
                begun_s = time.perf_counter()
                self._journal.write(block)
                self.times.add(begun_s, time.perf_counter())
            except DiskFullError as error:
                outcome = error
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is not known what the disk holds
                self._die(error)
                return
            block = None  # the next may be long in coming, and this can be large
            self._outcome = outcome
            calls.run_sync_soon(self._written)
