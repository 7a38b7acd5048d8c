"""How many sessions and subscriptions principals have, and the limits on them."""

from collections.abc import Mapping
from typing import Final, final

from sortedcontainers import SortedDict

from maxam.broker.session import Session, Subscription
from maxam.config import Limits
from maxam.errors import ProtocolError

_IDS_SHOWN: Final = 5  # ids in an ERROR about too many subscriptions


@final
class Quotas:
    """Counts of sessions and subscriptions, of each principal and of all.

    Attributes:
        durable_of: Durable subscriptions by principal.
        subscriptions: Subscriptions of all principals.
    """

    __slots__ = ("_limits", "_sessions", "_sessions_of", "_subscriptions_of", "durable_of", "subscriptions")

    def __init__(self, limits: Limits, sessions: SortedDict[tuple[str, str], Session]) -> None:
        """Count nothing yet; `sessions` are all of the broker, for the ids in an ERROR."""
        self._limits: Final = limits
        self._sessions: Final = sessions
        self._sessions_of: Final[dict[str, int]] = {}
        self._subscriptions_of: Final[dict[str, int]] = {}
        self.durable_of: Final[dict[str, int]] = {}
        self.subscriptions = 0

    def used(self) -> list[tuple[str, int, str]]:
        """Return how much of each limit is used, with the principal that uses most if each has its own; else empty."""
        return [
            ("subscriptions_max", self.subscriptions, ""),
            largest_user("subscriptions_per_principal_max", self._subscriptions_of),
            largest_user("durable_subscriptions_per_principal_max", self.durable_of),
            largest_user("sessions_per_principal_max", self._sessions_of),
        ]

    def add_session(self, session: Session) -> None:
        """Count a session that was opened."""
        _add(self._sessions_of, session.principal)

    def remove_session(self, session: Session) -> None:
        """Count a session no longer."""
        _remove(self._sessions_of, session.principal)

    def add_subscription(self, subscription: Subscription) -> None:
        """Count a subscription that was made."""
        self.subscriptions += 1
        _add(self._subscriptions_of, subscription.session.principal)
        if subscription.durable:
            _add(self.durable_of, subscription.session.principal)

    def remove_subscription(self, subscription: Subscription) -> None:
        """Count a subscription no longer."""
        self.subscriptions -= 1
        _remove(self._subscriptions_of, subscription.session.principal)
        if subscription.durable:
            _remove(self.durable_of, subscription.session.principal)

    def check_session(self, principal: str) -> None:
        """Raise ProtocolError if the principal may not have one session more."""
        if self._sessions_of.get(principal, 0) >= self._limits.sessions_per_principal_max:
            raise ProtocolError(
                "too many sessions",
                f"the principal {principal} has {self._limits.sessions_per_principal_max} sessions already "
                "(limit sessions_per_principal_max); end some, or resume one by its client-id",
            )

    def check_subscription(self, session: Session, durable: bool, receipt: bytes | None) -> None:
        """Raise ProtocolError if the session may not have one subscription more."""
        limits = self._limits
        if len(session.subscriptions) >= limits.subscriptions_per_session_max:
            raise ProtocolError(
                "too many subscriptions",
                f"the session has {len(session.subscriptions)} subscriptions "
                f"(limit subscriptions_per_session_max); UNSUBSCRIBE some{_such_as(_durable_ids(session))}",
                receipt,
            )
        held = self._subscriptions_of.get(session.principal, 0)
        if held >= limits.subscriptions_per_principal_max:
            raise ProtocolError(
                "too many subscriptions",
                f"the principal {session.principal} has {held} subscriptions in all its sessions "
                "(limit subscriptions_per_principal_max); UNSUBSCRIBE some",
                receipt,
            )
        # No more than what is left: so k principals that take all they can leave a (k + 1)th of the limit to the others.
        left = limits.subscriptions_max - self.subscriptions
        if held >= left:
            raise ProtocolError(
                "too many subscriptions",
                f"the principal {session.principal} has {held} subscriptions in all its sessions. All principals together "
                f"may have {left} more (limit subscriptions_max), which are kept for principals with fewer. UNSUBSCRIBE some, "
                "or try again later",
                receipt,
            )
        durable_of = self.durable_of.get(session.principal, 0)
        if durable and durable_of >= limits.durable_subscriptions_per_principal_max:
            raise ProtocolError(
                "too many subscriptions",
                f"the principal {session.principal} has {durable_of} durable subscriptions in all its sessions "
                "(limit durable_subscriptions_per_principal_max); UNSUBSCRIBE some with durable:true"
                f"{_such_as(self._durable_ids_of(session.principal))}, or have an operator drop some",
                receipt,
            )

    def _durable_ids_of(self, principal: str) -> list[bytes]:
        found: list[bytes] = []
        for key in self._sessions.irange((principal, ""), None):
            if key[0] != principal or len(found) >= _IDS_SHOWN:
                break
            found += _durable_ids(self._sessions[key])
        return found[:_IDS_SHOWN]


def shown(text: bytes) -> str:
    """Return a client's text as an ERROR shows it."""
    return ascii(text.decode("utf-8", "replace")[:200])


def _add(counts: dict[str, int], principal: str) -> None:
    counts[principal] = counts.get(principal, 0) + 1


def _remove(counts: dict[str, int], principal: str) -> None:
    left = counts[principal] - 1
    if left:
        counts[principal] = left
    else:
        del counts[principal]


def largest_user(name: str, counts: Mapping[str, int]) -> tuple[str, int, str]:
    """Return the name of a limit, how much of it the principal uses that uses most, and that principal."""
    most, largest = 0, ""
    for principal, count in counts.items():
        if count > most:
            most, largest = count, principal
    return (name, most, largest)


def _durable_ids(session: Session) -> list[bytes]:
    """List up to _IDS_SHOWN durable subscriptions of a session, of those that its connection does not use if there are any."""
    durable = [subscription for subscription in session.subscriptions.values() if subscription.durable]
    unused = [subscription.id for subscription in durable if subscription.connection is None]
    return (unused or [subscription.id for subscription in durable])[:_IDS_SHOWN]


def _such_as(ids: list[bytes]) -> str:
    return f", such as {', '.join(map(shown, ids))}" if ids else ""
