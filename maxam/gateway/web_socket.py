"""A WebSocket over TLS as a stream of bytes: what `transport.Transport` needs of a `TlsSocket`, with frames in between.

Each `send` is a frame of its own. Those of one large body are fragments of one message. Bytes of received messages are handed on as they
come, so no message is ever held as a whole. Only the limits of STOMP bound their size. Answers to pings wait below, like the
answers that TLS itself gives, until the writer sends them.

Spec: RFC 6455
"""

from collections.abc import Callable
from typing import Final, final

from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from maxam.errors import ProtocolError
from maxam.gateway.tls import TlsSocket

# Received at a time. wsproto takes some 10 us for a frame: a flood of small ones holds the event loop for a few milliseconds.
_RECEIVE_BYTES_MAX: Final = 8192
# Frames without a payload worth their header, such as pings: a client needs a few each minute.
_SMALL_BYTES: Final = 16
_SMALL_BURST: Final = 200
_SMALL_PER_S: Final = 10


@final
class WebSocket:
    """The frames of one connection, on a TLS connection that it owns."""

    __slots__ = (
        "_closing",
        "_code",
        "_ended",
        "_frames",
        "_held",
        "_now_s",
        "_small",
        "_small_at_s",
        "_tls",
        "pinged_at_s",
    )

    def __init__(self, tls: TlsSocket, frames: Connection, held: bytes, now_s: Callable[[], float]) -> None:
        """Take over a connection whose upgrade was answered.

        Args:
            tls: The TLS connection.
            frames: The state of WebSocket.
            held: Bytes that came with the upgrade request.
            now_s: Returns monotonic seconds.
        """
        self._tls: Final = tls
        self._frames: Final = frames
        self._held = held
        self._now_s: Final = now_s
        self._small = float(_SMALL_BURST)  # small frames that it may still send
        self._small_at_s = now_s()
        self._ended = False  # the peer sends nothing more, or nothing valid
        self._closing = False  # our Close is on its way
        self._code: CloseReason = CloseReason.NORMAL_CLOSURE  # of our Close
        self.pinged_at_s = now_s()

    @property
    def received_bytes(self) -> int:
        """Encrypted bytes received."""
        return self._tls.received_bytes

    @property
    def unsent(self) -> bool:
        """Encrypted bytes wait for the sender."""
        return self._tls.unsent

    @property
    def untaken_bytes(self) -> int:
        """Bytes sent that the peer's system has not acknowledged, or that wait here."""
        return self._tls.untaken_bytes

    def has_input(self) -> bool:
        """Return True if the kernel holds bytes that the peer has sent."""
        return self._tls.has_input()

    def has_room(self) -> bool:
        """Return True if the kernel holds so little that it will take more."""
        return self._tls.has_room()

    async def wait_room(self, timeout_s: float) -> None:
        """Wait for room, as `TlsSocket.wait_room`."""
        await self._tls.wait_room(timeout_s)

    async def flush(self, timeout_s: float) -> None:
        """Send all encrypted bytes, as `TlsSocket.flush`."""
        await self._tls.flush(timeout_s)

    def decrypt(self) -> bytes | None:
        """Return what came with the upgrade request, or None if that ended the connection; raises ProtocolError."""
        held, self._held = self._held, b""
        data = self._tls.decrypt()  # received by TLS, and not read yet
        self._ended = data is None
        return self._decode(held + (data or b""))

    async def receive(self, bytes_max: int) -> bytes | None:
        """Wait for bytes, and return those of messages in them, perhaps none; None at the end of the stream.

        Raises:
            ProtocolError: The peer broke WebSocket. `linger` gives it the reason.
            OSError: The socket failed.
            TransportClosedError: TLS cannot go on.
        """
        if self._ended:
            return None
        data = await self._tls.receive(min(bytes_max, _RECEIVE_BYTES_MAX))
        return data if not data else self._decode(data)

    def send(self, data: bytes | memoryview, more: bool = False) -> bool:
        """Send bytes as a message, or as a fragment if `more` of the message follow. Returns and raises as `TlsSocket.send`."""
        if self._closing:
            return True
        return self._tls.send(self._frames.send(BytesMessage(data=data, message_finished=not more)))  # type: ignore[arg-type]

    def ping(self) -> None:
        """Have a ping sent with what is sent next."""
        self.pinged_at_s = self._now_s()
        self._queue(Ping())

    async def linger(self) -> None:
        """Send Close and end TLS, and discard what still arrives until the peer closes."""
        if not self._closing:
            self._closing = True
            if self._frames.state in {ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING}:
                self._tls.queue(self._frames.send(CloseConnection(code=self._code)))
        await self._tls.linger()

    def close(self, abort: bool = False) -> None:
        """Close the socket."""
        self._tls.close(abort)

    def _queue(self, event: Ping | Pong) -> None:
        if not self._closing and self._frames.state is ConnectionState.OPEN:
            self._tls.queue(self._frames.send(event))

    def _decode(self, data: bytes) -> bytes | None:
        parts: list[bytes] = []
        self._frames.receive_data(data)
        for event in self._frames.events():
            if isinstance(event, Message):
                if len(event.data) < _SMALL_BYTES:
                    self._count_small()
                parts.append(event.data.encode() if isinstance(event, TextMessage) else bytes(event.data))
            elif isinstance(event, CloseConnection):
                self._ended = True
                if self._frames.state is ConnectionState.OPEN:  # not the peer's Close, but a fault of its frames
                    raise self._fault(CloseReason(event.code), event.reason or "an invalid frame")
                break
            else:
                self._count_small()
                if isinstance(event, Ping):
                    self._queue(event.response())
        if self._ended and not parts:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _count_small(self) -> None:
        now_s = self._now_s()
        self._small = min(_SMALL_BURST, self._small + _SMALL_PER_S * (now_s - self._small_at_s)) - 1
        self._small_at_s = now_s
        if self._small < 0:
            raise self._fault(CloseReason.POLICY_VIOLATION, f"more than {_SMALL_PER_S} small frames a second")

    def _fault(self, code: CloseReason, problem: str) -> ProtocolError:
        self._ended = True
        self._code = code
        return ProtocolError("bad websocket frame", f"{problem}; correct the WebSocket library of the client")
