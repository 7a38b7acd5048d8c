"""Staleness: the findings of the scan, the answers of the routes, and one scan for many callers."""

from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing

from maxam.broker.outbox import Outbox
from maxam.gateway import staleness
from maxam.gateway.staleness import KEPT_S, WORST_MAX, Staleness
from maxam.stomp.events import Send, Subscribe, SubscribeOptions
from tests.unit.api.test_api import ADMIN, READER, World, datum, run

S = 1_000_000
START_US = 1_700_000_000_000_000


@pytest.fixture
def world() -> World:
    """A broker without clients, and the API."""
    world = World()
    world.wall_us = START_US
    return world


def subscribe(
    world: World,
    connection: Outbox,
    id_: str,
    glob: str,
    *,
    ack: bool = False,
    durable: bool = False,
    eager: bool = False,
    options: SubscribeOptions | None = None,
) -> None:
    """Subscribe now, committed on return."""
    event = Subscribe(id_.encode(), glob.encode(), ack, durable, eager, None, options=options)
    world.broker.subscribe(connection, event, world.wall_us)
    world.committer.schedule_commit()


def send(world: World, destination: str) -> None:
    """Publish a value now, committed on return."""
    world.broker.send(world.publisher, Send(destination.encode(), datum("v"), (), None), world.wall_us)
    world.committer.schedule_commit()


def later(world: World, seconds: float) -> None:
    """Let time pass."""
    world.wall_us += round(seconds * S)


def look(world: World) -> staleness.LagReport:
    """Scan all subscriptions now."""

    async def test() -> staleness.LagReport:
        return await Staleness(world.broker, 5.0, lambda: world.wall_us).report()

    return trio.run(test)


def one(world: World) -> staleness.SubscriptionRow:
    """Return the only subscription that lacks something."""
    (row,) = look(world).worst
    return row


def drain(connection: Outbox) -> None:
    """Have a client read all that it may be sent."""
    while connection.drain(0.0):
        pass


def test_who_has_everything_is_not_behind(world: World) -> None:
    """Nothing is lacked by somebody who has read everything, however long ago that was."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**")
    send(world, "X/A.1")
    drain(connection)
    later(world, 3600)
    found = look(world)
    assert (found.looked_at, found.behind, found.worst) == (1, 0, ())
    assert found.largest_s == {"connected": 0.0, "detached": 0.0}


def test_what_is_not_read_is_lacked_since_the_first_change(world: World) -> None:
    """A topic that changes again and again while it waits is lacked since the first of these changes."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**")
    for _ in range(10):
        send(world, "X/A.1")
        later(world, 1)
    row = one(world)
    assert (row.staleness_s, row.oldest_owed_s, row.oldest_unacked_s) == (10.0, 10.0, 0.0)
    assert (row.owed, row.conflated, row.cause) == (1, 9, "unread")
    drain(connection)
    assert not look(world).worst


def test_what_is_not_acknowledged_is_lacked(world: World) -> None:
    """Sent is not had, in ack mode client; and an ACK of it is not one of what came since."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**", ack=True)
    send(world, "X/A.1")
    later(world, 2)
    drain(connection)
    later(world, 2)
    send(world, "X/A.1")
    later(world, 2)
    row = one(world)
    assert (row.oldest_unacked_s, row.oldest_owed_s, row.cause) == (6.0, 2.0, "unacknowledged")
    subscription = connection.session.subscriptions[b"s"]
    subscription.acked(subscription.sent[0])
    connection.in_flight -= 1
    assert one(world).staleness_s == 2.0


def test_a_disconnect_forgives_nothing(world: World) -> None:
    """A message without an ACK is lacked since it was first owed, also while its client is away."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**", ack=True, durable=True)
    send(world, "X/A.1")
    drain(connection)
    later(world, 3)
    send(world, "X/A.1")
    world.broker.detach(connection, 0.0)
    later(world, 4)
    row = one(world)
    assert (row.staleness_s, row.owed, row.unacked, row.cause) == (7.0, 1, 0, "detached")
    found = look(world)
    assert found.largest_s == {"connected": 0.0, "detached": 7.0}
    assert (found.behind, found.counts) == (1, {"connected": 0, "detached": 1})


def test_old_values_are_lacked_since_they_were_asked_for(world: World) -> None:
    """An eager subscriber of values of last week is not a week behind."""
    send(world, "X/A.1")
    later(world, 7 * 86_400)
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**", eager=True)
    later(world, 1)
    assert one(world).staleness_s == 1.0


def test_a_walk_under_way_is_lacked(world: World) -> None:
    """An eager subscription lacks something until all topics were scanned, though nothing is owed yet."""
    for number in range(1100):
        send(world, f"X/A.{number:04}")
    connection = world.connect("admin", "a")
    subscribe(world, connection, "t", "X/A.*", eager=True)
    while connection.drain(0.0):
        pass
    later(world, 2)
    row = one(world)
    assert (row.id, row.owed, row.staleness_s, row.cause) == ("t", 0, 2.0, "catching-up")
    while world.broker.scan():
        pass
    drain(connection)
    assert not look(world).worst


def test_a_paused_subscription_says_so(world: World) -> None:
    """A durable subscription whose client is connected and has not re-subscribed."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**", durable=True)
    world.broker.detach(connection, 0.0)
    world.connect("admin", "a")
    send(world, "X/A.1")
    assert one(world).cause == "paused"


def test_what_an_interval_holds_is_no_lag(world: World) -> None:
    """A subscription whose topics all wait for the end of an interval is not behind, and its cause is `held`."""
    connection = world.connect("admin", "a")
    options = SubscribeOptions(interval_ms=60_000, selector="text <> 'x'", changes_only=True)
    subscribe(world, connection, "s", "X/**", options=options)
    for _ in range(2):
        send(world, "X/A.1")
        later(world, 9)
        drain(connection)
        world.broker.send(world.publisher, Send(b"X/A.1", datum("w"), (), None), world.wall_us)
        world.committer.schedule_commit()
    assert look(world).worst == ()

    async def test() -> None:
        (row,) = (await world.json("/v1/subscriptions?principal=admin"))["subscriptions"]
        assert (row["cause"], row["owed"], row["staleness_s"], row["behind"]) == ("held", 1, 0.0, False)
        assert row["refinement"] == {
            "selector": "text <> 'x'",
            "min_interval_ms": 60_000,
            "changes_only": True,
            "markers": False,
            "metadata": False,
            "format": "",
            "fields": [],
        }

    run(test)


def test_a_delivery_is_explained(world: World) -> None:
    """The answer has the cause, the facts and the refinement. Names may have all characters. Errors have their statuses."""
    world.wall_us -= 3 * S  # of the SUBSCRIBE
    connection = world.connect("admin", "a b/c")
    subscribe(world, connection, "s/1", "X/**", ack=True)
    subscribe(world, connection, "f", "X/**", options=SubscribeOptions(selector="text = 'w'", metadata=True))
    later(world, 3)
    send(world, "X/B.1")
    drain(connection)
    send(world, "X/B.1")
    path = "/v1/subscriptions/explain?principal=admin&client_id=a%20b%2Fc"

    async def code(of: str, destination: str, who: str = ADMIN) -> Any:
        query = f"{path}&id={quote(of, safe='')}&destination={quote(destination, safe='')}"
        return (await world.json(query, who))["code"]

    async def test() -> None:
        assert await world.json(f"{path}&id=s/1&destination=X/B.1") == {
            "principal": "admin",
            "client_id": "a b/c",
            "id": "s/1",
            "destination": "X/B.1",
            "glob": "X/**",
            "code": "superseded",
            "revision": 2,
            "accepted_at": "2023-11-14T22:13:20.000000Z",
            "deleted": False,
            "sent_revision": 1,
            "place": None,
            "since_s": None,
            "left_s": None,
            "window": connection.window.size,
            "in_flight": 1,
            "in_focus": None,
            "refinement": None,
        }
        assert await code("s/1", "X/nothing") == "no-topic"
        assert await code("s/1", "Y/\u00e9 \0") == "no-match"
        assert await code("f", "X/B.1") == "filtered"
        assert await code("f", "X/B.1", READER) == "undisclosed"  # it may receive X/A.** only
        assert await code("s/1", "X/B.1", READER) == "superseded"
        for wrong, status in (
            ("&id=x&destination=X/B.1", 404),
            ("&id=&destination=X/B.1", 404),
            ("&destination=X/B.1", 400),
            ("&id=f", 400),
            ("&id=f&destination=X/B.1&x=1", 400),
        ):
            assert (await world.ask("GET", path + wrong)).status_code == status, wrong
        nobody = "/v1/subscriptions/explain?principal=admin&client_id=none&id=f&destination=X/B.1"
        assert (await world.ask("GET", nobody)).status_code == 404

    run(test)


def test_the_worst_come_first_and_are_bounded(world: World) -> None:
    """Of any number that are behind, a limited number is kept, and they are the worst."""
    for number in range(WORST_MAX + 50):
        connection = world.connect("admin", f"c{number:04}")
        subscribe(world, connection, "s", f"X/A.{number}")
    for number in range(WORST_MAX + 50):
        send(world, f"X/A.{number}")
        later(world, 1)
    found = look(world)
    assert [row.client_id for row in found.worst] == [f"c{number:04}" for number in range(WORST_MAX)]
    assert (found.behind, found.looked_at) == (WORST_MAX + 45, WORST_MAX + 50)


def test_a_clock_that_is_set_back_makes_nobody_current(world: World) -> None:
    """A subscription that lacks something is never shown as complete. Time is that of the newest change at least."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**")
    send(world, "X/A.1")
    later(world, -3600)
    assert 0 < one(world).staleness_s < 1e-3


def test_many_who_ask_cost_one_walk(world: World) -> None:
    """A request during a scan, or soon after, gets its findings. A later one starts a new scan."""
    for number in range(200):
        subscribe(world, world.connect("admin", f"c{number}"), "s", "X/**")
    asked = Staleness(world.broker, 5.0, lambda: world.wall_us)
    found: list[staleness.LagReport] = []

    async def ask() -> None:
        found.append(await asked.report())

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        assert len({id(one) for one in found}) == 1
        await trio.sleep(KEPT_S / 2)
        assert await asked.report() is found[0]
        await trio.sleep(KEPT_S * 21)
        assert await asked.report() is not found[0]

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_walk_that_is_given_up_is_begun_anew_by_whoever_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ends early takes nothing from the others."""
    monkeypatch.setattr(staleness, "SLICE_S", 0.0)
    for number in range(50):
        subscribe(world, world.connect("admin", f"c{number}"), "s", "X/**")
    asked = Staleness(world.broker, 5.0, lambda: world.wall_us)

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(asked.report)
                await trio.lowlevel.checkpoint()
                scope.cancel()
            found = await asked.report()
        assert found.looked_at == 50

    async def given_up() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(test)
                await trio.lowlevel.checkpoint()
                scope.cancel()
        assert (await asked.report()).looked_at == 50

    trio.run(test)
    trio.run(given_up)


def test_what_was_handed_out_and_not_written_is_lacked_as_before(world: World) -> None:
    """A value that was taken for a durable subscriber and never arrived is lacked since its topic first was, not since it was made."""
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**", durable=True)
    send(world, "X/A.1")
    later(world, 5)
    send(world, "X/A.1")
    later(world, 5)
    assert connection.drain(0.0)
    assert one(world).staleness_s == 10.0
    world.broker.detach(connection, 0.0)
    later(world, 2)
    row = one(world)
    assert (row.staleness_s, row.owed, row.cause) == (12.0, 1, "detached")


def test_what_is_old_is_lacked_since_it_was_asked_for_however_much_it_is(world: World) -> None:
    """An eager subscriber to more topics than can be kept apart is not behind by the age of their values."""
    for number in range(1200):
        send(world, f"X/A.{number}")
    later(world, 86_400)
    connection = world.connect("admin", "a")
    subscribe(world, connection, "s", "X/**", eager=True)
    world.broker.scan(2000)
    send(world, "X/A.999")  # found last
    later(world, 3)
    row = one(world)
    assert (row.staleness_s, row.owed) == (3.0, 1200)


@pytest.mark.parametrize("taken", [False, True])
def test_what_waits_for_the_disk_is_lacked_since_it_was_accepted(world: World, taken: bool) -> None:
    """An eager SUBSCRIBE while a change waits for the disk, or is being written, lacks the change since it was accepted."""
    first = world.connect("admin", "a")
    for id_ in ("1", "2"):
        subscribe(world, first, id_, f"X/{id_}.*", durable=True)
    send(world, "X/1.1")
    send(world, "X/2.1")
    drain(first)
    world.broker.detach(first, 0.0)
    connection = world.connect("admin", "a")
    world.committer.schedule_commit()
    later(world, 3600)
    subscribe(world, connection, "1", "X/1.*", durable=True, eager=True)
    drain(connection)
    world.committer.schedule_commit()
    world.committer.stuck = True
    world.broker.send(world.publisher, Send(b"X/2.1", datum("v"), (), None), world.wall_us)
    batch = world.broker.take_batch() if taken else None
    later(world, 5)
    subscribe(world, connection, "2", "X/2.*", durable=True, eager=True)
    drain(connection)
    world.committer.stuck = False
    if batch is not None:
        world.broker.apply_batch(batch)
    world.committer.schedule_commit()
    later(world, 2)
    assert one(world).staleness_s == 7.0


def test_the_routes_answer_what_was_found(world: World) -> None:
    """The worst first, as many as are asked for; all subscriptions in order, over pages, also filtered."""
    for name in ("b", "a", "c/d"):
        connection = world.connect("admin", name)
        for id_ in ("2", "1", "3"):
            subscribe(world, connection, id_, "X/A.*" if id_ == "2" else "X/B.*")
    send(world, "X/A.1")
    later(world, 6)
    send(world, "X/B.1")
    later(world, 1)

    async def pages(path: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        following: str | None = ""
        while following is not None:
            page = await world.json(path + (f"&after={quote(following)}" if following else ""))
            rows += page["subscriptions"]
            following = page["next"]
        return rows

    async def test() -> None:
        slow = await world.json("/v1/subscriptions/slow?limit=4")
        assert (slow["behind"], slow["looked_at"], slow["behind_after_s"]) == (3, 9, 5.0)
        assert [(row["staleness_s"], row["behind"]) for row in slow["subscriptions"]] == [(7.0, True)] * 3
        assert slow["subscriptions"][0]["glob"] == "X/A.*"
        assert len((await world.json("/v1/subscriptions/slow?limit=2"))["subscriptions"]) == 2
        lacking = (await world.json("/v1/subscriptions/slow?limit=4&min_s=0"))["subscriptions"]
        assert [(row["staleness_s"], row["behind"]) for row in lacking] == [(7.0, True)] * 3 + [(1.0, False)]
        assert lacking[3]["cause"] == "unread"
        assert len((await world.json("/v1/subscriptions/slow?min_s=2.5"))["subscriptions"]) == 3
        sessions = (await world.json("/v1/sessions?principal=admin"))["sessions"]
        assert {(row["client_id"], row["behind"]) for row in sessions} == {("a", True), ("b", True), ("c/d", True)}
        for limit in (1, 2, 100):
            rows = await pages(f"/v1/subscriptions?limit={limit}")
            assert [(row["client_id"], row["id"]) for row in rows] == [
                (name, id_) for name in ("a", "b", "c/d") for id_ in "123"
            ]
        rows = await pages("/v1/subscriptions?limit=2&principal=admin&client_id=c%2Fd")
        assert [(row["client_id"], row["id"]) for row in rows] == [("c/d", id_) for id_ in "123"]
        assert await pages("/v1/subscriptions?limit=2&principal=nobody") == []
        assert len(await pages("/v1/subscriptions?limit=2&client_id=a")) == 3
        for wrong in ("min_s=-1", "min_s=nan", "min_s=x", "limit=0"):
            assert (await world.ask("GET", f"/v1/subscriptions/slow?{wrong}")).status_code == 400
        assert (await world.ask("GET", "/v1/subscriptions?after=x")).status_code == 400

    run(test)


def test_pages_are_right_while_subscriptions_come_and_go(world: World) -> None:
    """A row that stays is seen exactly once."""
    connection = world.connect("admin", "a")
    for number in range(30):
        subscribe(world, connection, f"s{number:02}", "X/A.*")

    async def test() -> None:
        seen: list[str] = []
        page = await world.json("/v1/subscriptions?limit=7")
        while True:
            seen += [row["id"] for row in page["subscriptions"]]
            if page["next"] is None:
                break
            gone = connection.session.subscriptions.pop(seen[-1].encode())
            world.broker._table.remove(gone)
            subscribe(world, connection, f"a{len(seen)}", "X/A.*")
            page = await world.json(f"/v1/subscriptions?limit=7&after={quote(page['next'])}")
        assert seen == [f"s{number:02}" for number in range(30)]

    run(test)


@pytest.mark.parametrize("slice_", [1, 1000])
def test_pages_end_though_an_id_is_empty(world: World, monkeypatch: pytest.MonkeyPatch, slice_: int) -> None:
    """STOMP lets an id be empty: its subscription is one like others, seen once, however the pages are cut."""
    monkeypatch.setattr("maxam.gateway.listings.SLICE_SUBSCRIPTIONS", slice_)
    for name in ("a", "b"):
        connection = world.connect("admin", name)
        for id_ in ("", "1"):
            subscribe(world, connection, id_, "X/A.*")

    async def test() -> None:
        for limit in (1, 2, 3):
            seen: list[tuple[str, str]] = []
            following: str | None = ""
            while following is not None:
                after = f"&after={quote(following)}" if following else ""
                page = await world.json(f"/v1/subscriptions?limit={limit}{after}")
                seen += [(row["client_id"], row["id"]) for row in page["subscriptions"]]
                following = page["next"]
                assert len(seen) <= 4
            assert seen == [("a", ""), ("a", "1"), ("b", ""), ("b", "1")]

    run(test)
