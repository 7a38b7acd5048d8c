"""A gateway under attack, a good client beside it that must notice nothing, and how attackers talk to it."""

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from maxam.config import Limits
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.support.gateway_folder import GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S

CONNECT = encoder.connect("MAXVAPI")
LINE = re.compile(
    r'\d{4}-\d\d-\d\dT[\d:.]+Z (?:info|warning|error) [A-Za-z-]+(?: \w+=(?:"(?:\\.|[^"\\])*"|[^\s"=\\]+))*'
)


class Bystander:
    """A good client that publishes and receives its own values all the time."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._client = gateway.client("operator")
        self._client.write(encoder.subscribe(VERSION_1_2, b"s", b"X/good", b"client"))
        self._stop = threading.Event()
        self._rounds = threading.Condition()
        self._round = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.003):
            body = b"%d" % self._round
            self._client.write(encoder.send(VERSION_1_2, b"X/good", body, receipt_id=body))
            frames = {frame.command: frame for frame in (self._client.frame(), self._client.frame())}
            assert frames[b"RECEIPT"].headers[b"disposition"] == b"accepted"
            assert frames[b"MESSAGE"].body == body
            self._client.write(encoder.ack(VERSION_1_2, b"s", frames[b"MESSAGE"].headers[b"message-id"]))
            with self._rounds:
                self._round += 1
                self._rounds.notify_all()

    def check(self) -> None:
        """Assert that it still gets every answer."""
        with self._rounds:
            wanted = self._round + 2
            assert self._rounds.wait_for(lambda: self._round >= wanted, PATIENCE_S)

    def leave(self) -> None:
        """Close its connection."""
        self._stop.set()
        self._thread.join()
        self._client.__exit__(None, None, None)


class Scene:
    """A gateway under attack, with a bystander."""

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process
        self.certificates = process.files.folder / "certs"
        self.bystander = Bystander(process)

    def wait_for_log(self, text: str, seen: int = 0) -> str:
        """Wait until the log holds `text` after its first `seen` characters; return the line."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for line in self.process.log()[seen:].splitlines():
                if text in line:
                    return line
            time.sleep(0.01)
        raise AssertionError(f"{text!r} is not in the log:\n{self.process.log()[seen:]}")

    def socket(self) -> socket.socket:
        """Connect without TLS."""
        return socket.create_connection(("127.0.0.1", self.process.port), PATIENCE_S)

    def admin(self, certificate: Path | str | None = "operator") -> ssl.SSLSocket:
        """Connect to the admin listener with TLS and a certificate, by its name or its path, or without one."""
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        if certificate is not None:
            path = self.certificates / f"{certificate}.pem" if isinstance(certificate, str) else certificate
            context.load_cert_chain(path, path.with_suffix(".key"))
        raw = socket.create_connection(("127.0.0.1", self.process.admin_port), PATIENCE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(raw, server_hostname="localhost")

    def tls(self, certificate: Path | None, receive_buffer_bytes: int = 0) -> ssl.SSLSocket:
        """Connect with TLS and a certificate, or without one."""
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        if certificate is not None:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        raw = socket.socket()
        raw.settimeout(PATIENCE_S)
        if receive_buffer_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        raw.connect(("127.0.0.1", self.process.port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(raw, server_hostname="localhost")

    def stranger(self) -> ssl.SSLSocket:
        """Connect with TLS as the publisher, without a frame yet."""
        return self.tls(self.certificates / "publisher.pem")

    def answer(self, data: bytes, connect: bytes = CONNECT) -> list[Frame]:
        """Send `data` after CONNECT, end, and return all frames that came back. They must be complete and valid."""
        with self.stranger() as hostile:
            received = bytearray()
            with contextlib.suppress(ConnectionError):
                say(hostile, connect + data)
                socket.socket.shutdown(hostile, socket.SHUT_WR)  # that of SSLSocket also forgets the keys
            with contextlib.suppress(ConnectionError):
                while part := hostile.recv(65_536):
                    received += part
        decoder = Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2)
        return list(decoder.feed(bytes(received)))


def say(hostile: ssl.SSLSocket, data: bytes) -> None:
    """Send all, or as much as is taken before the gateway has closed."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        hostile.sendall(data)


def error_of(frames: list[Frame]) -> bytes:
    """Return the message of the ERROR, which must be the last frame and have details in its body."""
    assert [frame.command for frame in frames].count(b"ERROR") == 1, [frame.command for frame in frames]
    assert frames[-1].command == b"ERROR"
    assert len(frames[-1].body) > 20
    return frames[-1].headers[b"message"]


@contextlib.contextmanager
def scene(folder: Path, limits: str, prepare: Callable[[GatewayFolder], None] = lambda _: None) -> Iterator[Scene]:
    """Run a gateway and a bystander; afterwards the log must be clean and the exit graceful."""
    files = GatewayFolder(folder)
    # The watch of files opens its own some time after the start: without it what is open is of connections.
    files.configure(limits=f"log_lines_per_minute_max = 100000\n{limits}\n[reload]\nwatch = false")
    prepare(files)
    with files.start() as process:
        found = Scene(process)
        try:
            found.bystander.check()  # the journal has its file then
            yield found
        finally:
            found.bystander.leave()
        assert process.stop() == 0
    for line in process.log().splitlines():
        assert line.isprintable()
        assert LINE.fullmatch(line), line  # no traceback, no forged line
        assert "internal-error" not in line


def settle(process: GatewayProcess, files: int) -> None:
    """Wait until a gateway has at most as many files and sockets open as before."""
    deadline_s = time.monotonic() + PATIENCE_S
    while open_files(process) > files:
        assert time.monotonic() < deadline_s, f"{open_files(process)} files are open, {files} were"
        time.sleep(0.02)


def resident_bytes(process: GatewayProcess) -> int:
    """Return the resident memory of a gateway."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def open_files(process: GatewayProcess) -> int:
    """Return how many files and sockets a gateway has open."""
    return len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))
