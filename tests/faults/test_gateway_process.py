"""The gateway as a process: it starts, refuses, stops, survives being killed, and ends when its disk lies."""

import contextlib
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.support.gateway_folder import GatewayFolder
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path: Path) -> GatewayFolder:
    """The files of a gateway that has never run."""
    return GatewayFolder(tmp_path)


def test_accepted_values_survive_a_kill(files: GatewayFolder) -> None:
    """A SEND with the receipt `accepted` before kill -9 is delivered after the restart."""
    with files.start() as gateway, gateway.client() as client:
        for number in range(20):
            assert client.send(b"X/A.%d" % (number % 5), b"value %d" % number) == b"accepted"
        gateway.kill()
    with files.start() as gateway, gateway.client("subscriber") as client:
        assert client.values(b"X/**", 5) == {b"X/A.%d" % n: b"value %d" % (n + 15) for n in range(5)}
        assert gateway.stop() == 0


def test_graceful_stop_answers_what_it_received(files: GatewayFolder) -> None:
    """After SIGTERM every frame that was read has its RECEIPT, then comes an ERROR with the reason, and the exit code is 0."""
    with files.start() as gateway, gateway.client() as client:
        client.write(b"".join(encoder.send(VERSION_1_2, b"X/A", b"v", receipt_id=b"%d" % n) for n in range(100)))
        assert client.frame().headers[b"receipt-id"] == b"0"
        gateway.process.send_signal(signal.SIGTERM)
        received = 1
        while (frame := client.frame()).command == b"RECEIPT":
            assert frame.headers[b"receipt-id"] == b"%d" % received
            received += 1
        assert frame.command == b"ERROR"
        assert frame.headers[b"message"] == b"broker is stopping"
        with pytest.raises(EOFError):
            client.frame()
        assert gateway.process.wait(PATIENCE_S) == 0
        assert received == 100
    assert list((files.folder / "var/journal/segments").glob("*.open.avro")) == []


def test_stop_waits_for_no_client(files: GatewayFolder) -> None:
    """A client that reads nothing and one in the middle of its handshake do not keep the gateway from ending."""
    with files.start() as gateway, gateway.client() as stubborn, gateway.client("subscriber") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto"))
        for _ in range(3):
            assert stubborn.send(b"X/A", bytes(2_000_000)) == b"accepted"
        assert gateway.stop() == 0


def test_second_signal_ends_at_once(files: GatewayFolder) -> None:
    """A second SIGTERM does not wait for anybody."""
    with files.start() as gateway, gateway.client() as stubborn, gateway.client("subscriber") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto"))
        for _ in range(3):
            assert stubborn.send(b"X/A", bytes(4_000_000)) == b"accepted"
        gateway.process.send_signal(signal.SIGTERM)
        while "stopping" not in gateway.log():
            pass
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(PATIENCE_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("fault", ["EIO pwrite", "EIO fdatasync fsync", "ENOSPC fdatasync fsync"])
def test_a_failing_disk_ends_the_process_without_receipt(files: GatewayFolder, fault: str) -> None:
    """A write error but a full disk, and any failed sync, end the process with a code above 0; the restart is clean."""
    with files.start(faulty=True) as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"kept") == b"accepted"
        files.fault.write_text(fault)
        client.write(encoder.send(VERSION_1_2, b"X/B", b"unknown", receipt_id=b"r"))
        with pytest.raises((EOFError, ConnectionError)):
            client.frame()
        assert gateway.process.wait(PATIENCE_S) == 74
        assert "error journal-failed" in gateway.log()
    files.fault.unlink()
    with files.start(faulty=True) as gateway, gateway.client() as client:
        assert client.values(b"X/A", 1) == {b"X/A": b"kept"}


def test_a_full_disk_refuses_and_recovers(files: GatewayFolder) -> None:
    """While the disk is full SENDs get rejected-unavailable, reading goes on, and service resumes by itself."""
    with files.start(faulty=True) as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"kept") == b"accepted"
        files.fault.write_text("ENOSPC pwrite")
        assert client.send(b"X/A", b"refused") == b"rejected-unavailable"
        assert client.send(b"X/B", b"refused") == b"rejected-unavailable"
        with gateway.client("subscriber") as reader:
            assert reader.values(b"X/**", 1) == {b"X/A": b"kept"}
        files.fault.unlink()
        assert client.send(b"X/B", b"there is room") == b"accepted"
        assert "disk-full" in gateway.log()
        assert "disk-has-room" in gateway.log()
        gateway.kill()
    with files.start() as gateway, gateway.client() as client:
        assert client.values(b"X/**", 2) == {b"X/A": b"kept", b"X/B": b"there is room"}


def test_a_snapshot_replaces_the_segments_before_it(files: GatewayFolder) -> None:
    """A snapshot built from sealed segments gives the same values and the same owed topics as they would."""
    journal = files.folder / "var" / "journal"
    with files.start() as gateway, gateway.client() as client, gateway.client("subscriber", "me") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"d", b"X/**", b"client", durable=True, receipt_id=b"r"))
        assert reader.frame().command == b"RECEIPT"
        for number in range(10):
            assert client.send(b"X/A.%d" % number, b"%d" % number) == b"accepted"
        newest = b""
        for _ in range(10):
            newest = reader.frame().headers[b"message-id"]
        reader.write(encoder.ack(VERSION_1_2, b"d", newest, receipt_id=b"acked"))
        assert reader.frame().headers[b"receipt-id"] == b"acked"
        assert client.send(b"X/A.3", b"newer") == b"accepted"
        assert gateway.stop() == 0
    command = [sys.executable, "-m", "maxam.gateway.snapshot", str(journal)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert Path(built.stdout.strip()) == journal / "snapshots" / f"{11:020}.avro"
    for segment in (journal / "segments").glob("*.avro"):
        segment.unlink()
    with files.start() as gateway, gateway.client("subscriber", "me") as reader:
        reader.write(encoder.subscribe(VERSION_1_2, b"d", b"X/**", b"client", durable=True, receipt_id=b"r"))
        frames = [reader.frame(), reader.frame()]
        assert {frame.command: frame.body for frame in frames} == {b"RECEIPT": b"", b"MESSAGE": b"newer"}
        with gateway.client("operator") as all_values:
            assert len(all_values.values(b"X/**", 10)) == 10


def test_check_tells_good_from_bad(files: GatewayFolder) -> None:
    """`--check` serves nothing: it exits 0 for valid files, 1 and a line that shows the fault for invalid ones."""
    good = files.run("--check")
    assert (good.returncode, good.stdout) == (0, f"{files.config}: valid\n")
    files.configure(limits="windw = 5")
    bad = files.run("--check")
    assert bad.returncode == 1
    assert re.search(r"\[limits\] windw\b.*'window'", bad.stderr)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("policy.toml", "[policy] file: cannot read"),
        ("certs/server.key", "[tls] key: cannot read"),
        ("certs/crl.pem", "[tls] crl: cannot read"),
        ("schemas/registry.toml", "/schemas/registry.toml: No such file or directory; correct the path of the folder"),
        ("maxam.toml", "the configuration file: cannot read"),
    ],
)
def test_a_missing_file_is_named(files: GatewayFolder, file: str, told: str) -> None:
    """Without one of its files the gateway does not start, and the error has the path."""
    (files.folder / file).unlink()
    refused = files.run()
    assert refused.returncode == 3
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr


def test_two_gateways_do_not_share_a_journal(files: GatewayFolder) -> None:
    """The second gateway on a journal's folder refuses to start and reports it."""
    with files.start():
        refused = files.run()
        assert refused.returncode == 1
        assert "in use" in refused.stderr


def test_reload_puts_a_new_policy_in_force_and_keeps_the_old_one_when_it_is_bad(files: GatewayFolder) -> None:
    """SIGHUP: an invalid policy changes nothing and is reported. A valid one closes clients that it no longer has."""
    policy = files.folder / "policy.toml"
    good = policy.read_text()
    with files.start() as gateway, gateway.client() as client, gateway.client("subscriber") as other:
        policy.write_text("nonsense")
        gateway.process.send_signal(signal.SIGHUP)
        while "reload-refused" not in gateway.log():
            pass
        assert client.send(b"X/A", b"v") == b"accepted"
        policy.write_text(good.replace('name = "publisher"', 'name = "renamed"').replace("subscriber", "subscriber-2"))
        start = good.index('name = "publisher"')
        fingerprint = good[good.index('["', start) + 2 : good.index('"]', start)]
        policy.write_text(good.replace(fingerprint, "0" * 64))
        gateway.process.send_signal(signal.SIGHUP)
        frame = client.frame()
        assert (frame.command, frame.headers[b"message"]) == (b"ERROR", b"unknown client")
        assert other.send(b"X/A", b"v") == b"accepted"


def test_strangers_do_not_keep_clients_out(files: GatewayFolder) -> None:
    """With all places of unauthenticated connections taken by silent peers, a client is served at once."""
    files.configure(limits="connections_unauthenticated_max = 20")
    with files.start() as gateway, contextlib.ExitStack() as strangers:
        for _ in range(60):
            strangers.enter_context(socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S))
        with gateway.client() as client:
            assert client.send(b"X/A", b"v") == b"accepted"
        assert "made room for another" in gateway.log()


def test_out_of_sockets_pauses_accepting_only(files: GatewayFolder) -> None:
    """When the process has no file descriptors left, connected clients are served on, and new ones once there is room."""
    with files.start() as gateway, gateway.client() as client, contextlib.ExitStack() as strangers:
        assert client.send(b"X/A", b"v") == b"accepted"  # the open segment has its file
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (40, 40))
        for _ in range(40):
            strangers.enter_context(socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S))
        while "accept-paused" not in gateway.log():
            assert client.send(b"X/A", b"v") == b"accepted"
        assert client.send(b"X/A", b"w") == b"accepted"
        strangers.close()
        with gateway.client("subscriber") as late:
            assert late.values(b"X/**", 1) == {b"X/A": b"w"}
