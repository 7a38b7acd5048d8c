"""How much of something each principal may use: token buckets, without a clock of their own."""

from typing import Final, final

_KEYS_MAX: Final = 1024  # buckets kept at a time, unless the caller sets another limit


@final
class TokenBucket:
    """An amount that refills at a constant rate, up to a burst.

    A bucket that is not empty grants any amount, so its balance may become negative. The caller waits until `ready_s` before it grants more. Times are
    seconds of any one clock; a clock that is set back refills nothing.
    """

    __slots__ = ("_balance", "_burst", "_per_s", "_since_s")

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s: Final = float(per_s)
        self._burst: Final = float(burst)
        self._balance = self._burst
        self._since_s = now_s

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount. The balance becomes negative if there is less."""
        self._refill(now_s)
        self._balance -= amount

    def empty(self, now_s: float) -> bool:
        """Return True if nothing is left."""
        self._refill(now_s)
        return self._balance <= 0

    def full(self, now_s: float) -> bool:
        """Return True if the bucket is as full as a new one."""
        self._refill(now_s)
        return self._balance >= self._burst

    def ready_s(self, now_s: float) -> float:
        """Return when the balance is no longer negative: `now_s` if it is not."""
        self._refill(now_s)
        return now_s if self._balance >= 0 else now_s - self._balance / self._per_s

    def _refill(self, now_s: float) -> None:
        self._balance = min(self._burst, self._balance + max(0.0, now_s - self._since_s) * self._per_s)
        self._since_s = now_s


@final
class TokenBuckets:
    """A bucket for each key, such as a principal, made when it is first asked for.

    At most `keys_max` buckets are kept. Full ones are forgotten first, as a new bucket equals a full one; then the oldest.
    """

    __slots__ = ("_buckets", "_burst", "_keys_max", "_per_s")

    def __init__(self, per_s: float, burst: float, keys_max: int = _KEYS_MAX) -> None:
        self._keys_max: Final = keys_max
        self._per_s: Final = per_s
        self._burst: Final = burst
        self._buckets: Final[dict[str, TokenBucket]] = {}

    def of(self, key: str, now_s: float) -> TokenBucket:
        """Return the bucket of a key."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._keys_max:
                self._forget(now_s)
            bucket = self._buckets[key] = TokenBucket(self._per_s, self._burst, now_s)
        return bucket

    def _forget(self, now_s: float) -> None:
        for key in [key for key, bucket in self._buckets.items() if bucket.full(now_s)]:
            del self._buckets[key]
        if len(self._buckets) >= self._keys_max:
            del self._buckets[next(iter(self._buckets))]
