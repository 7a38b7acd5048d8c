"""A hostile client of the real gateway: each gets a clear error, and a good client beside it notices nothing."""

import contextlib
import datetime as dt
import io
import itertools
import json
import random
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import fastavro
import pytest
from click.testing import CliRunner

from maxam.avro.envelope import ENVELOPE_TEXT
from maxam.avro.registry import load_registry
from maxam.main import gateway
from maxam.pki.certificates import Authority
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.scene import CONNECT, Scene, error_of, open_files, resident_bytes, scene, settle
from tests.support.gateway_folder import BlockingClient, GatewayFolder
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run a gateway with the limits that it is shipped with."""
    with scene(tmp_path_factory.mktemp("gateway"), "") as found:
        yield found


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run a gateway with short deadlines and low caps."""
    limits = (
        "tls_handshake_timeout_s = 3\nconnect_timeout_s = 3\nwrite_timeout_s = 1\nlinger_timeout_s = 0.2\n"
        "takeovers_per_minute_max = 5\nsubscriptions_per_session_max = 20\nsessions_per_principal_max = 30"
    )
    with scene(tmp_path_factory.mktemp("gateway"), limits) as found:
        yield found


@pytest.fixture(autouse=True)
def undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the bystander after each test."""
    yield
    for name in ("broker", "hasty", "typed"):
        if name in request.fixturenames:
            request.getfixturevalue(name).bystander.check()


SEND = b"SEND\ndestination:X/a\n"
HOSTILE = {
    "garbage": (b"\x00\xff\x13\x37garbage", b"malformed frame"),
    "lower case": (b"send\ndestination:X/a\n\n\0", b"malformed frame"),
    "endless command": (b"A" * 10_000, b"malformed frame"),
    "unknown command": (b"EXPLODE\n\n\0", b"unexpected command"),
    "a server's command": (b"MESSAGE\ndestination:X/a\n\n\0", b"unexpected command"),
    "a second CONNECT": (CONNECT, b"already connected"),
    "a transaction": (b"BEGIN\ntransaction:t\n\n\0", b"not implemented"),
    "SEND in a transaction": (SEND + b"transaction:t\n\n\0", b"not implemented"),
    "no destination": (b"SEND\n\nbody\0", b"missing header"),
    "no id": (b"SUBSCRIBE\ndestination:X/a\n\n\0", b"missing header"),
    "a header without colon": (SEND + b"nonsense\n\n\0", b"malformed header"),
    "a header without name": (SEND + b":value\n\n\0", b"malformed header"),
    "a NUL in a header": (SEND + b"a:b\0c\n\n\0", b"malformed header"),
    "a NUL in the command": (b"SE\0ND\n\n\0", b"malformed frame"),
    "an undefined escape": (SEND + b"a:\\t\n\n\0", b"malformed header"),
    "half an escape": (SEND + b"a:\\\n\n\0", b"malformed header"),
    "a lone CR": (SEND + b"a:b\rc\n\n\0", b"malformed header"),
    "invalid UTF-8": (SEND + b"a:\xc3\x28\n\n\0", b"malformed header"),
    "overlong UTF-8": (SEND + b"a:\xc0\xaf\n\n\0", b"malformed header"),
    "a surrogate": (SEND + b"a:\xed\xa0\x80\n\n\0", b"malformed header"),
    "101 headers": (SEND + b"".join(b"h%d:v\n" % n for n in range(100)) + b"\n\0", b"too many headers"),
    "101 times one header": (SEND + b"h:v\n" * 100 + b"\n\0", b"too many headers"),
    "an endless line": (SEND + b"a" * 100_000, b"header line too long"),
    "an endless value": (SEND + b"a:" + b"v" * 100_000, b"header line too long"),
    "too many header bytes": (SEND + (b"h:" + b"v" * 8000 + b"\n") * 9, b"headers too long"),
    "endless headers": (SEND + b"a:b\n" * 50_000, b"too many headers"),
    "a negative length": (SEND + b"content-length:-1\n\n\0", b"bad content-length"),
    "a length that is none": (SEND + b"content-length:0x10\n\n\0", b"bad content-length"),
    "a huge length": (SEND + b"content-length:" + b"9" * 400 + b"\n\n\0", b"bad content-length"),
    "a length with sign": (SEND + b"content-length:+1\n\na\0", b"bad content-length"),
    "a length in other digits": (SEND + b"content-length:\xd9\xa1\n\na\0", b"bad content-length"),
    "a length that lies": (SEND + b"content-length:2\n\nlong body\0", b"bad content-length"),
    "4 MiB and 1 declared": (SEND + b"content-length:4194305\n\n", b"body too long"),
    "64 bits declared": (SEND + b"content-length:18446744073709551\n\n", b"body too long"),
    "4 MiB and 1 sent": (SEND + b"\n" + b"v" * 4_194_305, b"body too long"),
    "a body on SUBSCRIBE": (b"SUBSCRIBE\nid:1\ndestination:X/a\n\nbody\0", b"unexpected body"),
    "a body declared on ACK": (b"ACK\nid:s 1\ncontent-length:5\n\nbody!\0", b"unexpected body"),
    "a long subscription id": (b"SUBSCRIBE\nid:" + b"i" * 129 + b"\ndestination:X/a\n\n\0", b"id too long"),
    "a long glob": (b"SUBSCRIBE\nid:1\ndestination:X/" + b"a" * 511 + b"\n\n\0", b"destination too long"),
    "a glob bomb": (b"SUBSCRIBE\nid:1\ndestination:X/" + b"*a" * 33 + b"\n\n\0", b"bad destination"),
    "an unclosed set": (b"SUBSCRIBE\nid:1\ndestination:X/[a\n\n\0", b"bad destination"),
    "a glob for nothing": (b"SUBSCRIBE\nid:1\ndestination:X/a/b\n\n\0", b"bad destination"),
    "a path": (b"SUBSCRIBE\nid:1\ndestination:../../etc/passwd\n\n\0", b"bad destination"),
    "an unknown ack mode": (b"SUBSCRIBE\nid:1\ndestination:X/a\nack:never\n\n\0", b"bad ack"),
    "a flag that is none": (b"SUBSCRIBE\nid:1\ndestination:X/a\neager:yes\n\n\0", b"bad eager"),
    "an id twice": (b"SUBSCRIBE\nid:1\ndestination:X/a\n\n\0" * 2, b"duplicate subscription id"),
    "1001 subscriptions": (
        b"".join(b"SUBSCRIBE\nid:%d\ndestination:X/nobody.*\n\n\0" % n for n in range(1001)),
        b"too many subscriptions",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_is_refused(broker: Scene, name: str) -> None:
    """A frame that breaks a rule or a limit is answered with an ERROR that shows it, after the RECEIPTs before it."""
    data, message = HOSTILE[name]
    frames = broker.answer(encoder.send(VERSION_1_2, b"X/before", b"v", receipt_id=b"before") + data + SEND + b"\n\0")
    assert error_of(frames) == message
    assert frames[0].command == b"CONNECTED"
    assert frames[1].headers[b"receipt-id"] == b"before"
    assert len(frames) == 3


STRANGE = {
    "SEND first": (SEND + b"\n\0", b"unexpected command"),
    "SUBSCRIBE first": (b"SUBSCRIBE\nid:1\ndestination:X/**\n\n\0", b"unexpected command"),
    "no STOMP": (b"GET / HTTP/1.1\r\n\r\n", b"malformed frame"),
    "no version": (b"CONNECT\nhost:MAXVAPI\n\n\0", b"no common version"),
    "an old version": (b"CONNECT\naccept-version:1.0\nhost:MAXVAPI\n\n\0", b"no common version"),
    "no host": (b"CONNECT\naccept-version:1.2\n\n\0", b"missing header"),
    "another host": (b"CONNECT\naccept-version:1.2\nhost:evil\n\n\0", b"unknown host"),
    "a long CONNECT": (b"CONNECT\n" + b"h:" + b"v" * 8192, b"headers too long"),
    "many headers": (b"CONNECT\n" + b"a:b\n" * 101, b"too many headers"),
    "a body": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\n\nbody\0", b"unexpected body"),
    "a declared body": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\ncontent-length:9999\n\n", b"unexpected body"),
    "a CR in a value": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nclient-id:a\rb\n\n\0", b"malformed header"),
    "a NUL in a value": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nclient-id:a\0b\n\n\0", b"malformed header"),
    "a control in client-id": (encoder.connect("MAXVAPI", client_id="a\x1b[2Jb"), b"bad client-id"),
    "a bidi mark in client-id": (
        b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nclient-id:\xe2\x80\xaea\n\n\0",
        b"bad client-id",
    ),
    "a long client-id": (encoder.connect("MAXVAPI", client_id="i" * 129), b"bad client-id"),
    "a bad heart-beat": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nheart-beat:-1,0\n\n\0", b"bad heart-beat"),
    "a bad window": (b"CONNECT\naccept-version:1.2\nhost:MAXVAPI\nwindow:0\n\n\0", b"bad window"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_hostile_first_frame_is_refused(broker: Scene, name: str) -> None:
    """Any frame that is no proper CONNECT is answered with one ERROR, and nothing after it takes effect."""
    data, message = STRANGE[name]
    frames = broker.answer(encoder.send(VERSION_1_2, b"X/sneaked-in", b"v", receipt_id=b"r"), data)
    assert error_of(frames) == message
    assert len(frames) == 1
    with broker.process.client("subscriber") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/sneaked-in", b"auto", eager=True, receipt_id=b"r"))
        assert reader.frame().command == b"RECEIPT"


def test_headers_of_connect_are_no_injection(broker: Scene) -> None:
    """Escapes in CONNECT are plain text: no header of CONNECTED or line of the log can be made with them."""
    name = 'x\\nsession:forged" reason="forged'
    frames = broker.answer(b"DISCONNECT\nreceipt:r\n\n\0", encoder.connect("MAXVAPI", client_id=name))
    assert [frame.command for frame in frames] == [b"CONNECTED", b"RECEIPT"]
    assert list(frames[0].headers) == [b"version", b"session", b"heart-beat", b"server"]
    assert frames[0].headers[b"session"] == name.encode()
    assert 'session="x\\\\nsession:forged\\" reason=\\"forged"' in broker.wait_for_log("forged")


def test_headers_of_a_send_are_no_injection(broker: Scene) -> None:
    """Line ends, colons and reserved names in headers of a SEND come out as sent, or not at all."""
    with broker.process.client("subscriber") as reader, broker.process.client() as sender:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/headers", b"auto", receipt_id=b"r"))
        assert reader.frame().command == b"RECEIPT"
        value = "a\nmessage-id:9\r\n\0".replace("\0", "") + ":\\\u202e"
        sender.write(
            encoder.send(VERSION_1_2, b"X/headers", b"v", ((b"evil\nname:", value.encode()), (b"subscription", b"z")))
        )
        frame = reader.frame()
        assert frame.headers[b"evil\nname:"] == value.encode()
        assert frame.headers[b"subscription"] == b"s"
        assert frame.headers[b"message-id"].isdigit()


@pytest.mark.parametrize(
    "destination",
    [
        b"nostore",
        b"X/",
        b"X/a..b",
        b"X/a/b",
        b"X/../a",
        b"X/a\nb",
        b"X/\xe2\x80\xaea",
        b"X/a*",
        b"X/" + b"a" * 600,
        b"",
    ],
)
def test_a_bad_destination_is_refused_in_the_receipt(broker: Scene, destination: bytes) -> None:
    """A SEND to what is no destination gets rejected-invalid with a reason of one printable line; the connection lives."""
    with broker.process.client() as client:
        client.write(encoder.send(VERSION_1_2, destination, b"v", receipt_id=b"r"))
        receipt = client.frame()
        assert receipt.headers[b"disposition"] == b"rejected-invalid"
        assert receipt.headers[b"result"] == b"invalid-destination"
        assert receipt.headers[b"reason"].decode().isprintable()
        assert client.send(b"X/after", b"v") == b"accepted"


def test_random_bytes_end_only_their_connection(broker: Scene) -> None:
    """Random bytes after CONNECT are answered with an ERROR, or wait for the rest of a frame."""
    rng = random.Random(1)  # noqa: S311  # to be repeatable
    for _ in range(60):
        frames = broker.answer(rng.randbytes(rng.choice([1, 10, 1000, 100_000])))
        assert frames[0].command == b"CONNECTED" or error_of(frames)


def test_random_bytes_instead_of_tls_end_only_their_connection(broker: Scene) -> None:
    """A connection that is not TLS is closed and logged."""
    rng = random.Random(2)  # noqa: S311  # to be repeatable
    hellos = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"CONNECT\n\n\0",
        b"\x80\x2e\x01\0\2",
        b"\x16\x03\x01\xff\xff",
        b"\x15\x03\x01\0\2\2\x28",
    ]
    for hello in [*hellos, *(rng.randbytes(500) for _ in range(20))]:
        with broker.socket() as plain:
            plain.sendall(hello)
            plain.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while plain.recv(4096):
                    pass
    broker.wait_for_log("not TLS but plain HTTP")


def test_mutated_sessions_end_only_their_connection(broker: Scene) -> None:
    """A valid session with bytes changed, dropped, doubled or moved is answered in valid frames and harms no other client."""
    rng = random.Random(3)  # noqa: S311  # to be repeatable
    valid = b"".join(
        [
            encoder.connect("MAXVAPI", client_id="mutant"),
            encoder.subscribe(VERSION_1_2, b"s", b"X/m*", b"client", durable=True, eager=True, receipt_id=b"1"),
            encoder.send(VERSION_1_2, b"X/m1", b"body\0with NUL", ((b"a", b"b:c\n"),), receipt_id=b"2"),
            encoder.ack(VERSION_1_2, b"s", b"1", receipt_id=b"3"),
            encoder.send(VERSION_1_2, b"X/m2", b""),
            b"NACK\nid:s 1\nreceipt:4\n\n\0\n\n",
            encoder.unsubscribe(VERSION_1_2, b"s", durable=True, receipt_id=b"5"),
            encoder.disconnect(VERSION_1_2, b"6"),
        ]
    )
    for _ in range(200):
        session = bytearray(valid)
        for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
            at = rng.randrange(len(session))
            length = rng.choice([1, 1, 4, 30])
            match rng.randrange(4):
                case 0:
                    session[at] = rng.choice(b"\0\n\r:\\09aZ\xff" + rng.randbytes(4))
                case 1:
                    del session[at : at + length]
                case 2:
                    session[at:at] = session[at : at + length]
                case _:
                    part = session[at : at + length]
                    del session[at : at + length]
                    session[rng.randrange(len(session) + 1) : 0] = part
        frames = broker.answer(b"", bytes(session))
        assert all(frame.command != b"ERROR" for frame in frames[:-1])


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("nobody", "the client sent no certificate"),
        ("foreign", "client certificate refused: unable to get local issuer certificate"),
        ("expired", "client certificate refused: certificate has expired"),
        ("future", "client certificate refused: certificate is not yet valid"),
        ("server", "client certificate refused: unsuitable certificate purpose"),
        ("self-made", "client certificate refused: self-signed certificate"),
    ],
)
def test_a_wrong_certificate_is_refused(broker: Scene, who: str, reason: str) -> None:
    """Without a valid client certificate TLS ends with an alert, before a byte is answered, and the log has the reason."""
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    folder = broker.certificates
    authority = Authority.read(folder)
    match who:
        case "expired":
            authority.issue("c", now - 2 * day, now - day).write(folder, who)
        case "future":
            authority.issue("c", now + day, now + 2 * day).write(folder, who)
        case "foreign":
            Authority.create("another", now).issue("c", now - day, now + day).write(folder, who)
        case "self-made":
            Authority.create("self-made", now).issued.write(folder, who)
        case _:
            pass
    seen = len(broker.process.log())
    with pytest.raises(ssl.SSLError, match="alert"):  # TLS 1.3: the client learns of it when it reads
        receive_one(broker.tls(None if who == "nobody" else folder / f"{who}.pem"))
    assert " connection-failed " in broker.wait_for_log(reason, seen)


def receive_one(client: ssl.SSLSocket) -> None:
    """Wait for the first byte and close."""
    with client:
        client.recv(1)


def test_an_unknown_certificate_is_refused(broker: Scene) -> None:
    """A certificate of the right authority that the policy does not name gets an ERROR with its fingerprint."""
    now = dt.datetime.now(dt.UTC)
    issued = Authority.read(broker.certificates).issue("publisher", now, now + dt.timedelta(days=1))
    issued.write(broker.certificates, "unknown")
    with broker.tls(broker.certificates / "unknown.pem") as hostile:
        hostile.sendall(CONNECT)
        text = b""
        while part := hostile.recv(4096):
            text += part
    assert text.startswith(b"ERROR\nmessage:unknown client\n")
    assert issued.fingerprint.encode() in text


def test_takeover_ping_pong_is_limited(hasty: Scene) -> None:
    """The newest of one principal's connections with one client-id wins, so often a minute; another principal's is apart."""
    with hasty.process.client("subscriber", "shared") as other, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(hasty.process.client("publisher", "shared"))]
        for _ in range(5):
            clients.append(stack.enter_context(hasty.process.client("publisher", "shared")))
            loser = clients[-2].frame()
            assert loser.headers[b"message"] == b"session taken over by a newer connection"
            with pytest.raises((EOFError, ConnectionError)):
                clients[-2].frame()
        refused = hasty.answer(b"", encoder.connect("MAXVAPI", client_id="shared"))
        assert error_of(refused) == b"too many takeovers"
        assert clients[-1].send(b"X/a", b"v") == b"accepted"
        assert other.send(b"X/a", b"v") == b"accepted"


def test_sessions_and_subscriptions_of_a_principal_are_limited(hasty: Scene) -> None:
    """One principal's sessions and one session's subscriptions have caps; another principal is not touched by them."""
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(hasty.process.client("subscriber"))
        with hasty.tls(hasty.certificates / "subscriber.pem") as one_more:
            one_more.sendall(CONNECT)
            assert one_more.recv(4096).startswith(b"ERROR\nmessage:too many sessions\n")
        with hasty.process.client() as publisher:
            for number in range(20):
                publisher.write(encoder.subscribe(VERSION_1_2, b"%d" % number, b"X/a", b"auto"))
            publisher.write(encoder.subscribe(VERSION_1_2, b"one more", b"X/a", b"auto", receipt_id=b"r"))
            frame = publisher.frame()
            assert (frame.headers[b"message"], frame.headers[b"receipt-id"]) == (b"too many subscriptions", b"r")


def test_slow_strangers_meet_absolute_deadlines(hasty: Scene) -> None:
    """Silent or dripping peers are closed at the deadline of their stage, however regularly they drip."""
    seen = len(hasty.process.log())
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    client_hello = hello.read()
    with contextlib.ExitStack() as stack:
        silent, half, dripping = (stack.enter_context(hasty.socket()) for _ in range(3))
        half.sendall(client_hello[:100])
        mute, connecting, drip_connect = (stack.enter_context(hasty.stranger()) for _ in range(3))
        connecting.sendall(CONNECT[:10])
        open_ones: list[socket.socket] = [silent, half, dripping, mute, connecting, drip_connect]
        drips = itertools.count()
        began_s = time.monotonic()
        while open_ones:
            assert time.monotonic() - began_s < PATIENCE_S
            number = next(drips)
            for dripper, data in (
                (dripping, client_hello),
                (drip_connect, b"STOMP\naccept-version:1.2\n" + b"a:b\n" * 90),
            ):
                if dripper in open_ones:
                    with contextlib.suppress(OSError):
                        dripper.sendall(data[number % len(data) : number % len(data) + 1])
            for peer in list(open_ones):
                peer.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    try:
                        data = peer.recv(4096)
                    except ConnectionError:
                        data = b""
                    if not data:
                        open_ones.remove(peer)
                    elif isinstance(peer, ssl.SSLSocket):
                        assert data.startswith(b"ERROR\nmessage:no CONNECT\n")
    log = hasty.process.log()[seen:]
    assert log.count("TLS handshake not complete within 3 s") == 3


def test_a_flood_of_strangers_keeps_no_client_out(broker: Scene) -> None:
    """Among 400 peers that stop after half of their TLS handshake, clients connect about as quickly as without them, and memory is bounded."""

    def visit() -> float:
        began_s = time.monotonic()
        with broker.process.client("subscriber") as client:
            assert client.send(b"X/a", b"v") == b"accepted"
        return time.monotonic() - began_s

    usual_s = median(visit() for _ in range(8))
    before = resident_bytes(broker.process)
    took_s: list[float] = []
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)  # a ClientHello that is not whole
    with contextlib.ExitStack() as stack:
        for number in range(400):
            stack.enter_context(broker.socket()).sendall(hello)
            if number % 50 == 0:
                took_s.append(visit())
        assert (
            median(took_s) < 10 * usual_s
        )  # after 50 of them; a client that waited for their deadlines would wait for seconds
        assert resident_bytes(broker.process) - before < 400 * 65_536


def test_rough_ends_leave_nothing_behind(broker: Scene) -> None:
    """After 500 connections that break off at any stage, files are as many as before and memory has not grown."""

    def rough(number: int) -> None:
        stage = number % 6
        peer: socket.socket = broker.socket() if stage < 2 else broker.stranger()
        with peer:
            if stage == 1:
                peer.sendall(b"\x16\x03\x01\x02\x00\x01")
            elif stage == 3:
                peer.sendall(CONNECT[:-3])
            elif stage == 4:
                peer.sendall(CONNECT + encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"client", eager=True))
            elif stage == 5:
                peer.sendall(CONNECT + SEND + b"content-length:1000000\n\n" + bytes(100_000))
            if number % 2:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset

    before = open_files(broker.process)
    for number in range(100):
        rough(number)
    settle(broker.process, before)
    memory = resident_bytes(broker.process)
    for number in range(500):
        rough(number)
    settle(broker.process, before)
    assert resident_bytes(broker.process) - memory < 8 * 2**20


@pytest.mark.parametrize("ack", [b"auto", b"client"])
def test_a_reader_that_never_reads_harms_nobody(hasty: Scene, broker: Scene, ack: bytes) -> None:
    """It is closed by the write deadline; until then memory is bounded and publishers get their receipts as from a gateway without such."""
    body = bytes(20_000)

    def publish(publisher: BlockingClient, number: int) -> float:
        began_s = time.monotonic()
        assert publisher.send(b"X/r%d" % (number % 50), body) == b"accepted"
        return time.monotonic() - began_s

    seen = len(hasty.process.log())
    with hasty.process.client() as publisher, broker.process.client() as elsewhere, contextlib.ExitStack() as stack:
        for number in range(200):
            publish(publisher, number)
        memory = resident_bytes(hasty.process)
        for _ in range(10):
            reader = stack.enter_context(hasty.tls(hasty.certificates / "subscriber.pem", 4096))
            reader.sendall(CONNECT + encoder.subscribe(VERSION_1_2, b"s", b"X/r*", ack))
        took_s: list[float] = []
        usual_s: list[float] = []  # in turn: on a busy machine a moment before proves nothing
        while hasty.process.log()[seen:].count("did not take") < 10:
            took_s.append(publish(publisher, len(took_s)))
            usual_s.append(publish(elsewhere, len(took_s)))
            assert len(took_s) < 50_000
        assert median(took_s) < 3 * median(usual_s) + 0.01
        assert resident_bytes(hasty.process) - memory < 10 * 262_144 + 8 * 2**20
    assert re.search(r"connection-closed .* reason=.the peer did not take", hasty.process.log()[seen:])


# The hostile table of docs/develop/performance.md and more, each as the body of a type of its own.
TYPES = {
    "Bits": '{"type":"record","name":"Bits_v1","namespace":"t","fields":[{"name":"b","type":"boolean"},'
    '{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}},{"name":"u","type":["null","long"]},'
    '{"name":"i","type":"int"},{"name":"s","type":"string"}]}',
    "Nulls": '{"type":"record","name":"Nulls_v1","namespace":"t","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}',
    "Empties": '{"type":"record","name":"Empties_v1","namespace":"t","fields":[{"name":"a","type":{"type":"array",'
    '"items":{"type":"record","name":"Empty","fields":[]}}}]}',
    "Node": '{"type":"record","name":"Node_v1","namespace":"t","fields":[{"name":"next","type":["null","Node_v1"]}]}',
    "Longs": '{"type":"record","name":"Longs_v1","namespace":"t","fields":[{"name":"a","type":{"type":"array","items":"long"}}]}',
}
GOOD = b"\x01\x02\x02\x02\x02\x02x"
BODIES = {
    "a byte too many": ("Bits", GOOD + b"\0"),
    "a byte too few": ("Bits", GOOD[:-1]),
    "a boolean of 7": ("Bits", b"\x07" + GOOD[1:]),
    "an enum index of -1": ("Bits", GOOD[:1] + b"\x01" + GOOD[2:]),
    "an enum index of 2": ("Bits", GOOD[:1] + b"\x04" + GOOD[2:]),
    "a union index of -1": ("Bits", GOOD[:2] + b"\x01" + GOOD[3:]),
    "an int of 33 bits": ("Bits", GOOD[:4] + b"\x80\x80\x80\x80\x20" + GOOD[5:]),
    "a string that is not UTF-8": ("Bits", GOOD[:-1] + b"\xff"),
    "a string of negative length": ("Bits", GOOD[:-2] + b"\x01x"),
    "a string of 2**62 bytes": ("Bits", GOOD[:-2] + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
    "a varint of 400 kB": ("Bits", GOOD[:3] + b"\x80" * 400_000 + b"\0" + GOOD[4:]),
    "20 million nulls": ("Nulls", b"\x80\xb4\x89\x13\0"),
    "20 million empty records": ("Empties", b"\x80\xb4\x89\x13\0"),
    "2**63 nulls": ("Nulls", b"\xff" * 9 + b"\x01\0\0"),
    "100 kB of depth": ("Node", b"\x02" * 100_000 + b"\0"),
    "4 MB of small items": ("Longs", b"\x80\x92\xf4\x03" + bytes(4_000_001)),
    "more items than bytes": ("Longs", b"\x80\x80\x80\x02" + bytes(100)),
    "a block of another size": ("Longs", b"\x03\x08\x02\x02\0"),
}


def typed_schemas(files: GatewayFolder) -> None:
    """Give each type a destination for each encoding."""
    rules = []
    for name, text in TYPES.items():
        folder = files.folder / "schemas" / "t" / f"{name}_v1"
        folder.mkdir(parents=True)
        (folder / "1.0.avsc").write_text(text)
        rules += [
            f'[[rule]]\ndestination = "X/{encoding}.{name}"\nschema = "t.{name}_v1"\nencoding = "{encoding}"\n'
            for encoding in ("datum", "single-object", "envelope", "confluent")
        ]
    (files.folder / "schemas" / "registry.toml").write_text(
        "".join(rules) + '[[rule]]\ndestination = "X/good"\nencoding = "none"\n'
    )


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run a gateway with schemas that invite hostile bodies."""
    with scene(tmp_path_factory.mktemp("gateway"), "", typed_schemas) as found:
        yield found


def encoded(typed: Scene, encoding: str, name: str, datum: bytes) -> bytes:
    """Put a datum into a body."""
    root = typed.process.files.folder / "schemas"
    texts = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    version = load_registry(texts).versions(f"t.{name}_v1")[0]
    if encoding == "envelope":
        out = io.BytesIO()
        items = [{"key": 2, "value": version.crc_64}, {"key": 1, "value": datum}]
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(ENVELOPE_TEXT)), {"content": items})
        return out.getvalue()
    return version.head(encoding) + datum


@pytest.mark.parametrize("encoding", ["datum", "single-object", "envelope", "confluent"])
def test_hostile_bodies_are_refused_with_a_reason(typed: Scene, encoding: str) -> None:
    """Each is rejected-invalid with a reason of one line that shows the schema; the next valid body is accepted."""
    with typed.process.client() as client:
        for what, (name, datum) in BODIES.items():
            destination = f"X/{encoding}.{name}".encode()
            client.write(encoder.send(VERSION_1_2, destination, encoded(typed, encoding, name, datum), receipt_id=b"r"))
            headers = client.frame().headers
            assert headers[b"disposition"] == b"rejected-invalid", what
            assert headers[b"result"] == b"schema-mismatch", what
            assert f"t.{name}_v1 1.0: ".encode() in headers[b"reason"], what
            assert headers[b"reason"].decode().isprintable()
            assert client.send(f"X/{encoding}.Bits".encode(), encoded(typed, encoding, "Bits", GOOD)) == b"accepted"


@pytest.mark.parametrize("encoding", ["single-object", "envelope"])
def test_bodies_around_the_datum_are_refused_with_a_reason(typed: Scene, encoding: str) -> None:
    """A body that is cut, senseless, random, or of another type's schema is rejected-invalid."""
    rng = random.Random(4)  # noqa: S311  # to be repeatable
    good = encoded(typed, encoding, "Bits", GOOD)
    hostile = [good[:cut] for cut in range(1, len(good))] + [rng.randbytes(rng.randrange(1, 2000)) for _ in range(50)]
    hostile += [encoded(typed, encoding, "Longs", b"\0"), good + b"\0", b"\xff" * 100_000]
    with typed.process.client() as client:
        for body in hostile:
            assert client.send(f"X/{encoding}.Bits".encode(), body) == b"rejected-invalid", body[:40]
        assert client.send(f"X/{encoding}.Bits".encode(), good) == b"accepted"


UNUSABLE: dict[str, tuple[str, str | bytes, str]] = {
    "no TOML": ("maxam.toml", "[listener", "maxam.toml: not valid TOML"),
    "not UTF-8": ("maxam.toml", b"[listener]\nhost = '\xff'", "is not UTF-8"),
    "a wrong type": ("+maxam.toml", "[listener]\nvirtual_hosts = 1", "[listener] virtual_hosts: expected a list"),
    "a quick heart-beat": ("+maxam.toml", "[listener]\nheart_beat_ms = 1", "[listener] heart_beat_ms: expected 10000"),
    "a contradiction": (
        "+maxam.toml",
        "[limits]\nframe_header_line_bytes_max = 70000",
        "[limits] frame_header_line_bytes_max = 70000 is above frame_headers_bytes_max = 65536",
    ),
    "an unlimited limit": ("+maxam.toml", "[limits]\nconnect_timeout_s = inf", "[limits] connect_timeout_s: expected"),
    "no certificate": ("maxam.toml", "[policy]\nfile = 'policy.toml'", "[tls] certificate is missing"),
    "an unknown choice": ("+maxam.toml", "[journal]\ndurability = 'maybe'", "[journal] durability: expected 'fsync'"),
    "a policy that is no TOML": ("policy.toml", "[[", "policy.toml"),
    "an unknown capability": (
        "policy.toml",
        f"[[principals]]\nname = 'a'\nfingerprints = ['{'0' * 64}']\ncapabilities = ['root']",
        "root",
    ),
    "one fingerprint twice": (
        "policy.toml",
        "".join(f"[[principals]]\nname = '{n}'\nfingerprints = ['{'0' * 64}']\ncapabilities = []\n" for n in "ab"),
        "000",
    ),
    "a glob that cannot match": ("policy.toml", "[capabilities.a]\nsend = ['X/a/b']", "X/a/b"),
    "a schema that is not there": (
        "schemas/registry.toml",
        "[[rule]]\ndestination = 'X/a'\nschema = 't.Nowhere_v1'\nencoding = 'datum'",
        "t.Nowhere_v1",
    ),
    "a schema that is no JSON": ("schemas/t/A_v1/1.0.avsc", "{", "t/A_v1/1.0.avsc"),
    "a schema too deep": ("schemas/t/A_v1/1.0.avsc", "[" * 100_000, "t/A_v1/1.0.avsc"),
    "a certificate that is none": ("certs/server.pem", "nonsense", "[tls] certificate"),
    "a key of another": ("certs/server.key", "certs/publisher.key", "do not work together"),
    "an empty authority": ("certs/ca.pem", "", "[tls] client_ca"),
    "control characters": ("maxam.toml", '["a\\u001b[2J\\nforged"]', "unknown section"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_files_are_told_in_one_line(tmp_path: Path, name: str) -> None:
    """With a file that is unreadable or contradicts itself it exits with 1 and one line names place and fault."""
    file, text, told = UNUSABLE[name]
    files = GatewayFolder(tmp_path)
    path = tmp_path / file.removeprefix("+")
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, str):
        if name == "a key of another":
            text = (tmp_path / text).read_text()
        elif file.startswith("+"):
            section, _, line = text.partition("\n")
            text = path.read_text().replace(f"{section}\n", f"{section}\n{line}\n")
        text = text.encode()
    path.write_bytes(text)
    refused = CliRunner().invoke(gateway, ["--config", str(files.config), "--check"])
    assert refused.exit_code == 1
    assert refused.stdout == ""
    [line] = refused.stderr.splitlines()
    assert line.startswith("maxam-gateway: ")
    assert told in line
    assert line.isprintable()


def test_wrong_arguments_are_a_usage_error(tmp_path: Path) -> None:
    """Without --config, or with an argument that is none, the exit code is 2 and the usage is shown."""
    for arguments in ([], ["--config", str(tmp_path), "--nonsense"], ["more"]):
        refused = CliRunner().invoke(gateway, arguments)
        assert refused.exit_code == 2
        assert "Usage: " in refused.stderr


def test_dear_frames_hold_up_nobody(broker: Scene) -> None:
    """While a client subscribes with the most expensive globs, frame upon frame, another's receipts come between its own."""
    frames = 600  # enough for the publisher to be served some 80 times, however seldom it is awake
    glob = b"X/" + b"*[a-z0-9!-~]abcdefghabcdefgha" * 15
    subscribe = encoder.subscribe(VERSION_1_2, b"s", glob, b"auto", receipt_id=b"r")
    with broker.process.client("subscriber") as hostile, broker.process.client() as publisher:
        hostile.write((subscribe + encoder.unsubscribe(VERSION_1_2, b"s")) * frames)
        answered = threading.Event()

        def read_receipts() -> None:
            for _ in range(frames):
                assert hostile.frame().command == b"RECEIPT"
            answered.set()

        reading = threading.Thread(target=read_receipts)
        reading.start()
        receipts = 0
        while not answered.is_set():
            assert publisher.send(b"X/a", b"v") == b"accepted"
            receipts += 1
        reading.join()
        assert receipts >= 5  # one for each interval of some milliseconds; without intervals it is one
