"""Random histories of a broker with several topics, clients and subscriptions, checked step by step against the model."""

import random
from collections.abc import Callable
from functools import partial

from tests.simulation.driver import Driver

TOPICS = tuple(f"X/{store}.{n}" for store in "ab" for n in range(3))
GLOBS = {
    "X/*": frozenset(TOPICS),
    "X/a.*": frozenset(t for t in TOPICS if t.startswith("X/a")),
    "X/*.0": frozenset(t for t in TOPICS if t.endswith("0")),
    "X/b.1": frozenset({"X/b.1"}),
}
CLIENTS = ("anna", "bert", "cleo")
IDS = ("s", "t")
RIGHTS = (frozenset(TOPICS), frozenset(TOPICS), frozenset(TOPICS), frozenset(TOPICS[:3]), frozenset(TOPICS[2:]))

Step = Callable[[], None]


def subscribed(driver: Driver, client: str, live: bool) -> list[str]:
    """Return ids of a client's subscriptions that are attached, or that are not."""
    session = driver.model.sessions.get(client)
    subscriptions = session.subscriptions.values() if session is not None else ()
    return [s.id for s in subscriptions if (s.connection is not None) is live]


def steps(driver: Driver, rng: random.Random) -> list[tuple[int, Step]]:
    """Return what can happen next, with weights."""
    found: list[tuple[int, Step]] = [
        (6, driver.commit),
        (2, driver.take if driver.writing is None else driver.commit),
        (1, partial(driver.crash, rng.random() < 0.5)),
        (1, driver.tick),
        (2, partial(driver.scan, rng.choice((1, 2, 1000)))),
        (1, partial(driver.grant, rng.choice(CLIENTS), rng.choice(RIGHTS))),
    ]
    if driver.writing is not None:
        found.append((2, driver.refuse))
    elif not driver.broker.pending:
        found.append((1, driver.snapshot))
    if driver.old:
        found.append((1, driver.lose_old))
    for client in CLIENTS:
        found.append((1 if client in driver.connections else 6, partial(driver.connect, client)))
        if client not in driver.connections:
            continue
        found.append((1, partial(driver.lose, client)))
        found.append((8, partial(driver.deliver, client)))
        topic = rng.choice(TOPICS)
        found.append((6, partial(driver.send, client, topic, rng.random() < 0.25, rng.random() < 0.7)))
        for id_, revision in driver.unacked(client)[:4]:
            found.append((2, partial(driver.ack, client, id_, revision, rng.random() < 0.5)))
        found.append((1, partial(driver.ack, client, rng.choice(IDS), rng.randrange(1, 30), True)))
        found += subscription_steps(driver, client, rng)
    return found


def subscription_steps(driver: Driver, client: str, rng: random.Random) -> list[tuple[int, Step]]:
    """Return what a client can do with its subscriptions next, with weights."""
    live = subscribed(driver, client, live=True)
    session = driver.model.sessions[client]
    found: list[tuple[int, Step]] = []
    for id_ in IDS:
        if id_ in live:
            found.append((1, partial(driver.unsubscribe, client, id_, durable=rng.random() < 0.3)))
            continue
        old = session.subscriptions.get(id_)
        same = old is not None and rng.random() < 0.8
        glob = next(g for g, t in GLOBS.items() if old and t == old.topics) if same else rng.choice(tuple(GLOBS))
        step = partial(
            driver.subscribe,
            client,
            id_,
            glob,
            durable=old is not None or rng.random() < 0.6,
            acknowledged=rng.random() < 0.6,
            eager=rng.random() < 0.4,
        )
        found.append((4, step))
        found.append((1, partial(driver.unsubscribe, client, id_, durable=rng.random() < 0.5)))
    return found


def walk(seed: int, length: int = 120) -> None:
    """Do a random history, then bring everybody up to date.

    Raises:
        Violation: The broker differed from the model.
    """
    rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    window = rng.choice((1, 2, 3, None))
    driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, window, padding=rng.choice((b"", b"." * 16384)))
    for _ in range(length):
        found = steps(driver, rng)
        (step,) = rng.choices([step for _, step in found], [weight for weight, _ in found])
        step()
    driver.drain_all()
