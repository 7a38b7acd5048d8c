"""Sessions, subscriptions and delivery, each rule of protocol.md's "Delivery" and "SUBSCRIBE / UNSUBSCRIBE" by name."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from maxam.broker import acknowledgements, admission, outbox, upkeep
from maxam.broker.policy import Rights
from maxam.broker.scans import SCAN_TOPICS
from maxam.broker.session import SCAN_READY_MAX
from maxam.broker.store import SWEEP_TOPICS, TOMBSTONE_SWEEP_MIN
from maxam.config import Limits
from maxam.gateway.holdings import Holdings
from maxam.gateway.server import Gateway, crowded
from maxam.globs import destination_problem
from maxam.records import AcknowledgementRecord, Change, SessionEndRecord
from maxam.stomp.events import Send
from maxam.stomp.frames import Frame
from tests.support.sans_io import EVERYTHING, World, policy, receipts, values


def error(frames: list[Frame]) -> str:
    """Return the message of the ERROR, which must be the last frame."""
    assert frames
    assert frames[-1].command == b"ERROR"
    return frames[-1].headers[b"message"].decode()


def ids(frames: list[Frame]) -> list[int]:
    """Return the message-ids of the MESSAGEs, in order."""
    return [int(frame.headers[b"message-id"]) for frame in frames if frame.command == b"MESSAGE"]


FORGETFUL = Limits(delete_retention_s=0)  # retains no deletes


def messages(frames: list[Frame]) -> list[Frame]:
    """Return the MESSAGEs."""
    return [frame for frame in frames if frame.command == b"MESSAGE"]


def sweep(world: World) -> None:
    """Let time pass until all tombstones have been checked, if that is due."""
    world.broker.tick(world.now_s)
    while world.broker.store.sweeping:
        world.broker.tick(world.now_s)


def test_an_accepted_change_has_the_next_revision_and_message_id_is_it() -> None:
    """Revisions count accepted changes of the whole broker without gaps; `message-id` is the revision in decimal."""
    world = World.make()
    client = world.client()
    client.subscribe(ack="auto")
    for n in range(3):
        client.send(f"X/a.{n}", receipt=str(n))
    client.send("bad destination", receipt="bad")
    client.send("X/a.3", receipt="3")
    world.settle()
    frames = client.read()
    assert ids(frames) == [1, 2, 3, 4]
    assert receipts(frames) == [
        ("0", "accepted"),
        ("1", "accepted"),
        ("2", "accepted"),
        ("bad", "rejected-invalid"),
        ("3", "accepted"),
    ]


def test_a_topic_and_its_values_share_one_name() -> None:
    """The stored change has the topic's own bytes as its name, from any SEND, so a million names are held once."""
    world = World.make()
    client = world.client()
    for body in (b"1", b"2", b"3"):
        client.send("X/a", body)
        world.settle()
        topic = world.broker.store.topics[b"X/a"]
        assert topic.change.body == body
        assert topic.change.destination is topic.destination


def test_nothing_leaves_before_its_commit() -> None:
    """No RECEIPT and no MESSAGE refers to a revision above the committed one."""
    world = World.make()
    client = world.client()
    client.subscribe(eager=True)
    world.settle()
    client.send("X/a.b", receipt="r")
    batch = world.take()
    assert client.read() == []
    world.commit(batch)
    frames = client.read()
    assert receipts(frames) == [("r", "accepted")]
    assert ids(frames) == [1]


def test_one_message_of_a_topic_is_unacked_and_newer_values_conflate() -> None:
    """While a MESSAGE is un-acked, newer values of its topic wait and conflate to the newest; other topics flow."""
    world = World.make()
    client = world.client()
    client.subscribe()
    client.send("X/a", b"1")
    world.settle()
    (first,) = messages(client.read())
    for body in (b"2", b"3"):
        client.send("X/a", body)
        world.settle()
    client.send("X/b", b"other")
    world.settle()
    assert values(client.read()) == [("X/b", "other")]
    client.ack(first)
    assert values(client.read()) == [("X/a", "3")]


def test_ready_topics_are_served_oldest_owed_first_and_a_new_value_does_not_move_one() -> None:
    """A new value for a waiting topic does not move it in the order of service."""
    world = World.make()
    client = world.client()
    client.subscribe(ack="auto")
    for destination in ("X/a", "X/b", "X/c", "X/a", "X/b"):
        client.send(destination, destination.encode())
    world.settle()
    assert [destination for destination, _ in values(client.read())] == ["X/a", "X/b", "X/c"]


def test_a_topic_rearmed_by_an_ack_goes_to_the_tail() -> None:
    """Keys notified but not yet sent are served before anything that an ACK re-arms."""
    world = World.make()
    client = world.client(window="1")
    client.subscribe()
    for destination in ("X/a", "X/b"):
        client.send(destination, b"1")
    world.settle()
    (first,) = messages(client.read())
    client.send("X/a", b"2")
    world.settle()
    client.ack(first)
    (second,) = messages(client.read())
    client.ack(second)
    assert [values([first]), values([second]), values(client.read())] == [
        [("X/a", "1")],
        [("X/b", "1")],
        [("X/a", "2")],
    ]


def test_subscriptions_of_a_connection_take_turns() -> None:
    """Subscriptions of a connection take turns, one value each."""
    world = World.make()
    client = world.client()
    client.subscribe("X/a.*", "s1", ack="auto")
    client.subscribe("X/b.*", "s2", ack="auto")
    for n in range(3):
        client.send(f"X/a.{n}")
    for n in range(3):
        client.send(f"X/b.{n}")
    world.settle()
    assert [f.headers[b"subscription"] for f in messages(client.read())] == [b"s1", b"s2"] * 3


def test_the_window_holds_back_every_subscription_of_the_connection() -> None:
    """At the limit nothing more is delivered on that connection, auto subscriptions included."""
    world = World.make()
    client = world.client(window="2")
    client.subscribe("X/a.*", "acked")
    client.subscribe("X/b.*", "auto", ack="auto")
    for n in range(3):
        client.send(f"X/a.{n}")
    world.settle()
    held = messages(client.read())
    client.send("X/b.0")
    world.settle()
    assert len(held) == 2
    assert client.read() == []
    client.ack(held[0])
    assert values(client.read()) == [("X/a.2", "value")]
    client.ack(held[1])
    assert values(client.read()) == [("X/b.0", "value")]


def test_a_client_that_acks_every_fiftieth_message_never_stalls() -> None:
    """A full window with topics ready and no ACK doubles after a while, up to the limit."""
    world = World.make()
    client = world.client()
    client.subscribe()
    for n in range(500):
        client.send(f"X/t.{n}")
    world.settle()
    got: list[Frame] = []
    for _ in range(200):
        got += messages(client.read())
        if len(got) == 500:
            break
        if len(got) % 50 == 0 and got:
            client.ack(got[-1])
        due_s = client.peer.next_due_s
        if due_s is not None and len(got) % 50:
            world.now_s = max(world.now_s, due_s)
            client.peer.tick(world.now_s)
    assert len(got) == 500


def test_ack_is_cumulative_in_the_order_of_sending_not_of_revisions() -> None:
    """An ACK covers what was sent before its message on that subscription, whatever the revisions."""
    world = World.make()
    client = world.client(window="2")
    client.subscribe()
    client.send("X/a", b"1")
    client.send("X/b", b"1")
    world.settle()
    first, second = messages(client.read())
    client.send("X/a", b"2")  # revision 3, un-acked a
    client.send("X/c", b"1")  # revision 4
    world.settle()
    client.ack(first)  # frees one slot: c goes, then a is re-armed after it
    (third,) = messages(client.read())
    assert values([third]) == [("X/c", "1")]
    client.ack(second)
    (fourth,) = messages(client.read())
    assert ids([third, fourth]) == [4, 3]
    client.ack(third)  # revision 4, sent before 3: 3 stays un-acked
    connection = client.peer.connection
    assert connection is not None
    assert connection.in_flight == 1
    client.ack(fourth)
    assert connection.in_flight == 0


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_an_unknown_or_repeated_ack_is_ignored(version: str) -> None:
    """Unknown or repeated ACKs: ignored, counted, RECEIPT `result:ignored`."""
    world = World.make()
    client = world.client(accept_version=version)
    client.subscribe()
    client.send("X/a")
    world.settle()
    (message,) = messages(client.read())
    client.ack(message, receipt="1")
    client.ack(message, receipt="2")
    client.ack(("s", 77), receipt="3")
    client.ack(("nobody", 1), receipt="4")
    assert receipts(client.read()) == [("1", ""), ("2", "ignored"), ("3", "ignored"), ("4", "ignored")]
    assert world.broker.counters.acks_ignored == 3


def test_an_ack_is_resolved_only_within_its_own_connection() -> None:
    """An ACK of another connection's message is ignored."""
    world = World.make()
    one, two = world.client(), world.client()
    one.subscribe()
    two.subscribe()
    two.send("X/a")
    world.settle()
    (message,) = messages(one.read())
    two.peer.closed(world.now_s, "gone")
    three = world.client()
    three.subscribe()
    world.settle()
    three.ack(message, receipt="r")
    assert receipts(three.read()) == [("r", "ignored")]


def test_eager_delivers_every_current_value_and_no_deleted_topic() -> None:
    """`eager:true`: the current value of every matching topic is delivered; deleted topics are not."""
    world = World.make()
    client = world.client()
    for n in range(5):
        client.send(f"X/a.{n}", b"old")
        client.send(f"X/a.{n}", b"new")
    client.send("X/a.3", b"")
    client.send("X/b.0", b"unmatched")
    world.settle()
    client.subscribe("X/a.*", eager=True, ack="auto")
    world.settle()
    assert sorted(values(client.read())) == [(f"X/a.{n}", "new") for n in (0, 1, 2, 4)]


def test_without_eager_only_later_updates_come() -> None:
    """Neither eager nor owed: only later updates."""
    world = World.make()
    client = world.client()
    client.send("X/a", b"before")
    client.subscribe()
    client.send("X/b", b"after")
    world.settle()
    assert values(client.read()) == [("X/b", "after")]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("place", range(6))
def test_a_subscribe_takes_its_place_among_racing_sends(eager: bool, place: int) -> None:
    """A SUBSCRIBE sees changes whose revision was assigned after it; eager has no gap and no double, whatever is in flight."""
    world = World.make()
    publisher, subscriber = world.client(), world.client()
    batch = None
    for n in range(6):
        if n == place:
            subscriber.subscribe(eager=eager, ack="auto")
        if n == 3:
            batch = world.take()
        publisher.send("X/a", str(n).encode())
        publisher.send(f"X/b.{n}", b"x")
    assert batch is not None
    world.commit(batch)
    got = subscriber.read()
    world.settle()
    got += subscriber.read()
    seen = ids(got)
    assert len(seen) == len(set(seen))
    topics = dict(values(got))
    assert topics["X/a"] == "5"
    expected = range(6) if eager else range(place, 6)
    assert {d for d in topics if d.startswith("X/b")} == {f"X/b.{n}" for n in expected}


def test_an_eager_scan_in_slices_has_no_gap_and_no_double() -> None:
    """Changes and new topics between the batches of a scan are delivered once each, with their newest value."""
    world = World.make()
    client = world.client()
    for n in range(3000):
        client.send(f"X/t.{n:04}", b"old")
    world.settle()
    client.subscribe(eager=True, ack="auto")
    world.commit()
    got: list[Frame] = []
    for n in range(8):
        got += client.read()
        world.broker.scan(500)
        got += client.read()
        client.send(f"X/t.{n * 400:04}", b"new")
        client.send(f"X/t.{n * 400:04}x", b"new")
        world.commit()
    world.settle()
    got += client.read()
    seen = ids(got)
    assert len(seen) == len(set(seen))
    assert {f.headers[b"destination"] for f in messages(got)} >= {b"X/t.%04d" % n for n in range(3000)}
    last = dict(values(got))
    assert all(last[f"X/t.{n * 400:04}"] == "new" for n in range(8) if n * 400 < 3000)


@pytest.mark.slow
def test_an_eager_scan_rests_while_its_subscriber_reads_nothing() -> None:
    """The topics owed for an eager SUBSCRIBE are bounded while its client does not read. All arrive, once, as it reads."""
    world = World.make()
    client = world.client(window="100")
    total = SCAN_READY_MAX + 3 * SCAN_TOPICS
    for n in range(total):
        client.send(f"X/t.{n:05}", b"old")
    world.settle()
    client.read()
    client.subscribe(eager=True, ack="client")
    world.settle()
    (session,) = (session for session in world.broker.sessions.values() if session.subscriptions)
    (subscription,) = session.subscriptions.values()
    assert SCAN_READY_MAX <= len(subscription.owed) < SCAN_READY_MAX + SCAN_TOPICS
    assert (world.broker.resting, world.broker.scanning) == (True, False)
    client.send(f"X/t.{total - 1:05}", b"new")
    world.settle()
    got: list[Frame] = []
    while frames := messages(client.read()):
        got += frames
        client.ack(frames[-1])
        world.broker.scan()
    assert not world.broker.resting
    assert sorted(f.headers[b"destination"] for f in got) == [b"X/t.%05d" % n for n in range(total)]
    assert dict(values(got))[f"X/t.{total - 1:05}"] == "new"


@pytest.mark.parametrize("frame", [b"NACK\nreceipt:r\n\n\0", b"DISCONNECT\nreceipt:r\n\n\0"])
def test_a_receipt_behind_a_batch_under_way_is_told_when_that_is_done(frame: bytes) -> None:
    """A RECEIPT that waits for nothing but what is being written wakes the writer when it is written."""
    world = World.make()
    client = world.client()
    client.send("X/a")
    batch = world.take()
    client.write(frame)
    assert client.read() == []
    woken = client.woken
    world.commit(batch)
    assert client.woken == woken + 1
    assert receipts(client.read()) == [("r", "ignored" if frame.startswith(b"NACK") else "")]


def test_a_resting_scan_keeps_no_other_from_its_turn() -> None:
    """A subscriber that reads nothing does not hold up the scan for another."""
    world = World.make()
    client = world.client()
    total = SCAN_READY_MAX + 2 * SCAN_TOPICS
    for n in range(total):
        client.send(f"X/t.{n:05}", b"old")
    world.settle()
    idle = world.client(window="1")
    idle.subscribe(eager=True, ack="client")
    world.settle()
    reader = world.client()
    reader.subscribe(eager=True, ack="auto")
    world.settle()
    got = messages(reader.read())
    while world.broker.scan():
        got += messages(reader.read())
    for _ in range(3):
        got += messages(reader.read())
        world.broker.scan()
    assert len({f.headers[b"destination"] for f in got}) == total


def test_what_is_given_back_is_judged_by_the_rights_of_its_next_delivery() -> None:
    """A value that was un-acked when the policy and then the connection changed is not sent again without the right."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe("X/*", durable=True)
    client.send("X/a")
    world.settle()
    assert len(messages(client.read())) == 1
    world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/b"]}))
    client.send("X/b")
    world.settle()
    assert [name for name, _ in values(client.read())] == ["X/b"]
    client.lose()
    client = world.client(client_id="me")
    client.subscribe("X/*", durable=True)
    world.settle()
    assert [name for name, _ in values(client.read())] == ["X/b"]


def test_identical_values_and_own_sends_are_updates() -> None:
    """A client receives its own SENDs when subscribed; an identical value is still an update."""
    world = World.make()
    client = world.client()
    client.subscribe(ack="auto")
    for _ in range(2):
        client.send("X/a", b"same")
        world.settle()
        assert values(client.read()) == [("X/a", "same")]


def test_overlapping_subscriptions_each_get_their_copy() -> None:
    """Overlapping subscriptions each get their copy."""
    world = World.make()
    client = world.client()
    client.subscribe("X/a", "one", ack="auto")
    client.subscribe("X/*", "two", ack="auto")
    client.send("X/a")
    world.settle()
    assert {f.headers[b"subscription"] for f in messages(client.read())} == {b"one", b"two"}


def test_a_delete_is_an_empty_message_and_an_absent_topic_notifies_nobody() -> None:
    """Subscribers get a MESSAGE with an empty body; deleting an absent topic is accepted, recorded and notifies no subscriber."""
    world = World.make()
    client = world.client()
    client.subscribe(ack="auto")
    client.send("X/gone", b"", receipt="absent")
    client.send("X/a", b"1")
    world.settle()
    assert values(client.read()) == [("X/a", "1")]
    client.send("X/a", b"", receipt="delete")
    world.settle()
    frames = client.read()
    assert values(frames) == [("X/a", "")]
    assert receipts(client.frames)[-1] == ("delete", "accepted")
    assert world.broker.store.live == 0
    assert b"X/gone" not in world.broker.store.topics
    assert [r.deleted for r in world.journal if isinstance(r, Change)] == [True, False, True]


# Durable subscriptions


def test_a_durable_subscription_resumes_with_what_changed_since() -> None:
    """On resume each topic that changed since is delivered once, deletes included, and nothing before the re-SUBSCRIBE."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True, receipt="new")
    world.settle()
    client.send("X/a", b"1")
    client.send("X/b", b"1")
    client.send("X/unchanged", b"1")
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("new", "created")]
    client.ack(messages(frames)[-1])
    client.lose()
    other = world.client()
    for body in (b"2", b"3"):
        other.send("X/a", body)
    other.send("X/b", b"")
    world.settle()
    client = world.client(client_id="me")
    assert client.frames[0].headers[b"session"] == b"me"
    assert client.read() == []
    client.subscribe(durable=True, receipt="again")
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("again", "resumed")]
    assert values(frames) == [("X/a", "3"), ("X/b", "")]


def test_unacked_messages_become_owed_again_for_durable_subscriptions() -> None:
    """Un-acked at disconnect: owed again for durable subscriptions, in the order in which they were sent."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    for n in range(3):
        client.send(f"X/{n}")
    world.settle()
    got = messages(client.read())
    client.ack(got[0])
    client.lose()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    assert ids(client.read()) == ids(got[1:])


def test_a_transient_subscription_ends_with_its_connection() -> None:
    """Transient subscriptions, and a session that has no other, end with the connection."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe()
    world.settle()
    client.lose()
    assert world.broker.sessions == {}
    world.client().send("X/a")
    world.settle()
    assert world.broker.store.topics[b"X/a"].routes == []


def test_same_id_with_another_destination_replaces() -> None:
    """Same id, other destination: `result:replaced`, nothing owed."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe("X/a", durable=True)
    client.send("X/a")
    client.send("X/b")
    world.settle()
    client.lose()
    client = world.client(client_id="me")
    client.subscribe("X/b", durable=True, receipt="r")
    world.settle()
    assert receipts(client.read()) == [("r", "replaced")]
    assert values(client.frames) == []


def test_durable_and_eager_on_resume_gives_all_values_and_owed_deletes() -> None:
    """`durable` and `eager` on resume: all matching values plus owed deletes."""
    world = World.make()
    client = world.client(client_id="me")
    for n in range(3):
        client.send(f"X/{n}")
    client.subscribe(durable=True, ack="auto", eager=True)
    world.settle()
    client.read()
    client.read()
    client.lose()
    other = world.client()
    other.send("X/1", b"")
    world.settle()
    client = world.client(client_id="me")
    client.subscribe(durable=True, eager=True)
    world.settle()
    assert sorted(values(client.read())) == [("X/0", "value"), ("X/1", ""), ("X/2", "value")]


def test_what_an_eager_resume_asked_for_is_owed_whatever_resumes_after_it() -> None:
    """`eager` takes effect in order, also before the SUBSCRIBE that made the subscription is on the disk: as after a restart."""
    world = World.make()
    client = world.client(client_id="me")
    client.send("X/a")
    world.settle()
    for eager in (False, True, False):
        client.subscribe(durable=True, eager=eager, receipt=f"eager {eager}")
        client.unsubscribe()
    client.subscribe(durable=True)
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("eager False", "created"), ("eager True", "resumed"), ("eager False", "resumed")]
    assert values(frames) == [("X/a", "value")]
    client = world.restart().client(client_id="me")
    client.subscribe(durable=True)
    assert values(client.read()) == [("X/a", "value")]


def test_what_an_eager_resume_owes_again_is_not_acknowledged_by_what_was_written_before() -> None:
    """A value that was handed out, requested again and not proven written before a crash is owed."""
    world = World.make()
    client = world.client(client_id="me")
    client.send("X/a")
    client.subscribe(durable=True, ack="auto", eager=True)
    world.settle()
    assert values(client.read_some()) == [("X/a", "value")]
    client.unsubscribe()
    client.subscribe(durable=True, ack="auto", eager=True)
    assert values(client.read_some()) == [("X/a", "value")]
    world.broker.record_acknowledgements()
    world.commit()
    client = world.restart().client(client_id="me")
    client.subscribe(durable=True)
    assert values(client.read()) == [("X/a", "value")]


@pytest.mark.parametrize("eager", [False, True])
def test_resuming_without_durable_is_an_error(eager: bool) -> None:
    """An id of a detached durable subscription without `durable:true`: ERROR saying so."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    client.lose()
    client = world.client(client_id="me")
    client.subscribe(eager=eager)
    assert error(client.read()) == "subscription is durable"


@pytest.mark.parametrize("durable", [True, False])
def test_a_duplicate_id_on_a_live_subscription_is_an_error(durable: bool) -> None:
    """A duplicate id of a live subscription gets an ERROR and a close. Frames before it stand."""
    world = World.make()
    client = world.client()
    client.subscribe("X/a", durable=durable)
    client.send("X/a", receipt="sent")
    client.subscribe("X/b", durable=durable, receipt="dup")
    client.send("X/a", b"never")
    world.settle()
    frames = client.read()
    assert error(frames) == "duplicate subscription id"
    assert frames[-1].headers[b"receipt-id"] == b"dup"
    assert receipts(frames) == [("sent", "accepted")]
    assert messages(frames) == []
    assert client.peer.finished
    assert world.broker.head_revision == 1


@pytest.mark.parametrize(("durable", "result"), [(True, "removed"), (False, "paused")])
def test_unsubscribe_of_a_durable_subscription(durable: bool, result: str) -> None:
    """`durable:true` removes for good; otherwise it is paused, keeps collecting, and un-acked become owed."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    client.send("X/a", b"1")
    world.settle()
    client.read()
    client.unsubscribe(durable=durable, receipt="r")
    client.send("X/b", b"1")
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("r", result)]
    assert messages(frames) == []
    connection = client.peer.connection
    assert connection is not None
    assert connection.in_flight == 0
    client.subscribe(durable=True, receipt="again")
    world.settle()
    expected = [] if durable else [("X/a", "1"), ("X/b", "1")]
    assert values(client.read()) == expected
    assert receipts(client.frames)[-1] == ("again", "created" if durable else "resumed")


def test_unsubscribe_frees_window_slots() -> None:
    """UNSUBSCRIBE frees its window slots."""
    world = World.make()
    client = world.client(window="1")
    client.subscribe("X/a", "a")
    client.subscribe("X/b", "b")
    client.send("X/a")
    client.send("X/b")
    world.settle()
    assert values(client.read()) == [("X/a", "value")]
    client.unsubscribe("a")
    assert values(client.read()) == [("X/b", "value")]


def test_unsubscribe_of_an_unknown_id_is_no_error() -> None:
    """Unknown id: RECEIPT `result:unknown-subscription`, no ERROR."""
    world = World.make()
    client = world.client()
    client.unsubscribe("what", receipt="r")
    assert receipts(client.read()) == [("r", "unknown-subscription")]


def test_durable_ids_can_be_reused_in_one_batch() -> None:
    """SUBSCRIBE, remove and SUBSCRIBE again before anything is committed leaves one live subscription, also after a crash."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    client.unsubscribe(durable=True)
    client.subscribe(durable=True)
    client.send("X/a")
    world.settle()
    assert values(client.read()) == [("X/a", "value")]
    world = world.restart()
    client = world.client(client_id="me")
    client.subscribe(durable=True, receipt="r")
    world.settle()
    assert values(client.read()) == [("X/a", "value")]


def test_an_ack_with_receipt_on_a_durable_subscription_waits_for_its_commit() -> None:
    """An ACK with `receipt` waits for that commit, and after it the message is not delivered again by a restart."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    client.send("X/a")
    client.send("X/b")
    world.settle()
    first, _ = messages(client.read())
    client.ack(first, receipt="r")
    batch = world.take()
    assert receipts(client.read()) == []
    world.commit(batch)
    assert receipts(client.read()) == [("r", "")]
    world = world.restart()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    assert values(client.read()) == [("X/b", "value")]


def test_acks_without_receipt_are_recorded_within_the_delay() -> None:
    """Other ACKs are coalesced and recorded within 100 ms; ack mode auto lazily in the same way."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe("X/a.*", "acked", durable=True)
    client.subscribe("X/b.*", "auto", ack="auto", durable=True)
    for n in range(3):
        client.send(f"X/a.{n}")
        client.send(f"X/b.{n}")
    world.settle()
    for message in messages(client.read()):
        if message.headers[b"subscription"] == b"acked":
            client.ack(message)
    due_s = world.broker.next_due_s
    assert due_s is not None
    assert due_s <= world.now_s + Limits().acknowledgement_delay_s
    world.now_s = due_s
    world.broker.tick(world.now_s)
    world.settle()
    assert len([r for r in world.journal if isinstance(r, AcknowledgementRecord)]) == 2
    world = world.restart()
    client = world.client(client_id="me")
    client.subscribe("X/a.*", "acked", durable=True)
    client.subscribe("X/b.*", "auto", ack="auto", durable=True)
    world.settle()
    assert values(client.read()) == []


def test_auto_values_handed_out_but_not_written_are_owed_again() -> None:
    """Durable `auto` counts as acked only once it was written: what a broken transport still had is owed again."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True, ack="auto")
    client.send("X/a")
    world.settle()
    assert client.peer.data_to_send(world.now_s)
    client.lose()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    assert values(client.read()) == [("X/a", "value")]


def test_recovery_owes_exactly_what_was_not_acknowledged() -> None:
    """Last values, tombstones, what each durable subscription owes and the revision counter survive a restart."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    for n in range(6):
        client.send(f"X/{n}", b"1")
    world.settle()
    got = messages(client.read())
    client.ack(got[2], receipt="r")
    client.send("X/0", b"2")
    client.send("X/5", b"")
    world.settle()
    world = world.restart()
    assert world.broker.head_revision == world.broker.committed_revision == 8
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    assert values(client.read()) == [("X/3", "1"), ("X/4", "1"), ("X/0", "2"), ("X/5", "")]
    client.send("X/new", receipt="n")
    world.settle()
    assert ids(client.read()) == [9]


@pytest.mark.parametrize("body", [b"again", b""])
def test_a_change_on_its_way_when_its_deleted_topic_is_forgotten(body: bytes) -> None:
    """A SEND to a deleted topic that is forgotten before the commit is a value like any other, or a delete of nothing."""
    world = World.make(limits=FORGETFUL)
    client = world.client()
    for n in range(TOMBSTONE_SWEEP_MIN):
        client.send(f"X/{n}")
        client.send(f"X/{n}", b"")
    client.subscribe()
    world.settle()
    client.send("X/7", body)
    batch = world.take()
    sweep(world)
    assert not world.broker.store.topics
    world.commit(batch)
    expected = [("X/7", "again")] if body else []
    assert [
        (name.decode(), topic.change.body.decode()) for name, topic in world.broker.store.topics.items()
    ] == expected
    assert values(client.read()) == expected


@pytest.mark.parametrize("bodies", [(b"a", b"b"), (b"", b"b"), (b"a", b""), (b"", b"")])
def test_changes_on_their_way_of_a_topic_before_and_after_it_is_forgotten(bodies: tuple[bytes, bytes]) -> None:
    """Two SENDs, one read before a deleted topic is forgotten and one after, are changes of one topic: the second is its newest."""
    world = World.make(limits=FORGETFUL)
    client = world.client()
    for n in range(TOMBSTONE_SWEEP_MIN):
        client.send(f"X/{n}")
        client.send(f"X/{n}", b"")
    client.subscribe(ack="auto")
    world.settle()
    client.send("X/7", bodies[0])
    first = world.take()
    sweep(world)
    client.send("X/7", bodies[1])
    second = world.take()
    world.commit(first)
    sweep(world)
    assert values(client.read()) == [("X/7", body.decode()) for body in bodies[:1] if body]
    world.commit(second)
    store = world.broker.store
    assert [topic.change.body for topic in store.topics.values()] == ([bodies[1]] if any(bodies) else [])
    assert store.live == (1 if bodies[1] else 0)
    assert store.tombstones.keys() == {topic for topic in store.topics.values() if topic.change.deleted}
    assert values(client.read()) == ([("X/7", bodies[1].decode())] if any(bodies) else [])


@pytest.mark.parametrize("refused", [False, True])
def test_a_change_lets_go_of_its_topic(refused: bool) -> None:
    """Once a change is applied or refused it holds on to no topic: they would hold each other, and no collector sees them."""
    world = World.make()
    client = world.client()
    client.send("X/a")
    world.settle()
    (topic,) = world.broker.store.topics.values()
    before = sys.getrefcount(topic)
    for n in range(11):
        client.send("X/a", b"%d" % n if n % 3 else b"")
        client.send("X/new", b"" if n % 2 else b"x")
    batch = world.take()
    assert sys.getrefcount(topic) == before + 11
    if refused:
        world.broker.roll_back_batch(batch)
    else:
        world.broker.apply_batch(batch)
        assert [operation.target for operation in batch if isinstance(operation, Change)] == [None] * 22
    del batch
    assert sys.getrefcount(topic) == before


# Takeover, sessions and limits


def test_the_newest_connection_of_a_session_wins() -> None:
    """Takeover: decoded frames take effect, pending RECEIPTs then ERROR go to the old, its un-acked become owed."""
    world = World.make()
    old = world.client(client_id="me")
    old.subscribe(durable=True)
    old.send("X/a")
    world.settle()
    (message,) = messages(old.read())
    old.send("X/b", receipt="pending")
    new = world.client(client_id="me")
    assert new.frames[0].command == b"CONNECTED"
    old.send("X/c")
    world.settle()
    frames = old.read()
    assert receipts(frames) == [("pending", "accepted")]
    assert error(frames) == "session taken over by a newer connection"
    assert old.peer.finished
    old.peer.closed(world.now_s, "done")
    new.subscribe(durable=True)
    new.ack(message, receipt="late")
    world.settle()
    assert values(new.read()) == [("X/a", "value"), ("X/b", "value")]
    assert ("late", "ignored") in receipts(new.frames)
    assert world.broker.head_revision == 2


def test_the_old_connection_is_told_even_when_its_commit_hangs() -> None:
    """The ERROR of a takeover waits at most a second for the receipts before it."""
    world = World.make()
    old = world.client(client_id="me")
    old.send("X/a", receipt="hangs")
    world.take()
    world.client(client_id="me")
    assert old.read() == []
    due_s = old.peer.next_due_s
    assert due_s is not None
    assert due_s <= world.now_s + 1.0
    world.now_s = due_s
    old.peer.tick(world.now_s)
    frames = old.read()
    assert error(frames) == "session taken over by a newer connection"
    assert receipts(frames) == []


def test_takeovers_are_limited_per_minute() -> None:
    """Over a limit per minute the new CONNECT gets ERROR and the old connection lives."""
    world = World.make(limits=replace(Limits(), takeovers_per_minute_max=2))
    clients = [world.client(client_id="me") for _ in range(4)]
    assert error(clients[3].frames) == "too many takeovers"
    clients[2].send("X/a", receipt="r")
    world.settle()
    assert receipts(clients[2].read()) == [("r", "accepted")]
    world.now_s += 61
    assert world.client(client_id="me").frames[0].command == b"CONNECTED"


def test_a_client_id_names_a_session_of_its_principal() -> None:
    """The same client-id from another principal is another session."""
    world = World.make(anna=EVERYTHING, bert=EVERYTHING)
    anna = world.client("anna", client_id="me")
    bert = world.client("bert", client_id="me")
    anna.send("X/a", receipt="a")
    bert.send("X/a", receipt="b")
    world.settle()
    assert receipts(anna.read()) == [("a", "accepted")]
    assert receipts(bert.read()) == [("b", "accepted")]
    assert set(world.broker.sessions) == {("anna", "me"), ("bert", "me")}


def test_sessions_with_durable_subscriptions_expire() -> None:
    """A session with durable subscriptions ends `session_expiry_s` after its disconnect, or after a restart."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    client.lose()
    world.now_s += Limits().session_expiry_s - 1
    world.broker.tick(world.now_s)
    assert world.broker.sessions
    restarted = world.restart()
    restarted.now_s += 2
    restarted.broker.tick(restarted.now_s)
    assert restarted.broker.sessions
    world.now_s += 1
    world.broker.tick(world.now_s)
    world.settle()
    assert world.broker.sessions == {}
    assert isinstance(world.journal[-1], SessionEndRecord)
    assert world.restart().broker.sessions == {}


@pytest.mark.parametrize(
    ("limit", "message"),
    [("subscriptions_per_session_max", "too many subscriptions"), ("sessions_per_principal_max", "too many sessions")],
)
def test_caps_on_sessions_and_subscriptions(limit: str, message: str) -> None:
    """Caps on sessions per principal and subscriptions per session are an ERROR with the limit."""
    world = World.make(limits=replace(Limits(), **{limit: 2}))
    client = world.client()
    if limit == "sessions_per_principal_max":
        world.client()
        client = world.client()
        frames = client.frames
    else:
        for n in range(3):
            client.subscribe(id_=str(n))
        frames = client.read()
    assert error(frames) == message
    assert limit.encode() in frames[-1].body


# Rights


def test_rights_filter_delivery_and_a_subscribe_is_never_refused() -> None:
    """SUBSCRIBE is never refused for lack of rights; RECEIPT has `filtered:true` when no right can match the glob."""
    world = World.make(anna=EVERYTHING, bert={"receive": ["X/public.*"]})
    anna, bert = world.client("anna"), world.client("bert")
    bert.subscribe("X/**", "all", eager=True, ack="auto", receipt="all")
    bert.subscribe("X/secret.*", "none", receipt="none")
    for destination in ("X/public.a", "X/secret.a"):
        anna.send(destination)
    world.settle()
    frames = bert.read()
    assert [f.headers.get(b"filtered") for f in frames if f.command == b"RECEIPT"] == [None, b"true"]
    assert values(frames) == [("X/public.a", "value")]


def test_send_without_right_is_rejected_before_it_is_found_invalid() -> None:
    """The order of checks is well-formed destination, send right, schema. The connection lives and no subscriber receives it."""
    world = World.make(anna={"send": ["X/mine.*"], "receive": ["X/**"]})
    client = world.client()
    client.subscribe(ack="auto")
    client.send("X/theirs.a", receipt="1")
    client.send("Y/mine.a", receipt="2")
    client.send("X/mine.a", receipt="3")
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("1", "rejected-unauthorised"), ("2", "rejected-unauthorised"), ("3", "accepted")]
    assert values(frames) == [("X/mine.a", "value")]
    rejected = frames[0].headers if frames[0].command == b"RECEIPT" else frames[1].headers
    assert rejected[b"content-disposition"] == b"rejected-unauthorised"
    assert rejected[b"result"] == b"unauthorised"


@pytest.mark.interpreted
@pytest.mark.parametrize("tail", ["a", "b" * 480, "\u00e9" * 240])
def test_an_unauthorised_send_costs_the_same_whether_the_topic_exists(
    tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unauthorised client cannot find out by time which topics exist: form and right are judged as often for both."""
    world = World.make(anna={"send": ["X/mine.*"], "receive": ["X/**"]}, owner=EVERYTHING)
    owner, client = world.client("owner"), world.client()
    owner.send(f"X/{tail}")
    world.settle()
    judged: list[str] = []
    matched = Rights.may_send

    def check(destination: bytes, bytes_max: int) -> str | None:
        judged.append("form")
        return destination_problem(destination, bytes_max)

    def match(rights: Rights, destination: bytes) -> bool:
        judged.append("right")
        return matched(rights, destination)

    monkeypatch.setattr("maxam.broker.admission.destination_problem", check)
    monkeypatch.setattr(Rights, "may_send", match)
    costs = []
    for destination in (f"X/{tail}", f"X/{tail[:-1]}z"):
        judged.clear()
        client.send(destination, receipt="r")
        costs.append(sorted(judged))
    assert costs[0] == costs[1] == ["form", "right"]
    assert [answer for _, answer in receipts(client.read())] == ["rejected-unauthorised"] * 2


def test_a_withdrawn_right_is_forgotten_when_written_and_a_granted_one_is_owed() -> None:
    """Rights are checked again when a topic is written; a reload that grants makes eager and durable subscriptions owe it."""
    world = World.make(anna={"send": ["X/**"], "receive": ["X/a.*"]})
    client = world.client()
    client.subscribe("X/**", "eager", eager=True, ack="auto")
    client.subscribe("X/**", "plain", ack="auto")
    client.send("X/a.1")
    client.send("X/b.1")
    world.settle()
    world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/b.*"]}))
    world.settle()
    frames = client.read()
    assert [(f.headers[b"subscription"], f.headers[b"destination"]) for f in messages(frames)] == [(b"eager", b"X/b.1")]
    client.send("X/a.1")
    client.send("X/b.1")
    world.settle()
    assert sorted(values(client.read())) == [("X/b.1", "value")] * 2


@pytest.mark.parametrize(("granted", "walks"), [("X/**", 0), ("X/a.*", 0), ("X/b.*", 2)])
def test_only_rights_that_grow_are_looked_for_in_all_topics(granted: str, walks: int) -> None:
    """A reload without new rights, as one for others, begins no scan for eager and durable subscriptions."""
    world = World.make(anna={"receive": ["X/a.*", "X/**"] if not walks else ["X/a.*"]})
    client = world.client(client_id="me")
    client.subscribe("X/**", "eager", eager=True)
    client.subscribe("X/**", "durable", durable=True)
    client.subscribe("X/**", "plain")
    world.settle()
    world.broker.replace_policy(policy(anna={"receive": [granted]}))
    assert len(world.broker._scanner.scans) == walks


def test_rights_that_come_back_do_not_cover_what_others_made_owed() -> None:
    """A right that is granted and withdrawn again before the value leaves lets nothing through, be it the same policy."""
    narrow = policy(anna={"send": ["X/**"], "receive": ["X/a.*"]})
    world = World.make(anna={"send": ["X/**"], "receive": ["X/a.*"]})
    world.broker.replace_policy(narrow)
    client = world.client()
    client.subscribe("X/**", eager=True)
    client.send("X/b.1")
    world.settle()
    world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/**"]}))
    world.settle()
    world.broker.replace_policy(narrow)
    world.settle()
    assert values(client.read()) == []


# Full disk


def test_a_full_disk_refuses_sends_and_gives_their_revisions_back() -> None:
    """No room: `rejected-unavailable` with `result:disk-full`, no effect, ACKs stay to be recorded, and service goes on."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    client.send("X/a", b"1")
    world.settle()
    (message,) = messages(client.read())
    client.send("X/b", receipt="1")
    client.ack(message, receipt="ack")
    client.send("X/c", receipt="2")
    batch = world.take()
    client.send("X/d", receipt="3")
    world.broker.roll_back_batch(batch)
    frames = client.read()
    assert receipts(frames) == [("1", "rejected-unavailable")]
    assert frames[0].headers[b"result"] == b"disk-full"
    world.settle()
    assert receipts(client.read()) == [("ack", ""), ("2", "rejected-unavailable"), ("3", "rejected-unavailable")]
    client.send("X/e", receipt="4")
    world.settle()
    frames = client.read()
    assert ids(frames) == [2]
    assert receipts(frames) == [("4", "accepted")]
    assert set(world.broker.store.topics) == {b"X/a", b"X/e"}
    world = world.restart()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    assert values(client.read()) == [("X/e", "value")]


def test_a_send_that_fails_takes_no_revision() -> None:
    """A SEND that cannot be kept, such as a large body without memory, leaves no gap. The next one has its revision."""
    world = World.make()
    client = world.client()
    connection = client.peer.connection
    assert connection is not None
    broken: Any = ((b"name", 5),)  # stands for memory that ran out
    with pytest.raises(TypeError):
        world.broker.send(connection, Send(b"X/a", b"body", broken, b"1"), world.wall_us)
    assert (world.broker.head_revision, world.broker.pending) == (0, [])
    client.send("X/a", receipt="2")
    world.settle()
    assert [topic.change.revision for topic in world.broker.store.topics.values()] == [1]
    assert receipts(client.read()) == [("2", "accepted")]


def test_low_memory_refuses_what_would_need_more_and_nothing_else() -> None:
    """SENDs of values, deletes that free nothing and new durable subscriptions are refused; all else goes on, and no revision is lost."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    client.send("X/a", b"1")
    world.settle()
    (message,) = messages(client.read())
    world.broker.memory_low = True
    client.send("X/a", b"2", receipt="known")
    client.send("X/b", b"2", receipt="new")
    client.send("X/b", b"", receipt="nothing")
    client.ack(message, receipt="ack")
    client.send("X/a", b"", receipt="delete")
    world.settle()
    frames = client.read()
    assert receipts(frames) == [
        ("known", "rejected-unavailable"),
        ("new", "rejected-unavailable"),
        ("nothing", "rejected-unavailable"),
        ("ack", ""),
        ("delete", "accepted"),
    ]
    assert {
        frame.headers.get(b"result") for frame in frames if b"rejected" in frame.headers.get(b"disposition", b"")
    } == {b"memory-low"}
    assert ids(frames) == [2]
    assert world.broker.counters.sends_unavailable == 3
    again = world.client(client_id="me")
    again.subscribe(durable=True, receipt="resumed")
    reader = world.client()
    reader.subscribe(eager=True, receipt="reading")
    world.settle()
    assert receipts(again.read())[:1] == [("resumed", "resumed")]
    assert receipts(reader.read())[:1] == [("reading", "")]
    newcomer = world.client()
    newcomer.subscribe(durable=True, receipt="new")
    (frame,) = newcomer.read()
    assert (frame.command, frame.headers[b"message"], frame.headers[b"receipt-id"]) == (b"ERROR", b"memory low", b"new")
    world.broker.memory_low = False
    reader.send("X/b", b"3", receipt="room")
    world.settle()
    assert ("room", "accepted") in receipts(reader.read())


def test_a_full_disk_fails_no_resumption_of_what_was_stored_and_is_removed() -> None:
    """Only a SUBSCRIBE that could not be stored is an ERROR; one that resumed a stored one, since removed, is answered."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True, receipt="1")
    stored = world.take()
    client.unsubscribe()
    client.subscribe(durable=True, receipt="2")
    client.unsubscribe(durable=True, receipt="3")
    world.commit(stored)
    world.broker.roll_back_batch(world.take())
    world.settle()
    frames = client.read()
    assert [frame.command for frame in frames] == [b"RECEIPT"] * 3
    assert receipts(frames) == [("1", "created"), ("2", "resumed"), ("3", "removed")]


# DISCONNECT


def test_disconnect_completes_what_was_received_and_its_receipt_is_last() -> None:
    """DISCONNECT: no new value is started, all RECEIPTs are flushed, its own last, and nothing after it is read."""
    world = World.make()
    client = world.client()
    client.subscribe()
    client.send("X/a", receipt="sent")
    client.write(b"DISCONNECT\nreceipt:bye\n\n\0SEND\ndestination:X/b\n\nnever\0")
    assert client.read() == []
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("sent", "accepted"), ("bye", "")]
    assert messages(frames) == []
    assert client.peer.finished
    assert world.broker.head_revision == 1


def test_a_client_that_closes_its_side_still_gets_its_receipts() -> None:
    """The end of the client's bytes completes what was received: its RECEIPTs leave, then the connection ends."""
    world = World.make()
    client = world.client()
    client.subscribe(ack="auto")
    client.send("X/a", receipt="sent")
    client.peer.receive_eof(world.now_s)
    assert client.read() == []
    assert not client.peer.finished
    world.settle()
    frames = client.read()
    assert receipts(frames) == [("sent", "accepted")]
    assert messages(frames) == []
    assert client.peer.finished


def test_nothing_follows_the_last_words() -> None:
    """A commit that comes after the ERROR had to leave makes no RECEIPT follow it."""
    world = World.make()
    client = world.client()
    client.send("X/a", receipt="late")
    batch = world.take()
    client.write(b"NONSENSE\n\n\0")
    world.now_s += 2
    assert [frame.command for frame in client.read()] == [b"ERROR"]
    world.commit(batch)
    assert client.read() == []


def test_what_a_full_disk_keeps_is_awaited_by_later_receipts_too() -> None:
    """A RECEIPT waits for an UNSUBSCRIBE before it that a full disk kept, though that one asked for no RECEIPT."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(durable=True)
    world.settle()
    client.read()
    client.send("X/a")
    client.unsubscribe(durable=True)
    world.broker.roll_back_batch(world.take())
    client.unsubscribe("nobody", receipt="r")
    assert client.read() == []
    world.settle()
    assert receipts(client.read()) == [("r", "unknown-subscription")]


def test_topics_that_come_and_go_leave_nothing() -> None:
    """Tombstones that are not owed are forgotten as time passes, whatever the load."""
    world = World.make(limits=FORGETFUL)
    client = world.client()
    for n in range(3000):
        client.send(f"X/{n}")
        client.send(f"X/{n}", b"")
    world.settle()
    sweep(world)
    assert world.broker.store.topics == {}


def test_topics_go_a_few_at_a_time() -> None:
    """The loop is not held for all that are forgotten. Those whose delete is still owed stay, and are checked once."""
    world = World.make(limits=FORGETFUL)
    client, gone = world.client(), world.client(client_id="me")
    gone.subscribe(glob="X/1*", durable=True)
    for n in range(3000):
        client.send(f"X/{n}")
    world.settle()
    assert gone.read()
    gone.lose()
    for n in range(3000):
        client.send(f"X/{n}", b"")
    world.settle()
    store = world.broker.store
    looks = 0
    while len(store.topics) == 3000 or store.sweeping:
        before = len(store.topics)
        world.broker.tick(world.now_s)
        assert before - len(store.topics) <= SWEEP_TOPICS
        looks += 1
    assert looks == math.ceil(3000 / SWEEP_TOPICS)
    left = sorted(f"X/{n}".encode() for n in range(3000) if str(n).startswith("1"))
    assert list(store.names_after(b"", None)) == left == sorted(store.topics)
    assert not store.sweep_due()


@pytest.mark.slow
def test_topics_that_come_and_go_by_the_hundred_at_each_look_leave_few() -> None:
    """More are checked than come meanwhile. Those that come during a check are not forgotten once all is quiet."""
    world = World.make(limits=FORGETFUL)
    client, store = world.client(), world.broker.store
    each, most = 800, 0
    for look in range(40):
        for n in range(each):
            client.send(f"X/{look}.{n}")
            client.send(f"X/{look}.{n}", b"")
        world.commit()
        world.broker.tick(world.now_s)
        most = max(most, len(store.tombstones))
    assert most <= TOMBSTONE_SWEEP_MIN + 4 * each
    while store.sweep_due():
        world.broker.tick(world.now_s)
    assert len(store.tombstones) < TOMBSTONE_SWEEP_MIN


def test_when_memory_is_short_few_tombstones_are_enough() -> None:
    """All are checked at once, as refused SENDs add none. An empty set is no problem."""
    world = World.make(limits=FORGETFUL)
    client, store = world.client(), world.broker.store
    client.send("X/a")
    client.send("X/a", b"")
    world.settle()
    for _ in range(2):
        store.sweep_soon()
        world.broker.tick(world.now_s)
        assert not store.topics
        assert not store.sweep_due()


def test_what_changes_before_the_walk_of_a_right_that_came_back_is_lacked_since_that_right_came() -> None:
    """Also of a topic of which an older value is un-acked."""
    world = World.make()
    client = world.client(client_id="me")
    client.subscribe(ack="client", durable=True)
    client.send("X/a")
    world.settle()
    assert ids(client.read()) == [1]
    world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/b"]}), world.wall_us)
    world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/**"]}), world.wall_us + 5)
    world.wall_us += 10
    client.send("X/a", b"newer")
    world.commit()
    while world.broker.scan():
        pass
    (subscription,) = next(iter(world.broker.sessions.values())).subscriptions.values()
    assert subscription.owed
    assert subscription.owed_since_us() <= world.wall_us - 5


@pytest.mark.interpreted
def test_withheld_values_are_skipped_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable subscriber that comes back without its right costs no drain more than WITHHELD_MAX topics, and gets what follows."""
    monkeypatch.setattr(outbox, "WITHHELD_MAX", 10)
    world = World.make(anna=EVERYTHING, dora={"receive": ["X/**"]})
    reader = world.client("dora", client_id="d")
    reader.subscribe("X/**", durable=True)
    world.settle()
    reader.lose()
    sender = world.client()
    for n in range(25):
        sender.send(f"X/a.{n:02}")
    world.settle()
    rights: dict[str, dict[str, Sequence[str]]] = {"anna": {"send": ["X/**"]}, "dora": {"receive": ["X/b"]}}
    world.broker.replace_policy(policy(**rights))
    reader = world.client("dora", client_id="d")
    reader.subscribe("X/**", durable=True)
    world.settle()
    connection = reader.peer.connection
    assert connection is not None
    (subscription,) = connection.session.subscriptions.values()
    looked_at = []
    while subscription.owed:
        before = len(subscription.owed)
        assert values(reader.read()) == []
        looked_at.append(before - len(subscription.owed))
        due_s = reader.peer.next_due_s
        assert (due_s is not None and due_s <= world.now_s) is bool(subscription.owed)
    assert looked_at == [10, 10, 5]
    sender.send("X/b")
    world.settle()
    assert values(reader.read()) != []


@pytest.mark.interpreted
def test_a_record_of_acknowledgements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements of more topics than a record may hold go into several, and the RECEIPT waits for the last."""
    monkeypatch.setattr(acknowledgements, "POSITIONS_PER_RECORD", 4)
    world = World.make()
    client = world.client(client_id="d")
    client.subscribe("X/*", ack="client", durable=True)
    for n in range(10):
        client.send(f"X/{n}")
    world.settle()
    client.ack(client.read()[-1], receipt="acked")
    world.settle()
    assert [len(r.positions) for r in world.journal if type(r) is AcknowledgementRecord] == [4, 4, 2]
    assert ("acked", "") in receipts(client.read())


def test_a_restart_counts_no_replayed_changes() -> None:
    """Neither changes nor conflated ones count that were applied before the process started."""
    world = World.make()
    client = world.client(client_id="d")
    client.subscribe("X/a", "s", durable=True)
    client.subscribe("X/a", "t", durable=True)
    for _ in range(3):
        client.send("X/a")
    world.settle()
    assert world.broker.counters.changes == 3
    client.unsubscribe("t", durable=True)
    world.settle()
    world = world.restart()
    assert world.broker.counters.changes == 0
    assert world.broker.counters.conflated == 0
    session = world.broker.sessions["anna", "d"]
    assert session.subscriptions[b"s"].conflated == 0


@pytest.mark.interpreted
def test_expired_sessions_end_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that all expire at one moment do not end in one pass of the loop; what is left is due at once."""
    monkeypatch.setattr(upkeep, "_EXPIRED_PER_TICK", 2)
    world = World.make(limits=Limits(session_expiry_s=10))
    for n in range(5):
        client = world.client(client_id=f"d{n}")
        client.subscribe(durable=True)
        world.settle()
        client.lose()
    world.now_s += 11
    left = []
    while world.broker.sessions:
        due_s = world.broker.next_due_s
        assert due_s is not None
        assert due_s <= world.now_s
        world.broker.tick(world.now_s)
        left.append(len(world.broker.sessions))
    assert left == [3, 1, 0]
    assert world.broker.next_due_s is None


@pytest.mark.interpreted
def test_deleted_topics_that_are_still_owed_count_towards_topics_max(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that makes and deletes topics stops at the limit, and a deleted topic needs room to get a value again."""
    monkeypatch.setattr(admission, "TOMBSTONE_SWEEP_MIN", 2)
    world = World.make(limits=Limits(topics_max=5, delete_retention_s=0))
    reader = world.client(client_id="d")
    reader.subscribe("X/**", "s", durable=True)
    world.settle()
    reader.lose()
    sender = world.client()
    for n in range(20):
        sender.send(f"X/{n}", receipt=f"{n}")
        world.settle()
        sender.send(f"X/{n}", b"")
        world.settle()
    assert len(world.broker.store.topics) == 7
    assert [answer for _, answer in receipts(sender.read())] == ["accepted"] * 7 + ["rejected-unavailable"] * 13
    for n in (0, 0, 1):
        sender.send(f"X/{n}", receipt="again")
        world.settle()
    assert [answer for _, answer in receipts(sender.read())] == ["rejected-unavailable"] * 3
    # The reader comes back: what it has read is no longer needed, and the next sweep makes room.
    reader = world.client(client_id="d")
    reader.subscribe("X/**", "s", durable=True, ack="auto")
    world.settle()
    reader.read()
    reader.read()
    world.now_s += 2
    sweep(world)
    assert len(world.broker.store.topics) == 0
    sender.send("X/0", receipt="once more")
    world.settle()
    assert receipts(sender.read()) == [("once more", "accepted")]


@pytest.mark.interpreted
def test_a_flood_at_topics_max_sweeps_deleted_topics_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of refused SENDs costs no further sweep."""
    monkeypatch.setattr(admission, "TOMBSTONE_SWEEP_MIN", 0)
    world = World.make(limits=Limits(topics_max=1, delete_retention_s=0))
    reader = world.client(client_id="d")
    reader.subscribe("X/**", durable=True)
    sender = world.client()
    sender.send("X/a")
    sender.send("X/a", b"")
    world.settle()
    reader.lose()
    sweeps = 0
    for _ in range(20):
        sender.send("X/b")
        world.now_s += 0.1
        swept_before = world.broker.store._swept
        world.broker.store._swept = -1
        world.broker.tick(world.now_s)
        sweeps += world.broker.store._swept != -1
        world.broker.store._swept = swept_before
    assert 1 <= sweeps <= 3


def test_a_principal_has_so_many_durable_subscriptions_in_all_its_sessions() -> None:
    """One more is an ERROR that names limit, count and some ids; removed ones, resumed ones and transient ones do not count."""
    limits = Limits(durable_subscriptions_per_principal_max=3)
    world = World.make(limits=limits, anna=EVERYTHING, bert=EVERYTHING)
    for n in range(3):
        client = world.client(client_id=f"me{n}")
        client.subscribe(id_=f"s{n}", durable=True)
        world.settle()
        client.lose()
    world = world.restart()
    client = world.client(client_id="me1")
    client.subscribe(id_="s1", durable=True)
    client.subscribe(id_="t", durable=False)
    other = world.client("bert")
    other.subscribe(durable=True)
    world.settle()
    assert world.broker._table.quotas.durable_of == {"anna": 3, "bert": 1}
    client.subscribe(id_="one more", durable=True)
    frames = client.read()
    assert error(frames) == "too many subscriptions"
    for part in (b"durable_subscriptions_per_principal_max", b"3 durable subscriptions", b"'s0', 's1', 's2'"):
        assert part in frames[-1].body
    client.lose()
    client = world.client(client_id="me2")
    client.unsubscribe("s2", durable=True)
    client.subscribe(id_="one more", durable=True)
    client.subscribe("X/other", id_="again", durable=False)
    world.settle()
    assert client.read() == []
    other.unsubscribe(durable=True)
    world.settle()
    assert world.broker._table.quotas.durable_of == {"anna": 3}


def test_too_many_subscriptions_names_some_that_are_not_used() -> None:
    """Up to five durable ids that the connection does not use: left behind by earlier processes of the client."""
    world = World.make(limits=Limits(subscriptions_per_session_max=8))
    client = world.client(client_id="me")
    for n in range(7):
        client.subscribe(id_=f"old{n}", durable=True)
    world.settle()
    client.lose()
    client = world.client(client_id="me")
    client.subscribe(id_="new", durable=True)
    client.subscribe(id_="newer", durable=True)
    frames = client.read()
    assert error(frames) == "too many subscriptions"
    assert b"'old0', 'old1', 'old2', 'old3', 'old4'" in frames[-1].body
    assert b"old5" not in frames[-1].body


DAY_S = 86_400


def look_at_all_sessions(world: World) -> None:
    """Let the broker check each session once."""
    for _ in range(len(world.broker.sessions) + 1):
        world.now_s += 1
        world.broker.tick(world.now_s)
    world.settle()


def test_a_durable_subscription_that_its_client_no_longer_uses_ends() -> None:
    """After session_expiry_s without a SUBSCRIBE, while the session lives on; the UNSUBSCRIBE is journalled."""
    world = World.make(limits=Limits(session_expiry_s=7 * DAY_S))
    client = world.client(client_id="me")
    for id_ in ("old", "paused", "used"):
        client.subscribe(id_=id_, durable=True)
    world.settle()
    client.lose()
    for day in range(9):  # it comes back every day, with one of them
        client = world.client(client_id="me")
        client.subscribe(id_="used", durable=True)
        if day < 3:
            client.subscribe(id_="paused", durable=True)
            client.unsubscribe("paused")
        world.settle()
        look_at_all_sessions(world)
        world.now_s += DAY_S / 2
        look_at_all_sessions(world)
        subscriptions = world.broker.sessions["anna", "me"].subscriptions
        assert set(subscriptions) == ({b"old", b"paused", b"used"} if day < 7 else {b"paused", b"used"})
        client.lose()
        world.now_s += DAY_S / 2 - 10
    assert set(world.restart().broker.sessions["anna", "me"].subscriptions) == {b"paused", b"used"}
    assert world.broker.counters.subscriptions_expired == 1


def test_an_unused_subscription_stays_while_its_client_may_yet_subscribe() -> None:
    """Not while the session is detached, whose own expiry counts then, nor in the first minutes of a connection."""
    world = World.make(limits=Limits(session_expiry_s=7 * DAY_S))
    client = world.client(client_id="me")
    client.subscribe(id_="s", durable=True)
    client.subscribe(id_="t", durable=True)
    world.settle()
    client.unsubscribe("s")
    look_at_all_sessions(world)
    world.now_s += 5 * DAY_S
    client.lose()
    world.now_s += 5 * DAY_S
    look_at_all_sessions(world)
    client = world.client(client_id="me")
    look_at_all_sessions(world)
    client.subscribe(id_="s", durable=True, receipt="s")
    world.settle()
    assert receipts(client.read()) == [("s", "resumed")]
    world.now_s += DAY_S
    look_at_all_sessions(world)
    assert set(world.broker.sessions["anna", "me"].subscriptions) == {b"s", b"t"}


def test_sessions_and_principals_near_a_limit_are_known() -> None:
    """From 80 % of a limit of subscriptions on, until there are fewer."""
    world = World.make(limits=Limits(subscriptions_per_session_max=5, durable_subscriptions_per_principal_max=10))
    clients = [world.client(client_id=name) for name in "ab"]
    for client in clients:
        for n in range(4):
            client.subscribe(id_=str(n), durable=True)
    look_at_all_sessions(world)
    assert list(world.broker.crowded) == [("anna", "a"), ("anna", "b")]
    gateway: Any = SimpleNamespace(settings=world.settings, broker=world.broker, limits_used=list)
    (told,) = crowded(gateway)
    assert told.startswith("subscriptions-many: ")
    assert "subscriptions_per_session_max 5" in told
    clients[0].unsubscribe("0", durable=True)
    look_at_all_sessions(world)
    assert list(world.broker.crowded) == [("anna", "b")]
    world.broker.upkeep.end_session(world.broker.sessions["anna", "b"])
    assert list(world.broker.crowded) == []


def test_health_warns_of_each_limit_on_totals_from_80_percent_on() -> None:
    """One line for each limit, with the principal that uses most of it if each has its own; one less, and there is none."""
    limits = Limits(
        topics_max=5,
        connections_max=10,
        subscriptions_max=15,
        subscriptions_per_principal_max=5,
        durable_subscriptions_per_principal_max=5,
        sessions_per_principal_max=5,
        wills_per_principal_max=4,
        delete_retention_topics_max=5,
        frames_unfinished_bytes_max=10_000_000,
        receipts_pending_total_bytes_max=1000,
    )
    others = {"ben": 3, "cora": 3, "dora": 2}
    world = World.make(limits=limits, anna=EVERYTHING, ben=EVERYTHING, cora=EVERYTHING, dora=EVERYTHING)
    holdings = Holdings(limits)
    gateway: Any = SimpleNamespace(
        settings=world.settings,
        broker=world.broker,
        holdings=holdings,
        connections_open=7,
        held_bytes=lambda: (holdings.frames_bytes, holdings.receipts_bytes),
        clients=SimpleNamespace(connections_max=10),
        web=SimpleNamespace(connections_max=10),
        web_open=7,
        owed_watch=SimpleNamespace(most=7, limit=10, principal="anna"),
    )
    gateway.limits_used = partial(Gateway.limits_used, gateway)
    for name, count in others.items():
        other = world.client(name)
        for n in range(count):
            other.subscribe(id_=str(n))
    clients = [world.client(will_destination="X/w") for _ in range(3)]
    for n, client in enumerate(clients):
        client.subscribe(id_=str(n), durable=True)
        client.send(f"X/{n}")
    holdings.count_receipts(799)
    world.settle()
    assert crowded(gateway) == []
    gateway.connections_open = gateway.web_open = 8
    gateway.owed_watch.most = 8
    client = world.client(will_destination="X/w")
    client.subscribe(id_="s", durable=True)
    client.send("X/s")
    for n in range(4):
        client.send(f"X/d{n}")
        client.send(f"X/d{n}", b"")
    holdings.count_receipts(1)
    holdings.count_frame(client.peer, 8_000_000, world.now_s)
    world.settle()
    told = crowded(gateway)
    assert {line.partition(": ")[0] for line in told} == {"limit-near"}
    used = gateway.limits_used()
    for line, (name, *_, principal) in zip(told, used, strict=True):
        assert name in line
        assert ("anna" in line) == bool(principal)
    assert {name for name, *_, principal in used if principal} == {
        "subscriptions_per_principal_max",
        "durable_subscriptions_per_principal_max",
        "sessions_per_principal_max",
        "owed_per_principal_max",
        "delete_retention_topics_max",
        "wills_per_principal_max",
    }


class Counted(list[Any]):
    """A list that counts how many of its items are read, except by compiled code."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.reads += 1
            yield item


def test_conditions_read_each_operation_once_while_the_disk_stalls() -> None:
    """SENDs with a condition take no longer the more of them wait for the disk, and each is compared with those before it."""
    world = World.make()
    world.broker._log.pending = pending = Counted()
    client = world.client()
    for number in range(100):
        client.send(f"X/{number}", if_revision="0", receipt="new")
        client.send(f"X/{number // 2}", if_revision="0", receipt="old")
    assert pending.reads <= 400
    world.settle()
    answers = [frame.headers.get(b"result") for frame in client.read()]
    assert answers == [None, b"conflict"] * 100
