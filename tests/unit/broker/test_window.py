"""The delivery window, against simulated consumers on simulated links."""

import random
from heapq import heappop, heappush
from statistics import mean, median

import pytest

from maxam.broker.window import WINDOW_FIRST, WINDOW_INITIAL, Stamp, Window


class Consumer:
    """A consumer that takes `work_s` per message, `way_s` away, and acks every `batch`-th message, `behind` messages later."""

    def __init__(self, window: Window, work_s: float, way_s: float, batch: int = 1, behind: int = 0) -> None:
        self.window = window
        self.work_s = work_s
        self.way_s = way_s
        self.batch = batch
        self.behind = behind
        self.now_s = 0.0
        self.stamps: list[Stamp] = []
        self.acked = 0
        self.events: list[tuple[float, int]] = []  # (an ACK arrives, how many messages it and those before it cover)
        self.free_s = 0.0
        self.sizes: list[tuple[float, int]] = []  # (time, in flight) after every step

    @property
    def in_flight(self) -> int:
        """Messages without an ACK."""
        return len(self.stamps) - self.acked

    def step(self) -> None:
        """Change before a message is sent."""

    def run(self, until_s: float) -> int:
        """Keep values waiting until then; return how many messages were acked meanwhile."""
        acked = self.acked
        full_since_s: float | None = None
        while True:
            while self.in_flight < self.window.size:
                self.step()
                self.stamps.append(self.window.sent(self.now_s, False))
                self.free_s = max(self.free_s, self.now_s + self.way_s) + self.work_s
                if len(self.stamps) % self.batch == 0 and len(self.stamps) > self.behind:
                    heappush(self.events, (self.free_s + self.way_s, len(self.stamps) - self.behind))
            self.sizes.append((self.now_s, self.in_flight))
            full_since_s = self.now_s if full_since_s is None else full_since_s
            stall_s = full_since_s + self.window.stall_timeout_s
            if not self.events or stall_s < self.events[0][0]:
                self.now_s = stall_s
                full_since_s = stall_s
                self.window.stalled()
            else:
                self.now_s, position = heappop(self.events)
                if position <= self.acked:
                    continue  # overtaken by one that covers it
                covered = position - self.acked
                self.acked = position
                self.window.acked(self.stamps[position - 1], covered, self.now_s)
                full_since_s = None
            if self.now_s >= until_s:
                return self.acked - acked

    def in_flight_after(self, start_s: float) -> list[int]:
        """Return how many messages were in flight at each step after a moment."""
        return [size for now_s, size in self.sizes if now_s > start_s]


def test_a_slow_consumer_on_a_near_link_has_few_in_flight() -> None:
    """A consumer of 2 ms per message on a near link has 1 to 3 in flight for a minute, except probes. It is never idle."""
    consumer = Consumer(Window(100, False, 0.0), work_s=0.002, way_s=0.0001)
    rate = consumer.run(60.0) / 60.0
    sizes = sorted(consumer.in_flight_after(1.0))
    assert sizes[int(0.8 * len(sizes))] <= 3
    assert sizes[-1] <= 5
    assert rate > 0.95 / 0.0022


def test_a_consumer_that_needs_one_in_flight_has_one() -> None:
    """A consumer of 20 ms on a near link has one message in flight at the median, and 95 % of the possible rate."""
    consumer = Consumer(Window(100, False, 0.0), work_s=0.02, way_s=0.0001)
    consumer.run(5.0)
    assert consumer.run(65.0) > 0.95 * 60.0 / 0.02
    assert median(consumer.in_flight_after(5.0)) == 1


def test_a_consumer_that_acks_the_message_before_stalls_once() -> None:
    """A client that acknowledges a message when the next one has come goes on at its full rate."""
    consumer = Consumer(Window(100, False, 0.0), work_s=0.02, way_s=0.0001, behind=1)
    consumer.run(5.0)
    assert consumer.run(65.0) > 0.98 * 60.0 / 0.02
    assert consumer.window.floor == 2


class Wavering(Consumer):
    """A consumer whose ways and times vary: each way is up to `1 + jitter` times as long, each time one of no memory."""

    def __init__(self, window: Window, work_s: float, way_s: float, jitter: float, forgetful: bool, seed: int) -> None:
        super().__init__(window, work_s, way_s)
        self._usually = work_s, way_s
        self._jitter = jitter
        self._forgetful = forgetful
        self._random = random.Random(seed)  # noqa: S311  # to be repeatable

    def step(self) -> None:
        """Draw the next message's times."""
        work_s, way_s = self._usually
        self.way_s = way_s * (1 + self._jitter * self._random.random())
        self.work_s = work_s * self._random.expovariate(1) if self._forgetful else work_s


def share_of_fixed(work_s: float, round_trip_s: float, jitter: float, forgetful: bool = False, seed: int = 1) -> float:
    """Return what part of the rate of a fixed window of 100 the adaptive one reaches, after 5 s to learn."""
    acked = []
    for fixed in (False, True):
        consumer = Wavering(Window(100, fixed, 0.0), work_s, round_trip_s / 2, jitter, forgetful, seed)
        consumer.run(5.0)
        acked.append(consumer.run(5.0 + max(3.0, 100 * round_trip_s, 1000 * work_s)))
    return acked[0] / acked[1]


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("round_trip_s", [0.005, 0.05, 0.2])
@pytest.mark.parametrize("work_s", [0.0, 0.0002, 0.002, 0.02])
def test_the_rate_on_a_far_link_is_that_of_a_fixed_window(work_s: float, round_trip_s: float, jitter: float) -> None:
    """With round trips of 5 to 200 ms, even or jittery, a consumer reaches 90 % of the rate of a fixed window of 100."""
    assert share_of_fixed(work_s, round_trip_s, jitter) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("round_trip_s", [0.005, 0.05, 0.2])
@pytest.mark.parametrize(("work_s", "least"), [(0.0002, 0.9), (0.002, 0.9), (0.02, 0.8)])
def test_a_consumer_whose_times_vary_loses_little(
    work_s: float, least: float, round_trip_s: float, jitter: float
) -> None:
    """When each message takes a time without memory, nine tenths of a fixed window's rate are reached, at 20 ms eight."""
    assert mean(share_of_fixed(work_s, round_trip_s, jitter, True, seed) for seed in (1, 2, 3)) > least


@pytest.mark.parametrize(("work_s", "round_trip_s", "most"), [(0.002, 0.0002, 3), (0.02, 0.0002, 4), (0.002, 0.005, 8)])
def test_a_consumer_whose_times_vary_has_few_in_flight(work_s: float, round_trip_s: float, most: int) -> None:
    """Random changes of a slow consumer's rate do not widen its window: it has few in flight at the median, mean of three runs."""
    medians = []
    for seed in (1, 2, 3):
        consumer = Wavering(Window(100, False, 0.0), work_s, round_trip_s / 2, 0.0, True, seed)
        consumer.run(60.0)
        medians.append(median(consumer.in_flight_after(5.0)))
    assert mean(medians) <= most


def test_a_window_is_wide_soon() -> None:
    """With a round trip of 50 ms all of the limit is in flight after 25 round trips."""
    consumer = Consumer(Window(100, False, 0.0), work_s=0.0002, way_s=0.025)
    consumer.run(1.25)
    assert max(consumer.in_flight_after(0.0)) == 100


@pytest.mark.parametrize("batch", [2, 10, 50, 100])
def test_a_consumer_that_acks_in_batches_never_stalls(batch: int) -> None:
    """A consumer that acks every 50th message goes on at its full rate once the window has learned that."""
    consumer = Consumer(Window(100, False, 0.0), work_s=0.001, way_s=0.0001, batch=batch)
    consumer.run(5.0)
    assert consumer.run(15.0) > 0.8 * 10.0 / 0.001 or (batch == 100 and consumer.acked > 5000)
    assert consumer.window.size > min(batch, 99)


def test_a_quick_consumer_with_a_jittery_round_trip_is_not_starved() -> None:
    """When the way takes 8 ms mostly and 0.5 ms now and then, the rate is still that of a wide window."""

    class Jittery(Consumer):
        """Its way is short for one message in fifty."""

        def step(self) -> None:
            self.way_s = 0.00025 if len(self.stamps) % 50 == 0 else 0.004

    adaptive, fixed = Jittery(Window(100, False, 0.0), 0.0001, 0.004), Jittery(Window(50, True, 0.0), 0.0001, 0.004)
    adaptive.run(3.0)
    fixed.run(3.0)
    assert adaptive.run(8.0) > 0.8 * fixed.run(8.0)


def test_the_window_follows_a_consumer_that_becomes_slow_and_fast_again() -> None:
    """In flight falls within 11 s when the consumer slows down, and rises again with it within 6 s."""
    window = Window(100, False, 0.0)
    consumer = Consumer(window, work_s=0.0001, way_s=0.005)
    consumer.run(3.0)
    assert median(consumer.in_flight_after(2.0)) >= 80
    consumer.work_s = 0.02
    consumer.run(15.0)
    assert median(consumer.in_flight_after(14.0)) <= 5
    consumer.work_s = 0.0001
    consumer.run(22.0)
    assert median(consumer.in_flight_after(21.0)) >= 80


def test_idle_samples_do_not_shrink_it() -> None:
    """The window is not shrunk by samples taken while nothing waited."""
    window = Window(100, False, 0.0)
    consumer = Consumer(window, work_s=0.0001, way_s=0.005)
    consumer.run(5.0)
    busy = window.size
    now_s = consumer.now_s
    for _ in range(500):
        now_s += 0.1
        stamp = window.sent(now_s, True)
        window.acked(stamp, 1, now_s + 0.0102)
    assert window.size >= 0.9 * busy


def test_floor_and_limit_hold() -> None:
    """It never exceeds the limit, and never falls below the most messages one ACK has covered plus one."""
    window = Window(100, False, 0.0)
    consumer = Consumer(window, work_s=0.002, way_s=0.0001, batch=20)
    consumer.run(10.0)
    consumer.batch = 1
    consumer.run(30.0)
    assert window.size >= 21
    small = Window(5, False, 0.0)
    assert small.size == 5
    small.stalled()
    assert small.size == 5
    small.acked(small.sent(0.0, False), 5, 0.1)
    assert small.size == 5


def test_the_first_flight_is_larger_and_does_not_raise_the_floor() -> None:
    """64 messages may be sent before the first ACK. However many of them one ACK covers, the window is 10 after it."""
    window = Window(100, False, 0.0)
    for covered in (1, 50, WINDOW_FIRST):
        window = Window(100, False, 0.0)
        assert window.size == WINDOW_FIRST
        window.acked(window.sent(0.0, False), covered, 0.1)
        assert window.size == WINDOW_INITIAL
    window.acked(window.sent(0.1, False), 20, 0.2)
    assert window.size == 21


def test_a_slow_consumer_that_seemed_stalled_is_not_flooded() -> None:
    """A window widened by a stall is narrow again with the next ACK, unless that covers more. A late ACK leaves no wider window."""
    window = Window(100, False, 0.0)
    window.acked(window.sent(0.0, False), WINDOW_FIRST, 0.0)
    stamp = window.sent(0.0, False)
    for _ in range(4):
        window.stalled()
    assert window.size == 100
    window.acked(stamp, 1, 0.5)
    assert window.size == WINDOW_INITIAL
    stamp = window.sent(0.5, False)
    for _ in range(4):
        window.stalled()
    window.acked(stamp, 50, 1.0)
    assert window.size == 51


def test_a_fixed_window_stays() -> None:
    """`window:<n>` fixes the delivery window."""
    window = Window(7, True, 0.0)
    Consumer(window, work_s=0.002, way_s=0.0001).run(10.0)
    assert window.size == 7
