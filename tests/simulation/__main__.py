"""Simulate many seeds on all processors (`python -m tests.simulation --seeds 10000`), or one that failed (`--seed 4711`)."""

import argparse
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from unittest.mock import patch

from tests.simulation import bridges, cluster, cluster_venue, fronts, machine
from tests.simulation.overtaken import overtaken
from tests.simulation.refined_histories import as_json, refined, selective
from tests.simulation.venue import simulate
from tests.simulation.walks import directed, walk

_SEEDS_PER_TURN = 5  # of one process: some seconds, so that a failure is soon reported
_PROGRESS_INTERVAL_S = 30.0


def _seeded(history: Callable[[random.Random], None]) -> Callable[[int], None]:
    return lambda seed: history(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def _venue(seed: int) -> dict[str, int]:
    venue = simulate(seed)
    return {name: getattr(venue, name) for name in COUNTED}


def venue_ahead(seed: int) -> dict[str, int]:
    """Run the venue of a seed where the open segment ends in zeros."""
    with patch.object(machine, "STORED", replace(machine.STORED, ahead_bytes=4096)):
        return _venue(seed)


# The forms of a seed. Some count what happens in them.
KINDS: dict[str, Callable[[int], Mapping[str, int] | None]] = {
    "walk": _seeded(walk),
    "directed": _seeded(directed),
    "overtaken": _seeded(overtaken),
    "refined": _seeded(refined),
    "selective": _seeded(selective),
    "json": _seeded(as_json),
    "venue": _venue,
    "venue-ahead": venue_ahead,
    "bridges": lambda seed: bridges.simulate(seed).counted,
    "cluster": lambda seed: cluster.simulate(seed).counted,
    "cluster-venue": lambda seed: cluster_venue.simulate(seed).counted,
    "fronts": fronts.simulate,
}
ONE_BROKER = [kind for kind in KINDS if kind not in {"bridges", "cluster", "cluster-venue", "fronts"}]
COUNTED = ("crashes", "faults", "refusals", "reloads", "snapshots", "expiries", "committed", "messages")


def main() -> int:
    """Run the seeds; print the first that fails and how to repeat it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=ONE_BROKER, help="which forms of each seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    options = parser.parse_args()
    if options.seed is not None:
        run(options.seed, options.kinds)
        sys.stdout.write(f"seed {options.seed}: nothing lost, stale, doubled or leaked\n")
        return 0
    last = options.first + options.seeds
    turns = [range(at, min(at + _SEEDS_PER_TURN, last)) for at in range(options.first, last, _SEEDS_PER_TURN)]
    counted: Counter[str] = Counter()
    told_s = began_s = time.monotonic()
    # A process ends after some turns: worlds that crashed are not all freed by the compiled core.
    with get_context("fork").Pool(options.jobs, maxtasksperchild=40) as pool:
        for found, failure in pool.imap_unordered(partial(turn, options.kinds), turns):
            if failure:
                sys.stderr.write(failure)
                return 1
            counted.update(found)
            now_s = time.monotonic()
            if now_s - told_s > _PROGRESS_INTERVAL_S:
                told_s = now_s
                sys.stdout.write(f"{said(counted)} in {now_s - began_s:.0f} s\n")
                sys.stdout.flush()
    sys.stdout.write(f"{said(counted)} in {time.monotonic() - began_s:.0f} s: nothing lost, stale, doubled or leaked\n")
    return 0


def run(seed: int, kinds: Sequence[str] = tuple(ONE_BROKER)) -> Counter[str]:
    """Run one seed, in each of its forms; return what happened in it."""
    counted = Counter({"seeds": 1})
    for kind in kinds:
        counted.update(KINDS[kind](seed) or {})
    return counted


def turn(kinds: Sequence[str], seeds: range) -> tuple[Counter[str], str]:
    """Run some seeds in a process of their own; return what happened, and what failed as text for people."""
    counted: Counter[str] = Counter()
    for seed in seeds:
        try:
            counted.update(run(seed, kinds))
        except Exception:  # noqa: BLE001  # any failure must be reported with its seed
            text = traceback.format_exc()
            return counted, f"{text}seed {seed} fails; repeat: python -m tests.simulation --seed {seed}\n"
    return counted, ""


def said(counted: Counter[str]) -> str:
    """Return the counts in words."""
    return ", ".join(
        f"{counted[name]:,} {name}"
        for name in dict.fromkeys(
            ("seeds", *COUNTED, *bridges.COUNTED, *cluster.COUNTED, *cluster_venue.COUNTED, *fronts.COUNTED)
        )
        if counted[name]
    )


if __name__ == "__main__":
    sys.exit(main())
