"""How often peer addresses and principals may connect."""

import pytest

from maxam.config import Limits
from maxam.gateway.connect_rates import ADDRESS, PRINCIPAL, ConnectRates, address_of, network_of, network_of_host

LIMITS = Limits(
    connects_per_address_per_s=2,
    connects_per_address_burst=3,
    connects_per_principal_per_s=2,
    connects_per_principal_burst=3,
)


def test_an_address_has_a_burst_and_then_a_rate() -> None:
    """After the burst an address is admitted as often a second as is set, and no other address notices."""
    rates = ConnectRates(LIMITS)
    assert [rates.admits_address("192.0.2.1", 0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert rates.admits_address("192.0.2.2", 0.0)
    assert [rates.admits_address("192.0.2.1", 1.0) for _ in range(3)] == [True, True, False]
    assert rates.refused == {ADDRESS: 3, PRINCIPAL: 0}


def test_a_network_of_ipv6_is_one_address() -> None:
    """Addresses of one /64 count together, a mapped address of IPv4 for itself."""
    rates = ConnectRates(LIMITS)
    assert [rates.admits_address(f"2001:db8::{n}", 0.0) for n in range(1, 5)] == [True] * 3 + [False]
    assert rates.admits_address("2001:db8:0:1::1", 0.0)
    assert rates.admits_address("::ffff:192.0.2.1", 0.0)


def test_loopback_is_exempt() -> None:
    """Processes of the machine itself connect as often as they like."""
    rates = ConnectRates(LIMITS)
    assert all(rates.admits_address(host, 0.0) for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for _ in range(10))


def test_health_shows_a_refusal_for_a_minute() -> None:
    """The kinds that were refused in the last minute have a line each."""
    rates = ConnectRates(LIMITS)
    assert rates.degraded(0.0) == []
    assert [rates.admits_principal("bob", 5.0) for _ in range(4)] == [True] * 3 + [False]
    assert [line.partition(":")[0] for line in rates.degraded(65.0)] == ["connects-limited"]
    assert rates.degraded(66.0) == []


@pytest.mark.slow
def test_a_venue_that_returns_at_once_gets_in_within_a_minute() -> None:
    """By default 10,000 clients at one address, a thousand for each principal, are admitted within 60 s of trying once a second."""
    rates = ConnectRates(Limits())
    waiting = [f"principal {number % 10}" for number in range(10_000)]
    for second in range(60):
        waiting = [
            one
            for one in waiting
            if not (rates.admits_address("192.0.2.1", second) and rates.admits_principal(one, second))
        ]
    assert not waiting


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_client_has_an_address_or_a_network(host: str, network: str) -> None:
    """One of IPv4, also where it is mapped into IPv6, or 64 bits of IPv6."""
    assert network_of(address_of(host)) == network


def test_failures_are_counted_by_network() -> None:
    """An address of IPv4 and a /64 of IPv6 are one client each."""
    assert network_of_host("10.0.0.1") == network_of_host("::ffff:10.0.0.1") != network_of_host("10.0.0.2")
    assert network_of_host("2001:db8::1") == network_of_host("2001:db8::2") != network_of_host("2001:db8:0:1::1")
    assert network_of_host("gone") == "gone"
