"""Processes that a gateway starts give way to it."""

import os
import subprocess
import sys

import pytest

_PROGRAM = "import os; from maxam.background import enter_background; enter_background(3)"
_SHOWN = "; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"


def _entered(*prefix: str) -> list[int]:
    command = [*prefix, sys.executable, "-c", _PROGRAM + _SHOWN]
    return [int(word) for word in subprocess.check_output(command, text=True).split()]


def test_a_process_in_the_background_is_nicer_than_the_one_that_started_it() -> None:
    """By the niceness given, up to the highest there is."""
    assert _entered() == [os.SCHED_OTHER, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)]


@pytest.mark.parametrize("policy", ["--fifo", "--rr"])
def test_it_leaves_a_real_time_priority(policy: str) -> None:
    """There, a niceness would have no effect, and it would keep a gateway on the same core from running."""
    prefix = ["chrt", policy, "1"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to a real-time priority here")
    assert _entered(*prefix)[0] == os.SCHED_OTHER
