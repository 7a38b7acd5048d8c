"""The quarantine: the last rejected SENDs, within bounds, with a fair share for each principal, and nothing that must not be kept."""

import gc
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.registry import Registry, load_registry
from maxam.gateway.quarantine import BODY_GIVEN_UP, Quarantine, Quarantined, take_rejected
from maxam.gateway.rejects import BODY_KEPT, BODY_PRIVATE, BODY_UNAUTHORISED, RejectedEvent
from maxam.records import Identity, Rejection
from maxam.stomp.events import Send
from tests.support.sans_io import World

REGISTRY = load_registry({"registry.toml": b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'})
INVALID, UNAUTHORISED = b"rejected-invalid", b"rejected-unauthorised"
SCHEMA = b'{"type":"record","name":"Count_v1","namespace":"n","fields":[{"name":"n","type":"int"}]}'
RULES = {
    "registry.toml": b"""
[[rule]]
destination = "X/*.Count"
schema = "n.Count_v1"
encoding = "datum"
[[rule]]
destination = "X/*.Private"
schema = "n.Count_v1"
encoding = "datum"
store_rejected_bodies = false
""",
    "n/Count_v1/1.0.avsc": SCHEMA,
}


def told(principal: str, body: bytes = b"?", at_us: int = 0, registry: Registry = REGISTRY) -> RejectedEvent:
    """Make a rejected SEND."""
    send = Send(b"X/a", body, (), None)
    return RejectedEvent(Identity(principal, ""), send, INVALID, Rejection("no-rule", "why"), registry, at_us)


def held(quarantine: Quarantine) -> list[Quarantined]:
    """Return all that is kept, the newest first."""
    return list(quarantine.before(None))


@dataclass
class Model:
    """The SENDs of every principal, and a model of the quarantine."""

    records_max: int
    bytes_max: int

    def check(self, quarantine: Quarantine, sent: dict[str, list[Quarantined]]) -> None:
        """Find the bounds kept, and each share fair."""
        records = held(quarantine)
        assert len(records) == len(quarantine) <= self.records_max
        assert sum(record.size for record in records) == quarantine.size <= self.bytes_max
        assert [record.number for record in records] == sorted((record.number for record in records), reverse=True)
        assert len(records) + quarantine.forgotten == sum(map(len, sent.values()))
        for record in records:
            assert quarantine.get(quarantine.name(record)) is record
            assert (record.body_state == BODY_KEPT) == (len(record.body) == record.body_bytes)
        by_principal: dict[str, list[Quarantined]] = {}
        for record in reversed(records):
            by_principal.setdefault(record.identity.principal, []).append(record)
        for principal, theirs in sent.items():
            kept = by_principal.get(principal, [])
            assert kept == theirs[len(theirs) - len(kept) :]  # the last ones, without a gap


BODIES = st.integers(0, 3000)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(2_000, 20_000),
    st.lists(st.tuples(st.sampled_from("abcde"), BODIES), max_size=120),
)
def test_bounds_hold_and_of_each_principal_the_last_ones_are_kept(
    records_max: int, bytes_max: int, sends: list[tuple[str, int]]
) -> None:
    """For any rejects there are never more records or bytes than allowed, and of each principal a run of its last ones."""
    quarantine = Quarantine(records_max, bytes_max, "run")
    sent: dict[str, list[Quarantined]] = {}
    model = Model(records_max, bytes_max)
    for principal, size in sends:
        sent.setdefault(principal, []).append(quarantine.keep(told(principal, b"x" * size), 0, 0))
        model.check(quarantine, sent)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(8, 40),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from("abc")), min_size=1, max_size=30),
    st.data(),
)
def test_nobody_pushes_out_what_is_within_the_fair_share_of_another(
    records_max: int, quiet: list[tuple[int, str]], data: Any
) -> None:
    """A principal below an n-th of records and bytes, with n principals, loses nothing, whatever another sends."""
    names = sorted({name for _, name in quiet})
    n = len(names) + 1
    bytes_max = 64_000
    quarantine = Quarantine(records_max, bytes_max, "run")
    mine: dict[str, list[Quarantined]] = {name: [] for name in names}
    used: dict[str, int] = dict.fromkeys(names, 0)
    for size, name in quiet:
        for _ in range(data.draw(st.integers(0, 60), "noise")):
            quarantine.keep(told("loud", b"!" * data.draw(st.sampled_from((0, 100, 3000)))), 0, 0)
        record = told(name, b"x" * size)
        cost = quarantine.keep(record, 0, 0)
        if len(mine[name]) + 1 > records_max // n or used[name] + cost.size > bytes_max // n:
            break
        mine[name].append(cost)
        used[name] += cost.size
        for theirs in mine.values():
            assert all(quarantine.get(quarantine.name(one)) is one and one.body_state == BODY_KEPT for one in theirs)


def test_a_flood_of_one_leaves_the_last_one_of_another() -> None:
    """A thousand principals with one reject each and one with a million bytes a time: each of the thousand stays, with its body."""
    quarantine = Quarantine(2000, 16_777_216, "run")
    quiet = [quarantine.keep(told(f"p{number}", b"x" * 500), 0, 0) for number in range(1000)]
    for _ in range(5000):
        quarantine.keep(told("loud", b"x" * 100_000), 0, 0)
    assert all(quarantine.get(quarantine.name(one)) is one and len(one.body) == 500 for one in quiet)
    assert quarantine.size <= 16_777_216


def test_with_more_principals_than_room_the_newest_are_kept() -> None:
    """When all have one, the oldest of all goes."""
    quarantine = Quarantine(3, 1_000_000, "run")
    for number in range(10):
        quarantine.keep(told(f"p{number}"), 0, 0)
    assert [one.identity.principal for one in held(quarantine)] == ["p9", "p8", "p7"]
    assert quarantine.forgotten == 7


def test_unknown_principals_share_one_share() -> None:
    """A certificate that no policy names is no principal of its own: ten of them push out each other, not the one that is named."""
    quarantine = Quarantine(4, 1_000_000, "run")
    for _ in range(2):
        quarantine.keep(told("named"), 0, 0)
    for number in range(10):
        quarantine.keep(told(f"fingerprint:{number}"), 0, 0)
    assert sorted(one.identity.principal for one in held(quarantine)) == [
        "fingerprint:8",
        "fingerprint:9",
        "named",
        "named",
    ]


def test_a_body_that_takes_all_the_room_is_known_by_its_hash() -> None:
    """A body longer than a quarter of all the room is not kept. The only reject of a principal first loses its body, then itself."""
    quarantine = Quarantine(100, 8_000, "run")
    large = quarantine.keep(told("a", b"x" * 2_001), 0, 0)
    assert (large.body, large.body_state, large.body_bytes) == (b"", BODY_GIVEN_UP, 2_001)
    assert large.body_sha256 == large.digest() == sha256(b"x" * 2_001).hexdigest()
    lone = quarantine.keep(told("b", b"y" * 2_000), 0, 0)
    assert lone.body_state == BODY_KEPT
    for number in range(2):
        quarantine.keep(told(f"c{number}", b"z" * 1_900), 0, 0)
    assert (lone.body_state, lone.digest()) == (BODY_GIVEN_UP, sha256(b"y" * 2_000).hexdigest())
    assert lone in held(quarantine)


def test_names_are_of_this_run() -> None:
    """Only what this run named, and still keeps, is found; nothing else is, whatever it looks like."""
    quarantine = Quarantine(2, 1_000_000, "5a")
    records = [quarantine.keep(told("a"), 0, 0) for _ in range(3)]
    assert [quarantine.name(one) for one in records] == ["5a-1", "5a-2", "5a-3"]
    assert quarantine.get("5a-3") is records[2]
    for other in (
        "5a-1",
        "5a-4",
        "5b-3",
        "3",
        "-3",
        "5a-",
        "5a-x",
        "5a-03 ",
        "5a-\u0663",
        "5a-" + "9" * 40,
        "../5a-3",
        "",
    ):
        assert quarantine.get(other) is None, other


def test_what_must_not_be_kept_is_nowhere_in_memory() -> None:
    """Only length and SHA-256 are left of some bodies, and no object holds the body.

    They are of SENDs without right, to a malformed destination, or under a rule that forbids to store them.
    """
    world = World.make(schemas=RULES, anna={"send": ["X/**"], "receive": ["X/**"]}, bob={"send": [], "receive": []})
    quarantine = Quarantine(100, 1_000_000, "run")
    broker = world.broker
    broker.publishing.on_rejected = take_rejected(broker, quarantine, None)
    anna, bob = world.client("anna"), world.client("bob")
    secret = b"\xff\xfe secret of somebody " + bytes(range(48, 58)) * 3
    bob.send("X/a.Count", secret, trace="secret of a header")
    bob.send("X/a..Count", secret, trace="secret of a header")
    anna.send("X/a.Private", secret, trace="secret of a header")
    anna.send("X/a.Count", secret, trace="told")
    world.settle()
    open_one, private, malformed, unauthorised = held(quarantine)
    assert (open_one.body, open_one.headers, open_one.body_state) == (secret, ((b"trace", b"told"),), BODY_KEPT)
    digest = sha256(secret).hexdigest()
    for record, state in ((private, BODY_PRIVATE), (malformed, BODY_UNAUTHORISED), (unauthorised, BODY_UNAUTHORISED)):
        assert (record.body, record.body_state, record.body_bytes) == (b"", state, len(secret))
        assert record.body_sha256 == record.digest() == digest
        assert dict(record.headers) == {b"content-length": b"%d" % len(secret), b"body-sha256": digest.encode()}
    open_one.give_up_body()
    del open_one, anna, bob
    holders = [
        one
        for one in gc.get_objects()
        if isinstance(one, (RejectedEvent, Quarantined, Send)) and secret in getattr(one, "body", b"")
    ]
    assert holders == []
