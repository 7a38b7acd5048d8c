"""Kill the real gateway under load at random moments, and hold what it comes back with against what it had promised.

`python -m tests.faults.kill_harness --kills 200`: 8 publishers over 200 topics and 4 durable subscribers, over mutual TLS. Each
SEND carries a number of its own per topic, so that every MESSAGE shows its SEND. The record here has what clients
know: SENDs sent and accepted, MESSAGEs seen, ACKs sent and receipted. After each restart, with nothing else going on:

* an eager snapshot has for each topic the last accepted SEND or a later one of unknown outcome;
* a value that a restart has proved to be lost or outdated never comes back;
* no revision ever stands for two SENDs, and those of new SENDs are above all that were ever seen;
* a durable subscription delivers each topic that changed after the newest ACK it was sent;
* it delivers no message whose ACK has its RECEIPT, and never an older message after a newer one.

Segments are small, and a snapshot is built now and then (and sometimes killed with the gateway). So kills meet rolls, and
starts meet snapshots. At the end fastavro reads the whole journal. Its revisions have no gap, and all accepted SENDs are in it in
their order. It has the same content with and without its snapshots.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import anyio
import fastavro
import trio

from maxam.avro.registry import load_registry
from maxam.broker.broker import Broker
from maxam.broker.policy import load_policy
from maxam.client.transport import Stream, dial
from maxam.config import Limits
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from maxam.journal.verify import verify
from maxam.records import Headers
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.faults.kill_fronts import disturb
from tests.support.gateway_folder import GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S

PUBLISHERS = 8
TOPICS_EACH = 25
OUTSTANDING_MAX = 32  # SENDs of a publisher without a RECEIPT
FRONTS_S = 2.0  # more time of a run with fronts, of which one is killed or stopped
LOAD_S = (0.05, 0.6)  # from the first SEND of a run to its end, or to its first ACK
DELETES = 0.15  # share of SENDs
END = b"X/end"  # the snapshot is complete when this comes: it is absent whenever one begins
STOP_WITHIN_S = 10.0  # of a graceful stop under load, R9
SUBSCRIPTION = b"durable"


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Entry:
    """One SEND. `run` is that of the gateway it was sent to. `lost` means that a restart showed another value of the topic."""

    number: int
    deleted: bool
    run: int
    accepted: bool = False
    lost: bool = False


@dataclass(slots=True)
class Reader:
    """A durable subscriber: what it was sent and what it acknowledged, newest revision per topic."""

    name: str
    glob: str
    sentinel: bytes
    ack_every: int
    receipts: float  # share of its ACKs
    seen: dict[bytes, int] = field(default_factory=dict)
    acked: dict[bytes, int] = field(default_factory=dict)
    acked_before: dict[bytes, int] = field(default_factory=dict)  # as `acked` was when it resumed
    promised: dict[bytes, int] = field(default_factory=dict)  # acknowledged, with the RECEIPT of that
    unacked: list[tuple[bytes, int]] = field(default_factory=list)
    waiting: deque[list[tuple[bytes, int]]] = field(default_factory=deque)  # ACKs whose RECEIPT has not come
    owed: dict[bytes, int] = field(default_factory=dict)  # what came since it resumed
    caught_up: trio.Event = field(default_factory=trio.Event)
    reading: trio.CancelScope = field(default_factory=trio.CancelScope)  # of its newest connection
    known: bool = False  # its session exists


READERS = (
    # Name, glob, sentinel, ack_every, share with receipt. The sentinels are sent in this order, and a reader is compared when it
    # has its own. So a client that is sent the sentinels of others comes after them.
    ("fifth", "X/K.[0-3]*", b"X/K.0.fifth", 5, 1.0),
    ("some", "X/K.*.1*", b"X/K.9.1some", 2, 0.5),
    ("bare", "X/K.[2-7]*", b"X/K.7.bare", 1, 0.2),
    ("each", "X/*", b"X/K.9.each", 1, 1.0),
)


@dataclass(slots=True)
class Totals:
    """The result of a harness."""

    kills: int = 0
    stops: int = 0
    in_flight: int = 0  # kills with SENDs unreceipted and ACKs unreceipted
    snapshots: int = 0
    accepted: int = 0
    unknown: int = 0
    messages: int = 0
    redelivered: int = 0
    ready_s: float = 0.0  # the longest start
    stop_s: float = 0.0  # the longest graceful stop
    fronts_killed: int = 0
    fronts_stopped: int = 0

    def __str__(self) -> str:
        share = 100 * self.in_flight / max(1, self.kills)
        fronts = f"; {self.fronts_killed} fronts killed, {self.fronts_stopped} stopped for a while"
        return (
            f"{self.kills} kills, {share:.0f} % with SENDs and ACKs unreceipted; {self.stops} graceful stops; "
            f"{self.snapshots} snapshots; {self.accepted} SENDs accepted, {self.unknown} of unknown outcome; "
            f"{self.messages} MESSAGEs, {self.redelivered} of them again; longest start {self.ready_s:.2f} s, longest graceful stop {self.stop_s:.2f} s"
            f"{fronts if self.fronts_killed + self.fronts_stopped else ''}"
        )


class Wire:
    """A connection in frames, which may end at any moment."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2)

    async def write(self, data: bytes) -> None:
        """Send; what a dead peer does not take is dropped."""
        try:
            await self._stream.send_all(data)
        except anyio.BrokenResourceError:
            await trio.lowlevel.checkpoint()

    async def frames(self) -> list[Frame]:
        """Return the next frames, one at least; none when the connection is over."""
        found: list[Frame] = []
        while not found:
            try:
                data = bytes(await self._stream.receive_some(65_536))
            except anyio.BrokenResourceError:
                return []
            if not data:
                return []
            self._decoder.receive_data(data)
            while (frame := self._decoder.next_frame()) is not None:
                found.append(frame)
        return found


class Harness:
    """One journal through any number of starts."""

    def __init__(self, files: GatewayFolder, seed: int, fronts: int = 0) -> None:
        self.files = files
        self._fronts = fronts
        self.journal = files.folder / "var" / "journal"
        self.totals = Totals()
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._entries: dict[bytes, list[Entry]] = {}
        self._revisions: dict[int, tuple[bytes, int]] = {}
        self._readers = [Reader(*row) for row in READERS]
        self._run = 0
        self._floor = 0  # SENDs of this run have revisions above it
        self._unreceipted = 0
        self._struck_s = 0.0
        self._struck_run = 0
        self._under_way = threading.Event()  # SENDs and ACKs of this run's load
        self._snapshot: subprocess.Popen[bytes] | None = None
        files.configure(journal="segment_bytes_max = 65536\nsnapshot_segments = 1000")  # snapshots are the harness's

    async def round(self, graceful: bool) -> None:
        """Start the gateway, compare it with its promises, put it under load and end it."""
        self._run += 1
        began_s = time.monotonic()
        with self.files.start() as gateway:
            self.totals.ready_s = max(self.totals.ready_s, time.monotonic() - began_s)
            with trio.fail_after(PATIENCE_S):
                async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                    await self._check(gateway, stack, nursery)
                    self._under_way.clear()
                    delay_s = self._random.uniform(*LOAD_S)
                    for number in range(PUBLISHERS):
                        wire = await self._connect(stack, gateway, "publisher")
                        nursery.start_soon(self._publish, wire, number)
                    if self._random.random() < 0.3:
                        self._build_snapshot()
                    if self._fronts:
                        nursery.start_soon(self._disturb, gateway, stack, nursery)
                        delay_s += self._random.uniform(0.0, FRONTS_S)
                    # from a thread, so that it strikes in the middle of whatever this one does
                    threading.Timer(delay_s, self._strike, (gateway, graceful)).start()
            code = gateway.process.wait()
            if graceful:
                seconds = time.monotonic() - self._struck_s
                self.totals.stop_s = max(self.totals.stop_s, seconds)
                if code != 0 or seconds > STOP_WITHIN_S:
                    raise BrokenPromiseError(f"a graceful stop ended with {code} after {seconds:.1f} s")
        self._end_snapshot()

    async def end(self) -> None:
        """Start once more, check, stop gracefully, and read the journal."""
        self._run += 1
        with self.files.start() as gateway:
            with trio.fail_after(PATIENCE_S):
                async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                    await self._check(gateway, stack, nursery)
                    gateway.process.send_signal(signal.SIGTERM)
            if gateway.process.wait() != 0:
                raise BrokenPromiseError("the last stop was not graceful")
        self._read_journal()

    async def _disturb(self, gateway: GatewayProcess, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        async def take_over(number: int) -> None:
            reader = self._readers[number]
            reader.reading.cancel()  # what comes to the older connection from now on is lost
            await self._resume(reader, gateway, stack, nursery)

        run = self._run
        if await disturb(gateway, self._fronts, self._random, take_over, lambda: self._struck_run == run):
            self.totals.fronts_killed += 1
        else:
            self.totals.fronts_stopped += 1

    # the end of a run

    def _strike(self, gateway: GatewayProcess, graceful: bool) -> None:
        self._under_way.wait(PATIENCE_S)  # on a busy machine nothing may have come of the load yet
        acks = sum(len(reader.waiting) for reader in self._readers)
        sends = self._unreceipted
        self._struck_s = time.monotonic()
        self._struck_run = self._run
        gateway.process.send_signal(signal.SIGTERM if graceful else signal.SIGKILL)
        if self._snapshot is not None and self._random.random() < 0.5:
            self._snapshot.kill()
        if graceful:
            self.totals.stops += 1
        else:
            self.totals.kills += 1
            self.totals.in_flight += sends > 0 and acks > 0

    def _build_snapshot(self) -> None:
        command = [sys.executable, "-m", "maxam.gateway.snapshot", str(self.journal)]
        self._snapshot = subprocess.Popen(command, stdout=subprocess.PIPE)

    def _end_snapshot(self) -> None:
        process, self._snapshot = self._snapshot, None
        if process is not None:
            told, _ = process.communicate()
            if process.returncode not in {0, -signal.SIGKILL}:
                raise BrokenPromiseError("a snapshot could not be built")
            self.totals.snapshots += told.endswith(b".avro\n")

    # load

    async def _connect(
        self, stack: AsyncExitStack, gateway: GatewayProcess, name: str, client_id: str | None = None
    ) -> Wire:
        certificates = self.files.folder / "certs"
        stream = await stack.enter_async_context(
            dial(
                "127.0.0.1",
                gateway.port,
                certificate=certificates / f"{name}.pem",
                key=certificates / f"{name}.key",
                ca=certificates / "ca.pem",
                check_name=None,
                timeout_s=PATIENCE_S,
            )
        )
        wire = Wire(stream)
        await wire.write(encoder.connect("MAXVAPI", client_id=client_id))
        frames = await wire.frames()
        if [frame.command for frame in frames] != [b"CONNECTED"]:
            raise BrokenPromiseError(f"no CONNECTED: {frames}")
        return wire

    def _send(self, topic: bytes, deleted: bool) -> tuple[Entry, bytes]:
        entries = self._entries.setdefault(topic, [])
        entry = Entry(len(entries) + 1, deleted, self._run)
        entries.append(entry)
        body = b"" if deleted else _body(topic, entry.number)
        headers = ((b"number", b"%d" % entry.number),)
        return entry, encoder.send(VERSION_1_2, topic, body, headers, b"%d" % entry.number)

    async def _publish(self, wire: Wire, number: int) -> None:
        topics = [b"X/K.%d.%d" % (number, n) for n in range(TOPICS_EACH)]
        outstanding: deque[Entry] = deque()
        while True:
            parts = []
            while len(outstanding) < OUTSTANDING_MAX:
                entry, part = self._send(self._random.choice(topics), self._random.random() < DELETES)
                outstanding.append(entry)
                parts.append(part)
                self._unreceipted += 1
            await wire.write(b"".join(parts))
            frames = await wire.frames()
            for frame in frames:
                if frame.command == b"ERROR":  # of a graceful stop
                    continue
                self._accept(outstanding.popleft(), frame)
                self._unreceipted -= 1
            if not frames:
                self._unreceipted -= len(outstanding)
                self.totals.unknown += len(outstanding)
                return

    def _accept(self, entry: Entry, frame: Frame) -> None:
        told = (frame.command, frame.headers.get(b"receipt-id"), frame.headers.get(b"disposition"))
        if told != (b"RECEIPT", b"%d" % entry.number, b"accepted"):
            raise BrokenPromiseError(f"SEND {entry} was answered {told}")
        entry.accepted = True
        self.totals.accepted += 1

    async def _resume(
        self, reader: Reader, gateway: GatewayProcess, stack: AsyncExitStack, nursery: trio.Nursery
    ) -> None:
        """Connect a reader, and have it read from now on."""
        wire = await self._connect(stack, gateway, "subscriber", reader.name)
        reader.unacked = []
        reader.waiting.clear()
        reader.reading = trio.CancelScope()
        await wire.write(
            encoder.subscribe(VERSION_1_2, SUBSCRIPTION, reader.glob.encode(), durable=True, receipt_id=b"resume")
        )
        nursery.start_soon(self._read, wire, reader)

    async def _read(self, wire: Wire, reader: Reader) -> None:
        with reader.reading:
            await self._read_on(wire, reader)

    async def _read_on(self, wire: Wire, reader: Reader) -> None:
        while frames := await wire.frames():
            parts = []
            for frame in frames:
                if frame.command == b"MESSAGE":
                    parts.append(self._read_message(frame, reader))
                elif frame.headers.get(b"receipt-id") == b"resume":
                    if frame.headers[b"result"] != (b"resumed" if reader.known else b"created"):
                        raise BrokenPromiseError(f"{reader.name} was {frame.headers[b'result']!r}")
                    reader.known = True
                elif frame.command == b"ERROR":  # of a takeover, or of a graceful stop
                    continue
                elif frame.command == b"RECEIPT":
                    for topic, revision in reader.waiting.popleft():
                        reader.promised[topic] = revision
                    if not reader.waiting and reader.sentinel in reader.owed:
                        reader.caught_up.set()
            await wire.write(b"".join(parts))

    def _read_message(self, frame: Frame, reader: Reader) -> bytes:
        """Take a MESSAGE and return its ACK, or nothing."""
        topic, revision, _ = self._examine(frame)
        self.totals.messages += 1
        if revision <= reader.promised.get(topic, 0):
            raise BrokenPromiseError(f"{reader.name} was sent {topic!r} {revision} again after the RECEIPT of its ACK")
        if revision < reader.seen.get(topic, 0):
            raise BrokenPromiseError(f"{reader.name} was sent {topic!r} {revision} after {reader.seen[topic]}")
        self.totals.redelivered += revision == reader.seen.get(topic)
        reader.seen[topic] = revision
        fresh = not reader.caught_up.is_set()
        if fresh:
            reader.owed[topic] = revision
        reader.unacked.append((topic, revision))
        last = fresh and topic == reader.sentinel
        if not last and len(reader.unacked) < reader.ack_every:
            return b""
        covered, reader.unacked = reader.unacked, []
        reader.acked.update(covered)
        if not last and self._random.random() >= reader.receipts:
            return encoder.ack(VERSION_1_2, SUBSCRIPTION, b"%d" % revision)
        reader.waiting.append(covered)
        if self._unreceipted:
            self._under_way.set()
        return encoder.ack(VERSION_1_2, SUBSCRIPTION, b"%d" % revision, b"ack")

    # what must hold

    def _examine(self, frame: Frame) -> tuple[bytes, int, Entry]:
        """Find the SEND that a MESSAGE is of: topic, revision, entry."""
        topic = frame.headers[b"destination"]
        revision = int(frame.headers[b"message-id"])
        number = int(frame.headers[b"number"])
        entry = self._entries[topic][number - 1]
        if frame.body != (b"" if entry.deleted else _body(topic, number)):
            raise BrokenPromiseError(f"{topic!r} {number} came with another body")
        if self._revisions.setdefault(revision, (topic, number)) != (topic, number):
            raise BrokenPromiseError(f"revision {revision} is {(topic, number)} and was {self._revisions[revision]}")
        if entry.run == self._run and revision <= self._floor:
            raise BrokenPromiseError(f"revision {revision} of a new SEND is not above {self._floor}")
        if entry.lost:
            raise BrokenPromiseError(f"{topic!r} {number} came back")
        entry.accepted = True
        return topic, revision, entry

    async def _check(self, gateway: GatewayProcess, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        """Resume all, compare snapshot and owed topics with the record; the readers go on reading after it."""
        self._floor = max(self._revisions, default=0)
        for reader in self._readers:
            reader.owed, reader.caught_up = {}, trio.Event()
            reader.acked_before = dict(reader.acked)
            await self._resume(reader, gateway, stack, nursery)
        operator = await self._connect(stack, gateway, "operator")
        await operator.write(
            encoder.subscribe(VERSION_1_2, b"all", b"X/**", b"auto", eager=True)
            + b"".join(self._send(topic, False)[1] for topic in (*(r.sentinel for r in self._readers), END))
        )
        values: dict[bytes, tuple[int, Entry]] = {}
        receipts = 0
        while END not in values or receipts < len(self._readers) + 1:
            frames = await operator.frames()
            if not frames:
                raise BrokenPromiseError(f"the gateway ended by itself: {gateway.log()[-2000:]}")
            for answer in frames:
                if answer.command == b"MESSAGE":
                    topic, revision, entry = self._examine(answer)
                    values[topic] = (revision, entry)
                else:
                    receipts += 1
        entry, frame = self._send(END, True)
        await operator.write(encoder.unsubscribe(VERSION_1_2, b"all") + frame)
        self._accept(entry, (await operator.frames())[0])
        for reader in self._readers:
            await reader.caught_up.wait()
        self._compare_values(values)
        for reader in self._readers:
            self._compare_owed(reader, values)
        for topic, entries in self._entries.items():
            for entry in entries:
                entry.lost = not entry.accepted and entry.run < self._run
            if topic not in values and entries[-1].run < self._run:  # its value is lost, or a delete was not
                for entry in entries:
                    entry.lost = entry.lost or not entry.deleted

    def _compare_values(self, values: dict[bytes, tuple[int, Entry]]) -> None:
        for topic, entries in self._entries.items():
            if topic == END:
                continue
            last = max((entry.number for entry in entries if entry.accepted), default=0)
            if topic in values:
                if values[topic][1].number < last:
                    raise BrokenPromiseError(f"{topic!r}: {last} was accepted and {values[topic][1].number} is there")
            elif last and not any(entry.deleted and not entry.lost for entry in entries[last - 1 :]):
                raise BrokenPromiseError(f"{topic!r}: {last} was accepted and nothing is there")

    def _compare_owed(self, reader: Reader, values: dict[bytes, tuple[int, Entry]]) -> None:
        for topic, entries in self._entries.items():
            if topic == END or not fnmatchcase(topic.decode(), reader.glob):
                continue
            acked = reader.acked_before.get(topic, 0)
            came = reader.owed.get(topic)
            if topic in values:
                revision = values[topic][0]
                if came is not None and came != revision:
                    raise BrokenPromiseError(f"{reader.name} was sent {topic!r} {came}, and the value has {revision}")
                missing = came is None and revision > acked
            else:
                number = self._revisions[acked][1] if acked else 0
                changed = any(entry.accepted and not entry.deleted for entry in entries[number:])
                missing = came is None and (changed or (number > 0 and not entries[number - 1].deleted))
            if missing:
                raise BrokenPromiseError(f"{reader.name} was not sent {topic!r}; its newest ACK was of {acked}")

    def _read_journal(self) -> None:
        """Read the whole journal with another reader, and compare the states that it and its snapshots stand for."""
        for report in verify(self.journal, OsDisk()):
            if report.problem is not None:
                raise BrokenPromiseError(f"{report.path}: {report.problem}")
        head = 0
        stored: dict[bytes, list[int]] = {topic: [] for topic in self._entries}
        for segment in sealed_segments(self.journal, OsDisk()):
            with Path(segment.path).open("rb") as file:
                for record in cast("Iterator[dict[str, Any]]", fastavro.reader(file)):
                    if record["kind"] not in {"value", "delete"}:
                        continue
                    head += 1
                    topic, number = record["destination"].encode(), int(record["headers"][0]["value"])
                    if record["revision"] != head or self._revisions.get(head, (topic, number)) != (topic, number):
                        raise BrokenPromiseError(f"revision {head} is {topic!r} {number} in the journal")
                    stored[topic].append(number)
        for topic, numbers in stored.items():
            accepted = {entry.number for entry in self._entries[topic] if entry.accepted}
            if sorted(set(numbers)) != numbers or not accepted.issubset(numbers):
                raise BrokenPromiseError(f"{topic!r}: the journal has {numbers}")
        if recovered_state(self.journal) != recovered_state(self.journal, snapshots=False):
            raise BrokenPromiseError("snapshot and segments tell different things")


def _body(topic: bytes, number: int) -> bytes:
    return topic + b" %d" % number + b"." * (number * 7 % 200)


@dataclass(frozen=True, slots=True)
class State:
    """The content of a journal: `values` by topic, and `owed` by session and subscription, in the order of delivery."""

    revision: int
    values: dict[bytes, tuple[int, bytes, Headers, int]]
    owed: dict[tuple[str, str, bytes, str], list[tuple[bytes, int, bool]]]


def recovered_state(journal: Path, *, snapshots: bool = True) -> State:
    """Recover a copy of a journal."""
    rights = '[capabilities.all]\nreceive = ["X/**"]\n'
    principals = "".join(
        f'[[principals]]\nname = "{name}"\nfingerprints = ["{digit * 64}"]\ncapabilities = ["all"]\n'
        for name, digit in (("subscriber", "a"), ("operator", "b"), ("publisher", "c"))
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "journal"
        shutil.copytree(journal, copy)
        if not snapshots:
            shutil.rmtree(copy / "snapshots")
        limits = Limits()
        broker = Broker(
            limits, load_policy((rights + principals).encode(), "policy", limits), load_registry({"registry.toml": b""})
        )
        stored = Journal.open(copy, OsDisk(), JournalSettings(durable=False), bytes(16))
        for record in stored.recover():
            broker.replay(record)
        broker.recovered(0.0, stored.head)
        stored.close()
    return State(
        broker.committed_revision,
        {
            topic.destination: (change.revision, change.body, change.headers, change.accepted_at_us)
            for topic in broker.store.topics.values()
            if not (change := topic.change).deleted
        },
        {
            (*session.key, subscription.id, subscription.glob.text): [
                (topic.destination, topic.change.revision, topic.change.deleted) for topic in subscription.queue
            ]
            for session in broker.sessions.values()
            for subscription in session.subscriptions.values()
        },
    )


def run(folder: Path, seed: int, kills: int, stops: int = 1, fronts: int = 0) -> Totals:
    """Do N kills with graceful stops among them. Raises BrokenPromiseError at the first broken promise."""
    harness = Harness(GatewayFolder(folder, fronts), seed, fronts)

    async def main() -> None:
        for number in range(kills + stops):
            await harness.round(graceful=number < stops)
        await harness.end()

    trio.run(main)
    return harness.totals


def main() -> int:
    """Run from the command line; keeps the folder when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kill_harness")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--fronts", type=int, default=0, help="have N fronts serve, and kill or stop one in each round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="maxam-kill-"))
    sys.stdout.write(f"seed {options.seed}, {folder}\n")
    totals = run(folder, options.seed, options.kills, max(1, options.kills // 10), options.fronts)
    shutil.rmtree(folder)
    sys.stdout.write(f"{totals}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
