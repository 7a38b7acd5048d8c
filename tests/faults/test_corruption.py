"""A short run of `tests.faults.corruption`, which describes the promises."""

from collections import Counter

from tests.faults.corruption import check

FAULTS = 150


def test_damage_at_rest_is_refused_cut_off_or_of_no_consequence_and_can_be_repaired() -> None:
    """For a fixed run of seeds no promise is broken, and each outcome comes up."""
    outcomes = Counter(check(seed) for seed in range(FAULTS))
    assert sum(outcomes.values()) == FAULTS
    assert {"right", "refused", "cut"} <= outcomes.keys()
