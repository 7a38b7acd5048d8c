"""The headers of bridges on a SEND: accepted from principals with `bridge = true` alone, and delivered as they came."""

from itertools import combinations

import pytest

from maxam.avro.registry import load_registry
from maxam.broker.explaining import differences, find_oddities
from maxam.broker.policy import Policy, inspect_policies, load_policy
from maxam.config import Limits
from maxam.content import unpack_headers
from maxam.records import REJECTION_RESULTS, WillRecord
from maxam.stomp.events import PROVENANCE
from tests.support.sans_io import EVERYTHING, World, receipts

NAMES = [name.decode() for name in sorted(PROVENANCE)]
BRIDGE = {**EVERYTHING, "bridge": [True]}
CONDITIONS = [
    {},
    {"source": "V1-0123456789abcdef", "source-revision": "7"},
    {"if-revision": "0"},
    {"source-revision": "7"},
]


def world() -> World:
    """Return a world with a bridge and another principal."""
    return World.make(anna=EVERYTHING, bridge=BRIDGE)


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
@pytest.mark.parametrize("names", [part for size in range(3) for part in combinations(NAMES, size)], ids=str)
@pytest.mark.parametrize("body", [b"value", b""])
def test_only_bridges_may_send_them(names: tuple[str, ...], condition: dict[str, str], body: bytes) -> None:
    """The answer to any other principal has a code of its own, whatever else the SEND has. One without them is not concerned."""
    for principal in ("anna", "bridge"):
        venue = world()
        client = venue.client(principal)
        reader = venue.client("anna")
        reader.subscribe(ack="auto", receipt="s")
        client.send("X/a", body, "r", a="1", **dict.fromkeys(names, "V9"), **condition, z="2")
        client.send("X/b", body, "next")
        venue.commit()
        first, second = client.read()
        assert receipts([second]) == [("next", "accepted")]
        disposition = first.headers[b"disposition"].decode()
        forged = bool(names) and principal == "anna"
        if forged:
            assert (disposition, first.headers[b"result"]) == ("rejected-unauthorised", b"bridge-required")
        else:
            assert disposition == ("rejected-invalid" if condition == {"source-revision": "7"} else "accepted")
        delivered = [frame for frame in reader.read() if frame.headers.get(b"destination") == b"X/a"]
        changed = disposition == "accepted" and bool(body)
        assert [frame.body for frame in delivered] == [body] * changed
        for frame in delivered:
            kept = {name: value for name, value in frame.headers.items() if name.decode() in (*names, "a", "z")}
            assert kept == {b"a": b"1", b"z": b"2"} | {name.encode(): b"V9" for name in names}


def test_an_envelope_of_another_store_needs_provenance_and_a_bridge() -> None:
    """The topic item has the destination at the gateway where the value was published."""
    rule = '[[rule]]\ndestination = "*/a"\nencoding = "envelope"\nschema = "e.One_v1"\n'
    schema = '{"type": "record", "namespace": "e", "name": "One_v1", "fields": []}'
    registry = load_registry({"registry.toml": rule.encode(), "e/One_v1/1.0.avsc": schema.encode()})
    body = b"\x04\x06\x06X/a\x02\x00\x00"  # a topic item and an empty body
    for principal, headers, expected in (
        ("bridge", {}, "envelope-topic-mismatch"),
        ("anna", {"via": "V1"}, "bridge-required"),
        ("bridge", {"via": "V1"}, ""),
    ):
        venue = World.make(anna={"send": ["V1/*"]}, bridge={"send": ["V1/*"], "bridge": [True]})
        venue.broker.replace_registry(registry)
        client = venue.client(principal)
        client.send("V1/a", body, "r", **headers)
        venue.commit()
        (answer,) = client.read()
        assert answer.headers.get(b"result", b"").decode() == expected
        assert (answer.headers[b"disposition"] == b"accepted") is (not expected)


def test_the_code_is_in_the_closed_table() -> None:
    """Its disposition is that of a missing right."""
    assert REJECTION_RESULTS["bridge-required"] == "rejected-unauthorised"


def test_a_missing_right_decides_first() -> None:
    """A principal that may not send to the destination learns nothing else."""
    venue = world()
    client = venue.client("anna")
    client.send("Y/a", b"v", "r", via="V9")
    (answer,) = client.read()
    assert answer.headers[b"result"] == b"unauthorised"


def test_a_reload_gives_and_takes_it() -> None:
    """The policy in force decides, on live connections too."""
    venue = world()
    client = venue.client("anna")
    for rights, expected in ((BRIDGE, "accepted"), (EVERYTHING, "rejected-unauthorised")):
        venue.broker.replace_policy(World.make(anna=rights).broker.policy)
        client.send("X/a", b"v", "r", via="V9")
        venue.commit()
        assert receipts(client.read()) == [("r", expected)]


def test_a_last_will_has_none() -> None:
    """Its connection may be gone for long when it fires: the names are dropped like those of the broker."""
    venue = world()
    venue.client("bridge", will_destination="X/w", will_body="gone", will_via="V9", will_kept="1")
    venue.commit()
    (record,) = [record for record in venue.journal if isinstance(record, WillRecord)]
    assert unpack_headers(record.content)[0] == ((b"kept", b"1"),)


TEXT = """
[capabilities.Bridge]
send = ["X/**"]
{bridge}
[capabilities.Plain]
send = ["X/**"]
[[principals]]
name = "one"
fingerprints = ["{one}"]
capabilities = ["Plain", "Bridge"]
[[principals]]
name = "other"
fingerprints = ["{two}"]
capabilities = ["Plain"]
"""


def loaded(bridge: str) -> Policy:
    """Return a policy with this line in one capability."""
    return load_policy(TEXT.format(bridge=bridge, one="a" * 64, two="b" * 64).encode(), "policy", Limits())


def test_one_capability_of_a_principal_is_enough() -> None:
    """Without the key it is not granted. Rights that differ in it are not the same."""
    with_it, without = loaded("bridge = true"), loaded("")
    assert [with_it.rights(name).bridge for name in ("one", "other", "unknown")] == [True, False, False]
    assert [policy.rights("one").bridge for policy in (without, loaded("bridge = false"))] == [False, False]
    assert not with_it.rights("one").grants_the_same_as(without.rights("one"))
    assert with_it.rights("other").grants_the_same_as(without.rights("other"))
    assert with_it.rights("other").missing(with_it.rights("one"))
    assert not with_it.rights("one").missing(with_it.rights("other"))


@pytest.mark.parametrize("wrong", ["bridge = 1", "bridge = 'yes'", "bridge = []", "bridges = true"])
def test_anything_else_is_a_mistake_with_its_place(wrong: str) -> None:
    """The policy is not taken, and the error has the key."""
    text = TEXT.format(bridge=wrong, one="a" * 64, two="b" * 64)
    _, problems = inspect_policies([("policy", text.encode())], Limits())
    assert [problem.place.rpartition(".")[2] for problem in problems] == [wrong.partition(" ")[0]]


def test_a_comparison_of_policies_has_it() -> None:
    """A principal gains or loses it like an admin right."""
    for old, new, change in (("", "bridge = true", "gains"), ("bridge = true", "", "loses")):
        found = [(one.principal, one.change, one.right) for one in differences(loaded(old), loaded(new))]
        assert found == [("one", change, "bridge")]
    assert list(differences(loaded("bridge = true"), loaded("bridge = true"))) == []


def test_a_capability_that_grants_only_it_is_not_empty() -> None:
    """`policy check` warns of capabilities without any right."""
    text = TEXT.format(bridge="bridge = true", one="a" * 64, two="b" * 64).replace('send = ["X/**"]\nbridge', "bridge")
    assert list(find_oddities(load_policy(text.encode(), "policy", Limits()))) == []
