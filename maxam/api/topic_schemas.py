"""JSON Schema of the rows of `avro.json.rows`."""

from typing import Final

from maxam.api.description import (
    ANYTHING,
    BASE64,
    COUNT,
    FLAG,
    HEX,
    TEXT,
    TIME,
    WHOLE,
    Schema,
    described,
    extended,
    listed,
    one_of,
    record,
)

TOPIC: Final = record(
    "TopicRow",
    destination=TEXT,
    revision=COUNT,
    accepted_at=TIME,
    publisher=TEXT,
    fingerprint=TEXT,
    encoding=TEXT,
    schema=described(TEXT, "empty without one"),
    schema_version=TEXT,
    schema_fingerprint=HEX,
    body_bytes=COUNT,
)
HEADERS: Final = listed({**listed(TEXT), "minItems": 2, "maxItems": 2})
VALUE_FIELDS: Final[dict[str, Schema]] = {
    "value_state": one_of("decoded", "raw", "undecoded", "withheld"),
    "headers": HEADERS,
    "value": ANYTHING,
    "pii_masked": described(FLAG, "true: the fields that the schema marks as personal are left out"),
    "problem": described(TEXT, "why it is not decoded"),
    "value_offset": COUNT,
    "value_length": {"type": "integer", "minimum": -1, "description": "-1: all the rest"},
    "body": BASE64,
}
VALUED_TOPIC: Final = extended(
    TOPIC,
    "Topic",
    ("updates", "unknown_since", *VALUE_FIELDS),
    updates=described(WHOLE, "changes of the topic since the gateway has known it: for their rate"),
    unknown_since=described(TIME, "since when it is not known to be current, as its link is down; absent if it is"),
    **VALUE_FIELDS,
)
