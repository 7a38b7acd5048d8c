"""Operations and origins as bytes: what is encoded is read back, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.broker.operations import Operation, Proof, SessionStep, Terms, TransientSubscribe
from maxam.broker.origins import Origin, OriginError, RefusedOperation, Run, encode_origins, read_origins
from maxam.broker.session import Session, Subscription
from maxam.cluster.operations import OperationsError, OperationsReader, OperationsWriter
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import Change, OwedRecord
from tests.support.journal_records import one_of_each, plain
from tests.support.sans_io import EVERYTHING, policy

texts = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def origins(draw: st.DrawFn) -> list[Origin]:
    """Draw the origins of an entry."""
    found = []
    for front in draw(st.lists(st.binary(min_size=8, max_size=8), max_size=3, unique=True)):
        origin = Origin(front)
        place, number = 0, 1
        for skipped, passed, count in draw(
            st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300)), max_size=4)
        ):
            place += skipped
            number += passed
            origin.runs.append(Run(place, number, count))
            place += count
            number += count
        origin.done = number - 1 + draw(st.integers(0, 300))
        for refused in draw(st.lists(st.tuples(st.integers(1, 2**40), texts, texts), max_size=3)):
            origin.refusals.append(RefusedOperation(*refused))
        found.append(origin)
    return found


def shown(origin: Origin) -> object:
    """Return what an origin is made of."""
    runs = [(run.place, run.number, run.count) for run in origin.runs]
    return origin.front, origin.done, runs, [(one.number, one.result, one.reason) for one in origin.refusals]


@given(origins())
def test_origins_are_read_back_and_no_prefix_of_one_is_origins(found: list[Origin]) -> None:
    """All fields survive; an origin that is cut short is refused."""
    data = encode_origins(found)
    assert [shown(one) for one in read_origins(data)] == [shown(one) for one in found]
    if found:
        begins = len(encode_origins(found[:-1]))
        for end in range(begins + 1, len(data)):
            with pytest.raises(OriginError):
                read_origins(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        encode_origins([Origin(b"12345678"), Origin(b"12345678")]),
        b"12345678\5\1\0\1\0\0",  # a run without records
        b"12345678\5\1\0\0\1\0",  # an operation 0
        b"12345678\1\1\0\1\2\0",  # a record behind `done`
        b"12345678\1\0\1\1\1\xff\0",  # a result that is no text
    ],
)
def test_origins_that_contradict_themselves_are_refused(data: bytes) -> None:
    """No origin of one front comes twice, and none has more records than operations."""
    with pytest.raises(OriginError):
        read_origins(data)


def of_front() -> list[Operation]:
    """Return operations of every kind."""
    session = Session("anna", "c", policy(anna=EVERYTHING).rights("anna"))
    barrier = TransientSubscribe(Subscription(session, b"s", compile_glob("X/**", Limits()), False), True)
    records = [one for one in one_of_each() if type(one) is not OwedRecord]
    return [
        barrier,
        *records[:3],
        Proof(None, SessionStep(True, "anna", "ö")),
        Proof(),
        *records[3:],
        Proof(None, SessionStep(False, "", "")),
    ]


TERMS = [Terms(0, 0, None, 0), Terms(3, 2**40, b"pump", 2**62), Terms(1, -1, b"\xff", 0)]


def told(operation: Operation) -> object:
    """Return what arrives of an operation."""
    if isinstance(operation, TransientSubscribe):
        return None
    if isinstance(operation, Proof):
        step = operation.step
        return None if step is None else (step.claims, step.principal, step.client_id)
    return plain(operation)


@given(st.lists(st.integers(1, 5)), st.integers(0, 2**20))
def test_operations_are_read_back_however_they_are_cut_into_messages(sizes: list[int], epoch: int) -> None:
    """Numbers go on, terms stay with their change, barriers and steps keep their places."""
    operations = of_front()
    changes = [number for number, one in enumerate(operations, 1) if type(one) is Change]
    terms = dict(zip(changes, TERMS, strict=False))
    writer, reader = OperationsWriter(), OperationsReader()
    first = 1
    while first <= len(operations):
        size = sizes.pop() if sizes else 3
        part = operations[first - 1 : first - 1 + size]
        data = writer.encode(part, {n: t for n, t in terms.items() if first <= n < first + size}, epoch)
        found = reader.read(data)
        assert (found.epoch, found.first) == (epoch, first)
        assert [told(one) for one in found.operations] == [told(one) for one in part]
        for index in range(len(part)):
            of_change, expected = found.terms.get(index), terms.get(first + index)
            assert plain(of_change) == plain(expected)
        first += size


def test_no_prefix_and_no_repetition_is_a_message() -> None:
    """A message that is cut short, repeated or left out is refused."""
    writer = OperationsWriter()
    operations = of_front()
    one = writer.encode(operations, {}, 1)
    for end in range(len(one)):
        with pytest.raises(OperationsError):
            OperationsReader().read(one[:end])
    more = OperationsWriter()
    first = more.encode(operations[:3], {}, 1)
    more.encode(operations[3:5], {}, 1)
    third = more.encode(operations[5:], {}, 1)
    for wrong in (first, third):
        reader = OperationsReader()
        reader.read(first)
        with pytest.raises(OperationsError):
            reader.read(wrong)
