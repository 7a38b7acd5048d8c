"""Hostile peers by the hundred, and what they cost: `python -m tests.faults.flood --peers 500 --silent 100`, or `make flood`.

First peers that never get so far as CONNECTED, a fifth each: TCP only; half a ClientHello and then a byte now and then; TLS and half a
CONNECT; TLS and a CONNECT that drips; TLS and as much as the gateway takes. Whoever is closed comes again. Among them good clients connect,
publish and leave. Then connected subscribers that never read, while a publisher waits for its RECEIPTs one by one, as it did before they came.
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
from pathlib import Path

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.gateway_process import GatewayFolder, GatewayProcess
from tests.faults.scene import CONNECT, resident_bytes

KINDS = ("TCP only", "half TLS", "half CONNECT", "dripping", "flooding")
_ROUND_S = 0.05
_COMERS_PER_ROUND = 20  # who was closed and comes again: as many handshakes as a real flood of this size would ask for
_FLOOD = b"CONNECT\naccept-version:1.2\n" + b"h:" + b"v" * 7000 + b"\n"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured.

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


@dataclass(frozen=True, slots=True)
class Silence:
    """What subscribers that never read cost.

    Attributes:
        before_s: From SEND to RECEIPT without them, sorted.
        among_s: With them, sorted.
        bytes_each: By how much the gateway's memory grew at most, for each of them.
    """

    before_s: list[float]
    among_s: list[float]
    bytes_each: int


def silent(process: GatewayProcess, readers: int, sends: int, topics: int = 50) -> Silence:
    """Publish one by one, alone and among subscribers of all of it that never read; their write deadline is not waited for."""
    body = bytes(2000)

    def publish() -> list[float]:
        took_s = []
        with process.client() as publisher:
            for number in range(sends):
                began_s = time.perf_counter()
                assert publisher.send(b"X/r%d" % (number % topics), body) == b"accepted"
                took_s.append(time.perf_counter() - began_s)
        return sorted(took_s)

    publish()
    before_s = publish()
    resident = resident_bytes(process)
    with contextlib.ExitStack() as stack:
        for _ in range(readers):
            reader = stack.enter_context(_silent_reader(process))
            reader.sendall(CONNECT + encoder.subscribe(VERSION_1_2, b"s", b"X/r*", b"client"))
        among_s = publish()
        grown = resident_bytes(process) - resident
    return Silence(before_s, among_s, grown // max(1, readers))


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
    parser.add_argument("--sends", type=int, default=3000)
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
        with files.start() as process:
            quiet = silent(process, options.silent, options.sends)
            sys.stdout.write(
                f"{options.silent} that never read: RECEIPT p99 {percentile(quiet.before_s, 0.99) * 1000:.2f} ms without them,"
                f" {percentile(quiet.among_s, 0.99) * 1000:.2f} ms with them; {quiet.bytes_each / 1024:.1f} KiB each\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
