"""A real gateway process with its files, and blocking clients that talk to it in frames."""

import datetime as dt
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from maxam.config import Limits
from maxam.pki.certificates import issue_development_certificates
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from tests.support.gateway_process import COMMAND, fronts_table, launch, port_of
from tests.support.patience import PATIENCE_S

RUN = COMMAND


class GatewayFolder:
    """The files of a gateway: certificates, a policy under which everyone may do everything under X, no schema checks."""

    def __init__(self, folder: Path, fronts: int = 0) -> None:
        self._fronts = f"[fronts]\ncount = {fronts}\n" if fronts else fronts_table()
        self.folder = folder
        self.fault = folder / "fault"
        self.config = folder / "maxam.toml"
        self.errors = folder / "stderr.log"
        fingerprints = issue_development_certificates(folder / "certs", dt.datetime.now(dt.UTC))
        principals = "".join(
            f'[[principals]]\nname = "{name}"\nfingerprints = ["{fingerprint}"]\ncapabilities = ["all"]\n'
            for name, fingerprint in fingerprints.items()
        )
        rights = '[capabilities.all]\nsend = ["X/**"]\nreceive = ["X/**"]\nadmin = ["read", "write", "metrics"]\n'
        (folder / "policy.toml").write_text(rights + principals)
        (folder / "schemas").mkdir()
        (folder / "schemas" / "registry.toml").write_text('[[rule]]\ndestination = "X/**"\nencoding = "none"\n')
        self.configure()

    def configure(self, journal: str = "", limits: str = "", tls: str = "") -> None:
        """Write the configuration, with further keys."""
        self.config.write_text(
            "[listener]\nport = 0\n[admin]\nport = 0\n"
            '[tls]\ncertificate = "certs/server.pem"\nkey = "certs/server.key"\nclient_ca = "certs/ca.pem"\n'
            f'crl = "certs/crl.pem"\n{tls}\n[policy]\nfile = "policy.toml"\n[schemas]\nfolder = "schemas"\n'
            f"[journal]\n{journal}\n[limits]\n{limits}\n{self._fronts}"
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        command = [sys.executable, "-c", RUN, "--config", str(self.config), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def start(self, *, faulty: bool = False) -> "GatewayProcess":
        """Start a gateway and wait until it is ready."""
        return GatewayProcess(self, faulty)


class GatewayProcess:
    """A running gateway; leaving it kills it if it still runs."""

    def __init__(self, files: GatewayFolder, faulty: bool) -> None:
        self.files = files
        what = [str(Path(__file__).parents[1] / "faults" / "faulty_gateway.py")] if faulty else ["-c", RUN]
        environment = {**os.environ, "FAULT": str(files.fault)}
        self.process, addresses = launch([*what, "--config", str(files.config)], files.errors, environment)
        self.port, self.admin_port = port_of(addresses["tls"]), port_of(addresses["admin"])

    def __enter__(self) -> "GatewayProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """Stop it gracefully; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def log(self) -> str:
        """Return what it and its predecessors logged."""
        return self.files.errors.read_text()

    def client(self, name: str = "publisher", client_id: str | None = None) -> "BlockingClient":
        """Connect a client and wait for CONNECTED."""
        client = BlockingClient(self.port, self.files.folder / "certs", name)
        client.write(encoder.connect("MAXVAPI", client_id=client_id))
        assert client.frame().command == b"CONNECTED"
        return client


class BlockingClient:
    """One TLS connection that sends bytes and reads frames."""

    def __init__(self, port: int, certificates: Path, name: str, receive_buffer_bytes: int | None = None) -> None:
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        raw = socket.socket()
        raw.settimeout(PATIENCE_S)
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)  # before the window is agreed on
        try:
            raw.connect(("127.0.0.1", port))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = context.wrap_socket(raw, server_hostname="localhost")
        except OSError:
            raw.close()
            raise
        self._decoder = Decoder(Limits(), SERVER_COMMANDS, VERSION_1_2)

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def frame(self) -> Frame:
        """Wait for the next frame; EOFError at the end of the stream."""
        while (frame := self._decoder.next_frame()) is None:
            data = self._socket.recv(65_536)
            if not data:
                raise EOFError
            self._decoder.receive_data(data)
        return frame

    def send(self, topic: bytes, body: bytes) -> bytes:
        """SEND with a receipt; return the disposition."""
        self.write(encoder.send(VERSION_1_2, topic, body, receipt_id=b"of-" + topic))
        frame = self.frame()
        assert frame.command == b"RECEIPT", frame.headers
        assert frame.headers[b"receipt-id"] == b"of-" + topic
        return frame.headers[b"disposition"]

    def values(self, glob: bytes, count: int) -> dict[bytes, bytes]:
        """Subscribe eagerly, and return the first `count` values by topic."""
        self.write(encoder.subscribe(VERSION_1_2, b"s", glob, b"auto", eager=True))
        found = {}
        for _ in range(count):
            frame = self.frame()
            assert frame.command == b"MESSAGE", frame.headers
            found[frame.headers[b"destination"]] = frame.body
        return found
