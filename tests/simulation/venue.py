"""The whole broker on a simulated disk, clock and network, driven by one seed; see `Venue` for what must hold all the time."""

import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from maxam.broker.broker import Broker
from maxam.broker.summary import summed_up
from maxam.config import Limits, PolicySettings, PresenceSettings, SchemaSettings, Settings, TlsSettings
from maxam.errors import ConfigurationError, JournalDamagedError, MaxamError
from maxam.gateway import reload, snapshot
from maxam.gateway.loaded_config import CRL, POLICY, SCHEMAS, LoadedConfig
from maxam.journal.names import list_segments, list_snapshots
from maxam.journal.replay import sealed_replay
from maxam.journal.retention import Rules
from maxam.records import Change, Identity, Rejection
from maxam.stomp.events import Send
from tests.simulation import files
from tests.simulation.attendance import HEART_BEAT_S, Attendance
from tests.simulation.clients import TEXTS, Clients
from tests.simulation.disk import Killed, PowerCut, SimulatedDisk
from tests.simulation.driver import cheap_globs, check_floor, check_recovery_cost
from tests.simulation.files import ALL, CLIENTS, FORMS, NOTHING, RULES, TOPICS, Granted, Written
from tests.simulation.machine import FAULTS, FOLDER, Machine, build
from tests.simulation.model import Violation

RECEIVE = (ALL, ALL, frozenset(TOPICS[:5]), frozenset(TOPICS[3:]))
SEND = (ALL, ALL, ALL, frozenset(TOPICS[:6]))
DAYS_S = 86_400


class Venue(Clients):
    """A run.

    At every moment:

    * No MESSAGE leaves above what is committed, without the right to it, or beyond the window.
    * None leaves older after newer on one subscription, or again once its ACK had a RECEIPT.
    * RECEIPTs leave once each, in order, and `accepted` only for what is on the disk.
    * After every restart the store is what was committed, with or without the block under way.
    * No subscription is owed more than there are topics.

    At the end, with a whole network and room on the disk, every RECEIPT has come. So has the newest value of every topic, to all
    subscribers that are to have it.
    """

    def __init__(self, seed: int, refining: bool = True) -> None:
        rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        super().__init__(rng, refining)
        self.restless = seed % 4 == 3  # policies and schemas change all the time, and scans of topics are slow
        limits = Limits(
            takeovers_per_minute_max=1_000_000,
            connect_receive_bytes_max=64,
            topics_max=rng.choice((1000, 1000, 1000, 6)),
            scan_topics_per_pass_max=1 if self.restless else rng.choice((1, 3, 1000)),
            session_expiry_s=rng.choice((604_800.0, 604_800.0, 5.0)),
            delete_retention_s=(86_400.0, 86_400.0, 5.0, 0.0)[seed // 4 % 4],
            delete_retention_topics_max=(100_000, 3)[seed // 16 % 2],
        )
        self.settings = Settings(
            tls=TlsSettings(Path("c"), Path("k"), Path("a")),
            policy=PolicySettings(Path("p")),
            schemas=SchemaSettings(Path("s")),
            limits=limits,
        )
        self.deletes = rng.choice((0.15, 0.15, 0.15, 0.7))
        self.reloading = (
            0.02 if self.restless else rng.choice((0.0, 0.0, 0.003, 0.01))
        )  # so much of what happens asks for a reload
        self.under_way: list[Change] = []
        self.crashes = self.refusals = 0
        self.snapshots = self.expiries = self.reloads = self.faults = 0
        self.damaged = ""  # a snapshot
        # The files on the disk of the machine, those that a reload has found there, and those in force.
        self.allow_orphans = False
        attending = refining and seed % 2 == 1 and limits.topics_max > 100
        self.written = self.seen = Written(attending=attending)
        self.sources = self.before = self.found(None)
        self.disk = SimulatedDisk(write_bytes_max=rng.choice((None, None, 100)))
        self.pumping = False
        if attending:
            self.attendance = Attendance()
            self.settings = replace(self.settings, presence=PresenceSettings(enabled=True, away_kept_s=20.0))
        self.boot()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have the gateway's modules run on this venue's clock, files and chance."""
        with ExitStack() as stack:
            stack.enter_context(self.loop.in_force())
            stack.enter_context(patch.object(reload, "reread_config", self.reread))
            stack.enter_context(patch.object(snapshot, "secrets", SimpleNamespace(token_bytes=self.rng.randbytes)))
            yield

    # The machine.

    incarnation: str = ""  # of the journal, as the last start found it

    def boot(self) -> None:
        """Start the broker, again and again if the power goes or the disk fails meanwhile."""
        self.memory_low = False
        if self.rng.random() < 0.3:
            self.disk.faults[self.rng.randrange(1, 60)] = self.rng.choice(FAULTS)
        if self.written.broken:  # no gateway could start with it
            self.written = replace(self.written, broken=frozenset())
        sources = self.found(None)
        while True:
            try:
                marker = self.rng.randbytes(16)
                self.machine = Machine(self.disk, self.loop, self.settings, sources, self.links, marker, HEART_BEAT_S)
                break
            except PowerCut:
                self.faults += 1
                self.disk = self.disk.restarted(self.rng.randrange)
            except (MaxamError, OSError, Killed):
                if not self.disk.faulted and self.disk.capacity is None:
                    raise
                self.faults += 1
                self.disk = self.disk.killed()
                self.disk.capacity = None
        self.disk.faults.clear()
        tell = self.broker.publishing.on_rejected

        def told(identity: Identity, event: Send, disposition: bytes, rejection: Rejection, wall_us: int) -> None:
            mark = dict(event.headers).get(b"mark")
            if mark is None:
                self.told.append(event.receipt.decode() if event.receipt else None)
            elif self.pumping and self.attendance is not None:
                self.attendance.rejected_will(
                    identity.principal, int(mark), dict(self.policies[self.sources.policy]), self.rules
                )
            if tell is not None:
                tell(identity, event, disposition, rejection, wall_us)

        self.broker.publishing.on_rejected = told
        self.swapped()
        if self.incarnation not in {"", self.machine.journal.incarnation}:
            raise Violation("the journal came back as another one")
        self.incarnation = self.machine.journal.incarnation
        self.check_recovery()

    def check_recovery(self) -> None:
        """See that the store is what was committed, with or without the block that was under way."""
        check_recovery_cost(self.broker)
        found = self.broker.committed_revision
        if found > self.committed and self.under_way and found == self.under_way[-1].revision:
            self.note(self.under_way)
        if found != self.committed:
            raise Violation(f"recovered up to {found}, but {self.committed} was committed")
        self.under_way = []
        if self.values() != held_by(self.broker):
            raise Violation("the recovered values are not those that were committed")
        check_floor(self.broker, self.deleted())
        for change in self.machine.judged:
            self.check_text(change)
        self.check_segments()

    def check_segments(self) -> None:
        """See that what is left of the archive is the end of what there was."""
        disk = self.disk.beside()
        sealed, opened = list_segments(f"{FOLDER}/segments", disk)
        for one, following in zip(sealed, [*sealed, *opened][1:], strict=False):
            if one.last + 1 != following.first:
                raise Violation(f"there is a hole behind {one.path}")

    def check_text(self, change: Change) -> None:
        """See that the schema that judged a change is on the disk, whatever happens now."""
        texts = TEXTS[change.validation.schema, change.validation.schema_version]
        for digest, text in texts.items():
            file = self.disk._synced_files.get(f"{FOLDER}/schemas/{digest}.avsc")
            if file is None or file.synced != text:
                raise Violation(f"{change.revision} is on the disk, and the schema that judged it may be lost")

    def crash(self, *, power: bool) -> None:
        """Lose the process, perhaps with the machine."""
        self.crashes += 1
        self.log("crash", power)
        self.machine.end()
        self.disk = self.disk.restarted(self.rng.randrange) if power else self.disk.killed()
        if self.rng.random() < 0.8:
            self.disk.capacity = None
        self.links.clear()
        if self.attendance is not None:
            self.attendance.crashed(self.loop.now_s)
        if self.rng.random() < 0.1:
            self.damage()
        self.boot()

    def stop(self) -> None:
        """Stop in order, when nothing is being written."""
        if self.machine.committer.group.writing or self.machine.writes:
            return
        self.log("stop")
        try:
            self.machine.journal.close()
        except PowerCut:
            self.crash(power=True)
        except (OSError, Killed):
            if not self.disk.faulted:
                raise
            self.crash(power=False)
        else:
            self.crash(power=self.rng.random() < 0.5)

    def damage(self) -> None:
        """Change a byte of the newest of two snapshots: the other and the segments since must do."""
        snapshots = list_snapshots(f"{FOLDER}/snapshots", self.disk.beside())
        if len(snapshots) < 2 or self.damaged in self.disk.files:
            return
        self.damaged = snapshots[-1][1]
        data = bytearray(self.disk.contents()[self.damaged])
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        self.disk.put(self.damaged, bytes(data))

    def pump(self) -> None:
        """Let the event loop act on the results of a thread, and do what is due."""
        self.machine.answer()
        coming = {id(one) for one in self.machine.coming} if self.attendance is not None else set()
        self.pumping = True
        self.machine.pump()
        self.pumping = False
        self.under_way = self.machine.under_way
        if self.attendance is not None:
            grants, rules = dict(self.policies[self.sources.policy]), self.rules
            self.attendance.undoing = self.attendance.undoing and bool(self.machine._outcomes)
            before: set[bytes] = set()
            for one in self.machine.coming:
                if type(one) is Change:
                    if id(one) not in coming:
                        overtaking = one.destination in before
                        self.attendance.appended(one, grants, rules, self.loop.now_s, overtaking=overtaking)
                    before.add(one.destination)

    def touch(self) -> None:
        """Hand over what was appended."""
        self.machine.committer.schedule_commit()
        self.under_way = self.machine.under_way

    def write(self) -> None:
        """Do what the committer's thread does."""
        if not self.machine.writes or self.machine._outcomes:
            return
        written = self.machine.write()
        if self.machine.died is not None:
            died = self.machine.died
            if isinstance(died, PowerCut):
                self.faults += 1
                self.crash(power=True)
            elif self.disk.faulted and isinstance(died, (OSError, MaxamError, Killed)):
                self.faults += 1
                self.crash(power=False)
            else:
                raise died
        elif written is True:
            self.note(self.under_way)
            self.under_way = []
        elif written is False:
            self.refusals += 1
            self.under_way = []
            if self.attendance is not None:
                self.attendance.refused()

    def build(self) -> None:
        """Have the other process build a snapshot and remove what is too old; see that each of two snapshots is enough."""
        self.snapshots += 1
        faults = {self.rng.randrange(1, 80): self.rng.choice(FAULTS)} if self.rng.random() < 0.4 else {}
        disk = self.disk.beside(faults)
        rules = Rules(self.rng.choice((0, 0.001)), self.rng.choice((0, 1, 10_000)))
        before = set(self.disk.files)
        if self.rng.random() < 0.4:
            self.build_meanwhile(disk, rules)
            return
        try:
            build(disk, self.settings, rules, self.loop.wall_us)
        except PowerCut:
            self.crash(power=True)
        except JournalDamagedError as error:
            if error.path != self.damaged:
                raise
        self.faults += disk.faulted
        self.expiries += any(path not in self.disk.files and "/segments/" in path for path in before)
        disk = self.disk.beside()
        self.check_segments()
        snapshots = list_snapshots(f"{FOLDER}/snapshots", disk)
        if len(snapshots) > 1 and self.damaged not in self.disk.files:
            disk.files = {path: file for path, file in disk.files.items() if path != snapshots[-1][1]}
            replay = sealed_replay(FOLDER, disk)
            broker = summed_up(replay.records(sealed_only=True), self.settings.limits)
            broker.store.raise_floor(replay.floor)
            check_floor(broker, self.deleted(broker.committed_revision))
            if held_by(broker) != self.values(broker.committed_revision):
                raise Violation("without the newest snapshot the values are not those that were committed")

    def build_meanwhile(self, disk: SimulatedDisk, rules: Rules) -> None:
        """Do that between two calls of the gateway's on the disk; perhaps the power goes soon after."""
        gateway = self.disk
        at = gateway.calls + self.rng.randrange(1, 8)

        def other() -> None:
            try:
                build(disk, self.settings, rules, self.loop.wall_us)
            except PowerCut:
                gateway.faults[gateway.calls] = 0
            except JournalDamagedError as error:
                if error.path != self.damaged:
                    raise

        gateway.meanwhile[at] = other
        if self.rng.random() < 0.5:
            gateway.faults[at + self.rng.randrange(1, 4)] = 0

    # Operators.

    def found(self, before: LoadedConfig | None) -> LoadedConfig:
        """Read the files."""
        return self.reread(self.settings, before)[0]

    def reread(self, _: Settings, before: LoadedConfig | None) -> tuple[LoadedConfig, dict[str, ConfigurationError]]:
        """Do what a reload does in its thread."""
        self.seen = self.written
        sources, refused = files.read(self.written, before)
        if POLICY not in refused:
            self.policies[sources.policy] = self.written.grants
        return sources, refused

    def edit(self) -> None:
        """Change a file."""
        rng = self.rng
        what = rng.choice((POLICY, POLICY, POLICY, SCHEMAS, SCHEMAS, CRL, "broken"))
        if what == POLICY:
            known = rng.random() < 0.85
            granted = Granted(rng.choice(RECEIVE), rng.choice(SEND)) if known else NOTHING
            if known and self.attendance is not None and rng.random() < 0.5:
                granted = replace(granted, will=self.any_will(sorted(granted.send)))
            self.written = replace(
                self.written, grants=tuple(sorted((dict(self.written.grants) | {rng.choice(CLIENTS): granted}).items()))
            )
        elif what == SCHEMAS:
            self.written = replace(self.written, rules=rng.randrange(len(RULES)))
        elif what == CRL:
            self.written = replace(self.written, revoked=rng.choice(("", *CLIENTS)))
        else:
            broken = rng.choice((frozenset(), frozenset({POLICY}), frozenset({SCHEMAS}), frozenset({POLICY, CRL})))
            self.written = replace(self.written, broken=broken)

    def reload(self) -> None:
        """Ask for a reload, or let the one that is under way go on by a step."""
        task = self.machine.reload
        if task is None:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self.edit()
            self.before = self.machine.reloader.loaded
            self.allow_orphans = self.rng.random() < 0.2
            self.machine.begin_reload(allow_orphans=self.allow_orphans)
            return
        try:
            task.step()
        except PowerCut:
            self.faults += 1
            self.crash(power=True)
            return
        except (OSError, Killed):
            if not self.disk.faulted:
                raise
            self.faults += 1
            self.crash(power=False)
            return
        self.under_way = self.machine.under_way
        self.swapped()
        if task.done:
            self.machine.reload = None
            self.reloads += 1
            self.check_reload({one.item: one.outcome for one in task.result})

    def swapped(self) -> None:
        """Record the items that are in force now."""
        before, after = self.sources, self.machine.reloader.loaded
        if before is after:
            return
        self.sources = after
        self.log("swapped", after.digests)
        rules = [self.rules_of(one) for one in (before, after)]
        if self.machine.reload is not None and not self.allow_orphans:
            values = {topic: True for topic in self.values() if topic in TOPICS}
            values |= {one.destination.decode(): not one.deleted for one in self.machine.coming if type(one) is Change}
            lost = [
                t
                for t, value in values.items()
                if value and t in TOPICS and covered(rules[0], t) and not covered(rules[1], t)
            ]
            if lost:
                raise Violation(f"{lost} have no rule any more, and nobody has allowed that")
        for client in CLIENTS:
            was, now = self.granted(client, before), self.granted(client, after)
            self.rights[client] = now.receive
            if (was.receive, was.known) == (now.receive, now.known):
                continue
            self.reloaded.add(client)
            for link in self.links:
                if link.client == client:
                    for known in link.subscriptions.values():
                        known.last.clear()  # what is granted again comes again
                        granted = {topic for topic in now.receive if topic not in was.receive}
                        known.granted.update(n for n in known.unacked if self.truth[n][0] in granted)
                    for asked in link.expected:
                        asked.acked_on = None  # however late its ACK is answered
            for key in [key for key in self.settled if key[0] == client]:
                del self.settled[key]
        self.outlawed = {client for client in self.outlawed if not self.entitled(client)}

    def check_reload(self, outcomes: dict[str, str]) -> None:
        """A reload has been answered: all of it is in force, and no client without rights is served."""
        wanted, refused = files.read(self.seen, self.before)
        for item, part in ((POLICY, "policy"), (SCHEMAS, "registry"), (CRL, "revocations")):
            old, new, found = (getattr(sources, part) for sources in (self.before, wanted, self.sources))
            if (item in refused) and outcomes[item] != reload.REFUSED:
                raise Violation(f"{item} cannot be used and was {outcomes[item]}")
            if item not in refused and item != SCHEMAS and outcomes[item] == reload.REFUSED:
                raise Violation(f"{item} is good and was refused")
            if found is not (old if outcomes[item] == reload.REFUSED else new):
                raise Violation(f"{item} was {outcomes[item]}, but is not what is in force")
        self.outlawed = {client for client in CLIENTS if not self.entitled(client)}
        for link in self.links:
            connection = link.peer.connection
            served = connection is not None and connection.failure is None and not link.peer.end
            if link.client in self.outlawed and served:
                raise Violation(f"{link.client} is served though it may not be connected any more")

    # A run.

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        self.loop.now_s += rng.choice((0.0, 0.0, 0.001, 0.01, 0.06))
        choice = rng.random()
        if choice < 0.04 and self.befall(choice):
            return
        if choice < 0.06 or not self.links:
            client = rng.choice(CLIENTS)
            if sum(link.client == client for link in self.links) < 2:
                self.connect(client)
        elif choice < 0.14:
            self.pump()
        elif choice < 0.22:
            self.write()
        else:
            link = rng.choice(self.links)
            weights = (25, 25, 25, 25, 1 if self.attendance is None else 4, 1)
            (act,) = rng.choices((self.ask, self.carry_in, self.carry_out, self.read, self.vanish, self.stall), weights)
            act(link)

    def befall(self, choice: float) -> bool:
        """Let something happen to the machine, its disk or its files, or nothing."""
        rng = self.rng
        if choice < 0.001:
            self.crash(power=rng.random() < 0.5)
        elif choice < 0.0013:
            self.stop()
        elif choice < 0.003:
            self.disk.faults[self.disk.calls + rng.randrange(1, 6)] = rng.choice(FAULTS)
        elif choice < 0.006:
            used = sum(len(file.data) for file in self.disk.files.values())
            self.disk.capacity = None if self.disk.capacity else used + rng.randrange(200)
        elif choice < 0.009:
            self.build()
        elif choice < 0.01:
            self.loop.jumped_s = rng.choice((0, 0, 3600, -3600, 3 * DAYS_S, -3 * DAYS_S))
        elif choice < 0.0105:
            self.memory_low = self.broker.memory_low = not self.memory_low
            self.broker.store.release_soon()
        elif self.machine.reload is not None or choice < 0.0105 + self.reloading:
            self.reload()
        else:
            return False
        return True

    def run(self, steps: int) -> None:
        """Let many things happen, then bring all clients up to date and check that nothing is missing."""
        for n in range(steps):
            self.step()
            if n % 50 == 0:
                self.check_bounds()
        self.heal()
        self.check_end(burst=False)
        self.check_attendance()
        for client in CLIENTS:
            if all(link.leaving for link in self.links if link.client == client):
                self.connect(client)
        self.heal()
        for link in self.links:
            for id_ in sorted({"s", "t"} - link.asked):
                self.subscribe(link, id_, b"last")
        self.heal()
        self.send_everywhere()
        self.heal()
        self.check_end(burst=True)
        self.check_attendance()

    def check_attendance(self) -> None:
        """Let time pass without faults, and check that the broker has made each change that it had to make itself."""
        if self.attendance is not None:
            for _ in range(4):
                self.loop.now_s += 1.0
                self.heal()
            now_us = max(self.machine.clock.at(self.loop.now_s), self.broker.accepted_at_us)
            self.attendance.check_rest(self.rules, self.loop.now_s, now_us)

    def heal(self) -> None:
        """Let network, disk and clients be at their best until nothing moves."""
        self.disk.capacity = None
        self.disk.faults.clear()
        self.memory_low = self.broker.memory_low = False
        while self.machine.reload is not None:
            self.loop.now_s += 0.1
            self.reload()
        quiet = 0
        while quiet < 8:
            before = (self.digest.hexdigest(), self.committed, self.broker.appended_seq)
            self.loop.now_s += 0.2
            self.pump()
            self.write()
            self.pump()
            for link in list(self.links):
                link.stalled = False
                while link.inbound and link.peer.receiving and not link.peer.finished:
                    self.carry_in(link)
                link.woken = link.woken or (link.peer.next_due_s or self.loop.now_s + 1) <= self.loop.now_s
                while (link.woken or link.outbound) and link in self.links:
                    self.carry_out(link)
                    while link.outbound:
                        self.read(link)
                while link.to_ack and not link.leaving:
                    self.acknowledge(link, len(link.to_ack) - 1, None)
            for link in [link for link in self.links if link.leaving and not link.inbound and not link.outbound]:
                self.end(link)
            moved = before != (self.digest.hexdigest(), self.committed, self.broker.appended_seq)
            quiet = 0 if moved or any(link.inbound and not link.leaving for link in self.links) else quiet + 1


def covered(rules: int, topic: str) -> bool:
    """Return True if a topic has a rule."""
    return any(files.verdict(rules, topic, form) is not None for form in FORMS)


def held_by(broker: Broker) -> dict[str, tuple[int, bytes]]:
    """Return revision and body of what a broker holds."""
    return {t.name: (t.change.revision, t.change.body) for t in broker.store.topics.values() if t.change.body}


def simulate(seed: int, steps: int = 1500, refining: bool = True) -> Venue:
    """Run one seed.

    Args:
        seed: Decides everything that happens.
        steps: How much happens.
        refining: Some SUBSCRIBEs have headers that refine delivery. Without them a seed is what it was before there were any, so that
            the seeds still lead to rare mutants.

    Raises:
        Violation: A promise is broken. A note shows how to repeat it.
    """
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with cheap_globs():
            venue = Venue(seed, refining)
            with venue.in_force():
                venue.run(steps)
                venue.machine.end()
    except Exception as error:
        error.add_note(f"seed {seed}; repeat: python -m tests.simulation --seed {seed}")
        raise
    finally:
        logging.disable(disabled)
    return venue
