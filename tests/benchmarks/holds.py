"""How long requests of the admin API hold the event loop at a time: each listing of a gateway with many topics, sessions and subscriptions.

The gateway and the client run in this process and this event loop. So no other thread of Python can take the interpreter in the middle
of a step. A step is the work of a task between two of its waits. Steps of the client's task do not count. The elapsed time and the
processor time of the thread are measured for each step. On a machine that does other work too, only the second is the gateway's.
"""

import json
import resource
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import quote

import click
import trio
from rich import box
from rich.table import Table

from maxam.api.application import ROUTES
from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.output import console
from maxam.compiled import core
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
from maxam.gateway.loaded_config import read_config
from maxam.gateway.opening import open_gateway
from maxam.pki.certificates import issue_development_certificates
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.living_gateway import running

_TOPIC: Final = "X/EGM.Q.{:07}.EGMMeterReading"
_BODY_BYTES: Final = 120
_BATCH: Final = 500  # SENDs written at a time
_GLOBS: Final = 10  # of each session
_PAGES_MAX: Final = 20  # of one listing in one round
_RECEIVE_BYTES: Final = 262_144
_POLICY: Final = """
[capabilities.load]
send = ["X/**"]
receive = ["X/**"]
[capabilities.operate]
receive = ["X/**"]
admin = ["read", "write", "metrics", "enrol"]
"""
_PRINCIPAL: Final = (
    '[[principals]]\nname = "{name}"\nfingerprints = ["{fingerprint}"]\ncapabilities = ["{capability}"]\n'
)
_FILL: Final = {  # of paths
    "{destination:path}": _TOPIC.format(1),
    "{key:path}": "publisher/session-0001",
    "{name}": METER_READING,
    "{minor}": "latest",
    "{subject}": METER_READING,
    "{version}": "1",
}
_FURTHER: Final = (  # beside each route that reads, as it is without parameters
    "/v1/topics?limit=200",
    "/v1/topics?limit=200&values=true",
    "/v1/topics?limit=200&values=raw",
    "/v1/topics?limit=200&glob=X/*.00*7.*",
    "/v1/topics?limit=200&where=meters.auxiliary.turnover%20%3C%20-1",
    "/v1/sessions?limit=200",
    "/v1/connections?limit=200",
    "/v1/subscriptions?limit=200",
    "/v1/subscriptions/explain?principal=publisher&client_id=session-0001&id=last&destination=" + _TOPIC.format(1000),
    "/v1/overdue?limit=200",
    "/v1/rejects?limit=200",
    "/v1/policy/explain?principal=publisher&receive=X/**",
)
_ENDLESS: Final = ("/v1/live", "/v1/values/live")


@final
class Steps(trio.abc.Instrument):
    """Takes the longest step of all tasks but one.

    Attributes:
        wall_s: The longest on the clock.
        processor_s: The longest in processor time of this thread.
        count: How many there were.
    """

    def __init__(self, apart: trio.lowlevel.Task) -> None:
        self._apart: Final = apart
        self._began = (0.0, 0.0)
        self.wall_s = 0.0
        self.processor_s = 0.0
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Begin."""
        if task is not self._apart:
            self._began = (time.perf_counter(), time.thread_time())

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """End."""
        if task is not self._apart:
            self.count += 1
            self.wall_s = max(self.wall_s, time.perf_counter() - self._began[0])
            self.processor_s = max(self.processor_s, time.thread_time() - self._began[1])


@contextmanager
def counted_steps() -> Iterator[Steps]:
    """Take the steps of all tasks but the calling one, for the length of a block."""
    steps = Steps(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)


@dataclass(frozen=True, slots=True)
class Held:
    """Times of one listing.

    Attributes:
        path: As it was asked for.
        status: Of the answer.
        pages: In each round.
        wall_ms: The longest step of each round.
        processor_ms: The same in processor time.
        page_ms: Median time of a page.
    """

    path: str
    status: int
    pages: int
    wall_ms: list[float]
    processor_ms: list[float]
    page_ms: float


@final
class _Scene:
    """The files of a gateway, and TLS for its clients."""

    def __init__(self, folder: Path) -> None:
        self._certificates: Final = folder / "certs"
        fingerprints = issue_development_certificates(self._certificates, datetime.now(UTC))
        policy = folder / "policy.toml"
        rows = [("publisher", "load"), ("operator", "operate")]
        principals = [
            _PRINCIPAL.format(name=name, fingerprint=fingerprints[name], capability=capability)
            for name, capability in rows
        ]
        policy.write_text(_POLICY + "".join(principals))
        certificates = self._certificates
        self.settings: Final = Settings(
            TlsSettings(certificates / "server.pem", certificates / "server.key", certificates / "ca.pem"),
            PolicySettings(policy),
            SchemaSettings(SCHEMAS),
            ListenerSettings(port=0),
            JournalSettings(folder / "journal", durability="none"),
            AdminSettings(port=0),
            ReloadSettings(watch=False),
            Limits(sessions_per_principal_max=100_000),
        )

    def context(self, name: str) -> ssl.SSLContext:
        """Return TLS with a client's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._certificates / "ca.pem")
        context.load_cert_chain(self._certificates / f"{name}.pem", self._certificates / f"{name}.key")
        return context


@final
class _Operator:
    """One connection to the admin listener."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream: Final = stream
        self._read = b""

    async def get(self, path: str) -> tuple[int, bytes]:
        """Ask; return status and body."""
        await self._stream.send_all(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        while (end := self._read.find(b"\r\n\r\n")) < 0:
            await self._more()
        head, self._read = self._read[:end].decode("latin-1"), self._read[end + 4 :]
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            await self._more()
        body, self._read = self._read[:length], self._read[length:]
        return int(head.split(" ", 2)[1]), body

    async def _more(self) -> None:
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        if not data:
            raise EOFError("the admin listener closed the connection")
        self._read += data


async def _dial(address: tuple[str, int], context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = await trio.open_tcp_stream(*address)
    tls = trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)
    await tls.do_handshake()
    return tls


async def _await_text(stream: trio.SSLStream[trio.SocketStream], text: bytes) -> None:
    seen = b""
    while text not in seen:
        data = await stream.receive_some(_RECEIVE_BYTES)
        if not data:
            raise EOFError(seen[-500:].decode(errors="replace"))
        seen = seen[-len(text) :] + bytes(data)


async def _fill(scene: _Scene, address: tuple[str, int], topics: int, clients: AsyncExitStack, sessions: int) -> None:
    """Make topics and sessions with subscriptions; the sessions stay connected as long as `clients`."""
    context = scene.context("publisher")
    bodies = avro_bodies(read_schemas(SCHEMAS), METER_READING, _TOPIC.format(0), 64, _BODY_BYTES)
    publisher = await _dial(address, context)
    await publisher.send_all(encoder.connect("MAXVAPI"))
    await _await_text(publisher, b"CONNECTED")
    for start in range(0, topics, _BATCH):
        last = min(start + _BATCH, topics)
        frames = [
            encoder.send(VERSION_1_2, _TOPIC.format(n).encode(), bodies[n % len(bodies)])
            for n in range(start, last - 1)
        ]
        mark = b"sent-%d" % last
        frames.append(encoder.send(VERSION_1_2, _TOPIC.format(last - 1).encode(), bodies[0], receipt_id=mark))
        await publisher.send_all(b"".join(frames))
        await _await_text(publisher, b"receipt-id:" + mark + b"\n")
    for number in range(1000):  # rejected: there is no rule
        await publisher.send_all(encoder.send(VERSION_1_2, b"X/none.%d" % number, b"body"))
    await publisher.aclose()
    for number in range(sessions):
        stream = await clients.enter_async_context(await _dial(address, context))
        frames = [encoder.connect("MAXVAPI", client_id=f"session-{number:04}")]
        frames += [
            encoder.subscribe(VERSION_1_2, b"%d" % at, f"X/EGM.Q.{number:04}{at:03}.*".encode(), b"client")
            for at in range(_GLOBS - 1)
        ]
        glob = f"X/EGM.Q.{number:04}*.*".encode()
        frames.append(encoder.subscribe(VERSION_1_2, b"last", glob, b"client", receipt_id=b"subscribed"))
        await stream.send_all(b"".join(frames))
        await _await_text(stream, b"subscribed")


def listings() -> list[str]:
    """Return what is asked for: each route that reads, and the longest pages."""
    found = []
    for method, path, _, _ in ROUTES:
        if method == "GET" and path not in _ENDLESS:
            for name, value in _FILL.items():
                path = path.replace(name, quote(value, safe="/"))  # noqa: PLW2901  # filled in
            if "{" not in path:
                found.append(path)
    known = {path.partition("?")[0] for path in found}
    return found + [path for path in _FURTHER if path.partition("?")[0] in known]


async def _measure(operator: _Operator, path: str, rounds: int) -> Held:
    wall_ms: list[float] = []
    processor_ms: list[float] = []
    pages_ms: list[float] = []
    status = pages = 0
    for _ in range(rounds):
        with counted_steps() as steps:
            following: Any = ""
            pages = 0
            while following is not None and pages < _PAGES_MAX:
                join = "&" if "?" in path else "?"
                after = f"{join}after={quote(following, safe='')}" if following else ""
                began_s = time.perf_counter()
                status, body = await operator.get(path + after)
                pages_ms.append((time.perf_counter() - began_s) * 1000)
                pages += 1
                following = None
                if status == 200 and body[:1] == b"{" and b'"next"' in body:
                    following = json.loads(body).get("next")
        wall_ms.append(steps.wall_s * 1000)
        processor_ms.append(steps.processor_s * 1000)
    return Held(path, status, pages, wall_ms, processor_ms, statistics.median(pages_ms))


async def measure(folder: Path, topics: int, sessions: int, rounds: int, progress: Callable[[str], None]) -> list[Held]:
    """Fill a gateway of our own and ask it for each listing again and again."""
    scene = _Scene(folder)
    gateway = open_gateway(scene.settings, read_config(scene.settings))
    async with running(gateway) as ports, AsyncExitStack() as clients:
        progress(f"filling: {topics} topics, {sessions} sessions with {_GLOBS} subscriptions each")
        await _fill(scene, gateway.address, topics, clients, sessions)
        context = scene.context("operator")
        await trio.sleep(1)  # what the load began is over: snapshots, scans
        found = []
        for path in ["(nothing asked)", *listings()]:
            progress(path)
            if path.startswith("("):
                with counted_steps() as steps:
                    await trio.sleep(rounds / 2)
                found.append(Held(path, 0, 0, [steps.wall_s * 1000], [steps.processor_s * 1000], 0.0))
            else:
                async with await _dial(("127.0.0.1", ports[1]), context) as stream:  # one serves a thousand requests
                    found.append(await _measure(_Operator(stream), path, rounds))
        return found


def _print(found: list[Held], topics: int, sessions: int) -> None:
    table = Table(
        "listing",
        "status",
        "pages",
        "longest step ms",
        "of all rounds",
        "processor ms",
        "a page ms",
        box=box.SIMPLE_HEAD,
    )
    table.title = f"{topics:,} topics, {sessions:,} sessions, {sessions * _GLOBS:,} subscriptions, {core()} core"
    for one in found:
        table.add_row(
            one.path,
            str(one.status or ""),
            str(one.pages or ""),
            f"{statistics.median(one.wall_ms):.2f}",
            f"{max(one.wall_ms):.2f}",
            f"{statistics.median(one.processor_ms):.2f}",
            f"{one.page_ms:.2f}",
        )
    console(to_stderr=False).print(table)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


@click.command("holds")
@click.option("--topics", default=100_000, help="Topics of the gateway.")
@click.option("--sessions", default=1000, help=f"Connected sessions, each with {_GLOBS} subscriptions.")
@click.option("--rounds", default=7, help="Rounds of which the median is shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one object per listing, a line each.")
def holds_command(topics: int, sessions: int, rounds: int, as_json: bool) -> None:
    """Measure the longest time that each listing of the admin API holds the event loop."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="maxam-holds-") as name:
        arguments = (Path(name), topics, sessions, rounds, _say)
        found = trio.run(measure, *arguments)
    if as_json:
        for one in found:
            sys.stdout.write(json.dumps({field: getattr(one, field) for field in one.__slots__}) + "\n")
    else:
        _print(found, topics, sessions)
