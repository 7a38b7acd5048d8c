"""The encoding `confluent`: a zero, the 4 bytes of a schema's id, the datum."""

import json
from typing import Any

import pytest

from maxam.avro.registry import Registry, load_registry
from maxam.avro.rule import CONFLUENT, ENCODINGS, ENVELOPE, SchemaVersion, schema_id_of
from maxam.errors import SchemaError
from maxam.records import Rejection, Validation

TOPIC = b"X/A.1.Thing"
VALUE = b"\x02\x04hi"  # 1, "hi"


def thing(*more: Any, **extra: Any) -> bytes:
    """Write `e.Thing_v1`."""
    fields = [{"name": "number", "type": "int"}, {"name": "text", "type": "string"}, *more]
    return json.dumps({"type": "record", "namespace": "e", "name": "Thing_v1", "fields": fields} | extra).encode()


def registry(files: dict[str, bytes] | None = None, encoding: str = CONFLUENT) -> Registry:
    """Load two minors of a thing, and another type."""
    other = {"type": "enum", "namespace": "e", "name": "Other_v1", "symbols": ["A"]}
    texts = {
        "registry.toml": f'[[rule]]\ndestination = "X/A.*"\nencoding = "{encoding}"\nschema = "e.Thing_v1"\n'.encode(),
        "e/Thing_v1/1.0.avsc": thing(),
        "e/Thing_v1/1.1.avsc": thing({"name": "more", "type": ["null", "int"], "default": None}),
        "e/Other_v1/1.0.avsc": json.dumps(other).encode(),
    }
    return load_registry(texts | (files or {}))


def version(minor: str, type_name: str = "e.Thing_v1") -> SchemaVersion:
    """Give one of the schemas."""
    found = registry().schema(type_name, minor)
    assert found is not None
    return found


def judged(body: bytes, loaded: Registry | None = None) -> Validation | Rejection:
    """Validator a body as one of TOPIC."""
    rule = (loaded or registry()).rule_for(TOPIC.decode())
    assert rule is not None
    return rule.validate(TOPIC, (), body)


def rejected(body: bytes) -> tuple[str, str]:
    """Validator a body that is rejected."""
    rejection = judged(body)
    assert isinstance(rejection, Rejection)
    return rejection.result, rejection.reason


def test_an_id_is_the_low_31_bits_of_the_texts_sha_256() -> None:
    """The id depends on the text alone and fits a signed number of 32 bits."""
    assert schema_id_of("0" * 56 + "ffffffff") == 0x7FFFFFFF
    assert schema_id_of("f" * 56 + "80000001") == 1
    one = version("1.0")
    assert one.schema_id == int(one.text_sha256, 16) % 2**31
    assert [found.path for found in registry().by_id(one.schema_id)] == ["e/Thing_v1/1.0.avsc"]
    assert [registry().by_id(unknown) for unknown in (one.schema_id ^ 1, -1, 2**31, 2**32)] == [[], [], [], []]
    assert [found.path for found in registry().by_text(one.text_sha256)] == ["e/Thing_v1/1.0.avsc"]
    assert registry().by_text("0" + one.text_sha256[1:]) == []


def test_the_head_of_a_body_names_its_schema() -> None:
    """In each encoding the head is what stands before the datum; the datum of an envelope is not at its end."""
    one = version("1.0")
    heads = {encoding: one.head(encoding) for encoding in ENCODINGS if encoding != ENVELOPE}
    assert heads == {
        "datum": b"",
        "single-object": b"\xc3\x01" + one.crc_64,
        "confluent": b"\x00" + one.schema_id.to_bytes(4, "big"),
        "none": b"",
    }


def test_a_body_is_judged_by_the_schema_of_its_id() -> None:
    """Each version judges the bodies with its id. The datum comes after five bytes, and the validation is shared."""
    for minor, datum in (("1.0", VALUE), ("1.1", VALUE + b"\x00")):
        loaded = registry()
        body = version(minor).head(CONFLUENT) + datum
        validation = judged(body, loaded)
        assert isinstance(validation, Validation)
        assert (validation.encoding, validation.schema, validation.schema_version) == (CONFLUENT, "e.Thing_v1", minor)
        assert (validation.value_offset, validation.value_length) == (5, -1)
        assert validation.schema_fingerprint == version(minor).crc_64
        assert judged(body, loaded) is validation
        rule = loaded.rule_for(TOPIC.decode())
        assert rule is not None
        assert (
            rule.validate(TOPIC, ((b"schema-version", b"9.9"),), body) is validation
        )  # not read, as the body has the id
    result, reason = rejected(version("1.1").head(CONFLUENT) + VALUE)
    assert result == "schema-mismatch"
    assert (reason.startswith("e.Thing_v1 1.1: more: "), reason.endswith(" at byte 9")) == (True, True)


@pytest.mark.parametrize("body", [b"\0", b"\0\0\0\0", b"\x01\0\0\0\0\0", VALUE, b"\xc3\x01" + bytes(9)])
def test_a_body_without_marker_and_id_is_refused(body: bytes) -> None:
    """The reason has the expected form and the first bytes of the body."""
    result, reason = rejected(body)
    assert result == "bad-confluent"
    assert reason.endswith(f" found {body[:5].hex(' ')}")


def test_an_id_must_be_of_the_rules_type() -> None:
    """An unknown id and one of another type have results of their own, and the reason lists the ids that the rule knows."""
    known = f"{version('1.1').schema_id} (1.1), {version('1.0').schema_id} (1.0)"
    assert rejected(b"\0\xff\xff\xff\xff" + VALUE) == (
        "unknown-schema-id",
        f"schema id 4294967295; e.Thing_v1 knows {known}",
    )
    other = version("1.0", "e.Other_v1")
    assert rejected(other.head(CONFLUENT) + b"\0") == (
        "schema-id-of-other-type",
        f"schema id {other.schema_id} is of e.Other_v1 1.0, expected e.Thing_v1: {known}",
    )


def test_minors_of_one_text_share_an_id_and_the_newest_judges() -> None:
    """A minor that changes nothing has the id of the one before, as both are one text."""
    loaded = registry({"e/Thing_v1/1.1.avsc": thing()})
    assert [found.minor for found in loaded.by_id(version("1.0").schema_id)] == ["1.1", "1.0"]
    validation = judged(version("1.0").head(CONFLUENT) + VALUE, loaded)
    assert isinstance(validation, Validation)
    assert validation.schema_version == "1.1"


def test_two_texts_of_one_id_are_refused() -> None:
    """Schemas that bodies cannot distinguish do not load. The error has both files and the remedy."""

    def told(doc: str) -> bytes:  # a search found two docs that give one id
        return json.dumps({"type": "enum", "namespace": "e", "name": "A_v1", "doc": doc, "symbols": ["A"]}).encode()

    with pytest.raises(SchemaError, match=r"^e/A_v1/1\.0\.avsc: .*\b1304465416 .* e/A_v1/1\.1\.avsc"):
        registry({"e/A_v1/1.0.avsc": told("8382"), "e/A_v1/1.1.avsc": told("103849")})


def test_an_envelope_is_not_judged_by_an_id() -> None:
    """A fingerprint item of 4 bytes is unknown, though a schema has this id."""
    from tests.unit.avro.test_rule import envelope

    for key in (version("1.0").schema_id_bytes, version("1.0", "e.Other_v1").schema_id_bytes):
        rejection = judged(envelope((1, VALUE), (2, key)), registry(encoding=ENVELOPE))
        assert isinstance(rejection, Rejection)
        assert rejection.result == "unknown-fingerprint"
