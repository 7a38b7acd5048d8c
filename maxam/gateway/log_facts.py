"""The facts about the log of a cluster, on their way from the threads that call it to the event loop."""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from maxam.cluster.log import Head, LogFullError
from maxam.cluster.member import Member
from maxam.cluster.wishes import Wish
from maxam.errors import MaxamError
from maxam.gateway.commit_times import SHOWN_BOUNDS_S
from maxam.metrics import Histogram

SLOW_S: Final = 1.0  # a write of the log that takes longer is shown
_SLOW_SHOWN_S: Final = 60.0  # after it


class _Report(Protocol):
    def __call__(self, event: str, level: int = logging.INFO, **facts: object) -> None: ...


@final
class LogFacts:
    """Reports to `Member` how the calls of the log end. It implements `Swaps` and `Heads`. Any thread may call.

    Attributes:
        problem: Of the engine; empty while it answers.
        write_times: Histogram of the seconds that a write of the log takes.
    """

    __slots__ = ("_began_s", "_code", "_machine", "_report", "_report_fact", "_slow", "problem", "write_times")

    def __init__(
        self, machine: Member, report_fact: Callable[[Callable[[], list[Wish]]], None], report: _Report
    ) -> None:
        """Report to a machine.

        Args:
            machine: Of the member.
            report_fact: Has the event loop call a function and fulfil the wishes that it returns.
            report: Logs an event.
        """
        self.problem = ""
        self.write_times: Final = Histogram(SHOWN_BOUNDS_S)
        self._machine: Final = machine
        self._report_fact: Final = report_fact
        self._report: Final = report
        self._began_s = 0.0  # when the swap under way began
        self._code = ""  # of the problem
        self._slow = 0.0, 0.0  # when the last slow write ended, and its seconds

    def unready(self) -> list[str]:
        """Return why the log takes nothing. A leader without a proof asks."""
        why = f" ({self.problem})" if self.problem else ""
        if self._code == LogFullError.code:
            return [f"log-full: the log takes no entries{why}. Give etcd room, then end its alarm NOSPACE"]
        return [f"log-lost: the log of the cluster gives no answer{why}"]

    def degraded(self) -> list[str]:
        """Return what an operator should repair at the engine."""
        found = self.unready() if self.problem else []
        at_s, seconds = self._slow
        if time.monotonic() - at_s < _SLOW_SHOWN_S and seconds:
            found.append(f"log-slow: a write of the log took {seconds:.1f} s. Check the disks of etcd")
        return found

    def began(self, at_s: float) -> None:
        """Record that a swap begins."""
        self._began_s = at_s
        self._report_fact(lambda: self._begin(at_s))

    def succeeded(self, head: Head) -> None:
        """Record that a swap is in the log."""
        self.problem = self._code = ""
        now_s = time.monotonic()
        seconds = now_s - self._began_s
        self.write_times.observe(seconds)
        if seconds >= SLOW_S:
            self._slow = now_s, seconds
        self._report_fact(lambda: self._machine.swap_succeeded(now_s, head))

    def superseded(self, head: Head | None) -> None:
        """Record that another member leads."""
        now_s = time.monotonic()
        self._report_fact(lambda: self._machine.superseded(now_s, head))

    def refused(self, error: LogFullError) -> None:
        """Record that the log is full."""
        now_s = time.monotonic()
        self._note(error)
        self._report_fact(lambda: self._machine.refused(now_s))

    def saw(self, head: Head) -> None:
        """Record a head of the log."""
        self.problem = ""
        now_s = time.monotonic()
        self._report_fact(lambda: self._machine.head_seen(now_s, head))

    def failed(self, error: MaxamError) -> None:
        """Record that the engine gave no answer, or a wrong one."""
        self._note(error)
        now_s = time.monotonic()
        self._report_fact(lambda: self._machine.engine_failed(now_s))

    def trimmed(self) -> None:
        """Record that the log has forgotten the next entry."""
        self._report_fact(self._machine.fell_behind)

    def diverged(self) -> None:
        """Record that the log does not continue the own journal. The next start finds out whether that is forked."""
        self._report_fact(self._machine.diverged)

    def _note(self, error: MaxamError) -> None:
        if not self.problem or self._code != error.code:
            self._report(error.code, logging.WARNING, error=error)
        self.problem, self._code = str(error), error.code

    def _begin(self, at_s: float) -> list[Wish]:
        self._machine.swap_began(at_s)
        return []
