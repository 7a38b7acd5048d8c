"""The column of each Avro type, and of several minors of a type: docs/analyse/pipeline-types.md, row by row.

That the values get into these columns: test_arrays.py, and with Spark, on types by chance, tests/pipeline/test_history.py.
"""

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.pipeline.catalogue import Catalogue
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.history.columns import NODES_MAX, ColumnType, Transcoder, read_type, unique_names
from maxam.pipeline.history.rounds import column_types

ROOT = Path(__file__).parents[3]


def text(*fields: Any, name: str = "t.A_v1") -> str:
    """Make the text of a record; a field is a pair or a whole document."""
    made = [each if isinstance(each, dict) else {"name": each[0], "type": each[1]} for each in fields]
    document = {"type": "record", "name": name, "fields": made}
    return parse_schema(read_source("t", json.dumps(document).encode())).text.decode()


def column(*minors: Any) -> str:
    """Give the column type of a field that has one type in each minor."""
    merged = ColumnType([(f"1.{number}", text(("a", of))) for number, of in enumerate(minors)])
    whole = merged.sql_type()
    assert whole.startswith("struct<`a`:")
    return whole.removeprefix("struct<`a`:").removesuffix(">")


RECORD = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
EMPTY = {"type": "record", "name": "E", "fields": []}
ENUM = {"type": "enum", "name": "N", "symbols": ["A"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}


def logical(kind: str, of: str, /, **more: Any) -> dict[str, Any]:
    """Make a logical type."""
    return {"type": kind, "logicalType": of} | more


ONE_TYPE = [
    ("null", "string"),
    ("boolean", "boolean"),
    ("int", "int"),
    ("long", "bigint"),
    ("float", "float"),
    ("double", "double"),
    ("bytes", "binary"),
    ("string", "string"),
    (ENUM, "string"),
    (FIXED, "binary"),
    (logical("int", "date"), "date"),
    (logical("int", "time-millis"), "int"),
    (logical("long", "time-micros"), "bigint"),
    (logical("long", "timestamp-millis"), "timestamp"),
    (logical("long", "timestamp-micros"), "timestamp"),
    (logical("long", "timestamp-nanos"), "bigint"),
    (logical("long", "local-timestamp-millis"), "timestamp_ntz"),
    (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
    (logical("long", "local-timestamp-nanos"), "bigint"),
    (logical("string", "uuid"), "string"),
    (logical("fixed", "uuid", name="U", size=16), "string"),
    (logical("fixed", "duration", name="D", size=12), "struct<`months`:bigint,`days`:bigint,`millis`:bigint>"),
    (logical("bytes", "decimal", precision=18, scale=2), "decimal(18,2)"),
    (logical("fixed", "decimal", name="D", size=8, precision=5), "decimal(5,0)"),
    (logical("bytes", "decimal", precision=39, scale=2), "binary"),
    (logical("bytes", "big-decimal"), "binary"),
    (logical("string", "of-no-standard"), "string"),
    ({"type": "array", "items": "int"}, "array<int>"),
    ({"type": "map", "values": ["null", "long"]}, "map<string,bigint>"),
    (RECORD, "struct<`x`:int>"),
    (EMPTY, "boolean"),
    (["null", "int"], "int"),
    (["int"], "int"),
    (["null"], "string"),
    (["null", "int", "string"], "struct<`int`:int,`string`:string>"),
    (["int", "long", RECORD, EMPTY], "struct<`int`:int,`long`:bigint,`R`:struct<`x`:int>,`E`:boolean>"),
    (
        [{"type": "array", "items": "int"}, {"type": "map", "values": "int"}],
        "struct<`array`:array<int>,`map`:map<string,int>>",
    ),
    (["string", logical("long", "timestamp-millis")], "struct<`string`:string,`timestamp_millis`:timestamp>"),
]


@pytest.mark.parametrize(("of", "expected"), ONE_TYPE)
def test_every_avro_type_has_a_column(of: Any, expected: str) -> None:
    """One minor alone."""
    assert column(of) == expected


SEVERAL_MINORS = [
    (("int", "long"), "bigint"),
    (("double", "int"), "double"),
    (("int", "float"), "double"),
    (("float", "double"), "double"),
    (("string", "bytes"), "binary"),
    ((ENUM, "string"), "string"),
    (("string", FIXED), "binary"),
    (("int", ["null", "int"]), "int"),
    (("int", ["null", "int", "string"]), "struct<`int`:int,`string`:string>"),
    (("int", ["string", "long"]), "struct<`long`:bigint,`string`:string>"),
    ((["int", "long"], "double"), "struct<`int`:int,`long`:bigint,`double`:double>"),
    ((["null", "string"], ["null", "string", RECORD]), "struct<`string`:string,`R`:struct<`x`:int>>"),
    (("int", "string"), "struct<`int`:int,`string`:string>"),
    (("long", logical("long", "timestamp-millis")), "struct<`long`:bigint,`timestamp_millis`:timestamp>"),
    ((logical("long", "timestamp-millis"), logical("long", "timestamp-micros")), "timestamp"),
    (
        (logical("bytes", "decimal", precision=5, scale=2), logical("bytes", "decimal", precision=6, scale=4)),
        "decimal(7,4)",
    ),
    (
        (logical("bytes", "decimal", precision=38, scale=0), logical("bytes", "decimal", precision=38, scale=38)),
        "struct<`decimal`:decimal(38,0),`decimal_2`:decimal(38,38)>",
    ),
    ((ENUM, {**ENUM, "symbols": ["B", "A"]}), "string"),
    ((FIXED, {**FIXED, "size": 8}), "binary"),
    ((RECORD, {**RECORD, "name": "other.R"}), "struct<`x`:int>"),
    ((RECORD, {**RECORD, "name": "S"}), "struct<`R`:struct<`x`:int>,`S`:struct<`x`:int>>"),
    ((RECORD, {**RECORD, "name": "S", "aliases": ["R"]}), "struct<`x`:int>"),
    ((RECORD, {**RECORD, "fields": [{"name": "y", "type": "int"}]}), "struct<`x`:int,`y`:int>"),
    ((EMPTY, {**EMPTY, "fields": [{"name": "y", "type": "int"}]}), "struct<`y`:int>"),
    (({"type": "array", "items": "int"}, {"type": "array", "items": "double"}), "array<double>"),
    (("null", "int"), "int"),
]


@pytest.mark.parametrize(("minors", "expected"), SEVERAL_MINORS)
def test_minors_share_a_column(minors: tuple[Any, ...], expected: str) -> None:
    """The type that holds the values of all of them."""
    assert column(*minors) == expected


def test_renamed_fields_stay_one_column() -> None:
    """The column has the name of the version that has the other as alias, in any order of merging, over several steps.

    A field that takes an old name again is another column.
    """
    first = text(("a", "int"))
    second = text({"name": "b", "type": "int", "aliases": ["a"]})
    third = text({"name": "c", "type": "int", "aliases": ["b", "a"]}, ("a", "string"))
    for order in ([("1.0", first), ("1.1", second)], [("1.1", second), ("1.0", first)], [("", second), ("", first)]):
        assert ColumnType(order).sql_type() == "struct<`b`:int>"
    all_three = ColumnType([("1.0", first), ("1.1", second), ("1.2", third)])
    assert all_three.sql_type() == "struct<`c`:int,`a`:string>"


def test_names_that_differ_in_case_only_are_numbered() -> None:
    """Spark takes them for one column."""
    assert unique_names(["a", "A", "b", "a_2", "A"]) == ["a", "A_3", "b", "a_2", "A_4"]
    merged = ColumnType([("1.0", text(("Foo", "int"), ("foo", "string")))])
    assert merged.sql_type() == "struct<`Foo`:int,`foo_2`:string>"


def test_branches_of_one_short_name_are_told_apart() -> None:
    """By their full names, with underscores."""
    other = {**RECORD, "name": "u.R"}
    assert column([RECORD, other]) == "struct<`t_R`:struct<`x`:int>,`u_R`:struct<`x`:int>>"


def test_a_type_that_grows_too_large_is_refused() -> None:
    """Each record refers to the one before twice, which makes 2^13 parts when written out. It is refused, and what was merged before stays."""
    of: Any = "int"
    for number in range(13):
        fields = [{"name": "a", "type": of}, {"name": "b", "type": f"t.R{number - 1}" if number else "int"}]
        of = {"type": "record", "name": f"R{number}", "fields": fields}
    merged = ColumnType([("1.0", text(("a", "int")))])
    with pytest.raises(PipelineError, match=str(NODES_MAX)):
        merged.add("1.1", text(("a", of)))
    assert merged.sql_type() == "struct<`a`:int>"


NODE = text(
    ("v", ["null", "string"]),
    ("next", ["null", "t.N_v1"]),
    ("all", {"type": "array", "items": "t.N_v1"}),
    ("by", {"type": "map", "values": "t.N_v1"}),
    ("end", "boolean"),
    name="t.N_v1",
)


def encoded(schema: str, value: Any) -> bytes:
    """Encode with fastavro."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), value)
    return stream.getvalue()


def test_a_record_within_its_kind_becomes_json() -> None:
    """Wherever it stands: the bytes made have a string there, the JSON that of all other commands."""
    leaf: dict[str, Any] = {"v": "ä", "next": None, "all": [], "by": {}, "end": True}
    value = {"v": None, "next": {**leaf, "next": leaf}, "all": [leaf, leaf], "by": {"k": leaf}, "end": False}
    merged = ColumnType([("1.0", NODE)])
    assert merged.minors[0].root.recursive()
    assert merged.sql_type() == (
        "struct<`v`:string,`next`:string,`all`:array<string>,`by`:map<string,string>,`end`:boolean>"
    )
    made = Transcoder(NODE).transcode(encoded(NODE, value))
    assert made is not None
    # all but the name of the outermost record is a string
    flat = json.loads(NODE.replace('"t.N_v1"', '"string"').replace('"name":"string"', '"name":"t.N_v1"'))
    stream = io.BytesIO(made)
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(flat), None)
    assert stream.read() == b""
    shown = json.dumps(leaf, ensure_ascii=False, separators=(",", ":"))
    assert found == {
        "v": None,
        "next": json.dumps({**leaf, "next": leaf}, ensure_ascii=False, separators=(",", ":")),
        "all": [shown, shown],
        "by": {"k": shown},
        "end": False,
    }


def test_arrays_in_parts_with_sizes_are_transcoded() -> None:
    """A negative count and the size after it, which is another afterwards."""
    leaf = encoded(NODE, {"v": None, "next": None, "all": [], "by": {}, "end": True})
    part = b"\x03" + bytes([2 * len(leaf) * 2]) + leaf + leaf + b"\0"  # -2 items, N bytes
    made = Transcoder(NODE).transcode(b"\0\0" + part + b"\0\1")
    shown = b'{"v":null,"next":null,"all":[],"by":{},"end":true}'
    item = bytes([2 * len(shown)]) + shown
    assert made == b"\0\0\x04" + item + item + b"\0\0\1"


def test_values_that_no_column_holds_are_found() -> None:
    """Decimals of more digits than their precision or of no bytes, milliseconds that overflow; all others pass unchanged."""
    schema = text(
        ("d", logical("bytes", "decimal", precision=4, scale=2)),
        ("t", ["null", logical("long", "timestamp-millis")]),
        ("f", logical("fixed", "decimal", name="F", size=2, precision=4)),
    )
    transcoder = Transcoder(schema)
    good = encoded(schema, {"d": Decimal("-99.99"), "t": None, "f": Decimal(-9999)})
    assert transcoder.transcode(good) == good
    assert transcoder.transcode(b"\x04\x27\x10\0" + bytes(2)) is None  # 100.00
    assert transcoder.transcode(b"\0\0" + bytes(2)) is None
    assert transcoder.transcode(b"\2\0\0\x27\x10") is None
    assert transcoder.transcode(b"\2\0\2" + b"\xfe" + b"\xff" * 8 + b"\1" + bytes(2)) is None
    assert transcoder.transcode(good + b"\0") is None
    assert transcoder.transcode(good[:-1]) is None


def test_every_shipped_type_has_columns(tmp_path: Path) -> None:
    """And none is recursive: they are copied."""
    (tmp_path / "segments").mkdir()
    columns = column_types(Catalogue.load(tmp_path, ROOT / "schemas"))
    assert "egm.EGMMeterReading_v1" in columns
    for merged in columns.values():
        assert merged.sql_type().startswith("struct<")
        for minor in merged.minors:
            assert not minor.root.recursive()
            assert read_type(minor.text).kind == "record"
