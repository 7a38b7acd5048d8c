"""Deletes are remembered for a time and up to a number, and the floor is the newest that was forgotten, over restarts too."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.session import Topic
from maxam.broker.store import Store
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.content import pack
from maxam.errors import JournalDamagedError
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.backup import back_up, restore
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import START, Position, header
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import list_snapshots, sealed_segments
from maxam.journal.repair import Repair
from maxam.journal.scan import Scanner
from maxam.journal.verify import verify
from maxam.journal.whole import open_scanner
from maxam.records import UNJUDGED, Change, Identity, Record, SubscriptionRecord
from tests.simulation.disk import SimulatedDisk
from tests.simulation.driver import check_floor
from tests.support.journal_records import SYNC
from tests.support.sans_io import UNCHECKED, World, forget_deletes, policy

ROOT = "/journal"
ANNA = Identity("anna", "")
RIGHTS = policy(anna={"receive": ["X/**"]})
REGISTRY = load_registry(UNCHECKED)
INCARNATION = "1" * 16


def changed(revision: int, topic: bytes, deleted: bool, at_us: int) -> Change:
    """Make a change, of one of two principals."""
    publisher = ANNA if revision % 2 else Identity("ben", "")
    return Change(revision, at_us, topic, deleted, publisher, UNJUDGED, *pack((), b"" if deleted else b"1"))


class Known:
    """The deletes that a store must know, found without its order and its sweeps."""

    def __init__(self) -> None:
        self.newest: dict[bytes, Change] = {}  # of all topics, forgotten or not
        self.floor = 0

    def change(self, change: Change) -> None:
        """Take a change that has an effect."""
        self.newest[change.destination] = change

    def check(self, store: Store) -> None:
        """Compare."""
        deletes = {name: change for name, change in self.newest.items() if change.deleted}
        forgotten = [change.revision for name, change in deletes.items() if name not in store.topics]
        self.floor = max([self.floor, *forgotten])
        assert store.floor == self.floor
        assert {name: topic.change for name, topic in store.topics.items()} == {
            name: change for name, change in self.newest.items() if name in store.topics
        }
        assert {topic.destination for topic in (*store.retained, *store.tombstones)} == deletes.keys() & store.topics
        assert not store.retained.keys() & store.tombstones.keys()
        assert store.deletes_of == Counter(topic.change.publisher.principal for topic in store.retained)
        revisions = [topic.change.revision for topic in store.retained]
        assert revisions == sorted(revisions)


TOPICS = (b"X/a", b"X/b")
STEPS = (
    *(("value", topic) for topic in TOPICS),
    *(("delete", topic) for topic in TOPICS),
    ("time", b""),
    *(("sweep", needed) for needed in (b"", *TOPICS)),
    ("short", b""),
)


@pytest.mark.slow
@pytest.mark.parametrize(("retention_s", "retained_max"), [(0, 10), (2e-6, 10), (2e-6, 1), (1, 1), (1, 10)])
def test_every_short_history_has_the_floor_that_it_should(retention_s: float, retained_max: int) -> None:
    """Values, deletes, time that passes, sweeps with a topic that is still needed, short memory: in each order."""
    for steps in itertools.product(STEPS, repeat=4):
        store = Store(retention_s, retained_max)
        known = Known()
        revision = now_us = 0
        for what, name in (("value", b"X/a"), ("delete", b"X/a"), *steps):
            now_us += 1
            topic = store.topics.get(name)
            if what in {"value", "delete"}:
                revision += 1
                change = changed(revision, name, what == "delete", now_us)
                if topic is not None and not (change.deleted and topic.change.deleted):
                    store.put(topic, change)
                    known.change(change)
                elif topic is None and not change.deleted:
                    store.add(change, [])
                    known.change(change)
            elif what == "time":
                now_us += 2
            elif what == "short":
                store.release_soon()
                store.retire(now_us)
            else:
                store.sweep_soon()
                store.retire(now_us)
                young = {one for one in store.retained if now_us - one.change.accepted_at_us <= retention_s * 1e6}
                assert young == set(store.retained)
                needed: set[Topic] = set() if topic is None else {topic}
                store.sweep(store.to_sweep(0), needed)
                assert set(store.tombstones) <= needed
            assert len(store.retained) <= (retained_max if retention_s else 0)
            known.check(store)


def test_of_two_that_are_forgotten_in_the_other_order_the_newer_is_the_floor() -> None:
    """A delete that a subscription was owed is forgotten after a newer one."""
    store = Store()
    topics = [store.add(changed(number, b"X/%d" % number, True, number), []) for number in (1, 2, 3)]
    store.sweep(store.to_sweep(0), {topics[0], topics[2]})
    assert store.floor == 2
    store.sweep(store.to_sweep(0), {topics[2]})
    assert (store.floor, list(store.topics)) == (2, [b"X/3"])


def test_short_memory_forgets_retained_deletes_within_a_few_passes() -> None:
    """All that are there, those that a subscription is owed excepted; later ones are retained again."""
    world = World.make()
    reader, client = world.client(client_id="d"), world.client()
    reader.subscribe("X/1*", durable=True)
    world.settle()
    reader.lose()
    for number in range(3000):
        client.send(f"X/{number}")
        client.send(f"X/{number}", b"")
    world.settle()
    store = world.broker.store
    world.broker.tick(world.now_s)
    assert (len(store.retained), store.floor) == (3000, 0)
    store.release_soon()
    passes = 0
    while store.sweeping:
        world.broker.tick(world.now_s)
        passes += 1
    assert passes < 20
    assert not store.retained
    assert set(store.topics) == {b"X/%d" % number for number in range(3000) if str(number).startswith("1")}
    assert store.floor == 6000
    client.send("X/new")
    client.send("X/new", b"")
    world.settle()
    assert len(store.retained) == 1


@pytest.mark.parametrize("revived", [False, True])
def test_short_memory_without_deletes_leaves_nothing_to_do(revived: bool) -> None:
    """The loop rests once there is nothing to forget, and the next delete is retained."""
    world = World.make()
    client, store = world.client(), world.broker.store
    if revived:
        client.send("X/a")
        client.send("X/a", b"")
        world.settle()
    store.release_soon()
    if revived:
        client.send("X/a")
        world.settle()
    world.broker.tick(world.now_s)
    assert not store.sweeping
    client.send("X/b")
    client.send("X/b", b"")
    world.settle()
    world.broker.tick(world.now_s)
    assert [topic.name for topic in store.retained] == ["X/b"]


def test_the_age_of_a_delete_is_that_by_the_brokers_own_time() -> None:
    """It is due once a change was accepted later than the retention allows; a clock that was set back changes nothing."""
    world = World.make(limits=Limits(delete_retention_s=10))
    client = world.client()
    store = world.broker.store

    def send(topic: str, body: bytes, at_s: float) -> None:
        world.wall_us = 1_700_000_000_000_000 + int(at_s * 1e6)
        client.send(topic, body)
        world.settle()
        world.broker.tick(world.now_s)

    send("X/a", b"1", 0)
    send("X/a", b"", 1)
    for at_s in (11, -100_000, 5):
        send("X/b", b"2", at_s)
        assert len(store.retained) == 1
    send("X/b", b"3", 11.1)
    assert not store.retained
    assert len(store.tombstones) == 1


def test_deletes_that_are_retained_make_no_send_fail() -> None:
    """They do not count towards `topics_max`, and `topics_max` bounds their number too."""
    world = World.make(limits=Limits(topics_max=5))
    client = world.client()
    for number in range(50):
        client.send(f"X/{number}", receipt="r")
        client.send(f"X/{number}", b"")
        world.settle()
    assert len(world.broker.store.retained) == 5
    assert {frame.headers[b"disposition"] for frame in client.read()} == {b"accepted"}


# Snapshots and recovery.


def start(disk: SimulatedDisk | OsDisk, limits: Limits, root: str = ROOT) -> tuple[Journal, Broker]:
    """Start as a gateway does."""
    how = JournalSettings(segment_bytes_max=700, reserve_bytes=0)
    journal = Journal.open(root, disk, how, SYNC, INCARNATION)
    broker = Broker(limits, RIGHTS, REGISTRY)
    for record in journal.recover():
        broker.replay(record)
    broker.recovered(0.0, journal.head, journal.accepted_at_us, journal.floor)
    return journal, broker


def write(journal: Journal, broker: Broker, record: Record) -> None:
    """Store a record, and apply it."""
    journal.write(journal.encode([record]))
    broker.replay(record)


def snapshot_floors(disk: SimulatedDisk) -> list[int]:
    """Return the floor of each snapshot."""
    return [open_scanner(path, disk).floor for _, path in list_snapshots(f"{ROOT}/snapshots", disk)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("value", "value", "delete", "delete", "snapshot", "restart", "forget", "subscribe")),
            st.integers(0, 4),
        ),
        max_size=40,
    ),
    st.sampled_from((0.0, 20e-6, 1.0)),
    st.sampled_from((1, 3, 100)),
)
def test_snapshots_and_restarts_keep_what_is_known(
    steps: list[tuple[str, int]], retention_s: float, retained_max: int
) -> None:
    """All deletes above the floor are known, the floor never falls below what is unknown, and young deletes are never lost."""
    disk = SimulatedDisk()
    limits = Limits(delete_retention_s=retention_s, delete_retention_topics_max=retained_max)
    journal, broker = start(disk, limits)
    deletes: dict[str, int] = {}  # of topics that had a value
    counted: dict[str, int] = {}  # of all topics: each may take the place of an older one
    times: dict[int, int] = {}
    held: set[str] = set()
    known: dict[str, int] = {}
    released = 0  # revision up to which deletes may have been forgotten before their time
    for now_us, (what, number) in enumerate(steps, 1):
        topic = f"X/{number}"
        if what in {"value", "delete"}:
            revision = journal.head + 1
            write(journal, broker, changed(revision, topic.encode(), what == "delete", now_us * 3))
            times[revision] = now_us * 3
            if what == "value":
                held.add(topic)
                deletes.pop(topic, None)
                counted.pop(topic, None)
            elif topic in held:
                held.remove(topic)
                deletes[topic] = counted[topic] = revision
            elif topic not in known:  # as deleted
                counted[topic] = revision
        elif what == "subscribe":
            write(journal, broker, SubscriptionRecord(now_us * 3, "anna", "c", b"%d" % number, b"X/*", eager=False))
        elif what == "forget":
            forget_deletes(broker.store)
            released = broker.store.floor
        elif what == "snapshot":
            journal.close()
            build_snapshot(ROOT, disk, limits)
            journal, broker = start(disk, limits)
        else:
            journal.close()
            journal, broker = start(disk, limits)
        check_floor(broker, deletes)
        newest = set(sorted(counted.values())[-retained_max:] if retention_s else []) & set(deletes.values())
        young = [one for one in newest if broker.accepted_at_us - times[one] <= retention_s * 1e6 and one > released]
        known = {name.decode(): one.change.revision for name, one in broker.store.topics.items()}
        assert set(young) <= set(known.values())
    journal.close()


def deleted_topics(disk: SimulatedDisk, limits: Limits) -> Broker:
    """Make a journal of three segments and more with deletes, and a snapshot; return the broker that a start makes."""
    journal, broker = start(disk, limits)
    for number in range(10):
        write(journal, broker, changed(2 * number + 1, b"X/%d" % number, False, number))
        write(journal, broker, changed(2 * number + 2, b"X/%d" % number, True, number))
    journal.close()
    assert build_snapshot(ROOT, disk, limits) is not None
    journal, broker = start(disk, limits)
    journal.close()
    return broker


def test_a_snapshot_has_the_deletes_that_are_retained_and_its_floor() -> None:
    """They outlive the segments; a later snapshot hands both on, and everything is whole."""
    disk = SimulatedDisk()
    limits = Limits(delete_retention_topics_max=4)
    broker = deleted_topics(disk, limits)
    assert snapshot_floors(disk) == [12]
    assert (broker.store.floor, list(broker.store.topics)) == (12, [b"X/6", b"X/7", b"X/8", b"X/9"])
    assert not broker.sessions
    assert [one for one in verify(ROOT, disk) if one.problem is not None] == []
    journal, broker = start(disk, limits)
    write(journal, broker, changed(21, b"X/6", False, 50))
    journal.close()
    build_snapshot(ROOT, disk, limits)
    assert snapshot_floors(disk) == [12, 12]
    back_up(ROOT, "/backups", "1", disk)
    restore("/backups/1", "/restored", disk)
    journal, broker = start(disk, limits, "/restored")
    assert (journal.floor, sorted(topic.name for topic in broker.store.retained)) == (12, ["X/7", "X/8", "X/9"])
    journal.close()


def test_without_retention_a_snapshot_is_as_before_but_for_its_floor() -> None:
    """Deletes that no subscription is owed are left out, and the floor is the newest of them."""
    disk = SimulatedDisk()
    limits = Limits(delete_retention_s=0)
    broker = deleted_topics(disk, limits)
    assert (broker.store.floor, broker.store.topics, snapshot_floors(disk)) == (20, {}, [20])


def test_a_delete_that_is_retained_is_owed_to_no_subscription() -> None:
    """A durable subscription that has begun later, or that has acknowledged it, is not owed it after a restart."""
    disk = SimulatedDisk()
    deleted_topics(disk, Limits())
    journal, broker = start(disk, Limits())
    write(journal, broker, SubscriptionRecord(100, "anna", "c", b"s", b"X/*", eager=False))
    write(journal, broker, changed(21, b"X/live", False, 101))
    journal.close()
    build_snapshot(ROOT, disk, Limits())
    journal, broker = start(disk, Limits())
    (session,) = broker.sessions.values()
    assert {topic.destination for topic in session.subscriptions[b"s"].owed} == {b"X/live"}
    assert len(broker.store.retained) == 10
    journal.close()


def test_after_a_snapshot_without_a_floor_no_older_position_can_be_used() -> None:
    """One of an older release, or of a repair: its own revision is the floor."""
    disk = SimulatedDisk()
    deleted_topics(disk, Limits())
    [(revision, path)] = list_snapshots(f"{ROOT}/snapshots", disk)
    data = disk.contents()[path]
    scanner = open_scanner(path, disk)
    bare = header(scanner.start, scanner.sync_marker, snapshot=True, incarnation=scanner.incarnation)
    disk.put(path, bare + data[scanner.first_offset :])
    journal, broker = start(disk, Limits())
    assert (journal.floor, broker.store.floor) == (revision, revision)
    journal.close()


def test_a_journal_without_a_snapshot_has_all_deletes() -> None:
    """Its segments begin with the first revision."""
    disk = SimulatedDisk()
    deleted_topics(disk, Limits())
    for _, path in list_snapshots(f"{ROOT}/snapshots", disk):
        disk.unlink(path)
    journal, broker = start(disk, Limits())
    assert (journal.floor, len(broker.store.retained)) == (0, 10)
    journal.close()


def test_a_repair_that_lost_changes_leaves_a_floor_at_its_snapshot() -> None:
    """The lost changes may have been deletes."""
    disk = SimulatedDisk()
    deleted_topics(disk, Limits())
    for _, path in list_snapshots(f"{ROOT}/snapshots", disk):
        disk.unlink(path)
    lost = sealed_segments(ROOT, disk)[1].path
    data = bytearray(disk.contents()[lost])
    data[-120] ^= 1
    disk.put(lost, bytes(data))
    repair = Repair.open(ROOT, disk)
    assert repair.plan.snapshot
    limits = Limits(delete_retention_s=0)
    repair.apply(lambda records: summed_up(records, limits).snapshot(), "20261122T155540.588326Z", SYNC)
    journal, broker = start(disk, Limits())
    assert broker.store.floor == repair.plan.snapshot
    journal.close()


def test_the_floor_of_a_header_is_a_revision() -> None:
    """Another text is refused; a segment has none."""

    def scanned(data: bytes) -> Scanner:
        return Scanner("x", len(data), lambda offset, length: data[offset : offset + length])

    at = Position(30, 5, 0)
    assert scanned(header(at, SYNC, snapshot=True, floor=17)).floor == 17
    assert scanned(header(at, SYNC, snapshot=True, floor=0)).floor == 0
    assert scanned(header(at, SYNC, snapshot=True)).floor == 30
    assert scanned(header(START, SYNC, snapshot=False)).floor == 0
    with pytest.raises(JournalDamagedError):
        scanned(header(at, SYNC, snapshot=True, floor=10**20))
