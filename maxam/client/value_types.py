"""Values of JSON as Python objects of a given type: dataclasses, typed dictionaries and what they are made of.

The gateway sends integers beyond 2^53 and decimals as text, times as ISO 8601, and bytes in base64. An annotation decides what a
field becomes. So the same JSON is a `Decimal` for one program and text for another.
"""

import dataclasses
import types
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final, Literal, TypeVar, Union, cast, final, get_args, get_origin
from uuid import UUID

from maxam.errors import ClientError

T = TypeVar("T")
Read = Callable[[Any], Any]

_DEPTH_MAX: Final = 100  # of types within types: a type may contain itself


@final
class ValueTypeError(ClientError):
    """A value of a topic does not fit the type that the program asked for.

    Attributes:
        path: Place in the value, such as `meters[2].credit`. Empty for the whole.
    """

    code = "value-type"

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem: Final = problem
        self.path: Final = path

    def within(self, place: str) -> "ValueTypeError":
        """Return the error as the containing value sees it."""
        return ValueTypeError(self.problem, place + ("" if self.path[:1] in ("", "[") else ".") + self.path)


def reader(wanted: type[T] | Callable[[Any], T]) -> Callable[[Any], T]:
    """Return the function that converts a JSON value to a type.

    Args:
        wanted: A dataclass or TypedDict, a type that their fields may have, or any other function of the JSON value, such as
            `Model.model_validate` of pydantic. Fields may be `Any`, `object`, None, `bool`, `int`, `float`, `str`, `bytes`,
            `Decimal`, `datetime`, `date`, `time`, `UUID`, enums and `Literal`. They may be unions, lists, tuples and
            dictionaries of these, dataclasses and TypedDicts. An attribute `credit_balance` takes the field `credit_balance` or
            `creditBalance`, and `from_` takes `from`.

    Returns:
        A function that raises ValueTypeError for a value that does not fit. Fields that the type lacks are skipped, and a missing
        field gets its default.

    Raises:
        ClientError: A field of the type has an annotation that is none of these.
    """
    return cast("Callable[[Any], T]", _reader(wanted, {}, 0))


def _reader(wanted: Any, known: dict[Any, list[Read]], depth: int) -> Read:
    if depth > _DEPTH_MAX:
        raise ClientError(f"the type {wanted} is nested too deeply")
    simple = _SIMPLE.get(wanted) if isinstance(wanted, type) or wanted in (Any, None) else None
    if simple is not None:
        return simple
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _reader(arguments[0], known, depth + 1)
    if isinstance(wanted, typing.NewType):
        return _reader(wanted.__supertype__, known, depth + 1)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        return _union([_reader(each, known, depth + 1) for each in arguments])
    base = origin or wanted
    if isinstance(base, type):
        if issubclass(base, Enum):
            return _enum(base)
        if dataclasses.is_dataclass(base) or typing.is_typeddict(base):
            return _record(base, known, depth)
        if issubclass(base, (list, tuple, set, frozenset)) or base in _SEQUENCES:
            return _items(base, _reader(arguments[0] if arguments else object, known, depth + 1))
        if issubclass(base, Mapping):
            return _entries(_reader(arguments[1] if arguments else object, known, depth + 1))
    if callable(wanted) and origin is None and not depth:
        return _by(wanted)
    raise ClientError(
        f"no value of JSON can become {wanted}; see maxam.client.value_types.reader for the types that can"
    )


def _by(function: Read) -> Read:
    def read(value: Any) -> Any:
        try:
            return function(value)
        except ClientError:
            raise
        except Exception as error:
            raise ValueTypeError(str(error) or type(error).__name__) from error

    return read


def _expected(what: str, value: Any) -> ValueTypeError:
    return ValueTypeError(f"expected {what}, the value is {type(value).__name__}: {str(value)[:60]!r}")


def _exactly(kind: type, what: str) -> Read:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _expected(what, value)
        return value

    return read


def _parsed(parse: Callable[[Any], Any], what: str, *kinds: type) -> Read:
    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise _expected(what, value)
        try:
            return parse(value)
        except (ValueError, InvalidOperation) as error:
            raise _expected(what, value) from error

    return read


def _one_of(choices: tuple[Any, ...]) -> Read:
    def read(value: Any) -> Any:
        if value not in choices:
            raise _expected("one of " + ", ".join(map(repr, choices)), value)
        return value

    return read


def _enum(kind: type[Enum]) -> Read:
    def read(value: Any) -> Any:
        try:
            return kind[value] if isinstance(value, str) and value in kind.__members__ else kind(value)
        except ValueError as error:
            raise _expected(f"a member of {kind.__name__}", value) from error

    return read


def _union(members: list[Read]) -> Read:
    def read(value: Any) -> Any:
        problem: ValueTypeError | None = None
        for member in members:
            try:
                return member(value)
            except ValueTypeError as error:
                problem = problem if problem is not None and problem.path else error
        if isinstance(value, dict) and len(value) == 1:  # {"<type>": value}, where branches could be confused
            return read(next(iter(value.values())))
        raise problem or _expected("a value", value)

    return read


def _items(kind: Any, item: Read) -> Read:
    make = kind if kind in (tuple, set, frozenset) else list

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _expected("an array", value)
        return make([_at(f"[{index}]", item, each) for index, each in enumerate(value)])

    return read


def _entries(item: Read) -> Read:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("an object", value)
        return {name: _at(name, item, each) for name, each in value.items()}

    return read


def _at(place: str, read: Read, value: Any) -> Any:
    try:
        return read(value)
    except ValueTypeError as error:
        raise error.within(place) from None


def _record(kind: Any, known: dict[Any, list[Read]], depth: int) -> Read:
    if kind in known:  # it contains itself
        found = known[kind]
        return lambda value: found[0](value)  # noqa: PLW0108 - it is not there yet
    known[kind] = found = []
    hints = typing.get_type_hints(kind, include_extras=True)
    typed_dict = typing.is_typeddict(kind)
    if typed_dict:
        names = {name: name in kind.__required_keys__ for name in hints}
    else:
        names = {
            field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(kind)
            if field.init
        }
    fields = [(name, _spellings(name), _reader(hints[name], known, depth + 1), need) for name, need in names.items()]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected(f"an object for {kind.__name__}", value)
        given = {}
        for name, spellings, field, needed in fields:
            for spelling in spellings:
                if spelling in value:
                    given[name] = _at(spelling, field, value[spelling])
                    break
            else:
                if needed:
                    raise ValueTypeError(f"the value has no field {name!r}, which {kind.__name__} needs")
        return given if typed_dict else kind(**given)

    found.append(read)
    return read


def _spellings(name: str) -> tuple[str, ...]:
    plain = name.rstrip("_") or name
    first, *others = plain.split("_")
    return tuple(dict.fromkeys((name, plain, first + "".join(each.capitalize() for each in others))))


def _integer(value: Any) -> int:
    number = int(value)
    if isinstance(value, float) and number != value:
        raise ValueError
    return number


_SIMPLE: Final[dict[Any, Read]] = {
    Any: lambda value: value,
    object: lambda value: value,
    None: _exactly(type(None), "null"),
    type(None): _exactly(type(None), "null"),
    bool: _exactly(bool, "true or false"),
    str: _exactly(str, "text"),
    int: _parsed(_integer, "an integer", int, float, str),
    float: _parsed(float, "a number", int, float, str),
    bytes: _parsed(lambda value: b64decode(value, validate=True), "base64", str),
    Decimal: _parsed(lambda value: Decimal(str(value)), "a decimal", int, float, str),
    datetime: _parsed(datetime.fromisoformat, "a time in ISO 8601", str),
    date: _parsed(date.fromisoformat, "a date in ISO 8601", str),
    time: _parsed(time.fromisoformat, "a time of day in ISO 8601", str),
    UUID: _parsed(UUID, "a UUID", str),
}
_SEQUENCES: Final = frozenset(
    (
        typing.Sequence,
        typing.Collection,
        typing.Iterable,
        *map(get_origin, (typing.Sequence, typing.Collection, typing.Iterable)),
    )
)
