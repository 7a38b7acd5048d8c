"""The figures of several kills: percentiles, and what is printed of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from maxam.client.addresses import Address
from maxam.failover.load import Outage

TIMES: Final[Mapping[str, str]] = {  # attribute of Outage and title
    "no_receipt_s": "no RECEIPT at any publisher",
    "publisher_s": "no RECEIPT at one publisher",
    "no_message_s": "no value at one subscriber",
    "stale_s": "staleness of a topic at a subscriber",
}
SHARES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return for each of `SHARES` the least value that this share of all does not exceed; there is at least one value."""
    ordered = sorted(values)
    return {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in SHARES.items()}


def summary(outages: Sequence[Outage]) -> dict[str, dict[str, float]]:
    """Return the percentiles of each time, by its name."""
    return {name: percentiles([getattr(outage, name) for outage in outages]) for name in TIMES} if outages else {}


def as_json(outages: Sequence[Outage]) -> dict[str, Any]:
    """Return kills and their percentiles. Times are seconds."""
    return {
        "kills": [
            {
                "leader": shown(outage.before),
                "next_leader": shown(outage.after),
                **{name: round(getattr(outage, name), 4) for name in TIMES},
                "sends_of_unknown_outcome": outage.unknown,
                "reconnected": outage.reconnected,
                "lost": outage.lost,
            }
            for outage in outages
        ],
        "percentiles": {
            name: {share: round(value, 4) for share, value in found.items()} for name, found in summary(outages).items()
        },
    }


def shown(address: Address | None) -> str:
    """Return `HOST:PORT`, or an empty text."""
    return "" if address is None else f"{address[0]}:{address[1]}"
