"""Reports of a front to its gateway: audit events, connections, rejected SENDs, counters and the figures of the moment."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final, final

from maxam.broker.broker import Broker
from maxam.gateway.front_reports import COUNTED, REJECTION_FIELDS
from maxam.records import Identity, Rejection
from maxam.stomp.events import Send

_EVENTS_MAX: Final = 10_000  # between two reports; the rest is counted
_NO_ONE: Final = Identity("", "")
_REJECTED_BYTES: Final = 500  # of a rejected SEND in a report, beside its body
_REJECTED_BYTES_MAX: Final = 4_194_304  # of those in one report


def _packed(data: bytes) -> str:
    return b64encode(data).decode()


@final
class Reports:
    """Reports for the gateway: audit events, who is connected, counters. It is an audit log and a presence for `Clients`.

    Attributes:
        held: As presence has it; unused.
        totals: Returns counters beside those of the broker, which only grow.
        shadows: Returns the trials of candidate versions since the last call.
    """

    def __init__(self, broker: Broker) -> None:
        self.held = False
        self.totals: Callable[[], dict[str, int]] = dict
        self.shadows: Callable[[], list[object]] = list
        self._broker: Final = broker
        self._audit: list[object] = []
        self._audit_lost = 0
        self._presence: list[object] = []
        self._ended = 0
        self._web_ended = 0
        self._counted = dict.fromkeys(COUNTED, 0)
        self._rejected: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        self._rejected_sends: list[object] = []
        self._rejected_bytes = 0
        self._lost = 0  # rejected SENDs that are not among these

    def record(
        self,
        event: str,
        outcome: str,
        who: Identity = _NO_ONE,
        address: str = "",
        reason: str = "",
        **facts: object,
    ) -> None:
        """Note an audit event."""
        if len(self._audit) < _EVENTS_MAX:
            known = {name: value for name, value in facts.items() if value is not None}
            self._audit.append((event, outcome, (who.principal, who.fingerprint), address, reason, known))
        else:
            self._audit_lost += 1

    def connected(self, principal: str, client_id: str, address: str, _now_s: float) -> None:
        """Note that a connection has a session."""
        self._presence.append((principal, client_id, address, None))

    def ended(self, principal: str, client_id: str, address: str, heard_s: float | None, now_s: float) -> None:
        """Note that a connection has ended."""
        self._presence.append((principal, client_id, address, 0.0 if heard_s is None else now_s - heard_s))

    def rejected(self, identity: Identity, event: Send, disposition: bytes, rejection: Rejection, wall_us: int) -> None:
        """Note a rejected SEND for the quarantine, the journal of rejected SENDs and the audit log of the gateway."""
        size = len(event.body) + _REJECTED_BYTES
        if self._rejected_bytes + size > _REJECTED_BYTES_MAX:
            self._lost += 1
            return
        self._rejected_bytes += size
        self._rejected_sends.append(
            (
                (identity.principal, identity.fingerprint),
                _packed(event.destination),
                _packed(event.body),
                [(_packed(name), _packed(value)) for name, value in event.headers],
                disposition.decode(),
                [getattr(rejection, name) for name in REJECTION_FIELDS],
                wall_us,
            )
        )

    def closed(self, web: bool) -> None:
        """Note that a connection that was handed over has ended, and whether it was of the web listener."""
        self._ended += 1
        self._web_ended += web

    def take(self, figures: dict[str, Any] | None = None) -> bytes | None:
        """Return the report of what has happened since the last one, with figures of this moment; None if there is nothing."""
        counters = self._broker.counters
        counts = {name: getattr(counters, name) for name in COUNTED}
        news = {name: count - self._counted[name] for name, count in counts.items() if count != self._counted[name]}
        rejected = {
            result: count - self._rejected.get(result, 0)
            for result, count in counters.rejected.items()
            if count != self._rejected.get(result, 0)
        }
        totals = self.totals()
        grown = {name: total - self._totals.get(name, 0) for name, total in totals.items()}
        grown = {name: count for name, count in grown.items() if count > 0}
        if not (
            news
            or rejected
            or grown
            or figures
            or self._audit
            or self._presence
            or self._ended
            or self._rejected_sends
            or self._lost
        ):
            return None
        self._counted = counts
        self._rejected = dict(counters.rejected)
        self._totals = totals
        told: dict[str, Any] = {
            "audit": self._audit,
            "presence": self._presence,
            "ended": self._ended,
            "web_ended": self._web_ended,
            "counters": news,
            "rejected": rejected,
            "sends": self._rejected_sends,
            "lost": self._lost,
            "totals": grown,
            "audit_lost": self._audit_lost,
        }
        if figures is not None:
            told["shadows"] = self.shadows()
            told["figures"] = figures
        self._audit, self._presence, self._ended, self._web_ended = [], [], 0, 0
        self._rejected_sends, self._rejected_bytes, self._lost, self._audit_lost = [], 0, 0, 0
        return json.dumps(told).encode()
