"""SENDs whose body is JSON: converted to Avro by the rule of their destination, before they are judged like any other."""

from typing import Final

from maxam.avro.json.encoding import encode_body, encode_value, read_json
from maxam.avro.json.errors import ValueEncodeError
from maxam.avro.registry import Registry
from maxam.avro.registry_file import FINGERPRINTS
from maxam.avro.rule import REASON_CHARACTERS_MAX, Rule, one_line
from maxam.records import Headers, Rejection
from maxam.stomp.events import CONTENT_TYPE, SCHEMA_VERSION, Send

_AVRO: Final = (CONTENT_TYPE, b"application/octet-stream")
_VALUE: Final = "value"  # name of the whole in errors of `read_json`


def converted(event: Send, rule: Rule, registry: Registry, bytes_max: int) -> Send | Rejection:
    """Return the same SEND with its value as Avro, or why it has none.

    The version of `schema-version` converts it, or the newest version of the rule. The headers that travel on describe the Avro.

    Args:
        event: A SEND with a body of JSON.
        rule: Of its destination, with an encoding of Avro.
        registry: Has the rule.
        bytes_max: A longer body is rejected.
    """
    given = dict(reversed(event.headers)).get(SCHEMA_VERSION)
    minor = rule.minors[0] if given is None else given.decode()
    if minor not in rule.minors:
        known = ", ".join(rule.minors[:4])
        return _rejection("unknown-schema-version", f"{rule.schema} has no version {minor!r}, only {known}", rule)
    if len(event.body) > bytes_max:
        text = f"the JSON body has {len(event.body)} bytes; expected at most {bytes_max}, the limit json_bytes_max"
        return _rejection("bad-json", text, rule)
    version = registry.schema(rule.schema, minor)
    if version is None:  # the rule is of another registry
        return _rejection("unknown-schema-version", f"{rule.schema} has no version {minor!r}", rule)
    try:
        value = read_json(event.body, _VALUE)
    except ValueEncodeError as error:
        return _rejection("bad-json", f"the JSON body: {error}", rule)
    try:
        datum = encode_value(version.schema.type, value)
    except ValueEncodeError as error:
        text = f"{rule.schema} {minor}: {error}"
        return _rejection("schema-mismatch", text, rule, minor, error)
    fingerprint_bytes = FINGERPRINTS[registry.fingerprint]
    body = encode_body(version, rule.encoding, datum, registry.envelope_keys, fingerprint_bytes)
    if not body:  # of a type whose values take no byte; an empty body would be a delete
        text = f"{rule.schema} {minor}: its values take no byte, and an empty body would be a delete"
        return _rejection("schema-mismatch", text, rule, minor)
    return Send(event.destination, body, _headers(event.headers, rule, minor), event.receipt, event.condition)


def _headers(headers: Headers, rule: Rule, minor: str) -> Headers:
    """Return the user headers with the media type of Avro, and with the version where the rule requires that."""
    replaced = tuple([_AVRO if name == CONTENT_TYPE else (name, value) for name, value in headers])
    missing = rule.version_required and all(name != SCHEMA_VERSION for name, _ in headers)
    return (*replaced, (SCHEMA_VERSION, minor.encode())) if missing else replaced


def _rejection(result: str, text: str, rule: Rule, minor: str = "", error: ValueEncodeError | None = None) -> Rejection:
    path, expected, found = ("", "", "") if error is None else (error.path, error.expected, error.found)
    return Rejection(
        result,
        one_line(text, REASON_CHARACTERS_MAX),
        rule.schema,
        minor,
        one_line(path, REASON_CHARACTERS_MAX),
        one_line(expected, REASON_CHARACTERS_MAX),
        one_line(found, REASON_CHARACTERS_MAX),
    )
