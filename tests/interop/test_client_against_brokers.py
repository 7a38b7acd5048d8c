"""Our client against STOMP brokers of others, over mutual TLS: what it may rely on is STOMP alone."""

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Literal

import pytest
import trio

from maxam.client import Client, ClientError, ConnectionLostError, GatewayError, connect
from maxam.client.resume import resume
from maxam.client.subscription import AckMode
from tests.benchmarks.brokers import activemq, rabbitmq
from tests.benchmarks.brokers.broker import Broker
from tests.support.patience import PATIENCE_S

Version = Literal["1.1", "1.2"]
Start = Callable[[set[int]], contextlib.AbstractContextManager[Broker]]
PEERS: Final[dict[str, tuple[Callable[[], bool], Start]]] = {
    "rabbitmq": (rabbitmq.installed, rabbitmq.rabbitmq),
    "activemq": (activemq.installed, activemq.activemq),
}
REFUSED: Final[dict[str, tuple[str, dict[str, str]]]] = {  # a SEND that gets an ERROR
    "rabbitmq": ("/nowhere/x", {}),
    "activemq": ("/queue/x", {"transaction": "none"}),
}
HEART_BEATS_MS: Final = (5000, 15_000)  # a busy machine keeps a broker from its heart-beat for some seconds
ACK_MODES: Final[tuple[AckMode, ...]] = ("auto", "client", "client-individual")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.parametrize("broker", list(PEERS), indirect=True, scope="module"),
]
each_version = pytest.mark.parametrize("version", ["1.1", "1.2"])


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Run one broker for all tests of it; skip them where it is missing, fail where that may not be (CI=true)."""
    installed, start = PEERS[request.param]
    if not installed():
        text = f"{request.param} is not installed: run make test-deps"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    with start(os.sched_getaffinity(0)) as running:
        yield running


@asynccontextmanager
async def connected(
    broker: Broker, version: Version, heart_beat_ms: int = 0, port: int | None = None
) -> AsyncIterator[Client]:
    """Connect as the publisher, at another port through a relay."""
    files = broker.target.publisher
    assert files is not None
    assert files.certificate is not None
    assert files.key is not None
    async with connect(
        broker.target.host,
        port or broker.target.port,
        certificate=files.certificate,
        key=files.key,
        ca=files.ca,
        host=broker.target.virtual_host,
        version=version,
        heart_beat_ms=(heart_beat_ms, heart_beat_ms),
        timeout_s=PATIENCE_S,
    ) as client:
        assert client.version == version
        yield client


def queue() -> str:
    """Return the name of a queue that no other test uses; both brokers keep what is un-acked in it."""
    return f"/queue/{uuid.uuid4().hex}"


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run an async test, but not for ever."""

    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await main()

    trio.run(bounded)


async def fill(client: Client, name: str, bodies: range) -> None:
    """Send values in order and see each accepted."""
    posted = [await client.post(name, b"%d" % number) for number in bodies]
    for each in posted:
        assert (await each.receipt()).accepted


async def take(client: Client, name: str, ack: AckMode, count: int) -> list[bytes]:
    """Take messages from a queue, acknowledging each."""
    async with client.subscribe(name, ack=ack, automatic=False) as subscription:
        taken = []
        async for message in subscription:
            taken.append(message.body)
            await message.ack(receipt=True)
            if len(taken) == count:
                break
    return taken


@each_version
@pytest.mark.parametrize("ack", ACK_MODES)
def test_acknowledged_one_by_one_nothing_comes_again(broker: Broker, version: Version, ack: AckMode) -> None:
    """In each ack mode all messages come once, in order, and the iteration's own ACKs are taken by the broker."""

    async def main() -> None:
        name = queue()
        async with connected(broker, version) as client:
            await fill(client, name, range(300))
            async with client.subscribe(name, ack=ack) as subscription:
                for number in range(300):
                    assert (await anext(subscription)).body == b"%d" % number
                if ack != "auto":  # whose reader must await nothing else
                    await fill(client, name, range(300, 301))  # the connection lives after many ACKs
                    message = await anext(subscription)  # acknowledges 300
                    await message.ack(receipt=True)
        async with connected(broker, version) as client:
            await fill(client, name, range(301, 302))
            assert await take(client, name, ack, 1) == [b"301"]

    run(main)


@each_version
def test_an_ack_of_mode_client_covers_the_messages_before_it(broker: Broker, version: Version) -> None:
    """After an ACK of the last of ten none of them comes again; earlier ones acknowledged after it change nothing."""

    async def main() -> None:
        name = queue()
        async with connected(broker, version) as client:
            await fill(client, name, range(10))
            async with client.subscribe(name, ack="client", automatic=False) as subscription:
                messages = [await anext(subscription) for _ in range(10)]
                await messages[-1].ack(receipt=True)
                await messages[3].ack()
                await messages[-1].ack()
            await messages[0].ack()
        async with connected(broker, version) as client:
            await fill(client, name, range(10, 11))
            assert await take(client, name, "client", 1) == [b"10"]

    run(main)


@each_version
def test_an_ack_of_mode_client_individual_covers_one_message(broker: Broker, version: Version) -> None:
    """After an ACK of the last of three the first two come again, that one does not."""

    async def main() -> None:
        name = queue()
        async with connected(broker, version) as client:
            await fill(client, name, range(3))
            async with client.subscribe(name, ack="client-individual", automatic=False) as subscription:
                messages = [await anext(subscription) for _ in range(3)]
                await messages[2].ack(receipt=True)
        async with connected(broker, version) as client:
            await fill(client, name, range(3, 4))
            assert await take(client, name, "client-individual", 3) == [b"0", b"1", b"3"]

    run(main)


@each_version
def test_large_bodies_and_escaped_headers_come_back(broker: Broker, version: Version) -> None:
    """2 MB of every byte value, NUL and line ends included, and headers with what must be escaped are received as sent."""
    body = bytes(range(256)) * 8192
    headers = {"path": "C:\\new\\n:x", "lines": "one\ntwo: three", "a:b": "c"}
    if version == "1.2":
        headers["return"] = "one\r\ntwo"

    async def main() -> None:
        name = queue()
        async with connected(broker, version) as client, client.subscribe(name) as subscription:
            assert (await client.send(name, body, headers)).accepted
            message = await anext(subscription)
            assert message.body == body
            assert {key: message.headers.get(key) for key in headers} == headers
            await message.ack(receipt=True)

    run(main)


def test_an_idle_connection_lives_by_its_heart_beats(broker: Broker) -> None:
    """Both ends that promise heart-beats and hear none for twice the interval close: after a longer time both still serve.

    A broker that the machine kept waiting too long has a second chance with a longer interval.
    """

    async def idle(version: Version, heart_beat_ms: int) -> None:
        async with connected(broker, version, heart_beat_ms) as client:
            with trio.move_on_after(2.3 * heart_beat_ms / 1000):
                raise await client.ended()
            await fill(client, queue(), range(1))

    async def main(heart_beat_ms: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(idle, "1.1", heart_beat_ms)
            nursery.start_soon(idle, "1.2", heart_beat_ms)

    short_ms, long_ms = HEART_BEATS_MS
    try:
        run(partial(main, short_ms))
    except* ConnectionLostError:
        run(partial(main, long_ms))


@each_version
def test_many_receipts_find_their_frames(broker: Broker, version: Version) -> None:
    """1,000 SENDs under way from two tasks are each answered `accepted`, as a RECEIPT without disposition means that."""

    async def main() -> None:
        async with connected(broker, version) as client, trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(fill, client, queue(), range(500))

    run(main)


@each_version
def test_an_error_is_the_brokers_word_and_no_matter_of_versions(broker: Broker, version: Version) -> None:
    """A SEND that the broker does not take ends in a GatewayError with its text, not in a VersionError, and never as accepted."""
    destination, headers = REFUSED[broker.name]

    async def main() -> None:
        async with connected(broker, version) as client:
            with pytest.raises(ClientError):
                await client.send(destination, b"v", headers)
            reason = await client.ended()
            assert type(reason) is GatewayError
            assert reason.message

    run(main)


@each_version
def test_a_resuming_client_goes_on_over_cut_connections(broker: Broker, version: Version) -> None:
    """Cut twice, it connects again, subscribes again and misses nothing of a queue; a SEND that was repeated may come twice."""
    losses: list[ClientError] = []

    async def main() -> None:
        name = queue()
        async with (
            _relay(broker) as (port, cut),
            resume(
                lambda _session: connected(broker, version, port=port),
                on_loss=lambda reason, _wait_s: losses.append(reason),
            ) as client,
            client.subscribe(name, ack="client") as subscription,
        ):
            expected = 0
            for _ in range(3):
                for _ in range(20):
                    assert (await client.send(name, b"%d" % expected, retry=True)).accepted
                    while int((await anext(subscription)).body) < expected:
                        pass  # un-acked when the connection was cut, or sent twice
                    expected += 1
                cut()
            assert client.connections >= 2

    run(main)
    assert len(losses) >= 2


@asynccontextmanager
async def _relay(broker: Broker) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """Forward connections to a broker; the second value cuts those that are open."""
    scopes: list[trio.CancelScope] = []

    async def pump(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await sink.send_all(data)
        scope.cancel()

    async def forward(ours: trio.SocketStream) -> None:
        async with (
            await trio.open_tcp_stream(broker.target.host, broker.target.port) as theirs,
            trio.open_nursery() as both,
        ):
            scopes.append(both.cancel_scope)
            both.start_soon(pump, ours, theirs, both.cancel_scope)
            both.start_soon(pump, theirs, ours, both.cancel_scope)

    def cut() -> None:
        for scope in scopes:
            scope.cancel()
        scopes.clear()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, forward, 0)
        yield listeners[0].socket.getsockname()[1], cut
        nursery.cancel_scope.cancel()
