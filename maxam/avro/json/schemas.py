"""JSON of the rules and schema versions of a registry, for the API and for commands."""

from maxam.avro.rule import Rule, SchemaVersion


def rule_row(rule: Rule) -> dict[str, object]:
    """Return the JSON of a rule."""
    return {
        "destination": rule.glob.text,
        "schema": rule.schema,
        "encoding": rule.encoding,
        "require_version": rule.version_required,
        "versions": rule.minors,
        "shadow": None if rule.candidate is None else rule.candidate.minor,
        "store_rejected_bodies": rule.rejected_bodies_stored,
    }


def version_row(version: SchemaVersion) -> dict[str, object]:
    """Return the JSON of a schema version."""
    return {
        "minor": version.minor,
        "fingerprints": {"CRC-64-AVRO": version.crc_64.hex(), "SHA-256": version.sha_256.hex()},
        "text_sha256": version.text_sha256,
        "schema_id": version.schema_id,
    }
