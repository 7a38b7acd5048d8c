"""Build snapshots, and remove the segments that they make needless, in a process of its own.

Usage: `python -m maxam.gateway.snapshot FOLDER [DEDUP DELETE DELETES [DAYS BYTES [RESERVE NOW [full] [urgent]]]]`. DEDUP is `dedup_retention_s`,
DELETE `delete_retention_s`, and DELETES the number of deletes to retain. DAYS is `retention_days_max`, and BYTES the archive's limit. RESERVE is the room to reserve for the next snapshot, and NOW the gateway's time in
microseconds since the epoch. `full` means that the disk is full: the older of the two snapshots is brought up to the last segment but
one. The process has the lowest priority without `urgent`, and that of its parent with it.

A snapshot is made of the one before it and the segments sealed since, never of the running broker. So neither the event loop nor
the committer ever waits for it. On a core that the gateway uses up, the lowest priority gets 1.5 % of the time. So a build that falls
behind is ended, and started again as an urgent one.
"""

import gc
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import trio

from maxam.background import enter_background
from maxam.broker.broker import Broker
from maxam.broker.summary import summed_up
from maxam.compiled import child_environment
from maxam.config import JournalSettings, Limits
from maxam.errors import DiskFullError, JournalDamagedError, MaxamError
from maxam.gateway.disk_budget import SnapshotSize, disk_bytes, retention_bytes_max
from maxam.gateway.log import log_event
from maxam.journal import retention
from maxam.journal.disk import Disk, OsDisk
from maxam.journal.index import build, drop_strays, unindexed
from maxam.journal.names import list_snapshots, sealed_segments
from maxam.journal.replay import sealed_replay
from maxam.journal.snapshots import SNAPSHOTS_KEPT, reserve_snapshots, write_snapshot

_LOOK_S: Final = 20.0  # how often the gateway checks for sealed segments
_EXPIRE_LOOK_S: Final = 600.0  # how often it checks for segments that are too old or too many
_FULL_LOOK_S: Final = 1.0  # how often it checks whether the disk has become full, or a segment was sealed
_NICENESS: Final = 19
_URGENT_TIMES: Final = 2  # a build is urgent from this many times `snapshot_segments` on: recovery takes too long
_URGENT_CHANGES: Final = 3  # the same of the changes that begin a build: one that gets a core ends before
# Seconds of a start by its parts, measured with a million topics: docs/develop/performance.md, "Start after a saturated gateway".
_START_S: Final = 0.6  # Python, its modules, TLS, schemas
_TOPIC_S: Final = 2.0e-6  # a topic of the snapshot
_CHANGE_S: Final = 2.8e-6  # a change after it: it replaces a value that is in no cache
_RESTART_S: Final = 2.7  # changes that come while a snapshot is built take the rest of 3 s
_VALUES_PER_CHANGE_MAX: Final = 4  # what a snapshot may write for each change after the one before
FULL: Final = "full"
URGENT: Final = "urgent"
_NOTHING: Final = "nothing new"
_EXPIRED: Final = "expired "  # begins a line of what was removed
_INDEXED_MAX: Final = (
    16  # old segments without an index in one run, some seconds each: the next snapshot must not wait for thousands
)


def changes_max(topics: int) -> int:
    """Return after how many changes the next snapshot is due: a start of this many topics would take _RESTART_S.

    With more topics than that allows, the bound on what snapshots write counts.
    """
    left_s = _RESTART_S - _START_S - topics * _TOPIC_S
    return max(int(left_s / _CHANGE_S), topics // _VALUES_PER_CHANGE_MAX)


def segments_since_snapshot(folder: str, disk: Disk) -> int:
    """Return how many sealed segments the newest snapshot does not stand for."""
    snapshots = list_snapshots(f"{folder}/snapshots", disk)
    newest = snapshots[-1][0] if snapshots else 0
    return sum(1 for segment in sealed_segments(folder, disk) if segment.last > newest)


def lagging(folder: str, disk: Disk) -> int:
    """Return where a second snapshot would stand for more segments than the older one does, or 0.

    That is the end of the last sealed segment but one: older segments can then be removed.
    """
    sealed = sealed_segments(folder, disk)
    snapshots = [revision for revision, _ in list_snapshots(f"{folder}/snapshots", disk)]
    if len(sealed) < SNAPSHOTS_KEPT or not snapshots or snapshots[-1] <= sealed[-2].last:
        return 0
    return sealed[-2].last if len(snapshots) < SNAPSHOTS_KEPT or snapshots[-2] < sealed[-2].last else 0


def build_snapshot(folder: str, disk: Disk, limits: Limits, full: bool = False, urgent: bool = False) -> str | None:
    """Write a snapshot of everything that is sealed; return its path, None when nothing is new.

    Where nothing is new and the disk is full, the snapshot is the one that `lagging` asks for. Segments without an index get it once the
    snapshot is there, as indexes take longer than the snapshot. Those of an urgent build get it with the next build that is not.

    Raises:
        JournalError: The journal is damaged, or there is no room.
        OSError: The disk fails.
    """
    if not segments_since_snapshot(folder, disk):
        end = lagging(folder, disk) if full else 0
        if not end:
            return None
        replay = sealed_replay(folder, disk)
        return _write(folder, disk, summed_up(replay.records(sealed_only=True, up_to=end), limits), replay.floor)
    replay = sealed_replay(folder, disk)
    path = _write(folder, disk, summed_up(replay.records(sealed_only=True), limits), replay.floor)
    if not urgent:
        _index_archive(folder, disk)
    return path


def _write(folder: str, disk: Disk, broker: Broker, floor: int) -> str:
    """Write the snapshot of a broker that was summed up from records whose deletes are all known above `floor`; return its path."""
    broker.store.raise_floor(floor)
    revision, at_us = broker.committed_revision, broker.accepted_at_us
    marker = secrets.token_bytes(16)
    return write_snapshot(folder, disk, revision, broker.snapshot(), marker, at_us, broker.snapshot_floor())


def _index_archive(folder: str, disk: Disk) -> None:
    """Make the indexes that are missing, and remove those of segments that are gone. Nothing depends on either."""
    try:
        drop_strays(folder, disk)
        for segment in unindexed(folder, disk)[:_INDEXED_MAX]:
            try:
                build(folder, segment, disk)
            except JournalDamagedError as error:  # reading it will report that: it is not needed here
                sys.stderr.write(f"no index: {error}\n")
    except (DiskFullError, OSError) as error:
        sys.stderr.write(f"no index of a segment: {error}\n")


@final
class Snapshots:
    """Has snapshots built, and the archive kept within its limits, by a process; keeps the room that the next snapshot needs.

    Attributes:
        retention_bytes_max: The archive's limit on this disk. 0 if there is none, or it is not known yet.
        no_room: Bytes that could not be reserved for the next snapshot. 0 if they are reserved.
    """

    def __init__(
        self,
        settings: JournalSettings,
        limits: Limits,
        broker: Broker,
        full: Callable[[], bool],
        wall_us: Callable[[], int],
        seal: Callable[[], None] | None = None,
    ) -> None:
        """Make one that has not checked anything yet.

        Args:
            settings: Of the journal.
            limits: Of the broker.
            broker: Its topics show how large a snapshot will be. Its counters count.
            full: Returns True if the disk is full, or will be soon.
            wall_us: Returns the time, microseconds since the epoch.
            seal: Has the open segment sealed soon, so that a snapshot can stand for it. None if another journal decides that.
        """
        self._settings: Final = settings
        self._limits: Final = limits
        self._broker: Final = broker
        self._counters: Final = broker.counters
        self._full: Final = full
        self._wall_us: Final = wall_us
        self._seal: Final = seal
        self._size: Final = SnapshotSize(broker.store)
        self._folder: Final = os.fspath(settings.folder)
        self.retention_bytes_max = 0
        self.no_room = 0
        self._reserved = 0
        self._newest_bytes = 0
        self._newest_revision = 0  # of the newest snapshot
        self._disk_bytes = 0
        self._segments_changed_ns = 0  # when names in the folder of segments changed last

    def degraded(self) -> list[str]:
        """Return a line if there is no room for the next snapshot."""
        if not self.no_room:
            return []
        return [
            f"snapshot-room: {self.no_room} bytes cannot be reserved for the next snapshot. Make room, or the archive cannot"
            " shrink once the disk is full"
        ]

    async def run(self) -> None:
        """Start a build whenever a start would take too long, or the disk is full; one at a time, until cancelled.

        A start takes too long if enough segments were sealed since the last build, or enough changes were made. The open segment is
        sealed for those.

        A build that is under way then is ended: its temporary file is worth nothing and is removed by the next.
        """
        expire_look_s = 0.0
        wait_s = 0.0
        failed = False
        while True:
            await self._wait(wait_s, failed)
            wait_s = _LOOK_S
            failed = False
            full = self._full()
            began_s = trio.current_time()
            try:
                await self._find_sizes()
                await self._keep_room()
                rules = retention.Rules(self._settings.retention_days_max, self.retention_bytes_max)
                sealed = await self._sealed()
                if full:
                    wanted = sealed > 0 or await trio.to_thread.run_sync(lagging, self._folder, OsDisk()) > 0
                else:
                    wanted = sealed >= self._wanted_segments
                if not wanted:
                    if began_s < expire_look_s and not full:
                        continue
                    expire_look_s = began_s + _EXPIRE_LOOK_S
                    now_us = self._wall_us()
                    if not await trio.to_thread.run_sync(retention.due, self._folder, OsDisk(), rules, now_us):
                        continue
                done = None
                if not full and sealed < self._urgent_segments and not self._behind(_URGENT_CHANGES):
                    done = await self._build_unless_urgent(rules)
                if done is None:
                    if self._seal is not None and not full and self._behind():
                        self._seal()  # takes less time than the process to begin
                    done = await self._build(rules, *([FULL] if full else []), URGENT)
                await self._find_sizes()
            except OSError as error:  # no process to be had, or the folder cannot be listed: the broker does without
                self._failed(error, None)
                failed = True
                continue
            self._reserved = 0  # the build has used it up and made it again, perhaps of another size
            seconds = f"{trio.current_time() - began_s:.3f}"
            progress = _log_done(done.stdout.decode().splitlines(), seconds)
            if done.returncode == 0:
                self._counters.snapshots_built += 1
                if full and progress:
                    wait_s = 0.0  # a full disk may need another snapshot before anything can be removed
                if done.stderr:
                    log_event(
                        logging.WARNING,
                        "snapshot-incomplete",
                        error=_last_line(done.stderr),
                        action="readers do without an index; what should have been removed stays",
                    )
            else:
                self._failed(_problem(done), seconds)
                failed = True

    async def _wait(self, wait_s: float, failed: bool) -> None:
        """Wait, for longer after a failure. A disk that becomes full ends the wait, and so do enough new segments unless a build failed."""
        if failed:
            wait_s = 10 * _LOOK_S
        if self._full():
            await trio.sleep(wait_s)
            return
        asked = failed or self._seal is None
        with trio.move_on_after(wait_s):
            while not self._full():  # the committer knows nothing of us
                await trio.sleep(_FULL_LOOK_S)
                await self._keep_room()
                if not asked and self._seal is not None and self._behind():
                    asked = True  # once: the segment that comes next would be small
                    self._seal()
                if not failed and await self._has_sealed(self._wanted_segments):
                    return

    def _behind(self, times: int = 1) -> bool:
        """Return True if as many changes came after the newest snapshot as make one due, or that many times."""
        changes = self._broker.committed_revision - self._newest_revision
        return changes > times * changes_max(len(self._broker.store.topics))

    @property
    def _wanted_segments(self) -> int:
        """How many sealed segments begin a build now."""
        return 1 if self._behind() else self._settings.snapshot_segments

    @property
    def _urgent_segments(self) -> int:
        return _URGENT_TIMES * self._settings.snapshot_segments

    async def _sealed(self) -> int:
        return await trio.to_thread.run_sync(segments_since_snapshot, self._folder, OsDisk())

    async def _has_sealed(self, count: int) -> bool:
        """Return True if a segment was sealed since the last call, and there are `count` that no snapshot stands for."""
        with suppress(OSError):  # the next round reports it
            changed_ns = await trio.to_thread.run_sync(_changed_ns, self._folder)
            if changed_ns != self._segments_changed_ns:
                self._segments_changed_ns = changed_ns
                return await self._sealed() >= count
        return False

    async def _find_sizes(self) -> None:
        self._disk_bytes = await trio.to_thread.run_sync(disk_bytes, self._settings.folder)
        self._newest_revision, self._newest_bytes = await trio.to_thread.run_sync(_newest, self._folder)
        self.retention_bytes_max = retention_bytes_max(self._settings, self._disk_bytes)

    async def _keep_room(self) -> None:
        """Reserve room for the next snapshot again where the estimate of its size has changed."""
        size = self._size.look(self._newest_bytes, self._disk_bytes)
        if not self.no_room and size * 3 // 4 <= self._reserved <= size * 2:
            return
        self._reserved = size
        reserved = False
        with suppress(OSError):  # the disk that fails is the committer's to meet
            reserved = await trio.to_thread.run_sync(_reserve, self._folder, size)
        self.no_room = 0 if reserved else size

    async def _build_unless_urgent(self, rules: retention.Rules) -> "subprocess.CompletedProcess[bytes] | None":
        """Build at the lowest priority. Return None, and end that process, once the segments that wait make a build urgent."""
        done = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                urgent = False
                while not urgent:
                    await trio.sleep(_FULL_LOOK_S)
                    urgent = self._behind(_URGENT_CHANGES) or await self._has_sealed(self._urgent_segments)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            done = await self._build(rules)
            nursery.cancel_scope.cancel()
        return done

    async def _build(self, rules: retention.Rules, *words: str) -> "subprocess.CompletedProcess[bytes]":
        limits = self._limits
        retentions = (limits.dedup_retention_s, limits.delete_retention_s, limits.deletes_retained_max)
        arguments = [self._folder, *map(str, retentions), str(rules.days_max), str(rules.bytes_max)]
        return await trio.run_process(
            [
                sys.executable,
                "-m",
                "maxam.gateway.snapshot",
                *arguments,
                str(self._reserved),
                str(self._wall_us()),
                *words,
            ],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=child_environment(),
            deliver_cancel=_kill,
        )

    def _failed(self, problem: object, seconds: str | None) -> None:
        self._counters.snapshots_failed += 1
        action = "recovery stays slower; see error"
        log_event(logging.ERROR, "snapshot-failed", error=problem, seconds=seconds, action=action)


async def _kill(process: trio.Process) -> None:
    """End a build that is not needed any longer: it may be stopped, or get no time to end itself, and leaves nothing harmful."""
    process.kill()


def _changed_ns(folder: str) -> int:
    """Return when a segment was begun, sealed or removed last."""
    return os.stat(f"{folder}/segments").st_mtime_ns  # noqa: PTH116 - the folder is a string


def _newest(folder: str) -> tuple[int, int]:
    """Return revision and size of the newest snapshot, 0 and 0 when there is none."""
    disk = OsDisk()
    snapshots = list_snapshots(f"{folder}/snapshots", disk)
    return (snapshots[-1][0], disk.size(snapshots[-1][1])) if snapshots else (0, 0)


def _reserve(folder: str, size: int) -> bool:
    """Reserve room for the next snapshot unless another process is building one; return False where there is no room."""
    disk = OsDisk()
    try:
        lock = disk.lock(f"{folder}/snapshots/lock")
    except BlockingIOError:
        return True
    try:
        return reserve_snapshots(folder, disk, size)
    finally:
        disk.close(lock)


def _problem(done: "subprocess.CompletedProcess[bytes]") -> str:
    """Return why a process failed: its last words, or the signal that killed it."""
    if done.returncode < 0:
        return f"its process was killed by signal {-done.returncode} ({_signal_name(-done.returncode)})"
    return _last_line(done.stderr) or f"its process ended with exit code {done.returncode}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _log_done(lines: list[str], seconds: str) -> bool:
    """Log the output of the process. Return True if it has done anything."""
    for line in lines:
        if line.startswith(_EXPIRED):
            _, segments, freed, first, last = line.split()
            log_event(logging.INFO, "archive-expired", segments=segments, bytes=freed, first=first, last=last)
        elif line != _NOTHING:
            log_event(logging.INFO, "snapshot-built", path=line, seconds=seconds)
    return lines != [_NOTHING]


def _last_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().rpartition("\n")[2]


def main() -> int:
    """Run the process; the path of the snapshot goes to standard output, and `expired SEGMENTS BYTES FIRST LAST`."""
    if URGENT not in sys.argv[9:]:
        enter_background(_NICENESS)
    gc.disable()  # nothing of the state is garbage before the end
    folder = sys.argv[1]
    try:
        # A gateway that was killed leaves its build running, and the next gateway may start another: two would write one file.
        OsDisk().lock(f"{folder}/snapshots/lock")
        limits = _limits(*sys.argv[2:5]) if len(sys.argv) > 4 else Limits()
        rules = retention.Rules(float(sys.argv[5]), int(sys.argv[6])) if len(sys.argv) > 6 else retention.Rules(0, 0)
        now_us = int(sys.argv[8]) if len(sys.argv) > 8 else 0
        words = sys.argv[9:]
        build_and_expire(folder, OsDisk(), limits, rules, now_us, FULL in words, URGENT in words)
        if len(sys.argv) > 7:  # at once: what was removed has made room that publishers want too
            reserve_snapshots(folder, OsDisk(), int(sys.argv[7]))
    except BlockingIOError:
        sys.stderr.write(f"{folder}: another process is building a snapshot\n")
        return 1
    except (MaxamError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _limits(dedup_s: str, delete_s: str, deletes: str) -> Limits:
    """Return the limits of the arguments."""
    return Limits(
        dedup_retention_s=float(dedup_s), delete_retention_s=float(delete_s), delete_retention_topics_max=int(deletes)
    )


def build_and_expire(
    folder: str,
    disk: Disk,
    limits: Limits,
    rules: retention.Rules,
    now_us: int = 0,
    full: bool = False,
    urgent: bool = False,
) -> None:
    """Build a snapshot, then remove the segments of the rules. Remove them first if only that makes the room for the snapshot.

    Writes its results to standard output.

    Raises:
        JournalError: The journal is damaged, or there is no room.
        OSError: The disk fails.
    """
    try:
        path = build_snapshot(folder, disk, limits, full, urgent)
    except DiskFullError:
        if not _expire(folder, disk, rules, now_us):
            raise
        path = build_snapshot(folder, disk, limits, full, urgent)
    sys.stdout.write(f"{path or _NOTHING}\n")
    _expire(folder, disk, rules, now_us)


def _expire(folder: str, disk: Disk, rules: retention.Rules, now_us: int) -> bool:
    """Return whether something was removed."""
    try:
        gone = retention.expire(folder, disk, rules, now_us or time.time_ns() // 1000)
    except JournalDamagedError as error:  # which the next start reports too
        sys.stderr.write(f"nothing was removed from the archive: {error}\n")
        return False
    if gone is not None:
        sys.stdout.write(f"{_EXPIRED}{gone.segments} {gone.bytes} {gone.first} {gone.last}\n")
    return gone is not None


if __name__ == "__main__":
    sys.exit(main())
