"""Random schemas, values and selectors, with SQLite as the independent SQL engine. `python -m tests.properties.selectors.selector_cases 100000`.

Each case is made the way the broker does it: the rule judges the body, and the selector reads the fields from its bytes. SQLite gets the
values of the same fields, which are taken from the value before it was encoded, as columns without affinity.

Differences from SQLite, and how each is avoided:

* LIKE respects case (`PRAGMA case_sensitive_like`), and texts hold no NUL character, at which SQLite's LIKE stops.
* Selectors are typed. SQLite compares a text with a number; such a selector is a SelectorError, tested in the unit tests.
* SQLite keeps booleans as 0 and 1, so it accepts comparisons with numbers. They are only compared with booleans.
* Literals have at most 15 digits, up to which SQLite's own reader of decimals is exact.
"""

import io
import json
import math
import random
import sqlite3
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import fastavro

from maxam.avro.registry import Registry, load_registry
from maxam.avro.rule import CONFLUENT, DATUM, ENVELOPE, SINGLE_OBJECT, SchemaVersion
from maxam.config import Limits
from maxam.content import pack
from maxam.globs import compile_glob
from maxam.records import Change, Identity, Validation
from maxam.selectors.selector import compile_selector

LIMITS = Limits(selector_bytes_max=8192, selector_terms_max=1000)
GLOB = compile_glob("X/**", LIMITS)
ENCODINGS = (DATUM, SINGLE_OBJECT, ENVELOPE, CONFLUENT)
SELECTORS_PER_SCHEMA = 6
VALUES_PER_SCHEMA = 5
INTEGERS = (0, 1, -1, 2, 3, 7, -7, 100, 2**31 - 1, -(2**31), 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
REALS = (
    0.0,
    -0.0,
    0.5,
    -2.5,
    1.0,
    3.0,
    1e15,
    2.0**53,
    2.0**63,
    -(2.0**63),
    1e300,
    -1e300,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
)
LETTERS = "abABé%_!'ß漢𝄞"
SYMBOLS = ("ONLINE", "OFFLINE", "A", "aB")
KEYS = ("k", "it's", "é")
HEADERS = ("site", "it's")
NUMBER, TEXT, BOOLEAN, OTHER = "number", "text", "boolean", "other"
MISSING = object()


@dataclass
class Node:
    """A type of a schema, and how to make and read its values.

    Attributes:
        schema: As in the schema's text.
        kind: NUMBER, TEXT, BOOLEAN or OTHER.
        make: Makes a value as fastavro takes it.
        seen: Makes of it what a selector sees. None is NULL.
        fields: Nodes of a record's fields.
        inner: Node of an array's items, or of a map's values.
        keyed: It is a map.
    """

    schema: Any
    kind: str
    make: Callable[[], Any]
    seen: Callable[[Any], Any] = lambda value: value
    fields: dict[str, "Node"] = field(default_factory=dict)
    inner: "Node | None" = None
    keyed: bool = False


@dataclass(frozen=True)
class Operand:
    """A field or header as selectors write it, with its kind and the way to its value."""

    text: str
    kind: str
    path: tuple[str | int, ...] = ()
    header: str = ""


def _text(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(SYMBOLS)
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(5)))


def _integer(rng: random.Random, bits: int) -> int:
    number = rng.choice(INTEGERS) if rng.random() < 0.5 else rng.randrange(-5, 6)
    end = 1 << bits - 1
    return max(-end, min(end - 1, number))


def _real(rng: random.Random) -> float:
    return rng.choice(REALS) if rng.random() < 0.5 else rng.randrange(-40, 40) / 8


def _either(rng: random.Random) -> tuple[str, Any]:
    return ("int", _integer(rng, 32)) if rng.random() < 0.5 else ("double", _real(rng))


def _short(number: float) -> float:
    """Return the nearest `float` of 32 bits."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


class Maker:
    """Makes schemas, values and selectors out of one seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = 0

    # Schemas

    def record(self, depth: int, fields_max: int = 6) -> Node:
        """Make a record."""
        self.names += 1
        name = f"R{self.names}"
        fields = {f"f{index}": self.type(depth) for index in range(self.rng.randrange(1, fields_max))}
        return self._record(name, fields)

    def _record(self, name: str, fields: dict[str, Node]) -> Node:
        schema = {
            "type": "record",
            "name": name,
            "fields": [{"name": n, "type": of.schema} for n, of in fields.items()],
        }
        return Node(schema, OTHER, lambda: {n: of.make() for n, of in fields.items()}, lambda _: b"there", fields)

    def type(self, depth: int) -> Node:
        """Make any type, some of them nullable."""
        node = self.rng.choice([self.leaf, self.leaf, self.composite])(depth) if depth else self.leaf(depth)
        if self.rng.random() < 0.3:
            return self.nullable(node)
        return node

    def nullable(self, node: Node) -> Node:
        """Make a union with null."""
        branches = ["null", *(node.schema if isinstance(node.schema, list) else [node.schema])]
        self.rng.shuffle(branches)
        make, seen = node.make, node.seen
        return Node(
            branches,
            node.kind,
            lambda: None if self.rng.random() < 0.35 else make(),
            lambda value: None if value is None else seen(value),
            node.fields,
            node.inner,
            node.keyed,
        )

    def leaf(self, depth: int) -> Node:  # noqa: ARG002 - as the others
        """Make a type without types in it."""
        rng = self.rng
        kind = rng.choice(
            ["int", "long", "float", "double", "string", "boolean", "enum", "bytes", "fixed", "decimal", "stamp", "two"]
        )
        match kind:
            case "int" | "long":
                bits = 32 if kind == "int" else 64
                return Node(kind, NUMBER, lambda: _integer(rng, bits))
            case "float":
                return Node(kind, NUMBER, lambda: _short(_real(rng)))
            case "double":
                return Node(kind, NUMBER, lambda: _real(rng))
            case "string":
                return Node(kind, TEXT, lambda: _text(rng))
            case "boolean":
                return Node(kind, BOOLEAN, lambda: rng.random() < 0.5)
            case "bytes":
                return Node(kind, OTHER, lambda: b"ab", lambda _: b"there")
            case "stamp":
                return Node(
                    {"type": "long", "logicalType": "local-timestamp-micros"}, NUMBER, lambda: _integer(rng, 64)
                )
            case "two":
                return Node(["int", "double"], NUMBER, lambda: _either(rng), lambda value: value[1])
            case "decimal":
                scale = rng.randrange(3)
                schema = {"type": "bytes", "logicalType": "decimal", "precision": 15, "scale": scale}
                return Node(
                    schema,
                    NUMBER,
                    lambda: Decimal(rng.randrange(-300, 300)).scaleb(-scale),
                    lambda value: float(value) if scale else int(value),
                )
            case _:
                pass
        self.names += 1
        if kind == "enum":
            schema = {"type": "enum", "name": f"E{self.names}", "symbols": list(SYMBOLS)}
            return Node(schema, TEXT, lambda: rng.choice(SYMBOLS))
        schema = {"type": "fixed", "name": f"F{self.names}", "size": 3}
        return Node(schema, OTHER, lambda: b"abc", lambda _: b"there")

    def composite(self, depth: int) -> Node:
        """Make a record, an array or a map."""
        rng = self.rng
        match rng.choice(["record", "array", "map"]):
            case "record":
                return self.record(depth - 1, 4)
            case "array":
                inner = self.type(depth - 1)
                schema = {"type": "array", "items": inner.schema}
                make = inner.make
                return Node(
                    schema, OTHER, lambda: [make() for _ in range(rng.randrange(4))], lambda _: b"there", {}, inner
                )
            case _:
                inner = self.type(depth - 1)
                make = inner.make
                return Node(
                    {"type": "map", "values": inner.schema},
                    OTHER,
                    lambda: {key: make() for key in KEYS if rng.random() < 0.6},
                    lambda _: b"there",
                    {},
                    inner,
                    True,
                )

    # Operands

    def operands(self, node: Node, text: str = "", path: tuple[str | int, ...] = ()) -> list[Operand]:
        """Return some operands that a selector over a type can have, of each field at least one."""
        found = [Operand(text, node.kind, path)] if path else []
        for name, inner in node.fields.items():
            found += self.operands(inner, f"{text}.{name}" if text else name, (*path, name))
        if node.inner is not None:
            if not node.keyed:
                index = self.rng.randrange(4)
                found += self.operands(node.inner, f"{text}[{index}]", (*path, index))
            else:
                key = self.rng.choice(KEYS)
                found += self.operands(node.inner, text + "['" + key.replace("'", "''") + "']", (*path, key))
        return found

    # Selectors: each part is a list of texts and operands

    def condition(self, operands: list[Operand], depth: int) -> list[str | Operand]:
        """Make a condition."""
        rng = self.rng
        kinds = ["number"] * 3 + ["text"] * 3 + ["null", "in", "like", "between", "boolean"]
        kinds += ["and", "or", "not", "and", "or", "not"] if depth else []
        kind = rng.choice(kinds)
        if kind in ("and", "or"):
            left, right = self.condition(operands, depth - 1), self.condition(operands, depth - 1)
            parts = [*self.wrapped(left, rng.random() < 0.5), f" {self.case(kind)} "]
            return [*parts, *self.wrapped(right, rng.random() < 0.5)]
        if kind == "not":
            return [self.case("not") + " ", *self.wrapped(self.condition(operands, depth - 1), rng.random() < 0.7)]
        negated = self.case("not") + " " if rng.random() < 0.3 else ""
        if kind == "null":
            return [rng.choice(operands), " ", self.case("is"), " ", negated, self.case("null")]
        if kind == "boolean":
            found = [one for one in operands if one.kind == BOOLEAN]
            if found and rng.random() < 0.7:
                sign = rng.choice([" = TRUE", " <> FALSE", " = true", ""])
                return [rng.choice(found), sign]
            return [self.case("true" if rng.random() < 0.5 else "false")]
        if kind == "like":
            parts = [self.text(operands), " ", negated, self.case("like"), " "]
            pattern = "".join(rng.choice(LETTERS + "%%__") for _ in range(rng.randrange(7)))
            if rng.random() < 0.3:
                pattern = "".join(f"!{c}" if c in "!%_" and (c == "!" or rng.random() < 0.5) else c for c in pattern)
                return [*parts, self.literal(pattern), " ", self.case("escape"), " '!'"]
            return [*parts, self.literal(pattern)]
        number = rng.random() < 0.5 if kind in ("in", "between") else kind == "number"

        def make() -> list[str | Operand]:
            return self.number(operands, min(depth, 2)) if number else [self.text(operands)]

        if kind == "in":
            count = rng.randrange(1, 4)
            values = [self.figure() if number else self.literal(_text(rng)) for _ in range(count)]
            return [*make(), " ", negated, self.case("in"), " (", ", ".join(values), ")"]
        if kind == "between":
            return [*make(), " ", negated, self.case("between"), " ", *make(), " ", self.case("and"), " ", *make()]
        return [*make(), rng.choice([" ", ""]), rng.choice(["=", "<>", "<", "<=", ">", ">="]), " ", *make()]

    def number(self, operands: list[Operand], depth: int) -> list[str | Operand]:
        """Make a number."""
        rng = self.rng
        found = [one for one in operands if one.kind == NUMBER]
        roll = rng.random()
        if depth and roll < 0.35:
            sign = rng.choice(["+", "-", "*", "/"])
            left, right = self.number(operands, depth - 1), self.number(operands, depth - 1)
            return [*self.wrapped(left, rng.random() < 0.5), f" {sign} ", *self.wrapped(right, rng.random() < 0.5)]
        if depth and roll < 0.42:
            return [rng.choice(["-", "+", "- "]), "(", *self.number(operands, depth - 1), ")"]
        return [rng.choice(found)] if found and roll < 0.8 else [self.figure()]

    def text(self, operands: list[Operand]) -> str | Operand:
        """Make a text."""
        found = [one for one in operands if one.kind == TEXT]
        return self.rng.choice(found) if self.rng.random() < 0.75 else self.literal(_text(self.rng))

    def figure(self) -> str:
        """Make a literal number."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.5:
            return str(rng.choice(INTEGERS) if rng.random() < 0.3 else rng.randrange(-5, 6))
        return rng.choice(["0.5", ".25", "3.", "1e3", "2.5E-3", "-1.5", "1E+15", "9007199254740993.0", "0.1", "-2.75"])

    def literal(self, text: str) -> str:
        """Write a literal text."""
        return "'" + text.replace("'", "''") + "'"

    def case(self, keyword: str) -> str:
        """Write a keyword in some case."""
        return self.rng.choice([str.upper, str.lower, str.title])(keyword)

    def wrapped(self, parts: list[str | Operand], always: bool) -> list[str | Operand]:
        """Put a part in parentheses, or leave it to the precedence of operators."""
        return ["(", *parts, ")"] if always else parts


# One case


def _datum(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    number = number * 2 if number >= 0 else -number * 2 - 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def body_of(encoding: str, version: SchemaVersion, datum: bytes, rng: random.Random) -> bytes:
    """Return a body with the datum in it."""
    if encoding != ENVELOPE:
        return version.head(encoding) + datum
    items = [(1, datum), (2, version.crc_64), (9, b"for others")]
    rng.shuffle(items)
    return _varint(len(items)) + b"".join(_varint(key) + _sized(data) for key, data in items) + b"\0"


def change_of(registry: Registry, body: bytes, headers: tuple[tuple[bytes, bytes], ...], revision: int) -> Change:
    """Return the change that the broker makes of a SEND."""
    rule = registry.rule_for("X/a")
    assert rule is not None
    validation = rule.validate(b"X/a", headers, body)
    assert isinstance(validation, Validation), validation.reason
    content, body_at = pack(headers, body)
    return Change(revision, 1, b"X/a", False, Identity("p", "0" * 64), validation, content, body_at)


def registry_of(encoding: str, minors: list[Any]) -> Registry:
    """Return a registry of one rule and one type."""
    rule = f'[[rule]]\ndestination = "X/**"\nencoding = "{encoding}"\nschema = "n.T_v1"\n'
    rule += "require_version = true\n" if encoding == DATUM else ""
    texts = {"registry.toml": rule.encode()}
    for minor, schema in enumerate(minors):
        texts[f"n/T_v1/1.{minor}.avsc"] = json.dumps({**schema, "name": "T_v1", "namespace": "n"}).encode()
    return load_registry(texts)


def seen(node: Node, value: Any, path: tuple[str | int, ...]) -> Any:
    """Return what a selector sees at a path of a value: NULL for what is not there."""
    for step in path:
        if value is None:
            return None
        value = value.get(step) if isinstance(step, str) else (value[step:] or [None])[0]
        node = node.fields[str(step)] if node.fields else node.inner or node
    return None if value is None else node.seen(value)


def sqlite() -> sqlite3.Connection:
    """Open the other engine."""
    connection = sqlite3.connect(":memory:", cached_statements=0)
    connection.execute("PRAGMA case_sensitive_like = ON")
    return connection


def run_schema(seed: int, other: sqlite3.Connection) -> int:
    """Check the triples of one random schema. Return their number."""
    rng = random.Random(seed)  # noqa: S311 - not a secret
    maker = Maker(rng)
    older = maker.record(3)
    newer = Node(older.schema, OTHER, older.make, older.seen, dict(older.fields))
    for index in range(rng.randrange(3)):
        newer.fields[f"new{index}"] = maker.nullable(maker.leaf(0))
        newer.fields[f"new{index}"].schema.sort(key=lambda branch: branch != "null")
    fields = [
        {"name": n, "type": of.schema, **({"default": None} if n[0] == "n" else {})} for n, of in newer.fields.items()
    ]
    newer = Node(
        {**older.schema, "fields": fields},
        OTHER,
        lambda: {n: of.make() for n, of in newer.fields.items()},
        older.seen,
        newer.fields,
    )
    minors = [older, newer] if len(newer.fields) > len(older.fields) else [older]
    encoding = rng.choice(ENCODINGS)
    registry = registry_of(encoding, [node.schema for node in minors])

    operands = maker.operands(minors[-1])
    operands = rng.sample(operands, min(len(operands), 12))
    operands += [Operand("header('" + name.replace("'", "''") + "')", TEXT, header=name) for name in HEADERS]
    selectors = []
    for _ in range(SELECTORS_PER_SCHEMA):
        parts = maker.condition(operands, rng.randrange(4))
        text = "".join(part if isinstance(part, str) else part.text for part in parts)
        sql = "".join(part if isinstance(part, str) else f"c{operands.index(part)}" for part in parts)
        pair = [compile_selector(one, registry, GLOB, LIMITS) for one in (text, f"NOT ({text})")]
        selectors.append((pair, sql, text))

    columns = ", ".join(f"? AS c{index}" for index in range(len(operands)))
    done = 0
    for revision in range(1, VALUES_PER_SCHEMA + 1):
        minor = rng.randrange(len(minors))
        node = minors[minor]
        value = node.make()
        version = registry.schema("n.T_v1", f"1.{minor}")
        assert version is not None
        headers = {name: _text(rng) for name in HEADERS if rng.random() < 0.7}
        wire = [(name.encode(), text.encode()) for name, text in headers.items()]
        wire += [(b"site", b"a second one")] if "site" in headers else []
        wire += [(b"schema-version", f"1.{minor}".encode())] if encoding == DATUM else []
        change = change_of(registry, body_of(encoding, version, _datum(node.schema, value), rng), tuple(wire), revision)
        row = [headers.get(one.header) if one.header else _at(node, value, one) for one in operands]
        for (selector, negation), sql, text in selectors:
            (expected,) = other.execute(f"SELECT ({sql}) FROM (SELECT {columns})", row).fetchone()  # noqa: S608
            found = (selector.matches(change), negation.matches(change))
            assert found == (expected == 1, expected == 0), (
                f"seed {seed}: {text!r} over {dict(zip([one.text for one in operands], row, strict=True))}: "
                f"SQLite {expected}, matches {found}"
            )
            assert selector.matches(change) is found[0]
            done += 1
    return done


def _at(node: Node, value: Any, operand: Operand) -> Any:
    if operand.path[0] not in node.fields:
        return None
    return seen(node, value, operand.path)


def main(count: int, seed: int = 0) -> None:
    """Check at least `count` triples, and print how long that took."""
    other = sqlite()
    began = time.perf_counter()
    done = schemas = 0
    while done < count:
        done += run_schema(seed + schemas, other)
        schemas += 1
    taken = time.perf_counter() - began
    sys.stdout.write(f"{done} triples over {schemas} schemas equal SQLite {sqlite3.sqlite_version}: {taken:.0f} s\n")


if __name__ == "__main__":
    main(*[int(argument) for argument in sys.argv[1:]])
