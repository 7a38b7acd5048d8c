"""A yardstick for messages to many connections: TLS and `send` of one message to each, one after the other, and nothing else.

A receiver that sleeps on another core has to be woken by the sender. On a virtual machine this takes longer than all the rest. So the
receivers read all the time in one measurement, and sleep in the other.
"""

import os
import select
import signal
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from maxam.bench.worker import Channel
from tests.benchmarks.brokers.broker import development_certificates
from tests.benchmarks.connections import allow_connections

_MESSAGE: Final = bytes(320)  # a MESSAGE of the load with three user headers
_MESSAGES: Final = 20_000  # of a measurement
_ROUNDS: Final = 3
_RECEIVE_BYTES: Final = 65_536


def send_us(_channel: Channel | None, connections: int, cores: frozenset[int] | None, asleep: bool) -> float:
    """Return the processor time of one message in us, the least of some rounds.

    Args:
        _channel: Of the process that measures.
        connections: Number of connections over loopback.
        cores: Cores of the receivers, which are in one process. None for any.
        asleep: The receivers sleep until a message comes.

    Raises:
        LoadError: This system allows fewer connections.
    """
    allow_connections(connections)
    with _accepted(connections, cores, asleep) as sockets:
        senders = [(connected, *tls) for connected, tls in zip(sockets, _established(connections), strict=True)]
        rounds = max(1, _MESSAGES // connections)

        def round_() -> float:
            begin_s = time.process_time()
            for _ in range(rounds):
                for connected, tls, encrypted in senders:
                    tls.write(_MESSAGE)
                    connected.send(encrypted.read())
            return time.process_time() - begin_s

        return min(round_() for _ in range(_ROUNDS)) / (rounds * connections) * 1e6


@contextmanager
def _accepted(number: int, cores: frozenset[int] | None, asleep: bool) -> Iterator[list[socket.socket]]:
    """Accept connections whose other ends are in a process that reads and drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=number) as listening:
        reader = os.fork()
        if not reader:
            _read(listening.getsockname(), number, cores, -1.0 if asleep else 0.0)
        sockets = []
        try:
            for _ in range(number):
                connected, _ = listening.accept()
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets.append(connected)
            yield sockets
        finally:
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
            for connected in sockets:
                connected.close()


def _read(address: tuple[str, int], number: int, cores: frozenset[int] | None, timeout_s: float) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    poll = select.epoll()
    sockets = {}
    for _ in range(number):
        connected = socket.create_connection(address)
        sockets[connected.fileno()] = connected
        poll.register(connected, select.EPOLLIN)
    buffer = bytearray(_RECEIVE_BYTES)
    while True:
        for file, _ in poll.poll(timeout_s):
            sockets[file].recv_into(buffer)


def _established(number: int) -> Iterator[tuple[ssl.SSLObject, ssl.MemoryBIO]]:
    """Make the server's sides of TLS connections whose handshake is complete, with what each has encrypted."""
    with tempfile.TemporaryDirectory(prefix="maxam-bench-") as name:
        folder = Path(name) / "certs"
        development_certificates(folder)
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(folder / "server.pem", folder / "server.key")
        server.num_tickets = 0
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=folder / "ca.pem")
        client.check_hostname = False
    for _ in range(number):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = client.wrap_bio(to_client, to_server)
        called = server.wrap_bio(to_server, to_client, server_side=True)
        for side in (caller, called, caller, called):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        yield called, to_client
