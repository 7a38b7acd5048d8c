"""Lines of the audit log for a collector of syslog, RFC 5424 over TCP (RFC 6587, octet counting) or UDP.

Theory of operation. A thread of its own reads the lines from the files. The file `syslog-position` holds the sequence of the last line
that was sent. So neither an outage of the collector nor a restart loses lines, as long as their files are there, and nothing waits in
memory. Neither the broker nor the writer of the log ever waits for this.
"""

import contextlib
import json
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any, Final, final

from maxam.gateway.audit_reading import newest_sequence, read_lines
from maxam.gateway.log import log_bug, log_event

POLL_S: Final = 1.0  # between two searches for further lines
RETRY_S: Final = 5.0  # after the collector could not be reached
POSITION_NAME: Final = "syslog-position"
_TIMEOUT_S: Final = 10.0
_BATCH: Final = 500
_INFO: Final = 13 * 8 + 6  # facility `log audit`, severity
_WARNING: Final = 13 * 8 + 4
_BAD: Final = ("refused", "rejected", "failed")  # beginnings of outcomes


def message(line: dict[str, Any], host: str, pid: int) -> bytes:
    """Return a line of the audit log as a message of RFC 5424."""
    priority = _WARNING if str(line["outcome"]).startswith(_BAD) else _INFO
    text = json.dumps(line, separators=(",", ":")).replace("\x7f", "\\u007f")  # as in the file
    return f"<{priority}>1 {line['at']} {host} maxam {pid} {line['event']} - {text}".encode("ascii", "replace")


@final
class AuditShipper:
    """Sends lines from `start` on, in a thread. All other methods belong to the event loop.

    Attributes:
        failure: Why lines cannot be sent. Empty while they can.
    """

    def __init__(self, target: str, folder: Path, poll_s: float = POLL_S, retry_s: float = RETRY_S) -> None:
        """Prepare.

        Args:
            target: `tcp://HOST:PORT` or `udp://HOST:PORT`.
            folder: Folder of the audit log.
            poll_s: Seconds between two searches for further lines.
            retry_s: Seconds until the next try after a failure.
        """
        self.failure = ""
        kind, _, address = target.partition("://")
        host, _, port = address.rpartition(":")
        self._stream: Final = kind == "tcp"
        self._address: Final = (host.strip("[]"), int(port))
        self._folder: Final = folder
        self._poll_s: Final = poll_s
        self._retry_s: Final = retry_s
        self._ending: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="audit-syslog", daemon=True)
        self._host: Final = "".join(
            [one if one.isascii() and one.isprintable() else "-" for one in os.uname().nodename]
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Send what is in the files, and end; what is not sent by then is sent after the next start."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._ship_all()
        except Exception as error:  # noqa: BLE001  # a bug here must not touch the audit log, which goes on without this
            self.failure = "internal error"
            log_bug("internal-error", error, action="lines of the audit log are no longer sent")

    def _ship_all(self) -> None:
        position: int | None = None
        connected: socket.socket | None = None
        ending = False
        while not ending:
            ending = self._ending.is_set()  # once more after that, for the last lines
            wait_s = self._poll_s
            try:
                if position is None:
                    position = self._position()
                connected = connected or self._connect()
                more = True
                while more:
                    lines, last, more = read_lines(self._folder, position, _BATCH, lambda _line: True)
                    self._send(connected, lines)
                    if last != position:
                        position = last
                        self._keep(position)
                if self.failure:
                    self.failure = ""
                    log_event(logging.WARNING, "audit-syslog-works", position=position)
            except OSError as error:
                if connected is not None:
                    connected.close()
                    connected = None
                if not self.failure:
                    action = f"lines stay in the files; tried again every {self._retry_s:g} s"
                    log_event(logging.ERROR, "audit-syslog-failed", error=error, action=action)
                self.failure = str(error)
                wait_s = self._retry_s
            if not ending:
                self._ending.wait(wait_s)
        if connected is not None:
            connected.close()

    def _connect(self) -> socket.socket:
        if self._stream:
            return socket.create_connection(self._address, _TIMEOUT_S)
        family, kind, protocol, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
        connected = socket.socket(family, kind, protocol)
        try:
            connected.connect(address)
        except OSError:
            connected.close()
            raise
        return connected

    def _send(self, connected: socket.socket, lines: list[dict[str, Any]]) -> None:
        messages = [message(line, self._host, os.getpid()) for line in lines]
        if self._stream:
            self._check_open(connected)
            connected.sendall(b"".join([b"%d %s" % (len(one), one) for one in messages]))
        else:
            for one in messages:
                connected.send(one)

    def _check_open(self, connected: socket.socket) -> None:
        """Raise OSError if the collector has closed the connection: what is sent then would be lost."""
        connected.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                if not connected.recv(4096):
                    raise ConnectionResetError("the collector closed the connection")
        finally:
            connected.settimeout(_TIMEOUT_S)

    def _position(self) -> int:
        """Return the last line that was sent; without any, the newest one there is."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self._folder / POSITION_NAME).read_text("ascii"))
        position = newest_sequence(self._folder)
        self._keep(position)
        return position

    def _keep(self, position: int) -> None:
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = self._folder / f"{POSITION_NAME}.new"
        new.write_text(f"{position}\n", "ascii")
        new.replace(self._folder / POSITION_NAME)
