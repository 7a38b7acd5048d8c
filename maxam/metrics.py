"""Counts of the broker's work since it started: plain integers and histograms, each written by one thread.

`gateway/measures` reads them for /metrics, beside values that it asks other objects for.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, final


@final
class Counters:
    """Totals since start-up. Each counts events unless its name has `bytes` in it."""

    __slots__ = (
        "acks",
        "acks_ignored",
        "changes",
        "conflated",
        "messages",
        "rejected",
        "rejects_failed",
        "rejects_over_queue",
        "rejects_over_rate",
        "rejects_stored",
        "sends_invalid",
        "sends_superseded",
        "sends_unauthorised",
        "sends_unavailable",
        "sessions_expired",
        "shadow_rejections",
        "shadow_trials",
        "snapshots_built",
        "snapshots_failed",
        "subscriptions_expired",
        "takeovers",
        "topics_expired",
        "wills_fired",
        "wills_rejected",
    )

    def __init__(self) -> None:
        self.changes = 0  # accepted values and deletes that were applied
        self.conflated = 0  # changes that were replaced before they were read, of subscriptions that are gone
        self.rejected: dict[str, int] = {}  # SENDs, by the code of their result
        self.sends_invalid = 0
        self.sends_superseded = 0  # accepted, but of a source that has sent the topic something as new or newer
        self.sends_unauthorised = 0
        self.sends_unavailable = 0
        # rejected SENDs in their journal; the first two are written by the thread that stores them
        self.rejects_stored = 0
        self.rejects_failed = 0  # not stored: no room, or the disk failed
        self.rejects_over_rate = 0  # not stored: their principal had too many
        self.rejects_over_queue = 0  # not stored: too many waited
        self.shadow_trials = 0  # SENDs on which a candidate version was tried
        self.shadow_rejections = 0  # of these, what it would have rejected
        self.messages = 0  # MESSAGE frames handed to connections
        self.acks = 0
        self.acks_ignored = 0
        self.snapshots_built = 0
        self.snapshots_failed = 0
        self.takeovers = 0
        self.wills_fired = 0  # SENDs of last wills that were accepted
        self.wills_rejected = 0  # last wills that were refused at CONNECT, or when they were due
        self.topics_expired = 0  # deletes that the gateway appended, as a rule sets `expire_after_s`
        self.sessions_expired = 0
        self.subscriptions_expired = 0  # durable ones that their client did not use, though it came back

    def reject(self, result: str) -> None:
        """Count a rejected SEND; `result` is a code of the closed table of the protocol."""
        self.rejected[result] = self.rejected.get(result, 0) + 1


@final
class Histogram:
    """Distribution of times or sizes, as Prometheus counts it.

    Attributes:
        bounds: Upper ends of the buckets, rising. Larger values have a bucket of their own.
        counts: Observations in each bucket alone, one more than `bounds`.
        sum: Of all observations.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = tuple(bounds)
        self.counts: Final = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one; a value equal to a bound is below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
