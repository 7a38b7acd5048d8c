"""One end of the link between a gateway and a front on the same machine: frames over an inherited pair of sockets.

Nothing waits: what the kernel does not take is kept, and sent by `run`. The link ends with either process.
"""

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.cluster.wire import Frame, FrameReader
from maxam.errors import MaxamError

_RECEIVE_BYTES: Final = 1_048_576
_BUFFER_BYTES: Final = 4_194_304


@final
class FrontLinkError(MaxamError):
    """The link between a gateway and a front has ended."""

    code = "front-lost"


@final
class FrontLink:
    """One end of a link."""

    def __init__(self, connected: socket.socket, unsent_bytes_max: int) -> None:
        """Take a socket; a link with more unsent bytes ends, as the peer hangs."""
        connected.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket: Final = connected
        self._reader: Final = FrameReader()
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
        if not self._unsent:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self.end(str(error))
                return
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
            self._socket.shutdown(socket.SHUT_RDWR)

    async def run(self, receive: Callable[[list[Frame]], None]) -> None:
        """Call `receive` with the frames that come, until the link ends.

        Raises:
            FrontLinkError: It has ended.
            MaxamError: `receive` has raised it.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_rest)
                while True:
                    await trio.lowlevel.wait_readable(self._socket)
                    try:
                        data = self._socket.recv(_RECEIVE_BYTES)
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        raise FrontLinkError(self._ended or str(error)) from error
                    if not data:
                        raise FrontLinkError(self._ended or "the other process has ended")
                    receive(self._reader.feed(data))
        finally:
            self._socket.close()

    async def _send_rest(self) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._unsent:
                await trio.lowlevel.wait_writable(self._socket)
                try:
                    sent = self._socket.send(self._unsent[0])
                except BlockingIOError:
                    continue
                except OSError as error:
                    self.end(str(error))
                    return
                self._unsent_bytes -= sent
                rest = self._unsent[0][sent:]
                if rest:
                    self._unsent[0] = rest
                else:
                    self._unsent.popleft()
