"""Topics with values that another registry would leave without a rule, found in batches while the broker serves."""

import time
from collections.abc import Iterable
from typing import Final, final

import trio

from maxam.avro.registry import Registry
from maxam.avro.rule import Rule
from maxam.broker.broker import Broker
from maxam.broker.topic_events import APPEARED, TopicReader

COUNTED_MAX: Final = 10_000  # more than this many need not be counted: an operator knows enough
EXAMPLES_MAX: Final = 5
_BATCH_S: Final = 0.001  # that the event loop is held at a time
_TOPICS_PER_CHECK: Final = 50  # at the clock
_LATE_MAX: Final = 500  # events that may be left to the last moment
_EVENTS_PER_BATCH: Final = (
    2000  # taken from the feed after each batch: at most some milliseconds of the most that can come
)


@final
class OrphanSearch:
    """Searches topics that have a rule and a value, and would have no rule under another registry.

    Only topics under the globs that the other registry lacks can be among them. They are scanned in batches. The feed of the store reports
    topics that get their value meanwhile. Changes that are accepted and not yet applied are checked last, in the moment of the swap.

    A context manager, within which it reads the feed.

    Attributes:
        count: Found so far; at most COUNTED_MAX.
        examples: Destinations of the first few.
    """

    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker: Final = broker
        self._before: Final = broker.registry
        self._after: Final = registry
        kept = {rule.glob.text for rule in registry.rules}
        self._lost: Final[list[Rule]] = [rule for rule in broker.registry.rules if rule.glob.text not in kept]
        self._feed: TopicReader | None = None
        self.count = 0
        self.examples: Final[list[str]] = []

    def __enter__(self) -> "OrphanSearch":
        if self._lost:
            self._feed = self._broker.store.events.open(None)  # none may be missed
        return self

    def __exit__(self, *_: object) -> None:
        if self._feed is not None:
            self._broker.store.events.close(self._feed)

    async def run(self) -> None:
        """Check every topic that could be one, except the latest."""
        for rule in self._lost:
            await self._scan(rule)
        while self._late > _LATE_MAX:
            self._check_reported()
            await trio.lowlevel.checkpoint()

    def finish(self) -> None:
        """Check the latest topics. If the registry is swapped, it must be swapped before the event loop goes on."""
        if self._feed is not None:
            self._check(self._newcomers(self._late))
            self._check(dict.fromkeys(self._broker.uncommitted_values()))

    @property
    def _late(self) -> int:
        """Number of events that wait in the feed."""
        return 0 if self._feed is None else len(self._feed.events)

    def _check_reported(self) -> None:
        """Check topics that the feed reported. The events that wait hold on to their topics, deleted ones too."""
        self._check(self._newcomers(min(self._late, _EVENTS_PER_BATCH)))

    def _newcomers(self, events: int) -> list[bytes]:
        """Take a number of events from the feed. Return the destinations that have got a value."""
        if self._feed is None:
            return []
        taken = [self._feed.events.popleft() for _ in range(events)]
        return [topic.destination for topic, kind, _ in taken if kind == APPEARED]

    async def _scan(self, rule: Rule) -> None:
        store = self._broker.store
        prefix = rule.glob.prefix.encode()
        cursor: bytes | None = None
        ended = False
        while not ended and self.count < COUNTED_MAX:
            until_s = time.perf_counter() + _BATCH_S
            ended = True
            for at, name in enumerate(store.names_after(prefix, cursor), 1):
                cursor = name
                topic = store.topics[name]
                # Its first rule, or else another glob counts it, or keeps it.
                if not topic.change.deleted and rule.glob.matches(topic.name) and self._orphaned(topic.name, rule):
                    self._note(topic.name)
                if at % _TOPICS_PER_CHECK == 0 and time.perf_counter() > until_s:
                    ended = False
                    break
            self._check_reported()
            await trio.lowlevel.checkpoint()

    def _check(self, destinations: Iterable[bytes]) -> None:
        for destination in destinations:
            name = destination.decode()
            if self._before.rule_for(name) is not None and self._after.rule_for(name) is None:
                self._note(name)

    def _orphaned(self, name: str, rule: Rule) -> bool:
        return self._after.rule_for(name) is None and self._before.rule_for(name) is rule

    def _note(self, name: str) -> None:
        if self.count < COUNTED_MAX:
            self.count += 1
            if len(self.examples) < EXAMPLES_MAX:
                self.examples.append(name)
