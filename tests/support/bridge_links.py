"""A centre with bridged venues, without I/O, and a plain model of what it should know: for the tests of links."""

from dataclasses import dataclass, field
from typing import Final

from maxam.avro.registry import load_registry
from maxam.config import Limits
from maxam.gateway import bridge_links
from maxam.gateway.bridge_links import BridgeLinks
from maxam.gateway.freshness import STRETCH_US, Freshness
from maxam.globs import compile_glob
from maxam.links import CENTRE, HEADERS, UP, Link, LinkRoute, decode_link, link_topic
from maxam.stomp.frames import Frame
from tests.support.sans_io import Client, World

FRESH_S: Final = 20
TIMEOUT_S: Final = 10
REGISTRY: Final = load_registry(
    {
        "registry.toml": f"""
[[rule]]
destination = "V?/*.Meter"
encoding = "none"
fresh_within_s = {FRESH_S}
[[rule]]
destination = "**"
encoding = "none"
""".encode()
    }
)
RIGHTS: Final = {"send": ["**"], "receive": ["V?/**"]}
OTHERS: Final = {"send": ["B/2.Link", "V2/**"], "receive": []}


def link(venue: str, *globs: str, state: str = UP, since_s: float = 0, timeout_s: int = TIMEOUT_S) -> Link:
    """Return the value of a link at the centre, with routes to these globs."""
    routes = tuple(LinkRoute(UP, f"X/{glob.partition('/')[2]}", glob.partition("/")[0]) for glob in globs)
    return Link(venue, "centre", CENTRE, state, "", int(since_s * 1000), 0, "h", timeout_s, "a", "b", routes)


@dataclass
class Reader:
    """A client with markers, and the notices that it received.

    Attributes:
        stale: Topics that it holds as stale.
        held: Topics that it holds.
        resumed: It began from a position: it gets no notice of what was overdue before.
        notices: Notices, in order: kind, reason and destination.
    """

    client: Client
    resumed: bool = False
    stale: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    notices: list[tuple[str, str, str]] = field(default_factory=list)
    position: str = ""

    def read(self) -> list[Frame]:
        """Apply all frames that wait."""
        frames = [frame for frame in self.client.read() if frame.command == b"MESSAGE"]
        for frame in frames:
            name, kind = frame.headers[b"destination"].decode(), frame.headers.get(b"kind", b"")
            self.position = frame.headers.get(b"position", self.position.encode()).decode()
            if name == "$marker":
                continue
            if frame.headers[b"message-id"] == b"0":
                assert name in self.held
                assert (kind == b"stale") == (name not in self.stale)
                self.notices.append((kind.decode(), frame.headers[b"reason"].decode(), name))
                (self.stale.add if kind == b"stale" else self.stale.discard)(name)
            else:
                assert (kind == b"fresh") == (name in self.stale and bool(frame.body))
                self.stale.discard(name)
                (self.held.add if frame.body else self.held.discard)(name)
        return frames


class Centre:
    """A gateway's broker with its freshness and its watch of links."""

    def __init__(self) -> None:
        self.world = World.make(limits=Limits(), bridge=RIGHTS, other=OTHERS)
        self.world.broker.replace_registry(REGISTRY)
        self.world.broker.incarnation = "0123456789abcdef"
        self.readers: list[Reader] = []
        self.deleted: dict[str, Link] = {}  # links that were deleted in this run, while they had topics
        self.begin()

    def begin(self) -> None:
        """Begin, as a gateway does at its start."""
        self.stopped_us = self.world.broker.accepted_at_us
        self.started_us = max(self.world.wall_us, self.stopped_us)
        self.publisher = self.world.client("bridge")
        self.freshness = Freshness(self.world.broker, lambda: self.world.wall_us)
        self.links = BridgeLinks(self.world.broker, self.freshness, lambda: self.world.wall_us)

    def send(self, destination: str, body: bytes) -> None:
        """Have a change accepted and committed."""
        self.publisher.send(destination, body)
        self.world.settle()

    def publish(self, value: Link) -> None:
        """Have the state of a link accepted."""
        self.publisher.send(
            link_topic(value.venue).decode(), value.encoded(), **{n.decode(): v.decode() for n, v in HEADERS}
        )
        self.world.settle()

    def delete_link(self, venue: str) -> None:
        """Have an operator delete a link. The gateway remembers what it has seen of it."""
        self.send(link_topic(venue).decode(), b"")
        seen = self.links.links.get(venue)
        if seen is not None and seen.link is not None:
            self.deleted[venue] = seen.link

    def subscribe(self, position: str = "", held: frozenset[str] = frozenset()) -> Reader:
        """Connect a client, which has all values, or goes on from a position."""
        reader = Reader(self.world.client("bridge"), bool(position), held=set(held), position=position)
        how = f"since:{position}" if position else "eager:true"
        reader.client.write(f"SUBSCRIBE\nid:s\ndestination:V?/**\nack:auto\nmarkers:true\n{how}\n\n\0".encode())
        self.world.settle()
        reader.read()
        self.readers.append(reader)
        return reader

    def return_(self, at: int) -> Reader:
        """Have a client lose its connection and go on from its position."""
        reader = self.readers.pop(at)
        reader.client.lose()
        return self.subscribe(reader.position, frozenset(reader.held))

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.world.wall_us += int(seconds * 1e6)
        self.world.now_s += seconds

    def step(self) -> None:
        """Do one batch of the work of the gateway."""
        self.freshness.step(self.world.now_s)
        self.links.step(self.world.now_s)
        for reader in self.readers:
            reader.read()

    def settle(self) -> None:
        """Do all that is due."""
        self.pass_time(max(bridge_links.SEARCH_INTERVAL_S, 2 * STRETCH_US / 1e6))
        while True:
            more = self.freshness.step(self.world.now_s)
            more = self.links.step(self.world.now_s) or more
            self.world.settle()
            if not more and self.links.swept and self.freshness.settled:
                break
        for reader in self.readers:
            reader.read()

    def restart(self) -> None:
        """Crash, and start again from the journal."""
        self.world = self.world.restart()
        self.world.broker.incarnation = "0123456789abcdef"
        self.readers = []
        self.deleted = {}
        self.begin()

    # The model.

    def values(self) -> set[str]:
        """Return the topics of venues that have a value."""
        topics = self.world.broker.store.topics.values()
        return {topic.name for topic in topics if not topic.change.deleted and not topic.name.startswith("B/")}

    def down(self) -> dict[str, set[str]]:
        """Return the links that are down, with their topics, by a search of everything."""
        found: dict[str, set[str]] = {}
        now_us = max(self.world.wall_us, self.world.broker.accepted_at_us)
        for name, topic in self.world.broker.store.topics.items():
            value = decode_link(topic.change.body) if name.startswith(b"B/") and topic.change.body else None
            if value is None:
                continue
            self.deleted.pop(value.venue, None)
            timeout_us = value.timeout_s * 1_000_000
            heard_us = topic.change.accepted_at_us
            if heard_us <= self.stopped_us <= heard_us + timeout_us:
                heard_us = self.started_us
            if value.state != UP or now_us > heard_us + timeout_us:
                found[value.venue] = self.matching(value)
        for venue, value in list(self.deleted.items()):
            if self.matching(value):
                found[venue] = self.matching(value)
        return found

    def matching(self, value: Link) -> set[str]:
        """Return the topics of a link."""
        globs = [compile_glob(text, Limits()) for text in value.globs_here]
        return {name for name in self.values() if any(glob.matches(name) for glob in globs)}

    def check(self) -> None:
        """Compare the gateway, which has settled, with the model."""
        down = self.down()
        unknown: set[str] = set().union(*down.values())
        seen = {venue for venue, one in self.links.links.items() if one.down}
        assert seen - set(self.deleted) == set(down) - set(self.deleted)
        assert set(down) <= seen
        broker = self.world.broker
        for name in self.values():
            assert (self.links.unknown_since_us(name.encode()) > 0) == (name in unknown)
        now_us = max(self.world.wall_us, broker.accepted_at_us)
        late = {
            name
            for name in self.values()
            if name.endswith(".Meter")
            and now_us - broker.store.topics[name.encode()].change.accepted_at_us > FRESH_S * 1_000_000
        }
        assert self.freshness.count == len(late - unknown)
        for reader in self.readers:
            assert reader.held == self.values()
            known = {name for name in reader.stale if name not in unknown}
            assert reader.stale >= unknown
            if reader.resumed:
                assert known <= late
            else:
                assert known == late - unknown
