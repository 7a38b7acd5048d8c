"""How a change of a topic shows in JSON: what is known of it, and its value, decoded if it can be."""

from base64 import b64encode
from typing import Final

from maxam.admin.values import ValueDecodeError, decode_value, iso_time
from maxam.records import Change

WITHHELD: Final[dict[str, object]] = {"value_state": "withheld"}  # from whoever may not receive the topic


def topic_row(change: Change) -> dict[str, object]:
    """Return what everybody may know of a change."""
    judgement = change.judgement
    return {
        "destination": change.destination.decode(),
        "revision": change.revision,
        "accepted_at": iso_time(change.accepted_at_us),
        "publisher": change.publisher.principal,
        "fingerprint": change.publisher.fingerprint,
        "encoding": judgement.encoding,
        "schema": judgement.schema,
        "schema_version": judgement.schema_version,
        "schema_fingerprint": judgement.schema_fingerprint.hex(),
        "body_bytes": len(change.body),
    }


def value_fields(
    change: Change, text: bytes | None, decoded_bytes_max: int, no_text: str = "", as_sent: bool = False
) -> dict[str, object]:
    """Return what is in a topic, for somebody who may receive it: decoded if it can be and is wanted, else as it was sent.

    Args:
        change: A value.
        text: Self-contained text of the schema that judged it, None when there is none.
        decoded_bytes_max: A longer body is not decoded.
        no_text: Why there is no text of a value that a schema has judged.
        as_sent: Do not decode it.
    """
    headers = [[name.decode(), value.decode()] for name, value in change.headers]
    problem = "it was accepted without a schema"
    judgement = change.judgement
    if as_sent:
        problem = "it was asked for as it was sent"
    elif judgement.schema and text is None:
        problem = f"the schema {judgement.schema} {judgement.schema_version} that judged it {no_text}"
    elif len(change.body) > decoded_bytes_max:
        problem = f"it is longer than {decoded_bytes_max} bytes"
    elif text is not None:
        try:
            value = decode_value(text, change.body, judgement)
        except ValueDecodeError as error:
            problem = str(error)
        else:
            return {"value_state": "decoded", "headers": headers, "value": value}
    return {
        "value_state": "raw",
        "headers": headers,
        "problem": problem,
        "value_offset": judgement.value_offset,
        "value_length": judgement.value_length,
        "body": b64encode(change.body).decode(),
    }
