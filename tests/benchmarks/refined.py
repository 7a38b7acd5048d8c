"""The measurements of refined subscriptions: what resuming, selectors and intervals cost, and how exact intervals are."""

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from select import POLLIN, poll
from typing import Any, Final

import click

from maxam.bench.errors import LoadError
from maxam.bench.output import Figures
from maxam.bench.syntax import MAXAM
from maxam.bench.target import ANSWER_TIMEOUT_S, Line, Role, Target, subscribe_frame
from maxam.bench.worker import Channel
from maxam.config import Limits
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_2
from maxam.stomp.frames import SERVER_COMMANDS, Decoder
from tests.benchmarks.brokers.process import cpu_s
from tests.benchmarks.connections import held
from tests.benchmarks.readings import turnover
from tests.benchmarks.suite import Outcome, Suite, answers, broker_core_option

Pairs = tuple[tuple[str, str], ...]

_TOPICS: Final = 100_000  # of resuming
_CHANGED: Final = 1000
_BATCH: Final = 1000  # SENDs before a RECEIPT
_SUBSCRIBERS: Final = 1000  # of selectors
_CLASSES: Final = 10
_WARM_UP: Final = 20  # rounds of one SEND to each class
_FIELD: Final = "meters.auxiliary.turnover"
_FIELD_MAX: Final = 1_000_000
_INTERVAL_MS: Final = 200
_PACED: Final = 20  # topics of intervals
_BURST_S: Final = 1.0
_SEND_EVERY_S: Final = 0.002
_SLACK_MS: Final = 20


def publish(line: Line, sends: Sequence[tuple[str, bytes, Pairs]]) -> None:
    """Send values and wait until all are accepted."""
    for start in range(0, len(sends), _BATCH):
        batch = sends[start : start + _BATCH]
        line.write(
            b"".join(
                [
                    encoder.send(
                        VERSION_1_2,
                        topic.encode(),
                        body,
                        tuple((name.encode(), value.encode()) for name, value in headers),
                        b"last" if number == len(batch) else None,
                    )
                    for number, (topic, body, headers) in enumerate(batch, 1)
                ]
            )
        )
        if (found := line.receipt().headers.get(b"disposition")) != b"accepted":
            raise LoadError(f"the gateway answered a SEND with {found!r}")


def catch_up(target: Target, headers: Pairs, eager: bool) -> tuple[int, int, str]:
    """Subscribe to all topics on a new connection; return the bytes up to the marker `complete`, its count and its position."""
    line = target.connect(Role.SUBSCRIBER)
    line.write(subscribe_frame("s", MAXAM.glob, "auto", eager, False, (*headers, ("markers", "true"))))
    decoder = Decoder(Limits(), SERVER_COMMANDS)
    size = 0
    try:
        while True:
            line.wait(time.monotonic() + ANSWER_TIMEOUT_S, "marker")
            data = line.receive()
            size += len(data)
            for frame in decoder.feed(data):
                if frame.headers.get(b"kind") == b"complete":
                    return size, int(frame.headers[b"count"]), frame.headers[b"position"].decode()
                if frame.headers.get(b"result") == b"since-unavailable":
                    raise LoadError("the gateway cannot use the position")
    finally:
        line.close()


def resume_work(_channel: Channel, target: Target, bodies: tuple[bytes, ...]) -> Figures:
    """Fill a gateway, get all of it, change a hundredth of it, and resume."""
    publisher = target.connect(Role.PUBLISHER)
    publish(publisher, [(MAXAM.topic(n), bodies[n % len(bodies)], ()) for n in range(_TOPICS)])
    snapshot, values, position = catch_up(target, (), eager=True)
    changed = random.Random(1).sample(range(_TOPICS), _CHANGED)  # noqa: S311  # no secret
    publish(publisher, [(MAXAM.topic(n), bodies[(n + 1) % len(bodies)], ()) for n in changed])
    resumed, changes, _ = catch_up(target, (("since", position),), eager=False)
    publisher.close()
    if (values, changes) != (_TOPICS, _CHANGED):
        raise LoadError(f"{values} values and {changes} changes came, not {_TOPICS} and {_CHANGED}")
    return {
        "eager snapshot, bytes": float(snapshot),
        "resuming, bytes": float(resumed),
        "resuming, % of the snapshot": 100 * resumed / snapshot,
    }


def resume(suite: Suite) -> Outcome:
    """Resume after a hundredth of 100,000 topics changed, against an eager snapshot of all."""
    with suite.gateway() as broker:
        return Outcome(_answer(suite, resume_work, broker.target, suite.bodies))


# Selectors.


def classes(bodies: Sequence[bytes]) -> tuple[list[list[bytes]], list[str]]:
    """Divide bodies by a field; return the bodies of each class, and a selector for it."""
    width = _FIELD_MAX // _CLASSES
    found: list[list[bytes]] = [[] for _ in range(_CLASSES)]
    for body in bodies:
        found[turnover(body) // width].append(body)
    return found, [f"{_FIELD} BETWEEN {n * width} AND {(n + 1) * width - 1}" for n in range(_CLASSES)]


@contextmanager
def subscribed(target: Target, subscriptions: Sequence[tuple[str, Pairs]]) -> Iterator[list[Line]]:
    """Hold connections, each with one of the subscriptions in turn."""
    with held(target, _SUBSCRIBERS) as lines:
        for number, line in enumerate(lines):
            glob, headers = subscriptions[number % len(subscriptions)]
            line.subscribe("s", glob, "auto", headers=headers)
        yield lines


def receive_all(lines: Mapping[int, Line], registered: poll, messages: int) -> None:
    """Receive until this many messages have come."""
    while messages > 0:
        ready = registered.poll(ANSWER_TIMEOUT_S * 1000)
        if not ready:
            raise LoadError(f"{messages} messages did not come within {ANSWER_TIMEOUT_S:g} s")
        for number, _ in ready:
            messages -= lines[number].receive().count(b"MESSAGE\nsubscription:s\n")
    if messages:
        raise LoadError(f"{-messages} messages too many came")


def routed_work(
    _channel: Channel,
    target: Target,
    pid: int,
    bodies: list[list[bytes]],
    subscriptions: Sequence[tuple[str, Pairs]],
    seconds: float,
) -> float:
    """Publish a value of each class again and again; return the gateway's processor time for each SEND."""
    publisher = target.connect(Role.PUBLISHER)
    topics = len(bodies) * _WARM_UP
    with subscribed(target, subscriptions) as lines:
        registered = poll()
        for line in lines:
            registered.register(line.fileno(), POLLIN)
        by_number = {line.fileno(): line for line in lines}
        rounds = 0
        end_s = began_s = 0.0
        while rounds <= _WARM_UP or time.monotonic() < end_s:
            if rounds == _WARM_UP:
                began_s, end_s = cpu_s(pid), time.monotonic() + seconds
            sends = [
                (MAXAM.topic((rounds * _CLASSES + n) % topics), found[rounds % len(found)], ())
                for n, found in enumerate(bodies)
            ]
            publish(publisher, sends)
            receive_all(by_number, registered, _SUBSCRIBERS)
            rounds += 1
        took_s = cpu_s(pid) - began_s
    publisher.close()
    return took_s / ((rounds - _WARM_UP) * _CLASSES) * 1e6


def selectors(suite: Suite) -> Outcome:
    """1,000 subscribers with 10 selectors, each SEND for 100 of them, against the same subscribers with 10 globs."""
    bodies, texts = classes(suite.bodies)
    suffix = MAXAM.topic(0).rpartition(".")[2]
    globs = [(f"{MAXAM.glob}{n}.{suffix}", ()) for n in range(_CLASSES)]
    selected = [(MAXAM.glob, (("selector", text),)) for text in texts]
    found: dict[str, float] = {}
    for name, subscriptions in (("globs", globs), ("selectors", selected)):
        with suite.gateway() as broker:
            arguments = (broker.target, broker.pid, bodies, subscriptions, suite.seconds)
            found[name] = answers([(routed_work, *arguments)], suite.cores)[0]
    figures: dict[str, float | None] = {f"{name}: processor us/SEND": us for name, us in found.items()}
    return Outcome({**figures, "selectors, times the globs": found["selectors"] / found["globs"]})


# Intervals.


def interval_work(_channel: Channel, target: Target, bodies: tuple[bytes, ...], seconds: float) -> Figures:
    """Publish bursts to topics with an interval; return how late the last values are, and the shortest interval."""
    publisher = target.connect(Role.PUBLISHER)
    subscriber = target.connect(Role.SUBSCRIBER)
    subscriber.subscribe("s", MAXAM.glob, "auto", headers=(("min-interval", str(_INTERVAL_MS)),))
    decoder = Decoder(Limits(), SERVER_COMMANDS)
    randomly = random.Random(1)  # noqa: S311  # no secret
    arrived_s: dict[bytes, float] = {}
    intervals_ms: list[float] = []
    late_ms: list[float] = []
    number = 0

    def listen(until_s: float, wanted: dict[bytes, tuple[bytes, float]]) -> None:
        """Take what comes, until a time or until all that is wanted has come."""
        while (rest_s := until_s - time.monotonic()) > 0:
            listening = poll()
            listening.register(subscriber.fileno(), POLLIN)
            if not listening.poll(rest_s * 1000):
                return
            frames = decoder.feed(subscriber.receive())
            now_s = time.monotonic()
            for frame in frames:
                topic = frame.headers[b"destination"]
                if topic in arrived_s:
                    intervals_ms.append((now_s - arrived_s[topic]) * 1000)
                arrived_s[topic] = now_s
                if topic in wanted and frame.headers[b"number"] == wanted[topic][0]:
                    late_ms.append((now_s - wanted.pop(topic)[1]) * 1000)
                    if not wanted:
                        return

    end_s = time.monotonic() + max(seconds, 5.0)
    while time.monotonic() < end_s:
        last: dict[bytes, tuple[bytes, float]] = {}
        burst_end_s = time.monotonic() + _BURST_S
        while (now_s := time.monotonic()) < burst_end_s:
            number += 1
            topic = MAXAM.topic(randomly.randrange(_PACED)).encode()
            mark = b"%d" % number
            publisher.write(encoder.send(VERSION_1_2, topic, bodies[number % len(bodies)], ((b"number", mark),)))
            last[topic] = (mark, now_s)
            listen(now_s + _SEND_EVERY_S, {})
        # A last value that came within the burst is not late.
        listen(time.monotonic() + (_INTERVAL_MS + 1000) / 1000, last)
    publisher.close()
    subscriber.close()
    over = [took_ms for took_ms in late_ms if took_ms > _INTERVAL_MS + _SLACK_MS]
    return {
        "SENDs": float(number),
        "shortest time between two values of a topic, ms": min(intervals_ms),
        "last values": float(len(late_ms)),
        "last value after its SEND, longest, ms": max(late_ms),
        f"last values after more than {_INTERVAL_MS + _SLACK_MS} ms": float(len(over)),
    }


def interval(suite: Suite) -> Outcome:
    """Bursts of 500 SEND/s to 20 topics with an interval of 200 ms: the last value of each, and the time between values."""
    with suite.gateway() as broker:
        return Outcome(_answer(suite, interval_work, broker.target, suite.bodies, suite.seconds))


def _answer(suite: Suite, function: Callable[..., Figures], *arguments: Any) -> Figures:
    figures: Figures = answers([(function, *arguments)], suite.cores)[0]
    return figures


MEASUREMENTS: Final[Mapping[str, Callable[[Suite], Outcome]]] = {
    "resume": resume,
    "selectors": selectors,
    "interval": interval,
}


@click.command("refined")
@click.option("--seconds", type=click.FloatRange(1), default=5.0, show_default=True, help="Of each run.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Of each measurement.")
@click.option("--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="One measurement; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one object per run, a line each.")
@broker_core_option
def refined_command(seconds: float, runs: int, only: Sequence[str], as_json: bool, broker_core: int) -> None:
    """Measure refined subscriptions: the bytes of resuming, the cost of selectors, and how exact intervals are."""
    suite = Suite(seconds, runs, "fsync", as_json, broker_core)
    if not suite.run(only or tuple(MEASUREMENTS), MEASUREMENTS):
        sys.exit(1)
