"""A body that was rejected, taken apart as far as it goes: each value with its place, up to the fault."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from maxam.avro.envelope import (
    CONFLUENT_HEADER_BYTES,
    CONFLUENT_MARKER,
    SINGLE_OBJECT_HEADER_BYTES,
    SINGLE_OBJECT_MARKER,
    Envelope,
    EnvelopeKeys,
    Item,
    open_envelope,
    trace_envelope,
)
from maxam.avro.explainer import Fault, Leaf
from maxam.avro.json.decoding import Json, ValueDecodeError, decode_value
from maxam.avro.rule import CONFLUENT, DATUM, ENVELOPE, NONE, SINGLE_OBJECT, SchemaVersion
from maxam.avro.schema import Type
from maxam.counting import counted
from maxam.records import Validation

VERSION_HEADER: Final = "schema-version"


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in a body: a value, or what stands before the datum.

    Attributes:
        path: The field; in parentheses what is none.
        offset: Where in the body.
        length: In bytes.
        type: Its Avro type; empty for what is no value.
        value: As JSON.
    """

    path: str
    offset: int
    length: int
    type: str
    value: Json


@dataclass(frozen=True, slots=True)
class Dissection:
    """The parts of a body.

    Attributes:
        version: Version by which the body was read. None if it holds no datum, or there is no such version.
        why: How that version was found.
        parts: In order.
        fault: Fault at which the reading ended. None if the whole body is valid.
        likeness: Encoding or version by which the body would be valid. Empty if there is none.
    """

    version: SchemaVersion | None
    why: str
    parts: list[Part]
    fault: Fault | None
    likeness: str = ""


def dissect(
    body: bytes,
    encoding: str,
    keys: EnvelopeKeys,
    versions: Sequence[SchemaVersion],
    headers: Sequence[Sequence[str]],
    chosen: SchemaVersion | None,
) -> Dissection:
    """Take a body apart.

    Args:
        body: As it was sent; it may be anything.
        encoding: Encoding by the rule of its destination.
        keys: Keys of an envelope's items.
        versions: Of the rule's type, the newest first.
        headers: Names and values of the SEND's headers.
        chosen: Version to read it by. None takes the version that the body has, else the newest.
    """
    parts: list[Part] = []
    place = _datum_place(body, encoding, keys, parts)
    if isinstance(place, Fault):
        return Dissection(None, "", parts, place, _likeness(body, keys, versions))
    start, end, named = place
    version, why = _version(versions, headers, named, encoding, chosen)
    if start < 0 or version is None:
        return Dissection(None, why, parts, None)
    leaves, fault = version.walker.trace(body, start, end)
    parts += [_part(leaf, body) for leaf in leaves]
    return Dissection(version, why, parts, fault, "" if fault is None else _likeness(body, keys, versions))


def _likeness(body: bytes, keys: EnvelopeKeys, versions: Sequence[SchemaVersion]) -> str:
    """Return in which encoding, and of which version, a body would be a value after all: the commonest mistakes of all."""
    for encoding in (DATUM, SINGLE_OBJECT, CONFLUENT, ENVELOPE):
        place = _datum_place(body, encoding, keys, [])
        if isinstance(place, Fault) or place[0] < 0:
            continue
        start, end, named = place
        for version in versions:
            if _is_named(version, named, encoding) and version.walker.accepts(body, start, end):
                return f"it is a value of {version.type_name} {version.minor} in the encoding {encoding}"
    return ""


def _is_named(version: SchemaVersion, named: bytes | None, encoding: str) -> bool:
    if named is None:
        return True
    return named in ((version.schema_id_bytes,) if encoding == CONFLUENT else (version.crc_64, version.sha_256))


def _datum_place(
    body: bytes, encoding: str, keys: EnvelopeKeys, parts: list[Part]
) -> tuple[int, int, bytes | None] | Fault:
    """Return where the datum begins (-1: none) and ends, and how the body identifies its schema. Else the fault."""
    if encoding in (DATUM, NONE):
        return 0, len(body), None
    if encoding == ENVELOPE:
        return _open(body, keys, parts)
    marker, size = SINGLE_OBJECT_MARKER, SINGLE_OBJECT_HEADER_BYTES
    if encoding == CONFLUENT:
        marker, size = CONFLUENT_MARKER, CONFLUENT_HEADER_BYTES
    name = body[len(marker) : size]
    if not body.startswith(marker) or len(body) < size:
        expected = f"{marker.hex(' ').upper()} and {size - len(marker)} bytes that name a schema"
        return Fault("", expected, body[:size].hex(" ") or "nothing", 0)
    shown = str(int.from_bytes(name, "big")) if encoding == CONFLUENT else name.hex()
    label = "(schema id)" if encoding == CONFLUENT else "(fingerprint)"
    parts += [Part("(marker)", 0, len(marker), "", marker.hex(" ")), Part(label, len(marker), len(name), "", shown)]
    return size, len(body), name


def _open(body: bytes, keys: EnvelopeKeys, parts: list[Part]) -> tuple[int, int, bytes | None] | Fault:
    envelope = open_envelope(body, keys)
    if not isinstance(envelope, Envelope):
        leaves, fault = trace_envelope(body)
        parts += [_part(leaf, body) for leaf in leaves]
        return fault or envelope
    named: bytes | None = None
    found: list[tuple[Item, str]] = []
    for item, name in (
        (envelope.body, "body"),
        (envelope.fingerprint, "fingerprint"),
        (envelope.topic, "topic"),
        (envelope.tombstone, "tombstone"),
    ):
        if item is not None:
            found.append((item, name))
    if envelope.duplicate is not None:
        found.append((envelope.duplicate, "a second one"))
    for item, name in sorted(found, key=lambda pair: pair[0].index):
        value = body[item.offset : item.offset + item.length]
        text = counted(item.length, "byte") if name == "body" else value.decode(errors="backslashreplace")
        if name == "fingerprint":
            named = value
            text = value.hex()
        parts.append(Part(f"(item {item.index}, key {item.key}: {name})", item.offset, item.length, "", text))
    if envelope.duplicate is not None:
        return Fault("", "each item once", "a second one", envelope.duplicate.offset)
    datum = envelope.body
    return (-1, -1, named) if datum is None else (datum.offset, datum.offset + datum.length, named)


def _version(
    versions: Sequence[SchemaVersion],
    headers: Sequence[Sequence[str]],
    named: bytes | None,
    encoding: str,
    chosen: SchemaVersion | None,
) -> tuple[SchemaVersion | None, str]:
    if chosen is not None:
        return chosen, "asked for"
    if not versions:
        return None, "no schema is known for it"
    if named is not None:
        for version in versions:
            if _is_named(version, named, encoding):
                return version, "named by the body"
        return versions[0], "the newest; the body has one that is not known here"
    if encoding != SINGLE_OBJECT:
        for name, value in headers:
            if name == VERSION_HEADER:
                for version in versions:
                    if version.minor == value:
                        return version, "named by the header schema-version"
                return versions[0], "the newest; the header schema-version has one that is not known here"
    return versions[0], "the newest"


def _part(leaf: Leaf, body: bytes) -> Part:
    of = leaf.type
    title = of.label if not of.logical else f"{of.label} ({of.logical})"
    try:
        value = decode_value(_text(of), body, Validation("", "", "", b"", leaf.start, leaf.end - leaf.start))
    except ValueDecodeError:
        value = b64encode(body[leaf.start : leaf.end]).decode()
    return Part(leaf.path or "value", leaf.start, leaf.end - leaf.start, title, value)


@lru_cache(maxsize=1024)
def _text(of: Type) -> bytes:
    """Return the schema of a type that holds no others."""
    schema: dict[str, object] = {"type": of.kind}
    if of.name:
        schema["name"] = of.name
    if of.kind == "fixed":
        schema["size"] = of.size
    if of.kind == "enum":
        schema["symbols"] = list(of.symbols)
    if of.logical:
        schema |= {"logicalType": of.logical}
        if of.logical == "decimal":
            schema |= {"precision": of.precision, "scale": of.scale}
    return json.dumps(schema).encode()
