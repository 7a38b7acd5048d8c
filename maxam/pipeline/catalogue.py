"""The schemas by which the bodies of a journal were judged: found by name, minor and fingerprint, each a self-contained text."""

from collections.abc import Mapping
from hashlib import sha256 as sha256_of
from pathlib import Path
from typing import Final, final

from maxam.avro.fingerprint import crc_64_avro, sha_256
from maxam.avro.schema import full_name, parse_schema, read_source
from maxam.config import Limits
from maxam.errors import ConfigurationError, SchemaError
from maxam.pipeline.errors import PipelineError


@final
class Catalogue:
    """All schemas that a journal kept, and those of a schema folder beside it.

    Holds texts only: it pickles small, and an executor needs neither folder.

    Attributes:
        unreadable: Path and reason of each file of the journal that should hold a schema and does not. What it judged may still
            be found in the schema folder.
    """

    def __init__(
        self,
        kept: Mapping[tuple[str, bytes], str],
        minors: Mapping[tuple[str, str], tuple[str, tuple[bytes, bytes]]],
        types: Mapping[str, list[tuple[str, str]]],
        unreadable: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Hold what `load` read.

        Args:
            kept: Text by full type name and fingerprint, of 8 bytes and of 32.
            minors: Text and both fingerprints by full type name and minor, from the schema folder.
            types: See `types`.
            unreadable: See the class.
        """
        self._kept: Final = dict(kept)
        self._minors: Final = dict(minors)
        self._types: Final = dict(types)
        self.unreadable: Final = unreadable

    @classmethod
    def load(cls, journal: Path, schemas: Path | None) -> "Catalogue":
        """Read the schemas of a journal's folder and of a schema folder.

        Args:
            journal: The journal's folder, which holds `schemas/`.
            schemas: A registry's folder as the gateway reads it, for the minor of each text; None for none.

        Raises:
            ConfigurationError: The schema folder cannot be used.
            PipelineError: The journal's folder cannot be read.
        """
        unreadable: list[tuple[str, str]] = []
        kept: dict[tuple[str, bytes], str] = {}
        types: dict[str, list[tuple[str, str]]] = {}
        for path in _texts(journal):
            try:
                text = path.read_bytes()
                if sha256_of(text).hexdigest() != path.stem:
                    raise SchemaError("the text does not match the SHA-256 in its name")
                source = read_source(path.name, text)
                name = full_name(source)
                canonical = parse_schema(source).canonical
            except (OSError, ConfigurationError) as error:
                unreadable.append((str(path), str(error)))
                continue
            types.setdefault(name, []).append(("", text.decode()))
            for fingerprint in (crc_64_avro(canonical), sha_256(canonical)):
                kept[name, fingerprint] = text.decode()  # the newest of those that differ only in what no byte shows

        minors: dict[tuple[str, str], tuple[str, tuple[bytes, bytes]]] = {}
        if schemas is not None:
            from maxam.gateway.sources import read_registry  # noqa: PLC0415 - an executor has no use for the gateway

            registry = read_registry(schemas, Limits())
            for name in registry.types():
                listed: list[tuple[str, str]] = []
                for version in reversed(registry.versions(name)):
                    folder_text = version.schema.text.decode()
                    minors[name, version.minor] = folder_text, (version.crc_64, version.sha_256)
                    listed.append((version.minor, folder_text))
                    for fingerprint in (version.crc_64, version.sha_256):
                        kept.setdefault((name, fingerprint), folder_text)
                known = {text for _, text in listed}
                types[name] = [entry for entry in types.get(name, ()) if entry[1] not in known] + listed
        return cls(kept, minors, types, tuple(unreadable))

    def writer(self, schema: str, version: str, fingerprint: bytes) -> str | None:
        """Give the text of the schema by which a datum was judged, or None when nobody kept it.

        Two minors that differ only in logical types, defaults or aliases share a fingerprint: the schema folder tells them apart;
        without one it is the text that the journal was given last.

        Args:
            schema: Full type name with the major version.
            version: The minor that the journal names.
            fingerprint: 8 bytes (CRC-64-AVRO, little-endian) or 32 (SHA-256).
        """
        minor = self._minors.get((schema, version))
        if minor is not None and fingerprint in minor[1]:
            return minor[0]
        return self._kept.get((schema, fingerprint))

    def types(self) -> dict[str, list[tuple[str, str]]]:
        """Give minor and text of each schema by full type name, oldest first; texts whose minor nobody knows, as "", before."""
        return {name: list(self._types[name]) for name in sorted(self._types)}


def _texts(journal: Path) -> list[Path]:
    """List the journal's schema files, oldest first."""
    folder = journal / "schemas"
    if not folder.is_dir():
        if not (journal / "segments").is_dir():
            raise PipelineError(f"{journal} is not a journal's folder: it has neither segments/ nor schemas/")
        return []
    try:
        paths = [path for path in folder.iterdir() if path.suffix == ".avsc"]
        return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    except OSError as error:
        raise PipelineError(f"cannot read {folder}: {error.strerror}") from error
