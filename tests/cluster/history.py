"""Check a history of operations against the one order of the journal: linearizability by revision.

Theory of operation. In general it is hard to decide whether a history is linearizable, because its order must be found. Here the
broker states the order: each accepted SEND has a revision, which the journals show. Two checks remain. This order never contradicts
real time. Each answer is right at some moment between request and answer. That takes O(n log n).

Moments become revisions by two bounds. The *floor* of a moment is the highest revision that was known before it, by a RECEIPT or a
MESSAGE. The *ceiling* is the revision before the lowest one whose SEND began later. The state that an answer was decided in lies
between the floor of its begin and the ceiling of its end.

A SEND of unknown outcome may be in the order or not. If it is there, its begin bounds the later ones.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final, final


class Outcome(StrEnum):
    """Answer to a SEND, as its client knows it."""

    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    SUPERSEDED = "superseded"
    CONFLICT = "conflict"
    REFUSED = "refused"


class Kind(StrEnum):
    """Kinds of violations."""

    GAP = "revisions have a gap"
    TWICE = "an operation is in the order twice"
    FOREIGN = "a revision is of an operation that no client sent"
    LOST = "an accepted operation is not in the order"
    REFUSED_FOUND = "a refused operation is in the order"
    OTHER_REVISION = "a client was given another revision than the order has"
    REAL_TIME = "the order contradicts real time"
    CONDITION = "a condition was not true at its revision"
    CONFLICT = "a conflict was reported while the condition was true"
    SUPERSEDED = "no change of the source had superseded an operation"
    STALE_READ = "a read lacks what was accepted before it began"
    FUTURE_READ = "a read shows what was sent after it ended"


@final
@dataclass(frozen=True, slots=True)
class Row:
    """A change in the journal.

    Attributes:
        revision: Its place in the order, from 1.
        topic: Destination.
        number: Of the operation.
        deleted: The topic has no value from here on.
    """

    revision: int
    topic: str
    number: int
    deleted: bool


@final
@dataclass(slots=True)
class Operation:
    """A SEND, and all repetitions of it.

    Attributes:
        number: Unique. It grows within a source.
        topic: Destination.
        began_s: Before the first try was written.
        ended_s: After its RECEIPT was read; infinite without one.
        deleted: It deletes the topic.
        outcome: Its answer.
        revision: Of its RECEIPT; 0 without one.
        if_revision: Its condition; -1 for none.
        source: Its source; empty for none.
    """

    number: int
    topic: str
    began_s: float
    ended_s: float = math.inf
    deleted: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    revision: int = 0
    if_revision: int = -1
    source: str = ""


@final
@dataclass(frozen=True, slots=True)
class Read:
    """A complete snapshot of some topics, by an eager subscription.

    Attributes:
        began_s: Before its SUBSCRIBE was written.
        ended_s: After it was complete.
        topics: All topics of its glob, with or without value.
        shown: The revision that was shown first, by topic.
    """

    began_s: float
    ended_s: float
    topics: Sequence[str]
    shown: Mapping[str, int]


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """The first MESSAGE with a revision.

    Attributes:
        number: Of the operation that it shows.
        at_s: When it was read.
    """

    number: int
    at_s: float


@final
@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        kind: The promise.
        text: Where and how it was broken.
    """

    kind: Kind
    text: str


@final
@dataclass(slots=True)
class History:
    """All that clients know of a run.

    Attributes:
        operations: By number.
        shown: By revision.
        reads: Complete snapshots.
    """

    operations: dict[int, Operation] = field(default_factory=dict)
    shown: dict[int, Shown] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)


@final
class _Bounds:
    """The floor and the ceiling of moments."""

    def __init__(self, rows: Sequence[Row], done_s: Sequence[float], history: History) -> None:
        known = sorted((at_s, row.revision) for row, at_s in zip(rows, done_s, strict=True))
        self._known_s: Final = [at_s for at_s, _ in known]
        self._known: Final = list(accumulate((revision for _, revision in known), max))
        begun = sorted(
            (history.operations[row.number].began_s, row.revision) for row in rows if row.number in history.operations
        )
        self._begun_s: Final = [at_s for at_s, _ in begun]
        self._begun: Final = list(accumulate((revision for _, revision in reversed(begun)), min))[::-1]
        self._head: Final = rows[-1].revision if rows else 0

    def floor(self, at_s: float) -> int:
        """Return the highest revision that was known before a moment."""
        place = bisect_left(self._known_s, at_s)
        return self._known[place - 1] if place else 0

    def ceiling(self, at_s: float) -> int:
        """Return the highest revision that is possible at a moment."""
        place = bisect_right(self._begun_s, at_s)
        return self._begun[place] - 1 if place < len(self._begun) else self._head


@final
class _Topics:
    """The changes of each topic."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._changes: Final[dict[str, list[int]]] = {}
        self._values: Final[dict[str, list[int]]] = {}  # revision of the value after each change, 0 for none
        for row in rows:
            self._changes.setdefault(row.topic, []).append(row.revision)
            self._values.setdefault(row.topic, []).append(0 if row.deleted else row.revision)

    def newest(self, topic: str, revision: int) -> int:
        """Return the newest change of a topic up to a revision; 0 for none."""
        changes = self._changes.get(topic, [])
        place = bisect_right(changes, revision)
        return changes[place - 1] if place else 0

    def values(self, topic: str, first: int, last: int) -> Iterator[int]:
        """Return the revisions of the values that a topic had after each revision from `first` to `last`; 0 for no value."""
        changes, values = self._changes.get(topic, []), self._values.get(topic, [])
        place = bisect_right(changes, first)
        yield values[place - 1] if place else 0
        while place < len(changes) and changes[place] <= last:
            yield values[place]
            place += 1


def check(rows: Sequence[Row], history: History) -> list[Violation]:
    """Return all violations of a history.

    Args:
        rows: The journal, in its order.
        history: Knowledge of the clients. Operations without a row had no effect.
    """
    return list(_violations(rows, history))


def _violations(rows: Sequence[Row], history: History) -> Iterator[Violation]:
    broken = list(_order(rows, history))
    yield from broken
    if broken:
        return  # what follows takes revisions for places in `rows`
    done_s = [_done_s(row, history) for row in rows]
    bounds = _Bounds(rows, done_s, history)
    topics = _Topics(rows)
    by_number = {row.number: row for row in rows}
    yield from _real_time(rows, done_s, history)
    yield from _shown(rows, history)
    for operation in history.operations.values():
        yield from _answer(operation, by_number.get(operation.number))
        yield from _condition(operation, by_number.get(operation.number), topics, bounds)
    yield from _superseded(rows, history, bounds)
    for read in history.reads:
        yield from _read(read, topics, bounds)


def _order(rows: Sequence[Row], history: History) -> Iterator[Violation]:
    """Revisions count from 1, and each is of one operation."""
    numbers = dict[int, int]()
    for expected, row in enumerate(rows, 1):
        operation = history.operations.get(row.number)
        if row.revision != expected:
            yield Violation(Kind.GAP, f"{row} comes where revision {expected} belongs")
            return
        if operation is None or (operation.topic, operation.deleted) != (row.topic, row.deleted):
            yield Violation(Kind.FOREIGN, f"{row}: {operation}")
        if row.number in numbers:
            yield Violation(Kind.TWICE, f"{row} is at {numbers[row.number]} too")
        numbers[row.number] = row.revision


def _done_s(row: Row, history: History) -> float:
    """Return the first moment at which a client knew of a change."""
    operation = history.operations[row.number]
    shown = history.shown.get(row.revision)
    return min(
        operation.ended_s if operation.outcome is Outcome.ACCEPTED else math.inf,
        math.inf if shown is None else shown.at_s,
    )


def _real_time(rows: Sequence[Row], done_s: Sequence[float], history: History) -> Iterator[Violation]:
    """No revision was known before an operation with a lower one, or its own, began."""
    latest: Operation | None = None
    for row, at_s in zip(rows, done_s, strict=True):
        operation = history.operations[row.number]
        if latest is None or operation.began_s > latest.began_s:
            latest = operation
        if at_s < latest.began_s:
            yield Violation(Kind.REAL_TIME, f"{row} was known at {at_s:.6f}, before {latest} began")


def _shown(rows: Sequence[Row], history: History) -> Iterator[Violation]:
    """Each MESSAGE is of the order."""
    for revision, shown in history.shown.items():
        if not 1 <= revision <= len(rows) or rows[revision - 1].number != shown.number:
            found = rows[revision - 1] if 1 <= revision <= len(rows) else None
            yield Violation(Kind.OTHER_REVISION, f"a MESSAGE showed {shown.number} at {revision}: {found}")


def _answer(operation: Operation, row: Row | None) -> Iterator[Violation]:
    """An accepted operation is in the order, with the revision of its RECEIPT. A refused one is not."""
    if row is None:
        if operation.outcome is Outcome.ACCEPTED:
            yield Violation(Kind.LOST, f"{operation}")
    elif operation.outcome in {Outcome.CONFLICT, Outcome.REFUSED}:
        yield Violation(Kind.REFUSED_FOUND, f"{operation} is {row}")
    elif operation.revision and operation.revision != row.revision:
        yield Violation(Kind.OTHER_REVISION, f"{operation} is {row}")


def _condition(operation: Operation, row: Row | None, topics: _Topics, bounds: _Bounds) -> Iterator[Violation]:
    """`if-revision` was true at the revision of a change, and false at some moment of a conflict."""
    expected, topic = operation.if_revision, operation.topic
    if expected < 0:
        return
    if row is not None:
        (found,) = topics.values(topic, row.revision - 1, row.revision - 1)
        if found != expected:
            yield Violation(Kind.CONDITION, f"{operation} is {row}, where the topic had {found}")
    elif operation.outcome is Outcome.CONFLICT:
        first, last = bounds.floor(operation.began_s), bounds.ceiling(operation.ended_s)
        if all(found == expected for found in topics.values(topic, first, last)):
            yield Violation(Kind.CONFLICT, f"{operation}: true from {first} to {last}")


def _superseded(rows: Sequence[Row], history: History, bounds: _Bounds) -> Iterator[Violation]:
    """A change of the source with this number or a higher one came before the answer."""
    changes: dict[tuple[str, str], list[tuple[int, int]]] = {}  # revision, and the highest number up to there
    for row in rows:
        source = history.operations[row.number].source
        if source:
            found = changes.setdefault((row.topic, source), [(0, -1)])
            found.append((row.revision, max(row.number, found[-1][1])))
    for operation in history.operations.values():
        if operation.outcome is Outcome.SUPERSEDED:
            last = bounds.ceiling(operation.ended_s)
            found = changes.get((operation.topic, operation.source), [(0, -1)])
            if found[bisect_right(found, (last, math.inf)) - 1][1] < operation.number:
                yield Violation(Kind.SUPERSEDED, f"{operation}, up to {last}")


def _read(read: Read, topics: _Topics, bounds: _Bounds) -> Iterator[Violation]:
    """Each topic is as new as what was known when the read began. A missing one had no value at some moment of the read."""
    first, last = bounds.floor(read.began_s), bounds.ceiling(read.ended_s)
    for topic in read.topics:
        shown = read.shown.get(topic)
        if shown is None:
            if all(topics.values(topic, first, last)):
                yield Violation(Kind.STALE_READ, f"{topic} is missing, and had a value from {first} to {last}: {read}")
            continue
        newest = topics.newest(topic, first)
        if shown < newest:
            yield Violation(Kind.STALE_READ, f"{topic} at {shown}, and {newest} was known before {read.began_s:.6f}")
        if shown > last:
            yield Violation(Kind.FUTURE_READ, f"{topic} at {shown}, and {last} is the last before {read.ended_s:.6f}")
