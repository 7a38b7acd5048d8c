"""The newest number of each source of a topic, so that a late retry never brings an older value after a newer one.

Theory of operation. A SEND with `source` and `source-revision` is *marked*. The headers stay with the change, so a topic's marks
are a fold over its changes in the order of revisions. `keep` is called for each change, live and at recovery, and nothing else
alters a mark. Other publishers do not erase it, nor does a delete.

A topic without marks has no entry here, which is the usual case. One with a single mark has one number, with the number of the source in its
low bits. So a million topics of one source, as a bridge makes them, take a fifth of the memory of a table for each. A snapshot holds the newest change of each topic. If its headers
do not show all marks of the topic, a SequencesRecord follows it.

Invariants:
* A topic with marks is in `_single` or in `_several`, and in the latter with two marks or more.
* `_uses` counts the topics of `_single` by source. A source without any has no number.
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
_BITS: Final = 32  # of the number of a source
_MASK: Final = (1 << _BITS) - 1


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

    __slots__ = ("_free", "_gone", "_ids", "_names", "_retention_us", "_several", "_single", "_uses")

    def __init__(self, retention_s: float) -> None:
        """Begin without marks. Those of a deleted topic count for `retention_s` seconds after its delete."""
        self._retention_us: Final = int(retention_s * 1_000_000)
        self._single: Final[dict[bytes, int]] = {}
        self._several: Final[dict[bytes, dict[bytes, int]]] = {}
        self._gone: Final[OrderedDict[bytes, tuple[int, int]]] = OrderedDict()  # accepted_at and revision of the delete
        self._ids: Final[dict[bytes, int]] = {}  # numbers of sources
        self._names: Final[list[bytes]] = []  # sources by number
        self._uses: Final[list[int]] = []  # likewise
        self._free: Final[list[int]] = []  # numbers without a source

    def __len__(self) -> int:
        """Count the topics that have marks."""
        return len(self._single) + len(self._several)

    @property
    def absent(self) -> int:
        """Number of topics without a value that are kept for their marks."""
        return len(self._gone)

    def holds(self, destination: bytes) -> bool:
        """Return True if a topic has marks, or had until a moment ago."""
        return destination in self._single or destination in self._several

    def number(self, destination: bytes, source: bytes, now_us: int) -> int:
        """Return the number that a topic keeps of a source, -1 if none counts now."""
        packed = self._single.get(destination, -1)
        if packed >= 0:
            number = packed >> _BITS if self._names[packed & _MASK] == source else -1
        else:
            several = self._several.get(destination)
            number = -1 if several is None else several.get(source, -1)
        if number >= 0 and destination in self._gone and self._expired(self._gone[destination][0], now_us):
            return -1
        return number

    def keep(self, change: Change) -> None:
        """Record the mark of a change that was applied."""
        mark = mark_of(change.headers) if SOURCE_REVISION in change.content[: change.body_at] else None
        if mark is None and not self._single and not self._several:
            return
        destination = change.destination
        if destination in self._gone:
            deleted_at_us, _ = self._gone.pop(destination)
            if self._expired(deleted_at_us, change.accepted_at_us):
                self._drop(destination)
        if mark is not None:
            self._set(destination, mark[0], mark[1])
        if change.deleted and self.holds(destination):
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
            self._drop(destination)

    # For snapshots.

    def records(self, newest: dict[bytes, Change], now_us: int) -> Iterator[SequencesRecord]:
        """Yield the sources of each topic, except what the headers of its value show and what counts no longer.

        Args:
            newest: The newest change of each topic that has a value.
            now_us: The time of the newest change of all; microseconds since the epoch.
        """
        for destination, packed in self._single.items():
            source, number = self._names[packed & _MASK], packed >> _BITS
            gone = self._gone.get(destination)
            if gone is None:
                change = newest[destination]
                if mark_of(change.headers) != (source, number):
                    yield SequencesRecord(change.revision, change.accepted_at_us, destination, ((source, number),))
            elif not self._expired(gone[0], now_us):
                yield SequencesRecord(gone[1], gone[0], destination, ((source, number),))
        for destination, numbers in self._several.items():
            gone = self._gone.get(destination)
            if gone is None:
                change = newest[destination]
                yield SequencesRecord(change.revision, change.accepted_at_us, destination, tuple(numbers.items()))
            elif not self._expired(gone[0], now_us):
                yield SequencesRecord(gone[1], gone[0], destination, tuple(numbers.items()))

    def restore(self, record: SequencesRecord, deleted: bool) -> None:
        """Set the sources of a topic from a snapshot, in place of those that its change shows.

        Args:
            record: Of the snapshot.
            deleted: The topic has no value.
        """
        destination = record.destination
        self._drop(destination)
        for source, number in record.sequences:
            self._set(destination, source, number)
        self._gone.pop(destination, None)
        if deleted:
            self._gone[destination] = (record.accepted_at_us, record.revision)

    # Pieces.

    def _set(self, destination: bytes, source: bytes, number: int) -> None:
        """Make the mark of a source the newest of a topic."""
        packed = self._single.get(destination, -1)
        if packed >= 0:
            known = packed & _MASK
            if self._names[known] == source:
                self._single[destination] = number << _BITS | known
                return
            self._several[destination] = {self._names[known]: packed >> _BITS, source: number}
            del self._single[destination]
            self._release(known)
            return
        several = self._several.get(destination)
        if several is None:
            self._single[destination] = number << _BITS | self._take(source)
            return
        several.pop(source, None)
        several[source] = number
        if len(several) > SOURCES_MAX:
            del several[next(iter(several))]

    def _drop(self, destination: bytes) -> None:
        """Forget the marks of a topic."""
        packed = self._single.pop(destination, -1)
        if packed >= 0:
            self._release(packed & _MASK)
        else:
            self._several.pop(destination, None)

    def _take(self, source: bytes) -> int:
        """Return the number of a source, for one topic more."""
        known = self._ids.get(source, -1)
        if known < 0:
            if self._free:
                known = self._free.pop()
                self._names[known] = source
            else:
                known = len(self._names)
                self._names.append(source)
                self._uses.append(0)
            self._ids[source] = known
        self._uses[known] += 1
        return known

    def _release(self, known: int) -> None:
        """Note that one topic less has a source; the last one frees its number."""
        self._uses[known] -= 1
        if self._uses[known] == 0:
            del self._ids[self._names[known]]
            self._names[known] = b""
            self._free.append(known)

    def _expired(self, deleted_at_us: int, now_us: int) -> bool:
        return now_us - deleted_at_us > self._retention_us
