"""The tables of a journal: their columns, and records of the journal as batches of rows of them.

Names and types are those that Spark's own Avro reader gives for the same records, so that what is read either way can be united.
"""

from collections.abc import Iterable, Iterator
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from maxam.journal.listing import Problem
from maxam.journal.reading import Block
from maxam.records import (
    AcknowledgementRecord,
    Change,
    OwedRecord,
    Positions,
    Record,
    RejectedSend,
    SessionEndRecord,
    SubscriptionRecord,
    UnsubscriptionRecord,
    WillEndRecord,
    WillRecord,
)

BATCH_ROWS_MAX: Final = 10_000  # Spark's own limit for a batch of Arrow
BATCH_BYTES_MAX: Final = 8 << 20  # of bodies and headers: a batch is in memory four times on its way into Spark


def _columns(**types: DataType) -> StructType:
    """Return columns that may be null, as those of a file always may for Spark."""
    return StructType([StructField(name, kind, nullable=True) for name, kind in types.items()])


CHANGE_COLUMNS: Final = _columns(
    revision=LongType(),
    accepted_at=TimestampType(),
    kind=StringType(),
    destination=StringType(),
    publisher=StringType(),
    fingerprint=StringType(),
    encoding=StringType(),
    schema=StringType(),
    schema_version=StringType(),
    schema_fingerprint=BinaryType(),
    value_offset=LongType(),
    value_length=LongType(),
    headers=ArrayType(_columns(name=StringType(), value=StringType())),
    body=BinaryType(),
)
"""Accepted changes: `kind` is `value` or `delete`, `revision` is gapless. The bare datum is
`body[value_offset : value_offset + value_length]`."""

REJECTED_COLUMNS: Final = StructType(
    [*CHANGE_COLUMNS.fields, *_columns(disposition=StringType(), result=StringType(), reason=StringType()).fields]
)
"""Rejected SENDs; `revision` is their own counter."""

SESSION_COLUMNS: Final = _columns(
    revision=LongType(),
    accepted_at=TimestampType(),
    kind=StringType(),
    glob=StringType(),
    principal=StringType(),
    client_id=StringType(),
    subscription=StringType(),
    eager=BooleanType(),
    low_water=LongType(),
    positions=ArrayType(_columns(destination=StringType(), revision=LongType())),
)
"""Operations of durable sessions. `revision` is that of the change before. `kind` is `subscription`, `unsubscription`,
`acknowledgement`, `owed`, `session_end`, `will` or `will_end`. `glob` of a will is its destination, `low_water` its delay in
seconds."""

PROBLEM_COLUMNS: Final = _columns(
    kind=StringType(),
    path=StringType(),
    offset=LongType(),
    first=LongType(),
    last=LongType(),
    text=StringType(),
    lost=BooleanType(),
)
"""Parts of a journal that cannot be read, or are odd: the fields of `Problem`."""

_CHANGES: Final = to_arrow_schema(CHANGE_COLUMNS, timezone="UTC")
_REJECTED: Final = to_arrow_schema(REJECTED_COLUMNS, timezone="UTC")
_SESSIONS: Final = to_arrow_schema(SESSION_COLUMNS, timezone="UTC")
_PROBLEMS: Final = to_arrow_schema(PROBLEM_COLUMNS, timezone="UTC")


def send_batches(blocks: Iterable[Block], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield the changes among records as rows of `CHANGE_COLUMNS`, or rejected SENDs as rows of `REJECTED_COLUMNS`.

    Args:
        blocks: Records of one journal, in order.
        first: Those of lower revisions are left out.
        last: So are those of higher ones.
    """
    sends: list[Change | RejectedSend] = []
    length = 0
    for records in blocks:
        for record in records:
            if isinstance(record, Change | RejectedSend) and first <= record.revision <= last:
                sends.append(record)
                length += len(record.body)
                for name, value in record.headers:
                    length += len(name) + len(value)
                if len(sends) == BATCH_ROWS_MAX or length >= BATCH_BYTES_MAX:
                    yield _send_batch(sends)
                    sends = []
                    length = 0
    if sends:
        yield _send_batch(sends)


def _send_batch(sends: list[Change | RejectedSend]) -> pa.RecordBatch:
    """Return changes, or rejected SENDs, but not both, as a batch."""
    publishers = [one.publisher for one in sends]
    validations = [one.validation for one in sends]
    columns: list[list[object]] = [
        [one.revision for one in sends],
        [one.accepted_at_us if isinstance(one, Change) else one.rejected_at_us for one in sends],
        ["delete" if one.deleted else "value" for one in sends],
        [one.destination for one in sends],
        [one.principal for one in publishers],
        [one.fingerprint for one in publishers],
        [one.encoding for one in validations],
        [one.schema for one in validations],
        [one.schema_version for one in validations],
        [one.schema_fingerprint for one in validations],
        [one.value_offset for one in validations],
        [
            one.value_length if one.value_length >= 0 else max(0, len(send.body) - one.value_offset)
            for send, one in zip(sends, validations, strict=True)
        ],
        [one.headers for one in sends],
        [one.body for one in sends],
    ]
    rejected = [one for one in sends if isinstance(one, RejectedSend)]
    if rejected:
        columns += [
            [one.disposition for one in rejected],
            [one.rejection.result for one in rejected],
            [one.rejection.reason for one in rejected],
        ]
    return _batch(columns, _REJECTED if rejected else _CHANGES)


def session_batches(blocks: Iterable[tuple[int, Block]], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of sessions among records as rows of `SESSION_COLUMNS`.

    Args:
        blocks: Records in order, with the revision of the change before them.
        first: Records after a change of a lower revision are left out.
        last: Records after a change of a higher revision are left out.
    """
    rows: list[_SessionRow] = []
    length = 0
    for before, records in blocks:
        revision = before
        for record in records:
            if isinstance(record, Change | RejectedSend):
                revision = record.revision
            elif first <= revision <= last:
                row = _session_row(revision, record)
                rows.append(row)
                length += len(row[-1])
                if len(rows) == BATCH_ROWS_MAX or length >= BATCH_ROWS_MAX:
                    yield _batch(zip(*rows, strict=True), _SESSIONS)
                    rows = []
                    length = 0
    if rows:
        yield _batch(zip(*rows, strict=True), _SESSIONS)


_SessionRow = tuple[int, int, str, bytes, str, str, bytes, bool, int | None, Positions]


def _session_row(revision: int, record: Record | RejectedSend) -> _SessionRow:
    subscription = glob = b""
    eager = False
    low_water: int | None = None
    positions: Positions = ()
    match record:
        case SubscriptionRecord():
            kind = "subscription"
            subscription, glob, eager, low_water = record.subscription, record.glob, record.eager, record.low_water
        case UnsubscriptionRecord():
            kind = "unsubscription"
            subscription = record.subscription
        case AcknowledgementRecord():
            kind = "acknowledgement"
            subscription, positions = record.subscription, record.positions
        case OwedRecord():
            kind = "owed"
            subscription, positions = record.subscription, record.positions
        case SessionEndRecord():
            kind = "session_end"
        case WillRecord():
            kind = "will"
            glob, low_water = record.destination, record.delay_s
        case WillEndRecord():
            kind = "will_end"
        case _:
            raise ValueError("not a record of a session")
    at_us = record.accepted_at_us
    return revision, at_us, kind, glob, record.principal, record.client_id, subscription, eager, low_water, positions


def problem_batch(problems: list[Problem]) -> pa.RecordBatch:
    """Return problems as rows of `PROBLEM_COLUMNS`."""
    columns = [[getattr(one, name) for one in problems] for name in _PROBLEMS.names]
    return _batch(columns, _PROBLEMS)


def _batch(columns: Iterable[Iterable[object]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_array(list(column), kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    """Return a column; lists of pairs are arrays of structs with two fields."""
    if not pa.types.is_list(kind):
        return pa.array(values, kind)
    offsets = [0]
    names: list[object] = []
    seconds: list[object] = []
    for pairs in cast("list[tuple[tuple[object, object], ...]]", values):
        for name, second in pairs:
            names.append(name)
            seconds.append(second)
        offsets.append(len(names))
    item = kind.value_type
    arrays = [pa.array(part, field.type) for part, field in zip((names, seconds), item, strict=True)]
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(arrays, fields=list(item)), type=kind
    )
