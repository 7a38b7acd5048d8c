"""Records to bytes: the journal's Avro schema, the header of a file, and one checked block per group commit.

docs/develop/journal-format.md has the layout byte by byte: offsets, sizes, endianness, checks. `layout` finds the fields of
records, `scan` reads blocks and headers.

A file is a standard Avro object container (null codec). Five additions are invisible to other Avro readers:

* The metadata entry `maxam.position` is the place in the stream where the file starts. It holds revision and accepted_at of the
  record before the first one, and the chain value there. `maxam.check`, the last entry, is a CRC-32 (eight hex digits). It covers all
  bytes of the header except those eight digits.
* The metadata entry `maxam.incarnation`, 16 hex digits, identifies the journal. A restore, and a repair that lost revisions,
  replace it: revisions of two incarnations cannot be compared. Files of older releases do not have it.
* The metadata entry `maxam.floor` of a snapshot is a revision: all deletes above it are in the snapshot, unless the topic has a newer
  change. Without it, nothing is known of the deletes that the snapshot lacks.
* The last record of each block carries `check`: a CRC-32, then its seed, both big-endian. The CRC-32 covers the block's count,
  its size and all bytes before the check. Its seed is the check of the block before. So each block proves itself, and the
  chain proves that none is missing. The chain runs on across files: the committer may roll without the encoder knowing.
* A finished file ends with a block of one record of kind `end`, which stands outside the chain. Without it, a file cut
  between two blocks would appear whole.

Segments and snapshots have the same schema. It gained kinds of records since the first release: `sequences`, which only snapshots hold,
and `will` and `will_end`. Files with the schemas before that are read, and not written.
"""

import zlib
from typing import Final, final

from maxam.content import long, pack, text, unsigned
from maxam.records import (
    AcknowledgementRecord,
    Change,
    Identity,
    OwedRecord,
    Positions,
    Record,
    RejectedSend,
    SequencesRecord,
    SessionEndRecord,
    SessionRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    Validation,
    WillEndRecord,
    WillRecord,
)

FIRST_SCHEMA: Final = (  # of all files before 0.2.0, and of segments before wills
    b'{"type":"record","name":"Record","namespace":"maxam.journal","fields":['
    b'{"name":"revision","type":"long"},'
    b'{"name":"accepted_at","type":{"type":"long","logicalType":"timestamp-micros"}},'
    b'{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["unknown","value","delete","subscription",'
    b'"unsubscription","acknowledgement","owed","session_end","end"],"default":"unknown"}},'
    b'{"name":"destination","type":"string"},'
    b'{"name":"publisher","type":"string"},'
    b'{"name":"fingerprint","type":"string"},'
    b'{"name":"encoding","type":"string"},'
    b'{"name":"schema","type":"string"},'
    b'{"name":"schema_version","type":"string"},'
    b'{"name":"schema_fingerprint","type":"bytes"},'
    b'{"name":"value_offset","type":"long"},'
    b'{"name":"value_length","type":"long"},'
    b'{"name":"headers","type":{"type":"array","items":{"type":"record","name":"Header","fields":['
    b'{"name":"name","type":"string"},{"name":"value","type":"string"}]}}},'
    b'{"name":"body","type":"bytes"},'
    b'{"name":"disposition","type":["null","string"],"default":null},'
    b'{"name":"result","type":["null","string"],"default":null},'
    b'{"name":"reason","type":["null","string"],"default":null},'
    b'{"name":"client_id","type":"string","default":""},'
    b'{"name":"subscription","type":"string","default":""},'
    b'{"name":"eager","type":"boolean","default":false},'
    b'{"name":"low_water","type":["null","long"],"default":null},'
    b'{"name":"positions","type":{"type":"array","items":{"type":"record","name":"Position","fields":['
    b'{"name":"destination","type":"string"},{"name":"revision","type":"long"}]}},"default":[]},'
    b'{"name":"check","type":["null",{"type":"fixed","name":"Check","size":8}],"default":null}]}'
)

SEQUENCES_SCHEMA: Final = FIRST_SCHEMA.replace(b'"end"]', b'"end","sequences"]')  # of snapshots before wills
SCHEMA: Final = FIRST_SCHEMA.replace(b'"end"]', b'"end","sequences","will","will_end"]')

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
CHECK_BYTES: Final = 8

# kinds as written: the zigzag of the symbol's index
KIND_VALUE: Final = 2
KIND_DELETE: Final = 4
KIND_SUBSCRIPTION: Final = 6
KIND_UNSUBSCRIPTION: Final = 8
KIND_ACKNOWLEDGEMENT: Final = 10
KIND_OWED: Final = 12
KIND_SESSION_END: Final = 14
KIND_END: Final = 16
KIND_SEQUENCES: Final = 18
KIND_WILL: Final = 20
KIND_WILL_END: Final = 22

CHANGE_TAIL: Final = (
    b"\0" * 9
)  # disposition, result, reason, client_id, subscription, eager, low_water, positions, check
NULLS_OF_CHANGE: Final = CHANGE_TAIL[:-1]  # all of it except `check`
SESSION_MIDDLE: Final = b"\0" * 12  # fingerprint to reason
WILL_MIDDLE: Final = b"\0" * 6  # encoding to value_length
WILL_NULLS: Final = b"\0" * 3  # disposition, result, reason
REJECTED_TAIL: Final = b"\0" * 6  # client_id, subscription, eager, low_water, positions, check
_STRING_FOLLOWS: Final = b"\x02"  # index of `string` in the unions of disposition, result and reason
_CHECK_FOLLOWS: Final = b"\x02"  # index of `fixed` in the union of `check`


# Tables for the hot path. A number of 14 bits and more is split. Its low 14 bits change with each record and come from a table.
# The rest rarely changes and is remembered.
LOW: Final = [bytes((low & 127 | 128, low >> 7 | 128)) for low in range(1 << 14)]
_LENGTHS: Final = [long(length) for length in range(4096)]
_VALUE_OF_LENGTH: Final = [bytes((KIND_VALUE,)) + length for length in _LENGTHS]  # kind, length of destination


@final
class Position:
    """A place between two blocks of the stream of records.

    Attributes:
        revision: Of the last change before it.
        accepted_at_us: Of the last record before it.
        chain: Check of the block before it, the seed of the next one's.
    """

    __slots__ = ("accepted_at_us", "chain", "revision")

    def __init__(self, revision: int, accepted_at_us: int, chain: int) -> None:
        self.revision: Final = revision
        self.accepted_at_us: Final = accepted_at_us
        self.chain: Final = chain


START: Final = Position(0, 0, 0)


@final
class Block:
    """The records of one group commit, as they are to be written.

    Attributes:
        data: The block, followed by the sync marker.
        before: Position at which it belongs.
        after: Position of the stream after it.
        settling: Holds only records that shrink what the broker owes, and so may use up the reserve of a full disk.
        origins: Outcomes of operations of fronts, for the log of a cluster. Files do not have them.
    """

    __slots__ = ("after", "before", "data", "origins", "settling")

    def __init__(self, data: bytes, before: Position, after: Position, settling: bool) -> None:
        self.data: Final = data
        self.before: Final = before
        self.after: Final = after
        self.settling: Final = settling
        self.origins = b""


def header(position: Position, sync_marker: bytes, snapshot: bool, incarnation: str = "", floor: int = -1) -> bytes:
    """Return the header of a file that starts at a position; in a snapshot, that stands for it.

    Args:
        position: Of a snapshot revision and accepted_at count.
        sync_marker: 16 random bytes.
        snapshot: The file is a snapshot, not a segment.
        incarnation: Of the journal, 16 hex digits; empty for none.
        floor: Revision above which a snapshot holds all deletes; negative if that is not known.
    """
    entries = [
        (b"avro.schema", SCHEMA),
        (b"avro.codec", b"null"),
        (b"maxam.file", b"snapshot" if snapshot else b"segment"),
        (b"maxam.position", b"%020d %020d %08x" % (position.revision, position.accepted_at_us, position.chain)),
    ]
    if incarnation:
        entries.append((b"maxam.incarnation", incarnation.encode()))
    if floor >= 0:
        entries.append((b"maxam.floor", b"%020d" % floor))
    before = MAGIC + long(len(entries) + 1) + b"".join([text(name) + text(value) for name, value in entries])
    before += text(b"maxam.check") + long(8)
    after = b"\0" + sync_marker
    return before + b"%08x" % zlib.crc32(after, zlib.crc32(before)) + after


def end_block(position: Position, sync_marker: bytes) -> bytes:
    """Return the block that finishes a file whose last record is before `position`."""
    record = long(position.revision) + long(position.accepted_at_us) + bytes((KIND_END, 0, 0)) + SESSION_MIDDLE
    return _block([record + b"\0" * 6], 1, position.chain, sync_marker)[0]


@final
class Encoder:
    """Encodes records in their order, one block at a time.

    Attributes:
        position: Where the next block belongs. To forget encoded blocks that were not written, set it back.
    """

    __slots__ = ("_gapless", "position", "sync_marker")

    def __init__(self, position: Position, sync_marker: bytes, gapless: bool = True) -> None:
        """Start at a position.

        Args:
            position: Position after everything that was written before.
            sync_marker: That of the file or files.
            gapless: False for a snapshot: revisions rise with gaps, and sessions keep their own time.
        """
        self.position = position
        self.sync_marker: Final = sync_marker
        self._gapless: Final = gapless

    def encode(self, records: list[Record]) -> Block:
        """Return the block of these records and advance the position.

        Raises:
            ValueError: Nothing to encode, a revision is not the next one, or time runs backwards. The position is as before.
        """
        before = self.position
        gapless = self._gapless
        revision = before.revision
        now = before.accepted_at_us
        settling = True
        parts: list[bytes] = []
        stamped_high = stamped_at = -1  # what `stamp` holds: high part of the revision, accepted_at
        stamp = b""
        for record in records:
            at = record.accepted_at_us
            if at < now:
                if gapless:
                    raise ValueError(f"accepted_at {at} after {now}")
            else:
                now = at
            if not isinstance(record, Change):
                if isinstance(record, SequencesRecord):
                    if gapless or record.revision < revision:
                        raise ValueError(f"sequences of revision {record.revision} after {revision}")
                    revision = record.revision
                parts.append(_other_record(record, revision))
                settling = settling and not isinstance(record, SubscriptionRecord | OwedRecord | WillRecord)
                continue
            settling = False
            if record.revision != revision + 1 and (gapless or record.revision <= revision):
                raise ValueError(f"revision {record.revision} after {revision}")
            revision = record.revision
            low = revision << 1
            high = low >> 14
            if high != stamped_high or at != stamped_at:
                stamp = (unsigned(high) if high else b"") + long(at)
                stamped_high = high
                stamped_at = at
            destination = record.destination
            validation = record.validation
            value_length = _value_length(validation, record.body_bytes)
            identity_bytes = record.publisher.encoded
            if identity_bytes is None:
                identity_bytes = _identity(record.publisher)
            validation_bytes = validation.encoded
            if validation_bytes is None:
                validation_bytes = _validation(validation)
            parts += (
                LOW[low & 16383] if high else unsigned(low),
                stamp,
                _VALUE_OF_LENGTH[len(destination)]
                if not record.deleted and len(destination) < 4096
                else bytes((KIND_DELETE if record.deleted else KIND_VALUE,)) + long(len(destination)),
                destination,
                identity_bytes,
                validation_bytes,
                _LENGTHS[value_length] if value_length < 4096 else long(value_length),
                record.content,
                CHANGE_TAIL,
            )
        data, chain = _block(parts, len(records), before.chain, self.sync_marker)
        self.position = Position(revision, now, chain)
        return Block(data, before, self.position, settling)


def encode_rejected(sends: list[RejectedSend], before: Position, sync_marker: bytes) -> Block:
    """Return one block of the journal of rejected SENDs.

    Args:
        sends: Those that follow, in order.
        before: Where the block belongs; its revision is that journal's own.
        sync_marker: Of the file.

    Raises:
        ValueError: Nothing to encode, a revision is not the next one, or time runs backwards.
    """
    revision = before.revision
    now = before.accepted_at_us
    parts: list[bytes] = []
    for send in sends:
        if send.revision != revision + 1 or send.rejected_at_us < now:
            raise ValueError(f"revision {send.revision} at {send.rejected_at_us} after {revision} at {now}")
        revision = send.revision
        now = send.rejected_at_us
        parts += (
            long(revision),
            long(now),
            bytes((KIND_DELETE if send.deleted else KIND_VALUE,)),
            text(send.destination),
            send.publisher.encoded or _identity(send.publisher),
            send.validation.encoded or _validation(send.validation),
            long(_value_length(send.validation, len(send.body))),
            pack(send.headers, send.body)[0],
            _STRING_FOLLOWS,
            text(send.disposition.encode()),
            _STRING_FOLLOWS,
            text(send.rejection.result.encode()),
            _STRING_FOLLOWS,
            text(send.rejection.reason.encode()),
            REJECTED_TAIL,
        )
    data, chain = _block(parts, len(sends), before.chain, sync_marker)
    after = Position(revision, now, chain)
    return Block(data, before, after, settling=False)


def _block(parts: list[bytes], count: int, seed: int, sync_marker: bytes) -> tuple[bytes, int]:
    """Return a block and its check; the last part must end with the null `check` of the last record."""
    if not parts:
        raise ValueError("no records")
    parts[-1] = parts[-1][:-1] + _CHECK_FOLLOWS
    data = b"".join(parts)
    head = long(count) + long(len(data) + CHECK_BYTES)
    check = zlib.crc32(data, zlib.crc32(head, seed))
    return b"".join((head, data, check.to_bytes(4, "big"), seed.to_bytes(4, "big"), sync_marker)), check


def _identity(identity: Identity) -> bytes:
    encoded = text(identity.principal.encode()) + text(identity.fingerprint.encode())
    identity.encoded = encoded
    return encoded


def _validation(validation: Validation) -> bytes:
    encoded = b"".join(
        (
            text(validation.encoding.encode()),
            text(validation.schema.encode()),
            text(validation.schema_version.encode()),
            text(validation.schema_fingerprint),
            long(validation.value_offset),
        )
    )
    if validation.value_length < 0:  # others are made for one change: a cache would only keep their bytes alive
        validation.encoded = encoded
    return encoded


def _value_length(validation: Validation, body_bytes: int) -> int:
    return validation.value_length if validation.value_length >= 0 else max(0, body_bytes - validation.value_offset)


def _pairs(items: list[bytes]) -> bytes:
    """Return an Avro array."""
    return long(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _positions(positions: Positions) -> bytes:
    return _pairs([text(destination) + long(revision) for destination, revision in positions])


def _other_record(record: SessionRecord | SequencesRecord, revision: int) -> bytes:
    """Return one record that is not a change, with a null check."""
    kind = KIND_SESSION_END
    principal = client_id = ""
    subscription = glob = positions = b""
    flags = b"\0\0"  # eager, low_water
    middle = SESSION_MIDDLE
    match record:
        case SubscriptionRecord():
            kind = KIND_SUBSCRIPTION
            subscription = record.subscription
            glob = record.glob
            flags = (b"\1" if record.eager else b"\0") + (
                b"\0" if record.low_water is None else b"\2" + long(record.low_water)
            )
        case UnsubscriptionRecord():
            kind = KIND_UNSUBSCRIPTION
            subscription = record.subscription
        case AcknowledgementRecord():
            kind = KIND_ACKNOWLEDGEMENT
            subscription = record.subscription
            positions = _positions(record.positions)
        case OwedRecord():
            kind = KIND_OWED
            subscription = record.subscription
            positions = _positions(record.positions)
        case SequencesRecord():
            kind = KIND_SEQUENCES
            glob = record.destination
            positions = _positions(record.sequences)
        case WillRecord():
            kind = KIND_WILL
            glob = record.destination
            middle = text(record.publisher.fingerprint.encode()) + WILL_MIDDLE + record.content + WILL_NULLS
            flags = b"\0\2" + long(record.delay_s)
        case WillEndRecord():
            kind = KIND_WILL_END
        case SessionEndRecord():
            pass
    if not isinstance(record, SequencesRecord):
        principal, client_id = record.principal, record.client_id
    return b"".join(
        (
            long(revision),
            long(record.accepted_at_us),
            bytes((kind,)),
            text(glob),
            text(principal.encode()),
            middle,
            text(client_id.encode()),
            text(subscription),
            flags,
            positions or b"\0",
            b"\0",
        )
    )
