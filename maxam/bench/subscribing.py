"""Subscribers: quick ones that read as fast as they can, and slow ones that take a time for each message."""

import heapq
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.plan import Plan, SubscriberGroup
from maxam.bench.scanner import STAMP_BYTES, Counter, Scanner, Taken, Tally, error_text, mark, stamp_time_ns, topic_part
from maxam.bench.target import ANSWER_TIMEOUT_S, Line, Role, subscribe_frame
from maxam.bench.worker import Channel, Meter, Times, Use

_SUBSCRIPTION: Final = "s"
_SLICE_S: Final = 0.0002  # interval at which slow subscribers that wait for messages are checked while others work


@dataclass(slots=True)
class Received:
    """The observations of the subscribers of one process. Values of this run only, unless stated otherwise."""

    seconds: int
    messages: int = 0  # warm-up and last values included
    measured: int = 0  # taken up during the measurement
    per_second: list[int] = field(default_factory=list)
    latency: Histogram = field(
        default_factory=Histogram
    )  # from the stamp to when it was received, during the measurement
    staleness: list[Histogram] = field(default_factory=list)  # from the stamp to when it was taken up, of each second
    drain: Histogram = field(default_factory=Histogram)  # the same, after the publishers stopped
    observed: int = 0  # messages of the measurement that the histograms hold
    foreign: int = 0  # values that this run did not send
    disordered: int = 0
    unwanted: int = 0  # last values of topics that the glob does not match
    unsettled: list[tuple[int, int]] = field(default_factory=list)  # subscribers and how many last values each lacks
    settled_ns: int = 0  # when the last of them held every last value
    use: Use = field(default_factory=lambda: Use(0.0, 0.0))

    def __post_init__(self) -> None:
        """Begin with nothing in any second."""
        self.per_second = [0] * self.seconds
        self.staleness = [Histogram() for _ in range(self.seconds)]


@final
class _Subscriber:
    """One connection with one subscription."""

    def __init__(self, number: int, line: Line, group: SubscriberGroup, run: str, wanted: Sequence[int]) -> None:
        self.number: Final = number
        self.line: Final = line
        self.tally: Final = Tally()
        self.wanted: Final = wanted
        self.settled = False
        self.waiting: Final[deque[Taken]] = deque()  # received, and not yet taken up
        self._group: Final = group
        self._scanner: Final = Scanner(mark(run), group.ack != "auto")
        self._counter: Final = Counter(mark(run)) if group.counts_only else None
        self._reads = 0
        self._newest = b""

    def subscribe(self, names: Sequence[str]) -> None:
        """Subscribe to each and wait for the RECEIPTs; what comes with them is waiting then.

        Raises:
            LoadError: An ERROR came instead, or nothing.
        """
        group = self._group
        for number, name in enumerate(names):
            id_ = f"{_SUBSCRIPTION}{number}"
            self.line.write(subscribe_frame(id_, name, group.ack, group.eager, group.durable, group.headers))
            self._await_receipt()
        if self._counter is not None:
            self._counter.partial = self._scanner.partial[-STAMP_BYTES * 2 :]

    def unsubscribe(self) -> None:
        """End a durable subscription for good, so that the broker does not go on collecting for it.

        Raises:
            LoadError: The broker does not answer.
        """
        self.line.write(b"UNSUBSCRIBE\nid:%b0\ndurable:true\nreceipt:end\n\n\0" % _SUBSCRIPTION.encode())
        self._scanner.others.clear()
        self._await_receipt()

    def _await_receipt(self) -> None:
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while not self._scanner.others:
            self.line.wait(deadline_s, "RECEIPT")
            self.waiting.extend(self._scanner.feed(self.line.receive()))
        self.look_at_others()

    def receive(self, finals: bool) -> tuple[int, list[bytes], list[Taken]]:
        """Receive once; return how many values of this run came, the stamps that were read, and the MESSAGEs.

        Args:
            finals: Last values may be among them: nothing is only counted.

        Raises:
            LoadError: The broker has closed, or sent an ERROR.
        """
        try:
            data = self.line.receive()
        except LoadError as error:
            at = self._newest.find(b"ERROR\n")
            if at < 0:
                raise
            head, _, body = self._newest[at:].partition(b"\n\n")
            raise LoadError(f"{error}; {error_text(head, body.rstrip(bytes(1)))}") from error
        self._newest = data
        if self._counter is not None:
            self._reads += 1
            if finals or self._reads % self._group.observe == 0:
                stamps = self._counter.read(data)
                return len(stamps), stamps, []
            return self._counter.feed(data), [], []
        taken = self._scanner.feed(data)
        if self._scanner.others:
            self.look_at_others()
        stamps = [stamp for stamp, _ in taken if stamp]
        return len(stamps), stamps, taken

    def look_at_others(self) -> None:
        """Read frames that are no MESSAGE.

        Raises:
            LoadError: One is an ERROR.
        """
        for command, head, body in self._scanner.others:
            if command == b"ERROR":
                raise LoadError(f"{self.line.name}: {error_text(head, body)}")
        self._scanner.others.clear()

    def acknowledge(self, taken: Sequence[Taken]) -> None:
        """Acknowledge MESSAGEs as the ack mode has it: with `client` the last one of a subscription stands for all."""
        if self._group.ack == "auto" or not taken:
            return
        acked = taken[-1:] if self._group.ack == "client" and not self._group.each_topic else taken
        self.line.write(b"".join([b"ACK\nid:%b\n\n\0" % ack for _, ack in acked]))


def subscribe(
    channel: Channel, plan: Plan, run: str, group: SubscriberGroup, process: int, wanted: Mapping[str, Sequence[int]]
) -> Received:
    """Subscribe with every `processes`-th subscriber of a group from `process` on, and receive until the run is over.

    Raises:
        LoadError: The broker refuses us, or closed.
    """
    context = None if plan.target.subscriber is None else plan.target.subscriber.context()
    pause_s = group.processes / plan.connects_per_second if plan.connects_per_second else 0.0
    subscribers = []
    for number in range(process, group.connections, group.processes):
        glob = group.globs[number % len(group.globs)]
        client_id = f"bench-{run}-{group.name.replace(' ', '-')}-{number}" if group.durable else None
        line = plan.target.connect(
            Role.SUBSCRIBER, client_id, context, group.receive_buffer_bytes, group.connect_headers
        )
        subscriber = _Subscriber(number, line, group, run, wanted[glob])
        subscriber.subscribe([plan.syntax.topic(n) for n in wanted[glob]] if group.each_topic else [glob])
        subscribers.append(subscriber)
        time.sleep(pause_s)
    times = channel.ready()
    loop = _Loop(channel, times, subscribers, group.ack != "auto")
    if group.delay_ms:
        loop.run_slow(int(group.delay_ms * 1e6))
    else:
        loop.run_quick()
    result = loop.result()
    if group.durable:
        for subscriber in subscribers:
            subscriber.unsubscribe()
    return result


@final
class _Loop:
    """The loop of one process of subscribers until it is stopped."""

    def __init__(self, channel: Channel, times: Times, subscribers: list[_Subscriber], acknowledging: bool) -> None:
        self._channel: Final = channel
        self._times: Final = times
        self._subscribers: Final = subscribers
        self._acknowledging: Final = subscribers if acknowledging else []
        self._result: Final = Received(-(-(times.end_ns - times.measure_ns) // 1_000_000_000))
        self._by_number: Final = {subscriber.line.fileno(): subscriber for subscriber in subscribers}
        self._poll: Final = select.epoll()
        self._meter: Final = Meter(times)
        self._unsettled = len(subscribers)
        self._warm_up: Final = Histogram()  # ages before the measurement, which nothing reports

    def result(self) -> Received:
        """Return what was seen."""
        result = self._result
        names: set[bytes] = set()
        wanted: Sequence[int] | None = None
        for subscriber in self._subscribers:
            tally = subscriber.tally
            result.disordered += tally.disordered
            if wanted is not subscriber.wanted:  # most have the same glob, and there may be a million topics
                wanted = subscriber.wanted
                names = {topic_part(number) for number in wanted}
            result.unwanted += len(tally.finals - names)
            lacking = len(names - tally.finals)
            if lacking:
                result.unsettled.append((subscriber.number, lacking))
        result.use = self._meter.use()
        return result

    def run_quick(self) -> None:
        """Read as fast as possible."""
        result, times = self._result, self._times
        for number, subscriber in self._by_number.items():
            self._poll.register(number, select.EPOLLIN)
            self._take(subscriber, list(subscriber.waiting), time.monotonic_ns())
            subscriber.acknowledge(list(subscriber.waiting))
            subscriber.waiting.clear()
        while self._goes_on():
            for number, _ in self._poll.poll(0.05):
                subscriber = self._by_number[number]
                now_ns = time.monotonic_ns()
                count, stamps, taken = subscriber.receive(now_ns >= times.finals_ns)
                result.messages += count
                second = times.second(now_ns)
                if second >= 0:
                    result.measured += count
                    result.per_second[second] += count
                    result.observed += len(stamps)
                subscriber.tally.note(stamps, now_ns - times.origin_ns, self._ages(now_ns, second))
                result.foreign += len(taken) - count if taken else 0
                subscriber.acknowledge(taken)
                self._look(subscriber, now_ns)

    def run_slow(self, delay_ns: int) -> None:
        """Take up one message after the other, and receive more only when none is waiting."""
        busy: list[tuple[int, int]] = []  # until when, and whose
        for number, subscriber in self._by_number.items():
            self._poll.register(number, select.EPOLLIN)
            self._begin(subscriber, delay_ns, busy)
        while self._goes_on():
            now_ns = time.monotonic_ns()
            while busy and busy[0][0] <= now_ns:
                subscriber = self._by_number[heapq.heappop(busy)[1]]
                subscriber.acknowledge([subscriber.waiting.popleft()])
                if subscriber.waiting:
                    self._begin(subscriber, delay_ns, busy)
                else:
                    self._poll.modify(subscriber.line.fileno(), select.EPOLLIN)
            idle = len(busy) < len(self._subscribers)
            if busy:
                rest_s = max(0.0, (busy[0][0] - time.monotonic_ns()) / 1e9)
                time.sleep(min(rest_s, _SLICE_S) if idle else min(rest_s, 0.05))
            for number, _ in self._poll.poll(0.0 if busy else 0.05) if idle else ():
                subscriber = self._by_number[number]
                received_ns = time.monotonic_ns()
                _, stamps, taken = subscriber.receive(True)
                subscriber.waiting.extend(taken)
                if self._times.second(received_ns) >= 0:
                    for stamp in stamps:
                        self._result.latency.record(received_ns - self._times.origin_ns - stamp_time_ns(stamp))
                self._begin(subscriber, delay_ns, busy)

    def _begin(self, subscriber: _Subscriber, delay_ns: int, busy: list[tuple[int, int]]) -> None:
        """Take up the next message, if one is waiting."""
        if not subscriber.waiting:
            return
        now_ns = time.monotonic_ns()
        self._take(subscriber, [subscriber.waiting[0]], now_ns)
        self._look(subscriber, now_ns)
        heapq.heappush(busy, (now_ns + delay_ns, subscriber.line.fileno()))
        self._poll.modify(subscriber.line.fileno(), 0)

    def _take(self, subscriber: _Subscriber, taken: list[Taken], now_ns: int) -> None:
        result, times = self._result, self._times
        stamps = [stamp for stamp, _ in taken if stamp]
        second = times.second(now_ns)
        result.messages += len(stamps)
        result.foreign += len(taken) - len(stamps)
        if second >= 0:
            result.measured += len(stamps)
            result.per_second[second] += len(stamps)
            result.observed += len(stamps)
        subscriber.tally.note(stamps, now_ns - times.origin_ns, self._ages(now_ns, second))

    def _ages(self, now_ns: int, second: int) -> Histogram:
        """Return the histogram of a value that is taken up in this second of the measurement, or -1."""
        if second >= 0:
            return self._result.staleness[second]
        return self._warm_up if now_ns < self._times.end_ns else self._result.drain

    def _look(self, subscriber: _Subscriber, now_ns: int) -> None:
        """Note when a subscriber holds every last value."""
        if not subscriber.settled and len(subscriber.tally.finals) >= len(subscriber.wanted):
            subscriber.settled = True
            self._result.settled_ns = now_ns
            self._unsettled -= 1
            if not self._unsettled:
                self._channel.settled()

    def _goes_on(self) -> bool:
        now_ns = time.monotonic_ns()
        self._meter.tick(now_ns)
        if self._channel.due(now_ns):
            if self._channel.stopped():
                return False
            self._channel.progress(0, self._result.messages)
        for subscriber in self._acknowledging:
            if subscriber.line.unsent_bytes:
                subscriber.line.flush()
        return True
