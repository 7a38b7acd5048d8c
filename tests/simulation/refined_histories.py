"""Refined subscriptions: all short histories of one client, and long random ones of several.

The rules are in `refined`.
"""

import random
from dataclasses import replace
from unittest.mock import patch

from maxam.broker import scans, selected_routes
from tests.simulation.refined import PADDING, TOPICS, Asks, Field, Reader, Row, bring_up_to_date, known_globs
from tests.simulation.selected import COLOURS, LEVELS, SELECTIONS, SELECTORS, STATES

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
    Asks(selector="state = 'ON'", metadata=True),
    Asks(ack="client", selector="state = 'ON'", interval_ms=SECOND_MS, markers=False),
    Asks(ack="client-individual", durable=True, eager=False, selector="state = 'ON'", changes_only=True),
)
OTHER: Row = ("OFF", None, True, "")  # no selector of those above matches


class History:
    """One short history: a reader, and a topic that had a value when it subscribed."""

    def __init__(self, asks: Asks) -> None:
        self.place = Field(typed=bool(asks.selector))
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
        if asks.selector:
            found += ["other X/a"]
        if reader.client is None:
            return [*found, "come"]
        return [*found, "lose", "read", *(["come"] if asks.durable else []), *(["ack"] if reader.to_ack else [])]

    def do(self, step: str) -> None:
        """Let one thing happen."""
        place, reader = self.place, self.reader
        match step.split():
            case ["other", topic]:
                place.send(topic, row=OTHER)
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
        _play(rng, place, length, turbulent)


def selective(rng: random.Random, length: int = 80) -> None:
    """Do the same with selectors on values with fields. Sessions are taken over too, and the journal is restored from a backup.

    Raises:
        Violation: A client got or has something that breaks a rule.
    """
    few = patch.object(selected_routes, "SELECTIVE_MIN", rng.choice((1, 8)))
    with known_globs(), patch.object(scans, "SCAN_TOPICS", rng.choice((0, 1000))), few:
        place = Field(padding=rng.choice((b"", PADDING)), typed=True)
        for number in range(rng.choice((1, 2, 2, 12))):
            selector = rng.choice((*SELECTORS, "", "state = 'ON'"))
            asks = replace(_any_asks(rng), selector=selector)
            Reader(place, f"reader{number}", asks, rng.choice(("1", "2", "50")))
        _play(rng, place, length, turbulent=rng.random() < 0.2)


def as_json(rng: random.Random, length: int = 80) -> None:
    """Do the same with clients that get JSON, all fields or some of them, beside others that get the bodies.

    Raises:
        Violation: A client got or has something that breaks a rule.
    """
    with known_globs(), patch.object(scans, "SCAN_TOPICS", rng.choice((0, 1000))):
        place = Field(padding=rng.choice((b"", PADDING)), typed=True)
        for number in range(rng.choice((2, 3, 8))):
            asks = replace(_any_asks(rng), selector=rng.choice((*SELECTORS, "", "")), json=number > 0)
            if number and (fields := rng.choice(SELECTIONS)):
                asks = replace(asks, fields=fields, changes_only=False)  # the model compares whole values
            Reader(place, f"reader{number}", asks, rng.choice(("1", "2", "50")))
        _play(rng, place, length, turbulent=rng.random() < 0.2)


def crowd(rng: random.Random, clients: int = 1000) -> None:
    """Have many clients return at once, with positions and without, after changes that some of them have seen.

    Raises:
        Violation: A client got or has something that breaks a rule.
    """
    with known_globs():
        place = Field(padding=b"", typed=True)
        for number in range(clients):
            asks = replace(_any_asks(rng), selector=rng.choice((*SELECTORS, "")), interval_ms=rng.choice((0, 0, 1000)))
            Reader(place, f"reader{number}", asks)
        for _ in range(2):
            for topic in TOPICS:
                place.send(topic, row=_any_row(rng))
            bring_up_to_date(place)
            for reader in place.readers:
                reader.cut(rng.randrange(4))
            for topic in TOPICS:
                place.send(topic, delete=rng.random() < 0.3, row=_any_row(rng))
            place.settle()
            for reader in place.readers:
                reader.come()
        bring_up_to_date(place)


def _play(rng: random.Random, place: Field, length: int, turbulent: bool) -> None:
    for _ in range(length):
        if turbulent and rng.random() < 0.05:
            rng.choice(place.readers).cut()
        if turbulent and rng.random() < 0.1:
            place.grant(rng.choice(GRANTS))
        if place.typed and rng.random() < 0.05:
            _upset(rng, place)
        _step(rng, place)
    bring_up_to_date(place)


def _upset(rng: random.Random, place: Field) -> None:
    """Take over a session, with luck in the middle of its catch-up, or restore a backup."""
    reader = rng.choice(place.readers)
    if rng.random() < 0.1:
        place.restore(rng.randrange(20))
    elif reader.client is not None:
        reader.take_over()


def _any_row(rng: random.Random) -> Row:
    return rng.choice(STATES), rng.choice(LEVELS), rng.random() < 0.2, rng.choice(COLOURS)


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
        topic, equal, delete = rng.choice(TOPICS), rng.random() < 0.3, rng.random() < 0.3
        place.send(topic, equal=equal, delete=delete, **({"row": _any_row(rng)} if place.typed else {}))
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
