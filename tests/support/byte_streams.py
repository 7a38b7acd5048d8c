"""Byte streams in memory, for both event loops."""

from dataclasses import dataclass, field
from typing import final

import anyio
import anyio.lowlevel


@final
@dataclass
class _Pipe:
    """One direction."""

    unread: bytearray = field(default_factory=bytearray)
    closed: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def close(self) -> None:
        self.closed = True
        self.notify()


@final
class MemoryStream:
    """One end of a connection in memory: a `Stream` of the client, and the peer's as well."""

    def __init__(self, sending: _Pipe, receiving: _Pipe, lockstep: bool) -> None:
        self._sending = sending
        self._receiving = receiving
        self._lockstep = lockstep

    async def send_all(self, data: bytes) -> None:
        """Write all of `data`. Raise BrokenResourceError if either end is closed."""
        pipe = self._sending
        await anyio.lowlevel.checkpoint()
        self.put(data)
        while self._lockstep and pipe.unread and not pipe.closed:
            await pipe.changed.wait()
        if pipe.closed:
            raise anyio.BrokenResourceError

    def put(self, data: bytes) -> None:
        """Write all of `data` at once. Drop it if either end is closed."""
        if not self._sending.closed:
            self._sending.unread += data
            self._sending.notify()

    async def receive_some(self, bytes_max: int = 65_536) -> bytes:
        """Return up to `bytes_max` bytes of those that have arrived, or none at the end of the stream."""
        pipe = self._receiving
        await anyio.lowlevel.checkpoint()
        while not pipe.unread and not pipe.closed:
            await pipe.changed.wait()
        data = bytes(pipe.unread[:bytes_max])
        del pipe.unread[:bytes_max]
        pipe.notify()
        return data

    async def aclose(self) -> None:
        """Close both directions: the other end reads to the end of what was sent."""
        self.cut()
        await anyio.lowlevel.checkpoint()

    def cut(self) -> None:
        """Close both directions at once."""
        self._sending.close()
        self._receiving.close()


def stream_pair(*, lockstep: bool = False) -> tuple[MemoryStream, MemoryStream]:
    """Return two connected ends. With `lockstep` a write waits until all of it is read."""
    left, right = _Pipe(), _Pipe()
    return MemoryStream(left, right, lockstep), MemoryStream(right, left, lockstep)
