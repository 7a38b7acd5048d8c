"""Avro types as columns: the one column type that holds all minors of a type, and how the values of each minor get into it.

docs/pipeline-types.md says what becomes of every Avro type; this module is what it says, and `arrays` reads values by it. Pure: it
turns schema texts into Spark SQL types and Spark SQL expressions, and needs no Spark.

A *place* is where a value can stand: the type itself, a record's field, an array's item, a map's value. Every schema is seen as the
alternatives that a place may hold: a plain type is one, a union has several. Merging minors collects the alternatives of a place
over all of them. One alternative is a plain column; several are a struct with a member for each. Nothing is ever taken away and
nothing splits: what a place holds only grows, so older tables always fit into younger ones.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from maxam.admin.values import decode_value
from maxam.avro.schema import PRIMITIVES
from maxam.content import long, read_unsigned, unsigned
from maxam.pipeline.errors import PipelineError
from maxam.records import Judgement

NODES_MAX: Final = (
    5_000  # of one minor, written out: a type that names another twice, which names another twice, grows fast
)
DECIMAL_DIGITS_MAX: Final = 38  # Spark's and Parquet's common limit
MILLIS_MAX: Final = (2**63 - 1) // 1000

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
    target: "Field | None" = None


@final
@dataclass(slots=True)
class Node:
    """One type of one minor's schema, written out: a named type stands once for each place that uses it.

    Attributes:
        kind: A primitive's name, `record`, `enum`, `fixed`, `array`, `map`, `union`, or `recursive`: a reference to a record that
            holds it.
        label: What tells it from other branches: full name of a named type, logical type or kind of others.
        aliases: Full names.
        logical: Name of a logical type that fits its base, else empty.
        precision: Of a decimal.
        scale: Of a decimal.
        size: Bytes of a fixed.
        symbols: Of an enum.
        members: Of a record.
        parts: Branches of a union; the item's or value's type of an array or map.
        recursion: Full name of the record that a recursive reference is to.
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
    recursion: str = ""
    target: "Alternative | None" = None

    def branches(self) -> list["Node"]:
        """Give the alternatives that are not null."""
        return [part for part in (self.parts if self.kind == "union" else [self]) if part.kind != "null"]

    def recursive(self) -> bool:
        """Say whether a record in it holds itself."""
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
        place: What it holds.
    """

    name: str
    version: tuple[int, ...]
    names: set[str]
    place: "Place"


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
        """Give the names of the members that the alternatives have: their type's, short where that tells them apart."""
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
        version: Such as `1.0`; empty when nobody knows.
        text: Its self-contained text.
        root: Its type.
    """

    version: str
    text: str
    root: Node


@final
class ColumnType:
    """The column type of one message type: all its minors merged, in the order in which they were added.

    Adding the same minors in the same order gives the same type. What was written by an older state is carried over with `carry`.
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

    def place(self) -> Place:
        """Give what a value of any of the minors goes to."""
        return self._root

    def carry(self, older: "ColumnType", column: str) -> str:
        """Give the Spark SQL expression that turns a column of an older state of this type into the present one.

        Args:
            older: Merged from a beginning of the same minors.
            column: Its column, as SQL.
        """
        return _convert(_of_place(older._root, self._root), self._root, column, 0)  # noqa: SLF001 - its own kind


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
    """Read a self-contained text, written out: references are replaced by what they name, those to an enclosing record kept.

    Raises:
        PipelineError: It has more than NODES_MAX parts.
    """
    return TypeReader(text).root


@final
class TypeReader:
    """Reads a self-contained text.

    Attributes:
        root: Its type, see `read_type`.
        records: The records in it by full name.
    """

    def __init__(self, text: str) -> None:
        """Read a text that the registry accepted.

        Raises:
            PipelineError: As of `read_type`.
        """
        self._defined: Final[dict[str, tuple[dict[str, Any], str]]] = {}  # by full name: document and its namespace
        self._count = 0
        self.records: Final[dict[str, Node]] = {}
        self.root: Final = self._node(json.loads(text), "", ())

    def text_of(self, name: str) -> str:
        """Give the self-contained text of one of the types in it."""
        return json.dumps(self._inlined(name, "", set()))

    def _inlined(self, document: Any, namespace: str, written: set[str]) -> Any:  # noqa: ANN401 - JSON
        if isinstance(document, list):
            return [self._inlined(branch, namespace, written) for branch in document]
        if isinstance(document, str):
            if document in PRIMITIVES:
                return document
            name = document if "." in document or not namespace else f"{namespace}.{document}"
            name = name if name in self._defined else document
            return name if name in written else self._inlined(*self._defined[name], written)
        kind = document["type"]
        if kind in {"array", "map"}:
            part = "items" if kind == "array" else "values"
            return document | {part: self._inlined(document[part], namespace, written)}
        if kind in {"record", "enum", "fixed"}:
            name = _full_name(document, namespace)
            namespace = name.rpartition(".")[0]
            written.add(name)
            out = {key: item for key, item in document.items() if key not in {"namespace", "aliases"}} | {"name": name}
            if kind == "record":
                fields = [
                    (each["name"], self._inlined(each["type"], namespace, written)) for each in document["fields"]
                ]
                out["fields"] = [{"name": field_name, "type": of} for field_name, of in fields]
            return out
        return document if kind in PRIMITIVES else self._inlined(kind, namespace, written)

    def _node(self, document: Any, namespace: str, around: tuple[str, ...]) -> Node:  # noqa: ANN401 - JSON
        self._count += 1
        if self._count > NODES_MAX:
            raise PipelineError(
                f"the type has more than {NODES_MAX} parts when it is written out: too many for columns"
            )
        if isinstance(document, list):
            return Node("union", "union", parts=[self._node(branch, namespace, around) for branch in document])
        if isinstance(document, str):
            if document in PRIMITIVES:
                return Node(document, document)
            name = document if "." in document or not namespace else f"{namespace}.{document}"
            if name in around:
                return Node("recursive", "json", recursion=name)
            definition, inner = self._defined[name if name in self._defined else document]
            return self._named(definition, inner, name, around)
        kind = document["type"]
        if kind in {"array", "map"}:
            part = self._node(document["items" if kind == "array" else "values"], namespace, around)
            return Node(kind, kind, parts=[part])
        if kind in {"record", "enum", "fixed"}:
            name = _full_name(document, namespace)
            inner = name.rpartition(".")[0]
            self._defined[name] = document, inner
            return self._named(document, inner, name, around)
        if kind not in PRIMITIVES:
            return self._node(kind, namespace, around)
        return _logical(Node(kind, kind), document)

    def _named(self, document: dict[str, Any], namespace: str, name: str, around: tuple[str, ...]) -> Node:
        kind = document["type"]
        aliases = tuple(
            alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in document.get("aliases", ())
        )
        node = Node(kind, name, aliases)
        if kind == "enum":
            node.symbols = tuple(document["symbols"])
        elif kind == "fixed":
            node.size = document["size"]
            _logical(node, document)
        else:
            self.records[name] = node
            for each in document["fields"]:
                of = self._node(each["type"], namespace, (*around, name))
                node.members.append(Member(each["name"], tuple(each.get("aliases", ())), of))
        return node


def _full_name(document: dict[str, Any], namespace: str) -> str:
    name: str = document["name"]
    if "." in name:
        return name
    own: str = document.get("namespace", namespace)
    return f"{own}.{name}" if own else name


def _logical(node: Node, document: dict[str, Any]) -> Node:
    logical = str(document.get("logicalType", ""))
    if logical == "decimal" and node.kind in {"bytes", "fixed"} and document["precision"] <= DECIMAL_DIGITS_MAX:
        node.logical = "decimal"
        node.precision, node.scale = document["precision"], document.get("scale", 0)
    elif (node.kind, logical) in _LOGICAL:
        node.logical = logical
    if node.logical and node.kind != "fixed":
        node.label = logical
    return node


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
        # one number here, one number there: the same, promoted; so with texts and decimals, and records of one short name
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
        # a younger minor names the older field as alias, or an older one comes after the younger
        take(member, lambda each, member=member: each.name in member.aliases or member.name in each.names)  # type: ignore[misc] # as above
    for member in node.members:
        target = member.target
        if target is None:
            target = member.target = Field(member.name, version, set(), Place())
            alternative.fields.append(target)
        target.names |= {member.name, *member.aliases}
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
    """Turns the bytes of a minor's values into those that `arrays` reads: of no record that holds itself.

    Only for types that hold themselves, and to find values that no column holds: all others are read as they are.
    """

    def __init__(self, text: str) -> None:
        """Prepare for a minor's self-contained text.

        Raises:
            PipelineError: As of `read_type`.
        """
        self._reader: Final = TypeReader(text)
        self._texts: Final[dict[str, bytes]] = {}
        self._data = b""
        self._out: list[bytes] = []
        self._copied = 0  # all before it is in `_out`
        self._skipping = 0

    def transcode(self, data: bytes) -> bytes | None:
        """Return a value with a JSON text in place of each record that stands within one of its kind.

        Returns:
            None when no column holds the value: a decimal of more digits than its precision or of no bytes, a timestamp of
            milliseconds that does not fit in microseconds, or bytes that are not of the type.
        """
        self._data = data
        self._out = []
        self._copied = 0
        self._skipping = 0
        try:
            end = self._walk(self._reader.root, 0)
        except (ArithmeticError, ValueError, IndexError):
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

    def _walk(self, node: Node, place: int) -> int:
        match node.kind:
            case "null":
                return place
            case "boolean":
                return place + 1
            case "float":
                return place + 4
            case "double":
                return place + 8
            case "int" | "long" | "enum":
                number, place = self._long(place)
                if node.logical.endswith("timestamp-millis") and abs(number) > MILLIS_MAX:
                    raise OverflowError
                return place
            case "bytes" | "string":
                length, place = self._long(place)
                self._check_decimal(node, place, length)
                return place + length
            case "fixed":
                self._check_decimal(node, place, node.size)
                return place + node.size
            case "union":
                index, place = self._long(place)
                return self._walk(node.parts[index], place)
            case "record":
                for member in node.members:
                    place = self._walk(member.node, place)
                return place
            case "array" | "map":
                return self._walk_items(node, place)
            case _:
                return self._walk_recursive(node, place)

    def _walk_items(self, node: Node, place: int) -> int:
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
                if node.kind == "map":
                    length, place = self._long(place)
                    place += length
                place = self._walk(node.parts[0], place)

    def _walk_recursive(self, node: Node, place: int) -> int:
        self._skipping += 1
        end = self._walk(self._reader.records[node.recursion], place)
        self._skipping -= 1
        if not self._skipping:
            of = self._texts.get(node.recursion)
            if of is None:
                of = self._texts[node.recursion] = self._reader.text_of(node.recursion).encode()
            value = decode_value(of, self._data[place:end], Judgement("datum", "", "", b""))
            shown = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            self._put(place, unsigned(len(shown) << 1) + shown, end)
        return end

    def _check_decimal(self, node: Node, place: int, length: int) -> None:
        if node.logical == "decimal" and not self._skipping:
            digits = self._data[place : place + length]
            if not digits or abs(int.from_bytes(digits, "big", signed=True)) >= 10**node.precision:
                raise OverflowError


# from a column that was read to the merged one


@final
@dataclass(slots=True)
class _Found:
    """One alternative of a column at hand: where it stands in the column, as SQL behind it, and what leads into it."""

    target: Alternative
    suffix: str
    kind: str
    type: str = ""
    members: list[tuple[Field, str, "_Column"]] = field(default_factory=list)
    item: "_Column | None" = None


_Column = list[_Found]  # what a column at hand may hold


def _of_place(older: Place, younger: Place) -> _Column:
    """See a column of an older state of a type; what it holds comes first in the younger, in the same order."""
    out: _Column = []
    several = len(older.alternatives) > 1
    names = older.member_names()
    for index, each in enumerate(older.alternatives):
        target = younger.alternatives[index]
        found = _Found(target, f".{quoted(names[index])}" if several else "", each.kind, each.type)
        if each.kind == "record":
            columns = unique_names([one.name for one in each.fields])
            found.members = [
                (target.fields[i], columns[i], _of_place(one.place, target.fields[i].place))
                for i, one in enumerate(each.fields)
            ]
            if not each.fields:
                found.type = "boolean"
        elif each.kind in {"array", "map"}:
            found.item = _of_place(items_of(each), items_of(target))
        out.append(found)
    return out


def _null(of: str) -> str:
    return f"CAST(NULL AS {of})"


def _convert(column: _Column, place: Place, path: str, depth: int) -> str:
    by_target = {id(found.target): found for found in column}
    if not column:
        return _null(place.column_type())
    if len(place.alternatives) == 1:
        return _convert_one(column[0], place.alternatives[0], path + column[0].suffix, depth)
    parts: list[str] = []
    unchanged = [id(found.target) for found in column] == [id(each) for each in place.alternatives]
    for name, alternative in zip(place.member_names(), place.alternatives, strict=True):
        found = by_target.get(id(alternative))
        if found is None:
            value = _null(alternative.column_type())
        else:
            value = _convert_one(found, alternative, path + found.suffix, depth)
        unchanged = unchanged and found is not None and value == f"{path}.{quoted(name)}"
        parts.append(f"'{name}', {value}")
    if unchanged:
        return path
    return f"CASE WHEN {path} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def _convert_one(found: _Found, alternative: Alternative, path: str, depth: int) -> str:
    if alternative.kind == "record":
        return _convert_record(found, alternative, path, depth)
    if alternative.kind in {"array", "map"}:
        if found.item is None:
            raise ValueError(f"{alternative.kind} has no items")
        variable = f"x{depth}"
        item = _convert(found.item, items_of(alternative), variable, depth + 1)
        if item == variable:
            return path
        if alternative.kind == "array":
            return f"transform({path}, {variable} -> {item})"
        return f"transform_values({path}, (k{depth}, {variable}) -> {item})"
    return path if found.type == alternative.type else f"CAST({path} AS {alternative.type})"


def _convert_record(found: _Found, alternative: Alternative, path: str, depth: int) -> str:
    if not alternative.fields:
        return path
    by_field = {id(each): (name, column) for each, name, column in found.members}
    names = unique_names([each.name for each in alternative.fields])
    parts: list[str] = []
    unchanged = [id(each) for each, _, _ in found.members] == [id(each) for each in alternative.fields]
    for name, each in zip(names, alternative.fields, strict=True):
        if id(each) in by_field:
            at = f"{path}.{quoted(by_field[id(each)][0])}"
            value = _convert(by_field[id(each)][1], each.place, at, depth)
        else:
            value = _null(each.place.column_type())
        unchanged = unchanged and value == f"{path}.{quoted(name)}"
        parts.append(f"'{name}', {value}")
    if unchanged:
        return path
    return f"CASE WHEN {path} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
