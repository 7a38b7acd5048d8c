"""A WebSocket over TLS as a stream of bytes: for clients that have a ticket or a token, and no certificate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, final

import anyio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from maxam.client.errors import UnreachableError
from maxam.client.transport import Stream, dial, loss

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp")
_CHUNK_BYTES: Final = 65_536  # read from TLS at a time
_REFUSAL_BYTES_MAX: Final = 4096  # of the body of a refused upgrade that an error shows


@final
class WebSocketStream:
    """The messages of a WebSocket, one after another: STOMP frames may span them."""

    def __init__(self, tls: Stream) -> None:
        self._tls: Final = tls
        self._frames: Final = WSConnection(ConnectionType.CLIENT)
        self._received: Final[list[bytes]] = []
        self._closed = False

    async def upgrade(self, host: str, path: str) -> None:
        """Ask for a WebSocket.

        Raises:
            UnreachableError: The server does not give one. The text has its reason.
        """
        await self._tls.send_all(self._frames.send(Request(host, path, subprotocols=list(SUBPROTOCOLS))))
        status, reason = 0, b""
        while True:
            for event in self._frames.events():
                match event:
                    case AcceptConnection():
                        return
                    case RejectConnection():
                        status = event.status_code
                    case RejectData():
                        reason += event.data
                        if event.body_finished or len(reason) > _REFUSAL_BYTES_MAX:
                            text = reason[:_REFUSAL_BYTES_MAX].decode(errors="replace").strip()
                            raise UnreachableError(f"{host} answered the upgrade to a WebSocket with {status}: {text}")
                    case _:
                        pass
            data = await self._tls.receive_some(_CHUNK_BYTES)
            if not data:
                raise UnreachableError(f"{host} closed the connection instead of answering the upgrade to a WebSocket")
            self._feed(data)

    async def send_all(self, data: bytes) -> None:
        """Send `data` as one message; see `Stream`."""
        if self._closed:
            raise anyio.BrokenResourceError
        await self._tls.send_all(self._frames.send(BytesMessage(data=data)))

    async def receive_some(self, bytes_max: int) -> bytes:  # noqa: ARG002 - a message has its own length
        """Return the bytes that have arrived; see `Stream`."""
        while not self._received and not self._closed:
            data = await self._tls.receive_some(_CHUNK_BYTES)
            if not data:
                break
            self._feed(data)
            answers = [answer for event in self._frames.events() if (answer := self._take(event))]
            if answers:
                await self._tls.send_all(b"".join(answers))
        found = b"".join(self._received)
        self._received.clear()
        return found

    async def aclose(self) -> None:
        """Close the connection, without a Close frame: DISCONNECT came before."""
        await self._tls.aclose()

    def _feed(self, data: bytes) -> None:
        try:
            self._frames.receive_data(data)
        except ProtocolError as error:
            raise anyio.BrokenResourceError from error

    def _take(self, event: Event) -> bytes:
        """Take over an event and return the answer to it."""
        match event:
            case BytesMessage():
                self._received.append(bytes(event.data))
            case TextMessage():
                self._received.append(event.data.encode())
            case Ping():
                return self._frames.send(event.response())
            case CloseConnection():
                self._closed = True
                return self._frames.send(event.response())
            case _:
                pass
        return b""


@asynccontextmanager
async def dial_web(
    host: str, port: int, path: str, *, ca: str | Path | None, check_name: str | None, timeout_s: float
) -> AsyncIterator[Stream]:
    """Open a WebSocket and close it at the end of the block, abruptly if that end is an exception.

    The server's certificate must have the name `check_name`, or else `host`: what follows has a secret.

    Raises:
        CertificateFileError: The CA file cannot be used.
        UnreachableError: No server answers there within `timeout_s`, or it gives no WebSocket.
        TlsError: The handshake failed.
    """
    async with dial(
        host, port, certificate=None, key=None, ca=ca, check_name=check_name or host, timeout_s=timeout_s
    ) as tls:
        stream = WebSocketStream(tls)
        with anyio.move_on_after(timeout_s) as patience:
            try:
                await stream.upgrade(f"{host}:{port}", path)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise loss(error) from error
        if patience.cancelled_caught:
            raise UnreachableError(f"{host}:{port} does not answer the upgrade to a WebSocket within {timeout_s:g} s")
        yield stream
