"""A connection's two tasks around a scripted peer: deadlines, back-pressure, order, and every way to end."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from maxam.config import Limits
from maxam.gateway.clock import WallClock
from maxam.gateway.delivery_scheduler import READERS_PER_PASS, DeliveryScheduler
from maxam.gateway.revocation import Chain
from maxam.gateway.server_connection import ServerConnection
from maxam.gateway.tls import TlsSocket
from maxam.gateway.transport import SLICE_BYTES, Transport
from tests.streams.tls_pairs import Client

Pair = Callable[..., tuple[socket.socket, Client]]
LIMITS = Limits()


class _ScriptedPeer:
    """Stands in for ServerConnection: records its calls, hands out what the test puts in."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.connection: object | None = None
        self.receive_bytes_max = 4096
        self.receiving = True
        self.values_ready = False
        self.next_due_s: float | None = None
        self.finished = False
        self.sends = 0
        self.frames = 0
        self.principal = ""
        self.received_bytes = 0
        self.heard: list[float] = []
        self.listening: list[bool] = []
        self.received: list[bytes] = []
        self.output: list[list[bytes]] = []
        self.ticks: list[float] = []
        self.ends: list[str] = []
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.on_tick: Callable[[], None] = lambda: None

    def receive_data(self, data: bytes, now_s: float, wall_us: int) -> None:
        assert now_s == trio.current_time()
        assert wall_us > 1_700_000_000_000_000
        self.received.append(data)
        self.on_data(data)

    def receive_eof(self, now_s: float) -> None:
        assert now_s == trio.current_time()
        self.finished = True

    def data_to_send(self, now_s: float) -> list[bytes]:
        assert now_s == trio.current_time()
        return self.output.pop(0) if self.output else []

    def hear(self, now_s: float) -> None:
        self.heard.append(now_s)

    def listen(self, listening: bool, now_s: float) -> None:
        assert now_s == trio.current_time()
        self.listening.append(listening)

    def tick(self, now_s: float, untaken_bytes: int, taken_bytes: int) -> None:
        assert min(untaken_bytes, taken_bytes) >= 0
        self.ticks.append(now_s)
        self.next_due_s = None
        self.on_tick()

    def closed(self, now_s: float, reason: str) -> None:
        del now_s
        self.ends.append(reason)

    def cut(self) -> None:
        self.finished = True

    def say(self, *parts: bytes) -> None:
        self.output.append(list(parts))
        self.wake()


class _Scene:
    """A connection under test, its scripted peer and its client."""

    def __init__(self, ours: socket.socket, client: Client, context: ssl.SSLContext, limits: Limits) -> None:
        self.client = client
        token = trio.lowlevel.current_trio_token()
        self.deliveries = DeliveryScheduler(lambda: token.run_sync_soon(self.deliveries._send))
        clock = WallClock(0, 3600, trio.current_time())
        self.connection = Transport(TlsSocket(context, ours), "pair", "pair", limits, self.deliveries, clock)
        self.peer: _ScriptedPeer | None = None
        self.started = trio.Event()
        self.ended_s: float | None = None
        self.connected = 0
        self.touched = 0

    async def serve(self) -> None:
        await self.connection.run(trio.CapacityLimiter(4), self._make_peer, self._touch, self._connected)
        self.ended_s = trio.current_time()

    async def meet(self) -> _ScriptedPeer:
        await self.client.do_handshake()
        await self.started.wait()
        assert self.peer is not None
        return self.peer

    def _make_peer(self, fingerprint: str, _chain: Chain, wake: Callable[[], None], now_s: float) -> ServerConnection:
        assert len(fingerprint) == 64
        assert now_s == trio.current_time()
        self.peer = _ScriptedPeer(wake)
        self.started.set()
        return cast("ServerConnection", self.peer)

    def _touch(self) -> None:
        self.touched += 1

    def _connected(self, connection: Transport) -> None:
        assert connection is self.connection
        self.connected += 1


Act = Callable[[_Scene], Awaitable[None]]
Play = Callable[..., _Scene]


@pytest.fixture
def play(pair: Pair, context: ssl.SSLContext) -> Play:
    """Run an act against a connection on a virtual clock; return the scene after both have ended."""

    def run(act: Act, limits: Limits = LIMITS) -> _Scene:
        async def main() -> _Scene:
            ours, client = pair()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            scene = _Scene(ours, client, context, limits)
            with trio.fail_after(1000):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(scene.serve)
                    await act(scene)
            await trio.aclose_forcefully(client)
            assert ours.fileno() == -1
            return scene

        return trio.run(main, clock=MockClock(autojump_threshold=0))

    return run


def test_bytes_reach_the_peer_and_its_answers_the_client(play: Play) -> None:
    """The ServerConnection gets the client's bytes decrypted, and its output reaches the client in order."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        await scene.client.send_all(b"CONNECT")
        peer.say(b"one ", b"two ")
        peer.say(b"three")
        got = b""
        while len(got) < 13:
            got += await scene.client.receive_some()
        assert got == b"one two three"
        await scene.client.aclose()

    scene = play(act)
    assert scene.peer is not None
    assert b"".join(scene.peer.received) == b"CONNECT"
    assert scene.peer.ends == ["closed by the client"]
    assert scene.connection.bytes_in == 7
    assert scene.connection.bytes_out == 13


def test_what_a_commit_makes_due_leaves_with_it(play: Play) -> None:
    """No task is woken for it: before any has run, the client's kernel holds the bytes."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        await trio.testing.wait_all_tasks_blocked()
        scene.deliveries.begin_commit()
        peer.say(b"one ")
        peer.say(b"two")
        assert scene.connection.bytes_out == 0
        scene.deliveries.end_commit()
        assert scene.connection.bytes_out == 7
        assert await scene.client.receive_some() == b"one "
        assert await scene.client.receive_some() == b"two"
        await scene.client.aclose()

    play(act)


def test_a_client_that_is_gone_when_a_commit_is_handed_out_ends_alone(play: Play) -> None:
    """The commit goes on to the next connection; this one has the reason of its end."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        await trio.testing.wait_all_tasks_blocked()
        served: list[str] = []
        scene.deliveries.begin_commit()
        peer.say(b"late")
        scene.deliveries.schedule(lambda: served.append("next"))
        scene.client.transport_stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await trio.aclose_forcefully(scene.client)
        scene.deliveries.end_commit()
        assert served == ["next"]

    scene = play(act)
    assert scene.connection.reason


def test_who_publishes_does_not_wait_for_those_who_only_read(play: Play) -> None:
    """Frames of a client without SENDs wait while there are more than fit a pass. Frames of publishers do not wait."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        peer.connection = object()

        async def send(data: bytes) -> None:
            await scene.client.send_all(data)
            await trio.testing.wait_all_tasks_blocked()

        await send(b"CONNECT")
        async with trio.open_nursery() as others:
            for _ in range(READERS_PER_PASS + 1):
                others.start_soon(scene.deliveries.admit_reader)
            await trio.testing.wait_all_tasks_blocked()
            await send(b"ACK")
            assert peer.received == [b"CONNECT"]
            assert not scene.deliveries.run()
            await trio.testing.wait_all_tasks_blocked()
            assert peer.received == [b"CONNECT", b"ACK"]
            peer.on_data = lambda _: setattr(peer, "sends", peer.sends + 1)
            await trio.sleep(1)
            await send(b"SEND")
            for _ in range(READERS_PER_PASS + 1):
                others.start_soon(scene.deliveries.admit_reader)
            await trio.testing.wait_all_tasks_blocked()
            await send(b"SEND")
            assert peer.received[2:] == [b"SEND", b"SEND"]
            scene.deliveries.run()
        await scene.client.aclose()

    play(act)


def test_connected_is_announced_once(play: Play) -> None:
    """The server hears once that CONNECT was accepted, however much comes after."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()

        def connect(_: bytes) -> None:
            peer.connection = object()

        await scene.client.send_all(b"partial")
        await trio.testing.wait_all_tasks_blocked()
        assert scene.connected == 0
        peer.on_data = connect
        await scene.client.send_all(b"CONNECT")
        await scene.client.send_all(b"more")
        await trio.testing.wait_all_tasks_blocked()
        assert scene.connected == 1
        await scene.client.aclose()

    play(act)


@pytest.mark.parametrize("by_peer", [True, False])
def test_reading_stops_while_the_peer_does_not_receive(play: Play, by_peer: bool) -> None:
    """A ServerConnection that is not receiving gets nothing more. When it is again, it or another has reading go on."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()

        def pause(_: bytes) -> None:
            peer.receiving = False

        peer.on_data = pause
        await scene.client.send_all(b"first")
        await trio.testing.wait_all_tasks_blocked()
        await scene.client.send_all(b"second")
        await trio.sleep(5)
        assert peer.received == [b"first"]
        peer.on_data = lambda _: None
        peer.receiving = True
        if by_peer:
            peer.wake()
        else:
            scene.connection.resume()
        await trio.testing.wait_all_tasks_blocked()
        assert peer.received == [b"first", b"second"]
        await scene.client.aclose()

    play(act)


def test_peer_is_ticked_when_it_is_due(play: Play) -> None:
    """`tick` comes at the moment that the ServerConnection named, and its answer leaves at once."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        due_s = trio.current_time() + 3
        peer.next_due_s = due_s
        peer.on_tick = lambda: peer.output.append([b"\n"])
        peer.wake()
        assert await scene.client.receive_some() == b"\n"
        assert peer.ticks == [due_s] == [trio.current_time()]
        await scene.client.aclose()

    play(act)


def test_handshake_has_an_absolute_deadline(play: Play) -> None:
    """A peer that drips bytes is closed 10 s after it was accepted, as is one that sends nothing."""

    async def act(scene: _Scene) -> None:
        raw = scene.client.transport_stream
        for byte in b"\x16\x03\x01\x02\x00" + bytes(100):
            try:
                await raw.send_all(bytes([byte]))
            except trio.BrokenResourceError:
                break
            await trio.sleep(1)

    scene = play(act)
    assert scene.peer is None
    assert scene.ended_s == pytest.approx(scene.connection.opened_at_s + LIMITS.tls_handshake_timeout_s)
    assert scene.connection.reason == "TLS handshake not complete within 10 s"


def test_a_client_that_reads_nothing_meets_the_write_deadline(play: Play) -> None:
    """When the socket takes nothing for `write_timeout_s`, the connection is closed and reports the reason."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        for _ in range(100):
            peer.output.append([bytes(16_384)])
        peer.wake()
        await trio.sleep(LIMITS.write_timeout_s - 0.1)
        assert scene.ended_s is None
        handed_out = 100 - len(peer.output)
        assert handed_out * 16_384 <= 262_144  # the ServerConnection was asked for what the socket took, at most
        await trio.sleep(0.2)
        assert scene.ended_s is not None

    scene = play(act)
    assert "did not take" in scene.connection.reason
    assert scene.peer is not None
    assert scene.peer.ends == [scene.connection.reason]


def test_large_parts_are_sent_in_slices_whole_and_in_order(play: Play) -> None:
    """A body of several MiB arrives unharmed, and a slow reader that makes progress is not cut off."""
    body = bytes(range(256)) * 4096 * 3

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        peer.say(b"prefix", body + b"\0")
        got = bytearray()
        while len(got) < len(body) + 7:
            got += await scene.client.receive_some(SLICE_BYTES)
            await trio.sleep(1)
        assert got == b"prefix" + body + b"\0"
        await scene.client.aclose()

    play(act)


def test_finished_peer_is_flushed_then_lingers_until_the_client_closes(play: Play) -> None:
    """After the last frame our side is closed properly, unread input does not destroy it, and the client's close ends all."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        peer.receiving = False
        peer.wake()
        await scene.client.send_all(b"never read")
        peer.output.append([b"ERROR"])
        peer.finished = True
        peer.wake()
        await trio.sleep(0.5)
        assert await scene.client.receive_some() == b"ERROR"
        assert await scene.client.receive_some() == b""
        assert scene.ended_s is None
        await scene.client.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.ended_s == trio.current_time()

    scene = play(act)
    assert scene.peer is not None
    assert len(scene.peer.ends) == 1


def test_lingering_ends_after_its_time(play: Play) -> None:
    """A client that does not close after our end is closed 1 s later; its session was let go at once."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        peer.finished = True
        peer.wake()
        began_s = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert len(peer.ends) == 1
        while scene.ended_s is None:
            await scene.client.transport_stream.send_all(b"chatter")  # does not extend it
            await trio.sleep(0.3)
        assert scene.ended_s == pytest.approx(began_s + LIMITS.linger_timeout_s)

    play(act)


def test_a_cut_ends_at_once(play: Play) -> None:
    """`cut` closes whatever is under way, and the ServerConnection gets the reason."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        peer.say(bytes(1_000_000))
        await trio.sleep(1)
        scene.connection.cut("kicked")
        await trio.testing.wait_all_tasks_blocked()
        assert scene.ended_s == trio.current_time()

    scene = play(act)
    assert scene.peer is not None
    assert scene.peer.ends == ["kicked"]


def test_broken_tls_ends_the_connection(play: Play) -> None:
    """Bytes that are not TLS after the handshake end the connection; nothing of them reaches the ServerConnection."""

    async def act(scene: _Scene) -> None:
        await scene.meet()
        await scene.client.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))

    scene = play(act)
    assert scene.peer is not None
    assert scene.peer.received == []
    assert "BAD RECORD MAC" in scene.peer.ends[0].upper().replace("_", " ")


def test_a_bug_met_by_a_frame_ends_its_connection_only(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """An unplanned error while a frame is handled is logged with its traceback and closes that connection."""

    async def act(scene: _Scene) -> None:
        peer = await scene.meet()
        peer.on_data = lambda _: {"known": None}["absent"]
        await scene.client.send_all(b"x")
        await trio.testing.wait_all_tasks_blocked()

    scene = play(act)
    assert scene.peer is not None
    assert scene.peer.ends == ["internal error"]
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_bug_in_the_writer_is_raised_and_the_socket_closed(pair: Pair, context: ssl.SSLContext) -> None:
    """An unplanned error of the writer leaves `run` for the server to log, after the ServerConnection was notified of the end."""

    async def main() -> None:
        ours, client = pair()
        scene = _Scene(ours, client, context, LIMITS)

        async def act() -> None:
            peer = await scene.meet()
            peer.on_tick = lambda: {"known": None}["absent"]
            peer.next_due_s = trio.current_time()
            peer.wake()

        with pytest.RaisesGroup(pytest.RaisesGroup(KeyError)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.serve)
                nursery.start_soon(act)
        assert scene.peer is not None
        assert len(scene.peer.ends) == 1
        assert ours.fileno() == -1
        await trio.aclose_forcefully(client)

    trio.run(main, clock=MockClock(autojump_threshold=0))
