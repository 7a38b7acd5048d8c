"""The walker: every Avro type, and bodies that are not of it."""

import json
import struct

import pytest

from maxam.avro.explainer import Fault
from maxam.avro.schema import parse_schema as parse
from maxam.avro.source import read_source
from maxam.avro.walker import Walker


def number(value: int) -> bytes:
    """Encode an int or long."""
    rest = (value << 1) ^ (value >> 63) if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def text(value: str | bytes) -> bytes:
    """Encode a string or bytes."""
    data = value.encode() if isinstance(value, str) else value
    return number(len(data)) + data


def record(name: str, **fields: object) -> dict[str, object]:
    """Write a record."""
    return {"type": "record", "name": name, "fields": [{"name": key, "type": of} for key, of in fields.items()]}


def array(items: object) -> dict[str, object]:
    """Write an array."""
    return {"type": "array", "items": items}


def map_of(values: object) -> dict[str, object]:
    """Write a map."""
    return {"type": "map", "values": values}


def walker(schema: object) -> Walker:
    """Compile a schema."""
    return Walker(parse(read_source("test.avsc", json.dumps(schema).encode())).type)


def fault_of(schema: object, body: bytes) -> Fault | None:
    """Check in both ways, which must agree, with and without other bytes around."""
    checked = walker(schema)
    fault = checked.explain(body, 0, len(body))
    assert checked.accepts(body, 0, len(body)) == (fault is None)
    around = b"\x02\x02" + body + b"\x02\x02\x02"
    assert checked.accepts(around, 2, 2 + len(body)) == (fault is None)
    moved = checked.explain(around, 2, 2 + len(body))
    assert (moved and moved.offset - 2) == (fault and fault.offset)
    return fault


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}
NODE = record("Node", value="long", next=["null", "Node"])
TREE = record("Tree", children=array("Tree"))
NOTHING = record("Nothing")


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("null", b""),
        ("boolean", b"\x00"),
        ("boolean", b"\x01"),
        ("int", number(0)),
        ("int", number(-1)),
        ("int", number(64)),
        ("int", number(2**31 - 1)),
        ("int", number(-(2**31))),
        *[("long", number(sign * (1 << bits) - (sign > 0))) for bits in range(64) for sign in (1, -1)],
        ("float", struct.pack("<f", 1.5)),
        ("double", struct.pack("<d", 1.5)),
        ("bytes", text(b"")),
        ("bytes", text(b"\xff" * 300)),
        ("string", text("")),
        ("string", text("a" * 63)),
        ("string", text("a" * 64)),
        ("string", text("é☃😀")),
        ("string", text("é" * 200)),
        (COLOUR, number(0)),
        (COLOUR, number(1)),
        (FOUR, b"\xff\xfe\xfd\xfc"),
        (record("R", a="long", b="string", c="string", d="boolean"), number(300) + text("x") + text("ÿ") + b"\x01"),
        (
            record("R", a=record("S", b="string"), c="string", d=["null", "S"]),
            text("x") + text("y") + b"\x02" + text("z"),
        ),
        (NOTHING, b""),
        (array("int"), b"\x00"),
        (array("int"), number(2) + number(1) + number(-70000) + number(1) + number(5) + b"\x00"),
        (array("int"), number(-2) + number(3) + b"\x02" + b"\x80\x01" + b"\x00"),
        (array(array("string")), number(1) + number(2) + text("a") + text("b") + b"\x00" + b"\x00"),
        (array("null"), number(1000) + b"\x00"),
        (array(NOTHING), number(-1000) + number(0) + b"\x00"),
        (map_of("long"), b"\x00"),
        (map_of("long"), number(2) + text("a") + number(1) + text("é") + number(2) + b"\x00"),
        (map_of("null"), number(3) + text("a") + text("b") + text("c") + b"\x00"),
        (["null", "long"], b"\x00"),
        (["null", "long"], b"\x02" + number(5)),
        (["null", array("null")], b"\x02\x00"),
        ([COLOUR, FOUR, "string"], b"\x02abcd"),
        (NODE, b"\x02\x02" * 63 + b"\x02\x00"),
        (TREE, b"\x02" * 31 + b"\x00" * 32),
        ("long", b"\x80\x00"),  # padded numbers are accepted, as decoders do
        ("int", b"\x82\x80\x80\x80\x00"),
        (COLOUR, b"\x82\x00"),
        (["null", "long"], b"\x80\x00"),
        ({"type": "long", "logicalType": "timestamp-micros"}, number(1_700_000_000_000_000)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, text(b"\x01\x00")),
        ({"type": "string", "logicalType": "uuid"}, text("anything: only the base encoding is checked")),
    ],
)
def test_whatever_is_valid_is_accepted(schema: object, body: bytes) -> None:
    """A value of each type is accepted, and no shorter or longer body is one."""
    assert fault_of(schema, body) is None
    for cut in range(len(body)):
        assert fault_of(schema, body[:cut]) is not None
    longer = fault_of(schema, body + b"\x00")
    assert longer is not None
    assert longer.offset == len(body)


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [
        # what fastavro lets pass
        ("long", b"\x02\x02", "value: expected the end of the value, found 1 byte more at byte 1"),
        ("boolean", b"\x07", "value: expected boolean, found byte 7 at byte 0"),
        (COLOUR, number(-1), "value: expected enum Colour, index 0 to 1, found index -1 at byte 0"),
        (COLOUR, number(2), "value: expected enum Colour, index 0 to 1, found index 2 at byte 0"),
        (["null", "long"], number(-1), "value: expected union of null, long, found index -1 at byte 0"),
        (["null", "long"], number(2), "value: expected union of null, long, found index 2 at byte 0"),
        ("int", number(2**31), "value: expected int, found 2147483648, which needs more than 32 bits at byte 0"),
        (
            "int",
            number(-(2**31) - 1),
            "value: expected int, found -2147483649, which needs more than 32 bits at byte 0",
        ),
        ("long", b"\x80" * 400_000 + b"\x00", "value: expected long, found a number beyond 64 bits or of more than 10"),
        ("long", b"\xff" * 9 + b"\x02", "value: expected long, found a number beyond 64 bits or of more than 10 bytes"),
        ("int", b"\x80" * 10 + b"\x00", "value: expected int, found a number beyond 64 bits or of more than 10 bytes"),
        (
            array("null"),
            number(20_000_000) + b"\x00",
            "value: expected at most 1000 items without bytes, found 20000000",
        ),
        (array(NOTHING), number(2**62) + b"\x00", "value: expected at most 1000 items without bytes"),
        (array(array("null")), (number(1) + number(600) + b"\x00") * 2 + b"\x00", "[1]: expected at most 1000 items"),
        (NODE, b"\x02\x02" * 50_000 + b"\x02\x00", "in each other, found one more at byte 128"),
        (TREE, b"\x02" * 100_000 + b"\x00" * 100_000, "expected at most 64 records, arrays and maps in each other"),
        # lengths and counts
        (array("int"), number(1000) + b"\x02" * 999, "array of at most one item per byte, found 1000 items with 999"),
        (array("int"), number(2**63 - 1) + b"\x02", "expected array of at most one item per byte"),
        (array("int"), number(-(2**63)) + number(1) + b"\x02\x00", "expected array of at most one item per byte"),
        (
            array("int"),
            number(-2) + number(3) + b"\x02\x02\x00",
            "a block of the stated 3 bytes, found 2 bytes at byte 4",
        ),
        (
            array("int"),
            number(-2) + number(1) + b"\x02\x02\x00",
            "a block of the stated 1 byte, found 2 bytes at byte 4",
        ),
        (array("int"), number(-1) + number(-1) + b"\x02\x00", "array's block size, found -1 with 2 bytes left"),
        (array("int"), number(-1) + number(2**40) + b"\x02\x00", "array's block size, found 1099511627776"),
        (array("null"), number(-1) + number(1) + b"\x00", "a block of the stated 1 byte, found 0 bytes at byte 2"),
        ("string", number(-1), "value: expected string, found length -1 with 0 bytes left at byte 0"),
        ("string", number(2**62), "value: expected string, found length 4611686018427387904 with 0 bytes left"),
        ("bytes", number(-1) + b"abc", "value: expected bytes, found length -1 with 3 bytes left at byte 0"),
        ("bytes", number(4) + b"abc", "value: expected bytes, found length 4 with 3 bytes left at byte 0"),
        (FOUR, b"abc", "value: expected fixed Four of 4 bytes, found the end of the body after 3 bytes at byte 0"),
        ("double", b"", "value: expected double, found the end of the body at byte 0"),
        ("boolean", b"", "value: expected boolean, found the end of the body at byte 0"),
        # text
        ("string", text(b"a\xff"), "value: expected string of UTF-8, found byte 255 at byte 2"),
        ("string", text(b"\xed\xa0\x80"), "value: expected string of UTF-8, found byte 237 at byte 1"),
        ("string", text(b"\xc0\x80"), "value: expected string of UTF-8, found byte 192 at byte 1"),
        (
            record("R", a="string", b="string"),
            text(b"\xc3") + text(b"\xa9"),
            "a: expected string of UTF-8, found byte 195",
        ),
        (map_of("int"), number(1) + text(b"\xff") + b"\x00\x00", "[0]: expected string of UTF-8, found byte 255"),
        # paths
        (record("R", a=record("S", b="boolean")), b"\x02", "a.b: expected boolean, found byte 2 at byte 0"),
        (record("R", m=array(record("S", c="boolean"))), b"\x04\x00\x02", "m[1].c: expected boolean, found byte 2"),
        (
            record("R", m=["null", record("S", c="int")]),
            b"\x02",
            "m<S>.c: expected int, found the end of the body at byte 1",
        ),
        (record("R", m=["null", "boolean"]), b"\x02\x05", "m<boolean>: expected boolean, found byte 5 at byte 1"),
        (record("R", m=map_of("boolean")), b"\x02" + text("k") + b"\x02", "m[0]: expected boolean, found byte 2"),
    ],
)
def test_whatever_is_not_valid_is_refused_with_its_place(schema: object, body: bytes, reason: str) -> None:
    """Each hostile or broken body is refused, and the fault names path, expected, found and offset."""
    assert reason in str(fault_of(schema, body))


def test_types_without_bytes_cost_nothing() -> None:
    """A value that takes no bytes costs no work, however many types without bytes its schema holds."""
    schema: dict[str, object] = record("E0")
    for level in range(1, 40):  # one by one, the last would be 2**39 values
        schema = record(f"E{level}", a=schema, b=f"E{level - 1}")
    assert fault_of(schema, b"") is None
    assert fault_of(array(schema), number(1000) + b"\x00") is None


def test_records_used_many_times_do_not_multiply() -> None:
    """The compiled form of a schema stays small when records hold a record twice, level over level."""
    schema: dict[str, object] = record("R0", v="long", s="string")
    for level in range(1, 20):
        schema = record(f"R{level}", a=schema, b=f"R{level - 1}")
    assert fault_of(schema, b"") is not None


def test_depth_counts_records_arrays_and_maps_alike() -> None:
    """A value may lie 64 levels deep, whether its records are inlined or called, and not 65."""
    wide = record("Wide", **{f"f{i}": "long" if i % 2 else "string" for i in range(40)}, inner=["null", "Top"])
    top = record("Top", middle=record("Middle", wide=wide, also=record("Also", m=map_of("int"))))
    fields = b"\x00" * 40

    def deep(tops: int) -> bytes:
        return (fields + b"\x02") * (tops - 1) + fields + b"\x00" + b"\x00" * tops

    # n tops lie in n-1 times (Top, Middle, Wide); the last ends with Top, Middle, Also, map
    assert fault_of(top, deep(20)) is None
    assert fault_of(top, deep(21)) is None
    assert "at most 64" in str(fault_of(top, deep(22)))


def test_long_paths_and_expectations_are_cut() -> None:
    """A fault's text stays short whatever the schema's names are."""
    schema = record("R", **{"a" * 500: ["null", record("B" * 300)]})
    assert len(str(fault_of(schema, b"\x09"))) < 300


def test_a_far_fault_is_not_searched_for() -> None:
    """A body is refused wherever its fault is, but only the beginning of a large one is explained."""
    checked = walker(array("boolean"))
    body = number(40_000) + b"\x00" * 39_999 + b"\x07\x00"
    assert not checked.accepts(body, 0, len(body))
    reason = "expected a value of the schema, found a fault after the first 20000 values"
    assert reason in str(checked.explain(body, 0, len(body)))


WIDE = record("Wide", **{f"f{i}": "long" if i % 2 else "string" for i in range(100)})


@pytest.mark.parametrize(
    ("schema", "item", "items_max"),
    [
        (array("string"), b"\x00", 500_000),
        (map_of("long"), b"\x00\x00", 250_000),
        (array(WIDE), bytes(100), 4950),  # and 1 for each call
        (array(["null", WIDE]), b"\x02" + bytes(100), 4950),
        (array(["null", WIDE]), b"\x00", 500_000),
    ],
)
def test_repeated_values_are_limited(schema: object, item: bytes, items_max: int) -> None:
    """About 500,000 values in arrays and maps are accepted and one more is not: no connection is served while they are checked."""
    checked = walker(schema)
    for items, accepted in ((items_max, True), (items_max + 1, False)):
        body = number(items) + item * items + b"\x00"
        assert checked.accepts(body, 0, len(body)) == accepted
        assert accepted or checked.explain(body, 0, len(body)) is not None


def test_what_is_tried_first_accepts_only_values() -> None:
    """Interpreted, an expression checks usual values before the loop does, and accepts no other bytes."""
    letters = {"type": "enum", "name": "Letter", "symbols": [f"S{n}" for n in range(70)]}
    assert fault_of(["bytes"], b"") is not None
    assert fault_of(["bytes"], b"\x00\x02!") is None
    assert fault_of(["null", "bytes"], b"\x00") is None
    assert fault_of(["null", "bytes"], b"") is not None
    assert fault_of(letters, number(69)) is None
    assert fault_of(letters, number(70)) is not None
    assert fault_of("string", b"\x04\xc3\xa9") is None
    assert fault_of("string", b"\x04\xc3(") is not None
    assert fault_of(record("R", skip="double", on="boolean"), b"\n" * 8 + b"\x01") is None
    assert fault_of(record("R", skip="double", on="boolean"), b"\n" * 8 + b"\x02") is not None


def test_a_tree_costs_no_more_than_its_text() -> None:
    """A record that may hold itself many times is compiled at once, and its values are checked like any."""
    fields = {f"f{index}": ["null", "Tree"] for index in range(8)}
    tree = record("Tree", **fields)
    leaf = bytes(8)
    assert fault_of(tree, leaf) is None
    assert fault_of(tree, b"\x02" + leaf + bytes(6) + b"\x02" + leaf) is None
    assert fault_of(tree, b"\x02" + leaf + bytes(6)) is not None


@pytest.mark.parametrize("kind", ["boolean", "int", "long", "float", "string"])
def test_records_that_multiply_to_billions_are_only_larger_than_any_body(kind: str) -> None:
    """Four records, each of three hundred of the one before, are a type like any, of which no body is long enough."""
    inner: object = kind
    again = kind
    for name in ("A", "B", "C", "D"):
        fields = [inner] + [again] * 299
        inner = record(name, **{f"f{index}": of for index, of in enumerate(fields)})
        again = name
    assert fault_of(inner, bytes(1000)) is not None
