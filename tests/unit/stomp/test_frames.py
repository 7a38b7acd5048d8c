"""The decoder: frames out of bytes, and what it refuses."""

import dataclasses
import sys
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, parse_number
from maxam.stomp.frames import CLIENT_COMMANDS, FIRST_COMMANDS, SERVER_COMMANDS, Decoder, Frame

if TYPE_CHECKING:
    from _typeshed import TraceFunction

SMALL = Limits(
    frame_headers_max=3,
    frame_header_line_bytes_max=20,
    frame_headers_bytes_max=50,
    frame_body_bytes_max=10,
    connect_frame_bytes_max=30,
)


def decode(
    data: bytes,
    version: int = VERSION_1_2,
    limits: Limits = SMALL,
    commands: dict[bytes, bool] = CLIENT_COMMANDS,
) -> list[Frame]:
    """Decode at once and byte by byte, and return the frames, which must be the same."""
    whole = list(Decoder(limits, commands, version).feed(data))
    decoder = Decoder(limits, commands, version)
    parts = [frame for byte in data for frame in decoder.feed(bytes([byte]))]
    assert [(f.command, f.headers, f.body) for f in whole] == [(f.command, f.headers, f.body) for f in parts]
    return whole


def refusal(
    data: bytes,
    version: int = VERSION_1_2,
    limits: Limits = SMALL,
    commands: dict[bytes, bool] = CLIENT_COMMANDS,
) -> ProtocolError:
    """Decode at once and byte by byte, and return the error, which must be the same and come with the last byte."""
    with pytest.raises(ProtocolError) as whole:
        list(Decoder(limits, commands, version).feed(data))
    decoder = Decoder(limits, commands, version)
    for byte in data[:-1]:
        list(decoder.feed(bytes([byte])))
    with pytest.raises(ProtocolError) as parts:
        list(decoder.feed(data[-1:]))
    assert str(whole.value) == str(parts.value)
    assert whole.value.receipt == parts.value.receipt
    return whole.value


class TestFrame:
    """Well-formed frames."""

    @pytest.mark.parametrize("version", [VERSION_1_1, VERSION_1_2])
    def test_parts(self, version: int) -> None:
        """A frame is a command, headers in order and a body up to NUL."""
        (frame,) = decode(b"SEND\nb:1\na:2\n\nbody\0", version)
        assert (frame.command, list(frame.headers.items()), frame.body) == (
            b"SEND",
            [(b"b", b"1"), (b"a", b"2")],
            b"body",
        )

    def test_no_headers(self) -> None:
        """A frame may have no headers."""
        (frame,) = decode(b"DISCONNECT\n\n\0")
        assert (frame.command, frame.headers, frame.body) == (b"DISCONNECT", {}, b"")

    def test_first_of_repeated_headers_wins(self) -> None:
        """Spec: STOMP 1.2 "The value of the foo header is just World."."""
        (frame,) = decode(b"MESSAGE\nfoo:World\nfoo:Hello\n\n\0", commands=SERVER_COMMANDS)
        assert frame.headers == {b"foo": b"World"}

    def test_never_trimmed(self) -> None:
        """Spec: STOMP 1.2 "clients and servers MUST never trim or pad headers with spaces"."""
        (frame,) = decode(b"SEND\n a : b \n\n\0")
        assert frame.headers == {b" a ": b" b "}

    def test_first_colon_separates(self) -> None:
        """A colon that a client did not escape belongs to the value."""
        (frame,) = decode(b"SEND\na:b:c:\n\n\0")
        assert frame.headers == {b"a": b"b:c:"}

    def test_utf_8(self) -> None:
        """Headers may hold any UTF-8."""
        (frame,) = decode("SEND\nä:ö€😀\n\n\0".encode())
        assert frame.headers == {"ä".encode(): "ö€😀".encode()}

    @pytest.mark.parametrize("version", [VERSION_1_1, VERSION_1_2])
    def test_ends_of_line_between_frames(self, version: int) -> None:
        """Spec: STOMP 1.2 "The NULL octet can be optionally followed by multiple EOLs."."""
        assert len(decode(b"\n\nNACK\n\n\0\n\n\nNACK\n\n\0\n", version)) == 2

    @pytest.mark.parametrize("body", range(60))
    @pytest.mark.parametrize(
        "head", [b"NACK", b"SEND\nd:1", b"SEND\ndestination:X/a", b"SEND\na:1\nb:2\nc:3\nd:4\ne:5"]
    )
    def test_a_head_ends_at_its_own_blank_line(self, head: bytes, body: int) -> None:
        """A blank line in a body is none of the head, wherever it lies and however long the heads before were."""
        before = b"SEND\ndestination:X/b\n\nbefore\0"
        bodies = [b"", b"." * body + b"\n\n" + b"." * body, b"\n" * body] if head != b"NACK" else [b""]
        for text in bodies:
            frame = head + b"\n\n" + text + b"\0"
            found = decode(before + frame + before + b"NACK\n\n\0" + before, limits=Limits())
            assert [f.body for f in found] == [b"before", text, b"before", b"", b"before"]
            assert found[1].headers == decode(frame, limits=Limits())[0].headers

    def test_idle_decoder_holds_nothing(self) -> None:
        """After the last frame no received byte is kept."""
        decoder = Decoder(SMALL, CLIENT_COMMANDS)
        list(decoder.feed(b"NACK\n\n\0\n"))
        assert decoder._data == b""


class TestLineEnds:
    """LF and CRLF."""

    def test_crlf_in_1_2(self) -> None:
        """Spec: STOMP 1.2 "an end-of-line (EOL), which consists of an OPTIONAL carriage return [...] followed by a REQUIRED line feed"."""
        (frame,) = decode(b"\r\nSEND\r\na:b\r\n\r\n\r\nx\n\n\0\r\n")
        assert (frame.headers, frame.body) == ({b"a": b"b"}, b"\r\nx\n\n")

    @pytest.mark.parametrize(
        "head", [b"SEND\r\na:b\n\r\n", b"SEND\na:b\r\n\n", b"SEND\na:b\n\r\n", b"SEND\r\na:b\r\n\n"]
    )
    def test_mixed_in_1_2(self, head: bytes) -> None:
        """Each line of 1.2 may end in its own way."""
        (frame,) = decode(head + b"x\n\n\r\n\r\n\0")
        assert (frame.headers, frame.body) == ({b"a": b"b"}, b"x\n\n\r\n\r\n")

    def test_carriage_return_is_data_in_1_1(self) -> None:
        """In 1.1 a CR belongs to the value, also before LF."""
        (frame,) = decode(b"SEND\na:\rb\r\n\n\0", VERSION_1_1)
        assert frame.headers == {b"a": b"\rb\r"}

    @pytest.mark.parametrize("data", [b"SEND\na:b\rc", b"SEND\na:b\r\r", b"SEND\na:b\n\rc", b"SEND\rS", b"\r\r"])
    def test_stray_carriage_return_in_1_2(self, data: bytes) -> None:
        """A CR that is not before LF is refused with the byte after it."""
        assert refusal(data).message in {"malformed header", "malformed frame"}

    @pytest.mark.parametrize("data", [b"\r", b"SEND\r", b"SEND\na:b\n\r\n"])
    def test_crlf_is_refused_in_1_1(self, data: bytes) -> None:
        """In 1.1 neither a command line nor a blank line ends in CRLF."""
        refusal(data, VERSION_1_1)


class TestEscapes:
    """Spec: STOMP 1.2 "Value Encoding"."""

    @pytest.mark.parametrize(
        ("version", "escaped", "plain"),
        [
            (VERSION_1_1, rb"\n", b"\n"),
            (VERSION_1_1, rb"\c", b":"),
            (VERSION_1_1, rb"\\", b"\\"),
            (VERSION_1_2, rb"\r", b"\r"),
            (VERSION_1_2, rb"\n", b"\n"),
            (VERSION_1_2, rb"\c", b":"),
            (VERSION_1_2, rb"\\", b"\\"),
            (VERSION_1_2, rb"\\n\\\c\\", rb"\n\:" + b"\\"),
        ],
    )
    @pytest.mark.parametrize("also", [b"", b"\xc3\xa4"])
    def test_defined(self, version: int, escaped: bytes, plain: bytes, also: bytes) -> None:
        """Each defined escape stands for its byte, in names as in values."""
        (frame,) = decode(b"SEND\n" + also + escaped + b":" + escaped + b"\n\n\0", version, Limits())
        assert frame.headers == {also + plain: plain}

    @pytest.mark.parametrize(
        ("version", "line"),
        [
            (VERSION_1_1, rb"a:\r"),
            (VERSION_1_1, b"a:\\\n"),
            (VERSION_1_2, rb"a:\t"),
            (VERSION_1_2, rb"a:\C"),
            (VERSION_1_2, rb"\\\x"),
            (VERSION_1_2, b"a:b\\\n"),
            (VERSION_1_2, b"a:b\\\r"),
            (VERSION_1_2, b"a:\\\xc3"),
        ],
    )
    def test_undefined(self, version: int, line: bytes) -> None:
        r"""Spec: STOMP 1.2 "Undefined escape sequences such as \t [...] MUST be treated as a fatal protocol error."."""
        error = refusal(b"SEND\n" + line, version)
        assert "undefined escape" in error.detail
        assert (r"\r" in error.detail) == (version == VERSION_1_2)

    @pytest.mark.parametrize(
        ("command", "commands"),
        [(b"CONNECT", FIRST_COMMANDS), (b"STOMP", FIRST_COMMANDS), (b"CONNECTED", SERVER_COMMANDS)],
    )
    def test_none_in_connect(self, command: bytes, commands: dict[bytes, bool]) -> None:
        """Spec: STOMP 1.2 "The CONNECT and CONNECTED frames do not escape the carriage return, line feed or colon octets"."""
        (frame,) = decode(command + b"\na:\\t\\c:\n\n\0", commands=commands)
        assert frame.headers == {b"a": rb"\t\c:"}


class TestMalformed:
    """Bytes that can be no part of a frame are refused with the first such byte."""

    @pytest.mark.parametrize(
        "data", [b"s", b" ", b"\0", b"\x16", b"GET ", b"SEND:", b"SEND\t", b"NACK\n\n\0x", b"\xff"]
    )
    def test_command_line(self, data: bytes) -> None:
        """A command is upper-case letters; data other than STOMP ends at its first other byte."""
        assert refusal(data).message == "malformed frame"

    def test_command_too_long(self) -> None:
        """A command line without an end is refused at 17 letters."""
        assert "16 bytes" in refusal(b"A" * 17).detail

    def test_unknown_command(self) -> None:
        """An unknown command is refused with its head, so that the ERROR can name its receipt."""
        error = refusal(b"SNED\nreceipt:7\n\n")
        assert (error.message, error.receipt) == ("unexpected command", b"7")
        assert "SNED" in error.detail
        assert "SEND" in error.detail

    @pytest.mark.parametrize("line", [b"a\n", b":b\n", b":\n", b" \n"])
    @pytest.mark.parametrize("version", [VERSION_1_1, VERSION_1_2])
    def test_no_name_or_colon(self, line: bytes, version: int) -> None:
        """Spec: STOMP 1.2 "header = header-name ":" header-value", "header-name = 1*<any OCTET except CR or LF"."""
        assert "<name>:<value>" in refusal(b"SEND\n" + line, version).detail

    @pytest.mark.parametrize("data", [b"SEND\na\0", b"SEND\na:\0", b"DISCONNECT\nreceipt:77\n\0"])
    def test_nul_in_headers(self, data: bytes) -> None:
        """NUL in the headers is refused at once: a blank line was forgotten, or a reader is to be led astray."""
        assert "NUL" in refusal(data).detail

    @pytest.mark.parametrize(
        "tail",
        [b"\xff", b"\xc0", b"\xe2\x82:", b"\xe2\x82\n", b"\xed\xa0\x80", b"\xf4\x90", b"\xc3\0", b"\xc3\\", b"\x80"],
    )
    def test_not_utf_8(self, tail: bytes) -> None:
        """Spec: STOMP 1.2 "The commands and headers are encoded in UTF-8."."""
        assert "UTF-8" in refusal(b"SEND\na:" + tail).detail

    def test_passcode_is_not_told(self) -> None:
        """An error about a header line does not repeat what is in it."""
        error = refusal(b"CONNECT\npasscode=hunter2\n", commands=FIRST_COMMANDS)
        assert "hunter2" not in str(error)

    def test_receipt(self) -> None:
        """An error has the receipt if that header came before the fault."""
        assert refusal(b"SEND\nreceipt:a\\cb\nx\n").receipt == b"a:b"
        assert refusal(b"SEND\nx\n").receipt is None
        assert refusal(b"NACK\nreceipt:1\n\n\0!").receipt is None


class TestBody:
    """Bodies and content-length."""

    def test_content_length_is_exact(self) -> None:
        """Spec: STOMP 1.2 "this number of octets MUST be read, regardless of whether or not there are NULL octets"."""
        (frame,) = decode(b"SEND\ncontent-length:4\n\na\0\nb\0")
        assert frame.body == b"a\0\nb"

    def test_first_content_length_counts(self) -> None:
        """Of two content-lengths the first decides where the body ends."""
        (frame,) = decode(b"SEND\ncontent-length:1\ncontent-length:2\n\na\0")
        assert frame.body == b"a"

    @pytest.mark.parametrize("length", [b"0", b"000", b"00"])
    def test_empty(self, length: bytes) -> None:
        """A length of zero is an empty body, on every frame."""
        assert [f.body for f in decode(b"SEND\ncontent-length:" + length + b"\n\n\0NACK\ncontent-length:0\n\n\0")] == [
            b"",
            b"",
        ]

    def test_nul_must_follow(self) -> None:
        """Spec: STOMP 1.2 "The frame still needs to be terminated with a NULL octet."."""
        error = refusal(b"SEND\nreceipt:1\ncontent-length:2\n\nabc")
        assert (error.message, error.receipt) == ("bad content-length", b"1")

    @pytest.mark.parametrize("value", [b"-1", b"+1", b"", b"x", b"1x", b" 1", b"1_0", b"0x1", b"\xd9\xa1", b"1.0"])
    def test_not_digits(self, value: bytes) -> None:
        """A content-length that is negative or not digits is refused before any body is read."""
        error = refusal(b"SEND\ncontent-length:" + value + b"\n\n")
        assert (error.message, "frame_body_bytes_max" in error.detail) == ("bad content-length", True)

    @pytest.mark.parametrize("value", [b"11", b"4294967296", b"9223372036854775807"])
    def test_declared_over_limit(self, value: bytes) -> None:
        """A declared length over the limit is refused before any body is read."""
        error = refusal(
            b"SEND\ncontent-length:" + value + b"\n\n",
            limits=dataclasses.replace(SMALL, frame_header_line_bytes_max=50),
        )
        assert (error.message, "frame_body_bytes_max" in error.detail) == ("body too long", True)

    def test_undeclared_over_limit(self) -> None:
        """Without content-length the body is refused with its first byte over the limit."""
        assert decode(b"SEND\n\n1234567890\0")[0].body == b"1234567890"
        assert "frame_body_bytes_max" in refusal(b"SEND\n\n12345678901").detail

    @pytest.mark.parametrize("command", [c for c, body in CLIENT_COMMANDS.items() if not body])
    def test_only_send(self, command: bytes) -> None:
        """Spec: STOMP 1.2 "Only the SEND, MESSAGE, and ERROR frames MAY have a body. All other frames MUST NOT"."""
        assert refusal(command + b"\n\nx").message == "unexpected body"
        assert refusal(command + b"\ncontent-length:1\n\n").message == "unexpected body"

    @pytest.mark.parametrize("command", [b"MESSAGE", b"ERROR"])
    def test_of_server(self, command: bytes) -> None:
        """A client reads the bodies of MESSAGE and ERROR."""
        assert decode(command + b"\ncontent-length:1\n\n\0\0", commands=SERVER_COMMANDS)[0].body == b"\0"


class TestLimits:
    """Limits are counted while reading, and the error has the name of the one that was exceeded."""

    def test_header_line(self) -> None:
        """A header line of exactly the limit passes; one byte more is refused before the line ends."""
        (frame,) = decode(b"SEND\na:" + b"x" * 18 + b"\r\n\n\0")
        assert len(frame.headers[b"a"]) == 18
        assert "frame_header_line_bytes_max" in refusal(b"SEND\na:" + b"x" * 19).detail
        assert "frame_header_line_bytes_max" in refusal(b"SEND\na:" + b"x" * 18 + b"\rx").detail

    def test_headers(self) -> None:
        """The number of header lines has a limit, which counts repeated ones too."""
        assert len(decode(b"SEND\na:\na:\na:\n\n\0")) == 1
        assert "frame_headers_max" in refusal(b"SEND\na:\na:\na:\na:\n").detail

    def test_all_headers(self) -> None:
        """All headers together have a limit of their own."""
        line = b"a:" + b"x" * 18 + b"\n"
        assert "frame_headers_bytes_max" in refusal(b"SEND\n" + line + line + b"b:xx").detail

    def test_connect(self) -> None:
        """The first frame of a client has a smaller limit, which ends with CONNECT."""
        line = b"a:" + b"x" * 14 + b"\n"
        assert "connect_frame_bytes_max" in refusal(b"CONNECT\n" + line + b"b:xxxx", commands=FIRST_COMMANDS).detail
        decoder = Decoder(SMALL, FIRST_COMMANDS)
        list(decoder.feed(b"CONNECT\n\n\0"))
        decoder.expect(CLIENT_COMMANDS, VERSION_1_1)
        assert len(list(decoder.feed(b"SEND\n" + line + b"b:xxxx\n\n\0"))) == 1

    def test_first_fault_in_a_line_counts(self) -> None:
        """A fault after the byte that makes a line too long is not seen, one before it is."""
        assert "too long" in refusal(b"SEND\n" + b"x" * 21).message
        assert "malformed" in refusal(b"SEND\n" + b"x" * 19 + b"\\x").message
        # a sequence that begins before the limit and turns out bad after it
        assert "too long" in refusal(b"SEND\n" + b"x" * 19 + b"\xe2\x82").message


class TestLinear:
    """Time is linear in the bytes however they are cut."""

    @staticmethod
    def work(data: bytes, size: int, version: int = VERSION_1_2) -> int:
        """Return how many lines of Python the decoder runs for `data` in pieces of `size`."""
        decoder = Decoder(Limits(), CLIENT_COMMANDS, version)
        count = 0

        def trace(_frame: FrameType, event: str, _argument: object) -> "TraceFunction":
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for start in range(0, len(data), size):
                for _ in decoder.feed(data[start : start + size]):
                    pass
        finally:
            sys.settrace(before)
        return count

    @pytest.mark.parametrize("size", [1, 7, 1 << 20])
    @pytest.mark.parametrize(
        "unit",
        [
            b"\n",
            b"\r\n",
            b"NACK\n\n\0",
            b"NACK\r\n\r\n\0",
            b"SEND\na:\\c\n\n12345\0",
            b"SEND\ncontent-length:3\n\n\0\0\0\0",
        ],
    )
    def test_frames(self, unit: bytes, size: int) -> None:
        """Twice the frames are twice the work."""
        assert self.work(unit * 100, size) <= 2.2 * self.work(unit * 50, size) + 50

    @pytest.mark.parametrize("part", [b"x", b"\\c", "€".encode()])
    def test_long_line(self, part: bytes) -> None:
        """A line twice as long, byte by byte, is twice the work."""
        assert self.work(b"SEND\na:" + part * 400, 1) <= 2.2 * self.work(b"SEND\na:" + part * 200, 1)

    @pytest.mark.parametrize("head", [b"SEND\n\n", b"SEND\ncontent-length:4000000\n\n"])
    def test_partial_body_is_kept_once(self, head: bytes) -> None:
        """The bytes of a body so far are appended to in place, never copied for a further piece."""
        decoder = Decoder(Limits(), CLIENT_COMMANDS)
        body = decoder._body
        for piece in (head, b"x" * 1000, b"y" * 1000):
            assert list(decoder.feed(piece)) == []
        assert decoder._body is body
        assert len(body) == 2000
        assert decoder._data == b""

    @pytest.mark.parametrize("part", [b"x", b"\\", b"\r", b"\xe2\x82"])
    def test_partial_line_is_checked_once(self, part: bytes) -> None:
        """Of a partial line at most three undecided bytes are checked again."""
        decoder = Decoder(Limits(), CLIENT_COMMANDS)
        list(decoder.feed(b"SEND\na:" + b"x" * 1000 + part))
        assert len(decoder._head.line) - decoder._head.checked <= 3


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"9" * 19, 10**19 - 1),
        (b"9" * 20, -1),
        (b"", -1),
        (b"-1", -1),
        (b" 1", -1),
        (b"1e3", -1),
    ],
)
def test_parse_number(text: bytes, number: int) -> None:
    """A number is 1 to 19 digits and nothing else."""
    assert parse_number(text) == number
