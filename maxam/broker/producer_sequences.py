"""The newest number of each source of a topic, so that a late retry never brings an older value after a newer one.

Theory of operation. A SEND with `source` and `source-revision` is *marked*. The headers stay with the change, so a topic's marks
are a fold over its changes in the order of revisions. `keep` is called for each change, live and at recovery, and nothing else
alters a mark. Other publishers do not erase it, nor does a delete.

A topic without marks has no entry here, which is the usual case. A snapshot holds the newest change of each topic. If its headers
do not show all marks of the topic, a SequencesRecord follows it.

Invariants:
* A topic keeps at most SOURCES_MAX marks, those of the sources that changed it last, oldest first.
* `_gone` lists exactly the topics with marks whose newest change is a delete, in the order of those deletes. Their marks count
  until the retention after that delete ends, whenever their memory is freed.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, final

from maxam.records import Change, Headers, SequencesRecord
from maxam.stomp.events import SOURCE, SOURCE_REVISION, is_mark, parse_number

# Of one topic. Two publishers that hand over and a repair need three; more would be one topic with many owners.
SOURCES_MAX: Final = 4


def mark_of(headers: Headers) -> tuple[bytes, int] | None:
    """Return source and number of a marked change, None of any other."""
    source: bytes | None = None
    number = -1
    for name, value in headers:
        if name == SOURCE:
            source = value
        elif name == SOURCE_REVISION:
            number = parse_number(value)
    return None if source is None or not is_mark(source, number) else (source, number)


@final
class ProducerSequences:
    """The marks of all topics."""

    __slots__ = ("_gone", "_numbers", "_retention_us")

    def __init__(self, retention_s: float) -> None:
        """Begin without marks. Those of a deleted topic count for `retention_s` seconds after its delete."""
        self._retention_us: Final = int(retention_s * 1_000_000)
        self._numbers: Final[dict[bytes, dict[bytes, int]]] = {}
        self._gone: Final[OrderedDict[bytes, tuple[int, int]]] = OrderedDict()  # accepted_at and revision of the delete

    def __len__(self) -> int:
        """Count the topics that have marks."""
        return len(self._numbers)

    @property
    def absent(self) -> int:
        """Number of topics without a value that are kept for their marks."""
        return len(self._gone)

    def holds(self, destination: bytes) -> bool:
        """Return True if a topic has marks, or had until a moment ago."""
        return destination in self._numbers

    def number(self, destination: bytes, source: bytes, now_us: int) -> int:
        """Return the number that a topic keeps of a source, -1 if none counts now."""
        numbers = self._numbers.get(destination)
        if numbers is None or (destination in self._gone and self._expired(self._gone[destination][0], now_us)):
            return -1
        return numbers.get(source, -1)

    def keep(self, change: Change) -> None:
        """Record the mark of a change that was applied."""
        mark = mark_of(change.headers) if SOURCE_REVISION in change.content[: change.body_at] else None
        if mark is None and not self._numbers:
            return
        destination = change.destination
        numbers = self._numbers.get(destination)
        if numbers is not None and destination in self._gone:
            deleted_at_us, _ = self._gone.pop(destination)
            if self._expired(deleted_at_us, change.accepted_at_us):
                del self._numbers[destination]
                numbers = None
        if mark is not None:
            if numbers is None:
                numbers = self._numbers[destination] = {}
            source, number = mark
            numbers.pop(source, None)
            numbers[source] = number
            if len(numbers) > SOURCES_MAX:
                del numbers[next(iter(numbers))]
        if change.deleted and numbers is not None:
            self._gone[destination] = (change.accepted_at_us, change.revision)
            self.forget(change.accepted_at_us)

    def forget(self, now_us: int) -> None:
        """Free the marks of deleted topics that count no longer at a time."""
        gone = self._gone
        while gone:
            destination = next(iter(gone))
            if not self._expired(gone[destination][0], now_us):
                break
            del gone[destination]
            del self._numbers[destination]

    # For snapshots.

    def records(self, newest: dict[bytes, Change], now_us: int) -> Iterator[SequencesRecord]:
        """Yield the sources of each topic, except what the headers of its value show and what counts no longer.

        Args:
            newest: The newest change of each topic that has a value.
            now_us: The time of the newest change of all; microseconds since the epoch.
        """
        for destination, numbers in self._numbers.items():
            gone = self._gone.get(destination)
            if gone is not None:
                deleted_at_us, revision = gone
                if not self._expired(deleted_at_us, now_us):
                    yield SequencesRecord(revision, deleted_at_us, destination, tuple(numbers.items()))
                continue
            change = newest[destination]
            mark = mark_of(change.headers)
            if mark is None or numbers != {mark[0]: mark[1]}:
                yield SequencesRecord(change.revision, change.accepted_at_us, destination, tuple(numbers.items()))

    def restore(self, record: SequencesRecord, deleted: bool) -> None:
        """Set the sources of a topic from a snapshot, in place of those that its change shows.

        Args:
            record: Of the snapshot.
            deleted: The topic has no value.
        """
        self._numbers[record.destination] = dict(record.sequences)
        self._gone.pop(record.destination, None)
        if deleted:
            self._gone[record.destination] = (record.accepted_at_us, record.revision)

    def _expired(self, deleted_at_us: int, now_us: int) -> bool:
        return now_us - deleted_at_us > self._retention_us
