"""The walker against fastavro, over schemas and values of every shape."""

import io
import json
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.fingerprint import crc_64_avro, sha_256
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.avro.walker import Walker

NUMBERS = ("int", "long", "float", "double")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=80),
    "string": st.text(max_size=80),
}


@dataclass
class Maker:
    """Draw a schema; names are given in order."""

    draw: Any
    named: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    count: int = 0

    def schema(self, depth: int, in_union: bool = False) -> Any:
        """Draw any type."""
        kinds = [*VALUES, "enum", "fixed", "again"]
        if depth:
            kinds += ["array", "map", "record", "record", "record"]
            kinds += [] if in_union else ["union", "union"]
        kind = self.draw(st.sampled_from(kinds))
        if kind in VALUES:
            return kind
        if kind == "array":
            return {"type": "array", "items": self.items(depth, in_union)}
        if kind == "map":
            return {"type": "map", "values": self.items(depth, in_union)}
        if kind == "union":
            return self.union(depth)
        if kind == "again":
            return self.draw(st.sampled_from([name for name, _ in self.named])) if self.named else "null"
        self.count += 1
        name = f"N{self.count}"
        if kind == "enum":
            symbols = [f"S{i}" for i in range(self.draw(st.integers(1, 70)))]
            made = {"type": "enum", "name": name, "symbols": symbols}
        elif kind == "fixed":
            made = {"type": "fixed", "name": name, "size": self.draw(st.integers(0, 20))}
        else:
            made = self.record(name, depth)
        self.named.append((name, made))
        return made

    def items(self, depth: int, in_union: bool) -> Any:
        """Draw an item's type; in a union a plain one, as fastavro's writer mistakes the branch of others."""
        return self.draw(st.sampled_from([*VALUES])) if in_union else self.schema(depth - 1)

    def record(self, name: str, depth: int) -> dict[str, Any]:
        """Draw a record, which may hold one that it lies in."""
        self.opened.append(name)
        fields = [{"name": f"f{i}", "type": self.schema(depth - 1)} for i in range(self.draw(st.integers(0, 5)))]
        if self.draw(st.booleans()):
            inner = self.draw(st.sampled_from(self.opened))  # holds itself
            fields.append(
                {
                    "name": "again",
                    "type": self.draw(st.sampled_from([["null", inner], {"type": "array", "items": inner}])),
                }
            )
        self.opened.pop()
        return {"type": "record", "name": name, "fields": fields}

    def union(self, depth: int) -> list[Any]:
        """Draw a union whose branches fastavro can distinguish by a value."""
        branches: list[Any] = []
        taken: set[str] = set()
        for _ in range(self.draw(st.integers(1, 4))):
            branch = self.schema(depth - 1, in_union=True)
            label = branch if isinstance(branch, str) else branch.get("name", branch["type"])
            label = "number" if label in NUMBERS else label  # fastavro, writing, could not distinguish them
            if label not in taken:
                taken.add(label)
                branches.append(branch)
            elif isinstance(branch, dict):  # what it defines is referred to nowhere else
                self.named = [known for known in self.named if str(known[1]) not in str(branch)]
        return branches

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Draw a value, small below a few levels."""
        if isinstance(schema, list):
            short = [branch for branch in schema if branch == "null"] if depth > 4 else []
            branch = self.draw(st.sampled_from(short or schema))
            value = self.value(branch, depth)
            name = branch if isinstance(branch, str) else branch.get("name", "")
            return (name, value) if name and name not in VALUES else value
        if isinstance(schema, str):
            if schema in VALUES:
                return self.draw(VALUES[schema])
            return self.value(dict(self.named)[schema], depth)
        items = st.integers(0, 0 if depth > 4 else 3)
        match schema["type"]:
            case "array":
                return [self.value(schema["items"], depth + 1) for _ in range(self.draw(items))]
            case "map":
                return {f"k{i}é": self.value(schema["values"], depth + 1) for i in range(self.draw(items))}
            case "enum":
                return self.draw(st.sampled_from(schema["symbols"]))
            case "fixed":
                return self.draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
            case _:
                return {f["name"]: self.value(f["type"], depth + 1) for f in schema["fields"]}


@dataclass
class Sample:
    """A schema and a value as fastavro writes it."""

    schema: Any
    parsed: Any
    body: bytes

    def decode(self, body: bytes) -> tuple[Any, int]:
        """Give fastavro's value and how many bytes it read."""
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, self.parsed, None, return_named_type=True)
        return value, stream.tell()

    def encode(self, value: Any) -> bytes:
        """Give fastavro's bytes."""
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self.parsed, value)
        return stream.getvalue()

    def walker(self) -> Walker:
        """Compile the schema."""
        return Walker(parse_schema(read_source("drawn", json.dumps(self.schema).encode())).type)


@st.composite
def samples(draw: Any) -> Sample:
    """Draw a schema and a value of it."""
    maker = Maker(draw)
    schema = maker.schema(4)
    sample = Sample(schema, fastavro.parse_schema(json.loads(json.dumps(schema)), named_schemas={}), b"")
    sample.body = sample.encode(maker.value(schema))
    return sample


@settings(max_examples=150, deadline=None)
@given(samples())
def test_whatever_fastavro_writes_is_accepted(sample: Sample) -> None:
    """Every value that fastavro writes is accepted, and none of its prefixes."""
    walker = sample.walker()
    assert walker.explain(sample.body, 0, len(sample.body)) is None
    assert walker.accepts(sample.body, 0, len(sample.body))
    for cut in range(0, len(sample.body), max(1, len(sample.body) // 20)):
        assert not walker.accepts(sample.body[:cut], 0, cut)


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(samples(), st.data())
def test_whatever_is_accepted_fastavro_decodes(sample: Sample, data: st.DataObject) -> None:
    """Changed bytes that are accepted are a value to fastavro, which it writes and reads again as the same; both passes agree."""
    walker = sample.walker()
    for _ in range(5):
        body = bytearray(sample.body)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(body)))
            cut = data.draw(st.integers(0, 2))
            body[place : place + cut] = data.draw(st.binary(max_size=3))
        changed = bytes(body)
        accepted = walker.accepts(changed, 0, len(changed))
        assert accepted == (walker.explain(changed, 0, len(changed)) is None)
        if accepted:
            value, end = sample.decode(changed)
            assert end == len(changed)
            again, _ = sample.decode(sample.encode(value))
            assert repr(again) == repr(value)  # by text, as NaN does not equal itself


@settings(max_examples=100, deadline=None)
@given(samples())
def test_canonical_form_and_fingerprints_are_those_of_fastavro(sample: Sample) -> None:
    """The Parsing Canonical Form and both fingerprints of any schema are what fastavro makes of it."""
    ours = parse_schema(read_source("drawn", json.dumps(sample.schema).encode())).canonical
    theirs = to_parsing_canonical_form(json.loads(json.dumps(sample.schema)))
    assert ours.decode() == theirs
    assert crc_64_avro(ours).hex() == fingerprint(theirs, "CRC-64-AVRO")
    assert sha_256(ours).hex() == fingerprint(theirs, "SHA-256")


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(samples(), st.data())
def test_a_trace_tells_the_values_up_to_the_fault(sample: Sample, data: st.DataObject) -> None:
    """The values follow each other and each is one of its type. A fault is that of `explain`, after all of them."""
    walker = sample.walker()
    body = bytearray(sample.body)
    if body and data.draw(st.booleans(), "damaged"):
        body[data.draw(st.integers(0, len(body) - 1), "where")] = data.draw(st.integers(0, 255), "byte")
    leaves, fault = walker.trace(bytes(body), 0, len(body))
    assert str(fault) == str(walker.explain(bytes(body), 0, len(body)))
    pos = 0
    for leaf in leaves:
        assert pos <= leaf.start <= leaf.end
        assert Walker(leaf.type).accepts(bytes(body), leaf.start, leaf.end)
        pos = leaf.end
    assert pos <= (len(body) if fault is None else fault.offset)
