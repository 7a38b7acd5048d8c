"""Times of commits: percentiles of the last minutes, and the histogram that is scraped."""

import math
import random

from maxam.gateway.commit_times import CommitTimes


def times_of(durations_s: list[float], every_s: float, begun_s: float = 1000.0) -> tuple[CommitTimes, float]:
    """Commit one block after the other, each at a distance from the one before. Return also when the last ended."""
    times = CommitTimes(begun_s)
    now_s = begun_s
    for took_s in durations_s:
        now_s += every_s
        times.add(now_s - took_s, now_s)
    return times, now_s


def test_percentiles_are_within_a_tenth_of_a_decade() -> None:
    """Of any durations from 10 us to 10 s, p50 and p99 are no lower than the true ones, and at most 30 % higher."""
    chosen = random.Random(3)  # noqa: S311 - repeatable, not secret
    for size in (1, 2, 99, 1000):
        durations_s = [10 ** chosen.uniform(-5, 1) for _ in range(size)]
        times, now_s = times_of(durations_s, 0.001)
        recent = times.recent(now_s)
        assert recent.count == size
        for found_s, share in ((recent.p50_s, 0.5), (recent.p99_s, 0.99)):
            exact_s = sorted(durations_s)[math.ceil(share * size) - 1]
            assert found_s is not None
            assert exact_s * 0.999999 <= found_s <= exact_s * 1.3
        assert recent.last_s is not None
        assert math.isclose(recent.last_s, durations_s[-1], abs_tol=1e-9)


def test_what_is_older_than_five_minutes_counts_no_more() -> None:
    """A slow hour ago is forgotten by the percentiles and kept by the histogram; the figures cover four to five minutes."""
    times, now_s = times_of([1.0] * 600 + [0.0009] * 600, 1.0)
    recent = times.recent(now_s)
    assert (recent.p50_s, recent.p99_s) == (0.001, 0.001)
    assert 240 <= recent.since_s <= 300
    assert recent.count == round(recent.since_s) + 1
    assert sum(times.histogram.counts) == 1200


def test_an_idle_gateway_has_no_percentiles() -> None:
    """Without a commit in the last minutes there are no figures except the last commit. A new object has not even that."""
    fresh = CommitTimes(5.0).recent(6.0)
    assert (fresh.count, fresh.p50_s, fresh.p99_s, fresh.last_s, fresh.since_s) == (0, None, None, None, 1.0)
    times, now_s = times_of([0.5] * 100, 1.0)
    later = times.recent(now_s + 10_000)
    assert (later.count, later.p50_s, later.p99_s, later.since_s) == (0, None, None, 0.0)
    assert later.last_s is not None
    assert math.isclose(later.last_s, 0.5, abs_tol=1e-9)


def test_the_histogram_counts_each_block_once() -> None:
    """Every duration is in the bucket of the first bound that it does not exceed, and the sum is that of all."""
    durations_s = [0.00005, 0.0003, 0.0009, 0.003, 0.04, 0.3, 0.7, 2.0, 7.0, 500.0]
    times, _ = times_of(durations_s, 1.0, 0.0)
    found = times.histogram
    for bound_s, below in zip(
        found.bounds, [sum(found.counts[: at + 1]) for at in range(len(found.bounds))], strict=True
    ):
        assert below == sum(took_s <= bound_s for took_s in durations_s)
    assert sum(found.counts) == len(durations_s)
    assert math.isclose(found.sum, sum(durations_s), rel_tol=1e-9)
