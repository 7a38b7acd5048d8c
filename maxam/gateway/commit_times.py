"""How long the journal's disk takes for a block: the figures of one thread that writes and of others that read them.

Theory of operation. Each duration is counted in one of 60 or so narrow buckets, ten to a decade. Once a minute the counts are put
aside. The count since any of the last minutes is a difference. Any percentile of it is known to within a tenth of a decade.
Prometheus gets a few of the bounds, with the sums between them. So a commit costs two reads of the clock and one count.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Final, final

from maxam.metrics import Histogram

_STEPS: Final = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)  # to a decade, as resistors are made
_BOUNDS_S: Final = tuple(float(f"{step:g}e{decade}") for decade in range(-5, 2) for step in _STEPS)
SHOWN_BOUNDS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_ASIDE_S: Final = 60.0
_MINUTES: Final = 5


@dataclass(frozen=True, slots=True)
class Recent:
    """Durations of commits in the last minutes, in seconds. None while there was no commit.

    Attributes:
        count: How many there were.
        p50_s: Half of them took no longer, to within a tenth of a decade.
        p99_s: The same for 99 of a hundred.
        last_s: The last one there was, however long ago.
        since_s: How far the others go back.
    """

    count: int
    p50_s: float | None
    p99_s: float | None
    last_s: float | None
    since_s: float


@final
class CommitTimes:
    """Counts what each block took to be written and synced; `add` belongs to one thread, the rest to any."""

    __slots__ = ("_aside", "_begun_s", "_counts", "_next_s", "_sum_s", "last_s")

    def __init__(self, now_s: float) -> None:
        """Begin to count; all times are of one monotonic clock."""
        self._counts: Final = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0
        self._begun_s: Final = now_s
        self._next_s = now_s + _ASIDE_S
        self._aside: Final[deque[tuple[float, list[int]]]] = deque(maxlen=_MINUTES + 1)
        self.last_s: float | None = None

    def add(self, begun_s: float, ended_s: float) -> None:
        """Count a block."""
        if ended_s >= self._next_s:
            self._aside.append((ended_s, self._counts.copy()))
            self._next_s = ended_s + _ASIDE_S
        took_s = ended_s - begun_s
        self._counts[bisect_left(_BOUNDS_S, took_s)] += 1
        self._sum_s += took_s
        self.last_s = took_s

    def recent(self, now_s: float) -> Recent:
        """Return the figures of the last five minutes, or of up to one less: since some counts in that time were put aside."""
        since_s, before = self._begun_s, [0] * len(self._counts)
        after = self._counts.copy()
        if since_s < now_s - _MINUTES * _ASIDE_S:
            # none was put aside in that time: nothing was counted, but maybe in the first minute of it
            since_s, before = next(
                (one for one in self._aside.copy() if one[0] >= now_s - _MINUTES * _ASIDE_S), (now_s, after)
            )
        counts = [late - early for late, early in zip(after, before, strict=True)]
        total = sum(counts)
        p50_s, p99_s = _percentile(counts, total, 0.5), _percentile(counts, total, 0.99)
        return Recent(total, p50_s, p99_s, self.last_s, now_s - since_s)

    @property
    def histogram(self) -> Histogram:
        """All since the beginning, as Prometheus counts."""
        found = Histogram(SHOWN_BOUNDS_S)
        for bound_s, count in zip((*_BOUNDS_S, float("inf")), self._counts.copy(), strict=True):
            found.counts[bisect_left(SHOWN_BOUNDS_S, bound_s)] += count
        found.sum = self._sum_s
        return found


def _percentile(counts: list[int], total: int, share: float) -> float | None:
    """Return the upper bound of the bucket that the share ends in."""
    if not total:
        return None
    wanted, seen = share * total, 0
    for at, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return _BOUNDS_S[min(at, len(_BOUNDS_S) - 1)]
    return _BOUNDS_S[-1]
