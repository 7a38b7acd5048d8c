"""Topics held to their freshness contracts: the overdue and the expired ones are those that a naive search of all topics finds."""

from collections import Counter
from collections.abc import Mapping

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxam.avro.registry import Registry, load_registry
from maxam.broker.session import OVERDUE
from maxam.config import Limits
from maxam.gateway import freshness
from maxam.gateway.freshness import LINES_PER_MINUTE_MAX, STRETCH_US, Freshness
from maxam.globs import compile_glob
from maxam.records import Change
from tests.support.sans_io import World, forget_deletes

SECOND_US = 1_000_000
NAMES = ["X/a.1", "X/a.2", "X/a.1.b", "X/b.1", "X/b.2", "X/c"]
Ages = float | tuple[float | None, float] | None  # fresh_within_s; or fresh_within_s and expire_after_s
# Registries: globs in the order of their rules, and seconds.
CONTRACTS: list[dict[str, Ages]] = [
    {"X/**": None},
    {"X/**": 2},
    {"X/a.*": 1, "X/**": 3},
    {"X/a.1": None, "X/a.*": 0.5, "X/**": None},
    {"X/b.*": 20, "X/*.1": 1, "X/**": None},
    {"X/a.*": (1, 2), "X/b.1": (None, 1), "X/**": (0.5, 20)},
    {"X/a.1": (None, 2.5), "X/b.*": 1, "X/**": (1, 1.5)},
]


def ages(limits: Ages) -> tuple[float | None, float | None]:
    """Return fresh_within_s and expire_after_s."""
    return limits if isinstance(limits, tuple) else (limits, None)


def registry(contracts: Mapping[str, Ages]) -> Registry:
    """Make a registry of rules that check nothing."""
    rules = [
        f'[[rule]]\ndestination = "{glob}"\nencoding = "none"\n'
        + "".join(
            [
                f"{key} = {limit}\n"
                for key, limit in zip(("fresh_within_s", "expire_after_s"), ages(limits), strict=True)
                if limit is not None
            ]
        )
        for glob, limits in contracts.items()
    ]
    return load_registry({"registry.toml": "".join(rules).encode()})


class Venue:
    """A broker, a publisher, and the freshness task."""

    def __init__(self, contracts: Mapping[str, Ages]) -> None:
        self.world = World.make()
        self.world.broker.replace_registry(registry(contracts))
        self.wall_us = self.world.wall_us
        self.full = False
        self.asked = 0
        self.begin()

    def begin(self) -> None:
        """Connect, and run the first check."""
        self.publisher = self.world.client()
        self.fresh = Freshness(self.world.broker, lambda: self.wall_us, self.asks_for_commit, lambda: not self.full)

    def asks_for_commit(self) -> None:
        """Count that deletes were appended."""
        self.asked += 1
        assert self.world.broker.pending

    def send(self, name: str, body: bytes = b"value") -> None:
        """Have a value accepted and committed."""
        self.world.wall_us = self.wall_us
        self.publisher.send(name, body)
        self.world.commit()

    def pass_time(self, us: int) -> None:
        """Let the wall clock go on, or be set."""
        self.wall_us += us
        self.world.now_s += max(us, 0) / 1e6

    def settle(self) -> None:
        """Let the freshness task do all that is due, and commit it."""
        while self.fresh.step(self.world.now_s) or self.world.broker.pending:
            self.world.commit()
        assert self.fresh.settled

    def restart(self) -> None:
        """Crash, and start again from the journal."""
        self.world = self.world.restart()
        self.begin()

    def listed(self, glob: str = "**", page: int = 2) -> list[str]:
        """Page through what is overdue; nothing in it may be fresh or without a contract."""
        names: list[str] = []
        after: bytes | None = None
        while True:
            found, after = self.fresh.overdue_batch(compile_glob(glob, Limits()), after, 3, page)
            for one in found:
                names.append(one.change.destination.decode())
                assert names[-1] in self.stale()
                assert one.age_s > one.fresh_within_s
            if after is None:
                return names

    def stale(self) -> list[str]:
        """Check every topic, which would be too expensive with a million."""
        broker = self.world.broker
        now_us = max(self.wall_us, broker.accepted_at_us)
        found = []
        for topic in broker.store.topics.values():
            rule = broker.registry.rule_for(topic.name)
            limit_s = None if rule is None else broker.registry.fresh_within_s[broker.registry.rules.index(rule)]
            if limit_s is not None and not topic.change.deleted:
                age_us = now_us - topic.change.accepted_at_us
                if age_us > limit_s * 1e6:
                    found.append(topic.name)
        return sorted(found)

    def expired(self) -> list[str]:
        """Search every topic for those that should be gone."""
        broker = self.world.broker
        now_us = max(self.wall_us, broker.accepted_at_us)
        found = []
        for topic in broker.store.topics.values():
            rule = broker.registry.rule_for(topic.name)
            limit_s = None if rule is None else broker.registry.expire_after_s[broker.registry.rules.index(rule)]
            age_us = now_us - topic.change.accepted_at_us
            if limit_s is not None and not topic.change.deleted and age_us > limit_s * 1e6:
                found.append(topic.name)
        return found

    def check(self) -> None:
        """Compare list and count with the naive check."""
        self.settle()
        assert self.expired() == []
        stale = self.stale()
        assert self.listed() == stale
        assert [name.decode() for name in self.fresh._overdue] == stale  # each once, though pages skip a second one
        assert self.fresh.count == len(stale)
        topics = self.world.broker.store.topics.values()
        assert sorted(topic.name for topic in topics if topic.freshness == OVERDUE) == stale
        placed = Counter([(topic, end) for end, some in self.fresh._wheel.items() for topic in some])
        placed.subtract(list(self.fresh._late.items()))
        assert min(placed.values(), default=0) >= 0
        entries = [topic for topic, _ in placed.elements()]
        assert len(entries) == len(set(entries)) == self.fresh._entries
        assert {topic for topic in topics if topic.freshness == self.fresh._number} <= set(entries)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("time"), st.integers(1, 12)),
    st.tuples(st.just("back"), st.integers(1, 30)),
    st.tuples(st.just("contracts"), st.sampled_from(range(len(CONTRACTS)))),
    st.tuples(st.just("look"), st.integers(1, 3)),
    st.tuples(st.just("sweep"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("check"), st.just(0)),
)


LOOK, CHECK = ("look", 1), ("check", 0)
REMADE = [LOOK, ("send", "X/c"), ("delete", "X/c"), ("send", "X/c"), CHECK]
SET_BACK = [("send", "X/c"), ("time", 12), CHECK, ("back", 6), CHECK]
# One of those that are overdue changes after the contracts have gone, and before its next check.
UNTOLD = [("send", "X/a.1"), ("send", "X/c"), ("time", 12), CHECK, ("contracts", 0), LOOK, ("send", "X/c")]


@pytest.mark.slow
@example(CONTRACTS[1], 1, 0, 1000, REMADE)
@example(CONTRACTS[1], 5, 0, 1000, [*REMADE[:3], ("sweep", 0), *REMADE[3:]])
@example(CONTRACTS[1], 5, 0, 1000, SET_BACK)
@example(CONTRACTS[1], 1, 0, 1000, [*UNTOLD, CHECK, ("contracts", 1), CHECK, ("time", 12), CHECK])
@example(CONTRACTS[1], 1, 0, 1000, [*UNTOLD, ("contracts", 1), ("time", 12), CHECK])
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CONTRACTS),
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from([1, 2, 5, 1000]),
    st.lists(STEPS, max_size=40),
)
def test_what_is_overdue_is_what_a_look_at_all_topics_finds(
    contracts: dict[str, Ages],
    slice_topics: int,
    dead_max: int,
    events_max: int,
    steps: list[tuple[str, object]],
) -> None:
    """Once all is checked, list and count are those of a naive check. Before that nothing fresh is listed.

    That holds after any sends, deletes, forgotten and repeated topics, reloads, restarts and changes of clocks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freshness, "BATCH_TOPICS", slice_topics)
        patch.setattr(freshness, "_DEAD_MAX", dead_max)
        patch.setattr(freshness, "_DROPPED_AT_A_TIME", 1)
        patch.setattr(freshness, "EVENTS_MAX", events_max)
        venue = Venue(contracts)
        for what, about in steps:
            match what, about:
                case "send", str(name):
                    venue.send(name)
                case "delete", str(name):
                    venue.send(name, b"")
                case "time", int(stretches):
                    venue.pass_time(stretches * STRETCH_US)
                case "back", int(stretches):
                    venue.pass_time(-stretches * STRETCH_US)
                case "contracts", int(number):
                    venue.world.broker.replace_registry(registry(CONTRACTS[number]))
                case "look", int(times):
                    for _ in range(times):
                        venue.fresh.step(venue.world.now_s)
                case "sweep", _:
                    forget_deletes(venue.world.broker.store)
                case "restart", _:
                    venue.restart()
                case _:
                    venue.check()
            listed = venue.listed()  # compares each row with the truth
            assert listed == sorted(set(listed))
            assert venue.fresh.count == sum(
                topic.freshness == OVERDUE for topic in venue.world.broker.store.topics.values()
            )
        venue.check()


def test_a_topic_is_overdue_from_its_time_on_and_fresh_with_the_commit_that_updates_it() -> None:
    """Not before its time has passed, within two stretches after it, and not a moment longer than until the update is committed."""
    venue = Venue({"X/**": 2})
    venue.send("X/a.1")
    venue.settle()
    venue.pass_time(2 * SECOND_US)
    venue.check()
    assert venue.listed() == []
    venue.pass_time(STRETCH_US)
    venue.check()
    assert venue.listed() == ["X/a.1"]
    assert venue.fresh.breaches == 1
    venue.send("X/a.1")
    assert (venue.listed(), venue.fresh.count) == ([], 0)  # though no check has run since
    venue.check()
    venue.pass_time(3 * SECOND_US)
    venue.check()
    assert venue.fresh.breaches == 2


def test_topics_that_are_updated_are_looked_at_once_in_their_time_and_no_oftener() -> None:
    """The cost is by the contract and not by the updates."""
    venue = Venue({"X/**": 10})
    looks = 0
    original = venue.fresh.limit_s

    def limit_s(topic: object) -> float | None:
        nonlocal looks
        looks += 1
        return original(topic)  # type: ignore[arg-type]  # whatever it was asked for

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Freshness, "limit_s", lambda _self, topic: limit_s(topic))
        for _ in range(200):  # 50 seconds
            for name in NAMES:
                venue.send(name)
            venue.settle()
            venue.pass_time(STRETCH_US)
    assert looks <= len(NAMES) * (1 + 50 / 10)
    assert venue.fresh.count == 0


def test_what_a_restart_finds_too_old_is_overdue_at_once() -> None:
    """Its age is by when it was accepted, not by when the gateway started."""
    venue = Venue({"X/a.*": 5, "X/**": None})
    for name in NAMES:
        venue.send(name)
    venue.pass_time(60 * SECOND_US)
    venue.restart()
    assert not venue.fresh.settled
    venue.check()
    assert venue.listed() == ["X/a.1", "X/a.1.b", "X/a.2"]
    assert venue.fresh.breaches == 3


def test_other_contracts_take_and_give_what_is_overdue(caplog: pytest.LogCaptureFixture) -> None:
    """A shorter time finds more, a longer one less, none nothing; a topic that another rule takes over is held to that."""
    caplog.set_level("INFO", "maxam")
    venue = Venue({"X/**": 10})
    venue.send("X/a.1")
    venue.send("X/b.1")
    venue.pass_time(5 * SECOND_US)
    for contracts, expected in (
        ({"X/**": 10.0}, []),
        ({"X/**": 4.0}, ["X/a.1", "X/b.1"]),
        ({"X/a.*": None, "X/**": 4.0}, ["X/b.1"]),
        ({"X/**": 5.5}, []),
        ({"X/b.*": 1.0, "X/**": None}, ["X/b.1"]),
        ({"X/**": None}, []),
    ):
        venue.world.broker.replace_registry(registry(contracts))
        venue.check()
        assert venue.listed() == expected
    assert [record.getMessage().split()[0] for record in caplog.records] == ["topic-overdue"] * 3


def test_a_registry_with_the_same_contracts_leaves_all_as_it_is() -> None:
    """Known times stay: a further field of a schema starts no scan of a million topics."""
    venue = Venue({"X/a.*": 1, "X/**": None})
    venue.send("X/a.1")
    venue.pass_time(2 * SECOND_US)
    venue.check()
    venue.world.broker.replace_registry(registry({"X/a.*": 1, "X/**": None}))
    venue.fresh.step(venue.world.now_s)
    assert venue.fresh.settled
    assert venue.listed() == ["X/a.1"]


def test_without_contracts_nothing_is_watched() -> None:
    """Then the store reports nothing, and no topic is checked."""
    venue = Venue({"X/**": None})
    venue.send("X/a.1")
    venue.check()
    assert not len(venue.world.broker.store.events)


def test_a_clock_that_was_set_back_stops_nobody_from_being_fresh() -> None:
    """While it has not caught up with the newest change no topic grows older."""
    venue = Venue({"X/**": 2})
    venue.send("X/a.1")
    venue.settle()
    venue.pass_time(-3600 * SECOND_US)
    venue.check()
    assert venue.listed() == []
    venue.pass_time(3603 * SECOND_US)
    venue.check()
    assert venue.listed() == ["X/a.1"]


def test_the_log_has_a_few_lines_a_minute_and_a_sum_of_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """A venue that loses its network is reported, not each of its thousand machines."""
    caplog.set_level("INFO", "maxam")
    venue = Venue({"X/**": 1})
    venue.fresh.step(venue.world.now_s)
    for number in range(100):
        venue.send(f"X/m.{number}")
    venue.pass_time(2 * SECOND_US)
    venue.check()
    for number in range(30):
        venue.send(f"X/m.{number}")
    venue.settle()
    venue.pass_time(60 * SECOND_US)
    venue.fresh.step(venue.world.now_s)
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("topic-overdue ") for line in lines[:-1]) <= 2 * LINES_PER_MINUTE_MAX
    assert sum(line.startswith("topic-fresh-again ") for line in lines) == LINES_PER_MINUTE_MAX
    (summary,) = [line for line in lines if line.startswith("freshness-summary ")]
    assert "not_logged=" in summary
    assert "topic-overdue destination=X/m." in lines[0]
    assert "publisher=anna age_s=2.0 fresh_within_s=1" in lines[0]


def test_topics_that_come_and_go_are_let_go_of() -> None:
    """Entries are bounded by the topics that there are, not by those that there were in a long `fresh_within_s`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freshness, "_DEAD_MAX", 10)
        venue = Venue({"X/**": 86_400})
        for number in range(500):
            venue.send(f"X/{number}")
            venue.send(f"X/{number}", b"")
            forget_deletes(venue.world.broker.store)
            venue.settle()
            assert venue.fresh._entries <= 12


def test_topics_that_come_and_go_keep_no_other_from_being_overdue() -> None:
    """A publisher who makes more topics than a step checks delays the others by a few steps, and leaves no entries behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freshness, "BATCH_TOPICS", 10)
        patch.setattr(freshness, "EVENTS_MAX", 100)
        venue = Venue({"X/old": 2, "X/**": 86_400})
        for number in range(500):
            venue.send(f"X/rest.{number}")
        venue.send("X/old")
        venue.settle()
        number = venue.fresh._number
        venue.pass_time(3 * SECOND_US)
        for step in range(40):
            for name in range(50):
                venue.send(f"X/{step}.{name}")
                venue.send(f"X/{step}.{name}", b"")
            venue.fresh.step(venue.world.now_s)
        assert venue.fresh.count == 1
        assert venue.fresh._number == number
        assert not venue.fresh._discarded
        venue.check()


def test_it_looks_by_itself() -> None:
    """As a task, on a virtual clock: overdue within half a second of its time."""

    async def run() -> None:
        venue = Venue({"X/**": 2})
        start_us = venue.wall_us
        venue.fresh = Freshness(venue.world.broker, lambda: start_us + int(trio.current_time() * 1e6))
        venue.send("X/a.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(venue.fresh.run)
            await trio.sleep(1.9)
            assert venue.fresh.count == 0
            await trio.sleep(0.1 + 2 * STRETCH_US / 1e6 + 0.01)
            assert venue.fresh.count == 1
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def deleted(venue: Venue) -> list[tuple[str, str, tuple[tuple[bytes, bytes], ...]]]:
    """Return the deletes in the journal, with their publisher and headers."""
    found = [one for one in venue.world.journal if isinstance(one, Change) and one.deleted]
    return [(one.destination.decode(), one.publisher.principal, one.headers) for one in found]


EXPIRED = ((b"reason", b"expired"),)


def test_a_topic_expires_by_an_ordinary_delete_with_a_reason() -> None:
    """It happens after its time, once. A subscriber receives it, and a new value lives as long again."""
    venue = Venue({"X/**": (1, 2)})
    reader = venue.world.client()
    reader.subscribe(ack="auto")
    venue.send("X/a.1")
    venue.world.settle()
    reader.read()
    venue.pass_time(2 * SECOND_US)
    venue.check()
    assert venue.listed() == ["X/a.1"]
    assert deleted(venue) == []
    venue.pass_time(STRETCH_US)
    venue.check()
    assert deleted(venue) == [("X/a.1", "$gateway", EXPIRED)]
    (frame,) = reader.read()
    assert (frame.headers[b"destination"], frame.headers[b"reason"], frame.body) == (b"X/a.1", b"expired", b"")
    venue.pass_time(60 * SECOND_US)
    venue.check()
    assert len(deleted(venue)) == venue.asked == venue.world.broker.counters.topics_expired == 1
    venue.send("X/a.1")
    venue.pass_time(2 * SECOND_US)
    venue.check()
    assert len(deleted(venue)) == 1
    venue.pass_time(STRETCH_US)
    venue.check()
    assert deleted(venue) == [("X/a.1", "$gateway", EXPIRED)] * 2


@pytest.mark.parametrize("committed", [False, True])
def test_a_value_wins_over_the_expiry_of_the_one_before_it(committed: bool) -> None:
    """It wins if it is accepted first, though not on disk. After the delete it makes the topic again."""
    venue = Venue({"X/**": (None, 2)})
    venue.send("X/a.1", b"old")
    venue.settle()
    venue.pass_time(3 * SECOND_US)
    venue.world.wall_us = venue.wall_us
    if committed:
        while venue.fresh.step(venue.world.now_s):
            pass
        assert venue.world.broker.pending
    venue.publisher.send("X/a.1", b"new")
    venue.settle()
    assert venue.world.broker.store.topics[b"X/a.1"].change.body == b"new"
    assert len(deleted(venue)) == committed
    venue.check()


def test_a_restart_and_a_reload_count_from_the_value() -> None:
    """A topic whose time ended while the gateway was down expires at once. A changed rule applies at once too."""
    venue = Venue({"X/a.*": (None, 10), "X/**": None})
    for name in ("X/a.1", "X/b.1"):
        venue.send(name)
    venue.pass_time(60 * SECOND_US)
    venue.restart()
    venue.check()
    assert [name for name, _, _ in deleted(venue)] == ["X/a.1"]
    for age_s, gone in ((100, []), (61, []), (None, []), (59, ["X/b.1"])):
        venue.world.broker.replace_registry(registry({"X/b.*": (None, age_s) if age_s else None, "X/**": None}))
        venue.check()
        assert [name for name, _, _ in deleted(venue)] == ["X/a.1", *gone]


def test_a_delete_that_the_disk_refuses_is_tried_again() -> None:
    """On a full disk none is appended, and a refused one leaves the value; both are repeated within two seconds."""
    venue = Venue({"X/a.1": (None, 2), "X/**": (1, 2)})
    for name in ("X/a.1", "X/b.1"):
        venue.send(name)
    venue.settle()
    venue.pass_time(3 * SECOND_US)
    while venue.fresh.step(venue.world.now_s):
        pass
    batch = venue.world.take()
    assert len(batch) == 2
    venue.world.broker.roll_back_batch(batch)
    assert venue.world.broker.store.live == 2
    venue.full = True
    venue.pass_time(2 * SECOND_US)
    venue.settle()
    assert venue.world.broker.store.live == 2
    assert venue.listed() == ["X/b.1"]
    venue.full = False
    venue.pass_time(2 * SECOND_US)
    venue.check()
    assert venue.world.broker.store.live == 0


def test_low_memory_does_not_keep_expired_topics() -> None:
    """Deletes are the way out."""
    venue = Venue({"X/**": (None, 2)})
    venue.send("X/a.1")
    venue.world.broker.memory_low = True
    venue.pass_time(3 * SECOND_US)
    venue.check()
    assert venue.world.broker.store.live == 0


def test_many_topics_expire_in_passes_and_in_step_with_the_disk() -> None:
    """A batch appends a bounded number, and no more than EXPIRING_MAX and a batch wait for the disk; all go in the end."""
    venue = Venue({"X/**": (None, 2)})
    many = 3 * freshness.EXPIRING_MAX
    for number in range(many):
        venue.publisher.send(f"X/m.{number}")
    venue.settle()
    venue.pass_time(3 * SECOND_US)
    before = 0
    while venue.fresh.step(venue.world.now_s):
        waiting = len(venue.world.broker.pending)
        assert waiting - before <= freshness.BATCH_TOPICS
        before = waiting
    assert freshness.EXPIRING_MAX <= before < freshness.EXPIRING_MAX + freshness.BATCH_TOPICS
    for _ in range(4):
        venue.pass_time(2 * SECOND_US)
        venue.settle()
    venue.check()
    assert venue.world.broker.store.live == 0


def test_marks_of_sources_outlive_the_expiry() -> None:
    """A late older value of a source does not come back."""
    venue = Venue({"X/**": (None, 2)})
    venue.publisher.send("X/a.1", source="s", source_revision="7")
    venue.settle()
    venue.pass_time(3 * SECOND_US)
    venue.check()
    venue.publisher.send("X/a.1", receipt="r", source="s", source_revision="6")
    venue.settle()
    assert venue.world.broker.store.live == 0
