"""Checks of JSON request bodies by the schema that describes them: the parts of JSON Schema that `description` uses."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request

from maxam.api.answers import ApiError
from maxam.api.description import Schema

KEY_SHOWN_CHARACTERS_MAX: Final = 60


async def read_body(request: Request, schema: Schema, code: str = "invalid-request") -> dict[str, Any]:
    """Return the JSON object that is the body of a request.

    Raises:
        ApiError: It has this code, as the body is not JSON or does not match the schema.
    """
    try:
        body: dict[str, Any] = await request.json()
    except (ValueError, RecursionError) as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, code, f"the body must be JSON: {error}") from error
    reason = mismatch(schema, body, "the body")
    if reason:
        raise ApiError(HTTPStatus.BAD_REQUEST, code, reason)
    return body


def mismatch(schema: Schema, value: object, where: str) -> str:
    """Return why a JSON value does not match a schema, empty if it does. Null stands for a field that may be missing.

    Args:
        schema: A schema of `description`.
        value: The value.
        where: Name of the value in the reason.
    """
    details: Mapping[str, Any] = schema
    if "anyOf" in details:
        reasons = [mismatch(one, value, where) for one in details["anyOf"]]
        return "" if "" in reasons else reasons[0]
    match details.get("type"):
        case "object":
            return _object_mismatch(details, value, where)
        case "array":
            return _array_mismatch(details, value, where)
        case "string":
            return _text_mismatch(details, value, where)
        case "integer":
            low, high = details.get("minimum"), details.get("maximum")
            found = value if isinstance(value, int) and not isinstance(value, bool) else None
            if found is None or (low is not None and found < low) or (high is not None and found > high):
                limits = "" if low is None else f" from {low}" + ("" if high is None else f" to {high}")
                return f"{where} must be a whole number{limits}"
        case "null" if value is not None:
            return f"{where} must be null"
    return ""


def _object_mismatch(schema: Mapping[str, Any], value: object, where: str) -> str:
    if not isinstance(value, dict):
        return f"{where} must be a JSON object"
    fields, required = schema["properties"], schema["required"]
    for key in value:
        if key not in fields:
            return f"unknown key {str(key)[:KEY_SHOWN_CHARACTERS_MAX]!r}; there are {', '.join(fields)}"
    for key, field in fields.items():
        if key in required or value.get(key) is not None:
            reason = mismatch(field, value.get(key), f"`{key}`")
            if reason:
                return reason
    return ""


def _array_mismatch(schema: Mapping[str, Any], value: object, where: str) -> str:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if not isinstance(value, list) or len(value) < least or (most is not None and len(value) > most):
        return f"{where} must be a list" + (f" of {most}" if most is not None else "")
    return next((reason for one in value if (reason := mismatch(schema["items"], one, f"an item of {where}"))), "")


def _text_mismatch(schema: Mapping[str, Any], value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) < schema.get("minLength", 0):
        return f"{where} must be a text"
    most = schema.get("maxLength")
    if most is not None and len(value) > most:
        return f"{where} has {len(value)} characters, at most {most} are possible"
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can hold it, and neither a frame nor a file can
        return f"{where} has half a surrogate pair"
    return ""
