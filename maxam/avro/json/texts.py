"""Bodies as JSON text, read once from their first byte to the last one, for those who convert many.

The text is that of `decoding.decode_value` and `json_line`, which make Python's own objects in between. The body must be one that the
gateway accepted: the walker has bounded the work that it causes.
"""

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Final, final

from maxam.avro.json.decoding import ValueDecodeError, leaf_reader
from maxam.avro.json.forms import EXACT_MAX, named_forms
from maxam.avro.schema import DEPTH_MAX, Type, parse_schema
from maxam.avro.source import read_source
from maxam.counting import counted
from maxam.errors import SchemaError

_RECORD: Final = 0
_LONG: Final = 1
_STRING: Final = 2
_UNION: Final = 3
_ENUM: Final = 4
_NUMBER: Final = 5  # int or long with a logical type
_DATA: Final = 6  # bytes, with or without a logical type
_FIXED: Final = 7
_ARRAY: Final = 8
_MAP: Final = 9
_BOOLEAN: Final = 10
_NULL: Final = 11
_REAL: Final = 12
_OPS: Final = {
    "record": _RECORD,
    "int": _LONG,
    "long": _LONG,
    "string": _STRING,
    "union": _UNION,
    "enum": _ENUM,
    "bytes": _DATA,
    "fixed": _FIXED,
    "array": _ARRAY,
    "map": _MAP,
    "boolean": _BOOLEAN,
    "null": _NULL,
    "float": _REAL,
    "double": _REAL,
}
_DEPTH_MAX: Final = 3 * DEPTH_MAX  # unions count too
_KEPT_TEXTS: Final = 256  # of each type with a logical type: moments and amounts repeat within a value
_KEPT_STRINGS: Final = 4096  # names repeat from value to value
_KEPT_BYTES_MAX: Final = 32  # of a string or a value whose text is kept
_STRINGS: Final[dict[bytes, str]] = {}  # texts of strings, for all schemas
_SIZES: Final = {"float": 4, "double": 8}
_FORMS: Final = {'"': "text", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


@final
class _Node:
    """One type of a schema.

    Attributes:
        op: Kind of the type.
        size: Bytes of a fixed, a float or a double.
        nodes: Of the fields, branches or items.
        texts: The name before each field, the symbols of an enum, or the names of branches, as JSON.
        hidden: Of each field, whether it is left out.
        forms: Of each branch, the forms in which it is named.
        leaf: Returns a number or bytes as JSON text; None for types that need none.
        kept: Likewise, and keeps the texts of some.
    """

    __slots__ = ("forms", "hidden", "kept", "leaf", "nodes", "op", "size", "texts")

    def __init__(self, op: int, size: int, leaf: Callable[[object], str] | None) -> None:
        self.op: Final = op
        self.size: Final = size
        self.nodes: Final[list[_Node]] = []
        self.texts: Final[list[str]] = []
        self.hidden: Final[list[bool]] = []
        self.forms: Final[list[frozenset[str]]] = []
        self.leaf: Final = leaf
        self.kept: Final[Callable[[object], str] | None] = leaf and lru_cache(_KEPT_TEXTS)(leaf)


@final
class JsonTexts:
    """Writes the values of one schema as JSON text: one line, in ASCII without control characters."""

    __slots__ = ("_named", "_root", "_without_pii")

    def __init__(self, of: Type, without_pii: bool) -> None:
        """Prepare for a type; `without_pii` leaves out the fields that it marks as personal."""
        self._without_pii: Final = without_pii
        self._named: Final[dict[str, _Node]] = {}
        self._root: Final = self._node(of)

    def text(self, body: bytes, start: int, end: int) -> str:
        """Return the datum between two places of a body as JSON text.

        Raises:
            ValueDecodeError: Schema and datum do not belong together.
        """
        out: list[str] = []
        try:
            place = _write(self._root, body, start, out, 0)
        except (ValueError, IndexError, struct.error) as error:
            raise ValueDecodeError(f"{type(error).__name__}: {error}") from error
        if place != end:
            raise ValueDecodeError(f"{counted(abs(end - place), 'byte')} left over or missing after the value")
        return "".join(out)

    def _node(self, of: Type) -> _Node:
        if of.name:
            known = self._named.get(of.name)
            if known is not None:
                return known
        leaf = _leaf_texts(of)
        op = _OPS[of.kind]
        node = _Node(_NUMBER if op == _LONG and leaf is not None else op, of.size or _SIZES.get(of.kind, 0), leaf)
        if of.name:
            self._named[of.name] = node
        if op == _RECORD:
            separator = ""
            for field in of.fields:
                hidden = self._without_pii and field.personal
                node.hidden.append(hidden)
                node.nodes.append(self._node(field.type))
                node.texts.append(f"{separator}{_quoted(field.name)}: ")
                if not hidden:
                    separator = ", "
        elif op == _UNION:
            node.forms.extend(named_forms(of))
            node.texts.extend([f"{{{_quoted(branch.label)}: " for branch in of.branches])
        elif op == _ENUM:
            node.texts.extend([_quoted(symbol) for symbol in of.symbols])
        if op != _RECORD:
            node.nodes.extend([self._node(branch) for branch in of.branches])
        return node


@lru_cache(maxsize=256)
def json_texts(schema_text: bytes, without_pii: bool) -> JsonTexts:
    """Return the writer for a schema.

    Raises:
        ValueDecodeError: The text is no schema.
    """
    try:
        return JsonTexts(parse_schema(read_source("the schema", schema_text)).type, without_pii)
    except (ValueError, RecursionError, SchemaError) as error:
        raise ValueDecodeError(f"the schema cannot be used: {error}") from error


def _quoted(text: str) -> str:
    quoted: str = encode_basestring_ascii(text)
    return quoted.replace("\x7f", "\\u007f") if "\x7f" in quoted else quoted


def _string(data: bytes) -> str:
    """Return the text of a string, and keep it if it is short."""
    quoted = _quoted(data.decode())
    if len(data) <= _KEPT_BYTES_MAX:
        if len(_STRINGS) >= _KEPT_STRINGS:
            _STRINGS.clear()
        _STRINGS[data] = quoted
    return quoted


def _leaf_texts(of: Type) -> Callable[[object], str] | None:
    """Return what `leaf_reader` does, for JSON text."""
    read = leaf_reader(of)
    if read is None:
        return None
    shown = read

    def text(value: object) -> str:
        found = shown(value)
        return _quoted(found) if isinstance(found, str) else json.dumps(found)

    return text


def _write(node: _Node, data: bytes, place: int, out: list[str], depth: int) -> int:  # noqa: C901, PLR0912 - one case for each kind
    """Append the text of the value at a place, and return the place after it."""
    op = node.op
    if op == _RECORD:
        if depth > _DEPTH_MAX:
            raise ValueError("nested too deep")
        out.append("{")
        for at, field in enumerate(node.nodes):
            if node.hidden[at]:
                place = _write(field, data, place, [], depth + 1)
                continue
            out.append(node.texts[at])
            place = _write(field, data, place, out, depth + 1)
        out.append("}")
        return place
    if op == _NULL:
        out.append("null")
        return place
    if op == _BOOLEAN:
        out.append("true" if data[place] else "false")
        return place + 1
    if op == _FIXED or op == _REAL:  # noqa: PLR1714, SIM109 - twice as fast as a set
        end = place + node.size
        _append(node, data[place:end], node.size, out)
        return end
    number = data[place]
    place += 1
    if number > 127:
        number &= 127
        shift = 7
        while (byte := data[place]) > 127:
            number |= (byte & 127) << shift
            shift += 7
            place += 1
        number |= byte << shift
        place += 1
    number = -(number >> 1) - 1 if number & 1 else number >> 1
    if op == _LONG:
        out.append(str(number) if -EXACT_MAX <= number <= EXACT_MAX else f'"{number}"')
    elif op == _STRING:
        end = place + number
        _require(data, place, end)
        string = data[place:end]
        out.append(_STRINGS.get(string) or _string(string))
        return end
    elif op == _UNION:
        if number < 0:
            raise ValueError("negative number")
        return _write_branch(node, number, data, place, out, depth)
    elif op == _ENUM:
        if number < 0:
            raise ValueError("negative number")
        out.append(node.texts[number])
    elif op == _NUMBER:
        kept = node.kept
        assert kept is not None  # noqa: S101 - by `_node`
        out.append(kept(number))
    elif op == _DATA:
        end = place + number
        _append(node, data[place:end], number, out)
        return end
    else:
        return _write_items(node, number, data, place, out, depth + 1)
    return place


def _write_branch(node: _Node, number: int, data: bytes, place: int, out: list[str], depth: int) -> int:
    """Append a value of a branch, under its name if its form could be taken for another one."""
    forms = node.forms[number]
    begin = len(out)
    place = _write(node.nodes[number], data, place, out, depth + 1)
    if forms:
        first = out[begin]
        form = _FORMS.get(first[0])
        if form is None:
            form = "real" if "." in first or "e" in first else "whole"
        if form in forms:
            out[begin] = node.texts[number] + first
            out.append("}")
    return place


def _write_items(node: _Node, count: int, data: bytes, place: int, out: list[str], depth: int) -> int:
    """Append the items of an array or map whose first block has this count."""
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    array = node.op == _ARRAY
    items = node.nodes[0]
    parts: list[str] = []
    entries: dict[str, str] = {}  # of two entries with one key, the last one counts
    if array:
        out.append("[")
    separator = ""
    while count:
        if count < 0:  # its bytes follow
            count = -count
            place = _signed(data, place)[1]
        for _ in range(count):
            if array:
                if separator:
                    out.append(separator)
                place = _write(items, data, place, out, depth)
                separator = ", "
            else:
                length, place = _signed(data, place)
                end = place + length
                _require(data, place, end)
                key = _quoted(data[place:end].decode())
                parts.clear()
                place = _write(items, data, end, parts, depth)
                entries[key] = "".join(parts)
        count, place = _signed(data, place)
    if array:
        out.append("]")
    else:
        out.append("{" + ", ".join([f"{key}: {text}" for key, text in entries.items()]) + "}")
    return place


def _append(node: _Node, data: bytes, length: int, out: list[str]) -> None:
    """Append bytes, a fixed, a float or a double."""
    if len(data) != length:
        raise IndexError("the value is cut off")
    if node.op == _REAL:
        real: float = struct.unpack("<d" if length == 8 else "<f", data)[0]
        if math.isfinite(real):
            out.append(repr(real))
        else:
            out.append('"NaN"' if math.isnan(real) else '"Infinity"' if real > 0 else '"-Infinity"')
        return
    leaf = node.kept if length <= _KEPT_BYTES_MAX else node.leaf
    out.append(f'"{b64encode(data).decode()}"' if leaf is None else leaf(data))


def _require(data: bytes, place: int, end: int) -> None:
    if not place <= end <= len(data):
        raise IndexError("the value is cut off")


def _signed(data: bytes, place: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    number = shift = 0
    while (byte := data[place]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        place += 1
    number |= byte << shift
    return -(number >> 1) - 1 if number & 1 else number >> 1, place + 1
