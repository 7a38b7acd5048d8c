"""Which topics with values another registry would leave without a rule: found in slices while the broker serves."""

import time
from collections.abc import Iterable
from typing import Final, final

import trio

from maxam.avro.registry import Registry
from maxam.avro.rule import Rule
from maxam.broker.broker import Broker

COUNTED_MAX: Final = 10_000  # that a reload takes the rule from so many is all that an operator must know
EXAMPLES_MAX: Final = 5
_SLICE_S: Final = 0.001  # that the event loop is held at a time
_TOPICS_PER_LOOK: Final = 50  # at the clock
_LATE_MAX: Final = 500  # newcomers that may be left to the last moment


@final
class OrphanSearch:
    """Looks for topics that have a rule and a value, and would have no rule under another registry.

    Only topics under the globs that the other registry lacks can be among them. They are walked over in slices; what gets its value
    meanwhile is told by the store, and what is accepted and not yet applied is looked at last, in the moment of the swap.

    A context manager: the store tells of newcomers only within. One at a time.

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
        self.count = 0
        self.examples: Final[list[str]] = []

    def __enter__(self) -> "OrphanSearch":
        if self._lost:
            self._broker.store.newcomers = []
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.store.newcomers = None

    async def run(self) -> None:
        """Look at every topic that could be one, but for the latest."""
        for rule in self._lost:
            await self._walk(rule)
        while len(self._newcomers()) > _LATE_MAX:
            newcomers = self._newcomers()
            self._broker.store.newcomers = []
            for at in range(0, len(newcomers), _LATE_MAX):
                self._look(newcomers[at : at + _LATE_MAX])
                await trio.lowlevel.checkpoint()

    def finish(self) -> None:
        """Look at the latest; the registry must be swapped, if it is, before the event loop goes on."""
        if self._lost:
            self._look(self._newcomers())
            self._look(dict.fromkeys(self._broker.coming_values()))

    def _newcomers(self) -> list[bytes]:
        return self._broker.store.newcomers or []

    async def _walk(self, rule: Rule) -> None:
        store = self._broker.store
        prefix = rule.glob.prefix.encode()
        cursor: bytes | None = None
        ended = False
        while not ended and self.count < COUNTED_MAX:
            until_s = time.perf_counter() + _SLICE_S
            ended = True
            for at, name in enumerate(store.names_after(prefix, cursor), 1):
                cursor = name
                topic = store.topics[name]
                # Its first rule, or else another glob counts it, or keeps it.
                if not topic.change.deleted and rule.glob.matches(topic.name) and self._orphaned(topic.name, rule):
                    self._note(topic.name)
                if at % _TOPICS_PER_LOOK == 0 and time.perf_counter() > until_s:
                    ended = False
                    break
            await trio.lowlevel.checkpoint()

    def _look(self, destinations: Iterable[bytes]) -> None:
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
