"""docs/protocol.md is true: its examples are real frames, and its tables agree with the program."""

import re
import tomllib
from pathlib import Path

import pytest

import maxam
from maxam.config import Limits, load_settings
from maxam.content import pack
from maxam.errors import ProtocolError
from maxam.records import REJECTION_RESULTS
from maxam.stomp import encoder
from maxam.stomp.events import DROPPED_HEADERS, PROVENANCE, VERSION_1_1, VERSION_1_2, Connect, Event, Failure
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from maxam.stomp.protocol import Protocol
from tests.support.sans_io import World

ROOT = Path(__file__).parents[3]
PACKAGE = Path(maxam.__file__).parent  # a wheel has the source beside the machine code
PAGE = (ROOT / "docs/protocol.md").read_text()

# The examples of the page.

EXAMPLES = re.findall(r"^```stomp(?:-session)? (client|server)(?: (1\.1))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
VERSIONS = {"": VERSION_1_2, "1.1": VERSION_1_1}


def wire(example: str) -> bytes:
    """Return the bytes of an example: the line end after a frame is there for the reader only."""
    return re.sub(r"\^@\n(?=[A-Z]|\Z)", "^@", example).replace("^@", "\0").encode()


def client_events(data: bytes, version: int) -> list[Event]:
    """Return what the server reads in `data`."""
    protocol = Protocol(Limits())
    if not data.startswith((b"CONNECT", b"STOMP")):
        protocol.receive_data(encoder.connect("MAXVAPI", (version,)))
    return protocol.receive_data(data)


def encoded(frame: Frame, version: int) -> bytes:
    """Write a server's frame with the encoder."""
    headers = dict(frame.headers)
    if frame.command == b"CONNECTED":
        can, _, wants = headers[b"heart-beat"].partition(b",")
        beat = (int(can), int(wants))
        return encoder.connected(version, headers[b"session"].decode(), beat, headers[b"server"].decode())
    if frame.command == b"RECEIPT":
        return encoder.receipt(version, headers.pop(b"receipt-id"), tuple(headers.items()))
    del headers[b"content-length"]
    if frame.command == b"ERROR":
        receipt = headers.pop(b"receipt-id", None)
        message = headers.pop(b"message").decode()
        assert headers.pop(b"content-type") == b"text/plain"
        return encoder.error(version, ProtocolError(message, frame.body.decode(), receipt, tuple(headers.items())))
    acknowledged = headers.pop(b"ack", None) is not None
    prefix = encoder.message_prefix(version, headers.pop(b"subscription"), acknowledged)
    destination, revision = headers.pop(b"destination"), int(headers.pop(b"message-id"))
    shared = encoder.message_shared(
        version, acknowledged, destination, revision, *pack(tuple(headers.items()), frame.body)
    )
    return prefix + shared


class TestExamples:
    """The literal frames of docs/protocol.md."""

    def test_there_are_some(self) -> None:
        """Every frame of either side but heart-beats is shown at least once."""
        shown = {line for *_, text in EXAMPLES for line in text.split("\n") if line.isupper()}
        assert shown >= {
            *("CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "DISCONNECT"),
            *("CONNECTED", "MESSAGE", "RECEIPT", "ERROR"),
        }

    @pytest.mark.parametrize(("side", "version", "text"), EXAMPLES)
    def test_it_is_real(self, side: str, version: str, text: str) -> None:
        """Frames of clients are read without error, and the encoder writes the broker's frames as shown."""
        data = wire(text)
        if side == "client":
            events = client_events(data, VERSIONS[version])
            assert events
            assert not any(isinstance(event, Failure) for event in events)
        else:
            frames = list(Decoder(Limits(), SERVER_COMMANDS, VERSIONS[version]).feed(data))
            assert frames
            assert b"".join([encoded(frame, VERSIONS[version]) for frame in frames]) == data

    def test_the_rejection_shown_is_the_one_sent(self) -> None:
        """The example of a SEND that its schema does not allow is answered as shown, by the schemas in the repository."""
        files = [path for path in (ROOT / "schemas").rglob("*") if path.suffix in {".toml", ".avsc", ".lock"}]
        schemas = {path.relative_to(ROOT / "schemas").as_posix(): path.read_bytes() for path in files}
        world = World.make(schemas=schemas, anna={"send": ["X/**"], "receive": []})
        client = world.client()
        at, sent = next((at, wire(text)) for at, (*_, text) in enumerate(EXAMPLES) if "receipt:m-17" in text)
        client.write(sent)
        assert b"".join(client.peer.data_to_send(world.now_s)) == wire(EXAMPLES[at + 1][-1])

    def test_the_error_shown_is_the_one_sent(self) -> None:
        """Each ERROR in the page has the very text of the program."""
        client = World.make().client(rejections="error")
        client.send("Y/a", receipt="m-17")
        assert b"".join(client.peer.data_to_send(client.world.now_s)) in [wire(text) for *_, text in EXAMPLES]
        (event,) = Protocol(Limits()).receive_data(b"CONNECT\naccept-version:1.0\nhost:MAXVAPI\n\n\0")
        assert isinstance(event, Failure)
        assert encoder.error(VERSION_1_2, event.error) in [wire(text) for *_, text in EXAMPLES]

    def test_accepted_versions(self) -> None:
        """The example of 1.1 negotiates 1.1."""
        (example,) = [wire(text) for *_, text in EXAMPLES if text.startswith("STOMP")]
        (event,) = client_events(example, VERSION_1_1)
        assert isinstance(event, Connect)
        assert event.version == VERSION_1_1


def table(section: str, header: str) -> list[list[str]]:
    """Return the cells of the table of the page with this header line, without backticks."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0].partition(f"\n| {header} |\n")[2]
    rows = text.partition("\n\n")[0].strip().split("\n")[1:]
    return [[cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def sources(*folders: str) -> str:
    """Return the source text of the modules in these folders of the package."""
    files = [path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.py"))]
    return "\n".join(path.read_text() for path in files if path.name != "answers.py")  # a client's reader


class TestTables:
    """The tables of the page agree with the program."""

    def test_limits(self) -> None:
        """Every limit in the page has the default that the page shows."""
        rows = table("Limits", "limit | default | of what, and what happens")
        assert len(rows) > 15
        assert {name: float(getattr(Limits(), name)) for name, *_ in rows} == {
            name: float(value) for name, value, _ in rows
        }

    def test_result_codes(self) -> None:
        """The table of results is closed: the program has these and no others."""
        text = sources("broker", "avro", "gateway")
        codes = re.findall(
            r'Rejection\("([a-z-]+)"|_(?:rejection|misshapen)\(\s*"([a-z-]+)"|_unknown\(\s*"([a-z-]+)", "([a-z-]+)"|\(b"result", b"([a-z-]+)"\)',
            text,
        )
        assert {code for found in codes for code in found if code} == {
            row[0] for row in table("Result codes", "`result` | on | means")
        }
        rejections = [row[0] for row in table("Result codes", "`result` | on | means") if "rejected-" in row[1]]
        assert list(REJECTION_RESULTS) == rejections

    def test_messages_of_errors(self) -> None:
        """The table of `message` texts is complete, and each of them exists."""
        text = sources("stomp", "broker", "gateway", "api")
        found = re.findall(r'(?:ProtocolError|_refuse|_?refusal)\(\s*(?:frame,\s*)?f?"([^"]+)"', text)
        found += re.findall(r'^TAKEOVER: Final = "([^"]+)"', text, re.MULTILINE)
        patterns = {re.sub(r"\\{.*?\\}", "[a-z-]+", re.escape(message)) for message in found}
        listed = [row[0] for row in table("ERROR", "`message` | when")]
        assert len(listed) == len(set(listed))
        assert [m for m in listed if not any(re.fullmatch(p, m) for p in patterns)] == []
        assert [p for p in patterns if not any(re.fullmatch(p, m) for m in listed)] == []

    def test_dropped_headers(self) -> None:
        """The header names that the page lists as dropped are dropped, and no others."""
        names = re.findall(
            r"`([a-z-]+)`", PAGE.partition("reserved for the broker and dropped:\n\n")[2].partition("\n\n")[0]
        )
        assert {name.encode() for name in names} == DROPPED_HEADERS - PROVENANCE
        lines = "".join(f"{name}:1\n" for name in names if name not in {"transaction", "content-length", "destination"})
        (event,) = client_events(f"SEND\ndestination:X/a\n{lines}source:s\n\nbody\0".encode(), VERSION_1_2)
        assert getattr(event, "headers", None) == ((b"source", b"s"),)

    def test_headers_of_frames(self) -> None:
        """Each header that the encoder or the broker writes is in a table of headers or in an example of the page."""
        text = (PACKAGE / "stomp/encoder.py").read_text() + sources("broker")
        written = set(
            re.findall(r'(?:b"|\\n)([a-z][a-z-]+):', text) + re.findall(r'(?<!\w)\(b"([a-z][a-z-]+)", ', text)
        )
        assert written >= {"ack", "conflated", "kind", "publisher", "position", "schema", "subscription", "value-state"}
        tables = re.findall(r"^\| header[^\n]*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
        names = {
            name
            for rows in tables
            for row in rows.split("\n")
            for name in re.findall(r"`([a-z-]+)`", row[: row.find("|", 1)])
        }
        names |= {name for *_, example in EXAMPLES for name in re.findall(r"^([a-z-]+):", example, re.MULTILINE)}
        assert written - names == set()

    def test_links(self) -> None:
        """Every link within the page has its section, and every section is in the contents."""
        sections = {title.lower().replace(" ", "-").strip() for title in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)}
        assert set(re.findall(r"\]\(#([a-z-]+)\)", PAGE)) == sections

    def test_heart_beats_cannot_be_set_below_ten_seconds(self) -> None:
        """Spec: MaXaM "intervals of not less than 10000 (ms) in its CONNECTED response"."""
        minimal = '[tls]\ncertificate="c"\nkey="k"\nclient_ca="a"\n[policy]\nfile="p"\n[schemas]\nfolder="s"\n'
        tomllib.loads(minimal)
        with pytest.raises(Exception, match="10000 to"):
            load_settings(minimal + "[listener]\nheart_beat_ms = 9999\n", "t", Path())
        assert load_settings(minimal, "t", Path()).listener.heart_beat_ms == 10_000
