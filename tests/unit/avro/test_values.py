"""Bodies become JSON by their schema, whatever odd leaves they hold."""

import io
import json
import time

import fastavro
import pytest

from maxam.avro.json.decoding import ValueDecodeError, decode_value, iso_time
from maxam.records import Validation

DATUM = Validation("datum", "t.T_v1", "1.0", b"")


def encoded(schema: object, value: object) -> bytes:
    """Encode with fastavro, without logical types, so that a test can write the base value that it means."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def shown(schema: object, value: object) -> object:
    """Round trip a value whose schema has logical types through its plain base types."""
    return decode_value(json.dumps(schema).encode(), encoded(_plain(schema), value), DATUM)


def _plain(schema: object) -> object:
    if isinstance(schema, dict):
        if schema == {"type": "egm.At"}:
            return "egm.At"  # fastavro takes no wrapped references
        return {key: _plain(item) for key, item in schema.items() if key != "logicalType"}
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    return schema


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("long", -(2**53), -(2**53)),
        ("long", -(2**63), str(-(2**63))),
        ("double", 1.5, 1.5),
        ("double", float("nan"), "NaN"),
        ("float", float("-inf"), "-Infinity"),
        ("string", "\x1b[31m", "\x1b[31m"),
        ("bytes", b"\x00\xff", "AP8="),
        ({"type": "bytes"}, b"\x00", "AA=="),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x00\xff", "AP8="),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "bytes"}, [b"\x00"], ["AA=="]),
        ({"type": "map", "values": "double"}, {"k": float("inf")}, {"k": "Infinity"}),
        (["null", "bytes"], b"\x00", "AA=="),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, b"\x04\xd2", "12.34"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, b"\xff", "-0.01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, b"", "0"),
        ({"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 2}, b"\x05", "5"),
        ({"type": "int", "logicalType": "date"}, 20_000, "2024-10-04"),
        ({"type": "int", "logicalType": "date"}, 2**31 - 1, 2**31 - 1),
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, "01:02:03.004"),
        ({"type": "int", "logicalType": "time-millis"}, -1, -1),
        ({"type": "long", "logicalType": "time-micros"}, 86_400_000_000, 86_400_000_000),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_001, "2023-11-14T22:13:20.001Z"),
        ({"type": "long", "logicalType": "timestamp-millis"}, -1, "1969-12-31T23:59:59.999Z"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 2**62, str(2**62)),
        ({"type": "long", "logicalType": "timestamp-millis"}, -62_135_596_800_000, -62_135_596_800_000),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1, "1970-01-01T00:00:00.000000001Z"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 1, "1970-01-01T00:00:00.000001"),
        ({"type": "string", "logicalType": "uuid"}, "not one", "not one"),
        ({"type": "string", "logicalType": "made-up"}, "x", "x"),
        ({"type": "fixed", "name": "P", "size": 12, "logicalType": "duration"}, b"\1\0\0\0\2\0\0\0\3\0\0\0",
         {"months": 1, "days": 2, "milliseconds": 3}),
    ],
)  # fmt: skip
def test_every_leaf_has_one_json_form(schema: object, value: object, expected: object) -> None:
    """A leaf shows in the form that the module documents, and odd ones as their base type."""
    result = shown(schema, value)
    assert result == expected
    assert json.loads(json.dumps(result, allow_nan=False)) == expected


RECORDS = {
    "type": "record",
    "name": "egm.Meters_v1",
    "fields": [
        {"name": "at", "type": {"type": "record", "name": "egm.At", "fields": [{"name": "b", "type": "bytes", "default": "x"}]}},
        {"name": "again", "type": {"type": "egm.At"}},
        {"name": "meters", "type": ["null", "egm.At", {"type": "record", "name": "egm.X", "fields": [{"name": "n", "type": "int"}]}]},
        {"name": "next", "type": ["null", "egm.Meters_v1"], "default": None},
    ],
}  # fmt: skip


def test_a_record_out_of_a_union_of_several_is_named() -> None:
    """Union branches that are named types show their name where the union has several of them, and only there."""
    inner = {"at": {"b": b"\0"}, "again": {"b": b""}, "meters": ("egm.X", {"n": 7}), "next": None}
    value = {"at": {"b": b"\1"}, "again": {"b": b"\2"}, "meters": ("egm.At", {"b": b""}), "next": inner}
    assert shown(RECORDS, value) == {
        "at": {"b": "AQ=="},
        "again": {"b": "Ag=="},
        "meters": {"egm.At": {"b": ""}},
        "next": {"at": {"b": "AA=="}, "again": {"b": ""}, "meters": {"egm.X": {"n": 7}}, "next": None},
    }


def test_personal_fields_can_be_left_out() -> None:
    """Fields with `"pii": true` are left out wherever their record stands, though their own type is defined there."""
    name = {"name": "name", "type": ["null", "string"], "pii": True}
    person = {"type": "record", "name": "P", "fields": [name, {"name": "role", "type": "int", "pii": False}]}
    other = {"type": "record", "name": "Q", "fields": [{"name": "n", "type": "int"}]}
    fields: list[dict[str, object]] = [
        {"name": "owner", "type": ["null", person], "pii": True},
        {"name": "either", "type": ["null", "P", other]},
        {"name": "list", "type": {"type": "array", "items": "P"}},
        {"name": "map", "type": {"type": "map", "values": ["P", "null"]}},
    ]
    schema = {"type": "record", "name": "T_v1", "namespace": "t", "fields": fields}
    p = {"name": "x", "role": 1}
    stream = io.BytesIO()
    value = {"owner": p, "either": ("t.P", p), "list": [p, p], "map": {"a": p, "b": None}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    text, validation = json.dumps(schema).encode(), Validation("datum", "t.T_v1", "1.0", b"")
    assert decode_value(text, stream.getvalue(), validation) == value | {"either": {"t.P": p}}
    bare = {"role": 1}
    assert decode_value(text, stream.getvalue(), validation, without_pii=True) == {
        "either": {"t.P": bare},
        "list": [bare, bare],
        "map": {"a": bare, "b": None},
    }


def test_the_datum_is_taken_out_of_the_body() -> None:
    """Offset and length of the validation are those of the datum in the body."""
    validation = Validation("envelope", "t.T_v1", "1.0", b"", value_offset=3, value_length=2)
    assert decode_value(b'"string"', b"abc\x02xdef", validation) == "x"


@pytest.mark.parametrize(
    ("schema", "body", "problem"),
    [
        (b'"string"', b"\x02xy", "1 byte left over"),
        (b'"string"', b"\x02", "EOFError|ValueError|IndexError"),
        (b'"string"', b"\x02\xff", "UnicodeDecodeError"),
        (b'["null"]', b"\x09", "IndexError|TypeError"),
        (b'"nonesuch"', b"", "schema cannot be used"),
        (b"{", b"", "schema cannot be used"),
    ],
)
def test_what_cannot_be_decoded_says_why(schema: bytes, body: bytes, problem: str) -> None:
    """Text and body that do not belong together raise ValueDecodeError, nothing else."""
    with pytest.raises(ValueDecodeError, match=problem):
        decode_value(schema, body, DATUM)


def test_a_huge_decimal_costs_nothing() -> None:
    """A decimal too long to turn into text in linear time shows as base64."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    begin = time.process_time()
    assert isinstance(shown(schema, b"\x7f" * 200_000), str)
    assert time.process_time() - begin < 1.0


def test_times_are_utc() -> None:
    """Microseconds since the epoch show as ISO 8601 with Z, and as a number where no year fits."""
    assert iso_time(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert iso_time(2**62) == str(2**62)
