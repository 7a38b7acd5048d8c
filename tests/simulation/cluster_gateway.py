"""One gateway of a simulated cluster: its machine with a disk, and its process without sockets and files of people.

The process drives the real `ClusterMember` with broker, loop of commits, keeper and reader of the log, on simulated threads and tasks. A
copy of another journal takes its files and entries without a link.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from maxam.broker.broker import Broker
from maxam.cluster import keeper, log_reader, logged, steps
from maxam.cluster.copying import COPIED, files_to_copy, place_copy
from maxam.cluster.entry import Entry, same_position
from maxam.cluster.log import Head, LogFullError
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.member import RESTART, Role
from maxam.cluster.membership import Membership
from maxam.errors import JournalError, MaxamError, ProtocolError
from maxam.gateway import announcing, commit_loop, leaving, log_facts, member, replica
from maxam.gateway.access import AccessMonitor
from maxam.gateway.clock import WallClock
from maxam.gateway.commit_loop import CommitLoop
from maxam.gateway.log_facts import LogFacts
from maxam.gateway.member import ClusterMember
from maxam.gateway.server_connection import ServerConnection
from maxam.journal import identity
from maxam.journal.disk import Disk, write_file
from maxam.journal.files import Journal
from maxam.journal.names import MEMBERSHIP
from maxam.link_config import ClusterSettings
from maxam.records import Change, Identity, Rejection
from maxam.stomp.events import Send
from tests.simulation.cluster_node import CUT_OFF_S, KEEP_S, LEASE_S, Site
from tests.simulation.disk import Killed, PowerCut, SimulatedDisk
from tests.simulation.files import chain_of
from tests.simulation.machine import FOLDER, STORED
from tests.simulation.runtime import Runtime
from tests.simulation.simulated_log import SimulatedLog
from tests.simulation.tasks import (
    QUEUE,
    THREADING,
    TIME,
    TRIO,
    AutoResetEvent,
    Calls,
    ExitProcess,
    Threaded,
)

if TYPE_CHECKING:
    from tests.simulation.cluster_venue import ClusterVenue

STOPPING: Final = ProtocolError("broker is stopping", "the broker is stopping")
BLOCK_BYTES: Final = 16_384


class GatewaySite(Site):
    """A machine with a disk."""

    def __init__(self, name: str, priority: int, rate: float, write_bytes_max: int | None) -> None:
        super().__init__(name, priority, rate)
        self.disk = SimulatedDisk(write_bytes_max=write_bytes_max)
        self.process: Any = None
        self.kept = 0  # revision up to which the journal was synced, as far as the member has announced

    def note_kept(self) -> None:
        """Note how much the process that runs has synced, as it announces."""
        process = self.process
        if process is not None and process.role is not None:
            self.kept = max(self.kept, process.role.keeper.synced.revision)

    def lose_power(self, rng: random.Random) -> None:
        """Keep what is synced, and perhaps some of the rest."""
        self.disk = self.disk.restarted(rng.randrange)


class _Facts(LogFacts):  # type: ignore[misc]  # the simulation records them
    """The real facts about the log. They are recorded."""

    def __init__(self, *arguments: Any) -> None:
        self._process = _process()
        super().__init__(*arguments)

    def began(self, at_s: float) -> None:
        self._process.began()
        super().began(at_s)

    def succeeded(self, head: Head) -> None:
        self._process.succeeded()
        super().succeeded(head)

    def refused(self, error: LogFullError) -> None:
        self._process.refused()
        super().refused(error)

    def failed(self, error: MaxamError) -> None:
        self._process.failed_s = self._process.now()
        super().failed(error)


class _Role(ClusterMember):  # type: ignore[misc]  # the simulation records it
    """The real role. It is recorded, and copies come without a link."""

    def __init__(self, process: "GatewayProcess", *arguments: Any) -> None:
        self._process = process
        super().__init__(*arguments)

    async def _claim(self, before: Head) -> None:
        self._process.cluster.check_claim(self._process, before)  # type: ignore[arg-type]  # it has what is asked for
        await super()._claim(before)

    async def _lead(self, head: Head) -> None:
        self._process.cluster.check_promotion(self._process, head)
        await super()._lead(head)

    def _check_fitness(self) -> None:
        if not self.leads:
            self._process.cluster.check_queues(self._process)  # the queues were made again just now
        super()._check_fitness()

    async def _copy(self) -> None:
        self._reader.stop()
        await self._process.copy(self._steps)
        self._take(self.machine.copied)

    def _end(self, status: int, code: str) -> None:
        self._process.code = code
        super()._end(status, code)


class Gateway:
    """As much of a gateway as the role of a member asks for."""

    links: Final = None
    fronts: Final = None
    fronts_loaded: Final = True
    address: Final = ("", 1)
    admin_port: Final = 0

    def __init__(self, process: "GatewayProcess") -> None:
        self._process = process
        self.clients = SimpleNamespace(closed=False)
        self.watermarks = SimpleNamespace(free_bytes=-1, memory_bytes_max=0, memory_used_bytes=0)
        self.reloader = SimpleNamespace(items={}, loaded=SimpleNamespace(digests={}))
        self.audit = SimpleNamespace(record=lambda *_, **__: None, close=lambda: None)

    @property
    def broker(self) -> Broker:
        """The broker."""
        return self._process.broker

    @property
    def registry(self) -> Any:
        """The schemas."""
        return self._process.broker.registry

    @property
    def committer(self) -> CommitLoop:
        """The loop of commits."""
        return self._process.committer

    @property
    def connections_open(self) -> int:
        """Connections of clients."""
        return len(self.connections)

    @property
    def connections(self) -> list[Any]:
        """Links of clients."""
        return self._process.links()

    def begin(self) -> None:
        """Serve clients."""
        self._process.serve()

    def end(self) -> None:
        """Stop in order."""
        self._process.start(self._process.stop)


class GatewayProcess(Threaded):
    """A run of a gateway.

    Attributes:
        code: Why it ends.
        serving: It has a listener.
        proof_s: When the last swap began that succeeded.
        shown_s: When the last swap began that succeeded, or was refused by a log that is full.
        failed_s: When the log gave no answer last.
        woken_s: When it went on after standing still.
    """

    def __init__(self, cluster: "ClusterVenue", site: GatewaySite) -> None:
        super().__init__(cluster, site)
        self.cluster = cluster
        self.site = site
        self.code = ""
        self.serving = False
        self.role: _Role | None = None
        self.proof_s = self.shown_s = self.failed_s = self.woken_s = -1e9
        self._began_s: float | None = None
        self.log = SimulatedLog(cluster.engine, self, cluster.rng, cluster.faults)
        self.after(0.0, self._open)

    def _open(self) -> None:
        """Do what `open_gateway` does."""
        cluster, site = self.cluster, self.site
        try:
            place_copy(FOLDER, site.disk)
            journal = Journal.open(FOLDER, site.disk, STORED, self.rng.randbytes(16), "")
            broker = Broker(cluster.settings.limits, cluster.clients.sources.policy, cluster.clients.sources.registry)
            judged = []
            for record in journal.recover(following=True):
                broker.replay(record)
                if type(record) is Change and record.validation.schema_version:
                    judged.append(record)
            broker.backfills.run(broker.store)
            broker.recovered(self.now(), journal.head, journal.accepted_at_us, journal.floor)
            broker.incarnation = journal.incarnation
            settings = ClusterSettings(
                "simulated",
                (),
                *(FOLDER,) * 3,  # type: ignore[arg-type]  # no file of them is read
                member=site.name,
                priority=site.priority,
                lease_s=LEASE_S,
                cut_off_s=CUT_OFF_S,
                block_bytes_max=BLOCK_BYTES,
                log_keep_s=KEEP_S,
                copies_min=cluster.copies_min,
            )
            self.journal, self.broker = journal, broker
            self.role = _Role(self, cluster.settings, settings, journal, self.log)
        except (PowerCut, Killed, OSError, MaxamError) as error:
            self.died(error)
            return
        cluster.check_start(self, judged)
        limits = cluster.settings.limits
        self.begun_s, self.begun_us = self.now(), max(broker.accepted_at_us, TIME.time_ns() // 1000)
        self.clock = WallClock(broker.accepted_at_us, limits.clock_jump_s_max, self.now(), TIME.time_ns, lambda: 0.0)
        self.committer = CommitLoop(broker, self.role.logged, limits, self.role.die, lambda: self.clock.at(self.now()))
        sources = cluster.clients.sources
        self.access = AccessMonitor(cluster.settings, broker, {}, lambda: sources, self.committer.schedule_commit)

        def told(_identity: Identity, event: Send, _disposition: bytes, _rejection: Rejection, _wall_us: int) -> None:
            cluster.clients.told.append(event.receipt.decode() if event.receipt else None)

        broker.publishing.on_rejected = told
        self.gateway = Gateway(self)
        self.start(self._run)

    async def _run(self) -> None:
        assert self.role is not None
        try:
            await self.role.run(self.gateway)  # type: ignore[arg-type]  # it has what is asked for
        except JournalError:
            if self.role._failure is None:
                raise
            self.exit(1)

    @property
    def member(self) -> Any:
        """The machine of its role."""
        return self.role.machine if self.role is not None else IDLE

    @property
    def applied(self) -> int:
        """Index of the last entry that the broker has applied."""
        assert self.role is not None
        return self.role._applied

    @property
    def leading(self) -> bool:
        """It serves clients."""
        return self.role is not None and self.role.leads

    @property
    def open(self) -> bool:
        """It takes connections."""
        return self.leading and self.serving and not self.gateway.clients.closed

    def links(self) -> list[Any]:
        """Return the links of clients to it."""
        return [link for link in self.cluster.clients.links if link.process is self]

    def peer(self, client: str, fingerprint: str, session: str, wake: Callable[[], None]) -> ServerConnection:
        """Make a connection, as the gateway does after a handshake."""
        denial = partial(self.access.denial, chain_of(client))
        return ServerConnection(self.broker, self.cluster.settings, fingerprint, session, wake, self.now(), denial)

    # Swaps.

    def began(self) -> None:
        """A swap begins."""
        self._began_s = self.now()

    def succeeded(self) -> None:
        """It is in the log."""
        assert self._began_s is not None
        self.proof_s = self.shown_s = self._began_s
        self._began_s = None

    def refused(self) -> None:
        """The log is full, and its head is still the own one."""
        if self._began_s is not None:
            self.shown_s = self._began_s
        self._began_s = None

    # Beginning and end.

    def serve(self) -> None:
        """Begin to serve clients."""
        self.serving = True
        self.cluster.counted["terms"] += 1
        self.start(self.committer.run)

    async def stop(self) -> None:
        """Stop in order."""
        if self.serving:
            self.gateway.clients.closed = True
            for link in self.links():
                link.expel(STOPPING)
            with TRIO.move_on_after(1.0):
                await self.committer.drained()
        await TRIO.run_sync(self._close)
        self.exit(RESTART)

    def _close(self) -> None:
        assert self.role is not None
        self.role._ending = True
        self.role._reader.stop()
        self.role.logged.end()
        self.role._close()
        try:
            self.journal.close(seal=False)
        except (PowerCut, Killed, OSError, MaxamError) as error:
            self.died(error)

    def crashed(self, error: BaseException) -> None:
        """A task has failed."""
        self.died(error)

    def exit(self, status: int) -> None:
        """End by itself."""
        if not self.ended:
            self.cluster.end(self, status, self.code)

    def died(self, error: BaseException) -> None:
        """End because of an error of the disk, or because the power is gone."""
        if self.ended:
            return
        if isinstance(error, PowerCut):
            self.site.lose_power(self.rng)
        elif not (isinstance(error, OSError | Killed | MaxamError) and self.site.disk.faulted):
            raise error
        self.cluster.counted["faults"] += 1
        self.code = "died"
        self.ended = True
        self.cluster.after(0.0, partial(self.cluster.end, self, RESTART, self.code))

    def kill(self) -> None:
        """End the process at once."""
        self.cluster.clients.lose(self)
        if self.role is not None:
            self.role.logged.end()
        self.end_all()
        self.site.disk = self.site.disk.killed()

    def wake(self) -> None:
        """Let it go on."""
        self.frozen = False
        self.woken_s = self.now()
        held, self._held = self._held, []
        for call in held:
            self.run(call)

    # Copies.

    async def copy(self, taken: steps.Steps) -> None:
        """Get what the log has forgotten: entries from the journal of another member, or a copy of its files."""
        cluster = self.cluster
        while True:
            await TRIO.sleep(self.rng.uniform(0.1, 1.0))
            givers = [
                p for p in cluster.gateways() if p is not self and p.role is not None and p.role.keeper.synced_index
            ]
            if not givers:
                continue
            giver = self.rng.choice(givers)
            entries = cluster.truth.entries[: giver.role.keeper.synced_index]  # type: ignore[union-attr]  # see above
            here = [n for n, one in enumerate(entries, 1) if same_position(one.after, taken.position)]
            oldest = giver.site.disk.beside()
            first = min((one.first for one in _segments(oldest)), default=1)
            if here and taken.position.revision + 1 >= first:
                for entry in entries[here[0] :]:
                    await TRIO.checkpoint()
                    taken.take(_unplaced(entry))
                cluster.counted["fed"] += 1
            elif not self._take_files(giver):
                continue
            cluster.counted["copies"] += 1
            return

    def _take_files(self, giver: "GatewayProcess") -> bool:
        there, here = giver.site.disk.beside(), self.site.disk
        listed = files_to_copy(FOLDER, there)
        if not any("segments/" in path or "snapshots/" in path for path, _ in listed):
            return False
        folder = FOLDER + COPIED
        for one in (folder, *(f"{folder}/{name}" for name in ("segments", "snapshots", "schemas"))):
            here.make_folder(one)
        for path, size in listed:
            write_file(here, f"{folder}/{path}", [there.read(f"{FOLDER}/{path}", 0, size)])
        for one in ("segments", "snapshots", "schemas"):
            here.fsync_folder(f"{folder}/{one}")
        here.fsync_folder(folder)
        here.fsync_folder("/")
        return True


def _segments(disk: Disk) -> list[Any]:
    from maxam.journal.names import list_segments

    sealed, opened = list_segments(f"{FOLDER}/segments", disk)
    return [*sealed, *opened]


def _unplaced(entry: Entry) -> Entry:
    """Return an entry as a feed has it."""
    return Entry(entry.kind, entry.begins, entry.before, entry.after, entry.marker, entry.payload, 0, 0)


def _exit(status: int) -> None:
    raise ExitProcess(status)


def _process() -> GatewayProcess:
    process = Runtime.running
    assert isinstance(process, GatewayProcess)
    return process


def _exit_at_once(error: BaseException) -> None:
    process = _process()
    if not process.ended:
        process.died(error)


def _update_membership(folder: str, note: Membership) -> None:
    """Do as the real one, on the disk of the process."""
    import json

    disk, path = _process().site.disk, f"{folder}/{MEMBERSHIP}"
    handle = disk.create(f"{path}.new")
    text = json.dumps({"cluster": note.cluster.hex(), "index": note.index}).encode()
    at = 0
    while at < len(text):
        at += disk.pwrite(handle, text[at:], at)
    disk.close(handle)
    disk.rename(f"{path}.new", path)


def _logged_journal(*arguments: Any) -> LoggedJournal:
    process = _process()
    return LoggedJournal(*arguments, lambda: process.local_s, process.rng.randbytes)  # type: ignore[call-arg]  # the last two


@contextmanager
def in_force() -> Iterator[None]:
    """Have the modules of a gateway run in the process that runs."""
    changed: list[tuple[Any, dict[str, Any]]] = [
        (logged, {"threading": THREADING}),
        (keeper, {"threading": THREADING, "queue": QUEUE, "time": TIME}),
        (log_reader, {"threading": THREADING}),
        (steps, {"trio": TRIO}),
        (replica, {"trio": TRIO, "time": TIME}),
        (
            commit_loop,
            {
                "trio": TRIO,
                "queue": QUEUE,
                "threading": THREADING,
                "AutoResetEvent": AutoResetEvent,
                "Calls": Calls,
                "gc": SimpleNamespace(collect=lambda _: None),
            },
        ),
        (log_facts, {"time": TIME}),
        (identity, {"end_chain": lambda _folder, _records, revision: _process().cluster.chain_at(revision)}),
        (
            announcing,
            {
                "trio": TRIO,
                "time": TIME,
                "OsDisk": lambda: _process().site.disk,
                "update_membership": _update_membership,
                "log_event": lambda *_, **__: None,
            },
        ),
        (
            leaving,
            {
                "trio": TRIO,
                "os": SimpleNamespace(_exit=_exit),
                "logging": SimpleNamespace(shutdown=lambda: None),
            },
        ),
        (
            member,
            {
                "trio": TRIO,
                "time": TIME,
                "gc": SimpleNamespace(collect=lambda: None, freeze=lambda: None),
                "OsDisk": lambda: _process().site.disk,
                "LogFacts": _Facts,
                "LoggedJournal": _logged_journal,
                "exit_at_once": _exit_at_once,
                "logging": SimpleNamespace(INFO=20, WARNING=30, ERROR=40),
                "log_event": lambda *_, **__: None,
            },
        ),
    ]
    with ExitStack() as stack:
        for module, names in changed:
            for name, value in names.items():
                stack.enter_context(patch.object(module, name, value))
        yield


class _Idle:
    """A member that is opening its journal."""

    role = Role.RECOVERING

    def serves(self, _: float) -> bool:
        """Return False."""
        return False


IDLE: Final = _Idle()
