"""The process of a front: it reads the journal, then serves the connections that its gateway hands to it."""

import gc
import json
import logging
import pickle
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import trio

from maxam.broker.broker import Broker
from maxam.cluster import wire
from maxam.config import Limits, Settings
from maxam.errors import JournalError, MaxamError, ProtocolError, first_error
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
from maxam.gateway.holdings import Holdings
from maxam.gateway.holdings_watch import HoldingsWatch
from maxam.gateway.loaded_config import SCHEMAS, Content, LoadedConfig, take_contents
from maxam.gateway.log import log_bug, log_event, set_log_format, start_logging
from maxam.gateway.rates import Rates
from maxam.gateway.shadow import Shadows
from maxam.gateway.staleness import Staleness
from maxam.gateway.transport import Transport
from maxam.gateway.web_pings import keep_alive
from maxam.journal.disk import OsDisk
from maxam.journal.encoding import Position
from maxam.journal.identity import end_chain
from maxam.journal.replay import Replay

_UNSENT_BYTES_MAX: Final = 268_435_456
_REPORT_S: Final = 0.5
_COMMITTED_LOOK_S: Final = 0.005
_TRIES: Final = 20  # to read a journal whose files are renamed meanwhile
_COLLECT_THRESHOLDS: Final = (20_000, 50, 1_000_000)  # as the gateway has them
_COLLECT_ALL_INTERVAL_S: Final = 900
_SILENCE_LOOK_S: Final = 1.0
_BEHIND_LOOK_S: Final = 0.1
_BEHIND_S: Final = 30.0  # that files may take to get what the log of a cluster has
_ASKED_MAX: Final = 1000  # questions that wait


@final
class FrontProcess:
    """A front that has read the journal.

    Attributes:
        loaded: The configuration in force.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedConfig,
        slot: int,
        epoch: int,
        link: FrontLink,
        taking: socket.socket,
        replica: Replica,
        clock: WallClock,
    ) -> None:
        self.loaded = loaded
        self._settings: Final = settings
        self._link: Final = link
        self._taking: Final = taking
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
        holdings = Holdings(_share(settings.limits, count))
        self._holdings_watch: Final = HoldingsWatch(holdings)
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
            holdings,
            self._reports,
            self._reports,
            self._rates,
            replica.claim,
        )
        self._web: WebClients | None = None
        if settings.web is not None:
            self._web = WebClients(
                settings.web, settings, self._clients, self._access, link, taking, lambda: self.loaded
            )
        self._broker.publishing.on_rejected = self._reports.rejected
        # The gateway deletes what expires; here overdue topics are found for the notices of subscribers.
        self._freshness: Final = Freshness(self._broker, clock.now_us, self._loop.schedule_commit, lambda: False)
        self._bridge_links: Final = BridgeLinks(self._broker, self._freshness, clock.now_us)
        staleness = Staleness(self._broker, settings.limits.lag_threshold_s, clock.now_us, front=True)
        self._figures: Final = FigureReader(self._broker, self._clients, holdings, self._rates, self._holdings_watch)
        self._reports.totals = self._figures.totals
        self._reports.shadows = self._shadows.take
        self._answers: Final = Answers(
            slot, self._broker, self._connections, self._clients, self._rates, staleness, self._committed
        )
        self._asked: trio.MemorySendChannel[dict[str, Any]]
        self._prepared: LoadedConfig | None = None
        self._settling: trio.MemorySendChannel[tuple[int, LoadedConfig]]
        self._reading: trio.MemorySendChannel[tuple[int, Mapping[str, Content]]]
        self._ready = False
        self._taken = 0  # connections that were handed over
        self._stopping = trio.Event()
        self._shutdown = SHUTDOWN
        self._heard_s = trio.current_time()  # when the last frames came

    async def run(self) -> None:
        """Serve until the gateway ends or stops.

        Raises:
            MaxamError: The front must end. May be in a group.
        """
        self._settling, settle = trio.open_memory_channel[tuple[int, LoadedConfig]](100)
        self._reading, read = trio.open_memory_channel[tuple[int, Mapping[str, Content]]](100)
        self._asked, asked = trio.open_memory_channel[dict[str, Any]](_ASKED_MAX)
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
            if self._settings.cluster is not None and self._settings.cluster.cut_off_s:
                lasting.start_soon(self._watch_gateway, self._settings.cluster.cut_off_s)
            if self._web is not None:
                lasting.start_soon(keep_alive, self._clients.web_sockets)
            async with trio.open_nursery() as clients:
                lasting.start_soon(self._link.run, partial(self._receive, clients))
                lasting.start_soon(self._take, clients)
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

    def _receive(self, _clients: trio.Nursery, frames: list[wire.Frame]) -> None:
        self._heard_s = trio.current_time()
        known: list[wire.Frame] = []
        for frame in frames:
            if frame.type == wire.REPORT:
                self._loop.receive(known)
                known = []
                self._hear(json.loads(frame.body))
            elif frame.type == wire.SOURCES:
                self._reading.send_nowait(pickle.loads(frame.body))  # noqa: S301  # of the process that has started this one
            elif frame.type == wire.ASK:
                with suppress(trio.WouldBlock):  # the gateway waits for a second
                    self._asked.send_nowait(json.loads(frame.body))
            elif frame.type == wire.ANSWER and self._web is not None:
                self._web.answered(frame.body)
            elif frame.type == wire.EXPEL and frame.body.startswith(b'{"all"'):
                self._shutdown = ProtocolError(*json.loads(frame.body)["all"])
                self._stopping.set()
            else:
                known.append(frame)
        self._loop.receive(known)
        self._note_ready()

    def _hear(self, told: dict[str, Any]) -> None:
        if "memory_low" in told:
            self._broker.memory_low = bool(told["memory_low"])
        if "now" in told:
            self._swap(int(told["now"]), bool(told["schemas"]))

    def _note_ready(self) -> None:
        if self._replica.serving and not self._ready:
            self._ready = True
            self._link.send(wire.frame(wire.REPORT, json.dumps({"ready": True}).encode()))

    # Connections.

    async def _take(self, clients: trio.Nursery) -> None:
        """Take the sockets that the gateway hands over."""
        while True:
            await trio.lowlevel.wait_readable(self._taking)
            try:
                data, descriptors, _, _ = socket.recv_fds(self._taking, 4096, 1)
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
        told = self._reports.take(figures)
        if told is not None:
            self._link.send(wire.frame(wire.REPORT, told))

    # Questions of operators.

    async def _answer(self, asked: trio.MemoryReceiveChannel[dict[str, Any]]) -> None:
        async for question in asked:
            try:
                answer = await self._answers.answer(question)
            except Exception as error:  # noqa: BLE001  # a bug met by one question must not end the clients
                log_bug("internal-error", error, action=f"the question {question['what']} of an operator has no answer")
                continue
            told = {"ask": question["ask"], "answer": answer}
            self._link.send(wire.frame(wire.ANSWER, json.dumps(told).encode()))

    async def _committed(self) -> None:
        """Wait until all is committed that was appended so far."""
        number = self._broker.appended_seq
        self._loop.schedule_commit()
        while self._broker.applied_seq < number:  # noqa: ASYNC110  # a count has no event, and few ask
            await trio.sleep(_COMMITTED_LOOK_S)

    # Reload.

    async def _read(self, read: trio.MemoryReceiveChannel[tuple[int, Mapping[str, Content]]]) -> None:
        async for epoch, contents in read:
            self._prepared = await trio.to_thread.run_sync(take_contents, self._settings, contents, self.loaded)
            self._send_sourced(epoch, 0)

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
        self._settling.send_nowait((epoch, before))

    async def _settle(self, settle: trio.MemoryReceiveChannel[tuple[int, LoadedConfig]]) -> None:
        async for epoch, before in settle:
            await self._access.settle(before)
            self._send_sourced(epoch, epoch)

    def _send_sourced(self, read: int, settled: int) -> None:
        self._link.send(wire.frame(wire.SOURCED, json.dumps({"read": read, "settled": settled}).encode()))


def _share(limits: Limits, count: int) -> Limits:
    """Return the limits of one of several fronts: those of the memory of all connections are divided."""
    return replace(
        limits,
        frames_unfinished_bytes_max=limits.frames_unfinished_bytes_max // count,
        receipts_pending_total_bytes_max=limits.receipts_pending_total_bytes_max // count,
    )


def main() -> int:
    """Run the process; its arguments are the descriptors of the link and of the socket that hands over connections."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the gateway gets them too, and decides
    start_logging()
    gc.set_threshold(*_COLLECT_THRESHOLDS)
    code = 0
    try:
        trio.run(_run, socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2])))
    except* FrontLinkError:
        pass  # it ends with the gateway
    except* MaxamError as group:
        log_event(logging.ERROR, "front-failed", error=first_error(group))
        code = 1
    return code


async def _run(connected: socket.socket, taking: socket.socket) -> None:
    taking.setblocking(False)
    with suppress(OSError):  # the gateway has ended: the next call finds that out
        connected.sendall(wire.frame(wire.REPORT, b"{}"))  # the modules are loaded
    begin = _receive_frame(connected)
    settings, contents, name, slot, epoch, memory_low = pickle.loads(begin.body)  # noqa: S301  # of the process that has started this one
    welcome = wire.read_welcome(_receive_frame(connected).body)
    set_log_format(settings.log.format)
    loaded = take_contents(settings, contents, None)
    link = FrontLink(connected, _UNSENT_BYTES_MAX)
    broker, position = _read_journal(settings, loaded, welcome.position)
    clock = WallClock(broker.accepted_at_us, settings.limits.clock_jump_s_max, trio.current_time())
    replica = Replica(
        broker, name, position, welcome.position, link.send, lambda: (trio.current_time(), clock.now_us())
    )
    broker.memory_low = memory_low
    broker.incarnation = welcome.incarnation
    await FrontProcess(settings, loaded, slot, epoch, link, taking, replica, clock).run()


def _receive_frame(connected: socket.socket) -> wire.Frame:
    """Return the next frame, and read nothing after it."""
    connected.setblocking(True)
    head = _receive(connected, 5)
    body = _receive(connected, int.from_bytes(head[:4], "big"))
    return wire.FrameReader().feed(head + body)[0]


def _receive(connected: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            some = connected.recv(size - len(data))
        except ConnectionResetError:  # its end has not read what this process has sent
            some = b""
        if not some:
            raise FrontLinkError("the gateway has ended")
        data += some
    return bytes(data)


def _read_journal(settings: Settings, loaded: LoadedConfig, begun: Position) -> tuple[Broker, Position]:
    """Return a broker with what the files of the journal hold, and the position where they end, which is `begun` or later.

    A member of a cluster writes its journal after the log, so its files may be behind for a moment.

    Raises:
        JournalError: The files cannot be read.
    """
    folder = str(settings.journal.folder.absolute())
    tries = 0
    ends_s = time.monotonic() + _BEHIND_S
    while True:
        broker = Broker(settings.limits, loaded.policy, loaded.registry)
        replay = Replay(folder, OsDisk())
        gc.disable()
        try:
            for record in replay.records(following=True):
                broker.replay(record)
            if replay.position.revision >= begun.revision or time.monotonic() > ends_s:
                broker.backfills.run(broker.store)
                break
            time.sleep(_BEHIND_LOOK_S)
        except (JournalError, OSError) as error:  # a segment was sealed meanwhile, as a rule
            tries += 1
            if tries == _TRIES:
                raise JournalError(f"{folder} cannot be read beside the gateway: {error}") from error
            time.sleep(0.05)
        finally:
            gc.enable()
    position = replay.position
    if position.revision < begun.revision:
        raise JournalError(f"{folder} ends before revision {begun.revision}, which the gateway has committed")
    if position.chain == 0 and position.revision > 0:
        chain = end_chain(folder, "changes", position.revision)
        position = Position(position.revision, position.accepted_at_us, chain)
    broker.recovered(trio.current_time(), position.revision, position.accepted_at_us, replay.floor)
    gc.collect()
    gc.freeze()
    return broker, position


async def _collect_garbage() -> None:
    while True:
        await trio.sleep(_COLLECT_ALL_INTERVAL_S)
        gc.collect()
