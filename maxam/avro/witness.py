"""Data that show a mismatch between two schemas: the smallest values there are, except at the place that matters."""

import json
from collections.abc import Callable
from typing import Final, NamedTuple, final

from maxam.avro.data import decode
from maxam.avro.resolution import LOGICAL_TYPE_MISMATCH, MISSING_SYMBOLS, NOT_TEXT, Incompatibility
from maxam.avro.schema import DEPTH_MAX, Schema, Type

ENDLESS: Final = 2**31 - 1  # bytes of a type that holds itself with no way out: it has no value

_LEAST_BYTES: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


class Witness(NamedTuple):
    """A datum.

    Attributes:
        body: Avro binary.
        text: The same in Avro's JSON encoding.
        part: The value in it that cannot be read, likewise.
    """

    body: bytes
    text: str
    part: str


def witness(writer: Schema, incompatibility: Incompatibility) -> Witness | None:
    """Return a datum that the writer's schema accepts and the reader's cannot read.

    Args:
        writer: The schema that the incompatibility was found in.
        incompatibility: Of `compatibility.check`.

    Returns:
        The datum, or None if it would lie deeper than a value may be nested.
    """
    maker = _Maker(writer.type, incompatibility)
    if not maker.write(writer.type, 0, 0):
        return None
    body = bytes(maker.out)
    whole = decode(writer.type, body)
    part = whole
    for step in incompatibility.writer_route:
        part = part.items[step if part.type.kind == "record" else 0]
    return Witness(body, json.dumps(whole.json(), ensure_ascii=False), json.dumps(part.json(), ensure_ascii=False))


def least_bytes(of: Type) -> dict[int, int]:
    """Return the bytes of the shortest value of each type in a schema, by the types' `id`."""
    return _sizes(of, _least_bytes)


def most_bytes(of: Type) -> dict[int, int]:
    """Return the bytes of the longest value of each type in a schema, by the types' `id`. ENDLESS if there is none.

    Of numbers that are lengths or indices, only those of one byte count. Nothing is longer than its number needs.
    """
    return _sizes(of, _most_bytes)


def _sizes(root: Type, size: Callable[[Type, dict[int, int]], int]) -> dict[int, int]:
    """Compute a size of each type in a schema from the sizes of the types in it, which are ENDLESS as long as unknown."""
    types: dict[int, Type] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in types:
            types[id(one)] = one
            todo += [field.type for field in one.fields]
            todo += one.branches
    sizes = dict.fromkeys(types, ENDLESS)
    changed = True
    while changed:  # each round settles at least one type
        changed = False
        for key, one in types.items():
            value = size(one, sizes)
            if value < sizes[key]:
                sizes[key] = value
                changed = True
    return sizes


def _least_bytes(of: Type, least: dict[int, int]) -> int:
    match of.kind:
        case "record":
            return min(sum([least[id(field.type)] for field in of.fields]), ENDLESS)
        case "union":
            return min(1 + min([least[id(branch)] for branch in of.branches]), ENDLESS)
        case "fixed":
            return of.size
        case "enum":
            return 1 if of.symbols else ENDLESS
        case "array" | "map":
            return 1
        case _:
            return _LEAST_BYTES[of.kind]


def _most_bytes(of: Type, most: dict[int, int]) -> int:
    match of.kind:
        case "record":
            return min(sum([most[id(field.type)] for field in of.fields]), ENDLESS)
        case "union":
            return min(1 + max([most[id(branch)] for branch in of.branches]), ENDLESS)
        case "fixed":
            return of.size
        case "array" | "map" | "bytes" | "string":
            return ENDLESS
        case "int":
            return 5
        case "long":
            return 10
        case "enum":
            return 1
        case _:
            return _LEAST_BYTES[of.kind]


def varint(number: int) -> bytes:
    """Encode an `int` or `long`."""
    number = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@final
class _Maker:
    """Writes the smallest value that goes along a route."""

    __slots__ = ("_incompatibility", "_least", "out")

    def __init__(self, root: Type, incompatibility: Incompatibility) -> None:
        self._incompatibility: Final = incompatibility
        self._least: Final = least_bytes(root)
        self.out: Final = bytearray()

    def write(self, of: Type, at: int, depth: int) -> bool:
        """Write a value. Return False if there is none. `at` is the position on the route, -1 beside it."""
        if of.kind in {"record", "array", "map"}:
            depth += 1
        if depth > DEPTH_MAX or self._least[id(of)] == ENDLESS:
            return False
        route = self._incompatibility.writer_route
        step = route[at] if 0 <= at < len(route) else -1
        there = at == len(route)
        match of.kind:
            case "record":
                for index, field in enumerate(of.fields):
                    if not self.write(field.type, at + 1 if index == step else -1, depth):
                        return False
                return True
            case "union":
                if step >= 0:
                    self.out.extend(varint(step))
                    return self.write(of.branches[step], at + 1, depth)
                lengths = [self._least[id(branch)] for branch in of.branches]
                index = lengths.index(min(lengths))
                self.out.extend(varint(index))
                return self.write(of.branches[index], -1, depth)
            case "array" | "map":
                if step >= 0:
                    self.out.extend(b"\x02" if of.kind == "array" else b"\x02\x02k")  # one item, a key of one letter
                    if not self.write(of.branches[0], at + 1, depth):
                        return False
                self.out.append(0)
                return True
            case _:
                self.out.extend(self._leaf(of, there))
                return True

    def _leaf(self, of: Type, there: bool) -> bytes:
        kind = self._incompatibility.kind if there else ""
        if kind == MISSING_SYMBOLS:
            return varint(self._incompatibility.symbol)
        if kind == NOT_TEXT:
            return b"\x02\xff"
        if (
            kind == LOGICAL_TYPE_MISMATCH
        ):  # 0 is the same with any scale, and the same moment in milliseconds and microseconds
            if of.kind in {"int", "long"}:
                return b"\x02"
            if of.kind == "bytes":
                return b"\x02\x01"
            if of.kind == "fixed":
                return bytes(of.size - 1) + b"\x01"
        return bytes(self._least[id(of)])  # zeros are false, 0, 0.0, nothing, and the first symbol
