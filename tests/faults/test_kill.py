"""A few kills of the real gateway; `make kill-test KILLS=200` does as many as R1 asks for."""

import random
from pathlib import Path

import pytest

from tests.faults.kill_harness import run

pytestmark = pytest.mark.slow

KILLS = 5
FRONTED_KILLS = 3


def test_no_promise_is_broken_by_a_kill(tmp_path: Path) -> None:
    """Through kills under load and a graceful stop: no accepted value is lost, nothing old or acknowledged comes back.

    Spec: MaXaM "accepted" and R1 of design/reliability.md, with nearly all kills while SENDs and ACKs were under way.
    """
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    totals = run(tmp_path, seed, KILLS)
    assert totals.kills == KILLS
    assert totals.stops == 1
    assert totals.in_flight >= KILLS - 1, totals


def test_no_promise_is_broken_by_a_kill_of_fronts(tmp_path: Path) -> None:
    """The same with two fronts, of which one is killed or stopped in each round, while sessions are taken over."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    totals = run(tmp_path, seed, FRONTED_KILLS, fronts=2)
    assert totals.fronts_killed + totals.fronts_stopped == FRONTED_KILLS + 1
