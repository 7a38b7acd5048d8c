"""Values to bodies: JSON as `maxam-pipeline` and `maxam-admin` show it, or rows of a table, encoded as the rule of a destination says.

The opposite of `maxam.admin.values`, and more lenient: bytes may come as bytes or as base64, moments as ISO 8601, as Python's own or as
the number that Avro holds, decimals as text or numbers. A field that is absent, or null where null cannot be, has its
default. A value out of a union is the first branch that it fits, those closest to its own type before others, unless it says
which: `{"<type name>": value}`; an object with a member for each branch, all null but one, says so too.
"""

import json
import math
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NoReturn, final

from maxam.avro.registry import FINGERPRINTS, REGISTRY_FILE, Registry
from maxam.avro.rule import DATUM, ENVELOPE, NONE, Rule, SchemaVersion
from maxam.errors import SchemaError
from maxam.pipeline.errors import PipelineError
from maxam.records import Headers, Rejection

RULES_MAX: Final = 100_000  # destinations whose rule is remembered
SHOWN_MAX: Final = 60  # characters of a value in an error

_Write = Callable[[Any, bytearray], None]


@final
class ValueMismatchError(PipelineError):
    """Say that a value is not what its schema wants: where in it, what was expected, what was found."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__()
        self.path = ""
        self._expected: Final = expected
        self._found: Final = found

    def within(self, step: str) -> "ValueMismatchError":
        """Say that it is this step further down."""
        self.path = step + ("" if self.path.startswith("[") or not self.path else ".") + self.path
        return self

    def __str__(self) -> str:
        found = self._found if isinstance(self._found, _Absent) else repr(self._found)
        text = str(found)
        shown = text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
        return f"{self.path or 'the value'}: expected {self._expected}, found {shown}"


@final
class _Absent:
    """Stands for a member that is not there."""

    def __str__(self) -> str:
        return "nothing"


_ABSENT: Final = _Absent()


@final
class _Kind:
    """One type of a schema: how its values are written, and what they look like."""

    __slots__ = ("base", "label", "logical", "write")

    def __init__(self, label: str, base: str, logical: str) -> None:
        self.label: Final = label
        self.base: Final = base
        self.logical: Final = logical
        self.write: _Write = _unwritten


def _unwritten(_value: object, _out: bytearray) -> None:
    raise AssertionError("a type is used before it is known")


def compile_schema(text: bytes) -> _Write:
    """Return what writes a value of a self-contained schema as Avro binary, behind what is there.

    What it returns raises ValueMismatchError; the buffer then holds the beginning of the value.
    """
    return _Compiler().kind(json.loads(text), "").write


@final
class BodyEncoder:
    """Encodes values by the newest minor of the type that their destination carries."""

    def __init__(self, registry: Registry) -> None:
        self._registry: Final = registry
        self._fingerprint_bytes: Final = FINGERPRINTS[registry.fingerprint]
        self._rules: Final[dict[str, Rule | None]] = {}
        self._writers: Final[dict[str, _Write]] = {}

    def encode(self, destination: str, value: object) -> tuple[bytes, dict[str, str]]:
        """Return the body that tells `value`, and the headers that its SEND needs.

        Raises:
            PipelineError: No rule covers the destination, or one that names no schema.
            ValueMismatchError: The value does not fit the schema.
        """
        rule = self.rule(destination)
        if rule is None:
            raise PipelineError("no rule of the registry covers this destination")
        if rule.encoding == NONE:
            raise PipelineError("the rule of this destination names no schema: give the body, not a value")
        newest = self._registry.versions(rule.schema)[0]
        write = self._writers.get(rule.schema)
        if write is None:
            write = self._writers[rule.schema] = compile_schema(newest.schema.text)
        out = bytearray(newest.head(rule.encoding))
        try:
            write(value, out)
        except RecursionError:
            raise PipelineError("the value is nested too deeply") from None
        if rule.encoding == ENVELOPE:
            return self._envelope(destination, newest, bytes(out)), {}
        # without a version the newest minor is tried first, and that is ours
        needed = {"schema-version": newest.minor} if rule.encoding == DATUM and rule.version_required else {}
        return bytes(out), needed

    def problem(self, destination: str, body: bytes, headers: Mapping[str, str]) -> Rejection | None:
        """Say why the gateway, with this registry, would reject a body; None if it would not. A body may be empty."""
        rule = self.rule(destination)
        if rule is None:
            return Rejection("no-rule", "no rule of the registry covers this destination")
        if not body:
            return None
        pairs: Headers = tuple([(name.encode(), text.encode()) for name, text in headers.items()])
        judged = rule.judge(destination.encode(), pairs, body)
        return judged if isinstance(judged, Rejection) else None

    def rule(self, destination: str) -> Rule | None:
        """Give the rule of a destination."""
        try:
            return self._rules[destination]
        except KeyError:
            if len(self._rules) >= RULES_MAX:
                self._rules.clear()
            rule = self._rules[destination] = self._registry.rule_for(destination)
            return rule

    def _envelope(self, destination: str, newest: SchemaVersion, datum: bytes) -> bytes:
        keys = self._registry.envelope_keys
        fingerprint = newest.crc_64 if len(newest.crc_64) == self._fingerprint_bytes else newest.sha_256
        out = bytearray()
        _long(3, out)
        for key, item in ((keys.fingerprint, fingerprint), (keys.topic, destination.encode()), (keys.body, datum)):
            _long(key, out)
            _long(len(item), out)
            out += item
        out.append(0)
        return bytes(out)


def read_texts(folder: Path) -> dict[str, bytes]:
    """Read the files of a schema folder, as `load_registry` wants them.

    Raises:
        SchemaError: It cannot be read.
    """
    if not (folder / REGISTRY_FILE).is_file():
        raise SchemaError(f"{folder} is not a schema folder: it has no {REGISTRY_FILE}; name one with --schemas")
    try:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in (".avsc", ".toml", ".lock") and not path.name.startswith(".")
        }
    except OSError as error:
        raise SchemaError(f"{folder} cannot be read: {error}") from error


# --- from a schema to what writes


@final
class _Compiler:
    def __init__(self) -> None:
        self._named: Final[dict[str, _Kind]] = {}

    def kind(self, schema: Any, namespace: str) -> _Kind:  # noqa: ANN401 - JSON
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            known = self._named.get(schema) or self._named.get(f"{namespace}.{schema}")
            return known or _leaf(schema, schema, {})
        base = schema["type"]
        if not isinstance(base, str):
            return self.kind(base, namespace)
        if base in ("record", "error"):
            return self._record(schema, namespace)
        if base == "enum":
            return self._enum(schema, namespace)
        if base == "array":
            return self._array(schema, namespace)
        if base == "map":
            return self._map(schema, namespace)
        if base == "fixed":
            name = _full_name(schema, namespace)
            kind = self._named[name] = _leaf("fixed", name, schema)
            return kind
        known = self._named.get(base) or self._named.get(f"{namespace}.{base}")
        return known or _leaf(base, base, schema)

    def _record(self, schema: Any, namespace: str) -> _Kind:  # noqa: ANN401 - JSON
        name = _full_name(schema, namespace)
        kind = self._named[name] = _Kind(name, "record", "")
        within = name.rpartition(".")[0]
        # (name, kind, what stands for an absent value)
        fields: list[tuple[str, _Kind, bytes | None]] = []
        for field in schema["fields"]:
            of = self.kind(field["type"], within)
            default: bytes | None = None
            if "default" in field:
                out = bytearray()
                of.write(_of_default(field["type"], field["default"]), out)
                default = bytes(out)
            fields.append((field["name"], of, default))
        names = {field for field, _, _ in fields}

        def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
            if not isinstance(value, Mapping):
                raise ValueMismatchError(f"a {name}", value)
            for field, of, default in fields:
                item = value.get(field, _ABSENT)
                if item is _ABSENT:
                    if default is None:
                        raise ValueMismatchError("a value (the field has no default)", _ABSENT).within(field)
                    out += default
                    continue
                start = len(out)
                try:
                    of.write(item, out)
                except ValueMismatchError as error:
                    if item is not None or default is None:
                        raise error.within(field) from None
                    del out[start:]
                    out += default
            if len(value) > len(fields) or not names.issuperset(value):
                for key, item in value.items():
                    if key not in names and item is not None:
                        raise ValueMismatchError(f"a field of {name}", item).within(str(key))

        kind.write = write
        return kind

    def _enum(self, schema: Any, namespace: str) -> _Kind:  # noqa: ANN401 - JSON
        name = _full_name(schema, namespace)
        kind = self._named[name] = _Kind(name, "enum", "")
        places = {symbol: place for place, symbol in enumerate(schema["symbols"])}

        def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
            place = places.get(value) if isinstance(value, str) else None
            if place is None:
                raise ValueMismatchError(f"one of {', '.join(places)}", value)
            _long(place, out)

        kind.write = write
        return kind

    def _array(self, schema: Any, namespace: str) -> _Kind:  # noqa: ANN401 - JSON
        item = self.kind(schema["items"], namespace)
        kind = _Kind("array", "array", "")

        def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
            if not isinstance(value, list | tuple):
                raise ValueMismatchError("an array", value)
            if value:
                _long(len(value), out)
                for place, each in enumerate(value):
                    try:
                        item.write(each, out)
                    except ValueMismatchError as error:
                        raise error.within(f"[{place}]") from None
            out.append(0)

        kind.write = write
        return kind

    def _map(self, schema: Any, namespace: str) -> _Kind:  # noqa: ANN401 - JSON
        item = self.kind(schema["values"], namespace)
        kind = _Kind("map", "map", "")

        def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
            pairs = value.items() if isinstance(value, Mapping) else value  # a table's map is a list of pairs
            if not isinstance(value, Mapping | list):
                raise ValueMismatchError("an object", value)
            if value:
                _long(len(value), out)
                for key, each in pairs:
                    if not isinstance(key, str):
                        raise ValueMismatchError("a text as key", key)
                    _bytes(key.encode(), out)
                    try:
                        item.write(each, out)
                    except ValueMismatchError as error:
                        raise error.within(f"[{key!r}]") from None
            out.append(0)

        kind.write = write
        return kind

    def _union(self, schemas: list[Any], namespace: str) -> _Kind:
        branches = [(place, self.kind(schema, namespace)) for place, schema in enumerate(schemas)]
        kind = _Kind("union", "union", "")
        null = next((place for place, branch in branches if branch.base == "null"), None)
        expected = " or ".join(branch.label for _, branch in branches)
        names: dict[str, tuple[int, _Kind]] = {}
        for place, branch in branches:
            for name in (branch.label.rpartition(".")[2], re.sub(r"\W", "_", branch.label), branch.label):
                names[name] = (place, branch)

        def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
            if value is None and null is not None:
                _long(null, out)
                return
            if isinstance(value, Mapping) and value and names.keys() >= value.keys():
                told = [(name, item) for name, item in value.items() if item is not None]
                if len(told) == 1:
                    place, branch = names[told[0][0]]
                    start = len(out)
                    try:
                        _long(place, out)
                        branch.write(told[0][1], out)
                    except ValueMismatchError as error:
                        if len(value) == 1 and "." in told[0][0]:
                            raise error.within(f"{{{branch.label}}}") from None
                        del out[start:]  # a record that has such fields, perhaps
                    else:
                        return
            ranked = [(rank, place, branch) for place, branch in branches if (rank := _rank(branch, value)) is not None]
            ranked.sort(key=lambda each: each[0])
            start = len(out)
            deepest: ValueMismatchError | None = None
            for _, place, branch in ranked:
                try:
                    _long(place, out)
                    branch.write(value, out)
                except ValueMismatchError as error:
                    del out[start:]
                    if deepest is None or len(error.path) > len(deepest.path):
                        deepest = error
                else:
                    return
            raise deepest or ValueMismatchError(expected, value)

        kind.write = write
        return kind


def _full_name(schema: Any, namespace: str) -> str:  # noqa: ANN401 - JSON
    name = str(schema["name"])
    if "." in name:
        return name
    namespace = schema.get("namespace", namespace)
    return f"{namespace}.{name}" if namespace else name


def _of_default(schema: Any, default: Any) -> Any:  # noqa: ANN401 - JSON in, any value out
    """Turn a field's default, in which bytes are text of code points up to 255, into a value."""
    if isinstance(default, str):
        candidates = schema if isinstance(schema, list) else [schema]
        for candidate in candidates:
            base = candidate.get("type") if isinstance(candidate, dict) else candidate
            if base in ("bytes", "fixed"):
                return default.encode("latin-1")
            if base != "null":
                break
    return default


# --- leaves


_LEAF_LOGICAL: Final = {
    ("bytes", "decimal"),
    ("fixed", "decimal"),
    ("fixed", "duration"),
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    *(("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
}
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - seconds are counted, zones are taken off before
_RANGES: Final = {"int": 1 << 31, "long": 1 << 63}


def _leaf(base: str, label: str, schema: Mapping[str, Any]) -> _Kind:
    logical = str(schema.get("logicalType", ""))
    if (base, logical) not in _LEAF_LOGICAL:
        logical = ""
    kind = _Kind(label, base, logical)
    if logical == "decimal":
        kind.write = _decimal_writer(
            int(schema["precision"]), int(schema.get("scale", 0)), schema.get("size") if base == "fixed" else None
        )
    elif logical == "duration":
        kind.write = _write_duration
    elif base in _RANGES:
        kind.write = _number_writer(base, logical)
    elif base == "fixed":
        kind.write = _fixed_writer(int(schema["size"]))
    else:
        kind.write = _LEAVES[base]
    return kind


def _write_null(value: object, _out: bytearray) -> None:
    if value is not None:
        raise ValueMismatchError("null", value)


def _write_boolean(value: object, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise ValueMismatchError("true or false", value)
    out.append(value)


def _write_string(value: object, out: bytearray) -> None:
    if not isinstance(value, str):
        raise ValueMismatchError("a text", value)
    try:
        _bytes(value.encode(), out)
    except UnicodeEncodeError:
        raise ValueMismatchError("a text without lone surrogates", value) from None


def _write_bytes(value: object, out: bytearray) -> None:
    _bytes(_binary(value), out)


def _float_writer(form: str, name: str) -> _Write:
    def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
        if value in ("NaN", "Infinity", "-Infinity") and isinstance(value, str):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueMismatchError(f"a {name}", value)
        try:
            out += struct.pack(form, value)
        except (OverflowError, struct.error):
            raise ValueMismatchError(f"a {name}", value) from None

    return write


_LEAVES: Final[dict[str, _Write]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "string": _write_string,
    "bytes": _write_bytes,
    "float": _float_writer("<f", "float"),
    "double": _float_writer("<d", "double"),
}


def _number_writer(base: str, logical: str) -> _Write:
    bound = _RANGES[base]
    local, _, unit = logical.partition("timestamp-")

    def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
        if type(value) is not int:
            if logical == "date":
                value = _days(value)
            elif logical.startswith("time-"):
                value = _time_of_day(value, _PER_SECOND[logical[5:]])
            elif unit:
                value = _moment(value, _PER_SECOND[unit], bool(local))
            elif isinstance(value, Decimal) and value == value.to_integral_value():
                value = int(value)
            else:
                raise ValueMismatchError(f"a whole number ({base})", value)
        if not -bound <= value < bound:
            raise ValueMismatchError(f"a whole number of {32 if base == 'int' else 64} bits", value)
        _long(value, out)

    return write


def _fixed_writer(size: int) -> _Write:
    def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
        data = _binary(value)
        if len(data) != size:
            raise ValueMismatchError(f"{size} bytes", value)
        out += data

    return write


def _decimal_writer(precision: int, scale: int, size: int | None) -> _Write:
    expected = f"a decimal of {precision} digits, {scale} of them behind the point"

    def write(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            raise ValueMismatchError(expected, value)
        try:
            number = Decimal(str(value) if isinstance(value, float) else value)
            sign, digits, exponent = number.as_tuple()
        except InvalidOperation:
            raise ValueMismatchError(expected, value) from None
        if not isinstance(exponent, int) or abs(exponent) > 1000:
            raise ValueMismatchError(expected, value)
        shift = exponent + scale
        unscaled = int("".join(map(str, digits)))
        if shift >= 0:
            unscaled *= 10**shift
        else:
            unscaled, rest = divmod(unscaled, 10**-shift)
            if rest:
                raise ValueMismatchError(expected, value)
        if len(str(unscaled)) > precision:
            raise ValueMismatchError(expected, value)
        if sign:
            unscaled = -unscaled
        if size is None:
            _bytes(unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True), out)
        else:
            out += unscaled.to_bytes(size, "big", signed=True)

    return write


def _write_duration(value: Any, out: bytearray) -> None:  # noqa: ANN401 - any value
    expected = "months, days and milliseconds"
    if isinstance(value, Mapping):
        parts = [value.get("months"), value.get("days"), value.get("milliseconds", value.get("millis"))]
        if not all(type(part) is int and 0 <= part < 1 << 32 for part in parts):
            raise ValueMismatchError(expected, value)
        out += struct.pack("<III", *parts)
        return
    data = _binary(value)
    if len(data) != 12:
        raise ValueMismatchError(expected, value)
    out += data


def _binary(value: object) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        try:
            return b64decode(value, validate=True)
        except ValueError:
            pass
    raise ValueMismatchError("bytes as base64", value)


def _days(value: object) -> int:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            _no_moment("a date such as 2026-11-21", value)
    if not isinstance(value, date) or isinstance(value, datetime):
        _no_moment("a date such as 2026-11-21", value)
    return (value - date(1970, 1, 1)).days


def _time_of_day(value: object, per_second: int) -> int:
    expected = "a time such as 23:59:59.5"
    if isinstance(value, time):
        value = value.isoformat()
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        _no_moment(expected, value)
    hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3])
    if hours > 23 or minutes > 59 or seconds > 59:
        _no_moment(expected, value)
    return (hours * 3600 + minutes * 60 + seconds) * per_second + _fraction(match[4], per_second, expected, value)


def _moment(value: object, per_second: int, local: bool) -> int:
    expected = f"a moment such as 2026-11-21T08:00:00{'' if local else 'Z'}"
    if isinstance(value, datetime):
        value = value.isoformat()
        if not local and "+" not in value[19:] and "-" not in value[19:]:
            value += "Z"  # a table's timestamps are UTC
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[3] is None) is not local:
        _no_moment(expected, value)
    try:
        moment = datetime.fromisoformat(match[1] + (match[3] or ""))
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        _no_moment(expected, value)
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * per_second + _fraction(match[2], per_second, expected, value)


def _fraction(digits: str | None, per_second: int, expected: str, value: object) -> int:
    """Turn digits behind the point into units, of which no part may be left."""
    width = len(str(per_second)) - 1
    text = (digits or "").ljust(width, "0")
    if text[width:].strip("0"):
        raise ValueMismatchError(f"{expected}, with at most {width} digits of a second", value)
    return int(text[:width])


def _no_moment(expected: str, value: object) -> NoReturn:
    raise ValueMismatchError(expected, value)


def _rank(branch: _Kind, value: object) -> int | None:
    """Say how close a branch of a union is to a value's own type, 0 closest; None: it never fits."""
    base, logical = branch.base, branch.logical
    fits: tuple[str, ...]
    match value:
        case bool():
            fits = ("boolean",)
        case int():
            return 2 if logical else {"int": 0, "long": 0, "double": 1, "float": 1}.get(base)
        case float():
            return {"double": 0, "float": 1}.get(base) if math.isfinite(value) or not logical else None
        case str():
            if logical:
                return 1
            return {"string": 0, "enum": 0, "double": 2, "float": 2, "fixed": 3, "bytes": 3}.get(base)
        case bytes() | bytearray():
            fits = ("bytes", "fixed")
        case Decimal():
            return 0 if logical == "decimal" else {"long": 1, "int": 1, "double": 2, "float": 2}.get(base)
        case date() | time():
            return 0 if logical else None
        case list() | tuple():
            return {"array": 0, "map": 1}.get(base)
        case Mapping():
            return 0 if logical == "duration" else {"record": 0, "map": 1}.get(base)
        case None:
            fits = ("null",)
        case _:
            return None
    return 0 if base in fits else None


def _long(number: int, out: bytearray) -> None:
    number = (number << 1) ^ (number >> 63)
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _bytes(data: bytes, out: bytearray) -> None:
    _long(len(data), out)
    out += data
