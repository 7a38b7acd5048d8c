"""Settings of a gateway among other gateways: its links, the gateway that it follows, and its cluster."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxam.setting_values import MistakeError, bounded, shown

LINKED_BODY_BYTES_MAX: Final = 67_108_864  # half of the largest entry of a link
_NAME: Final = re.compile(r"[a-z0-9-]{1,32}")
_HOST: Final = re.compile(r"[A-Za-z0-9.:_-]{1,255}")
_HOLD_S: Final = 10.0  # without `cut_off_s`
_HOLD_S_MAX: Final = 15.0  # a reload waits for as long after the loss of a front, and its answer is waited for 20 s
_CUT_OFFS_KEPT: Final = 4  # a member that comes back reads what its clients may have sent within the time of a cut off


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Where gateways that follow this one connect, and what this one shows to the gateways that it follows."""

    host: str = "0.0.0.0"  # noqa: S104  # other machines connect there, with a certificate that has the right
    port: int = bounded(8646, 0, 65_535, "0 picks a free port")
    certificate: Path | None = None  # None takes that of [tls]
    key: Path | None = None  # likewise
    ca: Path | None = None  # signed the certificates of the other gateways. None takes client_ca of [tls]
    crl: Path | None = None  # of that CA
    # Links at the same time. Each feed keeps a thread
    links_max: int = bounded(16, 1, 256, "each has a thread of its own")
    # Rate at which a journal is copied to another gateway
    copy_bytes_per_s_max: int = bounded(52_428_800, 65_536, 2**40, "a piece of a file is sent at once")


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """The gateway that this one follows. A key that Python reserves has an underscore here: `from`."""

    from_: tuple[str, ...]  # `host:port` of the links that may serve it, in the order in which they are tried


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """The gateway on another machine whose clients this process serves."""

    from_: tuple[str, ...]  # `host:port` of its link, or of the links of all members of its cluster
    folder: Path = Path("var/front")  # holds a copy of the journal until that is read, at each start


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster that this gateway is a member of, and the etcd that keeps its log."""

    name: str  # of the cluster, the same for all members
    endpoints: tuple[str, ...]  # https://host:port of the nodes of etcd
    ca: Path  # signed the certificates of these nodes
    certificate: Path  # shown to them
    key: Path  # of that certificate
    member: str = ""  # name of this gateway, unique in the cluster; empty for the host's name
    host: str = ""  # where other members and clients reach this gateway; empty for the name of the member
    # Order in which members claim the lead: the highest first
    priority: int = bounded(100, 0, 1000, "0 never leads")
    # Silence of the leader after which others may lead. A machine whose event loop stands still for as long loses the lead.
    lease_s: float = bounded(2.5, 1, 60, "longer than an election of etcd, which is no reason for another leader")
    # Time without proof after which a leader sends its clients away
    cut_off_s: float = bounded(10.0, 0, 3600, "0 never does")
    block_bytes_max: int = bounded(524_288, 16_384, 1_048_576, "an entry is one request to etcd")
    log_bytes_max: int = bounded(1_073_741_824, 16_777_216, 2**33, "at most a quarter of the quota of etcd")
    log_keep_s: float = bounded(60.0, 1, 86_400, "at least four times cut_off_s")
    copies_min: int = bounded(2, 1, 16, "journals that hold an entry before the log forgets it")

    @property
    def own_name(self) -> str:
        """Name of this member."""
        return self.member or socket.gethostname()

    @property
    def own_host(self) -> str:
        """Where others reach this member."""
        return self.host or self.own_name

    @property
    def hold_s(self) -> float:
        """For how long a front on another machine keeps its clients without a leader, seconds."""
        return min(self.cut_off_s or _HOLD_S, _HOLD_S_MAX)


def link_address(text: str) -> tuple[str, int] | None:
    """Return host and port of `host:port`, with brackets around an IPv6 address. None if it is something else."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if (
        not name
        or name.strip() != name
        or "[" in name
        or (":" in name) != bracketed
        or not re.fullmatch(r"[0-9]{1,5}", port)
    ):
        return None
    return (name, int(port)) if 1 <= int(port) <= 65_535 else None


def check_links(
    link: LinkSettings | None,
    follow: FollowSettings | None,
    front: FrontSettings | None,
    cluster: ClusterSettings | None,
    body_bytes_max: int,
) -> None:
    """Raise MistakeError if the settings of these sections contradict each other, or the limit on the body of a SEND."""
    if link is not None and (link.certificate is None) != (link.key is None):
        there, missing = ("certificate", "key") if link.key is None else ("key", "certificate")
        raise MistakeError(
            f"link.{there}", f"[link] {there} needs [link] {missing} too; add it, or remove both to use those of [tls]"
        )
    if link is not None and link.crl is not None and link.ca is None:
        raise MistakeError("link.crl", "[link] crl needs [link] ca too. Without it, client_ca and crl of [tls] apply")
    if link is not None and body_bytes_max > LINKED_BODY_BYTES_MAX:
        raise MistakeError(
            "limits.frame_body_bytes_max",
            f"[limits] frame_body_bytes_max: with [link] at most {LINKED_BODY_BYTES_MAX} are possible, as a link carries a SEND as a whole",
        )
    _check_addresses("follow", () if follow is None else follow.from_)
    _check_addresses("front", () if front is None else front.from_)
    if cluster is None:
        return
    if follow is not None:
        raise MistakeError(
            "follow", "[follow] excludes [cluster]: an observer is no member. Remove one of the two sections"
        )
    if link is None:
        raise MistakeError(
            "cluster", "[cluster] needs [link]: members copy each other's journals over links. Add a section [link]"
        )
    _check_cluster(cluster)


def _check_addresses(section: str, addresses: tuple[str, ...]) -> None:
    for text in addresses:
        if link_address(text) is None:
            raise MistakeError(
                f"{section}.from",
                f"[{section}] from: expected host:port of the link of another gateway, such as 'gateway-a.example:8646',"
                f" found {shown(text)}",
            )


def _check_cluster(cluster: ClusterSettings) -> None:
    if not _NAME.fullmatch(cluster.name):
        raise MistakeError(
            "cluster.name", f"[cluster] name: expected 1 to 32 of a-z, 0-9 and -, found {shown(cluster.name)}"
        )
    for key, value in (("member", cluster.own_name), ("host", cluster.own_host)):
        if not _HOST.fullmatch(value):
            raise MistakeError(
                f"cluster.{key}",
                f"[cluster] {key}: expected a name of letters, digits and . - _, found {shown(value)}",
            )
    for text in cluster.endpoints:
        if not text.startswith("https://") or link_address(text.removeprefix("https://")) is None:
            raise MistakeError(
                "cluster.endpoints",
                f"[cluster] endpoints: expected https://host:port of a node of etcd, such as 'https://10.0.0.1:2379', found"
                f" {shown(text)}",
            )
    if 0 < cluster.cut_off_s < cluster.lease_s:
        raise MistakeError(
            "cluster.cut_off_s",
            f"[cluster] cut_off_s = {cluster.cut_off_s:g} is below lease_s = {cluster.lease_s:g}: a leader would end before others"
            " may lead. Raise it, or set 0",
        )
    if cluster.log_keep_s < _CUT_OFFS_KEPT * cluster.cut_off_s:
        raise MistakeError(
            "cluster.log_keep_s",
            f"[cluster] log_keep_s = {cluster.log_keep_s:g} is below {_CUT_OFFS_KEPT} times cut_off_s = {cluster.cut_off_s:g}."
            " Raise it, or lower cut_off_s",
        )
