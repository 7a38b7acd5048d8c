"""The gateway's own time: it follows the machine's clock, but no jump ahead, and it never stands still."""

import logging
from collections.abc import Callable

import pytest
import trio
import trio.testing

from maxam.gateway.clock import CATCHING_UP, WallClock

DAY_S = 86_400.0
BEGUN_S = 1_800_000_000.0


class Clocks:
    """A machine's clocks, and the gateway's time on them."""

    def __init__(self, newest_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.wrong_s = 0.0
        self.asleep_s = 0.0
        self.clock = WallClock(int(newest_s * 1e6), 3600, self.now_s, self.wall_ns, lambda: self.asleep_s)

    def wall_ns(self) -> int:
        """The machine's clock."""
        return int((BEGUN_S + self.now_s + self.asleep_s + self.wrong_s) * 1e6) * 1000

    def after(self, seconds: float) -> float:
        """Let time pass; return how far the gateway's time is from the true one."""
        self.now_s += seconds
        return round(self.clock.at(self.now_s) / 1e6 - BEGUN_S - self.now_s - self.asleep_s, 3)


def test_a_clock_that_agrees_is_followed() -> None:
    """Corrections below the limit are followed at once, forwards as far as they go."""
    clocks = Clocks()
    assert clocks.after(10) == 0
    clocks.wrong_s = 3599
    assert clocks.after(0) == 3599
    assert clocks.after(DAY_S) == 3599


def test_a_jump_ahead_is_not_followed_until_the_clock_comes_back() -> None:
    """However long it lasts and however often the time is asked; then the clock is followed again."""
    clocks = Clocks()
    clocks.wrong_s = 30 * DAY_S
    for _ in range(100):
        assert clocks.after(10) == 0
    clocks.wrong_s = -1
    assert clocks.after(100) == -1


def test_a_restart_takes_the_new_time() -> None:
    """A start cannot know how long the gateway was stopped."""
    clocks = Clocks()
    clocks.wrong_s = 30 * DAY_S
    clocks.clock = WallClock(0, 3600, clocks.now_s, clocks.wall_ns, lambda: 0.0)
    assert clocks.after(1) == 30 * DAY_S


def test_a_machine_that_slept_has_not_jumped() -> None:
    """The time in which the monotonic clock stood still counts as passed."""
    clocks = Clocks()
    clocks.asleep_s = 2 * DAY_S
    assert clocks.after(10) == 0
    clocks.wrong_s = 2 * DAY_S
    assert clocks.after(10) == 0


@pytest.mark.parametrize("asked_every_s", [7.0, 600.0])
def test_time_goes_on_from_a_change_in_the_future_until_the_clock_has_caught_up(asked_every_s: float) -> None:
    """Nine tenths as fast, so that values age meanwhile; it never decreases, however often it is asked."""
    clocks = Clocks(newest_s=BEGUN_S + 100 + 7200)
    begun_s, before_us = clocks.now_s, 0
    ahead = clocks.after(0)
    assert ahead == 7200
    while ahead:
        ahead = clocks.after(asked_every_s)
        at_us = clocks.clock.at(clocks.now_s)
        assert at_us > before_us
        before_us = at_us
        assert ahead == pytest.approx(max(0, 7200 - (1 - CATCHING_UP) * (clocks.now_s - begun_s)), abs=0.01)
    assert pytest.approx(clocks.now_s - begun_s, abs=700) == 20 * 3600


def test_a_clock_set_back_does_not_stop_time() -> None:
    """And one that is set right again is followed."""
    clocks = Clocks()
    clocks.wrong_s = -DAY_S
    assert clocks.after(1000) == -100
    clocks.wrong_s = 0
    assert clocks.after(0) == 0


@pytest.mark.parametrize(("wrong_s", "state"), [(30 * DAY_S, "ahead"), (-DAY_S, "behind")])
def test_operators_see_a_wrong_clock(wrong_s: float, state: str, caplog: pytest.LogCaptureFixture) -> None:
    """In health and metrics while it lasts, in the log when it begins and ends."""
    caplog.set_level(logging.WARNING, "maxam")
    clocks = Clocks()

    async def watch() -> None:
        clocks.now_s = trio.current_time()
        clocks.clock = WallClock(0, 3600, clocks.now_s, wall_ns, lambda: 0.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clocks.clock.run)
            await trio.sleep(5)
            assert clocks.clock.degraded() == []
            clocks.wrong_s = wrong_s
            await trio.sleep(5)
            assert clocks.clock.latest_us == pytest.approx(clocks.clock.now_us(), abs=2e6)
            [line] = clocks.clock.degraded()
            assert line.startswith("clock: ")
            assert clocks.clock.ahead_s() == pytest.approx(wrong_s, abs=10)
            clocks.wrong_s = 0
            await trio.sleep(5)
            assert clocks.clock.degraded() == []
            nursery.cancel_scope.cancel()

    def wall_ns() -> int:
        return int((BEGUN_S + trio.current_time() + clocks.wrong_s) * 1e6) * 1000

    run(watch)
    found = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in found] == ["clock-wrong", "clock-wrong-ended"]
    assert f"state={state}" in found[0]


def run(test: Callable[[], object]) -> None:
    """Run a test on a clock that jumps over all waiting."""
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]
