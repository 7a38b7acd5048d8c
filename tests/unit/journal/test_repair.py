"""A repair reports exactly what it drops, keeps the originals, survives its own crash, and never gives a revision twice."""

import random
from collections.abc import Iterator

import pytest

from maxam.broker.broker import Broker
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.content import pack
from maxam.errors import DiskFullError, JournalDamagedError, JournalError
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.losses import read_losses
from maxam.journal.names import sealed_segments
from maxam.journal.repair import Repair
from maxam.journal.repair_plan import Plan, SessionLoss
from maxam.journal.scan import Scanner
from maxam.journal.verify import verify
from maxam.records import AcknowledgementRecord, Record, SubscriptionRecord, WillEndRecord, WillRecord
from tests.faults import corruption
from tests.simulation.disk import PowerCut, SimulatedDisk
from tests.support.journal_records import ALICE, NOW_US, SYNC, change

ROOT = "/journal"
SESSION = ("alice", "pump", b"s")


def summarise(records: Iterator[Record]) -> Iterator[Record]:
    """Make a snapshot's records as the gateway's process does."""
    return summed_up(records, Limits()).snapshot()


def written(*lives: list[list[Record]]) -> SimulatedDisk:
    """Return a disk with one segment for each life, the last one open."""
    disk = SimulatedDisk()
    for number, batches in enumerate(lives):
        journal = Journal.open(ROOT, disk, JournalSettings(reserve_bytes=0), SYNC)
        list(journal.recover())
        for batch in batches:
            journal.write(journal.encode(batch))
        if number < len(lives) - 1:
            journal.close()
        else:
            disk.close(journal._lock)
    return disk


def blocks(disk: SimulatedDisk, path: str) -> list[int]:
    """Return where the blocks of a file begin."""
    data = disk.contents()[path]
    scanner = Scanner(path, len(data), lambda offset, length: data[offset : offset + length])
    offsets = [scanner.offset]
    while scanner.next_block() is not None:
        offsets.append(scanner.offset)
    return offsets


def harm(disk: SimulatedDisk, path: str, place: int) -> None:
    """Flip a bit."""
    data = bytearray(disk.contents()[path])
    data[place] ^= 4
    disk.put(path, bytes(data))


def planned(disk: SimulatedDisk) -> Plan:
    """Return what a repair would do."""
    repair = Repair.open(ROOT, disk)
    repair.close()
    return repair.plan


def repaired(disk: SimulatedDisk) -> tuple[Plan, Journal, Broker]:
    """Repair, and start from the result."""
    repair = Repair.open(ROOT, disk)
    repair.apply(summarise, "20261121T230000.588326Z", SYNC)
    assert [report for report in verify(ROOT, disk) if report.problem is not None and not report.torn] == []
    return repair.plan, *corruption.start(disk)


def shown(broker: Broker) -> dict[bytes, int]:
    """Return the topics that hold a value, and its revision."""
    return {topic.destination: topic.change.revision for topic in corruption.live(broker)}


def three_segments() -> SimulatedDisk:
    """Return segments of revisions 1 to 4, 5 to 8 and an open 9 to 10, in blocks of two. Their topics are a to e."""
    first: list[list[Record]] = [
        [SubscriptionRecord(NOW_US, *SESSION, b"X/**", True), change(1, b"X/a"), change(2, b"X/b")],
        [change(3, b"X/c"), change(4, b"X/d")],
    ]
    second: list[list[Record]] = [
        [change(5, b"X/a"), change(6, b"X/b", deleted=True, body=b"")],
        [change(7, b"X/c"), change(8, b"X/d"), AcknowledgementRecord(NOW_US + 8000, *SESSION, ((b"X/a", 5),))],
    ]
    third: list[list[Record]] = [[change(9, b"X/a"), change(10, b"X/e")]]
    return written(first, second, third)


def test_a_damaged_block_of_a_sealed_segment_is_dropped_with_everything_told() -> None:
    """File, bytes, revisions, topics and their new values are reported. Only topics older than lost changes are listed; nothing changes before `apply`."""
    disk = three_segments()
    path = sealed_segments(ROOT, disk)[1].path
    start, end, *_ = blocks(disk, path)
    harm(disk, path, end - 20)  # the check of the block of revisions 5 and 6
    before = disk.contents()
    plan = planned(disk)
    assert {name: data for name, data in disk.contents().items() if not name.endswith("lock")} == {
        name: data for name, data in before.items() if not name.endswith("lock")
    }
    [drop] = plan.drops
    assert (drop.path, drop.offset, drop.length, drop.first, drop.last) == (path, start, end - start, 5, 6)
    assert (drop.exact, drop.needed, "checksum" in drop.fault) == (True, True, True)
    [topic] = plan.topics  # a has a newer value
    assert (topic.destination, topic.lost, topic.deleted) == ("X/b", 6, True)
    assert (topic.shown, topic.shown_at_us, topic.shown_deleted) == (2, NOW_US + 2000, False)
    assert (plan.unknown, plan.snapshot, plan.head) == (0, 6, 10)
    _, journal, broker = repaired(disk)
    assert journal.head == 10
    assert shown(broker) == {b"X/a": 9, b"X/b": 2, b"X/c": 7, b"X/d": 8, b"X/e": 10}
    assert disk.contents()[f"{ROOT}/damaged/20261121T230000.588326Z/segments/{path.rpartition('/')[2]}"] == before[path]
    assert read_losses(ROOT, disk).ranges == {"segments": [(5, 6)]}
    owed = {topic.destination for topic in broker.sessions["alice", "pump"].subscriptions[b"s"].owed}
    assert owed == {b"X/a", b"X/b", b"X/c", b"X/d", b"X/e"}


def test_what_sessions_did_behind_the_last_change_of_a_segment_is_kept_and_what_is_lost_of_it_is_told() -> None:
    """No segment can begin with it, so the snapshot holds it; damage among it is no change that the next segment holds."""
    first: list[list[Record]] = [
        [change(1, b"X/a"), change(2, b"X/b")],
        [SubscriptionRecord(NOW_US + 2000, *SESSION, b"X/**", True)],
        [SubscriptionRecord(NOW_US + 2000, "bob", "pump", b"s", b"X/**", True)],
    ]
    disk = written(first, [[change(3, b"X/c")]])
    path = sealed_segments(ROOT, disk)[0].path
    _, start, end, *_ = blocks(disk, path)
    harm(disk, path, end - 20)
    plan, journal, broker = repaired(disk)
    [drop] = plan.drops
    assert (drop.offset, drop.length, drop.first, drop.needed) == (start, end - start, 0, True)
    assert plan.sessions == (SessionLoss("alice", "pump", "s", "subscription"),)
    assert (journal.head, shown(broker)) == (3, {b"X/a": 1, b"X/b": 2, b"X/c": 3})
    assert list(broker.sessions) == [("bob", "pump")]


def test_a_lost_will_is_reported_and_the_others_stay() -> None:
    """The damaged block shows whose it was. The snapshot of the repair has those before and after it."""

    def will(name: str) -> WillRecord:
        return WillRecord(NOW_US + 2000, name, ALICE, b"X/w", *pack(((b"h", b"v"),), b"bye " * 20), 5)

    first: list[list[Record]] = [
        [change(1, b"X/a"), change(2, b"X/b"), will("kept")],
        [will("lost")],
        [WillEndRecord(NOW_US + 2000, "bob", "ended")],
        [will("later")],
    ]
    disk = written(first, [[change(3, b"X/c")]])
    path = sealed_segments(ROOT, disk)[0].path
    _, _, first_end, second_end, *_ = blocks(disk, path)
    harm(disk, path, first_end - 20)
    harm(disk, path, second_end - 20)
    plan, _, broker = repaired(disk)
    assert set(plan.sessions) == {SessionLoss("alice", "lost", "", "will"), SessionLoss("bob", "ended", "", "will_end")}
    assert [record.client_id for record in broker.last_wills.wills.snapshot()] == ["kept", "later"]


def test_a_lost_end_never_gives_its_revisions_again() -> None:
    """When the last blocks of the last sealed segment are gone revisions go on above its name, and an acknowledgement proves a topic."""
    disk = three_segments()
    [opened] = [path for path in disk.contents() if path.endswith("open.avro")]
    disk.unlink(opened)
    path = sealed_segments(ROOT, disk)[1].path
    harm(disk, path, blocks(disk, path)[1] + 40)
    plan, journal, broker = repaired(disk)
    assert plan.head == journal.head == 8
    assert shown(broker) == {b"X/a": 5, b"X/c": 3, b"X/d": 4}
    assert {topic.destination: topic.shown for topic in plan.topics} == {"X/c": 3, "X/d": 4}
    assert SessionLoss("alice", "pump", "s", "acknowledgement") in plan.sessions
    journal = Journal.open(ROOT, disk, JournalSettings(reserve_bytes=0), SYNC)
    list(journal.recover())
    journal.write(journal.encode([change(9, b"X/c")]))
    journal.close()
    assert shown(corruption.start(disk)[1])[b"X/c"] == 9


def test_a_missing_segment_is_told_by_what_is_left() -> None:
    """Its revisions are lost, and a whole record with one of them proves its topic for certain."""
    disk = three_segments()
    batch: list[Record] = [change(11, b"X/e"), AcknowledgementRecord(NOW_US + 11000, *SESSION, ((b"X/c", 7),))]
    journal = Journal.open(ROOT, disk, JournalSettings(reserve_bytes=0), SYNC)
    list(journal.recover())
    journal.write(journal.encode(batch))
    disk.close(journal._lock)
    disk.unlink(sealed_segments(ROOT, disk)[1].path)
    plan, journal, broker = repaired(disk)
    [drop] = plan.drops
    assert (drop.first, drop.last, drop.length) == (5, 8, 0)
    assert [(topic.destination, topic.lost, topic.shown, topic.certain) for topic in plan.topics] == [
        ("X/c", 7, 3, True)
    ]
    assert (plan.unknown, plan.candidates) == (3, 3)  # b, c and d have no change since
    assert shown(broker) == {b"X/a": 9, b"X/b": 2, b"X/c": 3, b"X/d": 4, b"X/e": 11}


def test_a_damaged_header_costs_nothing() -> None:
    """The blocks after it are whole: the segment is written again with the header that was there."""
    disk = three_segments()
    path = sealed_segments(ROOT, disk)[0].path
    original = disk.contents()[path]
    harm(disk, path, 5)
    plan, journal, broker = repaired(disk)
    assert (plan.gaps, plan.topics, plan.snapshot) == ((), (), 0)
    assert disk.contents()[path][len(original) - 60 :] == original[-60:]
    assert shown(broker)[b"X/e"] == journal.head == 10


def test_overlapping_segments_are_told_apart_by_their_chain() -> None:
    """A segment that holds what others hold goes; what it holds beyond them stays when its chain shows that it follows."""
    disk = three_segments()
    first, second = sealed_segments(ROOT, disk)
    data = disk.contents()
    disk.put(f"{ROOT}/segments/{2:020}-{4:020}.avro", data[first.path])
    with pytest.raises(JournalDamagedError):
        corruption.start(disk)
    plan, _, broker = repaired(disk)
    assert plan.gaps == ()
    assert shown(broker) == {b"X/a": 9, b"X/c": 7, b"X/d": 8, b"X/e": 10}
    assert [segment.path for segment in sealed_segments(ROOT, disk)][:2] == [first.path, second.path]


def test_a_session_record_above_the_head_is_dropped_and_revisions_go_on_above_it() -> None:
    """A block that knows a revision which is not there goes, and that revision is not given again."""
    disk = written(
        [[change(1)]], [[change(2), AcknowledgementRecord(NOW_US + 2000, *SESSION, ((b"X/a", 700),))], [change(3)]]
    )
    with pytest.raises(JournalDamagedError, match="knows revision 700"):
        corruption.start(disk)
    plan, journal, _ = repaired(disk)
    assert journal.head == plan.head == 700
    assert "knows revision 700" in plan.drops[0].fault


def test_a_torn_tail_is_left_to_the_start_and_nothing_else_is_found() -> None:
    """An unfinished write is no damage: the plan has a note, and applying it cuts the tail and keeps it as a start does."""
    disk = three_segments()
    [opened] = [path for path in disk.contents() if path.endswith("open.avro")]
    disk.put(opened, disk.contents()[opened][:-30])
    plan = planned(disk)
    assert plan.empty
    assert opened in plan.notes[0]
    _, journal, _ = repaired(disk)
    assert journal.head == 8


def test_foreign_files_go_aside_and_a_text_that_lies_too() -> None:
    """Files that do not belong to a journal, and schemas whose text does not fit their name, are moved to `damaged`."""
    disk = three_segments()
    disk.make_folder(f"{ROOT}/schemas")
    disk.put(f"{ROOT}/segments/notes.txt", b"do not touch")
    disk.put(f"{ROOT}/schemas/{'a' * 64}.avsc", b"{}")
    plan, _, _ = repaired(disk)
    assert len(plan.removed) == 2
    assert disk.contents()[f"{ROOT}/damaged/20261121T230000.588326Z/segments/notes.txt"] == b"do not touch"
    assert f"{ROOT}/schemas/{'a' * 64}.avsc" not in disk.contents()


def test_a_whole_journal_needs_nothing() -> None:
    """The plan for a whole journal is empty, whatever it holds."""
    disk = corruption.loaded(corruption.truth().files)
    plan = planned(disk)
    assert plan.empty
    assert (plan.drops, plan.notes) == ((), ())


def test_a_journal_in_use_is_not_looked_at() -> None:
    """While a gateway holds the folder, or a snapshot of it is being built, no repair is planned."""
    disk = three_segments()
    for name in ("lock", "snapshots/lock"):
        held = disk.lock(f"{ROOT}/{name}")
        with pytest.raises(JournalError, match="in use"):
            Repair.open(ROOT, disk)
        disk.close(held)
    with pytest.raises(JournalError, match=f"{ROOT}/segments"):
        Repair.open(f"{ROOT}/segments", disk)


SEEDS = range(0, 400, 16)


@pytest.mark.slow
def test_a_crash_at_any_call_of_a_repair_is_made_good_by_another() -> None:
    """Wherever the power goes, a start is refused or shows what the finished repair shows, and another repair comes to the same."""
    crashes = 0
    for seed in SEEDS:
        files = dict(corruption.truth().files)
        corruption.damage(files, random.Random(seed))  # noqa: S311 - repeatable, not secret
        disk = corruption.loaded(files)
        before = disk.calls
        plan, journal, broker = repaired(disk)
        if plan.empty:
            continue
        wanted, head = shown(broker), journal.head
        generator = random.Random(seed)  # noqa: S311 - repeatable, not secret
        first = corruption.loaded(files)
        Repair.open(ROOT, first).close()
        calls = range(first.calls, disk.calls - before + first.calls, 1 + (disk.calls - before) // 9)
        for call in calls:
            broken = corruption.loaded(files)
            repair = Repair.open(ROOT, broken)
            broken.faults = {max(call, broken.calls + 1): 0}
            try:
                repair.apply(summarise, "first", SYNC)
            except PowerCut:
                crashes += 1
            after = broken.restarted(generator.randrange)
            try:
                journal, found = corruption.start(after)
            except JournalDamagedError:
                pass
            else:
                assert (shown(found), journal.head) == (wanted, head), seed
            _, journal, found = repaired(after)
            assert shown(found) == wanted, seed
            assert journal.head >= head, seed
    assert crashes > 30


def test_a_full_disk_takes_nothing_away() -> None:
    """Without room for the new files the repair ends with every original still there."""
    disk = three_segments()
    path = sealed_segments(ROOT, disk)[1].path
    harm(disk, path, blocks(disk, path)[0] + 30)
    originals = disk.contents()
    disk.capacity = sum(map(len, originals.values())) + 300
    with pytest.raises(DiskFullError):
        Repair.open(ROOT, disk).apply(summarise, "full", SYNC)
    assert all(disk.contents()[name] == data for name, data in originals.items() if not name.endswith("lock"))
    disk.capacity = None
    assert repaired(disk)[1].head == 10


def test_room_kept_for_a_snapshot_belongs_to_the_journal() -> None:
    """The files that keep room for the next snapshots are no foreign ones: a repair leaves them where they are."""
    disk = written([[change(1)]], [[change(2)]])
    disk.put(f"{ROOT}/snapshots/foreign", b"1")
    disk.put(f"{ROOT}/snapshots/reserve.0", bytes(100))
    plan = planned(disk)
    assert [note for note in plan.notes if "foreign" in note]
    assert not [note for note in plan.notes if "reserve.0" in note]
    notes = {report.path.rpartition("/")[2]: report.note for report in verify(ROOT, disk)}
    assert "ignored" in notes["foreign"]
    assert "ignored" not in notes["reserve.0"]
