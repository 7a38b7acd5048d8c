"""How often clients may connect: token buckets of peer addresses and of principals.

A TLS handshake costs about 1 ms of the event loop, and a CONNECT with its log and audit lines as much again. `handshakes_per_pass_max` bounds what all
of them together delay others; these rates bound what one peer may spend.
"""

import ipaddress
from typing import Final, final

from maxam.config import Limits
from maxam.token_bucket import TokenBuckets

ADDRESS: Final = "address"
PRINCIPAL: Final = "principal"
_SHOWN_S: Final = 60.0  # after the last refusal, health shows it for this long


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address of a peer; of an IPv4 address that is mapped into IPv6, that one. Raises ValueError."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return address.ipv4_mapped or address if address.version == 6 else address


def network_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return what one client commonly has: an IPv4 address, or the first 64 bits of an IPv6 address."""
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def network_of_host(host: str) -> str:
    """Return the network of a peer as text; the text itself if it is no address."""
    try:
        return network_of(address_of(host))
    except ValueError:
        return host


@final
class ConnectRates:
    """Decides whether a peer connects too often.

    Attributes:
        refused: Connections refused since the start, by what was over its rate.
    """

    def __init__(self, limits: Limits) -> None:
        self.refused: Final = {ADDRESS: 0, PRINCIPAL: 0}
        self._addresses: Final = TokenBuckets(limits.connects_per_address_per_s, limits.connects_per_address_burst)
        self._principals: Final = TokenBuckets(limits.connects_per_principal_per_s, limits.connects_per_principal_burst)
        self._last: Final[dict[str, tuple[float, str]]] = {}

    def admits_address(self, host: str, now_s: float) -> bool:
        """Count a connection of a peer address; return False if it is refused. Loopback is always admitted."""
        address = address_of(host)
        return address.is_loopback or self._admits(ADDRESS, self._addresses, network_of(address), now_s)

    def admits_principal(self, principal: str, now_s: float) -> bool:
        """Count a CONNECT of a principal; return False if it is refused."""
        return self._admits(PRINCIPAL, self._principals, principal, now_s)

    def degraded(self, now_s: float) -> list[str]:
        """Return a line for health for each kind that had a refusal a short time ago."""
        return [
            f"connects-limited: {self.refused[kind]} connections were refused since the start because their {kind}"
            f" connected too often, last {kind} {who!r} {now_s - at_s:.0f} s ago (limit connects_per_{kind}_per_s)"
            for kind, (at_s, who) in self._last.items()
            if now_s - at_s <= _SHOWN_S
        ]

    def _admits(self, kind: str, buckets: TokenBuckets, who: str, now_s: float) -> bool:
        bucket = buckets.of(who, now_s)
        if bucket.empty(now_s):
            self.refused[kind] += 1
            self._last[kind] = (now_s, who)
            return False
        bucket.take(1, now_s)
        return True
