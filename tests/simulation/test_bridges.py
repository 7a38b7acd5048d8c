"""Venues, a centre and the bridges between them lose nothing, whatever fails, and each bug is noticed."""

import os
import subprocess
import sys
from unittest.mock import patch

import pytest

from tests.simulation.__main__ import main
from tests.simulation.bridge_mutants import BRIDGE_MUTANTS
from tests.simulation.bridges import simulate
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
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`--kinds bridges` selects this simulation."""
    with patch.object(sys, "argv", ["simulation", "--kinds", "bridges", "--seeds", "2", "--jobs", "1"]):
        assert main() == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")


# A mutant changes byte code; of a module that is machine code there is none, so those run only where it is Python.
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in BRIDGE_MUTANTS if not mutant.compiled], ids=lambda mutant: mutant.name
)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed within few seeds."""
    with mutant.applied():
        assert _noticed(mutant), f"the simulation does not notice: {mutant.name}"


def _noticed(mutant: Mutant) -> bool:
    for seed in range(mutant.first, mutant.first + SEEDS_OF_A_MUTANT):
        try:
            simulate(seed)
        except Exception:  # noqa: BLE001  # a Violation, or the relay itself stumbles
            return True
    return False
