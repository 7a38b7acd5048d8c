"""Globs that take too long to compare with each new topic: their subscriptions get it later, and publishers do not wait."""

import random

import pytest

from maxam.stomp.frames import Frame
from tests.support.sans_io import EVERYTHING, Client, World, policy, values

# Sixteen globs of a principal are found together with those of others. The ones that follow are compared one after the other.
FIRST = [f"X/none.{number}" for number in range(16)]
HOSTILE = [f"X/*[a-z]*[{chr(97 + number % 26)}-z]*#{number}" for number in range(60)]


def hostile(world: World, *lines: str) -> Client:
    """Connect a principal whose globs take too long, and that subscribes to X/*[a-z]* too, with more header lines."""
    world.broker.incarnation = "0123456789abcdef"
    carol = world.client("carol", client_id="carol")
    for number, text in enumerate([*FIRST, *HOSTILE]):
        carol.subscribe(text, f"h{number}", ack="auto")
    head = "".join(f"{line}\n" for line in ("id:s", "destination:X/*[a-z]*", "ack:auto", *lines))
    carol.write(f"SUBSCRIBE\n{head}\n\0".encode())
    world.settle()
    carol.read()
    return carol


def finish(world: World) -> None:
    """Commit, and do all work in the background."""
    while world.broker.pending or world.broker.late:
        world.commit()
        world.broker.find_late(1000)


def revisions(frames: list[Frame]) -> list[tuple[str, int]]:
    """Return destination and revision of the MESSAGEs, in order."""
    return [
        (frame.headers[b"destination"].decode(), int(frame.headers[b"message-id"].split(b" ")[-1]))
        for frame in frames
        if frame.command == b"MESSAGE" and frame.headers[b"destination"] != b"$marker"
    ]


def positions(frames: list[Frame]) -> list[int]:
    """Return the revisions of the positions that markers report."""
    return [int(frame.headers[b"position"].split(b".")[1]) for frame in frames if b"position" in frame.headers]


def test_a_new_topic_comes_late_and_its_next_change_at_once() -> None:
    """The first value is owed once the globs were compared with the topic; routes are complete from then on."""
    world = World.make(anna=EVERYTHING, carol=EVERYTHING)
    carol, anna = hostile(world), world.client()
    anna.send("X/a", b"1")
    world.commit()
    assert carol.read() == []
    assert world.broker.late_topics("carol") == 1
    assert world.broker.late
    anna.send("X/a", b"2")
    world.commit()
    finish(world)
    assert values(carol.read()) == [("X/a", "2")]
    anna.send("X/a", b"3")
    world.commit()
    assert values(carol.read()) == [("X/a", "3")]
    assert not world.broker.late


def test_one_part_of_the_work_is_bounded() -> None:
    """However many topics are late, a part compares as many globs as asked for at most, and other principals get values at once."""
    world = World.make(anna=EVERYTHING, carol=EVERYTHING, dora=EVERYTHING)
    carol, anna, dora = hostile(world), world.client(), world.client("dora")
    dora.subscribe("X/*", ack="auto")
    world.settle()
    for number in range(50):
        anna.send(f"X/a{number}")
    world.commit()
    assert len(values(dora.read())) == 50
    parts = 0
    while world.broker.late:
        world.broker.find_late(20)
        parts += 1
    assert parts >= 50 * len(HOSTILE) // 25
    assert sorted(values(carol.read())) == sorted((f"X/a{number}", "value") for number in range(50))


def test_a_position_does_not_pass_a_late_topic() -> None:
    """While a topic is late, no marker reports a newer position, and staleness counts from the change on."""
    world = World.make(anna=EVERYTHING, carol=EVERYTHING)
    carol, anna = hostile(world, "markers:true"), world.client()
    subscription = world.broker.sessions["carol", "carol"].subscriptions[b"s"]
    anna.send("X/late")
    world.commit()
    revision = world.broker.committed_revision
    assert subscription.scans == 1
    assert 0 < subscription.owed_since_us() <= world.broker.store.topics[b"X/late"].change.accepted_at_us
    for _ in range(3):
        world.now_s += 10
        assert [position for position in positions(carol.read()) if position >= revision] == []
    finish(world)
    assert subscription.scans == 0
    frames = carol.read()
    assert [destination for destination, _ in revisions(frames)] == ["X/late"]
    world.now_s += 10
    frames += carol.read()
    assert positions(frames)[-1] >= revision


def test_a_delete_that_is_late_is_kept_until_it_is_owed() -> None:
    """A tombstone that late globs are still to be compared with is not forgotten."""
    world = World.make(anna=EVERYTHING, carol=EVERYTHING)
    hostile(world)
    anna = world.client()
    anna.send("X/a")
    world.commit()
    anna.send("X/a", delete="true")
    world.commit()
    topic = world.broker.store.topics[b"X/a"]
    assert world.broker._scanner.needed_of({topic}) == {topic}
    finish(world)
    assert world.broker._scanner.needed_of({topic}) == set()


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))])
def test_in_the_end_all_have_what_they_subscribed_to(seed: int) -> None:
    """Random sessions: each value comes at most once to a subscription, and the newest of each topic has come in the end."""
    dice = random.Random(seed)  # noqa: S311  # to be repeatable
    world = World.make(anna=EVERYTHING, carol=EVERYTHING)
    carol, anna = hostile(world), world.client()
    got: list[tuple[str, int]] = []
    subscribed = world.broker.committed_revision
    for _ in range(200):
        kind = dice.randrange(9)
        if kind < 4:
            anna.send(f"X/{dice.choice('abcdefgh')}{dice.randrange(12)}", b"%d" % dice.randrange(100))
        elif kind == 4:
            number = dice.randrange(len(HOSTILE))
            carol.unsubscribe(f"h{number}")
            carol.subscribe(dice.choice(HOSTILE) + str(dice.randrange(9)), f"h{number}", ack="auto")
        elif kind == 5:
            for number in range(100, 100 + dice.randrange(90)):
                carol.subscribe("X/none", str(number), ack="auto")
                carol.unsubscribe(str(number))
        elif kind == 6:
            world.broker.replace_policy(policy(anna=EVERYTHING, carol=EVERYTHING))
        elif kind == 7:
            world.broker.find_late(dice.randrange(1, 200))
        world.commit()
        got += revisions(carol.read())
    finish(world)
    got += revisions(carol.read())
    assert len(got) == len(set(got))
    newest = dict(sorted(got, key=lambda one: one[1]))
    for topic in world.broker.store.topics.values():
        if topic.change.revision > subscribed and not topic.change.deleted:
            assert newest.get(topic.name) == topic.change.revision


def test_the_end_of_a_late_principal_leaves_nothing() -> None:
    """Its late topics are gone once the rest of the work is done, though its sessions have ended before."""
    world = World.make(anna=EVERYTHING, carol=EVERYTHING)
    carol, anna = hostile(world), world.client()
    for number in range(20):
        anna.send(f"X/a{number}")
    world.commit()
    carol.lose()
    world.settle()
    finish(world)
    assert not world.broker.late
    assert world.broker.late_topics("carol") == 0
