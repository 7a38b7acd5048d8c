"""The fronts of a gateway: processes on this machine that have its clients. `[fronts]` starts them.

Theory of operation. The gateway accepts connections and hands each socket to the front that has the fewest. A front serves it: TLS,
STOMP, rights, schemas and delivery on a replica of the broker. The gateway orders operations (`front_orders`), and has journal and
admin listener. A front is a child with two inherited sockets: one for frames, one for accepted sockets. It ends when the gateway ends.
A front that ends is replaced, and its clients connect again.
"""

import json
import logging
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
from base64 import b64decode
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

import trio

from maxam import __version__
from maxam.broker.broker import Broker
from maxam.cluster import wire
from maxam.compiled import child_environment
from maxam.config import Settings
from maxam.errors import MaxamError
from maxam.gateway.audit import Audit
from maxam.gateway.clients import Clients
from maxam.gateway.commit_loop import CommitLoop
from maxam.gateway.front_link import FrontLink
from maxam.gateway.front_orders import FrontOrders, OrderedFront
from maxam.gateway.loaded_config import ITEMS, LoadedConfig
from maxam.gateway.log import log_bug, log_event
from maxam.gateway.presence import Presence
from maxam.journal.encoding import Position
from maxam.records import Identity, Rejection
from maxam.stomp.events import Send

_UNSENT_BYTES_MAX: Final = 268_435_456  # for a front that reads the journal meanwhile
_TICK_S: Final = 0.05
_START_S: Final = 30.0  # that clients wait for all fronts
_RESTART_S: Final = 0.1
_SLOW_RESTART_S: Final = 1.0  # after a front that has not become ready
_SOURCES_S: Final = 5.0  # a front that has not taken new files by then is killed
_STOP_MARGIN_S: Final = 2.0  # beyond the time that clients have
REJECTION_FIELDS: Final = (
    "result",
    "reason",
    "schema",
    "schema_version",
    "path",
    "expected",
    "found",
    "offset",
    "item",
    "item_key",
)  # of a rejection in a report, in the order of its constructor
COUNTED: Final = (
    "messages",
    "acks",
    "acks_ignored",
    "conflated",
    "sends_invalid",
    "sends_unauthorised",
    "sends_unavailable",
    "sends_superseded",
)  # counters of fronts that are added to those of the gateway


@final
class Front:
    """One front, as the gateway sees it.

    Attributes:
        slot: Its number, from 0.
        pid: Of its process.
        link: To it.
        ready: It serves clients.
        handed: Connections that were handed to it.
        ended: Of these, those that have ended.
        epoch: Number of the files that it has read last, in force or not.
        settled: Number of the files whose predecessors are out of force there.
    """

    def __init__(self, slot: int, pid: int, link: FrontLink, sockets: socket.socket) -> None:
        self.slot: Final = slot
        self.pid: Final = pid
        self.link: Final = link
        self.sockets: Final = sockets
        self.ready = False
        self.handed = 0
        self.ended = 0
        self.epoch = 0
        self.settled = 0
        self.ordered: OrderedFront | None = None


@final
class Fronts:
    """Starts fronts, and serves them.

    Attributes:
        orders: The order of their operations.
        running: Those that run.
        restarts: Fronts that have ended by themselves.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        committer: CommitLoop,
        clients: Clients,
        loaded: Callable[[], LoadedConfig],
        audit: Audit,
        presence: Presence,
        position: Position,
        wall_us: Callable[[], int],
    ) -> None:
        """Prepare to start them; `serve` does.

        Args:
            settings: With `[fronts]`.
            broker: Keeps the order.
            committer: Commits what fronts append.
            clients: Decides whether a connection is accepted.
            loaded: Returns the configuration in force.
            audit: Log of the connections of clients.
            presence: Publishes who is connected.
            position: Where the journal ends.
            wall_us: Returns the gateway's time, microseconds since the epoch.
        """
        self.orders: Final = FrontOrders(broker, position, trio.current_time)
        committer.group.fronted = self.orders
        self.running: Final[list[Front]] = []
        self.restarts = 0
        self._settings: Final = settings
        self._broker: Final = broker
        self._committer: Final = committer
        self._clients: Final = clients
        self._loaded: Final = loaded
        self._audit: Final = audit
        self._presence: Final = presence
        self._wall_us: Final = wall_us
        self._count: Final = 0 if settings.fronts is None else settings.fronts.count
        self._memory_low = False
        self._held: Final[deque[tuple[socket.socket, str, int]]] = deque()  # until a front serves
        self._stopping = False
        self._read = self.orders.epoch  # number of the files that fronts have read last, or were asked to
        self._changed = trio.Event()

    @property
    def open(self) -> int:
        """Connections of clients that fronts have."""
        return sum(front.handed - front.ended for front in self.running) + len(self._held)

    async def serve(self, listening: socket.socket, stopping: trio.Event, ready: Callable[[], None]) -> None:
        """Run the fronts and accept clients until `stopping` is set; then have all clients sent the shutdown message.

        `ready` is called once, when all fronts serve.
        """
        accepting = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            for slot in range(self._count):
                nursery.start_soon(self._keep, slot)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._accept, listening, accepting, ready)
            await stopping.wait()
            self._stopping = True
            accepting.cancel()
            self._clients.close()
            for connected, _, _ in self._held:
                connected.close()
            for front in self.running:
                front.link.send(wire.frame(wire.EXPEL, json.dumps({"all": True}).encode()))
            with trio.move_on_after(self._settings.limits.stop_timeout_s + _STOP_MARGIN_S):
                while self.running:
                    await self._wait_change()
            nursery.cancel_scope.cancel()

    def degraded(self) -> list[str]:
        """Return a line while fronts are missing."""
        ready = sum(front.ready for front in self.running)
        return [f"fronts: {ready} of {self._count} serve clients"] if ready < self._count else []

    # Connections.

    async def _accept(self, listening: socket.socket, accepting: trio.CancelScope, ready: Callable[[], None]) -> None:
        """Accept once all fronts serve, so that the first of them does not get all clients."""
        with trio.move_on_after(_START_S):
            while sum(front.ready for front in self.running) < self._count:
                await self._wait_change()
        ready()
        await self._clients.accept(listening, self._accepted, accepting)

    def _accepted(self, connected: socket.socket, host: str, port: int) -> None:
        if not self._clients.admits(connected, host, port, self.open):
            return
        if not self._hand_over(connected, host, port):
            self._held.append((connected, host, port))  # a moment: a front is being started

    def _hand_over(self, connected: socket.socket, host: str, port: int) -> bool:
        """Hand a connection to the front that has the fewest; return False if none serves."""
        data = json.dumps([host, port]).encode()
        for front in sorted((one for one in self.running if one.ready), key=lambda one: one.handed - one.ended):
            try:
                socket.send_fds(front.sockets, [data], [connected.fileno()])
            except OSError:  # it hangs, or has ended: the next one
                continue
            front.handed += 1
            connected.close()
            return True
        return False

    def _hand_over_held(self) -> None:
        while self._held and self._hand_over(*self._held[0]):
            self._held.popleft()

    # Processes.

    async def _keep(self, slot: int) -> None:
        while True:
            was_ready = False
            try:
                was_ready = await self._run_one(slot)
            except OSError as error:
                log_event(logging.ERROR, "front-failed", front=slot, error=error)
            if self._stopping:
                return
            self.restarts += 1
            await trio.sleep(_RESTART_S if was_ready else _SLOW_RESTART_S)

    async def _run_one(self, slot: int) -> bool:
        """Run a front to its end; return whether it has served clients."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        handing, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handing.setblocking(False)
        command = [sys.executable, "-m", "maxam.front", str(far.fileno()), str(taking.fileno())]
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                env=child_environment(),
                pass_fds=(far.fileno(), taking.fileno()),
            )
        finally:
            far.close()
            taking.close()
        front = Front(slot, process.pid, FrontLink(near, _UNSENT_BYTES_MAX), handing)
        reason = "it was stopped"
        try:
            self._begin(front)
            await front.link.run(partial(self._receive, front))
        except* MaxamError as group:
            reason = str(group.exceptions[0])
        except* Exception as group:  # noqa: BLE001  # a bug met by one front must not end the gateway
            log_bug("internal-error", group, front=slot)
            reason = "internal error"
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            handing.close()
            self._end(front)
            with trio.CancelScope(shield=True):
                await process.wait()
        if not self._stopping:
            log_event(
                logging.ERROR, "front-ended", front=slot, pid=process.pid, error=reason, action="another is started"
            )
        return front.ready

    def _begin(self, front: Front) -> None:
        self.running.append(front)
        name = secrets.token_bytes(8)
        front.ordered = self.orders.begin(name, front.link.send)
        loaded = self._loaded()
        front.epoch = front.settled = self.orders.epoch
        begin = (self._settings, dict(loaded.contents), name, front.epoch, self._broker.memory_low)
        front.link.send(wire.frame(wire.SOURCES, pickle.dumps(begin)))
        welcome = wire.Welcome(
            f"front {front.slot}", __version__, "serving", self._broker.incarnation, self.orders.position
        )
        front.link.send(wire.encode_welcome(welcome))

    def _end(self, front: Front) -> None:
        if front in self.running:
            self.running.remove(front)
        if front.ordered is not None:
            self.orders.end(front.ordered)
            front.ordered = None
            self._committer.schedule_commit()
        self._note_change()

    def _receive(self, front: Front, frames: list[wire.Frame]) -> None:
        if front.ordered is None:
            return
        wall_us = self._wall_us()
        for frame in frames:
            if frame.type == wire.OPS:
                self.orders.receive(front.ordered, frame.body, wall_us)
            elif frame.type == wire.REPORT:
                self._report(front, json.loads(frame.body))
            elif frame.type == wire.SOURCED:
                told = json.loads(frame.body)
                front.epoch = max(front.epoch, int(told["read"]))
                front.settled = max(front.settled, int(told["settled"]))
                self._note_change()
            else:
                raise wire.WireError(f"a frame of type {frame.type} from a front")
        self._committer.schedule_commit()

    def _report(self, front: Front, told: dict[str, Any]) -> None:
        if told.get("ready"):
            front.ready = True
            log_event(logging.INFO, "front-started", front=front.slot, pid=front.pid)
            self._note_change()
            self._hand_over_held()
        front.ended += int(told.get("ended", 0))
        for event, outcome, who, address, reason, facts in told.get("audit", ()):
            self._audit.record(event, outcome, Identity(*who), address, reason, **facts)
        now_s = trio.current_time()
        for principal, client_id, address, heard_ago_s in told.get("presence", ()):
            if heard_ago_s is None:
                self._presence.connected(principal, client_id, address, now_s)
            else:
                self._presence.ended(principal, client_id, address, now_s - heard_ago_s, now_s)
        counters = self._broker.counters
        for name, count in told.get("counters", {}).items():
            if name in COUNTED:
                setattr(counters, name, getattr(counters, name) + int(count))
        for result, count in told.get("rejected", {}).items():
            counters.rejected[result] = counters.rejected.get(result, 0) + int(count)
        counters.rejects_over_queue += int(told.get("lost", 0))
        take = self._broker.publishing.on_rejected
        for who, destination, body, headers, disposition, fields, wall_us in told.get("sends", ()):
            pairs = tuple((b64decode(name), b64decode(value)) for name, value in headers)
            if take is not None:
                event = Send(b64decode(destination), b64decode(body), pairs, None)
                take(Identity(*who), event, disposition.encode(), Rejection(*fields), wall_us)

    async def _tick(self) -> None:
        while True:
            self.orders.claims.tick(trio.current_time())
            if self._broker.memory_low != self._memory_low:
                self._memory_low = self._broker.memory_low
                told = wire.frame(wire.REPORT, json.dumps({"memory_low": self._memory_low}).encode())
                for front in self.running:
                    front.link.send(told)
            await trio.sleep(_TICK_S)

    # Reload.

    async def prepare(self, after: LoadedConfig) -> None:
        """Have all fronts read items that are about to come into force. One that does not answer in time is killed."""
        before = self._loaded()
        self._read += 1
        epoch = self._read
        contents = {item: after.contents[item] for item in ITEMS if after.digests[item] != before.digests[item]}
        data = wire.frame(wire.SOURCES, pickle.dumps((epoch, contents)))
        fronts = list(self.running)
        for front in fronts:
            front.link.send(data)
        await self._all(fronts, lambda front: front.epoch >= epoch, "has not read new files")

    def swap(self, schemas: bool) -> None:
        """Have all fronts put into force what they have read, as the gateway does now; without the schemas if those are refused."""
        self.orders.epoch = self._read
        now = wire.frame(wire.REPORT, json.dumps({"now": self.orders.epoch, "schemas": schemas}).encode())
        for front in list(self.running):
            if front.epoch < self.orders.epoch:  # it began in between, with the old ones
                front.link.end("it began during a reload")
            else:
                front.link.send(now)

    async def settle(self) -> None:
        """Wait until the old items are out of force at all fronts."""
        epoch = self.orders.epoch
        await self._all(list(self.running), lambda front: front.settled >= epoch, "has not put new files into force")

    async def _all(self, fronts: list[Front], done: Callable[[Front], bool], problem: str) -> None:
        with trio.move_on_after(_SOURCES_S + self._settings.limits.close_grace_s):
            while any(front in self.running and not done(front) for front in fronts):
                await self._wait_change()
        for front in fronts:
            if front in self.running and not done(front):
                front.link.end(f"it {problem} in time")
                with suppress(ProcessLookupError):
                    os.kill(front.pid, signal.SIGKILL)

    async def _wait_change(self) -> None:
        await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
