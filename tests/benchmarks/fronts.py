"""MESSAGEs to many subscribers with fronts and without, in turn, and the processor time of each process.

Gateway, fronts and load use all cores. So on a machine with few cores the rates show what is left for the gateway. The processor
time of a MESSAGE in the busiest process does not depend on that: it is the limit where there are enough cores.

With `--discard` the subscribers are no load: the kernel throws away what comes for them, still encrypted. Then the gateway has almost all
of the cores, and its own count of MESSAGEs is the result.
"""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from statistics import median
from typing import Final

import click

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.plan import OBSERVE_AT_MAXIMUM, Plan, SubscriberGroup
from maxam.bench.run import run
from maxam.bench.syntax import MAXAM
from maxam.bench.target import Role, Target
from maxam.https_client import Credentials, Remote
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway
from tests.benchmarks.brokers.process import process_cpu_s, tree

_BODIES: Final = 1000
_BODY_BYTES: Final = 120
_ANSWER_S: Final = 30.0
_READY_S: Final = 120.0
_PAUSE_S: Final = 0.03
_DISCARDED_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        messages_per_s: MESSAGEs of all subscribers.
        sends_per_s: SENDs.
        gateway_us: Processor time of the gateway process for a SEND, microseconds.
        busiest_us: Processor time of the busiest process for a MESSAGE.
        all_us: The same of all processes of the gateway.
    """

    messages_per_s: float
    sends_per_s: float
    gateway_us: float
    busiest_us: float
    all_us: float

    def __str__(self) -> str:
        return (
            f"{self.messages_per_s:12,.0f} MESSAGE/s {self.sends_per_s:9,.0f} SEND/s; CPU us: {self.busiest_us:.3f} a MESSAGE in the busiest"
            f" process, {self.all_us:.3f} in all, {self.gateway_us:.2f} a SEND in the gateway process"
        )


def measure(fronts: int, subscribers: int, rate: float, seconds: float, topics: int, discard: bool) -> Measured:
    """Run the load against a gateway of its own."""
    bodies = tuple(avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), _BODIES, _BODY_BYTES))
    group = SubscriberGroup("subscribers", subscribers, (MAXAM.glob,), observe=OBSERVE_AT_MAXIMUM)
    settings = f"[fronts]\ncount = {fronts}\n" if fronts else ""
    with gateway(os.sched_getaffinity(0), settings=settings) as broker, ExitStack() as stack:
        remote = stack.enter_context(Remote(_credentials(broker), _ANSWER_S))
        seen: list[tuple[float, int, dict[int, float]]] = []

        def note(_begins: bool) -> None:
            count = _messages(remote) if discard else 0
            seen.append((time.monotonic(), count, {pid: process_cpu_s(pid) for pid in tree(broker.pid)}))

        if discard:
            stack.enter_context(_discarding(broker.target, subscribers))
        groups = () if discard else (group,)
        plan = Plan(broker.target, bodies, groups, topics=topics, per_second=rate, seconds=seconds)
        report = run(plan, None, note)
        (begun_s, first, before), (ended_s, last, after) = seen
        used = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
        messages_per_s = (last - first) / (ended_s - begun_s) if discard else report.messages_per_s
        messages = messages_per_s * (ended_s - begun_s)
        return Measured(
            messages_per_s,
            report.sends_per_s,
            used[broker.pid] / (report.sends_per_s * (ended_s - begun_s)) * 1e6,
            max(used.values()) / messages * 1e6,
            sum(used.values()) / messages * 1e6,
        )


def _credentials(broker: Broker) -> Credentials:
    files = broker.target.subscriber
    assert files is not None
    return Credentials(f"localhost:{broker.admin_port}", files.certificate, files.key, files.ca)


def _messages(remote: Remote) -> int:
    text = remote.text("/metrics").decode()
    return sum(int(float(line.split(" ")[1])) for line in text.splitlines() if line.startswith("maxam_messages_total"))


@contextmanager
def _discarding(target: Target, subscribers: int) -> Iterator[None]:
    """Have subscribers of all topics whose input a process of its own throws away."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_discard, args=(target, subscribers, ready, stop))
    process.start()
    try:
        if not ready.wait(_READY_S):
            raise LoadError("the subscribers did not connect")
        yield
    finally:
        stop.set()
        process.join()
    if process.exitcode:
        raise LoadError("the gateway closed connections of subscribers")


def _discard(target: Target, subscribers: int, ready: Event, stop: Event) -> None:
    files = target.subscriber
    context = None if files is None else files.context()
    lines, sockets = [], []
    for _ in range(subscribers):
        line = target.connect(Role.SUBSCRIBER, context=context)
        line.write(b"SUBSCRIBE\nid:s\ndestination:%b\nreceipt:r\n\n\0" % MAXAM.glob.encode())
        line.receipt()
        lines.append(line)
        sockets.append(socket.socket(fileno=os.dup(line.fileno())))
    room = bytearray(_DISCARDED_BYTES)
    ready.set()
    while not stop.wait(_PAUSE_S):
        for each in sockets:
            with suppress(BlockingIOError):
                if not each.recv_into(room, _DISCARDED_BYTES, socket.MSG_TRUNC):  # of TCP, Linux copies nothing then
                    raise LoadError("the gateway closed a connection")


def takeovers(fronts: int, count: int) -> dict[str, list[float]]:
    """Connect again and again with the same client-id; return the seconds that takes, by whether the front is another one."""
    settings = f"[fronts]\ncount = {fronts}\n[limits]\ntakeovers_per_minute_max = 1000000"
    found: dict[str, list[float]] = {"the same front": [], "another front": []}
    with gateway(os.sched_getaffinity(0), settings=settings) as broker, ExitStack() as stack:
        remote = stack.enter_context(Remote(_credentials(broker), _ANSWER_S))
        front = None
        for number in range(count + 1):
            begun_s = time.perf_counter()
            line = broker.target.connect(Role.SUBSCRIBER, "wanderer")
            took_s = time.perf_counter() - begun_s
            stack.callback(line.close)
            rows = [row for row in remote.get("/v1/connections")["connections"] if row["client_id"] == "wanderer"]
            before, front = front, max(rows, key=lambda row: str(row["opened_at"]))["front"]
            if number:
                found["the same front" if front == before else "another front"].append(took_s)
    return found


@click.command("fronts")
@click.option("--fronts", default=2, help="Number of fronts.")
@click.option("--pairs", default=5, help="Runs with fronts and without, in turn.")
@click.option("--subscribers", default=1000, help="Connections that subscribe to all topics.")
@click.option("--topics", default=100, help="Number of topics.")
@click.option("--rate", default=0.0, help="SENDs a second; 0 for as many as receipts come for.")
@click.option("--seconds", default=5.0, help="Time that is measured in each run.")
@click.option("--discard", is_flag=True, help="The subscribers throw away what comes, and cost almost nothing.")
@click.option(
    "--takeovers", "moves", default=0, help="Measure only so many takeovers of a session by a new connection."
)
def fronts_command(
    fronts: int, pairs: int, subscribers: int, topics: int, rate: float, seconds: float, discard: bool, moves: int
) -> None:
    """Measure MESSAGEs to many subscribers with fronts and without, in turn."""
    if moves:
        for where, waits_s in takeovers(fronts, moves).items():
            if not (ordered := sorted(waits_s)):
                continue
            shown = ", ".join(
                f"p{share} {ordered[int(share / 100 * (len(ordered) - 1))] * 1000:.1f} ms" for share in (50, 99)
            )
            sys.stdout.write(f"a session taken over at {where}: {shown}, of {len(ordered)}, TLS handshake included\n")
        return
    found: dict[int, list[Measured]] = {0: [], fronts: []}
    for _ in range(pairs):
        for count, runs in found.items():
            runs.append(measure(count, subscribers, rate, seconds, topics, discard))
            sys.stdout.write(f"{count} fronts: {runs[-1]}\n")
            sys.stdout.flush()
    ratios = [ours.messages_per_s / theirs.messages_per_s for theirs, ours in zip(found[0], found[fronts], strict=True)]
    shares = [theirs.busiest_us / ours.busiest_us for theirs, ours in zip(found[0], found[fronts], strict=True)]
    sys.stdout.write(
        f"{fronts} fronts against none, median of {pairs} pairs: {median(ratios):.2f} times the MESSAGEs, the busiest process needs"
        f" 1/{median(shares):.2f} of the processor time for a MESSAGE\n"
    )
