"""The files and processes of the cluster demo: three nodes of etcd, and gateways that are members of one cluster."""

import datetime as dt
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

from maxam.cluster.engine import open_log
from maxam.cluster.founding import found
from maxam.cluster.log import LogLostError
from maxam.demo.etcd_nodes import find_etcd, issue_etcd_certificates, node_commands
from maxam.demo.own_folder import gateway_settings, kept_ports, make_folder, policy_text
from maxam.demo.processes import START_TIMEOUT_S, Process, gateway_process
from maxam.errors import MaxamError
from maxam.https_client import Credentials, Remote, RemoteError
from maxam.pki.certificates import (
    CLOCK_TOLERANCE,
    VALIDITY,
    Authority,
    issue_development_certificates,
)

CLUSTER: Final = "demo"
NODES: Final = 3
CLIENTS: Final = ("publisher", "subscriber", "operator")
RESTART_S: Final = 2.0  # systemd starts a gateway again after that time
_LOOK_S: Final = 0.25
_ANSWER_S: Final = 2.0


@final
@dataclass(slots=True)
class Member:
    """A gateway of the cluster.

    Attributes:
        name: Its name in the cluster.
        process: The gateway.
        stomp: Port for clients, while it leads.
        admin: Port of the admin listener.
        state: Answer of `/v1/cluster`, or None if it gives none.
        ended_s: When it was seen to have ended. None while it runs.
    """

    name: str
    process: Process
    stomp: int
    admin: int
    state: dict[str, Any] | None = None
    ended_s: float | None = None

    @property
    def role(self) -> str:
        """Its role, or why there is none."""
        if not self.process.alive:
            return "down"
        return "starting" if self.state is None else str(self.state["role"])

    @property
    def serves_or_follows(self) -> bool:
        """Whether it leads or can take over."""
        return self.role in ("leading", "following")


@final
class ClusterSite:
    """Processes that run while `run` does.

    Attributes:
        certificates: Folder with the certificates of the clients.
        members: The gateways.
    """

    def __init__(self, folder: Path, schemas: Path, count: int, lease_s: int | None = None, fronts: int = 0) -> None:
        """Make the folder of the demo; nothing runs yet.

        Args:
            folder: Where. It must not exist, be empty, or be of an earlier demo.
            schemas: Folder of the shipped schemas.
            count: Number of gateways.
            lease_s: Setting of the cluster; None for the default.
            fronts: Number of fronts that serve the clients of the leader.

        Raises:
            ConfigurationError: There is no etcd, or the folder has files of somebody else.
        """
        program = find_etcd()
        make_folder(folder)
        self.certificates: Final = folder / "certs"
        self._etcd: Final = folder / "etcd"
        policy = policy_text(_issue(self.certificates), 'admin = ["replicate"]', "gateway")
        issue_etcd_certificates(self._etcd)
        ports = kept_ports(2 * NODES + 3 * count)
        commands = node_commands(program, self._etcd, self._etcd, ports[: 2 * NODES])
        self._endpoints: Final = list(commands)
        self._nodes: Final = [
            Process(f"etcd {number}", command, self._etcd / f"n{number}.log")
            for number, command in enumerate(commands.values())
        ]
        self.members: Final[list[Member]] = []
        free = iter(ports[2 * NODES :])
        for name in "abcdefg"[:count]:
            own = folder / name
            shutil.copytree(schemas, own / "schemas")
            stomp, admin, link = next(free), next(free), next(free)
            (own / "policy.toml").write_text(policy, encoding="utf-8")
            text = _configuration(name, stomp, admin, link, self._endpoints, lease_s, fronts)
            (own / "maxam.toml").write_text(text, encoding="utf-8")
            self.members.append(Member(name, gateway_process(own), stomp, admin))
        self._journal: Final = folder / self.members[0].name / "journal"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the members take clients."""
        return [("127.0.0.1", member.stomp) for member in self.members]

    @property
    def whole(self) -> bool:
        """Whether one member leads and all others can take over."""
        return all(one.serves_or_follows for one in self.members) and self.leader is not None

    @property
    def leader(self) -> Member | None:
        """The member that leads."""
        return next((one for one in self.members if one.role == "leading"), None)

    def at(self, port: int) -> Member:
        """Return the member that takes clients at a port."""
        return next(one for one in self.members if one.stomp == port)

    def credentials(self, member: Member) -> Credentials:
        """Return what an operator needs to ask a member."""
        certificate, key, ca = (self.certificates / name for name in ("operator.pem", "operator.key", "ca.pem"))
        return Credentials(f"127.0.0.1:{member.admin}", certificate, key, ca)

    async def run(self, add_news: Callable[[str], None], *, task_status: trio.TaskStatus[None]) -> None:
        """Start all, report when the cluster is whole, and start members again that have ended. Cancel it to end all.

        Raises:
            MaxamError: A program did not start.
        """
        try:
            for node in self._nodes:
                node.start()
            await self._found()
            async with trio.open_nursery() as nursery:
                for member in self.members:
                    member.process.start()
                    nursery.start_soon(self._keep, member, add_news)
                with trio.move_on_after(START_TIMEOUT_S):
                    while not self.whole:  # noqa: ASYNC110 - a figure of several tasks
                        await trio.sleep(_LOOK_S)
                if not self.whole:
                    logs = ", ".join(str(one.process.log) for one in self.members)
                    raise MaxamError(f"the cluster did not start within {START_TIMEOUT_S:g} s; {logs} show why")
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                for process in (*(one.process for one in self.members), *self._nodes):
                    await process.kill()  # the folder is made again at the next start

    async def _found(self) -> None:
        """Make the log of the cluster, once etcd answers."""
        folder = self._etcd
        files = folder / "ca.pem", folder / "client.pem", folder / "client.key"
        log = open_log(CLUSTER, self._endpoints, *files)
        try:
            with trio.move_on_after(START_TIMEOUT_S):
                while all(node.alive for node in self._nodes):
                    with suppress(LogLostError):
                        await trio.to_thread.run_sync(log.head)
                        await trio.to_thread.run_sync(found, log, str(self._journal))
                        return
                    await trio.sleep(_LOOK_S)
        finally:
            log.close()
        raise MaxamError(f"etcd did not start; {', '.join(str(node.log) for node in self._nodes)} show why")

    async def _keep(self, member: Member, add_news: Callable[[str], None]) -> None:
        """Ask a member for its state again and again, and start it again when it has ended."""
        remote = Remote(self.credentials(member), _ANSWER_S)
        while True:
            if member.process.alive:
                member.ended_s = None
                member.state = await trio.to_thread.run_sync(partial(_state, remote))
            elif member.ended_s is None:
                member.state, member.ended_s = None, trio.current_time()
            elif trio.current_time() - member.ended_s >= RESTART_S:
                add_news(f"{member.name}: started again, exit status {member.process.status}")
                member.process.start()
            await trio.sleep(_LOOK_S)


def _state(remote: Remote) -> dict[str, Any] | None:
    """Return the state of a member; None if it gives none."""
    try:
        answer: dict[str, Any] = remote.get("/v1/cluster")
    except RemoteError:
        return None
    return answer


def _issue(folder: Path) -> dict[str, str]:
    """Issue the certificates of clients, and of gateways for both ends of their links; return the fingerprints."""
    now = dt.datetime.now(dt.UTC)
    fingerprints = issue_development_certificates(folder, now, CLIENTS)
    valid = (now - CLOCK_TOLERANCE, now + VALIDITY)
    gateway = Authority.read(folder).issue("gateway", *valid, ["127.0.0.1", "localhost"], link=True)
    gateway.write(folder, "gateway")
    return {**fingerprints, "gateway": gateway.fingerprint}


def _configuration(
    name: str, stomp: int, admin: int, link: int, endpoints: Sequence[str], lease_s: int | None, fronts: int
) -> str:
    addresses = ", ".join(f'"{one}"' for one in endpoints)
    return f"""{gateway_settings(stomp, admin, "gateway")}
[link]
host = "127.0.0.1"
port = {link}

[cluster]
name = "{CLUSTER}"
member = "{name}"
host = "127.0.0.1"
endpoints = [{addresses}]
ca = "../etcd/ca.pem"
certificate = "../etcd/client.pem"
key = "../etcd/client.key"
{"" if lease_s is None else f"lease_s = {lease_s}"}

[fronts]
count = {fronts}
"""
