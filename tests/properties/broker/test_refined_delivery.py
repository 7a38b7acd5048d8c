"""Refined subscriptions beside a client that keeps what it receives: all short histories."""

import pytest

from tests.simulation.refined import Asks
from tests.simulation.refined_histories import KINDS, enumerate_refined

DEPTH = 3  # steps after SUBSCRIBE and its commit; one more takes some seven times as long


@pytest.mark.slow
@pytest.mark.parametrize("asks", KINDS, ids=str)
def test_all_short_histories_of_a_refined_subscription(asks: Asks) -> None:
    """After no history of so few steps does the client differ from the broker, and no step breaks a rule."""
    assert enumerate_refined(asks, DEPTH) > 250
