"""A cluster whose members are started again when they end, as systemd does, and whose journals are compared in the end."""

import datetime as dt
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import fastavro
import trio

from maxam.cluster.log import Head, LogLostError
from maxam.cluster.member import RESTART
from maxam.cluster.membership import Announcement, read_announcements
from maxam.journal.disk import OsDisk
from maxam.journal.names import list_segments
from maxam.journal.verify import verify
from tests.cluster.history import Row
from tests.faults.kill_fronts import newest_fronts
from tests.support.cluster_site import NAME, ClusterSite
from tests.support.etcd_cluster import EtcdCluster, EtcdNode
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
POLL_S: Final = 0.05
START_AGAIN_S: Final = 0.5
EXPECTED: Final = (0, RESTART)  # handed over, and all other ways to lose the lead


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a call that blocks."""
    return await trio.to_thread.run_sync(work, *arguments)


class Supervised:
    """The members of a site, kept running.

    Attributes:
        site: Their processes.
        ends: Name and exit code of each member that ended by itself.
        failed_starts: Number of starts that failed.
        frozen: Names of members that are stopped by SIGSTOP.
    """

    def __init__(self, site: ClusterSite, etcd: EtcdCluster) -> None:
        self.site: Final = site
        self.etcd: Final = etcd
        self.ends: list[tuple[str, int]] = []
        self.failed_starts = 0
        self.frozen: set[str] = set()
        self._held: set[str] = set()
        self._log = etcd.log(NAME)
        self._calls = trio.Lock()  # of the log

    def close(self) -> None:
        """End the connection to etcd."""
        self._log.close()

    async def run(self) -> None:
        """Start members until cancelled."""
        async with trio.open_nursery() as nursery:
            for name in self.site.members:
                nursery.start_soon(self._keep, name)

    async def _keep(self, name: str) -> None:
        member = self.site.members[name]
        while True:
            process = member._process
            if process is not None and process.poll() is not None:
                self.ends.append((name, await in_thread(member.wait)))
            elif process is None and name not in self._held:
                try:
                    await in_thread(member.start)
                except AssertionError:  # as without a quorum of etcd
                    self.failed_starts += 1
                    await trio.sleep(START_AGAIN_S)
            await trio.sleep(POLL_S)

    # faults

    def kill(self, name: str) -> None:
        """End a member at once; it is not started before `release`."""
        self._held.add(name)
        if self.site.members[name]._process is not None:
            self.site.members[name].kill()
        self.frozen.discard(name)

    async def stop_one(self, name: str) -> None:
        """Stop a member in order. It is not started before `release`."""
        self._held.add(name)
        code = await in_thread(self.site.members[name].stop)
        assert code == 0, f"{name} stopped with {code}\n{self.state()}"

    def release(self, name: str) -> None:
        """Let a member be started again."""
        self._held.discard(name)

    def freeze(self, name: str, *, fronts: bool = False) -> None:
        """Stop a member in the middle of what it does, as a pause of its machine does with `fronts`."""
        member = self.site.members[name]
        for pid in (member.pid, *(newest_fronts(member.log()) if fronts else ())):
            os.kill(pid, signal.SIGSTOP)
        self.frozen.add(name)

    def thaw(self, name: str) -> None:
        """Have a member go on, with its fronts."""
        member = self.site.members[name]
        for pid in (*newest_fronts(member.log()), member.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen.discard(name)

    # knowledge

    def runs(self, name: str) -> bool:
        """Return True if a member is up."""
        process = self.site.members[name]._process
        return process is not None and process.poll() is None

    async def head(self) -> Head:
        """Return the head of the log, as soon as etcd answers."""
        while True:
            try:
                async with self._calls:
                    head = await in_thread(self._log.head)
            except LogLostError:
                await trio.sleep(POLL_S)
                continue
            assert head is not None
            return head

    async def announced(self) -> dict[str, Announcement]:
        """Return the announcements of all members; none while etcd does not answer."""
        try:
            async with self._calls:
                return read_announcements(await in_thread(self._log.announced))
        except LogLostError:
            return {}

    async def settled(self) -> str:
        """Wait until one member leads, and all others have announced since this call that they may take over. Return its name."""
        since_ns = time.time_ns()
        with trio.move_on_after(PATIENCE_S):
            while True:
                head = await self.head()
                found = await self.announced()
                ready = {name for name, one in found.items() if one.ready and one.number > since_ns} | {head.leader}
                leads = found.get(head.leader)
                if ready == set(self.site.members) and leads is not None and leads.number > since_ns:
                    nodes = [await in_thread(node.status) for node in self.etcd.nodes]
                    if all(node is not None for node in nodes):
                        return head.leader
                await trio.sleep(POLL_S)
        raise AssertionError(f"the cluster is not whole again\n{self.state()}")

    def newest_s(self, event: str) -> float:
        """Return when a member has logged an event last. Seconds since the epoch."""
        lines = [line for one in self.site.members.values() for line in one.log().splitlines() if f" {event} " in line]
        return max(dt.datetime.fromisoformat(line.split(" ", 1)[0]).timestamp() for line in lines)

    async def etcd_leader(self) -> EtcdNode:
        """Return the node of etcd that leads."""
        return await in_thread(self.etcd.leader)

    def problems(self) -> list[str]:
        """Return the unexpected ends of members."""
        return [f"member {name} ended with {code}" for name, code in self.ends if code not in EXPECTED]

    def state(self) -> str:
        """Return ends and logs of the members, for people."""
        logs = "\n".join(f"--- {name}\n{member.log()[-3000:]}" for name, member in self.site.members.items())
        return f"{self.ends}\n{logs}"

    async def stop(self) -> str:
        """Stop all members, the leader last, and return its name. Supervision must have ended."""
        leader = await self.settled()
        others = [name for name in self.site.members if name != leader]
        for name in (*others, leader):
            code = await in_thread(self.site.members[name].stop)
            assert code == 0, f"{name} stopped with {code}\n{self.state()}"
        return leader


def rows_of(journal: Path) -> list[Row]:
    """Read the changes of a journal with another reader."""
    sealed, opened = list_segments(f"{journal}/segments", OsDisk())
    return [row for segment in (*sealed, *opened) for row in _rows(Path(segment.path))]


def _rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for record in cast("Iterator[dict[str, Any]]", fastavro.reader(file)):
            if record["kind"] in {"value", "delete"}:
                number = next(int(header["value"]) for header in record["headers"] if header["name"] == "number")
                yield Row(record["revision"], record["destination"], number, record["kind"] == "delete")


def compare_journals(site: ClusterSite, leader: str) -> tuple[list[Row], list[str]]:
    """Return the changes of the leader's journal, and how the other journals differ from it.

    The changes of each are the beginning of the leader's. Segments that two have sealed are equal, byte for byte.
    """
    folders = {name: member.folder / "journal" for name, member in site.members.items()}
    problems = [
        f"{report.path}: {report.problem}"
        for folder in folders.values()
        for report in verify(folder, OsDisk())
        if report.problem is not None
    ]
    rows = {name: rows_of(folder) for name, folder in folders.items()}
    sealed = {name: _sealed(folder) for name, folder in folders.items()}
    for name in folders:
        if rows[name] != rows[leader][: len(rows[name])]:
            problems.append(f"the changes of {name} are not the beginning of those of {leader}")
        common = sealed[name].keys() & sealed[leader].keys()
        problems += [f"{one} of {name} differs" for one in common if sealed[name][one] != sealed[leader][one]]
        if not common:
            problems.append(f"{name} and {leader} have no sealed segment in common")
    return rows[leader], problems


def _sealed(journal: Path) -> dict[str, bytes]:
    segments, _ = list_segments(f"{journal}/segments", OsDisk())
    return {Path(one.path).name: Path(one.path).read_bytes() for one in segments}
