"""A cluster as processes: gateways on three nodes of etcd, killed and handed over under load, with clients that know all addresses."""

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.client import ClientError, connect, resuming
from maxam.cluster.member import RESTART
from maxam.gateway.log_facts import SLOW_S
from maxam.journal.disk import OsDisk
from maxam.journal.names import sealed_segments
from tests.support.cluster_site import ClusterSite, issue_cluster_certificates
from tests.support.etcd_cluster import EtcdCluster
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

TOPICS = 20
RETRY_S = 0.02
STALL_S = 2 * SLOW_S  # longer than a write may take that is not shown
ROOMY_BYTES = 33_554_432  # a quota that is soon reached
SLOW_SYNC_S = 0.02  # of two nodes of three: each write of the log waits for one of them
CUT_OFF_S = 10.0
PUBLISHERS = 4


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of clients and gateways."""
    folder = tmp_path_factory.mktemp("cluster") / "certs"
    issue_cluster_certificates(folder)
    return folder


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three nodes."""
    (tmp_path / "etcd").mkdir()
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


class Load:
    """Publishers of numbered values that know all addresses, and a durable subscriber.

    Attributes:
        accepted: The newest number of each topic that a RECEIPT has accepted.
        received: Numbers that the subscriber has received, by topic.
        answered_s: When the newest RECEIPT came.
    """

    def __init__(self, site: ClusterSite, certificates: Path) -> None:
        self.site = site
        self.certificates = certificates
        self.accepted: dict[str, int] = {}
        self.received: dict[str, list[int]] = {}
        self.answered_s = 0.0
        self.gap_s = 0.0  # the longest time between two RECEIPTs
        self.refused: set[str] | None = None  # results of refused SENDs; None if there must be none
        self.stopping = False

    def files(self, who: str) -> dict[str, Any]:
        """Return the credentials of a client."""
        folder = self.certificates
        return {"certificate": folder / f"{who}.pem", "key": folder / f"{who}.key", "ca": folder / "ca.pem"}

    async def publish(self, publisher: int) -> None:
        """Send numbers to the own topics, one after the other. One without a RECEIPT is sent again."""
        ports = list(self.site.ports.values())
        number = turn = 0
        while not self.stopping:
            turn += 1
            try:
                async with connect(
                    "127.0.0.1", ports[turn % len(ports)], client_id=f"p{publisher}", **self.files("publisher")
                ) as client:
                    while not self.stopping:
                        topic = f"X/P{publisher}.{number % TOPICS}"
                        receipt = await client.send(topic, str(number).encode())
                        if not receipt.accepted and self.refused is not None:
                            self.refused.add(f"{receipt.disposition} {receipt.result}")
                            await trio.sleep(RETRY_S)
                            continue
                        assert receipt.accepted, receipt
                        now_s = time.monotonic()
                        if self.answered_s:
                            self.gap_s = max(self.gap_s, now_s - self.answered_s)
                        self.answered_s = now_s
                        self.accepted[topic] = number
                        number += 1
            except ClientError:
                await trio.sleep(RETRY_S)

    async def subscribe(self) -> None:
        """Receive all topics on one durable subscription."""
        first, *others = [("127.0.0.1", port) for port in self.site.ports.values()]
        async with (
            resuming(*first, client_id="s", others=others, **self.files("subscriber")) as client,
            client.subscribe("X/**", id="all", durable=True, eager=True) as subscription,
        ):
            async for message in subscription:
                self.received.setdefault(message.destination, []).append(int(message.body))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        with trio.fail_after(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  # of several tasks and processes
                await trio.sleep(RETRY_S)

    async def under(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work under load, then stop the load, wait for the subscriber, and check what it has received."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as publishers:
                for publisher in range(PUBLISHERS):
                    publishers.start_soon(self.publish, publisher)
                nursery.start_soon(self.subscribe)
                await self.until(lambda: len(self.received) == PUBLISHERS * TOPICS)
                await work()
                self.stopping = True
            await self.until(lambda: all(self.received[one][-1] >= last for one, last in self.accepted.items()))
            nursery.cancel_scope.cancel()
        for numbers in self.received.values():
            assert numbers == sorted(numbers), "older after newer"

    async def goes_on(self) -> None:
        """Wait until each topic has another value that was accepted."""
        before = dict(self.accepted)
        await self.until(lambda: all(self.accepted[one] > last for one, last in before.items()))


def in_thread(work: Callable[..., object], *arguments: object) -> Awaitable[object]:
    """Return what a call that blocks returns."""
    return trio.to_thread.run_sync(work, *arguments)


def require_equal(site: ClusterSite, *names: str) -> None:
    """Stop members. Segments that two of them have sealed are the same bytes."""
    for name in names:
        site.members[name].stop()
    first, *others = [sealed_of(site.members[name].folder / "journal") for name in names]
    for other in others:
        common = other.keys() & first.keys()
        assert common, "no segment was sealed by both"
        assert [other[path] for path in common] == [first[path] for path in common]


def sealed_of(folder: Path) -> dict[str, bytes]:
    """Return the sealed segments of a journal by name."""
    return {Path(one.path).name: Path(one.path).read_bytes() for one in sealed_segments(folder, OsDisk())}


def started(site: ClusterSite) -> None:
    """Found the cluster, start all members, and wait until the first one leads and the others follow."""
    first, *others = site.members
    site.found(first)
    site.members[first].start()
    site.wait_for(first, "serving")
    for name in others:
        site.members[name].start()
        site.wait_for(name, "following")


@pytest.mark.parametrize("fronts", [0, 2])
def test_a_killed_leader_is_followed_by_another(
    tmp_path: Path, certificates: Path, etcd: EtcdCluster, fronts: int
) -> None:
    """Nothing accepted is lost, the order is kept, the durable session goes on, and the killed member follows when it is back."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 2, fronts=fronts) as site:
        started(site)
        load = Load(site, certificates)

        async def work() -> None:
            for leader, other, count in (("a", "b", 1), ("b", "a", 2)):
                site.members[leader].kill()
                await in_thread(site.wait_for, other, "serving", count)
                await load.goes_on()
                follows = site.members[leader].log().count(" following ")
                await in_thread(site.members[leader].start)
                await in_thread(site.wait_for, leader, "following", follows + 1)
                await load.goes_on()

        trio.run(load.under, work)
        assert load.gap_s < PATIENCE_S
        assert [site.members[name].log().count(" front-started ") >= fronts for name in "ab"] == [True, True]
        require_equal(site, "a", "b")


def test_a_leader_that_stops_hands_over(tmp_path: Path, certificates: Path, etcd: EtcdCluster) -> None:
    """A stopped leader ends with 0 after another one leads, which does not wait for the lease."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 3, lease_s=20.0, cut_off_s=20.0, log_keep_s=80.0) as site:
        started(site)
        load = Load(site, certificates)

        async def work() -> None:
            await in_thread(site.wait_for_ready, "a", 2)
            assert await in_thread(site.members["a"].stop) == 0
            await in_thread(site.wait_for, "b", "serving")
            await load.goes_on()
            await in_thread(site.members["a"].start)
            await in_thread(site.wait_for_ready, "b", 2)
            await in_thread(site.admin, "b", "cluster", "handover", "--to", "c")
            await in_thread(site.wait_for, "c", "serving")
            assert await in_thread(site.members["b"].wait) == RESTART
            await load.goes_on()
            await in_thread(site.members["b"].start)

        trio.run(load.under, work)
        assert load.gap_s < 20.0, "the lease was waited for"
        require_equal(site, "a", "b", "c")


def test_a_leader_without_its_log_sends_its_clients_away(tmp_path: Path, certificates: Path, etcd: EtcdCluster) -> None:
    """Without a quorum of etcd a leader takes no connections after the lease, and ends with 75 later. The cluster comes back."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 1, lease_s=1.0, cut_off_s=2.0, copies_min=1) as site:
        started(site)
        load = Load(site, certificates)

        async def work() -> None:
            for node in etcd.nodes[:2]:
                node.freeze()
            await in_thread(site.wait_for, "a", "log-lost")
            assert await in_thread(site.members["a"].wait) == RESTART
            assert "gateway cut off" in site.members["a"].log()
            for node in etcd.nodes[:2]:
                node.thaw()
            await in_thread(site.members["a"].start)
            await load.goes_on()

        trio.run(load.under, work)


def shows(site: ClusterSite, name: str, code: str) -> bool:
    """Return True if the health of a member has a code."""
    health = json.loads(site.try_admin(name, "health", "--json").stdout or '{"reasons": [], "degraded": []}')
    return any(text.startswith(f"{code}:") for text in (*health["reasons"], *health["degraded"]))


def metric(site: ClusterSite, name: str, which: str) -> float:
    """Return the sum of a metric of a member over its labels."""
    lines = site.metrics(name).splitlines()
    return sum(float(one.split()[-1]) for one in lines if re.match(rf"maxam_{which}[ {{]", one))


def test_an_etcd_with_slow_nodes_delays_and_is_shown(tmp_path: Path, certificates: Path, etcd: EtcdCluster) -> None:
    """RECEIPTs wait while a majority of the nodes does, the leader shows `log-slow`, and stays the leader."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 2, lease_s=20.0, cut_off_s=20.0, log_keep_s=80.0) as site:
        started(site)
        load = Load(site, certificates)

        async def work() -> None:
            for _ in range(2):
                waiting = [node for node in etcd.nodes if node is not etcd.leader()]
                for node in waiting:
                    node.freeze()
                await trio.sleep(STALL_S)
                for node in waiting:
                    node.thaw()
                await load.goes_on()
            await in_thread(site.until, partial(shows, site, "a", "log-slow"), "log-slow")

        trio.run(load.under, work)
        assert load.gap_s > STALL_S / 2
        assert site.members["b"].log().count(" leading ") == 0
        require_equal(site, "a", "b")


def test_etcd_with_slow_and_failing_disks(tmp_path: Path, certificates: Path, etcd: EtcdCluster) -> None:
    """Two nodes whose syncs take 20 ms delay RECEIPTs. A node whose disk fails ends, and the others go on. Nothing is lost."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 2, lease_s=20.0, cut_off_s=20.0, log_keep_s=80.0) as site:
        started(site)
        load = Load(site, certificates)

        async def work() -> None:
            await load.goes_on()
            with etcd.nodes[0].syncing("delay_exit=20000"), etcd.nodes[1].syncing("delay_exit=20000"):
                before = appended(site, "a")
                for _ in range(5):
                    await load.goes_on()
                seconds, count = (now - then for now, then in zip(appended(site, "a"), before, strict=True))
            assert seconds / count > SLOW_SYNC_S
            failing = etcd.leader()
            with failing.syncing("error=EIO"):
                assert await in_thread(failing.wait) != 0
            await load.goes_on()
            failing.start()
            await in_thread(etcd.wait)
            await load.goes_on()

        trio.run(load.under, work)
        assert site.members["b"].log().count(" leading ") == 0
        require_equal(site, "a", "b")


def appended(site: ClusterSite, name: str) -> tuple[float, float]:
    """Return the seconds that all writes of the log took, and their number."""
    return metric(site, name, "cluster_log_append_seconds_sum"), metric(site, name, "cluster_log_append_seconds_count")


def test_a_lost_log_is_made_again_and_a_forked_member_rejoins(
    tmp_path: Path, certificates: Path, etcd: EtcdCluster
) -> None:
    """`init --force` goes on with one journal. A member with other changes ends as forked, is shown, lists them, and copies."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 2, copies_min=1) as site:
        started(site)
        publish(site, "a", "X/Both")
        site.until(lambda: {row["revision"] for row in site.shown("a")["members"]} == {1}, "b")
        site.members["b"].stop()
        publish(site, "a", "X/OnlyA")
        site.members["a"].stop()
        for node in etcd.nodes:
            node.kill()
        for node in etcd.nodes:
            node.wipe()
            node.start()
        etcd.wait()
        path = str(site.members["b"].folder / "maxam.toml")
        lost = site.run("maxam.cli.main", "main", "cluster", "init", "--config", path, "--yes")
        assert "--force" in lost.stderr
        made = site.run("maxam.cli.main", "main", "cluster", "init", "--force", "--config", path, "--yes", "--json")
        assert json.loads(made.stdout)["revision"] == 1, made.stderr
        site.members["b"].start()
        site.wait_for("b", "serving", 1)
        publish(site, "b", "X/OnlyB")

        forked = site.members["a"]
        try:
            forked.start()
        except AssertionError:  # it ended before it was ready
            assert "cluster rejoin" in forked.log()
        else:
            assert forked.wait() == 1
        site.until(lambda: metric(site, "b", "cluster_forked") == 1, "the forked member to be shown")
        folder = str(forked.folder / "journal")
        refused = site.try_admin("b", "cluster", "rejoin", folder, "--apply")  # it is not confirmed
        assert refused.returncode != 0
        tail = json.loads(site.admin("b", "cluster", "rejoin", folder, "--json"))
        assert [row["destination"] for row in tail["topics"]] == ["X/OnlyA"]
        site.admin("b", "cluster", "rejoin", folder, "--apply", "--yes")
        forked.start()
        site.wait_for_ready("b", 1)
        assert metric(site, "b", "cluster_forked") == 0
        assert {"forked", "set-aside"} <= outcomes_of(forked.folder)
        assert "founded" in outcomes_of(site.members["b"].folder)
        assert {row["revision"] for row in site.shown("b")["members"]} == {2}


def publish(site: ClusterSite, name: str, topic: str) -> None:
    """Send a value to a member that leads."""
    value = site.folder / "value"
    value.write_text("1")
    site.admin(name, "topics", "put", topic, str(value))


def outcomes_of(folder: Path) -> set[str]:
    """Return the outcomes in the audit log of a gateway."""
    lines = [line for path in (folder / "journal-audit").glob("*.jsonl") for line in path.read_text().splitlines()]
    return {json.loads(line)["outcome"] for line in lines}


def test_an_etcd_without_room_is_shown_and_the_cluster_comes_back(tmp_path: Path, certificates: Path) -> None:
    """SENDs are refused, members show `log-full`, and the leader keeps its clients. With room it goes on, and nothing accepted is lost."""
    (tmp_path / "etcd").mkdir()
    settings: dict[str, Any] = {"lease_s": 1.0, "cut_off_s": CUT_OFF_S}
    with (
        EtcdCluster(tmp_path / "etcd", quota_bytes=ROOMY_BYTES) as etcd,
        ClusterSite(tmp_path / "site", certificates, etcd, 2, **settings) as site,
    ):
        started(site)
        load = Load(site, certificates)
        load.refused = set()

        async def work() -> None:
            await in_thread(site.wait_for_ready, "a", 1)
            await in_thread(etcd.fill_up)
            await load.until(lambda: bool(load.refused))
            assert load.refused == {"rejected-unavailable disk-full"}
            await in_thread(site.wait_for, "a", "log-full")
            for name in "ab":
                await in_thread(site.until, partial(shows, site, name, "log-full"), "log-full")
            await in_thread(site.until, lambda: metric(site, "a", "cluster_proof_age_seconds") > CUT_OFF_S + 1, "time")
            assert metric(site, "a", "connections") > 0
            assert " disk-has-room " not in site.members["a"].log()
            await in_thread(etcd.clear)
            before = load.answered_s
            while load.answered_s == before:  # the room is there once etcd has compacted its file
                await in_thread(etcd.disarm)
                await trio.sleep(1)
            await load.goes_on()
            for name in "ab":
                await in_thread(site.until, lambda name=name: not shows(site, name, "log-full"), "room")

        trio.run(load.under, work)
        require_equal(site, "a", "b")


def test_an_empty_member_copies_what_the_log_has_forgotten(
    tmp_path: Path, certificates: Path, etcd: EtcdCluster
) -> None:
    """It takes the journal of another member, then follows the log, and leads when the others are gone."""
    settings: dict[str, Any] = {"copies_min": 1, "cut_off_s": 0.0, "log_keep_s": 1.0}
    with ClusterSite(tmp_path / "site", certificates, etcd, 2, **settings) as site:
        site.found("a")
        site.members["a"].start()
        site.wait_for("a", "serving")
        load = Load(site, certificates)

        async def work() -> None:
            await in_thread(site.wait_for_trim)
            await in_thread(site.members["b"].start)
            await in_thread(site.wait_for, "b", "following")
            await load.goes_on()
            site.members["a"].kill()
            await in_thread(site.wait_for, "b", "serving")
            await load.goes_on()

        trio.run(load.under, work)
        assert " copying " in site.members["b"].log()
        site.members["a"].start()
        require_equal(site, "a", "b")


def test_members_are_listed_compared_and_removed(tmp_path: Path, certificates: Path, etcd: EtcdCluster) -> None:
    """A member that is gone for good is removed, and its journal leaves the cluster. One that announces itself is not removed."""
    with ClusterSite(tmp_path / "site", certificates, etcd, 2) as site:
        before = site.check_online("a")
        assert before.returncode == 0, before.stderr
        assert "cluster init" in before.stdout
        started(site)
        load = Load(site, certificates)

        async def work() -> None:
            await in_thread(site.wait_for_ready, "a", 1)
            compared = json.loads(str(await in_thread(site.admin, "a", "cluster", "compare", "--full", "--json")))
            assert compared["members"] == ["a", "b"]
            assert compared["differences"] == []
            await load.goes_on()

        trio.run(load.under, work)
        online = site.check_online("b")
        assert online.returncode == 0, online.stderr
        assert [line.split(",")[0] for line in online.stdout.splitlines() if line.startswith("member")] == [
            "member a: leading",
            "member b: following",
        ]
        metrics = site.metrics("b")
        assert 'maxam_cluster_role{role="following"} 1.0' in metrics
        assert 'maxam_cluster_members{state="live"} 2.0' in metrics
        assert 'maxam_cluster_engine_nodes{state="up"} 3.0' in metrics

        def is_live(name: str) -> bool:
            return any(row["live"] for row in site.shown("a")["members"] if row["name"] == name)

        assert is_live("b")
        assert "[member-live]" in site.try_admin("a", "cluster", "members", "--remove", "b").stderr
        assert site.try_admin("a", "cluster", "members", "--remove", "x").returncode != 0
        site.members["b"].stop()
        site.until(lambda: not is_live("b"), "b to be silent")
        site.admin("a", "cluster", "members", "--remove", "b")
        assert [row["name"] for row in site.shown("a")["members"]] == ["a"]

        folder = site.members["b"].folder
        site.admin("a", "cluster", "leave", str(folder / "journal"), "--yes")
        settings = (folder / "maxam.toml").read_text()
        alone = settings[: settings.index("[link]")] + settings[settings.index("[journal]") :]
        (folder / "maxam.toml").write_text(alone)
        site.members["b"].start()
        assert site.members["b"].port
