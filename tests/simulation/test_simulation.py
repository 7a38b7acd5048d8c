"""A short fixed set of seeds; `make simulate SEEDS=10000` runs many."""

import random

import pytest

from tests.simulation.alike import alike
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.venue import simulate
from tests.simulation.walks import directed, walk


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_what_must_hold_holds_whatever_fails(first: int) -> None:
    """Crashes, power cuts, full disks, slow, vanishing and doubled clients: nothing is lost, stale, doubled or leaked."""
    for seed in range(first, first + 20):
        simulate(seed)


def test_who_shares_what_is_handed_out_reads_what_he_would_alone() -> None:
    """Subscribers with the same id and version, owed the same or not, read the same as with ids of their own."""
    for seed in range(300):
        alike(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def test_one_seed_repeats_exactly() -> None:
    """Two runs of one seed send the same bytes in the same order."""
    assert simulate(7).digest.hexdigest() == simulate(7).digest.hexdigest()


def test_simulated_worlds_are_not_idle() -> None:
    """Seeds do crash, refuse, commit and deliver."""
    venues = [simulate(seed) for seed in range(10)]
    assert sum(venue.crashes for venue in venues) > 10
    assert sum(venue.refusals for venue in venues) > 10
    assert sum(venue.committed for venue in venues) > 300
    assert sum(venue.messages for venue in venues) > 300


# A mutant changes byte code; of a module that is machine code there is none, so those run only where it is Python.
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if not mutant.compiled], ids=lambda mutant: mutant.name
)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed by the model or by the simulation."""
    with mutant.applied():
        assert _noticed(), f"nobody noticed: {mutant.name}"


def _noticed() -> bool:
    for seed in range(120):
        try:
            directed(random.Random(seed))  # noqa: S311 - a simulation, not a secret
            walk(random.Random(seed))  # noqa: S311 - a simulation, not a secret
            alike(random.Random(seed))  # noqa: S311 - a simulation, not a secret
            if seed < 30:
                simulate(seed)
        except Exception:  # noqa: BLE001  # a Violation, or the broker itself stumbles
            return True
    return False
