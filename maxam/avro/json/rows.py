"""How a change of a topic shows in JSON: what is known of it, and its value, decoded if it can be."""

from base64 import b64encode
from typing import Final

from maxam.avro.json.decoding import ValueDecodeError, decode_value, iso_time
from maxam.avro.personal import marks_personal
from maxam.records import Change

WITHHELD: Final[dict[str, object]] = {"value_state": "withheld"}  # for a reader who may not receive the topic


def topic_row(change: Change) -> dict[str, object]:
    """Return the part of a change that every reader may see."""
    validation = change.validation
    return {
        "destination": change.destination.decode(),
        "revision": change.revision,
        "accepted_at": iso_time(change.accepted_at_us),
        "publisher": change.publisher.principal,
        "fingerprint": change.publisher.fingerprint,
        "encoding": validation.encoding,
        "schema": validation.schema,
        "schema_version": validation.schema_version,
        "schema_fingerprint": validation.schema_fingerprint.hex(),
        "body_bytes": change.body_bytes,
    }


def may_be_personal(change: Change, text: bytes | None) -> bool:
    """Return True if a value may hold fields marked as personal, or if the text of the schema that judged it is missing.

    A value that no schema has judged has no marks.
    """
    return bool(change.validation.schema) and (text is None or marks_personal(text))


def value_fields(
    change: Change,
    text: bytes | None,
    decoded_bytes_max: int,
    no_text: str = "",
    as_sent: str = "",
    *,
    with_pii: bool = True,
) -> dict[str, object]:
    """Return the value of a topic for a reader who may receive it: decoded if possible and wanted, else as it was sent.

    Without personal fields, a value that may hold some and is not decoded is not shown at all.

    Args:
        change: A value.
        text: Self-contained text of the schema that judged it, None when there is none.
        decoded_bytes_max: A longer body is not decoded.
        no_text: Reason why there is no text of a value that a schema has judged.
        as_sent: Reason not to decode it. If empty, it is decoded.
        with_pii: With the fields that the schema marks as personal.
    """
    masked = not with_pii and may_be_personal(change, text)
    headers = [[name.decode(), value.decode()] for name, value in change.headers]
    problem = "it was accepted without a schema"
    validation = change.validation
    if as_sent:
        problem = as_sent
    elif validation.schema and text is None:
        problem = f"the schema {validation.schema} {validation.schema_version} that judged it {no_text}"
    elif change.body_bytes > decoded_bytes_max:
        problem = f"it is longer than {decoded_bytes_max} bytes"
    elif text is not None:
        try:
            value = decode_value(text, change.body, validation, without_pii=masked)
        except ValueDecodeError as error:
            problem = str(error)
        else:
            fields: dict[str, object] = {"value_state": "decoded", "headers": headers, "value": value}
            return fields | {"pii_masked": True} if masked else fields
    if masked:
        problem += ", and as it was sent it may hold fields marked as personal"
        return {"value_state": "undecoded", "headers": headers, "problem": problem, "pii_masked": True}
    return {
        "value_state": "raw",
        "headers": headers,
        "problem": problem,
        "value_offset": validation.value_offset,
        "value_length": validation.value_length,
        "body": b64encode(change.body).decode(),
    }
