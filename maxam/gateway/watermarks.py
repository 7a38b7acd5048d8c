"""Memory, disk and a disk that does not answer, when they run short: states that are told once, that operators see, and that end.

Memory is given back late, so that before it is said to be short the C library is asked to return what is free; while it is
short, again and again. Otherwise it is asked when much is free, so that what connections leave when they come and go does not add
up, and what a crowd leaves is given back: see `heap`.
"""

import logging
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.gateway import heap
from maxam.gateway.heap import Slack
from maxam.gateway.log import log_event

# Of what the machine, or the control group, has: a snapshot is built in a process that may need as much again, and the kernel
# wants some for the files.
_MEMORY_SHARE: Final = 0.45
_MEMORY_AGAIN: Final = 0.95  # of the limit: below it memory is not short any more
_FREE_AGAIN: Final = 1.1  # of the least that should be free: the same
_MEMORY_LOOK_S: Final = 0.2  # the most that a fast publisher can bring meanwhile is some 100 MiB
_RETURN_INTERVAL_S: Final = 1.0  # between two requests to return what is free: each walks all of it
_HEAP_LOOK_S: Final = 60.0  # the same while memory is not short
_DISK_LOOK_S: Final = 2.0
_SLOW_S: Final = 5.0  # for one block: disks that are well take milliseconds


def resident_bytes() -> int:
    """Return what of the machine's memory this process has."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


def memory_bytes(groups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory that there is for this process: the machine's, or the least that a control group around it allows."""
    found = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, name = groups, "memory.max"
            elif "memory" in controllers.split(","):
                root, name = groups / "memory", "memory.limit_in_bytes"
            else:
                continue
            group = root / path.lstrip("/")
            while True:
                with suppress(OSError, ValueError):  # no such group is seen from here; or "max"
                    found = min(found, int((group / name).read_text()))
                if group == root:
                    break
                group = group.parent
    return found


@final
class Watermarks:
    """Looks at memory and disk, tells the broker, and says what operators should know.

    Attributes:
        memory_bytes_max: Above it SENDs are refused.
        memory_used_bytes: At the last look.
        memory_low: They are.
        free_bytes: Of the journal's disk, at the last look; -1: not known.
        free_low: They are fewer than they should be.
        slow: The disk has a block for long and does not answer.
    """

    def __init__(
        self,
        broker: Broker,
        writing_since: Callable[[], float | None],
        folder: Path,
        memory_bytes_max: int,
        free_bytes_min: int,
    ) -> None:
        """Make one that has not looked yet.

        Args:
            broker: To be told.
            writing_since: Says since when (monotonic seconds) the disk has had a block; None: it has none.
            folder: The journal's.
            memory_bytes_max: 0 takes a share of what there is.
            free_bytes_min: 0 never warns.
        """
        self._broker: Final = broker
        self._writing_since: Final = writing_since
        self._folder: Final = folder
        self._free_bytes_min: Final = free_bytes_min
        self.memory_bytes_max: Final = memory_bytes_max or int(memory_bytes() * _MEMORY_SHARE)
        self.memory_used_bytes = 0
        self.free_bytes = -1
        self.free_low = False
        self.slow = False
        self._writing_since_s: float | None = None
        self._slack: Final = Slack()

    @property
    def memory_low(self) -> bool:
        """Whether SENDs are refused for lack of memory."""
        return self._broker.memory_low

    async def run(self) -> None:
        """Look until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_memory)
            nursery.start_soon(self._watch_disk)

    def unready(self) -> list[str]:
        """Say why SENDs are not accepted."""
        reasons = []
        if self.memory_low:
            reasons.append(
                f"memory-low: {self.memory_used_bytes} bytes are in use (memory_bytes_max {self.memory_bytes_max}); "
                "SENDs are refused until there is room"
            )
        if self.slow:
            reasons.append("disk-slow: the journal's disk does not answer; SENDs wait")
        return reasons

    def degraded(self) -> list[str]:
        """Say what an operator should see to, though the broker serves."""
        if not self.free_low:
            return []
        return [f"disk-low: {self.free_bytes} bytes are free in {self._folder} (free_bytes_min {self._free_bytes_min})"]

    def heed_memory(self, used_bytes: int) -> None:
        """Take note of what is in use."""
        self.memory_used_bytes = used_bytes
        limit = self.memory_bytes_max
        if not self.memory_low and used_bytes > limit:
            self._broker.memory_low = True
            action = "SENDs are refused until there is room; delete topics, or give it more"
            log_event(logging.ERROR, "memory-low", used=used_bytes, memory_bytes_max=limit, action=action)
        elif self.memory_low and used_bytes < limit * _MEMORY_AGAIN:
            self._broker.memory_low = False
            log_event(logging.WARNING, "memory-low-ended", used=used_bytes, memory_bytes_max=limit)

    def heed_disk(self, free_bytes: int) -> None:
        """Take note of what is free."""
        self.free_bytes = free_bytes
        least = self._free_bytes_min
        if not self.free_low and free_bytes < least:
            self.free_low = True
            action = "make room: when nothing is left SENDs are refused"
            log_event(logging.WARNING, "disk-low", free=free_bytes, free_bytes_min=least, action=action)
        elif self.free_low and free_bytes > least * _FREE_AGAIN:
            self.free_low = False
            log_event(logging.WARNING, "disk-low-ended", free=free_bytes, free_bytes_min=least)

    def heed_writing(self, since_s: float | None, now_s: float) -> None:
        """Take note of since when the disk has had a block; None: it has none."""
        slow = since_s is not None and now_s - since_s >= _SLOW_S
        if slow and not self.slow:
            log_event(logging.ERROR, "disk-slow", action="SENDs wait for the journal's disk; see what it does")
        elif self.slow and since_s != self._writing_since_s:
            seconds = f"{now_s - (self._writing_since_s or now_s):.1f}"
            log_event(logging.WARNING, "disk-slow-ended", seconds=seconds)
        self.slow = slow
        self._writing_since_s = since_s

    async def _watch_memory(self) -> None:
        return_s = 0.0
        heap_s = trio.current_time() + _HEAP_LOOK_S
        while True:
            now_s = trio.current_time()
            with suppress(OSError):  # not one more file can be open: then what is known of memory stays as it is
                used_bytes = resident_bytes()
                if (self.memory_low or used_bytes > self.memory_bytes_max) and now_s >= return_s:
                    self._broker.store.sweep_soon()  # of what has been deleted, what nobody is owed any more
                    await trio.to_thread.run_sync(heap.give_back)
                    used_bytes = resident_bytes()
                    return_s = trio.current_time() + _RETURN_INTERVAL_S
                elif now_s >= heap_s:
                    heap_s = now_s + _HEAP_LOOK_S
                    used_bytes = await self._tidy_heap(used_bytes)
                self.heed_memory(used_bytes)
            self.heed_writing(self._writing_since(), now_s)
            await trio.sleep(_MEMORY_LOOK_S)

    async def _tidy_heap(self, used_bytes: int) -> int:
        """Return what is free if that is much; say how much is in use then."""
        found = await trio.to_thread.run_sync(heap.look)
        if found is not None and self._slack.worth(found, used_bytes):
            await trio.to_thread.run_sync(heap.give_back)
            used_bytes = resident_bytes()
            self._slack.given_back(found, used_bytes)
        return used_bytes

    async def _watch_disk(self) -> None:
        while True:
            with suppress(OSError):  # a disk that cannot even be asked is the committer's to meet
                # a file system that hangs is not waited for at the end
                told = await trio.to_thread.run_sync(os.statvfs, self._folder, abandon_on_cancel=True)
                self.heed_disk(told.f_bavail * told.f_frsize)
            await trio.sleep(_DISK_LOOK_S)
