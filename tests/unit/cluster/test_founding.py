"""The log of a new cluster, and the journals that begin where its founder's ended."""

from pathlib import Path

import pytest

from maxam.cluster.entry import BLOCK, GENESIS, INCARNATION, SEAL, read_entry
from maxam.cluster.founding import found
from maxam.cluster.keeper import Keeper
from maxam.cluster.log import Head, SupersededError
from maxam.cluster.log_place import LogPlace
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.membership import read_membership
from maxam.cluster.placing import FOLLOW, FORKED, Place, find_place
from maxam.cluster.steps import Steps
from maxam.errors import JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from tests.support.journal_records import NOW_US, SYNC, change
from tests.support.memory_log import MemoryLog
from tests.unit.cluster.test_logged import Swapped

SETTINGS = JournalSettings(reserve_bytes=0)


def opened(folder: Path, incarnation: str = "") -> Journal:
    """Return a recovered journal."""
    journal = Journal.open(folder, OsDisk(), SETTINGS, SYNC, incarnation)
    for _ in journal.recover(following=True):
        pass
    return journal


def member(log: MemoryLog, folder: Path) -> tuple[Journal, LoggedJournal, Steps, Keeper]:
    """Return a member at its place in the log."""
    journal, head = opened(folder), log.head()
    assert head is not None
    keeper = Keeper(journal, journal.position, lambda error: pytest.fail(str(error)))
    keeper.start()
    found_place = find_place(journal.position, 0, head, lambda index: read_entry(log.read(index, 1)[0]))
    assert found_place.outcome == FOLLOW
    place = LogPlace(journal.position, journal.extent, journal.incarnation)
    place.start(found_place.first)
    return (
        journal,
        LoggedJournal(log, folder.name, journal, keeper, place, Swapped(), 1 << 18, 1 << 30),
        Steps(keeper, journal.position),
        keeper,
    )


def follow(log: MemoryLog, logged: LoggedJournal, steps: Steps) -> None:
    """Take all entries that are new."""
    for data in log.read(logged.place.index + 1, 1 << 30):
        logged.follow(read_entry(data), len(data), steps)


def test_a_journal_with_the_same_changes_gets_the_incarnation_of_the_cluster(tmp_path: Path) -> None:
    """Its segments are those of the founder from there on, also after a restart between the incarnation and the next block."""
    for name in "ab":
        journal = opened(tmp_path / name, name * 16)
        journal.write(journal.encode([change(1)]))
        journal.close(seal=False)
    log = MemoryLog()
    assert found(log, str(tmp_path / "a")).incarnation == "a" * 16

    journal, logged, steps, keeper = member(log, tmp_path / "b")
    follow(log, logged, steps)
    keeper.close()
    journal.close(seal=False)
    journal = opened(tmp_path / "b")
    assert journal.incarnation == "a" * 16
    journal.close(seal=False)

    first, second = member(log, tmp_path / "a"), member(log, tmp_path / "b")
    head = log.head()
    assert head is not None
    follow(log, *first[1:3])
    first[1].claim(head, "0.2.0", first[2])
    for revision in (2, 3):
        first[1].write(first[1].encode([change(revision)]))
    first[1].seal_aged(NOW_US + 10**13)
    follow(log, *second[1:3])
    for journal, _, _, keeper in (first, second):
        keeper.close()
        journal.close(seal=False)
    sealed = {name: sorted((tmp_path / name / "segments").iterdir()) for name in "ab"}
    assert [one.name for one in sealed["a"]] == [one.name for one in sealed["b"]]
    assert len(sealed["a"]) == 2
    assert sealed["a"][1].read_bytes() == sealed["b"][1].read_bytes()


def lead(log: MemoryLog, folder: Path, revisions: range) -> LoggedJournal:
    """Lead with a member, and log changes; its journal has them then."""
    journal, logged, steps, keeper = member(log, folder)
    follow(log, logged, steps)
    head = log.head()
    assert head is not None
    logged.claim(head, "0.2.0", steps)
    for revision in revisions:
        logged.write(logged.encode([change(revision)]))
    keeper.close()
    journal.close(seal=False)
    return logged


def place_of(log: MemoryLog, folder: Path) -> Place:
    """Return the place of a journal in the log."""
    journal, head = opened(folder), log.head()
    assert head is not None
    journal.close(seal=False)
    return find_place(journal.position, 0, head, lambda index: read_entry(log.read(index, 1)[0]))


def test_a_log_is_replaced_by_force_alone(tmp_path: Path) -> None:
    """The old leader writes no longer. The cluster keeps its identifier, and the journals get a new incarnation."""
    log, first, second = MemoryLog(), tmp_path / "a", tmp_path / "b"
    before = found(log, str(first))
    leader = lead(log, first, range(1, 4))
    journal, logged, steps, keeper = member(log, second)  # it has less than the other one
    for index in range(1, 6):
        data = log.read(index, 1)[0]
        logged.follow(read_entry(data), len(data), steps)
    keeper.close()
    journal.close(seal=False)
    with pytest.raises(JournalError):
        found(log, str(second))
    after = found(log, str(second), force=True, silence_s=0.0)
    assert (after.cluster, after.revision, after.index) == (before.cluster, 1, 3)
    assert after.incarnation != before.incarnation
    assert [read_entry(data).kind for _, data in sorted(log.entries.items())] == [GENESIS, SEAL, INCARNATION]
    with pytest.raises(SupersededError):
        leader.beat()
    assert place_of(log, second) == Place(FOLLOW, 1)
    assert place_of(log, first) == Place(FORKED)
    lead(log, second, range(2, 3))
    assert sum(read_entry(data).kind == BLOCK for data in log.entries.values()) == 1


def test_a_lost_log_is_made_again_by_force_alone(tmp_path: Path) -> None:
    """The journal of a member is not taken for that of a new cluster."""
    folder = tmp_path / "a"
    before = found(MemoryLog(), str(folder))
    with pytest.raises(JournalError):
        found(MemoryLog(), str(folder))
    log = MemoryLog()
    assert found(log, str(folder), force=True, silence_s=0.0).cluster == before.cluster
    note = read_membership(str(folder), OsDisk())
    assert note is not None
    assert note.cluster.hex() == before.cluster


def test_the_log_of_another_cluster_is_not_replaced(tmp_path: Path) -> None:
    """Nor that of one whose leader is alive."""
    log, other = MemoryLog(), MemoryLog()
    found(log, str(tmp_path / "a"))
    found(other, str(tmp_path / "b"))
    with pytest.raises(JournalError):
        found(log, str(tmp_path / "b"), force=True, silence_s=0.0)
    leader = lead(other, tmp_path / "b", range(1, 2))
    beat = other.beat

    def beat_of_both(head: Head, before: Head) -> Head:
        other.beat = beat  # type: ignore[method-assign]  # once
        leader.beat()
        return beat(head, before)

    other.beat = beat_of_both  # type: ignore[method-assign]  # the leader is faster
    with pytest.raises(JournalError):
        found(other, str(tmp_path / "b"), force=True, silence_s=0.0)
    assert len(other.entries) == 5
