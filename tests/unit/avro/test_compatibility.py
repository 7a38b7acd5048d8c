"""Compatibility modes, the paths of incompatibilities, witnesses, and what loading a schema folder makes of them."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint

from maxam.avro.compatibility import BACKWARD, COMPATIBILITIES, FORWARD, check, check_minors
from maxam.avro.places import located
from maxam.avro.registry import inspect_registry, load_registry
from maxam.avro.resolution import KINDS, PATHS_MAX, Resolution
from maxam.avro.rule import SchemaVersion
from maxam.avro.silent import silent_changes
from maxam.avro.witness import witness
from maxam.errors import SchemaError
from tests.support.avro_schemas import parsed

Json = Any


def record(*fields: Json, name: str = "e.A_v1", **more: Json) -> dict[str, Json]:
    """Make a record of (name, type) and (name, type, default)."""
    made = [
        {"name": entry[0], "type": entry[1], **({"default": entry[2]} if len(entry) > 2 else {})} for entry in fields
    ]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(*symbols: str, **more: Json) -> dict[str, Json]:
    """Make an enum."""
    return {"type": "enum", "name": "e.Door", "symbols": list(symbols), **more}


def logical(of: str, name: str, **more: Json) -> dict[str, Json]:
    """Make a logical type."""
    return {"type": of, "logicalType": name, **more}


def decimal(precision: int, scale: int) -> dict[str, Json]:
    """Make a decimal of bytes."""
    return logical("bytes", "decimal", precision=precision, scale=scale)


def array(of: Json) -> dict[str, Json]:
    """Make an array."""
    return {"type": "array", "items": of}


def fixed(size: int, name: str = "e.F") -> dict[str, Json]:
    """Make a fixed."""
    return {"type": "fixed", "name": name, "size": size}


A = ("a", "int")
ITEM = record(("x", "int"), name="e.Item")
NODE = record(("v", "int"), ("next", ["null", "e.A_v1"]))
NODE_OF_TEXT = record(("v", "string"), ("next", ["null", "e.A_v1"]))

INCOMPATIBLE = [
    (record(A), record(("a", "string")), [("type-mismatch", "a", "a")]),
    (record(A), record(A, ("b", "int")), [("missing-default", "b", "")]),
    (record(("a", "long")), record(A), [("type-mismatch", "a", "a")]),
    (record(("a", "double")), record(("a", "float")), [("type-mismatch", "a", "a")]),
    (record(("a", "bytes")), record(("a", "string")), [("not-text", "a", "a")]),
    (record(("d", enum("A", "B"))), record(("d", enum("A"))), [("missing-symbols", "d", "d")]),
    (record(("f", fixed(2))), record(("f", fixed(3))), [("fixed-size-mismatch", "f", "f")]),
    (record(("f", fixed(2))), record(("f", fixed(2, "e.G"))), [("name-mismatch", "f", "f")]),
    (
        record(("f", fixed(2))),
        record(("f", fixed(3, "e.G"))),
        [("name-mismatch", "f", "f"), ("fixed-size-mismatch", "f", "f")],
    ),
    (record(("m", decimal(6, 2))), record(("m", decimal(6, 3))), [("logical-type-mismatch", "m", "m")]),
    (record(("m", decimal(6, 2))), record(("m", decimal(4, 2))), [("logical-type-mismatch", "m", "m")]),
    (record(("m", "string")), record(("m", decimal(4, 2))), [("logical-type-mismatch", "m", "m")]),
    (
        record(("t", logical("long", "timestamp-millis"))),
        record(("t", logical("long", "timestamp-micros"))),
        [("logical-type-mismatch", "t", "t")],
    ),
    (record(("u", ["null", "int"])), record(("u", "int")), [("type-mismatch", "u", "u<null>")]),
    (record(("u", ["null", "int"])), record(("u", ["null", "string"])), [("missing-branch", "u", "u<int>")]),
    (record(("u", "int")), record(("u", ["null", "string"])), [("missing-branch", "u", "u")]),
    (
        record(("u", ["null", array(["null", ITEM])])),
        record(("u", ["null", array(["null", record(("x", "int"), ("y", "int"), name="e.Item")])])),
        [("missing-default", "u<array>[]<e.Item>.y", "u<array>[]<e.Item>")],
    ),
    (
        record(("m", {"type": "map", "values": array("int")})),
        record(("m", {"type": "map", "values": array("boolean")})),
        [("type-mismatch", "m{}[]", "m{}[]")],
    ),
    (
        record(("old", "int")),
        record(("new", "string"), aliases=["x"]) | {"fields": [{"name": "new", "type": "string", "aliases": ["old"]}]},
        [("type-mismatch", "new", "old")],
    ),
    (NODE, NODE_OF_TEXT, [("type-mismatch", "v", "v")]),
    (
        record(("i", ITEM), ("j", "e.Item"), A),
        record(("i", record(("x", "string"), name="e.Item")), ("j", "e.Item"), ("a", "boolean")),
        [("type-mismatch", "i.x", "i.x"), ("type-mismatch", "j.x", "j.x"), ("type-mismatch", "a", "a")],
    ),
]


def plain(document: Json) -> Any:
    """Give fastavro a schema without logical types, whose values it would turn into Python's."""
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items() if key != "logicalType"}
    return [plain(item) for item in document] if isinstance(document, list) else document


@pytest.mark.parametrize(("writer", "reader", "expected"), INCOMPATIBLE)
def test_every_incompatibility_is_named_with_its_paths(
    writer: Json, reader: Json, expected: list[tuple[str, str, str]]
) -> None:
    """All that does not resolve is found, in the order of the reader's fields, and for each there is a datum that does not."""
    written, readable = parsed(writer), parsed(reader)
    found = check(readable, written)
    assert [(i.kind, i.reader_path, i.writer_path) for i in found] == expected
    for incompatibility in found:
        datum = witness(written, incompatibility)
        assert datum is not None
        problems = Resolution(written.type, readable.type).failures(datum.body)
        assert incompatibility.problem in [problem for _, problem in problems] or incompatibility.kind in {
            "name-mismatch",
            "fixed-size-mismatch",  # hidden by the name
        }
        if writer is not NODE:  # fastavro's reader of JSON knows no types that hold themselves
            told = next(fastavro.json_reader(io.StringIO(datum.text), plain(writer)))
            assert told == fastavro.schemaless_reader(io.BytesIO(datum.body), plain(writer), None)


def test_no_kind_is_left_out() -> None:
    """No kind of incompatibility is without an example, and none, nor a mode, without its row in the documentation."""
    assert {kind for _, _, expected in INCOMPATIBLE for kind, _, _ in expected} == set(KINDS)
    rows = (Path(__file__).parents[3] / "docs" / "integrate" / "schema-compatibility.md").read_text().splitlines()
    for name in (*KINDS, *COMPATIBILITIES):
        assert any(row.startswith(f"| `{name}` |") for row in rows), name


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record(A), record(("a", "long"))),
        (record(A), record(("a", "double"))),
        (record(("a", "long")), record(("a", "float"))),
        (record(("a", "float")), record(("a", "double"))),
        (record(("a", "string")), record(("a", "bytes"))),
        (record(A), record(("a", ["null", "long"]))),
        (record(("a", ["int", "long"])), record(("a", "double"))),
        (record(A, ("b", "int")), record(A)),
        (record(A), record(("z", "int", 1), A)),
        (record(A, ("b", "string")), record(("b", "string"), A)),
        (record(("d", enum("A", "B"))), record(("d", enum("A", default="A")))),
        (record(("d", enum("A", "B"))), record(("d", enum("X", "B", "A")))),
        (record(("u", ["null", "int"])), record(("u", ["string", "int", "null"]))),
        (record(("u", ["string", "bytes"])), record(("u", ["bytes", "string"]))),
        (record(("m", decimal(4, 2))), record(("m", decimal(6, 2)))),
        (record(("m", "bytes")), record(("m", decimal(6, 2)))),
        (record(("f", fixed(2))), record(("f", fixed(2, "o.F")))),
        (record(("f", fixed(2))), record(("f", {**fixed(2, "e.G"), "aliases": ["F"]}))),
        (NODE, record(("v", "double"), ("next", ["null", "e.A_v1"]), ("more", "int", 0))),
    ],
)
def test_what_avro_promises_is_compatible(writer: Json, reader: Json) -> None:
    """Promotions, defaults, aliases, unqualified names, grown unions and recursion resolve."""
    assert check(parsed(reader), parsed(writer)) == []


def test_a_type_used_everywhere_is_shown_some_times() -> None:
    """The number of paths to one mistake is bounded, and so is the time to find them."""
    doubling: Json = record(("x", "int"), name="e.T0")
    changed: Json = record(("x", "string"), name="e.T0")
    for level in range(1, 30):
        doubling = record(("l", doubling), ("r", f"e.T{level - 1}"), name=f"e.T{level}")
        changed = record(("l", changed), ("r", f"e.T{level - 1}"), name=f"e.T{level}")
    assert len(check(parsed(changed), parsed(doubling))) == PATHS_MAX


def test_no_datum_lies_deeper_than_values_may() -> None:
    """An incompatibility that no acceptable value can reach is named, without a witness."""
    links: list[tuple[Any, ...]] = [("l80", ["null", record(("next", "string"), name="e.L80", aliases=["A_v1"])], None)]
    for number in range(79, 0, -1):
        link = record(("next", ["null", f"e.L{number + 1}"]), name=f"e.L{number}", aliases=["A_v1"])
        links.append((f"l{number}", ["null", link], None))
    written = parsed(record(("next", ["null", "e.A_v1"])))
    (incompatibility, *_) = check(parsed(record(*links, ("next", ["null", "e.L1"]))), written)
    assert len(incompatibility.writer_route) > 2 * 64
    assert witness(written, incompatibility) is None


def versions(*documents: Json) -> list[SchemaVersion]:
    """Make the minors of a type, oldest first."""
    return [
        SchemaVersion("e.A_v1", f"1.{minor}", f"e/A_v1/1.{minor}.avsc", parsed(document))
        for minor, document in enumerate(documents)
    ]


# 1.1 cannot read 1.0, 1.2 cannot be read by 1.1, and between 1.0 and 1.2 both fail.
CHAIN = versions(record(A), record(A, ("b", "int")), record(A, ("b", "int", 1), ("c", "int")))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("NONE", set()),
        ("BACKWARD", {("1.1", "1.0", BACKWARD), ("1.2", "1.1", BACKWARD)}),
        ("BACKWARD_TRANSITIVE", {("1.1", "1.0", BACKWARD), ("1.2", "1.1", BACKWARD), ("1.2", "1.0", BACKWARD)}),
        ("FORWARD", set()),
        ("FORWARD_TRANSITIVE", set()),
        ("FULL", {("1.1", "1.0", BACKWARD), ("1.2", "1.1", BACKWARD)}),
        ("FULL_TRANSITIVE", {("1.1", "1.0", BACKWARD), ("1.2", "1.1", BACKWARD), ("1.2", "1.0", BACKWARD)}),
    ],
)
def test_each_mode_compares_what_it_says(mode: str, expected: set[tuple[str, str, str]]) -> None:
    """With BACKWARD the newer one reads the older one's data, with FORWARD the other way round. FULL is both, TRANSITIVE with all before."""
    assert {(f.minor.minor, f.against.minor, f.direction) for f in check_minors(CHAIN, mode)} == expected
    turned = versions(*[json.loads(version.schema.text) for version in reversed(CHAIN)])
    mirrored = mode.replace("BACKWARD", "x").replace("FORWARD", "BACKWARD").replace("x", "FORWARD")
    assert len({(f.minor.minor, f.against.minor) for f in check_minors(turned, mirrored)}) == len(expected)
    assert all(f.direction == FORWARD for f in check_minors(turned, mirrored))


# Folders.

RULE = '[[rule]]\ndestination = "X/A.*"\nschema = "e.A_v1"\nencoding = "%s"\n'


def folder(*minors: Json, mode: str = "", encoding: str = "single-object", more: str = "") -> dict[str, bytes]:
    """Make a folder of one type."""
    toml = f'[type."e.A_v1"]\ncompatibility = "{mode}"\n' if mode else ""
    texts = {f"e/A_v1/1.{index}.avsc": json.dumps(minor).encode() for index, minor in enumerate(minors)}
    return texts | {"registry.toml": (toml + RULE % encoding + more).encode()}


def problems(texts: Mapping[str, bytes]) -> list[SchemaError]:
    """Load a folder that is no good."""
    registry, found = inspect_registry(texts)
    assert (registry is None) == bool(found)
    if found:
        with pytest.raises(SchemaError) as caught:
            load_registry(texts)
        assert all(str(located(problem, texts)) in str(caught.value) for problem in found)
    return found


def test_a_bad_minor_is_refused_with_all_that_is_bad() -> None:
    """The error lists the file, each place in it, the mode, the direction, the older file, a datum and what to do."""
    bad = record(("a", "string"), ("d", enum("A", "B")), ("n", ["null", "int"]))
    found = problems(folder(record(A, ("d", enum("A", default="A"))), bad))
    assert [(problem.file, problem.place) for problem in found] == [
        ("e/A_v1/1.1.avsc", "fields[0].type"),
        ("e/A_v1/1.1.avsc", "fields[2].type"),
        ("e/A_v1/1.1.avsc", "fields[0].type"),
    ]
    text = str(found[1])
    assert text.startswith("e/A_v1/1.1.avsc: fields[2].type: n: ")
    for part in ("FULL_TRANSITIVE", '{"a": 0, "d": "A"}', "backward", "e/A_v1/1.0.avsc", "default"):
        assert part in text
    assert "forward compatible with e/A_v1/1.0.avsc" in str(found[2])


def test_the_mode_of_the_type_decides() -> None:
    """FORWARD and NONE allow a change that BACKWARD forbids."""
    minors = record(A), record(A, ("b", "int"))
    refused = {mode for mode in COMPATIBILITIES if problems(folder(*minors, mode=mode))}
    assert refused == {"BACKWARD", "BACKWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"}


def test_one_mistake_is_told_once() -> None:
    """A minor that goes with none of its predecessors is reported once, with all of them."""
    minors = [record(A, *[(f"x{index}", ["null", "int"], None) for index in range(minor)]) for minor in range(4)]
    (problem,) = problems(folder(*minors, record(A, ("b", "int")), mode="BACKWARD_TRANSITIVE"))
    assert all(f"e/A_v1/1.{minor}.avsc" in str(problem) for minor in range(5))


def test_a_place_in_another_file_is_where_that_is_referred_to() -> None:
    """A change in a type of another file is shown where the minor refers to it."""
    texts = folder(
        record(("i", array("e.B_v1")), references={"e.B_v1": "1.0"}),
        record(("i", array("e.B_v1")), references={"e.B_v1": "1.1"}),
    )
    texts["e/B_v1/1.0.avsc"] = json.dumps(record(("x", "int"), name="e.B_v1")).encode()
    texts["e/B_v1/1.1.avsc"] = json.dumps(record(("x", "int"), ("y", "int"), name="e.B_v1")).encode()
    found = problems(texts)
    assert ("e/A_v1/1.1.avsc", "fields[0].type.items") in {(problem.file, problem.place) for problem in found}
    assert ("e/B_v1/1.1.avsc", "fields[1].type") in {(problem.file, problem.place) for problem in found}


def test_a_file_that_cannot_be_used_is_not_compared() -> None:
    """A mistake in a file gives no further ones of what would stand in for it."""
    texts = folder(record(("i", "e.B_v1")), record(("i", "e.B_v1"), ("b", "int")))
    texts["e/B_v1/1.0.avsc"] = b"{"
    assert {problem.file for problem in problems(texts)} == {"e/B_v1/1.0.avsc"}


SILENT = [
    ("fields change places", record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int"))),
    ("symbols change places", record(("d", enum("A", "B"))), record(("d", enum("B", "A")))),
    (
        "a symbol before others",
        record(("d", enum("A", "B", default="A"))),
        record(("d", enum("X", "A", "B", default="A"))),
    ),
    ("same width", record(("a", "float", 0)), record(("b", "int", 0))),
    (
        "a field in front",
        record(("s", "string"), ("t", "string")),
        record(("n", "int", 0), ("s", "string"), ("t", "string")),
    ),
    ("branches change places", record(("u", ["int", "long"])), record(("u", ["long", "string", "int"]))),
    ("a unit", record(("t", logical("long", "timestamp-millis"))), record(("t", logical("long", "timestamp-micros")))),
]


@pytest.mark.parametrize(("old", "new"), [pytest.param(old, new, id=what) for what, old, new in SILENT])
@pytest.mark.parametrize("mode", COMPATIBILITIES)
def test_a_silent_change_is_refused_in_every_mode(old: Json, new: Json, mode: str) -> None:
    """A bare datum that would be taken for something else is shown in every mode, unless each datum has its version."""
    for encoding in ("datum", "envelope"):
        (problem, *_) = [p for p in problems(folder(old, new, mode=mode, encoding=encoding)) if "bare datum" in str(p)]
        assert problem.file == "e/A_v1/1.1.avsc"
        assert "rule[0] of registry.toml" in str(problem)
        safe = folder(old, new, mode=mode, encoding=encoding, more="require_version = true\n")
        assert not any("bare datum" in str(problem) for problem in problems(safe))
    assert not any("bare datum" in str(problem) for problem in problems(folder(old, new, mode=mode)))


def test_the_body_that_is_shown_is_misread() -> None:
    """The newer minor reads another value from the shown body than the older one wrote."""
    for _, old, new in SILENT:
        (change, *_) = silent_changes(parsed(old), parsed(new))
        read = [
            fastavro.schemaless_reader(io.BytesIO(change.body), fastavro.parse_schema(of), None) for of in (old, new)
        ]
        assert read[0] != read[1]
        assert (change.old, change.new) != ({}, {})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (record(A), record(A, ("b", ["null", "int"], None))),
        (record(A), record(A, ("b", "null", None))),
        (
            record(("d", enum("A", default="A")), ("s", "string")),
            record(("d", enum("A", "B", default="A")), ("s", "string")),
        ),
        (record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int"), ("c", "int", 0))),
        (record(("u", ["null", "int"], None), A), record(("u", ["null", "int", "string"], None), A)),
        (record(("i", array(ITEM))), record(("i", array(record(("x", "int"), ("y", "int", 0), name="e.Item"))))),
        (record(A), {**record(), "fields": [{"name": "z", "type": "int", "aliases": ["a"]}]}),
        (record(("s", "string"), A), record(("s", "bytes"), ("a", "long"))),
    ],
)
def test_a_harmless_change_is_not_refused(old: Json, new: Json) -> None:
    """No body of the older minor means something else under the newer one, so nothing is reported."""
    assert silent_changes(parsed(old), parsed(new)) == []


def test_only_the_types_of_bare_rules_are_held_to_it() -> None:
    """A type that only others refer to has no bare data of its own."""
    texts = folder(record(("i", "e.B_v1"), references={"e.B_v1": "1.0"}), encoding="datum")
    texts["e/B_v1/1.0.avsc"] = json.dumps(record(("x", "int"), ("y", "int"), name="e.B_v1")).encode()
    texts["e/B_v1/1.1.avsc"] = json.dumps(record(("y", "int"), ("x", "int"), name="e.B_v1")).encode()
    assert problems(texts) == []


# The identity of a minor.


def referring(pinned: str, second: Json | None) -> dict[str, bytes]:
    """Make a folder with a type that refers to another one."""
    texts = folder(record(("i", "e.B_v1"), references={"e.B_v1": pinned}))
    texts["e/B_v1/1.0.avsc"] = json.dumps(record(("x", "int"), name="e.B_v1")).encode()
    if second is not None:
        texts["e/B_v1/1.1.avsc"] = json.dumps(second).encode()
    return texts


def test_fingerprints_are_of_the_text_with_everything_in_it() -> None:
    """Both fingerprints are those that fastavro makes of the served text; a pin, and nothing else, decides what is in it."""
    grown = record(("x", "int"), ("y", "int", 0), name="e.B_v1")
    alone, beside, newer = [
        load_registry(texts) for texts in (referring("1.0", None), referring("1.0", grown), referring("1.1", grown))
    ]
    one, two, three = [registry.versions("e.A_v1")[0] for registry in (alone, beside, newer)]
    assert (one.crc_64, one.sha_256, one.text_sha256) == (two.crc_64, two.sha_256, two.text_sha256)
    assert one.crc_64 != three.crc_64
    for version in (one, three):
        canonical = fastavro.schema.to_parsing_canonical_form(json.loads(version.schema.text))
        assert version.crc_64.hex() == fingerprint(canonical, "CRC-64-AVRO")
        assert version.sha_256.hex() == fingerprint(canonical, "SHA-256")


def test_a_released_minor_is_held_to_all_that_is_in_it() -> None:
    """The lock sees a changed doc in a type that a released minor only refers to, and lists both files."""
    texts = referring("1.0", None)
    texts["registry.lock"] = load_registry(texts).lock()
    texts["e/B_v1/1.0.avsc"] = json.dumps(record(("x", "int"), name="e.B_v1", doc="changed")).encode()
    assert {problem.file for problem in problems(texts)} == {"e/A_v1/1.0.avsc", "e/B_v1/1.0.avsc"}
    del texts["e/B_v1/1.0.avsc"]
    assert any("restore it" in str(problem).lower() for problem in problems(texts))


def test_a_reference_to_one_of_two_minors_is_pinned() -> None:
    """A minor more of a type never changes what another one means: a reference that would be open is an error."""
    texts = referring("1.0", record(("x", "int"), ("y", "int", 0), name="e.B_v1"))
    texts["e/A_v1/1.0.avsc"] = json.dumps(record(("i", "e.B_v1"))).encode()
    assert any('"references": {"e.B_v1": "1.1"}' in str(problem) for problem in problems(texts))
