"""Clients that are alive are not ended by the broker's own back-pressure; those that are dead are."""

import math
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from maxam.config import Limits
from maxam.gateway.clock import WallClock
from maxam.gateway.delivery_scheduler import DeliveryScheduler
from maxam.gateway.revocation import Chain
from maxam.gateway.server_connection import ServerConnection
from maxam.gateway.tls import TlsSocket
from maxam.gateway.transport import Transport
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.streams.tls_pairs import Client, client_context
from tests.support.patience import PATIENCE_S
from tests.support.sans_io import World, fingerprint_of

Pair = Callable[..., tuple[socket.socket, Client]]
CONNECT = b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nheart-beat:10000,10000\n\n\0"
SUBSCRIBE = b"SUBSCRIBE\nid:s\ndestination:X/**\nack:auto\neager:true\n\n\0"
VALUE = bytes(range(1, 256)) * 1600  # some 400 KB
RATE = 1500  # bytes per second
INTERVAL_S = 10.0
STEP_S = 1.0


class Broker:
    """A broker with one value and one connection, which belongs to the client at the other end of a pair."""

    def __init__(self, ours: socket.socket, context: ssl.SSLContext, limits: Limits) -> None:
        self.world = World.make(limits=limits)
        self.deliveries = DeliveryScheduler(lambda: None)
        self.connection = Transport(
            TlsSocket(context, ours), "pair", "pair", limits, self.deliveries, WallClock(0, 3600, trio.current_time())
        )
        self.ended = trio.Event()
        self.ended_s = math.inf

    def publish(self, body: bytes) -> None:
        """Have a value accepted."""
        publisher = self.world.client()
        publisher.send("X/a", body)
        self.world.settle()

    async def serve(self) -> None:
        """Serve the connection to its end."""
        await self.connection.run(trio.CapacityLimiter(4), self._make_peer, self._touch, lambda _: None)
        self.ended_s = trio.current_time()
        self.ended.set()

    def _make_peer(self, _fingerprint: str, _chain: Chain, wake: Callable[[], None], now_s: float) -> ServerConnection:
        world = self.world
        return ServerConnection(world.broker, world.settings, fingerprint_of("anna"), "session", wake, now_s)

    def _touch(self) -> None:
        self.world.settle()
        self.deliveries.run()


class SlowLine:
    """A relay between a client and the broker that carries N bytes a second towards the client, and any towards the broker."""

    def __init__(self, theirs: trio.SocketStream, ours: trio.SocketStream) -> None:
        self.theirs = theirs
        self.ours = ours
        self.down_rate = RATE
        self.up_rate = 1_000_000

    async def run(self) -> None:
        """Carry until both sides have closed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry, self.theirs, self.ours, "down_rate")
            nursery.start_soon(self._carry, self.ours, self.theirs, "up_rate")

    async def _carry(self, source: trio.SocketStream, target: trio.SocketStream, rate: str) -> None:
        try:
            while True:
                size = int(getattr(self, rate) * STEP_S)
                if size and (data := await source.receive_some(size)):
                    await target.send_all(data)
                elif size:
                    await target.send_eof()
                    return
                await trio.sleep(STEP_S)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await target.aclose()


@contextmanager
def slow_pair(pair: Pair) -> Iterator[tuple[socket.socket, Client, SlowLine]]:
    """Give a pair with a slow line between its ends, and small buffers."""
    ours, client = pair()
    near, far = socket.socketpair()
    near.setblocking(False)
    for end in (ours, near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    line = SlowLine(
        trio.SocketStream(trio.socket.from_stdlib_socket(far)),
        trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
    )
    try:
        yield near, client, line
    finally:
        for end in (ours, near, far):
            end.close()


Act = Callable[[Broker, Client, SlowLine], object]


@pytest.fixture
def play(pair: Pair, context: ssl.SSLContext) -> Callable[..., Broker]:
    """Run an act of a client at the other end of a slow line on a virtual clock; return the broker after its end."""

    def run(act: Act, limits: Limits = Limits()) -> Broker:  # noqa: B008 it is immutable
        async def main() -> Broker:
            with slow_pair(pair) as (near, client, line):
                broker = Broker(near, context, limits)
                with trio.fail_after(3000):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(broker.serve)
                        nursery.start_soon(line.run)
                        await act(broker, client, line)  # type: ignore[misc]
                        nursery.cancel_scope.cancel()
                await trio.aclose_forcefully(client)
            return broker

        return trio.run(main, clock=MockClock(autojump_threshold=0))

    return run


async def read_frames(client: Client, count: int) -> list[Frame]:
    """Read until there are N frames."""
    decoder = Decoder(Limits(), SERVER_COMMANDS)
    frames: list[Frame] = []
    while len(frames) < count:
        data = await client.receive_some()
        assert data, "closed by the broker"
        frames += decoder.feed(bytes(data))
    return frames


async def beat(client: Client) -> None:
    """Send heart-beats for ever."""
    while True:
        await trio.sleep(INTERVAL_S * 0.9)
        await client.send_all(b"\n")


@pytest.mark.parametrize("beats", [True, False])
def test_a_large_value_passes_a_slow_line(play: Callable[..., Broker], beats: bool) -> None:
    """A line of 1.5 KB/s receives 400 KB, whether the client sends heart-beats meanwhile or is busy with reading."""

    async def act(broker: Broker, client: Client, line: SlowLine) -> None:
        broker.publish(VALUE)
        line.down_rate = 1_000_000
        await client.send_all(CONNECT + SUBSCRIBE)
        await read_frames(client, 1)
        line.down_rate = RATE
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            if beats:
                nursery.start_soon(beat, client)
            (message,) = await read_frames(client, 1)
            nursery.cancel_scope.cancel()
        assert message.body == VALUE
        assert trio.current_time() - began_s > 10 * INTERVAL_S
        assert broker.ended_s == math.inf

    play(act)


def test_a_large_value_is_sent_over_a_slow_line(play: Callable[..., Broker]) -> None:
    """A line of at least 1 KB/s may send 400 KB. Half a TLS record is a sign of life, and the rate is that of the line."""

    async def act(broker: Broker, client: Client, line: SlowLine) -> None:
        line.down_rate = 1_000_000
        await client.send_all(CONNECT)
        await read_frames(client, 1)
        line.up_rate = RATE
        peer = broker.connection.peer
        assert peer is not None
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                while True:
                    await trio.sleep(1)
                    peer.check_pace(trio.current_time())

            nursery.start_soon(look)
            await client.send_all(b"SEND\ndestination:X/a\nreceipt:r\n\n" + VALUE + b"\0")
            frames = await read_frames(client, 1)
            nursery.cancel_scope.cancel()
        assert [frame.command for frame in frames] == [b"RECEIPT"]
        assert broker.world.broker.store.topics[b"X/a"].change.body == VALUE

    play(act)


def test_who_takes_nothing_is_closed_in_time(play: Callable[..., Broker]) -> None:
    """A client that vanishes in the middle of a MESSAGE is closed within one to three times the deadline from its last byte."""
    limits = Limits()
    lost_s = 0.0

    async def act(broker: Broker, client: Client, line: SlowLine) -> None:
        nonlocal lost_s
        broker.publish(VALUE)
        await client.send_all(CONNECT + SUBSCRIBE)
        with trio.move_on_after(100):
            await read_frames(client, 3)
        assert broker.ended_s == math.inf
        line.down_rate = 0
        lost_s = trio.current_time()
        await broker.ended.wait()

    broker = play(act, limits)
    assert limits.write_timeout_s <= broker.ended_s - lost_s <= 3 * limits.write_timeout_s
    assert "did not take" in broker.connection.reason


def test_who_is_silent_and_has_taken_everything_is_dead(play: Callable[..., Broker]) -> None:
    """A client that owes heart-beats and sends none is closed after two to three intervals, though its system takes our bytes."""
    heard_s = 0.0

    async def act(broker: Broker, client: Client, line: SlowLine) -> None:
        nonlocal heard_s
        line.down_rate = 1_000_000
        await client.send_all(CONNECT)
        heard_s = trio.current_time()
        frames = await read_frames(client, 2)
        assert frames[-1].headers[b"message"] == b"heart-beat missed"
        await broker.ended.wait()

    broker = play(act)
    assert 2 * INTERVAL_S <= broker.ended_s - heard_s <= 3 * INTERVAL_S + STEP_S


def test_a_slow_reader_over_tcp_is_waited_for(certificates: Path, context: ssl.SSLContext) -> None:
    """Over TCP with small buffers each byte that the client's kernel acknowledges starts the write deadline again."""
    limits = Limits(write_timeout_s=1.0)

    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        theirs.connect(listening.getsockname())
        ours, _ = listening.accept()
        listening.close()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        client = trio.SSLStream(stream, client_context(certificates, "publisher"), server_hostname="localhost")
        broker = Broker(ours, context, limits)
        broker.publish(VALUE[:200_000])
        decoder = Decoder(Limits(), SERVER_COMMANDS)
        frames: list[Frame] = []
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.serve)
                await client.send_all(CONNECT + SUBSCRIBE)
                while len(frames) < 2:
                    data = await client.receive_some(5000)
                    assert data, broker.connection.reason
                    frames += decoder.feed(bytes(data))
                    await trio.sleep(0.1)  # 50 KB/s: 64 KiB take longer than the deadline
                nursery.cancel_scope.cancel()
        assert frames[-1].body == VALUE[:200_000]
        await trio.aclose_forcefully(client)

    trio.run(main)


def test_a_pause_for_durable_changes_ends_by_itself_and_loses_nothing(play: Callable[..., Broker]) -> None:
    """Above `durable_changes_per_s_max` the connection is not read until the rate allows it; then all that came is answered, in order."""
    limits = Limits(durable_changes_per_s_max=2, durable_subscriptions_per_principal_max=4)

    def changes(first: int, command: bytes) -> bytes:
        return b"".join(
            b"%s\nid:s%d\ndestination:X/**\nack:auto\ndurable:true\nreceipt:%d\n\n\0" % (command, n, first + n)
            for n in range(4)
        )

    async def act(broker: Broker, client: Client, line: SlowLine) -> None:
        line.down_rate = 1_000_000
        await client.send_all(CONNECT)
        await read_frames(client, 1)
        peer = broker.connection.peer
        assert peer is not None
        await client.send_all(changes(0, b"SUBSCRIBE") + changes(4, b"UNSUBSCRIBE"))  # the burst, and four more
        paused = await read_frames(client, 8)
        began_s = trio.current_time()
        assert not peer.receiving
        await client.send_all(changes(8, b"SUBSCRIBE") + b"SEND\ndestination:X/a\nreceipt:12\n\nv\0")  # four MESSAGEs
        answers = paused + [frame for frame in await read_frames(client, 9) if frame.command == b"RECEIPT"]
        assert [int(frame.headers[b"receipt-id"]) for frame in answers] == list(range(13))
        assert answers[-1].headers[b"disposition"] == b"accepted"
        assert trio.current_time() > began_s
        (session,) = broker.world.broker.sessions.values()
        assert sorted(session.subscriptions) == [b"s0", b"s1", b"s2", b"s3"]
        assert broker.ended_s == math.inf

    play(act, limits)
