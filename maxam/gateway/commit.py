"""Group commit as a state without I/O, so that gateway and simulator run the same one.

Invariants:
* at most one block is being written;
* its operations and later ones are answered only once its outcome is known, in the order in which they were appended;
* nothing is encoded before that outcome, because a block that did not fit the disk gives its revisions back.
"""

from typing import Final, Protocol, final

from maxam.broker.broker import Broker
from maxam.broker.operations import Operation, Proof, Refusal, TransientSubscribe
from maxam.journal.encoding import Block
from maxam.records import Record

# After a full disk: how long the next batch gathers, so that what must be tried again does not spin.
REFUSED_DELAY_S: Final = 0.1


class Stored(Protocol):
    """A journal as group commit sees it; `Journal` is one."""

    @property
    def block_bytes_max(self) -> int:
        """Size from which on a block takes no further operation; 0 for no limit."""

    @property
    def proves(self) -> bool:
        """Whether operations without a record need a block too: an empty one proves that the journal is still ours."""

    def encode(self, records: list[Record]) -> Block:
        """Return one block of records that follow those encoded before."""


class Fronted(Protocol):
    """The fronts whose operations are ordered here, as group commit sees them."""

    def taken(self, operations: list[Operation]) -> bytes:
        """Note the operations of the next block, in their order; return the origins that a log keeps with it."""

    def committed(self, block: Block | None) -> None:
        """Send the fronts the block, which is durable, with what it settles; None if the operations have no record."""

    def refused(self, refusal: Refusal) -> None:
        """Send the fronts what was given back, as the disk is full."""


@final
class GroupCommit:
    """Makes the next block of all that arrived while the last one was written.

    Attributes:
        disk_full: The newest block with a change in it did not fit, and no room has been found since.
        fronted: The fronts whose operations are ordered here. None without fronts.
    """

    __slots__ = (
        "_block",
        "_block_bytes_max",
        "_broker",
        "_kept",
        "_not_before_s",
        "_proves",
        "_settling",
        "_stored",
        "_writing",
        "disk_full",
        "fronted",
    )

    def __init__(self, broker: Broker, stored: Stored) -> None:
        self._broker: Final = broker
        self._stored: Final = stored
        self._block_bytes_max: Final[int] = stored.block_bytes_max
        self._proves: Final[bool] = stored.proves
        broker.proves = stored.proves
        self.fronted: Fronted | None = None
        self._block: Block | None = None  # under way, for the fronts
        self._writing: list[Operation] | None = None
        self._kept: list[Operation] = []  # by a refusal: the next block by itself
        self._settling = False  # what is being written only frees room later: it may use the reserve
        self._not_before_s = -1.0
        self.disk_full = False

    @property
    def writing(self) -> bool:
        """A block was handed out and its outcome is not known yet."""
        return self._writing is not None

    @property
    def idle(self) -> bool:
        """Everything that was appended is committed or refused."""
        return self._writing is None and not self._kept and not self._broker.pending

    @property
    def due_s(self) -> float | None:
        """When to ask `next_block` again though nothing new came, or None."""
        return None if self.writing or self.idle else self._not_before_s

    def next_block(self, now_s: float) -> Block | None:
        """Return the block to write now, or None when there is none or one is being written.

        Operations with nothing to journal that do not follow a block are committed at once.
        """
        if self._writing is not None or now_s < self._not_before_s:
            return None
        while self._kept or self._broker.pending:
            operations = self._kept or self._broker.take_batch(self._block_bytes_max)
            self._kept = []
            origins = b"" if self.fronted is None else self.fronted.taken(operations)
            records = [one for one in operations if type(one) is not TransientSubscribe and type(one) is not Proof]
            if records or self._proves:
                block = self._stored.encode(records)
                self._writing = operations
                self._settling = block.settling
                block.origins = origins
                if self.fronted is not None:
                    self._block = block
                return block
            if self.fronted is not None:
                self.fronted.committed(None)
            self._broker.apply_batch(operations)
        return None

    def written(self) -> None:
        """Commit the operations of the block, which is durable."""
        operations = self._finished()
        self.disk_full = self.disk_full and self._settling
        if self.fronted is not None:
            self.fronted.committed(self._block)
        self._broker.apply_batch(operations)

    def refused(self, now_s: float) -> None:
        """Roll back the block and all that was appended after it: the disk is full, and nothing of the block is left.

        The operations that the broker keeps are the next block by themselves. Beside a SEND they could not use the reserve.
        """
        operations = self._finished()
        self.disk_full = True
        refusal = self._broker.roll_back_batch(operations)
        if self.fronted is not None:
            self.fronted.refused(refusal)
        if self._broker.pending and not self._settling:
            self._kept = self._broker.take_batch()
        else:
            self._not_before_s = now_s + REFUSED_DELAY_S

    def found_room(self) -> bool:
        """Record that a block as large as the last one would fit now; return True if that is news."""
        if self.writing or not self.disk_full:
            return False  # the outcome of the block that is being written will show it
        self.disk_full = False
        return True

    def _finished(self) -> list[Operation]:
        operations = self._writing
        if operations is None:
            raise AssertionError("no block is being written")
        self._writing = None
        return operations
