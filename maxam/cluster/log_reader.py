"""Reads the log of a cluster for a member that follows: each entry is checked and handed on, and each head is reported."""

import threading
from collections.abc import Callable
from typing import Final, Protocol, final

from maxam.cluster.entry import Entry, EntryError, read_entry
from maxam.cluster.log import Head, Log, LogDamagedError, LogError, LogLostError, LogTrimmedError
from maxam.cluster.logged import LoggedJournal
from maxam.cluster.placing import ForkedError
from maxam.cluster.steps import Steps
from maxam.errors import MaxamError

_HOLD_S: Final = 0.02  # between two checks whether the disk or the event loop has caught up
_RETRY_S: Final = 0.5  # before the log is read again after an error


class Heads(Protocol):
    """Learns what the reader finds, on its thread."""

    def saw(self, head: Head) -> None:
        """Take a head of the log."""

    def failed(self, error: MaxamError) -> None:
        """Record that the engine gave no answer, or a wrong one. It is tried again."""

    def trimmed(self) -> None:
        """Record that the log has forgotten the next entry. The reader ends."""

    def diverged(self) -> None:
        """Record that the next entry does not follow the own journal. The reader ends."""


@final
class LogReader:
    """Reads the log on a thread of the caller.

    Attributes:
        damaged: Text of the newest entry that could not be taken; empty since one was.
    """

    def __init__(self, log: Log, logged: LoggedJournal, steps: Steps, heads: Heads) -> None:
        """Prepare to read.

        Args:
            log: Of the cluster.
            logged: Knows the place that was reached.
            steps: Takes the entries.
            heads: Learns of heads and errors.
        """
        self.damaged = ""
        self._log: Final = log
        self._logged: Final = logged
        self._steps: Final = steps
        self._heads: Final = heads
        self._stopping: Final = threading.Event()

    def stop(self) -> None:
        """Have `run` end soon."""
        self._stopping.set()

    def run(self) -> None:
        """Read after the place that was reached, until `stop`, or until the next entry is forgotten or does not follow."""
        while not self._stopping.is_set():
            try:
                self._follow()
            except LogTrimmedError:
                self._heads.trimmed()
                return
            except ForkedError:
                self._heads.diverged()
                return
            except (LogError, EntryError) as error:
                if not isinstance(error, LogLostError):
                    self.damaged = str(error)
                if not self._stopping.is_set():
                    self._heads.failed(error)
                self._stopping.wait(_RETRY_S)

    def _follow(self) -> None:
        for found in self._log.follow(self._logged.place.index + 1):
            if self._stopping.is_set():
                return
            if isinstance(found, Head):
                self._heads.saw(found)
            elif found is not None:
                self._take(read_entry(found), len(found))

    def _take(self, entry: Entry, size: int) -> None:
        while self._steps.full:
            if self._stopping.wait(_HOLD_S):
                return
        if self._logged.follow(entry, size, self._steps):
            self.damaged = ""


def entry_reader(log: Log) -> Callable[[int], Entry]:
    """Return a function that reads the entry of an index. It raises LogError."""

    def read(index: int) -> Entry:
        found = log.read(index, 1)
        if not found:
            raise LogLostError(f"the log does not show entry {index} yet")
        try:
            entry = read_entry(found[0])
        except EntryError as error:
            raise LogDamagedError(f"entry {index} is damaged: {error}") from error
        if entry.index != index:
            raise LogDamagedError(f"entry {entry.index} was read where {index} is")
        return entry

    return read
