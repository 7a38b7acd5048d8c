"""Fronts as the gateway has them: how a process on this machine is started, and the connections that it was handed."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, final

import trio

from maxam.cluster.wire import FRONT_SILENCE_S, Beat, encode_beat
from maxam.compiled import child_environment
from maxam.gateway.front_link import FrontLink
from maxam.gateway.front_orders import OrderedFront
from maxam.gateway.log import log_event
from maxam.journal.encoding import Position

_KEEP_S: Final = 1.0  # between two checks whether processes are missing
_BEGIN_S: Final = 300.0  # for which a front on another machine may be silent while it reads the journal


@final
@dataclass(frozen=True, slots=True)
class Accepted:
    """A connection that was accepted and is not served yet: its socket, where it comes from, and its number in listings.

    `web` is whether it is of the web listener.
    """

    connected: socket.socket
    host: str
    port: int
    number: int
    web: bool


@final
@dataclass(frozen=True, slots=True)
class Started:
    """A process of a front that waits for its begin, and the gateway's ends of its sockets."""

    process: trio.Process
    link: socket.socket
    handing: socket.socket

    @property
    def loaded(self) -> bool:
        """Whether it has loaded its modules and sent its first frame."""
        if self.process.returncode is not None:
            return False
        try:
            return bool(self.link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:  # it has sent nothing yet, or has ended
            return False


@final
@dataclass(slots=True)
class Figures:
    """The figures of one front at its last report.

    Attributes:
        connected: Connections whose CONNECT was answered CONNECTED.
        connecting: The others.
        first_expiry_s: Earliest end of validity of their certificates, seconds since the epoch. 0.0 without any.
        frames_bytes: Bytes of unfinished frames.
        receipts_bytes: Bytes of pending RECEIPTs.
        revision: Revision of the last change that it has applied.
        degraded: Lines for health.
        busy: Busiest sessions: principal, client-id, SENDs and MESSAGEs a second.
        owed: Sessions that are owed most by transient subscriptions: principal, client-id, number of topics.
    """

    connected: int = 0
    connecting: int = 0
    first_expiry_s: float = 0.0
    frames_bytes: int = 0
    receipts_bytes: int = 0
    revision: int = 0
    degraded: list[str] = field(default_factory=list)
    busy: list[tuple[str, str, float, float]] = field(default_factory=list)
    owed: list[tuple[str, str, int]] = field(default_factory=list)


@final
class Front:
    """One front, as the gateway sees it.

    Attributes:
        slot: Its number, from 0.
        pid: Of its process. 0 if that is on another machine.
        link: To it.
        name: Name and address of the other machine. Empty for this one.
        heard_s: When something came from it last.
        note: Called with each BEAT of one on another machine, and the bytes that were sent to it.
        ready: It serves clients.
        resumes: It was served by another leader, and is to send its state.
        handed: Connections that were handed to it.
        ended: Of these, those that have ended.
        web: Of those that have not ended, those of the web listener.
        epoch: Number of the files that it has read last, in force or not.
        settled: Number of the files whose predecessors are out of force there.
        addresses: Of its connected clients, by principal and client-id.
        figures: Of its last report.
    """

    def __init__(self, slot: int, pid: int, link: FrontLink, sockets: socket.socket | None, name: str = "") -> None:
        self.slot: Final = slot
        self.pid: Final = pid
        self.link: Final = link
        self.sockets: Final = sockets
        self.name: Final = name
        self.local: Final = sockets is not None
        self.heard_s = trio.current_time()
        self.note: Callable[[Beat, int], None] | None = None
        self._echo_us = 0  # time in its newest BEAT
        self._proven_us = 0  # the same when the gateway last led for certain
        self.ready = False
        self.resumes = False
        self.handed = 0
        self.ended = 0
        self.web = 0
        self.epoch = 0
        self.settled = 0
        self.ordered: OrderedFront | None = None
        self.addresses: Final[dict[tuple[str, str], str]] = {}
        self.figures = Figures()
        self._handing: Final[deque[Accepted]] = deque()  # kept open until the front has taken them
        self._taken = 0

    @property
    def open(self) -> int:
        """Connections that it has; of a front on another machine, at its last report."""
        return self.handed - self.ended if self.local else self.figures.connected + self.figures.connecting

    def kill(self) -> None:
        """End its process. One on another machine is not ours to end: it finds out that its link has ended."""
        if self.local:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def hear(self, beat: Beat) -> None:
        """Take a sign of life of a front on another machine."""
        self._echo_us = beat.at_us
        if self.note is not None:
            self.note(beat, self.link.sent_bytes)

    def send_beat(self, position: Position, now_s: float, proven: bool) -> None:
        """Send a sign of life to a front on another machine. If it is silent itself, end its link.

        The front gets its own time back. So it knows until when it may serve, however late this arrives. Without `proven` another
        member may lead, and the front gets the time of before.
        """
        if proven:
            self._proven_us = self._echo_us
        self.link.send(encode_beat(Beat(position, self._proven_us)))
        if now_s - self.heard_s > (FRONT_SILENCE_S if self.ready else _BEGIN_S):
            self.link.end("it is silent")

    def hand_over(self, accepted: Accepted) -> bool:
        """Hand a connection over; return False if the front hangs or has ended, or is on another machine."""
        if self.sockets is None:
            return False
        data = json.dumps([accepted.host, accepted.port, accepted.number, accepted.web]).encode()
        try:
            socket.send_fds(self.sockets, [data], [accepted.connected.fileno()])
        except OSError:
            return False
        self.handed += 1
        self.web += accepted.web
        self._handing.append(accepted)
        return True

    def taken(self, count: int) -> None:
        """Close connections that the front has taken; `count` is their number since it began."""
        while self._taken < count and self._handing:
            self._taken += 1
            self._handing.popleft().connected.close()

    def give_back(self) -> list[Accepted]:
        """Return the connections that the front has not taken. It has ended."""
        return list(self._handing)


async def start_process() -> Started:
    """Start a process that loads its modules, and then waits for the first frame."""
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
    except BaseException:
        near.close()
        handing.close()
        raise
    finally:
        far.close()
        taking.close()
    return Started(process, near, handing)


async def end_process(started: Started) -> None:
    """End a process that has not begun to serve."""
    started.link.close()
    started.handing.close()
    with suppress(ProcessLookupError):
        os.kill(started.process.pid, signal.SIGKILL)
    await started.process.wait()


@final
class Spares:
    """Processes of fronts that have loaded their modules and wait. A front that begins with one serves sooner."""

    def __init__(self, wanted: int = 0) -> None:
        """Have none.

        Args:
            wanted: Number of processes with which a gateway begins to serve.
        """
        self._wanted: Final = wanted
        self._waiting: Final[deque[Started]] = deque()

    @property
    def loaded(self) -> int:
        """Number of those that have loaded their modules."""
        return sum(started.loaded for started in self._waiting)

    @property
    def ready(self) -> bool:
        """Whether as many as are wanted have loaded their modules."""
        return self.loaded >= self._wanted

    async def keep(self, serving: trio.Event) -> None:
        """Have as many as are wanted until the gateway serves."""
        while not serving.is_set():
            try:
                await self.fill(self._wanted)
            except OSError as error:
                log_event(logging.WARNING, "front-failed", error=error)
            with trio.move_on_after(_KEEP_S):
                await serving.wait()

    async def fill(self, count: int) -> None:
        """Start processes until `count` of them wait; those that have ended do not count. Raises OSError."""
        for started in [one for one in self._waiting if one.process.returncode is not None]:
            self._waiting.remove(started)
            await end_process(started)
        while len(self._waiting) < count:
            self._waiting.append(await start_process())

    async def take(self) -> Started:
        """Return a process that waits, or a new one. Raises OSError."""
        while self._waiting:
            started = self._waiting.popleft()
            if started.process.returncode is None:
                return started
            await end_process(started)
        return await start_process()

    async def end(self) -> None:
        """End all that wait."""
        while self._waiting:
            await end_process(self._waiting.popleft())
