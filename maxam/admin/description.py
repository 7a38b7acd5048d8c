"""What a route takes and gives, said once, beside its handler: held against each request, and served as OpenAPI (`openapi`).

Schemas are JSON Schema 2020-12, as OpenAPI 3.1 has them. One with a title becomes a component of that name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal, final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import NAME_SHOWN_CHARACTERS_MAX, PAGE_DEFAULT, PAGE_MAX, ApiError, Handler
from maxam.admin.view import View
from maxam.records import Identity

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


def nullable(schema: Schema) -> Schema:
    """Return a schema that allows null too."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def by_name(schema: Schema) -> Schema:
    """Return the schema of an object whose keys are data, and its values alike."""
    return {"type": "object", "additionalProperties": schema}


def one_of(*texts: str) -> Schema:
    """Return the schema of a text out of few."""
    return {"type": "string", "enum": list(texts)}


def record(title: str = "", optional: Collection[str] = (), **fields: Schema) -> Schema:
    """Return the schema of an object with these fields and no others.

    Args:
        title: Makes it a component of that name.
        optional: Fields that it may lack.
        fields: By name.
    """
    schema: dict[str, object] = {"title": title} if title else {}
    required = [name for name in fields if name not in optional]
    return schema | {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def extended(schema: Schema, title: str = "", optional: Collection[str] = (), **fields: Schema) -> Schema:
    """Return the schema of an object that has these fields too, or these instead of others of the same name."""
    properties, required = _fields(schema)
    return record(
        title, [*optional, *(name for name in properties if name not in required)], **{**properties, **fields}
    )


def names_of(schema: Schema) -> list[str]:
    """Return the fields that `record` gave to a schema."""
    return list(_fields(schema)[0])


def _fields(schema: Schema) -> tuple[Mapping[str, Schema], list[str]]:
    properties, required = schema["properties"], schema["required"]
    assert isinstance(properties, Mapping)  # noqa: S101 as `record` makes it
    assert isinstance(required, list)  # noqa: S101 likewise
    return properties, required


def page(rows: str, row: Schema, **more: Schema) -> Schema:
    """Return the schema of one page of a listing.

    Args:
        rows: Name of the list.
        row: What is in it.
        more: Further fields.
    """
    following = nullable({"type": "string", "description": "`after` of the next page; null at the end"})
    return record("", (), **{rows: listed(row)}, next=following, **more)


ERROR: Final = record(
    "Error", ("disposition",), error={"type": "string", "description": "a code"}, detail=TEXT, disposition=TEXT
)


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a query, or of a path.

    Attributes:
        name: As it is written.
        schema: Of its value.
        text: What it does.
        required: Whether a request without it is refused; those of a path always are.
    """

    name: str
    schema: Schema
    text: str
    required: bool = False


AFTER: Final = Parameter("after", TEXT, "`next` of the page before; absent: begin")
AFTER_NUMBER: Final = Parameter("after", {"type": "string", "pattern": "^[0-9]{1,18}$"}, AFTER.text)
LIMIT: Final = Parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}, "rows of a page, at most"
)
GLOB: Final = Parameter("glob", {"type": "string", "default": "**"}, "destinations that match it")


def flag(name: str, text: str) -> Parameter:
    """Return a parameter that is `true` or `false`, the default."""
    return Parameter(name, {"type": "string", "enum": ["true", "false"], "default": "false"}, text)


@final
@dataclass(frozen=True, slots=True)
class Description:
    """What a route takes and gives.

    Attributes:
        summary: What it does, one line.
        answer: Of status 200, or text of the given media type.
        query: All parameters that it has: others are refused, where the API is our own.
        path: As clients write it, where the route's own path takes in more.
        segments: Parameters of the path, where a text says more than their name.
        bodies: Of the request, by media type; empty: it has none.
        errors: Statuses that it answers besides those that any route may, and when.
        also: Answers of other statuses that are no errors, or not in their form.
        media_type: Of the answer.
        text: More about it, Markdown.
        confluent: Errors have the form of Confluent's registry, and unknown parameters are passed over, as it does.
        lenient: Unknown parameters are passed over: probes and scrapers add what they like.
    """

    summary: str
    answer: Schema
    query: tuple[Parameter, ...] = ()
    path: str | None = None
    segments: tuple[Parameter, ...] = ()
    bodies: Mapping[str, Schema] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    also: Mapping[int, tuple[str, Schema | None]] = field(default_factory=dict)
    media_type: str = "application/json"
    text: str = ""
    confluent: bool = False
    lenient: bool = False

    def check(self, request: Request) -> None:
        """Refuse a parameter that the route does not have, or one given twice: passed over, a misspelt filter would list everything.

        Nor is anything but UTF-8 taken, of which the server would make another name.

        Raises:
            ApiError: Naming those that it has.
        """
        if self.confluent or self.lenient:
            return
        for part, text in (("path", request.scope["raw_path"]), ("query", request.scope["query_string"])):
            try:
                unquote_to_bytes(text).decode()
            except UnicodeDecodeError:
                raise _bad(f"the {part} is not UTF-8") from None
        known = [parameter.name for parameter in self.query]
        given = [name for name, _ in request.query_params.multi_items()]
        for name in given:
            if name not in known:
                shown = name if len(name) <= NAME_SHOWN_CHARACTERS_MAX else name[:NAME_SHOWN_CHARACTERS_MAX] + "..."
                has = ", ".join(known) or "none"
                raise _bad(f"unknown parameter {shown!r}; {request.scope['path']} has {has}")
        if len(set(given)) < len(given):
            raise _bad(f"a parameter is given twice; {request.scope['path']} takes each of {', '.join(known)} once")


def _bad(detail: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", detail)


@final
class Described:
    """A handler with its description.

    Attributes:
        description: What it takes and gives.
    """

    def __init__(self, handler: Handler, description: Description) -> None:
        self._handler: Final = handler
        self.description: Final = description

    async def __call__(self, view: View, request: Request, caller: Identity) -> Response:
        """Handle a request, once its parameters are those that the route has."""
        self.description.check(request)
        return await self._handler(view, request, caller)


def described(
    summary: str,
    answer: Schema,
    query: tuple[Parameter, ...] = (),
    *,
    path: str | None = None,
    segments: tuple[Parameter, ...] = (),
    body: Schema | None = None,
    bodies: Mapping[str, Schema] | None = None,
    errors: Mapping[int, str] | None = None,
    also: Mapping[int, tuple[str, Schema | None]] | None = None,
    media_type: str = "application/json",
    text: str = "",
    dialect: Literal["own", "confluent", "lenient"] = "own",
) -> Callable[[Handler], Described]:
    """Describe a handler; arguments as of `Description`; `body` is that of a request in JSON."""
    description = Description(
        summary,
        answer,
        query,
        path,
        segments,
        {**({} if body is None else {"application/json": body}), **(bodies or {})},
        errors or {},
        also or {},
        media_type,
        text,
        dialect == "confluent",
        dialect == "lenient",
    )
    return lambda handler: Described(handler, description)
