"""The gateway's process that builds snapshots, when it is begun and with which priority."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from maxam.broker.broker import Broker
from maxam.config import JournalSettings, Limits
from maxam.content import pack
from maxam.gateway import snapshot
from maxam.gateway.snapshot import Snapshots, changes_max, segments_since_snapshot
from maxam.journal.disk import Disk, OsDisk
from maxam.journal.files import Journal
from maxam.journal.files import JournalSettings as FileSettings
from maxam.journal.names import list_snapshots, sealed_segments
from maxam.records import Change, Identity, Validation
from tests.support.sans_io import World

pytestmark = pytest.mark.slow

_SEGMENTS: Final = 2  # `snapshot_segments`
_TIMEOUT_S: Final = 240.0
_WHO: Final = Identity("p", "ab" * 32)
_CHECKED: Final = Validation("datum", "X", "1.0", bytes(8))


def _change(journal: Journal) -> Change:
    """Add a change to the open segment."""
    revision = journal.head + 1
    change = Change(revision, revision, b"X/a", False, _WHO, _CHECKED, *pack((), b"v"))
    journal.write(journal.encode([change]))
    return change


def _seal(journal: Journal, count: int) -> None:
    """Add segments of one change each."""
    for _ in range(count):
        _change(journal)
        journal.seal()


@asynccontextmanager
async def _building(
    folder: Path, monkeypatch: pytest.MonkeyPatch, broker: Broker | None = None
) -> AsyncIterator[Journal]:
    """Give a journal whose snapshots are built meanwhile, and with a broker of its changes sealed for them."""
    monkeypatch.setattr(snapshot, "_FULL_LOOK_S", 0.05)
    monkeypatch.setattr(snapshot, "_LOOK_S", 3600.0)  # only what was sealed begins a build
    journal = Journal.open(folder, OsDisk(), FileSettings(durable=False, reserve_bytes=0), bytes(16))
    try:
        list(journal.recover())
        settings = JournalSettings(folder=folder, snapshot_segments=_SEGMENTS)
        seal = None if broker is None else journal.seal
        snapshots = Snapshots(settings, Limits(), broker or World.make().broker, lambda: False, lambda: 1, seal)
        with trio.fail_after(_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(snapshots.run)
                yield journal
                nursery.cancel_scope.cancel()
    finally:
        journal.close()


async def _snapshot_at(folder: Path, revision: int) -> None:
    while [found for found, _ in list_snapshots(f"{folder}/snapshots", OsDisk())][-1:] != [revision]:  # noqa: ASYNC110 - of another process
        await trio.sleep(0.02)


async def _build_begun(but: int = 0) -> int:
    """Wait for a process of ours that builds snapshots, other than one; return its id."""
    while not (found := _builds() - {but}):  # noqa: ASYNC110 - as above
        await trio.sleep(0.01)
    return found.pop()


def _builds() -> set[int]:
    """Return our processes that build snapshots."""
    children = {int(child) for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()}
    return {child for child in children if b"maxam.gateway.snapshot" in Path(f"/proc/{child}/cmdline").read_bytes()}


def test_enough_sealed_segments_begin_a_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway checks for other reasons an hour later."""
    looks: list[int] = []

    def counted(folder: str, disk: Disk) -> int:
        looks.append(segments_since_snapshot(folder, disk))
        return looks[-1]

    async def run() -> None:
        monkeypatch.setattr(snapshot, "segments_since_snapshot", counted)
        async with _building(tmp_path, monkeypatch) as journal:
            _seal(journal, _SEGMENTS - 1)
            while looks[-1:] != [_SEGMENTS - 1]:  # noqa: ASYNC110 - of another thread
                await trio.sleep(0.02)
            assert not _builds()
            assert list_snapshots(f"{tmp_path}/snapshots", OsDisk()) == []
            _seal(journal, 1)
            await _snapshot_at(tmp_path, _SEGMENTS)
            assert len(list_snapshots(f"{tmp_path}/snapshots", OsDisk())) == 1

    trio.run(run)


def test_a_build_that_starves_is_started_again_with_our_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process stands for one that gets no time. It is ended, and the next one is urgent."""

    async def run() -> None:
        async with _building(tmp_path, monkeypatch) as journal:
            _seal(journal, _SEGMENTS)
            starved = await _build_begun()
            os.kill(starved, signal.SIGSTOP)
            assert not _urgent(starved)
            _seal(journal, _SEGMENTS)
            urgent = await _build_begun(but=starved)
            os.kill(urgent, signal.SIGSTOP)
            assert _urgent(urgent)
            os.kill(urgent, signal.SIGCONT)
            await _snapshot_at(tmp_path, 2 * _SEGMENTS)

    trio.run(run)


def test_changes_that_a_start_would_have_to_read_begin_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their segment is sealed for it, once: the changes after it stay in the open segment until they are as many again."""
    looks = 0

    def few(topics: int) -> int:
        nonlocal looks
        looks += 1
        return 5 * topics

    async def run() -> None:
        nonlocal looks
        monkeypatch.setattr(snapshot, "changes_max", few)
        broker = World.make().broker
        async with _building(tmp_path, monkeypatch, broker) as journal:
            for revision in (6, 12):
                while journal.head < revision - 1:
                    broker.replay(_change(journal))
                looks = 0
                while looks < 5:  # noqa: ASYNC110 - of another task
                    await trio.sleep(0.01)
                assert len(sealed_segments(tmp_path, OsDisk())) == revision // 6 - 1
                broker.replay(_change(journal))
                await _snapshot_at(tmp_path, revision)

    trio.run(run)


def test_a_build_that_starves_is_urgent_after_three_times_the_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came meanwhile are sealed for the next build, however few segments there are."""

    async def run() -> None:
        monkeypatch.setattr(snapshot, "changes_max", lambda _: 5)
        broker = World.make().broker
        async with _building(tmp_path, monkeypatch, broker) as journal:
            for _ in range(6):
                broker.replay(_change(journal))
            starved = await _build_begun()
            os.kill(starved, signal.SIGSTOP)
            assert not _urgent(starved)
            for _ in range(10):
                broker.replay(_change(journal))
            assert _urgent(await _build_begun(but=starved))
            await _snapshot_at(tmp_path, 16)
            assert len(list_snapshots(f"{tmp_path}/snapshots", OsDisk())) == 1

    trio.run(run)


def test_a_start_takes_three_seconds_at_most_or_snapshots_write_what_they_may() -> None:
    """By the costs of a start that were measured, with any number of topics."""
    for topics in range(0, 3_000_000, 1000):
        changes = changes_max(topics)
        start_s = 0.6 + topics * 2.0e-6 + changes * 2.8e-6
        assert start_s <= 2.7 or topics - 4 < 4 * changes <= topics
        assert changes > 150_000  # so that no segment is sealed small for it


def _urgent(process: int) -> bool:
    return b"\0urgent\0" in Path(f"/proc/{process}/cmdline").read_bytes()
