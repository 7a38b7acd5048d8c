"""The running gateway: what it is made of, how it starts, and the order in which it stops."""

import gc
import logging
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final, Protocol, final

import trio

from maxam import __version__
from maxam.avro.registry import Registry
from maxam.broker.broker import TAKEOVER, Broker
from maxam.broker.delivery import Connection
from maxam.broker.policy import Policy
from maxam.config import Settings
from maxam.errors import ProtocolError
from maxam.gateway.audit import CONNECTED, DISCONNECTED, REFUSED, STARTED, STOPPED, TAKEN_OVER, Audit, audit_folder
from maxam.gateway.backups import Backups
from maxam.gateway.committer import Committer
from maxam.gateway.connection import ClientConnection
from maxam.gateway.entitlement import Entitlement
from maxam.gateway.freshness import Freshness
from maxam.gateway.journal_size import JournalSize
from maxam.gateway.listener import Acceptor, address_text, affordable_connections, listen
from maxam.gateway.log import LogLimit, log_bug, log_event
from maxam.gateway.loop_lag import LoopLag
from maxam.gateway.notify import keep_watchdog
from maxam.gateway.peer import Peer
from maxam.gateway.quarantine import Quarantine, take_rejected
from maxam.gateway.rates import Rates
from maxam.gateway.rejects import RejectedSends
from maxam.gateway.reload import Reloader
from maxam.gateway.revocation import Chain
from maxam.gateway.shadow import Shadows
from maxam.gateway.snapshot import keep_snapshots
from maxam.gateway.sources import Sources
from maxam.gateway.staleness import Staleness
from maxam.gateway.tls import TlsSocket
from maxam.gateway.traffic import ACCEPT, Traffic
from maxam.gateway.watch import FileWatch
from maxam.gateway.watermarks import Watermarks
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Identity

# The committer thread must get the GIL back soon after its fsync: the default of 5 ms would be the latency of every RECEIPT.
_SWITCH_INTERVAL_S: Final = 0.0005
# Frames in flight are made and dropped by the thousand without a cycle among them: to look for one every 700 objects, as Python
# does, costs a tenth of the time. Young objects are looked at less often (and by the committer, after so many changes), old ones
# only at these intervals, for cycles that a long-lived connection left: where the core is interpreted a walk over all that
# topics hold, up to 0.3 s for a million.
_COLLECT_THRESHOLDS: Final = (20_000, 50, 1_000_000)
_COLLECT_ALL_INTERVAL_S: Final = 900


class Service(Protocol):
    """A further listener that runs beside the clients', such as the admin API."""

    async def __call__(self, gateway: "Gateway", *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve until cancelled; tell `host:port` of each of its listeners through `task_status` once they listen."""


@final
class Gateway:
    """One broker with its journal, its listener and its clients.

    Attributes:
        settings: Its configuration; fixed while it runs.
        broker: The state; call `committer.touch` after anything that may have appended to it.
        committer: Commits what was appended.
        connections: Of clients, oldest first, those in their handshake included.
        connected: Those of them that are connected, by their place in the broker.
        address: Where clients connect, `(host, port)`.
        started_at_us: Microseconds since the epoch.
        entitlement: Who may be connected, and ends the others.
        reloader: Puts changed files into force; knows what is in force.
        quarantine: The last rejected SENDs.
        shadows: Trials of candidate versions.
        audit: Who did what.
        backups: Made when operators ask for one.
        watermarks: Whether memory or disk run short.
        staleness: Who is behind, and by how much.
        freshness: Which topics are older than their rule allows.
        rates: How much is going on.
        traffic: What went through connections.
        loop_lag: How late the event loop is.
        journal_size: How large the journal is.
    """

    def __init__(self, settings: Settings, sources: Sources, broker: Broker, journal: Journal) -> None:
        self.settings: Final = settings
        self.broker: Final = broker
        self.committer: Final = Committer(broker, journal, settings.limits)
        self.connections: Final[dict[ClientConnection, None]] = {}
        self.connected: Final[dict[Connection, ClientConnection]] = {}
        self.entitlement: Final = Entitlement(
            settings, broker, self.connections, lambda: self.reloader.sources, self.committer.touch
        )
        self.reloader: Final = Reloader(settings, sources, broker, journal.keep_schemas, self.entitlement.settle)
        self.started_at_us: Final = time.time_ns() // 1000
        self.address: tuple[str, int] = (settings.listener.host, settings.listener.port)
        self._journal: Final = journal
        limits = settings.limits
        self.quarantine: Final = Quarantine(
            limits.quarantine_records_max, limits.quarantine_bytes_max, f"{self.started_at_us // 100_000:x}"
        )
        self.shadows: Final = Shadows(limits.shadow_bytes_per_s_max, broker.counters, lambda: broker.registry)
        self.watermarks: Final = Watermarks(
            broker,
            lambda: self.committer.writing_since_s,
            settings.journal.folder,
            limits.memory_bytes_max,
            settings.journal.free_bytes_min,
        )
        self.traffic: Final = Traffic(broker, self.connections)
        self.loop_lag: Final = LoopLag()
        self.backups: Final = Backups(settings.journal.folder, settings.admin.backups, settings.admin.backups_kept)
        self.journal_size: Final = JournalSize(settings.journal.folder)
        self.freshness: Final = Freshness(broker)
        self.staleness: Final = Staleness(broker, limits.staleness_behind_s)
        self.rates: Final = Rates(broker, self.connections)
        self._rejects: RejectedSends | None = None
        if settings.journal.rejected_bytes_max:
            self._rejects = RejectedSends(settings, OsDisk(), broker.counters, secrets.token_bytes(16))
        self.audit: Final = Audit(settings.audit, audit_folder(settings), OsDisk())
        self.reloader.on_outcome = self.audit.reloaded
        self.entitlement.on_expelled = self.audit.expelled
        broker.on_rejected = take_rejected(broker, self.quarantine, self._rejects, self.audit)
        broker.on_shadowed = self.shadows.tell
        self._strangers: Final[dict[ClientConnection, None]] = {}  # not CONNECTED yet, oldest first
        self._connections_max: Final = affordable_connections(settings.limits.connections_max)
        self._turns: Final = trio.CapacityLimiter(settings.limits.handshakes_per_pass_max)
        self._log_limit: Final = LogLimit(settings.limits.log_lines_per_minute_max)
        self._stopping: Final = trio.Event()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.broker.policy

    @property
    def registry(self) -> Registry:
        """The schema registry in force."""
        return self.broker.registry

    @property
    def tls(self) -> ssl.SSLContext:
        """The context of new connections; the admin listener uses it too."""
        return self.reloader.sources.tls

    async def run(self, services: Sequence[Service], ready: Callable[[list[str]], None]) -> None:
        """Serve until `stop`, then end gracefully within `limits.stop_timeout_s` and close the journal.

        Args:
            services: Further listeners; they stop last.
            ready: Called once with `host:port` of the clients' listener and of each service.

        Raises:
            ConfigurationError: An address cannot be listened on; nothing was served.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        gc.set_threshold(*_COLLECT_THRESHOLDS)
        listening = listen(self.settings.listener)
        if self._rejects is not None:
            self._rejects.start()
        self.audit.start()
        self.audit.tell(STARTED, "started", version=__version__, pid=os.getpid(), revision=self.broker.revision)
        host, port = listening.getsockname()[:2]
        self.address = (host, port)
        async with trio.open_nursery() as lasting:
            lasting.start_soon(self.committer.run)
            lasting.start_soon(keep_snapshots, self.settings.journal, self.settings.limits, self.broker.counters)
            lasting.start_soon(_collect_garbage)
            lasting.start_soon(self.watermarks.run)
            lasting.start_soon(self.freshness.run)
            lasting.start_soon(self.rates.run)
            lasting.start_soon(self.loop_lag.run)
            lasting.start_soon(keep_watchdog, lambda: self.committer.alive)
            lasting.start_soon(self.journal_size.run)
            lasting.start_soon(self.backups.run)
            lasting.start_soon(self.reloader.run)
            if self.settings.reload.watch:
                lasting.start_soon(FileWatch(self.settings, self.reloader.watched).run)
            lasting.start_soon(self.entitlement.run)
            lasting.start_soon(self.audit.run)
            addresses = [address_text(host, port)]
            for service in services:
                addresses += await lasting.start(service, self)
            async with trio.open_nursery() as clients:
                accepting = trio.CancelScope()
                clients.start_soon(self._accept, listening, clients, accepting)
                ready(addresses)
                await self._stopping.wait()
                accepting.cancel()
                self._say_goodbye()
                clients.cancel_scope.deadline = trio.current_time() + self.settings.limits.stop_timeout_s
            with trio.move_on_after(1):  # all that is appended is on its way: one batch, or two
                await self.committer.drained()
            lasting.cancel_scope.cancel()
        if self._rejects is not None:
            await trio.to_thread.run_sync(self._rejects.close)
        self.audit.tell(STOPPED, "stopped", revision=self.broker.revision)
        await trio.to_thread.run_sync(self.audit.close)
        self._journal.close()

    def stop(self) -> None:
        """Begin a graceful stop."""
        self._stopping.set()

    def objection(self, chain: Chain) -> ProtocolError | None:
        """Say why a client with this verified chain of certificates may not be served (any more), or None.

        Asked before CONNECT is answered, at each request of the admin listener, and of all connections when that may have changed.
        """
        return self.entitlement.objection(chain)

    def degraded_reasons(self) -> list[str]:
        """Say what an operator should see to, though the broker is in service: files that cannot be used, what has expired."""
        reasons = [f"{item}: {state.failure}" for item, state in self.reloader.items.items() if state.failure]
        if self.audit.failure:
            reasons.append(f"audit: the audit log cannot be written: {self.audit.failure}")
        reasons += self.backups.degraded()
        return reasons + self.freshness.degraded_reasons() + self.entitlement.degraded_reasons()

    def _say_goodbye(self) -> None:
        log_event(logging.INFO, "stopping", connections=len(self.connections))
        goodbye = ProtocolError("broker is stopping", "the broker is stopping; connect again in a moment")
        for connection in list(self.connections):
            connection.expel(goodbye)

    async def _accept(self, listening: socket.socket, clients: trio.Nursery, scope: trio.CancelScope) -> None:
        acceptor = Acceptor(listening, self.settings.limits, self._log_limit)
        with scope:
            await acceptor.run(partial(self._accepted, clients))

    def _accepted(self, clients: trio.Nursery, connected: socket.socket, host: str, port: int) -> None:
        if self._stopping.is_set():
            connected.close()  # accepted in the pass in which the stop began
            return
        if len(self.connections) >= self._connections_max:
            connected.close()
            self.traffic.refused[ACCEPT] += 1
            self.audit.tell(REFUSED, "refused", address=address_text(host, port), reason="connections_max")
            if self._log_limit.admit("connection-refused", host, trio.current_time()):
                log_event(
                    logging.WARNING, "connection-refused", address=address_text(host, port), reason="connections_max"
                )
            return
        if len(self._strangers) >= self.settings.limits.connections_unauthenticated_max:
            # A good client is a stranger for milliseconds: whoever has been one for longest is the least loss.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cut("made room for another that had not connected yet")
        connection = ClientConnection(
            TlsSocket(self.tls, connected),
            address_text(host, port),
            host,
            self.settings.limits,
            self.committer.deliveries,
        )
        self.connections[connection] = None
        self._strangers[connection] = None
        clients.start_soon(self._serve, connection)

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await connection.run(self._turns, self._make_peer, self.committer.touch, self._connected)
        except Exception as error:  # noqa: BLE001  # a bug met by one client must not end the others
            log_bug("internal-error", error, address=connection.address)
        finally:
            del self.connections[connection]
            if connection.peer is not None and connection.peer.connection is not None:
                self.connected.pop(connection.peer.connection, None)
            self.traffic.ended(connection)
            self._strangers.pop(connection, None)
            self._log_end(connection)
            connection.forget()

    def _make_peer(self, fingerprint: str, chain: Chain, wake: Callable[[], None], now_s: float) -> Peer:
        self.entitlement.connects(chain)
        objection = partial(self.objection, chain)
        return Peer(self.broker, self.settings, fingerprint, secrets.token_hex(16), wake, now_s, objection)

    def _connected(self, connection: ClientConnection) -> None:
        self._strangers.pop(connection, None)
        self.traffic.accepted += 1
        peer = connection.peer
        if peer is not None and peer.connection is not None:
            self.connected[peer.connection] = connection
            who = Identity(peer.principal, peer.fingerprint)
            self.audit.tell(CONNECTED, "accepted", who, connection.address, session=peer.client_id)
        if peer is not None and self._log_limit.admit("connection-opened", connection.host, trio.current_time()):
            log_event(
                logging.INFO,
                "connection-opened",
                address=connection.address,
                principal=peer.principal,
                session=peer.client_id,
                stomp=peer.version,
                tls=connection.tls_version,
                fingerprint=peer.fingerprint,
            )

    def _log_end(self, connection: ClientConnection) -> None:
        peer = connection.peer
        known = peer is not None and peer.connection is not None
        event = "connection-closed" if known else "connection-failed"
        now_s = trio.current_time()
        self._audit_end(connection, now_s)
        if not self._log_limit.admit(event, connection.host, now_s):
            return
        if peer is None or not known:
            log_event(
                logging.WARNING,
                event,
                address=connection.address,
                reason=(peer.end if peer is not None else "") or connection.reason,
                fingerprint=connection.fingerprint or None,
            )
            return
        log_event(
            logging.INFO,
            event,
            address=connection.address,
            principal=peer.principal,
            session=peer.client_id,
            reason=peer.end or connection.reason,
            seconds=f"{now_s - connection.opened_at_s:.3f}",
            frames=peer.frames,
            sends=peer.sends,
            messages=peer.messages,
            bytes_in=connection.bytes_in,
            bytes_out=connection.bytes_out,
        )

    def _audit_end(self, connection: ClientConnection, now_s: float) -> None:
        peer = connection.peer
        if peer is None or peer.connection is None:
            who = Identity(self.policy.principal_of(connection.fingerprint) or "", connection.fingerprint)
            reason = (peer.end if peer is not None else "") or connection.reason
            self.audit.tell(REFUSED, "refused", who, connection.address, reason)
            return
        failure = peer.connection.failure
        self.audit.tell(
            TAKEN_OVER if failure is not None and failure.message == TAKEOVER else DISCONNECTED,
            "closed",
            Identity(peer.principal, peer.fingerprint),
            connection.address,
            peer.end or connection.reason,
            session=peer.client_id,
            seconds=round(now_s - connection.opened_at_s, 3),
            sends=peer.sends,
            messages=peer.messages,
        )


async def _collect_garbage() -> None:
    while True:
        await trio.sleep(_COLLECT_ALL_INTERVAL_S)
        gc.collect()


def open_gateway(settings: Settings, sources: Sources) -> Gateway:
    """Open the journal and recover what it holds. Blocks; must be called inside the event loop that will serve.

    Raises:
        JournalError: The journal cannot be used, or is damaged; nothing was changed but a torn tail cut off.
    """
    started_s = time.monotonic()
    stored = settings.journal
    how = JournalSettings(
        stored.segment_bytes_max, stored.segment_age_s_max, stored.durability == "fsync", stored.reserve_bytes
    )
    journal = Journal.open(stored.folder, OsDisk(), how, secrets.token_bytes(16))
    broker = Broker(settings.limits, sources.policy, sources.registry)
    gc.disable()  # what recovery makes stays: to search it for garbage again and again would take a third of the time
    try:
        for record in journal.recover():
            broker.apply(record)
    finally:
        gc.enable()
    for tail in journal.torn_tails:
        log_event(logging.WARNING, "torn-tail-cut", **asdict(tail))
    for damage in journal.damaged_snapshots:
        log_event(logging.ERROR, "snapshot-damaged", error=damage, action="an older one was used")
    broker.recovered(trio.current_time(), journal.head)
    broker.accepted_at_us = (
        journal.accepted_at_us
    )  # a snapshot may leave out the newest record; time runs on from there
    journal.keep_schemas(sources.registry.texts())
    gc.collect()
    gc.freeze()  # what was recovered stays: a full collection that walks a million topics stops the loop for 50 ms
    log_event(
        logging.INFO,
        "recovered",
        folder=stored.folder,
        revision=broker.revision,
        topics=broker.store.live,
        sessions=len(broker.sessions),
        seconds=f"{time.monotonic() - started_s:.3f}",
    )
    return Gateway(settings, sources, broker, journal)
