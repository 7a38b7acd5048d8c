"""Load on one broker from processes of their own: blocking TLS sockets, frames made beforehand, answers counted, not decoded.

Times are `time.monotonic_ns`, which all processes of one machine share; a SEND carries it in the user header `sent-ns`.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final, final

from maxam.config import Limits
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame

RECEIVE_BYTES: Final = 262_144
HOST: Final = "MAXVAPI"


@dataclass(frozen=True, slots=True)
class Target:
    """Where and as whom to connect."""

    host: str
    port: int
    certificates: Path  # folder of `maxam-admin dev-certs`

    def connect(self, principal: str, client_id: str | None = None, receive_buffer_bytes: int = 0) -> "Line":
        """Return a connection that has been answered CONNECTED."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.certificates / "ca.pem")
        context.load_cert_chain(self.certificates / f"{principal}.pem", self.certificates / f"{principal}.key")
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        plain.connect((self.host, self.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(context.wrap_socket(plain))
        line.socket.sendall(encoder.connect(HOST, (VERSION_1_2,), client_id=client_id))
        frame = line.next()
        if frame.command != b"CONNECTED":
            raise RuntimeError(f"CONNECT was answered {frame.command.decode()}: {frame.body.decode()}")
        return line


@final
class Line:
    """One connection that decodes what it receives."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        self.socket: Final = connected
        self._decoder: Final = Decoder(Limits(frame_body_bytes_max=2**30), SERVER_COMMANDS)
        self._frames: list[Frame] = []

    def next(self) -> Frame:
        """Return the next frame; blocks."""
        while not self._frames:
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise RuntimeError("the broker closed the connection")
            self._frames = list(self._decoder.feed(data))[::-1]
        return self._frames.pop()

    def subscribe(self, id_: str, glob: str, ack: str, eager: bool = False, durable: bool = False) -> None:
        """Subscribe and wait for the RECEIPT, so that what is sent from now on is seen."""
        self.socket.sendall(
            encoder.subscribe(VERSION_1_2, id_.encode(), glob.encode(), ack.encode(), durable, eager, b"subscribed")
        )
        while (frame := self.next()).command != b"RECEIPT":
            if frame.command == b"ERROR":
                raise RuntimeError(frame.body.decode())


@dataclass(frozen=True, slots=True)
class Load:
    """What a publisher sends."""

    topics: tuple[str, ...]
    body: bytes
    seconds: float
    outstanding: int = 2000  # SENDs without their RECEIPT at the most
    per_second: float = 0.0  # 0: as fast as the receipts come


def publish(target: Target, load: Load, start: Event) -> tuple[int, float]:
    """Send until `load.seconds` have passed and every RECEIPT has come.

    Returns:
        Accepted SENDs and the seconds that they took.

    Raises:
        RuntimeError: A RECEIPT was none of acceptance.
    """
    line = target.connect("publisher")
    batch = 100
    heads = [
        b"SEND\ndestination:%b\ncontent-length:%d\nreceipt:r\n\n" % (t.encode(), len(load.body)) for t in load.topics
    ]
    frames = [head + load.body + b"\0" for head in heads]
    blocks = [b"".join([frames[(i + n) % len(frames)] for n in range(batch)]) for i in range(0, len(frames), batch)]
    accepted = _Counter(b"\ncontent-disposition:accepted\n")
    receipts = _Counter(b"RECEIPT\n")
    start.wait()
    begin = time.monotonic()
    sent = 0
    position = 0
    while time.monotonic() - begin < load.seconds or receipts.count < sent:
        if sent - receipts.count <= load.outstanding - batch and time.monotonic() - begin < load.seconds:
            line.socket.sendall(blocks[position])
            position = (position + 1) % len(blocks)
            sent += batch
        if sent - receipts.count > load.outstanding - batch or line.socket.pending() or _readable(line.socket):
            data = line.socket.recv(RECEIVE_BYTES)
            receipts.add(data)
            accepted.add(data)
    seconds = time.monotonic() - begin
    if accepted.count != sent:
        raise RuntimeError(f"{sent - accepted.count} of {sent} SENDs were not accepted")
    return sent, seconds


def pace(target: Target, load: Load, start: Event) -> tuple[int, float]:
    """Send at `load.per_second`, each SEND with its time in `sent-ns`; return how many and for how many seconds."""
    line = target.connect("publisher")
    start.wait()
    begin = time.monotonic()
    sent = 0
    step = max(1, round(load.per_second / 1000))
    while (elapsed := time.monotonic() - begin) < load.seconds:
        if sent < elapsed * load.per_second:
            frames = []
            for _ in range(step):
                destination = load.topics[sent % len(load.topics)].encode()
                frames.append(
                    b"SEND\ndestination:%b\ncontent-length:%d\nsent-ns:%d\nreceipt:r\n\n%b\0"
                    % (destination, len(load.body), time.monotonic_ns(), load.body)
                )
                sent += 1
            line.socket.sendall(b"".join(frames))
        else:
            time.sleep(0.0001)
        while line.socket.pending() or _readable(line.socket):
            line.socket.recv(RECEIVE_BYTES)
    return sent, time.monotonic() - begin


def count(target: Target, globs: Sequence[str], ready: Callable[[], None], stop: Event) -> list[int]:
    """Subscribe each glob on a connection of its own, ack mode auto, and count MESSAGEs on each until `stop`."""
    lines = []
    for glob in globs:
        line = target.connect("subscriber")
        line.subscribe("s", glob, "auto")
        line.socket.setblocking(False)
        lines.append(line.socket)
    counters = {line: _Counter(b"MESSAGE\nsubscription:") for line in lines}
    poll = select.epoll()
    by_number = {line.fileno(): line for line in lines}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    ready()
    idle = False
    while not (idle and stop.is_set()):
        found = poll.poll(0.2)
        idle = not found
        for number, _ in found:
            found_line = by_number[number]
            try:
                while True:
                    counters[found_line].add(found_line.recv(RECEIVE_BYTES))
            except ssl.SSLWantReadError:
                pass
    return [counter.count for counter in counters.values()]


def consume(
    target: Target, glob: str, seconds_per_message: float, ready: Callable[[], None], stop: Event
) -> list[tuple[float, float]]:
    """Subscribe with ack mode client and take so long for each MESSAGE, until `stop` and nothing more comes for 0.5 s.

    Returns:
        For each MESSAGE in order, seconds: when it was taken up, and its age then if it carries `sent-ns`.
    """
    line = target.connect("subscriber")
    line.subscribe("s", glob, "client")
    line.socket.settimeout(0.5)
    ready()
    ages: list[tuple[float, float]] = []
    while True:
        try:
            frame = line.next()
        except TimeoutError:
            if stop.is_set():
                return ages
            continue
        if frame.command == b"MESSAGE":
            now_ns = time.monotonic_ns()
            ages.append((now_ns / 1e9, (now_ns - int(frame.headers.get(b"sent-ns", b"0"))) / 1e9))
            if seconds_per_message:
                _work(seconds_per_message)
            line.socket.sendall(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))


@final
class _Counter:
    """Counts occurrences of a mark in a stream of bytes, also where two pieces meet."""

    def __init__(self, mark: bytes) -> None:
        self.count = 0
        self._mark: Final = mark
        self._tail = b""

    def add(self, data: bytes) -> None:
        joined = self._tail + data
        self.count += joined.count(self._mark)
        keep = len(self._mark) - 1
        self._tail = joined[-keep:]


def _readable(line: ssl.SSLSocket) -> bool:
    return bool(select.select([line], [], [], 0)[0])


def _work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 0.0002))
    while time.perf_counter() < end:
        pass
