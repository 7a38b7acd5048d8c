"""Subscriptions that have markers, resume from a position and keep a mapping, against a scripted peer."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from maxam.client import ClientError, ConnectionLostError, Message, PositionUnavailableError
from maxam.client.connection import converse
from maxam.client.progress import NOT_IN_SNAPSHOT
from maxam.stomp.answers import MARKER, Receipt
from maxam.stomp.frames import Frame
from tests.support.byte_streams import stream_pair
from tests.support.event_loops import on_both_loops, run_on_both_loops
from tests.support.scripted_gateway import Gateway, ServerConnection, talking

UNAVAILABLE = (b"result", b"since-unavailable")


async def put(peer: ServerConnection, destination: str, body: bytes = b"", message_id: int = 0, **headers: str) -> None:
    """Send a MESSAGE of the subscription `sub`, with an `ack` header if it has a revision."""
    lines = {"subscription": "sub", "message-id": str(message_id), "destination": destination, **headers}
    if message_id:
        lines["ack"] = f"sub {message_id}"
    head = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in lines.items())
    await peer.stream.send_all(f"MESSAGE\n{head}content-length:{len(body)}\n\n".encode() + body + b"\0")


async def mark(peer: ServerConnection, kind: str, position: str, **headers: str) -> None:
    """Send a marker."""
    await put(peer, MARKER.decode(), b"", 0, kind=kind, position=position, **headers)


async def subscribed(peer: ServerConnection, *headers: tuple[bytes, bytes], incarnation: str = "1") -> Frame:
    """Accept a connection, answer its SUBSCRIBE and return it."""
    await peer.accept(incarnation=incarnation)
    frame = await peer.expect(b"SUBSCRIBE")
    await peer.receipt(frame, *headers)
    return frame


async def left(peer: ServerConnection) -> None:
    """Read up to the end of the subscription and of the connection."""
    while (frame := await peer.frame()).command == b"ACK":
        pass
    assert frame.command == b"UNSUBSCRIBE"
    await peer.receipt(frame)
    await peer.leave()


def options(frame: Frame) -> dict[str, str]:
    """Return the headers of a SUBSCRIBE that refine it."""
    plain = {b"id", b"destination", b"ack", b"durable", b"receipt"}
    return {name.decode(): value.decode() for name, value in frame.headers.items() if name not in plain}


@on_both_loops
async def test_options_are_headers() -> None:
    """CONNECT asks for the incarnation. SUBSCRIBE has a header for each option given, and none for the others."""
    seen = []

    async def script(peer: ServerConnection) -> None:
        frame = await peer.accept(incarnation="00ff")
        assert frame.headers[b"incarnation"] == b"true"
        for _ in range(3):
            frame = await peer.expect(b"SUBSCRIBE")
            seen.append(options(frame))
            await peer.receipt(frame)
            await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    given: list[dict[str, Any]] = [
        {},
        {"metadata": True, "markers": True, "selector": "a > 1", "min_interval_s": 0.25, "changes_only": True},
        {"since": "p:1"},
    ]
    async with talking(script) as client:
        assert client.incarnation == "00ff"
        for each in given:
            async with client.subscribe("X/*", **each) as subscription:
                assert subscription.position == each.get("since")
    assert seen == [
        {},
        {
            "metadata": "true",
            "markers": "true",
            "selector": "a > 1",
            "min-interval": "250",
            "changes-only": "true",
        },
        {"since": "p:1", "markers": "true"},
    ]


@on_both_loops
async def test_options_need_a_server_that_knows_them() -> None:
    """A server that sends no incarnation would ignore the options, so entering fails and the connection goes on."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.receipt(await peer.expect(b"SEND"))
        await peer.leave()

    async with talking(script) as client:
        with pytest.raises(ClientError, match="update the gateway"):
            await client.subscribe("X/*", selector="a > 1").__aenter__()
        for out_of_range in (0.009, 3600.01):
            with pytest.raises(ClientError, match="out of range"):
                client.subscribe("X/*", min_interval_s=out_of_range)
        assert (await client.send("X/a", b"v")).accepted


@on_both_loops
async def test_messages_have_kinds_and_metadata() -> None:
    """A message has kind, reason and metadata. Only one that has an `ack` header is acknowledged."""
    acked = []

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        about = {"timestamp": "1767323045678", "publisher": "anna", "schema": "egm.T_v1 1.0", "conflated": "3"}
        await put(peer, "X/a", b"v", 5, kind="value", **about)
        await put(peer, "X/a", kind="stale", reason="overdue")
        await put(peer, "X/a", b"w", 6, kind="fresh", reason="of-the-publisher")
        await put(peer, "X/a", kind="stale", reason="link-down")
        await put(peer, "X/a", kind="fresh", reason="link-up")
        await put(peer, "X/a", b"", 7, kind="delete", reason="expired")
        await put(peer, "X/a", b"", 0, kind="left", reason="rights")
        await put(peer, "X/a", b"x", 8, kind="of-a-later-version")
        while (frame := await peer.frame()).command == b"ACK":
            acked.append(frame.headers[b"id"])
        await peer.receipt(frame)
        await peer.leave()

    async with (
        talking(script) as client,
        client.subscribe("X/*", id="sub", metadata=True, automatic=False) as subscription,
    ):
        messages = [await anext(subscription) for _ in range(8)]
        assert [(each.kind, each.reason, each.deleted) for each in messages] == [
            ("value", "", False),
            ("stale", "overdue", False),
            ("fresh", "", False),
            ("stale", "link-down", False),
            ("fresh", "link-up", False),
            ("delete", "expired", True),
            ("left", "rights", True),
            ("value", "", False),
        ]
        first, second = messages[0], messages[1]
        assert first.accepted_at == datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
        assert (first.publisher, first.schema, first.conflated) == ("anna", "egm.T_v1 1.0", 3)
        assert (second.accepted_at, second.publisher, second.schema, second.conflated) == (None, "", "", 0)
        for each in reversed(messages):
            await each.ack()
    assert acked == [b"sub 8"]


@on_both_loops
async def test_headers_of_a_publisher_are_no_metadata() -> None:
    """Without metadata and markers a header `kind` is one of the publisher's, and the body alone decides."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        await put(peer, "X/a", b"v", 1, kind="delete", publisher="fraud", timestamp="1")
        await put(peer, "X/a", b"", 2, kind="stale")
        await left(peer)

    async with talking(script) as client, client.subscribe("X/*", id="sub", changes_only=True) as subscription:
        message = await anext(subscription)
        assert (message.kind, message.publisher, message.accepted_at, message.reason) == ("value", "", None, "")
        message = await anext(subscription)
        assert (message.kind, message.deleted) == ("delete", True)
        assert not subscription.caught_up
        assert subscription.position is None
        with pytest.raises(ClientError, match="markers=True"):
            await subscription.complete()


@on_both_loops
async def test_a_position_counts_once_the_application_has_what_came_before() -> None:
    """A marker is no message. Its position takes effect when the message before it has been processed, never earlier."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        await put(peer, "X/a", b"1", 1)
        await mark(peer, "complete", "p1", count="1")
        await put(peer, "X/b", b"2", 2)
        await mark(peer, "position", "p2")
        await mark(peer, "position", "p3")
        await put(peer, "X/c", b"3", 3)
        await mark(peer, "position", "p4")
        await left(peer)

    seen: list[tuple[str, str | None, bool]] = []
    async with (
        talking(script) as client,
        client.subscribe("X/*", id="sub", eager=True, markers=True) as subscription,
        anyio.create_task_group() as tasks,
    ):
        waited: list[str] = []

        async def wait() -> None:
            await subscription.complete()
            waited.append("complete")
            waited.append(await subscription.position_after("p3"))

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not waited
        async for message in subscription:
            seen.append((message.destination, subscription.position, subscription.caught_up))
            if len(seen) == 3:
                break
        await anyio.wait_all_tasks_blocked()
        assert waited == ["complete"]
        with anyio.move_on_after(1):
            await anext(subscription)
        assert waited == ["complete", "p4"]
        assert await subscription.position_after("p3") == "p4"
    assert seen == [("X/a", None, False), ("X/b", "p1", True), ("X/c", "p3", True)]


@on_both_loops
async def test_positions_do_not_fill_an_inbox() -> None:
    """Positions in a row take the room of one, so an application that is busy for long does not hold them all."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        for number in range(1000):
            await mark(peer, "position", f"p{number}")
        await left(peer)

    async with (
        talking(script) as client,
        client.subscribe("X/*", id="sub", ack="auto", markers=True) as subscription,
    ):
        await anyio.wait_all_tasks_blocked()
        assert len(subscription._inbox.deliveries) == 1
        with anyio.move_on_after(1):
            await anext(subscription)
        assert subscription.position == "p999"


@on_both_loops
async def test_a_full_inbox_of_an_auto_subscription_drains_over_markers() -> None:
    """A marker as the last thing in a full inbox lets the connection be read again."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        for number in range(1, 500):
            await put(peer, "X/a", b"v", 0, kind="value")
            await mark(peer, "position", f"p{number}")
        await left(peer)

    ours, theirs = stream_pair(lockstep=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(script, ServerConnection(theirs))
        async with (
            converse(ours, heart_beat_ms=(0, 0)) as client,
            client.subscribe("X/*", id="sub", ack="auto", markers=True) as subscription,
        ):
            for _ in range(1, 500):
                await anext(subscription)
            with anyio.move_on_after(1):
                await anext(subscription)
            assert subscription.position == "p499"


@on_both_loops
async def test_the_receipt_of_an_ack_has_a_position() -> None:
    """It counts at once if all messages before it were taken, else in its place among them."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        await put(peer, "X/a", b"1", 1)
        await peer.receipt(await peer.expect(b"ACK"), (b"position", b"p1"))
        await put(peer, "X/b", b"2", 2)
        frame = await peer.expect(b"ACK")
        await put(peer, "X/c", b"3", 3)
        await peer.receipt(frame, (b"position", b"p2"))
        await left(peer)

    async with (
        talking(script) as client,
        client.subscribe("X/*", id="sub", automatic=False, markers=True) as subscription,
    ):
        await (await anext(subscription)).ack(receipt=True)
        assert subscription.position == "p1"
        await (await anext(subscription)).ack(receipt=True)
        assert subscription.position == "p1"
        await anext(subscription)
        assert subscription.position == "p1"
        with anyio.move_on_after(1):
            await anext(subscription)
        assert subscription.position == "p2"
    assert repr(Receipt(b"1", "accepted", "", "", False, None, "p")).endswith("position='p')")


@pytest.mark.parametrize(("eager", "durable"), [(False, False), (True, False), (False, True), (True, True)])
def test_an_unavailable_position_is_raised(eager: bool, durable: bool) -> None:
    """Without `values` the client cannot drop what is gone. So entering raises and ends the subscription, not the connection."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer, UNAVAILABLE)
        frame = await peer.expect(b"UNSUBSCRIBE")
        assert frame.headers.get(b"durable") == (b"true" if durable else None)
        await peer.receipt(frame, (b"result", b"removed"))
        await peer.receipt(await peer.expect(b"SEND"))
        await peer.leave()

    async def test() -> None:
        async with talking(script) as client:
            subscription = client.subscribe("X/*", id="sub", since="p0", eager=eager, durable=durable)
            with pytest.raises(PositionUnavailableError, match="p0"):
                await subscription.__aenter__()
            assert subscription.position is None
            assert (await client.send("X/a", b"v")).accepted

    run_on_both_loops(test)


@on_both_loops
async def test_values_are_kept_equal() -> None:
    """Each message is applied to `values` when it is handed out. Notices change nothing."""

    async def script(peer: ServerConnection) -> None:
        frame = await subscribed(peer)
        assert options(frame) == {"eager": "true", "markers": "true", "since": "p0"}
        await put(peer, "X/b", b"2", 5)
        await put(peer, "X/a", b"", 6, kind="delete", reason="deleted")
        await put(peer, "X/b", kind="stale", reason="overdue")
        await put(peer, "X/b", kind="fresh", reason="link-up")
        await put(peer, "X/never-held", b"", 7, kind="left", reason="selector")
        await mark(peer, "complete", "p7", count="3")
        await left(peer)

    values = {"X/a": b"1", "X/kept": b"k"}
    async with (
        talking(script) as client,
        client.subscribe("X/*", id="sub", since="p0", values=values) as subscription,
    ):
        taken = []
        with anyio.move_on_after(1):
            while True:
                taken.append((await anext(subscription)).kind)
        assert taken == ["value", "delete", "stale", "fresh", "left"]
        assert values == {"X/b": b"2", "X/kept": b"k"}
        assert subscription.position == "p7"


@pytest.mark.parametrize("since", ["p0", None])
def test_topics_that_a_snapshot_does_not_name_are_dropped(since: str | None) -> None:
    """With `values` an unavailable position means all values, then a `left` for each topic that is gone, then the position."""

    async def script(peer: ServerConnection) -> None:
        frame = await subscribed(peer, *([UNAVAILABLE] if since else []))
        assert options(frame)["eager"] == "true"
        await put(peer, "X/named", b"2", 5)
        await put(peer, "X/deleted", b"", 6)
        await mark(peer, "position", "too early")
        await mark(peer, "complete", "p6", count="1", result="since-unavailable")
        await mark(peer, "position", "p7")
        await left(peer)

    async def test() -> None:
        values = {"X/gone": b"1", "X/named": b"1", "X/deleted": b"1", "X/also-gone": b"1"}
        async with (
            talking(script) as client,
            client.subscribe("X/*", id="sub", since=since, values=values) as subscription,
        ):
            seen: list[tuple[str, str, str, str | None]] = []
            with anyio.move_on_after(1):
                while True:
                    message = await anext(subscription)
                    seen.append((message.destination, message.kind, message.reason, subscription.position))
            assert seen == [
                ("X/named", "value", "", None),
                ("X/deleted", "delete", "", None),
                ("X/also-gone", "left", NOT_IN_SNAPSHOT, None),
                ("X/gone", "left", NOT_IN_SNAPSHOT, None),
            ]
            assert (values, subscription.position) == ({"X/named": b"2"}, "p7")

    run_on_both_loops(test)


@on_both_loops
async def test_waiting_ends_with_the_connection() -> None:
    """`complete` and `position_after` raise the reason when the connection ends, and once the subscription has ended."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer)
        await anyio.sleep(1)
        await peer.stream.aclose()

    failures: list[type[ClientError]] = []

    async def attempt(action: Callable[[], Awaitable[object]]) -> None:
        try:
            await action()
        except ClientError as error:
            failures.append(type(error))

    async with talking(script) as client:
        subscription = client.subscribe("X/*", id="sub", eager=True, markers=True)
        with pytest.raises(ClientError, match="not entered"):
            await subscription.complete()
        async with subscription, anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, subscription.complete)
            tasks.start_soon(attempt, lambda: subscription.position_after(None))
        assert failures == [ConnectionLostError, ConnectionLostError]


async def resumed(scripts: list[Callable[[ServerConnection], Awaitable[None]]], **given: Any) -> list[Message]:
    """Return what a resuming subscription gives while it is connected to each script in turn."""
    gateway = Gateway(*scripts)
    messages: list[Message] = []
    async with gateway.resuming() as client, client.subscribe("X/*", id="sub", **given) as subscription:
        with anyio.move_on_after(100):
            while True:
                messages.append(await anext(subscription))
    assert not gateway.scripts
    return messages


@on_both_loops
async def test_resumes_from_the_position() -> None:
    """After a loss it continues from the newest position that the application has reached. Unread messages come again."""

    async def first(peer: ServerConnection) -> None:
        assert options(await subscribed(peer)) == {"eager": "true", "markers": "true"}
        await put(peer, "X/a", b"1", 1)
        await mark(peer, "complete", "p1", count="1")
        await anyio.sleep(1)
        await put(peer, "X/b", b"2", 2)
        await mark(peer, "position", "p2")
        await peer.stream.aclose()

    async def second(peer: ServerConnection) -> None:
        assert options(await subscribed(peer)) == {"eager": "true", "markers": "true", "since": "p1"}
        await put(peer, "X/b", b"3", 3)
        await mark(peer, "complete", "p3", count="1")
        await left(peer)

    gateway = Gateway(first, second)
    async with (
        gateway.resuming() as client,
        client.subscribe("X/*", id="sub", eager=True, markers=True) as subscription,
    ):
        assert (await anext(subscription)).body == b"1"
        with anyio.move_on_after(0.5):
            await anext(subscription)
        await subscription.complete()
        await anyio.sleep(5)  # the messages of the lost connection wait, and are dropped
        assert not subscription.caught_up
        assert (await anext(subscription)).body == b"3"
        with anyio.move_on_after(1):
            await anext(subscription)
        assert (subscription.position, subscription.caught_up) == ("p3", True)


@pytest.mark.parametrize("given", [{"markers": True, "eager": True}, {"markers": True}, {"values": {}}])
def test_a_resume_that_is_refused_drops_what_is_gone(given: dict[str, Any]) -> None:
    """It asks for all values with the position, and gives a `left` for each topic that was handed out and is gone."""

    async def first(peer: ServerConnection) -> None:
        await subscribed(peer)
        for number, topic in enumerate(("X/stays", "X/goes", "X/was-deleted"), 1):
            await put(peer, topic, b"1", number)
        await put(peer, "X/was-deleted", b"", 4)
        await mark(peer, "complete", "p4")
        await anyio.sleep(1)
        await peer.stream.aclose()

    async def second(peer: ServerConnection) -> None:
        frame = await subscribed(peer, UNAVAILABLE, incarnation="2")
        assert options(frame) == {"eager": "true", "markers": "true", "since": "p4"}
        await put(peer, "X/stays", b"2", 3)
        await mark(peer, "complete", "q3", result="since-unavailable")
        await left(peer)

    async def test() -> None:
        messages = await resumed([first, second], **given)
        assert [(each.destination, each.kind) for each in messages[4:]] == [("X/stays", "value"), ("X/goes", "left")]
        if "values" in given:
            assert given["values"] == {"X/stays": b"2"}

    run_on_both_loops(test)


@on_both_loops
async def test_a_loss_before_any_position_drops_what_is_gone_too() -> None:
    """Without a position all values are asked for, although the first SUBSCRIBE did not, as deletes may have been missed."""

    async def first(peer: ServerConnection) -> None:
        assert options(await subscribed(peer)) == {"markers": "true"}
        await put(peer, "X/goes", b"1", 1)
        await anyio.sleep(1)
        await peer.stream.aclose()

    async def second(peer: ServerConnection) -> None:
        assert options(await subscribed(peer)) == {"eager": "true", "markers": "true"}
        await mark(peer, "complete", "p1")
        await left(peer)

    messages = await resumed([first, second], markers=True)
    assert [(each.destination, each.kind) for each in messages] == [("X/goes", "value"), ("X/goes", "left")]


@pytest.mark.parametrize("restored", [False, True])
def test_a_durable_subscription_has_no_gap_unnoticed(restored: bool) -> None:
    """A session that is there continues alone, a lost one from the position. Where neither can, the next message raises."""

    async def lose(peer: ServerConnection) -> None:
        await anyio.sleep(1)
        await peer.stream.aclose()

    async def created(peer: ServerConnection) -> None:
        assert options(await subscribed(peer, (b"result", b"created"))) == {"markers": "true"}
        await put(peer, "X/a", b"1", 1)
        await mark(peer, "complete", "p1")
        await lose(peer)

    async def continues(peer: ServerConnection) -> None:
        assert options(await subscribed(peer, (b"result", b"resumed"))) == {"markers": "true", "since": "p1"}
        await put(peer, "X/b", b"2", 2)
        await lose(peer)

    async def refused(peer: ServerConnection) -> None:
        assert options(await subscribed(peer, UNAVAILABLE)) == {"markers": "true", "since": "p1"}
        frame = await peer.expect(b"UNSUBSCRIBE")
        assert frame.headers[b"durable"] == b"true"
        await peer.receipt(frame)
        await peer.leave()

    async def another(peer: ServerConnection) -> None:
        await peer.accept(incarnation="2")  # what the session owes is that of a backup
        await peer.leave()

    async def test() -> None:
        gateway = Gateway(created, continues, another if restored else refused)
        async with gateway.resuming() as client:
            subscription = client.subscribe("X/*", id="sub", markers=True, durable=True)
            await subscription.__aenter__()
            assert [(await anext(subscription)).body for _ in range(2)] == [b"1", b"2"]
            with pytest.raises(PositionUnavailableError):
                await anext(subscription)

    run_on_both_loops(test)


@on_both_loops
async def test_a_durable_subscription_keeps_no_values() -> None:
    """It would not learn of topics that may no longer be received, so the combination is refused."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept(incarnation="1")
        await peer.leave()

    async with Gateway(script).resuming() as client:
        with pytest.raises(ClientError, match="Leave out durable"):
            client.subscribe("X/*", values={}, durable=True)


@on_both_loops
async def test_a_gap_that_cannot_be_closed_is_raised() -> None:
    """With `since` and no `values` the kept topics are unknown: the next message raises, other subscriptions go on."""

    async def first(peer: ServerConnection) -> None:
        await subscribed(peer)
        await put(peer, "X/a", b"1", 1)
        await anyio.sleep(1)
        await peer.stream.aclose()

    async def second(peer: ServerConnection) -> None:
        await subscribed(peer, UNAVAILABLE)
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.receipt(await peer.expect(b"SEND"))
        await peer.leave()

    gateway = Gateway(first, second)
    async with (
        gateway.resuming() as resuming,
        resuming.subscribe("X/*", id="sub", since="p0") as subscription,
    ):
        assert (await anext(subscription)).body == b"1"
        for _ in range(2):
            with pytest.raises(PositionUnavailableError):
                await anext(subscription)
        with pytest.raises(PositionUnavailableError):
            await subscription.position_after("p0")
        assert (await resuming.send("X/a", b"v")).accepted


@on_both_loops
async def test_a_first_position_that_is_refused_is_raised() -> None:
    """A resuming subscription without `values` raises it on entering, like any other."""

    async def script(peer: ServerConnection) -> None:
        await subscribed(peer, UNAVAILABLE)
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    async with Gateway(script).resuming() as client:
        with pytest.raises(PositionUnavailableError):
            await client.subscribe("X/*", id="sub", since="p0").__aenter__()


@on_both_loops
async def test_waiting_of_a_resuming_client_outlives_connections() -> None:
    """`complete` waits for a later connection, and raises when the client ends."""

    async def first(peer: ServerConnection) -> None:
        await subscribed(peer)
        await peer.stream.aclose()

    async def second(peer: ServerConnection) -> None:
        await subscribed(peer)
        await mark(peer, "complete", "p1")
        await peer.leave()

    async with Gateway(first, second).resuming() as client:
        subscription = client.subscribe("X/*", id="sub", eager=True, markers=True)
        with pytest.raises(ClientError, match="enter the subscription"):
            await subscription.complete()
        async with subscription, anyio.create_task_group() as tasks:

            async def iterate() -> None:
                with pytest.raises((ClientError, StopAsyncIteration)):
                    await anext(subscription)

            tasks.start_soon(iterate)
            await subscription.complete()
            assert await subscription.position_after(None) == "p1"
            tasks.start_soon(client.disconnect)
            with pytest.raises(ConnectionLostError):
                await subscription.position_after("p1")
