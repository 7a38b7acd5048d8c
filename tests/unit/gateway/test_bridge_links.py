"""The watch of links: when one is down, what is reported, and what a restart keeps."""

import pytest

from maxam.broker.unknown import UnknownTopics
from maxam.config import Limits
from maxam.gateway import bridge_links
from maxam.gateway.bridge_links import DELETED, GONE_INTERVAL_S, SILENT, UNREADABLE, BridgeLinks
from maxam.globs import compile_glob
from maxam.links import DRILL, PAUSED, ROUTES_MAX, SYNCING, TIMEOUT_S_MAX, UP, VENUE, Link, LinkRoute, link_topic
from tests.support.bridge_links import FRESH_S, RIGHTS, TIMEOUT_S, Centre, link
from tests.support.sans_io import policy

ALL = "V1/**"


def venue() -> Centre:
    """Return a centre with a link that is up, and a topic."""
    centre = Centre()
    centre.publish(link("1", ALL))
    centre.send("V1/a.Meter", b"1")
    centre.settle()
    return centre


def down(centre: Centre, name: str = "1") -> str:
    """Return why a link is down."""
    return centre.links.links[name].down


def test_globs_find_their_topics() -> None:
    """By store, or if they leave the store open; each topic has one link at a time."""
    unknown = UnknownTopics()
    rights = policy(bridge=RIGHTS).rights("bridge")
    assert not unknown.link_of(b"V1/a", "bridge")
    for name, *globs in (("1", "V1/a.*", "V1/b.*"), ("2", "V*/c.*"), ("3", "V1/a.x*")):
        unknown.set(name, tuple(compile_glob(glob, Limits()) for glob in globs), "bridge", rights)
    names = (b"V1/a.1", b"V1/b.1", b"V1/c.1", b"V2/c.1", b"V2/a.1", b"V1/a.xy", b"")
    found = [unknown.link_of(name, "bridge") for name in names]
    assert found == ["1", "1", "2", "2", "", "1", ""]
    unknown.set("1", (), "bridge", rights)
    assert [unknown.link_of(name, "x") for name in (b"V1/a.1", b"V1/a.xy", b"V1/c.1")] == ["", "3", "2"]


def test_a_link_concerns_only_topics_of_its_publisher() -> None:
    """Topics of others stay known, for all routes that a venue claims. Those that it has written are unknown, also without rights."""
    centre = venue()
    others = centre.world.client("other")
    everything = link("2", "V1/**", "V2/**", "B/**", state=PAUSED)
    others.send(link_topic("2").decode(), everything.encoded())
    others.send("V2/a", b"1")
    centre.world.settle()
    centre.settle()
    assert down(centre, "2") == "paused"
    topics = (b"V1/a.Meter", b"V2/a", b"B/1.Link")
    assert [centre.links.unknown_since_us(topic) > 0 for topic in topics] == [False, True, False]
    centre.send("V2/b", b"1")
    assert centre.links.unknown_since_us(b"V2/b") > 0
    reader = centre.subscribe()
    centre.world.broker.replace_policy(policy(bridge=RIGHTS))
    centre.settle()
    assert [centre.links.unknown_since_us(name) > 0 for name in (b"V2/a", b"V2/b", b"V1/a.Meter")] == [
        True,
        False,
        False,
    ]
    assert reader.stale == {"V2/a"}


def test_a_link_with_absurd_figures_is_silent_in_time() -> None:
    """Its timeout is bounded, so a venue cannot hide its silence for ever."""
    centre = venue()
    centre.publish(link("1", ALL, timeout_s=2**31 - 1))
    centre.pass_time(TIMEOUT_S_MAX + 1)
    centre.step()
    assert down(centre) == SILENT


def test_many_routes_make_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep compares each topic with each route, so the number of comparisons of one batch is bounded."""
    centre = venue()
    for number in range(300):
        centre.send(f"V1/{number}", b"1")
    compared: list[bytes] = []
    reconcile = BridgeLinks._reconcile

    def counted(self: BridgeLinks, name: bytes) -> bool:
        compared.append(name)
        return reconcile(self, name)

    monkeypatch.setattr(BridgeLinks, "_reconcile", counted)
    centre.publish(link("1", ALL, *(f"V1/x{number}" for number in range(ROUTES_MAX - 1)), state=PAUSED))
    centre.pass_time(1)
    while down(centre) == "":
        centre.step()
    before = len(compared)
    centre.step()
    assert 0 < len(compared) - before <= 10
    centre.settle()
    assert set(compared) == {f"V1/{number}".encode() for number in range(300)} | {b"V1/a.Meter"}


@pytest.mark.parametrize("state", [PAUSED, DRILL, SYNCING, "UNKNOWN"])
def test_any_state_but_up_is_down(state: str) -> None:
    """Since the state began, by the value, and at most since it came."""
    centre = venue()
    for since_s in (5.0, 9e9):
        expected_us = min(int(since_s * 1e6), centre.world.wall_us)
        centre.publish(link("1", ALL, state=state, since_s=since_s))
        centre.settle()
        assert down(centre) == state.lower()
        assert centre.links.unknown_since_us(b"V1/a.Meter") == expected_us
        centre.publish(link("1", ALL))
        centre.settle()
        assert down(centre) == ""
        assert centre.links.unknown_since_us(b"V1/a.Meter") == 0


def test_silence_is_down_after_the_time_of_the_value() -> None:
    """Not a moment earlier, and since the last value. Each value counts again."""
    centre = venue()
    centre.send("V1/a.State", b"1")
    reader = centre.subscribe()
    for timeout_s in (TIMEOUT_S, 30):
        centre.publish(link("1", ALL, timeout_s=timeout_s))
        heard_us = centre.world.wall_us
        centre.step()
        centre.pass_time(timeout_s)
        centre.step()
        assert down(centre) == ""
        centre.pass_time(0.001)
        centre.step()
        assert down(centre) == SILENT
        assert centre.links.links["1"].unknown_since_us == heard_us
    centre.settle()
    assert ("stale", "link-down", "V1/a.State") in reader.notices


def test_notices_of_a_link() -> None:
    """Stale once, fresh once; a value in between is fresh and then stale again."""
    centre = venue()
    reader = centre.subscribe()
    centre.publish(link("1", ALL, state=PAUSED))
    centre.settle()
    centre.settle()
    centre.send("V1/a.Meter", b"2")
    kinds = [frame.headers.get(b"kind") for frame in reader.read() if frame.headers[b"destination"] != b"$marker"]
    assert kinds == [b"fresh", b"stale"]
    centre.send("V1/new.Meter", b"1")
    reader.read()
    centre.publish(link("1", ALL))
    centre.settle()
    down_, up = "link-down", "link-up"
    assert reader.notices == [
        ("stale", down_, "V1/a.Meter"),
        ("stale", down_, "V1/a.Meter"),
        ("stale", down_, "V1/new.Meter"),
        ("fresh", up, "V1/a.Meter"),
        ("fresh", up, "V1/new.Meter"),
    ]


def test_a_subscription_without_markers_gets_nothing() -> None:
    """Its frames are those of a gateway without links."""
    centre = venue()
    client = centre.world.client("bridge")
    client.subscribe("V1/**", ack="auto", eager=True)
    centre.world.settle()
    assert len(client.read()) == 1
    centre.publish(link("1", ALL, state=PAUSED))
    centre.settle()
    assert client.read() == []


def test_unknown_topics_are_not_overdue() -> None:
    """One that was overdue is no longer counted, and is found at once when the link is up; its client gets no notice of that."""
    centre = venue()
    reader = centre.subscribe()
    centre.pass_time(FRESH_S + 1)
    centre.publish(link("1", ALL))
    centre.settle()
    assert centre.freshness.count == 1
    assert reader.notices == [("stale", "overdue", "V1/a.Meter")]
    centre.publish(link("1", ALL, state=PAUSED))
    centre.settle()
    assert centre.freshness.count == 0
    centre.send("V1/b.Meter", b"1")
    centre.pass_time(FRESH_S + 1)
    centre.settle()
    assert centre.freshness.count == 0
    centre.publish(link("1", ALL))
    centre.settle()
    assert centre.freshness.count == 2
    assert reader.notices == [("stale", "overdue", "V1/a.Meter"), ("stale", "link-down", "V1/b.Meter")]
    centre.send("V1/a.Meter", b"2")
    centre.settle()
    assert centre.freshness.count == 1
    assert reader.stale == {"V1/b.Meter"}


def test_a_restart() -> None:
    """A link that was up has its time again; one that was down stays so. Nothing else is remembered."""
    centre = venue()
    centre.publish(link("3", "V3/**"))
    centre.pass_time(TIMEOUT_S + 1)
    centre.publish(link("2", "V2/**", state=PAUSED))
    centre.publish(link("1", ALL))
    centre.settle()
    centre.pass_time(3600)
    centre.restart()
    centre.settle()
    assert [down(centre, name) for name in "123"] == ["", "paused", SILENT]
    centre.pass_time(TIMEOUT_S)
    centre.settle()
    assert down(centre) == SILENT
    centre.check()


def test_a_link_that_is_deleted_is_down_until_its_topics_are_gone() -> None:
    """They are counted now and then. No client is left with stale topics."""
    centre = venue()
    reader = centre.subscribe()
    centre.delete_link("1")
    centre.settle()
    assert down(centre) == DELETED
    assert reader.stale == {"V1/a.Meter"}
    assert len(centre.links.degraded()) == 1
    centre.send("V1/a.Meter", b"")
    centre.pass_time(GONE_INTERVAL_S)
    centre.settle()
    assert centre.links.links == {}
    assert centre.links.degraded() == []
    centre.send("V1/a.Meter", b"2")
    assert reader.stale == set()


def test_a_link_without_topics_that_is_deleted_is_forgotten() -> None:
    """It never had routes to this side."""
    centre = Centre()
    centre.publish(link("1"))
    centre.settle()
    centre.delete_link("1")
    centre.settle()
    assert centre.links.links == {}


def test_a_value_that_cannot_be_read_is_down() -> None:
    """The topics are those of the value before."""
    centre = venue()
    centre.send(link_topic("1").decode(), b"\x02")
    centre.settle()
    assert down(centre) == UNREADABLE
    assert centre.links.unknown_since_us(b"V1/a.Meter")


def test_other_routes() -> None:
    """While it is down, topics that left its routes are current, and those that joined are stale."""
    centre = venue()
    centre.send("V1/b.Meter", b"1")
    reader = centre.subscribe()
    for globs, stale in ((["V1/a.*"], {"V1/a.Meter"}), (["V1/b.*"], {"V1/b.Meter"}), ([], set())):
        centre.publish(link("1", *globs, state=PAUSED))
        centre.settle()
        assert reader.stale == stale


def test_at_the_venue_the_routes_down_count() -> None:
    """The same value at the other side concerns the other topics."""
    routes = (LinkRoute("UP", "V1/**", "V2"), LinkRoute("DOWN", "V2/**", "V1"))
    centre = venue()
    centre.publish(Link("7", "c", VENUE, PAUSED, "", 0, 0, "h", TIMEOUT_S, "a", "b", routes))
    centre.settle()
    assert centre.links.unknown_since_us(b"V1/a.Meter") == 0 or down(centre, "7") == "paused"
    assert [glob.text for glob in centre.links.links["7"].globs] == [ALL]


def test_sweeps_are_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step visits more topics than a batch has; links of many venues are found in parts too."""
    monkeypatch.setattr(bridge_links, "BATCH_TOPICS", 3)
    monkeypatch.setattr(bridge_links, "_SEARCHED_AT_ONCE", 2)
    centre = Centre()
    for number in range(5):
        centre.publish(link(str(number), f"V{number}/**"))
    for number in range(20):
        centre.send(f"V1/{number}.State", b"1")
    centre.settle()
    centre.settle()
    centre.settle()
    assert len(centre.links.links) == 5
    reader = centre.subscribe()
    centre.publish(link("1", "V1/**", state=PAUSED))
    centre.step()  # takes the change of the link
    before = len(reader.notices)
    while before < 20:
        centre.step()
        assert before < len(reader.notices) <= before + 3
        before = len(reader.notices)


def test_health_is_one_line_for_each_link_and_bounded() -> None:
    """Of many links that are down the first are listed, and the others counted."""
    centre = Centre()
    for number in range(30):
        centre.publish(link(f"v{number}", ALL, state=PAUSED))
    centre.settle()
    lines = centre.links.degraded()
    assert len(lines) == bridge_links._LISTED_MAX + 1
    assert all("bridge" in line for line in lines)


def test_how_far_behind() -> None:
    """Of a link that is up the bridge knows it; else it is the time since when the topics are unknown."""
    centre = venue()
    one = centre.links.links["1"]
    assert one.behind_s(centre.links.now_us) == 0
    centre.publish(link("1", ALL, state=PAUSED, since_s=centre.world.wall_us / 1e6))
    centre.pass_time(5)
    centre.settle()
    assert 5 <= one.behind_s(centre.links.now_us) <= 8
    assert UP not in one.down
