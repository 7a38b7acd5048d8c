"""The text of the schema that judged a body, as the registry in force has it."""

from maxam.avro.personal import with_marks_of
from maxam.avro.registry import Registry
from maxam.records import Validation


def judging_text(registry: Registry, validation: Validation) -> bytes | None:
    """Return the self-contained text of the schema that judged a body, None without one or if what has its name now is another.

    A field that any version of the same fingerprint marks as personal is marked.
    """
    version = registry.schema(validation.schema, validation.schema_version)
    if version is None or validation.schema_fingerprint not in (version.crc_64, version.sha_256):
        return None
    same = [one.schema.text for one in registry.versions(version.type_name) if one.crc_64 == version.crc_64]
    return version.schema.text if len(same) == 1 else with_marks_of(version.schema.text, tuple(same))
