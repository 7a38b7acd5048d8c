"""Durations in buckets less than a hundredth wide, so that any number of them takes little room and many add up."""

import math
from collections.abc import Iterable
from typing import Final, final

_FINE: Final = 128  # buckets of each doubling


@final
class Histogram:
    """How often which duration was seen."""

    __slots__ = ("buckets", "count", "max_ns")

    def __init__(self) -> None:
        self.buckets: Final[dict[int, int]] = {}
        self.count = 0
        self.max_ns = 0

    def __reduce__(self) -> tuple[object, tuple[dict[int, int], int, int]]:
        # to go from one process to another also when it is compiled, as pickle cannot set the fields of such a class
        return restored, (self.buckets, self.count, self.max_ns)

    def record(self, duration_ns: int) -> None:
        """Count one duration; one below 0 counts as 0."""
        if duration_ns < 0:
            duration_ns = 0
        shift = duration_ns.bit_length() - 8
        if shift < 0:
            shift = 0
        bucket = shift * _FINE + (duration_ns >> shift)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns

    def add(self, other: "Histogram") -> None:
        """Add all that another has counted."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.max_ns = max(self.max_ns, other.max_ns)

    def quantile_ns(self, share: float) -> int:
        """Return the least duration that this share of all does not exceed, to within 0.8 %; the greatest is exact.

        Raises:
            ValueError: Nothing has been counted.
        """
        if not self.count:
            raise ValueError("no duration has been counted")
        rank = max(1, math.ceil(share * self.count))  # counted from 1
        if rank >= self.count:
            return self.max_ns
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(_middle(bucket), self.max_ns)
        return self.max_ns


def restored(buckets: dict[int, int], count: int, max_ns: int) -> Histogram:
    """Return one with these fields."""
    histogram = Histogram()
    histogram.buckets.update(buckets)
    histogram.count = count
    histogram.max_ns = max_ns
    return histogram


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return a new one with what all have counted."""
    result = Histogram()
    for histogram in histograms:
        result.add(histogram)
    return result


def _middle(bucket: int) -> int:
    if bucket < 2 * _FINE:
        return bucket
    shift = bucket // _FINE - 1
    return ((bucket - shift * _FINE) << shift) + ((1 << shift) >> 1)
