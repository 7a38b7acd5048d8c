"""Topics, sessions and their subscriptions: what each is owed, and what it has been sent and not seen acknowledged.

Theory: a subscription is a glob plus what it is owed. `owed` is the set of topics whose newest change it has not been sent. `queue`
holds those of them that may be sent now, oldest-owed first. A topic that is un-acked (`held`) can become owed but not ready: its ACK makes
it so, at the tail. A newer change of an owed topic alters nothing here: that is conflation.

The *staleness* of a subscription is the age of the oldest change that it lacks. Each of the two lists of the queue has a bound. It is
never later than the time since when any of its topics may be lacked.

Invariants, for every subscription:
* `queue` holds each topic of `owed - held` exactly once, and no other;
* `queue` is the list `_front` backwards, followed by the list `_back`;
* `sent` lists the revisions of `unacked` in the order in which they were sent, and `held` has their topics;
* a topic is in `held` at most once, so at most one MESSAGE of a topic is un-acked;
* `held` has the topics in `waiting` too, which are owed and wait for the end of an interval, and not for an ACK;
* `_front_us` and `_back_us` are no later than the time since when any topic of `_front` and of `_back` is lacked, while there is one;
* `queued` is true exactly while the subscription stands in its connection's `ready_queue`.
"""

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, mypyc_attr

from maxam.broker.policy import Rights
from maxam.broker.refinement import SCANNED, Refinement
from maxam.broker.window import Stamp
from maxam.globs import Glob
from maxam.records import Change, Named

NOT_OWED: Final = -1
_UNTIDY_MAX: Final = 1000  # entries of a replica's queue that are owed no longer, beside as many as are owed
SCAN_READY_MAX: Final = 4000  # values ready at which a scan rests: a quick client takes some 2 ms for them

if TYPE_CHECKING:
    from maxam.broker.outbox import Outbox


# The freshness of a topic, unless it is above 0: the number of the contracts under which its deadline is watched.
UNWATCHED: Final = 0
OVERDUE: Final = -1  # its deadline has passed: its next change is reported


@final
@mypyc_attr(acyclic=True)
class Topic(Named):
    """The newest change of one destination, and the subscriptions that want the next.

    Attributes:
        destination: Its name, UTF-8.
        change: The newest committed change; a tombstone when that was a delete.
        routes: Subscriptions whose glob matches and whose principal may receive, as of `routed` and `epoch`, and some that
            were removed since. Never changed in place, so that topics may share one list.
        routed: Position in the match index up to which `routes` is complete.
        epoch: Of the broker's routing when `routes` was made.
        rule: Which of the registry's rules is for it, -1 if none is; valid for `registry` only.
        registry: The number of the registry that gave `rule`, 0 if none did.
        permitted: The number of rights that were found to allow SENDs to it, 0 for none. Rights cannot remember a million topics.
        updates: Changes of it that were applied, for its rate.
        freshness: UNWATCHED, OVERDUE, or the number above 0 of its contracts.
    """

    __slots__ = (
        "change",
        "epoch",
        "freshness",
        "permitted",
        "registry",
        "routed",
        "routes",
        "rule",
        "updates",
    )

    def __init__(self, destination: bytes, change: Change, routes: "list[Subscription]") -> None:
        super().__init__(destination)
        self.change = change
        self.routes = routes
        self.routed = 0
        self.epoch = -1
        self.registry = 0
        self.permitted = 0
        self.updates = 1
        # Four bytes each: with eight more a topic would take the next larger piece of memory, 16 bytes a topic.
        self.rule: i32 = -1
        self.freshness: i32 = UNWATCHED

    @property
    def name(self) -> str:
        """The destination as text."""
        return self.destination.decode()


class Life(IntEnum):
    """States of a subscription.

    PENDING -> UNMATCHED -> ROUTED, or PENDING -> WITHDRAWN -> REMOVED; each but these two -> REMOVED when it is removed.
    """

    PENDING = 0  # Its SUBSCRIBE was read and has not taken effect.
    UNMATCHED = 1  # Its SUBSCRIBE has taken effect, and no right of the principal can match its glob.
    ROUTED = 2  # Changes are routed to it: its glob is in the match index.
    WITHDRAWN = 3  # It was removed before its SUBSCRIBE took effect.
    REMOVED = 4  # It is gone for good, and little is left of it (see `forget`). Routes that still have it drop it.


# An attribute of a class of constants takes ten times as long.
PENDING: Final = Life.PENDING
UNMATCHED: Final = Life.UNMATCHED
ROUTED: Final = Life.ROUTED
WITHDRAWN: Final = Life.WITHDRAWN
REMOVED: Final = Life.REMOVED


@final
class Subscription:
    """One SUBSCRIBE, or a durable one that waits for its re-SUBSCRIBE.

    Attributes:
        id: Of the SUBSCRIBE, UTF-8.
        glob: Which topics it wants.
        durable: It outlives its connection.
        acknowledged: Ack mode `client` or `client-individual`.
        individual: An ACK covers its message alone.
        eager: It asked for all current values, or those after a position. So it also gets those that a later policy grants.
        connection: Where values go; None while detached or paused.
        checked: Rights that allow all that it owes, or None: under others they are asked for each value.
        life: Its state.
        unrecorded: Acknowledged positions that the journal does not hold yet (durable only).
        eager_scans: How often it has asked for all current values: an earlier scan has nothing to add then.
        conflated: Changes that replaced one that was still owed.
        held: Topics that are un-acked, each with the time since when it is owed again; NOT_OWED if it is not.
        refinement: The refinement that its newest SUBSCRIBE asked for, or None.
        waiting: Topics that are owed and wait for the end of an interval, by destination; None until one does.
        asked_us: When its SUBSCRIBE was read.
        scans: Scans of all topics for it, begun and not ended: it may lack what is not owed yet.
        unused_since_s: When the broker first found that no SUBSCRIBE is in force for it (durable only); negative if it has not found that.
    """

    __slots__ = (
        "_back",
        "_back_us",
        "_front",
        "_front_us",
        "_scan_us",
        "acknowledged",
        "asked_us",
        "checked",
        "conflated",
        "connection",
        "durable",
        "eager",
        "eager_scans",
        "glob",
        "held",
        "id",
        "individual",
        "life",
        "owed",
        "prefix",
        "queued",
        "refinement",
        "scans",
        "sent",
        "session",
        "unacked",
        "unrecorded",
        "unused_since_s",
        "variant",
        "waiting",
    )
    __deletable__ = ("sent", "session", "unacked", "unrecorded")

    def __init__(self, session: "Session", id_: bytes, glob: Glob, durable: bool) -> None:
        self.session = session
        self.id: Final = id_
        self.glob: Final = glob
        self.durable: Final = durable
        self.checked: Rights | None = session.rights
        self.acknowledged = False
        self.individual = False
        self.eager = False
        self.connection: Outbox | None = None
        self.life = PENDING
        self.prefix = b""  # of its MESSAGEs
        self.variant = 0  # which shared bytes of a value follow the prefix
        self.queued = False
        self.refinement: Refinement | None = None
        self.waiting: dict[bytes, Topic] | None = None
        self.owed: Final[set[Topic]] = set()
        self._front: list[Topic] = []
        self._back: list[Topic] = []
        self.held: Final[dict[Topic, int]] = {}
        self.sent: deque[int] = deque()
        self.unacked: dict[int, tuple[Topic, Stamp, int]] = {}  # with since when it lacks that
        self.unrecorded: dict[bytes, int] = {}
        self.eager_scans = 0
        self.conflated = 0
        self.asked_us = 0
        self.scans = 0
        self.unused_since_s = -1.0
        self._scan_us = 0  # when the first of its scans began
        self._front_us = 0
        self._back_us = 0

    @property
    def applied(self) -> bool:
        """Whether its SUBSCRIBE has taken effect: changes that are applied from now on are owed."""
        return self.life is not PENDING and self.life is not WITHDRAWN

    @property
    def removed(self) -> bool:
        """Whether it is gone for good."""
        return self.life is REMOVED or self.life is WITHDRAWN

    @property
    def backfilled(self) -> bool:
        """Whether it gets the values that a later policy grants. Without them, no position would be safe under its rights."""
        return self.durable or self.eager or (self.refinement is not None and self.refinement.markers)

    @property
    def ready(self) -> bool:
        """Whether something may be sent now."""
        return len(self._front) > 0 or len(self._back) > 0

    @property
    def ready_count(self) -> int:
        """How many topics may be sent now."""
        return len(self._front) + len(self._back)

    @property
    def kept(self) -> int:
        """How many entries it keeps for topics, those that are owed included."""
        return len(self.owed) + (0 if self.refinement is None else len(self.refinement))

    @property
    def sated(self) -> bool:
        """Whether its client has so much to read that scans for it may rest; never without a client."""
        return self.connection is not None and self.ready_count >= SCAN_READY_MAX

    @property
    def queue(self) -> list[Topic]:
        """Topics that may be sent now, in their order; a copy."""
        return self._front[::-1] + self._back

    def owe(self, topic: Topic) -> bool:
        """Owe the newest change of a topic.

        Returns:
            Whether this made the subscription ready that was not in a queue for it.
        """
        if self.refinement is not None:
            return self._owe_refined(topic, self.refinement)
        owed = self.owed
        before = len(owed)
        owed.add(topic)
        if len(owed) == before:
            self.conflated += 1
            return False
        since_us = topic.change.accepted_at_us
        if self.held and topic in self.held:
            self.held[topic] = since_us
            return False
        if not self._back or since_us < self._back_us:
            self._back_us = since_us
        self._back.append(topic)
        return not self.queued

    def _owe_refined(self, topic: Topic, refinement: Refinement) -> bool:
        """Do the same for a subscription with a refinement."""
        change = topic.change
        if not refinement.concerns(change):
            return False
        refinement.lacks(change)
        waiting = self.waiting
        if topic in self.owed:
            self.conflated += 1
            refinement.replaced(change.destination)
            if waiting is None or change.destination not in waiting or not refinement.is_urgent(change):
                return False
            del waiting[change.destination]
            self._to_back(topic, self.held.pop(topic))
            return not self.queued
        self.owed.add(topic)
        since_us = change.accepted_at_us
        if topic in self.held:
            self.held[topic] = since_us
            return False
        if refinement.waits(change):
            self._wait(topic, since_us)
            return False
        self._to_back(topic, since_us)
        return not self.queued

    def _wait(self, topic: Topic, since_us: int) -> None:
        if self.waiting is None:
            self.waiting = {}
        self.waiting[topic.destination] = topic
        self.held[topic] = since_us

    def put_back(self, topic: Topic) -> None:
        """Owe a topic that was just taken after the end of its interval."""
        self.owed.add(topic)
        self._wait(topic, self.taken_since_us())

    def end_waits(self, destinations: list[bytes]) -> None:
        """Make ready the topics that have waited for the end of their intervals."""
        if self.waiting is not None:
            for destination in destinations:
                topic = self.waiting.pop(destination, None)
                if topic is not None:
                    self._to_back(topic, self.held.pop(topic))

    def owe_present(self, topic: Topic, since_us: int) -> None:
        """Owe what a scan has found, which is lacked since the scan began, however old it is."""
        if topic in self.owed:
            return
        if self.refinement is not None:
            if not self.refinement.concerns(topic.change):
                return
            self.refinement.lacks(topic.change)
        self.owed.add(topic)
        if topic in self.held:
            self.held[topic] = since_us
        else:
            self._to_back(topic, since_us)

    def complete_initial(self) -> None:
        """Report to a client that asked for it that all topics of the initial state are owed, unless a scan may still find some."""
        refinement = self.refinement
        if refinement is not None and self.connection is not None and self.scans == 0:
            if refinement.initial_left == SCANNED:
                self.connection.begin_initial(self, refinement)
            if refinement.withdrawals:
                self.connection.notify(self)

    def begin_scan(self, since_us: int) -> None:
        """Record that a scan begins which goes on for some time."""
        self._scan_us = min(self._scan_us, since_us) if self.scans else since_us
        self.scans += 1

    def end_scan(self, since_us: int) -> None:
        """Record that a scan has ended that began then: topics that changed meanwhile may be lacked since that time."""
        self.scans -= 1
        self._lack_since(since_us)

    def take(self) -> Topic:
        """Take the next of what is ready: it is no longer owed."""
        if not self._front:
            self._turn_over()
        topic = self._front.pop()
        self.owed.remove(topic)
        return topic

    def taken_since_us(self) -> int:
        """Return since when the subscription lacked what was taken last, at the earliest."""
        return min(self._front_us, self._scan_us) if self.scans else self._front_us

    def next(self) -> Topic:
        """Return what `take` takes next; something must be ready."""
        return self._front[-1] if self._front else self._back[0]

    def place_of(self, topic: Topic, most: int) -> int:
        """Return how many topics that may be sent now come before one; -1 if it is not among the first `most`."""
        front = self._front[: -most - 1 : -1]
        if topic in front:
            return front.index(topic)
        back = self._back[: max(0, most - len(self._front))]
        return len(self._front) + back.index(topic) if topic in back else -1

    def take_alike(self, topics: list[Topic]) -> bool:
        """Take these topics, which stand in reverse order, if they are the next; else take nothing."""
        if not self._front:
            self._turn_over()
        count = len(topics)
        if self._front[-count:] != topics:
            return False
        del self._front[-count:]
        self.owed.difference_update(topics)
        return True

    def permits(self, topic: Topic, rights: Rights) -> bool:
        """Return True if rights allow a topic that was just taken."""
        if not self.owed:
            self.checked = rights  # whatever becomes owed from now on is checked then
        return rights.may_receive(topic.destination)

    def give_back(self, topic: Topic, since_us: int) -> None:
        """Owe a topic again, first of all, that is not un-acked, unless a newer change of it is owed already.

        Args:
            topic: It was taken, and did not arrive.
            since_us: Since when it is lacked.
        """
        if topic in self.owed:
            self._lack_since(since_us)
        else:
            self.checked = None  # it was sent under rights that may be others now
            self.owed.add(topic)
            self._to_front(topic, since_us)
            if self.refinement is not None:
                self.refinement.lost(topic.change)

    def acked(self, revision: int) -> tuple[Stamp, int]:
        """Take an ACK of a revision that is un-acked, and of all that were sent before it unless ACKs are individual.

        Returns:
            The stamp of that one, and how many it covers.
        """
        unacked = self.unacked
        sent = self.sent
        if self.individual and sent[0] != revision:
            sent.remove(revision)
            sent.appendleft(revision)
        stamp = unacked[revision][1]
        covered = 0
        acked = -1
        while acked != revision:
            acked = sent.popleft()
            topic = unacked.pop(acked)[0]
            covered += 1
            since_us = self.held.pop(topic)
            if self.durable:
                self.unrecorded[topic.destination] = acked
            if self.refinement is not None:
                # A policy that grants the topic again makes it owe the same change again.
                before = min(acked, topic.change.revision - 1)
                self.refinement.delivered(topic.destination, before, since_us != NOT_OWED)
                if since_us != NOT_OWED and self.refinement.waits(topic.change):
                    self._wait(topic, since_us)
                    continue
            if since_us != NOT_OWED:
                self._to_back(topic, since_us)
        return stamp, covered

    def release(self) -> int:
        """Take back all that is un-acked, owing it again first of all; return how many messages that were."""
        count = len(self.sent)
        if count:
            self.checked = None  # they were sent under rights that may be others now
        for revision in reversed(self.sent):
            topic, _, since_us = self.unacked[revision]
            self.owed.add(topic)
            self._to_front(topic, since_us)
        if self.waiting is not None:
            for topic in self.waiting.values():
                self._to_back(topic, self.held[topic])
            self.waiting = None
        self.refinement = None
        self.sent.clear()
        self.unacked.clear()
        self.held.clear()
        return count

    def restore(self, since_us: int) -> None:
        """Make ready what recovery found to be owed, oldest first, and lacked since then. Recovery has not checked rights."""
        self.checked = None
        self.conflated = 0
        self._front = sorted(self.owed, key=_revision_of, reverse=True)
        self._front_us = since_us
        self._back.clear()

    def tidy(self) -> None:
        """Make the queue of a subscription without client again, if much of it is owed no longer: in a replica it is only filled."""
        if self.connection is None and self.ready_count > 2 * len(self.owed) + _UNTIDY_MAX:
            since_us = self.owed_since_us()
            conflated = self.conflated
            self.restore(since_us)
            self.conflated = conflated

    def owed_since_us(self) -> int:
        """Return since when it lacks the oldest of what it is owed, or will be owed once a scan has found it.

        Returns:
            Microseconds since the epoch, on the clock of `accepted_at_us`; 0 if it is owed nothing. Never later than the truth, and earlier
            by no more than it takes to receive what is owed.
        """
        oldest_us = self._scan_us if self.scans else 0
        if self._front:
            oldest_us = earlier(oldest_us, self._front_us)
        if self._back:
            oldest_us = earlier(oldest_us, self._back_us)
        for topic, since_us in self.held.items():
            if since_us != NOT_OWED and (self.waiting is None or topic.destination not in self.waiting):
                oldest_us = earlier(oldest_us, since_us)
        return oldest_us

    def unacked_since_us(self) -> int:
        """Return since when it lacks the oldest of what it has not acknowledged; 0 if nothing is un-acked."""
        oldest_us = 0
        for _, _, since_us in self.unacked.values():
            oldest_us = earlier(oldest_us, since_us)
        return oldest_us

    def _lack_since(self, since_us: int) -> None:
        """Record that any topic that is owed may be lacked since then."""
        self._front_us = min(self._front_us, since_us)
        self._back_us = min(self._back_us, since_us)
        for topic, again_us in self.held.items():
            if again_us != NOT_OWED:
                self.held[topic] = min(again_us, since_us)

    def _to_front(self, topic: Topic, since_us: int) -> None:
        if not self._front or since_us < self._front_us:
            self._front_us = since_us
        self._front.append(topic)

    def _to_back(self, topic: Topic, since_us: int) -> None:
        if not self._back or since_us < self._back_us:
            self._back_us = since_us
        self._back.append(topic)

    def _turn_over(self) -> None:
        self._front = self._back
        self._front.reverse()
        self._front_us = self._back_us
        self._back = []

    def forget(self) -> None:
        """Let go of the session and of all that is owed and un-acked, for good; once removed, of what was owed since.

        Topics that have not changed since still route to what is left, which is why that is little.
        """
        self.owed.clear()
        self._front.clear()
        self._back.clear()
        self.held.clear()
        self.waiting = None
        self.refinement = None
        if not self.removed:
            self.life = WITHDRAWN if self.life is PENDING else REMOVED
            self.checked = None
            self.prefix = b""
            del self.session, self.sent, self.unacked, self.unrecorded


@final
class Session:
    """The state of one principal and client-id. It outlives its connection only with a durable subscription.

    Attributes:
        subscriptions: By id, as the client sees them: a SUBSCRIBE that was read is in, an UNSUBSCRIBE that was read is out.
        connection: The live one, or None.
        holder: Identifier of the front that has its connection; empty for none. Only where operations of fronts are ordered.
        granted: Its rights are those of a ticket or token. Nothing of it outlives its connection then.
        connected_at_s: When it got its connection; meaningless while it has none.
        detached_at_s: When it lost its connection; meaningless while it has one.
        takeovers_s: Times of the takeovers of the last minute.
    """

    __slots__ = (
        "client_id",
        "connected_at_s",
        "connection",
        "detached_at_s",
        "granted",
        "holder",
        "principal",
        "rights",
        "subscriptions",
        "takeovers_s",
    )

    def __init__(self, principal: str, client_id: str, rights: Rights) -> None:
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.rights = rights
        self.granted = False
        self.subscriptions: Final[dict[bytes, Subscription]] = {}
        self.connection: Outbox | None = None
        self.holder = b""
        self.connected_at_s = 0.0
        self.detached_at_s = 0.0
        self.takeovers_s: Final[deque[float]] = deque()

    @property
    def key(self) -> tuple[str, str]:
        """The key of the session table."""
        return (self.principal, self.client_id)

    @property
    def attached(self) -> bool:
        """Whether it has a connection, here or on a front."""
        return self.connection is not None or len(self.holder) > 0

    @property
    def durable(self) -> bool:
        """Whether it has anything that outlives its connection."""
        return any(subscription.durable for subscription in self.subscriptions.values())


def earlier(one_us: int, other_us: int) -> int:
    """Return the earlier of two times, of which 0 is none."""
    return min(one_us, other_us) if one_us and other_us else one_us or other_us


def _revision_of(topic: Topic) -> int:
    return topic.change.revision
