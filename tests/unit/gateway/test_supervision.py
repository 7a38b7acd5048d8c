"""Advisory tasks: an error in one is logged, counted and shown, the task is restarted, and the broker goes on."""

import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
import trio
import trio.testing

from maxam.gateway.supervision import RESTART_S_MAX, RESTART_S_MIN, STEADY_S, Supervisor


def run(test: Callable[[Supervisor], Awaitable[None]]) -> None:
    """Run a test on a clock that jumps over all waiting."""
    trio.run(test, Supervisor(), clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_task_that_fails_is_restarted_later_and_later() -> None:
    """Each failure doubles the delay up to its maximum; what the task returns ends it."""
    began_s: list[float] = []

    async def task() -> None:
        began_s.append(trio.current_time())
        if len(began_s) < 10:
            raise ValueError("a bug")

    async def test(supervisor: Supervisor) -> None:
        await supervisor.run("rates", task)
        assert supervisor.restarts == {"rates": 9}

    run(test)
    delays = [after - before for before, after in pairwise(began_s)]
    assert delays == [min(RESTART_S_MIN * 2**n, RESTART_S_MAX) for n in range(9)]


def test_a_task_that_has_run_for_long_restarts_soon_again() -> None:
    """The delay starts at its minimum after a task has been steady."""
    began_s: list[float] = []

    async def task() -> None:
        began_s.append(trio.current_time())
        if len(began_s) == 4:
            return
        if len(began_s) == 3:
            await trio.sleep(STEADY_S)
        raise OSError("a disk")

    async def test(supervisor: Supervisor) -> None:
        await supervisor.run("rates", task)

    run(test)
    assert began_s[3] - began_s[2] == STEADY_S + RESTART_S_MIN


def test_health_shows_a_failed_task_until_it_is_steady() -> None:
    """With its name and the error, until it has run for STEADY_S."""

    async def test(supervisor: Supervisor) -> None:
        failing = True

        async def task() -> None:
            if failing:
                raise OSError(5, "Input/output error")
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run, "watch", task)
            assert supervisor.degraded() == []
            await trio.sleep(RESTART_S_MIN / 2)
            failing = False
            [line] = supervisor.degraded()
            assert line.startswith("task-failed: ")
            assert "watch" in line
            assert "Input/output error" in line
            await trio.sleep(RESTART_S_MIN + STEADY_S)
            assert supervisor.degraded() == []
            nursery.cancel_scope.cancel()

    run(test)


def test_one_cause_is_logged_with_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A lasting error is one line at each restart."""
    caplog.set_level(logging.ERROR, "maxam")
    left = [1, 2, 3]

    async def task() -> None:
        if left:
            left.pop()
            raise OSError(24, "Too many open files")

    async def test(supervisor: Supervisor) -> None:
        await supervisor.run("journal_size", task)

    run(test)
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]


def test_a_cancelled_task_ends() -> None:
    """The end of the gateway is no failure."""

    async def test(supervisor: Supervisor) -> None:
        with trio.move_on_after(1):
            await supervisor.run("rates", trio.sleep_forever)
        assert supervisor.restarts == {"rates": 0}

    run(test)


def test_a_service_that_cannot_start_raises_and_a_later_error_restarts_it() -> None:
    """A listener whose address is taken stops the start; one that fails later does not stop the gateway."""
    began = 0

    async def serve(*, task_status: trio.TaskStatus[list[str]]) -> None:
        nonlocal began
        began += 1
        if began == 1:
            raise OSError("address in use")
        task_status.started([f"{began}"])
        raise ValueError("a bug")

    async def test(supervisor: Supervisor) -> None:
        async with trio.open_nursery() as nursery:
            with pytest.raises(OSError, match="address in use"):
                await nursery.start(supervisor.serve, "admin", serve)
            assert await nursery.start(supervisor.serve, "admin", serve) == ["2"]
            await trio.sleep(2 * RESTART_S_MIN)
            assert began > 2
            assert supervisor.restarts == {"admin": began - 1}
            nursery.cancel_scope.cancel()

    run(test)
