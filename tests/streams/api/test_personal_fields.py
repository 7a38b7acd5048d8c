"""Fields that schemas mark as personal, over the admin API: who gets them, who does not, and what the audit log has of it."""

import itertools
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from maxam.audit_chain import Checker, read_folder
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.gateway.audit import audit_folder
from tests.streams.api.test_routes import operator, told
from tests.support.living_gateway import EVERYTHING, Site, cli, living
from tests.support.patience import PATIENCE_S

REGISTRY = """
[[rule]]
destination = "X/*.Plain"
schema = "club.Plain_v1"
encoding = "datum"
[[rule]]
destination = "X/**"
schema = "club.Patron_v1"
encoding = "datum"
"""
READS = EVERYTHING | {"admin": ["read"]}
ALICE = b"\x0e\x0aAlice"  # 7 visits
LONG = b"\x0e" + b"\x80\x80\x02" + b"Alice" + bytes(16_379)  # too long to be decoded for a caller


def schema(name: str, **marks: bool | str) -> str:
    """Return a schema of a count and a name."""
    fields = [{"name": "visits", "type": "long"}, {"name": "name", "type": "string", **marks}]
    return json.dumps({"type": "record", "name": name, "namespace": "club", "fields": fields})


def digest(text: str) -> str:
    """Return the name of the file that a journal keeps a schema in."""
    return sha256(parse_schema(read_source("t", text.encode())).text).hexdigest()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return the files of a gateway whose `anna` may see all, and `bert` nothing of the values."""
    made = Site(tmp_path, "anna", "bert")
    made.policy({"anna": READS, "bert": {"admin": ["read"]}})
    (made.schemas / "registry.toml").write_text(REGISTRY)
    for name, marks in (("Patron_v1", {"pii": True}), ("Plain_v1", {})):
        (made.schemas / "club" / name).mkdir(parents=True)
        (made.schemas / "club" / name / "1.0.avsc").write_text(schema(name, **marks))
    return made


def values(row: Any) -> list[Any]:
    """Return the parts of an answer that contain a value."""
    rows = row.get("topics") or row.get("changes") or [row]
    return [(one["value_state"], one.get("value"), one.get("pii_masked", False)) for one in rows]


def test_personal_fields_are_left_out_of_what_is_asked_for_without_them(site: Site) -> None:
    """With pii=false they are in no answer, not even in a body that is not decoded. The audit log has the given ones and no other."""
    whole, masked = {"visits": 7, "name": "Alice"}, {"visits": 7}
    places = ("/v1/topics", "/v1/topics/X/A.1", "/v1/history/X/A.1")

    async def test() -> None:
        async with living(site) as g, operator(g, "anna") as anna, operator(g, "bert") as bert:
            async with g.client("anna") as client:
                await client.send("X/A.1", ALICE)
                await client.send("X/A.Plain", ALICE)
                await client.send("X/B.1", LONG)
                assert (await client.send("X/C.1", b"\x0e\x0aAlic"))[0] == b"rejected-invalid"
            for place in places:
                asked = {"glob": "X/A.1", "values": "true"} if place == places[0] else {}
                assert values(await told(anna, place, **asked, pii="false")) == [("decoded", masked, True)]
                assert values(await told(anna, place, **asked)) == [("decoded", whole, False)]
                assert values(await told(bert, place, **asked)) == [("withheld", None, False)]
            assert values(await told(anna, "/v1/topics", glob="X/A.1", values="raw", pii="false")) == [
                ("undecoded", None, True)
            ]
            for pii in ("false", "true"):
                assert values(await told(anna, "/v1/topics/X/A.Plain", pii=pii)) == [("decoded", whole, False)]
                await told(anna, "/v1/topics", pii=pii)  # without values
                await told(anna, "/v1/history/X/A.1", pii=pii, values="false")
            long = await told(anna, "/v1/topics/X/B.1", pii="false")
            assert (long["value_state"], "body" in long) == ("undecoded", False)
            assert "longer than 8192 bytes, and as it was sent it may hold fields marked as personal" in long["problem"]
            assert (await told(anna, "/v1/topics/X/B.1"))["value_state"] == "raw"

            [reject] = (await told(anna, "/v1/rejects"))["rejects"]
            place = f"/v1/rejects/{reject['id']}"
            hidden = await told(anna, place, pii="false")
            assert (hidden["body_state"], "body" in hidden, "headers" in hidden) == ("personal", False, True)
            assert hidden["fault"] == reject["fault"]  # has lengths, never texts
            assert "body" in await told(anna, place)
            assert (await told(bert, place))["body_state"] == "withheld"
            for where in (*places, place):
                answer = await anna.get(where, params={"pii": "no"})
                assert (answer.status_code, answer.json()["error"]) == (400, "invalid-parameter"), where

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await test()

    trio.run(main)
    lines = [line.facts for line in read_folder(audit_folder(site.settings), Checker())]
    given = [
        (line["principal"], line["path"], line["reason"]) for line in lines if "personal" in line.get("reason", "")
    ]
    reasons = [(path, reason.removeprefix("with personal fields of ")) for _, path, reason in given]
    assert [name for name, _, _ in given] == ["anna"] * 5
    assert [(path, of) for path, of in reasons if "/rejects/" not in path] == [
        ("/v1/topics", "X/A.1"),
        ("/v1/topics/X/A.1", "X/A.1"),
        ("/v1/history/X/A.1", "X/A.1"),
        ("/v1/topics/X/B.1", "X/B.1"),
    ]
    assert reasons[-1][1] == "X/C.1"


def test_a_condition_reads_no_personal_field_unasked(site: Site) -> None:
    """With pii=false a condition on a marked field is refused, whatever it would find; otherwise the audit log has a line."""

    async def run() -> None:
        async with living(site) as alive, alive.client("anna") as client:
            await client.send("X/A.1", ALICE)
            await client.send("X/A.Plain", ALICE)
            async with operator(alive, "anna") as anna, operator(alive, "bert") as bert:
                for where, status in (("name = 'Alice'", 403), ("name = 'Bob'", 403), ("visits = 7", 200)):
                    answer = await anna.get("/v1/topics", params={"where": where, "pii": "false"})
                    assert answer.status_code == status, where
                    if status == 403:
                        assert answer.json()["code"] == "personal-withheld"
                for where, glob, names in (
                    ("visits = 7", "**", ["X/A.1", "X/A.Plain"]),
                    ("name = 'Alice'", "X/*.Plain", ["X/A.Plain"]),
                    ("name = 'Alice'", "X/*.1", ["X/A.1"]),
                    ("name = 'Bob'", "X/*.?", []),
                ):
                    found = await told(anna, "/v1/topics", where=where, glob=glob)
                    assert [row["destination"] for row in found["topics"]] == names
                assert (await told(bert, "/v1/topics", where="name = 'Alice'"))["topics"] == []

    trio.run(run)
    lines = [line.facts for line in read_folder(audit_folder(site.settings), Checker())]
    given = [(line["principal"], line["reason"]) for line in lines if "with personal" in line.get("reason", "")]
    assert given == [("anna", f"with personal fields of {glob}") for glob in ("X/*.1", "X/*.?")]


@pytest.mark.parametrize("marked_last", [False, True])
def test_a_version_that_only_marks_a_field_hides_it_in_history_too(tmp_path: Path, marked_last: bool) -> None:
    """Both versions have one fingerprint: in either order of the journal's files the value is masked, and given only with an audit line."""
    pairs = (
        [schema("Patron_v1", doc=f"d{index}", **marks) for marks in ({}, {"pii": True})] for index in itertools.count()
    )
    unmarked, marked = next(pair for pair in pairs if (digest(pair[0]) < digest(pair[1])) == marked_last)
    made = Site(tmp_path, "anna")
    made.policy({"anna": READS})
    (made.schemas / "registry.toml").write_text(REGISTRY[REGISTRY.rindex("[[rule]]") :])
    folder = made.schemas / "club" / "Patron_v1"
    folder.mkdir(parents=True)
    (folder / "1.0.avsc").write_text(unmarked)

    async def test() -> None:
        async with living(made) as g, operator(g, "anna") as anna:
            async with g.client("anna") as client:
                await client.send("X/A.1", ALICE)  # judged by 1.0
                (folder / "1.1.avsc").write_text(marked)
                await g.reload()
                await client.send("X/B.1", ALICE)  # judged by 1.1
            for topic in ("X/A.1", "X/B.1"):
                for place in ("/v1/topics", "/v1/history"):
                    found = values(await told(anna, f"{place}/{topic}", pii="false"))
                    assert found == [("decoded", {"visits": 7}, True)], (place, topic)
            for topic in ("X/A.1", "X/B.1"):
                result = await cli(g, "topics", "history", topic, "--values", "--json", who="anna")
                assert '"name":"Alice"' in result.stdout.replace(" ", ""), result.output

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await test()

    trio.run(main)
    lines = [line.facts for line in read_folder(audit_folder(made.settings), Checker())]
    given = [(line["principal"], line["path"]) for line in lines if "personal" in line.get("reason", "")]
    assert given == [("anna", "/v1/history/X/A.1"), ("anna", "/v1/history/X/B.1")]
