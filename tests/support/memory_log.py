"""A log in memory, for members in one process: the calls of several threads take effect one after the other."""

import threading
from collections.abc import Callable, Iterator

from maxam.cluster.log import Head, LogFullError, LogLostError, LogSize, LogTrimmedError, SupersededError, read_head


class MemoryLog:
    """Implements `Log`.

    Attributes:
        entries: Entries that are held, by index.
        outcomes: Taken one by one by the next swaps, before they happen: `before` loses the request, `after` the answer, `full` has no
            room. Without one a swap succeeds.
        lost: No call is answered.
        poll_s: Seconds after which `follow` yields None.
    """

    failures = 0

    def __init__(self, poll_s: float = 1.0) -> None:
        self.entries: dict[int, bytes] = {}
        self.outcomes: list[str] = []
        self.lost = False
        self.poll_s = poll_s
        self.members: dict[str, bytes] = {}
        self.swaps = 0
        self._data = b""
        self._version = 0
        self._closed = False
        self._changed = threading.Condition()

    def head(self) -> Head | None:
        """Return the head."""
        with self._changed:
            self._require_answer()
            return read_head(self._data, self._version) if self._data else None

    def append(self, entry: bytes, head: Head, before: Head | None) -> Head:
        """Append an entry and replace the head."""
        return self._swap(head, before, lambda: self.entries.__setitem__(head.index, entry))

    def beat(self, head: Head, before: Head) -> Head:
        """Replace the head alone."""
        return self._swap(head, before, lambda: None)

    def read(self, first: int, bytes_max: int) -> list[bytes]:
        """Return entries from an index on."""
        with self._changed:
            self._require_answer()
            return self._read(first, bytes_max)

    def follow(self, first: int) -> Iterator[bytes | Head | None]:
        """Yield entries and heads as they come."""
        version = -1
        while True:
            with self._changed:
                if self._version == version:
                    self._changed.wait(self.poll_s)
                self._require_answer()
                entries = self._read(first, 1 << 20)
                head = read_head(self._data, self._version) if self._data else None
                whole = head is not None and first + len(entries) > head.index
            yield from entries
            first += len(entries)
            if head is not None and whole and head.version != version:
                version = head.version
                yield head
            elif not entries:
                yield None

    def trim(self, last: int) -> None:
        """Forget entries."""
        with self._changed:
            self._require_answer()
            for index in [one for one in self.entries if one <= last]:
                del self.entries[index]

    def announce(self, name: str, text: bytes) -> None:
        """Publish a member."""
        with self._changed:
            self._require_answer()
            self.members[name] = text

    def announced(self) -> dict[str, bytes]:
        """Return all members."""
        with self._changed:
            self._require_answer()
            return dict(self.members)

    def forget(self, name: str) -> None:
        """Remove a member."""
        with self._changed:
            self._require_answer()
            self.members.pop(name, None)

    def size(self) -> LogSize:
        """Return the size of the entries."""
        with self._changed:
            self._require_answer()
            held = sum(map(len, self.entries.values()))
            return LogSize(held, held, 0, (("memory", "1"),))

    def close(self) -> None:
        """End all calls."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _swap(self, head: Head, before: Head | None, store: Callable[[], None]) -> Head:
        with self._changed:
            self._require_answer()
            outcome = self.outcomes.pop(0) if self.outcomes else ""
            if outcome == "before":
                raise LogLostError("the request was lost")
            if outcome == "full":
                raise LogFullError("no room")
            if self._data == head.encode():
                return read_head(self._data, self._version)
            if self._version != (0 if before is None else before.version):
                raise SupersededError(read_head(self._data, self._version))
            self._data = head.encode()
            self._version += 1
            self.swaps += 1
            store()
            self._changed.notify_all()
            if outcome == "after":
                raise LogLostError("the answer was lost")
            return read_head(self._data, self._version)

    def _read(self, first: int, bytes_max: int) -> list[bytes]:
        oldest = min(self.entries, default=0)
        if first < oldest:
            raise LogTrimmedError(oldest)
        found: list[bytes] = []
        while first in self.entries and sum(map(len, found)) < bytes_max:
            found.append(self.entries[first])
            first += 1
        return found

    def _require_answer(self) -> None:
        if self.lost or self._closed:
            raise LogLostError("the log gives no answer")
