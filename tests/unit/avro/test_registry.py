"""The schema folder with rules, types, versions and lock, and the shipped example domain."""

import gc
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest

from maxam.avro.registry import Registry, inspect_registry, load_registry
from maxam.avro.rule import ENCODINGS
from maxam.errors import SchemaError
from maxam.records import Validation
from tests.support.avro_schemas import told
from tests.support.sans_io import World, receipts

SCHEMAS = Path(__file__).parents[3] / "schemas"


def avsc(name: str, *types: Any, **extra: Any) -> bytes:
    """Write a record of namespace `e`; unions have null as default."""
    fields = [
        {"name": f"f{i}", "type": of, **({"default": None} if isinstance(of, list) else {})}
        for i, of in enumerate(types)
    ]
    return json.dumps({"type": "record", "namespace": "e", "name": name, **extra, "fields": fields}).encode()


A_RULE = '[[rule]]\ndestination = "X/A.*"\nschema = "e.A_v1"\nencoding = "datum"\n'


def loaded(toml: str = A_RULE, files: Mapping[str, bytes] | None = None) -> Registry:
    """Load a folder with `e/A_v1/1.0.avsc` and more."""
    texts = {"registry.toml": toml.encode(), "e/A_v1/1.0.avsc": avsc("A_v1", "int")}
    return load_registry(texts | dict(files or {}))


def shipped() -> dict[str, bytes]:
    """Read the shipped folder."""
    return {p.relative_to(SCHEMAS).as_posix(): p.read_bytes() for p in SCHEMAS.rglob("*") if p.is_file()}


def test_the_first_rule_that_matches_decides() -> None:
    """Rules are tried in the order of the file, and a destination without one has none."""
    registry = loaded('[[rule]]\ndestination = "X/A.b"\nencoding = "none"\n' + A_RULE)
    assert [rule.encoding for rule in registry.rules] == ["none", "datum"]
    assert registry.rule_for("X/A.b") is registry.rules[0]
    assert registry.rule_for("X/A.c") is registry.rules[1]
    assert registry.rule_for("X/B.c") is None


def test_minors_are_ordered_by_number() -> None:
    """1.10 is newer than 1.9."""
    minors = {f"e/A_v1/1.{minor}.avsc": avsc("A_v1", "int", *[["null", "long"]] * minor) for minor in (10, 9, 2)}
    registry = loaded(files=minors)
    assert [version.minor for version in registry.versions("e.A_v1")] == ["1.10", "1.9", "1.2", "1.0"]
    rule = registry.rule_for("X/A.b")
    assert rule is not None
    rejection = rule.validate(b"X/A.b", ((b"schema-version", b"1.1"),), b"\x00")
    assert not isinstance(rejection, Validation)
    assert rejection.reason.endswith("known: 1.10, 1.9, 1.2, 1.0")


def test_lookups_of_the_decoding_side() -> None:
    """A schema is found by type and minor, and by either fingerprint, newest first."""
    registry = loaded(
        files={"e/A_v1/1.1.avsc": avsc("A_v1", "int", doc="only the text differs"), "README.md": b"# nobody's"}
    )
    old, new = registry.schema("e.A_v1", "1.0"), registry.schema("e.A_v1", "1.1")
    assert old is not None
    assert new is not None
    assert registry.schema("e.A_v1", "1.2") is None
    assert registry.schema("e.B_v1", "1.0") is None
    assert registry.types() == ("e.A_v1",)
    assert registry.by_fingerprint(old.crc_64) == [new, old]
    assert registry.by_fingerprint(old.sha_256) == [new, old]
    assert registry.by_fingerprint(b"") == []
    assert registry.compatibility("e.A_v1") == "FULL_TRANSITIVE"
    texts = dict(registry.texts())
    assert texts == {old.text_sha256: old.schema.text, new.text_sha256: new.schema.text}
    assert all(hashlib.sha256(text).hexdigest() == name for name, text in texts.items())


def test_settings_are_taken() -> None:
    """Fingerprint, envelope keys and compatibility are those of the file."""
    registry = loaded(
        '[registry]\nfingerprint = "SHA-256"\n[registry.envelope_keys]\nbody = 9\n'
        '[type."e.A_v1"]\ncompatibility = "BACKWARD"\n' + A_RULE
    )
    assert registry.fingerprint == "SHA-256"
    keys = registry.envelope_keys
    assert (keys.body, keys.fingerprint, keys.topic, keys.tombstone) == (9, 2, 3, 4)
    assert registry.compatibility("e.A_v1") == "BACKWARD"
    assert registry.fresh_within_s == (None,)
    assert loaded(A_RULE + "fresh_within_s = 2.5\n" + A_RULE + "fresh_within_s = 60").fresh_within_s == (2.5, 60)
    expiring = loaded(A_RULE + "fresh_within_s = 2\nexpire_after_s = 2.5\n" + A_RULE + "expire_after_s = 60\n" + A_RULE)
    assert (expiring.expire_after_s, expiring.fresh_within_s) == ((2.5, 60, None), (2, None, None))
    validation = registry.rules[0].validate(b"X/A.b", (), b"\x00")
    assert isinstance(validation, Validation)
    assert validation.schema_fingerprint == registry.versions("e.A_v1")[0].sha_256


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("x = 1", "registry.toml: x: unknown key, known here: registry, rule, type"),
        ("x", "registry.toml: not UTF-8 TOML"),
        ("x = " + "[" * 5000, "registry.toml: "),
        ("registry = 1", "registry.toml: registry: expected a table, found 1"),
        ("[registry]\nfinger = 1", "registry.toml: registry.finger: unknown key"),
        (
            '[registry]\nfingerprint = "MD5"',
            "registry.toml: registry.fingerprint: expected CRC-64-AVRO or SHA-256, found 'MD5'",
        ),
        ("[registry]\nfingerprint = 5", "registry.toml: registry.fingerprint: expected"),
        ("[registry.envelope_keys]\nbodi = 1", "registry.toml: registry.envelope_keys.bodi: unknown key"),
        ('[registry.envelope_keys]\nbody = "1"', "registry.toml: registry.envelope_keys.body: expected a whole number"),
        ("[registry.envelope_keys]\nbody = true", "registry.envelope_keys.body: expected a whole number"),
        ("[registry.envelope_keys]\nbody = 3", "registry.toml: registry.envelope_keys.topic: body has 3 too"),
        ("[registry.envelope_keys]\nbody = 4294967296", "registry.envelope_keys.body: an item's key has 32 bits"),
        ("type = 5", "registry.toml: type: expected a table"),
        ('[type."e.B_v1"]', 'registry.toml: type."e.B_v1": no such type, known: e.A_v1'),
        ('[type."e.A_v1"]\nx = 1', 'registry.toml: type."e.A_v1".x: unknown key'),
        ('[type."e.A_v1"]\ncompatibility = "SOME"', 'type."e.A_v1".compatibility: expected one of NONE, BACKWARD'),
        ("rule = 5", "registry.toml: rule: expected an array of tables"),
        ("rule = [5]", "registry.toml: rule[0]: expected a table"),
        ("[[rule]]", "registry.toml: rule[0]: 'destination' is missing"),
        ('[[rule]]\ndestination = "X/A"', "registry.toml: rule[0]: 'encoding' is missing"),
        (A_RULE + A_RULE + "x = 1", "registry.toml: rule[1].x: unknown key"),
        (A_RULE + 'require_version = "yes"', "registry.toml: rule[0].require_version: expected true or false"),
        (A_RULE + "fresh_within_s = 0", "rule[0].fresh_within_s: expected a number of seconds above zero, found 0"),
        (
            A_RULE + "fresh_within_s = true",
            "rule[0].fresh_within_s: expected a number of seconds above zero, found True",
        ),
        (A_RULE + "fresh_within_s = inf", "rule[0].fresh_within_s: expected a number of seconds above zero, found inf"),
        (
            A_RULE + 'fresh_within_s = "1m"',
            "rule[0].fresh_within_s: expected a number of seconds above zero, found '1m'",
        ),
        (A_RULE + "expire_after_s = -1", "rule[0].expire_after_s: expected a number of seconds above zero, found -1"),
        (A_RULE + "fresh_within_s = 2\nexpire_after_s = 2", "rule[0].expire_after_s: 2 s is not above fresh_within_s"),
        (A_RULE.replace("e.A_v1", "e.B_v1"), "registry.toml: rule[0].schema: no such type 'e.B_v1', known: e.A_v1"),
        (
            A_RULE.replace("datum", "json"),
            "registry.toml: rule[0].encoding: expected one of datum, single-object, envelope, confluent, none, found 'json'",
        ),
        (A_RULE.replace("X/A.*", "X/[a"), "registry.toml: rule[0].destination: "),
        (A_RULE.replace("X/A.*", "nowhere"), "registry.toml: rule[0].destination: "),
        (A_RULE.replace('"X/A.*"', "5"), "registry.toml: rule[0].destination: expected text"),
        (A_RULE.replace('schema = "e.A_v1"\n', ""), "registry.toml: rule[0]: 'schema' is missing"),
        (A_RULE.replace("datum", "none"), 'registry.toml: rule[0]: with encoding "none" nothing is checked'),
    ],
)
def test_a_wrong_registry_file_is_refused(toml: str, problem: str) -> None:
    """Each mistake in registry.toml is an error that names file and key."""
    with pytest.raises(SchemaError) as caught:
        loaded(toml)
    assert problem in told(caught.value)


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("1.0.avsc", avsc("A_v1"), "1.0.avsc: expected <namespace path>/<type name>_v<major>/<major>.<minor>.avsc"),
        ("e/B/1.0.avsc", avsc("B"), "e/B/1.0.avsc: expected <namespace path>"),
        ("e/B_v1/2.0.avsc", avsc("B_v1"), "e/B_v1/2.0.avsc: expected <namespace path>"),
        ("e/B_v1/1.01.avsc", avsc("B_v1"), "e/B_v1/1.01.avsc: expected <namespace path>"),
        ("e.B_v1/1.0.avsc", avsc("B_v1"), "e.B_v1/1.0.avsc: expected <namespace path>"),
        (
            "f/B_v1/1.0.avsc",
            avsc("B_v1"),
            "f/B_v1/1.0.avsc: name: the path of the file stands for f.B_v1, its text defines e.B_v1",
        ),
        ("e/B_v1/1.0.avsc", b'"int"', "e/B_v1/1.0.avsc: a schema file must define a record, an enum or a fixed"),
        (
            "e/B_v1/1.0.avsc",
            b'{"type": ["record"]}',
            "e/B_v1/1.0.avsc: type: a schema file must define a record, an enum or",
        ),
        ("e/B_v1/1.0.avsc", b"{", "e/B_v1/1.0.avsc: not JSON"),
        ("e/B_v1/1.0.avsc", avsc("B_v1", "C"), "e/B_v1/1.0.avsc: fields[0].type: unknown type 'C'"),
    ],
)
def test_a_wrong_schema_file_is_refused(path: str, text: bytes, problem: str) -> None:
    """A file whose place and text disagree, or that is no schema, is an error with its name."""
    with pytest.raises(SchemaError) as caught:
        loaded(files={path: text})
    assert problem in told(caught.value)


@pytest.mark.parametrize(
    ("path", "text", "where"),
    [
        ("e/B_v1/1.0.avsc", b'\n\n"int"', "e/B_v1/1.0.avsc:3: a schema file must define a record"),
        ("e/B_v1/1.0.avsc", b"\n[]", "e/B_v1/1.0.avsc:2: a schema file must define a record"),
        ("e/B_v1/1.0.avsc", b'{\n\n"type": "int"}', "e/B_v1/1.0.avsc:3: type: a schema file must define a record"),
        ("e/B_v1/1.0.avsc", b'{"doc": 1,\n "type": ["record"]}', "e/B_v1/1.0.avsc:2: type: a schema file must define"),
        ("e/B_v1/1.0.avsc", b'\n{"type": "record"}', "e/B_v1/1.0.avsc:2: record without 'name'"),
        ("e/B_v1/1.0.avsc", b'{"type":\n"record",\n"name": "x.C"}', "e/B_v1/1.0.avsc:3: name: the path of the file stands for e.B"),
        ("e/B_v1/1.0.avsc", b'{"a": 1,\n"b": {"a": 2},\n"c": {"b": 1,\n"b": 2}}', "e/B_v1/1.0.avsc:4: not JSON: key 'b' is"),
        ("e/B_v1/1.0.avsc", b'{"a":\n["NaN",\nNaN]}', "e/B_v1/1.0.avsc:3: not JSON: NaN is not JSON"),
        ("e/B_v1/1.0.avsc", b'{"a":\n-1e999}', "e/B_v1/1.0.avsc:2: not JSON: -1e999 is out of range"),
        ("e/B_v1/1.0.avsc", b'{"a":\n"\xff"}', "e/B_v1/1.0.avsc:2: not UTF-8: 'utf-8' codec"),
        ("e/B_v1/1.0.avsc", b'{"a":\n\n1]', "e/B_v1/1.0.avsc:3: not JSON: Expecting ',' delimiter"),
        ("e/B_v1/1.0.avsc", b'{"type": "record", "name": "e.B_v1",\n"doc": "\\ud800", "fields": []}', "e/B_v1/1.0.avsc:2: doc: a text in it holds"),
        ("e/B_v1/1.0.avsc", b'{"type": "record", "name": "e.B_v1",\n"references": []}', "e/B_v1/1.0.avsc:2: references: expected an object"),
        ("e/B_v1/1.0.avsc", b'{"type": "record", "name": "e.B_v1", "fields":\n[{"name": "f",\n"type": "C"}]}', "e/B_v1/1.0.avsc:3: fields[0].type: unknown"),
        ("registry.toml", b"a = 1\nb = =", "registry.toml:2: not UTF-8 TOML: "),
        ("registry.toml", b"[[rule]]\n# \xff", "registry.toml:2: not UTF-8 TOML: 'utf-8' codec"),
        ("registry.toml", b"[[rule]]\n[[rule]]\nx = 1\n", "registry.toml:3: rule[1].x: unknown key"),
        ("e/B/1.0.avsc", avsc("B"), "e/B/1.0.avsc: expected <namespace path>"),  # its text has no part in it
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(path: str, text: bytes, where: str) -> None:
    """A mistake in a file is reported with file and line, also one of the whole value, and text other than JSON or TOML."""
    with pytest.raises(SchemaError) as caught:
        loaded(files={path: text})
    assert any(line.startswith(where) for line in str(caught.value).splitlines())


def test_any_number_of_mistakes_is_found() -> None:
    """Twenty thousand mistakes are reported at once: the time goes with their number, not with its square."""
    registry, problems = inspect_registry({"registry.toml": b"[[rule]]\n" * 20_000})
    assert registry is None
    assert len(problems) == 20_000


def test_a_folder_without_registry_file_is_refused() -> None:
    """The registry file must be there."""
    with pytest.raises(SchemaError, match=r"registry\.toml: missing"):
        load_registry({})


def test_a_released_minor_does_not_change() -> None:
    """With a lock, a changed or lost text of a released minor is an error, and a new minor is none."""
    lock = loaded().lock()
    new = avsc("A_v1", "int", ["null", "int"])
    assert len(loaded(files={"registry.lock": lock, "e/A_v1/1.1.avsc": new}).versions("e.A_v1")) == 2
    spaces = json.dumps(json.loads(avsc("A_v1", "int")), indent=4).encode()
    loaded(files={"registry.lock": lock, "e/A_v1/1.0.avsc": spaces})  # white space is no change
    with pytest.raises(SchemaError, match=r"^e/A_v1/1\.0\.avsc: .*sha256"):
        loaded(files={"registry.lock": lock, "e/A_v1/1.0.avsc": avsc("A_v1", "int", doc="new")})
    both = loaded(files={"e/A_v1/1.1.avsc": new}).lock()
    with pytest.raises(SchemaError, match=r'registry\.lock:7: released\."e\.A_v1"\."1\.1": '):
        loaded(files={"registry.lock": both})
    with pytest.raises(SchemaError, match=r"registry\.lock:1: x: unknown key"):
        loaded(files={"registry.lock": b"x = 1"})


def test_the_shipped_folder_is_released_as_it_is() -> None:
    """The example domain loads, and its lock is what its texts give."""
    texts = shipped()
    registry = load_registry(texts)
    assert registry.lock() == texts["registry.lock"]
    assert {rule.encoding for rule in registry.rules} == set(ENCODINGS)
    assert len(registry.versions("egm.EGMMeterReading_v1")) == 2


@pytest.mark.parametrize(
    ("destination", "schema"),
    [
        ("X/EGM.Q.12345.EGMMeterReading", "egm.EGMMeterReading_v1"),
        ("X/EGM.S.12345.EGMStatus", "egm.EGMStatus_v1"),
        ("X/EGM.S.12345.EGMHandPay", "egm.EGMHandPay_v1"),
        ("X/EGM.X.12345.Game.Gold:P92.GameDesiredConfig", "egm.GameDesiredConfig_v1"),
        ("X/EGM.X.12345.Game.Gold:P92.GameDetectedConfig", "egm.GameDetectedConfig_v1"),
        ("X/EGM.X.12345.EGMDetectedConfig", "egm.EGMDetectedConfig_v1"),
        ("X/EGM.X.12345.EGMDesiredConfig", "egm.EGMDesiredConfig_v1"),
        ("X/EGM.X.12345.EGMMeteredGamePlay", "egm.EGMMeteredGamePlay_v1"),
        ("X/EGM.X.12345.EGMJackpotGroupMeterReading", "egm.EGMJackpotGroupMeterReading_v1"),
        ("X/EGM.X.12345.EGMJackpotContributorMeterReading", "egm.EGMJackpotContributorMeterReading_v1"),
        ("X/Venue.VENUE-7.VenueMeterTotals", "venue.VenueMeterTotals_v1"),
        ("X/Venue.VENUE-7.Hour.VenueMeterTotals", "venue.VenueMeterTotals_v1"),
        ("X/Venue.VENUE-7.FloorPlan", ""),
        ("B/VENUE-7.Link", "maxam.Link_v1"),
        ("B/VENUE-7.Wanted", "maxam.Wanted_v1"),
    ],
)
def test_the_shipped_rules_find_each_type(destination: str, schema: str) -> None:
    """Each kind of destination of the example domain carries its type."""
    rule = load_registry(shipped()).rule_for(destination)
    assert rule is not None
    assert rule.schema == schema


@pytest.mark.parametrize("type_name", load_registry(shipped()).types())
def test_the_shipped_schemas_are_documented_and_mean_the_same_to_fastavro(type_name: str) -> None:
    """Each shipped schema has a doc on every type and field, and fastavro's random values of it are accepted."""
    from fastavro.utils import generate_one

    for version in load_registry(shipped()).versions(type_name):
        document = json.loads(version.schema.text)
        undocumented(document)
        parsed = fastavro.parse_schema(document)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, generate_one(parsed))
        body = stream.getvalue()
        assert version.walker.explain(body, 0, len(body)) is None


def undocumented(document: Any) -> None:
    """Fail on a record, enum, fixed or field without doc."""
    if isinstance(document, list):
        for item in document:
            undocumented(item)
    if isinstance(document, dict):
        if document["type"] in {"record", "enum", "fixed"}:
            assert document["doc"], document["name"]
        for field in document.get("fields", []):
            assert field["doc"], field["name"]
            undocumented(field["type"])
        undocumented(document.get("items"))
        undocumented(document.get("values"))


def test_the_second_minor_of_the_meter_reading_is_compatible() -> None:
    """A meter reading of 1.0 read as 1.1 gives the same and the default, and no whole old body is a new one."""
    old, new = (load_registry(shipped()).schema("egm.EGMMeterReading_v1", minor) for minor in ("1.0", "1.1"))
    assert old is not None
    assert new is not None
    from fastavro.utils import generate_one

    writer, reader = (fastavro.parse_schema(json.loads(v.schema.text), named_schemas={}) for v in (old, new))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, writer, generate_one(writer))
    body = stream.getvalue()
    assert old.walker.accepts(body, 0, len(body))
    assert not new.walker.accepts(body, 0, len(body))
    plain = fastavro.schemaless_reader(io.BytesIO(body), writer)
    assert isinstance(plain, dict)
    assert fastavro.schemaless_reader(io.BytesIO(body), writer, reader) == {**plain, "reason": None}


@pytest.mark.slow
def test_topics_that_rest_keep_no_registry_that_was_replaced() -> None:
    """After any number of reloads only what is in force takes memory, whichever registry judged a topic's value."""

    def registries() -> int:
        gc.collect()
        return len([one for one in gc.get_objects() if type(one) is Registry])

    world = World.make()
    client = world.client()
    client.send("X/b", b"v", receipt="a rule then")
    before = registries()
    for n in range(5):
        world.broker.replace_registry(load_registry({"registry.toml": A_ALONE}))
        client.send(f"X/a.{n}", b"v", receipt=str(n))
        client.send("X/a", b"v", receipt="again")
        client.send("X/b", b"v", receipt="no rule")
        world.settle()
    answers = [answer for _, answer in receipts(client.read())]
    assert answers == ["accepted"] + ["accepted", "accepted", "rejected-invalid"] * 5
    assert registries() <= before + 1


A_ALONE = b'[[rule]]\ndestination = "X/Z"\nencoding = "none"\n[[rule]]\ndestination = "X/a**"\nencoding = "none"\n'
