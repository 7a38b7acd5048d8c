"""The server's side of a connection: the tables of docs/protocol.md that a frame alone can decide."""

import dataclasses
import math

import pytest

from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp.events import (
    PROVENANCE,
    VERSION_1_1,
    VERSION_1_2,
    Ack,
    Connect,
    Disconnect,
    Event,
    Failure,
    Nack,
    Send,
    Subscribe,
    Unsubscribe,
)
from maxam.stomp.heart_beat import HeartBeat
from maxam.stomp.protocol import Protocol

VERSIONS = [VERSION_1_1, VERSION_1_2]
CONNECT = (
    b"CONNECT\naccept-version:1.1\nhost:MAXVAPI\n\n\0",
    b"CONNECT\naccept-version:1.1,1.2\nhost:MAXVAPI\n\n\0",
)


def fields(event: Event) -> tuple[object, ...]:
    """Return the type and the public attributes of an event, compiled or not, to compare."""
    if isinstance(event, Failure):
        return (Failure, event.error.message, event.error.detail, event.error.receipt, event.error.headers)
    return (type(event), *[getattr(event, name) for name in dir(event) if not name.startswith("_")])


def connected(version: int = VERSION_1_2, limits: Limits | None = None) -> Protocol:
    """Return a protocol after its CONNECT."""
    protocol = Protocol(limits or Limits())
    (event,) = protocol.receive_data(CONNECT[version])
    assert isinstance(event, Connect)
    return protocol


def event_of(data: bytes, version: int = VERSION_1_2) -> Event:
    """Return the one event of `data` after CONNECT."""
    (event,) = connected(version).receive_data(data)
    return event


def described(event: Event) -> object:
    """Return kind and fields of a SEND, its condition too, to compare."""
    assert isinstance(event, Send)
    condition = event.condition
    compared = condition and (condition.source, condition.number, condition.expected, condition.problem)
    return (type(event), event.destination, event.body, event.headers, event.receipt, compared)


def error_of(data: bytes, version: int = VERSION_1_2, skip: int = 0) -> ProtocolError:
    """Return the error that `data` after CONNECT ends with, `skip` events on, and check that nothing is read after it."""
    protocol = connected(version)
    (event,) = protocol.receive_data(data + b"NACK\n\n\0")[skip:]
    assert isinstance(event, Failure)
    assert protocol.closed
    assert protocol.receive_data(b"NACK\n\n\0") == []
    return event.error


def connect_error(headers: bytes, hosts: tuple[str, ...] = ("MAXVAPI",)) -> ProtocolError:
    """Return the error that CONNECT with `headers` gets."""
    (event,) = Protocol(Limits(), hosts).receive_data(b"CONNECT\n" + headers + b"\n\0")
    assert isinstance(event, Failure)
    return event.error


def connect_event(headers: bytes, hosts: tuple[str, ...] = ("MAXVAPI",)) -> Connect:
    """Return the event of CONNECT with `headers` besides version and host."""
    (event,) = Protocol(Limits(), hosts).receive_data(
        b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n" + headers + b"\n\0"
    )
    assert isinstance(event, Connect)
    return event


class TestConnect:
    """The first frame."""

    @pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"])
    def test_either_command_and_line_end(self, command: bytes, end: bytes) -> None:
        """CONNECT and STOMP are the same, with LF or CRLF as no version is known yet."""
        data = end.join([command, b"accept-version:1.1", b"host:MAXVAPI", b"", b"\0"])
        (event,) = Protocol(Limits()).receive_data(data)
        assert fields(event) == fields(Connect(VERSION_1_1, b"MAXVAPI", None, None, (0, 0)))

    @pytest.mark.parametrize(
        ("accepted", "version"),
        [
            (b"1.2", VERSION_1_2),
            (b"1.1", VERSION_1_1),
            (b"1.1,1.2", VERSION_1_2),
            (b"1.2,1.1,1.0", VERSION_1_2),
            (b"1.0,1.1,2.0", VERSION_1_1),
        ],
    )
    def test_highest_common_version(self, accepted: bytes, version: int) -> None:
        """Spec: STOMP 1.2 "the highest protocol version that both the client and server have in common"."""
        protocol = Protocol(Limits())
        (event,) = protocol.receive_data(b"CONNECT\naccept-version:" + accepted + b"\nhost:MAXVAPI\n\n\0")
        assert isinstance(event, Connect)
        assert event.version == protocol.version == version

    @pytest.mark.parametrize(
        "headers", [b"", b"accept-version:1.0\n", b"accept-version:2.0,1.3\n", b"accept-version:\n"]
    )
    def test_no_common_version(self, headers: bytes) -> None:
        """None in common, or no accept-version, which means 1.0: the ERROR lists both versions."""
        error = connect_error(headers + b"host:MAXVAPI\n")
        assert error.headers == ((b"version", b"1.1,1.2"),)
        assert "1.1" in error.detail
        assert "1.2" in error.detail

    def test_host(self) -> None:
        """The host is required and must be an accepted one, which the ERROR names; `*` accepts any."""
        versions = b"accept-version:1.2\n"
        assert "host" in connect_error(versions).detail
        assert "A or B" in connect_error(versions + b"host:C\n", ("A", "B")).detail
        assert "host" in connect_error(versions, ("*",)).detail
        (event,) = Protocol(Limits(), ("*",)).receive_data(b"CONNECT\n" + versions + b"host:any:\\t\n\n\0")
        assert isinstance(event, Connect)
        assert event.host == b"any:\\t"

    @pytest.mark.parametrize("value", [b"a", b"a" * 128, b"venue 7:\\monitor~"])
    def test_client_id(self, value: bytes) -> None:
        """A client-id is 1 to 128 printable ASCII characters, with no escapes."""
        assert connect_event(b"client-id:" + value + b"\n").client_id == value.decode()

    @pytest.mark.parametrize("value", [b"", b"a" * 129, b"a\tb", b"a\x7f", "ä".encode()])
    def test_bad_client_id(self, value: bytes) -> None:
        """Any other client-id is an ERROR."""
        assert "client-id" in connect_error(b"accept-version:1.2\nhost:MAXVAPI\nclient-id:" + value + b"\n").message

    def test_rejections(self) -> None:
        """A rejected SEND is answered with RECEIPT, or with ERROR if CONNECT asks for it; any other wish is an ERROR."""
        assert not connect_event(b"").rejections_end
        assert not connect_event(b"rejections:receipt\n").rejections_end
        assert connect_event(b"rejections:error\n").rejections_end
        for value in (b"", b"true", b"Error"):
            error = connect_error(b"accept-version:1.2\nhost:MAXVAPI\nrejections:" + value + b"\n")
            assert error.message == "bad rejections"

    @pytest.mark.parametrize(("value", "window"), [(b"1", 1), (b"100", 100), (b"007", 7)])
    def test_window(self, value: bytes, window: int) -> None:
        """A window is 1 to the limit."""
        assert connect_event(b"window:" + value + b"\n").window == window

    @pytest.mark.parametrize("value", [b"0", b"101", b"-1", b"", b"x", b"9" * 30])
    def test_bad_window(self, value: bytes) -> None:
        """Any other window is an ERROR with the name of the limit."""
        error = connect_error(b"accept-version:1.2\nhost:MAXVAPI\nwindow:" + value + b"\n")
        assert "1 to 100, the limit window" in error.detail

    @pytest.mark.parametrize(
        ("headers", "heart_beat"),
        [(b"", (0, 0)), (b"heart-beat:0,0\n", (0, 0)), (b"heart-beat:5000,20000\n", (5000, 20000))],
    )
    def test_heart_beat(self, headers: bytes, heart_beat: tuple[int, int]) -> None:
        """Spec: STOMP 1.2 'A missing heart-beat header MUST be treated the same way as a "heart-beat:0,0" header'."""
        assert connect_event(headers).heart_beat_ms == heart_beat

    @pytest.mark.parametrize("value", [b"", b"1", b"1,", b",1", b"-1,0", b"a,b", b"1,2,3", b"1, 2", b"1.5,2"])
    def test_bad_heart_beat(self, value: bytes) -> None:
        """A malformed heart-beat is an ERROR."""
        error = connect_error(b"accept-version:1.2\nhost:MAXVAPI\nheart-beat:" + value + b"\n")
        assert error.message == "bad heart-beat"

    def test_login_is_ignored(self) -> None:
        """Login and passcode change nothing."""
        assert connect_event(b"login:a\npasscode:b\n").client_id is None

    @pytest.mark.parametrize("command", [b"SEND", b"ACK", b"DISCONNECT", b"MESSAGE", b"FOO"])
    def test_any_other_frame_first(self, command: bytes) -> None:
        """Any other frame before CONNECT is an ERROR, before its body is read."""
        (event,) = Protocol(Limits()).receive_data(command + b"\nreceipt:r\ncontent-length:9\n\n")
        assert isinstance(event, Failure)
        assert "expected CONNECT, STOMP" in event.error.detail
        assert event.error.receipt == b"r"

    @pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
    def test_second_connect(self, command: bytes) -> None:
        """A second CONNECT is an ERROR; as CONNECT has no receipt, the ERROR names none."""
        error = error_of(command + b"\naccept-version:1.2\nhost:MAXVAPI\nreceipt:r\n\n\0")
        assert (error.message, error.receipt) == ("already connected", None)

    def test_version_holds_from_the_next_frame_on(self) -> None:
        """Frames after CONNECT in the same bytes are read by the rules of the version it negotiated."""
        events = Protocol(Limits()).receive_data(CONNECT[VERSION_1_1] + b"SEND\ndestination:a\r\n\n\0")
        assert fields(events[1]) == fields(Send(b"a\r", b"", (), None))
        events = Protocol(Limits()).receive_data(CONNECT[VERSION_1_2] + b"SEND\ndestination:a\\r\r\n\r\n\0")
        assert fields(events[1]) == fields(Send(b"a\r", b"", (), None))

    def test_limit_of_a_stranger(self) -> None:
        """A CONNECT may have 8 KiB, the frames after it more."""
        lines = b"".join([b"h%d:%b\n" % (number, b"x" * 4000) for number in range(3)])
        assert "connect_frame_bytes_max" in connect_error(b"accept-version:1.2\nhost:MAXVAPI\n" + lines).detail
        assert isinstance(event_of(b"SEND\ndestination:a\n" + lines + b"\n\0"), Send)


RESERVED = [
    "receipt",
    "transaction",
    "content-length",
    "destination",
    "message-id",
    "subscription",
    "ack",
    "receipt-id",
    "revision",
    "timestamp",
    "publisher",
    "schema",
    "kind",
    "conflated",
    "if-revision",
    "kept-source",
]


class TestSend:
    """SEND."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("end", [b"", b"\n"])
    def test_event(self, version: int, end: bytes) -> None:
        """A SEND is its destination, body, user headers and receipt."""
        data = b"SEND\ndestination:X/a\\cb\ncontent-type:a/b\ncontent-length:2\nreceipt:r\n\n\0\n\0" + end
        expected = Send(b"X/a:b", b"\0\n", ((b"content-type", b"a/b"),), b"r")
        assert fields(event_of(data, version)) == fields(expected)

    def test_least(self) -> None:
        """Without content-length the body ends at NUL, and no receipt is None."""
        assert fields(event_of(b"SEND\ndestination:X/a\n\nb\0")) == fields(Send(b"X/a", b"b", (), None))

    def test_user_headers(self) -> None:
        """User headers keep their order, first of repeats; names and values are unescaped."""
        event = event_of(b"SEND\nz:1\ndestination:X/a\na\\cb:2\nz:3\nreceipt:r\n\n\0")
        assert isinstance(event, Send)
        assert event.headers == ((b"z", b"1"), (b"a:b", b"2"))

    @pytest.mark.parametrize("name", [name for name in RESERVED if name not in {"transaction", "content-length"}])
    def test_reserved_headers_are_dropped(self, name: str) -> None:
        """A client cannot make headers that only the broker sets."""
        event = event_of(b"SEND\ndestination:X/a\n" + name.encode() + b":1\nkept:2\n\n\0")
        assert isinstance(event, Send)
        assert event.headers == ((b"kept", b"2"),)

    @pytest.mark.parametrize("name", sorted(PROVENANCE))
    def test_headers_of_bridges_are_passed_on_and_marked(self, name: bytes) -> None:
        """They keep their place, beside a condition or without one, also in the second of two equal SENDs."""
        for extra, condition in ((b"", (None, -1)), (b"source:s\nsource-revision:7\n", (b"s", 7))):
            frame = b"SEND\na:1\ndestination:X/a\n" + name + b":2\n" + extra + b"b:3\nkind:4\n\n\0"
            events = Protocol(Limits()).receive_data(CONNECT[VERSION_1_2] + frame + frame)
            for event in events[1:]:
                assert isinstance(event, Send)
                found = dict(event.headers)
                assert [found.pop(given, b"") for given in (b"a", name, b"b")] == [b"1", b"2", b"3"]
                assert set(found) <= {b"source", b"source-revision"}
                assert event.condition is not None
                assert event.condition.provenance
                assert (event.condition.source, event.condition.number) == condition

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            (b"source:a", None),
            (b"source:a\nsource-revision:0", (b"a", 0, -1, False)),
            (b"source:a\nsource-revision:%d" % (2**63 - 1), (b"a", 2**63 - 1, -1, False)),
            (b"source:%b\nsource-revision:1" % (b"n" * 128), (b"n" * 128, 1, -1, False)),
            (b"if-revision:0", (None, -1, 0, False)),
            (b"if-revision:7\nsource:a\nsource-revision:3", (b"a", 3, 7, False)),
            (b"source-revision:1", (b"", 1, -1, True)),
            (b"source:\nsource-revision:1", (b"", 1, -1, True)),
            (b"source:%b\nsource-revision:1" % (b"n" * 129), (b"n" * 129, 1, -1, True)),
            (b"source:a\nsource-revision:", (b"a", -1, -1, True)),
            (b"source:a\nsource-revision:+1", (b"a", -1, -1, True)),
            (b"source:a\nsource-revision:%d" % 2**63, (b"a", 2**63, -1, True)),
            (b"source:a\nsource-revision:%b" % (b"1" * 20), (b"a", -1, -1, True)),
            (b"if-revision:x", (None, -1, -1, True)),
        ],
    )
    def test_conditions(self, headers: bytes, expected: tuple[bytes | None, int, int, bool] | None) -> None:
        """A condition is read, with its fault if it has one; a source without a number is none."""
        event = event_of(b"SEND\ndestination:X/a\n" + headers + b"\nkept:1\n\n\0")
        assert isinstance(event, Send)
        found = event.condition
        assert (found and (found.source, found.number, found.expected, bool(found.problem))) == expected
        assert event.headers[-1] == (b"kept", b"1")
        assert b"if-revision" not in dict(event.headers)

    def test_what_the_names_tell_is_found_once(self) -> None:
        """A SEND after another one, with the same header names or not, is read as it is alone."""
        heads = [
            b"destination:X/a",
            b"destination:X/b\nreceipt:1",
            b"receipt:2\ndestination:X/b",
            b"destination:X/c\nu:1\nreceipt:3",
            b"destination:X/c\nu:2\nv:1\nmessage-id:7",
            b"destination:X/c\nu:2\nu:3\nv:1",
            b"destination:X/c\nu:\\c\nreceipt:3",
            b"destination:X/c\r\nu:4\r\nreceipt:3\r",
            b"destination:X/c\nsource:s\nsource-revision:1",
            b"destination:X/c\nif-revision:0",
            b"destination:X/c\ncontent-type:application/json",
            b"destination:X/c\ncontent-type:avro/binary",
        ]
        frames = [b"SEND\n" + head + b"\n\n\0" for one in heads for two in heads for head in (one, one, two, two)]
        alone = {frame: event_of(frame) for frame in frames}
        events = connected().receive_data(b"".join(frames))
        assert [described(event) for event in events] == [described(alone[frame]) for frame in frames]

    @pytest.mark.parametrize("wrong", [b"receipt:r", b"destination:X/a\ntransaction:t"])
    def test_other_names_are_looked_at(self, wrong: bytes) -> None:
        """The header names of one SEND decide nothing for the next SEND with other names."""
        assert error_of(b"SEND\ndestination:X/a\n\n\0SEND\n" + wrong + b"\n\n\0", skip=1)

    def test_missing_destination(self) -> None:
        """Spec: STOMP 1.2 "It has one REQUIRED header, destination"."""
        assert "destination" in error_of(b"SEND\nreceipt:r\n\nbody\0").detail

    def test_long_destination(self) -> None:
        """A destination over 512 bytes is for the broker to reject, not an ERROR."""
        assert isinstance(event_of(b"SEND\ndestination:" + b"x" * 600 + b"\n\n\0"), Send)


@pytest.mark.parametrize("command", [b"SEND\ndestination:X/a", b"ACK\nid:1 1", b"ACK\nsubscription:1\nmessage-id:1"])
@pytest.mark.parametrize("version", VERSIONS)
def test_transaction(command: bytes, version: int) -> None:
    """Spec: MaXaM "| SEND | transaction | Not implemented | Will generate error |"; of ACK the same."""
    error = error_of(command + b"\ntransaction:t\nreceipt:r\n\n\0", version)
    assert (error.message, error.receipt) == ("not implemented", b"r")


@pytest.mark.parametrize("command", [b"BEGIN", b"COMMIT", b"ABORT"])
def test_transactions(command: bytes) -> None:
    """Spec: MaXaM "| BEGIN | Not implemented | Will generate error |"; COMMIT and ABORT too."""
    error = error_of(command + b"\ntransaction:t\nreceipt:r\n\n\0")
    assert (error.message, error.receipt) == ("not implemented", b"r")


@pytest.mark.parametrize("headers", [b"", b"id:1 2\n", b"transaction:t\n"])
def test_nack(headers: bytes) -> None:
    """Spec: MaXaM "| NACK | Not implemented | Will be ignored |", whatever its headers."""
    assert fields(event_of(b"NACK\n" + headers + b"receipt:r\n\n\0")) == fields(Nack(b"r"))


class TestAck:
    """ACK of either version."""

    @pytest.mark.parametrize(
        ("identifier", "subscription", "revision"),
        [
            (b"1 42", b"1", 42),
            (b"a b 42", b"a b", 42),
            (b" 42", b"", 42),
            (b"a\\cb 42", b"a:b", 42),
            (b"42", b"42", 0),
            (b"", b"", 0),
            (b"1 ", b"1", 0),
            (b"1 0", b"1", 0),
            (b"1 042", b"1", 0),
            (b"1 -42", b"1", 0),
            (b"1 x", b"1", 0),
            (b"1 " + b"9" * 5000, b"1", 0),
        ],
    )
    def test_1_2(self, identifier: bytes, subscription: bytes, revision: int) -> None:
        """Spec: MaXaM "must be subscription and message-id concatenated joined on space"; split at the last one."""
        assert fields(event_of(b"ACK\nid:" + identifier + b"\n\n\0")) == fields(Ack(subscription, revision, None))

    def test_1_1(self) -> None:
        """Spec: MaXaM "| ACK | subscription | required in v1.1", "| ACK | message-id | required in v1.1"."""
        event = event_of(b"ACK\nsubscription:a b\nmessage-id:42\nreceipt:r\n\n\0", VERSION_1_1)
        assert fields(event) == fields(Ack(b"a b", 42, b"r"))

    @pytest.mark.parametrize(
        ("version", "headers", "missing"),
        [
            (VERSION_1_2, b"subscription:1\nmessage-id:1\n", "id"),
            (VERSION_1_1, b"id:1 1\n", "subscription"),
            (VERSION_1_1, b"subscription:1\n", "message-id"),
        ],
    )
    def test_missing(self, version: int, headers: bytes, missing: str) -> None:
        """A missing required header is an ERROR with its name."""
        error = error_of(b"ACK\nreceipt:r\n" + headers + b"\n\0", version)
        assert (error.message, error.receipt) == ("missing header", b"r")
        assert f"no {missing} header" in error.detail


class TestSubscribe:
    """SUBSCRIBE and UNSUBSCRIBE."""

    @pytest.mark.parametrize(
        ("headers", "acknowledged", "durable", "eager", "individual"),
        [
            (b"", False, False, False, False),
            (b"ack:auto\n", False, False, False, False),
            (b"ack:client\n", True, False, False, False),
            (b"ack:client-individual\n", True, False, False, True),
            (b"durable:true\n", False, True, False, False),
            (b"durable:false\neager:true\n", False, False, True, False),
            (b"metadata:false\nmarkers:false\nchanges-only:false\nunknown:x\n", False, False, False, False),
        ],
    )
    def test_event(self, headers: bytes, acknowledged: bool, durable: bool, eager: bool, individual: bool) -> None:
        """Spec: STOMP 1.2 "If the header is not set, it defaults to auto."."""
        event = event_of(b"SUBSCRIBE\nid:1\ndestination:X/*\n" + headers + b"receipt:r\n\n\0")
        assert fields(event) == fields(Subscribe(b"1", b"X/*", acknowledged, durable, eager, b"r", individual))

    @pytest.mark.parametrize(
        ("headers", "values"),
        [
            (b"since:0.7.x\n", (b"0.7.x", False, False, 0, None, False)),
            (b"since:\n", (b"", False, False, 0, None, False)),
            (b"markers:true\nmetadata:true\n", (None, True, True, 0, None, False)),
            (b"min-interval:10\nchanges-only:true\n", (None, False, False, 10, None, True)),
            (b"min-interval:3600000\n", (None, False, False, 3_600_000, None, False)),
            (b"selector:a > 1\n", (None, False, False, 0, "a > 1", False)),
        ],
    )
    def test_options(self, headers: bytes, values: tuple[object, ...]) -> None:
        """Headers that refine delivery are read into options."""
        event = event_of(b"SUBSCRIBE\nid:1\ndestination:X/*\n" + headers + b"\n\0")
        assert isinstance(event, Subscribe)
        assert event.options is not None
        options = event.options
        read = (options.since, options.markers, options.metadata, options.interval_ms, options.selector)
        assert (*read, options.changes_only) == values

    @pytest.mark.parametrize(
        "header", [b"min-interval:9", b"min-interval:3600001", b"min-interval:1s", b"changes-only:yes", b"markers:1"]
    )
    def test_an_option_out_of_range_is_an_error(self, header: bytes) -> None:
        """The summary of the ERROR has the name of the header."""
        event = event_of(b"SUBSCRIBE\nid:1\ndestination:X/*\n" + header + b"\n\n\0")
        assert isinstance(event, Failure)
        assert event.error.message == "bad " + header.partition(b":")[0].decode()

    @pytest.mark.parametrize("name", [b"durable", b"eager", b"metadata", b"markers"])
    @pytest.mark.parametrize("value", [b"", b"True", b"1", b"yes", b" true"])
    def test_flags(self, name: bytes, value: bytes) -> None:
        """A flag is true or false; anything else is an ERROR."""
        error = error_of(b"SUBSCRIBE\nid:1\ndestination:X/*\n" + name + b":" + value + b"\nreceipt:r\n\n\0")
        assert (error.message, error.receipt) == (f"bad {name.decode()}", b"r")

    @pytest.mark.parametrize("value", [b"", b"Client", b"none"])
    def test_ack_modes(self, value: bytes) -> None:
        """Any other ack mode is an ERROR that lists all three."""
        assert "client-individual" in error_of(b"SUBSCRIBE\nid:1\ndestination:X/*\nack:" + value + b"\n\n\0").detail

    @pytest.mark.parametrize("headers", [b"id:1\n", b"destination:X/*\n"])
    def test_missing(self, headers: bytes) -> None:
        """Both id and destination are required."""
        assert error_of(b"SUBSCRIBE\n" + headers + b"\n\0").message == "missing header"

    def test_limits(self) -> None:
        """An id over 128 bytes or a glob over 512 is an ERROR with the name of the limit."""
        start = b"SUBSCRIBE\nid:"
        assert isinstance(event_of(start + b"i" * 128 + b"\ndestination:" + b"x" * 512 + b"\n\n\0"), Subscribe)
        error = error_of(start + b"i" * 129 + b"\ndestination:x\n\n\0")
        assert "subscription_id_bytes_max" in error.detail
        error = error_of(start + b"i\ndestination:" + b"x" * 513 + b"\n\n\0")
        assert "destination_bytes_max" in error.detail

    @pytest.mark.parametrize(
        ("headers", "durable"), [(b"", False), (b"durable:false\n", False), (b"durable:true\n", True)]
    )
    def test_unsubscribe(self, headers: bytes, durable: bool) -> None:
        """Spec: MaXaM "to permanently UNSUBSCRIBE [...] the durable:true header must be included"."""
        event = event_of(b"UNSUBSCRIBE\nid:1\n" + headers + b"receipt:r\n\n\0")
        assert fields(event) == fields(Unsubscribe(b"1", durable, b"r"))

    def test_bad_unsubscribe(self) -> None:
        """UNSUBSCRIBE needs an id, and its flag is true or false."""
        assert error_of(b"UNSUBSCRIBE\n\n\0").message == "missing header"
        assert error_of(b"UNSUBSCRIBE\nid:1\ndurable:no\n\n\0").message == "bad durable"


class TestEnd:
    """Nothing is read after the end."""

    def test_disconnect(self) -> None:
        """A frame after DISCONNECT is ignored. Spec: STOMP 1.2 "Clients MUST NOT send any more frames after the DISCONNECT frame is sent."."""
        protocol = connected()
        events = protocol.receive_data(b"NACK\n\n\0DISCONNECT\nreceipt:77\n\n\0garbage")
        assert [fields(event) for event in events] == [fields(Nack(None)), fields(Disconnect(b"77"))]
        assert protocol.closed
        assert protocol.receive_data(b"NACK\n\n\0") == []

    def test_frames_before_a_failure_stand(self) -> None:
        """Events before the fault are returned before it."""
        events = connected().receive_data(b"NACK\n\n\0NACK\n\n\0FOO\n\n\0NACK\n\n\0")
        assert [type(event) for event in events] == [Nack, Nack, Failure]

    def test_limit_names_itself(self) -> None:
        """A declared length over the limit is an ERROR with the receipt, before any body is read."""
        protocol = connected(limits=dataclasses.replace(Limits(), frame_body_bytes_max=5))
        (event,) = protocol.receive_data(b"SEND\ndestination:X/a\nreceipt:r\ncontent-length:6\n\n")
        assert isinstance(event, Failure)
        assert event.error.receipt == b"r"
        assert "frame_body_bytes_max" in event.error.detail


class TestHeartBeat:
    """Spec: STOMP 1.2 "Heart-beating"."""

    @pytest.mark.parametrize(
        ("ours", "theirs", "send_s", "receive_s"),
        [
            ((10000, 10000), (0, 0), 0, 0),
            ((10000, 10000), (5000, 5000), 10, 10),
            ((10000, 10000), (20000, 30000), 30, 20),
            ((10000, 10000), (0, 5000), 10, 0),
            ((10000, 10000), (5000, 0), 0, 10),
            ((0, 10000), (5000, 5000), 0, 10),
            ((10000, 0), (5000, 5000), 10, 0),
        ],
    )
    def test_intervals(self, ours: tuple[int, int], theirs: tuple[int, int], send_s: float, receive_s: float) -> None:
        """Spec: "if <cx> is 0 or <sy> is 0 then there will be none, otherwise every MAX(<cx>,<sy>) milliseconds"."""
        beat = HeartBeat(ours, theirs, 0)
        assert (beat.send_interval_s, beat.receive_interval_s) == (send_s, receive_s)
        assert math.isinf(beat.send_due_s) == (send_s == 0)
        assert math.isinf(beat.dead_due_s) == (receive_s == 0)

    def test_sending(self) -> None:
        """Spec: "the sender MUST send new data over the network connection at least every <n> milliseconds"."""
        beat = HeartBeat((10000, 10000), (10000, 10000), 100)
        assert 100 < beat.send_due_s < 110
        beat.sent(105)
        assert 105 < beat.send_due_s < 115

    def test_silence(self) -> None:
        """The peer counts as dead after twice the interval; any byte starts the count again."""
        beat = HeartBeat((10000, 10000), (0, 0), 100)
        assert beat.dead_due_s == math.inf
        beat = HeartBeat((10000, 10000), (5000, 0), 100)
        assert beat.dead_due_s == 120
        beat.received(110)
        assert beat.dead_due_s == 130

    def test_silence_counts_only_while_we_read(self) -> None:
        """While we do not read the count stands still, and goes on where it stopped."""
        beat = HeartBeat((10000, 10000), (10000, 10000), 100)
        beat.pause(115)
        beat.pause(120)
        assert beat.dead_due_s == math.inf
        beat.resume(1000)
        beat.resume(1001)
        assert beat.dead_due_s == 1005
        beat.pause(1004)
        beat.received(1100)
        beat.resume(1200)
        assert beat.dead_due_s == 1220

    def test_who_takes_what_it_was_sent_is_alive(self) -> None:
        """A silent peer that has not taken everything is checked again half an interval later, and is dead unless it took more."""
        beat = HeartBeat((10000, 10000), (10000, 10000), 100)
        assert not beat.is_dead(800, 5000, beat.dead_due_s)
        assert beat.dead_due_s == 125
        assert beat.is_dead(800, 5000, 125)
        assert not beat.is_dead(800, 5001, 125)
        assert beat.dead_due_s == 145  # counted from 125
        assert not beat.is_dead(700, 6000, 145)
        beat.received(146)
        assert beat.dead_due_s == 166
        assert not beat.is_dead(700, 6000, 166)
        assert beat.is_dead(0, 6700, 171)  # it has everything, and is silent

    def test_a_clock_that_runs_only_while_we_read(self) -> None:
        """`listened_s` stands still between `pause` and `resume`, whatever is received meanwhile."""
        beat = HeartBeat((10000, 10000), (10000, 10000), 100)
        assert beat.listened_s(110) - beat.listened_s(100) == 10
        beat.pause(110)
        assert beat.listened_s(150) == beat.listened_s(110)
        beat.received(160)
        assert beat.listened_s(170) == beat.listened_s(160)
        beat.resume(200)
        assert beat.listened_s(205) - beat.listened_s(200) == 5
        assert beat.listened_s(205) == 115

    def test_error(self) -> None:
        """The ERROR has both sides' intervals, the tolerated silence and the time since the last byte."""
        error = HeartBeat((10000, 15000), (5000, 0), 100).error(130.5)
        for text in ("30.5 s", "15.0 s", "30.0 s", "5000 ms", "15000 ms"):
            assert text in error.detail
