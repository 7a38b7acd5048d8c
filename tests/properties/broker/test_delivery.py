"""Delivery against a model that keeps every message: all short histories, then random ones, then directed ones."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.histories import KINDS, PAIRS, Kind, enumerate_conditions, enumerate_histories
from tests.simulation.walks import directed, walk

# Steps after SUBSCRIBE and its commit. One more step takes some six times as long.
DEPTH_OF_ONE = 4
DEPTH_OF_TWO = 3
DEPTH_OF_CONDITIONS = 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_short_histories_of_one_subscription(kind: Kind) -> None:
    """No history of so few steps makes the broker differ from the model, and after each everything due arrives."""
    tried, states = enumerate_histories((kind,), 1, DEPTH_OF_ONE)
    assert tried > states > 700


@pytest.mark.slow
@pytest.mark.parametrize("kinds", PAIRS, ids=lambda pair: f"{pair[0]}+{pair[1]}")
def test_all_short_histories_of_two_subscriptions(kinds: tuple[Kind, Kind]) -> None:
    """The same for two subscriptions of one connection, which share its window and take turns."""
    tried, states = enumerate_histories(kinds, 2, DEPTH_OF_TWO)
    assert tried > states > 150


@pytest.mark.slow
def test_all_short_histories_of_conditions() -> None:
    """The same for one publisher whose SENDs are compared with what its topic holds, and with what it keeps of two sources."""
    tried, states = enumerate_conditions(DEPTH_OF_CONDITIONS)
    assert tried > states > 1000


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False), st.integers(1, 80))
def test_random_histories_agree_with_the_model(rng: random.Random, length: int) -> None:
    """Takeovers, pauses, replacements, windows, reloads, full disks, crashes, snapshots: the broker does what the model predicts."""
    walk(rng, length)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_seeded_histories_agree_with_the_model(first: int) -> None:
    """Long random histories agree with the model."""
    for seed in range(first, first + 50):
        walk(random.Random(seed))  # noqa: S311 - a simulation, not a secret


@pytest.mark.slow
def test_directed_histories_agree_with_the_model() -> None:
    """Snapshots with holes, replacements without room, scans in batches: the broker does what the model predicts."""
    for seed in range(150):
        directed(random.Random(seed))  # noqa: S311 - a simulation, not a secret
