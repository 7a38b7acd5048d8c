"""The schemas by which the bodies of a journal were judged: those that the journal keeps, and those of a schema folder."""

from pathlib import Path
from typing import Final, final

from maxam.avro.folder import read_registry
from maxam.config import Limits
from maxam.journal.schema_texts import SchemaTexts
from maxam.pipeline.errors import PipelineError


@final
class Catalogue:
    """All schemas that a journal kept, and those of a schema folder beside it.

    Holds texts only: it pickles small, and an executor needs neither folder.

    Attributes:
        unreadable: Path and reason of each file of the journal that should hold a schema and does not. That schema may still be
            in the schema folder.
    """

    def __init__(self, texts: SchemaTexts) -> None:
        """Hold what `load` read."""
        self._texts: Final = texts
        self.unreadable: Final = tuple(texts.problems)

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
        if not (journal / "schemas").is_dir() and not (journal / "segments").is_dir():
            raise PipelineError(f"{journal} is not a journal's folder: it has neither segments/ nor schemas/")
        texts = SchemaTexts()
        try:
            texts.read(str(journal))
        except OSError as error:
            raise PipelineError(f"cannot read {journal / 'schemas'}: {error.strerror}") from error
        if schemas is not None:
            registry = read_registry(schemas, Limits())
            for name in registry.types():
                for version in reversed(registry.versions(name)):
                    texts.add(name, version.minor, version.schema.text)
        return cls(texts)

    def writer(self, schema: str, version: str, fingerprint: bytes, *, marked: bool = False) -> str | None:
        """Return the text of the schema by which a datum was judged, or None if it is in neither folder.

        Args:
            schema: Full type name with the major version.
            version: The minor that the journal names.
            fingerprint: 8 bytes (CRC-64-AVRO, little-endian) or 32 (SHA-256).
            marked: With the marks of personal fields of every text that has the fingerprint.
        """
        find = self._texts.marked if marked else self._texts.text
        text = find(schema, version, fingerprint)
        return None if text is None else text.decode()

    def types(self) -> dict[str, list[tuple[str, str]]]:
        """Return minor and text of each schema by full type name, oldest first. Texts of unknown minor come first, as ""."""
        return {name: [(minor, text.decode()) for minor, text in texts] for name, texts in self._texts.types().items()}
