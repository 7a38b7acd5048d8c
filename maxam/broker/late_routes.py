"""New topics whose routes lack the globs of an owner, because to find those takes too long: they are found in parts, later.

An owner can choose globs so that each new topic has to be compared with most of them. Publishers must not wait for that. So the index
gives up after some steps, and the topic is *late* for the owner. While an owner has late topics, its globs are not compared with a new
topic at all. They are compared with its late topics in the background, a limited number at a time.

Only a topic that is new can be late. Nothing can have found it before, so nothing is owed it twice.

While an owner has late topics, a scan counts as under way for each subscription of it that may lack some. So no position passes a topic
that is late, and the staleness is never reported too small.
"""

from typing import Final, final

from maxam.broker.destinations import MatchIndex
from maxam.broker.session import Subscription, Topic
from maxam.broker.store import Store

# Globs to be compared in 5 ms: some 0.2 ms, so 4 % of the time. One principal can cause that for as long as it likes.
GLOBS_AT_ONCE: Final = 250


@final
class _Late:
    """The late topics of one owner.

    Attributes:
        since_us: When the first one changed.
        topics: By destination, oldest first: the position below which the subscriptions are that want the newest change, and the routes that
            have been owed it.
        subscriptions: Those for which a scan counts as under way. Each is owed only changes after a revision.
        cursor: How many globs were compared with the first topic.
        found: Subscriptions whose globs match it.
    """

    __slots__ = ("cursor", "found", "since_us", "subscriptions", "topics")

    def __init__(self, since_us: int) -> None:
        self.since_us: Final = since_us
        self.topics: dict[bytes, tuple[int, list[Subscription]]] = {}
        self.subscriptions: Final[dict[Subscription, int]] = {}
        self.cursor = 0
        self.found: list[Subscription] = []

    def begin(self, subscription: Subscription) -> None:
        """Count a scan as under way for a subscription."""
        if subscription not in self.subscriptions:
            self.subscriptions[subscription] = -1
            subscription.begin_scan(self.since_us)

    def restart(self) -> None:
        """Compare all globs with the first topic again."""
        self.cursor = 0
        self.found = []

    def end(self) -> None:
        """Count no scan as under way any longer: no topic is late."""
        for subscription in self.subscriptions:
            subscription.end_scan(self.since_us)
            if not subscription.removed:
                subscription.complete_initial()


@final
class LateRoutes:
    """The late topics of all owners."""

    __slots__ = ("_index", "_late", "_store")

    def __init__(self, index: MatchIndex[Subscription], store: Store) -> None:
        self._index: Final = index
        self._store: Final = store
        self._late: Final[dict[str, _Late]] = {}  # by owner; the next one first

    def __len__(self) -> int:
        return len(self._late)

    def concerns(self, owner: str) -> bool:
        """Return True if an owner has late topics."""
        return owner in self._late

    def topics_of(self, owner: str) -> int:
        """Return how many topics are late for an owner."""
        late = self._late.get(owner)
        return 0 if late is None else len(late.topics)

    def lacks(self, subscription: Subscription, owner: str, destination: bytes) -> bool:
        """Return True if a subscription may lack the newest change of a topic because the topic is late."""
        late = self._late.get(owner)
        return late is not None and destination in late.topics and subscription in late.subscriptions

    def add(self, owner: str, topic: Topic) -> None:
        """Make a topic late for an owner. All of `topic.routes` is owed its newest change, or will be at once."""
        late = self._late.get(owner)
        if late is None:
            late = self._late[owner] = _Late(topic.change.accepted_at_us)
            for position in self._index.owned(owner):
                entry = self._index.at(position)
                if entry is not None:
                    late.begin(entry[1])
        if late.topics and next(iter(late.topics)) == topic.destination:
            late.restart()  # more subscriptions want this change than the one before
        late.topics[topic.destination] = (self._index.position, topic.routes)

    def subscribed(self, subscription: Subscription, owner: str) -> None:
        """Act on a subscription that was added to the index."""
        late = self._late.get(owner)
        if late is not None:
            late.begin(subscription)

    def complete(self, destination: bytes) -> None:
        """Act on a topic whose routes are complete: they are owed its newest change."""
        for late in self._late.values():
            if destination in late.topics:
                if next(iter(late.topics)) == destination:
                    late.restart()
                del late.topics[destination]

    def caught_up(self, subscription: Subscription, owner: str, revision: int) -> None:
        """Owe a subscription only changes after a revision: it is owed the others in another way."""
        late = self._late.get(owner)
        if late is not None and subscription in late.subscriptions:
            late.subscriptions[subscription] = revision

    def regrant(self) -> None:
        """Act on other rights: what an owner may no longer receive is owed by a scan, once a policy grants it again."""
        for late in self._late.values():
            for subscription in late.subscriptions:
                if not subscription.removed:
                    rights = subscription.session.rights
                    late.restart()
                    late.topics = {name: owed for name, owed in late.topics.items() if rights.may_receive(name)}
                    break

    def renumber(self) -> None:
        """Act on a new epoch of the index."""
        for late in self._late.values():
            late.restart()
            late.topics = {
                name: (self._index.renumbered(position), routes) for name, (position, routes) in late.topics.items()
            }

    def needed_of(self, tombstones: set[Topic]) -> set[Topic]:
        """Return those of some deleted topics that are late for an owner."""
        if not self._late:
            return set()
        return {topic for topic in tombstones for late in self._late.values() if topic.destination in late.topics}

    def find(self, globs: int, epoch: int) -> None:
        """Compare up to `globs` globs with late topics, and owe the topics to those that match. The owners alternate.

        Args:
            globs: Limit on the work.
            epoch: Of the routing.
        """
        while globs > 0 and self._late:
            owner = next(iter(self._late))
            late = self._late.pop(owner)
            globs -= self._compare(owner, late, globs, epoch)
            if late.topics:
                self._late[owner] = late
            else:
                late.end()

    def _compare(self, owner: str, late: _Late, globs: int, epoch: int) -> int:
        """Go on with the first topic; return how many globs were compared, at least 1."""
        destination = next(iter(late.topics), None)
        if destination is None:
            return 1
        end, routes = late.topics[destination]
        topic = self._store.topics.get(destination)
        compared = 1
        if topic is not None:
            name = topic.name
            positions = self._index.owned(owner)
            while late.cursor < len(positions) and positions[late.cursor] < end:
                if compared > globs:
                    return compared
                entry = self._index.at(positions[late.cursor])
                late.cursor += 1
                compared += 1
                if entry is not None and entry[0].matches(name):
                    late.found.append(entry[1])
            self._owe(topic, late, routes, epoch)
        del late.topics[destination]
        late.restart()
        return compared

    @staticmethod
    def _owe(topic: Topic, late: _Late, owed: list[Subscription], epoch: int) -> None:
        """Have the subscriptions that were found owe a topic, and complete its routes."""
        destination = topic.destination
        found = [s for s in late.found if not s.removed and s.session.rights.may_receive(destination)]
        if topic.epoch == epoch:
            known = set(topic.routes)
            routed = [s for s in found if s not in known]
            if routed:
                topic.routes = topic.routes + routed
        done = set(owed)
        for subscription in found:
            if subscription in done or topic.change.revision <= late.subscriptions.get(subscription, -1):
                continue
            subscription.owe_present(topic, late.since_us)
            connection = subscription.connection
            if connection is not None and subscription.ready and not subscription.queued:
                connection.add_ready(subscription)
