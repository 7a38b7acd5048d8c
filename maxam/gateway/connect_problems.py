"""Clients that cannot connect, or do not stay connected: refused connections, takeovers and clients in a reconnect loop.

The tables have a fixed size. Clients with a principal have a table of their own, so that unknown clients never push them out.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from maxam.counting import counted
from maxam.gateway.audit import DISCONNECTED, REFUSED, TAKEN_OVER
from maxam.gateway.connect_rates import network_of_host
from maxam.gateway.listener import host_of
from maxam.records import Identity

RECONNECTING: Final = "reconnecting"
KINDS: Final = (REFUSED, TAKEN_OVER, RECONNECTING)
CLIENTS: Final = "stomp"  # the listener of clients
LINK: Final = "link"  # that of other gateways
LINK_PREFIX: Final = "link: "
ROWS_MAX: Final = 500  # of each table, some 400 KB
OFTEN: Final = 5  # events within OFTEN_S after which health shows a row
OFTEN_S: Final = 300.0
SHORT_S: Final = 60.0  # a connection that ends sooner, without DISCONNECT, may be part of a reconnect loop
_KEPT_S: Final = 3600.0  # after the last event of a row
_FULL_SHOWN_S: Final = 60.0
_REASON_CHARACTERS_MAX: Final = 200
_FULL: Final = "connections_max"
_WEB_FULL: Final = "[web] connections_max"
# Reasons with a code of health of their own.
_LIMITS: Final = frozenset({_FULL, _WEB_FULL, "connects_per_address_per_s", "error: connecting too often"})
# Ends that are no failure of the client.
_WANTED_ENDS: Final = ("disconnect", "error: broker is stopping", "error: policy changed, reconnect")
# Advice by a part of the reason. The first that fits counts.
_ADVICE: Final = (
    ("unknown client", "Add the fingerprint of the certificate to the policy, then reload."),
    ("unknown host", "Have the client send a `host` of `[listener] virtual_hosts` in CONNECT, or add its own there."),
    ("not yet valid", "Compare the clocks of client, CA and gateway."),
    ("revocation list expired", "Fetch or make a new CRL."),
    ("expired", "Renew the certificate of the client."),
    ("revoked", "Issue a new certificate if the client may connect again."),
    ("the client sent no certificate", "Configure the client with its certificate and key."),
    ("the client does not", "Give the client the CA of the gateway's certificate, and an address that is in it."),
    ("not trusted", "Issue the client a certificate of a CA that `[tls] client_ca` lists."),
    ("client certificate refused", "Issue the client a certificate of a CA that `[tls] client_ca` lists."),
    ("not TLS", "Have the client connect with TLS."),
    ("versions of TLS", "Update the client, or lower `[tls] minimum`."),
    ("cross-site", "If the page is yours, list its origin in `origins` of `[web]`. The log has the origin."),
    (_WEB_FULL, "Find a page with many connections, or raise `connections_max` in `[web]`."),
    (_FULL, "Find a client with many connections, or raise `connections_max` and `LimitNOFILE`."),
    ("connects_per_address_per_s", "Find the program at this address that connects in a loop."),
    ("connecting too often", "Find the client of this principal that connects in a loop."),
)


def advice_for(kind: str, reason: str) -> str:
    """Return what an operator should do; empty if the reason is not known."""
    if kind == TAKEN_OVER:
        return "Give each client a client-id of its own."
    found = next((advice for part, advice in _ADVICE if part in reason), "")
    return found or ("Check the log of the client for the cause." if kind == RECONNECTING else "")


@final
@dataclass(slots=True)
class ConnectProblem:
    """One client that cannot connect for one reason, or that does not stay connected.

    Attributes:
        kind: One of KINDS.
        reason: Reason of the refusal, or of the last end.
        principal: Its principal; empty if it has none.
        client_id: Name of its session; empty if it has none.
        fingerprint: SHA-256 of its certificate; empty if it sent none.
        listener: The listener that it connected to.
        address: The last one, `host:port`.
        count: Events since the row was made.
        first_at_us: Time of the first event, microseconds since the epoch.
        last_at_us: Time of the last event, likewise.
        times_s: Of the last OFTEN events, by the clock of the event loop.
    """

    kind: str
    reason: str
    principal: str
    client_id: str
    fingerprint: str
    listener: str
    address: str
    count: int
    first_at_us: int
    last_at_us: int
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=OFTEN))

    def often(self, now_s: float) -> bool:
        """Return True if OFTEN events came within OFTEN_S."""
        return len(self.times_s) == OFTEN and now_s - self.times_s[0] <= OFTEN_S

    @property
    def who(self) -> str:
        """The client, in words."""
        name = f"{self.principal} {self.client_id}".strip()
        return name or (f"the certificate {self.fingerprint}" if self.fingerprint else "a client")


_Key = tuple[str, ...]


@final
class ConnectProblems:
    """Tables of clients with such problems, made from the events of the audit log.

    Attributes:
        forgotten: Rows that made room for newer ones since the start.
    """

    def __init__(self, clock: Callable[[], float], wall_us: Callable[[], int]) -> None:
        """Make it.

        Args:
            clock: Monotonic seconds.
            wall_us: Microseconds since the epoch.
        """
        self._clock: Final = clock
        self._wall_us: Final = wall_us
        self._known: Final[OrderedDict[_Key, ConnectProblem]] = OrderedDict()  # with a principal; oldest event first
        self._unknown: Final[OrderedDict[_Key, ConnectProblem]] = OrderedDict()
        self._full = 0
        self._full_limit = _FULL
        self._full_at_s = float("-inf")
        self.forgotten = 0

    def observe(self, event: str, who: Identity, address: str, reason: str, facts: Mapping[str, object]) -> None:
        """Take an event of the audit log."""
        listener = LINK if reason.startswith(LINK_PREFIX) else str(facts.get("listener") or CLIENTS)
        session = str(facts.get("session") or "")
        if event == REFUSED:
            if reason in (_FULL, _WEB_FULL):
                self._full += 1
                self._full_limit = reason
                self._full_at_s = self._clock()
            self._add(REFUSED, reason, who, "", listener, address)
        elif event == TAKEN_OVER:
            self._add(TAKEN_OVER, reason, who, session, listener, address)
        elif event == DISCONNECTED and _is_short(reason, facts):
            self._add(RECONNECTING, reason, who, session, listener, address)

    def rows(self) -> list[ConnectProblem]:
        """Return the rows with an event in the last hour: first those that recur, then those with the latest event."""
        now_s = self._clock()
        for table in (self._known, self._unknown):
            while table and now_s - next(iter(table.values())).times_s[-1] > _KEPT_S:
                table.popitem(last=False)
        # A client that comes back now and then is no problem: a reconnect loop and a fight for a session recur.
        found = [
            row
            for table in (self._known, self._unknown)
            for row in table.values()
            if row.kind == REFUSED or row.count >= OFTEN
        ]
        return sorted(found, key=lambda row: (not row.often(now_s), -row.times_s[-1]))

    def degraded(self) -> list[str]:
        """Return lines for health: clients that are refused again and again, that share a client-id, or that keep reconnecting."""
        now_s = self._clock()
        often = [row for row in self.rows() if row.often(now_s)]
        refused = [row for row in often if row.kind == REFUSED and _is_client(row)]
        taken = [row for row in often if row.kind == TAKEN_OVER]
        looping = [row for row in often if row.kind == RECONNECTING]
        lines = []
        if now_s - self._full_at_s <= _FULL_SHOWN_S:
            lines.append(
                f"connections-full: {self._full} connections were refused since the start because {self._full_limit} was reached,"
                f" the last {now_s - self._full_at_s:.0f} s ago"
            )
        if refused:
            lines.append(f"clients-refused: {_line(refused, now_s)}")
        if taken:
            lines.append(f"takeovers: {_line(taken, now_s)}")
        if looping:
            lines.append(f"reconnect-loop: {_line(looping, now_s)}")
        return lines

    def _add(self, kind: str, reason: str, who: Identity, client_id: str, listener: str, address: str) -> None:
        principal = "" if who.principal.startswith("fingerprint:") else who.principal
        reason = reason[:_REASON_CHARACTERS_MAX]
        named = client_id if kind == TAKEN_OVER else ""  # generated names of sessions differ each time
        key = (
            kind,
            reason,
            principal or who.fingerprint,
            named,
            listener,
            network_of_host(host_of(address).strip("[]")),
        )
        table = self._known if principal else self._unknown
        now_us = self._wall_us()
        row = table.get(key)
        if row is None:
            if len(table) >= ROWS_MAX:
                table.popitem(last=False)
                self.forgotten += 1
            row = table[key] = ConnectProblem(
                kind, reason, principal, client_id, who.fingerprint, listener, address, 0, now_us, now_us
            )
        table.move_to_end(key)
        row.client_id, row.address, row.fingerprint = client_id, address, who.fingerprint
        row.count += 1
        row.last_at_us = now_us
        row.times_s.append(self._clock())


def _is_client(row: ConnectProblem) -> bool:
    """Return True if a refused connection was that of a client, and not of a scanner or a probe of the port."""
    return (
        row.listener == CLIENTS and row.reason not in _LIMITS and bool(row.fingerprint or "certificate" in row.reason)
    )


def _is_short(reason: str, facts: Mapping[str, object]) -> bool:
    """Return True if an end may be part of a reconnect loop: soon, and not wanted by either side."""
    lasted = facts.get("seconds")
    if not isinstance(lasted, int | float) or lasted >= SHORT_S or reason.startswith(_WANTED_ENDS):
        return False
    # A program that sends a value and closes its connection has done what it came for.
    return not (reason == "closed by the client" and facts.get("sends") and not facts.get("messages"))


def _line(rows: list[ConnectProblem], now_s: float) -> str:
    first, others = rows[0], len(rows) - 1
    also = f"; likewise {counted(others, 'other')}" if others else ""
    return (
        f"{first.who} at {first.address}, {first.count} times, the last {now_s - first.times_s[-1]:.0f} s ago: {first.reason}{also}"
        " (`maxam-admin connections problems`)"
    )
