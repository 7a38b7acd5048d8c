"""Rates: totals are what was counted, a topic's rate is its own count, and what is kept is bounded."""

from types import SimpleNamespace

import trio
from trio.testing import MockClock

from maxam.gateway import rates
from maxam.gateway.rates import HISTORY_SAMPLES, TOPICS_SHOWN_MAX, Rates
from maxam.gateway.senders import STREAK_MIN
from tests.support.sans_io import World, forget_deletes

WALL_US = 1_700_000_000_000_000


class Venue:
    """A broker with a publisher, and its measurement."""

    def __init__(self) -> None:
        self.world = World.make()
        self.publisher = self.world.client()
        self.rates = Rates(self.world.broker, [])
        self.world.broker.sampled = []
        self.now_s = 100.0
        self.sample()

    def sample(self) -> None:
        """Read the totals."""
        self.rates.sample(self.now_s, WALL_US + int(self.now_s * 1e6))

    def second(self, *names: str, draws: int = 5) -> None:
        """Let a second pass in which these topics are sent to, in batches with a draw from each."""
        share = -(-len(names) // draws)
        for draw in range(draws):
            for name in names[draw * share : (draw + 1) * share]:
                self.publisher.send(name)
            self.world.commit()
            self.rates.draw(self.now_s)
            self.now_s += 1 / draws
        self.sample()


def test_totals_are_averages_of_what_was_counted_over_the_interval() -> None:
    """Accepted SENDs, deliveries, ACKs and rejected SENDs, of the last two seconds; each second is kept."""
    venue = Venue()
    reader = venue.world.client()
    reader.subscribe("X/**", eager=True)
    venue.world.settle()
    venue.second("X/a", "X/a", "X/b", "Y", draws=1)
    venue.second("X/a", draws=1)
    for frame in reader.read():
        reader.ack(frame)
    venue.second(*["X/c"] * 9, draws=1)
    reader.read()
    venue.second(draws=1)
    totals = venue.rates.totals
    assert totals.interval_s == 2
    assert (totals.sends, totals.messages, totals.rejects) == (4.5, 1.5, 0.0)
    assert [(sends, messages) for _, sends, messages in venue.rates.history] == [(3, 0), (1, 0), (9, 2), (0, 1)]
    assert [at for at, _, _ in venue.rates.history] == [WALL_US + (101 + n) * 1_000_000 for n in range(4)]
    assert venue.world.broker.counters.acks == 2


def test_the_rate_of_a_hot_topic_is_its_own_count() -> None:
    """Topics are sampled at random and counted exactly, the hottest first. Those that have become quiet are left out."""
    venue = Venue()
    for _ in range(12):
        venue.second(*["X/hot"] * 50, *["X/warm"] * 20, *[f"X/{number}" for number in range(30)], draws=5)
    hot = venue.rates.hot_topics
    assert [topic.destination for topic in hot[:2]] == [b"X/hot", b"X/warm"]
    assert [round(topic.updates_per_s, 6) for topic in hot[:2]] == [50, 20]
    assert all(round(topic.updates_per_s, 6) == 1 for topic in hot[2:])
    for _ in range(12):
        venue.second("X/warm")
    assert [(topic.destination, round(topic.updates_per_s, 6)) for topic in venue.rates.hot_topics] == [(b"X/warm", 1)]


def test_a_topic_that_is_deleted_or_made_anew_is_not_told_of_as_it_was() -> None:
    """Without a value it is not hot; another topic of its name has a count of its own."""
    venue = Venue()
    for _ in range(3):
        venue.second(*["X/a"] * 10)
    assert [topic.destination for topic in venue.rates.hot_topics] == [b"X/a"]
    venue.publisher.send("X/a", b"")
    venue.world.commit()
    venue.second()
    assert venue.rates.hot_topics == []
    forget_deletes(venue.world.broker.store)
    for _ in range(12):
        venue.second(*["X/a"] * 5)
    (topic,) = venue.rates.hot_topics
    assert round(topic.updates_per_s, 6) == 5


def test_what_is_kept_is_bounded() -> None:
    """For any number of topics, a limited number is watched and shown, and a batch is held until the next draw at most."""
    venue = Venue()
    for second in range(HISTORY_SAMPLES + 5):
        venue.second(*[f"X/{second % 3}.{number}" for number in range(100)], draws=2)
        assert len(venue.rates._watched) <= rates._TOPICS_KEPT_MAX + 2 * rates._DRAWN_MAX
        assert len(venue.rates.hot_topics) <= TOPICS_SHOWN_MAX
        assert venue.world.broker.sampled == []
    assert len(venue.rates.history) == HISTORY_SAMPLES


def test_a_topic_counts_its_changes() -> None:
    """Values and deletes, also those that a recovery reads back."""
    world = World.make()
    client = world.client()
    for body in (b"1", b"2", b"", b"3"):
        client.send("X/a", body)
    world.commit()
    assert world.broker.store.topics[b"X/a"].updates == 4
    assert world.restart().broker.store.topics[b"X/a"].updates == 4


def test_the_rates_of_a_session_are_those_since_the_last_check() -> None:
    """Also after a time without traffic. Before the second check they are unknown, and an idle session is not busy."""
    world = World.make()
    client = world.client()
    known: list[tuple[float | None, float | None]] = []
    busy: list[list[float]] = []

    async def measure() -> None:
        found = Rates(world.broker, [SimpleNamespace(number=7, peer=client.peer)])  # type: ignore[list-item]
        for sends in (3, 6, 0, 0, 4):
            for _ in range(sends):
                client.send("X/a")
            await found.measure_sessions()
            known.append(found.of(7))
            busy.append([session.sends_per_s for session in found.busy_sessions])
            await trio.sleep(2)

    trio.run(measure, clock=MockClock(autojump_threshold=0))
    assert known == [(None, None), (3.0, 0.0), (0.0, 0.0), (0.0, 0.0), (2.0, 0.0)]
    assert busy == [[], [3.0], [], [], [2.0]]


def test_a_rejected_send_is_found_in_a_session_that_was_idle() -> None:
    """Health hears of it although the connection was skipped while it sent nothing."""
    world = World.make()
    client = world.client()

    async def measure() -> list[str]:
        found = Rates(world.broker, [SimpleNamespace(number=7, peer=client.peer)])  # type: ignore[list-item]
        for sends in (0, 0, STREAK_MIN):
            for _ in range(sends):
                client.send("Y/a")
            await found.measure_sessions()
            await trio.sleep(2)
        return [text.partition(":")[0] for text in found.senders.degraded(trio.current_time())]

    assert "sends-rejected" in trio.run(measure, clock=MockClock(autojump_threshold=0))
