"""Hostile peers by the hundred, and what they cost: `python -m tests.faults.flood --peers 500 --silent 100`, or `make flood`.

First come peers that never get as far as CONNECTED, a fifth of each kind:

* TCP only;
* half a ClientHello and then a byte now and then;
* TLS and half a CONNECT;
* TLS and a CONNECT that drips;
* TLS and as much as the gateway takes.

A closed client connects again. Among them well-behaved clients connect, publish and leave. Then come connected subscribers that never
read, while a publisher waits for its RECEIPTs one by one. A second gateway has no such subscribers. Machines are seldom quiet, so the
publisher alternates between the two. Each round at one gateway is compared with the round before at the other.
"""

import argparse
import contextlib
import random
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.scene import CONNECT, resident_bytes
from tests.support.gateway_folder import GatewayFolder, GatewayProcess

KINDS = ("TCP only", "half TLS", "half CONNECT", "dripping", "flooding")
_ROUND_S = 0.05
_COMERS_PER_ROUND = 20  # who was closed and comes again: as many handshakes as a real flood of this size would ask for
_BODY = bytes(2000)
_FLOOD = b"CONNECT\naccept-version:1.2\n" + b"h:" + b"v" * 7000 + b"\n"


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements.

    Attributes:
        waits_s: From TCP to the RECEIPT, of each good client, sorted.
        bytes_each: By how much the gateway's memory grew at most, for each hostile peer.
        came: How often a hostile peer came.
    """

    waits_s: list[float]
    bytes_each: int
    came: int


class Flood:
    """Hostile peers, all in one thread; entering begins, leaving ends the flood."""

    def __init__(self, process: GatewayProcess, peers: int) -> None:
        certificates = process.files.folder / "certs"
        self._port = process.port
        self._context = ssl.create_default_context(cafile=certificates / "ca.pem")
        self._context.load_cert_chain(certificates / "publisher.pem", certificates / "publisher.key")
        self._slots: list[socket.socket | None] = [None] * peers
        self._stop = threading.Event()
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._rng = random.Random(8)  # noqa: S311  # to be repeatable
        self.came = 0

    def __enter__(self) -> "Flood":
        self._thread.start()
        self._full.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for peer in self._slots:
            if peer is not None:
                peer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            comers = 0
            for number, peer in enumerate(self._slots):
                if peer is None and comers < _COMERS_PER_ROUND:
                    comers += 1
                    self._slots[number] = self._come(KINDS[number % len(KINDS)])
                elif peer is not None and not self._go_on(peer, KINDS[number % len(KINDS)]):
                    peer.close()
                    self._slots[number] = None
                if self._stop.is_set():
                    return
            if self.came >= len(self._slots):
                self._full.set()
            self._stop.wait(_ROUND_S)

    def _come(self, kind: str) -> socket.socket | None:
        self.came += 1
        try:
            plain = socket.create_connection(("127.0.0.1", self._port), 5)
        except OSError:
            return None
        try:
            if kind == "TCP only":
                plain.setblocking(False)
                return plain
            if kind == "half TLS":
                plain.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
                plain.setblocking(False)
                return plain
            tls = self._context.wrap_socket(plain, server_hostname="localhost")
            tls.sendall(CONNECT[:20] if kind == "half CONNECT" else b"CONNECT\n")
            tls.setblocking(False)
        except OSError:
            plain.close()
            return None
        return tls

    def _go_on(self, peer: socket.socket, kind: str) -> bool:
        """Drip or flood; return whether it is still connected."""
        try:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if kind == "dripping":
                    peer.send(b"a:b\n"[self._rng.randrange(4) :][:1])
                elif kind == "flooding":
                    while True:
                        peer.send(_FLOOD)
                elif kind == "half TLS" and self._rng.randrange(20) == 0:
                    peer.send(b"\0")
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                return peer.recv(65_536) != b""
        except OSError:
            return False
        return True


def strangers(process: GatewayProcess, peers: int, visits: int) -> Figures:
    """Have good clients visit a gateway in a flood, one after the other."""
    with process.client("operator") as warm:
        warm.send(b"X/warm", b"v")
    before = resident_bytes(process)
    most = before
    waits_s = []
    with Flood(process, peers) as flood:
        for _ in range(visits):
            began_s = time.monotonic()
            with process.client("operator") as client:
                assert client.send(b"X/a", b"v") == b"accepted"
            waits_s.append(time.monotonic() - began_s)
            most = max(most, resident_bytes(process))
        came = flood.came
    return Figures(sorted(waits_s), (most - before) // peers, came)


class Publisher:
    """Sends values one by one, each after the RECEIPT of the one before, and measures how long that took."""

    def __init__(self, process: GatewayProcess, topics: int = 50) -> None:
        self._client = process.client()
        self._topics = topics
        self._sent = 0

    def publish(self, sends: int) -> list[float]:
        """Return the seconds from SEND to RECEIPT, sorted."""
        took_s = []
        for _ in range(sends):
            self._sent += 1
            began_s = time.perf_counter()
            assert self._client.send(b"X/r%d" % (self._sent % self._topics), _BODY) == b"accepted"
            took_s.append(time.perf_counter() - began_s)
        return sorted(took_s)

    def close(self) -> None:
        """Hang up."""
        self._client.close()


@contextlib.contextmanager
def silent_readers(process: GatewayProcess, count: int) -> Iterator[None]:
    """Have subscribers of all that a Publisher sends, which never read."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            reader = stack.enter_context(_silent_reader(process))
            reader.sendall(CONNECT + encoder.subscribe(VERSION_1_2, b"s", b"X/r*", b"client"))
        yield


@dataclass(frozen=True, slots=True)
class Turn:
    """RECEIPT times of as many SENDs at either gateway, in seconds, sorted."""

    alone_s: list[float]
    among_s: list[float]

    @property
    def ratio(self) -> float:
        """How many times the 99th percentile alone is that among silent readers."""
        return percentile(self.among_s, 0.99) / percentile(self.alone_s, 0.99)


def by_turns(alone: GatewayProcess, among: GatewayProcess, turns: int, sends: int) -> list[Turn]:
    """Publish at one gateway and the other, `sends` at a time, whichever is first by turns too."""
    found = []
    with contextlib.closing(Publisher(alone)) as first, contextlib.closing(Publisher(among)) as second:
        for turn in range(turns):
            if turn % 2:
                among_s = second.publish(sends)
                found.append(Turn(first.publish(sends), among_s))
            else:
                found.append(Turn(first.publish(sends), second.publish(sends)))
    return found


@contextlib.contextmanager
def _silent_reader(process: GatewayProcess) -> Iterator[ssl.SSLSocket]:
    certificates = process.files.folder / "certs"
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "subscriber.pem", certificates / "subscriber.key")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", process.port))
        with context.wrap_socket(raw, server_hostname="localhost") as tls:
            yield tls


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of sorted ones lies."""
    return values[min(len(values) - 1, int(len(values) * share))]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.faults.flood", description=__doc__)
    parser.add_argument("--peers", type=int, default=500)
    parser.add_argument("--visits", type=int, default=200)
    parser.add_argument("--silent", type=int, default=100)
    parser.add_argument("--turns", type=int, default=60, help="at either gateway")
    parser.add_argument("--sends", type=int, default=300, help="in each turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        files = GatewayFolder(Path(scratch))
        with files.start() as process:
            flood = strangers(process, options.peers, options.visits)
            sys.stdout.write(
                f"{options.peers} strangers, who came {flood.came} times: {len(flood.waits_s)} good clients waited"
                f" {percentile(flood.waits_s, 0.5):.3f} s (median), {flood.waits_s[-1]:.3f} s (the longest);"
                f" {flood.bytes_each / 1024:.1f} KiB each\n"
            )
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        with GatewayFolder(Path(one)).start() as alone, GatewayFolder(Path(other)).start() as among:
            by_turns(alone, among, 2, options.sends)  # to warm up
            before = resident_bytes(among)
            with silent_readers(among, options.silent):
                turns = by_turns(alone, among, options.turns, options.sends)
                grown = resident_bytes(among) - before
        ratios = sorted(turn.ratio for turn in turns)
        alone_s, among_s = (
            sorted(chain.from_iterable(one)) for one in zip(*((t.alone_s, t.among_s) for t in turns), strict=True)
        )
        sys.stdout.write(
            f"{options.silent} that never read: RECEIPT p50 {percentile(alone_s, 0.5) * 1000:.2f} ms without them,"
            f" {percentile(among_s, 0.5) * 1000:.2f} ms with them; p99 {percentile(alone_s, 0.99) * 1000:.2f} and"
            f" {percentile(among_s, 0.99) * 1000:.2f} ms; p99 of {len(turns)} turns with and without them: {median(ratios):.2f} times (median),"
            f" {percentile(ratios, 0.25):.2f} to {percentile(ratios, 0.75):.2f} (quartiles); {grown / max(1, options.silent) / 1024:.1f} KiB each\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
