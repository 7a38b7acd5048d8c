"""The GenericEnvelope, Avro's single-object encoding and Confluent's: where in a body the datum is and which schema wrote it.

Spec: Avro 1.12 "Single-object encoding", Confluent Schema Registry "Wire format"
"""

from typing import Final, final

from maxam.avro.schema import parse_schema, read_source
from maxam.avro.walker import Fault, Walker, read_number

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

    __slots__ = ("body", "fingerprint", "tombstone", "topic")

    def __init__(self, body: int = 1, fingerprint: int = 2, topic: int = 3, tombstone: int = 4) -> None:
        self.body: Final = body
        self.fingerprint: Final = fingerprint
        self.topic: Final = topic
        self.tombstone: Final = tombstone


@final
class Envelope:
    """What an envelope holds; items of other keys are the business of others.

    Attributes:
        body_offset: Where the datum begins; -1 without body item.
        body_length: Bytes of the datum.
        fingerprint: Value of the fingerprint item, of any length.
        topic: Value of the topic item.
        tombstone: It holds a tombstone item, whatever its value.
        duplicate: Which of the four is there more than once; empty when none is.
    """

    __slots__ = ("body_length", "body_offset", "duplicate", "fingerprint", "tombstone", "topic")

    def __init__(self) -> None:
        self.body_offset = -1
        self.body_length = 0
        self.fingerprint: bytes | None = None
        self.topic: bytes | None = None
        self.tombstone = False
        self.duplicate = ""


def open_envelope(body: bytes, keys: EnvelopeKeys) -> Envelope | Fault:
    """Find the items of an envelope that say something to the broker."""
    if not _WALKER.accepts(body, 0, len(body)):
        return _WALKER.explain(body, 0, len(body)) or Fault("", "an envelope", "something else", 0)
    envelope = Envelope()
    pos = 0
    while True:  # the bytes are known to be an envelope: nothing can be short or out of range
        pos, count = read_number(body, pos)
        if count == 0:
            return envelope
        if count < 0:
            pos, _ = read_number(body, pos)
        for _ in range(abs(count)):
            pos, key = read_number(body, pos)
            pos, length = read_number(body, pos)
            if key == keys.body:
                envelope.duplicate = envelope.duplicate if envelope.body_offset < 0 else "body"
                envelope.body_offset = pos
                envelope.body_length = length
            elif key == keys.fingerprint:
                envelope.duplicate = envelope.duplicate if envelope.fingerprint is None else "fingerprint"
                envelope.fingerprint = body[pos : pos + length]
            elif key == keys.topic:
                envelope.duplicate = envelope.duplicate if envelope.topic is None else "topic"
                envelope.topic = body[pos : pos + length]
            elif key == keys.tombstone:
                envelope.duplicate = "tombstone" if envelope.tombstone else envelope.duplicate
                envelope.tombstone = True
            pos += length
