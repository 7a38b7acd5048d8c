"""An entry: one step of a journal's history, as bytes that prove themselves.

A feed is a sequence of entries. Each entry carries the positions before and after it. So its reader finds each gap, repetition and
fork. A `block` carries the block of the journal without its sync marker. Its bytes are never encoded
again, so the sealed segments of a follower equal those of its source.

All numbers are big-endian and sizes are in bytes:

| at | size | field |
|---|---|---|
| 0 | 4 | `MXE1` |
| 4 | 1 | kind |
| 5 | 1 | flags: 1 = a new segment begins with this block |
| 6 | 2 | format of the records in the block: 1 |
| 8 | 16 | index and term, both 0 on the feed of a gateway |
| 24 | 20 | position before: revision (8), `accepted_at` in microseconds (8), chain (4) |
| 44 | 20 | position after, likewise |
| 64 | 16 | sync marker of the segment |
| 80 | 4 | size of the origins: 0 |
| 84 | 4 + n | payload, after its size |
| | 4 | CRC-32 of all before |

| kind | payload | what a reader does |
|---|---|---|
| 1 `block` | count, size and records of an Avro block | checks, journals and applies it |
| 3 `seal` | nothing | seals the open segment, if it holds a change |
| 4 `schemas` | repeated: SHA-256 (32), size (4), text | stores the texts before it journals any later entry |
| 10 `incarnation` | 16 hex digits, or nothing | writes it into the headers of the segments that begin from here on |

The numbers 2 and 5 to 9 are reserved. Index, term and origins are for gateways that share a log.
"""

import zlib
from hashlib import sha256
from typing import Final, final

from maxam.content import read_unsigned
from maxam.errors import MaxamError
from maxam.journal.encoding import CHECK_BYTES, SYNC_BYTES, Position

MAGIC: Final = b"MXE1"
BLOCK: Final = 1
SEAL: Final = 3
SCHEMAS: Final = 4
INCARNATION: Final = 10
FORMAT: Final = 1  # of the records in a block: the journal's schema
ENTRY_BYTES_MAX: Final = 16_777_216  # the largest block of the default limits is a third of it

_KINDS: Final = frozenset({BLOCK, SEAL, SCHEMAS, INCARNATION})
_BEGINS: Final = 1  # flag
_PAYLOAD_AT: Final = 88
_FRAME_BYTES: Final = _PAYLOAD_AT + 4  # of an entry without payload
_NO_ORDER: Final = bytes(16)  # index and term
_NO_ORIGINS: Final = bytes(4)
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
        kind: BLOCK, SEAL, SCHEMAS or INCARNATION.
        begins: A new segment begins with this block.
        before: Position of the journal before it.
        after: Position after it. Only a block moves the position.
        marker: Sync marker of the segment that the position is in.
        payload: Contents, as the kind has them.
    """

    __slots__ = ("after", "before", "begins", "kind", "marker", "payload")

    def __init__(
        self, kind: int, begins: bool, before: Position, after: Position, marker: bytes, payload: bytes
    ) -> None:
        self.kind: Final = kind
        self.begins: Final = begins
        self.before: Final = before
        self.after: Final = after
        self.marker: Final = marker
        self.payload: Final = payload

    def encode(self) -> bytes:
        """Return the entry's bytes."""
        data = b"".join(
            (
                MAGIC,
                bytes((self.kind, _BEGINS if self.begins else 0)),
                FORMAT.to_bytes(2, "big"),
                _NO_ORDER,
                encode_position(self.before),
                encode_position(self.after),
                self.marker,
                _NO_ORIGINS,
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


def block_entry(data: bytes, before: Position, after: Position, begins: bool) -> Entry:
    """Return the entry of a block of the journal.

    Args:
        data: The block with the sync marker after it, as it is in the segment.
        before: Where it belongs.
        after: Position after it.
        begins: It is the first block of its segment.
    """
    return Entry(BLOCK, begins, before, after, data[-SYNC_BYTES:], data[:-SYNC_BYTES])


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
    if data[8:24] != _NO_ORDER or data[80:84] != _NO_ORIGINS:
        raise EntryError("an entry with index, term or origins: another release wrote it. Install that release")
    if int.from_bytes(data[84:88], "big") != len(data) - _FRAME_BYTES:
        raise EntryError("the size of the payload is wrong")
    before, after = read_position(data, 24), read_position(data, 44)
    entry = Entry(kind, flags == _BEGINS, before, after, data[64:80], data[_PAYLOAD_AT:-4])
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
    if entry.kind == SCHEMAS:
        if not read_texts(entry.payload):
            raise EntryError("an entry of schemas without a schema")
    elif entry.kind == SEAL:
        if entry.payload:
            raise EntryError("a seal with a payload")
    elif entry.payload and (len(entry.payload) != 16 or entry.payload.strip(b"0123456789abcdef")):
        raise EntryError("an incarnation that is not 16 hex digits")


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
