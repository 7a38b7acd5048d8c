"""A TCP relay on loopback that forwards requests and loses answers, for the log of a cluster."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, Self

_PIECE_BYTES: Final = 65_536


class CuttingRelay:
    """Forwards connections to a port. A context manager: leaving cuts all of them.

    Attributes:
        port: Where it listens.
        cuts: Connections that it has cut.
    """

    def __init__(self, target: int) -> None:
        """Listen; nothing is forwarded yet.

        Args:
            target: Port on 127.0.0.1 that it forwards to.
        """
        self._target: Final = target
        self._listening: Final = socket.create_server(("127.0.0.1", 0))
        self.port: Final[int] = self._listening.getsockname()[1]
        self.cuts = 0
        self._lock: Final = threading.Lock()
        self._room = -1  # bytes that still go to the target before the cut, -1 without one
        self._mute = False
        self._sockets: Final[set[socket.socket]] = set()
        self._threads: Final[list[threading.Thread]] = []

    def cut_after(self, count: int) -> None:
        """Cut the connection over which this many further bytes have gone to the target, and which sends the last of them."""
        with self._lock:
            self._room = count

    def mute(self) -> None:
        """Withhold all answers from now on. Requests are forwarded."""
        self._mute = True

    def unmute(self) -> None:
        """Cut all connections, and forward the answers of new ones."""
        self._mute = False
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            self._room = -1
            self.cuts += 1
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.update((near, far))
            self._start(lambda near=near, far=far: self._forward(near, far))  # type: ignore[misc]  # bound by its defaults

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        """Forward requests; a second thread forwards answers. Close both when either side ends."""
        answers = threading.Thread(target=self._answers, args=(near, far))
        answers.start()
        with contextlib.suppress(OSError):
            while data := near.recv(_PIECE_BYTES):
                far.sendall(data)
                if self._used_up(len(data)):
                    break
        for one in (near, far):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        answers.join()
        with self._lock:
            self._sockets.difference_update((near, far))
        near.close()
        far.close()

    def _answers(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(_PIECE_BYTES):
                if not self._mute:
                    near.sendall(data)
        with contextlib.suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)

    def _used_up(self, count: int) -> bool:
        """Return True once, when the bytes before the cut are used up."""
        with self._lock:
            if self._room < 0:
                return False
            self._room -= count
            if self._room > 0:
                return False
            self._room = -1
            self.cuts += 1
            return True
