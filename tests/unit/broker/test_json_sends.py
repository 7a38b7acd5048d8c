"""SENDs of JSON: what the journal holds then, and why one is rejected."""

import json
from typing import Any

import pytest

from maxam.avro.json.encoding import encode_value
from maxam.content import unpack_headers
from maxam.records import Change
from maxam.stomp.events import is_json
from tests.support.sans_io import Client, World
from tests.unit.broker.test_json_subscriptions import RIGHTS, SCHEMA, SCHEMAS, SHOWN, TEXT, TYPE, VALUE, subscribe

NEWER = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "extra", "type": "int", "default": 7}]}


def make(encoding: str = "datum", more: str = "", texts: dict[str, bytes] | None = None) -> World:
    """Make a world whose rule has an encoding; `bert` may send nothing."""
    rules = SCHEMAS["registry.toml"].replace(b'encoding = "datum"', f'encoding = "{encoding}"\n{more}'.encode())
    schemas = (
        SCHEMAS | {"registry.toml": rules} | {f"e/Machine_v1/{name}.avsc": text for name, text in (texts or {}).items()}
    )
    return World.make(schemas=schemas, anna=RIGHTS | {"pii": ["yes"]}, bert={"receive": ["X/**"]})


def put(client: Client, value: Any, topic: str = "X/m.1", **headers: str) -> dict[str, str]:
    """Send JSON, or bytes as they are; return the headers of the RECEIPT."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    client.send(topic, body, "r", **({"content-type": "application/json"} | headers))
    client.world.settle()
    (receipt,) = [frame for frame in client.read() if frame.command == b"RECEIPT"]
    return {name.decode(): text.decode() for name, text in receipt.headers.items()}


def changes(world: World) -> list[Change]:
    """Return the changes in the journal."""
    return [record for record in world.journal if isinstance(record, Change)]


@pytest.mark.parametrize("media_type", ["application/json", "application/json; charset=utf-8", "application/json;x=y"])
def test_the_journal_holds_avro(media_type: str) -> None:
    """The bytes and the media type are those of a SEND of Avro, and other headers travel on."""
    world = make()
    client = world.client()
    assert put(client, SHOWN, lot="7", **{"content-type": media_type})["disposition"] == "accepted"
    (change,) = changes(world)
    assert change.body == encode_value(TYPE, VALUE)
    assert change.validation.schema == "e.Machine_v1"
    assert dict(change.headers) == {b"content-type": b"application/octet-stream", b"lot": b"7"}


@pytest.mark.parametrize("encoding", ["datum", "single-object", "confluent", "envelope"])
def test_a_value_comes_back_as_it_was_sent(encoding: str) -> None:
    """Each encoding of Avro is converted both ways."""
    world = make(encoding)
    client = world.client()
    subscribe(client)
    assert put(client, SHOWN)["disposition"] == "accepted"
    world.settle()
    late = world.client()
    subscribe(late, "eager:true")
    (frame,) = late.read()
    assert json.loads(frame.body) == SHOWN


def test_an_unchecked_destination_keeps_the_text() -> None:
    """Without a schema there is nothing to convert, and the media type stays."""
    world = make()
    assert put(world.client(), b'{"a": 1', "X/raw.1")["disposition"] == "accepted"
    (change,) = changes(world)
    assert (change.body, dict(change.headers)[b"content-type"]) == (b'{"a": 1', b"application/json")


def test_an_empty_body_is_a_delete() -> None:
    """As of any SEND."""
    world = make()
    client = world.client()
    put(client, SHOWN)
    assert put(client, b"")["disposition"] == "accepted"
    assert changes(world)[-1].deleted


@pytest.mark.parametrize(
    ("value", "result", "parts"),
    [
        (b"{", "bad-json", ["JSON"]),
        (b'{"credit": 1, "credit": 2}', "bad-json", ["'credit'", "twice"]),
        (b"\xff", "bad-json", ["UTF-8"]),
        (b"[" * 5000 + b"]" * 5000, "bad-json", ["levels"]),
        (b'{"credit": NaN}', "bad-json", ["NaN"]),
        (b"1" * 5000, "bad-json", []),
        (json.dumps(SHOWN | {"player": "x" * 70_000}).encode(), "bad-json", ["json_bytes_max"]),
        (SHOWN | {"credit": "x"}, "schema-mismatch", ["e.Machine_v1 1.0", "credit", "64 bits"]),
        (SHOWN | {"credit": 2**63}, "schema-mismatch", ["credit", "64 bits"]),
        (SHOWN | {"price": "1.234"}, "schema-mismatch", ["price"]),
        (SHOWN | {"faults": [{"code": 1, "by": "a"}, {"code": "x", "by": "b"}]}, "schema-mismatch", ["faults[1].code"]),
        (SHOWN | {"credits": 1}, "schema-mismatch", ["credits", "did you mean 'credit'"]),
        ({"credit": 1}, "schema-mismatch", ["price", "nothing"]),
        (SHOWN | {"line\nbreak": 1}, "schema-mismatch", ["line\\n"]),
        ([1, 2], "schema-mismatch", ["object"]),
    ],
)
def test_a_rejection_names_place_and_cause(value: Any, result: str, parts: list[str]) -> None:
    """The reason has the field's path and what was expected, on one line. Nothing is stored."""
    world = make()
    receipt = put(world.client(), value)
    assert (receipt["disposition"], receipt["result"]) == ("rejected-invalid", result)
    for part in parts:
        assert part in receipt["reason"]
    assert receipt["reason"].isprintable()
    assert not changes(world)


def test_without_the_right_no_schema_is_disclosed() -> None:
    """The right is checked first, whatever the body is."""
    world = make()
    client = world.client("bert")
    for value in (SHOWN, b"{"):
        assert put(client, value)["result"] == "unauthorised"


def test_the_version_is_that_of_the_header() -> None:
    """Without the header it is the newest one; where a rule requires the header, the broker adds it."""
    newer = json.dumps(NEWER).encode()
    world = make(more="require_version = true\n", texts={"1.0": TEXT, "1.1": newer})
    client = world.client()
    assert put(client, SHOWN)["disposition"] == "accepted"
    assert put(client, SHOWN, **{"schema-version": "1.0"})["disposition"] == "accepted"
    assert put(client, SHOWN, **{"schema-version": "9.9"})["result"] == "unknown-schema-version"
    versions = [(one.validation.schema_version, dict(one.headers)[b"schema-version"]) for one in changes(world)]
    assert versions == [("1.1", b"1.1"), ("1.0", b"1.0")]


def test_conditions_hold_for_json_too() -> None:
    """`if-revision` and `source-revision` are compared as of any SEND."""
    world = make()
    client = world.client()
    assert put(client, SHOWN, **{"if-revision": "0"})["revision"] == "1"
    assert put(client, SHOWN, **{"if-revision": "0"})["result"] == "conflict"
    marked = {"source": "s", "source-revision": "5"}
    assert "result" not in put(client, SHOWN, **marked)
    assert put(client, SHOWN, **marked)["result"] == "superseded"


@pytest.mark.parametrize(
    "media_type", ["application/jsonl", "application/json-seq", "text/json", "application/octet-stream"]
)
def test_other_media_types_are_no_json(media_type: str) -> None:
    """A body of Avro is judged as it is."""
    assert not is_json(media_type.encode())
    world = make()
    body = encode_value(TYPE, VALUE)
    assert put(world.client(), body, **{"content-type": media_type})["disposition"] == "accepted"
    (change,) = changes(world)
    assert unpack_headers(change.content)[0] == ((b"content-type", media_type.encode()),)
