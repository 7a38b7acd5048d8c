"""A broker with 0, 1 or 3 fronts under one seed. Its clients are promised the same with each number; see `Fronted`.

One stream of chance decides what clients and operators do, another one which frame arrives next. So the histories of one seed begin
alike whatever the number of fronts. `alike` lets everything settle after each action. Then clients must see the same.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from maxam.cluster import wire
from maxam.config import Limits
from maxam.records import Change
from maxam.stomp.frames import Frame
from tests.simulation.model import Violation
from tests.support.fronted_world import KEPT_S, Front, FrontClient, FrontedWorld
from tests.support.sans_io import EVERYTHING

COUNTS: Final = (0, 1, 3)
_COUNTED: Final = ("sends", "accepted", "refusals", "takeovers", "killed", "cut", "stops", "restarts", "swaps")
COUNTED: Final = (*_COUNTED, "failovers", "resumed")
_TOPICS: Final = ("X/0", "X/1", "X/2")
_GLOBS: Final = ("X/**", "X/**", "X/1")
_SEND: Final = (("X/**",), ("X/0", "X/1"), ("X/2",))
_STEPS: Final = 300
_CLIENTS_MAX: Final = 6


@dataclass
class Asked:
    """A frame with a receipt that a client has sent.

    Attributes:
        topic: Of a SEND.
        body: Of a SEND, unlike that of all others.
        expected: Its `if-revision`. -1 without.
        source: Its source and number.
        since: Newest committed revision when it was sent.
        until: The same when its RECEIPT was read.
        swaps: Place of the policy that was in force at its front when it was sent.
        acked: Durable subscription, topic and revision of an ACK.
    """

    receipt: str
    since: int
    swaps: int
    topic: str = ""
    body: bytes = b""
    expected: int = -1
    source: tuple[str, int] | None = None
    acked: tuple["Watched", str, int] | None = None
    result: str = ""
    revision: int = 0
    until: int = 0


@dataclass
class Watched:
    """A subscription, and what was delivered on it.

    Attributes:
        after: Bodies that its connection had sent before the SUBSCRIBE.
        later: Bodies that its connection sent after it.
        receipted: Newest revision of which some client had the RECEIPT when the SUBSCRIBE was sent.
        seen: Newest revision that was delivered, by topic.
        first: The first one.
        settled: Revision whose ACK had its RECEIPT, by topic.
        resumed: The session had it before, so older changes may be owed.
    """

    glob: str
    eager: bool
    acknowledged: bool
    durable: bool
    resumed: bool
    receipted: int
    topics_receipted: dict[str, int]
    before: list[bytes] = field(default_factory=list)
    later: list[bytes] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)

    def covers(self, topic: str) -> bool:
        """Return True if the glob matches."""
        return self.glob in ("X/**", topic)


@dataclass(eq=False)
class Seat:
    """A connection of a client."""

    client: FrontClient
    principal: str
    key: str
    asked: deque[Asked] = field(default_factory=deque)
    sent: list[bytes] = field(default_factory=list)
    sends: list[Asked] = field(default_factory=list)
    rejected: bool = False  # a rejected SEND has ended it
    watched: dict[str, Watched] = field(default_factory=dict)
    unacked: list[Frame] = field(default_factory=list)
    connected: bool = False
    gone: bool = False
    read: list[str] = field(default_factory=list)  # what it has read, in words

    def heard(self) -> tuple[list[str], list[str]]:
        """Return what it has read, in the order that is promised: the order of topics is not."""
        values = [one for one in self.read if one.startswith("MESSAGE")]
        return [one for one in self.read if one not in values], sorted(values, key=lambda one: one.split()[:3])

    @property
    def serves(self) -> bool:
        """Whether it has its session, as far as its own front knows."""
        connection = self.client.peer.connection
        if self.gone or connection is None or connection.failure is not None or self.client.peer.end:
            return False
        return connection.session.connection is connection


class Fronted:
    """A run.

    * RECEIPTs come in the order of the frames, each once. `accepted` is for a change that is in the journal once, a refusal for none.
    * `if-revision` and the numbers of sources hold in the order of the journal; a conflict was true at some moment.
    * No MESSAGE shows what is not on the disk, an older change after a newer one, or a change whose ACK had its RECEIPT.
    * A SUBSCRIBE takes effect between the frames before and after it, and after all that was receipted when it was sent.
    * After a rejected SEND that ends its connection, none of that connection takes effect.
    * One front has a session, except while an older one has not read yet that it has lost it.
    * After a swap of the policy no SEND is taken that it forbids, whichever front has judged it.
    * At the end every RECEIPT has come, all brokers hold the same, and every subscription has the newest values.
    """

    def __init__(
        self, seed: int, count: int, *, calm: bool = False, cuts: bool = False, failovers: bool = False
    ) -> None:
        """Prepare; `run` does it.

        Args:
            seed: Of all chance.
            count: Number of fronts.
            calm: Everything settles after each action, and nothing fails.
            cuts: Fronts are on other machines: half of those that fail lose their link, and serve on for a while.
            failovers: The gateway is the leader of a cluster. When it ends, the fronts go on with the next one.
        """
        self.acts: Final = random.Random(f"acts {seed}")  # noqa: S311 - a simulation, not a secret
        self.order: Final = random.Random(f"order {seed} {count}")  # noqa: S311
        self.calm: Final = calm
        self.cuts: Final = cuts
        self.failovers: Final = failovers
        self.full: Final = 0.0 if calm else self.acts.choice((0.0, 0.3) if failovers else (0.0, 0.0, 0.3))
        self.world: Final = FrontedWorld(
            count,
            Limits(takeovers_per_minute_max=10**6),
            {"anna": EVERYTHING, "bert": EVERYTHING},
            proves=failovers or seed % 4 == 3,
        )
        self.seats: Final[list[Seat]] = []
        self.last: Seat | None = None  # the one that acted last
        self.all: Final[list[Seat]] = []
        self.cut_off: list[
            tuple[Front, list[Seat]]
        ] = []  # fronts that the gateway has ended, and what they still serve
        self.answers: Final[list[Asked]] = []
        self.watched: Final[dict[tuple[str, str], Watched]] = {}  # durable ones, by session and id
        self.receipted: Final[dict[str, int]] = {}  # newest revision of which a client has the RECEIPT, by topic
        self.swaps: Final[list[tuple[int, tuple[str, ...]]]] = [(0, ("X/**",))]  # head at the swap, what may be sent
        self.counted: Final[Counter[str]] = Counter()
        self.number = 0
        self.led_s = 0.0  # when the present leader began
        self._truth: dict[int, Change] = {}
        self._blocks = 0

    @property
    def committed(self) -> int:
        """Newest revision on the disk."""
        return self.world.journal.blocks[-1].after.revision if self.world.journal.blocks else 0

    @property
    def truth(self) -> dict[int, Change]:
        """Changes on the disk, by revision."""
        if self._blocks != len(self.world.journal.blocks):
            self._blocks = len(self.world.journal.blocks)
            self._truth = {one.revision: one for one in self.world.journal.records() if isinstance(one, Change)}
        return self._truth

    def run(self) -> None:
        """Act; then let everything settle, and check."""
        for _ in range(_STEPS):
            if self.calm or self.order.random() < (0.6 if self.failovers else 0.25):
                for _ in range(1 if self.calm else self.order.choice((1, 1, 3))):
                    self.act()
            if self.calm:
                self.settle()
                continue
            for _ in range(self.order.choice((1, 1, 2, 5))):
                self.world.step(self.order, self.full)
                self.check_sessions()
                self.note_head()
            if self.seats and self.order.random() < 0.5:
                self.read(self.order.choice(self.seats))
            if self.cut_off:
                self.serve_on()
            self.find_leaders(0.1)
            if self.order.random() < (0.03 if self.failovers else 0.01):
                self.fail()
            if self.order.random() < 0.03:
                self.world.pass_time(self.order.choice((0.05, 0.2, 1.0)))
        for front in self.world.fronts:
            front.stopped = False
        self.find_leaders(1.0)
        for _ in range(5):
            self.world.pass_time(0.2)
            self.settle()
        self.check_end()

    def settle(self) -> None:
        """Go on until nothing is left to do at this moment."""
        self.world.settle()
        self.check_sessions()
        for seat in list(self.seats):
            self.read(seat)

    # Actions. Each draws the same chances whatever the number of fronts.

    def act(self) -> None:
        """Have a client or an operator do something."""
        what, who, place = self.acts.random(), self.acts.random(), self.acts.randrange(6)
        details = random.Random(self.acts.random())  # noqa: S311
        if what < 0.1 or not self.seats:
            if len(self.seats) < _CLIENTS_MAX:
                self.connect(details, place)
            return
        if what < 0.11:
            self.swap(details)
            return
        if who < 0.5 and self.last in self.seats:
            seat = self.last
        else:
            seat = self.last = self.seats[int(who * len(self.seats))]
        if not seat.connected:
            return
        if what < 0.6:
            self.send(seat, details)
        elif what < 0.76:
            self.subscribe(seat, details)
        elif what < 0.9:
            self.acknowledge(seat, details)
        elif what < 0.94:
            self.unsubscribe(seat, details)
        else:
            self.lose(seat)

    def connect(self, details: random.Random, place: int) -> None:
        """Begin a connection."""
        self.number += 1
        name = details.choice(("", "p1", "p2"))
        principal = details.choice(("anna", "anna", "bert"))
        headers = {"client_id": name} if name else {}
        if self.calm:
            headers["window"] = "100"  # a full one holds back some topics, and their order is not promised
        if self.failovers and details.random() < 0.3:
            headers["rejections"] = "error"
        client = self.world.client(place % max(1, self.world.count), principal, **headers)
        seat = Seat(client, principal, f"{principal} {name or self.number}")
        self.seats.append(seat)
        self.all.append(seat)

    def ask(self, seat: Seat) -> Asked:
        """Note a frame with a receipt."""
        self.number += 1
        front = seat.client.front
        send = self.swaps[-1][1] if front is None else tuple(front.principals["bert"]["send"])
        known = max(place for place, swap in enumerate(self.swaps) if swap[1] == send)
        asked = Asked(f"r{self.number}", self.committed, known)
        seat.asked.append(asked)
        self.answers.append(asked)
        return asked

    def send(self, seat: Seat, details: random.Random) -> None:
        """Send a SEND, at times with a condition."""
        asked = self.ask(seat)
        rare = details.random() < 0.1  # nothing conflates a topic of its own
        asked.topic, asked.body = f"X/{asked.receipt}" if rare else details.choice(_TOPICS), asked.receipt.encode()
        headers: dict[str, str] = {}
        kind = details.random()
        if kind < 0.25:
            newest = self.newest(asked.topic)
            asked.expected = details.choice((0, newest, newest))
            headers["if_revision"] = str(asked.expected)
        elif kind < 0.45:
            asked.source = (details.choice("st"), max(1, self.number // 4 + details.randrange(-6, 6)))
            headers |= {"source": asked.source[0], "source_revision": str(asked.source[1])}
        seat.sent.append(asked.body)
        seat.sends.append(asked)
        for watched in seat.watched.values():
            watched.later.append(asked.body)
        self.counted["sends"] += 1
        seat.client.send(asked.topic, asked.body, asked.receipt, **headers)

    def subscribe(self, seat: Seat, details: random.Random) -> None:
        """Subscribe, unless the connection has this id already."""
        name, durable, eager = details.choice("st"), details.random() < 0.4, details.random() < 0.5
        ack, glob = details.choice(("auto", "client")), details.choice(_GLOBS)
        if name in seat.watched:
            return
        key = (seat.key, name)
        before = self.watched.get(key)
        if before is not None and not (durable and before.glob == glob):
            durable, glob = True, before.glob
        newest = max(self.receipted.values(), default=0)
        watched = Watched(
            glob, eager, ack == "client", durable, before is not None, newest, dict(self.receipted), list(seat.sent)
        )
        if before is not None and not eager:  # an eager one begins with all values
            watched.settled = before.settled
        if durable:
            self.watched[key] = watched
        seat.watched[name] = watched
        self.ask(seat)
        seat.client.subscribe(glob, id_=name, ack=ack, durable=durable, eager=eager, receipt=seat.asked[-1].receipt)

    def acknowledge(self, seat: Seat, details: random.Random) -> None:
        """Acknowledge a MESSAGE, and with it those before it."""
        name, at = details.choice("st"), details.random()
        watched = seat.watched.get(name)
        of_it = [one for one in seat.unacked if one.headers[b"subscription"] == name.encode()]
        if watched is None or not of_it:
            return
        # The order of topics is not promised: what is acknowledged would depend on it.
        frame = of_it[-1 if self.calm else int(at * len(of_it))]
        seat.unacked.remove(frame)
        if details.random() < 0.5:
            seat.client.ack(frame)
            return
        asked = self.ask(seat)
        topic = frame.headers[b"destination"].decode()
        asked.acked = (watched, topic, int(frame.headers[b"message-id"]))
        seat.client.ack(frame, asked.receipt)

    def unsubscribe(self, seat: Seat, details: random.Random) -> None:
        """End a subscription, a durable one for good."""
        name = details.choice("st")
        watched = seat.watched.pop(name, None)
        if watched is None:
            return
        seat.unacked = [one for one in seat.unacked if one.headers[b"subscription"] != name.encode()]
        self.ask(seat)
        if watched.durable:
            del self.watched[seat.key, name]
        seat.client.unsubscribe(name, durable=watched.durable, receipt=seat.asked[-1].receipt)

    def lose(self, seat: Seat) -> None:
        """Lose a connection, and the frames that it has not read."""
        seat.client.lose()
        self.forget(seat)

    def forget(self, seat: Seat) -> None:
        """Note that a connection is gone. An unsubscribed session may still have the subscription then."""
        seat.gone = True
        self.seats.remove(seat)

    def swap(self, details: random.Random) -> None:
        """Put another policy into force, by which `bert` may send other topics."""
        send = details.choice(_SEND)
        self.counted["swaps"] += 1
        self.world.reload(anna=EVERYTHING, bert={"send": list(send), "receive": ["X/**"]})
        self.swaps.append((self.world.leader.broker.head_revision, send))

    def note_head(self) -> None:
        """Note that revisions are given again, after a restart or a refusal of the disk."""
        head = self.world.leader.broker.head_revision
        if self.swaps[-1][0] > head:
            self.swaps[:] = [(min(before, head), send) for before, send in self.swaps]

    # Failures; they depend on the number of fronts.

    def fail(self) -> None:
        """Kill a front, stop one or let it go on, or end the gateway with all of its fronts."""
        order, fronts = self.order, self.world.fronts
        kind = order.random()
        if self.failovers and order.random() < 0.75:
            self.counted["failovers"] += 1
            self.world.fail_over(written=order.random() < 0.5)
            self.led_s = self.world.leader.now_s
            if order.random() < 0.1:
                self.world.pass_time(KEPT_S + 1)
            self.note_head()
            return
        if kind < 0.2 or not fronts:
            self.counted["restarts"] += 1
            for seat in list(self.seats):
                self.forget(seat)
            self.cut_off.clear()
            self.world.restart(written=order.random() < 0.5)
            self.note_head()
            return
        at = order.randrange(len(fronts))
        front = fronts[at]
        if kind < 0.6:
            self.counted["stops"] += not front.stopped
            front.stopped = not front.stopped
            return
        if self.cuts and kind < 0.8 and front.linked:
            self.cut(at)
            return
        self.counted["killed"] += 1
        self.kill(at)

    def kill(self, at: int) -> None:
        """End a front and its clients, and have another one begin."""
        for seat in list(self.seats):
            if seat.client.front is self.world.fronts[at]:
                self.forget(seat)
        self.world.kill(at)

    def find_leaders(self, chance: float) -> None:
        """Have fronts that have lost their leader go on with the next one, or begin again."""
        for at, front in enumerate(self.world.fronts):
            if front.linked or front.stopped or self.order.random() >= chance:
                continue
            problem = self.world.find_leader(front)
            self.counted["resumed"] += not problem
            if "memory" in problem and self.world.leader.now_s < self.led_s + KEPT_S:
                raise Violation(f"a front cannot go on: {problem}")
            if problem:
                self.kill(at)

    def cut(self, at: int) -> None:
        """Cut the link of a front. Frames on the way to it may still arrive, and its clients read until its lease ends."""
        self.counted["cut"] += 1
        front = self.world.cut(at)
        seats = [seat for seat in self.seats if seat.client.front is front]
        self.seats[:] = [seat for seat in self.seats if seat not in seats]
        self.cut_off.append((front, seats))

    def serve_on(self) -> None:
        """Have a front that was cut off go on with what it has, or end its clients."""
        front, seats = self.order.choice(self.cut_off)
        self.world.to_front(front)
        for seat in seats:
            self.read(seat)
        if self.failovers and self.order.random() < 0.2:
            self.come_back(front, seats)
        elif self.order.random() < 0.1:
            self.cut_off.remove((front, seats))

    def come_back(self, front: Front, seats: list[Seat]) -> None:
        """Have a front that was cut off find a leader. The one that has ended it does not take it, and the next one may."""
        front.replica.lose()
        front.linked = False
        former = front.term
        if not self.world.find_leader(front):
            if front.term == former:
                raise Violation("a front goes on with the leader that has ended it")
            if self.world.has_ended(front):
                raise Violation("a front comes back whose end is in the log")
            self.counted["came back"] += 1
            self.cut_off.remove((front, seats))
            self.world.fronts.append(front)
            self.seats.extend(seat for seat in seats if not seat.gone and not seat.client.peer.end)

    # Checks.

    def newest(self, topic: str, at: int | None = None) -> int:
        """Return the newest revision of a topic on the disk, or as of a revision."""
        last = self.committed if at is None else at
        name = topic.encode()
        return max((n for n, one in self.truth.items() if one.destination == name and n <= last), default=0)

    def read(self, seat: Seat) -> None:
        """Have a client read, and check it."""
        if seat.gone or (seat.client.front is not None and seat.client.front.stopped):
            return
        for frame in seat.client.read():
            if frame.command == b"CONNECTED":
                seat.connected = True
            elif frame.command == b"RECEIPT":
                self.check_receipt(seat, frame)
            elif frame.command == b"MESSAGE":
                self.check_message(seat, frame)
            elif frame.command == b"ERROR":
                message = frame.headers[b"message"]
                self.counted["takeovers"] += message == b"session taken over by a newer connection"
                seat.rejected = b"disposition" in frame.headers
                seat.read.append(f"ERROR {message.decode()}")
        if (seat.client.peer.end or seat.client.peer.finished) and seat in self.seats:
            self.lose(seat)

    def check_receipt(self, seat: Seat, frame: Frame) -> None:
        """Check the order of a RECEIPT, and that an accepted change is on the disk."""
        receipt = frame.headers[b"receipt-id"].decode()
        if not seat.asked or seat.asked[0].receipt != receipt:
            raise Violation(f"RECEIPT {receipt} instead of {seat.asked[0].receipt if seat.asked else 'none'}")
        asked = seat.asked.popleft()
        asked.until = self.committed
        result = frame.headers.get(b"result") or frame.headers.get(b"disposition", b"")
        asked.result = result.decode()
        seat.read.append(f"RECEIPT {receipt} {asked.result} {frame.headers.get(b'revision', b'').decode()}")
        if asked.result == "accepted":
            self.counted["accepted"] += 1
            found = [n for n, one in self.truth.items() if one.body == asked.body]
            if len(found) != 1:
                raise Violation(f"SEND {receipt} was accepted and is in the journal {len(found)} times")
            asked.revision = found[0]
            if asked.expected >= 0 and int(frame.headers[b"revision"]) != found[0]:
                raise Violation(f"the RECEIPT of {receipt} shows another revision than the journal")
            self.receipted[asked.topic] = max(self.receipted.get(asked.topic, 0), found[0])
        elif asked.body:
            self.counted["refusals"] += 1
        if asked.acked is not None and frame.headers.get(b"result") is None:
            watched, topic, revision = asked.acked
            watched.settled[topic] = max(watched.settled.get(topic, 0), revision)

    def check_message(self, seat: Seat, frame: Frame) -> None:
        """Check what a MESSAGE shows, and that it may leave now."""
        name, topic = frame.headers[b"subscription"].decode(), frame.headers[b"destination"].decode()
        revision = int(frame.headers[b"message-id"])
        seat.read.append(f"MESSAGE {name} {topic} {revision} {frame.body.decode()}")
        change = self.truth.get(revision)
        if change is None or (change.destination.decode(), change.body) != (topic, frame.body):
            raise Violation(f"a MESSAGE shows revision {revision}, which is not on the disk")
        watched = seat.watched.get(name)
        if watched is None:
            return  # its UNSUBSCRIBE is on the way
        if not watched.covers(topic):
            raise Violation(f"{topic} was delivered to {watched.glob}")
        if revision < watched.seen.get(topic, 0):
            raise Violation(f"{topic}: revision {revision} after {watched.seen[topic]}")
        if watched.durable and revision <= watched.settled.get(topic, 0):
            raise Violation(f"{topic}: revision {revision} again, though its ACK had its RECEIPT")
        first = watched.first.setdefault(topic, revision)
        if not watched.resumed:
            if watched.eager and first < watched.topics_receipted.get(topic, 0):
                raise Violation(
                    f"{topic}: an eager SUBSCRIBE shows {first}, though a later one was receipted before it"
                )
            if not watched.eager and revision <= watched.receipted:
                raise Violation(f"{topic}: revision {revision} was receipted before the SUBSCRIBE")
            if not watched.eager and change.body in watched.before:
                raise Violation(f"{topic}: the SEND of revision {revision} was before the SUBSCRIBE")
        watched.seen[topic] = revision
        if watched.acknowledged:
            seat.unacked.append(frame)

    def check_sessions(self) -> None:
        """Check that a session has one connection, except at fronts that have not read yet that they have lost it."""
        holders: dict[str, list[Seat]] = {}
        for seat in self.seats:
            if seat.serves and (seat.client.front is None or seat.client.front.linked):
                holders.setdefault(seat.key, []).append(seat)
        for key, seats in holders.items():
            if len([one for one in seats if not self.is_expelled(one)]) > 1:
                raise Violation(f"the session {key} has connections at two fronts")

    @staticmethod
    def is_expelled(seat: Seat) -> bool:
        """Return True if the front of a connection is to read that it has lost the session."""
        return seat.client.front is not None and bool(Fronted.coming(seat.client.front, wire.EXPEL))

    @staticmethod
    def coming(front: Front, kind: int) -> list[bytes]:
        """Return the frames of a type that are on their way to a front."""
        return [one for one in front.inbound if wire.FrameReader().feed(one)[0].type == kind]

    def check_end(self) -> None:
        """Check that nothing is missing, and what only the whole order shows."""
        self.check_order()
        leader = self.world.leader.broker
        held = {name: topic.change.revision for name, topic in leader.store.topics.items()}
        for front in self.world.fronts:
            broker = front.world.broker
            if {name: topic.change.revision for name, topic in broker.store.topics.items()} != held:
                raise Violation("a front does not hold what the gateway holds")
            if broker.applied_seq != broker.appended_seq:
                raise Violation("operations of a front are not settled")
        alive = {b"", *(front.ordered.id for front in self.world.fronts)}
        if any(session.holder not in alive for session in leader.sessions.values()):
            raise Violation("a session is held by a front that has ended")
        for seat in self.seats:
            if not seat.connected:
                raise Violation("a CONNECT has no answer")
            if seat.asked:
                raise Violation(f"RECEIPTs are missing: {seat.asked}")
            for watched in seat.watched.values():
                self.check_served(watched)

    def check_served(self, watched: Watched) -> None:
        """Check that a subscription that waits for no ACK has the newest of all that it is owed."""
        if watched.acknowledged:
            return
        placed = min((n for n, one in self.truth.items() if one.body in watched.later), default=0)
        topics = dict.fromkeys(one.destination.decode() for one in self.truth.values())
        for topic in filter(watched.covers, topics):
            newest = self.newest(topic)
            owed = newest and ((watched.eager and not watched.resumed) or (placed and newest >= placed))
            if owed and watched.seen.get(topic, 0) != newest and watched.settled.get(topic, 0) < newest:
                raise Violation(f"{topic}: revision {newest} was not delivered to {watched}")

    def check_order(self) -> None:
        """Check answers of SENDs by the order of the journal."""
        bodies = Counter(one.body for one in self.truth.values() if one.body)
        if bodies and max(bodies.values()) > 1:
            raise Violation("a SEND took effect twice")
        at = {one.body: n for n, one in self.truth.items()}
        for asked in self.answers:
            if not asked.body:
                continue
            revision = at.get(asked.body, 0)
            if asked.result and (revision > 0) != (asked.result == "accepted"):
                raise Violation(f"SEND {asked.receipt} was answered {asked.result} and has revision {revision}")
            if revision and asked.expected >= 0 and self.newest(asked.topic, revision - 1) != asked.expected:
                raise Violation(f"SEND {asked.receipt} replaced another revision than {asked.expected}")
            if asked.result == "conflict":
                moments = range(asked.since, asked.until + 1)
                if all(self.newest(asked.topic, moment) == asked.expected for moment in moments):
                    raise Violation(f"SEND {asked.receipt} was in conflict with nothing")
            if asked.result == "unauthorised" and all("X/**" in send for _, send in self.swaps[asked.swaps :]):
                raise Violation(f"SEND {asked.receipt} was always allowed")
        for seat in self.all:
            rejected = [one for one in seat.sends if not one.result and one.body not in at] if seat.rejected else []
            if rejected and any(one.body in at for one in seat.sends[seat.sends.index(rejected[0]) :]):
                raise Violation("a SEND took effect after one that has ended its connection")
        self.check_sources(at)
        self.check_rights()

    def check_sources(self, at: dict[bytes, int]) -> None:
        """Check that the numbers of a source only grow on a topic, and that `superseded` is for a SEND that was not above."""
        taken: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for asked in sorted(self.answers, key=lambda one: at.get(one.body, 0)):
            if asked.source is None or asked.body not in at:
                continue
            numbers = taken.setdefault((asked.topic, asked.source[0]), [])
            if numbers and numbers[-1][1] >= asked.source[1]:
                raise Violation(f"SEND {asked.receipt} was superseded and took effect")
            numbers.append((at[asked.body], asked.source[1]))
        for asked in self.answers:
            if asked.result == "superseded" and asked.source is not None:
                before = taken.get((asked.topic, asked.source[0]), ())
                if not any(n <= asked.until and number >= asked.source[1] for n, number in before):
                    raise Violation(f"SEND {asked.receipt} was superseded by nothing")

    def check_rights(self) -> None:
        """Check that each change of `bert` was allowed by the policy in force when it took its place."""
        for revision, change in self.truth.items():
            if change.publisher.principal == "bert":
                send = [send for head, send in self.swaps if head < revision][-1]
                if "X/**" not in send and change.destination.decode() not in send:
                    raise Violation(f"revision {revision} was taken after a swap that forbids it")


def simulate(seed: int) -> Counter[str]:
    """Run a seed with each number of fronts, with fronts on other machines, and with those of a cluster; return what happened."""
    runs = [*(Fronted(seed, count) for count in COUNTS), Fronted(seed, COUNTS[-1], cuts=True)]
    runs += [Fronted(seed, COUNTS[-1], cuts=cuts, failovers=True) for cuts in (False, True)]
    for run in runs:
        run.run()
    return sum((run.counted for run in runs), Counter(alike=alike(seed)))


def alike(seed: int) -> int:
    """Run a seed with each number of fronts, one action after the other: each client reads exactly the same. Return the frames read."""
    runs: list[list[Seat]] = []
    for count in COUNTS:
        run = Fronted(seed, count, calm=True)
        run.run()
        runs.append(run.all)
    for count, found in zip(COUNTS[1:], runs[1:], strict=True):
        for one, other in zip(runs[0], found, strict=True):
            if one.heard() != other.heard():
                raise Violation(f"with {count} fronts a client reads {other.read}, without fronts {one.read}")
    return sum(len(seat.read) for seat in runs[0])
