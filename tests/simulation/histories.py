"""All short histories of one publisher and one subscribing client over two topics, each step checked against the model.

Histories that lead to the same state of broker, journal and model have the same futures, so only the first of them goes on.
The topic that is used first is called X/a. `_picture` defines a state: everything that a later step can distinguish,
with revisions and receipt ids replaced by their order.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from maxam.broker.broker import Broker
from maxam.broker.operations import Operation
from maxam.broker.session import Subscription
from maxam.records import AcknowledgementRecord, Change, SubscriptionRecord, UnsubscriptionRecord
from tests.simulation import model
from tests.simulation.driver import Driver, cheap_globs

TOPICS = frozenset({"X/a", "X/b"})
SUBSCRIBER, PUBLISHER = "anna", "bert"
GLOB = "X/*"


@dataclass(frozen=True)
class Kind:
    """The headers of a SUBSCRIBE."""

    durable: bool
    acknowledged: bool
    eager: bool

    def __str__(self) -> str:
        return "-".join(
            (
                "durable" if self.durable else "transient",
                "client" if self.acknowledged else "auto",
                "eager" if self.eager else "later",
            )
        )


KINDS = tuple(Kind(d, a, e) for d in (False, True) for a in (False, True) for e in (False, True))
PAIRS = tuple((one, two) for n, one in enumerate(KINDS) for two in KINDS[n:])


class Play:
    """One history under way."""

    def __init__(self, kinds: tuple[Kind, ...], window: int) -> None:
        self.kinds = dict(zip("st", kinds, strict=False))
        self.driver = Driver({SUBSCRIBER: TOPICS, PUBLISHER: frozenset()}, {GLOB: TOPICS}, window)
        self.used: set[str] = set()
        self.driver.connect(PUBLISHER)

    def steps(self) -> list[str]:
        """Return what can happen next."""
        driver = self.driver
        found = ["value X/a", "delete X/a"]
        if "X/a" in self.used:
            found += ["value X/b", "delete X/b"]
        if driver.writing is not None:
            found += ["commit", "refuse", "crash found"]
        elif driver.broker.pending:
            found += ["take", "commit"]
        found.append("crash")
        if SUBSCRIBER not in driver.connections:
            found.append("resume")
        else:
            found += ["take over", "lose"]
            connection, known = driver.connections[SUBSCRIBER]
            if connection.ready_queue or connection.receipts or connection.unwritten or known.receipts:
                found.append("deliver")
            for id_ in self.kinds:
                mine = [revision for s, revision in driver.unacked(SUBSCRIBER) if s == id_]
                if mine:
                    found += [f"ack {id_} {mine[0]}", f"record {id_} {mine[-1]}"]
            live = [s for s in driver.model.sessions[SUBSCRIBER].subscriptions.values() if s.connection is not None]
            found += [f"unsubscribe {s.id}" for s in live]
            if len(live) < len(self.kinds):
                found.append("subscribe")
        if driver.broker.next_due_s is not None and driver.broker.next_due_s < driver.now_s + 1:
            found.append("tick")
        return found

    def do(self, step: str) -> None:
        """Let one thing happen."""
        driver = self.driver
        match step.split():
            case [("value" | "delete") as what, topic]:
                self.used.add(topic)
                driver.send(PUBLISHER, topic, delete=what == "delete")
            case ["crash", *found]:
                driver.crash(found=bool(found))
                driver.connect(PUBLISHER)
            case [("resume" | "take"), *over] if step != "take":
                assert bool(over) == (SUBSCRIBER in driver.connections)
                driver.connect(SUBSCRIBER)
                self.subscribe()
            case ["subscribe"]:
                self.subscribe()
            case ["unsubscribe", id_]:
                driver.unsubscribe(SUBSCRIBER, id_, durable=False)
            case [("ack" | "record") as what, id_, revision]:
                driver.ack(SUBSCRIBER, id_, int(revision), receipt=what == "record")
            case ["deliver"]:
                driver.deliver(SUBSCRIBER)
            case ["lose"]:
                driver.lose(SUBSCRIBER)
            case [name]:
                getattr(driver, name)()
            case _:
                raise AssertionError(step)
        if PUBLISHER not in driver.connections:
            driver.connect(PUBLISHER)
        driver.deliver(PUBLISHER)

    def subscribe(self) -> None:
        """Subscribe with all that is not live."""
        session = self.driver.model.sessions[SUBSCRIBER]
        for id_, kind in self.kinds.items():
            known = session.subscriptions.get(id_)
            if known is None or known.connection is None:
                self.driver.subscribe(
                    SUBSCRIBER, id_, GLOB, durable=kind.durable, acknowledged=kind.acknowledged, eager=kind.eager
                )

    def end(self) -> None:
        """Come back, read and acknowledge everything: the newest of each topic and every receipt must have come."""
        driver = self.driver
        driver.settle()
        if SUBSCRIBER not in driver.connections:
            driver.connect(SUBSCRIBER)
        self.subscribe()
        driver.drain_all()


def enumerate_histories(kinds: tuple[Kind, ...], window: int, depth: int) -> tuple[int, int]:
    """Play all histories of at most N steps; return how many steps were tried and how many states were found.

    Raises:
        Violation: A history broke a rule; it is in the notes of the exception.
    """
    with cheap_globs():
        return _enumerate(kinds, window, depth)


def _enumerate(kinds: tuple[Kind, ...], window: int, depth: int) -> tuple[int, int]:
    start: tuple[str, ...] = ("resume", "commit")
    seen: set[Hashable] = set()
    frontier = [start]
    tried = 0
    for _ in range(depth):
        following: list[tuple[str, ...]] = []
        for history in frontier:
            steps = _replay(kinds, window, history).steps()
            for step in steps:
                longer = (*history, step)
                tried += 1
                play = _replay(kinds, window, longer)
                picture = _picture(play)
                if picture in seen:
                    continue
                seen.add(picture)
                following.append(longer)
                _checked(longer, play.end)
        frontier = following
    return tried, len(seen)


CONDITIONS: dict[str, tuple[bool, tuple[str, int] | None, int | None]] = {  # delete, mark, revision: -1 is the head
    "value": (False, None, None),
    "delete": (True, None, None),
    "p1": (False, ("p", 1), None),
    "p2": (False, ("p", 2), None),
    "q1": (False, ("q", 1), None),
    "delete p1": (True, ("p", 1), None),
    "if absent": (False, None, 0),
    "if head": (False, None, -1),
    "p2 if head": (False, ("p", 2), -1),
}


def enumerate_conditions(depth: int) -> tuple[int, int]:
    """Play all histories of at most N steps of one publisher of one topic whose SENDs have conditions; return as above.

    Raises:
        Violation: A history broke a rule; it is in the notes of the exception.
    """
    seen: set[Hashable] = set()
    frontier: list[tuple[str, ...]] = [()]
    tried = 0
    with cheap_globs():
        for _ in range(depth):
            following = []
            for history in frontier:
                for step in (*CONDITIONS, "take", "commit", "refuse", "crash", "crash found", "snapshot"):
                    driver = Driver({PUBLISHER: TOPICS}, {GLOB: TOPICS}, None, b"")
                    driver.connect(PUBLISHER)
                    longer = (*history, step)

                    def run(driver: Driver = driver, longer: tuple[str, ...] = longer) -> None:
                        for step in longer:
                            _ask(driver, step)

                    _checked(longer, run)
                    tried += 1
                    picture = _conditions_picture(driver)
                    if picture not in seen:
                        seen.add(picture)
                        following.append(longer)
                        _checked(longer, driver.drain_all)
            frontier = following
    return tried, len(seen)


def _ask(driver: Driver, step: str) -> None:
    if step in CONDITIONS:
        delete, mark, expected = CONDITIONS[step]
        driver.send(
            PUBLISHER, "X/a", delete, mark=mark, expected=driver.broker.head_revision if expected == -1 else expected
        )
    elif step.startswith("crash"):
        driver.crash(found=step == "crash found")
    elif step == "take" and driver.writing is not None:
        driver.commit()
    elif step == "refuse" and driver.writing is None:
        driver.take()
        driver.refuse()
    else:
        getattr(driver, step)()
    if PUBLISHER not in driver.connections:
        driver.connect(PUBLISHER)
    driver.deliver(PUBLISHER)


def _conditions_picture(driver: Driver) -> Hashable:
    known = driver.model
    coming = [o for o in (*known.writing, *known.pending) if o.value is not None]
    brokers = (driver.broker, driver.recovered(driver.journal))
    marks = [[broker.sequences.number(b"X/a", source, 0) for source in (b"p", b"q")] for broker in brokers]
    value = known.store.get("X/a")
    receipts = driver.connections[PUBLISHER][1].receipts
    parts = (
        marks,
        [broker.sequences.absent for broker in brokers],
        len(known.writing),
        [(bool(o.value and o.value.body), o.value and o.value.mark) for o in coming],
        value is not None and [bool(value.body), value.revision == known.head],
        [(r.answer.split()[-1].isdigit() or r.answer, r.operation and coming.index(r.operation)) for r in receipts],
        driver.broker._conditions._indexed - driver.broker.applied_seq,
    )
    return _ranked(parts)


def _replay(kinds: tuple[Kind, ...], window: int, history: tuple[str, ...]) -> Play:
    play = Play(kinds, window)

    def run() -> None:
        for step in history:
            play.do(step)

    _checked(history, run)
    return play


def _checked(history: tuple[str, ...], run: Callable[[], None]) -> None:
    try:
        run()
    except Exception as error:
        error.add_note(f"history: {', '.join(history)}")
        raise


def _picture(play: Play) -> Hashable:
    """Return all of a state that any later step can distinguish."""
    driver = play.driver
    recovered = driver.recovered(driver.journal)
    parts = (
        _broker(driver.broker),
        [_operation(operation) for operation in driver.broker.pending],
        driver.writing is not None and [_operation(operation) for operation in driver.writing],
        _broker(recovered),
        _model(driver.model),
        sorted(play.used),
    )
    return _ranked(parts)


class Revision(int):
    """A number of which only the order matters."""


def _ranked(parts: object) -> Hashable:
    found: set[int] = set()

    def collect(part: object) -> None:
        if type(part) is Revision:
            found.add(part)
        elif isinstance(part, list | tuple):
            for item in part:
                collect(item)

    collect(parts)
    ranks = {revision: rank for rank, revision in enumerate(sorted(found))}

    def rank(part: object) -> Hashable:
        if type(part) is Revision:
            return ranks[part]
        if isinstance(part, list | tuple):
            return tuple(rank(item) for item in part)
        return part

    return rank(parts)


def _broker(broker: Broker) -> list[object]:
    parts: list[object] = [broker.scanning]
    parts += sorted((t.name, Revision(t.change.revision), t.change.deleted) for t in broker.store.topics.values())
    for key, session in sorted(broker.sessions.items()):
        connection = session.connection
        parts.append(key)
        if connection is not None:
            receipts = [
                (max(0, position - broker.applied_seq), headers) for position, _, headers in connection.receipts
            ]
            turns = [subscription.id for subscription in connection.ready_queue]
            unwritten = [(s.id, t.name, Revision(r)) for s, t, r, _ in connection.unwritten]
            parts += [receipts, turns, unwritten, connection.in_flight, connection.waiting, connection.quiet]
        parts += [_subscription(s) for _, s in sorted(session.subscriptions.items())]
    return parts


def _subscription(subscription: Subscription) -> list[object]:
    return [
        subscription.id,
        subscription.applied,
        subscription.connection is not None,
        sorted(topic.name for topic in subscription.owed),
        [topic.name for topic in subscription.queue],
        [(Revision(r), subscription.unacked[r][0].name) for r in subscription.sent],
        sorted((d, Revision(r)) for d, r in subscription.unrecorded.items()),
    ]


def _operation(operation: Operation) -> list[object]:
    if isinstance(operation, Change):
        return [Revision(operation.revision), operation.destination, operation.deleted]
    if isinstance(operation, AcknowledgementRecord):
        return [operation.subscription, [(d, Revision(r)) for d, r in operation.positions]]
    if isinstance(operation, SubscriptionRecord | UnsubscriptionRecord):
        target = operation.target
        return [type(operation).__name__, operation.subscription, isinstance(target, Subscription) and target.removed]
    return [type(operation).__name__]


def _model(known: model.Model) -> list[object]:
    parts: list[object] = []
    for name, session in sorted(known.sessions.items()):
        connection = session.connection
        parts.append(name)
        if connection is not None:
            parts += [(r.answer, r.operation is None or r.operation.done, r.allowed) for r in connection.receipts]
            parts += [(s.id, Revision(m.value.revision)) for s, m in connection.unwritten]
        parts += [_kept(s) for _, s in sorted(session.subscriptions.items())]
    parts += [_kept(s) for _, s in known.zombies]
    return parts


def _kept(subscription: model.Subscription) -> list[object]:
    newest: Iterable[tuple[str, model.Message]] = sorted(subscription.newest.items())
    waiting = [topic for topic, _ in newest if subscription.waiting(topic)]
    return [
        subscription.active,
        [(t, Revision(m.value.revision), m.state, m.recorded, m.unrecorded) for t, m in newest],
        [Revision(m.value.revision) for m in subscription.sent],
        sorted(waiting, key=lambda topic: subscription.place.get(topic, 0)),
        sorted(subscription.loose & set(waiting)),
        sorted(subscription.optional & set(waiting)),
        sorted(other.id for other in subscription.passed_by),
    ]
