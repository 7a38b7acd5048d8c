"""Random histories of a broker with several topics, clients and subscriptions, checked step by step against the model."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from maxam.broker import scans
from maxam.records import SubscriptionRecord
from tests.simulation.driver import PADDING, SOURCES, Driver, cheap_globs

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

MOODS = {
    "any": (),
    "restarts": ("crash", "snapshot", "subscribe", "connect"),
    "refusals": ("refuse", "take", "subscribe", "crash"),
    "policies": ("grant", "scan", "commit", "subscribe"),
    "sources": ("send", "wait"),
}

Step = Callable[[], object]


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
        (1, driver.wait),
        (1, partial(driver.forget, rng.random() < 0.3)),
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
        mark, expected = conditions_of(driver, rng, topic)
        found.append((6, partial(driver.send, client, topic, rng.random() < 0.25, rng.random() < 0.7, mark, expected)))
        for id_, revision in driver.unacked(client)[:4]:
            found.append((2, partial(driver.ack, client, id_, revision, rng.random() < 0.5)))
        found.append((1, partial(driver.ack, client, rng.choice(IDS), rng.randrange(1, 30), True)))
        found += subscription_steps(driver, client, rng)
    return found


def conditions_of(driver: Driver, rng: random.Random, topic: str) -> tuple[tuple[str, int] | None, int | None]:
    """Return what a SEND asks to be compared with, mostly nothing: source and number, and a revision."""
    mark = (rng.choice(SOURCES), rng.randrange(8)) if rng.random() < 0.3 else None
    if rng.random() < 0.8:
        return mark, None
    value = driver.model.store.get(topic)
    return mark, rng.choice((0, driver.model.head, value.revision if value is not None else 1))


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
        durable, mode = old is not None or rng.random() < 0.6, rng.random()
        step = partial(
            driver.subscribe,
            client,
            id_,
            glob,
            durable=durable,
            acknowledged=mode < 0.6,
            eager=rng.random() < 0.4,
            individual=mode < 0.25,
        )
        found.append((4, step))
        found.append((1, partial(driver.unsubscribe, client, id_, durable=rng.random() < 0.5)))
    return found


def walk(rng: random.Random, length: int = 120) -> None:
    """Do a random history, then bring everyone up to date.

    Raises:
        Violation: The broker differed from the model.
    """
    window = rng.choice((1, 2, 3, None))
    mood = rng.choice(("any", "any", "any", "restarts", "refusals", "policies", "sources"))
    with cheap_globs(), small_slices(rng.choice((0, 2, 1000))):
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, window, rng.choice((b"", PADDING)))
        for _ in range(length):
            found = steps(driver, rng)
            weights = [weight * (5 if step_name(step) in MOODS[mood] else 1) for weight, step in found]
            (step,) = rng.choices([step for _, step in found], weights)
            step()
        driver.drain_all()


@contextmanager
def small_slices(topics: int) -> Iterator[None]:
    """Have eager scans of more topics than this done in batches. Without effect on compiled modules."""
    with patch.object(scans, "SCAN_TOPICS", topics):
        yield


def step_name(step: Step) -> str:
    """Return which method of the driver a step calls."""
    name: str = getattr(step.func if isinstance(step, partial) else step, "__name__", "")
    return name


def snapshots(rng: random.Random) -> None:
    """Let a durable subscription see some topics and miss others, then start from a snapshot."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), PADDING)
        driver.connect("anna")
        driver.connect("bert")
        driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=False)
        for _ in range(5):
            for topic in rng.choices(TOPICS, k=rng.randrange(2 * len(TOPICS))):
                driver.send("anna", topic, rng.random() < 0.2)
                driver.commit()
            for _ in range(rng.randrange(len(TOPICS))):
                driver.deliver("bert")
            for id_, revision in driver.unacked("bert")[: rng.choice((1, len(TOPICS)))]:
                driver.ack("bert", id_, revision)
        driver.settle()
        driver.snapshot()
        driver.connect("bert")
        driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=False)
        driver.drain_all()


def refused_replacements(rng: random.Random) -> None:
    """Have no room to replace a durable subscription, and restart."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, 2, b"")
        for glob in rng.sample(("X/a.*", "X/b.1", "X/*"), 2):
            driver.connect("anna")
            driver.send("anna", rng.choice(TOPICS))
            driver.subscribe("anna", "s", glob, durable=True, acknowledged=True, eager=rng.random() < 0.5)
            if any(isinstance(record, SubscriptionRecord) for record in driver.journal):
                driver.take()
                driver.refuse()
            driver.settle()
        driver.crash(found=False)
        for glob in ("X/b.1", "X/*", "X/a.*"):
            driver.connect("anna")
            driver.subscribe("anna", "s", glob, durable=True, acknowledged=True, eager=False)
            driver.drain_all()


def slices(rng: random.Random) -> None:
    """Scan for an eager subscription in small batches, with SENDs and reloads between them."""
    with cheap_globs(), small_slices(0):
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), PADDING)
        for client in ("anna", "bert"):
            driver.connect(client)
        for topic in rng.sample(TOPICS, 5):
            driver.send("anna", topic)
        driver.commit()
        driver.subscribe("bert", "s", "X/*", durable=rng.random() < 0.5, acknowledged=True, eager=True)
        driver.commit()
        while driver.broker.scanning:
            driver.scan(rng.choice((1, 2)))
            driver.deliver("bert")
            if rng.random() < 0.4:
                driver.send("anna", rng.choice(TOPICS), rng.random() < 0.2)
                driver.commit()
        driver.drain_all()


def reloads(rng: random.Random) -> None:
    """Reload the policy with other rights between SENDs to topics that were routed before."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), b"")
        driver.connect("anna")
        driver.connect("bert")
        eager = rng.random() < 0.5
        driver.subscribe("bert", "s", "X/*", durable=rng.random() < 0.5, acknowledged=rng.random() < 0.5, eager=eager)
        for _ in range(4):
            rights = frozenset(rng.sample(TOPICS, rng.randrange(len(TOPICS) + 1)))
            driver.grant("bert", rights)
            for topic in TOPICS:
                driver.send("anna", topic)
            driver.commit()
            driver.drain_all()
            if rng.random() < 0.5:  # there and back again
                driver.grant("bert", frozenset(TOPICS))
                driver.scan(rng.choice((1, 1000)))
                driver.grant("bert", rights)
                driver.drain_all()


def withheld(rng: random.Random) -> None:
    """Let a durable subscription miss changes for want of rights that it is granted later, with restarts before and after."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), b"")
        driver.connect("bert")
        driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=rng.random() < 0.5)
        for _ in range(4):
            driver.connect("anna")
            driver.grant("bert", frozenset(rng.sample(TOPICS, rng.randrange(len(TOPICS) + 1))))
            for topic in rng.sample(TOPICS, 3):
                driver.send("anna", topic, rng.random() < 0.2)
            driver.settle()
            if rng.random() < 0.5:
                (driver.snapshot if rng.random() < 0.5 else partial(driver.crash, False))()
            driver.grant("bert", frozenset(rng.sample(TOPICS, rng.randrange(len(TOPICS) + 1))))
            driver.settle()
            (driver.snapshot if rng.random() < 0.5 else partial(driver.crash, False))()
            if rng.random() < 0.7:
                driver.connect("bert")
                driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=rng.random() < 0.2)
                driver.drain_all()


def resumptions(rng: random.Random) -> None:
    """Resume durable subscriptions, eagerly or not, before what made them is committed and after it, and restart."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), b"")
        for id_ in IDS:
            for client in ("anna", "bert"):
                driver.connect(client)
            for _ in range(rng.randrange(2, 6)):
                driver.send("anna", rng.choice(TOPICS), rng.random() < 0.2)
                if id_ not in subscribed(driver, "bert", live=True):
                    acknowledged, eager = rng.random() < 0.5, rng.random() < 0.5
                    driver.subscribe("bert", id_, "X/*", durable=True, acknowledged=acknowledged, eager=eager)
                act = rng.random()
                if act < 0.3:
                    driver.connect("bert")
                elif act < 0.6:
                    driver.deliver("bert")
                    driver.unsubscribe("bert", id_, durable=False)
                    if rng.random() < 0.5:  # at once: what was handed out is not proven written
                        driver.subscribe("bert", id_, "X/*", durable=True, acknowledged=False, eager=True)
                elif act < 0.8:
                    driver.commit()
                elif driver.writing is None:
                    driver.take()
                driver.deliver("bert")
            if rng.random() < 0.7:
                driver.tick()
                driver.settle()
            if rng.random() < 0.5:
                driver.crash(found=rng.random() < 0.5)
            driver.connect("bert")
            for known in subscribed(driver, "bert", live=False):
                driver.subscribe("bert", known, "X/*", durable=True, acknowledged=True, eager=False)
            driver.drain_all()


def written(rng: random.Random) -> None:
    """Let a durable subscription with ack mode auto be written some values, then restart."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), PADDING)
        driver.connect("anna")
        for _ in range(3):
            driver.connect("bert")
            driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=False, eager=False)
            for topic in rng.choices(TOPICS, k=3):
                driver.send("anna", topic)
            driver.commit()
            for _ in range(rng.randrange(5)):
                driver.deliver("bert")
            driver.tick()
            driver.settle()
            driver.crash(found=False)
            driver.connect("anna")


def conditions(rng: random.Random) -> None:
    """Send values of several sources to two topics, deletes and others between them, with crashes, refusals and snapshots."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), b"")
        driver.connect("bert")
        driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=False)
        for _ in range(40):
            if "anna" not in driver.connections:
                driver.connect("anna")
            topic = rng.choice(TOPICS[:2])
            coming = [o.value for o in (*driver.model.writing, *driver.model.pending) if o.value is not None]
            value = next((v for v in reversed(coming) if v.topic == topic), driver.model.store.get(topic))
            present = value.revision if value is not None and value.body else 0
            mark = (rng.choice(SOURCES), rng.randrange(6)) if rng.random() < 0.7 else None
            expected = rng.choice((present, present, 0, 1)) if rng.random() < 0.3 else None
            driver.send("anna", topic, rng.random() < 0.3, mark=mark, expected=expected)
            act = rng.random()
            if act < 0.3:
                driver.commit()
            elif act < 0.5:
                (driver.take if driver.writing is None else driver.refuse)()
            elif act < 0.55:
                driver.crash(found=rng.random() < 0.5)
            elif act < 0.6:
                driver.snapshot()
            elif act < 0.7:
                driver.wait()
            if "anna" in driver.connections:
                driver.deliver("anna")
        driver.settle()
        driver.snapshot()
        driver.connect("bert")
        driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=False)
        driver.drain_all()


def individuals(rng: random.Random) -> None:
    """Acknowledge messages of a durable subscription one by one in any order, with newer values, cuts, crashes and snapshots between them."""
    with cheap_globs():
        driver = Driver(dict.fromkeys(CLIENTS, frozenset(TOPICS)), GLOBS, len(TOPICS), b"")
        for _ in range(5):
            driver.connect("anna")
            driver.connect("bert")
            driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=False, individual=True)
            for _ in range(rng.randrange(1, 4)):
                for topic in rng.sample(TOPICS, rng.randrange(len(TOPICS))):
                    driver.send("anna", topic, rng.random() < 0.2)
                driver.commit()
                driver.deliver("bert")
                unacked = driver.unacked("bert")
                for id_, revision in rng.sample(unacked, rng.randrange(len(unacked) + 1)):
                    driver.ack("bert", id_, revision, receipt=rng.random() < 0.5)
            driver.settle()
            act = rng.random()
            if act < 0.4:
                driver.snapshot()
            elif act < 0.8:
                driver.crash(found=False)
        driver.connect("bert")
        driver.subscribe("bert", "s", "X/*", durable=True, acknowledged=True, eager=False)
        driver.drain_all()


def directed(rng: random.Random) -> None:
    """Do a random history of each narrow kind."""
    for history in (
        snapshots,
        refused_replacements,
        slices,
        reloads,
        withheld,
        resumptions,
        written,
        conditions,
        individuals,
    ):
        history(rng)
