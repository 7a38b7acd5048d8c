"""A naive model of delivery that keeps every message, written from protocol.md and not from the code.

It gets every request to the broker and the outcome of each batch, and checks every frame that leaves. `message` and
`receipt` raise Violation for one that is not allowed, `complete` for one that is missing. Choices that the protocol leaves open are open
here. `loose` topics (of a snapshot, or after a restart) come in any order, and `optional` ones may come or not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

SOURCES_MAX = 4  # whose marks a topic keeps
VAGUE = -1  # since when something is lacked that may be owed or not, or was before a restart
WAITING, CONFLATED, UNACKED, UNWRITTEN, ACKED, WITHHELD = range(6)  # what became of one message


class Violation(AssertionError):  # noqa: N818 - what happened, not what kind of error
    """The broker broke a rule of the protocol."""


@dataclass(slots=True, eq=False)
class Value:
    """An accepted change."""

    revision: int
    topic: str
    body: bytes  # empty: a delete
    at_us: int = 0
    mark: tuple[str, int] | None = None  # source and number


@dataclass(slots=True, eq=False)
class Message:
    """A change that one subscription was to see."""

    value: Value
    state: int
    since_us: int  # it is missing since then: when it was accepted, or when the present value was requested, or VAGUE
    recorded: bool = False  # the journal knows that it was acknowledged
    unrecorded: bool = False  # owed without a record: a reload granted the right, or the record is not committed


@dataclass(slots=True, eq=False)
class Subscription:
    """Everything one subscription was ever to see, and in which order the rest is due."""

    id: str
    topics: frozenset[str]
    durable: bool
    eager: bool
    acknowledged: bool = False
    individual: bool = False  # an ACK covers one message
    connection: "Connection | None" = None
    active: bool = False  # its SUBSCRIBE has taken effect
    log: list[Message] = field(default_factory=list)
    newest: dict[str, Message] = field(default_factory=dict)
    place: dict[str, int] = field(default_factory=dict)  # since when a waiting topic is owed
    loose: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    sent: list[Message] = field(default_factory=list)  # un-acked, in the order of sending
    passed_by: set["Subscription"] = field(default_factory=set)  # who was served while this waited
    restarted: bool = False  # a crash has been since it was made
    asked_us: int = 0

    def waiting(self, topic: str) -> bool:
        """Return True if the newest change of a topic has not been sent."""
        message = self.newest.get(topic)
        return message is not None and message.state == WAITING

    def add(self, message: Message) -> None:
        """Keep a message."""
        old = self.newest.get(message.value.topic)
        if old is not None and old.state == WAITING:
            old.state = CONFLATED
        self.log.append(message)
        self.newest[message.value.topic] = message

    def lacked_since_us(self, message: Message) -> int:
        """Return since when it lacks what a message brings: since the first change after the last one that it was sent."""
        since_us = message.since_us
        of_topic = [one for one in self.log if one.value.topic == message.value.topic]
        for one in reversed(of_topic[: of_topic.index(message)]):
            if one.state != CONFLATED:
                break
            since_us = one.since_us if since_us != VAGUE else VAGUE
        return since_us

    def ready(self) -> list[str]:
        """Return the topics that may be sent now, rights and window aside."""
        held = {message.value.topic for message in self.sent}
        return [topic for topic in self.newest if self.waiting(topic) and topic not in held]

    def unordered(self, topic: str) -> bool:
        """Return True if the protocol leaves open when a topic is sent."""
        return topic in self.loose or topic in self.optional


@dataclass(slots=True, eq=False)
class Receipt:
    """A RECEIPT that is owed for one frame."""

    id: str
    answer: str
    operation: "Operation | None"  # what it waits for
    allowed: bool = True  # False: the frame failed its connection, or follows one that did


@dataclass(slots=True, eq=False)
class Connection:
    """One connection of a client."""

    client: str
    window: int
    receipts: list[Receipt] = field(default_factory=list)
    unwritten: list[tuple[Subscription, Message]] = field(default_factory=list)
    expelled: bool = False

    quiet: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """The session of a client's name."""

    client: str
    connection: Connection | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Operation:
    """Something that takes effect in order, with its batch. Kinds: send, barrier, subscribe, unsubscribe, ack."""

    kind: str
    connection: Connection | None = None
    session: Session | None = None
    value: Value | None = None
    subscription: Subscription | None = None
    replaced: Subscription | None = None
    messages: list[Message] = field(default_factory=list)
    created: bool = False
    eager: bool = False
    done: bool = False
    refused: bool = False


class Model:
    """Every message, for every subscription.

    `zombies` are durable subscriptions whose end is not committed: a crash brings them back, so they go on collecting.
    """

    def __init__(self, rights: dict[str, frozenset[str]], retention_us: int = 0) -> None:
        self.rights = rights  # client -> topics it may receive
        self.retention_us = retention_us  # of the marks of a deleted topic
        self.history: list[Value] = []  # committed
        self.head = 0
        self.committed = 0
        self.store: dict[str, Value] = {}  # tombstones too
        self.sessions: dict[str, Session] = {}
        self.zombies: list[tuple[Session, Subscription]] = []
        self.pending: list[Operation] = []
        self.writing: list[Operation] = []
        self.clock = 0
        self.now_us = 0  # set by the driver

    # Requests of clients.

    def connect(self, client: str, window: int) -> Connection:
        """Connect, taking over from the session's connection if there is one."""
        session = self.sessions.setdefault(client, Session(client))
        if session.connection is not None:
            session.connection.quiet = True
            self._let_go(session)
        session.connection = Connection(client, window)
        return session.connection

    def lose(self, client: str) -> None:
        """Break the connection of a client."""
        session = self.sessions[client]
        self._let_go(session)
        session.connection = None
        self._forget_session(session)

    def send(
        self,
        connection: Connection,
        topic: str,
        body: bytes,
        receipt: str | None,
        mark: tuple[str, int] | None = None,
        expected: int | None = None,
        now_us: int = 0,
    ) -> Value | None:
        """Take a SEND; return its value if it is accepted."""
        coming = [o for o in (*self.writing, *self.pending) if o.value is not None and o.value.topic == topic]
        if mark is not None:
            marked = [o for o in coming if o.value is not None and o.value.mark and o.value.mark[0] == mark[0]]
            number = max((o.value.mark[1] for o in marked if o.value and o.value.mark), default=-1)
            if number < 0:
                number = self.marks(topic, now_us).get(mark[0], -1)
            if number >= mark[1]:
                self._promise(connection, receipt, "accepted superseded", marked[-1] if marked else None)
                return None
        if expected is not None:
            newest = coming[-1].value if coming else self.store.get(topic)
            if (newest.revision if newest is not None and newest.body else 0) != expected:
                self._promise(connection, receipt, "rejected-invalid conflict", coming[-1] if coming else None)
                return None
        self.head += 1
        value = Value(self.head, topic, body, now_us, mark)
        answer = "accepted" if expected is None else f"accepted {self.head}"
        self._append(connection, Operation("send", value=value), receipt, answer)
        return value

    def marks(self, topic: str, now_us: int) -> dict[str, int]:
        """Return what a topic keeps of the sources of its committed changes, at that time."""
        kept: dict[str, int] = {}
        deleted_at_us: int | None = None
        for value in self.history:
            if value.topic != topic:
                continue
            if deleted_at_us is not None and value.at_us > deleted_at_us + self.retention_us:
                kept.clear()
            if value.mark is not None:
                kept.pop(value.mark[0], None)
                kept[value.mark[0]] = value.mark[1]
                while len(kept) > SOURCES_MAX:
                    kept.pop(next(iter(kept)))
            deleted_at_us = None if value.body else value.at_us
        return {} if deleted_at_us is not None and now_us > deleted_at_us + self.retention_us else kept

    def subscribe(
        self,
        connection: Connection,
        id_: str,
        topics: frozenset[str],
        *,
        durable: bool,
        acknowledged: bool,
        eager: bool,
        receipt: str | None,
        individual: bool = False,
    ) -> None:
        """Subscribe, resume or replace."""
        session = self.sessions[connection.client]
        old = session.subscriptions.get(id_)
        asked, filtered = durable, self.rights[connection.client].isdisjoint(topics)
        if old is not None and old.topics == topics:
            subscription, answer = old, "resumed"
        else:
            answer = "created" if old is None else "replaced"
            durable = durable and not filtered
            subscription = Subscription(id_, topics, durable, eager)
            session.subscriptions[id_] = subscription
        if subscription.active or not subscription.asked_us:
            subscription.asked_us = self.now_us
        subscription.connection = connection
        subscription.acknowledged = acknowledged
        subscription.individual = individual
        subscription.eager = eager or (subscription.eager and not subscription.active)  # the first may wait still
        subscription.passed_by.clear()
        if not subscription.durable:
            if old is not None:  # what no right matches replaces a durable one, and is not durable
                self.zombies.append((session, old))
                self._append(connection, Operation("unsubscribe", session=session, subscription=old), None, "")
            answer = answer if asked else ""
            self._append(connection, Operation("barrier", subscription=subscription, eager=eager), receipt, answer)
        elif subscription is not old:
            if old is not None:
                self.zombies.append((session, old))
            operation = Operation(
                "subscribe", session=session, subscription=subscription, replaced=old, created=True, eager=eager
            )
            self._append(connection, operation, receipt, answer)
        elif eager and not filtered:
            operation = Operation("subscribe", session=session, subscription=subscription, eager=True)
            self._append(connection, operation, receipt, answer)
            if subscription.active:  # otherwise it takes effect with the one that made it
                for message in self._snapshot(subscription, session):
                    message.unrecorded = True
        else:  # what made it may not be committed yet
            waiting = [o for o in (*self.writing, *self.pending) if o.created and o.subscription is subscription]
            self._promise(connection, receipt, answer, waiting[0] if waiting else None)

    def unsubscribe(self, connection: Connection, id_: str, *, durable: bool, receipt: str | None) -> None:
        """Remove or pause."""
        session = self.sessions[connection.client]
        subscription = session.subscriptions.get(id_)
        if subscription is None:
            self._promise(connection, receipt, "unknown-subscription")
        elif not subscription.durable:
            self._release(subscription, session.client)
            del session.subscriptions[id_]
            self._promise(connection, receipt, "removed")
        elif durable:
            self._release(subscription, session.client)
            del session.subscriptions[id_]
            self.zombies.append((session, subscription))
            self._append(
                connection, Operation("unsubscribe", session=session, subscription=subscription), receipt, "removed"
            )
        else:
            self._release(subscription, session.client)
            self._promise(connection, receipt, "paused")

    def ack(self, connection: Connection, id_: str, revision: int, receipt: str | None) -> None:
        """Acknowledge a message and, unless ACKs are individual, all that were sent before it on its subscription."""
        subscription = self.sessions[connection.client].subscriptions.get(id_)
        revisions = [m.value.revision for m in subscription.sent] if subscription is not None else []
        if subscription is None or revision not in revisions:
            self._promise(connection, receipt, "ignored")
            return
        at = revisions.index(revision)
        covered = subscription.sent[at if subscription.individual else 0 : at + 1]
        del subscription.sent[at + 1 - len(covered) : at + 1]
        for message in covered:
            message.state = ACKED
            topic = message.value.topic
            # The value just acknowledged may wait, granted again: a reload finds it when it gets there, in any order.
            if subscription.waiting(topic) and subscription.newest[topic].value is not message.value:
                subscription.place[topic] = self._tick()
                subscription.loose.discard(topic)
        if subscription.durable and receipt is not None:
            self._append(connection, self._recording(subscription), receipt, "")
        else:
            self._promise(connection, receipt, "")

    def nack(self, connection: Connection, receipt: str) -> None:
        """Ignore a NACK."""
        self._promise(connection, receipt, "ignored")

    # Outcomes.

    def record(self) -> None:
        """Have all acknowledgements recorded: their delay is over."""
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.durable and any(m.state == ACKED and not m.recorded for m in subscription.log):
                    self.pending.append(self._recording(subscription))

    def take(self) -> None:
        """Begin to write what is pending."""
        self.writing, self.pending = self.pending, []

    def commit(self) -> None:
        """Apply what was written."""
        operations, self.writing = self.writing, []
        for operation in operations:
            self._apply(operation)

    def refuse(self) -> None:
        """Refuse the batch that was to be written and all after it, for lack of room."""
        operations, self.writing, self.pending = [*self.writing, *self.pending], [], []
        self.head = self.committed
        for operation in operations:
            if operation.kind == "send":
                operation.done = operation.refused = True
            elif operation.kind == "subscribe":
                self._refuse_subscription(operation)
            else:
                self.pending.append(operation)

    def crash(self, found: bool) -> None:
        """Start again from the journal. With `found`, it has the batch that was being written."""
        if found:
            self.commit()
        self.head = self.committed
        zombies, self.zombies = self.zombies, []
        uncommitted = {o.subscription for o in (*self.writing, *self.pending) if o.kind == "subscribe" and o.created}
        self.writing, self.pending = [], []
        sessions, self.sessions = self.sessions, {}
        owners = [(s.client, x) for s in sessions.values() for x in s.subscriptions.values() if x.durable]
        for client, subscription in [*owners, *((s.client, x) for s, x in zombies)]:
            if subscription in uncommitted:
                continue
            session = self.sessions.setdefault(client, Session(client))
            session.subscriptions[subscription.id] = subscription
            self._restart(subscription)

    def grant(self, client: str, topics: frozenset[str]) -> None:
        """Reload a policy that gives a client other rights to receive."""
        before, self.rights[client] = self.rights[client], topics
        session = self.sessions.get(client)
        subscriptions = list(session.subscriptions.values()) if session is not None else []
        # One whose removal is not on the disk may come back, and then with what the new rights allow.
        zombies = [subscription for owner, subscription in self.zombies if owner.client == client]
        for subscription in (*subscriptions, *zombies):
            for topic in before - topics:
                if subscription.waiting(topic):
                    subscription.optional.add(topic)
                    subscription.newest[topic].since_us = VAGUE
            if subscription.active and (subscription.durable or subscription.eager):
                for topic in topics - before:
                    value = self.store.get(topic)
                    if topic in subscription.topics and value is not None and value.body:
                        newest = subscription.newest.get(topic)
                        withheld = newest is not None and newest.state == WITHHELD  # the change itself reports it
                        # A restart owes what no right allows too, and since when it was accepted: the right may come.
                        since_us = VAGUE if subscription.restarted or subscription in zombies else self.now_us
                        self._owe_current(subscription, value, since_us, unrecorded=not withheld)
                    elif topic in subscription.topics and value is not None and subscription.restarted:
                        self._may_owe_delete(subscription, value)

    def _may_owe_delete(self, subscription: Subscription, value: Value) -> None:
        """Note that a restart owed a topic that no right allowed, which has been deleted since, and is allowed now."""
        newest = subscription.newest.get(value.topic)
        if newest is None or newest.state == WITHHELD:
            subscription.add(Message(value, WAITING, VAGUE, unrecorded=True))
            subscription.optional.add(value.topic)

    # Frames that leave.

    def drain(self, connection: Connection) -> None:
        """Count what was handed out before as written: the connection asks for more."""
        for _, message in connection.unwritten:
            if message.state == UNWRITTEN:
                message.state = ACKED
        connection.unwritten.clear()

    def receipt(self, connection: Connection, id_: str, answer: str) -> None:
        """Check a RECEIPT."""
        if not connection.receipts:
            raise Violation(f"RECEIPT {id_} was sent before, or nobody asked for it")
        due = connection.receipts.pop(0)
        if due.id != id_:
            raise Violation(f"RECEIPT {id_} came when {due.id} was the next in order")
        if due.operation is not None and not due.operation.done:
            raise Violation(f"RECEIPT {id_} left before its frame was committed")
        if not due.allowed:
            raise Violation(f"RECEIPT {id_} answers a frame that failed")
        expected = "rejected-unavailable" if due.operation is not None and due.operation.refused else due.answer
        if answer != expected:
            raise Violation(f"RECEIPT {id_} says {answer!r}, not {expected!r}")

    def message(self, connection: Connection, id_: str, revision: int, topic: str, body: bytes) -> None:
        """Check a MESSAGE, and record it."""
        session = self.sessions.get(connection.client)
        subscription = session.subscriptions.get(id_) if session is not None else None
        what = f"MESSAGE {revision} of {topic} on {connection.client}/{id_}"
        if revision > self.committed:
            raise Violation(f"{what} left above {self.committed}, which is committed")
        if subscription is None or subscription.connection is not connection or connection.quiet:
            raise Violation(f"{what} has no live subscription")
        if topic not in self.rights[connection.client]:
            raise Violation(f"{what} went to a principal without the right")
        current = self.store.get(topic)
        if current is None or current.revision != revision:
            raise Violation(f"{what} is not the newest, {current and current.revision}")
        if current.body != body:
            raise Violation(f"{what} has another body")
        if any(message.value.topic == topic for message in subscription.sent):
            raise Violation(f"{what} while one of its topic is un-acked")
        if not subscription.waiting(topic):
            raise Violation(f"{what} is not owed: seen before, or never asked for")
        if self.unacked(connection) >= connection.window:
            raise Violation(f"{what} went out over the window {connection.window}")
        self._check_order(subscription, topic, what)
        self._check_turn(subscription, connection, what)
        message = subscription.newest[topic]
        subscription.loose.discard(topic)
        subscription.optional.discard(topic)
        if subscription.acknowledged:
            message.state = UNACKED
            subscription.sent.append(message)
        elif subscription.durable:
            message.state = UNWRITTEN
            connection.unwritten.append((subscription, message))
        else:
            message.state = ACKED

    def complete(self, connection: Connection, idle: bool) -> None:
        """Check that nothing is left that had to be sent to a connection which has been drained.

        Args:
            connection: Whose.
            idle: Nothing waits for a commit or a scan.
        """
        for due in connection.receipts:
            if due.allowed and idle:
                raise Violation(f"RECEIPT {due.id} has not come")
        if connection.quiet:
            return
        if idle or not any(r.operation is not None and not r.operation.done for r in connection.receipts):
            full = self.unacked(connection) >= connection.window
            for subscription in self._attached(connection):
                must = [t for t in self._servable(subscription) if idle or not subscription.unordered(t)]
                must = [t for t in must if t not in subscription.optional]
                if must and not full:
                    raise Violation(f"{must} of {connection.client}/{subscription.id} are owed but do not come")

    def unacked(self, connection: Connection) -> int:
        """Count the un-acked messages of a connection."""
        return sum(len(subscription.sent) for subscription in self._attached(connection))

    def owed(self, subscription: Subscription) -> int:
        """Count what a subscription is owed or has un-acked."""
        return sum(subscription.waiting(topic) for topic in subscription.newest) + len(subscription.sent)

    # Pieces.

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _attached(self, connection: Connection) -> Iterable[Subscription]:
        session = self.sessions.get(connection.client)
        for subscription in session.subscriptions.values() if session is not None else ():
            if subscription.connection is connection:
                yield subscription

    def _servable(self, subscription: Subscription) -> list[str]:
        connection = subscription.connection
        rights = self.rights[connection.client] if connection is not None else frozenset()
        return [topic for topic in subscription.ready() if topic in rights]

    def _check_order(self, subscription: Subscription, topic: str, what: str) -> None:
        if subscription.unordered(topic):
            return
        for other in self._servable(subscription):
            if not subscription.unordered(other) and subscription.place[other] < subscription.place[topic]:
                raise Violation(f"{what} overtook {other}, which has been owed for longer")

    def _check_turn(self, subscription: Subscription, connection: Connection, what: str) -> None:
        """Let no subscription be served twice while another one waits all the time."""
        for other in self._attached(connection):
            servable = self._servable(other)
            withheld = not self.rights[connection.client].issuperset(
                other.newest
            )  # one without the right uses up a place
            if other is subscription or withheld or not any(not other.unordered(t) for t in servable):
                other.passed_by.clear()
            elif subscription in other.passed_by:
                raise Violation(f"{what} took the turn of {other.id}")
            else:
                other.passed_by.add(subscription)

    def _promise(
        self, connection: Connection, receipt: str | None, answer: str, operation: Operation | None = None
    ) -> None:
        if receipt is not None:
            connection.receipts.append(Receipt(receipt, answer, operation))

    def _append(self, connection: Connection, operation: Operation, receipt: str | None, answer: str) -> None:
        operation.connection = connection
        self.pending.append(operation)
        self._promise(connection, receipt, answer, operation)

    def _recording(self, subscription: Subscription) -> Operation:
        acked = [m for m in subscription.log if m.state == ACKED and not m.recorded]
        return Operation("ack", subscription=subscription, messages=acked)

    def _apply(self, operation: Operation) -> None:
        operation.done = True
        subscription = operation.subscription
        if operation.value is not None:
            self._apply_value(operation.value)
        elif operation.kind == "ack":
            for message in operation.messages:
                message.recorded = True
        elif operation.kind == "unsubscribe":
            self.zombies = [pair for pair in self.zombies if pair[1] is not subscription]
            if operation.session is not None:
                self._forget_session(operation.session)
        elif subscription is not None:
            if operation.replaced is not None:
                self.zombies = [pair for pair in self.zombies if pair[1] is not operation.replaced]
            if not subscription.active:
                self._activate(subscription, operation)
            elif operation.eager and operation.session is not None:
                self._tell(subscription)

    def _activate(self, subscription: Subscription, operation: Operation) -> None:
        subscription.active = True
        owner = operation.session or (operation.connection and self.sessions.get(operation.connection.client))
        if owner and (operation.eager or subscription.eager):
            for message in self._snapshot(subscription, owner):
                message.unrecorded = not operation.eager  # a later SUBSCRIBE asked, and has a record

    def _tell(self, subscription: Subscription) -> None:
        """Apply a record that asks for all present values. From now on the journal has it."""
        for message in subscription.newest.values():
            if message.value.body:
                message.unrecorded = False

    def _apply_value(self, value: Value) -> None:
        self.committed = value.revision
        self.history.append(value)
        known = self.store.get(value.topic)
        if not value.body and (known is None or not known.body):
            return  # deleting an absent topic notifies no subscriber
        self.store[value.topic] = value
        live = [(s, x) for s in self.sessions.values() for x in s.subscriptions.values()]
        for session, subscription in [*live, *self.zombies]:
            if subscription.active and value.topic in subscription.topics:
                self._owe_new(subscription, value, value.topic in self.rights[session.client])

    def _owe_new(self, subscription: Subscription, value: Value, right: bool) -> None:
        topic = value.topic
        waited = subscription.waiting(topic)
        if waited and topic in subscription.optional:
            if right:  # it may have been owed, or not: its place is open
                subscription.optional.discard(topic)
                subscription.loose.add(topic)
            subscription.add(Message(value, WAITING, value.at_us))
        elif right:
            if not waited:
                subscription.place[topic] = self._tick()
            subscription.add(Message(value, WAITING, value.at_us))
        else:
            subscription.add(Message(value, WITHHELD, value.at_us))

    def _snapshot(self, subscription: Subscription, session: Session) -> list[Message]:
        found = []
        connection = session.connection
        for one, message in connection.unwritten if connection is not None else ():
            value = self.store.get(message.value.topic)
            older = message is not one.newest[message.value.topic]
            if one is subscription and older and message.state == UNWRITTEN and value is not None and value.body:
                # It is unknown whether it has arrived: what came since is lacked since then.
                message.state = CONFLATED
        for topic in self.rights[session.client] & subscription.topics:
            value = self.store.get(topic)
            if value is not None and value.body:
                newest = subscription.newest.get(topic)
                again = newest is not None and newest.state == UNWRITTEN  # it is unknown whether it has arrived
                since_us = subscription.lacked_since_us(newest) if newest and again else subscription.asked_us
                found += self._owe_current(subscription, value, since_us)
        return found

    def _owe_current(
        self, subscription: Subscription, value: Value, since_us: int, unrecorded: bool = False
    ) -> list[Message]:
        """Owe what is stored, in any order; what waits already stays where it is. Return what is new."""
        if not subscription.waiting(value.topic):
            message = Message(value, WAITING, since_us, unrecorded=unrecorded)
            subscription.add(message)
            subscription.loose.add(value.topic)
            return [message]
        if value.topic in subscription.optional:
            subscription.optional.discard(value.topic)
            subscription.loose.add(value.topic)
        return []

    def _release(self, subscription: Subscription, client: str) -> None:
        """Take it off its connection: what is un-acked is owed again, before all else and in the order of sending."""
        for message in reversed(subscription.sent):
            self._owe_again(subscription, message, client)
        subscription.sent.clear()
        subscription.connection = None

    def _owe_again(self, subscription: Subscription, message: Message, client: str) -> None:
        topic = message.value.topic
        if subscription.newest[topic] is message:
            message.state = WAITING
        elif message.state == UNWRITTEN:
            message.state = CONFLATED
            return
        else:
            message.state = CONFLATED
        if subscription.waiting(topic) and topic not in self.rights[client]:
            subscription.loose.discard(topic)
            subscription.newest[topic].since_us = VAGUE
            subscription.optional.add(topic)  # forgotten when it is to be written, unless the right is back by then
        elif subscription.waiting(topic) and topic not in subscription.optional:
            subscription.loose.discard(topic)
            subscription.place[topic] = -self._tick()

    def _let_go(self, session: Session) -> None:
        connection = session.connection
        if connection is not None:
            connection.quiet = True
            for subscription, message in reversed(connection.unwritten):
                if message.state == UNWRITTEN:
                    self._owe_again(subscription, message, session.client)
            connection.unwritten.clear()
        for subscription in list(session.subscriptions.values()):
            self._release(subscription, session.client)
            if not subscription.durable:
                del session.subscriptions[subscription.id]

    def _forget_session(self, session: Session) -> None:
        if session.connection is None and not session.subscriptions and self.sessions.get(session.client) is session:
            del self.sessions[session.client]

    def _refuse_subscription(self, operation: Operation) -> None:
        subscription, session = operation.subscription, operation.session
        if subscription is None or session is None:
            return
        for connection in (operation.connection, subscription.connection, session.connection):
            if connection is None:
                continue
            if connection is subscription.connection or any(r.operation is operation for r in connection.receipts):
                connection.expelled = True
                connection.quiet = True
                failed = False
                for receipt in connection.receipts:
                    failed = failed or receipt.operation is operation
                    receipt.allowed = receipt.allowed and not failed
        if not operation.created:
            subscription.optional |= subscription.loose
            return
        if session.subscriptions.get(subscription.id) is subscription:
            del session.subscriptions[subscription.id]
        self.zombies = [pair for pair in self.zombies if pair[1] is not subscription]
        if operation.replaced is not None:  # its id was taken: it is gone, and the journal will have a record
            self.pending.append(Operation("unsubscribe", session=session, subscription=operation.replaced))
        self._forget_session(session)

    def _restart(self, subscription: Subscription) -> None:
        subscription.restarted = True
        subscription.connection = None
        subscription.sent.clear()
        subscription.place.clear()
        subscription.loose.clear()
        doubtful = set(subscription.optional)
        subscription.optional.clear()
        for topic, message in subscription.newest.items():
            if message.state == ACKED and message.recorded:
                continue
            certain = (
                message.state in {WAITING, UNACKED, UNWRITTEN} and not message.unrecorded and topic not in doubtful
            )
            message.state = WAITING
            message.since_us = VAGUE
            (subscription.loose if certain else subscription.optional).add(topic)
