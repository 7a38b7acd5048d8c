"""Which values of its sources a topic has had, so that a late retry of a source never brings an older value after a newer.

Theory of operation. A SEND with `source` and `source-revision` is *marked*; the headers travel with the change. What a topic
keeps of each source, the number of its newest marked change, is a fold over the changes in the order of their revisions: `keep` is
called for each, live as in recovery, and nothing else alters it. Other publishers do not erase a mark, nor does a delete.

A topic without marks, which is nearly every one, has nothing here. A snapshot holds one change per topic, so what that one's own
headers do not tell goes with it in `kept-source` headers, a name that no client can send. Of a topic that holds no
value it writes a delete by nobody, which is for this alone.

Invariants:
* a topic keeps at most SOURCES_MAX marks, those of the sources that changed it last, oldest first;
* `_gone` names exactly those topics with marks whose newest change is a delete, in the order of those deletes: their marks count for
  the retention from that delete on, and not a microsecond longer, whenever the memory of them is freed.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, final

from maxam.content import pack
from maxam.records import UNJUDGED, Change, Headers, Identity
from maxam.stomp.events import SOURCE, SOURCE_REVISION, is_mark, parse_number

# Of one topic: two publishers that hand over, and a repair; more would be one topic with many owners.
SOURCES_MAX: Final = 4
KEPT: Final = b"kept-source"  # `<number> <source>`; of the dropped names of SEND
_NOBODY: Final = Identity("", "")


def mark_of(headers: Headers) -> tuple[bytes, int] | None:
    """Return source and number of a marked change, None of any other; whatever was stored before marks were known is one."""
    source: bytes | None = None
    number = -1
    for name, value in headers:
        if name == SOURCE:
            source = value
        elif name == SOURCE_REVISION:
            number = parse_number(value)
    return None if source is None or not is_mark(source, number) else (source, number)


@final
class Marks:
    """The marks of all topics."""

    __slots__ = ("_gone", "_numbers", "_retention_us")

    def __init__(self, retention_s: float) -> None:
        """Keep nothing yet, and the marks of a deleted topic for so long after its delete."""
        self._retention_us: Final = int(retention_s * 1_000_000)
        self._numbers: Final[dict[bytes, dict[bytes, int]]] = {}
        self._gone: Final[OrderedDict[bytes, tuple[int, int]]] = OrderedDict()  # accepted_at and revision of the delete

    def __len__(self) -> int:
        """Count the topics that have marks."""
        return len(self._numbers)

    @property
    def absent(self) -> int:
        """How many topics are kept for their marks alone, as they hold no value."""
        return len(self._gone)

    def holds(self, destination: bytes) -> bool:
        """Say whether a topic has marks, or had until a moment ago."""
        return destination in self._numbers

    def number(self, destination: bytes, source: bytes, now_us: int) -> int:
        """Return the number that a topic keeps of a source, -1 if none counts now."""
        numbers = self._numbers.get(destination)
        if numbers is None or (destination in self._gone and self._expired(self._gone[destination][0], now_us)):
            return -1
        return numbers.get(source, -1)

    def keep(self, change: Change) -> None:
        """Take note of a change that was applied."""
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
        """Free what counts no more, now that a change was accepted at that time."""
        gone = self._gone
        while gone:
            destination = next(iter(gone))
            if not self._expired(gone[destination][0], now_us):
                break
            del gone[destination]
            del self._numbers[destination]

    # For snapshots.

    def told(self, change: Change) -> Change:
        """Return a topic's newest change as a snapshot holds it: with the marks that its own headers do not tell."""
        numbers = self._numbers.get(change.destination)
        if numbers is None:
            return change
        if change.deleted:
            gone = self._gone.get(change.destination)
            if gone is None or gone[1] != change.revision:
                return change  # deleted again since: `absentees` tells
        else:
            own = mark_of(change.headers)
            if own is not None and len(numbers) == 1 and own[0] in numbers:
                return change
        return Change(
            change.revision,
            change.accepted_at_us,
            change.destination,
            change.deleted,
            change.publisher,
            change.judgement,
            *pack(change.headers + _kept(numbers), change.body),
        )

    def absentees(self, now_us: int, told: set[int]) -> Iterator[Change]:
        """Yield, for each topic without a value whose delete is not among the revisions told, a delete by nobody."""
        for destination, (deleted_at_us, revision) in self._gone.items():
            if revision not in told and not self._expired(deleted_at_us, now_us):
                content, body_at = pack(_kept(self._numbers[destination]), b"")
                yield Change(revision, deleted_at_us, destination, True, _NOBODY, UNJUDGED, content, body_at)

    def restore(self, change: Change) -> Change | None:
        """Take the marks out of a snapshot's change; return what it was before, None if it was for them alone."""
        numbers: dict[bytes, int] = {}
        headers: list[tuple[bytes, bytes]] = []
        for name, value in change.headers:
            if name == KEPT:
                number, _, source = value.partition(b" ")
                numbers[source] = int(number)
            else:
                headers.append((name, value))
        destination = change.destination
        self._numbers[destination] = numbers
        self._gone.pop(destination, None)
        if change.deleted:
            self._gone[destination] = (change.accepted_at_us, change.revision)
        if not change.publisher.principal:
            return None
        return Change(
            change.revision,
            change.accepted_at_us,
            destination,
            change.deleted,
            change.publisher,
            change.judgement,
            *pack(tuple(headers), change.body),
        )

    def _expired(self, deleted_at_us: int, now_us: int) -> bool:
        return now_us - deleted_at_us > self._retention_us


def tells_marks(change: Change) -> bool:
    """Say whether a change is one of a snapshot that `restore` must see before it is applied."""
    return KEPT in change.content[: change.body_at] and change.headers[-1][0] == KEPT


def _kept(numbers: dict[bytes, int]) -> Headers:
    return tuple([(KEPT, b"%d %b" % (number, source)) for source, number in numbers.items()])
