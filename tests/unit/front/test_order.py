"""Clients of fronts: what they are promised holds across fronts, and does not depend on which they use."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.broker.policy import Rights
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.globs import compile_glob
from maxam.records import Change, Identity, UnsubscriptionRecord
from maxam.stomp.events import Connect
from maxam.stomp.frames import Frame
from tests.support.fronted_world import FrontClient, FrontedWorld
from tests.support.sans_io import EVERYTHING, receipts, values


def dispositions(frames: list[Frame]) -> list[tuple[str, str]]:
    """Return receipt id and result, or disposition, of each RECEIPT."""
    return [
        (f.headers[b"receipt-id"].decode(), (f.headers.get(b"result") or f.headers.get(b"disposition", b"")).decode())
        for f in frames
        if f.command == b"RECEIPT"
    ]


def test_a_send_at_one_front_is_delivered_at_all() -> None:
    """Subscribers of both fronts get the value once; its sender gets its RECEIPT."""
    world = FrontedWorld()
    sender, near, far = world.connected(0), world.connected(0), world.connected(1)
    near.subscribe(ack="auto")
    far.subscribe(ack="auto")
    world.settle()
    sender.send("X/a", b"1", "r1")
    assert sender.read() == []
    world.settle()
    assert dispositions(sender.read()) == [("r1", "accepted")]
    assert values(near.read()) == values(far.read()) == [("X/a", "1")]


def test_an_eager_subscribe_behind_its_own_receipt_sees_the_value() -> None:
    """The barrier of a SUBSCRIBE takes its place after the SENDs of the same connection."""
    world = FrontedWorld()
    client = world.connected(1)
    client.send("X/a", b"1", "r1")
    client.subscribe(ack="auto", eager=True, receipt="r2")
    client.send("X/a", b"2", "r3")
    world.settle()
    frames = client.read()
    assert [one for one, _ in receipts(frames)] == ["r1", "r2", "r3"]
    assert values(frames) in ([("X/a", "1"), ("X/a", "2")], [("X/a", "2")])


@pytest.mark.parametrize("at", [0, 1])
def test_conditions_are_decided_in_the_one_order(at: int) -> None:
    """The second of two that expect the same revision is in conflict, at whichever front; a repeated source is superseded."""
    world = FrontedWorld()
    one, other = world.connected(0), world.connected(at)
    one.send("X/a", b"1", "r1", if_revision="0")
    world.to_leader(world.fronts[0])
    other.send("X/a", b"2", "r2", if_revision="0")
    other.send("X/b", b"3", "r3", source="s", source_revision="5")
    other.send("X/b", b"4", "r4", source="s", source_revision="5")
    world.settle()
    frames = one.read()
    assert dispositions(frames) == [("r1", "accepted")]
    assert frames[0].headers[b"revision"] == b"1"
    assert dispositions(other.read()) == [("r2", "conflict"), ("r3", "accepted"), ("r4", "superseded")]


def test_a_rejected_send_ends_a_connection_that_wants_it_and_nothing_after_it_has_an_effect() -> None:
    """SENDs that were on their way after the rejected one are rejected too."""
    world = FrontedWorld()
    client = world.connected(1, rejections="error")
    client.send("X/a", b"1", "r1")
    client.send("X/a", b"2", "r2", if_revision="7")
    client.send("X/b", b"3", "r3")
    world.settle()
    frames = client.read()
    assert [f.command for f in frames] == [b"RECEIPT", b"ERROR"]
    assert [r.destination for r in world.journal.records() if isinstance(r, Change)] == [b"X/a"]


def test_a_full_disk_refuses_values_and_keeps_the_rest() -> None:
    """SENDs are answered in their place, a durable SUBSCRIBE fails its connection, ACKs stay."""
    world = FrontedWorld()
    client, other = world.connected(0), world.connected(1)
    other.subscribe(ack="auto")
    world.settle()
    client.send("X/a", b"1", "r1")
    client.subscribe(id_="t", ack="auto", receipt="r2")
    client.send("X/a", b"2", "r3", if_revision="0")
    world.to_leader(world.fronts[0])
    world.begin_commit()
    other.send("X/b", b"3", "r4")
    world.to_leader(world.fronts[1])
    world.end_commit(full=True)
    world.settle()
    assert [one for one, _ in dispositions(client.read())] == ["r1", "r2", "r3"]
    client.send("X/a", b"4", "r5")
    world.settle()
    assert dispositions(client.frames)[0][1] == dispositions(client.frames)[2][1] == "disk-full"
    client.read()
    assert dispositions(client.frames)[-1] == ("r5", "accepted")
    assert dispositions(other.read()) == [("r4", "disk-full")]
    assert values(other.frames) == [("X/a", "4")]


@pytest.mark.parametrize("leaves", [False, True])
def test_no_receipt_shows_that_a_refused_will_is_stored(leaves: bool) -> None:
    """Neither of a SEND that was rejected before, nor of one that the disk refused, nor of a DISCONNECT."""
    world = FrontedWorld(count=1)
    (front,) = world.fronts
    client = world.client(client_id="c", will_destination="X/a", will_body="will")
    world.to_leader(front)
    world.begin_commit()
    world.end_commit()
    while world.to_front(front):
        pass
    client.send("malformed", b"", "r1")
    client.send("X/a", b"", "r2")
    if leaves:
        client.write(b"DISCONNECT\nreceipt:r3\n\n\0")
    while world.to_leader(front):
        pass
    world.begin_commit()
    world.end_commit(full=True)
    world.settle()
    assert [frame.command for frame in client.read()] == [b"CONNECTED", *([] if leaves else [b"ERROR"])]
    assert client.peer.finished


def test_a_durable_session_goes_on_at_another_front() -> None:
    """Acknowledged values of one front do not come at the other one. The rest does, in order."""
    world = FrontedWorld()
    sender, first = world.connected(0), world.connected(0, client_id="pump")
    first.subscribe(durable=True, receipt="s")
    world.settle()
    first.read()
    for number in range(3):
        sender.send(f"X/{number}", b"v")
        world.settle()
    messages = first.read()
    first.ack(messages[0])
    first.lose()
    world.settle()
    second = world.connected(1, client_id="pump")
    second.subscribe(durable=True)
    world.settle()
    assert values(second.read()) == [("X/1", "v"), ("X/2", "v")]


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0), (1, 1)])
def test_the_newest_connection_takes_a_session_over(one: int, other: int) -> None:
    """The older one gets ERROR; what it has acknowledged does not come again."""
    world = FrontedWorld()
    sender, old = world.connected(0), world.connected(one, client_id="pump")
    old.subscribe(durable=True)
    world.settle()
    sender.send("X/a", b"1")
    sender.send("X/b", b"2")
    world.settle()
    messages = old.read()
    old.ack(messages[-2])
    new = world.client(other, client_id="pump")
    world.settle()
    assert old.read()[-1].command == b"ERROR"
    assert new.read()[0].command == b"CONNECTED"
    new.subscribe(durable=True)
    world.settle()
    assert values(new.read()) == [("X/b", "2")]
    new.send("X/c", b"3", "r")
    world.settle()
    assert dispositions(new.read()) == [("r", "accepted")]


def test_a_front_that_does_not_answer_keeps_no_session() -> None:
    """The claim is granted after a moment."""
    world = FrontedWorld()
    world.connected(0, client_id="pump")
    new = world.client(1, client_id="pump")
    world.to_leader(world.fronts[1])
    world.begin_commit()
    world.end_commit()
    world.pass_time(0.6)
    while world.to_front(world.fronts[1]):
        pass
    assert new.read()[0].command == b"CONNECTED"


def test_a_front_that_dies_releases_its_sessions_and_what_it_has_sent_takes_effect() -> None:
    """Its durable session goes on elsewhere; another front takes its place."""
    world = FrontedWorld()
    client, other = world.connected(0, client_id="pump"), world.connected(1)
    other.subscribe(ack="auto")
    client.subscribe(durable=True)
    world.settle()
    client.send("X/a", b"1")
    world.to_leader(world.fronts[0])
    world.kill(0)
    world.settle()
    assert values(other.read()) == [("X/a", "1")]
    again = world.connected(0, client_id="pump")
    again.subscribe(durable=True)
    world.settle()
    assert values(again.read()) == [("X/a", "1")]


def test_a_session_that_is_not_granted_in_time_ends_its_connection() -> None:
    """A claim waits for the disk as all operations do; its client hears why it is not served."""
    world = FrontedWorld()
    client = world.client(0)
    world.to_leader(world.fronts[0])
    world.pass_time(30.0)
    client.peer.tick(world.leader.now_s)
    (error,) = client.read()
    assert error.headers[b"message"] == b"session not granted"


def test_limits_on_sessions_are_those_of_all_fronts() -> None:
    """The gateway counts the sessions of a principal over all its fronts."""
    world = FrontedWorld(limits=Limits(sessions_per_principal_max=2))
    world.connected(0)
    world.connected(1)
    third = world.client(0)
    world.settle()
    assert third.read()[-1].command == b"ERROR"


def test_limits_on_rates_are_those_of_all_fronts() -> None:
    """The bytes and the connections of a principal are counted over all fronts."""
    limits = Limits(send_bytes_per_s_max=10, connects_per_principal_per_s=1, connects_per_principal_burst=2)
    world = FrontedWorld(limits=limits)
    one, other = world.connected(0), world.connected(1)
    third = world.client(1)
    world.settle()
    assert third.read()[-1].headers[b"message"] == b"connecting too often"
    one.send("X/a", bytes(200), "r1")
    world.settle()
    other.send("X/a", bytes(200), "r2")
    world.settle()
    assert dispositions(one.read()) == [("r1", "accepted")]
    assert dispositions(other.read()) == [("r2", "too-fast")]


def ask(world: FrontedWorld, asked: list[Connect], client_id: str) -> FrontClient:
    """Begin the connection of a client with a ticket, which its front asks the gateway for."""
    world.admit = asked.append
    client = world.client(0, "page", client_id=client_id, login="ticket", passcode="t")
    world.settle()
    assert (len(asked), client.read()) == (1, [])
    return client


def test_a_connect_waits_for_the_answer_about_its_ticket() -> None:
    """Nothing is read meanwhile. A refusal ends the connection; an answer to one that has left has no effect."""
    world = FrontedWorld()
    rights = Rights((compile_glob("X/**", world.limits),), (), frozenset(), None, world.limits)
    asked: list[Connect] = []
    client = ask(world, asked, "tab")
    assert not client.peer.receiving
    client.peer.admitted(asked[0], Identity("page", ""), rights)
    world.settle()
    assert [frame.command for frame in client.read()] == [b"CONNECTED"]
    client.send("X/a", b"1", "r1")
    world.settle()
    assert dispositions(client.read()) == [("r1", "accepted")]

    asked.clear()
    client = ask(world, asked, "tab")
    client.peer.refused(ProtocolError("ticket invalid", ""), world.leader.now_s)
    assert client.read()[-1].command == b"ERROR"

    asked.clear()
    client = ask(world, asked, "gone")
    client.lose()
    client.peer.admitted(asked[0], Identity("page", ""), rights)
    world.settle()
    assert ("page", "gone") not in world.leader.broker.sessions


def test_a_send_by_a_ticket_that_crosses_a_reload_takes_effect() -> None:
    """The gateway judges it by the new schemas, and not by rights of a principal that the policy does not have."""
    world = FrontedWorld()
    rights = Rights((compile_glob("X/**", world.limits),), (), frozenset(), None, world.limits)
    asked: list[Connect] = []
    client = ask(world, asked, "tab")
    client.peer.admitted(asked[0], Identity("page", ""), rights)
    world.settle()
    client.read()
    client.send("X/a", b"1", "r1")
    world.fronts[0].replica.flush()
    world.reload(anna=EVERYTHING)
    world.settle()
    assert dispositions(client.read()) == [("r1", "accepted")]


def test_the_front_of_a_session_ends_its_unused_subscription_and_the_gateway_does_not() -> None:
    """The gateway never ends a subscription of a session that a front has, however long the front is silent."""
    world = FrontedWorld(limits=Limits(session_expiry_s=5.0))
    first = world.connected(0, client_id="pump")
    for name in ("used", "unused"):
        first.subscribe(id_=name, durable=True)
    world.settle()
    first.lose()
    world.settle()
    again = world.connected(1, client_id="pump")
    again.subscribe(id_="used", durable=True)
    world.settle()

    def ended() -> list[bytes]:
        return [r.subscription for r in world.journal.records() if isinstance(r, UnsubscriptionRecord)]

    for _ in range(40):
        world.pass_time(1.0)
        while world.begin_commit():
            world.end_commit()
    assert ended() == []
    world.settle()
    assert ended() == [b"unused"]


class Random:
    """Clients of a fronted world that act at random, and what must hold of each."""

    def __init__(self, seed: int, full: float) -> None:
        self.choice = random.Random(seed)  # noqa: S311
        self.full = full
        self.world = FrontedWorld(count=self.choice.choice([1, 2, 3]))
        self.clients: list[FrontClient] = []
        self.sent = 0
        self.seen: dict[FrontClient, dict[str, int]] = {}
        self.asked: dict[FrontClient, list[str]] = {}
        self.accepted: set[str] = set()
        self.refused: set[str] = set()

    def run(self, steps: int) -> None:
        """Act; then let everything settle."""
        for _ in range(steps):
            self.choice.choice([self.act, self.step, self.step, self.read])()
        self.full = 0.0
        for _ in range(5):
            self.world.pass_time(0.2)
            self.world.settle()
            self.read_all()

    def act(self) -> None:
        """Have a client do something."""
        choice = self.choice
        if len(self.clients) < 3 or choice.random() < 0.05:
            at = choice.randrange(len(self.world.fronts))
            name = choice.choice([{}, {"client_id": "p1"}, {"client_id": "p2"}])
            client = self.world.client(at, **name)
            self.clients.append(client)
            self.seen[client] = {}
            self.asked[client] = []
            return
        client = choice.choice(self.clients)
        if not client.frames or client.peer.end or client.peer.finished:
            return
        what = choice.random()
        if what < 0.5:
            self.sent += 1
            receipt = f"{self.sent}"
            self.asked[client].append(receipt)
            headers = choice.choice([{}, {}, {"if_revision": str(choice.randrange(3))}])
            client.send(f"X/{choice.randrange(3)}", receipt.encode(), receipt, **headers)
        elif what < 0.7 and b"s" not in self._subscriptions(client):
            self.sent += 1
            self.asked[client].append(f"{self.sent}")
            client.subscribe(
                ack=choice.choice(["auto", "client"]),
                durable=choice.random() < 0.5,
                eager=choice.random() < 0.5,
                receipt=f"{self.sent}",
            )
        elif what < 0.8:
            unacked = [f for f in client.frames if f.command == b"MESSAGE"]
            if unacked:
                client.ack(choice.choice(unacked[-3:]))
        elif what < 0.83:
            client.lose()
        elif what < 0.84:
            at = choice.randrange(len(self.world.fronts))
            for one in self.clients:
                if one.front is self.world.fronts[at]:
                    one.lose()
            self.world.kill(at)
        elif what < 0.86:
            self.world.pass_time(choice.choice([0.05, 0.2, 1.0]))

    @staticmethod
    def _subscriptions(client: FrontClient) -> list[bytes]:
        connection = client.peer.connection
        if connection is None:
            return [b"s"]
        return [one.id for one in connection.session.subscriptions.values() if one.connection is not None]

    def step(self) -> None:
        """Have a frame arrive, or the disk answer."""
        self.world.step(self.choice, self.full)

    def read(self) -> None:
        """Have a client read."""
        if self.clients:
            self.check(self.choice.choice(self.clients))

    def read_all(self) -> None:
        """Have all clients read."""
        for client in self.clients:
            self.check(client)

    def check(self, client: FrontClient) -> None:
        """Check what a client reads: receipts in the order of its frames, and of each topic never older after newer."""
        committed = self.world.orders.position.revision
        for frame in client.read():
            if frame.command == b"RECEIPT":
                receipt = frame.headers[b"receipt-id"].decode()
                assert self.asked[client].pop(0) == receipt
                disposition = frame.headers.get(b"disposition", b"")
                if disposition == b"accepted":
                    self.accepted.add(receipt)
                elif disposition:
                    self.refused.add(receipt)
            elif frame.command == b"MESSAGE":
                topic = frame.headers[b"destination"].decode()
                revision = int(frame.headers[b"message-id"])
                assert revision <= committed
                before = self.seen[client].get(topic, 0)
                assert revision >= before, (topic, revision, before)
                self.seen[client][topic] = revision

    def check_end(self) -> None:
        """Check that each accepted SEND is in the journal once and no refused one, and that all brokers hold the same."""
        bodies = [record.body.decode() for record in self.world.journal.records() if isinstance(record, Change)]
        assert len(set(bodies)) == len(bodies)
        assert self.accepted <= set(bodies)
        assert not self.refused & set(bodies)
        leader = self.world.leader.broker
        newest = {name: topic.change.revision for name, topic in leader.store.topics.items()}
        for front in self.world.fronts:
            assert front.replica.serving
            broker = front.world.broker
            assert {name: topic.change.revision for name, topic in broker.store.topics.items()} == newest
            assert broker.applied_seq == broker.appended_seq
        for client in self.clients:
            connection = client.peer.connection
            if connection is None or client.peer.finished or client.peer.end:
                continue
            if client.front is None or not client.front.alive:
                continue
            assert not self.asked[client], (self.asked[client], client.frames)
            for subscription in connection.session.subscriptions.values():
                if subscription.connection is connection and subscription.eager and not subscription.acknowledged:
                    for name, revision in newest.items():
                        assert self.seen[client].get(name.decode()) == revision


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.0, 0.3]))
def test_promises_hold_whatever_arrives_first(seed: int, full: float) -> None:
    """Random clients, fronts that die, and a disk that is full at times."""
    history = Random(seed, full)
    history.run(200)
    history.check_end()
