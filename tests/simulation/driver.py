"""The broker beside the model: every step is done to both, and every frame that leaves is checked."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from unittest.mock import patch

from maxam.avro.registry import load_registry
from maxam.broker import outbox, recovery, subscribing
from maxam.broker.broker import Broker
from maxam.broker.operations import Operation, Proof, TransientSubscribe
from maxam.broker.policy import Policy, Rights
from maxam.broker.session import Subscription, Topic
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import Headers, Identity, Record
from maxam.stomp.events import VERSION_1_2, Ack, Condition, Connect, Send, Subscribe, Unsubscribe
from tests.simulation import model
from tests.support.sans_io import UNCHECKED, fingerprint_of, forget_target, policy

REGISTRY = load_registry(UNCHECKED)
LIMITS = Limits(
    takeovers_per_minute_max=1_000_000, dedup_retention_s=100, delete_retention_s=70, delete_retention_topics_max=2
)
SOURCES = tuple("pqrst")  # one more than a topic keeps marks of
PADDING = b"." * outbox.VALUES_BYTES_MAX  # so that one drain hands out one value


@cache
def policy_of(rights: tuple[tuple[str, frozenset[str]], ...]) -> Policy:
    """Make a policy in which clients may send everything and receive the given topics."""
    principals: dict[str, dict[str, Sequence[str]]] = {
        client: {"send": ["X/**"], "receive": sorted(topics)} for client, topics in rights
    }
    return policy(**principals)


@contextmanager
def cheap_globs() -> Iterator[None]:
    """Compile and compare each glob only once: half of the time goes there otherwise. Without effect on compiled modules."""
    with ExitStack() as stack:
        with suppress(TypeError):
            stack.enter_context(patch.object(Rights, "can_receive_any", cache(Rights.can_receive_any)))
            stack.enter_context(patch.object(subscribing, "compile_glob", cache(compile_glob)))
            stack.enter_context(patch.object(recovery, "compile_glob", cache(compile_glob)))
        yield


def frames(data: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes], bytes]]:
    """Split what the broker wrote into (command, headers, body)."""
    while data:
        head, _, rest = data.partition(b"\n\n")
        command, *lines = head.split(b"\n")
        headers = dict(line.split(b":", 1) for line in lines)
        length = int(headers.get(b"content-length", 0))
        yield command, headers, rest[:length]
        data = rest[length + 1 :]


class Driver:
    """One broker, its journal as a list, and the model of it.

    Args:
        rights: Topics that each client may receive. A client is a principal with one session.
        globs: The globs that subscriptions use, and the topics that each matches.
        window: Of every connection; None lets it adapt.
        padding: Makes a value as large as one drain.
    """

    def __init__(
        self,
        rights: dict[str, frozenset[str]],
        globs: dict[str, frozenset[str]],
        window: int | None,
        padding: bytes = PADDING,
    ) -> None:
        self.globs = globs
        self.window = window
        self.padding = padding
        self.model = model.Model(dict(rights), int(LIMITS.dedup_retention_s * 1e6))
        self.broker = Broker(LIMITS, self._policy(), REGISTRY)
        self.journal: list[Record] = []
        self.floor = 0  # of the snapshot with which the journal begins
        self.connections: dict[str, tuple[outbox.Outbox, model.Connection]] = {}
        self.old: list[tuple[outbox.Outbox, model.Connection]] = []  # taken over or expelled, not gone yet
        self.writing: list[Operation] | None = None
        self.now_s = 1000.0
        self.wall_us = 0
        self.count = 0
        self.sent_to: dict[tuple[str, str], list[int]] = {}
        self.woken: set[model.Connection] = set()
        # For each subscription: what of that is still owed that was owed at some time, that time, the same before, its state then.
        self.owed_then: dict[Subscription, tuple[set[Topic], int, int, object]] = {}

    # Clients.

    def connect(self, client: str, window: int | None = None) -> None:
        """Connect, or take over."""
        old = self.connections.get(client)
        if old is not None:
            self.old.append(old)
        event = Connect(VERSION_1_2, b"MAXVAPI", client, window or self.window, (0, 0))
        identity = Identity(client, fingerprint_of(client))
        known = self.model.connect(client, window or self.window or LIMITS.window)
        connection = self.broker.connect(event, identity, client, self._waker(known), self.now_s)
        self.connections[client] = (connection, known)

    def lose(self, client: str) -> None:
        """Break the transport."""
        connection, _ = self.connections.pop(client)
        self.model.lose(client)
        self.broker.detach(connection, self.now_s)
        self.check_staleness()

    def lose_old(self) -> None:
        """Let the transports of connections that were taken over go."""
        for connection, _ in self.old:
            self.broker.detach(connection, self.now_s)
        self.old.clear()

    def send(
        self,
        client: str,
        topic: str,
        delete: bool = False,
        receipt: bool = True,
        mark: tuple[str, int] | None = None,
        expected: int | None = None,
    ) -> None:
        """Send a value or a delete; `mark` is source and number, `expected` the revision that the topic is to have."""
        connection, known = self.connections[client]
        self.count += 1
        self.wall_us += 1
        body = b"" if delete else b"%d%b" % (self.count, self.padding)
        id_ = self._receipt(receipt)
        value = self.model.send(known, topic, body, id_, mark, expected, self.wall_us)
        headers: Headers = ()
        condition = None
        if mark is not None:
            headers = ((b"source", mark[0].encode()), (b"source-revision", b"%d" % mark[1]))
        if mark is not None or expected is not None:
            source, number = (mark[0].encode(), mark[1]) if mark else (None, -1)
            condition = Condition(source, number, -1 if expected is None else expected)
        event = Send(topic.encode(), body, headers, id_.encode() if id_ else None, condition)
        before = self.broker.head_revision
        self.broker.send(connection, event, self.wall_us)
        if self.broker.head_revision != (before if value is None else value.revision):
            raise model.Violation(f"revision {self.broker.head_revision} is not the right one after {before}: {value}")
        self._end(connection)

    def wait(self) -> None:
        """Let time pass, after which marks of deleted topics may have expired, or not yet."""
        self.wall_us += int(LIMITS.dedup_retention_s * 1e6 / 2) + 1

    def subscribe(
        self,
        client: str,
        id_: str,
        glob: str,
        *,
        durable: bool,
        acknowledged: bool,
        eager: bool,
        receipt: bool = True,
        individual: bool = False,
    ) -> None:
        """Subscribe, resume or replace."""
        if eager:
            self._finish_scans()
        connection, known = self.connections[client]
        name = self._receipt(receipt)
        self._clock()
        self.model.subscribe(
            known,
            id_,
            self.globs[glob],
            durable=durable,
            acknowledged=acknowledged,
            eager=eager,
            receipt=name,
            individual=individual,
        )
        asked = name.encode() if name else None
        event = Subscribe(id_.encode(), glob.encode(), acknowledged, durable, eager, asked, individual)
        self.broker.subscribe(connection, event, self.wall_us)
        self._end(connection)

    def unsubscribe(self, client: str, id_: str, *, durable: bool, receipt: bool = True) -> None:
        """Remove or pause."""
        connection, known = self.connections[client]
        name = self._receipt(receipt)
        self.model.unsubscribe(known, id_, durable=durable, receipt=name)
        self.broker.unsubscribe(connection, Unsubscribe(id_.encode(), durable, name.encode() if name else None))
        self._end(connection)

    def ack(self, client: str, id_: str, revision: int, receipt: bool = True) -> None:
        """Acknowledge."""
        connection, known = self.connections[client]
        name = self._receipt(receipt)
        self.model.ack(known, id_, revision, name)
        self.broker.ack(connection, Ack(id_.encode(), revision, name.encode() if name else None), self.now_s)
        self.check_staleness()
        self._end(connection)

    def deliver(self, client: str) -> bool:
        """Take what one drain hands out; return whether it was anything."""
        connection, known = self.connections[client]
        return self._drain(connection, known)

    def _drain(self, connection: outbox.Outbox, known: model.Connection) -> bool:
        self.model.drain(known)
        if self.window is None:
            known.window = max(connection.window.size, 1)
        parts = connection.drain(self.now_s)
        for command, headers, body in frames(b"".join(parts)):
            if command == b"MESSAGE":
                id_ = headers[b"subscription"].decode()
                revision = int(headers[b"message-id"])
                topic = headers[b"destination"].decode()
                self.model.message(known, id_, revision, topic, body)
                self.sent_to.setdefault((known.client, id_), []).append(revision)
            else:
                self.model.receipt(known, headers[b"receipt-id"].decode(), _answer(headers))
        self.check_staleness()
        if not parts:
            self.model.complete(known, self.idle)
        return bool(parts)

    def unacked(self, client: str) -> list[tuple[str, int]]:
        """Return subscription and revision of each un-acked message, in the order of sending per subscription."""
        session = self.model.sessions.get(client)
        subscriptions = session.subscriptions.values() if session is not None else ()
        return [(s.id, message.value.revision) for s in subscriptions for message in s.sent]

    # The broker.

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a commit or a scan."""
        return self.writing is None and not (self.broker.pending or self.model.pending or self.broker.scanning)

    def take(self) -> None:
        """Begin a commit."""
        self.model.take()
        self.writing = self.broker.take_batch()

    def commit(self) -> None:
        """End a commit, begun or not."""
        if self.writing is None:
            self.take()
        batch, self.writing = self.writing or [], None
        self.journal += _records(batch)
        self.model.commit()
        self.broker.apply_batch(batch)
        self.check_staleness()

    def refuse(self) -> None:
        """End a commit for lack of room."""
        batch, self.writing = self.writing or [], None
        self.model.refuse()
        self.broker.roll_back_batch(batch)
        for client, (connection, known) in list(self.connections.items()):
            if (connection.failure is not None) != known.expelled:
                raise model.Violation(f"{client} is {'' if known.expelled else 'not '}to be closed with an ERROR")
            if known.expelled:
                while self._drain(connection, known):
                    pass
                self.lose(client)

    def crash(self, found: bool) -> None:
        """Kill the broker and start it again. With `found`, what was being written survives."""
        if self.writing is not None and found:
            self.journal += _records(self.writing)
        self.model.crash(found and self.writing is not None)
        self.writing = None
        self.connections.clear()
        self.old.clear()
        self.woken.clear()
        self.broker = self.recovered(self.journal)
        self.compare()

    def snapshot(self) -> None:
        """Crash, and start from the snapshot that the gateway makes of all that was stored, not from the journal itself."""
        self.crash(found=False)
        broker = summed_up(map(forget_target, self.journal), LIMITS)
        broker.store.raise_floor(self.floor)
        self.floor = broker.snapshot_floor()
        self.journal = list(broker.snapshot())
        self.broker = self.recovered(self.journal)
        self.compare()

    def tick(self) -> None:
        """Let time pass until acknowledgements are due to be recorded."""
        self.now_s += 1.0
        self.model.record()
        self.broker.tick(self.now_s)

    def forget(self, short: bool) -> None:
        """Forget deletes that no subscription is owed: those that are no longer retained, or all if memory is `short`."""
        store = self.broker.store
        (store.release_soon if short else store.sweep_soon)()
        store.retire(self.broker.accepted_at_us)
        self.broker.upkeep._sweep()
        self.compare()

    def scan(self, topics: int) -> None:
        """Do a batch of the scans under way."""
        self.broker.scan(topics)

    def grant(self, client: str, topics: frozenset[str]) -> None:
        """Reload the policy with other rights for a client."""
        self._finish_scans()
        self._clock()
        self.model.grant(client, topics)
        self.broker.replace_policy(self._policy(), self.wall_us)

    def settle(self) -> None:
        """Commit and scan until nothing is left to do."""
        if self.writing is not None:
            self.commit()
        while not self.idle:
            self.commit()
            self.broker.scan()

    def drain_all(self) -> None:
        """Bring everyone up to date: the newest of each topic must arrive everywhere, and every receipt."""
        self.settle()
        for client in list(self.connections):
            while True:
                while self.deliver(client):
                    pass
                unacked = self.unacked(client)
                if not unacked:
                    break
                self.ack(client, *unacked[-1], receipt=False)
                for probe in self.connections.values():
                    probe[0].probe(self.now_s + 1000)
        self.tick()
        self.settle()
        self.compare()

    def compare(self) -> None:
        """Check the broker's inner state against the model and its own invariants."""
        revisions = {topic: value.revision for topic, value in self.model.store.items() if value.body}
        held = {t.name: t.change.revision for t in self.broker.store.topics.values() if not t.change.deleted}
        if held != revisions or self.broker.store.live != len(held):
            raise model.Violation(f"the store holds {held}, not {revisions}")
        deletes = {topic: value.revision for topic, value in self.model.store.items() if not value.body}
        check_floor(self.broker, deletes)
        now_us = max(self.wall_us, self.broker.accepted_at_us)
        for topic in {value.topic for value in self.model.history}:
            marks = self.model.marks(topic, now_us)
            told = {s: self.broker.sequences.number(topic.encode(), s.encode(), now_us) for s in (*SOURCES, *marks)}
            if {s: n for s, n in told.items() if n >= 0} != marks:
                raise model.Violation(f"{topic} keeps {told} of its sources, not {marks}")
        for session in self.broker.sessions.values():
            for subscription in session.subscriptions.values():
                ready = subscription.queue
                if len(ready) != len(set(ready)) or set(ready) != subscription.owed - subscription.held.keys():
                    raise model.Violation(f"ready of {subscription.id!r} is not what is owed and not un-acked")
                if len(subscription.owed | subscription.held.keys()) > len(self.broker.store.topics):
                    raise model.Violation(f"{subscription.id!r} is owed more than there are topics")
                if len(subscription.sent) != len(subscription.held) or set(subscription.sent) != set(
                    subscription.unacked
                ):
                    raise model.Violation(f"un-acked messages of {subscription.id!r} do not tally")

    def check_staleness(self) -> None:
        """Check since when every subscription lacks something: never too late, and too early only until what was owed has left."""
        scans = Counter(scan.subscription for scan in self.broker._scanner.scans)
        for key, session in self.broker.sessions.items():
            known = self.model.sessions.get(key[1])
            for id_, subscription in session.subscriptions.items():
                found = (subscription.owed_since_us(), subscription.unacked_since_us())
                if (found[0] > 0, found[1] > 0) != (
                    bool(subscription.owed) or subscription.scans > 0,
                    bool(subscription.unacked),
                ):
                    raise model.Violation(
                        f"{id_!r} lacks something since {found}, and is owed {len(subscription.owed)}"
                    )
                late = self.broker._routing.late._late.get(key[0])
                counted = scans[subscription] + (late is not None and subscription in late.subscriptions)
                if subscription.scans != counted:
                    raise model.Violation(f"{id_!r} waits for {subscription.scans} scans, not {counted}")
                one = known.subscriptions.get(id_.decode()) if known is not None else None
                if one is not None and not subscription.scans and one.optional.isdisjoint(one.newest):
                    self._compare_staleness(subscription, one, found)
                self._check_excess(subscription, found[0])

    def _compare_staleness(self, subscription: Subscription, known: model.Subscription, found: tuple[int, int]) -> None:
        waiting = [topic for topic in known.newest if known.waiting(topic)]
        if sorted(waiting) != sorted(topic.name for topic in subscription.owed):
            return  # the driver that takes what leaves reports it
        owed_us = min((known.lacked_since_us(known.newest[topic]) for topic in waiting), default=0)
        unacked_us = min((known.lacked_since_us(message) for message in known.sent), default=0)
        if model.VAGUE in (owed_us, unacked_us):
            return
        if found[0] > owed_us or found[1] > unacked_us:
            raise model.Violation(
                f"{known.id} lacks what it is owed and has un-acked since {found}, later than {owed_us, unacked_us}"
            )
        connection = subscription.connection
        for one, topic, revision, since_us in connection.unwritten if connection is not None else ():
            if one is subscription:
                # The last: one that was handed out before a crash stays in the log as it was, and the same change was owed again.
                message = next(
                    (m for m in reversed(known.log) if m.value.revision == revision and m.state == model.UNWRITTEN),
                    None,
                )
                true_us = model.VAGUE if message is None else known.lacked_since_us(message)
                if true_us != model.VAGUE and since_us > true_us:
                    raise model.Violation(f"{topic.name} is lacked since {since_us}, later than {true_us}")

    def _check_excess(self, subscription: Subscription, owed_us: int) -> None:
        """Check that a time is forgotten once all was sent that was owed then, and after that all that was owed meanwhile."""
        state = (subscription.connection, subscription.asked_us, subscription.eager_scans)
        owed, since_us, before_us, then = self.owed_then.get(subscription, (set(), 0, 0, None))
        owed = owed & subscription.owed
        connection = subscription.session.connection
        if subscription.scans or (connection and any(one[0] is subscription for one in connection.unwritten)):
            self.owed_then.pop(subscription, None)  # a scan goes on, or what was handed out may come back
            return
        if state != then:
            owed, since_us, before_us = set(), 0, 0
        if not owed:
            if owed_us and owed_us < before_us:
                raise model.Violation(
                    f"{subscription.id!r} lacks something since {owed_us}, and has all of {before_us}"
                )
            before_us = since_us
            owed, since_us = set(subscription.owed), self.broker._log.uncommitted_since_us(self.wall_us)
        self.owed_then[subscription] = (owed, since_us, before_us, state)

    # Pieces.

    def _clock(self) -> None:
        self.wall_us += 1
        self.model.now_us = self.wall_us

    def _finish_scans(self) -> None:
        """Two scans that overlap may owe a value twice, which is harmless (same revision) and not modelled."""
        while self.broker.scanning:
            self.broker.scan()

    def _policy(self) -> Policy:
        return policy_of(tuple(sorted(self.model.rights.items())))

    def recovered(self, journal: list[Record]) -> Broker:
        """Return what a restart makes of a journal."""
        broker = Broker(LIMITS, self._policy(), REGISTRY)
        for record in journal:
            broker.replay(forget_target(record))
        broker.recovered(self.now_s, self.model.committed, floor=self.floor)
        check_recovery_cost(broker)
        return broker

    def _receipt(self, wanted: bool) -> str | None:
        self.count += 1
        return f"r{self.count}" if wanted else None

    def _waker(self, known: model.Connection) -> Callable[[], None]:
        return lambda: self.woken.add(known)

    def _end(self, connection: outbox.Outbox) -> None:
        """Do what a ServerConnection does at the end of what it received."""
        self.broker.end_of_input(connection)


def check_recovery_cost(broker: Broker) -> None:
    """Check that a recovery checked no topic more often than there are globs of durable subscriptions left.

    Raises:
        Violation: Its cost grows with the records that it read.
    """
    subscriptions = [s for session in broker.sessions.values() for s in session.subscriptions.values()]
    allowed = len(broker.store.topics) * len({subscription.glob for subscription in subscriptions})
    if broker.backfills.topics_scanned > allowed:
        raise model.Violation(f"recovery scanned {broker.backfills.topics_scanned} topics, not up to {allowed}")


def check_floor(broker: Broker, deletes: dict[str, int]) -> None:
    """Check that all deletes above the floor are known, and no other topic counts as deleted there.

    Args:
        broker: It has applied all changes.
        deletes: Revision of the newest change of each topic whose newest change is a delete.

    Raises:
        Violation: A client that resumes from a position above the floor would keep a deleted topic.
    """
    store = broker.store
    if store.floor > broker.committed_revision:
        raise model.Violation(f"the floor {store.floor} is above the newest change {broker.committed_revision}")
    known = {t.name: t.change.revision for t in store.topics.values() if t.change.deleted}
    if {t.name for t in (*store.retained, *store.tombstones)} != known.keys():
        raise model.Violation("the store does not list the deleted topics that it holds")
    order = [topic.change.revision for topic in store.retained]
    if order != sorted(order):
        raise model.Violation(f"deletes are retained in the order {order}")
    for topic, revision in deletes.items():
        if revision > store.floor and known.get(topic) != revision:
            raise model.Violation(f"the delete {revision} of {topic} is unknown, and the floor is {store.floor}")


def _answer(headers: dict[bytes, bytes]) -> str:
    """Return the result of a RECEIPT, as the model has it."""
    disposition = headers.get(b"disposition", b"").decode()
    result = headers.get(b"result", b"").decode()
    if disposition in {"", "rejected-unavailable"}:
        return disposition or result
    return " ".join(filter(None, (disposition, result, headers.get(b"revision", b"").decode())))


def _records(batch: list[Operation]) -> list[Record]:
    return [operation for operation in batch if not isinstance(operation, TransientSubscribe | Proof)]
