"""Routes of the schema registry: which schema a fingerprint, a text's hash, a type or a destination stands for.

Read-only, and open to any principal of the policy. What is said of a registry is rendered once, as long as it is in force.
Every answer has an ETag; what can never change, as its path is the hash of what it gives, need not be asked for again.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import Final, final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import ANY_PRINCIPAL, ApiError, RouteSpec
from maxam.admin.description import COUNT, FLAG, HEX, TEXT, WHOLE, Schema, by_name, described, extended, listed, record
from maxam.admin.view import View
from maxam.avro.registry import FINGERPRINTS, Registry
from maxam.avro.rule import Rule, SchemaVersion
from maxam.records import Identity

JSON_TYPE: Final = "application/json"
NEWEST: Final = "latest"
ROWS_PER_SLICE: Final = 100  # rules of the listing before the event loop has its turn
# Private, as rights were checked: a cache that several share must not answer others.
REVALIDATED: Final = "private, no-cache"
IMMUTABLE: Final = "private, max-age=31536000, immutable"  # a year, the most that caches take
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_ETAG: Final = re.compile(r'(?:W/)?("[^"]*")')


def cacheable(
    request: Request,
    content: bytes,
    tag: str,
    media_type: str = JSON_TYPE,
    caching: str = REVALIDATED,
    headers: dict[str, str] | None = None,
) -> Response:
    """Answer with content that a client may keep, or tell it that what it has kept is still right.

    Args:
        request: What was asked.
        content: The whole body.
        tag: Tells this content from what the same path gave at other times; without quotes.
        media_type: Of the content.
        caching: REVALIDATED or IMMUTABLE.
        headers: Further ones.
    """
    etag = f'"{tag}"'
    known = request.headers.get("if-none-match", "")
    common = {"etag": etag, "cache-control": caching, "x-content-type-options": "nosniff"} | (headers or {})
    if known.strip() == "*" or etag in _ETAG.findall(known):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=common)
    return Response(content, media_type=media_type, headers=common)


def rendered(document: object) -> tuple[bytes, str]:
    """Return a document as JSON, and a tag of it."""
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return content, sha256(content).hexdigest()


@final
class _Listing:
    """The listing of one registry, once somebody has asked for it."""

    def __init__(self) -> None:
        self.answer: tuple[bytes, str] | None = None


@lru_cache(maxsize=1)  # of the registry in force
def _listing(_registry: Registry) -> _Listing:
    return _Listing()


async def _listed(registry: Registry) -> tuple[bytes, str]:
    """Return the listing and its tag; it is made in slices, as with a thousand types it takes several milliseconds."""
    listing = _listing(registry)
    if listing.answer is None:
        keys = registry.envelope_keys
        head = {
            "fingerprint": registry.fingerprint,
            "envelope_keys": {
                "body": keys.body,
                "fingerprint": keys.fingerprint,
                "topic": keys.topic,
                "tombstone": keys.tombstone,
            },
        }
        rules: list[bytes] = []
        for start in range(0, len(registry.rules), ROWS_PER_SLICE):
            rows = [_rule_row(rule) for rule in registry.rules[start : start + ROWS_PER_SLICE]]
            rules.append(rendered(rows)[0][1:-1])
            await trio.lowlevel.checkpoint()
        types = {name: [version.minor for version in registry.versions(name)] for name in registry.types()}
        modes = {name: registry.compatibility(name) for name in registry.types()}
        parts = (rendered(head)[0][:-1], b",".join(rules), rendered(types)[0], rendered(modes)[0])
        content = b'%s,"rules":[%s],"types":%s,"compatibility":%s}' % parts
        await trio.lowlevel.checkpoint()
        listing.answer = content, sha256(content).hexdigest()
    return listing.answer


def _rule_row(rule: Rule) -> dict[str, object]:
    return {
        "destination": rule.glob.text,
        "schema": rule.schema,
        "encoding": rule.encoding,
        "require_version": rule.version_required,
        "versions": rule.minors,
        "shadow": None if rule.candidate is None else rule.candidate.minor,
        "store_rejected_bodies": rule.rejected_bodies_stored,
    }


def _version_row(version: SchemaVersion) -> dict[str, object]:
    return {
        "minor": version.minor,
        "fingerprints": {
            name: (version.crc_64 if size == len(version.crc_64) else version.sha_256).hex()
            for name, size in FINGERPRINTS.items()
        },
        "text_sha256": version.text_sha256,
        "schema_id": version.schema_id,
    }


def _judging(registry: Registry, rule: Rule) -> list[SchemaVersion]:
    """Return the versions that judge by a rule: all but one that it only tries."""
    return [version for version in registry.versions(rule.schema) if version is not rule.candidate]


RULE: Final = record(
    "Rule",
    destination=TEXT,
    schema=TEXT,
    encoding=TEXT,
    require_version=FLAG,
    versions=listed(TEXT),
    shadow={"anyOf": [TEXT, {"type": "null"}], "description": "the candidate that it tries"},
    store_rejected_bodies=FLAG,
)
VERSION: Final = record("SchemaVersion", minor=TEXT, fingerprints=by_name(HEX), text_sha256=HEX, schema_id=COUNT)
SCHEMA_TEXT: Final[Schema] = {"description": "a self-contained Avro schema"}
KEPT: Final = {304: ("It is as `If-None-Match` says.", None)}


@described(
    "Rules, envelope keys, minors of each type, newest first, modes of compatibility",
    record(
        "Registry",
        fingerprint=TEXT,
        envelope_keys=record("EnvelopeKeys", body=WHOLE, fingerprint=WHOLE, topic=WHOLE, tombstone=WHOLE),
        rules=listed(RULE),
        types=by_name(listed(TEXT)),
        compatibility=by_name(TEXT),
    ),
    also=KEPT,
)
async def _schemas(view: View, request: Request, _caller: Identity) -> Response:
    return cacheable(request, *await _listed(view.registry))


@described(
    "One type with its rules and minors",
    record("SchemaType", type=TEXT, compatibility=TEXT, versions=listed(VERSION), rules=listed(RULE)),
    errors={404: "`not-found`."},
    also=KEPT,
)
async def _type(view: View, request: Request, _caller: Identity) -> Response:
    name: str = request.path_params["name"]
    registry = view.registry
    versions = registry.versions(name)
    if not versions:
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"there is no type {name}; GET /v1/schemas lists them")
    document = {
        "type": name,
        "compatibility": registry.compatibility(name),
        "versions": [_version_row(version) for version in versions],
        "rules": [_rule_row(rule) for rule in registry.rules if rule.schema == name],
    }
    return cacheable(request, *rendered(document))


@described(
    "The rule of a destination, and the minors that judge it, newest first",
    record("Judging", destination=TEXT, rule=RULE, versions=listed(extended(VERSION, "TypedVersion", type=TEXT))),
    errors={404: "`no-rule`."},
    also=KEPT,
)
async def _by_destination(view: View, request: Request, _caller: Identity) -> Response:
    destination: str = request.path_params["destination"]
    registry = view.registry
    rule = registry.rule_for(destination)
    if rule is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "no-rule", f"no rule of the registry covers {destination}")
    versions = [{"type": rule.schema} | _version_row(version) for version in _judging(registry, rule)]
    return cacheable(request, *rendered({"destination": destination, "rule": _rule_row(rule), "versions": versions}))


@described(
    "The self-contained text of a minor; `latest` is the newest", SCHEMA_TEXT, errors={404: "`not-found`."}, also=KEPT
)
async def _schema(view: View, request: Request, _caller: Identity) -> Response:
    name, minor = request.path_params["name"], request.path_params["minor"]
    versions = view.registry.versions(name)
    version = next((one for one in versions if minor in (one.minor, NEWEST)), None)
    if version is None:
        known = ", ".join([one.minor for one in versions])
        more = f"; known: {known}" if known else "; GET /v1/schemas lists what there is"
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"there is no schema {name} {minor}{more}")
    return _text(request, [version], REVALIDATED)


@described(
    "The text of the newest minor with a fingerprint, of 16 or 64 hexadecimal digits",
    SCHEMA_TEXT,
    errors={404: "`not-found`."},
    also=KEPT,
)
async def _by_fingerprint(view: View, request: Request, _caller: Identity) -> Response:
    wanted = _hash(request.path_params["fingerprint"], tuple(FINGERPRINTS.values()), "a fingerprint")
    versions = view.registry.by_fingerprint(wanted)
    if not versions:
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"no schema has the fingerprint {wanted.hex()}")
    return _text(request, versions, REVALIDATED)  # a newer minor may have the same: only its text differs


@described("A text by its SHA-256", SCHEMA_TEXT, errors={404: "`not-found`."}, also=KEPT)
async def _by_text(view: View, request: Request, _caller: Identity) -> Response:
    wanted = _hash(request.path_params["sha256"], (sha256().digest_size,), "the SHA-256 of a text")
    versions = view.registry.by_text(wanted.hex())
    if not versions:
        raise ApiError(HTTPStatus.NOT_FOUND, "not-found", f"no schema's text has the SHA-256 {wanted.hex()}")
    return _text(request, versions, IMMUTABLE)


def _text(request: Request, versions: Sequence[SchemaVersion], caching: str) -> Response:
    """Give the text of the first version, and name all of them."""
    names = ", ".join([f"{version.type_name} {version.minor}" for version in versions])
    first = versions[0]
    return cacheable(request, first.schema.text, first.text_sha256, caching=caching, headers={"maxam-schema": names})


def _hash(text: str, sizes: tuple[int, ...], what: str) -> bytes:
    if not _HEX.fullmatch(text) or len(text) not in [2 * size for size in sizes]:
        digits = " or ".join([str(2 * size) for size in sizes])
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", f"{what} has {digits} hexadecimal digits")
    return bytes.fromhex(text)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/schemas", ANY_PRINCIPAL, _schemas),
    ("GET", "/v1/schemas/by-destination/{destination:path}", ANY_PRINCIPAL, _by_destination),
    ("GET", "/v1/schemas/by-fingerprint/{fingerprint}", ANY_PRINCIPAL, _by_fingerprint),
    ("GET", "/v1/schemas/by-text/{sha256}", ANY_PRINCIPAL, _by_text),
    ("GET", "/v1/schemas/{name}", ANY_PRINCIPAL, _type),
    ("GET", "/v1/schemas/{name}/{minor}", ANY_PRINCIPAL, _schema),
)
