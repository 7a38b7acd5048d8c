"""The state of a client that connects again, and the reasons for which it does not."""

from dataclasses import dataclass
from typing import Final, Literal, final

from maxam.client.errors import GatewayError, VersionError
from maxam.errors import ClientError
from maxam.stomp.answers import SESSION_TAKEN_OVER

# `message` of ERRORs that the same CONNECT gets every time, or that a second connection would fight over for ever
FINAL: Final = frozenset(
    (
        SESSION_TAKEN_OVER,
        "unknown host",
        "bad client-id",
        "bad window",
        "bad heart-beat",
        "bad will",
        "session is durable",
        "no credentials",
    )
)
# `message` of ERRORs to a SUBSCRIBE that may be accepted later; every other one is final for the subscription
PASSING: Final = frozenset(("disk full", "memory low", "broker is stopping", "gateway cut off", "internal error"))


@final
@dataclass(frozen=True, slots=True)
class State:
    """The state of a client.

    Attributes:
        name: `connecting`, `connected`, `waiting` for the next attempt, or `closed` for good.
        reason: Why the last connection ended, or could not be made. None at first, while connected, and if the program left.
        retry_in_s: With `waiting`: the seconds until the next attempt.
    """

    name: Literal["connecting", "connected", "waiting", "closed"]
    reason: ClientError | None = None
    retry_in_s: float | None = None

    @property
    def code(self) -> str:
        """Stable name of the reason, such as `gateway-unreachable`; see docs/reference/errors.md. Empty without one."""
        return "" if self.reason is None else self.reason.code

    @property
    def final(self) -> bool:
        """True if the client does not connect again."""
        return self.name == "closed"


# `code` of ERRORs to credentials that do not change
REFUSED: Final = frozenset(("ticket-invalid", "token-invalid", "token-expired", "unauthenticated"))


def is_final(reason: ClientError, renewable: bool = True) -> bool:
    """Return True if no further attempt can succeed where this one failed.

    Args:
        reason: The reason for which it failed.
        renewable: The next attempt has new credentials.
    """
    if isinstance(reason, VersionError):
        return True
    if not isinstance(reason, GatewayError):
        return False
    return reason.message in FINAL or (reason.code in REFUSED and not renewable)
