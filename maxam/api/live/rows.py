"""Rows of live views as JSON text, made once for all tabs that show them.

Fields that change with each value of a topic are apart from the others, so most updates of a row are short.
"""

import json
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from maxam.avro.json.decoding import ValueDecodeError, decode_value
from maxam.avro.json.rows import topic_row
from maxam.avro.personal import marks_personal
from maxam.avro.registry import Registry
from maxam.records import Change, Validation

DECODED_BYTES_MAX: Final = 8192  # a longer body is not decoded: 0.2 us a byte at worst
VALUE_BYTES_MAX: Final = 8192  # of a value's JSON text; 7 of the largest a second fit into a stream
RAW_BYTES_MAX: Final = 512  # of a body that is shown without decoding
ROWS_MAX: Final = 2048  # of the cache: ten windows of 200
CACHE_BYTES_MAX: Final = 4_194_304
# Fields of `lasting`. The rest of a row is `passing`, except fields that are not in a stream at all.
_LASTING: Final = ("publisher", "encoding", "schema", "schema_version")
_LEFT_OUT: Final = ("fingerprint", "schema_fingerprint")
_ROW_OVERHEAD_BYTES: Final = 512  # of an entry of the cache, counted beside its text


@final
@dataclass(frozen=True, slots=True)
class Row:
    """A change of a topic as members of a JSON object, without the braces."""

    revision: int
    lasting: bytes
    passing: bytes


@final
class RowCache:
    """The rows that were made last, with their values."""

    def __init__(self) -> None:
        self._rows: Final[OrderedDict[tuple[bytes, bool], Row]] = OrderedDict()
        self._registry: Registry | None = None
        self.bytes = 0
        self.made = 0

    def __len__(self) -> int:
        return len(self._rows)

    def row(
        self, registry: Registry, schema_text: Callable[[Validation], bytes | None], change: Change, with_pii: bool
    ) -> Row:
        """Return the row of a change with its value, for a reader who may receive it."""
        if registry is not self._registry:  # the schema that decodes a value may have changed
            self._registry = registry
            self.clear()
        key = (change.destination, with_pii)
        row = self._rows.get(key)
        if row is not None and row.revision == change.revision:
            self._rows.move_to_end(key)
            return row
        if row is not None:
            self._remove(key, row)
        row = make_row(change, _value_fields(change, schema_text(change.validation), with_pii))
        self.made += 1
        self._rows[key] = row
        self.bytes += _size(key, row)
        while len(self._rows) > ROWS_MAX or self.bytes > CACHE_BYTES_MAX:
            oldest, out = next(iter(self._rows.items()))
            self._remove(oldest, out)
        return row

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()
        self.bytes = 0

    def _remove(self, key: tuple[bytes, bool], row: Row) -> None:
        del self._rows[key]
        self.bytes -= _size(key, row)


def make_row(change: Change, value: dict[str, object]) -> Row:
    """Make a row of a change and of the shown part of its value, which has `value_state`."""
    fields = topic_row(change)
    lasting = {name: fields.pop(name) for name in _LASTING}
    for name in _LEFT_OUT:
        del fields[name]
    lasting |= {name: value.pop(name) for name in ("value_state", "pii_masked", "problem") if name in value}
    return Row(change.revision, members(lasting), members(fields | value))


def members(fields: dict[str, object]) -> bytes:
    """Return fields as members of a JSON object on one line, without the braces."""
    return to_json(fields)[1:-1]


def to_json(value: object) -> bytes:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def _value_fields(change: Change, text: bytes | None, with_pii: bool) -> dict[str, object]:
    validation = change.validation
    if not validation.schema:  # no schema marks personal fields in it
        if change.body_bytes > RAW_BYTES_MAX:
            return {
                "value_state": "undecoded",
                "problem": f"it was accepted without a schema, and has {change.body_bytes} bytes",
            }
        problem = "it was accepted without a schema"
        return {"value_state": "raw", "problem": problem, "body": b64encode(change.body).decode()}
    if text is None:
        problem = f"the schema {validation.schema} {validation.schema_version} that judged it is no longer in force"
    elif change.body_bytes > DECODED_BYTES_MAX:
        problem = f"it is longer than {DECODED_BYTES_MAX} bytes"
    else:
        masked = not with_pii and marks_personal(text)
        try:
            value = decode_value(text, change.body, validation, without_pii=masked)
        except ValueDecodeError as error:
            problem = str(error)
        else:
            shown = len(to_json(value))
            if shown <= VALUE_BYTES_MAX:
                fields: dict[str, object] = {"value_state": "decoded", "value": value}
                return fields | {"pii_masked": True} if masked else fields
            problem = f"it would take {shown} bytes, more than {VALUE_BYTES_MAX}"
    return {"value_state": "undecoded", "problem": problem}


def _size(key: tuple[bytes, bool], row: Row) -> int:
    return len(key[0]) + len(row.lasting) + len(row.passing) + _ROW_OVERHEAD_BYTES
