"""The keeper stores what it is offered, waits for a full disk, and reports when it is not known what the disk holds."""

import errno
import threading

import pytest

from maxam.cluster import keeper as module
from maxam.cluster.entry import SEAL, Entry, block_entry
from maxam.cluster.keeper import Keeper
from maxam.journal.encoding import START, Encoder
from maxam.journal.files import Journal, JournalSettings
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import SYNC, change
from tests.support.patience import PATIENCE_S


def blocks(count: int) -> list[Entry]:
    """Return the entries of blocks with one change each."""
    encoder = Encoder(START, SYNC)
    made = [encoder.encode([change(revision, body=b"v" * 100)]) for revision in range(1, count + 1)]
    return [block_entry(one.data, one.before, one.after, one is made[0]) for one in made]


def opened(disk: SimulatedDisk) -> Journal:
    """Return a recovered journal that follows."""
    journal = Journal.open("/journal", disk, JournalSettings(reserve_bytes=0), bytes(16))
    assert list(journal.recover(following=True)) == []
    return journal


def stored(disk: SimulatedDisk) -> int:
    """Return how many changes a start finds."""
    journal = Journal.open("/journal", disk.killed(), JournalSettings(reserve_bytes=0), bytes(16))
    return len(list(journal.recover(following=True)))


def test_all_that_was_offered_is_durable_at_the_end() -> None:
    """Closing stores and syncs what waits, seals where the source sealed, and leaves the rest open."""
    disk = SimulatedDisk()
    keeper = Keeper(opened(disk), START, lambda error: pytest.fail(str(error)))
    entries = blocks(20)
    last = entries[9].after
    for entry in (*entries[:10], Entry(SEAL, False, last, last, SYNC, b"")):
        keeper.offer(entry)
    keeper.start()
    keeper.close()
    assert keeper.synced.revision == 10
    assert [path for path in disk.contents() if path.endswith("-00000000000000000010.avro")]
    assert stored(disk) == 10


def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next entry is tried again until there is room, and nothing is lost."""
    monkeypatch.setattr(module, "_FULL_PAUSE_S", 0.001)
    disk = SimulatedDisk(capacity=4000)
    keeper = Keeper(opened(disk), START, lambda error: pytest.fail(str(error)))
    keeper.start()
    for entry in blocks(40):
        keeper.offer(entry)
    waited = threading.Event()
    while not keeper.disk_full and not waited.wait(0.001):
        pass
    assert not keeper.full
    disk.capacity = None
    keeper.close()
    # closing gives up on a disk that is full at that moment: what was not stored comes again
    left = keeper.synced.revision
    journal = Journal.open("/journal", disk.killed(), JournalSettings(reserve_bytes=0), bytes(16))
    assert len(list(journal.recover(following=True))) == left
    again = Keeper(journal, journal.position, lambda error: pytest.fail(str(error)))
    again.start()
    for entry in blocks(40)[left:]:
        again.offer(entry)
    again.close()
    assert again.synced.revision == 40


def test_a_failed_write_ends_the_process() -> None:
    """Any other error is reported once, with the disk's own words, and the thread ends."""
    disk = SimulatedDisk()
    journal = opened(disk)
    disk.faults = {disk.calls + 8: errno.EIO}
    died: list[BaseException] = []
    over = threading.Event()

    def die(error: BaseException) -> None:
        died.append(error)
        over.set()

    keeper = Keeper(journal, START, die)
    keeper.start()
    for entry in blocks(10):
        keeper.offer(entry)
    assert over.wait(PATIENCE_S)
    (error,) = died
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    keeper.close()
