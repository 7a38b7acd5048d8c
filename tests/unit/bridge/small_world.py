"""A venue, a centre and a bridge of a few lines each, in steps, for histories that are enumerated.

The gateways are models of docs/protocol.md: sessions that owe, marks of sources, `if-revision`, one order for each connection. A step
is one request that a gateway processes, one fact that the relay learns, or some time. So a cut between any two steps is possible.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from maxam.bridge.relay import Phase, Relay
from maxam.bridge.wishes import (
    CENTRE,
    GUEST,
    Ack,
    Close,
    End,
    Log,
    Open,
    Plan,
    PlannedRoute,
    Send,
    Subscribe,
    Unsubscribe,
)
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.links import UP, Link, LinkRoute, Wanted, decode_link, link_topic, wanted_topic

VENUE = 2  # the lane of normal priority
PLAN = Plan("V", "C", (PlannedRoute(LinkRoute(UP, "X/*", "V")),), window=2, link_timeout_s=30)
STEP_S = 0.01


@dataclass
class Value:
    """The newest change of a topic. Its body is empty if it is a delete."""

    revision: int
    body: bytes
    headers: dict[str, str]
    marks: dict[str, int]
    source: str = ""


@dataclass
class Durable:
    """A durable subscription of a session, connected or not."""

    glob: str
    owed: dict[str, None] = field(default_factory=dict)


@dataclass
class Live:
    """A subscription of a connection."""

    handle: int
    id: str
    glob: str
    durable: Durable | None
    owed: dict[str, None]
    held: dict[int, str] = field(default_factory=dict)
    complete: bool = False


class Gateway:
    """A model of a gateway."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = f"{name}1"
        self.revision = 0
        self.topics: dict[str, Value] = {}
        self.sessions: dict[str, dict[str, Durable]] = {}
        self.connections: list[Connection] = []
        self.rejects: Callable[[str, bytes], str] = lambda _topic, _body: ""
        self.refuses: Callable[[Send], str] = lambda _send: ""  # with an ERROR of this `message`

    @property
    def values(self) -> dict[str, bytes]:
        """The values by topic."""
        return {topic: value.body for topic, value in self.topics.items() if value.body}

    def send(
        self,
        topic: str,
        body: bytes,
        headers: dict[str, str],
        source: tuple[str, int] | None = None,
        if_revision: int | None = None,
    ) -> tuple[str, str]:
        """SEND; return disposition and result."""
        disposition = self.rejects(topic, body)
        if disposition:
            return disposition, "test"
        old = self.topics.get(topic)
        marks = dict(old.marks) if old else {}
        if source is not None and source[1] <= marks.get(source[0], -1):
            return "accepted", "superseded"
        if if_revision is not None and (old.revision if old and old.body else 0) != if_revision:
            return "rejected-invalid", "conflict"
        self.revision += 1
        if source is not None:
            marks[source[0]] = source[1]
        self.topics[topic] = Value(self.revision, body, headers, marks, "" if source is None else source[0])
        for subscriptions in self.sessions.values():
            for durable in subscriptions.values():
                if _matches(durable.glob, topic):
                    durable.owed[topic] = None
        for connection in self.connections:
            for live in connection.live.values():
                if live.durable is None and _matches(live.glob, topic):
                    live.owed[topic] = None
        return "accepted", ""

    def backup(self) -> Any:
        """Return a copy of the state."""
        topics = {
            topic: Value(each.revision, each.body, dict(each.headers), dict(each.marks), each.source)
            for topic, each in self.topics.items()
        }
        sessions = {
            name: {key: Durable(each.glob, dict(each.owed)) for key, each in session.items()}
            for name, session in self.sessions.items()
        }
        return self.revision, topics, sessions

    def restore(self, backup: Any) -> None:
        """Go back to a copy, under another incarnation. All connections must be cut first."""
        assert not self.connections
        self.revision, self.topics, self.sessions = backup
        self.incarnation += "r"


@lru_cache
def _matches(glob: str, topic: str) -> bool:
    return compile_glob(glob, Limits()).matches(topic)


class Connection:
    """One lane of one bridge."""

    def __init__(self, gateway: Gateway, client_id: str | None) -> None:
        self.gateway = gateway
        self.session = {} if client_id is None else gateway.sessions.setdefault(client_id, {})
        self.requests: deque[Any] = deque()
        self.facts: deque[tuple[str, tuple[Any, ...]]] = deque([("connected", (gateway.incarnation,))])
        self.live: dict[str, Live] = {}
        self.refused = False
        gateway.connections.append(self)

    def end(self) -> None:
        """Cut it."""
        for live in self.live.values():
            self._detach(live)
        self.gateway.connections.remove(self)

    def step(self) -> bool:
        """Process one request, or deliver one message or marker. Return False if there is nothing to do."""
        if self.refused:
            return False
        if self.requests:
            self._process(self.requests.popleft())
            return True
        for live in self.live.values():
            owed = live.owed if live.durable is None else live.durable.owed
            for topic in owed:
                if topic not in live.held.values():
                    del owed[topic]
                    self._deliver(live, topic)
                    return True
            if not live.complete:
                live.complete = True
                self.facts.append(("complete", (live.handle,)))
                return True
        return False

    def _deliver(self, live: Live, topic: str) -> None:
        value = self.gateway.topics[topic]
        metadata = {"publisher": "p", "timestamp": "1", "kind": "value" if value.body else "delete"}
        if live.durable is not None:
            live.held[value.revision] = topic
        headers = {**value.headers, **(metadata if live.durable is not None else {})}
        self.facts.append(("message", (live.handle, value.revision, topic, value.body, headers)))

    def _process(self, wish: Any) -> None:
        gateway = self.gateway
        match wish:
            case Send() if gateway.refuses(wish):
                self.refused = True
                self.facts.append(("refused", (wish.ticket, gateway.refuses(wish))))
            case Send():
                answer = gateway.send(wish.topic, wish.body, wish.headers, wish.source, wish.if_revision)
                self.facts.append(("receipt", (wish.ticket, *answer, "")))
            case Unsubscribe():
                live = self.live.pop(wish.id, None)
                if live is not None:
                    self._detach(live)
                known = wish.id in self.session
                if wish.for_good:
                    self.session.pop(wish.id, None)
                self.facts.append(("unsubscribed", (wish.handle, known)))
            case Ack():
                for live in self.live.values():
                    if live.handle == wish.handle and wish.revision in live.held:
                        for revision in list(live.held):
                            del live.held[revision]
                            if revision == wish.revision:
                                break
            case Subscribe():
                self._subscribe(wish)
            case _:
                raise AssertionError(wish)

    def _subscribe(self, wish: Subscribe) -> None:
        assert wish.id not in self.live, "the id is in use"
        resumed = wish.id in self.session
        durable = self.session.setdefault(wish.id, Durable(wish.glob)) if wish.durable else None
        live = Live(wish.handle, wish.id, wish.glob, durable, {})
        if wish.eager:
            owed = live.owed if durable is None else durable.owed
            for topic in self.gateway.values:
                if _matches(wish.glob, topic):
                    owed[topic] = None
        self.live[wish.id] = live
        self.facts.append(("subscribed", (wish.handle, resumed, False)))

    def _detach(self, live: Live) -> None:
        if live.durable is not None:
            held = dict.fromkeys(live.held.values())
            live.durable.owed = {**held, **live.durable.owed}


class World:
    """A bridge between two gateways, in steps."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.plan = plan
        self.venue, self.centre = Gateway("V"), Gateway("C")
        self.now_s = 1000.0
        self.steps = 0
        self.counter = 0
        self.told: list[str] = []
        self.ended = False
        self.refusals = 0
        self.begin()

    def begin(self) -> None:
        """Start the bridge's process."""
        self.lanes: dict[int, float] = {}  # when to connect; all that are open
        self.connections: dict[int, Connection] = {}
        self.relay = Relay(self.plan)
        self.relay.start(self.now_s)
        self._carry_out()

    def kill(self) -> None:
        """Kill the bridge's process and start another."""
        for connection in self.connections.values():
            connection.end()
        self.begin()

    def cut(self, lane: int, wait_s: float = 0.0) -> None:
        """Cut one lane. Requests and facts that are on their way are lost."""
        connection = self.connections.pop(lane, None)
        if connection is not None:
            connection.end()
            self.lanes[lane] = self.now_s + wait_s
            if not any(kind == "connected" for kind, _ in connection.facts):
                self.relay.lost(self.now_s, lane)
                self._carry_out()

    def cut_side(self, gateway: Gateway) -> None:
        """Cut all lanes to a gateway."""
        for lane, connection in list(self.connections.items()):
            if connection.gateway is gateway:
                self.cut(lane)

    def change(self, topic: str, delete: bool = False) -> None:
        """Publish the next value of a topic at the venue, or delete it."""
        self.counter += 1
        self.venue.send(topic, b"" if delete else b"%d" % self.counter, {"n": "1"})

    def want(self, gateway: Gateway, wanted: Wanted) -> None:
        """Publish what an operator wants."""
        gateway.send(wanted_topic(self.plan.venue).decode(), wanted.encoded(), {})

    def link(self, gateway: Gateway) -> Link | None:
        """Return the Link at a gateway."""
        return decode_link(gateway.values.get(link_topic(self.plan.venue).decode(), b""))

    def step(self) -> None:
        """Do the next thing that is due."""
        self.steps += 1
        self.now_s += STEP_S
        for lane, at_s in self.lanes.items():
            if lane not in self.connections and self.now_s >= at_s:
                gateway = self.centre if lane in (CENTRE, GUEST) else self.venue
                client_id = None if lane == GUEST else f"bridge-{self.plan.venue}-{lane}"
                self.connections[lane] = Connection(gateway, client_id)
                return
        for connection in self.connections.values():
            if connection.step():
                return
        for lane, connection in self.connections.items():
            if connection.facts:
                kind, fields = connection.facts.popleft()
                given = (lane, *fields) if kind == "connected" else fields
                getattr(self.relay, kind)(self.now_s, *given)
                self._carry_out()
                if kind == "refused":
                    self.refusals += 1
                    self.cut(lane)
                return
        self.now_s += 0.5
        self.relay.tick(self.now_s)
        self._carry_out()

    def settle(self, steps: int = 400) -> None:
        """Let time pass without any event, until nothing has moved for a while."""
        quiet = 0
        while quiet < 20:
            steps -= 1
            assert steps, f"no end in {self.relay.phase}"
            sent = self.relay.sent
            before = self.now_s
            self.step()
            idle = self.now_s - before > 0.4
            quiet = quiet + 1 if idle and sent == self.relay.sent and self.relay.phase in _REST else quiet * (idle or 1)

    def _carry_out(self) -> None:
        for wish in self.relay.take_wishes():
            match wish:
                case Open():
                    self.lanes[wish.lane] = self.now_s
                case Close():
                    self.cut(wish.lane, 1e9 if wish.wait_s is None else wish.wait_s)
                case Log():
                    self.told.append(wish.event)
                case End():
                    self.ended = True
                case Ack():
                    for connection in self.connections.values():
                        if any(live.handle == wish.handle for live in connection.live.values()):
                            connection.requests.append(wish)
                case _:
                    assert wish.lane in self.connections, wish
                    self.connections[wish.lane].requests.append(wish)


_REST = (Phase.RUNNING, Phase.PAUSED)
