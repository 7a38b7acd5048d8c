"""Values to bodies and back, in the encodings of the registry's rules."""

import io
import json
from pathlib import Path
from typing import Any, Final, cast, final

import fastavro
from fastavro.types import Schema

from maxam.avro.envelope import ENVELOPE_TEXT
from maxam.avro.registry import Registry, load_registry
from maxam.avro.rule import ENVELOPE, Rule
from maxam.demo.machines import Value
from maxam.errors import ClientError, SchemaError
from maxam.records import Rejection

_ENVELOPE: Final = fastavro.parse_schema(json.loads(ENVELOPE_TEXT))


def read_registry(folder: Path) -> Registry:
    """Load a schema folder.

    Raises:
        SchemaError: It is not there or cannot be used.
    """
    if not folder.is_dir():
        raise SchemaError(f"no schema folder {folder}; start the demo where `schemas/` is, or set --schemas FOLDER")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return load_registry({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})


@final
class Bodies:
    """Encodes and decodes what destinations carry, by the newest minor of each type."""

    def __init__(self, registry: Registry) -> None:
        self._registry: Final = registry
        self._rules: Final[dict[str, Rule]] = {}  # by destination: bounded by the demo's topics
        self._schemas: Final[dict[tuple[str, str], Schema]] = {}

    def encode(self, destination: str, value: Value | None) -> bytes:
        """Return the body of `value`. None makes the body that deletes the topic.

        Raises:
            SchemaError: The registry has no rule for the destination.
        """
        rule = self._rule(destination)
        keys = self._registry.envelope_keys
        if value is None:
            if rule.encoding != ENVELOPE:
                return b""
            return _written(_ENVELOPE, {"content": [{"key": keys.tombstone, "value": b""}]})
        newest = self._registry.versions(rule.schema)[0]
        datum = _written(self._schema(rule.schema, newest.minor), value)
        if rule.encoding == ENVELOPE:
            items = ((keys.fingerprint, newest.crc_64), (keys.topic, destination.encode()), (keys.body, datum))
            return _written(_ENVELOPE, {"content": [{"key": key, "value": data} for key, data in items]})
        return newest.head(rule.encoding) + datum

    def decode(self, destination: str, body: bytes) -> Value:
        """Return the value inside a body that is not a deletion.

        Raises:
            ClientError: It does not fit the schema.
        """
        judged = self._rule(destination).validate(destination.encode(), (), body)
        if isinstance(judged, Rejection):
            raise ClientError(f"what came for {destination} does not fit its schema: {judged.reason}")
        end = len(body) if judged.value_length < 0 else judged.value_offset + judged.value_length
        datum = io.BytesIO(body[judged.value_offset : end])
        schema = self._schema(judged.schema, judged.schema_version)
        return cast("Value", fastavro.schemaless_reader(datum, schema, None, return_record_name=True))

    def _rule(self, destination: str) -> Rule:
        rule = self._rules.get(destination)
        if rule is None:
            rule = self._registry.rule_for(destination)
            if rule is None:
                raise SchemaError(f"registry.toml: no rule for {destination}. The demo needs the shipped schemas")
            self._rules[destination] = rule
        return rule

    def _schema(self, type_name: str, minor: str) -> Schema:
        schema = self._schemas.get((type_name, minor))
        if schema is None:
            version = self._registry.schema(type_name, minor)
            if version is None:
                raise SchemaError(f"the registry has no {type_name} {minor}; the demo needs the shipped schemas")
            schema = self._schemas[type_name, minor] = fastavro.parse_schema(json.loads(version.schema.text))
        return schema


def _written(schema: Schema, value: Any) -> bytes:  # noqa: ANN401 - a datum has any shape
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()
