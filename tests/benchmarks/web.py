"""Measure what a WebSocket costs a gateway beside a TLS connection: `python -m tests.benchmarks web`.

Idle ones are compared in memory. Subscribers are compared in processor time for each MESSAGE, both kinds in turn, so that a machine that
slows down slows both.
"""

import os
import resource
import ssl
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import trio

from maxam.https_client import Credentials, Remote
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway

KIB_MAX: Final = 60.0
RATIO_MAX: Final = 1.5
_PAGES_PER_PRINCIPAL: Final = 500
_OPENED_AT_ONCE: Final = 16
_BODY: Final = b"x" * 200
_UPGRADE: Final = (
    b"GET /stomp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: v12.stomp\r\n\r\n"
)
_SETTINGS: Final = (
    "[web]\nlisten = '127.0.0.1:0'\nconnections_max = 100000\n"
    "[limits]\nconnections_max = 100000\nsessions_per_principal_max = 100000\nconnects_per_principal_burst = 1000000\n"
)
_RULE: Final = '[[rule]]\ndestination = "X/Web.**"\nencoding = "none"\n'
_SUBSCRIBE: Final = b"SUBSCRIBE\nid:s\ndestination:X/Web.**\nreceipt:ready\n\n\0"


def frame(data: bytes) -> bytes:
    """Return a binary message of a client, masked with zeros."""
    size = len(data)
    head = bytes([0x82, 0x80 | size]) if size < 126 else b"\x82\xfe" + size.to_bytes(2, "big")
    return head + bytes(4) + data


class Connection:
    """One connection of the load. MESSAGEs are counted in the bytes as they come, with WebSocket frames in between."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream], web: bool) -> None:
        self.stream = stream
        self.messages = 0
        self._web = web

    async def write(self, data: bytes) -> None:
        """Send a STOMP frame."""
        await self.stream.send_all(frame(data) if self._web else data)

    async def wait(self, mark: bytes) -> None:
        """Read until some bytes have come."""
        found = b""
        while mark not in found:
            data = await self.stream.receive_some(65_536)
            if not data:
                raise click.ClickException(f"the gateway closed a connection: {found[-300:]!r}")
            found += data

    async def count(self) -> None:
        """Read and count MESSAGEs until cancelled."""
        kept = b""
        while data := await self.stream.receive_some(65_536):
            text = kept + bytes(data)
            self.messages += text.count(b"MESSAGE\n")
            kept = text[-7:] if not text.endswith(b"MESSAGE\n") else b""


async def opened(broker: Broker, context: ssl.SSLContext, ticket: str | None) -> Connection:
    """Open a connection up to CONNECTED: with a ticket over WebSocket, else with the certificate of the context."""
    port = broker.target.port if ticket is None else broker.web_port
    transport = await trio.open_tcp_stream("127.0.0.1", port)
    connection = Connection(trio.SSLStream(transport, context, https_compatible=True), ticket is not None)
    if ticket is not None:
        await connection.stream.send_all(_UPGRADE)
        await connection.wait(b"\r\n\r\n")
    secret = "" if ticket is None else f"login:ticket\npasscode:{ticket}\n"
    await connection.write(f"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n{secret}\n\0".encode())
    await connection.wait(b"CONNECTED\n")
    return connection


def tickets(broker: Broker, number: int) -> Iterator[str]:
    """Make tickets, and yield each."""
    files = broker.target.subscriber
    assert files is not None
    port = f"127.0.0.1:{broker.admin_port}"
    with Remote(Credentials(port, files.certificate, files.key, files.ca)) as remote:
        for at in range(number):
            wish = {"principal": f"page-{at // _PAGES_PER_PRINCIPAL}", "receive": ["X/**"], "validity_s": 3600}
            yield remote.post("/v1/tickets", wish)["ticket"]


async def open_all(broker: Broker, context: ssl.SSLContext, secrets: list[str | None]) -> list[Connection]:
    """Open a connection for each ticket, and for each None with the certificate."""
    found: list[Connection] = []
    turns = trio.CapacityLimiter(_OPENED_AT_ONCE)

    async def one(secret: str | None) -> None:
        async with turns:
            found.append(await opened(broker, context, secret))

    async with trio.open_nursery() as nursery:
        for secret in secrets:
            nursery.start_soon(one, secret)
    return found


def secrets_of(broker: Broker, kind: str, number: int) -> list[str | None]:
    """Return a ticket for each connection of a kind, or None for its certificate."""
    return [None] * number if kind == "TLS" else list(tickets(broker, number))


def context_of(broker: Broker) -> ssl.SSLContext:
    """Return the context of a client with a certificate."""
    files = broker.target.subscriber
    assert files is not None
    return files.context()


def allow(number: int) -> None:
    """Allow this process and its children N open sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, number + 200)), hard))


@contextmanager
def started() -> Iterator[Broker]:
    """Run a gateway with a web listener for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="maxam-web-") as folder:
        (Path(folder) / "registry.toml").write_text(_RULE)
        cores = {min(os.sched_getaffinity(0))}
        with gateway(cores, durability="none", settings=_SETTINGS, schemas=Path(folder)) as running:
            yield running


def idle_kib(kind: str, sockets: int) -> float:
    """Return the memory of a new gateway for each of N idle connections of a kind, more than 100. The first 100 do not count."""
    with started() as broker:  # memory that others gave back would be used again
        return trio.run(_idle_kib, broker, context_of(broker), secrets_of(broker, kind, sockets))


async def _idle_kib(broker: Broker, context: ssl.SSLContext, secrets: list[str | None]) -> float:
    """Return the memory of the gateway for each of some idle connections."""
    warm = await open_all(broker, context, secrets[:100])  # what all connections share is made once
    before_mib = broker.resident_mib()
    held = await open_all(broker, context, secrets[100:])
    await trio.sleep(1)
    each = (broker.resident_mib() - before_mib) * 1024 / len(held)
    for connection in (*warm, *held):
        await trio.aclose_forcefully(connection.stream)
    return each


async def message_us(
    broker: Broker, context: ssl.SSLContext, secrets: list[str | None], sends: int
) -> tuple[float, int]:
    """Return the processor time of the gateway for each MESSAGE to some subscribers, and the number of MESSAGEs."""
    subscribers = await open_all(broker, context, secrets)
    for subscriber in subscribers:
        await subscriber.write(_SUBSCRIBE)
        await subscriber.wait(b"receipt-id:ready")
    publisher = await opened(broker, context, None)
    send = b"SEND\ndestination:X/Web.%d.Blob\ncontent-length:%d\nreceipt:r\n\n%b\0"
    async with trio.open_nursery() as nursery:
        for subscriber in subscribers:
            nursery.start_soon(subscriber.count)
        before_s = broker.cpu_s()
        for at in range(sends):
            await publisher.write(send % (at % 50, len(_BODY), _BODY))
            await publisher.wait(b"RECEIPT")
        with trio.move_on_after(5):
            while sum([one.messages for one in subscribers]) < sends * len(subscribers):  # noqa: ASYNC110 see above
                await trio.sleep(0.01)
        took_s = broker.cpu_s() - before_s
        nursery.cancel_scope.cancel()
    number = sum([one.messages for one in subscribers])
    for connection in (*subscribers, publisher):
        await trio.aclose_forcefully(connection.stream)
    return took_s / number * 1e6, number


@click.command("web")
@click.option("--sockets", default=5000, help="Idle connections of each kind.")
@click.option("--subscribers", default=100, help="Subscribers of each kind.")
@click.option("--sends", default=1000, help="SENDs of each round; each reaches all subscribers.")
@click.option("--rounds", default=5, help="Rounds of each kind, in turn.")
def web_command(sockets: int, subscribers: int, sends: int, rounds: int) -> None:
    """Compare WebSockets with TLS connections. Exits with 1 above 60 KiB each or 1.5 times the processor time."""
    allow(max(sockets, subscribers))
    kib = {}
    for kind in ("TLS", "WebSocket"):
        kib[kind] = idle_kib(kind, sockets)
        sys.stdout.write(f"{kind:9} {sockets} idle connections: {kib[kind]:.1f} KiB each\n")
        sys.stdout.flush()
    with started() as running:
        context = context_of(running)
        found: dict[str, list[float]] = {"TLS": [], "WebSocket": []}
        for _ in range(rounds):
            for kind, times in found.items():
                secrets = secrets_of(running, kind, subscribers)
                each_us, number = trio.run(message_us, running, context, secrets, sends)
                times.append(each_us)
                sys.stdout.write(f"{kind:9} {each_us:.2f} us of processor time for each of {number} MESSAGEs\n")
                sys.stdout.flush()
        ratio = statistics.median(found["WebSocket"]) / statistics.median(found["TLS"])
        sys.stdout.write(f"medians: WebSocket {ratio:.2f} times TLS\n")
    if kib["WebSocket"] > KIB_MAX or ratio > RATIO_MAX:
        sys.exit(1)
