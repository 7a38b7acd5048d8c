"""Let the disk of a real gateway fail at call N, for every N, and compare the answers to clients with the values afterwards.

`python -m tests.faults.fault_sweep --calls 2000` (`make fault-sweep N=2000`). One publisher waits for each RECEIPT. One durable
subscriber acknowledges each MESSAGE and waits for that RECEIPT. SENDs without right go on between them, for the journal of rejected
ones. Each SEND has a number, so that each value shows its SEND. A gateway survives a full disk, short writes and slow writes. These
faults are repeated while it runs, so that every N is met in a few runs. Faults that end the gateway take a start each.

After every start:

* each topic has the last accepted SEND or a later one of unknown outcome, and a rejected one never shows;
* the subscriber gets all that it is owed, and nothing whose ACK has its RECEIPT.

At once:

* no RECEIPT `accepted` comes after a failed write or sync;
* the process ends with 74 within a second (on a machine that does nothing else);
* on a full disk SENDs are `rejected-unavailable` with `disk-full`, and they are accepted as soon as it has room again.
"""

import argparse
import errno
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import Frame
from tests.faults.injection import ALL_CALLS, Calls, Effect, Forks, build, monotonic_s
from tests.faults.kill_harness import BrokenPromiseError
from tests.support.gateway_folder import BlockingClient, GatewayFolder
from tests.support.patience import PATIENCE_S

TOPICS = [b"X/F.%d" % n for n in range(6)]
END = b"X/end"
DELETES = 0.15
REJECTED = "rejected"  # what fails there stops nothing else
MORE_STEPS = 5  # that nothing survives which must end
EXIT_WITHIN_S = 1.0
SNAPSHOT_STARTS = 25  # starts between two snapshots: the journal stays short, and starts quick


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. A `fatal` one ends the gateway. With `starts` a gateway that meets it while it starts may refuse to start."""

    name: str
    effect: Effect
    calls: Calls
    error: int = 0
    delay_us: int = 0
    length_max: int = 1
    fatal: bool = False
    counted: Calls | None = None  # if others than `calls`
    part: str = ""  # of the journal's folder


FAULTS = (
    Fault("full", Effect.FAIL, ALL_CALLS & ~Calls.SYNC, errno.ENOSPC, length_max=3),
    Fault("no-files", Effect.FAIL, Calls.MAKE, errno.EMFILE, counted=ALL_CALLS),  # the first at or behind N
    Fault("short", Effect.HALVE, Calls.WRITE, length_max=3),
    Fault("slow", Effect.DELAY, Calls.WRITE | Calls.SYNC, delay_us=20_000),
    Fault("rejects", Effect.FAIL, ALL_CALLS, errno.EIO, length_max=3, part=REJECTED),
    Fault("write-error", Effect.FAIL, Calls.WRITE, errno.EIO, fatal=True),
    Fault("sync-error", Effect.FAIL, Calls.SYNC, errno.EIO, fatal=True),
    Fault("sync-full", Effect.FAIL, Calls.SYNC, errno.ENOSPC, fatal=True),
)


class DiedError(Exception):
    """The gateway is gone."""


@dataclass(slots=True)
class Topic:
    """Knowledge of clients of a topic, in numbers of SENDs. 0 is no value."""

    accepted: int = 0  # by a RECEIPT, or found there after a restart
    unknown: set[int] = field(default_factory=set)  # sent since, without an answer
    refused: set[int] = field(default_factory=set)
    acked: int = 0  # with RECEIPT
    read: int = 0  # and an ACK was sent


@dataclass(slots=True)
class Totals:
    """The result of a sweep."""

    starts: int = 0
    refused_starts: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    exit_s: float = 0.0  # the longest from a fault to the end

    def __str__(self) -> str:
        return (
            f"{self.starts} starts ({self.refused_starts} refused), faults {dict(self.struck)}, SENDs {dict(self.answers)}, "
            f"longest from fault to exit {self.exit_s:.3f} s"
        )


class Sweep:
    """One journal through any number of faults."""

    def __init__(self, forks: Forks, seed: int, exit_within_s: float) -> None:
        self.totals = Totals()
        self._exit_within_s = exit_within_s
        self._forks = forks
        self._control = forks.control
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._topics = {topic: Topic() for topic in TOPICS}
        self._deletes: set[int] = set()
        self._number = 0
        self._ends = 0
        self._connected: list[BlockingClient] = []
        self._early: deque[Frame] = deque()  # MESSAGEs that came while the RECEIPT of an ACK was waited for

    # runs

    def survive(self, fault: Fault, calls: int, period: int) -> None:
        """Strike at every N up to `calls`, in `period` runs of one gateway each, that is to serve on through all of them."""
        for first in range(1, period + 1):
            self._watch(fault)
            self._start()
            publisher, reader = self._clients()
            self._check(reader)
            length = self._random.randint(1, min(fault.length_max, period // 2))
            self._watch(fault)
            self._arm(fault, first, length, period)
            steps = 0  # a journal of rejected SENDs that failed is left alone for a while
            while self._control.calls < calls and steps < calls:
                self._step(publisher, reader)
                steps += 1
            self.totals.struck[fault.name] += self._control.struck
            self._control.disarm()
            self._insist(publisher, reader)
            self._end(self._random.random() < 0.5)

    def end(self, fault: Fault, at: int) -> None:
        """Let a gateway meet its end at call `at`, wherever that is: in its start, while it is compared, or at work."""
        if self.totals.starts % SNAPSHOT_STARTS == 0:
            self._build_snapshot()
        self._watch(fault)
        self._arm(fault, at, 1, 0)
        code = self._forks.start()
        self.totals.starts += 1
        if code is not None:
            self.totals.refused_starts += 1
            self._examine_end(fault, code, monotonic_s())
            return
        try:
            publisher, reader = self._clients()
            self._check(reader)
            steps_more = MORE_STEPS
            while steps_more:
                self._step(publisher, reader)
                steps_more -= self._control.struck > 0
            if not self._control.struck_path.endswith("/lock"):  # what is written there is for people
                raise BrokenPromiseError(f"{fault.name}: it went on after {self._control.struck_path}")
            self._control.disarm()
            self._end(graceful=False)
        except DiedError:
            self._examine_end(fault, *self._forks.wait())

    def finish(self) -> None:
        """Start once more, compare, stop."""
        self._control.disarm()
        self._start()
        publisher, reader = self._clients()
        self._check(reader)
        self._insist(publisher, reader)
        self._end(graceful=True)
        self._hang_up()

    # steps

    def _watch(self, fault: Fault) -> None:
        spared = None if fault.part else self._forks.journal / REJECTED
        counted = Calls.WRITE | Calls.SYNC if fault.fatal else fault.counted or fault.calls
        self._control.watch(self._forks.journal / fault.part, counted, spared)

    def _arm(self, fault: Fault, at: int, length: int, period: int) -> None:
        self._control.arm(
            at, fault.effect, fault.calls, error=fault.error, length=length, period=period, delay_us=fault.delay_us
        )

    def _start(self) -> None:
        code = self._forks.start()
        self.totals.starts += 1
        if code is not None:
            raise BrokenPromiseError(f"a start was refused with {code}: {self._forks.log()[-2000:]}")

    def _end(self, graceful: bool) -> None:
        self._forks.signal(signal.SIGTERM if graceful else signal.SIGKILL)
        code, _ = self._forks.wait()
        if graceful and code != 0:
            raise BrokenPromiseError(f"a graceful stop ended with {code}: {self._forks.log()[-2000:]}")

    def _examine_end(self, fault: Fault, code: int, ended_s: float) -> None:
        if self._control.struck == 0:
            raise BrokenPromiseError(f"ended with {code} before any fault: {self._forks.log()[-2000:]}")
        if code not in {1, 74}:
            raise BrokenPromiseError(f"{fault.name}: ended with {code}: {self._forks.log()[-2000:]}")
        seconds = ended_s - self._control.struck_s
        if seconds > self._exit_within_s:
            raise BrokenPromiseError(f"{fault.name}: it went on for {seconds:.3f} s after {self._control.struck_path}")
        self.totals.exit_s = max(self.totals.exit_s, seconds)
        self.totals.struck[fault.name] += 1
        self._control.disarm()

    def _build_snapshot(self) -> None:
        self._control.disarm()
        code = self._forks.build_snapshot("604800", "0", "1")
        if code not in {0, 1}:
            raise BrokenPromiseError(f"a snapshot ended with {code}: {self._forks.log()[-2000:]}")

    def _clients(self) -> tuple[BlockingClient, BlockingClient]:
        self._hang_up()
        try:
            for name, client_id in (("publisher", None), ("subscriber", "me")):
                self._connected.append(self._forks.client(name, client_id))
            return self._connected[0], self._connected[1]
        except (EOFError, ConnectionError, OSError) as error:
            raise DiedError from error

    def _hang_up(self) -> None:
        for client in self._connected:
            client.close()
        self._connected = []
        self._early.clear()

    def _frame(self, client: BlockingClient) -> Frame:
        try:
            return client.frame()
        except (EOFError, ConnectionError) as error:
            raise DiedError from error

    def _write(self, client: BlockingClient, data: bytes) -> None:
        try:
            client.write(data)
        except OSError as error:
            raise DiedError from error

    def _send(self, client: BlockingClient, destination: bytes, number: int, deleted: bool) -> Frame:
        body = b"" if deleted else b"%d " % number + b"." * self._random.randrange(1500)
        headers = ((b"number", b"%d" % number),)
        self._write(client, encoder.send(VERSION_1_2, destination, body, headers, b"s%d" % number))
        frame = self._frame(client)
        if (frame.command, frame.headers.get(b"receipt-id")) != (b"RECEIPT", b"s%d" % number):
            raise BrokenPromiseError(f"SEND {number} was answered {frame.command!r} {frame.headers}")
        self.totals.answers[frame.headers[b"disposition"].decode()] += 1
        return frame

    def _step(self, publisher: BlockingClient, reader: BlockingClient) -> bool:
        """SEND, then read and acknowledge what the reader gets. Return whether the SEND was accepted."""
        self._number += 1
        number = self._number
        if number % 5 == 0:
            answer = self._send(publisher, b"Y/not-ours", number, deleted=False)
            if answer.headers[b"disposition"] != b"rejected-unauthorised":
                raise BrokenPromiseError(f"a SEND without right was answered {answer.headers}")
        name = self._random.choice(TOPICS)
        topic = self._topics[name]
        self._number += 1
        number = self._number
        known = topic.accepted and not topic.unknown and topic.accepted not in self._deletes
        deleted = bool(known) and self._random.random() < DELETES
        if deleted:
            self._deletes.add(number)
        topic.unknown.add(number)
        answer = self._send(publisher, name, number, deleted)
        topic.unknown.discard(number)
        told = (answer.headers[b"disposition"], answer.headers.get(b"result"))
        if told == (b"rejected-unavailable", b"disk-full"):
            topic.refused.add(number)
            return False
        if told[0] != b"accepted":
            raise BrokenPromiseError(f"SEND {number} was answered {answer.headers}")
        topic.accepted = number
        while self._receive(reader) != number:
            pass
        return True

    def _insist(self, publisher: BlockingClient, reader: BlockingClient) -> None:
        """SEND until it is accepted. When there is room, the gateway recovers by itself."""
        deadline_s = monotonic_s() + PATIENCE_S
        while not self._step(publisher, reader):
            if monotonic_s() > deadline_s:
                raise BrokenPromiseError("there is room, and SENDs are still refused")

    def _receive(self, reader: BlockingClient) -> int:
        """Receive a MESSAGE and acknowledge it; return its number."""
        frame = self._early.popleft() if self._early else self._frame(reader)
        if frame.command != b"MESSAGE":
            raise BrokenPromiseError(f"the reader was sent {frame.command!r} {frame.headers}")
        name, number = frame.headers[b"destination"], int(frame.headers[b"number"])
        topic = self._topics[name]
        self._examine(name, number, frame.body)
        if number <= topic.acked:
            raise BrokenPromiseError(f"{name!r}: {number} came though {topic.acked} is acknowledged")
        if number < topic.read:
            raise BrokenPromiseError(f"{name!r}: {number} came after {topic.read}")
        topic.accepted = max(topic.accepted, number)
        topic.unknown = {other for other in topic.unknown if other > number}
        topic.read = number
        self._write(reader, encoder.ack(VERSION_1_2, b"d", frame.headers[b"message-id"], b"a%d" % number))
        while (answer := self._frame(reader)).command == b"MESSAGE":
            self._early.append(answer)
        if answer.headers.get(b"receipt-id") != b"a%d" % number:
            raise BrokenPromiseError(f"the ACK of {number} was answered {answer.command!r} {answer.headers}")
        topic.acked = number
        return number

    # what must hold after a start

    def _examine(self, name: bytes, number: int, body: bytes) -> None:
        topic = self._topics[name]
        if number in topic.refused:
            raise BrokenPromiseError(f"{name!r}: {number} was refused and is there")
        if (number in self._deletes) != (body == b"") or not body.startswith(b"%d " % number if body else b""):
            raise BrokenPromiseError(f"{name!r}: {number} has the body of another")

    def _check(self, reader: BlockingClient) -> None:
        """Compare all values with the record; then read what the durable subscription owes for certain."""
        operator = self._operator()
        for name, topic in self._topics.items():
            number = operator.get(name, 0)
            if number:
                if number < topic.accepted:
                    raise BrokenPromiseError(f"{name!r}: {topic.accepted} was accepted and {number} is there")
                if number != topic.accepted and number not in topic.unknown:
                    raise BrokenPromiseError(f"{name!r}: {number} is there and was never its value")
                topic.accepted = number
            else:
                gone = [one for one in topic.unknown if one in self._deletes]
                if topic.accepted and topic.accepted not in self._deletes:
                    if not gone:
                        raise BrokenPromiseError(f"{name!r}: {topic.accepted} was accepted and nothing is there")
                    topic.accepted = max(gone)
            topic.refused |= {one for one in topic.unknown if one > topic.accepted}  # it is known now: they were lost
            topic.unknown.clear()
        owed = {n for n, t in self._topics.items() if t.accepted > max(t.acked, t.read)}
        self._write(
            reader, encoder.subscribe(VERSION_1_2, b"d", b"X/F.*", b"client", durable=True, receipt_id=b"resume")
        )
        if self._frame(reader).headers.get(b"receipt-id") != b"resume":
            raise BrokenPromiseError("the subscription was not resumed")
        while any(self._topics[name].acked < self._topics[name].accepted for name in owed):
            self._receive(reader)

    def _operator(self) -> dict[bytes, int]:
        """Return the number of each topic's value, by a snapshot that ends with a value of its own."""
        try:
            client = self._forks.client("operator")
        except (EOFError, ConnectionError, OSError) as error:
            raise DiedError from error
        with client:
            self._ends += 1
            self._write(client, encoder.send(VERSION_1_2, END, b"", (), b"gone"))
            self._frame(client)
            self._write(
                client,
                encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto", eager=True)
                + encoder.send(VERSION_1_2, END, b"%d" % self._ends, (), b"end"),
            )
            found: dict[bytes, int] = {}
            ended = answered = False
            while not (ended and answered):
                frame = self._frame(client)
                if frame.command == b"RECEIPT":
                    answered = True
                    if frame.headers[b"disposition"] != b"accepted":
                        raise BrokenPromiseError(f"a SEND after a start was answered {frame.headers}")
                elif frame.headers[b"destination"] == END:
                    ended = frame.body == b"%d" % self._ends
                else:
                    number = int(frame.headers[b"number"])
                    found[frame.headers[b"destination"]] = number
                    self._examine(frame.headers[b"destination"], number, frame.body)
        return found

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()


def run(
    folder: Path,
    library: Path,
    seed: int,
    calls: int,
    step: int,
    names: set[str],
    period: int = 7,
    exit_within_s: float = EXIT_WITHIN_S,
) -> Totals:
    """Sweep the named kinds of faults over calls 1 to `calls`; every `step`th where each takes a start of its own."""
    files = GatewayFolder(folder)
    files.configure(journal="segment_bytes_max = 65536\nreserve_bytes = 65536\nsnapshot_segments = 1000")
    with Forks(files, library) as forks, Sweep(forks, seed, exit_within_s) as sweep:
        sweep.finish()
        for fault in FAULTS:
            if fault.name not in names:
                continue
            if fault.fatal:
                for at in range(1 + seed % step, calls + 1, step):
                    sweep.end(fault, at)
            else:
                sweep.survive(fault, calls, period)
            sys.stdout.write(f"{fault.name}: {sweep.totals}\n")
            sys.stdout.flush()
        sweep.finish()
        if "internal-error" in forks.log() or "\nTraceback" in forks.log():
            raise BrokenPromiseError(f"a bug was met: {files.errors}")
        return sweep.totals


def main() -> int:
    """Run from the command line; keeps the folder when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fault_sweep")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--step", type=int, default=1, help="of N, for faults that end the gateway")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", nargs="*", default=[fault.name for fault in FAULTS])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="maxam-faults-"))
    sys.stdout.write(f"seed {options.seed}, {folder}\n")
    totals = run(folder, build(folder), options.seed, options.calls, options.step, set(options.only))
    shutil.rmtree(folder)
    sys.stdout.write(f"{totals}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
