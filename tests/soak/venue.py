"""The parts of a soak: clients that come, go, fall silent, take over and return, for as long as one likes."""

import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from maxam.config import Limits
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame

GROUP_TOPICS = 100  # of one group; a subscription is to one group
_LIMITS = Limits()
_PUBLISHERS = 4
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, EOFError)


@dataclass(frozen=True)
class Scale:
    """How large the venue is, and how it moves.

    Attributes:
        connections: Subscribers that are connected, on average less those that are away for a moment.
        subscriptions_each: Of each subscriber.
        topics: With a value.
        sends_per_s: Of all publishers together; each is delivered to connections x subscriptions_each x 100 / topics subscribers.
        stay_s: How long a subscriber stays, on average.
        away_s: How long it is away then.
        durable: Subscribers with durable subscriptions.
        silent: Subscribers that read nothing until the gateway closes them.
        rivals: Subscribers that share a client-id with another one.
    """

    connections: int = 1000
    subscriptions_each: int = 10
    topics: int = 100_000
    sends_per_s: float = 150.0
    stay_s: float = 60.0
    away_s: float = 2.0
    durable: int = 60
    silent: int = 20
    rivals: int = 40

    @property
    def groups(self) -> int:
        """How many groups of topics there are."""
        return self.topics // GROUP_TOPICS


@dataclass(slots=True)
class Tally:
    """The events of a soak."""

    events: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Wire:
    """One TLS connection that speaks in frames."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._decoder = Decoder(_LIMITS, SERVER_COMMANDS, VERSION_1_2)
        self._turn = trio.Lock()

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        async with self._turn:
            await self._stream.send_all(data)

    async def frames(self) -> list[Frame]:
        """Wait for the next frames; EOFError at the end."""
        while True:
            data = await self._stream.receive_some(65_536)
            if not data:
                raise EOFError
            frames = list(self._decoder.feed(bytes(data)))
            if frames:
                return frames

    async def frame(self, command: bytes) -> Frame:
        """Wait for the next frame of a command, and forget those before it."""
        while True:
            for frame in await self.frames():
                if frame.command == command:
                    return frame
                if frame.command == b"ERROR":
                    raise EOFError


class Venue:
    """All clients of a soak."""

    def __init__(self, port: int, certificates: Path, scale: Scale, seed: int) -> None:
        self._port = port
        self._scale = scale
        self._rng = random.Random(seed)  # noqa: S311  # to be repeatable, as far as clocks let it
        self._contexts: dict[str, ssl.SSLContext] = {}
        for name in ("publisher", "subscriber"):
            context = ssl.create_default_context(cafile=certificates / "ca.pem")
            context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
            self._contexts[name] = context
        self._connecting = trio.CapacityLimiter(8)
        self.tally = Tally()
        self.connected = 0

    @asynccontextmanager
    async def wire(self, name: str, client_id: str | None = None, buffer_bytes: int = 0) -> AsyncIterator[Wire]:
        """Connect, and leave in one of the ways in which clients do: with a DISCONNECT, a close, or a reset."""
        with trio.socket.socket() as plain:
            async with self._connecting:
                if buffer_bytes:
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
                await plain.connect(("127.0.0.1", self._port))
                stream = trio.SSLStream(
                    trio.SocketStream(plain), self._contexts[name], server_hostname="localhost", https_compatible=True
                )
                wire = Wire(stream)
                await wire.write(encoder.connect("MAXVAPI", client_id=client_id))
                await wire.frame(b"CONNECTED")
            self.connected += 1
            try:
                yield wire
                how = self._rng.choice(("disconnect", "close", "reset"))
                self.tally.events[how] += 1
                if how == "disconnect":
                    await wire.write(encoder.disconnect(VERSION_1_2, b"bye"))
                elif how == "reset":
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            finally:
                self.connected -= 1
                with trio.CancelScope(shield=True), trio.move_on_after(0.5):
                    await stream.aclose()

    async def fill(self) -> None:
        """Give every topic a value."""
        async with self.wire("publisher") as wire:
            batch: list[bytes] = []
            for number in range(self._scale.topics):
                last = number % 1000 == 999 or number == self._scale.topics - 1
                batch.append(
                    encoder.send(
                        VERSION_1_2, self._topic(number), self._value(number), receipt_id=b"r" if last else None
                    )
                )
                if last:
                    await wire.write(b"".join(batch))
                    await wire.frame(b"RECEIPT")
                    batch = []

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run all clients until cancelled. Report when all subscribers were connected once."""
        scale = self._scale
        async with trio.open_nursery() as nursery:
            for _ in range(_PUBLISHERS):
                nursery.start_soon(self._publish)
            kinds: list[tuple[Callable[[int], object], int]] = [
                (self._stay_away_and_return, scale.durable),
                (self._fall_silent, scale.silent),
                (self._rival, scale.rivals),
            ]
            number = 0
            for play, count in kinds:
                for _ in range(count):
                    nursery.start_soon(self._again_and_again, play, number)
                    number += 1
            for _ in range(number, scale.connections):
                nursery.start_soon(self._again_and_again, self._come_and_go, number)
                number += 1
            while self.connected < 0.98 * (scale.connections - scale.rivals / 2 - scale.silent):  # noqa: ASYNC110  # a share of all, which go and come
                await trio.sleep(0.1)
            task_status.started()

    async def leave(self) -> None:
        """End the sessions that would outlive their connections, and restore deleted topics: as it was before."""
        for number in range(self._scale.durable):
            with suppress(*_GONE):
                async with self.wire("subscriber", f"durable-{number}") as wire:
                    for place in range(self._scale.subscriptions_each):
                        await wire.write(encoder.unsubscribe(VERSION_1_2, b"%d" % place, durable=True))
                    await wire.write(encoder.unsubscribe(VERSION_1_2, b"gone", durable=True, receipt_id=b"r"))
                    await wire.frame(b"RECEIPT")
        await self.fill()

    def _topic(self, number: int) -> bytes:
        return b"X/g%d.t%d" % (number // GROUP_TOPICS, number % GROUP_TOPICS)

    def _value(self, number: int) -> bytes:
        # of all sizes from the start: were they alike at first, memory would grow while others replace them
        return b"%d" % number * self._rng.randrange(1, 40)

    def _glob(self, client: int, place: int) -> bytes:
        return b"X/g%d.*" % ((client * self._scale.subscriptions_each + place) % self._scale.groups)

    async def _again_and_again(self, play: Callable[[int], object], number: int) -> None:
        while True:
            try:
                await play(number)  # type: ignore[misc]  # each is a coroutine function
            except* (*_GONE, OSError):
                self.tally.events["ended by the gateway"] += 1
            await trio.sleep(self._rng.expovariate(1 / self._scale.away_s))

    async def _publish(self) -> None:
        """Send values and deletes at a rate, and count what is not accepted."""
        async with self.wire("publisher") as wire, trio.open_nursery() as nursery:

            async def hear() -> None:
                while True:
                    for frame in await wire.frames():
                        if frame.headers.get(b"disposition") != b"accepted":
                            self.tally.faults.append(f"a SEND was answered {dict(frame.headers)}")
                        self.tally.events["accepted"] += 1

            nursery.start_soon(hear)
            sent = 0
            began_s = trio.current_time()
            while True:
                topic = self._topic(self._rng.randrange(self._scale.topics))
                body = b"" if self._rng.random() < 0.1 else self._value(sent)
                await wire.write(encoder.send(VERSION_1_2, topic, body, receipt_id=b"%d" % sent))
                sent += 1
                await trio.sleep_until(began_s + sent * _PUBLISHERS / self._scale.sends_per_s)

    async def _subscribe(self, wire: Wire, number: int, durable: bool, eager: bool) -> None:
        ack = b"client" if durable or number % 2 else b"auto"
        await wire.write(
            b"".join(
                encoder.subscribe(
                    VERSION_1_2, b"%d" % place, self._glob(number, place), ack, durable=durable, eager=eager
                )
                for place in range(self._scale.subscriptions_each)
            )
        )

    async def _read(self, wire: Wire, number: int, newest: dict[bytes, int], acks: bool) -> None:
        """Read and acknowledge until cancelled; a message older than one before it is a fault."""
        while True:
            answers: dict[bytes, bytes] = {}
            for frame in await wire.frames():
                if frame.command == b"ERROR":
                    self.tally.events[f"told: {frame.headers[b'message'].decode()}"] += 1
                    continue
                if frame.command != b"MESSAGE":
                    continue
                destination, revision = frame.headers[b"destination"], int(frame.headers[b"message-id"])
                self.tally.events["messages"] += 1
                if newest.get(destination, 0) > revision:
                    self.tally.faults.append(f"client {number}: {destination!r} {revision} after {newest[destination]}")
                newest[destination] = revision
                answers[frame.headers[b"subscription"] + b" " + destination] = encoder.ack(
                    VERSION_1_2, frame.headers[b"subscription"], frame.headers[b"message-id"]
                )
            if acks and answers:
                await wire.write(b"".join(answers.values()))

    async def _come_and_go(self, number: int) -> None:
        async with self.wire("subscriber") as wire:
            await self._subscribe(wire, number, durable=False, eager=self._rng.random() < 0.02)
            with trio.move_on_after(self._rng.expovariate(1 / self._scale.stay_s)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, wire, number, {}, number % 2 == 1)
                    while True:
                        await trio.sleep(self._rng.expovariate(1 / (self._scale.stay_s / 2)))
                        place = self._rng.randrange(self._scale.subscriptions_each)
                        again = encoder.subscribe(
                            VERSION_1_2, b"%d" % place, self._glob(number, place), b"client" if number % 2 else b"auto"
                        )
                        await wire.write(encoder.unsubscribe(VERSION_1_2, b"%d" % place) + again)
                        self.tally.events["unsubscribed and subscribed again"] += 1

    async def _stay_away_and_return(self, number: int) -> None:
        newest: dict[bytes, int] = {}
        for _ in range(3):
            async with self.wire("subscriber", f"durable-{number}") as wire:
                self.tally.events["durable sessions resumed"] += 1
                await self._subscribe(wire, number, durable=True, eager=False)
                with trio.move_on_after(self._rng.expovariate(2 / self._scale.stay_s)):
                    await self._read(wire, number, newest, acks=True)
            await trio.sleep(self._rng.expovariate(1 / (5 * self._scale.away_s)))

    async def _fall_silent(self, _number: int) -> None:
        async with self.wire("subscriber", buffer_bytes=4096) as wire:
            await wire.write(encoder.subscribe(VERSION_1_2, b"all", b"X/g1*", b"auto", eager=True))
            self.tally.events["fell silent"] += 1
            await trio.sleep(self._rng.uniform(5, 40))

    async def _rival(self, number: int) -> None:
        async with self.wire("subscriber", f"shared-{number // 2}") as wire:
            await self._subscribe(wire, number, durable=False, eager=False)
            with trio.move_on_after(self._rng.expovariate(2 / self._scale.stay_s)):
                await self._read(wire, number, {}, acks=number % 2 == 1)
