"""Undoes the append of operations for which the disk had no room, and answers the clients that asked for them."""

from typing import Final, final

from maxam.broker.conditions import Conditions
from maxam.broker.last_wills import LastWills, expel_setter
from maxam.broker.operations import Operation, OperationLog, Refusal
from maxam.broker.outbox import rejection_error
from maxam.broker.publishing import UNAVAILABLE, rejection_headers
from maxam.broker.receipt_waits import ReceiptWaits
from maxam.broker.session_table import SessionTable
from maxam.metrics import Counters
from maxam.records import Identity, Rejection, WillRecord


@final
class Rollback:
    """The way back of a batch from the journal."""

    __slots__ = ("_conditions", "_counters", "_last_wills", "_log", "_receipt_waits", "_table")

    def __init__(
        self,
        log: OperationLog,
        conditions: Conditions,
        table: SessionTable,
        receipt_waits: ReceiptWaits,
        last_wills: LastWills,
        counters: Counters,
    ) -> None:
        self._log: Final = log
        self._conditions: Final = conditions
        self._table: Final = table
        self._receipt_waits: Final = receipt_waits
        self._last_wills: Final = last_wills
        self._counters: Final = counters

    def roll_back_batch(self, batch: list[Operation]) -> Refusal:
        """Undo the append of a batch, and of all appended after it. Return what was given back.

        Its revisions are given back. SENDs are answered `rejected-unavailable`, and a durable SUBSCRIBE fails its connection. Operations
        that only free room later (ACKs, UNSUBSCRIBEs, ends of sessions) and transient SUBSCRIBEs stay pending, in order.
        """
        refusal = self._log.roll_back_batch(batch)
        self._conditions.refuse()
        for subscription in refusal.subscriptions:
            self._table.refuse(subscription)
        publishers: set[Identity] = set()  # each is one connection's
        for change in refusal.changes:
            self._counters.sends_unavailable += 1
            self._counters.reject("disk-full")
            publishers.add(change.publisher)
        headers = rejection_headers(UNAVAILABLE, Rejection("disk-full", "the journal has no room; try again later"))
        sessions = self._table.sessions
        for key in self._last_wills.wills.refuse(refusal):
            expel_setter(sessions.get(key))
        for session in sessions.values():
            if session.connection is not None:  # receipts to come wait for what is kept too
                position = session.connection.position
                session.connection.position = refusal.moved.get(position, position)
        setters = {record.publisher for record in refusal.wills if type(record) is WillRecord}
        for connection in self._receipt_waits.batch_refused():
            if connection.identity in setters:
                connection.drop_receipts(0)  # these would show that its will is stored
            connection.refuse(headers, refusal.done, refusal.moved, refusal.failed)
            self._receipt_waits.add(connection)
        for session in sessions.values():  # a SEND without receipt may be among those that were refused
            ending = session.connection
            if ending is not None and ending.rejections_end and ending.identity in publishers:
                ending.expel(rejection_error(headers, None))
        return refusal
