"""Token buckets: bursts, debts, refills and clocks."""

from maxam import token_bucket
from maxam.token_bucket import TokenBucket, TokenBuckets


def test_a_bucket_grants_its_burst_and_then_its_rate() -> None:
    """A debt beyond the burst is paid off at the rate."""
    bucket = TokenBucket(10, 100, 5.0)
    assert bucket.full(5.0)
    bucket.take(100, 5.0)
    assert bucket.empty(5.0)
    assert bucket.ready_s(5.0) == 5.0
    bucket.take(20, 5.0)
    assert bucket.ready_s(5.0) == 7.0
    assert bucket.ready_s(6.0) == 7.0
    assert bucket.empty(7.0)
    assert not bucket.empty(7.5)
    assert not bucket.full(16.9)
    assert bucket.full(17.0)


def test_a_clock_that_is_set_back_refills_nothing() -> None:
    """Time counts from where the clock is then."""
    bucket = TokenBucket(10, 100, 50.0)
    bucket.take(200, 50.0)
    assert bucket.ready_s(20.0) == 30.0
    assert bucket.empty(29.0)
    assert not bucket.empty(30.5)


def test_the_number_of_buckets_is_bounded() -> None:
    """Full ones are forgotten first, as a new one is the same; then the oldest."""
    buckets = TokenBuckets(1, 10)
    used = [buckets.of(str(n), 0.0) for n in range(token_bucket._KEYS_MAX)]
    used[0].take(5, 0.0)
    assert buckets.of("new", 0.0) is buckets.of("new", 0.0)
    assert len(buckets._buckets) == 2
    assert buckets.of("0", 0.0) is used[0]
    for n in range(token_bucket._KEYS_MAX):
        buckets.of(f"again{n}", 0.0).take(1, 0.0)
    assert len(buckets._buckets) == token_bucket._KEYS_MAX
    assert buckets.of("0", 0.0) is not used[0]


def test_the_limit_of_buckets_can_be_set() -> None:
    """A third key takes the place of the oldest bucket, as no bucket is full."""
    buckets = TokenBuckets(1, 10, 2)
    kept = {key: buckets.of(key, 0.0) for key in ("a", "b")}
    for bucket in kept.values():
        bucket.take(1, 0.0)
    buckets.of("c", 0.0)
    assert buckets.of("b", 0.0) is kept["b"]
    assert buckets.of("a", 0.0) is not kept["a"]
