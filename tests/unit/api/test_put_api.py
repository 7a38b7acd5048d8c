"""Values put and deleted over the admin API: each a SEND of the caller's own principal, or refused before anything is sent."""

import json
from base64 import b64encode
from typing import Any

import httpx
import pytest
import trio

from maxam.api.routes import put as put_api
from maxam.api.routes.put import BODY_TYPE, VALUE_REQUEST_BYTES_MAX
from maxam.avro.registry import load_registry
from tests.unit.api.test_api import ADMIN, READER, REGISTRY, SENDER, World, datum, run


@pytest.fixture
def world() -> World:
    """Return a new world."""
    return World()


async def put(world: World, path: str, document: Any, who: str = ADMIN) -> httpx.Response:
    """Put what a JSON body describes."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return await world.ask("PUT", f"/v1/topics/{path}", who, content=content)


async def put_body(world: World, path: str, body: bytes, query: str = "", who: str = ADMIN) -> httpx.Response:
    """Put a body as it is."""
    headers = {"content-type": BODY_TYPE}
    return await world.ask("PUT", f"/v1/topics/{path}{query}", who, headers=headers, content=body)


def b64(body: bytes) -> str:
    """Return base64 text."""
    return b64encode(body).decode()


def stored(world: World, destination: str) -> tuple[bytes, tuple[tuple[bytes, bytes], ...], str]:
    """Return body, headers and publisher of what a topic holds."""
    change = world.broker.store.topics[destination.encode()].change
    return change.body, change.headers, change.publisher.principal


def test_a_value_a_body_and_the_body_as_it_is_store_the_same(world: World) -> None:
    """All three forms are a SEND of the caller's principal with the same headers, answered with its revision."""
    headers = [["reason", "test: it"], ["second", "2"]]
    kept = ((b"schema-version", b"1.0"), (b"reason", b"test: it"), (b"second", b"2"))

    async def test() -> None:
        rest: dict[str, Any] = {"headers": headers, "schema_version": "1.0"}
        query = "?schema_version=1.0&headers=" + json.dumps(headers).replace(" ", "%20")
        for number, response in enumerate(
            [
                await put(world, "X/A.1", {"value": {"text": "hello"}, **rest}),
                await put(world, "X/A.1", {"body": b64(datum("hello")), **rest}),
                await put_body(world, "X/A.1", datum("hello"), query),
            ],
            1,
        ):
            assert response.status_code == 200, response.text
            assert response.json() == {
                "destination": "X/A.1",
                "disposition": "accepted",
                "result": None,
                "reason": None,
                "revision": number,
            }
            assert stored(world, "X/A.1") == (datum("hello"), kept, "admin")

    run(test)


def test_a_value_is_encoded_by_the_schema_that_judges_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas that are reloaded while it is encoded have it encoded again: its bytes may mean something else to them."""
    other = json.dumps({"type": "record", "name": "T_v1", "namespace": "t", "fields": [
        {"name": "more", "type": "string", "default": "m"}, {"name": "text", "type": "string"}]})  # fmt: skip
    original = put_api._encoded

    def encoded(*arguments: Any) -> Any:
        found = original(*arguments)
        if len(registries) == 1:
            trio.from_thread.run_sync(world.broker.replace_registry, registries[0])
        registries.append(arguments[0])
        return found

    async def test() -> None:
        assert (await put(world, "X/A.1", {"value": {"text": "hello"}})).status_code == 200
        assert stored(world, "X/A.1")[0] == b"\x02m" + datum("hello")

    registries = [load_registry(REGISTRY | {"t/T_v1/1.0.avsc": other.encode()})]
    monkeypatch.setattr(put_api, "_encoded", encoded)
    run(test)
    assert len(registries) == 3


def test_a_rule_that_requires_a_version_gets_that_of_the_value(world: World) -> None:
    """The answer to a value has the schema version that encoded it. A body must have its own."""
    text = REGISTRY["registry.toml"] + b"require_version = true\n"
    world.broker.replace_registry(load_registry({**REGISTRY, "registry.toml": text}))

    async def test() -> None:
        assert (await put(world, "X/A.1", {"value": {"text": "a"}})).status_code == 200
        assert stored(world, "X/A.1")[1] == ((b"schema-version", b"1.0"),)
        response = await put_body(world, "X/A.1", datum("a"))
        assert (response.status_code, response.json()["error"]) == (422, "schema-version-required")

    run(test)


def test_conditions_hold_as_in_a_send(world: World) -> None:
    """`if_revision` guards PUT and DELETE; a source's number that is not new is accepted without effect."""

    async def test() -> None:
        first = (await put(world, "X/A.1", {"value": {"text": "1"}, "if_revision": 0})).json()["revision"]
        stale = await put(world, "X/A.1", {"value": {"text": "2"}, "if_revision": 0})
        assert (stale.status_code, stale.json()["error"]) == (422, "conflict")
        assert f"revision {first}" in stale.json()["detail"]
        stale = await world.ask("DELETE", f"/v1/topics/X/A.1?if_revision={first + 1}")
        assert (stale.status_code, stale.json()["error"]) == (422, "conflict")
        second = await put_body(world, "X/A.1", datum("2"), f"?if_revision={first}")
        assert second.json()["revision"] == first + 1
        gone = await world.ask("DELETE", f"/v1/topics/X/A.1?if_revision={first + 1}")
        assert (gone.status_code, gone.json()["revision"]) == (200, first + 2)
        marked = {"value": {"text": "m"}, "source": "job", "source_revision": 7}
        assert (await put(world, "X/A.2", marked)).json()["result"] is None
        assert stored(world, "X/A.2")[1] == ((b"source", b"job"), (b"source-revision", b"7"))
        again = (await put(world, "X/A.2", marked)).json()
        assert (again["disposition"], again["result"], again["revision"]) == ("accepted", "superseded", None)

    run(test)


def test_rejections_are_the_receipts(world: World) -> None:
    """A rejected value has disposition, code and reason of the RECEIPT; a caller without the right to send learns of no schema."""

    async def test() -> None:
        for document, who, path, status, code, disposition in (
            ({"body": b64(b"\x0aab")}, ADMIN, "X/A.1", 422, "schema-mismatch", "rejected-invalid"),
            ({"value": {"text": 5}}, ADMIN, "X/A.1", 422, "invalid-value", "rejected-invalid"),
            (
                {"value": {"text": "a"}, "schema_version": "9.9"},
                ADMIN,
                "X/A.1",
                422,
                "unknown-schema-version",
                "rejected-invalid",
            ),
            ({"value": {"text": 5}}, READER, "X/B.1", 403, "unauthorised", "rejected-unauthorised"),
            ({"body": b64(b"a")}, READER, "X/B.1", 403, "unauthorised", "rejected-unauthorised"),
            ({"body": b64(b"a")}, ADMIN, "Y/B.1", 403, "unauthorised", "rejected-unauthorised"),
            ({"body": b64(b"a")}, ADMIN, "nonsense", 422, "invalid-destination", "rejected-invalid"),
        ):
            response = await put(world, path, document, who)
            found = response.json()
            assert (response.status_code, found["error"], found["disposition"]) == (status, code, disposition), found
        detail = (await put(world, "X/A.1", {"value": {"text": 5}})).json()["detail"]
        assert detail.startswith("text: expected ")
        assert detail.endswith(", found 5")
        assert not world.broker.store.topics
        world.committer.full = True
        response = await put(world, "X/A.1", {"value": {"text": "a"}})
        assert (response.status_code, response.json()["disposition"]) == (503, "rejected-unavailable")

    run(test)


BODY = {"body": b64(datum("a"))}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"value": 1, "value": 2}',
        b"[" * 5000,
        b'{"value": ' + b"[" * 3000 + b"}",
        {},
        {**BODY, "value": 1},
        {**BODY, "extra": 1},
        {"body": "no base64!"},
        {"body": 7},
        {"body": ""},
        {**BODY, "headers": {"a": "b"}},
        {**BODY, "headers": [["a"]]},
        {**BODY, "headers": [["a", 1]]},
        {**BODY, "headers": [["", "a"]]},
        {**BODY, "headers": [["a\nrevision", "1"]]},
        {**BODY, "headers": [["a", "b\r\ninjected:1"]]},
        {**BODY, "headers": [["a", "b\0"]]},
        {**BODY, "headers": [["a", "\ud800"]]},
        {**BODY, "headers": [["publisher", "somebody"]]},
        {**BODY, "headers": [["receipt", "1"]]},
        {**BODY, "headers": [["schema-version", "1.0"]]},
        {**BODY, "headers": [["source-revision", "1"]]},
        {**BODY, "headers": [["a", "x" * 9000]]},
        {**BODY, "headers": [[f"h{n}", "x"] for n in range(200)]},
        {**BODY, "schema_version": 1},
        {**BODY, "schema_version": "1.0\n"},
        {**BODY, "if_revision": -1},
        {**BODY, "if_revision": True},
        {**BODY, "if_revision": 1.5},
        {**BODY, "if_revision": 2**63},
        {**BODY, "source": "s"},
        {**BODY, "source_revision": 1},
        {**BODY, "source": "", "source_revision": 1},
        {**BODY, "source": "s" * 129, "source_revision": 1},
        {**BODY, "source": "s", "source_revision": 1, "headers": [["source", "t"]]},
    ],
)
def test_what_cannot_be_sent_is_refused_and_nothing_is_sent(world: World, document: Any) -> None:
    """Hostile or mistaken requests get 400 with what is wrong, in one line, and change nothing."""

    async def test() -> None:
        response = await put(world, "X/A.1", document)
        assert (response.status_code, response.json()["error"]) == (400, "invalid-request"), response.text
        assert len(response.json()["detail"]) < 400
        assert world.broker.head_revision == 0

    run(test)


def test_parameters_are_checked_as_keys_are(world: World) -> None:
    """The parameters describe a body that is sent as it is. Wrong values of them, and unknown ones, are refused."""

    async def test() -> None:
        for query, code in (
            ("?if_revision=x", "invalid-parameter"),
            ("?if_revision=99999999999999999999", "invalid-parameter"),
            ("?unknown=1", "invalid-parameter"),
            ("?headers=no", "invalid-request"),
            ('?headers=[["publisher","x"]]', "invalid-request"),
            ("?source=s", "invalid-request"),
        ):
            response = await put_body(world, "X/A.1", datum("a"), query)
            assert (response.status_code, response.json()["error"]) == (400, code), response.text
        response = await put_body(world, "X/A.1", b"")
        assert "DELETE" in response.json()["detail"]
        response = await world.ask("PUT", "/v1/topics/X/A.1?schema_version=1.0", content=json.dumps(BODY).encode())
        assert response.status_code == 400
        assert world.broker.head_revision == 0

    run(test)


def test_sizes_are_bounded(world: World) -> None:
    """A request with a value may have 8 KiB, other JSON 64 KiB, a body as it is what a frame's may have."""

    async def test() -> None:
        within = {"value": {"text": "a" * (VALUE_REQUEST_BYTES_MAX - 23)}}
        assert len(json.dumps(within)) == VALUE_REQUEST_BYTES_MAX
        assert (await put(world, "X/A.1", within)).status_code == 200
        within["value"]["text"] += "a"
        response = await put(world, "X/A.1", within)
        assert (response.status_code, response.json()["error"]) == (413, "too-large")
        large = bytes(4_194_304)
        assert (await put_body(world, "X/A.Raw", large)).status_code == 200
        assert stored(world, "X/A.Raw")[0] == large
        for response in (
            await put_body(world, "X/A.Raw", large + b"1"),
            await put(world, "X/A.Raw", {"body": b64(bytes(60_000))}),
        ):
            assert (response.status_code, response.json()["error"]) == (413, "too-large")

    run(test)


def test_the_type_of_a_body_is_read_as_http_has_it(world: World) -> None:
    """Upper case and parameters of a content-type change nothing."""

    async def test() -> None:
        headers = {"content-type": "Application/Octet-Stream; q=1"}
        assert (await world.ask("PUT", "/v1/topics/X/A.Raw", ADMIN, headers=headers, content=b"abc")).status_code == 200
        assert stored(world, "X/A.Raw")[0] == b"abc"

    run(test)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "GET"])
@pytest.mark.parametrize("name", ["X/%FF.Raw", "X/a%C0%AF.Raw", "X/%ED%A0%80.Raw"])
def test_bytes_that_are_no_text_are_no_other_name(world: World, method: str, name: str) -> None:
    """Nothing is stored, deleted or shown under a name that was not requested."""

    async def test() -> None:
        for replaced in ("X/\N{REPLACEMENT CHARACTER}.Raw", "X/a\N{REPLACEMENT CHARACTER}.Raw"):
            assert (await put_body(world, replaced, b"value")).status_code == 200
        head = world.broker.head_revision
        response = await world.ask(method, f"/v1/topics/{name}", content=json.dumps(BODY).encode())
        assert (response.status_code, response.json()["error"]) == (400, "invalid-parameter")
        response = await put_body(world, "X/A.Raw", b"value", "?schema_version=%FF")
        assert (response.status_code, "UTF-8" in response.json()["detail"]) == (400, True)
        assert world.broker.head_revision == head

    run(test)


def test_who_may_not_send_does_not_learn_what_there_is(world: World) -> None:
    """A delete is refused for the right, whether the topic exists or not."""

    async def test() -> None:
        assert (await put_body(world, "X/B.Raw", b"value")).status_code == 200
        for name in ("X/B.Raw", "X/none.Raw"):
            response = await world.ask("DELETE", f"/v1/topics/{name}", READER)
            assert (response.status_code, response.json()["error"]) == (403, "unauthorised")

    run(test)


def test_a_put_needs_the_right_and_the_mark_of_our_own_pages(world: World) -> None:
    """Without the admin right `write`, or without the header that no foreign page can set, nothing is sent."""

    async def test() -> None:
        assert (await put(world, "X/A.1", BODY, SENDER)).json()["error"] == "forbidden"
        response = await world.ask("PUT", "/v1/topics/X/A.1", marked=False, content=json.dumps(BODY).encode())
        assert (response.status_code, response.json()["error"]) == (403, "missing-header")
        assert world.broker.head_revision == 0

    run(test)
