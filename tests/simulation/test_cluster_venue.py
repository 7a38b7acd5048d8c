"""Gateways of a cluster with disks, clients and a log: nothing accepted is lost, and no client sees less than another was shown."""

import pytest

from tests.simulation.cluster_venue import COUNTED, simulate
from tests.simulation.cluster_venue_mutants import CLUSTER_VENUE_MUTANTS
from tests.simulation.judging import each_of, outputs_of, require_noticed
from tests.simulation.mutants import Mutant

SEEDS_OF_A_MUTANT = 4


@pytest.mark.parametrize("first", [0, 4, 8])
def test_what_a_cluster_promises_its_clients_holds_whatever_fails(first: int) -> None:
    """Cuts, kills, power cuts, faults of disks, freezes, handovers, stops, a full log, full disks, snapshots and empty machines."""
    for seed in range(first, first + 4):
        simulate(seed)


def test_simulated_gateways_are_not_idle() -> None:
    """Seeds do fail, hand over, copy, refuse and accept."""
    venues = [simulate(seed) for seed in range(15, 23)]
    for name in COUNTED:
        assert sum(venue.counted[name] for venue in venues) > 0, name


def test_one_seed_repeats_exactly() -> None:
    """Two runs of one seed do the same, whatever hashes strings have."""
    code = (
        "from tests.simulation.cluster_venue import simulate; v = simulate(7);"
        " print(sorted(v.counted.items()), v.clients.digest.hexdigest())"
    )
    assert len(outputs_of(code)) == 1


@each_of(CLUSTER_VENUE_MUTANTS)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed within few seeds."""
    require_noticed(mutant, simulate, SEEDS_OF_A_MUTANT)
