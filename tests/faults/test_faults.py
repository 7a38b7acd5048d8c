"""A real gateway whose disk fails, hangs or fills up, whose memory runs short and whose clock jumps."""

import json
import random
import resource
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from errno import EIO, EMFILE, ENOSPC
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from maxam.gateway.commit_loop import EXIT_DISK
from maxam.journal.disk import OsDisk
from maxam.journal.replay import read_sealed
from maxam.records import Change
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from tests.faults.fault_sweep import FAULTS, run
from tests.faults.injection import ALL_CALLS, Calls, Effect, Forks, build, monotonic_s, require_compiler
from tests.support.gateway_folder import BlockingClient, GatewayFolder
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

HOUR_S = 3600


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library that makes calls fail."""
    return build(tmp_path_factory.mktemp("injector"), require_compiler())


@pytest.fixture
def forks(tmp_path: Path, library: Path) -> Iterator[Forks]:
    """Gateways that have not run yet."""
    with Forks(GatewayFolder(tmp_path), library) as forks:
        yield forks


def ready(forks: Forks) -> tuple[int, dict[str, Any]]:
    """Ask /readyz."""
    certificates = forks.files.folder / "certs"
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "operator.pem", certificates / "operator.key")
    url = f"https://localhost:{forks.admin_port}/readyz"
    try:
        with urllib.request.urlopen(url, context=context, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def send(client: BlockingClient, topic: bytes, body: bytes) -> tuple[bytes, bytes]:
    """SEND and return disposition and result."""
    client.write(encoder.send(VERSION_1_2, topic, body, receipt_id=b"r"))
    headers = client.frame().headers
    return headers[b"disposition"], headers.get(b"result", b"")


def resume(client: BlockingClient) -> bytes:
    """Subscribe durably to X/**; return whether that was known."""
    client.write(encoder.subscribe(VERSION_1_2, b"d", b"X/**", b"client", durable=True, receipt_id=b"resume"))
    return client.frame().headers[b"result"]


def stop(forks: Forks) -> None:
    """Stop the gateway gracefully."""
    forks.signal(signal.SIGTERM)
    assert forks.wait()[0] == 0, forks.log()[-2000:]


def test_no_promise_is_broken_by_a_failing_disk(tmp_path: Path, library: Path) -> None:
    """At call after call: see `fault_sweep`. `make fault-sweep N=2000` does all of them."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    names = {fault.name for fault in FAULTS} - {"no-files"}  # which waits for segment after segment
    # how soon it ends is measured where nothing else runs
    totals = run(tmp_path, library, seed, calls=30, step=8, names=names, period=4, exit_within_s=PATIENCE_S)
    assert all(totals.struck[name] >= 3 for name in names), totals


def test_a_disk_that_hangs_does_not_hold_the_stop(forks: Forks) -> None:
    """SIGTERM ends the process with the exit code of a failed disk, though a sync never returns; what was promised is there afterwards."""
    forks.files.configure(limits="stop_timeout_s = 1")
    forks.start()
    with forks.client() as publisher:
        assert send(publisher, b"X/A", b"1") == (b"accepted", b"")
        forks.control.arm_now(Effect.HANG, Calls.SYNC)
        publisher.write(encoder.send(VERSION_1_2, b"X/B", b"2", receipt_id=b"hung"))
        while forks.control.struck == 0:
            pass
        forks.signal(signal.SIGTERM)
        assert forks.wait()[0] == EXIT_DISK
    assert "stop-overdue" in forks.log()
    forks.control.disarm()
    forks.start()
    with forks.client() as client:
        assert send(client, b"X/A", b"3") == (b"accepted", b"")
    stop(forks)


def test_a_disk_that_hangs_stops_what_needs_it_and_nothing_else(forks: Forks) -> None:
    """While a sync hangs no RECEIPT has `accepted`; values that are on the disk are delivered, and clients connect. Then all is answered."""
    forks.start()
    with forks.client() as publisher, BlockingClient(forks.port, forks.files.folder / "certs", "subscriber") as reader:
        reader.write(encoder.connect("MAXVAPI", window=1))
        assert reader.frame().command == b"CONNECTED"
        reader.write(encoder.subscribe(VERSION_1_2, b"s", b"X/**", b"client", receipt_id=b"r"))
        assert reader.frame().command == b"RECEIPT"
        for number in range(3):
            assert send(publisher, b"X/A.%d" % number, b"1") == (b"accepted", b"")
        message = reader.frame()
        forks.control.arm_now(Effect.HANG, Calls.SYNC)
        publisher.write(encoder.send(VERSION_1_2, b"X/B", b"2", receipt_id=b"hung"))
        while forks.control.struck == 0:
            pass
        for _ in range(2):  # the window is one: each of these was not on its way
            reader.write(encoder.ack(VERSION_1_2, b"s", message.headers[b"message-id"]))
            message = reader.frame()
            assert message.body == b"1"
        reader.write(encoder.ack(VERSION_1_2, b"s", message.headers[b"message-id"]))
        with forks.client("operator") as other:
            other.write(encoder.unsubscribe(VERSION_1_2, b"none", receipt_id=b"there"))
            assert other.frame().headers[b"receipt-id"] == b"there"
        forks.control.disarm()
        assert publisher.frame().headers[b"disposition"] == b"accepted"
        assert reader.frame().body == b"2"
    stop(forks)


@pytest.mark.parametrize(("effect", "error"), [(Effect.FAIL, ENOSPC), (Effect.FAIL, EIO), (Effect.HALVE, 0)])
def test_a_snapshot_that_fails_costs_nothing(forks: Forks, effect: Effect, error: int) -> None:
    """If any call of building one fails, the next start has every value, and so has the next snapshot."""
    forks.files.configure(journal="segment_bytes_max = 65536")
    expected = {b"X/S.%d" % n: b"%d" % n + bytes(9000) for n in range(12)}
    forks.start()
    with forks.client() as publisher:
        for topic, body in expected.items():
            assert publisher.send(topic, body) == b"accepted"
    stop(forks)
    call, codes = 0, set[int]()
    while call == 0 or forks.control.struck:
        call += 1
        for snapshot in (forks.journal / "snapshots").glob("*.avro"):
            snapshot.unlink()
        forks.control.watch(forks.journal)
        forks.control.arm(call, effect, Calls.WRITE if effect is Effect.HALVE else ALL_CALLS, error=error)
        code = forks.build_snapshot()
        codes.add(code)
        assert code in {0, 1}, forks.log()[-2000:]
    forks.control.disarm()
    assert call > 5
    assert codes == ({0} if effect is Effect.HALVE else {0, 1})
    forks.start()
    with forks.client("operator") as operator:
        assert operator.values(b"X/**", 12) == expected
    stop(forks)


def test_low_memory_is_a_state(forks: Forks) -> None:
    """SENDs are refused with `memory-low`, /readyz has the reason, reads and ACKs go on; when topics are deleted, service resumes by itself."""
    forks.start()
    used = int(Path(f"/proc/{forks.pid}/statm").read_text().split()[1]) * resource.getpagesize()
    stop(forks)
    forks.files.configure(limits=f"memory_bytes_max = {used + 48 * 2**20}")
    forks.start()
    with forks.client() as publisher, forks.client("subscriber", "me") as reader, forks.client("operator") as operator:
        assert resume(reader) == b"created"
        assert send(publisher, b"X/small", b"1") == (b"accepted", b"")
        small = reader.frame()
        answer, number = (b"accepted", b""), 0
        while answer == (b"accepted", b""):
            assert number < 200, "nothing was refused"
            number += 1
            answer = send(publisher, b"X/M.%d" % number, bytes(2**20))
        assert answer == (b"rejected-unavailable", b"memory-low")
        status, told = ready(forks)
        assert (status, [reason.partition(":")[0] for reason in told["reasons"]]) == (503, ["memory-low"])
        assert operator.values(b"X/small", 1) == {b"X/small": b"1"}
        reader.write(encoder.ack(VERSION_1_2, b"d", small.headers[b"message-id"], b"acked"))
        while reader.frame().headers.get(b"receipt-id") != b"acked":
            pass
        for gone in range(1, number):
            assert send(publisher, b"X/M.%d" % gone, b"") == (b"accepted", b"")
        deadline_s = monotonic_s() + PATIENCE_S
        while (answer := send(publisher, b"X/again", b"2")) != (b"accepted", b""):
            assert answer[1] == b"memory-low"
            assert monotonic_s() < deadline_s, forks.log()[-2000:]
        assert ready(forks)[0] == 200
    stop(forks)
    log = forks.log()
    assert (log.count("error memory-low "), log.count("warning memory-low-ended ")) == (1, 1)


def test_a_disk_that_hangs_fills_no_memory(forks: Forks) -> None:
    """SENDs without receipt wait for the disk in memory up to the limit; the next are refused, and what waited is stored in the end."""
    forks.start()
    used = int(Path(f"/proc/{forks.pid}/statm").read_text().split()[1]) * resource.getpagesize()
    stop(forks)
    forks.files.configure(limits=f"memory_bytes_max = {used + 48 * 2**20}")
    forks.start()
    with forks.client() as publisher:
        forks.control.arm_now(Effect.HANG, Calls.SYNC)
        for number in range(64):
            publisher.write(encoder.send(VERSION_1_2, b"X/H.%d" % (number % 8), b"%d " % number + bytes(2**20)))
        deadline_s = monotonic_s() + PATIENCE_S
        while "memory-low" not in [reason.partition(":")[0] for reason in ready(forks)[1].get("reasons", ())]:
            assert monotonic_s() < deadline_s
        with forks.client("operator") as other:  # whose RECEIPT waits for no SEND before it
            assert send(other, b"X/H", b"refused") == (b"rejected-unavailable", b"memory-low")
        forks.control.disarm()
        while send(publisher, b"X/H", b"there is room") != (b"accepted", b""):
            assert monotonic_s() < deadline_s
    with forks.client("operator") as operator:
        assert operator.values(b"X/H", 1) == {b"X/H": b"there is room"}
    stop(forks)


def test_a_process_without_files_to_open_goes_on(forks: Forks) -> None:
    """When no file can be opened for the next segment SENDs are refused, and accepted again when one can; nothing ends."""
    forks.files.configure(journal="segment_bytes_max = 65536")
    forks.start()
    with forks.client() as publisher:
        assert send(publisher, b"X/A", b"1") == (b"accepted", b"")
        forks.control.arm_now(Effect.FAIL, Calls.MAKE, error=EMFILE, length=2)
        answers = [send(publisher, b"X/B", bytes(10_000)) for _ in range(9)]
        # The descriptor that is kept for the next segment saves the first of the two failures.
        assert answers.count((b"rejected-unavailable", b"disk-full")) == 1
        assert set(answers) == {(b"accepted", b""), (b"rejected-unavailable", b"disk-full")}
    stop(forks)
    assert "Too many open files" in forks.log()


def test_a_clock_that_jumps_changes_no_order_and_ends_nothing(forks: Forks) -> None:
    """The clock jumps by hours. A jump ahead is followed by a start only, accepted-at never falls, and no session expires."""
    forks.files.configure(limits=f"session_expiry_s = {HOUR_S}")
    forks.control.move_clock(12 * HOUR_S)
    forks.start()
    with forks.client() as publisher:
        with forks.client("subscriber", "me") as reader:
            assert resume(reader) == b"created"
        assert send(publisher, b"X/A", b"1") == (b"accepted", b"")
        for hours in (18, 6, 30):
            forks.control.move_clock(hours * HOUR_S)
            assert send(publisher, b"X/A", b"%d" % hours) == (b"accepted", b"")
            with forks.client("subscriber", "me") as reader:
                assert resume(reader) == b"resumed"
                assert reader.frame().body == b"%d" % hours
        forks.signal(signal.SIGKILL)
        forks.wait()
    for hours in (1, 40, 2):
        forks.control.move_clock(hours * HOUR_S)
        forks.start()
        with forks.client("subscriber", "me") as reader, forks.client() as publisher:
            assert resume(reader) == b"resumed"
            assert reader.frame().headers[b"destination"] == b"X/A"
            assert send(publisher, b"X/A.%d" % hours, b"-") == (b"accepted", b"")
        stop(forks)
    changes = [record for record in read_sealed(forks.journal, OsDisk()) if isinstance(record, Change)]
    assert len(changes) == 7
    for earlier, later in pairwise(changes):
        assert earlier.revision < later.revision
        assert earlier.accepted_at_us <= later.accepted_at_us
    hours_apart = [round((later.accepted_at_us - changes[0].accepted_at_us) / 3.6e9) for later in changes]
    assert hours_apart == [0, 0, 0, 0, 0, 28, 28]
