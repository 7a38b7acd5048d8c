"""Warnings to operators when the broker holds much for its clients."""

from dataclasses import replace

import pytest

from maxam.config import Limits
from maxam.gateway.holdings import Holdings
from maxam.gateway.holdings_watch import HoldingsWatch
from tests.unit.gateway.test_peer import SMALL, crowd, join


def codes(watch: HoldingsWatch) -> list[str]:
    """Return the codes of health."""
    return [reason.partition(":")[0] for reason in watch.degraded()]


def test_closed_connections_are_reported_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Connections closed for unfinished frames are one event and a line in health, until a minute has passed without."""
    limits = replace(SMALL, frames_unfinished_bytes_max=1)
    world = crowd(limits)
    holdings = Holdings(limits)
    watch = HoldingsWatch(holdings)
    watch.look(world.now_s)
    assert codes(watch) == []
    clients = [join(world, holdings, "anna") for _ in range(4)]
    for client in clients:
        client.write(b"SEND\ndestination:X/a\n\n" + b"v" * 19_000)
    assert holdings.frames_closed == 3
    watch.look(world.now_s)
    watch.look(world.now_s + 1)
    assert codes(watch) == ["frames-unfinished"]
    watch.look(world.now_s + 61)
    assert codes(watch) == []
    assert len(caplog.records) == 2


def test_pending_receipts_are_reported_until_half_have_left(caplog: pytest.LogCaptureFixture) -> None:
    """RECEIPTs that wait beyond their limit are one event and a line in health, until there are half as many."""
    holdings = Holdings(Limits(receipts_pending_total_bytes_max=1000))
    watch = HoldingsWatch(holdings)
    for pending, told in ((999, []), (1, ["receipts-pending"]), (-400, ["receipts-pending"]), (-200, [])):
        holdings.count_receipts(pending)
        watch.look(100.0)
        assert codes(watch) == told
    assert len(caplog.records) == 2


def test_reading_stops_for_all_and_goes_on() -> None:
    """No connection is read from while reading is stopped, whatever waits for it and whatever is counted meanwhile."""
    world = crowd(SMALL)
    holdings = Holdings(SMALL)
    clients = [join(world, holdings, "anna") for _ in range(2)]
    holdings.stop_reading(True)
    assert not any(client.peer.receiving for client in clients)
    holdings.count_receipts(0)
    assert not any(client.peer.receiving for client in clients)
    holdings.stop_reading(False)
    assert all(client.peer.receiving for client in clients)


def test_frames_that_come_too_slowly_are_closed_by_the_look(caplog: pytest.LogCaptureFixture) -> None:
    """A frame that is held open is closed without anything else happening on its connection."""
    world = crowd(SMALL)
    holdings = Holdings(SMALL)
    watch = HoldingsWatch(holdings)
    client = join(world, holdings, "anna")
    client.write(b"SEND\ndestination:X/a\n\nv")
    for _ in range(30):
        watch.look(world.now_s)
        assert client.peer.end == ""
        world.now_s += 1
    watch.look(world.now_s)
    assert client.peer.end == "error: frame too slow"
    assert holdings.frames_slow == 1
    assert holdings.frames_bytes == 0
    assert not caplog.records
