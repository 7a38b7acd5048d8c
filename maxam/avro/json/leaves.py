"""Writers of values without parts: numbers, text, bytes, enums, and the logical types over them."""

import math
import re
import struct
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final

from maxam.avro.json.errors import NOTHING, ShownText, ValueEncodeError, close_to, listed
from maxam.avro.json.forms import BITS, Json
from maxam.avro.schema import Type
from maxam.content import unsigned
from maxam.counting import counted

DECIMAL_BYTES_MAX: Final = (
    64  # 154 digits; turning longer ones into decimal text, which takes quadratic time, is not done
)
DECIMAL_DIGITS_MAX: Final = 4000  # Python turns no longer text into a number

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_REALS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
TIME_EXAMPLES: Final = {  # JSON by logical type
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

Write = Callable[[Json, bytearray, int], None]  # appends a value that is nested in this many records, arrays and maps


def write_null(value: Json, _out: bytearray, _depth: int) -> None:
    """Append nothing."""
    if value is not None:
        raise ValueEncodeError("", "null", value)


def write_boolean(value: Json, out: bytearray, _depth: int) -> None:
    """Append a boolean."""
    if not isinstance(value, bool):
        raise ValueEncodeError("", "true or false", value)
    out.append(value)


def write_string(value: Json, out: bytearray, _depth: int) -> None:
    """Append a string."""
    if not isinstance(value, str):
        raise ValueEncodeError("", "text", value)
    try:
        append_data(value.encode(), out)
    except UnicodeEncodeError:
        raise ValueEncodeError("", "text", ShownText("half a surrogate pair")) from None


def write_uuid(value: Json, out: bytearray, depth: int) -> None:
    """Append the text of a UUID."""
    if isinstance(value, str) and not _UUID.fullmatch(value):
        raise ValueEncodeError("", "a UUID such as 123e4567-e89b-42d3-a456-426614174000", value)
    write_string(value, out, depth)


def write_bytes(value: Json, out: bytearray, _depth: int) -> None:
    """Append bytes."""
    append_data(_binary(value, "base64 text"), out)


def enum_writer(of: Type) -> Write:
    """Return the writer of an enum."""
    symbols = list(of.symbols)
    places = {symbol: place for place, symbol in enumerate(symbols)}

    def write(value: Json, out: bytearray, _depth: int) -> None:
        place = places.get(value) if isinstance(value, str) else None
        if place is None:
            hint = close_to(value, symbols) if isinstance(value, str) else ""
            raise ValueEncodeError("", f"one of {listed(symbols)}", value, hint)
        append_long(place, out)

    return write


def number_writer(of: Type, rows: bool) -> Write:
    """Return the writer of an int or long, with the logical types over them."""
    bits = BITS[of.kind]
    bound = 1 << (bits - 1)
    expected = f"a whole number of {bits} bits"
    if of.logical:
        expected = f"a {of.logical} such as {TIME_EXAMPLES[of.logical]}, or {expected}"

    def write(value: Json, out: bytearray, _depth: int) -> None:
        number = value
        if of.kind == "long" and isinstance(value, str) and _WHOLE.fullmatch(value):
            number = int(value)  # as those beyond 2^53 are shown
        elif of.logical and isinstance(value, str | date | time):
            number = _units(of.logical, value)
        elif rows and isinstance(value, Decimal) and value == value.to_integral_value():
            number = int(value)
        if type(number) is not int:
            raise ValueEncodeError("", expected, value)
        if not -bound <= number < bound:
            raise ValueEncodeError("", f"a value that {bits} bits hold", value)
        append_long(number, out)

    return write


def real_writer(kind: str) -> Write:
    """Return the writer of a float or double."""
    form = "<f" if kind == "float" else "<d"

    def write(value: Json, out: bytearray, _depth: int) -> None:
        if isinstance(value, str) and value in _REALS:
            value = _REALS[value]
        elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueEncodeError("", 'a number, "NaN", "Infinity" or "-Infinity"', value)
        try:
            data = struct.pack(form, float(value))
        except OverflowError:
            data = b""
        if not data or (not isinstance(value, float) and math.isinf(float(value))):
            raise ValueEncodeError("", f"a number that a {kind} holds", value)
        out += data

    return write


def fixed_writer(of: Type) -> Write:
    """Return the writer of a fixed, with duration and UUID."""
    expected = f"base64 text of {counted(of.size, 'byte')}"
    shape = {"duration": 'an object with "months", "days" and "milliseconds"', "uuid": "a UUID"}.get(of.logical)
    if shape is not None:
        expected = f"{shape}, or {expected}"

    def write(value: Json, out: bytearray, _depth: int) -> None:
        if of.logical == "duration" and isinstance(value, dict):
            out += _duration(value)
            return
        if of.logical == "uuid" and isinstance(value, str) and _UUID.fullmatch(value):
            out += bytes.fromhex(value.replace("-", ""))
            return
        data = _binary(value, expected)
        if len(data) != of.size:
            raise ValueEncodeError("", expected, ShownText(counted(len(data), "byte")))
        out += data

    return write


def _duration(value: dict[str, Json]) -> bytes:
    numbers: list[int] = []
    for name in ("months", "days", "milliseconds"):
        number = value.get(name)
        if type(number) is not int or not 0 <= number < 2**32:
            found = number if name in value else NOTHING
            raise ValueEncodeError(name, "a whole number of 32 bits, not negative", found)
        numbers.append(number)
    if len(value) > len(numbers):
        raise ValueEncodeError("", 'an object with "months", "days" and "milliseconds"', value)
    return struct.pack("<III", *numbers)


def decimal_writer(of: Type) -> Write:
    """Return the writer of a decimal over bytes or fixed."""
    size = of.size if of.kind == "fixed" else None
    expected = f"a decimal of at most {counted(of.precision, 'digit')}, {of.scale} of them after the point"
    example = f', such as "1{"." + "0" * of.scale if of.scale else ""}"'

    def write(value: Json, out: bytearray, _depth: int) -> None:
        text = isinstance(value, str)
        if text and of.scale <= DECIMAL_BYTES_MAX and _DECIMAL.fullmatch(value):
            data = _unscaled(of, Decimal(value), value, expected)
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            data = _unscaled(of, Decimal(str(value)) if isinstance(value, float) else Decimal(value), value, expected)
        elif text and (of.scale > DECIMAL_BYTES_MAX or len(value) > DECIMAL_BYTES_MAX):
            data = _binary(value, f"{expected}, or base64 text")  # what is shown of one too long to be text
            if size is not None and len(data) != size:
                raise ValueEncodeError("", counted(size, "byte"), ShownText(counted(len(data), "byte")))
        else:
            raise ValueEncodeError("", expected + example, value)
        if size is None:
            append_long(len(data), out)
        out += data

    return write


def _unscaled(of: Type, number: Decimal, value: Json, expected: str) -> bytes:
    sign, figures, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueEncodeError("", expected, value)
    digits = "".join(map(str, figures)).lstrip("0")
    shift = exponent + of.scale if digits else 0
    if shift < 0:
        if digits[shift:].strip("0") or len(digits) < -shift:
            raise ValueEncodeError("", expected, value)
        digits = digits[:shift]
    if len(digits) + max(shift, 0) > min(of.precision, DECIMAL_DIGITS_MAX):
        raise ValueEncodeError("", expected, value)
    unscaled = int(digits + "0" * max(shift, 0) or "0") * (-1 if sign else 1)
    size = of.size if of.kind == "fixed" else (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def _binary(value: Json, expected: str) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if not isinstance(value, str):
        raise ValueEncodeError("", expected, value)
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise ValueEncodeError("", expected, value, f" ({error})") from None


def _units(logical: str, value: str | date | time) -> int | None:
    """Return the number that Avro holds for a date, a time of day or a timestamp; None if the value is none."""
    local, unit = logical.startswith("local"), logical.rpartition("-")[2]
    text = value if isinstance(value, str) else value.isoformat()
    try:
        if logical == "date":
            return (date.fromisoformat(text) - _EPOCH.date()).days if _DATE.fullmatch(text) else None
        if logical.startswith("time-"):
            found = _TIME.fullmatch(text)
            if found is None:
                return None
            at = time(int(found[1]), int(found[2]), int(found[3]))
            return (at.hour * 3600 + at.minute * 60 + at.second) * _PER_SECOND[unit] + _fraction(found[4], unit, value)
        found = _MOMENT.fullmatch(text)
        zone = None if found is None else found[4]
        if isinstance(value, datetime) and zone is None:
            zone = "Z"  # a table's moments are UTC
        elif found is not None and (zone is None) is not local:
            return None
        if found is None:
            return None
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{'+00:00' if zone in {None, 'Z'} else zone}")
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(seconds=1) * _PER_SECOND[unit] + _fraction(found[3], unit, value)


def _fraction(digits: str | None, unit: str, value: Json) -> int:
    """Turn digits after the point into units, of which no part may be left."""
    width = len(str(_PER_SECOND[unit])) - 1
    text = (digits or "").ljust(width, "0")
    if text[width:].strip("0"):
        raise ValueEncodeError("", f"at most {width} digits of a second, as it is of {unit}", value)
    return int(text[:width])


def append_long(number: int, out: bytearray) -> None:
    """Append a long as a zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def append_data(data: bytes, out: bytearray) -> None:
    """Append bytes after their length."""
    append_long(len(data), out)
    out += data


def zigzag(number: int) -> bytes:
    """Return a long as a zigzag varint."""
    return unsigned((number << 1) ^ (number >> 63))
