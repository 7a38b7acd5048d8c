"""When a heart-beat is due, and when the peer counts as dead."""

from typing import Final, final

from maxam.errors import ProtocolError

_NEVER_S: Final = float("inf")


@final
class HeartBeat:
    """Compute when a heart-beat must be sent and when the peer counts as dead. Either end of a connection can use it.

    Times are seconds of one clock that never goes back. A due time is `inf` while there is none.
    Spec: STOMP 1.2 "Heart-beating"
    """

    __slots__ = (
        "_deaf_s",
        "_grace_s",
        "_last_received_s",
        "_last_sent_s",
        "_ours_ms",
        "_paused_s",
        "_taken_bytes",
        "_theirs_ms",
        "receive_interval_s",
        "send_interval_s",
    )

    def __init__(self, ours_ms: tuple[int, int], theirs_ms: tuple[int, int], now_s: float) -> None:
        """Negotiate from the `heart-beat` header that we sent and the one the peer sent."""
        self._ours_ms: Final = ours_ms
        self._theirs_ms: Final = theirs_ms
        # Spec: STOMP 1.2 "if <cx> is 0 [...] or <sy> is 0 [...] then there will be none [...] otherwise, there will be
        # heart-beats every MAX(<cx>,<sy>) milliseconds"
        self.send_interval_s: Final = _negotiate_interval_s(ours_ms[0], theirs_ms[1])  # 0: none
        self.receive_interval_s: Final = _negotiate_interval_s(theirs_ms[0], ours_ms[1])  # 0: none
        self._last_sent_s = now_s
        self._last_received_s = now_s
        self._paused_s: float | None = None  # since when we do not read
        self._deaf_s = 0.0  # how long we did not read, in all, up to the last `resume` or `received`
        self._taken_bytes = -1  # bytes taken at the first check of a silent peer, -1 if it was not silent for that long
        self._grace_s = 0.0  # how much longer it may be silent until the second check

    def sent(self, now_s: float) -> None:
        """Record that bytes were written: any of them serve as a heart-beat."""
        self._last_sent_s = now_s

    def received(self, now_s: float) -> None:
        """Record that bytes were read: any of them show that the peer is alive."""
        self._last_received_s = now_s
        if self._paused_s is not None:
            self._deaf_s += now_s - self._paused_s
            self._paused_s = now_s
        if self._taken_bytes >= 0:
            self._taken_bytes = -1
            self._grace_s = 0.0

    def pause(self, now_s: float) -> None:
        """Stop the count of the peer's silence while we do not read."""
        if self._paused_s is None:
            self._paused_s = now_s

    def resume(self, now_s: float) -> None:
        """Continue the count of the peer's silence where `pause` stopped."""
        if self._paused_s is not None:
            self._last_received_s += now_s - self._paused_s
            self._deaf_s += now_s - self._paused_s
            self._paused_s = None

    def listened_s(self, now_s: float) -> float:
        """Return a time that runs only while we read."""
        return (now_s if self._paused_s is None else self._paused_s) - self._deaf_s

    def is_dead(self, untaken_bytes: int, taken_bytes: int, now_s: float) -> bool:
        """Return True if the peer counts as dead. To be called at `dead_due_s`.

        A silent peer is alive as long as it takes the bytes sent to it: it may read a large MESSAGE over a slow line. If it
        has not taken everything, `dead_due_s` moves by half an interval. If it has taken more by then, the count of its
        silence starts again.

        Args:
            untaken_bytes: Bytes sent to the peer that it has not taken.
            taken_bytes: Bytes that it has taken since the connection was opened.
            now_s: The time.
        """
        before = self._taken_bytes
        if untaken_bytes <= 0 or before >= taken_bytes:
            return True
        if before >= 0:
            self.received(now_s)
        else:
            self._taken_bytes = max(0, taken_bytes)
            self._grace_s = 0.5 * self.receive_interval_s
        return False

    @property
    def heard_at_s(self) -> float:
        """Time at which bytes were last read, later by the time in which we did not read since."""
        return self._last_received_s

    @property
    def send_due_s(self) -> float:
        """Time to send a heart-beat unless bytes were written before. It is a tenth early, as timers and links run late."""
        return self._last_sent_s + 0.9 * self.send_interval_s if self.send_interval_s else _NEVER_S

    @property
    def late_due_s(self) -> float:
        """Time from which on a heart-beat of the peer is late: 1.2 times the interval after the last bytes read."""
        if not self.receive_interval_s or self._paused_s is not None:
            return _NEVER_S
        return self._last_received_s + 1.2 * self.receive_interval_s

    @property
    def dead_due_s(self) -> float:
        """Time at which the peer counts as dead: twice the interval after the last bytes read. See `is_dead`."""
        # Spec: STOMP 1.2 "the receiver SHOULD be tolerant and take into account an error margin"
        if not self.receive_interval_s or self._paused_s is not None:
            return _NEVER_S
        return self._last_received_s + 2 * self.receive_interval_s + self._grace_s

    def error(self, now_s: float) -> ProtocolError:
        """Return the error to send to a peer that counts as dead."""
        return ProtocolError(
            "heart-beat missed",
            f"Nothing was received for {now_s - self._last_received_s:.1f} s while reading. Expected bytes every "
            f"{self.receive_interval_s:.1f} s, and at most {2 * self.receive_interval_s:.1f} s of silence. "
            f"You offered a heart-beat every {self._theirs_ms[0]} ms, and we asked for one every {self._ours_ms[1]} ms. "
            "Reconnect, and send an end of line when there is no frame to send.",
        )


def _negotiate_interval_s(can_ms: int, wanted_ms: int) -> float:
    return max(can_ms, wanted_ms) / 1000 if can_ms and wanted_ms else 0.0
