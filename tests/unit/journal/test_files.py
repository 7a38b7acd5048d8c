"""The journal's folder: what was promised survives every crash, what was refused leaves nothing, damage is never believed."""

import errno
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from maxam.errors import DiskFullError, JournalDamagedError, JournalError
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.replay import read_sealed
from maxam.journal.snapshots import write_snapshot
from maxam.journal.verify import verify
from maxam.records import AcknowledgementRecord, Change, Record
from tests.simulation.disk import Choose, PowerCut, SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change, one_of_each, plain_all

ROOT = "/var/journal"
SMALL = JournalSettings(segment_bytes_max=2500, reserve_bytes=4096)
TEXT = b'{"type":"record","name":"S_v1","fields":[]}'
TEXTS = [(sha256(TEXT).hexdigest(), TEXT)]


def acknowledgement(revision: int, at: int = 0) -> AcknowledgementRecord:
    """Make an acknowledgement right after a change."""
    return AcknowledgementRecord(
        NOW_US + 1000 * (at or revision), "alice", "pump", b"s1", ((b"X/EGM.Q.1.EGMStatus", revision),)
    )


@pytest.fixture(autouse=True, params=[0, 4096], ids=["", "ahead"])
def _ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocate room for segments ahead, or not."""
    monkeypatch.setattr(sys.modules[__name__], "SMALL", replace(SMALL, ahead_bytes=request.param))


def opened(disk: SimulatedDisk, settings: JournalSettings | None = None) -> tuple[Journal, list[Record]]:
    """Return a recovered journal and its records."""
    journal = Journal.open(ROOT, disk, settings or SMALL, SYNC)
    return journal, list(journal.recover())


def parts(records: list[Record]) -> tuple[list[object], list[object]]:
    """Return changes and session records, each in order: a snapshot holds them apart. Only what differs here is compared."""
    changes = [record for record in records if isinstance(record, Change)]
    others = [record for record in records if isinstance(record, AcknowledgementRecord)]
    assert len(changes) + len(others) == len(records)
    return [(one.revision, one.accepted_at_us, one.body) for one in changes], [
        (one.accepted_at_us, one.positions) for one in others
    ]


class History:
    """The promises to a run of the journal, and its last step."""

    def __init__(self) -> None:
        self.stored: list[Record] = []
        self.pending: list[Record] = []  # outcome unknown
        self.refusals = 0

    def write(self, journal: Journal, size: int) -> None:
        """Write a batch that follows what is stored."""
        head = journal.head
        batch: list[Record] = [
            change(head + n, body=b"%d after %d refusals" % (head + n, self.refusals) * n) for n in range(1, size + 1)
        ]
        batch.append(acknowledgement(head + size))
        self.pending = batch
        try:
            journal.write(journal.encode(batch))
        except DiskFullError:
            self.refusals += 1
        else:
            self.stored += batch
        self.pending = []

    def run(self, disk: SimulatedDisk) -> None:
        """Start, write over several segments, stop, snapshot, start again and go on."""
        for life in range(2):
            journal, _ = opened(disk)
            try:
                journal.keep_schemas(TEXTS)
            except DiskFullError:
                self.refusals += 1
            for size in (1, 12, 2, 9):
                self.write(journal, size)
            journal.close()
            sealed = sealed_segments(ROOT, disk)
            if not life and sealed and sealed[-1].last == journal.head:
                changes: list[Record] = [record for record in self.stored if isinstance(record, Change)]
                others: list[Record] = [record for record in self.stored if not isinstance(record, Change)]
                try:
                    write_snapshot(ROOT, disk, journal.head, changes + others, SYNC)
                except DiskFullError:
                    self.refusals += 1

    def check(self, disk: SimulatedDisk) -> None:
        """See that a start finds all that was promised, nothing refused, and goes on from there."""
        journal, found = opened(disk)
        wanted = [parts(self.stored)]
        if self.pending:
            wanted.append(parts(self.stored + self.pending))
        assert parts(found) in wanted
        assert not journal.damaged_snapshots
        self.stored = found
        self.pending = []
        self.write(journal, 2)
        journal.close()
        assert [report for report in verify(ROOT, disk) if report.problem is not None] == []
        again, found = opened(disk)
        again.close()
        assert parts(found) == parts(self.stored)

    def run_and_check(self, disk: SimulatedDisk) -> None:
        """Run, then check, on one disk."""
        self.run(disk)
        self.check(disk)


def calls_of_a_run() -> int:
    """Return how many operations the run takes."""
    disk = SimulatedDisk()
    history = History()
    history.run_and_check(disk)
    assert len(history.stored) > 50
    return disk.calls


CALLS = calls_of_a_run()


def losses(seed: int) -> Iterator[Choose]:
    """Yield ways to lose what was not synced: everything, nothing, and some at random."""
    yield lambda _: 0
    yield lambda n: n - 1
    for attempt in range(4):
        yield random.Random(seed * 10 + attempt).randrange  # noqa: S311 - repeatable, not secret


@pytest.mark.slow
def test_a_power_cut_at_any_call_loses_nothing_promised() -> None:
    """After a power cut at any call, with any loss of unsynced data, all that `write` returned for is found."""
    for call in range(1, CALLS + 1):
        disk = SimulatedDisk({call: 0})
        history = History()
        with pytest.raises(PowerCut):
            history.run_and_check(disk)
        for choose in losses(call):
            after = History()
            after.stored = list(history.stored)
            after.pending = list(history.pending)
            after.check(disk.restarted(choose))


@pytest.mark.slow
def test_a_kill_at_any_call_loses_nothing_promised() -> None:
    """After a kill at any call, all that `write` returned for is found, and then survives a power cut too."""
    for call in range(1, CALLS + 1):
        disk = SimulatedDisk({call: 0})
        history = History()
        with pytest.raises(PowerCut):
            history.run_and_check(disk)
        wanted = [parts(history.stored), parts(history.stored + history.pending)]
        again = disk.killed()
        _, found = opened(again)  # killed once more; what was found may have been shown to clients
        assert parts(found) in wanted
        history.stored, history.pending = found, []
        history.check(again.restarted(lambda _: 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "length"),
    [
        (errno.EIO, 1),
        (errno.EMFILE, 1),
        (errno.EDQUOT, 1),
        (errno.ENOSPC, 1),
        (errno.ENOSPC, 2),
        (errno.ENOSPC, 3),
        (errno.ENOSPC, 4),
    ],
)
def test_an_error_at_any_call_is_a_refusal_or_the_end(code: int, length: int) -> None:
    """If any calls fail, a refused batch leaves nothing. After any other error the journal refuses all use."""
    refusals = 0
    for call in range(1, CALLS + 1):
        disk = SimulatedDisk({call + more: code for more in range(length)})
        history = History()
        try:
            history.run(disk)
        except OSError:
            calls = disk.calls
            assert calls >= call
        refusals += history.refusals
        history.check(disk.killed())
    assert (refusals > 10) == (code != errno.EIO)


def test_a_failed_sync_is_not_tried_again() -> None:
    """After a failed fdatasync every further write is refused without touching the disk."""
    for code in (errno.EIO, errno.ENOSPC):
        disk = SimulatedDisk()
        journal, _ = opened(disk)
        journal.write(journal.encode([change(1)]))
        disk.faults = {disk.calls + 2: code}
        with pytest.raises(OSError, match="simulated"):
            journal.write(journal.encode([change(2)]))
        assert disk.log[-1].startswith("fdatasync")
        with pytest.raises(JournalError):
            journal.write(journal.encode([change(3)]))
        assert disk.log[-1].startswith("fdatasync")


def test_a_batch_is_one_write_and_one_sync() -> None:
    """In the steady state a batch costs two calls."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, JournalSettings())
    journal.write(journal.encode([change(1)]))
    calls = disk.calls
    journal.write(journal.encode([change(n) for n in range(2, 6)]))
    assert [line.split()[0] for line in disk.log[calls:]] == ["pwrite", "fdatasync"]


def test_without_durability_nothing_is_synced() -> None:
    """With `durable` off a write is just a write, and a kill still loses nothing."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, JournalSettings(segment_bytes_max=1000, durable=False))
    calls = disk.calls
    for n in range(1, 40):
        journal.write(journal.encode([change(n)]))
    assert not [line for line in disk.log[calls:] if "sync" in line]
    assert [record.revision for record in opened(disk.killed())[1] if isinstance(record, Change)] == list(range(1, 40))


def test_short_writes_are_continued() -> None:
    """A disk that takes seven bytes at a time stores the same bytes."""
    disks = [SimulatedDisk(), SimulatedDisk(write_bytes_max=7)]
    for disk in disks:
        History().run(disk)
    assert disks[0].contents() == disks[1].contents()


def test_a_full_disk_takes_acknowledgements_from_the_reserve() -> None:
    """On a full disk changes are refused, acknowledgements stored; with room both are, and the reserve is back."""
    settings = JournalSettings(reserve_bytes=4096)
    disk = SimulatedDisk()
    disk.capacity = 20_033
    journal, _ = opened(disk, settings)
    head = 0
    full = False
    while not full:
        try:
            journal.write(journal.encode([change(head + 1, body=b"x" * 1000)]))
            head += 1
        except DiskFullError:
            full = True
    assert head > 10
    assert sum(map(len, disk.contents().values())) < disk.capacity, "the half of a block that had room is gone"
    for n in range(head - 10, head):
        journal.write(journal.encode([acknowledgement(n + 1, at=head)]))
    with pytest.raises(DiskFullError):
        journal.write(journal.encode([change(head + 1)]))
    disk.capacity = None
    journal.write(journal.encode([change(head + 1)]))
    assert len(disk.contents()[f"{ROOT}/reserve"]) == 4096
    journal.close()
    _, found = opened(disk, settings)
    assert len(found) == head + 11


def test_a_journal_is_written_by_one_process(tmp_path: Path) -> None:
    """A second opening of a folder fails, and shows the process that has it, until the first is closed."""
    journal = Journal.open(tmp_path / "journal", OsDisk(), SMALL, SYNC)
    with pytest.raises(
        JournalError, match=rf"/journal is in use by another process \(pid {os.getpid()}\); stop that one"
    ):
        Journal.open(tmp_path / "journal", OsDisk(), SMALL, SYNC)
    journal.close()
    Journal.open(tmp_path / "journal", OsDisk(), SMALL, SYNC).close()


@pytest.mark.parametrize("operation", ["fsync", "fsync_folder", "rename"])
def test_schemas_that_cannot_be_stored_leave_the_journal_usable(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The journal goes on writing, and the next attempt makes the schemas durable, whatever of the first one can be seen."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(disk, operation, fails)
        with pytest.raises(OSError, match="Input/output"):
            journal.keep_schemas(TEXTS)
    journal.write(journal.encode([change(1)]))
    journal.keep_schemas(TEXTS)
    after = disk.restarted(lambda _: 0)
    assert after.contents()[f"{ROOT}/schemas/{TEXTS[0][0]}.avsc"] == TEXT
    assert plain_all(opened(after)[1]) == plain_all([change(1)])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_segments_go_on_though_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The handle of the segment before is given up for the next one, so that a journal that has rolled once needs no other file."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    head = 0
    while len(sealed_segments(ROOT, disk)) < 2:
        head += 1
        journal.write(journal.encode([change(head, body=b"x" * 500)]))
    create, close, left = disk.create, disk.close, 0

    def closed(handle: int) -> None:
        nonlocal left
        left += 1
        close(handle)

    def created(path: str) -> int:
        nonlocal left
        if not left:
            raise OSError(number, os.strerror(number))
        left -= 1
        return create(path)

    monkeypatch.setattr(disk, "close", closed)
    monkeypatch.setattr(disk, "create", created)
    while len(sealed_segments(ROOT, disk)) < 5:
        head += 1
        journal.write(journal.encode([change(head, body=b"x" * 500)]))
    assert [record.revision for record in opened(disk.killed())[1] if isinstance(record, Change)] == [
        *range(1, head + 1)
    ]


def test_without_a_file_to_open_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first segment is refused like on a full disk, and there is room again once files can be opened."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)

    def fails(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "create", fails)
        patch.setattr(disk, "open", fails)
        with pytest.raises(DiskFullError, match=os.strerror(errno.EMFILE)):
            journal.write(journal.encode([change(1)]))
        assert not journal.has_room(1000)
    assert journal.has_room(1000)
    journal.write(journal.encode([change(1)]))


def test_a_folder_that_is_held_is_synced_without_opening_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file can be opened the sync of a name does not fail for that; a handle that is closed is forgotten."""
    disk = OsDisk()
    handle = disk.hold_folder(str(tmp_path))

    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        disk.fsync_folder(str(tmp_path))
        disk.close(handle)
        with pytest.raises(OSError, match="Too many"):
            disk.fsync_folder(str(tmp_path))
    disk.fsync_folder(str(tmp_path))


def test_the_real_disk_behaves_as_the_simulated_one(tmp_path: Path) -> None:
    """The same run leaves the same files on the real disk."""
    simulated, real = SimulatedDisk(), OsDisk()
    contents = []
    for disk, root in ((simulated, ROOT), (real, str(tmp_path / "a" / "journal"))):
        journal = Journal.open(root, disk, SMALL, SYNC)
        assert list(journal.recover()) == []
        journal.keep_schemas(TEXTS)
        for n in range(1, 50):
            journal.write(journal.encode([change(n)]))
        journal.close()
        head = sealed_segments(root, disk)[-1].last
        write_snapshot(root, disk, head, [change(head)], SYNC)
        reopened = Journal.open(root, disk, SMALL, SYNC)
        assert plain_all(list(reopened.recover())) == plain_all([change(49)])
        reopened.close()
        assert all(report.problem is None for report in verify(root, disk))
        if disk is simulated:
            contents.append({path.removeprefix(root): data for path, data in simulated.contents().items()})
        else:
            contents.append(
                {str(path).removeprefix(root): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}
            )
    assert contents[1]["/lock"] == f"{os.getpid()}\n".encode()  # the simulated one has no process
    contents[1]["/lock"] = b""
    assert contents[0] == contents[1]


def test_names_say_which_revisions() -> None:
    """Sealed segments are named by first and last revision in 20 digits, the open one by its first."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, JournalSettings(segment_bytes_max=4000))
    journal.write(journal.encode([change(n) for n in range(1, 11)]))
    journal.write(journal.encode([change(11, body=b"x" * 4000)]))
    assert sorted(disk.names(f"{ROOT}/segments")) == [
        "00000000000000000001-00000000000000000010.avro",
        "00000000000000000011.open.avro",
    ]
    journal.close()
    assert "00000000000000000011-00000000000000000011.avro" in disk.names(f"{ROOT}/segments")


def test_segments_roll_by_age_once_they_hold_a_change() -> None:
    """A segment rolls with the first write after its age, but never without a change in it."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, JournalSettings(segment_age_s_max=10))
    for second in (0, 8, 16):
        journal.write(journal.encode([AcknowledgementRecord(NOW_US + second * 1_000_000, "a", "c", b"s", ())]))
    assert len(disk.names(f"{ROOT}/segments")) == 1
    journal.write(journal.encode([change(1, at_us=NOW_US + 17_000_000)]))
    assert len(disk.names(f"{ROOT}/segments")) == 1
    journal.write(journal.encode([change(2, at_us=NOW_US + 18_000_000)]))
    assert len(disk.names(f"{ROOT}/segments")) == 2


def test_two_snapshots_are_kept() -> None:
    """Of three snapshots the two newest stay, and one at a revision that ends no segment is refused."""
    disk = SimulatedDisk()
    for n in (1, 2, 3):
        journal, _ = opened(disk)
        journal.write(journal.encode([change(n)]))
        journal.close()
        write_snapshot(ROOT, disk, n, [change(n)], SYNC)
    assert sorted(disk.names(f"{ROOT}/snapshots")) == ["00000000000000000002.avro", "00000000000000000003.avro"]
    with pytest.raises(JournalError, match="no sealed segment"):
        write_snapshot(ROOT, disk, 4, [], SYNC)
    assert f"{ROOT}/snapshots/00000000000000000003.avro" in disk.restarted(lambda _: 0).contents()


def test_a_segment_of_another_journal_is_found_as_a_start_finds_it() -> None:
    """Each file is whole, and revisions follow: only the chain shows that they do not belong together."""
    disks = []
    for name in (b"X/a", b"X/b"):
        disk = SimulatedDisk()
        for n in (1, 2, 3):
            journal, _ = opened(disk)
            journal.write(journal.encode([change(n, name)]))
            journal.close()
        disks.append(disk)
    disk, other = disks
    assert [report for report in verify(ROOT, disk) if report.problem] == []
    path = sealed_segments(ROOT, disk)[1].path
    disk.put(path, other.contents()[path])
    problems = [(report.path, report.problem or "") for report in verify(ROOT, disk) if report.problem]
    assert problems[0][0] == path
    with pytest.raises(JournalDamagedError) as refused:
        opened(disk)
    assert refused.value.path == path


def test_a_damaged_snapshot_does_not_take_the_place_of_a_whole_one() -> None:
    """The older of two stays while the newer is damaged, so that two always stand for what goes; it goes with the damaged one."""
    disk = SimulatedDisk()
    names = []
    for n in (1, 2, 3, 4):
        journal, _ = opened(disk)
        journal.write(journal.encode([change(n)]))
        journal.close()
        path = write_snapshot(ROOT, disk, n, [change(n)], SYNC)
        if n == 2:
            disk.put(path, disk.contents()[path][:-40])
        names.append(sorted(int(name[:20]) for name in disk.names(f"{ROOT}/snapshots")))
    assert names == [[1], [1, 2], [1, 2, 3], [3, 4]]


def test_the_sealed_part_is_read_beside_the_writer() -> None:
    """Reading what is sealed takes no lock, leaves out the open segment, and changes nothing."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    for n in range(1, 30):
        journal.write(journal.encode([change(n)]))
    before = disk.contents()
    found = list(read_sealed(ROOT, disk))
    assert plain_all(found) == plain_all([change(n) for n in range(1, sealed_segments(ROOT, disk)[-1].last + 1)])
    assert 0 < len(found) < 29
    assert disk.contents() == before


def test_the_archive_is_not_needed_to_start() -> None:
    """With a snapshot, segments before it may be gone; the head and the time go on."""
    disk = SimulatedDisk()
    history = History()
    history.run(disk)
    for segment in sealed_segments(ROOT, disk):
        if segment.first == 1:
            disk.unlink(segment.path)
    history.check(disk)


def test_a_damaged_snapshot_is_passed_over_when_segments_make_up_for_it() -> None:
    """A snapshot with a flipped bit is put down as damaged and the records come from elsewhere, or the start is refused."""
    disk = SimulatedDisk()
    history = History()
    history.run(disk)
    (name,) = disk.names(f"{ROOT}/snapshots")
    path = f"{ROOT}/snapshots/{name}"
    data = bytearray(disk.contents()[path])
    data[len(data) // 2] ^= 4
    disk.put(path, bytes(data))
    journal, found = opened(disk)
    assert parts(found) == parts(history.stored)
    assert [error.path for error in journal.damaged_snapshots] == [path]
    journal.close()
    disk.unlink(sealed_segments(ROOT, disk)[0].path)
    with pytest.raises(JournalDamagedError, match=r"maxam-admin journal repair .* --apply"):
        opened(disk.killed())


def test_a_missing_segment_is_seen() -> None:
    """Without any one segment of several the start is refused, unless it is the last."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    for n in range(1, 101):
        journal.write(journal.encode([change(n)]))
    segments = sealed_segments(ROOT, disk)
    assert len(segments) > 3
    for segment in segments:
        without = disk.killed()
        data = without.contents()[segment.path]
        without.unlink(segment.path)
        with pytest.raises(JournalDamagedError, match=r"from revision \d+"):
            opened(without)
        assert [report for report in verify(ROOT, without) if report.problem is not None]
        disk.put(segment.path, data)


def test_a_snapshot_or_session_above_the_head_is_refused() -> None:
    """A file with revisions that no segment holds shows that a segment is lost."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    journal.write(journal.encode([change(1)]))
    journal.close()
    disk.put(f"{ROOT}/snapshots/{9:020}.avro", _snapshot_of(9))
    with pytest.raises(JournalDamagedError, match=f"{9:020}"):
        opened(disk)
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    journal.write(journal.encode([change(1), acknowledgement(2)]))
    with pytest.raises(JournalDamagedError, match="a session knows revision 2"):
        opened(disk.killed())


def _snapshot_of(revision: int) -> bytes:
    disk = SimulatedDisk()
    Journal.open(ROOT, disk, SMALL, SYNC)
    path = write_snapshot(ROOT, disk, revision, [change(revision)], SYNC)
    return disk.contents()[path]


def test_a_torn_tail_is_kept_aside_and_told() -> None:
    """A tail cut off at recovery lies beside its segment, and is reported with place, length and the last valid revision."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, JournalSettings())
    journal.write(journal.encode(one_of_each()))
    journal.write(journal.encode([change(8, at_us=NOW_US + 2_000_000)]))
    path = f"{ROOT}/segments/{1:020}.open.avro"
    data = disk.contents()[path]
    disk.put(path, data[:-3])
    journal, found = opened(disk.killed())
    assert plain_all(found) == plain_all(one_of_each())
    (tail,) = journal.torn_tails
    assert (tail.path, tail.kept, tail.revision) == (path, f"{path}.torn-{tail.offset}", 7)
    assert journal._disk.read(tail.kept, 0, 9999) == data[tail.offset : -3]
    assert tail.length == len(data) - 3 - tail.offset


def test_verify_reports_every_file() -> None:
    """Verify lists each file with its records, and for a damaged one the place. It changes nothing."""
    disk = SimulatedDisk()
    History().run(disk)
    reports = list(verify(ROOT, disk))
    assert [report.problem for report in reports] == [None] * len(reports)
    assert {report.path for report in reports} == {
        path for path in disk.contents() if not path.endswith(("lock", "reserve"))
    }
    before = disk.contents()
    for path, data in before.items():
        if path.endswith(("lock", "reserve")):
            continue
        flipped = bytearray(data)
        flipped[-20] ^= 1
        disk.put(path, bytes(flipped))
        problems = [report for report in verify(ROOT, disk) if report.problem is not None]
        assert path in [report.path for report in problems]
        disk.put(path, data)
    assert disk.contents() == before


def test_writing_needs_recovery_and_the_right_order() -> None:
    """A block is refused before recovery, out of order, and after closing."""
    disk = SimulatedDisk()
    journal = Journal.open(ROOT, disk, SMALL, SYNC)
    block = journal.encode([change(1)])
    with pytest.raises(JournalError):
        journal.write(block)
    list(journal.recover())
    with pytest.raises(ValueError, match="follow"):
        journal.write(block)
    one, two = journal.encode([change(1)]), journal.encode([change(2)])
    with pytest.raises(ValueError, match="follow"):
        journal.write(two)
    journal.write(one)
    journal.write(two)
    assert (journal.head, journal.accepted_at_us) == (2, NOW_US + 2000)
    journal.close()
    with pytest.raises(JournalError):
        journal.write(journal.encode([change(3)]))


def test_an_idle_segment_is_sealed_at_its_age() -> None:
    """Old enough, a segment with a change is sealed though nothing is written; the block encoded before that follows in a new one."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    journal.write(journal.encode([change(1)]))
    later = journal.encode([change(2, at_us=NOW_US + 2000)])
    age_us = round(SMALL.segment_age_s_max * 1_000_000)
    journal.seal_aged(NOW_US + 1000 + age_us - 1)
    assert sealed_segments(ROOT, disk) == []
    journal.seal_aged(NOW_US + 1000 + age_us)
    assert [segment.last for segment in sealed_segments(ROOT, disk)] == [1]
    journal.seal_aged(NOW_US + 3 * age_us)
    journal.write(later)
    journal.close()
    assert [(segment.first, segment.last) for segment in sealed_segments(ROOT, disk)] == [(1, 1), (2, 2)]
    assert all(report.problem is None for report in verify(ROOT, disk))
    assert [record.revision for record in opened(disk)[1] if isinstance(record, Change)] == [1, 2]


def test_an_idle_segment_without_a_change_stays_open() -> None:
    """A segment that holds only what sessions did is not sealed: it has no revision to be named by."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    journal.write(journal.encode([change(1)]))
    journal.seal_aged(NOW_US * 2)
    journal.write(journal.encode([acknowledgement(1, 2)]))
    journal.seal_aged(NOW_US * 2)
    assert [segment.last for segment in sealed_segments(ROOT, disk)] == [1]


def test_an_idle_segment_on_a_full_disk_waits() -> None:
    """Without room for its end mark a segment stays open and whole, and is sealed when there is room; another error ends the journal."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, JournalSettings(reserve_bytes=0))
    journal.write(journal.encode([change(1)]))
    before = disk.contents()
    disk.capacity = sum(map(len, before.values())) + 7
    journal.seal_aged(NOW_US * 2)
    assert disk.contents() == before
    disk.capacity = None
    journal.seal_aged(NOW_US * 2)
    assert [segment.last for segment in sealed_segments(ROOT, disk)] == [1]
    journal.write(journal.encode([change(2)]))
    disk.faults[disk.calls + 1] = errno.EIO
    with pytest.raises(OSError, match="simulated"):
        journal.seal_aged(NOW_US * 2)
    with pytest.raises(JournalError):
        journal.seal_aged(NOW_US * 2)


def test_whatever_fails_while_an_idle_segment_is_sealed_loses_nothing() -> None:
    """For a power cut and EIO at any call of it, the next start finds what was promised."""
    for fault in (0, errno.EIO):
        for at in range(1, 5):
            disk = SimulatedDisk()
            journal, _ = opened(disk)
            journal.write(journal.encode([change(1), change(2)]))
            disk.faults[disk.calls + at] = fault
            with pytest.raises((PowerCut, OSError)):
                journal.seal_aged(NOW_US * 2)
            choose = random.Random(at).randrange  # noqa: S311 - a seed that repeats
            disk = disk.restarted(choose) if fault == 0 else disk.killed()
            journal, records = opened(disk)
            assert [record.revision for record in records if isinstance(record, Change)] == [1, 2]
            journal.write(journal.encode([change(3)]))
            journal.close()
            assert all(report.problem is None for report in verify(ROOT, disk))
