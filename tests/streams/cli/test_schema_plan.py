"""The schema commands against a running gateway: what is in force, the very answers of the broker, and the plan of a change."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import Result

from maxam.client import connect
from maxam.schema_tools import plan as schema_plan
from tests.support.errors import code_in
from tests.support.running_gateway import Running, running_gateway

REGISTRY = """
[[rule]]
destination = "X/*.Raw"
encoding = "none"
[[rule]]
destination = "X/*.Single"
schema = "t.T_v1"
encoding = "single-object"
[[rule]]
destination = "X/*.Envelope"
schema = "t.T_v1"
encoding = "envelope"
[[rule]]
destination = "X/*.Confluent"
schema = "t.T_v1"
encoding = "confluent"
[[rule]]
destination = "X/*.Strict"
schema = "t.T_v1"
encoding = "datum"
require_version = true
[[rule]]
destination = "X/**"
schema = "t.T_v1"
encoding = "datum"
"""
POLICY = """
[capabilities.publish]
send = ["X/**"]
[capabilities.operate]
receive = ["X/A.**", "X/T.**"]
admin = ["read"]
[[principals]]
name = "op"
fingerprints = ["{operator}"]
capabilities = ["operate"]
[[principals]]
name = "north"
fingerprints = ["{publisher}"]
capabilities = ["publish"]
[[principals]]
name = "south"
fingerprints = ["{pipeline}"]
capabilities = ["publish"]
"""
SENT = {
    "north": ["X/A.1", "X/A.2", "X/A.4.Raw", "X/A.5", "X/A.6", "X/B.1"],
    "south": ["X/A.3", "X/A.7"],
}
CERTIFICATES = {"north": "publisher", "south": "pipeline"}
HI = b"\x04hi"


def schema(name: str, *fields: dict[str, Any]) -> str:
    """Write a record of the namespace `t`."""
    return json.dumps({"type": "record", "name": name, "namespace": "t", "fields": fields})


TEXT = {"name": "text", "type": "string"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway that two publishers have sent values to, and one a body that was rejected."""
    schemas = {"registry.toml": REGISTRY, "t/T_v1/1.0.avsc": schema("T_v1", TEXT)}
    with running_gateway(tmp_path_factory.mktemp("gateway"), POLICY, schemas, durability="none") as running:
        for principal, destinations in SENT.items():
            for answer in send(running, [(destination, HI, {}) for destination in destinations], principal):
                assert answer["disposition"] == "accepted"
        rejected = [
            ("X/A.8", b"\xff", {}),
            ("X/A.8", HI, {"if-revision": "none"}),
            ("X/A.8", HI, {"if-revision": "9999"}),
        ]
        results = [answer["result"] for answer in send(running, rejected)]
        assert results == ["schema-mismatch", "bad-condition", "conflict"]
        yield running


def send(
    running: Running, sends: list[tuple[str, bytes, dict[str, str]]], principal: str = "north"
) -> list[dict[str, str]]:
    """Send bodies; return the result of each RECEIPT."""
    certificates = running.folder / "certs"
    answers: list[dict[str, str]] = []

    async def work() -> None:
        async with connect(
            *running.gateway.address,
            certificate=certificates / f"{CERTIFICATES[principal]}.pem",
            key=certificates / f"{CERTIFICATES[principal]}.key",
            ca=certificates / "ca.pem",
            client_id=principal,
        ) as client:
            for destination, body, headers in sends:
                answer = await client.send(destination, body, headers)
                said = {"disposition": answer.disposition, "result": answer.result, "reason": answer.reason}
                answers.append({name: text for name, text in said.items() if text})

    trio.run(work)
    return answers


def cli(running: Running, *arguments: str, folder: Path | None = None, given: bytes | None = None) -> Result:
    """Run a command as the operator."""
    return running.cli("schemas", *arguments, variables={"MAXAM_SCHEMAS": str(folder or "/nonesuch")}, given=given)


def rows(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a plan by their sort."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, result.stdout.splitlines()):
        found.setdefault(row.pop("sort"), []).append(row)
    return found


def test_what_is_in_force_can_be_asked(running: Running) -> None:
    """With --live each reading command asks the gateway and prints what it prints for the folder of the gateway."""
    own = running.folder / "schemas"
    for arguments in (
        ["list", "--rules", "--json"],
        ["show", "t.T_v1", "--text"],
        ["show", "t.T_v1", "--example"],
        ["explain", "X/A.1.Envelope", "--json"],
        ["explain", "X/A.1.Confluent"],
    ):
        live = cli(running, *arguments, "--live")
        assert (live.exit_code, live.stderr, live.exception) == (0, "", None)
        assert live.stdout == cli(running, *arguments, folder=own).stdout
    listed = json.loads(cli(running, "list", "--live", "--json").stdout)
    assert (listed["type"], listed["compatibility"], listed["versions"][0]["released"]) == (
        "t.T_v1",
        "FULL_TRANSITIVE",
        None,
    )
    body = cli(running, "encode", "-", "--destination", "X/A.1.Single", "--live", given=b'{"text": "x"}').stdout_bytes
    assert json.loads(cli(running, "decode", "-", "--destination", "X/A.1.Single", "--live", given=body).stdout) == {
        "text": "x"
    }


def test_test_says_what_the_broker_answers(running: Running) -> None:
    """For every kind of body, good and bad, `schemas test` shows disposition, result and reason of the RECEIPT."""
    single = cli(running, "encode", "-", "--destination", "X/T.1.Single", "--live", given=b'{"text": "x"}').stdout_bytes
    envelope = cli(
        running, "encode", "-", "--destination", "X/T.1.Envelope", "--live", given=b'{"text": "x"}'
    ).stdout_bytes
    confluent = cli(
        running, "encode", "-", "--destination", "X/T.1.Confluent", "--live", given=b'{"text": "x"}'
    ).stdout_bytes
    sends: list[tuple[str, bytes, dict[str, str]]] = [
        ("X/T.1", HI, {}),
        ("X/T.1", b"\x04h", {}),
        ("X/T.1", HI + b"!", {}),
        ("X/T.1", b"\x04\xff\xff", {}),
        ("X/T.1", HI, {"schema-version": "1.0"}),
        ("X/T.1", HI, {"schema-version": "7\u202e"}),
        ("X/T.1.Strict", HI, {}),
        ("X/T.1.Raw", b"\x00\xff", {}),
        ("X/T.1.Single", single, {}),
        ("X/T.1.Single", HI, {}),
        ("X/T.1.Single", b"\xc3\x01" + b"\0" * 8 + HI, {}),
        ("X/T.1.Envelope", envelope, {}),
        ("X/T.1.Envelope", b"\0", {}),
        ("X/T.1.Envelope", envelope[:-1], {}),
        ("X/T.1.Confluent", confluent, {}),
        ("X/T.1.Confluent", b"\0\0\0\0\1" + HI, {}),
        ("X/T..1", HI, {}),
        ("Y/T.1", HI, {}),
        ("X/T.1", b"", {}),
    ]
    for (destination, body, headers), answer in zip(sends, send(running, sends), strict=True):
        version = [part for value in headers.values() for part in ("--schema-version", value)]
        arguments = ["test", "-", "--destination", destination, "--as", "binary", "--live", "--json", *version]
        result = cli(running, *arguments, given=body)
        receipt = json.loads(result.stdout)["receipt"]
        assert receipt.pop("content-disposition") == receipt["disposition"]
        if answer.get("result") == "unauthorised":  # which the policy decides, and first
            continue
        assert receipt == answer
        assert result.exit_code == (0 if answer["disposition"] == "accepted" else 1)


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    """A folder that would change everything: types, encodings, rules that go, and one that would let a reject pass."""
    folder = tmp_path / "schemas"
    for name in ("T_v1", "U_v1"):
        (folder / f"t/{name}").mkdir(parents=True)
    (folder / "t/T_v1/1.0.avsc").write_text(schema("T_v1", TEXT))
    more = {"name": "more", "type": ["null", "int"], "default": None}
    (folder / "t/T_v1/1.1.avsc").write_text(schema("T_v1", TEXT, more))
    (folder / "t/U_v1/1.0.avsc").write_text(schema("U_v1", {"name": "n", "type": "int"}))
    rules = [
        ("X/A.[12]", "t.U_v1", "datum"),
        ("X/A.3", "t.T_v1", "single-object"),
        ("X/A.[5-7]", "t.T_v1", "datum"),
        ("X/A.8", None, "none"),
        ("X/B.**", "t.U_v1", "datum"),
    ]
    text = REGISTRY.replace("X/", "X/T.")  # what another test sends stays as it is
    for destination, type_name, encoding in rules:
        named = "" if type_name is None else f'schema = "{type_name}"\n'
        text += f'[[rule]]\ndestination = "{destination}"\n{named}encoding = "{encoding}"\n'
    (folder / "registry.toml").write_text(text)
    return folder


def test_a_plan_names_who_would_break(running: Running, candidate: Path) -> None:
    """Publishers by rule, result and field, topics without rule, values that move, rejects that would pass, what is not judged."""
    result = cli(running, "plan", str(candidate), "--json")
    assert result.exit_code == 1
    assert code_in(result.stderr) == "configuration-invalid"
    assert [int(number) for number in re.findall(r"\d+", result.stderr)] == [
        2,
        3,
        1,
    ]  # publishers, topics, without rule
    found = rows(result)
    reasons = [row.pop("reason") for row in found["breaks"]]
    assert (reasons[0].startswith("t.U_v1 1.0: "), reasons[1].endswith("found 04 68 69")) == (True, True)
    assert found["breaks"] == [
        {
            "publisher": "north", "destination": "X/A.[12]", "schema": "t.U_v1", "result": "schema-mismatch", "field": "",
            "count": 2, "example": "X/A.1",
        },
        {
            "publisher": "south", "destination": "X/A.3", "schema": "t.T_v1", "result": "bad-single-object", "field": "",
            "count": 1, "example": "X/A.3",
        },
    ]  # fmt: skip
    assert found["orphans"] == [{"publisher": "north", "destination": "X/*.Raw", "count": 1, "example": "X/A.4.Raw"}]
    assert found["passes"] == [
        {"publisher": "north", "destination": "X/A.8", "result": "schema-mismatch", "count": 1, "example": "X/A.8"}
    ]
    assert "moves" not in found
    summary = found["summary"][0]
    assert {name: summary[name] for name in ("publishers_broken", "breaks", "orphans", "withheld", "passes")} == {
        "publishers_broken": 2, "breaks": 3, "orphans": 1, "withheld": 1, "passes": 1,
    }  # fmt: skip
    changes = [(row["change"], row["of"], row["what"]) for row in found["change"]]
    assert ("added", "schema", "t.U_v1 1.0") in changes
    assert ("removed", "rule", "X/**") in changes
    assert ("added", "rule", "X/A.3: t.T_v1, single-object") in changes

    shown = cli(running, "plan", str(candidate))
    assert shown.exit_code == 1
    for text in (
        "These publishers would be rejected:",
        "These topics would have no rule",
        "1 were not judged",
        "1 would pass",
    ):
        assert text in shown.stdout
    assert "1 row more" in cli(running, "plan", str(candidate), "--limit", "1").stdout


def test_a_plan_of_what_is_in_force_changes_nothing(running: Running) -> None:
    """The gateway's own folder breaks no client: exit code 0."""
    result = cli(running, "plan", str(running.folder / "schemas"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "nothing would break" in result.stdout
    found = rows(cli(running, "plan", str(running.folder / "schemas"), "--json"))
    assert set(found) == {"summary"}


def test_a_plan_tells_values_that_move(running: Running, candidate: Path) -> None:
    """A value that another type or encoding would take as well is no break, but reported."""
    text = (candidate / "registry.toml").read_text().replace("X/A.[12]", "X/A.[12x]").replace("t.U_v1", "t.V_v1", 1)
    (candidate / "registry.toml").write_text(text)
    (candidate / "t/V_v1").mkdir()
    (candidate / "t/V_v1/1.0.avsc").write_text(schema("V_v1", {"name": "data", "type": "bytes"}))
    assert rows(cli(running, "plan", str(candidate), "--json"))["moves"] == [
        {"from": "t.T_v1 1.0 (datum)", "to": "t.V_v1 1.0 (datum)", "count": 2, "example": "X/A.1"}
    ]


def test_a_plan_is_bounded(running: Running, candidate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ways to break there are, those beyond the bound are counted together; pages follow each other."""
    monkeypatch.setattr(schema_plan, "GROUPS_MAX", 1)
    monkeypatch.setattr(schema_plan, "PAGE_ROWS", 2)
    found = rows(cli(running, "plan", str(candidate), "--json"))
    assert [(row["publisher"], row["count"]) for row in found["breaks"]] == [("north", 2), ("(others)", 1)]


def test_a_plan_of_a_bad_folder_is_refused(running: Running, candidate: Path) -> None:
    """Mistakes come first, and end it."""
    (candidate / "t/U_v1/1.0.avsc").write_text("{}")
    result = cli(running, "plan", str(candidate))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "t/U_v1/1.0.avsc:1: " in result.stderr
