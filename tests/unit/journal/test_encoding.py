"""The journal's bytes: every kind of record comes back, and any Avro reader takes them."""

import io
import json

import avro.datafile
import avro.io
import fastavro
import pytest

from maxam.content import read_unsigned
from maxam.errors import JournalDamagedError
from maxam.journal.decoding import Decoder
from maxam.journal.encoding import SCHEMA, START, Encoder, Position, end_block, header
from maxam.journal.scan import Scanner
from maxam.records import Change, Identity, Named, Record, SequencesRecord, Validation
from tests.support.journal_records import DATUM, NOW_US, SYNC, change, one_of_each, plain, plain_all


def container(*batches: list[Record], start: Position = START, end: bool = True) -> bytes:
    """Return a segment of one block a batch."""
    encoder = Encoder(start, SYNC)
    blocks = [encoder.encode(batch).data for batch in batches]
    return header(start, SYNC, snapshot=False) + b"".join(blocks) + (end_block(encoder.position, SYNC) if end else b"")


def scanned(data: bytes) -> list[Record]:
    """Return all records of a segment."""
    scanner = Scanner("segment", len(data), lambda offset, length: data[offset : offset + length])
    decoder = Decoder(scanner.start.revision, scanner.start.accepted_at_us)
    found: list[Record] = []
    while (records := scanner.records(decoder)) is not None:
        found += records
    return found


def test_every_kind_of_record_comes_back() -> None:
    """Decoding what was encoded gives equal records, in one block and in one block each."""
    records = one_of_each()
    assert plain_all(scanned(container(records))) == plain_all(records)
    assert plain_all(scanned(container(*[[record] for record in records]))) == plain_all(records)


def test_changes_get_their_targets_and_share_their_destinations() -> None:
    """A topic that is known before a block is the target of its changes in the block; all else is read as without it."""
    records: list[Record] = [change(1, b"X/a"), change(2, b"X/b"), change(3, b"X/a", deleted=True)]
    data = container(records[:2], records[2:])
    scanner = Scanner("segment", len(data), lambda offset, length: data[offset : offset + length])
    known: dict[bytes, Named] = {}
    decoder = Decoder(0, 0, known)
    first = scanner.records(decoder)
    known[b"X/a"] = Named(b"X/a")
    last = scanner.records(decoder)
    assert first is not None
    assert last is not None
    found = [one for one in first + last if type(one) is Change]
    assert [one.target for one in found] == [None, None, known[b"X/a"]]
    assert found[2].destination is known[b"X/a"].destination
    for one in found:
        one.target = None
    assert plain_all([*found]) == plain_all(records)


@pytest.mark.parametrize(
    "first", [1, 62, 63, 64, 8190, 8191, 8192, 8193, 16384, 2**20 - 2, 2**21 - 20, 2**34, 2**40 - 30]
)
def test_revisions_of_any_size_come_back(first: int) -> None:
    """Changes come back with their revisions and times wherever the numbers grow by a byte."""
    records: list[Record] = [change(first + n, at_us=NOW_US + n // 3) for n in range(40)]
    found = scanned(container(records[:20], records[20:], start=Position(first - 1, 0, 7)))
    assert plain_all([*found]) == plain_all(records)


def test_a_body_of_negative_length_is_refused() -> None:
    """A body whose length is negative is not read: a change keeps what it was read from, and would be written again so."""
    block = Encoder(START, SYNC).encode([change(1, body=b"body", headers=((b"n", b"v"),))]).data
    count, place = read_unsigned(block, 0)
    length, place = read_unsigned(block, place)
    contents = block[place : place + (length >> 1)]
    assert Decoder(0, 0).decode(contents, count >> 1)
    assert contents.count(b"\x08body") == 1
    with pytest.raises(ValueError, match="negative"):
        Decoder(0, 0).decode(contents.replace(b"\x08body", b"\x09body"), 1)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 4095, 4096, 8191, 8192, 16383, 16384, 65535, 65536])
@pytest.mark.parametrize("deleted", [False, True])
def test_headers_of_any_size_come_back(length: int, deleted: bool) -> None:
    """Headers of values and of deletes come back wherever their lengths or their number grow by a byte, and are written as they were."""
    body = b"" if deleted else b"b" * (2**20 + length)
    records: list[Record] = [
        change(1, headers=((b"", b""),), body=body, deleted=deleted),
        change(2, headers=((b"n" * length, b""), (b"", b"v" * length)), body=body, deleted=deleted),
        change(3, headers=((b"n", b"v"),) * (length >> 6), body=body, deleted=deleted),
    ]
    found = scanned(container(records))
    assert plain_all([*found]) == plain_all(records)
    assert [(one.headers, one.body) for one in found if isinstance(one, Change)] == [
        (one.headers, body) for one in records if isinstance(one, Change)
    ]
    assert container(found) == container(records)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 4095, 4096, 8191, 8192, 2**20])
def test_bodies_of_any_size_come_back(length: int) -> None:
    """Bodies and topics come back wherever their lengths grow by a byte."""
    topic = b"t" * min(length + 1, 512)
    records: list[Record] = [change(1, topic, b"b" * length), change(2, topic, b"b" * length, headers=((b"n", b"v"),))]
    assert plain_all(scanned(container(records))) == plain_all(records)


@pytest.mark.parametrize("lengths", [(70, 1, 1, 1), (1, 70, 1, 1), (1, 1, 70, 1), (1, 1, 1, 70), (127, 127, 127, 127)])
def test_long_names_come_back_at_the_end_of_a_block(lengths: tuple[int, int, int, int]) -> None:
    """Names whose length takes two bytes come back also where hardly anything follows them."""
    encoding, schema, version, fingerprint = ("n" * length for length in lengths)
    validation = Validation(encoding, schema, version, fingerprint.encode())
    records: list[Record] = [change(1, body=b"1", validation=validation, publisher=Identity(schema, version))]
    assert plain_all(scanned(container(records))) == plain_all(records)


@pytest.mark.parametrize(
    "validation",
    [
        Validation("datum", "egm.S_v1", "", b""),
        Validation("envelope", "egm.S_v1", "", b""),
        Validation("envelope", "egm.S_v1", "1.0", b"f" * 32, 2, 5, tombstone=True),
        Validation("envelope", "", "", b"", 0, 0, tombstone=True),
    ],
)
def test_deletes_come_back(validation: Validation) -> None:
    """A delete by an empty body has the schema that its topic's values would have, one by an envelope the one that judged it."""
    (found,) = scanned(container([change(1, body=b"", validation=validation, deleted=True)]))
    assert isinstance(found, Change)
    names = ("encoding", "schema", "schema_version", "schema_fingerprint", "value_offset", "tombstone")
    assert [getattr(found.validation, name) for name in names] == [getattr(validation, name) for name in names]


def test_equal_values_are_shared() -> None:
    """Identities, validations and topics that are equal are one object after decoding."""
    batches: list[list[Record]] = [
        [change(n, b"topic" * 2, headers=((b"name" * 2, b"v"),), publisher=Identity("a", "f"), validation=validation)]
        for n, validation in enumerate(
            [DATUM, Validation("datum", "egm.EGMStatus_v1", "1.2", DATUM.schema_fingerprint)], 1
        )
    ]
    one, two = scanned(container(*batches))
    assert isinstance(one, Change)
    assert isinstance(two, Change)
    assert one.publisher is two.publisher
    assert one.validation is two.validation
    assert one.destination is two.destination


def rows(data: bytes) -> list[dict[str, object]]:
    """Return what fastavro reads."""
    return list(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]  # records are dicts here


def test_fastavro_reads_every_field() -> None:
    """To fastavro a segment is an ordinary container with the fields of files.md in their order."""
    data = container(one_of_each())
    found = rows(data)
    assert [row["kind"] for row in found] == [
        *["subscription", "value", "delete", "value", "value", "delete", "value"],
        *[
            "acknowledgement",
            "owed",
            "subscription",
            "unsubscription",
            "value",
            "session_end",
            "acknowledgement",
            *["will", "will", "will_end", "will"],
            "end",
        ],
    ]
    assert [row["revision"] for row in found] == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7]
    row = found[4]
    body, offset, length = row["body"], row["value_offset"], row["value_length"]
    assert isinstance(body, bytes)
    assert isinstance(offset, int)
    assert isinstance(length, int)
    assert body[offset : offset + length] == b"datum"
    assert found[3]["value_length"] == 4990, "all the rest is written as a number"
    assert found[3]["headers"] == [{"name": "a", "value": "1"}, {"name": "ü", "value": ""}]
    assert found[3]["check"] is None
    assert found[-2]["check"] is not None
    assert list(row) == [
        *["revision", "accepted_at", "kind", "destination", "publisher", "fingerprint", "encoding", "schema"],
        *["schema_version", "schema_fingerprint", "value_offset", "value_length", "headers", "body", "disposition"],
        *["result", "reason", "client_id", "subscription", "eager", "low_water", "positions", "check"],
    ]
    assert found[9]["low_water"] == 5
    will = found[-5]
    assert (will["publisher"], will["client_id"], will["destination"]) == ("alice", "pump", "X/EGM.Q.1.EGMStatus")
    assert (will["fingerprint"], will["body"], will["low_water"]) == ("a1" * 32, b"\x06bye", 3600)
    assert will["headers"] == [{"name": "a", "value": "1"}]
    assert found[7]["positions"] == [
        {"destination": "X/EGM.Q.1.EGMStatus", "revision": 4},
        {"destination": "X/EGM.Q." + "9" * 500 + ".EGMStatus", "revision": 2},
    ]


def test_the_avro_package_reads_the_same() -> None:
    """The reference implementation and fastavro read equal rows."""
    data = container(one_of_each(), [change(8, at_us=NOW_US + 2_000_000)])
    with avro.datafile.DataFileReader(io.BytesIO(data), avro.io.DatumReader()) as reader:
        assert list(reader) == rows(data)


def test_fastavro_writes_the_same_records() -> None:
    """Each record is, byte for byte, what fastavro writes for the same row."""
    data = container(one_of_each())
    schema = fastavro.parse_schema(json.loads(SCHEMA))
    place = len(header(START, SYNC, snapshot=False))
    for block in fastavro.block_reader(io.BytesIO(data)):
        out = io.BytesIO()
        for row in block:
            fastavro.schemaless_writer(out, schema, row)
        _, place = read_unsigned(data, place)
        length, place = read_unsigned(data, place)
        assert data[place : place + (length >> 1)] == out.getvalue()
        place += (length >> 1) + 16


def test_sources_come_back_in_a_snapshot() -> None:
    """Between changes, at the revision of a delete that the snapshot lacks; their numbers are no revisions."""
    records: list[Record] = [
        change(3),
        SequencesRecord(3, NOW_US, b"X/a", ((b"p", 7), (b"q r", 0))),
        SequencesRecord(5, NOW_US, b"X/gone", ((b"p", 2**63 - 1),)),
        change(6),
    ]
    block = Encoder(START, SYNC, gapless=False).encode(records)
    decoder = Decoder(0, 0)
    decoder.gapless = False
    data = header(START, SYNC, snapshot=True) + block.data
    scanner = Scanner("x", len(data), lambda offset, length: data[offset : offset + length])
    found = scanner.records(decoder)
    assert found is not None
    told = [(one.revision, one.destination, one.sequences) for one in found if isinstance(one, SequencesRecord)]
    assert told == [(3, b"X/a", ((b"p", 7), (b"q r", 0))), (5, b"X/gone", ((b"p", 2**63 - 1),))]
    assert (decoder.revision, decoder.mentioned) == (6, 0)
    assert [row["kind"] for row in rows(data)] == ["value", "sequences", "sequences", "value"]


@pytest.mark.parametrize(
    "records",
    [
        [],
        [change(2)],
        [change(1), change(1)],
        [change(1), change(3)],
        [change(1, at_us=5), change(2, at_us=4)],
    ],
)
def test_wrong_records_are_refused_without_a_trace(records: list[Record]) -> None:
    """Gaps, repeats, time running backwards and empty batches are errors, after which the right record still fits."""
    encoder = Encoder(START, SYNC)
    with pytest.raises(ValueError, match=r"after|no records"):
        encoder.encode(records)
    assert encoder.position is START
    assert encoder.encode([change(1)]).after.revision == 1


def test_a_block_of_another_place_is_refused() -> None:
    """A whole block that was left out, repeated or moved is damage, not a torn tail."""
    encoder = Encoder(START, SYNC)
    start = header(START, SYNC, snapshot=False)
    one, two, three = (encoder.encode([change(n)]).data for n in (1, 2, 3))
    for data in (start + two, start + one + three, start + one + one, start + one + two + two):
        with pytest.raises(JournalDamagedError, match="does not follow"):
            scanned(data)


def test_settling_blocks_are_known() -> None:
    """Only a block of nothing but acknowledgements, unsubscriptions, and ends of sessions and wills is settling."""
    for record in one_of_each():
        start = Position(record.revision - 1 if isinstance(record, Change) else 0, 0, 0)
        block = Encoder(start, SYNC).encode([record])
        name = str(plain(record))
        assert block.settling == any(kind in name for kind in ("Acknow", "Unsub", "SessionEnd", "WillEnd"))
