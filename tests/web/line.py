"""A line with a round trip and a rate, between a browser and a server on this machine. It counts the round trips."""

import queue
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_PIECE_BYTES: Final = 16_384
_REQUEST: Final = re.compile(rb"(?:GET|POST) (\S+) HTTP/1\.1\r\n")


class Line:
    """Forwards connections with a delay and a rate in each direction, and knows the round trips that led to each request.

    Something sent is one round trip later than the latest answer that the other end had then. So the count does not depend on the
    time, as long as programs need less than a round trip to react.

    Attributes:
        asked: The requests of HTTP in their order, each a path with its number of round trips up to the answer.
        connections: Connections that sent something.
        loads: Calls of `reset`.
    """

    def __init__(self, port: int, round_trip_s: float, bytes_per_s: float = float("inf")) -> None:
        self.asked: Final[list[tuple[str, int]]] = []
        self.connections = 0
        self._port: Final = port
        self._round_trip_s: Final = round_trip_s
        self._bytes_per_s: Final = bytes_per_s
        self._arrived = 0  # round trips up to the latest answer that the browser has
        self.loads = 0

    def reset(self) -> None:
        """Count from here on. Bytes that still come over the connections so far do not count."""
        self.loads += 1
        self.asked.clear()
        self.connections = 0
        self._arrived = 0

    def serve(self, listening: socket.socket) -> None:
        """Accept connections until the socket is shut down, and end those that are left."""
        opened = []
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                opened.append(_Connection(self, near, socket.create_connection(("127.0.0.1", self._port))))
        for connection in opened:
            connection.end()

    def delays(self, towards_server: bool) -> tuple[float, float]:
        """Return the seconds until the first byte leaves, a handshake of TCP, and those on the way."""
        return (self._round_trip_s if towards_server else 0.0), self._round_trip_s / 2

    def transfer_s(self, size: int) -> float:
        """Return the seconds that some bytes occupy the line."""
        return size / self._bytes_per_s

    @property
    def arrived(self) -> int:
        """Round trips up to the latest answer that has arrived."""
        return self._arrived

    def deliver(self, trips: int) -> None:
        """Record that an answer arrives."""
        self._arrived = max(self._arrived, trips)


class _Connection:
    """One forwarded connection."""

    def __init__(self, line: Line, near: socket.socket, far: socket.socket) -> None:
        self._line: Final = line
        self._trips = line.arrived + 1  # of the newest request; the handshake of TCP is one
        self._reached = 0  # of the newest request that the server has
        self._load = line.loads
        self._opened_s: Final = time.monotonic()
        self._used = False
        self._sockets: Final = (near, far)
        self._threads: Final[list[threading.Thread]] = []
        for source, target in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pieces: queue.SimpleQueue[tuple[float, bytes, int]] = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._read, args=(source, pieces, source is near)))
            self._threads.append(threading.Thread(target=self._write, args=(target, pieces, target is near)))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Close both sides."""
        for side in self._sockets:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for side in self._sockets:
            side.close()

    def _read(
        self, source: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes, int]], towards_server: bool
    ) -> None:
        first_s, way_s = self._line.delays(towards_server)
        data = b"-"
        while data:
            try:
                data = source.recv(_PIECE_BYTES)
            except OSError:
                data = b""
            trips = self._count(data) if towards_server else self._reached
            leaves_s = max(time.monotonic(), self._opened_s + first_s)
            pieces.put((leaves_s + way_s, data, trips))

    def _count(self, data: bytes) -> int:
        """Return the round trips up to the answer to something that the browser sends."""
        line = self._line
        if not self._used:
            line.connections += 1
            self._used = True
            self._trips = max(self._trips, line.arrived) + 1
        else:
            self._trips = max(self._trips, line.arrived + 1)
        for path in _REQUEST.findall(data):
            line.asked.append((path.decode(), self._trips))
        return self._trips

    def _write(
        self, target: socket.socket, pieces: queue.SimpleQueue[tuple[float, bytes, int]], towards_browser: bool
    ) -> None:
        free_s = 0.0
        with suppress(OSError):
            while True:
                due_s, data, trips = pieces.get()
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    break
                free_s = max(free_s, due_s) + self._line.transfer_s(len(data))
                time.sleep(max(0.0, free_s - time.monotonic()))
                if towards_browser and self._load == self._line.loads:
                    self._line.deliver(trips)
                elif not towards_browser:
                    self._reached = trips
                target.sendall(data)


@contextmanager
def slow_line(line: Line) -> Iterator[int]:
    """Serve a line for the length of a block; yield the port to connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=line.serve, args=(listening,))
        serving.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()
