"""The state that SENDs with a condition are compared with: the newest changes in the order of operations, committed or not.

A SEND with `if-revision` is compared with its topic's revision, one with `source-revision` with what the topic keeps of that source.
The answer holds only if the operation that decided it is done, so its position is returned too.
"""

from typing import Final, final

from maxam.broker.operations import OperationLog
from maxam.broker.producer_sequences import ProducerSequences
from maxam.broker.session import Topic
from maxam.records import REVISION_NONE, Change


@final
class Conditions:
    """Revisions and sources of topics, including the changes that are not committed yet.

    Attributes:
        sequences: The committed numbers of the sources of topics.
    """

    __slots__ = ("_indexed", "_keeping", "_log", "_revisions", "_sources", "sequences")

    def __init__(self, log: OperationLog, retention_s: float) -> None:
        self.sequences: Final = ProducerSequences(retention_s)
        self._log: Final = log
        # Both are of changes that are not done, each with the position of the change. The revision is 0 if there is no value. Revisions
        # are complete up to the position `_indexed`.
        self._revisions: dict[bytes, tuple[int, int]] = {}
        self._sources: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._indexed = 0
        # A change may have a mark, or its topic may: not so once recovery is over and none has come.
        self._keeping = True

    def newest(self, destination: bytes, topic: Topic | None) -> tuple[int, int]:
        """Return the revision of a topic's newest value, 0 for none, and the position of that change, 0 if it is committed."""
        if self._indexed < self._log.appended_seq:
            self._index()
        coming = self._revisions.get(destination)
        if coming is not None:
            return coming
        return (REVISION_NONE if topic is None or topic.change.deleted else topic.change.revision, 0)

    def newest_of_source(self, destination: bytes, source: bytes, now_us: int) -> tuple[int, int]:
        """Return the number that a topic keeps of a source, -1 if none, and the position of its change, 0 if it is committed."""
        number, position = self._sources.get((destination, source), (-1, 0))
        if number < 0:
            number = self.sequences.number(destination, source, now_us)
        return number, position

    def expect(self, destination: bytes, source: bytes, number: int, position: int) -> None:
        """Record that a change with a mark was appended at a position."""
        self._sources[destination, source] = (number, position)
        self._keeping = True

    def keep(self, change: Change) -> None:
        """Record the mark of a change that is applied."""
        if self._keeping:
            self.sequences.keep(change)

    def finish(self) -> None:
        """Forget the operations that are done now."""
        done = self._log.applied_seq
        if self._revisions or self._sources:
            self._revisions = {key: told for key, told in self._revisions.items() if told[1] > done}
            self._sources = {key: told for key, told in self._sources.items() if told[1] > done}
        self._keeping = len(self._sources) > 0 or len(self.sequences) > 0

    def refuse(self) -> None:
        """Forget all changes that were not done: they were refused."""
        self._revisions.clear()
        self._sources.clear()
        self._indexed = self._log.appended_seq  # no change of a topic is kept

    def _index(self) -> None:
        """Look up the topics of what was appended since the last SEND that asked: the others pay nothing for it."""
        position = self._log.applied_seq
        indexed = max(self._indexed, position)
        for batch in self._log.uncommitted():
            for place in range(max(0, indexed - position), len(batch)):  # a batch grows while the disk stalls
                operation = batch[place]
                if type(operation) is Change:
                    revision = REVISION_NONE if operation.deleted else operation.revision
                    self._revisions[operation.destination] = (revision, position + place + 1)
            position += len(batch)
        self._indexed = self._log.appended_seq
