"""JSON Schema 2020-12 of answers and request bodies, as OpenAPI 3.1 has it. A schema with a title becomes a component of that name."""

from collections.abc import Collection, Mapping
from typing import Final

Schema = Mapping[str, object]

ANYTHING: Final[Schema] = {}
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
WHOLE: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
SECONDS: Final[Schema] = {"type": "number", "description": "seconds"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
BASE64: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
HEX: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]*$"}


def described(schema: Schema, text: str) -> Schema:
    """Return a schema with a description."""
    return {**schema, "description": text}


def nullable(schema: Schema) -> Schema:
    """Return a schema that allows null too."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def by_name(schema: Schema) -> Schema:
    """Return the schema of an object whose keys are data and whose values have one schema."""
    return {"type": "object", "additionalProperties": schema}


def one_of(*texts: str) -> Schema:
    """Return the schema of one of a few texts."""
    return {"type": "string", "enum": list(texts)}


def record(title: str = "", optional: Collection[str] = (), **fields: Schema) -> Schema:
    """Return the schema of an object with these fields and no others.

    Args:
        title: Name of the component. Empty if it is none.
        optional: Fields that may be missing.
        fields: Schemas by name.
    """
    schema: dict[str, object] = {"title": title} if title else {}
    required = [name for name in fields if name not in optional]
    return schema | {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def extended(schema: Schema, title: str = "", optional: Collection[str] = (), **fields: Schema) -> Schema:
    """Return the schema of an object with further fields, which replace those of the same name."""
    properties, required = _fields(schema)
    return record(
        title, [*optional, *(name for name in properties if name not in required)], **{**properties, **fields}
    )


def names_of(schema: Schema) -> list[str]:
    """Return the fields that `record` gave to a schema."""
    return list(_fields(schema)[0])


def row_of(schema: Schema, source: object, **given: object) -> dict[str, object]:
    """Return the fields of a record: the given ones, and attributes of the same names of an object.

    `dataclasses.asdict` copies each value, and takes four times as long.
    """
    return {name: given[name] if name in given else getattr(source, name) for name in names_of(schema)}


def _fields(schema: Schema) -> tuple[Mapping[str, Schema], list[str]]:
    properties, required = schema["properties"], schema["required"]
    assert isinstance(properties, Mapping)  # noqa: S101 as `record` makes it
    assert isinstance(required, list)  # noqa: S101 likewise
    return properties, required


INCOMPLETE: Final[Schema] = described(FLAG, "true: a front did not answer, so rows are missing. Absent otherwise")


def page(rows: str, row: Schema, optional: Collection[str] = (), **more: Schema) -> Schema:
    """Return the schema of one page of a listing.

    Args:
        rows: Name of the list.
        row: Schema of its items.
        optional: Further fields that may be missing.
        more: Further fields.
    """
    following = nullable(described(TEXT, "`after` of the next page; null at the end"))
    return record("", optional, **{rows: listed(row)}, next=following, **more)


CODE: Final[Schema] = described(TEXT, "code of the error, see docs/reference/errors.md")
ERROR: Final = record(
    "Error",
    ("disposition", "position"),
    code=CODE,
    error=described(TEXT, "former name of `code`"),
    detail=TEXT,
    disposition=TEXT,
    position=described(COUNT, "with `invalid-selector`: the character at which the fault lies, from 1"),
)
