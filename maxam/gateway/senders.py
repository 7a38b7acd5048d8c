"""Principals whose SENDs are rejected and who may not notice: what health reports of them.

A client that asks for no RECEIPT, or whose library hides the headers of a RECEIPT, takes a rejected SEND for a success. The broker counts the
rejected SENDs of a connection when it rejects one, and the gateway all of its SENDs. This compares both now and then, so a SEND that is
accepted costs nothing here. An *episode* of a principal begins with a rejected SEND and ends WINDOW_S after its last one.
"""

from dataclasses import dataclass
from typing import Final, final

from maxam.broker.outbox import Outbox

WINDOW_S: Final = 300.0  # without a rejected SEND, after which an episode is over
STREAK_MIN: Final = 10  # rejected SENDs without an accepted one between them, from which on health reports them
PRINCIPALS_MAX: Final = 1000  # with an episode; of one more the oldest is forgotten
NAMED_MAX: Final = 5  # principals in one text of health


@dataclass(slots=True)
class _Episode:
    """Rejected SENDs of one principal.

    Attributes:
        last_s: Time of the last one, monotonic seconds.
        streak: Number since the last accepted SEND.
        rejected: Number in all.
        unheard: Number for which the client asked for no RECEIPT.
    """

    last_s: float = 0.0
    streak: int = 0
    rejected: int = 0
    unheard: int = 0


@final
class Senders:
    """Keeps what is known of principals with rejected SENDs."""

    def __init__(self) -> None:
        """Make one that knows of none."""
        self._episodes: Final[dict[str, _Episode]] = {}  # the one with the oldest rejected SEND first
        self._counted: Final[dict[int, tuple[int, int, int]]] = {}  # by number of a connection: what was added already

    @property
    def watching(self) -> bool:
        """Return True if a principal has an episode, so that each of its connections counts."""
        return bool(self._episodes)

    def count(self, number: int, sends: int, connection: Outbox, now_s: float) -> None:
        """Add what a connection has sent since it was last counted.

        Args:
            number: Of the connection.
            sends: SENDs that it has sent in all.
            connection: Its place in the broker.
            now_s: Monotonic seconds.
        """
        principal = connection.identity.principal
        episode = self._episodes.get(principal)
        if episode is None and not connection.rejected:
            return
        sends_before, rejected_before, unheard_before = self._counted.get(number, (0, 0, 0))
        self._counted[number] = (sends, connection.rejected, connection.unheard)
        rejected = connection.rejected - rejected_before
        if episode is not None and sends - sends_before > rejected:
            episode.streak = 0
        if not rejected:
            return
        if episode is None:
            episode = _Episode()
            while len(self._episodes) >= PRINCIPALS_MAX:
                del self._episodes[next(iter(self._episodes))]
        else:
            del self._episodes[principal]
        self._episodes[principal] = episode
        episode.last_s = now_s
        episode.rejected += rejected
        episode.unheard += connection.unheard - unheard_before
        if sends - sends_before == rejected:
            episode.streak += rejected

    def ended(self, number: int, sends: int, connection: Outbox, now_s: float) -> None:
        """Count a connection for the last time."""
        self.count(number, sends, connection, now_s)
        self._counted.pop(number, None)

    def degraded(self, now_s: float) -> list[str]:
        """Return what an operator should see to."""
        while self._episodes:
            principal, oldest = next(iter(self._episodes.items()))
            if now_s - oldest.last_s <= WINDOW_S:
                break
            del self._episodes[principal]
        failing = [name for name, one in self._episodes.items() if one.streak >= STREAK_MIN]
        deaf = [name for name, one in self._episodes.items() if one.unheard == one.rejected]
        reasons = []
        if failing:
            reasons.append(
                f"sends-rejected: each SEND of the last minutes was rejected, of {_named(failing)}. See `maxam-admin rejects list`"
            )
        if deaf:
            reasons.append(
                f"rejections-unheard: SENDs were rejected, and none asked for a RECEIPT, of {_named(deaf)}. "
                "Have the client ask for receipts, or connect with rejections:error"
            )
        return reasons


def _named(principals: list[str]) -> str:
    newest = principals[::-1]
    named = ", ".join(newest[:NAMED_MAX])
    return named if len(newest) <= NAMED_MAX else f"{named} and {len(newest) - NAMED_MAX} more"
