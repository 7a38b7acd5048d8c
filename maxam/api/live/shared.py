"""The common state of all live streams of a gateway: how many there are, the rows and the counts that they share."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, final

import trio

from maxam.api.live.rows import RowCache
from maxam.api.live.window import Count
from maxam.api.parameters import EVERY_TOPIC
from maxam.globs import Glob

STREAMS_MAX: Final = 32  # half of the listener's connections
STREAMS_OF_PRINCIPAL_MAX: Final = 16  # ten tabs, and those that are just being closed
SLICE_NAMES: Final = 2000  # read before the event loop runs other tasks, in less than 1 ms


@final
class Live:
    """The common state of all live streams of a gateway."""

    def __init__(self, read_events: Callable[[bool], None]) -> None:
        """Begin without streams. `read_events` is called with True before the first stream, and with False after the last one."""
        self._read_events: Final = read_events
        self.rows: Final = RowCache()
        self.scanning: Final = trio.Lock()  # one batch of one window in each pass of the event loop
        self.counting: Final = trio.Lock()
        self._counts: Final[dict[str, Count]] = {}
        self._of_principal: Final[Counter[str]] = Counter()

    @property
    def streams(self) -> int:
        """Number of streams."""
        return self._of_principal.total()

    def denial(self, principal: str) -> str | None:
        """Return why the principal may have no further stream, or None."""
        theirs = self._of_principal[principal]
        if theirs >= STREAMS_OF_PRINCIPAL_MAX:
            return f"{theirs} live views of this principal are open already, which is the most; close one"
        return None

    @property
    def full(self) -> bool:
        """Whether all places of streams are taken."""
        return self.streams >= STREAMS_MAX

    @contextmanager
    def place(self, principal: str) -> Iterator[None]:
        """Count a stream while it lasts."""
        if not self.streams:
            self._read_events(True)
        self._of_principal[principal] += 1
        try:
            yield
        finally:
            self._of_principal[principal] -= 1
            if not self._of_principal[principal]:
                del self._of_principal[principal]
            if not self.streams:
                self._read_events(False)
                self.rows.clear()

    @contextmanager
    def count(self, glob: Glob, position: int) -> Iterator[Count | None]:
        """Lend the count of a glob, which all streams with this glob share. None for the glob of all topics.

        A new count begins at the topic event with the number `position`.
        """
        if glob.text == EVERY_TOPIC:
            yield None
            return
        count = self._counts.setdefault(glob.text, Count(glob, position))
        count.users += 1
        try:
            yield count
        finally:
            count.users -= 1
            if not count.users:
                del self._counts[glob.text]
