"""Links between real processes: what a follower keeps equals its source, through cuts, refusals, damage and slow lines."""

from pathlib import Path

import trio

from tests.patience import PATIENCE_S
from tests.support.linked import FollowedJournal, linked_gateway, policy_of, segments
from tests.support.raw_client import RawClient


def send(client: RawClient, first: int, count: int, size: int = 20) -> None:
    """Send values to some topics, and wait until the last one is committed."""
    for number in range(first, first + count):
        receipt = {"receipt": "last"} if number == first + count - 1 else {}
        client.write("SEND", {"destination": f"X/a{number % 50}", **receipt}, b"%d" % number * size)
    while client.read().headers.get("receipt-id") != "last":
        pass


async def reaches(followed: FollowedJournal, revision: int) -> None:
    """Wait until a revision is applied and journalled."""
    with trio.fail_after(PATIENCE_S):
        while followed.revision < revision or followed.keeper.synced.revision < revision:  # noqa: ASYNC110  # a thread's
            await trio.sleep(0.01)


def test_a_follower_keeps_the_same_bytes(tmp_path: Path, certificates: Path) -> None:
    """From the beginning, live, and again after both were restarted."""
    source, port = linked_gateway(
        tmp_path / "a", certificates, policy_of(certificates), "journal.segment_bytes_max = 65536"
    )

    async def follow(upto: int) -> None:
        with FollowedJournal(tmp_path / "b", certificates, [port]) as followed:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed.run)
                await reaches(followed, upto)
                nursery.cancel_scope.cancel()

    with source, RawClient(source, "operator") as client:
        send(client, 0, 2000)
        trio.run(follow, 2000)
        send(client, 2000, 1000)
        trio.run(follow, 3000)
    there = segments(tmp_path / "a" / "journal")
    here = segments(tmp_path / "b")
    assert len(there) > 3
    assert {name: data for name, data in here.items() if "open" not in name}.items() <= there.items()
    with source:
        with RawClient(source, "operator") as client:
            send(client, 3000, 1)
        trio.run(follow, 3001)
        there, here = segments(tmp_path / "a" / "journal"), segments(tmp_path / "b")
        assert here == there
