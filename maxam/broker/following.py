"""Applies the records of another broker, as they come, to a replica without connections.

Theory of operation. A replica is a recovery that does not end. A recovery notes eager SUBSCRIBEs, and finds what they owe at its end.
A replica finds that by scans, which go on in parts. No client takes from the queues of a replica, so `tidy` makes them again.

A replica owes at least as much as the broker that it follows. It owes more if a scan finds a topic that was acknowledged since the
scan began. A restart reads the journal, and owes exactly as much.
"""

from typing import Final, final

from maxam.broker.operations import OperationLog
from maxam.broker.recovery import Recovery
from maxam.broker.scans import Scanner
from maxam.broker.session_table import SessionTable
from maxam.records import Record, SubscriptionRecord

_TIDIED: Final = 10_000  # subscriptions that one call of `tidy` visits: some milliseconds


@final
class Following:
    """The way of the records of another broker into this one."""

    __slots__ = ("_log", "_recovery", "_scanner", "_table", "_tidied")

    def __init__(self, log: OperationLog, table: SessionTable, scanner: Scanner, recovery: Recovery) -> None:
        self._log: Final = log
        self._table: Final = table
        self._scanner: Final = scanner
        self._recovery: Final = recovery
        self._tidied: tuple[str, str] | None = None  # the last session that `tidy` visited

    def apply(self, record: Record) -> None:
        """Apply a record that is no change."""
        if type(record) is not SubscriptionRecord:
            self._recovery.apply(record)
            return
        subscription, resumed = self._recovery.subscription_of(record)
        if not resumed:
            subscription.asked_us = record.accepted_at_us
            after = -1 if record.low_water is None else record.low_water
            self._table.activate(subscription, record.eager, after)
        elif record.eager:
            self._scanner.owe_current(subscription)

    def tidy(self) -> None:
        """Make the queues of the next sessions again where they hold much that is owed no longer."""
        left = _TIDIED
        for key in self._table.sessions.irange(self._tidied, None, (False, False)):
            session = self._table.sessions[key]
            for subscription in session.subscriptions.values():
                subscription.tidy()
            left -= 1 + len(session.subscriptions)
            if left <= 0:
                self._tidied = key
                return
        self._tidied = None
