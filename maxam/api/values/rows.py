"""Values as JSON texts, as the routes of values answer them. The broker converts each value once for all its readers."""

from base64 import b64encode
from hashlib import blake2b
from typing import Final

from maxam.api.description import ANYTHING, BASE64, COUNT, TEXT, TIME, Schema, described, nullable, one_of, record
from maxam.avro.json.decoding import iso_time, json_text
from maxam.avro.json.selection import Fields
from maxam.broker.json_values import JsonValues
from maxam.records import Change

VALUE: Final[Schema] = record(
    "Value",
    ("value", "content_type", "body"),
    destination=TEXT,
    revision=COUNT,
    accepted_at=TIME,
    schema=described(
        TEXT, "type and version by which it was judged, such as `egm.EGMStatus_v1 1.0`; empty without one"
    ),
    value_state=described(
        one_of("decoded", "raw", "undecoded"), "`raw` if no schema judged it, `undecoded` if it could not be converted"
    ),
    value=described(ANYTHING, "unless it is raw; null if it is undecoded"),
    content_type=described(nullable(TEXT), "of a raw value, as it was sent"),
    body=described(BASE64, "of a raw value"),
)


def value_text(values: JsonValues, change: Change, with_pii: bool, fields: Fields) -> bytes:
    """Return the JSON object of a value.

    Args:
        values: The values that the broker keeps as JSON.
        change: The value.
        with_pii: With the fields that the schema marks as personal.
        fields: Paths of the fields to show. Empty for all.
    """
    content = values.content(change, with_pii, fields)
    facts = change_facts(change)
    if content is None:
        content_type = dict(reversed(change.headers)).get(b"content-type")
        facts["value_state"] = "raw"
        facts["content_type"] = None if content_type is None else content_type.decode()
        facts["body"] = b64encode(change.body).decode()
        return json_text(facts)
    facts["value_state"] = "decoded" if content.decoded else "undecoded"
    return json_text(facts)[:-1] + b',"value":' + content.body + b"}"


def change_facts(change: Change) -> dict[str, object]:
    """Return the facts about a change that do not depend on its value."""
    validation = change.validation
    return {
        "destination": change.destination.decode(),
        "revision": change.revision,
        "accepted_at": iso_time(change.accepted_at_us),
        "schema": f"{validation.schema} {validation.schema_version}" if validation.schema else "",
    }


def tag_of(change: Change, text: bytes) -> str:
    """Return the tag of a value: its revision, and a digest, because rights and schemas in force decide about the text."""
    return f"{change.revision}.{blake2b(text, digest_size=8).hexdigest()}"
