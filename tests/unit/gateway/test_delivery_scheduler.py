"""The order of deliveries when many ask for them at once."""

from functools import partial
from itertools import count

import trio
import trio.testing
from trio.testing import MockClock

from maxam.gateway.delivery_scheduler import READERS_PER_PASS, SEND_S, DeliveryScheduler
from maxam.gateway.feed_limiter import FEEDS_FREE_S, FEEDS_PER_PASS_MAX


def test_many_take_turns_in_the_order_in_which_they_came() -> None:
    """At one time as many go on at once as a pass bears; the others with each `release` as many, the longest waiting first."""

    async def main() -> None:
        asked: list[str] = []
        deliveries = DeliveryScheduler(lambda: asked.append("more"))
        gone: list[int] = []

        async def ask(number: int) -> None:
            await deliveries.admit_reader()
            gone.append(number)

        count = 2 * READERS_PER_PASS + 3
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()
            assert gone == list(range(READERS_PER_PASS))
            assert asked == ["more"]
            assert deliveries.run()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(gone) == list(range(2 * READERS_PER_PASS))
            assert not deliveries.run()
        assert sorted(gone) == list(range(count))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_nobody_waits_while_turns_come_slower_than_they_are_taken() -> None:
    """One feed a millisecond never waits, however long that goes on."""

    async def main() -> None:
        deliveries = DeliveryScheduler(lambda: None)
        for _ in range(20 * READERS_PER_PASS):
            await deliveries.admit_reader()
            await trio.sleep(0.001)
        assert not deliveries.run()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_who_is_cancelled_loses_no_turn_for_others() -> None:
    """A connection that ends while it waits is forgotten, and the one after it goes on."""

    async def main() -> None:
        deliveries = DeliveryScheduler(lambda: None)
        for _ in range(READERS_PER_PASS):
            await deliveries.admit_reader()
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def gone() -> None:
                with scope:
                    await deliveries.admit_reader()

            nursery.start_soon(gone)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(READERS_PER_PASS):
                nursery.start_soon(deliveries.admit_reader)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not deliveries.run()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_principals_with_slow_feeds_take_turns_and_others_never_wait() -> None:
    """However many connections a principal has, another one gets every second turn, and one without slow feeds does not wait."""

    async def main() -> None:
        deliveries = DeliveryScheduler(
            lambda: None, count(0.0, 0.01).__next__
        )  # 10 ms from one reading of the clock to the next
        feeds = deliveries.feeds
        fed: list[str] = []

        async def feed(principal: str, times: int) -> None:
            slow = False
            for _ in range(times):
                if feeds.over(principal, slow):
                    await feeds.wait(principal, slow)
                fed.append(principal)
                slow = True
                feeds.spend(principal, 2 * FEEDS_FREE_S)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(feed, "many", 2)
            nursery.start_soon(feed, "one", 6)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(fed) == ["many", "one"]  # the first of each; the others wait
            while feeds.rest_s is not None:
                before = len(fed)
                deliveries.run()
                assert not feeds.over("publisher", False)
                await trio.testing.wait_all_tasks_blocked()
                assert len(fed) - before <= 1  # a pass bears one of these
        assert fed.count("many") == 100
        assert max(at for at, principal in enumerate(fed) if principal == "one") <= 12
        assert not deliveries.run()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_quick_connection_of_a_busy_principal_comes_before_its_slow_ones() -> None:
    """A publisher under the same name as hundreds that send expensive frames waits for the next pass, not for all of them."""

    async def main() -> None:
        deliveries = DeliveryScheduler(
            lambda: None, count(0.0, 0.01).__next__
        )  # 10 ms from one reading of the clock to the next
        feeds = deliveries.feeds
        fed: list[str] = []

        async def feed(name: str, slow: bool) -> None:
            await feeds.wait("a", slow)
            fed.append(name)

        feeds.spend("a", 2 * FEEDS_FREE_S)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(feed, "slow", True)
            await trio.testing.wait_all_tasks_blocked()
            assert feeds.over("a", False)
            assert not feeds.over("publisher", False)
            nursery.start_soon(feed, "quick", False)
            await trio.testing.wait_all_tasks_blocked()
            assert not deliveries.run()  # first the loop rests from slow feeds
            assert feeds.rest_s is not None
            assert deliveries.run()
            await trio.testing.wait_all_tasks_blocked()
            assert fed == ["quick"]
            assert not feeds.over("a", False)  # it need not even ask in this pass
            assert feeds.over("a", True)
            while feeds.rest_s is not None:
                deliveries.run()
                await trio.testing.wait_all_tasks_blocked()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_queue_of_quick_feeds_is_worked_off_many_at_a_time() -> None:
    """While feeds prove to be quick there are more in each pass, up to the maximum. One slow feed is enough for one a pass again."""

    async def main() -> None:
        deliveries = DeliveryScheduler(
            lambda: None, count(0.0, 0.01).__next__
        )  # 10 ms from one reading of the clock to the next
        feeds = deliveries.feeds
        fed: list[int] = []

        async def feed(number: int) -> None:
            await feeds.wait("a", True)
            fed.append(number)
            if number == 60:
                feeds.spend("a", 2 * FEEDS_FREE_S)

        async with trio.open_nursery() as nursery:
            feeds.spend("a", 2 * FEEDS_FREE_S)
            for number in range(100):
                nursery.start_soon(feed, number)
                await trio.testing.wait_all_tasks_blocked()
            counts = []
            while feeds.rest_s is not None:
                before = len(fed)
                deliveries.run()
                await trio.testing.wait_all_tasks_blocked()
                if len(fed) > before:
                    counts.append(len(fed) - before)
        assert counts[:5] == [1, 2, 4, 8, 16]
        assert max(counts) == FEEDS_PER_PASS_MAX
        assert counts.index(1, 1) > 5  # after the slow one
        assert sorted(fed) == list(range(100))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_connection_that_ends_while_it_waits_to_feed_takes_no_turn() -> None:
    """A cancelled wait leaves nothing behind, and the next one goes on."""

    async def main() -> None:
        deliveries = DeliveryScheduler(
            lambda: None, count(0.0, 0.01).__next__
        )  # 10 ms from one reading of the clock to the next
        feeds = deliveries.feeds
        feeds.spend("a", 2 * FEEDS_FREE_S)
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def gone() -> None:
                with scope:
                    await feeds.wait("a", True)

            nursery.start_soon(gone)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(feeds.wait, "a", True)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert feeds.over("a", False)
            deliveries.run()  # the loop rests first
            assert not deliveries.run()  # the second one went on, and none waits
        assert not feeds.over("a", True)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_a_commit_made_due_is_handed_out_in_passes_of_bounded_time() -> None:
    """Deliveries that take longer than a pass may are continued by `run`, in order; a later commit comes after them."""
    now_s = 0.0
    handed: list[int] = []
    asked: list[str] = []

    def deliver(number: int) -> None:
        nonlocal now_s
        now_s += SEND_S / 100
        handed.append(number)

    deliveries = DeliveryScheduler(lambda: asked.append("more"), lambda: now_s)

    def commit(numbers: range) -> None:
        deliveries.begin_commit()
        for number in numbers:
            deliveries.schedule(partial(deliver, number))
        deliveries.end_commit()

    commit(range(1000))
    assert 100 <= len(handed) < 120
    assert asked
    commit(range(1000, 1010))
    assert len(handed) < 240
    passes = 0
    while deliveries.run():
        passes += 1
    assert 7 <= passes <= 10
    assert handed == list(range(1010))
    commit(range(300))
    deliveries.send_all()
    assert handed[1010:] == list(range(300))
    assert not deliveries.run()


def test_slow_feeds_leave_two_thirds_of_the_loop_to_others() -> None:
    """However many principals send expensive frames, after each of them the loop rests twice as long from all of theirs."""

    async def main() -> None:
        now_s = 0.0
        deliveries = DeliveryScheduler(lambda: None, lambda: now_s)
        feeds = deliveries.feeds
        spent_s = 0.0

        async def feed(principal: str) -> None:
            nonlocal now_s, spent_s
            for _ in range(20):
                while feeds.over(principal, True):
                    await feeds.wait(principal, True)
                now_s += 0.001
                spent_s += 0.001
                feeds.spend(principal, 0.001)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(feed, f"p{number}")
            await trio.testing.wait_all_tasks_blocked()
            first_s = spent_s  # before there was anything to rest from
            while feeds.rest_s is not None:
                now_s += feeds.rest_s + 1e-6
                assert not feeds.over("publisher", False)
                deliveries.run()
                await trio.testing.wait_all_tasks_blocked()
        assert first_s < 0.011
        assert spent_s <= first_s + now_s / 3

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_loop_does_not_rest_for_others_that_are_not_there() -> None:
    """A publisher of large values that is alone on the gateway does not wait."""
    now_s = 100.0
    deliveries = DeliveryScheduler(lambda: None, lambda: now_s)
    feeds = deliveries.feeds
    for _ in range(100):
        feeds.spend("alone", 0.01)
        deliveries.run()
        assert not feeds.over("alone", True)
    assert not feeds.over("other", False)
    feeds.spend("alone", 0.01)
    deliveries.run()
    assert feeds.over("alone", True)


def test_receipts_of_a_front_leave_before_deliveries() -> None:
    """RECEIPTs become due between `begin_receipts` and `begin_changes`, and leave before the rest of earlier entries too."""
    sent: list[str] = []
    scheduler = DeliveryScheduler(lambda: None, lambda: 0.0)
    scheduler.begin_commit()
    for entry in ("1", "2"):
        for subscriber in ("a", "b"):
            scheduler.schedule(partial(sent.append, subscriber + entry))
        scheduler.begin_receipts()
        scheduler.schedule(partial(sent.append, "receipt" + entry))
        scheduler.begin_changes()
    scheduler.end_commit()
    assert sent == ["receipt2", "receipt1", "a1", "b1", "a2", "b2"]
