"""`policy.toml`: what it grants, and how it reports its faults."""

import gc

import pytest

from maxam.broker.policy import _DECISIONS_MAX, Policy, Rights, load_policies, load_policy
from maxam.config import Limits
from maxam.errors import PolicyError
from maxam.globs import compile_glob
from tests.support.sans_io import World, policy, receipts

LIMITS = Limits()
FIRST, SECOND = "5f" * 32, "a0" * 32
EXAMPLE = f"""
[capabilities.live-egm]
receive = ["X/EGM.*"]

[capabilities.egm-monitoring]
send = ["X/EGM.*.EGMMeterReading", "X/EGM.*.EGMStatus"]
receive = ["X/EGM.*"]

[capabilities.tables]
send = ["X/Table.*"]
receive = ["X/Table.*"]
admin = ["read"]

[capabilities.operations]
admin = ["read", "write", "metrics", "enrol"]

[[principals]]
name = "venue-7-monitor"
fingerprints = ["{FIRST}", "{":".join(["A0"] * 32)}"]
capabilities = ["egm-monitoring"]
owns = ["X/EGM.*.12345.**"]

[[principals]]
name = "both"
fingerprints = ["{"B1" * 32}"]
capabilities = ["live-egm", "egm-monitoring", "tables"]

[[principals]]
name = "operator"
fingerprints = ["{"c2" * 32}"]
capabilities = ["operations", "tables"]

[[principals]]
name = "nothing"
fingerprints = []

[[principals]]
name = "owns nothing"
fingerprints = []
capabilities = ["tables"]
owns = []
"""


def load(text: str) -> Policy:
    """Load with the default limits."""
    return load_policy(text.encode(), "policy.toml", LIMITS)


def test_fingerprints_name_principals() -> None:
    """Several fingerprints stand for one principal, written with colons and upper case or not."""
    policy = load(EXAMPLE)
    assert policy.principal_of(FIRST) == "venue-7-monitor"
    assert policy.principal_of(SECOND) == "venue-7-monitor"
    assert policy.principal_of("b1" * 32) == "both"
    assert policy.principal_of("d3" * 32) is None


@pytest.mark.parametrize(
    ("principal", "destination", "send", "receive"),
    [
        ("venue-7-monitor", "X/EGM.Q.12345.EGMStatus", True, True),
        ("venue-7-monitor", "X/EGM.Q.99999.EGMStatus", False, True),
        ("venue-7-monitor", "X/EGM.Q.12345.Other", False, True),
        ("venue-7-monitor", "X/Table.1", False, False),
        ("both", "X/EGM.Q.1.EGMStatus", True, True),
        ("both", "X/Table.1", True, True),
        ("both", "Y/Table.1", False, False),
        ("operator", "X/Table.1", True, True),
        ("operator", "X/EGM.1", False, False),
        ("nothing", "X/Table.1", False, False),
        ("owns nothing", "X/Table.1", False, True),
        ("fingerprint:" + "d3" * 32, "X/Table.1", False, False),
        ("both", "X/Table." + "a" * 600, False, False),
        ("both", "X/Table.1/2", False, False),
    ],
)
def test_rights(principal: str, destination: str, send: bool, receive: bool) -> None:
    """A right is the union over the capabilities, sends are narrowed by `owns`, and the second answer is the first."""
    rights = load(EXAMPLE).rights(principal)
    for _ in range(2):
        assert rights.may_send(destination.encode()) is send
        assert rights.may_receive(destination.encode()) is receive


@pytest.mark.parametrize(
    ("principal", "admin"),
    [
        ("operator", {"read", "write", "metrics", "enrol"}),
        ("both", {"read"}),
        ("nothing", set()),
        ("unknown", set()),
    ],
)
def test_admin_rights(principal: str, admin: set[str]) -> None:
    """Admin rights are the union over the capabilities too."""
    assert load(EXAMPLE).rights(principal).admin == admin


@pytest.mark.parametrize(
    ("principal", "glob", "possible"),
    [
        ("both", "X/*", True),
        ("both", "**.EGMStatus", True),
        ("both", "Y/*", False),
        ("venue-7-monitor", "X/Table.*", False),
        ("nothing", "**", False),
        ("unknown", "**", False),
    ],
)
def test_can_receive_any(principal: str, glob: str, possible: bool) -> None:
    """A subscription is filtered exactly when its glob overlaps with no granted one."""
    assert load(EXAMPLE).rights(principal).can_receive_any(compile_glob(glob, LIMITS)) is possible


def test_an_empty_policy_allows_nothing() -> None:
    """Without any rule no principal is known and nothing is allowed."""
    policy = load("")
    assert policy.principal_of(FIRST) is None
    rights = policy.rights("anyone")
    assert not rights.may_send(b"X/a")
    assert not rights.may_receive(b"X/a")
    assert rights.admin == frozenset()


def test_remembered_decisions_are_bounded() -> None:
    """However many destinations are asked for, N decisions are kept and none of an over-long destination."""
    rights = Rights((compile_glob("X/1*", LIMITS),), (), frozenset(), None, LIMITS)
    for number in range(_DECISIONS_MAX + 10):
        destination = b"X/%d" % number
        assert rights.may_send(destination) is destination.startswith(b"X/1")
        assert rights.may_receive(destination) is False
    assert len(rights._send_decisions) == 10
    assert len(rights._receive_decisions) == 10
    assert not rights.may_send(b"X/1" + b"a" * 600)
    assert not rights.may_receive(b"X/1" + b"a" * 600)
    assert len(rights._send_decisions) == 10
    assert len(rights._receive_decisions) == 10


PRINCIPAL = '[[principals]]\nname = "p"\n'
CAN = "[capabilities.c]\nsend = ['X/**']\n" + PRINCIPAL + "fingerprints = []\ncapabilities = ['c']\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a = ", ["expected TOML", "end of document"]),
        ("a = \nb = 1", ["expected TOML", "line 1, column 5"]),
        ("\n\n[a\n", ["expected TOML", "line 3"]),
        ('a = "x"', ["policy.toml: a: ", "one of capabilities, principals", "an unknown key"]),
        ('"a b" = 1', ["'a b'"]),
        ("capabilities = 1", ["capabilities: expected a table, found 1"]),
        ("capabilities.x = []", ["capabilities.x: expected a table, found an array"]),
        ("[capabilities.x]\nsned = []", ["capabilities.x.sned", "one of admin, bridge, pii, receive, send"]),
        ("[capabilities.'a b']\nsned = []", ["capabilities.'a b'.sned"]),
        ("[capabilities.x]\nsend = 'X/*'", ["capabilities.x.send: expected an array, found 'X/*'"]),
        ("[capabilities.x]\nsend = ['X/*', 1]", ["capabilities.x.send[1]: expected a string, found 1"]),
        ("[capabilities.x]\nreceive = ['X/[a']", ["capabilities.x.receive[0]", "'X/[a'", "not closed"]),
        ("[capabilities.x]\nreceive = ['X']", ["capabilities.x.receive[0]", "can match no destination"]),
        (
            "[capabilities.x]\nadmin = ['read', 'root']",
            ["admin[1]", "one of enrol, front, metrics, read, replicate, ticket, write", "'root'"],
        ),
        ("principals = {}", ["principals: expected an array, found a table"]),
        ("principals = [1]", ["principals[0]: expected a table, found 1"]),
        ("[[principals]]\nfingerprints = []", ["principals[0].name", "1 to 128 printable", "found nothing"]),
        ("[[principals]]\nname = ''", ["principals[0].name", "1 to 128 printable"]),
        ("[[principals]]\nname = 'a\tb'", ["principals[0].name", "1 to 128 printable"]),
        (f"[[principals]]\nname = '{'a' * 129}'", ["principals[0].name", "1 to 128 printable"]),
        (CAN + "will = 1", ["principals[0] ('p').will", "a table"]),
        (CAN + "will = {}", ["principals[0] ('p').will.destination", "a destination (text)"]),
        (CAN + "will = {destination = 'X/*'}", ["principals[0] ('p').will.destination", "a destination ("]),
        (CAN + "will = {destination = 'Y/a'}", ["principals[0].will.destination", "that 'p' may send to"]),
        (CAN + "will = {destination = 'X/a', x = 1}", ["principals[0] ('p').will.x", "an unknown key"]),
        (CAN + "will = {destination = 'X/a', delay_s = 3601}", ["principals[0] ('p').will.delay_s", "0 to 3600"]),
        (CAN + "will = {destination = 'X/a', delay_s = true}", ["principals[0] ('p').will.delay_s", "0 to 3600"]),
        (CAN + "will = {destination = 'X/a', headers = {x = 1}}", ["principals[0] ('p').will.headers", "texts"]),
        (CAN + "will = {destination = 'X/a', headers = {receipt = ''}}", ["principals[0] ('p').will.headers", "names"]),
        (CAN + "will = {destination = 'X/a', body = 'a', body_base64 = 'YQ=='}", ["principals[0] ('p').will.body"]),
        (CAN + "will = {destination = 'X/a', body_base64 = '!'}", ["principals[0] ('p').will.body"]),
        (CAN + f"will = {{destination = 'X/a', body = '{'x' * 4096}'}}", ["will.body", "will_bytes_max"]),
        ("[[principals]]\nname = '$gateway'", ["principals[0].name", "which the gateway has"]),
        ("[[principals]]\nname = 'fingerprint:ab'", ["principals[0].name", "does not start with 'fingerprint:'"]),
        ("[[principals]]\nname = 1979-05-27", ["principals[0].name", "found a date"]),
        (PRINCIPAL, ["principals[0] ('p').fingerprints: expected an array, found nothing"]),
        (PRINCIPAL + "fingerprints = ['ab']", ["fingerprints[0]: expected 64 hex digits", "found 'ab'"]),
        (PRINCIPAL + f"fingerprints = ['{'g' * 64}']", ["fingerprints[0]: expected 64 hex digits"]),
        (PRINCIPAL + f"fingerprints = ['{FIRST}\\n']".replace("'", '"'), ["fingerprints[0]: expected 64 hex digits"]),
        (PRINCIPAL + f"fingerprints = ['{':'.join(['abcd'] * 16)}']", ["fingerprints[0]: expected 64 hex digits"]),
        (PRINCIPAL + "fingerprints = []\nrights = 1", ["principals[0].rights", "an unknown key"]),
        (PRINCIPAL + "fingerprints = []\ncapabilities = ['x']", ["capabilities[0]", "none is defined", "'x'"]),
        (
            "[capabilities.y]\n" + PRINCIPAL + "fingerprints = []\ncapabilities = ['x']",
            ["capabilities[0]: expected one of y, found 'x'"],
        ),
        (PRINCIPAL + "fingerprints = []\nowns = ['X/']", ["principals[0] ('p').owns[0]", "no token follows"]),
        (
            (PRINCIPAL + "fingerprints = []\n") * 2,
            ["principals[1].name", "a name of its own", "another principal called 'p'"],
        ),
        (
            PRINCIPAL + f"fingerprints = ['{FIRST}']\n[[principals]]\nname = 'q'\nfingerprints = ['{'5F:' * 31}5F']",
            ["principals[1] ('q').fingerprints[0]", FIRST, "'p'"],
        ),
    ],
)
def test_refused(text: str, parts: list[str]) -> None:
    """A policy that cannot be used is refused with source, key, what was expected and what was found."""
    with pytest.raises(PolicyError) as raised:
        load(text)
    assert str(raised.value).startswith("policy.toml: ")
    assert [part for part in parts if part not in str(raised.value)] == [], str(raised.value)


def test_not_utf_8_is_refused() -> None:
    """A file that is not UTF-8 is refused with the position."""
    with pytest.raises(PolicyError, match="byte 4: expected UTF-8"):
        load_policy(b"a = \xff", "policy.toml", LIMITS)


class TestEnrolled:
    """A second file, which enrolment writes."""

    OPERATORS = f"""
        [capabilities.Meters]
        send = ["X/*"]
        [[principals]]
        name = "anna"
        fingerprints = ["{"a" * 64}"]
        """

    def load(self, enrolled: str, operators: str = OPERATORS) -> Policy:
        """Load both."""
        return load_policies([("policy.toml", operators.encode()), ("enrolled.toml", enrolled.encode())], LIMITS)

    def test_it_names_principals_with_the_operators_capabilities(self) -> None:
        """Principals of both files count, with capabilities of the first."""
        policy = self.load(f'[[principals]]\nname = "b"\nfingerprints = ["{"b" * 64}"]\ncapabilities = ["Meters"]')
        assert (policy.principal_of("a" * 64), policy.principal_of("b" * 64)) == ("anna", "b")
        assert policy.rights("b").may_send(b"X/a")

    @pytest.mark.parametrize(
        ("enrolled", "said"),
        [
            ('[capabilities.Mine]\nsend = ["**"]', "enrolled.toml: capabilities: expected one of principals, renewals"),
            ('[[principals]]\nname = "anna"\nfingerprints = []', "another principal called 'anna' in policy.toml"),
            (f'[[principals]]\nname = "b"\nfingerprints = ["{"a" * 64}"]', "which is 'anna' too"),
            ('[[principals]]\nname = "b"\nfingerprints = []\ncapabilities = ["Gone"]', "expected one of Meters"),
            (f'[[renewals]]\nrenews = "{"a" * 64}"\nfingerprints = []\nretired = 1', "expected true or false"),
            ("[[renewals]]\nfingerprints = []", "renewals.0..renews"),
        ],
    )
    def test_conflicts_are_errors(self, enrolled: str, said: str) -> None:
        """A definition in both files, or a right that only operators may give, is an error with the second file."""
        with pytest.raises(PolicyError, match=said):
            self.load(enrolled)

    def test_a_renewal_hangs_on_what_it_renews(self) -> None:
        """It stands for the same principal, takes the old one's place once that is retired, and counts for nothing without it."""
        renewal = f'[[renewals]]\nrenews = "{"a" * 64}"\nfingerprints = ["{"b" * 64}"]\n'
        policy = self.load(renewal)
        assert (policy.principal_of("a" * 64), policy.principal_of("b" * 64)) == ("anna", "anna")
        policy = self.load(renewal + "retired = true")
        assert (policy.principal_of("a" * 64), policy.principal_of("b" * 64)) == (None, "anna")
        policy = self.load(renewal, self.OPERATORS.replace("a" * 64, "c" * 64))
        assert (policy.principal_of("a" * 64), policy.principal_of("b" * 64)) == (None, None)


def test_rights_that_are_missing() -> None:
    """The rights that one principal lacks of another's are shown: sends as far as both own them, receives, admin rights."""
    text = f"""
        [capabilities.All]
        send = ["X/**"]
        receive = ["X/a.*", "X/b.*"]
        admin = ["read"]
        [capabilities.Some]
        send = ["X/a.*"]
        receive = ["X/[ab].*"]
        [capabilities.Admin]
        admin = ["write"]
        [[principals]]
        name = "all"
        fingerprints = ["{"a" * 64}"]
        capabilities = ["All"]
        [[principals]]
        name = "narrowed"
        fingerprints = []
        capabilities = ["All"]
        owns = ["X/a.1*"]
        [[principals]]
        name = "some"
        fingerprints = []
        capabilities = ["Some"]
        [[principals]]
        name = "some-narrowed"
        fingerprints = []
        capabilities = ["Some"]
        owns = ["X/?.12"]
        [[principals]]
        name = "admin"
        fingerprints = []
        capabilities = ["Admin"]
        """
    policy = load(text)
    missing = {
        (mine, other): policy.rights(mine).missing(policy.rights(other))
        for mine in ("all", "narrowed", "some")
        for other in ("all", "narrowed", "some", "some-narrowed", "admin")
    }
    held = {pair for pair, said in missing.items() if not said}
    assert held == {
        *[("all", other) for other in ("all", "narrowed", "some", "some-narrowed")],
        ("narrowed", "narrowed"),
        ("narrowed", "some-narrowed"),
        ("some", "some"),
        ("some", "some-narrowed"),
    }
    assert missing["all", "admin"] == "the admin right write"
    assert missing["narrowed", "some"] == "the right to send to X/a.* (such as X/a.-)"


@pytest.mark.slow
def test_topics_that_rest_keep_no_rights_that_were_replaced() -> None:
    """After any number of reloads only the policy in force takes memory, and what a topic remembers of an old one no longer counts."""

    def those_alive() -> int:
        gc.collect()
        return len([one for one in gc.get_objects() if type(one) is Rights])

    world = World.make()
    client = world.client()
    client.send("X/a", b"v", receipt="first")
    world.settle()
    before = those_alive()
    for n in range(10):
        world.broker.replace_policy(policy(anna={"send": ["X/**"], "receive": ["X/**"]}))
        client.send(f"X/a.{n}", b"v", receipt=str(n))
        world.settle()
        client.send(f"X/a.{n}", b"w", receipt=f"{n} again")
        world.settle()
    assert [answer for _, answer in receipts(client.read())] == ["accepted"] * 21
    assert those_alive() <= before + 2
    world.broker.replace_policy(policy(anna={"receive": ["X/**"]}))
    client.send("X/a.9", b"x", receipt="no more")
    world.settle()
    assert receipts(client.read()) == [("no more", "rejected-unauthorised")]
