"""A peer that a test scripts, for the client over in-memory streams with a clock that jumps."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio

from maxam.client import Client, UnreachableError
from maxam.client.connection import converse
from maxam.client.resume import ResumingClient, resume
from maxam.config import Limits
from maxam.content import pack
from maxam.errors import ProtocolError
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import CLIENT_COMMANDS, Decoder, Frame
from tests.support.byte_streams import MemoryStream, stream_pair

Script = Callable[["ServerConnection"], Awaitable[None]]


class ServerConnection:
    """The gateway's end: reads frames, and sends the answers of the test."""

    def __init__(self, stream: MemoryStream, version: int = VERSION_1_2) -> None:
        self.stream = stream
        self.version = version
        self.decoder = Decoder(Limits(), CLIENT_COMMANDS)
        self.received_bytes = 0

    async def frame(self) -> Frame:
        """Return the next frame of the client."""
        while (frame := self.decoder.next_frame()) is None:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError
            self.received_bytes += len(data)
            self.decoder.receive_data(bytes(data))
        return frame

    async def expect(self, command: bytes) -> Frame:
        """Return the next frame, which must be a `command`."""
        frame = await self.frame()
        assert frame.command == command, frame.headers
        return frame

    async def accept(
        self, session: str = "s-1", heart_beat_ms: tuple[int, int] = (10000, 10000), incarnation: str = ""
    ) -> Frame:
        """Answer CONNECT with CONNECTED."""
        frame = await self.expect(b"CONNECT")
        connected = encoder.connected(self.version, session, heart_beat_ms, "peer/1", incarnation or None)
        await self.stream.send_all(connected)
        self.decoder.expect(CLIENT_COMMANDS, self.version)
        return frame

    async def receipt(self, frame: Frame, *headers: tuple[bytes, bytes]) -> None:
        """Answer a frame with its RECEIPT."""
        await self.stream.send_all(encoder.receipt(self.version, frame.headers[b"receipt"], headers))

    async def message(
        self, revision: int, body: bytes = b"v", subscription: bytes = b"sub", acknowledged: bool = True
    ) -> None:
        """Send a MESSAGE."""
        prefix = encoder.message_prefix(self.version, subscription, acknowledged)
        shared = encoder.message_shared(self.version, acknowledged, b"X/a", revision, *pack(((b"n", b"1:2"),), body))
        await self.stream.send_all(prefix + shared)

    async def error(self, message: str, receipt: bytes | None = None, *headers: tuple[bytes, bytes]) -> None:
        """Send ERROR and close."""
        await self.stream.send_all(encoder.error(self.version, ProtocolError(message, "detail", receipt, headers)))
        await self.stream.aclose()

    async def leave(self) -> None:
        """Answer DISCONNECT and close."""
        await self.receipt(await self.expect(b"DISCONNECT"))
        await self.stream.aclose()


@asynccontextmanager
async def talking(script: Script, spoken: int = VERSION_1_2, **options: Any) -> AsyncIterator[Client]:
    """Connect a client to a peer that follows `script`, which must come to its end."""
    ours, theirs = stream_pair()
    peer = ServerConnection(theirs, spoken)
    done = anyio.Event()

    async def play() -> None:
        await script(peer)
        done.set()

    problem: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play)
        try:
            async with converse(ours, **options) as client:
                yield client
            await done.wait()
        except BaseException as error:  # noqa: BLE001 - raised again outside of the tasks, unwrapped
            problem = error
        tasks.cancel_scope.cancel()
    if problem is not None:
        raise problem


class Gateway:
    """Dials for a resuming client: the n-th connection follows the n-th script, later ones are refused."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.sessions: list[str | None] = []
        self.losses: list[tuple[str, float]] = []

    def dial(self, session: str | None) -> AbstractAsyncContextManager[Client]:
        """Make the next connection."""
        self.sessions.append(session)
        return self._dial(session)

    @asynccontextmanager
    async def _dial(self, session: str | None) -> AsyncIterator[Client]:
        if not self.scripts:
            raise UnreachableError("nobody there")
        async with talking(self.scripts.pop(0), client_id=session) as client:
            yield client

    def resuming(
        self, search: Callable[[], Awaitable[str]] | None = None
    ) -> AbstractAsyncContextManager[ResumingClient]:
        """Return a resuming client of this gateway, which finds others by `search`."""
        return resume(self.dial, None, lambda reason, wait_s: self.losses.append((str(reason), wait_s)), search)
