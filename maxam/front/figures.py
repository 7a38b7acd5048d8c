"""The figures of a front for its gateway: totals that only grow, and the state of this moment."""

from typing import Any, Final, final

import trio

from maxam.broker.broker import Broker
from maxam.gateway.clients import Clients
from maxam.gateway.holdings import Holdings
from maxam.gateway.holdings_watch import HoldingsWatch
from maxam.gateway.rates import Rates

_EVERY_S: Final = 2.0  # between two readings of connections and subscriptions
_OWED_MAX: Final = 1000  # sessions in a report: those that are owed most
_SLICE: Final = 1000  # subscriptions that are read before the event loop runs other tasks


@final
class FigureReader:
    """Reads the figures."""

    def __init__(
        self,
        broker: Broker,
        clients: Clients,
        holdings: Holdings,
        rates: Rates,
        holdings_watch: HoldingsWatch,
    ) -> None:
        self._broker: Final = broker
        self._clients: Final = clients
        self._holdings: Final = holdings
        self._rates: Final = rates
        self._holdings_watch: Final = holdings_watch
        self._read_at_s = -_EVERY_S

    def totals(self) -> dict[str, int]:
        """Return the totals. Those of the traffic are as of the last reading."""
        clients, counters = self._clients, self._broker.counters
        traffic = clients.traffic
        return {
            "accepted": traffic.accepted,
            "bytes_received": traffic.bytes_received,
            "bytes_sent": traffic.bytes_sent,
            "frames": traffic.frames,
            "conflated": traffic.conflated,
            "frames_closed": self._holdings.frames_closed,
            "frames_slow": self._holdings.frames_slow,
            "shadow_trials": counters.shadow_trials,
            "shadow_rejections": counters.shadow_rejections,
            **{f"refused.{stage}": count for stage, count in traffic.refused.items()},
            **{f"over.{kind}": count for kind, count in clients.connect_rates.refused.items()},
        }

    async def read(self) -> dict[str, Any] | None:
        """Return the state of this moment, or None if the last reading was a short time ago."""
        now_s = trio.current_time()
        if now_s < self._read_at_s + _EVERY_S:
            return None
        self._read_at_s = now_s
        traffic = self._clients.traffic
        await traffic.gather()
        owed = await self._owed()
        degraded = self._clients.degraded(now_s) + self._rates.senders.degraded(now_s) + self._holdings_watch.degraded()
        return {
            "connected": traffic.connected,
            "connecting": traffic.connecting,
            "first_expiry_s": traffic.first_expiry_s,
            "frames_bytes": self._holdings.frames_bytes,
            "receipts_bytes": self._holdings.receipts_bytes,
            "revision": self._broker.committed_revision,
            "degraded": degraded,
            "busy": [
                (one.principal, one.client_id, one.sends_per_s, one.messages_per_s) for one in self._rates.busy_sessions
            ],
            "owed": owed,
        }

    async def _owed(self) -> list[tuple[str, str, int]]:
        """Return sessions that are owed most by subscriptions that the gateway does not have."""
        found: list[tuple[int, str, str]] = []
        looked_at = 0
        for connection in list(self._clients.connected):
            session = connection.session
            owed = sum([one.kept for one in session.subscriptions.values() if not one.durable])
            if owed:
                found.append((owed, session.principal, session.client_id))
            looked_at += 1 + len(session.subscriptions)
            if looked_at >= _SLICE:
                looked_at = 0
                await trio.lowlevel.checkpoint()
        found.sort(reverse=True)
        return [(principal, client_id, owed) for owed, principal, client_id in found[:_OWED_MAX]]
