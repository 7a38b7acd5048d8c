"""Members of a cluster: two never lead at once, and one leads when nothing fails, in all short histories."""

import random

import pytest

from maxam.cluster.member import Role
from tests.simulation.cluster import COUNTED, simulate
from tests.simulation.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.judging import each_of, outputs_of, require_kind, require_noticed
from tests.simulation.mutants import Mutant
from tests.simulation.roles import CUT_OFF_S, World, explore, leading_world

SEEDS_OF_A_MUTANT = 6
SETTLED = 10  # worlds at the ends of histories, from which one must come to lead


@pytest.mark.parametrize(
    ("names", "leading", "depth"), [("ab", False, 7), ("ab", True, 6), ("abc", False, 5), ("abc", True, 5)]
)
def test_roles_in_all_short_histories(names: str, leading: bool, depth: int) -> None:
    """Requests, answers, losses, freezes, crashes and handovers in any order."""
    world = leading_world(names) if leading else World(names)
    if not leading:
        world.now_s += 3.5
    pictures, ends = explore(world, depth)
    assert pictures > 1000
    for end in random.Random(depth).sample(ends, SETTLED):  # noqa: S311  # a sample, not a secret
        end.settle()


def test_a_full_log_does_not_end_its_leader() -> None:
    """It takes no connection after the lease, and goes on while each refusal shows its own head. Without any sign it ends."""
    world = leading_world("ab")
    leader, process = next(iter(world.processes.items()))
    full_s = world.now_s
    while world.now_s < full_s + 3 * CUT_OFF_S:
        world.do(f"tick {leader}")
        if process.swap is not None:
            world.do(f"refuse {leader}")
        world.now_s += 0.5
    assert (process.member.role, process.member.suspended) == (Role.LEADING, True)
    assert not process.member.serves(world.now_s)
    world.now_s += CUT_OFF_S
    world.do(f"tick {leader}")
    assert process.member.role.value == "ended"


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_what_a_cluster_promises_holds_whatever_fails(first: int) -> None:
    """Cuts, kills, power cuts, freezes, slow loops, handovers, a full log, empty machines, and a log that was set back."""
    for seed in range(first, first + 15):
        simulate(seed)


def test_simulated_clusters_are_not_idle() -> None:
    """Seeds do fail, hand over, copy, refuse and accept."""
    clusters = [simulate(seed) for seed in range(60, 72)]
    for name in COUNTED:
        assert sum(cluster.counted[name] for cluster in clusters) > 0, name


def test_one_seed_repeats_exactly() -> None:
    """Two runs of one seed do the same, whatever hashes strings have."""
    code = "from tests.simulation.cluster import simulate; c = simulate(7); print(sorted(c.counted.items()))"
    assert len(outputs_of(code)) == 1


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`--kinds cluster` selects this simulation."""
    require_kind("cluster", 2, capsys)


@each_of(CLUSTER_MUTANTS)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Each bug put in on purpose is noticed within few seeds."""
    require_noticed(mutant, simulate, SEEDS_OF_A_MUTANT)
