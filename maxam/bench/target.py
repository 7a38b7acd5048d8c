"""The target of a load, with its address, certificates and names, and connections that are set up frame by frame."""

import enum
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

from maxam.bench.errors import LoadError, UnreachableError
from maxam.bench.syntax import MAXAM, DestinationSyntax
from maxam.client_tls import client_context
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame

RECEIVE_BYTES: Final = (
    65_536  # measured: 64 KiB costs less a byte than 16 or 256, as larger pieces come from fresh pages
)
ANSWER_TIMEOUT_S: Final = 30.0  # for the TCP connection, the handshake, CONNECTED and each RECEIPT of the set-up
_RECORD_BYTES: Final = 16_384  # what one TLS record holds
_LIMITS: Final = Limits(frame_body_bytes_max=2**30, connect_frame_bytes_max=65_536)


class Role(enum.Enum):
    """As whom to connect."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one side of TLS; without a certificate the broker is trusted and the client is not known by one."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None  # None: in the certificate's file
    server_name: str | None = None  # that the broker's certificate must carry; None trusts any that the CA signed

    @classmethod
    def of_folder(cls, folder: Path, role: Role) -> Self:
        """Return those that `maxam-admin certs dev FOLDER` made for this role."""
        return cls(folder / "ca.pem", folder / f"{role.value}.pem", folder / f"{role.value}.key")

    def context(self) -> ssl.SSLContext:
        """Return a client's context.

        Raises:
            CertificateFileError: A file cannot be read or used.
        """
        return client_context(self.ca, self.certificate, self.key, name_checked=self.server_name is not None)


@dataclass(frozen=True, slots=True)
class Target:
    """A broker, and as whom to connect."""

    host: str
    port: int
    syntax: DestinationSyntax = MAXAM
    publisher: TlsFiles | None = None  # None: plain TCP
    subscriber: TlsFiles | None = None
    virtual_host: str = "MAXVAPI"  # the `host` header of CONNECT
    login: str | None = None
    passcode: str | None = None
    others: tuple[tuple[str, int], ...] = ()  # further addresses; the first at which a server accepts is taken

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """All addresses, in the order in which they are tried."""
        return (self.host, self.port), *self.others

    def tls(self, role: Role) -> TlsFiles | None:
        """Return the files of this role."""
        return self.publisher if role is Role.PUBLISHER else self.subscriber

    def connect(
        self,
        role: Role,
        client_id: str | None = None,
        context: ssl.SSLContext | None = None,
        receive_buffer_bytes: int = 0,
        further: Sequence[tuple[str, str]] = (),
    ) -> "Line":
        """Return a connection that has been answered CONNECTED.

        Args:
            role: Whose certificate to show.
            client_id: The name of its session.
            context: Of many connections in one process, made once from `tls(role)`.
            receive_buffer_bytes: SO_RCVBUF; 0 leaves it to the system.
            further: Headers of CONNECT.

        Raises:
            LoadError: No program listens there, or it refuses the connection. The text gives the cause.
        """
        files = self.tls(role)
        server_name = None if files is None else files.server_name
        connected, address = self._open(receive_buffer_bytes)
        line = Line(connected, self._context(role, context), self._name(role, address), server_name)
        headers = [
            (b"accept-version", b"1.2"),
            (b"host", self.virtual_host.encode()),
            (b"heart-beat", b"0,0"),
            *([(b"login", self.login.encode())] if self.login is not None else []),
            *([(b"passcode", self.passcode.encode())] if self.passcode is not None else []),
            *([(b"client-id", client_id.encode())] if client_id is not None else []),
            *[(name.encode(), value.encode()) for name, value in further],
        ]
        # Spec: STOMP 1.2 "The CONNECT and CONNECTED frames do not escape"
        line.write(b"CONNECT\n" + b"".join([b"%b:%b\n" % header for header in headers]) + b"\n\0")
        try:
            frame = line.next()
        except LoadError as error:
            if self.tls(role) is not None:
                raise
            raise UnreachableError(
                f"{error}. If it speaks TLS there, give the CA with --certificates or --ca"
            ) from error
        if frame.command != b"CONNECTED":
            raise UnreachableError(f"{line.name} answered CONNECT with {frame.command.decode()}: {said(frame)}")
        return line

    def _context(self, role: Role, context: ssl.SSLContext | None) -> ssl.SSLContext | None:
        files = self.tls(role)
        return None if files is None else context or files.context()

    def _name(self, role: Role, address: tuple[str, int]) -> str:
        files = self.tls(role)
        shown = "" if files is None else f", {role.value} with {files.certificate or 'no certificate'}, CA {files.ca}"
        return f"{address[0]}:{address[1]} ({self.syntax.name}{shown})"

    def _open(self, receive_buffer_bytes: int) -> tuple[socket.socket, tuple[str, int]]:
        """Return a socket that is connected to the first address that accepts it, and the address."""
        for address in self.addresses:
            try:
                return _connected(address, receive_buffer_bytes), address
            except OSError as error:
                if address == self.addresses[-1]:
                    raise UnreachableError(
                        f"cannot connect to {', '.join(f'{host}:{port}' for host, port in self.addresses)}:"
                        f" {error.strerror or error}. Check that the broker is running there"
                    ) from error
        raise AssertionError("there is at least one address")


def _connected(address: tuple[str, int], receive_buffer_bytes: int) -> socket.socket:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    connected = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        if receive_buffer_bytes:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connected.settimeout(ANSWER_TIMEOUT_S)
        connected.connect(found[4])
    except OSError:
        connected.close()
        raise
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


@final
class Line:
    """One connection, plain or TLS, over a socket that never blocks.

    For the set-up, `next` waits for frames. Under load, `receive` returns the bytes that are there, undecoded. `write` keeps
    bytes that the system does not take at once until `flush`. Once `receive` is used, `next` is not.
    """

    def __init__(
        self, connected: socket.socket, context: ssl.SSLContext | None, name: str, server_name: str | None = None
    ) -> None:
        """Take over a connected socket; with a context, shake hands.

        Raises:
            LoadError: One side does not trust the other.
        """
        self.name: Final = name
        self._socket: Final = connected
        self._decoder: Final = Decoder(_LIMITS, SERVER_COMMANDS)
        self._frames: Final[deque[Frame]] = deque()
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._unsent: bytes = b""
        self._tls: Final = (
            None if context is None else context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        )
        if self._tls is not None:
            self._shake_hands(self._tls)

    def fileno(self) -> int:
        """Return the socket's number, to wait on it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, without a word."""
        self._socket.close()

    @property
    def unsent_bytes(self) -> int:
        """How much of what was written waits for room in the system."""
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        """Send, or keep what the system does not take now.

        Raises:
            LoadError: The broker has closed.
        """
        self.keep(data)
        self.flush()

    def keep(self, data: bytes) -> None:
        """Make ready what the next `flush` sends."""
        if self._tls is None:
            self._unsent += data
        else:
            self._tls.write(data)
            self._unsent += self._outgoing.read()

    def flush(self) -> None:
        """Send what is unsent, as far as the system takes it.

        Raises:
            LoadError: The broker has closed.
        """
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise UnreachableError(f"{self.name} closed the connection: {error}{self._last_words()}") from error
            self._unsent = self._unsent[sent:]

    def receive(self) -> bytes:
        """Return what has come, 64 KiB or so; nothing when nothing has.

        Raises:
            LoadError: The broker has closed, or refuses our certificate.
        """
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise UnreachableError(f"{self.name} closed the connection: {error}") from error
        if not data:
            raise UnreachableError(f"{self.name} closed the connection")
        if self._tls is None:
            return data
        self._incoming.write(data)
        parts = []
        try:
            while part := self._tls.read(_RECORD_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not parts:
                raise UnreachableError(f"{self.name} closed the connection: {_refusal(error)}") from error
        else:
            if not parts:
                raise UnreachableError(f"{self.name} closed the connection")
        return b"".join(parts)

    def next(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Frame:
        """Wait for the next frame.

        Raises:
            LoadError: The broker has closed, speaks no STOMP, or sends nothing in that time.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._frames:
            self.wait(deadline_s, "answer")
            try:
                self._frames.extend(self._decoder.feed(self.receive()))
            except ProtocolError as error:
                raise LoadError(f"{self.name} sent what is no STOMP: {error}") from error
        return self._frames.popleft()

    def receipt(self) -> Frame:
        """Wait for a RECEIPT, past MESSAGEs.

        Raises:
            LoadError: An ERROR came instead.
        """
        while (frame := self.next()).command != b"RECEIPT":
            if frame.command == b"ERROR":
                raise LoadError(f"{self.name} answered ERROR: {said(frame)}")
        return frame

    def subscribe(
        self,
        id_: str,
        glob: str,
        ack: str,
        eager: bool = False,
        durable: bool = False,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Subscribe and wait for the RECEIPT, so that what is sent from now on is seen.

        Raises:
            LoadError: An ERROR came instead.
        """
        self.write(subscribe_frame(id_, glob, ack, eager, durable, headers))
        self.receipt()

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self._unsent += self._outgoing.read()
                self.flush()
                self.wait(deadline_s, "TLS handshake")
                try:
                    data = self._socket.recv(RECEIVE_BYTES)
                except OSError as error:
                    raise UnreachableError(f"{self.name} ended the TLS handshake: {error}") from error
                if not data:
                    raise UnreachableError(
                        f"{self.name} ended the TLS handshake; does it speak TLS on this port?"
                    ) from None
                self._incoming.write(data)
            except ssl.SSLError as error:
                raise UnreachableError(f"{self.name}: {_refusal(error)}") from error
            else:
                self._unsent += self._outgoing.read()
                self.flush()
                return

    def wait(self, deadline_s: float, what: str) -> None:
        """Wait until something has come, and send what is unsent meanwhile.

        Raises:
            LoadError: Nothing comes before the deadline, of `time.monotonic`. The text has `what`, the frame expected.
        """
        self.flush()
        rest_s = deadline_s - time.monotonic()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if rest_s <= 0 or not poll.poll(rest_s * 1000):
            raise UnreachableError(f"{self.name} gave no {what} within {ANSWER_TIMEOUT_S:g} s")

    def _last_words(self) -> str:
        """Return the text of an ERROR that the broker sent before it closed, if it can still be read."""
        try:
            for frame in self._decoder.feed(self.receive()):
                if frame.command == b"ERROR":
                    return f". Its ERROR: {said(frame)}"
        except (LoadError, ProtocolError):
            pass
        return ""


def subscribe_frame(
    id_: str, glob: str, ack: str, eager: bool, durable: bool, headers: Sequence[tuple[str, str]]
) -> bytes:
    """Return a SUBSCRIBE with a receipt."""
    flags = [(name, "true") for name, flag in (("durable", durable), ("eager", eager)) if flag]
    written = (("id", id_), ("destination", glob), ("ack", ack), *flags, *headers, ("receipt", "set-up"))
    return b"SUBSCRIBE\n" + header_lines(written) + b"\n\0"


def header_lines(headers: Sequence[tuple[str, str]]) -> bytes:
    """Return header lines of any frame but CONNECT."""
    written = [(name.encode(), value.encode()) for name, value in headers]
    return b"".join(
        [
            encoder.escape(VERSION_1_2, name) + b":" + encoder.escape(VERSION_1_2, value) + b"\n"
            for name, value in written
        ]
    )


def said(frame: Frame) -> str:
    """Return the text of a frame for people, on one line."""
    words = [frame.headers.get(b"message", b""), frame.body.strip()]
    return ": ".join([word.decode(errors="replace").replace("\n", " ") for word in words if word])


def _refusal(error: ssl.SSLError) -> str:
    text = str(error.reason or error).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not signed by this CA: {error.verify_message}"
    if "alert" in text:
        return f"it refuses our certificate: {text}"
    return f"TLS failed: {text}. Check that it speaks TLS on this port"
