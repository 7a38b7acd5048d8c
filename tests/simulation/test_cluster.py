"""Members of a cluster: two never lead at once, and one leads when nothing fails, in all short histories."""

import random

import pytest

from tests.simulation.roles import World, explore, leading_world

SETTLED = 15  # worlds at the ends of histories, from which one must come to lead


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
