"""Routes of the Confluent Schema Registry's API, as far as it reads, so that tools made for it can use our schemas.

A subject is a type, and version n is its minor version n - 1. An id is the low 31 bits of the SHA-256 of a schema's self-contained
text: the id in bodies of the encoding `confluent`. The lookup and the tests of compatibility are POSTs that change nothing. A request
that would write is answered as by a registry in mode READONLY, because schemas come from the gateway's schema folder. All else of
that API is answered 404.

Spec: Confluent Schema Registry "API Reference"
"""

import json
from contextlib import suppress
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, final

from starlette.responses import Response

from maxam.api.answers import IMMUTABLE, JSON_TYPE, REVALIDATED, cacheable, rendered
from maxam.api.description import COUNT, FLAG, TEXT, WHOLE, Schema, described, listed, nullable, one_of, record
from maxam.api.parameters import text
from maxam.api.registry.compatibility_process import incompatibilities
from maxam.api.registry.schemas import NEWEST
from maxam.api.routing import ANY_PRINCIPAL, Call, Description, RouteSpec, at_a_time
from maxam.avro.compatibility import COMPATIBILITY_DEFAULT
from maxam.avro.fingerprint import sha_256
from maxam.avro.rule import SchemaVersion
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.errors import SchemaError

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
    "this registry is in read-only mode: its schemas and modes are the files of the gateway's schema folder. Change them"
    " there. Serialisers need auto.register.schemas = false"
)
_READING: Final = {"GET", "HEAD"}
WRITING: Final = {"POST", "PUT", "PATCH", "DELETE"}


@final
class ConfluentError(Exception):
    """End a request with an error in the form of Confluent's registry.

    Args:
        code: Three digits of the HTTP status, or five of which they are the first.
        message: Description of the error.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code: Final = code
        self.status: Final = HTTPStatus(code // 100 if code > 999 else code)


def speaks_confluent(path: str) -> bool:
    """Return True if a path is of Confluent's API, so that its errors have that API's form."""
    return any(path == root or path.startswith(root + "/") for root in ROOTS)


def error_answer(status: HTTPStatus, code: int, message: str) -> Response:
    """Return an error in Confluent's form."""
    content, _ = rendered({"error_code": int(code), "message": message})
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(content, status, headers, CONFLUENT_TYPE)


def no_such_route(method: str) -> Response:
    """Refuse a request without a route. Requests that would write are refused as by a read-only Confluent registry."""
    if method in _READING:
        return error_answer(HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND, f"no such path: {_READ_ONLY}")
    return error_answer(HTTPStatus.UNPROCESSABLE_ENTITY, _NOT_PERMITTED, _READ_ONLY)


def _answer(call: Call, document: object, caching: str = REVALIDATED) -> Response:
    content, tag = rendered(document)
    return cacheable(call.request, content, tag, CONFLUENT_TYPE, caching)


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
        schema=described(TEXT, "the text of a schema"),
        schemaType=nullable(one_of("AVRO")),
        references={"description": "none: texts are self-contained"},
    ),
    "additionalProperties": True,
}
_COMPATIBLE: Final = record("Compatibility", ("messages",), is_compatible=FLAG, messages=listed(TEXT))
_SETTING: Final = record("CompatibilityLevel", compatibilityLevel=TEXT)
_MODE: Final = record("Mode", mode=one_of("READONLY"))
_ROWS: Final = (
    text("offset", "rows to skip at the beginning", WHOLE),
    text("limit", "rows at most. Negative means all", WHOLE),
)
_KEPT: Final = {304: ("It matches `If-None-Match`.", None)}
_NO_SUBJECT: Final = {404: "40401: no such subject."}
_NO_VERSION: Final = _NO_SUBJECT | {404: "40401, 40402: no such subject or version.", 422: "42202: no version number."}
_NO_ID: Final = {404: "40403: no such schema."}
_BAD_SCHEMA: Final = {400: "No JSON object.", 422: "42201: an unusable schema."}


_describe: Final = partial(Description, also=_KEPT, media_type=CONFLUENT_TYPE, dialect="confluent")


# Subjects.


@_describe(
    "Names of types",
    listed(TEXT),
    (text("subjectPrefix", "only those with this prefix"), *_ROWS),
    errors={400: "`offset` or `limit` is no number."},
)
async def _subjects(call: Call) -> Response:
    prefix = call.request.query_params.get("subjectPrefix", "")
    return _answer(call, _page(call, [name for name in call.view.registry.types() if name.startswith(prefix)]))


@_describe("Versions of a type", listed(COUNT), _ROWS, errors=_NO_SUBJECT | {400: "`offset` or `limit` is no number."})
async def _versions(call: Call) -> Response:
    versions = _of_subject(call)
    return _answer(call, _page(call, [_version_number(version) for version in reversed(versions)]))


@_describe("One version", _VERSION, errors=_NO_VERSION)
async def _version(call: Call) -> Response:
    return _answer(call, _row(_wanted(call)))


@Description(
    "The text of one version",
    {"description": "a self-contained Avro schema"},
    errors=_NO_VERSION,
    also=_KEPT,
    dialect="confluent",
)
async def _version_text(call: Call) -> Response:
    version = _wanted(call)
    return cacheable(call.request, version.schema.text, version.text_sha256)


@_describe("Empty list: texts are self-contained, so no schema refers to this one", listed(COUNT), errors=_NO_VERSION)
async def _referenced_by(call: Call) -> Response:
    _wanted(call)
    return _answer(call, [])  # what is served is self-contained: nothing refers to anything


@_describe(
    "Find the version that has this text or writes the same bytes. Changes nothing",
    _VERSION,
    errors=_BAD_SCHEMA | {404: "40401, 40403."},
    body=_GIVEN,
)
async def _lookup(call: Call) -> Response:
    versions = _of_subject(call)
    given = await _given_schema(call)
    try:
        found = _known(versions, given)
    except (SchemaError, RecursionError) as error:
        reason = error if isinstance(error, SchemaError) else "schema: nested too deeply"
        raise ConfluentError(_INVALID_SCHEMA, f"Invalid schema: {reason}") from None
    if found is None:
        raise ConfluentError(_SCHEMA_NOT_FOUND, f"Schema not found among the versions of {versions[0].type_name}")
    return _answer(call, _row(found))


def _known(versions: tuple[SchemaVersion, ...], given: str) -> SchemaVersion | None:
    """Find the version with the text that was given, or else the newest one that writes the same bytes."""
    source = read_source("schema", given.encode(errors="surrogatepass"))
    written = json.dumps(source.document, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    text_sha256 = sha256(written).hexdigest()
    for version in versions:
        if version.text_sha256 == text_sha256:
            return version
    if len(written) > PARSED_BYTES_MAX:
        return None
    fingerprint = sha_256(parse_schema(source).canonical)
    return next((version for version in versions if version.sha_256 == fingerprint), None)


_VERBOSE: Final = text("verbose", "`true`: with messages")


@_describe(
    "Test whether a schema could follow a version. Changes nothing",
    _COMPATIBLE,
    (_VERBOSE,),
    body=_GIVEN,
    errors=_NO_VERSION | {400: "No JSON object.", 422: "42201, 42202."},
)
async def _test_version(call: Call) -> Response:
    older = _wanted(call)
    return await _tested(call, (older,))


@_describe(
    "Test whether a schema could be the next version. Changes nothing",
    _COMPATIBLE,
    (_VERBOSE,),
    body=_GIVEN,
    errors=_BAD_SCHEMA | _NO_SUBJECT,
)
async def _test_versions(call: Call) -> Response:
    versions = _of_subject(call)
    transitive = call.view.registry.compatibility(versions[0].type_name).endswith("_TRANSITIVE")
    return await _tested(call, versions if transitive else versions[:1])


async def _tested(call: Call, olders: tuple[SchemaVersion, ...]) -> Response:
    """Answer whether a schema of a client could be the next version after each of some versions, by their type's mode."""
    verbose = call.request.query_params.get("verbose", "false").lower() == "true"
    given = await _given_schema(call)
    mode = call.view.registry.compatibility(olders[0].type_name)
    try:
        async with at_a_time("compatibility", 1):
            messages = await incompatibilities(given, olders, mode)
    except SchemaError as error:
        raise ConfluentError(_INVALID_SCHEMA, f"Invalid schema: {error}") from None
    except OSError as error:
        raise ConfluentError(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; try again") from None
    document: dict[str, object] = {"is_compatible": not messages}
    return _answer(call, document | ({"messages": messages} if verbose else {}))


async def _given_schema(call: Call) -> str:
    """Read the text of a schema that a client sent."""
    try:
        document: Any = json.loads(await call.request.body())
    except (ValueError, RecursionError):
        raise ConfluentError(HTTPStatus.BAD_REQUEST, "expected a JSON object") from None
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise ConfluentError(_INVALID_SCHEMA, 'expected {"schema": "<the text of a schema>"}')
    if document.get("schemaType", "AVRO") not in (None, "AVRO"):
        raise ConfluentError(_INVALID_SCHEMA, "expected schemaType AVRO: this registry has no other")
    if document.get("references"):
        raise ConfluentError(_INVALID_SCHEMA, "references: send the self-contained text, as this registry serves it")
    schema: str = document["schema"]
    if '"references"' in schema:
        with suppress(ValueError, RecursionError):
            own = json.loads(schema)
            if isinstance(own, dict) and "references" in own:
                raise ConfluentError(
                    _INVALID_SCHEMA,
                    "references: a file of a schema folder needs the other files. Send the self-contained text, as `maxam-admin schemas show"
                    " TYPE --text` prints it",
                )
    return schema


def _of_subject(call: Call) -> tuple[SchemaVersion, ...]:
    subject = call.segment("subject")
    versions = call.view.registry.versions(subject)
    if not versions:
        raise ConfluentError(_SUBJECT_NOT_FOUND, f"Subject '{subject}' not found: the subjects are the types' names")
    return versions


def _wanted(call: Call) -> SchemaVersion:
    versions = _of_subject(call)
    given = call.segment("version")
    if given in (NEWEST, "-1"):
        return versions[0]
    if not (given.isascii() and given.isdigit() and len(given) <= 10 and 1 <= int(given) <= _VERSION_MAX):
        raise ConfluentError(
            _INVALID_VERSION,
            f"The specified version '{given}' is not a valid version id. "
            f'Allowed values are between [1, 2^31-1] and the string "{NEWEST}"',
        )
    for version in versions:
        if _version_number(version) == int(given):
            return version
    raise ConfluentError(_VERSION_NOT_FOUND, f"Version {given} not found.")


def _page(call: Call, rows: list[Any]) -> list[Any]:
    """Give the rows that `offset` and `limit` ask for; a negative limit, as with Confluent's, is none."""
    try:
        offset = int(call.request.query_params.get("offset", "0"))
        limit = int(call.request.query_params.get("limit", "-1"))
    except ValueError:
        raise ConfluentError(HTTPStatus.BAD_REQUEST, "offset and limit must be whole numbers") from None
    offset = max(offset, 0)
    return rows[offset:] if limit < 0 else rows[offset : offset + limit]


# Ids.


@_describe("Types of schemas", listed(one_of("AVRO")))
async def _types(call: Call) -> Response:
    return _answer(call, ["AVRO"])


@_describe("The text of an id", record("SchemaOfId", schema=TEXT), errors=_NO_ID)
async def _schema(call: Call) -> Response:
    versions = _of_id(call)
    return _answer(call, {"schema": versions[0].schema.text.decode()}, IMMUTABLE)


@Description(
    "The text alone of an id",
    {"description": "a self-contained Avro schema"},
    errors=_NO_ID,
    also=_KEPT,
    dialect="confluent",
)
async def _schema_text(call: Call) -> Response:
    first = _of_id(call)[0]
    return cacheable(call.request, first.schema.text, first.text_sha256, JSON_TYPE, IMMUTABLE)


@_describe(
    "Subjects and versions with an id", listed(record("SubjectVersion", subject=TEXT, version=COUNT)), errors=_NO_ID
)
async def _id_versions(call: Call) -> Response:
    versions = _of_id(call)
    return _answer(call, [{"subject": one.type_name, "version": _version_number(one)} for one in reversed(versions)])


@_describe("Types that have an id", listed(TEXT), errors=_NO_ID)
async def _id_subjects(call: Call) -> Response:
    return _answer(call, sorted({version.type_name for version in _of_id(call)}))


def _of_id(call: Call) -> list[SchemaVersion]:
    given = call.segment("id")
    known = given.isascii() and given.isdigit() and len(given) <= 10
    versions = call.view.registry.by_id(int(given)) if known else []
    if not versions:
        raise ConfluentError(_SCHEMA_NOT_FOUND, f"Schema {given} not found")
    return versions


# Settings.


@_describe("The default mode of compatibility", _SETTING)
async def _config(call: Call) -> Response:
    return _answer(call, {"compatibilityLevel": COMPATIBILITY_DEFAULT})


@_describe("The mode of compatibility of a type", _SETTING, errors=_NO_SUBJECT)
async def _subject_config(call: Call) -> Response:
    name = _of_subject(call)[0].type_name
    return _answer(call, {"compatibilityLevel": call.view.registry.compatibility(name)})


@_describe("The mode of this registry, which is read-only", _MODE)
async def _mode(call: Call) -> Response:
    return _answer(call, {"mode": "READONLY"})


@_describe("The mode of a type, which is read-only", _MODE, errors=_NO_SUBJECT)
async def _subject_mode(call: Call) -> Response:
    _of_subject(call)
    return await _mode(call)


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
