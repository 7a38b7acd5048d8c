"""JSON becomes Avro by its schema: every form that `values` shows, and clear errors for what is none."""

import json
import math
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.avro.json.decoding import decode_value
from maxam.avro.json.encoding import encode_body, encode_value, envelope, read_json
from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.registry import load_registry
from maxam.avro.registry_file import FINGERPRINTS
from maxam.avro.rule import ENCODINGS, NONE
from maxam.avro.schema import Type, parse_schema
from maxam.avro.source import read_source
from maxam.avro.walker import Walker
from maxam.records import Validation
from maxam.schema_tools.tree import example, read_tree

DATUM = Validation("datum", "t.T_v1", "1.0", b"")


def text_of(schema: object) -> bytes:
    """Return the self-contained text of a schema."""
    return parse_schema(read_source("t", json.dumps(schema).encode())).text


def type_of(schema: object) -> Type:
    """Return a parsed schema."""
    return parse_schema(read_source("t", json.dumps(schema).encode())).type


def round_trip(schema: object, value: object) -> Any:
    """Encode JSON text and decode it as the console would; the walker must accept what lies between."""
    text = text_of(schema)
    datum = encode_value(type_of(schema), read_json(json.dumps(value).encode(), "value"))
    assert Walker(parse_schema(read_source("t", text)).type).explain(datum, 0, len(datum)) is None
    return decode_value(text, datum, DATUM)


def logical(base: str, kind: str, **more: object) -> dict[str, object]:
    """Return a logical type."""
    return {"type": base, "logicalType": kind, **more}


MONEY = logical("bytes", "decimal", precision=9, scale=2)
ENUM = {"type": "enum", "name": "e.E", "symbols": ["RED", "GREEN"]}
A = {"type": "record", "name": "n.A", "fields": [{"name": "x", "type": "int"}]}
B = {
    "type": "record",
    "name": "n.B",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 7}],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "n",
    "fields": [{"name": "leaf", "type": "string"}, {"name": "next", "type": ["null", "Tree"], "default": None}],
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("int", -(2**31)),
        ("long", 2**53),
        ("long", str(2**53 + 1)),
        ("long", str(-(2**63))),
        ({"type": "long", "logicalType": "timestamp-micros"}, str(2**63 - 1)),
        (["null", "long"], str(2**63 - 1)),
        (["string", "long"], {"long": str(2**63 - 1)}),
        (["bytes", "long", "double"], {"long": str(2**63 - 1)}),
        (["string", "long"], str(2**63 - 1)),
        ("double", 1.5),
        ("double", -0.1),
        ("float", "NaN"),
        ("double", "-Infinity"),
        ("string", "ü\x00"),
        ("bytes", "AP8="),
        ({"type": "fixed", "name": "F", "size": 2}, "AP8="),
        (ENUM, "GREEN"),
        (MONEY, "12.34"),
        (MONEY, "-0.01"),
        (MONEY, "0.00"),
        (MONEY, "9999999.99"),
        (logical("fixed", "decimal", name="D", size=16, precision=30, scale=0), "-123456789012345678901234567890"),
        (logical("int", "date"), "2024-02-29"),
        (logical("int", "date"), 2**31 - 1),
        (logical("int", "time-millis"), "23:59:59.999"),
        (logical("int", "time-millis"), -1),
        (logical("long", "time-micros"), "00:00:00.000001"),
        (logical("long", "timestamp-millis"), "1969-12-31T23:59:59.999Z"),
        (logical("long", "timestamp-micros"), "9999-12-31T23:59:59.999999Z"),
        (logical("long", "timestamp-nanos"), "2026-11-21T12:00:00.000000001Z"),
        (logical("long", "local-timestamp-millis"), "2026-11-21T12:00:00.000"),
        (logical("string", "uuid"), "123e4567-e89b-42d3-a456-426614174000"),
        (logical("fixed", "uuid", name="U", size=16), "123e4567-e89b-42d3-a456-426614174000"),
        (logical("fixed", "duration", name="P", size=12), {"months": 1, "days": 2, "milliseconds": 2**32 - 1}),
        ({"type": "array", "items": "bytes"}, ["AA==", ""]),
        ({"type": "array", "items": "null"}, [None, None]),
        ({"type": "map", "values": "double"}, {"k": "Infinity", "": 0.5}),
        (["null", "string"], None),
        (["null", "string"], "x"),
        (["null", "double", "long"], 5),
        (["null", A], {"x": 1}),
        (["null", A, B], {"n.A": {"x": 1}}),
        (["null", A, B], {"n.B": {"x": 1, "y": 2}}),
        (["null", {"type": "map", "values": "int"}], {"null": 1}),
        (TREE, {"leaf": "a", "next": {"leaf": "b", "next": None}}),
    ],
)
def test_what_values_shows_comes_back(schema: object, value: object) -> None:
    """Every JSON form that the console shows encodes to a valid datum that shows the same."""
    assert round_trip(schema, value) == value


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        (MONEY, 12.3, "12.30"),
        (MONEY, 7, "7.00"),
        (MONEY, "1.5000", "1.50"),
        (logical("long", "timestamp-millis"), "2026-11-21T12:00:00Z", "2026-11-21T12:00:00.000Z"),
        (logical("long", "timestamp-millis"), "2026-11-21T12:00:00.5+10:00", "2026-11-21T02:00:00.500Z"),
        (logical("long", "timestamp-millis"), "2026-11-20T23:00:00-01:30", "2026-11-21T00:30:00.000Z"),
        (logical("long", "timestamp-millis"), 0, "1970-01-01T00:00:00.000Z"),
        (["int", "long"], {"long": 5}, {"long": 5}),
        (["string", "bytes"], {"bytes": "AA=="}, {"bytes": "AA=="}),
        (["null", A, B], {"x": 1, "y": 2}, {"n.B": {"x": 1, "y": 2}}),
        (B, {"x": 1}, {"x": 1, "y": 7}),
        (TREE, {"leaf": "a"}, {"leaf": "a", "next": None}),
    ],
)
def test_what_people_write_is_understood(schema: object, value: object, shown: object) -> None:
    """Numbers, offsets of a zone, named branches and fields left out come to the one form."""
    assert round_trip(schema, value) == shown


def test_defaults_are_avros_own_form() -> None:
    """A default that is left out is written as the schema's author means it: bytes as characters, base types of logical ones."""
    fields = [
        {"name": "b", "type": "bytes", "default": "\xff"},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 1}, "default": "\x01"},
        {"name": "t", "type": logical("long", "timestamp-millis"), "default": 1},
        {"name": "e", "type": ENUM, "default": "GREEN"},
        {"name": "u", "type": ["string", "null"], "default": "s"},
        {"name": "a", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
        {"name": "m", "type": {"type": "map", "values": "boolean"}, "default": {"k": True}},
        {"name": "r", "type": {**B, "name": "n.R"}, "default": {"x": 3}},
        {"name": "d", "type": "double", "default": 2},
        {"name": "n", "type": "null", "default": None},
        {"name": "o", "type": "boolean", "default": False},
    ]
    assert round_trip({"type": "record", "name": "T", "fields": fields}, {}) == {
        "b": "/w==", "f": "AQ==", "t": "1970-01-01T00:00:00.001Z", "e": "GREEN", "u": "s", "a": [1, 2],
        "m": {"k": True}, "r": {"x": 3, "y": 7}, "d": 2.0, "n": None, "o": False,
    }  # fmt: skip


OUTER = {
    "type": "record",
    "name": "T",
    "fields": [
        {"name": "list", "type": {"type": "array", "items": B}},
        {"name": "m", "type": ["null", A, "n.B"], "default": None},
    ],
}


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ("null", 0, "value: expected null, found 0"),
        ("boolean", 1, "value: expected true or false, found 1"),
        ("int", 2**31, "value: expected a value that 32 bits hold, found 2147483648"),
        ("long", 1.5, "value: expected a whole number of 64 bits, found 1.5"),
        ("long", True, "value: expected a whole number of 64 bits, found true"),
        ("float", 1e39, "value: expected a number that a float holds"),
        ("double", "inf", 'value: expected a number, "NaN", "Infinity" or "-Infinity", found "inf"'),
        ("string", None, "value: expected text, found null"),
        ("string", "\ud800", "half a surrogate pair"),
        ("bytes", "@", 'value: expected base64 text, found "@"'),
        ({"type": "fixed", "name": "F", "size": 2}, "AA==", "expected base64 text of 2 bytes, found 1 byte"),
        (ENUM, "GREN", "expected one of RED, GREEN, found \"GREN\" (did you mean 'GREEN'?)"),
        (MONEY, "1.234", "expected a decimal of at most 9 digits, 2 of them"),
        (MONEY, "12345678.00", "expected a decimal of at most 9 digits"),
        (MONEY, "AA==", "expected a decimal of at most 9 digits"),
        (MONEY, True, "expected a decimal of at most 9 digits"),
        (logical("int", "date"), "2026-02-30", 'expected a date such as "2026-11-21"'),
        (logical("int", "time-millis"), "24:00:00", "expected a time-millis"),
        (
            logical("long", "timestamp-millis"),
            "2026-11-21T12:00:00",
            'expected a timestamp-millis such as "2026-11-21T12:00:00.000Z", or a whole number of 64 bits, found',
        ),
        (logical("long", "timestamp-millis"), "2026-11-21T12:00:00.0001Z", "at most 3 digits of a second"),
        (logical("long", "local-timestamp-millis"), "2026-11-21T12:00:00Z", "expected a local-timestamp-millis such as"),
        (logical("long", "timestamp-nanos"), "9999-01-01T00:00:00Z", "a value that 64 bits hold"),
        (logical("string", "uuid"), "x", "expected a UUID such as"),
        (logical("fixed", "uuid", name="U", size=16), "x", "expected a UUID, or base64 text of 16 bytes"),
        (logical("fixed", "duration", name="P", size=12), {"months": -1}, "months: expected a whole number of 32 bits"),
        ({"type": "array", "items": "int"}, {}, "value: expected an array, found {}"),
        ({"type": "array", "items": "int"}, [1, "2"], '[1]: expected a whole number of 32 bits, found "2"'),
        ({"type": "map", "values": "int"}, [], "value: expected an object, found an array of 0"),
        ({"type": "map", "values": "int"}, {"k": None}, "['k']: expected a whole number of 32 bits, found null"),
        (["null", "int"], "x", 'value: expected one of null, int, found "x"'),
        (["null", A], {"x": "1"}, 'x: expected a whole number of 32 bits, found "1"'),
        (OUTER, [], "value: expected an object, the fields of T, found an array of 0"),
        (OUTER, {}, "list: expected array of n.B, as it has no default, found nothing"),
        (OUTER, {"list": [{"x": 1}, {"y": 1}]}, "list[1].x: expected int, as it has no default, found nothing"),
        (OUTER, {"list": [{"xx": 1}]}, "list[0].xx: expected one of the fields x, y, found 'xx' (did you mean 'x'?)"),
        (OUTER, {"list": [], "m": {"x": 1}}, 'm: expected one of null, n.A, n.B, named as in {"n.A": {...}}, found'),
        (OUTER, {"list": [], "m": {"n.B": {"x": None}}}, "m<n.B>.x: expected a whole number of 32 bits, found null"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(schema: object, value: object, message: str) -> None:
    """The error shows where, what the schema asks for and what is there."""
    with pytest.raises(ValueEncodeError) as caught:
        encode_value(type_of(schema), read_json(json.dumps(value).encode(), "value"))
    assert message in str(caught.value)


def test_an_endless_exponent_is_refused() -> None:
    """A number whose exponent Decimal cannot hold is an error of the value, as an operator's PUT has it, not a bug."""
    with pytest.raises(ValueEncodeError):
        read_json(b'{"n":1e' + b"9" * 15_000 + b"}", "value")


def test_endless_nesting_is_refused() -> None:
    """JSON deeper than any value may be ends in an error, not in a full stack."""
    value: dict[str, Any] = {"leaf": "x"}
    for _ in range(64):
        value = {"leaf": "x", "next": value}
    with pytest.raises(ValueEncodeError, match="at most 64 records"):
        encode_value(type_of(TREE), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "in.json: expected JSON, found an error: Expecting property name"),
        (b"\xff", "in.json: expected JSON in UTF-8, found byte FF at byte 0"),
        (b'{"a": 1, "a": 2}', "key 'a' is there twice"),
        (b"NaN", 'NaN is not JSON: write "NaN", as text'),
        (b"[" * 100_000, "more levels than any value may have"),
        (b"", "Expecting value"),
    ],
)
def test_bad_json_is_named(text: bytes, message: str) -> None:
    """Any fault of the text is reported with the name of its file."""
    with pytest.raises(ValueEncodeError) as caught:
        read_json(text, "in.json")
    assert message in str(caught.value)


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != NONE])
@pytest.mark.parametrize("fingerprint", ["CRC-64-AVRO", "SHA-256"])
def test_bodies_of_every_encoding_are_accepted(encoding: str, fingerprint: str) -> None:
    """The rule of each encoding takes the body, and finds the datum in it."""
    schema = {**A, "name": "n.A_v1", "fields": [{"name": "x", "type": "string"}]}
    registry = load_registry(
        {
            "registry.toml": f'''[registry]
fingerprint = "{fingerprint}"
[[rule]]
destination = "X/A"
encoding = "{encoding}"
schema = "n.A_v1"'''.encode(),
            "n/A_v1/1.0.avsc": json.dumps(schema).encode(),
        }
    )
    datum = encode_value(type_of(schema), {"x": "x" * 200})
    version = registry.versions("n.A_v1")[0]
    body = encode_body(version, encoding, datum, registry.envelope_keys, FINGERPRINTS[fingerprint])
    validation = registry.rules[0].validate(b"X/A", (), body)
    assert isinstance(validation, Validation)
    assert decode_value(version.schema.text, body, validation) == {"x": "x" * 200}


def test_an_envelope_may_be_empty() -> None:
    """Without items it is the end of its array, and nothing else."""
    assert envelope([]) == b"\0"


@pytest.mark.slow
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(),
    st.text(),
    st.integers(-(10**9) + 1, 10**9 - 1),
    st.lists(st.one_of(st.none(), st.booleans())),
)
def test_fastavro_reads_what_is_written(
    number: int, real: float, data: bytes, text: str, cents: int, flags: list[bool | None]
) -> None:
    """A record of every sort of leaf, shown as JSON and encoded, is the very datum that fastavro wrote."""
    import io

    schema = {
        "type": "record",
        "name": "T",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "real", "type": "double"},
            {"name": "data", "type": "bytes"},
            {"name": "text", "type": "string"},
            {"name": "money", "type": logical("fixed", "decimal", name="M", size=5, precision=9, scale=2)},
            {"name": "flags", "type": {"type": "array", "items": ["null", "boolean"]}},
        ],
    }
    value = {"number": number, "real": real, "data": data, "text": text, "flags": flags}
    value["money"] = cents.to_bytes(5, "big", signed=True)
    plain = json.loads(json.dumps(schema))
    del plain["fields"][4]["type"]["logicalType"]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), value)
    written = stream.getvalue()
    shown = decode_value(text_of(schema), written, DATUM)
    encoded = encode_value(type_of(schema), read_json(json.dumps(shown).encode(), "value"))
    assert encoded == written or math.isnan(real)


@pytest.mark.parametrize("schema", [A, B, OUTER, TREE, MONEY, ENUM, ["null", A], {"type": "map", "values": A}])
def test_an_example_is_a_value(schema: object) -> None:
    """The example of a type encodes by its own schema."""
    shown = example(read_tree(text_of(schema)))
    assert round_trip(schema, shown) == shown
