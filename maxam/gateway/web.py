"""The listener of clients without a certificate: TLS, one HTTP request, then STOMP over a WebSocket.

A connection is served here until its upgrade is answered. From then on it is one of `clients.Clients`, like any other, and CONNECT decides
about it by its ticket. Upgrade and CONNECT have one deadline together.

With fronts the gateway accepts the connections, and a front serves each one by an object of its own (`front_web`).
"""

import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, final

import h11
import trio

from maxam.broker.policy import Rights
from maxam.config import Limits, ListenerSettings
from maxam.errors import ProtocolError
from maxam.gateway.access import AccessMonitor
from maxam.gateway.clients import Clients
from maxam.gateway.grants import Grant, refusal
from maxam.gateway.listener import address_text, listen
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_bug
from maxam.gateway.tickets import Tickets, invalid_ticket
from maxam.gateway.tls import TlsSocket, TransportClosedError, handshake_problem
from maxam.gateway.transport import Transport
from maxam.gateway.web_socket import WebSocket
from maxam.gateway.web_tokens import EXPIRED, TokenError, read_token
from maxam.gateway.web_upgrade import STOMP_PATH, Refusal, Upgrade, forbidden_origin, origin_of, path_of, validate
from maxam.records import Identity
from maxam.stomp.events import Connect
from maxam.web_config import JwtSettings, WebSettings

Answered = Callable[
    [Grant | None, str | None], None
]  # with the grant of a ticket, None if it is refused, and its client-id
# Has the process that has the tickets use up that of a secret, for a client-id and an origin.
AskTicket = Callable[[bytes, str | None, str | None, Answered], None]
# Serves the HTTP requests of a connection to its end, from the bytes received first; with its host and port.
ServeValues = Callable[[TlsSocket | trio.SocketStream, bytes, str, int], Awaitable[None]]
VALUES_PATH: Final = b"/v1/values"
REQUEST_HEAD_BYTES_MAX: Final = 16_384


@final
@dataclass(frozen=True, slots=True)
class _Entered:
    """A connection whose upgrade was answered.

    Attributes:
        upgrade: The request and its answer. None for requests for values.
        held: Bytes that came after the request; with requests for values all bytes.
        connect_by_s: When its CONNECT must have come, on the clock of the event loop.
    """

    upgrade: Upgrade | None
    held: bytes
    connect_by_s: float


@final
class WebListener:
    """Serves clients without a certificate.

    Attributes:
        open: Number of its connections.
        address: Where it listens, `host:port`. Empty before `listen`.
        origins: Of the pages that may connect.
        connections_max: Limit of its connections.
        values: Serves connections that ask for values. None refuses them.
    """

    def __init__(
        self,
        settings: WebSettings,
        limits: Limits,
        clients: Clients,
        access: AccessMonitor,
        tickets: Tickets | AskTicket,
        loaded: Callable[[], LoadedConfig],
    ) -> None:
        """Make it. `listen` opens its socket, and `serve` accepts clients.

        Args:
            settings: Fixed.
            limits: Fixed.
            clients: Serves each connection once it is upgraded.
            access: Ends connections whose grant no longer counts.
            tickets: The tickets that wait to be used, or the way to ask the process that has them.
            loaded: Returns the configuration in force.
        """
        self.open = 0
        self.address = ""
        self.origins: Final = settings.origins
        self.connections_max: Final = settings.connections_max
        self.values: ServeValues | None = None
        self._listening: socket.socket | None = None
        self._settings: Final = settings
        self._limits: Final = limits
        self._clients: Final = clients
        self._access: Final = access
        self._loaded: Final = loaded
        self._tickets: Final = tickets
        self._turns: Final = trio.CapacityLimiter(limits.handshakes_per_pass_max)
        self._entering: Final[dict[trio.CancelScope, None]] = {}  # connections before their upgrade, oldest first
        self._reading: Final[dict[trio.CancelScope, None]] = {}  # connections with HTTP

    def listen(self) -> None:
        """Open the listening socket; raises ConfigurationError."""
        host, port = self._settings.address
        self._listening = listen(ListenerSettings(host, port), "web")
        self.address = address_text(*self._listening.getsockname()[:2])

    async def serve(self, stopping: trio.Event) -> None:
        """Accept clients until `stopping` is set, and wait until all have left. `Clients` ends those that are upgraded."""
        async with trio.open_nursery() as clients:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self.accept, partial(self._accepted, clients))
                await stopping.wait()
                accepting.cancel_scope.cancel()
            self.close()
            clients.cancel_scope.deadline = trio.current_time() + self._limits.stop_timeout_s

    async def accept(self, accepted: Callable[[socket.socket, str, int], None]) -> None:
        """Call `accepted` with each connection that comes, until cancelled."""
        assert self._listening is not None  # noqa: S101 - `listen` came before
        await self._clients.accept(self._listening, accepted)

    def admits(self, connected: socket.socket, host: str, port: int, count: int, total: int) -> bool:
        """Return True if one more connection is allowed beside `count` here and `total` at all listeners; close it if not."""
        if count >= self.connections_max:
            self._clients.turn_away(connected, host, port, "[web] connections_max")
            return False
        return self._clients.admits(connected, host, port, total)

    def close(self) -> None:
        """End the connections that are not upgraded."""
        for scope in (*self._entering, *self._reading):
            scope.cancel()

    def _accepted(self, clients: trio.Nursery, connected: socket.socket, host: str, port: int) -> None:
        if self.admits(connected, host, port, self.open, self._clients.count + len(self._entering)):
            self.begin(clients, connected, host, port)

    def begin(self, clients: trio.Nursery, connected: socket.socket, host: str, port: int, number: int = 0) -> None:
        """Serve a connection that was accepted, in a task of its own. Its `number` is 0 unless it has one already."""
        if len(self._entering) >= self._limits.connections_unauthenticated_max:
            oldest = next(iter(self._entering))
            del self._entering[oldest]
            oldest.cancel()
        clients.start_soon(self._serve, connected, host, port, number)

    async def _serve(self, connected: socket.socket, host: str, port: int, number: int) -> None:
        context = self._loaded().web_tls
        assert context is not None  # noqa: S101 - the configuration has the listener
        tls = TlsSocket(context, connected)
        scope = trio.CancelScope()
        self._entering[scope] = None
        self.open += 1
        joined = False
        reading = trio.CancelScope()
        try:
            entered: _Entered | Refusal | str = "made room for another, or the gateway stops"
            with scope:
                entered = await self._enter(tls)
            self._entering.pop(scope, None)
            if isinstance(entered, Refusal):
                self._clients.refuse(host, port, f"HTTP {entered.status:d} {entered.code}", entered.origin)
            elif isinstance(entered, str):
                if entered:
                    self._clients.refuse(host, port, entered)
            elif entered.upgrade is not None:
                joined = True
                await self._converse(tls, entered.upgrade, entered, host, port, number)
            elif self.values is not None:
                self._reading[reading] = None
                with reading:
                    await self.values(tls, entered.held, host, port)
        except Exception as error:  # noqa: BLE001  # a bug met by one client must not end the others
            log_bug("internal-error", error, address=address_text(host, port))
        finally:
            self._entering.pop(scope, None)
            self._reading.pop(reading, None)
            self.open -= 1
            if not joined:
                tls.close(abort=scope.cancelled_caught)

    async def _converse(
        self, tls: TlsSocket, upgrade: Upgrade, entered: "_Entered", host: str, port: int, number: int
    ) -> None:
        web_socket = WebSocket(tls, upgrade.frames, entered.held, trio.current_time)
        connection = self._clients.transport(web_socket, host, port, number)
        connection.tls_version = tls.version
        admit = partial(self._admit, connection, upgrade.origin)
        await self._clients.join(connection, admit, entered.connect_by_s)

    async def _enter(self, tls: TlsSocket) -> "_Entered | Refusal | str":
        """Take a connection to its upgrade. Return that, or the reason why there is none: empty if its request had what it asked for."""
        limits = self._limits
        try:
            with trio.move_on_after(limits.tls_handshake_timeout_s) as waited:
                await tls.handshake(self._turns, limits.tls_handshake_bytes_max)
            if waited.cancelled_caught:
                return f"TLS handshake not complete within {limits.tls_handshake_timeout_s:g} s"
            connect_by_s = trio.current_time() + self._settings.connect_timeout_s
            with trio.move_on_at(connect_by_s):
                outcome, held = await self._request(tls)
                if not isinstance(outcome, Refusal):
                    return _Entered(outcome, held, connect_by_s)
                return "" if outcome.status == HTTPStatus.OK else outcome
        except ssl.SSLError as error:
            with trio.move_on_after(limits.linger_timeout_s):
                await tls.linger()
            return handshake_problem(error)
        except (OSError, TransportClosedError) as error:
            return str(error)
        return f"no request came within {self._settings.connect_timeout_s:g} s"

    async def _request(self, tls: TlsSocket) -> tuple[Upgrade | Refusal | None, bytes]:
        """Read a request and answer it. Return the answer, None for values, and what `_Entered.held` is."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX)
        request: object = h11.NEED_DATA
        outcome: Upgrade | Refusal | None = None
        received = b""
        data = tls.decrypt()  # a client may send the request together with the end of its handshake
        try:
            while (request := http.next_event()) is h11.NEED_DATA:
                while data == b"":  # h11 would take it for the end of the stream
                    data = await tls.receive(self._limits.connect_receive_bytes_max)
                if data is None:
                    raise TransportClosedError("closed before a request")
                http.receive_data(data)
                received += data
                data = b""
        except h11.RemoteProtocolError as error:
            outcome = Refusal(HTTPStatus(error.error_status_hint), "bad", "the request is not valid HTTP/1.1")
        if outcome is None:
            assert isinstance(request, h11.Request)  # noqa: S101 - the first event of a server is nothing else
            outcome = self._validate(request)
        if outcome is None:
            return None, received
        answer = outcome.answer if isinstance(outcome, Upgrade) else outcome.answer()
        if not tls.send(answer):
            await tls.flush(self._limits.write_timeout_s)
        if isinstance(outcome, Refusal):
            with trio.move_on_after(self._limits.linger_timeout_s):
                await tls.linger()
        return outcome, http.trailing_data[0]

    def _validate(self, request: h11.Request) -> Upgrade | Refusal | None:
        path = path_of(request)
        if path == STOMP_PATH:
            return validate(request, self._settings.origins)
        if path == b"/healthz":
            return Refusal(HTTPStatus.OK, "ok", "the gateway serves clients")
        if self.values is not None and (path == VALUES_PATH or path.startswith(VALUES_PATH + b"/")):
            return None
        forbidden = forbidden_origin(origin_of(request), self._settings.origins)
        return forbidden or Refusal(HTTPStatus.NOT_FOUND, "not-found", "no such path; there are /stomp and /v1/values")

    def _admit(self, connection: Transport, origin: str | None, event: Connect) -> tuple[Identity, Rights] | None:
        """Return identity and rights for the credentials of a CONNECT, None if another process has its ticket; raises ProtocolError."""
        if event.will is not None:
            raise ProtocolError("bad will", "a client with a ticket or token cannot leave a last will; connect without")
        if event.login == b"ticket" and not isinstance(self._tickets, Tickets):
            self._tickets(event.passcode, event.client_id, origin, partial(self._answered, connection, event))
            return None
        grant, client_id = self._granted(event.login, event.passcode, event.client_id, origin, time.time())
        return self._accept(connection, event, grant, client_id)

    def _answered(self, connection: Transport, event: Connect, grant: Grant | None, client_id: str | None) -> None:
        """Go on with a CONNECT whose ticket was asked for."""
        peer = connection.peer
        if peer is None:
            return  # it left meanwhile
        if grant is None:
            peer.refused(invalid_ticket(), trio.current_time())
        else:
            peer.admitted(event, *self._accept(connection, event, grant, client_id))

    def _accept(
        self, connection: Transport, event: Connect, grant: Grant, client_id: str | None
    ) -> tuple[Identity, Rights]:
        event.client_id = client_id or event.client_id
        connection.grant = grant
        self._access.granted(grant)
        return grant.identity, grant.rights

    def grant_of(self, login: bytes, passcode: bytes, origin: str | None, now_s: float) -> Grant:
        """Return the grant of the credentials of a client that reads values; raises ProtocolError."""
        return self._granted(login, passcode, None, origin, now_s)[0]

    def _granted(
        self, login: bytes, passcode: bytes, client_id: str | None, origin: str | None, now_s: float
    ) -> tuple[Grant, str | None]:
        """Return the grant of some credentials, and the client-id that a ticket has; raises ProtocolError."""
        ticket_id: str | None = None
        if login == b"jwt" and self._settings.jwt is not None:
            grant = self._read_token(passcode, self._settings.jwt, now_s)
        elif login == b"ticket" and isinstance(self._tickets, Tickets):
            ticket = self._tickets.take(passcode, client_id, origin, now_s)
            grant, ticket_id = ticket.grant, ticket.client_id
        else:
            raise refusal(
                "no credentials",
                "unauthenticated",
                "expected login:ticket and passcode:<ticket> in CONNECT; the server of the page makes tickets",
            )
        problem = self._clients.rate_denial(grant.identity.principal)
        if problem is not None:
            raise problem
        return grant, ticket_id

    def _read_token(self, text: bytes, settings: JwtSettings, now_s: float) -> Grant:
        keys = self._loaded().web_keys
        assert keys is not None  # noqa: S101 - the settings have an issuer
        try:
            return self._access.grants.token(read_token(text, keys, settings, now_s), settings.capability)
        except TokenError as error:
            detail = f"{error}; connect with a new token"
            if str(error) == EXPIRED:
                raise refusal("token expired, reconnect", "token-expired", detail) from error
            raise refusal("token invalid", "token-invalid", detail) from error
