"""The texts of schemas that a journal keeps, with which its values are read though the registry has none of them any more."""

import json
from pathlib import Path
from typing import Final, final

from maxam.avro.fingerprint import crc_64_avro, sha_256
from maxam.avro.schema import full_name, parse_schema, read_source
from maxam.errors import ConfigurationError
from maxam.records import Judgement


@final
class JournalSchemas:
    """Looks for texts as they are asked for.

    Attributes:
        problems: What could not be read so far, one line each.
    """

    def __init__(self, folder: Path) -> None:
        """Look in the folder of a journal."""
        self._folder: Final = folder / "schemas"
        self._known: Final[dict[tuple[str, bytes], bytes]] = {}
        self._names: Final[set[str]] = set()
        self.problems: Final[list[str]] = []

    def text(self, judgement: Judgement) -> bytes | None:
        """Return the self-contained text of the schema that judged a value, None when there is none."""
        name = judgement.schema
        if not name:
            return None
        if name not in self._names:
            self._names.add(name)
            self._read(name)
        return self._known.get((name, judgement.schema_fingerprint))

    def _read(self, name: str) -> None:
        """Read all texts of a type; those that do not hold its name are not parsed."""
        wanted = json.dumps(name.rpartition(".")[2]).encode()
        for path in sorted(self._folder.glob("*.avsc")):
            try:
                text = path.read_bytes()
                if wanted not in text and b"\\u" not in text:
                    continue
                source = read_source(path.name, text)
                if full_name(source) != name:
                    continue
                canonical = parse_schema(source).canonical
            except (OSError, ConfigurationError) as error:
                self.problems.append(f"{path}: {error}")
                continue
            for fingerprint in (crc_64_avro(canonical), sha_256(canonical)):
                self._known[name, fingerprint] = text
