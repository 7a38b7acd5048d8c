"""The fronts of a gateway: processes that have its clients. `[fronts]` starts those on this machine.

Theory of operation. The gateway accepts connections and hands each socket to the front that has the fewest. A front serves it: TLS,
STOMP, rights, schemas and delivery on a replica of the broker. The gateway orders operations (`front_orders`), and has journal and
admin listener. A front is a child with two inherited sockets: one for frames, one for accepted sockets. It ends when the gateway ends.
A front that ends is replaced, and its clients connect again. Fronts on other machines come over links (`remote_fronts`).
"""

import json
import logging
import os
import pickle
import secrets
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

import trio

from maxam import __version__
from maxam.broker.broker import Broker
from maxam.broker.session import Session
from maxam.cluster import wire
from maxam.cluster.logged import LoggedJournal
from maxam.config import Settings
from maxam.errors import MaxamError, ProtocolError
from maxam.gateway.audit import Audit
from maxam.gateway.clients import SHUTDOWN, Clients
from maxam.gateway.commit_loop import CommitLoop
from maxam.gateway.front_asks import FrontAsks
from maxam.gateway.front_children import Accepted, Front, Spares
from maxam.gateway.front_link import UNSENT_BYTES_MAX, FrontLink, FrontLinkError
from maxam.gateway.front_orders import FrontOrders
from maxam.gateway.front_reload import FrontReload
from maxam.gateway.front_reports import FrontReports
from maxam.gateway.front_sources import REMOTE_ITEMS, encode_sources, facts_of
from maxam.gateway.front_web import FrontWeb
from maxam.gateway.holdings import Holdings
from maxam.gateway.listings import subscriptions_after
from maxam.gateway.loaded_config import LoadedConfig
from maxam.gateway.log import log_bug, log_event
from maxam.gateway.presence import Presence
from maxam.gateway.resuming import STATE, read_resumption, resume
from maxam.gateway.shadow import Shadows
from maxam.gateway.staleness import LagReport, Staleness, SubscriptionRow, read_report, read_row
from maxam.gateway.tickets import Tickets
from maxam.gateway.transport import opening_number
from maxam.gateway.web import WebListener
from maxam.journal.encoding import Position

_TICK_S: Final = 0.05
BEAT_S: Final = 0.5  # between two signs of life to the fronts of a member of a cluster
_START_S: Final = 30.0  # that clients wait for all fronts
_SLOW_RESTART_S: Final = 1.0  # after a front that has not become ready
_STOP_MARGIN_S: Final = 2.0  # beyond the time that clients have


@final
class Fronts:
    """Starts fronts, and serves them.

    Attributes:
        orders: The order of their operations.
        count: Those of this machine.
        running: Those that run, also those on other machines.
        asks: Questions to them.
        reload: Has them put other files into force.
        reports: Their reports, which are put into the figures of the gateway.
        restarts: Fronts that have ended by themselves.
        stopping: No front is begun any longer.
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
        staleness: Staleness,
        shadows: Shadows,
        holdings: Holdings,
        *,
        spares: Spares,
        web: WebListener | None,
        tickets: Tickets,
        leading: LoggedJournal | None,
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
            staleness: Of the subscriptions of sessions without a connection.
            shadows: Trials of candidate versions.
            holdings: Where connections are counted that held too much.
            spares: Processes that fronts begin with. The caller ends those that wait.
            web: Accepts the connections of the web listener. None without it.
            tickets: Of that listener, used once at all fronts together.
            leading: The journal of the leader of a cluster. None without a cluster.
        """
        self.orders: Final = FrontOrders(broker, position, trio.current_time, clients.rate_denial)
        committer.group.fronted = self.orders
        self.running: Final[list[Front]] = []
        self.asks: Final = FrontAsks(self.running, self._find)
        self.reports: Final = FrontReports(self.running, broker, clients, audit, presence, shadows, holdings)
        self._hold_s: Final = 0.0 if leading is None else leading.hold_s
        self._leading: Final = leading
        self.reload: Final = FrontReload(
            self.running, self.orders, loaded, settings.limits.close_grace_s, self._wait_change, self._hold_s
        )
        self.restarts = 0
        self._web: Final = None if web is None else FrontWeb(web, tickets)
        self._settings: Final = settings
        self._broker: Final = broker
        self._committer: Final = committer
        self._clients: Final = clients
        self._loaded: Final = loaded
        self._staleness: Final = staleness
        staleness.others = self._lag_reports
        self._wall_us: Final = wall_us
        self.count: Final = 0 if settings.fronts is None else settings.fronts.count
        self._memory_low = False
        self._held: Final[deque[Accepted]] = deque()  # until a front serves
        self._spares: Final = spares
        self.stopping = False
        self._changed = trio.Event()
        self.tasks: trio.Nursery | None = None

    @property
    def open(self) -> int:
        """Connections of clients that fronts have."""
        return sum(front.open for front in self.running) + len(self._held)

    @property
    def _open_here(self) -> int:
        """Those of them that this gateway has accepted."""
        return sum(front.open for front in self.running if front.local) + len(self._held)

    @property
    def web_open(self) -> int:
        """Those of the web listener."""
        return sum(front.web for front in self.running) + sum(one.web for one in self._held)

    async def serve(self, listening: socket.socket, stopping: trio.Event, ready: Callable[[], None] | None) -> None:
        """Run the fronts and accept clients until `stopping` is set; then have all clients sent the shutdown message.

        `ready` is called once, when all fronts serve, if there is one.
        """
        accepting = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            for slot in range(self.count):
                nursery.start_soon(self._keep, slot)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._keep_spare)
            nursery.start_soon(self._accept, listening, accepting, ready)
            self.tasks = nursery
            await stopping.wait()
            self.stopping = True
            accepting.cancel()
            self._clients.close()
            for accepted in self._held:
                accepted.connected.close()
            self.dismiss()
            with trio.move_on_after(self._settings.limits.stop_timeout_s + _STOP_MARGIN_S):
                while self.running:
                    await self._wait_change()
            nursery.cancel_scope.cancel()

    def dismiss(self, error: ProtocolError = SHUTDOWN, *, lasting: bool = True) -> None:
        """Have all clients sent an ERROR, by default the shutdown message; without `lasting` only those of this machine."""
        told = {"all": [error.message, error.detail]}
        for front in [one for one in self.running if lasting or one.local]:
            front.link.send(wire.frame(wire.EXPEL, json.dumps(told).encode()))

    def degraded(self) -> list[str]:
        """Return a line while fronts are missing."""
        missing = [] if self._serving == self.count else [f"fronts: {self._serving} of {self.count} serve clients"]
        return missing + self.reports.degraded()

    # Questions of operators.

    def address(self, session: Session) -> str:
        """Return the address of the client of a session that a front has. Empty if it is not known."""
        front = self._find(session.holder)
        return "" if front is None else front.addresses.get(session.key, "")

    async def fill_sessions(self, rows: list[dict[str, object]], held: list[tuple[str, str]]) -> bool:
        """Put what fronts know into rows of sessions; return False if one did not answer."""
        told, incomplete = await self.asks.all("sessions", keys=held)
        known = {(row["principal"], row["client_id"]): row for answer in told for row in answer}
        for row in rows:
            row.update(known.get((row["principal"], row["client_id"]), {}))
        return not incomplete

    def subscriptions(
        self,
        cursor: tuple[str, ...] | None,
        most: int,
        only: tuple[str | None, str | None],
        told: list[tuple[list[dict[str, Any]], list[str] | None]],
    ) -> tuple[list[SubscriptionRow], tuple[str, ...] | None]:
        """Return a page of the subscriptions of the gateway itself and of fronts, and where the next one begins.

        Args:
            cursor: Where the page before ended. None for the first.
            most: Rows of the page.
            only: Principal and client-id to which the page is restricted.
            told: The same page of each front.
        """
        found, following = subscriptions_after(self._staleness, self._broker.sessions, cursor, most, *only)
        ends = [] if following is None else [following]
        for rows, end in told:
            found += [read_row(row) for row in rows]
            ends += [] if end is None else [tuple(end)]
        found.sort(key=_place)
        if ends:  # beyond the first of these, a listing is not known wholly
            found = [one for one in found if _place(one) <= min(ends)]
        if len(found) > most:
            return found[:most], _place(found[most - 1])
        return found, min(ends, default=None)

    async def _lag_reports(self) -> tuple[list[LagReport], bool]:
        told, incomplete = await self.asks.all("look")
        return [read_report(one) for one in told], incomplete

    def _find(self, name: bytes) -> Front | None:
        for front in self.running:
            if front.ordered is not None and front.ordered.id == name:
                return front
        return None

    # Connections.

    async def _accept(
        self, listening: socket.socket, accepting: trio.CancelScope, ready: Callable[[], None] | None
    ) -> None:
        """Accept once all fronts serve, so that the first of them does not get all clients."""
        with accepting:
            with trio.move_on_after(_START_S):
                while self._serving < self.count:
                    await self._wait_change()
            if ready is not None:
                ready()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._clients.accept, listening, self._accepted)
                if self._web is not None:
                    nursery.start_soon(self._web.listener.accept, partial(self._accepted_web, self._web.listener))

    def _accepted(self, connected: socket.socket, host: str, port: int) -> None:
        if self._clients.admits(connected, host, port, self._open_here):
            self._take_in(Accepted(connected, host, port, opening_number(), web=False))

    def _accepted_web(self, web: WebListener, connected: socket.socket, host: str, port: int) -> None:
        if web.admits(connected, host, port, self.web_open, self._open_here):
            self._take_in(Accepted(connected, host, port, opening_number(), web=True))

    def _take_in(self, accepted: Accepted) -> None:
        if not self._hand_over(accepted):
            self._held.append(accepted)  # a moment: a front is being started

    def _hand_over(self, accepted: Accepted) -> bool:
        """Hand a connection to the front that has the fewest; return False if none serves."""
        fronts = sorted((one for one in self.running if one.ready), key=lambda one: one.open)
        return any(front.hand_over(accepted) for front in fronts)

    def _hand_over_held(self) -> None:
        while self._held and self._hand_over(self._held[0]):
            self._held.popleft()

    # Processes.

    async def _keep(self, slot: int) -> None:
        while True:
            was_ready = False
            try:
                was_ready = await self._run_one(slot)
            except OSError as error:
                log_event(logging.ERROR, "front-failed", front=slot, error=error)
            if self.stopping:
                return
            self.restarts += 1
            if not was_ready:
                await trio.sleep(_SLOW_RESTART_S)

    async def _keep_spare(self) -> None:
        """Have one more process wait, once all fronts serve."""
        while True:
            if not self.stopping and self._serving == self.count:
                with suppress(OSError):
                    await self._spares.fill(1)
            await self._wait_change()

    @property
    def _serving(self) -> int:
        return sum(front.ready for front in self.running if front.local)

    async def _run_one(self, slot: int) -> bool:
        """Run a front to its end; return whether it has served clients."""
        started = await self._spares.take()
        process, handing = started.process, started.handing
        front = Front(slot, process.pid, FrontLink(started.link, UNSENT_BYTES_MAX), handing)
        try:
            reason = await self.run_front(front)
        finally:
            handing.close()
            with trio.CancelScope(shield=True):
                await process.wait()
        if not self.stopping:
            log_event(
                logging.ERROR, "front-ended", front=slot, pid=process.pid, error=reason, action="another is started"
            )
        return front.ready

    async def run_front(self, front: Front) -> str:
        """Serve a front until its link ends; return why it has ended."""
        reason = "it was stopped"
        try:
            self.running.append(front)
            if front.resumes:
                front.link.send(STATE)
            else:
                self._begin(front)
            await front.link.run(partial(self._receive, front))
        except* MaxamError as group:
            reason = str(group.exceptions[0])
        except* Exception as group:  # noqa: BLE001  # a bug met by one front must not end the gateway
            log_bug("internal-error", group, front=front.slot)
            reason = "internal error"
        finally:
            front.kill()
            self._end(front)
        return reason

    @property
    def _term(self) -> int:
        """The term of this leader; 0 without a cluster."""
        return 0 if self._leading is None else self._leading.term

    def _resume(self, front: Front, told: dict[str, Any]) -> None:
        """Begin to serve a front of the former leader, or refuse it. It ends its link then."""
        recent = None if self._leading is None else self._leading.recent
        try:
            state = read_resumption(told)
            front.ordered, entries = resume(self.orders, recent, self._term, state, front.link.send)
        except FrontLinkError as error:
            front.link.send(wire.encode_refused(wire.Refused(wire.GONE, str(error))))
            return
        self._begin(front)
        for entry in entries:
            front.link.send(entry)

    def _begin(self, front: Front) -> None:
        cores = () if self._settings.fronts is None else self._settings.fronts.cores
        if cores and front.local:
            os.sched_setaffinity(front.pid, {cores[front.slot % len(cores)]})
        if front.ordered is None:
            lasting = not front.local and self._leading is not None
            front.ordered = self.orders.begin(secrets.token_bytes(8), front.link.send, lasting=lasting)
        name = front.ordered.id
        loaded = self._loaded()
        front.epoch = front.settled = self.orders.epoch
        welcome = wire.Welcome(
            f"front {front.slot}", __version__, "serving", self._broker.incarnation, self.orders.position
        )
        if front.local:
            begin = (self._settings, dict(loaded.contents), name, front.slot, front.epoch, self._broker.memory_low)
            sources = wire.frame(wire.SOURCES, pickle.dumps(begin))
        else:
            facts = {
                "name": name.hex(),
                "slot": front.slot,
                "epoch": front.epoch,
                "memory_low": self._broker.memory_low,
                "term": self._term,
                "hold_s": self._hold_s,
            }
            contents = {item: loaded.contents[item] for item in REMOTE_ITEMS}
            sources = encode_sources(facts | facts_of(self._settings), contents)
        front.link.send(wire.encode_welcome(welcome))
        front.link.send(sources)

    def _end(self, front: Front) -> None:
        if front in self.running:
            self.running.remove(front)
            self.reload.fence(front)
        front.resumes = False
        self.reports.end(front)
        self._held.extend(front.give_back())
        self._hand_over_held()
        if front.ordered is not None:
            self.orders.end(front.ordered)
            front.ordered = None
            self._committer.schedule_commit()
        self._note_change()

    def _receive(self, front: Front, frames: list[wire.Frame]) -> None:
        if front.ordered is None and not front.resumes:
            return
        wall_us = self._wall_us()
        front.heard_s = trio.current_time()
        for frame in frames:
            if frame.type == wire.BEAT:
                front.hear(wire.read_beat(frame.body))
            elif front.ordered is None:
                self._resume(front, json.loads(frame.body))
            elif frame.type == wire.OPS:
                self.orders.receive(front.ordered, frame.body, wall_us)
            elif frame.type == wire.REPORT:
                self._report(front, json.loads(frame.body))
            elif frame.type == wire.ANSWER:
                self.asks.answered(json.loads(frame.body))
            elif frame.type == wire.ASK and self._web is not None and front.local:
                self._web.take_ticket(front, json.loads(frame.body))
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
            where: dict[str, object] = {"pid": front.pid} if front.local else {"name": front.name}
            log_event(logging.INFO, "front-started", front=front.slot, **where)
            self._note_change()
            self._hand_over_held()
        if "again" in told and front.ordered is not None:
            self.orders.begin_again(front.ordered, *told["again"])
        if "taken" in told:
            front.taken(int(told["taken"]))
        if "values" in told and self._web is not None and self.tasks is not None:
            self._web.serve_values(front, self.tasks)
        self.reports.take(front, told)

    async def _tick(self) -> None:
        beat_s = trio.current_time()
        while True:
            now_s = trio.current_time()
            self.orders.claims.tick(now_s)
            if now_s >= beat_s:
                beat_s = now_s + BEAT_S
                for front in self.running:
                    if not front.local:
                        front.send_beat(self.orders.position, now_s, not self._clients.closed)
                    elif self._settings.cluster is not None:
                        front.link.send(wire.frame(wire.REPORT, b"{}"))
            if self._broker.memory_low != self._memory_low:
                self._memory_low = self._broker.memory_low
                told = wire.frame(wire.REPORT, json.dumps({"memory_low": self._memory_low}).encode())
                for front in self.running:
                    front.link.send(told)
            await trio.sleep(_TICK_S)

    async def _wait_change(self) -> None:
        await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _place(row: SubscriptionRow) -> tuple[str, ...]:
    return row.principal, row.client_id, row.id
