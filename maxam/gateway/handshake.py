"""The way from CONNECT to a session on one connection: who the client is, until when it must ask, and what waits for a session."""

from collections.abc import Callable
from typing import Final, final

from maxam.broker.broker import Broker
from maxam.broker.outbox import Outbox
from maxam.broker.policy import Policy, Rights
from maxam.config import Settings
from maxam.errors import ProtocolError
from maxam.records import Identity
from maxam.stomp.events import Connect, Event

# Raises ProtocolError. After None, `ServerConnection.admitted` or `refused` follows.
Admit = Callable[[Connect], tuple[Identity, Rights] | None]


def unknown_principal(fingerprint: str) -> str:
    """Return the principal of a certificate that the policy does not have, where such clients may connect."""
    return f"fingerprint:{fingerprint}"


def identity_of(policy: Policy, fingerprint: str, refuse_unknown: bool) -> Identity:
    """Return the identity of a certificate.

    Raises:
        ProtocolError: The policy has no principal for it, and unknown clients are refused.
    """
    principal = policy.principal_of(fingerprint)
    if principal is None:
        if refuse_unknown:
            raise ProtocolError(
                "unknown client",
                f"the policy has no principal for the certificate with the SHA-256 fingerprint {fingerprint}; "
                "have it added to the policy",
            )
        principal = unknown_principal(fingerprint)
    return Identity(principal, fingerprint)


@final
class Handshake:
    """The CONNECT of one connection.

    Attributes:
        due_s: When CONNECT must have come and have its session, monotonic seconds.
        session_id: Name of the session unless the client gives one.
        waiting: It waits for its session to be granted.
    """

    __slots__ = (
        "_admit",
        "_broker",
        "_claimed",
        "_denial",
        "_fingerprint",
        "_held",
        "_rights",
        "_settings",
        "due_s",
        "session_id",
        "waiting",
    )

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        fingerprint: str,
        session_id: str,
        denial: Callable[[], ProtocolError | None] | None,
        admit: Admit | None,
        due_s: float,
    ) -> None:
        self._broker: Final = broker
        self._settings: Final = settings
        self._fingerprint: Final = fingerprint
        self._denial: Final = denial
        self._admit: Final = admit
        self._rights: Rights | None = None  # of the credentials in CONNECT
        self._claimed: tuple[Connect, Identity] | None = None
        self._held: list[Event] = []  # events after a CONNECT that waits
        self.session_id: Final = session_id
        self.due_s: Final = due_s
        self.waiting = False

    def identify(self, event: Connect, wall_us: int) -> Identity | None:
        """Return the identity of a client by its CONNECT and its certificate, and give the CONNECT the will of the policy.

        After None the CONNECT waits: another process judges its credentials.

        Raises:
            ProtocolError: The certificate or the credentials are not accepted.
        """
        denial = None if self._denial is None else self._denial()
        if denial is not None:
            raise denial
        if self._admit is not None:
            admitted = self._admit(event)
            if admitted is None:
                self.waiting = True
                return None
            identity, self._rights = admitted
        else:
            refuse = self._settings.policy.unknown_clients == "refuse"
            identity = identity_of(self._broker.policy, self._fingerprint, refuse)
        if event.will is None:
            event.will = self._broker.last_wills.bound(identity, wall_us)
        return identity

    def wait(self, event: Connect, identity: Identity, rights: Rights | None = None) -> None:
        """Have a CONNECT wait until its session is granted. `rights` are those of credentials that another process has judged."""
        self._claimed = (event, identity)
        self._rights = self._rights if rights is None else rights
        self.waiting = True

    def hold(self, events: list[Event]) -> None:
        """Keep the events that came after a CONNECT that waits."""
        self._held = events

    def end_wait(self) -> tuple[tuple[Connect, Identity] | None, list[Event]]:
        """Return the CONNECT that has waited, if one has, and the events after it. Nothing waits after that."""
        claimed, self._claimed = self._claimed, None
        held, self._held = self._held, []
        self.waiting = False
        return claimed, held

    def join(self, event: Connect, identity: Identity, wake: Callable[[], None], now_s: float) -> Outbox:
        """Attach the connection to its session. The arguments and errors are those of `Broker.connect`."""
        return self._broker.connect(event, identity, self.session_id, wake, now_s, self._rights)

    def overdue(self) -> ProtocolError:
        """Return why a connection ends that is not connected at `due_s`."""
        if self.waiting:
            text = "the gateway gives no session now, as its journal waits for the disk; connect again later"
            return ProtocolError("session not granted", text)
        if self._admit is not None:
            return ProtocolError("no CONNECT", "no CONNECT came in time")
        limit_s = self._settings.limits.connect_timeout_s
        return ProtocolError("no CONNECT", f"no CONNECT came within {limit_s:g} s (limit connect_timeout_s)")
