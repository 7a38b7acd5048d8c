"""Clients of a simulated gateway, the network between, and what each frame that leaves must be; see `Clients`."""

import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.broker.producer_sequences import mark_of
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.revocation import Chain
from maxam.gateway.server_connection import ServerConnection
from maxam.records import Change, Headers
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2, SubscribeOptions
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.simulation import files
from tests.simulation.attendance import Attendance
from tests.simulation.driver import check_floor
from tests.simulation.files import ALL, CLIENTS, FORMS, RULES, TOPICS, Bound, Granted, Grants, Written
from tests.simulation.loop import Loop
from tests.simulation.model import Violation
from tests.support.sans_io import fingerprint_of

GLOBS = {"X/*": TOPICS, "X/a.*": TOPICS[:4], "X/b.1": ("X/b.1",)}
CLOCK_JUMPS_US = 7_201_000_000  # jumps within clock_jump_s_max that one life of the gateway can follow: from an hour behind to an hour ahead
TEXTS = {
    ("t.Body_v1", "1.0"): dict(files.registry_of(1).texts()),
    ("t.Body_v1", "1.1"): dict(files.registry_of(2).texts()),
    ("maxam.Presence_v1", "1.0"): dict(files.registry_of(0, attending=True).texts()),
}  # that must be kept
# When they are true of the header `tag` of a value, None without one.
SELECTORS: dict[str, Callable[[str | None], bool]] = {
    "header('tag') = 'a'": lambda tag: tag == "a",
    "header('tag') <> 'a' OR header('tag') IS NULL": lambda tag: tag != "a",
    "header('tag') LIKE '_' AND NOT header('tag') = 'b'": lambda tag: tag is not None and tag != "b",
}
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
    topic: str = ""
    form: str = "raw"
    allowed: bool = True  # its sender had the right when the broker read its head, and when it read it all
    allowed_at_end: bool = True  # the latter; a broker that has the whole body with the head decides once
    begun: bool = False  # the broker has read its head and not all of it
    minor: str | None = (
        None  # what judges it: that of the rule in force when the broker read it, empty without a schema
    )
    low: bool = False  # memory was then
    newest: int = 0  # revision that was shown to anybody before, in a cluster


@dataclass
class Subscribed:
    """A SUBSCRIBE that the broker has read, and what left on it since."""

    topics: tuple[str, ...]
    durable: bool
    acknowledged: bool
    eager: bool
    individual: bool  # an ACK covers one message
    since: int | None = None  # revision from which on all is owed: set when the RECEIPT has come
    last: dict[str, int] = field(default_factory=dict)  # topic -> newest revision that left
    unacked: list[int] = field(default_factory=list)
    # Un-acked when a reload granted their topics: owed again, ACKed or not.
    granted: set[int] = field(default_factory=set)
    options: SubscribeOptions | None = None
    glob: str = ""
    reported: int = -1  # the newest position
    completes: int = 0
    after: int | None = None  # the position that was used, so that all changes after it are owed, and no other
    value_s: dict[str, float] = field(default_factory=dict)  # topic -> when its last value left
    holds: dict[str, bool] = field(default_factory=dict)  # topic -> what left last was a value
    resumed: bool = False  # the client may hold values of before

    def selects(self, tag: str | None) -> bool:
        """Return True if a value with this tag satisfies the selector."""
        selector = None if self.options is None else self.options.selector
        return selector is None or SELECTORS[selector](tag)


@dataclass(eq=False)
class Link:
    """One connection: a ServerConnection, the network between, and the client's view."""

    client: str
    peer: ServerConnection
    window: int
    woken: bool = True
    inbound: list[Asked] = field(default_factory=list)  # not yet at the broker, oldest first
    offset: int = 0  # of the first of them
    outbound: bytes = b""  # not yet at the client
    expected: list[Asked] = field(default_factory=list)  # frames at the broker whose RECEIPT has not left
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)  # as the broker has read them
    asked: set[str] = field(default_factory=set)  # ids that the client has subscribed
    individual: set[str] = field(default_factory=set)  # those with ack mode client-individual
    to_ack: list[tuple[str, int]] = field(default_factory=list)  # read, not acknowledged
    leaving: bool = False
    connected: bool = False
    refused: bool = False  # its certificate does not count, or its will is bad
    will: Bound | None = None  # of its CONNECT
    bad_will: bool = False
    address: str = ""
    stalled: bool = False
    tap: Decoder = field(default_factory=lambda: Decoder(Limits(), SERVER_COMMANDS))
    reader: Decoder = field(default_factory=lambda: Decoder(Limits(), SERVER_COMMANDS))
    # Stands for the gateway's Transport where certificates are judged.
    chain: Chain = ()
    end: Callable[["Link"], None] = lambda _: None
    expelled: bool = False
    message_under_way: bool = False
    large_messages: int = 0
    process: Any = None  # of the gateway, in a cluster

    def expel(self, failure: ProtocolError) -> None:
        """End gracefully."""
        self.expelled = True
        if self.peer.connection is None:
            self.cut(failure.message)
        else:
            self.peer.connection.expel(failure)

    def cut(self, _: str) -> None:
        """End at once."""
        self.peer.cut()
        self.end(self)


class Clients:
    """Clients, and the promises to them. A subclass has the gateway, and lets time pass.

    Attributes:
        machine: The gateway that is driven now.
        sources: The configuration in force.
        written: The files of operators.
        truth: Committed changes: topic and body by revision.
        marks: Likewise, number by topic and source.
        minors: Version that was to judge a body.
        told: Receipts of the SENDs that operators were notified of.
        settled: Of durable subscriptions, the revision of each topic whose ACK had its RECEIPT.
        positions: The newest of each client and id, with its glob.
        outlawed: None of them may be served: a reload with this effect was answered.
        tags: Header `tag` of committed changes.
    """

    machine: Any
    sources: LoadedConfig
    written: Written

    def __init__(self, rng: random.Random, refining: bool) -> None:
        self.rng = rng
        self.refining = refining
        self.digest = sha256()
        self.loop = Loop()
        self.count = self.messages = 0
        self.deletes = 0.15
        self.attendance: Attendance | None = None
        self.policies: dict[Policy, Grants] = {}
        self.reloaded: set[str] = set()
        self.links: list[Link] = []
        self.truth: dict[int, tuple[str, bytes]] = {}
        self.marks: dict[tuple[str, bytes], int] = {}
        self.bodies: dict[bytes, int] = {}
        self.minors: dict[bytes, str | None] = {}
        self.told: list[str | None] = []
        self.committed = 0
        self.accepted_at_us = 0
        self.settled: dict[tuple[str, str], dict[str, int]] = {}
        self.memory_low = False
        self.burst: set[bytes] = set()
        self.positions: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.rights: dict[str, frozenset[str]] = dict.fromkeys(CLIENTS, ALL)
        self.outlawed: set[str] = set()
        self.tags: dict[int, str] = {}

    @property
    def broker(self) -> Broker:
        """The one that runs."""
        return self.machine.broker  # type: ignore[no-any-return]  # it has one

    def touch(self) -> None:
        """Hand over what was appended."""
        raise NotImplementedError

    def check_text(self, change: Change) -> None:
        """See that the schema that judged a change is kept."""
        raise NotImplementedError

    def values(self, until: int | None = None) -> dict[str, tuple[int, bytes]]:
        """Return revision and body of what every topic holds, or held at a revision."""
        found: dict[str, tuple[int, bytes]] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if until is None or revision <= until:
                found[topic] = (revision, body)
        return {topic: pair for topic, pair in found.items() if pair[1]}

    def deleted(self, until: int | None = None) -> dict[str, int]:
        """Return the revision of the delete of each topic that was deleted, and has no value now, or had none at a revision."""
        held: set[str] = set()
        found: dict[str, int] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if until is not None and revision > until:
                break
            if body:
                held.add(topic)
                found.pop(topic, None)
            elif topic in held:
                held.remove(topic)
                found[topic] = revision
        return found

    def note(self, changes: list[Change]) -> None:
        """Record that changes are on the disk."""
        for change in changes:
            if change.revision != self.committed + 1:
                raise Violation(f"{change.revision} follows {self.committed}")
            if change.accepted_at_us < self.accepted_at_us:
                raise Violation(f"{change.revision} was accepted before the one before it")
            self.accepted_at_us = change.accepted_at_us
            made = None if self.attendance is None else self.attendance.minors
            if self.attendance is not None:
                self.attendance.committed(change)
            if change.body:
                minor, expected = change.validation.schema_version, self.minors.get(change.body)
                if made is not None:
                    expected = made.get((change.revision, change.body), expected)
                if minor != expected:
                    raise Violation(f"{change.revision} was judged by {minor!r}, and {expected!r} was in force")
                if minor:
                    self.check_text(change)
            self.truth[change.revision] = (change.destination.decode(), change.body)
            if self.refining:
                tag = dict(change.headers).get(b"tag")
                if tag is not None:
                    self.tags[change.revision] = tag.decode()
            self.bodies[change.body] = change.revision
            mark = mark_of(change.headers)
            if mark is not None:
                key = (change.destination.decode(), mark[0])
                if mark[1] <= self.marks.get(key, -1):
                    raise Violation(f"{mark} of {key[0]} came after {self.marks[key]}")
                self.marks[key] = mark[1]
            self.committed = change.revision

    def granted(self, client: str, sources: LoadedConfig) -> Granted:
        """Return what a client may do."""
        return dict(self.policies[sources.policy])[client]

    def entitled(self, client: str) -> bool:
        """Return True if a client may be connected."""
        revoked = next(one for one in ("", *CLIENTS) if files._revocations_of(one) is self.sources.revocations)
        return self.granted(client, self.sources).known and client != revoked

    def connect(self, client: str) -> None:
        """Open another connection of a client; an older one may still be there."""
        self.count += 1
        window = self.rng.choice((1, 2, 5, 50))
        link = Link(client, None, window)  # type: ignore[arg-type]  # the ServerConnection needs the link's waker

        def wake() -> None:
            link.woken = True

        name = fingerprint_of(client)
        link.chain, link.end = files.chain_of(client), self.end
        link.peer = self.machine.peer(client, name, f"made-{self.count}", wake)
        lines = f"accept-version:1.2\nhost:MAXVAPI\nclient-id:{client}\nwindow:{window}\nheart-beat:0,0\n"
        link.address = f"10.0.0.1:{self.count}"
        if self.attendance is not None and self.rng.random() < 0.5:
            link.will = self.any_will(TOPICS)
            lines += will_lines(link.will)
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
            text = b"%d%b" % (self.count, b"." * rng.choice((0, 0, 3000)))
            form = self.form() if rng.random() < 0.9 else rng.choice(FORMS)
            body = b"" if rng.random() < self.deletes else files.body_of(text, form)
            topic = rng.choice(TOPICS)
            mark: tuple[str, bytes, int] | None = None
            headers: Headers = ()
            if rng.random() < 0.3:
                mark = (topic, rng.choice((b"p", b"q")), self.count // 8 + rng.randrange(20))
                headers = ((b"source", mark[1]), (b"source-revision", b"%d" % mark[2]))
            if self.refining and rng.random() < 0.6:
                headers = (*headers, (b"tag", rng.choice((b"a", b"b"))))
            data = encoder.send(VERSION_1_2, topic.encode(), body, headers, name)
            link.inbound.append(Asked(data, receipt, "send", body=body, mark=mark, topic=topic, form=form))

    def form(self) -> str:
        """Return a form of bodies that is valid now, for most topics."""
        return next(form for form in FORMS if files.verdict(self.rules, TOPICS[0], form) is not None)

    @property
    def rules(self) -> int:
        """Which schema folder is in force."""
        return self.rules_of(self.sources)

    def rules_of(self, sources: LoadedConfig) -> int:
        """Return which schema folder some sources have."""
        attending = self.written.attending
        return next(n for n in range(len(RULES)) if files.registry_of(n, attending) is sources.registry)

    def any_will(self, topics: Sequence[str]) -> Bound:
        """Return a last will of its own."""
        rng = self.rng
        self.count += 1
        text = b"" if rng.random() < 0.2 else b"will%d" % self.count
        return Bound(rng.choice(topics), text, rng.choice((self.form(), *FORMS)), rng.choice((0, 0, 1, 3)), self.count)

    def acknowledge(self, link: Link, position: int, receipt: str | None) -> None:
        """Acknowledge one of the messages read, and what is before it on its subscription unless ACKs are individual."""
        id_, revision = link.to_ack[position]
        alone = id_ in link.individual
        link.to_ack = [
            (s, r) for n, (s, r) in enumerate(link.to_ack) if s != id_ or n > position or (alone and n < position)
        ]
        data = encoder.ack(VERSION_1_2, id_.encode(), b"%d" % revision, receipt.encode() if receipt else None)
        link.inbound.append(Asked(data, receipt, "ack", id_, revision))

    def subscribe(self, link: Link, id_: str, name: bytes | None) -> None:
        """Subscribe. The id decides whether durably, so a session's subscriptions keep their kind."""
        rng = self.rng
        durable = id_ == "s"
        glob = "X/*" if durable and rng.random() < 0.9 else rng.choice(tuple(GLOBS))
        mode, eager = rng.random(), rng.random() < 0.4
        acknowledged, individual = mode < 0.6, mode < 0.25
        ack = b"client-individual" if individual else b"client" if acknowledged else b"auto"
        options = None
        if self.refining and rng.random() < 0.5:
            position = None
            if not durable and (link.client, id_) in self.positions and rng.random() < 0.8:
                glob, position = self.positions[link.client, id_]
            interval_ms = rng.choice((0, 0, 50))
            options = SubscribeOptions(
                position,
                rng.random() < 0.8,
                rng.random() < 0.5,
                interval_ms,
                rng.choice((None, *SELECTORS)),
                rng.random() < 0.3,
            )
        data = encoder.subscribe(
            VERSION_1_2,
            id_.encode(),
            glob.encode(),
            ack,
            durable=durable,
            eager=eager,
            receipt_id=name,
            options=options,
        )
        link.asked.add(id_)
        (link.individual.add if individual else link.individual.discard)(id_)
        subscribed = Subscribed(GLOBS[glob], durable, acknowledged, eager, individual, options=options, glob=glob)
        link.inbound.append(Asked(data, name.decode() if name else None, "subscribe", id_, subscribed=subscribed))

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
            if not link.refused:
                self.heed(link, asked)
        if link.inbound and link.inbound[0].kind == "send" and not link.inbound[0].begun:
            asked = link.inbound[0]
            asked.begun = link.offset >= asked.data.index(b"\n\n") + 2
            if asked.begun:
                asked.allowed = asked.topic in self.granted(link.client, self.sources).send
        known, end = peer.connection, peer.end
        peer.receive_data(data, self.loop.now_s, self.machine.clock.at(self.loop.now_s))
        if self.attendance is not None and peer.end == "disconnect" != end:
            self.attendance.disconnected(link.client, link.address)
        if self.attendance is not None and known is None and peer.connection is not None:
            self.machine.presence.connected(peer.principal, peer.client_id, link.address, self.loop.now_s)
        self.touch()
        passed_us = int((self.loop.now_s - self.machine.begun_s) * 1e6)
        latest_us = self.machine.begun_us + passed_us + CLOCK_JUMPS_US
        assert self.broker.accepted_at_us <= latest_us, "a jump of the clock was followed"

    def heed(self, link: Link, asked: Asked) -> None:
        """Record that the broker reads a frame now."""
        if asked.kind == "connect":
            if not self.entitled(link.client):
                link.refused = link.leaving = True
                return
            if self.attendance is not None and not self.heed_will(link, self.attendance):
                return
            for other in self.links:
                if other is not link and other.client == link.client and other.connected:
                    other.subscriptions.clear()
            link.connected = True
        if asked.receipt is not None:
            link.expected.append(asked)
        if asked.kind == "send":
            asked.allowed_at_end = asked.topic in self.granted(link.client, self.sources).send
            asked.allowed = asked.allowed and asked.allowed_at_end
            asked.minor = files.verdict(self.rules, asked.topic, asked.form) if asked.body else ""
            asked.low = self.memory_low
            self.minors[asked.body] = asked.minor
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
            first = position - 1 if known.individual else 0
            asked.body = b",".join(b"%d" % n for n in known.unacked[first:position] if n not in known.granted)
            del known.unacked[first:position]
            asked.acked_on = known

    def heed_will(self, link: Link, attendance: Attendance) -> bool:
        """Record the will of a CONNECT, its own or that of the policy; return whether it is accepted."""
        granted = self.granted(link.client, self.sources)
        will = link.will
        if will is not None and not attendance.is_valid(will, granted, self.rules):
            link.refused = link.leaving = link.bad_will = True
            return False
        if will is None and granted.will is not None and attendance.is_valid(granted.will, granted, self.rules):
            will = granted.will
        attendance.connected(link.client, link.address, will, self.loop.now_s)
        return True

    def carry_out(self, link: Link) -> None:
        """Do what the writer's task does in one pass: it sleeps until woken or due."""
        peer = link.peer
        if len(link.outbound) >= SOCKET_BYTES or link.stalled:
            return
        due_s = peer.next_due_s
        if due_s is not None and due_s <= self.loop.now_s:
            peer.tick(self.loop.now_s)
            link.woken = True
        if not link.woken:
            return
        parts = peer.data_to_send(self.loop.now_s)
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
        link.peer.closed(self.loop.now_s, "gone")
        if self.attendance is not None:
            self.attendance.ended(link.client, link.address, self.loop.now_s)
            if link.peer.connection is not None:
                peer, now_s = link.peer, self.loop.now_s
                self.machine.presence.ended(peer.principal, peer.client_id, link.address, peer.heard_at_s, now_s)

    def check(self, link: Link, frame: Frame) -> None:
        """Check one frame that leaves."""
        if frame.command == b"RECEIPT":
            self.check_receipt(link, frame)
        elif frame.command == b"MESSAGE":
            self.check_message(link, frame)
        elif frame.command == b"CONNECTED" and link.bad_will:
            raise Violation(f"{link.client} has connected with the will {link.will}, which is bad")
        elif frame.command == b"ERROR" and (frame.headers[b"message"] == b"bad will") is not link.bad_will:
            raise Violation(f"{link.client} got {frame.headers} for the will {link.will}")

    def check_receipt(self, link: Link, frame: Frame) -> None:
        """Each once and in order; accepted is on the disk."""
        name = frame.headers[b"receipt-id"].decode()
        if not link.expected or link.expected[0].receipt != name:
            raise Violation(f"RECEIPT {name} came when {link.expected[:1]} was the next in order")
        asked = link.expected.pop(0)
        disposition = frame.headers.get(b"disposition")
        if self.attendance is not None:
            accepted = disposition == b"accepted" and b"result" not in frame.headers
            disconnected = asked.kind == "disconnect"
            self.attendance.answered(link.client, link.address, disconnected=disconnected, accepted=accepted)
        if asked.kind == "send":
            self.check_disposition(asked, disposition)
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
            options, result = asked.subscribed.options, frame.headers.get(b"result", b"created")
            asked.subscribed.resumed = result == b"resumed"
            if options is not None and options.since is not None and result == b"created":
                asked.subscribed.after = int(options.since.split(b".")[1])
        known = link.subscriptions.get(asked.subscription)
        if known is not None and asked.acked_on is known and known.durable:  # not one that asked for all again since
            settled = self.settled.setdefault((link.client, asked.subscription), {})
            for revision in map(int, filter(None, asked.body.split(b","))):
                settled[self.truth[revision][0]] = max(revision, settled.get(self.truth[revision][0], 0))

    def check_disposition(self, asked: Asked, disposition: bytes | None) -> None:
        """The decision on a SEND is that of policy and schemas when the broker read it."""
        what = f"the SEND of {asked.form} to {asked.topic}"
        if disposition == b"accepted" and not asked.allowed_at_end:
            raise Violation(f"{what} was accepted without the right")
        if disposition == b"accepted" and asked.minor is None:
            raise Violation(f"{what} was accepted though it is invalid")
        if disposition == b"accepted" and asked.low and asked.body:
            raise Violation(f"{what} was accepted while memory was low")
        if disposition == b"rejected-unauthorised" and asked.allowed:
            raise Violation(f"{what} was refused in spite of the right")
        if disposition == b"rejected-invalid" and asked.minor is not None:
            raise Violation(f"{what} was called invalid")
        told = disposition in (b"rejected-invalid", b"rejected-unauthorised")
        if self.told.count(asked.receipt) != told:
            raise Violation(
                f"{what} was {disposition!r}, and operators were told {self.told.count(asked.receipt)} times"
            )

    def check_message(self, link: Link, frame: Frame) -> None:
        """Check one MESSAGE that leaves."""
        self.messages += 1
        id_ = frame.headers[b"subscription"].decode()
        topic = frame.headers[b"destination"].decode()
        revision = int(frame.headers[b"message-id"])
        if topic == "$marker" or frame.headers.get(b"reason") == b"rights":
            self.check_marker(link, id_, frame)
            return
        what = f"MESSAGE {revision} of {topic} on {link.client}/{id_}"
        if link.client in self.outlawed:
            raise Violation(f"{what} went to somebody who may not be connected any more")
        if revision > self.committed:
            raise Violation(f"{what} left above {self.committed}, which is committed")
        known = link.subscriptions.get(id_)
        if known is None:
            raise Violation(f"{what} has no subscription")
        self.check_selected(known, topic, revision, frame.body, what)
        if topic not in known.topics:
            raise Violation(f"{what} was not asked for")
        if topic not in self.rights[link.client]:
            raise Violation(f"{what} went to a principal without the right")
        if revision <= known.last.get(topic, 0):
            raise Violation(f"{what} came after {known.last[topic]}")
        if revision <= self.settled.get((link.client, id_), {}).get(topic, 0):
            raise Violation(f"{what} came again though its ACK had a RECEIPT")
        known.last[topic] = revision
        if known.options is not None and frame.body:
            self.check_interval(known, topic, what)
        if known.acknowledged:
            if any(self.truth[other][0] == topic for other in known.unacked):
                raise Violation(f"{what} while one of its topic is un-acked")
            known.unacked.append(revision)
        unacked = sum(len(other.unacked) for other in link.subscriptions.values()) - known.acknowledged
        if unacked >= link.window:
            raise Violation(f"{what} left beyond the window {link.window}")

    def check_selected(self, known: Subscribed, topic: str, revision: int, body: bytes, what: str) -> None:
        """Check that a body is what was accepted, or shows that a value does not satisfy the selector."""
        accepted = self.truth[revision]
        left = bool(accepted[1]) and not known.selects(self.tags.get(revision))
        if accepted[0] != topic or body != (b"" if left else accepted[1]):
            raise Violation(f"{what} is not what was accepted, or does not satisfy {known.options}")
        if left and known.holds.get(topic) is False:
            since = range(known.last[topic], revision)
            if (topic, b"") not in [
                self.truth[other] for other in since
            ]:  # else the broker may have forgotten that delete
                raise Violation(f"{what} has left again")
        known.holds[topic] = bool(body)

    def check_interval(self, known: Subscribed, topic: str, what: str) -> None:
        """Check the time since the last value of a topic."""
        assert known.options is not None
        passed_s = self.loop.now_s - known.value_s.get(topic, -1e9)
        if passed_s < known.options.interval_ms / 1000 - 1e-9:
            raise Violation(f"{what} came {passed_s} s after the value before")
        known.value_s[topic] = self.loop.now_s

    def check_marker(self, link: Link, id_: str, frame: Frame) -> None:
        """Check a marker or a notice: asked for, one `complete`, and a position from which nothing un-acked is missing."""
        headers, known = frame.headers, link.subscriptions.get(id_)
        what = f"{headers} on {link.client}/{id_}"
        if known is None or known.options is None or not known.options.markers or b"ack" in headers or frame.body:
            raise Violation(f"{what} was not asked for")
        known.completes += headers[b"kind"] == b"complete"
        if known.completes > 1:
            raise Violation(f"{what} came again")
        if b"position" not in headers:
            return
        text = headers[b"position"]
        revision = int(text.split(b".")[1])
        if text == known.options.since or text.endswith(b".0"):
            return
        lowest = min((n for n in known.unacked if n not in known.granted), default=revision + 1)
        if revision > self.committed or lowest <= revision:
            raise Violation(f"{what} came at {self.committed} with {known.unacked} un-acked")
        if revision < known.reported and link.client not in self.reloaded:
            raise Violation(f"{what} came after {known.reported}")
        known.reported = revision
        if not known.durable:
            self.positions[link.client, id_] = (known.glob, text)

    def check_bounds(self) -> None:
        """No subscription is owed more than there are topics, and each that is owed something has a time since when. Deletes above the floor are known."""
        check_floor(self.broker, self.deleted(self.broker.committed_revision))
        for session in self.broker.sessions.values():
            for subscription in session.subscriptions.values():
                if len(subscription.owed | subscription.held.keys()) > len(self.broker.store.topics):
                    raise Violation(f"{session.client_id} is owed more than there are topics")
                waiting = subscription.waiting or {}  # for the end of an interval, which is not lacked
                lacks = any(topic.destination not in waiting for topic in subscription.owed) or subscription.scans > 0
                if (subscription.owed_since_us() > 0) is not lacks:
                    raise Violation(
                        f"{session.client_id} is owed {len(subscription.owed)}, lacked since {subscription.owed_since_us()}"
                    )
                if (subscription.unacked_since_us() > 0) is not bool(subscription.unacked):
                    raise Violation(
                        f"{session.client_id} has un-acked what it lacks since {subscription.unacked_since_us()}"
                    )

    def log(self, *what: object) -> None:
        """Make what happens part of what must repeat."""
        self.digest.update(repr(what).encode())

    def vanish(self, link: Link) -> None:
        """Lose a connection, with all that is on its way."""
        self.log("vanish", link.client)
        self.end(link)

    def stall(self, link: Link) -> None:
        """Stop or go on taking what the broker writes."""
        link.stalled = not link.stalled

    def send_everywhere(self) -> None:
        """Have a value sent to every topic, by a client that may."""
        form = self.form()
        for topic in TOPICS:
            for link in self.links:
                if not link.leaving and topic in self.granted(link.client, self.sources).send:
                    self.count += 1
                    body = files.body_of(b"%d" % self.count, form)
                    data = encoder.send(VERSION_1_2, topic.encode(), body, (), b"burst%d" % self.count)
                    asked = Asked(data, f"burst{self.count}", "send", body=body, topic=topic, form=form)
                    link.inbound.append(asked)
                    self.burst.add(body)
                    break

    def check_end(self, *, burst: bool) -> None:
        """The newest of each topic has arrived, and every RECEIPT; after a burst of values of all topics, everywhere."""
        newest: dict[str, tuple[int, bytes]] = {}
        for revision, (topic, body) in sorted(self.truth.items()):
            if body or newest.get(topic, (0, b""))[1]:  # deleting what is absent notifies no subscriber
                newest[topic] = (revision, body)
        for link in self.links:
            if link.leaving:
                continue
            connection = link.peer.connection
            if connection is not None and connection.ready_queue and connection.in_flight < link.window:
                raise Violation(f"{link.client} has values ready that nobody hands out")
            if link.expected:
                raise Violation(f"{link.client} has no RECEIPT for {link.expected[0].receipt}")
            for id_, known in link.subscriptions.items():
                for topic in set(known.topics) & self.rights[link.client] & set(newest):
                    revision, body = newest[topic]
                    if body and not known.selects(self.tags.get(revision)):
                        if known.holds.get(topic) and link.client not in self.reloaded:
                            raise Violation(f"{revision} of {topic} has left, and {link.client}/{id_} was not told")
                        continue
                    due = known.since is not None and (revision > known.since or (known.eager and bool(body)))
                    if known.after is not None:
                        due = revision > known.after
                    if not body and known.options is not None and known.options.selector and not known.holds.get(topic):
                        due = False  # a delete of what the client cannot hold
                    if (
                        (burst and body in self.burst) or (due and link.client not in self.reloaded)
                    ) and known.last.get(topic) != revision:
                        raise Violation(
                            f"{revision} of {topic} has not come to {link.client}/{id_}, but {known.last.get(topic)}"
                        )


def _frame(command: str, receipt: str | None) -> bytes:
    return f"{command}\n{f'receipt:{receipt}' + chr(10) if receipt else ''}\n\0".encode()


def will_lines(will: Bound) -> str:
    """Return the headers of CONNECT that set a will."""
    body = f"will-body-base64:{b64encode(will.body).decode()}\n" if will.text else ""
    return f"will-destination:{will.topic}\nwill-delay:{will.delay_s}\nwill-mark:{will.mark}\n{body}"
