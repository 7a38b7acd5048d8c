"""The comparison of published values with those that a subscriber received."""

from maxam.failover.measures import HEADER, Published, Received


def test_figures_hold_what_came_against_what_was_sent() -> None:
    """Skipped, behind, surplus and stale count what was sent and did not come, by topic; other runs count as messages."""
    published = Published("run")
    received = Received(published, ".a")
    headers = []
    for sent_s in range(5):
        place, header = published.sending("X/1.a", sent_s)
        published.accepted["X/1.a"] = place
        headers.append(header[HEADER])
    published.sending("X/1.b", 0.0)
    assert received.stale() == 1
    received.take("X/1.a", headers[1], 10.0)
    assert (received.messages, received.skipped, received.behind, received.stale()) == (1, 1, 3, 1)
    received.take("X/1.a", headers[4], 10.0)
    assert (received.messages, received.skipped, received.behind, received.stale()) == (2, 3, 0, 0)
    assert list(received.ages_s) == [9.0, 6.0]
    assert received.surplus == 3
    received.take("X/1.b", "other 8 1.0", 10.0)
    assert not received.overwritten, "from before this run"
    received.take("X/1.a", "other 9 1.0", 10.0)
    assert received.overwritten == {"X/1.a"}
    received.take("X/1.a", "", 10.0)
    assert (received.messages, received.skipped) == (5, 3)
