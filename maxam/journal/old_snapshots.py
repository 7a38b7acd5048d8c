"""Read the sources of topics in a snapshot of a version before 0.2.0, which had no kind of record for them.

Such a snapshot holds them in the last headers of the topic's change. Each source has a `kept-source` header: its number, a space
and its name. Where the snapshot has no change for them, it has a delete without a publisher.
"""

from typing import Final

from maxam.content import pack
from maxam.records import Change, Record, SequencesRecord

_KEPT_SOURCE: Final = b"kept-source"  # no client can send it


def with_sequences(records: list[Record]) -> list[Record]:
    """Return the records of a block as a snapshot of today holds them.

    Raises:
        ValueError: A header of sources is not what those releases wrote.
    """
    found: list[Record] = []
    for record in records:
        if type(record) is Change and _KEPT_SOURCE in record.content[: record.body_at]:
            found += _split(record)
        else:
            found.append(record)
    return found


def _split(change: Change) -> list[Record]:
    """Return the change without these headers, unless they are all of it, and the record of its sources."""
    headers = change.headers
    count = len(headers)
    while count and headers[count - 1][0] == _KEPT_SOURCE:
        count -= 1
    if count == len(headers):
        return [change]
    sequences = []
    for _, value in headers[count:]:
        number, _, source = value.partition(b" ")
        sequences.append((source, int(number)))
    sources = SequencesRecord(change.revision, change.accepted_at_us, change.destination, tuple(sequences))
    if not change.publisher.principal:
        return [sources]
    content, body_at = pack(headers[:count], change.body)
    without = Change(
        change.revision,
        change.accepted_at_us,
        change.destination,
        change.deleted,
        change.publisher,
        change.validation,
        content,
        body_at,
    )
    return [without, sources]
