"""The whole broker on a simulated disk, clock and network, driven by one seed; see `Venue` for what must hold all the time."""

import random
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from maxam.broker.broker import Broker
from maxam.broker.marks import mark_of
from maxam.broker.policy import Policy
from maxam.config import Limits, PolicySettings, SchemaSettings, Settings, TlsSettings
from maxam.errors import DiskFullError
from maxam.gateway.commit import GroupCommit
from maxam.gateway.peer import Peer
from maxam.journal.encoding import Block
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Change, Headers
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.sans_io import fingerprint_of
from tests.simulation.disk import PowerCut, SimulatedDisk
from tests.simulation.driver import REGISTRY, cheap_globs, policy_of
from tests.simulation.model import Violation

TOPICS = tuple(f"X/{store}.{n}" for store in "ab" for n in range(4))
GLOBS = {"X/*": TOPICS, "X/a.*": TOPICS[:4], "X/b.1": ("X/b.1",)}
CLIENTS = ("anna", "bert", "cleo", "dora")
RIGHTS = (frozenset(TOPICS), frozenset(TOPICS), frozenset(TOPICS[:5]))
LIMITS = Limits(takeovers_per_minute_max=1_000_000, connect_receive_bytes_max=64)
SETTINGS = Settings(
    tls=TlsSettings(Path("c"), Path("k"), Path("a")),
    policy=PolicySettings(Path("p")),
    schemas=SchemaSettings(Path("s")),
    limits=LIMITS,
)
STORED = JournalSettings(segment_bytes_max=3000, segment_age_s_max=3600.0, reserve_bytes=4096)
SOCKET_BYTES = 2000  # what the network takes without being read


@dataclass
class Asked:
    """A frame that a client sent."""

    data: bytes
    receipt: str | None
    kind: str
    subscription: str = ""
    revision: int = 0
    body: bytes = b""
    mark: tuple[str, bytes, int] | None = None  # topic, source and number
    durable: bool = False
    subscribed: "Subscribed | None" = None  # by this SUBSCRIBE
    acked_on: "Subscribed | None" = None


@dataclass
class Subscribed:
    """A SUBSCRIBE that the broker has read, and what left on it since."""

    topics: tuple[str, ...]
    durable: bool
    acknowledged: bool
    eager: bool
    since: int | None = None  # revision from which on all is owed: set when the RECEIPT has come
    last: dict[str, int] = field(default_factory=dict)  # topic -> newest revision that left
    unacked: list[int] = field(default_factory=list)


@dataclass
class Link:
    """One connection: a Peer, the network between, and the client's view."""

    client: str
    peer: Peer
    window: int
    woken: bool = True
    inbound: list[Asked] = field(default_factory=list)  # not yet at the broker, oldest first
    offset: int = 0  # of the first of them
    outbound: bytes = b""  # not yet at the client
    expected: list[Asked] = field(default_factory=list)  # frames at the broker whose RECEIPT has not left
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)  # as the broker has read them
    asked: set[str] = field(default_factory=set)  # ids that the client has subscribed
    to_ack: list[tuple[str, int]] = field(default_factory=list)  # read, not acknowledged
    leaving: bool = False
    connected: bool = False
    stalled: bool = False
    tap: Decoder = field(default_factory=lambda: Decoder(Limits(), SERVER_COMMANDS))
    reader: Decoder = field(default_factory=lambda: Decoder(Limits(), SERVER_COMMANDS))


class Venue:
    """A run.

    Holds at every moment: nothing leaves above what is committed, nor without the right to it, nor older after newer on one
    subscription, nor beyond the window, nor again once its ACK had a RECEIPT; RECEIPTs leave once each, in order, and
    `accepted` only for what is on the disk; after every restart the store is what was committed (or with the block under way);
    nobody is owed more than there are topics. At the end, with a whole network and room on the disk: the newest of every
    topic has come to everybody who is to have it, and every RECEIPT has come.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self.digest = sha256()
        self.now_s = 1000.0
        self.count = 0
        self.rights = dict.fromkeys(CLIENTS, frozenset(TOPICS))
        self.reloading = self.rng.random() < 0.4
        self.reloaded: set[str] = set()
        self.links: list[Link] = []
        self.truth: dict[int, tuple[str, bytes]] = {}  # committed: revision -> topic, body
        self.marks: dict[tuple[str, bytes], int] = {}  # committed: topic, source -> number
        self.bodies: dict[bytes, int] = {}
        self.committed = 0
        self.under_way: list[Change] = []
        self.block: Block | None = None
        self.outcome: bool | None = None
        self.settled: dict[tuple[str, str], dict[str, int]] = {}  # durable: topic -> revision whose ACK had its RECEIPT
        self.crashes = self.refusals = self.messages = 0
        self.disk = SimulatedDisk(write_bytes_max=self.rng.choice((None, None, 100)))
        self.boot()

    # The machine.

    def boot(self) -> None:
        """Start the broker, again and again if the power goes meanwhile."""
        while True:
            try:
                self.journal = Journal.open("/journal", self.disk, STORED, self.rng.randbytes(16))
                self.broker = Broker(LIMITS, self.policy(), REGISTRY)
                for record in self.journal.recover():
                    self.broker.apply(record)
                self.broker.recovered(self.now_s, self.journal.head)
                break
            except PowerCut:
                self.disk = self.disk.restarted(self.rng.randrange)
        self.group = GroupCommit(self.broker, self.journal)
        self.check_recovery()

    def check_recovery(self) -> None:
        """See that the store is what was committed, with or without the block that was under way."""
        found = self.broker.revision
        if found > self.committed and self.under_way and found == self.under_way[-1].revision:
            self.note(self.under_way)
        if found != self.committed:
            raise Violation(f"recovered up to {found}, but {self.committed} was committed")
        self.under_way = []
        expected: dict[str, tuple[int, bytes]] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            expected[topic] = (revision, body)
        held = {t.name: (t.change.revision, t.change.body) for t in self.broker.store.topics.values() if t.change.body}
        if held != {topic: pair for topic, pair in expected.items() if pair[1]}:
            raise Violation("the recovered values are not those that were committed")

    def note(self, changes: list[Change]) -> None:
        """Take note that changes are on the disk."""
        for change in changes:
            self.truth[change.revision] = (change.destination.decode(), change.body)
            self.bodies[change.body] = change.revision
            mark = mark_of(change.headers)
            if mark is not None:
                key = (change.destination.decode(), mark[0])
                if mark[1] <= self.marks.get(key, -1):
                    raise Violation(f"{mark} of {key[0]} came after {self.marks[key]}")
                self.marks[key] = mark[1]
            self.committed = change.revision

    def crash(self, *, power: bool) -> None:
        """Lose the process, perhaps with the machine."""
        self.crashes += 1
        self.log("crash", power)
        self.disk = self.disk.restarted(self.rng.randrange) if power else self.disk.killed()
        self.disk.capacity = None
        self.links.clear()
        self.block = self.outcome = None
        self.boot()

    def policy(self) -> Policy:
        """Return the policy in force."""
        return policy_of(tuple(sorted(self.rights.items())))

    def pump(self) -> None:
        """Do what the committer's task does in one pass."""
        broker = self.broker
        if self.outcome is not None:
            outcome, self.outcome = self.outcome, None
            self.block = None
            if outcome:
                self.group.written()
            else:
                self.refusals += 1
                self.group.refused(self.now_s)
            self.under_way = []
        if broker.next_due_s is not None and broker.next_due_s <= self.now_s:
            broker.tick(self.now_s)
        broker.scan(self.rng.choice((1, 3, 1000)))
        block = self.group.next_block(self.now_s)
        if block is not None:
            self.block = block
            self.under_way = [o for o in self.group._writing or [] if type(o) is Change]

    def write(self) -> None:
        """Do what the committer's thread does with a block."""
        if self.block is None or self.outcome is not None:
            return
        try:
            self.journal.write(self.block)
        except DiskFullError:
            self.outcome = False
        except PowerCut:
            self.crash(power=True)
        except OSError:
            self.crash(power=False)
        else:
            self.note(self.under_way)
            self.outcome = True

    # Clients.

    def connect(self, client: str) -> None:
        """Open another connection of a client; an older one may still be there."""
        self.count += 1
        window = self.rng.choice((1, 2, 5, 50))
        link = Link(client, None, window)  # type: ignore[arg-type]  # the Peer needs the link's waker

        def wake() -> None:
            link.woken = True

        name = fingerprint_of(client)
        link.peer = Peer(self.broker, SETTINGS, name, f"made-{self.count}", wake, self.now_s)
        lines = f"accept-version:1.2\nhost:MAXVAPI\nclient-id:{client}\nwindow:{window}\nheart-beat:0,0\n"
        self.links.append(link)
        link.inbound.append(Asked(f"CONNECT\n{lines}\n\0".encode(), None, "connect"))

    def ask(self, link: Link) -> None:
        """Have a client send something."""
        rng = self.rng
        if link.leaving or len(link.inbound) > 20:
            return
        self.count += 1
        receipt = f"r{self.count}" if rng.random() < 0.7 else None
        name = receipt.encode() if receipt else None
        choice = rng.random()
        id_ = rng.choice("st")
        if choice < 0.02:
            link.inbound.append(Asked(_frame("DISCONNECT", receipt), receipt, "disconnect"))
            link.leaving = True
        elif choice < 0.3 and id_ not in link.asked:
            self.subscribe(link, id_, name)
        elif choice < 0.05 and id_ in link.asked:
            durable = rng.random() < 0.3
            data = encoder.unsubscribe(VERSION_1_2, id_.encode(), durable=durable, receipt_id=name)
            link.asked.discard(id_)
            link.to_ack = [(s, r) for s, r in link.to_ack if s != id_]
            link.inbound.append(Asked(data, receipt, "unsubscribe", id_, durable=durable))
        elif choice < 0.6 and link.to_ack:
            position = rng.randrange(len(link.to_ack))
            self.acknowledge(link, position, receipt)
        else:
            body = b"" if rng.random() < 0.15 else b"%d%b" % (self.count, b"." * rng.choice((0, 0, 3000)))
            topic = rng.choice(TOPICS)
            mark: tuple[str, bytes, int] | None = None
            headers: Headers = ()
            if rng.random() < 0.3:
                mark = (topic, rng.choice((b"p", b"q")), self.count // 8 + rng.randrange(20))
                headers = ((b"source", mark[1]), (b"source-revision", b"%d" % mark[2]))
            data = encoder.send(VERSION_1_2, topic.encode(), body, headers, name)
            link.inbound.append(Asked(data, receipt, "send", body=body, mark=mark))

    def acknowledge(self, link: Link, position: int, receipt: str | None) -> None:
        """Acknowledge one of the messages read, and what is before it on its subscription."""
        id_, revision = link.to_ack[position]
        link.to_ack = [(s, r) for n, (s, r) in enumerate(link.to_ack) if s != id_ or n > position]
        data = encoder.ack(VERSION_1_2, id_.encode(), b"%d" % revision, receipt.encode() if receipt else None)
        link.inbound.append(Asked(data, receipt, "ack", id_, revision))

    def subscribe(self, link: Link, id_: str, name: bytes | None) -> None:
        """Subscribe; the id says whether durably, so that a session's subscriptions keep their kind."""
        rng = self.rng
        durable = id_ == "s"
        glob = "X/*" if durable and rng.random() < 0.9 else rng.choice(tuple(GLOBS))
        acknowledged, eager = rng.random() < 0.6, rng.random() < 0.4
        data = encoder.subscribe(
            VERSION_1_2,
            id_.encode(),
            glob.encode(),
            b"client" if acknowledged else b"auto",
            durable=durable,
            eager=eager,
            receipt_id=name,
        )
        link.asked.add(id_)
        subscribed = Subscribed(GLOBS[glob], durable, acknowledged, eager)
        link.inbound.append(Asked(data, name.decode() if name else None, "subscribe", id_, subscribed=subscribed))

    # The network.

    def carry_in(self, link: Link) -> None:
        """Bring some bytes to the broker."""
        peer = link.peer
        data = b"".join(asked.data for asked in link.inbound)[link.offset :]
        if not peer.receiving or not data:
            return
        data = data[: self.rng.choice((1, 7, 100, len(data), peer.receive_bytes_max))][: peer.receive_bytes_max]
        link.offset += len(data)
        while link.inbound and link.offset >= len(link.inbound[0].data):
            asked = link.inbound.pop(0)
            link.offset -= len(asked.data)
            self.heed(link, asked)
        peer.receive_data(data, self.now_s, int(self.now_s * 1e6))

    def heed(self, link: Link, asked: Asked) -> None:
        """Take note that the broker reads a frame now."""
        if asked.kind == "connect":
            for other in self.links:
                if other is not link and other.client == link.client and other.connected:
                    other.subscriptions.clear()
            link.connected = True
        if asked.receipt is not None:
            link.expected.append(asked)
        known = link.subscriptions.get(asked.subscription)
        if asked.subscribed is not None:
            link.subscriptions[asked.subscription] = asked.subscribed
            if asked.subscribed.eager:
                self.settled.pop((link.client, asked.subscription), None)
        elif asked.kind == "unsubscribe" and known is not None:
            del link.subscriptions[asked.subscription]
            if asked.durable:
                self.settled.pop((link.client, asked.subscription), None)
        elif asked.kind == "ack" and known is not None and asked.revision in known.unacked:
            position = known.unacked.index(asked.revision) + 1
            asked.body = b",".join(b"%d" % revision for revision in known.unacked[:position])
            del known.unacked[:position]
            asked.acked_on = known

    def carry_out(self, link: Link) -> None:
        """Do what the writer's task does in one pass: it sleeps until woken or due."""
        peer = link.peer
        if len(link.outbound) >= SOCKET_BYTES or link.stalled:
            return
        due_s = peer.next_due_s
        if due_s is not None and due_s <= self.now_s:
            peer.tick(self.now_s)
            link.woken = True
        if not link.woken:
            return
        parts = peer.data_to_send(self.now_s)
        if parts:
            data = b"".join(parts)
            self.digest.update(data)
            link.outbound += data
            for frame in link.tap.feed(data):
                self.check(link, frame)
        elif peer.finished:
            self.end(link)
        else:
            link.woken = False

    def read(self, link: Link) -> None:
        """Have a client read some of what has come."""
        size = self.rng.choice((1, 50, len(link.outbound)))
        data, link.outbound = link.outbound[:size], link.outbound[size:]
        for frame in link.reader.feed(data):
            if frame.command == b"MESSAGE" and b"ack" in frame.headers:
                link.to_ack.append((frame.headers[b"subscription"].decode(), int(frame.headers[b"message-id"])))
            elif frame.command == b"ERROR":
                link.leaving = True

    def end(self, link: Link) -> None:
        """Close a connection, or have it vanish."""
        self.links.remove(link)
        link.peer.closed(self.now_s, "gone")

    def reload(self) -> None:
        """Put another policy in force."""
        client = self.rng.choice(CLIENTS)
        self.reloaded.add(client)
        self.rights[client] = self.rng.choice(RIGHTS)
        self.broker.replace_policy(self.policy())
        for link in self.links:
            if link.client == client:
                for known in link.subscriptions.values():
                    known.last.clear()  # what is granted again comes again
        for key in [key for key in self.settled if key[0] == client]:
            del self.settled[key]

    # What must hold.

    def check(self, link: Link, frame: Frame) -> None:
        """Check one frame that leaves."""
        if frame.command == b"RECEIPT":
            self.check_receipt(link, frame)
        elif frame.command == b"MESSAGE":
            self.check_message(link, frame)

    def check_receipt(self, link: Link, frame: Frame) -> None:
        """Each once and in order; accepted is on the disk."""
        name = frame.headers[b"receipt-id"].decode()
        if not link.expected or link.expected[0].receipt != name:
            raise Violation(f"RECEIPT {name} came when {link.expected[:1]} was the next in order")
        asked = link.expected.pop(0)
        disposition = frame.headers.get(b"disposition")
        if asked.kind == "send":
            stored = self.bodies.get(asked.body) if asked.body else 0
            if frame.headers.get(b"result") == b"superseded":
                if asked.mark is None or self.marks.get(asked.mark[:2], -1) < asked.mark[2]:
                    raise Violation(f"{asked.mark} was superseded by {self.marks}")
                if asked.body and stored:
                    raise Violation(f"{asked.body[:10]!r} was superseded but is on the disk")
                return
            if disposition == b"accepted" and stored is None:
                raise Violation(f"{asked.body[:10]!r} was accepted but is not on the disk")
            if disposition != b"accepted" and stored:
                raise Violation(f"{asked.body[:10]!r} was refused but is on the disk")
        if asked.subscribed is not None:
            asked.subscribed.since = self.committed
        known = link.subscriptions.get(asked.subscription)
        if known is not None and asked.acked_on is known and known.durable:  # not one that asked for all again since
            settled = self.settled.setdefault((link.client, asked.subscription), {})
            for revision in map(int, asked.body.split(b",")):
                settled[self.truth[revision][0]] = max(revision, settled.get(self.truth[revision][0], 0))

    def check_message(self, link: Link, frame: Frame) -> None:
        """Check one MESSAGE that leaves."""
        self.messages += 1
        id_ = frame.headers[b"subscription"].decode()
        topic = frame.headers[b"destination"].decode()
        revision = int(frame.headers[b"message-id"])
        what = f"MESSAGE {revision} of {topic} on {link.client}/{id_}"
        if revision > self.committed:
            raise Violation(f"{what} left above {self.committed}, which is committed")
        if self.truth[revision] != (topic, frame.body):
            raise Violation(f"{what} is not what was accepted")
        known = link.subscriptions.get(id_)
        if known is None:
            raise Violation(f"{what} has no subscription")
        if topic not in known.topics:
            raise Violation(f"{what} was not asked for")
        if topic not in self.rights[link.client]:
            raise Violation(f"{what} went to a principal without the right")
        if revision <= known.last.get(topic, 0):
            raise Violation(f"{what} came after {known.last[topic]}")
        if revision <= self.settled.get((link.client, id_), {}).get(topic, 0):
            raise Violation(f"{what} came again though its ACK had a RECEIPT")
        known.last[topic] = revision
        if known.acknowledged:
            if any(self.truth[other][0] == topic for other in known.unacked):
                raise Violation(f"{what} while one of its topic is un-acked")
            known.unacked.append(revision)
        unacked = sum(len(other.unacked) for other in link.subscriptions.values()) - known.acknowledged
        if unacked >= link.window:
            raise Violation(f"{what} left beyond the window {link.window}")

    def check_bounds(self) -> None:
        """Nobody is owed more than there are topics."""
        for session in self.broker.sessions.values():
            for subscription in session.subscriptions.values():
                if len(subscription.owed | subscription.held) > len(self.broker.store.topics):
                    raise Violation(f"{session.client_id} is owed more than there are topics")

    # A run.

    def log(self, *what: object) -> None:
        """Make what happens part of what must repeat."""
        self.digest.update(repr(what).encode())

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        self.now_s += rng.choice((0.0, 0.0, 0.001, 0.01, 0.06))
        choice = rng.random()
        if choice < 0.001:
            self.crash(power=rng.random() < 0.5)
        elif choice < 0.003:
            self.disk.faults[self.disk.calls + rng.randrange(1, 6)] = rng.choice((0, 0, 5))
        elif choice < 0.006:
            used = sum(len(file.data) for file in self.disk.files.values())
            self.disk.capacity = None if self.disk.capacity else used + rng.randrange(200)
        elif choice < 0.008 and self.reloading:
            self.reload()
        elif choice < 0.03 or not self.links:
            client = rng.choice(CLIENTS)
            if sum(link.client == client for link in self.links) < 2:
                self.connect(client)
        elif choice < 0.12:
            self.pump()
        elif choice < 0.2:
            self.write()
        else:
            link = rng.choice(self.links)
            weights = (25, 25, 25, 25, 1, 1)
            (act,) = rng.choices((self.ask, self.carry_in, self.carry_out, self.read, self.vanish, self.stall), weights)
            act(link)

    def vanish(self, link: Link) -> None:
        """Lose a connection, with all that is on its way."""
        self.log("vanish", link.client)
        self.end(link)

    def stall(self, link: Link) -> None:
        """Stop or go on taking what the broker writes."""
        link.stalled = not link.stalled

    def run(self, steps: int) -> None:
        """Let many things happen, then bring everybody up to date and check that nothing is missing."""
        for n in range(steps):
            self.step()
            if n % 50 == 0:
                self.check_bounds()
        self.heal()
        self.check_end(burst=False)
        for client in CLIENTS:
            if all(link.leaving for link in self.links if link.client == client):
                self.connect(client)
        self.heal()
        for link in self.links:
            for id_ in sorted({"s", "t"} - link.asked):
                self.subscribe(link, id_, b"last")
        self.heal()
        publisher = next(link for link in self.links if not link.leaving)
        for topic in TOPICS:
            self.count += 1
            data = encoder.send(VERSION_1_2, topic.encode(), b"%d" % self.count, (), b"burst")
            publisher.inbound.append(Asked(data, "burst", "send", body=b"%d" % self.count))
        self.heal()
        self.check_end(burst=True)

    def heal(self) -> None:
        """Let network, disk and clients be at their best until nothing moves any more."""
        self.disk.capacity = None
        self.disk.faults.clear()
        quiet = 0
        while quiet < 8:
            before = (self.digest.hexdigest(), self.committed, self.broker.appended)
            self.now_s += 0.2
            self.pump()
            self.write()
            self.pump()
            for link in list(self.links):
                link.stalled = False
                while link.inbound and link.peer.receiving and not link.peer.finished:
                    self.carry_in(link)
                link.woken = link.woken or (link.peer.next_due_s or self.now_s + 1) <= self.now_s
                while (link.woken or link.outbound) and link in self.links:
                    self.carry_out(link)
                    while link.outbound:
                        self.read(link)
                while link.to_ack and not link.leaving:
                    self.acknowledge(link, len(link.to_ack) - 1, None)
            for link in [link for link in self.links if link.leaving and not link.inbound and not link.outbound]:
                self.end(link)
            moved = before != (self.digest.hexdigest(), self.committed, self.broker.appended)
            quiet = 0 if moved or any(link.inbound and not link.leaving for link in self.links) else quiet + 1

    def check_end(self, *, burst: bool) -> None:
        """The newest of each topic has arrived, and every RECEIPT; after a burst of values of all topics, everywhere."""
        newest: dict[str, tuple[int, bytes]] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if body or newest.get(topic, (0, b""))[1]:  # deleting what is absent notifies nobody
                newest[topic] = (revision, body)
        for link in self.links:
            if link.leaving:
                continue
            connection = link.peer.connection
            if connection is not None and connection.turns and connection.in_flight < link.window:
                raise Violation(f"{link.client} has values ready that nobody hands out")
            if link.expected:
                raise Violation(f"{link.client} has no RECEIPT for {link.expected[0].receipt}")
            for id_, known in link.subscriptions.items():
                for topic in set(known.topics) & self.rights[link.client] & set(newest):
                    revision, body = newest[topic]
                    due = known.since is not None and (revision > known.since or (known.eager and bool(body)))
                    if (burst or (due and link.client not in self.reloaded)) and known.last.get(topic) != revision:
                        raise Violation(
                            f"{revision} of {topic} has not come to {link.client}/{id_}, but {known.last.get(topic)}"
                        )


def _frame(command: str, receipt: str | None) -> bytes:
    return f"{command}\n{f'receipt:{receipt}' + chr(10) if receipt else ''}\n\0".encode()


def simulate(seed: int, steps: int = 1500) -> Venue:
    """Run one seed.

    Raises:
        Violation: Something that must hold does not; a note says how to repeat it.
    """
    with cheap_globs():
        try:
            venue = Venue(seed)
            venue.run(steps)
        except Exception as error:
            error.add_note(f"seed {seed}; repeat: python -m tests.simulation --seed {seed}")
            raise
    return venue
