"""Calls that another thread asks the event loop for."""

import threading
from functools import partial

import trio
import trio.testing

from maxam.gateway.calls import Calls


def test_calls_are_made_in_order_on_the_thread_of_the_loop() -> None:
    """Each call that a thread asks for is made once, in order, in the loop's thread."""

    async def main() -> None:
        made: list[tuple[int, int]] = []
        with Calls() as calls:

            def note(number: int) -> None:
                made.append((number, threading.get_ident()))

            def ask() -> None:
                for number in range(1000):
                    calls.run_sync_soon(partial(note, number))

            thread = threading.Thread(target=ask)
            thread.start()
            while len(made) < 1000:
                await calls.next()
            thread.join()
        here = threading.get_ident()
        assert made == [(number, here) for number in range(1000)]

    trio.run(main)


def test_a_cancelled_wait_loses_no_call() -> None:
    """Calls requested when the waiting task was cancelled are made by the next task that waits."""

    async def main() -> None:
        made: list[str] = []
        with Calls() as calls:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(calls.next)
                await trio.testing.wait_all_tasks_blocked()
                calls.run_sync_soon(lambda: made.append("asked"))
                nursery.cancel_scope.cancel()
            assert made == []
            await calls.next()
        assert made == ["asked"]

    trio.run(main)


def test_a_call_that_fails_leaves_the_next() -> None:
    """An exception of a call is raised in the waiting task alone. The call after it is made."""

    async def main() -> None:
        made: list[str] = []

        def fail() -> None:
            raise ZeroDivisionError

        with Calls() as calls:
            calls.run_sync_soon(fail)
            calls.run_sync_soon(lambda: made.append("next"))
            try:
                await calls.next()
            except ZeroDivisionError:
                made.append("failed")
            await calls.next()
        assert made == ["failed", "next"]

    trio.run(main)
