"""A line between two gateways, which can be cut: it forwards bytes between a port of this machine and another."""

from typing import Final, final

import trio

_PIECE_BYTES: Final = 16_384


@final
class Line:
    """A line to a port.

    Attributes:
        port: Where it listens. Known once `run` has started.
        cut: Whether it is cut. Set by `change`.
    """

    def __init__(self, target: int) -> None:
        """Make one to a port of this machine."""
        self._target: Final = target
        self._connections: Final[set[trio.CancelScope]] = set()
        self.port = 0
        self.cut = False

    def change(self, cut: bool) -> None:
        """Cut it: all its connections end, and new ones end at once. Or repair it."""
        self.cut = cut
        if cut:
            for scope in list(self._connections):
                scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Forward until cancelled."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, self._connect, listeners)
            task_status.started()

    async def _connect(self, near: trio.SocketStream) -> None:
        if self.cut:
            return
        try:
            far = await trio.open_tcp_stream("127.0.0.1", self._target)
        except OSError:
            return  # the gateway does not listen now: the client sees a connection that ends
        async with far:
            with trio.CancelScope() as scope:
                self._connections.add(scope)
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_forward, near, far, scope)
                        nursery.start_soon(_forward, far, near, scope)
                finally:
                    self._connections.discard(scope)


async def _forward(source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Forward until either side ends; then end the connection."""
    try:
        async for data in source:
            await target.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()
