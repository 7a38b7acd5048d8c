"""Threats to the real gateway that a single invalid frame is not: floods, resets, other people's sessions, games with TLS."""

import _ssl
import contextlib
import ctypes
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from maxam.config import Limits
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder
from tests.faults.flood import Publisher, silent_readers, strangers
from tests.faults.network import through_a_bad_network
from tests.faults.scene import CONNECT, Scene, error_of, resident_bytes, scene
from tests.faults.tls_scan import scan, without_certificate
from tests.support.gateway_folder import GatewayFolder, GatewayProcess
from tests.support.junk_certificates import with_junk
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SEND = b"SEND\ndestination:X/a\n"
SSL_OF_PYTHON = 24  # bytes into CPython's PySSLSocket: OpenSSL's SSL* comes after the object's head and the socket


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run a gateway with the limits that it is shipped with, except for a shorter close grace."""
    with scene(tmp_path_factory.mktemp("gateway"), "linger_timeout_s = 0.2") as found:
        yield found


@pytest.fixture(autouse=True)
def undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the bystander after each test."""
    yield
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").bystander.check()


def test_a_flood_of_all_kinds_of_strangers(broker: Scene) -> None:
    """Every client is served beside peers that stop, drip or flood at each stage before CONNECTED, and memory is bounded."""
    figures = strangers(broker.process, peers=100, visits=12)
    assert len(figures.waits_s) == 12
    assert (
        figures.bytes_each < 160 * 1024
    )  # of each that is open at a time: the 64 KiB are of 500, most of which are not


def test_subscribers_that_never_read_hold_little(broker: Scene) -> None:
    """Each holds less than 256 KiB and what it is owed, and no publisher waits for them."""
    publisher = Publisher(broker.process)
    publisher.publish(200)
    before = resident_bytes(broker.process)
    with silent_readers(broker.process, 25):
        assert len(publisher.publish(200)) == 200
        assert resident_bytes(broker.process) - before < 25 * 262_144
    publisher.close()


def test_an_eager_subscription_bomb_is_streamed(broker: Scene) -> None:
    """200 eager subscriptions to 1,000 topics of 2 KiB: what is owed are references, never the 400 MB of values."""
    with broker.process.client() as publisher:
        for number in range(1000):
            last = b"r" if number == 999 else None
            publisher.write(encoder.send(VERSION_1_2, b"X/bomb.%d" % number, bytes(2000), receipt_id=last))
        assert publisher.frame().command == b"RECEIPT"
        before = resident_bytes(broker.process)
        with broker.tls(broker.certificates / "subscriber.pem", 4096) as hostile:
            bomb = b"".join(
                encoder.subscribe(VERSION_1_2, b"%d" % number, b"X/bomb.*", b"client", eager=True)
                for number in range(200)
            )
            hostile.sendall(CONNECT + bomb)
            for _ in range(30):
                assert publisher.send(b"X/bomb.1", b"v") == b"accepted"
            assert (
                resident_bytes(broker.process) - before < 200 * 1000 * 200 + 8 * 2**20
            )  # a reference takes 100 bytes or so


def test_resets_in_mid_frame_do_nothing_by_halves(broker: Scene) -> None:
    """A SEND that is cut by a reset, at any byte, never takes effect; those before it do."""
    frame = encoder.send(VERSION_1_2, b"X/half", b"never", receipt_id=b"r")
    for cut in range(1, len(frame), 7):
        hostile = broker.stranger()
        hostile.sendall(CONNECT + encoder.send(VERSION_1_2, b"X/whole", b"%d" % cut, receipt_id=b"w"))
        decoder = Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2)
        commands: list[bytes] = []
        while b"RECEIPT" not in commands:
            commands += [answer.command for answer in decoder.feed(hostile.recv(65_536))]
        hostile.sendall(frame[:cut])
        hostile.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hostile.close()
        with broker.process.client("subscriber") as reader:
            assert reader.values(b"X/whole", 1) == {b"X/whole": b"%d" % cut}
    with broker.process.client("subscriber") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/half", b"auto", eager=True))
        reader.write(encoder.subscribe(VERSION_1_2, b"t", b"X/whole", b"auto", eager=True))
        assert reader.frame().headers[b"destination"] == b"X/whole"


def test_a_bad_network_loses_nothing_accepted(tmp_path: Path) -> None:
    """Through relays that reset connections in mid-frame and fall silent, all that was accepted arrives, and nothing older after newer."""
    files = GatewayFolder(tmp_path)
    files.configure(limits="takeovers_per_minute_max = 100000\nlinger_timeout_s = 0.2")
    with files.start() as process:
        outcome = through_a_bad_network(process, sends=60, seed=3)
        assert process.stop() == 0
    assert outcome.lost == []
    assert outcome.stale == []
    assert outcome.resets > 0


def test_bodies_are_bytes_that_reach_others_unchanged(broker: Scene) -> None:
    """A body of NULs, line ends, frames and broken UTF-8 comes out as it went in; nothing of it is read as a frame."""
    body = b"\0\n\0ERROR\nmessage:x\n\n\0" + bytes(range(256)) + b"\xc3\x28\xed\xa0\x80"
    with broker.process.client("subscriber") as reader, broker.process.client() as publisher:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/bytes", b"auto", receipt_id=b"r"))
        assert reader.frame().command == b"RECEIPT"
        assert publisher.send(b"X/bytes", body) == b"accepted"
        assert reader.frame().body == body


def test_a_durable_session_is_its_principals_alone(broker: Scene) -> None:
    """Another principal with the same client-id has a session of its own: it gets nothing that is owed, and harms nothing."""
    subscribe = encoder.subscribe(VERSION_1_2, b"s", b"X/owed", b"client", durable=True, receipt_id=b"r")
    with broker.process.client("subscriber", "pump") as owner:
        owner.write(subscribe)
        assert owner.frame().command == b"RECEIPT"
    with broker.process.client() as publisher:
        assert publisher.send(b"X/owed", b"for the owner") == b"accepted"
        with broker.process.client("publisher", "pump") as thief:
            thief.write(encoder.unsubscribe(VERSION_1_2, b"s", durable=True, receipt_id=b"u"))
            assert thief.frame().headers[b"result"] == b"unknown-subscription"
        with broker.process.client("publisher", "pump") as thief:
            thief.write(subscribe)
            assert thief.frame().command == b"RECEIPT"
            thief.write(encoder.unsubscribe(VERSION_1_2, b"s", durable=True, receipt_id=b"u"))
            assert thief.frame().headers[b"receipt-id"] == b"u"
    with broker.process.client("subscriber", "pump") as owner:
        owner.write(subscribe)
        frames = {frame.command: frame for frame in (owner.frame(), owner.frame())}
        assert frames[b"MESSAGE"].body == b"for the owner"


@pytest.mark.parametrize("name", ["*", "**", "X/**", "#", "$share/x", "../..", "%s", "subscriber"])
def test_client_ids_are_no_patterns(broker: Scene, name: str) -> None:
    """The name that a client gives itself takes over no session and gives it no right."""
    with broker.process.client("subscriber", "someone") as other, broker.process.client("publisher", name) as client:
        client.write(encoder.send(VERSION_1_2, b"Y/a", b"v", receipt_id=b"r"))
        assert client.frame().headers[b"disposition"] == b"rejected-unauthorised"
        assert other.send(b"X/a", b"v") == b"accepted"


def test_an_empty_policy_allows_nothing(tmp_path: Path) -> None:
    """With an empty policy file the gateway starts, and no client may connect."""
    files = GatewayFolder(tmp_path)
    (tmp_path / "policy.toml").write_bytes(b"")
    with files.start() as process:
        context = ssl.create_default_context(cafile=tmp_path / "certs" / "ca.pem")
        context.load_cert_chain(tmp_path / "certs" / "publisher.pem", tmp_path / "certs" / "publisher.key")
        raw = socket.create_connection(("127.0.0.1", process.port), PATIENCE_S)
        with context.wrap_socket(raw, server_hostname="localhost") as tls:
            tls.sendall(CONNECT)
            frames = list(Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2).feed(tls.recv(65_536)))
        assert error_of(frames) == b"unknown client"
        assert process.stop() == 0


def test_a_flood_of_key_updates_ends_its_connection(broker: Scene) -> None:
    """A peer that asks for new keys again and again, which costs it nothing, is cut off."""
    library = ctypes.CDLL(_ssl.__file__)
    if not hasattr(library, "SSL_key_update"):
        pytest.skip("this Python's OpenSSL cannot be reached")
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
    seen = len(broker.process.log())
    with broker.stranger() as hostile:
        hostile.sendall(CONNECT)
        assert hostile.version() == "TLSv1.3"
        hostile.settimeout(None)  # what the gateway has not read yet is waited for
        inner = hostile._sslobj  # type: ignore[attr-defined]  # there is no public way
        pointer = ctypes.c_void_p.from_address(id(inner) + SSL_OF_PYTHON).value
        deadline_s = time.monotonic() + PATIENCE_S
        while library.SSL_key_update(pointer, 1) == 1 and library.SSL_do_handshake(pointer) == 1:
            assert time.monotonic() < deadline_s
    # ends of connections of the tests before may still be logged
    assert " connection-closed " in broker.wait_for_log("too many TLS control messages", seen)


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Run a gateway that takes TLS 1.2 too."""
    files = GatewayFolder(tmp_path_factory.mktemp("lenient"))
    files.configure(tls='minimum = "1.2"', limits="tls_handshake_timeout_s = 3")
    with files.start() as process:
        yield process


class OldClient:
    """A client of TLS 1.2.

    Attributes:
        session: Of its last connection, to be resumed by the next one.
    """

    def __init__(self, process: GatewayProcess, certificate: Path) -> None:
        self._port = process.port
        self._context = ssl.create_default_context(cafile=process.files.folder / "certs" / "ca.pem")
        self._context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.session: ssl.SSLSession | None = None

    def visit(self) -> bytes:
        """Connect, resuming the session if there is one, and disconnect properly; return the command of the first answer."""
        raw = socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
        with self._context.wrap_socket(raw, server_hostname="localhost", session=self.session) as tls:
            tls.sendall(CONNECT + b"DISCONNECT\nreceipt:r\n\n\0")
            received = b""
            while part := tls.recv(65_536):
                received += part
            self.session = tls.session
            with contextlib.suppress(OSError):
                tls.unwrap()
        return received.partition(b"\n")[0]


def test_a_client_that_resumes_its_session_is_served(lenient: GatewayProcess) -> None:
    """With TLS 1.2 a client that offers the session of its last connection is connected, not refused as `certificate not trusted`."""
    client = OldClient(lenient, lenient.files.folder / "certs" / "publisher.pem")
    assert [client.visit() for _ in range(3)] == [b"CONNECTED"] * 3
    assert client.session is not None


def test_handshakes_with_many_certificates_leave_nothing_behind(lenient: GatewayProcess) -> None:
    """1,000 clients of TLS 1.2 that come with some 14 KiB of certificates each and leave again cost no memory."""
    certificate = with_junk(lenient.files.folder / "certs", "publisher", 14_000)
    client = OldClient(lenient, certificate)
    before = 0
    for number in range(1100):
        if number == 100:
            before = resident_bytes(lenient)
        client.session = None
        assert client.visit() == b"CONNECTED"
    assert resident_bytes(lenient) - before < 16 * 2**20  # a session with these certificates would take 150 KiB


def test_a_handshake_with_too_many_certificates_is_refused(broker: Scene) -> None:
    """More than `tls_handshake_bytes_max` before the handshake is complete ends it on either listener, and log and audit show why."""
    certificate = with_junk(broker.certificates, "publisher", 20_000)
    for connect in (broker.tls, broker.admin):
        seen = len(broker.process.log())
        with contextlib.suppress(OSError), connect(certificate) as hostile:
            assert not hostile.recv(4096)
        assert "connection-failed" in broker.wait_for_log("tls_handshake_bytes_max", seen)


def test_renegotiation_is_refused(lenient: GatewayProcess) -> None:
    """A client of TLS 1.2 that requests a new handshake is refused."""
    certificates = lenient.files.folder / "certs"
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{lenient.port}", "-tls1_2"]
    command += ["-cert", f"{certificates}/publisher.pem", "-key", f"{certificates}/publisher.key"]
    with subprocess.Popen(
        [*command, "-CAfile", f"{certificates}/ca.pem"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        said = ""
        for line in client.stdout:
            said += line
            if "Extended master secret" in line:  # it is connected, and listens to what is typed
                with contextlib.suppress(BrokenPipeError):
                    client.stdin.write("R\n")
                    client.stdin.flush()
        client.wait(PATIENCE_S)
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said
    assert "Compression: NONE" in said


def test_scanners_find_nothing(broker: Scene, lenient: GatewayProcess) -> None:
    """TLS 1.3 only, 1.2 where that is configured; forward secrecy, authenticated encryption, always a client certificate."""
    for process, versions in ((broker.process, {"TLSv1.3"}), (lenient, {"TLSv1.2", "TLSv1.3"})):
        assert without_certificate(process.port) == "refused, refused"
        if shutil.which("sslscan") is None:
            pytest.skip("sslscan is not installed: make test-deps")
        assert scan(process, ["sslscan"], *versions) == []
