"""Fronts that go on with the next leader: what was sent takes effect once, and is answered in its place."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock

from maxam.cluster.feed import FeedRefusedError
from maxam.cluster.link import LinkLostError
from maxam.cluster.wire import GONE, WireError
from maxam.front.remote import RemoteFront
from maxam.gateway import front_orders
from maxam.gateway.resuming import read_resumption
from maxam.records import Change
from tests.support.fronted_world import KEPT_S, FrontClient, FrontedWorld
from tests.support.sans_io import EVERYTHING
from tests.unit.front.test_order import dispositions


def bodies(world: FrontedWorld) -> list[bytes]:
    """Return the bodies of all changes, in their order."""
    return [record.body for record in world.journal.records() if isinstance(record, Change)]


def begun() -> tuple[FrontedWorld, FrontClient]:
    """Return the leader of a cluster with two fronts, and a client of the first one."""
    world = FrontedWorld(proves=True)
    return world, world.connected(0)


def to_log(world: FrontedWorld) -> None:
    """Have all that the first front has sent committed, while it hears nothing of it."""
    while world.to_leader(world.fronts[0]):
        pass
    while world.begin_commit():
        world.end_commit()


def test_operations_of_each_kind_of_outcome_take_effect_once() -> None:
    """One was answered, one is in the log, one was taken, one was sent, and one waits."""
    world, client = begun()
    client.send("X/a", b"1", "r1")
    world.settle()
    client.send("X/a", b"2", "r2")
    to_log(world)
    client.send("X/a", b"3", "r3", if_revision="2")
    world.to_leader(world.fronts[0])
    client.send("X/a", b"4", "r4", source="s", source_revision="1")
    world.fronts[0].replica.flush()
    world.fail_over(written=False)
    client.send("X/a", b"5", "r5")
    assert [world.find_leader(front) for front in world.fronts] == ["", ""]
    world.settle()
    assert dispositions(client.read()) == [(f"r{number}", "accepted") for number in range(1, 6)]
    assert bodies(world) == [b"1", b"2", b"3", b"4", b"5"]
    client.send("X/a", b"6", "r6")
    world.settle()
    assert dispositions(client.read()) == [("r6", "accepted")]


def test_an_entry_that_comes_again_counts_once() -> None:
    """A conflict is an entry without a record, so it has the position of the front."""
    world, client = begun()
    client.send("X/a", b"1", "r1", if_revision="7")
    world.settle()
    assert dispositions(client.read()) == [("r1", "conflict")]
    world.fail_over(written=False)
    assert world.find_leader(world.fronts[0]) == ""
    world.settle()
    client.send("X/a", b"2", "r2")
    world.settle()
    assert dispositions(client.read()) == [("r2", "accepted")]


def test_a_refusal_by_a_full_log_stands() -> None:
    """A SEND that was refused is not sent again, although an ACK before it has no outcome yet."""
    world, client = begun()
    client.subscribe(durable=True, ack="client", receipt="s")
    client.send("X/a", b"1")
    world.settle()
    client.ack(next(frame for frame in client.read() if frame.command == b"MESSAGE"), "r1")
    client.send("X/a", b"2", "r2")
    front = world.fronts[0]
    world.to_leader(front)
    world.begin_commit()
    world.end_commit(full=True)
    while world.to_front(front):
        pass
    world.fail_over(written=False)
    assert world.find_leader(front) == ""
    world.settle()
    assert dispositions(client.read())[-1] == ("r2", "disk-full")
    assert bodies(world) == [b"1"]


def test_a_refusal_by_a_full_log_that_was_lost_is_found_in_the_next_entry() -> None:
    """A later operation is in the log. So the one before it, which is not, was given back."""
    world, client = begun()
    client.send("X/a", b"1", "r1")
    world.to_leader(world.fronts[0])
    world.begin_commit()
    world.end_commit(full=True)
    client.send("X/a", b"2", "r2")
    to_log(world)
    world.fail_over(written=False)
    assert world.find_leader(world.fronts[0]) == ""
    world.settle()
    assert dispositions(client.read()) == [("r1", "disk-full"), ("r2", "accepted")]
    assert bodies(world) == [b"2"]


def test_no_send_takes_effect_after_one_that_has_ended_its_connection() -> None:
    """The next leader does not know that, but the front does."""
    world, client = begun()
    client = world.connected(0, rejections="error")
    client.send("X/a", b"1", "r1", if_revision="7")
    to_log(world)
    client.send("X/a", b"2", "r2")
    world.fronts[0].replica.flush()
    world.fail_over(written=False)
    client.send("X/a", b"3", "r3")
    assert world.find_leader(world.fronts[0]) == ""
    world.settle()
    assert [frame.command for frame in client.read()] == [b"ERROR"]
    assert bodies(world) == []


def test_a_send_is_judged_by_the_files_of_the_next_leader() -> None:
    """It was judged by the files before a reload that took effect at the front meanwhile."""
    world, client = begun()
    client.send("X/a", b"1", "r1")
    front = world.fronts[0]
    front.replica.flush()
    world.reload(anna={**EVERYTHING, "send": ["X/b"]})
    world.to_front(front)
    world.fail_over(written=False)
    assert world.find_leader(front) == ""
    world.settle()
    assert dispositions(client.read()) == [("r1", "unauthorised")]


def test_a_front_begins_again_if_other_files_are_in_force() -> None:
    """It has judged by others than the next leader does."""
    world, _ = begun()
    world.fail_over(written=False)
    world.reload(anna={**EVERYTHING, "send": ["X/b"]})
    assert "files" in world.find_leader(world.fronts[0])


def test_a_front_begins_again_if_its_position_is_no_longer_kept() -> None:
    """The entries after it may have had its operations."""
    world, client = begun()
    client.send("X/a", b"1", "r1")
    to_log(world)
    world.fail_over(written=False)
    world.pass_time(KEPT_S + 1)
    other = world.client(1)
    assert world.find_leader(world.fronts[1]) == ""
    world.settle()
    assert other.read()
    other.send("X/a", b"2", "r2")
    world.settle()
    assert "memory" in world.find_leader(world.fronts[0])
    assert bodies(world) == [b"1", b"2"]


@pytest.mark.parametrize("logged", [True, False])
def test_a_front_that_was_ended_does_not_come_back_with_what_was_taken(logged: bool) -> None:
    """Its sessions were free. If the log does not have its end, the next leader knows nothing that came after that."""
    world, client = begun()
    client.send("X/a", b"1", "r1")
    world.to_leader(world.fronts[0])
    front = world.cut(0)
    if logged:
        to_log(world)
    front.replica.lose()
    assert world.find_leader(front)
    world.fail_over(written=False)
    assert bool(world.find_leader(front)) is logged
    if not logged:
        world.fronts.append(front)
        world.settle()
        assert dispositions(client.read()) == [("r1", "accepted")]
    assert bodies(world) == [b"1"]


def test_a_front_does_not_go_back_to_a_lower_term() -> None:
    """A leader that was deposed and does not know it yet has no client, and would have one for ever."""
    world, _ = begun()
    world.fail_over(written=False)
    world.kill(0)
    world.settle()
    world.fail_over(written=False)
    assert world.find_leader(world.fronts[0]) == ""  # after it was refused by both


def test_claims_are_made_again_and_sessions_stay() -> None:
    """A CONNECT that waits is answered by the next leader. A session that the front has is not given to another one."""
    world, _ = begun()
    world.connected(0, client_id="pump")
    waiting = world.client(0, client_id="new")
    to_log(world)
    world.fail_over(written=False)
    late = world.client(0, client_id="late")
    assert [world.find_leader(front) for front in world.fronts] == ["", ""]
    world.settle()
    taking = world.client(1, client_id="pump")
    world.to_leader(world.fronts[1])
    while world.begin_commit():
        world.end_commit()
    while world.to_front(world.fronts[1]):
        pass
    assert taking.read() == []
    world.settle()
    for client in (waiting, late, taking):
        assert [frame.command for frame in client.read()] == [b"CONNECTED"]


def test_a_front_begins_again_if_another_connection_has_one_of_its_sessions() -> None:
    """The newest connection has a session."""
    world, _ = begun()
    world.connected(0, client_id="pump")
    world.fail_over(written=False)
    assert world.find_leader(world.fronts[1]) == ""
    world.connected(1, client_id="pump")
    assert "session" in world.find_leader(world.fronts[0])


def test_a_session_that_the_former_leader_gave_to_another_connection_is_given_up() -> None:
    """The front had not heard of it. The entries of the former leader show what the other connection has done."""
    world, _ = begun()
    slow, fast = world.fronts
    old = world.connected(0, client_id="pump")
    old.subscribe(durable=True)
    world.settle()
    slow.stopped = True
    new = world.client(1, client_id="pump")
    world.settle()
    world.pass_time(0.6)
    world.settle()
    new.subscribe(id_="t", durable=True, receipt="r1")
    world.settle()
    assert dispositions(new.read()) == [("r1", "created")]
    world.fail_over(written=False)
    slow.stopped = False
    assert world.find_leader(slow) == ""
    world.settle()
    assert old.read()[-1].headers[b"message"] == b"session taken over by a newer connection"
    assert world.find_leader(fast) == ""
    world.settle()
    old.send("X/a", b"1")
    new.send("X/a", b"2", "r2")
    world.settle()
    assert dispositions(new.read()) == [("r2", "accepted")]
    assert bodies(world) == [b"2"]


SCENARIOS: tuple[Callable[[], None], ...] = (
    test_operations_of_each_kind_of_outcome_take_effect_once,
    test_an_entry_that_comes_again_counts_once,
    test_a_refusal_by_a_full_log_stands,
    test_a_refusal_by_a_full_log_that_was_lost_is_found_in_the_next_entry,
    test_no_send_takes_effect_after_one_that_has_ended_its_connection,
    test_a_send_is_judged_by_the_files_of_the_next_leader,
    test_a_front_begins_again_if_its_position_is_no_longer_kept,
    lambda: test_a_front_that_was_ended_does_not_come_back_with_what_was_taken(logged=True),
    test_a_front_does_not_go_back_to_a_lower_term,
    test_claims_are_made_again_and_sessions_stay,
    test_a_session_that_the_former_leader_gave_to_another_connection_is_given_up,
)


def test_a_front_that_waits_for_its_leader_bounds_what_it_keeps() -> None:
    """Once a mebibyte waits, nothing more is to be read from clients. That is over when it was handed over again."""
    world, client = begun()
    replica = world.fronts[0].replica
    world.fail_over(written=False)
    sent = 0
    while not replica.crowded:
        sent += 1
        client.send(f"X/{sent % 9}", bytes(10_000), f"r{sent}")
        replica.flush()
        assert sent <= 105
    assert sent > 95
    assert not replica.full
    assert world.find_leader(world.fronts[0]) == ""
    world.settle()
    assert not world.fronts[0].replica.crowded
    assert dispositions(client.read()) == [(f"r{number}", "accepted") for number in range(1, sent + 1)]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"resume": 1},
        {"resume": ["ab" * 8, 1, [0, 0], []]},
        {"resume": ["ab" * 7, 1, [0, 0, 0], []]},
        {"resume": ["xy" * 8, 1, [0, 0, 0], []]},
        {"resume": ["ab" * 8, None, [0, 0, 0], []]},
        {"resume": ["ab" * 8, 1, [0, 0, []], []]},
        {"resume": ["ab" * 8, 1, [0, 0, 0], ["a"]]},
    ],
)
def test_another_state_than_a_front_sends_is_refused(told: dict[str, object]) -> None:
    """The link of such a front is ended."""
    with pytest.raises(WireError):
        read_resumption(told)


def test_fronts_that_come_and_go_leave_little_behind() -> None:
    """The leader knows those that it has ended lately, and those that run however old they are."""
    world, _ = begun()
    orders = world.orders
    first = orders.begin(b"front--0", lambda _: None, lasting=True)
    local = orders.begin(b"front--l", lambda _: None)
    with patch.object(front_orders, "_ENDED_MAX", 3):
        for number in range(1, 6):
            orders.end(orders.begin(b"front--%d" % number, lambda _: None, lasting=True))
    assert [orders.knows(b"front--%d" % number) for number in range(6)] == [True, False, False, True, True, True]
    assert not orders.knows(local.id)
    orders.end(first)
    assert orders.knows(first.id)


def test_a_machine_that_does_not_answer_holds_up_a_search_once() -> None:
    """The search goes on with the others, and asks it again later."""
    front: Any = object.__new__(RemoteFront)
    vars(front)["_addresses"] = [("dead", 1), ("other", 1)]
    asked: list[str] = []

    def ask(host: str, *_: object) -> object:
        asked.append(host)
        if host == "dead":
            trio.from_thread.run(trio.sleep, 2.0)
            raise LinkLostError("silent")
        if asked.count("dead") < 2:
            raise LinkLostError("no leader")
        raise FeedRefusedError(GONE, "too late")

    with patch.object(RemoteFront, "_resume", lambda _, *arguments: ask(*arguments)), pytest.raises(FeedRefusedError):
        trio.run(front._find_leader, None, None, None, clock=MockClock(autojump_threshold=0))
    assert asked[:2] == ["dead", "other"]
    assert asked[-2:] == ["dead", "other"]
    assert asked.count("other") > 10
