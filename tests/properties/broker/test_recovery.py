"""Recovery's one scan for each glob against recovery that scans all topics for each record, as it once did."""

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.registry import load_registry
from maxam.broker.backfill import _LACKED_MAX
from maxam.broker.broker import Broker
from maxam.broker.session import Subscription
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.content import pack
from maxam.records import (
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Identity,
    OwedRecord,
    Record,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
)
from tests.support.sans_io import UNCHECKED, forget_target, policy

LIMITS = Limits()
REGISTRY = load_registry(UNCHECKED)
BERT = Identity("bert", "")
TOPICS = (b"X/a", b"X/b")
RIGHTS = policy(anna={"receive": ["X/**"]}, carol={"receive": ["X/b"]})
# The kinds of records in a history. Each takes its revision and its time from its place.
STEPS = (
    *(f"{what} {topic.decode()}" for topic in TOPICS for what in ("value", "delete")),
    "subscribe",
    "eager",
    "eager X/b",
    "ack all",
    "ack X/a",
    "unsubscribe",
    "end",
)


def recover(records: Sequence[Record], scan_each_record: bool) -> Broker:
    """Recover, either with the one scan at the end or with a scan of all topics for each record that needs one."""
    broker = Broker(LIMITS, RIGHTS, REGISTRY)
    for record in records:
        broker.replay(forget_target(record))
        if scan_each_record and type(record) is SubscriptionRecord:
            broker.backfills._pending.clear()
            session = broker.sessions[record.principal, record.client_id]
            scan_all_topics(broker, session.subscriptions[record.subscription], record)
    broker.recovered(0.0, broker.committed_revision)
    return broker


def scan_all_topics(broker: Broker, subscription: Subscription, record: SubscriptionRecord) -> None:
    """Owe what a record owes, by checking every topic at once."""
    if not record.eager and record.low_water is None:
        return
    for topic in broker.store.topics.values():
        if not subscription.glob.matches(topic.name):
            continue
        if record.low_water is not None:
            if topic.change.revision > record.low_water:
                subscription.owed.add(topic)
        elif not topic.change.deleted and subscription.session.rights.may_receive(topic.destination):
            subscription.owed.add(topic)


def state(broker: Broker) -> list[object]:
    """Return all that delivery of durable subscriptions depends on: what is owed, and in which order.

    Topics that the principal may not receive are left out: rights are checked again when a value is written.
    """
    found: list[object] = []
    for key, session in broker.sessions.items():
        for id_, subscription in sorted(session.subscriptions.items()):
            owed = [topic for topic in subscription.queue if session.rights.may_receive(topic.destination)]
            queue = [(topic.name, topic.change.revision) for topic in owed]
            found.append((key, id_, subscription.glob.text, queue))
    return found


def history(steps: Sequence[str]) -> Iterator[Record]:
    """Make the records of a history."""
    revision = 0
    newest: dict[bytes, int] = {}
    names = ("anna", "c", b"s")
    for now_us, step in enumerate(steps, 1_000_000):
        what, _, rest = step.partition(" ")
        if what in {"value", "delete"}:
            revision += 1
            newest[rest.encode()] = revision
            content = pack((), b"" if what == "delete" else b"%d" % revision)
            yield Change(revision, now_us, rest.encode(), what == "delete", BERT, UNJUDGED, *content)
        elif what in {"subscribe", "eager"}:
            yield SubscriptionRecord(now_us, *names, rest.encode() or b"X/*", eager=what == "eager")
        elif what == "ack":
            settled = tuple((t, r) for t, r in newest.items() if rest in {"all", t.decode()})
            yield AcknowledgementRecord(now_us, *names, settled)
        elif what == "unsubscribe":
            yield UnsubscriptionRecord(now_us, *names)
        else:
            yield SessionEndRecord(now_us, *names[:2])


def lacked(records: Sequence[Record]) -> dict[bytes, int]:
    """Return since when the subscription lacks each topic by a history without snapshots, which has one subscription at most."""
    newest: dict[bytes, Change] = {}
    since_us: dict[bytes, int] = {}
    glob = b""
    for record in records:
        if type(record) is Change:
            if record.destination in newest and newest[record.destination].deleted and record.deleted:
                continue
            if record.deleted and record.destination not in newest:
                continue
            newest[record.destination] = record
            if glob in {b"X/*", record.destination}:
                since_us.setdefault(record.destination, record.accepted_at_us)
        elif type(record) is SubscriptionRecord:
            if record.glob != glob:
                since_us.clear()
            glob = record.glob
            if record.eager:
                for name, change in newest.items():
                    if not change.deleted and glob in {b"X/*", name}:
                        since_us.setdefault(name, record.accepted_at_us)
        elif type(record) is AcknowledgementRecord:
            for name, revision in record.positions if glob else ():
                if name in newest and newest[name].revision <= revision:
                    since_us.pop(name, None)
        else:
            since_us.clear()
            glob = b""
    return since_us


def compare(records: list[Record]) -> None:
    """See that both recoveries agree, and that what is owed is lacked since the right time."""
    one = recover(records, False)
    assert state(one) == state(recover(records, True))


def compare_times(records: list[Record]) -> None:
    """See that recovery finds since when the only subscription lacks what it is owed."""
    found = [s.owed_since_us() for x in recover(records, False).sessions.values() for s in x.subscriptions.values()]
    assert found in ([], [min(lacked(records).values(), default=0)])


def compare_with_snapshots(records: list[Record]) -> None:
    """See that both recoveries agree, also when a snapshot stands for the first records."""
    compare(records)
    for cut in range(1, len(records)):
        snapshot = list(summed_up(map(forget_target, records[:cut]), LIMITS).snapshot())
        compare([*snapshot, *records[cut:]])


@pytest.mark.slow
def test_all_short_histories_recover_as_with_a_scan_for_each_record() -> None:
    """Changes, deletes, eager and other SUBSCRIBEs, ACKs, UNSUBSCRIBEs and ends of sessions, in each order, after an eager one."""
    for steps in itertools.product(STEPS, repeat=3):
        records = list(history(("value X/a", "eager", *steps)))
        compare(records)
        compare_times(records)


def test_all_short_histories_recover_so_from_a_snapshot() -> None:
    """The same with a snapshot at each place."""
    for steps in itertools.product(STEPS, repeat=2):
        compare_with_snapshots([*history(("value X/a", "eager", "value X/b", *steps))])


PLACES = tuple(b"X/%d" % n for n in range(6))


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Draw records of two principals with several subscriptions; one of them may not receive everything."""
    revision = 0
    newest: dict[bytes, int] = {}
    records: list[Record] = []
    for now_us in range(1_000_000, 1_000_000 + draw(st.integers(1, 40))):
        names = (draw(st.sampled_from(("anna", "carol"))), "c", draw(st.sampled_from((b"s", b"t"))))
        topic = draw(st.sampled_from((*PLACES, b"X/b")))
        kind = draw(st.integers(0, 9))
        if kind < 4:
            revision += 1
            newest[topic] = revision
            deleted = draw(st.integers(0, 3)) == 0
            content = pack((), b"" if deleted else b"1")
            records.append(Change(revision, now_us, topic, deleted, BERT, UNJUDGED, *content))
        elif kind < 7:
            glob = draw(st.sampled_from((b"X/*", b"X/*", b"X/1", b"X/[0-3]")))
            records.append(SubscriptionRecord(now_us, *names, glob, eager=draw(st.booleans())))
        elif kind < 9:
            topics = draw(st.sets(st.sampled_from(sorted(newest)))) if newest else set()
            lag = draw(st.integers(0, 1))
            settled = tuple((topic, newest[topic] - lag) for topic in sorted(topics))
            records.append(AcknowledgementRecord(now_us, *names, settled))
        elif draw(st.booleans()):
            records.append(UnsubscriptionRecord(now_us, *names))
        else:
            records.append(SessionEndRecord(now_us, *names[:2]))
    return records


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(0, 40))
def test_random_histories_recover_as_with_a_scan_for_each_record(records: list[Record], cut: int) -> None:
    """Several sessions and globs, acknowledgements of older changes, rights that allow one topic only, snapshots."""
    compare(records)
    snapshot = list(summed_up(map(forget_target, records[:cut]), LIMITS).snapshot())
    assert all(not isinstance(record, OwedRecord) or record.positions for record in snapshot)
    compare([*snapshot, *records[cut:]])


def test_what_a_snapshot_left_owed_is_lacked_since_it_was_accepted() -> None:
    """A later eager SUBSCRIBE does not make it younger: found at random, one history of a thousand."""
    records = list(history(["value X/a", "value X/b", "subscribe", "ack X/a", "eager", "value X/a"]))
    compare_with_snapshots(records)
    snapshot = [
        *history(["value X/a", "value X/b"]),
        SubscriptionRecord(1_000_002, "anna", "c", b"s", b"X/*", eager=False, low_water=0),
    ]
    for cut in (3, 4, 5):
        (session,) = recover([*snapshot, *records[cut:]], False).sessions.values()
        assert session.subscriptions[b"s"].owed_since_us() == (1_000_001 if cut == 3 else 1_000_000)


def test_of_more_topics_than_times_are_kept_none_is_said_to_be_lacked_too_late() -> None:
    """Beyond the topics with a time of their own, recovery keeps the earliest time of the others."""
    rng = random.Random(1)  # noqa: S311 - a choice, not a secret
    count = 2 * _LACKED_MAX
    steps = [f"value X/{n}" for n in range(count)]
    records = list(history([*steps, "eager", *rng.sample(steps, count // 2), "eager", "value X/1"]))
    one, each = recover(records, False), recover(records, True)
    assert state(one) == state(each)
    assert [s.subscriptions[b"s"].owed_since_us() for s in one.sessions.values()] == [1_000_000 + count]


@pytest.mark.parametrize("records", [10, 1000])
def test_recovery_scans_all_topics_once_for_each_glob_that_is_left(records: int) -> None:
    """Eager SUBSCRIBEs that were removed or asked again, however many, cost no further scan; equal globs share one."""
    values = list(history([f"value X/{n}" for n in range(50)]))
    removed = list(history(["eager", "unsubscribe"] * records))
    left = list(history(["eager"] * records))
    others = [SubscriptionRecord(1, "anna", f"c{n}", b"s", b"X/*", eager=True) for n in range(records)]
    broker = recover([*values, *removed, *left, *others], False)
    assert broker.backfills.topics_scanned == 50
    assert sum(len(s.owed) for x in broker.sessions.values() for s in x.subscriptions.values()) == 50 * (records + 1)


def test_a_snapshot_and_a_start_from_it_match_each_glob_once() -> None:
    """However many durable subscriptions have the glob."""
    values = list(history([f"value X/{n}" for n in range(50)]))
    subscribed = [SubscriptionRecord(1, "anna", f"c{n}", b"s", b"X/*", eager=n % 2 == 0) for n in range(100)]
    snapshot = list(summed_up([*values, *subscribed], LIMITS).snapshot())
    broker = recover(snapshot, False)
    assert broker.backfills.topics_scanned == 50
    owed = [len(s.owed) for x in broker.sessions.values() for s in x.subscriptions.values()]
    assert sorted(owed) == [0] * 50 + [50] * 50


def follow(records: Sequence[Record], start: int) -> Broker:
    """Recover the first records, then follow the others."""
    broker = Broker(LIMITS, RIGHTS, REGISTRY)
    for record in records[:start]:
        broker.replay(forget_target(record))
    broker.recovered(0.0, broker.committed_revision)
    for record in records[start:]:
        broker.follow(forget_target(record))
        while broker.scan():
            pass
    return broker


@given(st.lists(st.sampled_from(STEPS), max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_a_replica_holds_what_a_recovery_finds(steps: list[str], data: st.DataObject) -> None:
    """From any record on, a replica has the topics, sessions and subscriptions of a recovery of all records, and owes the same."""
    records = list(history(steps))
    start = data.draw(st.integers(0, len(records)))
    recovered, replica = recover(records, scan_each_record=False), follow(records, start)
    assert replica.committed_revision == recovered.committed_revision
    assert replica.accepted_at_us == recovered.accepted_at_us
    shown = [
        {name: (topic.change.revision, topic.change.deleted) for name, topic in broker.store.topics.items()}
        for broker in (recovered, replica)
    ]
    assert {name: one for name, one in shown[0].items() if not one[1]} == {
        name: one for name, one in shown[1].items() if not one[1]
    }
    owed = [
        {
            (key, id_): {topic.destination for topic in subscription.owed}
            for key, session in broker.sessions.items()
            for id_, subscription in session.subscriptions.items()
        }
        for broker in (recovered, replica)
    ]
    assert owed[0].keys() == owed[1].keys()
    assert all(owed[0][key] <= owed[1][key] for key in owed[0])


def test_a_replica_holds_no_more_than_it_owes() -> None:
    """After many changes and acknowledgements, the queue of a replica is as small as that of a broker that was just recovered."""
    records: list[Record] = [SubscriptionRecord(1, "anna", "c", b"s", b"X/*", eager=True)]
    for revision in range(1, 10_001):
        name = TOPICS[revision % 2]
        records.append(Change(revision, revision, name, False, BERT, UNJUDGED, *pack((), b"v")))
        records.append(AcknowledgementRecord(revision, "anna", "c", b"s", ((name, revision),)))
    replica = follow(records, 1)
    subscription = replica.sessions["anna", "c"].subscriptions[b"s"]
    untidy = subscription.ready_count
    replica.tidy()
    assert subscription.ready_count == 0
    assert untidy > 1000
    replica.follow(Change(10_001, 10_001, b"X/a", False, BERT, UNJUDGED, *pack((), b"v")))
    assert [topic.name for topic in subscription.queue] == ["X/a"]
