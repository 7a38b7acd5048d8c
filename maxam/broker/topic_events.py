"""The one feed of what happens to topics: which got a value and had none, which lost it, which were updated after their deadline.

A reader opens the feed, takes the events from its queue, and closes it. While there is no reader, an event costs a check of one list.
"""

from collections import deque
from typing import Final, final

from maxam.broker.session import Topic

# Kinds of events. A change may cause two: an overdue topic is deleted.
APPEARED: Final = 1  # it had no value, and has got one
GONE: Final = 2  # it was deleted
UPDATED: Final = 3  # it was overdue, and has changed

EVENTS_MAX: Final = 32_768  # events that wait for one reader: some seconds of the most that can come

TopicEvent = tuple[
    Topic, int, int
]  # topic, kind, and when the overdue value was accepted (microseconds since the epoch; else 0)


@final
class TopicReader:
    """The queue of one reader. If it is not emptied in time, the oldest events are lost.

    Attributes:
        events: The events, oldest first.
        end: Number of events since the reader was opened, lost ones and those that were taken included.
    """

    __slots__ = ("end", "events")

    def __init__(self, events_max: int | None) -> None:
        self.events: Final[deque[TopicEvent]] = deque(maxlen=events_max)
        self.end = 0

    def since(self, position: int, events_max: int) -> list[TopicEvent] | None:
        """Return the first events since `end` was `position`, without taking them; None if some of them were lost."""
        missed = self.end - position
        if missed > len(self.events):
            return None
        start = len(self.events) - missed
        return [self.events[at] for at in range(start, start + min(missed, events_max))]


@final
class TopicEvents:
    """The feed of one store."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: list[TopicReader] = []

    def __len__(self) -> int:
        """Count the readers."""
        return len(self._readers)

    def open(self, events_max: int | None = EVENTS_MAX) -> TopicReader:
        """Return a new reader, which gets the events from now on; None keeps all of them."""
        reader = TopicReader(events_max)
        self._readers.append(reader)
        return reader

    def close(self, reader: TopicReader) -> None:
        """End the events of a reader."""
        self._readers = [one for one in self._readers if one is not reader]

    def emit(self, topic: Topic, kind: int, overdue_us: int = 0) -> None:
        """Give all readers an event."""
        for reader in self._readers:
            reader.events.append((topic, kind, overdue_us))
            reader.end += 1
