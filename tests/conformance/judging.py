"""Run the kit within the process of a test."""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
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


def judge_each(
    plays: Mapping[str, tuple[Sequence[str], Sequence[str]]], *, timeout_s: float, heart_beat_ms: int = 5000
) -> dict[str, dict[str, Verdict]]:
    """Return the verdicts about several libraries over TLS. Each has a command and the codes of promises; some run at a time."""
    runs: dict[str, Run] = {}
    at_once = trio.CapacityLimiter(6)

    async def judge_one(run: Run) -> None:
        async with at_once:
            await run.judge()

    async def judge_all() -> None:
        async with trio.open_nursery() as tasks:
            for run in runs.values():
                tasks.start_soon(judge_one, run)

    with tempfile.TemporaryDirectory() as folder:
        for name, (command, only) in plays.items():
            own = Path(folder) / name
            plan = make_plan(own, command, "tls", heart_beat_ms, timeout_s, 1.0, subprocess.DEVNULL)
            runs[name] = Run(plan, only, 1, 1, None, shrinks=False, jobs=1)
        trio.run(judge_all)
    return {name: run.verdicts for name, run in runs.items()}


def reasons(verdicts: dict[str, Verdict]) -> dict[str, str]:
    """Return the reasons of the promises that were broken or could not be judged."""
    return {code: one.reason for code, one in verdicts.items() if one.verdict in ("fail", "blocked")}
