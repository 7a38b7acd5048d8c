"""Notifications of the gateway to systemd."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from maxam.gateway.notify import StartProgress, keep_watchdog, notify, watchdog_interval_s


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager that has started us and wants to hear of us every 30 s."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(os.fspath(tmp_path / "notify"))
        receiving.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", os.fspath(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        yield receiving


def _heard(receiving: socket.socket) -> list[bytes]:
    heard = []
    while True:
        try:
            heard.append(receiving.recv(100))
        except BlockingIOError:
            return heard


def test_states_reach_the_service_manager(manager: socket.socket) -> None:
    """Each state is one datagram."""
    notify("READY=1")
    notify("STOPPING=1")
    assert _heard(manager) == [b"READY=1", b"STOPPING=1"]


def test_nobody_is_told_where_nobody_listens(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager that is gone, or was never there, hinders nothing."""
    manager.close()
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_a_long_start_has_its_time_out_extended(manager: socket.socket) -> None:
    """Each report asks for the same time from then on and shows how far the start is; reports in between are left out."""
    now_s = 50.0
    progress = StartProgress(lambda: now_s)
    for _ in range(12):
        progress.report(f"at {now_s:g}")
        now_s += 1
    heard = _heard(manager)
    assert [part.split(b"\n")[1] for part in heard] == [b"STATUS=at 50", b"STATUS=at 55", b"STATUS=at 60"]
    assert {part.split(b"\n")[0] for part in heard} == {b"EXTEND_TIMEOUT_USEC=300000000"}


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_told_twice_as_often_as_it_asks(environment: dict[str, str], interval_s: float | None) -> None:
    """Half of what it waits for; nothing if it does not ask, asks another process, or for what is no time."""
    assert watchdog_interval_s(environment, 7) == interval_s


def test_the_watchdog_hears_of_us_while_there_is_a_committer(manager: socket.socket) -> None:
    """The watchdog is notified at once and every 15 s. That pauses while the committer does not live."""
    alive = True

    async def run() -> None:
        nonlocal alive
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_watchdog, lambda: alive)
            await trio.sleep(31)
            assert _heard(manager) == [b"WATCHDOG=1"] * 3
            alive = False
            await trio.sleep(60)
            assert _heard(manager) == []
            alive = True
            await trio.sleep(15)
            assert _heard(manager) == [b"WATCHDOG=1"]
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_no_watchdog_costs_nothing(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the task ends at once."""
    monkeypatch.delenv("WATCHDOG_USEC")
    trio.run(keep_watchdog, lambda: True)
    assert _heard(manager) == []
