"""Sessions and their subscriptions: what each is owed, and what it has been sent and not seen acknowledged.

Theory: a subscription is a glob plus what it is owed. `owed` is the set of topics whose newest change it has not been sent;
`queue` holds those of them that may be sent now, oldest-owed first. A topic that is un-acked (`held`) can become owed but
not ready: its ACK makes it so, at the tail. A newer change of an owed topic alters nothing here: that is conflation.

Invariants, for every subscription:
* `queue` holds each topic of `owed - held` exactly once, and nothing else; it is kept as two lists, as their ends are cheap
  to reach: `_front` backwards, then `_back`;
* `sent` lists the revisions of `unacked` in the order in which they were sent; `held` is the set of their topics;
* a topic is in `held` at most once, so at most one MESSAGE of a topic is un-acked;
* `turning` is true exactly while the subscription stands in its connection's `turns`.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from maxam.broker.store import Topic
from maxam.broker.window import Stamp
from maxam.globs import Glob

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
    """

    __slots__ = (
        "_back",
        "_front",
        "acknowledged",
        "applied",
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
        "turning",
        "unacked",
        "variant",
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
        self.unacked: dict[int, tuple[Topic, Stamp]] = {}
        self.settled: dict[bytes, int] = {}
        self.eager_scans = 0
        self.conflated = 0

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

    def owe(self, topic: Topic) -> bool:
        """Owe the topic's newest change; return whether this made the subscription ready that was not in a queue for it."""
        owed = self.owed
        before = len(owed)
        owed.add(topic)
        if len(owed) == before:
            self.conflated += 1
            return False
        if self.held and topic in self.held:
            return False
        self._back.append(topic)
        return not self.turning

    def take(self) -> Topic:
        """Take the next of what is ready: it is owed no more."""
        if not self._front:
            self._front = self._back
            self._front.reverse()
            self._back = []
        topic = self._front.pop()
        self.owed.remove(topic)
        return topic

    def next(self) -> Topic:
        """Return what `take` takes next; something must be ready."""
        return self._front[-1] if self._front else self._back[0]

    def take_alike(self, topics: list[Topic]) -> bool:
        """Take these topics, which stand in reverse order, if they are the next; else take nothing."""
        if not self._front:
            self._front = self._back
            self._front.reverse()
            self._back = []
        count = len(topics)
        if self._front[-count:] != topics:
            return False
        del self._front[-count:]
        self.owed.difference_update(topics)
        return True

    def permits(self, topic: Topic, rights: "Rights") -> bool:
        """Tell whether rights allow a topic that was just taken."""
        if not self.owed:
            self.checked = rights  # whatever becomes owed from now on is checked then
        return rights.may_receive(topic.destination)

    def give_back(self, topic: Topic) -> None:
        """Owe a topic again, first of all, that is not un-acked."""
        self.checked = None  # it was sent under rights that may be others now
        self.owed.add(topic)
        self._front.append(topic)

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
            self.owed.add(self.unacked[revision][0])
            self._front.append(self.unacked[revision][0])
        self.sent.clear()
        self.unacked.clear()
        self.held.clear()
        return count

    def restore(self) -> None:
        """Make ready what recovery found to be owed, oldest first; it has not looked at rights."""
        self.checked = None
        self._front = sorted(self.owed, key=_revision_of, reverse=True)
        self._back.clear()

    def forget(self) -> None:
        """Let go of the session and of all that is owed and un-acked, for good; once removed, of what was owed since.

        Topics that have not changed since still route to what is left, which is why that is little.
        """
        self.owed.clear()
        self._front.clear()
        self._back.clear()
        self.held.clear()
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


def _revision_of(topic: Topic) -> int:
    return topic.change.revision
