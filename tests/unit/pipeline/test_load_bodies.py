"""Values become the bodies that the gateway's own judge accepts and the admin command shows as those values."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxam.avro.json.decoding import decode_value
from maxam.avro.json.encoding import encode_value
from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.registry import Registry, load_registry
from maxam.avro.schema import parse_schema
from maxam.avro.source import read_source
from maxam.bench.bodies import avro_bodies
from maxam.pipeline.errors import PipelineError
from maxam.pipeline.publish.bodies import BodyEncoder, read_texts
from maxam.records import Rejection, Validation

SCHEMAS = Path(__file__).parents[3] / "schemas"
DESTINATIONS = {  # of each rule of the shipped schemas
    "X/EGM.Q.1.EGMMeterReading": "egm.EGMMeterReading_v1",
    "X/EGM.Q.1.EGMMeteredGamePlay": "egm.EGMMeteredGamePlay_v1",
    "X/EGM.Q.1.EGMStatus": "egm.EGMStatus_v1",
    "X/EGM.S.1.EGMHandPay": "egm.EGMHandPay_v1",
    "X/EGM.Q.1.EGMJackpotGroupMeterReading": "egm.EGMJackpotGroupMeterReading_v1",
    "X/EGM.X.1.Game.T:P.GameDetectedConfig": "egm.GameDetectedConfig_v1",
    "X/EGM.X.1.EGMDesiredConfig": "egm.EGMDesiredConfig_v1",
}


def written(schema: Any, value: Any) -> bytes:
    """Return a value as Avro binary."""
    return encode_value(parse_schema(read_source("t", json.dumps(schema).encode())).type, value, rows=True)


def shown(schema: Any, datum: bytes) -> Any:
    """Return Avro binary as the admin command shows it."""
    return decode_value(json.dumps(schema).encode(), datum, Validation("datum", "t", "1.0", b""))


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Load the shipped schemas."""
    return load_registry(read_texts(SCHEMAS))


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_bodies_of_the_shipped_schemas_come_back(registry: Registry, destination: str) -> None:
    """The JSON of a valid body of any encoding is encoded to a body that is accepted and shown as the same JSON."""
    type_name = DESTINATIONS[destination]
    newest = registry.versions(type_name)[0]
    encoder = BodyEncoder(registry)
    for datum in avro_bodies(registry, type_name, "", 20, None):
        value = decode_value(newest.schema.text, datum, Validation("datum", type_name, newest.minor, b""))
        body, headers = encoder.encode(destination, value)
        assert encoder.problem(destination, body, headers) is None
        rule = registry.rule_for(destination)
        assert rule is not None
        judged = rule.validate(destination.encode(), (), body)
        assert not isinstance(judged, Rejection)
        assert (judged.schema, judged.schema_version) == (type_name, newest.minor)
        assert decode_value(newest.schema.text, body, judged) == value


LEAST = (-(2**7), -(2**15), -(2**23), -(2**31))  # of one byte, two, three and four

EVERYTHING = {
    "type": "record",
    "name": "All",
    "namespace": "n",
    "fields": [
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "d", "type": "double"},
        {"name": "s", "type": "string"},
        {"name": "y", "type": "bytes"},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["ON", "OFF"]}},
        {"name": "a", "type": {"type": "array", "items": "long"}},
        {"name": "m", "type": {"type": "map", "values": "string"}},
        {"name": "u", "type": ["null", "long", "string", "n.F"]},
        {"name": "dec", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "ns", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "next", "type": ["null", "n.All"], "default": None},
    ],
}
LONGS = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.integers(-(10**12), 9 * 10**12)  # years 1938 to 2255 in milliseconds


def records() -> st.SearchStrategy[Any]:
    """Make values of EVERYTHING as fastavro writes them."""
    flat = {
        "b": st.booleans(),
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": LONGS,
        "d": st.floats(allow_nan=False),
        "s": st.text(max_size=5),
        "y": st.binary(max_size=5),
        "f": st.binary(min_size=3, max_size=3),
        "e": st.sampled_from(["ON", "OFF"]),
        "a": st.lists(LONGS, max_size=3),
        "m": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
        "u": st.none() | LONGS | st.text(max_size=4),
        "dec": st.decimals(-(10**8), 10**8, places=3).filter(lambda value: int(value * 1000) not in LEAST),
        "ms": MOMENTS,
        "us": MOMENTS.map(lambda ms: ms * 1000 + 7),
        "ns": MOMENTS.map(lambda ms: ms * 1_000_000 + 12345),
        "day": st.integers(-10_000, 100_000),
        "at": st.integers(0, 86_399_999),
    }
    return st.recursive(
        st.fixed_dictionaries({**flat, "next": st.none()}),
        lambda inner: st.fixed_dictionaries({**flat, "next": inner}),
        max_leaves=3,
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(records())
def test_every_type_is_written_as_fastavro_does(value: Any) -> None:
    """A value given as Python has it, and as the admin command shows it, is written to the very bytes of fastavro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(EVERYTHING), value)
    datum = out.getvalue()
    assert written(EVERYTHING, value) == datum
    assert written(EVERYTHING, shown(EVERYTHING, datum)) == datum


@pytest.mark.parametrize("least", LEAST)
def test_the_least_numbers_of_so_many_bytes_take_no_more(least: int) -> None:
    """Where fastavro spends a byte more, which Avro does not ask for, it reads the same number."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
    number = Decimal(least).scaleb(-3)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), number)
    datum = written(schema, number)
    assert len(datum) == len(out.getvalue()) - 1
    assert fastavro.schemaless_reader(io.BytesIO(datum), fastavro.parse_schema(schema), None) == number


def test_a_table_s_own_types_are_taken() -> None:
    """Moments, dates, times, decimals and pairs of maps as pyarrow gives them are the same as their texts."""
    common = {"b": True, "i": 1, "l": 2, "d": 3, "s": "", "y": b"\0\1", "f": "AAEC", "e": "ON", "a": (), "u": b"abc"}
    native = common | {
        "m": [("k", "v")],
        "dec": Decimal("1.50"),
        "ms": datetime(2026, 11, 21, 8, 0, 0, 250_000, UTC),
        "us": datetime(2026, 11, 21, 8, 0),  # noqa: DTZ001 - a local one
        "ns": datetime(2026, 11, 21, 8, 0),  # noqa: DTZ001 - a table's without zone is UTC
        "day": date(2026, 11, 21),
        "at": time(23, 59, 59, 500_000),
    }
    texts = common | {
        "m": {"k": "v"},
        "dec": 1.5,
        "ms": "2026-11-21T09:00:00.25+01:00",
        "us": "2026-11-21 08:00:00",
        "ns": "2026-11-21T08:00:00.000000000Z",
        "day": "2026-11-21",
        "at": "23:59:59.5",
    }
    assert written(EVERYTHING, native) == written(EVERYTHING, texts)


def test_absent_and_null_fields_have_their_defaults() -> None:
    """A field that is absent, or null where null cannot be, has its default, bytes ones too; members that are null are ignored."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "int", "default": 7},
            {"name": "y", "type": "bytes", "default": "\u00ff"},
            {"name": "o", "type": ["null", "string"], "default": None},
        ],
    }
    assert written(schema, {}) == written(schema, {"n": None, "gone": None}) == b"\x0e\x02\xff\x00"


def test_a_value_may_say_which_branch_it_is() -> None:
    """Of records with the same fields, the named one is written, in both ways of naming it."""
    fields = [{"name": "v", "type": "int"}]
    schema = [
        "null",
        {"type": "record", "name": "n.A", "fields": fields},
        {"type": "record", "name": "n.B", "fields": fields},
    ]
    assert written(schema, {"n.B": {"v": 1}}) == b"\x04\x02"
    assert written(schema, {"n_A": None, "n_B": {"v": 1}}) == b"\x04\x02"
    with pytest.raises(ValueEncodeError, match=r"<n.B>.v: expected a whole number"):
        written(schema, {"n.B": {"v": "x"}})
    with pytest.raises(ValueEncodeError, match="named as in"):
        written(schema, {"v": 1})


def test_what_cannot_be_encoded_says_why() -> None:
    """Without a rule, or with one that has no schema, there is nothing to encode by; required versions become headers."""
    texts = {
        "registry.toml": b"""
            [[rule]]
            destination = "X/raw.*"
            encoding = "none"
            [[rule]]
            destination = "X/n.*"
            schema = "t.N_v1"
            encoding = "datum"
            require_version = true
            """,
        "t/N_v1/1.0.avsc": b'{"type":"record","name":"N_v1","namespace":"t","fields":[{"name":"a","type":"int"}]}',
    }
    encoder = BodyEncoder(load_registry(texts))
    with pytest.raises(PipelineError, match="no rule"):
        encoder.encode("X/other", 1)
    with pytest.raises(PipelineError, match="has no schema"):
        encoder.encode("X/raw.1", 1)
    assert encoder.encode("X/n.1", {"a": 1}) == (b"\x02", {"schema-version": "1.0"})
    rejection = encoder.problem("X/n.1", b"\x02", {})
    assert rejection is not None
    assert rejection.result == "schema-version-required"
    assert encoder.problem("X/n.1", b"\x02", {"schema-version": "1.0"}) is None
