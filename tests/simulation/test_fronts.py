"""Clients of a broker with 0, 1 or 3 fronts are promised the same, whatever fails, and each bug is noticed."""

from collections import Counter

import pytest

from tests.simulation.fronts import COUNTED, COUNTS, Fronted, alike, simulate
from tests.simulation.fronts_mutants import FRONTS_MUTANTS, OUTLIVING_MUTANTS
from tests.simulation.judging import each_of, outputs_of, require_kind, require_noticed
from tests.simulation.mutants import Mutant
from tests.unit.front.test_outliving import SCENARIOS

SEEDS_OF_A_MUTANT = 3


@pytest.mark.parametrize("count", COUNTS)
def test_what_clients_are_promised_holds_whatever_fails(count: int) -> None:
    """Fronts that are killed or stopped, restarts, a full disk, takeovers, and policies that change."""
    for seed in range(5):
        Fronted(seed, count).run()


def test_what_clients_are_promised_holds_while_fronts_are_cut_off() -> None:
    """A front without a link serves on with what it has. Its sessions go on elsewhere, and nothing that it hands over counts."""
    cut = 0
    for seed in range(5):
        run = Fronted(seed, 3, cuts=True)
        run.run()
        cut += run.counted["cut"]
    assert cut > 0


def test_what_clients_are_promised_holds_over_leader_changes() -> None:
    """Fronts go on with the next leader: each operation takes effect once, and RECEIPTs come in order."""
    counted: Counter[str] = Counter()
    for seed in range(8):
        for cuts in (False, True):
            run = Fronted(seed, 3, cuts=cuts, failovers=True)
            run.run()
            counted += run.counted
    assert counted["resumed"] > counted["failovers"] > 0


def test_clients_read_the_same_with_any_number_of_fronts() -> None:
    """With 0, 1 and 3 fronts all answers and values of a seed are the same, if each action settles before the next one."""
    assert sum(alike(seed) for seed in range(10, 14)) > 1000


def test_simulated_fronts_are_not_idle() -> None:
    """Seeds do send, accept, refuse, take over, kill, stop, restart and reload."""
    found = [simulate(seed) for seed in range(16, 20)]
    for name in COUNTED:
        assert sum(one[name] for one in found) > 0, name


def test_one_seed_repeats_exactly() -> None:
    """Two runs of one seed do the same, whatever hashes strings have."""
    code = "from tests.simulation.fronts import simulate; print(sorted(simulate(7).items()))"
    assert len(outputs_of(code)) == 1


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`--kinds fronts` selects this simulation."""
    require_kind("fronts", 1, capsys)


@each_of(FRONTS_MUTANTS)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed within few seeds."""
    require_noticed(mutant, _simulate, SEEDS_OF_A_MUTANT)


def _simulate(seed: int) -> None:
    Fronted(seed, 3).run()
    alike(seed)


@each_of(OUTLIVING_MUTANTS)
def test_a_mutant_of_leader_changes_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed within few seeds."""
    require_noticed(mutant, _simulate_leaders, SEEDS_OF_A_MUTANT)


def _simulate_leaders(seed: int) -> None:
    for scenario in SCENARIOS:
        scenario()
    for cuts in (False, True):
        Fronted(seed, 3, cuts=cuts, failovers=True).run()
