"""Parameters of queries. Each is declared once: the declaration validates it, documents it as OpenAPI, and makes its error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from math import isfinite
from typing import Any, Final, Generic, TypeVar, final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from maxam.api.answers import ApiError
from maxam.api.description import NUMBER, TEXT, TIME, Schema
from maxam.config import Limits
from maxam.errors import GlobError
from maxam.globs import Glob, compile_glob

PAGE_MAX: Final = 200  # rows of one page: to make and write them takes 2 ms
PAGE_DEFAULT: Final = 100
NAME_SHOWN_CHARACTERS_MAX: Final = 60
EVERY_TOPIC: Final = "**"
_DIGITS_MAX: Final = 19  # of a number
_T = TypeVar("_T")
_D = TypeVar("_D")


@final
@dataclass(frozen=True, slots=True)
class Parameter(Generic[_T]):
    """One parameter of a query.

    Attributes:
        name: Name of the parameter.
        schema: JSON Schema of its value.
        text: Effect of the parameter.
        default: Value without the parameter.
        read: Returns the value of a text under the broker's limits; raises ValueError with the reason, or ApiError.
        required: Whether a request without it is refused.
        code: Code of the error that `read` raises.
    """

    name: str
    schema: Schema
    text: str
    default: _T
    read: Callable[[str, Limits], _T]
    required: bool = False
    code: str = "invalid-parameter"


def text(name: str, description: str, schema: Schema = TEXT, *, required: bool = False) -> Parameter[str | None]:
    """Declare any text."""
    return Parameter(name, schema, description, None, lambda given, _: given, required)


def choice(name: str, description: str, values: tuple[str, ...], default: _D) -> Parameter[str | _D]:
    """Declare one of a few texts."""

    def read(given: str, _limits: Limits) -> str:
        if given not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}")
        return given

    schema = {"type": "string", "enum": list(values)} | ({} if default is None else {"default": default})
    return Parameter(name, schema, description, default, read)


def flag(name: str, description: str, *, default: bool = False) -> Parameter[bool]:
    """Declare a parameter that is `true` or `false`."""

    def read(given: str, _limits: Limits) -> bool:
        if given not in {"true", "false"}:
            raise ValueError(f"{name} must be true or false")
        return given == "true"

    schema = {"type": "string", "enum": ["true", "false"], "default": "true" if default else "false"}
    return Parameter(name, schema, description, default, read)


def whole(name: str, description: str, low: int, high: int, default: _D) -> Parameter[int | _D]:
    """Declare a whole number."""

    def read(given: str, _limits: Limits) -> int:
        digits = given.isascii() and given.isdigit() and len(given) <= _DIGITS_MAX
        if not (digits and low <= int(given) <= high):
            raise ValueError(f"{name} must be a whole number from {low} to {high}")
        return int(given)

    schema: dict[str, object] = {"type": "integer", "minimum": low, "maximum": high}
    return Parameter(name, schema | ({} if default is None else {"default": default}), description, default, read)


def seconds(name: str, description: str) -> Parameter[float | None]:
    """Declare a number of seconds."""

    def read(given: str, _limits: Limits) -> float:
        try:
            value = float(given)
        except ValueError:
            value = -1.0
        if not (value >= 0 and isfinite(value)):
            raise ValueError(f"{name} must be a number of seconds, 0 or more")
        return value

    return Parameter(name, {**NUMBER, "minimum": 0}, description, None, read)


def moment(name: str, description: str) -> Parameter[int | None]:
    """Declare a time. Its value is in microseconds since the epoch."""

    def read(given: str, _limits: Limits) -> int:
        try:
            at = datetime.fromisoformat(given)
            if at.tzinfo is not None:
                return int(at.timestamp() * 1_000_000)
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"{name} must be a time with its offset, such as 2026-11-21T09:30:00Z")

    return Parameter(name, TIME, description, None, read)


def _glob(given: str, limits: Limits) -> Glob:
    try:
        return compile_glob(given, limits)
    except GlobError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-glob", str(error)) from error


def glob(name: str, description: str) -> Parameter[Glob | None]:
    """Declare a glob of destinations."""
    return Parameter(name, TEXT, description, None, _glob, code="invalid-glob")


_AFTER_TEXT: Final = "`next` of the page before. Without it, begin"


def after(parts: tuple[int, ...] = (2,)) -> Parameter[tuple[str, ...] | None]:
    """Declare a cursor of several texts, of which there may be these numbers. `cursor_text` writes it."""

    def read(given: str, _limits: Limits) -> tuple[str, ...]:
        found = tuple(unquote_to_bytes(part).decode(errors="replace") for part in given.split("/"))
        if len(found) not in parts:
            raise ValueError("after must be the `next` of the page before")
        return found

    return Parameter("after", TEXT, _AFTER_TEXT, None, read)


AFTER: Final[Parameter[bytes | None]] = Parameter("after", TEXT, _AFTER_TEXT, None, lambda given, _: given.encode())
AFTER_NUMBER: Final = whole("after", _AFTER_TEXT, 0, 10**18 - 1, None)
LIMIT: Final = whole("limit", "rows of a page, at most", 1, PAGE_MAX, PAGE_DEFAULT)
# `**` is compiled under any limits.
GLOB: Final[Parameter[Glob]] = Parameter(
    "glob",
    {"type": "string", "default": EVERY_TOPIC},
    "destinations that match it",
    compile_glob(EVERY_TOPIC, Limits()),
    _glob,
    code="invalid-glob",
)

# Compiled by the route, for it needs the registry.
WHERE: Final = Parameter(
    "where",
    TEXT,
    "only topics whose value satisfies this selector, as that of a SUBSCRIBE",
    None,
    lambda given, _: given,
    code="invalid-selector",
)


def read_query(request: Request, declared: tuple[Parameter[Any], ...], limits: Limits) -> Mapping[str, Any]:
    """Return the values of all declared parameters by their names.

    A parameter that is not declared is refused. If it were skipped, a misspelt filter would list everything. Texts that are not UTF-8
    are refused, because the server would read another name.

    Raises:
        ApiError: A parameter is unknown, given twice, missing or invalid.
    """
    path = request.scope["path"]
    for part, encoded in (("path", request.scope["raw_path"]), ("query", request.scope["query_string"])):
        try:
            unquote_to_bytes(encoded).decode()
        except UnicodeDecodeError:
            raise _invalid(f"the {part} is not UTF-8") from None
    by_name = {parameter.name: parameter for parameter in declared}
    values: dict[str, Any] = {}
    for name, given in request.query_params.multi_items():
        parameter = by_name.get(name)
        if parameter is None:
            shown = name if len(name) <= NAME_SHOWN_CHARACTERS_MAX else name[:NAME_SHOWN_CHARACTERS_MAX] + "..."
            raise _invalid(f"unknown parameter {shown!r}; {path} has {', '.join(by_name) or 'none'}")
        if name in values:
            raise _invalid(f"a parameter is given twice; {path} takes each of {', '.join(by_name)} once")
        try:
            values[name] = parameter.read(given, limits)
        except ValueError as error:
            raise _invalid(str(error)) from error
    for parameter in declared:
        if parameter.required and parameter.name not in values:
            raise _invalid(f"{path} needs the parameter {parameter.name}")
        values.setdefault(parameter.name, parameter.default)
    return values


def _invalid(detail: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", detail)
