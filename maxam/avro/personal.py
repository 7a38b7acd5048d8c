"""Fields that a schema marks as personal (`"pii": true`), by self-contained texts of schemas."""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from maxam.avro.schema import PII, Type

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


def reads_personal(of: Type, path: Sequence[str | int | bytes]) -> bool:
    """Return True if a path leads through a field that is marked as personal.

    Args:
        of: Type at which the path begins.
        path: Names of fields, indexes of arrays and keys of maps.
    """
    if of.kind == "union":
        return any(reads_personal(branch, path) for branch in of.branches)
    if not path:
        return False
    step, rest = path[0], path[1:]
    if of.kind == "record":
        return any(field.personal or reads_personal(field.type, rest) for field in of.fields if field.name == step)
    inner = (of.kind == "array" and isinstance(step, int)) or (of.kind == "map" and isinstance(step, bytes))
    return inner and reads_personal(of.branches[0], rest)


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
