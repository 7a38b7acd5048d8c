"""Sessions and their subscriptions: what each is owed, and what it has been sent and not seen acknowledged.

Theory: a subscription is a glob plus what it is owed. `owed` is the set of topics whose newest change it has not been sent;
`queue` holds those of them that may be sent now, oldest-owed first. A topic that is un-acked (`held`) can become owed but
not ready: its ACK makes it so, at the tail. A newer change of an owed topic alters nothing here: that is conflation.

Since when a subscription lacks a topic is its *staleness*, and is kept only where the topic's newest change does not tell it: where
it was owed before that change came (`since`). A subscriber that keeps up has nothing there. So that nothing grows with the
topics that a slow one is owed, `since` has SINCE_MAX of them; of what has no room only lower bounds are kept, one for each of the two lists.

Invariants, for every subscription:
* `queue` holds each topic of `owed - held` exactly once, and nothing else; it is kept as two lists, as their ends are cheap
  to reach: `_front` backwards, then `_back`;
* `sent` lists the revisions of `unacked` in the order in which they were sent; `held` is the set of their topics;
* a topic is in `held` at most once, so at most one MESSAGE of a topic is un-acked;
* `since` has topics of `owed` only; those of the queue that it has not are in order of what their changes tell, but for those that
  `_front_us` and `_back_us`, which are for one list each and count while that has any, are no later than;
* `turning` is true exactly while the subscription stands in its connection's `turns`.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from maxam.broker.store import Topic
from maxam.broker.window import Stamp
from maxam.globs import Glob

SINCE_MAX: Final = (
    1000  # topics of which one subscription keeps since when it lacks them; up to so many owed, staleness is exact
)
SCAN_READY_MAX: Final = 4000  # values ready at which a scan rests: a quick client takes some 2 ms for them

if TYPE_CHECKING:
    from maxam.broker.delivery import Connection
    from maxam.broker.policy import Rights


@final
class Subscription:
    """One SUBSCRIBE, or a durable one that waits for its re-SUBSCRIBE.

    Attributes:
        id: Of the SUBSCRIBE, UTF-8.
        glob: Which topics it wants.
        durable: It outlives its connection.
        acknowledged: Ack mode `client`.
        eager: It asked for all current values, so it also gets those that a later policy grants.
        connection: Where values go; None while detached or paused.
        checked: Rights that allow all that it owes, or None: under others they are asked for each value.
        removed: It is gone for good, and little is left of it (see `forget`); whoever still refers to it forgets it.
        applied: Its SUBSCRIBE has taken effect: changes applied from now on are owed.
        settled: Acknowledged positions that the journal does not hold yet (durable only).
        eager_scans: How often it has asked for all current values: a walk for an earlier reason has nothing to add then.
        conflated: Changes that replaced one that was still owed.
        since: Since when it lacks a topic that it is owed, where its change does not tell; microseconds since the epoch.
        asked_us: When its SUBSCRIBE was read.
        walks: Over all topics for it, begun and not ended: it may lack what is not owed yet.
        taken_us: Since when it lacked what was taken last; 0: its change tells.
    """

    __slots__ = (
        "_back",
        "_back_us",
        "_floor_us",
        "_front",
        "_front_us",
        "_untold",
        "_walking_us",
        "acknowledged",
        "applied",
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
        "owed",
        "prefix",
        "removed",
        "sent",
        "session",
        "settled",
        "since",
        "taken_us",
        "turning",
        "unacked",
        "variant",
        "walks",
    )
    __deletable__ = ("sent", "session", "settled", "unacked")

    def __init__(self, session: "Session", id_: bytes, glob: Glob, durable: bool) -> None:
        self.session = session
        self.id: Final = id_
        self.glob: Final = glob
        self.durable: Final = durable
        self.checked: Rights | None = session.rights
        self.acknowledged = False
        self.eager = False
        self.connection: Connection | None = None
        self.removed = False
        self.applied = False
        self.prefix = b""  # of its MESSAGEs
        self.variant = 0  # which shared bytes of a value follow the prefix
        self.turning = False
        self.owed: Final[set[Topic]] = set()
        self._front: list[Topic] = []
        self._back: list[Topic] = []
        self.held: Final[set[Topic]] = set()
        self.sent: deque[int] = deque()
        self.unacked: dict[int, tuple[Topic, Stamp, int]] = {}  # with since when it lacks that
        self.settled: dict[bytes, int] = {}
        self.eager_scans = 0
        self.conflated = 0
        self.since: Final[dict[Topic, int]] = {}
        self.asked_us = 0
        self.walks = 0
        self.taken_us = 0
        self._walking_us = 0  # when the first of them began
        self._floor_us = 0  # what `since` had no room for is lacked since then at the earliest, however old it is
        self._front_us = 0  # 0: none is needed
        self._back_us = 0
        self._untold = 0  # how often the lists will turn over until nothing waits any more that `since` had no room for

    @property
    def ready(self) -> bool:
        """Whether something may be sent now."""
        return len(self._front) > 0 or len(self._back) > 0

    @property
    def sated(self) -> bool:
        """Whether its client has so much to read that scans for it may rest; never while there is nobody to read."""
        return self.connection is not None and len(self._front) + len(self._back) >= SCAN_READY_MAX

    @property
    def queue(self) -> list[Topic]:
        """What may be sent now, in its order; a copy."""
        return self._front[::-1] + self._back

    def owe(self, topic: Topic, before_us: int) -> bool:
        """Owe the topic's newest change; `before_us` is when the one before it was accepted.

        Returns:
            Whether this made the subscription ready that was not in a queue for it.
        """
        owed = self.owed
        before = len(owed)
        owed.add(topic)
        if len(owed) == before:
            self.conflated += 1
            if topic not in self.since:
                self._lack(topic, max(before_us, self._floor_us))
            return False
        if self.held and topic in self.held:
            self.since[topic] = (
                topic.change.accepted_at_us
            )  # it joins the queue later than others that are lacked since then
            return False
        self._back.append(topic)
        return not self.turning

    def owe_present(self, topic: Topic, since_us: int) -> None:
        """Owe what a walk has found, which is lacked since the walk began, however old it is."""
        if topic in self.owed:
            return
        self.owe(topic, since_us)
        if topic in self.held:
            self.since[topic] = since_us
        else:
            self._lack(topic, since_us)
        self._back_us = _earlier(self._back_us, since_us)

    def lacked_before(self, topic: Topic, since_us: int) -> None:
        """Take note that a walk begun at `since_us` has come to a topic that changed meanwhile: what it held was lacked, if it held anything."""
        if topic in self.held:
            for revision, (sent, stamp, unacked_us) in self.unacked.items():
                if sent is topic and unacked_us > since_us:
                    self.unacked[revision] = (topic, stamp, since_us)
                    break
        if topic in self.owed and self._since_us(topic) > since_us:
            self._lack(topic, since_us)
        if self.connection is not None and self.connection.unwritten:
            self.connection.lacked_before(self, topic, since_us)

    def begin_to_owe(self, since_us: int) -> None:
        """Take note that all that is there is asked for: nothing that was not owed before is lacked since earlier, however old it is."""
        owed_us = self.owed_since_us()
        self._floor_us = min(owed_us, since_us) if owed_us else since_us

    def begin_walk(self, since_us: int) -> None:
        """Take note of a walk that goes on for some time."""
        if not self.walks:
            self._walking_us = since_us
        self.walks += 1

    def end_walk(self) -> None:
        """Take note that one has ended."""
        self.walks -= 1

    def take(self) -> Topic:
        """Take the next of what is ready: it is owed no more."""
        if not self._front:
            self._turn_over()
        topic = self._front.pop()
        self.owed.remove(topic)
        self.taken_us = self._had(topic) if self.since or self._untold else 0
        return topic

    def lacked_since_us(self, topic: Topic) -> int:
        """Return since when it lacked what was taken last."""
        return self.taken_us or topic.change.accepted_at_us

    def next(self) -> Topic:
        """Return what `take` takes next; something must be ready."""
        return self._front[-1] if self._front else self._back[0]

    def take_alike(self, topics: list[Topic]) -> bool:
        """Take these topics, which stand in reverse order, if they are the next; else take nothing."""
        if not self._front:
            self._turn_over()
        count = len(topics)
        if self._front[-count:] != topics:
            return False
        del self._front[-count:]
        self.owed.difference_update(topics)
        if self.since:
            for topic in topics:
                self.since.pop(topic, None)
        return True

    def permits(self, topic: Topic, rights: "Rights") -> bool:
        """Tell whether rights allow a topic that was just taken."""
        if not self.owed:
            self.checked = rights  # whatever becomes owed from now on is checked then
        return rights.may_receive(topic.destination)

    def give_back(self, topic: Topic, since_us: int) -> None:
        """Owe a topic again, first of all, that is not un-acked, unless a newer change of it is owed already.

        Args:
            topic: It was taken, and did not arrive.
            since_us: Since when it is lacked.
        """
        if topic not in self.owed:
            self.checked = None  # it was sent under rights that may be others now
            self.owed.add(topic)
            self._to_front(topic)
        self._lack(topic, since_us)

    def acked(self, revision: int) -> tuple[Stamp, int]:
        """Take an ACK of a revision that is un-acked, and of all that were sent before it.

        Returns:
            The stamp of that one, and how many it covers.
        """
        unacked = self.unacked
        sent = self.sent
        stamp = unacked[revision][1]
        covered = 0
        acked = -1
        while acked != revision:
            acked = sent.popleft()
            topic = unacked.pop(acked)[0]
            covered += 1
            self.held.remove(topic)
            if self.durable:
                self.settled[topic.destination] = acked
            if topic in self.owed:
                self._back.append(topic)
        return stamp, covered

    def release(self) -> int:
        """Take back all that is un-acked, owing it again first of all; return how many messages that were."""
        count = len(self.sent)
        if count:
            self.checked = None  # they were sent under rights that may be others now
        for revision in reversed(self.sent):
            topic, _, since_us = self.unacked[revision]
            self.owed.add(topic)
            self._to_front(topic)
            self._lack(topic, since_us)
        self.sent.clear()
        self.unacked.clear()
        self.held.clear()
        return count

    def restore(self) -> None:
        """Make ready what recovery found to be owed, oldest first; it has not looked at rights."""
        self.checked = None
        self._front = sorted(self.owed, key=_revision_of, reverse=True)
        self._back.clear()
        self._front_us = _earlier(self._front_us, self._back_us)
        self._back_us = 0

    def recover_ack(self, topic: Topic) -> None:
        """Owe a topic no more of whose acknowledgement recovery has read."""
        self.owed.discard(topic)
        self.since.pop(topic, None)

    def owed_since_us(self) -> int:
        """Return since when it lacks what it is owed, or may be owed once a walk has found it, for longest; 0: nothing is owed.

        Exact while no more than SINCE_MAX topics are owed, and were since its queue was last worked off. Of more it takes the oldest of what it
        knows, which is never later than the truth, and earlier by no more than its queue takes to be worked off.

        Returns:
            Microseconds since the epoch, on the clock of `accepted_at_us`.
        """
        oldest_us = self._walking_us if self.walks else 0
        if not self.owed:
            return oldest_us
        if len(self.owed) <= SINCE_MAX:
            for topic in self.owed:
                oldest_us = _earlier(oldest_us, self._since_us(topic))
            bounded = self._untold > 0
        else:
            for since_us in self.since.values():
                oldest_us = _earlier(oldest_us, since_us)
            if self._front:
                oldest_us = _earlier(oldest_us, self._since_us(self._front[-1]))
            if self._back:
                oldest_us = _earlier(oldest_us, self._since_us(self._back[0]))
            bounded = True
        if bounded and self._front:
            oldest_us = _earlier(oldest_us, self._front_us)
        if bounded and self._back:
            oldest_us = _earlier(oldest_us, self._back_us)
        return oldest_us

    def unacked_since_us(self) -> int:
        """Return since when it lacks what it was sent and has not acknowledged, the longest; 0: nothing is un-acked."""
        oldest_us = 0
        for _, _, since_us in self.unacked.values():
            oldest_us = _earlier(oldest_us, since_us)
        return oldest_us

    def _since_us(self, topic: Topic) -> int:
        return self.since.get(topic, 0) or max(topic.change.accepted_at_us, self._floor_us)

    def _lack(self, topic: Topic, since_us: int) -> None:
        """Keep since when it lacks a topic that it is owed, or else a bound that lasts until that was taken."""
        if len(self.since) < SINCE_MAX or topic in self.since:
            self.since[topic] = since_us
        else:
            self._untold = 2
            self._front_us = _earlier(self._front_us, since_us)
            self._back_us = _earlier(self._back_us, since_us)

    def _had(self, topic: Topic) -> int:
        """Forget since when it lacked a topic, and return that."""
        since_us = self.since.pop(topic, 0) or max(topic.change.accepted_at_us, self._floor_us)
        if self._untold:
            since_us = _earlier(_earlier(since_us, self._front_us), self._back_us)
        return since_us

    def _to_front(self, topic: Topic) -> None:
        if not self._front:
            self._front_us = 0
        self._front.append(topic)

    def _turn_over(self) -> None:
        self._front = self._back
        self._front.reverse()
        self._back = []
        self._front_us = self._back_us
        self._back_us = 0
        if self._untold:
            self._untold -= 1

    def forget(self) -> None:
        """Let go of the session and of all that is owed and un-acked, for good; once removed, of what was owed since.

        Topics that have not changed since still route to what is left, which is why that is little.
        """
        self.owed.clear()
        self._front.clear()
        self._back.clear()
        self.held.clear()
        self.since.clear()
        if not self.removed:
            self.removed = True
            self.checked = None
            self.prefix = b""
            del self.session, self.sent, self.unacked, self.settled


@final
class Session:
    """What (principal, client-id) names; outlives its connection only with a durable subscription.

    Attributes:
        subscriptions: By id, as the client sees them: a SUBSCRIBE that was read is in, an UNSUBSCRIBE that was read is out.
        connection: The live one, or None.
        detached_at_s: When it lost its connection; meaningless while it has one.
        takeovers_s: Times of the takeovers of the last minute.
    """

    __slots__ = ("client_id", "connection", "detached_at_s", "principal", "rights", "subscriptions", "takeovers_s")

    def __init__(self, principal: str, client_id: str, rights: "Rights") -> None:
        self.principal: Final = principal
        self.client_id: Final = client_id
        self.rights = rights
        self.subscriptions: Final[dict[bytes, Subscription]] = {}
        self.connection: Connection | None = None
        self.detached_at_s = 0.0
        self.takeovers_s: Final[deque[float]] = deque()

    @property
    def key(self) -> tuple[str, str]:
        """What it is found by."""
        return (self.principal, self.client_id)

    @property
    def durable(self) -> bool:
        """Whether it has anything that outlives its connection."""
        return any(subscription.durable for subscription in self.subscriptions.values())


def _earlier(one_us: int, other_us: int) -> int:
    """Return the earlier of two times, of which 0 is none."""
    return min(one_us, other_us) if one_us and other_us else one_us or other_us


def _revision_of(topic: Topic) -> int:
    return topic.change.revision
