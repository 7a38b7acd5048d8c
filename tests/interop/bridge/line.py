"""A line between a bridge and a centre: it forwards bytes, and can be cut after a number of bytes, be slow, or be far."""

import contextlib
import random
import socket
import threading
import time
from collections import deque
from typing import Self

from tests.support.patience import PATIENCE_S

_PIECE = 4096


class Line:
    """Forwards connections to a port.

    Attributes:
        port: Where it listens.
        cuts: Connections that it has cut.
        bytes_sent: Bytes towards the gateway.
    """

    def __init__(
        self, port: int, cut_bytes: int = 0, seed: int = 0, bits_per_s: float = 0.0, round_trip_s: float = 0.0
    ) -> None:
        """Make one.

        Args:
            port: Of the gateway.
            cut_bytes: Each connection is cut after a random number of bytes, this many at most. 0 cuts none.
            seed: Of these numbers.
            bits_per_s: Rate of each direction. 0 for no limit.
            round_trip_s: Time to the gateway and back.
        """
        self._target = port
        self.cut_bytes = cut_bytes
        self.cuts = 0
        self.bytes_sent = 0
        self._random = random.Random(seed)  # noqa: S311  # to be repeatable
        self._rate = bits_per_s / 8
        self._way_s = round_trip_s / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        self.cut()
        self._thread.join(PATIENCE_S)

    def cut(self) -> None:
        """Cut all connections."""
        for one in list(self._open):
            _end(one)

    def _accept(self) -> None:
        while not self._closed:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            budget = [self._random.randrange(1, self.cut_bytes)] if self.cut_bytes else []
            self._open |= {near, far}
            for source, target in ((near, far), (far, near)):
                for one in (source, target):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pieces: deque[tuple[float, bytes]] = deque()
                some = threading.Semaphore(0)
                room = threading.Semaphore(1024)
                threading.Thread(
                    target=self._read, args=(source, pieces, some, room, budget, (near, far)), daemon=True
                ).start()
                threading.Thread(
                    target=self._write, args=(target, pieces, some, room, source is near), daemon=True
                ).start()

    def _read(
        self,
        source: socket.socket,
        pieces: deque[tuple[float, bytes]],
        some: threading.Semaphore,
        room: threading.Semaphore,
        budget: list[int],
        both: tuple[socket.socket, socket.socket],
    ) -> None:
        free_s = 0.0
        while True:
            room.acquire()
            try:
                data = source.recv(_PIECE)
            except OSError:
                data = b""
            if budget:
                budget[0] -= len(data)
                if budget[0] <= 0 and data:
                    data = data[: budget[0] + len(data)]
                    self.cuts += 1
                    for one in both:
                        _end(one)
            now_s = time.monotonic()
            if self._rate:
                free_s = max(free_s, now_s) + len(data) / self._rate
                if free_s > now_s + 0.2:  # the buffer of a router
                    time.sleep(free_s - now_s - 0.2)
            pieces.append((max(free_s, now_s) + self._way_s, data))
            some.release()
            if not data:
                return

    def _write(
        self,
        target: socket.socket,
        pieces: deque[tuple[float, bytes]],
        some: threading.Semaphore,
        room: threading.Semaphore,
        forth: bool,
    ) -> None:
        while True:
            some.acquire()
            due_s, data = pieces.popleft()
            room.release()
            wait_s = due_s - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            try:
                if not data:
                    _end(target)
                    self._open.discard(target)
                    return
                target.sendall(data)
                if forth:
                    self.bytes_sent += len(data)
            except OSError:
                return


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
