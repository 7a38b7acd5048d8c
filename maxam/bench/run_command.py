"""`maxam-bench run`: load on a STOMP broker, and what it does to latency and freshness."""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from maxam.bench import chart as charts
from maxam.bench.bodies import METER_READING, avro_bodies, read_schemas, text_bodies
from maxam.bench.kills import check_options, kill_leader
from maxam.bench.output import console, print_reports, progress
from maxam.bench.plan import ACKS, OBSERVE_AT_MAXIMUM, USER_HEADERS, Headers, Plan, SubscriberGroup, user_headers
from maxam.bench.report import Report
from maxam.bench.run import run as run_plan
from maxam.bench.syntax import SYNTAXES, DestinationSyntax
from maxam.bench.target import Role, Target, TlsFiles
from maxam.client_config import given_options, identity_options, server_option
from maxam.exit_codes import ExitCode
from maxam.https_client import split_addresses
from maxam.terminal.moments import Duration
from maxam.terminal.options import YAML, Pair, RenamedOption
from maxam.terminal.tables import print_json

_BODIES: Final = 1000  # different ones, dealt out over topics and time
_FILE: Final = click.Path(path_type=Path)


@click.command("run")
@server_option("--broker", several=True)
@identity_options
@click.option(
    "--certificates", type=_FILE, metavar="FOLDER", help="Mutual TLS with a folder of `maxam-admin certs dev`."
)
@click.option("--plain", is_flag=True, help="Connect with plain TCP.")
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
    "--glob",
    "globs",
    multiple=True,
    help="Glob of the subscribers. If it is repeated, each subscriber takes the next one.",
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
    help="Milliseconds that a slow subscriber takes for each message.",
)
@click.option(
    "--topics",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of topics. Each belongs to one publisher.",
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
    "--user-headers",
    type=click.IntRange(1),
    default=USER_HEADERS,
    show_default=True,
    help="Number of user headers of each SEND, with the one that the load itself needs. The others are short.",
)
@click.option(
    "--send-header",
    "send_headers",
    type=Pair("NAME:VALUE", ":"),
    multiple=True,
    help="Further header of each SEND; {n} and {destination} are its topic's.",
)
@click.option(
    "--subscribe-header",
    "subscribe_headers",
    type=Pair("NAME:VALUE", ":"),
    multiple=True,
    help="Further header of each SUBSCRIBE.",
)
@click.option(
    "--connect-header",
    "connect_headers",
    type=Pair("NAME:VALUE", ":"),
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
    "--duration",
    "seconds",
    cls=RenamedOption,
    former=["--seconds"],
    type=Duration(timedelta(seconds=1), bare="s"),
    default="5s",
    show_default=True,
    help="Time that is measured in each run.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    cls=RenamedOption,
    former=["--warm-up-s"],
    type=Duration(zero=True, bare="s"),
    default="1s",
    show_default=True,
    help="Time of load before the measurement.",
)
@click.option(
    "--settle",
    "settle_s",
    cls=RenamedOption,
    former=["--settle-s"],
    type=Duration(zero=True, bare="s"),
    default="10s",
    show_default=True,
    help="Time to wait for the last receipts and values after the measurement.",
)
@click.option(
    "--runs", type=click.IntRange(1), default=1, show_default=True, help="Number of runs; the report shows medians."
)
@click.option(
    "--connect-rate",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Connections opened per second. 0 opens each when the one before is answered.",
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
    help="With --ack auto, subscribers read every Nth receive in full and count the messages of the others."
    f" Last values are always read. [default: 1 with --rate, else {OBSERVE_AT_MAXIMUM}]",
)
@click.option(
    "--kill-leader",
    metavar="COMMAND",
    help="Measure failover: run this command of the shell to kill the gateway at $MAXAM_LEADER_HOST, port $MAXAM_LEADER_PORT.",
)
@click.option(
    "--kills",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How often --kill-leader runs, each time after --duration of load.",
)
@click.option(
    "-o",
    "--format",
    "output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Form of the output. json is one object per run on a line, yaml one document each.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option(
    "--chart",
    type=_FILE,
    metavar="FILE.svg|.png",
    help="Draw rates and staleness over time, and percentiles, of the last run; needs maxam[bench].",
)
def run_command(**options: Any) -> None:  # noqa: ANN401  # forty options, read by name
    """Drive a broker that runs: MaXaM, or any other that speaks STOMP 1.2.

    Latency is the time from a SEND to its MESSAGE at the subscriber, staleness the age of a value when the subscriber
    takes it up. With --rate both count from the time the SEND was due, so they contain the time for which a broker delays
    the publisher. Without --rate they count from the time its block of SENDs was written.

    With --kill-leader it measures how long clients wait for the next leader of a cluster, and whether accepted values are lost.

    The exit code is 1 if the figures are not valid. Causes are a rejected SEND, a subscriber that did not end on the last
    value of each topic, and a rate that was not reached.
    """
    as_json = options["as_json"] or options["output"] != "table"
    click.get_current_context().meta[YAML] = options["output"] == "yaml"
    if options["kill_leader"] is not None:
        check_options(click.get_current_context())
    plan = _plan(options)
    if options["kill_leader"] is not None:
        good = kill_leader(plan, options["kill_leader"], options["kills"], as_json)
        sys.exit(0 if good else ExitCode.CHECK_FAILED)
    chart: Path | None = options["chart"]
    if chart is not None:
        charts.check(chart)
    reports: list[Report] = []
    for number in range(options["runs"]):
        with progress(Console(stderr=True, quiet=as_json), f"run {number + 1}/{options['runs']}") as show:
            reports.append(run_plan(plan, show))
        if as_json:
            print_json(reports[-1].as_json())
    if not as_json:
        print_reports(console(to_stderr=False), _title(plan), reports)
    if chart is not None:
        charts.draw(reports[-1], chart)
    if as_json:
        _remark(reports)
    if any(report.problems for report in reports):
        sys.exit(ExitCode.CHECK_FAILED)


def _plan(options: Mapping[str, Any]) -> Plan:
    """Return what the options ask for.

    Raises:
        LoadError: They do not go together.
    """
    syntax = SYNTAXES[options["syntax"]].with_names(options["topic_template"], None)
    target = _target(options, syntax)
    if options["topic_template"] and not options["globs"]:
        raise click.UsageError("--topic-template needs a --glob, in the same syntax, that matches its topics")
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
        headers=(*user_headers(options["user_headers"]), *_send_headers(options["send_headers"])),
        warm_up_s=options["warm_up_s"].total_seconds(),
        seconds=options["seconds"].total_seconds(),
        settle_s=options["settle_s"].total_seconds(),
        connects_per_second=options["connect_rate"],
    )
    plan.check()
    return plan


def _target(options: Mapping[str, Any], syntax: DestinationSyntax) -> Target:
    given = given_options(click.get_current_context())
    found = {key: setting.value for key, setting in given.resolve().items()}
    (host, port), *others = split_addresses(found["server"] or "", "--server")
    ways = [name for name in ("plain", "certificates") if options[name]]
    if "ca" in given.settings and given.settings["ca"].origin == "--ca":
        ways.append("ca")
    if len(ways) > 1 or not (ways or found["ca"]):
        raise click.UsageError(
            "give one way to connect: --certificates FOLDER, --ca FILE (with --cert and --key for mutual TLS), or --plain"
        )
    files: dict[Role, TlsFiles | None] = dict.fromkeys(Role)
    if options["certificates"]:
        files = {role: TlsFiles.of_folder(options["certificates"], role) for role in Role}
    elif found["ca"] and not options["plain"]:
        certificate, key = (None if (path := found[name]) is None else Path(path) for name in ("cert", "key"))
        files = dict.fromkeys(Role, TlsFiles(Path(found["ca"]), certificate, key, found["server_name"]))
    for each in files.values():
        if each is not None:
            each.context()
    return Target(
        host,
        port,
        syntax,
        files[Role.PUBLISHER],
        files[Role.SUBSCRIBER],
        options["virtual_host"],
        options["login"],
        options["passcode"],
        tuple(others),
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
            raise click.UsageError(f"--send-header {name} is written by the load itself; leave it out")
    return headers


def _title(plan: Plan) -> str:
    asked = (
        f"{plan.per_second:,.0f} SEND/s asked" if plan.per_second else f"as fast as receipts come, window {plan.window}"
    )
    if not plan.per_second and not plan.receipts:
        asked = "as fast as it goes, without receipts"
    size = max(map(len, plan.bodies))
    return f"{plan.syntax.name} at {', '.join(f'{host}:{port}' for host, port in plan.target.addresses)}: {plan.publishers} publishers, {plan.topics:,} topics, {size} bytes, {asked}; {plan.seconds:g} s measured"


def _remark(reports: Sequence[Report]) -> None:
    for report in reports:
        for text in (*report.warnings, *report.problems):
            click.echo(text, err=True)
