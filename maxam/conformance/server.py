"""The listener that a library connects to: the frames of a real broker, and the faults that a case orders.

Each frame to the library is decoded and encoded again, so that a case can change it, withhold it, or cut the connection within it.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Final, Literal, final

import h11
import trio
import wsproto.utilities

from maxam.config import Limits
from maxam.conformance.web import WebSocketStream, upgrade
from maxam.conformance.world import World, stopping, wall_us
from maxam.errors import ProtocolError
from maxam.gateway.server_connection import ServerConnection
from maxam.records import Headers
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_1, VERSION_1_2
from maxam.stomp.frames import CLIENT_COMMANDS, FIRST_COMMANDS, SERVER_COMMANDS, Decoder, Frame
from maxam.stomp.head import UNESCAPED_COMMANDS

Transport = Literal["tls", "wss"]
Stream = trio.SSLStream[trio.SocketStream] | WebSocketStream
_RECEIVE_BYTES: Final = 65_536
_PIECE_BYTES_MAX: Final = 7
_PIECED_BYTES_MAX: Final = 4096  # of one write; the rest follows at once, as a body may have megabytes
_HANDSHAKE_S: Final = 30.0
_TICK_S: Final = 0.05
_LOST: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    ssl.SSLError,
    OSError,
    h11.RemoteProtocolError,
    wsproto.utilities.RemoteProtocolError,
)


class Cut(Exception):  # noqa: N818 - an order, not an error
    """Orders a `Server.rewrite` gives: end the connection instead of sending this frame."""


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a transcript.

    Attributes:
        at_s: Time on the clock of the run.
        connection: Number of the connection, from 1.
        sender: `library`, `server`, or `kit` for a remark.
        frame: The frame, or None for a remark.
        remark: The event, for people.
    """

    at_s: float
    connection: int
    sender: Literal["library", "server", "kit"]
    frame: Frame | None = None
    remark: str = ""


@final
@dataclass(slots=True)
class Faults:
    """The faults of a server. A case sets them at any time.

    Attributes:
        refusing: Close each new connection before STOMP: after TLS, or with an HTTP error.
        cut_after: Bytes that are still sent before the connection is cut. None cuts nothing. It counts once.
        cut_on: Cut the connection at a frame with this command, which then has no effect. It counts once.
        pieces: Write in pieces of a few bytes.
        rewrite: Returns the frame to send and further header lines for it, or raises Cut.
    """

    refusing: bool = False
    cut_after: int | None = None
    cut_on: bytes = b""
    pieces: bool = False
    rewrite: Callable[[Frame], Headers] = field(default=lambda _frame: ())


@final
class Connection:
    """One connection of the library, from TCP on.

    Attributes:
        accepted_at_s: Time of its beginning.
        ended_at_s: Time of its end, or None.
        heard: Times at which bytes came.
        heart_beat_ms: The `heart-beat` of its CONNECT.
        client_id: Name of its session, once connected.
        connected: True from CONNECTED on.
        frozen: Set it to send nothing and to ignore what comes.
    """

    def __init__(self, number: int, server: "Server") -> None:
        self.number: Final = number
        self.accepted_at_s: Final = trio.current_time()
        self.ended_at_s: float | None = None
        self.heard: Final[list[float]] = []
        self.heart_beat_ms = (0, 0)
        self.client_id = ""
        self.connected = False
        self.frozen = False
        self._server: Final = server
        self._scope: Final = trio.CancelScope()
        self._woken = trio.Event()
        self._version = VERSION_1_2
        self._received: Final = Decoder(Limits(), FIRST_COMMANDS)
        self._sent: Final = Decoder(Limits(frame_body_bytes_max=2**30), SERVER_COMMANDS)

    @property
    def live(self) -> bool:
        """True between CONNECTED and the end."""
        return self.connected and self.ended_at_s is None

    def cut(self, reason: str = "cut") -> None:
        """End it without ERROR, at once."""
        if self.ended_at_s is None:
            self._server.record(Entry(trio.current_time(), self.number, "kit", remark=reason))
        self._scope.cancel()

    def wake(self) -> None:
        """Have the writer check again for something to send."""
        self._woken.set()

    async def serve(self, tcp: trio.SocketStream) -> None:
        """Serve it to its end."""
        server = self._server
        try:
            with self._scope:
                await self._converse(tcp)
        except* _LOST:
            pass
        finally:
            self.ended_at_s = trio.current_time()
            server.record(Entry(self.ended_at_s, self.number, "kit", remark="the connection is over"))
            await trio.aclose_forcefully(tcp)

    async def _converse(self, tcp: trio.SocketStream) -> None:
        server = self._server
        tls = trio.SSLStream(tcp, server.context, server_side=True, https_compatible=True)
        with trio.fail_after(_HANDSHAKE_S):
            await tls.do_handshake()
        stream: Stream = tls
        fingerprint = ""
        if server.transport == "wss":
            upgraded = await upgrade(tls, server.faults.refusing)
            if upgraded is None:
                server.record(Entry(trio.current_time(), self.number, "kit", remark="the upgrade was refused"))
                return
            stream = upgraded
        elif server.faults.refusing:
            return
        else:
            fingerprint = sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
        world = server.world
        peer = world.connection(fingerprint, self.wake, by_ticket=server.transport == "wss")
        server.peers[self] = peer
        try:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._read, stream)
                await self._write(stream)
                tasks.cancel_scope.cancel()
            with trio.move_on_after(1):
                await stream.aclose()
        finally:
            del server.peers[self]
            peer.closed(trio.current_time(), "over")
            world.settle()

    async def _read(self, stream: Stream) -> None:
        server, peer = self._server, self._server.peers[self]
        while data := await stream.receive_some(_RECEIVE_BYTES):
            self.heard.append(trio.current_time())
            if self.frozen:
                continue
            try:
                for frame in self._received.feed(bytes(data)):
                    self._note(frame)
                    if frame.command == server.faults.cut_on:
                        server.faults.cut_on = b""
                        self.cut(f"cut: {frame.command.decode()} had no effect")
                        await trio.lowlevel.checkpoint()
            except ProtocolError as error:  # the broker answers it
                server.record(Entry(trio.current_time(), self.number, "kit", remark=str(error)))
            peer.receive_data(bytes(data), trio.current_time(), wall_us())
            server.world.settle()
            self.wake()
        peer.receive_eof(trio.current_time())
        self.wake()

    def _note(self, frame: Frame) -> None:
        self._server.record(Entry(trio.current_time(), self.number, "library", frame))
        if frame.command in FIRST_COMMANDS:
            can, _, wants = frame.headers.get(b"heart-beat", b"0,0").partition(b",")
            self.heart_beat_ms = (int(can), int(wants))

    async def _write(self, stream: Stream) -> None:
        peer = self._server.peers[self]
        while True:
            self._woken = trio.Event()
            if self.frozen:
                await trio.sleep_forever()
            data = b"".join(peer.data_to_send(trio.current_time()))
            if data:
                await self._send(stream, data)
            elif peer.finished:
                return
            else:
                due_s = peer.next_due_s
                with trio.move_on_at(float("inf") if due_s is None else due_s):
                    await self._woken.wait()
                peer.tick(trio.current_time())
                self._server.world.settle()

    async def _send(self, stream: Stream, data: bytes) -> None:
        if data == encoder.HEART_BEAT:
            await stream.send_all(data)
            return
        for frame in self._sent.feed(data):
            try:
                further = self._server.faults.rewrite(frame)
            except Cut:
                self.cut(f"cut before {frame.command.decode()}")
                await trio.lowlevel.checkpoint()
                return
            if frame.command == b"CONNECTED":
                self.connected = True
                self.client_id = frame.headers[b"session"].decode()
                self._version = VERSION_1_1 if frame.headers[b"version"] == b"1.1" else VERSION_1_2
                self._sent.expect(SERVER_COMMANDS, self._version)
                self._received.expect(CLIENT_COMMANDS, self._version)
            self._server.record(Entry(trio.current_time(), self.number, "server", frame))
            await self._put(stream, encode(self._version, frame, further))

    async def _put(self, stream: Stream, data: bytes) -> None:
        faults = self._server.faults
        if faults.cut_after is not None:
            faults.cut_after -= len(data)
            if faults.cut_after <= 0:
                data = data[: len(data) + faults.cut_after]
                faults.cut_after = None
                await stream.send_all(data)
                self.cut(f"cut after {len(data)} bytes of this frame")
                await trio.lowlevel.checkpoint()
        start = 0
        while faults.pieces and start < min(len(data), _PIECED_BYTES_MAX):
            end = start + self._server.random.randint(1, _PIECE_BYTES_MAX)
            await stream.send_all(data[start:end])
            start = end
        if data[start:]:
            await stream.send_all(data[start:])


@final
class Server:
    """A listener on loopback. Several may serve one world.

    Attributes:
        faults: The faults in force.
        connections: All since the start, oldest first.
        transcript: Frames and remarks, oldest first.
        url: Address for the library.
        peers: The broker's end of each connection that has one.
    """

    def __init__(
        self,
        world: World,
        certificates: Path,
        authority: Path,
        transport: Transport,
        random: Random,
        transcript: list[Entry],
    ) -> None:
        """Make it.

        Args:
            world: The broker.
            certificates: Folder of `maxam-admin certs dev` with the server's certificate.
            authority: PEM file of the authority of the library's certificate.
            transport: How libraries connect.
            random: Decides about pieces of a write.
            transcript: Gets frames and remarks.
        """
        self.world: Final = world
        self.transport: Final[Transport] = transport
        self.random: Final = random
        self.faults: Final = Faults()
        self.connections: Final[list[Connection]] = []
        self.peers: Final[dict[Connection, ServerConnection]] = {}
        self.transcript: Final = transcript
        self.url = ""
        self.context: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        if transport == "tls":
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(authority)

    @property
    def live(self) -> Connection | None:
        """The connection that is connected, if there is one."""
        return next((one for one in reversed(self.connections) if one.live), None)

    def record(self, entry: Entry) -> None:
        """Add a line to the transcript."""
        self.transcript.append(entry)

    def received(self, command: bytes) -> list[Frame]:
        """Return the frames of the library with a command, oldest first."""
        return [e.frame for e in self.transcript if e.frame and e.sender == "library" and e.frame.command == command]

    def cut(self, reason: str = "cut") -> None:
        """Cut all connections."""
        for one in self.connections:
            one.cut(reason)

    def restart(self, lost_changes: int = 0, graceful: bool = False) -> None:
        """Restart the broker. With `graceful` connections get ERROR `broker is stopping`, otherwise they are cut."""
        if graceful:
            for one, peer in self.peers.items():
                peer.close_with(stopping(), trio.current_time())
                one.wake()
        else:
            self.cut("the broker is killed")
        self.world.restart(lost_changes)

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve until it is cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        path = "/stomp" if self.transport == "wss" else ""
        self.url = f"{'wss' if path else 'stomp+tls'}://127.0.0.1:{port}{path}"
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._tick)
            task_status.started()
            await trio.serve_listeners(self._accepted, [listener])

    async def _accepted(self, tcp: trio.SocketStream) -> None:
        connection = Connection(len(self.connections) + 1, self)
        self.connections.append(connection)
        await connection.serve(tcp)

    async def _tick(self) -> None:
        while True:
            await trio.sleep(_TICK_S)
            self.world.settle()


def encode(version: int, frame: Frame, further: Headers = ()) -> bytes:
    """Return the bytes of a frame, with further header lines at its end."""
    lines = [*frame.headers.items(), *further]
    if frame.command not in UNESCAPED_COMMANDS:
        lines = [(encoder.escape(version, name), encoder.escape(version, value)) for name, value in lines]
    head = b"".join([name + b":" + value + b"\n" for name, value in lines])
    return frame.command + b"\n" + head + b"\n" + frame.body + b"\0"
