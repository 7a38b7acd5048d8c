"""Turn bytes into frames, incrementally and in time linear in the bytes, however they are cut, for both ends of a connection.

Theory of operation: `Decoder` holds the newest bytes received and an offset into them. Of earlier bytes it keeps only
unfinished parts: a line, the headers so far, or a body. Nearly every head is complete and plain, and is split in one go.
Any other head is read by a `HeadReader`, line by line, which finds the first fault in byte order. No decision about a byte
depends on later bytes. So the same bytes give the same frames and the same error in whatever pieces they arrive.

The decoder is in one of four states. The expected commands change between frames only (`expect`).

| state    | it holds                           | what ends it                                   | next     |
|----------|------------------------------------|------------------------------------------------|----------|
| _BETWEEN | nothing                            | a whole plain head                             | _BODY    |
|          |                                    | the first bytes of any other head              | _HEAD    |
| _HEAD    | an unfinished head                 | its blank line                                 | _BODY    |
| _BODY    | a head                             | the whole body and its NUL, at once            | _BETWEEN |
|          |                                    | the end of the bytes before the end of a body  | _PARTS   |
| _PARTS   | a head, and the body so far        | the rest of the body and its NUL               | _BETWEEN |

A body that does not come together with its head may be unwanted. The caller decides that once, when the head is complete
(`keeps_body`). An unwanted body is skipped: it is read to its end, and only its length and its SHA-256 are kept.

A client writes frame after frame with the same header names, so the decoder remembers the names of the last plain head.
A line that begins with the expected name is cut there without a search.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final, NoReturn, final

from mypy_extensions import mypyc_attr

from maxam.config import Limits
from maxam.stomp.events import NUMBER_DIGITS_MAX, VERSION_1_1, VERSION_1_2, parse_number
from maxam.stomp.head import UNESCAPED_COMMANDS, HeadReader, is_escaped, refuse, unescape

_NUL: Final = 0
_LF: Final = 10
_CR: Final = 13
_BACKSLASH: Final = 92

_BETWEEN: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_PARTS: Final = 3

# Commands that may come, and whether each may have a body.
# Spec: STOMP 1.2 "Only the SEND, MESSAGE, and ERROR frames MAY have a body. All other frames MUST NOT have a body."
FIRST_COMMANDS: Final[dict[bytes, bool]] = {b"CONNECT": False, b"STOMP": False}
CLIENT_COMMANDS: Final[dict[bytes, bool]] = {
    b"SEND": True,
    b"ACK": False,
    b"SUBSCRIBE": False,
    b"UNSUBSCRIBE": False,
    b"DISCONNECT": False,
    b"NACK": False,
    b"BEGIN": False,
    b"COMMIT": False,
    b"ABORT": False,
    b"CONNECT": False,
    b"STOMP": False,
}
SERVER_COMMANDS: Final[dict[bytes, bool]] = {
    b"CONNECTED": False,
    b"MESSAGE": True,
    b"RECEIPT": False,
    b"ERROR": True,
}

_HEADER_BYTES: Final = 100  # memory of a header beside the bytes of its name and value
_NO_VALUES: Final[list[bytes]] = []
_PLAIN_HEAD_BYTES_MAX: Final = 2048  # longest head searched for its plain end, which heads with CRLF do not have


@final
@mypyc_attr(acyclic=True)
class Frame:
    """One frame.

    Attributes:
        names: Names of `headers`, or None if the decoder has not collected them. Consecutive frames with the same names
            share one list, so that results that depend on the names need not be found again.
        values: Values of `headers`, as many as `names`, if `names` are those of the frame before.
    """

    __slots__ = ("_headers", "body", "command", "names", "values")

    def __init__(
        self,
        command: bytes,
        headers: dict[bytes, bytes] | None,
        body: bytes,
        names: list[bytes] | None = None,
        values: list[bytes] = _NO_VALUES,
    ) -> None:
        """Make a frame. If `headers` is None, they are `names` with `values`."""
        self._headers = headers
        self.command: Final = command
        self.body: Final = body
        self.names: Final = names
        self.values: Final = values

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Unescaped and UTF-8, in order of arrival. The first of repeated headers counts."""
        headers = self._headers
        if headers is None:
            headers = self._headers = _joined(self.names, self.values)
        return headers


@final
class SkippedBody:
    """A body that was read and not kept.

    Attributes:
        size: Its bytes so far.
    """

    __slots__ = ("_digest", "size")

    def __init__(self) -> None:
        self._digest: Final = sha256()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Count the next bytes."""
        self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """SHA-256 of its bytes so far, in hexadecimal."""
        return self._digest.hexdigest()


@final
class Decoder:
    """Decode one direction of one connection.

    `receive_data` hands in bytes, then `next_frame` is called until it returns None. Between two calls of `next_frame`
    the caller may set with `expect` what holds from the next frame on. After a ProtocolError the decoder is of no use.

    Attributes:
        skipped: The body of the frame under way, if it is skipped. The next frame that `next_frame` returns is that frame,
            with an empty body.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_body_bytes_permitted",
        "_command",
        "_commands",
        "_data",
        "_head",
        "_head_bytes",
        "_headers",
        "_headers_max",
        "_keeps_body",
        "_known",
        "_length",
        "_length_at",
        "_length_text",
        "_limits",
        "_marks",
        "_names",
        "_offset",
        "_plain_head_bytes",
        "_plain_head_bytes_max",
        "_state",
        "_values",
        "_version",
        "skipped",
    )

    def __init__(
        self,
        limits: Limits,
        commands: dict[bytes, bool],
        version: int = VERSION_1_2,
        keeps_body: Callable[[bytes, dict[bytes, bytes]], bool] | None = None,
    ) -> None:
        """Make a decoder that expects `commands`. The rules of 1.2 also serve before a version is negotiated.

        Args:
            limits: Limits of frames.
            commands: See `expect`.
            version: See `expect`.
            keeps_body: Called with command and headers when a head is complete and its body is not. False skips the body.
                None keeps all bodies.
        """
        self._limits: Final = limits
        self._headers_max: Final = limits.frame_headers_max
        self._body_bytes_permitted: Final = limits.frame_body_bytes_max
        self._keeps_body = keeps_body
        self._state = _BETWEEN
        self._data = b""
        self._offset = 0
        # of the last plain head: each header's name with its colon, the names, its content-length
        self._marks: list[bytes] = []
        self._names: list[bytes] = []
        self._known: list[bytes] | None = None  # the same list if they are the names of the frame under way
        self._length_at = -1  # which of them is content-length
        self._length_text = b"0"
        self._length = 0
        # the head
        self._head: Final = HeadReader(limits)
        self._command = b""
        self._headers: dict[bytes, bytes] | None = {}  # None if they are `_names` with `_values`
        self._values: list[bytes] = []
        self._head_bytes = 0  # memory that it takes while its body arrives
        # the body
        self.skipped: SkippedBody | None = None
        self._body: Final = bytearray()
        self._body_bytes = -1  # declared by content-length, -1 for a body up to the first NUL
        self._body_bytes_max = 0
        self.expect(commands, version)

    def expect(self, commands: dict[bytes, bool], version: int) -> None:
        """Set which commands may come next, whether each may have a body, and the version whose rules hold."""
        self._commands = commands
        self._version = version
        limits = self._limits
        bytes_max = limits.frame_headers_bytes_max
        connecting = commands is FIRST_COMMANDS and limits.connect_frame_bytes_max < bytes_max
        if connecting:  # an unauthenticated client may not make us hold more than a CONNECT needs
            bytes_max = limits.connect_frame_bytes_max
        self._head.expect(version, bytes_max, connecting)
        self._plain_head_bytes_max = min(_PLAIN_HEAD_BYTES_MAX, limits.frame_header_line_bytes_max, bytes_max)
        self._plain_head_bytes = 0  # of the last one

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. Each is decoded when it is asked for; take them all.

        Raises:
            ProtocolError: After the frames before it.
        """
        self.receive_data(data)
        while (frame := self.next_frame()) is not None:
            yield frame

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes. Everything received before must have been decoded: `next_frame` returned None."""
        self._data = data
        self._offset = 0

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held of a frame that has begun and is not complete; 0 between frames. Valid after `next_frame` returned None."""
        return self._head_bytes + len(self._body) if self._state == _PARTS else self._head.held_bytes

    def drop(self) -> None:
        """Free what is held, the caller of `keeps_body` included. The decoder is of no use then."""
        self._state = _BETWEEN
        self._keeps_body = None
        self._data = b""
        self._headers = {}
        self._head.clear()
        self._body.clear()

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None when more bytes are needed.

        Raises:
            ProtocolError: As soon as the bytes can be no part of a frame that is expected and within the limits.
        """
        if self._state <= _HEAD and not self._read_head():
            self._data = b""  # all of it is used up: an idle connection holds nothing
            self._offset = 0
            return None
        if self._state == _BODY:
            data = self._data
            start = self._offset
            if self._body_bytes >= 0:
                end = start + self._body_bytes
                if end >= len(data) or data[end] != _NUL:
                    end = -1
            elif start < len(data) and data[start] == _NUL:
                end = start
            else:
                end = data.find(b"\0", start, start + self._body_bytes_max + 1)
            if end >= 0:
                self._offset = end + 1
                self._state = _BETWEEN
                return Frame(self._command, self._headers, data[start:end], self._known, self._values)
        return self._read_body_in_parts()

    def _read_head(self) -> bool:
        """Read up to the blank line. Return False when more bytes are needed."""
        data = self._data
        start = self._offset
        if self._state == _BETWEEN:
            while start < len(data) and data[start] == _LF:  # heart-beats
                start += 1
            stop = start + self._plain_head_bytes_max
            # Mostly as long as the last one. If it ended before, this cut has an empty line, and is not plain.
            end = start + self._plain_head_bytes
            if data[end : end + 2] != b"\n\n":
                end = data.find(b"\n\n", start, stop)
            if end >= 0 and self._read_plain_head(data[start:end]):
                self._plain_head_bytes = end - start
                self._offset = end + 2
                self._begin_body()
                return True
            if self._version != VERSION_1_1:
                end = data.find(b"\r\n\r\n", start, stop)
                if end >= 0 and self._read_plain_head(data[start:end].replace(b"\r\n", b"\n")):
                    self._offset = end + 4
                    self._begin_body()
                    return True
        head = self._head
        end = head.read(data, start)
        if end < 0:
            self._state = _HEAD if head.held_bytes else _BETWEEN
            return False
        self._known = None
        self._command = head.command
        self._headers = head.headers
        head.clear()
        self._offset = end
        self._begin_body()
        return True

    def _read_plain_head(self, head: bytes) -> bool:
        """Read a whole head without its end if it is valid and plain. Return False to leave it to `HeadReader`.

        Nearly every frame takes this way. It refuses nothing, so that errors have one place.
        """
        if _NUL in head or _CR in head or not (head.isascii() or _is_utf_8(head)):
            return False
        lines = head.split(b"\n")
        command = lines.pop(0)
        if command not in self._commands or len(lines) > self._headers_max:
            return False
        if _BACKSLASH in head:
            if command in UNESCAPED_COMMANDS or not is_escaped(head, self._version):
                return False
            headers: dict[bytes, bytes] = {}
            for line in lines:
                name, colon, value = line.partition(b":")
                if not name or not colon:
                    return False
                headers.setdefault(unescape(name), unescape(value))
            self._known = None
            self._command = command
            self._headers = headers
            return True
        if self._read_as_before(lines):
            self._headers = None
        else:
            headers = {}
            marks = []
            for line in lines:
                name, colon, value = line.partition(b":")
                if not name or not colon:
                    return False
                headers.setdefault(name, value)
                marks.append(name + colon)
            self._marks = marks
            self._names = names = list(headers)
            self._length_at = names.index(b"content-length") if b"content-length" in headers else -1
            self._headers = headers
        self._known = self._names
        self._command = command
        return True

    def _read_as_before(self, lines: list[bytes]) -> bool:
        """Read the values of a head's lines if they have the same names as those of the last one."""
        marks = self._marks
        if len(lines) != len(marks) or len(lines) != len(self._names):  # names are fewer if one came twice
            return False
        values: list[bytes] = []
        for line, mark in zip(lines, marks):  # noqa: B905  # mypyc knows only this form, thrice as quick
            if not line.startswith(mark):
                return False
            values.append(line[len(mark) :])
        self._values = values
        return True

    def _begin_body(self) -> None:
        """Decide from the whole head how long the body may be, before any of it is read."""
        may_have_body = self._commands.get(self._command)
        if may_have_body is None:
            self._refuse(
                "unexpected command",
                f"{self._command.decode()} is not a command that may come here; "
                f"expected {', '.join([command.decode() for command in self._commands])}.",
            )
        limit = self._body_bytes_permitted if may_have_body else 0
        if self._headers is not None:
            declared = self._headers.get(b"content-length")
        else:
            declared = self._values[self._length_at] if self._length_at >= 0 else None
        if declared is None:
            self._body_bytes = -1
        elif declared == self._length_text:
            self._body_bytes = self._length
            if self._body_bytes > limit:
                self._refuse_body()
        else:
            self._body_bytes = parse_number(declared)
            if self._body_bytes < 0:
                self._refuse(
                    "bad content-length",
                    f"The content-length of {self._command.decode()} is not a number of 1 to {NUMBER_DIGITS_MAX} digits. "
                    f"Expected the length of its body in bytes, 0 to {limit} (limit frame_body_bytes_max).",
                )
            if self._body_bytes > limit:
                self._refuse_body()
            self._length_text = declared
            self._length = self._body_bytes
        self._body_bytes_max = limit
        self._state = _BODY

    def _read_body_in_parts(self) -> Frame | None:
        """Return a frame whose body did not come in one piece. Raise ProtocolError if the body is malformed."""
        data = self._data
        start = self._offset
        body = self._body
        skipped = self.skipped
        held = len(body) if skipped is None else skipped.size
        if self._body_bytes >= 0:
            end = start + self._body_bytes - held
            ended = end < len(data)
            if ended and data[end] != _NUL:
                self._refuse(
                    "bad content-length",
                    f"The byte after the {self._body_bytes} bytes of body that {self._command.decode()} declares is "
                    f"0x{data[end]:02x}, not NUL; correct its content-length, or end the body with NUL.",
                )
        else:
            room = self._body_bytes_max - held
            end = data.find(b"\0", start, start + room + 1)
            ended = end >= 0
            if not ended:
                end = len(data)
                if end - start > room:
                    self._refuse_body()
        if self._state != _PARTS:
            skipped = self._begin_parts()
        piece = data[start:end]
        if skipped is not None:
            skipped.add(piece)
            piece = b""
        elif body or not ended:
            body += piece
        if not ended:
            self._data = b""
            self._offset = 0
            return None
        self._offset = end + 1
        self._state = _BETWEEN
        self.skipped = None
        frame = Frame(self._command, self._headers, bytes(body) if body else piece, self._known, self._values)
        body.clear()
        return frame

    def _begin_parts(self) -> SkippedBody | None:
        """Decide whether a body of which more is to come is kept, and count the memory of its head."""
        self._state = _PARTS
        headers = self._headers = self._all_headers
        self._head_bytes = sum([_HEADER_BYTES + len(name) + len(value) for name, value in headers.items()], 1)
        if self._keeps_body is not None and not self._keeps_body(self._command, headers):
            self.skipped = SkippedBody()
        return self.skipped

    def _refuse_body(self) -> NoReturn:
        if not self._commands[self._command]:
            self._refuse(
                "unexpected body",
                f"{self._command.decode()} may have no body; send NUL right after the blank line, and values with SEND.",
            )
        self._refuse(
            "body too long",
            f"The body of {self._command.decode()} is longer than {self._limits.frame_body_bytes_max} bytes, "
            "the limit frame_body_bytes_max; send less.",
        )

    @property
    def _all_headers(self) -> dict[bytes, bytes]:
        """The headers of the head that was read last."""
        return _joined(self._names, self._values) if self._headers is None else self._headers

    def _refuse(self, message: str, detail: str) -> NoReturn:
        refuse(self._command, self._all_headers, message, detail)


def _joined(names: list[bytes] | None, values: list[bytes]) -> dict[bytes, bytes]:
    """Return headers of which no name comes twice."""
    return dict(zip(names or (), values, strict=True))


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
