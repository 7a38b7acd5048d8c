"""Schema resolution, with the place of each failure, against fastavro's."""

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.resolution import Failure
from maxam.pipeline.jobs.check_schema import resolution

Json = Any
DEFAULTS: dict[str, Json] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 0.25,
    "bytes": "a",
    "string": "b",
}
NAMES = st.sampled_from(["a", "b", "c"])
PRIMITIVES = st.sampled_from(list(DEFAULTS))


def enum_type(name: str, symbols: list[str], default: bool) -> Json:
    """Make an enum."""
    return {"type": "enum", "name": name, "symbols": symbols, **({"default": symbols[0]} if default else {})}


@st.composite
def types(draw: st.DrawFn, depth: int = 3, union: bool = True) -> Json:
    """Make a type; named ones get a name by their kind, so that two schemas often have the same."""
    kinds = ["primitive", "primitive", "enum", "fixed"]
    if depth:
        kinds += ["record", "record", "array", "map", *(["union"] if union else [])]
    match draw(st.sampled_from(kinds)):
        case "primitive":
            return draw(PRIMITIVES)
        case "enum":
            symbols = draw(st.lists(st.sampled_from(["X", "Y", "Z"]), min_size=1, max_size=3, unique=True))
            return enum_type(f"E{depth}", symbols, draw(st.booleans()))
        case "fixed":
            return {"type": "fixed", "name": f"F{depth}", "size": draw(st.integers(1, 2))}
        case "array":
            return {"type": "array", "items": draw(types(depth - 1))}
        case "map":
            return {"type": "map", "values": draw(types(depth - 1))}
        case "union":
            # fastavro chooses a branch to write by the value: primitives that no value fits twice
            choice = st.lists(
                st.sampled_from(["null", "boolean", "string", "long"]), min_size=1, max_size=3, unique=True
            )
            return draw(choice)
        case _:
            return draw(records(depth))


@st.composite
def records(draw: st.DrawFn, depth: int = 3) -> Json:
    """Make a record; field types of one depth may hold named types of the next only, so that no name comes twice."""
    fields = []
    for at, name in enumerate(draw(st.lists(NAMES, max_size=3, unique=True))):
        of = draw(types(depth - 1)) if at == 0 else draw(PRIMITIVES)
        entry = {"name": name, "type": of}
        if isinstance(of, str) and draw(st.booleans()):
            entry["default"] = DEFAULTS[of]
        fields.append(entry)
    return {"type": "record", "name": f"R{depth}", "fields": fields}


def values(schema: Json) -> st.SearchStrategy[Any]:
    """Make values of a type."""
    match schema:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "int" | "long":
            return st.integers(-(2**31), 2**31 - 1)
        case "float" | "double":
            return st.floats(width=32, allow_nan=False)
        case "bytes":
            return st.binary(max_size=3)
        case "string":
            return st.text("aé", max_size=3)
        case list():
            return st.one_of([values(branch) for branch in schema])
        case {"type": "enum"}:
            return st.sampled_from(schema["symbols"])
        case {"type": "fixed"}:
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case {"type": "array"}:
            return st.lists(values(schema["items"]), max_size=3)
        case {"type": "map"}:
            return st.dictionaries(st.text("kl", max_size=1), values(schema["values"]), max_size=2)
        case _:
            return st.fixed_dictionaries({field["name"]: values(field["type"]) for field in schema["fields"]})


def encode(schema: Json, value: Any) -> bytes:
    """Encode a value."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def readable(writer: Json, reader: Json, datum: bytes) -> bool:
    """Return True if fastavro reads it."""
    try:
        fastavro.schemaless_reader(io.BytesIO(datum), fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    except (SchemaResolutionError, UnicodeDecodeError):
        return False
    return True


@pytest.mark.slow
@settings(max_examples=600)
@given(records(), records(), st.data())
def test_fastavro_agrees(writer: Json, reader: Json, data: st.DataObject) -> None:
    """A datum has a failure exactly when fastavro cannot read it, and none has one where resolution is certain."""
    datum = encode(writer, data.draw(values(writer)))
    between = resolution(json.dumps(writer), json.dumps(reader))
    found = between.failures(datum)
    assert (not found) == readable(writer, reader, datum), found
    assert not (between.certain and found)


@pytest.mark.slow
@settings(max_examples=200)
@given(records(), st.data())
def test_a_schema_reads_itself(schema: Json, data: st.DataObject) -> None:
    """A schema reads its own data, and that is certain."""
    between = resolution(json.dumps(schema), json.dumps(schema))
    assert between.certain
    assert between.failures(encode(schema, data.draw(values(schema)))) == []


def record(*fields: dict[str, Json], name: str = "R", **more: Json) -> Json:
    """Make a record."""
    return {"type": "record", "name": name, "fields": list(fields), **more}


A = {"name": "a", "type": "int"}
DOOR = enum_type("Door", ["OPEN", "SHUT", "AJAR"], default=False)
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "failures"),
    [
        (
            record(A),
            record(A, {"name": "b", "type": "int"}),
            {"a": 1},
            [("b", "is not in what was written, and has no default")],
        ),
        (record(A), record({"name": "a", "type": "string"}), {"a": 1}, [("a", "int is not readable as string")]),
        (record(A), record({"name": "b", "aliases": ["a"], "type": "long"}), {"a": 1}, []),
        (
            record(
                {"name": "doors", "type": {"type": "array", "items": record({"name": "is", "type": DOOR}, name="D")}}
            ),
            record(
                {
                    "name": "doors",
                    "type": {
                        "type": "array",
                        "items": record({"name": "is", "type": enum_type("Door", ["OPEN", "SHUT"], False)}, name="D"),
                    },
                }
            ),
            {"doors": [{"is": "OPEN"}, {"is": "AJAR"}, {"is": "AJAR"}]},
            [("doors[].is", "symbol AJAR is unknown")],
        ),
        (
            record({"name": "m", "type": {"type": "map", "values": ["null", "string"]}}),
            record({"name": "m", "type": {"type": "map", "values": ["null", "int"]}}),
            {"m": {"x": None, "y": "z"}},
            [("m{}", "string is none of the union's: null, int")],
        ),
        (record({"name": "b", "type": "bytes"}), record({"name": "b", "type": "string"}), {"b": b"ok"}, []),
        (
            record({"name": "b", "type": "bytes"}),
            record({"name": "b", "type": "string"}),
            {"b": b"\xff"},
            [("b", "bytes that are not UTF-8 are not readable as string")],
        ),
        (
            record({"name": "x", "type": MONEY}),
            record({"name": "x", "type": {**MONEY, "scale": 3}}),
            {"x": b"\x01"},
            [("x", "decimal(10,2) is not readable as decimal(10,3)")],
        ),
        (
            record({"name": "x", "type": MONEY}),
            record({"name": "x", "type": {**MONEY, "precision": 12}}),
            {"x": b"\x01"},
            [],
        ),
        (record(A, name="Old"), record(A, name="New"), {"a": 1}, []),
        (
            record({"name": "i", "type": record(A, name="n.Old")}),
            record({"name": "i", "type": record(A, name="n.New")}),
            {"i": {"a": 1}},
            [("i", "n.Old is not n.New")],
        ),
        (
            record({"name": "i", "type": record(A, name="n.Old")}),
            record({"name": "i", "type": record(A, name="n.New", aliases=["Old"])}),
            {"i": {"a": 1}},
            [],
        ),
    ],
)
def test_where_and_why(writer: Json, reader: Json, value: Any, failures: list[tuple[str, str]]) -> None:
    """Each kind of mismatch is named with the path of the field, once a body."""
    plain = json.loads(json.dumps(writer).replace('"logicalType": "decimal", ', ""))  # the value is the bytes
    between = resolution(json.dumps(writer), json.dumps(reader))
    assert between.failures(encode(plain, value)) == [Failure(*failure) for failure in failures]


def test_a_schema_that_holds_itself() -> None:
    """A recursive pair is certain when nothing in it can fail, and else shows where it does, at any depth."""

    def tree(of: Json) -> Json:
        return record({"name": "v", "type": of}, {"name": "next", "type": ["null", "R"]})

    datum = encode(tree("int"), {"v": 1, "next": {"v": 2, "next": None}})
    assert resolution(json.dumps(tree("int")), json.dumps(tree("long"))).certain
    found = resolution(json.dumps(tree("int")), json.dumps(tree("string"))).failures(datum)
    assert [failure.path for failure in found] == ["v", "next.v"]


def test_unions_grow_and_shrink() -> None:
    """A union that only grows is certain; one that shrinks is not, though a body without the lost branch is readable."""
    small = record({"name": "u", "type": ["null", "string"]})
    large = record({"name": "u", "type": ["null", "int", "string"]})
    assert resolution(json.dumps(small), json.dumps(large)).certain
    shrunk = resolution(json.dumps(large), json.dumps(small))
    assert not shrunk.certain
    assert shrunk.failures(encode(large, {"u": "x"})) == []
    assert [failure.path for failure in shrunk.failures(encode(large, {"u": 5}))] == ["u"]
