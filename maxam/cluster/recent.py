"""The newest entries of the log of a cluster, and how far they settle the operations of each front.

A front on another machine outlives its leader. The next leader sends it the entries that it lacks, and takes the operations that no
entry settles. So each member that may lead keeps both. A member that has just taken its place reads them from the log before it may
claim: its journal has no origins.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, final

from maxam.broker.origins import read_origins
from maxam.cluster.entry import BLOCK, PROOF, Entry, EntryError, read_entry, same_position
from maxam.cluster.log import Log, LogDamagedError, LogTrimmedError
from maxam.cluster.ring import RING_BYTES
from maxam.journal.encoding import Position

_ENTRY_BYTES: Final = 500  # of memory, beside payload and origins
_READ_BYTES: Final = 4_194_304  # of entries, at a time


@final
class RecentEntries:
    """The newest blocks and proofs of a log. Its methods may be called on any thread."""

    def __init__(
        self, keep_s: float, bytes_max: int = RING_BYTES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with nothing.

        Args:
            keep_s: How long an entry, and the newest origin of a front, is kept.
            bytes_max: Limit on the entries. The oldest go first.
            monotonic: Clock, seconds.
        """
        self._keep_s: Final = keep_s
        self._bytes_max: Final = bytes_max
        self._monotonic: Final = monotonic
        self._entries: Final[deque[tuple[Entry, float]]] = deque()  # and when each was taken
        self._bytes = 0
        self._done: Final[dict[bytes, tuple[int, float]]] = {}  # of each front, the oldest origin first
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
            while self._bytes > self._bytes_max or now_s - entries[0][1] > self._keep_s:
                self._forget(1)
            for origin in read_origins(entry.origins):
                before, _ = self._done.pop(origin.front, (0, 0.0))
                self._done[origin.front] = (max(before, origin.done), now_s)
            while self._done and now_s - (oldest := next(iter(self._done.items())))[1][1] > self._keep_s:
                del self._done[oldest[0]]

    def done(self, front: bytes) -> int:
        """Return the number up to which the log settles the operations of a front; 0 if it has none, ENDED if the front was ended."""
        with self._lock:
            return self._done.get(front, (0, 0.0))[0]

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
