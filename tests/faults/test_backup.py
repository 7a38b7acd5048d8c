"""Backups of a real gateway's journal while clients write it, and a second gateway that starts from each."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from maxam.broker.broker import Broker
from maxam.config import Limits
from maxam.gateway.snapshot import summed_up
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Change, Record
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults import gateway_process
from tests.faults.gateway_process import WAIT_S, GatewayFolder, GatewayProcess

pytestmark = pytest.mark.slow

BACKUPS = 3
ADMIN = "from maxam.admin.main import main; main()"


def admin(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `maxam-admin`."""
    command = [sys.executable, "-c", ADMIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)


def up_to(folder: Path, head: int) -> Broker:
    """Apply what a journal holds up to a revision, from its segments alone."""
    shutil.rmtree(folder / "snapshots")

    def records() -> list[Record]:
        found: list[Record] = []
        journal = Journal.open(folder, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), bytes(16))
        for record in journal.recover():
            if isinstance(record, Change) and record.revision > head:
                continue
            found.append(record)
        journal.close()
        return found

    return summed_up(records(), Limits())


def state(broker: Broker) -> tuple[dict[bytes, tuple[int, bytes]], dict[tuple[str, str], set[bytes]]]:
    """Return values by topic, and what each session is owed."""
    values = {topic.destination: topic.change for topic in broker.store.topics.values() if not topic.change.deleted}
    return {name: (one.revision, one.body) for name, one in values.items()}, {
        key: {topic.destination for one in session.subscriptions.values() for topic in one.owed}
        for key, session in broker.sessions.items()
    }


def publish(gateway: GatewayProcess, stop: threading.Event) -> None:
    """Change topics, deleting some, until told to stop."""
    number = 0
    with gateway.client() as client:
        while not stop.is_set():
            sends = []
            for _ in range(50):
                number += 1
                body = b"" if number % 11 == 0 else b"%d" % number + bytes(300)
                sends.append(encoder.send(VERSION_1_2, b"X/B.%d" % (number % 70), body, receipt_id=b"r"))
            client.write(b"".join(sends))
            for _ in sends:
                assert client.frame().headers[b"disposition"] == b"accepted"


def test_backups_under_load_start_a_second_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backup taken while SENDs are accepted starts with exactly the values, revisions and debts of its last revision."""
    hurried = "import maxam.gateway.snapshot as s; s._LOOK_S = 0.1; "
    monkeypatch.setattr(gateway_process, "RUN", hurried + gateway_process.RUN)
    files = GatewayFolder(tmp_path)
    files.configure(journal="segment_bytes_max = 65536\nsnapshot_segments = 2")
    journal = tmp_path / "var" / "journal"
    heads = []
    with files.start() as gateway:
        with gateway.client("subscriber", "me") as reader:
            subscribe = encoder.subscribe(VERSION_1_2, b"d", b"X/**", b"client", durable=True, receipt_id=b"d")
            reader.write(subscribe)
            assert reader.frame().command == b"RECEIPT"
        stop = threading.Event()
        load = threading.Thread(target=publish, args=(gateway, stop))
        load.start()
        try:
            for number in range(BACKUPS):
                done = admin("journal", "backup", str(journal), str(tmp_path / f"backups{number % 2}"))
                assert done.returncode == 0, done.stderr
                folder, head = re.match(r"(.*): revision (\d+),", done.stdout).groups()  # type: ignore[union-attr]
                heads.append((Path(folder), int(head)))
        finally:
            stop.set()
            load.join()
        gateway.kill()
    assert heads[0][1] < heads[1][1] < heads[2][1]
    restored = tmp_path
    for number, (backup, head) in enumerate(heads):
        restored = tmp_path / f"machine{number}"
        done = admin("journal", "restore", str(backup), str(restored))
        assert done.returncode == 0, done.stderr
        shutil.copytree(journal, tmp_path / f"copy{number}")
        wanted = state(up_to(tmp_path / f"copy{number}", head))
        copy = Journal.open(restored, OsDisk(), JournalSettings(durable=False, reserve_bytes=0), bytes(16))
        found = summed_up(copy.recover(), Limits())
        assert copy.head == head
        copy.close()
        assert state(found) == wanted
        assert wanted[1].keys() == {("subscriber", "me")}
    (tmp_path / "second").mkdir()
    second = GatewayFolder(tmp_path / "second")
    second.configure(journal=f'folder = "{restored}"')
    with second.start() as gateway, gateway.client("operator") as client:
        assert client.send(b"X/new", b"value") == b"accepted"
        assert gateway.stop() == 0
    assert not admin("journal", "verify", str(restored)).returncode
