"""Run the kit within the process of a test."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from maxam.conformance.running import Run, Verdict, make_plan
from maxam.conformance.server import Transport

TIMEOUT_S = 90.0  # of a loaded machine


def judge(
    command: Sequence[str],
    transport: Transport = "tls",
    only: Sequence[str] = (),
    *,
    timeout_s: float = TIMEOUT_S,
    seed: int = 1,
    runs: int = 1,
    shrinks: bool = False,
    heart_beat_ms: int = 5000,
) -> dict[str, Verdict]:
    """Return the verdicts about a library by the codes of the promises."""
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(Path(folder), command, transport, heart_beat_ms, timeout_s, 1.0, subprocess.DEVNULL)
        run = Run(plan, only, seed, runs, None, shrinks, jobs=6)
        trio.run(run.judge)
    return run.verdicts


def reasons(verdicts: dict[str, Verdict]) -> dict[str, str]:
    """Return the reasons of the promises that were broken or could not be judged."""
    return {code: one.reason for code, one in verdicts.items() if one.verdict in ("fail", "blocked")}
