"""The messages of etcd's API that a log needs: requests are encoded and answers are decoded by hand.

etcd speaks gRPC with Protocol Buffers. A dozen messages do not justify a package and generated code. The names of the functions and
the numbers of the fields are those of etcd's `rpc.proto` and `kv.proto`. Unknown fields of an answer are skipped, as the format demands.

Answers are large: a page of the log is 4 MiB within five nested messages. So the decoder moves through one piece of bytes, and copies
only keys and values.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from maxam.content import read_unsigned, unsigned

RANGE: Final = "/etcdserverpb.KV/Range"
PUT: Final = "/etcdserverpb.KV/Put"
DELETE_RANGE: Final = "/etcdserverpb.KV/DeleteRange"
TXN: Final = "/etcdserverpb.KV/Txn"
COMPACT: Final = "/etcdserverpb.KV/Compact"
WATCH: Final = "/etcdserverpb.Watch/Watch"
STATUS: Final = "/etcdserverpb.Maintenance/Status"

STATUS_REQUEST: Final = b""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NO_SPACE: Final = b"alarm:NOSPACE"
_MOD_REVISION: Final = 2  # CompareTarget
_VALUE: Final = 3
_DELETE: Final = 1  # EventType


class KeyValue(NamedTuple):
    """A key and its value.

    Attributes:
        key: The key.
        value: The value; empty if only keys were requested, and for an event that deletes the key.
        mod_revision: Revision of the store that wrote it.
    """

    key: bytes
    value: bytes
    mod_revision: int


class RangeAnswer(NamedTuple):
    """The answer to a range request.

    Attributes:
        revision: Revision of the store that was read; 0 within a transaction.
        values: Keys and values, in the order of the keys.
        more: The range has more keys than the limit.
    """

    revision: int
    values: list[KeyValue]
    more: bool


class TxnAnswer(NamedTuple):
    """The answer to a transaction.

    Attributes:
        revision: Revision of the store after it.
        succeeded: All comparisons were true.
        ranges: Answers to the range requests of the branch that was executed.
    """

    revision: int
    succeeded: bool
    ranges: list[RangeAnswer]


class Event(NamedTuple):
    """A change of a key.

    Attributes:
        deleted: The key was deleted.
        kv: The key and its new value.
    """

    deleted: bool
    kv: KeyValue


class WatchAnswer(NamedTuple):
    """One message of a watch.

    Attributes:
        created: The watch begins.
        canceled: The watch has ended.
        compact_revision: Oldest revision that the store holds, if the watch asked for an older one; else 0.
        reason: Reason for its end.
        events: Changes, in order.
    """

    created: bool
    canceled: bool
    compact_revision: int
    reason: str
    events: list[Event]


class StatusAnswer(NamedTuple):
    """The state of one node.

    Attributes:
        member: Identifier of the node.
        version: Version of etcd.
        size: Size of its file.
        in_use: Bytes of it that are in use.
        quota: Limit on the size; 0 if the node does not report it.
        leads: The node is the leader of etcd's nodes.
        has_leader: The node knows a leader.
        full: The alarm of the quota is armed. It stays so until an operator ends it.
    """

    member: int
    version: str
    size: int
    in_use: int
    quota: int
    leads: bool
    has_leader: bool
    full: bool = False


def range_request(key: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False) -> bytes:
    """Encode a RangeRequest, which is linearizable.

    Args:
        key: First key.
        end: Key after the last one; empty for the first one alone.
        limit: Number of keys at most; 0 for all.
        keys_only: Omit the values.
    """
    return _bytes(1, key) + _bytes(2, end) + _number(3, limit) + _number(8, keys_only)


def put_request(key: bytes, value: bytes) -> bytes:
    """Encode a PutRequest."""
    return _bytes(1, key) + _bytes(2, value)


def delete_range_request(key: bytes, end: bytes = b"") -> bytes:
    """Encode a DeleteRangeRequest."""
    return _bytes(1, key) + _bytes(2, end)


def compaction_request(revision: int) -> bytes:
    """Encode a CompactionRequest."""
    return _number(1, revision)


def written_at(key: bytes, mod_revision: int) -> bytes:
    """Encode a Compare: the key was last written at this revision. With 0 it does not exist."""
    # A mod_revision of 0 is encoded too, because it is a member of a oneof.
    return _number(2, _MOD_REVISION) + _bytes(3, key) + b"\x30" + unsigned(mod_revision)


def holds(key: bytes, value: bytes) -> bytes:
    """Encode a Compare: the key has this value."""
    return _number(2, _VALUE) + _bytes(3, key) + _bytes(7, value)


def txn_request(compare: Sequence[bytes], success: Sequence[bytes], failure: Sequence[bytes]) -> bytes:
    """Encode a TxnRequest.

    Args:
        compare: Comparisons, from `written_at` and `holds`.
        success: Operations if all are true, from `range_op` and `put_op`.
        failure: Operations otherwise.
    """
    parts = [_bytes(1, one) for one in compare]
    parts += [_bytes(2, one) for one in success]
    parts += [_bytes(3, one) for one in failure]
    return b"".join(parts)


def range_op(request: bytes) -> bytes:
    """Encode a RequestOp of a RangeRequest."""
    return _bytes(1, request)


def put_op(request: bytes) -> bytes:
    """Encode a RequestOp of a PutRequest."""
    return _bytes(2, request)


def watch_request(key: bytes, end: bytes, start_revision: int) -> bytes:
    """Encode a WatchRequest that creates a watch, whose large messages are sent in fragments."""
    return _bytes(1, _bytes(1, key) + _bytes(2, end) + _number(3, start_revision) + _number(8, 1))


def range_answer(data: bytes) -> RangeAnswer:
    """Decode a RangeResponse. Raises ValueError or IndexError, as all decoders here."""
    return _range_answer(data, 0, len(data))


def txn_answer(data: bytes) -> TxnAnswer:
    """Decode a TxnResponse."""
    revision, succeeded = 0, False
    ranges: list[RangeAnswer] = []
    for number, place, end in _fields(data, 0, len(data)):
        if number == 1:
            revision = _header(data, place, end)[1]
        elif number == 2:
            succeeded = bool(place)
        elif number == 3:
            ranges += [_range_answer(data, at, to) for op, at, to in _fields(data, place, end) if op == 1]
    return TxnAnswer(revision, succeeded, ranges)


def header_revision(data: bytes) -> int:
    """Return the revision of the store in the header of a response."""
    for number, place, end in _fields(data, 0, len(data)):
        if number == 1:
            return _header(data, place, end)[1]
    return 0


def watch_answer(data: bytes) -> WatchAnswer:
    """Decode a WatchResponse."""
    created = canceled = False
    compact_revision, reason = 0, ""
    events: list[Event] = []
    for number, place, end in _fields(data, 0, len(data)):
        if number == 3:
            created = bool(place)
        elif number == 4:
            canceled = bool(place)
        elif number == 5:
            compact_revision = place
        elif number == 6:
            reason = data[place:end].decode(errors="replace")
        elif number == 11:
            events.append(_event(data, place, end))
    return WatchAnswer(created, canceled, compact_revision, reason, events)


def status_answer(data: bytes) -> StatusAnswer:
    """Decode a StatusResponse."""
    version, full = "", False
    member = leader = size = in_use = quota = 0
    for number, place, end in _fields(data, 0, len(data)):
        if number == 1:
            member = _header(data, place, end)[0]
        elif number == 2:
            version = data[place:end].decode(errors="replace")
        elif number == 3:
            size = place
        elif number == 4:
            leader = place
        elif number == 8:
            full = full or _NO_SPACE in data[place:end]
        elif number == 9:
            in_use = place
        elif number == 12:
            quota = place
    leads = member == leader != 0
    return StatusAnswer(member, version, size, in_use, quota, leads=leads, has_leader=leader != 0, full=full)


def _bytes(number: int, value: bytes) -> bytes:
    return b"".join((unsigned(number << 3 | _BYTES), unsigned(len(value)), value)) if value else b""


def _number(number: int, value: int) -> bytes:
    return unsigned(number << 3) + unsigned(value) if value else b""


def _fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field that has bytes, and number, value and 0 of each that has a number."""
    if end > len(data):
        raise IndexError
    while place < end:
        tag, place = read_unsigned(data, place)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, place = read_unsigned(data, place)
            yield tag >> 3, value, 0
        elif wire_type == _BYTES:
            length, start = read_unsigned(data, place)
            place = start + length
            if place > end:
                raise IndexError
            yield tag >> 3, start, place
        elif wire_type in {_FIXED64, _FIXED32}:
            place += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
    if place != end:
        raise IndexError


def _header(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return the member and the revision of a ResponseHeader."""
    member = revision = 0
    for number, value, _ in _fields(data, place, end):
        if number == 2:
            member = value
        elif number == 3:
            revision = value
    return member, revision


def _range_answer(data: bytes, place: int, end: int) -> RangeAnswer:
    revision, more = 0, False
    values: list[KeyValue] = []
    for number, at, to in _fields(data, place, end):
        if number == 1:
            revision = _header(data, at, to)[1]
        elif number == 2:
            values.append(_key_value(data, at, to))
        elif number == 3:
            more = bool(at)
    return RangeAnswer(revision, values, more)


def _event(data: bytes, place: int, end: int) -> Event:
    deleted, kv = False, KeyValue(b"", b"", 0)
    for number, at, to in _fields(data, place, end):
        if number == 1:
            deleted = at == _DELETE
        elif number == 2:
            kv = _key_value(data, at, to)
    return Event(deleted, kv)


def _key_value(data: bytes, place: int, end: int) -> KeyValue:
    key = value = b""
    mod_revision = 0
    for number, at, to in _fields(data, place, end):
        if number == 1:
            key = data[at:to]
        elif number == 3:
            mod_revision = at
        elif number == 5:
            value = data[at:to]
    return KeyValue(key, value, mod_revision)
