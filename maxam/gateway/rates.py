"""How much is going on: rates of the whole broker, of the topics that change most, and of the sessions that send and receive most.

Theory of operation. The only counters made for it are those of a topic's updates. Totals are read once a second. Hot topics are found
by drawing changes at random from batches as they are committed. A topic with a hundredth of all changes is drawn within a second or
so. Its reported rate is not estimated: it is its own count, over a few seconds. Sessions are checked one by one, in batches.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Final, final

import trio

from maxam.broker.broker import Broker
from maxam.broker.session import Topic
from maxam.gateway.senders import Senders
from maxam.gateway.server_connection import ServerConnection
from maxam.gateway.transport import Transport
from maxam.records import Change

SAMPLE_S: Final = 1.0
INTERVAL_S: Final = 2.0  # over which totals and sessions are averaged
HISTORY_SAMPLES: Final = 180
TOPICS_SHOWN_MAX: Final = 20
SESSIONS_SHOWN_MAX: Final = 20
_DRAW_INTERVAL_S: Final = 0.2  # between draws from a batch
_DRAWN_MAX: Final = 32  # of one
_TOPICS_KEPT_MAX: Final = 64  # the hottest; others that are drawn stay for a moment, so that they can be compared
_TOPIC_WINDOW_S: Final = 4.0  # a topic's rate is an average over this time at least, and twice it at most
_TOPIC_KNOWN_S: Final = 0.9  # before this it has none
_CONNECTIONS_PER_BATCH: Final = 500  # checked before the event loop runs other tasks: less than 1 ms
_random: Final = random.Random()  # noqa: S311  # draws, no secrets


@dataclass(frozen=True, slots=True)
class Totals:
    """The work of the broker in a second, on average.

    Attributes:
        interval_s: Length of the period. 0 before there was any.
        sends: SENDs accepted.
        messages: MESSAGE frames handed out.
        acks: ACK frames taken.
        rejects: SENDs rejected.
    """

    interval_s: float = 0.0
    sends: float = 0.0
    messages: float = 0.0
    acks: float = 0.0
    rejects: float = 0.0


@dataclass(frozen=True, slots=True)
class HotTopic:
    """A topic that changes often."""

    destination: bytes
    updates_per_s: float


@dataclass(frozen=True, slots=True)
class BusySession:
    """A session whose connection sends or receives."""

    principal: str
    client_id: str
    sends_per_s: float
    messages_per_s: float


@final
class _Watched:
    """A topic that may be hot, and its count at two moments: at first both are when it was drawn."""

    __slots__ = ("at_s", "before_s", "before_updates", "rate", "topic", "updates")

    def __init__(self, topic: Topic, now_s: float) -> None:
        self.topic: Final = topic
        self.before_s = self.at_s = now_s
        self.before_updates = self.updates = topic.updates
        self.rate = -1.0  # not known yet

    def measure(self, now_s: float) -> None:
        """Bring the rate up to date."""
        updates = self.topic.updates
        elapsed_s = now_s - self.before_s
        if elapsed_s >= _TOPIC_KNOWN_S:
            self.rate = (updates - self.before_updates) / elapsed_s
        if now_s - self.at_s >= _TOPIC_WINDOW_S:
            self.before_s, self.before_updates = self.at_s, self.updates
            self.at_s, self.updates = now_s, updates


@dataclass(slots=True)
class _Seen:
    """Numbers that a connection had sent and received at the last check, and their rates until then."""

    at_s: float
    sends: int
    messages: int
    rates: tuple[float | None, float | None] = (None, None)


_RATE: Final = attrgetter("rate")
_IDLE: Final = (0.0, 0.0)


def _load(session: BusySession) -> float:
    return session.sends_per_s + session.messages_per_s


def _measured(seen: _Seen, peer: ServerConnection, now_s: float, sends: int, messages: int) -> BusySession:
    """Bring the rates of a connection up to date and return its session."""
    elapsed_s = max(now_s - seen.at_s, 1e-3)
    sends_per_s, messages_per_s = (sends - seen.sends) / elapsed_s, (messages - seen.messages) / elapsed_s
    seen.at_s, seen.sends, seen.messages = now_s, sends, messages
    seen.rates = (round(sends_per_s, 1), round(messages_per_s, 1))
    return BusySession(peer.principal, peer.client_id, sends_per_s, messages_per_s)


@final
class Rates:
    """Measures while it runs.

    Attributes:
        as_of_us: When totals were last read; microseconds since the epoch.
        totals: Of the last seconds.
        history: Of the last minutes, oldest first: microseconds since the epoch, SENDs and MESSAGEs a second until then.
        hot_topics: The hottest first.
        busy_sessions: The busiest first.
        senders: Principals with rejected SENDs.
        fronts: Returns the busiest sessions of fronts. None without fronts.
    """

    def __init__(self, broker: Broker, connections: Iterable[Transport]) -> None:
        """Make one that knows nothing yet. `connections` are the living ones, at each check."""
        self._broker: Final = broker
        self._connections: Final = connections
        self._samples: Final[deque[tuple[float, int, int, int, int]]] = deque(maxlen=round(INTERVAL_S / SAMPLE_S) + 1)
        self._watched: dict[bytes, _Watched] = {}
        self._seen: dict[int, _Seen] = {}  # by number of the connection
        self.as_of_us = time.time_ns() // 1000
        self.totals = Totals()
        self.history: Final[deque[tuple[int, float, float]]] = deque(maxlen=HISTORY_SAMPLES)
        self.hot_topics: list[HotTopic] = []
        self.busy_sessions: list[BusySession] = []
        self.senders: Final = Senders()
        self.fronts: Callable[[], list[BusySession]] | None = None

    async def run(self) -> None:
        """Measure until cancelled."""
        self._broker.sampled = []
        sample_at_s = sessions_at_s = trio.current_time()
        while True:
            now_s = trio.current_time()
            self.draw(now_s)
            if now_s >= sample_at_s:
                self.sample(now_s, time.time_ns() // 1000)
                sample_at_s = now_s + SAMPLE_S
            if now_s >= sessions_at_s:
                await self.measure_sessions()
                sessions_at_s = now_s + INTERVAL_S
            await trio.sleep(_DRAW_INTERVAL_S)

    def draw(self, now_s: float) -> None:
        """Draw topics that may be hot from the newest batch."""
        batch = self._broker.sampled
        self._broker.sampled = []  # holds on to no batch for long, and none is drawn from twice
        if not batch:
            return
        topics = self._broker.store.topics
        for operation in _random.sample(batch, min(_DRAWN_MAX, len(batch))):
            if type(operation) is Change and operation.destination not in self._watched:
                topic = topics.get(operation.destination)
                if topic is not None:
                    self._watched[operation.destination] = _Watched(topic, now_s)

    def sample(self, now_s: float, wall_us: int) -> None:
        """Read the totals, and the counts of topics that may be hot."""
        counters = self._broker.counters
        rejects = counters.sends_invalid + counters.sends_unauthorised + counters.sends_unavailable
        read = (now_s, counters.changes + counters.sends_superseded, counters.messages, counters.acks, rejects)
        samples = self._samples
        if samples:
            last = samples[-1]
            elapsed_s = max(now_s - last[0], 1e-3)
            self.history.append((wall_us, (read[1] - last[1]) / elapsed_s, (read[2] - last[2]) / elapsed_s))
        samples.append(read)
        first = samples[0]
        interval_s = now_s - first[0]
        if interval_s > 0:
            self.totals = Totals(
                interval_s, *[(new - old) / interval_s for new, old in zip(read[1:], first[1:], strict=True)]
            )
        self.as_of_us = wall_us
        self._rank_topics(now_s)

    def _rank_topics(self, now_s: float) -> None:
        topics = self._broker.store.topics
        known: list[_Watched] = []
        fresh: dict[bytes, _Watched] = {}
        for destination, watched in self._watched.items():
            if topics.get(destination) is watched.topic and not watched.topic.change.deleted:
                watched.measure(now_s)
                if watched.rate < 0:
                    fresh[destination] = watched
                elif watched.rate > 0:
                    known.append(watched)
        known = nlargest(_TOPICS_KEPT_MAX, known, key=_RATE)
        self._watched = fresh | {watched.topic.destination: watched for watched in known}
        self.hot_topics = [HotTopic(one.topic.destination, one.rate) for one in known[:TOPICS_SHOWN_MAX]]

    def of(self, number: int) -> tuple[float | None, float | None]:
        """Return SENDs and MESSAGEs a second of the connection with this number; None before they are known."""
        seen = self._seen.get(number)
        return (None, None) if seen is None else seen.rates

    async def measure_sessions(self) -> None:
        """Find the busiest sessions. The event loop runs other tasks in between.

        Most connections of a large site are idle. One of those costs no more than a comparison.
        """
        seen: dict[int, _Seen] = {}
        busy: list[BusySession] = []
        now_s = trio.current_time()
        for at, client in enumerate(list(self._connections), 1):
            peer = client.peer
            if peer is not None and (connection := peer.connection) is not None:
                number, sends, messages = client.number, peer.sends, connection.messages
                before = self._seen.get(number)
                if before is None:
                    before = _Seen(now_s, sends, messages)
                    self.senders.count(number, sends, connection, now_s)
                elif before.sends == sends and before.messages == messages:
                    before.rates = _IDLE
                    before.at_s = now_s
                    if self.senders.watching:
                        self.senders.count(number, sends, connection, now_s)
                else:
                    self.senders.count(number, sends, connection, now_s)
                    busy.append(_measured(before, peer, now_s, sends, messages))
                seen[number] = before
            if at % _CONNECTIONS_PER_BATCH == 0:
                busy = nlargest(SESSIONS_SHOWN_MAX, busy, key=_load)
                await trio.lowlevel.checkpoint()
                now_s = trio.current_time()
        self._seen = seen
        if self.fronts is not None:
            busy += self.fronts()
        self.busy_sessions = nlargest(SESSIONS_SHOWN_MAX, busy, key=_load)
