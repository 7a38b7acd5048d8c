"""Clients of a simulated gateway, and the network between; see `Clients`."""

from base64 import b64encode
from collections.abc import Sequence

from maxam.gateway.loaded_config import LoadedConfig
from maxam.records import Headers
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2, SubscribeOptions
from tests.simulation import files
from tests.simulation.attendance import Attendance
from tests.simulation.files import FORMS, RULES, TOPICS, Bound
from tests.simulation.links import SELECTORS, Asked, Link, Subscribed
from tests.simulation.promises import Promises
from tests.support.sans_io import fingerprint_of

GLOBS = {"X/*": TOPICS, "X/a.*": TOPICS[:4], "X/b.1": ("X/b.1",)}
CLOCK_JUMPS_US = 7_201_000_000  # jumps within clock_jump_s_max that one life of the gateway can follow: from an hour behind to an hour ahead
TEXTS = {
    ("t.Body_v1", "1.0"): dict(files.registry_of(1).texts()),
    ("t.Body_v1", "1.1"): dict(files.registry_of(2).texts()),
    ("maxam.Presence_v1", "1.0"): dict(files.registry_of(0, attending=True).texts()),
}  # that must be kept
SOCKET_BYTES = 2000  # what the network takes without being read


class Clients(Promises):
    """Clients, and what they do. A subclass has the gateway, and lets time pass."""

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


def _frame(command: str, receipt: str | None) -> bytes:
    return f"{command}\n{f'receipt:{receipt}' + chr(10) if receipt else ''}\n\0".encode()


def will_lines(will: Bound) -> str:
    """Return the headers of CONNECT that set a will."""
    body = f"will-body-base64:{b64encode(will.body).decode()}\n" if will.text else ""
    return f"will-destination:{will.topic}\nwill-delay:{will.delay_s}\nwill-mark:{will.mark}\n{body}"
