"""Values of many rows as arrays: what fastavro reads one by one."""

import datetime as dt
import io
import json
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.pipeline.history.arrays import Reader, Slots, UnfitError, arrow_type
from maxam.pipeline.history.columns import ColumnType

LONG = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-70, 70))


def text(of: Any) -> str:
    """Make the text of a record with one field `a`."""
    document = {"type": "record", "name": "t.A_v1", "fields": [{"name": "a", "type": of}]}
    return parse_schema(read_source("t", json.dumps(document).encode())).text.decode()


def encoder(of: Any) -> Callable[[Any], bytes]:
    """Give what encodes a value of a type."""
    schema = fastavro.parse_schema(json.loads(text(of)))

    def encode(value: Any) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, {"a": value})
        return stream.getvalue()

    return encode


def column(of: Any, bodies: list[bytes], *more: Any) -> tuple[Any, Reader]:
    """Read bodies of a type, as a column that holds later minors too."""
    merged = ColumnType([(f"1.{number}", text(each)) for number, each in enumerate((of, *more))])
    reader = Reader(bodies)
    ends = reader.inside(np.cumsum([len(body) for body in bodies], dtype=np.int64))
    starts = ends - np.array([len(body) for body in bodies])
    found, behind = reader.column(merged.minors[0].root, merged.place(), starts, Slots(len(bodies)))
    assert behind.tolist() == ends.tolist()
    found.validate(full=True)
    assert found.type == arrow_type(merged.place())
    return found.field("a"), reader


def same(of: Any, values: list[Any], shown: list[Any] | None = None) -> None:
    """Check that values are read as they are, or as they are to be shown."""
    encode = encoder(of)
    found, reader = column(of, [encode(value) for value in values])
    assert found.to_pylist() == (values if shown is None else shown)
    assert not reader.unfit


@given(st.lists(LONG, min_size=1))
def test_numbers_of_any_length(numbers: list[int]) -> None:
    """One byte to ten, mixed."""
    same("long", numbers)


@given(st.lists(st.one_of(st.none(), st.text(), LONG, st.lists(st.one_of(st.none(), st.text()))), min_size=1))
def test_what_is_not_there_is_null(values: list[Any]) -> None:
    """Members of unions and items within, in any order."""
    of = ["null", "string", "long", {"type": "array", "items": ["null", "string"]}]
    names = {str: "string", int: "long", list: "array"}
    shown = [
        None if value is None else {name: value if type(value) is kind else None for kind, name in names.items()}
        for value in values
    ]
    same(of, values, shown)


@pytest.mark.parametrize("longest", [3, 200])
def test_items_of_many_and_of_few_rows(longest: int) -> None:
    """Arrays of records of arrays and maps: of many rows together, and of those that have more than most one by one."""
    chance = random.Random(1)  # noqa: S311 - a test
    inner = {"type": "array", "items": "string"}
    record = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "s", "type": inner},
            {"name": "m", "type": {"type": "map", "values": ["null", "double"]}},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
            {"name": "b", "type": ["boolean", {"type": "enum", "name": "E", "symbols": ["A", "B"]}]},
        ],
    }

    def item() -> dict[str, Any]:
        return {
            "n": chance.randrange(10**6),
            "s": ["x" * chance.randrange(100) for _ in range(chance.randrange(4))],
            "m": {f"k{key}": chance.choice([None, 0.5]) for key in range(chance.randrange(3))},
            "f": chance.randbytes(3),
            "b": chance.choice([True, False, "A", "B"]),
        }

    def shown(of: dict[str, Any]) -> dict[str, Any]:
        truth = isinstance(of["b"], bool)
        return of | {
            "m": list(of["m"].items()),
            "b": {"boolean": of["b"] if truth else None, "E": None if truth else of["b"]},
        }

    values = [[item() for _ in range(chance.randrange(4))] for _ in range(300)]
    values[7] = [item() for _ in range(longest)]
    same({"type": "array", "items": record}, values, [[shown(each) for each in value] for value in values])
    same(
        {"type": "map", "values": record},
        [{f"{key}": each for key, each in enumerate(value)} for value in values],
        [[(f"{key}", shown(each)) for key, each in enumerate(value)] for value in values],
    )


def test_blocks_of_items_that_state_their_size() -> None:
    """And several of them in one array, at the top and within items that are found one by one or together."""
    part = b"\3\4\2\4" + b"\2\6" + b"\0"  # 1 and 2, in two bytes, then 3
    of = {"type": "array", "items": {"type": "array", "items": "int"}}
    for count in (1, 100):
        found, _ = column(of, [b"\6" + part * 3 + b"\0"] * count)
        assert found.to_pylist() == [[[1, 2, 3]] * 3] * count


@pytest.mark.parametrize("precision", [4, 18, 19, 38])
def test_decimals_of_any_bytes(precision: int) -> None:
    """Of as many bytes as they need, and of more; those of too many digits and of no bytes are unfit."""
    most = 10**precision - 1
    numbers = [0, 1, -1, 127, 128, -128, -129, most, -most, most // 3, -(most // 7)]
    of = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}
    bodies = []
    for number in numbers:
        least = (number if number >= 0 else ~number).bit_length() // 8 + 1
        for length in (least, least + 1, 16, 17, 30):
            data = number.to_bytes(max(least, length), "big", signed=True)
            bodies.append(bytes([2 * len(data)]) + data)
    found, reader = column(of, bodies)
    assert found.to_pylist() == [Decimal(f"{number}E-2") for number in numbers for _ in range(5)]
    assert not reader.unfit
    for number in (most + 1, -most - 1):
        data = number.to_bytes(17, "big", signed=True)
        for body in (b"\42" + data, b"\52" + data[:1] * 4 + data):
            _, reader = column(of, [b"\2\1", body])
            assert [places.tolist() for places in reader.unfit] == [[16 + 3]]
    _, reader = column(of, [b"\0"])
    assert reader.unfit


def test_promotions() -> None:
    """Into what holds later minors."""
    whole = encoder("int")(-5)
    assert column("int", [whole], "long")[0].to_pylist() == [-5]
    assert column("int", [whole], "double")[0].to_pylist() == [-5.0]
    assert column("float", [struct.pack("<f", 0.1)], "double")[0].to_pylist() == [
        struct.unpack("<f", struct.pack("<f", 0.1))[0]
    ]
    assert column("string", [b"\2x"], "bytes")[0].to_pylist() == [b"x"]
    assert column("int", [whole], ["null", "string", "int"])[0].to_pylist() == [{"int": -5, "string": None}]
    small = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    large = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 5}
    assert column(small, [b"\2\x0f"], large)[0].to_pylist() == [Decimal("1.50000")]


def test_moments() -> None:
    """Milliseconds become microseconds; those that do not fit are unfit."""
    of = {"type": "long", "logicalType": "timestamp-millis"}
    moment = dt.datetime(1815, 6, 18, 12, tzinfo=dt.UTC)
    same(of, [moment, dt.datetime(2026, 11, 21, tzinfo=dt.UTC)])
    too_late = encoder("long")(2**63 // 1000 + 1)
    _, reader = column(of, [b"\0", too_late, b"\0"])
    assert [places.tolist() for places in reader.unfit] == [[16 + 1]]


@given(st.binary(min_size=1, max_size=40), st.integers(0, 5))
def test_other_bytes_are_refused(data: bytes, which: int) -> None:
    """For any bytes, the result is of the type, or nothing is read."""
    items = {"type": "array", "items": ["null", "int", {"type": "map", "values": "string"}]}
    of = ["string", items, ["string", "long"], {"type": "enum", "name": "E", "symbols": ["A"]}, "bytes", "double"][
        which
    ]
    merged = ColumnType([("1.0", text(of))])
    reader = Reader([data])
    try:
        found, behind = reader.column(
            merged.minors[0].root, merged.place(), reader.inside(np.zeros(1, np.int64)), Slots(1)
        )
    except (UnfitError, IndexError, MemoryError):
        return
    if behind[0] == reader.inside(np.array([len(data)]))[0]:
        assert isinstance(found, pa.StructArray)
        assert len(found) == 1
