"""The clauses of docs/protocol.md, each by what a client sees of it."""

import io
import json
import re
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from maxam import __version__
from maxam.avro.envelope import ENVELOPE_TEXT
from maxam.broker.policy import Policy
from maxam.broker.window import Window
from maxam.config import Limits
from maxam.content import pack
from maxam.gateway.clients import Clients
from maxam.gateway.server_connection import ServerConnection
from maxam.records import UNJUDGED, Change, Identity
from maxam.stomp import encoder
from maxam.stomp.frames import Frame
from tests.support.sans_io import EVERYTHING, UNCHECKED, Client, World, fingerprint_of, policy, receipts, values

CONNECT = b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n"
THING = json.dumps(
    {"type": "record", "namespace": "e", "name": "Thing_v1", "fields": [{"name": "number", "type": "int"}]}
).encode()
THINGS = {
    "registry.toml": b"""
[[rule]]
destination = "X/D.*"
schema = "e.Thing_v1"
encoding = "datum"
[[rule]]
destination = "X/E.*"
schema = "e.Thing_v1"
encoding = "envelope"
""",
    "e/Thing_v1/1.0.avsc": THING,
}


def envelope(*items: tuple[int, bytes]) -> bytes:
    """Write an envelope as fastavro does."""
    stream = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(ENVELOPE_TEXT))
    fastavro.schemaless_writer(stream, schema, {"content": [{"key": key, "value": value} for key, value in items]})
    return stream.getvalue()


def granted(rights: dict[str, Any]) -> Policy:
    """Make a policy in which `anna` has these rights."""
    return policy(anna=rights)


def error(frames: list[Frame]) -> Frame:
    """Return the ERROR, which must be the last frame and the only one of its kind."""
    assert [frame.command for frame in frames].count(b"ERROR") == 1
    assert frames[-1].command == b"ERROR"
    return frames[-1]


def messages(frames: list[Frame]) -> list[Frame]:
    """Return the MESSAGEs."""
    return [frame for frame in frames if frame.command == b"MESSAGE"]


def reading(client: Client) -> bool:
    """Return True if the broker reads the client's frames."""
    return client.peer.receiving


def receipt(frames: list[Frame], receipt_id: bytes = b"r") -> dict[bytes, bytes]:
    """Return the headers of the one RECEIPT with this id, without the id."""
    (found,) = [f for f in frames if f.command == b"RECEIPT" and f.headers[b"receipt-id"] == receipt_id]
    assert found.body == b""
    return {name: value for name, value in found.headers.items() if name != b"receipt-id"}


def raw(client: Client) -> bytes:
    """Return the bytes that the broker has for this client now."""
    out = b""
    while parts := client.peer.data_to_send(client.world.now_s):
        out += b"".join(parts)
    return out


def ended(client: Client) -> bool:
    """Return True if the connection is over: nothing is read any longer and nothing has an effect."""
    head = client.world.broker.head_revision
    client.send("X/after", receipt="after")
    client.world.settle()
    return (
        client.peer.finished
        and not client.peer.receiving
        and client.read() == []
        and client.world.broker.head_revision == head
    )


class TestFrames:
    """Section "Frames"."""

    @pytest.mark.parametrize("versions", [None, "1.0", "1.0,2.0", " 1.2", "1.1 "])
    def test_no_common_version(self, versions: str | None) -> None:
        """Spec: STOMP 1.2 "the server MUST respond with an `ERROR` frame similar to the following and then close"."""
        client = World.make().client(accept_version=versions)
        answer = error(client.frames)
        assert answer.headers[b"version"] == b"1.1,1.2"
        assert b"1.1" in answer.body
        assert b"1.2" in answer.body
        assert ended(client)

    @pytest.mark.parametrize(
        ("versions", "chosen"), [("1.1", b"1.1"), ("1.2,1.1", b"1.2"), ("1.0,1.1,2.0", b"1.1"), ("1.1,1.2", b"1.2")]
    )
    def test_highest_version(self, versions: str, chosen: bytes) -> None:
        """Spec: STOMP 1.2 "the highest protocol version that both the client and server have in common"."""
        client = World.make().client(accept_version=versions)
        assert client.frames[0].headers[b"version"] == chosen
        assert client.peer.version == chosen.decode()

    @pytest.mark.parametrize("command", [b"SEND\ndestination:X/a", b"SUBSCRIBE\nid:1\ndestination:X/a", b"DISCONNECT"])
    def test_nothing_takes_effect_before_connect(self, command: bytes) -> None:
        """Any other frame before CONNECT: ERROR, close, no effect, and no RECEIPT."""
        client = World.make().client(connect=False)
        client.write(command + b"\nreceipt:r\n\n\0" + CONNECT + b"\n\0")
        assert error(client.read()).headers[b"receipt-id"] == b"r"
        assert client.world.broker.appended_seq == 0
        assert ended(client)

    def test_second_connect(self) -> None:
        """A second CONNECT gets an ERROR and a close. Frames before it stand."""
        client = World.make().client()
        client.write(b"SEND\ndestination:X/a\nreceipt:sent\n\n\0" + CONNECT + b"receipt:r\n\n\0")
        client.world.settle()
        frames = client.read()
        assert b"receipt-id" not in error(frames).headers
        assert receipts(frames) == [("sent", "accepted")]
        assert ended(client)

    @pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"])
    def test_connect_is_not_escaped(self, command: bytes, end: bytes) -> None:
        r"""Spec: STOMP 1.2 "STOMP servers MUST handle a `STOMP` frame in the same manner as a `CONNECT` frame"."""
        client = World.make().client(connect=False)
        lines = [command, b"accept-version:1.2", b"host:MAXVAPI", rb"client-id:a:b\n\t", b"", b"\0"]
        client.write(end.join(lines))
        assert raw(client) == (
            rb"CONNECTED|version:1.2|session:a:b\n\t|heart-beat:10000,10000|server:maxam/".replace(b"|", b"\n")
            + __version__.encode()
            + b"\n\n\0"
        )

    def test_escapes_of_the_receivers_version(self) -> None:
        r"""Spec: STOMP 1.2 "Conversely when encoding frame headers, the reverse transformation MUST be applied."."""
        world = World.make()
        sender, new, old = world.client(), world.client(), world.client(accept_version="1.1")
        new.subscribe(ack="auto", id_="n:1")
        old.subscribe(ack="auto", id_="o:1")
        sender.write(b"SEND\ndestination:X/a\\cb\nk\\c\\\\:1\\r\\n\\c\\\\2\ncontent-length:1\n\n\n\0")
        world.settle()
        assert raw(new) == (
            b"MESSAGE\nsubscription:n\\c1\nmessage-id:1\ndestination:X/a\\cb\nk\\c\\\\:1\\r\\n\\c\\\\2\ncontent-length:1\n\n\n\0"
        )
        assert raw(old) == (
            b"MESSAGE\nsubscription:o\\c1\nmessage-id:1\ndestination:X/a\\cb\nk\\c\\\\:1\r\\n\\c\\\\2\ncontent-length:1\n\n\n\0"
        )

    def test_repeated_and_padded_headers(self) -> None:
        """Spec: STOMP 1.2 "The value of the `foo` header is just `World`.", "MUST never trim or pad headers with spaces"."""
        client = World.make().client()
        client.subscribe(ack="auto")
        client.write(b"SEND\ndestination:X/a\ndestination:X/b\nfoo:World\nfoo:Hello\n pad : ded \n\nbody\0")
        client.world.settle()
        (message,) = messages(client.read())
        assert (message.headers[b"destination"], message.headers[b"foo"]) == (b"X/a", b"World")
        assert message.headers[b" pad "] == b" ded "

    @pytest.mark.parametrize("line", [b"k:\xff", b"\xc3:v", b"k:\\t", b"k", b":v", b"k:a\0b"])
    def test_malformed_header_lines(self, line: bytes) -> None:
        """Headers that are not UTF-8, undefined escapes, lines without a name or colon, NUL: ERROR, close."""
        client = World.make().client()
        client.write(b"SEND\nreceipt:r\ndestination:X/a\n" + line + b"\n\n\0")
        answer = error(client.read())
        assert answer.headers[b"message"] == b"malformed header"
        assert answer.headers[b"receipt-id"] == b"r"
        assert ended(client)

    def test_ends_of_line_between_frames(self) -> None:
        """Spec: STOMP 1.2 "The NULL octet can be optionally followed by multiple EOLs."."""
        client = World.make().client()
        client.write(b"\n\r\n\nNACK\r\nreceipt:1\r\n\r\n\0\r\n\nNACK\nreceipt:2\n\n\0\n")
        assert receipts(client.read()) == [("1", "ignored"), ("2", "ignored")]

    @pytest.mark.parametrize("body", [b"\0\n\0", b"", b"\0" * 100_000])
    def test_bodies_pass_unchanged(self, body: bytes) -> None:
        """Spec: MaXaM "Avro content implies embedded NULLs so all avro messages WILL use content-length"."""
        client = World.make().client()
        client.subscribe(ack="auto")
        client.send("X/a", b"before")
        client.world.settle()
        client.read()
        client.send("X/a", body)
        client.world.settle()
        (message,) = messages(client.read())
        assert message.body == body
        assert message.headers[b"content-length"] == str(len(body)).encode()

    def test_message_declares_the_length_that_its_sender_did_not(self) -> None:
        """MESSAGE always carries `content-length`."""
        client = World.make().client()
        client.subscribe(ack="auto")
        client.write(b"SEND\ndestination:X/a\n\nbody\0")
        client.world.settle()
        assert messages(client.read())[0].headers[b"content-length"] == b"4"

    @pytest.mark.parametrize("body", [b"content-length:1\n\nx!", b"content-length:2\n\nx\0\n"])
    def test_length_that_is_not_exact(self, body: bytes) -> None:
        """Spec: STOMP 1.2 "this number of octets MUST be read [...] The frame still needs to be terminated with a NULL"."""
        client = World.make().client()
        client.write(b"SEND\ndestination:X/a\nreceipt:r\n" + body)
        assert error(client.read()).headers[b"message"] == b"bad content-length"
        assert client.world.broker.head_revision == 0

    @pytest.mark.parametrize(
        "command",
        [
            "SUBSCRIBE\nid:s\ndestination:X/a",
            "UNSUBSCRIBE\nid:s",
            "ACK\nid:s 1",
            "NACK\nid:s 1",
            "DISCONNECT",
        ],
    )
    @pytest.mark.parametrize("length", ["", "content-length:4\n"])
    def test_body_where_none_may_be(self, command: str, length: str) -> None:
        """Spec: STOMP 1.2 "Only the `SEND`, `MESSAGE`, and `ERROR` frames MAY have a body. All other frames MUST NOT"."""
        client = World.make().client()
        client.write(f"{command}\nreceipt:r\n{length}\nbody\0".encode())
        frames = client.read()
        assert error(frames).headers[b"message"] == b"unexpected body"
        assert receipts(frames) == []
        assert ended(client)

    @pytest.mark.parametrize(
        ("data", "limit"),
        [
            (b"SEND\n" + b"a:b\n" * 5, "frame_headers_max"),
            (b"SEND\n" + b"a" * 61, "frame_header_line_bytes_max"),
            (b"SEND\n" + b"a:" + b"a" * 50 + b"\nb:" + b"b" * 41, "frame_headers_bytes_max"),
            (b"SEND\ndestination:X/a\ncontent-length:11\n\n", "frame_body_bytes_max"),
            (b"SEND\ndestination:X/a\n\n12345678901", "frame_body_bytes_max"),
            (b"SUBSCRIBE\nid:s\ndestination:X/" + b"a" * 19 + b"\n\n\0", "destination_bytes_max"),
            (b"SUBSCRIBE\nid:123456\ndestination:X/a\n\n\0", "subscription_id_bytes_max"),
        ],
    )
    def test_a_limit_is_named_as_soon_as_it_is_exceeded(self, data: bytes, limit: str) -> None:
        """Spec: STOMP 1.2 "If these limits are exceeded the server SHOULD send the client an `ERROR` frame and then close"."""
        limits = Limits(
            frame_headers_max=4,
            frame_header_line_bytes_max=60,
            frame_headers_bytes_max=100,
            frame_body_bytes_max=10,
            destination_bytes_max=20,
            subscription_id_bytes_max=5,
        )
        client = World.make(limits=limits).client()
        assert client.frames[0].command == b"CONNECTED"
        client.write(data[:-1])
        assert client.read() == []
        client.write(data[-1:])
        answer = error(client.read())
        assert limit in answer.body.decode()
        assert str(getattr(limits, limit)) in answer.body.decode()
        assert ended(client)

    def test_limits_of_a_stranger(self) -> None:
        """Before CONNECTED at most 4 KiB are received at a time, and a frame has at most 8 KiB."""
        client = World.make().client(connect=False)
        assert client.peer.receive_bytes_max == 4096
        client.write(CONNECT + (b"a:" + b"a" * 4000 + b"\n") * 2)
        assert client.read() == []
        client.write(b"a:" + b"a" * 200)
        assert b"8192 bytes, the limit connect_frame_bytes_max" in error(client.read()).body
        assert World.make().client().peer.receive_bytes_max == 262_144

    def test_defaults(self) -> None:
        """The limits of docs/protocol.md are the defaults."""
        defaults = {field.name: field.default for field in fields(Limits)}
        assert {
            "frame_headers_max": 100,
            "frame_header_line_bytes_max": 8192,
            "frame_headers_bytes_max": 65536,
            "frame_body_bytes_max": 4_194_304,
            "connect_frame_bytes_max": 8192,
            "destination_bytes_max": 512,
            "subscription_id_bytes_max": 128,
            "glob_wildcards_max": 32,
            "window": 100,
            "subscriptions_per_session_max": 1000,
            "sessions_per_principal_max": 1000,
            "durable_subscriptions_per_principal_max": 10_000,
            "subscriptions_per_principal_max": 20_000,
            "subscriptions_max": 250_000,
            "durable_changes_per_s_max": 200,
            "send_bytes_per_s_max": 0,
            "takeovers_per_minute_max": 30,
            "connect_receive_bytes_max": 4096,
            "topics_max": 5_000_000,
            "connect_timeout_s": 10,
            "write_timeout_s": 30,
            "linger_timeout_s": 1,
            "session_expiry_s": 7 * 24 * 3600,
            "delete_retention_s": 24 * 3600,
            "delete_retention_topics_max": 100_000,
            "acknowledgement_delay_s": 0.1,
        }.items() <= defaults.items()

    def test_a_connect_that_never_comes(self) -> None:
        """Without CONNECT within `connect_timeout_s`: ERROR, close, whatever drips in."""
        client = World.make().client(connect=False)
        client.world.now_s += 9.9
        client.write(b"CONN")
        client.peer.tick(client.world.now_s)
        assert client.read() == []
        assert client.peer.next_due_s == pytest.approx(client.world.now_s + 0.1)
        client.world.now_s += 0.2
        client.peer.tick(client.world.now_s)
        assert error(client.read()).headers[b"message"] == b"no CONNECT"
        assert ended(client)

    @pytest.mark.parametrize(
        ("frame", "message"),
        [
            ("MOVE\nreceipt:r", "unexpected command"),
            ("MESSAGE\nreceipt:r", "unexpected command"),
            ("send\nreceipt:r", "malformed frame"),
            ("BEGIN\ntransaction:t\nreceipt:r", "not implemented"),
            ("COMMIT\ntransaction:t\nreceipt:r", "not implemented"),
            ("ABORT\ntransaction:t\nreceipt:r", "not implemented"),
            ("SEND\ndestination:X/a\ntransaction:t\nreceipt:r", "not implemented"),
            ("ACK\nid:s 1\ntransaction:t\nreceipt:r", "not implemented"),
            ("SEND\nreceipt:r", "missing header"),
            ("SUBSCRIBE\nid:s\nreceipt:r", "missing header"),
            ("SUBSCRIBE\ndestination:X/a\nreceipt:r", "missing header"),
            ("UNSUBSCRIBE\nreceipt:r", "missing header"),
            ("ACK\nreceipt:r", "missing header"),
            ("SUBSCRIBE\nreceipt:r\nid:s\ndestination:X/a\nmarkers:yes", "bad markers"),
            ("SUBSCRIBE\nreceipt:r\nid:s\ndestination:X/a\nmetadata:", "bad metadata"),
            ("SUBSCRIBE\nreceipt:r\nid:s\ndestination:X/a\neager:TRUE", "bad eager"),
            ("SUBSCRIBE\nreceipt:r\nid:s\ndestination:X/a\ndurable:1", "bad durable"),
            ("UNSUBSCRIBE\nreceipt:r\nid:s\ndurable:no", "bad durable"),
            ("SUBSCRIBE\nreceipt:r\nid:s\ndestination:X/a\nack:Client", "bad ack"),
            ("SUBSCRIBE\nreceipt:r\nid:s\ndestination:X", "bad destination"),
        ],
    )
    def test_frames_that_end_the_connection(self, frame: str, message: str) -> None:
        """Spec: MaXaM "| BEGIN | Not implemented | Will generate error |"; each ERROR has the frame's receipt."""
        client = World.make().client()
        client.write(f"{frame}\n\n\0".encode())
        frames = client.read()
        assert error(frames).headers[b"message"] == message.encode()
        if message != "malformed frame":
            assert frames[-1].headers[b"receipt-id"] == b"r"
        assert receipts(frames) == []
        assert client.world.broker.appended_seq == 0
        assert ended(client)

    @pytest.mark.parametrize("headers", ["", "id:s 1\n", "id:s 1\ntransaction:t\n"])
    def test_nack_changes_nothing(self, headers: str) -> None:
        """Spec: MaXaM "| NACK | Not implemented | Will be ignored |"."""
        client = World.make().client()
        client.subscribe()
        client.send("X/a", b"1")
        client.world.settle()
        (message,) = messages(client.read())
        client.write(f"NACK\n{headers}receipt:r\n\n\0".encode())
        client.send("X/a", b"2")
        client.world.settle()
        frames = client.read()
        assert receipt(frames) == {b"result": b"ignored"}
        assert messages(frames) == []
        client.ack(message)
        assert values(client.read()) == [("X/a", "2")]

    def test_every_frame_but_connect_may_have_a_receipt(self) -> None:
        """Spec: STOMP 1.2 "Any client frame other than `CONNECT` MAY specify a `receipt` header with an arbitrary value."."""
        world = World.make()
        client = world.client(receipt="0")
        assert [frame.command for frame in client.frames] == [b"CONNECTED"]
        client.send("X/a", receipt=" 1:\r\n\\")
        client.subscribe(receipt="2")
        client.send("bad", receipt="3")
        client.write(b"NACK\nreceipt:4\n\n\0")
        client.ack(("s", 9), receipt="5")
        client.send("X/b", receipt="")
        client.send("X/c", receipt="6")
        client.unsubscribe(receipt="7")
        client.write(b"DISCONNECT\nreceipt:8\n\n\0")
        assert client.read() == []
        world.settle()
        assert [id_ for id_, _ in receipts(client.read())] == [" 1:\r\n\\", "2", "3", "4", "5", "6", "7", "8"]

    def test_a_receipt_waits_for_its_own_commit(self) -> None:
        """Of two SENDs in two batches the second is not answered with the first."""
        client = World.make().client()
        client.send("X/a", receipt="1")
        first = client.world.take()
        client.send("X/b", receipt="2")
        client.world.take()
        client.world.commit(first)
        assert receipts(client.read()) == [("1", "accepted")]

    def test_an_empty_receipt_is_answered(self) -> None:
        """A `receipt` of no characters is a value like any other."""
        client = World.make().client()
        client.write(b"SEND\ndestination:X/a\nreceipt:\n\n\0")
        client.world.settle()
        assert receipts(client.read()) == [("", "accepted")]

    def test_messages_may_come_before_the_receipt_of_their_subscribe(self) -> None:
        """A SUBSCRIBE's receipt may wait for the commit of a SEND before it. Its MESSAGEs may come first."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(durable=True)
        client.send("X/a")
        world.settle()
        client.lose()
        client = world.client(client_id="me")
        client.send("X/b", receipt="sent")
        client.subscribe(durable=True, receipt="resumed")
        frames = client.read()
        assert values(frames) == [("X/a", "value")]
        assert receipts(frames) == []
        world.settle()
        assert receipts(client.read()) == [("sent", "accepted"), ("resumed", "resumed")]

    def test_error_comes_behind_the_receipts_before_it_and_nothing_behind_it(self) -> None:
        """Spec: STOMP 1.2 "it MUST then close the connection just after sending the `ERROR` frame"."""
        client = World.make().client()
        client.subscribe(ack="auto")
        client.world.settle()
        client.send("X/a", receipt="1")
        client.write(b"SEND\nreceipt:bad\n\n\0")
        client.send("X/b", receipt="2")
        assert client.read() == []
        assert not client.peer.receiving
        client.world.settle()
        frames = client.read()
        answer = error(frames)
        assert [frame.command for frame in frames] == [b"RECEIPT", b"ERROR"]
        assert receipts(frames) == [("1", "accepted")]
        body = answer.body.decode()
        assert dict(answer.headers) == {
            b"receipt-id": b"bad",
            b"message": b"missing header",
            b"content-type": b"text/plain",
            b"content-length": str(len(body)).encode(),
        }
        assert "destination" in body
        assert ended(client)

    def test_error_waits_for_commits_one_second_at_most(self) -> None:
        """RECEIPTs of earlier frames go first, their commit awaited at most 1 s."""
        client = World.make().client()
        client.send("X/a", receipt="hangs")
        client.world.take()
        client.write(b"FOO\n\n\0")
        client.world.now_s += 0.99
        client.peer.tick(client.world.now_s)
        assert client.read() == []
        assert client.peer.next_due_s == pytest.approx(client.world.now_s + 0.01)
        client.world.now_s += 0.02
        client.peer.tick(client.world.now_s)
        assert [frame.command for frame in client.read()] == [b"ERROR"]
        assert ended(client)


class TestDestinations:
    """Section "Destinations"."""

    @pytest.mark.parametrize(
        "destination",
        ["X", "X/", "/a", "X/a/b", "X/a..b", "X/a.", "X/*", "X/a b", "X/a\u200b", "X\xe9/a", "X/" + "a" * 511],
    )
    @pytest.mark.parametrize("body", [b"value", b""])
    def test_a_malformed_destination_is_rejected_with_the_reason(self, destination: str, body: bytes) -> None:
        """A SEND to anything else is `rejected-invalid` with the reason, for any sender: the grammar is public."""
        client = World.make(anna={"send": [], "receive": []}).client()
        client.send(destination, body, receipt="r")
        answer = receipt(client.read())
        assert answer[b"disposition"] == b"rejected-invalid"
        assert answer[b"result"] == b"invalid-destination"
        assert answer[b"reason"]
        assert client.peer.receiving

    def test_no_normalisation(self) -> None:
        """Two spellings of one letter are two topics."""
        client = World.make().client()
        client.subscribe(ack="auto")
        for destination in ("X/\u00e9", "X/e\u0301", "X/E", "X/e"):
            client.send(destination)
        client.world.settle()
        assert [name for name, _ in values(client.read())] == ["X/\u00e9", "X/e\u0301", "X/E", "X/e"]

    def test_never_checked_at_recovery(self) -> None:
        """An accepted value is there after a restart, though grammar and limits have changed."""
        world = World.make()
        change = Change(1, 1, b"old store/a b", False, Identity("anna", ""), UNJUDGED, *pack((), b"kept"))
        world.journal = [change]
        client = world.restart().client()
        client.write(b"SEND\ndestination:old store/a b\nreceipt:r\n\nnew\0")
        client.world.settle()
        assert receipt(client.read())[b"result"] == b"invalid-destination"  # as for one that does not exist
        assert client.world.broker.store.topics[b"old store/a b"].change.body == b"kept"

    @pytest.mark.parametrize("glob", ["**", "X/" + "?" * 200, "**.a", "X/" + "[ab]" * 20])
    def test_a_durable_glob_is_kept_over_a_restart(self, glob: str) -> None:
        """A glob that was accepted is never checked again at recovery."""
        world = World.make(limits=Limits(glob_wildcards_max=300))
        client = world.client(client_id="me")
        client.subscribe(glob, durable=True)
        world.settle()
        world.broker = World.make(limits=Limits(destination_bytes_max=10)).broker  # an operator lowers it
        assert world.restart().broker.sessions["anna", "me"].subscriptions[b"s"].glob.text == glob

    @pytest.mark.parametrize(
        ("glob", "why"),
        [("X", "'/'"), ("X/[", "closed"), ("X/a b", "space"), ("X/a/b", "more than one"), ("X/" + "?" * 33, "32")],
    )
    def test_a_glob_that_cannot_match_is_an_error_that_says_why(self, glob: str, why: str) -> None:
        """A SUBSCRIBE whose glob is malformed, too complex or cannot match any destination is an ERROR with the reason."""
        client = World.make().client()
        client.subscribe(glob, receipt="r")
        assert why in error(client.read()).body.decode().replace("U+0020", "space")


class TestConnect:
    """Section "CONNECT"."""

    @pytest.mark.parametrize(
        ("hosts", "host", "accepted"),
        [
            (("MAXVAPI",), "MAXVAPI", True),
            (("MAXVAPI",), "maxvapi", False),
            (("MAXVAPI",), None, False),
            (("*",), None, False),
            (("*",), "anything", True),
            (("A", "B"), "B", True),
            (("A", "B"), "C", False),
        ],
    )
    def test_host(self, hosts: tuple[str, ...], host: str | None, accepted: bool) -> None:
        """Spec: MaXaM "The client SHOULD include the host header and must set it to MAXVAPI."."""
        world = World.make()
        assert world.settings.listener.virtual_hosts == ("MAXVAPI",)
        world.settings = replace(world.settings, listener=replace(world.settings.listener, virtual_hosts=hosts))
        client = world.client(host=host)
        assert (client.frames[0].command == b"CONNECTED") is accepted
        if not accepted:
            assert all(name in error(client.frames).body.decode() for name in hosts if name != "*")
            assert ended(client)

    @pytest.mark.parametrize("host", ["MAXVAPI", "elsewhere"])
    def test_frames_may_follow_connect(self, host: str) -> None:
        """Frames that come together with CONNECT take effect in their order if it is accepted, and are not read if it is refused."""
        world = World.make()
        client = world.client(connect=False)
        connect = f"CONNECT\naccept-version:1.2\nhost:{host}\n\n\0"
        client.write(
            connect.encode() + b"SUBSCRIBE\nid:s\ndestination:X/**\nreceipt:1\n\n\0SEND\ndestination:X/a\n\nvalue\0"
        )
        world.settle()
        commands = [frame.command for frame in client.read()]
        accepted = host == "MAXVAPI"
        assert commands == ([b"CONNECTED", b"RECEIPT", b"MESSAGE"] if accepted else [b"ERROR"])
        assert len(world.journal) == accepted

    def test_login_and_passcode_are_ignored_and_never_told(self) -> None:
        """Spec: MaXaM "The client MAY include a a login header but this will be ignored."."""
        world = World.make()
        assert world.client(login="root", passcode="s3cret").frames[0].command == b"CONNECTED"
        client = world.client(passcode="s3cret", host="elsewhere")
        assert b"s3cret" not in repr(error(client.frames).headers).encode() + client.frames[0].body
        assert "s3cret" not in client.peer.end
        client = world.client(connect=False)
        client.write(b"CONNECT\npasscode:s3cret\ns3cret\n\n\0")
        assert b"s3cret" not in error(client.read()).body

    @pytest.mark.parametrize("heart_beat", [None, "0,0", "5000,5000", "60000,60000"])
    def test_connected_always_carries_heart_beat(self, heart_beat: str | None) -> None:
        """Spec: MaXaM "The broker WILL always specify send and receive heart-beat intervals of not less than 10000 (ms)"."""
        client = World.make().client(heart_beat=heart_beat)
        assert client.frames[0].headers[b"heart-beat"] == b"10000,10000"

    @pytest.mark.parametrize("heart_beat", ["", "10000", "10000,", "-1,0", "a,b", "1,2,3", "10000, 10000"])
    def test_malformed_heart_beat(self, heart_beat: str) -> None:
        """Spec: STOMP 1.2 "the `heart-beat` header MUST contain two positive integers separated by a comma"."""
        client = World.make().client(heart_beat=heart_beat)
        assert error(client.frames).headers[b"message"] == b"bad heart-beat"

    def test_we_send_heart_beats(self) -> None:
        """Spec: STOMP 1.2 "if the sender has no real STOMP frame to send, it MUST send an end-of-line (EOL)"."""
        client = World.make().client(heart_beat="0,5000")
        world = client.world
        start_s = world.now_s
        assert client.peer.next_due_s == start_s + 9
        world.now_s = start_s + 8.9
        assert raw(client) == b""
        world.now_s = start_s + 9
        client.peer.tick(world.now_s)
        assert raw(client) == b"\n"
        client.write(b"NACK\nreceipt:1\n\n\0")
        world.now_s = start_s + 12
        assert client.read()
        assert client.peer.next_due_s == start_s + 21
        assert World.make().client().peer.next_due_s is None

    def test_we_miss_heart_beats(self) -> None:
        """Spec: STOMP 1.2 "the receiver SHOULD be tolerant and take into account an error margin": twice the interval."""
        client = World.make().client(heart_beat="12000,0")
        world = client.world
        start_s = world.now_s
        world.now_s = start_s + 10
        client.write(b"\n")
        world.now_s = start_s + 33.9
        client.peer.tick(world.now_s)
        assert client.read() == []
        world.now_s = start_s + 34
        client.peer.tick(world.now_s)
        answer = error(client.read())
        assert answer.headers[b"message"] == b"heart-beat missed"
        for part in (b"24.0 s", b"12.0 s", b"12000 ms", b"10000 ms"):
            assert part in answer.body
        assert ended(client)

    def test_silence_counts_only_while_we_read(self) -> None:
        """A client whose frames we do not read, because its RECEIPTs wait, does not count as silent."""
        client = World.make(limits=Limits(receipts_pending_bytes_max=150)).client(heart_beat="10000,0")
        world = client.world
        client.send("X/a", receipt="1")
        client.send("X/a", receipt="2")
        assert client.peer.receiving is False
        world.now_s += 100
        client.peer.tick(world.now_s)
        assert client.read() == []
        world.settle()
        assert receipts(client.read()) == [("1", "accepted"), ("2", "accepted")]
        world.now_s += 19
        client.peer.tick(world.now_s)
        assert client.read() == []
        world.now_s += 2
        client.peer.tick(world.now_s)
        error(client.read())

    def test_an_unknown_certificate_is_refused(self) -> None:
        """Unknown fingerprint with a valid chain: by default refused with an ERROR, which has the fingerprint."""
        world = World.make()
        assert world.settings.policy.unknown_clients == "refuse"
        client = world.client("eve")
        assert error(client.frames).headers[b"message"] == b"unknown client"
        assert fingerprint_of("eve").encode() in client.frames[0].body
        assert world.broker.sessions == {}
        assert ended(client)

    def test_an_unknown_certificate_without_rights(self) -> None:
        """With `connect-without-rights` the principal is `fingerprint:<hex>`, and it may do nothing."""
        world = World.make()
        world.settings = replace(
            world.settings, policy=replace(world.settings.policy, unknown_clients="connect-without-rights")
        )
        client, anna = world.client("eve"), world.client()
        assert client.peer.principal == f"fingerprint:{fingerprint_of('eve')}"
        client.subscribe(ack="auto", receipt="s")
        client.send("X/a", receipt="r")
        anna.send("X/a")
        world.settle()
        frames = client.read()
        assert receipt(frames)[b"disposition"] == b"rejected-unauthorised"
        assert receipt(frames, b"s") == {b"ack": b"auto", b"filtered": b"true"}
        assert messages(frames) == []

    def test_a_session_without_a_name_gets_128_random_bits(self) -> None:
        """Spec: MaXaM "Populated with a the session identifier that may be used by a client in a CONNECT client-id header"."""
        world = World.make()
        clients = SimpleNamespace(
            _broker=world.broker,
            _settings=world.settings,
            _connect_denial=lambda *_: None,
            _access=SimpleNamespace(connects=lambda _: None),
            _holdings=None,
            _claim=None,
        )
        sessions = []
        for _ in range(2):
            peer: ServerConnection = vars(Clients)["_make_peer"](
                clients, None, 0.0, fingerprint_of("anna"), (), lambda: None, world.now_s
            )
            peer.receive_data(CONNECT + b"\n\0", world.now_s, 0)
            found = re.search(rb"\nsession:([0-9a-f]{32})\n", b"".join(peer.data_to_send(world.now_s)))
            assert found is not None
            sessions.append(found[1])
        assert sessions[0] != sessions[1]

    @pytest.mark.parametrize("client_id", ["", "a" * 129, "a\tb", "\xe9"])
    def test_a_bad_client_id(self, client_id: str) -> None:
        """1 to 128 printable ASCII characters, else ERROR."""
        assert error(World.make().client(client_id=client_id).frames).headers[b"message"] == b"bad client-id"
        assert World.make().client(client_id="~" * 128).frames[0].headers[b"session"] == b"~" * 128

    def test_takeover_ends_the_transient_subscriptions(self) -> None:
        """Spec: MaXaM "Only one connection is allowed for a given client-id."."""
        world = World.make()
        old = world.client(client_id="me")
        old.subscribe(id_="t")
        old.send("X/a")
        world.settle()
        assert len(messages(old.read())) == 1
        new = world.client(client_id="me")
        assert [frame.command for frame in new.frames] == [b"CONNECTED"]
        assert error(old.read()).headers[b"message"] == b"session taken over by a newer connection"
        world.client().send("X/b")
        world.settle()
        new.subscribe(id_="t")
        world.settle()
        assert new.read() == []

    @pytest.mark.parametrize("window", ["0", "101", "-1", "", "x", "1.5"])
    def test_a_bad_window(self, window: str) -> None:
        """`window:<n>`: 1 to `limits.window`, else ERROR."""
        assert b"1 to 100" in error(World.make().client(window=window).frames).body

    @pytest.mark.parametrize(("headers", "size"), [({"window": "3"}, 3), ({"window": "100"}, 100), ({}, 64)])
    def test_window(self, headers: dict[str, Any], size: int) -> None:
        """`window:<n>` fixes the delivery window; without it the first flight has 64 messages."""
        client = World.make().client(**headers)
        client.subscribe()
        for n in range(400):
            client.send(f"X/{n}")
        client.world.settle()
        got = messages(client.read())
        assert len(got) == size
        if headers:
            assert client.peer.next_due_s is None
            for _ in range(3):
                client.ack(got[-1])
                got = messages(client.read())
                assert len(got) <= size


class TestSubscribe:
    """Section "SUBSCRIBE / UNSUBSCRIBE"."""

    def test_a_withdrawal_sends_nothing_and_keeps_the_slot(self) -> None:
        """An un-acked message whose right is withdrawn keeps its window slot until ACK or UNSUBSCRIBE."""
        world = World.make()
        client = world.client(window="1")
        client.subscribe("X/a")
        client.subscribe("X/b", "other")
        client.send("X/a")
        world.settle()
        (message,) = messages(client.read())
        world.broker.replace_policy(granted({"send": ["X/**"], "receive": ["X/b"]}))
        client.send("X/a")
        client.send("X/b")
        world.settle()
        assert client.read() == []
        client.ack(message)
        assert values(client.read()) == [("X/b", "value")]

    def test_a_right_is_checked_again_when_a_value_is_written(self) -> None:
        """Without the right a topic that is owed is forgotten, and a later grant of it is no gap for what changed then."""
        world = World.make()
        client = world.client()
        client.subscribe(ack="auto")
        client.send("X/a", b"secret")
        world.settle()
        world.broker.replace_policy(granted({"send": ["X/**"], "receive": []}))
        assert client.read() == []
        world.broker.replace_policy(granted(EVERYTHING))
        world.settle()
        assert client.read() == []
        client.send("X/a", b"open")
        world.settle()
        assert values(client.read()) == [("X/a", "open")]

    @pytest.mark.parametrize(("flags", "owed"), [({"durable": True}, True), ({"eager": True}, True), ({}, False)])
    @pytest.mark.parametrize("away", [True, False])
    def test_a_grant_is_owed_to_durable_and_eager_ones(self, flags: dict[str, Any], owed: bool, away: bool) -> None:
        """When a reload grants a topic, eager and durable subscriptions owe its current value, others wait for the next."""
        world = World.make(anna={"send": ["X/**"], "receive": ["X/other"]})
        client = world.client(client_id="me")
        client.subscribe(receipt="r", **flags)
        client.send("X/a")
        world.settle()
        assert messages(client.read()) == []
        away = away and "durable" in flags
        if away:
            client.lose()
        world.broker.replace_policy(granted(EVERYTHING))
        world.settle()
        if away:
            client = world.client(client_id="me")
            client.subscribe(durable=True)
        assert values(client.read()) == ([("X/a", "value")] if owed else [])

    @pytest.mark.parametrize("eager", [True, False])
    def test_a_durable_subscribe_that_no_right_matches_is_transient(self, eager: bool) -> None:
        """`durable:false` in the RECEIPT: nothing is journalled, it ends with its connection, and a later grant needs a new SUBSCRIBE."""
        world = World.make(anna={"send": ["X/**"], "receive": ["X/other"]})
        client = world.client(client_id="me")
        client.subscribe("X/secret.*", durable=True, eager=eager, receipt="r")
        world.settle()
        assert receipt(client.read()) == {
            b"ack": b"client",
            b"result": b"created",
            b"filtered": b"true",
            b"durable": b"false",
        }
        assert world.journal == []
        world.broker.replace_policy(granted(EVERYTHING))
        client.send("X/secret.a")
        world.settle()
        assert values(client.read()) == [("X/secret.a", "value")]
        client.unsubscribe(receipt="u")
        assert receipt(client.read(), b"u")[b"result"] == b"removed"
        client.subscribe("X/secret.*", durable=True, receipt="again")
        world.settle()
        assert receipt(client.read(), b"again") == {b"ack": b"client", b"result": b"created"}
        client.lose()
        assert world.restart().broker.sessions["anna", "me"].durable

    def test_a_durable_subscription_whose_right_is_withdrawn_stays_durable(self) -> None:
        """It was granted when it was made: its resumption has `filtered:true` and not `durable:false`, and journals nothing."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(durable=True)
        world.settle()
        client.lose()
        records = len(world.journal)
        world.broker.replace_policy(granted({"send": ["X/**"], "receive": []}))
        client = world.client(client_id="me")
        client.subscribe(durable=True, eager=True, receipt="r")
        world.settle()
        assert receipt(client.read()) == {b"ack": b"client", b"result": b"resumed", b"filtered": b"true"}
        assert len(world.journal) == records
        assert world.restart().broker.sessions["anna", "me"].durable

    def test_durable_changes_beyond_the_rate_pause_the_connection(self) -> None:
        """Beyond `durable_changes_per_s_max` frames are not read until the rate allows it; nothing is lost or refused."""
        limits = Limits(durable_changes_per_s_max=2, durable_subscriptions_per_principal_max=4)
        world = World.make(limits=limits)
        client = world.client(client_id="me")
        for n in range(4):
            client.subscribe(id_=str(n), durable=True)
        assert reading(client)
        client.unsubscribe("0", durable=True)
        client.unsubscribe("1", durable=True, receipt="last")
        assert not reading(client)
        assert client.woken
        due_s = client.peer.next_due_s
        assert due_s == world.now_s + 1  # two too many, two a second
        world.settle()
        assert receipt(client.read(), b"last")[b"result"] == b"removed"
        world.now_s += 1
        client.peer.tick(world.now_s)
        assert reading(client)
        other = world.client("anna")  # the rate is the principal's
        other.subscribe(id_="x", durable=True)
        assert not reading(other)

    @pytest.mark.parametrize("eager", [True, False])
    @pytest.mark.parametrize("place", range(4))
    def test_a_durable_subscribe_takes_its_place_too(self, eager: bool, place: int) -> None:
        """It sees changes whose revision was assigned after it, and for eager what was committed or on its way; no double."""
        world = World.make()
        client = world.client(client_id="me")
        batch = []
        for n in range(4):
            if n == place:
                client.subscribe(durable=True, eager=eager, ack="auto")
            if n == 2:
                batch = world.take()
            client.send(f"X/{n}")
        world.commit(batch)
        got = values(client.read())
        world.settle()
        got += values(client.read())
        expected = range(4) if eager else range(place, 4)
        assert sorted(got) == [(f"X/{n}", "value") for n in expected]
        world = world.restart()
        assert len(world.broker.sessions["anna", "me"].subscriptions[b"s"].owed) == len(expected)

    def test_ack_modes(self) -> None:
        """MESSAGE has an `ack` header unless the mode is auto; an ACK of mode client covers what was sent before it."""
        client = World.make().client()
        client.write(b"SUBSCRIBE\nid:none\ndestination:X/**\n\n\0")
        client.subscribe(id_="one", ack="client")
        for n in range(3):
            client.send(f"X/{n}")
        client.world.settle()
        got = messages(client.read())
        assert [b"ack" in f.headers for f in got if f.headers[b"subscription"] == b"none"] == [False] * 3
        mine = [f for f in got if f.headers[b"subscription"] == b"one"]
        assert [f.headers[b"ack"] for f in mine] == [b"one 1", b"one 2", b"one 3"]
        client.ack(mine[1])
        connection = client.peer.connection
        assert connection is not None
        assert connection.in_flight == 1

    @pytest.mark.parametrize("individual", [True, False])
    def test_an_individual_ack_covers_one_message(self, individual: bool) -> None:
        """Spec: MaXaM '"client-individual" is accepted but treated as "client"': only where it is configured, and the RECEIPT shows which."""
        world = World.make()
        world.broker.subscribing.individual_acks = individual
        client = world.client(client_id="me")
        client.subscribe(ack="client-individual", receipt="r", durable=True)
        for topic in "abc":
            client.send(f"X/{topic}", b"1")
        world.settle()
        frames = client.read()
        assert receipt(frames)[b"ack"] == (b"client-individual" if individual else b"client")
        one, two, three = messages(frames)
        client.ack(two)
        for topic in "abc":
            client.send(f"X/{topic}", b"2")
        world.settle()
        assert values(client.read()) == ([("X/b", "2")] if individual else [("X/a", "2"), ("X/b", "2")])
        client.ack(one, receipt="1")
        client.ack(two, receipt="2")
        client.ack(three, receipt="3")
        world.settle()
        frames = client.read()
        assert receipts(frames) == [("1", "" if individual else "ignored"), ("2", "ignored"), ("3", "")]
        assert values(frames) == ([("X/a", "2"), ("X/c", "2")] if individual else [("X/c", "2")])

    @pytest.mark.parametrize("restart", [False, True])
    def test_what_was_not_acknowledged_comes_again_though_a_later_one_was(self, restart: bool) -> None:
        """With client-individual a durable subscription is owed again, in their order, just the messages without an ACK of their own."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(ack="client-individual", durable=True)
        for topic in "abcd":
            client.send(f"X/{topic}", b"1")
        world.settle()
        got = messages(client.read())
        client.ack(got[3], receipt="4")
        client.ack(got[1], receipt="2")
        world.settle()
        assert receipts(client.read()) == [("4", ""), ("2", "")]
        if restart:
            world = world.restart()
        else:
            client.lose()
        client = world.client(client_id="me")
        client.subscribe(ack="client-individual", durable=True)
        world.settle()
        assert values(client.read()) == [("X/a", "1"), ("X/c", "1")]

    def test_a_receipt_of_a_transient_subscribe_has_no_result(self) -> None:
        """Only durable subscriptions are created, resumed or replaced."""
        client = World.make().client()
        client.subscribe(receipt="r")
        client.world.settle()
        assert receipt(client.read()) == {b"ack": b"client"}

    def test_resuming_may_change_ack_and_options(self) -> None:
        """Nothing is delivered before the re-SUBSCRIBE, which may change `ack`; on the same connection after a pause too."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(durable=True, ack="auto")
        client.send("X/a", b"1")
        world.settle()
        assert b"ack" not in messages(client.read())[0].headers
        client.read()
        client.unsubscribe()
        client.send("X/a", b"2")
        client.send("X/a", b"3")
        world.settle()
        assert client.read() == []
        client.subscribe(durable=True, ack="client", receipt="r")
        world.settle()
        frames = client.read()
        assert receipt(frames) == {b"result": b"resumed", b"ack": b"client"}
        assert values(frames) == [("X/a", "3")]
        assert messages(frames)[0].headers[b"ack"] == b"s 3"
        client.unsubscribe()
        client.subscribe(durable=True, ack="auto")
        client.send("X/b")
        world.settle()
        assert [b"ack" in message.headers for message in messages(client.read())] == [False, False]

    @pytest.mark.parametrize("durable", ["", "durable:false\n"])
    def test_a_paused_id_needs_durable(self, durable: str) -> None:
        """Absent or `durable:false` pauses, as the page states; the paused id without `durable:true` is an ERROR."""
        client = World.make().client()
        client.subscribe(durable=True)
        client.write(f"UNSUBSCRIBE\nid:s\n{durable}receipt:r\n\n\0".encode())
        client.world.settle()
        assert receipt(client.read()) == {b"result": b"paused"}
        client.subscribe("X/other")
        assert b"durable:true" in error(client.read()).body

    @pytest.mark.parametrize("durable", [True, False])
    def test_unsubscribe_of_a_transient_subscription(self, durable: bool) -> None:
        """Spec: STOMP 1.2 "Once the subscription is removed the STOMP connections will no longer receive messages"."""
        client = World.make().client()
        client.subscribe(ack="auto")
        client.world.settle()
        client.send("X/a")
        client.unsubscribe(durable=durable, receipt="r")
        client.world.settle()
        frames = client.read()
        assert receipt(frames) == {b"result": b"removed"}
        assert messages(frames) == []
        client.subscribe("X/b", receipt="again")
        client.world.settle()
        assert receipt(client.read(), b"again") == {b"ack": b"client"}

    def test_resumed_waits_for_what_made_it(self) -> None:
        """`result:resumed` is not sent before the subscription is on the disk."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(durable=True)
        client.lose()
        client = world.client(client_id="me")
        client.subscribe(durable=True, receipt="r")
        assert client.read() == []
        world.settle()
        assert receipt(client.read()) == {b"result": b"resumed", b"ack": b"client"}

    def test_an_eager_scan_does_not_repeat_what_came_by_itself(self) -> None:
        """A change that is delivered while the scan has not reached its topic is not delivered again by the scan."""
        world = World.make()
        client = world.client()
        for n in range(3000):
            client.send(f"X/{n:04}", b"old")
        world.settle()
        client.subscribe(eager=True, ack="auto")
        world.commit()
        world.broker.scan(500)
        client.send("X/2999", b"new")
        client.send("X/2999x", b"new")
        world.commit()
        got = values(client.read())
        assert got[-2:] == [("X/2999", "new"), ("X/2999x", "new")]
        world.settle()
        got += values(client.read())
        assert len(got) == len({name for name, _ in got}) == 3001

    def test_eager_owes_nothing_without_the_right(self) -> None:
        """Rights are checked when a topic becomes owed, by a scan too, not only when it is written."""
        world = World.make(anna={"send": ["X/**"], "receive": ["X/a"]})
        client = world.client(client_id="me")
        for name in "ab":
            client.send(f"X/{name}")
        client.subscribe(eager=True)
        client.send("X/b")
        world.settle()
        owed = world.broker.sessions["anna", "me"].subscriptions[b"s"].owed
        assert [topic.destination for topic in owed] == [b"X/a"]

    def test_a_replaced_subscription_collects_nothing_more(self) -> None:
        """`result:replaced`: the old one is gone, so that no topic keeps a reference to it."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe("X/a", durable=True)
        client.send("X/a")
        world.settle()
        client.unsubscribe()
        client.subscribe("X/b", durable=True, receipt="r")
        client.send("X/a")
        world.settle()
        assert receipt(client.read())[b"result"] == b"replaced"
        assert list(world.broker.store.topics[b"X/a"].routes) == []

    def test_eager_on_resume_overtakes_no_acknowledgement(self) -> None:
        """Values that `eager` owes again after an ACK without a record yet are delivered, also after a crash."""
        world = World.make()
        client = world.client(client_id="me", window="1")
        client.subscribe(durable=True)
        client.send("X/a")
        client.send("X/b")
        world.settle()
        client.ack(messages(client.read())[0])
        assert values(client.read()) == [("X/b", "value")]
        client.unsubscribe()
        client.subscribe(durable=True, eager=True)
        world.settle()
        (b,) = messages(client.read())
        world.now_s += 1
        world.broker.tick(world.now_s)
        world.settle()
        assert len(world.restart().broker.sessions["anna", "me"].subscriptions[b"s"].owed) == 2
        client.ack(b)
        assert values(client.read()) == [("X/a", "value")]

    def test_a_disk_without_room_leaves_no_durable_subscription(self) -> None:
        """A durable SUBSCRIBE that cannot be stored: ERROR, no RECEIPT for it or what came after, and nothing to resume."""
        world = World.make()
        client = world.client(client_id="me")
        client.send("X/a", receipt="before")
        client.subscribe(durable=True, receipt="s")
        client.write(b"NACK\nreceipt:behind\n\n\0")
        world.broker.roll_back_batch(world.take())
        frames = client.read()
        assert receipts(frames) == [("before", "rejected-unavailable")]
        assert error(frames).headers[b"message"] == b"disk full"
        client.lose()
        client = world.client(client_id="me")
        client.subscribe(durable=True, receipt="r")
        client.send("X/b")
        world.settle()
        frames = client.read()
        assert receipt(frames) == {b"result": b"created", b"ack": b"client"}
        assert values(frames) == [("X/b", "value")]

    def test_expiry_counts_from_the_disconnect(self) -> None:
        """A session without durable subscriptions ends with its connection, another after 7 days; resuming stops the count."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(durable=True)
        world.settle()
        week_s = 7 * 24 * 3600.0
        for _ in range(3):
            client.lose()
            world.now_s += week_s - 1
            world.broker.tick(world.now_s)
            client = world.client(client_id="me")
        world.now_s += 2 * week_s
        world.broker.tick(world.now_s)
        client.subscribe(durable=True, receipt="r")
        world.settle()
        assert receipt(client.read()) == {b"result": b"resumed", b"ack": b"client"}
        client.unsubscribe(durable=True)
        world.settle()
        client.lose()
        assert world.broker.sessions == {}


class TestDelivery:
    """Section "Delivery"."""

    def test_window_doubles_when_no_ack_comes(self) -> None:
        """Full with topics ready and no ACK for 100 ms: it doubles, up to the limit."""
        client = World.make().client()
        world = client.world
        client.subscribe()
        for n in range(200):
            client.send(f"X/{n}")
        world.settle()
        client.ack(messages(client.read())[-1])  # of the first flight
        counts = [len(messages(client.read()))]
        while (due_s := client.peer.next_due_s) is not None:
            assert due_s == pytest.approx(world.now_s + 0.1)
            world.now_s = due_s
            client.peer.tick(world.now_s)
            counts.append(len(messages(client.read())))
        assert counts == [10, 10, 20, 40, 20]

    def test_stall_is_four_round_trips(self) -> None:
        """On a far link it waits for four of the smallest round trips before it doubles."""
        window = Window(100, False, 0.0)
        assert window.stall_timeout_s == 0.1
        window.acked(window.sent(0.0, idle=False), 1, 0.5)
        window.acked(window.sent(1.0, idle=False), 1, 2.0)
        assert window.stall_timeout_s == 2.0

    def test_values_are_read_when_they_are_written(self) -> None:
        """Spec: MaXaM "The use of Acks prevents potentially large volumes of stale "backlogged" data": auto has little too."""
        client = World.make().client()
        world = client.world
        client.subscribe(ack="auto")
        for n in range(100):
            client.send(f"X/{n:03}", b"old" * 1000)
        world.settle()
        parts = client.peer.data_to_send(world.now_s)
        assert 16_384 <= sum(map(len, parts)) <= 16_384 + 4096
        sent = len(parts) // 2
        for n in range(100):
            client.send(f"X/{n:03}", b"new")
        world.settle()
        rest = raw(client)
        assert b"old" not in rest
        assert rest.count(b"new\0") == 100
        assert sent == 6

    def test_never_older_after_newer(self) -> None:
        """Spec: MaXaM "but will ultimately receive the most recent upate for that destination"."""
        world = World.make()
        publisher = world.client()
        for ack in ("auto", "client"):
            client = world.client()
            client.subscribe("X/a", ack=ack, eager=True)
            got: list[int] = []
            for n in range(40):
                publisher.send("X/a", str(n).encode())
                if n % 2:
                    world.commit()
                if n % 3 == 0:
                    for message in messages(client.read()):
                        got.append(int(message.body))
                        if ack == "client" and n % 9 == 0:
                            client.ack(message)
            world.settle()
            while found := messages(client.read()):
                got += [int(message.body) for message in found]
                if ack == "client":
                    client.ack(found[-1])
            last = messages(client.frames)[-1]
            client.ack(last)
            got += [int(message.body) for message in messages(client.read())]
            assert got == sorted(set(got))
            assert got[-1] == 39

    def test_a_dead_subscriber_costs_what_it_is_owed_only(self) -> None:
        """One subscriber that reads nothing costs one reference per owed topic, and delays no other."""
        world = World.make()
        dead, live, publisher = world.client(), world.client(), world.client()
        dead.subscribe()
        live.subscribe(ack="auto")
        world.settle()
        for n in range(300):
            publisher.send(f"X/{n % 10}", str(n).encode())
            world.settle()
            assert values(live.read()) == [(f"X/{n % 10}", str(n))]
        subscription = world.broker.sessions["anna", dead.peer.client_id].subscriptions[b"s"]
        assert len(subscription.owed) == len(subscription.queue) == 10
        assert not subscription.unacked
        assert [body for _, body in values(dead.read())] == [str(n) for n in range(290, 300)]

    def test_topics_that_one_ack_covers_are_served_in_the_order_of_sending(self) -> None:
        """Covered topics re-arm in the order in which their MESSAGEs were sent, not that of their newer values."""
        client = World.make().client()
        client.subscribe()
        for name in "abc":
            client.send(f"X/{name}", b"1")
        client.world.settle()
        got = messages(client.read())
        for name in "cab":
            client.send(f"X/{name}", b"2")
        client.world.settle()
        client.ack(got[2])
        assert [name for name, _ in values(client.read())] == ["X/a", "X/b", "X/c"]

    @pytest.mark.parametrize("version", ["1.1", "1.2"])
    @pytest.mark.parametrize("id_", ["s", "a b", "a:b ", ""])
    def test_ack_is_what_message_says(self, version: str, id_: str) -> None:
        """Spec: MaXaM "must be subscription and message-id concatenated joined on space"; 1.1 "subscription", "message-id"."""
        client = World.make().client(accept_version=version)
        client.subscribe(id_=id_)
        client.send("X/a")
        client.world.settle()
        (message,) = messages(client.read())
        assert message.headers[b"ack"] == id_.encode() + b" 1"
        client.ack(message, receipt="r")
        assert receipt(client.read()) == {}

    @pytest.mark.parametrize("id_", ["1", "s  1", "s 01", "s 1 ", "s +1", " s 1", "s\\c1"])
    def test_an_ack_that_names_no_message_is_ignored(self, id_: str) -> None:
        """An unknown id is ignored and counted, with RECEIPT `result:ignored`. A 1.2 id without a space or with a leading zero is unknown."""
        client = World.make().client()
        client.subscribe()
        client.send("X/a")
        client.world.settle()
        client.read()
        client.write(f"ACK\nid:{id_}\nreceipt:r\n\n\0".encode())
        assert receipt(client.read()) == {b"result": b"ignored"}
        assert client.world.broker.counters.acks_ignored == 1
        assert client.peer.receiving

    def test_unacked_of_a_transient_subscription_is_dropped(self) -> None:
        """Un-acked at disconnect: dropped for transient subscriptions."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe("X/a", "transient")
        client.subscribe("X/b", "durable", durable=True)
        client.send("X/a")
        client.send("X/b")
        world.settle()
        assert len(messages(client.read())) == 2
        client.lose()
        client = world.client(client_id="me")
        client.subscribe("X/a", "transient")
        client.subscribe("X/b", "durable", durable=True)
        world.settle()
        assert values(client.read()) == [("X/b", "value")]


class TestSend:
    """Section "SEND"."""

    def client(self, **rights: Any) -> Client:
        """Connect to a world with schemas."""
        return World.make(schemas=THINGS, anna={**EVERYTHING, **rights}).client()

    @pytest.mark.parametrize(
        ("destination", "body", "disposition", "result", "reason"),
        [
            ("X/D.a", b"\x02", "accepted", None, None),
            ("X/D.a", b"\x80", "rejected-invalid", "schema-mismatch", "e.Thing_v1 1.0: number: expected int"),
            ("X/none", b"\x02", "rejected-invalid", "no-rule", "rule"),
            ("X/D.a b", b"\x02", "rejected-invalid", "invalid-destination", "U+0020"),
            ("Y/D.a", b"\x80", "rejected-unauthorised", "unauthorised", "right"),
            ("Y/D.a", b"", "rejected-unauthorised", "unauthorised", "right"),
            ("X/E.a", envelope(), "rejected-invalid", "envelope-empty", "envelope"),
        ],
    )
    def test_disposition(
        self, destination: str, body: bytes, disposition: str, result: str | None, reason: str | None
    ) -> None:
        """Spec: MaXaM "such messages SHALL NOT cause the STOMP connection to be terminated, or prevent or otherwise influence"."""
        client = self.client()
        client.subscribe("X/**", ack="auto")
        client.world.settle()
        client.send(destination, body, receipt="r")
        client.send(destination, body)
        client.send("X/D.later", b"\x04", receipt="later")
        client.world.settle()
        frames = client.read()
        answer = receipt(frames)
        assert answer.pop(b"disposition") == answer.pop(b"content-disposition") == disposition.encode()
        if result is None or reason is None:
            assert answer == {}
        else:
            assert answer.pop(b"result") == result.encode()
            text = answer.pop(b"reason").decode()
            assert reason in text
            assert text.isprintable()
            assert answer == {}
            assert [name for name, _ in values(frames)] == ["X/D.later"]
            assert client.world.broker.head_revision == 1
        assert receipt(frames, b"later")[b"disposition"] == b"accepted"
        assert client.peer.receiving

    def test_without_a_receipt_a_rejection_is_counted(self) -> None:
        """Spec: MaXaM "if it included a receipt header, a RECEIPT shall be generated": else it is counted only."""
        client = self.client(send=["X/**"])
        client.send("X/none")
        client.send("Y/none")
        client.world.settle()
        assert client.read() == []
        counters = client.world.broker.counters
        assert (counters.sends_invalid, counters.sends_unauthorised) == (1, 1)

    @pytest.mark.parametrize("asked", ["r", None])
    @pytest.mark.parametrize(
        ("destination", "headers", "disposition", "result"),
        [
            ("X/none", {}, "rejected-invalid", "no-rule"),
            ("Y/D.a", {}, "rejected-unauthorised", "unauthorised"),
            ("X/D.first", {"if_revision": "7"}, "rejected-invalid", "conflict"),
            ("X/D.a", {"if_revision": "x"}, "rejected-invalid", "bad-condition"),
        ],
    )
    def test_a_rejection_may_end_the_connection(
        self, destination: str, headers: dict[str, str], disposition: str, result: str, asked: str | None
    ) -> None:
        """With `rejections:error` a rejected SEND is the ERROR. It follows the answers of earlier frames, and no later frame takes effect."""
        world = World.make(schemas=THINGS, anna=EVERYTHING)
        client = world.client(rejections="error")
        client.send("X/D.first", b"\x02", receipt="first")
        data = encoder.send(
            client.version,
            destination.encode(),
            b"\x02",
            tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
            asked.encode() if asked else None,
        )
        client.write(data + encoder.send(client.version, b"X/D.later", b"\x02", (), b"later"))
        client.send("X/D.later", b"\x02", receipt="later")
        assert client.read() == []
        world.settle()
        first, error = client.read()
        assert (first.command, first.headers[b"receipt-id"]) == (b"RECEIPT", b"first")
        assert error.command == b"ERROR"
        assert error.headers.get(b"receipt-id") == (asked.encode() if asked else None)
        assert error.headers[b"message"].decode() == f"{disposition}/{result}"
        assert error.headers[b"disposition"] == error.headers[b"content-disposition"] == disposition.encode()
        assert error.headers[b"result"] == result.encode()
        assert error.headers[b"reason"]
        assert client.peer.finished
        assert world.broker.head_revision == 1

    @pytest.mark.parametrize("asked", ["r", None])
    def test_a_full_disk_may_end_the_connection(self, asked: str | None) -> None:
        """With `rejections:error` a SEND for which the disk has no room is the ERROR, also without a receipt; others get theirs."""
        world = World.make()
        client, other, idle = (world.client(rejections="error"), world.client(), world.client(rejections="error"))
        client.send("X/a", receipt="stored")
        world.settle()
        client.send("X/a", receipt=asked)
        other.send("X/b", receipt="b")
        world.broker.roll_back_batch(world.take())
        stored, error = client.read()
        assert stored.headers[b"receipt-id"] == b"stored"
        assert (error.command, error.headers[b"message"]) == (b"ERROR", b"rejected-unavailable/disk-full")
        assert error.headers.get(b"receipt-id") == (asked.encode() if asked else None)
        assert client.peer.finished
        assert receipts(other.read()) == [("b", "rejected-unavailable")]
        assert other.peer.receiving
        assert idle.peer.receiving
        assert idle.read() == []

    def test_what_was_superseded_is_no_rejection(self) -> None:
        """A retry of what was accepted ends no connection, unless what it was compared with is refused."""
        world = World.make()
        client = world.client(rejections="error")
        marked: dict[str, Any] = {"source": "s", "source_revision": "1"}
        client.send("X/a", receipt="1", **marked)
        client.send("X/a", receipt="2", **marked)
        world.settle()
        assert receipts(client.read()) == [("1", "accepted"), ("2", "accepted")]
        other = world.client()
        other.send("X/b", **marked)
        client.send("X/b", receipt="3", **marked)
        world.broker.roll_back_batch(world.take())
        (error,) = client.read()
        assert error.headers[b"message"] == b"rejected-unavailable/disk-full"
        assert error.headers[b"receipt-id"] == b"3"

    def test_too_fast(self) -> None:
        """Beyond `send_bytes_per_s_max` a principal's SENDs are `rejected-unavailable`, deletes too, until it may send again."""
        world = World.make(limits=Limits(send_bytes_per_s_max=10), anna=EVERYTHING, ben=EVERYTHING)
        client, other = world.client(), world.client()
        client.send("Y/a", b"v" * 1000, receipt="rejected")  # not accepted, so not counted
        client.send(
            "X/a", b"v" * 114, receipt="burst"
        )  # 120 bytes with destination and lengths: 20 more than the burst
        client.send("X/a", receipt="more")
        other.send("X/a", b"", receipt="delete")  # the rate is the principal's
        ben = world.client("ben")
        ben.send("X/b", receipt="ben")
        world.settle()
        frames = client.read()
        assert receipts(frames) == [
            ("rejected", "rejected-unauthorised"),
            ("burst", "accepted"),
            ("more", "rejected-unavailable"),
        ]
        assert receipt(frames, b"more")[b"result"] == b"too-fast"
        assert receipts(other.read()) == [("delete", "rejected-unavailable")]
        assert receipts(ben.read()) == [("ben", "accepted")]
        strict = world.client(rejections="error")
        strict.send("X/a")
        (failure,) = strict.read()
        assert failure.headers[b"message"] == b"rejected-unavailable/too-fast"
        for second in range(1, 4):
            world.wall_us += 1_000_000
            if second != 2:  # then the balance is 0, except for rounding
                client.send("X/a", b"", receipt=f"{second}")
        world.settle()
        assert receipts(client.read()) == [("1", "rejected-unavailable"), ("3", "accepted")]

    def test_without_a_rate_nobody_sends_too_fast(self) -> None:
        """The limit is off unless it is set."""
        world = World.make()
        client = world.client()
        for _ in range(50):
            client.send("X/a", b"v" * 100_000, receipt="r")
        world.settle()
        assert {answer for _, answer in receipts(client.read())} == {"accepted"}

    def test_memory_low(self) -> None:
        """`rejected-unavailable` with `result:memory-low` has no effect. Known topics and deletes go on."""
        client = World.make(limits=Limits(topics_max=1)).client()
        client.send("X/a")
        client.world.settle()
        client.send("X/b", receipt="b")
        client.send("X/a", receipt="a")
        client.send("X/a", b"", receipt="d")
        client.world.settle()
        frames = client.read()
        assert receipts(frames) == [("b", "rejected-unavailable"), ("a", "accepted"), ("d", "accepted")]
        answer = receipt(frames, b"b")
        assert answer[b"content-disposition"] == b"rejected-unavailable"
        assert answer[b"result"] == b"memory-low"
        assert answer[b"reason"]
        client.send("X/b", receipt="later")
        client.world.settle()
        assert receipts(client.read()) == [("later", "accepted")]

    @pytest.mark.parametrize(
        ("destination", "data"),
        [
            ("X/D.a", b"content-length:0\n\n\0"),
            ("X/D.a", b"\n\0"),
            ("X/E.a", b"content-length:%d\n\n" % len(envelope((4, b""))) + envelope((4, b"")) + b"\0"),
        ],
    )
    def test_delete(self, destination: str, data: bytes) -> None:
        """Spec: MaXaM "A client can DELETE a value published to a last value queue by publishing "nothing""."""
        client = self.client()
        client.subscribe(ack="auto")
        client.send(destination, b"\x02" if destination == "X/D.a" else envelope((1, b"\x02")))
        client.world.settle()
        assert len(messages(client.read())) == 1
        client.write(f"SEND\ndestination:{destination}\nreceipt:r\n".encode() + data)
        client.world.settle()
        frames = client.read()
        assert receipt(frames)[b"disposition"] == b"accepted"
        (message,) = messages(frames)
        assert (message.body, message.headers[b"content-length"]) == (b"", b"0")
        client.subscribe(id_="eager", eager=True)
        client.world.settle()
        assert client.read() == []

    def test_delete_needs_the_send_right_but_no_rule(self) -> None:
        """A delete needs the send right; an empty body needs no schema check."""
        client = self.client(send=["X/a", "X/D.*"])
        client.send("X/a", b"", receipt="1")
        client.send("X/b", b"", receipt="2")
        client.world.settle()
        assert receipts(client.read()) == [("1", "accepted"), ("2", "rejected-unauthorised")]

    def test_a_delete_is_conflated_like_any_value(self) -> None:
        """Value, delete and value again while it waits: the newest is delivered, once."""
        client = World.make().client()
        client.subscribe()
        client.send("X/a", b"1")
        client.world.settle()
        (message,) = messages(client.read())
        client.send("X/a", b"")
        client.send("X/a", b"2")
        client.send("X/b", b"1")
        client.send("X/b", b"")
        client.world.settle()
        assert values(client.read()) == [("X/b", "")]
        client.ack(message)
        assert values(client.read()) == [("X/a", "2")]

    def test_user_headers_are_stored_with_the_value(self) -> None:
        """Spec: STOMP 1.2 "The user defined headers MUST be passed through in the `MESSAGE` frame."."""
        world = World.make()
        reserved = "receipt transaction content-length destination message-id subscription ack receipt-id revision"
        names = [*reserved.split(), "timestamp", "publisher", "schema", "kind", "conflated"]
        lines = "".join(f"{name}:X/forged\n" for name in names if name not in {"transaction", "content-length"})
        client = world.client()
        client.write(f"SEND\ndestination:X/a\nz:1\ncontent-type:t\n{lines}schema-version:1.0\na:2\n\nbody\0".encode())
        world.settle()
        for broker in (world, world.restart()):
            reader = broker.client()
            reader.subscribe(ack="auto", eager=True)
            broker.settle()
            (message,) = messages(reader.read())
            assert list(message.headers.items()) == [
                (b"subscription", b"s"),
                (b"message-id", b"1"),
                (b"destination", b"X/a"),
                (b"z", b"1"),
                (b"content-type", b"t"),
                (b"schema-version", b"1.0"),
                (b"a", b"2"),
                (b"content-length", b"4"),
            ]

    def test_a_rule_may_accept_anything(self) -> None:
        """A destination without a schema rule is rejected, unless the registry has another setting for that glob."""
        client = World.make(schemas=UNCHECKED, anna={"send": ["**"], "receive": []}).client()
        client.send("X/any", b"\xff", receipt="1")
        client.send("Y/any", b"\xff", receipt="2")
        client.world.settle()
        assert receipts(client.read()) == [("1", "accepted"), ("2", "rejected-invalid")]


def asked(client: Client, settle: bool = True, /, **headers: str) -> str:
    """Send a value with these conditions; return disposition, result and revision of the RECEIPT, if it has come."""
    body = headers.pop("body", "v").encode()
    destination = headers.pop("destination", "X/a")
    client.send(destination, body, receipt="asked", **headers)
    if settle:
        client.world.settle()
    return answered(client)


def answered(client: Client) -> str:
    """Return disposition, result and revision of the RECEIPTs that have come."""
    told = [frame.headers for frame in client.read() if frame.command == b"RECEIPT"]
    assert all(h.get(b"disposition") == h.get(b"content-disposition") for h in told)
    names = (b"disposition", b"result", b"revision")
    return " ".join(h[name].decode() for h in told for name in names if name in h)


SUPERSEDED = "accepted superseded"
CONFLICT = "rejected-invalid conflict"
REFUSED = "rejected-unavailable disk-full"


class TestConditions:
    """The extensions of SEND."""

    def test_a_source_never_goes_back(self) -> None:
        """A number that is not greater than the one kept of the source: accepted, superseded, no new revision, no MESSAGE."""
        client = World.make().client()
        client.subscribe(ack="auto")
        client.world.settle()
        numbers = ["0", "0", "5", "4", "5", "6", "18"]
        answers = [asked(client, source="s", source_revision=n, body=n) for n in numbers]
        assert answers == ["accepted", SUPERSEDED, "accepted", SUPERSEDED, SUPERSEDED, "accepted", "accepted"]
        assert client.world.broker.head_revision == 4
        assert [body for _, body in values(client.frames)] == ["0", "5", "6", "18"]
        assert client.world.broker.counters.sends_superseded == 3
        assert asked(client, destination="X/b", source="s", source_revision="1") == "accepted"  # each topic has its own

    def test_a_takeover_keeps_marks(self) -> None:
        """With other senders to the topic, no late older value of the source comes back, over restarts too."""
        client = World.make().client()
        assert asked(client, source="s", source_revision="5") == "accepted"
        assert asked(client, body="by hand") == "accepted"
        assert asked(client, source="t", source_revision="1") == "accepted"
        for late in (client, client.world.restart().client()):
            assert asked(late, source="s", source_revision="4") == SUPERSEDED
            assert asked(late, source="t", source_revision="1") == SUPERSEDED
        assert asked(client, source="s", source_revision="6") == "accepted"

    def test_a_topic_keeps_the_marks_of_four_sources(self) -> None:
        """The fifth source of a topic makes it forget the one that changed it longest ago."""
        client = World.make().client()
        for source in "abcda":
            assert asked(
                client,
                source=source,
                source_revision="5" if source != "a" else str(client.world.broker.head_revision + 5),
            )
        assert asked(client, source="e", source_revision="1") == "accepted"
        assert [asked(client, source=s, source_revision="1") for s in "acde"] == [SUPERSEDED] * 4
        assert asked(client, source="b", source_revision="1") == "accepted"

    @pytest.mark.parametrize("present", [True, False])
    @pytest.mark.parametrize("marked", [True, False])
    def test_deletes_keep_marks(self, present: bool, marked: bool) -> None:
        """A delete keeps the marks, and a marked one is remembered though the topic had no value."""
        client = World.make().client()
        if present:
            asked(client, source="s", source_revision="3")
        mark = {"source": "s", "source_revision": "4"} if marked else {}
        assert asked(client, body="", **mark) == "accepted"
        kept = 4 if marked else 3 if present else -1
        for late in (client, client.world.restart().client()):
            for number in range(5):
                expected = SUPERSEDED if number <= kept else "accepted"
                assert asked(late, source="s", source_revision=str(number)) == expected
                kept = max(kept, number)
            late.world.journal[:] = late.world.journal[: 1 + present]
            kept = 4 if marked else 3 if present else -1

    def test_marks_of_a_deleted_topic_end(self) -> None:
        """They count until `dedup_retention_s` after the delete. Those of a topic with a value always count."""
        world = World.make(limits=Limits(dedup_retention_s=10))
        client = world.client()
        asked(client, source="s", source_revision="5")
        world.wall_us += 1_000_000_000
        assert asked(client, source="s", source_revision="4") == SUPERSEDED
        asked(client, body="")
        world.wall_us += 10_000_000
        assert asked(client, source="s", source_revision="4") == SUPERSEDED
        world.wall_us += 1
        assert asked(client, source="s", source_revision="4") == "accepted"

    def test_marks_count_as_topics(self) -> None:
        """A topic that is kept for its marks alone takes the place of one, until its marks end."""
        world = World.make(limits=Limits(topics_max=2, dedup_retention_s=10))
        client = world.client()
        for topic in ("X/a", "X/b"):
            assert asked(client, destination=topic, body="", source="s", source_revision="5") == "accepted"
        full = "rejected-unavailable memory-low"
        assert asked(client, destination="X/c") == full
        assert asked(client, destination="X/c", body="", source="s", source_revision="1") == full
        assert asked(client, destination="X/c", body="") == "accepted"
        assert asked(client, destination="X/a", body="", source="s", source_revision="6") == "accepted"
        world.wall_us += 11_000_000
        assert asked(client, destination="X/d", body="") == "accepted"  # time is that of accepted changes
        assert asked(client, destination="X/c") == "accepted"
        assert world.broker.sequences.absent == 0

    @pytest.mark.parametrize("committed", [True, False])
    @pytest.mark.parametrize("taken", [True, False])
    def test_superseded_waits_for_what_it_was_compared_with(self, taken: bool, committed: bool) -> None:
        """The answer comes when the newer value is on the disk, and is `rejected-unavailable` if that is refused."""
        world = World.make()
        client, other = world.client(), world.client()
        assert asked(other, False, source="s", source_revision="5") == ""
        batch = world.take() if taken else []
        assert asked(client, False, source="s", source_revision="5") == ""
        batch = batch or world.take()
        if committed:
            world.commit(batch)
            assert (answered(client), answered(other)) == (SUPERSEDED, "accepted")
            client.send("X/b", receipt="refused")
            assert asked(client, False, source="s", source_revision="4") == ""  # in order; what decided stands
            world.broker.roll_back_batch(world.take())
            assert answered(client) == f"{REFUSED} {SUPERSEDED}"
        else:
            world.broker.roll_back_batch(batch)
            world.settle()
            assert (answered(client), answered(other)) == (REFUSED, REFUSED)
            assert asked(client, source="s", source_revision="1") == "accepted"

    def test_a_refused_change_takes_its_answers_along(self) -> None:
        """Conflict, and acceptance with its revision, are not reported for changes for which there was no room."""
        world = World.make()
        client = world.client()
        world.broker.store.topics.clear()
        asked(client, False)
        asked(client, False, if_revision="7")
        asked(client, False, if_revision="1")
        asked(client, False, if_revision="2", destination="X/b")
        world.broker.roll_back_batch(world.take())
        assert answered(client) == f"{REFUSED} {REFUSED} {REFUSED} {CONFLICT}"
        assert asked(client, if_revision="0") == "accepted 1"

    def test_marks_travel_on(self) -> None:
        """Source and number are user headers of the MESSAGE, in their place; `if-revision` is not."""
        client = World.make().client()
        client.subscribe(ack="auto")
        asked(client, a="1", source="s", b="2", source_revision="7", if_revision="0", kept_source="9 s", c="3")
        (message,) = [frame for frame in client.frames if frame.command == b"MESSAGE"]
        names = [name for name in message.headers if name not in {b"subscription", b"message-id", b"destination"}]
        assert names == [b"a", b"source", b"b", b"source-revision", b"c", b"content-length"]

    @pytest.mark.parametrize(
        "headers",
        [
            {"source_revision": "1"},
            {"source": "", "source_revision": "1"},
            {"source": "x" * 129, "source_revision": "1"},
            {"source": "s", "source_revision": "-1"},
            {"source": "s", "source_revision": str(2**63)},
            {"if_revision": ""},
            {"source": "s", "source_revision": "1", "if_revision": "0x1"},
        ],
    )
    def test_a_bad_condition(self, headers: dict[str, str]) -> None:
        """A condition that cannot be used is `rejected-invalid` with a reason, and has no effect."""
        client = World.make().client()
        assert asked(client, **headers) == "rejected-invalid bad-condition"
        reason = client.frames[-1].headers[b"reason"].decode()
        assert "must be" in reason
        assert reason.isprintable()
        assert client.world.broker.head_revision == 0

    def test_a_source_without_a_number_is_a_user_header(self) -> None:
        """`source` alone has no meaning to the broker, whatever it holds."""
        client = World.make().client()
        for name in ("s", "", "x" * 500):
            assert asked(client, source=name) == "accepted"
        assert len(client.world.broker.sequences) == 0

    def test_conditions_come_last_and_the_source_first(self) -> None:
        """Right, schema, source, `if-revision`: the first that fails decides."""
        client = World.make(schemas=THINGS, anna=EVERYTHING).client()
        mark = {"source": "s", "source_revision": "5", "if_revision": "0"}
        assert asked(client, destination="Y/D.a", **mark | {"if_revision": "x"}) == "rejected-unauthorised unauthorised"
        assert asked(client, destination="X/D.a", body="\x80", **mark | {"if_revision": "x"}).endswith(
            "schema-mismatch"
        )
        assert asked(client, destination="X/D.a", body="\2", **mark) == "accepted 1"
        assert asked(client, destination="X/D.a", body="\2", **mark) == SUPERSEDED
        assert asked(client, destination="X/D.a", body="\x80", **mark).endswith("schema-mismatch")
        assert asked(client, destination="X/D.a", body="\2", **mark | {"source_revision": "6"}) == CONFLICT
        assert (
            asked(client, destination="X/D.a", body="\2", source="s", source_revision="6") == "accepted"
        )  # no mark of what failed

    def test_if_revision(self) -> None:
        """It is the revision of the topic's newest value, 0 for none. The RECEIPT has the new one."""
        client = World.make().client()
        assert asked(client, if_revision="1") == CONFLICT
        assert asked(client, if_revision="0") == "accepted 1"
        assert asked(client, if_revision="0") == CONFLICT
        asked(client, destination="X/b")
        assert asked(client, if_revision="1") == "accepted 3"
        assert asked(client, if_revision="1") == CONFLICT
        for again in (client, client.world.restart().client()):
            assert asked(again, if_revision="3", body="") == "accepted 4"
            assert asked(again, if_revision="4") == CONFLICT
            assert asked(again, if_revision="0", body="") == "accepted 5"
            assert asked(again, if_revision="0") == "accepted 6"
            again.world.journal[:] = again.world.journal[:3]

    def test_if_revision_sees_what_is_not_committed(self) -> None:
        """The newest change decides, be it pending or being written; its commit is awaited."""
        world = World.make()
        client, other = world.client(), world.client()
        asked(client)
        other.send("X/a", b"2")
        batch = world.take()
        assert asked(client, False, if_revision="1") == ""
        assert asked(client, False, if_revision="2") == ""
        other.send("X/b", b"")
        other.send("X/a", b"")
        assert asked(client, False, if_revision="3") == ""
        assert asked(client, False, if_revision="0") == ""
        world.commit(batch)
        assert answered(client) == CONFLICT
        world.settle()
        assert answered(client) == f"accepted 3 {CONFLICT} accepted 6"

    @pytest.mark.parametrize("rights", [EVERYTHING, {"send": ["X/**"], "receive": []}])
    def test_a_conflict_tells_the_revision_to_receivers_only(self, rights: dict[str, Any]) -> None:
        """A client that may not receive the topic learns that the revision is another, not which."""
        client = World.make(anna=rights).client()
        asked(client, if_revision="5")
        nothing = client.frames[-1].headers[b"reason"]
        log = client.world.broker._log
        log.head_revision = log.committed_revision = 4710
        asked(client)
        asked(client, if_revision="5")
        told = client.frames[-1].headers[b"reason"]
        if rights is EVERYTHING:
            assert nothing.startswith(b"the topic has no value;")
            assert told == b"the topic has revision 4711; if-revision is 5"
        else:
            assert nothing == told == b"the topic has changed; if-revision is 5"

    def test_an_empty_delete_says_whose_it_is(self) -> None:
        """Its journal record has encoding and schema name of the rule, no version and no fingerprint; without a rule nothing."""
        client = World.make(schemas=THINGS, anna=EVERYTHING).client()
        for destination in ("X/D.a", "X/E.a", "X/other"):
            asked(client, destination=destination, body="")
        judged = [r.validation for r in client.world.journal if isinstance(r, Change)]
        assert [(j.encoding, j.schema, j.schema_version, j.schema_fingerprint, j.tombstone) for j in judged] == [
            ("datum", "e.Thing_v1", "", b"", False),
            ("envelope", "e.Thing_v1", "", b"", False),
            ("none", "", "", b"", False),
        ]


class TestDisconnect:
    """Section "DISCONNECT"."""

    def test_it_waits_for_commits_as_long_as_for_a_write(self) -> None:
        """RECEIPTs are flushed within `write_timeout_s`; then the connection ends without those that hang."""
        client = World.make().client()
        world = client.world
        client.send("X/a", receipt="hangs")
        world.take()
        client.write(b"DISCONNECT\nreceipt:bye\n\n\0")
        assert client.peer.next_due_s == world.now_s + 30
        world.now_s += 29
        assert client.read() == []
        assert not client.peer.finished
        world.now_s += 1
        assert client.read() == []
        assert client.peer.finished

    def test_without_a_receipt_it_ends_silently(self) -> None:
        """A DISCONNECT without receipt: what is due is flushed, then the connection is closed without a frame."""
        client = World.make().client()
        client.send("X/a", receipt="1")
        client.write(b"DISCONNECT\n\n\0")
        assert client.read() == []
        client.world.settle()
        assert receipts(client.read()) == [("1", "accepted")]
        assert ended(client)
        client.lose()
        assert client.world.broker.sessions == {}

    def test_unacked_count_as_at_a_disconnect(self) -> None:
        """A message without an ACK before DISCONNECT is owed again to its durable subscription."""
        world = World.make()
        client = world.client(client_id="me")
        client.subscribe(durable=True)
        client.send("X/a")
        client.send("X/b")
        world.settle()
        first, _ = messages(client.read())
        client.ack(first)
        client.write(b"DISCONNECT\nreceipt:bye\n\n\0")
        assert receipts(client.read()) == [("bye", "")]
        client.lose()
        client = world.client(client_id="me")
        client.subscribe(durable=True)
        world.settle()
        assert values(client.read()) == [("X/b", "value")]

    def test_a_connection_that_breaks_loses_no_send(self) -> None:
        """Spec: STOMP 1.2 "If the client disconnects, previously received frames SHOULD continue to get processed"."""
        world = World.make()
        client = world.client()
        client.send("X/a")
        client.lose()
        world.settle()
        assert b"X/a" in world.broker.store.topics
