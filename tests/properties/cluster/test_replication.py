"""A journal that follows another one by its feed ends with the same files, whatever happened on the way."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.cluster.copying import files_to_copy
from maxam.cluster.entry import Entry, read_entry
from maxam.cluster.feed import FeedRefusedError, JournalFeed
from maxam.cluster.keeper import Keeper
from maxam.cluster.ring import Ring
from maxam.cluster.wire import GONE
from maxam.config import Limits
from maxam.gateway.snapshot import build_snapshot
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import Position
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.identity import end_chain
from maxam.journal.names import RENEW
from maxam.journal.retention import Rules, expire
from maxam.records import SessionEndRecord
from tests.support.journal_records import NOW_US, change

INCARNATIONS = [f"{number:016x}" for number in range(1, 40)]
SOURCE = JournalSettings(segment_bytes_max=3000, segment_age_s_max=60, durable=False, reserve_bytes=0)
# limits of the follower that would roll elsewhere
FOLLOWER = JournalSettings(segment_bytes_max=700, segment_age_s_max=1, durable=False, reserve_bytes=0)


class Source:
    """A journal that is written."""

    def __init__(self, folder: Path, ring_bytes: int) -> None:
        self.folder = str(folder)
        self.now_us = NOW_US
        self.starts = 0
        self.ring_bytes = ring_bytes
        self.start()

    def start(self, renew: bool = False) -> None:
        """Open it, with a new incarnation if there is none or it is to be renewed."""
        self.starts += 1
        marker = self.starts.to_bytes(16, "big")
        if renew:
            (Path(self.folder) / RENEW).touch()
        self.journal = Journal.open(self.folder, OsDisk(), SOURCE, marker, INCARNATIONS[self.starts])
        for _ in self.journal.recover():
            pass
        self.ring = Ring(self.journal.position, self.journal.incarnation, self.ring_bytes)
        self.journal.watcher = self.ring

    def write(self, changes: int, seconds: int) -> None:
        """Write one block; without changes, one of a session."""
        self.now_us += seconds * 1_000_000
        head = self.journal.head
        records = [change(head + at, body=b"v" * (17 * at % 400), at_us=self.now_us) for at in range(1, changes + 1)]
        self.journal.write(self.journal.encode(list(records) or [SessionEndRecord(self.now_us, "alice", "pump")]))

    def snapshot(self) -> None:
        """Build a snapshot of the sealed segments."""
        build_snapshot(self.folder, OsDisk(), Limits())

    def expire(self) -> None:
        """Remove the segments that two snapshots stand for."""
        expire(self.folder, OsDisk(), Rules(0.0, 1), self.now_us)

    def restart(self, renew: bool) -> None:
        """Close it and open it again."""
        self.journal.close()
        self.start(renew)


class Follower:
    """A journal that follows it, and a feed that reaches it as bytes."""

    def __init__(self, folder: Path, source: "Source | Follower") -> None:
        self.folder = str(folder)
        self.source = source
        self.feed: JournalFeed | None = None
        self.open()

    def open(self) -> None:
        """Recover it, and start its keeper."""
        self.journal = Journal.open(self.folder, OsDisk(), FOLLOWER, bytes(16))
        for _ in self.journal.recover(following=True):
            pass
        self.position = self.journal.position
        self.known = self.journal.incarnation
        self.keeper = Keeper(self.journal, self.position, die=self.fail)
        self.ring = self.keeper.ring = Ring(self.position, self.known, 1500)
        self.keeper.start()
        self.errors: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        """Keep what the keeper dies of."""
        self.errors.append(error)

    def link(self) -> None:
        """Begin a new feed where the journal ends. Copy the journal if it is too far behind."""
        try:
            self.feed = self.begin()
        except FeedRefusedError as error:
            if error.reason != GONE:
                raise
            self.close()
            shutil.rmtree(self.folder)
            for path, size in files_to_copy(self.source.folder, OsDisk()):
                target = Path(self.folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((Path(self.source.folder) / path).read_bytes())
                assert target.stat().st_size == size
            self.open()
            self.feed = self.begin()

    def begin(self) -> JournalFeed:
        """Return a feed from the end of the journal."""
        position = self.position
        if position.chain == 0 and position.revision > 0:
            chain = end_chain(self.folder, "changes", position.revision)
            position = Position(position.revision, position.accepted_at_us, chain)
        source = self.source
        return JournalFeed(source.folder, source.ring, position, self.known)

    def unlink(self) -> None:
        """End the feed."""
        if self.feed is not None:
            self.feed.close()
            self.feed = None

    def take(self, bytes_max: int) -> list[Entry]:
        """Take entries, as they come over a link."""
        if self.feed is None:
            self.link()
        assert self.feed is not None
        entries = [read_entry(entry.encode()) for entry in self.feed.take(bytes_max)]
        for entry in entries:
            self.keeper.offer(entry)
            self.position = entry.after
            if entry.payload and entry.before.chain == entry.after.chain:
                self.known = entry.payload.decode()
        return entries

    def close(self) -> None:
        """Stop it."""
        self.unlink()
        self.keeper.close()
        assert not self.errors, self.errors
        self.journal.close(seal=False)


def segments(folder: str) -> dict[str, bytes]:
    """Return the segments of a journal by name."""
    return {one.name: one.read_bytes() for one in (Path(folder) / "segments").iterdir()}


def assert_equal(there: dict[str, bytes], here: dict[str, bytes]) -> None:
    """Assert that two journals have equal segments, from where the shorter archive begins."""
    base = max(min((int(name[:20]) for name in one), default=1) for one in (there, here))
    both = [{name: data for name, data in one.items() if int(name[:20]) >= base} for one in (there, here)]
    assert both[0] == both[1]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 6), st.integers(0, 40)),
        st.tuples(st.sampled_from(["take", "third"]), st.integers(1, 3000), st.just(0)),
        st.tuples(st.just("seal"), st.integers(0, 100), st.just(0)),
        st.tuples(
            st.sampled_from(["restart", "renew", "follower", "cut", "snapshot", "expire"]), st.just(0), st.just(0)
        ),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(STEPS, st.sampled_from([1, 1500, 1_000_000]))
def test_the_segments_are_the_same_bytes(steps: list[tuple[str, int, int]], ring_bytes: int) -> None:
    """Sealed segments are equal by name and content, and so is the open one up to what is committed."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_TMPDIR")))
    try:
        source = Source(folder / "source", ring_bytes)
        follower = Follower(folder / "follower", source)
        third = Follower(folder / "third", follower)
        for kind, number, seconds in steps:
            if kind == "write":
                source.write(number, seconds)
            elif kind == "take":
                follower.take(number)
            elif kind == "third":
                third.take(number)
            elif kind == "seal":
                source.journal.seal_aged(source.now_us + number * 1_000_000)
            elif kind in {"restart", "renew"}:
                follower.unlink()
                source.restart(renew=kind == "renew")
            elif kind == "snapshot":
                source.snapshot()
            elif kind == "expire":
                source.expire()
            elif kind == "follower":
                third.unlink()
                follower.close()
                follower.open()
            else:
                follower.unlink()
        source.write(1, 1)  # a new segment shows what was sealed before
        while follower.take(100_000):
            pass
        third.unlink()
        follower.close()
        follower.open()
        while third.take(100_000):
            pass
        follower.close()
        third.close()
        assert_equal(segments(source.folder), segments(follower.folder))
        assert_equal(segments(follower.folder), segments(third.folder))
        source.journal.close()
    finally:
        shutil.rmtree(folder)
