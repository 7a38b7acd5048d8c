"""Check from one machine whether the log of a cluster can be used: etcd, sizes, and the clocks of the members."""

import time
from typing import Final

from maxam.cluster.engine import open_log
from maxam.cluster.log import LogError
from maxam.cluster.membership import read_announcements
from maxam.config import Settings
from maxam.errors import ConfigurationError
from maxam.link_config import ClusterSettings

_HEARD_S: Final = 1.5  # a member announces itself each second
_CLOCK_S: Final = 2.0  # `accepted_at` never decreases, so it stands still for as long after a failover
_SHARE_OF_QUOTA: Final = 4  # of etcd that the log may use: etcd keeps what is trimmed until it is compacted


def largest_entry(settings: Settings, cluster: ClusterSettings) -> int:
    """Return the size of the largest entry: a block takes a further operation until it is full, which may be the largest one."""
    limits = settings.limits
    return cluster.block_bytes_max + limits.frame_body_bytes_max + limits.frame_headers_bytes_max


def check_online(settings: Settings, cluster: ClusterSettings) -> list[str]:
    """Return lines about etcd, the log and the members, after writing the largest entry to each node as a probe. Blocks.

    Raises:
        ConfigurationError: A node is too old, takes too small requests, or has a quota that is too small. Or etcd gives no answer,
            or is over its quota.
    """
    log = open_log(cluster.name, cluster.endpoints, cluster.ca, cluster.certificate, cluster.key)
    try:
        size = log.prove(largest_entry(settings, cluster))
        if size.quota and cluster.log_bytes_max * _SHARE_OF_QUOTA > size.quota:
            raise ConfigurationError(
                f"[cluster] log_bytes_max {cluster.log_bytes_max} is more than a quarter of the quota of etcd, {size.quota} bytes."
                " Lower it, or start etcd with a larger --quota-backend-bytes"
            )
        lines = [
            f"etcd at {address}: {'release ' + release if release else 'NO ANSWER'}" for address, release in size.nodes
        ]
        head = log.head()
        if head is None:
            return [*lines, f"cluster {cluster.name}: no log yet. `maxam-admin cluster init` makes it"]
        leader = f"{head.leader} leads with term {head.term}" if head.leader else "no member has led yet"
        lines.append(f"cluster {cluster.name}: {leader}, index {head.index}, revision {head.position.revision}")
        before = read_announcements(log.announced())
        time.sleep(_HEARD_S)
        for name, one in sorted(read_announcements(log.announced()).items()):
            if name in before and before[name].number == one.number:
                lines.append(f"member {name}: SILENT")
                continue
            ahead_s = (one.number - time.time_ns()) / 1e9
            skewed = not -_HEARD_S - _CLOCK_S < ahead_s < _CLOCK_S
            clock = f", CLOCK DIFFERS by {ahead_s:+.1f} s" if skewed else ""
            lines.append(f"member {name}: {one.role}, release {one.software}{clock}")
    except LogError as error:
        raise ConfigurationError(f"the log of cluster {cluster.name} cannot be used: {error}") from error
    finally:
        log.close()
    return lines
