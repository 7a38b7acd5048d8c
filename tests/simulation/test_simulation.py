"""A short fixed set of seeds; `make simulate SEEDS=10000` runs many."""

import random
import re
import sys
from functools import partial
from unittest.mock import patch

import pytest

from tests.simulation.__main__ import main, venue_ahead
from tests.simulation.ahead_mutants import AHEAD_MUTANTS
from tests.simulation.alike import alike
from tests.simulation.attendance_mutants import ATTENDANCE_MUTANTS
from tests.simulation.json_mutants import JSON_MUTANTS
from tests.simulation.judging import each_of, outputs_of, require_noticed
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.overtaken import overtaken
from tests.simulation.refined_histories import as_json, crowd, refined, selective
from tests.simulation.refined_mutants import REFINED_MUTANTS
from tests.simulation.venue import simulate
from tests.simulation.walks import directed, walk


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_what_must_hold_holds_whatever_fails(first: int) -> None:
    """Crashes, power cuts, full disks, slow, vanishing and doubled clients: nothing is lost, stale, doubled or leaked."""
    for seed in range(first, first + 20):
        simulate(seed)


@pytest.mark.parametrize("first", range(160, 240, 20))
def test_what_must_hold_holds_with_room_ahead(first: int) -> None:
    """The same where the open segment ends in zeros."""
    for seed in range(first, first + 20):
        venue_ahead(seed)


def test_who_shares_what_is_handed_out_reads_what_he_would_alone() -> None:
    """Subscribers with the same id and version, owed the same or not, read the same as with ids of their own."""
    for seed in range(300):
        alike(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def test_walks_that_are_overtaken_owe_each_value_once() -> None:
    """Other rights and eager SUBSCRIBEs while earlier scans are under way: nothing comes twice, nothing is missing."""
    for seed in range(100):
        overtaken(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def test_clients_with_refined_subscriptions_end_equal_to_the_broker() -> None:
    """Cut at any frame, back with any state they kept, while rights and machine change: nothing is missing, late or repeated."""
    for seed in range(200):
        refined(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def test_clients_with_selectors_end_equal_to_the_broker() -> None:
    """The same with values that match or not, sessions that are taken over, and journals that are restored."""
    for seed in range(300):
        selective(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def test_clients_that_get_json_end_equal_to_the_broker() -> None:
    """The same with clients that get all fields or some as JSON: each value is the JSON of what was accepted."""
    for seed in range(200):
        as_json(random.Random(seed))  # noqa: S311 - a simulation, not a secret


def test_a_thousand_clients_that_return_at_once_end_equal_to_the_broker() -> None:
    """With and without positions and selectors, after changes that some of them have seen."""
    crowd(random.Random(0))  # noqa: S311 - a simulation, not a secret


def test_one_seed_repeats_exactly() -> None:
    """Two runs of one seed do and send the same in the same order, whatever hashes strings have."""
    code = "from tests.simulation.venue import simulate; print(simulate(7).digest.hexdigest())"
    assert outputs_of(code) == {f"{simulate(7).digest.hexdigest()}\n".encode()}


def test_a_failing_seed_is_named_with_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever process meets it, the seed and the command are the last line, and the command ends with 1."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "nothing written")
    with mutant.applied(), patch.object(sys, "argv", ["simulation", "--seeds", "4", "--jobs", "2"]):
        assert main() == 1
    assert re.search(r"repeat: python -m tests\.simulation --seed \d+\n$", capsys.readouterr().err)


def test_simulated_worlds_are_not_idle() -> None:
    """Seeds do crash, refuse, commit and deliver."""
    venues = [simulate(seed) for seed in range(10)]
    assert sum(venue.crashes for venue in venues) > 10
    assert sum(venue.refusals for venue in venues) > 10
    assert sum(venue.committed for venue in venues) > 300
    assert sum(venue.messages for venue in venues) > 300
    attendances = [venue.attendance for venue in venues if venue.attendance is not None]
    assert sum(attendance.fired for attendance in attendances) > 5
    assert sum(attendance.expired for attendance in attendances) > 5


@each_of((*MUTANTS, *REFINED_MUTANTS, *ATTENDANCE_MUTANTS, *JSON_MUTANTS, *AHEAD_MUTANTS))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed by the model or by the simulation."""
    require_noticed(
        mutant, partial(_simulate, mutant), 1000 if mutant.refined or mutant.selective or mutant.json else 120
    )


def _simulate(mutant: Mutant, seed: int) -> None:
    """Run the simulations that can notice a mutant."""
    if mutant.attending:
        if seed % 2:  # as the others have no last wills
            simulate(seed)
    elif mutant.ahead:
        venue_ahead(seed)
    elif mutant.json:
        as_json(random.Random(seed))  # noqa: S311 - a simulation, not a secret
    elif mutant.selective:
        selective(random.Random(seed))  # noqa: S311 - a simulation, not a secret
    elif mutant.refined:
        refined(random.Random(seed))  # noqa: S311 - a simulation, not a secret
    elif mutant.venue:
        simulate(seed, refining=False)
    else:
        for history in (directed, overtaken, walk, alike):
            history(random.Random(seed))  # noqa: S311 - a simulation, not a secret
        if seed < mutant.first + 30:
            simulate(seed, refining=False)
