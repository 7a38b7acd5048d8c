"""A broker without I/O that clients of `maxam.client` reach over in-memory streams, which a test may cut at any byte."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from maxam.client import Client
from maxam.client.connection import converse
from maxam.client.link import background
from maxam.gateway.server_connection import ServerConnection
from tests.support.byte_streams import MemoryStream, stream_pair
from tests.support.sans_io import World, fingerprint_of, policy

EVER = 2**62
INCARNATION = "0123456789abcdef"


class ServedWorld:
    """Serves one world at a time; its clock is that of the event loop.

    Attributes:
        world: The broker and its journal. A test may replace it, as a restart does.
        sent_bytes: Bytes that went to clients.
        takeovers: Connections that lost their session to another one. A test takes off those whose program has ended.
    """

    def __init__(self, **given: Any) -> None:
        self.world = World.make(**given)
        self.world.broker.incarnation = INCARNATION
        self.sent_bytes = 0
        self.takeovers = 0
        self._sessions = 0
        self._serving: dict[anyio.CancelScope, ServerConnection] = {}

    @property
    def values(self) -> dict[str, bytes]:
        """The values that the broker has."""
        topics = self.world.broker.store.topics.values()
        return {
            topic.name: bytes(topic.change.content[topic.change.body_at :])
            for topic in topics
            if not topic.change.deleted
        }

    def do(self, step: tuple[Any, ...]) -> float:
        """Do a step of a history. Return the time to wait after it."""
        match step:
            case ("send", sends):
                for topic, body in sends:
                    self.send(topic, body)
            case ("cut",):
                self.cut()
            case ("forget",):
                self.forget()
            case ("restart", incarnation):
                self.restart(incarnation)
            case ("takeover",):
                self.take_over()
                return 1.0  # a program that is started again has its first connection then
            case ("rights", rights):
                self.grant(rights)
            case ("wait", seconds):
                return float(seconds)
            case _:
                raise AssertionError(step)
        return 0.0

    def send(self, destination: str, body: bytes) -> None:
        """Have a value or a delete accepted, committed and delivered. Its header `h` has the body as text."""
        self._tick()
        publisher = self.world.client(client_id="publisher")
        publisher.send(destination, body, h=body.decode())
        self.world.settle()
        publisher.lose()

    def restart(self, incarnation: str | None = None) -> None:
        """Replace the broker by one that has read back the journal. All connections break."""
        self.cut()
        before = self.world.broker.incarnation
        self.world = self.world.restart()
        self.world.broker.incarnation = incarnation or before

    def forget(self) -> None:
        """Forget all deletes that no subscription is owed, as short memory does."""
        broker = self.world.broker
        broker.store.release_soon()
        broker.tick(self._tick())
        while broker.store.sweeping:
            broker.tick(self._tick())
        self.world.settle()

    def cut(self) -> None:
        """Break all connections."""
        for scope in self._serving:
            scope.cancel()

    def take_over(self) -> None:
        """Have another connection of `anna` take the session `me`, and leave."""
        self._tick()
        served = [one for scope, one in self._serving.items() if not scope.cancel_called]
        self.takeovers += sum(one.client_id == "me" and not one.finished for one in served)
        self.world.client(client_id="me").lose()
        self.world.settle()

    def grant(self, rights: dict[str, list[str]]) -> None:
        """Give `anna` other rights, while connections may be open."""
        self._tick()
        self.world.broker.replace_policy(policy(anna=rights), self.world.wall_us)
        self.world.settle()

    @asynccontextmanager
    async def connected(self, client_id: str | None = None, bytes_max: int = EVER) -> AsyncIterator[Client]:
        """Connect as `anna`. The connection breaks once the broker has sent `bytes_max` bytes."""
        ours, theirs = stream_pair()
        async with background() as tasks:
            tasks.start_soon(self.serve, theirs, bytes_max)
            async with converse(ours, client_id=client_id, heart_beat_ms=(0, 0)) as client:
                yield client

    async def serve(self, stream: MemoryStream, bytes_max: int = EVER) -> None:
        """Serve a connection of `anna` to its end. It breaks once the broker has sent `bytes_max` bytes."""
        world, woken = self.world, anyio.Event()

        def wake() -> None:
            woken.set()

        self._sessions += 1
        name = f"made-{self._sessions}"
        connection = ServerConnection(world.broker, world.settings, fingerprint_of("anna"), name, wake, self._tick())

        async def read() -> None:
            while data := await stream.receive_some():
                connection.receive_data(data, self._tick(), world.wall_us)
                world.settle()
                woken.set()
            connection.receive_eof(self._tick())
            woken.set()

        async with anyio.create_task_group() as tasks:
            self._serving[tasks.cancel_scope] = connection
            tasks.start_soon(read)
            try:
                while bytes_max > 0 and not connection.finished:
                    data = b"".join(connection.data_to_send(self._tick()))[:bytes_max]
                    if data:
                        bytes_max -= len(data)
                        self.sent_bytes += len(data)
                        await stream.send_all(data)
                        continue
                    due_s = connection.next_due_s
                    with anyio.move_on_after(math.inf if due_s is None else max(due_s - world.now_s, 0)):
                        await woken.wait()
                    woken = anyio.Event()
                    connection.tick(self._tick())
            except anyio.BrokenResourceError:
                pass
            finally:
                del self._serving[tasks.cancel_scope]
                connection.closed(self._tick(), "over")
                if world is self.world:
                    world.settle()
                tasks.cancel_scope.cancel()
                stream.cut()

    def _tick(self) -> float:
        self.world.now_s = 1000 + anyio.current_time()
        self.world.wall_us = 1_700_000_000_000_000 + int(anyio.current_time() * 1_000_000)
        return self.world.now_s
