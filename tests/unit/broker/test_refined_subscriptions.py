"""Subscriptions with metadata, min-interval, changes-only, markers and since: one broker without I/O, frame by frame."""

import tracemalloc
from itertools import product
from typing import ClassVar

import pytest

from maxam.broker.positions import position_text
from maxam.broker.refined_delivery import INTERVALS_MAX, NOTICES_MAX
from maxam.broker.session import OVERDUE, SCAN_READY_MAX
from maxam.broker.store import TOMBSTONE_SWEEP_MIN
from maxam.config import Limits
from maxam.content import pack
from maxam.gateway.owed_watch import BYTES_PER_OWED
from maxam.records import GATEWAY, UNJUDGED, Change
from maxam.stomp.frames import Frame
from tests.support.sans_io import EVERYTHING, Client, World, policy

INCARNATION = "0123456789abcdef"
NO_X = "selector:header('x') IS NULL"


def make(**given: object) -> World:
    """Make a world whose journal has an incarnation."""
    world = World.make(**given)  # type: ignore[arg-type]
    world.broker.incarnation = INCARNATION
    return world


def subscribe(client: Client, *lines: str, glob: str = "X/**", ack: str = "auto", id_: str = "s") -> None:
    """Send a SUBSCRIBE with more header lines, and commit it."""
    head = "".join(f"{line}\n" for line in (f"id:{id_}", f"destination:{glob}", f"ack:{ack}", *lines))
    client.write(f"SUBSCRIBE\n{head}\n\0".encode())
    client.world.settle()


def put(world: World, destination: str, body: bytes = b"value", publisher: Client | None = None) -> None:
    """Have a value accepted, and committed."""
    (publisher or world.client(client_id="publisher")).send(destination, body)
    world.settle()


def values(frames: list[Frame]) -> list[tuple[str, bytes]]:
    """Return destination and body of the MESSAGEs that are no markers."""
    return [
        (frame.headers[b"destination"].decode(), frame.body)
        for frame in frames
        if frame.command == b"MESSAGE" and frame.headers[b"destination"] != b"$marker"
    ]


def markers(frames: list[Frame]) -> list[dict[str, str]]:
    """Return the headers of the markers."""
    return [
        {name.decode(): value.decode() for name, value in frame.headers.items()}
        for frame in frames
        if frame.command == b"MESSAGE" and frame.headers[b"destination"] == b"$marker"
    ]


def positions(frames: list[Frame]) -> list[int]:
    """Return the revisions of the positions of the markers."""
    return [int(marker["position"].split(".")[1]) for marker in markers(frames)]


def sweep(world: World) -> None:
    """Forget each delete that no subscription needs."""
    world.broker.store.sweep_soon()
    while world.broker.store.sweep_due():
        world.broker.tick(world.now_s)
        if not world.broker.store.sweeping:
            break


def held_after_delivery(*headers: str) -> tuple[int, int]:
    """Return the bytes that a subscription holds after 4,000 values, and how many entries it counts."""
    world = make()
    publisher = world.client(client_id="publisher")
    client = world.client(client_id="subscriber")
    for number in range(4000):
        publisher.send(f"X/a.{number}")
    world.settle()
    tracemalloc.start()
    subscribe(client, *headers, "eager:true")
    while client.peer.data_to_send(world.now_s) or world.broker.scanning:
        world.settle()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (subscription,) = world.broker.sessions["anna", "subscriber"].subscriptions.values()
    return held, subscription.kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "header", ["min-interval:60000", "changes-only:true", "markers:true", "selector:header('x') IS NULL"]
)
def test_entries_are_counted_in_their_size(header: str) -> None:
    """So a principal cannot hold more memory than it may be owed topics."""
    plain, _ = held_after_delivery()
    held, kept = held_after_delivery(header)
    assert kept >= 4000
    assert held - plain <= 1.6 * kept * BYTES_PER_OWED  # tables keep some room


@pytest.mark.parametrize(
    ("since", "headers"),
    [(True, ["markers:true"]), (True, [NO_X]), (False, [NO_X, "metadata:true"]), (True, ["changes-only:true", NO_X])],
)
def test_topics_that_come_and_go_leave_nothing(since: bool, headers: list[str]) -> None:
    """A subscription that lives for months keeps nothing of topics that the store has forgotten."""
    world = make(limits=Limits(delete_retention_s=0))
    if since:
        headers = [*headers, f"since:{position_text(INCARNATION, 0, world.broker.policy.rights('anna'))}"]
    client = world.client(client_id="subscriber")
    subscribe(client, *headers)
    publisher = world.client(client_id="publisher")
    for number in range(10):
        for body, x in ((b"1", None), (b"2", "1"), (b"", None)):
            publisher.send(f"X/{number}", body, **({} if x is None else {"x": x}))
            world.settle()
            if number % 2 or x is not None:
                client.read()
    client.read()
    world.now_s += 10
    client.read()
    sweep(world)
    assert not world.broker.store.topics
    (subscription,) = world.broker.sessions["anna", "subscriber"].subscriptions.values()
    assert subscription.kept == 0


class TestMetadata:
    """`metadata:true`."""

    def test_a_value_and_a_delete(self) -> None:
        """Each MESSAGE has time, publisher, kind and the number of values that it replaced; the delete has its reason."""
        world = make()
        publisher = world.client(client_id="p")
        client = world.client()
        subscribe(client, "metadata:true")
        for body in (b"1", b"2", b"3"):
            put(world, "X/a", body, publisher)
        put(world, "X/b", b"9", publisher)
        first, second = client.read()
        assert first.body == b"3"
        assert {name: first.headers[name] for name in (b"kind", b"conflated", b"publisher", b"timestamp")} == {
            b"kind": b"value",
            b"conflated": b"2",
            b"publisher": b"anna",
            b"timestamp": b"%d" % (world.wall_us // 1000),
        }
        assert b"schema" not in first.headers  # nothing was checked
        assert second.headers[b"conflated"] == b"0"
        put(world, "X/a", b"", publisher)
        (deleted,) = client.read()
        assert (deleted.headers[b"kind"], deleted.headers[b"reason"]) == (b"delete", b"deleted")

    def test_a_topic_that_expired_has_one_reason(self) -> None:
        """The gateway's own header of the delete is left out where the metadata has it."""
        world = make()
        plain, refined = world.client(), world.client()
        subscribe(plain)
        subscribe(refined, "metadata:true")
        put(world, "X/a", b"1")
        plain.read()
        refined.read()
        content, body_at = pack(((b"reason", b"expired"),), b"")
        topic = world.broker.store.topics[b"X/a"]
        change = Change(2, world.wall_us, b"X/a", True, GATEWAY, UNJUDGED, content, body_at)
        world.broker.apply(change)
        assert topic.change is change
        assert plain.read()[0].headers[b"reason"] == b"expired"
        sent = b"".join(refined.peer.data_to_send(world.now_s))
        assert sent.count(b"reason:expired\n") == 1

    def test_user_headers_cannot_pass_for_metadata(self) -> None:
        """The broker's header comes first, and the first of repeated headers counts."""
        world = make()
        publisher = world.client(client_id="p")
        client = world.client()
        subscribe(client, "metadata:true")
        publisher.send("X/a", b"", reason="forged")
        publisher.send("X/b", b"1", reason="mine")
        world.settle()
        reasons = {frame.headers[b"destination"]: frame.headers.get(b"reason") for frame in client.read()}
        assert reasons[b"X/b"] == b"mine"
        assert reasons.get(b"X/a", b"deleted") == b"deleted"

    def test_acknowledged_and_shared_by_two(self) -> None:
        """The header `ack` and the number are each subscription's own; a plain subscription beside gets no metadata."""
        world = make()
        refined, plain = world.client(), world.client()
        subscribe(refined, "metadata:true", ack="client")
        subscribe(plain, ack="client")
        put(world, "X/a", b"1")
        (message,) = refined.read()
        assert message.headers[b"ack"] == b"s " + message.headers[b"message-id"]
        assert set(plain.read()[0].headers) == {
            b"subscription",
            b"ack",
            b"message-id",
            b"destination",
            b"content-length",
        }


class TestMinInterval:
    """`min-interval`."""

    def test_the_last_value_comes_when_the_interval_ends(self) -> None:
        """The first value comes at once, then none for the interval, then the newest; staleness does not count the wait."""
        world = make()
        client = world.client()
        subscribe(client, "min-interval:1000")
        put(world, "X/a", b"1")
        assert values(client.read()) == [("X/a", b"1")]
        for body in (b"2", b"3"):
            put(world, "X/a", body)
            assert values(client.read()) == []
        subscription = next(iter(world.broker.sessions.values())).subscriptions.get(b"s") or next(
            session.subscriptions[b"s"] for session in world.broker.sessions.values() if session.subscriptions
        )
        assert subscription.owed_since_us() == 0
        world.now_s += 0.999
        assert values(client.read()) == []
        assert client.peer.next_due_s is not None
        world.now_s += 0.001
        assert client.peer.next_due_s <= world.now_s
        assert values(client.read()) == [("X/a", b"3")]
        world.now_s += 5
        assert values(client.read()) == []

    @pytest.mark.parametrize("changed", [True, False])
    def test_many_intervals_end_in_parts(self, changed: bool) -> None:
        """No call ends all of them, and no value is forgotten; what ends without a value needs calls too."""
        world = make()
        client = world.client()
        subscribe(client, "min-interval:1000")
        topics = [f"X/{number}" for number in range(INTERVALS_MAX + 2)]
        publisher = world.client()
        for body in (b"1", b"2") if changed else (b"1",):
            for topic in topics:
                publisher.send(topic, body)
            world.settle()
            publisher.read()
            assert len(values(client.read())) == (len(topics) if body == b"1" else 0)
        world.now_s += 1
        some = values(client.read_some())
        assert client.peer.next_due_s is not None
        assert client.peer.next_due_s <= world.now_s
        some += values(client.read())
        assert sorted(some) == (sorted((topic, b"2") for topic in topics) if changed else [])
        client.read()
        world.now_s += 0.999
        for topic in topics:
            publisher.send(topic, b"3")
        world.settle()
        assert len(values(client.read())) == (0 if changed else len(topics))

    def test_other_topics_do_not_wait(self) -> None:
        """Each topic has an interval of its own."""
        world = make()
        client = world.client()
        subscribe(client, "min-interval:1000")
        put(world, "X/a", b"1")
        client.read()
        put(world, "X/b", b"1")
        assert values(client.read()) == [("X/b", b"1")]

    def test_a_delete_does_not_wait_and_the_value_after_it_does(self) -> None:
        """A delete overtakes the interval, also if a value waits. A value after it waits for the first value's interval."""
        for waiting, acknowledged in product((False, True), repeat=2):
            world = make()
            client = world.client()
            subscribe(client, "min-interval:1000", ack="client" if acknowledged else "auto")
            put(world, "X/a", b"1")
            (first,) = client.read()
            if acknowledged:
                client.ack(first)
            if waiting:
                put(world, "X/a", b"2")
            put(world, "X/a", b"")
            (deleted,) = client.read()
            assert deleted.body == b""
            if acknowledged:
                client.ack(deleted)
            put(world, "X/a", b"3")
            assert values(client.read()) == []
            world.now_s += 1
            assert values(client.read()) == [("X/a", b"3")]

    def test_delete_and_new_value_before_the_client_reads(self) -> None:
        """A delete and a value after it conflate: the value waits for the end of the interval."""
        world = make()
        client = world.client()
        subscribe(client, "min-interval:1000")
        put(world, "X/a", b"1")
        client.read()
        put(world, "X/a", b"")
        put(world, "X/a", b"2")
        assert values(client.read()) == []
        world.now_s += 1
        assert values(client.read()) == [("X/a", b"2")]

    def test_an_ack_ends_no_interval(self) -> None:
        """A topic that is un-acked and whose interval lasts needs both to end, in either order."""
        for ack_first in (True, False):
            world = make()
            client = world.client()
            subscribe(client, "min-interval:1000", ack="client")
            put(world, "X/a", b"1")
            (first,) = client.read()
            put(world, "X/a", b"2")
            if ack_first:
                client.ack(first)
                assert values(client.read()) == []
                world.now_s += 1
            else:
                world.now_s += 1
                assert values(client.read()) == []
                client.ack(first)
            assert values(client.read()) == [("X/a", b"2")]

    def test_a_durable_subscription_keeps_what_waits(self) -> None:
        """A value that waits when the connection is lost is owed to the next one, and after a crash."""
        world = make()
        client = world.client(client_id="c")
        subscribe(client, "min-interval:1000", "durable:true", ack="client")
        put(world, "X/a", b"1")
        client.ack(client.read()[0], receipt="r")
        world.settle()
        put(world, "X/a", b"2")
        assert values(client.read()) == []
        client.lose()
        world.settle()
        again = world.client(client_id="c")
        subscribe(again, "durable:true")
        assert values(again.read()) == [("X/a", b"2")]
        after = world.restart().client(client_id="c")
        subscribe(after, "durable:true")
        assert values(after.read()) == [("X/a", b"2")]


class TestChangesOnly:
    """`changes-only:true`."""

    def test_equal_bodies_are_not_sent_again(self) -> None:
        """A value whose body equals the one delivered last is skipped; one after a delete is not."""
        world = make()
        client = world.client()
        subscribe(client, "changes-only:true", "metadata:true")
        sent = []
        for body in (b"1", b"1", b"2", b"2", b"1", b"", b"1"):
            put(world, "X/a", body)
            sent += values(client.read())
        assert [body for _, body in sent] == [b"1", b"2", b"1", b"", b"1"]

    def test_what_did_not_arrive_is_sent_again(self) -> None:
        """A durable subscription forgets what it sent when the connection is lost before the ACK."""
        world = make()
        client = world.client(client_id="c")
        subscribe(client, "changes-only:true", "durable:true", ack="client")
        put(world, "X/a", b"1")
        client.read()
        client.lose()
        again = world.client(client_id="c")
        subscribe(again, "changes-only:true", "durable:true", ack="client")
        assert values(again.read()) == [("X/a", b"1")]

    def test_what_is_skipped_is_settled(self) -> None:
        """A skipped value of a durable subscription is not owed after a restart."""
        for ack in ("auto", "client"):
            world = make()
            client = world.client(client_id="c")
            subscribe(client, "changes-only:true", "durable:true", ack=ack)
            put(world, "X/a", b"1")
            (message,) = client.read()
            if ack == "client":
                client.ack(message, receipt="r")
            put(world, "X/a", b"1")
            assert values(client.read()) == []
            client.read()
            world.broker.record_acknowledgements()
            world.settle()
            (subscription,) = [
                s for session in world.restart().broker.sessions.values() for s in session.subscriptions.values()
            ]
            assert not subscription.owed


class TestMarkers:
    """`markers:true`."""

    def test_complete_ends_the_snapshot(self) -> None:
        """`complete` comes after all values of an eager SUBSCRIBE, with their number and a position."""
        world = make()
        for topic in "abc":
            put(world, f"X/{topic}")
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        frames = client.read()
        assert len(values(frames)) == 3
        (marker,) = markers(frames)
        assert frames[-1].headers[b"destination"] == b"$marker"
        assert (marker["kind"], marker["count"], marker["message-id"]) == ("complete", "3", "0")
        assert positions(frames) == [3]
        assert "ack" not in marker

    @pytest.mark.parametrize("glob", ["X/**", "Z/**"])
    def test_complete_comes_without_any_topic(self, glob: str) -> None:
        """A snapshot of nothing is complete at once, also where no right matches the glob."""
        client = make().client()
        subscribe(client, "markers:true", "eager:true", glob=glob)
        (marker,) = markers(client.read())
        assert (marker["kind"], marker["count"]) == ("complete", "0")

    def test_a_marker_is_outside_the_window(self) -> None:
        """Markers come when the window is full, are not un-acked, and a position stops before what is un-acked."""
        world = make()
        client = world.client(window="1")
        subscribe(client, "markers:true", ack="client")
        client.read()
        put(world, "X/a")
        put(world, "X/b")
        put(world, "X/c")
        (first,) = client.read()
        world.now_s += 5
        client.peer.tick(world.now_s)
        assert markers(client.read()) == []  # it did not move
        client.ack(first, receipt="1")
        receipt, second = client.read()
        assert receipt.headers[b"position"].split(b".")[1] == b"1"
        world.now_s += 5
        assert client.peer.next_due_s is not None
        assert client.peer.next_due_s <= world.now_s
        client.ack(second)
        assert positions(client.read()) == [2]

    def test_a_position_comes_when_nothing_is_owed(self) -> None:
        """At most once a second when all was sent, and not at all while nothing has changed."""
        world = make()
        client = world.client()
        subscribe(client, "markers:true")
        assert positions(client.read()) == [0]
        world.now_s += 1
        put(world, "X/a")
        assert positions(client.read()) == [1]
        put(world, "X/a")
        assert positions(client.read()) == []
        world.now_s += 1
        assert positions(client.read()) == [2]
        world.now_s += 60
        assert markers(client.read()) == []

    def test_a_withheld_topic_holds_nothing_up(self) -> None:
        """A topic that is withheld counts as taken: `complete` comes, and the position passes it."""
        world = make(anna=EVERYTHING)
        for topic in "abc":
            put(world, f"X/{topic}")
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/a"]}), world.wall_us)
        world.settle()
        frames = client.read()
        assert values(frames) == [("X/a", b"value")]
        assert positions(frames) == [3]


class TestSince:
    """`since`."""

    def known(self, world: World, *lines: str) -> tuple[Client, str]:
        """Return a client that has read everything, and its newest position."""
        client = world.client()
        subscribe(client, "markers:true", "eager:true", *lines)
        return client, markers(client.read())[-1]["position"]

    def test_what_changed_meanwhile_comes(self) -> None:
        """Values and deletes after the position, and nothing that had not changed."""
        world = make()
        for topic in "abc":
            put(world, f"X/{topic}", b"old")
        client, position = self.known(world)
        client.lose()
        put(world, "X/a", b"new")
        put(world, "X/b", b"")
        put(world, "X/d", b"new")
        back = world.client()
        subscribe(back, f"since:{position}", "markers:true", "receipt:r")
        frames = back.read()
        assert sorted(values(frames)) == [("X/a", b"new"), ("X/b", b""), ("X/d", b"new")]
        (marker,) = markers(frames)
        assert "result" not in marker
        (receipt,) = [frame for frame in frames if frame.command == b"RECEIPT"]
        assert b"result" not in receipt.headers

    @pytest.mark.parametrize(
        "position",
        ["", "x", "1.2", "0123456789abcdee.1.{rights}", "0123456789abcdef.99.{rights}", "0123456789abcdef.1.0"],
    )
    @pytest.mark.parametrize("eager", [False, True])
    def test_an_unusable_position_is_reported(self, position: str, eager: bool) -> None:
        """With another incarnation, other rights, above the head or malformed: the whole state with `eager`, else what comes."""
        world = make()
        put(world, "X/a")
        rights = world.broker.policy.rights("anna").receive_digest
        client = world.client()
        flags = ["eager:true"] if eager else []
        subscribe(client, f"since:{position.format(rights=rights)}", "markers:true", "receipt:r", *flags)
        frames = client.read()
        (receipt,) = [frame for frame in frames if frame.command == b"RECEIPT"]
        assert receipt.headers[b"result"] == b"since-unavailable"
        assert values(frames) == ([("X/a", b"value")] if eager else [])
        assert markers(frames)[-1]["result"] == "since-unavailable"

    def test_a_durable_subscription_uses_it_when_it_is_created(self) -> None:
        """The catch-up of a durable subscription survives a crash; a resumed one takes no notice of the position."""
        world = make()
        put(world, "X/a", b"1")
        client, position = self.known(world)
        client.lose()
        put(world, "X/a", b"2")
        durable = world.client(client_id="d")
        subscribe(durable, "durable:true", f"since:{position}", "receipt:r", ack="client")
        receipt, message = durable.read()
        assert receipt.headers[b"result"] == b"created"
        assert message.body == b"2"
        world = world.restart()
        world.broker.incarnation = INCARNATION
        again = world.client(client_id="d")
        subscribe(again, "durable:true", f"since:{position}", "receipt:r", ack="client")
        receipt, message = again.read()
        assert receipt.headers[b"result"] == b"resumed"
        assert message.body == b"2"

    @pytest.mark.parametrize("before", [[], ["Y/*"], ["X/b"]])
    def test_rights_that_are_granted_later_bring_their_values(self, before: list[str]) -> None:
        """A client that continues from a position has all values, so it is owed those that a later policy grants."""
        world = make(anna={"send": ["X/**"], "receive": before})
        for topic in "ab":
            put(world, f"X/{topic}", b"1")
        client, position = self.known(world)
        client.lose()
        back = world.client()
        subscribe(back, f"since:{position}", "markers:true")
        assert values(back.read()) == []
        world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/**", "Y/*"]}))
        world.settle()
        granted = [("X/a", b"1"), ("X/b", b"1")]
        assert sorted(values(back.read())) == (granted[:1] if before == ["X/b"] else granted)

    def test_a_position_of_other_rights_ends_before_the_first_value(self) -> None:
        """Otherwise a client that is killed then could use it again if those rights came back, and would keep the value."""
        narrow, wide = {"send": ["X/**"], "receive": ["X/b"]}, {"send": ["X/**"], "receive": ["X/*"]}
        world = make(anna=narrow)
        put(world, "X/a", b"1")
        client, position = self.known(world)
        world.broker.replace_policy(policy(anna=wide))
        world.settle()
        back = world.client()
        subscribe(back, f"since:{position}", "markers:true", "eager:true")
        for reader in (client, back):
            first, second = [frame for frame in reader.read() if frame.command == b"MESSAGE"][:2]
            assert (first.headers[b"kind"], second.headers[b"destination"]) == (b"position", b"X/a")
            reader.lose()
            world.broker.replace_policy(policy(anna=narrow))
            world.settle()
            again = world.client()
            subscribe(again, f"since:{first.headers[b'position'].decode()}", "markers:true")
            assert markers(again.read())[0]["result"] == "since-unavailable"
            world.broker.replace_policy(policy(anna=wide))
            world.settle()

    def test_a_client_that_does_not_read_keeps_no_later_delete_from_being_forgotten(self) -> None:
        """Its scan rests, and will not owe what was deleted after it began."""
        world = make(limits=Limits(delete_retention_topics_max=1))
        publisher = world.client(client_id="publisher")
        for number in range(2 * SCAN_READY_MAX):
            publisher.send(f"X/a.{number}")
        world.settle()
        subscribe(
            world.client(), f"since:{position_text(INCARNATION, 0, world.broker.policy.rights('anna'))}", glob="X/a.*"
        )
        assert world.broker.resting
        for number in range(TOMBSTONE_SWEEP_MIN):
            publisher.send(f"X/b.{number}")
            publisher.send(f"X/b.{number}", b"")
        world.settle()
        sweep(world)
        assert not world.broker.store.tombstones

    @pytest.mark.slow
    def test_clients_that_do_not_read_keep_a_bounded_number_of_deletes_from_being_forgotten(self) -> None:
        """Their scans rest, each with a later position. Then they lose their connections."""
        world = make(limits=Limits(delete_retention_topics_max=TOMBSTONE_SWEEP_MIN))
        store = world.broker.store
        publisher = world.client(client_id="publisher")
        most = ended = 0
        for round_ in range(6):
            for number in range(TOMBSTONE_SWEEP_MIN):
                publisher.send(f"X/b.{round_}.{number}")
                publisher.send(f"X/b.{round_}.{number}", b"")
            for number in range(SCAN_READY_MAX + 2000):
                publisher.send(f"X/a.{number}")
            world.settle()
            position = position_text(INCARNATION, store.floor, world.broker.policy.rights("anna"))
            client = world.client()
            subscribe(client, f"since:{position}", glob="X/a.*")
            sweep(world)
            most = max(most, len(store.tombstones))
            for session in list(world.broker.sessions.values()):
                if session.connection is not None and session.connection.failure is not None:
                    ended += 1
                    world.broker.detach(session.connection, world.now_s)
            sweep(world)
        assert ended > 0
        assert most <= 3 * TOMBSTONE_SWEEP_MIN

    def test_a_delete_is_not_forgotten_before_the_subscribe_takes_effect(self) -> None:
        """A sweep between the SUBSCRIBE and its commit keeps the deletes that it is owed; afterwards the floor rises."""
        world = make(limits=Limits(delete_retention_topics_max=1))
        publisher = world.client(client_id="publisher")
        put(world, "X/a", publisher=publisher)
        put(world, "X/b", publisher=publisher)
        before, position = self.known(world)
        before.lose()
        put(world, "X/a", b"", publisher)
        put(world, "X/b", b"", publisher)  # the first delete is no longer retained
        client = world.client()
        client.write(f"SUBSCRIBE\nid:s\ndestination:X/**\nsince:{position}\n\n\0".encode())
        sweep(world)
        world.settle()
        assert sorted(values(client.read())) == [("X/a", b""), ("X/b", b"")]
        sweep(world)
        assert world.broker.store.floor > 0

    def test_other_rights_make_a_position_unusable(self) -> None:
        """A client that may receive more has not seen the older values of that."""
        world = make(anna={"send": ["X/**", "Y/*"], "receive": ["X/**"]})
        _, position = self.known(world)
        more = make(anna={"send": ["X/**", "Y/*"], "receive": ["X/**", "Y/*"]})
        client = more.client()
        subscribe(client, f"since:{position}", "receipt:r")
        assert client.read()[0].headers[b"result"] == b"since-unavailable"


def test_short_memory_leaves_the_deletes_that_a_catch_up_has_not_come_to() -> None:
    """A scan of many topics takes several passes; the deletes are forgotten once they were sent."""
    world = make()
    publisher = world.client(client_id="publisher")
    for number in range(1500):
        put(world, f"X/{number}", publisher=publisher)
    put(world, "X/none", publisher=publisher)
    position = f"{INCARNATION}.{world.broker.head_revision}.{world.broker.policy.rights('anna').receive_digest}"
    for number in range(1500):
        put(world, f"X/{number}", b"", publisher=publisher)
    back = world.client()
    back.write(f"SUBSCRIBE\nid:s\ndestination:X/**\nack:auto\nsince:{position}\nmarkers:true\n\n\0".encode())
    world.commit()
    store = world.broker.store
    store.release_soon()
    for _ in range(50):
        world.broker.tick(world.now_s)
    assert len(store.topics) == 1501
    found: list[Frame] = []
    for _ in range(50):
        world.settle()
        found += back.read()
    assert len(values(found)) == 1500
    assert "result" not in markers(found)[0]
    store.release_soon()
    for _ in range(50):
        world.broker.tick(world.now_s)
    assert set(store.topics) == {b"X/none"}


class TestFoundBySimulation:
    """Defects that the simulation found."""

    READ_ALL: ClassVar = {"receive": ["X/**"]}
    READ_A: ClassVar = {"receive": ["X/a"]}

    def test_what_is_withheld_does_not_hold_back_markers(self) -> None:
        """A right that is withdrawn before a value was sent: `complete` comes, and positions go on."""
        world = make(anna=self.READ_ALL, bert=EVERYTHING)
        publisher = world.client("bert", client_id="p")
        for topic in "ab":
            put(world, f"X/{topic}", publisher=publisher)
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        world.broker.replace_policy(policy(anna=self.READ_A, bert=EVERYTHING))
        world.settle()
        frames = client.read()
        assert values(frames) == [("X/a", b"value")]
        assert [marker["count"] for marker in markers(frames)] == ["1"]
        assert positions(frames) == [2]

    @pytest.mark.parametrize("line", ["eager:true", "since", "markers:true"])
    def test_rights_that_come_while_a_subscribe_is_committed(self, line: str) -> None:
        """Granted topics come before any position of the new rights, also if their last change is older than `since`."""
        world = make(anna=self.READ_A, bert=EVERYTHING)
        publisher = world.client("bert", client_id="p")
        for topic in "ba":
            put(world, f"X/{topic}", publisher=publisher)
        first = world.client()
        subscribe(first, "markers:true")
        since = markers(first.read())[-1]["position"]
        line = f"since:{since}" if line == "since" else line
        client = world.client()
        client.write(f"SUBSCRIBE\nid:s\ndestination:X/**\nmarkers:true\n{line}\n\n\0".encode())
        world.broker.replace_policy(policy(anna=self.READ_ALL, bert=EVERYTHING))
        world.settle()
        seen = dict(values(client.read()))
        assert line == "markers:true" or seen["X/b"] == b"value"
        world.broker.replace_policy(policy(anna=self.READ_A, bert=EVERYTHING))
        put(world, "X/b", b"newer", publisher)
        world.broker.replace_policy(policy(anna=self.READ_ALL, bert=EVERYTHING))
        world.settle()
        assert values(client.read()) == [("X/b", b"newer")]

    def test_complete_waits_for_scans(self) -> None:
        """A durable subscription that returns while a scan goes on gets `complete` after the topics of that scan."""
        world = make(anna=self.READ_A, bert=EVERYTHING)
        publisher = world.client("bert", client_id="p")
        for topic in "ab":
            put(world, f"X/{topic}", publisher=publisher)
        client = world.client(client_id="c")
        subscribe(client, "markers:true", "durable:true", "eager:true")
        client.read()
        client.lose()
        world.broker.replace_policy(policy(anna=self.READ_ALL, bert=EVERYTHING))
        again = world.client(client_id="c")
        again.write(b"SUBSCRIBE\nid:s\ndestination:X/**\nmarkers:true\ndurable:true\n\n\0")
        assert again.read() == []
        world.settle()
        frames = again.read()
        assert values(frames) == [("X/b", b"value")]
        assert [marker["count"] for marker in markers(frames)] == ["1"]

    def lose_right(self, world: World, client: Client) -> None:
        """Withdraw the right to `X/b`, which `client` does not read about, and have it deleted."""
        world.broker.replace_policy(policy(anna=self.READ_A, bert=EVERYTHING))
        world.settle()
        assert client.peer.connection is not None
        put(world, "X/b", b"", world.client("bert", client_id="p"))

    def test_a_delete_while_a_right_was_withdrawn(self) -> None:
        """A client that got no notice of the withdrawal is sent the delete when the right comes back."""
        world = make(anna=self.READ_ALL, bert=EVERYTHING)
        put(world, "X/b", publisher=world.client("bert", client_id="p"))
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        client.read()
        self.lose_right(world, client)
        world.broker.replace_policy(policy(anna=self.READ_ALL, bert=EVERYTHING))
        world.settle()
        assert values(client.read()) == [("X/b", b"")]

    def test_a_withdrawn_topic_is_deleted_before_the_notice(self) -> None:
        """Short memory leaves the delete until the scan has come to it."""
        world = make(anna=self.READ_ALL, bert=EVERYTHING)
        publisher = world.client("bert", client_id="p")
        put(world, "X/b", publisher=publisher)
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        client.read()
        world.broker.replace_policy(policy(anna=self.READ_A, bert=EVERYTHING))
        publisher.send("X/b", b"")
        world.commit()
        world.broker.store.release_soon()
        for _ in range(4):
            world.broker.tick(world.now_s)
        world.settle()
        assert b"rights" in [frame.headers.get(b"reason") for frame in client.read()]

    def test_deletes_of_a_catch_up_that_an_eager_subscribe_ends(self) -> None:
        """A durable subscription that catches up from a position and is resumed with `eager` is still owed the deletes."""
        world = make()
        publisher = world.client(client_id="p")
        for number in range(1001):
            put(world, f"X/{number}", publisher=publisher)
        first = world.client()
        subscribe(first, "markers:true")
        since = markers(first.read())[-1]["position"]
        put(world, "X/7", b"", publisher)
        client = world.client(client_id="c")
        text = f"SUBSCRIBE\nid:s\ndestination:X/**\nmarkers:true\ndurable:true\neager:true\nsince:{since}\n\n\0"
        client.write(text.encode())
        world.commit()
        again = world.client(client_id="c")
        again.write(text.encode())
        world.settle()
        assert ("X/7", b"") in values(again.read())

    def test_a_right_that_goes_while_a_subscribe_is_committed(self) -> None:
        """A client that resumes from a position gets the notice of a topic that it held."""
        world = make(anna=self.READ_ALL, bert=EVERYTHING)
        put(world, "X/b", publisher=world.client("bert", client_id="p"))
        first = world.client()
        subscribe(first, "markers:true", "eager:true")
        since = markers(first.read())[-1]["position"]
        client = world.client()
        client.write(f"SUBSCRIBE\nid:s\ndestination:X/**\nmarkers:true\nsince:{since}\n\n\0".encode())
        world.broker.replace_policy(policy(anna=self.READ_A, bert=EVERYTHING))
        world.settle()
        assert [frame.headers[b"kind"] for frame in client.read()] == [b"complete", b"position", b"left", b"position"]

    def test_deletes_of_a_catch_up_that_is_resumed_before_it_begins(self) -> None:
        """Two SUBSCRIBEs with a position and `eager` before the first is on disk: the deletes are owed."""
        world = make()
        publisher = world.client(client_id="p")
        put(world, "X/a", publisher=publisher)
        first = world.client()
        subscribe(first, "markers:true")
        since = markers(first.read())[-1]["position"]
        put(world, "X/a", b"", publisher)
        text = f"SUBSCRIBE\nid:s\ndestination:X/**\nmarkers:true\ndurable:true\neager:true\nsince:{since}\n\n\0"
        world.client(client_id="c").write(text.encode())
        again = world.client(client_id="c")
        again.write(text.encode())
        world.settle()
        assert values(again.read()) == [("X/a", b"")]

    def test_an_ack_of_a_value_that_is_owed_again(self) -> None:
        """A right that goes and comes back has an un-acked value sent again: its ACK does not move the position past it."""
        world = make(anna=self.READ_ALL, bert=EVERYTHING)
        client = world.client()
        subscribe(client, "markers:true", ack="client")
        client.read()
        put(world, "X/b", publisher=world.client("bert", client_id="p"))
        (message,) = client.read()
        for rights in (self.READ_A, self.READ_ALL):
            world.broker.replace_policy(policy(anna=rights, bert=EVERYTHING))
            world.settle()
        client.ack(message, receipt="r")
        (receipt,) = [frame for frame in client.read() if frame.command == b"RECEIPT"]
        assert receipt.headers[b"position"].split(b".")[1] == b"0"

    def test_no_position_can_be_used_while_topics_leave(self) -> None:
        """A client that dropped a topic would lack it if the right came back; one that did not would keep it."""
        world = make(anna=self.READ_ALL, bert=EVERYTHING)
        put(world, "X/b", publisher=world.client("bert", client_id="p"))
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        client.read()
        world.broker.replace_policy(policy(anna=self.READ_A, bert=EVERYTHING))
        world.settle()
        void, left, usable = client.read()
        assert left.headers[b"kind"] == b"left"
        for marker, result in ((void, b"since-unavailable"), (usable, None)):
            again = world.client()
            subscribe(again, f"since:{marker.headers[b'position'].decode()}", "receipt:r")
            assert again.read()[0].headers.get(b"result") == result

    def test_the_receipt_of_an_ack_has_the_position_of_its_own_time(self) -> None:
        """It is sent once the ACK is on disk. A marker may come before it, and its position is no older than that."""
        world = make()
        client = world.client(client_id="c")
        subscribe(client, "markers:true", "durable:true", ack="client")
        client.read()
        put(world, "X/a")
        put(world, "X/b")
        first, second = client.read()
        client.ack(first, receipt="1")
        client.ack(second)
        world.now_s += 5
        client.peer.tick(world.now_s)
        assert positions(client.read()) == [2]
        world.settle()
        (receipt,) = client.read()
        assert receipt.headers[b"position"].split(b".")[1] == b"2"


def test_connected_has_the_incarnation_if_asked() -> None:
    """`incarnation:true` of CONNECT; without it CONNECTED is as before."""
    world = make()
    asked = world.client(connect=False).connect(incarnation="true")
    assert asked.headers[b"incarnation"] == INCARNATION.encode()
    assert b"incarnation" not in world.client(connect=False).connect().headers


class TestSelector:
    """`selector`."""

    def world(self) -> World:
        """Make a world whose topics hold headers alone, which any encoding has."""
        return make()

    def send(self, world: World, destination: str, kind: str | None) -> None:
        """Have a value accepted with a header `kind`, or a delete."""
        publisher = world.client(client_id="publisher")
        if kind is None:
            publisher.send(destination, b"")
        else:
            publisher.send(destination, kind.encode(), grade=kind)
        world.settle()

    @pytest.mark.parametrize("ack", ["auto", "client"])
    def test_only_what_matches_comes_and_a_topic_leaves_once(self, ack: str) -> None:
        """A topic that no longer matches is reported once; one that never matched is not, nor is its delete."""
        world = self.world()
        client = world.client()
        subscribe(client, "selector:header('grade') = 'a'", "metadata:true", ack=ack)
        seen = []
        kinds: tuple[str | None, ...] = ("b", None, "a", "a", "b", "b", None, "b", "a", None)
        for kind in kinds:
            self.send(world, "X/a", kind)
            for frame in client.read():
                seen.append((frame.headers[b"kind"], frame.headers.get(b"reason"), frame.body))
                if ack == "client":
                    client.ack(frame)
        assert seen == [
            (b"value", None, b"a"),
            (b"value", None, b"a"),
            (b"left", b"selector", b""),
            (b"value", None, b"a"),
            (b"delete", b"deleted", b""),
        ]

    def test_a_match_that_passed_unseen_is_not_sent(self) -> None:
        """The newest value decides: one that matched for a moment before the client reads is nothing to it."""
        world = self.world()
        client = world.client()
        subscribe(client, "selector:header('grade') = 'a'")
        for topic, kind in (("X/a", "a"), ("X/a", "b"), ("X/b", "a"), ("X/b", None)):
            self.send(world, topic, kind)
        assert client.read() == []

    def test_left_without_metadata_looks_like_a_delete(self) -> None:
        """A client that asked for no metadata gets an empty body and no new header."""
        world = self.world()
        client = world.client()
        subscribe(client, "selector:header('grade') = 'a'")
        self.send(world, "X/a", "a")
        client.read()
        self.send(world, "X/a", "b")
        (left,) = client.read()
        assert left.body == b""
        assert set(left.headers) == {b"subscription", b"message-id", b"destination", b"content-length"}

    def test_an_eager_snapshot_has_only_what_matches(self) -> None:
        """Topics that the client cannot have are not mentioned."""
        world = self.world()
        for topic, kind in (("a", "a"), ("b", "b")):
            self.send(world, f"X/{topic}", kind)
        client = world.client()
        subscribe(client, "selector:header('grade') = 'a'", "eager:true", "markers:true")
        frames = client.read()
        assert values(frames) == [("X/a", b"a")]
        assert markers(frames)[0]["count"] == "1"

    def test_since_reports_every_changed_topic(self) -> None:
        """As value or as `left`, because the broker no longer knows the client's state."""
        world = self.world()
        self.send(world, "X/a", "a")
        self.send(world, "X/b", "b")
        client = world.client()
        subscribe(client, "selector:header('grade') = 'a'", "eager:true", "markers:true")
        position = markers(client.read())[-1]["position"]
        client.lose()
        self.send(world, "X/a", "b")
        self.send(world, "X/b", "b")
        self.send(world, "X/c", "a")
        back = world.client()
        subscribe(back, "selector:header('grade') = 'a'", f"since:{position}", "markers:true")
        frames = [frame for frame in back.read() if frame.headers[b"destination"] != b"$marker"]
        assert sorted((frame.headers[b"destination"], frame.headers.get(b"kind"), frame.body) for frame in frames) == [
            (b"X/a", b"left", b""),
            (b"X/b", b"left", b""),
            (b"X/c", None, b"a"),
        ]

    def test_left_does_not_wait_for_an_interval(self) -> None:
        """It overtakes a value that waits; a value after it waits."""
        world = self.world()
        client = world.client()
        subscribe(client, "selector:header('grade') <> 'b'", "min-interval:1000")
        self.send(world, "X/a", "a")
        assert values(client.read()) == [("X/a", b"a")]
        self.send(world, "X/a", "c")
        assert values(client.read()) == []
        self.send(world, "X/a", "b")
        assert values(client.read()) == [("X/a", b"")]
        self.send(world, "X/a", "a")
        assert values(client.read()) == []
        world.now_s += 1
        assert values(client.read()) == [("X/a", b"a")]

    @pytest.mark.parametrize("selector", ["", "header('x') =", "nowhere = 1", "header('x')"])
    def test_a_wrong_selector_is_an_error(self, selector: str) -> None:
        """The ERROR is `bad selector`, and the connection ends."""
        client = make().client()
        subscribe(client, f"selector:{selector}", "receipt:r")
        (error,) = client.read()
        assert error.command == b"ERROR"
        assert error.headers[b"message"] == b"bad selector"
        assert error.headers[b"receipt-id"] == b"r"

    def test_a_principal_has_a_number_of_selectors(self) -> None:
        """Subscriptions that share a text count once; the end of one makes room."""
        world = make(limits=Limits(selectors_per_principal_max=2))
        client = world.client()
        for id_, grade in (("1", "a"), ("2", "a"), ("3", "b")):
            subscribe(client, f"selector:header('grade') = '{grade}'", id_=id_)
        client.unsubscribe("3")
        subscribe(client, "selector:header('grade') = 'c'", id_="4")
        assert client.read() == []
        subscribe(client, "selector:header('grade') = 'd'", id_="5")
        (error,) = client.read()
        assert error.headers[b"message"] == b"too many selectors"

    def test_a_principal_has_a_number_of_steps(self) -> None:
        """The greatest times of its different selectors are added up; the end of one makes room."""
        world = make(limits=Limits(selector_steps_per_principal_max=700))
        client, other = world.client(), world.client("carol")
        for id_, word in (("1", "door"), ("2", "door"), ("3", "lamp")):
            subscribe(client, f"selector:header('grade') LIKE '%{word}%'", id_=id_)
        client.unsubscribe("3")
        subscribe(client, "selector:header('grade') LIKE '%seat%'", id_="4")
        assert client.read() == []
        subscribe(other, "selector:header('grade') LIKE '%lamp%'")
        assert other.read() == []
        subscribe(client, "selector:header('grade') LIKE '%lamp%'", id_="5")
        (error,) = client.read()
        assert error.headers[b"message"] == b"selectors too expensive"
        client.lose()
        client = world.client()
        subscribe(client, "selector:header('grade') LIKE '%lamp%'")
        assert client.read() == []


class TestNotices:
    """Notices of values that are no longer true."""

    def test_stale_and_fresh(self) -> None:
        """A topic that is overdue is reported once, to subscriptions with markers; its next value has the kind `fresh`."""
        world = make()
        client, plain = world.client(), world.client()
        subscribe(client, "markers:true")
        subscribe(plain, "metadata:true")
        put(world, "X/a", b"1")
        put(world, "X/b", b"1")
        client.read()
        plain.read()
        topic = world.broker.store.topics[b"X/a"]
        topic.freshness = OVERDUE
        world.broker.store.overdue += 1
        world.broker.notices.overdue(topic)
        assert plain.read() == []
        (notice,) = client.read()
        names = (b"destination", b"kind", b"reason", b"message-id", b"content-length")
        assert [notice.headers[name] for name in names] == [b"X/a", b"stale", b"overdue", b"0", b"0"]
        put(world, "X/a", b"2")
        put(world, "X/b", b"2")
        kinds = {frame.headers[b"destination"]: frame.headers.get(b"kind") for frame in client.read()}
        assert kinds.pop(b"$marker", b"position") == b"position"
        assert kinds == {b"X/a": b"fresh", b"X/b": None}

    def test_a_topic_that_is_overdue_is_so_for_a_new_subscriber(self) -> None:
        """An eager snapshot has the value and then the notice."""
        world = make()
        put(world, "X/a", b"1")
        world.broker.store.topics[b"X/a"].freshness = OVERDUE
        world.broker.store.overdue += 1
        client = world.client()
        subscribe(client, "markers:true", "eager:true")
        kinds = [frame.headers.get(b"kind") for frame in client.read()]
        assert kinds == [None, b"stale", b"complete"]

    def test_a_right_that_is_withdrawn(self) -> None:
        """Each topic of which the client has a value leaves, and no other."""
        world = make(anna={"send": ["X/**"], "receive": ["X/**"]})
        client = world.client()
        subscribe(client, "markers:true")
        put(world, "X/a", b"1")
        put(world, "X/b", b"1")
        client.read()
        put(world, "X/c", b"1")  # not read
        world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/b"]}), world.wall_us)
        world.settle()
        left = [frame for frame in client.read() if frame.headers[b"destination"] != b"$marker"]
        names = (b"destination", b"kind", b"reason")
        assert [[frame.headers[name] for name in names] for frame in left] == [[b"X/a", b"left", b"rights"]]

    @pytest.mark.parametrize(
        ("receive", "scans"), [(["X/b"], 1), (["X/a", "X/b"], 0), (["X/a", "X/b", "Y/b"], 0), (["Y/**"], 1)]
    )
    def test_a_right_that_shrinks_elsewhere_begins_no_scan(self, receive: list[str], scans: int) -> None:
        """Only subscriptions whose client may hold a topic that is withdrawn are scanned for."""
        world = make(anna={"send": ["X/**"], "receive": ["X/a", "X/b", "Y/a", "Y/b"]})
        holder, empty, plain = world.client(), world.client(), world.client()
        subscribe(holder, "markers:true", glob="X/*")
        put(world, "X/a", b"1")
        holder.read()
        subscribe(empty, "markers:true", glob="X/*")
        subscribe(plain, "metadata:true", glob="X/*")
        world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": receive}), world.wall_us)
        assert len(world.broker._scanner.scans) == scans

    def test_a_right_that_comes_back_before_the_notice(self) -> None:
        """No notice is sent. The value comes again, because changes may have been missed meanwhile."""
        world = make(anna=EVERYTHING)
        client = world.client()
        subscribe(client, "markers:true")
        put(world, "X/a", b"1")
        client.read()
        for receive in (["X/b"], ["X/**"]):
            world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": receive}), world.wall_us)
            world.settle()
        assert values(client.read()) == [("X/a", b"1")]

    def test_many_rights_that_come_back_before_the_notice(self) -> None:
        """Notices that are not needed any longer are dropped in parts, and no client waits for a wake-up meanwhile."""
        world = make(anna=EVERYTHING)
        client, publisher = world.client(), world.client()
        subscribe(client, "markers:true")
        for number in range(2 * NOTICES_MAX + 1):
            publisher.send(f"X/{number}")
        world.settle()
        client.read()
        publisher.read()
        for receive in (["X/b"], ["X/**"]):
            world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": receive}), world.wall_us)
            world.settle()
        connection = client.peer.connection
        assert connection is not None
        (subscription,) = connection.session.subscriptions.values()
        refinement = subscription.refinement
        assert refinement is not None
        left = len(refinement.withdrawals)
        assert left > 2 * NOTICES_MAX
        while refinement.withdrawals:
            assert connection.awake or (client.peer.next_due_s or 0) <= world.now_s
            frames = client.read_some()
            assert not [frame for frame in frames if frame.headers.get(b"kind") == b"left"]
            assert left - len(refinement.withdrawals) <= NOTICES_MAX + len(frames)
            left = len(refinement.withdrawals)

    def test_a_topic_that_leaves_while_its_right_was_withdrawn(self) -> None:
        """The client holds a value until it is sent the notice, so it is sent that the topic no longer satisfies its selector."""
        world = make(anna={"receive": ["X/**"]}, bert=EVERYTHING)
        client, publisher = world.client(), world.client("bert")
        subscribe(client, "markers:true", NO_X)
        put(world, "X/a", b"1", publisher)
        client.read()
        for receive, x in ((["X/b"], "1"), (["X/**"], "2")):
            world.broker.replace_policy(policy(anna={"receive": receive}, bert=EVERYTHING), world.wall_us)
            world.settle()
            publisher.send("X/a", b"2", x=x)
            world.settle()
        messages = [frame.headers for frame in client.read() if frame.headers[b"destination"] != b"$marker"]
        assert [(headers[b"kind"], headers[b"reason"]) for headers in messages] == [(b"left", b"selector")]
