"""A broker on a front: it has clients, and another broker keeps the order of operations.

Theory of operation. Frames of clients are admitted and appended here as on any broker. A position in the log is the number of an
operation. The loop of the front hands the operations that it takes to the broker that orders them (`taken`). Each entry of that broker
comes back with the records of all fronts, in order, and the origin of this one (`apply`). Records of others are applied as on a replica.
Own ones take effect by the object that was appended, which has the live subscription. A change is the one that came, which has revision
and time.

Invariants:
* an own operation without a record takes effect after all changes before the own record that precedes it, and before the next own record;
* an operation that was refused takes no effect, and its answer leaves in its place;
* a session has its connection here only between its grant and its release;
* an operation stays here until an entry settles it. The next leader gets those that are left (`again`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, final

from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.following import Following
from maxam.broker.last_wills import LastWills, expel_setter
from maxam.broker.ledger import DISK_FULL, NO_ROOM
from maxam.broker.operations import Operation, OperationLog, Proof, Refusal, SessionStep, Terms, TransientSubscribe
from maxam.broker.origins import Origin, RefusedOperation
from maxam.broker.outbox import Outbox, rejection_error
from maxam.broker.publishing import ACCEPTED, SUPERSEDED, UNAVAILABLE, Offers, Publishing, rejection_headers
from maxam.broker.receipt_waits import ReceiptWaits
from maxam.broker.routing import Routing
from maxam.broker.scans import Scanner
from maxam.broker.session import Session, Subscription
from maxam.broker.session_table import TAKEOVER, SessionTable
from maxam.broker.wire_cache import WireCache
from maxam.errors import ProtocolError
from maxam.metrics import Counters
from maxam.records import (
    REJECTION_RESULTS,
    AcknowledgementRecord,
    Change,
    Record,
    Rejection,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    WillRecord,
)
from maxam.stomp.events import Send

_NEVER: Final = 1 << 62  # a position that no operation has
_BROKEN_MAX: Final = 10_000  # connections that a rejected SEND has ended
_GIVEN_BACK: Final = (Change, SubscriptionRecord, WillRecord)  # when there is no room
_TERMS_KEPT: Final = 1000  # of settled operations


@final
class Fronting:
    """The operations of a front that are not settled, and the records that it gets.

    Attributes:
        taken: Number of the newest operation that was handed over.
        resuming: The entries are those that the former leader had. It may have given a session to another connection.
        broken: Connections that a rejected SEND has ended, by their number, oldest first: SENDs of them may be on the way.
        on_receipts: Called before the RECEIPTs of an entry become due, and after all of its deliveries.
    """

    __slots__ = (
        "_acknowledgements",
        "_counters",
        "_flight",
        "_following",
        "_last_wills",
        "_log",
        "_offers",
        "_publishing",
        "_receipt_waits",
        "_refused",
        "_routing",
        "_scanner",
        "_table",
        "_terms",
        "_wires",
        "broken",
        "on_receipts",
        "resuming",
        "taken",
    )

    def __init__(
        self,
        log: OperationLog,
        table: SessionTable,
        routing: Routing,
        scanner: Scanner,
        following: Following,
        acknowledgements: Acknowledgements,
        wires: WireCache,
        receipt_waits: ReceiptWaits,
        publishing: Publishing,
        last_wills: LastWills,
        counters: Counters,
    ) -> None:
        """Make a broker that was recovered the broker of a front. From now on its log counts own operations and changes only."""
        self.taken = 0
        self.resuming = False
        self.on_receipts: Callable[[], None] | None = None
        self._log: Final = log
        self._table: Final = table
        self._routing: Final = routing
        self._scanner: Final = scanner
        self._following: Final = following
        self._acknowledgements: Final = acknowledgements
        self._wires: Final = wires
        self._receipt_waits: Final = receipt_waits
        self._publishing: Final = publishing
        self._last_wills: Final = last_wills
        self._counters: Final = counters
        self._flight: Final[deque[Operation]] = deque()  # handed over and not settled; the first is `applied_seq` + 1
        self._refused: Final[set[int]] = set()  # of these
        self._terms: dict[int, Terms] = {}  # of these, by their number, and some that are settled
        self.broken: Final[dict[int, Rejection]] = {}
        self._offers: Final = Offers()
        publishing.offers = self._offers
        log.head_revision = 0

    # To the broker that keeps the order.

    def taken_batch(self, operations: list[Operation]) -> dict[int, Terms]:
        """Note the operations that were taken from the log just now, and leave; return the terms of SENDs, by their number."""
        self._flight.extend(operations)
        first = self.taken + 1
        self.taken += len(operations)
        terms = self._offers.take_terms(first, operations)
        if terms:
            if len(self._terms) > 2 * len(self._flight) + _TERMS_KEPT:
                done = self._log.applied_seq
                self._terms = {number: one for number, one in self._terms.items() if number > done}
            self._terms.update(terms)
        return terms

    def again(self) -> tuple[list[Operation], dict[int, Terms], int]:
        """Return the operations in flight, as another broker is to take them into its order.

        A barrier stands for one that was answered already, and for a step of a session.

        Returns:
            The operations, the terms of SENDs by their number, and the revision before that of the first change.
        """
        done = self._log.applied_seq
        found: list[Operation] = []
        terms: dict[int, Terms] = {}
        changes = sum([type(one) is Change for one in self._log.pending])
        for number, operation in enumerate(self._flight, done + 1):
            if number in self._refused or type(operation) is Proof:
                found.append(Proof())
                continue
            of_change = self._terms.get(number)
            if of_change is not None:
                terms[number] = of_change
            changes += type(operation) is Change
            found.append(operation)
        before = revision = self._log.head_revision - changes
        for at, operation in enumerate(found):
            if type(operation) is Change:
                revision += 1
                found[at] = _renumbered(operation, revision)
        return found, terms, before

    @property
    def held(self) -> list[tuple[str, str]]:
        """The sessions with a connection here."""
        return [key for key, session in self._table.sessions.items() if session.connection is not None]

    # Entries.

    def apply(self, records: list[Record], origin: Origin | None) -> None:
        """Apply an entry: its records, in order, and what it settles of the operations of this front.

        Raises:
            ValueError: The origin does not fit the operations in flight. The front must start again.
        """
        self._wires.chunks.clear()
        self._scanner.batch_applied()
        if origin is None or 0 < origin.done <= self._log.applied_seq:  # the latter comes again from the next leader
            for record in records:
                self._apply_foreign(record)
            return
        for refused in origin.refusals:
            at = refused.number - self._log.applied_seq - 1
            if not 0 <= at < len(self._flight):
                raise ValueError("an origin that refuses an operation that was not handed over")
            self._refuse(refused, self._flight[at])
        done = self._log.applied_seq
        place = 0
        for run in origin.runs:
            if run.place < place or run.place + run.count > len(records):
                raise ValueError("an origin with records that the entry does not have")
            for at in range(place, run.place):
                self._apply_foreign(records[at])
            done = self._finish_to(run.number - 1, done)
            for at in range(run.place, run.place + run.count):
                self._apply_own(records[at], done + 1)
                done += 1
            place = run.place + run.count
        for at in range(place, len(records)):
            self._apply_foreign(records[at])
        done = self._finish_to(origin.done, done)
        while self._flight and done + 1 in self._refused:
            done = self._finish_to(done + 1, done)
        finished = self._log.finish_to(done)
        if self.on_receipts is not None:
            self.on_receipts()
        self._receipt_waits.passed(finished)

    def _finish_to(self, number: int, done: int) -> int:
        """Have own operations without a record take effect, up to a number."""
        while done < number:
            if not self._flight:
                raise ValueError("an origin with operations that were not handed over")
            done += 1
            operation = self._flight.popleft()
            if done not in self._refused and type(operation) in _GIVEN_BACK:
                # The log had no room for it, so it does not hold the refusal, which was lost with the leader.
                self._refuse(RefusedOperation(done, DISK_FULL, NO_ROOM), operation)
            if done in self._refused:
                self._refused.remove(done)
                self._offers.connections.pop(done, None)
            elif type(operation) is TransientSubscribe:
                self._table.activate(operation.subscription, operation.eager, operation.after)
            elif type(operation) is not Proof:
                raise ValueError("an origin without the record of an operation")
        return done

    def _apply_own(self, record: Record, number: int) -> None:
        if not self._flight:
            raise ValueError("an origin with operations that were not handed over")
        operation = self._flight.popleft()
        if type(operation) is Change and type(record) is Change:
            record.target = operation.target
            self._change(record)
            if self._offers.connections:
                connection = self._offers.connections.pop(number, None)
                if connection is not None:
                    connection.answer_with_revision(number, (*ACCEPTED, (b"revision", b"%d" % record.revision)))
        elif type(operation) is TransientSubscribe or type(operation) is Proof or type(operation) is not type(record):
            raise ValueError("an origin that gives an operation the record of another one")
        elif type(operation) is SubscriptionRecord and isinstance(operation.target, Subscription):
            after = -1 if operation.low_water is None else operation.low_water
            self._table.activate(operation.target, operation.eager, after)
        else:
            self._following.apply(operation)
        if record.accepted_at_us > self._log.accepted_at_us:
            self._log.accepted_at_us = record.accepted_at_us

    def _apply_foreign(self, record: Record) -> None:
        if type(record) is Change:
            self._change(record)
        else:
            if self.resuming and isinstance(record, SubscriptionRecord | UnsubscriptionRecord | AcknowledgementRecord):
                self.expel(record.principal, record.client_id)
            if type(record) is SessionEndRecord:
                session = self._table.sessions.get((record.principal, record.client_id))
                if session is not None and session.connection is not None:
                    session.connection.expel(ProtocolError("session dropped", "an operator ended this session"))
                    session.connection = None
            self._following.apply(record)
        if record.accepted_at_us > self._log.accepted_at_us:
            self._log.accepted_at_us = record.accepted_at_us

    def _change(self, change: Change) -> None:
        self._counters.changes += 1
        self._log.committed_revision = change.revision
        self._publishing.keep(change)
        self._routing.deliver(change)

    # Refusals.

    def _refuse(self, refused: RefusedOperation, operation: Operation) -> None:
        """Have an operation in flight take no effect, and be answered so in its place."""
        number = refused.number
        self._refused.add(number)
        if type(operation) is Change:
            self._refuse_send(refused, operation)
        elif type(operation) is SubscriptionRecord and isinstance(operation.target, Subscription):
            connection = operation.target.connection
            self._table.refuse(operation.target)
            if connection is not None:
                connection.refuse((), _NEVER, {}, {number})
        elif type(operation) is WillRecord:
            refusal = Refusal(0)
            refusal.wills.append(operation)
            for key in self._last_wills.wills.refuse(refusal):
                expel_setter(self._table.sessions.get(key))
            connection = self._receipt_waits.of(operation.publisher)
            if connection is not None:
                connection.drop_receipts(0)  # as in Rollback

    def _refuse_send(self, refused: RefusedOperation, change: Change) -> None:
        connection = self._offers.connections.get(refused.number) or self._connection_of(change)
        if refused.result == "superseded":
            self._counters.sends_superseded += 1
            if connection is not None:
                connection.answer_send(refused.number, SUPERSEDED)
            return
        rejection = Rejection(refused.result, refused.reason)
        disposition = REJECTION_RESULTS[refused.result].encode()
        headers = rejection_headers(disposition, rejection)
        event = Send(change.destination, change.body, change.headers, None)
        self._publishing.report_as(change.publisher, event, rejection, disposition, change.accepted_at_us)
        if connection is None:
            return
        receipt_id = connection.answer_send(refused.number, headers)
        if disposition != UNAVAILABLE:
            connection.rejected += 1
            if receipt_id is None and not connection.rejections_end:
                connection.unheard += 1
        if connection.rejections_end:
            connection.drop_receipts(refused.number)
            self.broken[connection.number] = rejection
            if len(self.broken) > _BROKEN_MAX:
                del self.broken[next(iter(self.broken))]
            connection.expel(rejection_error(headers, receipt_id))

    def _connection_of(self, change: Change) -> Outbox | None:
        """Return the connection that has sent a change, if it is still there; all are searched, as few SENDs are refused."""
        connection = self._receipt_waits.of(change.publisher)
        if connection is None:
            for session in self._table.sessions.values():
                if session.connection is not None and session.connection.identity is change.publisher:
                    return session.connection
        return connection

    # Sessions.

    def ask(self, step: SessionStep) -> None:
        """Append a claim or release of a session."""
        self._log.append(Proof(None, step))

    def granted(self, principal: str, client_id: str) -> None:
        """Make the replica of a session ready for a connection: it was claimed, and all is applied that came before."""
        session = self._table.sessions.get((principal, client_id))
        if session is not None:
            for subscription in session.subscriptions.values():
                conflated = subscription.conflated
                subscription.restore(subscription.owed_since_us() or self._log.accepted_at_us)
                subscription.conflated = conflated

    def connected(self, connection: Outbox) -> None:
        """Note a connection that was made, if a rejected SEND ends it."""
        if connection.rejections_end:
            self._offers.begin(connection)

    def expel(self, principal: str, client_id: str) -> bool:
        """Take a session from its connection, as another connection claims it; return False if it has none here."""
        session = self._table.sessions.get((principal, client_id))
        if session is None or session.connection is None:
            return False
        connection = session.connection
        connection.expel(
            ProtocolError(
                TAKEOVER,
                f"another connection of {principal} has the client-id {client_id} now. The newest has the session; connect "
                "again only to take it back, or with a client-id of your own",
            )
        )
        connection.lost()
        self._table.release_all(session)
        session.connection = None
        self.release(session)
        if not session.durable:
            self._table.close(session)
        return True

    def release(self, session: Session) -> None:
        """Record what was acknowledged, and give the session back."""
        self.record(session.subscriptions.values())
        self.ask(SessionStep(False, session.principal, session.client_id))

    def record(self, subscriptions: Iterable[Subscription]) -> None:
        """Append what was acknowledged of these subscriptions."""
        for subscription in subscriptions:
            if subscription.unrecorded:
                self._acknowledgements.record(subscription)


def _renumbered(change: Change, revision: int) -> Change:
    """Return a change with another revision."""
    return Change(
        revision,
        change.accepted_at_us,
        change.destination,
        change.deleted,
        change.publisher,
        change.validation,
        change.content,
        change.body_at,
    )
