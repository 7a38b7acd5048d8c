"""Measure the lag of an observer under load: `make observer-lag`, or `python -m tests.benchmarks observer`.

A publisher sends as fast as receipts come, or at a fixed rate. The observer is asked for its newest change several times a second. The lag is the age of this
change when the answer arrives, so it includes the time of the request. At the end the source is stopped, and the sealed segments of
both journals are compared by SHA-256.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from maxam.bench.plan import Plan
from maxam.bench.run import run
from maxam.bench.syntax import MAXAM
from maxam.compiled import core
from tests.benchmarks.brokers.broker import loopback
from tests.benchmarks.brokers.process import resident_mib
from tests.support.observed_site import Site, sealed, until

_LAG_S_MAX: Final = 1.0
_SAMPLE_S: Final = 0.1
_BODY_BYTES: Final = 120


@dataclass
class Samples:
    """Reports of the observer under load.

    Attributes:
        lags_s: Ages of the newest change of the observer.
        shown_s: Lags that the observer reports itself. They are exact to half a second.
        lags_bytes: Bytes that were received and not applied or stored.
        loads: Load averages of the machine over a minute.
    """

    lags_s: list[float] = field(default_factory=list)
    shown_s: list[float] = field(default_factory=list)
    lags_bytes: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def take(self, site: Site, done: threading.Event) -> None:
        """Ask the observer again and again."""
        while not done.wait(_SAMPLE_S):
            shown = site.ask(site.observer, "/v1/cluster").json
            source = shown["source"]
            self.lags_s.append(time.time() - datetime.fromisoformat(shown["accepted_at"]).timestamp())
            self.shown_s.append(source["lag_s"])
            self.lags_bytes.append(source["lag_bytes"])
            self.loads.append(os.getloadavg()[0])


@click.command("observer")
@click.option("--rate", default=0.0, help="SENDs per second, such as 100000. 0 sends as fast as receipts come.")
@click.option("--seconds", default=30.0, help="Duration of the load.")
@click.option("--topics", default=10_000, help="Topics.")
def observer_command(rate: float, seconds: float, topics: int) -> None:
    """Measure the lag of an observer under load, and compare both journals. Exits with 1 from 1 s on, or if they differ."""
    with tempfile.TemporaryDirectory(prefix="maxam-observer-") as name:
        site = Site(Path(name))
        try:
            equal = _measure(site, rate, seconds, topics)
        finally:
            site.stop()
    sys.exit(0 if equal else 1)


def _measure(site: Site, rate: float, seconds: float, topics: int) -> bool:
    site.source.start()
    site.observer.start()
    target = loopback(site.source.port, site.certificates, MAXAM, "MAXVAPI")
    samples, done = Samples(), threading.Event()
    sampling = threading.Thread(target=samples.take, args=(site, done), daemon=True)

    def at_measure(begin: bool) -> None:
        if begin:
            sampling.start()
        else:
            done.set()

    plan = Plan(target, (os.urandom(_BODY_BYTES),), topics=topics, per_second=rate, seconds=seconds)
    report = run(plan, None, at_measure)
    sampling.join()
    ended_s = time.monotonic()
    site.caught_up()
    caught_up_s = time.monotonic() - ended_s
    memory = [resident_mib(gateway.pid) for gateway in (site.source, site.observer)]
    if site.source.stop() != 0:
        raise click.ClickException(f"the source failed:\n{site.source.log()}")
    there = sealed(site.source)
    until(lambda: sealed(site.observer).keys() >= there.keys(), site.observer)
    equal = sealed(site.observer) == there
    size = sum(path.stat().st_size for path in (site.source.folder / "journal" / "segments").iterdir())
    lags_s = sorted(samples.lags_s)
    figures = {
        "core": core(),
        "SEND/s accepted": f"{report.sends_per_s:,.0f}",
        "lag": f"median {statistics.median(lags_s):.2f} s, p99 {lags_s[int(0.99 * (len(lags_s) - 1))]:.2f} s,"
        f" highest {lags_s[-1]:.2f} s, of {len(lags_s)} readings",
        "lag that the observer shows": f"highest {max(samples.shown_s):.2f} s",
        "received and waiting": f"at most {max(samples.lags_bytes) / 2**20:.1f} MiB",
        "level after the load": f"{caught_up_s:.2f} s",
        "memory": f"source {memory[0]:.0f} MiB, observer {memory[1]:.0f} MiB",
        "sealed segments": f"{len(there)}, {size / 2**20:.0f} MiB, {'equal' if equal else 'NOT EQUAL'} by SHA-256",
        "load average of the machine": f"{min(samples.loads):.1f} to {max(samples.loads):.1f}, {os.cpu_count()} processors",
    }
    for what, figure in figures.items():
        sys.stdout.write(f"{what:30} {figure}\n")
    return equal and lags_s[-1] < _LAG_S_MAX
