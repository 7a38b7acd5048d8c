"""Judging bodies: the three encodings, schema versions, every rejection with its code."""

import io
import json
import re
from typing import Any

import fastavro
import pytest

from maxam.avro.envelope import ENVELOPE_TEXT
from maxam.avro.registry import Registry, load_registry
from maxam.avro.rule import REASON_CHARACTERS_MAX
from maxam.errors import SchemaError
from maxam.records import UNJUDGED, Headers, Rejection, Validation

TOPIC = b"X/A.1.Thing"
VALUE = b"\x02\x04hi"  # 1, "hi"
NEWER = VALUE + b"\x00"


def thing(*more: Any) -> bytes:
    """Write `e.Thing_v1`."""
    fields = [{"name": "number", "type": "int"}, {"name": "text", "type": "string"}, *more]
    return json.dumps({"type": "record", "namespace": "e", "name": "Thing_v1", "fields": fields}).encode()


def registry(encoding: str, require_version: bool = False) -> Registry:
    """Load two minors of a thing, and another type."""
    schema = "" if encoding == "none" else 'schema = "e.Thing_v1"'
    required = "require_version = true" if require_version else ""
    rule = f'[[rule]]\ndestination = "X/A.*"\nencoding = "{encoding}"\n{schema}\n{required}\n'
    more = {"name": "more", "type": ["null", "int"], "default": None}
    other = {"type": "enum", "namespace": "e", "name": "Other_v1", "symbols": ["A"]}
    return load_registry(
        {
            "registry.toml": rule.encode(),
            "e/Thing_v1/1.0.avsc": thing(),
            "e/Thing_v1/1.1.avsc": thing(more),
            "e/Other_v1/1.0.avsc": json.dumps(other).encode(),
        }
    )


def judged(encoding: str, body: bytes, headers: Headers = (), **settings: bool) -> Validation | Rejection:
    """Validator a body as one of TOPIC."""
    rule = registry(encoding, **settings).rule_for(TOPIC.decode())
    assert rule is not None
    return rule.validate(TOPIC, headers, body)


def accepted(encoding: str, body: bytes, headers: Headers = (), **settings: bool) -> Validation:
    """Validator a body that is accepted."""
    validation = judged(encoding, body, headers, **settings)
    assert isinstance(validation, Validation), validation.reason
    return validation


def rejected(encoding: str, body: bytes, headers: Headers = (), **settings: bool) -> tuple[str, str]:
    """Validator a body that is rejected."""
    rejection = judged(encoding, body, headers, **settings)
    assert isinstance(rejection, Rejection)
    assert rejection.reason.isprintable()
    assert len(rejection.reason) <= REASON_CHARACTERS_MAX
    return rejection.result, rejection.reason


def fingerprint(minor: str, type_name: str = "e.Thing_v1", sha: bool = False) -> bytes:
    """Give a fingerprint of one of the schemas."""
    version = registry("datum").schema(type_name, minor)
    assert version is not None
    return version.sha_256 if sha else version.crc_64


def envelope(*items: tuple[int, bytes]) -> bytes:
    """Write an envelope as fastavro does."""
    stream = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(ENVELOPE_TEXT))
    fastavro.schemaless_writer(stream, schema, {"content": [{"key": key, "value": value} for key, value in items]})
    return stream.getvalue()


V10: Headers = ((b"other", b"x"), (b"schema-version", b"1.0"))
V11: Headers = ((b"schema-version", b"1.1"),)


def test_datum_is_judged_by_the_newest_minor_that_accepts_it() -> None:
    """Without a version the newest minor judges first, then older ones; the one that judged is reported."""
    validation = accepted("datum", NEWER)
    assert (validation.schema, validation.schema_version) == ("e.Thing_v1", "1.1")
    assert (validation.encoding, validation.value_offset, validation.value_length) == ("datum", 0, -1)
    assert validation.schema_fingerprint == fingerprint("1.1")
    assert accepted("datum", VALUE).schema_version == "1.0"


def test_a_header_that_contradicts_the_body_is_not_read() -> None:
    """Bodies that identify their schema are judged by that, and not by `schema-version`; an envelope without fingerprint by the header."""
    named = fingerprint("1.0")
    for headers in (V11, ((b"schema-version", b"no version"),)):
        assert accepted("single-object", b"\xc3\x01" + named + VALUE, headers).schema_version == "1.0"
        assert accepted("envelope", envelope((1, VALUE), (2, named)), headers).schema_version == "1.0"
        assert rejected("envelope", envelope((1, VALUE)), headers)[0] in {"schema-mismatch", "unknown-schema-version"}


def test_judgements_of_a_fixed_place_are_shared() -> None:
    """Two bodies of one minor share one validation."""
    for encoding, body in (
        ("datum", VALUE),
        ("single-object", b"\xc3\x01" + fingerprint("1.0") + VALUE),
        ("none", b"?"),
    ):
        rule = registry(encoding).rules[0]
        assert rule.validate(TOPIC, (), body) is rule.validate(TOPIC, (), body)


def test_datum_with_a_version_is_judged_by_that_minor_alone() -> None:
    """`schema-version` decides which minor judges; an unknown one is refused with a list of the known ones."""
    assert accepted("datum", VALUE, V10).schema_version == "1.0"
    result, reason = rejected("datum", VALUE, V11)
    assert result == "schema-mismatch"
    assert (reason.startswith("e.Thing_v1 1.1: more: "), reason.endswith(" at byte 4")) == (True, True)
    assert rejected("datum", NEWER, V10)[0] == "schema-mismatch"
    for unknown in (b"2.0", b"1.0\n", b"1.00", b"", b"\xff"):
        result, reason = rejected("datum", VALUE, ((b"schema-version", unknown),))
        assert result == "unknown-schema-version"
        assert "known: 1.1, 1.0" in reason


def test_a_rule_may_require_a_version() -> None:
    """With `require_version` a datum without one is refused, naming the known ones."""
    result, reason = rejected("datum", VALUE, require_version=True)
    assert result == "schema-version-required"
    assert (reason.startswith("e.Thing_v1 "), reason.endswith("known: 1.1, 1.0")) == (True, True)
    assert accepted("datum", VALUE, V10, require_version=True).schema_version == "1.0"


def test_a_mismatch_tells_field_expected_found_and_schema() -> None:
    """A body that no minor accepts is refused with field path, expected, found, schema name and version."""
    rejection = rejection_of("datum", b"\x02\x09hi")
    assert rejection.result == "schema-mismatch"
    assert (rejection.schema, rejection.schema_version) == ("e.Thing_v1", "1.1")
    assert (rejection.path, rejection.expected, rejection.offset) == ("text", "string", 1)
    assert re.match(r"e\.Thing_v1 1\.1: text: .*\bstring\b.* -5 .*\bbyte 1\b.* 1\.0$", rejection.reason)


def test_single_object_names_its_schema() -> None:
    """A single-object body is judged by the schema of its fingerprint, and the datum lies behind ten bytes."""
    validation = accepted("single-object", b"\xc3\x01" + fingerprint("1.0") + VALUE)
    assert (validation.schema_version, validation.value_offset, validation.value_length) == ("1.0", 10, -1)
    assert validation.encoding == "single-object"
    result, reason = rejected("single-object", b"\xc3\x01" + fingerprint("1.1") + VALUE)
    assert (result, reason[:36]) == ("schema-mismatch", "e.Thing_v1 1.1: more: expected union")
    assert "at byte 14" in reason


@pytest.mark.parametrize(
    "body", [b"\xc3", b"\xc3\x01", b"\xc3\x01\x00\x00\x00\x00\x00\x00\x00", b"\xc3\x02" + b"\x00" * 9, VALUE]
)
def test_a_bad_single_object_is_refused(body: bytes) -> None:
    """A body without marker and whole fingerprint is no single object."""
    result, reason = rejected("single-object", body)
    assert result == "bad-single-object"
    assert reason.endswith(f" found {body[:10].hex(' ')}")


def test_a_fingerprint_must_be_of_the_rules_type() -> None:
    """An unknown fingerprint and one of another type are refused, naming those that the rule knows."""
    known = f"{fingerprint('1.1').hex()} (1.1), {fingerprint('1.0').hex()} (1.0)"
    result, reason = rejected("single-object", b"\xc3\x01" + b"12345678" + VALUE)
    assert (result, reason) == ("unknown-fingerprint", f"fingerprint 3132333435363738; e.Thing_v1 knows {known}")
    other = fingerprint("1.0", "e.Other_v1")
    result, reason = rejected("single-object", b"\xc3\x01" + other + b"\x00")
    assert result == "fingerprint-of-other-type"
    assert reason == f"fingerprint {other.hex()} is of e.Other_v1 1.0, expected e.Thing_v1: {known}"


def test_envelope_is_judged_by_its_fingerprint() -> None:
    """A fingerprint item of 8 or 32 bytes decides which minor judges the body item."""
    for sha in (False, True):
        validation = accepted("envelope", envelope((2, fingerprint("1.0", sha=sha)), (1, VALUE)), V11)
        assert validation.schema_version == "1.0"
        assert validation.schema_fingerprint == fingerprint("1.0")
        assert validation.encoding == "envelope"
        assert not validation.tombstone
    body = envelope((1, VALUE), (3, TOPIC), (99, b"kept"))
    validation = accepted("envelope", body)
    assert body[validation.value_offset :][: validation.value_length] == VALUE


def test_envelope_without_fingerprint_is_judged_as_datum() -> None:
    """Without fingerprint item the datum's rules hold: version header, newest first, version required."""
    assert accepted("envelope", envelope((1, VALUE))).schema_version == "1.0"
    assert accepted("envelope", envelope((1, NEWER))).schema_version == "1.1"
    assert rejected("envelope", envelope((1, VALUE)), V11)[0] == "schema-mismatch"
    assert rejected("envelope", envelope((1, VALUE)), require_version=True)[0] == "schema-version-required"
    assert accepted("envelope", envelope((1, VALUE)), V10, require_version=True).schema_version == "1.0"
    whole = envelope((1, VALUE), (2, fingerprint("1.0")))
    assert accepted("envelope", whole, require_version=True).schema_version == "1.0"


def test_an_envelope_deletes_by_tombstone() -> None:
    """A tombstone item makes it a deletion, with or without a body, which must still be a value."""
    validation = accepted("envelope", envelope((4, b""), (3, TOPIC)), require_version=True)
    assert (validation.tombstone, validation.encoding, validation.schema) == (True, "envelope", "")
    assert (validation.value_offset, validation.value_length) == (0, 0)
    assert accepted("envelope", envelope((4, b""), (1, VALUE))).tombstone
    assert accepted("envelope", envelope((4, b"why"), (2, fingerprint("1.0")))).schema_version == "1.0"
    assert rejected("envelope", envelope((4, b""), (1, b"?")))[0] == "schema-mismatch"


@pytest.mark.parametrize(
    ("items", "result", "reason"),
    [
        (
            [(1, b"\x02\x04h")],
            "schema-mismatch",
            "e.Thing_v1 1.1: text: expected string, found length 2 with 1 byte left",
        ),
        ([], "envelope-empty", "the envelope has neither a body nor a tombstone item"),
        ([(3, TOPIC), (77, b"")], "envelope-empty", "the envelope has neither a body nor a tombstone item"),
        ([(1, VALUE), (1, VALUE)], "envelope-duplicate-item", "the envelope has more than one body item"),
        ([(1, VALUE), (3, b"X/B")], "envelope-topic-mismatch", "the envelope's topic is 'X/B', not the destination"),
        ([(1, VALUE), (3, b"\xff\n")], "envelope-topic-mismatch", r"the envelope's topic is '\\xff\n', not the dest"),
        ([(1, VALUE), (2, b"12345678")], "unknown-fingerprint", "fingerprint 3132333435363738; e.Thing_v1 knows "),
        ([(1, VALUE), (2, b"")], "unknown-fingerprint", "fingerprint of no bytes; e.Thing_v1 knows "),
        ([(4, b""), (2, b"x" * 9999)], "unknown-fingerprint", "fingerprint 7878"),
    ],
)
def test_each_fault_of_an_envelope_has_its_result(items: list[tuple[int, bytes]], result: str, reason: str) -> None:
    """Each rejection of an envelope has its own code and one printable line."""
    found, text = rejected("envelope", envelope(*items))
    assert found == result
    assert text.startswith(reason)


def test_what_is_no_envelope_is_refused() -> None:
    """A bare datum where an envelope is expected is refused with the place."""
    result, reason = rejected("envelope", b"\x02\x04hi!")
    assert result == "bad-envelope"
    assert reason.startswith("GenericEnvelope: content[0].value: expected bytes")


def test_an_envelope_of_another_type_is_refused() -> None:
    """A fingerprint item of a type that the rule is not for is refused as such."""
    body = envelope((1, b"\x00"), (2, fingerprint("1.0", "e.Other_v1", sha=True)))
    result, reason = rejected("envelope", body)
    assert result == "fingerprint-of-other-type"
    assert "is of e.Other_v1 1.0, expected e.Thing_v1" in reason


def test_without_a_check_everything_is_accepted() -> None:
    """Encoding `none` judges nothing."""
    assert accepted("none", b"anything") is UNJUDGED


def test_a_reason_is_one_printable_line_of_bounded_length() -> None:
    """The reason stays one short printable line for any bytes in a version or a topic."""
    for text in (b"\x00\n\r\x7f\x1b[31m", "\u2028\u202e".encode(), b"x" * 5000, b"\xed\xa0\x80"):
        assert rejected("datum", VALUE, ((b"schema-version", text),))[0] == "unknown-schema-version"
        assert rejected("envelope", envelope((1, VALUE), (3, text)))[0] == "envelope-topic-mismatch"


def rejection_of(encoding: str, body: bytes, headers: Headers = (), **settings: bool) -> Rejection:
    """Validator a body that is rejected, and return all fields of the rejection."""
    rejection = judged(encoding, body, headers, **settings)
    assert isinstance(rejection, Rejection)
    return rejection


HEAD = b"\xc3\x01"


@pytest.mark.parametrize(
    ("encoding", "body", "headers", "told"),
    [
        ("datum", b"\x02\x09hi", (), ("schema-mismatch", "1.1", "text", "string", "length -5 with 2 bytes left", 1, -1, 0)),
        ("datum", VALUE, ((b"schema-version", b"9"),), ("unknown-schema-version", "", "", "schema-version 1.1, 1.0", "'9'", -1, -1, 0)),
        ("single-object", VALUE, (), ("bad-single-object", "", "", "C3 01 and a fingerprint of 8 bytes", "02 04 68 69", 0, -1, 0)),
        ("single-object", HEAD + b"12345678", (), ("unknown-fingerprint", "", "", None, "3132333435363738", 2, -1, 0)),
        ("single-object", HEAD + fingerprint("1.0") + b"\x02\x08a", (), ("schema-mismatch", "1.0", "text", "string", None, 11, -1, 0)),
        ("single-object", HEAD + fingerprint("1.0", "e.Other_v1"), (), ("fingerprint-of-other-type", "", "", None, None, 2, -1, 0)),
        ("envelope", b"\x02\x04", (), ("bad-envelope", "", "content[0].value", "bytes's length", "the end of the body", 2, -1, 0)),
        ("envelope", envelope((9, b"?"), (1, b"\x02\x08a")), (), ("schema-mismatch", "1.1", "text", "string", None, 7, 1, 1)),
        ("envelope", envelope((1, VALUE), (2, b"12345678")), (), ("unknown-fingerprint", "", "", None, "3132333435363738", 9, 1, 2)),
        ("envelope", envelope((1, VALUE), (1, VALUE)), (), ("envelope-duplicate-item", "", "", "one body item", "another", 9, 1, 1)),
        ("envelope", envelope((3, b"X/B"), (1, VALUE)), (), ("envelope-topic-mismatch", "", "", repr(TOPIC.decode()), "'X/B'", 3, 0, 3)),
        ("envelope", envelope((9, b"")), (), ("envelope-empty", "", "", "an item of key 1 or 4", "neither", -1, -1, 0)),
    ],
)  # fmt: skip
def test_each_rejection_tells_where_what_was_expected_and_what_was_found(
    encoding: str, body: bytes, headers: Headers, told: tuple[Any, ...]
) -> None:
    """Every code comes with type, version, path, expected, found, byte and item as values; None here means any text."""
    found = rejection_of(encoding, body, headers)
    values = (
        found.result,
        found.schema_version,
        found.path,
        found.expected,
        found.found,
        found.offset,
        found.item,
        found.item_key,
    )
    assert [(a, b) for a, b in zip(values, told, strict=True) if b is not None and a != b] == []
    assert found.schema == "e.Thing_v1"
    assert found.expected
    assert found.found
    if found.offset > 0 and found.result in ("schema-mismatch", "bad-envelope"):
        assert f"at byte {found.offset}" in found.reason
    if found.item >= 0:
        assert f"item {found.item}" in found.reason
        assert f"key {found.item_key}" in found.reason


def test_a_fingerprint_that_is_nearly_right_is_told_so() -> None:
    """Bytes in reverse order, and a length that no fingerprint has, are named as the mistake that they are."""
    reverse = rejection_of("single-object", HEAD + fingerprint("1.0")[::-1] + VALUE)
    assert reverse.result == "unknown-fingerprint"
    assert "reverse order" in reverse.reason
    odd = rejection_of("envelope", envelope((2, b"12345"), (1, VALUE)))
    assert "5 bytes" in odd.reason
    assert "(item 0, key 2)" in odd.reason


def test_many_known_versions_are_summed_up() -> None:
    """A reason lists the newest versions and the number of others, and keeps what matters within its length."""
    minors = {f"e/Thing_v1/1.{minor}.avsc": thing() for minor in range(30)}
    toml = b'[[rule]]\ndestination = "X/**"\nschema = "e.Thing_v1"\nencoding = "datum"\n'
    rule = load_registry({"registry.toml": toml} | minors).rules[0]
    rejection = rule.validate(TOPIC, (), b"\x02")
    assert isinstance(rejection, Rejection)
    assert rejection.reason.startswith("e.Thing_v1 1.29: text: ")
    assert rejection.reason.endswith(" 1.28, 1.27, 1.26, 1.25 and 25 more")


def shadowed(encoding: str = "datum") -> Registry:
    """Load a rule that tries a candidate."""
    rule = f'[[rule]]\ndestination = "X/**"\nschema = "e.Thing_v1"\nencoding = "{encoding}"\nshadow = "1.2"\n'
    more = {"name": "more", "type": ["null", "int"], "default": None}
    files = {
        "registry.toml": rule.encode(),
        "e/Thing_v1/1.0.avsc": thing(),
        "e/Thing_v1/1.1.avsc": thing(more),
        "e/Thing_v1/1.2.candidate.avsc": thing(more, more | {"name": "again"}),
    }
    return load_registry(files)


def test_a_candidate_judges_nothing() -> None:
    """A body that only the candidate accepts is refused, and the reason is that the candidate is only tried."""
    registry = shadowed()
    rule = registry.rules[0]
    newest = VALUE + b"\x00\x00"
    assert rule.minors == ["1.1", "1.0"]
    assert [version.minor for version in registry.versions("e.Thing_v1")] == ["1.1", "1.0"]
    (candidate,) = registry.candidates("e.Thing_v1")
    assert rule.candidate is candidate
    assert registry.schema("e.Thing_v1", "1.2") is None
    assert registry.by_fingerprint(candidate.crc_64) == registry.by_fingerprint(candidate.sha_256) == []
    assert candidate.text_sha256 not in dict(registry.texts())
    assert b"1.2" not in registry.lock()
    assert isinstance(rule.validate(TOPIC, (), newest), Rejection)
    named = rule.validate(TOPIC, ((b"schema-version", b"1.2"),), newest)
    single = shadowed("single-object").rules[0].validate(TOPIC, (), HEAD + candidate.crc_64 + newest)
    confluent = shadowed("confluent").rules[0].validate(TOPIC, (), candidate.head("confluent") + newest)
    for rejection, result in (
        (named, "unknown-schema-version"),
        (single, "unknown-fingerprint"),
        (confluent, "unknown-schema-id"),
    ):
        assert isinstance(rejection, Rejection)
        assert rejection.result == result
        assert "candidate" in rejection.reason
    assert rule.shadow is not None
    assert isinstance(rule.shadow.validate(TOPIC, (), newest), Validation)


def test_a_released_version_can_be_tried_too() -> None:
    """Then it does not judge under that rule, and does under every other."""
    toml = b"""
[[rule]]
destination = "X/A.*"
schema = "e.Thing_v1"
encoding = "datum"
shadow = "1.1"
[[rule]]
destination = "X/**"
schema = "e.Thing_v1"
encoding = "datum"
"""
    more = {"name": "more", "type": ["null", "int"], "default": None}
    files = {"registry.toml": toml, "e/Thing_v1/1.0.avsc": thing(), "e/Thing_v1/1.1.avsc": thing(more)}
    tried, other = load_registry(files).rules
    assert (tried.minors, other.minors) == (["1.0"], ["1.1", "1.0"])
    assert isinstance(tried.validate(TOPIC, (), NEWER), Rejection)
    assert isinstance(other.validate(TOPIC, (), NEWER), Validation)


@pytest.mark.parametrize(
    ("toml", "files", "error"),
    [
        ('shadow = "1.9"', {}, r"rule\[0\]\.shadow: no version '1\.9' of the rule's type, known: 1\.1, 1\.0\. Add a new one"),
        ("shadow = 1.1", {}, r"rule\[0\]\.shadow: expected text, found 1\.1"),
        ('shadow = "1.0"', {"e/Thing_v1/1.1.avsc": None}, r"e\.Thing_v1 has no other version than 1\.0, so none would judge"),
        ('store_rejected_bodies = "no"', {}, r"rule\[0\]\.store_rejected_bodies: expected true or false"),
        ("", {"e/Thing_v1/1.1.candidate.avsc": thing()}, r"1\.1\.candidate\.avsc: e\.Thing_v1 1\.1 is there as e/Thing_v1/1\.1\.avsc too"),
        ("", {"e/Thing_v1/x.candidate.avsc": thing()}, r"x\.candidate\.avsc: expected"),
        ("", {"e/Thing_v1/1.2.candidate.avsc": b"{"}, r"1\.2\.candidate\.avsc:1: "),
    ],
)  # fmt: skip
def test_mistakes_of_candidates_are_told(toml: str, files: dict[str, bytes | None], error: str) -> None:
    """A version that cannot be tried is a load error with file and place."""
    rule = f'[[rule]]\ndestination = "X/**"\nschema = "e.Thing_v1"\nencoding = "datum"\n{toml}\n'
    more = {"name": "more", "type": ["null", "int"], "default": None}
    texts: dict[str, bytes | None] = {
        "registry.toml": rule.encode(),
        "e/Thing_v1/1.0.avsc": thing(),
        "e/Thing_v1/1.1.avsc": thing(more),
    }
    with pytest.raises(SchemaError, match=error):
        load_registry({path: text for path, text in (texts | files).items() if text is not None})


def test_a_rule_may_forbid_that_rejected_bodies_are_kept() -> None:
    """The default is that they are; the registry knows whether any rule forbids it."""
    toml = '[[rule]]\ndestination = "X/**"\nencoding = "none"\n'
    assert load_registry({"registry.toml": toml.encode()}).rejected_bodies_stored
    registry = load_registry({"registry.toml": f"{toml}store_rejected_bodies = false\n".encode()})
    assert not registry.rejected_bodies_stored
    assert not registry.rules[0].rejected_bodies_stored


@pytest.mark.parametrize(
    "topic", [None, b"X/A.1.Thing", b"V1/A.1.Thing", b"/A.1.Thing", b"V1/A.1.Thin", b"A.1.Thing", b""]
)
def test_a_forwarded_envelope_may_come_from_another_store(topic: bytes | None) -> None:
    """All but the store of the topic item must be that of the destination. Any other SEND must have the store too."""
    rule = registry("envelope").rule_for(TOPIC.decode())
    assert rule is not None
    body = envelope((1, VALUE)) if topic is None else envelope((1, VALUE), (3, topic))
    own = topic in (None, TOPIC)
    assert isinstance(rule.validate(TOPIC, (), body), Validation) is own
    forwarded = rule.validate_forwarded(TOPIC, (), body)
    assert isinstance(forwarded, Validation) is (own or (topic is not None and topic.endswith(b"/A.1.Thing")))
    if isinstance(forwarded, Rejection):
        assert forwarded.result == "envelope-topic-mismatch"
    assert isinstance(rule.validate_forwarded(TOPIC, (), b"\x00"), Rejection)


def test_without_an_envelope_a_forwarded_body_is_judged_like_any_other() -> None:
    """Only envelopes hold their topic."""
    rule = registry("datum").rule_for(TOPIC.decode())
    assert rule is not None
    assert rule.validate_forwarded(TOPIC, (), VALUE) == rule.validate(TOPIC, (), VALUE)
