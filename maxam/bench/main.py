"""Measure a gateway over mutual TLS with receipts and fsync on, as docs/performance.md reports it.

Each measurement starts a gateway of its own on one core, and its load in other processes on the other cores; beside
the load stand 100 globs, a durable subscription and a subscriber that is slow.
"""

import argparse
import contextlib
import ctypes
import json
import multiprocessing as mp
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from maxam.bench.bodies import meter_reading, meter_reading_reader
from maxam.bench.load import Load, Target, consume, count, pace, publish

SCHEMAS: Final = Path(__file__).resolve().parents[2] / "schemas"
_POLICY: Final = """
[capabilities.all]
send = ["X/**"]
receive = ["X/**"]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["all"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["all"]
"""
_CONFIG: Final = """
[listener]
port = 0
[tls]
certificate = "certs/server.pem"
key = "certs/server.key"
client_ca = "certs/ca.pem"
[policy]
file = "policy.toml"
[schemas]
folder = "{schemas}"
[journal]
folder = "{journal}"
durability = "{durability}"
[admin]
port = 0
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway."""

    target: Target
    pid: int
    start_s: float  # until its ready line

    def resident_mib(self) -> float:
        """Its resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def cpu_s(self) -> float:
        """Processor time it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def topics(number: int) -> tuple[str, ...]:
    """Return destinations of meter readings."""
    return tuple(f"X/EGM.Q.{n:06}.EGMMeterReading" for n in range(number))


@contextlib.contextmanager
def gateway(durability: str, journal: Path | None = None) -> Iterator[Gateway]:
    """Start a gateway on core 0 with everything of its own in a new folder, but perhaps the journal; stop it after use."""
    with tempfile.TemporaryDirectory(prefix="maxam-bench-") as name:
        folder = Path(name)
        run = [sys.executable, "-c", "from maxam.admin.main import main; main()", "dev-certs", str(folder / "certs")]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  # our own command
        prints = json.loads((folder / "certs/fingerprints.json").read_text())
        (folder / "policy.toml").write_text(_POLICY.format(**prints))
        (folder / "maxam.toml").write_text(
            _CONFIG.format(schemas=SCHEMAS, journal=journal or "journal", durability=durability)
        )
        began_s = time.monotonic()
        process = subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, "-c", "from maxam.main import gateway; gateway()", "--config", str(folder / "maxam.toml")],
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
        )
        try:
            os.sched_setaffinity(process.pid, {0})
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line.startswith("ready "):
                raise RuntimeError(f"the gateway did not start: {(folder / 'log').read_text()}")
            host, port = line.split("tls=")[1].split()[0].rsplit(":", 1)
            yield Gateway(Target(host, int(port), folder / "certs"), process.pid, time.monotonic() - began_s)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _in_process(answers: "Queue[Any]", work: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401  # any work
    # The load shares the cores that the gateway does not have, and dies with its parent.
    others = os.sched_getaffinity(0) - {0}
    if others:
        os.sched_setaffinity(0, others)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    answers.put(work(*arguments))


@dataclass
class Worker:
    """Work under way in another process."""

    process: mp.process.BaseProcess
    answers: "Queue[Any]"

    @classmethod
    def start(cls, work: Callable[..., Any], *arguments: Any) -> "Worker":  # noqa: ANN401  # any work
        """Start it."""
        context = mp.get_context("fork")
        answers: Queue[Any] = context.Queue()
        process = context.Process(target=_in_process, args=(answers, work, *arguments), daemon=True)
        process.start()
        return cls(process, answers)

    def answer(self) -> Any:  # noqa: ANN401  # as the work has it
        """Wait for what it returns."""
        while True:
            try:
                return self.answers.get(timeout=1)
            except Exception:  # noqa: BLE001  # queue.Empty: look whether it lives
                if not self.process.is_alive():
                    raise RuntimeError("a load process died") from None


@contextlib.contextmanager
def company(target: Target) -> Iterator[None]:
    """Have 100 globs, a durable subscription and a slow subscriber connected meanwhile."""
    globs = target.connect("subscriber", "globs")
    for n in range(100):
        globs.subscribe(f"g{n}", f"X/EGM.Q.*{n:02}.EGMStatus", "client")
    durable = target.connect("subscriber", "durable")
    durable.subscribe("d", "X/EGM.Q.0000*.EGMMeterReading", "client", durable=True)
    stop = mp.get_context("fork").Event()
    ready = mp.get_context("fork").Event()
    slow = Worker.start(consume_quietly, target, "X/EGM.*", 0.002, ready.set, stop)
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        slow.answer()
        globs.socket.close()
        durable.socket.close()


def consume_quietly(target: Target, glob: str, seconds: float, ready: Callable[[], None], stop: Event) -> int:
    """Consume without looking at ages; return how many MESSAGEs came."""
    return len(consume(target, glob, seconds, ready, stop))


def yardstick_us() -> float:
    """Return what fastavro takes to read the body of the load, on the gateway's core: machines differ, and are shared."""
    os.sched_setaffinity(0, {0})
    read = meter_reading_reader(SCHEMAS)
    best = float("inf")
    for _ in range(20):
        begin = time.process_time()
        for _ in range(1000):
            read()
        best = min(best, time.process_time() - begin)
    return best * 1000


def throughput(subscribers: int, seconds: float, durability: str) -> dict[str, float]:
    """One publisher as fast as receipts come, so many subscribers in ack mode auto on all its topics."""
    context = mp.get_context("fork")
    reads_us = Worker.start(yardstick_us).answer()
    with gateway(durability) as running, company(running.target):
        stop, ready, start = context.Event(), context.Event(), context.Event()
        counting = Worker.start(count, running.target, ["X/EGM.*"] * subscribers, ready.set, stop)
        ready.wait()
        load = Load(topics(1000), meter_reading(SCHEMAS, 1), seconds)
        publishing = Worker.start(publish, running.target, load, start)
        time.sleep(0.5)
        cpu_s = running.cpu_s()
        start.set()
        sent, took_s = publishing.answer()
        cpu_s = running.cpu_s() - cpu_s
        stop.set()
        received = sum(counting.answer())
    return {
        "SEND/s": sent / took_s,
        "MESSAGE/s": received / took_s,
        "delivered of possible": received / (sent * subscribers),
        "gateway CPU us/SEND": cpu_s / sent * 1e6,
        "fastavro us/read of a body": reads_us,
    }


def latency(per_second: float, seconds: float, durability: str) -> dict[str, float]:
    """One publisher at a steady rate over 1,000 topics, one subscriber in ack mode client that answers at once."""
    context = mp.get_context("fork")
    with gateway(durability) as running, company(running.target):
        stop, ready, start = context.Event(), context.Event(), context.Event()
        consuming = Worker.start(consume, running.target, "X/EGM.*", 0.0, ready.set, stop)
        ready.wait()
        load = Load(topics(1000), meter_reading(SCHEMAS, 1), seconds, per_second=per_second)
        start.set()
        pace_answer = Worker.start(pace, running.target, load, start).answer()
        stop.set()
        ages = sorted(age for _, age in consuming.answer())
    return {
        "SEND/s": pace_answer[0] / pace_answer[1],
        "p50 ms": ages[len(ages) // 2] * 1e3,
        "p99 ms": ages[int(len(ages) * 0.99)] * 1e3,
        "max ms": ages[-1] * 1e3,
    }


def freshness(per_second: float, seconds: float, durability: str) -> dict[str, float]:
    """5,000 updates a second over 100 topics, and a consumer that takes 2 ms for each MESSAGE: how old is what it gets."""
    context = mp.get_context("fork")
    with gateway(durability) as running:
        stop, ready, start = context.Event(), context.Event(), context.Event()
        consuming = Worker.start(consume, running.target, "X/EGM.*", 0.002, ready.set, stop)
        ready.wait()
        load = Load(topics(100), meter_reading(SCHEMAS, 1), seconds, per_second=per_second)
        start.set()
        sent, took_s = Worker.start(pace, running.target, load, start).answer()
        ended_s = time.monotonic()
        stop.set()
        taken = consuming.answer()
    ages = [age for _, age in taken]
    third = len(ages) // 3
    return {
        "SEND/s": sent / took_s,
        "MESSAGE/s": len(ages) / took_s,
        "age p50 ms, first third": statistics.median(ages[:third]) * 1e3,
        "age p50 ms, last third": statistics.median(ages[-third:]) * 1e3,
        "age p99 ms": sorted(ages)[int(len(ages) * 0.99)] * 1e3,
        "all caught up after ms": (taken[-1][0] - ended_s) * 1e3,
    }


def memory(number: int, durability: str) -> dict[str, float]:
    """So many topics with a value each: what they add to the resident memory, and how long a snapshot of all takes."""
    context = mp.get_context("fork")
    with gateway(durability) as running:
        before = running.resident_mib()
        start = context.Event()
        start.set()
        load = Load(topics(number), meter_reading(SCHEMAS, 1), 0.001, outstanding=number + 100)
        sent, took_s = Worker.start(fill, running.target, load).answer()
        after = running.resident_mib()
        begin = time.monotonic()
        line = running.target.connect("subscriber")
        line.subscribe("s", "X/EGM.*", "auto", eager=True)
        seen = 0
        while seen < number:
            seen += line.next().command == b"MESSAGE"
        return {
            "topics": sent,
            "SEND/s of new topics": sent / took_s,
            "MiB": after - before,
            "bytes per topic": (after - before) * 1024 * 1024 / sent,
            "eager snapshot s": time.monotonic() - begin,
            "MiB after the snapshot": running.resident_mib() - before,
        }


def fill(target: Target, load: Load) -> tuple[int, float]:
    """Send one value to each topic."""
    line = target.connect("publisher")
    begin = time.monotonic()
    for position in range(0, len(load.topics), 1000):
        part = load.topics[position : position + 1000]
        frames = [
            b"SEND\ndestination:%b\ncontent-length:%d\nreceipt:r\n\n%b\0" % (t.encode(), len(load.body), load.body)
            for t in part
        ]
        line.socket.sendall(b"".join(frames))
        for _ in part:
            if line.next().headers.get(b"disposition") != b"accepted":
                raise RuntimeError("a SEND was not accepted")
    return len(load.topics), time.monotonic() - begin


def main() -> None:
    """Run the measurements and print medians, or every run as JSON."""
    parser = argparse.ArgumentParser(prog="maxam-bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default 5)")
    parser.add_argument("--runs", type=int, default=3, help="of each measurement (default 3)")
    parser.add_argument("--only", action="append", help="one measurement, such as one-to-one; may be repeated")
    parser.add_argument("--durability", choices=("fsync", "none"), default="fsync")
    parser.add_argument("--json", action="store_true", help="print one JSON object a run")
    options = parser.parse_args()
    seconds, durability = options.seconds, options.durability
    measurements: dict[str, Callable[[], dict[str, float]]] = {
        "one-to-one": lambda: throughput(1, seconds, durability),
        "one-to-twenty": lambda: throughput(20, seconds, durability),
        "latency": lambda: latency(2000, seconds, durability),
        "freshness": lambda: freshness(5000, max(seconds, 10), durability),
        "memory": lambda: memory(100_000, durability),
    }
    unknown = set(options.only or ()) - set(measurements)
    if unknown:
        parser.error(f"unknown measurement {', '.join(sorted(unknown))}; known: {', '.join(measurements)}")
    say = sys.stdout.write
    if not options.json:
        say(f"Python {platform.python_version()}, {os.cpu_count()} cores, {options.runs} runs of {seconds:g} s\n")
    for name in options.only or measurements:
        results = []
        for _ in range(options.runs):
            results.append(measurements[name]())
            if options.json:
                say(json.dumps({"measurement": name, **results[-1]}) + "\n")
        if not options.json:
            say(f"{name}\n")
            for key in results[0]:
                values = sorted(result[key] for result in results)
                say(f"  {key:26} {statistics.median(values):12,.2f}   ({values[0]:,.2f} to {values[-1]:,.2f})\n")
