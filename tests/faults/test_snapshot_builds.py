"""The gateway's process that builds snapshots, when it is begun and with which priority."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from maxam.config import JournalSettings, Limits
from maxam.content import pack
from maxam.gateway import snapshot
from maxam.gateway.snapshot import Snapshots, segments_since_snapshot
from maxam.journal.disk import Disk, OsDisk
from maxam.journal.files import Journal
from maxam.journal.files import JournalSettings as FileSettings
from maxam.journal.names import list_snapshots
from maxam.records import Change, Identity, Validation
from tests.support.sans_io import World

pytestmark = pytest.mark.slow

_SEGMENTS: Final = 2  # `snapshot_segments`
_TIMEOUT_S: Final = 240.0
_WHO: Final = Identity("p", "ab" * 32)
_CHECKED: Final = Validation("datum", "X", "1.0", bytes(8))


def _seal(journal: Journal, count: int) -> None:
    """Add segments of one change each."""
    for _ in range(count):
        revision = journal.head + 1
        change = Change(revision, revision, b"X/a", False, _WHO, _CHECKED, *pack((), b"v"))
        journal.write(journal.encode([change]))
        journal.seal()


@asynccontextmanager
async def _building(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Journal]:
    """Give a journal whose snapshots are built meanwhile."""
    monkeypatch.setattr(snapshot, "_FULL_LOOK_S", 0.05)
    monkeypatch.setattr(snapshot, "_LOOK_S", 3600.0)  # only what was sealed begins a build
    journal = Journal.open(folder, OsDisk(), FileSettings(durable=False, reserve_bytes=0), bytes(16))
    try:
        list(journal.recover())
        settings = JournalSettings(folder=folder, snapshot_segments=_SEGMENTS)
        snapshots = Snapshots(settings, Limits(), World.make().broker, lambda: False, lambda: 1)
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


def _urgent(process: int) -> bool:
    return b"\0urgent\0" in Path(f"/proc/{process}/cmdline").read_bytes()
