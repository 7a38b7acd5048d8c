"""The relay in a small world: whatever happens at whatever step, both sides end equal, without ghosts and without old values."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from maxam.bridge import quarantine
from maxam.bridge.flow import Item
from maxam.bridge.relay import Phase
from maxam.bridge.wishes import CENTRE, Plan, PlannedRoute, Send
from maxam.links import CENTRE as CENTRE_SIDE
from maxam.links import DOWN, DRILL, PAUSED, UP, Link, LinkDrill, LinkRoute, Wanted, WantedDrill
from tests.unit.bridge.small_world import PLAN, VENUE, World

REACH = 44  # steps of an inventory, from the first connection to Link


class Watched(World):
    """A world that notices older values after newer ones, as long as neither side is restored."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.newest: dict[tuple[str, ...], int] = {}
        self.old_venue: Any = None
        self.old_centre: Any = None
        super().__init__(plan)

    def step(self) -> None:
        """Do the next thing, and compare."""
        super().step()
        for topic, change in self.centre.topics.items():
            source = change.source
            if change.body and source:
                key = topic, source, self.centre.incarnation
                assert int(change.body) >= self.newest.get(key, 0), f"{topic} went back"
                self.newest[key] = int(change.body)

    def settled(self) -> None:
        """Let it settle, and compare both sides."""
        self.settle()
        here = {"V" + topic[1:]: body for topic, body in self.venue.values.items() if topic.startswith("X/")}
        there = {topic: body for topic, body in self.centre.values.items() if topic.startswith("V/")}
        assert here == there
        link = self.link(self.centre)
        assert link is not None
        assert (link.venue_incarnation, link.centre_incarnation) == (self.venue.incarnation, self.centre.incarnation)
        assert link.routes == tuple([planned.route for planned in self.plan.routes])


Event = Callable[[Watched], None]


def restore_venue(world: Watched) -> None:
    """Restore the venue to the state without changes since the begin."""
    world.cut_side(world.venue)
    world.venue.restore(world.old_venue)
    world.old_venue = world.venue.backup()


def restore_centre(world: Watched) -> None:
    """Restore the centre likewise."""
    world.cut_side(world.centre)
    world.centre.restore(world.old_centre)
    world.old_centre = world.centre.backup()


def expire(world: World) -> None:
    """Let the venue forget the bridge's session."""
    world.cut_side(world.venue)
    world.venue.sessions.clear()


EVENTS: dict[str, Event] = {
    "set a": lambda world: world.change("X/a"),
    "delete a": lambda world: world.change("X/a", delete=True),
    "set c": lambda world: world.change("X/c"),
    "cut centre": lambda world: world.cut(CENTRE),
    "cut venue": lambda world: world.cut(VENUE),
    "kill": World.kill,
    "restore venue": restore_venue,
    "restore centre": restore_centre,
    "expire": expire,
    "pause": lambda world: world.want(world.venue, Wanted(True, "because")),
    "resume": lambda world: world.want(world.venue, Wanted()),
}
CHANGES = ("set a", "delete a", "set c")
BREAKS = ("cut centre", "cut venue", "kill", "restore venue", "restore centre", "expire")


def steady() -> Watched:
    """Return a world with two bridged topics, of which backups know one alone."""
    world = Watched()
    world.change("X/a")
    world.settled()
    world.old_venue, world.old_centre = world.venue.backup(), world.centre.backup()
    world.change("X/b")
    world.settled()
    return world


def run(history: list[tuple[int, str]]) -> None:
    """Run events, each after a number of steps, and compare both sides at the end."""
    world = steady()
    for steps, event in history:
        for _ in range(steps):
            world.step()
        EVENTS[event](world)
    EVENTS["resume"](world)
    world.settled()


def histories(gaps: range) -> Iterator[list[tuple[int, str]]]:
    """Make histories: a change, then one break, then another break or a change, each at any step of the gaps."""
    for change, first, gap in product(CHANGES, BREAKS, gaps):
        yield [(0, change), (gap, first)]
        for second, after in product((*BREAKS, *CHANGES, "pause"), gaps):
            yield [(0, change), (gap % 7, first), (after, second), (gap, "set a")]


@pytest.mark.slow
def test_each_event_alone() -> None:
    """A change and any event at any step of the reaction to it."""
    for change, event, gap in product(CHANGES, EVENTS, range(12)):
        run([(0, change), (gap, event)])


@pytest.mark.slow
@pytest.mark.parametrize("event", ["cut centre", "cut venue", "kill"])
@pytest.mark.parametrize("begin", ["restore venue", "restore centre", "expire", "kill"])
def test_cut_at_any_step_of_an_inventory(begin: str, event: str) -> None:
    """An inventory or a resumption that is cut anywhere, twice, and a delete in between."""
    for first, second in product(range(2 * REACH), range(0, REACH, 6)):
        run([(0, "delete a"), (3, begin), (first, event), (second, event)])
        run([(0, "set c"), (3, begin), (first, "delete a"), (second, event)])


@pytest.mark.slow
def test_small_histories() -> None:
    """Pairs of breaks and changes at many steps."""
    for history in histories(range(0, 2 * REACH, 13)):
        run(history)


def test_nothing_is_sent_twice_for_nothing() -> None:
    """A line that was cut moves the changed topics alone, each once, and makes no inventory."""
    world = steady()
    world.cut(CENTRE, 100.0)
    for _ in range(9):
        world.change("X/a")
        world.change("X/c")
    before = world.relay.sent
    world.settle()
    assert world.relay.sent == before + 2
    assert world.relay.phase is Phase.RUNNING


def test_an_inventory_moves_what_differs() -> None:
    """After a restore of the centre, the topics that it lacks are sent, and no other."""
    world = steady()
    for number in range(20):
        world.change(f"X/t{number}")
    world.settled()
    world.old_centre = world.centre.backup()
    world.change("X/t3")
    world.change("X/t4", delete=True)
    world.settled()
    before = world.relay.sent
    restore_centre(world)
    world.settled()
    assert world.relay.sent == before + 2


def test_rejected_values_do_not_block() -> None:
    """A rejected value waits in the quarantine, through restarts, until it is accepted."""
    world = steady()
    world.centre.rejects = lambda topic, _: "rejected-invalid" if topic == "V/a" else ""
    for _ in range(5):
        world.change("X/a")
        world.change("X/b")
        world.settle()
    assert world.centre.values["V/b"] == world.venue.values["X/b"]
    assert (link := world.link(world.centre)) is not None
    assert link.quarantined == 1
    assert link.rejections[0].topic == "V/a"
    for again in (World.kill, lambda world: world.cut(CENTRE)):
        again(world)
        world.settle()
        assert world.relay.quarantine
    world.centre.rejects = lambda _topic, _body: ""
    world.cut(CENTRE)
    world.settled()
    assert (link := world.link(world.centre)) is not None
    assert link.quarantined == 0


def test_a_rejected_value_survives_a_kill_at_any_step() -> None:
    """Wherever the bridge is killed after a rejection, the value arrives once it is accepted."""
    for steps in range(40):
        world = steady()
        world.centre.rejects = lambda topic, _: "rejected-unauthorised" if topic == "V/a" else ""
        world.change("X/a")
        for _ in range(steps):
            world.step()
        world.centre.rejects = lambda _topic, _body: ""
        world.kill()
        world.settled()


def too_large(send: Send) -> str:
    """Refuse a value of more than three bytes, as a gateway does with a frame above its limit."""
    return "body too long" if len(send.body) > 3 and send.topic.startswith("V/") else ""


def test_a_value_above_a_limit_of_frames_does_not_block() -> None:
    """It ends the connection once, however often it is published. Others arrive, and it does too once it is small enough."""
    world = steady()
    world.centre.refuses = too_large
    world.counter = 1000
    for _ in range(5):
        world.change("X/a")
    world.settle()
    for _ in range(5):
        world.change("X/a")
        world.settle()
    world.counter = 100
    world.change("X/c")
    world.settle()
    assert world.centre.values["V/c"] == b"101"
    assert world.refusals == 1
    assert (link := world.link(world.centre)) is not None
    assert (link.quarantined, link.rejections[0].topic) == (1, "V/a")
    world.change("X/a")
    world.settled()
    assert (link := world.link(world.centre)) is not None
    assert link.quarantined == 0


@pytest.mark.parametrize("again", [World.kill, lambda world: world.cut(CENTRE), lambda world: world.cut(VENUE)])
def test_a_limit_is_learned_again(again: Callable[[World], None]) -> None:
    """A restarted gateway may have another limit. If it has the same, it refuses once more, also within an inventory."""
    world = steady()
    world.counter = 1000
    world.centre.refuses = too_large
    world.change("X/a")
    world.settle()
    for _ in range(3):
        before = world.refusals
        again(world)
        world.settle()
        assert world.refusals <= before + 2
    assert (link := world.link(world.centre)) is not None
    assert link.quarantined == 1
    world.centre.refuses = lambda _send: ""
    world.cut(CENTRE)
    world.settled()


def test_a_quarantine_without_room_makes_ever_fewer_inventories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each makes all topics of the venue unknown for its time, so a bad type must not cause many of them."""
    monkeypatch.setattr(quarantine, "TOPICS_MAX", 1)
    world = steady()
    world.centre.rejects = lambda topic, _: "rejected-invalid" if topic in ("V/a", "V/b") else ""
    world.change("X/a")
    world.change("X/b")
    world.settle()
    began_s, inventories, phase = world.now_s, 0, world.relay.phase
    while world.now_s < began_s + 4 * 3600:
        world.step()
        inventories += world.relay.phase is Phase.READING is not phase
        phase = world.relay.phase
    assert 3 <= inventories <= 6
    world.centre.rejects = lambda _topic, _body: ""
    world.kill()
    world.settled()


def test_headers_count_in_the_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bodies with large headers do not make it large."""
    monkeypatch.setattr(quarantine, "BYTES_MAX", 1000)
    found = quarantine.Quarantine()
    for number in range(20):
        found.put(CENTRE, Item(f"V/{number}", b"1", {"h": "h" * 100}, None, None, None, None, 0, 0.0), "")
    assert len(found) == 9
    for number in range(20):
        found.pop(CENTRE, f"V/{number}")
    found.put(CENTRE, Item("V/1", b"1" * 900, {}, None, None, None, None, 0, 0.0), "")
    assert len(found) == 1


@pytest.mark.parametrize(
    "route", [LinkRoute(UP, "X/[", "V"), LinkRoute(UP, "X/a", "no store"), LinkRoute("UNKNOWN", "X/a", "V")]
)
def test_impossible_routes_of_a_former_link_do_not_block(route: LinkRoute) -> None:
    """A Link that another client has published, or another release, costs an inventory at most."""
    world = steady()
    link = world.link(world.centre)
    assert link is not None
    forged = replace(link, routes=(route,))
    world.centre.send("B/V.Link", forged.encoded(), {})
    world.kill()
    world.settled()


def test_unavailable_is_tried_again() -> None:
    """A side that cannot store now gets the newest value later, and each attempt comes after a longer pause."""
    world = steady()
    world.centre.rejects = lambda topic, _: "rejected-unavailable" if topic == "V/a" else ""
    world.change("X/a")
    for _ in range(100):
        world.step()
    world.change("X/a")
    before, now_s = world.relay.sent, world.now_s
    for _ in range(200):
        world.step()
    assert 0 < world.relay.sent - before < (world.now_s - now_s) / 10
    world.centre.rejects = lambda _topic, _body: ""
    world.settled()


def test_routes_that_are_renamed_leave_nothing() -> None:
    """With other routes, the topics of the old ones go, wherever the first attempt is killed."""
    for steps in range(2 * REACH):
        world = steady()
        other = (PlannedRoute(LinkRoute(UP, "X/a*", "W")), PlannedRoute(LinkRoute(UP, "X/b*", "V")))
        world.plan = replace(PLAN, routes=other)
        world.kill()
        for _ in range(steps):
            world.step()
        world.kill()
        world.settle()
        found = {topic: body for topic, body in world.centre.values.items() if not topic.startswith("B/")}
        assert found == {"W/a": world.venue.values["X/a"], "V/b": world.venue.values["X/b"]}
        (session,) = [each for each in world.venue.sessions.values() if each]
        assert len(session) == 2


def test_topics_of_others_are_not_touched() -> None:
    """An inventory deletes nothing that another publisher or bridge wrote under a mapped glob."""
    world = steady()
    world.centre.send("V/other", b"7", {})
    world.centre.send("V/bridged", b"8", {"origin-gateway": "U", "via": "U"})
    restore_venue(world)
    world.settle()
    assert {"V/other": b"7", "V/bridged": b"8"}.items() <= world.centre.values.items()


def test_both_directions_and_loops() -> None:
    """A route down carries the centre's values with their provenance. A value from the target is not sent back."""
    routes = (PlannedRoute(LinkRoute(UP, "X/*", "V"), 0), PlannedRoute(LinkRoute(DOWN, "D/*", "D"), 2))
    world = World(replace(PLAN, routes=routes))
    world.centre.send("D/config", b"1", {"content-type": "text/plain"})
    world.centre.send("D/back", b"2", {"origin-gateway": "V", "via": "V"})
    world.change("X/a")
    world.settle()
    assert world.venue.values["D/config"] == b"1"
    headers = world.venue.topics["D/config"].headers
    assert headers == {
        "content-type": "text/plain",
        "origin-gateway": "C",
        "origin-publisher": "p",
        "origin-timestamp": "1",
        "via": "C",
    }
    assert "D/back" not in world.venue.values
    assert world.relay.loops == 1
    world.centre.send("D/config", b"", {})
    world.settle()
    assert "D/config" not in world.venue.values


def test_pause_stops_and_resume_goes_on() -> None:
    """While either side wants a pause nothing is forwarded, also after a restart of the bridge."""
    world = steady()
    for side in (world.venue, world.centre):
        world.want(side, Wanted(True, "moving house"))
        world.settle()
        world.change("X/a")
        world.kill()
        world.settle()
        assert world.centre.values["V/a"] != world.venue.values["X/a"]
        assert (link := world.link(world.centre)) is not None
        assert (link.state, link.because, link.venue_incarnation) == (PAUSED, "moving house", "V1")
        world.want(side, Wanted())
        before = world.relay.sent
        world.settled()
        assert world.relay.sent == before + 1


def test_drill() -> None:
    """A drill cuts the line, converges, compares, and shows its figures. Old requests are not run."""
    world = steady()
    world.want(world.venue, Wanted(drill=WantedDrill("d1", 60)))
    for _ in range(20):
        world.step()
    assert (link := world.link(world.centre)) is not None
    assert link.state == DRILL
    world.change("X/a")
    world.change("X/c")
    for _ in range(500):
        world.step()
    world.settled()
    assert (link := world.link(world.centre)) is not None
    assert link.drill is not None
    assert link.state == UP
    assert link.drill == LinkDrill("d1", 60, True, 2, link.drill.converged_ms, 0)
    world.kill()
    world.settled()
    assert (link := world.link(world.centre)) is not None
    assert link.drill is None


def test_a_drill_finds_differences() -> None:
    """A value that was changed, and one that was deleted at the centre by others, are counted and repaired."""
    world = steady()
    world.change("X/c")
    world.settled()
    position = world.venue.revision
    for taken in world.relay._values.taken.values():
        world.relay.position(world.now_s, taken.handle, position)
    headers = world.centre.topics["V/a"].headers
    world.centre.send("V/a", b"9", headers)
    world.centre.send("V/b", b"", headers)
    world.want(world.venue, Wanted(drill=WantedDrill("d1", 1)))
    for _ in range(500):
        world.step()
        for taken in world.relay._values.taken.values():
            taken.position = position
    world.settled()
    assert (link := world.link(world.centre)) is not None
    assert link.drill is not None
    assert (link.drill.done, link.drill.differences) == (True, 2)


@pytest.mark.parametrize("alive", [True, False])
def test_a_doubled_venue_is_refused(alive: bool) -> None:
    """A Link of another incarnation stops a bridge only if its bridge is alive."""
    world = World()
    other = Link("V", "C", CENTRE_SIDE, UP, "", 0, 0, "", 30, "another", "C1", ())
    world.centre.send("B/V.Link", other.encoded(), {})
    for step in range(60):
        world.step()
        if alive and step % 9 == 0:
            world.centre.send("B/V.Link", other.encoded(), {})
    assert world.ended == alive
    assert (CENTRE in world.connections) != alive


def test_window_and_priority() -> None:
    """At most a window of SENDs is under way, and those of the higher priority go first."""
    routes = (PlannedRoute(LinkRoute(UP, "X/low*", "V"), 2), PlannedRoute(LinkRoute(UP, "X/high*", "V"), 0))
    world = World(replace(PLAN, routes=routes))
    world.settle()
    for number in range(10):
        world.change(f"X/low{number}")
    for number in range(10):
        world.change(f"X/high{number}")
    order = []
    send = world.centre.send

    def spied(topic: str, *given: object) -> tuple[str, str]:
        order.append(topic)
        return send(topic, *given)  # type: ignore[arg-type]

    world.centre.send = spied  # type: ignore[assignment,method-assign]
    for _ in range(300):
        assert len(world.relay._values._flows[CENTRE].flying) <= PLAN.window
        world.step()
    sent = [topic for topic in order if topic.startswith("V/")]
    assert sorted(sent) == sorted([f"V/{name}{number}" for name in ("low", "high") for number in range(10)])
    last_high = max(place for place, topic in enumerate(sent) if "high" in topic)
    assert last_high < 15  # a few low ones were on their way already


def test_a_narrowed_right_removes_the_topic() -> None:
    """A topic that the bridge may no longer receive is removed at the centre by an inventory."""
    world = steady()
    del world.venue.topics["X/b"]
    for handle in list(world.relay._values.taken):
        world.relay.left(world.now_s, handle)
    world.settled()
    assert "V/b" not in world.centre.values
