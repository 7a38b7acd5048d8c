"""One value per topic, and the topics in order of their names.

Theory of operation. A deleted topic stays as a *tombstone*. It is *retained* for a time, so that a client that resumes from a position
learns of the delete. Then a sweep forgets it, unless a subscription is still owed the delete. Deletes are retained up to a
number. Beyond it, the oldest is no longer retained.

Invariants:
* `retained` lists deletes in the order of their revisions;
* the newest change of each topic that is above `floor` is known here, deletes included.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final, final

from sortedcontainers import SortedList

from maxam.broker.session import OVERDUE, UNWATCHED, Subscription, Topic
from maxam.broker.topic_events import APPEARED, GONE, UPDATED, TopicEvents
from maxam.records import Change

TOMBSTONE_SWEEP_MIN: Final = 1024  # tombstones that may gather before the unneeded ones are searched for
SWEEP_TOPICS: Final = 256  # of them that are checked at a time: a millisecond among a million topics
SWEEP_TOPICS_MAX: Final = 16_384  # the same when as many come in each pass of the loop, which takes longer then anyway
ARRIVALS_MAX: Final = (
    256  # new topics that may wait to be put into order: one by one costs more, all at once holds the loop
)


@final
class Store:
    """The topics of the broker.

    Attributes:
        topics: By destination, tombstones included.
        live: How many hold a value.
        retained: Those whose newest change is a delete that is retained, oldest first.
        deletes_of: How many of them each principal has made.
        tombstones: Those whose newest change is any other delete; those that were found to be needed come last.
        floor: Revision of the newest delete that was forgotten; 0 if none was.
        events: The feed of what happens to topics.
        overdue: How many topics are overdue.
    """

    __slots__ = (
        "_arrivals",
        "_kept",
        "_names",
        "_releasing",
        "_retained_max",
        "_retention_us",
        "_sorted",
        "_sweep_at",
        "_sweep_left",
        "_swept",
        "deletes_of",
        "events",
        "floor",
        "live",
        "overdue",
        "retained",
        "tombstones",
        "topics",
    )

    def __init__(self, retention_s: float = 0.0, retained_max: int = 0) -> None:
        """Begin without topics.

        Args:
            retention_s: How long a delete is retained; seconds.
            retained_max: How many deletes are retained.
        """
        self.topics: Final[dict[bytes, Topic]] = {}
        self.live = 0
        self.events: Final = TopicEvents()
        self.overdue = 0
        self.retained: Final[OrderedDict[Topic, None]] = OrderedDict()
        self.deletes_of: Final[dict[str, int]] = {}
        self.tombstones: Final[dict[Topic, None]] = {}
        self.floor = 0
        self._retention_us: Final = int(retention_s * 1_000_000)
        self._retained_max: Final = retained_max if self._retention_us else 0
        self._releasing = False  # memory is short: nothing is retained
        self._names: SortedList[bytes] = SortedList()
        self._arrivals: list[bytes] = []  # not yet in _names
        self._sorted = False
        self._sweep_at = TOMBSTONE_SWEEP_MIN
        self._sweep_left = 0  # tombstones that are still to be checked
        self._swept = 0  # how many there were after the last check
        self._kept = 0  # how many were found to be needed since the first check

    def add(self, change: Change, routes: list[Subscription]) -> Topic:
        """Make the topic of its first change, which the caller has found to be absent."""
        topic = Topic(change.destination, change, routes)
        self.topics[change.destination] = topic
        self._arrivals.append(change.destination)
        if self._sorted and len(self._arrivals) >= ARRIVALS_MAX:
            self.sort()
        if change.deleted:
            self._retain(topic, change)
        else:
            self.live += 1
            self.events.emit(topic, APPEARED)
        return topic

    def put(self, topic: Topic, change: Change) -> None:
        """Make `change` the topic's newest."""
        if topic.freshness == OVERDUE:
            self.overdue -= 1
            topic.freshness = UNWATCHED
            self.events.emit(topic, UPDATED, topic.change.accepted_at_us)
        if change.deleted is not topic.change.deleted:
            if change.deleted:
                self._retain(topic, change)
                topic.registry = 0  # so that the next SEND asks whether there is room for one topic more
                self.live -= 1
                self.events.emit(topic, GONE)
            else:
                if topic in self.retained:
                    self._release(topic)
                else:
                    self.tombstones.pop(topic, None)
                self.live += 1
                self.events.emit(topic, APPEARED)
        topic.change = change
        topic.updates += 1

    def sort(self) -> None:
        """Put the destinations of topics that have come since into order, as `names_after` needs them; from now on, soon.

        Recovery calls it at its end.
        """
        self._sorted = True
        if self._arrivals:
            self._names.update(self._arrivals)
            self._arrivals = []

    def names_after(self, prefix: bytes, cursor: bytes | None) -> Iterator[bytes]:
        """Iterate in byte order over the destinations that begin with `prefix` and lie after `cursor` (None: from the first).

        The iterator is void once the store has changed.
        """
        self.sort()
        start = prefix if cursor is None or cursor < prefix else cursor
        for name in self._names.irange(start, None, (cursor is None or start is not cursor, True)):
            if not name.startswith(prefix):
                return
            yield name

    def names_slice(self, prefix: bytes, cursor: bytes | None, names_max: int) -> list[bytes]:
        """Return the next ones of `names_after`, as a list: a scan of many takes a tenth of the time so."""
        self.sort()
        start = prefix if cursor is None or cursor < prefix else cursor
        names = list(islice(self._names.irange(start, None, (cursor is None or start is not cursor, True)), names_max))
        while names and not names[-1].startswith(prefix):  # they end within this batch, once in a scan
            names.pop()
        return names

    def raise_floor(self, revision: int) -> None:
        """Record that deletes up to a revision may be unknown."""
        self.floor = max(self.floor, revision)

    def retire(self, now_us: int, most: int = SWEEP_TOPICS_MAX) -> None:
        """Stop retaining deletes that are old enough at a time, or all if memory is short; `most` of them at most."""
        retained = self.retained
        while retained and most > 0:
            topic = next(iter(retained))
            if not self._releasing and now_us - topic.change.accepted_at_us <= self._retention_us:
                return
            self._release(topic)
            self.tombstones[topic] = None
            most -= 1
        if self._releasing:
            self._sweep_at = 0
            self._releasing = len(retained) > 0

    def release_soon(self) -> None:
        """Retain no delete made until now, and have all tombstones checked: memory is short."""
        self._releasing = True
        self.sweep_soon()

    @property
    def sweeping(self) -> bool:
        """Whether tombstones are being checked: `sweep` has more to do at once."""
        return self._sweep_left > 0 or self._releasing

    def sweep_due(self) -> bool:
        """Return True if enough tombstones have gathered to search for unneeded ones, or are being checked."""
        return self._sweep_left > 0 or len(self.tombstones) >= self._sweep_at

    def sweep_soon(self) -> None:
        """Have all tombstones checked, however few there are."""
        self._sweep_at = 0

    def to_sweep(self, least: int) -> set[Topic]:
        """Return the next tombstones to check, for `sweep`: at least `least`, and more than come meanwhile."""
        if not self._sweep_left:
            self._sweep_left = self._swept = len(self.tombstones)
            self._kept = 0
        coming = min(2 * (len(self.tombstones) - self._swept), SWEEP_TOPICS_MAX)
        return set(islice(self.tombstones, min(max(SWEEP_TOPICS, least, coming), self._sweep_left)))

    def sweep(self, checked: set[Topic], needed: set[Topic]) -> None:
        """Forget each tombstone of `checked` that is not in `needed`."""
        self.sort()
        for topic in checked:
            del self.tombstones[topic]
            if topic in needed:
                self.tombstones[topic] = None  # after those that were not checked
                self._kept += 1
            else:
                del self.topics[topic.destination]
                self._names.remove(topic.destination)
                if topic.change.revision > self.floor:  # not in order: needed ones were moved
                    self.floor = topic.change.revision
        self._swept = len(self.tombstones)
        self._sweep_left = min(self._sweep_left - len(checked), self._swept)
        if self._sweep_left <= 0:
            self._sweep_left = 0
            self._sweep_at = max(TOMBSTONE_SWEEP_MIN, 2 * self._kept)  # those that came meanwhile were not checked

    def _retain(self, topic: Topic, delete: Change) -> None:
        """Keep a topic whose newest change is a delete from now on."""
        if self._retained_max <= 0:
            self.tombstones[topic] = None
            return
        self.retained[topic] = None
        principal = delete.publisher.principal
        self.deletes_of[principal] = self.deletes_of.get(principal, 0) + 1
        if len(self.retained) > self._retained_max:
            oldest = next(iter(self.retained))
            self._release(oldest)
            self.tombstones[oldest] = None

    def _release(self, topic: Topic) -> None:
        """Retain a delete no longer."""
        del self.retained[topic]
        principal = topic.change.publisher.principal
        left = self.deletes_of[principal] - 1
        if left:
            self.deletes_of[principal] = left
        else:
            del self.deletes_of[principal]
