"""Restores the broker from records after a restart, and makes the records of a snapshot.

Theory of operation. A snapshot holds one change for each topic, in order of revision, and then the durable subscriptions. Each of those
has a *low water*: it owes every matching change above it, except those that the records after it list. Records of segments follow the snapshot.
Effects of a record that the running broker has when it reads a frame, such as the end of a subscription, take place here.

A snapshot also holds the deletes that are retained, whether a subscription is owed them or not.

Invariant: a snapshot lists changes before sessions, so that a delete that comes before any session is one to keep.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, final

from maxam.broker.acknowledgements import POSITIONS_PER_RECORD
from maxam.broker.operations import OperationLog
from maxam.broker.producer_sequences import ProducerSequences
from maxam.broker.routing import NO_ROUTES, Routing
from maxam.broker.session import Subscription, Topic
from maxam.broker.session_table import SessionTable
from maxam.broker.store import Store
from maxam.broker.wills import Wills
from maxam.config import Limits
from maxam.globs import Glob, compile_glob
from maxam.records import (
    AcknowledgementRecord,
    Change,
    OwedRecord,
    Record,
    SequencesRecord,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    WillEndRecord,
    WillRecord,
)


@final
class Recovery:
    """Restores the state of one broker from records, and makes the records of a snapshot of it."""

    __slots__ = ("_destination_bytes_max", "_log", "_routing", "_sequences", "_store", "_table", "_wills")

    def __init__(
        self,
        limits: Limits,
        log: OperationLog,
        store: Store,
        sequences: ProducerSequences,
        routing: Routing,
        table: SessionTable,
        wills: Wills,
    ) -> None:
        self._wills: Final = wills
        self._destination_bytes_max: Final = limits.destination_bytes_max
        self._log: Final = log
        self._store: Final = store
        self._sequences: Final = sequences
        self._routing: Final = routing
        self._table: Final = table

    def prepare(self, change: Change) -> Change | None:
        """Restore what goes with a stored change beside its value; return the change to apply, None if that was all."""
        self._log.head_revision = change.revision
        if self._table.sessions:
            self._note_before(change)
        if change.deleted and not self._table.sessions and change.destination not in self._store.topics:
            self._log.committed_revision = change.revision  # a snapshot's tombstone: retained, or owed
            self._sequences.keep(change)
            self._store.add(change, NO_ROUTES)
            return None
        return change

    def apply(self, record: Record) -> None:
        """Apply a stored record that is no change; one that this broker has made took effect when it was appended."""
        if type(record) is SubscriptionRecord:
            self._apply_subscription(record)
        elif type(record) is UnsubscriptionRecord:
            if record.target is None:
                self._apply_unsubscription(record)
        elif type(record) is AcknowledgementRecord:
            if record.target is None:
                self._apply_acknowledgement(record)
        elif type(record) is OwedRecord:
            self._apply_owed(record)
        elif type(record) is WillRecord or type(record) is WillEndRecord:
            self._wills.apply(record)
        elif type(record) is SequencesRecord:
            self._log.head_revision = self._log.committed_revision = record.revision
            topic = self._store.topics.get(record.destination)
            self._sequences.restore(record, topic is None or topic.change.deleted)
        elif type(record) is SessionEndRecord:
            session = self._table.sessions.get((record.principal, record.client_id))
            if session is not None and record.target is None:
                self._table.end(session)

    def finish(self, now_s: float, revision: int, wills_s: float) -> None:
        """Make ready for clients after the last record: `revision` is that of the newest stored change. `wills_s` arms wills."""
        self._log.head_revision = self._log.committed_revision = revision
        self._routing.recovering = False
        self._table.backfills.run(self._store)
        self._table.restored(now_s)
        self._wills.restored(wills_s)
        self._store.sort()

    def _note_before(self, change: Change) -> None:
        """Note what the topic shows that is about to change."""
        target = change.target
        topic = target if type(target) is Topic else self._store.topics.get(change.destination)
        if topic is not None:
            self._routing.complete(topic)
            self._table.backfills.before_change(topic)

    def subscription_of(self, record: SubscriptionRecord) -> tuple[Subscription, bool]:
        """Return the subscription of a record, and whether it was there before."""
        table = self._table
        session = table.sessions.get((record.principal, record.client_id))
        if session is None:
            session = table.open(record.principal, record.client_id)
        old = session.subscriptions.get(record.subscription)
        if old is not None and old.glob.text.encode() == record.glob:
            return old, True
        if old is not None:
            table.remove(old)
        return table.add(session, record.subscription, self._stored_glob(record.glob), True), False

    def _apply_subscription(self, record: SubscriptionRecord) -> None:
        table = self._table
        subscription, _ = self.subscription_of(record)
        table.activate(subscription, False)
        if record.low_water is not None:
            table.backfills.note_low_water(subscription, record.low_water, self._log.committed_revision)
        elif record.eager:
            table.backfills.note_eager(subscription, self._log.committed_revision, record.accepted_at_us)

    def _apply_unsubscription(self, record: UnsubscriptionRecord) -> None:
        session = self._table.sessions.get((record.principal, record.client_id))
        subscription = session.subscriptions.pop(record.subscription, None) if session is not None else None
        if session is not None and subscription is not None:
            self._table.remove(subscription)
            if not session.durable and not session.attached:
                self._table.close(session)

    def _apply_acknowledgement(self, record: AcknowledgementRecord) -> None:
        subscription = self._table.find(record.principal, record.client_id, record.subscription)
        if subscription is None:
            return
        for destination, revision in record.positions:
            topic = self._store.topics.get(destination)
            if topic is not None and topic.change.revision <= revision:
                self._table.backfills.acknowledge(subscription, topic)

    def _apply_owed(self, record: OwedRecord) -> None:
        subscription = self._table.find(record.principal, record.client_id, record.subscription)
        if subscription is None:
            return
        for destination, _ in record.positions:
            topic = self._store.topics.get(destination)
            if topic is not None:
                subscription.owed.add(topic)

    def _stored_glob(self, text: bytes) -> Glob:
        # Limits may have been lowered since it was accepted; what was promised to a durable subscription stands.
        # The sample by which a glob is checked may be longer than its text: `**` stands for `a/a` at least.
        bytes_max = len(text) + self._destination_bytes_max
        return compile_glob(text.decode(), Limits(glob_wildcards_max=len(text), destination_bytes_max=bytes_max))

    # Snapshots.

    def snapshot(self) -> Iterator[Record]:
        """Yield the records of a snapshot; the broker must not change meanwhile."""
        left_out = self._left_out()
        topics = [topic for topic in self._store.topics.values() if topic not in left_out]
        topics.sort(key=_revision_of)
        records: list[Change | SequencesRecord] = [topic.change for topic in topics]
        if self._sequences:
            newest = {topic.destination: topic.change for topic in topics if not topic.change.deleted}
            records += self._sequences.records(newest, self._log.accepted_at_us)
            records.sort(key=_revision_of_record)  # the sources of a topic stay after its change
        yield from records
        by_glob: dict[Glob, list[Subscription]] = {}
        for subscription in self._table.durable_subscriptions():
            by_glob.setdefault(subscription.glob, []).append(subscription)
        for glob, subscriptions in by_glob.items():
            names = self._store.names_slice(glob.prefix.encode(), None, len(self._store.topics))
            matching = [self._store.topics[name] for name in names if glob.matches(name.decode())]
            matching = [topic for topic in matching if topic not in left_out]
            matching.sort(key=_revision_of)
            for subscription in subscriptions:
                yield from _snapshot_of(subscription, matching, self._log.accepted_at_us)
        yield from self._wills.snapshot()

    def snapshot_floor(self) -> int:
        """Return the revision above which `snapshot` holds all deletes."""
        return max([self._store.floor, *(topic.change.revision for topic in self._left_out())])

    def _left_out(self) -> set[Topic]:
        """Return the deleted topics that a snapshot leaves out: they are not retained, and no durable subscription is owed them."""
        needed: set[Topic] = set()
        for subscription in self._table.durable_subscriptions():
            needed |= subscription.owed & self._store.tombstones.keys()
        return self._store.tombstones.keys() - needed


def _snapshot_of(subscription: Subscription, matching: list[Topic], accepted_at_us: int) -> Iterator[Record]:
    """Yield the records of a subscription; `matching` are the topics of the snapshot that it wants, by revision."""
    owed = subscription.owed
    places = sorted([bisect_left(matching, topic.change.revision, key=_revision_of) for topic in owed])
    # The low water that leaves the fewest exceptions: owed ones below it and settled ones above it. It is right below one
    # of the owed, or above all.
    split = len(matching)
    fewest = len(places)
    for below, place in enumerate(places):
        exceptions = below + (len(matching) - place) - (len(places) - below)
        if exceptions < fewest or (exceptions == fewest and place < split):
            fewest, split = exceptions, place
    low_water = matching[split - 1].change.revision if split else 0
    session = subscription.session
    names = (session.principal, session.client_id, subscription.id)
    yield SubscriptionRecord(accepted_at_us, *names, subscription.glob.text.encode(), eager=False, low_water=low_water)
    settled = [(t.destination, t.change.revision) for t in matching[split:] if t not in owed]
    again = [(t.destination, t.change.revision) for t in matching[:split] if t in owed]
    for start in range(0, len(settled), POSITIONS_PER_RECORD):
        yield AcknowledgementRecord(accepted_at_us, *names, tuple(settled[start : start + POSITIONS_PER_RECORD]))
    for start in range(0, len(again), POSITIONS_PER_RECORD):
        yield OwedRecord(accepted_at_us, *names, tuple(again[start : start + POSITIONS_PER_RECORD]))


def _revision_of(topic: Topic) -> int:
    return topic.change.revision


def _revision_of_record(record: Change | SequencesRecord) -> int:
    return record.revision
