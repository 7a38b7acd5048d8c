"""Values as JSON for subscribers that asked for it: each is converted once, and kept for the next subscriber.

The bytes that are kept have a limit over all subscribers. A broker without such a subscriber keeps nothing.
"""

from typing import Final, final

from maxam.avro.json.decoding import ValueDecodeError, decode_value, json_text
from maxam.avro.json.selection import Fields
from maxam.avro.judging import judging_text
from maxam.avro.personal import marks_personal
from maxam.avro.registry import Registry
from maxam.content import pack, unpack_headers
from maxam.records import Change

_KEPT_BYTES_MAX: Final = 4_194_304  # as in `wire_cache`: those who keep up ask within a batch or two
_ENTRY_BYTES: Final = 400  # of an entry beside its bytes
# A conversion in microseconds: 12 to 20 for a body of 200 bytes, up to 0.2 for each further byte
_CONVERSION_US: Final = 15
_BYTES_PER_US: Final = 8
_REPLACED: Final = frozenset((b"content-type", b"value-state"))
_JSON_LINE: Final = b"content-type:application/json\n"
_UNDECODED: Final = b"null"
_UNDECODED_LINES: Final = b"value-state:undecoded\n" + _JSON_LINE


@final
class JsonContent:
    """A value as JSON.

    Attributes:
        content: User headers and body, as `pack` of maxam/content.py makes it.
        body_at: Where in it the body begins.
        lines: Header lines of its MESSAGE besides.
        decoded: False for a value that could not be converted.
        wire: The last variant that was asked for, and the shared bytes of its MESSAGE in that. Owned by the wire cache.
    """

    __slots__ = ("body_at", "content", "decoded", "lines", "wire")

    def __init__(self, content: bytes, body_at: int, lines: bytes, decoded: bool) -> None:
        self.decoded: Final = decoded
        self.content: Final = content
        self.body_at: Final = body_at
        self.lines: Final = lines
        self.wire: tuple[int, bytes] | None = None

    @property
    def body(self) -> bytes:
        """The JSON text, copied at each access."""
        return self.content[self.body_at :]


@final
class JsonValues:
    """The newest values that were converted.

    Attributes:
        conversions: How many values were converted since the start.
        spent_us: An estimate of the time that conversions took since the counter was reset, microseconds.
    """

    __slots__ = ("_bytes_max", "_kept", "_kept_bytes", "_kept_bytes_max", "_registry", "conversions", "spent_us")

    def __init__(self, registry: Registry, bytes_max: int, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        """Begin without values; a longer body than `bytes_max` is not converted."""
        self._registry = registry
        self._kept_bytes_max: Final = kept_bytes_max
        self._bytes_max: Final = bytes_max
        self._kept: Final[dict[tuple[int, bool, Fields], JsonContent]] = {}
        self._kept_bytes = 0
        self.conversions = 0
        self.spent_us = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept, by estimate."""
        return self._kept_bytes

    def replace_registry(self, registry: Registry) -> None:
        """Convert by the schemas of another registry."""
        self._registry = registry
        self._clear()

    def content(self, change: Change, with_pii: bool, fields: Fields) -> JsonContent | None:
        """Return the value of a change as JSON, None if no schema has judged it: then it is sent as it is.

        A value that cannot be converted is `null`, with a header line.
        """
        if not change.validation.schema:
            return None
        key = (change.revision, with_pii, fields)
        found = self._kept.get(key)
        if found is None:
            found = self._convert(change, with_pii, fields)
            self.conversions += 1
            self.spent_us += _CONVERSION_US + change.body_bytes // _BYTES_PER_US
            if self._kept_bytes > self._kept_bytes_max:
                self._clear()
            self._kept[key] = found
            self._kept_bytes += _ENTRY_BYTES + 2 * len(found.content)  # a MESSAGE with the same bytes is kept too
        return found

    def _convert(self, change: Change, with_pii: bool, fields: Fields) -> JsonContent:
        headers = unpack_headers(change.content)[0] if change.content[0] else ()
        kept = tuple([header for header in headers if header[0] not in _REPLACED])
        text = judging_text(self._registry, change.validation)
        body = _UNDECODED
        lines = _UNDECODED_LINES
        if text is not None and change.body_bytes <= self._bytes_max:
            masked = not with_pii and marks_personal(text)
            try:
                value = decode_value(text, change.body, change.validation, without_pii=masked, fields=fields)
            except ValueDecodeError:
                pass  # its schema is another one now, or cannot be read
            else:
                body = json_text(value)
                lines = _JSON_LINE
        content, body_at = pack(kept, body)
        return JsonContent(content, body_at, lines, lines is _JSON_LINE)

    def _clear(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0


@final
class JsonView:
    """The part of each value that one subscription gets as JSON.

    Attributes:
        fields: Paths of the selected fields. Empty for all.
        with_pii: The principal may see personal fields.
    """

    __slots__ = ("_values", "fields", "with_pii")

    def __init__(self, values: JsonValues, fields: Fields, with_pii: bool) -> None:
        self._values: Final = values
        self.fields: Final = fields
        self.with_pii = with_pii

    def content(self, change: Change) -> JsonContent | None:
        """Return the value of a change as JSON, None if no schema has judged it: then it is sent as it is."""
        return self._values.content(change, self.with_pii, self.fields)

    def take_spent_us(self) -> int:
        """Return an estimate of the time that conversions took since the last call, microseconds."""
        spent_us = self._values.spent_us
        self._values.spent_us = 0
        return spent_us
