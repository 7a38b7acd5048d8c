"""Third-party clients over mutual TLS against the real gateway: library x version x feature.

Run as a program, it prints docs/integrate/interoperability.md: `python -m tests.interop.test_third_party_clients`.
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.refined_features import LIBRARIES_REFINED, REFINED_FEATURES
from tests.interop.third_party import LIBRARIES, WEB_LIBRARIES, Cell, Library, ThirdPartyClient, counter
from tests.interop.web_features import EVERY_BYTE, OVER_WEB_SOCKET
from tests.support.gateway_process import GatewayProcess
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.interop

DOCUMENT = Path(__file__).parents[2] / "docs" / "integrate" / "interoperability.md"

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
        [[rule]]
        destination = "X/*.Watched"
        encoding = "none"
        fresh_within_s = 0.2
        """,
    "interop/Counter_v1/1.0.avsc": """
        {"type": "record", "name": "Counter_v1", "namespace": "interop",
         "fields": [{"name": "count", "type": "long"}, {"name": "label", "type": "string"}]}
        """,
}


def connect(cell: Cell) -> None:
    """CONNECTED has the requested version, a session to resume with, and intervals of at least 10,000 ms."""
    with cell.client() as client:
        headers = client.connect()
        assert headers["version"] == cell.version
        assert headers["session"]
        assert headers["server"].startswith("maxam/")
        assert all(int(interval) >= 10_000 for interval in headers["heart-beat"].split(","))
        client.disconnect()


def publish(cell: Cell) -> None:
    """Another client receives each value of the library, with the exact body and the user's header."""
    with cell.client() as client, cell.peer() as peer:
        client.connect()
        client.send(cell.topic("Counter"), counter(7), floor="upper")
        message = peer.value(cell.topic("Counter"))
        assert message.body == counter(7)
        assert message.headers["floor"] == "upper"
        client.disconnect()


def receive(cell: Cell) -> None:
    """The library gets the current value at once and each later update, with the headers of MESSAGE."""
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
    """A topic waits for its ACK while others flow. Then the newest value comes, and none between."""
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
    """The library's user can distinguish accepted from rejected. A rejection keeps the connection open."""
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
    """Under its client-id, the library gets the newest value of each topic that changed in its absence."""
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
    """The library and the gateway agree on intervals. The test of silence below shows that both keep them."""
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

# Of clients over WebSocket: those of web_features, and two of those above.
WEB_FEATURES: dict[str, Callable[[Cell], None]] = {**OVER_WEB_SOCKET, "ack": ack, "heart-beats": heart_beats}
WEB_CANNOT = {
    (name, feature): "itself" for name in ("@maxam/client", "maxam (Python)") for feature in ("ack", "heart-beats")
}

# Cells that cannot run, with the reason. Everything else runs.
CANNOT: dict[tuple[str, str, str], str] = {}

# Advice for the users of each library, in the order of the table.
NOTES: dict[str, tuple[str, ...]] = {
    "stomp.py": (
        "Set `auto_decode=False`, or the first body that is not UTF-8 is damaged.",
        'Set `vhost="MAXVAPI"`.',
        "Set `set_ssl(..., ca_certs=, cert_file=, key_file=)`. It checks the chain and not the name, as MaXaM clients do.",
        "`on_receipt(frame)` has the disposition in `frame.headers`.",
        "Acknowledge with `ack(message_id, subscription)` in 1.1, and with `ack(ack_header)` in 1.2.",
        "Over TLS (9.0) one thread reads, calls `on_message` and writes. While a listener works, neither ACKs nor heart-beats"
        " leave. That lasts until it has handled all messages that were received at once (easily 100). The gateway then closes"
        " the connection with `heart-beat missed`.",
        "Put slow work of `on_message` into a queue. Let another thread empty it and acknowledge. Alternatively fix the window:"
        ' `connect(headers={"window": "1"})`.',
    ),
    "@stomp/stompjs": (
        "In Node.js, use `@stomp/tcp-wrapper` and override its `getSocket` to return `tls.connect({ca, cert, key})`.",
        "Set `connectHeaders: {host: 'MAXVAPI'}`.",
        "`watchForReceipt(id, frame => frame.headers)` has the disposition.",
        "Use `binaryBody` for bodies, in both directions.",
        "In 1.1 it does not escape header values. Write a backslash of a `selector` twice there, or speak 1.2.",
    ),
    "stompit": (
        "`connect({ssl: true, ca, cert, key, connectHeaders: {host: 'MAXVAPI', ...}})`.",
        "`onReceipt` does not pass the RECEIPT on. Read dispositions by `setCommandHandler('RECEIPT', ...)`. That handler must"
        " call the one that was set before for the ids of stompit itself, or `disconnect` fails.",
        "Alternatively connect with `rejections:error`: a rejected SEND is then an `error` event of the client.",
        "Give SEND a `content-length`. The body of a frame is a stream of Buffers (`readString` is for text).",
    ),
    "Net::Stomp": (
        "`ack` sends `message-id` alone: pass `subscription` too (1.1), or `id` with the MESSAGE's `ack` header (1.2).",
        "It sends no heart-beats: offer `0` for its own, such as `heart-beat:0,10000`. It understands the gateway's, but"
        " `receive_frame` continues to wait for a frame after one.",
        "It neither escapes nor unescapes headers.",
        "Its `disconnect` does not wait for a RECEIPT: send DISCONNECT with `send_frame` and read on until the RECEIPT.",
        "Give SEND a `content-length`.",
    ),
    "Ruby stomp": (
        "It loads client keys as RSA only. With another key, set certificate and key on the TLS context that it hands to a"
        " logger's `on_ssl_connecting`.",
        "`Stomp::Connection` with `reliable: false` shows errors instead of connecting again forever.",
        "It adds `content-type` to every SEND that has none; receivers see that header.",
    ),
    "Clients over WebSocket": (
        "Each connection needs a new ticket. `beforeConnect` of stompjs and rx-stomp is the place to get it.",
        "Java's containers send an `Origin` of their own, as browsers do (Tyrus: the host of the gateway). Set one that the"
        " operator has listed in `[web] origins`: `WebSocketHttpHeaders.setOrigin`.",
        "Spring's WebSocketStompClient asks for no subprotocol, which the gateway answers with 400 `no-common-version`:"
        ' `setSecWebSocketProtocol(List.of("v12.stomp"))`. It sends a body as binary only with'
        " `content-type:application/octet-stream`; set it for all but text.",
        "Tyrus with its default container, Grizzly, drops data that comes together with the end of the connection, such as"
        " an ERROR. Use `ClientManager.createClient(JdkClientContainer.class.getName())` of `tyrus-standalone-client-jdk`,"
        " as the [recipe](recipes/README.md#spring-over-websocket) does.",
        "Node.js: give the package `ws` the authority of the gateway, `new WebSocket(url, protocols, { ca })`.",
    ),
}


def offer(library: Library) -> tuple[int, int]:
    """Return the heart-beats that a library can offer. Net::Stomp has no timer."""
    return (0, 10_000) if library.name == "Net::Stomp" else (10_000, 10_000)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[GatewayProcess]:
    """Run one gateway for all cells."""
    fingerprints = json.loads((certificates / "fingerprints.json").read_text())
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder, certificates, POLICY.format(**fingerprints), SCHEMAS) as gateway:
        yield gateway


def run(scenario: Callable[[Cell], None], cell: Cell) -> None:
    """Run a scenario, if its library is installed."""
    cell.library.require()
    scenario(cell)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(
    ("name", "version"), [(library.name, version) for library in LIBRARIES.values() for version in library.versions]
)
def test_cell(gateway: GatewayProcess, name: str, version: str, feature: str) -> None:
    """The library can use the feature in that version, as the feature's own sentence states."""
    if reason := CANNOT.get((name, version, feature)):
        pytest.skip(reason)
    run(FEATURES[feature], Cell.make(LIBRARIES[name], version, gateway, feature))


@pytest.mark.parametrize("feature", REFINED_FEATURES)
@pytest.mark.parametrize(
    ("name", "version"), [(name, version) for name in LIBRARIES_REFINED for version in LIBRARIES[name].versions]
)
def test_refined_subscription(gateway: GatewayProcess, name: str, version: str, feature: str) -> None:
    """The library can use a header that refines a subscription, as the sentence of the feature specifies."""
    run(REFINED_FEATURES[feature], Cell.make(LIBRARIES[name], version, gateway, feature))


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
    """docs/integrate/interoperability.md lists what these tests run."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()


def wrapped(item: str) -> str:
    """Wrap an item of a list at 100 characters, outside of code."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), item)
    lines = textwrap.wrap(whole, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def document() -> str:
    """Render docs/integrate/interoperability.md."""
    lines = [
        "# Interoperation",
        "",
        "This page is for integrators who choose a STOMP library. After reading it you know which libraries",
        "were tried, how to set up each, and what surprises their users. Every run of the tests tries these",
        "third-party clients over mutual TLS against the real gateway.",
        "",
        "Do not edit this page: `python -m tests.interop.test_third_party_clients` prints it. Its part from",
        "[What surprises users](#what-surprises-users-of-every-library) on is",
        "`tests/interop/other_libraries.md`.",
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
    lines += ["The columns:", ""]
    lines += [wrapped(f"- **{name}**: {scenario.__doc__}") for name, scenario in FEATURES.items()]
    lines += [
        "",
        "These libraries were tried with the headers of",
        "[refined subscriptions](../protocol.md#refined-subscriptions). They need nothing more than a way to",
        "add headers to SUBSCRIBE, so other libraries can use them too.",
        "",
        f"| library | version | {' | '.join(REFINED_FEATURES)} |",
        f"|---|---|{'---|' * len(REFINED_FEATURES)}",
    ]
    for name in LIBRARIES_REFINED:
        for version in LIBRARIES[name].versions:
            lines.append(f"| {name} | {version} |{' yes |' * len(REFINED_FEATURES)}")
    lines += ["", "The columns:", ""]
    lines += [wrapped(f"- **{name}**: {scenario.__doc__}") for name, scenario in REFINED_FEATURES.items()]
    lines += [
        "",
        "These clients were tried over WebSocket with a [ticket](web.md#make-a-ticket), as pages and programs",
        "without a certificate connect. The two of maxam send ACKs and heart-beats by themselves.",
        "",
        f"| client | version | {' | '.join(WEB_FEATURES)} |",
        f"|---|---|{'---|' * len(WEB_FEATURES)}",
    ]
    for library in WEB_LIBRARIES.values():
        for version in library.versions:
            cells = [WEB_CANNOT.get((library.name, feature), "yes") for feature in WEB_FEATURES]
            lines.append(f"| {library.name} | {version} | {' | '.join(cells)} |")
    lines += ["", "The columns that are new here:", ""]
    lines += [wrapped(f"- **{name}**: {scenario.__doc__}") for name, scenario in OVER_WEB_SOCKET.items()]
    lines += [
        "",
        "One more test lets all libraries be silent together. The gateway then closes only a connection that",
        "promised heart-beats and sends none. All others stay and are served.",
        "",
        "The programs to copy are the [recipes](recipes/README.md). Those of this table are in",
        "`tests/interop/clients/`.",
        "",
        "## What a user of each library must know",
    ]
    for name, notes in NOTES.items():
        lines += ["", f"### {name}", "", *(wrapped(f"- {note}") for note in notes)]
    others = (Path(__file__).parent / "other_libraries.md").read_text(encoding="utf-8")
    return "\n".join(lines) + "\n\n" + others


if __name__ == "__main__":
    sys.stdout.write(document())
