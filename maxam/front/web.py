"""Connections of the web listener at a front: the gateway is asked for tickets, and requests for values are relayed to it."""

import json
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import trio

from maxam.cluster import wire
from maxam.config import Settings
from maxam.gateway.access import AccessMonitor
from maxam.gateway.clients import Clients
from maxam.gateway.front_link import FrontLink
from maxam.gateway.grants import Grant, Maker
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.tickets import hash_of
from maxam.gateway.tls import TlsSocket, TransportClosedError
from maxam.gateway.web import Answered, WebListener
from maxam.records import Identity
from maxam.web_config import WebSettings

_RELAY_BYTES: Final = 16_384  # at a time, one TLS record


@final
class WebClients:
    """Serves connections of the web listener that the gateway has accepted.

    Attributes:
        listener: Serves them. It listens nowhere.
    """

    def __init__(
        self,
        web: WebSettings,
        settings: Settings,
        clients: Clients,
        access: AccessMonitor,
        link: FrontLink,
        taking: socket.socket,
        loaded: Callable[[], LoadedConfig],
    ) -> None:
        """Make it.

        Args:
            web: Settings of the listener.
            settings: Of the gateway.
            clients: Serves each connection once it is upgraded.
            access: Ends connections whose grant no longer counts.
            link: To the gateway.
            taking: The socket by which the gateway hands over connections.
            loaded: Returns the configuration in force.
        """
        self._limits: Final = settings.limits
        self._grants: Final = access.grants
        self._link: Final = link
        self._taking: Final = taking
        self._asked = 0
        self._open: Final[dict[int, Answered]] = {}  # questions for tickets
        self.listener: Final = WebListener(web, settings.limits, clients, access, self._ask, loaded)
        self.listener.values = self._relay

    def answered(self, body: bytes) -> None:
        """Take the gateway's answer to the question for a ticket."""
        number, packed = pickle.loads(body)  # noqa: S301  # of the process that has started this one
        answered = self._open.pop(number)
        if packed is None:
            answered(None, None)
            return
        principal, globs, who, chain, label, client_id = packed
        maker = Maker(Identity(*who), chain)
        answered(Grant(Identity(principal, ""), self._grants.rights(*globs), maker, label), client_id)

    def _ask(self, secret: bytes, client_id: str | None, origin: str | None, answered: Answered) -> None:
        self._asked += 1
        self._open[self._asked] = answered
        question = {"ask": self._asked, "ticket": hash_of(secret).hex(), "client_id": client_id, "origin": origin}
        self._link.send(wire.frame(wire.ASK, json.dumps(question).encode()))

    async def _relay(self, tls: TlsSocket | trio.SocketStream, held: bytes, host: str, port: int) -> None:
        """Relay a connection that asks for values to the gateway: it gets a socket with what TLS decrypts."""
        assert isinstance(tls, TlsSocket)  # noqa: S101  # a front has no others
        near, far = trio.socket.socketpair()
        async with trio.SocketStream(near) as stream:
            with far:
                # Bytes on the way become stale: keep them few.
                far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes_max)
                try:
                    socket.send_fds(self._taking, [json.dumps([host, port]).encode()], [far.fileno()])
                except OSError:
                    return  # the gateway hangs
            self._link.send(wire.frame(wire.REPORT, b'{"values": true}'))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_receive, tls, stream, held)
                await self._send(tls, stream)
                nursery.cancel_scope.cancel()
            with trio.move_on_after(self._limits.linger_timeout_s), suppress(OSError, TransportClosedError):
                await tls.linger()

    async def _send(self, tls: TlsSocket, stream: trio.SocketStream) -> None:
        """Encrypt and send what the gateway answers, to the end."""
        timeout_s = self._limits.write_timeout_s
        with suppress(OSError, TransportClosedError, trio.BrokenResourceError):
            while data := await stream.receive_some(_RELAY_BYTES):
                await tls.flush(timeout_s)
                if not tls.send(data):
                    await tls.flush(timeout_s)


async def _receive(tls: TlsSocket, stream: trio.SocketStream, held: bytes) -> None:
    """Hand on what the client sends, to the end."""
    data: bytes | None = held
    with suppress(OSError, TransportClosedError, trio.BrokenResourceError):
        while data is not None:
            await stream.send_all(data)
            data = await tls.receive(_RELAY_BYTES)
    with suppress(trio.BrokenResourceError):
        await stream.send_eof()
