"""The client against a scripted peer over in-memory streams, with a clock that jumps."""

import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import pytest

from maxam.client import (
    CertificateFileError,
    Client,
    ClientError,
    ConnectionLostError,
    GatewayError,
    OutcomeUnknownError,
    Receipt,
    UnreachableError,
    VersionError,
    connect,
)
from maxam.client.addresses import Addresses
from maxam.client.connection import converse
from maxam.client.link import UNREAD_MESSAGES_MAX
from maxam.stomp import encoder
from maxam.stomp.answers import SESSION_TAKEN_OVER
from maxam.stomp.events import VERSION_1_1, VERSION_1_2
from tests.support.byte_streams import stream_pair
from tests.support.event_loops import on_both_loops, run_on_both_loops
from tests.support.scripted_gateway import Gateway, ServerConnection, talking


@on_both_loops
async def test_connects_and_leaves() -> None:
    """CONNECT offers both versions, the page's host and heart-beats; the end of the block sends DISCONNECT with a receipt."""

    async def script(peer: ServerConnection) -> None:
        frame = await peer.accept()
        assert frame.headers[b"accept-version"] == b"1.1,1.2"
        assert frame.headers[b"host"] == b"MAXVAPI"
        # Spec: MaXaM "MUST include the heart-beat header with both [...] set to 10000 (ms) or less"
        assert frame.headers[b"heart-beat"] == b"10000,10000"
        assert frame.headers[b"client-id"] == b"me"
        await peer.leave()

    async with talking(script, client_id="me") as client:
        assert (client.session, client.server, client.version) == ("s-1", "peer/1", "1.2")


@on_both_loops
async def test_send_returns_each_disposition() -> None:
    """A SEND returns its own RECEIPT, rejections included, and its headers and body arrive as given."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        frame = await peer.expect(b"SEND")
        assert frame.headers[b"destination"] == b"X/a"
        assert frame.headers[b"unit"] == b"a:b\n"
        assert frame.body == b"\0\1"
        await peer.stream.send_all(encoder.receipt_accepted(peer.version, frame.headers[b"receipt"]))
        frame = await peer.expect(b"SEND")
        await peer.receipt(
            frame, (b"content-disposition", b"rejected-invalid"), (b"result", b"no-rule"), (b"reason", b"why: so")
        )
        await peer.leave()

    async with talking(script) as client:
        receipt = await client.send("X/a", b"\0\1", {"unit": "a:b\n"})
        assert receipt.accepted
        receipt = await client.send("X/b", b"")
        assert not receipt.accepted
        assert (receipt.disposition, receipt.result, receipt.reason) == ("rejected-invalid", "no-rule", "why: so")


@on_both_loops
async def test_a_source_may_repeat_itself() -> None:
    """A SEND with a source carries name and number after the user headers, and `superseded` is no failure."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        frame = await peer.expect(b"SEND")
        assert list(frame.headers)[-4:] == [b"unit", b"source", b"source-revision", b"content-length"]
        assert (frame.headers[b"source"], frame.headers[b"source-revision"]) == (b"a:b", b"17")
        await peer.receipt(frame, (b"disposition", b"accepted"), (b"result", b"superseded"))
        await peer.leave()

    async with talking(script) as client:
        receipt = await client.send("X/a", b"v", {"unit": "m"}, source=("a:b", 17))
        assert (receipt.accepted, receipt.result, receipt.revision) == (True, "superseded", None)


@on_both_loops
async def test_only_the_value_that_is_known_is_changed() -> None:
    """`if_revision` is sent, 0 too. The Receipt has the new revision or the conflict. A malformed revision is an error."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        frame = await peer.expect(b"SEND")
        assert frame.headers[b"if-revision"] == b"0"
        await peer.receipt(frame, (b"disposition", b"accepted"), (b"revision", b"4711"))
        frame = await peer.expect(b"SEND")
        assert frame.headers[b"if-revision"] == b"7"
        await peer.receipt(frame, (b"disposition", b"rejected-invalid"), (b"result", b"conflict"))
        await peer.receipt(await peer.expect(b"SEND"), (b"revision", b"x"))
        await peer.stream.aclose()

    async with talking(script) as client:
        assert (await client.send("X/a", b"v", if_revision=0)).revision == 4711
        receipt = await client.send("X/a", b"v", if_revision=7)
        assert (receipt.accepted, receipt.result, receipt.revision) == (False, "conflict", None)
        with pytest.raises(OutcomeUnknownError, match="revision of RECEIPT"):
            await client.send("X/a", b"v", if_revision=7)


@on_both_loops
async def test_sends_pipeline() -> None:
    """A hundred SENDs are on the wire before the first RECEIPT, and each gets its own, whatever the order."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        frames = [await peer.expect(b"SEND") for _ in range(100)]
        for frame in reversed(frames):
            await peer.receipt(frame, (b"result", frame.headers[b"destination"]))
        await peer.leave()

    async def send(client: Client, destination: str) -> None:
        assert (await client.send(destination, b"v")).result == destination

    async with talking(script) as client, anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(send, client, f"X/{number}")


@on_both_loops
async def test_what_one_task_posts_is_written_and_settled_in_order() -> None:
    """`post` returns before the RECEIPT; each SEND then has its own answer, and a loss settles what had none."""

    async def gateway(peer: ServerConnection) -> None:
        await peer.accept()
        frames = [await peer.expect(b"SEND") for _ in range(4)]
        assert [frame.body for frame in frames] == [b"0", b"1", b"2", b"3"]
        await peer.receipt(frames[0], (b"disposition", b"accepted"))
        await peer.receipt(frames[1], (b"disposition", b"rejected-invalid"), (b"result", b"schema-mismatch"))
        await peer.error("no more", frames[2].headers[b"receipt"])

    async with talking(gateway) as client:
        posted = [await client.post("X/a", b"%d" % number) for number in range(4)]
        assert not any(each.resolved for each in posted)
        assert (await posted[0].receipt()).accepted
        assert (await posted[1].receipt()).result == "schema-mismatch"
        with pytest.raises(GatewayError, match="no more"):
            await posted[2].receipt()
        with pytest.raises(OutcomeUnknownError):
            await posted[3].receipt()
        assert all(each.resolved for each in posted)
        with pytest.raises(ClientError, match="nothing was sent"):
            await client.post("X/a", b"late")


@pytest.mark.parametrize("version", [VERSION_1_1, VERSION_1_2])
def test_automatic_ack_follows_the_body(version: int) -> None:
    """Asking for the next message acknowledges the one before, once, with the headers of the negotiated version."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        frame = await peer.expect(b"SUBSCRIBE")
        assert frame.headers[b"ack"] == b"client"
        assert frame.headers[b"eager"] == b"true"
        await peer.message(7)  # MESSAGEs may come before the RECEIPT
        await peer.receipt(frame, (b"result", b"created"), (b"filtered", b"true"))
        for revision in (8, 9):
            frame = await peer.expect(b"ACK")
            if version == VERSION_1_1:
                assert frame.headers == {b"subscription": b"sub", b"message-id": b"%d" % (revision - 1)}
            else:
                assert frame.headers == {b"id": b"sub %d" % (revision - 1)}
            await peer.message(revision)
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    async def test() -> None:
        async with (
            talking(script, version) as client,
            client.subscribe("X/*", id="sub", eager=True) as subscription,
        ):
            assert subscription.result == "created"
            assert subscription.filtered
            revisions = []
            async for message in subscription:
                assert (message.destination, message.body, message.headers["n"]) == ("X/a", b"v", "1:2")
                revisions.append(message.message_id)
                if len(revisions) == 2:
                    await message.ack()  # the loop does not repeat it
                if len(revisions) == 3:
                    break
            assert revisions == ["7", "8", "9"]

    run_on_both_loops(test)


@on_both_loops
async def test_a_body_that_raises_acknowledges_nothing() -> None:
    """The message whose loop body raised is not acknowledged, and the exception comes out as it is."""
    commands = []

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        await peer.message(1)
        with contextlib.suppress(EOFError, anyio.BrokenResourceError):
            while True:
                commands.append((await peer.frame()).command)

    with pytest.raises(LookupError, match="mine"):  # noqa: PT012 - the block is what is tested
        async with talking(script) as client, client.subscribe("X/*", id="sub") as subscription:
            async for _message in subscription:
                raise LookupError("mine")
    assert b"ACK" not in commands


@pytest.mark.parametrize("ack", ["client", "client-individual"])
def test_an_ack_repeats_the_messages_ack_header(ack: Literal["client", "client-individual"]) -> None:
    """A 1.2 ACK repeats the MESSAGE's `ack` header. It is not sent if another ACK covered it, or after the subscription's end."""
    acked = []

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        frame = await peer.expect(b"SUBSCRIBE")
        assert frame.headers[b"ack"] == ack.encode()
        await peer.receipt(frame)
        for number in range(3):
            await peer.stream.send_all(
                b"MESSAGE\nsubscription:sub\nack:T_1@@\\c%d\nmessage-id:m\ndestination:/queue/x\n\nv\0" % number
            )
        while (frame := await peer.frame()).command == b"ACK":
            acked.append(frame.headers[b"id"])
        await peer.receipt(frame)
        await peer.leave()

    async def test() -> None:
        acked.clear()
        async with talking(script) as client:
            async with client.subscribe("/queue/x", id="sub", ack=ack, automatic=False) as subscription:
                first, second, third = [await anext(subscription) for _ in range(3)]
                await second.ack()
                await first.ack()
                await second.ack()
            await third.ack()
        assert acked == ([b"T_1@@:1"] if ack == "client" else [b"T_1@@:1", b"T_1@@:0"])

    run_on_both_loops(test)


def test_a_receipt_shows_what_it_says() -> None:
    """The repr of a Receipt has what is not empty."""
    receipt = Receipt(b"7", "rejected-invalid", "no-rule", "why", False)
    assert repr(receipt) == "Receipt(receipt_id=b'7', disposition='rejected-invalid', result='no-rule', reason='why')"
    assert repr(Receipt(b"7", "accepted", "", "", True, 3)).endswith("filtered=True, revision=3)")


@on_both_loops
async def test_ack_with_receipt_waits() -> None:
    """`ack(receipt=True)` returns after the gateway's RECEIPT."""
    recorded = False

    async def script(peer: ServerConnection) -> None:
        nonlocal recorded
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        await peer.message(1)
        frame = await peer.expect(b"ACK")
        await anyio.sleep(3)
        recorded = True
        await peer.receipt(frame)
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    async with talking(script) as client, client.subscribe("X/*", id="sub", automatic=False) as subscription:
        await (await anext(subscription)).ack(receipt=True)
        assert recorded


@on_both_loops
async def test_durable_pauses_and_is_removed() -> None:
    """The end of the block pauses a durable subscription, `remove` ends it for good and returns the gateway's result."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        for flag in (None, b"true"):
            frame = await peer.expect(b"SUBSCRIBE")
            assert frame.headers[b"durable"] == b"true"
            await peer.receipt(frame)
            frame = await peer.expect(b"UNSUBSCRIBE")
            assert frame.headers.get(b"durable") == flag
            await peer.receipt(frame, (b"result", b"removed" if flag else b"paused"))
        await peer.leave()

    async with talking(script) as client:
        async with client.subscribe("X/*", id="sub", durable=True):
            pass
        async with client.subscribe("X/*", id="sub", durable=True) as subscription:
            assert await subscription.remove() == "removed"


@on_both_loops
async def test_unread_auto_subscription_stops_reading() -> None:
    """A subscription with ack auto that no task reads holds a bounded number of messages, and loses none."""
    sent = 0

    async def script(peer: ServerConnection) -> None:
        nonlocal sent
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        while sent < 1000:
            sent += 1
            await peer.message(sent, acknowledged=False)
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    ours, theirs = stream_pair(lockstep=True)  # takes nothing that is not being read
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(script, ServerConnection(theirs))
        async with (
            converse(ours, heart_beat_ms=(0, 0)) as client,
            client.subscribe("X/*", id="sub", ack="auto") as subscription,
        ):
            await anyio.sleep(600)
            assert sent <= UNREAD_MESSAGES_MAX + 2
            for revision in range(1, 1001):
                assert (await anext(subscription)).message_id == str(revision)


@on_both_loops
async def test_heart_beats_are_sent() -> None:
    """An idle client sends an end of line within each agreed interval."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept(heart_beat_ms=(0, 15000))
        before = peer.received_bytes
        with anyio.move_on_after(60):
            await peer.frame()
        assert 4 <= peer.received_bytes - before <= 5
        await peer.leave()

    async with talking(script):
        await anyio.sleep(60)


@on_both_loops
async def test_a_silent_gateway_counts_as_dead() -> None:
    """Twice the agreed interval without a byte ends the connection: requests under way have an unknown outcome."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept(heart_beat_ms=(10000, 0))
        await anyio.sleep(15)
        await peer.stream.send_all(encoder.HEART_BEAT)

    async with talking(script) as client:
        began = anyio.current_time()
        with pytest.raises(OutcomeUnknownError, match="20 s, twice the heart-beat"):
            await client.send("X/a", b"v")
        assert anyio.current_time() - began == pytest.approx(35)
        with pytest.raises(ConnectionLostError, match="nothing was sent"):
            await client.send("X/a", b"v")


@on_both_loops
async def test_an_error_is_raised_where_it_belongs() -> None:
    """ERROR is raised by the request it names and by every iteration; other requests have an unknown outcome."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        await peer.expect(b"SEND")
        bad = await peer.expect(b"SEND")
        await peer.error("no good", bad.headers[b"receipt"])

    seen: dict[str, BaseException] = {}

    async def attempt(name: str, action: Callable[[], Awaitable[object]]) -> None:
        try:
            await action()
        except ClientError as error:
            seen[name] = error

    async with talking(script) as client:
        subscription = client.subscribe("X/*", id="sub")
        await subscription.__aenter__()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, "iteration", subscription.__anext__)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(attempt, "first", lambda: client.send("X/first", b"v"))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(attempt, "second", lambda: client.send("X/second", b"v"))
        assert isinstance(seen["first"], OutcomeUnknownError)
        assert isinstance(seen["first"].__cause__, GatewayError)
        for name in ("second", "iteration"):
            error = seen[name]
            assert isinstance(error, GatewayError)
            assert (error.message, error.detail) == ("no good", "detail")


@on_both_loops
async def test_no_common_version() -> None:
    """An answer to CONNECT that lists only versions we did not offer is a VersionError, and so is a CONNECTED with one of those."""

    async def refuse(peer: ServerConnection) -> None:
        await peer.expect(b"CONNECT")
        await peer.error("no common version", None, (b"version", b"1.0,1.2"))

    async def ignore(peer: ServerConnection) -> None:
        await peer.accept()

    for script in (refuse, ignore):
        with pytest.raises(VersionError):
            async with talking(script, version="1.1"):
                pytest.fail("connected")


@on_both_loops
async def test_a_version_header_alone_makes_no_version_error() -> None:
    """An ERROR that lists a version we speak, or that is no answer to CONNECT, is a plain GatewayError (RabbitMQ lists them in each)."""

    async def refuse(peer: ServerConnection) -> None:
        await peer.expect(b"CONNECT")
        await peer.error("access refused", None, (b"version", b"1.0,1.1,1.2"))

    async def fail(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.error("unknown destination", None, (b"version", b"1.0"))

    with pytest.raises(GatewayError) as raised:
        async with talking(refuse):
            pytest.fail("connected")
    assert type(raised.value) is GatewayError
    async with talking(fail) as client:
        assert type(await client.ended()) is GatewayError


@on_both_loops
async def test_a_mute_gateway_is_unreachable() -> None:
    """No answer to CONNECT in time is an UnreachableError; the error for a close instead of an answer has advice."""

    async def mute(peer: ServerConnection) -> None:
        await peer.expect(b"CONNECT")

    async def close(peer: ServerConnection) -> None:
        await peer.expect(b"CONNECT")
        await peer.stream.aclose()

    with pytest.raises(UnreachableError, match="within 3 s"):
        async with talking(mute, timeout_s=3):
            pytest.fail("connected")
    with pytest.raises(ConnectionLostError, match="certificate"):
        async with talking(close):
            pytest.fail("connected")


@on_both_loops
async def test_a_cancelled_send_leaves_a_whole_frame() -> None:
    """A SEND that was cancelled while it waited for its RECEIPT was written whole, and the connection goes on."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        late = await peer.expect(b"SEND")
        await anyio.sleep(10)
        await peer.receipt(late)
        await peer.receipt(await peer.expect(b"SEND"))
        await peer.leave()

    async with talking(script) as client:
        with anyio.move_on_after(5) as patience:
            await client.send("X/a", b"1" * 1_000_000)
        assert patience.cancelled_caught
        assert (await client.send("X/a", b"2")).accepted


@on_both_loops
async def test_iteration_ends_with_our_own_disconnect() -> None:
    """`disconnect` ends iterations without an exception."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        await peer.leave()

    async with talking(script) as client, client.subscribe("X/*", id="sub") as subscription:

        async def iterate() -> None:
            assert [message async for message in subscription] == []

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(iterate)
            await anyio.wait_all_tasks_blocked()
            await client.disconnect()


@on_both_loops
async def test_an_id_is_used_once() -> None:
    """A second subscription of the same id is refused here, where it does not cost the connection."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    async with talking(script) as client, client.subscribe("X/*", id="sub"):
        with pytest.raises(ClientError, match="in use"):
            await client.subscribe("X/b", id="sub").__aenter__()


@on_both_loops
async def test_missing_files_and_nobody_there(tmp_path: Any) -> None:
    """A missing file is named, and so is the kind of it."""
    with pytest.raises(CertificateFileError, match=r"CA file .*none\.pem: "):
        async with connect("127.0.0.1", 1, certificate="c", key="k", ca=tmp_path / "none.pem"):
            pytest.fail("connected")


@on_both_loops
async def test_resumes_subscriptions() -> None:
    """After a loss it connects with the session's name, subscribes again as before, and the iteration just goes on."""

    async def first(peer: ServerConnection) -> None:
        await peer.accept("s-1")
        await peer.receipt(await peer.expect(b"SUBSCRIBE"), (b"result", b"created"))
        await peer.message(1)
        await anyio.sleep(1)
        await peer.stream.aclose()

    async def second(peer: ServerConnection) -> None:
        frame = await peer.accept("s-1")
        assert frame.headers[b"client-id"] == b"s-1"
        frame = await peer.expect(b"SUBSCRIBE")
        assert frame.headers[b"id"] == b"sub"
        assert frame.headers[b"durable"] == b"true"
        await peer.receipt(frame, (b"result", b"resumed"))
        await peer.message(2)
        await peer.receipt(await peer.expect(b"UNSUBSCRIBE"))
        await peer.leave()

    gateway = Gateway(first, second)
    async with gateway.resuming() as client, client.subscribe("X/*", id="sub", durable=True) as subscription:
        assert subscription.result == "created"
        message = await anext(subscription)
        await anyio.sleep(5)
        await message.ack()  # of a connection that is gone: it is not sent
        assert (await anext(subscription)).message_id == "2"
        assert subscription.result == "resumed"
    assert gateway.sessions == [None, "s-1"]


@on_both_loops
async def test_a_send_is_repeated_only_on_request() -> None:
    """A SEND in flight at the loss is raised as of unknown outcome; with `retry` it is sent until it has a RECEIPT."""

    async def swallow(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.expect(b"SEND")
        await peer.stream.aclose()

    async def answer(peer: ServerConnection) -> None:
        await peer.accept()
        frame = await peer.expect(b"SEND")
        assert frame.body == b"again"
        assert [frame.headers[name] for name in (b"source", b"source-revision", b"if-revision")] == [b"s", b"1", b"2"]
        await peer.receipt(frame)
        await peer.leave()

    async with Gateway(swallow, swallow, answer).resuming() as client:
        with pytest.raises(OutcomeUnknownError):
            await client.send("X/a", b"once")
        assert (await client.send("X/a", b"again", source=("s", 1), if_revision=2, retry=True)).accepted
        assert client.connections == 3


@on_both_loops
async def test_pauses_grow_to_a_bound() -> None:
    """The limit of the random pauses doubles with each failed attempt, up to 30 s."""

    async def once(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.stream.aclose()

    gateway = Gateway(once)
    async with gateway.resuming():
        await anyio.sleep(300)
    waits = [wait_s for _, wait_s in gateway.losses]
    assert len(waits) > 10
    for attempt, wait_s in enumerate(waits):
        assert 0 <= wait_s <= min(0.25 * 2**attempt, 30)
    assert gateway.losses[0][0] == "the gateway closed the connection"
    assert gateway.losses[1][0] == "nobody there"


@pytest.mark.parametrize("found_at_s", [0, 14, 30])
@on_both_loops
async def test_a_late_gateway_is_left_as_soon_as_another_address_serves(found_at_s: int) -> None:
    """Another address is searched for while a heart-beat is late, and never before. Without one, the gateway is dead as ever."""
    asked_s: list[float] = []
    began_s = anyio.current_time()

    async def search() -> str:
        asked_s.append(anyio.current_time() - began_s)
        return "b:61614" if asked_s[-1] >= found_at_s else ""

    async def silent(peer: ServerConnection) -> None:
        await peer.accept(heart_beat_ms=(10000, 0))
        await anyio.sleep(9)
        await peer.stream.send_all(encoder.HEART_BEAT)

    async def answer(peer: ServerConnection) -> None:
        await peer.accept(heart_beat_ms=(0, 0))
        await peer.receipt(await peer.expect(b"SEND"))
        await peer.leave()

    gateway = Gateway(silent, answer)
    async with gateway.resuming(search) as client:
        await anyio.sleep(1)
        with contextlib.suppress(OutcomeUnknownError):
            await client.send("X/a", b"v", retry=True)
        lost_s = anyio.current_time() - began_s
    assert asked_s[0] == pytest.approx(21)
    assert ("b:61614 takes connections" in gateway.losses[0][0]) == (found_at_s < 29)
    assert lost_s == pytest.approx(21 if found_at_s < 21 else 29, abs=1)


def test_the_next_address_that_takes_connections_is_found() -> None:
    """The one in use is not asked, and those that refuse are passed."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # it does not listen
            port, refusing = listener.getsockname()[1], unused.getsockname()[1]
            addresses = Addresses([("127.0.0.1", refusing), ("127.0.0.1", refusing), ("127.0.0.1", port)])
            for addresses.first, expected in enumerate(("", f"127.0.0.1:{port}", f"127.0.0.1:{port}")):
                assert await addresses.search() == expected

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


@on_both_loops
async def test_pauses_are_short_while_another_address_may_serve_soon() -> None:
    """With several addresses no pause is longer than 1 s in the first 30 s after a loss. Then they grow as with one address."""

    async def once(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.stream.aclose()

    async def search() -> str:
        return ""

    gateway = Gateway(once)
    async with gateway.resuming(search):
        await anyio.sleep(300)
    waits = [wait_s for _, wait_s in gateway.losses]
    searching = list(itertools.takewhile(lambda wait_s: wait_s <= 1, waits))
    assert 29 <= sum(searching) <= 34  # the first ones after 30 s may be short by chance
    assert max(waits) > 15


@on_both_loops
async def test_a_session_taken_over_is_not_taken_back() -> None:
    """The ERROR of a takeover ends the resuming client: iterations and sends raise it."""

    async def script(peer: ServerConnection) -> None:
        await peer.accept()
        await peer.receipt(await peer.expect(b"SUBSCRIBE"))
        await peer.error(SESSION_TAKEN_OVER)

    gateway = Gateway(script)
    async with gateway.resuming() as client, client.subscribe("X/*") as subscription:
        with pytest.raises(GatewayError, match="taken over"):
            await anext(subscription)
        with pytest.raises(GatewayError, match="taken over"):
            await client.send("X/a", b"v")
    assert len(gateway.sessions) == 1


@on_both_loops
async def test_a_first_connection_that_fails_is_raised() -> None:
    """Where nothing ever answered there is nothing to resume: the reason comes out at once."""
    with pytest.raises(UnreachableError, match="nobody there"):
        async with Gateway().resuming():
            pytest.fail("connected")


@on_both_loops
async def test_receipts_say_accepted_when_they_say_nothing() -> None:
    """The RECEIPT of a broker without dispositions counts as accepted."""
    assert Receipt(b"1", "accepted", "", "", False).accepted
