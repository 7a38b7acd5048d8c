"""Bytes to records: the contents of checked blocks, with equal identities, validations and topics shared."""

from collections.abc import Mapping
from typing import Final, cast, final

from maxam.content import read_long, read_text, text, unpack_headers
from maxam.journal.encoding import (
    KIND_ACKNOWLEDGEMENT,
    KIND_DELETE,
    KIND_END,
    KIND_OWED,
    KIND_SEQUENCES,
    KIND_SESSION_END,
    KIND_SUBSCRIPTION,
    KIND_UNSUBSCRIPTION,
    KIND_WILL,
    KIND_WILL_END,
    REJECTED_TAIL,
)
from maxam.journal.layout import RecordCursor, skip_identity, skip_validation
from maxam.records import (
    UNJUDGED,
    AcknowledgementRecord,
    Change,
    Identity,
    Named,
    OwedRecord,
    Positions,
    Record,
    RejectedSend,
    Rejection,
    SequencesRecord,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    Validation,
    WillEndRecord,
    WillRecord,
)

_NOBODY: Final = Identity("", "")


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
        "_known",
        "_validations",
        "accepted_at_us",
        "gapless",
        "mentioned",
        "revision",
    )

    def __init__(self, revision: int, accepted_at_us: int, known: Mapping[bytes, Named] | None = None) -> None:
        """Start after a record.

        Args:
            revision: Of the change before.
            accepted_at_us: Of the record before.
            known: A dict of the targets of changes, by destination. It may grow between two blocks. A change shares the
                destination of its target. Without `known`, changes share destinations with each other.
        """
        self.revision = revision
        self.accepted_at_us = accepted_at_us
        self.gapless = True
        self.mentioned = 0
        self._identities: Final[dict[bytes, Identity]] = {}
        self._validations: Final[dict[bytes, Validation]] = {}
        self._deletions: Final[dict[bytes, Validation]] = {}
        self._destinations: Final[dict[bytes, bytes]] = {}
        self._known: Final = None if known is None else cast("dict[bytes, Named]", known)  # its `get` is quick

    def decode(self, data: bytes, count: int) -> list[Record]:
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
        known = self._known
        target: Named | None = None
        identities = self._identities
        gapless = self.gapless
        latest = self.accepted_at_us
        cursor = RecordCursor(data, self.revision, gapless)
        shared = b""  # identity and validation of the change before, and its kind
        shared_kind = -1
        identity = _NOBODY
        validation = UNJUDGED
        for _ in range(count):
            is_change = cursor.next_record()
            at = cursor.at_us
            if at > latest:
                latest = at
            elif at < latest and gapless:
                raise ValueError(f"accepted_at {at} after {latest}")
            if not is_change:
                self._other_record(data, cursor, records)
                continue
            destination = cursor.destination()
            if known is None:
                destination = destinations.setdefault(destination, destination)
            else:
                target = known.get(destination)
                if target is not None:
                    destination = target.destination
            start = cursor.place
            kind = cursor.kind
            deleted = kind == KIND_DELETE
            if kind == shared_kind and data.startswith(shared, start):
                cursor.place = start + len(shared)
            else:
                middle = skip_identity(data, start)
                encoded = data[start:middle]
                identity = identities.get(encoded) or self._identity(encoded)
                end = cursor.place = skip_validation(data, middle)
                encoded = data[middle:end]
                validations = self._deletions if deleted else self._validations
                validation = validations.get(encoded) or self._validation(encoded, deleted)
                shared = data[start:end]
                shared_kind = kind
            cursor.value()
            judged = validation
            value_length = cursor.value_length
            body_at = cursor.body - cursor.headers
            rest = cursor.body_end - cursor.body - validation.value_offset
            if value_length != rest and (value_length or rest > 0):
                judged = Validation(
                    validation.encoding,
                    validation.schema,
                    validation.schema_version,
                    validation.schema_fingerprint,
                    validation.value_offset,
                    value_length,
                    validation.tombstone,
                )
            content = data[cursor.headers : cursor.body_end]
            change = Change(cursor.revision, at, destination, deleted, identity, judged, content, body_at)
            change.target = target
            records.append(change)
        cursor.require_end()
        self.revision = cursor.revision
        self.accepted_at_us = latest
        return records

    def _identity(self, encoded: bytes) -> Identity:
        principal, place = read_text(encoded, 0)
        fingerprint, _ = read_text(encoded, place)
        identity = Identity(principal.decode(), fingerprint.decode())
        self._identities[encoded] = identity
        return identity

    def _will_publisher(self, principal: bytes, fingerprint: bytes) -> Identity:
        encoded = text(principal) + text(fingerprint)
        return self._identities.get(encoded) or self._identity(encoded)

    def _validation(self, encoded: bytes, deleted: bool) -> Validation:
        """Make the shared validation of bodies whose datum is all the rest."""
        encoding, place = read_text(encoded, 0)
        schema, place = read_text(encoded, place)
        version, place = read_text(encoded, place)
        fingerprint, place = read_text(encoded, place)
        offset, _ = read_long(encoded, place)
        # only an envelope can be a deletion with a judged body; an empty body has a schema without version
        tombstone = deleted and encoding == b"envelope" and (not schema or len(version) > 0)
        validation = Validation(
            encoding.decode(), schema.decode(), version.decode(), fingerprint, offset, tombstone=tombstone
        )
        (self._deletions if deleted else self._validations)[encoded] = validation
        return validation

    def _positions(self, data: bytes, place: int, of_revisions: bool) -> tuple[Positions, int]:
        count, place = read_long(data, place)
        if not count:
            return (), place
        positions: list[tuple[bytes, int]] = []
        for _ in range(count):
            name, place = read_text(data, place)
            number, place = read_long(data, place)
            if number > self.mentioned and of_revisions:
                self.mentioned = number
            positions.append((self._destinations.setdefault(name, name), number))
        if data[place]:
            raise ValueError("positions in two parts")
        return tuple(positions), place + 1

    def _other_record(self, data: bytes, cursor: RecordCursor, records: list[Record]) -> None:
        """Append a record that is no change, unless it is the mark of a finished file."""
        kind = cursor.kind
        at = cursor.at_us
        glob = cursor.text()
        principal_bytes = cursor.text()
        fingerprint = cursor.middle()
        client_bytes = cursor.text()
        subscription = cursor.text()
        place = cursor.place
        eager = data[place] == 1
        low_water: int | None = None
        place += 1
        if data[place]:
            low_water, place = read_long(data, place + 1)
            if kind != KIND_WILL:
                self.mentioned = max(self.mentioned, low_water)
        else:
            place += 1
        positions, place = self._positions(data, place, kind != KIND_SEQUENCES)
        cursor.end_at(place)
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
        elif kind == KIND_WILL_END:
            records.append(WillEndRecord(at, principal, client_id))
        elif kind == KIND_WILL:
            content = data[cursor.headers : cursor.body_end]
            unpack_headers(content)  # else a garbled one would be found when it fires
            publisher = self._will_publisher(principal_bytes, fingerprint)
            body_at = cursor.body - cursor.headers
            records.append(WillRecord(at, client_id, publisher, glob, content, body_at, low_water or 0))
        elif kind == KIND_SEQUENCES and not self.gapless:
            records.append(SequencesRecord(cursor.revision, at, self._destinations.setdefault(glob, glob), positions))
        elif kind != KIND_END:
            raise ValueError(f"unknown kind {kind >> 1}")


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
    cursor = RecordCursor(data, revision)
    now = 0
    for _ in range(count):
        if not cursor.next_record():
            raise ValueError(f"unknown kind {cursor.kind >> 1}")
        at = cursor.at_us
        if at < now:
            raise ValueError(f"accepted_at {at} after {now}")
        now = at
        destination = cursor.text()
        identity = Identity(cursor.text().decode(), cursor.text().decode())
        encoding, schema, version = cursor.text().decode(), cursor.text().decode(), cursor.text().decode()
        fingerprint = cursor.text()
        offset, cursor.place = read_long(data, cursor.place)
        cursor.content()
        validation = Validation(encoding, schema, version, fingerprint, offset, cursor.value_length)
        headers, _ = unpack_headers(data, cursor.headers)
        disposition, result, reason = [_present(data, cursor) for _ in range(3)]
        if not data.startswith(REJECTED_TAIL[:-1], cursor.place):
            raise ValueError("not a rejected SEND")
        sends.append(
            RejectedSend(
                cursor.revision,
                at,
                destination,
                cursor.kind == KIND_DELETE,
                identity,
                validation,
                headers,
                data[cursor.body : cursor.body_end],
                disposition,
                Rejection(result, reason),
            )
        )
        cursor.end_at(cursor.place + len(REJECTED_TAIL) - 1)
    cursor.require_end()
    return sends


def _present(data: bytes, cursor: RecordCursor) -> str:
    """Return the string of a union with null."""
    if data[cursor.place] != 2:  # the zigzag of the union's index 1
        raise ValueError("a rejected SEND without disposition, result or reason")
    cursor.place += 1
    return cursor.text().decode()
