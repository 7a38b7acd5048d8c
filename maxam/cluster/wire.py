"""The bytes of a link between two gateways: frames, and the messages in them.

A frame is the size of its body (4 bytes, big-endian), a type (1 byte) and the body. A text is its size (2 bytes) and UTF-8. The
gateway that connects sends HELLO. The other answers with WELCOME or REFUSED. Both then send BEAT every `BEAT_S` seconds, and a link
on which nothing arrives for `SILENCE_S` seconds ends.

| type | from | body |
|---|---|---|
| 1 HELLO | who connects | version of the link (2), wish (1), name, software, incarnation, position, digest of schemas |
| 2 WELCOME | the other | name, software, role, incarnation, newest committed position |
| 3 REFUSED | the other | code, text, address of another gateway that may serve |
| 4 ENTRY | feed | an entry |
| 5 BEAT | both | newest committed position, time of the sender in microseconds (8) |
| 5 BEAT | to a front | newest committed position, time in the newest BEAT of the front (8) |
| 6 OPS | front | operations (`operations`) |
| 7 GRANT | to a front | JSON: a session that was claimed, or why it is refused |
| 8 EXPEL | to a front | JSON: a session that another connection claims |
| 18 SOURCES | to a front | what is in force, or comes into force (`gateway/front_sources`) |
| 19 SOURCED | front | JSON: the epoch that is ready or in force |
| 20 REPORT | front | JSON: connections that began or ended, counters, its state if it goes on with another leader |
| 21 ASK | to a front | JSON: a question of an operator, with its number |
| 21 ASK | front | JSON: the hash of a ticket that a client shows, its client-id and origin, with a number |
| 22 ANSWER | front | JSON: the answer to that number |
| 22 ANSWER | to a front | the number, and the grant of the ticket unless it is refused |
| 12 LIST | who copies | nothing |
| 13 FILES | copy | count (4), then for each file: path, size (8) |
| 14 DATA | who copies | path, offset (8): the request for the rest of a file |
| 14 DATA | copy | path, offset (8), bytes to the end of the body |
| 15 DONE | copy | path, SHA-256 (32) of the bytes sent for it |
| 15 DONE | who copies | empty path, 32 zeros: nothing else is wanted |
"""

from typing import Final, final

from maxam.cluster.entry import ENTRY_BYTES_MAX, EntryError, encode_position, read_position
from maxam.errors import MaxamError
from maxam.journal.encoding import Position

VERSION: Final = 1
BEAT_S: Final = 0.5
SILENCE_S: Final = 2.0
FRONT_SILENCE_S: Final = 5.0  # the same for a front, whose event loop does other work too
FRAME_BYTES_MAX: Final = 16_777_216  # body of one frame but an entry
PIECE_BYTES: Final = 1_048_576  # of a file in one DATA

HELLO: Final = 1
WELCOME: Final = 2
REFUSED: Final = 3
ENTRY: Final = 4
BEAT: Final = 5
OPS: Final = 6
GRANT: Final = 7
EXPEL: Final = 8
LIST: Final = 12
FILES: Final = 13
DATA: Final = 14
DONE: Final = 15
SOURCES: Final = 18
SOURCED: Final = 19
REPORT: Final = 20
ASK: Final = 21
ANSWER: Final = 22

FEED: Final = 1  # wishes of HELLO
COPY: Final = 2
FRONT: Final = 3
RESUME: Final = 4  # a front of the former leader of the cluster

# codes of REFUSED
GONE: Final = "gone"  # the archive begins after the position: copy
FORKED: Final = "forked"  # the journal has no such position, but others of that revision
AHEAD: Final = "ahead"  # the journal ends before the position
BUSY: Final = "busy"  # too many links, or the source is not ready: try again
CHANGED: Final = "changed"  # a file of the copy is gone: list again
UNAUTHORISED: Final = "unauthorised"  # the certificate lacks the admin right `replicate`, or `front` for a front
OTHER_VERSION: Final = "other-version"  # the link's version or a wish is unknown

_HEAD_BYTES: Final = 5
_OF_FRONTS: Final = frozenset({OPS, GRANT, EXPEL, SOURCES, SOURCED, REPORT, ASK, ANSWER})
_TYPES: Final = frozenset({HELLO, WELCOME, REFUSED, ENTRY, BEAT, LIST, FILES, DATA, DONE, *_OF_FRONTS})
_SMALL_BYTES_MAX: Final = 65_536  # of all messages that carry neither an entry nor a file
_LARGE: Final = {
    ENTRY: ENTRY_BYTES_MAX,
    FILES: FRAME_BYTES_MAX,
    DATA: FRAME_BYTES_MAX,
    OPS: FRAME_BYTES_MAX,
    SOURCES: FRAME_BYTES_MAX,
    REPORT: FRAME_BYTES_MAX,
    ASK: FRAME_BYTES_MAX,
    ANSWER: FRAME_BYTES_MAX,
}
AT_US_MAX: Final = 253_402_300_799_999_999  # the last moment of the year 9999
_FILES_MAX: Final = 1_000_000
DIGEST_BYTES: Final = 32


@final
class WireError(MaxamError):
    """A gateway sent bytes over a link that are not a message of this release."""

    code = "link-invalid"


@final
class Frame:
    """One frame: its type and its body."""

    __slots__ = ("body", "type")

    def __init__(self, kind: int, body: bytes) -> None:
        self.type: Final = kind
        self.body: Final = body


@final
class Hello:
    """The first message of the gateway that connects.

    Attributes:
        wish: FEED, COPY, FRONT or RESUME.
        name: Name of the gateway, for people.
        software: Its version.
        incarnation: Of its journal; empty for none.
        position: Where its journal ends.
        schemas: Digest of the names of its schema texts. They are not sent again if the other side has the same ones.
    """

    __slots__ = ("incarnation", "name", "position", "schemas", "software", "wish")

    def __init__(
        self, wish: int, name: str, software: str, incarnation: str, position: Position, schemas: str = ""
    ) -> None:
        self.wish: Final = wish
        self.name: Final = name
        self.software: Final = software
        self.incarnation: Final = incarnation
        self.position: Final = position
        self.schemas: Final = schemas


@final
class Welcome:
    """The answer to a HELLO that is accepted.

    Attributes:
        name: Name of the gateway, for people.
        software: Its version.
        role: `serving` or `following`.
        incarnation: Of its journal.
        position: Its newest committed position.
    """

    __slots__ = ("incarnation", "name", "position", "role", "software")

    def __init__(self, name: str, software: str, role: str, incarnation: str, position: Position) -> None:
        self.name: Final = name
        self.software: Final = software
        self.role: Final = role
        self.incarnation: Final = incarnation
        self.position: Final = position


@final
class Refused:
    """The answer to a HELLO or request that is refused.

    Attributes:
        code: One of the codes above.
        text: The reason, for people.
        elsewhere: `host:port` of another gateway's link that may serve; empty for none.
    """

    __slots__ = ("code", "elsewhere", "text")

    def __init__(self, code: str, text: str, elsewhere: str = "") -> None:
        self.code: Final = code
        self.text: Final = text
        self.elsewhere: Final = elsewhere


@final
class Beat:
    """A sign of life: the newest committed position of the sender, and its time in microseconds since the epoch."""

    __slots__ = ("at_us", "position")

    def __init__(self, position: Position, at_us: int) -> None:
        self.position: Final = position
        self.at_us: Final = at_us


@final
class Piece:
    """Bytes of a file, or the request for them.

    Attributes:
        path: Of the file within the journal's folder.
        offset: Of the first byte.
        data: The bytes. Of a request, none.
    """

    __slots__ = ("data", "offset", "path")

    def __init__(self, path: str, offset: int, data: bytes) -> None:
        self.path: Final = path
        self.offset: Final = offset
        self.data: Final = data


@final
class FrameReader:
    """Cuts received bytes into frames.

    Attributes:
        large: The peer may send large frames.
    """

    __slots__ = ("_buffer", "large")

    def __init__(self, large: bool = True) -> None:
        """Begin with nothing. With `large`, the peer is a source, which sends entries and files."""
        self._buffer = bytearray()
        self.large = large

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are whole with these further bytes.

        Raises:
            WireError: A type is unknown, or a frame is too large for its type.
        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        place = 0
        while len(buffer) - place >= _HEAD_BYTES:
            size = int.from_bytes(buffer[place : place + 4], "big")
            kind = buffer[place + 4]
            if kind not in _TYPES:
                raise WireError(f"a frame of type {kind}: the peer runs another release. Install the same on both")
            if size > (_LARGE.get(kind, _SMALL_BYTES_MAX) if self.large else _SMALL_BYTES_MAX):
                raise WireError(f"a frame of type {kind} with {size} bytes: the peer runs another release, or no maxam")
            end = place + _HEAD_BYTES + size
            if end > len(buffer):
                break
            frames.append(Frame(kind, bytes(buffer[place + _HEAD_BYTES : end])))
            place = end
        if place:
            del buffer[:place]
        return frames

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not whole."""
        return len(self._buffer)


def frame(kind: int, body: bytes) -> bytes:
    """Return the bytes of a frame."""
    return len(body).to_bytes(4, "big") + bytes((kind,)) + body


def encode_hello(hello: Hello) -> bytes:
    """Return the frame of a HELLO."""
    body = VERSION.to_bytes(2, "big") + bytes((hello.wish,)) + _texts(hello.name, hello.software, hello.incarnation)
    return frame(HELLO, body + encode_position(hello.position) + _texts(hello.schemas))


def read_hello(body: bytes) -> Hello:
    """Return the HELLO of a body. Raises WireError."""
    fields = _Fields(body)
    version = fields.number(2)
    if version != VERSION:
        raise WireError(f"version {version} of the link: this release has version {VERSION}. Install the same on both")
    wish = fields.number(1)
    if wish not in {FEED, COPY, FRONT, RESUME}:
        raise WireError(f"the wish {wish} is unknown: install the same release on both")
    hello = Hello(wish, fields.text(), fields.text(), fields.text(), fields.position(), fields.text())
    fields.end()
    return hello


def encode_welcome(welcome: Welcome) -> bytes:
    """Return the frame of a WELCOME."""
    texts = _texts(welcome.name, welcome.software, welcome.role, welcome.incarnation)
    return frame(WELCOME, texts + encode_position(welcome.position))


def read_welcome(body: bytes) -> Welcome:
    """Return the WELCOME of a body. Raises WireError."""
    fields = _Fields(body)
    welcome = Welcome(fields.text(), fields.text(), fields.text(), fields.text(), fields.position())
    fields.end()
    return welcome


def encode_refused(refused: Refused) -> bytes:
    """Return the frame of a REFUSED."""
    return frame(REFUSED, _texts(refused.code, refused.text, refused.elsewhere))


def read_refused(body: bytes) -> Refused:
    """Return the REFUSED of a body. Raises WireError."""
    fields = _Fields(body)
    refused = Refused(fields.text(), fields.text(), fields.text())
    fields.end()
    return refused


def encode_beat(beat: Beat) -> bytes:
    """Return the frame of a BEAT."""
    return frame(BEAT, encode_position(beat.position) + beat.at_us.to_bytes(8, "big"))


def read_beat(body: bytes) -> Beat:
    """Return the BEAT of a body. Raises WireError."""
    fields = _Fields(body)
    beat = Beat(fields.position(), fields.number(8))
    fields.end()
    if beat.at_us > AT_US_MAX:
        raise WireError("a sign of life with a time after the year 9999")
    return beat


def encode_files(files: list[tuple[str, int]]) -> bytes:
    """Return the frame of a FILES: path and size of each."""
    parts = [len(files).to_bytes(4, "big")]
    for path, size in files:
        parts += (_texts(path), size.to_bytes(8, "big"))
    return frame(FILES, b"".join(parts))


def read_files(body: bytes) -> list[tuple[str, int]]:
    """Return path and size of each file of a FILES. Raises WireError."""
    fields = _Fields(body)
    count = fields.number(4)
    if count > _FILES_MAX:
        raise WireError(f"a list of {count} files")
    files: list[tuple[str, int]] = []
    for _ in range(count):
        path = fields.text()
        files.append((path, fields.number(8)))
    fields.end()
    return files


def encode_piece(piece: Piece) -> bytes:
    """Return the frame of a DATA."""
    return frame(DATA, _texts(piece.path) + piece.offset.to_bytes(8, "big") + piece.data)


def read_piece(body: bytes) -> Piece:
    """Return the DATA of a body. Raises WireError."""
    fields = _Fields(body)
    path = fields.text()
    offset = fields.number(8)
    return Piece(path, offset, fields.rest())


def encode_done(path: str, digest: bytes) -> bytes:
    """Return the frame of a DONE."""
    return frame(DONE, _texts(path) + digest)


def read_done(body: bytes) -> tuple[str, bytes]:
    """Return path and SHA-256 of a DONE. Raises WireError."""
    fields = _Fields(body)
    path = fields.text()
    digest = fields.take(DIGEST_BYTES)
    fields.end()
    return path, digest


def _texts(*texts: str) -> bytes:
    parts: list[bytes] = []
    for text in texts:
        data = text.encode()
        if len(data) > 65_535:
            raise ValueError("a text that is too long for a link")
        parts += (len(data).to_bytes(2, "big"), data)
    return b"".join(parts)


@final
class _Fields:
    """Reads the fields of a body in their order."""

    __slots__ = ("_data", "_place")

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self._place = 0

    def take(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._data):
            raise WireError("a message that is cut short")
        data = self._data[self._place : end]
        self._place = end
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        data = self.take(self.number(2))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise WireError("a message with a text that is not UTF-8") from None

    def position(self) -> Position:
        try:
            return read_position(self.take(20), 0)
        except EntryError as error:
            raise WireError(str(error)) from None

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._place)

    def end(self) -> None:
        if self._place != len(self._data):
            raise WireError("a message with bytes after its last field")
