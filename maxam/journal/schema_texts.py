"""The schema texts that a journal keeps, by which its values are decoded though no registry may still hold them.

A value identifies its schema by type, version and fingerprint. The fingerprint is of the canonical form, which has no logical
types, defaults, docs or marks of personal fields: several texts may share it. The text of that version is preferred, if a
registry has it. The next choice is the longest, as versions add attributes. Neither file times nor hashes matter.
A field is personal if any text of the fingerprint marks it.
"""

import hashlib
import json
from typing import Final, final

from maxam.avro.fingerprint import crc_64_avro, sha_256
from maxam.avro.personal import with_marks_of
from maxam.avro.schema import full_name, parse_schema
from maxam.avro.source import read_source
from maxam.errors import ConfigurationError, SchemaError
from maxam.journal.disk import OsDisk

_FOLDER: Final = "schemas"
_SUFFIX: Final = ".avsc"


@final
class SchemaTexts:
    """Texts by type and fingerprint, of 8 bytes and of 32.

    Attributes:
        problems: Path and reason of each file of the journal that should hold a schema and does not.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._kept: Final[dict[tuple[str, bytes], list[bytes]]] = {}  # shortest first
        self._minors: Final[dict[tuple[str, str], tuple[bytes, tuple[bytes, bytes]]]] = {}
        self._types: Final[dict[str, list[bytes]]] = {}  # of the journal
        self.problems: Final[list[tuple[str, str]]] = []

    def read(self, journal: str, name: str = "") -> None:
        """Read the texts that a journal's folder keeps.

        Args:
            journal: The folder. One that keeps no texts adds none.
            name: Only the texts of this type; those that do not hold its name are not parsed. Empty: all texts.

        Raises:
            OSError: The folder cannot be listed.
        """
        disk = OsDisk()
        folder = f"{journal}/{_FOLDER}"
        wanted = json.dumps(name.rpartition(".")[2]).encode() if name else b""
        try:
            names = sorted(disk.names(folder))
        except FileNotFoundError:
            return
        for file in names:
            path = f"{folder}/{file}"
            if not file.endswith(_SUFFIX):
                continue
            try:
                text = disk.read(path, 0, disk.size(path))
                if wanted not in text and b"\\u" not in text:
                    continue
                if hashlib.sha256(text).hexdigest() + _SUFFIX != file:
                    raise SchemaError("the text does not match the SHA-256 in its name")
                source = read_source(file, text)
                type_name = full_name(source)
                if name and type_name != name:
                    continue
                self._keep(type_name, text, parse_schema(source).canonical)
            except (OSError, ConfigurationError) as error:
                self.problems.append((path, str(error)))
                continue
            self._types.setdefault(type_name, []).append(text)

    def add(self, name: str, minor: str, text: bytes) -> None:
        """Add the text of one version that a registry holds."""
        fingerprints = self._keep(name, text, parse_schema(read_source(name, text, minor)).canonical)
        self._minors[name, minor] = text, fingerprints

    def text(self, name: str, minor: str, fingerprint: bytes) -> bytes | None:
        """Return the text by which a value was judged; None if there is none.

        Args:
            name: Full name of the type.
            minor: Version that the value names.
            fingerprint: 8 bytes (CRC-64-AVRO, little-endian) or 32 (SHA-256).
        """
        known = self._minors.get((name, minor))
        if known is not None and fingerprint in known[1]:
            return known[0]
        kept = self._kept.get((name, fingerprint))
        return kept[-1] if kept else None

    def marked(self, name: str, minor: str, fingerprint: bytes) -> bytes | None:
        """Return the same text as `text`, in which each field is marked that any text of the fingerprint marks as personal."""
        text = self.text(name, minor, fingerprint)
        return None if text is None else with_marks_of(text, tuple(self._kept[name, fingerprint]))

    def types(self) -> dict[str, list[tuple[str, bytes]]]:
        """Return version and text of each schema by full type name, as they were added.

        Texts of the journal whose version is in no registry come first, the shortest first, with the version "".
        """
        listed: dict[str, list[tuple[str, bytes]]] = {}
        for (name, minor), (text, _) in self._minors.items():
            listed.setdefault(name, []).append((minor, text))
        for name, texts in self._types.items():
            known = {text for _, text in listed.get(name, ())}
            unnamed = sorted([text for text in texts if text not in known], key=_order)
            listed[name] = [("", text) for text in unnamed] + listed.get(name, [])
        return {name: listed[name] for name in sorted(listed)}

    def _keep(self, name: str, text: bytes, canonical: bytes) -> tuple[bytes, bytes]:
        fingerprints = crc_64_avro(canonical), sha_256(canonical)
        for fingerprint in fingerprints:
            kept = self._kept.setdefault((name, fingerprint), [])
            if text not in kept:
                kept.append(text)
                kept.sort(key=_order)
        return fingerprints


def _order(text: bytes) -> tuple[int, bytes]:
    return len(text), text
