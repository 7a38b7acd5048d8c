"""Percentiles of the load tool's histograms."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxam.bench.histogram import Histogram, merged

DURATIONS = st.lists(st.integers(0, 2**50), min_size=1, max_size=200)


def _of(durations: list[int]) -> Histogram:
    histogram = Histogram()
    for duration in durations:
        histogram.record(duration)
    return histogram


@given(DURATIONS, st.floats(0.0, 1.0))
def test_a_quantile_is_near_the_value_at_its_rank(durations: list[int], share: float) -> None:
    """Within 0.8 % of the value that has this share of all values at or below it."""
    exact = next(value for n, value in enumerate(sorted(durations), 1) if n >= share * len(durations))
    assert abs(_of(durations).quantile_ns(share) - exact) <= exact * 0.008


@given(DURATIONS)
def test_the_last_quantile_is_the_maximum(durations: list[int]) -> None:
    """The quantile of 1 is exact."""
    assert _of(durations).quantile_ns(1.0) == max(durations)


@given(DURATIONS, DURATIONS)
def test_merged_histograms_are_one_of_all_values(first: list[int], second: list[int]) -> None:
    """Counting apart and adding up gives the same as counting together."""
    together, apart = _of(first + second), merged([_of(first), _of(second)])
    assert apart.buckets == together.buckets
    assert (apart.count, apart.max_ns) == (together.count, together.max_ns)


@given(DURATIONS)
def test_it_travels_between_processes(durations: list[int]) -> None:
    """Pickled and read back it is the same, compiled or not."""
    histogram = _of(durations)
    read = pickle.loads(pickle.dumps(histogram))  # noqa: S301  # our own bytes
    assert (read.buckets, read.count, read.max_ns) == (histogram.buckets, histogram.count, histogram.max_ns)


def test_a_negative_duration_counts_as_none() -> None:
    """Two clocks may differ by a little; the result is 0, not a wrong bucket."""
    assert _of([-5]).quantile_ns(0.5) == 0


def test_nothing_has_no_quantile() -> None:
    """An empty histogram raises ValueError."""
    with pytest.raises(ValueError, match="no duration"):
        Histogram().quantile_ns(0.5)
