"""The roles of a member of a cluster: a state machine without I/O, clock or randomness.

Theory of operation. The process reports facts, each with the monotonic time at which it learned them. Each fact returns wishes: what
the process shall do next. A fact that has no effect in the present role returns none. The gateway and the simulator of the tests drive
the same machine.

    RECOVERING -> PLACING -> FOLLOWING -> CLAIMING -> LEADING -> LEAVING
                     |          |  ^         |
                     v          v  +---------+ superseded, or the log is full
                   COPYING <----+

Roles only go up. A leader that loses its place ends the process with status 75, and its next start follows.

The head of the log decides who leads: each swap compares it and replaces it. Time decides only when a member tries:

* A leader counts its lease from the beginning of the last swap that succeeded. That is before any member can have seen it. After
  `lease_s` it is suspended, after `cut_off_s` it ends. The refusal of a log that is full shows that the head is still its own. That
  is no lease, but it delays the end.
* A follower counts silence from the moment at which it saw the last change of the head. It waits longer than the lease, by a margin for
  clocks that run differently. Members that prefer to lead wait less than others.
* Silence counts only while the engine answers. Before a claim the head is read again, linearizably. A watch that hangs is no silence.
* An index alone does not show that a log was set back. So `LoggedJournal.claim` compares the position of the head with that of the
  own journal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from maxam.cluster.log import Head
from maxam.cluster.placing import FOLLOW, FORKED, Place
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

RESTART: Final = 75  # exit status: start again, as a follower
REFUSED: Final = 1  # exit status: a person must act
BEATS_PER_LEASE: Final = 3
MARGIN_S_MIN: Final = 0.25  # an event loop that is late by some ticks of 50 ms is no reason for a claim
MARGIN_OF_LEASE: Final = 1 / 12  # clocks that run differently by 5 % are no reason either
RANK_S: Final = 0.5  # between the claims of two members; a claim takes some milliseconds
SILENT_S: Final = 5.0  # without a new announcement; one is due each second
DRAIN_S: Final = 2.0  # for what was read from clients before a handover
HANDED_OVER_S: Final = 2.0  # for the successor to claim; within the shortest lease in use
RETRY_S: Final = 0.5  # before the head is read again after an error


class Role(Enum):
    """The state of a member."""

    RECOVERING = "recovering"
    PLACING = "placing"
    COPYING = "copying"
    FOLLOWING = "following"
    CLAIMING = "claiming"
    LEADING = "leading"
    LEAVING = "leaving"
    ENDED = "ended"


_SERVING: Final = frozenset({Role.LEADING, Role.LEAVING})


@final
@dataclass(frozen=True, slots=True)
class OtherMember:
    """Another member, as it announces itself.

    Attributes:
        number: Of the announcement; it changes with each one.
        priority: To lead; 0 for never.
        ready: It follows, may lead, and is within a second of the head.
    """

    number: int
    priority: int
    ready: bool


@final
class Member:
    """A member of a cluster.

    Attributes:
        name: Of the member.
        role: Its state.
        head: The newest head that it knows; None before the first.
        applied: Index of the last entry that the broker has applied.
        journalled: Index of the last entry that was given to the own journal.
        proof_s: When the last successful swap began. No other member has led since.
        shown_s: When the last swap began that has shown the own head: it succeeded, or the log was full.
        suspended: It leads without proof for `lease_s`.
    """

    __slots__ = (
        "_able",
        "_asked",
        "_began_s",
        "_cluster",
        "_cut_off_s",
        "_deadline_s",
        "_end_status",
        "_handed_over",
        "_handover_at",
        "_last_s",
        "_lease_s",
        "_own",
        "_peers",
        "_priority",
        "_ranks_later",
        "_read_after",
        "_reading",
        "_silent_since_s",
        "_successor",
        "applied",
        "head",
        "journalled",
        "name",
        "proof_s",
        "role",
        "shown_s",
        "suspended",
    )

    def __init__(self, name: str, priority: int, lease_s: float, cut_off_s: float, cluster: bytes = b"") -> None:
        """Make a member that recovers its journal.

        Args:
            name: Of the member.
            priority: To lead; 0 for never.
            lease_s: Silence after which others may lead.
            cut_off_s: Time after which a leader ends that is not shown its own head; 0 for never, else at least `lease_s`.
            cluster: Identifier of the cluster of the own journal; empty for a new journal.
        """
        self.name: Final = name
        self.role = Role.RECOVERING
        self.head: Head | None = None
        self.applied = 0
        self.journalled = 0
        self.proof_s = self.shown_s = 0.0
        self.suspended = False
        self._priority: Final = priority
        self._lease_s: Final = lease_s
        self._cut_off_s: Final = cut_off_s
        self._cluster: Final = cluster
        self._able = True
        self._ranks_later = 0
        self._peers: dict[str, tuple[OtherMember, float]] = {}  # and when it changed
        self._reading = False  # of the head is under way
        self._read_after = 0  # version of the head that was known when the read began
        self._silent_since_s = 0.0
        self._handover_at = 0  # index of the last handover to this member
        self._own: Head | None = None  # of the claim that succeeded
        self._began_s: float | None = None  # of the swap under way
        self._last_s = 0.0  # when the last swap began
        self._asked = False  # for a swap that has not begun
        self._successor = ""
        self._handed_over = False  # or about to be
        self._deadline_s = 0.0  # of a step of the handover, or of the next attempt to read the head
        self._end_status = RESTART

    def serves(self, now_s: float) -> bool:
        """Return True if the member leads and has a proof. Only then it may take connections."""
        return self.role in _SERVING and not self._handed_over and now_s - self.proof_s < self._lease_s

    def live(self, now_s: float) -> dict[str, OtherMember]:
        """Return the other members that announce themselves."""
        return {name: peer for name, (peer, changed_s) in self._peers.items() if now_s - changed_s < SILENT_S}

    @property
    def patience_s(self) -> float:
        """Silence after which the member claims, if it is the first in rank."""
        return self._lease_s + max(MARGIN_S_MIN, self._lease_s * MARGIN_OF_LEASE)

    # Facts of the start.

    def recovered(self) -> list[Wish]:
        """The own journal is recovered."""
        if self.role is not Role.RECOVERING:
            return []
        self.role = Role.PLACING
        return self._read()

    def placed(self, place: Place) -> list[Wish]:
        """The place of the own journal in the log is known."""
        if self.role is not Role.PLACING:
            return []
        if place.outcome == FORKED:
            return self._end(REFUSED, "forked")
        if place.outcome != FOLLOW:
            return self.fell_behind()
        self.role = Role.FOLLOWING
        self.applied = self.journalled = place.first - 1
        return [Follow(place.first)]

    def fell_behind(self) -> list[Wish]:
        """The log has forgotten entries that are not in the own journal."""
        if self.role not in {Role.PLACING, Role.FOLLOWING, Role.CLAIMING}:
            return []
        self.role = Role.COPYING
        return [Copy()]

    def copied(self) -> list[Wish]:
        """The journal of another member was copied."""
        return self._end(RESTART, "copied") if self.role is Role.COPYING else []

    # Facts about the log.

    def head_read(self, now_s: float, head: Head | None) -> list[Wish]:
        """A linearizable read of the head, which a wish asked for, has returned."""
        if not self._reading:
            return []
        self._reading = False
        if head is None:
            return self._end(REFUSED, "no-log")
        if self._cluster and head.cluster != self._cluster:
            return self._end(REFUSED, "other-cluster")
        if self.role is Role.PLACING:
            self.head = head
            self._silent_since_s = now_s
            return [FindPlace(head)]
        if self.role is not Role.FOLLOWING or self.head is None:
            return []
        if head.version < self._read_after:
            return self._end(RESTART, "set-back")  # the next start finds out whether the own journal is forked
        same = head.version == self.head.version and head.nonce == self.head.nonce  # a restored log repeats versions
        if not same and head.version >= self.head.version:
            self._saw(now_s, head)
        if not same or not self._may_claim(now_s):
            return []
        if head.version != self._read_after:  # the read began before this head was seen: it proves no silence
            return self._read()
        self.role = Role.CLAIMING
        return [Claim(head)]

    def head_seen(self, now_s: float, head: Head) -> list[Wish]:
        """The watch shows a head. It may be late, and one that was seen before."""
        if self.head is None or head.version <= self.head.version:
            return []
        if self.role is Role.FOLLOWING:
            self._saw(now_s, head)
        elif self._own is not None and head.term > self._own.term:
            return self._lost(now_s, head)
        return self._consider(now_s)

    def diverged(self) -> list[Wish]:
        """An entry of the log does not follow the own journal. The next start finds out whether that is forked."""
        return self._end(RESTART, "set-back")

    def engine_failed(self, now_s: float) -> list[Wish]:
        """A watch or a call to the engine has failed: the silence begins again."""
        self._silent_since_s = now_s
        if self._reading or self.role is Role.PLACING:
            self._reading = False
            self._deadline_s = now_s + RETRY_S
        return []

    def progressed(self, now_s: float, applied: int, journalled: int) -> list[Wish]:
        """Entries were applied by the broker and given to the own journal, up to these indexes."""
        self.applied = applied
        self.journalled = journalled
        return self._lead(now_s) if self.role is Role.CLAIMING else self._consider(now_s)

    def handed(self, now_s: float, index: int, successor: str) -> list[Wish]:
        """A `handover` entry was applied."""
        if successor == self.name:
            self._handover_at = index
        return self._consider(now_s)

    # Facts about the own swaps. One is under way at a time.

    def swap_began(self, now_s: float) -> None:
        """The first try of a swap of the head begins: a claim, an append or a beat."""
        self._began_s = self._last_s = now_s
        self._asked = False

    def swap_succeeded(self, now_s: float, head: Head) -> list[Wish]:
        """The swap under way is in the log."""
        began_s, self._began_s = self._began_s, None
        if began_s is None or self.role is Role.ENDED:
            return []
        self.head = head
        self.proof_s = self.shown_s = began_s
        if self.role is Role.CLAIMING:
            self._own = head
            return self._lead(now_s)
        return self._lease(now_s)

    def superseded(self, now_s: float, head: Head | None) -> list[Wish]:
        """The swap under way has failed: the head is another one."""
        self._began_s = None
        return self._end(REFUSED, "no-log") if head is None else self._lost(now_s, head)

    def refused(self, now_s: float) -> list[Wish]:
        """The swap under way has failed: the log is full. That is no proof."""
        if self._began_s is not None:
            self.shown_s = self._began_s
        self._began_s = None
        if self.role is Role.CLAIMING:
            self._follow_again(now_s)
        elif self.role is Role.LEAVING and self._handed_over:
            return self._end(self._end_status, "handed-over")  # the `handover` entry may be in the log
        return self._lease(now_s)

    # Facts about the member and its peers.

    def fitness(self, now_s: float, able: bool, ranks_later: int) -> list[Wish]:
        """The member is able to lead or not; it claims some ranks later than it would. A leader that is not able hands over."""
        self._able = able
        self._ranks_later = ranks_later
        if self.role is Role.LEADING and not able:
            wishes = self.handover_asked(now_s, "", RESTART)
            return [wish for wish in wishes if not isinstance(wish, ReadAgain)]
        return self._consider(now_s)

    def announced(self, now_s: float, peers: Mapping[str, OtherMember]) -> None:
        """These are the announcements of all members, the own one perhaps included."""
        known = self._peers
        self._peers = {
            name: known[name] if name in known and known[name][0].number == peer.number else (peer, now_s)
            for name, peer in peers.items()
            if name != self.name
        }

    def handover_asked(self, now_s: float, successor: str, status: int) -> list[Wish]:
        """The leader shall hand over, and end with a status.

        Args:
            now_s: The time.
            successor: Name of the member that is to lead; empty for the first in rank.
            status: 0 for a process that stops, `RESTART` for one that follows afterwards.
        """
        if self.role is not Role.LEADING or self.suspended:
            return [ReadAgain("the member does not lead")]
        live = self.live(now_s)
        ready = [name for name in self._ranked(live) if live[name].ready]
        if successor not in live if successor else not ready:
            return [ReadAgain("no other member follows closely and may lead")]
        if successor and not live[successor].ready:
            return [ReadAgain(f"the member {successor} does not follow closely, or may not lead")]
        self.role = Role.LEAVING
        self._successor = successor or ready[0]
        self._handed_over = False
        self._deadline_s = now_s + DRAIN_S
        self._end_status = status
        return [StopReading()]

    def drained(self, now_s: float) -> list[Wish]:
        """All that was read from clients before a handover is committed."""
        if self.role is not Role.LEAVING or self._handed_over:
            return []
        self._handed_over = True
        self._deadline_s = now_s + HANDED_OVER_S
        return [HandOver(self._successor)]

    def tick(self, now_s: float) -> list[Wish]:
        """Time has passed. It is due every 50 ms, and first of all after any pause of the process."""
        if self.role in _SERVING:
            wishes = self._lease(now_s)
            if self.role is Role.LEAVING and now_s >= self._deadline_s:
                wishes += self._end(self._end_status, "handed-over") if self._handed_over else self.drained(now_s)
            return wishes
        if self.role is Role.PLACING and not self._reading and 0 < self._deadline_s <= now_s:
            self._deadline_s = 0.0
            return self._read()
        return self._consider(now_s)

    # A follower.

    def _read(self) -> list[Wish]:
        self._reading = True
        self._read_after = self.head.version if self.head is not None else 0
        return [ReadHead()]

    def _saw(self, now_s: float, head: Head) -> None:
        self.head = head
        self._silent_since_s = now_s

    def _consider(self, now_s: float) -> list[Wish]:
        """Read the head again if only that is missing for a claim."""
        return self._read() if not self._reading and self._may_claim(now_s) else []

    def _may_claim(self, now_s: float) -> bool:
        head = self.head
        if self.role is not Role.FOLLOWING or not self._able or head is None:
            return False
        if self.applied != head.index or self.journalled != head.index:
            return False
        if self._handover_at == head.index:
            return True
        if self._priority == 0:
            return False
        return now_s - self._silent_since_s >= self.patience_s + RANK_S * (self._rank(now_s) + self._ranks_later)

    def _rank(self, now_s: float) -> int:
        """Return the number of members that claim before this one. The silent leader is none of them."""
        leader = self.head.leader if self.head is not None else ""
        live = {name: peer for name, peer in self.live(now_s).items() if name != leader}
        return sum(
            (-peer.priority, name) < (-self._priority, self.name) for name, peer in live.items() if peer.priority
        )

    def _ranked(self, peers: Mapping[str, OtherMember]) -> list[str]:
        """Return the names of peers that may lead, the first in rank first."""
        return [name for _, name in sorted((-peer.priority, name) for name, peer in peers.items() if peer.priority)]

    def _follow_again(self, now_s: float) -> None:
        self.role = Role.FOLLOWING
        self._own = None
        self._handover_at = 0
        self._silent_since_s = now_s

    # A leader.

    def _lead(self, now_s: float) -> list[Wish]:
        """Lead as soon as the own `term` entry is applied."""
        own = self._own
        if own is None or self.applied < own.index or self.journalled < own.index:
            return []
        self.role = Role.LEADING
        return [Lead(own), *self._lease(now_s)]

    def _lease(self, now_s: float) -> list[Wish]:
        """Compare the age of the proof with the limits, and ask for a beat if one is due."""
        if self.role not in _SERVING:
            return []
        age_s = now_s - self.proof_s
        if 0 < self._cut_off_s <= now_s - self.shown_s:
            return self._end(RESTART, "cut-off")
        wishes: list[Wish] = []
        if (age_s >= self._lease_s) is not self.suspended:
            self.suspended = not self.suspended
            wishes.append(Suspend() if self.suspended else Resume())
        due = now_s - self._last_s >= self._lease_s / BEATS_PER_LEASE
        if due and self._began_s is None and not self._asked and not self._handed_over:
            self._asked = True
            wishes.append(Beat())
        return wishes

    def _lost(self, now_s: float, head: Head) -> list[Wish]:
        """Another member has replaced the head."""
        if self.role is Role.CLAIMING and self._own is None:
            self._follow_again(now_s)
            if self.head is None or head.version > self.head.version:
                self.head = head
            return []
        if self._own is None:
            return []
        if self._handed_over:
            return self._end(self._end_status, "handed-over")
        return self._end(RESTART, "superseded")

    def _end(self, status: int, code: str) -> list[Wish]:
        if self.role is Role.ENDED:
            return []
        self.role = Role.ENDED
        return [End(status, code)]
