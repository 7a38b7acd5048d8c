"""Last wills: set, armed, fired exactly once or cancelled, whatever connections, disks and crashes do."""

from base64 import b64encode
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxam.broker.last_wills import FIRED_AT_ONCE
from maxam.broker.operations import Operation
from maxam.broker.policy import load_policy
from maxam.broker.summary import summed_up
from maxam.config import Limits
from maxam.records import Change, Record, WillRecord
from tests.support.sans_io import EVERYTHING, Client, World, forget_target, policy, receipts

A, B = "X/a", "X/b"
DATUM = {
    "registry.toml": b'[[rule]]\ndestination = "X/a"\nencoding = "datum"\nschema = "e.A_v1"\n'
    b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n',
    "e/A_v1/1.0.avsc": b'{"type":"record","name":"e.A_v1","fields":[{"name":"n","type":"int"}]}',
}


def with_will(world: World, body: str = "bye", client_id: str = "c", **more: Any) -> Client:
    """Connect a client with a will, and commit it."""
    client = world.client(client_id=client_id, **({"will_destination": A, "will_body": body} | more))
    world.commit()
    return client


def fire(world: World, commit: bool = True) -> None:
    """Fire what is due, and commit it."""
    world.broker.last_wills.fire(world.now_s, world.wall_us)
    if commit:
        world.commit()


def sent(records: list[Record]) -> list[tuple[str, bytes]]:
    """Return destination and body of the changes in a journal."""
    return [(one.destination.decode(), one.body) for one in records if isinstance(one, Change)]


def kinds(records: list[Record]) -> list[str]:
    """Return the kinds of records."""
    return [type(one).__name__.removesuffix("Record") for one in records]


def refused(world: World, **headers: Any) -> Any:
    """Return the ERROR to a CONNECT, which must have changed nothing."""
    sessions, pending = len(world.broker.sessions), len(world.broker.pending)
    frame = world.client(connect=False).connect(**headers)
    assert frame.command == b"ERROR"
    assert (len(world.broker.sessions), len(world.broker.pending)) == (sessions, pending)
    return frame


class TestSet:
    """Wills that CONNECT sets."""

    def test_a_will_is_a_record_with_all_of_its_send(self) -> None:
        """Headers lose their prefix. Reserved ones are dropped, as in a SEND."""
        world = World.make()
        client = with_will(
            world, will_delay="30", will_content_type="a/b", will_x="1", will_receipt="no", will_kind="no", other="2"
        )
        (record,) = world.journal
        assert isinstance(record, WillRecord)
        assert (record.principal, record.client_id, record.delay_s) == ("anna", "c", 30)
        assert record.publisher.fingerprint == client.peer.fingerprint
        assert (record.destination, record.body) == (b"X/a", b"bye")
        assert record.headers == ((b"content-type", b"a/b"), (b"x", b"1"))

    def test_a_body_of_bytes_is_base64(self) -> None:
        """A frame of CONNECT has no body, and its headers no escapes."""
        world = World.make()
        body = bytes(range(256))
        with_will(world, will_body=None, will_body_base64=b64encode(body).decode())
        (record,) = world.journal
        assert isinstance(record, WillRecord)
        assert record.body == body

    @pytest.mark.parametrize(
        "headers",
        [
            {"will_body": "x"},
            {"will_delay": "1"},
            {"will_content_type": "x"},
            {"will_destination": A, "will_delay": "3601"},
            {"will_destination": A, "will_delay": "-1"},
            {"will_destination": A, "will_delay": ""},
            {"will_destination": A, "will_body": "x", "will_body_base64": "eA=="},
            {"will_destination": A, "will_body_base64": "eA="},
            {"will_destination": A, "will_body_base64": "e A=="},
            {"will_destination": A, "will_": "x"},
            {"will_destination": A, "will_if_revision": "1"},
            {"will_destination": A, "will_source": "s", "will_source_revision": "1"},
            {"will_destination": A, "will_transaction": "t"},
            {"will_destination": A, "will_body": "x" * 5000},
            {"will_destination": "X/*"},
            {"will_destination": "Y/a"},
            {"will_destination": ""},
        ],
    )
    def test_a_will_that_cannot_be_sent_is_refused(self, headers: dict[str, str]) -> None:
        """The CONNECT gets the ERROR `bad will`, and there is no session."""
        assert refused(World.make(), **headers).headers[b"message"] == b"bad will"

    @pytest.mark.parametrize(
        ("destination", "body", "result"),
        [(A, "xx", b"schema-mismatch"), ("Z/a", "x", b"unauthorised"), ("X/z", "x", b"unauthorised")],
    )
    def test_the_error_has_the_result_of_the_send(self, destination: str, body: str, result: bytes) -> None:
        """As if the SEND had been rejected."""
        world = World.make(schemas=DATUM, anna={"send": ["X/a", "X/b"], "receive": []})
        frame = refused(world, will_destination=destination, will_body=body)
        assert (frame.headers[b"message"], frame.headers[b"result"]) == (b"bad will", result)
        with_will(world, will_destination=B)
        assert world.broker.counters.wills_rejected == 1

    def test_a_principal_may_have_a_number_of_wills(self) -> None:
        """A session that has one may replace it. A cancelled one makes room."""
        world = World.make(limits=Limits(wills_per_principal_max=2))
        first = with_will(world, client_id="a")
        with_will(world, client_id="b")
        assert refused(world, client_id="c", will_destination=A).headers[b"message"] == b"too many wills"
        with_will(world, "other", client_id="b")
        world.client(client_id="c")
        first.write(b"DISCONNECT\n\n\0")
        world.commit()
        with_will(world, client_id="d")

    def test_an_equal_will_is_stored_once(self) -> None:
        """A client that connects again and again fills no journal; another delay or body is another will."""
        world = World.make()
        for _ in range(5):
            with_will(world).lose()
        assert kinds(world.journal) == ["Will"]
        with_will(world, will_delay="1").lose()
        with_will(world, "other").lose()
        assert kinds(world.journal) == ["Will"] * 3

    def test_a_receipt_means_that_the_will_is_stored(self) -> None:
        """That of any frame after CONNECT waits for it."""
        world = World.make()
        client = world.client(client_id="c", will_destination=A, will_body="bye")
        client.write(b"NACK\nid:x\nreceipt:r\n\n\0")
        assert receipts(client.read()) == []
        world.commit()
        assert receipts(client.read()) == [("r", "ignored")]


class TestFire:
    """When a will is sent."""

    def test_a_lost_connection_sends_it_after_the_delay(self) -> None:
        """Once, with the principal as publisher; a subscriber receives it."""
        world = World.make()
        reader = world.client()
        reader.subscribe(ack="auto")
        client = with_will(world, will_delay="30", will_x="1")
        world.now_s += 100
        fire(world)
        client.lose()
        world.now_s += 29.9
        fire(world)
        assert sent(world.journal) == []
        world.now_s += 0.1
        fire(world)
        fire(world)
        (frame,) = reader.read()
        assert (frame.headers[b"destination"], frame.headers[b"x"], frame.body) == (b"X/a", b"1", b"bye")
        assert kinds(world.journal) == ["Will", "Change", "WillEnd"]
        change = world.journal[1]
        assert isinstance(change, Change)
        assert (change.publisher.principal, change.publisher.fingerprint) == ("anna", client.peer.fingerprint)
        assert (world.broker.counters.wills_fired, len(world.broker.last_wills.wills)) == (1, 0)

    @pytest.mark.parametrize("how", ["lose", "eof", "malformed", "expel", "drop"])
    def test_each_end_without_disconnect_sends_it(self, how: str) -> None:
        """The end of the stream, an ERROR, an operator."""
        world = World.make()
        client = with_will(world)
        session = world.broker.sessions["anna", "c"]
        if how == "eof":
            client.peer.receive_eof(world.now_s)
        elif how == "malformed":
            client.write(b"what\n\n\0")
        elif how == "drop":
            world.broker.upkeep.end_session(session)
        client.lose()
        fire(world)
        assert sent(world.journal) == [(A, b"bye")]

    def test_disconnect_cancels_it(self) -> None:
        """The RECEIPT of DISCONNECT waits until that is stored."""
        world = World.make()
        client = with_will(world)
        client.write(b"DISCONNECT\nreceipt:r\n\n\0")
        assert receipts(client.read()) == []
        world.commit()
        assert receipts(client.read()) == [("r", "")]
        client.lose()
        fire(world)
        assert kinds(world.journal) == ["Will", "WillEnd"]

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("will", [None, "bye", "other"])
    def test_a_reconnect_or_a_takeover_cancels_it(self, lost: bool, will: str | None) -> None:
        """The new CONNECT decides which will there is then."""
        world = World.make()
        client = with_will(world, will_delay="30")
        if lost:
            client.lose()
        new = with_will(world, will, will_delay="30") if will else world.client(client_id="c")
        client.lose()
        world.now_s += 100
        fire(world)
        assert sent(world.journal) == []
        new.lose()
        world.now_s += 30
        fire(world)
        assert sent(world.journal) == ([] if will is None else [(A, will.encode())])

    def test_it_is_judged_again(self) -> None:
        """A right or a schema that has changed since rejects it, which operators see; it is gone then."""
        world = World.make(anna=EVERYTHING)
        seen = []
        world.broker.publishing.on_rejected = lambda *given: seen.append((given[0].principal, given[3].result))
        with_will(world, client_id="a").lose()
        world.broker.replace_policy(policy(anna={"send": ["X/b"], "receive": []}))
        ((record, rejection),) = world.broker.last_wills.fire(world.now_s, world.wall_us)
        world.commit()
        assert (record.client_id, rejection.result) == ("a", "unauthorised")
        assert seen == [("anna", "unauthorised")]
        assert kinds(world.journal) == ["Will", "WillEnd"]
        assert (len(world.broker.last_wills.wills), world.broker.counters.wills_rejected) == (0, 1)

    def test_an_empty_body_deletes(self) -> None:
        """As in a SEND."""
        world = World.make()
        client = with_will(world, will_body=None)
        client.send(A)
        world.commit()
        client.lose()
        fire(world)
        assert world.broker.store.live == 0

    def test_many_that_are_due_go_in_parts_and_in_their_order(self) -> None:
        """The oldest ones go first."""
        world = World.make()
        for number in range(FIRED_AT_ONCE + 5):
            with_will(world, f"{number}", client_id=f"{number}").lose()
            world.now_s += 1
        fire(world)
        assert sent(world.journal) == [(A, b"%d" % number) for number in range(FIRED_AT_ONCE)]
        fire(world)
        assert len(sent(world.journal)) == FIRED_AT_ONCE + 5

    def test_low_memory_puts_it_off(self) -> None:
        """It is neither lost nor sent."""
        world = World.make()
        with_will(world).lose()
        world.broker.memory_low = True
        fire(world)
        fire(world)
        assert world.broker.counters.sends_unavailable == 1
        world.broker.memory_low = False
        world.now_s += 1
        fire(world)
        assert sent(world.journal) == [(A, b"bye")]

    @pytest.mark.parametrize("holder", [None, "ben"])
    def test_a_certificate_that_was_taken_from_its_principal_sends_none(self, holder: str | None) -> None:
        """A stolen key must not publish after the operator has removed its fingerprint."""
        world = World.make()
        client = with_will(world, will_delay="30")
        fingerprint = client.peer.fingerprint
        text = (
            '[capabilities.all]\nsend = ["X/**"]\n[[principals]]\nname = "anna"\ncapabilities = ["all"]\n'
            f'fingerprints = ["{"f" * 64}"]\n'
        )
        if holder is not None:
            text += f'[[principals]]\nname = "{holder}"\ncapabilities = ["all"]\nfingerprints = ["{fingerprint}"]\n'
        world.broker.replace_policy(load_policy(text.encode(), "policy", Limits()))
        reported = []
        world.broker.publishing.on_rejected = lambda *given: reported.append((given[1].destination, given[3].result))
        client.lose()
        world.now_s += 30
        ((_, rejection),) = world.broker.last_wills.fire(world.now_s, world.wall_us)
        world.commit()
        assert rejection.result == "unauthorised"
        assert sent(world.journal) == []
        assert len(world.broker.last_wills.wills) == 0
        assert reported == [(A.encode(), "unauthorised")]


class TestReceipt:
    """A RECEIPT shows that the will of its connection is stored."""

    def test_a_connection_with_the_same_will_waits_for_its_record(self) -> None:
        """The CONNECT before has appended it, and it is not on the disk."""
        world = World.make()
        _, client = [world.client(client_id="c", will_destination=A, will_body="will") for _ in range(2)]
        client.unsubscribe("none", receipt="r")
        assert client.read() == []
        world.commit()
        assert receipts(client.read()) == [("r", "unknown-subscription")]


class TestRefused:
    """A disk without room."""

    def test_a_will_that_is_not_stored_ends_its_connection(self) -> None:
        """The one before it stays, and is sent."""
        world = World.make()
        with_will(world, "first").lose()
        client = world.client(client_id="c", will_destination=A, will_body="second")
        world.broker.roll_back_batch(world.take())
        (frame,) = client.read()
        assert (frame.command, frame.headers[b"message"]) == (b"ERROR", b"disk full")
        client.lose()
        fire(world)
        assert sent(world.journal) == [(A, b"first")]

    def test_a_refused_one_alone_leaves_nothing(self) -> None:
        """Its session may set another."""
        world = World.make()
        client = world.client(client_id="c", will_destination=A, will_body="first")
        world.broker.roll_back_batch(world.take())
        client.lose()
        assert len(world.broker.last_wills.wills) == 0
        with_will(world, "second").lose()
        fire(world)
        assert sent(world.journal) == [(A, b"second")]

    @pytest.mark.parametrize("then", ["nothing", "connect", "will", "crash"])
    def test_a_will_that_was_refused_when_it_fired_is_sent_later(self, then: str) -> None:
        """Unless a CONNECT cancels it meanwhile: change and end of the will stand and fall together."""
        world = World.make()
        with_will(world).lose()
        fire(world, commit=False)
        batch = world.take()
        assert kinds([one for one in batch if not isinstance(one, str)]) == ["Change", "WillEnd"]  # type: ignore[misc]
        if then == "connect":
            world.client(client_id="c")
        elif then == "will":
            world.client(client_id="c", will_destination=A, will_body="new").peer.closed(world.now_s, "lost")
        world.broker.roll_back_batch(batch)
        if then == "crash":
            world = world.restart()
        world.commit()
        fire(world)
        fire(world)
        assert sent(world.journal) == ([] if then == "connect" else [(A, b"bye")])
        assert len(world.broker.last_wills.wills) == 0

    @pytest.mark.parametrize("leaves", [False, True])
    def test_no_receipt_shows_that_a_refused_will_is_stored(self, leaves: bool) -> None:
        """Neither of a SEND that was rejected before, nor of one that the disk refused, nor of a DISCONNECT."""
        world = World.make()
        client = world.client(client_id="c", will_destination=A, will_body="will")
        client.send("malformed", receipt="r-1")
        client.send("X/a", receipt="r-2")
        if leaves:
            client.write(b"DISCONNECT\nreceipt:r-3\n\n\0")
        world.broker.roll_back_batch(world.take())
        assert [frame.command for frame in client.read()] == ([] if leaves else [b"ERROR"])
        assert client.peer.finished

    @pytest.mark.parametrize("fired", [False, True])
    def test_the_will_before_a_refused_one_keeps_its_own_delay(self, fired: bool) -> None:
        """From the end of the connection that had set the refused one, even if that was due and sent."""
        world = World.make()
        with_will(world, "first", will_delay="30").lose()
        world.client(client_id="c", will_destination=A, will_body="second").lose()
        if fired:
            fire(world, commit=False)
        world.broker.roll_back_batch(world.take())
        for seconds, expected in ((29, []), (1, [(A, b"first")])):
            world.now_s += seconds
            fire(world)
            assert sent(world.journal) == expected

    def test_a_client_that_cancels_a_refused_will_goes_on(self) -> None:
        """It has set none."""
        world = World.make()
        world.client(client_id="c", will_destination=A, will_body="will").lose()
        client = world.client(client_id="c")
        world.broker.roll_back_batch(world.take())
        assert client.read() == []

    def test_the_end_of_a_cancelled_one_outlives_a_full_disk(self) -> None:
        """It needs no room of its own, as acknowledgements do."""
        world = World.make()
        client = with_will(world)
        client.write(b"DISCONNECT\n\n\0")
        world.broker.roll_back_batch(world.take())
        client.lose()
        fire(world)
        world.commit()
        assert kinds(world.journal) == ["Will", "WillEnd"]
        assert len(world.broker.last_wills.wills) == 0


class TestBound:
    """Wills that the policy binds to a principal."""

    BOUND = '{destination = "X/a", delay_s = 5, body = "bound", headers = {x = "1"}}'

    def test_it_is_the_will_of_a_client_that_sets_none(self) -> None:
        """A client's own will comes first. DISCONNECT cancels either."""
        world = World.make(anna={**EVERYTHING, "will": self.BOUND})
        world.client(client_id="a").lose()
        with_will(world, "own", client_id="b").lose()
        world.client(client_id="c").write(b"DISCONNECT\n\n\0")
        world.now_s += 5
        fire(world)
        assert sorted(sent(world.journal)) == [(A, b"bound"), (A, b"own")]
        (bound,) = [one for one in world.journal if isinstance(one, Change) and one.body == b"bound"]
        assert bound.headers == ((b"x", b"1"),)

    def test_a_reload_counts_from_the_next_connect_on(self) -> None:
        """A connection keeps the will that it has."""
        world = World.make()
        client = world.client(client_id="a")
        world.broker.replace_policy(policy(anna={**EVERYTHING, "will": self.BOUND}))
        client.lose()
        world.commit()
        assert len(world.broker.last_wills.wills) == 0
        world.client(client_id="a")
        world.broker.replace_policy(policy(anna=EVERYTHING))
        world.commit()
        assert len(world.broker.last_wills.wills) == 1
        world.client(client_id="a")
        world.commit()
        assert len(world.broker.last_wills.wills) == 0

    def test_one_that_the_schema_rejects_is_reported_and_left_out(self) -> None:
        """The client is connected, as it cannot correct the policy."""
        world = World.make(schemas=DATUM, anna={**EVERYTHING, "will": self.BOUND})
        seen = []
        world.broker.publishing.on_rejected = lambda *given: seen.append(given[3].result)
        assert world.client(client_id="a").peer.connection is not None
        assert seen == ["schema-mismatch"]
        assert len(world.broker.last_wills.wills) == 0


def test_after_a_restart_the_delay_runs_from_the_start() -> None:
    """For a session that was connected, and for one that was not; a reconnect within the delay cancels it."""
    world = World.make()
    for name in ("a", "b", "c"):
        with_will(world, name, client_id=name, will_delay="30")
    world.broker.detach(world.broker.sessions["anna", "a"].connection, world.now_s)  # type: ignore[arg-type]
    world.now_s += 1000
    world = world.restart()
    world.now_s += 29
    fire(world)
    assert sent(world.journal) == []
    world.client(client_id="c")
    world.now_s += 1
    fire(world)
    assert sorted(sent(world.journal)) == [(A, b"a"), (A, b"b")]


def test_a_leader_whose_fronts_may_have_the_clients_arms_wills_later() -> None:
    """A front that claims the session within that time disarms its will."""
    world = World.make()
    for name in ("a", "b"):
        with_will(world, name, client_id=name)
    world = world.restart(wills_after_s=10)
    intake = world.broker.serve_fronts()
    world.now_s += 9
    fire(world)
    assert sent(world.journal) == []
    intake.hold("anna", "b", b"front--1")
    world.now_s += 1
    fire(world)
    assert sent(world.journal) == [(A, b"a")]


def test_a_snapshot_has_the_wills() -> None:
    """A broker that is made from it fires each of them once."""
    world = World.make()
    with_will(world, "gone", client_id="a").write(b"DISCONNECT\n\n\0")
    with_will(world, "fired", client_id="b").lose()
    fire(world)
    with_will(world, "old", client_id="c")
    with_will(world, "kept", client_id="c", will_delay="5")
    snapshot = list(summed_up(map(forget_target, world.journal), Limits()).snapshot())
    assert kinds(snapshot) == ["Change", "Will"]
    world.journal = snapshot
    world = world.restart()
    world.now_s += 5
    fire(world)
    assert sent(world.journal)[1:] == [(A, b"kept")]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from(["c", "d"]), st.sampled_from([None, 0, 2])),
        st.tuples(st.just("lose"), st.sampled_from(["c", "d"]), st.none()),
        st.tuples(st.just("disconnect"), st.sampled_from(["c", "d"]), st.none()),
        st.tuples(st.sampled_from(["time", "fire", "take", "apply", "crash", "snapshot"]), st.just(""), st.none()),
    ),
    max_size=30,
)


class Model:
    """The wills and their SENDs in the simplest form. A crash leaves the copy that was made at the last commit."""

    def __init__(self) -> None:
        self.wills: dict[str, tuple[bytes, int]] = {}
        self.due_s: dict[str, float] = {}
        self.fired: list[bytes] = []

    def lose(self, name: str, now_s: float) -> None:
        """End a connection without DISCONNECT."""
        if name in self.wills:
            self.due_s.setdefault(name, now_s + self.wills[name][1])

    def fire(self, now_s: float) -> None:
        """Send all that are due, the first first."""
        for name, due_s in sorted(self.due_s.items(), key=lambda item: item[1]):
            if due_s <= now_s:
                self.fired.append(self.wills.pop(name)[0])
                del self.due_s[name]


class History:
    """A broker and its model, which are asked for the same."""

    def __init__(self) -> None:
        self.world = World.make()
        self.model = Model()
        self.clients: dict[str, Client] = {}
        self.batch: list[Operation] | None = None
        self.stored, self.taken = deepcopy(self.model), deepcopy(self.model)
        self.number = 0

    def connect(self, name: str, delay_s: int | None) -> None:
        """Connect a client, with a will of its own body unless the delay is None."""
        old = self.clients.get(name)
        self.number += 1
        will: dict[str, Any] = {}
        self.model.due_s.pop(name, None)
        self.model.wills.pop(name, None)
        if delay_s is not None:
            will = {"will_destination": A, "will_body": str(self.number), "will_delay": str(delay_s)}
            self.model.wills[name] = (b"%d" % self.number, delay_s)
        self.clients[name] = self.world.client(client_id=name, **will)
        if old is not None:
            old.lose()

    def lose(self, name: str, _: int | None) -> None:
        """Break a connection."""
        if name in self.clients:
            self.clients.pop(name).lose()
            self.model.lose(name, self.world.now_s)

    def disconnect(self, name: str, _: int | None) -> None:
        """Have a client leave."""
        if name in self.clients:
            self.clients[name].write(b"DISCONNECT\n\n\0")
            self.clients.pop(name).lose()
            self.model.wills.pop(name, None)

    def time(self, _: str, seconds: int | None) -> None:
        """Let time pass."""
        self.world.now_s += seconds or 1

    def fire(self, *_: object) -> None:
        """Fire what is due."""
        fire(self.world, commit=False)
        self.model.fire(self.world.now_s)

    def take(self, *_: object) -> None:
        """Begin a commit."""
        if self.batch is None:
            self.batch, self.taken = self.world.take(), deepcopy(self.model)

    def apply(self, *_: object) -> None:
        """End it."""
        if self.batch is not None:
            self.world.commit(self.batch)
            self.batch, self.stored = None, self.taken

    def crash(self, *_: object) -> None:
        """Start again from what was committed."""
        self.world = self.world.restart()
        self.clients, self.batch, self.model = {}, None, deepcopy(self.stored)
        self.model.due_s = {}
        for name in self.model.wills:
            self.model.lose(name, self.world.now_s)

    def snapshot(self, *_: object) -> None:
        """Start again from a snapshot of what was committed. The changes that it leaves out are counted."""
        changes = [one for one in self.world.journal if isinstance(one, Change)]
        snapshot = summed_up(map(forget_target, self.world.journal), Limits()).snapshot()
        self.world.journal = [*changes[:-1], *snapshot]
        self.crash()


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(STEPS)
@example([("connect", "d", 0), ("connect", "c", 0), ("lose", "c", None), ("lose", "d", None), ("fire", "", None)])
@example([("connect", "c", 0), ("take", "", None), ("lose", "c", None), ("fire", "", None), ("crash", "", None)])
def test_each_will_is_sent_once_or_cancelled(steps: list[tuple[str, str, int | None]]) -> None:
    """The journal has the SENDs of the model in each history of connections, commits and crashes."""
    history = History()
    for what, name, delay_s in [
        *steps,
        ("take", "", None),
        ("apply", "", None),
        ("take", "", None),
        ("apply", "", None),
    ]:
        getattr(history, what)(name, delay_s)
    assert sorted([body for _, body in sent(history.world.journal)]) == sorted(history.model.fired)
    for name in list(history.clients):
        history.lose(name, None)
    history.time("", 10)
    history.fire()
    history.take()
    history.apply()
    bodies = [body for _, body in sent(history.world.journal)]
    assert sorted(bodies) == sorted(history.model.fired)
    assert len(set(bodies)) == len(bodies)
    assert len(history.world.broker.last_wills.wills) == history.world.broker.last_wills.wills.armed == 0
