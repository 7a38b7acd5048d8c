"""A whole gateway in the test's own event loop, with real files, sockets and TLS, and clients that speak in frames.

A test in the same loop controls what happens between two steps of the gateway. When a reload answers, everything that the gateway
encrypts from then on is new.
"""

import datetime as dt
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import Mock, patch

import trio
from click.testing import CliRunner, Result
from cryptography import x509

from maxam.api.service import serve_admin
from maxam.cli.main import main
from maxam.config import (
    AdminSettings,
    JournalSettings,
    Limits,
    ListenerSettings,
    PolicySettings,
    ReloadSettings,
    SchemaSettings,
    Settings,
    TlsSettings,
)
from maxam.gateway import server
from maxam.gateway.loaded_config import read_config
from maxam.gateway.opening import open_gateway
from maxam.gateway.reload import Outcome
from maxam.gateway.server import Gateway
from maxam.gateway.tls import TlsSocket
from maxam.pki.certificates import Authority, issue_development_certificates
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.support.gateway_process import admin_environment, port_of
from tests.support.patience import PATIENCE_S

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
EVERYTHING = {"send": ["X/**"], "receive": ["X/**"]}
_NAP_S = 0.01
ANYTHING_GOES = '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on real time, with an absolute limit."""

    async def limited() -> None:
        with trio.fail_after(PATIENCE_S):
            await test()

    trio.run(limited)


class Site:
    """The files of a gateway, and what a test does to them."""

    def __init__(self, folder: Path, *clients: str) -> None:
        """Issue certificates to clients, an operator among them, who may all do everything."""
        self.folder = folder
        self.certificates = folder / "certs"
        self.fingerprints = issue_development_certificates(self.certificates, NOW, [*clients, "operator"])
        self.trusted = (
            self.certificates / "ca.pem"
        ).read_text()  # by clients, whatever a test does to the gateway's files
        self.schemas = folder / "schemas"
        self.schemas.mkdir()
        (self.schemas / "registry.toml").write_text(ANYTHING_GOES)
        self.policy_file = folder / "policy.toml"
        self.policy(dict.fromkeys(clients, EVERYTHING))
        self.settings = Settings(
            TlsSettings(
                self.certificates / "server.pem",
                self.certificates / "server.key",
                self.certificates / "ca.pem",
                self.certificates / "crl.pem",
            ),
            PolicySettings(self.policy_file),
            SchemaSettings(self.schemas),
            ListenerSettings(port=0),
            JournalSettings(folder / "journal", durability="none"),
            AdminSettings(port=0),
            ReloadSettings(watch=False),
            Limits(close_grace_s=1.0),
        )

    @property
    def authority(self) -> Authority:
        """The CA of its clients."""
        return Authority.read(self.certificates)

    def policy(self, rights: Mapping[str, Mapping[str, object]], names: Mapping[str, str] | None = None) -> None:
        """Write a policy: the rights of each client, who is the principal of its own name unless `names` has another."""
        lines = []
        for client, granted in {**rights, "operator": {"admin": ["read", "write", "metrics"]}}.items():
            lines += [f'[capabilities."{client}"]', *(f"{key} = {value!r}" for key, value in granted.items())]
            name = (names or {}).get(client, client)
            lines += ["[[principals]]", f'name = "{name}"', f'fingerprints = ["{self.fingerprints[client]}"]']
            lines += [f'capabilities = ["{client}"]']
        new = self.policy_file.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(
            self.policy_file
        )  # written in place it is empty for a moment: a valid policy, by which no client may connect

    def revoke(self, *clients: str, number: int = 0) -> None:
        """Write a newer revocation list with the certificates of these clients on it."""
        certificates = [
            x509.load_pem_x509_certificate((self.certificates / f"{client}.pem").read_bytes()) for client in clients
        ]
        later = NOW + dt.timedelta(seconds=1 + number)
        (self.certificates / "crl.pem").write_bytes(self.authority.revocation_list_pem(certificates, later))

    def context(self, name: str | None) -> ssl.SSLContext:
        """A client's context; the server's name does not matter."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self.trusted)
        if name is not None:
            context.load_cert_chain(self.certificates / f"{name}.pem", self.certificates / f"{name}.key")
        return context


class Living:
    """A running gateway."""

    def __init__(
        self, site: Site, gateway: Gateway, admin_port: int, enrolment_port: int = 0, web_port: int = 0
    ) -> None:
        self.site = site
        self.gateway = gateway
        self.admin_port = admin_port
        self.enrolment_port = enrolment_port
        self.web_port = web_port

    async def reload(self, allow_orphans: bool = False) -> dict[str, Outcome]:
        """Reload; return the outcomes by item."""
        return {one.item: one for one in await self.gateway.reloader.reload("test", allow_orphans)}

    @asynccontextmanager
    async def client(self, name: str, client_id: str | None = None) -> AsyncIterator["TestClient"]:
        """Connect a client for the length of a block."""
        stream = await self.dial(name)
        async with stream:
            client = TestClient(stream)
            await client.write(encoder.connect("MAXVAPI", client_id=client_id))
            frame = await client.frame()
            assert frame.command == b"CONNECTED", (frame.headers, frame.body)
            yield client

    async def dial(self, name: str | None) -> trio.SSLStream[trio.SocketStream]:
        """Open a TLS connection."""
        transport = await trio.open_tcp_stream(*self.gateway.address)
        stream = trio.SSLStream(transport, self.site.context(name), https_compatible=True)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(transport)
            raise
        return stream

    async def refusal(self, name: str) -> tuple[bytes, bytes]:
        """Try to connect a client that must be refused with an ERROR; return its message and body."""
        async with await self.dial(name) as stream:
            client = TestClient(stream)
            await client.write(encoder.connect("MAXVAPI"))
            return await client.error()


class TestClient:
    """A STOMP client under the control of a test."""

    __test__ = False

    def __init__(self, stream: Any) -> None:
        self.stream = stream  # of TLS, or a WebSocket
        self._decoder = Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stream.aclose()

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        await self.stream.send_all(data)

    async def frame(self) -> Frame:
        """Wait for the next frame; EOFError at the end."""
        while (frame := self._decoder.next_frame()) is None:
            data = await self.stream.receive_some(65_536)
            if not data:
                raise EOFError
            self._decoder.receive_data(bytes(data))
        return frame

    async def error(self) -> tuple[bytes, bytes]:
        """Read on to an ERROR and the end after it. Return its message and body."""
        while (frame := await self.frame()).command != b"ERROR":
            pass
        try:
            while True:
                await self.frame()
        except (EOFError, trio.BrokenResourceError):
            pass
        return frame.headers[b"message"], frame.body

    async def send(self, topic: str, body: bytes) -> tuple[bytes, bytes]:
        """SEND, and return disposition and result. MESSAGEs before the RECEIPT are skipped."""
        await self.write(encoder.send(VERSION_1_2, topic.encode(), body, receipt_id=b"send"))
        while (frame := await self.frame()).command == b"MESSAGE":
            pass
        assert frame.command == b"RECEIPT", (frame.headers, frame.body)
        return frame.headers[b"disposition"], frame.headers.get(b"result", b"")

    async def subscribe(self, glob: str, ack: bytes = b"auto", **how: Any) -> None:
        """SUBSCRIBE under the id `s` and wait for the receipt."""
        await self.write(encoder.subscribe(VERSION_1_2, b"s", glob.encode(), ack, receipt_id=b"subscribed", **how))
        while (await self.frame()).headers.get(b"receipt-id") != b"subscribed":
            pass

    async def values(self, count: int) -> dict[str, bytes]:
        """Read N MESSAGEs; return the last body of each topic."""
        found = {}
        while count:
            frame = await self.frame()
            if frame.command == b"MESSAGE":
                found[frame.headers[b"destination"].decode()] = frame.body
                count -= 1
        return found


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[list[int]]:
    """Run a gateway with its admin listener for the length of a block; yield the ports for clients, operators, enrolment, pages."""
    ready = trio.Event()
    addresses: list[str] = []

    def say_ready(found: list[str]) -> None:
        addresses.extend(found)
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.run, [serve_admin], say_ready)
        await ready.wait()
        try:
            yield [port_of(address) if address else 0 for address in addresses]
        finally:
            gateway.stop()


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[Gateway, list[int]]]:
    """Run a gateway for the length of a block; yield it with the ports for clients, operators and enrolment."""
    with patch.object(server, "gc", Mock(gc)):  # at each start it would search all objects of the tests' process
        gateway = open_gateway(settings, read_config(settings))
    async with running(gateway) as ports:
        yield gateway, ports


@asynccontextmanager
async def living(site: Site, **changes: Any) -> AsyncIterator[Living]:
    """Run the gateway of a site for the length of a block."""
    site.settings = replace(site.settings, **changes)
    async with serving(site.settings) as (gateway, ports):
        with trio.fail_after(PATIENCE_S):
            yield Living(site, gateway, *ports[1:])


async def cli(gateway: Living, *arguments: str, who: str = "operator", given: bytes = b"") -> Result:
    """Run `maxam-admin` in a thread, with the certificate of a client."""
    environment = admin_environment(gateway.admin_port, gateway.site.certificates, who)
    call = partial(CliRunner().invoke, main, arguments, env=environment, input=given)
    return await trio.to_thread.run_sync(call)


class Encrypted:
    """Counts what gateways of this process encrypt, in the moment in which they do.

    Attributes:
        bytes: Plaintext, in all.
        marked: Pieces of it that hold the mark.
    """

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self.bytes = 0
        self.marked = 0

    def take(self, data: bytes | memoryview) -> None:
        """Count one piece."""
        self.bytes += len(data)
        self.marked += self._mark in bytes(data)


@contextmanager
def encrypted(mark: bytes = b"\0") -> Iterator[Encrypted]:
    """Count what is encrypted within a block."""
    counted = Encrypted(mark)
    original = TlsSocket.send

    def send(self: TlsSocket, data: bytes | bytearray | memoryview, more: bool = False) -> bool:
        counted.take(bytes(data))
        return original(self, data, more)

    TlsSocket.send = send  # type: ignore[method-assign]  # given back below
    try:
        yield counted
    finally:
        TlsSocket.send = original  # type: ignore[method-assign]


async def until(condition: Callable[[], bool]) -> None:
    """Let the gateway work on until something is so; there is no event to wait for that a client would see."""
    while not condition():  # noqa: ASYNC110  # see above
        await trio.sleep(0.002)


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Fail if a block takes longer. It counts naps of 10 ms, so a process that gets no processor for a while does not fail."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fail_after_naps, round(seconds / _NAP_S))
        yield
        nursery.cancel_scope.cancel()


async def _fail_after_naps(count: int) -> None:
    for _ in range(count):
        await trio.sleep(_NAP_S)
    raise trio.TooSlowError
