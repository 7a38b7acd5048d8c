"""One gateway of a simulated estate: the real machine of `machine` on a disk and a clock of its own, and what it committed."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from maxam.avro.registry import Registry, load_registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.config import Limits, PolicySettings, SchemaSettings, Settings, TlsSettings
from maxam.gateway.server_connection import ServerConnection
from maxam.journal import backup
from maxam.records import Change
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.simulation import files
from tests.simulation.disk import File, PowerCut, SimulatedDisk
from tests.simulation.loop import Loop
from tests.simulation.machine import FOLDER, Machine
from tests.simulation.model import Violation
from tests.support.sans_io import fingerprint_of

PUBLISHER: Final = "pub"
BACKUPS: Final = "/backups"
SETTINGS: Final = Settings(
    tls=TlsSettings(Path("c"), Path("k"), Path("a")),
    policy=PolicySettings(Path("p")),
    schemas=SchemaSettings(Path("s")),
    limits=Limits(takeovers_per_minute_max=1_000_000),
)
CONNECT: Final = b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nheart-beat:0,0\nclient-id:pub\n\n\0"


def registry_of(*globs: str) -> Registry:
    """Return a registry in which the topics of these globs are not checked, and others are rejected."""
    rules = "".join(f'[[rule]]\ndestination = "{glob}"\nencoding = "none"\n' for glob in globs)
    return load_registry({"registry.toml": rules.encode()})


class Site:
    """A gateway.

    Attributes:
        name: Of the gateway. Two machines that are one venue by mistake have the same.
        machine: The process, which each start replaces.
        noted: Called with each change that is on the disk, in order.
        started: Called after each start; with True if the journal has a new incarnation.
        starts: How often it was started.
    """

    def __init__(
        self,
        name: str,
        rng: random.Random,
        now_s: float,
        policy: Policy,
        registry: Registry,
        noted: Callable[["Site", Change], None],
        started: Callable[["Site", bool], None],
        disk: SimulatedDisk | None = None,
    ) -> None:
        self.name = name
        self.rng = rng
        self.clock = Loop()
        self.clock.now_s = now_s
        self.disk = SimulatedDisk() if disk is None else disk
        self.registry = registry
        self.noted = noted
        self.started = started
        self.incarnation = ""
        self.committed = 0
        self.under_way: list[Change] = []
        self.starts = 0
        self.backups: list[dict[str, bytes]] = []
        self._policy = policy
        self._publisher: ServerConnection | None = None
        self.machine: Machine
        self._boot()

    @property
    def broker(self) -> Broker:
        """The broker that runs."""
        return self.machine.broker

    # The machine.

    def _boot(self) -> None:
        sources = replace(files.read(files.Written(), None)[0], policy=self._policy, registry=self.registry)
        marker = self.rng.randbytes(16)
        while True:
            try:
                self.machine = Machine(self.disk, self.clock, SETTINGS, sources, [], marker)
                break
            except PowerCut:
                self.disk = self.disk.restarted(self.rng.randrange)
        self.disk.faults.clear()
        self._publisher = None
        self.starts += 1
        found, before = self.broker.committed_revision, self.incarnation
        self.incarnation = self.machine.journal.incarnation
        if self.incarnation == before:
            if self.under_way and found == self.under_way[-1].revision:
                self._note()
            if found != self.committed:
                raise Violation(f"{self.name} recovered up to {found}, but {self.committed} was committed")
        self.under_way = []
        self.committed = found
        self.started(self, self.incarnation != before)

    def _note(self) -> None:
        changes, self.under_way = self.under_way, []
        for change in changes:
            self.committed = change.revision
            self.noted(self, change)

    def kill(self, *, power: bool) -> None:
        """Lose the process, perhaps with the machine's power, and start again."""
        self.machine.end()
        self.disk = self.disk.restarted(self.rng.randrange) if power else self.disk.killed()
        self.disk.capacity = None
        self._boot()

    def cut_power_soon(self) -> None:
        """Lose the power at one of the next calls on the disk."""
        self.disk.faults[self.disk.calls + self.rng.randrange(1, 6)] = 0

    def fill_disk(self) -> None:
        """Leave hardly any room on the disk."""
        self.disk.capacity = sum(len(file.data) for file in self.disk.files.values()) + self.rng.randrange(200)

    def work(self) -> bool:
        """Do what event loop and committer do in one pass; return True if a block was written or refused."""
        machine = self.machine
        machine.answer()
        machine.pump()
        self.under_way = machine.under_way
        self._drain_publisher()
        if not machine.writes or machine._outcomes:
            return False
        written = machine.write()
        if machine.died is not None:
            if not isinstance(machine.died, PowerCut):
                raise machine.died
            self.kill(power=True)
        elif written:
            self._note()
        return True

    def touch(self) -> None:
        """Hand over what was appended."""
        self.machine.committer.schedule_commit()
        self.under_way = self.machine.under_way

    # Backups.

    def back_up(self) -> None:
        """Make a backup, and keep it on another machine."""
        if self.disk.capacity is not None or self.disk.faults:
            return
        disk = self.disk.beside()
        done = backup.back_up(FOLDER, BACKUPS, f"{len(self.backups):06}", disk)
        found = {path: data for path, data in disk.contents().items() if path.startswith(done.folder)}
        self.backups.append({path.removeprefix(done.folder): data for path, data in found.items()})

    def restored_disk(self, number: int) -> SimulatedDisk:
        """Return a new disk on which a backup was restored."""
        disk = SimulatedDisk()
        for path, data in self.backups[number].items():
            parts = f"{BACKUPS}/1{path}".split("/")[:-1]
            for depth in range(2, len(parts) + 1):
                folder = "/".join(parts[:depth])
                if folder not in disk.files:
                    disk.files[folder] = disk._synced_files[folder] = File(folder=True)
            disk.put(f"{BACKUPS}/1{path}", data)
        backup.restore(f"{BACKUPS}/1", FOLDER, disk)
        return disk

    def restore(self, number: int) -> None:
        """Lose the disk, and start from a backup."""
        self.machine.end()
        self.disk = self.restored_disk(number)
        self.committed = 0
        self._boot()

    # Clients of the site itself.

    def publish(self, topic: str, body: bytes) -> None:
        """Send a value, or an empty body for a delete."""
        clock, machine = self.clock, self.machine
        if self._publisher is None:
            self._publisher = machine.peer("anna", fingerprint_of(PUBLISHER), "made-pub", lambda: None)
            self._publisher.receive_data(CONNECT, clock.now_s, machine.clock.at(clock.now_s))
        data = encoder.send(VERSION_1_2, topic.encode(), body)
        self._publisher.receive_data(data, clock.now_s, machine.clock.at(clock.now_s))
        self.touch()

    def _drain_publisher(self) -> None:
        if self._publisher is not None:
            while self._publisher.data_to_send(self.clock.now_s):
                pass

    def values(self) -> dict[str, tuple[str, bytes]]:
        """Return publisher and body of each topic with a value."""
        found = [topic.change for topic in self.broker.store.topics.values() if topic.change.body]
        return {change.destination.decode(): (change.publisher.principal, change.body) for change in found}
