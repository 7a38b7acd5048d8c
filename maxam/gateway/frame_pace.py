"""The pace of a frame: whether its bytes come fast enough while it is not complete."""

from typing import Final, final

from maxam.errors import ProtocolError

_WINDOW_S: Final = 30.0  # over which the rate of a frame is averaged: as long as a line may stand still


@final
class FramePace:
    """The rate of the frame under way, in windows of listening time, which stands still while the gateway does not read."""

    __slots__ = ("_begun_bytes", "_begun_s")

    def __init__(self) -> None:
        self._begun_s = 0.0  # listening time at the beginning of the window
        self._begun_bytes = 0  # bytes that the transport had received then

    def begin(self, listened_s: float, received_bytes: int) -> None:
        """Begin a window at a listening time, when the transport has received a number of bytes."""
        self._begun_s = listened_s
        self._begun_bytes = received_bytes

    def failure(self, listened_s: float, received_bytes: int, least: int) -> ProtocolError | None:
        """Return an error if less than `least` bytes/s came in a window that is over, and else begin the next one."""
        seconds = listened_s - self._begun_s
        if seconds < _WINDOW_S:
            return None
        received = received_bytes - self._begun_bytes
        if received < seconds * least:
            return ProtocolError(
                "frame too slow",
                f"{received} bytes came within {seconds:.1f} s while a frame was not complete; expected at least {least} "
                "bytes/s (limit frame_rate_bytes_per_s_min). Send each frame without pauses, then reconnect.",
            )
        self.begin(listened_s, received_bytes)
        return None
