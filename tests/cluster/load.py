"""Clients of a cluster under faults, and the record of all that they sent and received.

Each SEND has a header `number`, unique within the run, so that each MESSAGE and each row of a journal shows its SEND. There are
200 topics and eight publishers of three kinds:

* five send values and deletes to 25 topics of their own each, and never repeat one;
* one does the same with a source, and repeats each SEND until it has a RECEIPT;
* two compete for 50 topics with `if-revision`.

Four durable subscribers acknowledge with and without RECEIPTs. Two readers take snapshots. All clients know all addresses.
"""

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import trio

from maxam.client import Client, ClientError, ConnectionLostError, Message, Posted, Receipt, connect
from tests.cluster.history import History, Operation, Outcome, Read, Row, Shown

OWN: Final = 6  # publishers with topics of their own
MARKED: Final = 5  # number of the one that has a source
COMPETING: Final = (6, 7)
PUBLISHERS: Final = 8
TOPICS_EACH: Final = 25
TOPICS_SHARED: Final = 50
BATCH: Final = 4  # SENDs of a publisher under way
DELETES: Final = 0.15  # share of SENDs
WRONG: Final = 0.1  # share of conditions that are wrong on purpose
PAUSE_S: Final = 0.02  # of a publisher between two batches
READ_PAUSE_S: Final = 0.3
RETRY_S: Final = 0.1
CONNECT_S: Final = 1.5
GIVE_UP_S: Final = (
    2.0  # a publisher without a RECEIPT connects again; heart-beats notice a frozen gateway after 20 s only
)
SUBSCRIPTION: Final = "durable"
SHARED: Final = [f"X/C.{number}" for number in range(TOPICS_SHARED)]


def own_topics(publisher: int) -> list[str]:
    """Return the topics of a publisher that has its own."""
    return [f"X/P{publisher}.{number}" for number in range(TOPICS_EACH)]


GLOBS: Final = {f"X/P{publisher}.*": own_topics(publisher) for publisher in range(OWN)} | {"X/C.*": SHARED}


@dataclass(slots=True)
class Reader:
    """A durable subscriber.

    Attributes:
        name: Its client-id.
        glob: Its topics.
        ack_every: Messages of an ACK.
        receipts: Share of its ACKs with a RECEIPT.
        seen: The newest revision of each topic that it was sent.
        promised: The newest revision of each topic whose ACK has a RECEIPT.
        made: The subscription exists.
        served_s: When it began or was resumed last.
    """

    name: str
    glob: str
    ack_every: int
    receipts: float
    seen: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    made: bool = False
    served_s: float = 0.0


@dataclass(slots=True)
class Awaited:
    """A RECEIPT that a fault is measured by.

    Attributes:
        after_s: The connection of its SEND was made after this moment.
        at_s: When the RECEIPT came; infinite before.
    """

    after_s: float
    at_s: float = math.inf


@dataclass(slots=True)
class Connection:
    """A connection of a publisher: when it was made, its client, and the newest revision and value of each shared topic."""

    made_s: float
    client: Client
    known: dict[str, tuple[int, int]] = field(default_factory=dict)


class Load:
    """The clients of a run.

    Attributes:
        history: Operations, messages and snapshots.
        problems: Promises that were broken, as seen by one client alone.
        accepted: Number of accepted SENDs by publisher.
        counts: Number of outcomes.
        gap_s: The longest time without a RECEIPT since `measure_gap`.
        late_s: The longest time since then for which this process itself stood still. The machine is too busy then.
        stopping: Publishers and readers end.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], certificates: Path, seed: int) -> None:
        """Describe the clients; none runs yet.

        Args:
            addresses: Host and port of all members.
            certificates: The development certificates.
            seed: Of all choices.
        """
        self.history = History()
        self.problems: list[str] = []
        self.accepted = [0] * PUBLISHERS
        self.counts = dict.fromkeys(Outcome, 0)
        self.messages = 0
        self.redelivered = 0
        self.gap_s = self.late_s = 0.0
        self._accepted_s = 0.0  # when the newest RECEIPT came
        self.stopping = False
        self.readers = [
            Reader("each", "X/*", 1, 0.2),
            Reader("fifth", "X/P*", 5, 1.0),
            Reader("shared", "X/C.*", 3, 0.5),
            Reader("ones", "X/*1", 2, 0.5),
        ]
        self._addresses: Final = list(addresses)
        self._certificates: Final = certificates
        self._random: Final = random.Random(seed)  # noqa: S311 - no secret
        self._number = 0
        self._awaited: list[Awaited] = []

    async def run(self, publishing: Callable[[], object]) -> None:
        """Run all clients until `stopping`. Then send each topic a last value, and wait until the subscribers have all of them.

        Args:
            publishing: Called when the publishers begin.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_loop)
            for reader in self.readers:
                nursery.start_soon(self._subscribe, reader)
            while not all(reader.made for reader in self.readers):  # noqa: ASYNC110  # of several tasks
                await trio.sleep(RETRY_S)
            publishing()
            async with trio.open_nursery() as sending:
                for publisher in range(PUBLISHERS):
                    sending.start_soon(self._publish, publisher)
                for glob in (*GLOBS, "X/*"):
                    if glob in {"X/C.*", "X/*"}:
                        sending.start_soon(self._read_snapshots, glob)
            last = await self._end_topics()
            while not self._complete(last):  # noqa: ASYNC110  # likewise
                await trio.sleep(RETRY_S)
            nursery.cancel_scope.cancel()

    def measure_gap(self) -> None:
        """Begin to measure the longest time without a RECEIPT."""
        self.gap_s, self.late_s, self._accepted_s = 0.0, 0.0, time.monotonic()

    async def receipt_after(self, after_s: float) -> float:
        """Wait for a RECEIPT on a connection that was made after a moment, and return the time between them."""
        awaited = Awaited(after_s)
        self._awaited.append(awaited)
        while awaited.at_s == math.inf:  # noqa: ASYNC110  # noticed by many tasks
            await trio.sleep(RETRY_S / 10)
        return awaited.at_s - after_s

    async def resumed_after(self, after_s: float) -> float:
        """Wait until each durable subscription is resumed on a connection after a moment; return the time to the last one."""
        while any(reader.served_s <= after_s for reader in self.readers):  # noqa: ASYNC110  # of several tasks
            await trio.sleep(RETRY_S)
        return max(reader.served_s for reader in self.readers) - after_s

    async def all_accepted(self) -> None:
        """Wait until each publisher has another SEND accepted."""
        before = list(self.accepted)
        while any(now == then for now, then in zip(self.accepted, before, strict=True)):  # noqa: ASYNC110  # likewise
            await trio.sleep(RETRY_S)

    def compare_owed(self, rows: Sequence[Row]) -> list[str]:
        """Return what durable subscribers were not sent, although it is the state at the end."""
        final = {row.topic: row for row in rows}
        found = []
        for reader in self.readers:
            for topic, row in final.items():
                seen = reader.seen.get(topic, 0)
                if fnmatchcase(topic, reader.glob) and seen != row.revision:
                    found.append(f"{reader.name} was sent {topic} up to {seen}, and its last change is {row}")
        return found

    async def _watch_loop(self) -> None:
        while True:
            began_s = time.monotonic()
            await trio.sleep(RETRY_S)
            self.late_s = max(self.late_s, time.monotonic() - began_s - RETRY_S)

    # connections

    @asynccontextmanager
    async def _connect(self, name: str, client_id: str, turn: int) -> AsyncIterator[Client]:
        host, port = self._addresses[turn % len(self._addresses)]
        async with connect(
            host,
            port,
            certificate=self._certificates / f"{name}.pem",
            key=self._certificates / f"{name}.key",
            ca=self._certificates / "ca.pem",
            client_id=client_id,
            timeout_s=CONNECT_S,
        ) as client:
            yield client

    # publishers

    async def _publish(self, publisher: int) -> None:
        turn = publisher
        again: list[Operation] = []  # of unknown outcome, in their order
        while not self.stopping or again:
            turn += 1
            try:
                async with self._connect("publisher", f"p{publisher}", turn) as client, trio.open_nursery() as nursery:
                    connection = Connection(time.monotonic(), client)
                    if publisher in COMPETING:
                        await nursery.start(self._learn, connection)
                    await self._send_batches(connection, publisher, again)
                    nursery.cancel_scope.cancel()
            except* ClientError:
                pass
            await trio.sleep(RETRY_S)

    async def _send_batches(self, connection: Connection, publisher: int, again: list[Operation]) -> None:
        while not self.stopping or again:
            batch = again[:] or self._batch(connection, publisher)
            again.clear()
            with trio.move_on_after(GIVE_UP_S):
                await self._send_batch(connection, publisher, batch)
            unknown = [one for one in batch if one.outcome is Outcome.UNKNOWN]
            self.counts[Outcome.UNKNOWN] += len(unknown)
            if publisher == MARKED:
                again.extend(unknown)
            if unknown:
                raise ConnectionLostError("the outcome of a batch is unknown")
            await trio.sleep(PAUSE_S)

    async def _send_batch(self, connection: Connection, publisher: int, batch: Sequence[Operation]) -> None:
        """Send a batch, and record its RECEIPTs until the connection is lost."""
        posted: list[tuple[Operation, Posted]] = []
        with suppress(ClientError):
            for operation in batch:
                posted.append((operation, await self._post(connection.client, operation)))  # noqa: PERF401  # a part of them is kept
        for operation, one in posted:
            with suppress(ClientError):
                self._answered(operation, await one.receipt(), publisher, connection)

    def _batch(self, connection: Connection, publisher: int) -> list[Operation]:
        shared = publisher in COMPETING
        topics = self._random.sample(SHARED if shared else own_topics(publisher), BATCH)
        batch = []
        for topic in topics:
            self._number += 1
            operation = Operation(self._number, topic, time.monotonic(), deleted=self._random.random() < DELETES)
            if shared:
                wrong = self._random.random() < WRONG
                operation.if_revision = self._number if wrong else connection.known.get(topic, (0, 0))[1]
            elif publisher == MARKED:
                operation.source = "source"
            self.history.operations[operation.number] = operation
            batch.append(operation)
        return batch

    async def _post(self, client: Client, operation: Operation) -> Posted:
        return await client.post(
            operation.topic,
            b"" if operation.deleted else body_of(operation.topic, operation.number),
            {"number": str(operation.number)},
            source=(operation.source, operation.number) if operation.source else None,
            if_revision=operation.if_revision if operation.if_revision >= 0 else None,
        )

    def _answered(self, operation: Operation, receipt: Receipt, publisher: int, connection: Connection) -> None:
        now_s = time.monotonic()
        operation.ended_s = now_s
        if receipt.result == Outcome.SUPERSEDED:
            operation.outcome = Outcome.SUPERSEDED
        elif receipt.accepted:
            operation.outcome = Outcome.ACCEPTED
            operation.revision = receipt.revision or 0
            if receipt.revision is not None:
                self._know(connection, operation.topic, receipt.revision, operation.deleted)
        else:
            operation.outcome = Outcome.CONFLICT if receipt.result == Outcome.CONFLICT else Outcome.REFUSED
        self.counts[operation.outcome] += 1
        if operation.outcome in {Outcome.ACCEPTED, Outcome.SUPERSEDED}:
            self.accepted[publisher] += 1
            self.gap_s = max(self.gap_s, now_s - self._accepted_s)
            self._accepted_s = now_s
            for awaited in self._awaited:
                if connection.made_s > awaited.after_s:
                    awaited.at_s = now_s
            self._awaited = [awaited for awaited in self._awaited if awaited.at_s == math.inf]

    async def _learn(self, connection: Connection, task_status: trio.TaskStatus[None]) -> None:
        """Follow the shared topics, so that conditions are mostly true."""
        started = False
        try:
            async with connection.client.subscribe("X/C.*", ack="auto", eager=True) as subscription:
                started = True
                task_status.started()
                async for message in subscription:
                    self._know(connection, message.destination, self._take(message), message.deleted)
        except ClientError:  # the publisher will find it gone
            if not started:
                task_status.started()

    def _know(self, connection: Connection, topic: str, revision: int, deleted: bool) -> None:
        if revision > connection.known.get(topic, (0, 0))[0]:
            connection.known[topic] = (revision, 0 if deleted else revision)

    # subscribers

    def _take(self, message: Message) -> int:
        """Record a MESSAGE, and return its revision."""
        now_s = time.monotonic()
        self.messages += 1
        revision, number = int(message.message_id), int(message.headers["number"])
        known = self.history.shown.setdefault(revision, Shown(number, now_s))
        if known.number != number:
            self.problems.append(f"revision {revision} was of {known.number}, and is of {number}")
        if message.body != (b"" if message.deleted else body_of(message.destination, number)):
            self.problems.append(f"revision {revision} has another body than {number}")
        return revision

    async def _subscribe(self, reader: Reader) -> None:
        turn = 0
        while True:
            turn += 1
            try:
                async with (
                    self._connect("subscriber", reader.name, turn) as client,
                    client.subscribe(reader.glob, id=SUBSCRIPTION, durable=True, automatic=False) as subscription,
                ):
                    if subscription.result != ("resumed" if reader.made else "created") and reader.made:
                        self.problems.append(f"{reader.name} was {subscription.result}")
                    reader.made, reader.served_s = True, time.monotonic()
                    unacked: dict[str, int] = {}
                    count = 0
                    async for message in subscription:
                        count += 1
                        self._take_owed(message, reader, unacked)
                        if count % reader.ack_every == 0:
                            receipt = self._random.random() < reader.receipts
                            await message.ack(receipt=receipt)
                            if receipt:
                                reader.promised.update(unacked)
                            unacked.clear()
            except ClientError:
                await trio.sleep(RETRY_S)

    def _take_owed(self, message: Message, reader: Reader, unacked: dict[str, int]) -> None:
        revision, topic = self._take(message), message.destination
        if revision <= reader.promised.get(topic, 0):
            self.problems.append(f"{reader.name} was sent {topic} {revision} again after the RECEIPT of its ACK")
        if revision < reader.seen.get(topic, 0):
            self.problems.append(f"{reader.name} was sent {topic} {revision} after {reader.seen[topic]}")
        self.redelivered += revision == reader.seen.get(topic)
        reader.seen[topic] = unacked[topic] = revision

    async def _end_topics(self) -> dict[str, int]:
        """Send each topic a last value until it is accepted; return their numbers."""
        turn = 0
        last: dict[str, int] = {}
        left = [topic for topics in GLOBS.values() for topic in topics]
        while left:
            turn += 1
            try:
                async with self._connect("publisher", "end", turn) as client:
                    while left:
                        self._number += 1
                        operation = Operation(self._number, left[-1], time.monotonic())
                        self.history.operations[operation.number] = operation
                        receipt = await (await self._post(client, operation)).receipt()
                        assert receipt.accepted, receipt
                        operation.outcome, operation.ended_s = Outcome.ACCEPTED, time.monotonic()
                        last[left.pop()] = operation.number
            except ClientError:
                await trio.sleep(RETRY_S)
        return last

    def _complete(self, last: dict[str, int]) -> bool:
        """Return True if each subscriber was sent the last value of each of its topics."""
        shown = {
            reader.name: {topic: self.history.shown[at].number for topic, at in reader.seen.items()}
            for reader in self.readers
        }
        return all(
            shown[reader.name].get(topic) == number
            for reader in self.readers
            for topic, number in last.items()
            if fnmatchcase(topic, reader.glob)
        )

    # snapshots

    async def _read_snapshots(self, glob: str) -> None:
        turn = len(glob)
        while not self.stopping:
            turn += 1
            try:
                async with self._connect("operator", f"reader {glob}", turn) as client:
                    while not self.stopping:
                        chosen = self._random.choice(list(GLOBS)) if glob == "X/*" else glob
                        await self._read_snapshot(client, chosen)
                        await trio.sleep(READ_PAUSE_S)
            except* ClientError:
                pass
            await trio.sleep(RETRY_S)

    async def _read_snapshot(self, client: Client, glob: str) -> None:
        shown: dict[str, int] = {}
        began_s = time.monotonic()
        async with (
            client.subscribe(glob, ack="auto", eager=True, markers=True) as subscription,
            trio.open_nursery() as nursery,
        ):

            async def take() -> None:
                async for message in subscription:
                    shown.setdefault(message.destination, self._take(message))

            nursery.start_soon(take)
            await subscription.complete()
            ended_s = time.monotonic()
            nursery.cancel_scope.cancel()
        self.history.reads.append(Read(began_s, ended_s, GLOBS[glob], shown))


def body_of(topic: str, number: int) -> bytes:
    """Return the body of a value."""
    return f"{topic} {number}".encode().ljust(30 + number * 7 % 200, b".")
