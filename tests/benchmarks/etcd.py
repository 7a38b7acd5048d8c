"""Measure the log of a cluster on three real etcd nodes of this machine: `python -m tests.benchmarks etcd`, or `make etcd-bench`.

One writer appends one entry after the other, as the leader of a cluster does. One follower reads them. Each entry that it gets is
compared with the one that was written. All processes share the machine, so three machines are faster.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from maxam.cluster.log import Head
from tests.cluster.log_site import entry, following, insist, reader
from tests.support.etcd_cluster import EtcdCluster, EtcdNode, find_etcd

SIZES: Final = (1024, 65_536, 262_144)
SEND_BYTES: Final = 319  # of a SEND with 120 bytes in the journal
TRIM_EVERY_S: Final = 10.0
MIB: Final = 1_048_576
Figures = dict[str, float]


class Run:
    """A writer and a follower of a new log.

    Attributes:
        head: The head that was written last.
        append_s: Seconds of each append.
        delay_s: Seconds from the begin of each append until the follower had its entry.
    """

    def __init__(self, cluster: EtcdCluster, name: str, entry_bytes: int) -> None:
        """Make the clients.

        Args:
            cluster: The nodes.
            name: Name of the log.
            entry_bytes: Size of an entry.
        """
        self.head: Head | None = None
        self.append_s: list[float] = []
        self.delay_s: list[float] = []
        self.log: Final = cluster.log(name)
        self._following: Final = cluster.log(name, cluster.endpoints[::-1])  # at another node
        self._payload: Final = os.urandom(entry_bytes - len(entry(1)))
        self._began_s: Final[dict[int, float]] = {}
        self._last = 1 << 62
        self._thread: Final = threading.Thread(target=self._follow)

    def append(self) -> float:
        """Append an entry; return the seconds that it took."""
        made = following(self.head)
        data = entry(made.index, self._payload)
        began_s = self._began_s[made.index] = time.monotonic()
        self.head = insist(self.log, data, made, self.head)
        took_s = time.monotonic() - began_s
        self.append_s.append(took_s)
        return took_s

    def start(self) -> None:
        """Begin the log, and follow it."""
        self.append()
        self._thread.start()

    def end(self) -> None:
        """Wait until the follower has all entries."""
        assert self.head is not None
        self._last = self.head.index
        self._thread.join()
        self.log.close()
        self._following.close()

    def _follow(self) -> None:
        index = 0
        with reader(self._following) as found:
            for step in found:
                if isinstance(step, bytes):
                    index += 1
                    self.delay_s.append(time.monotonic() - self._began_s.pop(index))
                    if step != entry(index, self._payload):
                        raise AssertionError(f"entry {index} is not the one that was written")
                if index >= self._last:
                    return


@contextmanager
def running(cluster: EtcdCluster, name: str, entry_bytes: int) -> Iterator[Run]:
    """Run a writer and a follower; leaving waits until the follower has everything."""
    run = Run(cluster, name, entry_bytes)
    run.start()
    try:
        yield run
    finally:
        run.end()


def rate(cluster: EtcdCluster, entry_bytes: int, seconds: float, number: int) -> Figures:
    """Return the figures of appends of one size."""
    with running(cluster, f"rate-{entry_bytes}-{number}", entry_bytes) as run:
        for _ in range(20):
            run.append()
        del run.append_s[:]
        cpu_s = sum(map(_cpu_s, cluster.nodes))
        began_s = time.monotonic()
        while time.monotonic() - began_s < seconds:
            run.append()
        took_s = time.monotonic() - began_s
        cpu_s = sum(map(_cpu_s, cluster.nodes)) - cpu_s
        assert run.head is not None
        run.log.trim(run.head.index - 1)
    per_s = len(run.append_s) / took_s
    return {
        "entry_bytes": entry_bytes,
        "appends_per_s": per_s,
        "sends_per_s": per_s * (entry_bytes // SEND_BYTES),
        **_quantiles("append_ms", run.append_s),
        **_quantiles("follower_ms", run.delay_s),
        "nodes_cpu_ms": cpu_s / len(run.append_s) * 1000,
    }


def failover(cluster: EtcdCluster, kills: int) -> Figures:
    """Return the pauses of a writer whose etcd loses its leader by kill -9."""
    pauses: list[float] = []
    with running(cluster, "failover", 4096) as run:
        for _ in range(kills):
            for _ in range(50):
                run.append()
            node = cluster.leader()
            node.kill()
            pauses.append(max(run.append() for _ in range(50)))
            node.start()
            cluster.wait()
    pauses.sort()
    return {"kills": kills, "p50_s": statistics.median(pauses), "least_s": pauses[0], "worst_s": pauses[-1]}


def endurance(cluster: EtcdCluster, minutes: float, keep_s: float) -> Figures:
    """Append 256 KiB at full rate, and trim entries that are older than `keep_s` every ten seconds; return the figures."""
    stop = threading.Event()
    ages: list[tuple[float, int]] = []
    trims_s: list[float] = []
    peaks = {"memory_mib": 0.0, "file_mib": 0.0, "wal_mib": 0.0}

    with running(cluster, "endurance", SIZES[-1]) as run:

        def upkeep() -> None:
            while not stop.wait(TRIM_EVERY_S):
                assert run.head is not None
                now_s = time.monotonic()
                ages.append((now_s, run.head.index))
                old = [index for seen_s, index in ages if seen_s <= now_s - keep_s]
                if old:
                    run.log.trim(old[-1])
                    trims_s.append(time.monotonic() - now_s)
                sizes = {name: max(_sizes(node)[name] for node in cluster.nodes) for name in peaks}
                for name, size in sizes.items():
                    peaks[name] = max(peaks[name], size)
                shown = ", ".join(f"{name} {size:.0f}" for name, size in sizes.items())
                sys.stderr.write(f"{len(run.append_s)} appends, {shown}\n")

        thread = threading.Thread(target=upkeep)
        thread.start()
        began_s = time.monotonic()
        while time.monotonic() - began_s < minutes * 60:
            run.append()
        took_s = time.monotonic() - began_s
        stop.set()
        thread.join()
    return {
        "minutes": took_s / 60,
        "keep_s": keep_s,
        "appends_per_s": len(run.append_s) / took_s,
        **_quantiles("append_ms", run.append_s),
        "append_ms_worst": max(run.append_s) * 1000,
        "trim_ms_worst": max(trims_s, default=0) * 1000,
        **peaks,
    }


@click.command("etcd")
@click.option("--seconds", default=4.0, help="Seconds for each size of an entry.")
@click.option("--runs", default=2, help="Runs of each size, in turn, of which the means are shown.")
@click.option("--kills", default=5, help="Times that etcd's leader is killed.")
@click.option("--minutes", default=0.0, help="Minutes of entries of 256 KiB with trimming. 0 leaves them out.")
@click.option("--keep-s", default=30.0, help="Seconds for which that log keeps an entry.")
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
def etcd_command(seconds: float, runs: int, kills: int, minutes: float, keep_s: float, as_json: bool) -> None:
    """Measure appends, follower, failover and sizes of the log of a cluster on three etcd nodes."""
    if find_etcd() is None:
        raise click.ClickException("etcd is not installed: run make test-deps")
    found: dict[str, list[Figures]] = {"rates": [], "failover": [], "endurance": []}
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="maxam-etcd-"))
        cluster = stack.enter_context(EtcdCluster(Path(folder)))
        rates = [[rate(cluster, size, seconds, number) for size in SIZES] for number in range(runs)]
        for same in zip(*rates, strict=True):
            found["rates"].append({name: statistics.mean(one[name] for one in same) for name in same[0]})
        if kills:
            found["failover"].append(failover(cluster, kills))
        if minutes:
            found["endurance"].append(endurance(cluster, minutes, keep_s))
    if as_json:
        sys.stdout.write(json.dumps({**found, "load_before": load}, indent=2) + "\n")
        return
    for what, figures in found.items():
        for one in figures:
            sys.stdout.write(what + "".join(f"  {name} {value:,.4g}" for name, value in one.items()) + "\n")
    sys.stdout.write(f"load before {load:.1f}, after {os.getloadavg()[0]:.1f}\n")


def _quantiles(name: str, values_s: list[float]) -> Figures:
    ordered = sorted(values_s)
    return {f"{name}_p{share}": ordered[len(ordered) * share // 100] * 1000 for share in (50, 99)}


def _cpu_s(node: EtcdNode) -> float:
    """Return the processor seconds of a node."""
    words = Path(f"/proc/{node.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _sizes(node: EtcdNode) -> Figures:
    """Return MiB of a node's memory, file and write-ahead log."""
    status = dict(line.split(":") for line in Path(f"/proc/{node.pid}/status").read_text(encoding="ascii").splitlines())
    member = node.folder / "data/member"
    return {
        "memory_mib": int(status["RssAnon"].split()[0]) / 1024,  # without the pages of its file
        "file_mib": (member / "snap/db").stat().st_size / MIB,
        "wal_mib": sum(one.stat().st_size for one in (member / "wal").iterdir() if one.is_file()) / MIB,
    }
