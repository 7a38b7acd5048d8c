"""The broker: admits what clients ask, applies what was committed, and knows who is owed what.

Theory of operation. A frame is *admitted* (rights, destination, schema: a pure decision) and, when it changes something,
*appended*: it gets its place in the one order of operations and, for a change, its revision. `take` hands what was appended to
the journal as one batch; `commit` *applies* it once it is safe on disk. Nothing else alters topics or what durable
subscriptions owe, and recovery calls the same `apply` for every record it reads back.

A SUBSCRIBE that is not durable changes nothing on disk, but takes its place in the same order, as a `Barrier` that the
journal never sees: it takes effect between the changes before and behind it, so that an eager subscription can neither miss
a racing SEND nor see it twice. An UNSUBSCRIBE acts on delivery when it is read.

A SEND with a *condition* is compared, when it is admitted, with the newest change in that order, committed or not: with the topic's
value (`if-revision`), with what the topic keeps of its source (`source-revision`). If what decided is not committed yet, its RECEIPT
waits for that, and shares its fate.

Invariants:
* revisions of applied changes are gapless and only grow; `revision` is the newest applied, and nothing above it is visible;
* `done <= appended`; every operation is applied, or refused as a whole batch, in the order in which it was appended;
* a topic's `routes` are complete whenever a change is applied to it;
* no method awaits, reads a clock, or raises anything but ProtocolError for what a client did.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, final

from sortedcontainers import SortedDict

from maxam.avro.registry import Registry
from maxam.avro.rule import Rule
from maxam.broker.delivery import SUBSCRIPTION_REFUSED, Chunk, Compared, Connection
from maxam.broker.destinations import MatchIndex
from maxam.broker.marks import Marks, tells_marks
from maxam.broker.policy import Policy, Rights
from maxam.broker.session import Session, Subscription
from maxam.broker.store import Store, Topic
from maxam.broker.window import Window
from maxam.config import Limits
from maxam.content import pack
from maxam.errors import GlobError, ProtocolError
from maxam.globs import Glob, compile_glob, destination_problem
from maxam.metrics import Counters
from maxam.records import (
    REVISION_NONE,
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Headers,
    Identity,
    Judgement,
    OwedRecord,
    Record,
    Rejection,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
)
from maxam.stomp.encoder import message_prefix, message_shared
from maxam.stomp.events import Ack, Condition, Connect, Send, Subscribe, Unsubscribe

SCAN_TOPICS: Final = 1000  # topics that one slice of an eager scan looks at
_REMOVED_MIN: Final = 1000  # subscriptions that went before it is worth a walk over all topics to let go of them
_TOPICS_PER_REMOVED: Final = 64  # nor for fewer than one in so many topics
_ROUTES_PER_TOPIC: Final = 4  # subscriptions that cost as much to let go of as to look at a topic
# Shared bytes of MESSAGEs kept for the next subscriber. All who keep up ask within a batch or two, while a processor's cache
# still holds them.
_WIRE_CACHE_BYTES_MAX: Final = 4_194_304
_WIRE_SHARED_MIN: Final = 3  # subscriptions from which on keeping them pays
_CHUNKS_MAX: Final = 64  # of some 16 KiB
_POSITIONS_PER_RECORD: Final = 10_000  # so that no record grows with the number of topics
_NO_ROUTES: Final[list[Subscription]] = []

_CREATED: Final = ((b"result", b"created"),)
_RESUMED: Final = ((b"result", b"resumed"),)
_REPLACED: Final = ((b"result", b"replaced"),)
_PAUSED: Final = ((b"result", b"paused"),)
_REMOVED: Final = ((b"result", b"removed"),)
_IGNORED: Final = ((b"result", b"ignored"),)
_UNKNOWN_SUBSCRIPTION: Final = ((b"result", b"unknown-subscription"),)
_FILTERED: Final = ((b"filtered", b"true"),)
_ACCEPTED: Final = ((b"disposition", b"accepted"), (b"content-disposition", b"accepted"))
_SUPERSEDED: Final = (*_ACCEPTED, (b"result", b"superseded"))

INVALID: Final = b"rejected-invalid"
UNAUTHORISED: Final = b"rejected-unauthorised"
UNAVAILABLE: Final = b"rejected-unavailable"
_UNAUTHORISED: Final = Rejection("unauthorised", "the principal has no right to send to this destination")
_MEMORY_LOW: Final = Rejection("memory-low", "the broker has little memory left; try again later")
_SESSIONS_PER_TOMBSTONE: Final = 16  # to ask so many whether they need it takes no longer than to forget it


@final
class Barrier:
    """A SUBSCRIBE that takes effect in order but leaves nothing in the journal."""

    __slots__ = ("eager", "subscription")

    def __init__(self, subscription: Subscription, eager: bool) -> None:
        self.subscription: Final = subscription
        self.eager: Final = eager


Operation = Record | Barrier
TAKEOVER: Final = "session taken over by a newer connection"  # message of the ERROR to whom had it

OnRejected = Callable[
    [Identity, Send, bytes, Rejection, int], None
]  # sender, SEND, disposition, why, microseconds since the epoch
OnShadowed = Callable[
    [Identity, Send, Rule, Judgement | Rejection, int], None
]  # sender, SEND, its rule, what that said, microseconds since the epoch


@final
class Scan:
    """A walk over all topics for one subscription, in slices, that owes what matches and has not changed since it began.

    It owes what was allowed all the time: what a later policy takes and another gives back is owed by the walk that then begins.
    """

    __slots__ = ("before", "began_us", "cursor", "number", "owed", "revision", "since", "subscription")

    def __init__(
        self, subscription: Subscription, revision: int, before: Rights | None, began_us: int, coming_us: int
    ) -> None:
        self.subscription: Final = subscription
        self.revision: Final = revision  # newer changes reach the subscription by themselves
        self.before: Final = before  # rights until now: only what they did not grant is owed; None: everything is
        self.owed: Final = frozenset(subscription.owed)  # they come by themselves, perhaps before the scan gets there
        self.began_us: Final = began_us  # what it finds is lacked since then
        self.number: Final = subscription.eager_scans
        self.since: Final[list[Rights]] = [subscription.session.rights]  # all that were in force since it began
        self.cursor: bytes | None = None
        subscription.begin_to_owe(coming_us)

    @property
    def over(self) -> bool:
        """Whether nobody needs it any more: its subscription is gone, or has asked for everything since."""
        return self.subscription.removed or self.number != self.subscription.eager_scans

    def regrant(self, rights: Rights) -> None:
        """Take note of other rights."""
        for known in self.since:
            if rights.receives_all_of(known):
                return  # they withhold nothing that is not withheld already
        self.since.append(rights)

    def may_owe(self, name: bytes) -> bool:
        """Say whether a topic was allowed all the time, and not before."""
        for rights in self.since:
            if not rights.may_receive(name):
                return False
        return self.before is None or not self.before.may_receive(name)


@final
class Broker:
    """The whole state of the broker, without I/O.

    Attributes:
        head: Revision of the newest appended change.
        revision: Revision of the newest applied change.
        accepted_at_us: Of the newest appended change; never decreases.
        appended: How many operations were appended.
        done: How many of them were applied or refused.
        pending: Those not yet taken, oldest first.
        marks: What topics keep of the sources of their values.
        sessions: By (principal, client-id), in that order, so that whoever pages through them need not sort.
        woken: Connections whose writer is to be woken when `flush` is called.
        scanning: `scan` has something to do now.
        chunks: What was handed out since the last commit, by its first topic.
        memory_low: Nothing that needs more memory for longer than its connection is taken: set from outside.
        sampled: The newest batch committed, for whoever wants to know what is going on, once they have put an empty one here; None:
            none is kept.
        on_rejected: Told of every SEND that is answered, or would be, `rejected-invalid` or `rejected-unauthorised`; it must not call back.
        on_shadowed: Told of every SEND with a body that was judged by a rule with a candidate version, likewise.
    """

    def __init__(self, limits: Limits, policy: Policy, registry: Registry) -> None:
        self.limits: Final = limits
        self.policy = policy
        self.registry = registry
        self._registries = (
            1  # that there have been: topics remember a number, as one that rests would keep what was replaced
        )
        self.store: Final = Store()
        self.marks: Final = Marks(limits.source_retention_s)
        self.sessions: Final[SortedDict[tuple[str, str], Session]] = SortedDict()
        self.counters: Final = Counters()
        self.memory_low = False
        self.sampled: list[Operation] | None = None
        self.on_rejected: OnRejected | None = None
        self.on_shadowed: OnShadowed | None = None
        self.head = 0
        self.revision = 0
        self.accepted_at_us = 0
        self.appended = 0
        self.done = 0
        self.pending: list[Operation] = []
        self.woken: list[Connection] = []
        self._awaiting: dict[Connection, None] = {}  # whose receipts wait for what is in `pending`
        self._in_flight: deque[dict[Connection, None]] = deque()  # per batch taken: who awaits it
        self._taken: deque[list[Operation]] = deque()  # the same batches
        self._coming_of = 0  # how much was done when the next two were found
        self._looked_to = 0  # the oldest change that was not done was looked for up to here
        self._coming_us = 0  # and was accepted then; 0: there is none
        # Of what is appended and not done, for SENDs with a condition: the revision that a topic then has (0: no value) and what
        # it then keeps of a source, each with the position of the change that makes it so. Topics are looked up to `_indexed`.
        self._coming: dict[bytes, tuple[int, int]] = {}
        self._coming_marks: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._indexed = 0
        self._index: Final[MatchIndex[Subscription]] = MatchIndex()
        self._generation = 0  # of the policy in force
        self._position = 0  # of the index: what a topic's routes must be complete up to
        self._epoch = 0  # of index and policy: routes of another one are void
        self._scans: Final[deque[Scan]] = deque()
        self._removed = 0  # subscriptions, since the last walk that drops void routes began
        self._cleared = 0  # the epoch when it began
        self._clearing = False  # it is under way
        self._clearing_after: bytes | None = None  # where it is
        self.scanning = False
        self.chunks: Final[dict[Topic, Chunk]] = {}
        self._settling: dict[Subscription, None] = {}
        self._settle_at_s = -1.0
        self._detached: dict[Session, None] = {}  # oldest first
        self._sessions_of: dict[str, int] = {}
        self._encoded: Final[list[Change]] = []  # with `wire`
        self._encoded_bytes = 0

    # What clients ask. Each may raise ProtocolError, having changed nothing.

    def connect(
        self, event: Connect, identity: Identity, session_id: str, wake: Callable[[], None], now_s: float
    ) -> Connection:
        """Attach a connection to the session that it names, or to a new one.

        Args:
            event: The CONNECT.
            identity: Who the certificate says it is.
            session_id: Name of the session if the client gives none: 128 random bits.
            wake: Called when the connection's writer has something to do.
            now_s: Monotonic seconds.

        Raises:
            ProtocolError: Too many takeovers or sessions; nothing has changed.
        """
        principal = identity.principal
        client_id = event.client_id or session_id
        session = self.sessions.get((principal, client_id))
        if session is not None and session.connection is not None:
            self._take_over(session, session.connection, now_s)
        elif session is None:
            if self._sessions_of.get(principal, 0) >= self.limits.sessions_per_principal_max:
                raise ProtocolError(
                    "too many sessions",
                    f"the principal {principal} has {self.limits.sessions_per_principal_max} sessions already "
                    "(limit sessions_per_principal_max); end some, or resume one by its client-id",
                )
            session = self._open_session(principal, client_id)
        limit = self.limits.window
        window = Window(limit, False, now_s) if event.window is None else Window(min(event.window, limit), True, now_s)
        connection = Connection(self, identity, session, event.version, window, wake)
        session.connection = connection
        self._detached.pop(session, None)
        return connection

    def send(self, connection: Connection, event: Send, wall_us: int) -> None:
        """Admit a SEND, and append it if it is accepted."""
        topic = self.store.topics.get(event.destination)
        verdict = self._judge(connection, event, topic, wall_us)
        if type(verdict) is Rejection:
            self._reject(connection, event, verdict, wall_us)
            return
        deleted = not event.body or verdict.tombstone
        if self.memory_low and not (deleted and topic is not None):  # deletes are the way out
            self._reject(connection, event, _MEMORY_LOW, wall_us)
            return
        condition = event.condition
        if condition is not None and not self._holds(connection, event, condition, topic, deleted, wall_us):
            return
        if wall_us > self.accepted_at_us:
            self.accepted_at_us = wall_us
        content, body_at = pack(event.headers, b"" if deleted else event.body)
        change = Change(
            self.head + 1,
            self.accepted_at_us,
            event.destination if topic is None else topic.destination,  # held once, not again for its value
            deleted,
            connection.identity,
            verdict,
            content,
            body_at,
        )
        change.target = topic
        self.pending.append(change)
        self.head += (
            1  # not before: if memory ran out for a large body, the next change would leave a gap, and end the process
        )
        self.appended += 1
        connection.position = self.appended
        if condition is not None and condition.source is not None:
            self._coming_marks[event.destination, condition.source] = (condition.number, self.appended)
        if event.receipt is not None:
            if condition is None or condition.expected < 0:
                connection.promise(event.receipt, None)
            else:  # so that the client can go on from there
                headers = (*_ACCEPTED, (b"revision", b"%d" % self.head))
                connection.promise(event.receipt, Compared(headers, self.appended))

    def subscribe(self, connection: Connection, event: Subscribe, wall_us: int) -> None:
        """Start, resume or replace a subscription; `wall_us` is when its frame was read, microseconds since the epoch."""
        session = connection.session
        glob = self._compile(event.glob, event.receipt)
        old = session.subscriptions.get(event.subscription)
        if old is not None and old.connection is not None:
            raise ProtocolError(
                "duplicate subscription id",
                f"the subscription id {_shown(event.subscription)} is in use on this connection; UNSUBSCRIBE it first "
                "or choose another id",
                event.receipt,
            )
        if old is not None and not event.durable:
            raise ProtocolError(
                "subscription is durable",
                f"the id {_shown(event.subscription)} names a durable subscription of this session; resume it with "
                "durable:true, or remove it with UNSUBSCRIBE and durable:true",
                event.receipt,
            )
        if old is None and len(session.subscriptions) >= self.limits.subscriptions_per_session_max:
            raise ProtocolError(
                "too many subscriptions",
                f"the session has {len(session.subscriptions)} subscriptions "
                "(limit subscriptions_per_session_max); UNSUBSCRIBE some",
                event.receipt,
            )
        if self.memory_low and event.durable and (old is None or old.glob != glob):
            raise ProtocolError(
                "memory low",
                "the durable subscription would need memory, and there is little; try again later, or subscribe without durable",
                event.receipt,
            )
        if old is not None and old.glob == glob:
            subscription = old
            result = _RESUMED
        else:
            result = _CREATED if old is None else _REPLACED
            if old is not None:
                self._record_removal(connection, old)  # stands even if there is no room for its successor
                self._remove(old)
            subscription = Subscription(session, event.subscription, glob, event.durable)
            session.subscriptions[event.subscription] = subscription
        self._attach(subscription, connection, event, wall_us)
        if not event.durable:
            self._append(connection, Barrier(subscription, event.eager))
        elif subscription is not old or event.eager:
            if subscription.settled:
                self._record_settled(subscription)  # before what eager owes again, in the journal too
            record = SubscriptionRecord(
                self.accepted_at_us, session.principal, session.client_id, event.subscription, event.glob, event.eager
            )
            record.target = subscription
            self._append(connection, record)
        elif not subscription.applied:
            self._append(connection, Barrier(subscription, False))  # resumed before what made it is on the disk
        if event.eager and subscription.applied:
            connection.unconfirm(subscription)
            self._owe_current(subscription)  # at once, so that nothing it owes already comes twice
        if subscription.ready:
            self._turn(subscription)
        if event.receipt is not None:
            headers = result if event.durable else ()
            filtered = not connection.rights.can_receive_any(glob)
            connection.promise(event.receipt, headers + _FILTERED if filtered else headers)

    def unsubscribe(self, connection: Connection, event: Unsubscribe) -> None:
        """Remove or pause a subscription."""
        session = connection.session
        subscription = session.subscriptions.get(event.subscription)
        if subscription is None:
            headers = _UNKNOWN_SUBSCRIPTION
        elif subscription.durable and not event.durable:
            self._pause(subscription)
            headers = _PAUSED
        else:
            del session.subscriptions[event.subscription]
            if subscription.durable:
                self._record_removal(connection, subscription)
            self._remove(subscription)
            headers = _REMOVED
        if event.receipt is not None:
            connection.promise(event.receipt, headers)
        self._rouse(connection)

    def ack(self, connection: Connection, event: Ack, now_s: float) -> None:
        """Take an ACK: all MESSAGEs of the subscription up to that one, in the order in which they were sent."""
        subscription = connection.session.subscriptions.get(event.subscription)
        if subscription is None or event.revision not in subscription.unacked:
            self.counters.acks_ignored += 1
            if event.receipt is not None:
                connection.promise(event.receipt, _IGNORED)
            return
        self.counters.acks += 1
        stamp, covered = subscription.acked(event.revision)
        connection.in_flight -= covered
        connection.full_since_s = -1.0
        connection.window.acked(stamp, covered, now_s)
        if subscription.ready and not subscription.turning and subscription.connection is not None:
            connection.turn(subscription)
        if subscription.durable:
            self._settle_later(subscription, now_s)
            if event.receipt is not None:
                self._record_settled(subscription)
                connection.position = self.appended
        if event.receipt is not None:
            connection.promise(event.receipt, ())
        self._rouse(connection)

    def detach(self, connection: Connection, now_s: float) -> None:
        """Take note that a connection is gone: transient subscriptions end, durable ones owe again what is un-acked."""
        session = connection.session
        connection.quiet = True
        connection.lost()
        if session.connection is not connection:
            return  # taken over: its session has gone on
        self._leave(session, now_s)

    # From admitted to applied.

    def take(self) -> list[Operation]:
        """Hand over everything appended since the last take, as one batch, in order."""
        batch = self.pending
        self.pending = []
        for connection in self._awaiting:
            connection.waiting = False
        self._in_flight.append(self._awaiting)
        self._awaiting = {}
        self._taken.append(batch)
        return batch

    def commit(self, batch: list[Operation]) -> None:
        """Apply the oldest batch taken, which is durable now, and wake whoever it concerns."""
        self.chunks.clear()
        if self.sampled is not None:
            self.sampled = batch
        for operation in batch:
            if type(operation) is Change:
                self._apply_change(operation)
            elif type(operation) is not AcknowledgementRecord:
                # What was acknowledged left `owed` when it was sent; what is there now became owed after it.
                self._apply_other(operation)
        if self._coming_marks or self.marks:
            self._keep_marks(batch)
        self.done += len(batch)
        self._taken.popleft()
        if self._coming or self._coming_marks:
            self._coming = {key: told for key, told in self._coming.items() if told[1] > self.done}
            self._coming_marks = {key: told for key, told in self._coming_marks.items() if told[1] > self.done}
        for connection in self._in_flight.popleft():
            self._rouse(connection)
        self.flush()

    def refuse(self, batch: list[Operation]) -> None:
        """Undo the append of a batch for which the disk had no room, and of everything appended behind it.

        Its revisions are given back. SENDs are answered `rejected-unavailable`, a durable SUBSCRIBE fails its connection; what
        only frees room later (ACKs, UNSUBSCRIBEs, ends of sessions) and barriers stay pending, in order.
        """
        awaiting = self._in_flight.popleft()
        self._taken.popleft()
        kept: list[Operation] = []
        failed: set[int] = set()  # positions of durable SUBSCRIBEs
        moved: dict[int, int] = {}  # positions of what is kept, old and new
        for position, operation in enumerate([*batch, *self.pending], self.done + 1):
            if type(operation) is Change:
                self.counters.sends_unavailable += 1
                self.counters.reject("disk-full")
            elif type(operation) is SubscriptionRecord:
                failed.add(position)
                if isinstance(operation.target, Subscription):
                    self._refuse_subscription(operation.target)
            elif (
                type(operation) is Barrier
                and operation.subscription.durable
                and operation.subscription.removed
                and not operation.subscription.applied
            ):
                failed.add(position)  # it resumed what has failed
            else:
                kept.append(operation)
                moved[position] = self.appended + len(kept)
        self.pending = kept
        self.head = self.revision
        before, self.done = self.done, self.appended
        self.appended += len(kept)
        self._coming.clear()
        self._coming_marks.clear()
        self._indexed = self.appended  # nothing of a topic is kept
        headers = _rejected(UNAVAILABLE, Rejection("disk-full", "the journal has no room; try again later"))
        awaiting.update(self._awaiting)
        self._awaiting = {}
        for session in self.sessions.values():
            if session.connection is not None:  # receipts to come wait for what is kept too
                session.connection.position = moved.get(session.connection.position, session.connection.position)
        for connection in awaiting:
            connection.waiting = False
            connection.refuse(headers, before, moved, failed)
            self.await_receipts(connection)
        self.flush()

    def _refuse_subscription(self, subscription: Subscription) -> None:
        connection = subscription.connection
        if connection is not None:
            connection.expel(SUBSCRIPTION_REFUSED)
        if not subscription.applied and not subscription.removed:
            session = subscription.session
            del session.subscriptions[subscription.id]
            self._remove(subscription)
            if session.connection is None and not session.durable:
                self._close_session(session)

    def apply(self, record: Record) -> None:
        """Apply a record that is durable: the one place where durable state changes, here as in recovery."""
        if type(record) is Change:
            self.head = record.revision
            if tells_marks(record):
                restored = self.marks.restore(record)
                if restored is None:
                    self.revision = record.revision
                    return
                record = restored
            else:
                self.marks.keep(record)
            if record.deleted and not self.sessions and record.destination not in self.store.topics:
                self.revision = record.revision  # a snapshot's tombstone: somebody whom it names later is owed it
                self.store.add(record, _NO_ROUTES)
            else:
                self._apply_change(record)
        else:
            self._apply_other(record)
        if record.accepted_at_us > self.accepted_at_us:
            self.accepted_at_us = record.accepted_at_us

    def recovered(self, now_s: float, revision: int) -> None:
        """Make ready for clients after the last record of a recovery: all sessions count as detached from now on.

        Args:
            now_s: Monotonic seconds.
            revision: Of the newest stored change; a snapshot leaves out deletes that nobody needs, be they the newest.
        """
        self.head = self.revision = revision
        for session in self.sessions.values():
            session.detached_at_s = now_s
            self._detached[session] = None
            for subscription in session.subscriptions.values():
                subscription.restore()
        self.store.sort()

    def snapshot(self) -> Iterator[Record]:
        """Yield records that, applied to an empty broker, make one that owes and holds the same; changes in order of revision.

        The broker must not change meanwhile.
        """
        needed: set[Topic] = set()
        for subscription in self._durable_subscriptions():
            needed |= subscription.owed & self.store.tombstones.keys()
        topics = [t for t in self.store.topics.values() if not t.change.deleted or t in needed]
        topics.sort(key=_revision_of)
        changes = [topic.change for topic in topics]
        if self.marks:
            told = {change.revision for change in changes}
            changes = [self.marks.told(change) for change in changes]
            changes += self.marks.absentees(self.accepted_at_us, told)
            changes.sort(key=_revision_of_change)
        yield from changes
        for subscription in self._durable_subscriptions():
            yield from self._snapshot_of(subscription, topics)

    # Time.

    @property
    def resting(self) -> bool:
        """Whether a scan is under way that may go on when its subscriber has read: ask `scan` again soon."""
        return len(self._scans) > 0

    @property
    def next_due_s(self) -> float | None:
        """When `tick` has something to do, or None."""
        due_s = self._settle_at_s if self._settling else None
        if self._detached:
            expiry_s = next(iter(self._detached)).detached_at_s + self.limits.session_expiry_s
            return expiry_s if due_s is None else min(due_s, expiry_s)
        return due_s

    def tick(self, now_s: float) -> None:
        """Append what has waited long enough: acknowledgements without receipt, the end of expired sessions."""
        if self._settling and now_s >= self._settle_at_s:
            self.record_acknowledgements()
        while self._detached:
            session = next(iter(self._detached))
            if now_s < session.detached_at_s + self.limits.session_expiry_s:
                break
            self.counters.sessions_expired += 1
            self.end_session(session)
        if self.store.sweep_due():
            self._sweep()

    def record_acknowledgements(self) -> None:
        """Append every acknowledgement that the journal does not hold yet."""
        settling = self._settling
        self._settling = {}
        for subscription in settling:
            if subscription.settled:
                self._record_settled(subscription)

    def scan(self, topics: int = SCAN_TOPICS) -> bool:
        """Do a slice of the walks under way, in turns, looking at so many topics at most; return whether more is to do now.

        A scan rests while its subscriber has enough to read: what is not owed yet costs no memory, and is the newer for it.
        """
        if self._clearing:
            self._clear_routes(topics // 2)
            topics -= topics // 2
        scans = self._scans
        resting = 0
        while topics > 0 and resting < len(scans):
            scan = scans.popleft()
            if scan.subscription.sated:
                resting += 1
                scans.append(scan)
                continue
            resting = 0
            seen, ended = self._scan_slice(scan, topics)
            topics -= seen
            if ended:
                scan.subscription.end_walk()
            else:
                scans.append(scan)
        self.scanning = self._clearing or resting < len(scans)
        self.flush()
        return self.scanning

    # For the writers, the gateway and the admin listener.

    def await_receipts(self, connection: Connection) -> None:
        """Wake the connection when what is pending now is done, if a receipt of it waits for that."""
        receipts = connection.receipts
        if not receipts:
            return
        if receipts[0][0] <= self.done:
            self._rouse(connection)
        if receipts[-1][0] > self.done:
            if self._in_flight:  # it may wait for what is taken already, and nothing else may come
                self._in_flight[-1][connection] = None
            if not connection.waiting:
                connection.waiting = True
                self._awaiting[connection] = None

    def flush(self) -> None:
        """Wake the writers of all connections that became ready, once each."""
        woken = self.woken
        if woken:
            self.woken = []
            for connection in woken:
                connection.wake()

    def encode(self, topic: Topic, variant: int) -> bytes:
        """Return the shared bytes of a topic's MESSAGE, kept for the next subscriber while there is room."""
        change = topic.change
        shared = message_shared(
            variant >> 1, variant & 1 == 1, change.destination, change.revision, change.content, change.body_at
        )
        if len(topic.routes) >= _WIRE_SHARED_MIN:
            if self._encoded_bytes > _WIRE_CACHE_BYTES_MAX:
                for kept in self._encoded:
                    kept.wire = None
                self._encoded.clear()
                self._encoded_bytes = 0
            change.wire = (variant, shared)
            self._encoded.append(change)
            self._encoded_bytes += len(shared)
        return shared

    def keep_chunk(self, chunk: Chunk) -> None:
        """Keep what was handed out until the next commit."""
        if len(self.chunks) >= _CHUNKS_MAX:
            self.chunks.clear()
        self.chunks[chunk.topics[-1]] = chunk

    def settle(self, subscription: Subscription, destination: bytes, revision: int, now_s: float) -> None:
        """Note that a durable subscription in ack mode auto was written this change."""
        subscription.settled[destination] = revision
        self._settle_later(subscription, now_s)

    def end_session(self, session: Session) -> None:
        """End a session and all that it owes; its connection, if any, is expelled."""
        if session.connection is not None:
            session.connection.expel(ProtocolError("session dropped", "an operator ended this session"))
            session.connection = None
        durable = session.durable
        for subscription in list(session.subscriptions.values()):
            self._remove(subscription)
        session.subscriptions.clear()
        self._close_session(session)
        if durable:
            record = SessionEndRecord(self.accepted_at_us, session.principal, session.client_id)
            record.target = session
            self.pending.append(record)
            self.appended += 1

    def coming_values(self) -> Iterator[bytes]:
        """Iterate over the destinations of values that are accepted and not yet applied."""
        for batch in (*self._taken, self.pending):
            for operation in batch:
                if type(operation) is Change and not operation.deleted:
                    yield operation.destination

    def rule_of(self, topic: Topic) -> int:
        """Return which of the registry's rules is for a topic, -1 if none is; the topic remembers it."""
        if topic.registry != self._registries:
            rule = self.registry.rule_for(topic.name)
            topic.rule = -1 if rule is None else self.registry.rules.index(rule)
            topic.registry = self._registries
        return topic.rule

    def replace_registry(self, registry: Registry) -> None:
        """Judge every SEND from now on by another registry."""
        self.registry = registry
        self._registries += 1

    def replace_policy(self, policy: Policy, wall_us: int = 0) -> None:
        """Put another policy in force at once, for sends and deliveries; what it grants anew is owed in slices.

        Args:
            policy: The new one.
            wall_us: Microseconds since the epoch: what is granted is lacked since then; 0: since the newest change.
        """
        self.policy = policy
        began_us = max(wall_us, self.accepted_at_us)
        coming_us = self._coming_since_us(began_us)
        for scan in self._scans:
            if not scan.over:
                scan.regrant(policy.rights(scan.subscription.session.principal))
        for session in self.sessions.values():
            before = session.rights
            session.rights = policy.rights(session.principal)
            grows = not before.receives_all_of(session.rights)  # else there is nothing to look for in all topics
            if session.connection is not None:
                session.connection.rights = session.rights
            for subscription in session.subscriptions.values():
                # What it owes was found under rights that may come back, with what others allowed owed meanwhile.
                subscription.checked = None if subscription.owed else session.rights
                if grows and subscription.applied and (subscription.durable or subscription.eager):
                    self._begin(Scan(subscription, self.revision, before, began_us, coming_us))
        self._generation += 1  # every topic's routes are made anew, under the new rights
        self._note_index()
        self._clear_from_start()

    # Admission.

    def _judge(self, connection: Connection, event: Send, topic: Topic | None, wall_us: int) -> Judgement | Rejection:
        """Decide in this order: is the destination well-formed, may the principal send there, is the body valid."""
        destination = event.destination
        if topic is None:
            problem = destination_problem(destination, self.limits.destination_bytes_max)
            if problem is not None:
                return Rejection("invalid-destination", problem)
        rights = connection.rights
        if topic is None or topic.permitted != rights.number:
            if not rights.may_send(destination):
                return _UNAUTHORISED
            if topic is not None:
                topic.permitted = rights.number
        if topic is not None and topic.registry == self._registries:
            rule = self.registry.rules[topic.rule] if topic.rule >= 0 else None
        elif topic is not None:
            at = self.rule_of(topic)
            rule = self.registry.rules[at] if at >= 0 else None
        else:
            rule = self.registry.rule_for(destination.decode())
            if event.body and self._full():
                return self._memory_low()
        if not event.body:
            return UNJUDGED if rule is None else rule.deletion
        if rule is None:
            return Rejection("no-rule", "no rule of the schema registry covers this destination")
        verdict = rule.judge(destination, event.headers, event.body)
        if rule.shadow is not None and self.on_shadowed is not None:
            self.on_shadowed(connection.identity, event, rule, verdict, wall_us)
        return verdict

    def _holds(
        self,
        connection: Connection,
        event: Send,
        condition: Condition,
        topic: Topic | None,
        deleted: bool,
        wall_us: int,
    ) -> bool:
        """Say whether a SEND that was found valid may take effect, and answer it if not; its source is compared first."""
        if condition.problem:
            self._reject(connection, event, Rejection("bad-condition", condition.problem), wall_us)
            return False
        destination = event.destination
        source = condition.source
        if (
            source is not None
        ):  # first: a retry of what has succeeded is to hear that, not that it is in conflict with itself
            number, position = self._coming_marks.get((destination, source), (-1, 0))
            if number < 0:
                number = self.marks.number(destination, source, max(wall_us, self.accepted_at_us))
            if number >= condition.number:
                self.counters.sends_superseded += 1
                if event.receipt is not None:
                    self._promise_compared(connection, event.receipt, _SUPERSEDED, position)
                return False
        if condition.expected >= 0:
            revision, position = self._newest(destination, topic)
            if revision != condition.expected:
                reason = "the topic has changed"
                if connection.rights.may_receive(destination):  # else it is not theirs to know
                    reason = f"the topic has revision {revision}" if revision else "the topic has no value"
                rejection = Rejection("conflict", f"{reason}; if-revision is {condition.expected}")
                self._reject(connection, event, rejection, wall_us, position)
                return False
        if (
            source is not None
            and deleted
            and (topic is None or topic.change.deleted)
            and not self.marks.holds(destination)
            and self._full()
        ):
            self._reject(connection, event, self._memory_low(), wall_us)
            return False
        return True

    def _newest(self, destination: bytes, topic: Topic | None) -> tuple[int, int]:
        """Return the revision of a topic's newest value, 0 for none, and the position of that change, 0 if it is committed."""
        if self._indexed < self.appended:
            self._index_coming()
        coming = self._coming.get(destination)
        if coming is not None:
            return coming
        return (REVISION_NONE if topic is None or topic.change.deleted else topic.change.revision, 0)

    def newest(self, destination: bytes) -> int:
        """Return the revision of a topic's newest value, committed or only appended; 0 for none."""
        return self._newest(destination, self.store.topics.get(destination))[0]

    def _index_coming(self) -> None:
        """Look up the topics of what was appended since the last SEND that asked: the others pay nothing for it."""
        position = self.done
        indexed = max(self._indexed, position)
        for batch in (*self._taken, self.pending):
            if position + len(batch) > indexed:
                for at, operation in enumerate(batch, position + 1):
                    if type(operation) is Change and at > indexed:
                        revision = REVISION_NONE if operation.deleted else operation.revision
                        self._coming[operation.destination] = (revision, at)
            position += len(batch)
        self._indexed = self.appended

    def _promise_compared(self, connection: Connection, receipt_id: bytes, headers: Headers, position: int) -> None:
        """Promise an answer that holds only if the operation at a position is done."""
        if position > self.done:
            connection.position = max(connection.position, position)
            connection.promise(receipt_id, Compared(headers, position))
        else:
            connection.promise(receipt_id, headers)

    def _full(self) -> bool:
        """Say whether no topic more may be held."""
        if self.store.live + self.marks.absent < self.limits.topics_max:
            return False
        self.marks.forget(self.accepted_at_us)
        return self.store.live + self.marks.absent >= self.limits.topics_max

    def _memory_low(self) -> Rejection:
        held = self.store.live + self.marks.absent
        return Rejection("memory-low", f"the broker holds {held} topics (limit topics_max)")

    def _reject(
        self, connection: Connection, event: Send, rejection: Rejection, wall_us: int, position: int = 0
    ) -> None:
        """Answer a SEND; `position` is that of the operation it was compared with."""
        if rejection is _UNAUTHORISED:
            disposition = UNAUTHORISED
            self.counters.sends_unauthorised += 1
        elif rejection.result == "memory-low":
            disposition = UNAVAILABLE
            self.counters.sends_unavailable += 1
        else:
            disposition = INVALID
            self.counters.sends_invalid += 1
        self.counters.reject(rejection.result)
        if self.on_rejected is not None and disposition is not UNAVAILABLE:
            self.on_rejected(connection.identity, event, disposition, rejection, wall_us)
        if event.receipt is not None:
            self._promise_compared(connection, event.receipt, _rejected(disposition, rejection), position)

    def _compile(self, text: bytes, receipt: bytes | None) -> Glob:
        try:
            return compile_glob(text.decode(), self.limits)
        except GlobError as error:
            raise ProtocolError("bad destination", f"the glob {_shown(text)}: {error}", receipt) from error

    def _append(self, connection: Connection, operation: Operation) -> None:
        self.pending.append(operation)
        self.appended += 1
        connection.position = self.appended

    # Application.

    def _apply_change(self, change: Change) -> None:
        self.revision = change.revision
        self.counters.changes += 1
        # Among a million topics one that was looked up when its SEND came has left the processor's cache again by now.
        target = change.target
        change.target = None
        topic = target if type(target) is Topic else None
        if topic is None or topic.change.deleted:  # it is new, or the sweep may have forgotten it since
            topic = self.store.topics.get(change.destination)
        if topic is None:
            if change.deleted:
                return
            topic = self.store.add(change, _NO_ROUTES)
            before_us = change.accepted_at_us
        elif change.deleted and topic.change.deleted:
            return
        else:
            before_us = topic.change.accepted_at_us
            self.store.put(topic, change)
        if topic.routed != self._position or topic.epoch != self._epoch:
            self._route(topic)
        removed = False
        for subscription in topic.routes:
            if subscription.owe(topic, before_us):
                self._turn(subscription)
                if subscription.removed:
                    removed = True
                    subscription.forget()
        if removed:
            topic.routes = [s for s in topic.routes if not s.removed] or _NO_ROUTES

    def _keep_marks(self, batch: list[Operation]) -> None:
        for operation in batch:
            if type(operation) is Change:
                self.marks.keep(operation)

    def _apply_other(self, operation: Operation) -> None:
        if type(operation) is Barrier:
            self._activate(operation.subscription, operation.eager)
        elif type(operation) is AcknowledgementRecord:
            self._apply_acknowledgement(operation)
        elif type(operation) is SubscriptionRecord:
            self._apply_subscription(operation)
        elif type(operation) is UnsubscriptionRecord:
            self._apply_unsubscription(operation)
        elif type(operation) is OwedRecord:
            self._apply_owed(operation)
        elif type(operation) is SessionEndRecord:
            self._apply_session_end(operation)

    def _apply_subscription(self, record: SubscriptionRecord) -> None:
        subscription = record.target
        if isinstance(subscription, Subscription):
            self._activate(subscription, record.eager)
            return
        session = self.sessions.get((record.principal, record.client_id))
        if session is None:
            session = self._open_session(record.principal, record.client_id)
        old = session.subscriptions.get(record.subscription)
        if old is not None and old.glob.text.encode() == record.glob:
            subscription = old
        else:
            if old is not None:
                self._remove(old)
            subscription = Subscription(session, record.subscription, self._stored_glob(record.glob), True)
            session.subscriptions[record.subscription] = subscription
        self._activate(subscription, False)
        if record.eager or record.low_water is not None:
            # Recovery: nobody waits, so the whole scan is done here; tombstones count only above a low water.
            low_water = record.low_water
            if low_water is None:
                subscription.begin_to_owe(record.accepted_at_us)
            for name in self.store.names_after(subscription.glob.prefix.encode(), None):
                topic = self.store.topics[name]
                wanted = not topic.change.deleted if low_water is None else topic.change.revision > low_water
                if not wanted or not subscription.glob.matches(name.decode()):
                    continue
                if low_water is None:
                    subscription.owe_present(topic, record.accepted_at_us)
                else:
                    subscription.owed.add(topic)

    def _apply_unsubscription(self, record: UnsubscriptionRecord) -> None:
        if record.target is not None:
            return  # it left when the frame was read; the record is for the journal
        session = self.sessions.get((record.principal, record.client_id))
        subscription = session.subscriptions.pop(record.subscription, None) if session is not None else None
        if session is not None and subscription is not None:
            self._remove(subscription)
            if not session.durable:
                self._close_session(session)

    def _apply_acknowledgement(self, record: AcknowledgementRecord) -> None:
        subscription = self._find(record.principal, record.client_id, record.subscription)
        if subscription is None:
            return
        for destination, revision in record.positions:
            topic = self.store.topics.get(destination)
            if topic is not None and topic.change.revision <= revision:
                subscription.recover_ack(topic)

    def _apply_owed(self, record: OwedRecord) -> None:
        subscription = self._find(record.principal, record.client_id, record.subscription)
        if subscription is None:
            return
        for destination, _ in record.positions:
            topic = self.store.topics.get(destination)
            if topic is not None:
                subscription.owed.add(topic)

    def _apply_session_end(self, record: SessionEndRecord) -> None:
        session = self.sessions.get((record.principal, record.client_id))
        if session is None or record.target is not None:
            return
        for subscription in list(session.subscriptions.values()):
            self._remove(subscription)
        session.subscriptions.clear()
        self._close_session(session)

    # Pieces.

    def _open_session(self, principal: str, client_id: str) -> Session:
        session = Session(principal, client_id, self.policy.rights(principal))
        self.sessions[session.key] = session
        self._sessions_of[principal] = self._sessions_of.get(principal, 0) + 1
        return session

    def _close_session(self, session: Session) -> None:
        del self.sessions[session.key]
        self._detached.pop(session, None)
        count = self._sessions_of[session.principal] - 1
        if count:
            self._sessions_of[session.principal] = count
        else:
            del self._sessions_of[session.principal]

    def _take_over(self, session: Session, old: Connection, now_s: float) -> None:
        takeovers_s = session.takeovers_s
        while takeovers_s and takeovers_s[0] <= now_s - 60:
            takeovers_s.popleft()
        if len(takeovers_s) >= self.limits.takeovers_per_minute_max:
            raise ProtocolError(
                "too many takeovers",
                f"the session {session.client_id} was taken over {len(takeovers_s)} times within a minute "
                "(limit takeovers_per_minute_max); let one connection keep it, or use a client-id of your own",
            )
        takeovers_s.append(now_s)
        self.counters.takeovers += 1
        old.expel(
            ProtocolError(
                TAKEOVER,
                f"another connection of {session.principal} has connected with the client-id {session.client_id}, and the "
                "newest has the session; connect again only to take it back, or with a client-id of your own",
            )
        )
        old.lost()
        self._release_all(session)

    def _leave(self, session: Session, now_s: float) -> None:
        session.connection = None
        self._release_all(session)
        if session.durable:
            session.detached_at_s = now_s
            self._detached[session] = None
        else:
            self._close_session(session)

    def _release_all(self, session: Session) -> None:
        for subscription in list(session.subscriptions.values()):
            if subscription.durable:
                self._pause(subscription)
            else:
                del session.subscriptions[subscription.id]
                self._remove(subscription)

    def _attach(self, subscription: Subscription, connection: Connection, event: Subscribe, wall_us: int) -> None:
        if subscription.applied or not subscription.asked_us:  # until it is applied, all wait for the first one
            subscription.asked_us = max(wall_us, self.accepted_at_us)
        subscription.connection = connection
        subscription.acknowledged = event.acknowledged
        # Until it is applied, what any of its SUBSCRIBEs asked for is still to be done.
        subscription.eager = event.eager or (subscription.eager and not subscription.applied)
        subscription.variant = connection.version * 2 + (1 if event.acknowledged else 0)
        subscription.prefix = message_prefix(connection.version, subscription.id, event.acknowledged)

    def _pause(self, subscription: Subscription) -> None:
        connection = subscription.connection
        if connection is not None:
            connection.in_flight -= subscription.release()
            connection.leave(subscription)
            subscription.connection = None

    def _remove(self, subscription: Subscription) -> None:
        self._pause(subscription)
        self.counters.conflated += subscription.conflated
        subscription.conflated = 0
        subscription.forget()
        self._settling.pop(subscription, None)
        if subscription.applied:
            self._index.discard(subscription)
            self._note_index()
            self._removed += 1
            if not self._clearing:
                self._clear_if_due()

    def _activate(self, subscription: Subscription, eager: bool) -> None:
        if subscription.applied:
            return  # a resumed one was applied before
        subscription.applied = True
        if subscription.removed:
            return  # but it was stored: whatever resumed it meanwhile has not failed
        self._index.add(subscription.glob, subscription)
        self._note_index()
        if eager or subscription.eager:  # the latter if a resumption asked for it before it was applied
            self._owe_current(subscription)

    def _owe_current(self, subscription: Subscription) -> None:
        subscription.eager_scans += 1
        began_us = subscription.asked_us
        scan = Scan(subscription, self.revision, None, began_us, self._coming_since_us(began_us))
        # A store that one slice covers is scanned on the spot, so that the first values leave with the receipt.
        if len(self.store.topics) > SCAN_TOPICS or not self._scan_slice(scan, SCAN_TOPICS)[1]:
            self._begin(scan)

    def _coming_since_us(self, now_us: int) -> int:
        """Return when the oldest change was accepted that may be applied from now on, or one that was just applied.

        What was looked at is not looked at again, as each of very many SUBSCRIBEs asks.
        """
        if self._coming_of != self.done:
            self._coming_of = self._looked_to = self.done
            self._coming_us = 0
        if not self._coming_us and self._looked_to < self.appended:
            new = self.appended - self._looked_to
            self._looked_to = self.appended
            pending = self.pending
            for batch in (*self._taken, pending) if new > len(pending) else (pending[-new:],):
                for operation in batch:
                    if type(operation) is Change:
                        self._coming_us = operation.accepted_at_us
                        return min(now_us, self._coming_us)
        return min(now_us, self._coming_us) if self._coming_us else now_us

    def _begin(self, scan: Scan) -> None:
        scan.subscription.begin_walk(scan.began_us)
        self._scans.append(scan)
        self.scanning = True

    def _record_removal(self, connection: Connection, subscription: Subscription) -> None:
        session = subscription.session
        record = UnsubscriptionRecord(self.accepted_at_us, session.principal, session.client_id, subscription.id)
        record.target = subscription
        self._append(connection, record)

    def _note_index(self) -> None:
        self._position = self._index.position
        self._epoch = (self._generation << 32) + self._index.epoch

    def _clear_if_due(self) -> None:
        """Begin to drop the routes that are void, if the subscriptions that they may hold on to are enough to be worth it.

        Those that are not void hold on to no more than the index, which gives a new epoch when it has that many discarded ones.
        """
        worth = max(_REMOVED_MIN, len(self.store.topics) // _TOPICS_PER_REMOVED)
        if self._removed >= worth and self._cleared != self._epoch:
            self._clear_from_start()

    def _clear_from_start(self) -> None:
        self._removed = 0
        self._cleared = self._epoch
        self._clearing = self.scanning = True
        self._clearing_after = None

    def _clear_routes(self, topics: int) -> None:
        """Do a slice of the walk that drops void routes: of topics that have not changed since they became void."""
        for name in self.store.names_after(b"", self._clearing_after):
            topic = self.store.topics[name]
            topics -= 1
            if topic.epoch != self._epoch:
                topics -= len(topic.routes) // _ROUTES_PER_TOPIC
                topic.routes = _NO_ROUTES
            self._clearing_after = name
            if topics <= 0:
                return
        self._clearing = False
        self._clear_if_due()

    def _turn(self, subscription: Subscription) -> None:
        connection = subscription.connection
        if connection is not None and not subscription.turning:
            connection.turn(subscription)
            if not connection.awake:
                connection.awake = True
                self.woken.append(connection)

    def _rouse(self, connection: Connection) -> None:
        if not connection.awake and (connection.turns or connection.receipts):
            connection.awake = True
            self.woken.append(connection)

    def _route(self, topic: Topic) -> None:
        current = topic.epoch == self._epoch
        if not self._index:  # so is it for all topics of a snapshot, as its subscriptions come behind them
            topic.routes = _NO_ROUTES
            topic.epoch = self._epoch
            topic.routed = self._position
            return
        found = self._index.matches(topic.name, topic.routed if current else 0)
        routes = [s for s in found if s.session.rights.may_receive(topic.destination)]
        if not current:
            topic.routes = routes or _NO_ROUTES
        elif routes:
            topic.routes = topic.routes + routes
        topic.epoch = self._epoch
        topic.routed = self._position

    def _scan_slice(self, scan: Scan, topics: int) -> tuple[int, bool]:
        subscription = scan.subscription
        seen = 0
        if scan.over:
            return 0, True
        glob = subscription.glob
        for name in self.store.names_after(glob.prefix.encode(), scan.cursor):
            if seen >= topics:
                break
            seen += 1
            scan.cursor = name
            topic = self.store.topics[name]
            change = topic.change
            if change.revision > scan.revision and topic not in scan.owed:
                subscription.lacked_before(topic, scan.began_us)
            if (
                change.deleted
                or change.revision > scan.revision
                or topic in scan.owed
                or not glob.matches(name.decode())
                or not scan.may_owe(name)
            ):
                continue
            subscription.owe_present(topic, scan.began_us)
        else:
            seen = max(seen, 1)
            if subscription.ready:
                self._turn(subscription)
            return seen, True
        if subscription.ready:
            self._turn(subscription)
        return seen, False

    def _settle_later(self, subscription: Subscription, now_s: float) -> None:
        if not self._settling:
            self._settle_at_s = now_s + self.limits.acknowledgement_delay_s
        self._settling[subscription] = None

    def _record_settled(self, subscription: Subscription) -> None:
        session = subscription.session
        self.pending.append(
            AcknowledgementRecord(
                self.accepted_at_us,
                session.principal,
                session.client_id,
                subscription.id,
                tuple(subscription.settled.items()),
            )
        )
        self.appended += 1
        subscription.settled.clear()

    def _sweep(self) -> None:
        looked_at = self.store.to_sweep(len(self.sessions) // _SESSIONS_PER_TOMBSTONE)
        needed: set[Topic] = set()
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.owed or subscription.held:
                    needed |= subscription.owed & looked_at
                    needed |= subscription.held & looked_at
            if session.connection is not None:
                needed.update([one[1] for one in session.connection.unwritten])
        self.store.sweep(looked_at, needed)

    def _find(self, principal: str, client_id: str, id_: bytes) -> Subscription | None:
        session = self.sessions.get((principal, client_id))
        return session.subscriptions.get(id_) if session is not None else None

    def _stored_glob(self, text: bytes) -> Glob:
        # Limits may have been lowered since it was accepted; what was promised to a durable subscription stands.
        # The sample by which a glob is checked may be longer than its text: `**` stands for `a/a` at least.
        bytes_max = len(text) + self.limits.destination_bytes_max
        return compile_glob(text.decode(), Limits(glob_wildcards_max=len(text), destination_bytes_max=bytes_max))

    def _durable_subscriptions(self) -> Iterator[Subscription]:
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.durable:
                    yield subscription

    def _snapshot_of(self, subscription: Subscription, topics: list[Topic]) -> Iterator[Record]:
        prefix = subscription.glob.prefix.encode()
        matching = [
            t for t in topics if t.destination.startswith(prefix) and subscription.glob.matches(t.destination.decode())
        ]
        owed = subscription.owed
        # The low water that leaves the fewest exceptions: owed ones below it and settled ones above it.
        fewest = exceptions = sum(1 for topic in matching if topic not in owed)
        split = 0
        for position, topic in enumerate(matching, 1):
            exceptions += 1 if topic in owed else -1
            if exceptions < fewest:
                fewest, split = exceptions, position
        low_water = matching[split - 1].change.revision if split else 0
        session = subscription.session
        names = (session.principal, session.client_id, subscription.id)
        yield SubscriptionRecord(
            self.accepted_at_us, *names, subscription.glob.text.encode(), eager=False, low_water=low_water
        )
        settled = [(t.destination, t.change.revision) for t in matching[split:] if t not in owed]
        again = [(t.destination, t.change.revision) for t in matching[:split] if t in owed]
        for start in range(0, len(settled), _POSITIONS_PER_RECORD):
            chunk = tuple(settled[start : start + _POSITIONS_PER_RECORD])
            yield AcknowledgementRecord(self.accepted_at_us, *names, chunk)
        for start in range(0, len(again), _POSITIONS_PER_RECORD):
            yield OwedRecord(self.accepted_at_us, *names, tuple(again[start : start + _POSITIONS_PER_RECORD]))


def _rejected(disposition: bytes, rejection: Rejection) -> Headers:
    return (
        (b"disposition", disposition),
        (b"content-disposition", disposition),
        (b"result", rejection.result.encode()),
        (b"reason", rejection.reason.encode()),
    )


def _revision_of(topic: Topic) -> int:
    return topic.change.revision


def _revision_of_change(change: Change) -> int:
    return change.revision


def _shown(text: bytes) -> str:
    return ascii(text.decode("utf-8", "replace")[:200])
