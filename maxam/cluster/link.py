"""One end of a link: frames over TLS, signs of life, and the end of a link on which nothing arrives.

A link belongs to one thread, which may block. It never waits for its peer without sending signs of life.
"""

import math
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from maxam.cluster.wire import BEAT, BEAT_S, SILENCE_S, Beat, Frame, FrameReader, encode_beat, read_beat
from maxam.errors import MaxamError
from maxam.journal.encoding import START, Position

CONNECT_S: Final = 5.0
_RECEIVE_BYTES: Final = 262_144
_SEND_BYTES: Final = 262_144  # handed to TLS at once
_UNSENT_BYTES_MAX: Final = 1_048_576  # that wait in this process; `send` waits for the peer above it

_UNREAD_BYTES_MAX: Final = 1_048_576  # of frames that are not taken; the peer waits above it


@final
class LinkLostError(MaxamError):
    """A link cannot be made, or has ended."""

    code = "link-lost"


@final
class Link:
    """One end of a link.

    Attributes:
        tls: Its socket.
        beat: The newest BEAT of the peer; None before the first.
        denied: Called before each sign of life. Returns why the link must end; empty if it may go on.
        received_bytes: Received in all.
        sent_bytes: Sent in all.
    """

    def __init__(
        self,
        tls: ssl.SSLSocket,
        position: Callable[[], Position] = lambda: START,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        denied: Callable[[], str] = lambda: "",
        large: bool = True,
    ) -> None:
        """Take a socket whose handshake is complete.

        Args:
            tls: Owned from here on.
            position: Returns the newest committed position, for the signs of life.
            now_us: Returns the time, for the signs of life.
            denied: See the attribute.
            large: The peer is a source, which sends entries and files. All frames of others are small.
        """
        self.tls: Final = tls
        self._position: Final = position
        self._now_us: Final = now_us
        self.denied = denied
        self._reader: Final = FrameReader(large)
        self._frames: Final[deque[Frame]] = deque()
        self._frames_bytes = 0
        self._unsent: Final[deque[memoryview]] = deque()
        self._unsent_bytes = 0
        self._poll: Final = select.poll()
        self._registered = 0
        self._heard_s = time.monotonic()
        self._beat_due_s = 0.0
        self.beat: Beat | None = None
        self.received_bytes = 0
        self.sent_bytes = 0
        tls.setblocking(False)

    @property
    def silent_s(self) -> float:
        """Seconds since something arrived last."""
        return time.monotonic() - self._heard_s

    def close(self) -> None:
        """End the link."""
        self.tls.close()

    def hand_over(self) -> tuple[FrameReader, list[Frame]]:
        """Return the reader and the frames that it has read, for another owner of the socket. Errors are those of `send`."""
        self.flush()
        return self._reader, list(self._frames)

    def note(self, beat: Beat, sent_bytes: int) -> None:
        """Record the newest sign of life of the peer of a socket that was handed over, and what was sent."""
        self.beat = beat
        self._heard_s = time.monotonic()
        self.sent_bytes = sent_bytes

    def send(self, data: bytes) -> None:
        """Send frames. Waits while the peer takes nothing and much is unsent.

        Raises:
            LinkLostError: The link has ended.
            WireError: The peer sent something that is no message.
        """
        self._put(data)
        self._pump(0.0, reading=True)
        while self._unsent_bytes > _UNSENT_BYTES_MAX:
            self._pump(BEAT_S, reading=True)

    def flush(self) -> None:
        """Wait until the kernel has all. Errors are those of `send`."""
        while self._unsent_bytes:
            self._pump(BEAT_S, reading=True)

    def finish(self, timeout_s: float) -> None:
        """Send nothing further, and wait for a while until the peer has read all and ends the link. Errors are those of `send`."""
        self.flush()
        with suppress(OSError):
            socket.socket.shutdown(self.tls, socket.SHUT_WR)  # that of TLS would forget the keys for reading
        self._beat_due_s = math.inf
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            self.receive(BEAT_S)

    def receive(self, timeout_s: float) -> Frame | None:
        """Return the next frame that is no sign of life; None if there is none in time. Errors are those of `send`."""
        if not self._frames:
            self._pump(timeout_s, reading=True)
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._frames_bytes -= len(frame.body) + 1
        return frame

    def expect(self, timeout_s: float = math.inf) -> Frame:
        """Return the next frame that is no sign of life. Raises LinkLostError if none comes in time. Errors are those of `send`."""
        deadline_s = time.monotonic() + timeout_s
        while (frame := self.receive(BEAT_S)) is None:
            if time.monotonic() >= deadline_s:
                raise LinkLostError(f"the peer sent no message for {timeout_s:g} s")
        return frame

    def pause(self, seconds: float) -> None:
        """Let time pass without reading, so that the peer waits. Errors are those of `send`."""
        self._pump(seconds, reading=False)

    def _put(self, data: bytes) -> None:
        self._unsent.append(memoryview(data))
        self._unsent_bytes += len(data)

    def _pump(self, timeout_s: float, reading: bool) -> None:
        """Send and receive what can be now; wait for it for at most some time."""
        reading = reading and self._frames_bytes < _UNREAD_BYTES_MAX
        now_s = time.monotonic()
        if now_s >= self._beat_due_s:
            self._beat_due_s = now_s + BEAT_S
            denied = self.denied()
            if denied:
                raise LinkLostError(denied)
            self._put(encode_beat(Beat(self._position(), self._now_us())))
        wants = select.POLLIN if reading else 0
        if self._unsent and not self._send_now():
            wants |= select.POLLOUT
        # TLS may hold bytes that the socket does not show
        if reading and self._receive_now():
            return
        if timeout_s > 0.0:
            until_s = min(now_s + timeout_s, self._beat_due_s)
            if not wants:
                time.sleep(max(0.0, until_s - now_s))
                self._heard_s = time.monotonic()
                return
            if wants != self._registered:
                self._poll.register(self.tls, wants)
                self._registered = wants
            self._poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
            if self._unsent:
                self._send_now()
            if reading:
                self._receive_now()
        now_s = time.monotonic()
        if not reading:
            self._heard_s = now_s  # the peer may have sent much that was not read
        elif now_s - self._heard_s >= SILENCE_S:
            raise LinkLostError(f"the peer was silent for {SILENCE_S:g} s")

    def _send_now(self) -> bool:
        """Send what the kernel takes; return True if that was all."""
        unsent = self._unsent
        try:
            while unsent:
                part = unsent[0]
                sent = self.tls.send(part[:_SEND_BYTES])
                self._unsent_bytes -= sent
                self.sent_bytes += sent
                if sent == len(part):
                    unsent.popleft()
                else:
                    unsent[0] = part[sent:]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        except (OSError, ValueError) as error:
            raise LinkLostError(f"the link was lost: {error}") from error
        return True

    def _receive_now(self) -> bool:
        """Take what has arrived; return True if it was anything."""
        parts: list[bytes] = []  # TLS gives one record at a time
        size = 0
        try:
            while size < _RECEIVE_BYTES:
                data = self.tls.recv(_RECEIVE_BYTES)
                if not data:
                    if parts:
                        break
                    raise LinkLostError("the peer ended the link")
                parts.append(data)
                size += len(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (OSError, ValueError) as error:
            raise LinkLostError(f"the link was lost: {error}") from error
        if not parts:
            return False
        self._heard_s = time.monotonic()
        self.received_bytes += size
        for frame in self._reader.feed(b"".join(parts)):
            if frame.type == BEAT:
                self.beat = read_beat(frame.body)
            else:
                self._frames.append(frame)
                self._frames_bytes += len(frame.body) + 1
        return True


def connect(
    host: str,
    port: int,
    context: ssl.SSLContext,
    position: Callable[[], Position],
    denied: Callable[[], str],
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    wait_s: float = CONNECT_S,
) -> Link:
    """Return a link to another gateway, before its HELLO.

    Args:
        host: Name or address. The other gateway's certificate must have it.
        port: Of its link.
        context: Of a client, with the certificate of this gateway.
        position: Returns where this gateway's journal ends.
        denied: Returns why the link must end; empty if it may go on.
        now_us: Returns the time, for the signs of life.
        wait_s: For which a machine may be silent, in seconds.

    Raises:
        LinkLostError: There is no connection, or TLS refuses it.
    """
    try:
        connected = socket.create_connection((host, port), wait_s)
    except OSError as error:
        raise LinkLostError(f"cannot connect to {host} port {port}: {error.strerror or error}") from error
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Link(context.wrap_socket(connected, server_hostname=host), position, now_us, denied)
    except OSError as error:
        with suppress(OSError):
            connected.close()
        raise LinkLostError(f"TLS with {host} port {port} failed: {error}") from error
