"""Costs and speed of the console: `make console-bench`.

A real gateway has many topics. First a publisher sends as fast as receipts come, while ten tabs of the console and a scraper come and
go periodically. The result is the ratio of SENDs accepted with and without them, of one run. Then updates come at a fixed rate. The
results are the time until a tab has its first rows, and the bytes of each tab. For a filter that matches little, they are the times
until it shows its first row and all rows. The work of a browser with the rows is not in these figures.
"""

import http.client
import socket
import ssl
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

import click

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.plan import Plan
from maxam.bench.run import run
from maxam.bench.syntax import MAXAM
from maxam.bench.target import Role
from tests.benchmarks.brokers.broker import Broker
from tests.benchmarks.brokers.maxam import gateway

_READ_BYTES: Final = 65_536
_SCRAPE_INTERVAL_S: Final = 5.0
_TABS: Final = 10
_ROWS: Final = 50
_CHECK_S: Final = 20.0  # of updates at a fixed rate, in which the tabs are measured
_SETTLED_S: Final = 1.0  # of each interval that are not counted, because work of the interval before ends in them


class _Tab:
    """One live view in a thread of its own, read as it comes."""

    def __init__(self, broker: Broker, context: ssl.SSLContext, glob: str) -> None:
        self.began_s = time.monotonic()
        self._connection: Final = http.client.HTTPSConnection("127.0.0.1", broker.admin_port, context=context)
        self._connection.request("GET", f"/v1/live?rows={_ROWS}&glob={quote(glob, safe='')}")
        self._response: Final = self._connection.getresponse()
        if self._response.status != http.HTTPStatus.OK:
            raise LoadError(f"/v1/live answers {self._response.status}: {self._response.read(500)!r}")
        self.first_rows_s = self.complete_s = 0.0
        self.per_second: list[int] = []
        self._thread: Final = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        seen = b""
        try:
            while data := self._response.read1(_READ_BYTES):
                elapsed_s = time.monotonic() - self.began_s
                while len(self.per_second) <= elapsed_s:
                    self.per_second.append(0)
                self.per_second[-1] += len(data)
                if not self.complete_s:
                    seen += data
                    if not self.first_rows_s and b'"value_state"' in seen:
                        self.first_rows_s = elapsed_s
                    if b'"complete":true' in seen and (self.first_rows_s or b'"destinations":[]' in seen):
                        self.complete_s = elapsed_s
                        seen = b""
        except (OSError, ValueError, http.client.HTTPException):
            return  # closed from here

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):  # it may have ended by itself
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()


@contextmanager
def _tabs(broker: Broker, context: ssl.SSLContext, count: int) -> Iterator[list[_Tab]]:
    tabs: list[_Tab] = []
    try:
        tabs.extend(_Tab(broker, context, "**") for _ in range(count))
        yield tabs
    finally:
        for tab in tabs:
            tab.close()


def _scrape(broker: Broker, context: ssl.SSLContext) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", broker.admin_port, context=context)
    connection.request("GET", "/metrics")
    connection.getresponse().read()
    connection.close()


def _context(broker: Broker) -> ssl.SSLContext:
    files = broker.target.tls(Role.SUBSCRIBER)
    assert files is not None  # ours has certificates
    return files.context()


def _ratio(broker: Broker, plan: Plan, turn_s: float) -> dict[str, str]:
    """Publish as fast as receipts come; return what tabs and scrapes do to it."""
    context = _context(broker)
    begins: list[float] = []
    looked_at: list[tuple[float, float]] = []  # from, until, on the monotonic clock
    cpu_s: list[float] = []  # of the gateway, at the beginning of each second
    done = threading.Event()

    def come_and_go() -> None:
        while not done.wait(turn_s):
            with _tabs(broker, context, _TABS):
                begin_s = time.monotonic()
                while (left_s := begin_s + turn_s - time.monotonic()) > 0 and not done.is_set():
                    _scrape(broker, context)
                    done.wait(min(left_s, _SCRAPE_INTERVAL_S))
                looked_at.append((begin_s, time.monotonic()))

    def meter() -> None:
        while not done.wait(max(0.0, begins[0] + len(cpu_s) - time.monotonic())):
            cpu_s.append(broker.cpu_s())

    visitors = threading.Thread(target=come_and_go, daemon=True)
    metering = threading.Thread(target=meter, daemon=True)

    def at_measure(begin: bool) -> None:
        if begin:
            begins.append(time.monotonic())
            visitors.start()
            metering.start()
        else:
            done.set()

    report = run(plan, None, at_measure)
    visitors.join()
    metering.join()
    alone: list[tuple[int, float]] = []
    together: list[tuple[int, float]] = []
    for second, sends in enumerate(report.sends_by_second[: len(cpu_s) - 1]):
        measured = sends, 1e6 * (cpu_s[second + 1] - cpu_s[second]) / max(1, sends)
        begin_s, end_s = begins[0] + second, begins[0] + second + 1
        if any(begin_s >= since_s + _SETTLED_S and end_s <= until_s for since_s, until_s in looked_at):
            together.append(measured)
        elif all(end_s <= since_s or begin_s >= until_s + _SETTLED_S for since_s, until_s in looked_at):
            alone.append(measured)
    if not alone or not together:
        raise LoadError("the run is too short for turns; give more --seconds")
    with_s, without_s = [statistics.median([sends for sends, _ in part]) for part in (together, alone)]
    with_us, without_us = [statistics.median([used for _, used in part]) for part in (together, alone)]
    return {
        "SEND/s without console": f"{without_s:,.0f} (median of {len(alone)} s)",
        f"with {_TABS} tabs and a scraper": f"{with_s:,.0f} (median of {len(together)} s)",
        "cost": f"{100 * (1 - with_s / without_s):.1f} %",
        "processor time of a SEND": f"{without_us:.1f} us without, {with_us:.1f} us with: {100 * (with_us / without_us - 1):.1f} % more",
    }


def _speed(broker: Broker, plan: Plan, filters: list[str]) -> dict[str, str]:
    """Publish at a fixed rate; return how fast tabs are then."""
    context = _context(broker)
    figures: dict[str, str] = {}
    failures: list[BaseException] = []

    def look() -> None:
        try:
            with _tabs(broker, context, _TABS) as tabs:
                time.sleep(_CHECK_S / 2)
                firsts = sorted(tab.first_rows_s for tab in tabs)
                figures["first rows"] = f"{1000 * statistics.median(firsts):.0f} ms, slowest {1000 * firsts[-1]:.0f} ms"
                for glob in filters:
                    tab = _Tab(broker, context, glob)
                    while not tab.complete_s and time.monotonic() - tab.began_s < _CHECK_S:
                        time.sleep(0.01)
                    tab.close()
                    shown = f"{1000 * tab.first_rows_s:.0f} ms, complete {1000 * tab.complete_s:.0f} ms"
                    figures[f"filter {glob}"] = shown
                largest = max(max(tab.per_second) for tab in tabs)
                mean = statistics.mean([statistics.mean(tab.per_second[1:-1]) for tab in tabs])
                figures["bytes/s of a tab"] = f"{mean:,.0f}, at most {largest:,} in a second"
        except BaseException as error:  # noqa: BLE001  # reported below
            failures.append(error)

    looking = threading.Thread(target=look, daemon=True)
    report = run(plan, None, lambda begin: looking.start() if begin else None)
    looking.join()
    if failures:
        raise failures[0]
    return {"updates/s meanwhile": f"{report.sends_per_s:,.0f}", **figures}


@click.command("console")
@click.option("--topics", default=100_000, help="Topics of the gateway.")
@click.option("--rate", default=5000.0, help="Updates per second of the second part.")
@click.option("--seconds", default=60.0, help="Duration of the first part.")
@click.option("--turn", default=5.0, help="Seconds with, then without the console.")
def console_command(topics: int, rate: float, seconds: float, turn: float) -> None:
    """Measure what ten tabs of the console cost the gateway, and how fast they are."""
    bodies = tuple(avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), 1000, None))
    with gateway({0}) as broker:
        cores = frozenset({1})
        every = Plan(broker.target, bodies, topics=topics, once=True, warm_up_s=0.0, seconds=300.0, cores=cores)
        run(every)
        fast = Plan(broker.target, bodies, topics=topics, seconds=seconds, cores=cores)
        _print(_ratio(broker, fast, turn))
        steady = Plan(broker.target, bodies, topics=topics, per_second=rate, seconds=_CHECK_S, cores=cores)
        last = MAXAM.topic(topics - 1)
        _print(_speed(broker, steady, ["X/*" + last[-24:], "X/*7777*"]))
        _print({"gateway": f"{broker.resident_mib():.0f} MiB, {broker.configuration}"})


def _print(figures: dict[str, str]) -> None:
    for what, figure in figures.items():
        sys.stdout.write(f"{what:34} {figure}\n")
    sys.stdout.flush()
