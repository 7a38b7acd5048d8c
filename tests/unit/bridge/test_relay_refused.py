"""The relay where a side refuses its connections, subscriptions or Links."""

from maxam.bridge.relay import AGAIN_S, Phase, Relay
from maxam.bridge.wishes import (
    CENTRE,
    GUEST,
    Close,
    Log,
    Open,
    Plan,
    PlannedRoute,
    Send,
    Subscribe,
    Unsubscribe,
    Wish,
    lane_of,
)
from maxam.links import UP, LinkRoute

HIGH, LOW = lane_of(0), lane_of(2)
PLAN = Plan("V7", "C", (PlannedRoute(LinkRoute(UP, "X/a.*", "V"), 0), PlannedRoute(LinkRoute(UP, "X/b.*", "V"), 2)))


def entered() -> tuple[Relay, list[Wish]]:
    """Return a relay whose lanes are all connected, and its wishes since then."""
    relay = Relay(PLAN)
    relay.start(0.0)
    for lane in (HIGH, LOW):
        relay.connected(0.0, lane, "v1")
    relay.connected(0.0, GUEST, "c1")
    (look,) = [wish for wish in relay.take_wishes() if isinstance(wish, Subscribe)]
    relay.complete(0.0, look.handle)
    assert Open(CENTRE) in relay.take_wishes()
    relay.connected(0.0, CENTRE, "c1")
    return relay, relay.take_wishes()


def marking() -> tuple[Relay, Send]:
    """Return a relay that has sent the Link before its first inventory, and this Link."""
    relay, wishes = entered()
    for wish in wishes:
        if isinstance(wish, Subscribe):
            relay.complete(0.0, wish.handle)
        elif isinstance(wish, Unsubscribe):
            relay.unsubscribed(0.0, wish.handle, False)
    (sent,) = [wish for wish in relay.take_wishes() if isinstance(wish, Send) and wish.lane == CENTRE]
    assert relay.phase is Phase.MARKING
    return relay, sent


def test_lanes_to_two_incarnations_connect_again() -> None:
    """If the venue restarts between two of its lanes, both are closed, and nothing begins."""
    relay = Relay(PLAN)
    relay.start(0.0)
    relay.take_wishes()
    relay.connected(0.0, HIGH, "v1")
    relay.connected(0.0, LOW, "v2")
    wishes = relay.take_wishes()
    assert {wish.lane for wish in wishes if isinstance(wish, Close)} == {HIGH, LOW}
    assert len(wishes) == 2


def test_a_missing_right_is_reported_and_tried_again_later() -> None:
    """A SUBSCRIBE without any right ends the connection to the centre for a while. The event has the gateway and the glob."""
    relay, wishes = entered()
    looked = [wish for wish in wishes if isinstance(wish, Subscribe) and not wish.durable]
    for lane, gateway in ((CENTRE, "C"), (HIGH, "V7")):
        one = next(wish for wish in looked if wish.lane == lane)
        relay.subscribed(0.0, one.handle, False, True)
        assert relay.take_wishes() == [
            Log("bridge-not-allowed", {"gateway": gateway, "glob": one.glob}),
            Close(CENTRE, AGAIN_S),
        ]


def test_nothing_begins_before_link_is_accepted() -> None:
    """While the centre refuses Link, no value is read or sent. Link is repeated, and the inventory begins once it is accepted."""
    relay, sent = marking()
    for now_s in (20.0, 40.0):
        relay.receipt(now_s, sent.ticket, "rejected-unavailable", "disk-full", "")
        wishes = relay.take_wishes()
        assert not any(isinstance(wish, Send | Subscribe) for wish in wishes)
        relay.tick(now_s)
        (sent,) = [wish for wish in relay.take_wishes() if isinstance(wish, Send) and wish.lane == CENTRE]
    relay.receipt(60.0, sent.ticket, "accepted", "", "")
    assert [wish.glob for wish in relay.take_wishes() if isinstance(wish, Subscribe)] == ["V/a.*", "V/b.*"]
    assert relay.phase is Phase.READING
