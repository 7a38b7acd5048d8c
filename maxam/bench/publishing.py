"""Publishers: SENDs made beforehand, stamped when they leave, and their RECEIPTs."""

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.plan import Plan
from maxam.bench.scanner import Receipts, mark, stamp, topic_part
from maxam.bench.target import Line, Role, header_lines
from maxam.bench.worker import Channel, Meter, Times, Use

_BLOCK_SENDS: Final = 100  # of one write at maximum rate
_KEPT_SENDS: Final = 100_000  # made beforehand; those of more topics are made when they leave
_VARIANTS: Final = 8  # bodies of one topic before they repeat, if there is room
_UNSENT_BYTES_MAX: Final = 1_048_576  # a broker that reads slower than the rate delays the rest of the schedule
_IDLE_S: Final = 0.005
# A SEND is made this long before it is due, and leaves when it is due. So neither the lateness of a sleep nor making the SEND counts as
# the broker's time.
_AHEAD_NS: Final = 50_000
_AHEAD_RATE_MAX: Final = 5000.0  # a process that has more to send is seldom early
_SELECTED_MAX: Final = 64  # connections: select checks each of them
_SELECTED_NUMBER_MAX: Final = 1024  # FD_SETSIZE


@dataclass(slots=True)
class Published:
    """The results of the publishers of one process."""

    seconds: int
    sent: int = 0  # warm-up and last values included, and so below unless stated otherwise
    accepted: int = 0
    rejected: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    unanswered: int = 0
    topic_sends: dict[int, int] = field(default_factory=dict)  # by the number of the topic
    measured: int = 0  # SENDs written during the measurement
    measured_accepted: int = 0  # RECEIPTs of any kind that came during it
    per_second: list[int] = field(default_factory=list)
    receipt: Histogram = field(default_factory=Histogram)  # from the stamp to the RECEIPT, one of each write
    lag: Histogram = field(default_factory=Histogram)  # from the intended time to the write, at a fixed rate
    last_sent_ns: int = 0
    last_receipt_ns: int = 0
    use: Use = field(default_factory=lambda: Use(0.0, 0.0))

    def __post_init__(self) -> None:
        """Begin with no SEND in any second."""
        self.per_second = [0] * self.seconds


@final
class Frames:
    """SENDs, cut where the stamp goes."""

    def __init__(self, plan: Plan, run: str) -> None:
        self._plan: Final = plan
        self._mark: Final = mark(run)
        self._kept: Final[dict[tuple[int, int], tuple[bytes, bytes]]] = {}
        self.variants: Final = max(1, min(_VARIANTS, _KEPT_SENDS // plan.topics))

    def around(self, topic: int, variant: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the stamp of a SEND to this topic."""
        found = self._kept.get((topic, variant))
        if found is None:
            found = self._make(topic, variant)
            if len(self._kept) < _KEPT_SENDS:
                self._kept[topic, variant] = found
        return found

    def pieces(self, topics: Sequence[int], variant: int) -> list[bytes]:
        """Return what a stamp joins to SENDs to these topics."""
        pieces = [b""]
        for topic in topics:
            before, behind = self.around(topic, variant)
            pieces[-1] += before
            pieces.append(behind)
        return pieces

    def _make(self, topic: int, variant: int) -> tuple[bytes, bytes]:
        plan = self._plan
        body = plan.bodies[(topic + variant * 7) % len(plan.bodies)]
        destination = plan.syntax.topic(topic)
        further = [(k, v.replace("{n}", str(topic)).replace("{destination}", destination)) for k, v in plan.headers]
        headers = [
            ("destination", destination),
            *([("receipt", "r")] if plan.receipts else []),
            *further,
            ("content-length", str(len(body))),
        ]
        head = b"SEND\n" + header_lines(headers)
        return head[:-1] + self._mark, topic_part(topic) + b"\n\n" + body + b"\0"


@final
class _Publisher:
    """One connection that publishes."""

    def __init__(self, line: Line, plan: Plan, times: Times, result: Published) -> None:
        self.line: Final = line
        self.sent = 0
        self.answered = 0
        self._plan: Final = plan
        self._times: Final = times
        self._result: Final = result
        self._receipts: Final = Receipts()
        self._written: Final[deque[tuple[int, int]]] = deque()  # SENDs so far and the stamp of the newest

    def write(self, data: bytes, sends: int, stamped_ns: int, now_ns: int) -> None:
        """Write SENDs."""
        self.line.write(data)
        self._note(sends, stamped_ns, now_ns)

    def write_due(self, data: bytes, sends: int, stamped_ns: int) -> int:
        """Write SENDs, made ready before, not before the oldest is due; return when that was."""
        self.line.keep(data)
        now_ns = time.monotonic_ns()
        while now_ns < stamped_ns:  # for _AHEAD_NS at most: to sleep would be late again
            now_ns = time.monotonic_ns()
        self.line.flush()
        self._note(sends, stamped_ns, now_ns)
        return now_ns

    def _note(self, sends: int, stamped_ns: int, now_ns: int) -> None:
        self.sent += sends
        result = self._result
        result.sent += sends
        result.last_sent_ns = now_ns
        second = self._times.second(now_ns)
        if second >= 0:
            result.measured += sends
            result.per_second[second] += sends
        if self._plan.receipts:
            self._written.append((self.sent, stamped_ns))

    def receive(self) -> None:
        """Take what has come.

        Raises:
            LoadError: The broker has had enough of us.
        """
        count = self._receipts.feed(self.line.receive())
        now_ns = time.monotonic_ns()
        self.answered += count
        result = self._result
        if count:
            result.last_receipt_ns = now_ns
        if self._times.second(now_ns) >= 0:
            result.measured_accepted += count
            measured = True
        else:
            measured = False
        while self._written and self._written[0][0] <= self.answered:
            stamped_ns = self._written.popleft()[1]
            if measured:
                result.receipt.record(now_ns - stamped_ns)

    def sum_up(self) -> None:
        """Add what only this connection knows."""
        result = self._result
        result.accepted += self._receipts.accepted
        result.unanswered += self.sent - self.answered if self._plan.receipts else 0
        for disposition, (count, reason) in self._receipts.rejected.items():
            before, first = result.rejected.get(disposition, (0, reason))
            result.rejected[disposition] = (before + count, first)


def publish(channel: Channel, plan: Plan, run: str, process: int) -> Published:
    """Publish with every `publisher_processes`-th publisher from `process` on, and wait for the last RECEIPT.

    Raises:
        LoadError: The broker refuses us, or closed.
    """
    numbers = range(process, plan.publishers, plan.publisher_processes)
    context = None if plan.target.publisher is None else plan.target.publisher.context()
    pause_s = plan.publisher_processes / plan.connects_per_second if plan.connects_per_second else 0.0
    lines = {}
    for number in numbers:
        lines[number] = plan.target.connect(Role.PUBLISHER, context=context)
        time.sleep(pause_s)
    frames = Frames(plan, run)
    for topic in range(min(plan.topics, _KEPT_SENDS // frames.variants)):
        if topic % plan.publishers in lines:
            for variant in range(frames.variants):
                frames.around(topic, variant)
    times = channel.ready()
    result = Published(-(-(times.end_ns - times.measure_ns) // 1_000_000_000))
    publishers = {number: _Publisher(line, plan, times, result) for number, line in lines.items()}
    _Loop(channel, plan, times, result, publishers).run(frames)
    return result


@final
class _Loop:
    """The loop of one process until all its RECEIPTs are there."""

    def __init__(
        self, channel: Channel, plan: Plan, times: Times, result: Published, publishers: dict[int, _Publisher]
    ) -> None:
        self._channel: Final = channel
        self._plan: Final = plan
        self._times: Final = times
        self._result: Final = result
        self._publishers: Final = publishers
        self._by_number: Final = {publisher.line.fileno(): publisher for publisher in publishers.values()}
        self._poll: Final = select.epoll()
        self._meter: Final = Meter(times)
        for number in self._by_number:
            self._poll.register(number, select.EPOLLIN)

    def run(self, frames: Frames) -> None:
        """Send, then wait for the last RECEIPTs."""
        time.sleep(max(0, self._times.origin_ns - time.monotonic_ns()) / 1e9)
        if self._plan.per_second:
            self._at_rate(frames)
        else:
            self._at_maximum(frames)
        deadline_ns = time.monotonic_ns() + int(self._plan.settle_s * 1e9)
        while time.monotonic_ns() < deadline_ns and any(
            publisher.line.unsent_bytes or (self._plan.receipts and publisher.answered < publisher.sent)
            for publisher in self._publishers.values()
        ):
            self._serve(0.05)
        for publisher in self._publishers.values():
            publisher.sum_up()
        self._result.use = self._meter.use()

    def _at_maximum(self, frames: Frames) -> None:
        plan, times = self._plan, self._times
        sends = max(1, min(_BLOCK_SENDS, plan.window // 4))
        blocks = {number: _Blocks(plan.topics_of(number), sends, frames) for number in self._publishers}
        going = set(self._publishers)
        while going:
            full = True
            for number in list(going):
                publisher, block = self._publishers[number], blocks[number]
                if publisher.line.unsent_bytes or (
                    plan.receipts
                    and publisher.sent - publisher.answered > plan.window - block.sends_max
                    and publisher.sent != publisher.answered
                ):
                    continue
                full = False
                now_ns = time.monotonic_ns()
                if now_ns >= times.end_ns or plan.once:
                    block.finish()
                made = block.next(now_ns - times.origin_ns)
                if made is None:
                    going.remove(number)
                    continue
                data, count = made
                publisher.write(data, count, now_ns, now_ns)
            self._serve(0.05 if full else 0.0)
        for block in blocks.values():
            self._result.topic_sends.update(block.counts())

    def _at_rate(self, frames: Frames) -> None:
        plan, times, result = self._plan, self._times, self._result
        interval_ns = 1e9 / plan.per_second
        ahead_ns = _AHEAD_NS if plan.per_second <= _AHEAD_RATE_MAX else 0
        counts: dict[int, int] = {}
        batches: dict[int, list[bytes]] = {number: [] for number in self._publishers}
        schedule = self._schedule()
        item = next(schedule, None)
        while item is not None:
            now_ns = time.monotonic_ns()
            taken_to_ns = now_ns + ahead_ns  # one SEND is made before it is due, and only when none is
            oldest_ns: dict[int, int] = {}
            while item is not None:
                position, topic = item
                due_ns = times.origin_ns + int(position * interval_ns)
                number = topic % plan.publishers
                if due_ns > taken_to_ns or len(batches[number]) > 3 * _BLOCK_SENDS:
                    break
                if self._publishers[number].line.unsent_bytes > _UNSENT_BYTES_MAX:
                    break
                before, behind = frames.around(topic, position // plan.topics % frames.variants)
                final = position + plan.topics >= plan.sends
                sequence = counts[topic] = counts.get(topic, 0) + 1
                batches[number] += (before, stamp(final, sequence, due_ns - times.origin_ns), behind)
                oldest_ns.setdefault(number, due_ns)
                taken_to_ns = now_ns
                item = next(schedule, None)
            for number, stamped_ns in oldest_ns.items():
                batch = batches[number]
                written_ns = self._publishers[number].write_due(b"".join(batch), len(batch) // 3, stamped_ns)
                if times.second(written_ns) >= 0:
                    result.lag.record(written_ns - stamped_ns)
                batch.clear()
            self._serve(0.0)
            if item is not None:
                ready_ns = times.origin_ns + int(item[0] * interval_ns) - ahead_ns
                self._pause(min(_IDLE_S, max(0, ready_ns - time.monotonic_ns()) / 1e9))
        result.topic_sends.update(counts)

    def _pause(self, seconds: float) -> None:
        """Wait this long, or until a RECEIPT comes when there are few connections. epoll waits whole milliseconds only."""
        if len(self._by_number) <= _SELECTED_MAX and max(self._by_number) < _SELECTED_NUMBER_MAX:
            select.select(self._by_number, (), (), seconds)
        else:
            time.sleep(seconds)

    def _schedule(self) -> Iterator[tuple[int, int]]:
        """Yield the positions in the order of all SENDs that are ours, each with its topic."""
        plan = self._plan
        ours = [topic for topic in range(plan.topics) if topic % plan.publishers in self._publishers]
        for start in range(0, plan.sends, plan.topics):
            for topic in ours:
                if start + topic >= plan.sends:
                    return
                yield start + topic, topic

    def _serve(self, timeout_s: float) -> None:
        now_ns = time.monotonic_ns()
        self._meter.tick(now_ns)
        if self._channel.due(now_ns):
            if self._channel.stopped():
                raise LoadError("the run was ended")
            self._channel.progress(self._result.sent, 0)
        for publisher in self._publishers.values():
            if publisher.line.unsent_bytes:
                publisher.line.flush()
                timeout_s = min(timeout_s, 0.001)
        for number, _ in self._poll.poll(timeout_s):
            self._by_number[number].receive()


@final
class _Blocks:
    """The SENDs of one publisher at maximum rate, some hundred at a time, round after round over its topics."""

    def __init__(self, topics: Sequence[int], sends: int, frames: Frames) -> None:
        self._topics: Final = topics
        self._frames: Final = frames
        self._pieces: Final[dict[tuple[int, int], list[bytes]]] = {}
        self._step: Final = min(sends, len(topics))  # topics of a piece
        self._rounds: Final = max(1, sends // len(topics))  # of a block, when there are few topics
        self.sends_max: Final = self._step * self._rounds
        self._position = 0  # of the next topic of this round
        self.rounds_done = 0
        self._last_left = -1  # topics whose last value is still to be sent, -1 before the end

    def finish(self) -> None:
        """Send one last value to each topic, and stop."""
        if self._last_left < 0:
            self._last_left = len(self._topics)

    def next(self, now_ns: int) -> tuple[bytes, int] | None:
        """Return the next block and the number of its SENDs; None when the last has been sent."""
        if self._last_left == 0:
            return None
        final = self._last_left > 0
        data = []
        sends = 0
        for _ in range(1 if final else self._rounds):
            start = self._position
            end = min(start + self._step, len(self._topics))
            data.append(stamp(final, self.rounds_done + 1, now_ns).join(self._piece(start, end)))
            sends += end - start
            self._position = end
            if end == len(self._topics):
                self._position = 0
                self.rounds_done += 1
        if final:
            self._last_left -= sends
        return b"".join(data) if len(data) > 1 else data[0], sends

    def counts(self) -> dict[int, int]:
        """Return how many values each topic has been sent."""
        return {topic: self.rounds_done + (index < self._position) for index, topic in enumerate(self._topics)}

    def _piece(self, start: int, end: int) -> list[bytes]:
        variant = self.rounds_done % self._frames.variants
        found = self._pieces.get((start, variant))
        if found is None:
            found = self._frames.pieces(self._topics[start:end], variant)
            if len(self._pieces) * self._step < _KEPT_SENDS:
                self._pieces[start, variant] = found
        return found
