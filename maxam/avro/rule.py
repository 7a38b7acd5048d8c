"""Judge the bodies of SENDs by the rule of their destination."""

from collections.abc import Mapping, Sequence
from typing import Final, final

from maxam.avro.envelope import (
    CONFLUENT_HEADER_BYTES,
    CONFLUENT_MARKER,
    ID_BYTES,
    SINGLE_OBJECT_HEADER_BYTES,
    SINGLE_OBJECT_MARKER,
    EnvelopeKeys,
    Item,
    open_envelope,
)
from maxam.avro.explainer import Fault
from maxam.avro.fingerprint import CRC_BYTES, SHA_BYTES, crc_64_avro, sha_256
from maxam.avro.schema import Schema
from maxam.avro.walker import Walker
from maxam.counting import counted
from maxam.globs import Glob
from maxam.records import UNJUDGED, Headers, Rejection, Validation

REASON_CHARACTERS_MAX: Final = 400  # a reason is one header line that people read
_KNOWN_SHOWN_MAX: Final = 4  # versions in a reason, the newest first; listings have all
_FOUND_CHARACTERS_MAX: Final = 100  # of what a sender wrote

DATUM: Final = "datum"
SINGLE_OBJECT: Final = "single-object"
ENVELOPE: Final = "envelope"
CONFLUENT: Final = "confluent"
NONE: Final = "none"
ENCODINGS: Final = (DATUM, SINGLE_OBJECT, ENVELOPE, CONFLUENT, NONE)


def schema_id_of(text_sha256: str) -> int:
    """Return the id of a schema whose self-contained text has this SHA-256, in hexadecimal."""
    return int(text_sha256[-2 * ID_BYTES :], 16) & 0x7FFFFFFF  # Confluent's ids are signed numbers of 32 bits


@final
class SchemaVersion:
    """One minor version of a named type.

    Attributes:
        type_name: Full name with the major version, such as `egm.EGMStatus_v1`.
        minor: Such as `1.0`.
        path: Its file, relative to the schema folder.
        schema: The parsed schema with its self-contained text.
        walker: Checks bytes against it.
        crc_64: CRC-64-AVRO fingerprint, 8 bytes, little-endian.
        sha_256: SHA-256 fingerprint, 32 bytes.
        text_sha256: SHA-256 of the self-contained text, 64 hexadecimal digits: its name in the journal.
        schema_id: Low 31 bits of that SHA-256: the id of the text in encoding `confluent` and in its registry's API.
    """

    __slots__ = ("crc_64", "minor", "path", "schema", "schema_id", "sha_256", "text_sha256", "type_name", "walker")

    def __init__(self, type_name: str, minor: str, path: str, schema: Schema) -> None:
        self.type_name: Final = type_name
        self.minor: Final = minor
        self.path: Final = path
        self.schema: Final = schema
        self.walker: Final = Walker(schema.type)
        self.crc_64: Final = crc_64_avro(schema.canonical)
        self.sha_256: Final = sha_256(schema.canonical)
        self.text_sha256: Final = sha_256(schema.text).hex()
        self.schema_id: Final = schema_id_of(self.text_sha256)

    def head(self, encoding: str) -> bytes:
        """Return the bytes before the datum in a body of an encoding other than `envelope`. A bare datum has none."""
        if encoding == SINGLE_OBJECT:
            return SINGLE_OBJECT_MARKER + self.crc_64
        if encoding == CONFLUENT:
            return CONFLUENT_MARKER + self.schema_id_bytes
        return b""

    @property
    def schema_id_bytes(self) -> bytes:
        """The id as bodies carry it."""
        return self.schema_id.to_bytes(ID_BYTES, "big")


@final
class _Validator:
    """One minor with the validation that all bodies share whose datum it accepts at the rule's fixed place."""

    __slots__ = ("minor", "validation", "walker")

    def __init__(self, version: SchemaVersion, validation: Validation) -> None:
        self.minor: Final = version.minor
        self.walker: Final = version.walker
        self.validation: Final = validation


@final
class Rule:
    """The format of the values of one glob's destinations. Immutable.

    Attributes:
        glob: Pattern of the destinations that it covers.
        encoding: One of ENCODINGS.
        schema: Full type name, empty for encoding `none`.
        version_required: A bare datum must come with a `schema-version` header.
        deletion: Validation of an empty body, which no schema checks. It has the type and no version.
        candidate: The version that is only tried, or None.
        shadow: The same rule as if the candidate were the only version, for trials without effect. None without a candidate.
        rejected_bodies_stored: True if rejected bodies may be kept for operators. Otherwise only length and SHA-256 are kept.
    """

    __slots__ = (
        "_fingerprints",
        "_ids",
        "_keys",
        "_minors",
        "_strangers",
        "_validators",
        "candidate",
        "deletion",
        "encoding",
        "glob",
        "rejected_bodies_stored",
        "schema",
        "shadow",
        "version_required",
    )

    def __init__(
        self,
        glob: Glob,
        encoding: str,
        schema: str,
        versions: Sequence[SchemaVersion],
        version_required: bool,
        fingerprint_bytes: int,
        keys: EnvelopeKeys,
        known: Mapping[bytes, Sequence[SchemaVersion]],
        candidate: SchemaVersion | None = None,
        rejected_bodies_stored: bool = True,
    ) -> None:
        """Bind a glob to the versions of its type.

        Args:
            glob: Pattern of the destinations that it covers.
            encoding: One of ENCODINGS.
            schema: Full type name, empty for encoding `none`.
            versions: Newest first, empty for encoding `none`.
            version_required: A bare datum must come with a `schema-version` header.
            fingerprint_bytes: Length of the fingerprints that validations carry: CRC_BYTES or SHA_BYTES.
            keys: Keys of an envelope's items.
            known: Every schema of the registry by either fingerprint, and by the 4 bytes of its id, big-endian.
            candidate: A version of the same type that judges nothing and is only tried. It is not among `versions`.
            rejected_bodies_stored: True if rejected bodies may be kept for operators.
        """
        self.glob: Final = glob
        self.encoding: Final = encoding
        self.schema: Final = schema
        self.version_required: Final = version_required
        self.deletion: Final = UNJUDGED if encoding == NONE else Validation(encoding, schema, "", b"")
        self.rejected_bodies_stored: Final = rejected_bodies_stored
        self.candidate: Final = candidate
        self.shadow: Final[Rule | None] = (
            None
            if candidate is None
            else Rule(glob, encoding, schema, (candidate,), False, fingerprint_bytes, keys, known)
        )
        self._keys: Final = keys
        self._strangers: Final = known
        self._validators: Final[list[_Validator]] = []
        self._minors: Final[dict[bytes, _Validator]] = {}
        self._fingerprints: Final[dict[bytes, _Validator]] = {}
        self._ids: Final[dict[bytes, _Validator]] = {}
        for version in versions:
            fingerprint = version.crc_64 if fingerprint_bytes == CRC_BYTES else version.sha_256
            offset = len(version.head(encoding))
            validator = _Validator(version, Validation(encoding, schema, version.minor, fingerprint, offset))
            self._validators.append(validator)
            self._minors[version.minor.encode()] = validator
            self._fingerprints.setdefault(version.crc_64, validator)  # two minors may share one: the newest judges
            self._fingerprints.setdefault(version.sha_256, validator)
            if encoding == CONFLUENT:
                self._ids.setdefault(version.schema_id_bytes, validator)

    def validate(self, destination: bytes, headers: Headers, body: bytes) -> Validation | Rejection:
        """Return the validation of a body by the rule of its destination.

        Args:
            destination: Of the SEND; only an envelope's topic item is compared with it.
            headers: User headers of the SEND; `schema-version` alone is read.
            body: Not empty.

        Returns:
            The validation, shared by bodies of the same minor version unless the body is an envelope. Otherwise the rejection.
        """
        if self.encoding == DATUM:
            validator = self._datum(headers, body, 0, len(body), None)
            return validator if isinstance(validator, Rejection) else validator.validation
        if self.encoding == SINGLE_OBJECT:
            return self._single_object(body)
        if self.encoding == ENVELOPE:
            return self._envelope(destination, headers, body)
        if self.encoding == CONFLUENT:
            return self._confluent(body)
        return UNJUDGED

    def validate_forwarded(self, destination: bytes, headers: Headers, body: bytes) -> Validation | Rejection:
        """Return the validation of a body that a bridge forwards: an envelope's topic may be in the store that it comes from."""
        if self.encoding == ENVELOPE:
            envelope = open_envelope(body, self._keys)
            if not isinstance(envelope, Fault) and envelope.topic is not None:
                start = envelope.topic.offset
                origin = body[start : start + envelope.topic.length]
                if origin.partition(b"/")[2] == destination.partition(b"/")[2]:
                    return self.validate(origin, headers, body)
        return self.validate(destination, headers, body)

    def _datum(self, headers: Headers, body: bytes, start: int, end: int, item: Item | None) -> _Validator | Rejection:
        for name, value in headers:
            if name == b"schema-version":
                validator = self._minors.get(value)
                if validator is None:
                    text = _quoted(value)
                    candidate = " it is the candidate, which is only tried here;" if self._tries("minor", value) else ""
                    return self._rejection(
                        "unknown-schema-version",
                        f"{self.schema} has no version {text};{candidate} known: {self._known_minors()}",
                        expected=f"schema-version {self._known_minors()}",
                        found=text,
                    )
                if validator.walker.accepts(body, start, end):
                    return validator
                return self._mismatch(validator, body, start, end, item)
        if self.version_required:
            return self._rejection(
                "schema-version-required",
                f"{self.schema} must be sent with a schema-version header, known: {self._known_minors()}",
                expected=f"schema-version {self._known_minors()}",
                found="no such header",
            )
        for validator in self._validators:
            if validator.walker.accepts(body, start, end):
                return validator
        return self._mismatch(self._validators[0], body, start, end, item, len(self._validators) - 1)

    def _single_object(self, body: bytes) -> Validation | Rejection:
        if not body.startswith(SINGLE_OBJECT_MARKER) or len(body) < SINGLE_OBJECT_HEADER_BYTES:
            return self._misshapen(
                "bad-single-object", "C3 01 and a fingerprint of 8 bytes", body[:SINGLE_OBJECT_HEADER_BYTES]
            )
        validator = self._writer(body[len(SINGLE_OBJECT_MARKER) : SINGLE_OBJECT_HEADER_BYTES], 2, None)
        if isinstance(validator, Rejection):
            return validator
        if not validator.walker.accepts(body, SINGLE_OBJECT_HEADER_BYTES, len(body)):
            return self._mismatch(validator, body, SINGLE_OBJECT_HEADER_BYTES, len(body), None)
        return validator.validation

    def _confluent(self, body: bytes) -> Validation | Rejection:
        if not body.startswith(CONFLUENT_MARKER) or len(body) < CONFLUENT_HEADER_BYTES:
            return self._misshapen(
                "bad-confluent", f"00 and a schema id of {ID_BYTES} bytes", body[:CONFLUENT_HEADER_BYTES]
            )
        key = body[len(CONFLUENT_MARKER) : CONFLUENT_HEADER_BYTES]
        validator = self._ids.get(key)
        if validator is None:
            shown = str(int.from_bytes(key, "big"))
            return self._unknown("unknown-schema-id", "schema-id-of-other-type", "schema id", shown, key, 1, None)
        if not validator.walker.accepts(body, CONFLUENT_HEADER_BYTES, len(body)):
            return self._mismatch(validator, body, CONFLUENT_HEADER_BYTES, len(body), None)
        return validator.validation

    def _envelope(self, destination: bytes, headers: Headers, body: bytes) -> Validation | Rejection:
        envelope = open_envelope(body, self._keys)
        if isinstance(envelope, Fault):
            return self._rejection(
                "bad-envelope",
                f"GenericEnvelope: {envelope}",
                path=envelope.path,
                expected=envelope.expected,
                found=envelope.found,
                offset=envelope.offset,
            )
        item = envelope.duplicate
        if item is not None:
            name = self._item_name(item)
            return self._rejection(
                "envelope-duplicate-item",
                f"the envelope has more than one {name} item: item {item.index} (key {item.key}) is the second",
                expected=f"one {name} item",
                found="another",
                offset=item.offset,
                item=item,
            )
        topic = envelope.topic
        if topic is not None and body[topic.offset : topic.offset + topic.length] != destination:
            found = _quoted(body[topic.offset : topic.offset + topic.length])
            return self._rejection(
                "envelope-topic-mismatch",
                f"the envelope's topic is {found}, not the destination (item {topic.index}, key {topic.key})",
                expected=_quoted(destination),
                found=found,
                offset=topic.offset,
                item=topic,
            )
        tombstone = envelope.tombstone is not None
        datum = envelope.body
        if datum is None and not tombstone:
            return self._rejection(
                "envelope-empty",
                "the envelope has neither a body nor a tombstone item; their keys are "
                f"{self._keys.body} and {self._keys.tombstone}",
                expected=f"an item of key {self._keys.body} or {self._keys.tombstone}",
                found="neither",
            )

        start = 0 if datum is None else datum.offset
        length = 0 if datum is None else datum.length
        validator: _Validator | Rejection | None = None
        item = envelope.fingerprint
        if item is not None:
            validator = self._writer(body[item.offset : item.offset + item.length], item.offset, item)
            if (
                isinstance(validator, _Validator)
                and datum is not None
                and not validator.walker.accepts(body, start, start + length)
            ):
                return self._mismatch(validator, body, start, start + length, datum)
        elif datum is not None:
            validator = self._datum(headers, body, start, start + length, datum)
        if isinstance(validator, Rejection):
            return validator
        if validator is None:
            return Validation(ENVELOPE, "", "", b"", 0, 0, tombstone=True)
        by = validator.validation
        return Validation(ENVELOPE, by.schema, by.schema_version, by.schema_fingerprint, start, length, tombstone)

    @property
    def minors(self) -> list[str]:
        """The minors that judge here, newest first."""
        return [validator.minor for validator in self._validators]

    def knows(self, what: str, key: bytes) -> bool:
        """Return True if a `minor`, a `schema id` or a `fingerprint` identifies one of the versions that judge here."""
        if what == "minor":
            return key in self._minors
        return key in (self._ids if what == "schema id" else self._fingerprints)

    # Rejections

    def _writer(self, fingerprint: bytes, offset: int, item: Item | None) -> _Validator | Rejection:
        """Return the version that a fingerprint identifies, or the rejection."""
        validator = self._fingerprints.get(fingerprint)
        if validator is not None:
            return validator
        shown = fingerprint[:SHA_BYTES].hex() + ("..." if len(fingerprint) > SHA_BYTES else "")
        shown = shown or "of no bytes"
        return self._unknown(
            "unknown-fingerprint", "fingerprint-of-other-type", "fingerprint", shown, fingerprint, offset, item
        )

    def _unknown(
        self, result: str, result_of_other: str, what: str, shown: str, key: bytes, offset: int, item: Item | None
    ) -> Rejection:
        """Return a rejection that lists the versions of the rule, and describes a version that it does not have."""
        texts = [f"{text} ({validator.minor})" for text, validator in self._known(len(key))]
        known = _some(texts)
        possible = len(key) == ID_BYTES if self.encoding == CONFLUENT else len(key) in (CRC_BYTES, SHA_BYTES)
        if not possible:
            known = f"{known}; it has {counted(len(key), 'byte')}, not {CRC_BYTES} or {SHA_BYTES}"
        elif key[::-1] in self._fingerprints:
            known = f"{known}; its bytes are in reverse order"
        elif self._tries(what, key):
            known = f"{known}; it is the candidate, which is only tried here"
        strangers = self._strangers.get(key) if possible else None
        if strangers and strangers[0].type_name != self.schema:
            result = result_of_other
            other = f"{strangers[0].type_name} {strangers[0].minor}"
            reason = f"{what} {shown} is of {other}, expected {self.schema}: {known}"
        else:
            reason = f"{what} {shown}; {self.schema} knows {known}"
        if item is not None:
            reason = f"{reason} (item {item.index}, key {item.key})"
        return self._rejection(result, reason, expected=f"{what} {_some(texts)}", found=shown, offset=offset, item=item)

    def _known(self, size: int) -> list[tuple[str, _Validator]]:
        """Return the identifiers of the rule's versions, newest first, in the form of an identifier of `size` bytes."""
        if size == ID_BYTES and self.encoding == CONFLUENT:
            return [(str(int.from_bytes(key, "big")), validator) for key, validator in self._ids.items()]
        size = size if size == SHA_BYTES else CRC_BYTES
        return [(text.hex(), validator) for text, validator in self._fingerprints.items() if len(text) == size]

    def _known_minors(self) -> str:
        return _some(self.minors)

    def _tries(self, what: str, key: bytes) -> bool:
        return self.shadow is not None and self.shadow.knows(what, key)

    def _item_name(self, item: Item) -> str:
        keys = self._keys
        if item.key == keys.body:
            return "body"
        if item.key == keys.fingerprint:
            return "fingerprint"
        return "topic" if item.key == keys.topic else "tombstone"

    def _mismatch(
        self, validator: _Validator, body: bytes, start: int, end: int, item: Item | None, older: int = 0
    ) -> Rejection:
        """Return the reason why a version did not accept a datum, and that `older` ones did not accept it either."""
        fault = validator.walker.explain(body, start, end) or Fault("", "a value", "something else", start)
        reason = f"{_end(self.schema)} {validator.minor}: {fault}"
        if item is not None:
            reason = f"{reason} (item {item.index}, key {item.key})"
        if older:
            reason = f"{reason}; nor is it of {_some(self.minors[1:])}"
        return self._rejection(
            "schema-mismatch",
            reason,
            schema_version=validator.minor,
            path=fault.path,
            expected=fault.expected,
            found=fault.found,
            offset=fault.offset,
            item=item,
        )

    def _misshapen(self, result: str, expected: str, head: bytes) -> Rejection:
        found = head.hex(" ")
        return self._rejection(result, f"expected {expected}, found {found}", expected=expected, found=found, offset=0)

    def _rejection(
        self,
        result: str,
        text: str,
        schema_version: str = "",
        path: str = "",
        expected: str = "",
        found: str = "",
        offset: int = -1,
        item: Item | None = None,
    ) -> Rejection:
        return Rejection(
            result,
            one_line(text, REASON_CHARACTERS_MAX),
            self.schema,
            schema_version,
            one_line(path, REASON_CHARACTERS_MAX),
            one_line(expected, REASON_CHARACTERS_MAX),
            one_line(found, REASON_CHARACTERS_MAX),
            offset,
            -1 if item is None else item.index,
            0 if item is None else item.key,
        )


def one_line(text: str, characters_max: int) -> str:
    """Make one printable line of bounded length, whatever a sender put into it."""
    if not text.isprintable():
        text = "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in text])
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def _quoted(data: bytes) -> str:
    """Show what a sender wrote where text was expected."""
    text = data[: 4 * _FOUND_CHARACTERS_MAX].decode(errors="backslashreplace")
    return repr(text if len(text) <= _FOUND_CHARACTERS_MAX else text[:_FOUND_CHARACTERS_MAX] + "...")


def _some(names: list[str]) -> str:
    """List names, but not more than people read."""
    if len(names) <= _KNOWN_SHOWN_MAX:
        return ", ".join(names)
    return f"{', '.join(names[:_KNOWN_SHOWN_MAX])} and {len(names) - _KNOWN_SHOWN_MAX} more"


def _end(name: str) -> str:
    """Shorten a long name to its end, which is the most specific part. The text after it must have room too."""
    return name if len(name) <= _FOUND_CHARACTERS_MAX else f"...{name[-_FOUND_CHARACTERS_MAX:]}"
