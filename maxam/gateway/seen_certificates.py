"""The certificates with which principals came since the start: when each was seen last, from where, and until when it is valid."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from maxam.gateway.audit import CONNECTED, DISCONNECTED, EXPELLED, TAKEN_OVER
from maxam.records import Identity

ROWS_MAX: Final = 20_000  # some 4 MB
_EVENTS: Final = frozenset({CONNECTED, DISCONNECTED, EXPELLED, TAKEN_OVER})


@final
@dataclass(slots=True)
class Seen:
    """The last use of a certificate by a principal.

    Attributes:
        at_us: Time of the last event, microseconds since the epoch.
        address: The peer's, `host:port`.
        valid_until: End of its validity, or of that of a CA above it if that is earlier, ISO 8601. Empty if it is not known.
    """

    at_us: int
    address: str
    valid_until: str


@final
class SeenCertificates:
    """A table of fixed size. The certificate that was seen least recently makes room."""

    def __init__(self, wall_us: Callable[[], int]) -> None:
        """Begin without any; `wall_us` returns microseconds since the epoch."""
        self._wall_us: Final = wall_us
        self._rows: Final[OrderedDict[tuple[str, str], Seen]] = OrderedDict()

    def observe(self, event: str, who: Identity, address: str, _reason: str, facts: Mapping[str, object]) -> None:
        """Take an event of the audit log."""
        if event in _EVENTS:
            self.record(who, address, str(facts.get("certificate_until") or ""))

    def record(self, who: Identity, address: str, valid_until: str = "") -> None:
        """Record that a principal was seen, with a certificate or, if its fingerprint is empty, with a ticket or token."""
        if not who.principal:
            return
        key = (who.principal, who.fingerprint)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self._rows.popitem(last=False)
            row = self._rows[key] = Seen(0, "", "")
        self._rows.move_to_end(key)
        row.at_us = self._wall_us()
        row.address = address
        row.valid_until = valid_until or row.valid_until

    def of(self, principal: str, fingerprint: str) -> Seen | None:
        """Return the last use of a certificate by a principal. None if there was none since the start."""
        return self._rows.get((principal, fingerprint))
