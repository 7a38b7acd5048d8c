"""The work of a broker as time passes: sessions and subscriptions end, and what is no longer needed is freed.

Nothing here reads a clock: the gateway passes the time, and asks `next_due_s` when to call again.
"""

from typing import Final, final

from maxam.broker.acknowledgements import Acknowledgements
from maxam.broker.admission import Admission
from maxam.broker.operations import OperationLog
from maxam.broker.scans import Scanner
from maxam.broker.session import Session, Subscription
from maxam.broker.session_table import SessionTable
from maxam.broker.store import TOMBSTONE_SWEEP_MIN, Store
from maxam.errors import ProtocolError
from maxam.metrics import Counters
from maxam.records import SessionEndRecord, UnsubscriptionRecord

_EXPIRED_PER_TICK: Final = 1000  # subscriptions of expired sessions that one tick ends: 6 ms
_SESSIONS_PER_TOMBSTONE: Final = 16  # checking this many sessions costs about as much as deleting one tombstone

_HOLDS_DELETES: Final = ProtocolError(
    "too much owed",
    "the client reads too slowly what has changed since its position. The broker had to keep too many deletes for it. "
    "Connect again, and read faster",
)


@final
class Upkeep:
    """Ends sessions and subscriptions, and frees memory."""

    __slots__ = (
        "_acknowledgements",
        "_admission",
        "_counters",
        "_deletes_retained_max",
        "_log",
        "_scanner",
        "_store",
        "_table",
    )

    def __init__(
        self,
        deletes_retained_max: int,
        log: OperationLog,
        store: Store,
        table: SessionTable,
        scanner: Scanner,
        acknowledgements: Acknowledgements,
        admission: Admission,
        counters: Counters,
    ) -> None:
        """Begin with parts of a new broker. More deletes than `deletes_retained_max` end connections that need them."""
        self._deletes_retained_max: Final = deletes_retained_max
        self._log: Final = log
        self._store: Final = store
        self._table: Final = table
        self._scanner: Final = scanner
        self._acknowledgements: Final = acknowledgements
        self._admission: Final = admission
        self._counters: Final = counters

    @property
    def next_due_s(self) -> float | None:
        """When `tick` has something to do, or None."""
        dues_s = (self._acknowledgements.due_s, self._table.next_expiry_s)
        return min([due_s for due_s in dues_s if due_s is not None], default=None)

    def tick(self, now_s: float) -> None:
        """Append what has waited long enough: acknowledgements without receipt, the end of expired sessions."""
        self._record_due(now_s)
        ended = 0
        while ended < _EXPIRED_PER_TICK:
            session = self._table.next_expired(now_s)
            if session is None:
                break
            self._counters.sessions_expired += 1
            ended += len(session.subscriptions)
            self.end_session(session)
        self._end_unused(now_s)

    def tick_front(self, now_s: float) -> None:
        """Do what a front does of that: sessions expire where the order is kept."""
        self._record_due(now_s)
        self._end_unused(now_s)

    def _record_due(self, now_s: float) -> None:
        due_s = self._acknowledgements.due_s
        if due_s is not None and now_s >= due_s:
            self._acknowledgements.record_all()

    def _end_unused(self, now_s: float) -> None:
        for subscription in self._table.find_unused(now_s):
            self._counters.subscriptions_expired += 1
            self.end_subscription(subscription)
        self.housekeep(now_s)

    def housekeep(self, now_s: float) -> None:
        """Free what is no longer needed. Nothing is appended, so a broker that follows another one does it too."""
        self._admission.sweep_if_full(now_s)
        self._store.retire(self._log.accepted_at_us)
        if self._store.sweep_due():
            self._sweep()

    def end_session(self, session: Session, error: ProtocolError | None = None) -> None:
        """End a session and all that it owes; its connection, if any, is expelled with the error, by default an operator's."""
        if session.connection is not None:
            session.connection.expel(error or ProtocolError("session dropped", "an operator ended this session"))
            session.connection = None
        durable = session.durable
        self._table.end(session)
        if durable:
            record = SessionEndRecord(self._log.accepted_at_us, session.principal, session.client_id)
            record.target = session
            self._log.append(record)

    def end_subscription(self, subscription: Subscription) -> None:
        """End a durable subscription that no connection uses, and all that it owes."""
        session = subscription.session
        record = UnsubscriptionRecord(self._log.accepted_at_us, session.principal, session.client_id, subscription.id)
        record.target = subscription
        del session.subscriptions[subscription.id]
        self._table.remove(subscription)
        self._log.append(record)
        if not session.attached and not session.durable:
            self._table.close(session)

    def _sweep(self) -> None:
        """Delete tombstones that no subscription needs."""
        checked = self._store.to_sweep(len(self._table.sessions) // _SESSIONS_PER_TOMBSTONE)
        owed = self._table.needed_of(checked)
        needed = self._scanner.needed_of(checked)
        self._store.sweep(checked, owed | needed)
        self._table.forget_topics({topic.destination for topic in checked - owed - needed})
        if needed - owed and len(self._store.tombstones) > max(self._deletes_retained_max, TOMBSTONE_SWEEP_MIN):
            for session in self._scanner.resting_sessions():
                if session.connection is not None:
                    session.connection.expel(_HOLDS_DELETES)
