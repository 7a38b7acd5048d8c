"""Gateways of a cluster with their disks, one log, and clients with sessions that know all addresses; see `ClusterVenue`."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from maxam.broker import session
from maxam.broker.broker import Broker
from maxam.cluster.entry import INCARNATION, SCHEMAS, SEAL, Entry, same_position
from maxam.cluster.log import Head
from maxam.config import Limits, PolicySettings, SchemaSettings, Settings, TlsSettings
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import START
from maxam.journal.names import list_segments
from maxam.journal.retention import Rules
from maxam.records import Change, Record
from maxam.stomp.frames import Frame
from tests.simulation import files
from tests.simulation.clients import TEXTS, Clients
from tests.simulation.cluster import COUNTED as MEMBERS_COUNTED
from tests.simulation.cluster import ID, Cluster, Truth
from tests.simulation.cluster_gateway import GatewayProcess, GatewaySite, in_force
from tests.simulation.cluster_node import CUT_OFF_S, LEASE_S, MARKER
from tests.simulation.disk import SimulatedDisk
from tests.simulation.driver import cheap_globs, check_floor
from tests.simulation.files import CLIENTS, Granted, Written
from tests.simulation.links import Asked, Link
from tests.simulation.loop import Loop
from tests.simulation.machine import FAULTS, FOLDER, build
from tests.simulation.model import Violation
from tests.simulation.venue import RECEIVE, SEND, held_by

ACTS_PER_S: Final = 40.0  # of clients
INCARNATED: Final = "0123456789abcdef"
LATE_S: Final = 0.5  # a tick, and what it causes
ENDS_S: Final = 5.0  # longest time for clients to take their ERROR, and for files to be closed, by a loop that was late
UNTIDY_MAX: Final = 4  # of a queue, beside twice what is owed, when the queues of a follower were made again
TIDY: Final = str(session.__file__).endswith(".py")  # the limit of compiled code cannot be changed
COUNTED: Final = (*(name for name in MEMBERS_COUNTED if name not in {"acks", "set backs"}), "faults", "fed", "messages")


class _Clock(Loop):
    """The time of clients is that of the cluster."""

    def __init__(self, cluster: "ClusterVenue") -> None:
        self._cluster = cluster
        super().__init__()

    @property
    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._cluster.now_s

    @now_s.setter
    def now_s(self, _: float) -> None:
        pass


class ClusterClients(Clients):
    """Clients that connect to whichever member takes connections.

    Attributes:
        shown: The newest revision that left for any client.
    """

    def __init__(self, cluster: "ClusterVenue") -> None:
        super().__init__(cluster.rng, refining=True)
        rng = cluster.rng
        self.cluster = cluster
        self.loop = _Clock(cluster)
        self.shown = 0
        grants = tuple((client, Granted(rng.choice(RECEIVE), rng.choice(SEND))) for client in CLIENTS)
        self.written = Written(grants=grants, rules=rng.choice((0, 1, 2)))
        self.sources = files.read(self.written, None)[0]
        self.policies[self.sources.policy] = grants
        self.rights = {client: granted.receive for client, granted in grants}

    def touch(self) -> None:
        """Hand over what was appended."""
        self.machine.committer.schedule_commit()

    def check_text(self, change: Change) -> None:
        """See that the log has the schema that judged a change."""
        if not TEXTS[change.validation.schema, change.validation.schema_version].keys() <= self.cluster.texts:
            raise Violation(f"{change.revision} is in the log, and the schema that judged it is not")

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        if not self.links or rng.random() < 0.05:
            self.join(rng.choice(CLIENTS))
            return
        link = rng.choice(self.links)
        acts = (self.ask, self.carry_in, self.carry_out, self.read, self.vanish, self.stall)
        (act,) = rng.choices(acts, (25, 25, 25, 25, 1, 1))
        if not link.process.frozen or act not in {self.carry_in, self.carry_out}:
            self.act(link, act)

    def act(self, link: Link, act: Callable[[Link], None]) -> None:
        """Let something happen on a connection."""
        self.machine = process = link.process
        if process.frozen:
            act(link)
        else:
            process.run(partial(act, link))

    def join(self, client: str) -> None:
        """Connect a client to a member that takes connections. It gives up what it has at another one."""
        able = [process for process in self.cluster.gateways() if process.open and not process.frozen]
        if not able or sum(link.client == client for link in self.links) > 1:
            return
        self.machine = process = self.rng.choice(able)
        for link in [link for link in self.links if link.client == client and link.process is not process]:
            self.end(link)
        process.run(partial(self.connect, client))
        self.links[-1].process = process

    def end(self, link: Link) -> None:
        """Close a connection, or have it vanish."""
        self.links.remove(link)
        link.process.post(partial(link.peer.closed, self.loop.now_s, "gone"))

    def lose(self, process: GatewayProcess) -> None:
        """Lose all connections to a process that has ended."""
        self.links = [link for link in self.links if link.process is not process]

    # Promises.

    def heed(self, link: Link, asked: Asked) -> None:
        """Record that the broker reads a frame now."""
        asked.newest = self.shown
        super().heed(link, asked)

    def check_receipt(self, link: Link, frame: Frame) -> None:
        """See also that a SUBSCRIBE is answered by a member that is up to date."""
        asked = link.expected[0] if link.expected else None
        super().check_receipt(link, frame)
        assert asked is not None
        if asked.kind == "send" and frame.headers.get(b"disposition") == b"accepted":
            self.cluster.counted["accepted"] += 1
            self.shown = max(self.shown, self.bodies.get(asked.body, 0))
        elif frame.headers.get(b"disposition") == b"rejected-unavailable":
            self.cluster.counted["refused"] += 1
        if asked.subscribed is not None and link.process.broker.committed_revision < asked.newest:
            raise Violation(
                f"{link.process.site.name} answers a SUBSCRIBE at {link.process.broker.committed_revision}, and {asked.newest} was shown before it"
            )

    def check_message(self, link: Link, frame: Frame) -> None:
        """Note also what is shown."""
        super().check_message(link, frame)
        self.cluster.counted["messages"] += 1
        self.shown = max(self.shown, int(frame.headers[b"message-id"]))

    # The end.

    def settle(self) -> None:
        """Let network and clients be at their best until nothing moves."""
        quiet = 0
        while quiet < 8:
            before = (self.digest.hexdigest(), self.committed)
            self.cluster.run_until(self.cluster.now_s + 0.2)
            for link in list(self.links):
                if link in self.links:
                    self.act(link, self._exchange)
            moved = before != (self.digest.hexdigest(), self.committed)
            quiet = 0 if moved or any(link.inbound and not link.leaving for link in self.links) else quiet + 1

    def _exchange(self, link: Link) -> None:
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
        if link.leaving and not link.inbound and not link.outbound and link in self.links:
            self.end(link)

    def check_all(self) -> None:
        """See that all comes to all clients."""
        self.settle()
        self.check_end(burst=False)
        for client in CLIENTS:
            if all(link.leaving for link in self.links if link.client == client):
                self.join(client)
        self.settle()
        for link in self.links:
            for id_ in sorted({"s", "t"} - link.asked):
                self.act(link, partial(self.subscribe, id_=id_, name=b"last"))
        self.settle()
        self.send_everywhere()
        self.settle()
        self.check_end(burst=True)
        if {link.client for link in self.links} != set(CLIENTS):
            raise Violation(f"only {[link.client for link in self.links]} are connected")


class ClusterVenue(Cluster):
    """A run.

    Beside what holds for the roles of members (`Cluster`) and for clients (`Clients`), these rules hold:

    * Each journal is a beginning of the log: what a start recovers is what the log has up to there. Sealed segments of all members are equal.
    * A revision that a member has announced as synced is there after a loss of power.
    * A RECEIPT `accepted` leaves when the log has the change, and a refused one never comes into it.
    * A SUBSCRIBE is answered by a member that has all that anybody was shown before.
    * A follower that is promoted has the topics and marks that a recovery of the log makes, and owes at least as much.
    * Entries are trimmed only when `copies_min` journals hold them, synced.

    In the end nothing fails. All that is owed comes to all clients, with the sessions that they had.
    """

    sites: list[GatewaySite]  # type: ignore[assignment]  # its machines have disks

    def __init__(self, seed: int) -> None:
        self.settings = Settings(
            tls=TlsSettings(Path("c"), Path("k"), Path("a")),
            policy=PolicySettings(Path("p")),
            schemas=SchemaSettings(Path("s")),
            limits=Limits(takeovers_per_minute_max=1_000_000, connect_receive_bytes_max=64, scan_topics_per_pass_max=3),
        )
        self.settings = replace(self.settings, journal=replace(self.settings.journal, folder=Path(FOLDER)))
        self.records: list[Record] = []  # of the log
        self.texts: set[str] = set()  # of schemas in the log
        super().__init__(seed)
        self.clients = ClusterClients(self)

    def found(self) -> None:
        """Make the log, with an incarnation."""
        self.truth = Truth(self._records)
        self.histories = [self.truth]
        super().found()
        self.engine.trims = self.check_trim
        before = self.engine.head
        for index, kind, payload in ((2, SEAL, b""), (3, INCARNATION, INCARNATED.encode())):
            entry = Entry(kind, False, START, START, MARKER, payload, index, 0)
            before = self.engine.swap(entry.encode(), Head(ID, 0, index, "", START, 1, 0, bytes([index] * 8)), before)

    def machine(self, name: str, priority: int, rate: float) -> GatewaySite:
        """Return the machine of a member."""
        return GatewaySite(name, priority, rate, self.rng.choice((None, None, 100)))

    def gateways(self) -> list[GatewayProcess]:
        """Return all processes that run."""
        return [site.process for site in self.sites if site.process is not None]

    def start(self, site: Any) -> None:
        """Start a member, unless it runs or is being replaced."""
        if site.process is None and not site.forked:
            site.process = GatewayProcess(self, site)

    def end(self, process: Any, status: int, code: str) -> None:
        """A process ends by itself."""
        if process.site.process is process:
            super().end(process, status, code)

    def stop(self, process: Any) -> None:
        """End a process."""
        process.site.note_kept()
        super().stop(process)

    def rejoin(self, site: Any) -> None:
        """Start a machine with an empty disk."""
        site.disk = SimulatedDisk()
        site.kept = 0
        site.forked = False
        self.start(site)

    # Rules.

    def note(self, data: bytes, head: Head) -> None:
        """Record a new head."""
        super().note(data, head)
        entry = self.truth.entries[-1]
        if data and entry.kind == SCHEMAS:
            self.texts.update(digest for digest, _ in entry.texts())

    def _records(self, entry: Entry) -> list[int]:
        """Take the records of a block."""
        decoder = Decoder(entry.before.revision, entry.before.accepted_at_us)
        found = list(decoder.decode(*entry.records()))
        self.records += found
        self.clients.note([one for one in found if type(one) is Change])
        if entry.after.revision != self.clients.committed:
            raise Violation(
                f"entry {entry.index} leads to {entry.after.revision}, and {self.clients.committed} was expected"
            )
        return []

    def chain_at(self, revision: int) -> int:
        """Return the check of the log's last block up to a revision."""
        return [START, *(one.after for one in self.truth.blocks if one.after.revision <= revision)][-1].chain

    def check_start(self, process: GatewayProcess, judged: list[Change]) -> None:
        """See that a journal is a beginning of the log, with the schemas of its changes."""
        site, broker, position = process.site, process.broker, process.journal.position
        name = site.name
        if broker.committed_revision < site.kept:
            raise Violation(f"{name} has {broker.committed_revision}, and had synced {site.kept}")
        known = [START, *(one.after for one in self.truth.blocks)]
        if position.chain and not any(same_position(position, one) for one in known):
            raise Violation(f"the journal of {name} ends with {position}, which is none of the log")
        if held_by(broker) != self.clients.values(broker.committed_revision):
            raise Violation(f"the values that {name} recovers are not those of the log")
        check_floor(broker, self.clients.deleted(broker.committed_revision))
        for change in judged:
            for digest in TEXTS[change.validation.schema, change.validation.schema_version]:
                file = site.disk._synced_files.get(f"{FOLDER}/schemas/{digest}.avsc")
                if file is None or not file.synced:
                    raise Violation(f"{name} has {change.revision} on its disk, and not the schema that judged it")
        self.check_segments()

    def check_segments(self) -> None:
        """See that sealed segments of all members are equal."""
        found: dict[int, tuple[str, int, bytes]] = {}
        for site in self.sites:
            disk = site.disk.beside()
            if f"{FOLDER}/segments" not in disk.files:
                continue
            for one in list_segments(f"{FOLDER}/segments", disk)[0]:
                this = (site.name, one.last, bytes(disk.files[one.path].data))
                other = found.setdefault(one.first, this)
                if this[1:] != other[1:]:
                    raise Violation(f"the segment from {one.first} on differs between {this[0]} and {other[0]}")

    def check_leaders(self) -> None:
        """See also that a member without a proof takes no connection, and ends in time."""
        super().check_leaders()
        for process in self.gateways():
            late_s = self.now_s - process.proof_s - LATE_S - 3 * process.stalls_s
            if process.leading and not process.frozen and self.now_s - process.woken_s > LATE_S:
                if process.open and late_s * process.site.rate > LEASE_S:
                    raise Violation(f"{process.site.name} takes connections without a proof")
                woken_s = self.now_s - process.woken_s
                late_s += process.proof_s - process.shown_s
                if late_s * process.site.rate > CUT_OFF_S + ENDS_S and woken_s > LATE_S + ENDS_S:
                    raise Violation(f"{process.site.name} goes on although its head is not shown")

    def check_queues(self, process: GatewayProcess) -> None:
        """See that what a follower holds of subscriptions does not grow."""
        if not TIDY:
            return
        for one in process.broker.sessions.values():
            for subscription in one.subscriptions.values():
                if subscription.ready_count > 2 * len(subscription.owed) + UNTIDY_MAX:
                    raise Violation(f"{process.site.name} holds {subscription.ready_count} in a queue")

    def check_promotion(self, process: GatewayProcess, head: Head) -> None:
        """See that what a follower has is what a recovery of the log makes, and that it owes at least as much."""
        name, broker = process.site.name, process.broker
        if process.applied != head.index:
            raise Violation(f"{name} leads from index {process.applied}, its term begins at {head.index}")
        limits, sources = self.settings.limits, self.clients.sources
        recovered = Broker(limits, sources.policy, sources.registry)
        for record in self.records:
            recovered.replay(record)
        recovered.backfills.run(recovered.store)
        recovered.recovered(self.now_s, self.clients.committed)
        if held_by(broker) != held_by(recovered):
            raise Violation(f"{name} leads with other values than the log has")
        if broker.sessions.keys() != recovered.sessions.keys():
            raise Violation(f"{name} leads with the sessions {list(broker.sessions)}, not {list(recovered.sessions)}")
        while broker.scan():
            pass
        for key, expected in recovered.sessions.items():
            for id_, subscription in expected.subscriptions.items():
                known = broker.sessions[key].subscriptions.get(id_)
                if known is None or known.glob.text != subscription.glob.text:
                    raise Violation(f"{name} leads without the subscription {id_!r} of {key}")
                owed = {topic.destination for topic in known.owed}
                lacked = {topic.destination for topic in subscription.owed} - owed
                if lacked:
                    raise Violation(f"{name} leads and does not owe {lacked} to {id_!r} of {key}")

    def check_trim(self, last: int) -> None:
        """Entries that are trimmed are synced in enough journals."""
        self.counted["trims"] += 1
        if not last:
            return
        needed = self.truth.entries[last - 1].after.revision
        for site in self.sites:
            site.note_kept()
        copies = sum(site.kept >= needed for site in self.sites)
        if copies < self.copies_min:
            raise Violation(f"entries up to {last} are trimmed, and {copies} journals hold them")

    # Events.

    def client(self) -> None:
        """Have a client do something."""
        self.after(self.rng.expovariate(ACTS_PER_S), self.client)
        if not self.quiet:
            self.clients.step()

    @property
    def acts(self) -> tuple[tuple[Callable[[Any], None], int], ...]:
        """Faults, with weights."""
        kept = tuple((act, weight) for act, weight in super().acts if act != self.set_back)
        return (*kept, (self.fault, 4), (self.snapshot, 3), (self.terminate, 2))

    def _hand_over(self, process: Any, to: str) -> list[Any]:
        if process.leading:
            process.role.hand_over(to)
        return []

    def terminate(self, site: Any) -> None:
        """Stop a gateway in order."""
        process = site.process
        if process is not None and process.role is not None:
            process.post(lambda: process.role.stop() or process.gateway.end())

    def fault(self, site: Any) -> None:
        """Have one of the next calls of a disk fail."""
        site.disk.faults[site.disk.calls + self.rng.randrange(1, 20)] = self.rng.choice(FAULTS)

    def set_disk(self, process: Any, *, full: bool) -> None:
        """Fill the disk of a member, or free it."""
        disk = process.site.disk
        disk.capacity = sum(len(file.data) for file in disk.files.values()) + self.rng.randrange(200) if full else None

    def depose(self, leader: Any) -> None:
        """Ask the leader to hand over. It notices a full disk only when it writes."""
        leader.post(partial(self._hand_over, leader, ""))

    def snapshot(self, site: Any) -> None:
        """Build a snapshot at a member, and remove what is too old."""
        process = site.process
        if process is None or process.role is None:
            return
        rules = Rules(self.rng.choice((0, 0.001)), self.rng.choice((0, 1, 10_000)))
        build(site.disk.beside(), self.settings, rules, self.clients.loop.wall_us)
        self.counted["snapshots"] += 1

    def held_by_others(self, site: Any) -> int:
        """Return the number of other journals that hold, synced, all that was trimmed."""
        needed = self.truth.entries[self.engine.first - 2].after.revision if self.engine.first > 1 else 0
        for other in self.sites:
            other.note_kept()
        return sum(not other.forked and other.kept >= needed for other in self.sites if other is not site)

    # The end.

    def heal(self) -> None:
        """End all faults."""
        super().heal()
        for site in self.sites:
            site.disk.capacity = None
            site.disk.faults.clear()

    def check_calm(self) -> None:
        """One leads, and all clients get all; all journals are equal."""
        self.leader()
        self.quiet = True
        self.clients.check_all()
        self.run_until(self.now_s + 2.0)
        for process in self.gateways():
            if not same_position(process.journal.position, self.truth.entries[-1].after):
                raise Violation(f"the journal of {process.site.name} ends with {process.journal.position}")
        if len(self.gateways()) < len(self.sites):
            raise Violation("a member does not run although nothing fails")
        self.check_segments()


def simulate(seed: int) -> ClusterVenue:
    """Run a seed. Raises Violation if a promise is broken."""
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with cheap_globs(), in_force(), patch.object(session, "_UNTIDY_MAX", UNTIDY_MAX):
            venue = ClusterVenue(seed)
            venue.run()
    except Exception as error:
        error.add_note(f"seed {seed}; repeat: python -m tests.simulation --kinds cluster-venue --seed {seed}")
        raise
    finally:
        logging.disable(disabled)
    return venue
