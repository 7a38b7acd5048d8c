"""Group commit as a state without I/O, so that gateway and simulator run the same one.

Invariants: at most one block is being written; the operations in it and those after it are answered only once its
outcome is known, in the order in which they were appended; nothing is encoded ahead of that outcome, because a block
that did not fit the disk leaves no trace and gives its revisions back.
"""

from typing import Final, final

from maxam.broker.broker import Barrier, Broker, Operation
from maxam.journal.encoding import Block
from maxam.journal.files import Journal

# After a full disk: how long the next batch gathers, so that what must be tried again does not spin.
REFUSED_DELAY_S: Final = 0.1


@final
class GroupCommit:
    """What arrived while the last block was written is the next block.

    Attributes:
        disk_full: The newest block with a change in it did not fit, and no room has been found since.
    """

    __slots__ = (
        "_broker",
        "_journal",
        "_kept",
        "_not_before_s",
        "_settling",
        "_writing",
        "disk_full",
    )

    def __init__(self, broker: Broker, journal: Journal) -> None:
        self._broker: Final = broker
        self._journal: Final = journal
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

        Operations with nothing to journal that are not behind a block are committed at once.
        """
        if self._writing is not None or now_s < self._not_before_s:
            return None
        while self._kept or self._broker.pending:
            operations = self._kept or self._broker.take()
            self._kept = []
            records = [operation for operation in operations if type(operation) is not Barrier]
            if records:
                block = self._journal.encode(records)
                self._writing = operations
                self._settling = block.settling
                return block
            self._broker.commit(operations)
        return None

    def written(self) -> None:
        """Say that the block is durable: commits its operations."""
        operations = self._finished()
        self.disk_full = self.disk_full and self._settling
        self._broker.commit(operations)

    def refused(self, now_s: float) -> None:
        """Say that the disk is full and nothing of the block is left: refuses it and what was appended behind it.

        What the broker keeps of it is the next block, by itself: beside a SEND it could not use the reserve.
        """
        operations = self._finished()
        self.disk_full = True
        self._broker.refuse(operations)
        if self._broker.pending and not self._settling:
            self._kept = self._broker.take()
        else:
            self._not_before_s = now_s + REFUSED_DELAY_S

    def found_room(self) -> bool:
        """Take note that a block as large as the last one would fit now; return whether that is news."""
        if self.writing or not self.disk_full:
            return False  # the outcome of what is being written tells more
        self.disk_full = False
        return True

    def _finished(self) -> list[Operation]:
        operations = self._writing
        if operations is None:
            raise AssertionError("no block is being written")
        self._writing = None
        return operations
