"""Values over HTTP, for principals within their rights: one value, pages of values, and what is refused."""

import json

import pytest

from maxam.avro.json.encoding import encode_value
from maxam.avro.registry import load_registry
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.broker.policy import load_policy
from maxam.config import Limits
from tests.unit.api.test_api import ADMIN, POLICY, READER, SCRAPER, SENDER, World, run

PERSON = {
    "type": "record",
    "name": "P_v1",
    "namespace": "t",
    "fields": [{"name": "credit", "type": "long"}, {"name": "name", "type": "string", "pii": True}],
}
RULES = b"""
[[rule]]
destination = "X/A.P*"
schema = "t.P_v1"
encoding = "datum"
[[rule]]
destination = "X/**"
encoding = "none"
"""
REGISTRY = {"registry.toml": RULES, "t/P_v1/1.0.avsc": json.dumps(PERSON).encode()}


@pytest.fixture
def world() -> World:
    """Return a gateway with one value of which `sender` may see the personal field, and one that no schema judges."""
    world = World()
    world.broker.replace_registry(load_registry(REGISTRY))
    text = POLICY.replace("[capabilities.all]\n", "[capabilities.all]\npii = true\n")
    world.broker.replace_policy(load_policy(text.encode(), "policy", Limits()))
    of = parse_schema(read_source("schema", json.dumps(PERSON).encode())).type
    world.send("X/A.P1", encode_value(of, {"credit": 2**60, "name": "Ann"}))
    world.send("X/B", b"hall")
    return world


def test_one_value(world: World) -> None:
    """A principal without an admin right reads what it may receive, with personal fields if the policy shows them."""

    async def test() -> None:
        answer = await world.json("/v1/values/X/A.P1", SENDER)
        accepted_at = answer.pop("accepted_at")
        assert accepted_at.endswith("Z")
        assert answer == {
            "destination": "X/A.P1",
            "revision": 1,
            "schema": "t.P_v1 1.0",
            "value_state": "decoded",
            "value": {"credit": str(2**60), "name": "Ann"},
        }
        masked = await world.json("/v1/values/X/A.P1", READER)
        assert masked["value"] == {"credit": str(2**60)}
        raw = await world.json("/v1/values/X/B", SENDER)
        assert (raw["value_state"], raw["body"], raw["content_type"], raw["schema"]) == ("raw", "aGFsbA==", None, "")

    run(test)


@pytest.mark.parametrize("there", ["X/B", "X/nowhere"])
def test_without_the_right_nothing_is_disclosed(world: World, there: str) -> None:
    """The answer is the same for a topic with and without a value."""

    async def test() -> None:
        for who in (READER, SCRAPER):
            response = await world.ask("GET", f"/v1/values/{there}", who)
            assert (response.status_code, response.json()["code"]) == (403, "withheld")

    run(test)


def test_an_absent_value_is_not_found(world: World) -> None:
    """A deleted one too."""
    world.send("X/B", b"")

    async def test() -> None:
        for name in ("X/B", "X/nowhere"):
            assert (await world.ask("GET", f"/v1/values/{name}", SENDER)).status_code == 404

    run(test)


def test_a_known_value_is_not_sent_again(world: World) -> None:
    """The tag begins with the revision, and differs between readers with and without the right to personal fields."""

    async def test() -> None:
        response = await world.ask("GET", "/v1/values/X/A.P1", SENDER)
        tag = response.headers["etag"]
        assert tag.startswith('"1.')
        again = await world.ask("GET", "/v1/values/X/A.P1", SENDER, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        masked = await world.ask("GET", "/v1/values/X/A.P1", READER, headers={"if-none-match": tag})
        assert masked.status_code == 200
        head = await world.ask("HEAD", "/v1/values/X/A.P1", SENDER, marked=False)
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)

    run(test)


def test_a_page_has_what_may_be_received(world: World) -> None:
    """Other topics are left out, and pages follow each other."""
    for number in range(20):
        world.send(f"X/A.{number:02}", b"v")

    async def test() -> None:
        assert [row["destination"] for row in (await world.json("/v1/values?glob=X/B*", SENDER))["values"]] == ["X/B"]
        assert (await world.json("/v1/values?glob=X/B*", READER))["values"] == []
        found: list[str] = []
        cursor = ""
        while True:
            page = await world.json(f"/v1/values?limit=7{cursor}", READER)
            assert len(page["values"]) <= 7
            found += [row["destination"] for row in page["values"]]
            if page["next"] is None:
                break
            cursor = f"&after={page['next']}"
        assert found == [*(f"X/A.{number:02}" for number in range(20)), "X/A.P1"]

    run(test)


def test_fields_select(world: World) -> None:
    """A field that no schema of the topics has is refused."""

    async def test() -> None:
        for path in ("/v1/values/X/A.P1?", "/v1/values?glob=X/A.P*&"):
            answer = await world.json(f"{path}fields=name", SENDER)
            assert (answer.get("values") or [answer])[0]["value"] == {"name": "Ann"}
            for wrong in ("nowhere", "", "a..b"):
                response = await world.ask("GET", f"{path}fields={wrong}", SENDER)
                assert (response.status_code, response.json()["code"]) == (400, "invalid-parameter")

    run(test)


def test_a_stream_is_refused_before_it_begins(world: World) -> None:
    """Wrong parameters have a status of their own."""

    async def test() -> None:
        for query, code in (
            ("glob=X%2F[", "invalid-glob"),
            ("fields=nowhere&glob=X/A.P*", "invalid-parameter"),
            ("where=nowhere+%3D+1&glob=X/A.P*", "invalid-selector"),
            ("min_interval_ms=1", "invalid-parameter"),
        ):
            response = await world.ask("GET", f"/v1/values/live?{query}", SENDER)
            assert (response.status_code, response.json()["code"]) == (400, code), query
        response = await world.ask("HEAD", "/v1/values/live", SENDER, marked=False)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert not [key for key in world.broker.sessions if key[1].startswith("http-")]

    run(test)


def test_the_console_shows_the_same_numbers(world: World) -> None:
    """Whole numbers beyond 2^53 are text in every listing."""

    async def test() -> None:
        answer = await world.json("/v1/topics/X/A.P1", ADMIN)
        assert answer["value"]["credit"] == str(2**60)

    run(test)
