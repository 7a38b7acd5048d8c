"""Limits on the memory of all connections together: bytes of unfinished frames, and RECEIPTs that wait."""

from typing import Final, final

from maxam.config import Limits
from maxam.errors import ProtocolError


class FrameHolder:
    """A connection, as far as its unfinished frame is concerned.

    Attributes:
        principal: The principal, once connected; else empty.
        unfinished_bytes: Bytes held of a frame that is not complete; set by the holdings.
    """

    __slots__ = ("principal", "unfinished_bytes")

    def __init__(self) -> None:
        self.principal = ""
        self.unfinished_bytes = 0

    def check_pace(self, now_s: float) -> None:
        """Fail if the frame under way has come too slowly."""
        raise NotImplementedError

    def close_with(self, failure: ProtocolError, now_s: float) -> None:
        """End with an ERROR."""
        raise NotImplementedError


@final
class Holdings:
    """The memory that all connections together hold for their clients.

    When unfinished frames hold too much, the principal that holds most of it loses its connection that holds most. When too
    many RECEIPTs wait, reading pauses for connections with more than a small share of them.

    Attributes:
        frames_bytes: Bytes of unfinished frames.
        frames_bytes_max: Limit of these.
        frames_closed: Connections that were closed for that limit.
        frames_slow: Connections that were closed because a frame came too slowly.
        receipts_bytes: Bytes of RECEIPTs that wait.
        receipts_bytes_max: Limit of these.
        receipts_each_bytes_max: RECEIPTs that may wait for one connection now, before its reading pauses.
    """

    __slots__ = (
        "_reading_stopped",
        "_receipts_alone_bytes_max",
        "_receipts_share_bytes",
        "_unfinished",
        "frames_bytes",
        "frames_bytes_max",
        "frames_closed",
        "frames_slow",
        "receipts_bytes",
        "receipts_bytes_max",
        "receipts_each_bytes_max",
    )

    def __init__(self, limits: Limits) -> None:
        # the largest legal frame is never too much by itself
        largest = limits.frame_body_bytes_max + limits.frame_headers_bytes_max
        self.frames_bytes_max: Final = max(limits.frames_unfinished_bytes_max, largest)
        self.frames_bytes = 0
        self.frames_closed = 0
        self.frames_slow = 0
        self.receipts_bytes_max: Final = limits.receipts_pending_total_bytes_max
        self.receipts_bytes = 0
        self._receipts_alone_bytes_max: Final = limits.receipts_pending_bytes_max
        share = max(1, limits.receipts_pending_total_bytes_max // limits.connections_max)
        self._receipts_share_bytes: Final = min(share, limits.receipts_pending_bytes_max)
        self.receipts_each_bytes_max = limits.receipts_pending_bytes_max
        self._unfinished: Final[dict[FrameHolder, None]] = {}
        self._reading_stopped = False

    def count_receipts(self, added_bytes: int) -> None:
        """Record that one connection holds more, or less if negative, in RECEIPTs that wait."""
        self.receipts_bytes += added_bytes
        if self._reading_stopped:
            self.receipts_each_bytes_max = 0
        elif self.receipts_bytes < self.receipts_bytes_max:
            self.receipts_each_bytes_max = self._receipts_alone_bytes_max
        else:
            self.receipts_each_bytes_max = self._receipts_share_bytes

    def stop_reading(self, stopped: bool) -> None:
        """Have reading pause for all connections, whatever waits for them, or go on."""
        self._reading_stopped = stopped
        self.count_receipts(0)

    def count_frame(self, peer: FrameHolder, held_bytes: int, now_s: float) -> None:
        """Record how much a connection holds of an unfinished frame; 0 if it has none."""
        self.frames_bytes += held_bytes - peer.unfinished_bytes
        peer.unfinished_bytes = held_bytes
        if held_bytes:
            self._unfinished[peer] = None
        else:
            self._unfinished.pop(peer, None)
        while self.frames_bytes > self.frames_bytes_max:
            self._close_largest(now_s)

    def check_pace(self, now_s: float) -> None:
        """Close connections whose unfinished frame comes too slowly. To be called about once a second."""
        for peer in list(self._unfinished):
            peer.check_pace(now_s)

    def _close_largest(self, now_s: float) -> None:
        shares: dict[str, int] = {}
        for peer in self._unfinished:
            shares[peer.principal] = shares.get(peer.principal, 0) + peer.unfinished_bytes
        most = max(shares.values())
        largest: FrameHolder | None = None
        for peer in self._unfinished:
            if shares[peer.principal] == most and (largest is None or peer.unfinished_bytes > largest.unfinished_bytes):
                largest = peer
        if largest is None:
            raise AssertionError("bytes are held by no connection")
        self.frames_closed += 1
        failure = ProtocolError(
            "unfinished frames too large",
            f"the unfinished frames of all connections hold {self.frames_bytes} bytes, more than {self.frames_bytes_max} "
            f"(limit frames_unfinished_bytes_max). The principal holds {most} of them, the most, and this connection "
            f"{largest.unfinished_bytes}. Finish each frame before beginning others, and reconnect",
        )
        largest.close_with(failure, now_s)
