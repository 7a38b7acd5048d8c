"""A third-party client as a process. It reads commands and prints events, one JSON object a line.

The programs in `clients/` all speak the same lines, so that each scenario is written once. Commands: `connect`,
`subscribe`, `unsubscribe`, `send`, `ack`, `disconnect`. Events: `connected`, `message`, `receipt`, `error`, `closed`.
Bodies are base64.
"""

import base64
import contextlib
import functools
import hashlib
import http.client
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S
from tests.support.raw_client import RawClient

PROGRAMS = Path(__file__).parent / "clients"

Headers = dict[str, str]


@dataclass(frozen=True)
class Library:
    """A client library of somebody else.

    Attributes:
        name: As its users call it.
        command: Command that runs our program for it.
        probe: A command that ends with 0 where the library is installed.
        versions: STOMP versions that it speaks.
        web: It connects over WebSocket, with a ticket.
    """

    name: str
    command: tuple[str, ...]
    probe: tuple[str, ...]
    versions: tuple[str, ...] = ("1.1", "1.2")
    web: bool = False

    def require(self) -> None:
        """Skip the test where the library is missing; fail where that may not be (CI=true)."""
        if problem := self.problem():
            text = f"{self.name} is not installed (make test-deps): {problem}"
            if os.environ.get("CI") == "true":
                pytest.fail(text)
            pytest.skip(text)

    @functools.cache  # noqa: B019  # there are ten of them, for ever
    def problem(self) -> str:
        """Return the reason why the library cannot be used. Empty if it can."""
        if shutil.which(self.probe[0]) is None:
            return f"{self.probe[0]}: not found"
        done = subprocess.run(self.probe, cwd=PROGRAMS, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return (done.stderr.strip() or "no reason given") if done.returncode else ""


LIBRARIES = {
    library.name: library
    for library in (
        Library("stomp.py", (sys.executable, "stomp_py.py"), (sys.executable, "-c", "import stomp")),
        Library("@stomp/stompjs", ("node", "stompjs.mjs"), ("node", "stompjs.mjs", "--probe")),
        Library("stompit", ("node", "stompit.mjs"), ("node", "stompit.mjs", "--probe")),
        Library(
            "Net::Stomp",
            ("perl", "net_stomp.pl"),
            ("perl", "-MNet::Stomp", "-MIO::Socket::SSL", "-MJSON::PP", "-e", "1"),
        ),
        Library("Ruby stomp", ("ruby", "-W0", "ruby_stomp.rb"), ("ruby", "-rstomp", "-ropenssl", "-e", "1")),
    )
}


_NODE = "node"
SPRING = PROGRAMS / "spring"


def spring_class_path(folder: Path) -> str:
    """Compile the program that uses Spring into a folder, if its jars (deploy/fetch-jars) are here. Return the class path."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jars = f"{cache}/maxam/spring-{hashlib.sha256((SPRING / 'jars.sha256').read_bytes()).hexdigest()[:12]}/*"
    if shutil.which("javac"):  # `Library.require` reports what is missing
        subprocess.run(["javac", "-cp", jars, "-d", folder, SPRING / "SpringWebSocket.java"], check=False)
    return f"{folder}:{jars}"


WEB_LIBRARIES = {
    library.name: library
    for library in (
        Library("@stomp/stompjs", (_NODE, "stompjs.mjs"), (_NODE, "stompjs.mjs", "--probe"), web=True),
        Library("@stomp/rx-stomp", (_NODE, "rx_stomp.mjs"), (_NODE, "rx_stomp.mjs", "--probe"), web=True),
        Library(
            "Spring's WebSocketStompClient",
            ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "SpringWebSocket"),  # CLASSPATH: spring_class_path
            ("java", "SpringWebSocket", "--probe"),
            web=True,
        ),
        Library(
            "@maxam/client", (_NODE, "maxam_client.mjs"), (_NODE, "maxam_client.mjs", "--probe"), ("1.2",), web=True
        ),
        Library("maxam (Python)", (sys.executable, "maxam_python.py"), (sys.executable, "-c", ""), ("1.2",), web=True),
    )
}


@dataclass(frozen=True)
class Message:
    """A MESSAGE as the library gave it to its user."""

    headers: Headers
    body: bytes


class ThirdPartyClient:
    """One process with one connection. A context manager: leaving ends the process.

    Every call waits for its answer, at most PATIENCE_S. An unexpected ERROR, lost connection or crash of
    the program fails the test at once.
    """

    def __init__(self, library: Library, version: str, gateway: GatewayProcess, name: str) -> None:
        """Start the program; nothing is connected yet.

        Args:
            library: Library that it uses.
            version: The STOMP version that it must use.
            gateway: Where it will connect.
            name: Whose certificate it shows.
        """
        self.library = library
        self._settings = {
            "port": gateway.port,
            "version": version,
            "ca": str(gateway.certificates / "ca.pem"),
            "certificate": str(gateway.certificates / f"{name}.pem"),
            "key": str(gateway.certificates / f"{name}.key"),
        }
        if library.web:
            self._settings["url"] = f"wss://localhost:{gateway.web_port}/stomp"
        self._gateway = gateway
        self._receipts = itertools.count(1)
        self._changed = threading.Condition()
        self._events: list[dict[str, Any]] = []
        self._ended = False
        self._complaints: list[str] = []
        self._process = subprocess.Popen(
            library.command,
            cwd=PROGRAMS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,)),
            threading.Thread(target=self._complaints.extend, args=(self._process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    def connect(self, client_id: str | None = None, heart_beat: tuple[int, int] = (0, 0), **options: str) -> Headers:
        """Connect, and give the headers of CONNECTED."""
        headers = options if client_id is None else {"client-id": client_id, **options}
        if self.library.web and "passcode" not in headers:
            headers = {"login": "ticket", "passcode": make_ticket(self._gateway), **headers}
        self._tell("connect", **self._settings, headers=headers, heart_beat=heart_beat)
        return self.connected()

    def connected(self, *, refused: bool = False) -> Headers:
        """Wait for CONNECTED, after ERRORs if it was `refused` before, and give its headers."""
        return _headers(self._take(lambda event: event["event"] == "connected", closing=refused))

    def refusal(self, **options: str) -> Headers:
        """Try to connect, and give the headers of the ERROR."""
        self._tell("connect", **self._settings, headers=options, heart_beat=(0, 0))
        return _headers(self._take(lambda event: event["event"] == "error", closing=True))

    def subscribe(self, subscription: str, glob: str, **options: str) -> Headers:
        """Subscribe, and give the headers of the RECEIPT."""
        return self._ask("subscribe", headers={"id": subscription, "destination": glob, **options})

    def unsubscribe(self, subscription: str, glob: str, **options: str) -> Headers:
        """Unsubscribe, and give the headers of the RECEIPT."""
        return self._ask("unsubscribe", headers={"id": subscription, **options}, destination=glob)

    def send(self, destination: str, body: bytes, **headers: str) -> Headers:
        """Send a value, and give the headers of the RECEIPT."""
        return self._ask("send", headers={"destination": destination, **headers}, body=base64.b64encode(body).decode())

    def message(self) -> Message:
        """Wait for the next MESSAGE."""
        event = self._take(lambda event: event["event"] == "message")
        return Message(event["headers"], base64.b64decode(event["body"]))

    def unread(self) -> int:
        """Count the MESSAGEs that came and were not asked for."""
        with self._changed:
            return sum(event["event"] == "message" for event in self._events)

    def ack(self, message: Message) -> Headers:
        """Acknowledge, and give the headers of the RECEIPT."""
        return self._ask("ack", message=message.headers, headers={})

    def disconnect(self) -> None:
        """Disconnect gracefully: wait for the RECEIPT, as the library does it, then for the end of the connection."""
        self._tell("disconnect")
        self._take(lambda event: event["event"] == "closed", closing=True)

    def _ask(self, what: str, *, headers: Headers, **rest: Any) -> Headers:
        receipt = f"test-{next(self._receipts)}"
        self._tell(what, headers={**headers, "receipt": receipt}, **rest)
        return _headers(
            self._take(lambda event: event["event"] == "receipt" and event["headers"]["receipt-id"] == receipt)
        )

    def _tell(self, what: str, **rest: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **rest}) + "\n")

    def _take(self, wanted: Callable[[dict[str, Any]], bool], *, closing: bool = False) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while True:
                for index, event in enumerate(self._events):
                    if wanted(event):
                        return self._events.pop(index)
                    if event["event"] in {"error", "closed"} and not closing:
                        raise AssertionError(f"{self.library.name}: {event}\n{''.join(self._complaints)}")
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    problem = "the program ended" if self._ended else f"no answer within {PATIENCE_S} s"
                    raise AssertionError(
                        f"{self.library.name}: {problem}; seen {self._events}\n{''.join(self._complaints)}"
                    )
                self._changed.wait(left)

    def _read_events(self, lines: IO[str]) -> None:
        for line in lines:
            with self._changed:
                self._events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # commands that were not written yet
                pipe.close()


def make_ticket(gateway: GatewayProcess) -> str:
    """Make a ticket with the certificate `subscriber`, for its own rights, as the server of a page does it."""
    tls = ssl.create_default_context(cafile=gateway.certificates / "ca.pem")
    tls.load_cert_chain(gateway.certificates / "subscriber.pem", gateway.certificates / "subscriber.key")
    assert gateway.admin_port is not None
    connection = http.client.HTTPSConnection("localhost", gateway.admin_port, context=tls, timeout=PATIENCE_S)
    try:
        wish = {"principal": "page", "receive": ["X/Interop.*"], "send": ["X/Interop.*"]}
        headers = {"content-type": "application/json", "maxam-admin": "1"}
        connection.request("POST", "/v1/tickets", json.dumps(wish), headers)
        return str(json.load(connection.getresponse())["ticket"])
    finally:
        connection.close()


def counter(count: int) -> bytes:
    """Encode a Counter, 0 to 63: a datum in which a NUL is nothing special."""
    return bytes((count * 2, 6)) + b"abc"


@dataclass(frozen=True)
class Cell:
    """One library, one version, and a place of its own among the topics of a gateway that all cells share."""

    library: Library
    version: str
    gateway: GatewayProcess
    place: str

    @classmethod
    def make(cls, library: Library, version: str, gateway: GatewayProcess, feature: str) -> Self:
        """Return the cell of a library, with a place named after all of them."""
        words = f"{library.name}-{version}-{feature}".replace(".", "_")
        return cls(library, version, gateway, "".join(c if c.isalnum() else "-" for c in words))

    def client(self) -> ThirdPartyClient:
        """Start a program that uses the library."""
        return ThirdPartyClient(self.library, self.version, self.gateway, "subscriber")

    def peer(self) -> RawClient:
        """Connect somebody else, who publishes to the library's user and sees what it publishes."""
        return RawClient(self.gateway, "publisher")

    def topic(self, name: str) -> str:
        """Name a topic of this cell."""
        return f"X/Interop.{self.place}.{name}"


def _headers(event: dict[str, Any]) -> Headers:
    return {str(name): str(value) for name, value in event["headers"].items()}
