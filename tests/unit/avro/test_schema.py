"""Schema texts: strict parsing, references between files, self-contained text, canonical form."""

import json
from typing import Any

import pytest

from maxam.avro.schema import Schema, parse_schema
from maxam.avro.source import Source, read_source
from maxam.errors import SchemaError
from tests.support.avro_schemas import told


def parsed(document: Any, **files: Any) -> Schema:
    """Parse a schema that may refer to files given by type name: a document, or documents by minor."""
    sources: dict[str, dict[str, Source]] = {}
    for name, minors in files.items():
        documents = minors if "type" not in minors else {"1.0": minors}
        sources[f"n.{name}"] = {
            minor: read_source(f"n/{name}/{minor}.avsc", json.dumps(text).encode(), minor)
            for minor, text in documents.items()
        }
    return parse_schema(read_source("main.avsc", json.dumps(document).encode()), sources)


def record(name: str, *types: Any, **extra: Any) -> dict[str, Any]:
    """Write a record of namespace `n` with fields `f0`, `f1`."""
    fields = [{"name": f"f{index}", "type": of} for index, of in enumerate(types)]
    return {"type": "record", "name": name, "namespace": "n", **extra, "fields": fields}


def with_field(of: Any, **extra: Any) -> dict[str, Any]:
    """Write a record with one field."""
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": of, **extra}]}


COLOUR = {"type": "enum", "name": "C", "symbols": ["RED", "GREEN"]}
POINT = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}],
}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("strin", "main.avsc: unknown type 'strin'"),
        (5, "main.avsc: expected a type's name, an object or a union's array"),
        ({}, "main.avsc: type: expected the name of a type"),
        ({"type": "strin", "doc": ""}, "main.avsc: type: unknown type 'strin'"),
        ({"type": ["null"]}, "main.avsc: type: expected the name of a type"),
        ([], "main.avsc: a union needs a branch"),
        (["null", ["int"]], "main.avsc: [1]: a union may not hold a union directly"),
        (["int", "null", {"type": "int"}], "main.avsc: [2]: the union holds int twice"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "[1]: the union holds array twice"),
        ([COLOUR, "C"], "main.avsc: [1]: the union holds C twice"),
        ({"type": "array"}, "main.avsc: array without 'items'"),
        ({"type": "map", "values": "x"}, "main.avsc: values: unknown type 'x'"),
        ({"type": "record", "fields": []}, "main.avsc: record without 'name'"),
        ({"type": "record", "name": "R"}, "main.avsc: fields: expected an array of fields"),
        ({"type": "record", "name": "R", "fields": [5]}, "main.avsc: fields[0]: expected an object"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "main.avsc: fields[0]: field without 'type'"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "fields[0].name: None is not a name"),
        ({"type": "record", "name": "1R", "fields": []}, "main.avsc: name: '1R' is not a name"),
        ({"type": "record", "name": "a..R", "fields": []}, "main.avsc: name: 'a..R' is not a name"),
        (
            {"type": "record", "name": "R", "namespace": "a-b", "fields": []},
            "main.avsc: namespace: 'a-b.R' is not a name",
        ),
        ({"type": "record", "name": "R", "namespace": 5, "fields": []}, "main.avsc: namespace: expected text"),
        ({"type": "record", "name": "Ré", "fields": []}, "main.avsc: name: 'Ré' is not a name"),
        ({"type": "fixed", "name": "n.string", "size": 1}, "main.avsc: name: 'n.string' is the name of a primitive"),
        ({"type": "record", "name": "R", "aliases": ["a b"], "fields": []}, "main.avsc: aliases: 'a b' is not a name"),
        (with_field("int", aliases="x"), "main.avsc: fields[0].aliases: expected an array of names"),
        (with_field("int", order="up"), "main.avsc: fields[0].order: expected ascending"),
        (with_field("int", pii="yes"), "main.avsc: fields[0].pii: expected true or false"),
        (with_field(with_field("int")), "main.avsc: fields[0].type: R is defined twice"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
            "main.avsc: fields[1].name: field 'a' is there twice",
        ),
        (with_field({"type": "array", "items": ["null", "S"]}), "main.avsc: fields[0].type.items[1]: unknown type 'S'"),
        ({"type": "enum", "name": "E"}, "main.avsc: symbols: expected an array of names"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "main.avsc: symbols[1]: symbol 'A' is there twice"),
        ({"type": "enum", "name": "E", "symbols": ["A-B"]}, "main.avsc: symbols[0]: 'A-B' is not a name"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "main.avsc: default: 'B' is not one of"),
        ({"type": "fixed", "name": "F"}, "main.avsc: size: expected a number of bytes"),
        ({"type": "fixed", "name": "F", "size": -1}, "main.avsc: size: expected a number of bytes"),
        ({"type": "fixed", "name": "F", "size": True}, "main.avsc: size: expected a number of bytes"),
        ({"type": "string", "logicalType": "date"}, "main.avsc: logicalType: date needs int, not string"),
        ({"type": "string", "logicalType": 5}, "main.avsc: logicalType: expected text"),
        ({"type": "bytes", "logicalType": "decimal"}, "main.avsc: precision: expected the number of digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, "main.avsc: scale: expected 0 to"),
        (
            {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5},
            "main.avsc: precision: a precision of 5 does not fit in 2 bytes",
        ),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "duration"}, "duration needs a fixed of 12 bytes"),
    ],
)
def test_a_wrong_schema_is_refused_with_file_and_place(document: Any, problem: str) -> None:
    """Each mistake in a schema is an error that names file and JSON path."""
    with pytest.raises(SchemaError) as caught:
        parsed(document)
    assert problem in told(caught.value)


@pytest.mark.parametrize(
    ("of", "good", "bad"),
    [
        ("null", [None], [0, "null"]),
        ("boolean", [True], [1, "true", None]),
        ("int", [0, 2**31 - 1, -(2**31)], [2**31, 1.0, True, "0"]),
        ("long", [2**63 - 1], [2**63, False]),
        ("float", [1, 1.5], ["1", True, None]),
        ("double", [1e300], ["NaN"]),
        ("string", ["", "é"], [5, None]),
        ("bytes", ["ÿ\u0000"], ["Ā", 5]),
        ({"type": "fixed", "name": "F", "size": 2}, ["ab"], ["a", "abc"]),
        (COLOUR, ["RED"], ["BLUE", 0, ["RED"]]),
        ({"type": "array", "items": "int"}, [[], [1]], [["a"], {}]),
        ({"type": "map", "values": "int"}, [{}, {"a": 1}], [{"a": "b"}, []]),
        (["null", "int"], [None], [5]),
        (["int", "null"], [5], [None]),
        (POINT, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"x": "1"}, {"x": 1, "z": 2}, []]),
    ],
)
def test_a_default_is_of_its_fields_type(of: Any, good: list[Any], bad: list[Any]) -> None:
    """A default of the field's type is accepted, any other refused with its place; a union's is of the first branch."""
    for default in good:
        parsed(with_field(of, default=default))
    for default in bad:
        with pytest.raises(SchemaError, match=r"^main\.avsc: fields\[0\]\.default: "):
            parsed(with_field(of, default=default))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\xff", "not UTF-8"),
        (b"{", "not JSON"),
        (b'{"a": [1, 2, ]}', "remove the comma before it"),
        (b'{"a": 1, }', "remove the comma before it"),
        (b"NaN", "NaN is not JSON"),
        (b"1e999", "1e999 is out of range"),
        (b'{"type":"int","type":"long"}', "key 'type' is there twice"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"type":"array","items":' * 65 + b'"int"' + b"}" * 65, "nested deeper than 64 levels"),
        (b'{"type":"int","doc":"\\ud800"}', "half a surrogate pair"),
        (b'{"type":"int","references":[]}', "references: expected an object"),
        (b'{"type":"int","references":{"a":1}}', "references.a: expected a minor version"),
        (b'{"type":"int","references":{"a.B":"1.0"}}', "references.a.B: the schema does not refer to this type"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: bytes, problem: str) -> None:
    """Bytes that are not strict JSON, or nested without end, are an error with the name of the file."""
    with pytest.raises(SchemaError, match=r"^main\.avsc(:1)?: ") as caught:
        parse_schema(read_source("main.avsc", text))
    assert problem in str(caught.value)


def test_names_follow_the_enclosing_namespace() -> None:
    """A name without dots belongs to the namespace around it, for definitions and references alike."""
    inner = {
        "type": "record",
        "name": "o.S",
        "fields": [{"name": "t", "type": {"type": "fixed", "name": "T", "size": 1}}],
    }
    schema = parsed(record("R", inner, "o.T", {"type": "fixed", "name": "T", "size": 2}, "T"))
    kinds = [(field.type.name, field.type.kind) for field in schema.type.fields]
    assert kinds == [("o.S", "record"), ("o.T", "fixed"), ("n.T", "fixed"), ("n.T", "fixed")]


def test_each_type_of_another_file_is_written_out_at_its_first_use() -> None:
    """The self-contained text holds each referenced type where it is first used, depth first, and no references."""
    schema = parsed(
        record("A", "C", "B", "n.C", references={"n.C": "1.0"}),
        B=record("B", "C", doc="b"),
        C=record("C", "int"),
    )
    document = json.loads(schema.text)
    assert "references" not in document
    assert [field["type"] for field in document["fields"]] == [record("C", "int"), record("B", "C", doc="b"), "n.C"]
    assert schema.uses == ("n.C", "n.B")
    assert parse_schema(read_source("again", schema.text)).text == schema.text


def test_files_may_refer_to_each_other_in_a_circle() -> None:
    """Two types that hold each other are each self-contained, whichever is asked for."""
    texts = {"A": record("A", "B"), "B": record("B", ["null", "A"])}
    files = {f"n.{name}": {"1.0": read_source(name, json.dumps(text).encode(), "1.0")} for name, text in texts.items()}
    assert json.loads(parse_schema(files["n.A"]["1.0"], files).text) == record("A", record("B", ["null", "A"]))
    assert json.loads(parse_schema(files["n.B"]["1.0"], files).text) == record("B", ["null", record("A", "B")])


def test_a_pin_chooses_the_minor() -> None:
    """A reference to a type of several minors must be pinned, and the pinned one is used."""
    minors = {"1.0": record("B", "int"), "1.1": record("B", "long")}
    with pytest.raises(SchemaError, match=r'main\.avsc: fields\[0\]\.type: n\.B .*1\.0, 1\.1; .*"references"'):
        parsed(record("A", "B"), B=minors)
    assert b'"int"' in parsed(record("A", "B", references={"n.B": "1.0"}), B=minors).text
    assert b'"long"' in parsed(record("A", "B", references={"n.B": "1.1"}), B=minors).text
    with pytest.raises(SchemaError, match=r"main\.avsc: references\.n\.B: no minor '1\.2', known: 1\.0, 1\.1"):
        parsed(record("A", "B", references={"n.B": "1.2"}), B=minors)


def test_pinning_an_unpinned_reference_changes_nothing() -> None:
    """A released text stays the same when a second minor of a type it refers to makes a pin necessary."""
    before = parsed(record("A", "B"), B=record("B", "int"))
    after = parsed(
        record("A", "B", references={"n.B": "1.0"}), B={"1.0": record("B", "int"), "1.1": record("B", "long")}
    )
    assert before.text == after.text


def test_one_name_has_one_meaning_in_a_schema() -> None:
    """Two files that pin different minors of one type cannot be used together, and no file defines another's type."""
    minors = {"1.0": record("C", "int"), "1.1": record("C", "long")}
    with pytest.raises(SchemaError, match=r"n/B/1\.0\.avsc: fields\[0\]\.type: n\.C means n/C/1\.1\.avsc here, but"):
        parsed(
            record("A", "C", "B", references={"n.C": "1.0"}), B=record("B", "C", references={"n.C": "1.1"}), C=minors
        )
    with pytest.raises(SchemaError, match=r"main\.avsc: fields\[0\]\.type: n\.C "):
        parsed(record("A", record("C", "int")), C=record("C", "int"))
    with pytest.raises(SchemaError, match=r"main\.avsc: fields\[1\]\.type: n\.D "):
        parsed(record("A", "B", "D"), B=record("B", record("D", "int")))


def test_an_error_in_another_file_names_that_file() -> None:
    """A mistake in a referenced file is reported with that file's own name and path."""
    with pytest.raises(SchemaError, match=r"^n/B/1\.0\.avsc: fields\[0\]\.type: unknown type 'x'"):
        parsed(record("A", "B"), B=record("B", "x"))


def test_canonical_form_keeps_only_what_bytes_depend_on() -> None:
    """The Parsing Canonical Form drops docs, defaults, aliases and logical types, and writes full names.

    Spec: Avro 1.12 "Transforming into Parsing Canonical Form"
    """
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    schema = parsed({"doc": "d", "aliases": ["Old"], **with_field(moment, default=0, doc="d"), "namespace": "n"})
    assert schema.canonical == b'{"name":"n.R","type":"record","fields":[{"name":"f","type":"long"}]}'


def test_unknown_attributes_and_logical_types_are_kept() -> None:
    """An attribute that Avro does not define is metadata: it stays in the text and changes nothing else."""
    document = {"type": "string", "logicalType": "phone-number", "unit": "none"}
    assert json.loads(parsed(document).text) == document
