"""Bodies as values that JSON can hold, decoded by the schema that judged them.

How Avro shows: bytes and fixed as base64, decimals as exact text, dates and times as ISO 8601 (UTC with `Z`), NaN and
the infinities as text, a record out of a union of several named types as `{"<type name>": {...}}`. What a logical type
cannot express (a timestamp beyond year 9999, a decimal of a thousand digits) shows as its base type, so that one odd
field hides nothing else.
"""

import io
import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID

import fastavro
import fastavro.read
from fastavro.schema import SchemaParseException
from fastavro.types import Schema

from maxam.avro.schema import PII
from maxam.counting import counted
from maxam.errors import MaxamError
from maxam.records import Judgement

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

DECIMAL_BYTES_MAX: Final = 64  # 154 digits; turning longer ones into decimal text takes quadratic time
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ValueDecodeError(MaxamError):
    """Say why a body could not be shown as a value."""


def decode_value(schema_text: bytes, body: bytes, judgement: Judgement, *, without_pii: bool = False) -> Json:
    """Decode the datum inside `body` as the schema says.

    The body must be one that the gateway accepted: fastavro does not bound what hostile bytes make it do, the walker did.

    Args:
        schema_text: Self-contained text of the schema that judged the body.
        body: The whole body.
        judgement: Where the datum lies in it.
        without_pii: Leave out the fields that the schema marks as personal, whatever they hold.

    Raises:
        ValueDecodeError: Text and datum do not belong together.
    """
    start = judgement.value_offset
    datum = body[start:] if judgement.value_length < 0 else body[start : start + judgement.value_length]
    stream = io.BytesIO(datum)
    try:
        value = fastavro.schemaless_reader(
            stream, _parsed(schema_text, without_pii), None, return_record_name=True, return_record_name_override=True
        )
    except (ValueError, LookupError, EOFError, ArithmeticError, TypeError, struct.error) as error:
        raise ValueDecodeError(f"{type(error).__name__}: {error}") from error
    left = len(datum) - stream.tell()
    if left:
        raise ValueDecodeError(f"{counted(left, 'byte')} left over behind the value")
    return _named(value)


@lru_cache(maxsize=256)
def marks_personal(schema_text: bytes) -> bool:
    """Say whether a schema marks any field as personal."""
    left = [json.loads(schema_text)]
    while left:
        match left.pop():
            case dict() as part:
                if part.get(PII) is True:
                    return True
                left += part.values()
            case list() as parts:
                left += parts
            case _:
                pass
    return False


def iso_time(microseconds: int) -> str:
    """Return microseconds since the epoch as ISO 8601 UTC text, or the bare number beyond year 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _named(value: object) -> Json:
    """Turn fastavro's (type name, record) pairs, which it makes inside unions, into objects of one key."""
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    if isinstance(value, tuple):
        name, record = value
        return {name: _named(record)}
    return cast("Json", value)


# Our logical types stand in for Avro's and for the base types that JSON lacks: fastavro hands each leaf to its reader
# below, so that one pass gives JSON, and none of fastavro's own readers, which raise or take quadratic time, runs.
_PREFIX: Final = "maxam-"
_LEAVES: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum"}
_BASES: Final = {"bytes": "bytes", "fixed": "bytes", "float": "real", "double": "real"}


@lru_cache(maxsize=256)
def _parsed(schema_text: bytes, without_pii: bool) -> Schema:
    try:
        schema = json.loads(schema_text)
        return fastavro.parse_schema(_marked(schema, without_pii))
    except (ValueError, RecursionError, SchemaParseException) as error:
        raise ValueDecodeError(f"the schema cannot be used: {error}") from error


def _marked(schema: Any, without_pii: bool) -> Any:  # noqa: ANN401 parsed JSON of any shape
    match schema:
        case str():
            base = _BASES.get(schema)
            return schema if base is None else {"type": schema, "logicalType": _PREFIX + base}
        case list():
            return [_marked(branch, without_pii) for branch in schema]
        case {"type": "record" | "error", "fields": list() as fields}:
            # defaults and aliases are for readers of another version: not needed to decode, and a default's form
            # would have to follow the marked type
            marked = [{"name": field["name"], "type": _marked(field["type"], without_pii)} for field in fields]
            kept = {key: schema[key] for key in ("type", "name", "namespace") if key in schema} | {"fields": marked}
            personal = [field["name"] for field in fields if without_pii and field.get(PII) is True]
            return kept | {"logicalType": _PREFIX + "bare", PII: personal} if personal else kept
        case {"type": "array", "items": items}:
            return {"type": "array", "items": _marked(items, without_pii)}
        case {"type": "map", "values": values}:
            return {"type": "map", "values": _marked(values, without_pii)}
        case {"type": str() as base} if base not in _LEAVES:
            return base  # a wrapped reference to a named type
        case {"type": str() as base}:
            logical = schema.get("logicalType")
            if f"{base}-{_PREFIX}{logical}" not in _READERS:
                logical = _BASES.get(base)
            kept = {key: item for key, item in schema.items() if key not in {"logicalType", "default"}}
            return kept if logical is None else kept | {"logicalType": _PREFIX + logical}
        case {"type": inner}:
            return _marked(inner, without_pii)
        case _:
            return schema


def _real(number: float) -> Json:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _base64(data: bytes) -> Json:
    return b64encode(data).decode()


def _decimal(data: bytes, scale: int) -> Json:
    if len(data) > DECIMAL_BYTES_MAX or not 0 <= scale <= DECIMAL_BYTES_MAX:
        return _base64(data)
    unscaled = int.from_bytes(data, "big", signed=True)
    return format(Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)), "f")


def _timestamp(value: int, per_second: int, zone: str) -> Json:
    seconds, fraction = divmod(value, per_second)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return value
    digits = len(str(per_second)) - 1
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:0{digits}d}{zone}" if moment.year > 999 else value


def _date(days: int) -> Json:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return days


def _time_of_day(value: int, per_second: int) -> Json:
    seconds, fraction = divmod(value, per_second)
    if not 0 <= seconds < 86_400:
        return value
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{fraction:0{len(str(per_second)) - 1}d}"


def _duration(data: bytes) -> Json:
    months, days, milliseconds = struct.unpack("<III", data)
    return {"months": months, "days": days, "milliseconds": milliseconds}


def _scale(schema: dict[str, object]) -> int:
    scale = schema.get("scale", 0)
    return scale if isinstance(scale, int) else -1


_Reader = Callable[..., Json]
_READERS: Final[dict[str, _Reader]] = {
    "record-maxam-bare": lambda record, writer, _reader: {k: v for k, v in record.items() if k not in writer[PII]},
    "bytes-maxam-bytes": lambda data, _writer, _reader: _base64(data),
    "fixed-maxam-bytes": lambda data, _writer, _reader: _base64(data),
    "float-maxam-real": lambda number, _writer, _reader: _real(number),
    "double-maxam-real": lambda number, _writer, _reader: _real(number),
    "bytes-maxam-decimal": lambda data, writer, _reader: _decimal(data, _scale(writer)),
    "fixed-maxam-decimal": lambda data, writer, _reader: _decimal(data, _scale(writer)),
    "fixed-maxam-duration": lambda data, _writer, _reader: _duration(data) if len(data) == 12 else _base64(data),
    "fixed-maxam-uuid": lambda data, _writer, _reader: str(UUID(bytes=data)) if len(data) == 16 else _base64(data),
    "int-maxam-date": lambda days, _writer, _reader: _date(days),
    "int-maxam-time-millis": lambda value, _writer, _reader: _time_of_day(value, 1_000),
    "long-maxam-time-micros": lambda value, _writer, _reader: _time_of_day(value, 1_000_000),
    "long-maxam-timestamp-millis": lambda value, _writer, _reader: _timestamp(value, 1_000, "Z"),
    "long-maxam-timestamp-micros": lambda value, _writer, _reader: _timestamp(value, 1_000_000, "Z"),
    "long-maxam-timestamp-nanos": lambda value, _writer, _reader: _timestamp(value, 1_000_000_000, "Z"),
    "long-maxam-local-timestamp-millis": lambda value, _writer, _reader: _timestamp(value, 1_000, ""),
    "long-maxam-local-timestamp-micros": lambda value, _writer, _reader: _timestamp(value, 1_000_000, ""),
    "long-maxam-local-timestamp-nanos": lambda value, _writer, _reader: _timestamp(value, 1_000_000_000, ""),
}
fastavro.read.LOGICAL_READERS.update(_READERS)  # fastavro's documented way to add logical types
