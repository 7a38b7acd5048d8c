"""A bad network between clients and the real gateway: `python -m tests.faults.network`, or `make network-test`.

A relay of our own stands between them. It resets connections in the middle of frames, and passes bytes on late and in small pieces. It
also falls silent: both ends stay open and nothing passes, as with a cable that was pulled. A publisher sends numbered values until each is
accepted, connecting again whenever it must. A durable subscriber acknowledges what it reads, and connects again. For every accepted number
it must see that number or a newer one of its topic, and never an older one after a newer.

Then the relay of a subscriber with heart-beats of 10 s falls silent. The gateway closes the connection after one to three intervals.
"""

import argparse
import contextlib
import random
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.support.gateway_folder import GatewayFolder, GatewayProcess

TOPICS = 20
HEART_BEAT_S = 10.0
_ANSWER_TIMEOUT_S = 1.0  # then a client takes its connection for dead
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """Forwards bytes between clients and a port, badly; entering opens it, leaving closes it and all that it carries."""

    def __init__(self, port: int, seed: int, reset_share: float = 0.02, silence_s: float = 0.0) -> None:
        self._target = port
        self._rng = random.Random(seed)  # noqa: S311  # to be repeatable, as far as threads let it
        self._reset_share = reset_share
        self._silence_s = silence_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._stop = threading.Event()
        self._silent_until_s = 0.0
        self._threads: list[threading.Thread] = []
        self.resets = 0
        self.silences = 0

    def __enter__(self) -> "Relay":
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def fall_silent(self, seconds: float) -> None:
        """Pass nothing on for a time, on any connection; connections stay open, and new ones are made."""
        self.silences += 1
        self._silent_until_s = time.monotonic() + seconds

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]  # a method of ours
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                near, _ = self._listening.accept()
            except OSError:  # the connection was reset before this, or the relay stops
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            for one in (near, far):  # before a thread can close both
                one.settimeout(0.05)
            self._start(self._forward, near, far)
            self._start(self._forward, far, near)

    def _forward(self, ours: socket.socket, theirs: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._stop.is_set():
                try:
                    data = ours.recv(self._rng.choice((1, 100, 4096)))
                except TimeoutError:
                    continue
                while time.monotonic() < self._silent_until_s and not self._stop.wait(0.02):
                    pass
                if not data:
                    break
                if self._rng.random() < self._reset_share:
                    self.resets += 1
                    theirs.sendall(data[: self._rng.randrange(len(data) + 1)])
                    break
                if self._silence_s and self._rng.random() < 0.002:
                    self.fall_silent(self._silence_s)
                theirs.sendall(data)
        for one in (ours, theirs):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.close()


class _Link:
    """A client's connection through a relay."""

    def __init__(self, port: int, certificates: Path, name: str, connect: bytes) -> None:
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        raw = socket.create_connection(("127.0.0.1", port), _ANSWER_TIMEOUT_S)
        try:
            self._tls = context.wrap_socket(raw, server_hostname="localhost")
        except OSError:
            raw.close()
            raise
        self._decoder = Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2)
        try:
            self.write(connect)
            self.frame()
        except (OSError, ProtocolError):
            self._tls.close()
            raise

    def write(self, data: bytes) -> None:
        self._tls.sendall(data)

    def frame(self) -> Frame:
        """Wait for the next frame. Any OSError means that there is none."""
        while (frame := self._decoder.next_frame()) is None:
            data = self._tls.recv(65_536)
            if not data:
                raise ConnectionError
            self._decoder.receive_data(data)
        if frame.command == b"ERROR":
            raise ConnectionError
        return frame

    def close(self) -> None:
        self._tls.close()


@contextlib.contextmanager
def _linked(port: int, certificates: Path, name: str, client_id: str | None = None) -> Iterator[_Link]:
    link = _Link(port, certificates, name, encoder.connect("MAXVAPI", client_id=client_id))
    try:
        yield link
    finally:
        link.close()


@dataclass
class Outcome:
    """The faults of a network, and the values that came through it."""

    accepted: dict[bytes, int] = field(default_factory=dict)  # by topic, the highest number
    seen: dict[bytes, int] = field(default_factory=dict)
    sends: int = 0
    connections: int = 0
    resets: int = 0
    silences: int = 0
    stale: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[bytes]:
        """Topics of which the last accepted number, or a newer one, never came."""
        return [topic for topic, number in self.accepted.items() if self.seen.get(topic, -1) < number]


def through_a_bad_network(process: GatewayProcess, sends: int, seed: int, silence_s: float = 0.0) -> Outcome:
    """Send N values through one relay and read them through another."""
    certificates = process.files.folder / "certs"
    outcome = Outcome()
    done = threading.Event()
    with (
        Relay(process.port, seed, silence_s=silence_s) as out,
        Relay(process.port, seed + 1, silence_s=silence_s) as back,
    ):

        def publish() -> None:
            number = 0
            while number < sends:
                try:
                    with _linked(out.port, certificates, "publisher") as link:
                        outcome.connections += 1
                        while number < sends:
                            topic = b"X/n%d" % (number % TOPICS)
                            link.write(encoder.send(VERSION_1_2, topic, b"%d" % number, receipt_id=b"%d" % number))
                            receipt = link.frame()
                            assert receipt.headers[b"disposition"] == b"accepted"
                            outcome.accepted[topic] = number
                            number += 1
                except (OSError, ProtocolError):
                    continue  # perhaps it was accepted: the same value again changes nothing
            outcome.sends = number
            done.set()

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            while not done.is_set() or outcome.lost:
                with (
                    contextlib.suppress(OSError, ProtocolError),
                    _linked(back.port, certificates, "subscriber", "reader") as link,
                ):
                    outcome.connections += 1
                    link.write(
                        encoder.subscribe(VERSION_1_2, b"s", b"X/n*", b"client", durable=True, eager=not outcome.seen)
                    )
                    while not done.is_set() or outcome.lost:
                        _take(link, outcome)
        finally:
            publisher.join()
        outcome.resets = out.resets + back.resets
        outcome.silences = out.silences + back.silences
    return outcome


def _take(link: _Link, outcome: Outcome) -> None:
    frame = link.frame()
    if frame.command == b"MESSAGE":
        topic, number = frame.headers[b"destination"], int(frame.body)
        if outcome.seen.get(topic, -1) > number:
            outcome.stale.append(f"{topic.decode()}: {number} after {outcome.seen[topic]}")
        outcome.seen[topic] = number
        link.write(encoder.ack(VERSION_1_2, b"s", frame.headers[b"message-id"]))


def dead_peer_s(process: GatewayProcess) -> float:
    """Connect with heart-beats of 10 s through a relay that falls silent; return after how long the gateway closes."""
    connect = b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nclient-id:cut-off\nheart-beat:10000,10000\n\n\0"
    with Relay(process.port, 0, reset_share=0.0) as relay:
        link = _Link(relay.port, process.files.folder / "certs", "subscriber", connect)
        began_s = time.monotonic()
        relay.fall_silent(5 * HEART_BEAT_S)
        while not any("connection-closed" in line and "session=cut-off" in line for line in process.log().splitlines()):
            time.sleep(0.05)
            assert time.monotonic() - began_s < 4 * HEART_BEAT_S, "the gateway does not close a dead peer"
        took_s = time.monotonic() - began_s
        link.close()
    return took_s


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.faults.network", description=__doc__)
    parser.add_argument("--sends", type=int, default=3000)
    parser.add_argument(
        "--silence", type=float, default=5.0, help="seconds for which the relay falls silent now and then"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        files = GatewayFolder(Path(scratch))
        files.configure(
            limits="takeovers_per_minute_max = 100000\nlog_lines_per_minute_max = 100000\nlinger_timeout_s = 0.2"
        )
        with files.start() as process:
            outcome = through_a_bad_network(process, options.sends, options.seed, options.silence)
            closed_s = dead_peer_s(process)
            assert process.stop() == 0
    sys.stdout.write(
        f"{outcome.sends} SENDs accepted over {outcome.connections} connections, {outcome.resets} resets,"
        f" {outcome.silences} silences of {options.silence:g} s: {len(outcome.lost)} lost, {len(outcome.stale)} stale\n"
        f"a dead peer with heart-beats of {HEART_BEAT_S:g} s was closed after {closed_s:.1f} s\n"
    )
    good = not outcome.lost and not outcome.stale and HEART_BEAT_S <= closed_s <= 3 * HEART_BEAT_S
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
