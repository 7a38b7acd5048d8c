"""The gateway and its peers in one run: each on one core alone, in turn, with the load on the other cores.

All have mutual TLS, a receipt on every SEND and the same bodies. Only the gateway checks rights and schemas. Only the gateway, and a
peer configured for it, syncs its journal before it answers. Only the gateway has 100 globs, a durable subscription and a subscriber that takes 2 ms a message beside the load.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, final

import click
from rich import box
from rich.console import Console
from rich.table import Table

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.chart import check
from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.output import console, progress, rounded
from maxam.bench.plan import OBSERVE_AT_MAXIMUM, Headers, Plan, SubscriberGroup
from maxam.bench.plan import user_headers as further_headers
from maxam.bench.report import Report
from maxam.bench.run import Show, run
from maxam.bench.syntax import MAXAM
from tests.benchmarks.brokers.activemq import activemq
from tests.benchmarks.brokers.activemq import installed as activemq_installed
from tests.benchmarks.brokers.artemis import Kind, artemis
from tests.benchmarks.brokers.artemis import installed as artemis_installed
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.brokers.rabbitmq import installed as rabbitmq_installed
from tests.benchmarks.brokers.rabbitmq import rabbitmq
from tests.benchmarks.chart import (
    FRESHNESS,
    OURS,
    THROUGHPUT,
    AgeLine,
    Bars,
    Spread,
    draw_freshness,
    draw_throughput,
)
from tests.benchmarks.connections import come_and_go, held
from tests.benchmarks.machine import BODY_BYTES, machine, touch_memory, yardsticks
from tests.benchmarks.suite import (
    BROKER_CORE,
    Outcome,
    answer,
    answers,
    broker_core_option,
    company,
    shared_out,
    user_headers_option,
)

ONE_TO_ONE: Final = "one to one, SEND/s"
ONE_TO_TWENTY: Final = "one to twenty, MESSAGE/s"
FRESHNESS_TOPICS: Final = 100
_BODIES: Final = 1000
_FRESHNESS_SECONDS: Final = 6  # times as long as the others
_SETTLE_S: Final = 30.0  # one that lets its consumers fall behind would need ten times as long as it was loaded
_FIRST: Final = 20  # connections that come and go before memory is measured, so that what is made once exists
_HELD: Final = 1000
_CPU: Final = "broker: % of its core"
_CHURNERS: Final = 4  # processes that come and go, so that the broker always has one to serve


@dataclass(frozen=True, slots=True)
class Contender:
    """A broker that is compared, configured in one way."""

    label: str
    start: Callable[[frozenset[int]], AbstractContextManager[Broker]]
    installed: Callable[[], bool] = lambda: True
    last_value: bool = False  # a peer configured for freshness, measured by nothing else
    warm_up: float = 0.0  # how many times --warm-up-s it needs until its Java is compiled


CONTENDERS: Final[Mapping[str, Contender]] = {
    OURS: Contender("MaXaM", gateway),
    f"{OURS}-no-fsync": Contender("MaXaM, no fsync", lambda cores: gateway(cores, durability="none")),
    "rabbitmq": Contender("RabbitMQ", rabbitmq, rabbitmq_installed),
    "activemq": Contender("ActiveMQ", activemq, activemq_installed, warm_up=1.0),
    "rabbitmq-last-value": Contender(
        "RabbitMQ, one-message queues",
        lambda cores: rabbitmq(cores, last_value=True),
        rabbitmq_installed,
        last_value=True,
    ),
    "activemq-last-value": Contender(
        "ActiveMQ, one message a key",
        lambda cores: activemq(cores, last_value_topics=FRESHNESS_TOPICS),
        activemq_installed,
        last_value=True,
        warm_up=1.0,
    ),
}
_ARTEMIS_WARM_UP: Final = (
    5.0  # a minute: it does 7,700 SEND/s when it is cold, 17,000 after 10 s and twice as many after 60 s
)
_ARTEMIS: Final = {
    "artemis": ("Artemis", Kind.TRANSIENT),
    "artemis-fsync": ("Artemis, fsync", Kind.FSYNC),
    "artemis-last-value": ("Artemis, last-value queues", Kind.LAST_VALUE),
}


def contenders(artemis_home: Path | None = None) -> dict[str, Contender]:
    """Return all that can be compared, by name; Artemis is in a folder that the user gives."""
    return {
        **CONTENDERS,
        **{
            name: Contender(
                label,
                partial(artemis, home=artemis_home, kind=kind),
                partial(artemis_installed, artemis_home),
                last_value=kind is Kind.LAST_VALUE,
                warm_up=_ARTEMIS_WARM_UP,
            )
            for name, (label, kind) in _ARTEMIS.items()
        },
    }


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of one broker that runs."""

    broker: Broker
    bodies: tuple[bytes, ...]
    seconds: float
    warm_up_s: float  # 0 for one that needs none
    cores: frozenset[int]  # of the load
    headers: Headers  # further ones of each SEND
    show: Show | None

    def plan(self, *groups: SubscriberGroup) -> Plan:
        """Return a plan with what this broker asks of its load."""
        return Plan(
            self.broker.target,
            self.bodies,
            groups,
            headers=(*self.headers, *self.broker.send_headers),
            seconds=self.seconds,
            settle_s=_SETTLE_S,
            cores=self.cores,
        )

    def warm(self, plan: Plan) -> None:
        """Load a broker that needs it, as fast as receipts come.

        Raises:
            LoadError: It cannot be done.
        """
        if self.warm_up_s:
            run(replace(plan, per_second=0.0, warm_up_s=0.0, seconds=self.warm_up_s), self.show)

    def in_company(self, plan: Plan) -> tuple[Report, float]:
        """Run a plan as `observed` does; the gateway has what else a gateway has to do meanwhile."""
        if self.broker.target.syntax is not MAXAM:
            return self.observed(plan)
        slow = SubscriberGroup("slow subscriber", 1, (MAXAM.glob,), ack="client", delay_ms=2.0)
        with company(self.broker.target):
            return self.observed(replace(plan, groups=(*plan.groups, slow)))

    def observed(self, plan: Plan) -> tuple[Report, float]:
        """Run a plan; return what the load saw, and how much of its core the broker took meanwhile, in %."""
        seen_s: list[float] = []
        report = run(plan, self.show, lambda _begins: seen_s.append(self.broker.cpu_s()))
        return report, 100 * (seen_s[1] - seen_s[0]) / report.seconds


def known(values: Iterable[float | None]) -> list[float]:
    """Return those that are there."""
    return [value for value in values if value is not None]


@dataclass(slots=True)
class Results:
    """The results of all runs, by the name of the contender."""

    machine: Mapping[str, object] = field(default_factory=dict)
    figures: dict[str, dict[str, list[float | None]]] = field(
        default_factory=dict
    )  # then of the figure: one of each run
    ages_ms: dict[str, list[list[float | None]]] = field(default_factory=dict)  # of each run, of each second
    brokers: dict[str, str] = field(default_factory=dict)  # versions and configurations
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def note(self, name: str, outcome: Outcome) -> None:
        """Add one run of one measurement."""
        for figure, value in outcome.figures.items():
            self.figures.setdefault(figure, {}).setdefault(name, []).append(value)
        if outcome.report is not None:
            self.problems += [(name, text) for text in outcome.report.problems]
            self.warnings += [(name, text) for text in outcome.report.warnings]

    def medians(self, figure: str) -> dict[str, float]:
        """Return the median of a figure for each contender that has one."""
        found = {}
        for name, values in self.figures.get(figure, {}).items():
            if seen := known(values):
                found[name] = statistics.median(seen)
        return found

    def age_medians_ms(self) -> dict[str, list[Spread | None]]:
        """Return for each contender the spread over the runs of each second's median age."""
        return {name: [Spread.of(second) for second in zip(*runs, strict=True)] for name, runs in self.ages_ms.items()}


def throughput(round_: Round, subscribers: int, title: str) -> Outcome:
    """One publisher as fast as receipts come, N subscribers in ack mode auto on all its topics."""
    glob = round_.broker.target.syntax.glob
    plan = round_.plan(SubscriberGroup("subscribers", subscribers, (glob,), observe=OBSERVE_AT_MAXIMUM))
    round_.warm(plan)
    report, cpu = round_.in_company(plan)
    group = report.groups[0]
    return Outcome(
        {
            f"{title}, SEND/s": report.sends_per_s,
            f"{title}, MESSAGE/s": group.messages_per_s,
            f"{title}, values that came, %": 100 * (1 - group.conflated),
            f"{title}, {_CPU}": cpu,
        },
        report,
    )


def latency(round_: Round) -> Outcome:
    """One publisher at a steady 2,000 SENDs a second over 1,000 topics, one subscriber in ack mode auto."""
    plan = round_.plan(SubscriberGroup("subscribers", 1, (round_.broker.target.syntax.glob,)))
    round_.warm(plan)
    report, cpu = round_.in_company(replace(plan, per_second=2000.0))
    found = report.groups[0].latency
    return Outcome(
        {
            "latency at 2,000/s, p50 ms": _ms(found, 0.5),
            "latency at 2,000/s, p99 ms": _ms(found, 0.99),
            "latency at 2,000/s, broker: us of processor time a SEND": cpu * 1e4 / report.sends_per_s,
        },
        report,
    )


def freshness(round_: Round) -> Outcome:
    """5,000 updates a second over 100 topics; a consumer that takes 2 ms for each message, and a fast one beside it."""
    broker = round_.broker
    glob = broker.target.syntax.glob
    slow = SubscriberGroup(
        "slow consumer",
        1,
        (glob,),
        ack="client" if broker.target.syntax is MAXAM else "client-individual",
        delay_ms=2.0,
        headers=broker.subscribe_headers,
        each_topic=broker.each_topic,
    )
    fast = SubscriberGroup("fast consumer", 1, (glob,))
    plan = replace(round_.plan(slow, fast), topics=FRESHNESS_TOPICS)
    round_.warm(replace(plan, groups=(fast,)))
    report, cpu = round_.observed(replace(plan, per_second=5000.0, seconds=round_.seconds * _FRESHNESS_SECONDS))
    of_slow, of_fast = report.groups
    settled_ms = of_slow.settled_after_send_ms
    return Outcome(
        {
            "freshness, age p50 ms": _ms(of_slow.staleness, 0.5),
            "freshness, age p99 ms": _ms(of_slow.staleness, 0.99),
            "freshness, age p99 with the drain, ms": _ms(of_slow.staleness_with_drain, 0.99),
            "freshness, age p50 in the last second, ms": ages_ms(report)[-1],
            "freshness, holds every last value after s": None if settled_ms is None else settled_ms / 1e3,
            "freshness, slow consumer: MESSAGE/s": of_slow.messages_per_s,
            "freshness, fast consumer: MESSAGE/s": of_fast.messages_per_s,
            "freshness, fast consumer: age p50 ms": _ms(of_fast.staleness, 0.5),
            f"freshness, {_CPU}": cpu,
        },
        report,
    )


def connect(round_: Round) -> Outcome:
    """Connect, CONNECT, DISCONNECT with a receipt: how often in a second."""

    def churn(seconds: float) -> int:
        return sum(answers([(come_and_go, round_.broker.target, seconds)] * _CHURNERS, round_.cores))

    if round_.warm_up_s:
        churn(round_.warm_up_s)
    cpu_s = round_.broker.cpu_s()
    count = churn(round_.seconds)
    cpu_s = round_.broker.cpu_s() - cpu_s
    return Outcome({"connect, connections/s": count / round_.seconds, f"connect, {_CPU}": 100 * cpu_s / round_.seconds})


def idle(round_: Round) -> Outcome:
    """1,000 connections that do nothing: what each adds to the resident memory."""
    broker = round_.broker
    with held(broker.target, _FIRST):
        pass
    before_mib = broker.resident_mib()
    with held(broker.target, _HELD):
        each_kib = (broker.resident_mib() - before_mib) * 1024 / _HELD
    return Outcome({"idle, KiB/connection": each_kib})


MEASUREMENTS: Final[Mapping[str, Callable[[Round], Outcome]]] = {
    "one-to-one": lambda round_: throughput(round_, 1, "one to one"),
    "one-to-twenty": lambda round_: throughput(round_, 20, "one to twenty"),
    "latency": latency,
    "connect": connect,
    "idle": idle,
    "freshness": freshness,
}


def ages_ms(report: Report) -> list[float | None]:
    """Return the median age of what the first group took up, of each second; None where it took up nothing."""
    return [_ms(histogram, 0.5) for histogram in report.groups[0].staleness_by_second]


def _ms(histogram: Histogram, share: float) -> float | None:
    return histogram.quantile_ns(share) / 1e6 if histogram.count else None


def turn(names: Sequence[str], by: int) -> list[str]:
    """Return the names beginning with another one: none is always first or last."""
    start = by % len(names)
    return [*names[start:], *names[:start]]


@final
class Comparison:
    """Measurements of several brokers."""

    def __init__(
        self,
        names: Sequence[str],
        seconds: float,
        runs: int,
        warm_up_s: float,
        as_json: bool,
        broker_core: int = BROKER_CORE,
        headers: Headers = (),
        found: Mapping[str, Contender] = CONTENDERS,
    ) -> None:
        """Take what is to be compared: names of the contenders that were found.

        Raises:
            LoadError: A peer is not installed, or the machine has no core for the load.
        """
        lacking = [name for name in names if not found[name].installed()]
        if lacking:
            others = [name for name in names if name not in lacking]
            without = f", or leave them out: {' '.join([f'--brokers {name}' for name in others])}" if others else ""
            install = "run deploy/install-bench-peers as root"
            if all(name in _ARTEMIS for name in lacking):
                install = "give the folder of an unpacked release with --artemis"
            raise LoadError(f"not installed: {', '.join(lacking)}; {install}{without}")
        self._contenders: Final = found
        self._headers: Final = headers
        self._names: Final = names
        self._seconds: Final = seconds
        self._runs: Final = runs
        self._warm_up_s: Final = warm_up_s
        self._as_json: Final = as_json
        self._console: Final = console(to_stderr=as_json)
        self._broker_cores, self._cores = shared_out(broker_core)
        self._bodies: Final = tuple(
            avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), _BODIES, BODY_BYTES)
        )

    def run(self, measurements: Sequence[str]) -> Results:
        """Do all, run after run, the brokers in turn; print the table, and a line of JSON for each if asked.

        One that cannot be done is a problem of its broker, and missing.
        """
        results = Results(machine())
        for number in range(self._runs):
            for measurement in measurements:
                for name in turn(self._names, number):
                    if measurement == "freshness" or not self._contenders[name].last_value:
                        self._measure(results, number, measurement, name)
        print_results(self._console, self._names, results)
        return results

    def _measure(self, results: Results, number: int, measurement: str, name: str) -> None:
        contender = self._contenders[name]
        title = f"{number + 1}/{self._runs} {measurement}, {name}"
        warm_up_s = self._warm_up_s * contender.warm_up
        try:
            found = answer(yardsticks, cores=self._broker_cores)
            with progress(Console(stderr=True), title) as show, contender.start(self._broker_cores) as broker:
                round_ = Round(broker, self._bodies, self._seconds, warm_up_s, self._cores, self._headers, show)
                outcome = MEASUREMENTS[measurement](round_)
        except LoadError as error:  # the others are worth having
            results.problems.append((name, f"{measurement} was not measured: {error}"))
            return
        results.brokers[name] = f"{broker.version}, {broker.configuration}"
        beside = {f"{measurement}, {yardstick}": value for yardstick, value in found.items()}
        outcome = replace(outcome, figures={**outcome.figures, **beside})
        results.note(name, outcome)
        if measurement == "freshness" and outcome.report is not None:
            results.ages_ms.setdefault(name, []).append(ages_ms(outcome.report))
        if self._as_json:
            line = {
                **({} if outcome.report is None else outcome.report.as_json()),
                "measurement": measurement,
                "broker": name,
                "version": broker.version,
                "configuration": broker.configuration,
                "run": number + 1,
                "machine": results.machine,
                "figures": dict(outcome.figures),
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def print_results(to: Console, names: Sequence[str], results: Results) -> None:
    """Print what was compared, a table of medians with ratios, and what is to be known about them."""
    said = [f"{name.replace('_', ' ')}: {value}" for name, value in results.machine.items()]
    said.append(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    to.print("; ".join(said), highlight=False, soft_wrap=True)
    for name in names:
        if name in results.brokers:
            to.print(f"{name}: {results.brokers[name]}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "broker", "median", "lowest", "highest", f"{OURS} / it"):
        table.add_column(title, justify="left" if title in ("", "broker") else "right", no_wrap=True)
    for figure in results.figures:
        of_brokers = {name: known(values) for name, values in results.figures[figure].items()}
        medians = results.medians(figure)
        for position, name in enumerate(name for name in names if name in of_brokers):
            found = of_brokers[name]
            shown = [rounded(value) for value in (medians[name], min(found), max(found))] if found else ["-"] * 3
            table.add_row(figure if not position else "", name, *shown, _ratio(figure, medians, name))
        table.add_section()
    to.print(table)
    for style, word, texts in (("yellow", "warning", results.warnings), ("red", "finding", results.problems)):
        for name, text in dict.fromkeys(texts):
            to.print(f"{word}, {name}: {text}", style=style, markup=False, highlight=False, soft_wrap=True)


def _ratio(figure: str, medians: Mapping[str, float], name: str) -> str:
    if name == OURS or OURS not in medians or not medians.get(name) or "%" in figure or "yardstick" in figure:
        return ""
    return f"{medians[OURS] / medians[name]:.3g}"


def draw(results: Results, folder: Path) -> None:
    """Draw what was measured of freshness and throughput, into a folder.

    Raises:
        LoadError: A file cannot be written.
    """
    if results.ages_ms:
        ages = results.age_medians_ms()
        lines = {
            name: AgeLine(contender.label, ages[name], name.split("-")[0], contender.last_value)
            for name, contender in contenders().items()
            if name in ages
        }
        draw_freshness(list(lines.values()), folder / FRESHNESS)
    panels = []
    for title, figure in (
        ("SENDs with a receipt each, one publisher to one subscriber", ONE_TO_ONE),
        ("MESSAGEs, one publisher to twenty subscribers", ONE_TO_TWENTY),
    ):
        of_brokers = results.figures.get(figure, {})
        bars = [
            (contender.label, name, spread)
            for name, contender in contenders().items()
            if (spread := Spread.of(of_brokers.get(name, ()))) is not None
        ]
        if bars:
            panels.append(Bars(title, bars))
    if panels:
        draw_throughput(panels, folder / THROUGHPUT)


@click.command("compare")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=5.0,
    show_default=True,
    help="Of each; freshness takes six times as long.",
)
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Of each, the brokers in turn.")
@click.option("--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="One measurement; may be repeated.")
@click.option(
    "--brokers",
    multiple=True,
    type=click.Choice(list(contenders())),
    help="One broker; may be repeated. [default: all, Artemis only with --artemis]",
)
@click.option(
    "--artemis",
    "artemis_home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="MAXAM_BENCH_ARTEMIS",
    show_envvar=True,
    help="Folder of an unpacked release of Apache ActiveMQ Artemis 2.",
)
@click.option(
    "--warm-up-s",
    type=click.FloatRange(0),
    default=12.0,
    show_default=True,
    help="Load as fast as it goes before each measurement of ActiveMQ, whose Java needs it. Artemis has five times as much.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per run, a line each; the table goes to stderr."
)
@click.option(
    "--chart",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Draw freshness.svg and throughput.svg there; needs maxam[bench].",
)
@user_headers_option
@broker_core_option
def compare_command(
    seconds: float,
    runs: int,
    only: Sequence[str],
    brokers: Sequence[str],
    artemis_home: Path | None,
    warm_up_s: float,
    as_json: bool,
    chart: Path | None,
    user_headers: int,
    broker_core: int,
) -> None:
    """Measure gateway, RabbitMQ, ActiveMQ and Artemis in one run, as docs/develop/performance.md reports it.

    Each measurement has a broker of its own, on one core alone, with the load on the other cores. Exits with 1 when something makes
    the gateway's figures untrue; what a peer does not manage is a finding.
    """
    if chart is not None:
        chart.mkdir(parents=True, exist_ok=True)
        check(chart / FRESHNESS)
    touch_memory()
    found = contenders(artemis_home)
    names = list(dict.fromkeys(brokers)) or list(CONTENDERS if artemis_home is None else found)
    measurements = list(dict.fromkeys(only)) or list(MEASUREMENTS)
    headers = further_headers(user_headers)
    results = Comparison(names, seconds, runs, warm_up_s, as_json, broker_core, headers, found).run(measurements)
    if chart is not None:
        draw(results, chart)
    if any(name == OURS for name, _ in results.problems):
        sys.exit(1)
