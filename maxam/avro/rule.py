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
    open_envelope,
)
from maxam.avro.fingerprint import CRC_BYTES, SHA_BYTES, crc_64_avro, sha_256
from maxam.avro.schema import Schema
from maxam.avro.walker import Fault, Walker
from maxam.globs import Glob
from maxam.records import UNJUDGED, Headers, Judgement, Rejection

REASON_CHARACTERS_MAX: Final = 300  # a reason is one header line that people read

DATUM: Final = "datum"
SINGLE_OBJECT: Final = "single-object"
ENVELOPE: Final = "envelope"
CONFLUENT: Final = "confluent"
NONE: Final = "none"
ENCODINGS: Final = (DATUM, SINGLE_OBJECT, ENVELOPE, CONFLUENT, NONE)


def schema_id_of(text_sha256: str) -> int:
    """Give the id of a schema whose self-contained text has this SHA-256, in hexadecimal."""
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
        schema_id: Low 31 bits of that SHA-256: what the encoding `confluent` and its registry's API call the text by.
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
        """Return what stands before the datum in a body of an encoding other than `envelope`: nothing in a bare one."""
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
class _Judge:
    """One minor with the judgement that all bodies share whose datum it accepts at the rule's fixed place."""

    __slots__ = ("judgement", "minor", "walker")

    def __init__(self, version: SchemaVersion, judgement: Judgement) -> None:
        self.minor: Final = version.minor
        self.walker: Final = version.walker
        self.judgement: Final = judgement


@final
class Rule:
    """What one glob's destinations carry. Immutable.

    Attributes:
        glob: Which destinations it is for.
        encoding: One of ENCODINGS.
        schema: Full type name; empty for encoding `none`.
        version_required: A bare datum must come with a `schema-version` header.
        deletion: Judgement of an empty body, which no schema checks: whose it would be.
    """

    __slots__ = (
        "_fingerprints",
        "_ids",
        "_judges",
        "_keys",
        "_minors",
        "_strangers",
        "deletion",
        "encoding",
        "glob",
        "schema",
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
    ) -> None:
        """Bind a glob to the versions of its type.

        Args:
            glob: Which destinations it is for.
            encoding: One of ENCODINGS.
            schema: Full type name; empty for encoding `none`.
            versions: Newest first; empty for encoding `none`.
            version_required: A bare datum must come with a `schema-version` header.
            fingerprint_bytes: Length of the fingerprints that judgements carry: CRC_BYTES or SHA_BYTES.
            keys: Keys of an envelope's items.
            known: Every schema of the registry by either fingerprint, and by the 4 bytes of its id, big-endian.
        """
        self.glob: Final = glob
        self.encoding: Final = encoding
        self.schema: Final = schema
        self.version_required: Final = version_required
        self.deletion: Final = UNJUDGED if encoding == NONE else Judgement(encoding, schema, "", b"")
        self._keys: Final = keys
        self._strangers: Final = known
        self._judges: Final[list[_Judge]] = []
        self._minors: Final[dict[bytes, _Judge]] = {}
        self._fingerprints: Final[dict[bytes, _Judge]] = {}
        self._ids: Final[dict[bytes, _Judge]] = {}
        for version in versions:
            fingerprint = version.crc_64 if fingerprint_bytes == CRC_BYTES else version.sha_256
            offset = len(version.head(encoding))
            judge = _Judge(version, Judgement(encoding, schema, version.minor, fingerprint, offset))
            self._judges.append(judge)
            self._minors[version.minor.encode()] = judge
            self._fingerprints.setdefault(version.crc_64, judge)  # two minors may share one: the newest judges
            self._fingerprints.setdefault(version.sha_256, judge)
            if encoding == CONFLUENT:
                self._ids.setdefault(version.schema_id_bytes, judge)

    def judge(self, destination: bytes, headers: Headers, body: bytes) -> Judgement | Rejection:
        """Tell whether a body is what its destination carries.

        Args:
            destination: Of the SEND; only an envelope's topic item is compared with it.
            headers: User headers of the SEND.
            body: Not empty.

        Returns:
            The judgement, shared by bodies of the same minor unless the body is an envelope; or the rejection.
        """
        if self.encoding == DATUM:
            judge = self._datum(headers, body, 0, len(body))
            return judge if isinstance(judge, Rejection) else judge.judgement
        if self.encoding == SINGLE_OBJECT:
            return self._single_object(body)
        if self.encoding == ENVELOPE:
            return self._envelope(destination, headers, body)
        if self.encoding == CONFLUENT:
            return self._confluent(body)
        return UNJUDGED

    def _datum(self, headers: Headers, body: bytes, start: int, end: int) -> _Judge | Rejection:
        for name, value in headers:
            if name == b"schema-version":
                judge = self._minors.get(value)
                if judge is None:
                    text = value.decode(errors="backslashreplace")
                    return _rejection(
                        "unknown-schema-version",
                        f"{self.schema} has no version {text!r}; known: {self._known_minors()}",
                    )
                return judge if judge.walker.accepts(body, start, end) else self._mismatch(judge, body, start, end)
        if self.version_required:
            return _rejection(
                "schema-version-required",
                f"{self.schema} must be sent with a schema-version header; known: {self._known_minors()}",
            )
        for judge in self._judges:
            if judge.walker.accepts(body, start, end):
                return judge
        return self._mismatch(self._judges[0], body, start, end)

    def _single_object(self, body: bytes) -> Judgement | Rejection:
        if not body.startswith(SINGLE_OBJECT_MARKER) or len(body) < SINGLE_OBJECT_HEADER_BYTES:
            return _rejection(
                "bad-single-object",
                f"expected C3 01 and a fingerprint of 8 bytes, found {body[:SINGLE_OBJECT_HEADER_BYTES].hex(' ')}",
            )
        judge = self._writer(body[len(SINGLE_OBJECT_MARKER) : SINGLE_OBJECT_HEADER_BYTES])
        if isinstance(judge, Rejection):
            return judge
        if not judge.walker.accepts(body, SINGLE_OBJECT_HEADER_BYTES, len(body)):
            return self._mismatch(judge, body, SINGLE_OBJECT_HEADER_BYTES, len(body))
        return judge.judgement

    def _confluent(self, body: bytes) -> Judgement | Rejection:
        if not body.startswith(CONFLUENT_MARKER) or len(body) < CONFLUENT_HEADER_BYTES:
            return _rejection(
                "bad-confluent",
                f"expected 00 and a schema id of {ID_BYTES} bytes, found {body[:CONFLUENT_HEADER_BYTES].hex(' ')}",
            )
        key = body[len(CONFLUENT_MARKER) : CONFLUENT_HEADER_BYTES]
        judge = self._ids.get(key)
        if judge is None:
            schema_id = int.from_bytes(key, "big")
            known = ", ".join([f"{int.from_bytes(k, 'big')} ({j.minor})" for k, j in self._ids.items()])
            strangers = self._strangers.get(key)
            if strangers:
                return _rejection(
                    "schema-id-of-other-type",
                    f"schema id {schema_id} is of {strangers[0].type_name}, expected {self.schema}: {known}",
                )
            return _rejection("unknown-schema-id", f"schema id {schema_id}; {self.schema} knows {known}")
        if not judge.walker.accepts(body, CONFLUENT_HEADER_BYTES, len(body)):
            return self._mismatch(judge, body, CONFLUENT_HEADER_BYTES, len(body))
        return judge.judgement

    def _envelope(self, destination: bytes, headers: Headers, body: bytes) -> Judgement | Rejection:
        envelope = open_envelope(body, self._keys)
        if isinstance(envelope, Fault):
            return _rejection("bad-envelope", f"GenericEnvelope: {envelope}")
        if envelope.duplicate:
            return _rejection("envelope-duplicate-item", f"the envelope has more than one {envelope.duplicate} item")
        if envelope.topic is not None and envelope.topic != destination:
            topic = envelope.topic.decode(errors="backslashreplace")
            return _rejection("envelope-topic-mismatch", f"the envelope's topic is {topic!r}, not the destination")
        if envelope.body_offset < 0 and not envelope.tombstone:
            return _rejection("envelope-empty", "the envelope has neither a body nor a tombstone item")

        start = max(envelope.body_offset, 0)
        end = start + envelope.body_length
        judge: _Judge | Rejection | None = None
        if envelope.fingerprint is not None:
            judge = self._writer(envelope.fingerprint)
            if isinstance(judge, _Judge) and envelope.body_offset >= 0 and not judge.walker.accepts(body, start, end):
                return self._mismatch(judge, body, start, end)
        elif envelope.body_offset >= 0:
            judge = self._datum(headers, body, start, end)
        if isinstance(judge, Rejection):
            return judge
        if judge is None:
            return Judgement(ENVELOPE, "", "", b"", 0, 0, tombstone=True)
        by = judge.judgement
        return Judgement(
            ENVELOPE, by.schema, by.schema_version, by.schema_fingerprint, start, end - start, envelope.tombstone
        )

    def _writer(self, fingerprint: bytes) -> _Judge | Rejection:
        """Find the minor that a fingerprint names."""
        judge = self._fingerprints.get(fingerprint)
        if judge is not None:
            return judge
        known = ", ".join(f"{text} ({judge.minor})" for text, judge in self._known_fingerprints(len(fingerprint)))
        shown = fingerprint[:SHA_BYTES].hex() + ("..." if len(fingerprint) > SHA_BYTES else "")
        strangers = self._strangers.get(fingerprint) if len(fingerprint) in (CRC_BYTES, SHA_BYTES) else None
        if strangers:
            return _rejection(
                "fingerprint-of-other-type",
                f"fingerprint {shown} is of {strangers[0].type_name}, expected {self.schema}: {known}",
            )
        return _rejection("unknown-fingerprint", f"fingerprint {shown or 'of no bytes'}; {self.schema} knows {known}")

    def _known_fingerprints(self, size: int) -> list[tuple[str, _Judge]]:
        size = size if size == SHA_BYTES else CRC_BYTES
        return [(text.hex(), judge) for text, judge in self._fingerprints.items() if len(text) == size]

    def _known_minors(self) -> str:
        return ", ".join([judge.minor for judge in self._judges])

    def _mismatch(self, judge: _Judge, body: bytes, start: int, end: int) -> Rejection:
        return _rejection("schema-mismatch", f"{self.schema} {judge.minor}: {judge.walker.explain(body, start, end)}")


def _rejection(result: str, text: str) -> Rejection:
    """Make the reason one printable line of bounded length, whatever a sender put into it."""
    if not text.isprintable():
        text = "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in text])
    if len(text) > REASON_CHARACTERS_MAX:
        text = text[: REASON_CHARACTERS_MAX - 3] + "..."
    return Rejection(result, text)
