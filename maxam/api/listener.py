"""The HTTPS listener of the admin API: sockets, TLS and places. `http1` speaks HTTP over them, for any ASGI application.

The TLS context is requested for each connection, so a reload of certificates affects the next one. The application finds the
fingerprint and the chain of the client's certificate in the `state` of its scope.
"""

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

import h11
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maxam.api.http1 import HttpConnection, Waits
from maxam.api.listener_limits import ListenerLimits
from maxam.api.places import Place, Places, Standing
from maxam.config import Limits
from maxam.gateway.access import AdminConnection
from maxam.gateway.listener import ACCEPT_PAUSE_S, AcceptFailures, prepare
from maxam.gateway.log import LogLimit, log_bug, log_event
from maxam.gateway.revocation import Chain, read_chain
from maxam.gateway.tls import (
    HANDSHAKE_TOO_LARGE,
    TlsSocket,
    TransportClosedError,
    fingerprint,
    handshake_problem,
    tls_version,
    verified_chain,
)

# Keys in the ASGI scope's state.
FINGERPRINT: Final = "fingerprint"  # SHA-256 of the client certificate's DER, lower-case hex
CHAIN: Final = "chain"  # a `revocation.Chain`, as it was verified


@final
@dataclass(frozen=True, slots=True)
class Upgradable:
    """A connection with a certificate that asks for a WebSocket.

    Attributes:
        request: The request.
        held: Bytes that came after it.
        tls: The connection.
        transport: The socket below.
        client: Its identity.
        peer: Host and port of the client.
    """

    request: h11.Request
    held: bytes
    tls: "trio.SSLStream[_Transport]"
    transport: trio.SocketStream
    client: AdminConnection
    peer: tuple[str, int]

    def take(self, limits: Limits) -> TlsSocket:
        """Return the connection as the gateway has those of clients. The stream cannot be used after it."""
        tls = self.tls
        established = (tls._ssl_object, tls._incoming, tls._outgoing)  # noqa: SLF001 trio hands out nothing else
        taken = socket.socket(fileno=self.transport.socket.detach())
        prepare(taken, limits)
        return TlsSocket(tls._ssl_object.context, taken, established)  # noqa: SLF001 as above


@final
class _Transport(trio.abc.HalfCloseableStream):
    """A socket below TLS that bounds what a peer may send and cost before its handshake is complete."""

    def __init__(self, stream: trio.SocketStream, bytes_max: int, steps: trio.CapacityLimiter) -> None:
        self._stream: Final = stream
        self._steps: Final = steps
        self._left_bytes: int | None = bytes_max

    def handshake_complete(self) -> None:
        """Lift the bounds."""
        self._left_bytes = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive as the socket does; raise TransportClosedError after too many bytes of a handshake."""
        if self._left_bytes is None:
            return await self._stream.receive_some(max_bytes)
        if not self._left_bytes:
            raise TransportClosedError(HANDSHAKE_TOO_LARGE)
        data = await self._stream.receive_some(self._left_bytes)
        self._left_bytes -= len(data)
        async with self._steps:  # a limited number in one pass of the event loop: the expensive step follows
            await trio.lowlevel.checkpoint()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send as the socket does."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait as the socket does."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Close the sending side."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()


async def serve_https(
    application: ASGIApp,
    listeners: list[trio.SocketListener],
    tls_context: Callable[[], ssl.SSLContext],
    limits: ListenerLimits | None = None,
    admin_connections: dict[AdminConnection, None] | None = None,
    refused: Callable[[str, str, str], None] | None = None,
    standing: Callable[[str, Chain], Standing] | None = None,
    failures: AcceptFailures | None = None,
    upgrade: Callable[[Upgradable], Awaitable[None]] | None = None,
) -> None:
    """Serve `application` until cancelled. Then requests under way get `graceful_timeout_s` to end.

    Each request's scope has the fingerprint of the client's certificate as `state["fingerprint"]`, its chain as `state["chain"]`, and
    its connection as `state["carrier"]`. No lifespan events are sent: the application lives inside the gateway.

    Args:
        application: The ASGI application.
        listeners: Bound listeners. Closed at the end.
        tls_context: Returns the context for the next connection. It must require client certificates and offer no ALPN but http/1.1.
        limits: Limits of one peer.
        admin_connections: Container of the open connections, so that one can be ended when its certificate is no longer valid.
        refused: Called for each connection that is refused: the listener's name, the peer's address, the reason.
        standing: Returns the standing of a certificate by its fingerprint and chain, at this moment. Without it all are equal. A
            connection without a principal is closed after each response.
        failures: Counts accepts that fail because no sockets are left.
        upgrade: Called with each connection that asks for a WebSocket, which the callee may take over. None refuses them.
    """
    limits = limits or ListenerLimits()
    failures = failures or AcceptFailures(LogLimit(limits.log_lines_per_minute_max))
    server = _Server(
        application,
        tls_context,
        limits,
        {} if admin_connections is None else admin_connections,
        refused,
        standing,
        upgrade,
    )
    async with trio.open_nursery() as nursery:
        connections: trio.Nursery = await nursery.start(server.hold_connections)
        try:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(server.accept, listener, connections, failures)
        finally:
            server.stopping.set()


def _closing_without_principal(application: ASGIApp, standing: Callable[[str, Chain], Standing]) -> ASGIApp:
    """Let a connection end with its first response if its certificate is refused or unknown."""

    async def closing(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                state = scope["state"]
                if not standing(state[FINGERPRINT], state[CHAIN]).principal:
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await application(scope, receive, send_with_header)

    return closing


@final
class _Server:
    """The common state of the connections of one `serve_https`.

    Attributes:
        stopping: Set when no further connections are accepted.
    """

    def __init__(
        self,
        application: ASGIApp,
        tls_context: Callable[[], ssl.SSLContext],
        limits: ListenerLimits,
        admin_connections: dict[AdminConnection, None],
        refused: Callable[[str, str, str], None] | None,
        standing: Callable[[str, Chain], Standing] | None,
        upgrade: Callable[[Upgradable], Awaitable[None]] | None,
    ) -> None:
        self._upgrade: Final = upgrade
        self.stopping: Final = trio.Event()
        self._application: Final = (
            application if standing is None else _closing_without_principal(application, standing)
        )
        self._tls_context: Final = tls_context
        self._limits: Final = limits
        self._admin_connections: Final = admin_connections
        self._refused: Final = refused
        self._waits: Final = Waits(limits)
        self._places: Final = Places(limits, standing)
        self._log_limit: Final = LogLimit(limits.log_lines_per_minute_max)
        self._steps: Final = trio.CapacityLimiter(limits.handshakes_per_pass_max)

    async def hold_connections(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep the nursery of the connections, which outlives a cancellation by `graceful_timeout_s`."""
        async with trio.open_nursery() as connections:
            connections.cancel_scope.shield = True
            task_status.started(connections)
            await self.stopping.wait()
            self._waits.stop()
            connections.cancel_scope.deadline = trio.current_time() + self._limits.graceful_timeout_s

    async def accept(self, listener: trio.SocketListener, connections: trio.Nursery, failures: AcceptFailures) -> None:
        """Accept until cancelled; close the listener then.

        trio's own loop would log a traceback ten times a second while no sockets are left.
        """
        async with listener:
            while True:
                try:
                    transport = await listener.accept()
                except OSError as error:
                    if not failures.take(self._limits.name, error, trio.current_time()):
                        raise
                    await trio.sleep(ACCEPT_PAUSE_S)
                else:
                    connections.start_soon(self.serve_connection, transport)

    async def serve_connection(self, transport: trio.SocketStream) -> None:
        """Serve one accepted connection to its end. No error in it leaves this method."""
        place = Place(transport)
        full = self._places.enter(place)
        if full:
            self._log("connection-refused", place, full)
            await trio.aclose_forcefully(transport)
            return
        try:
            with place.scope:
                await self._serve(transport, place)
            if place.scope.cancelled_caught:
                self._log("connection-failed", place, "made room for another")
        except Exception as error:  # noqa: BLE001 a bug met by one operator must not end the broker
            log_bug("internal-error", error, listener=self._limits.name)
        finally:
            self._places.leave(place)
            await trio.aclose_forcefully(transport)

    async def _serve(self, transport: trio.SocketStream, place: Place) -> None:
        below = _Transport(transport, self._limits.handshake_bytes_max, self._steps)
        tls = trio.SSLStream(below, self._tls_context(), server_side=True, https_compatible=True)
        try:
            if await self._shake_hands(transport, tls, place):
                below.handshake_complete()
                await self._converse(transport, tls, place)
        finally:
            # It refers to itself by its handshake, and holds some 50 KiB of TLS until the next search for cycles, which is rare.
            vars(tls).clear()

    async def _shake_hands(self, transport: trio.SocketStream, tls: trio.SSLStream[_Transport], place: Place) -> bool:
        """Complete the handshake. Return False, with the reason in the log, if it failed."""
        try:
            with trio.fail_after(self._limits.handshake_timeout_s):
                await tls.do_handshake()
        except trio.TooSlowError:
            self._log("connection-failed", place, "handshake timeout")
        except TransportClosedError as error:
            self._log("connection-failed", place, str(error))
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            problem = handshake_problem(cause) if isinstance(cause, ssl.SSLError) else str(cause)
            self._log("connection-failed", place, problem)
            await self._refuse(transport, tls._outgoing.read())  # noqa: SLF001 trio drops the alert that has the reason
        else:
            return True
        return False

    async def _converse(self, transport: trio.SocketStream, tls: trio.SSLStream[_Transport], place: Place) -> None:
        """Serve the requests of a connection whose handshake is complete."""
        certificate: bytes | None = tls.getpeercert(binary_form=True)
        state: dict[str, object] = {}
        if certificate is not None:
            try:
                chain = read_chain(verified_chain(tls._ssl_object))  # noqa: SLF001 trio hands out nothing else of the chain
            except ValueError as error:  # verified, but it is unknown whether it was revoked
                self._log("connection-failed", place, f"client certificate refused: {error}")
                return
            close, version = transport.socket.close, tls_version(tls._ssl_object)  # noqa: SLF001 as above
            place.admin_connection = AdminConnection(fingerprint(certificate), chain, close, place.address, version)
            state = {FINGERPRINT: place.admin_connection.fingerprint, CHAIN: chain}
        if not self._places.admit(place):
            reason = "all places are taken by connections of the same rank or a higher one"
            self._log("connection-refused", place, reason)
            return
        server = transport.socket.getsockname()[:2]
        upgrades = self._upgrade is not None and place.admin_connection is not None
        connection = HttpConnection(
            self._application, tls, (place.peer, server), state, self._limits, self._waits, upgrades
        )
        if place.admin_connection is None:
            await connection.run()
            return
        self._admin_connections[place.admin_connection] = None
        try:
            await connection.run()
        finally:
            del self._admin_connections[place.admin_connection]
        if connection.upgrade is not None and self._upgrade is not None:
            await self._upgrade(
                Upgradable(connection.upgrade, connection.held, tls, transport, place.admin_connection, place.peer)
            )

    def _log(self, event: str, place: Place, reason: str) -> None:
        if self._refused is not None:
            self._refused(self._limits.name, place.address, reason)
        event = f"{self._limits.name}-{event}"
        if self._log_limit.admit(event, place.host, trio.current_time()):
            log_event(logging.WARNING, event, address=place.address, reason=reason)

    async def _refuse(self, transport: trio.SocketStream, alert: bytes) -> None:
        """Send a TLS alert, and discard input for a while: to close with unread input would discard the alert."""
        with trio.move_on_after(self._limits.linger_timeout_s), suppress(trio.BrokenResourceError):
            await transport.send_all(alert)
            await transport.send_eof()
            while await transport.receive_some():
                pass
