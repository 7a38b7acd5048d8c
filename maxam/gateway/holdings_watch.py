"""Close connections whose frames come too slowly, and report when clients make the broker hold much for them."""

import logging
from typing import Final, final

import trio

from maxam.gateway.holdings import Holdings
from maxam.gateway.log import log_event

_LOOK_S: Final = 1.0
_CALM_S: Final = 60.0  # without a connection closed for `frames_unfinished_bytes_max`: then that is over
_RECEIPTS_AGAIN: Final = 0.5  # of the limit: with fewer bytes of RECEIPTs pending, reading is no longer restricted


@final
class HoldingsWatch:
    """Checks the holdings of all connections once a second.

    Attributes:
        frames_full: Connections were closed lately, as unfinished frames held too much.
        receipts_full: Too many RECEIPTs wait for clients, so that reading from them pauses.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings: Final = holdings
        self._closed = 0
        self._closed_at_s = 0.0
        self.frames_full = False
        self.receipts_full = False

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.look(trio.current_time())
            await trio.sleep(_LOOK_S)

    def look(self, now_s: float) -> None:
        """Close connections whose frame comes too slowly, and log what has changed."""
        holdings = self._holdings
        holdings.check_pace(now_s)
        closed = holdings.frames_closed - self._closed
        if closed:
            self._closed = holdings.frames_closed
            self._closed_at_s = now_s
        if closed and not self.frames_full:
            self.frames_full = True
            limit = holdings.frames_bytes_max
            action = "see which principal holds frames open; raise the limit if all are legitimate"
            log_event(
                logging.WARNING, "frames-unfinished", closed=closed, frames_unfinished_bytes_max=limit, action=action
            )
        elif self.frames_full and now_s - self._closed_at_s >= _CALM_S:
            self.frames_full = False
            log_event(logging.WARNING, "frames-unfinished-ended", closed=holdings.frames_closed)
        pending, limit = holdings.receipts_bytes, holdings.receipts_bytes_max
        if not self.receipts_full and pending >= limit:
            self.receipts_full = True
            action = "see whether the disk is slow, or clients do not read their RECEIPTs"
            log_event(
                logging.WARNING,
                "receipts-pending",
                pending=pending,
                receipts_pending_total_bytes_max=limit,
                action=action,
            )
        elif self.receipts_full and pending < limit * _RECEIPTS_AGAIN:
            self.receipts_full = False
            log_event(logging.WARNING, "receipts-pending-ended", pending=pending)

    def degraded(self) -> list[str]:
        """Return what operators should attend to, though the broker serves."""
        reasons = []
        holdings = self._holdings
        if self.frames_full:
            reasons.append(
                f"frames-unfinished: {holdings.frames_closed} connections were closed since the start, as unfinished frames "
                f"held more than {holdings.frames_bytes_max} bytes (frames_unfinished_bytes_max)"
            )
        if self.receipts_full:
            reasons.append(
                f"receipts-pending: {holdings.receipts_bytes} bytes of RECEIPTs wait for clients "
                f"(receipts_pending_total_bytes_max {holdings.receipts_bytes_max}). The broker reads less from each"
            )
        return reasons
