"""Batches of limited size lead to the same outcomes as batches of all that waits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.journal_records import plain
from tests.support.sans_io import Client, World, receipts, values

TOPICS = ("X/a", "X/b", "X/c")


def act(client: Client, rng: random.Random, number: int) -> None:
    """Send one random frame, the same for the same state of chance."""
    topic, receipt = rng.choice(TOPICS), str(number)
    match rng.randrange(8):
        case 0:
            client.subscribe(rng.choice(("X/*", topic)), rng.choice("st"), "auto", receipt, eager=rng.random() < 0.5)
        case 1:
            client.unsubscribe(rng.choice("st"), receipt=receipt)
        case 2:
            client.send(topic, b"v" * rng.randrange(300), receipt, if_revision=str(rng.randrange(number + 1)))
        case 3:
            client.send(topic, b"w%d" % number, receipt, source="s", source_revision=str(rng.randrange(number + 1)))
        case 4:
            client.send(topic, b"", receipt)
        case 5:
            client.send("Y/none", b"refused", receipt)
        case _:
            client.send(topic, b"x" * rng.randrange(200), receipt if rng.random() < 0.7 else None)


def outcomes(seed: int, steps: int, sizes: list[int]) -> object:
    """Return the RECEIPTs of two clients, the journal and the newest values that a subscriber has after some steps.

    Args:
        seed: Of the clients.
        steps: Number of frames.
        sizes: Limits on the batches, in turn; each step takes one batch. None of them: each takes all.
    """
    rng = random.Random(seed)  # noqa: S311  # a simulation, not a secret
    world = World.make()
    clients = [world.client() for _ in range(2)]
    watcher = world.client()
    watcher.subscribe("X/*", "all", "auto")
    for number in range(steps):
        act(rng.choice(clients), rng, number)
        if rng.random() < 0.6:
            continue
        batch = world.broker.take_batch(sizes[number % len(sizes)] if sizes else 0)
        world.commit(batch)
        for client in (*clients, watcher):
            client.read()
    while world.broker.pending:
        world.commit(world.broker.take_batch(sizes[0] if sizes else 0))
    world.settle()
    for client in (*clients, watcher):
        client.read()
    newest = dict(values(watcher.frames))
    return [receipts(client.frames) for client in clients], newest, [plain(one) for one in world.journal]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 60), st.lists(st.integers(1, 600), min_size=1, max_size=4))
def test_the_size_of_batches_changes_no_outcome(seed: int, steps: int, sizes: list[int]) -> None:
    """RECEIPTs, their order, the journal and the newest values that a subscriber has are the same."""
    assert outcomes(seed, steps, sizes) == outcomes(seed, steps, [])


def test_batches_are_limited() -> None:
    """A small limit does leave operations for later."""
    world = World.make()
    client = world.client()
    for number in range(10):
        client.send("X/a", b"v" * 100, str(number))
    assert len(world.broker.take_batch(150)) < 10
