"""Entries and messages of a link: what is encoded is read back, and anything else is refused."""

import zlib
from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.cluster import wire
from maxam.cluster.entry import (
    BLOCK,
    FILE,
    FILE_BYTES_MAX,
    GENESIS,
    HANDOVER,
    INCARNATION,
    PROOF,
    RECORD_FORMAT,
    SCHEMAS,
    SEAL,
    TERM,
    Entry,
    EntryError,
    block_entry,
    file_payload,
    read_entry,
    same_position,
    term_payload,
    texts_payload,
)
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import START, Encoder, Position
from tests.support.journal_records import NOW_US, SYNC, change, one_of_each

AT = Position(7, NOW_US, 0xDEADBEEF)
TEXTS = [(sha256(text).hexdigest(), text) for text in (b'"long"', b"{}", b"")]
positions = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))
texts = st.text(st.characters(codec="utf-8"), max_size=40)


def block(begins: bool = False) -> Entry:
    """Return the entry of a block with records of each kind."""
    made = Encoder(START, SYNC).encode(one_of_each())
    return block_entry(made.data, made.before, made.after, begins)


def short_block() -> Entry:
    """Return the entry of a block with one short record."""
    made = Encoder(START, SYNC).encode([change(1, body=b"")])
    return block_entry(made.data, made.before, made.after, begins=True)


def entries() -> list[Entry]:
    """Return an entry of each kind."""
    return [
        block(),
        block(begins=True),
        Entry(SEAL, False, AT, AT, SYNC, b""),
        Entry(SCHEMAS, False, AT, AT, SYNC, texts_payload(TEXTS)),
        Entry(INCARNATION, False, AT, AT, SYNC, b"0123456789abcdef"),
        Entry(INCARNATION, False, AT, AT, SYNC, b""),
        *logged(),
    ]


ENROLLED = "policy-enrolled.toml"


def logged() -> list[Entry]:
    """Return an entry of each kind as it is in the log of a cluster."""
    made = Encoder(START, SYNC).encode([change(1, body=b"")])
    return [
        Entry(GENESIS, False, START, START, SYNC, bytes(range(16)), 1),
        Entry(INCARNATION, False, START, START, SYNC, b"0123456789abcdef", 2),
        Entry(TERM, False, AT, AT, SYNC, term_payload("gateway-a", "0.2.0"), 3, 1),
        block_entry(made.data, made.before, made.after, True, 4, 1),
        Entry(SEAL, False, AT, AT, SYNC, b"", 5, 1),
        Entry(SCHEMAS, False, AT, AT, SYNC, texts_payload(TEXTS), 6, 1),
        Entry(FILE, False, AT, AT, SYNC, file_payload(ENROLLED, b"# \xff"), 7, 1),
        Entry(RECORD_FORMAT, False, AT, AT, SYNC, b"\0\2", 8, 2**63 - 1),
        Entry(HANDOVER, False, AT, AT, SYNC, "gateway-\u00e4".encode(), 9, 1),
        Entry(PROOF, False, AT, AT, SYNC, b"", 2**63 - 1, 1),
        block_entry(made.data, made.before, made.after, True, 4, 1, b"origins"),
        Entry(PROOF, False, AT, AT, SYNC, b"", 5, 1, b"origins"),
    ]


def fields(entry: Entry) -> tuple[object, ...]:
    """Return what an entry is made of."""
    places = [(one.revision, one.accepted_at_us, one.chain) for one in (entry.before, entry.after)]
    return entry.kind, entry.begins, entry.index, entry.term, *places, entry.marker, entry.origins, entry.payload


@pytest.mark.parametrize("entry", entries())
def test_an_entry_is_read_back(entry: Entry) -> None:
    """Encoded entries are read, and encode to the same bytes."""
    data = entry.encode()
    again = read_entry(data)
    assert fields(again) == fields(entry)
    assert again.encode() == data


def test_a_block_holds_its_records_and_the_bytes_of_the_journal() -> None:
    """Payload and marker are the block in the segment, and its records decode."""
    made = Encoder(START, SYNC).encode(one_of_each())
    entry = block()
    assert entry.payload + entry.marker == made.data
    decoder = Decoder(0, 0)
    assert len(decoder.decode(*entry.records())) == len(one_of_each())
    assert decoder.revision == entry.after.revision


def test_texts_of_schemas_are_read_back() -> None:
    """Each text comes with its SHA-256."""
    assert Entry(SCHEMAS, False, AT, AT, SYNC, texts_payload(TEXTS)).texts() == TEXTS


def test_payloads_of_the_log_are_read_back() -> None:
    """Names, files, formats and successors are those that were written."""
    found = {one.kind: read_entry(one.encode()) for one in logged()}
    assert found[TERM].reign() == ("gateway-a", "0.2.0")
    assert found[FILE].file() == (ENROLLED, b"# \xff")
    assert found[RECORD_FORMAT].number() == 2
    assert found[HANDOVER].successor() == "gateway-\u00e4"


def test_the_entry_of_a_feed_has_no_place_in_a_log() -> None:
    """A gateway without a cluster sends index 0 and term 0."""
    assert block(begins=True).encode()[8:24] == bytes(16)


@given(st.integers(0, 4), st.integers(0, 2), st.integers(1, 10))
def test_index_and_term_fit_the_kind(index: int, term: int, kind: int) -> None:
    """Genesis is the first entry and has no term. Others have one, except those that a founder appends. A feed has neither index nor term."""
    for whole in [*entries()[:2], *logged(), Entry(SEAL, False, AT, AT, SYNC, b"")]:
        if whole.kind != kind:
            continue
        entry = Entry(
            kind, whole.begins, whole.before, whole.after, whole.marker, whole.payload, index, term, whole.origins
        )
        of_feeds = kind in {BLOCK, SEAL, SCHEMAS, INCARNATION} or (kind == PROOF and whole.origins)
        on_feed = (index, term) == (0, 0) and of_feeds
        first = (index, term, kind) == (1, 0, GENESIS)
        later = index > 1 and kind != GENESIS and (term > 0 or kind in {SEAL, INCARNATION})
        if on_feed or first or later:
            assert fields(read_entry(entry.encode())) == fields(entry)
        else:
            with pytest.raises(EntryError):
                read_entry(entry.encode())


@pytest.mark.parametrize("entry", [*entries()[2:], short_block(), Entry(PROOF, False, AT, AT, SYNC, b"", origins=b"o")])
def test_no_truncation_and_no_flipped_bit_is_an_entry(entry: Entry) -> None:
    """Each prefix, each flipped bit and each byte more is refused."""
    data = entry.encode()
    for end in range(len(data)):
        with pytest.raises(EntryError):
            read_entry(data[:end])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EntryError):
            read_entry(bytes(flipped))
    with pytest.raises(EntryError):
        read_entry(data + b"\0")


def sealed(data: bytes) -> bytes:
    """Return the bytes of an entry with a valid checksum."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "big")


@pytest.mark.parametrize(
    "wrong",
    [
        Entry(0, False, AT, AT, SYNC, b""),
        Entry(11, False, AT, AT, SYNC, b"", 5, 1),
        Entry(TERM, False, AT, AT, SYNC, b"", 5, 1),
        Entry(TERM, False, AT, AT, SYNC, term_payload("a", ""), 5, 1),
        Entry(TERM, False, AT, AT, SYNC, term_payload("a", "1") + b"x", 5, 1),
        Entry(TERM, False, AT, AT, SYNC, b"\1\xff\1a", 5, 1),
        Entry(FILE, False, AT, AT, SYNC, b"", 5, 1),
        Entry(FILE, False, AT, AT, SYNC, file_payload("maxam.toml", b""), 5, 1),
        Entry(FILE, False, AT, AT, SYNC, file_payload(ENROLLED, bytes(FILE_BYTES_MAX + 1)), 5, 1),
        Entry(FILE, False, AT, AT, SYNC, file_payload(ENROLLED, b"")[:-1], 5, 1),
        Entry(RECORD_FORMAT, False, AT, AT, SYNC, b"\0\0", 5, 1),
        Entry(RECORD_FORMAT, False, AT, AT, SYNC, b"\1", 5, 1),
        Entry(HANDOVER, False, AT, AT, SYNC, b"", 5, 1),
        Entry(HANDOVER, False, AT, AT, SYNC, b"\xff", 5, 1),
        Entry(GENESIS, False, AT, AT, SYNC, bytes(15), 1),
        Entry(PROOF, False, AT, AT, SYNC, b"x", 5, 1),
        Entry(TERM, False, START, AT, SYNC, term_payload("a", "1"), 5, 1),
        Entry(SEAL, False, AT, AT, SYNC, b"", 2**63, 1),
        Entry(SEAL, True, AT, AT, SYNC, b""),
        Entry(SEAL, False, AT, START, SYNC, b""),
        Entry(SEAL, False, AT, AT, SYNC, b"x"),
        Entry(SCHEMAS, False, AT, AT, SYNC, b""),
        Entry(SCHEMAS, False, AT, AT, SYNC, texts_payload(TEXTS)[:-1]),
        Entry(SCHEMAS, False, AT, AT, SYNC, bytes(32) + b"\0\0\0\1x"),
        Entry(SCHEMAS, False, AT, AT, SYNC, bytes(31)),
        Entry(INCARNATION, False, AT, AT, SYNC, b"0123456789ABCDEF"),
        Entry(INCARNATION, False, AT, AT, SYNC, b"01"),
        Entry(SEAL, False, AT, AT, SYNC, b"", 5, 1, b"origins"),
        Entry(PROOF, False, AT, AT, SYNC, b""),
        Entry(BLOCK, False, AT, AT, SYNC, b""),
        Entry(BLOCK, False, START, block().after, SYNC, block().payload + b"\0"),
        Entry(BLOCK, False, START, START, SYNC, block().payload),
        Entry(BLOCK, False, AT, block().after, SYNC, block().payload),
        Entry(BLOCK, False, Position(9_999, 0, 0), block().after, SYNC, block().payload),
    ],
)
def test_a_checksum_does_not_make_an_entry(wrong: Entry) -> None:
    """Contents that contradict each other are refused though the checksum is right."""
    with pytest.raises(EntryError):
        read_entry(wrong.encode())


@pytest.mark.parametrize("at", [6, 8, 23, 24, 44, 80, 83, 84])
def test_fields_of_other_releases_are_refused(at: int) -> None:
    """Another format, an index or term alone, origins and numbers out of range are refused."""
    data = bytearray(entries()[2].encode())
    data[at] = 0x80
    with pytest.raises(EntryError):
        read_entry(sealed(bytes(data)))


def read_one(data: bytes) -> wire.Frame:
    """Return the only frame of these bytes."""
    reader = wire.FrameReader()
    (frame,) = reader.feed(data)
    assert not reader.waiting
    return frame


@pytest.mark.slow
@given(st.sampled_from([wire.FEED, wire.COPY]), texts, texts, texts, positions)
def test_hello_and_welcome_are_read_back(wish: int, name: str, software: str, incarnation: str, at: Position) -> None:
    """All fields survive."""
    hello = wire.read_hello(read_one(wire.encode_hello(wire.Hello(wish, name, software, incarnation, at))).body)
    assert (hello.wish, hello.name, hello.software, hello.incarnation) == (wish, name, software, incarnation)
    assert same_position(hello.position, at)
    frame = read_one(wire.encode_welcome(wire.Welcome(name, software, "serving", incarnation, at)))
    welcome = wire.read_welcome(frame.body)
    assert (welcome.name, welcome.software, welcome.role, welcome.incarnation) == (
        name,
        software,
        "serving",
        incarnation,
    )
    assert same_position(welcome.position, at)


@given(texts, texts, positions, st.integers(0, 2**64 - 1), st.binary(max_size=50))
def test_the_other_messages_are_read_back(one: str, other: str, at: Position, number: int, data: bytes) -> None:
    """All fields survive."""
    refused = wire.read_refused(read_one(wire.encode_refused(wire.Refused(one, other, one))).body)
    assert (refused.code, refused.text, refused.elsewhere) == (one, other, one)
    at_us = number % wire.AT_US_MAX
    beat = wire.read_beat(read_one(wire.encode_beat(wire.Beat(at, at_us))).body)
    assert same_position(beat.position, at)
    assert beat.at_us == at_us
    files = [(one, number), (other, 0)]
    assert wire.read_files(read_one(wire.encode_files(files)).body) == files
    piece = wire.read_piece(read_one(wire.encode_piece(wire.Piece(one, number, data))).body)
    assert (piece.path, piece.offset, piece.data) == (one, number, data)
    assert wire.read_done(read_one(wire.encode_done(one, bytes(32))).body) == (one, bytes(32))


READERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (wire.read_hello, wire.encode_hello(wire.Hello(wire.FEED, "a", "1", "", AT))),
    (wire.read_welcome, wire.encode_welcome(wire.Welcome("b", "1", "serving", "0" * 16, AT))),
    (wire.read_refused, wire.encode_refused(wire.Refused(wire.GONE, "why", ""))),
    (wire.read_beat, wire.encode_beat(wire.Beat(AT, 5))),
    (wire.read_files, wire.encode_files([("segments/x", 5)])),
    (wire.read_done, wire.encode_done("x", bytes(32))),
]


@pytest.mark.parametrize(("read", "data"), READERS)
def test_a_message_that_is_cut_or_too_long_is_refused(read: Callable[[bytes], object], data: bytes) -> None:
    """Each prefix of a body and each byte more is refused."""
    body = data[5:]
    for end in range(len(body)):
        with pytest.raises(wire.WireError):
            read(body[:end])
    with pytest.raises(wire.WireError):
        read(body + b"\0")


def test_unknown_versions_wishes_types_and_sizes_are_refused() -> None:
    """A peer of another release, or none of maxam, is refused at once."""
    hello = bytearray(wire.encode_hello(wire.Hello(wire.FEED, "a", "1", "", AT)))[5:]
    for at in (1, 2):
        other = bytearray(hello)
        other[at] = 99
        with pytest.raises(wire.WireError):
            wire.read_hello(bytes(other))
    for data in (b"GET / HTTP/1.1\r\n", b"\0\0\0\0\x63", b"\0\xff\xff\xff\5", b"\xff\xff\xff\xff\4"):
        with pytest.raises(wire.WireError):
            wire.FrameReader().feed(data)


@given(st.lists(st.integers(0, 40)), st.integers(1, 9))
def test_frames_do_not_depend_on_how_bytes_arrive(sizes: list[int], step: int) -> None:
    """The same frames come out of pieces of any size."""
    frames = [wire.frame(wire.ENTRY, bytes([at % 256]) * size) for at, size in enumerate(sizes)]
    data = b"".join(frames)
    reader = wire.FrameReader()
    found = [one for at in range(0, len(data), step) for one in reader.feed(data[at : at + step])]
    assert [wire.frame(one.type, one.body) for one in found] == frames
    assert not reader.waiting
