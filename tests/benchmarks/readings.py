"""A body of the load: a meter reading of the shipped schemas."""

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro

from maxam.bench.bodies import METER_READING, SCHEMAS, avro_bodies, read_schemas


def meter_reading(size: int) -> bytes:
    """Return a meter reading of the shipped schemas, of N bytes."""
    return avro_bodies(read_schemas(SCHEMAS), METER_READING, "", 1, size)[0]


def meter_reading_reader(size: int) -> Callable[[], object]:
    """Return what reads such a body once with fastavro."""
    schema = fastavro.parse_schema(json.loads(read_schemas(SCHEMAS).versions(METER_READING)[0].schema.text))
    body = meter_reading(size)
    return lambda: fastavro.schemaless_reader(io.BytesIO(body), schema)


def turnover(body: bytes) -> int:
    """Return the turnover that a meter reading holds."""
    schema = fastavro.parse_schema(json.loads(read_schemas(SCHEMAS).versions(METER_READING)[0].schema.text))
    value: Any = fastavro.schemaless_reader(io.BytesIO(body), schema)
    return int(value["meters"]["auxiliary"]["turnover"])
