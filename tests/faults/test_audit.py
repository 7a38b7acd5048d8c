"""The audit log of a gateway process that is killed, and of one whose journal's neighbour folder cannot be written."""

from pathlib import Path

import pytest

from maxam.audit_chain import Checker, read_folder
from tests.support.gateway_folder import GatewayFolder

pytestmark = pytest.mark.slow


def checked(folder: Path) -> tuple[list[str], Checker]:
    """Read the audit log of a gateway; return its events."""
    checker = Checker()
    return [line.facts.get("event", "") for line in read_folder(folder, checker)], checker


def test_the_chain_goes_on_after_a_kill(tmp_path: Path) -> None:
    """After kill -9 all written lines are there. Half a line is cut off and reported, and the next start continues after it."""
    files = GatewayFolder(tmp_path)
    folder = tmp_path / "var/journal-audit"
    for _ in range(2):
        with files.start() as gateway, gateway.client() as client:
            assert client.send(b"Y/A", b"v") == b"rejected-unauthorised"
            with gateway.client():
                pass
            gateway.kill()
        events, checker = checked(folder)
        assert checker.proof.breaks == []
        assert "started" in events
    (path,) = folder.glob("*.jsonl")
    with path.open("ab") as log:
        log.write(b'{"sequence":')
    with files.start() as gateway:
        assert gateway.stop() == 0
    events, checker = checked(folder)
    assert checker.proof.breaks == []
    assert events.count("started") == 3
    assert "unfinished-line-cut" in events
    assert events[-1] == "stopped"
    assert "audit-head" in files.errors.read_text()


def test_a_gateway_serves_on_without_its_audit_log(tmp_path: Path) -> None:
    """Any obstacle to writing it is reported once, and nothing waits for it."""
    files = GatewayFolder(tmp_path)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/journal-audit").write_text("not a folder")
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"v") == b"accepted"
        assert gateway.stop() == 0
        assert gateway.log().count("audit-failed ") == 1
