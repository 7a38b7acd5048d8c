"""Why a policy allows something or not, what is odd in one, what two differ in, and where in their files things stand."""

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.broker.explaining import (
    Difference,
    differences,
    explain_receive,
    explain_send,
    find_oddities,
    moved_fingerprints,
)
from maxam.broker.policy import Policy, inspect_policies, load_policies, load_policy
from maxam.cli.main import main
from maxam.config import Limits
from maxam.globs import compile_glob
from maxam.toml_lines import line_of, lines_of, written_key

LIMITS = Limits()
BYTES_MAX = LIMITS.destination_bytes_max
FIRST, SECOND = "5f" * 32, "a0" * 32
POLICY = f"""
[capabilities.Monitoring]
send = ["X/EGM.*.EGMStatus", "X/EGM.Q.*"]
receive = ["X/EGM.*"]

[capabilities.Tables]
send = ["X/Table.*"]
receive = ["X/Table.*", "X/T*"]

[capabilities.Everything]
send = ["**"]
receive = ["**"]
admin = ["read"]

[[principals]]
name = "controller-7"
fingerprints = ["{FIRST}"]
capabilities = ["Monitoring", "Tables"]
owns = ["X/EGM.Q.7???.*", "X/Table.7"]

[[principals]]
name = "nothing"
fingerprints = ["{SECOND}"]

[[principals]]
name = "operator"
fingerprints = []
capabilities = ["Everything"]
"""


def load(text: str) -> Policy:
    """Load with the default limits."""
    return load_policy(text.encode(), "policy.toml", LIMITS)


@pytest.mark.parametrize(
    ("principal", "destination", "allowed", "why"),
    [
        (
            "controller-7",
            "X/EGM.Q.7001.EGMStatus",
            True,
            "X/EGM.*.EGMStatus of the capability Monitoring grants it, and",
        ),
        ("controller-7", "X/Table.7", True, "X/Table.* of the capability Tables grants it, and X/Table.7 of its owns"),
        ("controller-7", "X/EGM.Q.8001.EGMStatus", False, "would grant it, but none of its owns"),
        (
            "controller-7",
            "X/Venue.1",
            False,
            "none of its send globs (X/EGM.*.EGMStatus, X/EGM.Q.*, X/Table.*) matches",
        ),
        ("controller-7", "X//Venue", False, "nobody may: the destination holds more than one '/'"),
        ("nothing", "X/a", False, "nothing has no capabilities"),
        ("operator", "X/a", True, "** of the capability Everything grants it"),
        ("operater", "X/a", False, "no principal 'operater'; did you mean 'operator'?"),
    ],
)
def test_a_send_is_explained(principal: str, destination: str, allowed: bool, why: str) -> None:
    """The rule that decides is named, or what is missing."""
    found = explain_send(load(POLICY), principal, destination, BYTES_MAX)
    assert (found.verdict == "allowed") == allowed
    assert why in found.why
    assert bool(found.decisive) == ("capability " in found.why)


def test_an_explanation_is_what_the_broker_decides() -> None:
    """For every principal and many destinations both give the same answer."""
    policy = load(POLICY)
    for principal in (*policy.principals, "stranger"):
        for destination in (
            "X/EGM.Q.7001.EGMStatus",
            "X/EGM.Q.7001",
            "X/EGM.P.1.EGMStatus",
            "X/Table.7",
            "X/a",
            "/",
            "X/é",
        ):
            explained = explain_send(policy, principal, destination, BYTES_MAX).verdict == "allowed"
            well_formed = destination != "/"
            assert explained == (well_formed and policy.rights(principal).may_send(destination.encode()))


@pytest.mark.parametrize(
    ("principal", "glob", "verdict", "why"),
    [
        ("controller-7", "X/EGM.*.EGMStatus", "all", "X/EGM.* of the capability Monitoring grants all of it"),
        ("controller-7", "X/**", "part", "only what these match"),
        ("controller-7", "X/[ET]*", "part", "X/EGM.* of Monitoring, X/Table.* of Tables"),
        ("controller-7", "Y/**", "nothing", "none of its receive globs"),
        ("nothing", "**", "nothing", "nothing has no capabilities"),
        ("stranger", "**", "nothing", "no principal 'stranger'"),
    ],
)
def test_a_receive_glob_is_explained(principal: str, glob: str, verdict: str, why: str) -> None:
    """How much of it, by which globs, and what not."""
    policy = load(POLICY)
    found = explain_receive(policy, principal, compile_glob(glob, LIMITS))
    assert (found.verdict, why in found.why) == (verdict, True)
    if verdict == "part":
        assert not policy.rights(principal).may_receive(found.example.encode())
        assert compile_glob(glob, LIMITS).matches(found.example)
    if verdict != "all" and principal in policy.principals:
        assert found.remedies == ("Everything",)


def test_globs_together_may_grant_all() -> None:
    """Several globs together grant what none grants alone."""
    policy = load(
        '[capabilities.A]\nreceive = ["X/[!b]*", "X/b*"]\n[[principals]]\nname = "a"\nfingerprints = []\ncapabilities = ["A"]'
    )
    found = explain_receive(policy, "a", compile_glob("X/*", LIMITS))
    assert (found.verdict, found.why) == ("all", "together all of it: X/[!b]* of A, X/b* of A")


def test_globs_that_are_too_intricate_are_not_decided() -> None:
    """The answer has it, and comes soon."""
    policy = load(
        f'[capabilities.A]\nreceive = ["X/*b{"?" * 25}"]\n[[principals]]\nname = "a"\nfingerprints = []\ncapabilities = ["A"]'
    )
    found = explain_receive(policy, "a", compile_glob(f"X/*a{'?' * 24}", LIMITS), 500)
    assert found.verdict == "undecided"


# Oddities and their places.


def check(tmp_path: Path, *texts: str) -> tuple[Result, list[dict[str, Any]], dict[str, Any]]:
    """Run `policy check` on files; return the result, its findings and its sum."""
    paths = []
    for at, text in enumerate(texts):
        paths.append(str(tmp_path / f"{at}.toml"))
        Path(paths[-1]).write_text(text)
    result = CliRunner().invoke(main, ["policy", "check", *paths, "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return result, rows[:-1], rows[-1]


def test_all_mistakes_are_named_at_once_with_their_lines(tmp_path: Path) -> None:
    """Each with file, line and place."""
    text = f"""[capabilities.A]
send = ["X/a",
  "X/[b"]
admin = ["write", "rite"]
[[principals]]
name = "a [1] ('b')"
fingerprints = [
  "{FIRST}",
  "zz",
]
capabilities = ["A", "B"]
[[principals]]
name = "c"
fingerprints = ["{FIRST}"]
color = "red"
"""
    result, findings, end = check(tmp_path, text)
    assert result.exit_code == 1
    assert [(one["line"], one["severity"]) for one in findings] == [(line, "error") for line in (4, 3, 9, 11, 15, 14)]
    assert end["errors"] == 6
    assert "'B'" in findings[3]["problem"]


def test_files_are_judged_together(tmp_path: Path) -> None:
    """A principal of one file may have capabilities of the other; whom both define is a mistake of the second."""
    capabilities = '[capabilities.A]\nsend = ["X/a"]\n'
    principal = f'[[principals]]\nname = "a"\nfingerprints = ["{FIRST}"]\ncapabilities = ["A"]\n'
    assert check(tmp_path, capabilities, principal)[2]["good"]
    _, findings, _ = check(tmp_path, capabilities + principal, principal)
    assert [(Path(one["file"]).name, one["line"]) for one in findings] == [("1.toml", 2)]
    _, findings, _ = check(tmp_path, capabilities, principal + "= nonsense")
    assert (findings[0]["line"], Path(findings[0]["file"]).name) == (5, "1.toml")
    assert not inspect_policies([("a", capabilities.encode()), ("b", principal.encode())], LIMITS)[1]


def test_what_is_odd_is_a_warning(tmp_path: Path) -> None:
    """It does not keep the gateway from taking the policy, unless one is strict."""
    text = f"""[capabilities.A]
send = ["X/a*", "X/ab*", "X/a*"]
[capabilities.B]
[[principals]]
name = "a"
fingerprints = ["{FIRST}", "{FIRST}"]
capabilities = ["A"]
owns = ["X/ab", "Y/b"]
[[principals]]
name = "b"
fingerprints = []
"""
    result, findings, end = check(tmp_path, text)
    assert (result.exit_code, end["good"], end["errors"]) == (0, True, 0)
    said = [(one["line"], one["problem"]) for one in findings]
    for line, words in (
        (2, "X/ab* is part of X/a*"),
        (2, "X/a* is there twice"),
        (3, "no principal has it"),
        (3, "grants nothing"),
        (6, "names " + FIRST + " twice"),
        (8, "Y/b has nothing in common"),
        (9, "b: has no rights"),
        (9, "b: has no certificate"),
    ):
        assert any(at == line and words in problem for at, problem in said), (line, words, said)
    assert len(said) == 8
    path = str(tmp_path / "0.toml")
    assert CliRunner().invoke(main, ["policy", "check", path, "--strict"]).exit_code == 1


def test_globs_that_no_rule_covers_are_odd() -> None:
    """A glob that matches no rule of the registry is odd."""
    policy = load(POLICY)
    rules = [compile_glob(text, LIMITS) for text in ("X/EGM.*", "X/Table.*")]
    assert not [odd for odd in find_oddities(policy, rules) if "no destination" in odd.problem]
    odd = [odd.place for odd in find_oddities(policy, rules[:1]) if "no destination" in odd.problem]
    assert odd == [
        "capabilities.Tables.send[0]",
        "capabilities.Tables.receive[0]",
        "capabilities.Tables.receive[1]",
        "principals[0].owns[1]",
    ]


def test_the_development_policy_has_nothing_odd() -> None:
    """The sample policy has no oddity."""
    text = (Path(__file__).parents[3] / "certs-dev/policy-dev.template.toml").read_text()
    for at, name in enumerate(("$publisher", "$subscriber", "$operator", "$pipeline")):
        text = text.replace(name, f"{at:064x}")
    assert list(find_oddities(load(text))) == []


# Differences of two policies.


def test_what_is_only_written_otherwise_is_no_difference() -> None:
    """Names of capabilities, order, and globs that mean the same."""
    other = (
        POLICY.replace("Monitoring", "M")
        .replace('["X/EGM.*"]', '["X/EGM.**", "X/EGM.a"]')
        .replace('"M", "Tables"', '"Tables", "M"')
    )
    assert list(differences(load(POLICY), load(other))) == []
    assert list(differences(load(POLICY), load(POLICY))) == []


def test_who_gains_and_who_loses() -> None:
    """Each by principal and right, with a destination that shows it."""
    old = load(POLICY)
    new = load(
        POLICY.replace("7???", "8???")
        .replace('receive = ["X/EGM.*"]', 'receive = ["X/EGM.[QR].*"]')
        .replace('admin = ["read"]', 'admin = ["metrics"]')
        .replace(f'"nothing"\nfingerprints = ["{SECOND}"]', f'"other"\nfingerprints = ["{SECOND}"]')
    )
    found = list(differences(old, new))
    plain = {(one.principal, one.change, one.right, one.what) for one in found}
    assert plain == {
        ("controller-7", "gains", "send", "X/EGM.*.EGMStatus"),
        ("controller-7", "gains", "send", "X/EGM.Q.*"),
        ("controller-7", "loses", "send", "X/EGM.*.EGMStatus"),
        ("controller-7", "loses", "send", "X/EGM.Q.*"),
        ("controller-7", "loses", "receive", "X/EGM.*"),
        ("nothing", "loses", "principal", "nothing"),
        ("nothing", "loses", "fingerprint", SECOND),
        ("other", "gains", "principal", "other"),
        ("other", "gains", "fingerprint", SECOND),
        ("operator", "loses", "admin", "read"),
        ("operator", "gains", "admin", "metrics"),
    }
    for one in found:
        if one.right in {"send", "receive"}:
            assert _may(new, one) == (one.change == "gains")
            assert _may(old, one) == (one.change == "loses")
    assert moved_fingerprints(old, new) == {SECOND: ("nothing", "other")}


def test_bound_wills_are_explained_and_compared() -> None:
    """An explanation shows the will of the principal. A change of anything in it is a difference."""

    def with_will(more: str) -> Policy:
        place = '[[principals]]\nname = "operator"'
        assert place in POLICY
        return load(POLICY.replace(place, f"{place}\nwill = {{destination = 'X/a'{more}}}"))

    old = load(POLICY)
    new = with_will(", delay_s = 30, body = 'gone'")
    shown = "4 bytes to X/a after 30 s"
    assert explain_send(new, "operator", "X/b", BYTES_MAX).will == shown
    assert explain_receive(new, "operator", compile_glob("X/**", Limits())).will == shown
    assert explain_send(new, "controller-7", "X/b", BYTES_MAX).will == ""
    assert list(differences(old, new)) == [Difference("operator", "gains", "will", shown)]
    assert list(differences(new, old)) == [Difference("operator", "loses", "will", shown)]
    assert list(differences(new, new)) == []
    for more in ("", ", delay_s = 30, body = 'back'", ", delay_s = 30, body = 'gone', headers = {x = '1'}"):
        found = list(differences(new, with_will(more)))
        assert [(one.change, one.right) for one in found] == [("loses", "will"), ("gains", "will")]
        assert (found[1].what == "a delete of X/a after 0 s") == (more == "")


def _may(policy: Policy, one: Difference) -> bool:
    rights = policy.rights(one.principal)
    return (rights.may_send if one.right == "send" else rights.may_receive)(one.example.encode())


def test_a_diff_reads_the_enrolled_file_beside_both(tmp_path: Path) -> None:
    """Whom the machine's file names is known on both sides."""
    old, new, enrolled = (str(tmp_path / name) for name in ("old.toml", "new.toml", "enrolled.toml"))
    Path(old).write_text('[capabilities.A]\nsend = ["X/a"]\n')
    Path(new).write_text('[capabilities.A]\nsend = ["X/b"]\n')
    Path(enrolled).write_text(f'[[principals]]\nname = "e"\nfingerprints = ["{FIRST}"]\ncapabilities = ["A"]\n')
    result = CliRunner().invoke(main, ["policy", "diff", old, new, "--enrolled", enrolled, "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["principal"], row["change"], row["example"]) for row in rows] == [
        ("e", "gains", "X/b"),
        ("e", "loses", "X/a"),
    ]
    assert (
        load_policies([("a", Path(old).read_bytes()), ("b", Path(enrolled).read_bytes())], LIMITS).principal_of(FIRST)
        == "e"
    )
    result = CliRunner().invoke(
        main, ["policy", "explain", "--principal", "e", "--send", "X/a", "--policy", old, "--policy", enrolled]
    )
    assert (result.exit_code, f"{old}:2 capabilities.A.send[0]" in result.stdout) == (0, True)


# Lines of TOML.

keys = st.sampled_from(["a", "b-1", '"x y"', "'q.'", 'c."d"'])
scalars = st.sampled_from(['"#]"', "'}'", "1", "true", "2026-11-22 10:00:00", '"""a\n"b" ]"""', "'''\n#\n'''", "0.5"])
gaps = st.sampled_from(["", " ", "\n", " # ] }\n", "\n\n"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(st.tuples(gaps, inner, gaps), max_size=3).map(
        lambda items: "[" + ",".join(before + value + after for before, value, after in items) + "]"
    ),
    max_leaves=6,
)
lines = st.one_of(
    st.tuples(keys, values).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    keys.map(lambda key: f"[{key}]"),
    keys.map(lambda key: f"[[t.{key}]]"),
    st.just("# [x] = ["),
    st.tuples(keys, scalars.filter(lambda text: "\n" not in text)).map(
        lambda pair: f"i = {{ {pair[0]} = {pair[1]}, z.y = 1 }}"
    ),
)


def _places(value: object, place: str) -> set[str]:
    if isinstance(value, dict):
        return {
            inner
            for name, item in value.items()
            for inner in _named(item, f"{place}.{_written(name)}" if place else _written(name))
        }
    if isinstance(value, list):
        return {inner for at, item in enumerate(value) for inner in _named(item, f"{place}[{at}]")}
    return set()


def _named(value: object, place: str) -> set[str]:
    return {place, *_places(value, place)}


def _written(name: str) -> str:
    return written_key(name)


@settings(max_examples=150, deadline=None)
@given(st.lists(lines, max_size=6).map("\n".join))
def test_everything_in_a_file_has_a_line(text: str) -> None:
    """In any TOML each element is found, on a line that exists. An element that holds tables only may be found by these."""
    try:
        document = tomllib.loads(text)
    except ValueError:
        return
    found = lines_of(text.encode())
    assert all(1 <= line <= text.count("\n") + 1 for line in found.values())
    for place in _places(document, ""):
        assert place in found or any(other.startswith((f"{place}.", f"{place}[")) for other in found), (place, found)


def test_lines_of_a_large_file_take_no_time() -> None:
    """A policy of thousands of principals is checked while one waits."""
    text = "\n".join(f'[[principals]]\nname = "p{n}"\nfingerprints = [\n "{n:064x}",\n]' for n in range(3000))
    began_s = time.perf_counter()
    assert line_of(text.encode(), "principals[2999].fingerprints[0]") == 2999 * 5 + 4
    assert time.perf_counter() - began_s < 5


def test_renewed_certificates_count_in_a_comparison() -> None:
    """The file that enrolment writes is part of a principal."""
    operators = f'[[principals]]\nname = "a"\nfingerprints = ["{FIRST}"]\n'.encode()
    renewals = f'[[renewals]]\nrenews = "{FIRST}"\nfingerprints = ["{SECOND}"]\n'.encode()
    old, new = load_policies([("p", operators)], LIMITS), load_policies([("p", operators), ("e", renewals)], LIMITS)
    assert list(differences(old, new)) == [Difference("a", "gains", "fingerprint", SECOND)]
    assert moved_fingerprints(new, old) == {SECOND: ("a", None)}
