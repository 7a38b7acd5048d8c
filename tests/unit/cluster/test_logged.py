"""The journal of a leader, with each outcome that a log can have."""

import contextlib
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from maxam.cluster.entry import (
    BLOCK,
    FILE,
    GENESIS,
    HANDOVER,
    SCHEMAS,
    SEAL,
    TERM,
    Entry,
    EntryError,
    block_entry,
    read_entry,
    same_position,
)
from maxam.cluster.keeper import Keeper
from maxam.cluster.log import Head, LogFullError, LogLostError, SupersededError
from maxam.cluster.log_place import LogPlace
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.placing import ForkedError
from maxam.cluster.steps import Steps
from maxam.errors import DiskFullError, JournalError
from maxam.journal.encoding import START, Block, Encoder, Position
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.segments import follows
from maxam.records import AcknowledgementRecord
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import NOW_US, SYNC, change
from tests.support.memory_log import MemoryLog

CLUSTER = bytes(range(16))
SETTINGS = JournalSettings(segment_bytes_max=3000, segment_age_s_max=60, reserve_bytes=0)


class Swapped:
    """Records what happens to swaps."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.times: list[float] = []

    def began(self, at_s: float) -> None:
        """Record a beginning."""
        self.events.append("began")
        self.times.append(at_s)

    def succeeded(self, head: Head) -> None:
        """Record a success."""
        self.events.append(f"in {head.index}")

    def superseded(self, head: Head | None) -> None:
        """Record a failure."""
        self.events.append(f"superseded {None if head is None else head.leader}")

    def refused(self, error: LogFullError) -> None:
        """Record a failure."""
        assert error.code == "log-full"
        self.events.append("refused")


class Site:
    """One member on a log in memory."""

    def __init__(self, log: MemoryLog, name: str, **limits: Any) -> None:
        self.log = log
        self.disk = SimulatedDisk()
        self.journal = Journal.open("/journal", self.disk, SETTINGS, bytes(16))
        assert list(self.journal.recover(following=True)) == []
        self.keeper = Keeper(self.journal, START, lambda error: pytest.fail(str(error)))
        self.keeper.start()
        self.place = LogPlace(START, self.journal.extent, "")
        self.steps = Steps(self.keeper, START)
        self.swaps = Swapped()
        self.now_s = 100.0
        self.logged = LoggedJournal(
            log,
            name,
            self.journal,
            self.keeper,
            self.place,
            self.swaps,
            limits.get("block_bytes_max", 262_144),
            limits.get("log_bytes_max", 1 << 30),
            lambda: self.now_s,
        )
        self.revision = 0

    def follow(self) -> None:
        """Take all entries that the log holds and that are new."""
        for data in self.log.read(self.place.index + 1, 1 << 30):
            self.logged.follow(read_entry(data), len(data), self.steps)
        self.revision = self.place.position.revision

    def lead(self) -> "Site":
        """Follow, then claim."""
        self.follow()
        head = self.log.head()
        assert head is not None
        self.logged.claim(head, "0.2.0", self.steps)
        return self

    def block(self, body: bytes = b"v") -> Block:
        """Return the next block, with one change."""
        self.revision = self.place.position.revision + 1
        return self.logged.encode([change(self.revision, body=body, at_us=NOW_US)])

    def files(self) -> dict[str, bytes]:
        """Return the files of the journal after the keeper has synced all."""
        self.keeper.close()
        return {path: data for path, data in self.disk.contents().items() if "/segments/" in path}


def begun(first: Head | None = None) -> MemoryLog:
    """Return a log with its genesis."""
    log = MemoryLog()
    entry = Entry(GENESIS, False, START, START, SYNC, CLUSTER, 1).encode()
    log.append(entry, Head(CLUSTER, 0, 1, "", START, 1, 0, bytes(8)), first)
    return log


def kinds(log: MemoryLog) -> list[int]:
    """Return the kinds of the entries in their order, after checking that each follows the one before."""
    place = LogPlace(START, None, "")
    entries = [read_entry(log.entries[index]) for index in sorted(log.entries)]
    for entry in entries:
        place.check(entry)
        place.take(entry, 0)
    return [entry.kind for entry in entries]


def test_a_leader_logs_blocks_and_stores_them() -> None:
    """Blocks follow the term, roll as the limits have it, and all members that take them store the same bytes."""
    log = begun()
    site = Site(log, "a").lead()
    for _ in range(20):
        site.logged.write(site.block(b"v" * 300))
    assert kinds(log) == [GENESIS, TERM, *[BLOCK] * 20]
    assert 1 < sum(read_entry(data).begins for data in log.entries.values()) < 20
    other = Site(log, "b")
    other.follow()
    assert site.files() == other.files()
    assert len(site.files()) > 1
    assert other.keeper.synced_index == 22 == site.keeper.synced_index


def test_nothing_is_written_before_the_member_leads() -> None:
    """Without a claim each swap is a mistake, except schemas, which are skipped."""
    site = Site(begun(), "a")
    site.follow()
    for call in (site.logged.beat, lambda: site.logged.write(site.block()), lambda: site.logged.hand_over("b")):
        with pytest.raises(JournalError):
            call()
    site.logged.keep_schemas([(sha256(b"{}").hexdigest(), b"{}")])
    assert len(site.log.entries) == 1


def write(site: Site) -> None:
    """Write a block."""
    site.logged.write(site.block())


def beat(site: Site) -> None:
    """Send a sign of life."""
    site.logged.beat()


def empty(site: Site) -> None:
    """Write a block without records."""
    site.logged.write(site.logged.encode([]))


def seal(site: Site) -> None:
    """Seal the segment."""
    site.logged.seal_aged(NOW_US + 61_000_000)


def schemas(site: Site) -> None:
    """Keep a schema."""
    site.logged.keep_schemas([(sha256(b"{}").hexdigest(), b"{}")])


def file(site: Site) -> None:
    """Keep a file."""
    site.logged.keep_file("policy-enrolled.toml", b"contents")


def hand_over(site: Site) -> None:
    """Hand over."""
    site.logged.hand_over("b")


SWAPS: list[tuple[Callable[[Site], None], list[int]]] = [
    (write, [BLOCK]),
    (beat, []),
    (empty, []),
    (seal, [SEAL]),
    (schemas, [SCHEMAS]),
    (file, [FILE]),
    (hand_over, [HANDOVER]),
]


@pytest.mark.parametrize(("swap", "made"), SWAPS)
@pytest.mark.parametrize("lost", [[], ["before"], ["after"], ["before", "after"], ["before", "before"]])
def test_a_swap_takes_effect_once(swap: Callable[[Site], None], made: list[int], lost: list[str]) -> None:
    """However many requests and answers are lost, one entry comes of it, and its proof is as old as the first try."""
    site = Site(begun(), "a").lead()
    site.logged.write(site.block())
    before, swaps = kinds(site.log), site.log.swaps
    site.log.outcomes = list(lost)
    site.now_s = 200.0
    site.swaps.events.clear()
    swap(site)
    assert kinds(site.log) == before + made
    assert site.log.swaps == swaps + 1
    assert site.swaps.events == ["began", f"in {len(before + made)}"]
    assert site.swaps.times[-1] == 200.0
    head = site.log.head()
    assert head is not None
    assert site.logged.head is not None
    assert head.wrote(site.logged.head)
    assert same_position(head.position, site.place.position)
    if swap is not hand_over:
        site.logged.write(site.block())


@pytest.mark.parametrize(("swap", "made"), SWAPS)
def test_a_full_log_refuses_a_swap(swap: Callable[[Site], None], made: list[int]) -> None:
    """Nothing of it is left, the next one takes the same place, and refusals are no proof."""
    site = Site(begun(), "a").lead()
    site.logged.write(site.block())
    before = kinds(site.log)
    site.log.outcomes = ["before", "full"]
    site.swaps.events.clear()
    with pytest.raises((DiskFullError, LogFullError)):
        swap(site)
    assert site.swaps.events == ["began", "refused"]
    assert kinds(site.log) == before
    swap(site)
    assert kinds(site.log) == before + made


@pytest.mark.parametrize("swap", [swap for swap, _ in SWAPS])
def test_a_superseded_leader_changes_nothing(swap: Callable[[Site], None]) -> None:
    """The successor's log stays as it is, and the own journal gets nothing."""
    log = begun()
    site = Site(log, "a").lead()
    site.logged.write(site.block())
    other = Site(log, "b").lead()
    before = kinds(log)
    with pytest.raises(SupersededError):
        swap(site)
    assert site.swaps.events[-1] == "superseded b"
    assert kinds(log) == before
    assert site.place.index == 3
    other.logged.write(other.block())
    assert kinds(log) == [*before, BLOCK]
    site.keeper.close()
    assert site.keeper.synced_index == 3


def test_nothing_follows_a_handover() -> None:
    """Later changes have no outcome: their write waits until the gateway ends."""
    site = Site(begun(), "a").lead()
    site.logged.hand_over("b")
    site.logged.end()
    with pytest.raises(LogLostError):
        site.logged.write(site.block())
    with pytest.raises(LogLostError):
        site.logged.beat()
    assert kinds(site.log)[-1] == HANDOVER


def test_one_of_two_claims_wins() -> None:
    """Both compare with the same head. The one that comes second follows, and may claim later."""
    log = begun()
    first, second = Site(log, "a"), Site(log, "b")
    first.follow()
    second.follow()
    head = log.head()
    assert head is not None
    first.logged.claim(head, "0.2.0", first.steps)
    with pytest.raises(SupersededError):
        second.logged.claim(head, "0.2.0", second.steps)
    second.follow()
    assert second.place.index == 2
    second.lead()
    assert second.place.term == 2
    assert read_entry(log.entries[3]).reign() == ("b", "0.2.0")


def test_a_log_that_was_set_back_is_not_claimed() -> None:
    """The member has taken other entries than the log has now, up to the same index."""
    leaders = Site(begun(), "b").lead(), Site(begun(), "c").lead()
    for leader, body in zip(leaders, (b"old", b"new"), strict=True):
        leader.logged.write(leader.block(body))
    site = Site(leaders[0].log, "a")
    site.follow()
    head = leaders[1].log.head()
    assert head is not None
    assert head.index == site.place.index
    with pytest.raises(ForkedError):
        site.logged.claim(head, "0.2.0", site.steps)
    assert site.logged.head is None
    assert site.swaps.events == []


def test_a_claim_that_comes_after_an_entry_of_another_leader_is_superseded() -> None:
    """The role follows again."""
    log = begun()
    site = Site(log, "a")
    site.follow()
    head = log.head()
    assert head is not None
    Site(log, "b").lead()
    site.follow()
    with pytest.raises(SupersededError):
        site.logged.claim(head, "0.2.0", site.steps)
    assert site.swaps.events == ["superseded "]
    site.lead()


def test_a_claim_of_unknown_outcome_ends_with_the_journal() -> None:
    """While the log gives no answer the claim is tried again; an end stops that."""
    site = Site(begun(), "a")
    site.follow()
    head = site.log.head()
    assert head is not None
    site.log.lost = True
    failed = threading.Event()

    def claim() -> None:
        with pytest.raises(LogLostError):
            site.logged.claim(head, "0.2.0", site.steps)
        failed.set()

    thread = threading.Thread(target=claim)
    thread.start()
    site.logged.end()
    thread.join()
    assert failed.is_set()
    assert site.logged.head is None


def test_schemas_are_logged_once() -> None:
    """Texts that the cluster has are skipped, also by its next leader. Large ones are divided."""
    log = begun()
    site = Site(log, "a").lead()
    texts = [(sha256(text).hexdigest(), text) for text in (bytes([65 + at]) * 100_000 for at in range(5))]
    site.logged.keep_schemas(texts[:4])
    site.logged.keep_schemas(texts[:4])
    assert kinds(log) == [GENESIS, TERM, SCHEMAS, SCHEMAS]
    other = Site(log, "b")
    other.follow()
    while other.keeper.synced_index < other.place.index:
        threading.Event().wait(0.001)
    other.lead()
    other.logged.keep_schemas(texts)
    assert kinds(log)[4:] == [TERM, SCHEMAS]
    assert read_entry(log.entries[6]).texts() == texts[4:]


def fill(site: Site, block: Callable[[], Block]) -> None:
    """Write blocks until there is no room."""
    with contextlib.suppress(DiskFullError):
        while True:
            site.logged.write(block())


def test_the_limit_on_the_log_refuses_changes_first() -> None:
    """ACKs may use a tenth more. Entries that are forgotten make room."""
    site = Site(begun(), "a", log_bytes_max=4000).lead()
    acknowledgement = AcknowledgementRecord(NOW_US, "alice", "pump", b"1", ((b"S/X", 1),))
    fill(site, lambda: site.block(b"v" * 100))
    assert not site.logged.has_room(400)
    head = site.place.position.revision
    site.logged.write(site.logged.encode([acknowledgement]))
    fill(site, lambda: site.logged.encode([acknowledgement]))
    index = site.place.index
    site.logged.trim(index - 2)
    assert sorted(site.log.entries) == [index - 1, index]
    site.logged.write(site.block(b"v" * 100))
    assert site.place.position.revision == head + 1


def test_a_full_disk_refuses_changes_without_the_log() -> None:
    """The own disk has no room: changes are refused, the log is not asked."""
    site = Site(begun(), "a").lead()
    site.logged.write(site.block())
    site.keeper.close()
    site.keeper.disk_full = True
    swaps = site.log.swaps
    with pytest.raises(DiskFullError):
        site.logged.write(site.block())
    assert site.log.swaps == swaps
    assert not site.logged.has_room(1)


def entry_after(position: Position, index: int, term: int) -> Entry:
    """Return a block with one change."""
    made = Encoder(position, SYNC).encode([change(position.revision + 1)])
    return block_entry(made.data, made.before, made.after, position.revision == 0, index, term)


def test_the_first_block_follows_nothing() -> None:
    """Blocks without a change have its revision too. A position that is known from a snapshot alone may be any of them."""
    assert follows(START, START, begins=True)
    assert not follows(START, Position(0, NOW_US, 7), begins=True)
    assert not follows(Position(0, NOW_US, 7), START, begins=True)
    assert follows(Position(0, NOW_US, 0), Position(0, NOW_US, 7), begins=True)


@pytest.mark.parametrize(("index", "term"), [(4, 1), (3, 1)])
def test_a_gap_and_a_fork_are_refused(index: int, term: int) -> None:
    """A member takes neither an entry that leaves out one, nor one that follows another history."""
    site = Site(begun(), "a").lead()
    other = Site(site.log, "b")
    other.follow()
    at = START if index == 4 else Position(7, NOW_US, 1)
    with pytest.raises((EntryError, ForkedError)):
        other.logged.follow(entry_after(at, index, term), 1, other.steps)
    assert other.logged.follow(entry_after(START, 3, 1), 1, other.steps)
    assert not other.logged.follow(entry_after(START, 3, 1), 1, other.steps)
    with pytest.raises(ForkedError):  # a lower term: the log was set back
        other.logged.follow(
            Entry(SEAL, False, other.place.position, other.place.position, SYNC, b"", 4, 0), 1, other.steps
        )
