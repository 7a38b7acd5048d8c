"""Avro schemas, minors of them and data, drawn by Hypothesis, for all tests that need many; and an encoder of our own.

A schema is its parsed JSON. Names are given in order, so that two schemas drawn apart share many. A later version is drawn
from its predecessor by changes such as people make, valid and invalid.
"""

import copy
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from maxam.avro.schema import Schema, parse_schema
from maxam.avro.source import read_source
from maxam.errors import SchemaError

Json = Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
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
LOGICAL: list[Json] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 3},
    {"type": "string", "logicalType": "uuid"},
]
SYMBOLS = ("A", "B", "C", "D")


def parsed(document: Json) -> Schema:
    """Parse a schema as the registry does."""
    return parse_schema(read_source("drawn", json.dumps(document).encode()))


@dataclass
class Maker:
    """Draws types.

    Attributes:
        draw: Hypothesis's.
        logical: Draw logical types too.
        count: Named types so far.
        named: Those that are complete, by name.
        opened: Names of the records that are being drawn.
    """

    draw: Any
    logical: bool = False
    count: int = 0
    named: dict[str, Json] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)

    def type(self, depth: int, in_union: bool = False) -> Json:
        """Draw any type."""
        kinds = ["primitive", "primitive", "primitive", "enum", "fixed", "again"]
        kinds += ["logical"] if self.logical else []
        if depth:
            kinds += ["record", "record", "array", "map"]
            kinds += [] if in_union else ["union", "union"]
        match self.draw(st.sampled_from(kinds)):
            case "primitive":
                return self.draw(st.sampled_from(PRIMITIVES))
            case "logical":
                return copy.deepcopy(self.draw(st.sampled_from(LOGICAL)))
            case "array":
                return {"type": "array", "items": self.type(depth - 1)}
            case "map":
                return {"type": "map", "values": self.type(depth - 1)}
            case "union":
                return self.union(depth)
            case "again":
                return self.draw(st.sampled_from([*self.named, "int"]))
            case "enum":
                return self.enum()
            case "fixed":
                return self.done({"type": "fixed", "name": self.name("F"), "size": self.draw(st.integers(0, 3))})
            case _:
                return self.record(depth)

    def name(self, letter: str) -> str:
        """Give the next name."""
        self.count += 1
        return f"n.{letter}{self.count}"

    def done(self, document: dict[str, Json]) -> dict[str, Json]:
        """Remember a named type."""
        self.named[document["name"]] = document
        return document

    def enum(self) -> dict[str, Json]:
        """Draw an enum."""
        symbols = self.draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=4, unique=True))
        default = {"default": self.draw(st.sampled_from(symbols))} if self.draw(st.booleans()) else {}
        return self.done({"type": "enum", "name": self.name("E"), "symbols": symbols, **default})

    def record(self, depth: int, fields_max: int = 4) -> dict[str, Json]:
        """Draw a record; some hold themselves."""
        name = self.name("R")
        self.opened.append(name)
        fields = [self.field(f"f{index}", depth) for index in range(self.draw(st.integers(0, fields_max)))]
        if self.draw(st.integers(0, 3)) == 0:
            inner = self.draw(st.sampled_from(self.opened))
            of = self.draw(st.sampled_from([["null", inner], {"type": "array", "items": inner}]))
            fields.append({"name": "again", "type": of})
        self.opened.pop()
        return self.done({"type": "record", "name": name, "fields": fields})

    def field(self, name: str, depth: int) -> dict[str, Json]:
        """Draw a field, some with a default."""
        of = self.type(max(depth - 1, 0))
        made = {"name": name, "type": of}
        default = default_of(of, self.named)
        if default is not NONE_GOOD and self.draw(st.booleans()):
            made["default"] = default
        return made

    def union(self, depth: int) -> list[Json]:
        """Draw a union."""
        branches: list[Json] = []
        labels: set[str] = set()
        for _ in range(self.draw(st.integers(1, 4))):
            known = set(self.named)
            branch = self.type(depth - 1, in_union=True)
            if label(branch) not in labels:
                labels.add(label(branch))
                branches.append(branch)
            else:
                self.named = {name: of for name, of in self.named.items() if name in known}
        return branches


class _NoneGood:
    """No default is good."""


NONE_GOOD = _NoneGood()


def label(of: Json) -> str:
    """Return the label that distinguishes a branch of a union."""
    return str(of if isinstance(of, str) else of.get("name", of["type"]))


def default_of(of: Json, named: dict[str, Json]) -> Json:
    """Give a default of a type; NONE_GOOD where it would take a whole record."""
    if isinstance(of, list):
        return default_of(of[0], named)
    if isinstance(of, str):
        return DEFAULTS[of] if of in DEFAULTS else default_of(named[of], named) if of in named else NONE_GOOD
    match of["type"]:
        case "array":
            return []
        case "map":
            return {}
        case "enum":
            return of["symbols"][0]
        case "fixed":
            return "x" * of["size"]
        case "record":
            return {} if not of["fields"] else NONE_GOOD
        case base:
            return DEFAULTS[base]


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, logical: bool = False) -> Json:
    """Draw the schema of a topic: a record."""
    return Maker(draw, logical).record(depth)


@st.composite
def small_schemas(draw: st.DrawFn) -> Json:
    """Draw a record of few and plain fields, where changes clash more often."""
    maker = Maker(draw)
    return maker.record(1, fields_max=5)


# Minors.


@dataclass(frozen=True)
class Spot:
    """A type in a schema: `holder[key]`."""

    holder: Any
    key: Any

    @property
    def of(self) -> Json:
        """The type itself."""
        return self.holder[self.key]


def spots(holder: Any, key: Any) -> Iterator[Spot]:
    """Give all types of a schema, from the root inwards."""
    yield Spot(holder, key)
    of = holder[key]
    if isinstance(of, list):
        for index in range(len(of)):
            yield from spots(of, index)
    elif isinstance(of, dict):
        for entry in of.get("fields", []):
            yield from spots(entry, "type")
        for inner in ("items", "values"):
            if inner in of:
                yield from spots(of, inner)


@st.composite
def minors(draw: st.DrawFn, schema: Json, changes_max: int = 2) -> Json:
    """Draw a minor that comes after another one; a change that leaves no valid schema is not made."""
    for _ in range(draw(st.integers(1, changes_max))):
        changed = {"root": copy.deepcopy(schema)}
        found = list(spots(changed, "root"))
        special = [spot for spot in found if not isinstance(spot.of, str)]
        _change(draw, draw(st.sampled_from(found) | st.sampled_from(special)))
        try:
            parsed(changed["root"])
        except SchemaError:
            continue
        schema = changed["root"]
    return schema


def _change(draw: st.DrawFn, spot: Spot) -> None:
    of = spot.of
    kind = "union" if isinstance(of, list) else of if isinstance(of, str) else of["type"]
    if kind == "record" and draw(st.integers(0, 3)):
        _change_fields(draw, of)
    elif kind == "record":
        _rename(draw, of)
    elif kind == "enum":
        _change_enum(draw, of)
    elif kind == "fixed":
        if draw(st.booleans()):
            of["size"] = draw(st.integers(0, 3))
        else:
            _rename(draw, of)
    elif kind == "union":
        _change_union(draw, spot)
    elif draw(st.integers(0, 2)) == 0:
        spot.holder[spot.key] = draw(st.sampled_from([["null", of], [of, "null"], {"type": "array", "items": of}]))
    else:
        spot.holder[spot.key] = draw(st.sampled_from([*PRIMITIVES, *copy.deepcopy(LOGICAL)]))


def _change_fields(draw: st.DrawFn, record: dict[str, Json]) -> None:
    fields = record["fields"]
    index = draw(st.integers(0, len(fields)))
    match draw(st.sampled_from(["append", "append", "insert", "remove", "move", "rename", "default"])):
        case "append":
            fields.append(_new_field(draw))
        case "insert":
            fields.insert(index, _new_field(draw))
        case "remove" if fields:
            del fields[index % len(fields)]
        case "move" if fields:
            fields.insert(draw(st.integers(0, len(fields) - 1)), fields.pop(index % len(fields)))
        case "rename" if fields:
            entry = fields[index % len(fields)]
            if draw(st.booleans()):
                entry["aliases"] = [entry["name"]]
            entry["name"] += "x"
        case "default" if fields:
            fields[index % len(fields)].pop("default", None)
        case _:
            pass


def _new_field(draw: st.DrawFn) -> dict[str, Json]:
    of = draw(st.sampled_from([*PRIMITIVES, ["null", "string"], ["null", "int"]]))
    made = {"name": f"new{draw(st.integers(0, 9))}", "type": of}
    if draw(st.integers(0, 3)):
        made["default"] = default_of(of, {})
    return made


def _rename(draw: st.DrawFn, named: dict[str, Json]) -> None:
    """Rename a type, in its namespace or into another one; only such as nothing refers to stay good."""
    name = named["name"]
    named["name"] = draw(st.sampled_from([f"{name}x", f"m.{name.rpartition('.')[2]}"]))
    if draw(st.booleans()):
        named["aliases"] = [name]


def _change_enum(draw: st.DrawFn, enum: dict[str, Json]) -> None:
    symbols = enum["symbols"]
    free = [symbol for symbol in SYMBOLS if symbol not in symbols]
    match draw(st.sampled_from(["append", "insert", "remove", "move", "default", "rename"])):
        case "append" if free:
            symbols.append(free[0])
        case "insert" if free:
            symbols.insert(draw(st.integers(0, len(symbols))), free[0])
        case "remove" if len(symbols) > 1:
            gone = symbols.pop(draw(st.integers(0, len(symbols) - 1)))
            if enum.get("default") == gone:
                del enum["default"]
        case "move":
            symbols.insert(draw(st.integers(0, len(symbols) - 1)), symbols.pop())
        case "default":
            if "default" in enum:
                del enum["default"]
            else:
                enum["default"] = symbols[0]
        case _:
            _rename(draw, enum)


def _change_union(draw: st.DrawFn, spot: Spot) -> None:
    branches = spot.of
    match draw(st.sampled_from(["append", "insert", "remove", "move", "unwrap"])):
        case "append":
            branches.append(draw(st.sampled_from(PRIMITIVES)))
        case "insert":
            branches.insert(0, draw(st.sampled_from(PRIMITIVES)))
        case "remove":
            branches.pop(draw(st.integers(0, len(branches) - 1)))
        case "move":
            branches.insert(draw(st.integers(0, len(branches) - 1)), branches.pop())
        case _:
            spot.holder[spot.key] = branches[-1]


# Data.


def varint(number: int) -> bytes:
    """Encode an int or long."""
    unsigned = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while unsigned > 127:
        out.append(unsigned & 127 | 128)
        unsigned >>= 7
    return bytes([*out, unsigned])


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


_LEAVES: dict[str, st.SearchStrategy[bytes]] = {
    "null": st.just(b""),
    "boolean": st.sampled_from([b"\x00", b"\x01"]),
    "int": (st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 70)).map(varint),
    "long": (st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 70)).map(varint),
    "float": st.floats(width=32, allow_nan=False).map(lambda number: struct.pack("<f", number)),
    "double": st.floats(allow_nan=False).map(lambda number: struct.pack("<d", number)),
    "bytes": st.binary(max_size=3).map(_sized),
    "string": st.text("aé1", max_size=3).map(lambda text: _sized(text.encode())),
}


@st.composite
def bodies(draw: st.DrawFn, schema: Json) -> bytes:
    """Draw a datum of a schema, in one block per array and map as most writers make them."""
    names = {spot.of["name"]: spot.of for spot in spots({"root": schema}, "root") if _is_named(spot.of)}
    return b"".join(_encoded(draw, schema, names, 0))


def _is_named(of: Json) -> bool:
    return isinstance(of, dict) and "name" in of


def _encoded(draw: st.DrawFn, of: Json, names: dict[str, Json], depth: int) -> Iterator[bytes]:
    if isinstance(of, list):
        ends = [index for index, branch in enumerate(of) if branch == "null"] if depth > 6 else []
        index = draw(st.sampled_from(ends or range(len(of))))
        yield varint(index)
        yield from _encoded(draw, of[index], names, depth + 1)
        return
    if isinstance(of, str) and of in names:
        of = names[of]
    kind = of if isinstance(of, str) else of["type"]
    if kind in _LEAVES:
        yield draw(_LEAVES[kind])
    elif kind == "fixed":
        yield draw(st.binary(min_size=of["size"], max_size=of["size"]))
    elif kind == "enum":
        yield varint(draw(st.integers(0, len(of["symbols"]) - 1)))
    elif kind == "record":
        for entry in of["fields"]:
            yield from _encoded(draw, entry["type"], names, depth + 1)
    else:
        count = draw(st.integers(0, 0 if depth > 4 else 2))
        yield varint(count) if count else b""
        for index in range(count):
            yield _sized(b"%d" % index) if kind == "map" else b""
            yield from _encoded(draw, of["items" if kind == "array" else "values"], names, depth + 1)
        yield b"\x00"


def told(error: SchemaError) -> str:
    """Return the text of a schema folder's error without the line, which `test_registry` tests."""
    return ": ".join(part for part in (error.file, error.place, error.problem) if part)
