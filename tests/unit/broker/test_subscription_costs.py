"""Limits on the cost of one principal's subscriptions for others: places in the index, scans, and the work of a reload."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from maxam.broker.routing import Routing
from maxam.broker.scans import SCAN_TOPICS, Scan, Scanner, Scans
from maxam.config import Limits
from maxam.glob_sets import GlobSet
from maxam.globs import Glob
from maxam.stomp.frames import Frame
from tests.support.sans_io import EVERYTHING, Client, World, policy

NOTHING: dict[str, Sequence[str]] = {"send": [], "receive": []}


def values(frames: list[Frame]) -> set[str]:
    """Return the destinations of the MESSAGEs."""
    return {frame.headers[b"destination"].decode() for frame in frames if frame.command == b"MESSAGE"}


def filled(count: int, **principals: Any) -> tuple[World, Client]:
    """Return a world with that many topics, published by anna."""
    world = World.make(anna=EVERYTHING, **principals)
    anna = world.client()
    for number in range(count):
        anna.send(f"X/t.{number:05}")
    world.settle()
    anna.read()
    return world, anna


def test_what_no_right_can_match_is_neither_indexed_nor_scanned() -> None:
    """A thousand eager subscriptions of a principal without rights leave the index empty and begin no scan."""
    world, anna = filled(SCAN_TOPICS + 1, carol=NOTHING, dora={"send": [], "receive": ["Y/**"]})
    with (
        patch.object(Scanner, "_scan_slice", side_effect=AssertionError),
        patch.object(Glob, "prepare", side_effect=AssertionError),
    ):
        for principal in ("carol", "dora"):
            client = world.client(principal)
            for number in range(500):
                client.subscribe(f"X/*{number}*", str(number), eager=True, durable=number % 2 == 0)
            world.settle()
            assert not [frame for frame in client.read() if frame.command == b"ERROR"]
    assert len(world.broker._routing) == 0
    assert len(world.broker._scanner.scans) == 0
    anna.send("X/new")
    world.settle()
    assert world.broker.store.topics[b"X/new"].routes == []


def test_a_grant_indexes_and_scans_what_it_concerns() -> None:
    """After a reload, subscriptions that a new right can match get what an eager or durable one is owed; the others stay out."""
    world, anna = filled(SCAN_TOPICS + 1, carol=NOTHING)
    carol = world.client("carol")
    for number in range(10):
        carol.subscribe(f"X/t.0000{number}", str(number), ack="auto", eager=number % 2 == 0)
    carol.subscribe("Q/**", "q", ack="auto", eager=True)
    world.settle()
    carol.read()
    world.broker.replace_policy(policy(anna=EVERYTHING, carol={"receive": ["X/**"]}))
    assert len(world.broker._routing) == 10
    assert len(world.broker._scanner.scans) == 5
    world.settle()
    assert values(carol.read()) == {f"X/t.0000{number}" for number in range(0, 10, 2)}
    anna.send("X/t.00001", b"now")
    world.settle()
    assert values(carol.read()) == {"X/t.00001"}


def test_what_is_not_in_the_index_leaves_nothing_to_clear() -> None:
    """The end of a thousand subscriptions that no right can match begins no scan over the topics."""
    world, anna = filled(1, carol=NOTHING)
    anna.subscribe("X/**", "s")
    world.settle()
    carol = world.client("carol")
    for number in range(1000):
        carol.subscribe(f"X/{number}", str(number))
    world.settle()
    carol.lose()
    world.settle()
    assert world.broker._routing._removed == 0


def test_many_subscriptions_are_compared_with_a_grant_in_slices() -> None:
    """One pass compares a bounded number of globs; all that the grant concerns are indexed in the end, and owe what is there."""
    world, _ = filled(300, carol=NOTHING)
    carol = world.client("carol")
    for number in range(300):
        carol.subscribe(f"X/t.{number:05}", str(number), ack="auto", eager=True)
    world.settle()
    carol.read()
    compared = 0
    decide = GlobSet.overlaps

    def count(globs: GlobSet, glob: Glob) -> bool:
        nonlocal compared
        compared += 1
        return decide(globs, glob)

    got: set[str] = set()
    with patch.object(GlobSet, "overlaps", count):
        world.broker.replace_policy(policy(anna=EVERYTHING, carol={"receive": ["X/**"]}))
        assert compared <= 64
        while world.broker.scanning:
            before = compared
            world.broker.scan()
            assert compared - before <= 8
            got |= values(carol.read())
    assert len(world.broker._routing) == 300
    assert got == {f"X/t.{number:05}" for number in range(300)}


def test_a_second_grant_does_not_hide_what_the_first_one_gave() -> None:
    """A subscription that waits to be compared with a grant gets what that granted, though another grant that concerns it comes first."""
    world, _ = filled(80, carol=NOTHING)
    carol = world.client("carol")
    for number in range(80):
        carol.subscribe(f"X/t.{number:05}", str(number), ack="auto", eager=number >= 64)
    world.settle()
    carol.read()
    world.broker.replace_policy(policy(anna=EVERYTHING, carol={"receive": ["X/**"]}))
    world.broker.replace_policy(policy(anna=EVERYTHING, carol={"receive": ["X/**", "X/t.*"]}))
    world.settle()
    assert values(carol.read()) == {f"X/t.{number:05}" for number in range(64, 80)}


def test_a_reload_that_changes_nothing_for_a_principal_costs_it_nothing() -> None:
    """Equal rights stay the same object, routes stay valid, and no scan begins; a grant to another principal changes only that one's."""
    world, anna = filled(SCAN_TOPICS + 1, ben=EVERYTHING)
    ben = world.client("ben")
    ben.subscribe("X/**", eager=True, durable=True)
    world.settle()
    ben.read()
    rights = world.broker.policy.rights("anna"), world.broker.policy.rights("ben"), world.broker.policy.rights("none")
    anna.send("X/t.00001", b"again")
    world.settle()
    epoch = world.broker._routing.epoch
    routes = world.broker.store.topics[b"X/t.00001"].routes
    for carol in (NOTHING, {"receive": ["X/t.*"]}):
        world.broker.replace_policy(policy(anna=EVERYTHING, ben=EVERYTHING, carol=carol))
        assert rights == tuple(world.broker.policy.rights(name) for name in ("anna", "ben", "none"))
        assert world.broker._routing.epoch == epoch
        assert len(world.broker._scanner.scans) == 0
    anna.send("X/t.00001", b"again")
    with patch.object(Routing, "_route", side_effect=AssertionError):
        world.settle()
    assert world.broker.store.topics[b"X/t.00001"].routes is routes


def test_a_grant_begins_scans_only_where_it_concerns_the_glob() -> None:
    """An eager subscription that a new right cannot match is not scanned for again."""
    world, _ = filled(SCAN_TOPICS + 1, ben={"receive": ["X/t.*"]})
    ben = world.client("ben")
    ben.subscribe("X/t.00000", "one", eager=True)
    ben.subscribe("X/*", "all", eager=True)
    world.settle()
    world.broker.replace_policy(policy(anna=EVERYTHING, ben={"receive": ["X/t.*", "X/u.*"]}))
    assert [scan.subscription.id for scan in world.broker._scanner.scans] == [b"all"]


@pytest.mark.interpreted
def test_scans_take_turns_by_principal() -> None:
    """Beside hundreds of scans of one principal, the scan of another checks every second batch of topics."""
    world, _ = filled(5 * SCAN_TOPICS, ben=EVERYTHING, carol=EVERYTHING)
    carol, ben = world.client("carol"), world.client("ben")
    for number in range(300):
        carol.subscribe("X/t.*", str(number), eager=True)
    ben.subscribe("X/t.*", eager=True)
    world.commit()
    assert len(world.broker._scanner.scans) == 301
    scanned: Counter[str] = Counter()
    scan_slice = Scanner._scan_slice

    def count(scanner: Scanner, scan: Scan, topics: int) -> tuple[int, bool]:
        seen, ended = scan_slice(scanner, scan, topics)
        scanned[scan.principal] += seen
        return seen, ended

    with patch.object(Scanner, "_scan_slice", count):
        for _ in range(10):
            world.broker.scan()
    assert scanned["ben"] >= 4 * SCAN_TOPICS
    assert scanned["carol"] >= 4 * SCAN_TOPICS


@pytest.mark.interpreted
@pytest.mark.slow
@patch("maxam.broker.session.SCAN_READY_MAX", 100)
def test_a_call_looks_at_a_bounded_number_of_resting_scans() -> None:
    """Hundreds of scans whose subscribers read nothing neither make a pass long nor keep another principal's scan waiting."""
    world, _ = filled(SCAN_TOPICS + 1, ben=EVERYTHING, carol=EVERYTHING)
    carol = world.client("carol", window="1")
    for number in range(600):
        carol.subscribe("X/t.*", str(number), eager=True)
    world.commit()
    for _ in range(650):
        world.broker.scan()
    assert (len(world.broker._scanner.scans), world.broker.resting, world.broker.scanning) == (600, True, False)
    ben = world.client("ben", client_id="reader")
    ben.subscribe("X/t.*", eager=True)
    world.commit()
    popped: list[Scan] = []
    pop = Scans.pop

    def count(scans: Scans) -> Scan:
        popped.append(pop(scans))
        return popped[-1]

    with patch.object(Scans, "pop", count):
        world.broker.scan()
    assert len(popped) < 300
    assert len(world.broker.sessions["ben", "reader"].subscriptions[b"s"].owed) >= 100


def test_an_eager_resume_frees_what_the_scan_before_it_held() -> None:
    """However often a client resumes a subscription with `eager`, the scans under way hold what it owes once."""
    world, _ = filled(SCAN_TOPICS + 1, ben=EVERYTHING)
    ben = world.client("ben", client_id="ben")
    ben.subscribe("X/t.*", durable=True, eager=True)
    ben.write(b"UNSUBSCRIBE\nid:s\n\n\0")
    world.settle()
    subscription = world.broker.sessions["ben", "ben"].subscriptions[b"s"]
    assert len(subscription.owed) == SCAN_TOPICS + 1
    for _ in range(50):
        ben.subscribe("X/t.*", durable=True, eager=True)
        ben.write(b"UNSUBSCRIBE\nid:s\n\n\0")
    assert sum(len(scan.owed) for scan in world.broker._scanner.scans) == SCAN_TOPICS + 1
    ben.write(b"UNSUBSCRIBE\nid:s\ndurable:true\n\n\0")
    assert sum(len(scan.owed) for scan in world.broker._scanner.scans) == 0
    world.settle()
    assert (len(world.broker._scanner.scans), len(world.broker._scanner.scans.eager)) == (0, 0)


@pytest.mark.slow
@pytest.mark.interpreted
def test_eager_subscribes_of_one_commit_scan_a_bounded_number_of_topics_at_once() -> None:
    """Hundreds of eager SUBSCRIBEs in one commit begin scans; only the first few topics are checked on the spot."""
    world, _ = filled(SCAN_TOPICS // 2, ben=EVERYTHING)
    clients = [world.client("ben") for _ in range(5)]
    for client in clients:
        for number in range(40):
            client.subscribe("X/t.*", str(number), ack="auto", eager=True)
    scanned = 0
    scan_slice = Scanner._scan_slice

    def count(scanner: Scanner, scan: Scan, topics: int) -> tuple[int, bool]:
        nonlocal scanned
        seen, ended = scan_slice(scanner, scan, topics)
        scanned += seen
        return seen, ended

    with patch.object(Scanner, "_scan_slice", count):
        world.commit()
    assert SCAN_TOPICS // 2 <= scanned <= SCAN_TOPICS + 1
    world.settle()
    for client in clients:
        assert len(values(client.read())) == SCAN_TOPICS // 2


def test_subscriptions_of_a_principal_and_of_all_are_limited() -> None:
    """The SUBSCRIBE above a limit gets an ERROR that shows it, whatever the session; an UNSUBSCRIBE makes room."""
    limits = Limits(subscriptions_per_principal_max=3, subscriptions_max=8)
    world = World.make(limits=limits, anna=EVERYTHING, ben=EVERYTHING)
    first, second, third = world.client(), world.client(), world.client()
    for number in range(3):
        first.subscribe("X/*", str(number))
    second.subscribe("X/*", "s")
    (error,) = [frame for frame in second.read() if frame.command == b"ERROR"]
    assert b"subscriptions_per_principal_max" in error.body
    first.write(b"UNSUBSCRIBE\nid:0\n\n\0")
    third.subscribe("X/*", "s")
    assert not [frame for frame in third.read() if frame.command == b"ERROR"]


def test_principals_that_take_all_subscriptions_leave_some_to_another() -> None:
    """However few principals try to use up `subscriptions_max`, one more gets half as many subscriptions as each of them."""
    limits = Limits(subscriptions_max=40)
    attackers = ["p1", "p2", "p3"]
    world = World.make(limits=limits, ben=EVERYTHING, p1=EVERYTHING, p2=EVERYTHING, p3=EVERYTHING)
    left = set(attackers)
    clients = {name: world.client(name) for name in attackers}
    for number in range(41):
        for name in sorted(left):
            clients[name].subscribe("X/*", str(number))
            errors = [frame for frame in clients[name].read() if frame.command == b"ERROR"]
            if errors:
                assert b"(limit subscriptions_max)" in errors[0].body
                left.remove(name)
    assert not left
    assert world.broker._table.quotas.subscriptions == 30
    ben = world.client("ben")
    for number in range(5):
        ben.subscribe("X/*", str(number))
    assert not [frame for frame in ben.read() if frame.command == b"ERROR"]
