"""The tests' own end of a conversation: STOMP 1.2 by hand over TLS, so that no library stands on both sides."""

import contextlib
import socket
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S


@dataclass(frozen=True)
class RawFrame:
    """A frame as it came; header values as on the wire."""

    command: str
    headers: dict[str, str]
    body: bytes


class RawClient:
    """A blocking connection. A context manager: leaving drops it.

    Attributes:
        heart_beats: EOLs received between frames.
    """

    def __init__(
        self, gateway: GatewayProcess, name: str, heart_beat: str = "0,0", client_id: str | None = None
    ) -> None:
        """Connect with the certificate of `name`."""
        context = ssl.create_default_context(cafile=gateway.certificates / "ca.pem")
        context.load_cert_chain(gateway.certificates / f"{name}.pem", gateway.certificates / f"{name}.key")
        plain = socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S)
        self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._file = self._socket.makefile("rb")
        self.heart_beats = 0
        session = {} if client_id is None else {"client-id": client_id}
        self.write("CONNECT", {"accept-version": "1.2", "host": "MAXVAPI", "heart-beat": heart_beat, **session})
        assert self.read().command == "CONNECTED"

    def write(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Write a frame; header values must need no escape."""
        lines = [command, *(f"{name}:{value}" for name, value in headers.items()), "", ""]
        self._socket.sendall("\n".join(lines).encode() + body + b"\0")

    def send_bytes(self, frames: bytes) -> None:
        """Write whole frames as they are."""
        self._socket.sendall(frames)

    def read(self) -> RawFrame:
        """Wait for the next frame."""
        while (line := self._file.readline()) == b"\n":
            self.heart_beats += 1
        assert line, "the gateway closed the connection"
        command = line.decode().rstrip("\n")
        headers: dict[str, str] = {}
        while (line := self._file.readline()) != b"\n":
            name, _, value = line.decode().rstrip("\n").partition(":")
            headers.setdefault(name, value)
        body = self._file.read(int(headers.get("content-length", "0")))
        assert self._file.read(1) == b"\0"
        return RawFrame(command, headers, body)

    def send(self, destination: str, body: bytes) -> None:
        """Send a value and wait until it is accepted."""
        length = str(len(body))
        self.write("SEND", {"destination": destination, "content-length": length, "receipt": "sent"}, body)
        receipt = self.read()
        assert receipt.headers["disposition"] == "accepted", receipt

    def value(self, destination: str) -> RawFrame:
        """Give the current value of a topic, through an eager subscription that ends at once."""
        self.write("SUBSCRIBE", {"id": "value", "destination": destination, "eager": "true", "ack": "client"})
        message = self.read()
        assert message.command == "MESSAGE", message
        self.write("UNSUBSCRIBE", {"id": "value", "receipt": "ended"})
        assert self.read().command == "RECEIPT"
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()
