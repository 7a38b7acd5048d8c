"""A cluster of real gateways on real nodes of etcd."""

import datetime as dt
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from maxam.cluster.log import LogLostError, LogTrimmedError
from maxam.cluster.membership import read_announcements
from maxam.pki.certificates import CLIENTS, issue_development_certificates
from tests.support.etcd_cluster import EtcdCluster
from tests.support.gateway_process import GatewayProcess, admin_environment, kept_ports
from tests.support.linked import SCHEMAS, policy_of, serves_too
from tests.support.observed_site import ask
from tests.support.patience import PATIENCE_S

NAME = "venue-7"


class ClusterSite:
    """Members of one cluster. A context manager: leaving ends what runs.

    Attributes:
        etcd: Keeps the log.
        members: The gateways, `a`, `b` and so on. Each keeps its ports over restarts.
        ports: Where each one takes clients, while it leads.
        links: Port of the link of each one.
        folder: Parent of their folders.
    """

    def __init__(
        self,
        folder: Path,
        certificates: Path,
        etcd: EtcdCluster,
        count: int,
        *,
        etcd_hosts: Sequence[str] = (),
        fronts: int = 0,
        **cluster: object,
    ) -> None:
        """Write the configurations; nothing runs yet.

        Args:
            folder: For the gateways.
            certificates: Of `issue_cluster_certificates`.
            etcd: Runs.
            count: Number of members.
            etcd_hosts: The address of all nodes of etcd by which each member finds them; none for the nodes' own.
            fronts: Number of fronts of each member.
            cluster: Further settings of `[cluster]`.
        """
        self.members: dict[str, GatewayProcess] = {}
        self.ports: dict[str, int] = {}
        self.links: dict[str, int] = {}
        self.folder = folder
        self.etcd = etcd
        policy = policy_of(certificates, "gateway")
        for number, name in enumerate("abcde"[:count]):
            own = folder / name
            own.mkdir(parents=True)
            settings = f"[fronts]\ncount = {fronts}" if fronts else ""
            member = GatewayProcess(own, certificates, policy, SCHEMAS, settings)
            listener, admin, link = kept_ports(3)
            self.ports[name], self.links[name] = listener, link
            text = (own / "maxam.toml").read_text("utf-8")
            text = text.replace("listener.port = 0", f"listener.port = {listener}")
            text = text.replace("admin.port = 0", f"admin.port = {admin}")
            endpoints = [one.replace("127.0.0.1", etcd_hosts[number]) if etcd_hosts else one for one in etcd.endpoints]
            section = _cluster(etcd, endpoints, certificates, name, link, cluster)
            text = text.replace("[tls]", f"{section}\n[tls]", 1)
            text = text.replace("[tls]", '[journal]\nfolder = "journal"\nsegment_bytes_max = 65536\n[tls]', 1)
            text = text.replace('journal.folder = "journal"', "", 1)
            (own / "maxam.toml").write_text(text, "utf-8")
            self.members[name] = member

    def found(self, name: str) -> None:
        """Make the log with the journal of a member, as soon as etcd answers."""
        path = str(self.members[name].folder / "maxam.toml")

        def is_made() -> bool:
            done = self.run("maxam.cli.main", "main", "cluster", "init", "--config", path, "--yes")
            assert done.returncode == 0 or "[failed]" in done.stderr, done.stderr
            return done.returncode == 0

        self.until(is_made, "etcd")

    def admin(self, name: str, *arguments: str) -> str:
        """Run maxam-admin against a member; return what it prints."""
        return self._run(*arguments, **self._environment(name))

    def run(self, module: str, function: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of our programs."""
        return subprocess.run(
            [sys.executable, "-c", f"from {module} import {function}; {function}()", *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def _run(self, *arguments: str, **environment: str) -> str:
        done = self.run("maxam.cli.main", "main", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_admin(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run maxam-admin against a member, which may refuse."""
        return self.run("maxam.cli.main", "main", *arguments, **self._environment(name))

    def _environment(self, name: str) -> dict[str, str]:
        found = admin_environment(self.members[name].admin_port, self.members[name].certificates)
        return {key: value for key, value in found.items() if value is not None}

    def check_online(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run the check of a member's configuration that asks etcd."""
        path = str(self.members[name].folder / "maxam.toml")
        return self.run("maxam.main", "gateway", "--config", path, "--check", "--online")

    def metrics(self, name: str) -> str:
        """Return the metrics of a member."""
        return ask(self.members[name], self.members[name].certificates, "/metrics").body.decode()

    def wait_for(self, name: str, event: str, count: int = 1) -> None:
        """Wait until a member has logged an event `count` times."""
        ends = time.monotonic() + PATIENCE_S
        while self.members[name].log().count(f" {event} ") < count:
            assert time.monotonic() < ends, f"{name}: no {event}\n{self.logs()}"
            time.sleep(0.005)

    def wait_for_ready(self, leader: str, count: int) -> None:
        """Wait until a leader serves and knows `count` members that may take over, each of which has announced it since."""
        self.wait_for(leader, "serving")
        log = self.etcd.log(NAME)
        since_ns = time.time_ns()

        def is_known() -> bool:
            try:
                found = read_announcements(log.announced())
            except LogLostError:  # the machine is busy
                return False
            ready = [one.number for one in found.values() if one.ready and one.number > since_ns]
            # the leader reads the announcements of the others after it has written its own
            return len(ready) >= count and leader in found and found[leader].number > sorted(ready)[count - 1]

        self.until(is_known, leader)
        log.close()

    def shown(self, name: str) -> dict[str, Any]:
        """Return what a member shows of its cluster."""
        found: dict[str, Any] = json.loads(self.admin(name, "cluster", "status", "--json"))["cluster"]
        return found

    @property
    def trimmed(self) -> bool:
        """Whether the log has forgotten its beginning."""
        log = self.etcd.log(NAME)
        try:
            log.read(1, 1)
        except LogTrimmedError:
            return True
        finally:
            log.close()
        return False

    def wait_for_trim(self) -> None:
        """Wait until the log has forgotten its beginning."""
        self.until(lambda: self.trimmed, "the log")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        ends = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < ends, f"waited too long for {what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        """Return what all members have logged."""
        return "\n".join(f"--- {name}\n{member.log()}" for name, member in self.members.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for member in self.members.values():
            if member._process is not None:
                member.kill()


def issue_cluster_certificates(folder: Path) -> None:
    """Issue the development certificates, and one of the gateways for both ends of their links."""
    issue_development_certificates(folder, dt.datetime.now(dt.UTC), (*CLIENTS, "gateway"))
    before, after = serves_too(folder, "gateway")
    prints = folder / "fingerprints.json"
    prints.write_text(prints.read_text("utf-8").replace(before, after), "utf-8")


def _cluster(
    etcd: EtcdCluster, addresses: list[str], certificates: Path, name: str, link: int, further: dict[str, object]
) -> str:
    files = etcd.certificates
    endpoints = ", ".join(f'"{one}"' for one in addresses)
    lines = [f"{key} = {value}" for key, value in further.items()]
    return "\n".join(
        [
            f'[link]\nhost = "127.0.0.1"\nport = {link}',
            f'certificate = "{certificates}/gateway.pem"\nkey = "{certificates}/gateway.key"',
            f'[cluster]\nname = "{NAME}"\nmember = "{name}"\nhost = "127.0.0.1"\nendpoints = [{endpoints}]',
            f'ca = "{files}/ca.pem"\ncertificate = "{files}/client.pem"\nkey = "{files}/client.key"',
            *lines,
        ]
    )
