"""A cluster of three gateways beside NATS JetStream and RabbitMQ's quorum queues, and beside one gateway, in one run and in turn.

One publisher sends over 1,000 topics to one subscriber, with a receipt for each SEND. All nodes and the load share all cores of this
machine. Each node syncs to the disk, and a message is accepted once a majority of three has it.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import click

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.histogram import Histogram
from maxam.bench.output import console
from maxam.bench.plan import OBSERVE_AT_MAXIMUM, Plan, SubscriberGroup
from maxam.bench.run import run
from maxam.bench.syntax import MAXAM
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.brokers.replicated import Nats, maxam_cluster, nats, rabbitmq_cluster
from tests.benchmarks.chart import OURS
from tests.benchmarks.compare import Results, print_results, turn
from tests.benchmarks.machine import BODY_BYTES, machine
from tests.benchmarks.suite import Outcome

TOPICS: Final = 1000
STEADY_PER_S: Final = 2000.0
_BODIES: Final = 1000
_SETTLE_S: Final = 30.0
RATE: Final = "one to one, SEND/s"
_CORES: Final = frozenset(os.sched_getaffinity(0))
CONTENDERS: Final[Mapping[str, Callable[[], AbstractContextManager[Broker | Nats]]]] = {
    OURS: maxam_cluster,
    "one gateway": lambda: gateway(_CORES),
    "nats": lambda: nats(_CORES),
    "rabbitmq": lambda: rabbitmq_cluster(_CORES),
}


def measured(broker: Broker, bodies: tuple[bytes, ...], seconds: float, window: int) -> Outcome:
    """Return the figures of a broker that speaks STOMP: at maximum rate, and at a steady one."""
    glob = broker.target.syntax.glob
    group = SubscriberGroup("subscribers", 1, (glob,), observe=OBSERVE_AT_MAXIMUM, headers=broker.subscribe_headers)
    plan = Plan(
        broker.target,
        bodies,
        (group,),
        topics=TOPICS,
        window=window,
        headers=broker.send_headers,
        seconds=seconds,
        settle_s=_SETTLE_S,
    )
    fast = run(plan)
    steady = run(replace(plan, per_second=STEADY_PER_S, groups=(replace(group, observe=1),)))
    figures = {
        RATE: fast.sends_per_s,
        "one to one, MESSAGE/s": fast.messages_per_s,
        **_quantiles("RECEIPT at maximum rate", fast.receipt),
        **_quantiles(f"RECEIPT at {STEADY_PER_S:,.0f} SEND/s", steady.receipt),
        **_quantiles(f"SEND to MESSAGE at {STEADY_PER_S:,.0f} SEND/s", steady.groups[0].latency),
    }
    steady.problems[:0] = fast.problems
    return Outcome(figures, steady)


def measured_nats(broker: Nats, seconds: float, window: int) -> Outcome:
    """Return the figures of NATS, whose load has the same window."""
    fast = broker.measure(seconds, TOPICS, BODY_BYTES, 0, window)
    steady = broker.measure(seconds, TOPICS, BODY_BYTES, STEADY_PER_S, window)
    return Outcome(
        {
            RATE: fast["sends_per_s"],
            **{f"RECEIPT at maximum rate, {name} ms": fast[f"{name}_ms"] for name in ("p50", "p99")},
            **{f"RECEIPT at {STEADY_PER_S:,.0f} SEND/s, {name} ms": steady[f"{name}_ms"] for name in ("p50", "p99")},
        }
    )


def _quantiles(title: str, histogram: Histogram) -> dict[str, float | None]:
    shares = {"p50": 0.5, "p99": 0.99}
    return {
        f"{title}, {name} ms": histogram.quantile_ns(share) / 1e6 if histogram.count else None
        for name, share in shares.items()
    }


@click.command("cluster")
@click.option("--seconds", type=click.FloatRange(1), default=5.0, help="Of each measurement.")
@click.option("--runs", type=click.IntRange(1), default=3, help="Of each, in turn; medians are shown.")
@click.option("--window", type=click.IntRange(1), default=1000, help="SENDs that may wait for their RECEIPT.")
@click.option(
    "--brokers", multiple=True, type=click.Choice(list(CONTENDERS)), help="One of them; may be repeated. [default: all]"
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per run, a line each; the table goes to stderr."
)
def cluster_command(seconds: float, runs: int, window: int, brokers: Sequence[str], as_json: bool) -> None:
    """Measure a cluster beside one gateway, NATS JetStream and RabbitMQ's quorum queues, on three nodes of this machine each."""
    names = list(dict.fromkeys(brokers)) or list(CONTENDERS)
    bodies = tuple(avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), _BODIES, BODY_BYTES))
    results = Results(machine())
    for number in range(runs):
        for name in turn(names, number):
            load = os.getloadavg()[0]
            try:
                with CONTENDERS[name]() as broker:
                    if isinstance(broker, Nats):
                        outcome = measured_nats(broker, seconds, window)
                    else:
                        outcome = measured(broker, bodies, seconds, window)
                    results.brokers[name] = f"{broker.version}, {broker.configuration}"
            except LoadError as error:  # the others are worth having
                results.problems.append((name, str(error)))
                continue
            results.note(name, outcome)
            if as_json:
                line = {"broker": name, "run": number + 1, "load_before": load, "figures": dict(outcome.figures)}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
    print_results(console(to_stderr=as_json), names, results)
    if any(name == OURS for name, _ in results.problems):
        sys.exit(1)
