"""Bodies tried against a schema folder: what the broker would answer, JSON to a body, a body to JSON."""

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from maxam.avro.envelope import Envelope, open_envelope
from maxam.avro.json.decoding import Json, ValueDecodeError, decode_value
from maxam.avro.json.encoding import encode_body, encode_value, envelope, read_json
from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.registry import Registry
from maxam.avro.registry_file import FINGERPRINTS
from maxam.avro.rule import DATUM, ENCODINGS, ENVELOPE, NONE, Rule
from maxam.config import Limits
from maxam.counting import counted
from maxam.errors import ConfigurationError
from maxam.globs import compile_glob, destination_problem
from maxam.records import Headers, Rejection, Validation
from maxam.schema_tools.folder import version_of

JSON: Final = "json"
HEX: Final = "hex"
BINARY: Final = "binary"
CONTEXT_BYTES: Final = 8  # shown before and after a fault
ANYWHERE: Final = "X/*"  # stands for the destination where none is given
_HEX: Final = re.compile(rb"(?:0x)?(?:[0-9a-fA-F]{2}[\s:]*)+")


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of judging a body.

    Attributes:
        taken_as: `json`, `hex` or `binary`.
        body: As it would be sent.
        destination: Topic of the SEND.
        rule: Index of the rule that decided. None without one.
        validation: The broker's validation. None for an empty body, which deletes.
        value: The value as JSON, when `value_known`.
        problem: Reaction of the broker if it would not answer with a RECEIPT. Else empty.
    """

    taken_as: str
    body: bytes
    destination: str
    rule: int | None
    glob: str
    encoding: str
    validation: Validation | Rejection | None
    value: Json
    value_known: bool
    problem: str

    @property
    def accepted(self) -> bool:
        """The broker would take it."""
        return not isinstance(self.validation, Rejection) and not self.problem

    def receipt(self) -> list[tuple[str, str]]:
        """Return the headers of the RECEIPT that hold the result of the SEND."""
        if isinstance(self.validation, Rejection):
            disposition = "rejected-invalid"
            more = [("result", self.validation.result), ("reason", self.validation.reason)]
        else:
            disposition, more = "accepted", []
        return [("disposition", disposition), ("content-disposition", disposition), *more]

    def facts(self) -> dict[str, Any]:
        """Return it for programs."""
        facts: dict[str, Any] = {
            "destination": self.destination,
            "taken_as": self.taken_as,
            "body_bytes": len(self.body),
            "rule": self.rule,
            "glob": self.glob,
            "encoding": self.encoding,
        }
        if self.problem:
            return facts | {"accepted": False, "error": self.problem}
        facts |= {"accepted": self.accepted, "receipt": dict(self.receipt())}
        by = self.validation
        if isinstance(by, Rejection):
            names = ("schema", "schema_version", "path", "expected", "found", "offset", "item", "item_key")
            return facts | {name: getattr(by, name) for name in names}
        if by is None:
            return facts | {"deletes": True}
        facts |= {"schema": by.schema, "schema_version": by.schema_version, "deletes": by.tombstone}
        return facts | {"value": self.value} if self.value_known else facts

    def lines(self) -> list[str]:
        """Return it for people, except the value."""
        rule = "no rule" if self.rule is None else f"rule[{self.rule}] {self.glob}, encoding {self.encoding}"
        forms = {JSON: "JSON, encoded", HEX: "hexadecimal text", BINARY: "the body as it is"}
        lines = [f"{self.destination}: {rule}", f"taken as {forms[self.taken_as]}: {counted(len(self.body), 'byte')}"]
        if self.problem:
            return [*lines, self.problem]
        lines += [f"{name}:{value}" for name, value in self.receipt()]
        by = self.validation
        if isinstance(by, Rejection):
            if by.offset >= 0:
                item = "" if by.item < 0 else f"item {by.item} (key {by.item_key}) of the envelope, "
                lines += [
                    f"  field     {item}{by.path or 'the whole'}",
                    f"  expected  {by.expected}",
                    f"  found     {by.found}",
                    f"  at byte   {by.offset} of {len(self.body)}: {_around(self.body, by.offset)}",
                ]
        elif by is None:
            lines.append("an empty body deletes the topic's value")
        elif by.schema:
            lines.append(
                f"judged by {by.schema} {by.schema_version}"
                + ("; it deletes the topic's value" if by.tombstone else "")
            )
        elif by.tombstone:
            lines.append("an envelope with a tombstone deletes the topic's value")
        else:
            lines.append("anything is accepted there: it is not checked")
        return lines


def _around(body: bytes, offset: int) -> str:
    """Show the bytes around a place, that one in brackets."""
    start, end = max(0, offset - CONTEXT_BYTES), offset + CONTEXT_BYTES + 1
    shown = [f"[{byte:02x}]" if at == offset else f"{byte:02x}" for at, byte in enumerate(body[start:end], start)]
    shown += ["[end]"] if offset >= len(body) else []
    return ("… " if start else "") + " ".join(shown) + (" …" if end < len(body) else "")


def trial(
    registry: Registry, data: bytes, name: str, destination: str, form: str | None, schema_version: str | None
) -> Trial:
    """Judge a body as the broker would judge a SEND of it.

    Args:
        registry: The rules.
        data: Content of the file.
        name: Of the file, for errors.
        destination: Of the SEND.
        form: Format of `data`: `json`, `hex` or `binary`. None detects it.
        schema_version: Of the SEND's header. None without.

    Raises:
        ValueEncodeError: The JSON is not a value of the schema.
        ConfigurationError: The file is not in the given format, or is JSON that no schema could encode.
    """
    where = destination.encode(errors="surrogateescape")
    rule = registry.rule_for(destination)
    index = None if rule is None else registry.rules.index(rule)
    taken_as = form or form_of(data)
    headers = _headers(schema_version)
    if taken_as == JSON:
        body = _json_body(registry, rule, data, name, destination, schema_version)
    else:
        body = bytes_of(data, taken_as, name)
    glob, encoding = ("", "") if rule is None else (rule.glob.text, rule.encoding)
    validation: Validation | Rejection | None
    problem = destination_problem(where, Limits().destination_bytes_max)
    if problem is not None:
        validation = Rejection("invalid-destination", problem)
    elif not body:
        validation = None
    elif rule is None:
        validation = Rejection("no-rule", "no rule of the schema registry covers this destination")
    else:
        validation = rule.validate(where, headers, body)
    value, known = _value(registry, validation, body)
    limit = Limits().frame_body_bytes_max
    error = (
        f"no RECEIPT but an ERROR, and the connection is closed: at most {limit} bytes are allowed"
        if len(body) > limit
        else ""
    )
    return Trial(taken_as, body, destination, index, glob, encoding, validation, value, known, error)


def _headers(schema_version: str | None) -> Headers:
    return () if schema_version is None else ((b"schema-version", schema_version.encode(errors="surrogateescape")),)


def _value(registry: Registry, validation: Validation | Rejection | None, body: bytes) -> tuple[Json, bool]:
    if not isinstance(validation, Validation) or (validation.tombstone and not validation.value_length):
        return None, False
    version = registry.schema(validation.schema, validation.schema_version)
    return (None, False) if version is None else (decode_value(version.schema.text, body, validation), True)


def form_of(data: bytes) -> str:
    """Find out what a file holds: JSON of an object, an array or a text, hexadecimal text, or else the body itself."""
    text = data.strip()
    if _HEX.fullmatch(text):
        return HEX
    if text[:1] in {b"{", b"[", b'"'}:
        try:
            read_json(data, "")
        except ValueEncodeError as error:
            if text[:1] == b"{" and text[-1:] == b"}" and text.isascii():  # meant to be JSON, most likely
                raise ValueEncodeError(
                    "it looks like JSON (--as binary takes it as it is)", "JSON", error.found
                ) from None
        else:
            return JSON
    return BINARY


def bytes_of(data: bytes, form: str, name: str) -> bytes:
    """Return the body that a file holds as it is, or as hexadecimal text; raises ConfigurationError."""
    if form == BINARY:
        return data
    text = data.strip()
    if text and not _HEX.fullmatch(text):
        raise ConfigurationError(
            f"{name}: expected hexadecimal text such as C3 01 5f, two digits a byte, found something else"
        )
    return bytes.fromhex(re.sub(rb"^0x|[\s:]", b"", text).decode())


def _json_body(
    registry: Registry, rule: Rule | None, data: bytes, name: str, destination: str, schema_version: str | None
) -> bytes:
    if rule is None:
        raise ConfigurationError(
            f"no rule covers {destination}, so JSON cannot be encoded. --as binary tries it as it is"
        )
    value = read_json(data, name)
    if rule.encoding == NONE:
        return _unchecked(value)
    known = schema_version if schema_version in rule.minors else None
    version = version_of(registry, rule.schema, known or rule.minors[0])
    datum = encode_value(version.schema.type, value)
    return encode_body(version, rule.encoding, datum, registry.envelope_keys, FINGERPRINTS[registry.fingerprint])


def _unchecked(value: Json) -> bytes:
    """Return the bytes of a body that no schema checks, which JSON holds as a text of base64."""
    try:
        if isinstance(value, str):
            return b64decode(value, validate=True)
    except ValueError:
        pass
    raise ValueEncodeError("value", "a text of base64, as encoding `none` has no schema", str(value)[:60])


# Encode and decode.


def _target(
    registry: Registry, destination: str | None, type_name: str | None, encoding: str | None
) -> tuple[str, str, Rule | None]:
    """Find type and encoding by the destination's rule or by their names; an encoding that is given comes first."""
    if encoding is not None and encoding not in ENCODINGS:
        raise ConfigurationError(f"there is no encoding {encoding!r}, there are: {', '.join(ENCODINGS)}")
    rule = None
    if destination is not None:
        rule = registry.rule_for(destination)
        if rule is None:
            raise ConfigurationError(f"no rule covers {destination}; name the type with --type")
        type_name = type_name or rule.schema
        encoding = encoding or rule.encoding
    if not type_name and encoding != NONE:
        raise ConfigurationError("specify the type of the value: --destination D or --type TYPE")
    return type_name or "", encoding or DATUM, rule


def encode(
    registry: Registry,
    data: bytes,
    name: str,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
) -> bytes:
    """Make a body of JSON.

    Raises:
        ValueEncodeError: The JSON is no value of the schema. The text has field, expected and actual value.
        ConfigurationError: No schema is specified, or it does not exist.
    """
    return encode_parsed(registry, read_json(data, name), destination, type_name, encoding, minor)


def encode_parsed(
    registry: Registry,
    value: Json,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
) -> bytes:
    """Make a body of JSON as `read_json` gives it; raises as `encode`."""
    type_name, encoding, rule = _target(registry, destination, type_name, encoding)
    if encoding == NONE:
        return _unchecked(value)
    if minor is None and rule is not None and rule.schema == type_name:
        minor = rule.minors[0]
    version = version_of(registry, type_name, minor)
    if value is None and encoding == ENVELOPE and version.schema.type.kind != "null":
        return envelope([(registry.envelope_keys.tombstone, b"")])
    datum = encode_value(version.schema.type, value)
    return encode_body(version, encoding, datum, registry.envelope_keys, FINGERPRINTS[registry.fingerprint])


@dataclass(frozen=True, slots=True)
class Decoded:
    """A body's value, what is remarkable about it, and both for programs."""

    value: Json
    note: str
    facts: dict[str, Any]


def decode(
    registry: Registry,
    data: bytes,
    name: str,
    form: str | None,
    destination: str | None,
    type_name: str | None,
    encoding: str | None,
    minor: str | None,
    schema_version: str | None,
) -> Decoded:
    """Show a body as JSON, after judging it.

    Raises:
        ConfigurationError: No schema is specified or it does not exist, or the body is invalid. The text has place and reason.
    """
    type_name, encoding, rule = _target(registry, destination, type_name, encoding)
    body = bytes_of(data, form or (HEX if _HEX.fullmatch(data.strip()) else BINARY), name)
    if not body:
        raise ConfigurationError(f"{name}: an empty body holds no value: it deletes the topic's")
    if encoding == NONE:
        shown = b64encode(body).decode()
        return Decoded(shown, "no schema: the bytes as base64", {"schema": "", "schema_version": "", "value": shown})
    if rule is None or minor is not None or (type_name, encoding) != (rule.schema, rule.encoding):
        rule = _rule_of(registry, type_name, encoding, minor)
    validation = rule.validate(_destination(registry, body, encoding, destination), _headers(schema_version), body)
    if isinstance(validation, Rejection):
        raise ConfigurationError(f"{name}: {validation.result}: {validation.reason}")
    note = f"{validation.schema} {validation.schema_version}"
    facts = {"schema": validation.schema, "schema_version": validation.schema_version, "deletes": validation.tombstone}
    if validation.tombstone and not validation.value_length:
        return Decoded(None, "an envelope with a tombstone: it deletes the topic's value", facts | {"value": None})
    version = version_of(registry, validation.schema, validation.schema_version)
    try:
        value = decode_value(version.schema.text, body, validation)
    except ValueDecodeError as error:
        raise ConfigurationError(f"{name}: it is valid, but cannot be shown: {error}") from error
    return Decoded(
        value, note + ("; it deletes the topic's value" if validation.tombstone else ""), facts | {"value": value}
    )


def _rule_of(registry: Registry, type_name: str, encoding: str, minor: str | None) -> Rule:
    """Make a rule for bodies of which a type is known and no destination."""
    newest = version_of(registry, type_name, minor)
    versions = registry.versions(type_name) if minor is None else [newest]
    known = {key: [version] for version in versions for key in (version.crc_64, version.sha_256)}
    size = FINGERPRINTS[registry.fingerprint]
    glob = compile_glob(ANYWHERE, Limits())
    return Rule(glob, encoding, type_name, versions, False, size, registry.envelope_keys, known)


def _destination(registry: Registry, body: bytes, encoding: str, destination: str | None) -> bytes:
    """Return where a body was sent: the given destination, else that of the envelope, which then cannot differ from it."""
    if destination is not None:
        return destination.encode(errors="surrogateescape")
    if encoding == ENVELOPE:
        opened = open_envelope(body, registry.envelope_keys)
        if isinstance(opened, Envelope) and opened.topic is not None:
            return body[opened.topic.offset : opened.topic.offset + opened.topic.length]
    return ANYWHERE.encode()
