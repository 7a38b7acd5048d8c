"""Bodies as JSON text, by the schemas of a catalogue."""

from typing import Final, final

from maxam.avro.json.decoding import ValueDecodeError, decode_value
from maxam.pipeline.catalogue import Catalogue
from maxam.records import Validation
from maxam.terminal.escaping import json_line


@final
class ValueTexts:
    """Turns bodies into JSON text."""

    def __init__(self, catalogue: Catalogue, *, without_pii: bool = False) -> None:
        """Decode by the schemas of a catalogue; arguments are those of `decoding.with_values`."""
        self._catalogue: Final = catalogue
        self._without_pii: Final = without_pii
        self._texts: Final[dict[tuple[str, str, bytes], bytes | None]] = {}

    def text(self, validation: Validation, body: bytes) -> str | None:
        """Return the datum in a body as JSON text, or None; see `decoding.with_values`."""
        name, fingerprint = validation.schema, validation.schema_fingerprint
        if not name or not fingerprint or not body:
            return None
        key = (name, validation.schema_version, fingerprint)
        if key not in self._texts:
            text = self._catalogue.writer(*key, marked=self._without_pii)
            self._texts[key] = None if text is None else text.encode()
        schema = self._texts[key]
        if schema is None:
            return None
        try:
            return json_line(decode_value(schema, body, validation, without_pii=self._without_pii))
        except ValueDecodeError:
            return None
