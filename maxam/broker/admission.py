"""Whether a SEND may take effect: its destination, the right to it, its body, and room for one topic more.

A topic remembers which rule is for it and which rights were found to allow SENDs to it. So a SEND to a known topic costs two comparisons.
Both are kept as numbers, as an idle topic must not keep an old registry or old rights alive.
"""

from collections.abc import Callable
from typing import Final, final

from maxam.avro.registry import Registry
from maxam.avro.rule import Rule
from maxam.broker.operations import OperationLog
from maxam.broker.policy import Rights
from maxam.broker.producer_sequences import ProducerSequences
from maxam.broker.session import Topic
from maxam.broker.store import TOMBSTONE_SWEEP_MIN, Store
from maxam.config import Limits
from maxam.globs import destination_problem
from maxam.records import UNJUDGED, Identity, Rejection, Validation
from maxam.stomp.events import Send

OnShadowed = Callable[
    [Identity, Send, Rule, Validation | Rejection, int], None
]  # sender, SEND, its rule, the rule's verdict, microseconds since the epoch
UNAUTHORISED: Final = Rejection("unauthorised", "the principal has no right to send to this destination")
_SWEEP_INTERVAL_S: Final = 1.0  # between two sweeps of deleted topics that are made because topics_max is reached


@final
class Admission:
    """Judges SENDs by the registry and by `topics_max`.

    Attributes:
        registry: The registry in force; `replace_registry` sets another one.
        on_shadowed: Called for every SEND with a body that was judged by a rule with a candidate version; it must not call back.
    """

    __slots__ = (
        "_destination_bytes_max",
        "_log",
        "_registries",
        "_sequences",
        "_store",
        "_sweep_at_s",
        "_sweep_wanted",
        "_topics_max",
        "on_shadowed",
        "registry",
    )

    def __init__(
        self, limits: Limits, registry: Registry, store: Store, sequences: ProducerSequences, log: OperationLog
    ) -> None:
        self.registry = registry
        self.on_shadowed: OnShadowed | None = None
        self._topics_max: Final = limits.topics_max
        self._destination_bytes_max: Final = limits.destination_bytes_max
        self._store: Final = store
        self._sequences: Final = sequences
        self._log: Final = log
        self._registries = 1  # number of the registry in force
        self._sweep_wanted = False  # topics_max is reached, and deleted topics count
        self._sweep_at_s = 0.0  # not before, for that reason

    def validate(
        self, identity: Identity, rights: Rights, event: Send, topic: Topic | None, wall_us: int
    ) -> Validation | Rejection:
        """Decide in this order: is the destination well-formed, may the principal send there, is the body valid."""
        destination = event.destination
        if topic is None or topic.permitted != rights.number:
            refused = self.validate_head(rights, destination, topic)
            if refused is not None:
                return refused
            if topic is not None:
                topic.permitted = rights.number
        if topic is not None and topic.registry == self._registries:
            rule = self.registry.rules[topic.rule] if topic.rule >= 0 else None
        elif topic is not None:
            at = self.rule_of(topic)
            rule = self.registry.rules[at] if at >= 0 else None
            if topic.change.deleted:
                topic.registry = 0  # each SEND comes here until it has a value again
                if event.body and self.full():
                    return self.no_room()
        else:
            rule = self.registry.rule_for(destination.decode())
            if event.body and self.full():
                return self.no_room()
        if not event.body:
            return UNJUDGED if rule is None else rule.deletion
        if rule is None:
            return Rejection("no-rule", "no rule of the schema registry covers this destination")
        verdict = rule.validate(destination, event.versions, event.body)
        if type(verdict) is Rejection and event.condition is not None and event.condition.provenance:
            verdict = rule.validate_forwarded(destination, event.versions, event.body)
        if rule.shadow is not None and self.on_shadowed is not None:
            self.on_shadowed(identity, event, rule, verdict, wall_us)
        return verdict

    def validate_head(self, rights: Rights, destination: bytes, topic: Topic | None) -> Rejection | None:
        """Decide from the destination alone: is it well-formed, and do these rights include it."""
        permitted = rights.may_send(destination)
        if (
            topic is None or not permitted
        ):  # also of a topic that exists: an unauthorised client must not learn by time which do
            problem = destination_problem(destination, self._destination_bytes_max)
            if problem is not None:
                return Rejection("invalid-destination", problem)
        return None if permitted else UNAUTHORISED

    def full(self) -> bool:
        """Return True if the broker may not hold one topic more."""
        if self.held() < self._topics_max:
            return False
        self._sequences.forget(self._log.accepted_at_us)
        if self.held() < self._topics_max:
            return False
        self._sweep_wanted = True
        return True

    def held(self) -> int:
        """Count topics with a value, and deleted ones that are kept: for their marks, or because a subscription is owed the delete.

        As many deleted ones as may wait for the next sweep in any case do not count.
        """
        store = self._store
        return store.live + self._sequences.absent + max(0, len(store.tombstones) - TOMBSTONE_SWEEP_MIN)

    def no_room(self) -> Rejection:
        """Return why a SEND is rejected that would need one topic more."""
        live = self._store.live
        return Rejection(
            "memory-low",
            f"the broker holds {live} topics with a value and {self.held() - live} deleted ones that are still needed "
            f"(limit topics_max {self._topics_max}). Delete topics, or have subscribers read what they are owed",
        )

    def sweep_if_full(self, now_s: float) -> None:
        """Have deleted topics swept if a SEND was rejected for want of room, once in _SWEEP_INTERVAL_S."""
        if self._sweep_wanted and now_s >= self._sweep_at_s:
            self._sweep_wanted = False
            self._sweep_at_s = now_s + _SWEEP_INTERVAL_S
            self._store.sweep_soon()

    def rule_of(self, topic: Topic) -> int:
        """Return which of the registry's rules is for a topic, -1 if none is; the topic remembers it."""
        if topic.registry != self._registries:
            rule = self.registry.rule_for(topic.name)
            topic.rule = -1 if rule is None else self.registry.rules.index(rule)
            topic.registry = self._registries
        return topic.rule

    def replace_registry(self, registry: Registry) -> None:
        """Judge every SEND from now on by another registry."""
        self.registry = registry
        self._registries += 1
