"""The order of operations: those appended, those that the journal is writing, and how many are done.

Theory of operation. An operation gets its *position* when it is appended. `take_batch` hands what is pending to the journal as one
batch, all of it or the oldest up to a size. A batch ends with `finish_batch`, once it was applied, or with `roll_back_batch`, if the disk had no room for it.

Invariants:
* operations are done in the order in which they were appended, a batch at a time, and `applied_seq <= appended_seq`;
* revisions of appended changes are gapless and only grow; a refusal gives back those of the changes that it drops.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, final

from maxam.broker.session import Subscription
from maxam.records import Change, Record, SubscriptionRecord, WillEndRecord, WillRecord


@final
class TransientSubscribe:
    """A SUBSCRIBE that takes effect in order but leaves nothing in the journal."""

    __slots__ = ("after", "eager", "subscription")

    def __init__(self, subscription: Subscription, eager: bool, after: int = -1) -> None:
        self.subscription: Final = subscription
        self.eager: Final = eager
        self.after: Final = after  # changes after this revision are owed; -1 for none


@final
class SessionStep:
    """A request of a front: to claim a session for a connection, or to give it back.

    Attributes:
        claims: True for a claim.
        principal: Of the session.
        client_id: Of the session.
    """

    __slots__ = ("claims", "client_id", "principal")

    def __init__(self, claims: bool, principal: str, client_id: str) -> None:
        self.claims: Final = claims
        self.principal: Final = principal
        self.client_id: Final = client_id


@final
class Proof:
    """An operation without a record: once it is done, the journal was still ours when it was appended.

    Attributes:
        on_done: Called when it is done; None for none. It must not call back into the broker's requests.
        step: On a front, its request about a session.
    """

    __slots__ = ("on_done", "step")

    def __init__(self, on_done: Callable[[], None] | None = None, step: SessionStep | None = None) -> None:
        self.on_done: Final = on_done
        self.step: Final = step


@final
class Terms:
    """The part of a SEND that a front leaves to the broker that orders it.

    Attributes:
        connection: Number of its connection on the front, if a rejected SEND ends that; else 0.
        expected: Its `if-revision`, or -1.
        source: Name of its source, or None.
        number: Its `source-revision`.
    """

    __slots__ = ("connection", "expected", "number", "source")

    def __init__(self, connection: int, expected: int, source: bytes | None, number: int) -> None:
        self.connection: Final = connection
        self.expected: Final = expected
        self.source: Final = source
        self.number: Final = number


Operation = Record | TransientSubscribe | Proof
_RECORD_BYTES: Final = 256  # what a record without a body counts for in the size of a batch


@final
class Refusal:
    """The effects of a full disk on what was appended.

    Attributes:
        done: How many operations were done before.
        changes: Changes that were dropped.
        subscriptions: Those whose SubscriptionRecord was dropped.
        failed: Positions of the SUBSCRIBEs that were dropped.
        moved: New positions of the operations that stay pending, by their old ones.
        wills: Records of last wills that were dropped, in their order.
    """

    __slots__ = ("changes", "done", "failed", "moved", "subscriptions", "wills")

    def __init__(self, done: int) -> None:
        self.done: Final = done
        self.changes: Final[list[Change]] = []
        self.subscriptions: Final[dict[Subscription, None]] = {}
        self.failed: Final[set[int]] = set()
        self.moved: Final[dict[int, int]] = {}
        self.wills: Final[list[WillRecord | WillEndRecord]] = []


@final
class OperationLog:
    """The operations of one broker, in their order.

    Attributes:
        incarnation: Of the journal; empty for none.
        head_revision: Revision of the newest appended change.
        committed_revision: Revision of the newest applied change.
        accepted_at_us: When the newest appended change was accepted; never decreases.
        appended_seq: How many operations were appended.
        applied_seq: How many of them were applied or refused.
        pending: Operations not yet taken, oldest first.
        proves: An answer that depends on the state of the journal alone waits for a Proof.
    """

    __slots__ = (
        "_finished",
        "_pending_us",
        "_proof",
        "_taken",
        "_taken_us",
        "accepted_at_us",
        "appended_seq",
        "applied_seq",
        "committed_revision",
        "head_revision",
        "incarnation",
        "pending",
        "proves",
    )

    def __init__(self) -> None:
        self.incarnation = ""
        self.head_revision = 0
        self.committed_revision = 0
        self.accepted_at_us = 0
        self.appended_seq = 0
        self.applied_seq = 0
        self.pending: list[Operation] = []
        self.proves = False
        self._proof = 0  # position of the newest Proof
        self._taken: Final[deque[list[Operation]]] = deque()  # batches that are neither applied nor refused
        # When the first change was accepted of those that are pending, and of each batch taken; 0 if there is none.
        self._pending_us = 0
        self._taken_us: Final[deque[int]] = deque()
        self._finished = 0  # operations of the oldest batch that are done, on a front

    def append(self, operation: Operation) -> int:
        """Append an operation that has no revision; return its position."""
        self.pending.append(operation)
        self.appended_seq += 1
        return self.appended_seq

    def append_change(self, change: Change) -> int:
        """Append a change, whose revision is `head_revision` + 1; return its position."""
        self.pending.append(change)
        if not self._pending_us:
            self._pending_us = change.accepted_at_us
        # Not before: if memory ran out for a large body, the next change would leave a gap, and end the process.
        self.head_revision += 1
        self.appended_seq += 1
        return self.appended_seq

    def prove(self) -> int:
        """Return the position of a pending Proof; one is enough for a batch."""
        if self._proof <= self.appended_seq - len(self.pending):
            self._proof = self.append(Proof())
        return self._proof

    def take_batch(self, bytes_max: int = 0) -> list[Operation]:
        """Hand over the oldest operations appended since the last take, as one batch, in order.

        Args:
            bytes_max: Size from which on a batch takes no further operation; 0 takes all. The end of a will stays with its change.
        """
        batch = self.pending
        self.pending = []
        if bytes_max and (count := count_within(batch, bytes_max)) < len(batch):
            self.pending = batch[count:]
            batch = batch[:count]
        self._taken.append(batch)
        self._taken_us.append(self._pending_us)
        self._pending_us = _first_us(self.pending) if self.pending else 0
        return batch

    def finish_batch(self, batch: list[Operation]) -> None:
        """Count the oldest batch taken as done, now that it was applied."""
        self.applied_seq += len(batch)
        self._taken.popleft()
        self._taken_us.popleft()

    def finish_to(self, position: int) -> int:
        """Count the operations up to a position as done, of batches that were taken; return how many batches ended."""
        self._finished += position - self.applied_seq
        self.applied_seq = position
        ended = 0
        while self._taken and len(self._taken[0]) <= self._finished:
            self._finished -= len(self._taken.popleft())
            self._taken_us.popleft()
            ended += 1
        return ended

    def roll_back_batch(self, batch: list[Operation]) -> Refusal:
        """Undo the append of the oldest batch taken, and of all operations after it; return what that concerns.

        Changes, durable SUBSCRIBEs, new wills, and ends of wills whose change is dropped too, are dropped. Operations that only free
        room later (ACKs, UNSUBSCRIBEs, ends of sessions and of other wills) stay pending, in order, and barriers too.
        """
        self._taken.popleft()
        self._taken_us.popleft()
        self._pending_us = 0
        refusal = Refusal(self.applied_seq)
        kept: list[Operation] = []
        for position, operation in enumerate([*batch, *self.pending], self.applied_seq + 1):
            if type(operation) is Change:
                refusal.changes.append(operation)
            elif type(operation) is SubscriptionRecord:
                refusal.failed.add(position)
                if isinstance(operation.target, Subscription):
                    refusal.subscriptions[operation.target] = None
            elif type(operation) is WillRecord or (type(operation) is WillEndRecord and operation.fired):
                refusal.wills.append(operation)
            elif type(operation) is TransientSubscribe and _fails(operation.subscription, refusal):
                refusal.failed.add(position)
            else:
                kept.append(operation)
                refusal.moved[position] = self.appended_seq + len(kept)
        self.pending = kept
        self.head_revision = self.committed_revision
        self.applied_seq = self.appended_seq
        self.appended_seq += len(kept)
        return refusal

    def uncommitted(self) -> list[list[Operation]]:
        """Return the operations that are not done, oldest first, batch by batch: those of the first have position `applied_seq` + 1 onwards."""
        return [*self._taken, self.pending]

    def uncommitted_values(self) -> Iterator[bytes]:
        """Iterate over the destinations of values that are accepted and not yet applied."""
        for batch in self.uncommitted():
            for operation in batch:
                if type(operation) is Change and not operation.deleted:
                    yield operation.destination

    def uncommitted_since_us(self, now_us: int) -> int:
        """Return when the oldest change was accepted that may not be done, `now_us` if there is none."""
        for since_us in (*self._taken_us, self._pending_us):
            if since_us:
                return min(now_us, since_us)
        return now_us


def count_within(operations: list[Operation], bytes_max: int) -> int:
    """Return how many of the oldest operations make a batch of a size, at least one."""
    size = 0
    for count, operation in enumerate(operations):
        if size >= bytes_max and not (type(operation) is WillEndRecord and operation.fired):
            return count
        size += _RECORD_BYTES
        if type(operation) is Change or type(operation) is WillRecord:
            size += len(operation.content)
    return len(operations)


def _first_us(operations: list[Operation]) -> int:
    """Return when the first change among operations was accepted, 0 without one."""
    for operation in operations:
        if type(operation) is Change:
            return operation.accepted_at_us
    return 0


def _fails(subscription: Subscription, refusal: Refusal) -> bool:
    """Return True if a barrier resumed a subscription that fails with its SubscriptionRecord."""
    if not subscription.durable or subscription.applied:
        return False
    return subscription.removed or subscription in refusal.subscriptions
