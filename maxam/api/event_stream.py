"""The response of server-sent events: it lasts as long as its reader stays and its source has something to write."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from maxam.api.http1 import CARRIER

MEDIA_TYPE: Final = "text/event-stream"
Run = Callable[[Callable[[bytes], Awaitable[None]], Callable[[], Awaitable[None]]], Awaitable[None]]


@final
class EventStream(Response):
    """A response that lasts: it ends when its source does, the reader has gone, or the listener stops."""

    def __init__(self, run: Run) -> None:
        """Make it. `run` writes the events: its arguments write bytes, and wait until nearly all of them have left."""
        super().__init__(headers={"content-type": MEDIA_TYPE, "cache-control": "no-store"})
        del self.headers["content-length"]
        self._run: Final = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        carrier = scope.get("state", {}).get(CARRIER)

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            if carrier is not None:
                nursery.start_soon(_until_stop, carrier.stopping, nursery.cancel_scope)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._run(write, trio.lowlevel.checkpoint if carrier is None else carrier.taken)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Callable[[], Awaitable[Any]], scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _until_stop(stopping: trio.Event, scope: trio.CancelScope) -> None:
    await stopping.wait()
    scope.cancel()
