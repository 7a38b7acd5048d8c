"""Backups of a real gateway's journal while clients write it, killed and not, and a second gateway that starts from each."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from maxam.broker.broker import Broker
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.journal.backup import LOCK, MANIFEST, UNFINISHED
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Change, Record
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support import gateway_folder as gateway_process
from tests.support.gateway_folder import GatewayFolder, GatewayProcess
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

BACKUPS = 3
SENDS_PER_S_MAX = 2_500  # each makes the backups and comparisons after it longer
ADMIN = "from maxam.cli.main import main; main()"


def admin(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `maxam-admin`."""
    command = [sys.executable, "-c", ADMIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


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


@contextmanager
def at_rest(journal: Path) -> Iterator[None]:
    """Keep everyone from building a snapshot: a gateway that is killed leaves its build running, which adds and removes files."""
    with (journal / "snapshots" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for a build that is under way
        yield


def publish(gateway: GatewayProcess, stop: threading.Event, accepted: threading.Event) -> None:
    """Change topics and delete some, until stopped. Report each 50 that are accepted."""
    number = 0
    with gateway.client() as client:
        while not stop.wait(50 / SENDS_PER_S_MAX):
            sends = []
            for _ in range(50):
                number += 1
                body = b"" if number % 11 == 0 else b"%d" % number + bytes(300)
                sends.append(encoder.send(VERSION_1_2, b"X/B.%d" % (number % 70), body, receipt_id=b"r"))
            client.write(b"".join(sends))
            for _ in sends:
                assert client.frame().headers[b"disposition"] == b"accepted"
            accepted.set()


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
        stop, accepted = threading.Event(), threading.Event()
        load = threading.Thread(target=publish, args=(gateway, stop, accepted))
        load.start()
        try:
            for number in range(BACKUPS):
                for _ in range(2):  # some of the first report may be in the backup before
                    accepted.clear()
                    assert accepted.wait(PATIENCE_S)
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
        with at_rest(journal):
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


def asked(gateway: GatewayProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `maxam-admin` as the operator of a gateway."""
    certificates = gateway.files.folder / "certs"
    options = ["--gateway", f"127.0.0.1:{gateway.admin_port}", "--ca", str(certificates / "ca.pem")]
    options += ["--certificate", str(certificates / "operator.pem"), "--key", str(certificates / "operator.key")]
    return admin(*options, *arguments)


def signal_backup(gateway: GatewayProcess, backups: Path, number: signal.Signals) -> int:
    """Have a backup made, and send a signal to the process that makes it there, as soon as it copies; return its id."""

    def strike() -> int:
        found: list[int] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while not found or not list(backups.glob(f"*{UNFINISHED}/segments")):
            assert time.monotonic() < deadline_s
            found = found or [int(one.name) for one in Path("/proc").glob("[0-9]*") if _backs_up(one, backups)]
        os.kill(found[0], number)
        return found[0]

    with ThreadPoolExecutor(1) as watcher:
        struck = watcher.submit(
            strike
        )  # which checks before the backup is requested: on a busy machine that may soon be done
        assert "running" in asked(gateway, "backup", "--no-wait").stdout
        return struck.result()


def _backs_up(process: Path, backups: Path) -> bool:
    try:
        command = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    return b"maxam.gateway.backups" in command and os.fsencode(backups) in command


def test_a_kill_in_the_midst_of_a_backup_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    """Killed with its gateway it is `failed` and gone after the next start. Killed alone it is `failed`, and the next one is whole."""
    files = GatewayFolder(tmp_path)
    files.configure(journal="segment_bytes_max = 65536")
    files.config.write_text(
        files.config.read_text().replace("[admin]\n", '[admin]\nbackups = "backups"\nbackups_kept = 1\n')
    )
    backups = tmp_path / "backups"
    with files.start() as gateway:
        with gateway.client() as client:
            sends = [encoder.send(VERSION_1_2, b"X/B.%d" % n, bytes(60_000), receipt_id=b"r") for n in range(150)]
            client.write(b"".join(sends))
            assert {client.frame().headers[b"disposition"] for _ in sends} == {b"accepted"}
        process = signal_backup(gateway, backups, signal.SIGSTOP)
        again = asked(gateway, "backup")
        assert (again.returncode, "backup-running" in again.stderr) == (1, True)
        gateway.kill()
    os.kill(process, signal.SIGKILL)
    [left] = backups.glob(f"*{UNFINISHED}")
    assert not (left / MANIFEST).exists()
    refused = admin("journal", "restore", str(left), str(tmp_path / "never"))
    assert (refused.returncode, "is no backup" in refused.stderr) == (1, True)
    with files.start() as gateway:
        listed = asked(gateway, "backup", "list", "--json")
        assert (listed.returncode, listed.stdout) == (0, "")
        assert not left.exists()
        signal_backup(gateway, backups, signal.SIGKILL)
        made = asked(gateway, "backup")
        while "backup-running" in made.stderr:  # until the gateway has heard of the end of the first
            made = asked(gateway, "backup")
        assert made.returncode == 0, made.stderr
        rows = [json.loads(line) for line in asked(gateway, "backup", "list", "--json").stdout.splitlines()]
        assert [row["state"] for row in rows] == ["done", "failed"]
        assert {path.name for path in backups.iterdir()} == {LOCK, rows[0]["name"]}
        assert gateway.stop() == 0
    done = admin("journal", "restore", str(backups / rows[0]["name"]), str(tmp_path / "restored"))
    assert done.returncode == 0, done.stderr
    (tmp_path / "second").mkdir()
    second = GatewayFolder(tmp_path / "second")
    second.configure(journal=f'folder = "{tmp_path / "restored"}"')
    with second.start() as gateway, gateway.client("operator") as client:
        assert len(client.values(b"X/**", 150)) == 150
