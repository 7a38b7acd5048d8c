"""Bodies as values that JSON can hold, decoded by the schema that judged them.

Bytes and fixed show as base64, decimals as exact text, dates and times as ISO 8601 (UTC with `Z`), NaN and the infinities as
text. So do whole numbers beyond 2^53, which JavaScript would round. A branch of a union shows as `{"<type name>": ...}` where the bare value would be taken for another branch. A value that its
logical type cannot express shows as its base type, so that one odd field hides nothing else. Examples are a timestamp beyond
year 9999 and a decimal of a thousand digits.
"""

import io
import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, cast, final
from uuid import UUID  # noqa: TID251 - the type of a decoded value

import fastavro
import fastavro.read
from fastavro.schema import SchemaParseException
from fastavro.types import Schema

from maxam.avro.json.forms import EXACT_MAX, form_of, named_forms
from maxam.avro.json.leaves import DECIMAL_BYTES_MAX
from maxam.avro.json.selection import ALL, Fields, Selection, selection_of
from maxam.avro.schema import Type, parse_schema
from maxam.avro.source import read_source
from maxam.counting import counted
from maxam.errors import MaxamError, SchemaError
from maxam.records import Validation

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ValueDecodeError(MaxamError):
    """A body could not be shown as a value."""

    code = "value-unreadable"


def decode_value(
    schema_text: bytes, body: bytes, validation: Validation, *, without_pii: bool = False, fields: Fields = ()
) -> Json:
    """Decode the datum inside `body` by its schema.

    The body must be one that the gateway accepted: fastavro does not bound the work that hostile bytes cause. The walker did.

    Args:
        schema_text: Self-contained text of the schema that judged the body.
        body: The whole body.
        validation: Where the datum lies in it.
        without_pii: Leave out the fields that the schema marks as personal, whatever they hold.
        fields: Paths of the fields to show. Empty for all.

    Raises:
        ValueDecodeError: Text and datum do not belong together.
    """
    start = validation.value_offset
    datum = body[start:] if validation.value_length < 0 else body[start : start + validation.value_length]
    return decode_datum(_parsed(schema_text, without_pii, fields), datum)


def decode_datum(schema: Schema, datum: bytes) -> Json:
    """Decode a bare datum.

    Args:
        schema: Of `reading_schema`.
        datum: Bytes that the gateway accepted.

    Raises:
        ValueDecodeError: Schema and datum do not belong together.
    """
    stream = io.BytesIO(datum)
    try:
        value = fastavro.schemaless_reader(stream, schema, None)
    except (ValueError, LookupError, EOFError, ArithmeticError, TypeError, struct.error) as error:
        raise ValueDecodeError(f"{type(error).__name__}: {error}") from error
    left = len(datum) - stream.tell()
    if left:
        raise ValueDecodeError(f"{counted(left, 'byte')} left over after the value")
    return cast("Json", value)


def json_text(value: object) -> bytes:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def iso_time(microseconds: int) -> str:
    """Return microseconds since the epoch as ISO 8601 UTC text, or the bare number beyond year 9999."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# Our logical types stand in for Avro's and for the base types that JSON lacks. fastavro hands each leaf to its reader below.
# So one pass gives JSON. It calls none of its own readers, because these raise or take quadratic time.
_PREFIX: Final = "maxam-"
_BASES: Final = {"bytes": "bytes", "fixed": "bytes", "float": "real", "double": "real", "long": "whole"}


@lru_cache(maxsize=256)
def _parsed(schema_text: bytes, without_pii: bool, fields: Fields) -> Schema:
    try:
        of = parse_schema(read_source("the schema", schema_text)).type
        return reading_schema(of, without_pii=without_pii, fields=fields)
    except (ValueError, RecursionError, SchemaParseException, SchemaError) as error:
        raise ValueDecodeError(f"the schema cannot be used: {error}") from error


def reading_schema(of: Type, *, without_pii: bool = False, fields: Fields = ()) -> Schema:
    """Return the schema by which fastavro decodes a type to values that JSON can hold."""
    return fastavro.parse_schema(_Marker(without_pii).marked(of, selection_of(fields)))


@final
class _Marker:
    """Writes a type as a schema for fastavro, whose logical types are ours."""

    def __init__(self, without_pii: bool) -> None:
        self._without_pii: Final = without_pii
        self._written: Final[set[str]] = set()
        self._made = 0

    def marked(self, of: Type, selection: Selection = ALL) -> Any:  # noqa: ANN401 JSON
        """Return a schema, or the name of one that is written already. Of the fields below, those of the selection are shown."""
        match of.kind:
            case "union":
                return [
                    self._branch(branch, forms, selection) if forms else self.marked(branch, selection)
                    for branch, forms in zip(of.branches, named_forms(of), strict=True)
                ]
            case "array":
                return {"type": "array", "items": self.marked(of.branches[0], selection)}
            case "map":
                return {"type": "map", "values": self.marked(of.branches[0], selection)}
            case "record" if selection:  # under a name of its own, because other places may show other fields
                return self._record(of, self._name("selection"), selection)
        if of.name in self._written:
            return of.name
        if of.name:
            self._written.add(of.name)
        return self._record(of, of.name, selection) if of.kind == "record" else self._leaf(of)

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"maxam.{kind}.N{self._made}"

    def _record(self, of: Type, name: str, selection: Selection) -> Any:  # noqa: ANN401 JSON
        # without defaults and aliases: they are for readers of another version
        fields = [
            {"name": field.name, "type": self.marked(field.type, selection.get(field.name, ALL))} for field in of.fields
        ]
        hidden = [
            field.name
            for field in of.fields
            if (self._without_pii and field.personal) or (selection and field.name not in selection)
        ]
        marks = {"logicalType": _PREFIX + "bare", "hidden": hidden} if hidden else {}
        return {"type": "record", "name": name, "fields": fields} | marks

    def _branch(self, of: Type, forms: frozenset[str], selection: Selection) -> Any:  # noqa: ANN401 JSON
        """Wrap a branch in a record, which adds no byte, and whose reader adds the branch's name in some forms."""
        name = self._name("branch")
        marks = {"logicalType": _PREFIX + "branch", "label": of.label, "forms": sorted(forms)}
        fields = [{"name": "value", "type": self.marked(of, selection)}]
        return {"type": "record", "name": name, "fields": fields} | marks

    def _leaf(self, of: Type) -> Any:  # noqa: ANN401 JSON
        logical = of.logical if f"{of.kind}-{_PREFIX}{of.logical}" in _READERS else _BASES.get(of.kind, "")
        leaf: dict[str, object] = {"type": of.kind}
        if of.kind == "fixed":
            leaf |= {"name": of.name, "size": of.size}
        elif of.kind == "enum":
            leaf |= {"name": of.name, "symbols": list(of.symbols)}
        if logical == "decimal":
            leaf |= {"precision": of.precision, "scale": of.scale}
        return leaf | {"logicalType": _PREFIX + logical} if logical else leaf


def leaf_reader(of: Type) -> Callable[[object], Json] | None:
    """Return what turns a number or bytes of a logical type into JSON; None for a type without one of those that are shown."""
    read = _READERS.get(f"{of.kind}-{_PREFIX}{of.logical}")
    if read is None:
        return None
    schema = {"scale": of.scale}
    return lambda value: read(value, schema, None)


def _with_name(record: dict[str, Json], writer: dict[str, Any], _reader: object) -> Json:
    value = record["value"]
    return {writer["label"]: value} if form_of(value) in writer["forms"] else value


def _real(number: float) -> Json:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _whole(number: int) -> Json:
    return number if -EXACT_MAX <= number <= EXACT_MAX else str(number)


def _base64(data: bytes) -> Json:
    return b64encode(data).decode()


def _decimal(data: bytes, scale: int) -> Json:
    if len(data) > DECIMAL_BYTES_MAX or not 0 <= scale <= DECIMAL_BYTES_MAX:
        return _base64(data)
    unscaled = int.from_bytes(data, "big", signed=True)
    digits = str(abs(unscaled)).zfill(scale + 1)
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _timestamp(value: int, per_second: int, zone: str) -> Json:
    seconds, fraction = divmod(value, per_second)
    days, second = divmod(seconds, 86_400)
    day = _day(days)
    if not day:
        return _whole(value)
    minutes, second = divmod(second, 60)
    digits = len(str(per_second)) - 1
    return f"{day}T{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{fraction:0{digits}d}{zone}"


@lru_cache(maxsize=256)
def _day(days: int) -> str:
    """Return a day since the epoch as ISO 8601, empty if it is not within the years 1000 to 9999."""
    try:
        day = date(1970, 1, 1) + timedelta(days=days)
    except OverflowError:
        return ""
    return day.isoformat() if day.year > 999 else ""


def _date(days: int) -> Json:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return days


def _time_of_day(value: int, per_second: int) -> Json:
    seconds, fraction = divmod(value, per_second)
    if not 0 <= seconds < 86_400:
        return _whole(value)
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
    "record-maxam-bare": lambda record, writer, _reader: {k: v for k, v in record.items() if k not in writer["hidden"]},
    "record-maxam-branch": _with_name,
    "bytes-maxam-bytes": lambda data, _writer, _reader: _base64(data),
    "fixed-maxam-bytes": lambda data, _writer, _reader: _base64(data),
    "float-maxam-real": lambda number, _writer, _reader: _real(number),
    "double-maxam-real": lambda number, _writer, _reader: _real(number),
    "long-maxam-whole": lambda number, _writer, _reader: _whole(number),
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
