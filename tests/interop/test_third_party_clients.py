"""Third-party clients over mutual TLS against the real gateway: library x version x feature.

Run as a program, it prints docs/interoperability.md: `python -m tests.interop.test_third_party_clients`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gateway_process import GatewayProcess
from tests.interop.raw_client import RawClient
from tests.interop.third_party import LIBRARIES, Library, ThirdPartyClient

pytestmark = pytest.mark.interop

DOCUMENT = Path(__file__).parents[2] / "docs" / "interoperability.md"

POLICY = """
[capabilities.both]
send = ["X/Interop.*"]
receive = ["X/Interop.*"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["both"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["both"]
"""
SCHEMAS = {
    "registry.toml": """
        [[rule]]
        destination = "X/*.Counter"
        schema = "interop.Counter_v1"
        encoding = "datum"
        [[rule]]
        destination = "X/*.Blob"
        encoding = "none"
        """,
    "interop/Counter_v1/1.0.avsc": """
        {"type": "record", "name": "Counter_v1", "namespace": "interop",
         "fields": [{"name": "count", "type": "long"}, {"name": "label", "type": "string"}]}
        """,
}
EVERY_BYTE = bytes(range(256)) * 2 + b"\0\n\0\r\n\0\n\n"


def counter(count: int) -> bytes:
    """Encode a Counter, 0 to 63: a datum in which a NUL is nothing special."""
    return bytes((count * 2, 6)) + b"abc"


@dataclass(frozen=True)
class Cell:
    """One library, one version, and a place of its own among the topics of a gateway that all cells share."""

    library: Library
    version: str
    gateway: GatewayProcess
    place: str

    def client(self) -> ThirdPartyClient:
        """Start a program that uses the library."""
        return ThirdPartyClient(self.library, self.version, self.gateway, "subscriber")

    def peer(self) -> RawClient:
        """Connect somebody else, who publishes to the library's user and sees what it publishes."""
        return RawClient(self.gateway, "publisher")

    def topic(self, name: str) -> str:
        """Name a topic of this cell."""
        return f"X/Interop.{self.place}.{name}"


def connect(cell: Cell) -> None:
    """CONNECTED names the version asked for, a session to resume with, and never less than 10,000 ms."""
    with cell.client() as client:
        headers = client.connect()
        assert headers["version"] == cell.version
        assert headers["session"]
        assert headers["server"].startswith("maxam/")
        assert all(int(interval) >= 10_000 for interval in headers["heart-beat"].split(","))
        client.disconnect()


def publish(cell: Cell) -> None:
    """What the library sends, another client receives: the body exactly, and the user's header."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.send(cell.topic("Counter"), counter(7), floor="upper")
        message = peer.value(cell.topic("Counter"))
        assert message.body == counter(7)
        assert message.headers["floor"] == "upper"
        client.disconnect()


def receive(cell: Cell) -> None:
    """The library gets the current value at once and each update after it, with the headers that MESSAGE must have."""
    with cell.client() as client, cell.peer() as peer:
        peer.send(cell.topic("Counter"), counter(1))
        client.connect()
        client.subscribe("s", cell.topic("*"), eager="true")
        first = client.message()
        peer.send(cell.topic("Counter"), counter(2))
        second = client.message()
        assert [first.body, second.body] == [counter(1), counter(2)]
        assert second.headers["destination"] == cell.topic("Counter")
        assert second.headers["subscription"] == "s"
        assert int(second.headers["message-id"]) > int(first.headers["message-id"])
        assert "ack" not in second.headers
        client.disconnect()


def ack(cell: Cell) -> None:
    """Until the library acknowledges, its topic waits while others flow; then comes the newest value, none between."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.subscribe("s 1", cell.topic("*"), ack="client")
        peer.send(cell.topic("A.Counter"), counter(1))
        first = client.message()
        assert first.headers["ack"] == f"s 1 {first.headers['message-id']}"
        for topic, count in (("A", 2), ("A", 3), ("B", 1)):
            peer.send(cell.topic(f"{topic}.Counter"), counter(count))
        other = client.message()
        assert other.headers["destination"] == cell.topic("B.Counter")
        assert "result" not in client.ack(first)
        newest = client.message()
        assert newest.headers["destination"] == cell.topic("A.Counter")
        assert newest.body == counter(3)
        assert "result" not in client.ack(newest)
        assert client.ack(newest)["result"] == "ignored"
        client.disconnect()
        assert client.unread() == 0


def receipts(cell: Cell) -> None:
    """The library's user can tell accepted from rejected, and a rejection leaves the connection as it was."""
    with cell.client() as client:
        client.connect()
        invalid = client.send(cell.topic("Counter"), b"\xff")
        unauthorised = client.send("X/Foreign.Counter", counter(1))
        accepted = client.send(cell.topic("Counter"), counter(1))
        for headers, disposition in (
            (invalid, "rejected-invalid"),
            (unauthorised, "rejected-unauthorised"),
            (accepted, "accepted"),
        ):
            assert headers["disposition"] == headers["content-disposition"] == disposition
        assert "interop.Counter_v1" in invalid["reason"]
        client.disconnect()


def durable_resume(cell: Cell) -> None:
    """Under its client-id, the library gets the newest value of what changed while it was away, nothing else."""
    with cell.peer() as peer:
        with cell.client() as client:
            session = client.connect(client_id=cell.place)["session"]
            assert session == cell.place
            subscribed = client.subscribe("s", cell.topic("*"), durable="true", ack="client")
            assert subscribed["result"] == "created"
            for topic in "AC":
                peer.send(cell.topic(f"{topic}.Counter"), counter(1))
                client.ack(client.message())
            client.disconnect()
        for topic, count in (("A", 2), ("A", 3), ("B", 1)):
            peer.send(cell.topic(f"{topic}.Counter"), counter(count))
        with cell.client() as client:
            client.connect(client_id=cell.place)
            subscribed = client.subscribe("s", cell.topic("*"), durable="true", ack="client")
            assert subscribed["result"] == "resumed"
            messages = [client.message(), client.message()]
            assert {message.headers["destination"]: message.body for message in messages} == {
                cell.topic("A.Counter"): counter(3),
                cell.topic("B.Counter"): counter(1),
            }
            client.ack(messages[-1])
            assert client.unsubscribe("s", cell.topic("*"), durable="true")["result"] == "removed"
            client.disconnect()
            assert client.unread() == 0


def heart_beats(cell: Cell) -> None:
    """The library and the gateway agree on intervals; that both keep them is shown by the test of silence below."""
    with cell.client() as client:
        assert client.connect(heart_beat=offer(cell.library))["heart-beat"] == "10000,10000"
        client.disconnect()


def binary(cell: Cell) -> None:
    """A body of every byte value, NULs and line ends included, passes unchanged in both directions."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.send(cell.topic("Out.Blob"), EVERY_BYTE)
        assert peer.value(cell.topic("Out.Blob")).body == EVERY_BYTE
        client.subscribe("s", cell.topic("In.Blob"))
        peer.send(cell.topic("In.Blob"), EVERY_BYTE)
        assert client.message().body == EVERY_BYTE
        client.disconnect()


FEATURES: dict[str, Callable[[Cell], None]] = {
    "connect": connect,
    "publish": publish,
    "receive": receive,
    "ack": ack,
    "receipts": receipts,
    "durable resume": durable_resume,
    "heart-beats": heart_beats,
    "binary": binary,
}

# Cells that cannot run, with the reason. Everything else runs.
CANNOT: dict[tuple[str, str, str], str] = {}

# What a user of a library must know to get there, in the order of the table.
NOTES: dict[str, tuple[str, ...]] = {
    "stomp.py": (
        '`auto_decode=False`, or the first body that is not UTF-8 is damaged; `vhost="MAXVAPI"`.',
        "`set_ssl(..., ca_certs=, cert_file=, key_file=)`; it checks the chain and not the name, as MaXaM clients do.",
        "Dispositions: `on_receipt(frame)`, in `frame.headers`. 1.1: `ack(message_id, subscription)`; 1.2: `ack(ack_header)`.",
        "Over TLS (9.0) one thread reads, calls `on_message` and writes: while a listener works, and until it has worked off all that was received"
        " at once (100 messages, easily), neither ACKs nor heart-beats leave, and the gateway closes the connection with `heart-beat missed`."
        " Whatever takes long in `on_message` belongs into a queue that another thread empties, and acknowledges; or fix the window:"
        ' `connect(headers={"window": "1"})`.',
    ),
    "@stomp/stompjs": (
        "In Node.js over `@stomp/tcp-wrapper`, whose `getSocket` is overridden to return `tls.connect({ca, cert, key})`; "
        "`connectHeaders: {host: 'MAXVAPI'}`.",
        "Dispositions: `watchForReceipt(id, frame => frame.headers)`. Bodies: `binaryBody`, in both directions.",
    ),
    "stompit": (
        "`connect({ssl: true, ca, cert, key, connectHeaders: {host: 'MAXVAPI', ...}})`.",
        "`onReceipt` does not pass the RECEIPT on: dispositions are read by `setCommandHandler('RECEIPT', ...)`.",
        "Give SEND a `content-length`; a frame's body is a stream of Buffers (`readString` is for text).",
    ),
    "Net::Stomp": (
        "`ack` sends `message-id` alone: pass `subscription` too (1.1), or `id` with the MESSAGE's `ack` header (1.2).",
        "It sends no heart-beats: offer `0` for its own, such as `heart-beat:0,10000`; the gateway's are understood, but "
        "`receive_frame` goes on waiting for a frame after one.",
        "It neither escapes nor unescapes headers. Its `disconnect` does not wait for a RECEIPT: send DISCONNECT with "
        "`send_frame` and read on until the RECEIPT.",
        "Give SEND a `content-length`.",
    ),
    "Ruby stomp": (
        "It loads client keys as RSA only. With another key, set certificate and key on the TLS context that it hands to a "
        "logger's `on_ssl_connecting`.",
        "`Stomp::Connection` with `reliable: false` shows errors instead of connecting again for ever.",
        "It adds `content-type` to every SEND that has none; receivers see that header.",
    ),
}


def offer(library: Library) -> tuple[int, int]:
    """Tell which heart-beats a library can offer: Net::Stomp has no timer."""
    return (0, 10_000) if library.name == "Net::Stomp" else (10_000, 10_000)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[GatewayProcess]:
    """Run one gateway for all cells."""
    fingerprints = json.loads((certificates / "fingerprints.json").read_text())
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder, certificates, POLICY.format(**fingerprints), SCHEMAS) as gateway:
        yield gateway


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(
    ("name", "version"), [(library.name, version) for library in LIBRARIES.values() for version in library.versions]
)
def test_cell(gateway: GatewayProcess, name: str, version: str, feature: str) -> None:
    """The library can use the feature in that version, as the feature's own sentence says."""
    if reason := CANNOT.get((name, version, feature)):
        pytest.skip(reason)
    library = LIBRARIES[name]
    library.require()
    words = f"{name}-{version}-{feature}".replace(".", "_")
    FEATURES[feature](Cell(library, version, gateway, "".join(c if c.isalnum() else "-" for c in words)))


@pytest.mark.slow
def test_heart_beats_keep_connections_alive(gateway: GatewayProcess) -> None:
    """While a client that breaks its word to send is closed after 20 s, every library that keeps it stays and is served."""
    for library in LIBRARIES.values():
        library.require()
    topic = "X/Interop.silence.Counter"
    with ExitStack() as stack:
        clients = []
        for library in LIBRARIES.values():
            client = stack.enter_context(ThirdPartyClient(library, library.versions[-1], gateway, "subscriber"))
            client.connect(heart_beat=offer(library))
            client.subscribe("s", topic)
            clients.append(client)
        silent = stack.enter_context(RawClient(gateway, "publisher", heart_beat="10000,10000"))
        end = silent.read()  # all were connected before, so all have been silent for as long
        assert end.command == "ERROR"
        assert silent.heart_beats > 0
        with RawClient(gateway, "publisher") as peer:
            peer.send(topic, counter(1))
        for client in clients:
            assert client.message().body == counter(1)
            assert client.send("X/Interop.silence.After.Counter", counter(1))["disposition"] == "accepted"
            client.disconnect()


def test_the_document_is_the_table() -> None:
    """docs/interoperability.md says what these tests run."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()


def document() -> str:
    """Render docs/interoperability.md."""
    lines = [
        "# Interoperation",
        "",
        "Third-party clients that are tried over mutual TLS against the real gateway, in every run of the tests. Made by",
        "`python -m tests.interop.test_third_party_clients > docs/interoperability.md`; do not edit.",
        "",
        f"| library | version | {' | '.join(FEATURES)} |",
        f"|---|---|{'---|' * len(FEATURES)}",
    ]
    reasons: list[str] = []
    for library in LIBRARIES.values():
        for version in library.versions:
            cells = []
            for feature in FEATURES:
                reason = CANNOT.get((library.name, version, feature))
                if reason and reason not in reasons:
                    reasons.append(reason)
                cells.append(f"no ({reasons.index(reason) + 1})" if reason else "yes")
            lines.append(f"| {library.name} | {version} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    lines += ["What each column shows:", ""]
    lines += [f"- **{name}**: {scenario.__doc__}" for name, scenario in FEATURES.items()]
    lines += [
        "",
        "One more test lets all libraries be silent together until the gateway closes a connection that promised heart-beats",
        "and sends none: all others stay and are served.",
        "",
        "The programs are in `tests/interop/clients/`, one per library and 40 to 90 lines long: good to copy from.",
        "",
        "## What a user of each library must know",
    ]
    for name, notes in NOTES.items():
        lines += ["", f"### {name}", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
