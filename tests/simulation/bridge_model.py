"""The promises of bridges, checked against the changes that each gateway committed. They follow protocol.md, not the relay."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from maxam.broker.producer_sequences import mark_of
from maxam.records import Change
from tests.simulation.bridge_site import PUBLISHER, Site
from tests.simulation.model import Violation

SETTLED_S: Final = 700.0  # simulated time within which all must be equal once nothing fails


@dataclass
class Life:
    """The changes that one incarnation of a gateway committed.

    Attributes:
        name: Of the gateway.
        machine: The machine, of which each restore begins another life.
        number: In the order of all lives.
        history: Bodies of each topic in order. The first is what it had at the beginning, empty for none.
        places: Revision -> topic and place in its history.
    """

    name: str
    machine: int
    number: int
    history: dict[str, list[bytes]] = field(default_factory=dict)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)

    def add(self, topic: str, revision: int, body: bytes) -> None:
        """Record a change."""
        bodies = self.history.setdefault(topic, [b""])
        bodies.append(body)
        self.places[revision] = topic, len(bodies) - 1


@dataclass(frozen=True)
class Way:
    """A route as the operators wrote it: topics of `source` that match the glob go to a store of `target`."""

    source: str
    target: str
    glob: str
    store: str

    def map(self, topic: str) -> str:
        """Return the destination at the target."""
        return self.store + topic[topic.index("/") :]

    def matches(self, topic: str) -> bool:
        """Return True if a topic of the source takes this way."""
        return topic.startswith(self.glob.removesuffix("*"))

    def origin(self, topic: str) -> str | None:
        """Return the topic of the source for a destination at the target, None if this way does not lead there."""
        store, _, rest = topic.partition("/")
        found = f"{self.glob.partition('/')[0]}/{rest}"
        return found if store == self.store and self.matches(found) else None


class Promises:
    """All promises of all bridges.

    Attributes:
        lives: By incarnation.
        own: Newest value of each topic that its own publishers put at a machine.
        moved: Changes that bridges made, by name of their source.
    """

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.own: dict[int, dict[str, bytes]] = {}
        self.moved: dict[str, int] = {}
        self.newest: dict[tuple[int, str, str], int] = {}  # target's machine, incarnation, topic there -> place
        self.begun: dict[tuple[int, str], dict[int, int]] = {}  # target's machine, source -> machine -> newest life

    def started(self, site: Site, machine: int) -> None:
        """Record that a site has a new incarnation, and what it begins with."""
        life = Life(site.name, machine, len(self.lives))
        self.lives[site.incarnation] = life
        self.own[machine] = {t: body for t, (publisher, body) in site.values().items() if publisher == PUBLISHER}
        for key in [key for key in self.newest if key[0] == machine]:
            del self.newest[key]
        for topic in site.broker.store.topics.values():
            change = topic.change
            life.history[change.destination.decode()] = [change.body]
            life.places[change.revision] = change.destination.decode(), 0
            if change.publisher.principal != PUBLISHER:
                self._restored(machine, change)

    def _restored(self, machine: int, change: Change) -> None:
        """Record how new a forwarded value is that a restored site begins with."""
        mark = mark_of(change.headers)
        if mark is None:
            return
        incarnation = mark[0].decode().rpartition("-")[2]
        place = self.lives[incarnation].places.get(mark[1])
        if place is not None:
            self.newest[machine, incarnation, change.destination.decode()] = place[1]

    def committed(
        self, site: Site, machine: int, change: Change, ways: list[Way], unmapped: Callable[[str], bool]
    ) -> None:
        """Check a change that a site has committed, and record it.

        Args:
            site: Where it is.
            machine: Of the site.
            change: The change.
            ways: All routes that ever led to this site from the name that its publisher stands for.
            unmapped: Returns True if operators may just have removed the route that leads to a topic.

        Raises:
            Violation: It breaks a promise.
        """
        topic, principal = change.destination.decode(), change.publisher.principal
        if principal != PUBLISHER and not topic.startswith("B/"):
            self._check(site, machine, topic, change, ways, unmapped)
        self.lives[site.incarnation].add(topic, change.revision, change.body)
        if principal == PUBLISHER:
            self.own[machine].pop(topic, None)
            if change.body:
                self.own[machine][topic] = change.body

    def _check(
        self, site: Site, machine: int, topic: str, change: Change, ways: list[Way], unmapped: Callable[[str], bool]
    ) -> None:
        source = ways[0].source
        self.moved[source] = self.moved.get(source, 0) + 1
        what = f"{change.body!r} for {topic} at {site.name}"
        if topic in self.own[machine]:
            raise Violation(f"{what}: a bridge changes a topic of another publisher")
        origins = [origin for way in ways if (origin := way.origin(topic)) is not None]
        mark = mark_of(change.headers)
        if mark is None:
            if change.body or not unmapped(topic):
                self._check_unmarked(machine, topic, source, origins, change.body, what)
        else:
            name, _, incarnation = mark[0].decode().rpartition("-")
            life = self.lives.get(incarnation, Life("", 0, 0))
            if name != source or life.name != source:
                raise Violation(f"{what} has the source {mark[0]!r}")
            origin, place = life.places.get(mark[1], ("", -1))
            if place < 0 and not change.body:
                origin, place = next(((o, 0) for o in origins if not life.history.get(o, [b""])[0]), ("", -1))
            if place < 0 or origin not in origins or life.history.get(origin, [b""])[place] != change.body:
                raise Violation(f"{what} is not what {incarnation} had as {mark[1]}")
            key = machine, incarnation, topic
            if place < self.newest.get(key, 0):
                raise Violation(f"{what}: place {place} of its history came after {self.newest[key]}")
            self.newest[key] = place
            self._begin(machine, source, life, what)

    def _begin(self, machine: int, source: str, life: Life, what: str) -> None:
        begun = self.begun.setdefault((machine, source), {})
        if life.number < begun.get(life.machine, 0):
            raise Violation(f"{what} came from an older incarnation after a newer one had begun")
        begun[life.machine] = life.number

    def _check_unmarked(
        self, machine: int, topic: str, source: str, origins: list[str], body: bytes, what: str
    ) -> None:
        """See that a topic had this value at its source, or was absent there, and not before what the target had of it."""
        begun = self.begun.get((machine, source), {})
        for incarnation, life in self.lives.items():
            if life.name != source or life.number < begun.get(life.machine, 0):
                continue
            key = machine, incarnation, topic
            newest = self.newest.get(key, 0)
            for origin in origins:
                bodies = life.history.get(origin, [b""])[newest:]
                if body in bodies:
                    if body:
                        self.newest[key] = newest + bodies.index(body)
                    return
        raise Violation(f"{what}: its source had no such value at that time")


def expected(source: Site, ways: Iterable[Way], target: str) -> dict[str, bytes]:
    """Return what a target must have of a source."""
    found = {}
    for way in ways:
        for topic, (_, body) in source.values().items():
            if way.matches(topic) and not body.startswith(target.encode() + b":"):
                found[way.map(topic)] = body
    return found


def forwarded(target: Site, principal: str) -> dict[str, bytes]:
    """Return what a target has by a bridge."""
    return {
        topic: body
        for topic, (publisher, body) in target.values().items()
        if publisher == principal and not topic.startswith("B/")
    }
