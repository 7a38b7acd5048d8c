"""The tasks of the committer beside committing."""

import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from maxam.config import Limits
from maxam.gateway.commit_loop import COLLECT_CHANGES, ROOM_BYTES_MIN, ROOM_LOOK_S, SEAL_LOOK_S, CommitLoop
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.journal.names import sealed_segments
from tests.simulation.disk import SimulatedDisk
from tests.support.sans_io import World, receipts


@pytest.fixture
def collector_at_rest() -> Iterator[None]:
    """Python's collector does nothing by itself, as where each value takes the place of another."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_at_rest")
def test_stored_values_do_not_gather_among_the_youngest_objects(tmp_path: Path) -> None:
    """After N changes none that topics hold is among the objects that the next round of Python's collector visits. No value ever is."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # sockets that other tests in this process have left are not of this one

    async def commit() -> None:
        journal = Journal.open(tmp_path, OsDisk(), JournalSettings(durable=False), bytes(16))
        list(journal.recover())
        world = World.make()
        client = world.client()
        committer = CommitLoop(world.broker, journal, Limits())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            for n in range(COLLECT_CHANGES):
                client.send(f"X/a.{n}", kind=f"header of {n}")
            committer.schedule_commit()
            await committer.drained()
            nursery.cancel_scope.cancel()
        journal.close()
        stored = [topic.change for topic in world.broker.store.topics.values()]
        assert len(stored) == COLLECT_CHANGES
        youngest = {id(each) for each in gc.get_objects(generation=0)}
        assert not any(id(change) in youngest for change in stored)
        assert not any(gc.is_tracked(change.content) for change in stored)

    trio.run(commit)


def test_an_idle_journal_seals_its_segment(tmp_path: Path) -> None:
    """A segment that is old enough is sealed though no client does anything more."""

    async def idle() -> None:
        journal = Journal.open(tmp_path, OsDisk(), JournalSettings(segment_age_s_max=0, durable=False), bytes(16))
        list(journal.recover())
        world = World.make()
        committer = CommitLoop(world.broker, journal, Limits())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            world.client().send("X/a")
            committer.schedule_commit()
            await committer.drained()
            while not sealed_segments(tmp_path, OsDisk()):  # noqa: ASYNC110 - the work of another thread can only be polled
                await trio.sleep(SEAL_LOOK_S)
            nursery.cancel_scope.cancel()
        journal.close()

    trio.run(idle, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [segment.last for segment in sealed_segments(tmp_path, OsDisk())] == [1]


def test_a_segment_ages_by_the_time_of_its_changes(tmp_path: Path) -> None:
    """The machine's clock, which may be wrong, seals nothing."""
    clock = trio.testing.MockClock()

    async def idle() -> None:
        journal = Journal.open(tmp_path, OsDisk(), JournalSettings(durable=False), bytes(16))
        list(journal.recover())
        world = World.make()
        committer = CommitLoop(world.broker, journal, Limits(), wall_us=lambda: world.broker.accepted_at_us)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            world.client().send("X/a")
            committer.schedule_commit()
            await committer.drained()
            for _ in range(10):
                clock.jump(SEAL_LOOK_S)
                await trio.testing.wait_all_tasks_blocked()
                while not committer._blocks.empty():
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert not sealed_segments(tmp_path, OsDisk())
        journal.close()

    trio.run(idle, clock=clock)


def test_a_committer_is_alive_while_its_thread_is(tmp_path: Path) -> None:
    """Before it runs and after it there is nothing that writes."""

    async def live() -> None:
        journal = Journal.open(tmp_path, OsDisk(), JournalSettings(durable=False), bytes(16))
        list(journal.recover())
        committer = CommitLoop(World.make().broker, journal, Limits())
        alive = [committer.alive]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            await trio.testing.wait_all_tasks_blocked()
            alive.append(committer.alive)
            nursery.cancel_scope.cancel()
        alive.append(committer.alive)
        assert alive == [False, True, False]
        journal.close()

    trio.run(live)


def test_a_block_under_way_is_answered_before_the_end() -> None:
    """Cancelled while the disk is at work, the committer waits for it: what was written is acknowledged, what came later is not."""

    class SlowDisk(SimulatedDisk):
        """Syncs a segment when the test allows it."""

        def __init__(self) -> None:
            super().__init__()
            self.syncing = threading.Event()
            self.may_sync = threading.Event()

        def fdatasync(self, handle: int) -> None:
            self.syncing.set()
            self.may_sync.wait()
            super().fdatasync(handle)

    async def end() -> None:
        disk = SlowDisk()
        journal = Journal.open(Path("/journal"), disk, JournalSettings(), bytes(16))
        list(journal.recover())
        world = World.make()
        committer = CommitLoop(world.broker, journal, Limits())
        client = world.client()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            client.send("X/a", receipt="1")
            committer.schedule_commit()
            await trio.to_thread.run_sync(disk.syncing.wait)
            client.send("X/a", receipt="2")
            committer.schedule_commit()
            nursery.cancel_scope.cancel()
            disk.may_sync.set()
        assert receipts(client.read()) == [("1", "accepted")]
        assert not committer.group.writing
        assert not committer.alive
        journal.close()

    trio.run(end)


def test_a_full_disk_is_found_to_have_room_though_nobody_sends() -> None:
    """A client that waits for readiness before it sends does not wait for ever; less room than the block wanted is none."""

    async def wait() -> None:
        disk = SimulatedDisk()
        journal = Journal.open(Path("/journal"), disk, JournalSettings(reserve_bytes=4096), bytes(16))
        list(journal.recover())
        world = World.make()
        committer = CommitLoop(world.broker, journal, Limits())
        client = world.client()
        body = bytes(2 * ROOM_BYTES_MIN)

        def full() -> bool:
            return committer.group.disk_full

        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            used = sum(len(file.data) for file in disk.files.values())
            disk.capacity = used + 1000
            client.send("X/a", body, receipt="1")
            committer.schedule_commit()
            await committer.drained()
            assert full()
            disk.capacity = used + len(body) - 4096
            await trio.sleep(3 * ROOM_LOOK_S)
            await trio.to_thread.run_sync(lambda: None)
            assert full()
            disk.capacity = used + len(body) + 100_000
            while full():  # noqa: ASYNC110 - the work of another thread can only be polled
                await trio.sleep(ROOM_LOOK_S)
            client.send("X/a", body, receipt="2")
            committer.schedule_commit()
            await committer.drained()
            assert not full()
            nursery.cancel_scope.cancel()
        assert receipts(client.read()) == [("1", "rejected-unavailable"), ("2", "accepted")]
        journal.close()

    trio.run(wait, clock=trio.testing.MockClock(autojump_threshold=0))
