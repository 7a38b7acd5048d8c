"""A cluster as processes with a front on another machine: its clients stay connected when the leader ends."""

import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.client import connect
from maxam.journal.disk import OsDisk
from maxam.journal.files import Journal, JournalSettings
from maxam.records import Change
from tests.support.cluster_site import ClusterSite, issue_cluster_certificates
from tests.support.etcd_cluster import EtcdCluster
from tests.support.gateway_folder import RUN
from tests.support.gateway_process import launch, port_of
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

PUBLISHERS = 3
TOPICS = 5
BULK = "X/Bulk"
BULK_SENDS = 400  # of 10 KB: a front without a leader stops to read from its clients before that
LOOK_S = 0.02


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ClusterSite]:
    """Return two members that serve fronts. A busy machine has some time to find the next leader."""
    certificates = tmp_path / "certs"
    issue_cluster_certificates(certificates)
    (tmp_path / "etcd").mkdir()
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        made = ClusterSite(tmp_path / "site", certificates, etcd, 2, fronts=1, lease_s=3.0, cut_off_s=15.0)
        for member in made.members.values():
            policy = member.folder / "policy.toml"
            policy.write_text(policy.read_text().replace('admin = ["replicate"]', 'admin = ["replicate", "front"]'))
        yield stack.enter_context(made)


class RemoteFront:
    """A front of a site, as a process; leaving it ends the process. The first address that it has is of a dead machine."""

    def __init__(self, site: ClusterSite, folder: Path) -> None:
        folder.mkdir()
        certs = site.members["a"].certificates
        self.dead = socket.create_server(("127.0.0.1", 0))  # a machine that does not answer
        ports = [self.dead.getsockname()[1], *site.links.values()]
        addresses = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        config = folder / "maxam.toml"
        config.write_text(
            f'[front]\nfrom = [{addresses}]\nfolder = "copy"\n[listener]\nport = 0\n'
            f'[tls]\ncertificate = "{certs}/server.pem"\nkey = "{certs}/server.key"\nclient_ca = "{certs}/ca.pem"\n'
            f'[link]\ncertificate = "{certs}/gateway.pem"\nkey = "{certs}/gateway.key"\n'
        )
        self.errors = folder / "stderr.log"
        self.process, addresses_of = launch(["-c", RUN, "--config", str(config)], self.errors)
        self.port = port_of(addresses_of["tls"])

    def __enter__(self) -> "RemoteFront":
        return self

    def __exit__(self, *_: object) -> None:
        with self.dead, self.process:  # closes its output
            self.process.kill()


class Clients:
    """Publishers and a subscriber of one front. None of them ever connects again: a lost connection fails the test.

    Attributes:
        accepted: Bodies of the SENDs that a RECEIPT has accepted, in order.
        bulk_accepted: Those of the client that sends much at once.
        received: Newest number of each topic at the subscriber.
    """

    def __init__(self, port: int, certificates: Path) -> None:
        self.port = port
        self.certificates = certificates
        self.accepted: list[bytes] = []
        self.bulk_accepted: list[bytes] = []
        self.sent = 0
        self.received: dict[str, int] = {}
        self.stopping = False

    def connection(self, who: str, client_id: str) -> Any:
        """Return a client that is to connect."""
        folder = self.certificates
        files: dict[str, Any] = {
            "certificate": folder / f"{who}.pem",
            "key": folder / f"{who}.key",
            "ca": folder / "ca.pem",
        }
        return connect("127.0.0.1", self.port, client_id=client_id, **files)

    async def publish(self, publisher: int) -> None:
        """Send numbers, one after the other."""
        async with self.connection("publisher", f"p{publisher}") as client:
            while not self.stopping:
                self.sent += 1
                number = self.sent
                receipt = await client.send(f"X/P{publisher}.{number % TOPICS}", b"%d" % number)
                assert receipt.accepted, receipt
                self.accepted.append(b"%d" % number)

    async def subscribe(self) -> None:
        """Receive all topics on one durable subscription."""
        async with (
            self.connection("subscriber", "s") as client,
            client.subscribe("X/**", id="all", durable=True, eager=True) as subscription,
        ):
            async for message in subscription:
                if message.destination == BULK:
                    continue
                assert int(message.body) > self.received.get(message.destination, 0), "older after newer, or twice"
                self.received[message.destination] = int(message.body)

    @asynccontextmanager
    async def bulk(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Connect a client, and return a function that has it send much at once and waits until all is accepted."""
        async with self.connection("publisher", "bulk") as client:

            async def send(number: int) -> None:
                body = b"bulk %06d " % number + bytes(10_000)
                receipt = await client.send(BULK, body)
                assert receipt.accepted, receipt
                self.bulk_accepted.append(body)

            async def send_all() -> None:
                async with trio.open_nursery() as nursery:
                    for number in range(BULK_SENDS):
                        nursery.start_soon(send, number)

            yield send_all

    async def goes_on(self) -> None:
        """Wait until further SENDs of each publisher were accepted."""
        before = len(self.accepted)
        await until(lambda: len(self.accepted) > before + 5 * PUBLISHERS)

    async def under(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work while the clients are connected; then stop them, once the subscriber has all."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.subscribe)
            async with trio.open_nursery() as publishers:
                for publisher in range(PUBLISHERS):
                    publishers.start_soon(self.publish, publisher)
                await self.goes_on()
                await work()
                self.stopping = True
            last = max(int(body) for body in self.accepted)
            await until(lambda: last in self.received.values())
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # of several tasks and processes
            await trio.sleep(LOOK_S)


def bodies(folder: Path) -> list[bytes]:
    """Return the bodies of all changes below X in the journal of a member that has ended, in their order."""
    shutil.rmtree(folder / "snapshots")  # the segments alone have all changes
    journal = Journal.open(str(folder), OsDisk(), JournalSettings(reserve_bytes=0), bytes(16))
    try:
        records = list(journal.recover(following=True))
    finally:
        journal.close(seal=False)
    return [one.body for one in records if isinstance(one, Change) and one.destination.startswith(b"X/")]


def test_clients_of_a_front_stay_connected_when_the_leader_ends(site: ClusterSite, tmp_path: Path) -> None:
    """A leader that is killed, and one that hands over: each SEND is in the journal once, and each was answered in its place."""
    site.found("a")
    site.members["a"].start()
    site.wait_for("a", "serving")
    site.members["b"].start()
    site.wait_for_ready("a", 1)
    with RemoteFront(site, tmp_path / "front") as front:
        clients = Clients(front.port, site.members["a"].certificates)

        async def work() -> None:
            in_thread = trio.to_thread.run_sync
            async with clients.bulk() as send_all:
                site.members["a"].kill()
                await until(lambda: " front-holds " in front.errors.read_text())
                await send_all()
            assert len(clients.bulk_accepted) == BULK_SENDS
            await in_thread(site.wait_for, "b", "front-started", 2)
            await clients.goes_on()
            await in_thread(site.members["a"].start)
            await in_thread(site.wait_for_ready, "b", 1)
            assert await in_thread(site.members["b"].stop) == 0
            await clients.goes_on()

        trio.run(clients.under, work)
        log = front.errors.read_text()
        assert log.count(" front-resumed ") == 2, log
        assert " front-lost " not in log
    assert site.members["a"].stop() == 0
    written = Counter(bodies(site.members["a"].folder / "journal"))
    assert max(written.values()) == 1, "a SEND took effect twice"
    assert written.keys() >= {*clients.accepted, *clients.bulk_accepted}, "an accepted SEND is lost"
