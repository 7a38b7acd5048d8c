"""Read `registry.toml` and check its values. Each error names file and place."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from maxam.avro.compatibility import COMPATIBILITIES, COMPATIBILITY_DEFAULT
from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.fingerprint import CRC_BYTES, SHA_BYTES
from maxam.avro.places import line_of_byte
from maxam.avro.rule import ENCODINGS, NONE, Rule, SchemaVersion
from maxam.config import Limits
from maxam.errors import GlobError, SchemaError
from maxam.globs import compile_glob

REGISTRY_FILE: Final = "registry.toml"
LOCK_FILE: Final = "registry.lock"
FINGERPRINTS: Final = {"CRC-64-AVRO": CRC_BYTES, "SHA-256": SHA_BYTES}
CANDIDATE_SUFFIX: Final = ".candidate.avsc"  # of a minor that is not released: it judges nothing, a rule may try it
AGE_S_MAX: Final = 1e10  # three centuries; infinity and nan are no limits
_ENVELOPE_KEYS: Final = ("body", "fingerprint", "topic", "tombstone")
_RULE_KEYS: Final = (
    "destination",
    "encoding",
    "expire_after_s",
    "fresh_within_s",
    "require_version",
    "schema",
    "shadow",
    "store_rejected_bodies",
)

Toml = dict[str, Any]  # as tomllib returns it: every value is checked before it is used
Versions = Mapping[str, tuple[SchemaVersion, ...]]  # by type, newest first


def parse_toml(file: str, text: bytes) -> Toml:
    """Parse a TOML file of the schema folder.

    Raises:
        SchemaError: It is not TOML in UTF-8.
    """
    try:
        return tomllib.loads(text.decode())
    except RecursionError:
        raise SchemaError("nested too deeply", file) from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"not UTF-8 TOML: {error}", file, "", line_of_byte(text, error.start)) from None
    except ValueError as error:
        raise SchemaError(f"not UTF-8 TOML: {error}", file) from None


def checked_keys(file: str, place: str, table: Toml, keys: tuple[str, ...]) -> None:
    """Raise a SchemaError if a table has other keys than these."""
    for key in table:
        if key not in keys:
            where = f"{place}.{key}" if place else key
            raise SchemaError(f"unknown key, known here: {', '.join(keys)}", file, where)


_NAMES: Final = {dict: "a table", list: "an array of tables", str: "text", bool: "true or false", int: "a whole number"}


def checked_value(file: str, place: str, value: Any, of: type) -> Any:  # noqa: ANN401 - TOML values have no better type
    """Return a value if it is of a type, else raise a SchemaError."""
    if not isinstance(value, of) or (isinstance(value, bool) and of is not bool):
        raise _mistaken(file, place, _NAMES[of], value)
    return value


def _mistaken(file: str, place: str, expected: str, value: object) -> SchemaError:
    found = repr(value)
    return SchemaError(f"expected {expected}, found {found if len(found) <= 80 else found[:77] + '...'}", file, place)


def read_envelope_keys(value: object) -> EnvelopeKeys:
    """Read the table `registry.envelope_keys`."""
    place = "registry.envelope_keys"
    table = checked_value(REGISTRY_FILE, place, value, dict)
    checked_keys(REGISTRY_FILE, place, table, _ENVELOPE_KEYS)
    numbers: list[int] = []
    for default, name in enumerate(_ENVELOPE_KEYS, start=1):
        number = checked_value(REGISTRY_FILE, f"{place}.{name}", table.get(name, default), int)
        if not -(2**31) <= number < 2**31:
            raise SchemaError("an item's key has 32 bits", REGISTRY_FILE, f"{place}.{name}")
        if number in numbers:
            raise SchemaError(
                f"{_ENVELOPE_KEYS[numbers.index(number)]} has {number} too", REGISTRY_FILE, f"{place}.{name}"
            )
        numbers.append(number)
    return EnvelopeKeys(*numbers)


def read_fingerprint(settings: Toml) -> str:
    """Read the kind of fingerprint, one of FINGERPRINTS, from the table `registry`."""
    fingerprint = settings.get("fingerprint", "CRC-64-AVRO")
    if not isinstance(fingerprint, str) or fingerprint not in FINGERPRINTS:
        raise _mistaken(REGISTRY_FILE, "registry.fingerprint", " or ".join(FINGERPRINTS), fingerprint)
    return fingerprint


def read_mode(name: str, entry: object, types: Versions) -> str:
    """Read the compatibility mode of a type."""
    place = f'type."{name}"'
    if name not in types:
        raise SchemaError(f"no such type, known: {', '.join(types) or 'none'}", REGISTRY_FILE, place)
    table = checked_value(REGISTRY_FILE, place, entry, dict)
    checked_keys(REGISTRY_FILE, place, table, ("compatibility",))
    mode = table.get("compatibility", COMPATIBILITY_DEFAULT)
    if not isinstance(mode, str) or mode not in COMPATIBILITIES:
        raise _mistaken(REGISTRY_FILE, f"{place}.compatibility", f"one of {', '.join(COMPATIBILITIES)}", mode)
    return mode


def read_rule(
    place: str,
    table: Toml,
    types: Versions,
    candidates: Versions,
    fingerprint_bytes: int,
    keys: EnvelopeKeys,
    known: Mapping[bytes, Sequence[SchemaVersion]],
    limits: Limits,
) -> Rule:
    """Read an entry of `rule`. `types` are the released versions by type, and `candidates` the others."""
    checked_keys(REGISTRY_FILE, place, table, _RULE_KEYS)
    for key in ("destination", "encoding"):
        if key not in table:
            raise SchemaError(f"{key!r} is missing", REGISTRY_FILE, place)
    encoding = table["encoding"]
    if encoding not in ENCODINGS:
        raise _mistaken(REGISTRY_FILE, f"{place}.encoding", f"one of {', '.join(ENCODINGS)}", encoding)
    version_required = checked_value(
        REGISTRY_FILE, f"{place}.require_version", table.get("require_version", False), bool
    )
    schema = checked_value(REGISTRY_FILE, f"{place}.schema", table.get("schema", ""), str)
    if encoding == NONE:
        if "schema" in table or "shadow" in table or version_required:
            raise SchemaError(
                'with encoding "none" nothing is checked: no schema, no version, no shadow', REGISTRY_FILE, place
            )
    elif "schema" not in table:
        raise SchemaError("'schema' is missing; only encoding \"none\" needs none", REGISTRY_FILE, place)
    elif schema not in types:
        raise SchemaError(
            f"no such type {schema!r}, known: {', '.join(types) or 'none'}", REGISTRY_FILE, f"{place}.schema"
        )
    destination = checked_value(REGISTRY_FILE, f"{place}.destination", table["destination"], str)
    try:
        glob = compile_glob(destination, limits)
    except GlobError as error:
        raise SchemaError(str(error), REGISTRY_FILE, f"{place}.destination") from None
    stored = checked_value(
        REGISTRY_FILE, f"{place}.store_rejected_bodies", table.get("store_rejected_bodies", True), bool
    )
    versions = types.get(schema, ())
    candidate = None
    if "shadow" in table:
        minor = checked_value(REGISTRY_FILE, f"{place}.shadow", table["shadow"], str)
        candidate = _candidate(place, minor, (*candidates.get(schema, ()), *versions))
        versions = tuple([version for version in versions if version is not candidate])
        if not versions:
            raise SchemaError(
                f"{schema} has no other version than {minor}, so none would judge. A version that is only tried needs one in "
                "force beside it",
                REGISTRY_FILE,
                f"{place}.shadow",
            )
    return Rule(glob, encoding, schema, versions, version_required, fingerprint_bytes, keys, known, candidate, stored)


def _candidate(place: str, minor: str, versions: Sequence[SchemaVersion]) -> SchemaVersion:
    """Return the version that a rule tries: one that is not released, or a released one, which does not judge there."""
    for version in versions:
        if version.minor == minor:
            return version
    known = ", ".join([version.minor for version in versions])
    raise SchemaError(
        f"no version {minor!r} of the rule's type, known: {known}. Add a new one as <minor>{CANDIDATE_SUFFIX}",
        REGISTRY_FILE,
        f"{place}.shadow",
    )


def read_ages(place: str, table: Toml) -> tuple[float | None, float | None]:
    """Read `fresh_within_s` and `expire_after_s` of a rule: ages of a value in seconds, None for an absent one."""
    fresh_within_s = _age(place, table, "fresh_within_s")
    expire_after_s = _age(place, table, "expire_after_s")
    if fresh_within_s is not None and expire_after_s is not None and expire_after_s <= fresh_within_s:
        raise SchemaError(
            f"{expire_after_s:g} s is not above fresh_within_s, {fresh_within_s:g} s, so its topics would be deleted before "
            "they are overdue. Set a larger expire_after_s, or remove fresh_within_s",
            REGISTRY_FILE,
            f"{place}.expire_after_s",
        )
    return fresh_within_s, expire_after_s


def _age(place: str, table: Toml, key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < AGE_S_MAX:
        raise _mistaken(REGISTRY_FILE, f"{place}.{key}", "a number of seconds above zero", value)
    return float(value)
