"""Routes that are divided by selector deliver what undivided ones do, and ask fewer subscriptions."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from maxam.broker import selected_routes
from maxam.stomp.events import SubscribeOptions
from tests.support.recorded_sessions import Recorder, Recording, differences
from tests.support.sans_io import World, values

CLIENTS = 10
TOPICS = ("X/a", "X/b", "X/c")
SELECTORS = ("header('n') = '1'", "header('n') IN ('1', '2')", "header('n') LIKE '%'")
RIGHTS = {"send": ["X/**"], "receive": ["X/**"]}
POLICIES = [{"anna": RIGHTS}, {"anna": {"send": ["X/**"], "receive": ["X/a", "X/b"]}}]


@contextmanager
def least(number: int) -> Iterator[None]:
    """Divide routes from this number of subscriptions on. Without effect on compiled modules."""
    with patch.object(selected_routes, "SELECTIVE_MIN", number):
        yield


def connect(recorder: Recorder, rng: random.Random, number: int) -> None:
    """Connect a client of a session, and subscribe with or without a selector."""
    recorder.do("open", number, "anna")
    session = number % CLIENTS
    recorder.do("write", number, f"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nclient-id:{session}\nwindow:2\n\n\0")
    headers = [f"ack:{rng.choice(['auto', 'client'])}"]
    if rng.random() < 0.8:
        headers.append(f"selector:{rng.choice(SELECTORS)}")
    headers += [f"{name}:true" for name in ("eager", "metadata", "markers", "changes-only") if rng.random() < 0.3]
    if session % 2:
        headers.append("durable:true")
    recorder.do("write", number, "\n".join(["SUBSCRIBE", "id:s", "destination:X/*", *headers, "\n\0"]))


def session_of(seed: int) -> Recording:
    """Make a random session of clients with selectors."""
    rng = random.Random(seed)  # noqa: S311 - a session to repeat, not a secret
    recorder = Recorder(Recording(f"random {seed}", {}, policies=POLICIES))
    recorder.do("open", 0, "anna")
    recorder.do("write", 0, "CONNECT\naccept-version:1.2\nhost:MAXVAPI\n\n\0")
    peers = list(range(1, CLIENTS + 1))
    opened = CLIENTS
    for number in peers:
        connect(recorder, rng, number)
    unacked: list[tuple[int, str]] = []
    for _ in range(150):
        match rng.choice(("send", "send", "send", "read", "read", "ack", "settle", "settle", "leave", "reload")):
            case "send":
                body = rng.choice(("", "v", "w"))
                lines = f"destination:{rng.choice(TOPICS)}\nn:{rng.randrange(4)}\ncontent-length:{len(body)}"
                recorder.do("write", 0, f"SEND\n{lines}\n\n{body}\0")
            case "read":
                number = rng.choice(peers)
                output = recorder.do("read", number)
                acks = [line for line in output.split("\n") if line.startswith("ack:s ")]
                unacked += [(number, line.removeprefix("ack:")) for line in acks]
            case "ack" if unacked:
                number, text = unacked.pop(rng.randrange(len(unacked)))
                if number in peers:
                    recorder.do("write", number, f"ACK\nid:{text}\n\n\0")
            case "leave" if rng.random() < 0.4:
                number = rng.choice(peers)
                peers.remove(number)
                recorder.do("lose", number)
                opened = number + CLIENTS
                peers.append(opened)
                connect(recorder, rng, opened)
            case "reload" if rng.random() < 0.3:
                recorder.do("reload", rng.randrange(len(POLICIES)))
            case _:
                recorder.do("settle")
    recorder.do("settle")
    for number in peers:
        recorder.do("drain", number)
    return recorder.recording


@pytest.mark.parametrize("seed", range(40))
def test_division_changes_nothing_for_clients(seed: int) -> None:
    """Each client receives the same bytes whether routes are divided or not."""
    with least(1):
        recording = session_of(seed)
    assert "MESSAGE" in "".join(recording.outputs)
    with least(10**9):
        assert list(differences(recording)) == []


def test_the_sessions_have_topics_that_leave() -> None:
    """The random sessions compare something: in most of them, topics leave."""
    assert sum("kind:left" in "".join(session_of(seed).outputs) for seed in range(20)) > 10


def test_a_client_that_may_hold_a_value_is_asked_after_another_one_has_left() -> None:
    """Of two clients with one selector and the value of a topic, the one that stays is sent `left`."""
    with least(1):
        world = World.make()
        publisher, first, second = world.client(), world.client(), world.client()
        for client in (first, second):
            client.subscribe(ack="auto", options=SubscribeOptions(selector=SELECTORS[0]))
        world.settle()
        publisher.send("X/a", b"v", n="1")
        world.settle()
        assert values(first.read()) == values(second.read()) == [("X/a", "v")]
        first.unsubscribe()
        for body, n in ((b"w", "0"), (b"x", "0"), (b"y", "1")):
            publisher.send("X/a", body, n=n)
            world.settle()
            expected = {b"w": [("X/a", "")], b"x": [], b"y": [("X/a", "y")]}[body]
            assert values(second.read()) == expected


def test_a_change_that_concerns_no_client_of_a_selector_asks_none() -> None:
    """Among many subscriptions with one selector, a change that does not match is routed to none of them."""
    world = World.make()
    publisher, *clients = [world.client() for _ in range(selected_routes.SELECTIVE_MIN + 2)]
    for client in clients:
        client.subscribe(ack="auto", options=SubscribeOptions(selector=SELECTORS[0]))
    plain = world.client()
    plain.subscribe(ack="auto")
    world.settle()
    publisher.send("X/a", b"v", n="0")
    world.settle()
    topic = world.broker.store.topics[b"X/a"]
    assert len(topic.routes) == len(clients) + 1
    assert len(world.broker._routing._selected.concerned(topic)) == 1
    assert values(plain.read()) == [("X/a", "v")]
    assert all(client.read() == [] for client in clients)
