"""The newest entries of the log of a cluster, for fronts that outlive their leader.

The next leader sends such a front the entries that it lacks. Their origins show which of its operations are in the log, and it hands
over the others again. So each member that may lead keeps these entries. One that has just taken its place reads them from the log:
its journal has no origins.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

from maxam.broker.origins import ENDED, read_origins
from maxam.cluster.entry import BLOCK, PROOF, Entry, EntryError, read_entry, same_position
from maxam.cluster.log import Log, LogDamagedError, LogTrimmedError
from maxam.cluster.ring import RING_BYTES
from maxam.journal.encoding import Position

_ENTRY_BYTES: Final = 500  # of memory, beside payload and origins
_READ_BYTES: Final = 4_194_304  # of entries, at a time


@final
class RecentEntries:
    """The newest blocks and proofs of a log. Its methods may be called on any thread.

    Attributes:
        hold_s: For how long fronts keep their clients without a leader.
    """

    def __init__(
        self,
        keep_s: float,
        hold_s: float = 0.0,
        bytes_max: int = RING_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing.

        Args:
            keep_s: How long an entry, and the end of a front, is kept.
            hold_s: For how long fronts keep their clients without a leader.
            bytes_max: Limit on the entries. The oldest go first.
            monotonic: Clock, seconds.
        """
        self.hold_s: Final = hold_s
        self._keep_s: Final = keep_s
        self._bytes_max: Final = bytes_max
        self._monotonic: Final = monotonic
        self._entries: Final[deque[tuple[Entry, float]]] = deque()  # and when each was taken
        self._bytes = 0
        self._ended: Final[dict[bytes, float]] = {}  # fronts that a gateway has ended, and when; oldest first
        self._lock: Final = threading.Lock()

    def take(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        if entry.kind not in {BLOCK, PROOF}:
            return
        now_s = self._monotonic()
        with self._lock:
            entries = self._entries
            if entries and not same_position(entries[-1][0].after, entry.before):  # the log was trimmed in between
                self._forget(len(entries))
            entries.append((entry, now_s))
            self._bytes += _size(entry)
            while entries and (self._bytes > self._bytes_max or now_s - entries[0][1] > self._keep_s):
                self._forget(1)
            for origin in read_origins(entry.origins):
                if origin.done == ENDED:
                    self._ended.pop(origin.front, None)  # the oldest stays first
                    self._ended[origin.front] = now_s
            while self._ended and now_s - self._ended[oldest := next(iter(self._ended))] > self._keep_s:
                del self._ended[oldest]

    def ended(self, front: bytes) -> bool:
        """Return True if a gateway has ended a front, and freed its sessions."""
        with self._lock:
            return front in self._ended

    def between(self, begin: Position, end: Position) -> list[Entry] | None:
        """Return the blocks from one position to another, with the proofs at and between them. None if some are not kept."""
        with self._lock:
            kept = [entry for entry, _ in self._entries]
        found: list[Entry] = []
        reached = begin
        for entry in kept:
            if same_position(entry.before, reached):
                if entry.kind == BLOCK and same_position(reached, end):
                    break
                found.append(entry)
                reached = entry.after
        return found if same_position(reached, end) else None

    def read_back(self, log: Log, first: int) -> None:
        """Take the entries before an index, as far as the log holds them. Raises LogError."""
        with self._lock:
            self._forget(len(self._entries))
        index = 1
        while index < first:
            try:
                found = log.read(index, _READ_BYTES)
            except LogTrimmedError as error:
                index = max(index + 1, error.first)
                continue
            for data in found:
                try:
                    entry = read_entry(data)
                except EntryError as error:
                    raise LogDamagedError(f"entry {index} is damaged: {error}") from error
                if index < first:
                    self.take(entry)
                index += 1
            if not found:
                return

    def _forget(self, count: int) -> None:
        """Forget the oldest entries. The lock is held."""
        for _ in range(count):
            entry, _ = self._entries.popleft()
            self._bytes -= _size(entry)


def _size(entry: Entry) -> int:
    return len(entry.payload) + len(entry.origins) + _ENTRY_BYTES
