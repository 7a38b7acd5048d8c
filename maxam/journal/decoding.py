"""Bytes to records: the contents of checked blocks, with equal identities, judgements and topics shared."""

from typing import Final, final

from maxam.content import behind_headers, behind_text, read_long, read_text, read_unsigned, unpack_headers
from maxam.journal.encoding import (
    CHANGE_TAIL,
    CHECK_BYTES,
    KIND_ACKNOWLEDGEMENT,
    KIND_DELETE,
    KIND_END,
    KIND_OWED,
    KIND_SESSION_END,
    KIND_SUBSCRIPTION,
    KIND_UNSUBSCRIPTION,
    KIND_VALUE,
    LOW,
    REJECTED_TAIL,
    SESSION_MIDDLE,
)
from maxam.records import (
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Identity,
    Judgement,
    OwedRecord,
    Positions,
    Record,
    RejectedSend,
    Rejection,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
)

_NULLS_OF_CHANGE: Final = CHANGE_TAIL[:-1]  # all but `check`
_NOBODY: Final = Identity("", "")
NO_STAMP: Final = b"\xff" * 10  # in no record: a number ends within ten bytes, with one below 0x80


@final
class Decoder:
    """Decodes the records of one stream, and keeps what they share.

    Attributes:
        revision: Of the last change decoded.
        accepted_at_us: The latest of all records decoded.
        gapless: False while a snapshot is decoded, see `Encoder`.
        mentioned: The highest revision that a session record speaks of: above the last change's, something is missing.
    """

    __slots__ = (
        "_deletions",
        "_destinations",
        "_identities",
        "_judgements",
        "accepted_at_us",
        "gapless",
        "mentioned",
        "revision",
    )

    def __init__(self, revision: int, accepted_at_us: int) -> None:
        """Start behind a record.

        Args:
            revision: Of the change before.
            accepted_at_us: Of the record before.
        """
        self.revision = revision
        self.accepted_at_us = accepted_at_us
        self.gapless = True
        self.mentioned = 0
        self._identities: Final[dict[bytes, Identity]] = {}
        self._judgements: Final[dict[bytes, Judgement]] = {}
        self._deletions: Final[dict[bytes, Judgement]] = {}
        self._destinations: Final[dict[bytes, bytes]] = {}

    def decode(self, data: bytes, count: int) -> list[Record]:  # noqa: C901, PLR0912, PLR0915 - one loop without calls, as it runs a million times at each start
        """Return the records of a block whose check was found right.

        Args:
            data: The block without count, size and sync marker.
            count: Of records in it.

        Raises:
            ValueError: It is not what an `Encoder` writes, or its revisions or times do not follow. The decoder is of no
                further use.
            IndexError: The same.
        """
        records: list[Record] = []
        destinations = self._destinations
        identities = self._identities
        gapless = self.gapless
        last_revision = self.revision
        latest = self.accepted_at_us
        place = 0
        at = 0
        told = b""  # identity and judgement of the change before, and its kind
        told_kind = -1
        identity = _NOBODY
        judgement = UNJUDGED
        stamp = NO_STAMP  # high part of the revision, and accepted_at, of the record before
        for _ in range(count):
            low = ((last_revision + 1) << 1) & 16383
            end = place + 2 + len(stamp)
            if low and data[place : place + 2] == LOW[low] and data[place + 2 : end] == stamp:
                revision = last_revision + 1  # the next change, received with the one before
                place = end
            else:
                end = place + 2
                revision, place = read_long(data, place)
                start = place
                at, place = read_long(data, place)
                # a revision of less than three bytes has no high part: no stamp that could match
                stamp = data[end:place] if start > end else NO_STAMP
                if at > latest:
                    latest = at
                elif at < latest and gapless:
                    raise ValueError(f"accepted_at {at} after {latest}")
            kind = data[place]
            if kind != KIND_VALUE and kind != KIND_DELETE:  # noqa: PLR1714 - twice as fast as a set
                if revision != last_revision:
                    raise ValueError(f"revision {revision} of a session record after change {last_revision}")
                place = self._session_record(data, place, at, records)
                continue
            if revision != last_revision + 1 and (gapless or revision <= last_revision):
                raise ValueError(f"revision {revision} after {last_revision}")
            last_revision = revision

            length = data[place + 1]
            place += 2
            if length > 127:
                length, place = read_unsigned(data, place - 1)
            end = place + (length >> 1)
            destination = data[place:end]
            destination = destinations.setdefault(destination, destination)
            place = end

            deleted = kind == KIND_DELETE
            if kind == told_kind and data.startswith(told, place):
                place += len(told)  # the same publisher and schema as the record before
            else:
                start = place
                length = data[place]
                end = place + 1 + (length >> 1)
                if length < 128 and data[end] == 0x80 and data[end + 1] == 1:
                    end += 66  # a fingerprint of 64 characters
                else:
                    end = behind_text(data, behind_text(data, place))
                shared = data[place:end]
                identity = identities.get(shared) or self._identity(shared)
                place = end

                judgements = self._deletions if deleted else self._judgements
                # mostly five short fields: four strings and an offset of one byte
                one = data[place]
                end = place + 1 + (one >> 1)
                two = data[end] if one < 128 else 128
                end += 1 + (two >> 1)
                three = data[end] if two < 128 else 128
                end += 1 + (three >> 1)
                four = data[end] if three < 128 else 128
                end += 1 + (four >> 1)
                if four < 128 and data[end] < 128:
                    end += 1
                else:
                    end = behind_text(data, behind_text(data, behind_text(data, behind_text(data, place))))
                    end = read_unsigned(data, end)[1]
                shared = data[place:end]
                judgement = judgements.get(shared) or self._judgement(shared, deleted)
                place = end
                told = data[start:place]
                told_kind = kind

            value_length = data[place]
            place += 1
            if value_length > 127:
                if data[place] < 128:
                    value_length += (data[place] << 7) - 128
                    place += 1
                else:
                    value_length, place = read_unsigned(data, place - 1)
            start = place
            place = behind_headers(data, place) if data[place] else place + 1
            length = data[place]
            place += 1
            if length > 127:
                if data[place] < 128:
                    length += (data[place] << 7) - 128
                    place += 1
                else:
                    length, place = read_unsigned(data, place - 1)
            if length & 1:
                raise ValueError("negative number")  # it would be written again as it is
            length >>= 1
            body_at = place - start
            end = place + length
            content = data[start:end]
            place = end + 8
            if data[end:place] != _NULLS_OF_CHANGE:
                raise ValueError("not a change")
            # the check of the last record was examined with the block
            place += 1 + CHECK_BYTES if data[place] else 1

            judged = judgement
            value_length >>= 1
            rest = length - judgement.value_offset
            if value_length != rest and (value_length or rest > 0):
                judged = Judgement(
                    judgement.encoding,
                    judgement.schema,
                    judgement.schema_version,
                    judgement.schema_fingerprint,
                    judgement.value_offset,
                    value_length,
                    judgement.tombstone,
                )
            records.append(Change(revision, at, destination, deleted, identity, judged, content, body_at))
        if place != len(data):
            raise ValueError("bytes follow the last record")
        self.revision = last_revision
        self.accepted_at_us = latest
        return records

    def _identity(self, encoded: bytes) -> Identity:
        principal, place = read_text(encoded, 0)
        fingerprint, _ = read_text(encoded, place)
        identity = Identity(principal.decode(), fingerprint.decode())
        self._identities[encoded] = identity
        return identity

    def _judgement(self, encoded: bytes, deleted: bool) -> Judgement:
        """Make the shared judgement of bodies whose datum is all the rest."""
        encoding, place = read_text(encoded, 0)
        schema, place = read_text(encoded, place)
        version, place = read_text(encoded, place)
        fingerprint, place = read_text(encoded, place)
        offset, _ = read_long(encoded, place)
        # only an envelope can be a deletion with a judged body; an empty body has a schema without version
        tombstone = deleted and encoding == b"envelope" and (not schema or len(version) > 0)
        judgement = Judgement(
            encoding.decode(), schema.decode(), version.decode(), fingerprint, offset, tombstone=tombstone
        )
        (self._deletions if deleted else self._judgements)[encoded] = judgement
        return judgement

    def _positions(self, data: bytes, place: int) -> tuple[Positions, int]:
        count, place = read_long(data, place)
        if not count:
            return (), place
        positions: list[tuple[bytes, int]] = []
        for _ in range(count):
            destination, place = read_text(data, place)
            revision, place = read_long(data, place)
            if revision > self.mentioned:
                self.mentioned = revision
            positions.append((self._destinations.setdefault(destination, destination), revision))
        if data[place]:
            raise ValueError("positions in two parts")
        return tuple(positions), place + 1

    def _session_record(self, data: bytes, place: int, at: int, records: list[Record]) -> int:
        """Append the record whose kind is at `place`, unless it is the mark of a finished file; return the place behind it."""
        kind = data[place]
        glob, place = read_text(data, place + 1)
        principal_bytes, place = read_text(data, place)
        if not data.startswith(SESSION_MIDDLE, place):
            raise ValueError("not a session record")
        client_bytes, place = read_text(data, place + len(SESSION_MIDDLE))
        subscription, place = read_text(data, place)
        eager = data[place] == 1
        low_water: int | None = None
        place += 1
        if data[place]:
            low_water, place = read_long(data, place + 1)
            self.mentioned = max(self.mentioned, low_water)
        else:
            place += 1
        positions, place = self._positions(data, place)
        place += 1 + CHECK_BYTES if data[place] else 1
        principal = principal_bytes.decode()
        client_id = client_bytes.decode()
        if kind == KIND_SUBSCRIPTION:
            records.append(SubscriptionRecord(at, principal, client_id, subscription, glob, eager, low_water))
        elif kind == KIND_UNSUBSCRIPTION:
            records.append(UnsubscriptionRecord(at, principal, client_id, subscription))
        elif kind == KIND_ACKNOWLEDGEMENT:
            records.append(AcknowledgementRecord(at, principal, client_id, subscription, positions))
        elif kind == KIND_OWED:
            records.append(OwedRecord(at, principal, client_id, subscription, positions))
        elif kind == KIND_SESSION_END:
            records.append(SessionEndRecord(at, principal, client_id))
        elif kind != KIND_END:
            raise ValueError(f"unknown kind {kind >> 1}")
        return place


def first_record(data: bytes) -> tuple[int, int, int]:
    """Return the revision of the first change in or behind a block, the time of its first record, and its kind; 0, 0, 0 if garbled."""
    try:
        revision, place = read_unsigned(data, 0)
        at_us, place = read_unsigned(data, place)
        kind = data[place]
    except (ValueError, IndexError):
        return 0, 0, 0
    return (revision >> 1) + (kind not in {KIND_VALUE, KIND_DELETE}), at_us >> 1, kind


def decode_rejected(data: bytes, count: int, revision: int) -> list[RejectedSend]:
    """Return the records of a block of the journal of rejected SENDs whose check was found right.

    Args:
        data: The block without count, size and sync marker.
        count: Of records in it.
        revision: Of the record before it.

    Raises:
        ValueError: It is not what `encode_rejected` writes, or its revisions or times do not follow.
        IndexError: The same.
    """
    sends: list[RejectedSend] = []
    place = 0
    now = 0
    for _ in range(count):
        found, place = read_long(data, place)
        if found != revision + 1:
            raise ValueError(f"revision {found} after {revision}")
        revision = found
        at, place = read_long(data, place)
        if at < now:
            raise ValueError(f"accepted_at {at} after {now}")
        now = at
        kind = data[place]
        if kind not in {KIND_VALUE, KIND_DELETE}:
            raise ValueError(f"unknown kind {kind >> 1}")
        destination, place = read_text(data, place + 1)
        principal, place = read_text(data, place)
        fingerprint, place = read_text(data, place)
        encoding, place = read_text(data, place)
        schema, place = read_text(data, place)
        version, place = read_text(data, place)
        schema_fingerprint, place = read_text(data, place)
        offset, place = read_long(data, place)
        length, place = read_long(data, place)
        judgement = Judgement(encoding.decode(), schema.decode(), version.decode(), schema_fingerprint, offset, length)
        headers, place = unpack_headers(data, place)
        body, place = read_text(data, place)
        disposition, place = _present(data, place)
        result, place = _present(data, place)
        reason, place = _present(data, place)
        if not data.startswith(REJECTED_TAIL[:-1], place):
            raise ValueError("not a rejected SEND")
        place += len(REJECTED_TAIL) - 1
        place += 1 + CHECK_BYTES if data[place] else 1
        sends.append(
            RejectedSend(
                revision,
                at,
                destination,
                kind == KIND_DELETE,
                Identity(principal.decode(), fingerprint.decode()),
                judgement,
                headers,
                body,
                disposition.decode(),
                Rejection(result.decode(), reason.decode()),
            )
        )
    if place != len(data):
        raise ValueError("bytes follow the last record")
    return sends


def _present(data: bytes, place: int) -> tuple[bytes, int]:
    """Return the string of a union with null."""
    if data[place] != 2:  # the zigzag of the union's index 1
        raise ValueError("a rejected SEND without disposition, result or reason")
    return read_text(data, place + 1)
