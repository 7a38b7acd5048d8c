"""An entry: one step of a journal's history, as bytes that prove themselves.

A feed is a sequence of entries, and so is the log of a cluster. Each entry carries the positions before and after it. So its reader
finds each gap, repetition and fork. A `block` carries the block of the journal without its sync marker. Its bytes are never encoded
again, so the sealed segments of a follower equal those of its source.

All numbers are big-endian and sizes are in bytes:

| at | size | field |
|---|---|---|
| 0 | 4 | `MXE1` |
| 4 | 1 | kind |
| 5 | 1 | flags: 1 = a new segment begins with this block |
| 6 | 2 | format of the records in the block: 1 |
| 8 | 8 | index in the log of a cluster, from 1 without gaps; 0 on a feed |
| 16 | 8 | term of the leader that appended it; 0 on a feed, and before the first leader |
| 24 | 20 | position before: revision (8), `accepted_at` in microseconds (8), chain (4) |
| 44 | 20 | position after, likewise |
| 64 | 16 | sync marker of the segment |
| 80 | 4 + n | origins (`broker/origins`), after their size; nothing without fronts |
| | 4 + n | payload, after its size |
| | 4 | CRC-32 of all before |

| kind | payload | what a reader does |
|---|---|---|
| 1 `block` | count, size and records of an Avro block | checks, journals and applies it |
| 2 `term` | names of the leader and of its release, each after its length (1) | notes who leads |
| 3 `seal` | nothing | seals the open segment, if it holds a change |
| 4 `schemas` | repeated: SHA-256 (32), size (4), text | stores the texts before it journals any later entry |
| 5 `file` | name after its length (1), contents | replaces the file |
| 6 `format` | number (2) | writes records in this format from here on |
| 7 `handover` | name of the successor | claims the lead at once, if the name is its own |
| 8 `genesis` | identifier of the cluster (16) | takes the position for that at which the journals begin |
| 9 `proof` | nothing | nothing: it proves who leads, and may have origins |
| 10 `incarnation` | 16 hex digits, or nothing | writes it into the headers of the segments that begin from here on |

The kinds 2 and 5 to 9 occur only in the log of a cluster. A gateway also sends `proof` with origins to its fronts. `genesis` is its
first entry. It has term 0, and so have the `seal` and the `incarnation` that follow before the first leader. No segment has two
incarnations, so a `seal` precedes each `incarnation`.
"""

import zlib
from collections.abc import Callable
from hashlib import sha256
from typing import Final, final

from maxam.content import read_unsigned
from maxam.errors import MaxamError
from maxam.journal.encoding import CHECK_BYTES, SYNC_BYTES, Position

MAGIC: Final = b"MXE1"
BLOCK: Final = 1
TERM: Final = 2
SEAL: Final = 3
SCHEMAS: Final = 4
FILE: Final = 5
RECORD_FORMAT: Final = 6
HANDOVER: Final = 7
GENESIS: Final = 8
PROOF: Final = 9
INCARNATION: Final = 10
FORMAT: Final = 1  # of the records in a block: the journal's schema
ENTRY_BYTES_MAX: Final = (
    134_217_728  # a source with [link] makes blocks of 4 MiB and one SEND; older blocks may be larger
)
FILE_BYTES_MAX: Final = 1_048_576  # contents of a `file`
FILES: Final = frozenset({"policy-enrolled.toml"})  # names that a `file` may have
CLUSTER_ID_BYTES: Final = 16
NAME_BYTES_MAX: Final = 255  # of a leader, successor or release

_KINDS: Final = frozenset(range(BLOCK, INCARNATION + 1))
_OF_FEEDS: Final = frozenset({BLOCK, SEAL, SCHEMAS, INCARNATION})  # the others are only in the log of a cluster
_WITH_ORIGINS: Final = frozenset({BLOCK, PROOF})
_BEFORE_LEADERS: Final = frozenset({GENESIS, SEAL, INCARNATION})  # may have term 0
_BEGINS: Final = 1  # flag
_ORIGINS_AT: Final = 84
_FRAME_BYTES: Final = _ORIGINS_AT + 8  # of an entry without origins and payload
_DIGEST_BYTES: Final = 32
_LONG_MAX: Final = (1 << 63) - 1


@final
class EntryError(MaxamError):
    """Bytes are not an entry, or not one that this release reads."""

    code = "entry-invalid"


@final
class Entry:
    """One step of a journal's history.

    Attributes:
        kind: BLOCK, TERM, SEAL, SCHEMAS, FILE, RECORD_FORMAT, HANDOVER, GENESIS, PROOF or INCARNATION.
        begins: A new segment begins with this block.
        before: Position of the journal before it.
        after: Position after it. Only a block moves the position.
        marker: Sync marker of the segment that the position is in.
        payload: Contents, as the kind has them.
        index: Place in the log of a cluster, from 1; 0 on a feed.
        term: Reign of the leader that appended it; 0 on a feed and before the first leader.
        origins: Outcomes of the operations of fronts, as `broker.origins` encodes them; empty without fronts.
    """

    __slots__ = ("after", "before", "begins", "index", "kind", "marker", "origins", "payload", "term")

    def __init__(
        self,
        kind: int,
        begins: bool,
        before: Position,
        after: Position,
        marker: bytes,
        payload: bytes,
        index: int = 0,
        term: int = 0,
        origins: bytes = b"",
    ) -> None:
        self.kind: Final = kind
        self.begins: Final = begins
        self.before: Final = before
        self.after: Final = after
        self.marker: Final = marker
        self.payload: Final = payload
        self.index: Final = index
        self.term: Final = term
        self.origins: Final = origins

    def encode(self) -> bytes:
        """Return the entry's bytes."""
        data = b"".join(
            (
                MAGIC,
                bytes((self.kind, _BEGINS if self.begins else 0)),
                FORMAT.to_bytes(2, "big"),
                self.index.to_bytes(8, "big"),
                self.term.to_bytes(8, "big"),
                encode_position(self.before),
                encode_position(self.after),
                self.marker,
                len(self.origins).to_bytes(4, "big"),
                self.origins,
                len(self.payload).to_bytes(4, "big"),
                self.payload,
            )
        )
        return data + zlib.crc32(data).to_bytes(4, "big")

    def records(self) -> tuple[bytes, int]:
        """Return the records of a block, as `Decoder.decode` takes them, and their count."""
        count, place = read_unsigned(self.payload, 0)
        _, place = read_unsigned(self.payload, place)
        return self.payload[place:], count >> 1

    def texts(self) -> list[tuple[str, bytes]]:
        """Return the lower-case hex SHA-256 and the text of each schema."""
        return read_texts(self.payload)

    def reign(self) -> tuple[str, str]:
        """Return the names of the leader and of its release, of a `term`."""
        end = 1 + self.payload[0]
        return self.payload[1:end].decode(), self.payload[end + 1 :].decode()

    def file(self) -> tuple[str, bytes]:
        """Return the name and the contents of a `file`."""
        end = 1 + self.payload[0]
        return self.payload[1:end].decode(), self.payload[end:]

    def number(self) -> int:
        """Return the format that a `format` puts into force."""
        return int.from_bytes(self.payload, "big")

    def successor(self) -> str:
        """Return the name of the member that a `handover` makes the next leader."""
        return self.payload.decode()


def block_entry(
    data: bytes,
    before: Position,
    after: Position,
    begins: bool,
    index: int = 0,
    term: int = 0,
    origins: bytes = b"",
) -> Entry:
    """Return the entry of a block of the journal.

    Args:
        data: The block with the sync marker after it, as it is in the segment.
        before: Where it belongs.
        after: Position after it.
        begins: It is the first block of its segment.
        index: Place in the log; 0 on a feed.
        term: Reign of the leader; 0 on a feed.
        origins: Outcomes of the operations of fronts; empty without fronts.
    """
    return Entry(BLOCK, begins, before, after, data[-SYNC_BYTES:], data[:-SYNC_BYTES], index, term, origins)


def term_payload(leader: str, release: str) -> bytes:
    """Return the payload of a `term` entry. Each name has at most 255 bytes."""
    return _short_text(leader) + _short_text(release)


def file_payload(name: str, contents: bytes) -> bytes:
    """Return the payload of a `file` entry."""
    return _short_text(name) + contents


def _short_text(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def texts_payload(texts: list[tuple[str, bytes]]) -> bytes:
    """Return the payload of a `schemas` entry for these pairs of hex SHA-256 and text."""
    parts: list[bytes] = []
    for digest, text in texts:
        parts += (bytes.fromhex(digest), len(text).to_bytes(4, "big"), text)
    return b"".join(parts)


def read_entry(data: bytes) -> Entry:
    """Return the entry of these bytes, after checking all that an entry proves by itself.

    Raises:
        EntryError: They are anything else than one whole entry of this release.
    """
    if len(data) < _FRAME_BYTES or data[:4] != MAGIC:
        raise EntryError("not an entry: it is too short, or does not begin with MXE1")
    if int.from_bytes(data[-4:], "big") != zlib.crc32(memoryview(data)[:-4]):
        raise EntryError("the entry does not match its checksum")
    kind, flags = data[4], data[5]
    if kind not in _KINDS or flags > _BEGINS or (flags and kind != BLOCK):
        raise EntryError(f"an entry of kind {kind} with flags {flags}: another release wrote it. Install that release")
    if data[6:8] != FORMAT.to_bytes(2, "big"):
        raise EntryError(f"records of format {int.from_bytes(data[6:8], 'big')}: install the release that wrote them")
    origins_end = _ORIGINS_AT + int.from_bytes(data[80:84], "big")
    payload_at = origins_end + 4
    if payload_at + 4 > len(data) or int.from_bytes(data[origins_end:payload_at], "big") != len(data) - payload_at - 4:
        raise EntryError("the size of the origins or of the payload is wrong")
    origins = data[_ORIGINS_AT:origins_end]
    before, after = read_position(data, 24), read_position(data, 44)
    index, term = int.from_bytes(data[8:16], "big"), int.from_bytes(data[16:24], "big")
    entry = Entry(kind, flags == _BEGINS, before, after, data[64:80], data[payload_at:-4], index, term, origins)
    _check_place(entry)
    _check(entry)
    return entry


def encode_position(position: Position) -> bytes:
    """Return the 20 bytes of a position."""
    return (
        position.revision.to_bytes(8, "big")
        + position.accepted_at_us.to_bytes(8, "big")
        + position.chain.to_bytes(4, "big")
    )


def read_position(data: bytes, place: int) -> Position:
    """Return the position whose 20 bytes begin at a place.

    Raises:
        EntryError: A number is too large for the journal.
    """
    revision = int.from_bytes(data[place : place + 8], "big")
    accepted_at_us = int.from_bytes(data[place + 8 : place + 16], "big")
    if revision > _LONG_MAX or accepted_at_us > _LONG_MAX:
        raise EntryError("a revision or time is out of range")
    return Position(revision, accepted_at_us, int.from_bytes(data[place + 16 : place + 20], "big"))


def same_position(one: Position, other: Position) -> bool:
    """Return True if two positions are the same place."""
    return one.revision == other.revision and one.chain == other.chain and one.accepted_at_us == other.accepted_at_us


def read_texts(payload: bytes) -> list[tuple[str, bytes]]:
    """Return the hex SHA-256 and text of each schema in the payload of a `schemas` entry.

    Raises:
        EntryError: A text is cut short, or does not match its SHA-256.
    """
    texts: list[tuple[str, bytes]] = []
    place = 0
    while place < len(payload):
        digest = payload[place : place + _DIGEST_BYTES]
        start = place + _DIGEST_BYTES + 4
        place = start + int.from_bytes(payload[start - 4 : start], "big")
        text = payload[start:place]
        if start > len(payload) or place > len(payload) or sha256(text).digest() != digest:
            raise EntryError("the text of a schema is cut short, or does not match its SHA-256")
        texts.append((digest.hex(), text))
    return texts


def _check(entry: Entry) -> None:
    """Raise EntryError unless positions and payload fit each other and the kind."""
    if entry.kind == BLOCK:
        _check_block(entry)
        return
    if not same_position(entry.before, entry.after):
        raise EntryError("an entry without a block moves the position")
    _check_payload(entry.kind, entry.payload)


def _check_place(entry: Entry) -> None:
    """Raise EntryError unless index and term fit each other and the kind."""
    kind, index, term = entry.kind, entry.index, entry.term
    if index > _LONG_MAX or term > _LONG_MAX:
        raise EntryError("an index or term is out of range")
    if entry.origins and kind not in _WITH_ORIGINS:
        raise EntryError(f"an entry of kind {kind} with origins")
    if not index:
        if term or not (kind in _OF_FEEDS or (kind == PROOF and entry.origins)):
            raise EntryError("an entry of the log of a cluster without an index")
    elif (kind == GENESIS) != (index == 1):
        raise EntryError("the first entry of a log, and no other one, is its genesis")
    elif (not term and kind not in _BEFORE_LEADERS) or (term and kind == GENESIS):
        raise EntryError(f"an entry of kind {kind} with term {term}")


def _is_name(data: bytes) -> bool:
    """Return True if bytes are a text of 1 to 255 bytes."""
    try:
        return 0 < len(data) <= NAME_BYTES_MAX and bool(data.decode())
    except UnicodeDecodeError:
        return False


def _are_names(payload: bytes) -> bool:
    """Return True if a payload is two names, each after its length."""
    first_ends = 1 + payload[0] if payload else 0
    return (
        0 < first_ends < len(payload)
        and payload[first_ends] == len(payload) - first_ends - 1
        and _is_name(payload[1:first_ends])
        and _is_name(payload[first_ends + 1 :])
    )


def _is_file(payload: bytes) -> bool:
    """Return True if a payload is the name of a file of a cluster, after its length, and contents of a size that is allowed."""
    end = 1 + payload[0] if payload else 0
    return (
        0 < end <= len(payload) <= end + FILE_BYTES_MAX
        and _is_name(payload[1:end])
        and payload[1:end].decode() in FILES
    )


def _is_incarnation(payload: bytes) -> bool:
    return not payload or (len(payload) == 16 and not payload.strip(b"0123456789abcdef"))


_PAYLOADS: Final[dict[int, tuple[Callable[[bytes], bool], str]]] = {
    TERM: (_are_names, "a term without the names of leader and release"),
    SEAL: (lambda payload: not payload, "a seal with a payload"),
    SCHEMAS: (lambda payload: bool(read_texts(payload)), "an entry of schemas without a schema"),
    FILE: (_is_file, f"a file that is not one of {', '.join(sorted(FILES))}, or is over {FILE_BYTES_MAX} bytes"),
    RECORD_FORMAT: (
        lambda payload: len(payload) == 2 and any(payload),
        "a format that is not a number from 1 to 65535",
    ),
    HANDOVER: (_is_name, "a handover without the name of a successor"),
    GENESIS: (lambda payload: len(payload) == CLUSTER_ID_BYTES, "an identifier of a cluster that has not 16 bytes"),
    PROOF: (lambda payload: not payload, "a proof with a payload"),
    INCARNATION: (_is_incarnation, "an incarnation that is not 16 hex digits"),
}


def _check_payload(kind: int, payload: bytes) -> None:
    """Raise EntryError if the payload of an entry that is no block is not as the kind has it."""
    is_valid, problem = _PAYLOADS[kind]
    if not is_valid(payload):
        raise EntryError(problem)


def _check_block(entry: Entry) -> None:
    payload, before, after = entry.payload, entry.before, entry.after
    try:
        count, place = read_unsigned(payload, 0)
        length, place = read_unsigned(payload, place)
    except (ValueError, IndexError):
        raise EntryError("a block without its count and size") from None
    if (count | length) & 1 or not count or length >> 1 <= CHECK_BYTES or place + (length >> 1) != len(payload):
        raise EntryError("the count or the size of the block is wrong")
    seed = int.from_bytes(payload[-4:], "big")
    check = zlib.crc32(memoryview(payload)[place:-CHECK_BYTES], zlib.crc32(payload[:place], seed))
    if int.from_bytes(payload[-8:-4], "big") != check:
        raise EntryError("the block does not match its checksum")
    if seed != before.chain or check != after.chain:
        raise EntryError("the positions of the entry are not those of its block")
    if after.revision < before.revision or after.accepted_at_us < before.accepted_at_us:
        raise EntryError("the position after the entry is before the position ahead of it")
