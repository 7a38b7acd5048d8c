"""Values of MESSAGEs, judged and decoded as the gateway would: with a copy of its registry, fetched through the admin API."""

from typing import Any, Final, final
from urllib.parse import quote

from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.json.decoding import Json, ValueDecodeError, decode_value
from maxam.avro.registry import Registry
from maxam.avro.registry_file import FINGERPRINTS
from maxam.avro.rule import Rule, SchemaVersion
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.config import Limits
from maxam.glob_sets import overlap
from maxam.globs import compile_glob
from maxam.https_client import Remote
from maxam.records import Headers, Rejection

EVERYTHING: Final = "**"


def fetch_registry(remote: Remote, glob: str = EVERYTHING) -> Registry:
    """Fetch the gateway's rules that may match a topic of `glob`, in their order, and the schemas that they need.

    For every topic all types there are. Candidates and the limits of freshness are left out.

    Raises:
        RemoteError: The gateway cannot be asked.
        GlobError: `glob` is no good.
    """
    limits = Limits()
    wanted = None if glob == EVERYTHING else compile_glob(glob, limits)
    listing = remote.get("/v1/schemas")
    keys = EnvelopeKeys(**listing["envelope_keys"])
    rows = [(compile_glob(row["destination"], limits), row) for row in listing["rules"]]
    if wanted is not None:
        rows = [(matching, row) for matching, row in rows if overlap(matching, wanted)]
    needed = listing["types"] if wanted is None else sorted({str(row["schema"]) for _, row in rows if row["schema"]})
    types = {name: tuple([read_version(remote, name, minor) for minor in listing["types"][name]]) for name in needed}
    known: dict[bytes, list[SchemaVersion]] = {}
    for versions in types.values():
        for version in versions:
            for key in (version.crc_64, version.sha_256, version.schema_id_bytes):
                known.setdefault(key, []).append(version)
    size = FINGERPRINTS[listing["fingerprint"]]
    rules = [
        Rule(
            matching,
            row["encoding"],
            row["schema"],
            [version for version in types.get(row["schema"], ()) if version.minor in row["versions"]],
            row["require_version"],
            size,
            keys,
            known,
        )
        for matching, row in rows
    ]
    unknown = ((None, None),) * len(rules)
    return Registry(tuple(rules), types, known, listing["compatibility"], listing["fingerprint"], keys, unknown, {})


@final
class Validator:
    """The gateway's rules for the topics of one glob, as of when this was made."""

    def __init__(self, remote: Remote, glob: str) -> None:
        """Fetch the rules that may match a topic of `glob`, and their schemas; raises RemoteError and GlobError."""
        self._registry: Final = fetch_registry(remote, glob)

    def decode(self, destination: str, headers: Headers, body: bytes) -> tuple[str, Json]:
        """Return the name and minor of the schema that a body follows, and its value.

        Raises:
            ValueDecodeError: There is none, or the gateway's registry is another one by now.
        """
        rule = self._registry.rule_for(destination)
        if rule is None:
            raise ValueDecodeError("no rule of the registry covers it")
        validation = rule.validate(destination.encode(), headers, body)
        if isinstance(validation, Rejection):
            raise ValueDecodeError(validation.reason)
        version = self._registry.schema(validation.schema, validation.schema_version)
        if version is None:
            raise ValueDecodeError("it is accepted without a schema")
        return f"{validation.schema} {validation.schema_version}", decode_value(version.schema.text, body, validation)


def read_version(remote: Remote, name: str, minor: str) -> SchemaVersion:
    """Fetch one version of a type."""
    text: Any = remote.text(schema_path(name, minor))
    return SchemaVersion(name, minor, f"{name}/{minor}", parse_schema(read_source(f"{name} {minor}", text, minor)))


def schema_path(name: str, minor: str) -> str:
    """Return the path of a schema's self-contained text."""
    return f"/v1/schemas/{quote(name, safe='')}/{quote(minor, safe='')}"
