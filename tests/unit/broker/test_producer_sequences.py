"""Sources of the values of topics: `number` for each, live, after recovery and after a snapshot."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.broker.broker import Broker
from maxam.broker.producer_sequences import SOURCES_MAX, ProducerSequences, mark_of
from maxam.config import Limits
from maxam.content import pack
from maxam.journal.old_snapshots import with_sequences
from maxam.records import UNJUDGED, Change, Headers, Identity, Record, SequencesRecord
from maxam.stomp.events import SOURCE_REVISION
from tests.support.sans_io import World

ANNA = Identity("anna", "a" * 64)


def change(revision: int, headers: Headers = (), body: bytes = b"v", at_us: int = 0, topic: bytes = b"X/a") -> Change:
    """Make a change; an empty body deletes."""
    return Change(revision, at_us, topic, not body, ANNA, UNJUDGED, *pack(headers, body))


def marked(source: bytes, number: int) -> Headers:
    """Return the headers of a marked SEND."""
    return ((b"source", source), (b"source-revision", b"%d" % number))


@pytest.mark.parametrize(
    ("headers", "mark"),
    [
        ((), None),
        (((b"source", b"a"),), None),
        (((b"source-revision", b"1"),), None),
        (((b"source-revision", b"1"), (b"x", b""), (b"source", b"a")), (b"a", 1)),
        (((b"source", b""), (b"source-revision", b"1")), None),
        (((b"source", b"a" * 129), (b"source-revision", b"1")), None),
        (((b"source", b"a"), (b"source-revision", b"x")), None),
        (((b"source", b"a"), (b"source-revision", b"%d" % 2**63)), None),
    ],
)
def test_what_marks_a_change(headers: Headers, mark: tuple[bytes, int] | None) -> None:
    """Both headers, and well-formed: a journal may hold others from before they meant anything."""
    assert mark_of(headers) == mark


def test_what_is_not_marked_costs_nothing() -> None:
    """No topic is noted for changes without marks, deletes among them."""
    marks = ProducerSequences(1.0)
    marks.keep(change(1, ((b"source", b"a"),)))
    marks.keep(change(2, body=b""))
    assert len(marks) == marks.absent == 0


@pytest.mark.parametrize(
    "name", [b"x", b"kept-sourc", b"kept-sources", b"source-revisio", b"source-revisions", b"xsource-revision"]
)
@pytest.mark.parametrize("body", [b"source-revision", b"\x16kept-source\x067 p", b""])
def test_what_only_looks_like_a_mark_is_none(name: bytes, body: bytes) -> None:
    """Neither body nor values of headers nor names like those of marks make a mark, nor those of an old snapshot."""
    looks = ((name, b"kept-source"), (b"source", b"source-revision"), (name, b"7 source-revision kept-source"))
    one = change(1, looks, body)
    two = change(2, ((b"kept-source", b"1 p"), *looks), body)
    marks = ProducerSequences(1.0)
    marks.keep(one)
    assert len(marks) == 0
    assert with_sequences([one, two]) == [one, two]
    marks.keep(change(3, (*looks, (SOURCE_REVISION, b"7")), body))
    assert marks.number(b"X/a", b"source-revision", 0) == 7


def test_marks_of_many_deleted_topics_are_freed_in_time() -> None:
    """Each delete that leaves marks behind frees those whose retention is over; none is freed before."""
    marks = ProducerSequences(1.0)
    for n in range(100):
        marks.keep(change(n + 1, marked(b"a", n), b"", n * 100_000, b"X/%d" % n))
    assert marks.absent == len(marks) == 11
    assert [marks.number(b"X/%d" % n, b"a", 9_900_000) for n in (88, 89, 99)] == [-1, 89, 99]


def recovered(records: list[Record], limits: Limits, world: World) -> Broker:
    """Return what a restart makes of records."""
    broker = Broker(limits, world.broker.policy, world.broker.registry)
    for record in records:
        broker.replay(record)
    broker.recovered(0.0, world.broker.committed_revision)
    return broker


def test_a_snapshot_keeps_what_the_changes_do() -> None:
    """After any history, a broker of the journal, of a snapshot, and of a snapshot and what followed answer alike."""
    rng = random.Random(5)  # noqa: S311 - a test, not a secret
    limits = Limits(dedup_retention_s=1.0)
    topics = [f"X/{n}" for n in range(3)]
    sources = "abcdef"
    for _ in range(150):
        world = World.make(limits=limits)
        client = world.client()
        at = rng.randrange(30)
        snapshot: list[Record] = []
        rest = 0
        for n in range(30):
            world.wall_us += rng.choice((1000, 300_000, 700_000))
            mark = (
                {"source": rng.choice(sources), "source_revision": str(rng.randrange(5))} if rng.random() < 0.6 else {}
            )
            client.send(rng.choice(topics), rng.choice((b"", b"v", b"w")), **mark)
            world.commit()
            if n == at:
                before = recovered(world.journal, limits, world)
                snapshot = list(before.snapshot())
                rest = len(world.journal)
        now_us = world.broker.accepted_at_us
        brokers = [
            world.broker,
            recovered(world.journal, limits, world),
            recovered([*snapshot, *world.journal[rest:]], limits, world),
            recovered(list(world.broker.snapshot()), limits, world),
        ]
        for later in (0, 500_000, 900_000, 1_100_000):
            answers = [
                [b.sequences.number(t.encode(), s.encode(), now_us + later) for t in topics for s in sources]
                for b in brokers
            ]
            assert answers[1:] == answers[:1] * 3
        stored = [{t.name: t.change.headers for t in b.store.topics.values() if not t.change.deleted} for b in brokers]
        assert stored[1:] == stored[:1] * 3


def test_a_snapshot_adds_nothing_that_its_changes_tell() -> None:
    """A topic of one source, the usual case, is written to a snapshot as it is; another with what its own headers leave out."""
    world = World.make(limits=Limits(delete_retention_s=0))
    client = world.client()
    client.send("X/one", source="a", source_revision="1")
    client.send("X/two", source="a", source_revision="1")
    client.send("X/two")
    client.send("X/gone", source="b c", source_revision="3")
    client.send("X/gone", b"")
    world.settle()
    snapshot = list(world.broker.snapshot())
    kept = {record.destination: record.sequences for record in snapshot if isinstance(record, SequencesRecord)}
    assert kept == {b"X/two": ((b"a", 1),), b"X/gone": ((b"b c", 3),)}
    assert [record.destination for record in snapshot if isinstance(record, Change)] == [b"X/one", b"X/two"]
    restarted = replace(world, broker=recovered(list(world.broker.snapshot()), Limits(), world))
    assert set(restarted.broker.store.topics) == {b"X/one", b"X/two"}
    assert restarted.broker.sequences.absent == 1


CHANGES = st.tuples(
    st.sampled_from([b"X/a", b"X/b"]),
    st.sampled_from([b"", b"p", b"q", b"r", b"s", b"t"]),  # without a source it is not marked
    st.sampled_from([0, 1, 2**31, 2**63 - 1]),
    st.booleans(),
    st.integers(0, 600_000),  # microseconds until it
)


@given(st.lists(CHANGES, max_size=40))
def test_marks_are_a_fold_over_the_changes(steps: list[tuple[bytes, bytes, int, bool, int]]) -> None:
    """Both forms have the marks that a table for each topic would have. No source is kept without a topic."""
    marks = ProducerSequences(1.0)
    known: dict[bytes, dict[bytes, int]] = {}
    gone: dict[bytes, int] = {}
    at_us = 0
    for revision, (topic, source, number, deleted, later_us) in enumerate(steps, 1):
        at_us += later_us
        for name in [name for name, since_us in gone.items() if at_us - since_us > 1_000_000]:
            if name == topic or deleted:
                known.pop(name, None)
                gone.pop(name)
        headers = marked(source, number) if source else ()
        marks.keep(change(revision, headers, b"" if deleted else b"v", at_us, topic))
        gone.pop(topic, None)
        if source:
            numbers = known.setdefault(topic, {})
            numbers.pop(source, None)
            numbers[source] = number
            if len(numbers) > SOURCES_MAX:
                del numbers[next(iter(numbers))]
        if deleted and topic in known:
            gone[topic] = at_us
        for name in (b"X/a", b"X/b"):
            expected = known.get(name, {}) if at_us - gone.get(name, at_us) <= 1_000_000 else {}
            found = {one: marks.number(name, one, at_us) for one in (b"p", b"q", b"r", b"s", b"t")}
            assert {one: value for one, value in found.items() if value >= 0} == expected
    marks.forget(at_us + 2_000_000)
    alive = {name: numbers for name, numbers in known.items() if name not in gone}
    assert len(marks) == len(alive)
    assert set(marks._ids) == {next(iter(numbers)) for numbers in alive.values() if len(numbers) == 1}
    assert len(marks._names) <= 2  # numbers of sources are used again
