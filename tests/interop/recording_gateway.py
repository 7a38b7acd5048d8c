"""Record what third-party libraries send, and what a broker answers, while they do the scenarios of the interop matrix.

A gateway of one thread takes their connections over mutual TLS. Its broker has no disk and no clock of its own, so that each
session can be played again. `tests.support.recorded_sessions` describes how to record them again.
"""

import contextlib
import datetime as dt
import hashlib
import json
import selectors
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from maxam.pki.certificates import issue_development_certificates
from tests.interop.test_third_party_clients import CANNOT, FEATURES, SCHEMAS
from tests.interop.third_party import LIBRARIES, Cell
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S
from tests.support.recorded_sessions import Recorder, Recording, save

RIGHTS: Final = {"send": ["X/Interop.*"], "receive": ["X/Interop.*"]}
STEP_S: Final = 0.01  # of the broker's clock, for each piece of data


class RecordingGateway:
    """A gateway that records one session.

    Attributes:
        certificates: Folder as made by `issue_development_certificates`.
        port: Port on 127.0.0.1.
        recorder: The session.
    """

    def __init__(self, certificates: Path, name: str) -> None:
        """Listen; `serve` takes connections."""
        self.certificates = certificates
        policies = [{"publisher": RIGHTS, "subscriber": RIGHTS}]
        self.recorder = Recorder(Recording(name, {}, SCHEMAS, policies))
        fingerprints = json.loads((certificates / "fingerprints.json").read_text(encoding="ascii"))
        self._principals = {fingerprint: principal for principal, fingerprint in fingerprints.items()}
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_verify_locations(certificates / "ca.pem")
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[int, ssl.SSLSocket] = {}
        self._opened = 0
        self._stopping = threading.Event()

    def serve(self) -> None:
        """Take connections until `stop` is called."""
        while not self._stopping.is_set():
            for key, _ in self._selector.select(0.05):
                if key.data is None:
                    self._accept()
                else:
                    self._receive(key.data)
        for number in list(self._connections):
            self._drop(number)
        self._selector.close()
        self._listener.close()

    def stop(self) -> None:
        """Have `serve` return."""
        self._stopping.set()

    def _accept(self) -> None:
        plain, _ = self._listener.accept()
        plain.settimeout(PATIENCE_S)
        connection = self._context.wrap_socket(plain, server_side=True)
        certificate = connection.getpeercert(binary_form=True)
        assert certificate is not None
        self._opened += 1
        self._connections[self._opened] = connection
        self._selector.register(connection, selectors.EVENT_READ, self._opened)
        self.recorder.do("open", self._opened, self._principals[hashlib.sha256(certificate).hexdigest()])

    def _receive(self, number: int) -> None:
        connection = self._connections[number]
        connection.settimeout(0)
        try:
            data = connection.recv(65_536)
        except ssl.SSLWantReadError:
            return
        except OSError:
            data = b""
        if data:
            self.recorder.do("wait", STEP_S)
            self.recorder.do("write", number, data.decode("latin-1"))
        else:
            self.recorder.do("lose", number)
            self._drop(number)
        self.recorder.do("settle")
        for other in list(self._connections):
            self._send(other)
        if number in self._connections and connection.pending():
            self._receive(number)

    def _send(self, number: int) -> None:
        output = self.recorder.do("drain", number)
        data = output.removesuffix("<closed>").encode("latin-1")
        connection = self._connections[number]
        connection.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):  # the client has gone, which its stream will show
            connection.sendall(data)
        if output.endswith("<closed>"):
            self._drop(number)

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number)
        self._selector.unregister(connection)
        connection.settimeout(0)
        with contextlib.suppress(OSError):
            connection.unwrap()  # sends the end of the stream, and does not wait for the client's
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        connection.close()


@contextlib.contextmanager
def recording(certificates: Path, name: str) -> Iterator[RecordingGateway]:
    """Serve with a recording gateway until the context is left."""
    gateway = RecordingGateway(certificates, name)
    thread = threading.Thread(target=gateway.serve)
    thread.start()
    try:
        yield gateway
    finally:
        gateway.stop()
        thread.join()


def record(certificates: Path) -> Iterator[Recording]:
    """Yield a recording of each scenario by each library in each of its versions."""
    for library in LIBRARIES.values():
        problem = library.problem()
        if problem:
            raise SystemExit(f"{library.name} is not installed: {problem}. Run make test-deps.")
        for version in library.versions:
            for feature, scenario in FEATURES.items():
                if (library.name, version, feature) in CANNOT:
                    continue
                name = f"{library.name} {version} {feature}"
                with recording(certificates, name) as gateway:
                    # Clients need its port and its certificates only.
                    scenario(Cell(library, version, cast("GatewayProcess", gateway), "place"))
                yield gateway.recorder.recording


def main() -> None:
    """Record into the file that the command line names."""
    with tempfile.TemporaryDirectory() as folder:
        issue_development_certificates(Path(folder), dt.datetime.now(dt.UTC))
        save(Path(sys.argv[1]), list(record(Path(folder))))


if __name__ == "__main__":
    main()
