"""All short histories of the roles of two or three members, on a log that swaps correctly and loses answers.

The world is small: a log with numbers for entries, and the real `Member`. Requests and answers are steps of their own, so any order of
them occurs. Histories that lead to the same picture have the same future, so only the first of them goes on.
"""

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from maxam.cluster.log import Head
from maxam.cluster.member import Member, OtherMember, Role
from maxam.cluster.placing import FOLLOW, Place
from maxam.cluster.wishes import Beat, Claim, FindPlace, Follow, HandOver, Lead, ReadHead, StopReading, Wish
from maxam.journal.encoding import START
from tests.simulation.model import Violation

LEASE_S: Final = 3.0
CUT_OFF_S: Final = 10.0
CLUSTER: Final = bytes(16)
FAIR_ROUNDS: Final = 200  # of 0.25 s
HOUR_S: Final = 3600.0
_SLOTS: Final = [name for name in Member.__slots__ if name not in {"head", "_own", "_peers", "name"}]


@dataclass
class Process:
    """A member and what it waits for.

    Attributes:
        member: The machine of roles.
        reading: A read of the head: None, "asked", or the head that was read.
        swap: The head to write, the one that is compared, and the successor of a handover.
        outcome: Answer to the swap that is on its way: "ok" or "superseded".
        drains: Reading from clients has stopped.
    """

    member: Member
    reading: Head | str | None = None
    swap: tuple[Head, Head, str] | None = None
    outcome: tuple[str, Head] | None = None
    drains: bool = False


class World:
    """Some members and their log, at one moment.

    Attributes:
        now_s: The time.
        head: Of the log.
        successors: Of each entry, the successor that it names; the index is the place in the list.
        processes: The members by name.
        crashes: That may still happen.
    """

    def __init__(self, names: str, crashes: int = 1) -> None:
        self.now_s = HOUR_S
        self.head = Head(CLUSTER, 0, 1, "", START, 1, 0, b"", 1)
        self.successors = ["", ""]
        self.silence: dict[int, float] = {}  # of each version, how long it was the newest, once it is no longer
        self.written_s = self.now_s
        self.crashes = crashes
        self.nonce = 0
        self.processes: dict[str, Process] = {}
        for name in names:
            self.start(name, 1)

    def copied(self) -> "World":
        """Return a world that can go on differently."""
        world = copy.copy(self)
        world.successors = list(self.successors)
        world.silence = dict(self.silence)
        world.processes = {
            name: replace(process, member=copy.copy(process.member)) for name, process in self.processes.items()
        }
        return world

    def start(self, name: str, applied: int) -> None:
        """Start a process whose journal ends after an entry."""
        member = Member(name, 100, LEASE_S, CUT_OFF_S)
        self.processes[name] = Process(member)
        member.recovered()
        member.head_read(self.now_s, self.head)
        member.placed(Place(FOLLOW, applied + 1))

    def picture(self) -> Hashable:
        """Return all that a later step can distinguish."""
        now_s, version, index = self.now_s, self.head.version, self.head.index

        def of_head(head: Head | str | None) -> Hashable:
            if not isinstance(head, Head):
                return head
            return (
                head.version and version - head.version,
                index - head.index,
                self.head.term - head.term,
                head.leader,
                self.silence.get(head.version, -1.0) >= LEASE_S,
            )

        def of_member(member: Member) -> Hashable:
            def of(name: str) -> Hashable:
                value: float = getattr(member, name)
                if name in {"applied", "journalled"}:
                    return value - index
                if name == "_handover_at":
                    return value and value - index
                return now_s - value if name.endswith("_s") and value is not None else value

            return (of_head(member.head), of_head(member._own), tuple(map(of, _SLOTS)))

        def of_process(process: Process) -> Hashable:
            swap = process.swap and (of_head(process.swap[0]), of_head(process.swap[1]), process.swap[2])
            outcome = process.outcome and (process.outcome[0], of_head(process.outcome[1]))
            return (of_member(process.member), of_head(process.reading), swap, outcome, process.drains)

        return (
            of_head(self.head),
            now_s - self.written_s,
            tuple(self.successors[-3:]),
            self.crashes,
            tuple(of_process(process) for process in self.processes.values()),
        )

    # Steps.

    def steps(self) -> Iterator[str]:
        """Yield all that can happen next."""
        yield "pass 1"
        yield "pass 3.5"
        for name, process in self.processes.items():
            member = process.member
            if member.role is Role.ENDED:
                yield f"start {name}"
                continue
            yield f"tick {name}"
            yield f"fail {name}"
            if member.applied < self.head.index or (member.head and member.head.version < self.head.version):
                yield f"see {name}"
            if process.reading is not None:
                yield f"read {name}"
            if process.outcome is not None:
                yield f"answer {name}"
                yield f"lose {name}"
            elif process.swap is not None:
                yield f"swap {name}"
                yield f"refuse {name}"
            if process.drains:
                yield f"drain {name}"
            if member.role is Role.LEADING and member.serves(self.now_s):
                yield f"handover {name}"
            if self.crashes:
                yield f"crash {name}"

    def do(self, step: str) -> None:
        """Let one thing happen, and check what holds at every moment."""
        what, _, name = step.partition(" ")
        if what == "pass":
            self.now_s += float(name)
        else:
            getattr(self, f"_{what}")(name, self.processes[name])
        serving = [n for n, process in self.processes.items() if process.member.serves(self.now_s)]
        if len(serving) > 1:
            raise Violation(f"{serving} lead and have a lease")

    def _start(self, name: str, process: Process) -> None:
        self.start(name, process.member.applied)

    def _crash(self, name: str, process: Process) -> None:
        self.crashes -= 1
        self.start(name, process.member.applied)

    def _tick(self, name: str, process: Process) -> None:
        self._wish(name, process.member.tick(self.now_s))

    def _fail(self, name: str, process: Process) -> None:
        process.reading = None
        self._wish(name, process.member.engine_failed(self.now_s))

    def _see(self, name: str, process: Process) -> None:
        member = process.member
        if member.applied == self.head.index:
            self._wish(name, member.head_seen(self.now_s, self.head))
            return
        index = member.applied + 1
        if self.successors[index]:
            self._wish(name, member.handed(self.now_s, index, self.successors[index]))
        self._wish(name, member.progressed(self.now_s, index, index))

    def _read(self, name: str, process: Process) -> None:
        if not isinstance(process.reading, Head):
            process.reading = self.head
            return
        head, process.reading = process.reading, None
        self._wish(name, process.member.head_read(self.now_s, head))

    def _swap(self, _: str, process: Process) -> None:
        """One try arrives at the log."""
        assert process.swap is not None
        head, before, successor = process.swap
        if self.head.nonce == head.nonce:  # an earlier try took effect
            process.outcome = ("ok", self.head)
        elif self.head.version != before.version:
            process.outcome = ("superseded", self.head)
        else:
            self.silence[before.version] = self.now_s - self.written_s
            self.written_s = self.now_s
            self.head = Head(
                CLUSTER, head.term, head.index, head.leader, START, 1, 0, head.nonce, self.head.version + 1
            )
            if head.index > before.index:
                self.successors.append(successor)
            process.outcome = ("ok", self.head)

    def _refuse(self, name: str, process: Process) -> None:
        """The log is full, and no try is in it."""
        assert process.swap is not None
        if self.head.nonce != process.swap[0].nonce:
            process.swap = None
            self._wish(name, process.member.refused(self.now_s))

    def _lose(self, _: str, process: Process) -> None:
        process.outcome = None

    def _answer(self, name: str, process: Process) -> None:
        assert process.outcome is not None
        (outcome, head), process.outcome, process.swap = process.outcome, None, None
        facts = process.member.swap_succeeded if outcome == "ok" else process.member.superseded
        self._wish(name, facts(self.now_s, head))

    def _drain(self, name: str, process: Process) -> None:
        process.drains = False
        self._wish(name, process.member.drained(self.now_s))

    def _handover(self, name: str, process: Process) -> None:
        peers = {other: OtherMember(0, 100, True) for other in self.processes}
        process.member.announced(self.now_s, peers)
        self._wish(name, process.member.handover_asked(self.now_s, "", 75))

    def _wish(self, name: str, wishes: list[Wish]) -> None:
        process = self.processes[name]
        for wish in wishes:
            match wish:
                case ReadHead():
                    process.reading = "asked"
                case Claim(before):
                    self._check_claim(process.member, before)
                    self._begin(name, before, before.term + 1, 1)
                case Beat() if process.swap is None and process.member.head is not None:
                    self._begin(name, process.member.head, process.member.head.term, 0)
                case HandOver(successor) if process.member.head is not None:
                    if process.swap is None:
                        self._begin(name, process.member.head, process.member.head.term, 1, successor)
                case StopReading():
                    process.drains = True
                case Lead(head):
                    if process.member.applied < head.index:
                        raise Violation(f"{name} leads before its own term entry")
                case FindPlace() | Follow():
                    raise Violation(f"{name} looks for its place again")
                case _:
                    pass

    def _begin(self, name: str, before: Head, term: int, entries: int, successor: str = "") -> None:
        process = self.processes[name]
        self.nonce += 1
        head = Head(CLUSTER, term, before.index + entries, name, START, 1, 0, self.nonce.to_bytes(8, "big"))
        process.swap = (head, before, successor)
        process.outcome = None
        process.member.swap_began(self.now_s)

    def _check_claim(self, member: Member, before: Head) -> None:
        if member.applied != before.index or member.journalled != before.index:
            raise Violation(f"{member.name} claims before it is caught up")
        silent_s = self.silence.get(before.version, self.now_s - self.written_s)
        if silent_s < LEASE_S and self.successors[before.index] != member.name:
            raise Violation(f"{member.name} claims a head that was silent for {silent_s} s")

    # Liveness.

    def settle(self) -> str:
        """Let everything work from here on; return the name of the member that leads."""
        for _ in range(FAIR_ROUNDS):
            for name, process in list(self.processes.items()):
                if process.member.role is Role.ENDED:
                    self.do(f"start {name}")
                self.do(f"tick {name}")
                for what in ("see", "see", "see", "read", "read", "swap", "answer", "drain"):
                    if f"{what} {name}" in set(self.steps()):
                        self.do(f"{what} {name}")
            self.now_s += 0.25
        leading = [n for n, process in self.processes.items() if process.member.serves(self.now_s)]
        if len(leading) != 1:
            raise Violation(f"{leading} lead although nothing fails")
        return leading[0]


def leading_world(names: str, crashes: int = 1) -> World:
    """Return a world in which a member leads, and the others follow closely."""
    world = World(names, crashes)
    leader = world.settle()
    world.processes = {leader: world.processes[leader], **world.processes}
    return world


def explore(world: World, depth: int) -> tuple[int, list[World]]:
    """Play all histories of some steps; return the number of pictures, and the worlds at the end."""
    known = {world.picture()}
    worlds = [world]
    for _ in range(depth):
        found: list[World] = []
        for before in worlds:
            for step in before.steps():
                after = before.copied()
                after.do(step)
                picture = after.picture()
                if picture not in known:
                    known.add(picture)
                    found.append(after)
        worlds = found
    return len(known), worlds
