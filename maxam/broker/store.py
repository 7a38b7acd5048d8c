"""One value per topic, and the topics in order of their names."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, mypyc_attr
from sortedcontainers import SortedList

from maxam.records import Change

if TYPE_CHECKING:
    from maxam.broker.session import Subscription

TOMBSTONE_SWEEP_MIN: Final = 1024  # tombstones that may gather before the unneeded ones are looked for
SWEEP_TOPICS: Final = 256  # of them that are looked at in one go: a millisecond among a million topics
SWEEP_TOPICS_MAX: Final = 16_384  # the same when as many come in each pass of the loop, which takes longer then anyway
ARRIVALS_MAX: Final = (
    256  # new topics that may wait to be put into order: one by one costs more, all at once holds the loop
)

TURNS_MAX: Final = 32_768  # that are remembered: some seconds of the most that can come

# What a topic's freshness may be, beside a number above 0: that of the contracts under which somebody will look at it in time.
UNWATCHED: Final = 0
OVERDUE: Final = -1  # and found to be: its next change is told of
STIRRED: Final = -2  # that was told of, and nobody has looked yet


@final
@mypyc_attr(acyclic=True)
class Topic:
    """What is stored under one destination, and who wants to know.

    Attributes:
        destination: Its name, UTF-8.
        change: The newest committed change; a tombstone when that was a delete.
        routes: Subscriptions whose glob matches and whose principal may receive, as of `routed` and `epoch`, and some that
            were removed since. Never changed in place, so that topics may share one list.
        routed: Position in the match index up to which `routes` is complete.
        epoch: Of the broker's routing when `routes` was made.
        rule: Which of the registry's rules is for it, -1 if none is; valid for `registry` only.
        registry: The number of the registry that was asked; 0: none was.
        permitted: The number of rights that were found to allow SENDs to it: asked for a million topics, they cannot remember all
            answers. 0: of none.
        updates: Changes of it that were applied, for whoever wants their rate.
        freshness: UNWATCHED, OVERDUE, STIRRED or above 0: for whoever holds it to its contract.
    """

    __slots__ = (
        "change",
        "destination",
        "epoch",
        "freshness",
        "permitted",
        "registry",
        "routed",
        "routes",
        "rule",
        "updates",
    )

    def __init__(self, destination: bytes, change: Change, routes: "list[Subscription]") -> None:
        self.destination: Final = destination
        self.change = change
        self.routes = routes
        self.routed = 0
        self.epoch = -1
        self.registry = 0
        self.permitted = 0
        self.updates = 1
        # Four bytes each: with eight more a topic would take the next larger piece of memory, 16 bytes a topic.
        self.rule: i32 = -1
        self.freshness: i32 = UNWATCHED

    @property
    def name(self) -> str:
        """The destination as text."""
        return self.destination.decode()


@final
class Store:
    """The topics of the broker.

    Attributes:
        topics: By destination, tombstones included.
        live: How many hold a value.
        tombstones: Those whose newest change is a delete; those that have been looked at in vain behind the others.
        newcomers: Destinations that have got a value and had none, in order, for whoever walks over all topics in slices and
            must not miss one; None while nobody asks.
        stirred: For whoever holds topics to contracts: those that have got a value and had none, and those that were overdue
            and have changed; in order, each at most once before it is looked at. None while nobody asks.
        before_us: Of the latter, when the value before was accepted (microseconds since the epoch), until it is taken from here.
        overdue: How many topics are.
        turns: Destinations that have got a value and had none (True) or have lost it (False), the last TURNS_MAX of them, for whoever
            keeps a list of topics true; None while nobody asks.
        turned: How many of those there have been, ever while somebody asked.
    """

    __slots__ = (
        "_arrivals",
        "_kept",
        "_names",
        "_sorted",
        "_sweep_at",
        "_sweep_left",
        "_swept",
        "before_us",
        "live",
        "newcomers",
        "overdue",
        "stirred",
        "tombstones",
        "topics",
        "turned",
        "turns",
    )

    def __init__(self) -> None:
        self.topics: Final[dict[bytes, Topic]] = {}
        self.live = 0
        self.newcomers: list[bytes] | None = None
        self.stirred: list[Topic] | None = None
        self.before_us: Final[dict[Topic, int]] = {}
        self.overdue = 0
        self.turns: deque[tuple[bytes, bool]] | None = None
        self.turned = 0
        self.tombstones: Final[dict[Topic, None]] = {}
        self._names: SortedList[bytes] = SortedList()
        self._arrivals: list[bytes] = []  # not yet in _names
        self._sorted = False
        self._sweep_at = TOMBSTONE_SWEEP_MIN
        self._sweep_left = 0  # tombstones that are still to be looked at
        self._swept = 0  # how many there were after the last look
        self._kept = 0  # how many were found to be needed since the first look

    def add(self, change: Change, routes: "list[Subscription]") -> Topic:
        """Make the topic of its first change, which the caller has found to be absent."""
        topic = Topic(change.destination, change, routes)
        self.topics[change.destination] = topic
        self._arrivals.append(change.destination)
        if self._sorted and len(self._arrivals) >= ARRIVALS_MAX:
            self.sort()
        if change.deleted:
            self.tombstones[topic] = None
        else:
            self._live(topic)
        return topic

    def put(self, topic: Topic, change: Change) -> None:
        """Make `change` the topic's newest."""
        if topic.freshness == OVERDUE:
            self.overdue -= 1
            topic.freshness = UNWATCHED
            self._stir(topic, topic.change.accepted_at_us)
        if change.deleted is not topic.change.deleted:
            if change.deleted:
                self.tombstones[topic] = None
                self.live -= 1
                self._turn(topic.destination, False)
            else:
                self.tombstones.pop(topic, None)
                self._live(topic)
        topic.change = change
        topic.updates += 1

    def _live(self, topic: Topic) -> None:
        self.live += 1
        self._turn(topic.destination, True)
        if self.newcomers is not None:
            self.newcomers.append(topic.destination)
        if topic.freshness == UNWATCHED:
            self._stir(topic, 0)

    def _turn(self, destination: bytes, alive: bool) -> None:
        if self.turns is not None:
            self.turns.append((destination, alive))
            self.turned += 1

    def _stir(self, topic: Topic, before_us: int) -> None:
        if self.stirred is not None:
            topic.freshness = STIRRED
            self.stirred.append(topic)
            if before_us:
                self.before_us[topic] = before_us

    def sort(self) -> None:
        """Put the destinations of topics that have come since into order, as `names_after` needs them; from now on, soon.

        Recovery, which has all at once and nobody waiting, calls it when it is through.
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
        """Return the next ones of `names_after`, at once: a walk over many takes a tenth of the time so."""
        self.sort()
        start = prefix if cursor is None or cursor < prefix else cursor
        names = list(islice(self._names.irange(start, None, (cursor is None or start is not cursor, True)), names_max))
        while names and not names[-1].startswith(prefix):  # they end within this slice, once in a walk
            names.pop()
        return names

    @property
    def sweeping(self) -> bool:
        """Whether tombstones are being looked through: `sweep` has more to do at once."""
        return self._sweep_left > 0

    def sweep_due(self) -> bool:
        """Say whether enough tombstones have gathered to look for unneeded ones, or are being looked through."""
        return self._sweep_left > 0 or len(self.tombstones) >= self._sweep_at

    def sweep_soon(self) -> None:
        """Have all tombstones looked through, however few there are."""
        self._sweep_at = 0

    def to_sweep(self, least: int) -> set[Topic]:
        """Return the next tombstones to look at, which `sweep` is to be told of: at least so many, and more than come meanwhile."""
        if not self._sweep_left:
            self._sweep_left = self._swept = len(self.tombstones)
            self._kept = 0
        coming = min(2 * (len(self.tombstones) - self._swept), SWEEP_TOPICS_MAX)
        return set(islice(self.tombstones, min(max(SWEEP_TOPICS, least, coming), self._sweep_left)))

    def sweep(self, looked_at: set[Topic], needed: set[Topic]) -> None:
        """Forget each tombstone of `looked_at` that is not in `needed`."""
        self.sort()
        for topic in looked_at:
            del self.tombstones[topic]
            if topic in needed:
                self.tombstones[topic] = None  # behind those that have not been looked at
                self._kept += 1
            else:
                del self.topics[topic.destination]
                self._names.remove(topic.destination)
        self._swept = len(self.tombstones)
        self._sweep_left = min(self._sweep_left - len(looked_at), self._swept)
        if self._sweep_left <= 0:
            self._sweep_left = 0
            self._sweep_at = max(TOMBSTONE_SWEEP_MIN, 2 * self._kept)  # what came meanwhile nobody has looked at
