"""The GenericEnvelope, Avro's single-object encoding and Confluent's: where in a body the datum is and which schema wrote it.

Spec: Avro 1.12 "Single-object encoding", Confluent Schema Registry "Wire format"
"""

from typing import Final, final

from maxam.avro.explainer import Fault, Leaf, read_number
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.avro.walker import Walker

SINGLE_OBJECT_MARKER: Final = b"\xc3\x01"
SINGLE_OBJECT_HEADER_BYTES: Final = 10  # marker and CRC-64-AVRO, little-endian
CONFLUENT_MARKER: Final = b"\x00"
ID_BYTES: Final = 4  # of a schema's id, big-endian
CONFLUENT_HEADER_BYTES: Final = 5  # marker and id

ENVELOPE_TEXT: Final = (
    b'{"type":"record","name":"GenericEnvelope","namespace":"com.tattsgroup.gaming.venueenvelope","fields":['
    b'{"name":"content","type":{"type":"array","items":{"type":"record","name":"GenericItem","fields":['
    b'{"name":"key","type":"int"},{"name":"value","type":"bytes"}]}}}]}'
)
_WALKER: Final = Walker(parse_schema(read_source("GenericEnvelope", ENVELOPE_TEXT)).type)


@final
class EnvelopeKeys:
    """The numbers that items of an envelope have as keys: a setting, as the original's are not public."""

    __slots__ = ("all", "body", "fingerprint", "tombstone", "topic")

    def __init__(self, body: int = 1, fingerprint: int = 2, topic: int = 3, tombstone: int = 4) -> None:
        self.body: Final = body
        self.fingerprint: Final = fingerprint
        self.topic: Final = topic
        self.tombstone: Final = tombstone
        self.all: Final = frozenset((body, fingerprint, topic, tombstone))


@final
class Item:
    """One item of an envelope: where it stands among them, counted from 0, its key, and where in the body its value begins."""

    __slots__ = ("index", "key", "length", "offset")

    def __init__(self, index: int, key: int, offset: int, length: int) -> None:
        self.index: Final = index
        self.key: Final = key
        self.offset: Final = offset
        self.length: Final = length


@final
class Envelope:
    """The items of an envelope that matter to the broker. Items with other keys are for other programs.

    Attributes:
        body: The item that holds the datum.
        fingerprint: The item that identifies its schema.
        topic: The item that holds the destination.
        tombstone: The item that deletes, whatever its value.
        duplicate: The first item of these four kinds that is there a second time.
    """

    __slots__ = ("body", "duplicate", "fingerprint", "tombstone", "topic")

    def __init__(self, items: dict[int, Item], duplicate: Item | None, keys: EnvelopeKeys) -> None:
        self.body: Final = items.get(keys.body)
        self.fingerprint: Final = items.get(keys.fingerprint)
        self.topic: Final = items.get(keys.topic)
        self.tombstone: Final = items.get(keys.tombstone)
        self.duplicate: Final = duplicate


def open_envelope(body: bytes, keys: EnvelopeKeys) -> Envelope | Fault:
    """Find the items of an envelope that matter to the broker."""
    if not _WALKER.accepts(body, 0, len(body)):
        return _WALKER.explain(body, 0, len(body)) or Fault("", "an envelope", "something else", 0)
    items: dict[int, Item] = {}
    duplicate: Item | None = None
    index = 0
    pos = 0
    while True:  # the bytes are known to be an envelope: nothing can be short or out of range
        pos, count = read_number(body, pos)
        if count == 0:
            return Envelope(items, duplicate, keys)
        if count < 0:
            pos, _ = read_number(body, pos)
        for _ in range(abs(count)):
            pos, key = read_number(body, pos)
            pos, length = read_number(body, pos)
            if key in keys.all:
                item = Item(index, key, pos, length)
                if key in items:
                    duplicate = duplicate or item
                else:
                    items[key] = item
            index += 1
            pos += length


def trace_envelope(body: bytes) -> tuple[list[Leaf], Fault | None]:
    """Return the items of an envelope up to its fault, whatever they mean, as `Walker.trace` does."""
    return _WALKER.trace(body, 0, len(body))
