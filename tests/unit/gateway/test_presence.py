"""Presence: the topics of sessions have what is true of them, after crashes too, and change at most once a second."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxam.avro.registry import Registry, load_registry
from maxam.config import Limits, PresenceSettings
from maxam.gateway import presence as module
from maxam.gateway.presence import INTERVAL_S, Presence, State, decoded, topic_of
from maxam.globs import compile_glob, destination_problem
from maxam.pipeline.publish.bodies import read_texts
from maxam.records import Change
from tests.support.sans_io import EVERYTHING, UNCHECKED, Client, World

SHIPPED = load_registry(read_texts(Path(__file__).parents[3] / "schemas"))
HEART_BEAT_S = 10.0
KEPT_S = 3600.0
READER = {"send": ["X/**"], "receive": ["X/**", "S/anna.*"]}


class Venue:
    """A broker whose gateway publishes who is connected."""

    def __init__(self, registry: Registry = SHIPPED, limits: Limits | None = None) -> None:
        self.world = World.make(limits=limits, anna=EVERYTHING, bert=READER)
        self.world.broker.replace_registry(registry)
        self.clients: dict[str, Client] = {}
        self.start()

    def start(self) -> None:
        """Begin, as a gateway does at its start."""
        self.presence = Presence(
            self.world.broker,
            PresenceSettings(enabled=True, away_kept_s=KEPT_S),
            HEART_BEAT_S,
            lambda: self.world.wall_us,
            self.world.now_s,
        )

    def connect(self, name: str, address: str = "10.0.0.1:5") -> None:
        """Connect a client, which may take over its session."""
        old = self.clients.get(name)
        self.clients[name] = self.world.client(client_id=name)
        self.presence.connected("anna", name, address, self.world.now_s)
        if old is not None:
            self.end(name, old)

    def lose(self, name: str) -> None:
        """Break the connection of a client."""
        if name in self.clients:
            self.end(name, self.clients.pop(name))

    def end(self, name: str, client: Client) -> None:
        """Have a connection end."""
        client.lose()
        self.presence.ended("anna", name, "10.0.0.1:5", self.world.now_s - 2, self.world.now_s)

    def step(self) -> None:
        """Publish what is due, and commit it."""
        while self.presence.step(self.world.now_s):
            self.world.commit()
        self.world.commit()

    def time(self, seconds: float) -> None:
        """Let time pass, in steps of a fifth of a second at most."""
        steps = max(1, round(seconds * 5)) if seconds < 30 else 1
        for _ in range(steps):
            self.world.now_s += seconds / steps
            self.world.wall_us += int(seconds / steps * 1e6)
            self.step()

    def crash(self) -> None:
        """Start again from what was committed."""
        self.world = self.world.restart()
        self.clients.clear()
        self.start()

    def shown(self) -> dict[str, bool]:
        """Return the topics with a value: whether they are connected."""
        found = {}
        for name, topic in self.world.broker.store.topics.items():
            if not topic.change.deleted:
                state = decoded(topic.change.body)
                assert state is not None
                assert topic.change.validation.schema == "maxam.Presence_v1"
                found[name.decode()] = state.connected
        return found

    def state(self, name: str) -> State:
        """Return the value of the topic of a client."""
        state = decoded(self.world.broker.store.topics[topic_of("anna", name, 512)].change.body)
        assert state is not None
        return state


def test_a_session_is_shown_while_it_is_connected() -> None:
    """The value has the times and the address; one who may receive the topic is sent it."""
    venue = Venue()
    reader = venue.world.client("bert")
    reader.subscribe("S/anna.*", ack="auto")
    venue.time(1)
    began_us = venue.world.wall_us
    venue.connect("pump", "10.0.0.7:4711")
    venue.time(1)
    assert venue.state("pump") == State(True, began_us, began_us, "10.0.0.7:4711")
    (frame,) = reader.read()
    assert (frame.headers[b"destination"], frame.body[:1]) == (b"S/anna.pump", b"\x01")
    venue.time(5)
    venue.lose("pump")
    venue.step()
    ended_us = venue.world.wall_us
    assert venue.state("pump") == State(False, ended_us, ended_us - 2_000_000, "10.0.0.1:5")
    assert reader.read()[0].body[:1] == b"\x00"


def test_who_may_not_receive_the_topic_learns_nothing() -> None:
    """Presence has a right like any other."""
    venue = Venue()
    reader = venue.world.client("anna")
    reader.subscribe("S/*", ack="auto")
    venue.connect("pump")
    venue.time(2)
    assert reader.read() == []


def test_a_takeover_leaves_the_session_connected() -> None:
    """The value is that of the newest connection."""
    venue = Venue()
    venue.connect("pump", "10.0.0.1:1")
    venue.time(3)
    venue.connect("pump", "10.0.0.1:2")
    venue.time(3)
    assert venue.state("pump").connected
    assert venue.state("pump").address == "10.0.0.1:2"
    assert len(venue.world.journal) == 2


def test_a_client_in_a_loop_changes_its_topic_once_a_second() -> None:
    """Others are not held up by it, and the last state is shown."""
    venue = Venue()
    venue.connect("pump")
    venue.time(2)
    for number in range(100):
        venue.connect("pump")
        venue.step()
        venue.lose("pump")
        venue.time(0.1)
        if number == 50:
            venue.connect("other")
    assert len([one for one in venue.world.journal if isinstance(one, Change)]) <= 10 / INTERVAL_S + 3
    venue.time(2)
    assert venue.shown() == {"S/anna.pump": False, "S/anna.other": True}


def test_a_client_in_a_loop_under_new_names_makes_no_topics() -> None:
    """A session that has no topic yet is shown once it has lasted a second."""
    venue = Venue()
    for number in range(100):
        venue.connect(f"pump-{number}")
        venue.step()
        venue.lose(f"pump-{number}")
        venue.time(0.1)
    venue.time(5)
    assert venue.world.journal == []


@pytest.mark.parametrize("crash", [False, True])
def test_of_a_principal_as_many_topics_stay_as_it_may_have_sessions(crash: bool) -> None:
    """The newest ones, whether or not a restart comes between."""
    venue = Venue(limits=Limits(sessions_per_principal_max=3))
    for number in range(6):
        venue.connect(f"p{9 - number}")
        venue.time(2)
        venue.lose(f"p{9 - number}")
        venue.time(2)
        if crash and number in {2, 4}:
            venue.crash()
            venue.time(HEART_BEAT_S)
    venue.time(3)
    assert venue.shown() == {f"S/anna.p{number}": False for number in (4, 5, 6)}


def test_after_a_crash_those_who_do_not_come_back_are_away() -> None:
    """Within the interval of heart-beats nothing changes for the others."""
    venue = Venue()
    for name in ("back", "gone"):
        venue.connect(name)
    venue.time(2)
    heard_us = venue.state("gone").heard_us
    venue.time(100)
    venue.crash()
    started_us = venue.world.wall_us
    venue.time(HEART_BEAT_S - 1)
    assert venue.shown() == {"S/anna.back": True, "S/anna.gone": True}
    venue.connect("back")
    venue.time(3)
    assert venue.shown() == {"S/anna.back": True, "S/anna.gone": False}
    assert venue.state("back").since_us > started_us
    assert venue.state("gone") == State(False, started_us, heard_us, "10.0.0.1:5")


def test_a_stop_changes_nothing() -> None:
    """The next start finds out who has come back."""
    venue = Venue()
    venue.connect("pump")
    venue.time(2)
    venue.presence.held = True
    venue.lose("pump")
    venue.time(5)
    assert venue.shown() == {"S/anna.pump": True}


@pytest.mark.parametrize("crash", [False, True])
def test_topics_of_the_past_are_deleted(crash: bool) -> None:
    """Some time after their end. That of a client-id which the broker made is deleted at once."""
    venue = Venue()
    made = "0123456789abcdef" * 2
    for name in ("old", "new", made):
        venue.connect(name)
    venue.time(2)
    if crash:
        venue.crash()
        venue.time(HEART_BEAT_S + 2)
    for name in ("old", "new", made):
        venue.lose(name)
    venue.time(2)
    assert venue.shown() == {"S/anna.old": False, "S/anna.new": False}
    venue.time(KEPT_S - 100)
    venue.connect("new")
    venue.time(2)
    venue.lose("new")
    venue.time(100)
    venue.time(2)
    assert venue.shown() == {"S/anna.new": False}
    if crash:
        venue.crash()
    venue.time(KEPT_S)
    venue.time(2)
    assert venue.shown() == {}


def test_a_value_that_is_refused_is_repeated() -> None:
    """A full disk and low memory put it off."""
    venue = Venue()
    venue.connect("pump")
    venue.world.now_s += 1
    venue.presence.step(venue.world.now_s)
    assert venue.world.broker.pending
    venue.world.broker.roll_back_batch(venue.world.take())
    venue.world.broker.memory_low = True
    venue.time(3)
    assert venue.shown() == {}
    venue.world.broker.memory_low = False
    venue.time(1)
    assert venue.shown() == {"S/anna.pump": True}


def test_a_slow_disk_gets_each_value_once() -> None:
    """A value that is on its way is not published again."""
    venue = Venue()
    venue.connect("pump")
    venue.world.now_s += 1
    venue.presence.step(venue.world.now_s)
    batch = venue.world.take()
    for _ in range(5):
        venue.world.now_s += 1
        venue.presence.step(venue.world.now_s)
    assert venue.world.take() == []
    venue.world.broker.apply_batch(batch)
    assert venue.shown() == {"S/anna.pump": True}


@pytest.mark.parametrize("rule", ["", '[[rule]]\ndestination = "S/*"\nencoding = "datum"\nschema = "t.T_v1"\n'])
def test_a_rule_that_does_not_fit_is_reported(rule: str) -> None:
    """Health shows it, and no rejected SEND comes each second. A reload of the shipped rule repairs it."""
    schema = b'{"type":"record","name":"t.T_v1","fields":[{"name":"n","type":"string"}]}'
    texts = {"registry.toml": UNCHECKED["registry.toml"] + rule.encode(), "t/T_v1/1.0.avsc": schema}
    venue = Venue(load_registry(texts))
    venue.connect("pump")
    venue.time(20)
    (line,) = venue.presence.degraded()
    assert line.startswith("presence: ")
    assert venue.world.broker.counters.sends_invalid <= 1
    venue.world.broker.replace_registry(SHIPPED)
    venue.time(60)
    venue.time(1)
    assert venue.shown() == {"S/anna.pump": True}
    assert venue.presence.degraded() == []


def test_without_the_setting_nothing_is_published() -> None:
    """Presence is opt-in."""
    venue = Venue()
    venue.presence = Presence(
        venue.world.broker, PresenceSettings(), HEART_BEAT_S, lambda: venue.world.wall_us, venue.world.now_s
    )
    venue.connect("pump")
    venue.time(3)
    venue.lose("pump")
    venue.time(3)
    assert venue.world.journal == []


@given(st.text(min_size=1, max_size=128), st.text(st.characters(max_codepoint=126, min_codepoint=32), min_size=1))
@example("a.b", "c=d")
@example("=", "*")
@example("/\\[]?*. ", "\U0001f600")
@settings(deadline=None)
def test_a_topic_is_a_destination_that_no_other_session_has(principal: str, client_id: str) -> None:
    """Two tokens at most. Its escapes can be reversed, so that two sessions never share one."""
    if "\ud800" <= max(principal) <= "\udfff" or any("\ud800" <= one <= "\udfff" for one in principal):
        return
    name = topic_of(principal, client_id, 512)
    assert destination_problem(name, 512) is None
    tokens = name.decode().removeprefix("S/").split(".")
    if len(tokens) == 2:
        assert [_plain(token) for token in tokens] == [principal, client_id]
    else:
        assert len(tokens[0]) == 65


def _plain(token: str) -> str:
    parts = token.split("=")
    data = parts[0].encode()
    for part in parts[1:]:
        data += bytes.fromhex(part[:2]) + part[2:].encode()
    return data.decode()


NAMES = ["a", "b"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["connect", "lose"]), st.sampled_from(NAMES)),
        st.tuples(st.just("time"), st.sampled_from([0.2, 1.0, 5.0, 60.0])),
        st.tuples(st.sampled_from(["crash", "step", "refuse"]), st.just("")),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_in_the_end_the_topics_are_as_the_sessions_are(steps: list[tuple[str, Any]]) -> None:
    """Between two values of a topic there is a second, except after a crash."""
    venue = Venue()
    marks = [0]
    ever: set[str] = set()
    for what, about in steps:
        match what:
            case "connect":
                venue.connect(about)
                ever.add(about)
            case "lose":
                venue.lose(about)
            case "time":
                venue.time(about)
            case "refuse":
                venue.presence.step(venue.world.now_s)
                venue.world.broker.roll_back_batch(venue.world.take())
            case "crash":
                venue.crash()
                marks.append(len(venue.world.journal))
            case _:
                venue.step()
    venue.time(HEART_BEAT_S)
    venue.time(5)
    shown = venue.shown()
    assert {name for name, connected in shown.items() if connected} == {f"S/anna.{name}" for name in venue.clients}
    assert set(shown) <= {f"S/anna.{name}" for name in ever}
    marks.append(len(venue.world.journal))
    for first, last in pairwise(marks):
        times: dict[bytes, int] = {}
        for one in venue.world.journal[first:last]:
            assert isinstance(one, Change)
            assert one.accepted_at_us >= times.get(one.destination, 0) + INTERVAL_S * 1e6 - 10
            times[one.destination] = one.accepted_at_us


def test_many_are_published_in_batches() -> None:
    """A restart of everything takes some passes."""
    venue = Venue()
    many = module.BATCH_TOPICS + 10
    for number in range(many):
        venue.presence.connected("anna", f"p{number}", "a:1", venue.world.now_s)
    venue.world.now_s += 1
    venue.presence.step(venue.world.now_s)
    assert len(venue.world.broker.pending) < many
    venue.step()
    assert len(venue.shown()) == many
    venue.crash()
    venue.time(HEART_BEAT_S)
    venue.time(2)
    assert set(venue.shown().values()) == {False}
    assert compile_glob("S/*", venue.world.broker.limits).matches("S/anna.p1")
