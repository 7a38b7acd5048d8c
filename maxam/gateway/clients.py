"""Clients of the gateway, from the accept of a connection to its end: limits, admission, log and audit."""

import logging
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.outbox import Outbox
from maxam.broker.session_table import TAKEOVER
from maxam.config import LISTENER_PLACES, Settings
from maxam.errors import ProtocolError
from maxam.gateway.access import AccessMonitor
from maxam.gateway.audit import CONNECTED, DISCONNECTED, EXPELLED, REFUSED, TAKEN_OVER
from maxam.gateway.clock import WallClock
from maxam.gateway.connect_rates import ConnectRates
from maxam.gateway.delivery_scheduler import DeliveryScheduler
from maxam.gateway.handshake import Admit
from maxam.gateway.holdings import Holdings
from maxam.gateway.listener import AcceptFailures, Acceptor, address_text, affordable_connections
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import LogLimit, log_bug, log_event
from maxam.gateway.rates import Rates
from maxam.gateway.revocation import Chain
from maxam.gateway.server_connection import Claim, ServerConnection
from maxam.gateway.tls import TlsSocket
from maxam.gateway.traffic import ACCEPT, Traffic
from maxam.gateway.transport import Transport
from maxam.gateway.web_pings import keep_alive
from maxam.gateway.web_socket import WebSocket
from maxam.records import Identity

SHUTDOWN: Final = ProtocolError("broker is stopping", "the broker is stopping; connect again in a moment")


class Committer(Protocol):
    """The part of a commit loop that serves clients; on a front it hands operations to the gateway."""

    wills_held: bool

    @property
    def deliveries(self) -> DeliveryScheduler:
        """The order in which connections send."""

    def schedule_commit(self) -> None:
        """Have committed what was appended."""


class Recorder(Protocol):
    """A log of the connections of clients."""

    def record(
        self, event: str, outcome: str, who: Identity = ..., address: str = "", reason: str = "", **facts: object
    ) -> None:
        """Log one event."""


class Attendance(Protocol):
    """A publisher of who is connected."""

    held: bool

    def connected(self, principal: str, client_id: str, address: str, now_s: float) -> None:
        """Record that a connection has a session."""

    def ended(self, principal: str, client_id: str, address: str, heard_s: float | None, now_s: float) -> None:
        """Record that a connection has ended."""


@final
class Clients:
    """Accepts clients, serves each connection in a task of its own, and records how it began and ended.

    Attributes:
        connected: Connections whose CONNECT was answered with CONNECTED, by their place in the broker.
        connections_max: Limit of connections, as far as the limit of open files allows it.
        traffic: Totals of all connections.
        connect_rates: How often addresses and principals may connect.
        accept_failures: Accepts that failed because no sockets were left.
        web_sockets: WebSockets, by their connections.
        closed: New connections are closed at once.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        connections: dict[Transport, None],
        committer: Committer,
        clock: WallClock,
        access: AccessMonitor,
        loaded: Callable[[], LoadedConfig],
        holdings: Holdings,
        audit: Recorder,
        presence: Attendance,
        rates: Rates,
        claim: Claim | None = None,
    ) -> None:
        """Begin without clients; `serve` accepts them.

        Args:
            settings: Fixed.
            broker: Serves their requests.
            connections: Open connections, oldest first, those in their handshake included. Only this object changes it.
            committer: Commits what they append.
            clock: The gateway's time.
            access: Decides which clients may be connected.
            loaded: Returns the configuration in force.
            holdings: Bytes of all connections in unfinished frames and pending RECEIPTs.
            audit: Log of the connections of clients.
            presence: Publishes who is connected.
            rates: Rates of the senders.
            claim: On a front, claims sessions. None elsewhere.
        """
        self._claim: Final = claim
        self.connected: Final[dict[Outbox, Transport]] = {}
        others = LISTENER_PLACES * (1 if settings.enrolment.folder is None else 2)
        self.connections_max: Final = affordable_connections(settings.limits.connections_max, others)
        self.traffic: Final = Traffic(broker, connections)
        self.connect_rates: Final = ConnectRates(settings.limits)
        self._log_limit: Final = LogLimit(settings.limits.log_lines_per_minute_max)
        self.accept_failures: Final = AcceptFailures(self._log_limit)
        self._settings: Final = settings
        self._broker: Final = broker
        self._connections: Final = connections
        self._committer: Final = committer
        self._clock: Final = clock
        self._access: Final = access
        self._loaded: Final = loaded
        self._holdings: Final = holdings
        self._audit: Final = audit
        self._presence: Final = presence
        self._rates: Final = rates
        self._unauthenticated: Final[dict[Transport, None]] = {}  # not CONNECTED yet, oldest first
        self.web_sockets: Final[dict[Transport, WebSocket]] = {}
        self._serving: trio.Nursery | None = None
        self._handshakes: Final = trio.CapacityLimiter(settings.limits.handshakes_per_pass_max)
        self.closed = False
        access.on_expelled = self._expelled

    async def serve(self, listening: socket.socket, stopping: trio.Event) -> None:
        """Accept clients until `stopping` is set. Then send each one the shutdown message, and wait until all have left.

        Connections that last longer than `limits.stop_timeout_s` after that are cut off. No will is fired for a connection that
        ends here, and presence shows it as connected: the clients will connect again.
        """
        async with trio.open_nursery() as nursery, trio.open_nursery() as while_open:
            self._serving = nursery
            while_open.start_soon(keep_alive, self.web_sockets)
            while_open.start_soon(self.accept, listening, partial(self._accepted, nursery))
            await stopping.wait()
            while_open.cancel_scope.cancel()
            self.close()
            nursery.cancel_scope.deadline = trio.current_time() + self._settings.limits.stop_timeout_s

    def close(self, error: ProtocolError = SHUTDOWN) -> None:
        """Send each client an ERROR, by default the shutdown message, and accept no other."""
        self.closed = True
        self._committer.wills_held = self._presence.held = True
        for connection in list(self._connections):
            connection.expel(error)

    @property
    def count(self) -> int:
        """Number of connections."""
        return len(self._connections)

    def degraded(self, now_s: float) -> list[str]:
        """Return lines for health: accepts that failed, addresses and principals that connect too often."""
        return self.accept_failures.degraded(now_s) + self.connect_rates.degraded(now_s)

    async def accept(self, listening: socket.socket, accepted: Callable[[socket.socket, str, int], None]) -> None:
        """Call `accepted` with each connection that comes, until cancelled."""
        await Acceptor(listening, self._settings.limits, self.accept_failures).run(accepted)

    def _accepted(self, clients: trio.Nursery, connected: socket.socket, host: str, port: int) -> None:
        if self.admits(connected, host, port, len(self._connections)):
            self.begin(clients, connected, host, port)

    def admits(self, connected: socket.socket, host: str, port: int, count: int) -> bool:
        """Return True if one more connection is allowed beside `count`; close it if not."""
        if self.closed:
            connected.close()  # accepted in the pass in which the stop began, or by a leader that lost its cluster
            return False
        over = "connections_max" if count >= self.connections_max else ""
        if not over and not self.connect_rates.admits_address(host, trio.current_time()):
            over = "connects_per_address_per_s"
        if over:
            self.turn_away(connected, host, port, over)
        return not over

    def turn_away(self, connected: socket.socket, host: str, port: int, limit: str) -> None:
        """Close a connection that was accepted, because a limit is reached."""
        connected.close()
        self.traffic.refused[ACCEPT] += 1
        self.refuse(host, port, limit)

    def begin(self, clients: trio.Nursery, connected: socket.socket, host: str, port: int, number: int = 0) -> None:
        """Serve a connection that was accepted, in a task of its own. Its `number` is 0 unless it has one already."""
        clients.start_soon(self.join, self.transport(TlsSocket(self._loaded().tls, connected), host, port, number))

    def refuse(self, host: str, port: int, reason: str, origin: str | None = None) -> None:
        """Record that a connection was refused before it became one of these. `origin` is that of a page, if it is the cause."""
        address = address_text(host, port)
        self._audit.record(REFUSED, "refused", address=address, reason=reason, origin=origin)
        if self._log_limit.admit("connection-refused", host, trio.current_time()):
            log_event(logging.WARNING, "connection-refused", address=address, reason=reason, origin=origin)

    def adopt(
        self, web_socket: WebSocket, host: str, port: int, fingerprint: str, chain: Chain, tls_version: str
    ) -> None:
        """Serve a client of the admin listener, which presented a certificate there, in a task of its own."""
        connection = self.transport(web_socket, host, port)
        connection.fingerprint, connection.chain, connection.tls_version = fingerprint, chain, tls_version
        assert self._serving is not None  # noqa: S101 - `adopts` was true
        self._serving.start_soon(self.join, connection)

    @property
    def adopts(self) -> bool:
        """Whether one more client of the admin listener can be served here."""
        return self._serving is not None and not self.closed and len(self._connections) < self.connections_max

    def transport(self, stream: TlsSocket | WebSocket, host: str, port: int, number: int = 0) -> Transport:
        """Return a connection that is served from now on; `join` must follow."""
        if len(self._unauthenticated) >= self._settings.limits.connections_unauthenticated_max:
            # A legitimate client is unauthenticated for milliseconds: the oldest one is the least loss.
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.cut("made room for another that had not connected yet")
        limits, deliveries = self._settings.limits, self._committer.deliveries
        connection = Transport(stream, address_text(host, port), host, limits, deliveries, self._clock, number)
        self._connections[connection] = None
        self._unauthenticated[connection] = None
        if isinstance(stream, WebSocket):
            self.web_sockets[connection] = stream
        return connection

    async def join(self, connection: Transport, admit: Admit | None = None, connect_by_s: float = 0.0) -> None:
        """Serve a connection to its end.

        Args:
            connection: Made by `transport`.
            admit: Returns identity and rights for the credentials in CONNECT. With None they are those of the certificate.
            connect_by_s: When CONNECT must have come. With 0 it is `connect_timeout_s` from the end of the TLS handshake.
        """
        make_peer = partial(self._make_peer, admit, connect_by_s)
        try:
            await connection.run(self._handshakes, make_peer, self._committer.schedule_commit, self._connected)
        except Exception as error:  # noqa: BLE001  # a bug met by one client must not end the others
            log_bug("internal-error", error, address=connection.address)
        finally:
            del self._connections[connection]
            self.web_sockets.pop(connection, None)
            peer = connection.peer
            if peer is not None and peer.connection is not None:
                self.connected.pop(peer.connection, None)
                now_s = trio.current_time()
                self._rates.senders.ended(connection.number, peer.sends, peer.connection, now_s)
                self._presence.ended(peer.principal, peer.client_id, connection.address, peer.heard_at_s, now_s)
            self.traffic.ended(connection)
            self._unauthenticated.pop(connection, None)
            self._report_end(connection)
            connection.forget()

    def _make_peer(
        self,
        admit: Admit | None,
        connect_by_s: float,
        fingerprint: str,
        chain: Chain,
        wake: Callable[[], None],
        now_s: float,
    ) -> ServerConnection:
        self._access.connects(chain)
        return ServerConnection(
            self._broker,
            self._settings,
            fingerprint,
            secrets.token_hex(16),
            wake,
            now_s,
            partial(self._connect_denial, fingerprint, chain) if admit is None else None,
            self._holdings,
            self._claim,
            admit,
            connect_by_s,
        )

    def _connect_denial(self, fingerprint: str, chain: Chain) -> ProtocolError | None:
        """Return why a CONNECT is answered with an ERROR, or None."""
        denial = self._access.denial(chain)
        principal = self._broker.policy.principal_of(fingerprint)
        return denial if denial is not None or principal is None else self.rate_denial(principal)

    def rate_denial(self, principal: str) -> ProtocolError | None:
        """Count a CONNECT of a principal; return why it is answered with an ERROR, or None."""
        if self._claim is not None or self.connect_rates.admits_principal(principal, trio.current_time()):
            return None  # of the CONNECTs at fronts, the gateway counts the claims of sessions
        return ProtocolError(
            "connecting too often",
            f"principal {principal!r} has connected more often than {self._settings.limits.connects_per_principal_per_s}"
            " times a second (limit connects_per_principal_per_s); wait longer before connecting again",
        )

    def _connected(self, connection: Transport) -> None:
        self._unauthenticated.pop(connection, None)
        self.traffic.accepted += 1
        peer = connection.peer
        if peer is not None and peer.connection is not None:
            self.connected[peer.connection] = connection
            self._access.connected(peer, connection.chain)
            who = Identity(peer.principal, peer.fingerprint)
            until = self._access.valid_until(connection.chain)
            facts: dict[str, object] = {"session": peer.client_id, "certificate_until": until}
            if connection.grant is not None:
                facts |= connection.grant.facts()
            self._audit.record(CONNECTED, "accepted", who, connection.address, "", **facts)
            self._presence.connected(peer.principal, peer.client_id, connection.address, trio.current_time())
            if self._claim is not None:  # other files may have come into force while it waited for its session
                self._access.recheck(connection)
        if peer is not None and self._log_limit.admit("connection-opened", connection.host, trio.current_time()):
            log_event(
                logging.INFO,
                "connection-opened",
                address=connection.address,
                principal=peer.principal,
                session=peer.client_id,
                stomp=peer.version,
                tls=connection.tls_version,
                fingerprint=peer.fingerprint or None,
            )

    def _expelled(self, connection: Transport, failure: ProtocolError) -> None:
        """Record in the audit log a client whose connection ends because it lost its rights."""
        peer = connection.peer
        who = Identity("" if peer is None else peer.principal, connection.fingerprint)
        session = None if peer is None else peer.client_id
        self._audit.record(EXPELLED, failure.message, who, connection.address, failure.detail, session=session)

    def _report_end(self, connection: Transport) -> None:
        """Log the end of a connection, and record it in the audit log."""
        peer, address, now_s = connection.peer, connection.address, trio.current_time()
        reason = (peer.end if peer is not None else "") or connection.reason
        if peer is None or peer.connection is None:
            who = Identity(self._broker.policy.principal_of(connection.fingerprint) or "", connection.fingerprint)
            self._audit.record(REFUSED, "refused", who, address, reason)
            if self._log_limit.admit("connection-failed", connection.host, now_s):
                log_event(
                    logging.WARNING,
                    "connection-failed",
                    address=address,
                    reason=reason,
                    fingerprint=connection.fingerprint or None,
                    host=None if peer is None else peer.host,
                )
            return
        failure = peer.connection.failure
        self._audit.record(
            TAKEN_OVER if failure is not None and failure.message == TAKEOVER else DISCONNECTED,
            "closed",
            Identity(peer.principal, peer.fingerprint),
            address,
            reason,
            session=peer.client_id,
            seconds=round(now_s - connection.opened_at_s, 3),
            sends=peer.sends,
            messages=peer.messages,
        )
        if self._log_limit.admit("connection-closed", connection.host, now_s):
            log_event(
                logging.INFO,
                "connection-closed",
                address=address,
                principal=peer.principal,
                session=peer.client_id,
                reason=reason,
                seconds=f"{now_s - connection.opened_at_s:.3f}",
                frames=peer.frames,
                sends=peer.sends,
                messages=peer.messages,
                bytes_in=connection.bytes_in,
                bytes_out=connection.bytes_out,
            )
