"""A journal that follows another one has the same files, whatever the sizes of blocks and segments, and however often either ends."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.journal.disk import Disk
from maxam.journal.encoding import Block, Position
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import list_segments, list_snapshots, sealed_segments
from maxam.journal.replay import read_sealed
from maxam.journal.snapshots import write_snapshot
from maxam.records import AcknowledgementRecord, Change, Record
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change

ROOT = "/journal"
INCARNATION = "00112233445566aa"


class Fed(NamedTuple):
    """A block with what a follower has to know of it; a seal without one."""

    block: Block | None
    sync_marker: bytes
    begins: bool
    after: Position


class Source:
    """The journal that is followed, and what it feeds."""

    def __init__(self, bytes_max: int) -> None:
        self.disk = SimulatedDisk()
        self.settings = JournalSettings(segment_bytes_max=bytes_max, segment_age_s_max=30.0, reserve_bytes=0)
        self.fed: list[Fed] = []
        self.begun: set[str] = set()  # segments with a block
        self.lives = 0
        self.at_us = NOW_US
        self.journal = self.start()

    def start(self) -> Journal:
        """Open the journal with another sync marker than before."""
        self.lives += 1
        journal = Journal.open(ROOT, self.disk, self.settings, bytes([self.lives]) * 16, INCARNATION)
        assert list(journal.recover()) is not None
        return journal

    def write(self, changes: int, acknowledgements: int, later_s: int) -> None:
        """Write a block with these numbers of changes and acknowledgements."""
        self.at_us += later_s * 1_000_000
        head = self.journal.head
        records: list[Record] = [change(head + n + 1, body=b"x" * 40 * n, at_us=self.at_us) for n in range(changes)]
        records += [
            AcknowledgementRecord(self.at_us, "alice", "pump", b"s1", ((b"X/EGM.Q.1.EGMStatus", head),))
        ] * acknowledgements
        block = self.journal.encode(records)
        self.journal.write(block)
        segment = self.journal._files.opened
        assert segment is not None
        self.fed.append(Fed(block, segment.sync_marker, segment.path not in self.begun, block.after))
        self.begun.add(segment.path)

    def seal(self) -> None:
        """Let the open segment grow old."""
        opened = self.journal._files.opened
        self.journal.seal_aged(self.at_us + 10**12)
        if opened is not None and self.journal._files.opened is None:
            self.fed.append(Fed(None, b"", False, self.fed[-1].after))

    def stop(self, seal: bool) -> None:
        """End and start again."""
        opened = self.journal._files.opened
        holds = opened is not None and self.journal.head >= opened.first
        if seal:
            self.journal.close()
            if holds:
                self.fed.append(Fed(None, b"", False, self.fed[-1].after))
        else:
            self.disk = self.disk.killed()
        self.journal = self.start()


def snapshot(disk: Disk) -> None:
    """Write a snapshot of all that is sealed, if that is anything."""
    sealed = sealed_segments(ROOT, disk)
    there = [revision for revision, _ in list_snapshots(f"{ROOT}/snapshots", disk)]
    if sealed and sealed[-1].last not in there:
        records = list(read_sealed(ROOT, disk))
        changes: list[Record] = [record for record in records if isinstance(record, Change)]
        others: list[Record] = [record for record in records if not isinstance(record, Change)]
        write_snapshot(ROOT, disk, sealed[-1].last, changes + others, SYNC, max(one.accepted_at_us for one in records))


class Follower:
    """The journal that follows."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.journal = self.start()

    def start(self) -> Journal:
        """Open the journal."""
        journal = Journal.open(ROOT, self.disk, JournalSettings(reserve_bytes=0), SYNC)
        assert list(journal.recover(following=True)) is not None
        return journal

    def stop(self, way: int) -> None:
        """End in order, by a kill, or by a power cut; and start again."""
        if way == 0:
            self.journal.close(seal=False)
        else:
            self.disk = self.disk.killed() if way == 1 else self.disk.restarted(lambda n: n - 1 if way == 2 else 0)
        self.journal = self.start()

    def catch_up(self, source: Source, most: int) -> None:
        """Store what comes after its position, N entries at most."""
        self.journal.adopt(source.journal.incarnation)
        here = self.journal._committed
        at = len(source.fed)
        while at and not _same(source.fed[at - 1].after, here):
            at -= 1
        if at and source.fed[at - 1].block is None:  # the seal may not be stored
            at -= 1
        for one in source.fed[at : at + most]:
            if one.block is None:
                self.journal.put_seal()
            else:
                self.journal.put(one.block, one.sync_marker, one.begins)


def _same(one: Position, other: Position) -> bool:
    return (one.revision, one.accepted_at_us, one.chain) == (other.revision, other.accepted_at_us, other.chain)


actions = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 6), st.integers(0, 3), st.integers(0, 12)),
    st.tuples(st.just("stop"), st.booleans(), st.just(0), st.just(0)),
    st.tuples(st.just("follow"), st.integers(0, 8), st.just(0), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("snapshot"), st.booleans(), st.just(0), st.just(0)),
    st.tuples(st.just("seal"), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("sync"), st.just(0), st.just(0), st.just(0)),
)


@pytest.mark.slow
@given(st.integers(2000, 6000), st.lists(actions, max_size=30))
@settings(max_examples=300, deadline=None)
def test_sealed_segments_are_equal(bytes_max: int, history: list[tuple[str, int, int, int]]) -> None:
    """Every sealed segment of the source is the same file at the follower, and the open one the same bytes."""
    source, follower = Source(bytes_max), Follower()
    for name, one, two, three in history:
        if name == "write" and one + two:
            source.write(one, two, three)
        elif name == "stop":
            source.stop(bool(one))
        elif name == "seal":
            source.seal()
        elif name == "follow":
            follower.catch_up(source, one)
        elif name == "end":
            follower.stop(one)
        elif name == "snapshot":
            snapshot(source.disk if one else follower.disk)
        elif name == "sync":
            follower.journal.sync()
    follower.catch_up(source, len(source.fed))
    follower.journal.sync()
    sealed, opened = list_segments(f"{ROOT}/segments", source.disk)
    sealed_there, _ = list_segments(f"{ROOT}/segments", follower.disk)
    assert sealed == sealed_there
    for segment in sealed:
        assert source.disk.files[segment.path].data == follower.disk.files[segment.path].data
    if opened and source.begun.intersection([opened[0].path]):
        assert source.disk.files[opened[0].path].data == follower.disk.files[opened[0].path].data
