"""The running gateway: what it is made of, how it starts, and the order in which it stops."""

import gc
import logging
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import trio

from maxam import __version__
from maxam.avro.registry import Registry
from maxam.broker.broker import Broker
from maxam.broker.policy import Policy
from maxam.broker.session_table import CROWDED
from maxam.config import Settings
from maxam.counting import counted
from maxam.errors import ProtocolError
from maxam.gateway.access import AccessMonitor
from maxam.gateway.audit import STARTED, STOPPED, Audit, audit_folder
from maxam.gateway.backups import Backups
from maxam.gateway.bridge_links import BridgeLinks
from maxam.gateway.bridges import Bridges
from maxam.gateway.clients import Clients
from maxam.gateway.clock import WallClock
from maxam.gateway.commit_loop import CommitLoop
from maxam.gateway.connect_problems import ConnectProblems
from maxam.gateway.disk_budget import disk_bytes, segment_bytes_max, wanted_bytes
from maxam.gateway.file_watch import FileWatch
from maxam.gateway.freshness import Freshness
from maxam.gateway.holdings import Holdings
from maxam.gateway.holdings_watch import HoldingsWatch
from maxam.gateway.journal_size import JournalSize
from maxam.gateway.listener import address_text, listen
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_event
from maxam.gateway.loop_lag import LoopLag
from maxam.gateway.notify import keep_watchdog
from maxam.gateway.owed_watch import OwedWatch
from maxam.gateway.presence import Presence
from maxam.gateway.quarantine import Quarantine, take_rejected
from maxam.gateway.rates import Rates
from maxam.gateway.rejects import RejectedSends
from maxam.gateway.reload import Reloader
from maxam.gateway.revocation import Chain
from maxam.gateway.role import GatewayRole
from maxam.gateway.seen_certificates import SeenCertificates
from maxam.gateway.shadow import Shadows
from maxam.gateway.snapshot import Snapshots
from maxam.gateway.staleness import Staleness
from maxam.gateway.supervision import Supervisor
from maxam.gateway.tickets import Tickets
from maxam.gateway.transport import Transport
from maxam.gateway.watermarks import Watermarks
from maxam.gateway.web import WebListener
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal
from maxam.link_config import LinkSettings

if TYPE_CHECKING:
    from maxam.gateway.front_children import Spares
    from maxam.gateway.fronts import Fronts
    from maxam.gateway.links import Links

# The committer thread must get the GIL back soon after its fsync: the default of 5 ms would be the latency of every RECEIPT.
_SWITCH_INTERVAL_S: Final = 0.0005
# Frames in flight are made and dropped by the thousand without a cycle among them. Python searches cycles every 700 objects, which
# takes a tenth of the time. So young objects are searched less often (and by the committer, after a number of changes). Old ones are
# searched only at these intervals, for cycles that a long-lived connection left. With an interpreted core, that is a scan of
# everything that topics hold, up to 0.3 s for a million.
_COLLECT_THRESHOLDS: Final = (20_000, 50, 1_000_000)
_COLLECT_ALL_INTERVAL_S: Final = 900


class Service(Protocol):
    """A further listener that runs beside the clients', such as the admin API."""

    __name__: str

    async def __call__(self, gateway: "Gateway", *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve until cancelled. Report `host:port` of each of its listeners through `task_status` once they listen."""


@final
class Gateway:
    """One broker with its journal, its listener and its clients.

    Attributes:
        settings: Its configuration; fixed while it runs.
        clock: The gateway's time.
        broker: The state; call `committer.schedule_commit` after anything that may have appended to it.
        committer: Commits what was appended.
        connections: Of clients, oldest first, those in their handshake included.
        address: Where clients connect, `(host, port)`.
        admin_port: Port of the admin listener; 0 without one.
        started_at_us: Microseconds since the epoch.
        access: Decides which clients may be connected, and ends the others.
        reloader: Puts changed files into force; knows what is in force.
        quarantine: The last rejected SENDs.
        shadows: Trials of candidate versions.
        audit: Log of the operations of clients and operators.
        connect_problems: Clients that cannot connect, or do not stay connected.
        seen: Certificates with which principals came since the start.
        backups: Made when operators ask for one.
        bridges: Processes that forward topics to other gateways, and back.
        watermarks: Whether memory or disk run short.
        snapshots: Keeps the archive and the room for snapshots within the disk.
        supervisor: Keeps the advisory tasks running.
        staleness: Which subscriptions are behind, and by how much.
        freshness: Which topics are older than their rule allows; deletes those that have expired.
        bridge_links: Which links to other gateways are up.
        presence: Publishes who is connected, if the configuration has it enabled.
        rates: Rates of the broker, topics and sessions.
        clients: The connections of clients: admission, and totals.
        tickets: Of clients without a certificate.
        web: The listener of these clients. None without one.
        loop_lag: How late the event loop is.
        holdings: Bytes of all connections in unfinished frames and pending RECEIPTs.
        holdings_watch: Whether that is much.
        owed_watch: Topics owed to each principal, against its limit.
        journal_size: How large the journal is.
        links: Other gateways that follow this one. None if none can.
        role: Its role among other gateways.
        fronts: Processes that have the clients. None if the gateway has them itself.
        on_started: Called once the audit log is open, before anything is served.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedConfig,
        broker: Broker,
        journal: Journal,
        role: GatewayRole,
    ) -> None:
        self.settings: Final = settings
        self.role: Final = role
        self.broker: Final = broker
        self.clock: Final = WallClock(broker.accepted_at_us, settings.limits.clock_jump_s_max, trio.current_time())
        self.committer: Final = CommitLoop(broker, role.written, settings.limits, role.die, self.clock.now_us)
        self.connections: Final[dict[Transport, None]] = {}
        self.access: Final = AccessMonitor(
            settings, broker, self.connections, lambda: self.reloader.loaded, self.committer.schedule_commit
        )
        self.reloader: Final = Reloader(
            settings, loaded, broker, role.keep_schemas, self.access.settle, self.clock.now_us
        )
        self.started_at_us: Final = time.time_ns() // 1000
        self.address: tuple[str, int] = (settings.listener.host, settings.listener.port)
        self.admin_port = 0
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
            wanted_bytes(settings.journal),
            written="the journal's disk" if role.member is None else "the log of the cluster",
        )
        self.owed_watch: Final = OwedWatch(broker, self.watermarks.memory_bytes_max, self.committer.schedule_commit)
        self._segment_bytes_max: Final = segment_bytes_max(settings.journal, disk_bytes(settings.journal.folder))
        seal = partial(self.committer.call, journal.seal) if role.seals else None
        self.snapshots: Final = Snapshots(
            settings.journal, limits, broker, self._disk_nearly_full, self.clock.now_us, seal
        )
        self.supervisor: Final = Supervisor()
        self.loop_lag: Final = LoopLag()
        self.holdings: Final = Holdings(limits)
        self.holdings_watch: Final = HoldingsWatch(self.holdings)
        self.bridges: Final = Bridges(() if settings.bridge is None else settings.bridge.configs)
        self.backups: Final = Backups(settings.journal.folder, settings.admin)
        self.journal_size: Final = JournalSize(settings.journal.folder)
        self.freshness: Final = Freshness(
            broker, self.clock.now_us, self.committer.schedule_commit, lambda: not self.committer.group.disk_full
        )
        self.bridge_links: Final = BridgeLinks(broker, self.freshness, self.clock.now_us)
        self.presence: Final = Presence(
            broker,
            settings.presence,
            settings.listener.heart_beat_ms / 1000,
            self.clock.now_us,
            trio.current_time(),
            self.committer.schedule_commit,
        )
        self.staleness: Final = Staleness(broker, limits.lag_threshold_s, self.clock.now_us)
        self.rates: Final = Rates(broker, self.connections)
        self._rejects: RejectedSends | None = None
        if settings.journal.rejected_bytes_max:
            self._rejects = RejectedSends(
                settings, OsDisk(), broker.counters, secrets.token_bytes(16), lambda: self.clock.latest_us
            )
        self.audit: Final = Audit(settings.audit, audit_folder(settings), OsDisk())
        self.connect_problems: Final = ConnectProblems(trio.current_time, lambda: time.time_ns() // 1000)
        self.seen: Final = SeenCertificates(lambda: time.time_ns() // 1000)
        self.audit.observers.extend((self.connect_problems.observe, self.seen.observe))
        self.reloader.on_outcome = self.audit.reloaded
        broker.subscribing.individual_acks = settings.listener.client_individual == "individual"
        broker.publishing.on_rejected = take_rejected(broker, self.quarantine, self._rejects, self.audit)
        broker.watch_shadows(self.shadows.record)
        self.clients: Final = Clients(
            settings,
            broker,
            self.connections,
            self.committer,
            self.clock,
            self.access,
            lambda: self.reloader.loaded,
            self.holdings,
            self.audit,
            self.presence,
            self.rates,
        )
        self.tickets: Final = Tickets(self.access.grants)
        self.web: WebListener | None = None
        if settings.web is not None:
            self.web = WebListener(
                settings.web, limits, self.clients, self.access, self.tickets, lambda: self.reloader.loaded
            )
        self._serving: Final = trio.Event()
        self._stopping: Final = trio.Event()
        self.on_started: Callable[[], None] | None = None
        self.links: Final = None if settings.link is None else self._make_links(settings.link)
        self.fronts: Fronts | None = None
        self._spares: Final = self._make_spares()
        if role.serves:
            self._make_fronts()
        if self.links is not None:
            role.join(self.links)

    def _make_spares(self) -> "Spares | None":
        """Return where processes of fronts wait, if fronts are wanted. Only then their modules are loaded."""
        if self.settings.fronts is None or not self.settings.fronts.count:
            return None
        from maxam.gateway.front_children import Spares  # noqa: PLC0415

        return Spares(self.settings.fronts.count)

    def _make_fronts(self) -> None:
        """Have processes that have the clients, if they are wanted."""
        if self._spares is None:
            return
        from maxam.gateway.fronts import Fronts  # noqa: PLC0415
        from maxam.gateway.remote_fronts import RemoteFronts  # noqa: PLC0415

        fronts = Fronts(
            self.settings,
            self.broker,
            self.committer,
            self.clients,
            lambda: self.reloader.loaded,
            self.audit,
            self.presence,
            self.role.written.position,
            self.clock.now_us,
            self.staleness,
            self.shadows,
            self.holdings,
            spares=self._spares,
            web=self.web,
            tickets=self.tickets,
            leading=None if self.role.member is None else self.role.member.logged,
        )
        if self.links is not None:
            self.links.fronts = RemoteFronts(fronts)
        self.clients.traffic.fronts = fronts.reports.connections
        self.rates.fronts = fronts.reports.busy
        self.owed_watch.fronts = fronts.reports.owed
        self.owed_watch.expel = fronts.asks.expel
        self.reloader.fronts, self.fronts = fronts.reload, fronts

    @property
    def fronts_loaded(self) -> bool:
        """Whether the processes of fronts are ready for the moment at which this gateway serves. True without fronts."""
        return self._spares is None or self._spares.ready

    def _make_links(self, settings: LinkSettings) -> "Links":
        """Return the listener of other gateways. Its modules are loaded only if it is wanted."""
        from maxam.cluster.ring import Ring  # noqa: PLC0415
        from maxam.gateway.link_credentials import LinkCredentials  # noqa: PLC0415
        from maxam.gateway.links import Links  # noqa: PLC0415

        journal = self._journal
        journal.watcher = ring = Ring(journal.position, journal.incarnation)
        credentials = LinkCredentials(self.settings.tls, settings, lambda: self.reloader.loaded)
        return Links(
            settings,
            self.settings,
            credentials,
            ring,
            OsDisk(),
            lambda: self.policy,
            self.clock,
            self.audit,
        )

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
        return self.reloader.loaded.tls

    async def run(self, services: Sequence[Service], ready: Callable[[list[str]], None]) -> None:
        """Serve until `stop`, then end gracefully within `limits.stop_timeout_s` and close the journal.

        Args:
            services: Further listeners; they stop last.
            ready: Called once with `host:port` of the clients' listener, empty for one that follows, and of each service.

        Raises:
            ConfigurationError: An address cannot be listened on; nothing was served.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        gc.set_threshold(*_COLLECT_THRESHOLDS)
        listening = self._listen() if self.role.serves else None
        if self._rejects is not None:
            self._rejects.start()
        self.audit.start()
        self.audit.record(
            STARTED, "started", version=__version__, pid=os.getpid(), revision=self.broker.committed_revision
        )
        if self.on_started is not None:
            self.on_started()
        addresses = [""]
        if listening is not None:
            self.address = listening.getsockname()[:2]
            addresses = [address_text(*self.address)]
        async with trio.open_nursery() as linked:
            if self.links is not None:  # ends last, so that followers get the end of the journal
                linked.start_soon(self.supervisor.run, "links", self.links.run)
            await self._serve_until_stopped(listening, services, addresses, ready)
            if self.links is not None and self.role.seals:
                self._journal.seal()
                await self.links.finish()
            linked.cancel_scope.cancel()
        if self._rejects is not None:
            await trio.to_thread.run_sync(self._rejects.close)
        self.audit.record(STOPPED, "stopped", revision=self.broker.committed_revision)
        await trio.to_thread.run_sync(self.audit.close)
        self._journal.close(seal=self.role.seals)

    async def _serve_until_stopped(
        self,
        listening: socket.socket | None,
        services: Sequence[Service],
        addresses: list[str],
        ready: Callable[[list[str]], None],
    ) -> None:
        """Serve until `stop`, and until all that was appended is committed. The arguments are as of `run`."""
        async with trio.open_nursery() as lasting:
            if listening is not None:
                self._start_serving(lasting)
            for name, task in self._advisory_tasks():
                lasting.start_soon(self.supervisor.run, name, task)
            for service in services:
                addresses += await lasting.start(self.supervisor.serve, service.__name__, partial(service, self))
            if len(addresses) > 1:
                self.admin_port = int(addresses[1].rpartition(":")[2])
            lasting.start_soon(self.role.run, self)
            if self.web is not None and listening is not None:
                addresses += [*["", ""][: 3 - len(addresses)], self.web.address]
            fronts_first = self.fronts is not None  # the gateway is ready once they serve; a follower has none
            if not fronts_first:
                ready(addresses)
            if listening is None:
                if self._spares is not None:
                    lasting.start_soon(self._spares.keep, self._serving)
                await self._serving.wait()
            if not self._stopping.is_set():
                if listening is None:
                    listening = self._listen()
                    self.address = listening.getsockname()[:2]
                    self._make_fronts()
                    self._start_serving(lasting)
                    log_event(logging.INFO, "serving", address=address_text(*self.address))
                if self.fronts is None:
                    if self.web is not None:
                        lasting.start_soon(self.web.serve, self._stopping)
                    await self.clients.serve(listening, self._stopping)
                else:
                    on_ready = partial(ready, addresses) if fronts_first else None
                    await self.fronts.serve(listening, self._stopping, on_ready)
                with trio.move_on_after(1):  # all that is appended is on its way: one batch, or two
                    await self.committer.drained()
            lasting.cancel_scope.cancel()
        if self._spares is not None:
            await self._spares.end()

    def _listen(self) -> socket.socket:
        """Return the listening socket of clients, and open that of web clients; raises ConfigurationError."""
        if self.web is not None:
            self.web.listen()
        return listen(self.settings.listener)

    def _start_serving(self, lasting: trio.Nursery) -> None:
        """Start what changes topics or sessions, and what commits that."""
        lasting.start_soon(self.committer.run)
        for name, task in self._changing_tasks():
            lasting.start_soon(self.supervisor.run, name, task)

    @property
    def disk_full(self) -> bool:
        """Whether the journal has no room for the next block."""
        return self.role.writer(self.committer).disk_full

    def _disk_nearly_full(self) -> bool:
        free_bytes = self.watermarks.free_bytes
        return self.disk_full or 0 <= free_bytes < 2 * self._segment_bytes_max

    def _advisory_tasks(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Yield name and function of each lasting task that the broker can do without for a while: see `supervision`."""
        settings = self.settings
        yield "snapshots", self.snapshots.run
        yield "garbage", _collect_garbage
        yield "watermarks", self.watermarks.run
        yield "holdings", self.holdings_watch.run
        yield "clock", self.clock.run
        yield "bridge_links", self.bridge_links.run
        yield "rates", self.rates.run
        yield "loop_lag", self.loop_lag.run
        yield "watchdog", partial(keep_watchdog, lambda: self.role.writer(self.committer).alive)
        yield "journal_size", self.journal_size.run
        yield "backups", self.backups.run
        yield "reload", self.reloader.run
        if settings.reload.watch:
            yield "watch", FileWatch(settings, self.reloader.watched).run
        yield "entitlement", self.access.run
        yield "audit", self.audit.run

    def _changing_tasks(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Yield name and function of each such task that changes topics or sessions. They begin when clients are served."""
        yield "owed", self.owed_watch.run
        yield "freshness", self.freshness.run
        yield "presence", self.presence.run
        if self.bridges.count:
            yield "bridges", self.bridges.run

    def begin(self) -> None:
        """Begin to serve clients, as a member that leads its cluster."""
        self._serving.set()

    def stop(self) -> None:
        """Begin a graceful stop. A leader of a cluster hands over first, if another member can lead."""
        if not self.role.stop():
            self.end()

    def end(self) -> None:
        """Begin the stop itself."""
        self._serving.set()
        if not self._stopping.is_set():
            log_event(logging.INFO, "stopping", connections=self.connections_open)
            self._stopping.set()

    def denial(self, chain: Chain) -> ProtocolError | None:
        """Return why a client with this verified chain of certificates may not be served (or no longer), or None.

        Asked before CONNECT is answered, at each request of the admin listener, and of all connections when that may have changed.
        """
        return self.access.denial(chain)

    def degraded_reasons(self) -> list[str]:
        """Return conditions that an operator should correct though the broker is in service: unusable files, expired items."""
        reasons = [
            f"{item}: {one.failure} (a restart would fail)" for item, one in self.reloader.items.items() if one.failure
        ]
        if self.audit.failure:
            reasons.append(f"audit: the audit log cannot be written ({self.audit.failure})")
        if self.audit.shipping_failure:
            reasons.append(f"audit: lines are not sent to {self.settings.audit.syslog} ({self.audit.shipping_failure})")
        reasons += self.backups.degraded() + self.snapshots.degraded() + self.supervisor.degraded()
        reasons += self.clients.degraded(trio.current_time()) + self.connect_problems.degraded()
        reasons += self.rates.senders.degraded(trio.current_time()) + self.holdings_watch.degraded()
        reasons += crowded(self) + self.presence.degraded() + self.bridge_links.degraded() + self.bridges.degraded()
        reasons += self.role.degraded()
        reasons += [] if self.fronts is None else self.fronts.degraded()
        return reasons + self.clock.degraded() + self.access.degraded_reasons()

    def limits_used(self) -> list[tuple[str, int, int, str]]:
        """Return each limit on totals: how much is used, how much may be, and the principal that uses most if each has its own."""
        limits, holdings = self.settings.limits, self.holdings
        frames_bytes, receipts_bytes = self.held_bytes()
        most = {"delete_retention_topics_max": limits.deletes_retained_max}  # or the setting itself
        used = [
            (name, count, most.get(name) or getattr(limits, name), principal)
            for name, count, principal in self.broker.limits_used()
        ]
        return [
            *used,
            ("owed_per_principal_max", self.owed_watch.most, self.owed_watch.limit, self.owed_watch.principal),
            ("connections_max", self.connections_open, self.clients.connections_max, ""),
            *([] if self.web is None else [("web_connections_max", self.web_open, self.web.connections_max, "")]),
            ("frames_unfinished_bytes_max", frames_bytes, holdings.frames_bytes_max, ""),
            ("receipts_pending_total_bytes_max", receipts_bytes, holdings.receipts_bytes_max, ""),
        ]

    @property
    def connections_open(self) -> int:
        """Number of connections of clients, those of fronts included."""
        return len(self.connections) + (0 if self.fronts is None else self.fronts.open)

    @property
    def web_open(self) -> int:
        """Those of them of the web listener."""
        return 0 if self.web is None else self.web.open if self.fronts is None else self.fronts.web_open

    def held_bytes(self) -> tuple[int, int]:
        """Return the bytes of unfinished frames and of pending RECEIPTs, those of fronts included."""
        frames_bytes, receipts_bytes = (0, 0) if self.fronts is None else self.fronts.reports.held_bytes()
        return self.holdings.frames_bytes + frames_bytes, self.holdings.receipts_bytes + receipts_bytes


def crowded(gateway: Gateway) -> list[str]:
    """Return one line for sessions that near their limit of subscriptions, and one for each other limit on totals that is near."""
    limits, broker = gateway.settings.limits, gateway.broker
    reasons = []
    if broker.crowded:
        (principal, client_id), count = next(iter(broker.crowded)), len(broker.crowded)
        held = len(broker.sessions[principal, client_id].subscriptions)
        reasons.append(
            f"subscriptions-many: the session {client_id} of {principal} holds {held} subscriptions "
            f"(limit subscriptions_per_session_max {limits.subscriptions_per_session_max}){_and_others(count)}"
        )
    for name, used, limit, principal in gateway.limits_used():
        if used >= CROWDED * limit:
            holder = f"the principal {principal}" if principal else "all clients together"
            reasons.append(f"limit-near: {used} of {name} {limit} are used by {holder}")
    return reasons


def _and_others(count: int) -> str:
    return f"; likewise {counted(count - 1, 'other')}" if count > 1 else ""


async def _collect_garbage() -> None:
    while True:
        await trio.sleep(_COLLECT_ALL_INTERVAL_S)
        gc.collect()
