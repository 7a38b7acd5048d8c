"""Avro that is shown as JSON and encoded again is the same Avro, on random schemas and values, by both ways in."""

import io
import json
import math
from typing import Any

import fastavro
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from maxam.avro.json.decoding import ValueDecodeError, decode_value
from maxam.avro.json.encoding import encode_value, read_json
from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.json.texts import json_texts
from maxam.avro.schema import Type, parse_schema
from maxam.avro.source import read_source
from maxam.errors import SchemaError
from maxam.pipeline.jobs.load import _parsed
from maxam.records import Validation
from maxam.terminal.escaping import json_line

DATUM = Validation("datum", "t.T_v1", "1.0", b"")
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-nanos"},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
]
PLAIN = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


class Schemas:
    """Makes schemas; names are numbered, and one of them may be used again by its name."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.named: list[str] = []

    def name(self) -> str:
        """Return a new name; some are those of fields and branches too."""
        return f"n.N{len(self.named)}"

    def any(self, depth: int, union: bool = True) -> Any:
        """Make a type of any kind."""
        kinds = ["plain", "logical", "fixed", "duration", "enum"] + (["again"] if self.named else [])
        if depth < 3:
            kinds += ["array", "map", "record", "record"] + (["union", "union"] if union else [])
        match self.draw(st.sampled_from(kinds)):
            case "plain":
                return self.draw(st.sampled_from(PLAIN))
            case "logical":
                return self.draw(st.sampled_from(LOGICAL))
            case "again":
                return self.draw(st.sampled_from(self.named))
            case "array":
                return {"type": "array", "items": self.any(depth + 1)}
            case "map":
                return {"type": "map", "values": self.any(depth + 1)}
            case "union":
                return self.union(depth)
            case "record":
                name = self.name()
                self.named.append(name)  # it may hold itself
                fields = [
                    {"name": field, "type": self.any(depth + 1)}
                    for field in self.draw(
                        st.lists(st.sampled_from(["string", "map", "a", "b"]), unique=True, max_size=3)
                    )
                ]
                return {"type": "record", "name": name, "fields": fields}
            case kind:
                name = self.name()
                self.named.append(name)
                if kind == "enum":
                    return {"type": "enum", "name": name, "symbols": ["ON", "OFF", "string"]}
                if kind == "fixed":
                    return {"type": "fixed", "name": name, "size": 3}
                return {"type": "fixed", "name": name, "size": 12, "logicalType": "duration"}

    def union(self, depth: int) -> list[Any]:
        """Make a union of different branches."""
        branches: dict[str, Any] = {}
        for _ in range(self.draw(st.integers(1, 5))):
            branch = self.any(depth + 1, union=False)
            label = branch if isinstance(branch, str) else branch.get("name", branch["type"])
            branches.setdefault(label, branch)
        return list(branches.values())


def value_of(draw: st.DrawFn, of: Type, depth: int) -> Any:  # noqa: C901 - one case for each kind
    """Make a value as fastavro writes it: of a union the branch's name with it."""
    if depth > 12:
        raise RecursionError
    match of.kind:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "long":
            return draw(st.integers(-(2**63), 2**63 - 1))
        case "float":
            return draw(st.floats(width=32))
        case "double":
            return draw(st.floats())
        case "bytes" if of.logical == "decimal":
            number = draw(st.integers(-999_999, 999_999))
            return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
        case "bytes":
            return draw(st.binary(max_size=4))
        case "fixed":
            return draw(st.binary(min_size=of.size, max_size=of.size))
        case "string":
            return draw(st.text(max_size=4) | st.sampled_from(["ON", "NaN", "AAAA", "2026-11-21", "1.00"]))
        case "enum":
            return draw(st.sampled_from(of.symbols))
        case "array":
            return [value_of(draw, of.branches[0], depth + 1) for _ in range(draw(st.integers(0, 2)))]
        case "map":
            keys = draw(st.lists(st.sampled_from(["string", "n.N0", "k", "map"]), unique=True, max_size=2))
            return {key: value_of(draw, of.branches[0], depth + 1) for key in keys}
        case "union":
            branch = draw(st.sampled_from(of.branches))
            return (branch.label, value_of(draw, branch, depth + 1))
        case _:
            return {field.name: value_of(draw, field.type, depth + 1) for field in of.fields}


def written(of: Type, value: Any, out: io.BytesIO) -> None:
    """Write it as Avro: by fastavro the leaves, which gets their base types only."""
    match of.kind:
        case "union":
            label, inner = value
            at = [branch.label for branch in of.branches].index(label)
            fastavro.schemaless_writer(out, "long", at)
            written(of.branches[at], inner, out)
        case "record":
            for field in of.fields:
                written(field.type, value[field.name], out)
        case "array" | "map":
            if value:
                fastavro.schemaless_writer(out, "long", len(value))
            for each in value:
                if of.kind == "map":
                    fastavro.schemaless_writer(out, "string", each)
                written(of.branches[0], value[each] if of.kind == "map" else each, out)
            out.write(b"\0")
        case "fixed":
            out.write(value)
        case "enum":
            fastavro.schemaless_writer(out, "long", of.symbols.index(value))
        case kind:
            fastavro.schemaless_writer(out, kind, value)


def has_nan(value: Any) -> bool:
    """Return True if there is a NaN in it, of which only one is written."""
    match value:
        case float():
            return math.isnan(value)
        case dict():
            return any(has_nan(each) for each in value.values())
        case list() | tuple():
            return any(has_nan(each) for each in value)
        case _:
            return False


@st.composite
def cases(draw: st.DrawFn) -> tuple[bytes, Type, bytes, bool]:
    """Make a schema's text, its type, a datum, and whether it has a NaN."""
    schema = Schemas(draw).any(0)
    source = read_source("t", json.dumps(schema).encode())
    try:
        parsed = parse_schema(source)
    except SchemaError:  # a name was defined in a branch that its union had already
        reject()
    try:
        value = value_of(draw, parsed.type, 0)
    except RecursionError:  # a record that holds itself without an end
        value = None
    out = io.BytesIO()
    if value is not None or parsed.type.kind == "null":
        written(parsed.type, value, out)
        return parsed.text, parsed.type, out.getvalue(), has_nan(value)
    return b'"null"', Type("null"), b"", False


@given(cases())
def test_what_is_shown_is_encoded_to_the_same_bytes(case: tuple[bytes, Type, bytes, bool]) -> None:
    """By the way of `topics put` and `schemas encode`, and by that of `maxam-pipeline load`, from the very text of a listing."""
    text, of, datum, nan = case
    shown = decode_value(text, datum, DATUM)
    line = json_line(shown)
    by_admin = encode_value(of, read_json(line.encode(), "value"))
    by_load = encode_value(of, json.loads(line), rows=True)
    assert by_admin == by_load
    assert decode_value(text, by_admin, DATUM) == shown
    assert by_admin == datum or nan


@given(cases(), st.integers(0, 4))
def test_the_text_in_one_pass_is_that_of_the_decoded_value(case: tuple[bytes, Type, bytes, bool], cut: int) -> None:
    """Both ways from Avro to JSON text agree, and what is cut off or has bytes left is unreadable by both."""
    text, _, datum, _ = case
    writer = json_texts(text, False)
    assert writer.text(b"--" + datum + b"++", 2, len(datum) + 2) == json_line(decode_value(text, datum, DATUM))
    for wrong in (datum[:-cut] if cut else datum + b"\0",):
        if wrong != datum:
            with pytest.raises(ValueDecodeError):
                writer.text(wrong, 0, len(wrong))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["string", "bytes", "a", "b", "map", "n.N0", "N0", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(cases(), ANY_JSON)
def test_both_ways_give_the_same_bytes_of_what_both_take(case: tuple[bytes, Type, bytes, bool], value: Any) -> None:
    """A load takes more, such as null for what is absent; what the strict way takes it encodes to the same bytes."""
    _, of, _, _ = case
    text = json.dumps(value)
    try:
        strict = encode_value(of, read_json(text.encode(), "value"))
    except ValueEncodeError:
        strict = None
    try:
        lenient = encode_value(of, _parsed(text), rows=True)
    except (ValueEncodeError, ValueError):
        lenient = None
    assert strict is None or strict == lenient
