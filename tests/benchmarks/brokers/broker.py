"""A running broker, as the load and the report see it."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from maxam.bench.plan import Headers
from maxam.bench.syntax import DestinationSyntax
from maxam.bench.target import Role, Target, TlsFiles
from maxam.pki.certificates import issue_development_certificates
from tests.benchmarks.brokers.process import cpu_s, process_cpu_s, resident_mib


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is ready for clients, and what it asks of them."""

    name: str
    version: str
    configuration: str  # on one line, for the report
    target: Target
    pid: int
    start_s: float  # from its command to ready
    send_headers: Headers = ()  # of each SEND, where `{destination}` stands for its own
    subscribe_headers: Headers = ()  # of each SUBSCRIBE
    each_topic: bool = False  # subscribe to each topic by itself, not to a glob
    admin_port: int = 0  # of its admin listener, where the subscriber's certificate may read; 0 if none is known
    web_port: int = 0  # of its listener for WebSockets; 0 if it has none

    def cpu_s(self) -> float:
        """Return the processor time that it and the processes it started have used."""
        return cpu_s(self.pid)

    def own_cpu_s(self) -> float:
        """Return the processor time that its first process has used, without those it started."""
        return process_cpu_s(self.pid)

    def resident_mib(self) -> float:
        """Return the memory that it and the processes it started hold."""
        return resident_mib(self.pid)


def development_certificates(folder: Path) -> dict[str, str]:
    """Issue certificates of a server, a publisher and a subscriber in a new folder; return the clients' fingerprints."""
    folder.mkdir()
    return issue_development_certificates(folder, dt.datetime.now(dt.UTC))


def loopback(port: int, certificates: Path, syntax: DestinationSyntax, virtual_host: str) -> Target:
    """Return a broker on this machine as the clients with these certificates see it."""
    publisher, subscriber = (TlsFiles.of_folder(certificates, role) for role in (Role.PUBLISHER, Role.SUBSCRIBER))
    return Target("127.0.0.1", port, syntax, publisher, subscriber, virtual_host)
