"""Splicing: rows of one schema each, read back by fastavro, hold what the records held."""

import io
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.content import pack, read_unsigned
from maxam.journal.encoding import SYNC_BYTES, Encoder, Position
from maxam.journal.splice import Rows, Splicer
from maxam.records import (
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Identity,
    OwedRecord,
    Record,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    Validation,
    WillEndRecord,
    WillRecord,
)

SYNC = b"s" * SYNC_BYTES
ALL = 1 << 62


def block(records: list[Record], before: int = 0) -> tuple[bytes, int]:
    """Give a block's data and count as a scanner does."""
    data = Encoder(Position(before, 0, 0), SYNC).encode(records).data
    count, place = read_unsigned(data, 0)
    _, place = read_unsigned(data, place)
    return data[place:-SYNC_BYTES], count >> 1


def row_schema(*fields: tuple[str, Any]) -> Any:
    """Make the schema of rows that have these fields after the publisher."""
    head: list[tuple[str, Any]] = [
        ("revision", "long"),
        ("accepted_at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("kind", {"type": "enum", "name": "k", "symbols": ["unknown", "value", "delete"]}),
        ("destination", "string"),
        ("publisher", "string"),
    ]
    made = [{"name": name, "type": of} for name, of in (*head, *fields)]
    return fastavro.parse_schema({"type": "record", "name": "row", "fields": made})


UNTYPED = row_schema(
    ("encoding", "string"),
    ("schema", "string"),
    ("schema_version", "string"),
    ("schema_fingerprint", "bytes"),
    ("value", ["null", "bytes"]),
)


def read(rows: Rows, schema: Any) -> list[Any]:
    """Read the rows there are."""
    count = rows.count()
    stream = io.BytesIO(b"".join(rows.take()))
    found = [fastavro.schemaless_reader(stream, schema, None) for _ in range(count)]
    assert stream.read() == b""
    return found


class Taken:
    """Rows by schema; `unknown` and none are untyped."""

    def __init__(self, convert: Callable[[bytes], bytes | None] | None = None) -> None:
        """Begin with none."""
        self.typed: dict[str, Rows] = {}
        self.untyped = Rows(False)
        self.asked: list[tuple[str, str, bytes, bool]] = []
        self._convert = convert

    def choose(self, schema: str, version: str, fingerprint: bytes, deleted: bool) -> Rows | None:
        """Answer a splicer."""
        self.asked.append((schema, version, fingerprint, deleted))
        if schema == "unwanted":
            return None
        if schema in {"", "unknown"}:
            return self.untyped
        return self.typed.setdefault(schema, Rows(True, self._convert))

    def splicer(self, revision: int = 0, after: int = 0, until: int = ALL) -> Splicer:
        """Make a splicer that puts rows here."""
        return Splicer(revision, after, until, self.choose, lambda _: self.untyped)


def change(revision: int, validation: Validation, body: bytes, **other: Any) -> Change:
    """Make a change."""
    filled: dict[str, Any] = {
        "at": revision * 10,
        "destination": b"X/a",
        "deleted": False,
        "by": Identity("p", "f" * 64),
        "headers": (),
    } | other
    return Change(
        revision,
        filled["at"],
        filled["destination"],
        filled["deleted"],
        filled["by"],
        validation,
        *pack(filled["headers"], body),
    )


validations = st.builds(
    Validation,
    st.sampled_from(["datum", "single-object", "envelope"]),
    st.sampled_from(["t.A", "t.B", "unknown", "unwanted", ""]),
    st.sampled_from(["1.0", "1.1", ""]),
    st.binary(max_size=32),
    st.integers(0, 200),
)
identities = st.builds(Identity, st.text(max_size=80), st.sampled_from(["f" * 64, "", "é"]))
short = st.binary(max_size=6)


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[Record]]:
    """Make records that may follow each other, the session's between them."""
    before = draw(st.sampled_from([0, 61, 8190, 8191, 1_048_570, (1 << 40) - 3]))
    revision, at = before, 0
    known = draw(st.lists(validations, min_size=1, max_size=3))
    people = draw(st.lists(identities, min_size=1, max_size=2))
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 12))):
        at += draw(st.sampled_from([0, 0, 1, 1 << 45]))
        kind = draw(st.sampled_from("vvvvddsuaowex"))
        positions = tuple(draw(st.lists(st.tuples(short, st.integers(0, before)), max_size=2)))
        if kind in "vd":
            revision += 1
            of = draw(st.sampled_from(known))
            body = bytes(of.value_offset) + draw(st.binary(max_size=300))
            length = draw(st.none() | st.integers(0, len(body) - of.value_offset))
            if length is not None:
                of = Validation(
                    of.encoding, of.schema, of.schema_version, of.schema_fingerprint, of.value_offset, length
                )
            headers = tuple(draw(st.lists(st.tuples(short, short), max_size=2)))
            records.append(
                change(
                    revision,
                    of,
                    body,
                    at=at,
                    destination=draw(st.sampled_from([b"X/a", b"X/" + b"b" * 90])),
                    deleted=kind == "d",
                    by=draw(st.sampled_from(people)),
                    headers=headers,
                )
            )
        elif kind == "s":
            records.append(
                SubscriptionRecord(
                    at, "p", "c" * 70, b"s", b"X/*", draw(st.booleans()), draw(st.none() | st.just(before))
                )
            )
        elif kind == "u":
            records.append(UnsubscriptionRecord(at, "p", "c", b"s"))
        elif kind == "a":
            records.append(AcknowledgementRecord(at, "p", "c", b"s", positions))
        elif kind == "o":
            records.append(OwedRecord(at, "p", "c", b"s", positions))
        elif kind == "w":
            publisher = Identity("p" * 70, draw(st.sampled_from(["", "f" * 64])))
            headers = ((b"h", b"v"),) * draw(st.integers(0, 1))
            records.append(WillRecord(at, "c", publisher, b"X/w", *pack(headers, b"w" * draw(st.integers(0, 200))), 3))
        elif kind == "e":
            records.append(WillEndRecord(at, "p", "c"))
        else:
            records.append(SessionEndRecord(at, "p", "c"))
    return before, records


@pytest.mark.slow
@given(streams(), st.integers(0, 12), st.integers(0, 12))
def test_rows_hold_what_records_held(stream: tuple[int, list[Record]], after: int, until: int) -> None:
    """For any records of a block in any order, each change within the bounds is one row of its schema.

    Its value is the bytes of its datum. A change without a schema has its body. Unwanted changes are in no row.
    """
    before, records = stream
    after, until = before + after, before + until
    taken = Taken()
    splicer = taken.splicer(before, after, until)
    splicer.splice(*block(records, before))
    changes = [record for record in records if isinstance(record, Change)]
    assert splicer.revision == before + len(changes)

    typed: dict[str, list[Any]] = {}
    untyped: list[Any] = []
    for each in changes:
        if not after < each.revision <= until or each.validation.schema == "unwanted":
            continue
        validation = each.validation
        row = {
            "revision": each.revision,
            "kind": "delete" if each.deleted else "value",
            "destination": each.destination.decode(),
            "publisher": each.publisher.principal,
            "schema_version": validation.schema_version,
        }
        if validation.schema in {"", "unknown"}:
            more = {
                "encoding": validation.encoding,
                "schema": validation.schema,
                "schema_fingerprint": validation.schema_fingerprint,
            }
            untyped.append(row | more | {"value": None if each.deleted else each.body})
        else:
            end = len(each.body) if validation.value_length < 0 else validation.value_offset + validation.value_length
            datum = each.body[validation.value_offset : end]
            # the datum is the content of an Avro `fixed` of its length, so that nothing but its bytes is compared
            typed.setdefault(validation.schema, []).append((row, None if each.deleted else datum))

    found = read(taken.untyped, UNTYPED)
    for row in found:
        del row["accepted_at"]
    assert found == untyped
    assert set(typed) <= set(taken.typed)
    for schema, rows in taken.typed.items():
        expected = typed.get(schema, [])
        data = b"".join(rows.take())
        for row, datum in expected:
            data = check_row(data, row, datum)
        assert data == b""


HEAD = row_schema(("schema_version", "string"))


def check_row(data: bytes, row: dict[str, Any], datum: bytes | None) -> bytes:
    """Compare the row at the front; give what is after it."""
    stream = io.BytesIO(data)
    head = fastavro.schemaless_reader(stream, HEAD, None)
    assert isinstance(head, dict)
    del head["accepted_at"]
    assert head == row
    rest = data[stream.tell() :]
    if datum is None:
        assert rest[:1] == b"\0"
        return rest[1:]
    assert rest[: 1 + len(datum)] == b"\2" + datum
    return rest[1 + len(datum) :]


def test_rows_are_avro() -> None:
    """Typed values of a record type, a deletion among them, in two blocks."""
    taken = Taken()
    splicer = taken.splicer()
    validation = Validation("single-object", "t.A", "1.0", b"12345678", 10)
    splicer.splice(*block([change(1, validation, bytes(10) + b"\x06"), change(2, UNJUDGED, b"x")]))
    splicer.splice(*block([change(3, validation, b"", deleted=True)], 2))
    schema = row_schema(
        ("schema_version", "string"),
        ("value", ["null", {"type": "record", "name": "n1", "fields": [{"name": "a", "type": "int"}]}]),
    )
    rows = read(taken.typed["t.A"], schema)
    assert [(row["revision"], row["kind"], row["value"]) for row in rows] == [
        (1, "value", {"a": 3}),
        (3, "delete", None),
    ]
    assert rows[0]["accepted_at"].timestamp() == 10e-6
    assert taken.typed["t.A"].take() == []


def test_where_changes_go_is_asked_once() -> None:
    """For each publisher and validation, however many destinations there are."""
    taken = Taken()
    validation = Validation("datum", "t.A", "1.0", b"12345678")
    changes: list[Record] = [change(r, validation, b"\2", destination=b"X/%d" % (r % 5)) for r in range(1, 50)]
    taken.splicer().splice(*block(changes))
    assert taken.asked == [("t.A", "1.0", b"12345678", False)]


def test_a_datum_can_be_made_another_or_left_untyped() -> None:
    """The result of `convert` is the row's value; where it returns None, the body goes to the untyped rows and the revision is reported."""
    taken = Taken(lambda datum: None if datum == b"\6" else datum + b"!")
    splicer = taken.splicer()
    validation = Validation("datum", "t.A", "1.0", b"12345678")
    splicer.splice(*block([change(1, validation, b"\2"), change(2, validation, b"\6")]))
    assert b"".join(taken.typed["t.A"].take()).endswith(b"\2\2!")
    (row,) = read(taken.untyped, UNTYPED)
    assert (row["revision"], row["schema"], row["value"]) == (2, "t.A", b"\6")
    assert splicer.unreadable == [2]


def test_a_gap_is_refused() -> None:
    """Revisions follow each other; so does what follows the last record."""
    validation = Validation("datum", "t.A", "1.0", b"12345678")
    data, count = block([change(5, validation, b"\2")], 4)
    with pytest.raises(ValueError, match="revision 5 after 3"):
        Taken().splicer(3).splice(data, count)
    with pytest.raises(ValueError, match="bytes follow"):
        Taken().splicer(4).splice(data + b"\0", count)


@pytest.mark.slow
@given(st.data())
def test_bytes_that_are_no_records_raise(data: st.DataObject) -> None:
    """A flipped byte in a block gives rows or one of the two errors, never another and never an endless loop."""
    before, records = data.draw(streams())
    whole, count = block(records, before)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes((whole[at] ^ data.draw(st.integers(1, 255)),)) + whole[at + 1 :]
    with suppress(ValueError, IndexError):
        Taken().splicer(before).splice(flipped, count)
