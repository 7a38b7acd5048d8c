"""The archive's beginning goes when the rules require it; what a start, a snapshot or a reader needs stays, whatever crashes meanwhile."""

import random
from pathlib import Path

import pytest

from maxam.config import Limits
from maxam.errors import DiskFullError, JournalDamagedError
from maxam.gateway.snapshot import build_and_expire, lagging
from maxam.journal.archive import examine
from maxam.journal.disk import OsDisk
from maxam.journal.index import unindexed
from maxam.journal.listing import list_segments
from maxam.journal.names import list_snapshots, sealed_segments
from maxam.journal.reading import SegmentReader
from maxam.journal.retention import Rules, due, expire
from maxam.journal.snapshots import reserve_snapshots
from maxam.journal.verify import verify
from maxam.records import Change
from tests.faults import corruption
from tests.simulation.disk import PowerCut, SimulatedDisk
from tests.support.journal_records import NOW_US

ROOT = corruption.ROOT
DAY_US = 86_400_000_000
ALL = Rules(0, 1)  # everything that may go
KEPT = Rules(0, 0)


def journal() -> SimulatedDisk:
    """Return a journal with two snapshots, segments before, between and after them, and an open one."""
    disk = corruption.loaded(corruption.truth().files)
    disk.put(f"{ROOT}/segments/{5:020}.open.avro.torn-99", b"cut off long ago")
    return disk


def firsts(disk: SimulatedDisk) -> list[int]:
    """Return where the sealed segments begin."""
    return [segment.first for segment in sealed_segments(ROOT, disk)]


def shown(disk: SimulatedDisk) -> tuple[int, dict[bytes, int]]:
    """Return what a start comes to."""
    started, broker = corruption.start(disk)
    return started.head, {topic.destination: topic.change.revision for topic in corruption.live(broker)}


def test_only_what_two_whole_snapshots_stand_for_goes() -> None:
    """For any rules the segments above the older snapshot stay, and with them their indexes; older ones go with theirs."""
    disk = journal()
    before = shown(disk)
    (older, _), _ = list_snapshots(f"{ROOT}/snapshots", disk)
    sealed = sealed_segments(ROOT, disk)
    old = [segment for segment in sealed if segment.last <= older]
    assert old
    gone = expire(ROOT, disk, ALL, NOW_US)
    assert gone is not None
    assert (gone.segments, gone.first, gone.last) == (len(old), 1, older)
    assert firsts(disk) == [segment.first for segment in sealed[len(old) :]]
    assert len(disk.names(f"{ROOT}/index")) == len(sealed) - len(old)
    assert not unindexed(ROOT, disk)
    assert f"{ROOT}/segments/{5:020}.open.avro.torn-99" not in disk.contents()
    assert [report for report in verify(ROOT, disk) if report.problem is not None] == []
    assert shown(disk) == before
    assert expire(ROOT, disk, ALL, NOW_US) is None


def test_the_newest_snapshot_may_still_be_damaged_afterwards() -> None:
    """The segments that the older snapshot needs are there: without the newer one the values are the same."""
    disk = journal()
    before = shown(disk)
    assert expire(ROOT, disk, ALL, NOW_US) is not None
    newest = list_snapshots(f"{ROOT}/snapshots", disk)[-1][1]
    disk.put(newest, disk.contents()[newest][:-40])
    assert shown(disk) == before


def test_nothing_goes_for_a_snapshot_that_is_not_whole() -> None:
    """A damaged snapshot, or only one, keeps every segment."""
    for number in (0, 1):
        disk = journal()
        path = list_snapshots(f"{ROOT}/snapshots", disk)[number][1]
        disk.put(path, disk.contents()[path][:-40])
        with pytest.raises(JournalDamagedError, match="nothing is removed"):
            expire(ROOT, disk, ALL, NOW_US)
        disk.unlink(path)
        assert expire(ROOT, disk, ALL, NOW_US) is None
        assert firsts(disk)[0] == 1


def test_a_snapshot_for_which_there_is_no_room_gets_that_of_the_archive(capsys: pytest.CaptureFixture[str]) -> None:
    """On a full disk what is due goes first, or else nothing ever would; where nothing is due there is no room."""
    disk = journal()
    before = shown(disk)
    disk.capacity = sum(len(data) for data in disk.contents().values()) + 100
    with pytest.raises(DiskFullError):
        build_and_expire(ROOT, disk, Limits(), KEPT)
    assert firsts(disk)[0] == 1
    build_and_expire(ROOT, disk, Limits(), ALL)
    assert firsts(disk)[0] > 1
    expired, built, *_ = capsys.readouterr().out.splitlines()
    assert expired.startswith("expired ")
    assert built == list_snapshots(f"{ROOT}/snapshots", disk)[-1][1]
    assert shown(disk) == before


def full_journal() -> SimulatedDisk:
    """Return a journal without snapshots on a disk that is full except the room reserved for two of them."""
    disk = journal()
    for _, path in list_snapshots(f"{ROOT}/snapshots", disk):
        disk.unlink(path)
    assert reserve_snapshots(ROOT, disk, 20_000)
    assert len([name for name in disk.names(f"{ROOT}/snapshots") if name.startswith("reserve.")]) == 2
    disk.capacity = sum(len(data) for data in disk.contents().values())
    return disk


def free(disk: SimulatedDisk) -> None:
    """Do what the gateway has done on a full disk: one snapshot a process."""
    for _ in range(2):
        build_and_expire(ROOT, disk, Limits(), ALL, full=True)


def test_a_full_disk_frees_itself_with_the_room_reserved_for_snapshots() -> None:
    """From no snapshot at all two are written into the reserved room, one at the end of the last segment but one; then segments go."""
    disk = full_journal()
    before, sealed = shown(disk), sealed_segments(ROOT, disk)
    build_and_expire(ROOT, disk, Limits(), ALL, full=True)
    assert firsts(disk) == [segment.first for segment in sealed]
    build_and_expire(ROOT, disk, Limits(), ALL, full=True)
    assert [revision for revision, _ in list_snapshots(f"{ROOT}/snapshots", disk)] == [sealed[-2].last, sealed[-1].last]
    assert firsts(disk) == [sealed[-1].first]
    assert lagging(ROOT, disk) == 0
    assert shown(disk) == before
    assert [report for report in verify(ROOT, disk) if report.problem is not None] == []


def test_an_old_second_snapshot_is_brought_up_to_the_last_segment_but_one() -> None:
    """Where the disk is full and nothing new is sealed, else the segments between the two snapshots would stay."""
    disk = journal()
    disk.unlink(list_snapshots(f"{ROOT}/snapshots", disk)[-1][1])
    build_and_expire(ROOT, disk, Limits(), KEPT)
    before, sealed = shown(disk), sealed_segments(ROOT, disk)
    (older, _), (newer, _) = list_snapshots(f"{ROOT}/snapshots", disk)
    assert older < sealed[-2].last < newer
    build_and_expire(ROOT, disk, Limits(), ALL)
    assert firsts(disk)[0] <= older + 1
    build_and_expire(ROOT, disk, Limits(), ALL, full=True)
    assert firsts(disk) == [sealed[-1].first]
    assert shown(disk) == before


def test_a_power_cut_while_a_full_disk_frees_itself_loses_nothing() -> None:
    """At any call: a start shows the same, and the next attempt frees the disk."""
    disk = full_journal()
    before, begun = shown(disk), disk.calls
    free(disk)
    for call in range(0, disk.calls - begun, 5):
        broken = full_journal()
        shown(broken)
        broken.faults = {broken.calls + call + 1: 0}
        with pytest.raises(PowerCut):
            free(broken)
        after = broken.restarted(random.Random(call).randrange)  # noqa: S311 - repeatable, not secret
        assert shown(after) == before
        free(after)
        assert len(firsts(after)) == 1
        assert shown(after) == before


def test_room_is_reserved_once_and_made_anew_where_the_size_has_changed() -> None:
    """For two snapshots while there is none, else for one; a reserve that is about right stays. Lack of room is reported."""
    disk = journal()
    assert reserve_snapshots(ROOT, disk, 10_000)
    reserves = [name for name in disk.names(f"{ROOT}/snapshots") if name.startswith("reserve.")]
    assert reserves == ["reserve.0"]
    calls = len([line for line in disk.log if line.startswith("create")])
    assert reserve_snapshots(ROOT, disk, 12_000)
    assert len([line for line in disk.log if line.startswith("create")]) == calls
    assert reserve_snapshots(ROOT, disk, 30_000)
    assert disk.size(f"{ROOT}/snapshots/reserve.0") == 30_000
    disk.capacity = 1
    assert not reserve_snapshots(ROOT, disk, 90_000)


def test_a_snapshot_takes_the_larger_reserve() -> None:
    """Where there was room for one of two reserves only, the first snapshot is written into that one, on a disk without any room."""
    disk = journal()
    for _, path in list_snapshots(f"{ROOT}/snapshots", disk):
        disk.unlink(path)
    taken = sum(len(data) for data in disk.contents().values())
    disk.capacity = taken + 30_000
    assert not reserve_snapshots(ROOT, disk, 20_000)
    disk.capacity = taken + 20_000
    build_and_expire(ROOT, disk, Limits(), KEPT, full=True)
    assert len(list_snapshots(f"{ROOT}/snapshots", disk)) == 1


def test_rules_take_the_oldest_first_and_no_more_than_they_must() -> None:
    """By size just enough go for the rest to fit, by age those whose last record is older. 0 keeps all."""
    disk = journal()
    (older, _), _ = list_snapshots(f"{ROOT}/snapshots", disk)
    archive = [segment for segment in sealed_segments(ROOT, disk) if segment.last <= older]
    sizes = [disk.size(segment.path) for segment in archive]
    assert len(archive) >= 3
    assert due(ROOT, disk, KEPT, NOW_US + 10**15) == []
    assert due(ROOT, disk, Rules(0, sum(sizes)), NOW_US) == []
    assert due(ROOT, disk, Rules(0, sum(sizes) - 1), NOW_US) == archive[:1]
    assert due(ROOT, disk, Rules(0, sum(sizes[2:])), NOW_US) == archive[:2]
    ended_at_us = NOW_US + 1000 * archive[1].last  # see tests.support.journal_records.change
    assert due(ROOT, disk, Rules(1, 0), ended_at_us + DAY_US) == archive[:1]
    assert due(ROOT, disk, Rules(1, 0), ended_at_us + DAY_US + 1) == archive[:2]
    assert due(ROOT, disk, Rules(1, sum(sizes) - 1), ended_at_us + DAY_US + 1) == archive[:2]


def test_a_snapshot_whose_name_was_not_synced_is_synced_before_anything_goes() -> None:
    """Its builder may have been killed between the name and the sync: a power cut would leave the older snapshot without its segments."""
    for seed in range(8):
        disk = journal()
        wanted = shown(disk)
        _, (_, newest) = list_snapshots(f"{ROOT}/snapshots", disk)
        disk.rename(newest, f"{newest}.tmp")
        disk.fsync_folder(f"{ROOT}/snapshots")
        disk.rename(f"{newest}.tmp", newest)
        assert expire(ROOT, disk, ALL, NOW_US) is not None
        assert len(list_snapshots(f"{ROOT}/snapshots", disk)) == 2
        assert shown(disk.restarted(random.Random(seed).randrange)) == wanted  # noqa: S311 - repeatable, not secret
        assert len(list_snapshots(f"{ROOT}/snapshots", disk.restarted(random.Random(seed).randrange))) == 2  # noqa: S311


@pytest.mark.slow
def test_a_power_cut_at_any_call_leaves_the_end_of_what_there_was() -> None:
    """No segment goes before one that is older, whatever is lost of what was not synced; a start shows the same as before."""
    disk = journal()
    before, segments = shown(disk), firsts(disk)
    begun = disk.calls
    assert expire(ROOT, disk, ALL, NOW_US) is not None
    for call in range(disk.calls - begun):
        broken = journal()
        shown(broken)
        broken.faults = {broken.calls + call + 1: 0}
        with pytest.raises(PowerCut):
            expire(ROOT, broken, ALL, NOW_US)
        for seed in range(3):
            after = broken.restarted(random.Random(seed).randrange)  # noqa: S311 - repeatable, not secret
            left = firsts(after)
            assert left == segments[len(segments) - len(left) :]
            assert [report for report in verify(ROOT, after) if report.problem is not None] == []
            assert shown(after) == before
            expire(ROOT, after, ALL, NOW_US)
            assert shown(after) == before


def on_disk(folder: Path) -> str:
    """Write the journal to the real disk, for readers that open files themselves."""
    for path, data in corruption.truth().files.items():
        target = folder / path.removeprefix(f"{ROOT}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return str(folder)


def test_a_reader_is_told_what_went_while_it_read(tmp_path: Path) -> None:
    """A segment that is open is read to its end. One that was only planned is gone and reported as expired. The rest is unchanged."""
    folder = on_disk(tmp_path)
    planned = examine(folder)
    first, second, *rest = planned.sealed
    with SegmentReader(folder, "changes", first.segment) as reader:
        assert expire(folder, OsDisk(), ALL, NOW_US) is not None
        revisions = [record.revision for block in reader for record in block if isinstance(record, Change)]
    assert revisions == list(range(first.first, first.last + 1))
    with pytest.raises(FileNotFoundError):
        SegmentReader(folder, "changes", second.segment)
    (note,) = examine(folder).problems
    left = list_segments(folder, "changes")[0].first
    assert (note.kind, note.first, note.last, note.lost) == ("expired", 1, left - 1, False)
    with SegmentReader(folder, "changes", rest[-1].segment) as reader:
        assert list(reader)
