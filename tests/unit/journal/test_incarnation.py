"""The incarnation identifies a journal: made once, in every file from then on, replaced where another history may begin."""

import pytest

from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.errors import JournalDamagedError
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.backup import back_up, restore
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import START, header
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import RENEW, list_segments, sealed_segments
from maxam.journal.repair import Repair
from maxam.journal.scan import Scanner
from maxam.journal.verify import verify
from maxam.journal.whole import incarnation_of, newest_incarnation
from maxam.records import Record, SubscriptionRecord
from tests.faults import corruption
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change

ROOT = "/journal"
SETTINGS = JournalSettings(reserve_bytes=0)
FIRST, SECOND, THIRD = "1" * 16, "2" * 16, "3" * 16


def start(disk: SimulatedDisk | OsDisk, incarnation: str, root: str = ROOT) -> Journal:
    """Start as a gateway does."""
    journal = Journal.open(root, disk, SETTINGS, SYNC, incarnation)
    list(journal.recover())
    return journal


def write(journal: Journal, count: int = 1) -> None:
    """Write changes, each in a block of its own."""
    for _ in range(count):
        journal.write(journal.encode([change(journal.head + 1, b"X/a", at_us=journal.accepted_at_us + 1)]))


def headers(disk: SimulatedDisk) -> list[str]:
    """Return the incarnations of the segments, in order."""
    sealed, opened = list_segments(f"{ROOT}/segments", disk)
    return [incarnation_of(one.path, disk) for one in [*sealed, *opened]]


def kill(disk: SimulatedDisk, journal: Journal) -> None:
    """End the process without a stop."""
    disk.close(journal._lock)


def test_a_journal_gets_one_at_its_first_start_and_keeps_it() -> None:
    """It is on the disk before the first SEND, over kills and stops, in each segment and in snapshots."""
    disk = SimulatedDisk()
    kill(disk, start(disk, FIRST))
    assert newest_incarnation(ROOT, disk) == FIRST
    journal = start(disk, SECOND)
    write(journal, 3)
    journal.close()
    journal = start(disk, THIRD)
    write(journal)
    journal.close()
    assert journal.incarnation == FIRST
    assert headers(disk) == [FIRST, FIRST]
    path = build_snapshot(ROOT, disk, Limits())
    assert path is not None
    assert incarnation_of(path, disk) == FIRST
    for segment in sealed_segments(ROOT, disk):
        disk.unlink(segment.path)
    assert newest_incarnation(ROOT, disk) == FIRST


@pytest.mark.parametrize("changes", [0, 3])
def test_a_journal_of_an_older_release_gets_one_at_its_next_start(changes: int) -> None:
    """A segment with changes is sealed as it is, byte for byte. One without is given another header. Records stay."""
    disk = SimulatedDisk()
    journal = start(disk, "")
    session: list[Record] = [SubscriptionRecord(NOW_US, "alice", "pump", b"s", b"X/**", False)]
    journal.write(journal.encode(session))
    write(journal, changes)
    kill(disk, journal)
    [old] = list_segments(f"{ROOT}/segments", disk)[1]
    before = disk.contents()[old.path]
    for incarnation in (FIRST, SECOND):
        journal = Journal.open(ROOT, disk, SETTINGS, SYNC, incarnation)
        records = list(journal.recover())
        assert (len(records), journal.head, journal.incarnation) == (1 + changes, changes, FIRST)
        kill(disk, journal)
    assert headers(disk) == (["", FIRST] if changes else [FIRST])
    if changes:
        [sealed] = sealed_segments(ROOT, disk)
        assert disk.contents()[sealed.path].startswith(before)
    write(start(disk, THIRD), 2)
    assert [one for one in verify(ROOT, disk) if one.problem is not None] == []


def test_a_restored_journal_gets_another_one_before_it_serves() -> None:
    """Revisions that are given again after it are of another incarnation than those that were lost; once only."""
    disk = SimulatedDisk()
    journal = start(disk, FIRST)
    write(journal, 3)
    back_up(ROOT, "/backups", "1", disk)
    write(journal, 3)
    kill(disk, journal)
    restore("/backups/1", "/restored", disk)
    assert newest_incarnation("/restored", disk) == FIRST
    for incarnation in (SECOND, THIRD):
        journal = start(disk, incarnation, "/restored")
        assert (journal.head, journal.incarnation) == (3, SECOND)
        assert newest_incarnation("/restored", disk) == SECOND
        kill(disk, journal)
    assert f"/restored/{RENEW}" not in disk.contents()
    write(start(disk, THIRD, "/restored"))
    assert [one for one in verify("/restored", disk) if one.problem is not None] == []


@pytest.mark.parametrize("lost", [True, False])
def test_a_repair_that_lost_revisions_replaces_it(lost: bool) -> None:
    """One that lost none does not."""
    disk = corruption.loaded(corruption.truth().files)
    kill(disk, start(disk, FIRST, corruption.ROOT))
    path = sealed_segments(corruption.ROOT, disk)[-1].path
    if not lost:
        path = max(path for path in disk.contents() if "/snapshots/" in path and path.endswith(".avro"))
    data = bytearray(disk.contents()[path])
    data[-120] ^= 1  # in the last block but the mark of a finished file
    disk.put(path, bytes(data))
    repair = Repair.open(corruption.ROOT, disk)
    assert bool(repair.plan.gaps) == lost
    repair.apply(lambda records: summed_up(records, Limits()).snapshot(), "20261122T155540.588326Z", SYNC)
    assert newest_incarnation(corruption.ROOT, disk) == FIRST
    assert start(disk, SECOND, corruption.ROOT).incarnation == (SECOND if lost else FIRST)


def test_a_full_disk_keeps_a_journal_that_has_none_in_service() -> None:
    """It goes on without one, and gets one at a later start; a restored one does not start under the old one."""
    disk = SimulatedDisk()
    journal = start(disk, "")
    write(journal, 3)
    kill(disk, journal)
    for number in range(1, 12):
        tried = corruption.loaded({path: data for path, data in disk.contents().items() if not path.endswith("lock")})
        tried.faults = {tried.calls + number: 28}
        try:
            journal = start(tried, FIRST)
        except OSError:
            continue  # a disk that cannot be synced ends the start, as before
        assert journal.incarnation in {"", FIRST}
        assert newest_incarnation(ROOT, tried) == journal.incarnation
        tried.faults = {}
        write(journal)
        kill(tried, journal)
        journal = start(tried, SECOND)
        assert journal.incarnation in {FIRST, SECOND}
        assert journal.head == 4


def test_unknown_metadata_of_later_releases_is_ignored() -> None:
    """An entry of another name does not harm; one that is no incarnation does."""
    whole = header(START, SYNC, snapshot=False, incarnation=FIRST)

    def scanned(data: bytes) -> Scanner:
        return Scanner("x", len(data), lambda offset, length: data[offset : offset + length])

    assert (scanned(whole).incarnation, scanned(whole).first_offset) == (FIRST, len(whole))
    assert scanned(header(START, SYNC, snapshot=False)).incarnation == ""
    with pytest.raises(JournalDamagedError):
        scanned(header(START, SYNC, snapshot=False, incarnation="g" * 16))
    with pytest.raises(JournalDamagedError):
        scanned(whole.replace(FIRST.encode(), SECOND.encode()))  # the checksum covers it
