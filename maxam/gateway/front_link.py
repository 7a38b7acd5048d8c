"""One end of the link between a gateway and a front: frames over an inherited pair of sockets, or over TLS to another machine.

Nothing waits: what the kernel does not take is kept, and sent by `run`. The link ends with either process.
"""

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

import trio

from maxam.cluster.wire import Frame, FrameReader
from maxam.errors import MaxamError

UNSENT_BYTES_MAX: Final = 268_435_456  # for a front that reads the journal meanwhile
_RECEIVE_BYTES: Final = 1_048_576
_BUFFER_BYTES: Final = 4_194_304
_RECORD_BYTES: Final = 16_384  # TLS gives one record at a time
_RECORDS_MAX: Final = 64  # that are received before other tasks run
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@final
class FrontLinkError(MaxamError):
    """The link between a gateway and a front has ended."""

    code = "front-lost"


@final
class FrontLink:
    """One end of a link.

    Attributes:
        sent_bytes: Sent in all.
    """

    def __init__(
        self,
        connected: socket.socket,
        unsent_bytes_max: int,
        reader: FrameReader | None = None,
        received: Sequence[Frame] = (),
    ) -> None:
        """Take a socket.

        Args:
            connected: May be that of TLS, after its handshake.
            unsent_bytes_max: A link with more unsent bytes ends, as the peer hangs.
            reader: Has read from the socket so far. None if nothing was read.
            received: Frames that it has read already.
        """
        connected.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket: Final = connected
        self._tls: Final = isinstance(connected, ssl.SSLSocket)
        self._reader: Final = reader or FrameReader()
        self._received: Final = list(received)
        self.sent_bytes = 0
        self._unsent: Final[deque[memoryview]] = deque()
        self._unsent_bytes = 0
        self._unsent_bytes_max: Final = unsent_bytes_max
        self._more = trio.Event()
        self._ended = ""

    def send(self, data: bytes) -> None:
        """Send a frame, now or soon. A link that has ended drops it: `run` reports the end."""
        if self._ended:
            return
        view = memoryview(data)
        while view and not self._unsent:
            try:
                sent = self._socket.send(view)
            except _WOULD_BLOCK:
                break
            except OSError as error:
                self.end(str(error))
                return
            self.sent_bytes += sent
            view = view[sent:]
        if view:
            self._unsent.append(view)
            self._unsent_bytes += len(view)
            self._more.set()
            if self._unsent_bytes > self._unsent_bytes_max:
                self.end(f"{self._unsent_bytes} bytes are unsent: the peer hangs")

    def end(self, reason: str) -> None:
        """End the link."""
        self._ended = self._ended or reason
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of TLS forgets its keys while others use them

    async def run(self, receive: Callable[[list[Frame]], None]) -> None:
        """Call `receive` with the frames that come, until the link ends.

        Raises:
            FrontLinkError: It has ended.
            MaxamError: `receive` has raised it.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_rest)
                if self._received:
                    receive(self._received)
                    self._received.clear()
                waits = not self._tls
                while True:
                    if waits:
                        await trio.lowlevel.wait_readable(self._socket)
                    else:
                        await trio.lowlevel.checkpoint()
                    data, waits = self._receive()
                    if data:
                        receive(self._reader.feed(data))
        finally:
            self._socket.close()

    def _receive(self) -> tuple[bytes, bool]:
        """Return what has arrived, and whether the socket shows when there is more. TLS may hold bytes that it does not show.

        Raises:
            FrontLinkError: The link has ended.
        """
        parts: list[bytes] = []
        try:
            for _ in range(_RECORDS_MAX if self._tls else 1):
                data = self._socket.recv(_RECORD_BYTES if self._tls else _RECEIVE_BYTES)
                if not data:
                    raise FrontLinkError(self._ended or "the other process has ended")
                parts.append(data)
        except _WOULD_BLOCK:
            return b"".join(parts), True
        except OSError as error:
            raise FrontLinkError(self._ended or str(error)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts), not self._tls

    async def _send_rest(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._unsent:
                await trio.lowlevel.wait_writable(self._socket)
                try:
                    sent = self._socket.send(self._unsent[0])
                except _WOULD_BLOCK:
                    continue
                except OSError as error:
                    self.end(str(error))
                    return
                self._unsent_bytes -= sent
                self.sent_bytes += sent
                rest = self._unsent[0][sent:]
                if rest:
                    self._unsent[0] = rest
                else:
                    self._unsent.popleft()
