"""Which topics are older than their rule allows: `fresh_within_s` of the schema registry, held against every topic that it covers.

Theory of operation. A topic under a contract has one entry in a wheel: a list for each stretch of time, of the topics whose newest
value's time ends within it. When it has ended they are looked at. Who has changed meanwhile goes where its time ends now; who has not is
*overdue*, and has no entry until it changes. So an update costs nothing, and a topic is looked at about once in `fresh_within_s`. That it
is overdue is a mark on the topic, which the store takes away with the change that ends it: no listing and no count is ever behind that.
The store also tells of topics that have got a value and had none.

Other contracts come with another registry: then what is overdue is looked at again, the wheel is given up, and the topics that the new
ones may cover are walked over in slices. `settled` is false meanwhile, as it is after a start. A topic remembers the number of the
contracts under which it got its entry, and so never has two.

Time is the broker's: that of the wall clock, but never before the newest change. Where that goes back, what is overdue is looked at
again. While a clock that was set back has not caught up with the newest change nobody grows older, and operators are told. By one that is
set forward everybody is older at once, until they change.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Final, final

import trio
from sortedcontainers import SortedList

from maxam.avro.registry import Registry
from maxam.broker.broker import Broker
from maxam.broker.store import OVERDUE, UNWATCHED, Topic
from maxam.gateway.log import log_event
from maxam.globs import Glob
from maxam.records import Change

STRETCH_US: Final = (
    250_000  # of the wheel: a topic is found overdue half a second late at most, where nothing else is to do
)
SLICE_TOPICS: Final = 200  # looked at before the event loop has its turn: less than 1 ms
LINES_PER_MINUTE_MAX: Final = 20  # of each of the two events; the rest is counted
_LOOK_S: Final = 0.25
_REST: Final = 2.0  # times what a slice took, until the next: where there is much to do it takes a third of the time
_DROPPED_AT_A_TIME: Final = 2500  # entries that are given up, which costs as much as a slice of looking
_DEAD_MAX: Final = 10_000  # entries of topics that are gone, beyond as many as there are topics
_BEHIND_US: Final = 5_000_000  # by which a clock may be set back without a word: time servers do that
_SUMMARY_INTERVAL_S: Final = 60.0


def _wall_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Overdue:
    """A topic that is, and its newest value.

    Attributes:
        change: That value.
        age_s: Since it was accepted.
        fresh_within_s: What its rule allows.
    """

    change: Change
    age_s: float
    fresh_within_s: float


@final
class Freshness:
    """Finds the topics that are overdue.

    Attributes:
        breaches: How often a topic was found to have become overdue since the start; what was so at the start is counted too.
    """

    def __init__(self, broker: Broker, wall_us: Callable[[], int] = _wall_us) -> None:
        """Make one that has not looked yet; `wall_us` says microseconds since the epoch."""
        self._broker: Final = broker
        self._wall_us: Final = wall_us
        self._registry: Registry | None = None
        self._contracts: list[tuple[str, float | None]] = []
        self._number = 0  # of the contracts in force
        self._wheel: dict[int, list[Topic]] = {}  # by the end of a stretch, in stretches since the epoch
        self._ends: list[int] = []  # the same, a heap
        self._ended: list[Topic] = []  # those of a stretch that has ended, which are looked at
        self._entries = 0
        self._given_up: Final[list[list[Topic]]] = []  # entries of other contracts, until they are let go
        self._told: list[Topic] = []  # by the store, the oldest last
        self._overdue: Final[SortedList[bytes]] = SortedList()  # all that are, and some that were a moment ago
        self._again: bytes | None = None  # up to where these have been looked at again; None: all
        self._prefixes: list[bytes] = []  # of destinations that are to be walked over
        self._cursor: bytes | None = None  # within the last of these
        self._looked_at_us = 0  # by the broker's time
        self.breaches = 0
        self._logged = self._logged_fresh = 0  # lines in this minute
        self._breached = self._recovered = 0  # in this minute
        self._summary_at_s = 0.0

    @property
    def count(self) -> int:
        """How many topics are overdue."""
        return self._broker.store.overdue

    @property
    def settled(self) -> bool:
        """Whether every topic has been looked at under the contracts in force."""
        return self._registry is self._broker.registry and self._again is None and not self._prefixes

    @property
    def now_us(self) -> int:
        """The broker's time; microseconds since the epoch."""
        return max(self._wall_us(), self._broker.accepted_at_us)

    def limit_s(self, topic: Topic) -> float | None:
        """Return how old the value of a topic may be by the registry in force; None: any age."""
        at = self._broker.rule_of(topic)
        return None if at < 0 else self._broker.registry.fresh_within_s[at]

    def overdue_slice(
        self, glob: Glob, after: bytes | None, looked_max: int, matches_max: int
    ) -> tuple[list[Overdue], bytes | None]:
        """Look at the next topics that are overdue.

        Args:
            glob: Which ones are wanted.
            after: Where the slice before this one ended; None begins.
            looked_max: Ends the slice.
            matches_max: Ends it too, at least 1.

        Returns:
            Those that match, in byte order of their destinations, and where to go on; None at the end.
        """
        topics, now_us = self._broker.store.topics, self.now_us
        prefix = glob.prefix.encode()
        start = prefix if after is None or after < prefix else after
        found: list[Overdue] = []
        looked_at = 0
        for name in islice(self._overdue.irange(start, None, (start is not after, True)), looked_max):
            if not name.startswith(prefix):
                return found, None
            looked_at += 1
            after = name
            topic = topics.get(name)
            if topic is None or topic.freshness != OVERDUE or not glob.matches(topic.name):
                continue
            limit_s = self.limit_s(topic)
            age_s = (now_us - topic.change.accepted_at_us) / 1e6
            if limit_s is not None and age_s > limit_s:  # it may not have been looked at under these contracts
                found.append(Overdue(topic.change, age_s, limit_s))
                if len(found) == matches_max:
                    return found, name
        return found, after if looked_at == looked_max else None

    def degraded_reasons(self) -> list[str]:
        """Say why contracts cannot be held now."""
        behind_us = self._broker.accepted_at_us - self._wall_us()
        if behind_us < _BEHIND_US or self._broker.store.stirred is None:
            return []
        return [
            f"clock: it is {behind_us / 1e6:.0f} s behind the newest change, so it was set back; until it has caught up no topic is"
            " found overdue; see what sets it"
        ]

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            began_s = time.perf_counter()
            more = self.step(trio.current_time())
            await trio.sleep((time.perf_counter() - began_s) * _REST if more else _LOOK_S)

    def step(self, now_s: float) -> bool:
        """Do a slice of what is to do now; return whether more is.

        Args:
            now_s: Monotonic seconds, for the summary of the log.
        """
        if self._broker.registry is not self._registry:
            self._heed_registry()
        now_us = self.now_us
        if now_us < self._looked_at_us and self._overdue:
            self._again = b""  # the clock was set back, and who was too old may not be
        self._looked_at_us = now_us
        left = self._hear(SLICE_TOPICS, now_us)
        left = self._look_again(left, now_us)
        left = self._walk(left, now_us)
        left = self._turn(left, now_us)
        while left > 0 and self._given_up:
            left -= SLICE_TOPICS
            entries = self._given_up[-1]
            del entries[-_DROPPED_AT_A_TIME:]
            if not entries:
                self._given_up.pop()
        if now_s >= self._summary_at_s:
            self._summarise()
            self._summary_at_s = now_s + _SUMMARY_INTERVAL_S
        return left <= 0

    # Which contracts there are.

    def _heed_registry(self) -> None:
        registry = self._registry = self._broker.registry
        contracts = [
            (rule.glob.text, limit_s) for rule, limit_s in zip(registry.rules, registry.fresh_within_s, strict=True)
        ]
        if contracts != self._contracts:  # else they say of every topic what they said
            self._contracts = contracts
            self._begin()

    def _begin(self) -> None:
        """Look at everything anew."""
        store = self._broker.store
        self._number += 1
        self._given_up.extend(self._wheel.values())
        self._given_up.append(self._ended)
        self._wheel, self._ends, self._ended, self._entries = {}, [], [], 0
        self._again = b"" if self._overdue else None
        covered = [
            rule.glob.prefix.encode()
            for rule, (_, limit_s) in zip(self._broker.registry.rules, self._contracts, strict=True)
            if limit_s is not None
        ]
        self._cursor = None
        self._prefixes = []
        for prefix in sorted(covered):
            if not self._prefixes or not prefix.startswith(self._prefixes[-1]):
                self._prefixes.append(prefix)
        if not covered:
            self._told[:0] = reversed(store.stirred or [])
            store.stirred = None
        elif store.stirred is None:
            store.stirred = []

    # What is looked at, and when. Each looks at so many topics at most, and returns how many more may be.

    def _hear(self, left: int, now_us: int) -> int:
        """Look at topics that the store tells of; first of all, so that nothing else meets them before."""
        store = self._broker.store
        while left > 0:
            if not self._told:
                if not store.stirred:
                    break
                self._told, store.stirred = store.stirred, []
                self._told.reverse()
            topic = self._told.pop()
            left -= 1
            before_us = store.before_us.pop(topic, 0)
            if before_us:
                self._note_change(topic, before_us)
            self._look(topic, now_us)
        return left

    def _look_again(self, left: int, now_us: int) -> int:
        """Look at what is overdue by other contracts, or by another clock."""
        if self._again is not None and left > 0:
            names = list(islice(self._overdue.irange(self._again, None, (self._again == b"", True)), left))
            for name in names:
                topic = self._broker.store.topics.get(name)
                if topic is not None and topic.freshness == OVERDUE:
                    self._look(topic, now_us)
                else:  # it has changed while the store told nobody, as there was no contract any more
                    self._overdue.remove(name)
            self._again = names[-1] if len(names) == left else None
            left -= len(names)
        return left

    def _walk(self, left: int, now_us: int) -> int:
        """Look at what contracts may cover and is not known to be covered."""
        store = self._broker.store
        while left > 0 and self._prefixes:
            seen = 0
            for name in islice(store.names_after(self._prefixes[-1], self._cursor), left):
                seen += 1
                self._cursor = name
                topic = store.topics[name]
                if topic.freshness != self._number:
                    self._look(topic, now_us)
            if seen < left:
                self._prefixes.pop()
                self._cursor = None
            left -= max(seen, 1)
        return left

    def _turn(self, left: int, now_us: int) -> int:
        """Look at those whose time has ended unless they have changed."""
        if self._entries > 2 * self._broker.store.live + _DEAD_MAX:
            self._begin()  # most are of topics that are gone, and hold on to them
        while left > 0:
            if not self._ended:
                if not self._ends or self._ends[0] * STRETCH_US > now_us:
                    break
                self._ended = self._wheel.pop(heappop(self._ends))
            topic = self._ended.pop()
            left -= 1
            self._entries -= 1
            self._look(topic, now_us)
        return left

    def _look(self, topic: Topic, now_us: int) -> None:
        """See how a topic stands, which has no entry in this wheel."""
        overdue = topic.freshness == OVERDUE
        topic.freshness = UNWATCHED
        change = topic.change
        limit_s = None if change.deleted else self.limit_s(topic)
        if limit_s is not None:
            due_us = change.accepted_at_us + int(limit_s * 1e6)
            if due_us < now_us:
                topic.freshness = OVERDUE
                if not overdue:
                    self._note_overdue(change, limit_s, now_us)
                return
            topic.freshness = self._number
            end = due_us // STRETCH_US + 1
            entries = self._wheel.get(end)
            if entries is None:
                self._wheel[end] = [topic]
                heappush(self._ends, end)
            else:
                entries.append(topic)
            self._entries += 1
        if overdue:  # not any more, by other contracts or another clock
            self._broker.store.overdue -= 1
            self._overdue.remove(topic.destination)

    # What is told.

    def _note_overdue(self, change: Change, limit_s: float, now_us: int) -> None:
        self._broker.store.overdue += 1
        self._overdue.add(change.destination)
        self.breaches += 1
        self._breached += 1
        if self._logged < LINES_PER_MINUTE_MAX:
            self._logged += 1
            log_event(
                logging.WARNING,
                "topic-overdue",
                destination=change.destination,
                publisher=change.publisher.principal,
                age_s=f"{(now_us - change.accepted_at_us) / 1e6:.1f}",
                fresh_within_s=f"{limit_s:g}",
            )

    def _note_change(self, topic: Topic, before_us: int) -> None:
        """Take note that a topic which was overdue has changed."""
        self._overdue.remove(topic.destination)
        if topic.change.deleted:
            return
        self._recovered += 1
        if self._logged_fresh < LINES_PER_MINUTE_MAX:
            self._logged_fresh += 1
            log_event(
                logging.INFO,
                "topic-fresh-again",
                destination=topic.destination,
                publisher=topic.change.publisher.principal,
                gap_s=f"{(topic.change.accepted_at_us - before_us) / 1e6:.1f}",
            )

    def _summarise(self) -> None:
        """Tell what was not logged in the minute that ends."""
        silent = self._breached - self._logged + self._recovered - self._logged_fresh
        if silent:
            log_event(
                logging.WARNING,
                "freshness-summary",
                overdue=self.count,
                breaches=self._breached,
                fresh_again=self._recovered,
                not_logged=silent,
            )
        self._breached = self._recovered = self._logged = self._logged_fresh = 0
