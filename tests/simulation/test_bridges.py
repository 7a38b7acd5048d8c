"""Venues, a centre and the bridges between them lose nothing, whatever fails, and each bug is noticed."""

import pytest

from tests.simulation.bridge_mutants import BRIDGE_MUTANTS
from tests.simulation.bridges import simulate
from tests.simulation.judging import each_of, outputs_of, require_kind, require_noticed
from tests.simulation.mutants import Mutant

SEEDS_OF_A_MUTANT = 15


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_what_bridges_promise_holds_whatever_fails(first: int) -> None:
    """Cuts, kills, restores, clocks, doubled venues, renamed routes, pauses, refused types and full disks."""
    for seed in range(first, first + 10):
        simulate(seed)


def test_simulated_estates_are_not_idle() -> None:
    """Seeds do cut, kill, restore, double, rename, refuse and forward."""
    estates = [simulate(seed) for seed in range(40, 46)]
    for name in ("cuts", "kills", "restores", "doubled", "renamed", "refused", "paused"):
        assert sum(estate.counted[name] for estate in estates) > 0, name
    assert sum(estate.counted["moved"] for estate in estates) > 60


def test_one_seed_repeats_exactly() -> None:
    """Two runs of one seed commit the same, whatever hashes strings have."""
    code = "from tests.simulation.bridges import simulate; e = simulate(7); print(sorted(e.counted.items()))"
    assert len(outputs_of(code)) == 1


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`--kinds bridges` selects this simulation."""
    require_kind("bridges", 2, capsys)


@each_of(BRIDGE_MUTANTS)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed within few seeds."""
    require_noticed(mutant, simulate, SEEDS_OF_A_MUTANT)
