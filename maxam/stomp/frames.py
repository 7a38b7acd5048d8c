"""Turn bytes into frames, incrementally and in time linear in the bytes, however they are cut, for both ends of a connection.

Theory of operation: `Decoder` holds the newest bytes received and an offset into them, and of what came before only what
is unfinished: a partial line, the headers so far, or a partial body. A head that is all there and plain (nearly every
one) is split in one go; any other goes line by line through code that finds the first fault in byte order. What is
decided about a byte never depends on bytes behind it, so that the same bytes give the same frames and the same error
in whatever pieces they arrive.

A client writes frame after frame with the same header names, so the decoder remembers those of the last plain head: a line
that begins with the name expected is cut there, without being searched.
"""

import codecs
from collections.abc import Iterator
from typing import Final, NoReturn, final

from mypy_extensions import mypyc_attr

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp.events import NUMBER_DIGITS_MAX, VERSION_1_1, VERSION_1_2, parse_number

_NUL: Final = 0
_LF: Final = 10
_CR: Final = 13
_BACKSLASH: Final = 92

# What may come, and whether it may have a body.
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

# Spec: STOMP 1.2 "The CONNECT and CONNECTED frames do not escape the carriage return, line feed or colon octets".
# STOMP is a synonym of CONNECT.
_UNESCAPED_COMMANDS: Final = frozenset((b"CONNECT", b"STOMP", b"CONNECTED"))
_ESCAPES: Final = (b"nc\\", b"rnc\\")  # what may follow a backslash, per version
_ESCAPES_TEXT: Final = (r"\n, \c or \\", r"\r, \n, \c or \\")
_UNESCAPED: Final = {ord("r"): b"\r", ord("n"): b"\n", ord("c"): b":", ord("\\"): b"\\"}

_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COMMAND_BYTES_MAX: Final = 16  # longer than any command, so that what is no STOMP at all is refused at once
_PLAIN_HEAD_BYTES_MAX: Final = 2048  # how far to look for the end of a plain head: CRLF heads would look on in vain


@final
@mypyc_attr(acyclic=True)
class Frame:
    """One frame. `headers` are unescaped and UTF-8, in order of arrival; of repeated ones the first.

    Attributes:
        names: Those of `headers`: the same list for frame after frame with the same names, so that what follows from the names need
            not be found again. None if the decoder has not looked.
    """

    __slots__ = ("body", "command", "headers", "names")

    def __init__(
        self, command: bytes, headers: dict[bytes, bytes], body: bytes, names: list[bytes] | None = None
    ) -> None:
        self.command: Final = command
        self.headers: Final = headers
        self.body: Final = body
        self.names: Final = names


@final
class Decoder:
    """Decode one direction of one connection.

    `receive_data` hands in bytes, then `next_frame` is called until it returns None. Between two calls of `next_frame`
    the caller may say with `expect` what holds from the next frame on. After a ProtocolError the decoder is of no use.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_body_bytes_permitted",
        "_command",
        "_commands",
        "_data",
        "_head_bytes",
        "_head_bytes_max",
        "_headers",
        "_headers_max",
        "_in_body",
        "_known",
        "_length",
        "_length_text",
        "_limits",
        "_line",
        "_line_bytes_good",
        "_lines",
        "_marks",
        "_names",
        "_offset",
        "_plain_head_bytes",
        "_plain_head_bytes_max",
        "_version",
    )

    def __init__(self, limits: Limits, commands: dict[bytes, bool], version: int = VERSION_1_2) -> None:
        """Make a decoder that expects `commands`; the rules of 1.2 also serve before a version is negotiated."""
        self._limits: Final = limits
        self._headers_max: Final = limits.frame_headers_max
        self._body_bytes_permitted: Final = limits.frame_body_bytes_max
        self._data = b""
        self._offset = 0
        # of the last plain head: each header's name with its colon, the names, its content-length
        self._marks: list[bytes] = []
        self._names: list[bytes] = []
        self._known: list[bytes] | None = None  # the same if they are those of the frame under way
        self._length_text = b"0"
        self._length = 0
        # the unfinished line
        self._line: Final = bytearray()
        self._line_bytes_good = 0  # how much of it has been checked
        # the unfinished head; no command: between frames
        self._command = b""
        self._headers: dict[bytes, bytes] = {}
        self._lines = 0  # header lines, repeated ones too
        self._head_bytes = 0
        # the unfinished body
        self._in_body = False
        self._body: Final = bytearray()
        self._body_bytes = -1  # declared by content-length; -1: up to the first NUL
        self._body_bytes_max = 0
        self.expect(commands, version)

    def expect(self, commands: dict[bytes, bool], version: int) -> None:
        """Set which commands may come next, whether each may have a body, and the version whose rules hold."""
        self._commands = commands
        self._version = version
        limits = self._limits
        # a stranger may not make us hold more than a CONNECT needs
        self._head_bytes_max = (
            min(limits.connect_frame_bytes_max, limits.frame_headers_bytes_max)
            if commands is FIRST_COMMANDS
            else limits.frame_headers_bytes_max
        )
        self._plain_head_bytes_max = min(
            _PLAIN_HEAD_BYTES_MAX, limits.frame_header_line_bytes_max, self._head_bytes_max
        )
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

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None when more bytes are needed.

        Raises:
            ProtocolError: As soon as the bytes can be no part of a frame that is expected and within the limits.
        """
        if not self._in_body and not self._read_head():
            self._data = b""  # all of it is used up: an idle connection holds nothing
            self._offset = 0
            return None
        data = self._data
        start = self._offset
        if not self._body:
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
                self._in_body = False
                command = self._command
                self._command = b""
                return Frame(command, self._headers, data[start:end], self._known)
        return self._read_body_in_parts()

    def _read_head(self) -> bool:
        """Read up to the blank line; False when more bytes are needed."""
        data = self._data
        start = self._offset
        if not self._command and not self._line:
            while start < len(data) and data[start] == _LF:  # heart-beats
                start += 1
            self._offset = start
            stop = start + self._plain_head_bytes_max
            # Mostly as long as the last one. If it ended before, what is cut here has an empty line, and is not plain.
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
        while True:
            line = self._read_line()
            if line is None:
                return False
            if line:
                if self._command:
                    self._add_header(line)
                else:
                    self._command = line
                    self._headers = {}
                    self._known = None
                    self._lines = 0
                    self._head_bytes = 0
                self._head_bytes += len(line) + 1
            elif self._command:
                self._begin_body()
                return True
            # else a heart-beat

    def _read_plain_head(self, head: bytes) -> bool:
        """Read a whole head without its end when nothing is wrong with it; False leaves it to the slow path.

        This is where nearly every frame goes through. It refuses nothing, so that errors have one place.
        """
        if _NUL in head or _CR in head or not (head.isascii() or _is_utf_8(head)):
            return False
        lines = head.split(b"\n")
        command = lines.pop(0)
        if command not in self._commands or len(lines) > self._headers_max:
            return False
        headers: dict[bytes, bytes] = {}
        if _BACKSLASH in head:
            if command in _UNESCAPED_COMMANDS or not _is_escaped(head, self._version):
                return False
            for line in lines:
                name, colon, value = line.partition(b":")
                if not name or not colon:
                    return False
                headers.setdefault(_unescape(name), _unescape(value))
            self._known = None
            self._command = command
            self._headers = headers
            return True
        if not self._read_as_before(lines, headers):
            headers = {}
            marks = []
            for line in lines:
                name, colon, value = line.partition(b":")
                if not name or not colon:
                    return False
                headers.setdefault(name, value)
                marks.append(name + colon)
            self._marks = marks
            self._names = list(headers)
        self._known = self._names
        self._command = command
        self._headers = headers
        return True

    def _read_as_before(self, lines: list[bytes], headers: dict[bytes, bytes]) -> bool:
        """Read the header lines of a head into `headers` if they have the same names as those of the last one."""
        marks = self._marks
        if len(lines) != len(marks) or len(lines) != len(self._names):  # names are fewer if one came twice
            return False
        for line, mark, name in zip(lines, marks, self._names):  # noqa: B905  # mypyc knows only this form, thrice as quick
            if not line.startswith(mark):
                return False
            headers[name] = line[len(mark) :]
        return True

    def _read_line(self) -> bytes | None:
        """Return the next line without its end, or None when its end has not come."""
        data = self._data
        start = self._offset
        line = self._line
        if self._command:
            room = max(0, min(self._limits.frame_header_line_bytes_max, self._head_bytes_max - self._head_bytes))
        else:
            room = _COMMAND_BYTES_MAX
        end = data.find(b"\n", start)
        stop = end if end >= 0 else len(data)
        taken = min(stop, start + room + 1 - len(line))  # one byte more than may be: of a too long line or a CR
        line += data[start:taken]
        crlf = self._version != VERSION_1_1
        overlong = len(line) > room and (taken < stop or not crlf or line[-1] != _CR)
        complete = end >= 0 and not overlong

        if self._command:
            self._check_header_line(complete, crlf)
        else:
            self._check_command_line(crlf)
        if overlong:
            self._refuse_overlong_line(room)
        if not complete:
            self._offset = stop
            return None
        self._offset = end + 1
        if crlf and line and line[-1] == _CR:
            del line[-1]
        text = bytes(line)
        line.clear()
        self._line_bytes_good = 0
        return text

    def _check_command_line(self, crlf: bool) -> None:
        line = self._line
        rest = line.lstrip(_LETTERS)
        if rest and not (crlf and rest == b"\r"):
            self._refuse(
                "malformed frame",
                f"Byte {len(line) - len(rest) + 1} of the command line is 0x{rest[0]:02x}; a command is upper-case letters, "
                f"ended by {'LF or CRLF' if crlf else 'LF'}. Check where the frame before it ends: "
                "its content-length and its NUL.",
            )

    def _check_header_line(self, complete: bool, crlf: bool) -> None:
        """Refuse the first fault in the bytes of the line that came since the last check."""
        line = self._line
        checked = self._line_bytes_good
        good = len(line)  # up to where nothing that may still come can make a fault
        fault = ""
        nul = line.find(_NUL, checked)
        if nul >= 0:
            # it has no escape, and a client that looks for the end of a frame by it would be led astray
            good = nul
            fault = "is NUL, which a header cannot hold; end the headers with a blank line before the body and its NUL"
        if crlf:
            cr = line.find(_CR, checked, good)
            if cr >= 0:
                good = cr
                fault = "is a CR that is not before LF; write it as \\r" if cr < len(line) - 1 else ""
        if self._command not in _UNESCAPED_COMMANDS:
            escapes = _ESCAPES[self._version]
            escape = line.find(b"\\", checked, good)
            while escape >= 0:
                if escape + 1 < len(line) and line[escape + 1] in escapes:
                    escape = line.find(b"\\", escape + 2, good)
                    continue
                # Spec: STOMP 1.2 "Undefined escape sequences [...] MUST be treated as a fatal protocol error."
                good = escape
                if complete or escape + 1 < len(line):
                    fault = f"begins an undefined escape sequence; expected {_ESCAPES_TEXT[self._version]}"
                break
        try:
            good = checked + codecs.utf_8_decode(line[checked:good], "strict", complete or good < len(line))[1]
        except UnicodeDecodeError as error:
            good = checked + error.start
            fault = "is not UTF-8; encode headers as UTF-8"
        if fault:
            self._refuse(
                "malformed header", f"Byte {good + 1} of header line {self._lines + 1} of {self._name()} {fault}."
            )
        self._line_bytes_good = good

    def _add_header(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > self._headers_max:
            self._refuse(
                "too many headers",
                f"{self._name()} has more than {self._headers_max} header lines, "
                "the limit frame_headers_max; send fewer.",
            )
        name, colon, value = line.partition(b":")
        if not name or not colon:
            # by number, not by text: it may hold a passcode
            self._refuse(
                "malformed header",
                f"Header line {self._lines} of {self._name()} is not <name>:<value>; "
                "write one, or a blank line to end the headers.",
            )
        if self._command not in _UNESCAPED_COMMANDS:
            name = _unescape(name)
            value = _unescape(value)
        if name not in self._headers:
            # Spec: STOMP 1.2 "only the first header entry SHOULD be used as the value of header entry"
            self._headers[name] = value

    def _begin_body(self) -> None:
        """Decide from the whole head how long the body may be, before any of it is read."""
        may_have_body = self._commands.get(self._command)
        if may_have_body is None:
            self._refuse(
                "unexpected command",
                f"{self._name()} is not a command that may come here; "
                f"expected {', '.join([command.decode() for command in self._commands])}.",
            )
        limit = self._body_bytes_permitted if may_have_body else 0
        declared = self._headers.get(b"content-length")
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
                    f"The content-length of {self._name()} is not a number of 1 to {NUMBER_DIGITS_MAX} digits; "
                    f"expected the length of its body in bytes, 0 to {limit} (limit frame_body_bytes_max).",
                )
            if self._body_bytes > limit:
                self._refuse_body()
            self._length_text = declared
            self._length = self._body_bytes
        self._body_bytes_max = limit
        self._in_body = True

    def _read_body_in_parts(self) -> Frame | None:
        """Read a body that did not come in one piece, or say what is wrong with it."""
        data = self._data
        start = self._offset
        body = self._body
        if self._body_bytes >= 0:
            end = start + self._body_bytes - len(body)
            ended = end < len(data)
            if ended and data[end] != _NUL:
                self._refuse(
                    "bad content-length",
                    f"The byte after the {self._body_bytes} bytes of body that {self._name()} declares is "
                    f"0x{data[end]:02x}, not NUL; correct its content-length, or end the body with NUL.",
                )
        else:
            room = self._body_bytes_max - len(body)
            end = data.find(b"\0", start, start + room + 1)
            ended = end >= 0
            if not ended:
                end = len(data)
                if end - start > room:
                    self._refuse_body()
        body += data[start:end]
        if not ended:
            self._data = b""
            self._offset = 0
            return None
        self._offset = end + 1
        self._in_body = False
        frame = Frame(self._command, self._headers, bytes(body), self._known)
        self._command = b""
        body.clear()
        return frame

    def _name(self) -> str:
        """Return the command, which is always short and upper-case letters."""
        return self._command.decode()

    def _refuse_overlong_line(self, room: int) -> NoReturn:
        if not self._command:
            self._refuse(
                "malformed frame",
                f"The command line is longer than {_COMMAND_BYTES_MAX} bytes, which no command is; "
                "begin each frame with its command on a line of its own.",
            )
        if room == self._limits.frame_header_line_bytes_max:
            self._refuse(
                "header line too long",
                f"Header line {self._lines + 1} of {self._name()} is longer than {room} bytes, "
                "the limit frame_header_line_bytes_max; shorten it.",
            )
        connecting = self._head_bytes_max < self._limits.frame_headers_bytes_max
        self._refuse(
            "headers too long",
            f"{self._name()} and its headers are longer than {self._head_bytes_max} bytes, the limit "
            f"{'connect_frame_bytes_max' if connecting else 'frame_headers_bytes_max'}; send fewer or shorter headers.",
        )

    def _refuse_body(self) -> NoReturn:
        if not self._commands[self._command]:
            self._refuse(
                "unexpected body",
                f"{self._name()} may have no body; send NUL right after the blank line, and values with SEND.",
            )
        self._refuse(
            "body too long",
            f"The body of {self._name()} is longer than {self._limits.frame_body_bytes_max} bytes, "
            "the limit frame_body_bytes_max; send less.",
        )

    def _refuse(self, message: str, detail: str) -> NoReturn:
        # Spec: STOMP 1.2 "Any client frame other than CONNECT MAY specify a receipt header"
        known = self._command and self._command not in _UNESCAPED_COMMANDS
        raise ProtocolError(message, detail, self._headers.get(b"receipt") if known else None)


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_escaped(text: bytes, version: int) -> bool:
    """Return whether each backslash in `text` begins an escape that `version` defines."""
    rest = text.replace(b"\\\\", b"").replace(b"\\n", b"").replace(b"\\c", b"")
    return _BACKSLASH not in (rest if version == VERSION_1_1 else rest.replace(b"\\r", b""))


def _unescape(text: bytes) -> bytes:
    r"""Undo the escapes of a checked line; a cut at its first colon never splits one, as a colon in it is `\c`."""
    if _BACKSLASH not in text:
        return text
    parts = text.split(b"\\")
    # an empty part that is not the first is what stands between the two of an escaped backslash
    plain = [parts[0]]
    index = 1
    while index < len(parts):
        part = parts[index]
        if part:
            plain.append(_UNESCAPED[part[0]])
            plain.append(part[1:])
        else:
            plain.append(b"\\")
            index += 1
            plain.append(parts[index])
        index += 1
    return b"".join(plain)
