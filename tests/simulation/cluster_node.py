"""One member of a simulated cluster: its machine, which lasts, and its process, which each start replaces.

The process drives the real `Member`, `find_place`, `Sequence`, `settle` and `Trimming` with real entries, as the gateway does. Only what
it serves is small: values are numbers, applied to a list.
"""

import json
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxam.cluster import placing
from maxam.cluster.entry import (
    BLOCK,
    HANDOVER,
    Entry,
    EntryError,
    read_entry,
    same_position,
)
from maxam.cluster.log import (
    Head,
    LogError,
    LogFullError,
    LogLostError,
    LogTrimmedError,
    SupersededError,
)
from maxam.cluster.log_place import LogPlace
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.member import Member, OtherMember, Role
from maxam.cluster.placing import ForkedError
from maxam.cluster.trimming import Trimming
from maxam.cluster.wishes import (
    Beat,
    Claim,
    Copy,
    End,
    FindPlace,
    Follow,
    HandOver,
    Lead,
    ReadAgain,
    ReadHead,
    Resume,
    StopReading,
    Suspend,
    Wish,
)
from maxam.errors import DiskFullError
from maxam.journal.encoding import START, Position
from maxam.journal.files import JournalSettings
from maxam.records import AcknowledgementRecord, Record
from tests.simulation.model import Violation
from tests.simulation.runtime import Runtime
from tests.simulation.simulated_log import SimulatedLog
from tests.support.journal_records import NOW_US, change

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LEASE_S: Final = 3.0
CUT_OFF_S: Final = 10.0
KEEP_S: Final = 12.0
TICK_S: Final = 0.05
ANNOUNCE_S: Final = 1.0
MARKER: Final = bytes(16)
BLOCK_BYTES: Final = 65_536


@dataclass
class Site:
    """A machine.

    Attributes:
        name: Of the member.
        priority: To lead.
        rate: Of its clock.
        blocks: Of its journal.
        position: Where the journal ends.
        synced: Number of blocks that survive a power cut.
        hint: Index of an entry that was synced, perhaps an old one.
        number: Of its last announcement.
        process: That runs; None between an end and a start.
        forked: The member has refused to follow.
    """

    name: str
    priority: int
    rate: float
    blocks: list[Entry] = field(default_factory=list)
    synced: int = 0
    hint: int = 0
    number: int = 0
    process: "Process | None" = None
    forked: bool = False

    @property
    def position(self) -> Position:
        """Where the journal ends."""
        return self.blocks[-1].after if self.blocks else START

    def lose_power(self, rng: random.Random) -> None:
        """Keep what is synced, and perhaps some of the rest."""
        del self.blocks[rng.randint(self.synced, len(self.blocks)) :]
        self.synced = len(self.blocks)


class _Journal:
    """As much of the journal as a leader asks for."""

    settings: Final = JournalSettings(segment_bytes_max=5000)

    def schema_names(self) -> list[str]:
        """Return no schemas."""
        return []


class _Keeper:
    """Stores entries in a site, as `Keeper` does."""

    full: Final = False
    alive: Final = True

    def __init__(self, process: "Process") -> None:
        self._process = process

    @property
    def disk_full(self) -> bool:
        """The disk has no room."""
        return self._process.disk_full

    def offer(self, entry: Entry) -> None:
        """Store an entry."""
        self._process.keep(entry)


class Process(Runtime):
    """A run of a member.

    Attributes:
        site: Its machine.
        member: The machine of roles.
        log: Its view of the log.
        frozen: It stands still, as after SIGSTOP.
        ended: It is over.
        leading: A wish made it lead.
        open: It accepts connections, as far as its wishes go.
        reading: It reads from clients.
        pending: Values of clients that wait for the next block.
        asks: Requests that wait for a proof: when they came, and the newest revision that was answered to anybody then.
        applied: Index of the last entry.
    """

    def __init__(self, cluster: "Cluster", site: Site) -> None:
        super().__init__(cluster, site)
        self.cluster = cluster
        self.site = site
        self.member = Member(site.name, site.priority, LEASE_S, CUT_OFF_S, cluster.id)
        self.log = SimulatedLog(cluster.engine, self, cluster.rng, cluster.faults)
        self.trimming = Trimming(cluster.copies_min, KEEP_S)
        self.leading = self.open = False
        self.reading = True
        self.pending: list[int] = []
        self.asks: list[tuple[float, int, int]] = []
        self.applied = 0
        self.synced_index = 0
        self._kept = 0
        self.position = site.position
        self.proof_s = self.shown_s = -1e9  # of the cluster's time; what the oracle knows about the lease
        self.failed_s = -1e9  # when the event loop heard last that the log does not answer
        self.leaves_s = 1e9  # when it began to hand over
        self.place = LogPlace(site.position, None, "")
        self.logged = LoggedJournal(
            self.log,
            site.name,
            _Journal(),  # type: ignore[arg-type]  # as much of one as a leader asks for
            _Keeper(self),  # type: ignore[arg-type]  # likewise
            self.place,
            self,
            BLOCK_BYTES,
            1 << 40,
            lambda: self.local_s,
            self.rng.randbytes,
        )
        self._facts: deque[Callable[[], list[Wish] | None]] = deque()
        self.disk_full = False
        self._writing = self._syncing = False
        self._began_s: float | None = None  # when the swap under way began
        self._wants_beat = self._drains = False
        self._successor = ""
        self._peers: dict[str, tuple[int, float]] = {}
        self.post(self.member.recovered)
        self.after(0.0, self._tick)
        self.after(0.0, self._announce)

    # The event loop.

    def post(self, fact: Callable[[], list[Wish] | None]) -> None:
        """Have the event loop take a fact, after those before it."""
        self._facts.append(fact)
        self.after(self.rng.random() * (0.002 + self.stalls_s), self._drain)

    def _drain(self) -> None:
        while self._facts and not self.ended:
            self._fulfil(self._facts.popleft()() or [])
        self._pump()

    def _tick(self) -> None:
        if self.ended:
            return
        self._fulfil(self.member.tick(self.local_s))
        self._pump()
        self.cluster.check_tick(self)
        self.after(TICK_S + self.rng.random() * (0.01 + self.stalls_s), self._tick)

    def wake(self) -> None:
        """Let it go on."""
        self.frozen = False
        if self.leaves_s < self.cluster.now_s:
            self.leaves_s = self.cluster.now_s
        held, self._held = self._held, []
        if not self.ended:
            self._fulfil(self.member.tick(self.local_s))
        for call in held:
            self.run(call)

    def kill(self) -> None:
        """End the process at once."""
        self.ended = True
        self.logged.end()
        self.end_fibers()
        self._facts.clear()

    # Wishes.

    def _fulfil(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self._do(wish)

    def _do(self, wish: Wish) -> None:
        match wish:
            case ReadHead():
                self.spawn(self._read_head)
            case FindPlace(head):
                self.spawn(lambda: self._find_place(head))
            case Follow(first):
                self.applied = first - 1
                self.place.start(first)
                self.spawn(self._read)
            case Copy():
                self.cluster.copy(self)
            case Claim(before):
                self.cluster.check_claim(self, before)
                self.spawn(lambda: self._claim(before))
            case Lead(head):
                self._lead(head)
            case Beat():
                self._wants_beat = True
            case Suspend() | Resume():
                self.open = isinstance(wish, Resume)
            case StopReading():
                self.reading = False
                self._drains = True
                self.leaves_s = self.cluster.now_s
            case ReadAgain():
                self.cluster.counted["handovers refused"] += 1
            case HandOver(successor):
                self._drains = False
                self._successor = successor
            case End(status, code):
                self.cluster.end(self, status, code)

    def _lead(self, head: Head) -> None:
        if self.applied != head.index or not same_position(self.position, head.position):
            raise Violation(f"{self.site.name} leads from index {self.applied}, its term begins at {head.index}")
        self.leading = self.open = True
        self.cluster.counted["terms"] += 1

    def _pump(self) -> None:
        """Begin the next block or beat, if something waits for it."""
        if not self.leading or self._writing or self.ended:
            return
        if self._successor:
            successor, self._successor = self._successor, ""
            self._call(lambda: self.logged.hand_over(successor))
        elif self.pending:
            values = self.pending[:1] if self.pending[0] % 2 else [v for v in self.pending if v % 2 == 0]
            self.pending = [v for v in self.pending if v not in values]
            self._write(values)
        elif self._drains:
            self._drains = False
            self._fulfil(self.member.drained(self.local_s))
            self._pump()
        elif self.asks and self.rng.random() < 0.5:
            self._write([])
        elif self._wants_beat:
            self._call(self.logged.beat)

    # The thread that reads.

    def _read_head(self) -> None:
        try:
            head = self.log.head()
        except LogError:
            self._failed()
        else:
            self.post(lambda: self.member.head_read(self.local_s, head))

    def _failed(self) -> None:
        self.post(self._engine_failed)

    def _engine_failed(self) -> list[Wish]:
        self.failed_s = self.cluster.now_s
        return self.member.engine_failed(self.local_s)

    def _find_place(self, head: Head) -> None:
        def entry_at(index: int) -> Entry:
            return read_entry(self.log.read(index, 1)[0])

        try:
            place = placing.find_place(self.site.position, self.site.hint, head, entry_at)
        except (LogError, EntryError, IndexError):
            self._failed()
        else:
            self.cluster.check_place(self, place)
            self.post(lambda: self.member.placed(place))

    def _read(self) -> None:
        while True:
            try:
                for item in self.log.follow(self.place.index + 1):
                    if isinstance(item, Head):
                        self._see(item)
                    elif item is not None:
                        self.logged.follow(read_entry(item), len(item), self)  # type: ignore[arg-type]  # takes steps
            except LogTrimmedError:
                self.post(self.member.fell_behind)
                return
            except ForkedError:
                self.post(self.member.diverged)
                return
            except (EntryError, LogError):
                self._failed()
                self.sleep(0.2)

    def _see(self, head: Head) -> None:
        self.post(lambda: self.member.head_seen(self.local_s, head))

    def take(self, entry: Entry) -> None:
        """Take the next entry of the log, as `Steps` does."""
        self.keep(entry)
        self.post(lambda: self._received(entry))

    def _received(self, entry: Entry) -> list[Wish]:
        if self.member.role is Role.COPYING:
            return []
        if entry.index != self.applied + 1:
            raise Violation(f"{self.site.name} applies {entry.index} after {self.applied}")
        self.applied = entry.index
        self.position = entry.after
        wishes: list[Wish] = []
        if entry.kind == HANDOVER:
            wishes = self.member.handed(self.local_s, entry.index, entry.payload.decode())
        return wishes + self.member.progressed(self.local_s, entry.index, self.place.index)

    def keep(self, entry: Entry) -> None:
        """Keep an entry in the journal."""
        self.cluster.check_journal(self, entry)
        if entry.kind == BLOCK:
            self.site.blocks.append(entry)
        self.trimming.seen(self.local_s, entry.index)
        self._kept = entry.index
        if not self._syncing:
            self._syncing = True
            self.after(self.rng.uniform(0.02, 0.4), self._sync)

    def _sync(self) -> None:
        self._syncing = False
        self.site.synced = len(self.site.blocks)
        self.synced_index = self._kept
        if self.rng.random() < 0.7:
            self.site.hint = self._kept

    # Swaps.

    def began(self, at_s: float) -> None:
        """A swap begins."""
        began_s = self.cluster.now_s
        self.post(lambda: self._begin(began_s, at_s))

    def _begin(self, began_s: float, at_s: float) -> list[Wish]:
        if self._began_s is None:
            self._began_s = began_s
        self._wants_beat = False
        self.member.swap_began(at_s)
        return []

    def succeeded(self, head: Head) -> None:
        """A swap is in the log."""
        self.post(lambda: self._succeeded(head))

    def _succeeded(self, head: Head) -> list[Wish]:
        assert self._began_s is not None
        self.proof_s = self.shown_s = self._began_s
        self._began_s = None
        return self.member.swap_succeeded(self.local_s, head)

    def superseded(self, head: Head | None) -> None:
        """Another member leads."""
        self.post(lambda: self._superseded(head))

    def _superseded(self, head: Head | None) -> list[Wish]:
        wishes = self._failed_swap(self.member.superseded(self.local_s, head))
        if self.leading and not any(isinstance(wish, End) for wish in wishes):
            raise Violation(f"{self.site.name} is superseded, and does not end")
        return wishes

    def refused(self, _error: LogFullError) -> None:
        """The log is full."""
        self.post(self._refused)

    def _refused(self) -> list[Wish]:
        if self._began_s is not None:
            self.shown_s = self._began_s
        return self._failed_swap(self.member.refused(self.local_s))

    def _failed_swap(self, wishes: list[Wish]) -> list[Wish]:
        self._began_s = None
        return wishes

    def _claim(self, before: Head) -> None:
        with suppress(SupersededError, LogFullError, LogLostError):  # the machine knows it already
            try:
                self.logged.claim(before, "1.0", self)  # type: ignore[arg-type]  # takes steps
            except ForkedError:
                self.post(self.member.diverged)

    def _call(self, swap: Callable[[], None]) -> None:
        self._writing = True

        def body() -> None:
            with suppress(SupersededError, LogError, DiskFullError):
                swap()
            self.post(self._written)

        self.spawn(body)

    def _written(self) -> None:
        self._writing = False

    def _write(self, values: list[int]) -> None:
        """Write a block of values. One without any proves that this member leads."""
        self._writing = True
        block = self.logged.encode(self._records(values) if values else [])
        asks, self.asks = self.asks, []

        def body() -> None:
            try:
                self.logged.write(block)
            except DiskFullError:
                self.post(lambda: self._roll_back(values, asks))
            except (SupersededError, LogLostError):
                pass
            else:
                index = self.place.index
                self.post(lambda: self._commit(block.after, index, values, asks))

        self.spawn(body)

    def _roll_back(self, values: list[int], asks: list[tuple[float, int, int]]) -> None:
        self._writing = False
        self.asks = asks + self.asks
        for value in values:
            self.cluster.answer_refused(value)

    def _commit(self, after: Position, index: int, values: list[int], asks: list[tuple[float, int, int]]) -> None:
        self._writing = False
        self.position = after
        self.applied = index
        for value in values:
            self.cluster.answer_accepted(self, value)
        for ask in asks:
            self.cluster.answer_ask(self, ask)

    def _records(self, values: list[int]) -> list[Record]:
        """Return a change for each value. Odd ones, which come alone, are ACKs: a block with the revision of the one before."""
        at = self.position
        at_us = max(at.accepted_at_us, NOW_US + int(self.cluster.now_s * 1e6))
        if values[0] % 2:
            return [AcknowledgementRecord(at_us, "anna", "a", b"s", ((b"X/a", values[0]),))]
        return [change(at.revision + n, body=b"%d" % value, at_us=at_us) for n, value in enumerate(values, 1)]

    # Announcements and trimming.

    def _announce(self) -> None:
        self.after(ANNOUNCE_S, self._announce)
        site, member = self.site, self.member
        site.number += 1
        head = member.head
        ready = member.role is Role.FOLLOWING and head is not None and self.applied >= head.index - 3
        text = {"number": site.number, "priority": site.priority, "ready": ready, "synced": self.synced_index}
        self.spawn(lambda: self._exchange(json.dumps(text).encode()))

    def _exchange(self, text: bytes) -> None:
        asked_s = self.local_s
        try:
            self.log.announce(self.site.name, text)
            found = {name: json.loads(one) for name, one in self.log.announced().items()}
        except LogLostError:
            return
        self.post(lambda: self._announced(asked_s, found))

    def _announced(self, asked_s: float, found: dict[str, dict[str, int]]) -> list[Wish]:
        now_s = self.local_s
        peers = {name: OtherMember(one["number"], one["priority"], bool(one["ready"])) for name, one in found.items()}
        self.member.announced(now_s, peers)
        self.trimming.announced(asked_s, {name: (one["number"], one["synced"]) for name, one in found.items()})
        if self.leading:
            last = self.trimming.due(now_s, (self.site.name, self.synced_index))
            if last:
                self.spawn(lambda: self._trim(last))
        return []

    def _trim(self, last: int) -> None:
        try:
            self.cluster.check_trim(last)
            self.log.trim(last)
        except LogLostError:
            pass
