"""Kill the leader of a cluster again and again, with several leases, and print a table of what its clients notice.

`python -m tests.cluster.failover --kills 200 --leases 3,2,1`: for each lease, a run of `tests.cluster.kill_harness` kills leaders with
SIGKILL under load, and checks all that it checks. Between the kills the cluster also has times of rest. A new term without a kill is
*needless*: the lease is too short for the machine.

The table has two times from the kill, each with median, 99th percentile and maximum. Until the next leader listens, a follower waits
for the silence of the lease, claims, and is promoted. Until the first RECEIPT, clients also search the next leader.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.kill_harness import Totals, quantiles, run

KILLS_PER_REST: Final = 5
HEAD: Final = (
    f"{'lease_s':>7} {'kills':>6} {'until the next leader listens':48} {'until its first RECEIPT':48} needless terms"
)


def row(lease_s: float, totals: Totals) -> str:
    """Return the figures of a lease for people."""
    waits_s = totals.waits_s["leader"]
    served, received = quantiles(totals.serves_s), quantiles(waits_s)
    return f"{lease_s:>7g} {len(waits_s):>6} {served:48} {received:48} {sum(totals.needless.values())}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. The folder of a run in which a promise was broken is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.failover")
    parser.add_argument("--kills", type=int, default=20, help="kills of each lease")
    parser.add_argument("--leases", default="3,2,1", help="values of lease_s, with commas between them")
    parser.add_argument("--burners", type=int, default=0, help="processes that use up processors")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    rows = []
    plan = {"leader": options.kills, "quiet": max(1, options.kills // KILLS_PER_REST)}
    for lease_s in map(float, options.leases.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="maxam-failover-"))
        report(f"lease_s {lease_s:g}, seed {options.seed}, {folder}")
        totals = run(folder, options.seed, plan, lease_s=lease_s, burners=options.burners, report=report)
        shutil.rmtree(folder)
        report("\n".join(totals.lines()))
        rows.append(row(lease_s, totals))
    report("\n".join([HEAD, *rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
