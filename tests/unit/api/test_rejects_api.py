"""Rejected SENDs over the admin API: rights, pages, sending again, and the figures of candidates."""

from base64 import b64decode
from typing import Any
from urllib.parse import quote

import pytest

from maxam.api.routes import rejects as rejects_api
from maxam.avro.registry import load_registry
from maxam.records import Identity
from maxam.stomp.events import Condition, Send
from tests.unit.api.test_api import ADMIN, READER, REGISTRY, SCRAPER, SENDER, STRANGER, World, datum, run


@pytest.fixture
def world() -> World:
    """Return a new world."""
    return World()


AT_US = 1_700_000_000_000_000
BAD = b"\x0aab"


def reject(
    world: World, destination: str, body: bytes = BAD, at_us: int = AT_US, condition: Condition | None = None
) -> str:
    """Have a SEND of the publisher rejected; return the name of the record."""
    before = len(world.quarantine)
    send = Send(destination.encode(), body, ((b"h", b"1"),), None, condition)
    world.broker.send(world.publisher, send, at_us)
    assert len(world.quarantine) == before + 1
    return world.quarantine.name(next(world.quarantine.before(None)))


def mend(world: World) -> None:
    """Have a rule that takes any body, as after a reload."""
    world.broker.replace_registry(
        load_registry({"registry.toml": b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'})
    )


async def refused(world: World, path: str, status: int, code: str, who: str = ADMIN, method: str = "POST") -> str:
    """Ask for what is refused; return the detail."""
    response = await world.ask(method, path, who)
    assert (response.status_code, response.json()["error"]) == (status, code), response.text
    return str(response.json()["detail"])


def test_a_reject_tells_why_and_where(world: World) -> None:
    """The row has disposition, result, reason and the fault as values; the one alone has headers, body and its SHA-256 too."""

    async def test() -> None:
        name = reject(world, "X/A.1")
        listing = await world.json("/v1/rejects")
        (row,) = listing["rejects"]
        assert (listing["next"], listing["kept"], listing["forgotten"]) == (None, 1, 0)
        assert listing["since"] == "2023-11-14T22:13:20.000000Z"
        assert {key: row[key] for key in ("id", "principal", "destination", "disposition", "result")} == {
            "id": name,
            "principal": "sender",
            "destination": "X/A.1",
            "disposition": "rejected-invalid",
            "result": "schema-mismatch",
        }
        fault = dict(row["fault"])
        assert fault.pop("found") in row["reason"]
        assert row["reason"].startswith("t.T_v1 1.0: text: ")
        assert fault == {"path": "text", "expected": "string", "offset": 0, "item": None, "item_key": None}
        assert (row["schema"], row["schema_version"], row["body_bytes"]) == ("t.T_v1", "1.0", 3)
        assert (row["topic_changed"], row["resubmitted"], row["body_state"]) == (False, 0, "kept")
        assert "body" not in row
        alone = await world.json(f"/v1/rejects/{name}")
        assert row.items() <= alone.items()
        assert (b64decode(alone["body"]), alone["headers"]) == (BAD, [["h", "1"]])
        assert len(alone["body_sha256"]) == 64

    run(test)


def test_a_body_is_for_who_may_receive_the_destination(world: World) -> None:
    """Others with the right to read see all but body and headers, and cannot send it again; others see nothing."""

    async def test() -> None:
        seen, unseen = reject(world, "X/A.1"), reject(world, "X/B.1")
        assert (await world.json(f"/v1/rejects/{seen}", READER))["body_state"] == "kept"
        withheld = await world.json(f"/v1/rejects/{unseen}", READER)
        assert withheld["body_state"] == "withheld"
        assert withheld["problem"]
        assert not {"body", "headers"} & withheld.keys()
        assert withheld["reason"]
        await refused(world, f"/v1/rejects/{unseen}/resubmit", 403, "withheld", READER)
        for path in ("/v1/rejects", f"/v1/rejects/{seen}", "/v1/rejects/none", "/v1/shadow"):
            for who in (SENDER, SCRAPER, STRANGER):
                await refused(world, path, 403, "forbidden", who, "GET")
        await refused(world, f"/v1/rejects/{seen}/resubmit", 403, "forbidden", SENDER)
        response = await world.ask("POST", f"/v1/rejects/{seen}/resubmit", marked=False)
        assert response.json()["error"] == "missing-header"

    run(test)


def test_the_body_of_an_unauthorised_send_is_in_no_answer(world: World) -> None:
    """Length and SHA-256 are shown. No caller, with any rights, gets the body or can send it again."""

    async def test() -> None:
        stranger = world.connect("stranger", "c")
        world.broker.send(stranger, Send(b"X/A.1", b"the secret body", ((b"h", b"hidden"),), None), AT_US)
        world.broker.send(stranger, Send(b"X/A..1", b"the secret body", ((b"h", b"hidden"),), None), AT_US)
        listing = await world.ask("GET", "/v1/rejects")
        rows = listing.json()["rejects"]
        assert [row["disposition"] for row in rows] == ["rejected-invalid", "rejected-unauthorised"]
        for row in rows:
            answer = await world.ask("GET", f"/v1/rejects/{row['id']}")
            alone = answer.json()
            assert (alone["body_state"], alone["body_bytes"], len(alone["body_sha256"])) == ("unauthorised", 15, 64)
            for text in (listing.text, answer.text):
                assert "secret body" not in text
                assert "hidden" not in text
            await refused(world, f"/v1/rejects/{row['id']}/resubmit?force=true", 409, "body-not-kept")

    run(test)


def test_a_body_that_may_be_kept_no_more_is_shown_no_more(world: World) -> None:
    """A rule that has `store_rejected_bodies = false` since a reload counts for what was rejected before."""

    async def test() -> None:
        name = reject(world, "X/A.1")
        text = REGISTRY["registry.toml"] + b"store_rejected_bodies = false\n"
        world.broker.replace_registry(load_registry(REGISTRY | {"registry.toml": text}))
        alone = await world.json(f"/v1/rejects/{name}")
        assert alone["body_state"] == "private"
        assert not {"body", "headers"} & alone.keys()
        assert (await world.json("/v1/rejects"))["rejects"][0]["body_state"] == "private"
        await refused(world, f"/v1/rejects/{name}/resubmit?force=true", 409, "body-not-kept")

    run(test)


def test_pages_and_filters(world: World) -> None:
    """The newest come first, and each is seen once by following `next`. All filters apply together, and wrong ones are refused."""

    async def pages(**parameters: Any) -> list[str]:
        found: list[str] = []
        query = {"limit": "2"} | parameters
        while True:
            listing = await world.json(
                "/v1/rejects?" + "&".join(f"{key}={quote(value)}" for key, value in query.items())
            )
            assert len(listing["rejects"]) <= 2
            found += [row["id"] for row in listing["rejects"]]
            if listing["next"] is None:
                return found
            query["after"] = listing["next"]

    async def test() -> None:
        names = [reject(world, f"X/A.{number}", at_us=AT_US + number * 1_000_000) for number in range(7)]
        other = world.connect("admin", "c")
        world.broker.send(other, Send(b"Y/A", b"", (), None), AT_US + 7_000_000)
        names.append(world.quarantine.name(next(world.quarantine.before(None))))
        newest = names[::-1]
        assert await pages() == newest
        assert await pages(principal="sender") == newest[1:]
        assert await pages(principal="nobody") == []
        assert await pages(result="unauthorised") == newest[:1]
        assert await pages(destination="X/A.[1-3]") == newest[4:7]
        assert await pages(destination="**", principal="sender", since="2023-11-14T22:13:25+00:00") == newest[1:3]
        assert await pages(since="2023-11-14T23:13:27+01:00") == newest[:1]
        for query, code in (
            ("since=yesterday", "invalid-parameter"),
            ("since=2023-11-14T22:13:25", "invalid-parameter"),
            ("after=x", "invalid-parameter"),
            ("after=%D9%A3", "invalid-parameter"),
            ("limit=0", "invalid-parameter"),
            ("result=schema-mismach", "invalid-parameter"),
            ("principle=sender", "invalid-parameter"),
            ("destination=X/[", "invalid-glob"),
        ):
            detail = await refused(world, f"/v1/rejects?{query}", 400, code, method="GET")
            assert detail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rejects_api, "LOOKED_AT_PER_SLICE", 3)
        run(test)


def test_sending_again_is_judged_anew_as_the_operators_own_send(world: World) -> None:
    """A body that is still invalid is refused with the RECEIPT's words. With the rule repaired it is accepted, as the operator's SEND."""

    async def test() -> None:
        name = reject(world, "X/A.1")
        path = f"/v1/rejects/{name}/resubmit"
        assert "text: expected string" in await refused(world, path, 422, "schema-mismatch")
        mend(world)
        response = await world.ask("POST", path)
        assert response.json() == {"id": name, "destination": "X/A.1", "disposition": "accepted"}
        change = world.broker.store.topics[b"X/A.1"].change
        assert (change.body, change.publisher.principal, change.headers) == (BAD, "admin", ((b"h", b"1"),))
        alone = await world.json(f"/v1/rejects/{name}")
        assert [(one["by"], one["disposition"], one.get("result")) for one in alone["resubmissions"]] == [
            ("admin", "rejected-invalid", "schema-mismatch"),
            ("admin", "accepted", None),
        ]
        await refused(world, path, 409, "topic-changed")  # twice by mistake
        name = reject(world, "Y/A.1")
        await refused(world, f"{path}?force=yes", 400, "invalid-parameter")
        await refused(world, f"/v1/rejects/{name}/resubmit", 409, "body-not-kept")
        await refused(world, f"/v1/rejects/{world.quarantine.run}-99/resubmit", 404, "not-found")

    run(test)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_a_topic_that_has_changed_since_is_not_undone(committed: bool, deleted: bool, before: bool) -> None:
    """A value or a delete since, committed or only appended, makes it need force; a change before the reject does not."""
    world = World()

    async def test() -> None:
        world.send("X/A.1", datum("older"))
        if before:
            world.send("X/A.1", b"" if deleted else datum("old"))
        name = reject(world, "X/A.1")
        path = f"/v1/rejects/{name}"
        mend(world)
        assert not (await world.json(path))["topic_changed"]
        if not before:
            world.committer.stuck = not committed
            world.send("X/A.1", b"" if deleted else b"newer")
            world.committer.stuck = False
            assert (await world.json(path))["topic_changed"]
            await refused(world, f"{path}/resubmit", 409, "topic-changed")
        response = await world.ask("POST", f"{path}/resubmit?force={str(not before).lower()}")
        assert response.status_code == 200, response.text
        assert world.broker.store.topics[b"X/A.1"].change.body == BAD

    run(test)


def test_conditions_are_kept_as_far_as_they_still_mean_something(world: World) -> None:
    """A source that has sent newer is superseded; what was in conflict needs force, and is not compared again."""

    async def test() -> None:
        name = reject(world, "X/A.1", condition=Condition(b"s", 5, -1))
        mend(world)
        send = Send(b"X/A.2", b"!", (), None)
        world.broker.send(world.publisher, send, AT_US)
        conflict = reject(world, "X/A.2", b"mine", condition=Condition(None, -1, 77))
        world.committer.schedule_commit()
        await refused(world, f"/v1/rejects/{conflict}/resubmit", 409, "topic-changed")
        response = await world.ask("POST", f"/v1/rejects/{conflict}/resubmit?force=true")
        assert response.json()["disposition"] == "accepted"
        newer = Send(b"X/A.1", b"newer", ((b"source", b"s"), (b"source-revision", b"6")), None, Condition(b"s", 6, -1))
        world.broker.send(world.publisher, newer, AT_US)
        world.committer.schedule_commit()
        response = await world.ask("POST", f"/v1/rejects/{name}/resubmit?force=true")
        assert (response.json()["disposition"], response.json()["result"]) == ("accepted", "superseded")
        assert world.broker.store.topics[b"X/A.1"].change.body == b"newer"
        bad = reject(world, "X/A.3", b"!", condition=Condition(None, -1, -1, "source-revision must be a number"))
        await refused(world, f"/v1/rejects/{bad}/resubmit", 422, "bad-condition")

    run(test)


def test_names_from_outside_are_only_names(world: World) -> None:
    """Paths that climb, or hold anything else, find nothing; what a client called itself or its topic comes back as JSON text."""

    async def test() -> None:
        hostile = "X/\x1b[31m\u202e\r\n\"'<script>../../etc"
        identity = Identity('p"\r\nadmin-write principal=root\u202e', "0" * 64)
        connection = world.connect(identity.principal, "c")
        world.broker.send(connection, Send(hostile.encode(), b"!", (), None), AT_US)
        (row,) = (await world.json("/v1/rejects"))["rejects"]
        assert (row["destination"], row["principal"]) == (hostile, identity.principal)
        assert row["result"] == "invalid-destination"
        for name in ("..%2F..%2Fabout", "run-1%00", "run-1%0A", "%2e%2e", "run--1"):
            response = await world.ask("GET", f"/v1/rejects/{name}")
            assert response.status_code == 404, name

    run(test)


def test_what_a_candidate_would_have_made_of_traffic() -> None:
    """One row for each rule with a candidate has figures, the share, principals and reasons with an example. Other rules have none."""
    world = World()
    thing = REGISTRY["t/T_v1/1.0.avsc"]
    narrow = thing.replace(b'"string"', b'"int"')
    rules = REGISTRY["registry.toml"] + b'shadow = "1.1"\n[type."t.T_v1"]\ncompatibility = "NONE"\n'

    async def test() -> None:
        assert await world.json("/v1/shadow") | {"since": ""} == {"rules": [], "next": None, "since": ""}
        files = REGISTRY | {"registry.toml": rules, "t/T_v1/1.1.candidate.avsc": narrow}
        world.broker.replace_registry(load_registry(files))
        world.send("X/A.1", datum("v"))
        world.send("X/A.2", datum("w"))
        world.send("X/A.1", b"")
        (row,) = (await world.json("/v1/shadow?limit=1", READER))["rules"]
        assert {key: row[key] for key in ("destination", "schema", "candidate", "judges", "file")} == {
            "destination": "X/**",
            "schema": "t.T_v1",
            "candidate": "1.1",
            "judges": ["1.0"],
            "file": "t/T_v1/1.1.candidate.avsc",
        }
        assert (row["seen"], row["tried"], row["rejected"], row["rejected_share"]) == (2, 2, 2, 1.0)
        (principal,), (reason,) = row["principals"], row["reasons"]
        assert (principal["principal"], principal["rejected"], row["principals_told"]) == ("sender", 2, 1)
        assert (reason["principal"], reason["count"]) == ("sender", 2)
        assert reason["problem"].startswith("text: ")
        assert reason["example"]["destination"] == "X/A.2"
        assert reason["example"]["reason"].startswith("t.T_v1 1.0 as 1.1: text: ")
        assert (await world.json("/v1/shadow?after=1"))["rules"] == []
        assert len(world.quarantine) == 0

    run(test)


def test_rejects_are_counted_by_principal_and_result(world: World) -> None:
    """The largest number first, with time, destination and reason of the newest one, within the same filters as the listing."""

    async def test() -> None:
        stranger = world.connect("stranger", "c")
        world.broker.send(stranger, Send(b"X/A.9", b"v", (), None), AT_US)
        for number in range(3):
            reject(world, f"X/A.{number}", at_us=AT_US + number * 1_000_000)
        answer = await world.json("/v1/reject-sums")
        assert (answer["count"], answer["kept"]) == (4, 4)
        first, second = answer["sums"]
        assert (first["principal"], first["result"], first["count"]) == ("sender", "schema-mismatch", 3)
        assert (first["destination"], first["last_at"]) == ("X/A.2", "2023-11-14T22:13:22.000000Z")
        assert (second["result"], second["count"]) == ("unauthorised", 1)
        for query, count in (
            ("principal=sender", 3),
            ("result=unauthorised", 1),
            ("destination=X/A.1", 1),
            ("since=2023-11-14T22:13:21Z", 2),
            ("principal=nobody", 0),
        ):
            assert (await world.json(f"/v1/reject-sums?{query}"))["count"] == count
            assert len((await world.json(f"/v1/rejects?{query}"))["rejects"]) == count
        await refused(world, "/v1/reject-sums", 403, "forbidden", STRANGER, "GET")

    run(test)
