"""Two or three members of a cluster and their log, on simulated time, with all that fails; see `Cluster`."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Final
from unittest.mock import patch

from maxam.cluster import logged
from maxam.cluster.entry import BLOCK, GENESIS, Entry, read_entry, same_position
from maxam.cluster.log import Head
from maxam.cluster.member import RESTART, Role
from maxam.cluster.placing import FOLLOW, Place
from maxam.cluster.wishes import Wish
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import START
from maxam.records import Change
from tests.simulation import fibers
from tests.simulation.cluster_node import CUT_OFF_S, LEASE_S, MARKER, Process, Site
from tests.simulation.model import Violation
from tests.simulation.simulated_log import Engine, Faults

ID: Final = b"a simulated one."
TIME_S: Final = 90.0  # of faults
CALM_S: Final = 45.0  # after them, in which one must lead and all must follow
LEADS_WITHIN_S: Final = 20.0  # of calm
QUIET_S: Final = 12.0  # at the end, without clients: longer than each limit of a lease
HANDS_OVER_WITHIN_S: Final = 1.0
LEAVES_WITHIN_S: Final = 5.0
HEALTHY: Final = Faults(delay_s=0.01, deadline_s=1.0)
FAULTY: Final = Faults(0.05, 1.0, lost=0.02, late=0.02, unheard=0.02, damaged=0.01, dropped=0.02, repeated=0.05)
COUNTED: Final = (
    "terms",
    "accepted",
    "acks",
    "refused",
    "cuts",
    "kills",
    "freezes",
    "handovers",
    "copies",
    "set backs",
    "trims",
)


class Truth:
    """One history of the log.

    Attributes:
        entries: All entries, by their index less one; those that were trimmed too.
        blocks: Those that are blocks.
        values: Of clients, in the order of the log.
    """

    def __init__(self, values: Callable[[Entry], list[int]] | None = None) -> None:
        self._values_of = values_of if values is None else values
        self.entries: list[Entry] = []
        self.blocks: list[Entry] = []
        self.values: list[int] = []

    def up_to(self, index: int) -> "Truth":
        """Return the beginning of this history."""
        truth = Truth(self._values_of)
        for entry in self.entries[:index]:
            truth.add(entry)
        return truth

    def add(self, entry: Entry) -> None:
        """Record an entry. Raises Violation unless it follows."""
        if entry.index != len(self.entries) + 1:
            raise Violation(f"entry {entry.index} after {len(self.entries)}")
        last = self.entries[-1] if self.entries else None
        if not same_position(entry.before, START if last is None else last.after):
            raise Violation(f"entry {entry.index} does not begin where the one before ends")
        if last is not None and entry.term < last.term:
            raise Violation(f"term {entry.term} after {last.term}")
        self.entries.append(entry)
        if entry.kind == BLOCK:
            self.blocks.append(entry)
            self.values += self._values_of(entry)

    def holds(self, place: int, block: Entry) -> bool:
        """Return True if a block is at a place among the blocks."""
        return place < len(self.blocks) and self.blocks[place].payload == block.payload


def values_of(entry: Entry) -> list[int]:
    """Return the values of clients in a block."""
    decoder = Decoder(entry.before.revision, entry.before.accepted_at_us)
    found: list[int] = []
    for record in decoder.decode(*entry.records()):
        if isinstance(record, Change):
            found.append(int(record.content[record.body_at :]))
        else:
            found.append(record.positions[0][1])  # type: ignore[union-attr]  # it is an acknowledgement
    if decoder.revision != entry.after.revision:
        raise Violation(f"revisions of entry {entry.index} lead to {decoder.revision}")
    return found


class Cluster:
    """A run.

    These rules hold at every moment:

    * Each index has one entry, and positions, terms and revisions go on without a gap over all leaders.
    * Each journal, and the list that each member has applied, is a beginning of the log.
    * A value is answered as accepted only if it is in the log, and as refused only if it never comes into it. None is in it twice.
    * Two members never lead with a lease. A member has a lease only for `lease_s` after the begin of its last successful swap. One that
      has its lease from before the log was set back does not know of that. Nothing that it is sent is accepted.
    * A member that leads, and is not shown its own head for `cut_off_s`, ends at its next tick.
    * A request that needs the order sees all that was answered to anybody before it came.
    * A member claims only a head that no member swapped for `lease_s`, and only when it has applied all of the log.
    * Entries are trimmed only when `copies_min` journals hold them, synced.

    Only an operator who sets the log back loses accepted values. In the end nothing fails: one leads within `LEADS_WITHIN_S`, and
    all journals are equal to the log.
    """

    def __init__(self, seed: int) -> None:
        self.id = ID
        self.rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self.now_s = 1000.0
        self.counted: Counter[str] = Counter()
        self.faults = FAULTY if self.rng.random() < 0.7 else HEALTHY
        self.engine = Engine()
        self.engine.noted = self.note
        self.truth = Truth()
        self.histories = [self.truth]
        self.written_s = self.now_s  # when the newest head was written
        self.set_back_s = 0.0  # when the log was set back last
        self.silences: dict[bytes, float] = {}  # of each nonce, how long it was the newest head, once it is not
        self.accepted: set[int] = set()
        self.refused: set[int] = set()
        self.newest = 0  # revision that was answered to anybody
        self.copies_min = 2
        self.calm = False
        self.quiet = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._values = count(1)
        self.found()
        names = "abc"[: self.rng.choice((2, 3, 3))]
        self.sites = [self.machine(n, self.rng.choice((50, 100, 100)), self.rng.uniform(0.98, 1.02)) for n in names]
        for site in self.sites:
            self.start(site)

    def found(self) -> None:
        """Make the log."""
        genesis = Entry(GENESIS, False, START, START, MARKER, ID, 1, 0)
        self.engine.swap(genesis.encode(), Head(ID, 0, 1, "", START, 1, 0, bytes(8)), None)

    def machine(self, name: str, priority: int, rate: float) -> Site:
        """Return the machine of a member."""
        return Site(name, priority, rate)

    # Time.

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Have something happen later."""
        heappush(self._events, (self.now_s + seconds, next(self._numbers), call))

    def run_until(self, end_s: float) -> None:
        """Let all happen that happens until some time."""
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, call = heappop(self._events)
            self.engine.advance(self.now_s)
            call()
            self.check_leaders()
        self.now_s = end_s

    def processes(self) -> list[Process]:
        """Return all processes that run."""
        return [site.process for site in self.sites if site.process is not None]

    def start(self, site: Site) -> None:
        """Start a member, unless it runs or an operator must act."""
        if site.process is None and not site.forked:
            site.process = Process(self, site)

    def end(self, process: Process, status: int, code: str) -> None:
        """A process ends by itself."""
        site = process.site
        if code == "forked":
            if len(self.histories) == 1:
                raise Violation(f"{site.name} is forked, and the log was not set back")
            site.forked = True
            self.after(self.rng.uniform(6.0, 10.0), partial(self.rejoin, site))
        elif code == "set-back" and len(self.histories) == 1:
            raise Violation("the log was not set back")
        elif status not in {0, RESTART}:
            raise Violation(f"{site.name} ends with {status}: {code}")
        if code == "handed-over":
            self.counted["handovers"] += 1
        self.stop(process)
        self.after(self.rng.uniform(0.1, 2.0), partial(self.start, site))

    def stop(self, process: Process) -> None:
        """End a process."""
        process.site.process = None
        process.kill()

    def rejoin(self, site: Site) -> None:
        """Have an operator set a journal aside, or restore the part of it that the log has, if no other journal has that."""
        common = 0
        while common < len(site.blocks) and self.truth.holds(common, site.blocks[common]):
            common += 1
        del site.blocks[0 if self.held_by_others(site) else common :]
        site.synced = len(site.blocks)
        site.hint = 0
        site.forked = False
        self.start(site)

    def copy(self, process: Process) -> None:
        """Copy the journal of another member that runs, as soon as there is one."""
        if process.ended:
            return
        givers = [p for p in self.processes() if p is not process and p.site.synced > process.site.synced]
        if not givers or self.rng.random() < 0.2:
            self.after(1.0, partial(self.copy, process))
            return
        self.counted["copies"] += 1
        giver = self.rng.choice(givers).site
        process.site.blocks = giver.blocks[: giver.synced]
        process.site.synced = giver.synced
        process.site.hint = 0
        process.post(process.member.copied)

    # Rules.

    def note(self, data: bytes, head: Head) -> None:
        """Record a new head."""
        now = self.engine.head
        if now is not None:
            self.silences[now.nonce] = self.now_s - self.written_s
            if head.term < now.term or head.index != now.index + bool(data):
                raise Violation(f"head of term {head.term} at {head.index} after {now.term} at {now.index}")
        self.written_s = self.now_s
        if not data:
            return
        entry = read_entry(data)
        had = len(self.truth.values)
        self.truth.add(entry)
        for value in self.truth.values[had:]:
            if value in self.refused:
                raise Violation(f"value {value} is in the log, and was answered as refused")
            if value in self.truth.values[:had]:
                raise Violation(f"value {value} is twice in the log")

    def answer_accepted(self, process: Process, value: int) -> None:
        """Check and record the answer to a client."""
        if not any(value in history.values for history in self.histories):
            raise Violation(f"value {value} was answered as accepted, and is not in the log")
        self.accepted.add(value)
        if value in self.truth.values:
            self.newest = max(self.newest, process.position.revision)
        self.counted["acks" if value % 2 else "accepted"] += 1

    def answer_refused(self, value: int) -> None:
        """Check and record the answer to a client."""
        if any(value in history.values for history in self.histories):
            raise Violation(f"value {value} was answered as refused, and is in the log")
        self.refused.add(value)
        self.counted["refused"] += 1

    def answer_ask(self, process: Process, ask: tuple[float, int, int]) -> None:
        """Check the answer to a request that needs the order."""
        _, newest, histories = ask
        if process.position.revision < newest and histories == len(self.histories):
            raise Violation(f"{process.site.name} answers at {process.position.revision}, after {newest} was answered")
        self.counted["asks"] += 1

    def check_leaders(self) -> None:
        """At most one member leads with a lease that it has from the log as it is, and each lease is true."""
        serving = [p for p in self.processes() if p.member.serves(p.local_s)]
        proven = [p for p in serving if p.proof_s >= self.set_back_s]
        if len(proven) > 1:
            raise Violation(f"{[p.site.name for p in proven]} lead and have a lease")
        for process in serving:
            age_s = (self.now_s - process.proof_s) * process.site.rate
            if age_s > LEASE_S + 1e-6:
                raise Violation(f"{process.site.name} serves {age_s} s after its proof")

    def check_tick(self, process: Process) -> None:
        """A member that is not shown its own head for too long ends at its next tick, and one that hands over after its time."""
        if self.now_s - process.leaves_s > LEAVES_WITHIN_S and not process.ended and not process.stalls_s:
            raise Violation(f"{process.site.name} has not ended after its handover")
        age_s = (self.now_s - process.shown_s) * process.site.rate
        if process.leading and not process.ended and age_s > CUT_OFF_S + 1e-6:
            raise Violation(f"{process.site.name} leads {age_s} s after its head was shown")

    def check_claim(self, process: Process, before: Head) -> None:
        """A member claims when it is caught up, and no member swaps the head."""
        if process.applied != before.index:
            raise Violation(f"{process.site.name} claims at {before.index}, and has applied {process.applied}")
        silent_s = self.silences.get(before.nonce, self.now_s - self.written_s)
        last = self.truth.entries[before.index - 1] if before.index <= len(self.truth.entries) else None
        handed = last is not None and last.payload == process.site.name.encode()
        if silent_s < LEASE_S and not handed and len(self.histories) == 1:
            raise Violation(f"{process.site.name} claims a head that was silent for {silent_s} s")
        if self.now_s - process.failed_s < LEASE_S and not handed:
            raise Violation(f"{process.site.name} claims soon after the log did not answer")

    def check_place(self, process: Process, place: Place) -> None:
        """A journal that is a beginning of the log goes on where it ends; no other one does."""
        blocks = process.site.blocks
        ours = [h for h in self.histories if all(h.holds(n, block) for n, block in enumerate(blocks))]
        if place.outcome == FOLLOW and not any(self._place_is_right(h, place.first, len(blocks)) for h in ours):
            raise Violation(f"{process.site.name} with {len(blocks)} blocks goes on with entry {place.first}")

    def _place_is_right(self, truth: Truth, first: int, blocks: int) -> bool:
        return sum(entry.kind == BLOCK for entry in truth.entries[: first - 1]) == blocks

    def check_journal(self, process: Process, entry: Entry) -> None:
        """An entry that is stored is one of the log, and follows what is stored."""
        if entry.kind != BLOCK:
            return
        blocks = process.site.blocks
        n = len(blocks)
        if not any(h.holds(n, entry) and (n == 0 or h.holds(n - 1, blocks[-1])) for h in self.histories):
            raise Violation(f"the journal of {process.site.name} is no beginning of the log at block {n}")

    def check_trim(self, last: int) -> None:
        """Entries that are trimmed are synced in enough journals."""
        self.counted["trims"] += 1
        needed = sum(entry.kind == BLOCK for entry in self.truth.entries[:last])
        copies = sum(site.synced >= needed for site in self.sites)
        if copies < self.copies_min and len(self.histories) == 1:
            raise Violation(f"entries up to {last} are trimmed, and {copies} journals hold them")

    # Events.

    def client(self) -> None:
        """Have a client do something at a member that it reaches."""
        rng = self.rng
        self.after(rng.expovariate(6.0), self.client)
        if self.quiet:
            return
        process = rng.choice(self.sites).process
        if process is None or not process.leading or process.frozen or not process.reading:
            return
        if not process.open and rng.random() < 0.7:
            return  # a connection that is open already
        if rng.random() < 0.3:
            process.asks.append((self.now_s, self.newest, len(self.histories)))
        else:
            process.pending.append(next(self._values))
        process.post(lambda: None)

    def befall(self) -> None:
        """Let something fail."""
        if self.calm:
            return
        rng = self.rng
        self.after(rng.expovariate(0.5), self.befall)
        acts = self.acts
        ((act, _),) = rng.choices(acts, [weight for _, weight in acts])
        act(rng.choice(self.sites))

    @property
    def acts(self) -> tuple[tuple[Callable[[Site], None], int], ...]:
        """Faults, with weights."""
        return (
            (self.cut, 8),
            (self.cut_all, 3),
            (self.kill, 6),
            (self.freeze, 6),
            (self.hand_over, 5),
            (self.fill, 2),
            (self.slow, 5),
            (self.stall_watch, 4),
            (self.weaken, 2),
            (self.wipe, 1),
            (self.set_back, 1),
        )

    def cut(self, site: Site) -> None:
        """Cut a member off from the log, in one direction or in both."""
        process = site.process
        if process is None:
            return
        self.counted["cuts"] += 1
        log = process.log
        name = self.rng.choice(("cut", "deaf"))
        setattr(log, name, True)
        self.after(self.rng.choice((0.5, 2.0, 5.0, 15.0)), lambda: setattr(log, name, False))

    def cut_all(self, _: Site) -> None:
        """Let the log elect a leader of its own, or lose its quorum."""
        logs = [process.log for process in self.processes()]
        for log in logs:
            log.cut = True

        def join() -> None:
            for log in logs:
                log.cut = False

        self.after(self.rng.choice((0.5, 2.5, 12.0)), join)

    def kill(self, site: Site) -> None:
        """Kill a process, or cut the power of its machine."""
        if site.process is None:
            return
        self.counted["kills"] += 1
        self.stop(site.process)
        if self.rng.random() < 0.4:
            site.lose_power(self.rng)
        self.after(self.rng.choice((0.3, 2.0, 8.0)), partial(self.start, site))

    def freeze(self, site: Site) -> None:
        """Stop a process for some time."""
        process = site.process
        if process is None or process.frozen:
            return
        self.counted["freezes"] += 1
        process.freeze()
        self.after(self.rng.choice((0.5, 2.5, 3.5, 6.0, 14.0)), process.wake)

    def hand_over(self, _: Site) -> None:
        """Ask the leader to hand over."""
        for process in self.processes():
            if process.leading:
                to = self.rng.choice(("", "", *(site.name for site in self.sites)))
                process.post(partial(self._hand_over, process, to))

    def _hand_over(self, process: Process, to: str) -> list[Wish]:
        return process.member.handover_asked(process.local_s, to, RESTART)

    def fill(self, _: Site) -> None:
        """Let the log have no room for some time."""
        self.engine.full = True
        self.after(self.rng.choice((1.0, 5.0)), lambda: setattr(self.engine, "full", False))

    def slow(self, site: Site) -> None:
        """Let an event loop be late for some time, or the line to the log."""
        process = site.process
        if process is None:
            return
        process.stalls_s = self.rng.choice((0.0, 0.1, 0.5))
        if not process.stalls_s:
            process.log.faults = replace(self.faults, delay_s=0.45)
        self.after(self.rng.uniform(1.0, 8.0), partial(self.hasten, process))

    def hasten(self, process: Process) -> None:
        """End that."""
        process.stalls_s = 0.0
        process.log.faults = self.faults

    def stall_watch(self, site: Site) -> None:
        """Let a watch show nothing for some time."""
        process = site.process
        if process is not None:
            process.log.stalled = True
            self.after(self.rng.uniform(1.0, 10.0), lambda: setattr(process.log, "stalled", False))

    def weaken(self, site: Site) -> None:
        """Let a member be unable to lead for some time."""
        process = site.process
        if process is not None:
            self.set_disk(process, full=True)
            self.after(5.0, lambda: self.set_disk(process, full=False))

    def set_disk(self, process: Process, *, full: bool) -> None:
        """Fill the disk of a member, or free it."""
        process.disk_full = full
        process.post(lambda: [] if process.leading else process.member.fitness(process.local_s, not full, 0))

    def wipe(self, site: Site) -> None:
        """Replace a machine: it joins with an empty journal, if enough others hold all that was trimmed."""
        if self.held_by_others(site) < self.copies_min or site.forked:
            return
        if site.process is not None:
            self.stop(site.process)
        site.forked = True
        self.after(self.rng.uniform(6.0, 8.0), partial(self.rejoin, site))

    def held_by_others(self, site: Site) -> int:
        """Return the number of other journals that hold, synced, all that was trimmed."""
        needed = sum(entry.kind == BLOCK for entry in self.truth.entries[: self.engine.first - 1])
        return sum(
            not other.forked
            and other.synced >= needed
            and all(self.truth.holds(n, b) for n, b in enumerate(other.blocks))
            for other in self.sites
            if other is not site
        )

    def set_back(self, _: Site) -> None:
        """Restore an old state of the log, as an operator does by mistake."""
        if len(self.histories) > 2 or self.engine.head is None or self.rng.random() < 0.5:
            return
        self.counted["set backs"] += 1
        newest = self.engine.head.index
        index = max(self.engine.first, newest - self.rng.randrange(1, 6))
        if index >= newest:
            return
        self.engine.set_back(index)
        self.truth = self.truth.up_to(index)
        self.histories.append(self.truth)
        self.silences.clear()
        self.written_s = self.set_back_s = self.now_s
        self.freeze(self.rng.choice(self.sites))  # which may wake when the log has other entries up to its index
        self.newest = 0

    # The end.

    def heal(self) -> None:
        """End all faults."""
        self.calm = True
        self.engine.full = False
        self.faults = HEALTHY
        for site in self.sites:
            process = site.process
            if process is not None:
                process.log.cut = process.log.deaf = process.log.stalled = False
                process.log.faults = HEALTHY
                process.stalls_s = 0.0
                if process.frozen:
                    process.wake()
                self.set_disk(process, full=False)
            else:
                self.after(1.0, partial(self.start, site))

    def leader(self) -> Process:
        """Return the process that leads and accepts connections."""
        serving = [p for p in self.processes() if p.member.serves(p.local_s) and p.open]
        if len(serving) != 1:
            raise Violation(f"{len(serving)} members lead and accept connections although nothing fails")
        return serving[0]

    def check_quiet(self) -> None:
        """Without clients the leader stays the leader. It hands over when it is asked, and when its disk is full."""
        leader, terms = self.leader(), self.counted["terms"]
        self.quiet = True
        self.run_until(self.now_s + QUIET_S)
        if self.leader() is not leader or self.counted["terms"] != terms:
            raise Violation("another member leads although nothing fails")
        self.depose(leader)
        self.run_until(self.now_s + HANDS_OVER_WITHIN_S)
        if self.leader() is leader:
            raise Violation("a handover took too long")

    def depose(self, leader: Process) -> None:
        """Give the leader a reason to hand over: it is asked to, or its disk is full."""
        if self.counted["terms"] % 2:
            leader.post(partial(self._hand_over, leader, ""))
        else:
            leader.post(lambda: leader.member.fitness(leader.local_s, False, 0))

    def check_calm(self) -> None:
        """One leads, accepts values and asks, and all journals are equal."""
        self.leader()
        for site in self.sites:
            had = len(site.blocks)
            if had < len(self.truth.blocks) - 3 or not all(self.truth.holds(n, b) for n, b in enumerate(site.blocks)):
                raise Violation(f"the journal of {site.name} has {had} of {len(self.truth.blocks)} blocks, or others")
            if site.process is None or site.process.member.role not in {Role.FOLLOWING, Role.LEADING}:
                raise Violation(f"{site.name} does not follow although nothing fails")
        lost = {v for v in self.accepted if v not in self.truth.values}
        if lost and len(self.histories) == 1:
            raise Violation(f"accepted values are lost: {sorted(lost)}")

    def run(self) -> None:
        """Run to the end."""
        self.after(0.0, self.client)
        self.after(self.rng.uniform(0.0, 8.0), self.befall)
        try:
            self.run_until(self.now_s + TIME_S)
            self.heal()
            self.run_until(self.now_s + LEADS_WITHIN_S)
            accepted = self.counted["accepted"]
            self.run_until(self.now_s + CALM_S - LEADS_WITHIN_S)
            if self.counted["accepted"] == accepted:
                raise Violation(f"nothing is accepted although nothing fails for {CALM_S} s")
            self.check_calm()
            self.check_quiet()
        finally:
            for process in self.processes():
                process.kill()
            self.engine.watchers.clear()


def simulate(seed: int) -> Cluster:
    """Run a seed."""
    with patch.object(logged, "threading", fibers):
        cluster = Cluster(seed)
        cluster.run()
    return cluster
