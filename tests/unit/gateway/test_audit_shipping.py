"""Each line of the audit log reaches a collector of syslog, also after an outage and a restart."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from maxam.audit_chain import GENESIS, file_name, write_line
from maxam.gateway.audit_shipping import POSITION_NAME, AuditShipper, message
from tests.support.patience import PATIENCE_S

RFC_5424 = re.compile(rb"<(\d{1,3})>1 (\S+) (\S{1,255}) (\S{1,48}) (\S{1,128}) (\S{1,32}) - (.*)", re.DOTALL)


def write(folder: Path, *sequences: int) -> None:
    """Append lines to an audit log of one file."""
    folder.mkdir(exist_ok=True)
    with (folder / file_name(1)).open("ab") as file:
        for at in sequences:
            facts: dict[str, object] = {"at": "2026-01-01T00:00:00.000000Z", "event": "refused", "outcome": "refused"}
            file.write(write_line(at, GENESIS, {**facts, "reason": "\u202e"}) + b"\n")


@contextmanager
def shipping(target: str, folder: Path) -> Iterator[AuditShipper]:
    """Ship for the length of a block."""
    shipper = AuditShipper(target, folder, poll_s=0.01, retry_s=0.01)
    shipper.start()
    try:
        yield shipper
    finally:
        shipper.close(PATIENCE_S)


def listening(port: int = 0) -> socket.socket:
    """Listen for TCP connections."""
    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(PATIENCE_S)
    return listener


def sequence(found: bytes) -> int:
    """Return the sequence of the line in a message."""
    match = RFC_5424.fullmatch(found)
    assert match is not None, found
    line = json.loads(match[7])
    assert (match[1], match[2], match[6]) == (b"108", line["at"].encode(), b"refused")
    return int(line["sequence"])


def received(connection: socket.socket, count: int) -> list[int]:
    """Read messages with octet counting; return their sequences."""
    connection.settimeout(PATIENCE_S)
    found = []
    with connection.makefile("rb") as stream:
        for _ in range(count):
            digits = b""
            while (one := stream.read(1)) != b" ":
                assert one
                digits += one
            found.append(sequence(stream.read(int(digits))))
    return found


def test_lines_follow_an_outage_and_a_restart(tmp_path: Path) -> None:
    """The first start begins with the lines that come. Those of an outage and of a pause come later, each once, in order."""
    folder = tmp_path / "audit"
    write(folder, 1, 2)
    with listening() as listener:
        target = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        port = listener.getsockname()[1]
        with shipping(target, folder):
            connection, _ = listener.accept()
            write(folder, 3, 4)
            assert received(connection, 2) == [3, 4]
            connection.close()
    write(folder, 5)
    with shipping(target, folder), listening(port) as listener:
        connection, _ = listener.accept()
        assert received(connection, 1) == [5]
        connection.close()
    assert (folder / POSITION_NAME).read_text() == "5\n"


def test_each_line_is_a_datagram(tmp_path: Path) -> None:
    """Over UDP too; the lines that are there at the end leave before it."""
    write(tmp_path, 1)
    (tmp_path / POSITION_NAME).write_text("0\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind(("127.0.0.1", 0))
        collector.settimeout(PATIENCE_S)
        with shipping(f"udp://127.0.0.1:{collector.getsockname()[1]}", tmp_path):
            assert sequence(collector.recv(65_536)) == 1
            write(tmp_path, 2)
        assert sequence(collector.recv(65_536)) == 2


@pytest.mark.parametrize(("outcome", "priority"), [("accepted", b"<110>"), ("rejected-invalid", b"<108>")])
def test_what_was_refused_is_a_warning(outcome: str, priority: bytes) -> None:
    """Everything else is information."""
    line = {"sequence": 1, "at": "2026-01-01T00:00:00.000000Z", "event": "send-rejected", "outcome": outcome}
    assert message(line, "host", 1).startswith(priority + b"1 ")
