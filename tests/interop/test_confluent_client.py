"""Confluent's own Python client against the running gateway: its registry client and its Avro serialisers, over mutual TLS."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from maxam.client import connect
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE_S

POLICY = """
[capabilities.all]
send = ["X/**"]
receive = ["X/**"]
[capabilities.none]
[[principals]]
name = "publisher"
fingerprints = ["{publisher}"]
capabilities = ["all"]
[[principals]]
name = "subscriber"
fingerprints = ["{subscriber}"]
capabilities = ["none"]
"""
DOOR: dict[str, Any] = {
    "type": "record",
    "name": "Door_v1",
    "namespace": "venue",
    "fields": [
        {"name": "open", "type": "boolean"},
        {"name": "since", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NEWER = DOOR | {"fields": [*DOOR["fields"], {"name": "by", "type": ["null", "string"], "default": None}]}
LAMP = {"type": "record", "name": "Lamp_v1", "namespace": "venue", "fields": [{"name": "on", "type": "boolean"}]}
SCHEMAS = {
    "registry.toml": '[[rule]]\ndestination = "X/*.Door"\nschema = "venue.Door_v1"\nencoding = "confluent"\n',
    "venue/Door_v1/1.0.avsc": json.dumps(DOOR),
    "venue/Door_v1/1.1.avsc": json.dumps(NEWER),
    "venue/Lamp_v1/1.0.avsc": json.dumps(LAMP),
}
TOPIC = "X/1.Door"
CONTEXT = SerializationContext(TOPIC, MessageField.VALUE)
STRATEGY = {"auto.register.schemas": False, "subject.name.strategy": record_subject_name_strategy}

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[GatewayProcess]:
    """Run a gateway whose doors are published in Confluent's encoding."""
    prints = json.loads((certificates / "fingerprints.json").read_text(encoding="utf-8"))
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder, certificates, POLICY.format(**prints), SCHEMAS) as process:
        yield process


def client_of(gateway: GatewayProcess, name: str) -> SchemaRegistryClient:
    """Return a registry client with the certificate of a principal."""
    folder = gateway.certificates
    return SchemaRegistryClient(
        {
            "url": f"https://127.0.0.1:{gateway.admin_port}",
            "ssl.ca.location": f"{folder}/ca.pem",
            "ssl.certificate.location": f"{folder}/{name}.pem",
            "ssl.key.location": f"{folder}/{name}.key",
        }
    )


@pytest.fixture
def registry(gateway: GatewayProcess) -> Iterator[SchemaRegistryClient]:
    """Return the client of a principal that may neither send nor receive: the registry is open to it."""
    with client_of(gateway, "subscriber") as client:
        yield client


def exchange(gateway: GatewayProcess, *bodies: bytes) -> tuple[list[tuple[str, str]], list[bytes]]:
    """Send bodies to TOPIC, one after the other, and give their outcomes and the MESSAGEs of those accepted."""
    folder = gateway.certificates
    outcomes: list[tuple[str, str]] = []
    received: list[bytes] = []

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with (
                connect(
                    "127.0.0.1",
                    gateway.port,
                    certificate=folder / "publisher.pem",
                    key=folder / "publisher.key",
                    ca=folder / "ca.pem",
                ) as client,
                client.subscribe(TOPIC, eager=False) as subscription,
            ):
                for body in bodies:
                    receipt = await client.send(TOPIC, body)
                    outcomes.append((receipt.disposition, receipt.result))
                    if receipt.accepted:
                        received.append((await anext(subscription)).body)

    trio.run(main)
    return outcomes, received


def test_values_go_round_through_confluents_serialisers(
    gateway: GatewayProcess, registry: SchemaRegistryClient
) -> None:
    """A value of its serialiser, with the newest version and with one looked up, is accepted and read by its deserialiser."""
    newest = AvroSerializer(
        registry, None, conf=STRATEGY | {"use.latest.version": True, "subject.name.strategy": _door}
    )
    older = AvroSerializer(registry, json.dumps(DOOR), conf=STRATEGY)
    values = [{"open": True, "since": 1_700_000_000_000, "by": "a"}, {"open": False, "since": 1_700_000_000_001}]
    bodies = [newest(values[0], CONTEXT), older(values[1], CONTEXT)]
    assert all(bodies)
    outcomes, received = exchange(gateway, *[body for body in bodies if body])
    assert outcomes == [("accepted", ""), ("accepted", "")]
    assert received == bodies
    read = AvroDeserializer(registry, conf={"use.latest.version": False, "subject.name.strategy": _door})
    told = [read(body, CONTEXT) for body in received]
    assert [{**value, "since": round(value["since"].timestamp() * 1000)} for value in told] == values
    read_as_newest = AvroDeserializer(registry, json.dumps(NEWER))
    assert read_as_newest(received[1], CONTEXT)["by"] is None


def _door(_context: SerializationContext, _name: str | None) -> str:
    return "venue.Door_v1"


def test_a_body_of_another_subject_is_rejected(gateway: GatewayProcess, registry: SchemaRegistryClient) -> None:
    """A value of the serialiser for another type, and an unknown id, are rejected with results of their own."""
    lamp = AvroSerializer(registry, json.dumps(LAMP), conf=STRATEGY)({"on": True}, CONTEXT)
    assert lamp is not None
    outcomes, received = exchange(gateway, lamp, b"\0\0\0\0\1\0", b"\1")
    assert outcomes == [
        ("rejected-invalid", "schema-id-of-other-type"),
        ("rejected-invalid", "unknown-schema-id"),
        ("rejected-invalid", "bad-confluent"),
    ]
    assert received == []


def test_the_registry_client_reads_everything(registry: SchemaRegistryClient) -> None:
    """Each reading call of the stock client gives what the folder holds."""
    assert registry.get_subjects() == ["venue.Door_v1", "venue.Lamp_v1"]
    assert registry.get_versions("venue.Door_v1") == [1, 2]
    latest = registry.get_latest_version("venue.Door_v1")
    assert (latest.subject, latest.version) == ("venue.Door_v1", 2)
    assert latest.schema_id is not None
    text = latest.schema.schema_str
    assert text is not None
    assert json.loads(text) == NEWER
    assert registry.get_version("venue.Door_v1", 1).schema_id != latest.schema_id
    assert registry.get_schema(latest.schema_id).schema_str == text
    assert registry.get_schema_types() == ["AVRO"]
    assert registry.get_subjects_by_schema_id(latest.schema_id) == ["venue.Door_v1"]
    assert [(one.subject, one.version) for one in registry.get_schema_versions(latest.schema_id)] == [
        ("venue.Door_v1", 2)
    ]
    assert registry.lookup_schema("venue.Door_v1", Schema(json.dumps(DOOR), "AVRO")).version == 1
    assert registry.get_compatibility("venue.Door_v1") == "FULL_TRANSITIVE"
    assert registry.get_global_mode() == "READONLY"


def test_the_registry_client_tests_compatibility(registry: SchemaRegistryClient) -> None:
    """A schema that could be the next version is compatible, one that older readers cannot use is not. The client writes nothing for it."""
    next_minor = NEWER | {"fields": [*NEWER["fields"], {"name": "why", "type": ["null", "string"], "default": None}]}
    breaking = DOOR | {"fields": DOOR["fields"][:1]}
    for schema, compatible in ((next_minor, True), (breaking, False)):
        given = Schema(json.dumps(schema), "AVRO")
        assert registry.test_compatibility("venue.Door_v1", given) is compatible
        assert registry.test_compatibility("venue.Door_v1", given, 1, verbose=True) is compatible
        assert registry.test_compatibility_all_versions("venue.Door_v1", given) is compatible


def test_errors_and_writes_are_what_the_client_understands(registry: SchemaRegistryClient) -> None:
    """Unknown names have Confluent's numbers; whatever would write is refused at once."""
    door = Schema(json.dumps(DOOR), "AVRO")
    calls: list[tuple[Any, int, int]] = [
        (lambda: registry.get_latest_version("venue.X_v1"), 404, 40401),
        (lambda: registry.get_version("venue.Door_v1", 9), 404, 40402),
        (lambda: registry.get_schema(1), 404, 40403),
        (lambda: registry.lookup_schema("venue.Lamp_v1", door), 404, 40403),
        (lambda: registry.test_compatibility("venue.X_v1", door), 404, 40401),
        (lambda: registry.register_schema("venue.New_v1", door), 422, 42205),
        (lambda: registry.delete_subject("venue.Door_v1"), 422, 42205),
        (lambda: registry.set_compatibility("venue.Door_v1", "NONE"), 422, 42205),
    ]
    for call, status, code in calls:
        with pytest.raises(SchemaRegistryError) as caught:
            call()
        assert (caught.value.http_status_code, caught.value.error_code) == (status, code)


def test_a_certificate_that_the_policy_does_not_name_reads_nothing(gateway: GatewayProcess) -> None:
    """The registry is for principals: an unknown certificate gets 403, which the client reports with our reason."""
    with client_of(gateway, "operator") as stranger, pytest.raises(SchemaRegistryError) as caught:
        stranger.get_subjects()
    assert (caught.value.http_status_code, caught.value.error_code) == (403, 403)
    assert "this needs any principal" in caught.value.error_message
