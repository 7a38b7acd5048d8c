"""Memory that connections may use: unfinished frames, skipped bodies, RECEIPTs that wait."""

from dataclasses import replace
from typing import Any

import pytest

from maxam.broker.policy import Policy
from maxam.config import Limits
from maxam.gateway.holdings import Holdings
from maxam.gateway.quarantine import Quarantine, take_rejected
from maxam.gateway.server_connection import ServerConnection
from maxam.stomp.frames import Frame
from tests.support.sans_io import EVERYTHING, Client, World, fingerprint_of, policy, receipts, values

BODY = bytes(range(1, 256)) * 40
HEAD = b"SEND\ndestination:X/theirs.a\nh:1\nreceipt:r\n"
NOBODY: dict[str, Any] = {"send": ["X/mine.*"], "receive": ["X/**"]}
SMALL = Limits(frame_body_bytes_max=20_000, frame_headers_bytes_max=8192, frames_unfinished_bytes_max=50_000)


def crowd(limits: Limits, **principals: Any) -> World:
    """Make a world whose connections share their holdings."""
    return World.make(limits=limits, **(principals or {"anna": EVERYTHING, "ben": EVERYTHING}))


def join(world: World, holdings: Holdings, principal: str) -> Client:
    """Connect a client that shares holdings."""
    client = world.client(principal, connect=False)
    client.peer = ServerConnection(
        world.broker,
        world.settings,
        fingerprint_of(principal),
        f"shared-{world.sessions}",
        lambda: None,
        world.now_s,
        holdings=holdings,
    )
    client.connect()
    return client


def message(frames: list[Frame]) -> str:
    """Return the message of the ERROR that ends the frames; empty if there is none."""
    return frames[-1].headers[b"message"].decode() if frames and frames[-1].command == b"ERROR" else ""


@pytest.mark.parametrize("length", [b"", b"content-length:10200\n"])
@pytest.mark.parametrize("cut", [1, 40, 44, 60, 66, 1000, 10_260])
@pytest.mark.parametrize("destination", [b"X/theirs.a", b"X/a b"])
def test_a_body_without_right_is_not_held_and_answered_as_ever(length: bytes, cut: int, destination: bytes) -> None:
    """A SEND without right has the same answer, statistics and record in one piece and in two. Its body is not held."""
    data = HEAD.replace(b"X/theirs.a", destination) + length + b"\n" + BODY + b"\0"
    found = []
    for pieces in ([data], [data[:cut], data[cut:]], [data[:cut], data[cut : cut + 100], data[cut + 100 :]]):
        world = World.make(anna=NOBODY)
        quarantine = Quarantine(10, 1_000_000, "run")
        world.broker.publishing.on_rejected = take_rejected(world.broker, quarantine, None)
        client = world.client()
        for piece in pieces:
            client.write(piece)
            assert client.peer.unfinished_bytes < 1000
        client.send("X/mine.b", receipt="after")
        world.settle()
        (record,) = quarantine.before(None)
        counters = world.broker.counters
        found.append(
            (
                receipts(client.read()),
                record.headers,
                record.body,
                record.body_bytes,
                record.body_sha256,
                record.body_state,
                record.disposition,
                record.rejection.result,
                counters.sends_unauthorised,
                counters.sends_invalid,
                counters.rejected,
                client.peer.sends,
            )
        )
    assert found[0] == found[1] == found[2]
    assert found[0][3] == len(BODY)
    assert [answer for _, answer in found[0][0]][1] == "accepted"


def test_a_body_with_a_right_is_held_and_taken() -> None:
    """A SEND with right arrives whole, however it was cut, and counts while it is not complete."""
    world = World.make()
    client = world.client()
    client.subscribe(ack="auto")
    client.write(b"SEND\ndestination:X/a\n\nabc")
    assert client.peer.unfinished_bytes > 3
    client.write(b"def")
    client.write(b"\0")
    assert client.peer.unfinished_bytes == 0
    world.settle()
    assert values(client.read()) == [("X/a", "abcdef")]


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        (NOBODY, EVERYTHING, "rejected-unauthorised"),
        (EVERYTHING, NOBODY, "rejected-unauthorised"),
        (NOBODY, NOBODY, "rejected-unauthorised"),
        (EVERYTHING, EVERYTHING, "accepted"),
    ],
)
def test_a_right_must_be_there_at_both_ends_of_a_body(before: Any, after: Any, answer: str) -> None:
    """A policy that changes while a body comes: granted too late is not granted, and withdrawn is withdrawn."""
    world = World.make(anna=before)
    client = world.client()
    client.write(HEAD + b"\nval")
    reloaded: Policy = policy(anna=after)
    world.broker.replace_policy(reloaded)
    client.write(b"ue\0")
    world.settle()
    assert receipts(client.read()) == [("r", answer)]
    assert len(world.broker.store.topics) == (answer == "accepted")


@pytest.mark.parametrize("head", [b"h:1\n\n", b"destination:X/theirs.a\ntransaction:t\n\n"])
def test_a_skipped_body_hides_no_error(head: bytes) -> None:
    """A head that is an ERROR is one when its body was skipped too, and the ERROR comes at the end of the frame."""
    client = World.make(anna=NOBODY).client()
    client.write(b"SEND\nreceipt:r\n" + head + b"val")
    assert client.read() == []
    client.write(b"ue\0")
    (frame,) = client.read()
    assert frame.headers[b"receipt-id"] == b"r"
    assert frame.headers[b"message"] in {b"missing header", b"not implemented"}


def test_unfinished_frames_have_a_limit_over_all_connections() -> None:
    """The principal that holds most loses its connection that holds most; the others go on, and nothing is counted twice."""
    world = crowd(SMALL)
    holdings = Holdings(SMALL)
    begun = b"SEND\ndestination:X/a\nreceipt:r\n\n"
    honest = join(world, holdings, "ben")
    honest.write(begun + b"v" * 19_000)
    crooks = [join(world, holdings, "anna") for _ in range(4)]
    for number, crook in enumerate(crooks):
        crook.write(begun + b"v" * (9_000 + number))
    closed = [crook for crook in crooks if crook.peer.finished or message(crook.read())]
    assert closed == [crooks[3]]
    assert "frames_unfinished_bytes_max" in crooks[3].frames[-1].body.decode()
    assert holdings.frames_closed == 1
    assert holdings.frames_bytes == sum(one.peer.unfinished_bytes for one in [honest, *crooks])
    assert holdings.frames_bytes <= holdings.frames_bytes_max
    honest.write(b"\0")
    world.settle()
    assert receipts(honest.read()) == [("r", "accepted")]
    for one in [honest, *crooks]:
        one.lose()
    assert holdings.frames_bytes == 0


def test_one_frame_alone_is_never_too_much() -> None:
    """A limit of the sum below that of one frame admits a frame of the largest size."""
    limits = replace(SMALL, frames_unfinished_bytes_max=1)
    world = crowd(limits)
    client = join(world, Holdings(limits), "anna")
    client.write(b"SEND\ndestination:X/a\nreceipt:r\n\n" + b"v" * 20_000)
    client.write(b"\0")
    world.settle()
    assert receipts(client.read()) == [("r", "accepted")]


@pytest.mark.parametrize(("step", "alive"), [(1500, True), (1100, True), (900, False), (0, False)])
@pytest.mark.parametrize("head", [b"SEND\ndestination:X/a\n\n", b"SEND\n", b"SEND\ndestination:Z/a\n\n"])
def test_a_frame_once_begun_has_a_least_rate(step: int, alive: bool, head: bytes) -> None:
    """Less than `frame_rate_bytes_per_s_min` over 30 s ends the connection, wherever in the frame, wanted or not; a slow line goes on."""
    world = World.make()
    client = world.client()
    client.write(head)
    for _ in range(100):
        world.now_s += 1
        client.peer.received_bytes += step
        client.peer.check_pace(world.now_s)
    assert (message(client.read()) == "") == alive
    if not alive:
        assert message(client.frames) == "frame too slow"
        assert "frame_rate_bytes_per_s_min" in client.frames[-1].body.decode()


def test_each_frame_has_a_rate_of_its_own() -> None:
    """A client whose every packet ends one SEND and begins the next is not slow, though as much of each is held."""
    world = World.make()
    client = world.client()
    frame = b"SEND\ndestination:X/a\n\nvalue\0"
    client.write(frame[:10])
    for _ in range(20):
        world.now_s += 5
        client.peer.check_pace(world.now_s)
        client.write(frame[10:] + frame[:10])
    assert message(client.read()) == ""


def test_the_rate_of_a_frame_counts_only_while_we_read() -> None:
    """Time in which the broker did not read is not the client's, and between frames there is no rate."""
    world = World.make()
    client = world.client()
    world.now_s += 1000
    client.peer.check_pace(world.now_s)
    client.write(b"SEND\ndestination:X/a\n\nv")
    client.peer.listen(False, world.now_s)
    world.now_s += 1000
    client.peer.check_pace(world.now_s)
    client.peer.listen(True, world.now_s)
    world.now_s += 29
    client.peer.check_pace(world.now_s)
    assert message(client.read()) == ""
    world.now_s += 2
    client.peer.check_pace(world.now_s)
    assert message(client.read()) == "frame too slow"


def test_pending_receipts_have_a_limit_over_all_connections() -> None:
    """Beyond it a connection with more than an equal share is not read, one without is, and all are when the RECEIPTs have left."""
    limits = Limits(receipts_pending_bytes_max=1000, receipts_pending_total_bytes_max=2000, connections_max=10)
    limits = replace(limits, connections_unauthenticated_max=10)
    world = crowd(limits)
    holdings = Holdings(limits)
    clients = [join(world, holdings, "anna") for _ in range(4)]
    for client in clients[:3]:
        for number in range(8):
            client.send("X/a", receipt=f"{number}")
    connections = [client.peer.connection for client in clients[:3]]
    assert holdings.receipts_bytes == sum([one.receipts_bytes for one in connections if one is not None])
    assert holdings.receipts_bytes >= limits.receipts_pending_total_bytes_max
    assert [client.peer.receiving for client in clients] == [False, False, False, True]
    world.settle()
    for client in clients[:3]:
        assert len(receipts(client.read())) == 8
    assert [client.peer.receiving for client in clients] == [True] * 4
    assert holdings.receipts_bytes == 0
    clients[3].send("X/a", receipt="last")
    assert holdings.receipts_bytes > 0
    clients[3].lose()
    assert holdings.receipts_bytes == 0
