"""Read the head of a frame line by line, and refuse its first fault.

This is the general way for heads that are split over reads, end in CRLF, or have a fault. `Decoder` reads whole plain heads
itself. No decision about a byte depends on later bytes.
"""

import codecs
from typing import Final, NoReturn, final

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp.events import VERSION_1_1

_NUL: Final = 0
_CR: Final = 13
_BACKSLASH: Final = 92

# Spec: STOMP 1.2 "The CONNECT and CONNECTED frames do not escape the carriage return, line feed or colon octets".
# STOMP is a synonym of CONNECT.
UNESCAPED_COMMANDS: Final = frozenset((b"CONNECT", b"STOMP", b"CONNECTED"))
_ESCAPES: Final = (b"nc\\", b"rnc\\")  # characters allowed after a backslash, per version
_ESCAPES_TEXT: Final = (r"\n, \c or \\", r"\r, \n, \c or \\")
_UNESCAPED: Final = {ord("r"): b"\r", ord("n"): b"\n", ord("c"): b":", ord("\\"): b"\\"}

_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COMMAND_BYTES_MAX: Final = 16  # longer than any command, so that data other than STOMP is refused at once


@final
class HeadReader:
    """Collects command, headers and the unfinished line of one head after another.

    Attributes:
        command: The command of the head, empty until its line is complete.
        headers: Headers so far, unescaped. The first of repeated ones counts.
        line: The unfinished line.
        checked: Number of bytes of `line` that have been found valid.
    """

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_connecting",
        "_crlf",
        "_limits",
        "_lines",
        "_version",
        "checked",
        "command",
        "headers",
        "line",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self._bytes_max = 0
        self._connecting = False
        self._crlf = False
        self._version = VERSION_1_1
        self.command = b""
        self.headers: dict[bytes, bytes] = {}
        self._lines = 0  # header lines, repeated ones too
        self._bytes = 0  # of complete lines
        self.line: Final = bytearray()
        self.checked = 0

    def expect(self, version: int, bytes_max: int, connecting: bool) -> None:
        """Set the rules of the next head: its version, the limit on its bytes, and whether that is the one of CONNECT."""
        self._version = version
        self._crlf = version != VERSION_1_1
        self._bytes_max = bytes_max
        self._connecting = connecting

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished head."""
        return self._bytes + len(self.line) if self.command else len(self.line)

    def clear(self) -> None:
        """Forget the head, so that the next one can be read."""
        self.command = b""
        self.headers = {}
        self.line.clear()
        self.checked = 0

    def read(self, data: bytes, start: int) -> int:
        """Read up to the blank line after the headers. Blank lines before the command are heart-beats.

        Args:
            data: Bytes of the stream.
            start: Offset of the first one that was not read.

        Returns:
            Offset after the blank line, or -1 if all of `data` was read and more is needed.

        Raises:
            ProtocolError: The first fault of the head.
        """
        while True:
            end = data.find(b"\n", start)
            line = self._read_line(data, start, end)
            if line is None:
                return -1
            start = end + 1
            if line:
                if self.command:
                    self._add_header(line)
                else:
                    self.command = line
                    self.headers = {}
                    self._lines = 0
                    self._bytes = 0
                self._bytes += len(line) + 1
            elif self.command:
                return start

    def _read_line(self, data: bytes, start: int, end: int) -> bytes | None:
        """Return the line that ends at `end` without its end, or None when `end` is -1: its end has not arrived."""
        line = self.line
        if self.command:
            room = max(0, min(self._limits.frame_header_line_bytes_max, self._bytes_max - self._bytes))
        else:
            room = _COMMAND_BYTES_MAX
        stop = end if end >= 0 else len(data)
        taken = min(
            stop, start + room + 1 - len(line)
        )  # one byte more than allowed: of a line that is too long, or a CR
        line += data[start:taken]
        overlong = len(line) > room and (taken < stop or not self._crlf or line[-1] != _CR)
        complete = end >= 0 and not overlong
        if self.command:
            self._check_header_line(complete)
        else:
            self._check_command_line()
        if overlong:
            self._refuse_overlong_line(room)
        if not complete:
            return None
        if self._crlf and line and line[-1] == _CR:
            del line[-1]
        text = bytes(line)
        line.clear()
        self.checked = 0
        return text

    def _check_command_line(self) -> None:
        line = self.line
        rest = line.lstrip(_LETTERS)
        if rest and not (self._crlf and rest == b"\r"):
            self._refuse(
                "malformed frame",
                f"Byte {len(line) - len(rest) + 1} of the command line is 0x{rest[0]:02x}; a command is upper-case letters, "
                f"ended by {'LF or CRLF' if self._crlf else 'LF'}. Check where the frame before it ends: "
                "its content-length and its NUL.",
            )

    def _check_header_line(self, complete: bool) -> None:
        """Refuse the first fault in the bytes of the line that arrived since the last check."""
        line = self.line
        checked = self.checked
        good = len(line)  # no later byte can make a fault before this place
        fault = ""
        nul = line.find(_NUL, checked)
        if nul >= 0:
            # CONNECT has no escapes, and a client that searches for the NUL at the end of a frame would be misled
            good = nul
            fault = "is NUL, which a header cannot hold; end the headers with a blank line before the body and its NUL"
        if self._crlf:
            cr = line.find(_CR, checked, good)
            if cr >= 0:
                good = cr
                fault = "is a CR that is not before LF; write it as \\r" if cr < len(line) - 1 else ""
        if self.command not in UNESCAPED_COMMANDS:
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
            where = f"Byte {good + 1} of header line {self._lines + 1} of {self.command.decode()}"
            self._refuse("malformed header", f"{where} {fault}.")
        self.checked = good

    def _add_header(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > self._limits.frame_headers_max:
            self._refuse(
                "too many headers",
                f"{self.command.decode()} has more than {self._limits.frame_headers_max} header lines, "
                "the limit frame_headers_max; send fewer.",
            )
        name, colon, value = line.partition(b":")
        if not name or not colon:
            # by number, not by text: it may hold a passcode
            self._refuse(
                "malformed header",
                f"Header line {self._lines} of {self.command.decode()} is not <name>:<value>; "
                "write one, or a blank line to end the headers.",
            )
        if self.command not in UNESCAPED_COMMANDS:
            name = unescape(name)
            value = unescape(value)
        if name not in self.headers:
            # Spec: STOMP 1.2 "only the first header entry SHOULD be used as the value of header entry"
            self.headers[name] = value

    def _refuse_overlong_line(self, room: int) -> NoReturn:
        if not self.command:
            self._refuse(
                "malformed frame",
                f"The command line is longer than {_COMMAND_BYTES_MAX} bytes, which no command is; "
                "begin each frame with its command on a line of its own.",
            )
        name = self.command.decode()
        if room == self._limits.frame_header_line_bytes_max:
            self._refuse(
                "header line too long",
                f"Header line {self._lines + 1} of {name} is longer than {room} bytes, "
                "the limit frame_header_line_bytes_max; shorten it.",
            )
        self._refuse(
            "headers too long",
            f"{name} and its headers are longer than {self._bytes_max} bytes, the limit "
            f"{'connect_frame_bytes_max' if self._connecting else 'frame_headers_bytes_max'}; "
            "send fewer or shorter headers.",
        )

    def _refuse(self, message: str, detail: str) -> NoReturn:
        refuse(self.command, self.headers, message, detail)


def refuse(command: bytes, headers: dict[bytes, bytes], message: str, detail: str) -> NoReturn:
    """Raise a ProtocolError with the `receipt` of the frame, if its command may have one."""
    # Spec: STOMP 1.2 "Any client frame other than CONNECT MAY specify a receipt header"
    known = command and command not in UNESCAPED_COMMANDS
    raise ProtocolError(message, detail, headers.get(b"receipt") if known else None)


def is_escaped(text: bytes, version: int) -> bool:
    """Return True if each backslash in `text` begins an escape that `version` defines."""
    rest = text.replace(b"\\\\", b"").replace(b"\\n", b"").replace(b"\\c", b"")
    return _BACKSLASH not in (rest if version == VERSION_1_1 else rest.replace(b"\\r", b""))


def unescape(text: bytes) -> bytes:
    r"""Undo the escapes of a checked line. A cut at its first colon never splits one, because a colon in it is `\c`."""
    if _BACKSLASH not in text:
        return text
    parts = text.split(b"\\")
    # an empty part that is not the first stands between the two characters of an escaped backslash
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
