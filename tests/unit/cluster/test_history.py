"""The checker of histories: it accepts all legal ones, and finds each planted violation."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.history import History, Kind, Operation, Outcome, Read, Row, Shown, check

TOPICS = ("X/a", "X/b", "X/c")
WAIT_S = 3.0  # the longest time between a moment of the order and the begin or end of its operation


class Broker:
    """A legal history of a broker whose operations take effect at the moments 1, 2, 3 and so on."""

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.rows: list[Row] = []
        self.history = History()
        self.values = dict.fromkeys(TOPICS, 0)
        self.marks: dict[str, int] = {}
        for moment in range(1, steps + 1):
            (self.read if self.random.random() < 0.2 else self.send)(moment)

    def around(self, moment: float) -> tuple[float, float]:
        """Return begin and end of an operation."""
        return moment - self.random.uniform(0, WAIT_S), moment + self.random.uniform(0, WAIT_S)

    def send(self, moment: int) -> None:
        """Send, with a condition, a source or neither."""
        number = len(self.history.operations) + 1
        topic = self.random.choice(TOPICS)
        began_s, ended_s = self.around(moment)
        operation = Operation(number, topic, began_s, ended_s, self.random.random() < 0.2)
        self.history.operations[number] = operation
        turn = self.random.random()
        if turn < 0.3:
            operation.if_revision = self.random.choice([0, self.values[topic], number])
            if operation.if_revision != self.values[topic]:
                operation.outcome = Outcome.CONFLICT
                return
        elif turn < 0.6:
            operation.source = "source"
            if self.random.random() < 0.3:  # the answer to an earlier try was lost
                self.take(operation, moment)
                operation.outcome, operation.revision = Outcome.SUPERSEDED, 0
                return
        elif turn < 0.7:
            operation.outcome, operation.ended_s = Outcome.REFUSED, ended_s
            return
        elif turn < 0.8:
            operation.ended_s = math.inf
            if self.random.random() < 0.5:
                self.take(operation, moment)
                operation.outcome, operation.revision = Outcome.UNKNOWN, 0
            return
        self.take(operation, moment)

    def take(self, operation: Operation, moment: int) -> None:
        """Have an operation take effect."""
        revision = len(self.rows) + 1
        self.rows.append(Row(revision, operation.topic, operation.number, operation.deleted))
        self.values[operation.topic] = 0 if operation.deleted else revision
        operation.outcome = Outcome.ACCEPTED
        operation.revision = revision
        if self.random.random() < 0.5:
            self.history.shown[revision] = Shown(operation.number, moment + self.random.uniform(0, WAIT_S))

    def read(self, moment: int) -> None:
        """Read all topics."""
        began_s, ended_s = self.around(moment + 0.5)
        shown = {topic: revision for topic, revision in self.values.items() if revision}
        self.history.reads.append(Read(began_s, ended_s, TOPICS, shown))


@given(st.integers(0, 2**32), st.integers(0, 60))
def test_legal_histories_have_no_violation(seed: int, steps: int) -> None:
    """Operations overlap by up to six others, with all kinds of outcomes."""
    broker = Broker(seed, steps)
    assert check(broker.rows, broker.history) == []


def sequence(*operations: Operation, reads: tuple[Read, ...] = ()) -> tuple[list[Row], History]:
    """Return a history whose operations take effect in this order, one at a time, if they were accepted."""
    effective = [one for one in operations if one.outcome in {Outcome.ACCEPTED, Outcome.UNKNOWN, Outcome.SUPERSEDED}]
    rows = [Row(revision, one.topic, one.number, one.deleted) for revision, one in enumerate(effective, 1)]
    return rows, History({one.number: one for one in operations}, {}, list(reads))


def accepted(number: int, began_s: float, **further: object) -> Operation:
    """Return an operation that takes a second."""
    operation = Operation(number, "X/a", began_s, began_s + 1, outcome=Outcome.ACCEPTED)
    return replace(operation, **further)  # type: ignore[arg-type]


def kinds(rows: list[Row], history: History) -> set[Kind]:
    """Return the kinds of the violations of a history."""
    return {violation.kind for violation in check(rows, history)}


def swapped() -> tuple[list[Row], History]:
    """The second operation began after the first one's RECEIPT, and has the lower revision."""
    rows, history = sequence(accepted(2, 10), accepted(1, 0))
    return rows, history


def shown_early() -> tuple[list[Row], History]:
    """A MESSAGE with the second revision came before the first operation began. Neither has a RECEIPT."""
    rows, history = sequence(
        Operation(2, "X/a", 10, outcome=Outcome.UNKNOWN), Operation(1, "X/a", 0, outcome=Outcome.UNKNOWN)
    )
    history.shown[2] = Shown(1, 5)
    return rows, history


def unknown_late() -> tuple[list[Row], History]:
    """An operation without answer has a revision below one that was receipted before it began."""
    return sequence(Operation(2, "X/a", 10, outcome=Outcome.UNKNOWN), accepted(1, 0))


def lost() -> tuple[list[Row], History]:
    """An accepted operation is missing at the end."""
    rows, history = sequence(accepted(1, 0), accepted(2, 10))
    return rows[:1], history


def refused() -> tuple[list[Row], History]:
    """A refused operation has a revision."""
    rows, history = sequence(accepted(1, 0))
    history.operations[1].outcome = Outcome.REFUSED
    return rows, history


def conflicting() -> tuple[list[Row], History]:
    """An operation in conflict has a revision."""
    rows, history = sequence(accepted(1, 0, if_revision=0))
    history.operations[1].outcome = Outcome.CONFLICT
    return rows, history


def twice() -> tuple[list[Row], History]:
    """An operation that was sent again took effect again."""
    rows, history = sequence(accepted(1, 0))
    return [*rows, Row(2, "X/a", 1, deleted=False)], history


def foreign() -> tuple[list[Row], History]:
    """The journal has a change that no client sent."""
    rows, history = sequence(accepted(1, 0))
    return [*rows, Row(2, "X/a", 7, deleted=False)], history


def other_topic() -> tuple[list[Row], History]:
    """The journal has an operation under another topic."""
    rows, history = sequence(accepted(1, 0))
    return [replace(rows[0], topic="X/b")], history


def gap() -> tuple[list[Row], History]:
    """A revision is missing."""
    rows, history = sequence(accepted(1, 0), accepted(2, 2))
    return [rows[0], replace(rows[1], revision=3)], history


def receipted_otherwise() -> tuple[list[Row], History]:
    """A RECEIPT has another revision than the journal."""
    return sequence(accepted(1, 0), accepted(2, 2, revision=1))


def shown_otherwise() -> tuple[list[Row], History]:
    """A MESSAGE has another revision than the journal."""
    rows, history = sequence(accepted(1, 0), accepted(2, 2))
    history.shown[2] = Shown(1, 5)
    return rows, history


def shown_above() -> tuple[list[Row], History]:
    """A MESSAGE has a revision that the journal lacks."""
    rows, history = sequence(accepted(1, 0))
    history.shown[2] = Shown(1, 5)
    return rows, history


def untrue() -> tuple[list[Row], History]:
    """The topic had a newer value than the condition demands."""
    return sequence(accepted(1, 0), accepted(2, 2), accepted(3, 4, if_revision=1))


def untrue_after_delete() -> tuple[list[Row], History]:
    """The topic had no value when the condition demanded one."""
    return sequence(accepted(1, 0), accepted(2, 2, deleted=True), accepted(3, 4, if_revision=2))


def no_conflict() -> tuple[list[Row], History]:
    """The condition was true from begin to end."""
    rows, history = sequence(accepted(1, 0), accepted(3, 10))
    history.operations[2] = Operation(2, "X/a", 4, 5, outcome=Outcome.CONFLICT, if_revision=1)
    return rows, history


def not_superseded() -> tuple[list[Row], History]:
    """The source's change came after the answer that reported it."""
    rows, history = sequence(accepted(1, 0, source="s"), accepted(3, 10, source="s"))
    history.operations[2] = Operation(2, "X/a", 4, 5, outcome=Outcome.SUPERSEDED, source="s")
    return rows, history


def superseded_by_another() -> tuple[list[Row], History]:
    """Only another source has sent a higher number."""
    rows, history = sequence(accepted(3, 0, source="t"))
    history.operations[2] = Operation(2, "X/a", 4, 5, outcome=Outcome.SUPERSEDED, source="s")
    return rows, history


def stale() -> tuple[list[Row], History]:
    """A read shows the value before the one that was receipted when it began."""
    return sequence(accepted(1, 0), accepted(2, 2), reads=(Read(4, 5, ["X/a"], {"X/a": 1}),))


def missing() -> tuple[list[Row], History]:
    """A read does not show a topic that had a value all the time."""
    return sequence(accepted(1, 0), reads=(Read(4, 5, ["X/a"], {}),))


def future() -> tuple[list[Row], History]:
    """A read shows what was sent after its end."""
    return sequence(accepted(1, 0), accepted(2, 10), reads=(Read(4, 5, ["X/a"], {"X/a": 2}),))


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (swapped, Kind.REAL_TIME),
        (shown_early, Kind.REAL_TIME),
        (unknown_late, Kind.REAL_TIME),
        (lost, Kind.LOST),
        (refused, Kind.REFUSED_FOUND),
        (conflicting, Kind.REFUSED_FOUND),
        (twice, Kind.TWICE),
        (foreign, Kind.FOREIGN),
        (other_topic, Kind.FOREIGN),
        (gap, Kind.GAP),
        (receipted_otherwise, Kind.OTHER_REVISION),
        (shown_otherwise, Kind.OTHER_REVISION),
        (shown_above, Kind.OTHER_REVISION),
        (untrue, Kind.CONDITION),
        (untrue_after_delete, Kind.CONDITION),
        (no_conflict, Kind.CONFLICT),
        (not_superseded, Kind.SUPERSEDED),
        (superseded_by_another, Kind.SUPERSEDED),
        (stale, Kind.STALE_READ),
        (missing, Kind.STALE_READ),
        (future, Kind.FUTURE_READ),
    ],
)
def test_each_planted_violation_is_found(planted: Callable[[], tuple[list[Row], History]], kind: Kind) -> None:
    """It is the only kind that is reported."""
    assert kinds(*planted()) == {kind}


def test_operations_that_overlap_may_have_either_order() -> None:
    """Two operations at the same time, a read beside a SEND, and a conflict beside the change that caused it."""
    for order in ((accepted(1, 0), accepted(2, 0.5)), (accepted(2, 0.5), accepted(1, 0))):
        assert kinds(*sequence(*order)) == set()
    for shown in ({}, {"X/a": 1}):
        assert kinds(*sequence(accepted(1, 0), reads=(Read(0.5, 2, ["X/a"], shown),))) == set()
    rows, history = sequence(accepted(1, 0))
    history.operations[2] = Operation(2, "X/a", 0.5, 2, outcome=Outcome.CONFLICT, if_revision=0)
    assert kinds(rows, history) == set()


@given(st.integers(0, 2**32))
def test_a_swap_in_time_is_found_wherever_it_is(seed: int) -> None:
    """Two receipted changes of a legal history that do not overlap: with their places exchanged, it is illegal."""
    broker = Broker(seed, 60)
    operations = broker.history.operations
    ended = [row for row in broker.rows if operations[row.number].outcome is Outcome.ACCEPTED]
    first = broker.random.choice(ended)
    later = [row for row in ended if operations[row.number].began_s > operations[first.number].ended_s]
    if later:
        second = broker.random.choice(later)
        rows = list(broker.rows)
        rows[first.revision - 1] = replace(second, revision=first.revision)
        rows[second.revision - 1] = replace(first, revision=second.revision)
        for row in (first, second):
            operations[row.number].revision = 0
            broker.history.shown.pop(row.revision, None)
        assert Kind.REAL_TIME in kinds(rows, broker.history)
