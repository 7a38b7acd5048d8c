"""A WebSocket over TLS as a stream of bytes, for libraries of the web listener."""

from http import HTTPStatus
from typing import Final, final

import h11
import trio
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from maxam.gateway.web_upgrade import STOMP_PATH, Refusal, path_of, validate

_RECEIVE_BYTES: Final = 65_536
_GONE: Final = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "the gateway is gone")


@final
class WebSocketStream:
    """The bytes of the messages of one WebSocket. Each `send_all` is a message."""

    def __init__(self, tls: "trio.SSLStream[trio.SocketStream]", frames: Connection, held: bytes) -> None:
        self._tls: Final = tls
        self._frames: Final = frames
        self._sending: Final = trio.Lock()
        if held:
            frames.receive_data(held)

    async def receive_some(self, _bytes_max: int) -> bytes:
        """Return the bytes of the next messages; empty at the end."""
        while True:
            data = b""
            for event in self._frames.events():
                if isinstance(event, TextMessage):
                    data += event.data.encode()
                elif isinstance(event, BytesMessage):
                    data += bytes(event.data)
                elif isinstance(event, Ping | CloseConnection):
                    await self._send(event.response())
                    if isinstance(event, CloseConnection):
                        return data
            if data:
                return data
            received = bytes(await self._tls.receive_some(_RECEIVE_BYTES))
            if not received:
                return b""
            self._frames.receive_data(received)

    async def send_all(self, data: bytes) -> None:
        """Send bytes as a message."""
        await self._send(BytesMessage(data=data))

    async def aclose(self) -> None:
        """Send Close, and close the connection below."""
        if self._frames.state in {ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING}:
            await self._send(CloseConnection(code=1000))
        await self._tls.aclose()

    async def _send(self, event: Event) -> None:
        async with self._sending:  # pings are answered while the broker writes
            await self._tls.send_all(self._frames.send(event))


async def upgrade(tls: "trio.SSLStream[trio.SocketStream]", refusing: bool) -> WebSocketStream | None:
    """Answer the request of a new connection as the gateway does. Return its WebSocket, or None if it was refused.

    With `refusing` it is answered as by a proxy whose gateway is gone.
    """
    http = h11.Connection(h11.SERVER)
    while (request := http.next_event()) is h11.NEED_DATA:
        data = bytes(await tls.receive_some(_RECEIVE_BYTES))
        http.receive_data(data)
    if not isinstance(request, h11.Request) or path_of(request) != STOMP_PATH:
        return None
    outcome = _GONE if refusing else validate(request, ())
    if isinstance(outcome, Refusal):
        await tls.send_all(outcome.answer())
        return None
    await tls.send_all(outcome.answer)
    return WebSocketStream(tls, outcome.frames, http.trailing_data[0])
