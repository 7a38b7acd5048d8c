"""The records of a journal in order, as people and programs read them, with a report in place of each unreadable part."""

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from maxam.journal.archive import plan
from maxam.journal.listing import REVISION_MAX, Problem, Records, time_text
from maxam.journal.reading import SegmentReader
from maxam.records import (
    AcknowledgementRecord,
    Change,
    OwedRecord,
    Record,
    RejectedSend,
    SequencesRecord,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    WillEndRecord,
    WillRecord,
)

_KINDS: Final = {
    SubscriptionRecord: "subscription",
    UnsubscriptionRecord: "unsubscription",
    AcknowledgementRecord: "acknowledgement",
    OwedRecord: "owed",
    SessionEndRecord: "session_end",
    WillRecord: "will",
    WillEndRecord: "will_end",
}


def read_records(
    folder: str | os.PathLike[str],
    rejected: bool = False,
    first: int | None = None,
    last: int | None = None,
) -> Iterator[tuple[int, Record | RejectedSend] | Problem]:
    """Yield revision and record of all that a journal's segments hold, in order; a session's record has that of the change before it.

    A gateway may write meanwhile: what is there is read up to the last whole block.

    Args:
        folder: The journal's.
        rejected: Those of rejected SENDs, with their own revisions.
        first: First revision wanted.
        last: Last one wanted.

    Raises:
        JournalError: It is not the folder of a journal.
        OSError: It cannot be read.
    """
    kind: Records = "rejected" if rejected else "changes"
    segments, problems = plan(folder, kind, first, last)
    yield from problems
    low, high = first or 0, REVISION_MAX if last is None else last
    for segment in segments:
        try:
            reader = SegmentReader(folder, kind, segment)
        except FileNotFoundError:
            text = "it was removed while the journal was read"
            yield Problem("expired", segment.path, 0, segment.first, segment.last, text)
            continue
        with reader:
            reported = 0
            for block in reader:
                yield from reader.problems[reported:]
                reported = len(reader.problems)
                revision = reader.before
                for record in block:
                    revision = record.revision if isinstance(record, Change | RejectedSend) else revision
                    if low <= revision <= high:
                        yield revision, record
                if reader.revision > high:
                    break
            yield from reader.problems[reported:]


def concerns(record: Record | RejectedSend, wanted: Callable[[bytes], bool]) -> bool:
    """Return True if a record is about a destination that is wanted."""
    if isinstance(record, Change | RejectedSend | WillRecord):
        return wanted(record.destination)
    if isinstance(record, AcknowledgementRecord | OwedRecord):
        return any(wanted(destination) for destination, _ in record.positions)
    return False


def as_row(revision: int, record: Record | RejectedSend) -> dict[str, Any]:
    """Return a record as JSON holds it, without its body."""
    if isinstance(record, Change | RejectedSend):
        validation = record.validation
        at_us = record.rejected_at_us if isinstance(record, RejectedSend) else record.accepted_at_us
        row = {
            "revision": revision,
            "accepted_at": time_text(at_us),
            "kind": "delete" if record.deleted else "value",
            "destination": record.destination.decode(),
            "publisher": record.publisher.principal,
            "fingerprint": record.publisher.fingerprint,
            "encoding": validation.encoding,
            "schema": validation.schema,
            "schema_version": validation.schema_version,
            "schema_fingerprint": validation.schema_fingerprint.hex(),
            "headers": [[name.decode(), value.decode()] for name, value in record.headers],
            "bytes": len(record.body),
        }
        if isinstance(record, RejectedSend):
            rejection = record.rejection
            row |= {"disposition": record.disposition, "result": rejection.result, "reason": rejection.reason}
        return row
    if isinstance(record, SequencesRecord):
        raise TypeError("a segment holds no sources")
    row = {
        "revision": revision,
        "accepted_at": time_text(record.accepted_at_us),
        "kind": _KINDS[type(record)],
        "principal": record.principal,
        "client_id": record.client_id,
    }
    if isinstance(record, WillRecord):
        row |= {
            "destination": record.destination.decode(),
            "fingerprint": record.publisher.fingerprint,
            "delay_s": record.delay_s,
            "headers": [[name.decode(), value.decode()] for name, value in record.headers],
            "bytes": len(record.body),
        }
    elif not isinstance(record, SessionEndRecord | WillEndRecord):
        row["subscription"] = record.subscription.decode()
    if isinstance(record, SubscriptionRecord):
        row |= {"glob": record.glob.decode(), "eager": record.eager}
    if isinstance(record, AcknowledgementRecord | OwedRecord):
        row["positions"] = [[destination.decode(), reached] for destination, reached in record.positions]
    return row
