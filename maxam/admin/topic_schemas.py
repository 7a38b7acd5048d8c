"""What `topic_rows` makes, as JSON Schema: apart from it, as processes use that which need nothing of the API."""

from typing import Final

from maxam.admin.description import ANYTHING, BASE64, COUNT, FLAG, HEX, TEXT, TIME, extended, listed, one_of, record

TOPIC: Final = record(
    "TopicRow",
    destination=TEXT,
    revision=COUNT,
    accepted_at=TIME,
    publisher=TEXT,
    fingerprint=TEXT,
    encoding=TEXT,
    schema={"type": "string", "description": "empty without one"},
    schema_version=TEXT,
    schema_fingerprint=HEX,
    body_bytes=COUNT,
)
VALUED_TOPIC: Final = extended(
    TOPIC,
    "Topic",
    ("updates", "value_state", "headers", "value", "pii_masked", "problem", "value_offset", "value_length", "body"),
    updates={"type": "integer", "description": "changes of the topic since the gateway has known it: for their rate"},
    value_state=one_of("decoded", "raw", "undecoded", "withheld"),
    headers=listed({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}),
    value=ANYTHING,
    pii_masked={**FLAG, "description": "true: what the schema marks as personal is left out"},
    problem={"type": "string", "description": "why it is not decoded"},
    value_offset=COUNT,
    value_length={"type": "integer", "minimum": -1, "description": "-1: all the rest"},
    body=BASE64,
)
