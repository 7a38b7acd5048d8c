"""When connections send on the event loop: after the publishers' frames, in passes of bounded time.

Theory of operation. A connection that has something to send is *scheduled*: the scheduler calls it once. For a commit it does so where
the commit loop acts on the outcome. Waking a writer's task costs as much as sending one message. A pass ends after SEND_S. The task of the commit loop continues with the rest in later passes.

A client that acknowledges one message to get the next can wait for a moment: what it then gets is newer. So readers of connections that
do not publish wait for a pass, and a hundred slow consumers leave most of the loop to publishers.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

import trio

from maxam.gateway.feed_limiter import FeedLimiter

# Connections that may take ACKs and send the next message in one pass of the loop. Each takes some 20 us, for which a publisher's frame
# waits. A pass itself costs as much as one of them.
READERS_PER_PASS: Final = 8
_PASS_S: Final = 0.0002  # READERS_PER_PASS take this long: while they come more slowly, none waits
# Time that one pass of the loop spends on sending: 10,000 idle subscribers take 0.4 s, and the rest can wait.
SEND_S: Final = 0.005
_SENT_PER_CHECK: Final = 16  # connections between two reads of the clock


@final
class DeliveryScheduler:
    """The order in which connections send. `run` must be called once in each pass of the loop after `notify` was called.

    Attributes:
        feeds: The limit on expensive frames.
    """

    __slots__ = ("_clock", "_committing", "_due", "_let_through", "_notify", "_put", "_since_s", "_waiting", "feeds")

    def __init__(self, notify: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with nothing due; `notify` is called when `run` has something to do. `clock` returns seconds."""
        self._notify: Final = notify
        self._clock: Final = clock
        self.feeds: Final = FeedLimiter(notify, clock)
        self._due: Final[deque[Callable[[], None]]] = deque()
        self._put = self._due.append
        self._committing = False  # `end_commit` sends what becomes due
        self._waiting: Final[dict[trio.lowlevel.Task, None]] = {}  # readers, first come, first served
        self._since_s = 0.0
        self._let_through = 0  # readers since then

    # Sending.

    def schedule(self, send: Callable[[], None]) -> None:
        """Have `send` called once, after all that were scheduled before. It sends what is due for its connection, without waiting."""
        self._put(send)
        if not self._committing:
            self._notify()

    def begin_commit(self) -> None:
        """Record that a commit is about to make deliveries due, which `end_commit` sends."""
        self._committing = True

    def begin_receipts(self) -> None:
        """Record that RECEIPTs are about to become due. Until `begin_changes` they leave before all else."""
        self._put = self._due.appendleft

    def begin_changes(self) -> None:
        """Record that deliveries are about to become due, which leave after all that was due before."""
        self._put = self._due.append

    def end_commit(self) -> None:
        """Send what the commit made due, for SEND_S; `run` continues with the rest."""
        self._committing = False
        self._send()

    def send_all(self) -> None:
        """Send all that is due, however long it takes: `run` is not called again."""
        while self._due:
            self._due.popleft()()

    def _send(self) -> None:
        due = self._due
        until_s = self._clock() + SEND_S
        while due:
            for _ in range(min(_SENT_PER_CHECK, len(due))):
                due.popleft()()
            if due and self._clock() >= until_s:
                self._notify()
                return

    # Reading.

    async def admit_reader(self) -> None:
        """Wait until a connection that does not publish may read: no time while few ask."""
        if not self._waiting:
            now_s = trio.current_time()
            if now_s - self._since_s >= _PASS_S:
                self._since_s = now_s
                self._let_through = 0
            self._let_through += 1
            if self._let_through <= READERS_PER_PASS:
                return
            self._notify()
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def leave(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def run(self) -> bool:
        """Do the work of one pass: send, and let readers and expensive frames through. Return whether to call it in the next pass."""
        if self._due:
            self._send()
        for _ in range(min(READERS_PER_PASS, len(self._waiting))):
            task = next(iter(self._waiting))
            del self._waiting[task]
            trio.lowlevel.reschedule(task)
        feeding = self.feeds.release()
        return feeding or len(self._waiting) > 0 or len(self._due) > 0
