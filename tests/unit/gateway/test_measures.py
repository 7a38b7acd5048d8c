"""Measurements for /metrics: histograms, the loop's lag, the journal's size, totals that outlive what they count."""

import os
from pathlib import Path

import pytest
import trio
import trio.testing

from maxam.gateway.journal_size import JournalSize, measure
from maxam.gateway.loop_lag import LoopLag
from maxam.metrics import Counters, Histogram
from tests.support.living_gateway import Living, Site, living, until


def test_a_histogram_counts_each_observation_once() -> None:
    """In the first bucket whose bound is not below it; what is above all bounds in the last."""
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.11, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == pytest.approx(8.21)


def test_results_of_rejected_sends_are_counted_by_their_code() -> None:
    """Each code by itself."""
    counters = Counters()
    for result in ("no-rule", "conflict", "no-rule"):
        counters.reject(result)
    assert counters.rejected == {"no-rule": 2, "conflict": 1}


def test_a_loop_that_is_held_is_late_by_that() -> None:
    """A measurement that comes when it is due is in the lowest bucket. One that had to wait is in the bucket of its delay."""
    clock = trio.testing.MockClock()

    async def test() -> None:
        lag = LoopLag()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lag.run)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(0.1)
            await trio.testing.wait_all_tasks_blocked()
            assert lag.histogram.counts[0] == 1
            clock.jump(0.1 + 0.3)
            await trio.testing.wait_all_tasks_blocked()
            assert lag.histogram.counts[lag.histogram.bounds.index(0.5)] == 1
            assert lag.histogram.sum == pytest.approx(0.3)
            nursery.cancel_scope.cancel()

    trio.run(test, clock=clock)


def test_the_journals_size_is_told_by_part(tmp_path: Path) -> None:
    """Segments with the open one, snapshots, and everything else; the newest snapshot is that of the highest revision."""
    sealed, opened = f"segments/{1:020}-{9:020}.avro", f"segments/{10:020}.open.avro"
    for name, size in (
        (sealed, 10),
        (opened, 4),
        ("segments/x", 1),
        ("snapshots/lock", 1),
        ("rejected/1", 3),
        ("reserve", 100),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
    for revision, at_s in ((7, 200), (30, 100)):
        path = tmp_path / "snapshots" / f"{revision:020}.avro"
        path.write_bytes(bytes(2))
        os.utime(path, (at_s, at_s))
    found = measure(tmp_path)
    assert found.bytes_of == {"segments": 15, "snapshots": 5, "rejected": 3, "other": 100}
    assert found.segments == 2
    assert found.snapshot_at_s == 100


def test_a_journal_that_cannot_be_looked_at_is_not_an_empty_one(tmp_path: Path) -> None:
    """A failure is reported, so that the last size stays; a folder that is not there yet is empty."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        measure(tmp_path / "file")
    assert measure(tmp_path / "none") == JournalSize(tmp_path).found


@pytest.mark.slow
def test_totals_outlive_what_they_count(tmp_path: Path) -> None:
    """Bytes, frames and conflated changes of connections and subscriptions that are gone stay; refused ones are counted by stage."""

    async def totals(gateway: Living) -> tuple[int, int, int, int]:
        traffic = gateway.gateway.clients.traffic
        await traffic.gather()
        return traffic.bytes_received, traffic.bytes_sent, traffic.frames, traffic.conflated

    async def test() -> None:
        async with living(Site(tmp_path, "anna", "bert")) as gateway:
            traffic = gateway.gateway.clients.traffic
            async with gateway.client("anna") as anna:
                async with gateway.client("bert", "b") as bert:
                    await bert.subscribe("X/a", ack=b"client", durable=True)
                    await anna.send("X/a", b"1")
                    while (await bert.frame()).command != b"MESSAGE":
                        pass
                    for value in (b"2", b"3", b"4"):  # owed once while the first is not acknowledged
                        await anna.send("X/a", value)
                    living_totals = await totals(gateway)
                    assert living_totals[2] == 7  # CONNECT twice, SUBSCRIBE, SEND four times
                    assert living_totals[3] == 2
                    assert (traffic.connected, traffic.connecting, traffic.accepted) == (2, 0, 2)
                    await bert.write(b"UNSUBSCRIBE\nid:s\ndurable:true\nreceipt:u\n\n\0")
                await until(lambda: len(gateway.gateway.connections) == 1)
                await until(lambda: ("bert", "b") not in gateway.gateway.broker.sessions)
            await until(lambda: not gateway.gateway.connections)
            gone = await totals(gateway)
            assert gone[0] > living_totals[0]
            assert gone[1:3] >= living_totals[1:3]
            assert gone[3] == 2
            assert traffic.connected == 0
            assert traffic.first_expiry_s == 0.0
            stream = await trio.open_tcp_stream(*gateway.gateway.address)
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: traffic.refused["handshake"] == 1)
            await stream.aclose()
            async with await gateway.dial("anna"):
                await until(lambda: len(gateway.gateway.connections) == 1)
            await until(lambda: traffic.refused["connect"] + traffic.refused["handshake"] == 2)
            assert traffic.accepted == 2

    trio.run(test)
