"""Nodes of etcd on this machine, with mutual TLS and certificates of an authority of their own."""

import datetime as dt
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from maxam.errors import ConfigurationError
from maxam.pki.certificates import CLOCK_TOLERANCE, VALIDITY, Authority

QUOTA_BYTES: Final = 8_589_934_592
FLAGS: Final = (
    "--max-request-bytes=8388608",
    "--snapshot-catchup-entries=500",
    "--snapshot-count=2000",
    "--auto-compaction-retention=0",
    "--heartbeat-interval=100",
    "--election-timeout=1000",
    "--feature-gates=CompactHashCheck=true",  # InitialCorruptCheck delays the start of all nodes together by 14 s
    "--log-level=warn",
    "--log-outputs=stderr",
)
_INSTALLED: Final = Path("/opt/maxam-etcd/current/bin/etcd")  # by the archive of `make etcd-archive`


def find_etcd() -> str:
    """Return the path of etcd: $ETCD, else the one of the path, of the installed archive, or of `make test-deps`.

    Raises:
        ConfigurationError: There is none.
    """
    given = os.environ.get("ETCD") or shutil.which("etcd")
    if given:
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maxam"
    found = [_INSTALLED] if _INSTALLED.exists() else sorted(cache.glob("etcd-*"))
    if not found:
        raise ConfigurationError(
            "etcd was not found: set ETCD to its program, or run `make test-deps`, which builds it with Go,"
            " or install the archive that `make etcd-archive` makes"
        )
    return str(found[-1])


def issue_etcd_certificates(folder: Path, further_hosts: Sequence[str] = ()) -> None:
    """Issue the certificates of an authority for etcd alone: `ca.pem`, and `server` and `client` with their keys.

    Args:
        folder: Where to write; made when missing.
        further_hosts: Addresses of the nodes beside 127.0.0.1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = dt.datetime.now(dt.UTC)
    valid = (now - CLOCK_TOLERANCE, now + VALIDITY)
    authority = Authority.create("etcd on this machine", now)
    authority.issued.write(folder, "ca")
    authority.issue("etcd", *valid, ["127.0.0.1", "localhost", *further_hosts]).write(folder, "server")
    authority.issue("gateway", *valid).write(folder, "client")


def node_commands(
    program: str,
    folder: Path,
    certificates: Path,
    ports: Sequence[int],
    quota_bytes: int = QUOTA_BYTES,
    further_hosts: Sequence[str] = (),
) -> dict[str, list[str]]:
    """Return the command of each node of a new cluster, by its address for clients.

    Args:
        program: Path of etcd.
        folder: Parent of the nodes' folders `n0`, `n1` and so on, which are made.
        certificates: Of `issue_etcd_certificates`.
        ports: Two for each node, for clients first.
        quota_bytes: Limit on the data of a node.
        further_hosts: Addresses of this machine at which all nodes listen for clients too.
    """
    count = len(ports) // 2
    peers = [f"https://127.0.0.1:{port}" for port in ports[count:]]
    initial = ",".join(f"n{number}={peer}" for number, peer in enumerate(peers))
    commands: dict[str, list[str]] = {}
    for number in range(count):
        own = folder / f"n{number}"
        own.mkdir()
        client = f"https://127.0.0.1:{ports[number]}"
        commands[client] = [
            program,
            f"--name=n{number}",
            f"--data-dir={own}/data",
            f"--listen-client-urls={','.join((client, *(f'https://{one}:{ports[number]}' for one in further_hosts)))}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peers[number]}",
            f"--initial-advertise-peer-urls={peers[number]}",
            f"--initial-cluster={initial}",
            f"--quota-backend-bytes={quota_bytes}",
            *FLAGS,
            *_tls_flags(certificates),
        ]
    return commands


def _tls_flags(folder: Path) -> list[str]:
    """Return the flags of mutual TLS, for clients and between the nodes."""
    flags = []
    for prefix in ("", "peer-"):
        flags += [
            f"--{prefix}cert-file={folder}/server.pem",
            f"--{prefix}key-file={folder}/server.key",
            f"--{prefix}trusted-ca-file={folder}/ca.pem",
            f"--{prefix}client-cert-auth",
            f"--{prefix}client-cert-file={folder}/client.pem",
            f"--{prefix}client-key-file={folder}/client.key",
        ]
    return flags
