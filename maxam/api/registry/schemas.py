"""Routes of the schema registry: the schemas of a fingerprint, a hash of a text, a type or a destination.

Read-only, and open to any principal of the policy. The answers about a registry are rendered once, as long as it is in force.
Every answer has an ETag. An answer whose path is the hash of its content never changes, and may be cached for good.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.api.answers import IMMUTABLE, REVALIDATED, ApiError, Rows, cacheable, rendered
from maxam.api.description import (
    COUNT,
    FLAG,
    HEX,
    TEXT,
    WHOLE,
    Schema,
    by_name,
    described,
    extended,
    listed,
    nullable,
    record,
    row_of,
)
from maxam.api.routing import ANY_PRINCIPAL, Call, Description, RouteSpec, not_found
from maxam.avro.json.schemas import rule_row, version_row
from maxam.avro.registry import Registry
from maxam.avro.registry_file import FINGERPRINTS
from maxam.avro.rule import Rule, SchemaVersion

NEWEST: Final = "latest"
ROWS_PER_SLICE: Final = 100  # rules of the listing before the event loop runs other tasks
_HEX: Final = re.compile(r"[0-9a-fA-F]+")


@lru_cache(maxsize=1)  # of the registry in force
def _kept(_registry: Registry) -> list[tuple[bytes, str]]:
    """Return where the listing of a registry is kept once it was made."""
    return []


async def _listed(registry: Registry) -> tuple[bytes, str]:
    """Return the listing and its tag. It is made in batches, as with a thousand types it takes several milliseconds."""
    kept = _kept(registry)
    if not kept:
        rules = Rows("rules")
        await rules.add_all(registry.rules, ROWS_PER_SLICE, rule_row)
        listing = rules.within(
            fingerprint=registry.fingerprint,
            envelope_keys=row_of(_ENVELOPE_KEYS, registry.envelope_keys),
            types={name: [version.minor for version in registry.versions(name)] for name in registry.types()},
            compatibility={name: registry.compatibility(name) for name in registry.types()},
        )
        await trio.lowlevel.checkpoint()
        content = bytes(listing.body)
        kept.append((content, sha256(content).hexdigest()))
    return kept[0]


def _judging(registry: Registry, rule: Rule) -> list[SchemaVersion]:
    """Return the versions that judge by a rule: all except a candidate that it only tries."""
    return [version for version in registry.versions(rule.schema) if version is not rule.candidate]


_RULE: Final = record(
    "Rule",
    destination=TEXT,
    schema=TEXT,
    encoding=TEXT,
    require_version=FLAG,
    versions=listed(TEXT),
    shadow=described(nullable(TEXT), "the candidate that it tries"),
    store_rejected_bodies=FLAG,
)
_VERSION: Final = record("SchemaVersion", minor=TEXT, fingerprints=by_name(HEX), text_sha256=HEX, schema_id=COUNT)
_ENVELOPE_KEYS: Final = record("EnvelopeKeys", body=WHOLE, fingerprint=WHOLE, topic=WHOLE, tombstone=WHOLE)
SCHEMA_TEXT: Final[Schema] = {"description": "a self-contained Avro schema"}
KEPT: Final = {304: ("It matches `If-None-Match`.", None)}


@Description(
    "Rules, envelope keys, minors of each type, newest first, modes of compatibility",
    record(
        "Registry",
        fingerprint=TEXT,
        envelope_keys=_ENVELOPE_KEYS,
        rules=listed(_RULE),
        types=by_name(listed(TEXT)),
        compatibility=by_name(TEXT),
    ),
    also=KEPT,
)
async def _schemas(call: Call) -> Response:
    return cacheable(call.request, *await _listed(call.view.registry))


@Description(
    "One type with its rules and minors",
    record("SchemaType", type=TEXT, compatibility=TEXT, versions=listed(_VERSION), rules=listed(_RULE)),
    errors={404: "`not-found`."},
    also=KEPT,
)
async def _type(call: Call) -> Response:
    name = call.segment("name")
    registry = call.view.registry
    versions = registry.versions(name)
    if not versions:
        raise not_found(f"there is no type {name}; GET /v1/schemas lists them")
    document = {
        "type": name,
        "compatibility": registry.compatibility(name),
        "versions": [version_row(version) for version in versions],
        "rules": [rule_row(rule) for rule in registry.rules if rule.schema == name],
    }
    return cacheable(call.request, *rendered(document))


@Description(
    "The rule of a destination, and the minors that judge it, newest first",
    record("Judging", destination=TEXT, rule=_RULE, versions=listed(extended(_VERSION, "TypedVersion", type=TEXT))),
    errors={404: "`no-rule`."},
    also=KEPT,
)
async def _by_destination(call: Call) -> Response:
    destination = call.destination
    registry = call.view.registry
    rule = registry.rule_for(destination)
    if rule is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "no-rule", f"no rule of the registry covers {destination}")
    versions = [{"type": rule.schema} | version_row(version) for version in _judging(registry, rule)]
    return cacheable(
        call.request, *rendered({"destination": destination, "rule": rule_row(rule), "versions": versions})
    )


@Description(
    "The self-contained text of a minor; `latest` is the newest", SCHEMA_TEXT, errors={404: "`not-found`."}, also=KEPT
)
async def _schema(call: Call) -> Response:
    name, minor = call.segment("name"), call.segment("minor")
    versions = call.view.registry.versions(name)
    version = next((one for one in versions if minor in (one.minor, NEWEST)), None)
    if version is None:
        known = ", ".join([one.minor for one in versions])
        more = f"; known: {known}" if known else "; GET /v1/schemas lists what there is"
        raise not_found(f"there is no schema {name} {minor}{more}")
    return _text(call.request, [version], REVALIDATED)


@Description(
    "The text of the newest minor with a fingerprint, of 16 or 64 hexadecimal digits",
    SCHEMA_TEXT,
    errors={404: "`not-found`."},
    also=KEPT,
)
async def _by_fingerprint(call: Call) -> Response:
    wanted = _hash(call.segment("fingerprint"), tuple(FINGERPRINTS.values()), "a fingerprint")
    versions = call.view.registry.by_fingerprint(wanted)
    if not versions:
        raise not_found(f"no schema has the fingerprint {wanted.hex()}")
    return _text(call.request, versions, REVALIDATED)  # a newer minor may have the same: only its text differs


@Description("A text by its SHA-256", SCHEMA_TEXT, errors={404: "`not-found`."}, also=KEPT)
async def _by_text(call: Call) -> Response:
    wanted = _hash(call.segment("sha256"), (sha256().digest_size,), "the SHA-256 of a text")
    versions = call.view.registry.by_text(wanted.hex())
    if not versions:
        raise not_found(f"no schema's text has the SHA-256 {wanted.hex()}")
    return _text(call.request, versions, IMMUTABLE)


def _text(request: Request, versions: Sequence[SchemaVersion], caching: str) -> Response:
    """Answer with the text of the first version, and list all of them in a header."""
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
