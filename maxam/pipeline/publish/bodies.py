"""Values to bodies: JSON or rows of a table (`maxam.avro.json.encoding`), encoded by the rule of a destination."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from maxam.avro.json.encoding import encode_body, encode_value
from maxam.avro.registry import Registry, load_registry
from maxam.avro.registry_file import FINGERPRINTS, REGISTRY_FILE
from maxam.avro.rule import DATUM, NONE, Rule
from maxam.config import Limits
from maxam.errors import SchemaError
from maxam.pipeline.errors import PipelineError
from maxam.records import Headers, Rejection

RULES_MAX: Final = 100_000  # destinations whose rule is remembered


@final
class BodyEncoder:
    """Encodes values by the newest minor of the type that their destination carries."""

    def __init__(self, registry: Registry) -> None:
        self._registry: Final = registry
        self._fingerprint_bytes: Final = FINGERPRINTS[registry.fingerprint]
        self._rules: Final[dict[str, Rule | None]] = {}

    @classmethod
    def read(cls, folder: Path) -> "BodyEncoder":
        """Return the encoder of a schema folder.

        Raises:
            SchemaError: The folder cannot be read.
            ConfigurationError: A file in it is not valid.
        """
        return cls(load_registry(read_texts(folder), Limits()))

    def encode(self, destination: str, value: object) -> tuple[bytes, dict[str, str]]:
        """Return the body of `value`, and the headers that its SEND needs.

        Raises:
            PipelineError: No rule covers the destination, or the rule has no schema.
            ValueEncodeError: The value does not fit the schema.
        """
        rule = self.rule(destination)
        if rule is None:
            raise PipelineError("no rule of the registry covers this destination")
        if rule.encoding == NONE:
            raise PipelineError("the rule of this destination has no schema. Give the body, not a value")
        newest = self._registry.versions(rule.schema)[0]
        datum = encode_value(newest.schema.type, value, rows=True)
        keys = self._registry.envelope_keys
        body = encode_body(newest, rule.encoding, datum, keys, self._fingerprint_bytes, destination)
        # without a version the newest minor is tried first, and that is ours
        needed = {"schema-version": newest.minor} if rule.encoding == DATUM and rule.version_required else {}
        return body, needed

    def problem(self, destination: str, body: bytes, headers: Mapping[str, str]) -> Rejection | None:
        """Return why the gateway, with this registry, would reject a body. None if it would not. A body may be empty."""
        rule = self.rule(destination)
        if rule is None:
            return Rejection("no-rule", "no rule of the registry covers this destination")
        if not body:
            return None
        pairs: Headers = tuple([(name.encode(), text.encode()) for name, text in headers.items()])
        judged = rule.validate(destination.encode(), pairs, body)
        return judged if isinstance(judged, Rejection) else None

    def rule(self, destination: str) -> Rule | None:
        """Give the rule of a destination."""
        try:
            return self._rules[destination]
        except KeyError:
            if len(self._rules) >= RULES_MAX:
                self._rules.clear()
            rule = self._rules[destination] = self._registry.rule_for(destination)
            return rule


def read_texts(folder: Path) -> dict[str, bytes]:
    """Read the files of a schema folder, as `load_registry` wants them.

    Raises:
        SchemaError: It cannot be read.
    """
    if not (folder / REGISTRY_FILE).is_file():
        raise SchemaError(f"{folder} is not a schema folder: it has no {REGISTRY_FILE}. Give one with --schemas")
    try:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in (".avsc", ".toml", ".lock") and not path.name.startswith(".")
        }
    except OSError as error:
        raise SchemaError(f"{folder} cannot be read: {error}") from error
