"""The encoder: frames as bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maxam.config import Limits
from maxam.content import pack
from maxam.errors import ProtocolError
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, Connect, Subscribe, SubscribeOptions
from maxam.stomp.frames import CLIENT_COMMANDS, FIRST_COMMANDS, SERVER_COMMANDS, Decoder, Frame
from maxam.stomp.protocol import Protocol

VERSIONS = [VERSION_1_1, VERSION_1_2]
# encodings of lengths have one byte up to 63, and are themselves characters that a header has to escape
HEADER_TEXTS = st.sampled_from([0, 1, 5, 13, 29, 46, 62, 63, 64, 65, 300]).flatmap(
    lambda size: (
        st.lists(st.sampled_from(b":\\\n\r\0abcdefghijklmnopqrstuvwxyz"), min_size=size, max_size=size).map(bytes)
        | st.just(b"v" * size)
    )
)
AWKWARD = b"a\\b:c\nd"


def read(data: bytes, version: int) -> Frame:
    """Decode one frame of either end."""
    (frame,) = Decoder(Limits(), {**SERVER_COMMANDS, **CLIENT_COMMANDS}, version).feed(data)
    return frame


@pytest.mark.parametrize(
    ("version", "text", "escaped"),
    [
        (VERSION_1_1, b"\\\n:\r", b"\\\\\\n\\c\r"),
        (VERSION_1_2, b"\\\n:\r", b"\\\\\\n\\c\\r"),
        (VERSION_1_2, b"", b""),
        (VERSION_1_2, b"plain-1", b"plain-1"),
        (VERSION_1_2, b"\\n", b"\\\\n"),
        (VERSION_1_2, "ä".encode(), "ä".encode()),
        (VERSION_1_2, b"a\0b", "a\ufffdb".encode()),
    ],
)
def test_escape(version: int, text: bytes, escaped: bytes) -> None:
    """Spec: STOMP 1.2 "when encoding frame headers, the reverse transformation MUST be applied"."""
    assert encoder.escape(version, text) == escaped


class TestServer:
    """Frames of a server."""

    def test_connected(self) -> None:
        """CONNECTED carries version, session, heart-beat and server, and escapes nothing."""
        assert encoder.connected(VERSION_1_1, "a:b\\c", (10000, 20000), "maxam/0.1.0") == (
            b"CONNECTED\nversion:1.1\nsession:a:b\\c\nheart-beat:10000,20000\nserver:maxam/0.1.0\n\n\0"
        )

    @pytest.mark.parametrize("session", ["a\nversion:9", "a\r", "a\0"])
    def test_connected_refuses_injection(self, session: str) -> None:
        """A character that would end a line or the frame is not written."""
        with pytest.raises(ValueError, match="no escapes"):
            encoder.connected(VERSION_1_2, session, (0, 0), "maxam")

    def test_receipt(self) -> None:
        """RECEIPT carries the receipt-id and what else it is given, escaped."""
        assert encoder.receipt(VERSION_1_2, b"r:1", ((b"result", b"resumed"),)) == (
            b"RECEIPT\nreceipt-id:r\\c1\nresult:resumed\n\n\0"
        )

    @pytest.mark.parametrize("version", VERSIONS)
    def test_receipt_accepted(self, version: int) -> None:
        """The short way to an accepted RECEIPT writes what the general one does."""
        headers = ((b"disposition", b"accepted"), (b"content-disposition", b"accepted"))
        for receipt_id in (b"m-1", AWKWARD, b""):
            assert encoder.receipt_accepted(version, receipt_id) == encoder.receipt(version, receipt_id, headers)

    def test_error(self) -> None:
        """ERROR carries message, the offending frame's receipt, further headers and the detail as its body."""
        error = ProtocolError("no: way", "détail", b"r1", ((b"version", b"1.1,1.2"),))
        frame = read(encoder.error(VERSION_1_2, error), VERSION_1_2)
        assert frame.command == b"ERROR"
        assert frame.headers == {
            b"receipt-id": b"r1",
            b"message": b"no: way",
            b"content-type": b"text/plain",
            b"version": b"1.1,1.2",
            b"content-length": b"7",
        }
        assert frame.body == "détail".encode()
        assert b"receipt-id" not in encoder.error(VERSION_1_2, ProtocolError("a", "b"))

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("acknowledged", [True, False])
    @pytest.mark.parametrize("headers", [(), ((b"content-type", b"a/b"), (b"x:y", b"\\"))])
    def test_message(self, version: int, acknowledged: bool, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """A prefix and the shared bytes of the same variant make one MESSAGE whose ack is `<subscription> <message-id>`."""
        prefix = encoder.message_prefix(version, b"s 1:", acknowledged)
        shared = encoder.message_shared(version, acknowledged, b"X/a:b", 42, *pack(headers, b"\0\n"))
        frame = read(prefix + shared, version)
        expected = {b"subscription": b"s 1:", b"message-id": b"42", b"destination": b"X/a:b", b"content-length": b"2"}
        if acknowledged:
            expected[b"ack"] = b"s 1: 42"
        assert frame.headers == expected | dict(headers)
        assert frame.body == b"\0\n"

    @pytest.mark.parametrize("acknowledged", [True, False])
    @pytest.mark.parametrize("headers", [(), ((b"n", b"v"),)])
    def test_message_of_any_size(self, acknowledged: bool, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """A body is the body, whichever way it is copied."""
        small = encoder.message_shared(VERSION_1_2, acknowledged, b"X/a", 1, *pack(headers, b"0123456789"))
        for size in (1023, 1024, 4096, 16_383, 16_384, 16_385, 1_000_000):
            body = bytes(range(256)) * (size // 256) + bytes(size % 256)
            large = encoder.message_shared(VERSION_1_2, acknowledged, b"X/a", 1, *pack(headers, body))
            assert large == small.replace(b"content-length:10", b"content-length:%d" % size).replace(
                b"0123456789", body
            )

    @pytest.mark.slow
    @given(
        st.lists(st.tuples(HEADER_TEXTS.filter(len), HEADER_TEXTS), max_size=4).map(tuple), st.sampled_from(VERSIONS)
    )
    @example(tuple((b"n%d" % n, b"v") for n in range(63)), VERSION_1_2)
    @example(tuple((b"n%d" % n, b"v") for n in range(64)), VERSION_1_2)
    def test_user_headers_of_any_length(self, headers: tuple[tuple[bytes, bytes], ...], version: int) -> None:
        """The short way through a content writes what escaping each name and value does."""
        message = encoder.message_shared(version, False, b"X/a", 1, *pack(headers, b"body"))
        lines = [encoder.escape(version, name) + b":" + encoder.escape(version, value) for name, value in headers]
        assert message == b"\n".join([b"message-id:1\ndestination:X/a", *lines, b"content-length:4\n\nbody\0"])

    def test_message_of_a_delete(self) -> None:
        """A delete is a MESSAGE with an empty body, and has a content-length."""
        assert encoder.message_shared(VERSION_1_2, False, b"X/a", 1, *pack((), b"")) == (
            b"message-id:1\ndestination:X/a\ncontent-length:0\n\n\0"
        )


class TestClient:
    """Frames of a client."""

    def test_connect(self) -> None:
        """CONNECT offers both versions and carries what is given, unescaped."""
        data = encoder.connect("MAXVAPI", heart_beat_ms=(10000, 5000), client_id="c:1", window=5)
        (frame,) = Decoder(Limits(), FIRST_COMMANDS).feed(data)
        assert frame.headers == {
            b"accept-version": b"1.1,1.2",
            b"host": b"MAXVAPI",
            b"heart-beat": b"10000,5000",
            b"client-id": b"c:1",
            b"window": b"5",
        }
        data = encoder.connect("MAXVAPI", incarnation=True)
        (frame,) = Decoder(Limits(), FIRST_COMMANDS).feed(data)
        assert frame.headers[b"incarnation"] == b"true"

    def test_connect_refuses_injection(self) -> None:
        """A client-id cannot add a header to CONNECT."""
        with pytest.raises(ValueError, match="no escapes"):
            encoder.connect("MAXVAPI", client_id="a\nlogin:b")

    @pytest.mark.parametrize("version", VERSIONS)
    def test_send(self, version: int) -> None:
        """SEND always declares the length of its body."""
        frame = read(encoder.send(version, b"X/a:b", b"\0", ((b"k:", AWKWARD),), b"r"), version)
        assert frame.headers == {b"destination": b"X/a:b", b"receipt": b"r", b"k:": AWKWARD, b"content-length": b"1"}
        assert frame.body == b"\0"

    def test_subscribe(self) -> None:
        """SUBSCRIBE carries id, destination, ack and only the flags that are set."""
        frame = read(encoder.subscribe(VERSION_1_2, b"1", b"X/**", b"auto", durable=True, receipt_id=b"r"), VERSION_1_2)
        assert frame.headers == {
            b"id": b"1",
            b"destination": b"X/**",
            b"ack": b"auto",
            b"durable": b"true",
            b"receipt": b"r",
        }
        assert read(encoder.subscribe(VERSION_1_2, b"1", b"X/**", eager=True), VERSION_1_2).headers[b"eager"] == b"true"

    @pytest.mark.parametrize("version", VERSIONS)
    def test_subscribe_with_options(self, version: int) -> None:
        """Each option is a header that the protocol reads as it was. An option that is not set adds none."""
        texts = []
        for options in (
            SubscribeOptions(b"i.7:r", True, True, 250, "a = 'x:y\n'", True),
            SubscribeOptions(markers=True),
            SubscribeOptions(selector="a > 1"),
        ):
            texts.append(encoder.subscribe(version, b"1", b"X/**", receipt_id=b"r", options=options))
            protocol = Protocol(Limits())
            (event,) = protocol.receive_data(encoder.connect("MAXVAPI", (version,)))
            assert isinstance(event, Connect)
            (event,) = protocol.receive_data(texts[-1])
            assert isinstance(event, Subscribe)
            assert event.options is not None
            for name in ("since", "markers", "metadata", "interval_ms", "selector", "changes_only"):
                assert getattr(event.options, name) == getattr(options, name)
        assert list(read(texts[2], version).headers) == [b"id", b"destination", b"ack", b"selector", b"receipt"]

    def test_unsubscribe(self) -> None:
        """UNSUBSCRIBE has durable:true only on request."""
        assert encoder.unsubscribe(VERSION_1_2, b"1") == b"UNSUBSCRIBE\nid:1\n\n\0"
        assert encoder.unsubscribe(VERSION_1_2, b"1", durable=True) == b"UNSUBSCRIBE\nid:1\ndurable:true\n\n\0"

    def test_ack(self) -> None:
        """ACK names subscription and message-id in 1.1 and both joined by a space as id in 1.2."""
        assert encoder.ack(VERSION_1_1, b"s 1", b"42") == b"ACK\nsubscription:s 1\nmessage-id:42\n\n\0"
        assert encoder.ack(VERSION_1_1, b"s", b"42", identifier=b"T_1") == b"ACK\nsubscription:s\nmessage-id:42\n\n\0"
        assert encoder.ack(VERSION_1_2, b"s", b"42", identifier=b"T:1") == b"ACK\nid:T\\c1\n\n\0"
        assert encoder.ack(VERSION_1_2, b"s 1", b"42", b"r") == b"ACK\nid:s 1 42\nreceipt:r\n\n\0"

    def test_disconnect(self) -> None:
        """DISCONNECT may ask for a receipt."""
        assert encoder.disconnect(VERSION_1_2) == b"DISCONNECT\n\n\0"
        assert encoder.disconnect(VERSION_1_2, b"77") == b"DISCONNECT\nreceipt:77\n\n\0"
