"""Reports of fronts, as the gateway takes them: its audit log, presence, quarantine and counters then are those of all clients.

Counters of fronts are added to those of the gateway, so they do not decrease when a front ends. Figures of the moment are kept for each
front, and are sums where they are read.
"""

import math
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any, Final, final

import trio

from maxam.broker.broker import Broker
from maxam.gateway.audit import DISCONNECTED, Audit
from maxam.gateway.audit_files import LOST
from maxam.gateway.clients import Clients
from maxam.gateway.front_children import Figures, Front
from maxam.gateway.holdings import Holdings
from maxam.gateway.presence import Presence
from maxam.gateway.rates import BusySession
from maxam.gateway.shadow import Shadows
from maxam.records import Identity, Rejection
from maxam.stomp.events import Send

Key = tuple[str, str]  # principal and client-id

REJECTION_FIELDS: Final = (
    "result",
    "reason",
    "schema",
    "schema_version",
    "path",
    "expected",
    "found",
    "offset",
    "item",
    "item_key",
)  # of a rejection in a report, in the order of its constructor
COUNTED: Final = (
    "messages",
    "acks",
    "acks_ignored",
    "sends_invalid",
    "sends_unauthorised",
    "sends_unavailable",
    "sends_superseded",
    "subscriptions_expired",
)  # counters of the brokers of fronts that are added to those of the gateway


@final
class FrontReports:
    """Takes reports."""

    def __init__(
        self,
        running: Sequence[Front],
        broker: Broker,
        clients: Clients,
        audit: Audit,
        presence: Presence,
        shadows: Shadows,
        holdings: Holdings,
    ) -> None:
        """Make it; the arguments are those of the gateway."""
        self._running: Final = running
        self._broker: Final = broker
        self._clients: Final = clients
        self._audit: Final = audit
        self._presence: Final = presence
        self._shadows: Final = shadows
        self._holdings: Final = holdings

    def take(self, front: Front, told: dict[str, Any]) -> None:
        """Take a report of a front."""
        front.ended += int(told.get("ended", 0))
        front.web -= int(told.get("web_ended", 0))
        for event, outcome, who, address, reason, facts in told.get("audit", ()):
            self._audit.record(event, outcome, Identity(*who), address, reason, **facts)
        if told.get("audit_lost"):
            self._audit.record(LOST, "too many waited", count=int(told["audit_lost"]))
        now_s = trio.current_time()
        for principal, client_id, address, heard_ago_s in told.get("presence", ()):
            if heard_ago_s is None:
                front.addresses[principal, client_id] = address
                self._presence.connected(principal, client_id, address, now_s)
            else:
                if front.addresses.get((principal, client_id)) == address:
                    del front.addresses[principal, client_id]
                self._presence.ended(principal, client_id, address, now_s - heard_ago_s, now_s)
        self._count(told)
        self._take_rejected(told)
        self._shadows.add(told.get("shadows", ()))
        if "figures" in told:
            front.figures = Figures(**told["figures"])

    def end(self, front: Front) -> None:
        """Record that the connections of a front have ended with it."""
        now_s = trio.current_time()
        for (principal, client_id), address in front.addresses.items():
            self._presence.ended(principal, client_id, address, None, now_s)
            self._audit.record(
                DISCONNECTED, "closed", Identity(principal, ""), address, "its front has ended", session=client_id
            )
        front.addresses.clear()

    # Sums of figures.

    def connections(self) -> tuple[int, int, float]:
        """Return the connections that are connected, the others, and the first end of validity of a certificate."""
        found = [front.figures for front in self._running]
        expiries_s = [one.first_expiry_s for one in found if one.first_expiry_s]
        connected, connecting = sum(one.connected for one in found), sum(one.connecting for one in found)
        return connected, connecting, min(expiries_s, default=math.inf)

    def held_bytes(self) -> tuple[int, int]:
        """Return the bytes of unfinished frames and of pending RECEIPTs."""
        found = [front.figures for front in self._running]
        return sum(one.frames_bytes for one in found), sum(one.receipts_bytes for one in found)

    def degraded(self) -> list[str]:
        """Return the lines for health of all fronts, each once."""
        return list(dict.fromkeys(line for front in self._running for line in front.figures.degraded))

    def busy(self) -> list[BusySession]:
        """Return the busiest sessions of each front."""
        return [BusySession(*one) for front in self._running for one in front.figures.busy]

    def owed(self) -> Iterator[tuple[Key, int]]:
        """Iterate over sessions, and how many topics their transient subscriptions are owed."""
        for front in self._running:
            for principal, client_id, owed in front.figures.owed:
                yield (principal, client_id), owed

    def _count(self, told: dict[str, Any]) -> None:
        counters = self._broker.counters
        for name, count in told.get("counters", {}).items():
            if name in COUNTED:
                setattr(counters, name, getattr(counters, name) + int(count))
        for result, count in told.get("rejected", {}).items():
            counters.rejected[result] = counters.rejected.get(result, 0) + int(count)
        counters.rejects_over_queue += int(told.get("lost", 0))
        clients, holdings = self._clients, self._holdings
        for name, count in told.get("totals", {}).items():
            kind, _, which = name.partition(".")
            if kind == "over":
                clients.connect_rates.refused[which] += count
            elif kind == "frames_closed":
                holdings.frames_closed += count
            elif kind == "frames_slow":
                holdings.frames_slow += count
            elif kind in {"shadow_trials", "shadow_rejections"}:
                setattr(counters, kind, getattr(counters, kind) + count)
            else:
                clients.traffic.add(kind, which, count)

    def _take_rejected(self, told: dict[str, Any]) -> None:
        take = self._broker.publishing.on_rejected
        for who, destination, body, headers, disposition, fields, wall_us in told.get("sends", ()):
            pairs = tuple((b64decode(name), b64decode(value)) for name, value in headers)
            if take is not None:
                event = Send(b64decode(destination), b64decode(body), pairs, None)
                take(Identity(*who), event, disposition.encode(), Rejection(*fields), wall_us)
