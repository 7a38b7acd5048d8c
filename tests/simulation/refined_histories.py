"""Refined subscriptions: all short histories of one client, and long random ones of several.

The rules are in `refined`.
"""

import random
from unittest.mock import patch

from maxam.broker import scans
from tests.simulation.refined import PADDING, TOPICS, Asks, Field, Reader, bring_up_to_date, known_globs

# All short histories.

SECOND_MS = 1000
KINDS = (
    Asks(),
    Asks(ack="client", metadata=True),
    Asks(interval_ms=SECOND_MS, metadata=True),
    Asks(changes_only=True, metadata=True),
    Asks(ack="client", interval_ms=SECOND_MS, changes_only=True),
    Asks(ack="client", durable=True, eager=False),
    Asks(durable=True, interval_ms=SECOND_MS, eager=False),
    Asks(ack="client-individual", durable=True, interval_ms=SECOND_MS, changes_only=True, metadata=True),
)


class History:
    """One short history: a reader, and a topic that had a value when it subscribed."""

    def __init__(self, asks: Asks) -> None:
        self.place = Field()
        self.place.send("X/a")
        self.place.settle()
        self.reader = Reader(self.place, "reader", asks)
        self.do("come")

    def steps(self) -> list[str]:
        """Return what can happen next."""
        asks, reader = self.reader.asks, self.reader
        found = ["value X/a", "value X/b", "time", "crash"]
        if self.place.newest("X/a")[1]:
            found += ["delete X/a", *(["equal X/a"] if asks.changes_only else [])]
        if reader.client is None:
            return [*found, "come"]
        return [*found, "lose", "read", *(["come"] if asks.durable else []), *(["ack"] if reader.to_ack else [])]

    def do(self, step: str) -> None:
        """Let one thing happen."""
        place, reader = self.place, self.reader
        match step.split():
            case [what, topic]:
                place.send(topic, equal=what == "equal", delete=what == "delete")
            case ["time"]:
                place.world.now_s += 0.6  # of two that follow each other the second ends an interval
                place.world.broker.tick(place.world.now_s)
            case ["crash"]:
                place.restart()
            case ["lose"]:
                reader.cut()
            case ["ack"]:
                reader.ack(0)
            case [name]:
                getattr(reader, name)()
            case _:
                raise AssertionError(step)
        place.settle()


def enumerate_refined(asks: Asks, depth: int) -> int:
    """Play all histories of at most `depth` steps, each to its end; return how many.

    Raises:
        Violation: A history broke a rule; it is in the notes of the exception.
    """
    played = 0
    with known_globs():
        pending: list[tuple[str, ...]] = [()]
        while pending:
            steps = pending.pop()
            played += 1
            try:
                history = History(asks)
                for step in steps:
                    history.do(step)
                if len(steps) < depth:
                    pending += [(*steps, step) for step in history.steps()]
                bring_up_to_date(history.place)
            except Exception as error:
                error.add_note(f"{asks}: {', '.join(steps)}")
                raise
    return played


# Random histories.

GRANTS = (frozenset(TOPICS), frozenset(TOPICS), frozenset(TOPICS[:2]), frozenset(TOPICS[1:]))


def refined(rng: random.Random, length: int = 80) -> None:
    """Let clients with all kinds of refined subscriptions come, go, read and return while topics, rights and machine change.

    Raises:
        Violation: A client got or has something that breaks a rule.
    """
    turbulent = rng.random() < 0.3
    with known_globs(), patch.object(scans, "SCAN_TOPICS", rng.choice((0, 1000))):
        place = Field(padding=rng.choice((b"", PADDING)))
        for number in range(rng.choice((1, 2, 2, 12))):
            Reader(place, f"reader{number}", _any_asks(rng), rng.choice(("1", "2", "50")))
        if rng.random() < 0.05:
            _grant_meanwhile(place)
        for _ in range(length):
            if turbulent and rng.random() < 0.05:
                rng.choice(place.readers).cut()
            if turbulent and rng.random() < 0.1:
                place.grant(rng.choice(GRANTS))
            _step(rng, place)
        bring_up_to_date(place)


def _grant_meanwhile(place: Field) -> None:
    """Grant a topic that changed before the positions of all readers, while their SUBSCRIBEs are on their way."""
    place.grant(GRANTS[2])
    for topic in reversed(TOPICS):
        place.send(topic)
    bring_up_to_date(place)
    for reader in place.readers:
        reader.come()
    place.grant(GRANTS[0])


def _any_asks(rng: random.Random) -> Asks:
    alone = rng.random() < 0.3
    one = rng.randrange(4)
    flags = [n == one if alone else rng.random() < 0.5 for n in range(4)]
    return Asks(
        rng.choice(("auto", "client", "client-individual")),
        durable=rng.random() < 0.4,
        eager=rng.random() < 0.6,
        markers=flags[0] or (not alone and rng.random() < 0.5),
        metadata=flags[1],
        changes_only=flags[2],
        interval_ms=rng.choice((50, 1000, 7000)) if flags[3] else 0,
    )


def _step(rng: random.Random, place: Field) -> None:
    world = place.world
    choice = rng.random()
    if choice < 0.25:
        place.send(rng.choice(TOPICS), equal=rng.random() < 0.3, delete=rng.random() < 0.3)
    elif choice < 0.4:
        place.commit()
    elif choice < 0.5:
        world.broker.scan(1)
    elif choice < 0.58:
        world.now_s += rng.choice((0.01, 0.05, 0.5, 1.0, 5.0))
        world.wall_us += rng.choice((1000, 1_000_000, -3_600_000_000))
        world.broker.tick(world.now_s)
    elif choice < 0.63:
        _disturb(rng, place, choice - 0.58)
    else:
        _act(rng, rng.choice(place.readers))


def _disturb(rng: random.Random, place: Field, choice: float) -> None:
    if choice < 0.015:
        place.grant(rng.choice(GRANTS))
    elif choice < 0.022:
        place.restart(snapshot=rng.random() < 0.5)
    elif choice < 0.03:  # memory is short
        place.world.broker.store.release_soon()
        for _ in range(4):
            place.world.broker.tick(place.world.now_s)
    elif choice < 0.044:  # rights change while a SUBSCRIBE is on its way
        for rights in (rng.choice(GRANTS), rng.choice(GRANTS)):
            rng.choice(place.readers).come()
            place.grant(rights)
    else:  # all return at once
        for one in place.readers:
            one.cut(rng.randrange(4))
        for one in place.readers:
            one.come()


def _act(rng: random.Random, reader: Reader) -> None:
    choice = rng.random()
    if reader.client is None or choice < 0.03:
        reader.come()
    elif choice < 0.06:
        reader.cut(rng.choice((0, 1, 2, 9)))
    elif choice < 0.08 and reader.asks.durable:
        reader.pause()
    elif choice < 0.11 and reader.asks.durable:
        reader.move()
        if rng.random() < 0.5:
            reader.come()
    elif choice < 0.4 and reader.to_ack:
        reader.ack(rng.randrange(len(reader.to_ack)))
    else:
        for _ in range(rng.choice((1, 1, 3))):
            reader.read()
