"""The published values and those that each subscriber received, so that they can be compared."""

from collections import Counter, deque
from typing import Final, final

HEADER: Final = "demo"  # on every SEND: run, place in the topic's order, when sent (monotonic seconds)
AGES_KEPT: Final = 200  # newest ages that the figures are of


@final
class Published:
    """The publisher's side.

    Attributes:
        newest: Per topic, how many values were sent to it so far.
        accepted: Per topic, the place of the last value that the gateway accepted.
        sent: SENDs in all.
        rejected: Of them, those that the gateway refused.
        reason: Why it refused the last of those.
    """

    def __init__(self, run: str) -> None:
        self._run: Final = run
        self.newest: Final[Counter[str]] = Counter()
        self.accepted: Final[dict[str, int]] = {}
        self.sent = 0
        self.rejected = 0
        self.reason = ""
        self.latencies_s: Final[deque[float]] = deque(maxlen=AGES_KEPT)

    def sending(self, destination: str, now_s: float) -> tuple[int, dict[str, str]]:
        """Count a value; return its place in the topic's order, and the headers to send with it."""
        self.sent += 1
        self.newest[destination] += 1
        place = self.newest[destination]
        return place, {HEADER: f"{self._run} {place} {now_s:.6f}"}

    def read(self, header: str) -> tuple[int, float] | None:
        """Return the place and the time of sending out of a header. None if it is of another run."""
        match header.split(" "):
            case [run, place, sent_s] if run == self._run:
                return int(place), float(sent_s)
            case _:
                return None


@final
class Received:
    """A subscriber's side.

    Attributes:
        messages: How many came.
        skipped: Values that came before one that was received, and were not: newer ones had replaced them. The
            subscription must be older than the first value.
        behind: How many values of its topic were newer than the last one that came, when it came.
        ages_s: How long before they came the newest values had been sent. A value that came before does not count.
        older: Messages with an older value than one that came before.
        overwritten: Topics where another publisher's value came after one of ours.
    """

    def __init__(self, published: Published, suffix: str) -> None:
        """Measure against `published`, for topics that end with `suffix`."""
        self._published: Final = published
        self._suffix: Final = suffix
        self._places: Final[dict[str, int]] = {}
        self.messages = 0
        self.skipped = 0
        self.behind = 0
        self.older = 0
        self.overwritten: Final[set[str]] = set()
        self.ages_s: Final[deque[float]] = deque(maxlen=AGES_KEPT)

    def take(self, destination: str, header: str, now_s: float) -> float | None:
        """Count a message by the header that it carries. One of another run counts as a message only.

        Returns:
            When the value was sent, or None if it is no newer one of this run.
        """
        self.messages += 1
        read = self._published.read(header)
        if read is None:
            if destination in self._places:  # else it is from before this run
                self.overwritten.add(destination)
            return None
        place, sent_s = read
        known = self._places.get(destination, 0)
        self.behind = self._published.newest[destination] - place
        if place <= known:
            self.older += place < known
            return None
        self.skipped += place - known - 1
        self._places[destination] = place
        self.ages_s.append(now_s - sent_s)
        return sent_s

    def place(self, destination: str) -> int:
        """Return the place of the newest value of a topic that came; 0 if none did."""
        return self._places.get(destination, 0)

    @property
    def surplus(self) -> int:
        """How many more values were sent to its topics than messages came."""
        newest = self._published.newest
        return max(0, sum(newest[topic] for topic in newest if topic.endswith(self._suffix)) - self.messages)

    def stale(self) -> int:
        """Return how many topics it does not know the last accepted value of."""
        accepted = self._published.accepted
        return sum(
            self._places.get(destination, 0) < place
            for destination, place in accepted.items()
            if destination.endswith(self._suffix)
        )


def share(values: deque[float], part: float) -> float:
    """Return the value below which `part` of the values lie; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0
