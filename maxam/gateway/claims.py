"""Which front has the connection of each session, and takeovers between fronts.

Theory of operation. A front claims a session before it answers CONNECT, and releases it when the connection has ended. Both are
operations in the order, and count when they are done. So a session is granted after all that its last connection has acknowledged. If
another connection has the session, its front is asked to expel it. The claim waits for the release: `WAIT_S` at most, so that a front
that hangs holds no session for ever.
"""

from collections import deque
from typing import Final, Protocol, final

from maxam.broker.session_table import TAKEOVER
from maxam.errors import ProtocolError

WAIT_S: Final = 0.5
_TAKEOVERS_S: Final = 60.0  # over which takeovers are counted

Key = tuple[str, str]  # principal and client-id


class ClaimEffects(Protocol):
    """Effects of claims and releases."""

    def hold(self, key: Key, front: bytes) -> None:
        """Note that a front has a session. Raises ProtocolError if there is no room for it."""

    def let_go(self, key: Key, now_s: float) -> None:
        """Note that no front has a session any longer."""

    def grant(self, key: Key, front: bytes) -> None:
        """Send a front that it has the session."""

    def refuse(self, key: Key, front: bytes, failure: ProtocolError) -> None:
        """Send a front that its connection does not get the session."""

    def expel(self, key: Key, front: bytes) -> None:
        """Send a front that another connection claims the session."""


@final
class Claims:
    """The sessions that fronts have or wait for."""

    def __init__(self, effects: ClaimEffects, takeovers_per_minute_max: int) -> None:
        self._effects: Final = effects
        self._takeovers_max: Final = takeovers_per_minute_max
        self._holders: Final[dict[Key, bytes]] = {}
        self._waiting: Final[dict[Key, tuple[bytes, float]]] = {}  # front, and until when it waits
        self._takeovers_s: Final[dict[Key, deque[float]]] = {}

    def holder(self, key: Key) -> bytes | None:
        """Return the front that has a session; None for none."""
        return self._holders.get(key)

    @property
    def due_s(self) -> float | None:
        """When `tick` has something to do, or None."""
        return min((until_s for _, until_s in self._waiting.values()), default=None)

    def resume(self, key: Key, front: bytes) -> bool:
        """Give a session to a front that had it with the former leader. Return False if another connection has it now.

        Raises:
            ProtocolError: There is no room for it.
        """
        if key in self._holders:
            return False
        self._effects.hold(key, front)
        self._holders[key] = front
        return True

    def claim(self, key: Key, front: bytes, now_s: float) -> None:
        """Give a session to a front, now or once its connection elsewhere has ended."""
        holder = self._holders.get(key)
        if holder is None:
            self._give(key, front)
            return
        failure = self._too_often(key, now_s)
        if failure is not None:
            self._effects.refuse(key, front, failure)
            return
        earlier = self._waiting.pop(key, None)
        if earlier is not None:
            self._effects.refuse(key, earlier[0], _taken_over(key))
        self._waiting[key] = (front, now_s + WAIT_S)
        self._effects.expel(key, holder)

    def release(self, key: Key, front: bytes, now_s: float) -> None:
        """Take a session back from a front, unless that has lost it before."""
        if self._holders.get(key) != front:
            return
        del self._holders[key]
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            self._takeovers_s.pop(key, None)
            self._effects.let_go(key, now_s)
        else:
            self._give(key, waiting[0])

    def end(self, front: bytes, now_s: float) -> None:
        """Take all sessions back from a front that has ended."""
        for key in [key for key, (waiting, _) in self._waiting.items() if waiting == front]:
            del self._waiting[key]
        for key in [key for key, holder in self._holders.items() if holder == front]:
            self.release(key, front, now_s)

    def tick(self, now_s: float) -> None:
        """Give sessions to fronts that have waited long enough. A front itself is waited for: its steps come in order."""
        for key, (front, until_s) in list(self._waiting.items()):
            if now_s < until_s:
                continue
            if self._holders[key] == front:
                self._waiting[key] = (front, now_s + WAIT_S)
            else:
                del self._waiting[key]
                self._give(key, front)

    def _give(self, key: Key, front: bytes) -> None:
        try:
            self._effects.hold(key, front)
        except ProtocolError as failure:
            self._effects.refuse(key, front, failure)
            return
        self._holders[key] = front
        self._effects.grant(key, front)

    def _too_often(self, key: Key, now_s: float) -> ProtocolError | None:
        takeovers_s = self._takeovers_s.setdefault(key, deque())
        while takeovers_s and takeovers_s[0] <= now_s - _TAKEOVERS_S:
            takeovers_s.popleft()
        if len(takeovers_s) >= self._takeovers_max:
            return ProtocolError(
                "too many takeovers",
                f"the session {key[1]} was taken over {len(takeovers_s)} times within a minute (limit "
                "takeovers_per_minute_max); let one connection keep it, or use a client-id of your own",
            )
        takeovers_s.append(now_s)
        return None


def _taken_over(key: Key) -> ProtocolError:
    return ProtocolError(
        TAKEOVER,
        f"another connection of {key[0]} has the client-id {key[1]} now. The newest has the session; connect again only to take it"
        " back, or with a client-id of your own",
    )
