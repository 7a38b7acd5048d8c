"""Topics that durable subscriptions still have to owe after recovery: noted per record, found by one scan for each distinct glob.

Theory of operation. An eager SUBSCRIBE owes every value that a topic holds at that moment, and a snapshot's SUBSCRIBE every change
above its low water. A scan of all topics for each such record would cost records times topics. Recovery therefore notes the revision
only, and `run` scans once at the end, for the subscriptions that are left.

A topic that has not changed since the record still shows what the record owes. Before a topic changes, `before_change` moves what
it owes into the subscription, so that routing sees the same state as in the running broker. An acknowledgement is noted as the number
of records before it: only later ones owe the topic again.

Recovery also notes since when a subscription lacks a topic that changes while it is owed. The newest change of the topic does not show that.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from maxam.broker.policy import Rights
from maxam.broker.session import NOT_OWED, Subscription, Topic, earlier
from maxam.broker.store import Store
from maxam.globs import Glob

_LACKED_MAX: Final = (
    1000  # topics of one subscription with a time of their own; the others share the earliest of theirs
)


@final
class _Backfill:
    """The records of one subscription, as far as they owe it topics that have not changed since.

    Attributes:
        low_water: Changes above it are owed by the first record; -1 if that is not of a snapshot.
        revisions: The newest change at each record, rising.
        times_us: When each record was accepted; 0 for one of a snapshot, where the time of the change counts.
        acknowledged: For each topic that was acknowledged: how many of the records came before.
    """

    __slots__ = ("acknowledged", "low_water", "revisions", "times_us")

    def __init__(self, low_water: int) -> None:
        self.low_water: Final = low_water
        self.revisions: Final[list[int]] = []
        self.times_us: Final[list[int]] = []
        self.acknowledged: Final[dict[Topic, int]] = {}

    @property
    def eager(self) -> bool:
        """Whether one of the records is an eager SUBSCRIBE's."""
        return len(self.revisions) > 1 or self.low_water < 0

    def since_us(self, topic: Topic) -> int:
        """Return since when the topic's change is owed, 0 for since it was accepted, NOT_OWED if no record owes it."""
        change = topic.change
        at = max(self.acknowledged.get(topic, 0), bisect_left(self.revisions, change.revision))
        if at == 0 and self.low_water >= 0:
            if change.revision > self.low_water:
                return 0
            at = 1
        if change.deleted or at >= len(self.times_us):
            return NOT_OWED
        return self.times_us[at]

    def owe_changes(self, subscription: Subscription, matching: list[Topic]) -> None:
        """Make the subscription owe the changes above the low water; `matching` are the topics that its glob matches, by revision."""
        if self.low_water >= 0:
            for topic in reversed(matching):
                if topic.change.revision <= self.low_water:
                    break
                if self.since_us(topic) == 0:
                    subscription.owed.add(topic)

    def owe_values(self, subscription: Subscription, receivable: list[Topic]) -> int:
        """Make the subscription owe the values that eager SUBSCRIBEs have asked for.

        Args:
            subscription: Whose records these are.
            receivable: Topics that its glob matches, that hold a value and that its principal may receive, by revision.

        Returns:
            When the first of these SUBSCRIBEs was accepted; 0 if nothing was found.
        """
        oldest_us = 0
        newest = self.revisions[-1]
        if self.eager:
            for topic in receivable:
                if topic.change.revision > newest:
                    break
                since_us = self.since_us(topic)
                if since_us != NOT_OWED and topic not in subscription.owed:
                    subscription.owed.add(topic)
                    oldest_us = earlier(oldest_us, since_us)
        return oldest_us


@final
class _Lacked:
    """Since when one subscription lacks topics that were owed before their newest change.

    Attributes:
        since_us: By topic, _LACKED_MAX at most.
        rest_us: The earliest time of the others; 0 if there are none.
    """

    __slots__ = ("rest_us", "since_us")

    def __init__(self) -> None:
        self.since_us: Final[dict[Topic, int]] = {}
        self.rest_us = 0

    def note(self, topic: Topic, since_us: int) -> None:
        """Note since when a topic is lacked, unless that is known."""
        if topic in self.since_us:
            return
        if len(self.since_us) < _LACKED_MAX:
            self.since_us[topic] = since_us
        else:
            self.rest_us = earlier(self.rest_us, since_us)


@final
class Backfills:
    """The subscriptions for which recovery has noted such records.

    Attributes:
        topics_scanned: Topics that `run` has visited so far.
    """

    __slots__ = ("_lacked", "_pending", "_since_us", "topics_scanned")

    def __init__(self) -> None:
        self._lacked: Final[dict[Subscription, _Lacked]] = {}
        self._since_us: Final[
            dict[Subscription, int]
        ] = {}  # since when all that a subscription owes is lacked, found by `run`
        self._pending: Final[dict[Subscription, _Backfill]] = {}
        self.topics_scanned = 0

    def __len__(self) -> int:
        """Count the subscriptions."""
        return len(self._pending)

    def note_eager(self, subscription: Subscription, revision: int, accepted_at_us: int) -> None:
        """Note that an eager SUBSCRIBE, accepted at that time, owes what all topics held at a revision."""
        backfill = self._pending.get(subscription)
        if backfill is None:
            backfill = self._pending[subscription] = _Backfill(-1)
        backfill.revisions.append(revision)
        backfill.times_us.append(accepted_at_us)

    def note_low_water(self, subscription: Subscription, low_water: int, revision: int) -> None:
        """Note that a snapshot, made at a revision, owes a subscription of its own all changes above `low_water`."""
        backfill = self._pending[subscription] = _Backfill(low_water)
        backfill.revisions.append(revision)
        backfill.times_us.append(0)

    def acknowledge(self, subscription: Subscription, topic: Topic) -> None:
        """Note that the topic's change was acknowledged: records until now no longer owe it."""
        subscription.owed.discard(topic)
        backfill = self._pending.get(subscription)
        if backfill is not None:
            backfill.acknowledged[topic] = len(backfill.times_us)
        lacked = self._lacked.get(subscription)
        if lacked is not None:
            lacked.since_us.pop(topic, None)
            if not subscription.owed:
                lacked.rest_us = 0

    def before_change(self, topic: Topic) -> None:
        """Make the subscriptions that a topic routes to owe it by their records, and note since when they lack it."""
        for subscription in topic.routes:
            backfill = self._pending.get(subscription)
            since_us = NOT_OWED if backfill is None or topic in subscription.owed else backfill.since_us(topic)
            if since_us != NOT_OWED:
                subscription.owed.add(topic)
            if topic in subscription.owed:
                lacked = self._lacked.get(subscription)
                if lacked is None:
                    lacked = self._lacked[subscription] = _Lacked()
                lacked.note(topic, since_us if since_us > 0 else topic.change.accepted_at_us)

    def drop(self, subscription: Subscription) -> None:
        """Forget a subscription that is gone."""
        self._pending.pop(subscription, None)
        self._lacked.pop(subscription, None)

    def restore(self, subscription: Subscription) -> None:
        """Make ready what a subscription owes at the end of recovery."""
        since_us = self._since_us.pop(subscription, 0)
        subscription.restore(since_us or self._owed_since_us(subscription))
        self._lacked.pop(subscription, None)

    def run(self, store: Store, progress: Callable[[], None] | None = None) -> None:
        """Make all subscriptions owe topics by their records, with one scan for each distinct glob.

        Args:
            store: The topics.
            progress: Called before each scan.
        """
        by_glob: dict[Glob, list[Subscription]] = {}
        for subscription in self._pending:
            by_glob.setdefault(subscription.glob, []).append(subscription)
        for glob, subscriptions in by_glob.items():
            if progress is not None:
                progress()
            matching = self._matching(store, glob)
            if not matching:
                continue
            receivable: dict[Rights, list[Topic]] = {}
            for subscription in subscriptions:
                rights = subscription.session.rights
                if self._pending[subscription].eager and rights not in receivable:
                    receivable[rights] = [
                        t for t in matching if not t.change.deleted and rights.may_receive(t.destination)
                    ]
                backfill = self._pending[subscription]
                backfill.owe_changes(subscription, matching)
                since_us = self._owed_since_us(subscription)
                values_us = backfill.owe_values(subscription, receivable.get(rights, []))
                self._since_us[subscription] = earlier(since_us, values_us)
        self._pending.clear()

    def _owed_since_us(self, subscription: Subscription) -> int:
        """Return since when a subscription lacks what it owes, 0 if it owes nothing. Values that old SUBSCRIBEs asked for come later."""
        lacked = self._lacked.get(subscription)
        oldest_us = 0 if lacked is None else lacked.rest_us
        for topic in subscription.owed:
            since_us = topic.change.accepted_at_us
            if lacked is not None:
                since_us = lacked.since_us.get(topic, since_us)
            oldest_us = earlier(oldest_us, since_us)
        return oldest_us

    def _matching(self, store: Store, glob: Glob) -> list[Topic]:
        names = store.names_slice(glob.prefix.encode(), None, len(store.topics))
        self.topics_scanned += len(names)
        matching = [store.topics[name] for name in names if glob.matches(name.decode())]
        matching.sort(key=_revision_of)
        return matching


def _revision_of(topic: Topic) -> int:
    return topic.change.revision
