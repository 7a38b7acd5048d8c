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
class Streams:
    """The streams of one kind that are open."""

    def __init__(self, what: str) -> None:
        """Begin without any; `what` is their name for people."""
        self._what: Final = what
        self._of_principal: Final[Counter[str]] = Counter()

    @property
    def count(self) -> int:
        """Number of streams."""
        return self._of_principal.total()

    def denial(self, principal: str) -> str | None:
        """Return why the principal may have no further stream, or None."""
        theirs = self._of_principal[principal]
        if theirs >= STREAMS_OF_PRINCIPAL_MAX:
            return f"{theirs} {self._what} of this principal are open already, which is the most; close one"
        return None

    @property
    def full(self) -> bool:
        """Whether all places of streams are taken."""
        return self.count >= STREAMS_MAX

    @contextmanager
    def place(self, principal: str) -> Iterator[None]:
        """Count a stream while it lasts."""
        self._of_principal[principal] += 1
        try:
            yield
        finally:
            self._of_principal[principal] -= 1
            if not self._of_principal[principal]:
                del self._of_principal[principal]


@final
class Live:
    """The common state of all live streams of a gateway.

    Attributes:
        views: The open live views.
        values: The open streams of values.
        rows: The rows that views share.
    """

    def __init__(self, read_events: Callable[[bool], None]) -> None:
        """Begin without streams. `read_events` is called with True before the first view, and with False after the last one."""
        self._read_events: Final = read_events
        self.views: Final = Streams("live views")
        self.values: Final = Streams("streams of values")
        self.rows: Final = RowCache()
        self.scanning: Final = trio.Lock()  # one batch of one window in each pass of the event loop
        self.counting: Final = trio.Lock()
        self._counts: Final[dict[str, Count]] = {}

    @contextmanager
    def place(self, principal: str) -> Iterator[None]:
        """Count a view while it lasts."""
        if not self.views.count:
            self._read_events(True)
        try:
            with self.views.place(principal):
                yield
        finally:
            if not self.views.count:
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
