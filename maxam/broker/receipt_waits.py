"""The connections with a RECEIPT that waits for a batch: they are woken when the batch is done."""

from collections import deque
from typing import Final, final

from maxam.broker.operations import OperationLog
from maxam.broker.outbox import Outbox
from maxam.records import Identity


@final
class ReceiptWaits:
    """The connections of one broker whose RECEIPTs wait for operations that are not done."""

    __slots__ = ("_log", "_pending", "_taken")

    def __init__(self, log: OperationLog) -> None:
        self._log: Final = log
        self._pending: dict[Outbox, None] = {}  # wait for an operation that is pending
        self._taken: Final[deque[dict[Outbox, None]]] = deque()  # wait for a batch, for each batch taken

    def add(self, connection: Outbox) -> None:
        """Have a connection woken when the operations that are pending now are done, if a RECEIPT of it waits for that."""
        receipts = connection.receipts
        if not receipts:
            return
        if receipts[0][0] <= self._log.applied_seq:
            connection.wake_if_due()
        if receipts[-1][0] > self._log.applied_seq:
            if self._taken:  # it may wait for what is taken already, and nothing else may come
                self._taken[-1][connection] = None
            if not connection.waiting:
                connection.waiting = True
                self._pending[connection] = None

    def batch_taken(self) -> None:
        """Record that pending operations were taken as one batch. If some are left, connections go on waiting for these."""
        if self._log.pending:
            self._taken.append(self._pending.copy())
            return
        for connection in self._pending:
            connection.waiting = False
        self._taken.append(self._pending)
        self._pending = {}

    def batch_applied(self) -> None:
        """Wake the connections that waited for the oldest batch taken."""
        for connection in self._taken.popleft():
            connection.wake_if_due()

    def passed(self, batches: int) -> None:
        """Wake connections after operations of the oldest batches are done: `batches` of them are done wholly."""
        for _ in range(batches):
            self.batch_applied()
        if self._taken:
            for connection in self._taken[0]:
                connection.wake_if_due()

    def of(self, identity: Identity) -> Outbox | None:
        """Return the connection with an identity, if it waits. One that has lost its session still answers what it had read."""
        for connections in (*self._taken, self._pending):
            for connection in connections:
                if connection.identity is identity:
                    return connection
        return None

    def batch_refused(self) -> list[Outbox]:
        """Return the connections that wait for the oldest batch taken or a pending operation; none waits after that."""
        waiting = self._taken.popleft()
        waiting.update(self._pending)
        self._pending = {}
        for connection in waiting:
            connection.waiting = False
        return list(waiting)
