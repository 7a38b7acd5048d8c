"""Rejected SENDs: kept beside the broker, bounded for each principal and in all, and never in anybody's way."""

import errno
import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
import pytest

from maxam.avro.registry import load_registry
from maxam.config import JournalSettings, Limits
from maxam.gateway.rejects import RETRY_S, LossReport, RejectedEvent, RejectedSends, RejectedStore
from maxam.journal.rejects import RejectedSettings
from maxam.journal.verify import verify
from maxam.metrics import Counters
from maxam.records import Identity, Rejection
from maxam.stomp.events import Send
from tests.simulation.disk import SimulatedDisk
from tests.support.journal_records import ALICE, NOW_US, SYNC
from tests.support.sans_io import World, receipts

ROOT = "/journal"
FOLDER = f"{ROOT}/rejected"
SCHEMAS = {
    "registry.toml": b'[[rule]]\ndestination = "X/*.Count"\nschema = "n.Count_v1"\nencoding = "datum"\n',
    "n/Count_v1/1.0.avsc": b'{"type":"record","name":"Count_v1","namespace":"n","fields":[{"name":"n","type":"int"}]}',
}
JOIN_S = 60.0


class Gateway:
    """A broker without I/O whose rejected SENDs are stored on a simulated disk."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.world = World.make(
            limits=limits,
            schemas=SCHEMAS,
            anna={"send": ["X/**"], "receive": ["X/**"]},
            bob={"send": [], "receive": []},
        )
        self.disk = SimulatedDisk()
        self.disk.make_folder(ROOT)
        self.disk.make_folder(f"{ROOT}/segments")
        self.disk.make_folder(f"{ROOT}/snapshots")
        self.disk.make_folder(f"{ROOT}/schemas")
        settings = replace(self.world.settings, journal=JournalSettings(folder=Path(ROOT)))
        broker = self.world.broker
        self.rejects = RejectedSends(settings, self.disk, broker.counters, SYNC, lambda: NOW_US)
        broker.publishing.on_rejected = lambda identity, send, disposition, why, at_us: self.rejects.record(
            RejectedEvent(identity, send, disposition, why, broker.registry, at_us)
        )

    def stored(self) -> list[dict[str, Any]]:
        """Store all that waits, and read it back."""
        self.rejects.start()
        self.rejects.close(JOIN_S)
        return rows(self.disk)


def rows(disk: SimulatedDisk) -> list[dict[str, Any]]:
    """Read every rejected SEND with a reader that knows nothing of maxam."""
    assert all(report.problem is None for report in verify(ROOT, disk))
    found: list[dict[str, Any]] = []
    for path, data in sorted(disk.contents().items()):
        if path.startswith(FOLDER) and path.endswith(".avro"):
            found += [
                row for row in fastavro.reader(io.BytesIO(data)) if isinstance(row, dict) and row["kind"] != "end"
            ]
    return found


def event(body: bytes = b"?", disposition: bytes = b"rejected-invalid", destination: bytes = b"X/a") -> RejectedEvent:
    """Make a rejected SEND in the queue."""
    registry = load_registry(SCHEMAS)
    return RejectedEvent(
        ALICE, Send(destination, body, (), None), disposition, Rejection("no-rule", "why"), registry, NOW_US
    )


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log, from information up."""
    with caplog.at_level(logging.INFO, "maxam"):
        yield caplog


def events_of(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the events logged."""
    return [record.getMessage().split()[0] for record in log.records]


def test_every_rejected_send_becomes_a_record() -> None:
    """SENDs answered rejected-invalid or -unauthorised are stored, with a receipt or without; accepted ones are not."""
    gateway = Gateway()
    anna, bob = gateway.world.client("anna"), gateway.world.client("bob")
    anna.send("X/a.Count", b"\x02", receipt="good")
    anna.send("X/a.Count", b"\x02?", receipt="bad", trace="t-1")
    anna.send("X/a.Count", b"")
    anna.send("X/a.Other", b"!")
    anna.send("nonsense", b"!")
    bob.send("X/a.Count", b"secret", header="secret")
    bob.send("X/b.Count", b"", receipt="no")
    gateway.world.settle()
    assert [code for _, code in receipts(anna.read())] == ["accepted", "rejected-invalid"]
    assert [code for _, code in receipts(bob.read())] == ["rejected-unauthorised"]
    found = gateway.stored()
    assert [row["revision"] for row in found] == [1, 2, 3, 4, 5]
    assert [(row["publisher"], row["destination"], row["kind"], row["result"]) for row in found] == [
        ("anna", "X/a.Count", "value", "schema-mismatch"),
        ("anna", "X/a.Other", "value", "no-rule"),
        ("anna", "nonsense", "value", "invalid-destination"),
        ("bob", "X/a.Count", "value", "unauthorised"),
        ("bob", "X/b.Count", "delete", "unauthorised"),
    ]
    mismatch, other, nonsense, secret, delete = found
    assert mismatch["body"] == b"\x02?"
    assert mismatch["headers"] == [{"name": "trace", "value": "t-1"}]
    assert (mismatch["encoding"], mismatch["schema"], mismatch["schema_version"]) == ("datum", "n.Count_v1", "")
    assert mismatch["disposition"] == "rejected-invalid"
    assert mismatch["reason"]
    assert {(row["encoding"], row["schema"]) for row in (other, nonsense)} == {("none", "")}
    assert (secret["body"], delete["body"]) == (b"", b"")
    assert secret["disposition"] == "rejected-unauthorised"
    assert {header["name"]: header["value"] for header in secret["headers"]} == {
        "content-length": "6",
        "body-sha256": sha256(b"secret").hexdigest(),
    }
    assert b"secret" not in b"".join(gateway.disk.contents().values())
    counters = gateway.world.broker.counters
    assert (counters.rejects_stored, counters.rejects_failed) == (5, 0)
    assert (counters.rejects_over_rate, counters.rejects_over_queue) == (0, 0)


def test_a_send_refused_for_lack_of_memory_is_not_among_them() -> None:
    """A SEND answered rejected-unavailable was not judged, and is not stored."""
    gateway = Gateway(Limits(topics_max=1))
    anna = gateway.world.client("anna")
    anna.send("X/a.Count", b"\x02")
    gateway.world.settle()
    anna.send("X/b.Count", b"\x02", receipt="full")
    assert [code for _, code in receipts(anna.read())] == ["rejected-unavailable"]
    assert gateway.stored() == []


def test_one_bad_client_does_not_crowd_out_the_others(log: pytest.LogCaptureFixture) -> None:
    """Over its rate a principal's SENDs are counted and not stored, reported once; those of others are stored, and its own again later."""
    gateway = Gateway(Limits(rejected_principal_burst_bytes=3000, rejected_principal_bytes_per_s=100))
    anna, bob = gateway.world.client("anna"), gateway.world.client("bob")
    for _ in range(50):
        anna.send("X/none", b"!" * 44)
        gateway.world.wall_us += 10_000
    bob.send("X/none", b"!")
    counters = gateway.world.broker.counters
    assert counters.rejects_over_rate == 40
    assert counters.sends_invalid == 50
    assert events_of(log) == ["rejects-not-stored"]
    assert "principal=anna" in log.text
    gateway.world.wall_us += 120_000_000
    anna.send("X/none", b"again")
    assert events_of(log) == ["rejects-not-stored", "rejects-stored-again"]
    assert "lost=40" in log.text
    publishers = [row["publisher"] for row in gateway.stored()]
    assert publishers == ["anna"] * 10 + ["bob", "anna"]


def test_what_waits_for_the_disk_is_bounded(log: pytest.LogCaptureFixture) -> None:
    """More than the queue may hold, in records or in bytes, is counted and not stored, reported once; one SEND always finds room."""
    for limits, kept in (
        (Limits(rejected_queue_records_max=3), 3),
        (Limits(rejected_queue_bytes_max=3 * 1262), 3),
        (Limits(rejected_queue_bytes_max=1), 1),
    ):
        log.clear()
        gateway = Gateway(limits)
        anna = gateway.world.client("anna")
        for _ in range(10):
            anna.send("X/none", b"!" * 1000)
        assert gateway.world.broker.counters.rejects_over_queue == 10 - kept
        assert events_of(log) == ["rejects-not-stored"]
        assert len(gateway.stored()) == kept


def test_a_failing_disk_leaves_the_broker_untouched(log: pytest.LogCaptureFixture) -> None:
    """While no rejected SEND can be stored, SENDs are judged and answered as ever, and the losses are counted."""
    gateway = Gateway()
    gateway.disk.capacity = 0
    anna = gateway.world.client("anna")
    for number in range(20):
        anna.send("X/a.Count", b"\x02", receipt=f"good-{number}")
        anna.send("X/a.Count", b"\xff", receipt=f"bad-{number}")
    gateway.world.settle()
    assert [code for _, code in receipts(anna.read())] == ["accepted", "rejected-invalid"] * 20
    gateway.rejects.start()
    gateway.rejects.close(JOIN_S)
    assert gateway.world.broker.counters.rejects_failed == 20
    assert events_of(log) == ["rejected-journal-failed"]
    assert gateway.world.broker.committed_revision == 20


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_recovers_is_used_again(log: pytest.LogCaptureFixture, error: int) -> None:
    """After a failure at any call the disk is not used for a while. Then storing goes on with the next number. Both are reported once."""
    good = SimulatedDisk()
    good.make_folder(ROOT)
    RejectedStore(ROOT, good, RejectedSettings(), Counters(), SYNC).store([event()], 0.0)
    for at in range(2, good.calls + 1):
        log.clear()
        disk, counters = SimulatedDisk({at: error}), Counters()
        for folder in ("", "/segments", "/snapshots", "/schemas"):
            disk.files[ROOT + folder] = type(disk.files["/"])(folder=True)
        store = RejectedStore(ROOT, disk, RejectedSettings(), counters, SYNC)
        disk.calls = 1
        store.store([event(b"one")], 100.0)
        if not counters.rejects_failed:
            continue  # a failure concerns no other test
        calls = disk.calls
        store.store([event(b"two"), event(b"three")], 100.0 + RETRY_S - 1)
        store.tidy(100.0 + RETRY_S - 1, NOW_US)
        assert disk.calls == calls
        store.store([event(b"four")], 100.0 + RETRY_S)
        store.close()
        assert events_of(log) == ["rejected-journal-failed", "rejected-journal-works"]
        assert "lost=3" in log.text
        assert (counters.rejects_stored, counters.rejects_failed) == (1, 3)
        assert [row["body"] for row in rows(disk)][-1] == b"four"
        assert [row["revision"] for row in rows(disk)] in (
            [1],
            [1, 2],
        )  # what failed in the sync after it may be there


def test_a_disk_that_stays_full_is_told_once(log: pytest.LogCaptureFixture) -> None:
    """Tried again and again in vain, the failure is one event."""
    disk, counters = SimulatedDisk(capacity=0), Counters()
    disk.make_folder(ROOT)
    store = RejectedStore(ROOT, disk, RejectedSettings(), counters, SYNC)
    for attempt in range(5):
        store.store([event()], attempt * RETRY_S)
        store.tidy(attempt * RETRY_S, NOW_US)
    store.close()
    assert events_of(log) == ["rejected-journal-failed"]
    assert counters.rejects_failed == 5


def test_a_torn_tail_is_told(log: pytest.LogCaptureFixture) -> None:
    """The next start cuts off an unfinished record and logs it."""
    disk = SimulatedDisk()
    disk.make_folder(ROOT)
    RejectedStore(ROOT, disk, RejectedSettings(), Counters(), SYNC).store([event()], 0.0)
    path = f"{FOLDER}/{1:020}.open.avro"
    disk.put(path, disk.contents()[path][:-3])
    RejectedStore(ROOT, disk, RejectedSettings(), Counters(), SYNC).tidy(0.0, NOW_US)
    assert events_of(log) == ["rejected-tail-cut"]
    assert path in log.text


def test_a_hashed_body_costs_a_share_of_its_bytes() -> None:
    """An unauthorised SEND is charged less than an invalid one, and more with a large body: somebody has to hash it."""
    invalid, small, large = (
        event(b"x" * 64_000),
        event(b"x", b"rejected-unauthorised"),
        event(b"x" * 64_000, b"rejected-unauthorised"),
    )
    assert small.cost_bytes + 1000 == large.cost_bytes < invalid.cost_bytes == invalid.queued_bytes
    assert small.queued_bytes == large.queued_bytes - 4 < invalid.queued_bytes


def test_a_run_of_losses_is_told_at_its_ends() -> None:
    """The first loss is reported, the others counted until a minute without any; then the next is a first again."""
    losses = LossReport()
    minute_us = 60_000_000
    assert losses.ended(NOW_US) == 0
    assert losses.lost(NOW_US)
    assert not losses.lost(NOW_US + minute_us - 1)
    assert losses.ended(NOW_US + minute_us) == 0
    assert losses.ended(NOW_US + 2 * minute_us) == 2
    assert losses.ended(NOW_US + 2 * minute_us) == 0
    assert losses.lost(NOW_US + 2 * minute_us)


def test_the_rates_of_many_principals_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many principals, those below their rate are forgotten first. One over its rate stays so while there is room."""
    monkeypatch.setattr("maxam.gateway.rejects._PRINCIPALS_MAX", 2)
    gateway = Gateway(Limits(rejected_principal_burst_bytes=1, rejected_principal_bytes_per_s=1))
    rejects = gateway.rejects
    names = ["anna", "bob", "anna", "carol", "anna"]
    for name in names:
        send, registry = Send(b"X/a", b"!", (), None), gateway.world.broker.registry
        why = Rejection("r", "w")
        rejects.record(RejectedEvent(Identity(name, ""), send, b"rejected-invalid", why, registry, NOW_US))
    assert gateway.world.broker.counters.rejects_over_rate == 1  # carol took anna's place, who then took bob's
    assert len(gateway.stored()) == 4


def test_a_bug_in_the_thread_is_logged_and_ends_only_that(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any error while storing, the broker goes on and the log has a traceback."""
    gateway = Gateway()
    monkeypatch.setattr("maxam.gateway.rejects._records", lambda *_: 1 // 0)
    anna = gateway.world.client("anna")
    anna.send("X/none", b"!", receipt="r")
    gateway.rejects.start()
    gateway.rejects.close(JOIN_S)
    anna.send("X/none", b"!", receipt="r")
    assert len(receipts(anna.read())) == 2
    assert events_of(log) == ["internal-error"]
    assert "ZeroDivisionError" in log.text
