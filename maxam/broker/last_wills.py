"""Last wills are judged when they are set. They are judged again and sent when they are due.

A will is an ordinary SEND of the session's principal. The rights and the schema in force decide. `wills` has the states of the wills.
"""

from collections.abc import Callable
from typing import Final, final

from maxam.broker.admission import UNAUTHORISED, Admission
from maxam.broker.outbox import Outbox
from maxam.broker.policy import ANONYMOUS_PREFIX, Rights
from maxam.broker.publishing import UNAVAILABLE_RESULTS, Publishing, disposition_of, rejection_headers
from maxam.broker.routing import Routing
from maxam.broker.session import Session
from maxam.broker.store import Store
from maxam.broker.wills import Wills
from maxam.config import Limits
from maxam.errors import ProtocolError
from maxam.metrics import Counters
from maxam.records import Identity, Rejection, WillRecord
from maxam.stomp.events import Send, Will

FIRED_AT_ONCE: Final = 200  # wills: a judged SEND each takes some 20 us
_AGAIN_S: Final = 1.0  # until a will is tried again for which there was no memory
_REFUSED: Final = ProtocolError("disk full", "the last will could not be stored; try again later")


@final
class LastWills:
    """Judges and fires the last wills of one broker.

    Attributes:
        wills: Their states.
        is_revoked: Returns True if the certificate that set a will is no longer trusted. None if certificates are not judged.
    """

    __slots__ = (
        "_admission",
        "_counters",
        "_per_principal_max",
        "_publishing",
        "_routing",
        "_store",
        "is_revoked",
        "wills",
    )

    def __init__(
        self,
        limits: Limits,
        wills: Wills,
        store: Store,
        routing: Routing,
        admission: Admission,
        publishing: Publishing,
        counters: Counters,
    ) -> None:
        self.wills: Final = wills
        self.is_revoked: Callable[[WillRecord], bool] | None = None
        self._per_principal_max: Final = limits.wills_per_principal_max
        self._store: Final = store
        self._routing: Final = routing
        self._admission: Final = admission
        self._publishing: Final = publishing
        self._counters: Final = counters

    def bound(self, identity: Identity, wall_us: int) -> Will | None:
        """Return the will that the policy binds to a principal, None without one.

        One that would be rejected now is reported as a rejected SEND and left out: the client cannot correct it.
        """
        principal = self._routing.policy.principals.get(identity.principal)
        will = None if principal is None else principal.will
        if will is None:
            return None
        event = Send(will.destination, will.body, will.headers, None)
        topic = self._store.topics.get(will.destination)
        verdict = self._admission.validate(identity, self._rights(identity.principal), event, topic, wall_us)
        if type(verdict) is not Rejection or verdict.result in UNAVAILABLE_RESULTS:
            return will
        self._counters.wills_rejected += 1
        self._publishing.report(identity, event, verdict, wall_us)
        return None

    def check(self, key: tuple[str, str], identity: Identity, will: Will) -> None:
        """Judge the will of a CONNECT, and change nothing.

        Args:
            key: Principal and client-id of the session.
            identity: The principal and its certificate.
            will: Of the CONNECT.

        Raises:
            ProtocolError: The SEND would be rejected now, or the principal has too many wills.
        """
        if not self.wills.has(key) and self.wills.count(key[0]) >= self._per_principal_max:
            raise ProtocolError(
                "too many wills",
                f"the principal {key[0]} has {self.wills.count(key[0])} sessions with a last will (limit "
                "wills_per_principal_max); connect without one, or resume a session by its client-id",
            )
        event = Send(will.destination, will.body, will.headers, None)
        topic = self._store.topics.get(will.destination)
        verdict = self._admission.validate(identity, self._rights(key[0]), event, topic, self.wills.accepted_at_us)
        if type(verdict) is Rejection and verdict.result not in UNAVAILABLE_RESULTS:
            self._counters.wills_rejected += 1
            raise ProtocolError(
                "bad will",
                f"The last will was refused: {verdict.reason}. Correct it, or connect without one.",
                None,
                rejection_headers(disposition_of(verdict), verdict),
            )

    def connected(self, connection: Outbox, will: Will | None) -> None:
        """Set, replace or cancel the will of a session that has a new connection. Its RECEIPTs wait until that is stored."""
        position = self.wills.connect(connection.session.key, connection.identity, will)
        connection.position = max(connection.position, position)

    def disconnected(self, connection: Outbox) -> None:
        """Cancel the will of a session whose connection has sent DISCONNECT. The RECEIPT waits until that is stored."""
        session = connection.session
        if session.connection is connection:
            connection.position = max(connection.position, self.wills.disconnect(session.key))

    def detached(self, present: Session | None, key: tuple[str, str], now_s: float) -> None:
        """Arm the will of a session whose connection has ended, unless `present`, the session of that key, has another one."""
        if present is None or present.connection is None:
            self.wills.lose(key, now_s)

    def fire(self, now_s: float, wall_us: int) -> list[tuple[WillRecord, Rejection]]:
        """Send the wills that are due, FIRED_AT_ONCE at most. Return those that were rejected, and why.

        Args:
            now_s: Monotonic seconds.
            wall_us: Microseconds since the epoch, for `accepted_at`.
        """
        rejected: list[tuple[WillRecord, Rejection]] = []
        for _ in range(FIRED_AT_ONCE):
            found = self.wills.next_due(now_s)
            if found is None or found.current is None:
                break
            record = found.current
            event = Send(record.destination, record.body, record.headers, None)
            rights = self._rights(record.principal)
            rejection: Rejection | None = UNAUTHORISED
            revoked = self.is_revoked is not None and self.is_revoked(record)
            if self._stands_for(record.publisher) and not revoked:
                rejection = self._publishing.publish(record.publisher, rights, event, wall_us)
            else:
                self._publishing.report(record.publisher, event, UNAUTHORISED, wall_us)
            if rejection is None:
                self._counters.wills_fired += 1
                self.wills.fired(found)
            elif rejection.result in UNAVAILABLE_RESULTS:
                self.wills.put_off(found, now_s + _AGAIN_S)
            else:
                self._counters.wills_rejected += 1
                self.wills.rejected(found)
                rejected.append((record, rejection))
        return rejected

    def _stands_for(self, publisher: Identity) -> bool:
        """Return True if the policy in force has not taken the certificate from its principal."""
        principal = self._routing.policy.principal_of(publisher.fingerprint)
        if principal is None:
            return publisher.principal.startswith(ANONYMOUS_PREFIX)
        return principal == publisher.principal

    def _rights(self, principal: str) -> Rights:
        return self._routing.policy.rights(principal)


def expel_setter(session: Session | None) -> None:
    """End the connection of a session whose will could not be stored."""
    if session is not None and session.connection is not None:
        session.connection.expel(_REFUSED)
