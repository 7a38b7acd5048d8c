"""The short forms of `make cluster-test` and `make partition-test`."""

import random
from pathlib import Path

import pytest

from tests.cluster import partitions
from tests.cluster.kill_harness import run
from tests.interop.bridge import thin_line
from tests.support.etcd_cluster import require_etcd

pytestmark = pytest.mark.slow

PLAN = {"leader": 1, "both": 1, "etcd-two": 1, "freeze-4": 1, "handover": 1}
CUTS = {"leader-etcd-both": 1, "clients-leader-back": 1, "leader-etcd-thin": 1}
OUTAGE_S = 5.0


def test_no_promise_is_broken_by_faults_of_processes(tmp_path: Path) -> None:
    """Nothing accepted is lost, the order never contradicts real time, and all journals are equal, through five killed processes and more."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    totals = run(tmp_path, seed, PLAN, outage_s=OUTAGE_S)
    assert {name: len(gaps_s) for name, gaps_s in totals.gaps_s.items()} == PLAN


@pytest.mark.interop
def test_no_promise_is_broken_by_partitions() -> None:
    """The same while packets between parts of the cluster are dropped, in one direction or in both."""
    require_etcd()
    thin_line.require()
    faults = ",".join(f"{name}={count}" for name, count in CUTS.items())
    assert partitions.main(["--faults", faults, "--outage", str(OUTAGE_S)]) == 0
