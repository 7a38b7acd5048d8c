"""The HTTPS listener of the admin API: our TLS, Hypercorn's HTTP, any ASGI application.

Hypercorn builds its TLS context once and tells the application nothing of the client's certificate. So the sockets and
the TLS here are ours, with the context asked for at each connection (a reload is just another answer), and Hypercorn's
per-connection server is subclassed at five points, all pinned by tests:

* its constructor's `state` is the per-connection part of the ASGI scope's `state`; the fingerprint goes in there;
* its `protocol_send` writes under a cancellation shield, so that a peer that stops reading would hold its connection,
  and the shutdown, for ever; ours gives up after `write_timeout_s`, and at a shutdown after
  `graceful_timeout_s`;
* its `_read_data` ends when the peer has left, but a response that ends after that starts the wait for another request, so that the
  connection would hold its place until that wait is over; ours does not wait for a peer that has left;
* its `_close` closes at once what was answered before all of the request was there, by which a peer that goes on sending loses the answer;
  ours lets it read that for `linger_timeout_s`, and passes over what it sends;
* it changes over to HTTP/2 or to websockets when a peer says so, though TLS agreed on nothing of the kind; ours speaks HTTP/1.1 and nothing else, and
  refuses a request that says its length in two ways, which those in between could read as two requests.
"""

import logging
import math
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from starlette.requests import ClientDisconnect

from maxam.gateway.entitlement import Visitor
from maxam.gateway.listener import address_text
from maxam.gateway.log import LogLimit, log_bug, log_event
from maxam.gateway.revocation import read_chain
from maxam.gateway.tls import fingerprint, handshake_problem, tls_version, verified_chain

logger: Final = logging.getLogger("maxam.admin")

FINGERPRINT: Final = (
    "fingerprint"  # key in the ASGI scope's state: SHA-256 of the client certificate's DER, lower-case hex
)
CHAIN: Final = "chain"  # the same: a `revocation.Chain`, as it was verified


CARRIER: Final = "carrier"  # the same: a `Carrier`


@dataclass(frozen=True, slots=True)
class Carrier:
    """What a response that lasts needs to know of what carries it.

    Attributes:
        taken: Returns when what was written has left but for some KiB. A peer that takes nothing for `write_timeout_s` is closed.
        stopping: Set when the listener stops, and responses are to end.
    """

    taken: Callable[[], Awaitable[None]]
    stopping: trio.Event


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one peer of the admin listener may take."""

    connections_max: int = 64  # operators, tabs and scrapers of one broker; more are closed at once
    handshake_timeout_s: float = 10.0  # absolute, so that a dripping peer cannot extend it
    request_head_timeout_s: float = 15.0  # from accept or the last response to the end of the next request's headers
    request_head_bytes_max: int = 16_384  # request line and headers, when they come in more than one read of 64 KiB
    linger_timeout_s: float = (
        1.0  # after a refused handshake, or a request refused before it was all there, for the peer to read why
    )
    write_timeout_s: float = 30.0  # a peer that takes nothing for so long is closed
    log_lines_per_minute_max: int = 60  # of one kind of event from one address
    graceful_timeout_s: float = 1.0  # at shutdown, for requests under way
    connections_per_address_max: int | None = None  # where strangers are served, one must not take all places
    # Nor many of them: whoever has been there for longest is the least loss. Otherwise only who is in its handshake makes room.
    oldest_makes_room: bool = False
    name: str = "admin"  # of the listener, in the log


class _Http1(H11Protocol):
    """Hypercorn's HTTP/1.1 without ways out of it."""

    ended = False  # all is said: what still comes is passed over

    async def handle(self, event: Event) -> None:
        """Take what came, or that the peer has gone."""
        if not (self.ended and isinstance(event, RawData)):
            await super().handle(event)

    @property
    def interrupting(self) -> bool:
        """Whether the peer has more to send of its request, as far as can be known."""
        return self.connection.their_state in {h11.SEND_BODY, h11.ERROR}

    async def _check_protocol(self, event: h11.Request) -> None:
        """Change over to nothing: an upgrade may be ignored. Spec: RFC 9110 "7.8. Upgrade"."""

    async def _create_stream(self, request: h11.Request) -> None:
        names = [name for name, _ in request.headers]
        upgrades = [value.lower() for name, value in request.headers if name == b"upgrade"]
        refusal = None
        if request.http_version not in (b"1.0", b"1.1"):
            refusal = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
        elif b"transfer-encoding" in names and b"content-length" in names:  # Spec: RFC 9112 "6.1. Transfer-Encoding"
            refusal = HTTPStatus.BAD_REQUEST
        elif b"websocket" in upgrades:  # nothing here speaks it, and Hypercorn meets the data behind it as a bug
            refusal = HTTPStatus.NOT_IMPLEMENTED
        if refusal is None:
            await super()._create_stream(request)
        else:
            await self._send_error_response(refusal)
            await self.send(Closed())


class _Writes:
    """How long writes may take: each so long, and once the listener stops, none longer than its grace."""

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits: Final = limits
        self._scopes: Final[dict[trio.CancelScope, None]] = {}
        self._until_s = math.inf

    @contextmanager
    def one(self, shield: bool) -> Iterator[None]:
        """Limit a write; raises trio.TooSlowError."""
        deadline_s = min(trio.current_time() + self._limits.write_timeout_s, self._until_s)
        scope = trio.CancelScope(shield=shield, deadline=deadline_s)
        self._scopes[scope] = None
        try:
            with scope:
                yield
        finally:
            del self._scopes[scope]
        if scope.cancelled_caught:
            raise trio.TooSlowError

    def stop(self) -> None:
        """Let what is under way end soon."""
        self._until_s = trio.current_time() + self._limits.graceful_timeout_s
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._until_s)


class _Connection(TCPServer):
    """Hypercorn's server of one connection, with the peer's fingerprint in the scope and a limit on writing."""

    writes: "_Writes"
    linger_timeout_s: float
    _left: trio.Event  # the peer: no request will come any more
    _reader: trio.lowlevel.Task
    _http: _Http1 | None = None

    async def _read_data(self) -> None:
        made = self.protocol.protocol
        self._left = trio.Event()
        self._reader = trio.lowlevel.current_task()
        self.protocol.protocol = self._http = _Http1(
            made.app,
            made.config,
            made.context,
            made.task_group,
            made.connection_state,
            made.ssl,
            made.client,
            made.server,
            made.send,
        )
        await super()._read_data()
        self._left.set()
        await self.idle_task.stop()

    async def _close(self) -> None:
        http = self._http
        if http is not None and http.interrupting and not (http.ended or self._left.is_set()):
            http.ended = True
            with (
                trio.move_on_after(self.linger_timeout_s),
                suppress(trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError),
            ):
                await self._linger()
        await super()._close()

    async def _linger(self) -> None:
        """Say that nothing will follow, and take in what is under way: closing with unread input would take the answer back."""
        async with self.send_lock:
            await self.stream.transport_stream.send_eof()
        if trio.lowlevel.current_task() is not self._reader:
            await self._left.wait()
            return
        while await self.stream.receive_some(MAX_RECV):
            pass

    async def protocol_send(self, event: Event) -> None:
        """Write as Hypercorn does, but close a connection whose peer takes nothing."""
        if isinstance(event, Updated) and self._left.is_set():
            return
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                with self.writes.one(shield=True):
                    await self.stream.send_all(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                await self._cut()

    async def taken(self) -> None:
        """Wait until what was written has left, but for what the kernel may hold unsent (trio sets 16 KiB)."""
        async with self.send_lock:
            try:
                with self.writes.one(shield=False):
                    await self.stream.wait_send_all_might_not_block()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                await self._cut()

    async def _cut(self) -> None:
        await trio.aclose_forcefully(self.stream)
        await self.protocol.handle(Closed())


async def serve_https(
    application: ASGIFramework,
    listeners: list[trio.SocketListener],
    tls_context: Callable[[], ssl.SSLContext],
    limits: ListenerLimits | None = None,
    visitors: dict[Visitor, None] | None = None,
    refused: Callable[[str, str, str], None] | None = None,
) -> None:
    """Serve `application` until cancelled; then requests under way get `graceful_timeout_s` to end.

    Each request's scope has the fingerprint of the client's certificate as `state["fingerprint"]`, its chain as `state["chain"]`. No lifespan events
    are sent: the application lives inside the gateway, which has a lifetime of its own.

    Args:
        application: The ASGI application.
        listeners: Bound listeners; closed at the end.
        tls_context: Gives the context for the next connection; it must require client certificates and offer no ALPN
            but http/1.1.
        limits: What one peer may take.
        visitors: Where each connection is kept while it lasts, so that it can be ended when its certificate counts no more.
        refused: Told of each connection that is refused: the listener's name, the peer's address, why.
    """
    limits = limits or ListenerLimits()
    server = _Server(application, tls_context, limits, {} if visitors is None else visitors, refused)
    async with trio.open_nursery() as nursery:
        connections: trio.Nursery = await nursery.start(server.hold_connections)
        try:
            await trio.serve_listeners(server.serve_connection, listeners, handler_nursery=connections)
        finally:
            server.stopping.set()


def _heedless_of_leavers(application: ASGIFramework) -> ASGIFramework:
    """Let a peer leave in the middle of its request: Starlette raises that, and Hypercorn would log it as a bug, with its traceback."""

    async def heedless(*arguments: Any) -> None:  # noqa: ANN401 as ASGI has it
        with suppress(ClientDisconnect):
            await application(*arguments)

    return heedless


class _Server:
    """What the connections of one `serve_https` share."""

    def __init__(
        self,
        application: ASGIFramework,
        tls_context: Callable[[], ssl.SSLContext],
        limits: ListenerLimits,
        visitors: dict[Visitor, None],
        refused: Callable[[str, str, str], None] | None,
    ) -> None:
        self.stopping: Final = trio.Event()
        self._writes: Final = _Writes(limits)
        self._application: Final = ASGIWrapper(_heedless_of_leavers(application))
        self._tls_context: Final = tls_context
        self._limits: Final = limits
        self._visitors: Final = visitors
        self._refused: Final = refused
        self._worker: Final = WorkerContext(None)
        self._config: Final = _hypercorn_config(limits)
        self._log_limit: Final = LogLimit(limits.log_lines_per_minute_max)
        self._open: Final[dict[trio.CancelScope, None]] = {}  # oldest first
        self._strangers: Final[dict[trio.CancelScope, None]] = {}  # those of them that are in their handshake
        self._by_host: Final[dict[str, int]] = {}

    async def hold_connections(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Keep the nursery of the connections, which outlives a cancellation by `graceful_timeout_s`."""
        async with trio.open_nursery() as connections:
            connections.cancel_scope.shield = True
            task_status.started(connections)
            await self.stopping.wait()
            self._writes.stop()
            await self._worker.terminated.set()  # idle connections close now, the others after their response
            connections.cancel_scope.deadline = trio.current_time() + self._limits.graceful_timeout_s

    async def serve_connection(self, transport: trio.SocketStream) -> None:
        """Serve one accepted connection to its end; nothing that goes wrong in it leaves it."""
        host = _host(transport)
        theirs = self._by_host.get(host, 0)
        full = len(self._open) >= self._limits.connections_max
        leaving = self._open if self._limits.oldest_makes_room else self._strangers
        theirs_max = self._limits.connections_per_address_max
        if (full and not leaving) or (theirs_max is not None and theirs >= theirs_max):
            self._log("connection-refused", transport, f"{len(self._open)} are open already, {theirs} from there")
            await trio.aclose_forcefully(transport)
            return
        if full:
            oldest = next(iter(leaving))
            del self._open[oldest]
            self._strangers.pop(oldest, None)
            oldest.cancel()
        place = trio.CancelScope()
        self._open[place] = self._strangers[place] = None
        self._by_host[host] = theirs + 1
        try:
            with place:
                await self._serve(transport, lambda: self._strangers.pop(place, None))
            if place.cancelled_caught:
                self._log("connection-failed", transport, "made room for another")
        except Exception as error:  # noqa: BLE001 a bug met by one operator must not end the broker that it looks at
            log_bug("internal-error", error, listener=self._limits.name)
        finally:
            self._open.pop(place, None)
            self._strangers.pop(place, None)
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]
            await trio.aclose_forcefully(transport)

    async def _serve(self, transport: trio.SocketStream, known: Callable[[], object]) -> None:
        tls = trio.SSLStream(transport, self._tls_context(), server_side=True, https_compatible=True)
        try:
            await self._converse(transport, tls, known)
        finally:
            # It holds on to itself by its handshake, and with it some 50 KiB of TLS until the next look for cycles, which is rare.
            vars(tls).clear()

    async def _converse(
        self, transport: trio.SocketStream, tls: trio.SSLStream[trio.SocketStream], known: Callable[[], object]
    ) -> None:
        try:
            with trio.fail_after(self._limits.handshake_timeout_s):
                await tls.do_handshake()
        except trio.TooSlowError:
            self._log("connection-failed", transport, "handshake timeout")
            return
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            problem = handshake_problem(cause) if isinstance(cause, ssl.SSLError) else str(cause)
            self._log("connection-failed", transport, problem)
            await self._refuse(transport, tls._outgoing.read())  # noqa: SLF001 trio drops the alert that says why
            return
        known()
        certificate: bytes | None = tls.getpeercert(binary_form=True)
        state = ConnectionState({})
        visitor: Visitor | None = None
        if certificate is not None:
            try:
                chain = read_chain(verified_chain(tls._ssl_object))  # noqa: SLF001 trio hands out nothing else of the chain
            except ValueError as error:  # verified, but we cannot say whether it was revoked
                self._log("connection-failed", transport, f"client certificate refused: {error}")
                return
            close, version = transport.socket.close, tls_version(tls._ssl_object)  # noqa: SLF001 as above
            visitor = Visitor(fingerprint(certificate), chain, close, _address(transport), version)
            state = ConnectionState({FINGERPRINT: visitor.fingerprint, CHAIN: chain})
        connection = _Connection(self._application, self._config, self._worker, state, tls)
        connection.writes = self._writes
        connection.linger_timeout_s = self._limits.linger_timeout_s
        state[CARRIER] = Carrier(connection.taken, self.stopping)
        if visitor is None:
            await connection.run()
            return
        self._visitors[visitor] = None
        try:
            await connection.run()
        finally:
            del self._visitors[visitor]

    def _log(self, event: str, transport: trio.SocketStream, reason: str) -> None:
        address = _address(transport)
        if self._refused is not None:
            self._refused(self._limits.name, address, reason)
        event = f"{self._limits.name}-{event}"
        if self._log_limit.admit(event, _host(transport), trio.current_time()):
            log_event(logging.WARNING, event, address=address, reason=reason)

    async def _refuse(self, transport: trio.SocketStream, alert: bytes) -> None:
        """Send a TLS alert, and take in what is under way: closing with unread input would take the alert back."""
        with trio.move_on_after(self._limits.linger_timeout_s), suppress(trio.BrokenResourceError):
            await transport.send_all(alert)
            await transport.send_eof()
            while await transport.receive_some():
                pass


def _host(transport: trio.SocketStream) -> str:
    try:
        return str(transport.socket.getpeername()[0])
    except OSError:
        return "gone"


def _address(transport: trio.SocketStream) -> str:
    try:
        host, port = transport.socket.getpeername()[:2]
    except OSError:
        return address_text("gone", 0)
    return address_text(host, port)


def _hypercorn_config(limits: ListenerLimits) -> Config:
    config = Config()
    config.keep_alive_timeout = limits.request_head_timeout_s
    config.h11_max_incomplete_size = limits.request_head_bytes_max
    config.ssl_handshake_timeout = limits.handshake_timeout_s
    config.include_server_header = False
    config.errorlog = logger
    config.accesslog = None
    return config
