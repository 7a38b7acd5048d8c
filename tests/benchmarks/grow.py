"""The cost of topics, subscriptions, connections, bodies and subscribers as they grow. Each point has a gateway of its own.

The figure that all axes share is the processor time of the gateway per SEND: unlike a rate it does not depend on who limits.
The process that builds snapshots is counted by itself.
"""

import json
import math
import os
import select
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.output import Figures, console, progress
from maxam.bench.plan import OBSERVE_AT_MAXIMUM, Plan, SubscriberGroup
from maxam.bench.report import Report, quantiles_ms
from maxam.bench.run import run
from maxam.bench.scanner import Counter, Scanner, mark
from maxam.bench.syntax import MAXAM, DestinationSyntax
from maxam.bench.target import ANSWER_TIMEOUT_S, Line, Role, Target, subscribe_frame
from maxam.bench.worker import Channel, Times, Worker
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.brokers.process import process_cpu_s, tree
from tests.benchmarks.connections import held
from tests.benchmarks.machine import touch_memory
from tests.benchmarks.plots import Claim, Curve, Panel, check, draw, farthest
from tests.benchmarks.recovery import build_journal
from tests.benchmarks.sends import send_us
from tests.benchmarks.suite import Suite, answer, broker_core_option

SEND_US: Final = "processor us/SEND"
SNAPSHOT_US: Final = "processor us/SEND of snapshots"
SENDS: Final = "SEND/s"
RESIDENT: Final = "MiB resident"
P50: Final = "latency p50 ms"
P99: Final = "latency p99 ms"
NEW_US: Final = "processor us/SEND of a new topic"
MESSAGE_US: Final = "processor us/MESSAGE"
MIB_US: Final = "processor us/MiB"

Name = Callable[[int], str]  # a destination or glob by its number

_WARM_UP_S: Final = 0.5
_SETTLE_S: Final = 30.0
_FILL_S: Final = 600.0
_SNAPSHOT_S: Final = 60.0
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_NEW_MIN: Final = 10_000  # new topics of which fewer take too few ticks of the processor clock
_LOW_PER_SECOND: Final = 2000.0
_SESSION_GLOBS: Final = 1000  # as many as a session may have
_SETTINGS: Final = "[limits]\nsessions_per_principal_max = 2000\n"  # a thousand connections and those of the load


@dataclass(frozen=True, slots=True)
class Scattered(DestinationSyntax):
    """MaXaM's names, numbered so that consecutive numbers lie far apart among N topics."""

    topics: int = 1

    def topic(self, number: int) -> str:
        """Return the destination of the topic with this number, below `topics`."""
        step = int(self.topics * 0.618) | 1  # the golden section: no two neighbours stay near
        while math.gcd(step, self.topics) != 1:
            step += 2
        return self.topic_template.format(n=number * step % self.topics)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an axis: what is measured at each of its points."""

    name: str
    xs: tuple[int, ...]
    measure: "Callable[[Grower, int], Figures]"
    claims: Mapping[str, Claim] = field(default_factory=dict)  # by figure


@dataclass(frozen=True, slots=True)
class Axis:
    """One kind of growth."""

    title: str
    x_label: str
    series: tuple[Series, ...]
    panels: Mapping[str, bool]  # figures that are drawn, and whether on a logarithmic axis


@final
class Grower:
    """Measures points, and remembers what makes their figures untrue."""

    def __init__(self, suite: Suite, folder: Path) -> None:
        self.suite: Final = suite
        self._folder: Final = folder
        self.problems: Final[list[str]] = []
        self.warnings: Final[list[str]] = []
        self.at = ""

    def gateway(self, journal: Path | None = None, durability: str | None = None) -> AbstractContextManager[Broker]:
        """Start a gateway on its core."""
        return gateway(
            self.suite.broker_cores, durability=durability or self.suite.durability, journal=journal, settings=_SETTINGS
        )

    def journal(self, topics: int, fresh: bool = False) -> Path:
        """Return a journal with N topics and without a snapshot. It is written once for all callers, or again."""
        folder = self._folder / str(topics)
        if fresh and folder.exists():
            shutil.rmtree(folder)
        if not folder.exists():
            folder.mkdir()
            build_journal(folder, topics)
        return folder

    def plan(self, target: Target, *groups: SubscriberGroup) -> Plan:
        """Return a plan at maximum rate."""
        return replace(self.suite.plan(target, *groups), warm_up_s=_WARM_UP_S, settle_s=_SETTLE_S)

    def costs(self, broker: Broker, plan: Plan) -> tuple[Figures, Report]:
        """Run a plan; return what a SEND of it costs, and how many there were.

        Raises:
            LoadError: There were none.
        """
        seen: list[tuple[float, float]] = []
        report = run(plan, self.suite.show, lambda _begins: seen.append((process_cpu_s(broker.pid), broker.cpu_s())))
        self.judge(report)
        (own_begin_s, all_begin_s), (own_end_s, all_end_s) = seen
        sends = report.sends_per_s * report.seconds
        if not sends:
            raise LoadError(
                "no RECEIPT came while it was measured; is the disk, or the core of the gateway, taken by something else?"
            )
        own_s = own_end_s - own_begin_s
        figures = {SEND_US: own_s / sends * 1e6, SENDS: report.sends_per_s}
        if (snapshots_s := all_end_s - all_begin_s - own_s) > _TICK_S / 2:
            figures[SNAPSHOT_US] = snapshots_s / sends * 1e6
        return figures, report

    def resident_mib(self, broker: Broker) -> float:
        """Return the memory of a gateway once no process of its own builds a snapshot."""
        deadline_s = time.monotonic() + _SNAPSHOT_S
        while len(tree(broker.pid)) > 1 and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return broker.resident_mib()

    def fill(self, broker: Broker, topics: int, template: str | None = None) -> Figures:
        """Send a value to each of N new topics, and return the cost of one."""
        target = broker.target
        if template is not None:
            target = replace(target, syntax=target.syntax.with_names(template, None))
        plan = replace(self.plan(target), topics=topics, once=True, warm_up_s=0.0, seconds=_FILL_S)
        return {NEW_US: self.costs(broker, plan)[0][SEND_US]}

    def latency(
        self, target: Target, topics: int, per_second: float = _LOW_PER_SECOND, subscribers: int = 1
    ) -> Figures:
        """Publish at a low rate to quick subscribers; return the latency from SEND to MESSAGE."""
        quick = SubscriberGroup("subscribers", subscribers, (MAXAM.glob,), ack="client")
        report = self.judge(
            run(replace(self.plan(target, quick), topics=topics, per_second=per_second), self.suite.show)
        )
        return percentiles(report)

    def judge(self, report: Report) -> Report:
        """Record the problems that make a run's figures untrue."""
        self.problems.extend(f"{self.at}: {problem}" for problem in report.problems)
        self.warnings.extend(f"{self.at}: {warning}" for warning in report.warnings)
        return report


def percentiles(report: Report) -> Figures:
    """Return the latency of the first group of subscribers."""
    found = quantiles_ms(report.groups[0].latency)
    return {} if found is None else {P50: found["p50"], P99: found["p99"]}


def _quick(connections: int = 1, *globs: str) -> SubscriberGroup:
    return SubscriberGroup("subscribers", connections, globs or (MAXAM.glob,), observe=OBSERVE_AT_MAXIMUM)


# Topics.


def topics(grower: Grower, number: int) -> Figures:
    """All of N topics get one value after the other, in another order than they came."""
    with grower.gateway() as broker:
        new = grower.fill(broker, number)
        first_mib = grower.resident_mib(broker)
        names = Scattered(MAXAM.name, MAXAM.topic_template, MAXAM.glob, MAXAM.wildcards, topics=number)
        target = replace(broker.target, syntax=names)
        grower.fill(
            replace(broker, target=target), number
        )  # what is remembered of a topic is there after its second value
        resident_mib = grower.resident_mib(broker)
        figures, _ = grower.costs(broker, replace(grower.plan(target, _quick()), topics=number))
        low = grower.latency(target, min(number, 5000))
    if number < _NEW_MIN:
        new = {}
    return {**figures, **new, RESIDENT: resident_mib, "MiB resident, one value each": first_mib, **low}


# Subscriptions.


def names_apart(number: int) -> str:
    """Return a glob that matches none of the load's topics and has a literal segment of its own."""
    return f"X/EGM.Q.other{number:05}.EGM*"


def names_alike(number: int) -> str:
    """Return a glob that matches none of the load's topics, but has only literal segments that all of them have too."""
    return f"X/EGM.Q.*-{number:05}.EGMMeterReading"


def names_all(number: int) -> str:
    """Return a glob that matches all of the load's topics, another one for each number below 17,576."""
    letters = "".join(chr(ord("a") + number // 26**place % 26) for place in range(3))
    return f"X/EGM.[Q{letters}].*"


def idle_globs(grower: Grower, number: int, name: Name) -> Figures:
    """Have N globs that match nothing, beside one to one."""
    with grower.gateway() as broker, subscribed(broker.target, [name(n) for n in range(number)]):
        resident_mib = grower.resident_mib(broker)
        grower.fill(broker, 1000)  # a topic's first value tries all globs; that is measured by itself, below
        figures, _ = grower.costs(broker, grower.plan(broker.target, _quick()))
        # where each is tried, as many new topics as take a second or so
        new_topics = 50_000 if name is names_apart else min(50_000, max(2000, 2_000_000 // number))
        new = grower.fill(broker, new_topics, "X/EGM.N.{n:06}.EGMMeterReading")
    return {**figures, **new, RESIDENT: resident_mib}


def part_globs(grower: Grower, number: int) -> Figures:
    """Have N subscriptions to one of 1,000 topics each. With 10,000 there are ten to each topic."""
    digits = len(str(min(number, _SESSION_GLOBS))) - 1
    glob = f"X/EGM.Q.{'0' * (6 - digits)}{'?' * digits}.EGMMeterReading"
    group = replace(_quick(max(1, number // _SESSION_GLOBS), glob), each_topic=True)
    with grower.gateway() as broker:
        figures, report = grower.costs(broker, grower.plan(broker.target, group))
        resident_mib = grower.resident_mib(broker)
    return {**figures, RESIDENT: resident_mib, "MESSAGE/SEND": report.messages_per_s / report.sends_per_s}


def all_globs(grower: Grower, number: int) -> Figures:
    """Have N globs that all match every topic, at a rate that makes 200,000 MESSAGEs a second."""
    globs = [names_all(n) for n in range(number)]
    with grower.gateway() as broker, beside(grower, drain, broker.target, globs) as answer:
        plan = grower.plan(broker.target)
        rate = min(20_000.0, 200_000 / number)
        figures, report = grower.costs(broker, replace(plan, topics=10, per_second=rate))
        per_send = answer() / report.sends
    found = quantiles_ms(report.receipt) or {}
    send_us = figures[SEND_US] or 0.0
    return {
        SEND_US: send_us,
        MESSAGE_US: send_us / per_send if per_send else None,
        "MESSAGE/SEND": per_send,
        "SEND to RECEIPT p50 ms": found.get("p50"),
        "SEND to RECEIPT p99 ms": found.get("p99"),
    }


@contextmanager
def subscribed(target: Target, globs: Sequence[str]) -> Iterator[None]:
    """Hold connections that subscribe to all these globs, and never read."""
    lines: list[Line] = []
    try:
        for start in range(0, len(globs), _SESSION_GLOBS):
            lines.append(target.connect(Role.SUBSCRIBER, f"globs-{start}"))
            subscribe_all(lines[-1], globs[start : start + _SESSION_GLOBS])
        yield
    finally:
        for line in lines:
            line.close()


def subscribe_all(line: Line, globs: Sequence[str]) -> None:
    """Subscribe one connection to globs.

    Raises:
        LoadError: An ERROR came.
    """
    line.write(b"".join(subscribe_frame(f"g{n}", glob, "auto", False, False, ()) for n, glob in enumerate(globs)))
    for _ in globs:
        line.receipt()


def drain(channel: Channel, target: Target, globs: Sequence[str]) -> int:
    """Subscribe to all these globs and receive until stopped. Return the number of MESSAGEs of any run.

    Raises:
        LoadError: The broker refuses us, or closed.
    """
    lines = []
    for start in range(0, len(globs), _SESSION_GLOBS):
        lines.append(target.connect(Role.SUBSCRIBER))
        subscribe_all(lines[-1], globs[start : start + _SESSION_GLOBS])
    channel.ready()
    readers = {line.fileno(): (line, Counter(mark(""))) for line in lines}
    poll = select.epoll()
    for number in readers:
        poll.register(number, select.EPOLLIN)
    count = 0
    while not (channel.due(time.monotonic_ns()) and channel.stopped()):
        for number, _ in poll.poll(0.05):
            line, counter = readers[number]
            count += counter.feed(line.receive())
    return count


@contextmanager
def beside(grower: Grower, work: Callable[..., Any], *arguments: object) -> Iterator[Callable[[], Any]]:
    """Have `work(channel, *arguments)` done in a process of its own meanwhile; yield what stops it and returns its answer.

    Raises:
        LoadError: It fails.
    """
    worker = Worker(work.__name__, work, *arguments, cores=grower.suite.cores)

    def answer() -> Any:  # any work's
        worker.send("stop")
        while True:
            what, value = worker.hear()
            if what == "done":
                return value

    try:
        worker.hear()
        worker.send(Times(0, 0, 0, 0))
        yield answer
    finally:
        worker.end()


# Connections.


def idle_connections(grower: Grower, number: int) -> Figures:
    """Hold N connections that do nothing, beside one to one."""
    with grower.gateway() as broker:
        before_mib = grower.resident_mib(broker)
        with held(broker.target, number):
            resident_mib = grower.resident_mib(broker)
            figures, _ = grower.costs(broker, grower.plan(broker.target, _quick()))
            low = grower.latency(broker.target, 1000)
    each_kib = (resident_mib - before_mib) * 1024 / number
    return {**figures, RESIDENT: resident_mib, "KiB/connection": each_kib, **low}


def busy_connections(grower: Grower, number: int) -> Figures:
    """Share out 1,000 topics among N subscribers: each SEND is one MESSAGE, to one of them."""
    digits = len(str(number)) - 1
    globs = tuple(f"X/EGM.Q.*{n:0{digits}}.EGMMeterReading" if digits else MAXAM.glob for n in range(number))
    with grower.gateway() as broker:
        figures, _ = grower.costs(broker, grower.plan(broker.target, _quick(number, *globs)))
        resident_mib = grower.resident_mib(broker)
        low = replace(_quick(number, *globs), ack="client", observe=1)
        plan = replace(grower.plan(broker.target, low), per_second=_LOW_PER_SECOND)
        report = grower.judge(run(plan, grower.suite.show))
    suite = grower.suite
    alone = {
        f"yardstick: TLS and send, receiver {name}, us": answer(
            send_us, number, suite.cores, asleep, cores=suite.broker_cores
        )
        for name, asleep in (("awake", False), ("asleep", True))
    }
    return {**figures, **alone, RESIDENT: resident_mib, **percentiles(report)}


# Bodies.


def smallest_body() -> int:
    """Return how long the shortest valid body of the load's type is that the load makes."""
    return min(map(len, avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), 100, None)))


def bodies(grower: Grower, size: int, subscribers: int) -> Figures:
    """Send bodies of N bytes to ten topics. None is a delete."""
    made = avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), 8, size) if size else [b""]
    groups = (_quick(subscribers),) if subscribers else ()
    window = max(8, min(2000, 2**24 // max(1, size)))
    with grower.gateway() as broker:
        plan = replace(grower.plan(broker.target, *groups), bodies=tuple(made), topics=10, window=window)
        figures, report = grower.costs(broker, plan)
        resident_mib = grower.resident_mib(broker)
    per_mib = (
        {MIB_US: (figures[SEND_US] or 0.0) * 2**20 / size, "MiB/s": report.sends_per_s * size / 2**20} if size else {}
    )
    return {**figures, **per_mib, RESIDENT: resident_mib}


# Subscribers.


def fan_out(grower: Grower, number: int) -> Figures:
    """Send each value to N subscribers."""
    with grower.gateway() as broker:
        figures, report = grower.costs(broker, grower.plan(broker.target, _quick(number)))
        resident_mib = grower.resident_mib(broker)
        low = grower.latency(broker.target, 1000, 200.0, number)
    per_send = report.messages_per_s / report.sends_per_s
    return {
        **figures,
        "MESSAGE/s": report.messages_per_s,
        MESSAGE_US: (figures[SEND_US] or 0.0) / per_send,
        RESIDENT: resident_mib,
        **low,
    }


# Waiting times during scans of a million topics.

_PROBED: Final = "X/EGM.P.{n:03}.EGMMeterReading"
_PROBE_PER_SECOND: Final = 1000.0
_SCAN_NICE: Final = 19  # the reader of the scan shares its core with the probe, which must not wait for it
_ARRIVE_PER_SECOND: Final = 30_000.0
_ALL: Final = ("X/EGM.Q.*", 1)  # a glob, and one in how many topics it matches
_RARE: Final = ("X/EGM.Q.*000.EGMMeterReading", 1000)


def restart(grower: Grower, number: int) -> Figures:
    """Start a gateway on a journal of N topics, from its segments and from the snapshot that the first then builds."""
    figures: dict[str, float | None] = {}
    for source in ("segments", "a snapshot"):
        with grower.gateway(grower.journal(number, fresh=source == "segments")) as broker:
            figures[f"s to ready from {source}"] = broker.start_s
            figures[f"MiB resident from {source}"] = broker.resident_mib()
            grower.resident_mib(broker)  # lets the snapshot be built
    return figures


def eager(grower: Grower, number: int, glob: tuple[str, int] | None) -> Figures:
    """Probe with a SEND every millisecond while a client subscribes eagerly to N topics, again and again."""
    # without fsync: what the disk takes now and then would hide how long the loop was held
    with grower.gateway(grower.journal(number), durability="none") as broker:
        grower.resident_mib(broker)
        if glob is None:
            return _probe(grower, broker)
        with beside(grower, scans, broker.target, glob[0], number // glob[1]) as answer:
            waits = _probe(grower, broker)
            found = answer()
        return {
            **waits,
            "first value ms": statistics.median(first_s for first_s, _ in found) * 1000,
            "all values s": statistics.median(all_s for _, all_s in found),
            "scans": len(found),
            "MiB after the scans": grower.resident_mib(broker),
        }


def arriving(grower: Grower, number: int) -> Figures:
    """Send to new topics at a steady rate until there are N."""
    with grower.gateway(durability="none") as broker:
        seconds = max(1.0, number / _ARRIVE_PER_SECOND)
        plan = replace(grower.plan(broker.target), topics=number, per_second=number / seconds, warm_up_s=0.0)
        report = grower.judge(run(replace(plan, seconds=seconds), grower.suite.show))
        return {**_waits(report), RESIDENT: grower.resident_mib(broker)}


def _probe(grower: Grower, broker: Broker) -> Figures:
    target = replace(broker.target, syntax=MAXAM.with_names(_PROBED, None))
    plan = replace(
        grower.plan(target), topics=100, per_second=_PROBE_PER_SECOND, seconds=max(5.0, grower.suite.seconds)
    )
    return _waits(grower.judge(run(plan, grower.suite.show)))


def _waits(report: Report) -> Figures:
    found = quantiles_ms(report.receipt) or {}
    return {f"SEND to RECEIPT {name.replace('_', '.')} ms": found.get(name) for name in ("p50", "p99", "p99_9", "max")}


def scans(channel: Channel, target: Target, glob: str, wanted: int) -> list[tuple[float, float]]:
    """Subscribe eagerly, receive a value of each topic and unsubscribe, again and again until stopped.

    Returns:
        For each time, after how many seconds the first and the last value came.

    Raises:
        LoadError: They do not come.
    """
    os.nice(_SCAN_NICE)
    line = target.connect(Role.SUBSCRIBER)
    scanner = Scanner(mark(""), acked=False)
    channel.ready()
    found: list[tuple[float, float]] = []
    while not found or not channel.stopped():
        id_ = f"scan{len(found)}"
        begin_s = time.monotonic()
        line.write(subscribe_frame(id_, glob, "auto", eager=True, durable=False, headers=()))
        seen = 0
        first_s = 0.0
        while seen < wanted:
            line.wait(time.monotonic() + ANSWER_TIMEOUT_S, f"further value after {seen} of {wanted}")
            seen += len(scanner.feed(line.receive()))
            first_s = first_s or (time.monotonic() - begin_s if seen else 0.0)
        found.append((first_s, time.monotonic() - begin_s))
        line.write(b"UNSUBSCRIBE\nid:%b\n\n\0" % id_.encode())
    return found


_CONSTANT: Final[Mapping[str, Claim]] = {SEND_US: "constant"}
_GLOBS: Final = (1, 10, 100, 1000, 10_000)
_SIZES: Final = (1024, 65_536, 1_048_576)


def axes() -> dict[str, Axis]:
    """Return all axes by name."""
    million = (1_000_000,)
    return {
        "topics": Axis(
            "Topics: 120 bytes each, one to one, values sent in scattered order",
            "topics",
            (
                Series(
                    "one to one",
                    (1000, 10_000, 100_000, 1_000_000),
                    topics,
                    {SEND_US: "constant", NEW_US: "constant", RESIDENT: "linear"},
                ),
            ),
            {SEND_US: False, NEW_US: False, RESIDENT: True, P50: False},
        ),
        "subscriptions": Axis(
            "Subscriptions: 1,000 topics",
            "globs",
            (
                Series(
                    "no match, own segment",
                    _GLOBS,
                    lambda grower, n: idle_globs(grower, n, names_apart),
                    {SEND_US: "constant", NEW_US: "constant", RESIDENT: "linear"},
                ),
                Series(
                    "no match, no own segment",
                    _GLOBS,
                    lambda grower, n: idle_globs(grower, n, names_alike),
                    {SEND_US: "constant", NEW_US: "linear"},
                ),
                Series("each one topic of 1,000", _GLOBS, part_globs),
                Series("all match all", _GLOBS, all_globs, {SEND_US: "linear"}),
            ),
            {SEND_US: True, NEW_US: True, MESSAGE_US: True, RESIDENT: False},
        ),
        "connections": Axis(
            "Connections: 1,000 topics, one publisher",
            "connections",
            (
                Series(
                    "idle, beside one to one", (1, 10, 100, 1000), idle_connections, {**_CONSTANT, RESIDENT: "linear"}
                ),
                Series("each with a share of the topics", (1, 10, 100, 1000), busy_connections, {RESIDENT: "linear"}),
            ),
            {SEND_US: False, P50: False, P99: False, RESIDENT: False},
        ),
        "bodies": Axis(
            "Body size: validated Avro, ten topics",
            "bytes of a body",
            (
                Series(
                    "no subscriber",
                    (0, smallest_body(), *_SIZES),
                    lambda grower, size: bodies(grower, size, 0),
                    {SEND_US: "linear"},
                ),
                Series(
                    "one subscriber",
                    (smallest_body(), *_SIZES),
                    lambda grower, size: bodies(grower, size, 1),
                    {SEND_US: "linear"},
                ),
            ),
            {SEND_US: True, MIB_US: True, "MiB/s": True},
        ),
        "fan-out": Axis(
            "Fan-out: 1,000 topics, every value to every subscriber",
            "subscribers",
            (Series("one publisher", (1, 2, 5, 10, 20, 50, 100), fan_out, {SEND_US: "linear"}),),
            {SEND_US: True, MESSAGE_US: False, P50: False, P99: False},
        ),
        "eager": Axis(
            "A SEND every millisecond over 1,000,000 topics",
            "topics",
            (
                Series("restart", million, restart),
                Series("no scan", million, lambda grower, n: eager(grower, n, None)),
                Series("new glob, matches all", million, lambda grower, n: eager(grower, n, _ALL)),
                Series("new glob, matches 1 in 1,000", million, lambda grower, n: eager(grower, n, _RARE)),
                Series("topics arrive, 30,000/s", million, arriving),
            ),
            {},
        ),
    }


NAMES: Final = ("topics", "subscriptions", "connections", "bodies", "fan-out", "eager")

Found = dict[tuple[str, int], list[Figures]]  # by series and point: a row for each run


def grow(suite: Suite, names: Sequence[str], runs: int, plots: Path | None, as_json: bool) -> bool:
    """Measure axes, print them and draw them; return whether nothing makes their figures untrue.

    Raises:
        LoadError: One cannot be drawn.
    """
    every = axes()
    with tempfile.TemporaryDirectory(prefix="maxam-grow-") as folder:
        grower = Grower(suite, Path(folder))
        for name in names:
            axis = every[name]
            found = _measure(grower, name, axis, runs, as_json)
            if not as_json:
                print_axis(console(to_stderr=False), axis, found)
            if plots is not None and axis.panels:
                draw_axis(plots / f"{name}.svg", axis, found)
    for text in dict.fromkeys((*grower.warnings, *grower.problems)):
        sys.stderr.write(text + "\n")
    return not grower.problems


def _measure(grower: Grower, name: str, axis: Axis, runs: int, as_json: bool) -> Found:
    found: Found = {}
    for number in range(runs):
        for series in axis.series:
            for x in series.xs:
                grower.at = f"{name}, {series.name}, {x:,}"
                with progress(Console(stderr=True, quiet=as_json), f"{grower.at} {number + 1}/{runs}") as show:
                    grower.suite.show = show
                    try:
                        figures = series.measure(grower, x)
                    except LoadError as error:  # the other points are of use without this one
                        grower.problems.append(f"{grower.at}: {error}")
                        figures = {}
                found.setdefault((series.name, x), []).append(figures)
                if as_json:
                    print_json(name, series.name, x, figures)
    return found


def print_json(axis: str, series: str, x: int, figures: Figures) -> None:
    """Print one run of one point on a line."""
    sys.stdout.write(
        json.dumps({"measurement": "grow", "axis": axis, "series": series, "x": x, "figures": figures}) + "\n"
    )
    sys.stdout.flush()


def medians(rows: Sequence[Figures]) -> dict[str, float]:
    """Return the median of each figure that any run has."""
    names = dict.fromkeys(name for row in rows for name in row)
    known = {name: [value for row in rows if (value := row.get(name)) is not None] for name in names}
    return {name: statistics.median(values) for name, values in known.items() if values}


def curve(series: Series, found: Found, figure: str, colour: int = 0) -> Curve | None:
    """Return the line of one figure without points that took no tick of the clock, or None when the series does not have it."""
    points = [(x, medians(found[series.name, x]).get(figure)) for x in series.xs]
    known = [(x, y) for x, y in points if y]
    if not known:
        return None
    return Curve(series.name, [x for x, _ in known], [y for _, y in known], series.claims.get(figure), colour)


def print_axis(out: Console, axis: Axis, found: Found) -> None:
    """Print a table of each series, and how far its lines are from what is claimed."""
    out.print(axis.title, style="bold", highlight=False)
    for series in axis.series:
        rows = {x: medians(found[series.name, x]) for x in series.xs}
        table = Table(title=series.name, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(axis.x_label)
        for x in series.xs:
            table.add_column(f"{x:,}", justify="right")
        for figure in dict.fromkeys(name for row in rows.values() for name in row):
            cells = [row.get(figure) for row in rows.values()]
            table.add_row(figure, *["-" if cell is None else _shown(cell) for cell in cells])
        out.print(table)
        for figure, claim in series.claims.items():
            measured = curve(series, found, figure)
            if measured is not None:
                out.print(f"{figure}: claimed {claim}, {farthest(measured):+.0%} above it at most", highlight=False)
        out.print()


def _shown(value: float) -> str:
    """Return a figure with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:#.3g}"


def draw_axis(path: Path, axis: Axis, found: Found) -> None:
    """Draw an axis.

    Raises:
        LoadError: The file cannot be written.
    """
    panels = []
    for figure, logarithmic in axis.panels.items():
        made = [curve(series, found, figure, colour) for colour, series in enumerate(axis.series)]
        curves = [each for each in made if each is not None]
        panels.append(Panel(figure, curves, logarithmic))
    draw(path, axis.title, axis.x_label, panels)


@click.command("grow")
@click.option("--seconds", type=click.FloatRange(1), default=2.0, show_default=True, help="Of each point.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Of each point.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="One axis; may be repeated.")
@click.option(
    "--plots",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Draw each axis as FOLDER/<axis>.svg; needs maxam[bench].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per point and run, a line each.")
@broker_core_option
def grow_command(
    seconds: float, runs: int, only: Sequence[str], plots: Path | None, as_json: bool, broker_core: int
) -> None:
    """Start gateways on one core and measure what grows with topics, subscriptions, connections, bodies and subscribers.

    Each point has a gateway of its own. With one run of 2 s each it takes some ten minutes, most memory 3 GB.
    """
    if plots is not None:
        check(plots)
    touch_memory()
    good = grow(Suite(seconds, runs, "fsync", as_json, broker_core), only or NAMES, runs, plots, as_json)
    if not good:
        sys.exit(1)
