"""Files of schemas as JSON, before they are parsed as schemas."""

import json
import math
from collections.abc import Mapping
from typing import Final, final

from maxam.avro.places import line_of_byte, line_of_second, line_of_value
from maxam.errors import SchemaError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@final
class Source:
    """One `.avsc` file, read but not yet parsed.

    Attributes:
        path: Where it stands, for errors.
        minor: Its version such as `1.0`; empty when it stands alone.
        document: The JSON text's value.
        references: Pinned minor for each named type of another file.
        line: Where the value begins in the text, from 1.
    """

    __slots__ = ("document", "line", "minor", "path", "references")

    def __init__(self, path: str, minor: str, document: Json, line: int = 1) -> None:
        self.path: Final = path
        self.minor: Final = minor
        self.document: Final = document
        self.line: Final = line
        references: Json = document.get("references", {}) if isinstance(document, dict) else {}
        self.references: Final[dict[str, str]] = {}
        if not isinstance(references, dict):
            raise SchemaError('expected an object such as {"egm.EGMStateBase_v1": "1.0"}', path, "references")
        for name, pinned in references.items():
            if not isinstance(pinned, str):
                raise SchemaError('expected a minor version as text such as "1.0"', path, f"references.{name}")
            self.references[name] = pinned


Sources = Mapping[str, Mapping[str, Source]]  # full type name -> minor -> file


def read_source(path: str, text: bytes, minor: str = "") -> Source:
    """Read a schema file's JSON.

    Raises:
        SchemaError: It is not UTF-8 JSON, or an object in it has a key twice. The text has the line.
    """
    try:
        document: Json = json.loads(
            text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError:
        raise SchemaError("nested too deeply", path) from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"not UTF-8: {error}", path, "", line_of_byte(text, error.start)) from None
    except json.JSONDecodeError as error:
        comma = error.doc[: error.pos].rstrip().endswith(",")
        hint = "; remove the comma before it" if comma and error.doc[error.pos : error.pos + 1] in {"}", "]"} else ""
        raise SchemaError(f"not JSON: {error}{hint}", path, "", error.lineno) from None
    except _RepeatedKeyError as error:
        problem = f"not JSON: key {error.key!r} is there twice"
        raise SchemaError(problem, path, "", line_of_second(text, error.key)) from None
    except _NumberError as error:
        problem = f"not JSON: {error.text} {error.problem}"
        raise SchemaError(problem, path, "", line_of_value(text, error.text)) from None
    except ValueError as error:
        raise SchemaError(f"not JSON: {error}", path) from None
    return Source(path, minor, document, line_of_byte(text, len(text) - len(text.lstrip())))


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        for key, _ in pairs:
            if key not in keys:
                raise _RepeatedKeyError(key)
            del keys[key]
    return keys


def _refuse_constant(text: str) -> Json:
    raise _NumberError(text, "is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NumberError(text, "is out of range")
    return number


@final
class _RepeatedKeyError(Exception):
    """An object has a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key: Final = key


@final
class _NumberError(Exception):
    """A number cannot be taken."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(text)
        self.text: Final = text
        self.problem: Final = problem
