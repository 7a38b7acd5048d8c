"""Fields that a schema marks as personal (`"pii": true`), by self-contained texts of schemas."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from maxam.avro.schema import PII

_CACHED: Final = 256  # texts; a registry has fewer
_RECORDS: Final = ("record", "error")


@lru_cache(maxsize=_CACHED)
def marks_personal(text: bytes) -> bool:
    """Return True if a schema marks anything as personal."""
    left = [json.loads(text)]
    while left:
        match left.pop():
            case dict() as part:
                if part.get(PII) is True:
                    return True
                left += part.values()
            case list() as parts:
                left += parts
            case _:
                pass
    return False


@lru_cache(maxsize=_CACHED)
def with_marks_of(text: bytes, others: tuple[bytes, ...]) -> bytes:
    """Return a schema's text with the marks of other texts of the same canonical form added to its own.

    Such texts differ only in attributes that no byte of a value shows, and they have the same fingerprint. So a field is
    personal if any of them marks it.
    """
    missing = {
        (record, field["name"])
        for other in others
        if other != text and marks_personal(other)
        for record, field in _fields(json.loads(other), "")
        if field.get(PII) is True
    }
    if not missing:
        return text
    document = json.loads(text)
    for record, field in _fields(document, ""):
        if (record, field["name"]) in missing:
            field[PII] = True
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _fields(part: Any, namespace: str) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401 parsed JSON of any shape
    """Iterate over all fields, each with the full name of its record."""
    match part:
        case list():
            for branch in part:
                yield from _fields(branch, namespace)
        case {"type": kind, "fields": list() as fields} if kind in _RECORDS:
            name = part["name"]
            if "." not in name:
                own = part.get("namespace", namespace)
                name = f"{own}.{name}" if own else name
            for field in fields:
                yield name, field
                yield from _fields(field["type"], name.rpartition(".")[0])
        case {"items": inner} | {"values": inner} | {"type": (dict() | list()) as inner}:
            yield from _fields(inner, namespace)
        case _:
            pass
