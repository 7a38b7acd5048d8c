"""`maxam-bench`: load on a STOMP broker, and what it does to latency and freshness."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import click
from rich.console import Console

from maxam.bench import chart as charts
from maxam.bench import compare
from maxam.bench.archive import archive_command
from maxam.bench.bodies import METER_READING, avro_bodies, read_schemas, text_bodies
from maxam.bench.errors import LoadError
from maxam.bench.grow import NAMES, grow
from maxam.bench.output import console, print_reports, progress
from maxam.bench.pipeline import pipeline_command
from maxam.bench.plan import ACKS, OBSERVE_AT_MAXIMUM, Headers, Plan, SubscriberGroup
from maxam.bench.plots import check as check_plots
from maxam.bench.report import Report
from maxam.bench.run import run as run_plan
from maxam.bench.suite import BROKER_CORE, MEASUREMENTS, Suite
from maxam.bench.syntax import SYNTAXES, DestinationSyntax
from maxam.bench.target import Role, Target, TlsFiles

_BODIES: Final = 1000  # different ones, dealt out over topics and time
_FILE: Final = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Put load on a STOMP broker and report rates, latency and freshness. docs/bench.md explains each figure."""


main.add_command(archive_command)
main.add_command(pipeline_command)


@final
class _Header(click.ParamType[tuple[str, str]]):
    """`NAME:VALUE`."""

    name = "NAME:VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401  # as click has it
        if isinstance(value, tuple):
            return value
        name, colon, text = value.partition(":")
        if not name or not colon:
            self.fail(f"{value!r} is not NAME:VALUE", param, ctx)
        return name, text


@main.command("run")
@click.option("--broker", default="127.0.0.1:61614", show_default=True, metavar="HOST:PORT", help="Its STOMP listener.")
@click.option(
    "--certificates", type=_FILE, metavar="FOLDER", help="Mutual TLS with a folder of `maxam-admin dev-certs`."
)
@click.option("--ca", type=_FILE, help="TLS with a broker whose chain ends at this PEM file.")
@click.option("--cert", type=_FILE, help="The client's certificate, PEM; with --ca.")
@click.option("--key", type=_FILE, help="Its key, when that is in a file of its own.")
@click.option("--plain", is_flag=True, help="Plain TCP.")
@click.option("--virtual-host", default="MAXVAPI", show_default=True, help="`host` header of CONNECT.")
@click.option("--login", help="`login` header of CONNECT.")
@click.option("--passcode", envvar="MAXAM_BENCH_PASSCODE", show_envvar=True, help="`passcode` header of CONNECT.")
@click.option(
    "--syntax",
    type=click.Choice(list(SYNTAXES)),
    default="maxam",
    show_default=True,
    help="Whose destinations and wildcards the next two options and their defaults are written in.",
)
@click.option("--topic-template", help="Destination of a topic, with {n} or {n:06} for its number.")
@click.option(
    "--glob", "globs", multiple=True, help="What subscribers subscribe to; of several each takes one in turn."
)
@click.option("--each-topic", is_flag=True, help="Subscribe to each matching topic by itself instead.")
@click.option("--publishers", type=click.IntRange(1), default=1, show_default=True, help="Connections that send.")
@click.option(
    "--subscribers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Connections that read as fast as they can.",
)
@click.option(
    "--slow-subscribers",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Further ones that take --consumer-delay-ms for each message.",
)
@click.option(
    "--consumer-delay-ms",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="What a slow subscriber takes.",
)
@click.option(
    "--topics", type=click.IntRange(1), default=1000, show_default=True, help="Each belongs to one publisher."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="SENDs per second of all publishers together; without it, as fast as receipts come.",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="SENDs of one publisher that may wait for their RECEIPT; without --rate.",
)
@click.option("--receipts/--no-receipts", default=True, show_default=True, help="Ask for a RECEIPT on each SEND.")
@click.option(
    "--body-bytes",
    type=click.IntRange(0, 2**24),
    help="Length of each body. [default: 120, with --schemas as it comes]",
)
@click.option(
    "--schemas", type=_FILE, metavar="FOLDER", help="Schema-true Avro bodies of --type from this schema folder."
)
@click.option(
    "--type", "type_name", default=METER_READING, show_default=True, help="Type of the bodies, with --schemas."
)
@click.option(
    "--ack", type=click.Choice(ACKS), default="auto", show_default=True, help="Ack mode of the quick subscribers."
)
@click.option(
    "--slow-ack",
    type=click.Choice(ACKS),
    default="client",
    show_default=True,
    help="Ack mode of the slow subscribers; each message is acknowledged when it is done.",
)
@click.option("--eager", is_flag=True, help="Subscribe with eager:true.")
@click.option(
    "--durable", is_flag=True, help="Subscribe with durable:true and a client-id; ended for good after the run."
)
@click.option(
    "--send-header",
    "send_headers",
    type=_Header(),
    multiple=True,
    help="Further header of each SEND; {n} and {destination} are its topic's.",
)
@click.option(
    "--subscribe-header", "subscribe_headers", type=_Header(), multiple=True, help="Further header of each SUBSCRIBE."
)
@click.option(
    "--connect-header",
    "connect_headers",
    type=_Header(),
    multiple=True,
    help="Further header of each subscriber's CONNECT, such as window:100.",
)
@click.option(
    "--round-trip-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Of a simulated link between the broker and the quick and the slow subscribers, by a relay for each kind.",
)
@click.option(
    "--jitter-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="By how much a round trip may take longer, with --round-trip-ms.",
)
@click.option(
    "--receive-buffer-bytes",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="SO_RCVBUF of subscribers; 0 leaves it to the system.",
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=5.0, show_default=True, help="What is measured, of each run."
)
@click.option("--warm-up-s", type=click.FloatRange(0), default=1.0, show_default=True, help="Load before that.")
@click.option(
    "--settle-s",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="How long to wait for the last receipts and values afterwards.",
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Medians of so many.")
@click.option(
    "--connect-rate",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Connections opened per second; 0: one after the other, as they are answered.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=None,
    help="Load processes of the publishers and of each kind of subscribers. [default: half the cores]",
)
@click.option(
    "--observe",
    type=click.IntRange(1),
    default=None,
    help=f"Subscribers with --ack auto read one in so many receives in full and count the messages of the others; last values are always read. [default: 1 with --rate, else {OBSERVE_AT_MAXIMUM}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per run, a line each.")
@click.option(
    "--chart",
    type=_FILE,
    metavar="FILE.svg|.png",
    help="Draw rates and staleness over time, and percentiles, of the last run; needs maxam[bench].",
)
def run_command(**options: Any) -> None:  # noqa: ANN401  # forty options, read by name
    """Drive a broker that runs: MaXaM, or any other that speaks STOMP 1.2.

    Latency is the time from a SEND to its MESSAGE at the subscriber, staleness the age of a value when the subscriber
    takes it up. With --rate both count from the time the SEND was due, so that a broker that holds up the publisher is
    not let off; without it from the time its block of SENDs was written. Exits with 1 when something makes the figures untrue:
    a rejected SEND, a subscriber that did not end on the last value of each topic, a rate that was not reached.
    """
    try:
        plan = _plan(options)
        chart: Path | None = options["chart"]
        if chart is not None:
            charts.check(chart)
        reports: list[Report] = []
        for number in range(options["runs"]):
            with progress(
                Console(stderr=True, quiet=options["as_json"]), f"run {number + 1}/{options['runs']}"
            ) as show:
                reports.append(run_plan(plan, show))
            if options["as_json"]:
                click.echo(json.dumps(reports[-1].as_json()))
        if not options["as_json"]:
            print_reports(console(to_stderr=False), _title(plan), reports)
        if chart is not None:
            charts.draw(reports[-1], chart)
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    if options["as_json"]:
        _remark(reports)
    if any(report.problems for report in reports):
        sys.exit(1)


_broker_core = click.option(
    "--broker-core",
    type=click.IntRange(0),
    default=BROKER_CORE,
    show_default=True,
    help="The one core of each broker; the load has the others. The quickest is that which the disk's interrupts come in on: see"
    " /proc/interrupts.",
)


@main.command("suite")
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
@_broker_core
def suite_command(
    seconds: float, runs: int, only: Sequence[str], durability: str, as_json: bool, broker_core: int
) -> None:
    """Start gateways on one core and measure them with the load on the other cores, as docs/performance.md reports it.

    Each run has a gateway of its own. Beside the load of one-to-one, one-to-twenty and latency stand 100 globs that match
    nothing, a durable subscription on part of the topics, and a subscriber that takes 2 ms for each message.
    """
    try:
        good = Suite(seconds, runs, durability, as_json, broker_core).run(only or tuple(MEASUREMENTS))
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    if not good:
        sys.exit(1)


@main.command("grow")
@click.option("--seconds", type=click.FloatRange(1), default=2.0, show_default=True, help="Of each point.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Of each point.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="One axis; may be repeated.")
@click.option("--plots", type=_FILE, metavar="FOLDER", help="Draw each axis as FOLDER/<axis>.svg; needs maxam[bench].")
@click.option("--json", "as_json", is_flag=True, help="Print one object per point and run, a line each.")
@_broker_core
def grow_command(
    seconds: float, runs: int, only: Sequence[str], plots: Path | None, as_json: bool, broker_core: int
) -> None:
    """Start gateways on one core and measure what grows with topics, subscriptions, connections, bodies and subscribers.

    Each point has a gateway of its own. With one run of 2 s each it takes some ten minutes, most memory 3 GB.
    """
    try:
        if plots is not None:
            check_plots(plots)
        good = grow(Suite(seconds, runs, "fsync", as_json, broker_core), only or NAMES, runs, plots, as_json)
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    if not good:
        sys.exit(1)


@main.command("compare")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=5.0,
    show_default=True,
    help="Of each; freshness takes six times as long.",
)
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Of each, the brokers in turn.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(compare.MEASUREMENTS)), help="One measurement; may be repeated."
)
@click.option(
    "--brokers",
    multiple=True,
    type=click.Choice(list(compare.CONTENDERS)),
    help="One broker; may be repeated. [default: all]",
)
@click.option(
    "--warm-up-s",
    type=click.FloatRange(0),
    default=12.0,
    show_default=True,
    help="Load as fast as it goes before each measurement of ActiveMQ, whose Java needs it.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per run, a line each; the table goes to stderr."
)
@click.option(
    "--chart", type=_FILE, metavar="FOLDER", help="Draw freshness.svg and throughput.svg there; needs maxam[bench]."
)
@_broker_core
def compare_command(
    seconds: float,
    runs: int,
    only: Sequence[str],
    brokers: Sequence[str],
    warm_up_s: float,
    as_json: bool,
    chart: Path | None,
    broker_core: int,
) -> None:
    """Measure gateway, RabbitMQ and ActiveMQ in one run, as docs/performance.md reports it.

    Each measurement has a broker of its own, on one core alone, with the load on the other cores. Exits with 1 when something makes
    the gateway's figures untrue; what a peer does not manage is a finding.
    """
    try:
        if chart is not None:
            chart.mkdir(parents=True, exist_ok=True)
            charts.check(chart / charts.FRESHNESS)
        names = list(dict.fromkeys(brokers)) or list(compare.CONTENDERS)
        measurements = list(dict.fromkeys(only)) or list(compare.MEASUREMENTS)
        results = compare.Comparison(names, seconds, runs, warm_up_s, as_json, broker_core).run(measurements)
        if chart is not None:
            compare.draw(results, chart)
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    if any(name == charts.OURS for name, _ in results.problems):
        sys.exit(1)


def _plan(options: Mapping[str, Any]) -> Plan:
    """Return what the options ask for.

    Raises:
        LoadError: They do not go together.
    """
    syntax = SYNTAXES[options["syntax"]].with_names(options["topic_template"], None)
    target = _target(options, syntax)
    if options["topic_template"] and not options["globs"]:
        raise LoadError("--topic-template needs a --glob, in the same syntax, that matches its topics")
    globs = tuple(options["globs"]) or (syntax.glob,)
    processes = options["processes"] or max(1, len(os.sched_getaffinity(0)) // 2)
    observe = options["observe"] or (1 if options["rate"] else OBSERVE_AT_MAXIMUM)
    groups = []
    for name, count, ack, delay_ms in (
        ("subscribers", options["subscribers"], options["ack"], 0.0),
        ("slow subscribers", options["slow_subscribers"], options["slow_ack"], options["consumer_delay_ms"]),
    ):
        if count:
            groups.append(
                SubscriberGroup(
                    name=name,
                    connections=count,
                    globs=globs[:count] if name == "slow subscribers" else globs,
                    ack=ack,
                    delay_ms=delay_ms,
                    eager=options["eager"],
                    durable=options["durable"],
                    observe=observe,
                    each_topic=options["each_topic"],
                    headers=options["subscribe_headers"],
                    connect_headers=options["connect_headers"],
                    round_trip_ms=options["round_trip_ms"],
                    jitter_ms=options["jitter_ms"],
                    receive_buffer_bytes=options["receive_buffer_bytes"],
                    processes=processes,
                )
            )
    plan = Plan(
        target=target,
        bodies=_bodies(options, syntax),
        groups=tuple(groups),
        publishers=options["publishers"],
        publisher_processes=processes,
        topics=options["topics"],
        per_second=options["rate"] or 0.0,
        window=options["window"],
        receipts=options["receipts"],
        headers=_send_headers(options["send_headers"]),
        warm_up_s=options["warm_up_s"],
        seconds=options["seconds"],
        settle_s=options["settle_s"],
        connects_per_second=options["connect_rate"],
    )
    plan.check()
    return plan


def _target(options: Mapping[str, Any], syntax: DestinationSyntax) -> Target:
    host, _, port = options["broker"].rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= 65535:
        raise LoadError(f"--broker {options['broker']}: expected HOST:PORT, such as 127.0.0.1:61614")
    ways = [name for name in ("plain", "certificates", "ca") if options[name]]
    if len(ways) != 1:
        raise LoadError(
            "say how to connect, in one way: --certificates FOLDER, --ca FILE (with --cert and --key for mutual TLS), or --plain"
        )
    if options["cert"] and not options["ca"]:
        raise LoadError("--cert needs --ca, the CA of the broker's certificate")
    files: dict[Role, TlsFiles | None] = dict.fromkeys(Role)
    if options["certificates"]:
        files = {role: TlsFiles.of_folder(options["certificates"], role) for role in Role}
    elif options["ca"]:
        files = dict.fromkeys(Role, TlsFiles(options["ca"], options["cert"], options["key"]))
    for each in files.values():
        if each is not None:
            each.context()
    return Target(
        host.strip("[]"),
        int(port),
        syntax,
        files[Role.PUBLISHER],
        files[Role.SUBSCRIBER],
        options["virtual_host"],
        options["login"],
        options["passcode"],
    )


def _bodies(options: Mapping[str, Any], syntax: DestinationSyntax) -> tuple[bytes, ...]:
    size: int | None = options["body_bytes"]
    if options["schemas"] is None:
        return tuple(text_bodies(_BODIES, 120 if size is None else size))
    number = max(1, min(_BODIES, 2**26 // (size or 120)))
    return tuple(avro_bodies(read_schemas(options["schemas"]), options["type_name"], syntax.topic(0), number, size))


def _send_headers(headers: Headers) -> Headers:
    reserved = {"destination", "receipt", "content-length", "bench"}
    for name, _ in headers:
        if name in reserved:
            raise LoadError(f"--send-header {name} is written by the load itself; leave it out")
    return headers


def _title(plan: Plan) -> str:
    asked = (
        f"{plan.per_second:,.0f} SEND/s asked" if plan.per_second else f"as fast as receipts come, window {plan.window}"
    )
    if not plan.per_second and not plan.receipts:
        asked = "as fast as it goes, without receipts"
    size = max(map(len, plan.bodies))
    return f"{plan.syntax.name} at {plan.target.host}:{plan.target.port}: {plan.publishers} publishers, {plan.topics:,} topics, {size} bytes, {asked}; {plan.seconds:g} s measured"


def _remark(reports: Sequence[Report]) -> None:
    for report in reports:
        for text in (*report.warnings, *report.problems):
            click.echo(text, err=True)
