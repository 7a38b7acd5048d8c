"""Whose turn it is when many ask for deliveries at once."""

import trio
import trio.testing
from trio.testing import MockClock

from maxam.gateway.deliveries import TURNS_PER_PASS, Deliveries


def test_many_take_turns_in_the_order_in_which_they_came() -> None:
    """At one time as many go on at once as a pass bears; the others with each `release` as many, the longest waiting first."""

    async def main() -> None:
        asked: list[str] = []
        deliveries = Deliveries(lambda: asked.append("more"))
        gone: list[int] = []

        async def ask(number: int) -> None:
            await deliveries.turn()
            gone.append(number)

        count = 2 * TURNS_PER_PASS + 3
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()
            assert gone == list(range(TURNS_PER_PASS))
            assert asked == ["more"]
            assert deliveries.release()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(gone) == list(range(2 * TURNS_PER_PASS))
            assert not deliveries.release()
        assert sorted(gone) == list(range(count))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_nobody_waits_while_turns_come_slower_than_they_are_taken() -> None:
    """A turn a millisecond never waits, however long that goes on."""

    async def main() -> None:
        deliveries = Deliveries(lambda: None)
        for _ in range(20 * TURNS_PER_PASS):
            await deliveries.turn()
            await trio.sleep(0.001)
        assert not deliveries.release()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_who_is_cancelled_loses_no_turn_for_others() -> None:
    """A connection that ends while it waits is forgotten, and the one behind it goes on."""

    async def main() -> None:
        deliveries = Deliveries(lambda: None)
        for _ in range(TURNS_PER_PASS):
            await deliveries.turn()
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def gone() -> None:
                with scope:
                    await deliveries.turn()

            nursery.start_soon(gone)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(TURNS_PER_PASS):
                nursery.start_soon(deliveries.turn)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not deliveries.release()

    trio.run(main, clock=MockClock(autojump_threshold=0))
