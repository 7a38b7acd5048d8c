"""Kill, freeze and cut off the gateways and the etcd of a real cluster under load, and compare it with its promises.

`python -m tests.cluster.kill_harness --kills 50`: three gateways on three nodes of etcd, with the clients of `tests.cluster.load`. Each
fault begins when the cluster is whole. It ends when the cluster is whole again, and each publisher had a SEND accepted. Checked:

* Each client is sent changes in order, and none again after the RECEIPT of its ACK. Durable subscriptions are resumed.
* No accepted SEND is lost, no refused one is found, and none is there twice.
* The order of revisions never contradicts real time, a snapshot or a condition (`tests.cluster.history`).
* All journals have the same changes, and the same bytes in sealed segments.
* No member ends by itself, except when it has lost the lead.

Printed are the longest times without a RECEIPT, and the times from each kill of a leader to the first RECEIPT of the next.
"""

import argparse
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from tests.cluster.history import check
from tests.cluster.load import Load
from tests.cluster.supervised import Supervised, compare_journals, in_thread
from tests.support.cluster_site import ClusterSite, issue_cluster_certificates
from tests.support.etcd_cluster import EtcdCluster, EtcdNode
from tests.support.patience import PATIENCE_S

MEMBERS: Final = 3
OUTAGE_S: Final = (1.0, 12.0)  # of etcd's quorum, or of a part of the network: both sides of cut_off_s
QUIET_S: Final = 10.0
THINK_S: Final = (0.2, 1.5)  # under load, before a fault
# shares of a long run, by the table of the design
SHARES: Final = {
    "leader": 200,
    "etcd-leader": 100,
    "etcd-two": 20,
    "etcd-all": 20,
    "both": 50,
    "freeze-1": 20,
    "freeze-4": 20,
    "freeze-30": 10,
    "freeze-etcd-1": 20,
    "freeze-etcd-4": 20,
    "freeze-etcd-30": 10,
    "handover": 200,
}


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts of a cluster are on the network.

    Attributes:
        members: The address by which each member finds the nodes of etcd.
        clients: Port of each member's listener.
        nodes: Port of each node's clients.
    """

    members: Mapping[str, str]
    clients: Mapping[str, int]
    nodes: Mapping[str, int]


Cut = Callable[
    [Place, str, str], AbstractContextManager[None]
]  # arguments: the leader, and the node of etcd that leads


Work = Callable[[Supervised, Load], Awaitable[None]]


@dataclass(slots=True)
class Totals:
    """Figures of a run.

    Attributes:
        gaps_s: The longest times without a RECEIPT, by fault.
        waits_s: From the loss of a leader to the first RECEIPT of the next one, by fault.
        serves_s: From the kill of a leader to the moment at which the next one listens.
        needless: New terms that no fault asked for, by fault.
        wakes_s: From the end of each freeze of a leader to the end of its process, if it was superseded.
        resumes_s: From each freeze of a leader that was superseded until the next one has all durable subscribers.
        texts: Lines about the load.
    """

    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    waits_s: dict[str, list[float]] = field(default_factory=dict)
    serves_s: list[float] = field(default_factory=list)
    needless: dict[str, int] = field(default_factory=dict)
    wakes_s: list[float] = field(default_factory=list)
    resumes_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the figures for people."""
        found = list(self.texts)
        for name, gaps_s in self.gaps_s.items():
            found.append(
                f"{name}: {len(gaps_s)} times, longest gap {quantiles(gaps_s)}, needless terms {self.needless[name]}"
            )
            if name in self.waits_s:
                found.append(f"{name}: to the first RECEIPT of the next leader {quantiles(self.waits_s[name])}")
        if self.wakes_s:
            found.append(f"superseded leaders ended {max(self.wakes_s):.2f} s after they woke up, at most")
            found.append(
                f"from a freeze until the next leader had all durable subscribers: {quantiles(self.resumes_s)}"
            )
        return found


def quantiles(seconds: Sequence[float]) -> str:
    """Return median, 99th percentile and maximum for people."""
    ordered = sorted(seconds)
    p99_s = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return f"p50 {statistics.median(ordered):.2f} s, p99 {p99_s:.2f} s, worst {ordered[-1]:.2f} s"


class Harness:
    """A cluster through any number of faults."""

    def __init__(
        self,
        supervised: Supervised,
        load: Load,
        place: Place,
        seed: int,
        cuts: Mapping[str, Cut],
        outage_s: float = OUTAGE_S[1],
    ) -> None:
        """Take a cluster that runs.

        Args:
            supervised: The members.
            load: The clients; they run.
            place: Addresses, for cuts.
            seed: Of all choices.
            cuts: Further faults by name.
            outage_s: Longest time without a quorum of etcd, or with a cut.
        """
        self.totals: Final = Totals()
        self._supervised: Final = supervised
        self._load: Final = load
        self._place: Final = place
        self._cuts: Final = cuts
        self._outage_s: Final = (OUTAGE_S[0], outage_s)
        self._random: Final = random.Random(seed)  # noqa: S311 - no secret

    async def fault(self, name: str) -> None:
        """Do one fault, wait until the cluster is whole again, and record the figures."""
        leader = await self._settled_leader()
        before = (await self._supervised.head()).term
        with trio.move_on_after(PATIENCE_S) as patience:
            self._load.measure_gap()
            terms = await self._strike(name, leader)
            await self._load.all_accepted()
            gap_s = self._load.gap_s
            await self._supervised.settled()
        if patience.cancelled_caught:
            raise BrokenPromiseError(
                f"{name}: no RECEIPT, or no whole cluster, within {PATIENCE_S:g} s\n{self._supervised.state()}"
            )
        extra = (await self._supervised.head()).term - before - terms
        self.totals.gaps_s.setdefault(name, []).append(gap_s)
        self.totals.needless[name] = self.totals.needless.get(name, 0) + max(0, extra)

    async def _settled_leader(self) -> str:
        """Return the leader of a whole cluster that has had load for a while. A slow machine may change it meanwhile."""
        while True:
            leader = await self._supervised.settled()
            await trio.sleep(self._random.uniform(*THINK_S))
            if (await self._supervised.head()).leader == leader and self._supervised.runs(leader):
                return leader

    async def _strike(self, name: str, leader: str) -> int:
        """Do a fault, and return the number of new terms that it may cost."""
        kind, _, seconds = name.rpartition("-")
        if name in self._cuts:
            return await self._cut(self._cuts[name], leader)
        if kind in {"freeze", "freeze-machine"}:
            return await self._freeze(leader, float(seconds), fronts=kind == "freeze-machine")
        if kind == "freeze-etcd":
            return await self._freeze_etcd(float(seconds))
        strikes: dict[str, Callable[[str], Awaitable[int]]] = {
            "leader": self._kill_leader,
            "both": self._kill_both,
            "etcd-leader": self._kill_etcd_leader,
            "etcd-two": self._kill_two,
            "etcd-all": self._kill_all,
            "handover": self._hand_over,
            "quiet": self._quiet,
        }
        return await strikes[name](leader)

    async def _kill_leader(self, leader: str) -> int:
        began_s, wall_s = time.monotonic(), time.time()
        self._supervised.kill(leader)
        await self._next_leader("leader", began_s)
        self.totals.serves_s.append(self._supervised.newest_s("serving") - wall_s)
        self._supervised.release(leader)
        return 1

    async def _kill_both(self, leader: str) -> int:
        node = await self._supervised.etcd_leader()
        began_s = time.monotonic()
        self._supervised.kill(leader)
        node.kill()
        await self._next_leader("both", began_s)
        self._supervised.release(leader)
        node.start()
        return 1

    async def _kill_etcd_leader(self, _leader: str) -> int:
        node = await self._supervised.etcd_leader()
        node.kill()
        await self._load.all_accepted()
        node.start()
        return 0

    async def _kill_two(self, _leader: str) -> int:
        return await self._kill_nodes(self._random.sample(self._supervised.etcd.nodes, 2))

    async def _kill_all(self, _leader: str) -> int:
        return await self._kill_nodes(self._supervised.etcd.nodes)

    async def _kill_nodes(self, nodes: Sequence[EtcdNode]) -> int:
        """Kill nodes, so that no quorum is left, and start them later."""
        for node in nodes:
            node.kill()
        await trio.sleep(self._random.uniform(*self._outage_s))
        for node in nodes:
            node.start()
        return 1

    async def _freeze(self, leader: str, seconds: float, *, fronts: bool) -> int:
        """Stop a leader for a while. Its fronts go on meanwhile, unless they are stopped too."""
        term = (await self._supervised.head()).term
        frozen_s = time.monotonic()
        self._supervised.freeze(leader, fronts=fronts)
        process = self._supervised.site.members[leader]._process
        assert process is not None
        await trio.sleep(seconds)
        superseded = (await self._supervised.head()).term > term
        self._supervised.thaw(leader)
        thawed_s = time.monotonic()
        while superseded and process.poll() is None:  # noqa: ASYNC110  # a process has no event
            await trio.sleep(0.01)
        if superseded:
            self.totals.wakes_s.append(time.monotonic() - thawed_s)
            self.totals.resumes_s.append(await self._load.resumed_after(frozen_s))
        return 1

    async def _freeze_etcd(self, seconds: float) -> int:
        node = await self._supervised.etcd_leader()
        node.freeze()
        await trio.sleep(seconds)
        node.thaw()
        return 0

    async def _hand_over(self, leader: str) -> int:
        other = self._random.choice([name for name in self._supervised.site.members if name != leader])
        term = (await self._supervised.head()).term
        await in_thread(self._supervised.site.admin, leader, "cluster", "handover", "--to", other)
        while (await self._supervised.head()).term == term:  # noqa: ASYNC110  # in etcd
            await trio.sleep(0.01)
        return 1

    async def _next_leader(self, name: str, began_s: float) -> None:
        """Wait for the first RECEIPT of the next leader, and record its time."""
        self.totals.waits_s.setdefault(name, []).append(await self._load.receipt_after(began_s))

    async def _quiet(self, _leader: str) -> int:
        """Do nothing; each new term is needless."""
        await trio.sleep(QUIET_S)
        return 0

    async def _cut(self, cut: Cut, leader: str) -> int:
        """Cut a part of the network for a while."""
        node = await self._supervised.etcd_leader()
        with cut(self._place, leader, node.name):
            await trio.sleep(self._random.uniform(*self._outage_s))
        return 1


def plan_of(kills: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Return faults in the proportions of `shares`, with `kills` of the leader."""
    return {name: max(1, round(share * kills / SHARES["leader"])) for name, share in shares.items()}


def run(
    folder: Path,
    seed: int,
    plan: Mapping[str, int],
    *,
    lease_s: float = 2.5,
    outage_s: float = OUTAGE_S[1],
    burners: int = 0,
    fronts: int = 0,
    cuts: Mapping[str, Cut] | None = None,
    program: Path | None = None,
    work: Work | None = None,
    report: Callable[[str], object] = lambda _: None,
) -> Totals:
    """Do faults in random order, then compare the cluster with its promises.

    Args:
        folder: Empty; it is left as it is.
        seed: Of all choices. The run is not repeatable, as real processes take part.
        plan: Number of each fault.
        lease_s: Of the cluster.
        outage_s: Longest time without a quorum of etcd, or with a cut.
        burners: Processes that use up processors meanwhile.
        fronts: Processes of each member that have its clients.
        cuts: Faults of the network. The process must be in a namespace of its own.
        program: An installed maxam-gateway that all members begin with. None for the one of this tree.
        work: Done under load after the faults.
        report: Called with a line after each fault.

    Raises:
        BrokenPromiseError: A promise was broken.
    """
    certificates = folder / "certs"
    issue_cluster_certificates(certificates)
    (folder / "etcd").mkdir()
    hosts = [f"127.0.0.{11 + number}" for number in range(MEMBERS)]
    faults = [name for name, count in plan.items() for _ in range(count)]
    random.Random(seed).shuffle(faults)  # noqa: S311 - no secret
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(folder / "etcd", further_hosts=hosts))
        site = stack.enter_context(
            ClusterSite(folder / "site", certificates, etcd, MEMBERS, etcd_hosts=hosts, fronts=fronts, lease_s=lease_s)
        )
        names = list(site.members)
        nodes = {node.name: int(node.address.rpartition(":")[2]) for node in etcd.nodes}
        place = Place(dict(zip(names, hosts, strict=True)), site.ports, nodes)
        site.found(names[0])
        supervised = Supervised(site, etcd)
        stack.callback(supervised.close)
        load = Load([("127.0.0.1", port) for port in site.ports.values()], certificates, seed)
        harness = Harness(supervised, load, place, seed, cuts or {}, outage_s)
        for _ in range(burners):
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(burner.wait)
            stack.callback(burner.kill)
        for member in site.members.values():
            member.program = program
        leader = trio.run(_main, harness, supervised, load, faults, work, report)
    _judge(harness.totals, load, supervised, site, leader)
    return harness.totals


async def _main(
    harness: Harness,
    supervised: Supervised,
    load: Load,
    faults: Sequence[str],
    work: Work | None,
    report: Callable[[str], object],
) -> str:
    """Run load and faults, and return the name of the last leader."""
    publishing = trio.Event()
    async with trio.open_nursery() as supervision:
        supervision.start_soon(supervised.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, publishing.set)
            await publishing.wait()
            for count, name in enumerate(faults, 1):
                await harness.fault(name)
                gaps_s, waits_s = harness.totals.gaps_s[name], harness.totals.waits_s.get(name)
                wait = f", next leader {waits_s[-1]:.2f} s" if waits_s else ""
                report(f"{count}/{len(faults)} {name}: gap {gaps_s[-1]:.2f} s{wait}")
                if problems := [*load.problems, *supervised.problems()]:
                    raise BrokenPromiseError("\n".join(problems))
            if work is not None:
                await work(supervised, load)
            load.stopping = True
        await supervised.settled()
        supervision.cancel_scope.cancel()
    return await supervised.stop()


def _judge(totals: Totals, load: Load, supervised: Supervised, site: ClusterSite, leader: str) -> None:
    """Raise BrokenPromiseError if journals and clients contradict each other."""
    rows, problems = compare_journals(site, leader)
    began_s = time.monotonic()
    problems += [f"{one.kind}: {one.text}" for one in check(rows, load.history)]
    checked_s = time.monotonic() - began_s
    problems += load.compare_owed(rows)
    problems += load.problems
    problems += supervised.problems()
    if problems:
        raise BrokenPromiseError(f"{len(problems)} promises were broken\n" + "\n".join(problems[:20]))
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in load.counts.items())
    totals.texts.append(
        f"{len(load.history.operations)} SENDs: {outcomes}; {len(rows)} changes; {load.messages} MESSAGEs, {load.redelivered} of"
        f" them again; {len(load.history.reads)} snapshots; checked in {checked_s:.1f} s"
    )
    codes = sorted({code for _, code in supervised.ends})
    ends = ", ".join(f"{sum(one == code for _, one in supervised.ends)} with {code}" for code in codes)
    totals.texts.append(f"members ended by themselves: {ends or 'none'}; {supervised.failed_starts} starts failed")


def read_plan(text: str) -> dict[str, int]:
    """Return the plan of `leader=5,both=2`."""
    return {name: int(count) for name, _, count in (part.partition("=") for part in text.split(","))}


def main(arguments: Sequence[str] | None = None, cuts: Mapping[str, Cut] | None = None) -> int:
    """Run from the command line. The folder is kept when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kill_harness")
    parser.add_argument("--kills", type=int, default=50, help="kills of the leader; other faults in proportion")
    parser.add_argument("--faults", type=read_plan, help="instead, such as leader=50,freeze-4=3,quiet=6")
    parser.add_argument("--lease", type=float, default=2.5, help="lease_s of the cluster")
    parser.add_argument(
        "--outage", type=float, default=OUTAGE_S[1], help="longest time of an outage or cut, in seconds"
    )
    parser.add_argument("--burners", type=int, default=0, help="processes that use up processors")
    parser.add_argument("--fronts", type=int, default=0, help="processes of each member that have its clients")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    plan = options.faults or plan_of(options.kills, SHARES)
    folder = Path(tempfile.mkdtemp(prefix="maxam-cluster-"))
    sys.stdout.write(f"seed {options.seed}, {folder}\n")

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    totals = run(
        folder,
        options.seed,
        plan,
        lease_s=options.lease,
        outage_s=options.outage,
        burners=options.burners,
        fronts=options.fronts,
        cuts=cuts,
        report=report,
    )
    shutil.rmtree(folder)
    sys.stdout.write("\n".join(totals.lines()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
