"""Simulate many seeds: `python -m tests.simulation --seeds 10000`, or one that failed: `--seed 4711`."""

import argparse
import random
import sys

from tests.simulation.venue import simulate
from tests.simulation.walks import directed, walk


def main() -> int:
    """Run the seeds; print the first that fails and how to repeat it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    crashes = messages = 0
    for seed in seeds:
        try:
            walk(random.Random(seed))  # noqa: S311 - a simulation, not a secret
            directed(random.Random(seed))  # noqa: S311 - a simulation, not a secret
            venue = simulate(seed)
        except Exception:
            sys.stderr.write(f"seed {seed} fails; repeat: python -m tests.simulation --seed {seed}\n")
            raise
        crashes += venue.crashes
        messages += venue.messages
    sys.stdout.write(
        f"{len(seeds)} seeds, {crashes} crashes, {messages} messages: nothing lost, stale, doubled or leaked\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
