"""The delivery window of one connection: as few messages in flight as keep its link full.

Theory: a value is freshest when it is read from the store as late as possible, so what is in flight beyond the bandwidth-delay
product only ages. The window is sized as BBR sizes TCP's: the windowed maximum of the ACK rate times the windowed minimum of the
time from MESSAGE to ACK, plus one. It starts at 10 and doubles while that raises the rate (start-up), then follows the
product, tries a quarter more in one round of eight to find a faster consumer, and every few seconds lets the window fall to its
floor for one sample, because a queue hides the true round trip. Samples taken while nothing waited say nothing about what
the consumer can do, so they can raise the estimate but never lower it.

Invariants: floor <= size <= limit, where the floor is one more than the most messages one ACK has covered.
"""

from typing import Final, final

WINDOW_INITIAL: Final = 10
STALL_TIMEOUT_MIN_S: Final = 0.1
_RATE_SPAN_S: Final = 0.5  # a maximum older than one to two spans is forgotten
_RATE_SPAN_ROUND_TRIPS: Final = 10.0
_ROUND_TRIP_SPAN_S: Final = 5.0  # a minimum older than one to two spans is forgotten
_STARTUP_GROWTH: Final = 1.25  # a round that adds less than this says that the link is full
_STARTUP_FULL_ROUNDS: Final = 3
_PROBE_EVERY_ROUNDS: Final = 8
_PROBE_GAIN: Final = 1.25
_NO_PROBE: Final = -1.0
_PROBE_WAITS: Final = -2.0  # for the messages in flight to fall below the floor

Stamp = tuple[
    float, int, float, bool
]  # sent at, messages acked before it, time of the last ACK before it, nothing waited


@final
class Window:
    """Say how many messages of one connection may be un-acked.

    Attributes:
        size: How many messages may be in flight now.
        limit: What `size` never exceeds.
        round_trip_s: Smallest recent time from MESSAGE to its ACK; 0.0 before the first.
    """

    __slots__ = (
        "_acked",
        "_acked_at_s",
        "_covered_max",
        "_fixed",
        "_full_rate",
        "_full_rounds",
        "_probe_from_s",
        "_rate",
        "_rate_before",
        "_rate_busy",
        "_rate_since_s",
        "_round_end",
        "_round_trip_since_s",
        "_round_trip_span_s",
        "_rounds",
        "_starting",
        "limit",
        "round_trip_s",
        "size",
    )

    def __init__(self, limit: int, fixed: bool, now_s: float) -> None:
        self.limit: Final = limit
        self._fixed: Final = fixed
        self.size = limit if fixed else min(WINDOW_INITIAL, limit)
        self.round_trip_s = 0.0
        self._acked = 0
        self._acked_at_s = now_s
        self._covered_max = 1
        self._rate = 0.0  # messages per second, maximum of the present span
        self._rate_before = 0.0  # of the span before it
        self._rate_since_s = now_s
        self._rate_busy = False  # the present span has a sample taken while values waited
        self._round_trip_span_s = 0.0  # smallest of the present span
        self._round_trip_since_s = now_s
        self._probe_from_s = _NO_PROBE  # the round trip is probed with messages sent from this moment on
        self._starting = True
        self._full_rate = 0.0
        self._full_rounds = 0
        self._round_end = 0
        self._rounds = 0

    @property
    def floor(self) -> int:
        """One more than the most messages that one ACK has covered."""
        return min(self._covered_max + 1, self.limit)

    def sent(self, now_s: float, idle: bool) -> Stamp:
        """Return what `acked` needs to know of a message sent now; `idle` means that nothing waited behind it."""
        return (now_s, self._acked, self._acked_at_s, idle)

    def acked(self, stamp: Stamp, covered: int, in_flight: int, now_s: float) -> None:
        """Learn from an ACK.

        Args:
            stamp: Of the newest message that the ACK covers.
            covered: Messages that it covers.
            in_flight: Messages still un-acked after it.
            now_s: When it was read.
        """
        self._acked += covered
        self._acked_at_s = now_s
        self._covered_max = max(self._covered_max, covered)
        if self._fixed:
            return
        sent_s, acked_then, acked_then_s, idle = stamp
        self._learn_round_trip(max(now_s - sent_s, 1e-6), sent_s, idle, in_flight, now_s)
        self._learn_rate((self._acked - acked_then) / max(now_s - min(acked_then_s, sent_s), 1e-6), idle, now_s)
        if acked_then >= self._round_end:
            self._end_round(idle)
        self._resize()

    def stalled(self) -> None:
        """Double the size: the window is full, values wait, and no ACK has come for `stall_timeout_s`."""
        self.size = min(self.size * 2, self.limit)

    @property
    def stall_timeout_s(self) -> float:
        """Seconds without an ACK after which a full window doubles."""
        return max(4 * self.round_trip_s, STALL_TIMEOUT_MIN_S)

    def _learn_round_trip(self, round_trip_s: float, sent_s: float, idle: bool, in_flight: int, now_s: float) -> None:
        if self.round_trip_s == 0.0 or round_trip_s < self.round_trip_s:
            self.round_trip_s = round_trip_s
        if self._round_trip_span_s == 0.0 or round_trip_s < self._round_trip_span_s:
            self._round_trip_span_s = round_trip_s
        if self._probe_from_s == _PROBE_WAITS:
            if in_flight < self.floor:
                self._probe_from_s = now_s
        elif self._probe_from_s != _NO_PROBE and sent_s >= self._probe_from_s:
            self._probe_from_s = _NO_PROBE
        if now_s - self._round_trip_since_s > _ROUND_TRIP_SPAN_S:
            self.round_trip_s, self._round_trip_span_s = self._round_trip_span_s, round_trip_s
            self._round_trip_since_s = now_s
            if not idle and not self._starting:
                self._probe_from_s = _PROBE_WAITS

    def _learn_rate(self, rate: float, idle: bool, now_s: float) -> None:
        if not idle:
            self._rate_busy = True
        if rate > self._rate:
            self._rate = rate
        span_s = max(_RATE_SPAN_S, _RATE_SPAN_ROUND_TRIPS * self.round_trip_s)
        if self._rate_busy and now_s - self._rate_since_s > span_s:
            self._rate_before, self._rate = self._rate, 0.0 if idle else rate
            self._rate_since_s = now_s
            self._rate_busy = False

    def _end_round(self, idle: bool) -> None:
        self._rounds += 1
        self._round_end = self._acked
        if self._starting and not idle:
            rate = max(self._rate, self._rate_before)
            if rate > self._full_rate * _STARTUP_GROWTH:
                self._full_rate = rate
                self._full_rounds = 0
            else:
                self._full_rounds += 1
                self._starting = self._full_rounds < _STARTUP_FULL_ROUNDS

    def _resize(self) -> None:
        product = max(self._rate, self._rate_before) * self.round_trip_s
        if self._starting:
            target = max(self.size, int(2 * product) + 1)
        elif self._probe_from_s != _NO_PROBE:
            target = 0
        elif self._rounds % _PROBE_EVERY_ROUNDS == 0:
            target = int(product * _PROBE_GAIN + 0.999) + 1
        else:
            target = int(product + 0.5) + 1
        self.size = max(self.floor, min(target, self.limit))
