"""When deliveries have their turn on the event loop: after the publishers' frames, and no task later than needed.

Two things follow from there being a newest value only. What a commit has made due goes out where the commit is acted on: to wake a
writer's task for it costs as much as the sending. And who acknowledges one message to get the next can wait for a moment, as what
it then gets is the newer for it: so a hundred slow consumers take what publishers leave of the loop, and at least a share of each pass.
"""

from collections.abc import Callable
from typing import Final, final

import trio

# Connections that may take ACKs and be handed the next message in one pass of the loop. Some 20 us each: what a publisher's frame
# waits for them a pass, while each pass costs as much as one of them.
TURNS_PER_PASS: Final = 8
_PASS_S: Final = 0.0002  # as long as so many turns take: while they come slower than that nobody waits


@final
class Deliveries:
    """The order of deliveries among each other and behind everything else. `release` must be called once a pass while `waiting`."""

    def __init__(self, more: Callable[[], None]) -> None:
        """Begin with nobody; `more` is called when somebody waits for `release`."""
        self._more: Final = more
        self._gathered: list[Callable[[], None]] | None = None
        self._waiting: Final[dict[trio.lowlevel.Task, None]] = {}  # first come, first served
        self._since_s = 0.0
        self._turns = 0  # since then

    # What a commit makes due.

    def gather(self) -> None:
        """Begin to note who has something to send, until `hand_out`."""
        self._gathered = []

    def note(self, hand_out: Callable[[], None]) -> bool:
        """Have `hand_out` called at the end of what is under way; False when nothing is, and a task must be woken."""
        if self._gathered is None:
            return False
        self._gathered.append(hand_out)
        return True

    def hand_out(self) -> None:
        """Call what was noted."""
        gathered, self._gathered = self._gathered or [], None
        for hand_out in gathered:
            hand_out()

    # What ACKs ask for.

    async def turn(self) -> None:
        """Wait until it is the caller's turn to ask for deliveries: at once as long as few do."""
        if not self._waiting:
            now_s = trio.current_time()
            if now_s - self._since_s >= _PASS_S:
                self._since_s = now_s
                self._turns = 0
            self._turns += 1
            if self._turns <= TURNS_PER_PASS:
                return
            self._more()
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def leave(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def release(self) -> bool:
        """Give those who have waited longest their turn, as many as a pass bears; return whether others wait on."""
        for _ in range(min(TURNS_PER_PASS, len(self._waiting))):
            task = next(iter(self._waiting))
            del self._waiting[task]
            trio.lowlevel.reschedule(task)
        return len(self._waiting) > 0
