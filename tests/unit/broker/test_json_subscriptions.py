"""Subscriptions with accept-format:json: one broker without I/O, frame by frame."""

import json
import struct
from typing import Any

import pytest

from maxam.avro.json.encoding import encode_value
from maxam.avro.registry import load_registry
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.broker.json_values import JsonValues
from maxam.config import Limits
from maxam.stomp.frames import Frame
from tests.support.sans_io import Client, World, policy

SCHEMA = {
    "type": "record",
    "name": "Machine_v1",
    "namespace": "e",
    "fields": [
        {"name": "credit", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "player", "type": ["null", "string"], "default": None, "pii": True},
        {
            "name": "faults",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Fault",
                    "fields": [{"name": "code", "type": "int"}, {"name": "by", "type": "string", "pii": True}],
                },
            },
            "default": [],
        },
        {"name": "last", "type": ["null", "e.Fault"], "default": None},
    ],
}
TEXT = json.dumps(SCHEMA).encode()
TYPE = parse_schema(read_source("schema", TEXT)).type
RULES = """
[[rule]]
destination = "X/m.*"
schema = "e.Machine_v1"
encoding = "datum"
[[rule]]
destination = "X/raw.*"
encoding = "none"
"""
SCHEMAS = {"registry.toml": RULES.encode(), "e/Machine_v1/1.0.avsc": TEXT}
VALUE: dict[str, Any] = {
    "credit": 2**53 + 1,
    "price": "12.50",
    "at": "2026-11-23T12:00:00.000Z",
    "player": "Ann",
    "faults": [{"code": 1, "by": "Bob"}, {"code": 2, "by": "Cy"}],
    "last": {"code": 3, "by": "Di"},
}
SHOWN = VALUE | {"credit": "9007199254740993"}
MASKED = {
    "credit": "9007199254740993",
    "price": "12.50",
    "at": "2026-11-23T12:00:00.000Z",
    "faults": [{"code": 1}, {"code": 2}],
    "last": {"code": 3},
}
RIGHTS = {"send": ["X/**"], "receive": ["X/**"]}


def make(limits: Limits | None = None) -> World:
    """Make a world of two principals, of which `anna` may see personal fields."""
    world = World.make(schemas=SCHEMAS, limits=limits, anna=RIGHTS | {"pii": ["yes"]}, bert=RIGHTS)
    world.broker.incarnation = "0123456789abcdef"
    return world


def subscribe(client: Client, *lines: str, glob: str = "X/**", ack: str = "auto", id_: str = "s") -> None:
    """Subscribe to values as JSON."""
    head = "".join(f"{line}\n" for line in (f"id:{id_}", f"destination:{glob}", f"ack:{ack}", *lines))
    client.write(f"SUBSCRIBE\naccept-format:json\n{head}\n\0".encode())
    client.world.settle()


def put(world: World, topic: str = "X/m.1", body: bytes | None = None, **changes: Any) -> None:
    """Have a value accepted, with some fields changed."""
    datum = encode_value(TYPE, VALUE | changes) if body is None else body
    world.client(client_id="publisher").send(topic, datum, content_type="application/octet-stream", lot="7")
    world.settle()


def messages(client: Client) -> list[Frame]:
    """Return the MESSAGEs that a client gets now, without markers."""
    client.world.settle()
    return [frame for frame in client.read() if frame.headers.get(b"destination") != b"$marker"]


def shown(client: Client) -> list[Any]:
    """Return the bodies that a client gets now."""
    return [json.loads(frame.body) if frame.body else None for frame in messages(client)]


@pytest.mark.parametrize("ack", ["auto", "client"])
@pytest.mark.parametrize("metadata", [True, False])
def test_a_value_is_json_with_its_schema(ack: str, metadata: bool) -> None:
    """Its headers are those of the SEND, except the content-type."""
    world = make()
    client = world.client()
    subscribe(client, *(["metadata:true"] if metadata else []), ack=ack)
    put(world)
    (frame,) = messages(client)
    assert json.loads(frame.body) == SHOWN
    assert frame.headers[b"content-type"] == b"application/json"
    assert frame.headers[b"schema"] == b"e.Machine_v1 1.0"
    assert frame.headers[b"lot"] == b"7"
    assert (b"kind" in frame.headers) is metadata
    assert (b"ack" in frame.headers) is (ack == "client")


def test_the_order_of_fields_is_that_of_the_schema() -> None:
    """Equal values have equal texts."""
    world = make()
    client = world.client()
    subscribe(client)
    put(world)
    (frame,) = messages(client)
    assert frame.body == json.dumps(SHOWN, separators=(",", ":")).encode()


def test_personal_fields_need_the_right() -> None:
    """Without `pii = true` they are left out, at every depth."""
    world = make()
    anna, bert = world.client("anna"), world.client("bert")
    subscribe(anna)
    subscribe(bert)
    put(world)
    assert shown(anna) == [SHOWN]
    assert shown(bert) == [MASKED]


def test_a_policy_gives_and_takes_personal_fields() -> None:
    """The next value has what the rights in force allow."""
    world = make()
    client = world.client("bert")
    subscribe(client)
    put(world)
    assert shown(client) == [MASKED]
    for rights, expected in ((RIGHTS | {"pii": ["yes"]}, SHOWN), (RIGHTS, MASKED)):
        world.broker.replace_policy(policy(anna=RIGHTS, bert=rights))
        world.settle()
        put(world)
        assert shown(client) == [expected]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("credit", {"credit": "9007199254740993"}),
        ("price,at", {"price": "12.50", "at": "2026-11-23T12:00:00.000Z"}),
        ("faults.code", {"faults": [{"code": 1}, {"code": 2}]}),
        ("last.by,last.code", {"last": {"code": 3, "by": "Di"}}),
        ("last.code,last", {"last": {"code": 3, "by": "Di"}}),
        ("player", {"player": "Ann"}),
    ],
)
def test_fields_select(fields: str, expected: dict[str, Any]) -> None:
    """Paths lead through arrays and unions."""
    world = make()
    client = world.client()
    subscribe(client, f"fields:{fields}", glob="X/m.*")
    put(world)
    assert shown(client) == [expected]


def test_a_selected_field_that_is_personal_needs_the_right() -> None:
    """To select a field does not show it."""
    world = make()
    client = world.client("bert")
    subscribe(client, "fields:player,last.by", glob="X/m.*")
    put(world)
    assert shown(client) == [{"last": {}}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["fields:nowhere"], b"bad fields"),
        (["fields:faults.nowhere"], b"bad fields"),
        (["fields:credit.part"], b"bad fields"),
        (["fields:"], b"bad fields"),
        (["fields:credit,,at"], b"bad fields"),
        (["fields:faults[0].code"], b"bad fields"),
        (["fields:" + ",".join(f"f{n}" for n in range(33))], b"bad fields"),
        (["fields:" + "x" * 2000], b"fields too long"),
    ],
)
def test_wrong_fields_are_an_error(lines: list[str], message: bytes) -> None:
    """The SUBSCRIBE has no effect."""
    client = make().client()
    subscribe(client, *lines, "receipt:r", glob="X/m.*")
    (error,) = client.read()
    assert (error.command, error.headers[b"message"], error.headers[b"receipt-id"]) == (b"ERROR", message, b"r")


@pytest.mark.parametrize(
    ("head", "message"),
    [("accept-format:avro\n", b"bad accept-format"), ("fields:credit\n", b"bad fields")],
)
def test_headers_that_contradict_each_other_are_an_error(head: str, message: bytes) -> None:
    """Fields need JSON, and no other format is known."""
    client = make().client()
    client.write(f"SUBSCRIBE\n{head}id:s\ndestination:X/m.*\n\n\0".encode())
    (error,) = client.read()
    assert error.headers[b"message"] == message


def test_fields_of_topics_that_may_not_be_received_are_not_disclosed() -> None:
    """Only the form of the text is checked then."""
    world = World.make(schemas=SCHEMAS, anna={"send": ["X/**"], "receive": ["Y/**"]})
    client = world.client()
    subscribe(client, "fields:nowhere", "receipt:r", glob="X/m.*")
    assert client.read()[0].command == b"RECEIPT"


def test_an_unchecked_value_comes_as_it_was_sent() -> None:
    """No schema gives its bytes a meaning."""
    world = make()
    client = world.client()
    subscribe(client)
    put(world, "X/raw.1", b"hall")
    (frame,) = messages(client)
    assert (frame.body, frame.headers[b"content-type"]) == (b"hall", b"application/octet-stream")
    assert b"schema" not in frame.headers


def test_a_value_that_cannot_be_converted_is_null() -> None:
    """Its schema is gone, or it is too long; the next value that can be converted comes as JSON."""
    world = make(Limits(json_bytes_max=1024))
    client = world.client()
    subscribe(client)
    put(world, player="x" * 2000)
    (frame,) = messages(client)
    assert (frame.body, frame.headers[b"value-state"]) == (b"null", b"undecoded")
    put(world)
    assert shown(client) == [SHOWN]
    put(world)
    world.broker.replace_registry(
        load_registry({"registry.toml": b'[[rule]]\ndestination = "X/**"\nencoding = "none"\n'})
    )
    (frame,) = messages(client)
    assert (frame.body, frame.headers[b"value-state"]) == (b"null", b"undecoded")


def test_a_delete_has_no_body() -> None:
    """It looks like any other delete."""
    world = make()
    client = world.client()
    subscribe(client)
    put(world)
    assert len(messages(client)) == 1
    put(world, body=b"")
    (delete,) = messages(client)
    assert delete.body == b""
    assert b"schema" not in delete.headers


def test_changes_only_compares_what_is_sent() -> None:
    """With `fields`, a change elsewhere is not sent."""
    world = make()
    client = world.client()
    subscribe(client, "changes-only:true", "fields:credit", glob="X/m.*")
    put(world)
    assert shown(client) == [{"credit": "9007199254740993"}]
    put(world, price="13.00")
    assert shown(client) == []
    put(world, credit=5)
    assert shown(client) == [{"credit": 5}]


def test_it_goes_with_the_other_refinements() -> None:
    """A selector, an interval and markers work on JSON as on bodies as sent."""
    world = make()
    client = world.client()
    subscribe(client, "selector:credit > 5", "min-interval:1000", "markers:true", "eager:true", glob="X/m.*")
    put(world, credit=6)
    assert shown(client) == [SHOWN | {"credit": 6}]
    put(world, credit=7)
    assert shown(client) == []
    put(world, credit=5)
    (left,) = messages(client)
    assert (left.body, left.headers[b"kind"]) == (b"", b"left")
    world.now_s += 2
    put(world, credit=8)
    assert shown(client) == [SHOWN | {"credit": 8}]


def test_a_durable_subscription_takes_the_format_of_each_subscribe() -> None:
    """As with its other refinements, the newest SUBSCRIBE decides, after a restart of the broker too."""
    world = make()
    client = world.client(client_id="c")
    subscribe(client, "durable:true", ack="client")
    client.lose()
    put(world)
    world = world.restart()
    client = world.client(client_id="c")
    client.subscribe("X/**", durable=True)
    world.settle()
    assert [frame.body for frame in messages(client)] == [encode_value(TYPE, VALUE)]
    client.lose()
    client = world.client(client_id="c")
    subscribe(client, "durable:true", ack="client")
    assert shown(client) == [SHOWN]


def test_since_resumes_with_json() -> None:
    """A position does not depend on the format."""
    world = make()
    client = world.client()
    subscribe(client, "markers:true", "eager:true")
    position = client.read()[-1].headers[b"position"].decode()
    put(world)
    client.lose()
    back = world.client()
    subscribe(back, "markers:true", f"since:{position}")
    assert shown(back) == [SHOWN]


def test_a_value_is_converted_once_for_all() -> None:
    """Each pair of rights and fields has its own text."""
    world = make()
    values = world.broker._refinements.json_values  # what it keeps shows nowhere else
    clients = [world.client("anna", client_id=f"a{n}") for n in range(5)]
    clients += [world.client("bert", client_id=f"b{n}") for n in range(5)]
    for client in clients:
        subscribe(client)
    put(world)
    for client in clients:
        assert len(messages(client)) == 1
    assert values.conversions == 2


def test_a_broker_of_plain_subscribers_keeps_nothing() -> None:
    """A broker without JSON subscribers pays nothing."""
    world = make()
    values = world.broker._refinements.json_values  # what it keeps shows nowhere else
    plain = world.client()
    plain.subscribe("X/**", ack="auto")
    put(world)
    assert len(messages(plain)) == 1
    assert (values.kept_bytes, values.conversions) == (0, 0)


def test_what_is_kept_is_bounded() -> None:
    """It is at most the limit and one value."""
    world = make()
    publisher = world.client()
    for number in range(100):
        publisher.send(f"X/m.{number}", encode_value(TYPE, VALUE))
    world.settle()
    values = JsonValues(world.broker.registry, 65_536, kept_bytes_max=20_000)
    for topic in world.broker.store.topics.values():
        content = values.content(topic.change, False, ())
        assert content is not None
        assert json.loads(content.body) == MASKED
        assert values.kept_bytes < 25_000


def test_a_selected_record_may_hold_itself() -> None:
    """A path unrolls the type as far as it leads."""
    tree = {
        "type": "record",
        "name": "Tree_v1",
        "namespace": "e",
        "fields": [{"name": "leaf", "type": "double"}, {"name": "next", "type": ["null", "Tree_v1"]}],
    }
    text = json.dumps(tree).encode()
    of = parse_schema(read_source("schema", text)).type
    rules = b'[[rule]]\ndestination = "X/**"\nschema = "e.Tree_v1"\nencoding = "datum"\n'
    world = World.make(schemas={"registry.toml": rules, "e/Tree_v1/1.0.avsc": text}, anna=RIGHTS)
    client = world.client()
    subscribe(client, "fields:next.next.leaf")
    deep = {"leaf": 1.0, "next": {"leaf": 2.0, "next": {"leaf": 3.0, "next": {"leaf": 4.0, "next": None}}}}
    datum = encode_value(of, deep)
    assert datum.startswith(struct.pack("<d", 1.0))
    put(world, "X/t", datum)
    assert shown(client) == [{"next": {"next": {"leaf": 3.0}}}]
