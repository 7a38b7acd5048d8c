"""Values of MESSAGEs, judged and decoded as the gateway would: with a copy of its registry, fetched through the admin API."""

from typing import Any, Final, final
from urllib.parse import quote

from maxam.admin.remote import Remote
from maxam.admin.values import Json, ValueDecodeError, decode_value
from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.registry import FINGERPRINTS
from maxam.avro.rule import Rule, SchemaVersion
from maxam.avro.schema import parse_schema, read_source
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.records import Headers, Rejection


@final
class Judge:
    """The gateway's rules for the topics of one glob, as of when this was made."""

    def __init__(self, remote: Remote, glob: str) -> None:
        """Fetch the rules that may match a topic of `glob`, and their schemas; raises RemoteError and GlobError."""
        limits = Limits()
        wanted = compile_glob(glob, limits)
        listing = remote.get("/v1/schemas")
        keys = EnvelopeKeys(**listing["envelope_keys"])
        rules = [(compile_glob(rule["destination"], limits), rule) for rule in listing["rules"]]
        rules = [(matching, rule) for matching, rule in rules if matching.overlaps(wanted)]
        versions = {
            name: [read_version(remote, name, minor) for minor in listing["types"][name]]
            for name in sorted({str(rule["schema"]) for _, rule in rules if rule["schema"]})
        }
        self._texts: Final = {(v.type_name, v.minor): v.schema.text for minors in versions.values() for v in minors}
        size = FINGERPRINTS[listing["fingerprint"]]
        self._rules: Final = [
            Rule(
                matching,
                rule["encoding"],
                rule["schema"],
                [version for version in versions.get(rule["schema"], []) if version.minor != rule.get("shadow")],
                rule["require_version"],
                size,
                keys,
                {},
            )
            for matching, rule in rules
        ]

    def decode(self, destination: str, headers: Headers, body: bytes) -> tuple[str, Json]:
        """Return the name and minor of the schema that a body follows, and its value.

        Raises:
            ValueDecodeError: There is none, or the gateway's registry is another one by now.
        """
        for rule in self._rules:
            if rule.glob.matches(destination):
                judgement = rule.judge(destination.encode(), headers, body)
                if isinstance(judgement, Rejection):
                    raise ValueDecodeError(judgement.reason)
                text = self._texts.get((judgement.schema, judgement.schema_version))
                if text is None:
                    raise ValueDecodeError("it is accepted without a schema")
                return f"{judgement.schema} {judgement.schema_version}", decode_value(text, body, judgement)
        raise ValueDecodeError("no rule of the registry covers it")


def read_version(remote: Remote, name: str, minor: str) -> SchemaVersion:
    """Fetch one version of a type."""
    text: Any = remote.text(schema_path(name, minor))
    return SchemaVersion(name, minor, f"{name}/{minor}", parse_schema(read_source(f"{name} {minor}", text, minor)))


def schema_path(name: str, minor: str) -> str:
    """Return the path of a schema's self-contained text."""
    return f"/v1/schemas/{quote(name, safe='')}/{quote(minor, safe='')}"
