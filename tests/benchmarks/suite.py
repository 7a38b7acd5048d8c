"""The measurements of docs/develop/performance.md: each run has a gateway of its own on one core and its load on the other cores."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, Final, final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.output import Figures, console, print_reports, progress, spread
from maxam.bench.plan import OBSERVE_AT_MAXIMUM, USER_HEADERS, Headers, Plan, SubscriberGroup
from maxam.bench.plan import user_headers as further_headers
from maxam.bench.report import Report
from maxam.bench.run import Show, run
from maxam.bench.scanner import Scanner, mark
from maxam.bench.syntax import MAXAM
from maxam.bench.target import ANSWER_TIMEOUT_S, Role, Target, subscribe_frame
from maxam.bench.worker import Channel, Times, Worker
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.connections import come_and_go, held
from tests.benchmarks.machine import BODY_BYTES, handshake_us, interpreter, touch_memory, yardsticks

BROKER_CORE: Final = 0  # the default
_BODIES: Final = 1000
_GLOBS: Final = 100
_SLOW: Final = SubscriberGroup("slow subscriber", 1, (MAXAM.glob,), ack="client", delay_ms=2.0)
_TOPICS: Final = 100_000
_FILL_S: Final = 600.0
_HELD: Final = 1000
# All clients of `connect` are one principal, which may not connect more than 100 times a second by default.
MANY_CONNECTS: Final = "[limits]\nconnects_per_principal_per_s = 100000\n"
_CHURNERS: Final = 4  # processes that come and go, so that the broker always has one to serve


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one measurement."""

    figures: Figures
    report: Report | None = None


@final
class Suite:
    """A series of measurements."""

    def __init__(
        self,
        seconds: float,
        runs: int,
        durability: str,
        as_json: bool,
        broker_core: int = BROKER_CORE,
        headers: Headers = (),
    ) -> None:
        self.seconds: Final = seconds
        self.headers: Final = headers
        self.durability: Final = durability
        self.bodies: Final = tuple(
            avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), _BODIES, BODY_BYTES)
        )
        self.broker_cores, self.cores = shared_out(broker_core)
        self._runs: Final = runs
        self._as_json: Final = as_json
        self._console: Final = console(to_stderr=as_json)
        self.show: Show | None = None

    def run(self, names: Sequence[str], measurements: "Mapping[str, Callable[[Suite], Outcome]] | None" = None) -> bool:
        """Run measurements and print them; return whether nothing makes their figures untrue.

        Raises:
            LoadError: One cannot be done.
        """
        if not self._as_json:
            cores = len(os.sched_getaffinity(0))
            self._console.print(f"{interpreter()}; {cores} cores, {self._runs} runs", highlight=False, soft_wrap=True)
        good = True
        measurements = MEASUREMENTS if measurements is None else measurements
        for name in names:
            outcomes = []
            for number in range(self._runs):
                with progress(Console(stderr=True, quiet=self._as_json), f"{name} {number + 1}/{self._runs}") as show:
                    self.show = show
                    found = answer(yardsticks, cores=self.broker_cores)
                    outcome = measurements[name](self)
                    outcomes.append(replace(outcome, figures={**outcome.figures, **found}))
                if self._as_json:
                    print_json(name, outcomes[-1])
            reports = [outcome.report for outcome in outcomes if outcome.report is not None]
            good = good and not any(report.problems for report in reports)
            if self._as_json:
                continue
            if reports:
                print_reports(self._console, name, reports, [outcome.figures for outcome in outcomes])
            else:
                print_figures(self._console, name, [outcome.figures for outcome in outcomes])
        return good

    def gateway(self, settings: str = "") -> AbstractContextManager[Broker]:
        """Start a gateway on its core, with further tables of its configuration."""
        return gateway(self.broker_cores, durability=self.durability, settings=settings)

    def plan(self, target: Target, *groups: SubscriberGroup) -> Plan:
        """Return a plan of this suite's bodies and times."""
        return Plan(target, self.bodies, groups, headers=self.headers, seconds=self.seconds, cores=self.cores)


def shared_out(broker_core: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the core of a broker, as a set, and those of its load.

    Raises:
        LoadError: There are none, or that one is not ours.
    """
    cores = os.sched_getaffinity(0)
    if broker_core not in cores or len(cores) < 2:
        raise LoadError(
            f"a broker has core {broker_core} to itself and the load needs another; this process may use {sorted(cores)}:"
            f" see --broker-core"
        )
    return frozenset({broker_core}), frozenset(cores - {broker_core})


def print_json(name: str, outcome: Outcome) -> None:
    """Print one run on a line."""
    found = {} if outcome.report is None else outcome.report.as_json()
    sys.stdout.write(json.dumps({"measurement": name, "figures": dict(outcome.figures), **found}) + "\n")
    sys.stdout.flush()


def print_figures(to: Console, title: str, rows: Sequence[Figures]) -> None:
    """Print figures that are no report's."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column(f"median of {len(rows)} runs (lowest to highest)" if len(rows) > 1 else "", justify="right")
    for name in rows[0]:
        table.add_row(name, spread([row[name] for row in rows]))
    to.print(table)


def with_cpu(broker: Broker, plan: Plan, show: Show | None) -> Outcome:
    """Run a plan, and note what processor time the broker takes meanwhile.

    The process that builds a snapshot of the journal counts by itself: a short run has one or none.
    """
    seen: list[tuple[float, float]] = []
    report = run(plan, show, lambda _begins: seen.append((broker.own_cpu_s(), broker.cpu_s())))
    cpu_s, all_s = (after - before for before, after in zip(*seen, strict=True))
    sends = report.sends_per_s * report.seconds
    return Outcome(
        {
            "broker: processor us/SEND": cpu_s / sends * 1e6,
            "broker: % of its core": 100 * cpu_s / report.seconds,
            "snapshots: % of its core": 100 * (all_s - cpu_s) / report.seconds,
        },
        report,
    )


@contextmanager
def company(target: Target) -> Iterator[None]:
    """Have 100 globs that match nothing and a durable subscription connected meanwhile."""
    globs = target.connect(Role.SUBSCRIBER, "globs")
    durable = target.connect(Role.SUBSCRIBER, "durable")
    try:
        for n in range(_GLOBS):
            globs.subscribe(f"g{n}", f"X/EGM.Q.*{n:02}.EGMStatus", "client")
        durable.subscribe("d", "X/EGM.Q.0000*.EGMMeterReading", "client", durable=True)
        yield
    finally:
        globs.close()
        durable.close()


def throughput(suite: Suite, subscribers: int) -> Outcome:
    """One publisher as fast as receipts come, N subscribers in ack mode auto on all its topics."""
    quick = SubscriberGroup("subscribers", subscribers, (MAXAM.glob,), observe=OBSERVE_AT_MAXIMUM)
    with suite.gateway() as broker, company(broker.target):
        return with_cpu(broker, suite.plan(broker.target, quick, _SLOW), suite.show)


def latency(suite: Suite) -> Outcome:
    """One publisher at a steady 2,000 SENDs a second over 1,000 topics, one subscriber that answers at once."""
    quick = SubscriberGroup("subscribers", 1, (MAXAM.glob,), ack="client")
    with suite.gateway() as broker, company(broker.target):
        return with_cpu(broker, replace(suite.plan(broker.target, quick, _SLOW), per_second=2000.0), suite.show)


def freshness(suite: Suite) -> Outcome:
    """5,000 updates a second over 100 topics, and a consumer that takes 2 ms for each message."""
    with suite.gateway() as broker:
        plan = replace(
            suite.plan(broker.target, _SLOW), per_second=5000.0, topics=100, seconds=max(10.0, suite.seconds)
        )
        outcome = with_cpu(broker, plan, suite.show)
    by_second = outcome.report.groups[0].staleness_by_second if outcome.report is not None else []
    third = max(1, len(by_second) // 3)
    for name, part in (("first", by_second[:third]), ("last", by_second[-third:])):
        found = [histogram.quantile_ns(0.5) / 1e6 for histogram in part if histogram.count]
        median_ms = sorted(found)[len(found) // 2] if found else None
        outcome = replace(outcome, figures={**outcome.figures, f"staleness p50 ms, {name} third": median_ms})
    return outcome


def round_trip(suite: Suite) -> Outcome:
    """5,000 updates a second, and two quick consumers 50 ms away: with a window that adapts itself, and with 100 for good."""
    adaptive = SubscriberGroup("adaptive", 1, (MAXAM.glob,), ack="client-individual", round_trip_ms=50.0)
    fixed = replace(adaptive, name="fixed", connect_headers=(("window", "100"),))
    with suite.gateway() as broker:
        plan = suite.plan(broker.target, adaptive, fixed)
        outcome = with_cpu(broker, replace(plan, per_second=5000.0, warm_up_s=3.0), suite.show)
    if outcome.report is None:
        return outcome
    ours, theirs = (group.messages_per_s for group in outcome.report.groups)
    return replace(outcome, figures={**outcome.figures, "adaptive, % of fixed": 100 * ours / max(theirs, 1.0)})


def hundred_slow(suite: Suite) -> Outcome:
    """5,000 updates a second over 100 topics, and as many as go: alone, and beside a hundred consumers that take 2 ms a message."""
    many = replace(_SLOW, name="slow subscribers", connections=100)
    found: dict[str, float | None] = {}
    outcome = Outcome({})
    for name, groups in (("alone", ()), ("beside a hundred", (many,))):
        with suite.gateway() as broker:
            most = replace(suite.plan(broker.target, *groups), topics=100, warm_up_s=2.0)
            outcome = with_cpu(broker, replace(most, per_second=5000.0), suite.show)
            at_most = run(most, suite.show)
        if outcome.report is not None:
            found[f"{name}: SEND/s"] = outcome.report.sends_per_s
            found[f"{name}: RECEIPT p50 ms"] = outcome.report.receipt.quantile_ns(0.5) / 1e6
            found[f"{name}: RECEIPT p99 ms"] = outcome.report.receipt.quantile_ns(0.99) / 1e6
        found[f"{name}, at maximum rate: SEND/s"] = at_most.sends_per_s
        found[f"{name}, at maximum rate: MESSAGE/s"] = at_most.messages_per_s
    return replace(outcome, figures={**outcome.figures, **found})


def memory(suite: Suite) -> Outcome:
    """100,000 topics with a value each: what they add to the resident memory, and how long an eager snapshot takes."""
    with suite.gateway() as broker:
        before_mib = broker.resident_mib()
        plan = replace(suite.plan(broker.target), topics=_TOPICS, once=True, warm_up_s=0.0, seconds=_FILL_S)
        report = run(plan, suite.show)
        after_mib = broker.resident_mib()
        snapshot_s = answer(eager_snapshot, broker.target, _TOPICS, cores=suite.cores)
        figures = {
            "MiB": after_mib - before_mib,
            "bytes/topic": (after_mib - before_mib) * 2**20 / _TOPICS,
            "eager snapshot, s": snapshot_s,
            "MiB after the snapshot": broker.resident_mib() - before_mib,
        }
    return Outcome(figures, report)


def idle(suite: Suite) -> Outcome:
    """1,000 connections that do nothing: what each adds to the resident memory."""
    with suite.gateway() as broker:
        before_mib = broker.resident_mib()
        begin_s = time.monotonic()
        with held(broker.target, _HELD):
            took_s = time.monotonic() - begin_s
            each_kib = (broker.resident_mib() - before_mib) * 1024 / _HELD
    return Outcome({"KiB/connection": each_kib, "connections/s while they were opened": _HELD / took_s})


def connect(suite: Suite) -> Outcome:
    """Connect, CONNECT, DISCONNECT with a receipt: how often in a second, beside a handshake of OpenSSL alone."""
    openssl_us: float = answer(handshake_us, cores=suite.broker_cores)
    with suite.gateway(MANY_CONNECTS) as broker:
        cpu_s = broker.cpu_s()
        counts = answers([(come_and_go, broker.target, suite.seconds)] * _CHURNERS, suite.cores)
        cpu_s = broker.cpu_s() - cpu_s
    count = sum(counts)
    each_us = cpu_s / count * 1e6
    return Outcome(
        {
            "connections/s": count / suite.seconds,
            "broker: processor us/connection": each_us,
            "yardstick: OpenSSL's handshake alone, us": openssl_us,
            "of it OpenSSL's handshake, %": 100 * openssl_us / each_us,
        }
    )


MEASUREMENTS: Final[Mapping[str, Callable[[Suite], Outcome]]] = {
    "one-to-one": lambda suite: throughput(suite, 1),
    "one-to-twenty": lambda suite: throughput(suite, 20),
    "latency": latency,
    "freshness": freshness,
    "round-trip": round_trip,
    "hundred-slow": hundred_slow,
    "memory": memory,
    "idle": idle,
    "connect": connect,
}


def eager_snapshot(_channel: Channel, target: Target, topics: int) -> float:
    """Subscribe eagerly; return after how many seconds a value of each topic is here.

    Raises:
        LoadError: They do not come.
    """
    line = target.connect(Role.SUBSCRIBER)
    scanner = Scanner(mark(""), acked=False)
    begin_s = time.monotonic()
    line.write(subscribe_frame("s", target.syntax.glob, "auto", eager=True, durable=False, headers=()))
    seen = 0
    while seen < topics:
        line.wait(time.monotonic() + ANSWER_TIMEOUT_S, f"further value after {seen} of {topics}")
        seen += len(scanner.feed(line.receive()))
    return time.monotonic() - begin_s


def answers(work: Sequence[tuple[Any, ...]], cores: frozenset[int] | None) -> list[Any]:
    """Do each, a function and its arguments, in a process of its own, beginning together; return what each returns.

    Raises:
        LoadError: One fails.
    """
    workers = [Worker(function.__name__, function, *arguments, cores=cores) for function, *arguments in work]
    found: dict[Worker, Any] = {}
    ready = 0
    try:
        while len(found) < len(workers):
            listening = {worker.connection: worker for worker in workers if worker not in found}
            for connection in wait(list(listening)):
                worker = listening[connection]  # type: ignore[index]  # they are the connections that we gave
                what, value = worker.hear()
                if what == "done":
                    found[worker] = value
                elif what == "ready":
                    ready += 1
                    if ready == len(workers):
                        now_ns = time.monotonic_ns()
                        for each in workers:
                            each.send(Times(now_ns, now_ns, now_ns, now_ns))
    finally:
        for worker in workers:
            worker.end()
    return [found[worker] for worker in workers]


def answer(function: Callable[..., Any], *arguments: Any, cores: frozenset[int] | None) -> Any:
    """Call a function in a process of its own; return what it returns.

    Raises:
        LoadError: It fails.
    """
    return answers([(function, *arguments)], cores)[0]


user_headers_option = click.option(
    "--user-headers",
    type=click.IntRange(1),
    default=USER_HEADERS,
    show_default=True,
    help="Number of user headers of each SEND, with the one that the load itself needs.",
)
broker_core_option = click.option(
    "--broker-core",
    type=click.IntRange(0),
    default=BROKER_CORE,
    show_default=True,
    help="The one core of each broker; the load has the others. The quickest is that which the disk's interrupts come in on: see"
    " /proc/interrupts.",
)


@click.command("suite")
@click.option("--seconds", type=click.FloatRange(1), default=5.0, show_default=True, help="Of each run.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Of each measurement.")
@click.option("--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="One measurement; may be repeated.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "none"]),
    default="fsync",
    show_default=True,
    help="Of the gateway's journal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per run, a line each.")
@user_headers_option
@broker_core_option
def suite_command(
    seconds: float,
    runs: int,
    only: Sequence[str],
    durability: str,
    as_json: bool,
    user_headers: int,
    broker_core: int,
) -> None:
    """Start gateways on one core and measure them with the load on the other cores, as docs/develop/performance.md reports it.

    Each run has a gateway of its own. One-to-one, one-to-twenty and latency have more subscriptions beside the load. 100 globs
    match nothing, a durable subscription is on part of the topics, and one subscriber takes 2 ms for each message.
    """
    touch_memory()
    headers = further_headers(user_headers)
    good = Suite(seconds, runs, durability, as_json, broker_core, headers).run(only or tuple(MEASUREMENTS))
    if not good:
        sys.exit(1)
