"""`maxam-admin rejects` and `schemas shadow` against a running gateway, from the rejection to the accepted resubmission."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from click.testing import Result

from maxam.avro.registry import load_registry
from tests.support.errors import code_in
from tests.support.running_gateway import Running, plain, running_gateway

REGISTRY = """
[[rule]]
destination = "X/*.Single"
schema = "t.T_v1"
encoding = "single-object"
[[rule]]
destination = "X/*.Envelope"
schema = "t.T_v1"
encoding = "envelope"
[[rule]]
destination = "X/*.Private"
schema = "t.T_v1"
encoding = "datum"
store_rejected_bodies = false
[[rule]]
destination = "X/**"
schema = "t.T_v1"
encoding = "datum"
shadow = "1.1"
[type."t.T_v1"]
compatibility = "NONE"
"""
POLICY = """
[capabilities.publish]
send = ["X/**"]
[capabilities.operate]
send = ["X/**"]
receive = ["X/A.**"]
admin = ["read", "write"]
[[principals]]
name = "op"
fingerprints = ["{operator}"]
capabilities = ["operate"]
[[principals]]
name = "pub"
fingerprints = ["{publisher}"]
capabilities = ["publish"]
"""
FIELDS = [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
    {"name": "text", "type": "string"},
]
GOOD = b"\x00\x02\x04hi"  # the epoch, OFF, hi


def schema(*fields: object) -> str:
    """Write `t.T_v1`."""
    return json.dumps({"type": "record", "name": "T_v1", "namespace": "t", "fields": fields})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a gateway whose journal has seen what the publisher sent, most of it bad."""
    candidate = schema(*FIELDS[:2], {"name": "text", "type": "string"}, {"name": "more", "type": "int"})
    schemas = {
        "registry.toml": REGISTRY,
        "t/T_v1/1.0.avsc": schema(*FIELDS),
        "t/T_v1/1.1.candidate.avsc": candidate,
    }
    with running_gateway(tmp_path_factory.mktemp("gateway"), POLICY, schemas) as running:
        yield running


def reject(running: Running, destination: str, body: bytes, **headers: str) -> str:
    """Have a SEND rejected; return the name of the record."""

    async def work(client: object) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await client.send(destination, body, given)  # type: ignore[attr-defined]
        assert not answer.accepted

    running.client(work)
    row = json.loads(ok(running.cli("rejects", "list", "--json", "--limit", "1")).stdout)
    assert row["destination"] == destination
    return str(row["id"])


def ok(result: Result) -> Result:
    """Return a result that is good."""
    assert result.exit_code == 0, result.output
    return result


def test_from_a_rejection_to_what_it_says(running: Running) -> None:
    """Listed with its reason, shown with the place of the fault, taken apart up to it."""
    name = reject(running, "X/A.1", GOOD[:-1], trace="t-1")
    listing = ok(running.cli("rejects", "list", "--principal", "pub", "--since", "1h", "--destination", "X/A.1"))
    assert "schema-mismatch" in listing.stdout
    assert "t.T_v1 1.0: text: " in listing.stdout
    assert listing.stderr
    shown = plain(ok(running.cli("rejects", "show", name)).stdout)
    for line in ("fault path  text", "fault offset  2", "header trace  t-1", "body_state  kept", "schema_version  1.0"):
        assert f"\n{line}\n" in shown
    decoded = plain(ok(running.cli("rejects", "decode", name)).stdout)
    head, compared, *rows, fault, place = decoded.splitlines()
    assert head.startswith("X/A.1: schema-mismatch: t.T_v1 1.0: text: ")
    assert compared.startswith("4 bytes, encoding datum, ")
    assert rows == [
        "  BYTE  LENGTH  FIELD  TYPE  VALUE",
        "─",
        "  0  1  at  long (timestamp-millis)  <time>",
        "  1  1  state  t.State  OFF",
    ]
    assert fault.startswith(">  2  text  ")
    assert place == "byte 2: 00 02 > 04 68"
    found = json.loads(ok(running.cli("rejects", "decode", name, "--json")).stdout)
    assert [(value["path"], value["value"]) for value in found["values"]] == [
        ("at", "1970-01-01T00:00:00.000Z"),
        ("state", "OFF"),
    ]
    assert found["fault"].pop("found")
    assert found["fault"] == {"path": "text", "expected": "string", "offset": 2}
    result = running.cli("rejects", "decode", name, "--version", "7.0")
    assert (result.exit_code, "known: 1.0" in result.stderr) == (1, True)


def test_a_body_in_another_encoding_is_recognised(running: Running) -> None:
    """The commonest mistakes are named: a bare datum where a fingerprint is wanted, and the other way round."""
    name = reject(running, "X/A.Single", GOOD)
    text = ok(running.cli("rejects", "decode", name)).stdout
    assert "t.T_v1 1.0 in the encoding datum" in text
    single = running.gateway.registry.versions("t.T_v1")[0].head("single-object") + GOOD
    name = reject(running, "X/A.Envelope", single)
    assert "1.0 in the encoding single-object" in ok(running.cli("rejects", "decode", name)).stdout
    name = reject(running, "X/A.Envelope", b"\x04\x12\x04ab\x02\x06\x00\x02\x04\x00")
    text = ok(running.cli("rejects", "decode", name)).stdout
    assert "(item 1, key 1: body)" in text
    assert ">" in text


def test_another_version_from_a_folder(running: Running) -> None:
    """A reject can be compared with any version of a schema folder, candidates too, and without a rule against a type."""
    name = reject(running, "X/A.1", GOOD + b"\x0e", schema_version="1.1")
    folder = str(running.folder / "schemas")
    text = ok(running.cli("rejects", "decode", name, "--schemas", folder, "--version", "1.1")).stdout
    assert "t.T_v1 1.1 (asked for)" in text
    assert "\n>" not in text
    assert "1 byte more" in ok(running.cli("rejects", "decode", name, "--type", "t.T_v1")).stdout
    result = running.cli("rejects", "decode", name, "--type", "t.None_v1")
    assert (result.exit_code, "known: t.T_v1" in result.stderr) == (1, True)


def test_bodies_that_are_not_there(running: Running) -> None:
    """A value is not decoded without the right to receive it, or if its rule forbids it. The reason is shown."""
    for destination, reason, code in (
        ("X/B.1", "only callers who may receive", 4),
        ("X/A.Private", "store_rejected_bodies = false", 1),
    ):
        name = reject(running, destination, b"\x01 a secret body")
        result = running.cli("rejects", "decode", name)
        assert result.exit_code == 1
        assert reason in result.stderr
        assert "body_sha256" in ok(running.cli("rejects", "show", name)).stdout
        assert running.cli("rejects", "resubmit", name).exit_code == code
    assert running.cli("rejects", "show", "nothing").exit_code == 3
    assert running.cli("rejects", "list", "--since", "soon").exit_code == 2
    misspelt = running.cli("rejects", "list", "--result", "schema-mismach")
    assert misspelt.exit_code == 2
    assert "conflict, bad-condition, " in misspelt.stderr
    stored = b"".join(path.read_bytes() for path in Path(running.folder / "journal/rejected").iterdir())
    assert stored.count(b"a secret body") <= 1  # of the one whose rule does not mind


def test_sending_again(running: Running) -> None:
    """Refused as long as it is bad; accepted once it is not, unless the topic has changed since, and then by force."""
    name = reject(running, "X/A.2", GOOD + b"\x0e", schema_version="1.1")
    result = running.cli("rejects", "resubmit", name)
    assert (result.exit_code, "unknown-schema-version" in result.stderr) == (1, True)
    running.send("X/A.2", GOOD)
    result = running.cli("rejects", "resubmit", name)
    assert (result.exit_code, code_in(result.stderr)) == (1, "topic-changed")
    assert "unknown-schema-version" in running.cli("rejects", "resubmit", name, "--force").stderr

    before = running.gateway.registry
    mended = load_registry({"registry.toml": b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'})
    trio.from_thread.run_sync(running.gateway.broker.replace_registry, mended, trio_token=running.token)
    try:
        answer = ok(running.cli("rejects", "resubmit", name, "--force", "--json")).stdout
        assert json.loads(answer) == {"id": name, "destination": "X/A.2", "disposition": "accepted"}
        topic = json.loads(ok(running.cli("topics", "get", "X/A.2", "--json")).stdout)
        assert topic["publisher"] == "op"
        assert ["schema-version", "1.1"] in topic["headers"]
    finally:
        trio.from_thread.run_sync(running.gateway.broker.replace_registry, before, trio_token=running.token)


def test_candidates(running: Running) -> None:
    """The share that the candidate would have rejected, whose, and why with an example; all of it as JSON too."""
    running.send("X/A.3", GOOD)
    result = ok(running.cli("schemas", "shadow"))
    text = plain(result.stdout)
    assert "X/**: t.T_v1 1.1 (t/T_v1/1.1.candidate.avsc), in force: 1.0" in text
    assert "would be rejected" in text
    assert "more: " in text
    row = json.loads(ok(running.cli("schemas", "shadow", "--json")).stdout)
    assert row["rejected"] >= 1
    assert row["reasons"][0]["principal"] == "pub"
