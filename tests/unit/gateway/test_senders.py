"""Principals whose SENDs are rejected without their noticing."""

from typing import Any

from maxam.gateway import senders
from maxam.gateway.senders import PRINCIPALS_MAX, STREAK_MIN, WINDOW_S, Senders
from tests.support.sans_io import EVERYTHING, Client, World


class Venue:
    """Clients of one world, counted when a test wants it."""

    def __init__(self, *principals: str) -> None:
        rights: dict[str, Any] = dict.fromkeys(principals or ("anna",), EVERYTHING)
        self.world = World.make(**rights)
        self.senders = Senders()
        self.clients: list[Client] = []

    def client(self, principal: str = "anna", **headers: Any) -> Client:
        """Connect."""
        self.clients.append(self.world.client(principal, **headers))
        return self.clients[-1]

    def codes(self, after_s: float = 0.0) -> list[str]:
        """Count all connections, and return the codes that health has then."""
        self.world.now_s += after_s
        for number, client in enumerate(self.clients):
            assert client.peer.connection is not None
            self.senders.count(number, client.peer.sends, client.peer.connection, self.world.now_s)
        return [text.partition(":")[0] for text in self.senders.degraded(self.world.now_s)]


def test_a_principal_whose_sends_are_all_rejected_is_reported_until_one_is_accepted() -> None:
    """Ten rejected SENDs in a row, over any number of connections, are a line of health; one accepted ends it."""
    venue = Venue()
    client = venue.client()
    for _ in range(STREAK_MIN - 1):
        client.send("Y/a", receipt="r")
        assert venue.codes(1) == []
    other = venue.client()
    other.send("Y/a", receipt="r")
    assert venue.codes() == ["sends-rejected"]
    assert venue.codes(WINDOW_S) == ["sends-rejected"]
    client.send("X/a", receipt="r")
    assert venue.codes() == []
    client.send("Y/a", receipt="r")
    assert venue.codes() == []


def test_it_is_over_when_nothing_was_rejected_for_some_minutes() -> None:
    """A client that has given up is not reported for ever."""
    venue = Venue()
    client = venue.client()
    for _ in range(STREAK_MIN):
        client.send("Y/a")
    assert venue.codes() == ["sends-rejected", "rejections-unheard"]
    assert venue.codes(WINDOW_S + 1) == []


def test_a_principal_that_asks_for_no_receipt_is_reported_with_its_first_rejection() -> None:
    """A client with a RECEIPT or an ERROR knows of the rejection. Accepted SENDs change nothing."""
    venue = Venue()
    client = venue.client()
    client.send("X/a")
    assert venue.codes() == []
    client.send("Y/a")
    assert venue.codes() == ["rejections-unheard"]
    client.send("Y/a", receipt="r")
    assert venue.codes() == []
    strict = Venue()
    strict.client(rejections="error").send("Y/a")
    assert strict.codes() == []


def test_connections_that_end_are_counted() -> None:
    """A client that connects for each SEND is counted when it leaves, and nothing is kept of its connection."""
    venue = Venue()
    for number in range(STREAK_MIN):
        client = venue.world.client()
        client.send("Y/a", receipt="r")
        assert client.peer.connection is not None
        venue.senders.ended(number, client.peer.sends, client.peer.connection, venue.world.now_s)
    assert venue.codes() == ["sends-rejected"]
    assert venue.senders._counted == {}


def test_memory_is_bounded() -> None:
    """Of more principals than are kept the one that was rejected longest ago goes; health lists a few."""
    venue = Venue(*[f"p{number}" for number in range(PRINCIPALS_MAX + 1)])
    for number in range(PRINCIPALS_MAX + 1):
        venue.client(f"p{number}").send("Y/a")
    assert venue.codes() == ["rejections-unheard"]
    assert len(venue.senders._episodes) == PRINCIPALS_MAX
    assert "p0" not in venue.senders._episodes
    (text,) = venue.senders.degraded(venue.world.now_s)
    assert f"and {PRINCIPALS_MAX - senders.NAMED_MAX} more" in text
