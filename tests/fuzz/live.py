"""A mutating client against the real gateway over live TLS: whole sessions, TLS records and HTTP requests with a few things wrong.

After each, the gateway must have answered in whole frames with at most one ERROR, the last one. A well-behaved client beside it must be
served all the time. In the end the log must hold no traceback, and the process must exit with 0.
"""

import contextlib
import random
import socket
import ssl
import time
from pathlib import Path

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp.events import VERSION_1_1, VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder
from tests.faults.scene import Scene, scene
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import corpus, target

_REQUESTS = (
    b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /api/v1/topics?glob=X/**&limit=5 HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\r\n",
    b"GET /api/v1/schemas HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\nGET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /api/v1/reload HTTP/1.1\r\nhost: localhost\r\nmaxam-admin: 1\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /api/v1/rejects/resend HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET /subjects/t.A_v1/versions/1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
)
_HTTP_WORDS = (
    *(b"GET POST HTTP/1.1 HTTP/1.0 HTTP/2.0 PRI %00 %2e%2e/ ../ // ? # & = glob= limit= -1 1e9 \\ * [".split()),
    b"\r\n",
    b"\n",
    b"\r",
    b"content-length: 5\r\n",
    b"content-length: -1\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: x, chunked\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\nconnection: upgrade\r\n",
    b"a: " + b"v" * 3000 + b"\r\n",
    b"x-y: z\r\n" * 60,
    b"fffffffffffffffff\r\n",
    b"\0",
    b"\xff",
)


def run_live(folder: Path, seconds: float, seed: int, rounds_max: int | None = None) -> str:
    """Attack a gateway of our own for a while, or N rounds; return how often, in one line.

    Args:
        folder: Empty, for its files.
        seconds: At most.
        seed: Of the mutations.
        rounds_max: At most.
    """
    rng = random.Random(seed)  # noqa: S311  # to be repeatable
    sessions = target("frames")
    streams = [data[1:] for data in corpus(sessions)]
    counts = {"sessions": 0, "streams of TLS": 0, "streams of HTTP": 0}
    until_s = time.monotonic() + seconds
    with scene(folder, "tls_handshake_timeout_s = 2\nconnect_timeout_s = 2\nlinger_timeout_s = 0.3") as attacked:
        hello = _client_hello(attacked)
        while time.monotonic() < until_s and sum(counts.values()) != rounds_max:
            kind = rng.randrange(8)
            if kind == 0:
                counts["streams of TLS"] += 1
                _say_plain(
                    attacked, mutated(rng, [hello], (b"\x16\x03\x01", b"\x15\x03\x03\x00\x02\x02\x00", b"\x17\x03\x03"))
                )
            elif kind == 1:
                counts["streams of HTTP"] += 1
                _ask(attacked, mutated(rng, _REQUESTS, _HTTP_WORDS))
            else:
                counts["sessions"] += 1
                _talk(attacked, mutated(rng, streams, sessions.words), rng)
            if sum(counts.values()) % 50 == 0:
                attacked.bystander.check()
        attacked.bystander.check()
    return ", ".join(f"{count:,} {what}" for what, count in counts.items()) + f", seed {seed}"


def _client_hello(attacked: Scene) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=attacked.certificates / "ca.pem")
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def _say_plain(attacked: Scene, data: bytes) -> None:
    with attacked.socket() as plain, contextlib.suppress(OSError):
        plain.sendall(data)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(65_536):
            pass


def _ask(attacked: Scene, data: bytes) -> None:
    """Send requests to the admin listener; what comes back begins with a status that is not 500, or is nothing."""
    with attacked.admin() as hostile:
        received = bytearray()
        with contextlib.suppress(OSError):
            hostile.sendall(data)
            socket.socket.shutdown(hostile, socket.SHUT_WR)
            while part := hostile.recv(65_536):
                received += part
    assert not received or received.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), (data, bytes(received[:200]))
    assert not received.startswith(b"HTTP/1.1 500"), (data, bytes(received[:200]))


def _talk(attacked: Scene, data: bytes, rng: random.Random) -> None:
    """Send a session in one or several pieces, and read the answers as a client would."""
    received = bytearray()
    with attacked.stranger() as hostile:
        with contextlib.suppress(OSError):
            at = 0
            while at < len(data):
                piece = rng.choice((1, 10, 100, 10_000))
                hostile.sendall(data[at : at + piece])
                at += piece
                if rng.randrange(20) == 0:
                    break
            if rng.randrange(4):
                socket.socket.shutdown(hostile, socket.SHUT_WR)
            else:
                return  # and be gone
        with contextlib.suppress(OSError):
            while part := hostile.recv(65_536):
                received += part
    for version in (VERSION_1_2, VERSION_1_1):
        try:
            frames = list(Decoder(Limits(), SERVER_COMMANDS, version).feed(bytes(received)))
        except ProtocolError:
            if version == VERSION_1_1:
                raise
        else:
            assert all(frame.command != b"ERROR" for frame in frames[:-1]), data
            return
