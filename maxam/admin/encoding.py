"""JSON as `maxam.admin.values` shows it, back to Avro: what `schemas encode` and `schemas test` make of what people write.

Every form that `values` prints is taken, so that JSON decoded here and encoded again gives the same JSON. Beyond that: a field
that has a default may be left out; dates and times may be their base type's number; a decimal may be a JSON number, which is
read exactly; a branch of a union may be named, `{"<type>": value}`, where the bare value would not say which.
"""

import json
import math
import re
import struct
from base64 import b64decode
from binascii import Error as Base64Error
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, NoReturn, final
from uuid import UUID

from maxam.admin.schema_tree import Node
from maxam.admin.values import DECIMAL_BYTES_MAX
from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.fingerprint import CRC_BYTES
from maxam.avro.rule import ENVELOPE, SchemaVersion
from maxam.avro.schema import DEPTH_MAX
from maxam.content import unsigned
from maxam.counting import counted
from maxam.errors import MaxamError

FOUND_CHARACTERS_MAX: Final = 60  # of a value in an error
DECIMAL_DIGITS_MAX: Final = 4000  # Python turns no longer text into a number
_DECIMAL: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?")
_ZONE: Final = re.compile(r"Z|([+-])([0-9]{2}):([0-9]{2})")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_REALS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Json = Any  # parsed JSON of any shape; numbers with a point or an exponent are Decimal


@final
class ValueEncodeError(MaxamError):
    """Say why JSON is not a value of a schema.

    Attributes:
        path: The field, such as `from.venueId` or `meters[3].credit`; empty for the whole.
        expected: What the schema asks for.
        found: What is there.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(f"{path or 'value'}: expected {expected}, found {found}")
        self.path: Final = path
        self.expected: Final = expected
        self.found: Final = found


def read_json(text: bytes, name: str) -> Json:
    """Read JSON that a person wrote, with exact numbers.

    Raises:
        ValueEncodeError: It is not UTF-8 JSON, or an object in it has a key twice; names the place.
    """
    try:
        return json.loads(
            text.decode("utf-8-sig"), parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_unique
        )
    except RecursionError:
        raise ValueEncodeError(name, "JSON", "more levels than any value may have") from None
    except UnicodeDecodeError as error:
        raise ValueEncodeError(name, "JSON in UTF-8", f"byte {text[error.start]:02X} at byte {error.start}") from None
    except ValueError as error:
        raise ValueEncodeError(name, "JSON", f"an error: {error}") from None


def encode_value(tree: Node, value: Json) -> bytes:
    """Encode JSON as a bare datum.

    Args:
        tree: Of the schema.
        value: As `read_json` gives it.

    Raises:
        ValueEncodeError: It is not a value of the schema; names the field, what is expected and what is there.
    """
    encoder = _Encoder()
    encoder.value(tree, value, "", 0)
    return b"".join(encoder.parts)


def encode_body(
    version: SchemaVersion, encoding: str, datum: bytes, keys: EnvelopeKeys, fingerprint_bytes: int
) -> bytes:
    """Put a datum into a body of an encoding; an envelope names its schema by a fingerprint of the length given."""
    if encoding != ENVELOPE:
        return version.head(encoding) + datum
    fingerprint = version.crc_64 if fingerprint_bytes == CRC_BYTES else version.sha_256
    return envelope([(keys.fingerprint, fingerprint), (keys.body, datum)])


def envelope(items: list[tuple[int, bytes]]) -> bytes:
    """Write a GenericEnvelope."""
    content = b"".join([_number(key) + _number(len(value)) + value for key, value in items])
    return _number(len(items)) + content + b"\0" if items else b"\0"


def _refuse(text: str) -> NoReturn:
    raise ValueError(f'{text} is not JSON: write "{text}", as text')


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    keys: dict[str, Json] = {}
    for key, value in pairs:
        if key in keys:
            raise ValueError(f"key {key!r} is there twice")
        keys[key] = value
    return keys


def _number(number: int) -> bytes:
    return unsigned((number << 1) ^ (number >> 63))


def _found(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            text = str(value) if not isinstance(value, int) or value.bit_length() < 1000 else "a huge number"
        case str():
            text = json.dumps(value, ensure_ascii=False)
        case list():
            return f"an array of {len(value)}"
        case _:
            keys = ", ".join(value)
            return (
                f"an object with {keys if len(keys) <= FOUND_CHARACTERS_MAX else counted(len(value), 'key')}"
                if value
                else "{}"
            )
    return text if len(text) <= FOUND_CHARACTERS_MAX else f"{text[: FOUND_CHARACTERS_MAX - 1]}…"


def _close(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


@final
class _Encoder:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def value(self, node: Node, value: Json, path: str, depth: int) -> None:  # noqa: C901, PLR0912 - one case for each kind of type
        """Append one value."""
        if node.kind in {"record", "array", "map"}:
            depth += 1
            if depth > DEPTH_MAX:
                raise ValueEncodeError(path, f"at most {DEPTH_MAX} records, arrays and maps in each other", "one more")
        match node.kind:
            case "null":
                if value is not None:
                    raise ValueEncodeError(path, "null", _found(value))
            case "boolean":
                if not isinstance(value, bool):
                    raise ValueEncodeError(path, "true or false", _found(value))
                self.parts.append(b"\1" if value else b"\0")
            case "int" | "long":
                self.parts.append(_number(_whole(node, value, path)))
            case "float" | "double":
                self.parts.append(_real(node.kind, value, path))
            case "string":
                self._string(node, value, path)
            case "bytes":
                data = _decimal(node, value, path) if node.logical == "decimal" else _base64(value, path, "base64 text")
                self.parts += (_number(len(data)), data)
            case "fixed":
                self.parts.append(_fixed(node, value, path))
            case "enum":
                if not isinstance(value, str) or value not in node.symbols:
                    symbols = list(node.symbols)
                    hint = _close(value, symbols) if isinstance(value, str) else ""
                    raise ValueEncodeError(path, f"one of {_names(symbols)}", _found(value) + hint)
                self.parts.append(_number(node.symbols.index(value)))
            case "union":
                self._union(node, value, path, depth)
            case "record":
                self._record(node, value, path, depth)
            case "array":
                if not isinstance(value, list):
                    raise ValueEncodeError(path, "an array", _found(value))
                if value:
                    self.parts.append(_number(len(value)))
                for index, item in enumerate(value):
                    self.value(node.branches[0], item, f"{path}[{index}]", depth)
                self.parts.append(b"\0")
            case _:
                if not isinstance(value, dict):
                    raise ValueEncodeError(path, "an object", _found(value))
                if value:
                    self.parts.append(_number(len(value)))
                for key, item in value.items():
                    self._string(node, key, f"{path}[{key!r}]")
                    self.value(node.branches[0], item, f"{path}[{key!r}]", depth)
                self.parts.append(b"\0")

    def _string(self, node: Node, value: Json, path: str) -> None:
        if not isinstance(value, str):
            raise ValueEncodeError(path, "text", _found(value))
        if node.logical == "uuid" and not _UUID.fullmatch(value):
            raise ValueEncodeError(path, "a UUID such as 123e4567-e89b-42d3-a456-426614174000", _found(value))
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise ValueEncodeError(path, "text", "half a surrogate pair") from None
        self.parts += (_number(len(data)), data)

    def _record(self, node: Node, value: Json, path: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise ValueEncodeError(path, f"an object, the fields of {node.name}", _found(value))
        names = [member.name for member in node.members]
        for key in value:
            if key not in names:
                place = f"{path}.{key}" if path else key
                raise ValueEncodeError(place, f"one of the fields {_names(names)}", f"{key!r}{_close(key, names)}")
        for member in node.members:
            place = f"{path}.{member.name}" if path else member.name
            if member.name in value:
                self.value(member.node, value[member.name], place, depth)
            elif member.defaulted:
                self._default(member.node, member.default)
            else:
                raise ValueEncodeError(place, f"{member.node.title}, as it has no default", "nothing")

    def _union(self, node: Node, value: Json, path: str, depth: int) -> None:
        labels = [branch.label for branch in node.branches]
        maps = any(branch.kind == "map" for branch in node.branches)
        if isinstance(value, dict) and len(value) == 1 and not maps:
            (label, inner), *_ = value.items()
            if label in labels and not any(m.name == label for branch in node.branches for m in branch.members):
                self.parts.append(_number(labels.index(label)))
                self.value(node.branches[labels.index(label)], inner, f"{path}<{label}>", depth)
                return
        candidates = sorted(
            [index for index, branch in enumerate(node.branches) if _may_be(branch, value)],
            key=lambda index: _awkwardness(node.branches[index], value),
        )
        records = [index for index in candidates if node.branches[index].kind == "record"]
        if len(records) > 1:
            fitting = [index for index in records if _has_fields_of(node.branches[index], value)]
            if len(fitting) != 1:
                example = f'{{"{node.branches[records[0]].name}": {{...}}}}'
                raise ValueEncodeError(path, f"one of {', '.join(labels)}, named as in {example}", _found(value))
            candidates = fitting
        problem: ValueEncodeError | None = None
        several = sum(branch.kind != "null" for branch in node.branches) > 1
        for index in candidates:
            done = len(self.parts)
            self.parts.append(_number(index))
            branch = node.branches[index]
            try:
                self.value(branch, value, f"{path}<{branch.label}>" if several else path, depth)
            except ValueEncodeError as error:
                del self.parts[done:]
                problem = problem or error
            else:
                return
        if problem is not None and len(candidates) == 1:
            raise problem
        raise ValueEncodeError(path, f"one of {', '.join(branch.title for branch in node.branches)}", _found(value))

    def _default(self, node: Node, value: Json) -> None:
        """Append a field's default, which the schema's author wrote as Avro has it: base types, bytes as characters."""
        match node.kind:
            case "null":
                pass
            case "boolean":
                self.parts.append(b"\1" if value else b"\0")
            case "int" | "long":
                self.parts.append(_number(value))
            case "float" | "double":
                self.parts.append(_real(node.kind, value, ""))
            case "bytes" | "string":
                data = value.encode("latin-1" if node.kind == "bytes" else "utf-8")
                self.parts += (_number(len(data)), data)
            case "fixed":
                self.parts.append(value.encode("latin-1"))
            case "enum":
                self.parts.append(_number(node.symbols.index(value)))
            case "union":
                self.parts.append(b"\0")
                self._default(node.branches[0], value)
            case "record":
                for member in node.members:
                    self._default(member.node, value.get(member.name, member.default))
            case _:
                if value:
                    self.parts.append(_number(len(value)))
                for item in value.items() if node.kind == "map" else value:
                    if node.kind == "map":
                        self._string(node, item[0], "")
                    self._default(node.branches[0], item[1] if node.kind == "map" else item)
                self.parts.append(b"\0")


def _may_be(node: Node, value: Json) -> bool:
    """Say whether JSON of this sort can stand for a type at all."""
    match value:
        case None:
            return node.kind == "null"
        case bool():
            return node.kind == "boolean"
        case int():
            return node.kind in {"int", "long", "float", "double"} or node.logical == "decimal"
        case Decimal() | float():
            return node.kind in {"float", "double"} or node.logical == "decimal"
        case str():
            logical = node.kind in {"int", "long"} and node.logical != ""
            return node.kind in {"string", "bytes", "fixed", "enum", "float", "double"} or logical
        case list():
            return node.kind == "array"
        case _:
            return node.kind in {"record", "map"} or node.logical == "duration"


def _awkwardness(node: Node, value: Json) -> int:
    """Order the branches of a union for a value: whole numbers are whole numbers first."""
    return int(isinstance(value, int) and node.kind in {"float", "double"})


def _has_fields_of(node: Node, value: dict[str, Json]) -> bool:
    names = {member.name for member in node.members}
    needed = {member.name for member in node.members if not member.defaulted}
    return needed <= value.keys() <= names


def _whole(node: Node, value: Json, path: str) -> int:
    bits = 32 if node.kind == "int" else 64
    number = value
    expected = f"a whole number of {bits} bits"
    if node.logical in _MOMENTS:
        moment = f"a {node.logical} such as {_MOMENTS[node.logical]}"
        if isinstance(value, str):
            number, moment = _moment(node.logical, value, path)
        expected = f"{moment}, or {expected}"
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueEncodeError(path, expected, _found(value))
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueEncodeError(path, f"a value that {bits} bits hold", _found(value))
    return number


_MOMENTS: Final = {
    "date": '"2026-11-21"',
    "time-millis": '"12:00:00.000"',
    "time-micros": '"12:00:00.000000"',
    "timestamp-millis": '"2026-11-21T12:00:00.000Z"',
    "timestamp-micros": '"2026-11-21T12:00:00.000000Z"',
    "timestamp-nanos": '"2026-11-21T12:00:00.000000000Z"',
    "local-timestamp-millis": '"2026-11-21T12:00:00.000"',
    "local-timestamp-micros": '"2026-11-21T12:00:00.000000"',
    "local-timestamp-nanos": '"2026-11-21T12:00:00.000000000"',
}


def _moment(logical: str, text: str, path: str) -> tuple[int | None, str]:
    """Read a date, a time of day or a timestamp: its number, None when it is none; and what is expected."""
    expected = f"a {logical} such as {_MOMENTS[logical]}"
    day, clock, zone = text, "", ""
    if "timestamp" in logical:
        day, mark, rest = text.partition("T")
        at = re.search(r"Z|[+-]", rest)
        clock, zone = (rest[: at.start()], rest[at.start() :]) if at else (rest, "")
        if not mark or bool(zone) == logical.startswith("local"):
            return None, expected
    elif logical.startswith("time"):
        day, clock = "", text
    seconds = 0
    if day:
        found = _DATE.fullmatch(day)
        try:
            days = (date(*map(int, found.groups())) - _EPOCH.date()).days if found else None
        except ValueError:
            days = None
        if days is None:
            return None, expected
        if logical == "date":
            return days, expected
        seconds = 86_400 * days
    found = _TIME.fullmatch(clock)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or int(found[3]) > 59:
        return None, expected
    seconds += 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])
    if zone:
        shift = _ZONE.fullmatch(zone)
        if shift is None:
            return None, expected
        if shift[1]:
            away = timedelta(hours=int(shift[2]), minutes=int(shift[3])).total_seconds()
            seconds += int(-away if shift[1] == "+" else away)
    unit = logical.rpartition("-")[2]
    per_second = _PER_SECOND[unit]
    digits = len(str(per_second)) - 1
    fraction = found[4] or ""
    if fraction[digits:].strip("0"):
        raise ValueEncodeError(path, f"at most {digits} digits of a second, as it is of {unit}", _found(text))
    return seconds * per_second + int(fraction[:digits].ljust(digits, "0")), expected


def _real(kind: str, value: Json, path: str) -> bytes:
    if isinstance(value, str) and value in _REALS:
        number = _REALS[value]
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise ValueEncodeError(path, f"a number that a {kind} holds", _found(value))
    else:
        raise ValueEncodeError(path, 'a number, "NaN", "Infinity" or "-Infinity"', _found(value))
    try:
        return struct.pack("<f" if kind == "float" else "<d", number)
    except OverflowError:
        raise ValueEncodeError(path, f"a number that a {kind} holds", _found(value)) from None


def _base64(value: Json, path: str, expected: str) -> bytes:
    if not isinstance(value, str):
        raise ValueEncodeError(path, expected, _found(value))
    try:
        return b64decode(value, validate=True)
    except (Base64Error, ValueError) as error:
        raise ValueEncodeError(path, expected, f"{_found(value)} ({error})") from None


def _fixed(node: Node, value: Json, path: str) -> bytes:
    if node.logical == "decimal":
        return _decimal(node, value, path)
    if node.logical == "duration" and isinstance(value, dict):
        return _duration(value, path)
    if node.logical == "uuid" and isinstance(value, str) and _UUID.fullmatch(value):
        return UUID(value).bytes
    expected = f"base64 text of {counted(node.size, 'byte')}"
    if node.logical in {"duration", "uuid"}:
        shape = {"duration": 'an object with "months", "days" and "milliseconds"', "uuid": "a UUID"}[node.logical]
        expected = f"{shape}, or {expected}"
    data = _base64(value, path, expected)
    if len(data) != node.size:
        raise ValueEncodeError(path, expected, counted(len(data), "byte"))
    return data


def _duration(value: dict[str, Json], path: str) -> bytes:
    numbers: list[int] = []
    for name in ("months", "days", "milliseconds"):
        number = value.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
            found = _found(number) if name in value else "nothing"
            raise ValueEncodeError(f"{path}.{name}".removeprefix("."), "a whole number of 32 bits, not negative", found)
        numbers.append(number)
    if len(value) > len(numbers):
        raise ValueEncodeError(path, 'an object with "months", "days" and "milliseconds"', _found(value))
    return struct.pack("<III", *numbers)


def _decimal(node: Node, value: Json, path: str) -> bytes:
    expected = f"a decimal of at most {counted(node.precision, 'digit')}, {node.scale} of them behind the point"
    text = isinstance(value, str) and node.scale <= DECIMAL_BYTES_MAX and _DECIMAL.fullmatch(value) is not None
    if text or (isinstance(value, int | Decimal) and not isinstance(value, bool)):
        number = Decimal(value)
    elif isinstance(value, str) and (node.scale > DECIMAL_BYTES_MAX or len(value) > DECIMAL_BYTES_MAX):
        data = _base64(value, path, f"{expected}, or base64 text")  # what `values` shows of one too long to be text
        if node.kind == "fixed" and len(data) != node.size:
            raise ValueEncodeError(path, counted(node.size, "byte"), counted(len(data), "byte"))
        return data
    else:
        raise ValueEncodeError(
            path, expected + ', such as "1' + ("." + "0" * node.scale if node.scale else "") + '"', _found(value)
        )
    sign, figures, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - JSON has no infinity, and the expression none either
    digits = "".join(map(str, figures)).lstrip("0")
    shift = exponent + node.scale
    if not digits:
        shift = 0
    if shift < 0:
        if digits[shift:].strip("0") or len(digits) < -shift:
            raise ValueEncodeError(path, expected, _found(value))
        digits = digits[:shift]
    if len(digits) + max(shift, 0) > min(node.precision, DECIMAL_DIGITS_MAX):
        raise ValueEncodeError(path, expected, _found(value))
    unscaled = int(digits + "0" * max(shift, 0) or "0") * (-1 if sign else 1)
    size = node.size if node.kind == "fixed" else (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)
