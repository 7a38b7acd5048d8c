"""A cluster with many topics: how fast a member that takes the lead serves, an empty one joins, and a follower has each change.

Gateways, nodes of etcd and load share all cores of this machine.

* Promotion: the leader is killed, and a follower takes clients once it has waited for the silence of the lease. It has all topics
  already: of this time, the promotion is what lies between the claim and the first client.
* Join: the journal of a follower is removed while it is down. It copies one from another member, and follows, under a load.
* Lag, with at most 10,000 topics: a follower is asked for its newest change several times a second. The lag is the age of
  this change when the answer arrives, so it includes the time of the request.
"""

import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas
from maxam.bench.errors import LoadError
from maxam.bench.plan import Plan
from maxam.bench.run import run
from maxam.bench.syntax import MAXAM
from maxam.demo.cluster_site import RESTART_S, ClusterSite, Member
from maxam.demo.processes import run_alone
from maxam.https_client import Remote, RemoteError
from tests.benchmarks.brokers.broker import loopback
from tests.benchmarks.brokers.process import resident_mib

_BODIES: Final = 1000
_BODY_BYTES: Final = 120
_LEASE_S: Final = 3
_LOOK_S: Final = 0.05
_WAIT_S: Final = 900.0
_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.002
_STEP: Final = 1000  # changes between two questions that no lag explains
_SAMPLE_S: Final = 0.1
_LOAD_S: Final = 10.0
_LAG_TOPICS: Final = 10_000


class _Cluster:
    """A site with a load on its leader."""

    def __init__(self, site: ClusterSite, folder: Path) -> None:
        self.site: Final = site
        self.folder: Final = folder
        bodies = avro_bodies(read_schemas(SCHEMAS), METER_READING, MAXAM.topic(0), _BODIES, _BODY_BYTES)
        self._bodies: Final = tuple(bodies)

    @property
    def leader(self) -> Member:
        """The member that leads. Raises LoadError."""
        if self.site.leader is None:
            raise LoadError("the cluster has no leader")
        return self.site.leader

    @property
    def follower(self) -> Member:
        """A member that follows. Raises LoadError."""
        found = next((one for one in self.site.members if one.role == "following"), None)
        if found is None:
            raise LoadError("the cluster has no follower")
        return found

    def plan(self, topics: int, rate: float, seconds: float) -> Plan:
        """Return a load on the leader."""
        target = loopback(self.leader.stomp, self.site.certificates, MAXAM, "MAXVAPI")
        return Plan(target, self._bodies, topics=topics, per_second=rate, seconds=seconds)

    def ask(self, member: Member) -> dict[str, Any]:
        """Return what a member shows of itself now. Raises RemoteError."""
        answer: dict[str, Any] = Remote(self.site.credentials(member), _ANSWER_S).get("/v1/cluster")
        return answer

    def in_step(self, member: Member) -> bool:
        """Return True if a member follows, and has what the leader has."""
        try:
            own, leading = self.ask(member), self.ask(self.leader)
        except (LoadError, RemoteError):
            return False
        return bool(own["role"] == "following" and own["revision"] >= leading["revision"] - _STEP)

    async def whole(self) -> None:
        """Wait until all members run, and followers have what the leader has."""
        await self.until(lambda: self.site.whole, "the cluster")
        for member in self.site.members:
            if member is not self.leader:
                await self.until(partial(self.in_step, member), member.name)

    async def until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait for a condition that may block; return how many seconds that took. Raises LoadError."""
        begun_s = trio.current_time()
        while not await trio.to_thread.run_sync(condition):
            if trio.current_time() - begun_s > _WAIT_S:
                raise LoadError(f"waited too long for {what}; {self.folder} has the logs")
            await trio.sleep(_LOOK_S)
        return trio.current_time() - begun_s


def _say(what: str, figure: str) -> None:
    sys.stdout.write(f"{what:34} {figure}\n")
    sys.stdout.flush()


async def _fill(cluster: _Cluster, topics: int) -> None:
    plan = replace(cluster.plan(topics, 0.0, 1.0), publishers=4, once=True, warm_up_s=0.0, settle_s=120.0)
    report = await trio.to_thread.run_sync(run, plan)
    if report.problems:
        raise LoadError("; ".join(report.problems))
    await cluster.whole()
    memory = ", ".join(f"{resident_mib(one.process.pid):,.0f}" for one in cluster.site.members)
    _say(f"{topics:,} topics", f"{memory} MiB")


async def _promote(cluster: _Cluster, times: int) -> None:
    waits_s: list[float] = []
    serving_s: list[float] = []
    for _ in range(times):
        await cluster.whole()
        old = cluster.leader
        others = [one for one in cluster.site.members if one is not old]
        killed_s = time.monotonic()
        await old.process.kill()
        log = await trio.to_thread.run_sync(_log_of_leader, others)
        waits_s.append(time.monotonic() - killed_s)
        serving_s.extend(float(found[1]) for found in re.finditer(r" leading .* seconds=([\d.]+)", log))
    _say("kill of the leader to the next one", _seconds(waits_s))
    _say("- of it the promotion", _seconds(serving_s))


def _log_of_leader(members: Sequence[Member]) -> str:
    """Wait until one of these members takes clients, and return its log. Raises LoadError."""
    ends_s = time.monotonic() + _WAIT_S
    while time.monotonic() < ends_s:
        for member in members:
            text = member.process.log.read_text("utf-8")
            if " serving " in text:
                return text
        time.sleep(_POLL_S)
    raise LoadError("no member has taken the lead")


async def _join(cluster: _Cluster, topics: int, rate: float) -> None:
    await cluster.whole()
    joining, joined, rates = cluster.follower, trio.Event(), []

    async def load() -> None:
        while not joined.is_set():
            report = await trio.to_thread.run_sync(run, cluster.plan(topics, rate, _LOAD_S))
            rates.append(report.sends_per_s)

    async with trio.open_nursery() as nursery:
        if rate:
            nursery.start_soon(load)
            await trio.sleep(_LOAD_S / 2)
        await joining.process.kill()
        shutil.rmtree(cluster.folder / joining.name / "journal")
        took_s = await cluster.until(partial(cluster.in_step, joining), f"{joining.name} to join") - RESTART_S
        memory = resident_mib(joining.process.pid)
        joined.set()
    sends = f", under {statistics.median(rates):,.0f} SEND/s" if rates else ""
    _say("an empty member joins", f"{took_s:.1f} s{sends}, {memory:,.0f} MiB")


async def _lag(cluster: _Cluster, topics: int, rate: float, seconds: float) -> None:
    await cluster.whole()
    follower, lags_s, done = cluster.follower, [], threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_S):
            shown = cluster.ask(follower)["accepted_at"]
            lags_s.append(time.time() - datetime.fromisoformat(shown).timestamp())

    sampling = threading.Thread(target=sample)

    def at_measure(begin: bool) -> None:
        if begin:
            sampling.start()
        else:
            done.set()

    report = await trio.to_thread.run_sync(run, cluster.plan(topics, rate, seconds), None, at_measure)
    ordered = sorted(lags_s)
    shown = ", ".join(f"p{share} {ordered[int(share / 100 * (len(ordered) - 1))]:.3f} s" for share in (50, 99, 100))
    _say("lag of a follower", f"{shown}, of {len(ordered)}, at {report.sends_per_s:,.0f} SEND/s of {rate:,.0f}")


def _seconds(values: list[float]) -> str:
    ordered = sorted(values)
    return f"median {statistics.median(ordered):.2f} s, {ordered[0]:.2f} to {ordered[-1]:.2f} s, of {len(ordered)}"


@click.command("large-cluster")
@click.option("--topics", type=click.IntRange(1), default=1_000_000, help="Topics.")
@click.option("--kills", type=click.IntRange(0), default=5, help="Leaders that are killed.")
@click.option("--join-rate", default=20_000.0, help="SENDs per second while a member joins; 0 for none.")
@click.option("--lag-rate", multiple=True, type=float, default=(50_000.0,), help="SENDs per second; may be repeated.")
@click.option("--seconds", default=20.0, help="Of each load whose lag is measured.")
def large_cluster_command(topics: int, kills: int, join_rate: float, lag_rate: Sequence[float], seconds: float) -> None:
    """Measure three gateways with many topics: promotion, an empty member that joins, and the lag of a follower."""

    async def measure(folder: Path) -> None:
        site = ClusterSite(folder, SCHEMAS, 3, _LEASE_S)
        cluster = _Cluster(site, folder)
        async with trio.open_nursery() as nursery:
            await nursery.start(site.run, lambda _news: None)
            for rate in lag_rate:
                await _lag(cluster, min(topics, _LAG_TOPICS), rate, seconds)
            await _fill(cluster, topics)
            if kills:
                await _promote(cluster, kills)
            await _join(cluster, topics, join_rate)
            nursery.cancel_scope.cancel()

    with tempfile.TemporaryDirectory(prefix="maxam-large-cluster-") as name:
        run_alone(measure, Path(name) / "site")
