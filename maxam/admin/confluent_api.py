"""Routes of the Confluent Schema Registry's API, as far as it reads, so that tools made for it can use our schemas.

A subject is a type, version n its minor n - 1, and an id the low 31 bits of the SHA-256 of a schema's self-contained text:
what bodies of the encoding `confluent` carry. The lookup and the tests of compatibility are POSTs that change nothing. What
would write is answered as by a registry in mode READONLY, all else of that API 404: schemas come from the gateway's schema folder.

Spec: Confluent Schema Registry "API Reference"
"""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import ANY_PRINCIPAL, Handler, RouteSpec
from maxam.admin.compatibility_process import incompatibilities
from maxam.admin.description import (
    COUNT,
    FLAG,
    TEXT,
    WHOLE,
    Described,
    Parameter,
    Schema,
    described,
    listed,
    nullable,
    one_of,
    record,
)
from maxam.admin.registry_api import IMMUTABLE, JSON_TYPE, NEWEST, REVALIDATED, cacheable, rendered
from maxam.admin.view import View
from maxam.avro.compatibility import COMPATIBILITY_DEFAULT
from maxam.avro.fingerprint import sha_256
from maxam.avro.registry import Registry
from maxam.avro.rule import SchemaVersion
from maxam.avro.schema import parse_schema, read_source
from maxam.errors import SchemaError
from maxam.records import Identity

CONFLUENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
ROOTS: Final = ("/compatibility", "/config", "/contexts", "/exporters", "/mode", "/schemas", "/subjects")
# Parsed in place, which takes some 2 ms at this length; longer ones are only compared with the texts that we know.
PARSED_BYTES_MAX: Final = 16_384
_VERSION_MAX: Final = 2**31 - 1
_SUBJECT_NOT_FOUND: Final = 40401
_VERSION_NOT_FOUND: Final = 40402
_SCHEMA_NOT_FOUND: Final = 40403
_INVALID_SCHEMA: Final = 42201
_INVALID_VERSION: Final = 42202
_NOT_PERMITTED: Final = 42205
_READ_ONLY: Final = (
    "this registry is in read-only mode: its schemas and modes are the files of the gateway's schema folder, so change them"
    " there; serialisers need auto.register.schemas = false"
)
_READING: Final = {"GET", "HEAD"}
WRITING: Final = {"POST", "PUT", "PATCH", "DELETE"}


@final
class ConfluentError(Exception):
    """End a request with an error as Confluent's registry tells it.

    Args:
        code: Three digits of the HTTP status, or five of which they are the first.
        message: What is wrong.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code: Final = code
        self.status: Final = HTTPStatus(code // 100 if code > 999 else code)


def speaks_confluent(path: str) -> bool:
    """Say whether a path is of Confluent's API, so that its errors have that API's form."""
    return any(path == root or path.startswith(root + "/") for root in ROOTS)


def error_answer(status: HTTPStatus, code: int, message: str) -> Response:
    """Return an error in Confluent's form."""
    content, _ = rendered({"error_code": int(code), "message": message})
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(content, status, headers, CONFLUENT_TYPE)


def no_such_route(method: str) -> Response:
    """Refuse a request that no route is for: what would write, as Confluent's registry does when it may only be read."""
    if method in _READING:
        return error_answer(HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND, f"no such path: {_READ_ONLY}")
    return error_answer(HTTPStatus.UNPROCESSABLE_ENTITY, _NOT_PERMITTED, _READ_ONLY)


def _answer(request: Request, document: object, caching: str = REVALIDATED) -> Response:
    content, tag = rendered(document)
    return cacheable(request, content, tag, CONFLUENT_TYPE, caching)


def _version_number(version: SchemaVersion) -> int:
    return int(version.minor.rpartition(".")[2]) + 1


def _row(version: SchemaVersion) -> dict[str, object]:
    return {
        "subject": version.type_name,
        "version": _version_number(version),
        "id": version.schema_id,
        "schema": version.schema.text.decode(),
    }


_VERSION: Final = record("RegisteredSchema", subject=TEXT, version=COUNT, id=COUNT, schema=TEXT)
_GIVEN: Final[Schema] = {
    **record(
        "GivenSchema",
        ("schemaType", "references"),
        schema={"type": "string", "description": "the text of a schema"},
        schemaType=nullable(one_of("AVRO")),
        references={"description": "none: texts are self-contained"},
    ),
    "additionalProperties": True,
}
_COMPATIBLE: Final = record("Compatibility", ("messages",), is_compatible=FLAG, messages=listed(TEXT))
_SETTING: Final = record("CompatibilityLevel", compatibilityLevel=TEXT)
_MODE: Final = record("Mode", mode=one_of("READONLY"))
_ROWS: Final = (
    Parameter("offset", WHOLE, "rows that are left out at the beginning"),
    Parameter("limit", WHOLE, "rows at most; negative: all"),
)
_KEPT: Final = {304: ("It is as `If-None-Match` says.", None)}
_NO_SUBJECT: Final = {404: "40401: no such subject."}
_NO_VERSION: Final = _NO_SUBJECT | {404: "40401, 40402: no such subject or version.", 422: "42202: no version number."}
_NO_ID: Final = {404: "40403: no such schema."}
_BAD_SCHEMA: Final = {400: "No JSON object.", 422: "42201: an unusable schema."}


def _told(
    summary: str,
    answer: Schema,
    errors: Mapping[int, str] | None = None,
    query: tuple[Parameter, ...] = (),
    body: Schema | None = None,
) -> Callable[[Handler], Described]:
    """Describe a route as those of Confluent's registry are."""
    return described(
        summary, answer, query, body=body, errors=errors, also=_KEPT, media_type=CONFLUENT_TYPE, dialect="confluent"
    )


# Subjects.


@_told(
    "Names of types",
    listed(TEXT),
    {400: "`offset` or `limit` is no number."},
    (Parameter("subjectPrefix", TEXT, "what they begin with"), *_ROWS),
)
async def _subjects(view: View, request: Request, _caller: Identity) -> Response:
    prefix = request.query_params.get("subjectPrefix", "")
    return _answer(request, _page(request, [name for name in view.registry.types() if name.startswith(prefix)]))


@_told("Versions of a type", listed(COUNT), _NO_SUBJECT | {400: "`offset` or `limit` is no number."}, _ROWS)
async def _versions(view: View, request: Request, _caller: Identity) -> Response:
    versions = _of_subject(view.registry, request)
    return _answer(request, _page(request, [_version_number(version) for version in reversed(versions)]))


@_told("One version", _VERSION, _NO_VERSION)
async def _version(view: View, request: Request, _caller: Identity) -> Response:
    return _answer(request, _row(_wanted(view.registry, request)))


@described(
    "The text of one version",
    {"description": "a self-contained Avro schema"},
    errors=_NO_VERSION,
    also=_KEPT,
    dialect="confluent",
)
async def _version_text(view: View, request: Request, _caller: Identity) -> Response:
    version = _wanted(view.registry, request)
    return cacheable(request, version.schema.text, version.text_sha256)


@_told("Nothing: texts are self-contained", listed(COUNT), _NO_VERSION)
async def _referenced_by(view: View, request: Request, _caller: Identity) -> Response:
    _wanted(view.registry, request)
    return _answer(request, [])  # what is served is self-contained: nothing refers to anything


@_told(
    "Find the version that has a text, or writes the same bytes; changes nothing",
    _VERSION,
    _BAD_SCHEMA | {404: "40401, 40403."},
    body=_GIVEN,
)
async def _lookup(view: View, request: Request, _caller: Identity) -> Response:
    versions = _of_subject(view.registry, request)
    given = await _given_schema(request)
    try:
        found = _known(versions, given)
    except SchemaError as error:
        raise ConfluentError(_INVALID_SCHEMA, f"Invalid schema: {error}") from None
    except RecursionError:
        raise ConfluentError(_INVALID_SCHEMA, "Invalid schema: schema: nested too deeply") from None
    if found is None:
        raise ConfluentError(_SCHEMA_NOT_FOUND, f"Schema not found among the versions of {versions[0].type_name}")
    return _answer(request, _row(found))


def _known(versions: tuple[SchemaVersion, ...], given: str) -> SchemaVersion | None:
    """Find the version with the text that was given, or else the newest one that writes the same bytes."""
    source = read_source("schema", given.encode(errors="surrogatepass"))
    text = json.dumps(source.document, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    text_sha256 = sha256(text).hexdigest()
    for version in versions:
        if version.text_sha256 == text_sha256:
            return version
    if len(text) > PARSED_BYTES_MAX:
        return None
    fingerprint = sha_256(parse_schema(source).canonical)
    return next((version for version in versions if version.sha_256 == fingerprint), None)


_VERBOSE: Final = Parameter("verbose", TEXT, "`true`: with messages")


@_told(
    "Whether a schema could follow a version; changes nothing",
    _COMPATIBLE,
    _NO_VERSION | {400: "No JSON object.", 422: "42201, 42202."},
    (_VERBOSE,),
    _GIVEN,
)
async def _test_version(view: View, request: Request, _caller: Identity) -> Response:
    older = _wanted(view.registry, request)
    return await _tested(view.registry, request, (older,))


@_told(
    "Whether a schema could be the next version; changes nothing",
    _COMPATIBLE,
    _BAD_SCHEMA | _NO_SUBJECT,
    (_VERBOSE,),
    _GIVEN,
)
async def _test_versions(view: View, request: Request, _caller: Identity) -> Response:
    versions = _of_subject(view.registry, request)
    transitive = view.registry.compatibility(versions[0].type_name).endswith("_TRANSITIVE")
    return await _tested(view.registry, request, versions if transitive else versions[:1])


async def _tested(registry: Registry, request: Request, olders: tuple[SchemaVersion, ...]) -> Response:
    """Say whether a schema that a client sent could be the next minor behind each of some versions, as their type's mode asks."""
    verbose = request.query_params.get("verbose", "false").lower() == "true"
    given = await _given_schema(request)
    mode = registry.compatibility(olders[0].type_name)
    try:
        async with _testing():  # one at a time
            messages = await incompatibilities(given, olders, mode)
    except SchemaError as error:
        raise ConfluentError(_INVALID_SCHEMA, f"Invalid schema: {error}") from None
    except OSError as error:
        raise ConfluentError(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; try again") from None
    document: dict[str, object] = {"is_compatible": not messages}
    return _answer(request, document | ({"messages": messages} if verbose else {}))


_limiter: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("tests of compatibility")


def _testing() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(1)
        _limiter.set(limiter)
        return limiter


async def _given_schema(request: Request) -> str:
    """Read the text of a schema that a client sent."""
    try:
        document: Any = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ConfluentError(HTTPStatus.BAD_REQUEST, "expected a JSON object") from None
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise ConfluentError(_INVALID_SCHEMA, 'expected {"schema": "<the text of a schema>"}')
    if document.get("schemaType", "AVRO") not in (None, "AVRO"):
        raise ConfluentError(_INVALID_SCHEMA, "expected schemaType AVRO: this registry has no other")
    if document.get("references"):
        raise ConfluentError(_INVALID_SCHEMA, "references: send the self-contained text, as this registry serves it")
    text: str = document["schema"]
    return text


def _of_subject(registry: Registry, request: Request) -> tuple[SchemaVersion, ...]:
    subject: str = request.path_params["subject"]
    versions = registry.versions(subject)
    if not versions:
        raise ConfluentError(_SUBJECT_NOT_FOUND, f"Subject '{subject}' not found: the subjects are the types' names")
    return versions


def _wanted(registry: Registry, request: Request) -> SchemaVersion:
    versions = _of_subject(registry, request)
    text: str = request.path_params["version"]
    if text in (NEWEST, "-1"):
        return versions[0]
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _VERSION_MAX):
        raise ConfluentError(
            _INVALID_VERSION,
            f"The specified version '{text}' is not a valid version id. "
            f'Allowed values are between [1, 2^31-1] and the string "{NEWEST}"',
        )
    for version in versions:
        if _version_number(version) == int(text):
            return version
    raise ConfluentError(_VERSION_NOT_FOUND, f"Version {text} not found.")


def _page(request: Request, rows: list[Any]) -> list[Any]:
    """Give the rows that `offset` and `limit` ask for; a negative limit, as with Confluent's, is none."""
    try:
        offset = int(request.query_params.get("offset", "0"))
        limit = int(request.query_params.get("limit", "-1"))
    except ValueError:
        raise ConfluentError(HTTPStatus.BAD_REQUEST, "offset and limit must be whole numbers") from None
    offset = max(offset, 0)
    return rows[offset:] if limit < 0 else rows[offset : offset + limit]


# Ids.


@_told("Types of schemas", listed(one_of("AVRO")))
async def _types(_view: View, request: Request, _caller: Identity) -> Response:
    return _answer(request, ["AVRO"])


@_told("The text of an id", record("SchemaOfId", schema=TEXT), _NO_ID)
async def _schema(view: View, request: Request, _caller: Identity) -> Response:
    versions = _of_id(view.registry, request)
    return _answer(request, {"schema": versions[0].schema.text.decode()}, IMMUTABLE)


@described(
    "The text alone of an id",
    {"description": "a self-contained Avro schema"},
    errors=_NO_ID,
    also=_KEPT,
    dialect="confluent",
)
async def _schema_text(view: View, request: Request, _caller: Identity) -> Response:
    first = _of_id(view.registry, request)[0]
    return cacheable(request, first.schema.text, first.text_sha256, JSON_TYPE, IMMUTABLE)


@_told("Who has an id", listed(record("SubjectVersion", subject=TEXT, version=COUNT)), _NO_ID)
async def _id_versions(view: View, request: Request, _caller: Identity) -> Response:
    versions = _of_id(view.registry, request)
    return _answer(request, [{"subject": one.type_name, "version": _version_number(one)} for one in reversed(versions)])


@_told("Types that have an id", listed(TEXT), _NO_ID)
async def _id_subjects(view: View, request: Request, _caller: Identity) -> Response:
    return _answer(request, sorted({version.type_name for version in _of_id(view.registry, request)}))


def _of_id(registry: Registry, request: Request) -> list[SchemaVersion]:
    text: str = request.path_params["id"]
    known = text.isascii() and text.isdigit() and len(text) <= 10
    versions = registry.by_id(int(text)) if known else []
    if not versions:
        raise ConfluentError(_SCHEMA_NOT_FOUND, f"Schema {text} not found")
    return versions


# Settings.


@_told("The default mode of compatibility", _SETTING)
async def _config(_view: View, request: Request, _caller: Identity) -> Response:
    return _answer(request, {"compatibilityLevel": COMPATIBILITY_DEFAULT})


@_told("The mode of compatibility of a type", _SETTING, _NO_SUBJECT)
async def _subject_config(view: View, request: Request, _caller: Identity) -> Response:
    name = _of_subject(view.registry, request)[0].type_name
    return _answer(request, {"compatibilityLevel": view.registry.compatibility(name)})


@_told("That this registry is read", _MODE)
async def _mode(_view: View, request: Request, _caller: Identity) -> Response:
    return _answer(request, {"mode": "READONLY"})


@_told("That this type is read", _MODE, _NO_SUBJECT)
async def _subject_mode(view: View, request: Request, caller: Identity) -> Response:
    _of_subject(view.registry, request)
    return await _mode(view, request, caller)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/subjects", ANY_PRINCIPAL, _subjects),
    ("POST", "/subjects/{subject}", ANY_PRINCIPAL, _lookup),
    ("GET", "/subjects/{subject}/versions", ANY_PRINCIPAL, _versions),
    ("GET", "/subjects/{subject}/versions/{version}", ANY_PRINCIPAL, _version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", ANY_PRINCIPAL, _version_text),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", ANY_PRINCIPAL, _referenced_by),
    ("POST", "/compatibility/subjects/{subject}/versions", ANY_PRINCIPAL, _test_versions),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", ANY_PRINCIPAL, _test_version),
    ("GET", "/schemas/types", ANY_PRINCIPAL, _types),
    ("GET", "/schemas/ids/{id}", ANY_PRINCIPAL, _schema),
    ("GET", "/schemas/ids/{id}/schema", ANY_PRINCIPAL, _schema_text),
    ("GET", "/schemas/ids/{id}/versions", ANY_PRINCIPAL, _id_versions),
    ("GET", "/schemas/ids/{id}/subjects", ANY_PRINCIPAL, _id_subjects),
    ("GET", "/config", ANY_PRINCIPAL, _config),
    ("GET", "/config/{subject}", ANY_PRINCIPAL, _subject_config),
    ("GET", "/mode", ANY_PRINCIPAL, _mode),
    ("GET", "/mode/{subject}", ANY_PRINCIPAL, _subject_mode),
)
