"""The gateway as a process: what it comes back with, what it refuses to come back with, and what it syncs before it answers."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count, pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxam.cli.main import main as admin
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.kill_harness import recovered_state
from tests.support import gateway_folder as gateway_process
from tests.support.gateway_folder import BlockingClient, GatewayFolder, GatewayProcess
from tests.support.journal_records import NOW_US, change
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SMALL = "segment_bytes_max = 65536"
# Of a gateway that runs for longer than its usual moments, on a busy machine, no build of its own meets those of the tests.
SMALL_SEGMENTS = f"{SMALL}\nsnapshot_segments = 1000"
_ENDS = count()


@pytest.fixture
def files(tmp_path: Path) -> GatewayFolder:
    """The files of a gateway that has never run."""
    return GatewayFolder(tmp_path)


@pytest.fixture
def journal(files: GatewayFolder) -> Path:
    """Its journal's folder."""
    return files.folder / "var" / "journal"


def resume(client: BlockingClient, glob: bytes = b"X/**") -> bytes:
    """Subscribe durably as `d`; return the RECEIPT's result."""
    client.write(encoder.subscribe(VERSION_1_2, b"d", glob, b"client", durable=True, receipt_id=b"resume"))
    frame = client.frame()
    assert frame.command == b"RECEIPT", frame.headers
    return frame.headers[b"result"]


def take(client: BlockingClient, count: int, *, receipted: bool = True) -> list[tuple[bytes, bytes, int]]:
    """Receive N MESSAGEs and ACK the last of them. Return topics, bodies and revisions. Further ones stay un-acked."""
    found = []
    for _ in range(count):
        frame = client.frame()
        assert frame.command == b"MESSAGE", frame.headers
        found.append((frame.headers[b"destination"], frame.body, int(frame.headers[b"message-id"])))
    client.write(encoder.ack(VERSION_1_2, b"d", b"%d" % found[-1][2], b"acked" if receipted else None))
    while receipted and client.frame().headers.get(b"receipt-id") != b"acked":
        pass
    return found


def owed(gateway: GatewayProcess) -> dict[bytes, bytes]:
    """Resume session `me` and return what it is owed, few enough for the window; nothing of it is acknowledged."""
    end = b"X/end.%d" % next(_ENDS)
    with gateway.client("subscriber", "me") as reader, gateway.client("operator") as operator:
        assert resume(reader) == b"resumed"
        assert operator.send(end, b"-") == b"accepted"
        found: dict[bytes, bytes] = {}
        while end not in found:
            frame = reader.frame()
            assert frame.command == b"MESSAGE", frame.headers
            found[frame.headers[b"destination"]] = frame.body
    return {topic: body for topic, body in found.items() if not topic.startswith((b"X/end", b"X/last"))}


def values(gateway: GatewayProcess) -> dict[bytes, bytes]:
    """Return all current values but those of `owed`."""
    with gateway.client("operator") as operator:
        operator.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"auto", eager=True, receipt_id=b"s"))
        operator.write(encoder.send(VERSION_1_2, b"X/last", b"", receipt_id=b"last"))
        operator.write(encoder.send(VERSION_1_2, b"X/last", b"-", receipt_id=b"last"))
        found: dict[bytes, bytes] = {}
        receipts = 0
        while receipts < 3 or not found.get(b"X/last"):
            frame = operator.frame()
            if frame.command == b"MESSAGE":
                found[frame.headers[b"destination"]] = frame.body
            else:
                receipts += 1
        operator.write(encoder.unsubscribe(VERSION_1_2, b"s"))
        assert operator.send(b"X/last", b"") == b"accepted"
    return {topic: body for topic, body in found.items() if not topic.startswith((b"X/end", b"X/last"))}


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until another process's traces are there."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s


def refused(files: GatewayFolder, code: int = 1) -> str:
    """Start a gateway that must not start, and return its one line."""
    done = files.run()
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = done.stderr.splitlines()
    return line


def publish_rounds(gateway: GatewayProcess, rounds: range) -> None:
    """Change 60 topics in each round, deleting some, so that small segments roll about once a round."""
    with gateway.client() as client:
        for number in rounds:
            sends = [
                encoder.send(
                    VERSION_1_2,
                    b"X/R.%d" % topic,
                    b"" if (topic + number) % 5 == 0 else b"%d" % number + bytes(1000),
                    receipt_id=b"r",
                )
                for topic in range(60)
            ]
            client.write(b"".join(sends))
            for _ in sends:
                assert client.frame().headers[b"disposition"] == b"accepted"


def build_snapshot(journal: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the process that builds a snapshot to its end."""
    command = [sys.executable, "-m", "maxam.gateway.snapshot", str(journal), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


# what survives


@pytest.mark.parametrize("graceful", [False, True])
def test_all_that_was_promised_survives(files: GatewayFolder, graceful: bool) -> None:
    """Values, deletes, sessions, exactly what a durable subscription owes, and the revision outlive kill -9 and a graceful stop."""
    with files.start() as gateway:
        with gateway.client("subscriber", "me") as reader, gateway.client() as client:
            assert resume(reader) == b"created"
            for topic in (b"X/A", b"X/B", b"X/C", b"X/D"):
                assert client.send(topic, b"1") == b"accepted"
            assert [topic for topic, _, _ in take(reader, 2)] == [b"X/A", b"X/B"]
            assert client.send(b"X/A", b"") == b"accepted"  # after its ACK: the delete is owed
            assert client.send(b"X/D", b"") == b"accepted"  # before: conflated, the delete is owed
            assert client.send(b"X/nobody", b"") == b"accepted"  # never had a value: no subscriber is notified
            assert client.send(b"X/C", b"2") == b"accepted"
        if graceful:
            assert gateway.stop() == 0
        else:
            gateway.kill()
    expected = {b"X/A": b"", b"X/C": b"2", b"X/D": b""}
    for _ in range(2):  # what is un-acked is owed again
        with files.start() as gateway:
            assert owed(gateway) == expected
            assert values(gateway) == {b"X/B": b"1", b"X/C": b"2"}
            gateway.kill()
    with files.start() as gateway, gateway.client("operator") as reader, gateway.client() as client:
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/E", b"auto", receipt_id=b"s"))
        assert reader.frame().command == b"RECEIPT"
        assert client.send(b"X/E", b"1") == b"accepted"
        # the SENDs of above, of `owed` and of `values`: no revision was lost or used twice
        assert int(reader.frame().headers[b"message-id"]) == 8 + 2 * 1 + 2 * 3 + 1


def test_an_acknowledgement_without_receipt_is_recorded_by_a_graceful_stop(files: GatewayFolder) -> None:
    """A message that was acknowledged without a RECEIPT is not owed after SIGTERM."""
    with files.start() as gateway, gateway.client("subscriber", "me") as reader, gateway.client() as client:
        assert resume(reader) == b"created"
        assert client.send(b"X/A", b"1") == b"accepted"
        take(reader, 1, receipted=False)
        reader.write(encoder.subscribe(VERSION_1_2, b"other", b"X/other", receipt_id=b"read"))
        assert reader.frame().headers[b"receipt-id"] == b"read"  # so was the ACK before it
        assert gateway.stop() == 0
    with files.start() as gateway:
        assert owed(gateway) == {}


def test_rights_withdrawn_over_a_restart_lose_nothing_once_they_are_back(files: GatewayFolder) -> None:
    """A start under another policy delivers and forgets nothing on its own; the old policy finds all that is owed, deletes too."""
    policy = files.folder / "policy.toml"
    good = policy.read_text()
    with files.start() as gateway, gateway.client("subscriber", "me") as reader, gateway.client() as client:
        assert resume(reader) == b"created"
        assert client.send(b"X/A", b"1") == b"accepted"
        assert client.send(b"X/B", b"1") == b"accepted"
        assert client.send(b"X/B", b"") == b"accepted"
        gateway.kill()
    policy.write_text(good.replace('receive = ["X/**"]', 'receive = ["X/other", "X/end.*"]'))
    with files.start() as gateway:
        assert owed(gateway) == {}
        gateway.kill()
    policy.write_text(good)
    with files.start() as gateway:
        assert owed(gateway) == {b"X/A": b"1", b"X/B": b""}


def test_values_outlive_the_schema_rule_that_let_them_in(files: GatewayFolder) -> None:
    """With another schema folder what was accepted is still delivered; new SENDs are judged by the new rules."""
    registry = files.folder / "schemas" / "registry.toml"
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"no Avro at all") == b"accepted"
        gateway.kill()
    registry.write_text('[[rule]]\ndestination = "X/B"\nencoding = "none"\n')
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"more") == b"rejected-invalid"
        assert client.send(b"X/B", b"1") == b"accepted"
        assert client.values(b"X/**", 2) == {b"X/A": b"no Avro at all", b"X/B": b"1"}


# damage


@pytest.mark.parametrize("cut", [1, 16, 100])
def test_a_torn_tail_is_cut_logged_and_kept(files: GatewayFolder, journal: Path, cut: int) -> None:
    """When the open segment's last bytes are missing, the gateway starts without that block, reports it and keeps the rest."""
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"whole") == b"accepted"
        assert client.send(b"X/A", b"torn") == b"accepted"
        gateway.kill()
    (segment,) = (journal / "segments").glob("*.open.avro")
    data = segment.read_bytes().rstrip(b"\0")  # the rest is room for blocks to come
    os.truncate(segment, len(data) - cut)
    with files.start() as gateway:
        assert values(gateway) == {b"X/A": b"whole"}
        (kept,) = (journal / "segments").glob("*.torn-*")
        line = next(line for line in gateway.log().splitlines() if "torn-tail-cut" in line)
        offset = kept.name.rpartition("-")[2]
        told = (f"path={segment}", f"kept={kept}", f"offset={offset}", f"length={kept.stat().st_size}", "revision=1")
        assert all(word in line.split() for word in told), line
    assert kept.read_bytes() == data[int(offset) : -cut]


@pytest.mark.parametrize("ahead", [False, True])
def test_bytes_of_an_unfinished_write_harm_nothing(files: GatewayFolder, journal: Path, ahead: bool) -> None:
    """With any bytes after the last whole block of the open segment, or after its zeros, all accepted values are there."""
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"kept") == b"accepted"
        gateway.kill()
    (segment,) = (journal / "segments").glob("*.open.avro")
    whole = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(len(whole if ahead else whole.rstrip(b"\0")))
        file.write(os.urandom(5000))
    with files.start() as gateway:
        assert values(gateway) == {b"X/A": b"kept"}


def test_damage_elsewhere_refuses_and_tells_what_is_at_stake(files: GatewayFolder, journal: Path) -> None:
    """A wrong byte before the last block is not taken for a torn tail.

    The gateway does not start, and a line has file, position, stake and remedy. After a repair it starts with what is whole.
    """
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"first value") == b"accepted"
        assert client.send(b"X/A", b"second value") == b"accepted"
        gateway.kill()
    (segment,) = (journal / "segments").glob("*.open.avro")
    data = bytearray(segment.read_bytes())
    data[data.index(b"first value")] ^= 1
    segment.write_bytes(data)
    line = refused(files)
    assert re.search(re.escape(str(segment)) + r": byte \d+: the block does not match its checksum", line), line
    assert "from revision 1 on" in line
    assert f"maxam-admin journal repair {journal}" in line
    assert segment.read_bytes() == data
    repaired = CliRunner().invoke(admin, ["journal", "repair", str(journal), "--apply"])
    assert repaired.exit_code == 0, repaired.output
    with files.start() as gateway:
        assert values(gateway) == {b"X/A": b"second value"}
        assert gateway.stop() == 0
    assert next(journal.glob(f"damaged/*/segments/{segment.name}")).read_bytes() == data


def test_a_missing_segment_refuses(files: GatewayFolder, journal: Path) -> None:
    """Without one of its segments the journal is not started from."""
    files.configure(journal=SMALL_SEGMENTS)
    with files.start() as gateway:
        publish_rounds(gateway, range(4))
        assert gateway.stop() == 0
    gone = sorted((journal / "segments").glob("*.avro"))[1]
    first = int(gone.name.partition("-")[0])
    gone.unlink()
    assert f"begin with revision {first}" in refused(files)


# folders


def test_a_folder_that_is_none_refuses(files: GatewayFolder) -> None:
    """A journal folder that is a file, or below one, is reported in one line."""
    (files.folder / "var").write_text("a file")
    assert f"the journal in {files.folder}/var/journal cannot be used" in refused(files, code=3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a read-only file system to stand for no permission")
def test_a_folder_that_cannot_be_written_refuses(files: GatewayFolder, tmpfs: Callable[[str], Path]) -> None:
    """On a file system without write permission the gateway refuses in one line."""
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"1") == b"accepted"
        assert gateway.stop() == 0
    folder = tmpfs("size=1m")
    shutil.copytree(files.folder / "var" / "journal", folder / "journal", ignore=shutil.ignore_patterns("reserve.*"))
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    files.configure(journal=f'folder = "{folder}/journal"')
    assert "Read-only file system" in refused(files)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount tmpfs with given options; unmounted at the end."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"tmpfs-{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "maxam-test", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system to fill")
def test_a_full_disk_refuses_sends_and_serves_on(files: GatewayFolder, tmpfs: Callable[[str], Path]) -> None:
    """While it is full, SENDs are rejected-unavailable with disk-full, and values and ACKs with RECEIPT go on. Service resumes with room."""
    folder = tmpfs("size=1m")
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(400_000))
    files.configure(journal=f'folder = "{folder}/journal"\nreserve_bytes = 65536')
    accepted: dict[bytes, bytes] = {}
    with files.start() as gateway, gateway.client("subscriber", "me") as reader, gateway.client() as client:
        assert resume(reader) == b"created"
        answer: Mapping[bytes, bytes] = {}
        for number in range(1000):
            topic, body = b"X/F.%d" % (number % 7), b"%d " % number + bytes(10_000)
            client.write(encoder.send(VERSION_1_2, topic, body, receipt_id=b"r"))
            answer = client.frame().headers
            if answer[b"disposition"] != b"accepted":
                break
            accepted[topic] = body
        assert (answer[b"disposition"], answer[b"result"]) == (b"rejected-unavailable", b"disk-full")
        assert len(accepted) == 7
        acked = {topic: body for topic, body, _ in take(reader, 2)}
        assert values_of(gateway, 7) == accepted
        assert client.send(b"X/F.0", bytes(10_000)) == b"rejected-unavailable"
        ballast.unlink()
        while client.send(b"X/G", b"there is room") != b"accepted":
            pass  # the gateway tries again ten times a second
        gateway.kill()
    with files.start() as gateway:
        assert values(gateway) == {**accepted, b"X/G": b"there is room"}
        left = owed(gateway)
        assert all(left.get(topic) == body for topic, body in accepted.items() if acked.get(topic) != body)
        assert all(left.get(topic) != body for topic, body in acked.items())


def values_of(gateway: GatewayProcess, number: int) -> dict[bytes, bytes]:
    """Return N current values, by reading only."""
    with gateway.client("operator") as operator:
        return operator.values(b"X/**", number)


# snapshots


def test_a_start_from_snapshot_and_segments_is_one_from_all_segments(files: GatewayFolder, journal: Path) -> None:
    """Over rolls, snapshots, deletes, ACKs and a session's end: the same values and owed topics, without the archive."""
    files.configure(journal=SMALL_SEGMENTS)
    for start in (0, 6, 12):
        with files.start() as gateway:
            with gateway.client("subscriber", "me") as reader, gateway.client("subscriber", "gone") as gone:
                resume(reader, b"X/R.[1-4]*")
                if start < 12:
                    assert resume(gone) == (b"resumed" if start else b"created")
                publish_rounds(gateway, range(start, start + 5))
                take(reader, 8)
                if start == 6:
                    gone.write(encoder.unsubscribe(VERSION_1_2, b"d", durable=True, receipt_id=b"removed"))
                    while gone.frame().headers.get(b"receipt-id") != b"removed":
                        pass
            assert build_snapshot(journal).stdout.startswith(str(journal / "snapshots"))
            publish_rounds(gateway, range(start + 5, start + 6))
            gateway.kill()
        assert recovered_state(journal) == recovered_state(journal, snapshots=False)
    snapshots = sorted((journal / "snapshots").glob("*.avro"))
    assert len(snapshots) == 2
    for path in (journal / "segments").glob("*.avro"):
        if not path.name.endswith(".open.avro") and int(path.stem.partition("-")[2]) <= int(snapshots[-1].stem):
            path.unlink()
    whole = recovered_state(journal)
    with files.start() as gateway:
        assert values(gateway) == {topic: value[1] for topic, value in whole.values.items()}
        assert gateway.stop() == 0


def test_the_gateway_builds_snapshots_by_itself(
    files: GatewayFolder, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After enough rolls a snapshot appears while clients are served, the old segments stay, and the next start uses it."""
    hurried = "import maxam.gateway.snapshot as s; s._LOOK_S = 0.1; "
    monkeypatch.setattr(gateway_process, "RUN", hurried + gateway_process.RUN)
    files.configure(journal=f"{SMALL}\nsnapshot_segments = 2")
    with files.start() as gateway:
        publish_rounds(gateway, range(5))
        wait_for(lambda: "snapshot-built" in gateway.log())
        publish_rounds(gateway, range(5, 6))
        before = values(gateway)
        gateway.kill()
    (first, *_) = sorted((journal / "segments").glob("*.avro"))
    assert first.name.startswith(f"{1:020}-")
    first.unlink()  # it is archive now
    with files.start() as gateway:
        assert values(gateway) == before


def test_the_gateway_seals_its_segment_for_a_snapshot_that_is_due(
    files: GatewayFolder, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After enough changes a snapshot appears although no segment has rolled; a start after a kill loses nothing."""
    hurried = "import maxam.gateway.snapshot as s; s.changes_max = lambda topics: 10; "
    monkeypatch.setattr(gateway_process, "RUN", hurried + gateway_process.RUN)
    with files.start() as gateway:
        publish_rounds(gateway, range(5))
        wait_for(lambda: "snapshot-built" in gateway.log())
        publish_rounds(gateway, range(5, 6))
        before = values(gateway)
        gateway.kill()
    assert list((journal / "snapshots").glob(f"{'[0-9]' * 20}.avro"))
    with files.start() as gateway:
        assert values(gateway) == before


def test_a_killed_build_leaves_nothing_harmful(files: GatewayFolder, journal: Path) -> None:
    """A snapshot process killed while it writes: the gateway starts as before, and the next build clears the rest away."""
    files.configure(journal=SMALL_SEGMENTS)
    with files.start() as gateway:
        publish_rounds(gateway, range(8))
        assert gateway.stop() == 0
    build = subprocess.Popen([sys.executable, "-m", "maxam.gateway.snapshot", str(journal)], stdout=subprocess.DEVNULL)
    folder = journal / "snapshots"
    wait_for(lambda: list(folder.glob("*.tmp")) or build.poll() is not None)
    build.kill()
    build.wait()
    if not list(folder.glob("*.avro")):  # else it was quicker than we
        (folder / f"{123:020}.avro.tmp").write_bytes(b"the beginning of a snapshot")
    with files.start() as gateway:
        before = values(gateway)
        assert len(before) == 48
        publish_rounds(gateway, range(8, 10))
        assert gateway.stop() == 0
    assert build_snapshot(journal).returncode == 0
    assert list(folder.glob("*.tmp")) == []
    assert recovered_state(journal) == recovered_state(journal, snapshots=False)


def test_only_one_process_builds_a_snapshot(files: GatewayFolder, journal: Path) -> None:
    """A build that a killed gateway left running is not disturbed by another, which would write to the same file."""
    files.configure(journal=SMALL_SEGMENTS)
    with files.start() as gateway:
        publish_rounds(gateway, range(2))
        assert gateway.stop() == 0
    under_way = journal / "snapshots" / f"{60:020}.avro.tmp"
    under_way.write_bytes(b"half")
    lock = OsDisk().lock(str(journal / "snapshots" / "lock"))
    second = build_snapshot(journal)
    assert (second.returncode, second.stderr.count("\n"), second.stderr.startswith(f"{journal}: ")) == (1, 1, True)
    assert under_way.read_bytes() == b"half"
    os.close(lock)
    assert build_snapshot(journal).returncode == 0


def test_time_goes_on_behind_what_a_snapshot_leaves_out(tmp_path: Path) -> None:
    """A delete that is neither owed nor retained is not in the snapshot, but its time is. So no later record gets an earlier time."""

    def opened() -> Journal:
        return Journal.open(tmp_path, OsDisk(), JournalSettings(), bytes(16))

    stored = opened()
    assert list(stored.recover()) == []
    late_us = NOW_US + 10**12
    stored.write(
        stored.encode([change(1), change(2, b"X/A", b""), change(3, b"X/A", b"", deleted=True, at_us=late_us)])
    )
    stored.close()
    assert build_snapshot(tmp_path, "604800", "0", "1").returncode == 0
    again = opened()
    assert [record.accepted_at_us for record in again.recover()] == [NOW_US + 1000]
    assert (again.head, again.accepted_at_us) == (3, late_us)
    again.close()


@pytest.mark.parametrize("archive", [True, False])
def test_a_damaged_snapshot_is_never_believed(files: GatewayFolder, journal: Path, archive: bool) -> None:
    """With the archive an older state and the segments after it give the same values, loudly; without it there is no start."""
    files.configure(journal=SMALL_SEGMENTS)
    with files.start() as gateway:
        publish_rounds(gateway, range(4))
        expected = values(gateway)
        assert gateway.stop() == 0
    path = Path(build_snapshot(journal).stdout.strip())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if archive:
        with files.start() as gateway:
            assert values(gateway) == expected
            assert "snapshot-damaged" in gateway.log()
            assert str(path) in gateway.log()
        return
    for segment in (journal / "segments").glob("*.avro"):
        segment.unlink()
    assert re.search(re.escape(str(path)) + r": byte \d+: .*at stake: all values up to revision", refused(files))


# what is synced before anybody is answered


@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: what reaches the disk was NOT shown"
)
def test_the_receipt_leaves_after_the_sync(files: GatewayFolder, tmp_path: Path) -> None:
    """For each SEND the kernel writes the block, returns from fdatasync, then sends the RECEIPT. A roll syncs file and folder."""
    files.configure(journal=SMALL_SEGMENTS)
    trace = tmp_path / "trace"
    calls = "pwrite64,fdatasync,fsync,sendto,sendmsg,write,rename,renameat,openat,close,ftruncate"
    with files.start() as gateway, gateway.client() as client:
        assert client.send(b"X/A", b"warm") == b"accepted"
        strace = subprocess.Popen(
            ["strace", "-f", "-yy", "-tt", "-e", f"trace={calls}", "-o", str(trace), "-p", str(gateway.process.pid)],
            stderr=subprocess.PIPE,
        )
        assert strace.stderr is not None
        line = strace.stderr.readline().decode()
        if "attached" not in line:
            strace.wait()
            pytest.skip(f"strace may not attach here, what reaches the disk was NOT shown: {line}")
        for number in range(20):
            assert client.send(b"X/A", b"%d" % number + bytes(10_000)) == b"accepted"
        strace.send_signal(signal.SIGINT)
        strace.wait()
        strace.stderr.close()
    events = list(_events(trace.read_text().splitlines()))
    written = synced = receipts = 0
    for event in events:
        if event == "block written":
            written += 1
        elif event == "block synced":
            synced = written
        elif event == "sent":
            receipts += 1
            assert synced == written, events
    assert receipts >= 20
    rolls = [place for place, event in enumerate(events) if event == "renamed"]
    assert rolls
    for place in rolls:
        assert events[place - 1] == "file synced"  # with its end mark, before it gets its final name
        assert events[place + 1] == "folder synced"


def _events(lines: list[str]) -> Iterator[str]:
    """Translate strace's lines into calls in the order of their return, but sends in the order of their start."""
    started: dict[str, str] = {}
    for line in lines:
        pid, _, call = line.split(None, 2)
        if call.endswith("<unfinished ...>"):
            started[pid] = call
            if not call.startswith("sendto"):
                continue
        elif call.startswith("<..."):
            call = started.pop(pid, "")
            if call.startswith("sendto"):
                continue  # reported when it began
        name, _, arguments = call.partition("(")
        on_segment = ".open.avro>" in arguments
        if name == "pwrite64" and on_segment:
            yield "block written"
        elif name == "fdatasync" and on_segment:
            yield "block synced"
        elif name == "fsync" and on_segment:
            yield "file synced"
        elif name == "fsync" and "/segments>" in arguments:
            yield "folder synced"
        elif name in {"rename", "renameat"} and ".open.avro" in arguments:
            yield "renamed"
        elif name in {"sendto", "sendmsg"} and "TCP" in arguments:
            yield "sent"


def test_the_archive_stays_within_its_bytes_while_clients_publish(
    files: GatewayFolder, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old segments go by themselves, what is left begins later and has no hole, and a start comes to the same values."""
    hurried = "import maxam.gateway.snapshot as s; s._LOOK_S = 0.1; s._EXPIRE_LOOK_S = 0.1; "
    monkeypatch.setattr(gateway_process, "RUN", hurried + gateway_process.RUN)
    files.configure(journal=f"{SMALL}\nsnapshot_segments = 2\nretention_bytes_max = 1")
    with files.start() as gateway:
        for number in range(60):
            publish_rounds(gateway, range(number, number + 1))
            if "archive-expired" in gateway.log():
                break
        wait_for(lambda: "archive-expired" in gateway.log())
        before = values(gateway)
        gateway.kill()
    segments = sorted(path.name for path in (journal / "segments").glob("*-*.avro"))
    assert int(segments[0][:20]) > 1
    assert all(int(a[21:41]) + 1 == int(b[:20]) for a, b in pairwise(segments))
    with files.start() as gateway:
        assert values(gateway) == before
