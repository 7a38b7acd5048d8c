"""The gateway's process in a simulation: the real journal, broker, committer, reloader and judge of certificates, without threads."""

import errno
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Any, cast

from maxam.broker.broker import Broker
from maxam.broker.operations import Operation
from maxam.config import Settings
from maxam.errors import DiskFullError, MaxamError
from maxam.gateway.access import AccessMonitor
from maxam.gateway.clock import WallClock
from maxam.gateway.commit_loop import CommitLoop
from maxam.gateway.freshness import Freshness
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.presence import Presence
from maxam.gateway.quarantine import Quarantine, take_rejected
from maxam.gateway.reload import Reloader
from maxam.gateway.server_connection import ServerConnection
from maxam.gateway.snapshot import build_snapshot
from maxam.journal import retention
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.scan import ALIGNED_BYTES
from maxam.records import Change
from tests.simulation.disk import KILL, Killed, SimulatedDisk
from tests.simulation.files import chain_of
from tests.simulation.loop import Loop, Task
from tests.simulation.model import Violation

FOLDER = "/journal"
STORED = JournalSettings(segment_bytes_max=3000, segment_age_s_max=3600.0, reserve_bytes=4096)
FAULTS = (0, 0, KILL, errno.ENOSPC, errno.EIO)


class Machine:
    """The parts that `open_gateway` makes, in the same order. The driver does the work of event loop and threads.

    Attributes:
        died: Error that ended the process in the committer's thread, if any did.
        judged: Changes with a schema that recovery has read.
        reload: The one under way.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        loop: Loop,
        settings: Settings,
        sources: LoadedConfig,
        links: Any,
        marker: bytes,
        heart_beat_s: float = 10.0,
    ) -> None:
        """Start; raises what the disk does. If `settings` has presence, what the gateway publishes itself is published in `pump`."""
        self._loop = loop
        self._settings = settings
        self.died: BaseException | None = None
        self.judged: list[Change] = []
        self.reload: Task | None = None
        self._outcomes: list[Callable[[], object]] = []
        self.journal = Journal.open(FOLDER, disk, STORED, marker, marker[:8].hex())
        self.broker = Broker(settings.limits, sources.policy, sources.registry)
        for records in self.journal.recover_blocks(known=self.broker.store.topics):
            self.broker.replay_block(records)
            self.judged += [one for one in records if type(one) is Change and one.validation.schema_version]
        for tail in self.journal.torn_tails:
            rest = bytes(disk.files[tail.kept].data) if tail.kept else b"unknown"
            if (tail.offset + tail.length) % ALIGNED_BYTES == 0 and not rest.strip(b"\0"):
                raise Violation(f"{tail.path}: room allocated ahead was taken for the remains of a write")
        self.broker.recovered(loop.now_s, self.journal.head, self.journal.accepted_at_us, self.journal.floor)
        self.broker.incarnation = self.journal.incarnation
        self.journal.keep_schemas(sources.registry.texts())
        self.begun_s, self.begun_us = loop.now_s, max(self.broker.accepted_at_us, loop.wall_us)
        self.clock = WallClock(
            self.broker.accepted_at_us, settings.limits.clock_jump_s_max, loop.now_s, loop.time_ns, lambda: 0.0
        )

        def wall_us() -> int:
            return self.clock.at(loop.now_s)

        self.committer = CommitLoop(self.broker, self.journal, settings.limits, self._die, wall_us)
        self.access = AccessMonitor(
            settings, self.broker, links, lambda: self.reloader.loaded, self.committer.schedule_commit
        )
        self.reloader = Reloader(settings, sources, self.broker, self.journal.keep_schemas, self.access.settle, wall_us)
        self.quarantine = Quarantine(
            settings.limits.quarantine_records_max, settings.limits.quarantine_bytes_max, "run"
        )
        self.broker.publishing.on_rejected = take_rejected(self.broker, self.quarantine, None)
        self._sweep = Task(self.access.run)
        commit, may_expire = self.committer.schedule_commit, lambda: not self.committer.group.disk_full
        self.freshness = Freshness(self.broker, wall_us, commit, may_expire)
        self.presence = Presence(self.broker, settings.presence, heart_beat_s, wall_us, loop.now_s, commit)

    def _die(self, error: BaseException) -> None:
        self.died = error

    @property
    def under_way(self) -> list[Change]:
        """The changes of the block that is being written."""
        return [one for one in self.committer.group._writing or [] if type(one) is Change]

    @property
    def coming(self) -> list[Operation]:
        """All that is accepted and not done, in order."""
        group = self.committer.group
        return [*(group._writing or []), *group._kept, *self.broker.pending]

    def peer(self, client: str, fingerprint: str, session: str, wake: Callable[[], None]) -> ServerConnection:
        """Make a connection, as the gateway does after a handshake."""
        denial = partial(self.access.denial, chain_of(client))
        return ServerConnection(self.broker, self._settings, fingerprint, session, wake, self._loop.now_s, denial)

    def pump(self) -> None:
        """Do one pass of the committer's task, and of the one that checks certificates."""
        self.committer._pump(self._loop.now_s)
        self._sweep.step()
        if self._settings.presence.enabled:
            self.presence.step(self._loop.now_s)
            self.freshness.step(self._loop.now_s)

    @property
    def writes(self) -> bool:
        """Whether the committer's thread has something to do."""
        return not self.committer._blocks.empty()

    def write(self) -> bool | None:
        """Do what the committer's thread does with what it was handed; return whether a block was written, None if there was none."""
        blocks = self.committer._blocks
        if blocks.empty():
            return None
        blocks.put(None)
        before = len(self._outcomes)
        self.committer._write_blocks(cast("Any", self))
        if self.died is not None or len(self._outcomes) == before:
            return None
        return self.committer._outcome is True

    def run_sync_soon(self, call: Callable[[], object]) -> None:
        """Take what the thread wants to be called by the event loop."""
        self._outcomes.append(call)

    def answer(self) -> None:
        """Act on the outcome of a block."""
        while self._outcomes:
            self._outcomes.pop(0)()

    def begin_reload(self, *, allow_orphans: bool) -> None:
        """Begin a reload; `reload` is stepped from now on."""
        self.reload = Task(partial(self.reloader._reload, ["signal"], allow_orphans, at_rest=None))

    def end(self) -> None:
        """Give up what is under way."""
        self._sweep.close()
        if self.reload is not None:
            self.reload.close()


def build(disk: SimulatedDisk, settings: Settings, rules: retention.Rules, wall_us: int) -> None:
    """Do what the process does that builds snapshots; raises PowerCut, or any other error."""
    try:
        with redirect_stderr(StringIO()):
            build_snapshot(FOLDER, disk, settings.limits)
            retention.expire(FOLDER, disk, rules, wall_us)
    except Killed:
        pass
    except DiskFullError:
        if disk.capacity is None and not disk.faulted:
            raise
    except (MaxamError, OSError):
        if not disk.faulted:
            raise
