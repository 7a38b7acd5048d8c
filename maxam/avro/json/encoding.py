"""JSON, as `maxam.avro.json.decoding` shows Avro, back to Avro: decoding and encoding again gives the same value.

More forms are accepted than are shown. A field that has a default may be absent. Dates and times may be the number that Avro
holds. A decimal may be a JSON number, which is read exactly. Bytes, moments, decimals and maps may be Python's own, as tables
have them.

Unions. JSON has fewer forms than Avro has types. So a branch is written as `{"<type>": value}` where the bare value would be
taken for another branch. `named_forms` decides that for decoding and encoding. A bare value is the first branch of its form,
those closest to the form first.

Rows of tables (`rows`) are taken more leniently. A field that is null where null is invalid counts as absent. A null member
that the record does not have is ignored. An object with a member for each branch of a union, all null but one, selects that
branch.
"""

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import Final, NoReturn, final

from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.fingerprint import CRC_BYTES
from maxam.avro.json.errors import NOTHING, ShownText, ValueEncodeError, close_to, listed, title
from maxam.avro.json.forms import Json, candidates_of, form_of, named_forms
from maxam.avro.json.leaves import (
    Write,
    append_data,
    append_long,
    decimal_writer,
    enum_writer,
    fixed_writer,
    number_writer,
    real_writer,
    write_boolean,
    write_bytes,
    write_null,
    write_string,
    write_uuid,
    zigzag,
)
from maxam.avro.rule import ENVELOPE, SchemaVersion
from maxam.avro.schema import DEPTH_MAX, Field, Type

COMPILED_MAX: Final = 256  # types whose encoders are kept


def read_json(text: bytes, name: str) -> Json:
    """Read JSON that a person wrote, with exact numbers.

    Raises:
        ValueEncodeError: It is not UTF-8 JSON, or an object in it has a key twice. The text has the place.
    """
    try:
        return json.loads(
            text.decode("utf-8-sig"), parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_unique
        )
    except RecursionError:
        raise ValueEncodeError(name, "JSON", ShownText("more levels than any value may have")) from None
    except UnicodeDecodeError as error:
        found = ShownText(f"byte {text[error.start]:02X} at byte {error.start}")
        raise ValueEncodeError(name, "JSON in UTF-8", found) from None
    except ValueError as error:
        raise ValueEncodeError(name, "JSON", ShownText(f"an error: {error}")) from None
    except ArithmeticError:  # of Decimal
        raise ValueEncodeError(name, "JSON", ShownText("a number whose exponent is too large")) from None


def encode_value(of: Type, value: Json, *, rows: bool = False) -> bytes:
    """Encode a value as a bare datum.

    Args:
        of: The schema.
        value: As `read_json` gives it, or out of a table.
        rows: Take it as the row of a table, see the module.

    Raises:
        ValueEncodeError: It is not a value of the schema. The text has the field, the expected and the actual value.
    """
    out = bytearray()
    _compiled(of, rows)(value, out, 0)
    return bytes(out)


def encode_body(
    version: SchemaVersion,
    encoding: str,
    datum: bytes,
    keys: EnvelopeKeys,
    fingerprint_bytes: int,
    destination: str | None = None,
) -> bytes:
    """Put a datum into a body of an encoding.

    An envelope identifies its schema by a fingerprint of the length given, and its destination if that is given.
    """
    if encoding != ENVELOPE:
        return version.head(encoding) + datum
    fingerprint = version.crc_64 if fingerprint_bytes == CRC_BYTES else version.sha_256
    topic = [] if destination is None else [(keys.topic, destination.encode())]
    return envelope([(keys.fingerprint, fingerprint), *topic, (keys.body, datum)])


def envelope(items: list[tuple[int, bytes]]) -> bytes:
    """Write a GenericEnvelope."""
    content = b"".join([zigzag(key) + zigzag(len(value)) + value for key, value in items])
    return zigzag(len(items)) + content + b"\0" if items else b"\0"


def _refuse(text: str) -> NoReturn:
    raise ValueError(f'{text} is not JSON: write "{text}", as text')


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    keys: dict[str, Json] = {}
    for key, value in pairs:
        if key in keys:
            raise ValueError(f"key {key!r} is there twice")
        keys[key] = value
    return keys


# From a type to its writer.


@final
class _Kind:
    """One type; `write` is set once the parts of the type are known."""

    __slots__ = ("type", "write")

    def __init__(self, of: Type) -> None:
        self.type: Final = of
        self.write: Write = _unwritten


def _unwritten(_value: Json, _out: bytearray, _depth: int) -> None:
    raise AssertionError("a type is used before it is known")


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(of: Type, rows: bool) -> Write:
    return _Compiler(rows).kind(of).write


@final
class _Compiler:
    def __init__(self, rows: bool) -> None:
        self._rows: Final = rows
        self._strict: Final = _Compiler(False) if rows else self
        self._named: Final[dict[str, _Kind]] = {}

    def kind(self, of: Type) -> _Kind:
        known = self._named.get(of.name) if of.name else None
        if known is not None:
            return known
        kind = _Kind(of)
        if of.name:
            self._named[of.name] = kind
        kind.write = self._write(of)
        return kind

    def _write(self, of: Type) -> Write:
        match of.kind:
            case "null":
                return write_null
            case "boolean":
                return write_boolean
            case "int" | "long":
                return number_writer(of, self._rows)
            case "float" | "double":
                return real_writer(of.kind)
            case "string":
                return write_uuid if of.logical == "uuid" and not self._rows else write_string
            case "bytes" | "fixed" if of.logical == "decimal":
                return decimal_writer(of)
            case "bytes":
                return write_bytes
            case "fixed":
                return fixed_writer(of)
            case "enum":
                return enum_writer(of)
            case "array":
                return self._array(of)
            case "map":
                return self._map(of)
            case "union":
                return self._union(of)
            case _:
                return self._record(of)

    def _record(self, of: Type) -> Write:
        rows, names, order = self._rows, {field.name for field in of.fields}, [field.name for field in of.fields]
        fields = [(field.name, self.kind(field.type), field) for field in of.fields]
        defaults: dict[str, bytes] = {}

        def default(field: Field) -> bytes:
            if field.name not in defaults:
                out = bytearray()
                _write_default(field.type, field.default, out)
                defaults[field.name] = bytes(out)
            return defaults[field.name]

        def write(value: Json, out: bytearray, depth: int) -> None:
            if not isinstance(value, dict):
                raise ValueEncodeError("", f"an object, the fields of {of.name}", value)
            _require_depth(depth)
            if not value.keys() <= names:
                for key, item in value.items():
                    if key not in names and not (rows and item is None):
                        close = close_to(str(key), order)
                        raise ValueEncodeError(
                            str(key), f"one of the fields {listed(order)}", ShownText(repr(key)), close
                        )
            for name, kind, field in fields:
                if name not in value:
                    if not field.defaulted:
                        raise ValueEncodeError(name, f"{title(field.type)}, as it has no default", NOTHING)
                    out += default(field)
                    continue
                start = len(out)
                try:
                    kind.write(value[name], out, depth + 1)
                except ValueEncodeError as error:
                    if not (rows and value[name] is None and field.defaulted):
                        raise error.within(name) from None
                    del out[start:]
                    out += default(field)

        return write

    def _array(self, of: Type) -> Write:
        item = self.kind(of.branches[0])

        def write(value: Json, out: bytearray, depth: int) -> None:
            if not isinstance(value, list | tuple):
                raise ValueEncodeError("", "an array", value)
            _require_depth(depth)
            if value:
                append_long(len(value), out)
                for place, each in enumerate(value):
                    try:
                        item.write(each, out, depth + 1)
                    except ValueEncodeError as error:
                        raise error.within(f"[{place}]") from None
            out.append(0)

        return write

    def _map(self, of: Type) -> Write:
        item, rows = self.kind(of.branches[0]), self._rows

        def write(value: Json, out: bytearray, depth: int) -> None:
            pairs = (
                rows and isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)
            )
            if not isinstance(value, dict) and not pairs:  # a table's map is a list of pairs
                raise ValueEncodeError("", "an object", value)
            _require_depth(depth)
            if value:
                append_long(len(value), out)
                for key, each in value.items() if isinstance(value, dict) else value:
                    try:
                        write_string(key, out, depth)
                        item.write(each, out, depth + 1)
                    except ValueEncodeError as error:
                        raise error.within(f"[{key!r}]") from None
            out.append(0)

        return write

    def _union(self, of: Type) -> Write:
        lenient = _union_writer(of, [self.kind(branch) for branch in of.branches], self._rows)
        if not self._rows:
            return lenient
        strict = self._strict.kind(
            of
        )  # first: what it takes is the same branch, and so the same bytes, for rows and for JSON

        def write(value: Json, out: bytearray, depth: int) -> None:
            start = len(out)
            try:
                strict.write(value, out, depth)
            except ValueEncodeError:
                del out[start:]
                lenient(value, out, depth)

        return write


def _union_writer(of: Type, branches: list[_Kind], rows: bool) -> Write:  # noqa: C901 - the ways to choose a branch
    labels = {branch.label: at for at, branch in enumerate(of.branches)}
    expected = f"one of {', '.join([title(branch) for branch in of.branches])}"
    null = labels.get("null")
    steps = [f"<{branch.label}>" for branch in of.branches] if len(labels) - (null is not None) > 1 else []
    records = {at for at, branch in enumerate(of.branches) if branch.kind == "record"}
    interprets = any(named_forms(of)) or not any(
        branch.kind == "map" or any(field.name in labels for field in branch.fields) for branch in of.branches
    )
    members = {  # of a table's struct
        name: at
        for label, at in labels.items()
        for name in (label.rpartition(".")[2], re.sub(r"\W", "_", label), label)
    }
    candidates = candidates_of(of)

    def take(at: int, value: Json, out: bytearray, depth: int) -> None:
        start = len(out)
        try:
            append_long(at, out)
            branches[at].write(value, out, depth)
        except ValueEncodeError as error:
            del out[start:]
            raise (error.within(steps[at]) if steps else error) from None

    def write(value: Json, out: bytearray, depth: int) -> None:
        if value is None and null is not None:
            append_long(null, out)
            return
        if interprets and isinstance(value, dict) and len(value) == 1:
            ((label, inner),) = value.items()
            if label in labels:
                take(labels[label], inner, out, depth)
                return
        fitting = candidates.get(form_of(value), ())
        if len(records) > 1 and isinstance(value, dict):
            fitting = [at for at in records if _has_fields_of(of.branches[at], value)] or [
                at for at in fitting if at not in records
            ]
        problem: ValueEncodeError | None = None
        if len(records.intersection(fitting)) < 2:
            for at in fitting:
                try:
                    take(at, value, out, depth)
                except ValueEncodeError as error:
                    problem = problem or error
                else:
                    return
        if rows and isinstance(value, dict) and value and value.keys() <= members.keys():
            told = [(name, item) for name, item in value.items() if item is not None]
            if len(told) == 1:
                take(members[told[0][0]], told[0][1], out, depth)
                return
        if problem is not None and len(fitting) == 1:
            raise problem
        if len(records) > 1 and isinstance(value, dict):
            example = f'{{"{of.branches[min(records)].name}": {{...}}}}'
            raise ValueEncodeError("", f"one of {', '.join(labels)}, named as in {example}", value)
        raise ValueEncodeError("", expected, value)

    return write


def _has_fields_of(of: Type, value: dict[str, Json]) -> bool:
    needed = {field.name for field in of.fields if not field.defaulted}
    return needed <= value.keys() <= {field.name for field in of.fields}


def _require_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise ValueEncodeError("", f"at most {DEPTH_MAX} records, arrays and maps in each other", ShownText("one more"))


def _write_default(of: Type, value: Json, out: bytearray) -> None:  # noqa: C901 - one case for each kind of type
    """Append a field's default, which the schema's author wrote as Avro has it: base types, bytes as characters."""
    match of.kind:
        case "null":
            pass
        case "boolean":
            out.append(value)
        case "int" | "long":
            append_long(value, out)
        case "float" | "double":
            real_writer(of.kind)(value, out, 0)
        case "string":
            append_data(value.encode(), out)
        case "bytes":
            append_data(value.encode("latin-1"), out)
        case "fixed":
            out += value.encode("latin-1")
        case "enum":
            append_long(of.symbols.index(value), out)
        case "union":
            out.append(0)
            _write_default(of.branches[0], value, out)
        case "record":
            for field in of.fields:
                _write_default(field.type, value.get(field.name, field.default), out)
        case _:
            if value:
                append_long(len(value), out)
            for item in value:
                if of.kind == "map":
                    append_data(item.encode(), out)
                _write_default(of.branches[0], value[item] if of.kind == "map" else item, out)
            out.append(0)
