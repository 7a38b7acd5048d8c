"""A client without a certificate, over a WebSocket of which a test controls every frame."""

import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
)
from wsproto.extensions import Extension

from maxam.gateway.grants import Maker
from maxam.gateway.revocation import read_chain
from maxam.records import Identity
from maxam.stomp import encoder
from tests.support.living_gateway import Living, TestClient

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp")


class RefusedError(Exception):
    """The upgrade was answered with another status than 101."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status
        self.headers = dict(headers)
        self.body = body


class WebStream:
    """A WebSocket as a stream of bytes, each `send_all` of which is a message.

    Attributes:
        closed: Code of the server's Close, None before.
        pings: Pings of the server.
        messages: Sizes of the messages received, fragments put together.
        accepted: The server's answer to the upgrade.
    """

    def __init__(self, tls: trio.SSLStream[trio.SocketStream]) -> None:
        self.tls = tls
        self.frames = WSConnection(ConnectionType.CLIENT)
        self.closed: int | None = None
        self.pings = 0
        self.answers_pings = True
        self.messages: list[int] = []
        self.accepted: AcceptConnection | None = None
        self._size = 0
        self._received = b""

    async def upgrade(
        self,
        target: str = "/stomp",
        subprotocols: Sequence[str] = SUBPROTOCOLS,
        origin: str | None = None,
        extensions: Sequence[Extension] = (),
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Ask for a WebSocket; raises RefusedError."""
        extra = [*headers, *([] if origin is None else [(b"origin", origin.encode())])]
        request = Request("localhost", target, list(extensions), extra, list(subprotocols))
        await self.tls.send_all(self.frames.send(request))
        body, refused = b"", None
        while True:
            for event in self.frames.events():
                if isinstance(event, AcceptConnection):
                    self.accepted = event
                    return
                if isinstance(event, RejectConnection):
                    refused = event
                elif isinstance(event, RejectData):
                    body += event.data
                    if event.body_finished and refused is not None:
                        raise RefusedError(refused.status_code, list(refused.headers), bytes(body))
            data = await self.tls.receive_some(65_536)
            if not data:
                raise EOFError
            self.frames.receive_data(bytes(data))

    async def send_all(self, data: bytes) -> None:
        """Send a message."""
        await self.tls.send_all(self.frames.send(BytesMessage(data=data)))

    async def receive_some(self, _max_bytes: int | None = None) -> bytes:
        """Receive bytes of messages; nothing at the end."""
        while not self._received and self.closed is None:
            data = await self.tls.receive_some(65_536)
            if not data:
                break
            self.frames.receive_data(bytes(data))
            for event in self.frames.events():
                if isinstance(event, BytesMessage):
                    self._received += event.data
                    self._size += len(event.data)
                    if event.message_finished:
                        self.messages.append(self._size)
                        self._size = 0
                elif isinstance(event, Ping):
                    self.pings += 1
                    if self.answers_pings:
                        await self.tls.send_all(self.frames.send(event.response()))
                elif isinstance(event, CloseConnection):
                    self.closed = event.code
                else:
                    assert isinstance(event, Pong), event
        found, self._received = self._received, b""
        return found

    async def aclose(self) -> None:
        """Close the connection."""
        await trio.aclose_forcefully(self.tls)


async def dial(gateway: Living, port: int | None = None, certificate: str | None = None) -> WebStream:
    """Open a TLS connection to the web listener."""
    transport = await trio.open_tcp_stream("127.0.0.1", port or gateway.web_port)
    context: ssl.SSLContext = gateway.site.context(certificate)
    tls = trio.SSLStream(transport, context, https_compatible=True)
    try:
        await tls.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(transport)
        raise
    return WebStream(tls)


def make_ticket(gateway: Living, who: str = "backend", **wish: Any) -> str:
    """Make a ticket in the name of a client with a certificate; raises TicketError."""
    site = gateway.site
    ders = [
        x509.load_pem_x509_certificate((site.certificates / f"{name}.pem").read_bytes()).public_bytes(Encoding.DER)
        for name in (who, "ca")
    ]
    maker = Maker(Identity(who, site.fingerprints[who]), read_chain(ders))
    wanted = {"principal": "page", "receive": ["X/**"], "send": [], "client_id": None, "origin": None, "validity_s": 60}
    return gateway.gateway.tickets.make(maker, **(wanted | wish), now_s=time.time())[0]


def connect(passcode: str, login: str = "ticket", **how: Any) -> bytes:
    """Return CONNECT with credentials."""
    credentials = f"CONNECT\nlogin:{login}\npasscode:{passcode}\n"
    return encoder.connect("MAXVAPI", **how).replace(b"CONNECT\n", credentials.encode(), 1)


@asynccontextmanager
async def page(
    gateway: Living, ticket: str, client_id: str | None = None, login: str = "ticket", **how: Any
) -> AsyncIterator[TestClient]:
    """Connect with a ticket or token for the length of a block."""
    stream = await dial(gateway)
    client = TestClient(stream)
    try:
        await stream.upgrade(**how)
        await client.write(connect(ticket, login, client_id=client_id))
        frame = await client.frame()
        assert frame.command == b"CONNECTED", (frame.headers, frame.body)
        yield client
    finally:
        await stream.aclose()


async def refusal(
    gateway: Living, passcode: str, login: str = "ticket", origin: str | None = None, **how: Any
) -> bytes:
    """Try a CONNECT that must be refused with an ERROR; return the code of it."""
    stream = await dial(gateway)
    async with TestClient(stream) as client:
        await stream.upgrade(origin=origin)
        await client.write(connect(passcode, login, **how))
        frame = await client.frame()
        assert frame.command == b"ERROR", (frame.headers, frame.body)
        assert passcode.encode() not in frame.body or not passcode
        return frame.headers.get(b"code", frame.headers[b"message"])


async def request_values(gateway: Living, path: str, ticket: str) -> trio.SSLStream[trio.SocketStream]:
    """Send a request for values; return the stream of the answer."""
    stream = await dial(gateway)
    head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ticket}\r\nconnection: close\r\n\r\n"
    await stream.tls.send_all(head.encode())
    return stream.tls


async def read_answer(tls: trio.SSLStream[trio.SocketStream], until_text: bytes | None = None) -> bytes:
    """Read an answer until it contains a text, or to its end, and close the stream there."""
    found = b""
    while until_text is None or until_text not in found:
        data = await tls.receive_some()
        if not data:
            await trio.aclose_forcefully(tls)
            break
        found += data
    return found
