"""Bodies as JSON text, by the schemas of a catalogue."""

from typing import Final, final

from maxam.avro.json.decoding import ValueDecodeError
from maxam.avro.json.texts import JsonTexts, json_texts
from maxam.pipeline.catalogue import Catalogue
from maxam.records import Validation


@final
class ValueTexts:
    """Turns bodies into JSON text."""

    def __init__(self, catalogue: Catalogue, *, without_pii: bool = False) -> None:
        """Decode by the schemas of a catalogue; arguments are those of `decoding.with_values`."""
        self._catalogue: Final = catalogue
        self._without_pii: Final = without_pii
        self._texts: Final[dict[tuple[str, str, bytes], JsonTexts | None]] = {}

    def text(self, validation: Validation, body: bytes, length: int) -> str | None:
        """Return the datum in a body as JSON text, or None; see `decoding.with_values`. A negative length is that of the rest of the body."""
        name, fingerprint = validation.schema, validation.schema_fingerprint
        if not name or not fingerprint or not body:
            return None
        key = (name, validation.schema_version, fingerprint)
        if key not in self._texts:
            self._texts[key] = self._writer(*key)
        texts = self._texts[key]
        if texts is None:
            return None
        start = validation.value_offset
        try:
            return texts.text(body, start, len(body) if length < 0 else start + length)
        except ValueDecodeError:
            return None

    def _writer(self, name: str, version: str, fingerprint: bytes) -> JsonTexts | None:
        text = self._catalogue.writer(name, version, fingerprint, marked=self._without_pii)
        try:
            return None if text is None else json_texts(text.encode(), self._without_pii)
        except ValueDecodeError:
            return None
