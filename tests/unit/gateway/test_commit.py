"""Group commit: what is a batch, and who is answered when."""

from pathlib import Path

import pytest

from maxam.errors import DiskFullError
from maxam.gateway.commit import REFUSED_DELAY_S, GroupCommit
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.link_config import LinkSettings
from tests.simulation.disk import SimulatedDisk
from tests.support.living_gateway import Site, living, run
from tests.support.sans_io import World, receipts


def _begin(folder: Path) -> tuple[World, GroupCommit, Journal]:
    world = World.make()
    journal = Journal.open(folder, OsDisk(), JournalSettings(durable=False), bytes(16))
    assert list(journal.recover()) == []
    return world, GroupCommit(world.broker, journal), journal


def test_one_block_at_a_time_and_what_came_meanwhile_is_the_next(tmp_path: Path) -> None:
    """No block is handed out while one is written, and no RECEIPT leaves before its block is durable."""
    world, group, journal = _begin(tmp_path)
    client = world.client()
    client.send("X/A", receipt="1")
    first = group.next_block(0.0)
    assert first is not None
    client.send("X/B", receipt="2")
    client.send("X/C", receipt="3")
    assert group.writing
    assert group.next_block(0.0) is None
    assert client.read() == []
    journal.write(first)
    group.written()
    assert receipts(client.read()) == [("1", "accepted")]
    second = group.next_block(0.0)
    assert second is not None
    journal.write(second)
    group.written()
    assert receipts(client.read()) == [("2", "accepted"), ("3", "accepted")]
    assert group.idle
    journal.close()


@pytest.mark.parametrize(("bytes_max", "blocks"), [(0, 1), (10_000, 5)])
def test_blocks_are_bounded_if_they_go_over_a_link(tmp_path: Path, bytes_max: int, blocks: int) -> None:
    """Operations that gathered while the disk was slow are written in several blocks."""
    world = World.make()
    how = JournalSettings(durable=False, block_bytes_max=bytes_max)
    journal = Journal.open(tmp_path, OsDisk(), how, bytes(16))
    assert list(journal.recover()) == []
    group, client = GroupCommit(world.broker, journal), world.client()
    for number in range(40):
        client.send(f"X/{number}", b"v" * 900)
    count = 0
    while (block := group.next_block(0.0)) is not None:
        count += 1
        journal.write(block)
        group.written()
    assert count == blocks
    journal.close()


def test_a_gateway_with_a_link_bounds_its_blocks(tmp_path: Path) -> None:
    """Those of one without a link are as large as ever."""

    async def test() -> None:
        for name, link in (("a", None), ("b", LinkSettings("127.0.0.1", 0))):
            (tmp_path / name).mkdir()
            async with living(Site(tmp_path / name), link=link) as gateway:
                group = gateway.gateway.committer.group
                assert (group._block_bytes_max > 0) == (link is not None)

    run(test)


def test_what_leaves_nothing_in_the_journal_needs_no_block(tmp_path: Path) -> None:
    """A transient SUBSCRIBE is committed at once when no block is being written."""
    world, group, journal = _begin(tmp_path)
    client = world.client()
    client.subscribe(receipt="s")
    assert client.read() == []
    assert group.next_block(0.0) is None
    assert group.idle
    assert [frame.headers[b"receipt-id"] for frame in client.read()] == [b"s"]
    journal.close()


def test_an_ack_is_recorded_on_a_full_disk_whatever_is_sent_beside_it() -> None:
    """While SENDs keep coming to a full disk, an ACK with receipt is recorded by itself, with the reserve."""
    world = World.make()
    disk = SimulatedDisk()
    journal = Journal.open(Path("/journal"), disk, JournalSettings(reserve_bytes=4096), bytes(16))
    assert list(journal.recover()) == []
    group = GroupCommit(world.broker, journal)

    def pump() -> None:
        block = group.next_block(world.now_s)
        if block is not None:
            try:
                journal.write(block)
            except DiskFullError:
                group.refused(world.now_s)
            else:
                group.written()

    client, publisher = world.client(client_id="me"), world.client()
    client.subscribe(durable=True)
    publisher.send("X/a")
    pump()
    (message,) = [frame for frame in client.read() if frame.command == b"MESSAGE"]
    disk.capacity = sum(len(file.data) for file in disk.files.values())
    publisher.send("X/b", receipt="0")
    client.ack(message, receipt="ack")
    for n in range(1, 5):
        publisher.send("X/b", receipt=str(n))
        pump()
    assert receipts(client.read()) == [("ack", "")]
    assert ("0", "rejected-unavailable") in receipts(publisher.read())
    assert group.disk_full


def test_a_refused_block_answers_all_that_was_appended_and_is_not_tried_again_at_once(tmp_path: Path) -> None:
    """A full disk refuses the block and everything after it; the next block waits for 0.1 s and begins at the same revision."""
    world, group, journal = _begin(tmp_path)
    client = world.client()
    client.send("X/A", receipt="1")
    assert group.next_block(10.0) is not None
    client.send("X/B", receipt="2")
    journal._encoder.position = journal._committed  # what a refused write leaves behind
    group.refused(10.0)
    full = [group.disk_full]
    assert receipts(client.read()) == [("1", "rejected-unavailable"), ("2", "rejected-unavailable")]
    client.send("X/C", receipt="3")
    assert group.next_block(10.0) is None
    assert group.due_s == 10.0 + REFUSED_DELAY_S
    block = group.next_block(10.0 + REFUSED_DELAY_S)
    assert block is not None
    journal.write(block)
    group.written()
    assert receipts(client.read()) == [("3", "accepted")]
    assert world.broker.committed_revision == 1
    full.append(group.disk_full)
    assert full == [True, False]
    journal.close()
