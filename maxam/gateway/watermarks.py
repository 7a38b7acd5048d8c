"""Shortage of memory or disk, and a disk that does not answer: states that are reported once, shown to operators, and end.

Freed memory returns to the system late. So before memory counts as short, and again while it is, the C library is asked to return
its free pages. Otherwise it is asked when much is free. So the remains of connections do not add up, and the memory of a crowd is
returned: see `heap`.
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

# Of the memory of the machine, or the control group. A snapshot is built in a process that may need as much again, and the kernel
# wants some for the files.
_MEMORY_SHARE: Final = 0.45
_MEMORY_AGAIN: Final = 0.95  # of the limit: below it memory is no longer short
_FREE_AGAIN: Final = 1.1  # of the least that should be free: the same
_MEMORY_LOOK_S: Final = 0.2  # the most that a fast publisher can bring meanwhile is some 100 MiB
_RETURN_INTERVAL_S: Final = 1.0  # between two requests to return free memory: each scans all of it
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


def unwritable(folder: Path) -> str:
    """Return why no file can be made in the folders of a journal, empty if one can; blocks, writes nothing."""
    for path in (folder, folder / "segments", folder / "snapshots"):
        try:
            flags = os.statvfs(path).f_flag
        except OSError as error:
            return f"{path}: {error.strerror}"
        if flags & os.ST_RDONLY:
            return f"the file system of {path} is read-only"
        if not os.access(path, os.W_OK | os.X_OK):
            return f"permission to write in {path} is denied"
    return ""


@final
class Watermarks:
    """Measures memory and disk, informs the broker, and reports shortages to operators.

    Attributes:
        memory_bytes_max: Above it SENDs are refused.
        memory_used_bytes: At the last measurement.
        memory_low: They are.
        free_bytes: Of the journal's disk, at the last measurement, -1 if unknown.
        disk_bytes: Size of that disk, -1 if unknown.
        free_low: They are fewer than they should be.
        unwritable: Why the journal's folder cannot be written. Empty if it can.
        slow: The disk has had a block for long and does not answer.
    """

    def __init__(
        self,
        broker: Broker,
        writing_since: Callable[[], float | None],
        folder: Path,
        memory_bytes_max: int,
        free_bytes_min: int,
        wanted_bytes: int = 0,
        *,
        written: str = "the journal's disk",
    ) -> None:
        """Make one that has not measured anything yet.

        Args:
            broker: Broker that is informed.
            writing_since: Returns since when (monotonic seconds) the disk has had a block. None if it has none.
            folder: The journal's.
            memory_bytes_max: 0 takes a share of the machine's memory.
            free_bytes_min: 0 never warns.
            wanted_bytes: The least size of the disk for the configuration.
            written: Where blocks are written, for people.
        """
        self._written: Final = written
        self._broker: Final = broker
        self._writing_since: Final = writing_since
        self._folder: Final = folder
        self._free_bytes_min: Final = free_bytes_min
        self._wanted_bytes: Final = wanted_bytes
        self.disk_bytes = -1
        self.memory_bytes_max: Final = memory_bytes_max or int(memory_bytes() * _MEMORY_SHARE)
        self.memory_used_bytes = 0
        self.free_bytes = -1
        self.free_low = False
        self.slow = False
        self.unwritable = ""
        self._writing_since_s: float | None = None
        self._slack: Final = Slack()

    @property
    def memory_low(self) -> bool:
        """Whether SENDs are refused for lack of memory."""
        return self._broker.memory_low

    async def run(self) -> None:
        """Measure until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_memory)
            nursery.start_soon(self._watch_disk)

    def unready(self) -> list[str]:
        """Return why SENDs are not accepted."""
        reasons = []
        if self.memory_low:
            reasons.append(
                f"memory-low: {self.memory_used_bytes} bytes are in use (memory_bytes_max {self.memory_bytes_max}). "
                "SENDs are refused until there is room"
            )
        if self.slow:
            reasons.append(f"disk-slow: {self._written} does not answer. SENDs wait")
        if self.unwritable:
            reasons.append(
                f"journal-unwritable: {self.unwritable}. The gateway ends when it begins the next segment. Correct it before that"
            )
        return reasons

    def degraded(self) -> list[str]:
        """Return conditions that an operator should correct though the broker serves."""
        found = []
        if self.free_low:
            free = f"{self.free_bytes} bytes are free in {self._folder}"
            found.append(f"disk-low: {free} (free_bytes_min {self._free_bytes_min})")
        if 0 <= self.disk_bytes < self._wanted_bytes:
            found.append(
                f"disk-small: the disk of {self._folder} has {self.disk_bytes} bytes, the configuration needs {self._wanted_bytes}"
                " (retention_bytes_max + rejected_bytes_max + free_bytes_min). Lower these or use a larger disk"
            )
        return found

    def check_memory(self, used_bytes: int) -> None:
        """Record the memory in use."""
        self.memory_used_bytes = used_bytes
        limit = self.memory_bytes_max
        if not self.memory_low and used_bytes > limit:
            self._broker.memory_low = True
            action = "SENDs are refused until there is room; delete topics, or give it more"
            log_event(logging.ERROR, "memory-low", used=used_bytes, memory_bytes_max=limit, action=action)
        elif self.memory_low and used_bytes < limit * _MEMORY_AGAIN:
            self._broker.memory_low = False
            log_event(logging.WARNING, "memory-low-ended", used=used_bytes, memory_bytes_max=limit)

    def check_disk(self, free_bytes: int) -> None:
        """Record the free bytes of the disk."""
        self.free_bytes = free_bytes
        least = self._free_bytes_min
        if not self.free_low and free_bytes < least:
            self.free_low = True
            action = "make room: when nothing is left SENDs are refused"
            log_event(logging.WARNING, "disk-low", free=free_bytes, free_bytes_min=least, action=action)
        elif self.free_low and free_bytes > least * _FREE_AGAIN:
            self.free_low = False
            log_event(logging.WARNING, "disk-low-ended", free=free_bytes, free_bytes_min=least)

    def check_writing(self, since_s: float | None, now_s: float) -> None:
        """Record since when the disk has had a block. None if it has none."""
        slow = since_s is not None and now_s - since_s >= _SLOW_S
        if slow and not self.slow:
            log_event(logging.ERROR, "disk-slow", action=f"SENDs wait for {self._written}; see what it does")
        elif self.slow and since_s != self._writing_since_s:
            seconds = f"{now_s - (self._writing_since_s or now_s):.1f}"
            log_event(logging.WARNING, "disk-slow-ended", seconds=seconds)
        self.slow = slow
        self._writing_since_s = since_s

    def check_unwritable(self, problem: str) -> None:
        """Record why the journal's folder cannot be written. Empty if it can."""
        if problem != self.unwritable:
            if problem:
                action = "correct it: the gateway ends when it begins the next segment"
                log_event(logging.ERROR, "journal-unwritable", error=problem, action=action)
            else:
                log_event(logging.WARNING, "journal-unwritable-ended")
        self.unwritable = problem

    async def _watch_memory(self) -> None:
        return_s = 0.0
        heap_s = trio.current_time() + _HEAP_LOOK_S
        while True:
            now_s = trio.current_time()
            with suppress(OSError):  # not one more file can be open: then what is known of memory stays as it is
                used_bytes = resident_bytes()
                if (self.memory_low or used_bytes > self.memory_bytes_max) and now_s >= return_s:
                    self._broker.store.release_soon()  # of deleted topics, those that no subscription is owed
                    await trio.to_thread.run_sync(heap.give_back)
                    used_bytes = resident_bytes()
                    return_s = trio.current_time() + _RETURN_INTERVAL_S
                elif now_s >= heap_s:
                    heap_s = now_s + _HEAP_LOOK_S
                    used_bytes = await self._tidy_heap(used_bytes)
                self.check_memory(used_bytes)
            self.check_writing(self._writing_since(), now_s)
            await trio.sleep(_MEMORY_LOOK_S)

    async def _tidy_heap(self, used_bytes: int) -> int:
        """Return free memory to the system if that is much. Return the bytes in use then."""
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
                self.check_unwritable(await trio.to_thread.run_sync(unwritable, self._folder, abandon_on_cancel=True))
                self.disk_bytes = told.f_blocks * told.f_frsize
                self.check_disk(told.f_bavail * told.f_frsize)
            await trio.sleep(_DISK_LOOK_S)
