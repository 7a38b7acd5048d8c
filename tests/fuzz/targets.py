"""The targets of fuzzing: each takes any bytes and raises for whatever must not be.

Only the exceptions that a function documents are caught here. All else that a target raises, an assertion first of all, is a
finding. Where a second opinion is to be had (fastavro, a definition, the same bytes in other pieces) it is asked.
"""

import contextlib
import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro

from maxam.avro.data import decode
from maxam.avro.envelope import ENVELOPE_TEXT, Envelope, EnvelopeKeys, open_envelope, trace_envelope
from maxam.avro.registry import Registry, inspect_registry, load_registry
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.avro.walker import Walker
from maxam.broker.operations import Proof, SessionStep, Terms
from maxam.broker.policy import load_policy
from maxam.broker.producer_sequences import ProducerSequences, mark_of
from maxam.cluster import wire
from maxam.cluster.entry import (
    FILE,
    GENESIS,
    HANDOVER,
    SEAL,
    TERM,
    Entry,
    EntryError,
    block_entry,
    file_payload,
    read_entry,
    term_payload,
    texts_payload,
)
from maxam.cluster.entry import SCHEMAS as SCHEMAS_ENTRY
from maxam.cluster.operations import OperationsError, OperationsReader, OperationsWriter
from maxam.config import Limits, load_settings
from maxam.content import pack, unpack_headers
from maxam.errors import ConfigurationError, GlobError, JournalDamagedError, PolicyError, ProtocolError, SchemaError
from maxam.glob_sets import overlap
from maxam.globs import Glob, compile_glob, destination_problem
from maxam.journal.decoding import Decoder as RecordDecoder
from maxam.journal.decoding import decode_rejected
from maxam.journal.encoding import SCHEMA, START, Encoder, encode_rejected, end_block, header
from maxam.journal.encoding import _block as block_of
from maxam.journal.newest import NewestChanges, NewestRows, decode_records
from maxam.journal.old_snapshots import with_sequences
from maxam.journal.scan import Scanner
from maxam.journal.splice import Rows, Splicer
from maxam.records import UNJUDGED, Change, Record, SequencesRecord, Validation
from maxam.stomp import encoder
from maxam.stomp.answers import read_answer
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, Condition, Event, Failure, Send
from maxam.stomp.frames import SERVER_COMMANDS
from maxam.stomp.frames import Decoder as FrameDecoder
from maxam.stomp.protocol import Protocol
from tests.support.glob_reference import matches
from tests.support.journal_records import SINGLE_OBJECT, SYNC, change, one_of_each, plain, rejected
from tests.support.sans_io import EVERYTHING, World

# Small, so that short inputs reach them.
LIMITS: Final = Limits(
    frame_headers_max=12,
    frame_header_line_bytes_max=200,
    frame_headers_bytes_max=600,
    frame_body_bytes_max=1024,
    connect_frame_bytes_max=400,
    subscription_id_bytes_max=16,
    destination_bytes_max=64,
)
_PART: Final = b"\x1e"  # between the parts of an input that has several


@dataclass(frozen=True)
class Target:
    """Something to fuzz.

    Attributes:
        name: Name on the command line and of the folder of its corpus.
        check: Takes any bytes; raises when something is wrong.
        seeds: Makes inputs to begin with.
        words: Parts of inputs of this kind.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...]


def _must(truth: bool, text: str) -> None:
    if not truth:
        raise AssertionError(text)


# --- STOMP


_CONNECTS: Final = (
    b"CONNECT\naccept-version:1.1\nhost:MAXVAPI\n\n\0",
    b"STOMP\naccept-version:1.2\nhost:MAXVAPI\nclient-id:pump\nheart-beat:10000,0\nwindow:3\n\n\0",
)
_STOMP_WORDS: Final = (
    *_CONNECTS,
    *(b"SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT MESSAGE RECEIPT ERROR CONNECTED".split()),
    b"SEND\ndestination:X/a\nreceipt:r\n\nbody\0",
    b"SUBSCRIBE\nid:s\ndestination:X/*\nack:client\neager:true\ndurable:true\nreceipt:r\n\n\0",
    b"UNSUBSCRIBE\nid:s\ndurable:true\n\n\0",
    b"ACK\nid:s 1\n\n\0",
    b"ACK\nsubscription:s\nmessage-id:1\n\n\0",
    b"DISCONNECT\nreceipt:bye\n\n\0",
    *(b"destination: id: receipt: content-length: ack:auto ack:client durable:true durable:false eager:true".split()),
    *(b"transaction:t message-id: subscription: heart-beat: accept-version: client-id: host: window:".split()),
    *(b"if-revision: source: source-revision: schema-version: session: version: receipt-id: disposition:".split()),
    *(b"X/ X/a X/** X/a.b.c ** * ? [a-z] [!a] -1 0 00 +1 1e3 4294967296 9223372036854775808".split()),
    *(b"\0 \n \r \r\n \n\n \\n \\r \\c \\\\ \\t \\ :".split(b" ")),
    b"9" * 400,
    b"h:v\n" * 20,
    b"v" * 700,
    "ä€😀".encode(),
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xff",
    "\u202e".encode(),
)


def _session(version: int) -> bytes:
    connect = _CONNECTS[version]
    return b"".join(
        [
            connect,
            encoder.subscribe(version, b"s", b"X/m*", b"client", durable=True, eager=True, receipt_id=b"1"),
            encoder.send(version, b"X/m1", b"body\0with NUL", ((b"a", b"b:c\n"),), receipt_id=b"2"),
            encoder.send(version, b"X/m1", b"v", ((b"source", b"p"), (b"source-revision", b"7")), receipt_id=b"3"),
            encoder.ack(version, b"s", b"1", receipt_id=b"4"),
            encoder.send(version, b"X/m1", b"", receipt_id=b"5"),
            b"\n\r\n",
            encoder.unsubscribe(version, b"s", durable=True, receipt_id=b"6"),
            encoder.disconnect(version, b"7"),
        ]
    )


def _described(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Return events as values that compare."""
    return [
        (Failure, str(event.error), event.error.receipt, event.error.headers)
        if isinstance(event, Failure)
        else (type(event), *_parts(event))
        for event in events
    ]


def _parts(made: object) -> list[object]:
    """Return what an object without an order of its own is made of."""
    values = [getattr(made, name) for name in dir(made) if not name.startswith("_")]
    return [_parts(value) if isinstance(value, Condition) else value for value in values]


def check_frames(data: bytes) -> None:
    """Requests: in pieces as in one, no exception ever, and a SEND that is encoded again is the same SEND."""
    step = 1 + (data[0] if data else 0) % 13
    stream = data[1:]
    whole = Protocol(LIMITS)
    events = whole.receive_data(stream)
    pieces = Protocol(LIMITS)
    again: list[Event] = []
    for at in range(0, len(stream), step):
        again += pieces.receive_data(stream[at : at + step])
    described = _described(events)
    assert _described(again) == described
    assert whole.closed == pieces.closed
    for event in events:
        if isinstance(event, Failure):
            assert event.error.message.isprintable()
            assert encoder.error(whole.version, event.error).endswith(b"\0")
        elif isinstance(event, Send) and len(event.body) + len(event.destination) < 200:
            peer = Protocol(Limits())
            peer.receive_data(_CONNECTS[1 if whole.version == VERSION_1_2 else 0])
            frame = encoder.send(whole.version, event.destination, event.body, event.headers, receipt_id=event.receipt)
            (same,) = peer.receive_data(frame)
            assert isinstance(same, Send)
            assert (same.destination, same.body, same.headers) == (event.destination, event.body, event.headers)


def check_answers(data: bytes) -> None:
    """The client's reader: ProtocolError and nothing else, and the same in pieces."""
    if len(data) < 2:
        return
    version = VERSION_1_2 if data[0] & 1 else VERSION_1_1
    step = 1 + data[1] % 13
    stream = data[2:]

    def read(pieces: Iterable[bytes]) -> list[object]:
        found: list[object] = []
        decoder = FrameDecoder(LIMITS, SERVER_COMMANDS, version)
        try:
            for piece in pieces:
                for frame in decoder.feed(piece):
                    found.append((frame.command, tuple(frame.headers.items()), frame.body))
                    read_answer(frame)
        except ProtocolError as error:
            found.append(str(error))
        return found

    assert read([stream]) == read([stream[at : at + step] for at in range(0, len(stream), step)])


_JUDGED: Final = {
    "registry.toml": b'[[rule]]\ndestination = "X/n.**"\nschema = "t.Rich_v1"\nencoding = "datum"\n'
    b'[[rule]]\ndestination = "X/e.**"\nschema = "t.Rich_v1"\nencoding = "envelope"\n'
    b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'
}


@functools.cache
def _judging() -> dict[str, bytes]:
    return {**_JUDGED, "t/Rich_v1/1.0.avsc": _RICH.encode()}


@functools.cache
def _judging_registry() -> Registry:
    return load_registry(_judging())


def check_broker(data: bytes) -> None:
    """Two clients' whole sessions against the broker: no exception, whole and valid frames back, and at the end the same after a restart."""
    first, _, second = data.partition(_PART)
    world = World.make(
        limits=LIMITS, schemas=_judging(), anna=EVERYTHING, bob={"send": ["X/b.**"], "receive": ["X/m*"]}
    )
    clients = [world.client("anna", connect=False), world.client("bob", connect=False)]
    for client, stream in zip(clients, (first, second), strict=True):
        half = len(stream) // 2
        for piece in (stream[:half], stream[half:]):
            client.write(piece)
            world.settle()
            if client.peer.connection is not None:
                client._decoder.expect(SERVER_COMMANDS, client.peer.connection.version)
            client.read()
    for client in clients:
        assert all(frame.command != b"ERROR" for frame in client.frames[:-1])
        revisions = [
            (frame.headers[b"subscription"], frame.headers[b"destination"], int(frame.headers[b"message-id"]))
            for frame in client.frames
            if frame.command == b"MESSAGE"
        ]
        newest: dict[tuple[bytes, bytes], int] = {}
        for subscription, destination, revision in revisions:
            assert newest.get((subscription, destination), 0) <= revision, "an older value after a newer one"
            newest[subscription, destination] = revision
        client.lose()
    world.settle()
    again = world.restart()
    assert again.broker.committed_revision == world.broker.committed_revision
    assert again.broker.store.live == world.broker.store.live


# --- Avro


_RICH: Final = json.dumps(
    {
        "type": "record",
        "name": "Rich_v1",
        "namespace": "t",
        "fields": [
            {"name": "b", "type": "boolean"},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}},
            {"name": "u", "type": ["null", "long", "string", {"type": "array", "items": "Rich_v1"}]},
            {"name": "i", "type": "int"},
            {"name": "s", "type": "string"},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
            {"name": "m", "type": {"type": "map", "values": ["null", "double"]}},
        ],
    }
)
SCHEMAS: Final = (
    _RICH,
    '{"type":"array","items":"null"}',
    '{"type":"array","items":"long"}',
    '{"type":"array","items":{"type":"record","name":"None_","fields":[]}}',
    '{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}',
    '{"type":"map","values":{"type":"array","items":"string"}}',
    '{"type":"array","items":{"type":"map","values":"boolean"}}',
    '["null","int","bytes",{"type":"fixed","name":"Nothing","size":0},{"type":"array","items":"float"}]',
    '{"type":"record","name":"Numbers","fields":['
    + ",".join(f'{{"name":"n{n}","type":"{"int" if n % 3 else "long"}"}}' for n in range(12))
    + "]}",
    '{"type":"record","name":"Texts","fields":['
    + ",".join(f'{{"name":"t{n}","type":"{"string" if n % 2 else "bytes"}"}}' for n in range(6))
    + "]}",
    ENVELOPE_TEXT.decode(),
)
_WITHOUT_BYTES: Final = (1, 3)  # schemas of items that take none
_VARINTS: Final = (
    b"\0",
    b"\1",
    b"\2",
    b"\x7f",
    b"\x80\x00",
    b"\x80\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\xfe" + b"\xff" * 8 + b"\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x03",
    b"\x80" * 9 + b"\x00",
    b"\x80" * 10 + b"\x00",
    b"\x80\xb4\x89\x13",
    b"\xd0\x0f",
    b"\x02" * 70,
    b"\x03\x08",
    b"\xff",
    b"\xc3\x01",
    "ä€😀".encode(),
    b"\xed\xa0\x80",
)


@functools.cache
def _compiled(index: int) -> tuple[Any, Walker, Any]:
    text = SCHEMAS[index]
    schema = parse_schema(read_source("fuzzed", text.encode()))
    return schema.type, Walker(schema.type), fastavro.parse_schema(json.loads(text), named_schemas={})


def _fastavro_takes(parsed: Any, body: bytes) -> tuple[Any, bool]:
    """Return fastavro's value, and whether it is a value of the schema that ends with the bytes and is written as these bytes."""
    stream = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(stream, parsed, None, return_named_type=True)
    except Exception:  # noqa: BLE001  # it raises whatever its parts raise
        return None, False
    if stream.tell() != len(body):
        return value, False
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, parsed, value)
    except Exception:  # noqa: BLE001  # the same
        return value, False
    return value, out.getvalue() == body


def check_walker(data: bytes) -> None:
    """One value: three readers agree, fastavro reads an accepted one to its end, and one that fastavro writes as it was is accepted."""
    if not data:
        return
    of, walker, parsed = _compiled(data[0] % len(SCHEMAS))
    body = data[1:]
    accepted = walker.accepts(body, 0, len(body))
    fault = walker.explain(body, 0, len(body))
    leaves, traced = walker.trace(body, 0, len(body))
    assert accepted == (fault is None)
    assert str(traced) == str(fault)
    assert all(0 <= leaf.start <= leaf.end <= len(body) for leaf in leaves)
    assert walker.accepts(b"\xff" + body + b"\xff", 1, 1 + len(body)) == accepted
    if accepted:
        decode(of, body)
        stream = io.BytesIO(body)
        fastavro.schemaless_reader(stream, parsed, None, return_named_type=True)
        assert stream.tell() == len(body)
    else:
        assert fault is not None
        assert str(fault).isprintable()
        assert 0 <= fault.offset <= len(body)
        if data[0] % len(SCHEMAS) in _WITHOUT_BYTES:
            return  # fastavro goes through 2**31 items that take no bytes one by one
        value, same = _fastavro_takes(parsed, body)
        if same and not _beyond_the_rules(value, body):
            raise AssertionError(f"fastavro reads {value!r} and writes the same bytes; refused with {fault}")


def _beyond_the_rules(value: Any, body: bytes) -> bool:
    """Return True if fastavro takes what Avro does not, or more than our bounds allow."""
    if isinstance(value, tuple):
        return _beyond_the_rules(value[1], body)
    if isinstance(value, list):
        return len(value) > len(body) or any(_beyond_the_rules(item, body) for item in value)
    if isinstance(value, dict):
        return any(_beyond_the_rules(item, body) for item in value.values())
    # fastavro's ints are longs. Bounds of depth are not met by inputs as short as these but of Node.
    return (isinstance(value, int) and not -(2**31) <= value < 2**31) or body.count(2) > 60


_KEYS: Final = EnvelopeKeys()


@functools.cache
def _envelope_schema() -> Any:
    return fastavro.parse_schema(json.loads(ENVELOPE_TEXT), named_schemas={})


def check_envelope(data: bytes) -> None:
    """An envelope: its items are where fastavro finds them, and a rule judges it without an exception and with a reason in one line."""
    envelope = open_envelope(data, _KEYS)
    _, fault = trace_envelope(data)
    if isinstance(envelope, Envelope):
        assert fault is None
        read: Any = fastavro.schemaless_reader(io.BytesIO(data), _envelope_schema(), None)
        items = read["content"]
        for item in (envelope.body, envelope.fingerprint, envelope.topic, envelope.tombstone):
            if item is not None:
                first = next(one for one in items if one["key"] == item.key)
                assert first["value"] == data[item.offset : item.offset + item.length]
                assert items[item.index] is first
        assert (envelope.duplicate is None) == all(sum(one["key"] == key for one in items) < 2 for key in _KEYS.all)
    else:
        assert str(envelope) == str(fault)
    if not data:
        return
    registry = _judging_registry()
    for destination, headers in (("X/e.a", ()), ("X/n.a", ()), ("X/n.a", ((b"schema-version", data[:8]),))):
        rule = registry.rule_for(destination)
        assert rule is not None
        validation = rule.validate(destination.encode(), headers, data)
        if isinstance(validation, Validation):
            end = len(data) if validation.value_length < 0 else validation.value_offset + validation.value_length
            assert 0 <= validation.value_offset <= end <= len(data)
        else:
            assert validation.reason.isprintable()
            assert -1 <= validation.offset <= len(data)


def _envelope_seeds() -> list[bytes]:
    version = _judging_registry().versions("t.Rich_v1")[0]
    good = b"\x01\x02\x00\x02\x02xabc\x00"
    seeds = [good]
    for items in (
        [(2, version.crc_64), (1, good)],
        [(2, version.sha_256), (1, good), (3, b"X/e.a")],
        [(4, b"")],
        [(1, good), (1, good), (99, b"")],
    ):
        out = io.BytesIO()
        content = [{"key": key, "value": value} for key, value in items]
        fastavro.schemaless_writer(out, _envelope_schema(), {"content": content})
        seeds.append(out.getvalue())
    return seeds


# --- journal


def check_scan(data: bytes) -> None:
    """A file of the journal, as it is: it gives records or JournalDamagedError, and a reader goes on after damage and ends."""
    try:
        scanner = Scanner("segment", len(data), lambda offset, length: data[offset : offset + length])
    except JournalDamagedError:
        return
    decoder = RecordDecoder(scanner.start.revision, scanner.start.accepted_at_us)
    for _ in range(len(data) + 2):
        at = scanner.offset
        try:
            if scanner.records(decoder) is None:
                return
            assert scanner.offset > at
        except JournalDamagedError as error:
            _must(at <= error.offset <= len(data), "damage is told where there is none")
            torn = scanner.torn()
            decoder = RecordDecoder(0, 0)
            if not scanner.skip_damage():
                assert torn
                return
            if scanner.offset == at:
                scanner.offset += 1  # whole, but its records are wrong, or it belongs elsewhere
    raise AssertionError("the scanner does not come to an end")


def check_records(data: bytes) -> None:
    """Contents of a block whose check is right: ValueError or IndexError, or records, which are written and read again as the same."""
    if not data:
        return
    count = 1 + data[0] % 8
    contents = data[1:]
    with contextlib.suppress(ValueError, IndexError):
        decode_rejected(contents, count, 0)
    newest = NewestChanges(0, 2**63, 0, 2**63, 0, lambda _: True)
    with contextlib.suppress(ValueError, IndexError):
        newest.add(contents, count)
        kept = newest.take()[3]
        assert sorted(NewestRows(kept, True).revisions) == [one.revision for one in decode_records(kept)]
    rows = Rows(typed=False)
    with contextlib.suppress(ValueError, IndexError):
        Splicer(0, 0, 2**63, lambda *_: rows, lambda _: rows).splice(contents, count)
    decoder = RecordDecoder(0, 0)
    try:
        records = decoder.decode(contents, count)
    except (ValueError, IndexError):
        return
    for record in records:
        if isinstance(record, Change):
            _check_content(record)
    if not records:  # the mark of a finished file is none
        return
    encoding = Encoder(START, SYNC)
    blob = header(START, SYNC, snapshot=False) + encoding.encode(records).data
    scanner = Scanner("segment", len(blob), lambda offset, length: blob[offset : offset + length])
    again = scanner.records(RecordDecoder(0, 0))
    assert again is not None
    assert [type(record) for record in again] == [type(record) for record in records]
    for record, same in zip(records, again, strict=True):
        if isinstance(record, Change) and isinstance(same, Change):
            assert (same.headers, same.body) == (record.headers, record.body)


_CONTENT: Final[Any] = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Content",
        "fields": [field for field in json.loads(SCHEMA)["fields"] if field["name"] in {"headers", "body"}],
    },
    named_schemas={},
)


def _check_content(change: Change) -> None:
    """The parts of a change are those that any reader of Avro finds in it, to the last byte. It can be shown, sent and marked."""
    headers, body = change.headers, change.body
    assert len(body) == change.body_bytes
    assert unpack_headers(pack(headers, body)[0])[0] == headers
    stream = io.BytesIO(change.content)
    with contextlib.suppress(
        UnicodeDecodeError
    ):  # names and values are checked when they are sent, not when they are read back
        read: Any = fastavro.schemaless_reader(stream, _CONTENT, None)
        assert stream.tell() == len(change.content)
        assert [(one["name"].encode(), one["value"].encode()) for one in read["headers"]] == list(headers)
        assert read["body"] == body
    for version in (VERSION_1_1, VERSION_1_2):
        for acknowledged in (False, True):
            shared = encoder.message_shared(
                version, acknowledged, change.destination, change.revision, change.content, change.body_at
            )
            assert shared.endswith(b"\ncontent-length:%d\n\n%b\0" % (len(body), body))
    mark = mark_of(headers)
    marks = ProducerSequences(1.0)
    marks.keep(change)
    assert len(marks) == (mark is not None)
    told = list(marks.records({} if change.deleted else {change.destination: change}, change.accepted_at_us))
    assert len(told) == (mark is not None and change.deleted)
    with contextlib.suppress(ValueError):
        first = with_sequences([change])[0]
        assert isinstance(first, Change | SequencesRecord)
        assert first is change or (b"kept-source" in change.content and first.revision == change.revision)


def check_blocks(data: bytes) -> None:
    """Blocks around any contents, each with the right check: as `check_scan`, but nothing is stopped by a checksum."""
    parts = data.split(_PART)
    blob = header(START, SYNC, snapshot=False)
    chain = 0
    for part in parts[:8]:
        if part:
            block, chain = block_of([part[1:]], 1 + part[0] % 8, chain, SYNC)
            blob += block
    check_scan(blob)


def _journal_seeds() -> list[bytes]:
    encoding = Encoder(START, SYNC)
    records = one_of_each()
    head = header(START, SYNC, snapshot=False)
    blob = head + encoding.encode(records[:5]).data + encoding.encode(records[5:]).data
    small = [record for record in records if len(getattr(record, "body", b"")) < 100]
    sends = encode_rejected([rejected(1), rejected(2)], START, SYNC).data
    return [
        blob[:1500],
        blob,
        head,
        head + Encoder(START, SYNC).encode(small[:1]).data + end_block(START, SYNC),
        header(START, SYNC, snapshot=True) + Encoder(START, SYNC, gapless=False).encode(small[:3]).data,
        sends,
    ]


def _contents(block: bytes) -> tuple[bytes, int]:
    """Return what is in a block, and of how many records."""
    blob = header(START, SYNC, snapshot=False) + block
    found = Scanner("segment", len(blob), lambda offset, length: blob[offset : offset + length]).next_block()
    assert found is not None
    return found


def _record_seeds() -> list[bytes]:
    seeds = []
    marked = ((b"source", b"p"), (b"source-revision", b"7"))
    told: tuple[list[Record], ...] = (
        [change(1, headers=marked), change(2, b"X/a", b"", UNJUDGED, (*marked, (b"k", b"v")), deleted=True)],
        [change(1, headers=((b"", b""), (b"a", b"source-revision"), (b"kept-source", b"7 p")), body=b"v" * 70)],
        [change(1, headers=((b"a:\\", b"1\r\n\0:"),) * 3, validation=SINGLE_OBJECT, body=b"0123456789datum")],
    )
    for records in (one_of_each()[:2], one_of_each()[:1], one_of_each()[9:11], one_of_each()[8:9], *told):
        contents, count = _contents(Encoder(START, SYNC).encode(records).data)
        seeds.append(bytes([count - 1]) + contents)
    seeds.append(b"\0" + _contents(encode_rejected([rejected(1)], START, SYNC).data)[0])
    return seeds


# --- what operators write


def check_globs(data: bytes) -> None:
    """Two globs and a destination: GlobError only, a match follows the definition, and two that match it overlap."""
    text = data.decode(errors="replace")
    one, _, rest = text.partition("\n")
    two, _, destination = rest.partition("\n")
    destination_problem(data, 64)
    good = destination_problem(destination.encode(), LIMITS.destination_bytes_max) is None
    globs: list[Glob] = []
    for written in (one, two):
        try:
            glob = compile_glob(written, LIMITS)
        except GlobError as error:
            _must(str(error).isprintable(), "an error text of more than one line")
            continue
        matched = glob.matches(destination)
        if good:
            assert matched == matches(glob.elements, destination)
        if matched:
            assert destination.startswith(glob.prefix)
            globs.append(glob)
        assert overlap(glob, glob)
    if len(globs) == 2 and good:
        assert overlap(globs[0], globs[1])
        assert overlap(globs[1], globs[0])


def check_policy(data: bytes) -> None:
    """A policy: PolicyError in one line, or rights that can be asked."""
    try:
        policy = load_policy(data, "policy.toml", LIMITS)
    except PolicyError as error:
        _must("\n" not in str(error), "an error text of more than one line")
        return
    for name in ("anna", "nobody"):
        rights = policy.rights(name)
        rights.may_send(b"X/a")
        assert not policy.rights("nobody").may_receive(b"X/a")


def check_settings(data: bytes) -> None:
    """A configuration: ConfigurationError, or settings."""
    with contextlib.suppress(ConfigurationError):
        load_settings(data.decode(errors="replace"), "maxam.toml", Path("/"))


def _texts(data: bytes) -> dict[str, bytes]:
    """Read `path NEWLINE text` parts."""
    texts: dict[str, bytes] = {}
    for part in data.split(_PART)[:6]:
        path, _, text = part.partition(b"\n")
        texts[path.decode(errors="replace")] = text
    return texts


def check_registry(data: bytes) -> None:
    """A schema folder: SchemaError that shows what is wrong, or a registry whose rules judge any body without an exception."""
    texts = _texts(data)
    registry, problems = inspect_registry(texts, LIMITS)
    assert (registry is None) == bool(problems)
    assert all(isinstance(problem, SchemaError) and str(problem) for problem in problems)
    if registry is None:
        return
    registry.lock()
    for destination in ("X/a", "X/e.a", "Y/a"):
        rule = registry.rule_for(destination)
        if rule is not None:
            rule.validate(destination.encode(), (), data[-40:])


def _folder(**more: str) -> bytes:
    files = {
        "registry.toml": '[[rule]]\ndestination = "X/**"\nschema = "t.Rich_v1"\nencoding = "datum"\n',
        "t/Rich_v1/1.0.avsc": _RICH,
        **more,
    }
    return _PART.join(f"{path}\n{text}".encode() for path, text in files.items())


def _registry_seeds() -> list[bytes]:
    grown = json.loads(_RICH)
    grown["fields"].append({"name": "new", "type": ["null", "long"], "default": None})
    return [
        _folder(),
        _folder(**{"t/Rich_v1/1.1.avsc": json.dumps(grown)}),
        _folder(
            **{
                "registry.toml": '[registry]\nfingerprint = "SHA-256"\nenvelope_keys = {body = 7}\n'
                '[type."t.Rich_v1"]\ncompatibility = "NONE"\n[[rule]]\ndestination = "X/e.*"\n'
                'schema = "t.Rich_v1"\nencoding = "envelope"\nversion_required = true\n'
            }
        ),
        b'registry.toml\n[[rule]]\ndestination = "X/**"\nencoding = "none"\n',
        *[
            b'registry.toml\n[[rule]]\ndestination = "X/**"\nschema = "t.A_v1"\nencoding = "datum"\n'
            + _PART
            + b't/A_v1/1.0.avsc\n{"type":"record","name":"A_v1","namespace":"t","fields":[{"name":"x","type":'
            + text.encode()
            + b"}]}"
            for text in SCHEMAS
        ],
    ]


_TOML_WORDS: Final = (
    *(b"[[rule]] [registry] [capabilities.all] [[principals]] [limits] [listener] [tls] [journal]".split()),
    *(b"destination= schema= encoding= name= fingerprints= capabilities= send= receive= admin= owns= port=".split()),
    *(b'true false "none" "datum" "envelope" ["X/**"] [] {} "" -1 0 1.5 nan inf 1979-05-27 0x10 1_0'.split()),
    b"9" * 5000,
    b"[" * 2000,
    b"{a=" * 1500,
    b"\n",
    b'"\\u202e\\u0000"',
    b"a.b.c=1\n",
    b"\xff",
)
_AVSC_WORDS: Final = (
    *(b'"type" "record" "enum" "fixed" "array" "map" "name" "fields" "items" "values" "symbols" "size"'.split()),
    *(b'"default" "namespace" "aliases" "logicalType" "decimal" "precision" "scale" "uuid" "t.Rich_v1"'.split()),
    *(b'"order" "doc" "references" null true false -1 0 1e999 NaN 1.5 9223372036854775808 { } [ ] , :'.split()),
    *(b'"null" "boolean" "int" "long" "float" "double" "bytes" "string" "timestamp-millis" "date"'.split()),
    b"\nt/Rich_v1/1.1.avsc\n",
    b"registry.lock\n",
    _PART,
    b"9" * 5000,
    b"[" * 3000,
    b'{"type":' * 200,
    b'"\\ud800"',
)

_POLICY: Final = (
    b'[capabilities.all]\nsend = ["X/**"]\nreceive = ["X/**"]\nadmin = ["read"]\n'
    b'[[principals]]\nname = "anna"\nfingerprints = ["' + b"a1" * 32 + b'"]\ncapabilities = ["all"]\nowns = ["X/a*"]\n'
)
_SETTINGS: Final = (
    b'[listener]\nport = 0\n[tls]\ncertificate = "a"\nkey = "b"\nclient_ca = "c"\n[policy]\nfile = "d"\n'
    b'[schemas]\nfolder = "e"\n[journal]\ndurability = "fsync"\n[limits]\nwindow = 5\nconnect_timeout_s = 1.5\n'
)
_GLOB_WORDS: Final = (
    *(b"* ** ? [a] [!a] [a-z] [] [!] [z-a] [.] [!.] X/ X/a.b.c X/a / . - \\ ] [ ^".split()),
    "é".encode(),
    "\u202e".encode(),
    b"\n",
    b"*a" * 16,
    b"?" * 40,
    b"[!-~]" * 8,
)

# --- links between gateways


def check_entry(data: bytes) -> None:
    """Bytes are refused with EntryError, or encode to the same bytes again and hold a block that decodes or is refused."""
    with contextlib.suppress(EntryError):
        entry = read_entry(data)
        _must(entry.encode() == data, "an entry encodes to other bytes")
        if entry.after.chain != entry.before.chain:
            with contextlib.suppress(ValueError, IndexError):
                RecordDecoder(entry.before.revision, entry.before.accepted_at_us).decode(*entry.records())
        elif entry.kind == TERM:
            _must(term_payload(*entry.reign()) == entry.payload, "the names of a term make another payload")
        elif entry.kind == FILE:
            _must(file_payload(*entry.file()) == entry.payload, "a file makes another payload")
        elif entry.kind == HANDOVER:
            _must(bool(entry.successor()), "a handover without a successor")


_MESSAGES: Final[dict[int, Callable[[bytes], object]]] = {
    wire.HELLO: wire.read_hello,
    wire.WELCOME: wire.read_welcome,
    wire.REFUSED: wire.read_refused,
    wire.BEAT: wire.read_beat,
    wire.FILES: wire.read_files,
    wire.DATA: wire.read_piece,
    wire.DONE: wire.read_done,
}


def check_wire(data: bytes) -> None:
    """Bytes are refused with WireError, or make the same frames in whatever pieces they arrive."""
    try:
        frames = wire.FrameReader().feed(data)
    except wire.WireError:
        return
    reader = wire.FrameReader()
    pieces = [one for at in range(0, len(data), 3) for one in reader.feed(data[at : at + 3])]
    _must(
        [(one.type, one.body) for one in frames] == [(one.type, one.body) for one in pieces], "other frames in pieces"
    )
    for one in frames:
        with contextlib.suppress(wire.WireError):
            _MESSAGES.get(one.type, bytes)(one.body)


def check_operations(data: bytes) -> None:
    """Bytes are refused with OperationsError, or are operations that are written and read again as the same."""
    try:
        found = OperationsReader().read(data)
    except OperationsError:
        return
    terms = {found.first + index: one for index, one in found.terms.items()}
    again = OperationsReader().read(OperationsWriter().encode([*found.operations], terms, found.epoch))
    _must((again.epoch, again.first) == (found.epoch, found.first), "another epoch or number")
    _must([_of_front(one) for one in again.operations] == [_of_front(one) for one in found.operations], "others")
    _must(
        {index: _terms(one) for index, one in again.terms.items()}
        == {index: _terms(one) for index, one in found.terms.items()},
        "other terms",
    )


def _of_front(one: Record | Proof) -> object:
    if not isinstance(one, Proof):
        return plain(one)
    return None if one.step is None else (one.step.claims, one.step.principal, one.step.client_id)


def _terms(one: Terms) -> object:
    return one.connection, one.expected, one.source, one.number if one.source is not None else 0


def _operations_seeds() -> list[bytes]:
    claim, release = (Proof(None, SessionStep(claims, "anna", "ö")) for claims in (True, False))
    terms = {2: Terms(3, 7, b"pump", 9), 4: Terms(0, -1, None, 0)}
    return [
        OperationsWriter().encode([Proof(), change(1), claim, change(2), release], terms, 5),
        OperationsWriter().encode([claim], {}, 0),
        OperationsWriter().encode([change(1), Proof()], {}, 1),
    ]


def _entry_seeds() -> list[bytes]:
    made = Encoder(START, SYNC).encode([change(1)])
    schemas = texts_payload([(hashlib.sha256(b"{}").hexdigest(), b"{}")])
    return [
        block_entry(made.data, made.before, made.after, begins=True).encode(),
        Entry(SEAL, False, made.after, made.after, SYNC, b"").encode(),
        Entry(SCHEMAS_ENTRY, False, made.after, made.after, SYNC, schemas).encode(),
        block_entry(made.data, made.before, made.after, begins=True, index=5, term=2).encode(),
        Entry(TERM, False, START, START, SYNC, term_payload("gateway-a", "0.2.0"), 3, 1).encode(),
        Entry(FILE, False, START, START, SYNC, file_payload("policy-enrolled.toml", b"x"), 4, 1).encode(),
        Entry(GENESIS, False, START, START, SYNC, bytes(16), 1).encode(),
    ]


def _wire_seeds() -> list[bytes]:
    return [
        wire.encode_hello(wire.Hello(wire.FEED, "b", "0.2.0", "0" * 16, START)) + wire.encode_beat(wire.Beat(START, 5)),
        wire.encode_welcome(wire.Welcome("a", "0.2.0", "serving", "0" * 16, START)) + wire.frame(wire.ENTRY, b"MXE1"),
        wire.encode_refused(wire.Refused(wire.GONE, "gone", "a:1")) + wire.frame(wire.LIST, b""),
        wire.encode_files([("segments/a", 1)]) + wire.encode_piece(wire.Piece("segments/a", 0, b"x")),
        wire.encode_done("segments/a", bytes(32)),
    ]


TARGETS: Final = (
    Target(
        "frames",
        check_frames,
        lambda: [b"\0" + _session(VERSION_1_1), b"\x05" + _session(VERSION_1_2), b"\x01" + _CONNECTS[1]],
        _STOMP_WORDS,
    ),
    Target(
        "answers",
        check_answers,
        lambda: [
            b"\1\5CONNECTED\nversion:1.2\nsession:s\nheart-beat:0,0\n\n\0",
            b"\1\1MESSAGE\nsubscription:s\nmessage-id:1\ndestination:X/a\ntimestamp:5\ncontent-length:3\n\na\0b\0",
            b"\0\3RECEIPT\nreceipt-id:r\ndisposition:accepted\nrevision:7\n\n\0ERROR\nmessage:m\n\nwhy\0",
        ],
        _STOMP_WORDS,
    ),
    Target(
        "broker",
        check_broker,
        lambda: [
            _session(VERSION_1_2) + _PART + _session(VERSION_1_1),
            _CONNECTS[1]
            + encoder.send(VERSION_1_2, b"X/e.a", _envelope_seeds()[1], receipt_id=b"r")
            + _PART
            + _CONNECTS[0],
        ],
        (*_STOMP_WORDS, _PART),
    ),
    Target(
        "walker",
        check_walker,
        lambda: [
            bytes([index]) + body
            for index in range(len(SCHEMAS))
            for body in (b"\x01\x02\x00\x02\x02xabc\x00", b"\x04\x02\x04\x00", bytes(range(20)))
        ],
        _VARINTS,
    ),
    Target("envelope", check_envelope, _envelope_seeds, _VARINTS),
    Target("scan", check_scan, _journal_seeds, (SYNC, b"Obj\x01", *_VARINTS)),
    Target("blocks", check_blocks, lambda: [_PART.join(_record_seeds()[:3]), *_record_seeds()], (_PART, *_VARINTS)),
    Target("records", check_records, _record_seeds, _VARINTS),
    Target(
        "globs",
        check_globs,
        lambda: [b"X/**\nX/a*.b\nX/ab.b", b"**\n[A-Z]/?\xc3\xa9*\nX/a\xc3\xa9.b", b"*/[!a]**\nX/*[.]b\nX/xx.b"],
        _GLOB_WORDS,
    ),
    Target("policy", check_policy, lambda: [_POLICY], (*_TOML_WORDS, *_GLOB_WORDS)),
    Target("settings", check_settings, lambda: [_SETTINGS], _TOML_WORDS),
    Target("entry", check_entry, _entry_seeds, (SYNC, b"MXE1", *_VARINTS)),
    Target("operations", check_operations, _operations_seeds, (b"\1", b"\2\4anna\2", b"\4\3\10\5pump\11", *_VARINTS)),
    Target("wire", check_wire, _wire_seeds, (b"\0\0\0", b"\0\0\0\0\4", *_VARINTS)),
    Target("registry", check_registry, _registry_seeds, (*_TOML_WORDS, *_AVSC_WORDS, *_GLOB_WORDS)),
)
"""All of them, in the order in which they meet the bytes of an unauthenticated client."""


def target(name: str) -> Target:
    """Return a target by its name."""
    return next(one for one in TARGETS if one.name == name)


CORPUS: Final = Path(__file__).parent / "corpus"


def corpus(of: Target) -> list[bytes]:
    """Return the inputs that are kept for a target, its seeds first."""
    files = sorted((CORPUS / of.name).glob("*")) if (CORPUS / of.name).is_dir() else []
    return [*of.seeds(), *(file.read_bytes() for file in files)]
