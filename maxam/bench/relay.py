"""A far link: a process that forwards bytes between subscribers and a broker, each way after half the round trip.

Order is kept and the rate is not touched: bytes that come together go on together, later. If a receiver does not take the bytes that
are due, the relay stops reading for it, as a full TCP window would.
"""

import random
import select
import socket
import time
from collections import deque
from dataclasses import replace
from typing import Final, final

from maxam.bench.errors import LoadError
from maxam.bench.target import ANSWER_TIMEOUT_S, RECEIVE_BYTES, Target
from maxam.bench.worker import Channel, Meter, Times, Use, Worker

WAY_BYTES_MAX: Final = 2**23  # on their way at once; at this limit reading stops
_BACKLOG: Final = 1024
_LISTEN_S: Final = 0.05  # for word from the process that started us


@final
class Way:
    """Bytes on their way in one direction of one connection."""

    def __init__(self, way_ns: int, jitter_ns: int, seed: int) -> None:
        self._way_ns: Final = way_ns
        self._jitter_ns: Final = jitter_ns
        self._random: Final = random.Random(seed)  # noqa: S311  # to be repeatable
        self._pieces: Final[deque[tuple[int, bytes]]] = deque()  # when each is due, never before the one ahead
        self._last_ns = 0
        self.bytes = 0

    def put(self, data: bytes, now_ns: int) -> None:
        """Send bytes on their way."""
        due_ns = now_ns + self._way_ns
        if self._jitter_ns:
            due_ns += self._random.randrange(self._jitter_ns)
        self._last_ns = due_ns = max(self._last_ns, due_ns)
        self._pieces.append((due_ns, data))
        self.bytes += len(data)

    @property
    def due_ns(self) -> int | None:
        """When the next bytes arrive; None when none are on their way."""
        return self._pieces[0][0] if self._pieces else None

    def take(self, now_ns: int) -> bytes:
        """Return all that has arrived."""
        arrived = []
        while self._pieces and self._pieces[0][0] <= now_ns:
            arrived.append(self._pieces.popleft()[1])
        data = b"".join(arrived)
        self.bytes -= len(data)
        return data


@final
class Relay:
    """A relay, seen from the process that started it.

    Attributes:
        target: The broker as it is reached through the relay.
    """

    def __init__(self, target: Target, round_trip_ms: float, jitter_ms: float, cores: frozenset[int] | None) -> None:
        """Start one: each way takes half of `round_trip_ms`, and up to half of `jitter_ms` more by chance."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.target: Final = replace(target, host="127.0.0.1", port=listener.getsockname()[1], others=())
        self._worker: Final = Worker(
            "relay",
            forward,
            listener,
            (target.host, target.port),
            int(round_trip_ms * 5e5),
            int(jitter_ms * 5e5),
            cores=cores,
        )
        listener.close()

    def begin(self, times: Times) -> None:
        """Record when the load is measured."""
        self._worker.send(times)

    def finish(self) -> Use:
        """Have it stop; return what it took of its core while the load was measured.

        Raises:
            LoadError: It has failed.
        """
        self._worker.send("stop")
        what, use = self._worker.hear()
        if what != "done":
            raise LoadError(f"the relay sent {what} instead of its CPU time")
        found: Use = use
        return found

    def end(self) -> None:
        """End it, whatever it does."""
        self._worker.end()


def forward(channel: Channel, listener: socket.socket, broker: tuple[str, int], way_ns: int, jitter_ns: int) -> Use:
    """Forward connections until stopped."""
    return _Forwarder(channel, listener, broker, way_ns, jitter_ns).run()


@final
class _End:
    """One socket, and the bytes on their way to it."""

    def __init__(self, connected: socket.socket, way: Way) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: Final = connected
        self.way: Final = way
        self.number: Final = connected.fileno()
        self.other: _End | None = None
        self.unsent = b""  # due, and not taken by the system
        self.ending = False  # the other side has closed: so does this one when all has arrived
        self.events = select.EPOLLIN

    def send(self, now_ns: int) -> bool:
        """Send the bytes that are due. Return True if the socket is of no further use."""
        data = self.unsent + self.way.take(now_ns) if self.unsent else self.way.take(now_ns)
        try:
            while data:
                data = data[self.socket.send(data) :]
        except BlockingIOError:
            pass
        except OSError:
            return True
        self.unsent = data
        return self.ending and not data and not self.way.bytes


@final
class _Forwarder:
    def __init__(
        self, channel: Channel, listener: socket.socket, broker: tuple[str, int], way_ns: int, jitter_ns: int
    ) -> None:
        self._channel: Final = channel
        self._listener: Final = listener
        self._broker: Final = broker
        self._way_ns: Final = way_ns
        self._jitter_ns: Final = jitter_ns
        self._ends: Final[dict[int, _End]] = {}
        self._carrying: Final[set[_End]] = set()  # with bytes on their way to them
        self._poll: Final = select.epoll()
        self._connections = 0
        self._meter: Meter | None = None

    def run(self) -> Use:
        self._poll.register(self._listener, select.EPOLLIN)
        listen_ns = 0
        while True:
            now_ns = time.monotonic_ns()
            if self._meter is not None:
                self._meter.tick(now_ns)
            if now_ns >= listen_ns:
                listen_ns = now_ns + int(_LISTEN_S * 1e9)
                if self._channel.stopped():
                    word = self._channel.hear()
                    if not isinstance(word, Times):
                        return Use(0.0, 0.0) if self._meter is None else self._meter.use()
                    self._meter = Meter(word)
            due_ns = min(
                (end.way.due_ns for end in self._carrying if end.way.due_ns is not None and not end.unsent),
                default=listen_ns,
            )
            # epoll waits whole milliseconds only.
            select.select((self._poll,), (), (), max(0, min(due_ns, listen_ns) - time.monotonic_ns()) / 1e9)
            for number, events in self._poll.poll(0):
                if number == self._listener.fileno():
                    self._accept()
                    continue
                end = self._ends.get(number)
                if end is not None and events & ~select.EPOLLOUT:
                    self._receive(end)
            now_ns = time.monotonic_ns()
            for end in list(self._carrying):
                if end.send(now_ns):
                    self._close(end)
                    continue
                if not end.way.bytes and not end.unsent:
                    self._carrying.discard(end)
                self._watch(end)

    def _accept(self) -> None:
        accepted = self._listener.accept()[0]
        try:
            onward = socket.create_connection(self._broker, ANSWER_TIMEOUT_S)
        except OSError:
            accepted.close()  # the client learns it as from the broker itself: by a connection that ends
            return
        self._connections += 1
        near, far = (
            _End(connected, Way(self._way_ns, self._jitter_ns, 2 * self._connections + side))
            for side, connected in enumerate((accepted, onward))
        )
        near.other, far.other = far, near
        for end in (near, far):
            self._ends[end.number] = end
            self._poll.register(end.number, end.events)

    def _receive(self, end: _End) -> None:
        other = end.other
        try:
            data = end.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if other is None:
            self._close(end)
        elif data:
            other.way.put(data, time.monotonic_ns())
            self._carrying.add(other)
        else:
            other.ending = True
            other.other = None
            self._carrying.add(other)
            self._close(end)

    def _watch(self, end: _End) -> None:
        """Listen to an end for room while something is unsent, and to its other one only while there is room on the way."""
        events = (end.events & ~select.EPOLLOUT) | (select.EPOLLOUT if end.unsent else 0)
        self._listen(end, events)
        if end.other is not None:
            full = bool(end.unsent) or end.way.bytes >= WAY_BYTES_MAX
            self._listen(end.other, (end.other.events & ~select.EPOLLIN) | (0 if full else select.EPOLLIN))

    def _listen(self, end: _End, events: int) -> None:
        if end.events != events:
            end.events = events
            self._poll.modify(end.number, events)

    def _close(self, end: _End) -> None:
        if self._ends.pop(end.number, None) is None:
            return
        self._carrying.discard(end)
        self._poll.unregister(end.number)
        end.socket.close()
        if end.other is not None:
            end.other.ending = True
            end.other.other = None
            self._carrying.add(end.other)
