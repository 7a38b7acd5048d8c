"""Avro types as columns: the one column type that holds all minors of a type, and how the values of each minor get into it.

docs/analyse/pipeline-types.md specifies the column of every Avro type. This module implements it, and `arrays` reads values by it.
Pure: it turns schema texts into Spark SQL types, and needs no Spark.

A *place* is where a value can stand: the type itself, a record's field, an array's item, a map's value. Every schema is seen as the
alternatives that a place may hold: a plain type is one, a union has several. Merging minors collects the alternatives of a place
over all of them. One alternative is a plain column; several are a struct with a member for each. Nothing is ever taken away and
nothing splits: what a place holds only grows, so older tables always fit into younger ones.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from fastavro.types import Schema

from maxam.avro.json.decoding import ValueDecodeError, decode_datum, reading_schema
from maxam.avro.schema import Type, parse_schema
from maxam.avro.source import read_source
from maxam.content import long, read_unsigned, unsigned
from maxam.pipeline.errors import PipelineError

NODES_MAX: Final = (
    5_000  # of one minor, written out: a type that names another twice, which names another twice, grows fast
)
DECIMAL_DIGITS_MAX: Final = 38  # Spark's and Parquet's common limit
MILLIS_MAX: Final = (2**63 - 1) // 1000
SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}  # bytes of every value

_NUMBERS: Final = {"int": "int", "long": "bigint", "float": "float", "double": "double"}
_LABELS: Final = {"bigint": "long", "double": "double", "binary": "bytes"}  # of what was widened
_TEXTS: Final = {"string": "string", "enum": "string", "bytes": "binary", "fixed": "binary"}
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
    ("int", "time-millis"): "int",
    ("long", "time-micros"): "bigint",
    ("long", "timestamp-nanos"): "bigint",
    ("long", "local-timestamp-nanos"): "bigint",
    ("string", "uuid"): "string",
    ("fixed", "uuid"): "string",
    ("fixed", "duration"): "struct<`months`:bigint,`days`:bigint,`millis`:bigint>",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


@final
@dataclass(slots=True)
class Member:
    """A field of one minor's record, and the merged field that its values go to."""

    name: str
    aliases: tuple[str, ...]
    node: "Node"
    default: str = ""  # JSON text; empty for none
    target: "Field | None" = None


@final
@dataclass(slots=True)
class Node:
    """One type of one minor's schema, written out: a named type stands once for each place that uses it.

    Attributes:
        kind: A primitive's name, `record`, `enum`, `fixed`, `array`, `map`, `union`, or `recursive`: a reference to a record that
            holds it.
        label: Distinguishes it from other branches: full name of a named type, logical type or kind of others.
        aliases: Full names.
        logical: Name of a logical type that fits its base, else empty.
        precision: Of a decimal.
        scale: Of a decimal.
        size: Bytes of a fixed.
        symbols: Of an enum.
        members: Of a record.
        parts: Branches of a union; the item's or value's type of an array or map.
        target: The merged alternative that its values go to; None for unions.
    """

    kind: str
    label: str
    aliases: tuple[str, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    members: list[Member] = field(default_factory=list)
    parts: list["Node"] = field(default_factory=list)
    target: "Alternative | None" = None

    def branches(self) -> list["Node"]:
        """Give the alternatives that are not null."""
        return [part for part in (self.parts if self.kind == "union" else [self]) if part.kind != "null"]

    def recursive(self) -> bool:
        """Return True if a record in it holds itself."""
        return self.kind == "recursive" or any(
            node.recursive() for node in [*self.parts, *(m.node for m in self.members)]
        )


@final
@dataclass(slots=True)
class Field:
    """A merged field.

    Attributes:
        name: As the youngest minor that has it calls it: the one with the others as aliases.
        version: Of that minor, empty when unknown.
        names: All names and aliases it was ever given.
        place: The place of its values.
        default: JSON text of its default in the version that was merged last; empty for none.
    """

    name: str
    version: tuple[int, ...]
    names: set[str]
    place: "Place"
    default: str = ""


@final
@dataclass(slots=True)
class Alternative:
    """One thing that a place may hold.

    Attributes:
        kind: `leaf`, `record`, `array` or `map`.
        group: Leaves of one group widen into each other: `number`, `text`, `decimal`, or the logical type or kind alone.
        label: See `Node`.
        names: All full names and aliases it was ever given.
        type: Spark SQL type of a leaf.
        fields: Of a record.
        item: Of an array or map.
    """

    kind: str
    group: str
    label: str
    names: set[str]
    type: str = ""
    fields: list[Field] = field(default_factory=list)
    item: "Place | None" = None

    def column_type(self) -> str:
        """Give the Spark SQL type."""
        if self.kind == "array":
            return f"array<{items_of(self).column_type()}>"
        if self.kind == "map":
            return f"map<string,{items_of(self).column_type()}>"
        if self.kind == "record":
            if not self.fields:
                return "boolean"  # Parquet has no struct without fields
            names = unique_names([each.name for each in self.fields])
            columns = [
                f"{quoted(name)}:{each.place.column_type()}" for name, each in zip(names, self.fields, strict=True)
            ]
            return f"struct<{','.join(columns)}>"
        return self.type


@final
@dataclass(slots=True)
class Place:
    """Where a value can stand: its alternatives over all minors, none when it was always null."""

    alternatives: list[Alternative] = field(default_factory=list)

    def column_type(self) -> str:
        """Give the Spark SQL type."""
        if not self.alternatives:
            return "string"  # a column that is always null must still have a type
        if len(self.alternatives) == 1:
            return self.alternatives[0].column_type()
        columns = [
            f"{quoted(name)}:{each.column_type()}"
            for name, each in zip(self.member_names(), self.alternatives, strict=True)
        ]
        return f"struct<{','.join(columns)}>"

    def member_names(self) -> list[str]:
        """Return the names of the members that the alternatives have: their type's, short where that is unambiguous."""
        labels = [each.label for each in self.alternatives]
        short = [label.rpartition(".")[2].replace("-", "_") for label in labels]
        lower = [name.lower() for name in short]
        return unique_names(
            [
                name if lower.count(name.lower()) == 1 else label.replace(".", "_").replace("-", "_")
                for name, label in zip(short, labels, strict=True)
            ]
        )


@final
@dataclass(slots=True)
class Minor:
    """One writer's schema, bound to the column type of all.

    Attributes:
        version: Such as `1.0`. Empty when unknown.
        text: Its self-contained text.
        root: Its type.
    """

    version: str
    text: str
    root: Node


@final
class ColumnType:
    """The column type of one message type: all its minors merged, in the order in which they were added.

    Adding the same minors in the same order gives the same type. Files written by an older state are rewritten by `widening`.
    """

    def __init__(self, minors: Sequence[tuple[str, str]] = ()) -> None:
        """Merge minors: version and self-contained text of each.

        Raises:
            PipelineError: As of `add`.
        """
        self.minors: Final[list[Minor]] = []
        self._root: Final = Place()
        for version, text in minors:
            self.add(version, text)

    def add(self, version: str, text: str) -> bool:
        """Merge one more minor, unless its text is there.

        Returns:
            Whether the column type is another now.

        Raises:
            PipelineError: Written out, the type has more than NODES_MAX parts. Nothing was added.
        """
        if any(minor.text == text for minor in self.minors):
            return False
        root = read_type(text)
        before = self.sql_type()
        _merge(self._root, root, tuple(int(part) for part in version.split(".") if part.isdecimal()))
        self.minors.append(Minor(version, text, root))
        return bool(self.minors[1:]) and self.sql_type() != before

    def sql_type(self) -> str:
        """Give the Spark SQL type of the merged column."""
        return self._root.column_type()

    def minor(self, text: str) -> Minor:
        """Find a minor by its text, which must have been added."""
        return next(minor for minor in self.minors if minor.text == text)

    def texts(self) -> list[tuple[str, str]]:
        """Give version and text of each minor, in the order in which they were added."""
        return [(minor.version, minor.text) for minor in self.minors]

    def place(self) -> Place:
        """Give what a value of any of the minors goes to."""
        return self._root


def quoted(name: str) -> str:
    """Quote a name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def unique_names(names: list[str]) -> list[str]:
    """Number names that differ from an earlier one in case only, which Spark takes for the same."""
    taken: set[str] = {name.lower() for name in names}
    seen: set[str] = set()
    out: list[str] = []
    for name in names:
        unique = name
        number = 2
        while unique.lower() in seen or (unique != name and unique.lower() in taken):
            unique = f"{name}_{number}"
            number += 1
        seen.add(unique.lower())
        out.append(unique)
    return out


# reading a schema


def read_type(text: str) -> Node:
    """Read a self-contained text that the registry accepted, and write it out.

    A reference is replaced by its type, and one to an enclosing record by a node of kind `recursive`.

    Raises:
        PipelineError: It has more than NODES_MAX parts.
    """
    count = 0

    def written_out(of: Type, around: tuple[str, ...]) -> Node:
        nonlocal count
        count += 1
        if count > NODES_MAX:
            raise PipelineError(
                f"the type has more than {NODES_MAX} parts when it is written out: too many for columns"
            )
        if of.name in around:
            return Node("recursive", "json")
        node = Node(of.kind, of.label, of.aliases, size=of.size, symbols=of.symbols)
        node.parts = [written_out(branch, around) for branch in of.branches]
        for each in of.fields:
            default = json.dumps(each.default) if each.defaulted else ""
            node.members.append(Member(each.name, each.aliases, written_out(each.type, (*around, of.name)), default))
        if _is_decimal(of):
            node.logical, node.precision, node.scale = of.logical, of.precision, of.scale
        elif (of.kind, of.logical) in _LOGICAL:
            node.logical = of.logical
        if node.logical and of.kind != "fixed":
            node.label = node.logical
        return node

    return written_out(_parsed(text), ())


def _parsed(text: str) -> Type:
    return parse_schema(read_source("schema", text.encode())).type


def _is_decimal(of: Type) -> bool:
    return of.logical == "decimal" and of.precision <= DECIMAL_DIGITS_MAX


# merging


def _leaf_type(node: Node) -> tuple[str, str]:
    """Give group and Spark SQL type of a leaf."""
    if node.logical == "decimal":
        return "decimal", f"decimal({node.precision},{node.scale})"
    if node.logical:
        of = _LOGICAL[node.kind, node.logical]
        group = {"string": "text", "timestamp": "timestamp", "timestamp_ntz": "local-timestamp"}.get(of, node.logical)
        return group, of
    if node.kind in _NUMBERS:
        return "number", _NUMBERS[node.kind]
    if node.kind in _TEXTS:
        return "text", _TEXTS[node.kind]
    return ("json", "string") if node.kind == "recursive" else ("boolean", "boolean")


def _alternative(node: Node) -> Alternative:
    names = {node.label, *node.aliases}
    if node.kind in {"record", "array", "map"}:
        item = None if node.kind == "record" else Place()
        return Alternative(node.kind, node.label if node.kind == "record" else node.kind, node.label, names, item=item)
    group, of = _leaf_type(node)
    return Alternative("leaf", group, node.label, names, of)


def _widened(one: str, other: str) -> str | None:
    """Give the type that holds the values of two leaf types of one group, None for none."""
    if one == other:
        return one
    first, second = _DECIMAL.fullmatch(one), _DECIMAL.fullmatch(other)
    if first and second:
        scale = max(int(first[2]), int(second[2]))
        digits = max(int(first[1]) - int(first[2]), int(second[1]) - int(second[2])) + scale
        return f"decimal({digits},{scale})" if digits <= DECIMAL_DIGITS_MAX else None
    if {one, other} == {"string", "binary"}:
        return "binary"
    order = list(_NUMBERS.values())
    if one not in order or other not in order:
        return None
    widest = order[max(order.index(one), order.index(other))]
    # Avro promotes int and long to float, which cannot even hold every int
    return "double" if widest == "float" else widest


def _merge(place: Place, node: Node, version: tuple[int, ...]) -> None:
    """Give every alternative of a minor its place among those known."""
    branches = node.branches()
    free = list(place.alternatives)
    matched: list[Alternative | None] = [None] * len(branches)

    def take(index: int, fits: Callable[[Alternative], bool]) -> None:
        if matched[index] is None:
            found = next((each for each in free if fits(each)), None)
            if found is not None:
                matched[index] = found
                free.remove(found)

    kinds = [_alternative(branch) for branch in branches]
    for index, kind in enumerate(kinds):
        take(index, lambda each, kind=kind: each.label == kind.label and _fits(each, kind))  # type: ignore[misc] # the default binds the loop's variable
    for index, kind in enumerate(kinds):
        take(index, lambda each, kind=kind: bool(each.names & kind.names) and _fits(each, kind))  # type: ignore[misc] # as above
    for index, kind in enumerate(kinds):
        # two kinds of numbers are the same, promoted. So are texts and decimals, and records of one short name
        alone = (
            sum(_kin(each, kind) for each in kinds) == 1 and sum(_kin(each, kind) for each in place.alternatives) == 1
        )
        if alone:
            take(index, lambda each, kind=kind: _kin(each, kind) and _fits(each, kind))  # type: ignore[misc] # as above
    for index, (branch, kind) in enumerate(zip(branches, kinds, strict=True)):
        alternative = matched[index]
        if alternative is None:
            alternative = kind
            place.alternatives.append(kind)
        elif kind.kind == "leaf":
            widest = _widened(alternative.type, kind.type) or alternative.type
            if widest != alternative.type:
                alternative.type = widest
                alternative.label = _LABELS.get(widest, alternative.label)
        alternative.names |= kind.names
        branch.target = alternative
        if branch.kind == "record":
            _merge_fields(alternative, branch, version)
        elif branch.kind in {"array", "map"}:
            _merge(items_of(alternative), branch.parts[0], version)


def _kin(one: Alternative, other: Alternative) -> bool:
    if one.kind == "record" and other.kind == "record":
        return one.label.rpartition(".")[2] == other.label.rpartition(".")[2]
    return one.kind == other.kind and one.group == other.group


def _fits(one: Alternative, other: Alternative) -> bool:
    if one.kind != other.kind:
        return False
    return one.kind != "leaf" or (one.group == other.group and _widened(one.type, other.type) is not None)


def _merge_fields(alternative: Alternative, node: Node, version: tuple[int, ...]) -> None:
    free = list(alternative.fields)

    def take(member: Member, fits: Callable[[Field], bool]) -> None:
        if member.target is None:
            member.target = next((each for each in free if fits(each)), None)
            if member.target is not None:
                free.remove(member.target)

    for member in node.members:
        take(member, lambda each, member=member: each.name == member.name)  # type: ignore[misc] # the default binds the loop's variable
    for member in node.members:
        # a younger version has the older field as alias, or an older one comes after the younger
        take(member, lambda each, member=member: each.name in member.aliases or member.name in each.names)  # type: ignore[misc] # as above
    for member in node.members:
        target = member.target
        if target is None:
            target = member.target = Field(member.name, version, set(), Place())
            alternative.fields.append(target)
        target.names |= {member.name, *member.aliases}
        target.default = member.default
        if target.name in member.aliases and (not version or version >= target.version):
            target.name, target.version = member.name, version
        _merge(target.place, member.node, version)


def items_of(alternative: Alternative) -> Place:
    """Give what the items of an array, or the values of a map, go to."""
    if alternative.item is None:
        raise ValueError(f"{alternative.kind} has no items")
    return alternative.item


def target_of(node: Node) -> Alternative:
    """Give the merged alternative that the values of a type go to, which must have been merged."""
    if node.target is None:
        raise ValueError("the type was not merged")
    return node.target


# what cannot be copied as it is


@final
class Transcoder:
    """Turns the bytes of a schema version's values into those that `arrays` reads: of no record that holds itself.

    Only for types that hold themselves, and to find values that no column holds. All others are read as they are.
    """

    def __init__(self, text: str) -> None:
        """Prepare for a self-contained text."""
        self._type: Final = _parsed(text)
        self._schemas: Final[dict[str, Schema]] = {}  # of records that hold themselves
        self._within: Final[list[str]] = []  # records around the place
        self._data = b""
        self._out: list[bytes] = []
        self._copied = 0  # all before it is in `_out`
        self._skipping = False

    def transcode(self, data: bytes) -> bytes | None:
        """Return a value with a JSON text in place of each record that stands within one of its kind.

        Returns:
            None when no column holds the value. That is a decimal of more digits than its precision or of no bytes, or a timestamp
            of milliseconds that does not fit in microseconds. Bytes that are not of the type are another case.
        """
        self._data = data
        self._out = []
        self._copied = 0
        self._skipping = False
        self._within.clear()
        try:
            end = self._walk(self._type, 0)
        except (ArithmeticError, ValueError, IndexError, ValueDecodeError):
            return None
        if end != len(data):
            return None
        self._out.append(data[self._copied : end])
        return b"".join(self._out)

    def _put(self, place: int, instead: bytes, behind: int) -> None:
        if not self._skipping:
            self._out += (self._data[self._copied : place], instead)
            self._copied = behind

    def _long(self, place: int) -> tuple[int, int]:
        number, place = read_unsigned(self._data, place)
        return (number >> 1) ^ -(number & 1), place

    def _walk(self, of: Type, place: int) -> int:
        """Return the place after a value."""
        match of.kind:
            case "null" | "boolean" | "float" | "double":
                return place + SIZES[of.kind]
            case "int" | "long" | "enum":
                number, place = self._long(place)
                if of.logical.endswith("timestamp-millis") and abs(number) > MILLIS_MAX:
                    raise OverflowError
                return place
            case "bytes" | "string":
                length, place = self._long(place)
                self._check_decimal(of, place, length)
                return place + length
            case "fixed":
                self._check_decimal(of, place, of.size)
                return place + of.size
            case "union":
                index, place = self._long(place)
                return self._walk(of.branches[index], place)
            case "record":
                return self._walk_record(of, place)
            case _:
                return self._walk_items(of, place)

    def _walk_items(self, of: Type, place: int) -> int:
        while True:
            start = place
            count, place = self._long(place)
            if count < 0:  # the bytes of the items follow: they may be others afterwards
                count = -count
                _, place = self._long(place)
                self._put(start, long(count), place)
            if not count:
                return place
            for _ in range(count):
                if of.kind == "map":
                    length, place = self._long(place)
                    place += length
                place = self._walk(of.branches[0], place)

    def _walk_record(self, of: Type, place: int) -> int:
        start = place
        inner = of.name in self._within and not self._skipping
        self._skipping = self._skipping or inner
        self._within.append(of.name)
        for each in of.fields:
            place = self._walk(each.type, place)
        self._within.pop()
        if inner:
            self._skipping = False
            if of.name not in self._schemas:
                self._schemas[of.name] = reading_schema(of)
            value = decode_datum(self._schemas[of.name], self._data[start:place])
            shown = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            self._put(start, unsigned(len(shown) << 1) + shown, place)
        return place

    def _check_decimal(self, of: Type, place: int, length: int) -> None:
        if _is_decimal(of) and not self._skipping:
            digits = self._data[place : place + length]
            if not digits or abs(int.from_bytes(digits, "big", signed=True)) >= 10**of.precision:
                raise OverflowError
