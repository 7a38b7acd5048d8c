"""Indexes of segments: a topic that they deny is absent, they deny nothing without proof, and nothing needs them."""

import pickle
from pathlib import Path

import pytest

from maxam.config import Limits
from maxam.errors import DiskFullError, JournalDamagedError
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.index import SegmentIndex, build, drop_strays, load, unindexed
from maxam.journal.names import Segment, sealed_segments
from maxam.journal.verify import verify
from maxam.records import AcknowledgementRecord, Record
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change

ROOT = "/journal"
SETTINGS = JournalSettings(reserve_bytes=0, durable=False)
TOPICS = [b"X/EGM.Q.%d.%s" % (n, kind) for n in range(100, 200) for kind in (b"EGMStatus", b"EGMMeterReading")]


def write_segment(disk: SimulatedDisk | OsDisk, folder: str, destinations: list[bytes]) -> Segment:
    """Write one more sealed segment with a change of each destination, then an acknowledgement."""
    journal = Journal.open(folder, disk, SETTINGS, SYNC)
    list(journal.recover())
    records: list[Record] = [change(journal.head + n, one) for n, one in enumerate(destinations, 1)]
    at = records[-1].accepted_at_us + 7
    records.append(AcknowledgementRecord(at, "alice", "pump", b"s1", ((b"X/other", 1),)))
    journal.write(journal.encode(records))
    journal.close()
    return sealed_segments(folder, disk)[-1]


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a journal of one sealed segment."""
    disk = SimulatedDisk()
    write_segment(disk, ROOT, TOPICS)
    return disk


@pytest.fixture
def segment(disk: SimulatedDisk) -> Segment:
    """That segment."""
    return sealed_segments(ROOT, disk)[0]


def test_an_index_tells_what_the_segment_holds(disk: SimulatedDisk, segment: Segment) -> None:
    """Figures, bounds and every destination come back; one index in 120 may be wrong about a destination that is not there."""
    built = build(ROOT, segment, disk)
    index = load(ROOT, segment, disk)
    assert index == built
    assert index is not None
    assert (index.first, index.last, index.records, index.changes) == (1, 200, 201, 200)
    assert (index.first_at_us, index.last_at_us) == (NOW_US + 1000, NOW_US + 200_007)
    assert (index.lowest, index.highest) == (min(TOPICS), max(TOPICS))
    assert all(index.may_hold(topic) for topic in TOPICS)
    assert not index.may_hold(b"X/A")
    assert not index.may_hold(b"X/Z")
    wrong = sum(index.may_hold(b"X/EGM.Q.150.%d" % n) for n in range(10_000))
    assert 0 < wrong < 150


def test_prefixes_are_pruned_by_their_whole_segments(disk: SimulatedDisk, segment: Segment) -> None:
    """A prefix of something held may be held, whatever its end; one of another machine is not."""
    index = build(ROOT, segment, disk)
    for topic in TOPICS:
        assert all(index.may_hold_prefix(topic[:length]) for length in range(len(topic) + 1))
    assert not index.may_hold_prefix(b"X/EGM.Q.1000.EGM")
    assert not index.may_hold_prefix(b"X/EGM.X.150.")
    assert not index.may_hold_prefix(b"Y")
    assert not index.may_hold_prefix(b"X/EGM.Q.300")
    assert sum(index.may_hold_prefix(b"X/EGM.Q.1%d." % n) for n in range(100, 1100)) < 30


def test_a_destination_of_hundreds_of_levels_has_few_entries(disk: SimulatedDisk) -> None:
    """Of 256 levels eight have an entry, and no prefix is denied that is there."""
    deep = b"X/" + b".".join([b"a"] * 250)
    index = build(ROOT, write_segment(disk, ROOT, [deep]), disk)
    assert len(index.bloom) <= 16
    assert all(index.may_hold_prefix(deep[:length]) for length in range(len(deep) + 1))
    assert index.may_hold(deep)


def test_an_index_of_another_segment_is_ignored(disk: SimulatedDisk, segment: Segment) -> None:
    """An index is void when the segment has another size or another last check than the one it was built of."""
    build(ROOT, segment, disk)
    contents = disk.contents()[segment.path]
    for other in (contents + b"\0", contents[:-24] + b"\1" * 8 + contents[-16:], b""):
        disk.put(segment.path, other)
        assert load(ROOT, segment, disk) is None
    disk.put(segment.path, contents)
    assert load(ROOT, segment, disk) is not None
    disk.unlink(segment.path)
    assert load(ROOT, segment, disk) is None


def test_a_damaged_index_is_ignored(disk: SimulatedDisk, segment: Segment) -> None:
    """Any flipped bit and any truncation make an index void, and so does its absence."""
    assert load(ROOT, segment, disk) is None
    build(ROOT, segment, disk)
    (path,) = [name for name in disk.contents() if name.endswith(".index")]
    data = disk.contents()[path]
    for place in range(len(data)):
        disk.put(path, data[:place] + bytes((data[place] ^ 1 << place % 8,)) + data[place + 1 :])
        assert load(ROOT, segment, disk) is None
        disk.put(path, data[:place])
        assert load(ROOT, segment, disk) is None
    disk.put(path, data)
    index = load(ROOT, segment, disk)
    assert pickle.loads(pickle.dumps(index)) == index  # noqa: S301 - our own: executors get it so


def test_a_damaged_segment_gets_no_index(disk: SimulatedDisk, segment: Segment) -> None:
    """A segment that is damaged, cut short or misnamed is not indexed."""
    data = disk.contents()[segment.path]
    for wrong in (data[:-1], data[:-60], data[:3000] + b"?" + data[3001:]):
        disk.put(segment.path, wrong)
        with pytest.raises(JournalDamagedError):
            build(ROOT, segment, disk)
    disk.put(segment.path, data)
    with pytest.raises(JournalDamagedError, match="its name"):
        build(ROOT, Segment(1, 199, segment.path), disk)
    assert unindexed(ROOT, disk) == [segment]


def test_a_full_disk_leaves_nothing_of_an_index(disk: SimulatedDisk, segment: Segment) -> None:
    """Without room an index is not built."""
    disk.capacity = sum(map(len, disk.contents().values())) + 20
    with pytest.raises(DiskFullError):
        build(ROOT, segment, disk)
    assert disk.names(f"{ROOT}/index") == []


def test_indexes_go_with_their_segments(disk: SimulatedDisk, segment: Segment) -> None:
    """The index of a segment that was removed is removed, and so is an unfinished one; files of others stay."""
    drop_strays(ROOT, disk)
    later = write_segment(disk, ROOT, TOPICS)
    for one in (segment, later):
        build(ROOT, one, disk)
    disk.put(f"{ROOT}/index/notes.txt", b"")
    disk.put(f"{ROOT}/index/{9:020}-{9:020}.index.tmp", b"")
    disk.unlink(segment.path)
    drop_strays(ROOT, disk)
    assert sorted(disk.names(f"{ROOT}/index")) == [f"{later.first:020}-{later.last:020}.index", "notes.txt"]


def test_an_unfinished_index_may_vanish_from_a_check(disk: SimulatedDisk, segment: Segment) -> None:
    """A gateway that runs renames the index that it builds while its journal is checked."""
    build(ROOT, segment, disk)
    for name in ("a", "b"):
        disk.put(f"{ROOT}/index/{name}.index.tmp", b"")
    found = []
    for report in verify(Path(ROOT), disk):
        found.append(report.path.rpartition("/")[2])
        if found[-1] == "a.index.tmp":
            disk.unlink(f"{ROOT}/index/b.index.tmp")
    assert found[-1] == "a.index.tmp"
    assert [report for report in verify(Path(ROOT), disk) if report.problem is not None] == []


def test_an_empty_index_denies_everything() -> None:
    """An index of no changes holds no destination, not even the empty one's siblings."""
    index = SegmentIndex(1, 1, 0, 0, 0, 0, b"", b"", bytes(8))
    assert not index.may_hold(b"X/a")
    assert not index.may_hold_prefix(b"X/")


def test_a_snapshot_run_indexes_the_archive_too(tmp_path: Path) -> None:
    """After a build every sealed segment has its index, except after an urgent build, which leaves that to the next."""
    disk = OsDisk()
    folder = str(tmp_path)
    write_segment(disk, folder, TOPICS)
    assert build_snapshot(str(tmp_path), OsDisk(), Limits(), urgent=True)
    assert unindexed(folder, disk) == sealed_segments(folder, disk)
    write_segment(disk, folder, TOPICS)
    assert build_snapshot(str(tmp_path), OsDisk(), Limits())
    for path in tmp_path.glob("index/*"):
        path.unlink()
    write_segment(disk, folder, TOPICS[:9])
    assert build_snapshot(str(tmp_path), OsDisk(), Limits())
    assert unindexed(folder, disk) == []
    assert [load(folder, one, disk) is not None for one in sealed_segments(folder, disk)] == [True] * 3
