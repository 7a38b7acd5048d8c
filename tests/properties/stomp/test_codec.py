"""The codec as a whole: round trip, invariance under chunking, and nothing but ProtocolError for any bytes."""

from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maxam.config import Limits
from maxam.content import pack
from maxam.errors import ProtocolError
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, Condition, Disconnect, Event, Failure, Send, SkippedSend
from maxam.stomp.frames import CLIENT_COMMANDS, SERVER_COMMANDS, Decoder
from maxam.stomp.protocol import Protocol

# small limits, so that random bytes reach them
LIMITS = Limits(
    frame_headers_max=6,
    frame_header_line_bytes_max=40,
    frame_headers_bytes_max=150,
    frame_body_bytes_max=30,
    connect_frame_bytes_max=100,
    subscription_id_bytes_max=8,
    destination_bytes_max=16,
)
CONNECTS = [
    b"CONNECT\naccept-version:1.1\nhost:MAXVAPI\n\n\0",
    b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n\n\0",
    b"STOMP\r\naccept-version:1.1,1.2\r\nhost:MAXVAPI\r\n\r\n\0",
]
# pieces that frames, whole, broken and cut, are made of
PIECES = [
    *CONNECTS,
    b"SEND\ndestination:X/a.b\nreceipt:1\ncontent-length:3\n\n\0\n\0\0",
    b"SEND\r\ndestination:X/a\\cb\r\nk:v\r\n\r\nbody\0\r\n",
    b"SUBSCRIBE\nid:1\ndestination:X/**\nack:client\neager:true\n\n\0",
    b"ACK\nid:1 42\n\n\0",
    b"ACK\nsubscription:1\nmessage-id:42\n\n\0",
    b"DISCONNECT\nreceipt:77\n\n\0",
    *[command + b"\n" for command in CLIENT_COMMANDS],
    *[b"destination:", b"id:", b"receipt:", b"content-length:", b"transaction:", b"durable:", b"k:", b"heart-beat:1,"],
    *[
        b"\n",
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b":",
        b"\\",
        b"\\n",
        b"\\r",
        b"\\t",
        b"\\\\",
        b" ",
        b"3",
        b"true",
    ],
    *["ä€😀".encode(), b"\xc3", b"\xe2\x82", b"\xf0\x9f", b"\xed\xa0", b"\xff", b"\x80", b"x" * 12, b"x" * 38],
]
streams = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)), max_size=12).map(b"".join)
connected_streams = st.builds(bytes.__add__, st.sampled_from(CONNECTS), streams)
cuts = st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=20)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12).map(str.encode)
names = texts.filter(bool)
versions = st.sampled_from([VERSION_1_1, VERSION_1_2])


def fields(value: object) -> tuple[object, ...]:
    """Return kind and attributes of an object. Whether a SEND is known to be plain depends on how its head came."""
    names = [name for name in dir(value) if not name.startswith("_") and name != "plain"]
    return (type(value), *[getattr(value, name) for name in names])


def described(events: list[Event]) -> list[tuple[object, ...]]:
    """Return events as values that compare."""
    return [
        (Failure, str(event.error), event.error.receipt, event.error.headers)
        if isinstance(event, Failure)
        else tuple([fields(one) if isinstance(one, Condition) else one for one in fields(event)])
        for event in events
    ]


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut `data` into pieces of `sizes`, over and over."""
    pieces: list[bytes] = []
    start = 0
    while start < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[start : start + size])
        start += size
    return pieces


@given(st.one_of(streams, connected_streams), cuts)
@example(CONNECTS[1] + b"SEND\ndestination:" + b"x" * 27 + b"\xe2\x82", [1])
@example(CONNECTS[1] + b"SEND\nk:" + b"x" * 37 + b"\xe2\xff", [3])
@example(CONNECTS[1] + b"SEND\nk:" + b"x" * 38 + b"\r\r\n", [1])
@example(CONNECTS[1] + b"SEND\nk:\xed\xa0\rx", [1])
@example(CONNECTS[0] + b"\r\n", [1])
def test_chunking_changes_nothing(data: bytes, sizes: list[int]) -> None:
    """The same bytes give the same events, errors and all, however they are cut."""
    whole = Protocol(LIMITS).receive_data(data)
    protocol = Protocol(LIMITS)
    parts = [event for piece in chunks(data, sizes) for event in protocol.receive_data(piece)]
    assert described(parts) == described(whole)


HEADS = [
    b"destination",
    b"receipt",
    b"content-type",
    b"content-length",
    b"schema-version",
    b"source",
    b"source-revision",
    b"if-revision",
    b"via",
    b"kind",
    b"u",
    b"user",
]
VALUES = [b"", b"1", b"4", b"X/a", b"12:30", b"a\\cb", b"application/json", b"avro/binary", b"x" * 63, b"x" * 64]
heads = st.lists(st.sampled_from(HEADS), max_size=6).map(lambda names: [b"destination", *names])


@st.composite
def series_of_sends(draw: st.DrawFn) -> list[bytes]:
    """Return SENDs of which many have the names of the one before."""
    frames: list[bytes] = []
    for head in draw(st.lists(heads, min_size=1, max_size=3)):
        for _ in range(draw(st.integers(1, 4))):
            body = draw(st.binary(max_size=3).filter(lambda body: b"\0" not in body))
            lines = [
                (name, b"%d" % len(body) if name == b"content-length" else draw(st.sampled_from(VALUES)))
                for name in head
            ]
            frames.append(b"SEND\n" + b"".join([b"%b:%b\n" % line for line in lines]) + b"\n" + body + b"\0")
    return frames


@pytest.mark.slow
@given(series_of_sends(), cuts)
def test_what_was_remembered_changes_nothing(frames: list[bytes], sizes: list[int]) -> None:
    """A SEND is read as it is alone, whatever SENDs came before it, and its MESSAGE too. Those known to be plain are."""
    protocol = Protocol(Limits())
    protocol.receive_data(CONNECTS[1])
    events: list[Event] = []
    for pieces in (chunks(b"".join(frames), sizes), frames * 2):
        for piece in pieces:
            events += protocol.receive_data(piece)
    alone: list[Event] = []
    for frame in frames * 3:
        once = Protocol(Limits())
        once.receive_data(CONNECTS[1])
        alone += once.receive_data(frame)
    assert described(events) == described(alone)
    for event in events:
        if isinstance(event, Send):
            one, other = [
                encoder.message_shared(
                    VERSION_1_2, True, event.destination, 7, event.content, event.body_at, plain=plain
                )
                for plain in (False, event.plain)
            ]
            assert one == other


@given(st.one_of(streams, connected_streams), cuts)
def test_skipping_changes_only_bodies(data: bytes, sizes: list[int]) -> None:
    """If the bodies of SENDs that come in parts are skipped, their length and digest are reported, and all else is the same."""
    whole = Protocol(LIMITS).receive_data(data)
    protocol = Protocol(LIMITS, keeps_body=lambda command, _: command != b"SEND")
    parts = [event for piece in chunks(data, sizes) for event in protocol.receive_data(piece)]
    expected: list[Event] = []
    for event, part in zip(whole, parts, strict=True):
        if isinstance(event, Send) and isinstance(part, SkippedSend):
            expected.append(SkippedSend(event, len(event.body), sha256(event.body).hexdigest()))
        else:
            expected.append(event)
    assert described(parts) == described(expected)


@given(st.one_of(streams, connected_streams, st.binary(max_size=200)))
def test_any_bytes(data: bytes) -> None:
    """Any bytes give events, and only the last event can be Failure or Disconnect."""
    protocol = Protocol(LIMITS)
    events = protocol.receive_data(data)
    assert protocol.closed == bool(events and isinstance(events[-1], Failure | Disconnect))
    assert not [event for event in events[:-1] if isinstance(event, Failure | Disconnect)]


@given(st.data(), connected_streams)
def test_mutations(data: st.DataObject, stream: bytes) -> None:
    """A stream with a byte changed, dropped or added is answered with events, and reading on never raises."""
    at = data.draw(st.integers(0, len(stream) - 1))
    drop = data.draw(st.integers(0, 2))
    mutated = stream[:at] + data.draw(st.binary(max_size=2)) + stream[at + drop :]
    protocol = Protocol(LIMITS)
    for piece in chunks(mutated, [5]):
        protocol.receive_data(piece)


@given(st.one_of(streams, st.binary(max_size=200)), cuts, versions)
def test_client_side(data: bytes, sizes: list[int], version: int) -> None:
    """A client that reads any bytes gets frames or a ProtocolError, and nothing else."""
    decoder = Decoder(LIMITS, SERVER_COMMANDS, version)
    try:
        for piece in chunks(data, sizes):
            for frame in decoder.feed(piece):
                assert frame.command in SERVER_COMMANDS
    except ProtocolError:
        pass


@given(versions, texts, texts, st.dictionaries(names, texts, max_size=5), st.binary(max_size=50), cuts)
def test_round_trip(
    version: int, destination: bytes, receipt: bytes, headers: dict[bytes, bytes], body: bytes, sizes: list[int]
) -> None:
    """A SEND arrives as it was written, whatever its header names, header values and body hold."""
    user_headers = tuple([(b"user-" + name, value) for name, value in headers.items()])
    data = encoder.send(version, destination, body, user_headers, receipt)
    protocol = Protocol(Limits())
    protocol.receive_data(CONNECTS[version])
    events = [event for piece in chunks(data, sizes) for event in protocol.receive_data(piece)]
    assert described(events) == described([Send(destination, body, user_headers, receipt)])


@given(versions, st.booleans(), texts, texts, st.dictionaries(names, texts, max_size=5), st.binary(max_size=50))
def test_message_round_trip(
    version: int, acknowledged: bool, subscription: bytes, destination: bytes, headers: dict[bytes, bytes], body: bytes
) -> None:
    """A MESSAGE that a server wrote is read by a client as it was, and its ack names subscription and message-id."""
    user_headers = tuple([(b"user-" + name, value) for name, value in headers.items()])
    data = encoder.message_prefix(version, subscription, acknowledged)
    data += encoder.message_shared(version, acknowledged, destination, 7, *pack(user_headers, body))
    (frame,) = Decoder(Limits(), SERVER_COMMANDS, version).feed(data)
    expected = {
        b"subscription": subscription,
        b"message-id": b"7",
        b"destination": destination,
        b"content-length": b"%d" % len(body),
        **dict(user_headers),
    }
    if acknowledged:
        expected[b"ack"] = subscription + b" 7"
    assert (frame.headers, frame.body) == (expected, body)
