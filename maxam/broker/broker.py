"""The broker: requests of clients, from the frame that was read to the operation that is done.

Theory of operation. A frame is *admitted*, a pure decision by rights, destination and schema. When it changes something, it is *appended*:
it gets its place in the one order of operations and, for a change, its revision. `take_batch` hands what was appended to
the journal as one batch. `apply_batch` has each operation of it *applied* once it is safe on disk. Nothing but `apply` alters
topics. `replay` and `follow` call it for each change that recovery or a replica reads, and give all other records to `recovery` and `following`.

A SUBSCRIBE that is not durable changes nothing on disk. It takes its place in the same order, as a `TransientSubscribe` that the journal
never sees. It takes effect between the changes before and after it, so an eager subscription neither misses a racing SEND nor sees it twice. An
UNSUBSCRIBE acts on delivery when it is read.

A SEND with a *condition* is compared, when it is admitted, with the newest change in that order, committed or not (`conditions`). If what
decided is not committed yet, its RECEIPT waits for that, and shares its fate.

Each part of the broker owns its state and does not know the broker. `operations` keeps the order. `connecting` takes CONNECTs, `publishing`
SENDs, `subscribing` SUBSCRIBEs and UNSUBSCRIBEs. `routing` finds the subscriptions of a change. `scans` finds current values for eager
subscriptions and new rights. `session_table` has the sessions and the lives of subscriptions. `upkeep` ends sessions and frees memory as
time passes. `recovery` replays records and makes snapshots. `rollback` undoes what the disk had no room for.

Invariants:
* revisions of applied changes are gapless and only grow, and no change above `committed_revision`, the newest applied, is visible;
* every operation is applied, or refused as a whole batch, in the order in which it was appended;
* no method awaits, reads a clock, or raises anything but ProtocolError for what a client did.
"""

from collections.abc import Callable, Iterator
from typing import Final, final

from sortedcontainers import SortedDict

from maxam.avro.registry import Registry
from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.admission import Admission, OnShadowed
from maxam.broker.backfill import Backfills
from maxam.broker.conditions import Conditions
from maxam.broker.connecting import Connecting
from maxam.broker.expiry import Expiry
from maxam.broker.following import Following
from maxam.broker.fronting import Fronting
from maxam.broker.intake import Intake
from maxam.broker.json_values import JsonValues
from maxam.broker.last_wills import LastWills
from maxam.broker.notices import Notices
from maxam.broker.operations import Operation, OperationLog, Proof, Refusal, TransientSubscribe
from maxam.broker.outbox import Outbox
from maxam.broker.policy import Policy, Rights
from maxam.broker.producer_sequences import ProducerSequences
from maxam.broker.publishing import Publishing
from maxam.broker.quotas import largest_user
from maxam.broker.receipt_waits import ReceiptWaits
from maxam.broker.recovery import Recovery
from maxam.broker.refinement_table import RefinementTable
from maxam.broker.rollback import Rollback
from maxam.broker.routing import Routing
from maxam.broker.scans import SCAN_TOPICS, Scan, Scanner
from maxam.broker.selected_routes import SelectedRoutes
from maxam.broker.session import Session, Subscription, Topic
from maxam.broker.session_table import SessionTable
from maxam.broker.store import Store
from maxam.broker.subscribing import Subscribing
from maxam.broker.upkeep import Upkeep
from maxam.broker.wills import Wills
from maxam.broker.wire_cache import WireCache
from maxam.config import Limits
from maxam.metrics import Counters
from maxam.records import Change, Identity, Record, SubscriptionRecord
from maxam.stomp.events import Ack, Connect, JsonSend, Send, SkippedSend, Subscribe, Unsubscribe

_IGNORED: Final = ((b"result", b"ignored"),)


@final
class Broker:
    """The whole state of the broker, without I/O.

    Attributes:
        limits: The limits in force.
        store: The topics.
        sequences: Numbers of the sources of topics.
        sessions: By (principal, client-id), in that order, so that a listing in pages need not sort.
        backfills: Records that recovery has noted, by which durable subscriptions are still to owe topics.
        crowded: Keys of sessions that were found to have nearly as many subscriptions as they may.
        counters: Counts since the start.
        publishing: The way of SENDs into the order of operations; set its `on_rejected`.
        subscribing: The way of subscriptions in and out; set its `individual_acks`.
        upkeep: The ends of sessions and subscriptions, and what a front or a replica does of `tick`.
        expiry: Deletes of topics that have expired.
        last_wills: Wills of sessions; the gateway has them fired.
        notices: Notices of topics whose values may not be current.
        fronting: The operations of a front, where another broker keeps the order. None elsewhere.
        intake: The operations of fronts, where they are ordered. None without fronts.
        sampled: The newest batch committed, once an empty one was put here; None keeps none.
    """

    def __init__(self, limits: Limits, policy: Policy, registry: Registry) -> None:
        self.limits: Final = limits
        self.store: Final = Store(limits.delete_retention_s, limits.deletes_retained_max)
        self.counters: Final = Counters()
        self.fronting: Fronting | None = None
        self.intake: Intake | None = None
        self.sampled: list[Operation] | None = None
        self._log: Final = OperationLog()
        self._receipt_waits: Final = ReceiptWaits(self._log)
        self._wires: Final = WireCache()
        self._acknowledgements: Final = Acknowledgements(self._log, limits.acknowledgement_delay_s)
        self._conditions: Final = Conditions(self._log, limits.dedup_retention_s)
        self.sequences: Final[ProducerSequences] = self._conditions.sequences
        self._refinements: Final = RefinementTable(registry, limits)
        self._routing: Final = Routing(self.store, policy, SelectedRoutes(self._refinements))
        self.notices: Final = Notices(self._routing, self._refinements)
        self._scanner: Final = Scanner(self._log, self.store, self._routing)
        self._table: Final = SessionTable(
            limits, self._routing, self._scanner, self._acknowledgements, self._refinements, self.counters
        )
        self.sessions: Final[SortedDict[tuple[str, str], Session]] = self._table.sessions
        self.backfills: Final[Backfills] = self._table.backfills
        self.crowded: Final[dict[tuple[str, str], None]] = self._table.crowded
        self._admission: Final = Admission(limits, registry, self.store, self.sequences, self._log)
        wills: Final = Wills(self._log)
        self._recovery: Final = Recovery(
            limits, self._log, self.store, self.sequences, self._routing, self._table, wills
        )
        self.publishing: Final = Publishing(
            limits, self._log, self.store, self._conditions, self._admission, self.counters
        )
        self.last_wills: Final = LastWills(
            limits, wills, self.store, self._routing, self._admission, self.publishing, self.counters
        )
        self.expiry: Final = Expiry(self._conditions, self._admission, self.publishing, self.counters)
        self.subscribing: Final = Subscribing(limits, self._log, self._table, self._scanner, self._acknowledgements)
        self._connecting: Final = Connecting(
            limits, self._log, self._table, self._wires, self._acknowledgements, self.last_wills, self.counters
        )
        self.upkeep: Final = Upkeep(
            limits.deletes_retained_max,
            self._log,
            self.store,
            self._table,
            self._scanner,
            self._acknowledgements,
            self._admission,
            self.counters,
        )
        self._following: Final = Following(self._log, self._table, self._scanner, self._recovery)
        parts = (self._log, self._conditions, self._table, self._receipt_waits)
        self._rollback: Final = Rollback(*parts, self.last_wills, self.counters)

    @property
    def incarnation(self) -> str:
        """The incarnation of the journal; empty for none."""
        return self._log.incarnation

    @incarnation.setter
    def incarnation(self, incarnation: str) -> None:
        self._log.incarnation = incarnation

    @property
    def proves(self) -> bool:
        """Whether an answer that depends on the state of the journal alone waits for a Proof."""
        return self._log.proves

    @proves.setter
    def proves(self, proves: bool) -> None:
        self._log.proves = proves

    @property
    def head_revision(self) -> int:
        """Revision of the newest appended change."""
        return self._log.head_revision

    @property
    def committed_revision(self) -> int:
        """Revision of the newest applied change."""
        return self._log.committed_revision

    @property
    def accepted_at_us(self) -> int:
        """When the newest appended change was accepted, microseconds since the epoch; it never decreases."""
        return self._log.accepted_at_us

    @property
    def appended_seq(self) -> int:
        """How many operations were appended."""
        return self._log.appended_seq

    @property
    def applied_seq(self) -> int:
        """How many operations were applied or refused."""
        return self._log.applied_seq

    @property
    def pending(self) -> list[Operation]:
        """Operations not yet taken, oldest first."""
        return self._log.pending

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._routing.policy

    @property
    def registry(self) -> Registry:
        """The registry in force."""
        return self._admission.registry

    @property
    def json_values(self) -> JsonValues:
        """Values as JSON, converted by the registry in force."""
        return self._refinements.json_values

    # Requests of clients. Each may raise ProtocolError, having changed nothing.

    def connect(
        self,
        event: Connect,
        identity: Identity,
        session_id: str,
        wake: Callable[[], None],
        now_s: float,
        rights: Rights | None = None,
    ) -> Outbox:
        """Attach a connection to the session that it names, or to a new one.

        Args:
            event: The CONNECT.
            identity: The principal and its certificate.
            session_id: Name of the session if the client gives none: 128 random bits.
            wake: Called when the connection's writer has something to do. It must not call back into the broker.
            now_s: Monotonic seconds.
            rights: Of a ticket or token. None for those of the principal.

        Raises:
            ProtocolError: Too many takeovers or sessions, or the will is refused; nothing has changed.
        """
        return self._connecting.connect(event, identity, session_id, wake, now_s, rights)

    def send(self, connection: Outbox, event: Send, wall_us: int) -> None:
        """Admit a SEND, and append it if it is accepted.

        Raises:
            ProtocolError: It was rejected, and the connection ends with that.
        """
        self.publishing.send(connection, event, wall_us)

    def send_json(self, connection: Outbox, event: JsonSend, wall_us: int) -> None:
        """Admit a SEND whose body is JSON, as `send` does."""
        self.publishing.send_json(connection, event, wall_us)

    def keeps_body(self, connection: Outbox, destination: bytes) -> bool:
        """Return True if a SEND to this destination would get as far as its body: the form and the right are as they must be."""
        return self.publishing.keeps_body(connection, destination)

    def send_skipped(self, connection: Outbox, event: SkippedSend, wall_us: int) -> None:
        """Reject a SEND of which `keeps_body` was False. A right that was granted since then comes too late: the body is gone."""
        self.publishing.send_skipped(connection, event, wall_us)

    def subscribe(self, connection: Outbox, event: Subscribe, wall_us: int) -> None:
        """Start, resume or replace a subscription; `wall_us` is when its frame was read, microseconds since the epoch."""
        self.subscribing.subscribe(connection, event, wall_us)

    def unsubscribe(self, connection: Outbox, event: Unsubscribe) -> None:
        """Remove or pause a subscription."""
        self.subscribing.unsubscribe(connection, event)

    def charge(self, connection: Outbox, now_s: float) -> None:
        """Pause the reading of a connection that has had more durable SUBSCRIBEs and UNSUBSCRIBEs journalled than its principal may."""
        self.subscribing.charge(connection, now_s)

    def ack(self, connection: Outbox, event: Ack, now_s: float) -> None:
        """Take an ACK: of that MESSAGE, and in mode client of those of its subscription that were sent before it."""
        subscription = connection.session.subscriptions.get(event.subscription)
        if subscription is None or event.revision not in subscription.unacked:
            self.counters.acks_ignored += 1
            if event.receipt is not None:
                connection.promise(event.receipt, _IGNORED)
            return
        self.counters.acks += 1
        stamp, covered = subscription.acked(event.revision)
        connection.in_flight -= covered
        connection.full_since_s = -1.0
        connection.window.acked(stamp, covered, now_s)
        if subscription.ready and not subscription.queued and subscription.connection is not None:
            connection.add_ready(subscription)
        if subscription.durable:
            self._acknowledgements.wait(subscription, now_s)
            if event.receipt is not None:
                self._acknowledgements.record(subscription)
                connection.position = self._log.appended_seq
        if event.receipt is not None:
            connection.promise_of_ack(event.receipt, subscription)
        connection.wake_if_due()

    def detach(self, connection: Outbox, now_s: float) -> None:
        """Detach a connection that is gone: transient subscriptions end, durable ones owe again what is un-acked."""
        self._connecting.detach(connection, now_s)

    # From admitted to applied.

    def take_batch(self, bytes_max: int = 0) -> list[Operation]:
        """Hand over what was appended since the last take, as one batch, in order; then `apply_batch` or `roll_back_batch` it.

        Args:
            bytes_max: Size from which on a batch takes no further operation; 0 takes all.
        """
        batch = self._log.take_batch(bytes_max)
        self._receipt_waits.batch_taken()
        return batch

    def apply_batch(self, batch: list[Operation]) -> None:
        """Apply the oldest batch taken, which is durable now, and wake the connections that it concerns."""
        self._wires.chunks.clear()
        self._scanner.batch_applied()
        if self.sampled is not None:
            self.sampled = batch
        for operation in batch:
            if type(operation) is Change:
                self.counters.changes += 1
            self.apply(operation)
        self._log.finish_batch(batch)
        self._conditions.finish()
        self._receipt_waits.batch_applied()

    def roll_back_batch(self, batch: list[Operation]) -> Refusal:
        """Undo the append of a batch for which the disk had no room, and of all appended after it. Return what was given back."""
        return self._rollback.roll_back_batch(batch)

    def apply(self, operation: Operation) -> None:
        """Apply an operation that is durable, or leaves nothing in the journal: the one place where durable state changes."""
        if type(operation) is Change:
            self._log.committed_revision = operation.revision
            self._conditions.keep(operation)
            self._routing.deliver(operation)
        elif type(operation) is TransientSubscribe:
            self._table.activate(operation.subscription, operation.eager, operation.after)
        elif type(operation) is SubscriptionRecord and isinstance(operation.target, Subscription):
            after = -1 if operation.low_water is None else operation.low_water
            self._table.activate(operation.target, operation.eager, after)
        elif type(operation) is not Proof:
            self._following.apply(operation)  # a record of this broker took effect when it was appended
        elif operation.on_done is not None:
            operation.on_done()

    def replay_block(self, records: list[Record]) -> None:
        """Apply the next records that recovery has read back."""
        for record in records:
            self.replay(record)

    def replay(self, record: Record) -> None:
        """Apply the next record that recovery has read back."""
        if type(record) is Change:
            change = self._recovery.prepare(record)
            if change is not None:
                self._routing.recovering = True
                self.apply(change)
        else:
            self._recovery.apply(record)
        if record.accepted_at_us > self._log.accepted_at_us:
            self._log.accepted_at_us = record.accepted_at_us

    def follow(self, record: Record) -> None:
        """Apply the next record of the broker that this one follows, after `recovered`; `housekeep`, `tidy` and `scan` go with it."""
        if type(record) is Change:
            self._log.head_revision = record.revision
            self.counters.changes += 1
            self.apply(record)
        else:
            self._following.apply(record)
        if record.accepted_at_us > self._log.accepted_at_us:
            self._log.accepted_at_us = record.accepted_at_us

    def tidy(self) -> None:
        """Make queues of subscriptions again that `follow` has filled, a part of them."""
        self._following.tidy()

    def recovered(
        self, now_s: float, revision: int, accepted_at_us: int = 0, floor: int = 0, wills_s: float | None = None
    ) -> None:
        """Make ready for clients after the last record of a recovery: all sessions count as detached from now on.

        Args:
            now_s: Monotonic seconds.
            revision: Of the newest stored change; a snapshot leaves out deletes that no subscription needs, even the newest.
            accepted_at_us: Of that change, microseconds since the epoch; 0 if that of the newest record replayed will do.
            floor: Revision above which all deletes are known from the records.
            wills_s: From when on the delays of last wills count, monotonic seconds. None for `now_s`.
        """
        self._recovery.finish(now_s, revision, now_s if wills_s is None else wills_s)
        self.counters.conflated = 0
        self._log.accepted_at_us = max(self._log.accepted_at_us, accepted_at_us)
        self.store.raise_floor(floor)

    def snapshot(self) -> Iterator[Record]:
        """Yield records that, replayed by an empty broker, make one that owes and holds the same; changes in order of revision.

        The broker must not change meanwhile.
        """
        return self._recovery.snapshot()

    def snapshot_floor(self) -> int:
        """Return the revision above which `snapshot` holds all deletes."""
        return self._recovery.snapshot_floor()

    # Time.

    @property
    def scanning(self) -> bool:
        """Whether `scan` has something to do now."""
        return self._scanner.scanning

    @property
    def resting(self) -> bool:
        """Whether a scan is under way that may go on when its subscriber has read: ask `scan` again soon."""
        return self._scanner.resting

    @property
    def next_due_s(self) -> float | None:
        """When `tick` has something to do, or None."""
        return self.upkeep.next_due_s

    def tick(self, now_s: float) -> None:
        """Append what has waited long enough: acknowledgements without receipt, the end of expired sessions."""
        self.upkeep.tick(now_s)

    def scan(self, topics: int = SCAN_TOPICS) -> bool:
        """Do the next part of the scans under way, with `topics` topics at most; return whether more is to do now."""
        return self._scanner.scan(topics)

    @property
    def late(self) -> bool:
        """Whether `find_late` has something to do."""
        return len(self._routing.late) > 0

    def find_late(self, globs: int) -> None:
        """Compare up to `globs` globs with new topics for which that was put off, because it takes too long."""
        self._routing.find_late(globs)

    def record_acknowledgements(self) -> None:
        """Append every acknowledgement that the journal does not hold yet."""
        self._acknowledgements.record_all()

    def become_front(self) -> Fronting:
        """Serve clients of a front from now on, after `recovered`: another broker keeps the order."""
        places = (self._log, self._table, self._routing, self._scanner, self._following, self._acknowledgements)
        ways = (self._wires, self._receipt_waits, self.publishing, self.last_wills)
        self.fronting = self._connecting.fronting = fronting = Fronting(*places, *ways, self.counters)
        return fronting

    def serve_fronts(self) -> Intake:
        """Keep the order of operations of fronts from now on."""
        places = (self._log, self.store, self._routing, self._table, self._conditions)
        self.intake = intake = Intake(*places, self._admission, self.publishing, self.last_wills, self.limits)
        return intake

    # For the gateway and the admin listener.

    def scans_of(self, subscription: Subscription) -> list[Scan]:
        """Return the scans under way for a subscription."""
        return [scan for scan in self._scanner.scans if scan.subscription is subscription]

    def is_late(self, subscription: Subscription, destination: bytes) -> bool:
        """Return True if a subscription may lack the newest change of a topic, as its globs are still compared with it."""
        return self._routing.late.lacks(subscription, self._routing.owner_of(subscription), destination)

    def late_topics(self, principal: str) -> int:
        """Return how many topics are still compared with the globs of a principal."""
        return self._routing.late.topics_of(principal)

    def limits_used(self) -> list[tuple[str, int, str]]:
        """Return how much of each limit on totals is used, with the principal that uses most if each has its own; else empty."""
        deletes = largest_user("delete_retention_topics_max", self.store.deletes_of)
        wills = self.last_wills.wills.used()
        return [("topics_max", self._admission.held(), ""), *self._table.quotas.used(), wills, deletes]

    def end_of_input(self, connection: Outbox) -> None:
        """End what clients asked on a connection for now: call it after the last request of the bytes that were read.

        Its writer is woken when the operations are done that its receipts wait for. Operations that were appended are committed only after a `take_batch`: hand them over before waiting for anything.
        """
        self._receipt_waits.add(connection)

    def uncommitted_values(self) -> Iterator[bytes]:
        """Iterate over the destinations of values that are accepted and not yet applied."""
        return self._log.uncommitted_values()

    def newest(self, destination: bytes) -> int:
        """Return the revision of a topic's newest value, committed or only appended; 0 for none."""
        return self._conditions.newest(destination, self.store.topics.get(destination))[0]

    def rule_of(self, topic: Topic) -> int:
        """Return which of the registry's rules is for a topic, -1 if none is; the topic remembers it."""
        return self._admission.rule_of(topic)

    @property
    def memory_low(self) -> bool:
        """Whether everything is refused that needs more memory for longer than its connection."""
        return self.publishing.memory_low

    @memory_low.setter
    def memory_low(self, low: bool) -> None:
        self.publishing.memory_low = self.subscribing.memory_low = low

    def watch_shadows(self, on_shadowed: OnShadowed | None) -> None:
        """Have every SEND with a body reported that was judged by a rule with a candidate version; the callee must not call back."""
        self._admission.on_shadowed = on_shadowed

    def replace_registry(self, registry: Registry) -> None:
        """Judge every SEND from now on by another registry."""
        self._admission.replace_registry(registry)
        self._refinements.replace_registry(registry)

    def replace_policy(self, policy: Policy, wall_us: int = 0) -> None:
        """Put another policy in force at once, for sends and deliveries; a scan then owes what it grants in addition.

        Args:
            policy: The new one.
            wall_us: When it came into force, microseconds since the epoch; 0 for the time of the newest change.
        """
        self._scanner.replace_policy(policy, self.sessions.values(), max(wall_us, self._log.accepted_at_us))
