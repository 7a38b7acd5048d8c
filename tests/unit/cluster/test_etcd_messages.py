"""The messages of etcd: what the package protobuf decodes and encodes for the same definitions, and no other error than two."""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from maxam.cluster import etcd_messages as messages
from maxam.content import unsigned

BYTES, NUMBER, TEXT, FLAG = 12, 3, 9, 8  # types of fields
DEFINITIONS: dict[str, dict[str, tuple[int, int | str, bool]]] = {  # name: number, type or message, repeated
    "Header": {"member_id": (2, NUMBER, False), "revision": (3, NUMBER, False), "raft_term": (4, NUMBER, False)},
    "KeyValue": {
        "key": (1, BYTES, False),
        "create_revision": (2, NUMBER, False),
        "mod_revision": (3, NUMBER, False),
        "version": (4, NUMBER, False),
        "value": (5, BYTES, False),
    },
    "Range": {
        "key": (1, BYTES, False),
        "range_end": (2, BYTES, False),
        "limit": (3, NUMBER, False),
        "keys_only": (8, FLAG, False),
    },
    "RangeAnswer": {
        "header": (1, "Header", False),
        "kvs": (2, "KeyValue", True),
        "more": (3, FLAG, False),
        "count": (4, NUMBER, False),
    },
    "Put": {"key": (1, BYTES, False), "value": (2, BYTES, False), "lease": (3, NUMBER, False)},
    "Delete": {"key": (1, BYTES, False), "range_end": (2, BYTES, False)},
    "Compaction": {"revision": (1, NUMBER, False)},
    "Compare": {
        "result": (1, NUMBER, False),
        "target": (2, NUMBER, False),
        "key": (3, BYTES, False),
        "mod_revision": (6, NUMBER, False),
        "value": (7, BYTES, False),
    },
    "Op": {"range": (1, "Range", False), "put": (2, "Put", False)},
    "Txn": {"compare": (1, "Compare", True), "success": (2, "Op", True), "failure": (3, "Op", True)},
    "OpAnswer": {"range": (1, "RangeAnswer", False), "put": (2, "Header", False)},
    "TxnAnswer": {
        "header": (1, "Header", False),
        "succeeded": (2, FLAG, False),
        "responses": (3, "OpAnswer", True),
    },
    "Create": {
        "key": (1, BYTES, False),
        "range_end": (2, BYTES, False),
        "start_revision": (3, NUMBER, False),
        "fragment": (8, FLAG, False),
    },
    "Watch": {"create_request": (1, "Create", False)},
    "Event": {"type": (1, NUMBER, False), "kv": (2, "KeyValue", False), "prev_kv": (3, "KeyValue", False)},
    "WatchAnswer": {
        "header": (1, "Header", False),
        "watch_id": (2, NUMBER, False),
        "created": (3, FLAG, False),
        "canceled": (4, FLAG, False),
        "compact_revision": (5, NUMBER, False),
        "cancel_reason": (6, TEXT, False),
        "fragment": (7, FLAG, False),
        "events": (11, "Event", True),
    },
    "Status": {
        "header": (1, "Header", False),
        "version": (2, TEXT, False),
        "db_size": (3, NUMBER, False),
        "leader": (4, NUMBER, False),
        "errors": (8, TEXT, True),
        "db_size_in_use": (9, NUMBER, False),
        "db_size_quota": (12, NUMBER, False),
    },
}


def define() -> dict[str, Any]:
    """Return a class for each definition, made by the package protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="etcd_of_the_tests.proto", package="t", syntax="proto3")
    for name, fields in DEFINITIONS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                made.type, made.type_name = 11, f".t.{kind}"
            else:
                made.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in DEFINITIONS}


PB = define()
numbers = st.integers(0, 2**63 - 1)
keys = st.binary(max_size=40)
values = st.one_of(keys, st.binary(min_size=120, max_size=300))
headers = st.builds(PB["Header"], member_id=numbers, revision=numbers, raft_term=numbers)
pairs = st.builds(
    PB["KeyValue"], key=keys, create_revision=numbers, mod_revision=numbers, version=numbers, value=values
)
ranges = st.builds(
    PB["RangeAnswer"], header=headers, kvs=st.lists(pairs, max_size=3), more=st.booleans(), count=numbers
)
operations = st.one_of(st.builds(PB["OpAnswer"], range=ranges), st.builds(PB["OpAnswer"], put=headers))
txns = st.builds(PB["TxnAnswer"], header=headers, succeeded=st.booleans(), responses=st.lists(operations, max_size=3))
events = st.builds(PB["Event"], type=st.integers(0, 1), kv=pairs, prev_kv=pairs)
watches = st.builds(
    PB["WatchAnswer"],
    header=headers,
    watch_id=numbers,
    created=st.booleans(),
    canceled=st.booleans(),
    compact_revision=numbers,
    cancel_reason=st.text(max_size=10),
    fragment=st.booleans(),
    events=st.lists(events, max_size=3),
)
states = st.builds(
    PB["Status"],
    header=headers,
    version=st.text(max_size=8),
    db_size=numbers,
    leader=numbers,
    errors=st.lists(st.text(max_size=5), max_size=2),
    db_size_in_use=numbers,
    db_size_quota=numbers,
)


def pair(kv: Any) -> messages.KeyValue:
    """Return a key and its value as the decoders do."""
    return messages.KeyValue(kv.key, kv.value, kv.mod_revision)


def of_range(answer: Any) -> messages.RangeAnswer:
    """Return the answer to a range request as the decoders do."""
    return messages.RangeAnswer(answer.header.revision, [pair(kv) for kv in answer.kvs], answer.more)


@given(keys, keys, numbers, st.booleans())
def test_range_requests(key: bytes, end: bytes, limit: int, keys_only: bool) -> None:
    """A range request has its fields."""
    data = messages.range_request(key, end, limit=limit, keys_only=keys_only)
    assert PB["Range"].FromString(data) == PB["Range"](key=key, range_end=end, limit=limit, keys_only=keys_only)


@given(keys, values, numbers)
def test_requests(key: bytes, value: bytes, number: int) -> None:
    """Requests have their fields."""
    assert PB["Put"].FromString(messages.put_request(key, value)) == PB["Put"](key=key, value=value)
    assert PB["Delete"].FromString(messages.delete_range_request(key, value)) == PB["Delete"](key=key, range_end=value)
    assert PB["Compaction"].FromString(messages.compaction_request(number)) == PB["Compaction"](revision=number)
    watch = PB["Watch"].FromString(messages.watch_request(key, value, number))
    assert watch.create_request == PB["Create"](key=key, range_end=value, start_revision=number, fragment=True)


@given(st.binary(min_size=1, max_size=40), values, numbers)
def test_transactions(key: bytes, value: bytes, version: int) -> None:
    """A transaction has its comparisons, of which the version is encoded even if it is 0, and both branches."""
    put, read = messages.put_op(messages.put_request(key, value)), messages.range_op(messages.range_request(key))
    compare = messages.written_at(key, version)
    found = PB["Txn"].FromString(messages.txn_request([compare, messages.holds(key, value)], [put, put], [read]))
    assert compare.endswith(unsigned(version))
    written, held = found.compare
    assert (written.result, written.target, written.key, written.mod_revision) == (0, 2, key, version)
    assert (held.result, held.target, held.key, held.value) == (0, 3, key, value)
    assert [one.put for one in found.success] == [PB["Put"](key=key, value=value)] * 2
    assert [one.range for one in found.failure] == [PB["Range"](key=key)]


@pytest.mark.slow
@given(ranges, txns, watches, states)
def test_answers(found: Any, txn: Any, watch: Any, state: Any) -> None:
    """Answers are decoded as protobuf decodes them; fields that are not used are skipped."""
    assert messages.range_answer(found.SerializeToString()) == of_range(found)
    assert messages.header_revision(found.SerializeToString()) == found.header.revision
    read = messages.txn_answer(txn.SerializeToString())
    assert (read.revision, read.succeeded) == (txn.header.revision, txn.succeeded)
    assert read.ranges == [of_range(one.range) for one in txn.responses if one.HasField("range")]
    assert messages.watch_answer(watch.SerializeToString()) == messages.WatchAnswer(
        watch.created,
        watch.canceled,
        watch.compact_revision,
        watch.cancel_reason,
        [messages.Event(one.type == 1, pair(one.kv)) for one in watch.events],
    )
    assert messages.status_answer(state.SerializeToString()) == messages.StatusAnswer(
        state.header.member_id,
        state.version,
        state.db_size,
        state.db_size_in_use,
        state.db_size_quota,
        leads=state.leader != 0 and state.leader == state.header.member_id,
        has_leader=state.leader != 0,
    )


DECODERS = [
    messages.range_answer,
    messages.txn_answer,
    messages.header_revision,
    messages.watch_answer,
    messages.status_answer,
]


@given(st.one_of(st.binary(), txns.map(lambda one: one.SerializeToString()[:-1])), st.sampled_from(DECODERS))
def test_other_bytes(data: bytes, decoder: Any) -> None:
    """Bytes that are no message raise ValueError or IndexError, and nothing else."""
    try:
        decoder(data)
    except (ValueError, IndexError):
        return


@pytest.mark.parametrize("decoder", DECODERS)
def test_cut_short(decoder: Any) -> None:
    """An answer that ends within a field is refused."""
    whole = PB["RangeAnswer"](header=PB["Header"](revision=7), kvs=[PB["KeyValue"](key=b"k")]).SerializeToString()
    for end in (1, 3, len(whole) - 1):
        with pytest.raises((ValueError, IndexError)):
            messages.range_answer(whole[:end])
    with pytest.raises((ValueError, IndexError)):
        decoder(b"\x0f")
