"""The topics owed to one principal are bounded: the session that owes most ends, those of others stay."""

from itertools import product

import pytest
import trio

from maxam.config import Limits
from maxam.gateway.owed_watch import BYTES_PER_OWED, OwedWatch
from tests.support.sans_io import EVERYTHING, World

TOPICS = 4


def owing(limit: int, sessions: dict[tuple[str, str], int]) -> tuple[World, OwedWatch, list[None]]:
    """Return a world in which each session (principal, client-id) has durable subscriptions that owe all topics, and its watch."""
    world = World.make(limits=Limits(owed_per_principal_max=limit), anna=EVERYTHING, ben=EVERYTHING, cora=EVERYTHING)
    for (principal, client_id), subscriptions in sessions.items():
        client = world.client(principal, client_id=client_id)
        for number in range(subscriptions):
            client.subscribe("X/*", str(number), durable=True)
        world.settle()
        client.lose()
    sender = world.client("anna")
    for number in range(TOPICS):
        sender.send(f"X/{number}")
    world.settle()
    scheduled: list[None] = []
    return world, OwedWatch(world.broker, 1 << 30, lambda: scheduled.append(None)), scheduled


def ids(world: World, principal: str) -> set[str]:
    """Return the client-ids of a principal's sessions that have subscriptions."""
    return {key[1] for key, session in world.broker.sessions.items() if key[0] == principal and session.subscriptions}


@pytest.mark.parametrize(("counts", "limit"), list(product(product(range(4), repeat=3), (1, 2, 3, 5, 8))))
def test_the_largest_sessions_of_a_principal_above_the_limit_end(counts: tuple[int, ...], limit: int) -> None:
    """For all small numbers of subscriptions: what stays is within the limit, no smaller session went, others' sessions stay."""
    mine = {("ben", str(number)): count for number, count in enumerate(counts)}
    world, watch, scheduled = owing(limit * TOPICS, {**mine, ("cora", "c"): 1})
    trio.run(watch.check)
    stayed = ids(world, "ben")
    left = [count for (_, name), count in mine.items() if name in stayed]
    gone = [count for (_, name), count in mine.items() if count and name not in stayed]
    assert sum(left) <= limit
    assert not gone or min(gone) >= max(left, default=0)
    assert not gone or sum(left) + min(gone) > limit  # not one more than needed
    assert ids(world, "cora") == {"c"}
    assert (watch.ended, len(scheduled)) == (len(gone), len(gone))
    assert watch.most == max(sum(left), 1) * TOPICS
    world.settle()
    reopened = world.restart()
    assert {key[1] for key in reopened.broker.sessions if key[0] == "ben"} == stayed


def test_a_connected_client_is_told_and_gets_the_present_state_again() -> None:
    """Its connection ends with an ERROR that shows the limit; a new session of the same client-id starts afresh."""
    world, watch, _ = owing(TOPICS, {("cora", "c"): 1})
    ben = world.client("ben", client_id="b", window="1")
    for number in range(3):
        ben.subscribe("X/*", str(number), durable=True, eager=True)
    world.settle()
    ben.read()
    trio.run(watch.check)
    world.settle()
    (error,) = [frame for frame in ben.read() if frame.command == b"ERROR"]
    assert error.headers[b"message"] == b"too much owed"
    assert b"owed_per_principal_max" in error.body
    again = world.client("ben", client_id="b")
    again.subscribe("X/*", eager=True, ack="auto")
    world.settle()
    assert len([frame for frame in again.read() if frame.command == b"MESSAGE"]) == TOPICS
    trio.run(watch.check)
    assert watch.ended == 1


def test_without_a_limit_it_is_half_of_the_memory() -> None:
    """0 resolves to as many topics as fit in half of memory_bytes_max."""
    world = World.make(anna=EVERYTHING)
    assert OwedWatch(world.broker, 1 << 30, lambda: None).limit == (1 << 29) // BYTES_PER_OWED
