"""A front: it serves clients on a replica of the broker of its gateway, which is on this machine (`local`) or another one (`remote`)."""

import gc
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, final

import trio

from maxam.broker.broker import Broker
from maxam.cluster import wire
from maxam.config import Limits, Settings
from maxam.errors import ProtocolError, first_error
from maxam.front.answers import Answers
from maxam.front.figures import FigureReader
from maxam.front.loop import FrontLoop
from maxam.front.replica import Replica, ReplicaError
from maxam.front.reports import Reports
from maxam.front.web import WebClients
from maxam.gateway.access import AccessMonitor
from maxam.gateway.bridge_links import BridgeLinks
from maxam.gateway.clients import SHUTDOWN, Clients
from maxam.gateway.clock import WallClock
from maxam.gateway.freshness import Freshness
from maxam.gateway.front_link import FrontLink, FrontLinkError
from maxam.gateway.front_sources import read_sources
from maxam.gateway.holdings import Holdings
from maxam.gateway.holdings_watch import HoldingsWatch
from maxam.gateway.loaded_config import CERTIFICATE, SCHEMAS, Content, LoadedConfig, take_contents
from maxam.gateway.log import log_bug, log_event
from maxam.gateway.rates import Rates
from maxam.gateway.resuming import Resumption
from maxam.gateway.shadow import Shadows
from maxam.gateway.staleness import Staleness
from maxam.gateway.transport import Transport, opening_number
from maxam.gateway.web_pings import keep_alive
from maxam.journal.encoding import Position
from maxam.journal.identity import end_chain

_REPORT_S: Final = 0.5
_COMMITTED_LOOK_S: Final = 0.005
COLLECT_THRESHOLDS: Final = (20_000, 50, 1_000_000)  # as the gateway has them
_COLLECT_ALL_INTERVAL_S: Final = 900
_SILENCE_LOOK_S: Final = 1.0
_LEASE_LOOK_S: Final = 0.05
_NUMBERS: Final = 1 << 32  # of the connections of a front on another machine
_ASKED_MAX: Final = 1000  # questions that wait


@final
@dataclass(frozen=True, slots=True)
class Resumed:
    """A link to the next leader, which has taken this front.

    Attributes:
        link: To it.
        facts: As of its SOURCES.
        position: Its own when it took this front.
        asked_s: When it was asked, in seconds of the event loop.
    """

    link: FrontLink
    facts: dict[str, Any]
    position: Position
    asked_s: float


@final
class FrontProcess:
    """A front that has read the journal.

    Attributes:
        loaded: The configuration in force.
        listening: Opens the listener of a front on another machine, once the front serves. None if its gateway accepts its clients.
        find_leader: Links a front on another machine with the next leader, to which its state is sent. None on this machine.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedConfig,
        slot: int,
        epoch: int,
        link: FrontLink,
        taking: socket.socket | None,
        replica: Replica,
        clock: WallClock,
        *,
        term: int = 0,
        hold_s: float = 0.0,
    ) -> None:
        """Make it.

        Args:
            settings: Of the gateway; on another machine those that hold here.
            loaded: The configuration of the gateway.
            slot: Number of the front.
            epoch: Number of that configuration.
            link: To the gateway.
            taking: Hands over connections that the gateway accepts. None on another machine.
            replica: Has read the journal.
            clock: The time.
            term: Of the leader that this front is linked with. 0 without a cluster.
            hold_s: For which clients are kept without a leader.
        """
        self.loaded = loaded
        self.listening: Callable[[], socket.socket] | None = None
        self.find_leader: Callable[[Resumption], Awaitable[Resumed]] | None = None
        self._term = term
        self._hold_s = hold_s
        self._linked = True
        self._slot: Final = slot
        self._own: Content | None = None  # the certificate of a front on another machine
        self._settings: Final = settings
        self._link = link
        self._taking: Final = taking
        self._opened: Final = trio.Event()
        self._replica: Final = replica
        self._broker: Final = replica.broker
        replica.epoch = epoch
        self._loop: Final = FrontLoop(replica, settings.limits)
        self._connections: Final[dict[Transport, None]] = {}
        self._reports: Final = Reports(self._broker)
        self._access: Final = AccessMonitor(
            settings, self._broker, self._connections, lambda: self.loaded, self._loop.schedule_commit
        )
        self._clock: Final = clock
        self._rates: Final = Rates(self._broker, self._connections)
        self._broker.subscribing.individual_acks = settings.listener.client_individual == "individual"
        count = 1 if settings.fronts is None else max(1, settings.fronts.count)
        self._holdings: Final = Holdings(_share(settings.limits, count))
        self._holdings_watch: Final = HoldingsWatch(self._holdings)
        self._shadows: Final = Shadows(
            settings.limits.shadow_bytes_per_s_max // count, self._broker.counters, lambda: self.loaded.registry
        )
        self._broker.watch_shadows(self._shadows.record)
        self._clients: Final = Clients(
            settings,
            self._broker,
            self._connections,
            self._loop,
            clock,
            self._access,
            lambda: self.loaded,
            self._holdings,
            self._reports,
            self._reports,
            self._rates,
            replica.claim,
        )
        self._web: WebClients | None = None
        if settings.web is not None and taking is not None:
            self._web = WebClients(
                settings.web, settings, self._clients, self._access, link, taking, lambda: self.loaded
            )
        self._broker.publishing.on_rejected = self._reports.rejected
        # The gateway deletes what expires; here overdue topics are found for the notices of subscribers.
        self._freshness: Final = Freshness(self._broker, clock.now_us, self._loop.schedule_commit, lambda: False)
        self._bridge_links: Final = BridgeLinks(self._broker, self._freshness, clock.now_us)
        staleness = Staleness(self._broker, settings.limits.lag_threshold_s, clock.now_us, front=True)
        self._figures: Final = FigureReader(
            self._broker, self._clients, self._holdings, self._rates, self._holdings_watch
        )
        self._reports.totals = self._figures.totals
        self._reports.shadows = self._shadows.take
        self._answers: Final = Answers(
            slot, self._broker, self._connections, self._clients, self._rates, staleness, self._committed
        )
        self._asked: trio.MemorySendChannel[tuple[FrontLink, dict[str, Any]]]
        self._prepared: LoadedConfig | None = None
        self._settling: trio.MemorySendChannel[tuple[FrontLink, int, LoadedConfig]]
        self._reading: trio.MemorySendChannel[tuple[FrontLink, int, Mapping[str, Content]]]
        self._ready = False
        self._taken = 0  # connections that were handed over
        self._stopping = trio.Event()
        self._shutdown = SHUTDOWN
        # When the last frames came; on another machine, when the newest BEAT was sent that came back.
        self._heard_s = self._arrived_s = trio.current_time()

    async def run(self) -> None:
        """Serve until the gateway ends or stops.

        Raises:
            MaxamError: The front must end. May be in a group.
        """
        self._settling, settle = trio.open_memory_channel[tuple[FrontLink, int, LoadedConfig]](100)
        self._reading, read = trio.open_memory_channel[tuple[FrontLink, int, Mapping[str, Content]]](100)
        self._asked, asked = trio.open_memory_channel[tuple[FrontLink, dict[str, Any]]](_ASKED_MAX)
        async with trio.open_nursery() as lasting:
            lasting.start_soon(self._answer, asked)
            lasting.start_soon(self._holdings_watch.run)
            lasting.start_soon(self._loop.run)
            lasting.start_soon(self._access.run)
            lasting.start_soon(self._rates.run)
            lasting.start_soon(self._freshness.run)
            lasting.start_soon(self._bridge_links.run)
            lasting.start_soon(self._clock.run)
            lasting.start_soon(self._report)
            lasting.start_soon(self._settle, settle)
            lasting.start_soon(self._read, read)
            lasting.start_soon(_collect_garbage)
            if self._taking is None:
                lasting.start_soon(self._keep_lease)
            elif self._settings.cluster is not None and self._settings.cluster.cut_off_s:
                lasting.start_soon(self._watch_gateway, self._settings.cluster.cut_off_s)
            if self._web is not None:
                lasting.start_soon(keep_alive, self._clients.web_sockets)
            async with trio.open_nursery() as clients:
                lasting.start_soon(self._run_link)
                if self._taking is not None:
                    lasting.start_soon(self._take, clients, self._taking)
                elif self.listening is not None:
                    lasting.start_soon(self._accept, clients, self.listening)
                self._note_ready()
                await self._stopping.wait()
                self._clients.close(self._shutdown)
                if self._web is not None:
                    self._web.listener.close()
                clients.cancel_scope.deadline = trio.current_time() + self._settings.limits.stop_timeout_s
            self._broker.record_acknowledgements()
            with trio.move_on_after(1):
                while self._broker.applied_seq < self._broker.appended_seq or self._broker.pending:
                    self._loop.schedule_commit()
                    await trio.sleep(0.01)
            self._send_report()
            lasting.cancel_scope.cancel()

    async def _watch_gateway(self, cut_off_s: float) -> None:
        """End if the gateway is silent for `cut_off_s`: another member may lead, and its clients are to find it.

        Raises:
            FrontLinkError: It is.
        """
        looked_s = trio.current_time()
        while True:
            await trio.sleep(_SILENCE_LOOK_S)
            now_s = trio.current_time()
            if (
                now_s - self._heard_s > cut_off_s and now_s - looked_s < 2 * _SILENCE_LOOK_S
            ):  # it was not stopped itself
                raise FrontLinkError("the gateway is silent")
            looked_s = now_s

    def stop(self) -> None:
        """Begin to end, as if the gateway stopped."""
        self._stopping.set()

    async def _run_link(self) -> None:
        """Act on what the gateway sends. When the link ends, go on with the next leader.

        Raises:
            MaxamError: The front must end. May be in a group.
        """
        while True:
            reason = ""
            try:
                await self._link.run(self._receive)
            except* FrontLinkError as group:
                reason = str(first_error(group))
            await self._go_on(reason)

    async def _go_on(self, reason: str) -> None:
        """Keep the clients until the next leader takes this front. Raises FrontLinkError if none does in time."""
        self._require_lease(trio.current_time())
        find, state = self.find_leader, self._replica.state(self._term)
        if find is None or not self._hold_s or state is None:
            raise FrontLinkError(reason)
        self._replica.lose()
        self._linked = False
        log_event(logging.WARNING, "front-holds", term=self._term, error=reason)
        with trio.move_on_after(self._hold_s):
            self._take_leader(await find(state))
            return
        raise FrontLinkError(reason)

    def _take_leader(self, resumed: Resumed) -> None:
        """Go on with the next leader."""
        facts = resumed.facts
        self._heard_s, self._arrived_s = resumed.asked_s, trio.current_time()
        self._term, self._hold_s, self._answers.slot = int(facts["term"]), float(facts["hold_s"]), int(facts["slot"])
        self._link, self._linked, self._prepared = resumed.link, True, None
        self._broker.memory_low = bool(facts["memory_low"])
        self._replica.find_leader(resumed.position, int(facts["epoch"]), self._link.send)
        for connection in self._connections:
            peer = connection.peer
            if peer is not None and peer.connection is not None and not peer.finished:
                self._reports.connected(peer.principal, peer.client_id, connection.address, self._heard_s)
        self._ready = False
        self._note_ready()
        log_event(logging.INFO, "front-resumed", term=self._term)

    async def _keep_lease(self) -> None:
        """Send signs of life to a gateway on another machine, and end with the lease that they give.

        Without a gateway, nothing more is read from clients once their operations take too much room.
        """
        sent_s = 0.0
        crowded = False
        while True:
            now_s = trio.current_time()
            self._require_lease(now_s)
            if self._replica.full:
                raise FrontLinkError("too many operations wait for the next leader")
            if crowded != self._replica.crowded:
                crowded = not crowded
                self._holdings.stop_reading(crowded)
                for connection in self._connections:
                    connection.resume()
            if self._linked and now_s - self._arrived_s > wire.FRONT_SILENCE_S:
                self._link.end(f"the gateway was silent for {wire.FRONT_SILENCE_S:g} s")
            if now_s >= sent_s + wire.BEAT_S:
                sent_s = now_s
                self._link.send(wire.encode_beat(wire.Beat(self._replica.position, int(now_s * 1e6))))
            await trio.sleep(_LEASE_LOOK_S)

    def _require_lease(self, now_s: float) -> None:
        """Raise FrontLinkError if the gateway may have ended the link: it lets other files come into force then.

        The lease counts from the sending of the newest BEAT that came back.
        """
        lease_s = max(wire.FRONT_SILENCE_S, self._hold_s)
        if now_s - self._heard_s > lease_s:
            raise FrontLinkError(f"no gateway has answered for {lease_s:g} s")

    def _receive(self, frames: list[wire.Frame]) -> None:
        if self._taking is not None:
            self._heard_s = trio.current_time()
        else:
            self._arrived_s = trio.current_time()
            for frame in frames:
                if frame.type == wire.BEAT:
                    self._heard_s = max(self._heard_s, wire.read_beat(frame.body).at_us / 1e6)
            self._require_lease(trio.current_time())
        known: list[wire.Frame] = []
        for frame in frames:
            if frame.type == wire.REPORT:
                self._loop.receive(known)
                known = []
                self._hear(json.loads(frame.body))
            elif frame.type == wire.SOURCES:
                facts, contents = read_sources(frame.body)
                self._reading.send_nowait((self._link, int(facts["epoch"]), contents))
            elif frame.type == wire.ASK:
                with suppress(trio.WouldBlock):  # the gateway waits for a second
                    self._asked.send_nowait((self._link, json.loads(frame.body)))
            elif frame.type == wire.ANSWER and self._web is not None:
                self._web.answered(frame.body)
            elif frame.type == wire.EXPEL and frame.body.startswith(b'{"all"'):
                self._shutdown = ProtocolError(*json.loads(frame.body)["all"])
                self._stopping.set()
            elif frame.type == wire.BEAT:
                continue
            else:
                known.append(frame)
        self._loop.receive(known)
        self._note_ready()

    def _hear(self, told: dict[str, Any]) -> None:
        if "memory_low" in told:
            self._broker.memory_low = bool(told["memory_low"])
        if "resumed" in told:
            self._replica.hand_over_again()
        if "now" in told:
            self._swap(int(told["now"]), bool(told["schemas"]))

    def _note_ready(self) -> None:
        if self._replica.serving and not self._ready:
            self._ready = True
            self._opened.set()
            self._link.send(wire.frame(wire.REPORT, json.dumps({"ready": True}).encode()))

    # Connections.

    async def _accept(self, clients: trio.Nursery, listening: Callable[[], socket.socket]) -> None:
        """Accept clients on another machine than the gateway's, once the front serves."""
        await self._opened.wait()
        first = self._slot * _NUMBERS

        def accepted(connected: socket.socket, host: str, port: int) -> None:
            if self._clients.admits(connected, host, port, self._clients.count):
                self._clients.begin(clients, connected, host, port, first + opening_number())

        await self._clients.accept(listening(), accepted)

    async def _take(self, clients: trio.Nursery, taking: socket.socket) -> None:
        """Take the sockets that the gateway hands over."""
        while True:
            await trio.lowlevel.wait_readable(taking)
            try:
                data, descriptors, _, _ = socket.recv_fds(taking, 4096, 1)
            except BlockingIOError:
                continue
            if not data:
                return
            host, port, number, web = json.loads(data)
            self._taken += 1
            self._link.send(wire.frame(wire.REPORT, json.dumps({"taken": self._taken}).encode()))
            connected = socket.socket(fileno=descriptors[0])
            connected.setblocking(False)
            clients.start_soon(self._serve, connected, str(host), int(port), int(number), bool(web))

    async def _serve(self, connected: socket.socket, host: str, port: int, number: int, web: bool) -> None:
        clients = self._web.listener if web and self._web is not None else self._clients
        try:
            async with trio.open_nursery() as nursery:
                clients.begin(nursery, connected, host, port, number)
        finally:
            self._reports.closed(web)

    async def _report(self) -> None:
        while True:
            await trio.sleep(_REPORT_S)
            self._send_report(await self._figures.read())

    def _send_report(self, figures: dict[str, Any] | None = None) -> None:
        told = self._reports.take(figures) if self._linked else None  # else it waits for the next leader
        if told is not None:
            self._link.send(wire.frame(wire.REPORT, told))

    # Questions of operators.

    async def _answer(self, asked: trio.MemoryReceiveChannel[tuple[FrontLink, dict[str, Any]]]) -> None:
        async for link, question in asked:
            try:
                answer = await self._answers.answer(question)
            except Exception as error:  # noqa: BLE001  # a bug met by one question must not end the clients
                log_bug("internal-error", error, action=f"the question {question['what']} of an operator has no answer")
                continue
            told = {"ask": question["ask"], "answer": answer}
            link.send(wire.frame(wire.ANSWER, json.dumps(told).encode()))

    async def _committed(self) -> None:
        """Wait until all is committed that was appended so far."""
        number = self._broker.appended_seq
        self._loop.schedule_commit()
        while self._broker.applied_seq < number:  # noqa: ASYNC110  # a count has no event, and few ask
            await trio.sleep(_COMMITTED_LOOK_S)

    # Reload.

    async def _read(self, read: trio.MemoryReceiveChannel[tuple[FrontLink, int, Mapping[str, Content]]]) -> None:
        async for link, epoch, contents in read:
            prepared = await trio.to_thread.run_sync(take_contents, self._settings, contents, self.loaded)
            self._prepared = self._with_own(prepared)
            _send_sourced(link, epoch, 0)

    def renew(self, own: Content) -> None:
        """Take another certificate for clients. Raises ConfigurationError."""
        self._own = own
        self.loaded = self._with_own(self.loaded)
        if self._prepared is not None:
            self._prepared = self._with_own(self._prepared)

    def _with_own(self, loaded: LoadedConfig) -> LoadedConfig:
        return loaded if self._own is None else take_contents(self._settings, {CERTIFICATE: self._own}, loaded)

    def _swap(self, epoch: int, schemas: bool) -> None:
        before, after = self.loaded, self._prepared
        self._prepared = None
        if after is None:
            raise ReplicaError("a reload that was not prepared")
        if not schemas:
            digests = {**after.digests, SCHEMAS: before.digests[SCHEMAS]}
            contents = {**after.contents, SCHEMAS: before.contents[SCHEMAS]}
            after = replace(after, registry=before.registry, digests=digests, contents=contents)
        self._loop.schedule_commit()
        self._replica.flush()  # with the number of the files by which they were judged
        self.loaded = after
        self._replica.epoch = epoch
        if after.policy is not before.policy:
            self._broker.replace_policy(after.policy, self._clock.now_us())
        if after.registry is not before.registry:
            self._broker.replace_registry(after.registry)
        self._settling.send_nowait((self._link, epoch, before))

    async def _settle(self, settle: trio.MemoryReceiveChannel[tuple[FrontLink, int, LoadedConfig]]) -> None:
        async for link, epoch, before in settle:
            await self._access.settle(before)
            _send_sourced(link, epoch, epoch)


def _send_sourced(link: FrontLink, read: int, settled: int) -> None:
    link.send(wire.frame(wire.SOURCED, json.dumps({"read": read, "settled": settled}).encode()))


def _share(limits: Limits, count: int) -> Limits:
    """Return the limits of one of several fronts: those of the memory of all connections are divided."""
    return replace(
        limits,
        frames_unfinished_bytes_max=limits.frames_unfinished_bytes_max // count,
        receipts_pending_total_bytes_max=limits.receipts_pending_total_bytes_max // count,
    )


def with_chain(folder: str, position: Position) -> Position:
    """Return where a journal that was read ends, with its check: a snapshot alone does not have it."""
    if position.chain or not position.revision:
        return position
    return Position(position.revision, position.accepted_at_us, end_chain(folder, "changes", position.revision))


def recover(broker: Broker, position: Position, floor: int) -> None:
    """Begin with what was read of a journal."""
    broker.recovered(trio.current_time(), position.revision, position.accepted_at_us, floor)
    gc.collect()
    gc.freeze()


async def _collect_garbage() -> None:
    while True:
        await trio.sleep(_COLLECT_ALL_INTERVAL_S)
        gc.collect()
