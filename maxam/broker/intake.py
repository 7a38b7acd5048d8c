"""The operations of fronts, taken into the order of the broker that keeps it.

A front has judged a SEND by rights and schema. Here is decided what needs the order: the condition of a SEND, its revision and time,
and the limits on topics and memory. A refusal takes its place in the order too. So it is answered once everything is done that it was
compared with.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, final

from maxam.broker.admission import Admission
from maxam.broker.conditions import Conditions
from maxam.broker.last_wills import LastWills
from maxam.broker.ledger import DISK_FULL, Ledger
from maxam.broker.operations import OperationLog, Proof, Refusal, SessionStep, Terms
from maxam.broker.origins import Origin, RefusedOperation
from maxam.broker.policy import Rights
from maxam.broker.publishing import MEMORY_LOW, Publishing, conflict
from maxam.broker.routing import Routing
from maxam.broker.session import Topic
from maxam.broker.session_table import SessionTable
from maxam.broker.store import Store
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import (
    AcknowledgementRecord,
    Change,
    Record,
    Rejection,
    SubscriptionRecord,
    UnsubscriptionRecord,
    WillEndRecord,
    WillRecord,
)
from maxam.stomp.events import Send

SUPERSEDED: Final = "superseded"
_BROKEN_MAX: Final = 10_000  # connections of one front that a rejected SEND has ended


@final
class FrontOrder:
    """One front, as far as the order is concerned.

    Attributes:
        front: Its identifier.
        on_step: Called with each claim and release of a session, once all operations before it are done.
        lasting: The log of a cluster keeps its origins, so that it can go on with the next leader.
        taken: Number of its newest operation that was taken.
        broken: Connections of which a SEND was rejected that ends them: no later SEND takes effect. With the reason, oldest first.
        ending: SENDs of such connections that are not done: their connection by their number.
    """

    __slots__ = ("broken", "ending", "front", "lasting", "on_step", "taken")

    def __init__(self, front: bytes, on_step: Callable[[SessionStep], None], *, lasting: bool = False) -> None:
        self.front: Final = front
        self.on_step: Final = on_step
        self.lasting: Final = lasting
        self.taken = 0
        self.broken: Final[dict[int, Rejection]] = {}
        self.ending: Final[dict[int, int]] = {}


@final
class Intake:
    """Takes the operations of fronts.

    Attributes:
        ledger: Whose operation is at which position.
    """

    __slots__ = (
        "_admission",
        "_conditions",
        "_fronts",
        "_granted",
        "_last_wills",
        "_log",
        "_publishing",
        "_routing",
        "_store",
        "_table",
        "ledger",
    )

    def __init__(
        self,
        log: OperationLog,
        store: Store,
        routing: Routing,
        table: SessionTable,
        conditions: Conditions,
        admission: Admission,
        publishing: Publishing,
        last_wills: LastWills,
        limits: Limits,
    ) -> None:
        self.ledger: Final = Ledger(log.appended_seq - len(log.pending))
        self._fronts: Final[dict[bytes, FrontOrder]] = {}
        self._log: Final = log
        self._store: Final = store
        self._routing: Final = routing
        self._conditions: Final = conditions
        self._admission: Final = admission
        self._publishing: Final = publishing
        self._table: Final = table
        self._last_wills: Final = last_wills
        self._granted: Final = Rights((compile_glob("**", limits),), (), frozenset(), None, limits)

    def begin(self, order: FrontOrder) -> None:
        """Begin to take the operations of a front."""
        self._fronts[order.front] = order

    def end(self, order: FrontOrder) -> None:
        """Forget a front. Its operations that were taken take effect. The log has the end of one that lasts after them."""
        self._fronts.pop(order.front, None)
        if order.lasting:
            self.ledger.note_end(order.front, self._log.append(Proof()))
        else:
            self.ledger.forget(order.front)

    def take(
        self,
        order: FrontOrder,
        first: int,
        operations: list[Record | Proof],
        terms: dict[int, Terms],
        judge: bool,
        wall_us: int,
    ) -> None:
        """Append operations of a front; those that were taken before are skipped.

        Args:
            order: The front.
            first: Number of the first operation.
            operations: Consecutive ones.
            terms: Of the changes that have some, by their index.
            judge: Other schemas or rights have come into force since the front judged the SENDs.
            wall_us: Microseconds since the epoch.
        """
        log, ledger = self._log, self.ledger
        for index, operation in enumerate(operations):
            number = first + index
            if number <= order.taken:
                continue
            order.taken = number
            if type(operation) is Change:
                rejection = self._send(order, number, operation, terms.get(index) if terms else None, judge, wall_us)
                if rejection is not None:
                    refused = RefusedOperation(number, rejection.result, rejection.reason)
                    ledger.note_refused(order.front, refused, log.append(Proof()))
            elif type(operation) is Proof:
                step = operation.step
                done = None if step is None else partial(order.on_step, step)
                ledger.note(order.front, number, log.append(Proof(done)))
            else:
                ledger.note(order.front, number, log.append(_restamped(operation, log.accepted_at_us)))

    def roll_back(self, refusal: Refusal) -> list[Origin]:
        """Follow the broker in giving back operations for which the disk had no room; return what that refuses."""
        origins = self.ledger.roll_back(refusal, self._log.applied_seq)
        for origin in origins:
            order = self._fronts.get(origin.front)
            for refused in origin.refusals:
                connection = 0 if order is None else order.ending.pop(refused.number, 0)
                if order is not None and connection:
                    _break(order, connection, Rejection(DISK_FULL, refused.reason))
        return origins

    def hold(self, principal: str, client_id: str, holder: bytes) -> None:
        """Note that a session has its connection on a front; make the session if there is none.

        Raises:
            ProtocolError: The principal has too many sessions; nothing has changed.
        """
        table = self._table
        session = table.sessions.get((principal, client_id))
        if session is None:
            table.quotas.check_session(principal)
            session = table.open(principal, client_id)
        session.holder = holder
        table.attached(session)
        self._last_wills.wills.regained(session.key)

    def let_go(self, principal: str, client_id: str, now_s: float) -> None:
        """Note that the connection of a session on a front has ended."""
        key = (principal, client_id)
        session = self._table.sessions.get(key)
        if session is not None and session.holder:
            session.holder = b""
            if session.connection is None:
                self._table.detach(session, now_s)
        self._last_wills.detached(self._table.sessions.get(key), key, now_s)

    def _send(
        self, order: FrontOrder, number: int, change: Change, terms: Terms | None, judge: bool, wall_us: int
    ) -> Rejection | None:
        """Append the change of a SEND, or return why it takes no effect."""
        log = self._log
        topic = self._store.topics.get(change.destination)
        rejection = None if terms is None else order.broken.get(terms.connection)
        validation = change.validation
        if rejection is None and judge:
            event = Send(change.destination, change.body, change.headers, None)
            # The rights of a ticket are known to its front alone. They allowed the SEND before the reload, which was not answered yet.
            publisher = change.publisher
            rights = self._routing.policy.rights(publisher.principal) if publisher.fingerprint else self._granted
            verdict = self._admission.validate(change.publisher, rights, event, topic, wall_us)
            if type(verdict) is Rejection:
                rejection = verdict
            else:
                validation = verdict
        if rejection is None:
            rejection = self._room(change, topic)
        now_s = wall_us / 1e6
        principal = change.publisher.principal
        bucket = self._publishing.bucket(principal, now_s)
        if rejection is None and bucket is not None and bucket.empty(now_s):
            rejection = self._publishing.too_fast(principal, bucket, now_s)
        if rejection is None and terms is not None:
            rejection = self._compare(change, topic, terms, wall_us)
        if rejection is not None:
            if terms is not None and terms.connection and rejection.result != SUPERSEDED:
                _break(order, terms.connection, rejection)
            return rejection
        if wall_us > log.accepted_at_us:
            log.accepted_at_us = wall_us
        ordered = Change(
            log.head_revision + 1,
            log.accepted_at_us,
            change.destination if topic is None else topic.destination,
            change.deleted,
            change.publisher,
            validation,
            change.content,
            change.body_at,
        )
        ordered.target = topic
        position = log.append_change(ordered)
        if bucket is not None:
            bucket.take(len(change.destination) + len(change.content), now_s)
        self.ledger.note(order.front, number, position)
        if terms is not None:
            if terms.source is not None:
                self._conditions.expect(change.destination, terms.source, terms.number, position)
            if terms.connection:
                self._note_ending(order, number, terms.connection)
        return None

    def _room(self, change: Change, topic: Topic | None) -> Rejection | None:
        if self._publishing.memory_low and not (change.deleted and topic is not None):
            return MEMORY_LOW
        if not change.deleted and (topic is None or topic.change.deleted) and self._admission.full():
            return self._admission.no_room()
        return None

    def _compare(self, change: Change, topic: Topic | None, terms: Terms, wall_us: int) -> Rejection | None:
        """Compare a SEND with the newest change in the order, as `Publishing` does; its source comes first."""
        destination = change.destination
        source = terms.source
        if source is not None:
            now_us = max(wall_us, self._log.accepted_at_us)
            number, _ = self._conditions.newest_of_source(destination, source, now_us)
            if number >= terms.number:
                return Rejection(SUPERSEDED, "")
        if terms.expected >= 0:
            revision, _ = self._conditions.newest(destination, topic)
            if revision != terms.expected:
                rights = self._routing.policy.rights(change.publisher.principal)
                return conflict(rights, destination, revision, terms.expected)
        if (
            source is not None
            and change.deleted
            and (topic is None or topic.change.deleted)
            and not self._conditions.sequences.holds(destination)
            and self._admission.full()
        ):
            return self._admission.no_room()
        return None

    def _note_ending(self, order: FrontOrder, number: int, connection: int) -> None:
        if len(order.ending) > _BROKEN_MAX:
            under_way = set(self.ledger.numbers(order.front))
            for done in [one for one in order.ending if one not in under_way]:
                del order.ending[done]
        order.ending[number] = connection


def _break(order: FrontOrder, connection: int, rejection: Rejection) -> None:
    order.broken[connection] = rejection
    if len(order.broken) > _BROKEN_MAX:
        del order.broken[next(iter(order.broken))]


def _restamped(record: Record, at_us: int) -> Record:
    """Return a record of a session as it is in the order here.

    Raises:
        ValueError: No front makes such a record.
    """
    if type(record) is AcknowledgementRecord:
        return AcknowledgementRecord(at_us, record.principal, record.client_id, record.subscription, record.positions)
    if type(record) is SubscriptionRecord:
        return SubscriptionRecord(
            at_us,
            record.principal,
            record.client_id,
            record.subscription,
            record.glob,
            record.eager,
            record.low_water,
        )
    if type(record) is UnsubscriptionRecord:
        return UnsubscriptionRecord(at_us, record.principal, record.client_id, record.subscription)
    if type(record) is WillRecord:
        return WillRecord(
            at_us,
            record.client_id,
            record.publisher,
            record.destination,
            record.content,
            record.body_at,
            record.delay_s,
        )
    if type(record) is WillEndRecord:
        return WillEndRecord(at_us, record.principal, record.client_id)
    raise ValueError("a record that no front makes")
