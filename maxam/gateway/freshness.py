"""Topics that are older than their rule allows, checked for every topic that it covers. A topic is *overdue* after `fresh_within_s` of
the rule in the schema registry, and is deleted after `expire_after_s`.

Theory of operation. A topic under a contract has one entry in a wheel. The wheel has a list for each stretch of time, of the topics
whose deadline is within it. At the end of a stretch its topics are checked. A topic that has changed moves to its new deadline; one
that has not is *overdue*, and has no entry until it changes. So an update costs nothing, and a topic is checked about once in
`fresh_within_s`. That it is overdue is a mark on the topic. The store removes the mark with the change that ends it, so listings and
counts are always current. The store also reports topics that got a value and had none.

A topic that expires has its entry at the earlier of its two deadlines. An overdue one has a *late* entry at the second deadline. If it
changes, it gets another entry, and the late one is dropped at its time. `broker/expiry.py` decides whether a topic is deleted. The
topic is checked again soon after, in case that the disk had no room for the delete. No topic is deleted while `may_expire` is False.

Another registry brings other contracts. Then overdue topics are checked again, and the wheel is dropped. The topics that the new
contracts may cover are scanned in batches. `settled` is false meanwhile, as it is after a start. A topic remembers the number of the
contracts under which it got its entry, and so never has two. If topics come and go faster than their events are read, some events
are lost. Then the same scan follows, and the wheel stays.

A topic whose link to another gateway is down (`bridge_links`) is *unknown*, and not overdue. If its deadline passes meanwhile, it has no entry
until the link is up.

Time is the broker's: the wall clock, but never before the newest change. When the clock goes back, overdue topics are checked again.
While a clock that was set back has not reached the newest change, no topic grows older, and operators are warned. A clock that is
set forward makes all topics older at once, until they change.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Final, final

from sortedcontainers import SortedList

from maxam.avro.registry import Registry
from maxam.broker.broker import Broker
from maxam.broker.session import OVERDUE, UNWATCHED, Topic
from maxam.broker.topic_events import EVENTS_MAX, GONE, UPDATED, TopicReader
from maxam.gateway.batches import run_batches
from maxam.gateway.log import log_event
from maxam.globs import Glob
from maxam.records import Change

STRETCH_US: Final = 250_000  # of the wheel: an idle gateway finds an overdue topic half a second late at most
BATCH_TOPICS: Final = 200  # checked before the event loop runs other tasks: less than 1 ms
LINES_PER_MINUTE_MAX: Final = 20  # of each of the two events; the rest is counted
_IDLE_S: Final = 0.25
_DROPPED_AT_A_TIME: Final = 2500  # entries that are dropped at once, which takes as long as a batch of checks
_DEAD_MAX: Final = 10_000  # entries of topics that are gone, beyond as many as there are topics
_SUMMARY_INTERVAL_S: Final = 60.0
_AGAIN_US: Final = 1_000_000  # after a delete of an expired topic was appended, or had to wait
EXPIRING_MAX: Final = 2000  # operations that are not on disk: no topic is deleted while there are more


def _wall_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Overdue:
    """An overdue topic, and its newest value.

    Attributes:
        change: That value.
        age_s: Since it was accepted.
        fresh_within_s: Age that its rule allows.
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

    def __init__(
        self,
        broker: Broker,
        wall_us: Callable[[], int] = _wall_us,
        schedule_commit: Callable[[], None] = lambda: None,
        may_expire: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make one that has not checked anything yet.

        Args:
            broker: The broker.
            wall_us: Returns microseconds since the epoch.
            schedule_commit: Called after deletes were appended.
            may_expire: Returns False while deletes would be refused, as on a full disk.
        """
        self._broker: Final = broker
        self._wall_us: Final = wall_us
        self._schedule_commit: Final = schedule_commit
        self._may_expire: Final = may_expire
        self._registry: Registry | None = None
        self._contracts: list[tuple[str, float | None, float | None]] = []
        self._number = 0  # of the contracts in force
        self._wheel: dict[int, list[Topic]] = {}  # by the end of a stretch, in stretches since the epoch
        self._ends: list[int] = []  # the same, a heap
        self._ended: list[Topic] = []  # those of a stretch that has ended, which are checked
        self._entries = 0  # without the late ones
        self._late: dict[Topic, int] = {}  # the late entries, with the end of their stretch
        self._stretch = 0  # the end of that of `_ended`
        self._discarded: Final[list[list[Topic]]] = []  # entries of other contracts, until they are let go
        self._feed: TopicReader | None = None  # while there are contracts
        self._heard = 0  # events of it that were taken
        self._lost = False  # events of it: a scan is due
        self._overdue: Final[SortedList[bytes]] = SortedList()  # all that are, and some that were a moment ago
        self._again: bytes | None = None  # the last one checked again, None for all
        self._covered: list[bytes] = []  # prefixes of destinations that contracts may cover
        self._prefixes: list[bytes] = []  # those that are to be scanned
        self._cursor: bytes | None = None  # within the last of these
        self._checked_at_us = 0  # by the broker's time
        self.breaches = 0
        self._logged = self._logged_fresh = 0  # lines in this minute
        self._breached = self._recovered = self._expired = 0  # in this minute
        self._expiring = False  # a delete was appended in this batch
        self._summary_at_s = 0.0

    @property
    def count(self) -> int:
        """How many topics are overdue."""
        return self._broker.store.overdue

    @property
    def settled(self) -> bool:
        """True if every topic has been checked under the contracts in force."""
        return self._registry is self._broker.registry and not self._scanning and not self._lost

    @property
    def _scanning(self) -> bool:
        return self._again is not None or len(self._prefixes) > 0

    @property
    def now_us(self) -> int:
        """The broker's time; microseconds since the epoch."""
        return max(self._wall_us(), self._broker.accepted_at_us)

    def limit_s(self, topic: Topic) -> float | None:
        """Return how old the value of a topic may be by the registry in force. None allows any age."""
        at = self._broker.rule_of(topic)
        return None if at < 0 else self._broker.registry.fresh_within_s[at]

    def recheck(self, topic: Topic) -> None:
        """Check a topic whose link went down, which ends that it is overdue, or came up again."""
        if self._feed is not None and topic.freshness <= UNWATCHED:
            self._check(topic, self.now_us)

    def overdue_batch(
        self, glob: Glob, after: bytes | None, looked_max: int, matches_max: int
    ) -> tuple[list[Overdue], bytes | None]:
        """Return the next topics that are overdue.

        Args:
            glob: Pattern of the wanted ones.
            after: Place where the batch before this one ended. None begins.
            looked_max: Number of topics after which the batch ends.
            matches_max: Number of matches after which it ends too, at least 1.

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
            if limit_s is not None and age_s > limit_s:  # it may not have been checked under these contracts
                found.append(Overdue(topic.change, age_s, limit_s))
                if len(found) == matches_max:
                    return found, name
        return found, after if looked_at == looked_max else None

    async def run(self) -> None:
        """Check until cancelled."""
        await run_batches(self.step, _IDLE_S)

    def step(self, now_s: float) -> bool:
        """Process one batch of the work that is due. Return True if more is due.

        Args:
            now_s: Monotonic seconds, for the summary of the log.
        """
        if self._broker.registry is not self._registry:
            self._update_contracts()
        now_us = self.now_us
        if now_us < self._checked_at_us and self._overdue:
            self._again = b""  # the clock was set back, and who was too old may not be
        self._checked_at_us = now_us
        # Half of a batch at most: topics that come and go must not keep the others from being checked.
        reported_max = (BATCH_TOPICS + 1) // 2
        left = BATCH_TOPICS - reported_max + self._check_reported(reported_max, now_us)
        if self._lost and not self._scanning:
            self._lost = False
            self._scan_all()
        left = self._check_due(left, now_us)
        left = self._check_again(left, now_us)
        left = self._scan(left, now_us)
        if self._expiring:
            self._expiring = False
            self._schedule_commit()
        while left > 0 and self._discarded:
            left -= BATCH_TOPICS
            entries = self._discarded[-1]
            del entries[-_DROPPED_AT_A_TIME:]
            if not entries:
                self._discarded.pop()
        if now_s >= self._summary_at_s:
            self._summarise()
            self._summary_at_s = now_s + _SUMMARY_INTERVAL_S
        return left <= 0 or self._lost or (self._feed is not None and len(self._feed.events) > 0)

    # Which contracts there are.

    def _update_contracts(self) -> None:
        registry = self._registry = self._broker.registry
        contracts = [
            (rule.glob.text, fresh_s, expire_s)
            for rule, fresh_s, expire_s in zip(
                registry.rules, registry.fresh_within_s, registry.expire_after_s, strict=True
            )
        ]
        if contracts != self._contracts:  # else no topic has another contract than before
            self._contracts = contracts
            self._begin()

    def _begin(self) -> None:
        """Start to check everything again."""
        store = self._broker.store
        self._number += 1
        self._discarded.extend(self._wheel.values())
        self._discarded.append(self._ended)
        self._wheel, self._ends, self._ended, self._entries, self._late = {}, [], [], 0, {}
        covered = [
            rule.glob.prefix.encode()
            for rule, (_, fresh_s, expire_s) in zip(self._broker.registry.rules, self._contracts, strict=True)
            if fresh_s is not None or expire_s is not None
        ]
        self._covered = []
        for prefix in sorted(covered):
            if not self._covered or not prefix.startswith(self._covered[-1]):
                self._covered.append(prefix)
        self._scan_all()
        if covered and self._feed is None:
            self._feed = store.events.open(EVENTS_MAX)
            self._heard = 0
        elif not covered and self._feed is not None:
            store.events.close(self._feed)
            for topic, kind, overdue_us in self._feed.events:
                if kind == UPDATED:
                    self._note_change(topic, overdue_us)
            self._feed = None

    def _scan_all(self) -> None:
        """Start to check the overdue topics, and those without an entry that contracts may cover."""
        self._again = b"" if self._overdue else None
        self._cursor = None
        self._prefixes = self._covered.copy()

    # The checks and their times. Each checks at most the given number of topics, and returns how many are left.

    def _check_reported(self, left: int, now_us: int) -> int:
        """Check topics that the feed reported."""
        feed = self._feed
        if feed is None:
            return left
        if feed.end - self._heard > len(feed.events):  # some were lost
            self._heard = feed.end - len(feed.events)
            self._lost = True
        while left > 0 and feed.events:
            topic, kind, overdue_us = feed.events.popleft()
            self._heard += 1
            left -= 1
            if kind == UPDATED:
                self._note_change(topic, overdue_us)
            if kind != GONE and topic.freshness == UNWATCHED:
                self._check(topic, now_us)
        return left

    def _check_again(self, left: int, now_us: int) -> int:
        """Check topics that are overdue by other contracts, or by another clock."""
        if self._again is not None and left > 0:
            names = list(islice(self._overdue.irange(self._again, None, (self._again == b"", True)), left))
            for name in names:
                topic = self._broker.store.topics.get(name)
                if topic is not None and topic.freshness == OVERDUE:
                    self._check(topic, now_us)
                else:  # it has changed unreported, while no contract covered it
                    self._overdue.remove(name)
            self._again = names[-1] if len(names) == left else None
            left -= len(names)
        return left

    def _scan(self, left: int, now_us: int) -> int:
        """Check topics that contracts may cover and that are not known to be covered."""
        store = self._broker.store
        while left > 0 and self._prefixes:
            seen = 0
            for name in islice(store.names_after(self._prefixes[-1], self._cursor), left):
                seen += 1
                self._cursor = name
                topic = store.topics[name]
                if topic.freshness != self._number:
                    self._check(topic, now_us)
            if seen < left:
                self._prefixes.pop()
                self._cursor = None
            left -= max(seen, 1)
        return left

    def _check_due(self, left: int, now_us: int) -> int:
        """Check topics whose deadline has passed unless they have changed."""
        if max(self._entries, len(self._late)) > 2 * self._broker.store.live + _DEAD_MAX:
            self._begin()  # most are of topics that are gone, and hold on to them
        while left > 0:
            if not self._ended:
                if not self._ends or self._ends[0] * STRETCH_US > now_us:
                    break
                self._stretch = heappop(self._ends)
                self._ended = self._wheel.pop(self._stretch)
            topic = self._ended.pop()
            left -= 1
            if self._late and self._late.get(topic) == self._stretch:
                del self._late[topic]
                if topic.freshness == self._number:
                    continue  # it has changed, and has an entry of its own
            else:
                self._entries -= 1
            self._check(topic, now_us)
        return left

    def _check(self, topic: Topic, now_us: int) -> None:
        """See how a topic stands, which has no entry in this wheel."""
        overdue = topic.freshness == OVERDUE
        topic.freshness = UNWATCHED
        change = topic.change
        limit_s = None if change.deleted else self.limit_s(topic)
        due_us = -1 if limit_s is None else change.accepted_at_us + int(limit_s * 1e6)
        expire_us = self._broker.expiry.due_us(topic)
        if 0 <= expire_us < now_us:
            self._expire(topic, now_us)
            expire_us = now_us + _AGAIN_US
        if limit_s is not None and due_us < now_us:
            if expire_us >= 0 and topic not in self._late:
                self._late[topic] = self._enter(topic, expire_us)
            if self._broker.notices.unknown.link_of(topic.destination, topic.change.publisher.principal):
                if overdue:
                    self._excuse(topic)
                return  # without an entry: `recheck` is called when the link is up
            topic.freshness = OVERDUE
            if not overdue:
                self._note_overdue(change, limit_s, now_us)
                self._broker.notices.overdue(topic)
            return
        if due_us < 0 or 0 <= expire_us < due_us:
            due_us = expire_us
        if due_us >= 0:
            topic.freshness = self._number
            self._entries += 1
            self._enter(topic, due_us)
        if overdue:  # no longer, by other contracts or another clock
            self._excuse(topic)

    def _excuse(self, topic: Topic) -> None:
        """Record that a topic is no longer overdue, though it has not changed."""
        self._broker.store.overdue -= 1
        self._overdue.discard(topic.destination)

    def _enter(self, topic: Topic, due_us: int) -> int:
        """Enter a topic into the wheel; return the end of the stretch."""
        end = due_us // STRETCH_US + 1
        entries = self._wheel.get(end)
        if entries is None:
            self._wheel[end] = [topic]
            heappush(self._ends, end)
        else:
            entries.append(topic)
        return end

    def _expire(self, topic: Topic, now_us: int) -> None:
        """Delete a topic that has expired, unless that must wait."""
        broker = self._broker
        if broker.appended_seq - broker.applied_seq >= EXPIRING_MAX or not self._may_expire():
            return
        if broker.expiry.expire(topic, now_us):
            self._expiring = True
            self._expired += 1

    # Reports.

    def _note_overdue(self, change: Change, limit_s: float, now_us: int) -> None:
        self._broker.store.overdue += 1
        if change.destination not in self._overdue:  # it is still there if its event is lost, or not read yet
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
        """Record that a topic which was overdue has changed."""
        if topic.freshness != OVERDUE:  # else it was found to be so again, before its event was read
            self._overdue.discard(topic.destination)
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
        """Log the number of events that were not logged in the minute that ends."""
        if self._expired:
            log_event(logging.INFO, "topics-expired", topics=self._expired)
            self._expired = 0
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
