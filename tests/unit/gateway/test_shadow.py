"""Candidate versions: tried on live traffic, without effect, within a budget, and counted by principal and reason."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.envelope import EnvelopeKeys
from maxam.avro.registry import Registry, load_registry
from maxam.avro.rule import CONFLUENT, DATUM, ENVELOPE, SINGLE_OBJECT
from maxam.config import Limits
from maxam.gateway import shadow
from maxam.gateway.shadow import OTHERS, Shadows, Trials
from maxam.metrics import Counters
from maxam.records import Identity, Rejection, Validation
from maxam.stomp.events import Send
from tests.support.sans_io import World, receipts

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
NUMBER = {"name": "number", "type": "int"}
STATE = {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B", "C"]}}
NARROW = {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B"]}}
MORE = {"name": "more", "type": ["null", "int"], "default": None}
KEYS = EnvelopeKeys()


def thing(*fields: Any) -> bytes:
    """Write `e.T_v1`."""
    return json.dumps({"type": "record", "namespace": "e", "name": "T_v1", "fields": fields}).encode()


def texts(encoding: str = DATUM, shadow_minor: str | None = "1.1", candidate: bytes | None = None) -> dict[str, bytes]:
    """Write a folder whose candidate 1.1 has a field more and a symbol less than 1.0."""
    named = "" if shadow_minor is None else f'shadow = "{shadow_minor}"'
    rule = f'[[rule]]\ndestination = "X/**"\nschema = "e.T_v1"\nencoding = "{encoding}"\n{named}\n'
    return {
        "registry.toml": f'{rule}[type."e.T_v1"]\ncompatibility = "NONE"\n'.encode(),
        "e/T_v1/1.0.avsc": thing(NUMBER, STATE),
        "e/T_v1/1.1.candidate.avsc": candidate or thing(NUMBER, NARROW, MORE),
    }


OLD_A, OLD_C = b"\x02\x00", b"\x02\x04"  # of 1.0, the values (1, A) and (1, C)
NEW_A = b"\x02\x00\x02\x0e"  # of 1.1: 1, A, 7
BAD = b"\x02\x0e"


class Bench:
    """Trials on a registry, without a broker."""

    def __init__(self, registry: Registry, budget: int = 1_000_000) -> None:
        self.registry = registry
        self.counters = Counters()
        self.shadows = Shadows(budget, self.counters, lambda: self.registry)
        self.wall_us = NOW_US

    def send(self, body: bytes, principal: str = "anna", **headers: str) -> Validation | Rejection:
        """Validator a SEND as the broker does, and report it."""
        rule = self.registry.rules[0]
        given = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
        send = Send(b"X/a", body, given, None)
        verdict = rule.validate(send.destination, send.headers, body)
        self.shadows.record(Identity(principal, ""), send, rule, verdict, self.wall_us)
        return verdict

    @property
    def trials(self) -> Trials:
        """The figures of the only rule."""
        (trials,) = self.shadows.trials()
        return trials

    def outcome(self, body: bytes, **headers: str) -> str:
        """Send, and return what was counted."""
        before = self.figures()
        self.send(body, **headers)
        after = self.figures()
        (changed,) = [name for name in after if after[name] != before[name] and name not in ("seen", "tried")]
        return changed

    def figures(self) -> dict[str, int]:
        """Return the totals."""
        total = self.trials.total
        return {name: getattr(total, name) for name in total.__slots__}


def version(registry: Registry, minor: str) -> Any:
    """Find a minor, released or not."""
    return registry.schema("e.T_v1", minor) or registry.candidates("e.T_v1")[0]


def item(key: int, value: bytes) -> bytes:
    """Write an item of an envelope; both are short."""
    return bytes([2 * key, 2 * len(value)]) + value


def envelope(*items: bytes) -> bytes:
    """Write an envelope."""
    return bytes([2 * len(items)]) + b"".join(items) + b"\x00"


@pytest.mark.parametrize("encoding", [DATUM, SINGLE_OBJECT, CONFLUENT, ENVELOPE])
def test_each_outcome_in_each_encoding(encoding: str) -> None:
    """Bodies that fit, older and readable ones, no values of the candidate, newly accepted ones, and ones without relation to it."""
    registry = load_registry(texts(encoding))
    bench = Bench(registry)

    def body(minor: str, datum: bytes) -> tuple[bytes, dict[str, str]]:
        named = version(registry, minor)
        if encoding == DATUM:
            return datum, {"schema_version": minor}
        if encoding == ENVELOPE:
            return envelope(item(KEYS.fingerprint, named.crc_64), item(KEYS.body, datum)), {}
        return named.head(encoding) + datum, {}

    def outcome(minor: str, datum: bytes) -> str:
        wire, headers = body(minor, datum)
        return bench.outcome(wire, **headers)

    assert outcome("1.0", OLD_A) == "older"
    assert outcome("1.0", OLD_C) == "rejected"
    assert outcome("1.1", NEW_A) == "newly_accepted"
    assert outcome("1.1", BAD) == "rejected"
    assert outcome("1.0", BAD) == "aside"
    if encoding in (DATUM, ENVELOPE):  # where a body need not name its version
        plain = (lambda datum: datum) if encoding == DATUM else (lambda datum: envelope(item(KEYS.body, datum)))
        assert bench.outcome(plain(NEW_A)) == "newly_accepted"  # 1.0 does not take it, the candidate would
        assert bench.outcome(plain(OLD_A)) == "older"
        assert bench.outcome(plain(OLD_C)) == "rejected"
        assert bench.outcome(plain(BAD)) == "aside"
    else:
        assert bench.outcome(b"nonsense") == "aside"
    total = bench.trials.total
    assert (
        total.tried == total.fits + total.older + total.rejected + total.newly_accepted == bench.counters.shadow_trials
    )
    assert total.seen == total.tried + total.aside
    assert bench.counters.shadow_rejections == total.rejected


def test_what_fits_today_and_tomorrow() -> None:
    """A bare datum that is a value of the candidate too fits; so does any with a version of the same canonical form."""
    bench = Bench(load_registry(texts(candidate=thing(NUMBER, NARROW))))
    assert bench.outcome(OLD_A) == "fits"
    assert bench.outcome(OLD_C) == "rejected"
    same = thing(NUMBER | {"doc": "how many"}, STATE)
    bench = Bench(load_registry(texts(SINGLE_OBJECT, candidate=same)))
    assert bench.outcome(version(bench.registry, "1.0").head(SINGLE_OBJECT) + OLD_C) == "fits"


def test_a_tombstone_alone_is_nothing_to_try() -> None:
    """An envelope that only deletes would be accepted by the candidate too."""
    assert Bench(load_registry(texts(ENVELOPE))).outcome(envelope(item(KEYS.tombstone, b""))) == "fits"


def test_reasons_are_told_by_principal_with_an_example() -> None:
    """Principals that would be rejected, reasons, counts, and the last example. Numbers and indices do not make a reason another one."""
    bench = Bench(load_registry(texts()))
    bench.send(OLD_C, "anna")
    bench.send(OLD_A, "anna")
    for symbol in (5, 6, 7):
        bench.wall_us += 1
        bench.send(bytes([2, 2 * symbol, 0]), "bob", schema_version="1.1")
    reasons = bench.trials.reasons
    assert [(who, why.partition(": ")[0], reason.count) for (who, why), reason in reasons.items()] == [
        ("anna", "state", 1),
        ("bob", "state", 3),
    ]
    bob = reasons["bob", "state: expected enum e.State, index 0 to 1"]
    assert (bob.reason.startswith("e.T_v1 1.1: state: "), bob.reason.endswith(" at byte 1")) == (True, True)
    assert (bob.first_at_us, bob.at_us, bob.destination) == (NOW_US + 1, NOW_US + 3, b"X/a")
    assert bench.trials.rejected_share() == 4 / 5


def test_the_share_is_that_of_all_that_was_seen() -> None:
    """A principal of whose SENDs few were tried counts for all of them; what has nothing to do with the candidate counts for nothing."""
    bench = Bench(load_registry(texts()), budget=2 * 2 * 258)
    bench.send(OLD_A, "quiet")
    bench.wall_us += SECOND_US
    bench.send(OLD_A, "quiet")
    for _ in range(98):
        bench.send(OLD_C, "loud")
    assert bench.trials.principals["loud"].tried < 98
    assert bench.trials.rejected_share() == 98 / 100
    bench.wall_us += SECOND_US
    bench.send(BAD, "third")
    assert bench.trials.rejected_share() == 98 / 100
    assert Bench(load_registry(texts())).trials.rejected_share() is None


def test_trials_cost_no_more_than_the_budget_and_everybody_has_a_share() -> None:
    """In each second bodies are tried up to the budget, of each principal up to its share. A larger body uses later seconds."""
    bench = Bench(load_registry(texts()), budget=10 * 258)
    for _ in range(5):
        bench.wall_us += SECOND_US
        bench.send(OLD_A, "quiet")
        for _ in range(1000):
            bench.send(OLD_A, "loud")
    assert bench.trials.total.seen == 5005
    quiet, loud = bench.trials.principals["quiet"], bench.trials.principals["loud"]
    assert (quiet.seen, quiet.tried, loud.seen) == (5, 5, 5000)
    assert loud.tried <= 5 * 10
    # The loud one may not take what the quiet one of the second before is to have.
    for _ in range(1000):
        bench.send(OLD_A, "loud")
    bench.send(OLD_A, "late")
    assert bench.trials.principals["late"].tried == 1
    bench = Bench(load_registry(texts()), budget=1000)
    large = b"\x02\x00" + bytes(9_000)
    bench.send(large)
    tried = bench.trials.total.tried + bench.trials.total.aside
    assert tried == 1
    for _ in range(9):
        bench.wall_us += SECOND_US
        bench.send(OLD_A)
    assert bench.trials.total.tried + bench.trials.total.aside - tried <= 1
    bench.wall_us -= 100 * SECOND_US  # the clock is set back
    bench.send(OLD_A)
    bench.wall_us += 100 * SECOND_US
    bench.send(OLD_A)
    assert bench.trials.total.tried >= 1


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More principals or reasons than fit are counted together."""
    monkeypatch.setattr(shadow, "PRINCIPALS_MAX", 3)
    monkeypatch.setattr(shadow, "REASONS_MAX", 4)
    bench = Bench(load_registry(texts()))
    for number in range(10):
        bench.wall_us += SECOND_US
        bench.send(OLD_C, f"p{number}")
        bench.send(b"\x02\x0a\x00", f"p{number}", schema_version="1.1")
    trials = bench.trials
    assert list(trials.principals) == ["p0", "p1", "p2", OTHERS]
    assert trials.principals[OTHERS].seen == 14
    assert sum(tally.rejected for tally in trials.principals.values()) == trials.total.rejected == 20
    assert len(trials.reasons) <= 5
    assert sum(reason.count for reason in trials.reasons.values()) == 20
    assert trials.reasons[OTHERS, "other reasons"].count == 16


def test_a_reload_keeps_the_figures_of_the_same_candidate_only() -> None:
    """Another registry with the same rule and candidate goes on. Another candidate begins again, and without one there is no trial."""
    bench = Bench(load_registry(texts()))
    bench.send(OLD_C)
    bench.registry = load_registry(texts() | {"e/T_v1/1.2.avsc": thing(NUMBER, STATE, MORE)})
    bench.send(b"\x02\x04\x00")
    assert (bench.trials.total.seen, bench.trials.total.rejected) == (2, 2)
    assert bench.trials.rule is bench.registry.rules[0]
    bench.registry = load_registry(texts(candidate=thing(NUMBER)))
    assert bench.trials.total.seen == 0
    bench.send(OLD_C)
    assert bench.trials.total.older == 1
    bench.registry = load_registry(texts(shadow_minor=None))
    assert bench.shadows.trials() == []


SENDS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from((OLD_A, OLD_C, NEW_A, BAD)), st.binary(max_size=8)),
        st.sampled_from((None, "1.0", "1.1", "1.2")),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((DATUM, SINGLE_OBJECT, ENVELOPE, CONFLUENT)), SENDS)
def test_a_candidate_has_no_effect(encoding: str, sends: list[tuple[bytes, str | None]]) -> None:
    """With a candidate every SEND has the disposition, the result and the validation that it has without one."""
    answers = []
    for minor in (None, "1.1"):
        world = World.make(schemas=texts(encoding, minor))
        broker = world.broker
        shadows = Shadows(Limits().shadow_bytes_per_s_max, broker.counters, partial(getattr, broker, "registry"))
        broker.watch_shadows(shadows.record)
        client = world.client()
        for number, (body, named) in enumerate(sends):
            client.send("X/a", body, receipt=str(number), **({} if named is None else {"schema-version": named}))
        world.settle()
        changes = [(change.revision, change.validation.schema_version, change.body) for change in world.journal]  # type: ignore[union-attr]
        answers.append((receipts(client.read()), changes))
        seen = sum(trials.total.seen for trials in shadows.trials())
        assert seen == (0 if minor is None else sum(bool(body) for body, _ in sends))
    assert answers[0] == answers[1]


def test_a_long_body_is_seen_and_not_tried() -> None:
    """Reading it as the candidate would block other clients for longer than a body is worth."""
    states = {"name": "states", "type": {"type": "array", "items": STATE["type"]}}
    narrow = {"name": "states", "type": {"type": "array", "items": NARROW["type"]}}
    registry = load_registry(texts(candidate=thing(narrow)) | {"e/T_v1/1.0.avsc": thing(states)})
    bench = Bench(registry)
    for count in (8000, 8191):  # numbers of two bytes; a byte an item, and one at the end
        bench.send(bytes([count * 2 & 0x7F | 0x80, count * 2 >> 7]) + b"\x00" * count + b"\x00")
    blocks = b"\xfe\x7f" + b"\x00" * 8191
    assert isinstance(bench.send(blocks * 3 + b"\x00"), Validation)
    figures = bench.figures()
    assert (figures["seen"], figures["tried"]) == (3, 2)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([OLD_A, OLD_C, BAD]), st.sampled_from(["anna", "ben"]))))
def test_figures_of_fronts_add_up_to_those_of_one_process(sends: list[tuple[int, bytes, str]]) -> None:
    """Whichever front judges a SEND and however often they report, the sum is what one process counts."""
    registry = load_registry(texts())
    alone, gateway = Bench(registry), Bench(registry)
    fronts = [Bench(registry), Bench(registry)]
    for where, body, principal in sends:
        alone.send(body, principal, schema_version="1.0")
        if where == 2:
            gateway.send(body, principal, schema_version="1.0")
        else:
            fronts[where].send(body, principal, schema_version="1.0")
            if body == OLD_C:
                gateway.shadows.add(json.loads(json.dumps(fronts[where].shadows.take())))
    for front in fronts:
        gateway.shadows.add(json.loads(json.dumps(front.shadows.take())))
        assert front.shadows.take() == []
    assert gateway.trials.total == alone.trials.total
    assert gateway.trials.principals == alone.trials.principals
    assert {key: reason.count for key, reason in gateway.trials.reasons.items()} == {
        key: reason.count for key, reason in alone.trials.reasons.items()
    }
